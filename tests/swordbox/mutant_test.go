package swordbox

import (
	"slices"
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
		{"no byte swap in a replaced atomic", "header.go", "le.PutUint64(p, o.out)", "be.PutUint64(p, o.out)", frames, "TestReplaced"},
		{"no byte swap in a replaced atomic, by histories", "header.go", "le.PutUint64(p, o.out)", "be.PutUint64(p, o.out)", histories, "TestSwordbox/replace/calm"},
		{"no byte swap of a written value", "admit.go", "o.out = le.Uint64(", "o.out = be.Uint64(", frames, "TestWriteFills"},
		{"answers to the wrong client", "wire.go", "h := &fl.down", "h := &s.n.flows[0].down", frames, "TestCoalesced"},
		{"answers to the wrong client, by histories", "wire.go", "h := &fl.down", "h := &s.n.flows[0].down", histories, "TestSwordbox/mux/calm"},
		{"the cache survives a NAK", "word.go", "case v.executed || v.flight|v.loose != 0 || v.queued:\n\t\tv.doubt()", "case v.executed || v.flight|v.loose != 0 || v.queued:", frames, "TestForgets"},
		{"the cache survives operations out of order", "word.go", "t.u[w].loosened = now\n\t}\n\tv.doubt()", "t.u[w].loosened = now\n\t}", frames, "TestForgets"},
		{"the cache survives long WRITEs", "word.go", "v.doubt()\n\t\tu.gen", "u.gen", frames, "TestForgets|TestWide"},
		{"the cache survives strangers", "stranger.go", "wait, _ = n.words.touch(m.va, m.len, none, 0, until)", "", frames, "TestForgets"},
		{"strangers' WRITEs are executed at once", "stranger.go", "until := n.c.Now().Add(n.cfg.settle)", "until := n.c.Now()", frames, "TestBarrier"},
		{"WRITEs pass atomics", "order.go", "passes := v.atomics > 0 && ", "passes := false && ", frames, "TestNotOvertaken"},
		{"a READ is not overtaken", "order.go", " && v.flight == 0 && le.Uint64(p) != v.value", " && le.Uint64(p) != v.value", frames, "TestNotOvertaken"},
		{"another key is the same memory", "order.go", "like := v.rkey == o.rkey && ", "like := ", frames, "TestForgets"},
		{"a part is the whole", "order.go", "like := v.rkey == o.rkey && o.len == 8 && ", "like := v.rkey == o.rkey && ", frames, "TestForgets"},
		{"a repetition is a new atomic", "repair.go", "s.answerAgain(fl, k)\n\t\t}\n\t\ts.c.Drop(x, reasonAnswered)", "s.reenter(fl, o, x, b, &s.f, off)\n\t\t\treturn\n\t\t}\n\t\ts.c.Drop(x, reasonAnswered)", frames, "TestRepetition"},
		{"another request is a repetition", "repair.go", "!o.same(&s.f, b, off, fl.mtu)", "false", frames, "TestRepetition|TestGuards"},
		{"a repetition under another PSN", "repair.go", "psn := psnAdd(o.spsn, off)", "psn := c.next", frames, "TestGoBackN"},
		{"requests keep their PSN", "admit.go", "h.SetPSN(psn)\n\t\tif ack", "if ack", frames, "TestMoved"},
		{"requests keep their addresses", "admit.go", "c.up.address(b)\n", "", frames, "TestMoved"},
		{"moved requests keep their IP checksum", "header.go", "hdr.IPv4(to[:hdr.IPv4Len]).SetEnds(from[12:])", "copy(to[12:20], from[12:])", frames, "TestMoved"},
		{"moved requests keep their ICRC", "admit.go", "s.seal(toServers, x, b, f)\n\t\treturn", "s.emit(toServers, x)\n\t\treturn", frames, "TestMoved"},
		{"made frames without an ICRC", "post.go", "hdr.SetICRC(b, f)\n", "_ = b\n", frames, "TestReplaced"},
		{"frames that leave behind the turn have no ICRC", "post.go", "hdr.SetICRC(p.x.Bytes(), &p.f)\n", "_ = p.f\n", frames, "TestOneServerOfWorkers"},
		{"frames that leave behind the turn change their side", "post.go", "out := p.out & 1\n", "out := 1 - p.out&1\n", frames, "TestOneServerOfWorkers"},
		{"what there is no room for behind the turn is lost", "post.go", "s.dispatch() // the turn", "s.post.n = 0 // the turn", frames, "TestPost"},
		{"the P_Key is kept", "header.go", "*(*[2]byte)(to[2:]) = [2]byte(from[2:])\n", "", frames, "TestMoved"},
		{"the UDP port is kept", "header.go", "*(*[2]byte)(to[:]) = [2]byte(from[:])\n", "", frames, "TestMoved"},
		{"answers keep their PSN", "deliver.go", "h.SetPSN(psn)\n\tif ext", "if ext", frames, "TestReadMany"},
		{"answers keep their MSN", "deliver.go", "f.AETHOf(b).SetMSN(msn)\n", "_ = msn\n", frames, "TestReadMany"},
		{"messages are counted from the wrong one", "response.go", "fl.base = f.AETHOf(b).MSN() - k", "fl.base = f.AETHOf(b).MSN()", frames, "TestMoved"},
		{"the answer is the value after", "order.go", "o.prior, o.out, o.flags = v.value, now,", "o.prior, o.out, o.flags = now, now,", frames, "TestReplaced"},
		{"masks change places", "order.go", "\t\tcompareMask, swapMask = m.compareMask, m.swapMask", "\t\tcompareMask, swapMask = m.swapMask, m.compareMask", frames, "TestReplaced"},
		{"the mask of the comparison is ignored", "word.go", "(v^compare)&compareMask == 0", "v == compare", frames, "TestReplaced"},
		{"an answer fills a word that changed since", "word.go", "o.is(fProbe) && v.probe == at", "o.is(fProbe)", frames, "TestOvertaken"},
		{"what was never answered is under way for ever", "watch.go", "n.lapse(c)", "_ = c", frames, "TestNeverAnswered"},
		{"what was refused before a connection was followed is of another one", "response.go", "s.unfollow(c) // its queue", "_ = c // its queue", frames, "TestRefusedBefore"},
		{"a server that pauses has answered others", "watch.go", "s.unanswered(c, c.stirred())", "s.c.Now().Sub(c.stirred()) > clock.Duration(s.cfg.giveup)", frames, "TestNobodyAnswered"},
		{"what comes again so late is executed at once", "lapse.go", "wait, _ = n.words.touch(o.va, o.len, none, 0, until)", "", frames, "TestAnsweredLate"},
		{"what comes again so late is undone", "repair.go", "o.modifies() && n.roams(o) {", "o.modifies() && n.roams(o) && false {", frames, "TestAnsweredLate"},
		{"others go behind what has lapsed", "lapse.go", "c.unkept++\n", "c.unkept += 0\n", frames, "TestNobodyBehindLapsed"},
		{"a client that went away keeps its place", "box.go", "f.oldest != none && !n.hasLapsed(f)", "f.oldest != none", frames, "TestLapsedGone"},
		{"a client on record that went away keeps its place", "watch.go", " && !(f.quiet && n.hasLapsed(f))", "", frames, "TestLapsedGone"},
		{"a quiet connection is asked on and on", "watch.go", "now.Sub(f.heard) < s.cfg.idle", "now.Sub(f.heard) < 0", frames, "TestAskedOnce"},
		{"a server has one place until it answers", "nodes.go", "const askedWays = 4", "const askedWays = 1", frames, "TestFoundAtOnce"},
		{"all that waits of a client goes at once", "wait.go", "if went == most {", "if false {", frames, "TestLongQueue"},
		{"all that nobody follows goes at once", "stranger.go", "k < mostResumed && !q.Empty()", "!q.Empty()", frames, "TestManyStrangers"},
		{"strangers are forgotten when a word is tracked", "word.go", ", barred: t.unknown}", "}", frames, "TestBarrier"},
		{"what was under way is forgotten when a word is tracked", "word.go", "unrest{gen: t.free.now(), ", "unrest{", frames, "TestOpenBefore"},
		{"a client's order is ignored", "order.go", "if fl.open > 0 && (s.cfg.strict || ", "if fl.open > 0 && (", frames, "TestStrict"},
		{"messages are sent in parts", "admit.go", "if !ok || c == fl || m.whole || uint32(fl.stall.Len()) >= o.npsn {", "if true {", frames, "TestGather"},
		{"a READ takes one PSN", "order.go", "c.next = psnAdd(c.next, o.npsn-o.got)", "c.next = psnAdd(c.next, 1)", frames, "TestReadMany"},
		{"a first packet acknowledges its message", "response.go", "psnLess(c.acked, psnAdd(o.spsn, o.npsn-1))", "psnLess(c.acked, o.spsn)", frames, "TestGather"},
		{"an atomic is done without its answer", "response.go", "if o.answered() {\n\t\t\t// The server", "if false {\n\t\t\t// The server", frames, "TestLostAnswers"},
		{"answers overtake each other", "response.go", "n.op(fl, fl.head) == o && !o.holds()", "!o.holds()", frames, "TestHeldAnswers"},
		{"the responder's resources are ignored", "order.go", "c.rd >= n.depth(c) && (o", "false && (o", frames, "TestDepth"},
		{"the refusal of one is the end of all", "failure.go", "if doubt {\n\t\t\tn.lose", "if true {\n\t\t\tn.lose", frames, "TestFatal"},
		{"what may have been executed is done again", "failure.go", "if doubt {\n\t\t\tn.lose", "if false {\n\t\t\tn.lose", frames, "TestServerGone"},
		{"what is behind a lost operation goes on", "failure.go", "!n.flowOf(o).failed", "true", frames, "TestInherited"},
		{"an atomic behind a lost one on its word goes on", "failure.go", "!n.words.believes(&n.words.w[o.word]) || !o.is(fReplaced)", "!o.is(fReplaced)", frames, "TestInherited"},
		{"what goes on is not sent", "failure.go", "s.again(heir, from, heir.next)", "_ = from", frames, "TestInherited"},
		{"nobody repeats a READ that is done again", "carrier.go", "return c.guests == 0 && !o.is(fAgain|fOrphan)", "_ = o\n\treturn c.guests == 0", frames, "TestRereadLost"},
		{"what others do is undone", "order.go", "!ordered && v.writes > 0", "false", frames, "TestWaits"},
		{"what strangers do is undone", "word.go", "wait = wait || v.writes > 0 && v.lane != lane", "", frames, "TestWaits"},
		{"what is not understood is undone", "word.go", "return t.writes > 0", "return false", frames, "TestObscure"},
		{"nothing is verified", "order.go", "n.c.Now().Sub(v.checked) >= n.cfg.verify && ", "false && ", frames, "TestVerify"},
		{"what was wrong is believed again", "order.go", "mistrust(o, n.c.Now().Add(distrust))", "mistrust(o, n.c.Now())", frames, "TestVerify"},
		{"two addresses are two servers", "order.go", "n.cfg.mode == Replace && !n.twin.Load()", "n.cfg.mode == Replace", frames, "TestTwins"},
		{"another address is served while atomics are under way", "nodes.go", "busy = busy || m.words.writes > 0", "_ = busy", frames, "TestTwins"},
		{"a spoofed WRITE changes nothing", "request.go", "s.stranger(x, b, reasonSpoofed) // the server may take it", "s.mark(toClients, x, reasonSpoofed)", frames, "TestForgets"},
		{"requests do not wait for room", "admit.go", "fl.tail-fl.head >= fl.span && !n.grow(fl) || ", "", frames, "TestWindow"},
		{"RNR is forgotten", "repair.go", "n.prompt(o, uint32(d), syn)", "n.prompt(o, uint32(d), hdr.SynNAKSequence)", frames, "TestRNR"},
		{"a quiet connection is trusted", "order.go", "if s.c.Now().Sub(c.heard) > s.cfg.alive {", "if false {", frames, "TestProbe"},
		{"answers are not asked for", "admit.go", "h.SetAckReq(true)\n\t\t}\n\t\ts.seal", "}\n\t\ts.seal", frames, "TestAsksForAnswers"},
		{"answers to nothing are believed", "response.go", "if d > 0 || ", "if false && ", frames, "TestGuards"},
		{"requests ahead of their turn are taken", "request.go", "case d > 0:\n\t\t// A responder", "case d > 1000:\n\t\t// A responder", frames, "TestGapAsked"},
		{"long WRITEs leave words as they were", "word.go", "u.gen, u.barred = max(u.gen, gen), max(u.barred, until)", "u.barred = max(u.barred, until)", frames, "TestWide"},
		{"new requests overtake what must be sent again", "admit.go", " || fl.unsent > 0 {", " {", frames, "TestOrderAfterFailure"},
		{"repetitions overtake each other", "repair.go", "case o.state == sUnsent && n.unsentBefore(fl, k):", "case false:", frames, "TestOrderAfterFailure"},
		{"path MTUs differ", "order.go", " &&\n\t\t(o.len <= min(c.effMTU(), fl.effMTU()) || c.mtu != 0 && c.mtu == fl.mtu && o.npsn <= n.longest())", "", frames, "TestOtherMTU"},
		{"old refusals are new", "response.go", "case old: // it was heard before", "case false && old:", frames, "TestOldNAK"},
		{"what is never followed changes nothing", "stranger.go", "(n.disturb(b, f) || !n.strangers.Empty())", "!n.strangers.Empty()", frames, "TestForgetsWriteImm"},
		{"regions that take atomics take WRITEs", "order.go", "if n.cfg.writable {\n\t\treturn true", "if true {\n\t\treturn true", frames, "TestWritable"},
		{"what nobody foresaw is distrusted", "response.go", "o.is(fForetold) && n.foresaw(o) && ", "o.is(fForetold) && ", frames, "TestOwnWay"},
		{"words that many use are never in order", "order.go", "return false // soon it is in order", "_ = 0 // soon it is in order", frames, "TestTogether"},
		{"a word in use is forgotten", "word.go", "w.flight|w.loose != 0 || ", "", frames, "TestEvict"},
		{"what is refused takes a place", "word.go", "t.remove(w) // it was refused", "v.doubt()", frames, "TestRefused"},
		{"memory under a new key is never replaced on", "word.go", "v.rkey = o.rkey\n\t\t\tv.doubt()", "v.doubt()", frames, "TestNewKey"},
		{"a full table stays as it is", "word.go", "t.evict(now)", "_ = t", frames, "TestFull"},
		{"all memory is vouched for", "order.go", "case v.vouched && n.replaces():", "case n.replaces():", frames, "TestVouched"},
		{"the second WRITE of a sender is not told from the first", "stranger.go", "w.doubly || !w.done", "false", frames, "TestLongStranger"},
		{"a packet far behind belongs to a WRITE", "stranger.go", "w.qpn != qpn || now >= w.until || ", "w.qpn != qpn || ", frames, "TestLongStranger"},
		{"a server has a place before it answers", "nodes.go", "\te := s.asked.find(a, func(e *askedPlace) bool { return e.addr == a })\n", "\t_, _ = s.meet(s.c.Now(), a)\n\te := s.asked.find(a, func(e *askedPlace) bool { return e.addr == a })\n", frames, "TestMadeUpServers"},
		{"a twin is one for good", "nodes.go", "m.twins = twin; m.twin.Swap(twin) != twin && twin", "m.twins = twin; twin && !m.twin.Swap(true)", frames, "TestTwinParts"},
		{"the same MAC under another address is another server", "stranger.go", "!named && (n.mac.Load() == mac || ", "!named && (", frames, "TestObscure"},
		{"the window has no end", "admit.go", "fl.tail-fl.head >= fl.span && !n.grow(fl) || ", "", frames, "TestFull"},
		{"a queue pair that may not write carries WRITEs", "order.go", "c.may>>accessOf(o)&1 != 0 && c.granted(x) && c.trusted && c.shape", "c.granted(x) && c.trusted && c.shape", frames, "TestRights"},
		{"a client that may not write does it over another's connection", "key.go", "fl.misshapen || fl.may>>a&1 == 0 || ", "fl.misshapen || ", frames, "TestRights"},
		{"a connection carries what is under an R_Key that is not its own", "order.go", " && c.granted(x) && c.trusted && c.shape", " && c.trusted && c.shape", frames, "TestKeys|TestRevoked"},
		{"who knows an R_Key has the right to it", "key.go", "x.until == 0 && fl.granted(x) && x.allows(o, a)", "x.until == 0 && x.allows(o, a)", frames, "TestKeys|TestRights"},
		{"a connection taken over has frames of no shape", "recover.go", "\tg.shape = g.up.shape\n", "", frames, "TestShape"},
		{"a READ is about what has its word's place", "word.go", " && t.w[w].va == o.va {", " {", frames, "TestAgain"},
		{"an R_Key reaches all memory", "key.go", "fl.granted(x) && x.allows(o, a)", "fl.granted(x)", frames, "TestKeys"},
		{"what was reached to read was reached to write", "key.go", "a, end := accessOf(o), o.va+uint64(o.len)", "a, end := aRead, o.va+uint64(o.len)", frames, "TestRights"},
		{"rights outlive their key", "key.go", "if t.serial++; t.serial == 0 {", "if t.serial == 0 {", frames, "TestRevoked"},
		{"a refusal is forgotten", "key.go", "if o.is(fGuest) {\n\t\tx.until = until", "if o.is(fGuest) {\n\t\tx.until = 0", frames, "TestRevoked"},
		{"a refusal to one whom others saw served says nothing", "key.go", "!o.is(fGuest) && !x.allows(o, accessOf(o))", "!o.is(fGuest)", frames, "TestRevoked"},
		{"a wrong address of one stops the others", "key.go", "x == nil || !o.is(fGuest) && !x.allows(o, accessOf(o))", "x == nil", frames, "TestRevoked"},
		{"a SEND invalidates what others' operations are under", "key.go", "if x.guests > 0 {", "if false {", frames, "TestRevoked"},
		{"the end of a message invalidates what others' operations are under", "admit.go", "f.Op.Info().Ext&hdr.HasIETH != 0 && !n.keys.invalidate(f.IETHOf(b).RKey(), s.c.Now().Add(s.cfg.settle)) {\n\t\treturn false\n\t}\n\tif o.is(fKept)", "false {\n\t\treturn false\n\t}\n\tif o.is(fKept)", frames, "TestRevoked"},
		{"what was sent before a key was invalidated gives rights to it", "key.go", "if x.until > now {", "if false {", frames, "TestRevoked"},
		{"a key that was invalidated is good", "key.go", "t.revoke(x)\n\tx.until = until", "", frames, "TestRevoked"},
		{"a key makes room while operations are under it", "key.go", "y.guests == 0 && ", "", frames, "TestKeys"},
		{"the key that was used last makes room", "key.go", "y.used < x.used", "y.used > x.used", frames, "TestKeys"},
		{"a key that made room is lent", "key.go", "l.lends--\n", "", frames, "TestKeys"},
		{"an atomic that is not aligned is another's burden", "key.go", " || o.kind.atomic() && o.va&7 != 0", "", frames, "TestStrangeAddress"},
		{"behind a SEND there are others'", "order.go", "n.keys.recall(c)\n", "", frames, "TestOwnFirst"},
		{"after a SEND there are others' at once", "key.go", "f.private != 0 && now.Sub(f.private) < privacy || ", "", frames, "TestOwnFirst"},
		{"others' operations are behind what is not kept", "order.go", "c.claimed || c.unkept > 0 || ", "c.claimed || ", frames, "TestOwnFirst"},
		{"a connection's own client waits for ever", "order.go", "c.claimed || c.unkept > 0 || ", "c.unkept > 0 || ", frames, "TestOwnFirst"},
		{"a SEND goes behind others'", "order.go", "if o.is(fOwn) || o.kind == kSend || ", "if o.is(fOwn) || ", frames, "TestOwnFirst"},
		{"what others are behind is not kept", "admit.go", "fl.isLent && m.whole && o.kind == kWrite && n.roomy()", "false", frames, "TestOwnFirst"},
		{"a WRITE with immediate takes another's receive buffer", "admit.go", "o.flags |= fOwn // it takes", "_ = 0 // it takes", frames, "TestOwnFirst"},
		{"the packets of a message are kept but for the first", "admit.go", "if o.is(fKept) {\n\t\ty := n.copyOf(x)", "if false {\n\t\ty := n.copyOf(x)", frames, "TestKept"},
		{"another packet is sent again", "repair.go", "for ; off > 0; off-- {", "for ; off > 1; off-- {", frames, "TestKept"},
		{"what is kept is kept for ever", "order.go", "if o.is(fKept) {\n\t\tn.unkeep(o)", "if false {\n\t\tn.unkeep(o)", frames, "TestKept"},
		{"a server that pauses is gone", "watch.go", "if heard.Sub(since) >= giveup/2 && now.Sub(since) >= giveup {", "if heard >= 0 && now.Sub(since) >= giveup {", frames, "TestServerGone|TestGone"},
		{"whoever was served is the first again", "wait.go", "was := w.in; went > 0 || was", "was := w.in; was", frames, "TestTurns"},
		{"whoever comes later goes before those that wait", "order.go", "if !n.isNext(fl, w) && ", "if false && ", frames, "TestWaitsElsewhere"},
		{"the answer that tells a word is overtaken", "order.go", "n.words.awaits(v) && v.vouched && n.replaces() && n.patient(", "false && n.patient(", histories, "TestKnown"},
		{"who waits may take all room", "admit.go", "n.waits.w[n.index(f)].kept)) < n.shelf.Cap()-n.shelf.Len() &&", "n.waits.w[n.index(f)].kept)) < 2*n.shelf.Cap() &&", histories, "TestHog"},
		{"a client's connections may take all room", "admit.go", "return int(n.waits.hosts[n.host(f)]) < 2*(n.shelf.Cap()-n.shelf.Len())", "return true", frames, "TestHoldPerClient"},
		{"a client's repetitions may take all room", "repair.go", "!n.clientMayHold(fl) || n.shelf.Put(", "n.shelf.Put(", frames, "TestHoldPerClient"},
		{"what a client had held counts for ever", "wait.go", "n.uncount(f)\n\tn.tally(f)\n", "n.uncount(f)\n", frames, "TestHoldPerClient"},
		{"what is held of operations counts for nothing", "admit.go", "n.waits.w[n.index(fl)].kept++\n", "", frames, "TestHeldShare"},
		{"what is held of operations counts for ever", "admit.go", "kept -= int32(all - n.shelf.Len())", "kept -= int32(all - all)", frames, "TestHeldShare"},
		{"answers that were given count for ever", "deliver.go", "n.waits.w[n.index(fl)].kept--\n", "", frames, "TestHeldShare"},
		{"all that wait are tried at once", "wait.go", "mostResumed = 64", "mostResumed = 1 << 20", frames, "TestCrowd"},
		{"who is behind the first of a queue is not woken", "wait.go", "t.all = t.all[:len(t.all)-1]\n\tn.wake(t.w[i].in)", "t.all = t.all[:len(t.all)-1]", frames, "TestCrowd"},
		{"nobody is woken when an operation on their word is done", "order.go", "n.wake(queue{forWord, o.word})", "_ = o.word", frames, "TestCrowd"},
		{"what waits to write to many words does not count", "order.go", "\tif wait {\n\t\tn.count(fl)\n\t}\n", "", frames, "TestWideBehindWrites"},
		{"others go before a connection's own first READ", "order.go", "c.claimed = c.claimed || c == fl && c.rd == 0", "_ = fl", frames, "TestOwnersFirstRead"},
		{"a connection that may do less stays", "key.go", "if l.may < f.may && ", "if false && ", frames, "TestLanesOfMost"},
		{"a repetition that must wait is lost", "repair.go", "n.shelf.Put(&fl.late, x, n.worker, struct{}{}) == 0", "true", frames, "TestLateComes"},
		{"a connection is asked with what the server does not know", "watch.go", "s.emptyWrite(c, c.acked)", "s.emptyWrite(c, c.next)", frames, "TestProbe"},
		{"a server that knows nothing of a connection keeps it", "response.go", " || fl.denied(&s.f, b, psn, s.cfg.alive) {", " {", frames, "TestDenied"},
		{"a server that means another connection keeps it", "carrier.go", "return psn != c.acked && !c.affirmed(h, b, psn)", "return false", frames, "TestDenied"},
		{"a repetition is answered for a server that may be gone", "repair.go", "case released && n.doubtful(fl):", "case false:", frames, "TestDoubted"},
		{"a connection on record goes for what anybody made up", "request.go", "!fl.bound && (far", "(far", frames, "TestRecordedStays"},
		{"a connection that begins anew is the old one", "response.go", "fl.confirmed(&s.f, b, psn) || ", "", frames, "TestReborn"},
		{"who is ended is told something else the second time", "deliver.go", "fl.verdict = n.beside(o).syndrome()", "fl.verdict = 0", frames, "TestFatal"},
		{"who is ended is told of another request", "deliver.go", "fl.gone, fl.ended = true, n.una(fl)", "fl.gone, fl.ended = true, fl.admitted", frames, "TestFatal"},
		{"an atomic's answer is forgotten with its record", "admit.go", "fl.tail - fl.span + 1\n\t\tfl.outlive(o)", "fl.tail - fl.span + 1", frames, "TestPast"},
		{"another atomic has the answer of one that is past", "deliver.go", "p.whole() && p.psn == psn && p.va == be.Uint64(b[s.f.BTH+hdr.BTHLen:])", "p.whole() && p.psn == psn", frames, "TestPast"},
		{"READs that are past are acknowledged", "deliver.go", "case info&hdr.IsRead == 0 && s.f.BTHOf(b).AckReq()", "case s.f.BTHOf(b).AckReq()", frames, "TestPast"},
		{"who sends old requests is told an error", "repair.go", "s.longAgo(fl, b, psn)\n", "s.answer(fl, hdr.Acknowledge, psn, hdr.SynNAKRemoteOperation, 0)\n", frames, "TestPast"},
		{"an early answer to an atomic is lost", "response.go", "o.flags |= fEarly\n\t\ts.nudgeLost(c)", "", frames, "TestEarly"},
		{"an early answer to a READ is lost", "response.go", "return s.early(c, it, psn, frame)", "return false", frames, "TestEarly"},
		{"an early answer counts for nothing", "response.go", "if o.is(fEarly) {\n\t\t\tc.ack", "if false {\n\t\t\tc.ack", frames, "TestEarly"},
		{"a READ takes the path MTU of nobody", "flow.go", "if (f.vagueLen+mtu-1)/mtu == k {", "if false {", frames, "TestUnsureRead"},
		{"masks of an atomic that is sent again change places", "record.go", "more.compareMask, more.swapMask = m", "more.swapMask, more.compareMask = m", frames, "TestAbandonedMaskedCAS"},
		{"a congestion mark ends with the atomic", "admit.go", "made.SetECN(b, ecn) // a mark", "_ = ecn // a mark", frames, "TestCongestion"},
		{"an answer's congestion mark is lost", "wire.go", "if s.congested {", "if false {", frames, "TestCongestion"},
		{"a notification goes to whose connection it is", "admit.go", "c.marked.add(s.n.index(fl))", "_ = c", frames, "TestCongestion"},
		{"a notification goes to who had the last one, too", "congestion.go", "c.marked.n = 0\n", "", frames, "TestCongestion"},
		{"a client's notification goes to its own connection", "congestion.go", "y != c && c.diverted(n)", "false", frames, "TestCongestion"},
	}
}

// changes are the mutants as tests/mutant takes them.
func changes() (all []shared.Mutant) {
	for _, m := range slices.Concat(mutants(), crashMutants()) {
		all = append(all, shared.Mutant{Name: m.name, File: m.file, Old: m.old, New: m.new, By: m.by, Run: m.run})
	}
	return all
}

// The proof that the tests can fail: every small change that breaks a promise is
// found.
func TestMutants(t *testing.T) { shared.Run(t, "tor/swordbox", changes()) }

// Every one of them can still be made.
func TestMutantTexts(t *testing.T) { shared.Texts(t, "tor/swordbox", changes()) }
