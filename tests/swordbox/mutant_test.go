package swordbox

import (
	"testing"

	shared "github.com/quillon/quillon/tests/mutant"
)

// Where a mutant must be found: by the tests of frames, or by histories under
// faults.
const (
	frames    = "./tor/swordbox"
	histories = "./tests/swordbox"
)

// mutant is a small change to the sources that breaks one promise.
type mutant struct {
	name, file string
	old, new   string // old is there once
	by, run    string // package, and tests there
}

func mutants() []mutant {
	return []mutant{
		{"no byte swap in a replaced atomic", "request.go", "le.PutUint64(p, o.out)", "be.PutUint64(p, o.out)", frames, "TestReplaced"},
		{"no byte swap in a replaced atomic, by histories", "request.go", "le.PutUint64(p, o.out)", "be.PutUint64(p, o.out)", histories, "TestSwordbox/replace/calm"},
		{"no byte swap of a written value", "request.go", "o.out = le.Uint64(", "o.out = be.Uint64(", frames, "TestWriteFills"},
		{"answers to the wrong client", "box.go", "h := &fl.down", "h := &s.n.flows[0].down", frames, "TestCoalesced"},
		{"answers to the wrong client, by histories", "box.go", "h := &fl.down", "h := &s.n.flows[0].down", histories, "TestSwordbox/mux/calm"},
		{"the cache survives a NAK", "response.go", "if !done {\n\t\t\tv.valid = false", "if false {\n\t\t\tv.valid = false", frames, "TestForgets"},
		{"the cache survives operations out of order", "request.go", "v.loose++\n\t\t\tn.doubt(w)\n\t\t\to.flags |= fLoose\n\t\t\ts.c", "v.loose++\n\t\t\to.flags |= fLoose\n\t\t\ts.c", frames, "TestForgets"},
		{"the cache survives long WRITEs", "request.go", "v.lane, v.valid = l, false // until its bytes pass", "v.lane = l", frames, "TestForgets|TestWide"},
		{"the cache survives strangers", "request.go", "n.doubt(w)\n\t\t\tv.last, v.barred = none, n.unknown", "", frames, "TestForgets"},
		{"strangers' WRITEs are executed at once", "request.go", "n.unknown = s.c.Now().Add(s.cfg.settle)", "n.unknown = s.c.Now()", frames, "TestBarrier"},
		{"WRITEs pass atomics", "request.go", "passes := v.atomics > 0 && ", "passes := false && ", frames, "TestNotOvertaken"},
		{"long WRITEs pass atomics", "request.go", "v.atomics != 0 || ", "", frames, "TestNotOvertaken"},
		{"a READ is not overtaken", "response.go", " && v.flight == 0 && le.Uint64(p) != v.value", " && le.Uint64(p) != v.value", frames, "TestNotOvertaken"},
		{"what this process sleeps through is silence", "repair.go", "if away > period {", "if false {", frames, "TestAway"},
		{"another key is the same memory", "request.go", "ordered := v.rkey == o.rkey && ", "ordered := ", frames, "TestForgets"},
		{"a part is the whole", "request.go", "ordered := v.rkey == o.rkey && o.len == 8 && ", "ordered := v.rkey == o.rkey && ", frames, "TestForgets"},
		{"a repetition is a new atomic", "repair.go", "s.answer(i, hdr.AtomicAck, o.cpsn, fl.syn, o.prior)\n\t\ts.c.Drop(x, reasonAnswered)", "s.reenter(i, at, x, b, off)", frames, "TestRepetition"},
		{"a repetition is a new atomic, by histories", "repair.go", "s.answer(i, hdr.AtomicAck, o.cpsn, fl.syn, o.prior)\n\t\ts.c.Drop(x, reasonAnswered)", "s.reenter(i, at, x, b, off)", histories, "TestSwordbox/replace/frames"},
		{"another request is a repetition", "repair.go", "!s.same(o, b, off, fl.mtu)", "false", frames, "TestRepetition|TestGuards"},
		{"a repetition under another PSN", "repair.go", "psn := psnAdd(o.spsn, off)", "psn := c.next", frames, "TestGoBackN"},
		{"requests keep their PSN", "request.go", "h.SetPSN(psn)\n\t\tif ack", "if ack", frames, "TestMoved"},
		{"requests keep their addresses", "request.go", "l.up.address(b)\n", "", frames, "TestMoved"},
		{"moved requests keep their IP checksum", "flow.go", "hdr.IPv4(b[h.l3 : h.l3+hdr.IPv4Len]).SetEnds(h.b[h.l3+12:])", "copy(b[h.l3+12:h.l3+20], h.b[h.l3+12:])", frames, "TestMoved"},
		{"moved requests keep their ICRC", "request.go", "hdr.SetICRC(b, f)\n", "", frames, "TestMoved"},
		{"made frames without an ICRC", "flow.go", "hdr.SetICRC(b, &f)\n", "_ = f\n", frames, "TestReplaced"},
		{"the P_Key is kept", "flow.go", "*(*[2]byte)(to[2:]) = [2]byte(from[2:])\n", "", frames, "TestMoved"},
		{"the UDP port is kept", "flow.go", "*(*[2]byte)(b[h.l4:]) = [2]byte(h.b[h.l4:])\n", "", frames, "TestMoved"},
		{"answers keep their PSN", "response.go", "h.SetPSN(psn)\n\tif ext", "if ext", frames, "TestReadMany"},
		{"answers keep their MSN", "response.go", "f.AETHOf(b).SetMSN(msn)\n", "_ = msn\n", frames, "TestReadMany"},
		{"messages are counted from the wrong one", "response.go", "fl.msn = f.AETHOf(b).MSN() - k", "fl.msn = f.AETHOf(b).MSN()", frames, "TestMoved"},
		{"a WRITE of nothing for a CAS that succeeds", "request.go", "case now == v.value:", "case now == v.value || o.kind == kCAS:", frames, "TestReplaced"},
		{"a WRITE of nothing for a CAS that succeeds, by histories", "request.go", "case now == v.value:", "case now == v.value || o.kind == kCAS:", histories, "TestSwordbox/replace/calm"},
		{"the answer is the value after", "request.go", "o.prior, o.out, o.flags = v.value, now,", "o.prior, o.out, o.flags = now, now,", frames, "TestReplaced"},
		{"masks change places", "request.go", "m.CompareMask(), m.SwapMask()", "m.SwapMask(), m.CompareMask()", frames, "TestReplaced"},
		{"the mask of the comparison is ignored", "word.go", "(v^compare)&compareMask == 0", "v == compare", frames, "TestReplaced"},
		{"an answer fills a word that changed since", "response.go", "done && v.last == at && ", "done && ", frames, "TestOvertaken"},
		{"strangers are forgotten when a word is tracked", "request.go", "v.barred = n.unknown\n", "", frames, "TestBarrier"},
		{"what was under way is forgotten when a word is tracked", "request.go", "v.loose++\n\t\t\t\tif !o.is(fWide) {\n\t\t\t\t\to.word = w\n\t\t\t\t}\n\t\t\t\tif o.is(fReplaced) {\n\t\t\t\t\tv.writes++\n\t\t\t\t}\n\t\t\t\to.flags |= fLoose", "", frames, "TestOpenBefore"},
		{"a client's order is ignored", "request.go", "if fl.open > 0 && (s.cfg.strict || ", "if fl.open > 0 && (", frames, "TestStrict"},
		{"messages are sent in parts", "request.go", "if l != i && !whole && uint32(fl.stall.n) < o.npsn {", "if false {", frames, "TestGather"},
		{"a READ takes one PSN", "request.go", "x.next = psnAdd(x.next, o.npsn-o.got)", "x.next = psnAdd(x.next, 1)", frames, "TestReadMany"},
		{"a first packet acknowledges its message", "response.go", "psnLess(x.acked, psnAdd(o.spsn, o.npsn-1))", "psnLess(x.acked, o.spsn)", frames, "TestGather"},
		{"an atomic is done without its answer", "response.go", "if o.is(fSlot) {\n\t\t\t// The server", "if false {\n\t\t\t// The server", frames, "TestLostAnswers"},
		{"answers overtake each other", "response.go", "front == o && !o.holds()", "front != nil && !o.holds()", frames, "TestHeldAnswers"},
		{"the responder's resources are ignored", "request.go", "x.rd >= s.depth(l)", "false", frames, "TestDepth"},
		{"the refusal of one is the end of all", "repair.go", "if doubt {\n\t\t\ts.lose", "if true {\n\t\t\ts.lose", frames, "TestFatal"},
		{"what may have been executed is done again", "repair.go", "if doubt {\n\t\t\ts.lose", "if false {\n\t\t\ts.lose", frames, "TestServerGone"},
		{"what is behind a lost operation goes on", "repair.go", "!n.flows[n.flowOf(at)].failed", "true", frames, "TestInherited"},
		{"an atomic behind a lost one on its word goes on", "repair.go", "!n.words.w[o.word].valid || !o.is(fReplaced|fEmpty)", "!o.is(fReplaced|fEmpty)", frames, "TestInherited"},
		{"what goes on is not sent", "repair.go", "s.startRepair(heir, from)", "_ = from", frames, "TestInherited"},
		{"a connection that takes another's place need not answer", "domain.go", "n.flows[best].heard = 0\n", "", frames, "TestDiesInMessage"},
		{"nobody repeats a READ that is done again", "repair.go", "!o.is(fAgain|fOrphan) && ", "", frames, "TestRereadLost"},
		{"what others do is undone", "request.go", "!ordered && v.writes > 0", "false", frames, "TestWaits"},
		{"what strangers do is undone", "request.go", "return writes != 0", "return false", frames, "TestWaits"},
		{"what long WRITEs do is undone", "request.go", "how == fLoose && writes > 0", "false", frames, "TestWaits"},
		{"who does not fit waits for ever", "request.go", "n.words.w[w].valid = false // so that", "_ = w // so that", frames, "TestWaits"},
		{"nothing is verified", "request.go", "s.c.Now().Sub(v.checked) >= s.cfg.verify && ", "false && ", frames, "TestVerify"},
		{"what was wrong is believed again", "response.go", "s.c.Now().Add(distrust)", "s.c.Now()", frames, "TestVerify"},
		{"two addresses are two servers", "request.go", "s.cfg.mode == Replace && !s.n.twin.Load()", "s.cfg.mode == Replace", frames, "TestTwins"},
		{"another address is served while atomics are under way", "box.go", "busy = busy || m.writes > 0", "_ = busy", frames, "TestTwins"},
		{"a spoofed WRITE changes nothing", "request.go", "s.stranger(x, b, reasonSpoofed) // the server may take it", "s.mark(toClients, x, reasonSpoofed)", frames, "TestForgets"},
		{"requests do not wait for room", "request.go", "fl.tail-fl.head >= fl.span && !n.grow(i) || ", "", frames, "TestWindow"},
		{"RNR is forgotten", "repair.go", "hdr.PSNDiff(psn, o.spsn))), syn, 0)", "hdr.PSNDiff(psn, o.spsn))), hdr.SynNAKSequence, 0)", frames, "TestRNR"},
		{"a quiet connection is trusted", "request.go", "s.c.Now().Sub(x.heard) > s.cfg.alive", "false", frames, "TestProbe"},
		{"answers are not asked for", "request.go", "h.SetAckReq(true)\n\t\t}\n\t\thdr", "}\n\t\thdr", frames, "TestAsksForAnswers"},
		{"answers to nothing are believed", "response.go", "if hdr.PSNDiff(psn, fl.next) > 0 || ", "if false && ", frames, "TestGuards"},
		{"requests ahead of their turn are taken", "request.go", "case d > 0:\n\t\t// A responder", "case d > 1000:\n\t\t// A responder", frames, "TestGapAsked"},
		{"long WRITEs leave words as they were", "request.go", "v.value, v.valid = le.Uint64(p[v.va-va:]), true", "v.valid = true", frames, "TestWide"},
		{"a word is known when a part of it was written", "request.go", "v.va < va || v.va+8 > end || ", "", frames, "TestWide"},
		{"new requests overtake what must be sent again", "request.go", " || fl.unsent > 0 {", " {", frames, "TestOrderAfterFailure"},
		{"repetitions overtake each other", "repair.go", "n.unsentBefore(i, k) || ", "", frames, "TestOrderAfterFailure"},
		{"memory that nobody reached is reached over another's connection", "request.go", " && s.n.known.good(o, x.domain)", "", frames, "TestStrangeAddress"},
		{"path MTUs differ", "request.go", "(o.len <= min(x.effMTU(), fl.effMTU()) || x.mtu != 0 && x.mtu == fl.mtu) && ", "", frames, "TestOtherMTU"},
		{"old refusals are new", "response.go", "case old: // it was heard before", "case false && old:", frames, "TestOldNAK"},
		{"what is never followed changes nothing", "box.go", "s.stranger(x, b, reasonStranger)", "s.pass(in, x)", frames, "TestForgetsWriteImm"},
		{"regions that take atomics take WRITEs", "request.go", "return s.cfg.writable || ", "return true || ", frames, "TestWritable"},
		{"domains are not told apart", "request.go", "x.domain == fl.domain && x.trusted", "x.trusted", frames, "TestDomains"},
		{"an R_Key belongs to all domains", "reach.go", "x.domain != domain || ", "", frames, "TestDomains"},
		{"a refusal is forgotten", "domain.go", "x.alone = s.c.Now().Add(distrust)", "", frames, "TestDomains"},
		{"a long WRITE is behind what came between", "request.go", "|| v.loose > 0 ||", "||", frames, "TestWideRace"},
		{"what nobody foresaw is distrusted", "request.go", "o.flags &^= fForetold", "", frames, "TestOwnWay"},
		{"words that many use are never in order", "request.go", "return false // soon it is in order", "_ = 0 // soon it is in order", frames, "TestTogether"},
		{"the window has no end", "request.go", "fl.tail-fl.head >= fl.span && !n.grow(i) || ", "", frames, "TestFull"},
	}
}

// The proof that the tests can fail: every small change that breaks a promise is
// found.
func TestMutants(t *testing.T) {
	var all []shared.Mutant
	for _, m := range mutants() {
		all = append(all, shared.Mutant{Name: m.name, File: m.file, Old: m.old, New: m.new, By: m.by, Run: m.run})
	}
	shared.Run(t, "tor/swordbox", all)
}
