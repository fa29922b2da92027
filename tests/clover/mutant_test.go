package clover

import (
	"testing"

	"github.com/quillon/quillon/tests/mutant"
)

// steer is the package that mutants change, and whose tests find most of them.
const steer = "tor/clover"

func mutants() (all []mutant.Mutant) {
	for _, m := range []struct{ name, file, old, new, run string }{
		// Who is believed.
		{"answers from the clients' side are believed", "steer.go", "return !s.cfg.anySide || s.response", "return s.response", "TestSpoofed"},
		{"replies of the connection manager from the clients' side are believed", "steer.go", "if server == (in == fromServers) && ", "if (server || true) && ", "TestConnectionManager"},
		{"the connection manager is not heard", "steer.go", "s.event(int32(i), e)\n\t\t}\n\t}\n\treturn true", "_ = e\n\t\t}\n\t}\n\treturn true", "TestConnectionManager"},
		{"requests ahead of their turn are taken", "request.go", "case d < 0 || d > int32(r.slack):", "case d < 0:", "TestSpoofed"},
		{"requests ahead of their turn move the numbering", "request.go", "r.aheadTo = (psn + n) & hdr.PSNMask\n", "r.aheadTo = (psn + n) & hdr.PSNMask\n\tif r.ahead == maxAhead {\n\t\tr.epsn = r.aheadTo\n\t}\n", "TestSpoofed"},
		{"who others depend on is met anew", "request.go", "> quietBefore && s.mayLeave(i)", "> quietBefore", "TestSpoofed"},
		{"nobody is met anew", "request.go", "s.conns.Remove(conn.Slot(i))\n\t}\n}", "_ = x\n\t}\n}", "TestReborn"},
		{"requests that were not seen are never caught up with", "response.go", "r.epsn, r.slack = (up+1)&hdr.PSNMask, 0", "r.slack = 0", "TestUnseen"},
		{"what came in sequence behind an answered request is not in turn", "response.go", "\t\t\tr.epsn = r.aheadTo\n", "", "TestUnseen"},
		{"another CAS under the same PSN is steered", "request.go", "rec.swap != a.Swap() || ", "", "TestSpoofed"},
		{"a CAS under another R_Key is steered", "request.go", "rec.rkey != a.RKey() || ", "", "TestSpoofed"},
		{"old refusals are new", "response.go", "syn.NAK() && hdr.PSNDiff(p.psn, r.acked) > 0", "syn.NAK()", "TestSpoofed"},
		// What may write.
		{"what is not understood changes nothing", "known.go", "\t\t\ts.doubt(c, int16(i))\n\t\t}\n\t}\n}", "\t\t}\n\t}\n}", "TestOpaque"},
		{"frames that do not parse change nothing", "steer.go", "\t\ts.foreign(c, b)\n\t\tswitch f.Why", "\t\tswitch f.Why", "TestOpaque"},
		{"what no server can be seen for changes none", "known.go", " && f.Why != hdr.DeepTags", "", "TestOpaque"},
		{"what is in doubt is used", "known.go", "if s.doubted(k) {", "if false {", "TestOpaque"},
		{"other transports write nothing", "known.go", "\t\t\ts.overwrite(c, int16(i), change.VA, change.Len, noEntry)\n", "", "TestRanges"},
		{"a WRITE reaches only where it begins", "known.go", "for ; at < end; at += g.step {", "for ; at < end && at == va; at += g.step {", "TestRanges"},
		{"a WRITE into the middle of a word leaves it", "known.go", "first := va - min(va, wire.HeaderLen-1)", "first := va", "TestRanges"},
		{"a WRITE around the end of all addresses leaves entries", "known.go", "if end < va || ", "if ", "TestRanges"},
		{"an entry across two others leaves them", "request.go", "|| !g.has(va) {", "{", "TestRanges"},
		{"a FETCH ADD changes nothing", "request.go", "s.disturb(c, sid, f.AtomicETHOf(b).VA())", "_ = b", "TestDrops|TestStrangers"},
		{"what is repeated is what was sent before", "request.go", "binary.LittleEndian.Uint64(p[wire.KeyAt:]) != s.keys.s[e.key()].key {", "false {", "TestStrangers"},
		{"a tail that is overwritten is a tail", "known.go", "if s.isTail(slot) {\n\t\ts.dropKey(c, s.addrs.e[slot].key())\n\t}\n\ts.addrs.e[slot] = entry{}", "s.addrs.e[slot] = entry{}", "TestDrops"},
		{"an entry that others were sent to is a tail", "response.go", " || s.addrs.e[rec.slot].touched()", "", "TestNoBeliefInTouchedEntry"},
		{"an old answer is a new one", "response.go", "k.epoch != rec.epoch || k.unlinked() > 0", "k.unlinked() > 0", "TestNoBeliefInOldAnswer"},
		{"an entry that was recycled is the one that was linked", "response.go", "!s.holdsEntry(rec) || ", "", "TestNoBeliefInRecycledEntry"},
		{"two ends of one chain are both right", "response.go", "\t\ts.dropKey(c, rec.key)\n\t\treturn\n\t}\n\tk.tail", "\t}\n\tk.tail", "TestNoBeliefInTwoEnds"},
		{"tails are believed while the app settles", "response.go", " || c.Now() < s.settled", "", "TestNoBeliefWhileSettling"},
		{"tails are believed while appends are open", "response.go", " || k.unlinked() > 0 ||", " ||", "TestQuarantine"},
		// What is steered, and how.
		{"an entry that is not known to be written is linked", "request.go", "case hdr.PSNDiff(s.acked, w.end) < 0:\n\t\t// Linked", "case false:\n\t\t// Linked", "TestNotSteered"},
		{"R_Keys are one memory", "request.go", "case s.regions[t.region()].rkey != rec.rkey:", "case false:", "TestServerRestart|TestTwoKeys"},
		{"READs under another R_Key are steered", "request.go", "s.regions[e.region()].rkey != reth.RKey() || ", "", "TestReadOtherKey"},
		{"entries of other versions are steered to", "request.go", "case t.version() != rec.cliVer && !s.cfg.adjust:", "case false:", "TestVersions"},
		{"READs of other versions are steered", "request.go", "case t.version() != e.version() && !s.cfg.adjust:", "case false:", "TestReadSteering"},
		{"ahead= is ignored", "request.go", "case k.unlinked() > s.cfg.ahead:\n\t\treturn", "case false:\n\t\treturn", "TestAheadOfNothing"},
		{"ahead= is ignored for READs", "request.go", "case k.unlinked() > s.cfg.ahead:\n\t\twhy", "case false:\n\t\twhy", "TestAheadOfNothing"},
		{"a CAS keeps its comparison", "request.go", "a.SetCompare(uint64(wire.Fresh(rec.newVer)))\n\t\ta.SetSwap", "a.SetSwap", "TestVersions"},
		{"a changed CAS keeps its ICRC", "request.go", "s.changing(b, int(s.f.BTH)+hdr.BTHLen, n)", "_ = n", "TestVersions|TestGoldenCAS"},
		{"a changed READ keeps its ICRC", "request.go", "s.changing(b, int(s.f.BTH)+hdr.BTHLen, 8)", "", "TestReadSteering"},
		{"a changed answer that is held keeps its ICRC", "wait.go", "\t\ts.seal(x.Bytes())\n\t}\n\tat :=", "\t}\n\tat :=", "TestOneServerOfWorkers"},
		{"a changed frame keeps its UDP checksum", "look.go", "b[f.L4+6], b[f.L4+7] = 0, 0", "", "TestUDPChecksum"},
		{"what is sent again keeps its UDP checksum", "tick.go", "b[f.L4+6], b[f.L4+7] = 0, 0", "_ = n", "TestUDPChecksum"},
		{"a retransmission goes where it was sent", "request.go", "if rec.steered && s.rewriteCAS(b, rec) {", "if false {", "TestGoldenCAS"},
		{"a success reads as a failure", "response.go", "give = rec.compare()", "give = orig", "TestVersions"},
		{"a failure reads as a success", "response.go", "give = uint64(wire.Pointer(orig).WithVersion(wire.NoVersion))", "give = orig", "TestFailureIsNoSuccess"},
		{"a READ's answer keeps its version", "response.go", "give = w.WithVersion(rec.cliVer)", "give = w", "TestReadSteering"},
		{"a recycled entry is the one that was asked for", "response.go", "if believed && w.Version() == rec.newVer {", "if believed {", "TestReadSteering"},
		{"a refusal leaves what was believed", "response.go", "\t\t\ts.dropKey(c, rec.key)\n\t\t}\n\t}\n\tif fatal", "\t\t}\n\t}\n\tif fatal", "TestDrops|TestRefusedRead"},
		{"records are overwritten", "row.go", "return nil\n\t\t}\n\t\ts.ended(o)", "}\n\t\ts.ended(o)", "TestWindow"},
		// Who stands behind whom.
		{"who is behind what is not linked is told of a success", "response.go", "return !ok || !s.void(rec) && s.succeeded(rec)", "return true", "TestAnswerWaits"},
		{"an entry is read that is not linked", "response.go", "if k.epoch == rec.epoch && !k.linked(rec.n) {", "if false {", "TestReadWaits"},
		{"answers overtake one that waits", "response.go", "if wait.key == noSlot && r.q.Empty() {", "if wait.key == noSlot {", "TestAnswersInOrder"},
		{"one link is as good as all", "chain.go", "if rec.n != k.sure+1 {\n\t\t\treturn false\n\t\t}", "", "TestAnswerWaits"},
		{"those who wait are not woken", "chain.go", "\t\t\ts.wakeAppend(ki, k.sure)\n", "", "TestAnswerWaits"},
		{"those behind who wait are forgotten", "chain.go", "(k.waits == 0 || s.answered(ki, k.sure+1) == 0) && ", "", "TestLongChain"},
		{"a refused entry is in the chain", "chain.go", "over: alone})", "over: true})", "TestRelinked|TestQuarantine"},
		{"an entry that is linked elsewhere never counts", "response.go", "s.relinked(r.sid, wire.Pointer(rec.swap).LH())", "_ = c", "TestRelinked"},
		{"who is behind a gap is told of a success", "chain.go", "k.sure, k.cut = k.sent, k.epoch", "k.sure = k.sent", "TestCut"},
		{"answers behind a gap go", "chain.go", "if w.void = !w.read; w.void {", "if !w.read {", "TestCut"},
		{"nothing ends with its connection", "chain.go", "\t\ts.ended(&ring[j])\n", "", "TestCut"},
		{"READs of what is not believed any more wait", "known.go", "\t\ts.wakeReads(k)\n", "", "TestReadWaits"},
		{"a READ of what is not linked comes as it is", "wait.go", "if w.read && s.keys.s[w.key].epoch != w.epoch {", "if false {", "TestReadWaits"},
		{"the same answer is held twice", "wait.go", "if !r.q.Empty() && hdr.PSNDiff(w.psn, r.heldTo) <= 0 {", "if false {", "TestAnswerWaits"},
		{"more is steered than can be held", "request.go", "case k.unlinked() > 0 && !s.room(1):", "case false:", "TestHoldFull"},
		{"places are kept for ever", "row.go", "\ts.booked -= int(o.booked)\n", "", "TestHoldFull"},
		{"what is held goes when all is forgotten", "steer.go", "\ts.discardAll(c)\n\ts.settled", "\ts.settled", "TestForgetsHeld"},
		// What is sent again.
		{"nothing is sent again", "tick.go", "\t\t\ts.resend(c, at/window, rec)\n", "", "TestRepair|TestLostCAS"},
		{"what is sent again is the client's", "tick.go", "a.SetVA(rec.newVA)", "a.SetVA(rec.va)", "TestRepair|TestLostCAS"},
		{"what is sent again has the newest PSN", "tick.go", "\tf.BTHOf(b).SetPSN(rec.psn)\n", "", "TestRepairedOlder"},
		{"what is ahead of its turn is sent again", "tick.go", "case hdr.PSNDiff(rec.psn, r.acked) > 1:", "case false:", "TestPatience|TestInheritGap"},
		{"it is sent again without end", "tick.go", "now.Sub(rec.sent) < s.cfg.repair<<n", "now.Sub(rec.sent) < s.cfg.repair", "TestRepairSlows"},
		{"others are sent behind what is not answered", "tick.go", "s.dropKey(c, rec.key) // nobody", "_ = rec // nobody", "TestRepair"},
		{"marks of congestion are repeated", "tick.go", "\tunmark(b, f)\n", "", "TestMarks"},
		{"FECN and BECN are repeated", "tick.go", "\th[4] &^= 0xC0\n", "\t_ = h\n", "TestMarks"},
		{"a mark that is taken off leaves its checksum", "tick.go", "\t\t\tip.UpdateChecksum()\n", "", "TestMarks"},
		{"a gap is for ever", "tick.go", "\t\t\ts.cut(c, g.key)\n", "", "TestCut"},
		// What outlives the process.
		{"nothing is on record", "request.go", "\t\ts.note(rec, ri)\n", "", "TestInherit$|TestJournalFull"},
		{"what is linked stays on record", "wait.go", "\t\t\t\ts.erase(o)\n", "", "TestInherit$"},
		{"the first of a row stays on record", "chain.go", "\trec.linked = true\n\ts.erase(rec)\n", "\trec.linked = true\n", "TestInherit$"},
		{"what is refused stays on record", "chain.go", "\ts.erase(rec)\n\tk := &s.keys.s[rec.key]", "\tk := &s.keys.s[rec.key]", "TestErased"},
		{"what ended with its connection stays on record", "chain.go", "\t\ts.erase(&ring[j])\n", "", "TestErased|TestInheritOther"},
		{"what is executed and not linked is off the record", "response.go", "\trec.live = false\n\ts.close(rec)\n", "\trec.live = false\n\ts.close(rec)\n\ts.erase(rec)\n", "TestInherit$"},
		{"what nobody could send again is steered", "request.go", "case s.journal.full(s.word(r.sid, t.va)):", "case false:", "TestJournalFull"},
		{"a record does not depend on all that is in it", "journal.go", "for at := 8; at < noteLen; at += 8 {", "for at := 8; at < noteLen-8; at += 8 {", "TestTornRecord"},
		{"words of a record can change places", "journal.go", "\t\tk += factor &^ 1\n", "", "TestTornRecord"},
		{"a record is one in any place", "journal.go", "k := uint64(2*i + 1)", "k := uint64(1)", "TestTornRecord"},
		{"records of another version are read", "journal.go", " || le.Uint64(j.b[8:]) != journalShape {", " {", "TestDisowned"},
		{"records are taken over whatever their age", "journal.go", "age > keepNotes || age < -keepNotes", "age < -keepNotes", "TestDisowned|TestInheritTwice"},
		{"records of times to come are taken over", "journal.go", "age > keepNotes || age < -keepNotes", "age > keepNotes", "TestDisowned"},
		{"a CAS is sent to whoever has the queue pair", "tick.go", "case r.unmet:\n\t\ts.ask(c, i, rec)\n\t\treturn\n", "", "TestInherit$|TestInheritOther"},
		{"the question may be another's request", "journal.go", "h.SetPSN((rec.psn - lookback) & hdr.PSNMask)", "h.SetPSN(rec.psn)", "TestInherit$"},
		{"the question is not to be acknowledged", "journal.go", "\th.SetAckReq(true)\n", "", "TestInheritWaits"},
		{"the question has a CAS's length", "journal.go", "ip.SetTotalLen(ip.TotalLen() - n)", "_ = n", "TestInherit$"},
		{"any answer is that of the connection on record", "journal.go", "d < -lookback || d > lookback", "d < -lookback && d > lookback", "TestInheritOther"},
		{"what was taken over is not sent when the server says where it is", "journal.go", "\t\ts.resend(c, i, o)\n\t}\n}\n", "\t}\n}\n", "TestInherit$"},
		{"those behind who went on wait for ever", "tick.go", "if s.passed(at/window, rec) {", "if false {", "TestInheritPassed"},
		{"who is not answered went on", "journal.go", " && hdr.PSNDiff(r.acked, o.psn) >= 0", "", "TestInheritWaits"},
		{"who went on is not asked once more", "journal.go", "o.repairs >= 2 && ", "o.repairs >= 1 && ", "TestInheritPassed"},
		{"the order of appends is not kept", "journal.go", "cmp.Compare(a.key, b.key), int(int32(a.n-b.n))", "cmp.Compare(a.key, b.key), int(int32(b.n-a.n))", "TestInherit$"},
		{"requests of a connection are in any order", "journal.go", "int(hdr.PSNDiff(a.psn, b.psn))", "-int(hdr.PSNDiff(a.psn, b.psn))", "TestInheritOrder"},
		{"the same CAS is there twice", "journal.go", "case o.note != 0:", "case false:", "TestDisowned|TestJournalOfAnything"},
		{"what is not taken over stays on record", "journal.go", "\t\t\ts.disowned(why)\n\t\t\tj.drop(heirs[i].note)\n", "\t\t\ts.disowned(why)\n", "TestDisowned"},
		{"a bypass forgets what is on record", "steer.go", "\t\to.note, o.awaited = 0, false // it is found again: see inherit\n", "\t\ts.erase(o)\n", "TestInheritFlush"},
		{"nobody guards where a CAS goes", "journal.go", "\tj.keep(i, s.word(r.sid, rec.newVA), rec.swap, j.guards...)\n", "\tj.keep(i, s.word(r.sid, rec.newVA), rec.swap)\n", "TestGuard$|TestDeaths"},
		{"where the client sent it is guarded", "journal.go", "s.word(r.sid, rec.newVA)", "s.word(r.sid, rec.va)", "TestGuard$"},
		{"the next process guards nothing", "journal.go", "s.word(s.rows[h.row].sid, h.newVA), h.swap, next)", "s.word(s.rows[h.row].sid, h.newVA), h.swap)", "TestGuard$"},
		{"what the process before guarded stays", "journal.go", "\t\tg.Replace(next)\n", "\t\tg.Add(next)\n", "TestGuard$"},
		{"what is answered stays guarded", "row.go", "\ts.unguard(o)\n", "", "TestGuard$"},
		{"an unguarded CAS is sent", "journal.go", " || !j.guards[0].Room(w)", "", "TestGuardFull"},
		{"nobody waits for what was taken over", "journal.go", "if s.awaits == 0 ||", "if true ||", "TestAwaits"},
		{"who waits does so for ever", "journal.go", "c.Now() > s.awaitTill ||", "", "TestAwaits"},
		{"the client's version is not kept", "journal.go", "uint64(rec.cliVer)<<32", "uint64(rec.newVer)<<32", "TestInheritAdjust"},
		// What is learnt, and forgotten.
		{"servers are met that never answered", "request.go", "\tn, slack :=", "\ts.meet(s.ends.Dst)\n\tn, slack :=", "TestMadeUpServers"},
		{"servers are for ever", "known.go", "s.servers[oldest].leaving = true", "_ = oldest", "TestManyServers"},
		{"regions are for ever", "known.go", "pressed && s.disused(g.seen) || ", "pressed && false || ", "TestManyRegions"},
		{"regions are learnt from what may be refused", "request.go", "\tw.region = r.region\n", "\tw.region = s.admit(r.sid, w.rkey)\n", "TestRefusedRegions"},
		{"keys are for ever", "known.go", "full && s.cfg.hot == 0 && s.disused(k.seen) || ", "full && false || ", "TestManyKeys"},
		{"keys in use make room", "known.go", "func (s *state) disused(seen uint16) bool { return s.age-seen >= ages }", "func (s *state) disused(seen uint16) bool { return true }", "TestKeysInUse"},
		{"a region inherits another's addresses", "known.go", "g.sid == sid && g.used {", "g.sid == sid {", "TestRegionGivenUp"},
		{"what is given up is free at once", "known.go", "s.gone.keys = append(s.gone.keys, k)", "s.keys.free = append(s.keys.free, k)", "TestGivenUp"},
		{"addresses that name what is given up stay", "known.go", "case !s.live(e):\n\t\t\t*e = entry{}", "case !s.live(e):", "TestGivenUp"},
		{"slab classes are for ever", "handle.go", "if int32(y.seen-s.bases[oldest].seen) < 0 {", "if y.n < s.bases[oldest].n {", "TestManyBases"},
		{"few appends are enough", "handle.go", "return n >= trustedBase && ", "return ", "TestTrust"},
		{"what is said as often is believed", "handle.go", " && n/2 >= other", "", "TestLearning|TestTrust"},
		{"created entries stop learning", "handle.go", "case most > next:\n\t\tr.take(one)", "case most > next && r.nw == 1:\n\t\tr.take(one)", "TestManyRegions|TestLearning"},
		{"keys that are not chosen are steered", "request.go", "if k == noSlot && s.cfg.only.has(s.servers[sid].match, key) {", "if k == noSlot {", "TestNotChosen"},
		{"a new choice leaves keys", "steer.go", "\t\t\ts.forget(c, int32(s.choose))\n", "", "TestForgottenKey"},
		{"hot keys never come in", "hot.go", "if x.uses > 4*y.hits {", "if false {", "TestHot"},
		{"cold keys come in", "hot.go", "if x.uses > 4*y.hits {", "if true {", "TestHot"},
	} {
		all = append(all, mutant.Mutant{Name: m.name, File: m.file, Old: m.old, New: m.new, By: "./" + steer, Run: m.run})
	}
	return all
}

// The proof that the tests can fail: every small change that breaks a promise is
// found.
func TestMutants(t *testing.T) { mutant.Run(t, steer, mutants()) }

// Every one of them can still be made.
func TestMutantTexts(t *testing.T) { mutant.Texts(t, steer, mutants()) }
