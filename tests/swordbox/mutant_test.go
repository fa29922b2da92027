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
		{"the cache survives a NAK", "word.go", "case v.executed || v.flight|v.loose != 0:\n\t\tv.doubt()", "case v.executed || v.flight|v.loose != 0:", frames, "TestForgets"},
		{"the cache survives operations out of order", "request.go", "v.loose++\n\t\tv.doubt()", "v.loose++", frames, "TestForgets"},
		{"the cache survives long WRITEs", "word.go", "v.doubt()\n\t\tu.gen", "u.gen", frames, "TestForgets|TestWide"},
		{"the cache survives strangers", "stranger.go", "wait, _ = n.touch(m.va, m.len, none, 0, until)", "", frames, "TestForgets"},
		{"strangers' WRITEs are executed at once", "stranger.go", "until := s.c.Now().Add(s.cfg.settle)", "until := s.c.Now()", frames, "TestBarrier"},
		{"WRITEs pass atomics", "request.go", "passes := v.atomics > 0 && ", "passes := false && ", frames, "TestNotOvertaken"},
		{"a READ is not overtaken", "response.go", " && v.flight == 0 && le.Uint64(p) != v.value", " && le.Uint64(p) != v.value", frames, "TestNotOvertaken"},
		{"what this process sleeps through is silence", "repair.go", "if away > period {", "if false {", frames, "TestAway"},
		{"another key is the same memory", "request.go", "like := v.rkey == o.rkey && ", "like := ", frames, "TestForgets"},
		{"a part is the whole", "request.go", "like := v.rkey == o.rkey && o.len == 8 && ", "like := v.rkey == o.rkey && ", frames, "TestForgets"},
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
		{"an answer fills a word that changed since", "response.go", "o.is(fProbe) && v.probe == at", "o.is(fProbe)", frames, "TestOvertaken"},
		{"strangers are forgotten when a word is tracked", "word.go", ", barred: n.unknown}", "}", frames, "TestBarrier"},
		{"what was under way is forgotten when a word is tracked", "word.go", "unrest{gen: n.free.now(), ", "unrest{", frames, "TestOpenBefore"},
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
		{"an atomic behind a lost one on its word goes on", "repair.go", "!n.believes(&n.words.w[o.word]) || !o.is(fReplaced|fEmpty)", "!o.is(fReplaced|fEmpty)", frames, "TestInherited"},
		{"what goes on is not sent", "repair.go", "s.startRepair(heir, from)", "_ = from", frames, "TestInherited"},
		{"a connection that takes another's place need not answer", "domain.go", "n.flows[best].heard = 0\n", "", frames, "TestDiesInMessage"},
		{"nobody repeats a READ that is done again", "repair.go", "!o.is(fAgain|fOrphan) && ", "", frames, "TestRereadLost"},
		{"what others do is undone", "request.go", "!ordered && v.writes > 0", "false", frames, "TestWaits"},
		{"what strangers do is undone", "word.go", "wait = wait || v.writes > 0 && v.lane != l", "", frames, "TestWaits"},
		{"what is not understood is undone", "word.go", "return n.writes > 0", "return false", frames, "TestObscure"},
		{"who does not fit waits for ever", "request.go", "n.words.w[w].doubt() // so that", "_ = w // so that", frames, "TestWaits"},
		{"nothing is verified", "request.go", "s.c.Now().Sub(v.checked) >= s.cfg.verify && ", "false && ", frames, "TestVerify"},
		{"what was wrong is believed again", "response.go", "s.c.Now().Add(distrust)", "s.c.Now()", frames, "TestVerify"},
		{"two addresses are two servers", "request.go", "s.cfg.mode == Replace && !s.n.twin.Load()", "s.cfg.mode == Replace", frames, "TestTwins"},
		{"another address is served while atomics are under way", "nodes.go", "busy = busy || m.writes > 0", "_ = busy", frames, "TestTwins"},
		{"a spoofed WRITE changes nothing", "request.go", "s.stranger(x, b, reasonSpoofed) // the server may take it", "s.mark(toClients, x, reasonSpoofed)", frames, "TestForgets"},
		{"requests do not wait for room", "request.go", "fl.tail-fl.head >= fl.span && !n.grow(i) || ", "", frames, "TestWindow"},
		{"RNR is forgotten", "repair.go", "hdr.PSNDiff(psn, o.spsn))), syn, 0)", "hdr.PSNDiff(psn, o.spsn))), hdr.SynNAKSequence, 0)", frames, "TestRNR"},
		{"a quiet connection is trusted", "request.go", "s.c.Now().Sub(x.heard) > s.cfg.alive", "false", frames, "TestProbe"},
		{"answers are not asked for", "request.go", "h.SetAckReq(true)\n\t\t}\n\t\thdr", "}\n\t\thdr", frames, "TestAsksForAnswers"},
		{"answers to nothing are believed", "response.go", "if hdr.PSNDiff(psn, fl.next) > 0 || ", "if false && ", frames, "TestGuards"},
		{"requests ahead of their turn are taken", "request.go", "case d > 0:\n\t\t// A responder", "case d > 1000:\n\t\t// A responder", frames, "TestGapAsked"},
		{"long WRITEs leave words as they were", "word.go", "u.gen, u.barred = max(u.gen, gen), max(u.barred, until)", "u.barred = max(u.barred, until)", frames, "TestWide"},
		{"new requests overtake what must be sent again", "request.go", " || fl.unsent > 0 {", " {", frames, "TestOrderAfterFailure"},
		{"repetitions overtake each other", "repair.go", "n.unsentBefore(i, k) || ", "", frames, "TestOrderAfterFailure"},
		{"memory that nobody reached is reached over another's connection", "request.go", " && s.n.known.good(o, x.domain)", "", frames, "TestStrangeAddress"},
		{"path MTUs differ", "request.go", "(o.len <= min(x.effMTU(), fl.effMTU()) || x.mtu != 0 && x.mtu == fl.mtu) && ", "", frames, "TestOtherMTU"},
		{"old refusals are new", "response.go", "case old: // it was heard before", "case false && old:", frames, "TestOldNAK"},
		{"what is never followed changes nothing", "stranger.go", "(s.disturb(b, f) || n.strangers.n > 0)", "n.strangers.n > 0", frames, "TestForgetsWriteImm"},
		{"regions that take atomics take WRITEs", "request.go", "return s.cfg.writable || ", "return true || ", frames, "TestWritable"},
		{"domains are not told apart", "request.go", "x.domain == fl.domain && x.trusted", "x.trusted", frames, "TestDomains"},
		{"an R_Key belongs to all domains", "reach.go", "x.domain != domain || ", "", frames, "TestDomains"},
		{"a refusal is forgotten", "domain.go", "x.alone = s.c.Now().Add(distrust)", "", frames, "TestDomains"},
		{"what nobody foresaw is distrusted", "response.go", "n.foresaw(x.oldest) && ", "", frames, "TestOwnWay"},
		{"words that many use are never in order", "request.go", "return false // soon it is in order", "_ = 0 // soon it is in order", frames, "TestTogether"},
		{"a word in use is forgotten", "word.go", "w.flight|w.loose != 0 || ", "", frames, "TestEvict"},
		{"what is refused takes a place", "word.go", "n.words.remove(w) // it was refused", "v.doubt()", frames, "TestRefused"},
		{"memory under a new key is never replaced on", "word.go", "v.rkey = o.rkey\n\t\t\tv.doubt()", "v.doubt()", frames, "TestNewKey"},
		{"a full table stays as it is", "word.go", "t.evict(s.c.Now())", "_ = t", frames, "TestFull"},
		{"all memory is vouched for", "request.go", "case v.vouched && s.replaces():", "case s.replaces():", frames, "TestVouched"},
		{"the second WRITE of a sender is not told from the first", "stranger.go", "w.doubly || !w.done", "false", frames, "TestLongStranger"},
		{"a packet far behind belongs to a WRITE", "stranger.go", "w.qpn != qpn || now >= w.until || ", "w.qpn != qpn || ", frames, "TestLongStranger"},
		{"a server has a place before it answers", "nodes.go", "\te, now := &s.asked.at[place64(a)], s.c.Now()\n\tif e.addr != a {", "\t_, _ = s.meet(s.c.Now(), a)\n\te, now := &s.asked.at[place64(a)], s.c.Now()\n\tif e.addr != a {", frames, "TestMadeUpServers"},
		{"a twin is one for good", "nodes.go", "m.twins = twin; m.twin.Swap(twin) != twin && twin", "m.twins = twin; twin && !m.twin.Swap(true)", frames, "TestTwinParts"},
		{"the same MAC under another address is another server", "stranger.go", "!named && (n.mac.Load() == mac || ", "!named && (", frames, "TestObscure"},
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
