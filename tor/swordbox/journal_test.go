package swordbox

import (
	"errors"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/journal"
	"github.com/quillon/quillon/tor/conn"
)

func journaling(t *testing.T, args graph.Args) (*rig, *kept, *graphtest.Disk) {
	t.Helper()
	k, d := &kept{b: make([]byte, 8<<20)}, graphtest.NewDisk()
	r := newRig(t, args)
	r.Test = graphtest.New(t, d.Kind(k.kind()), r.args)
	return r, k, d
}

// reboot ends the box with the machine: its memory is lost, and what is not on the disk.
func (r *rig) reboot(k *kept, d *graphtest.Disk) {
	r.t.Helper()
	left := maps.Clone(d.On)
	if err := r.Inst.Close(); err != nil {
		r.t.Fatal(err)
	}
	clear(k.b)
	d.On = left // without what Close would have written
	d.Reboot()
	now := r.Clock.Now()
	r.Test = graphtest.New(r.t, d.Kind(k.kind()), r.args)
	r.Clock.Set(now.Add(time.Minute))
	r.Advance(time.Millisecond)
	r.Advance(time.Second) // requests of before may have been under way
}

// stays checks that nothing comes out to the server but questions about lost connections. It returns how many.
func stays(t testing.TB, out []graphtest.Frame) int {
	t.Helper()
	for _, x := range out {
		var f hdr.Frame
		if b := x.Bytes; hdr.Parse(b, &f) != hdr.IsRoCE || f.Op != hdr.WriteOnly || f.RETHOf(b).DMALength() != 0 || f.BTHOf(b).PSN()&longMask != ownPSN {
			t.Errorf("%s crosses", text(b))
		}
	}
	return len(out)
}

// acknowledges has a's end at the server acknowledge PSN psn.
func (a *party) acknowledges(psn uint32) graphtest.Result {
	return a.r.Push("b", a.response(hdr.Acknowledge, psn, aeth(hdr.SynACK, a.smsn), nil))
}

// repeats has a client repeat a request for as long as it may have a retry count, without an answer, and once more.
func (r *rig) repeats(f []byte) graphtest.Result {
	r.t.Helper()
	for range surelyOldest - 1 {
		r.Advance(time.Millisecond)
		x := r.Push("a", f)
		none0(r.t, x.Out["a"])
		stays(r.t, x.Out["b"])
	}
	r.Advance(time.Millisecond)
	return r.Push("a", f)
}

// Until the journal names both, each client's operations go over its own connection, as what they are.
func TestWaitsForTheJournal(t *testing.T) {
	r, k, d := journaling(t, nil)
	a, b := r.join(), r.join()
	d.Busy = true
	for range 20 {
		x := b.cas(0x7000, 7, 7)
		for range 20 {
			if len(x.Out["b"]) > 0 {
				break
			}
			x = r.Advance(time.Millisecond)
		}
		same(t, x.Out["b"], b.made(hdr.CompareSwap, b.psn-1, atomicETH(0x7000, testRKey, 7, 7), nil))
		same(t, b.atomicAck(7).Out["a"], b.response(hdr.AtomicAck, b.psn-1, append(aeth(hdr.SynACK, b.smsn), 0, 0, 0, 0, 0, 0, 0, 7), nil))
		b.msn++
	}
	if n := r.box().recorded(); n != 0 {
		t.Fatalf("%d connections on record before the journal has them", n)
	}
	d.Busy = false
	b.learn(a, 0x7008, 7)
	if n := r.box().recorded(); n != 2 || len(d.On) != 2 {
		t.Errorf("%d connections on record, %d in the journal, want 2", n, len(d.On))
	}
	_ = k
}

// After a reboot nothing of the connections that the journal names crosses. Their clients are told when they repeat
// requests, but not by a NAK in front of which anything may be lost.
func TestReboot(t *testing.T) {
	r, k, d := journaling(t, nil)
	a, b := r.join(), r.join()
	b.learn(a, 0x7000, 7)
	r.reboot(k, d)
	if n := r.box().recorded(); n != 2 || len(d.On) != 2 {
		t.Fatalf("%d connections on record, %d in the journal, want 2", n, len(d.On))
	}
	if why := r.box().why; why != errReboot.Error() {
		t.Errorf("the reason is %q", why)
	}
	old := a.made(hdr.WriteOnly, a.psn, reth(0x5000, testRKey, 8), little(1))
	a.psn++
	next := a.made(hdr.WriteOnly, a.psn, reth(0x5000, testRKey, 8), little(2))
	at := a.psn - 1
	// A new request comes before the client repeats the old one: a NAK of it would acknowledge the old one.
	for _, x := range []graphtest.Result{r.Push("a", next), r.Push("a", old), a.ack()} {
		stays(t, x.Out["b"])
		none0(t, x.Out["a"])
	}
	x := r.repeats(old)
	stays(t, x.Out["b"])
	if got, want := text(one(t, x.Out["a"])), text(a.response(hdr.Acknowledge, at, aeth(hdr.SynNAKRemoteOperation, 0), nil)); got != want {
		t.Fatalf("got %s, want %s", got, want)
	}
	// Others are served.
	r.reach()
	c, e := r.join(), r.join()
	e.learn(c, 0x7010, 7)
	if n := r.box().recorded(); n != 4 {
		t.Fatalf("%d connections on record, want 4", n)
	}
	// a connects anew, with the same numbers, without a connection manager: the server's end has another newest PSN then.
	newest := psnAdd(a.spsn, hdr.PSNMask)  // a.ack told it
	r.Advance(2 * time.Duration(keepGone)) // the server is asked
	none0(t, a.acknowledges(newest).Out["a"])
	a.psn, a.spsn = psnAdd(a.psn, 1<<20), psnAdd(a.psn, 1<<20)
	f := a.made(hdr.WriteOnly, a.psn, reth(0x5000, testRKey, 8), little(3))
	if stays(t, r.Push("a", f).Out["b"]) != 1 {
		t.Fatal("the server is not asked")
	}
	none0(t, a.acknowledges(psnAdd(a.spsn, hdr.PSNMask)).Out["a"])
	same(t, r.Push("a", f).Out["b"], f)
	// b's entry stays: it was not told yet.
	if n := len(d.On); n != 3 {
		t.Errorf("%d connections in the journal, want those of b and of the new ones", n)
	}
}

// A reboot that follows a reboot, and a start that failed, lose nothing of what the journal names.
func TestRebootAgain(t *testing.T) {
	r, k, d := journaling(t, nil)
	a, b := r.join(), r.join()
	b.learn(a, 0x7000, 7)
	r.reboot(k, d)
	r.reboot(k, d)
	for range 2 {
		stays(t, r.Push("a", a.made(hdr.WriteOnly, a.psn, reth(0x5000, testRKey, 8), little(1))).Out["b"])
		stays(t, r.Push("a", b.made(hdr.WriteOnly, b.psn, reth(0x5000, testRKey, 8), little(1))).Out["b"])
	}
}

// What is not on record any more leaves the journal.
func TestLeavesTheJournal(t *testing.T) {
	r, _, d := journaling(t, nil)
	a, b := r.join(), r.join()
	b.learn(a, 0x7000, 7)
	a.leave()
	b.leave()
	if len(d.On) != 0 {
		t.Errorf("the journal has %d entries, want none", len(d.On))
	}
}

// With a disk that fails, connections go on over themselves.
func TestJournalFails(t *testing.T) {
	r, _, d := journaling(t, nil)
	a, b := r.join(), r.join()
	d.Broken = errors.New("input/output error")
	x := b.cas(0x7000, 7, 7)
	for range 20 {
		if len(x.Out["b"]) > 0 {
			break
		}
		x = r.Advance(time.Millisecond)
	}
	same(t, x.Out["b"], b.made(hdr.CompareSwap, b.psn-1, atomicETH(0x7000, testRKey, 7, 7), nil))
	if r.box().Report().(Report).Warning == "" {
		t.Error("nothing is said of it")
	}
	_ = a
}

// A client that sent nothing for longer than idle= after a reboot is still told when it sends, also where three quarters of
// all places are taken: what it sends under its old numbers never crosses.
func TestRebootIdle(t *testing.T) {
	for _, conns := range []string{"2", "8"} {
		r, k, d := journaling(t, graph.Args{"idle": "3s", "conns": conns})
		a, b := r.join(), r.join()
		b.learn(a, 0x7000, 7)
		r.reboot(k, d)
		for range 20 {
			r.Advance(keepGone)
		}
		old := a.made(hdr.WriteOnly, a.psn, reth(0x5000, testRKey, 8), little(1))
		stays(t, r.Push("a", old).Out["b"])
		none0(t, r.Push("a", old).Out["a"]) // the network's copy
		x := r.repeats(old)
		stays(t, x.Out["b"])
		if got, want := text(one(t, x.Out["a"])), text(a.response(hdr.Acknowledge, a.psn, aeth(hdr.SynNAKRemoteOperation, 0), nil)); got != want {
			t.Fatalf("conns=%s: got %s, want %s", conns, got, want)
		}
		r.Advance(2 * keepGone)
		if n, want := len(d.On), map[string]int{"2": 1, "8": 2}[conns]; n != want { // anybody can have had the client told, so that its name is forgotten only where its place is needed
			t.Errorf("conns=%s: %d connections in the journal, want %d", conns, n, want)
		}
	}
}

// Clients whose retry counts have an end give up by themselves after a reboot. What is connected anew with their numbers, without a
// connection manager, works from its second request on, when the server's end has shown that it is another one: whether others have failed
// meanwhile or not, and in another process, too.
func TestRebootGaveUp(t *testing.T) {
	for _, tries := range []int{0, 3, 4} {
		r, k, d := journaling(t, graph.Args{"idle": "2m"})
		a, b := r.join(), r.join()
		b.learn(a, 0x7000, 7)
		r.reboot(k, d)
		write := func(psn uint32) []byte { return a.made(hdr.WriteOnly, psn, reth(0x5000, testRKey, 8), little(1)) }
		asked := 0
		gives := func(psn uint32) {
			for range 8 {
				r.Advance(time.Second)
				x := r.Push("a", write(psn))
				none0(t, x.Out["a"])
				if n := stays(t, x.Out["b"]); n > 0 {
					asked += n
					none0(t, a.acknowledges(a.spsn).Out["a"]) // the server's end is the old one
				}
			}
		}
		gives(a.psn)
		for i := range tries {
			gives(psnAdd(a.psn, uint32(i+1)<<20))
			if i == 3 { // another process
				now := r.Clock.Now()
				if err := r.Inst.Close(); err != nil {
					t.Fatal(err)
				}
				r.Test = graphtest.New(t, d.Kind(k.kind()), r.args)
				r.Clock.Set(now)
				r.Advance(time.Second)
			}
		}
		if asked < 8 {
			t.Errorf("the server was asked %d times", asked)
		}
		if stays(t, r.Advance(2 * keepGone).Out["b"]) > 0 {
			none0(t, a.acknowledges(a.spsn).Out["a"])
		}
		first := psnAdd(a.psn, 1<<23-1)
		f := write(first)
		stays(t, r.Push("a", f).Out["b"])
		none0(t, a.acknowledges(psnAdd(first, hdr.PSNMask)).Out["a"])
		same(t, r.Push("a", f).Out["b"], f)
		f = a.response(hdr.Acknowledge, first, aeth(hdr.SynACK, 1), nil)
		same(t, r.Push("b", f).Out["a"], f)
		r.Advance(time.Second)
		if n := len(d.On); n != 1 {
			t.Errorf("%d connections in the journal, want that of b", n)
		}
	}
}

// The name of a client whose end at the server is gone leaves the journal, once the server has acknowledged something of it and is heard
// otherwise. Where the server has said nothing, its client may only look as if it had given up: its place is kept as long as there are others.
func TestRebootForgets(t *testing.T) {
	for _, c := range []struct {
		conns   string
		answers bool // the server's end answers as long as it is there
		want    int  // names in the end; b has sent nothing, and keeps its own
	}{{"8", true, 1}, {"8", false, 2}, {"2", false, 1}} {
		r, k, d := journaling(t, graph.Args{"idle": "2m", "conns": c.conns})
		a, b := r.join(), r.join()
		b.learn(a, 0x7000, 7)
		r.reboot(k, d)
		f := a.made(hdr.WriteOnly, a.psn, reth(0x5000, testRKey, 8), little(1))
		answer := func(x graphtest.Result) {
			if stays(t, x.Out["b"]) > 0 && c.answers {
				none0(t, a.acknowledges(a.spsn).Out["a"])
			}
		}
		for range 3 {
			for range 9 {
				answer(r.Advance(time.Minute))
			}
			answer(r.Push("a", f))
		}
		if n := len(d.On); n != 2 {
			t.Errorf("%+v: %d connections in the journal while the client repeats, want 2", c, n)
		}
		other := r.client() // of the same server
		for i := range 11*60 + 100 {
			stays(t, r.Advance(time.Second / time.Duration(1+i/(11*60)*99)).Out["b"])
			f := other.made(hdr.WriteOnly, other.psn, reth(0x5000, testRKey, 8), little(1))
			same(t, r.Push("a", f).Out["b"], f)
			f = other.response(hdr.Acknowledge, other.psn, aeth(hdr.SynACK, 1), nil)
			same(t, r.Push("b", f).Out["a"], f)
		}
		if n := len(d.On); n != c.want {
			t.Errorf("%+v: %d connections in the journal, want %d", c, n, c.want)
		}
	}
}

// The names of a lost connection are in nobody's way: another connection with the client's queue pair gets its answers, and a
// request of another client's to the server's queue pair reaches it.
func TestRebootOthers(t *testing.T) {
	r, k, d := journaling(t, graph.Args{"guard": "drop"})
	a, b := r.join(), r.join()
	b.learn(a, 0x7000, 7)
	r.reboot(k, d)
	r.Advance(2 * keepGone)
	again := *a // a was started anew, too, and has another queue pair of the server's
	again.sqpn, again.psn, again.spsn, again.msn, again.smsn = 0x777, 5, 5, 0, 0
	f := again.made(hdr.WriteOnly, 5, reth(0x5000, testRKey, 8), little(1))
	same(t, r.Push("a", f).Out["b"], f)
	f = again.response(hdr.Acknowledge, 5, aeth(hdr.SynACK, 1), nil)
	same(t, r.Push("b", f).Out["a"], f)
	other := r.client()
	other.sqpn = b.sqpn
	f = other.made(hdr.WriteOnly, 5, reth(0x5000, testRKey, 8), little(1))
	same(t, r.Push("a", f).Out["b"], f)
	stays(t, r.Push("a", a.made(hdr.WriteOnly, a.psn, reth(0x5000, testRKey, 8), little(1))).Out["b"])
}

// The server's request to disconnect ends what the journal names. What a client's side says may be anybody's.
func TestRebootDisconnect(t *testing.T) {
	r, k, d := journaling(t, nil)
	a, b := r.join(), r.join()
	b.learn(a, 0x7000, 7)
	r.reboot(k, d)
	r.Advance(2 * keepGone)
	m := hdr.CMFields{AttributeID: hdr.DisconnectRequest, TransactionID: 9, LocalCommID: 77, RemoteCommID: 78, RemoteQPN: a.sqpn}
	f := a.cm(true, m)
	same(t, r.Push("a", f).Out["b"], f)
	stays(t, r.Push("a", a.made(hdr.WriteOnly, a.psn, reth(0x5000, testRKey, 8), little(1))).Out["b"])
	m.RemoteQPN = b.cqpn
	f = b.cm(false, m)
	same(t, r.Push("b", f).Out["a"], f)
	f = b.made(hdr.WriteOnly, b.psn, reth(0x5000, testRKey, 8), little(1))
	same(t, r.Push("a", f).Out["b"], f)
	if n := len(d.On); n != 1 {
		t.Errorf("%d connections in the journal, want that of a", n)
	}
}

// A READ whose answer was lost goes to the server as the duplicate that it is, as often as its client sends it, until the
// journal names the client: a client with few retries has no time to wait for a disk.
func TestReadDoesNotWaitForTheJournal(t *testing.T) {
	r, _, d := journaling(t, nil)
	a := r.join()
	psn, msn := a.psn, a.smsn
	f := one(t, a.read(0x5000, 8).Out["b"])
	one(t, a.answer(hdr.ReadRespOnly, nil, little(1)).Out["a"]) // lost on the way to the client
	d.Busy = true
	for range 3 * mostReplays {
		same(t, r.Push("a", f).Out["b"], f)
		none0(t, r.Advance(time.Millisecond).Out["b"])
	}
	resp := a.response(hdr.ReadRespOnly, psn, aeth(hdr.SynACK, msn+1), little(1)) // a server counts no duplicate (IBTA 9.7.5.1.2)
	same(t, r.Push("b", resp).Out["a"], resp)
	d.Busy = false
	b := one(t, r.Push("a", f).Out["b"])
	if string(b) == string(f) {
		t.Error("the server is not asked anew when the journal names the client")
	}
}

// With a disk that is broken, a READ that nobody has answered is not done anew: its client's ends would come to count
// differently without a name on the disk.
func TestReadOfABrokenDisk(t *testing.T) {
	r, _, d := journaling(t, nil)
	a := r.join()
	f := one(t, a.read(0x5000, 8).Out["b"])
	one(t, a.answer(hdr.ReadRespOnly, nil, little(1)).Out["a"])
	d.Broken = errors.New("input/output error")
	for range 3 * mostReplays {
		same(t, r.Push("a", f).Out["b"], f)
	}
	if n := r.box().recorded(); n != 0 {
		t.Errorf("%d connections on record, which the disk does not name", n)
	}
}

// A box with fewer places takes the place of one in a running graph: of what that had named nothing stays named that is not bound.
func TestFewerPlaces(t *testing.T) {
	r, k, d := journaling(t, nil)
	r.join()
	d.On[10000] = journal.Entry{1, 2, 3, 4, 5}
	d.Open = true
	r.Test = graphtest.New(t, d.Kind(k.kind()), r.args)
	r.Advance(time.Millisecond)
	if len(d.On) != 0 {
		t.Errorf("the journal has %v, want nothing", d.On)
	}
}

// The state was lost without a reboot: what the journal names is lost as after one.
func TestStateLost(t *testing.T) {
	r, k, d := journaling(t, nil)
	a, b := r.join(), r.join()
	b.learn(a, 0x7000, 7)
	if err := r.Inst.Close(); err != nil {
		t.Fatal(err)
	}
	clear(k.b)
	r.Test = graphtest.New(t, d.Kind(k.kind()), r.args)
	r.Advance(time.Millisecond)
	stays(t, r.Push("a", a.made(hdr.WriteOnly, a.psn, reth(0x5000, testRKey, 8), little(1))).Out["b"])
	if n := r.box().recorded(); n != 2 {
		t.Errorf("%d connections on record, want 2", n)
	}
}

// What the journal named comes on record in its server's place, once, and nowhere where there is no room.
func TestBury(t *testing.T) {
	g := geometry{conns: 2, window: 16, places: 2}
	s := &shared{}
	s.mem.b = make([]byte, g.at(g.places))
	at := func(server byte, qpn uint32) identity {
		return identity{client: conn.AddrFrom(netip.AddrFrom4([4]byte{10, 9, 0, 16})), server: conn.AddrFrom(netip.AddrFrom4([4]byte{10, 9, 0, server})), cqpn: qpn, sqpn: qpn}
	}
	for _, c := range []struct {
		r    identity
		want bool
	}{{at(1, 5), true}, {at(2, 5), true}, {at(1, 6), true}, {at(1, 5), true}, {at(1, 7), false}, {at(3, 5), false}, {at(2, 6), true}} {
		if got := s.bury(g, c.r); got != c.want {
			t.Errorf("%v: %v, want %v", c.r, got, c.want)
		}
	}
	var got []identity
	for k := range g.places * g.conns {
		var r identity
		r.read(recordIn(s.mem.b, g, 0, k))
		got = append(got, r)
	}
	if want := []identity{at(1, 5), at(1, 6), at(2, 5), at(2, 6)}; !slices.Equal(got, want) {
		t.Errorf("on record: %v, want %v", got, want)
	}
}

// After a reboot frames in a client's name, which anybody can make up, do not have what it sends later cross: neither one with any PSN,
// nor as many as a client repeats, however long the client is silent behind them.
func TestRebootSpoofed(t *testing.T) {
	for _, c := range []struct {
		name   string
		off    int32 // of the made-up PSN
		copies int   // of that request
		after  time.Duration
	}{
		{"far", 1 << 20, 1, time.Duration(keepGone) + time.Second},
		{"far, and longer than clients wait", 1 << 20, 1, time.Duration(longestWait) + time.Minute},
		{"before it, and longer than clients wait", -5, 1, time.Duration(longestWait) + time.Minute},
		{"far, repeated", 1 << 20, surelyOldest + 1, time.Second},
		{"far, repeated, and later", 1 << 20, surelyOldest + 1, 2 * time.Duration(keepGone)},
		{"its own, repeated, and later", 0, surelyOldest + 1, 2 * time.Duration(keepGone)},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, k, d := journaling(t, graph.Args{"idle": "2m"})
			a, b := r.join(), r.join()
			b.learn(a, 0x7000, 7)
			r.reboot(k, d)
			spoofed := a.made(hdr.WriteOnly, psnAdd(a.psn, uint32(c.off)), reth(0x5000, testRKey, 8), little(9))
			for range c.copies {
				stays(t, r.Push("a", spoofed).Out["b"])
				r.Advance(time.Millisecond)
			}
			for left := c.after; left > 0; left -= time.Second {
				r.Advance(time.Second)
			}
			if n := len(d.On); n != 2 {
				t.Errorf("%d connections in the journal, want 2", n)
			}
			stays(t, r.Push("a", a.made(hdr.WriteOnly, a.psn, reth(0x5000, testRKey, 8), little(1))).Out["b"])
		})
	}
}

// A client is told of the loss also when somebody has made up an earlier request in its name.
func TestRebootSpoofedOldest(t *testing.T) {
	for _, off := range []int32{-5, 1 << 20} {
		r, k, d := journaling(t, graph.Args{"idle": "2m"})
		a, b := r.join(), r.join()
		b.learn(a, 0x7000, 7)
		r.reboot(k, d)
		r.Push("a", a.made(hdr.WriteOnly, psnAdd(a.psn, uint32(off)), reth(0x5000, testRKey, 8), little(9)))
		old := a.made(hdr.WriteOnly, a.psn, reth(0x5000, testRKey, 8), little(1))
		told := false
		for range 2 * 60 * 10 {
			r.Advance(500 * time.Millisecond)
			x := r.Push("a", old)
			stays(t, x.Out["b"])
			if told = len(x.Out["a"]) > 0; told {
				if got, want := text(one(t, x.Out["a"])), text(a.response(hdr.Acknowledge, a.psn, aeth(hdr.SynNAKRemoteOperation, 0), nil)); got != want {
					t.Errorf("%d: got %s, want %s", off, got, want)
				}
				break
			}
		}
		if !told {
			t.Errorf("%d: the client is not told", off)
		}
	}
}

// A start that has no room for what the journal names is refused, and the next one, with more places, begins: also where memory on a
// disk says something older of the connections.
func TestMourn(t *testing.T) {
	at := func(server byte, i int) identity {
		a := func(host byte) conn.Addr { return conn.AddrFrom(netip.AddrFrom4([4]byte{10, 9, 0, host})) }
		return identity{client: a(16), server: a(server), cqpn: uint32(5 + i), sqpn: uint32(5 + i)}
	}
	want := map[identity]bool{at(2, 9): true}
	for i := range 5 {
		want[at(1, i)] = true
	}
	var all []journal.Entry
	for r := range want {
		all = append(all, r.entry())
	}
	few, more := geometry{conns: 4, window: 16, places: 2}, geometry{conns: 8, window: 16, places: 2}
	b := make([]byte, more.at(more.places))
	s := &shared{mem: memory{geometry: few, b: b}}
	if err := s.mourn(all); err == nil {
		t.Fatal("there is room")
	}
	le.PutUint32(recordIn(b, few, 0, 0)[unaAt:], 77|knownPSN)
	s = &shared{mem: memory{geometry: more, b: b}}
	if err := s.mourn(all); err != nil {
		t.Fatal(err)
	}
	for p := range more.places {
		var first identity
		for k := range more.conns {
			x := recordIn(b, more, p, k)
			if x[boundAt] == 0 {
				continue
			}
			var r identity
			if r.read(x); first == (identity{}) {
				first = r
			}
			if !want[r] || r.server != first.server || le.Uint32(x[unaAt:]) != 0 {
				t.Errorf("%v is on record in place %d of %v, PSN %#x", r, p, first.server, le.Uint32(x[unaAt:]))
			}
			delete(want, r)
		}
	}
	if len(want) != 0 {
		t.Errorf("not on record: %v", want)
	}
}

// A server that acknowledges the PSN of the question itself shows nothing by it.
func TestRebootEcho(t *testing.T) {
	r, k, d := journaling(t, nil)
	a, b := r.join(), r.join()
	b.learn(a, 0x7000, 7)
	r.reboot(k, d)
	for i := range 4 {
		x := r.Push("a", a.made(hdr.WriteOnly, psnAdd(a.psn, uint32(i)<<20), reth(0x5000, testRKey, 8), little(1)))
		q := one(t, x.Out["b"])
		stays(t, x.Out["b"])
		var f hdr.Frame
		hdr.Parse(q, &f)
		none0(t, a.acknowledges(f.BTHOf(q).PSN()).Out["a"])
		r.Advance(2 * keepGone)
	}
	if n := len(d.On); n != 2 {
		t.Errorf("%d connections in the journal, want 2", n)
	}
}

// asksWith returns the PSN of the question about a lost connection among out.
func asksWith(t testing.TB, out []graphtest.Frame) uint32 {
	t.Helper()
	q := one(t, out)
	stays(t, out)
	var f hdr.Frame
	hdr.Parse(q, &f)
	return f.BTHOf(q).PSN()
}

// Everything was started anew with the box's machine, and is connected anew with the same numbers, out of band, before the server was asked. Its
// end has counted nothing, so that it is the new one, whatever PSN it names.
func TestRebootOfAll(t *testing.T) {
	for _, c := range []struct {
		name string
		syn  hdr.Syndrome
		off  uint32 // of the answer, from the first PSN on
		rxe  bool
	}{{"IBTA", hdr.SynACK, hdr.PSNMask, false}, {"rxe", hdr.SynACK, 0, true}, {"it expects an earlier PSN", hdr.SynNAKSequence, 0, false}} {
		r, k, d := journaling(t, nil)
		a, b := r.join(), r.join()
		b.learn(a, 0x7000, 7)
		r.reboot(k, d)
		a.psn, a.smsn = psnAdd(a.psn, 77), 0
		f := a.made(hdr.WriteOnly, a.psn, reth(0x5000, testRKey, 8), little(3))
		asksWith(t, r.Push("a", f).Out["b"])
		psn := psnAdd(a.psn, c.off)
		if c.rxe {
			psn = hdr.PSNMask
		}
		none0(t, r.Push("b", a.response(hdr.Acknowledge, psn, aeth(c.syn, 0), nil)).Out["a"])
		x := r.Push("a", f).Out["b"]
		if len(x) != 1 || string(x[0].Bytes) != string(f) {
			t.Errorf("%s: the new connection's request does not cross", c.name)
		}
	}
}

// A server that has executed much for others expects a PSN that is far from its client's, and answers the first question with a NAK.
// It is asked near its own PSN then, its answer is the old end's, and that of another end ends what the journal named.
func TestRebootFarNumbering(t *testing.T) {
	r, k, d := journaling(t, nil)
	a, b := r.join(), r.join()
	b.learn(a, 0x7000, 7)
	r.reboot(k, d)
	expects := psnAdd(a.psn, 1<<23+5) // the question's PSN is ahead of it
	old := a.made(hdr.WriteOnly, a.psn, reth(0x5000, testRKey, 8), little(1))
	asksWith(t, r.Push("a", old).Out["b"])
	none0(t, r.Push("b", a.response(hdr.Acknowledge, expects, aeth(hdr.SynNAKSequence, a.smsn), nil)).Out["a"])
	r.Advance(time.Second)
	q := asksWith(t, r.Push("a", old).Out["b"])
	if d := hdr.PSNDiff(q, expects); d >= 0 || d < -mostUnacked-longSince {
		t.Fatalf("the server is asked with PSN %d, and expects %d", q, expects)
	}
	newest := psnAdd(expects, -9&hdr.PSNMask) // it was no READ
	none0(t, a.acknowledges(newest).Out["a"])
	for range 3 {
		r.Advance(time.Second)
		if again := asksWith(t, r.Push("a", old).Out["b"]); again != q {
			t.Errorf("the server is asked with PSN %d, and was with %d", again, q)
		}
		none0(t, a.acknowledges(newest).Out["a"])
	}
	if n := len(d.On); n != 2 {
		t.Fatalf("%d connections in the journal, want 2", n)
	}
	r.Advance(time.Second)
	a.psn = psnAdd(a.psn, 1<<21)
	f := a.made(hdr.WriteOnly, a.psn, reth(0x5000, testRKey, 8), little(3))
	asksWith(t, r.Push("a", f).Out["b"])
	none0(t, r.Push("b", a.response(hdr.Acknowledge, a.psn, aeth(hdr.SynNAKSequence, 0), nil)).Out["a"])
	same(t, r.Push("a", f).Out["b"], f)
}

// Linux (rxe) acknowledges the PSN before 0 for a queue pair that has executed READs only. That says nothing of the PSN that it expects: it is
// asked as it was the first time. Its new end says the same PSN, and has counted nothing.
func TestRebootReadsOnly(t *testing.T) {
	r, k, d := journaling(t, nil)
	a, b := r.join(), r.join()
	b.learn(a, 0x7000, 7)
	r.reboot(k, d)
	a.psn = 0x654321
	f := a.made(hdr.WriteOnly, a.psn, reth(0x5000, testRKey, 8), little(1))
	q := asksWith(t, r.Push("a", f).Out["b"])
	none0(t, a.acknowledges(hdr.PSNMask).Out["a"])
	for _, x := range r.Advance(2 * time.Duration(mostSilence)).Out["b"] {
		if again := asksWith(t, []graphtest.Frame{x}); again != q {
			t.Fatalf("the server is asked with PSN %#x, and was with %#x", again, q)
		}
	}
	none0(t, a.acknowledges(hdr.PSNMask).Out["a"])
	asksWith(t, r.Push("a", f).Out["b"])
	none0(t, r.Push("b", a.response(hdr.Acknowledge, a.spsn, aeth(hdr.SynNAKSequence, a.smsn), nil)).Out["a"]) // what the old end expects
	asksWith(t, r.Push("a", f).Out["b"])
	none0(t, a.acknowledges(hdr.PSNMask).Out["a"])
	if n := len(d.On); n != 2 {
		t.Fatalf("%d connections in the journal, want 2", n)
	}
	asksWith(t, r.Push("a", f).Out["b"])
	a.smsn = 0
	none0(t, a.acknowledges(hdr.PSNMask).Out["a"])
	same(t, r.Push("a", f).Out["b"], f)
}

// No question has a PSN that connections begin with: its server's end would execute it in the place of the first request.
func TestRebootAsksWithNoFirstPSN(t *testing.T) {
	for _, near := range []uint32{mostUnacked, mostUnacked + 1, mostUnacked + 1<<15, mostUnacked + 1<<16} {
		r, k, d := journaling(t, nil)
		a, b := r.join(), r.join()
		b.learn(a, 0x7000, 7)
		r.reboot(k, d)
		if q := asksWith(t, r.Push("a", a.made(hdr.WriteOnly, near, reth(0x5000, testRKey, 8), little(1))).Out["b"]); q&0x3FF == 0 {
			t.Errorf("near %#x the server is asked with PSN %#x", near, q)
		}
	}
}

// A late answer to one question has no trust put into the headers of a later one, which anybody may have made up.
func TestRebootLateAnswer(t *testing.T) {
	r, k, d := journaling(t, nil)
	a, b := r.join(), r.join()
	b.learn(a, 0x7000, 7)
	r.reboot(k, d)
	f := a.made(hdr.WriteOnly, a.psn, reth(0x5000, testRKey, 8), little(1))
	asksWith(t, r.Push("a", f).Out["b"])
	r.Advance(time.Second) // the server pauses
	other := *a
	other.sport++
	made := other.made(hdr.WriteOnly, a.psn, reth(0x5000, testRKey, 8), little(1))
	if q := one(t, r.Push("a", made).Out["b"]); string(q[34:36]) != string(made[34:36]) {
		t.Fatal("the question has other headers")
	}
	none0(t, a.acknowledges(a.spsn).Out["a"])
	r.Advance(time.Second)
	if q := one(t, r.Push("a", f).Out["b"]); string(q[34:36]) != string(f[34:36]) {
		t.Error("the headers of the made-up request are trusted")
	}
}

// The questions follow a server whose MAC address changes, also when its client was told: its end is not taken for gone meanwhile.
func TestRebootServerMoves(t *testing.T) {
	for _, told := range []bool{false, true} {
		r, k, d := journaling(t, graph.Args{"idle": "2m"})
		a, b := r.join(), r.join()
		b.learn(a, 0x7000, 7)
		r.reboot(k, d)
		f := a.made(hdr.WriteOnly, a.psn, reth(0x5000, testRKey, 8), little(1))
		asksWith(t, r.Push("a", f).Out["b"])
		none0(t, a.acknowledges(a.spsn).Out["a"])
		if told {
			r.repeats(f)
		}
		r.serverMAC = [6]byte{2, 9, 0, 0, 0, 2}
		other := r.client() // of the same server
		found := false
		for i := range 300 { // questions begin a minute later
			for _, x := range r.Advance(time.Minute >> min(12*i, 12)).Out["b"] {
				asksWith(t, []graphtest.Frame{x})
				if [6]byte(x.Bytes) == r.serverMAC {
					found = true
					none0(t, a.acknowledges(a.spsn).Out["a"])
				}
			}
			f := other.made(hdr.WriteOnly, other.psn, reth(0x5000, testRKey, 8), little(1))
			same(t, r.Push("a", f).Out["b"], f)
			f = other.response(hdr.Acknowledge, other.psn, aeth(hdr.SynACK, 1), nil)
			same(t, r.Push("b", f).Out["a"], f)
		}
		if n := len(d.On); !found || n != 2 {
			t.Errorf("told %v: it was asked at its new address: %v; %d connections in the journal, want 2", told, found, n)
		}
	}
}
