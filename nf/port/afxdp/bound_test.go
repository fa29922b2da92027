package afxdp

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/internal/xsk"
	"github.com/quillon/quillon/internal/xsk/offload"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
)

// The queue pairs of these tests: frames of roce go to their addresses.
var (
	qp4 = port.QueuePair{Addr: netip.MustParseAddr("10.0.0.2"), QPN: 0x400}
	qp6 = port.QueuePair{Addr: netip.MustParseAddr("fd00::2"), QPN: 0x600}
)

const unboundQPN = 0x401

// roceTo is roce to a queue pair of such an address: a compare-and-swap of its wordOf.
func roceTo(q port.QueuePair, tags int, seq uint32) []byte {
	f := roce(110, tags, q.Addr.Is6(), seq)
	bth := 14 + 4*tags + 20 + 8
	if q.Addr.Is6() {
		bth += 20
	}
	f[bth] = 0x13
	binary.BigEndian.PutUint32(f[bth+4:], q.QPN)
	clear(f[bth+12 : bth+12+28])
	binary.BigEndian.PutUint32(f[bth+12:], q.QPN)
	return f
}

// wordOf is the word that frames to a queue pair name.
func wordOf(q port.QueuePair) port.Word {
	return port.WordAt(port.Words(q.Addr), uint64(q.QPN)<<32)
}

// guard has another frame's alone go to the word of a queue pair.
func guard(p *Port, q port.QueuePair) error {
	g, err := p.Guard()
	if err == nil {
		g.Put(wordOf(q), wordOf(q).Place(1<<40))
	}
	return err
}

// unguard has all go there again.
func unguard(p *Port, q port.QueuePair) error {
	g, err := p.Guard()
	if err == nil {
		g.Take(wordOf(q), wordOf(q).Place(1<<40))
	}
	return err
}

// wire sends frames both ways where no worker takes them.
type wire struct {
	bed *bed
	seq uint32
}

// check wants frames to the queue pairs of drops not to cross, in either
// direction, and those of crosses to do so.
func (x *wire) check(t *testing.T, when string, drops, crosses []port.QueuePair) {
	t.Helper()
	for tags := range 3 {
		for _, d := range [2][2]*raw{{x.bed.a, x.bed.b}, {x.bed.b, x.bed.a}} {
			for _, q := range drops {
				x.seq++
				if err := d[0].send(roceTo(q, tags, x.seq)); err != nil {
					t.Fatal(err)
				}
			}
			// One that was not dropped would arrive before these.
			for _, q := range append(slices.Clone(crosses), port.QueuePair{Addr: qp4.Addr, QPN: unboundQPN}) {
				x.seq++
				f := roceTo(q, tags, x.seq)
				if err := d[0].send(f); err != nil {
					t.Fatal(err)
				}
				if got := d[1].recv(2 * time.Second); string(got) != string(f) {
					t.Fatalf("%s, %d tags: to %v: sent %x, got %x", when, tags, q, f, got)
				}
			}
		}
	}
}

// stall waits until w's workers, who do nothing, are taken for gone.
func stall(t *testing.T, w *Pair) {
	t.Helper()
	_ = unix.Nanosleep(&unix.Timespec{Nsec: 40e6}, nil)
	for _, p := range []*Port{w.A[0], w.B[0]} {
		if clock.Kernel()-p.beaten < p.dev.limit.Load() {
			t.Fatalf("the worker of %s is not late", p.Name())
		}
	}
}

var (
	boundFilter   = port.Filter{RoCE: true, Bound: true, Guarded: true}
	guardedFilter = port.Filter{RoCE: true, Guarded: true}
)

// TestStallGuarded has the workers of a pair pause: atomics to guarded words do not
// cross, whichever port guards them, and all else does.
func TestStallGuarded(t *testing.T) {
	for _, mode := range []Mode{Native, Generic} {
		bed := newBed(t, 1500, 1)
		x := &wire{bed: bed}
		w := open(t, PairConfig{Options: Options{Mode: mode, Stale: 30 * time.Millisecond, Filter: &guardedFilter}})
		b := new(packet.Batch)
		filter := func(f port.Filter) {
			t.Helper()
			for _, p := range []*Port{w.A[0], w.B[0]} {
				if err := p.SetFilter(f); err != nil {
					t.Fatal(err)
				}
			}
		}
		both, none := []port.QueuePair{qp4, qp6}, []port.QueuePair(nil)
		for _, p := range []*Port{w.A[0], w.B[0]} { // alive
			if n, err := p.Rx(b); n != 0 || err != nil {
				t.Fatal(n, err)
			}
		}
		stall(t, w)
		x.check(t, "nothing is guarded", none, both)
		g, err := w.A[0].Guard()
		if o, e := w.B[0].Guard(); err != nil || e != nil || o != g {
			t.Fatal("the two have not one guard: ", err, e)
		}
		if age := clock.Kernel() - int64(*g.Seen()); age < 0 || age > int64(10*time.Second) {
			t.Errorf("the worker was seen %v ago", time.Duration(age))
		}
		if err := errors.Join(guard(w.A[0], qp4), guard(w.B[0], qp6)); err != nil {
			t.Fatal(err)
		}
		x.check(t, "guarded", both, none)
		filter(port.Filter{RoCE: true, Guarded: true, Bound: true, Hosts: []netip.Addr{qp4.Addr, qp6.Addr}})
		x.check(t, "another filter", both, none)
		filter(port.Filter{All: true, Guarded: true})
		x.check(t, "all is wanted", both, none)
		g.Take(wordOf(qp6), wordOf(qp6).Place(1<<40))
		x.check(t, "one was taken out", both[:1], both[1:])
		*g.Seen() -= uint64(port.GuardFor)
		x.check(t, "nobody was there for long", none, both)
		*g.Seen() = uint64(clock.Kernel())
		filter(port.Filter{RoCE: true, Bound: true})
		x.check(t, "not Guarded", none, both)
		filter(guardedFilter)
		x.check(t, "Guarded again", none, both)
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := w.A[0].Guard(); err != port.ErrClosed {
			t.Errorf("the guard of a closed port: %v", err)
		}
		g.Put(wordOf(qp4), 1) // the memory is still there
	}
}

// TestStallBound has the workers of a pair pause: frames to bound queue pairs do not
// cross, whichever port bound them, and all others do.
func TestStallBound(t *testing.T) {
	for _, mode := range []Mode{Native, Generic} {
		bed := newBed(t, 1500, 1)
		x := &wire{bed: bed}
		w := open(t, PairConfig{Options: Options{Mode: mode, Stale: 30 * time.Millisecond, Filter: &boundFilter}})
		b := new(packet.Batch)
		bind := func(p *Port, q port.QueuePair, on bool) {
			t.Helper()
			if err := p.Bind(q, on); err != nil {
				t.Fatal(err)
			}
		}
		filter := func(f port.Filter) {
			t.Helper()
			for _, p := range []*Port{w.A[0], w.B[0]} {
				if err := p.SetFilter(f); err != nil {
					t.Fatal(err)
				}
			}
		}
		both, none := []port.QueuePair{qp4, qp6}, []port.QueuePair(nil)
		x.check(t, "before the first Rx", none, both)
		for _, p := range []*Port{w.A[0], w.B[0]} { // alive
			if n, err := p.Rx(b); n != 0 || err != nil {
				t.Fatal(n, err)
			}
		}
		stall(t, w)
		bind(w.A[0], qp4, true)
		x.check(t, "one is bound", both[:1], both[1:])
		bind(w.B[0], qp6, true)
		before := w.A[0].Missed()
		x.check(t, "both are bound", both, none)
		if s := w.A[0].Stats(); s.ShutOut == 0 || s.Missed == 0 || s.ShutOut+s.Missed != w.A[0].kernelMissed() {
			t.Errorf("%+v of %d", s, w.A[0].kernelMissed())
		}
		if n := w.A[0].Missed() - before; n != 9 {
			t.Errorf("%d frames counted, not 9", n)
		}
		// Under another filter that says Bound they stay bound, from frame to frame.
		filter(port.Filter{RoCE: true, Bound: true, Hosts: []netip.Addr{qp4.Addr, qp6.Addr}})
		x.check(t, "another filter", both, none)
		filter(port.Filter{All: true, Bound: true})
		x.check(t, "all is wanted", both, none)
		if err := w.A[0].SetFilter(port.Filter{RoCE: true}); err != nil {
			t.Fatal(err)
		}
		filter(boundFilter)
		x.check(t, "one interface was without", both, none)
		bind(w.A[0], qp6, false)
		bind(w.A[0], qp6, false)
		x.check(t, "one was taken out", both[:1], both[1:])
		if err := w.B[0].Rebind(both, both[1:]); err != nil {
			t.Fatal(err)
		}
		x.check(t, "the other one", both[1:], both[:1])
		if w.A[0].Bind(port.QueuePair{QPN: 1}, true) == nil {
			t.Error("bound to no address")
		}
		// Under one that does not say Bound, none is.
		filter(port.Filter{RoCE: true})
		x.check(t, "open", none, both)
		filter(boundFilter)
		x.check(t, "Bound again", none, both)
		// What is bound before its filter is there holds under it.
		filter(port.Filter{RoCE: true})
		bind(w.A[0], qp4, true)
		x.check(t, "bound under an open filter", none, both)
		filter(boundFilter)
		x.check(t, "the filter of what is bound", both[:1], both[1:])
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if err := w.A[0].Bind(qp4, true); err != port.ErrClosed {
			t.Errorf("bound at a closed port: %v", err)
		}
		if err := w.B[0].Rebind(nil, nil); err != port.ErrClosed {
			t.Errorf("bound at a closed port: %v", err)
		}
	}
}

// TestBoundOfTwoPairs: a pair of interfaces whose programs have different sets, or
// guards, goes on with what is in either.
func TestBoundOfTwoPairs(t *testing.T) {
	boundOfTwo(t, port.Filter{RoCE: true, Bound: true}, func(p *Port, q port.QueuePair) error { return p.Bind(q, true) })
	boundOfTwo(t, guardedFilter, guard)
}

func boundOfTwo(t *testing.T, boundFilter port.Filter, bind func(*Port, port.QueuePair) error) {
	bed := newBed(t, 1500, 1)
	x := &wire{bed: bed}
	both := []port.QueuePair{qp4, qp6}
	keep := PairConfig{Keep: true, Options: Options{Filter: &boundFilter}}
	w := open(t, keep)
	err := errors.Join(bind(w.A[0], qp4), w.Close())
	if err != nil {
		t.Fatal(err)
	}
	x.check(t, "left behind", both[:1], both[1:])

	// B gets the program of a wire to somewhere else.
	l, err := netlink.LinkByName("dutB")
	if err != nil {
		t.Fatal(err)
	}
	old, err := xsk.AttachedTo(l.Attrs().Index)
	if err != nil {
		t.Fatal(err)
	}
	part := xsk.Part{Index: l.Attrs().Index, Spec: xsk.ProgramSpec{Filter: boundFilter, Cross: xsk.Pass}}
	var e [5]error
	part.State, e[0] = xsk.NewState(part.Index, 1)
	part.Sockets, e[1] = xsk.NewSocketMap(1)
	part.Bound, e[2] = xsk.NewSet()
	part.Guard, e[4] = xsk.NewGuard()
	if err := errors.Join(e[:]...); err != nil {
		t.Fatal(err)
	}
	p, err := xsk.Load(xsk.WireProgram, part)
	if err != nil {
		t.Fatal(err)
	}
	if was, err := old.State(); err == nil {
		part.State.SetRestore(was.Restore())
		e[3] = was.Close()
	}
	part.Guard.Put(wordOf(qp6), wordOf(qp6).Place(1<<40))
	err = errors.Join(e[3], part.Bound.Put(qp6, true), xsk.Swap(part.Index, p.Prog, old.Prog, old.Mode),
		p.Close(), part.State.Close(), part.Sockets.Close(), part.Bound.Close(), part.Guard.Close(), old.Close())
	if err != nil {
		t.Fatal(err)
	}
	// A failure leaves each with its own.
	bad := keep
	bad.A, bad.B, bad.Ring, bad.Frames = "dutA", "dutB", 1<<16, 1<<40
	if _, err := OpenPair(bad); err == nil {
		t.Error("there is no end of memory")
	}
	w = open(t, keep)
	if !w.Info().Resumed {
		t.Error("not resumed")
	}
	x.check(t, "resumed", both, nil)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	x.check(t, "left behind again", both, nil)

	// One whose filter does not say Bound drops the set, also for its later filters.
	w = open(t, PairConfig{Options: Options{Filter: &port.Filter{RoCE: true}}})
	x.check(t, "open", nil, both)
	for _, p := range []*Port{w.A[0], w.B[0]} {
		if err := p.SetFilter(boundFilter); err != nil {
			t.Fatal(err)
		}
	}
	x.check(t, "Bound again", nil, both)
}

// A middlebox of TestKillBound.
const (
	childBinds   = "binds"   // binds qp4, and leaves the wire at its end
	childGuards  = "guards"  // guards qp4's word in its place
	childGoesOn  = "goes-on" // binds nothing itself
	childNarrows = "narrows" // changes its filter all the time
	childFrees   = "frees"   // its filter does not say Bound
)

// boundFlow sends frames to a bound queue pair and to another one from A to B in
// turns.
type boundFlow struct {
	stop atomic.Bool
	done chan struct{}
	// Of those to the bound one and to the other: how many arrived that the
	// middlebox had, and without it.
	marked, bare [2]atomic.Uint64
}

func startBoundFlow(bed *bed) *boundFlow {
	f := &boundFlow{done: make(chan struct{}, 2)}
	go func() {
		defer func() { f.done <- struct{}{} }()
		frames := [][]byte{roceTo(qp4, 0, 1), roceTo(port.QueuePair{Addr: qp4.Addr, QPN: unboundQPN}, 0, 1)}
		for _, x := range frames {
			x[markAt] = 0
		}
		for n := 0; !f.stop.Load(); n++ {
			_ = bed.a.send(frames[n%2])
			if n%4 == 3 {
				_ = unix.Nanosleep(&unix.Timespec{Nsec: 50_000}, nil)
			}
		}
	}()
	go func() {
		defer func() { f.done <- struct{}{} }()
		for !f.stop.Load() {
			got := bed.b.recv(10 * time.Millisecond)
			if got == nil {
				continue
			}
			to := int(binary.BigEndian.Uint32(got[46:]) - qp4.QPN)
			if got[markAt] == 1 {
				f.marked[to].Add(1)
			} else {
				f.bare[to].Add(1)
			}
		}
	}()
	return f
}

// until waits for n more frames.
func (f *boundFlow) until(t *testing.T, what string, c *atomic.Uint64, n uint64) {
	t.Helper()
	from := c.Load()
	for end := time.Now().Add(60 * time.Second); c.Load() < from+n; {
		if time.Now().After(end) {
			t.Fatalf("%s: %d of %d frames in 20 s", what, c.Load()-from, n)
		}
		_ = unix.Nanosleep(&unix.Timespec{Nsec: 200_000}, nil)
	}
}

// TestKillBound kills, stops and replaces a middlebox that has bound a queue pair,
// under load. At no moment does a frame to it cross without the middlebox, and
// those to another one do during each outage.
func TestKillBound(t *testing.T) { killBound(t, childBinds) }

// TestKillGuarded does so with one that guards a word.
func TestKillGuarded(t *testing.T) { killBound(t, childGuards) }

func killBound(t *testing.T, how string) {
	bed := newBed(t, 1500, 1)
	m := startChild(t, how, "ready")
	f := startBoundFlow(bed)
	defer func() { f.stop.Store(true); <-f.done; <-f.done }()
	lives := func(what string) {
		t.Helper()
		f.until(t, what, &f.marked[0], 500)
		f.until(t, what, &f.marked[1], 500)
	}
	out := func(what string) {
		t.Helper()
		f.until(t, what, &f.bare[1], 500)
		if n := f.bare[0].Load(); n > 0 {
			t.Fatalf("%s: %d frames to the bound queue pair crossed", what, n)
		}
	}
	next := func(how string) {
		t.Helper()
		_ = m.cmd.Process.Kill()
		_ = m.cmd.Wait()
		out("killed")
		m = startChild(t, how, "resumed")
	}
	lives("first")
	next(childGoesOn)
	lives("restarted")
	_ = m.cmd.Process.Signal(unix.SIGSTOP)
	out("stopped")
	_ = m.cmd.Process.Signal(unix.SIGCONT)
	lives("continued")
	_ = m.in.Close()
	if err := m.cmd.Wait(); err != nil {
		t.Fatal("the middlebox did not end well: ", err)
	}
	out("ended and left the wire")
	m = startChild(t, childNarrows, "resumed")
	lives("filters change")
	f.until(t, "filters change", &f.marked[0], 2000)
	next(childGoesOn)
	lives("the last one")
	next(childFrees)
	lives("of an open filter")
	_ = m.cmd.Process.Kill()
	f.until(t, "nothing is bound any more", &f.bare[0], 500)
}

// boundChild is one of them.
func boundChild(how string, w *Pair) error {
	switch how {
	case childBinds:
		return w.A[0].Bind(qp4, true)
	case childGuards:
		return guard(w.A[0], qp4)
	case childNarrows:
		go func() {
			for n := 0; ; n++ {
				f := boundFilter
				if n%2 == 0 {
					f.Hosts = []netip.Addr{qp4.Addr}
				}
				for _, p := range []*Port{w.A[0], w.B[0]} {
					if err := p.SetFilter(f); err != nil {
						os.Exit(1)
					}
				}
			}
		}()
	}
	return nil
}

// TestAttachLater: what is bound and guarded before Attach never crosses the new wire,
// and until then frames go the way that they went before, also when Attach never comes.
func TestAttachLater(t *testing.T) {
	bed := newBed(t, 1500, 1)
	was, x := settings(t, bed), &wire{bed: bed}
	both, none := []port.QueuePair{qp4, qp6}, []port.QueuePair(nil)
	later := func(f port.Filter) *Pair {
		return open(t, PairConfig{Later: true, Options: Options{Filter: &f}})
	}
	attached := func() (ids [2]uint32) {
		t.Helper()
		for i, name := range []string{"dutA", "dutB"} {
			l, err := netlink.LinkByName(name)
			if err != nil {
				t.Fatal(err)
			}
			if p := l.Attrs().Xdp; p != nil && p.Attached {
				ids[i] = p.ProgId
			}
		}
		return ids
	}
	closed := func(w *Pair) {
		t.Helper()
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}
	w := later(guardedFilter)
	closed(w)
	if now := settings(t, bed); now != was || attached() != [2]uint32{} {
		t.Errorf("was\n%s\nis\n%s", was, now)
	}
	w = later(guardedFilter)
	err := errors.Join(w.A[0].Bind(qp4, true), guard(w.A[0], qp6), w.A[0].SetFilter(boundFilter), w.B[0].SetFilter(boundFilter))
	if err != nil || attached() != [2]uint32{} {
		t.Fatal(err, attached())
	}
	if err := w.Attach(); err != nil {
		t.Fatal(err)
	}
	if i := w.Info(); len(i.Interfaces) != 2 {
		t.Errorf("%+v", i)
	}
	x.check(t, "attached", both, none)
	if err := errors.Join(w.A[0].Bind(qp4, false), unguard(w.A[0], qp6)); err != nil {
		t.Fatal(err)
	}
	closed(w)
	if now := settings(t, bed); now != was || attached() != [2]uint32{} || w.Held() != (Held{}) {
		t.Errorf("was\n%s\nis\n%s", was, now)
	}

	// Over an earlier wire that has another filter, and a set. It is there since one is
	// bound, though it was not to be kept.
	old := open(t, PairConfig{Options: Options{Filter: &boundFilter, Stale: 30 * time.Millisecond}})
	if err := old.A[0].Bind(qp4, true); err != nil {
		t.Fatal(err)
	}
	closed(old)
	if old.Held() != (Held{QueuePairs: true}) {
		t.Error("a bridge would carry what must not cross")
	}
	ids := attached()
	w = later(boundFilter)
	x.check(t, "the earlier wire", []port.QueuePair{qp4}, []port.QueuePair{qp6})
	closed(w)
	if attached() != ids {
		t.Error("the earlier wire is not there any more")
	}
	x.check(t, "the earlier wire, again", []port.QueuePair{qp4}, []port.QueuePair{qp6})
	w = later(boundFilter)
	if err := errors.Join(guard(w.A[0], qp6), w.Attach()); err != nil || attached() == ids {
		t.Error(err, attached())
	}
	x.check(t, "in its place", both, none)
	closed(w)
	if err := Detach("dutA", "dutB"); err != nil {
		t.Error(err)
	}
	if now := settings(t, bed); now != was || attached() != [2]uint32{} {
		t.Errorf("was\n%s\nis\n%s", was, now)
	}

	// Somebody else comes between, where no claim keeps them away.
	w = later(boundFilter)
	w.unclaim()
	if _, err := Wire("dutA", "dutB"); err != nil {
		t.Fatal(err)
	}
	ids = attached()
	if err := w.Attach(); err == nil {
		t.Error("two wires")
	}
	closed(w)
	if attached() != ids {
		t.Error("the wire of somebody else is not there any more")
	}
	if err := errors.Join(w.A[0].SetFilter(boundFilter), w.Attach()); !errors.Is(err, port.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
	if err := Detach("dutA", "dutB"); err != nil {
		t.Error(err)
	}
}

// TestStopInBridge: a bridge that joins the interfaces takes over at a clean stop. What is guarded or bound does
// not cross it, all else does, to the bridge's other ports, too; the settings are as they were.
func TestStopInBridge(t *testing.T) {
	binds := func(p *Port, q port.QueuePair) error { return p.Bind(q, true) }
	for _, how := range []struct {
		name     string
		fallback Fallback
		filter   port.Filter
		bind     func(*Port, port.QueuePair) error
	}{
		{"guarded", Redirect, guardedFilter, guard},
		{"guarded, passed", Pass, guardedFilter, guard},
		{"bound", Redirect, boundFilter, binds},
		{"bound, passed", Pass, boundFilter, binds},
	} {
		t.Run(how.name, func(t *testing.T) {
			bed := newBed(t, 1500, 1)
			third := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "third"}, PeerName: "farC", PeerNamespace: netlink.NsFd(int(bed.farA))}
			err := errors.Join(netlink.LinkAdd(third), netlink.LinkSetUp(third), offload.Within(bed.farA, func() error {
				l, err := netlink.LinkByName("farC")
				if err != nil {
					return err
				}
				return netlink.LinkSetUp(l)
			}))
			if err != nil {
				t.Fatal(err)
			}
			bridged(t, bed, "third")
			c, was, x := newRaw(t, bed.farA, "farC"), settings(t, bed), &wire{bed: bed}
			again := func() *Pair {
				return open(t, PairConfig{Fallback: how.fallback, Options: Options{Filter: &how.filter, Stale: 30 * time.Millisecond}})
			}
			w := again()
			if err := errors.Join(how.bind(w.A[0], qp6), w.Close()); err != nil {
				t.Fatal(err)
			}
			if w.Held() != (Held{QueuePairs: how.filter.Bound, Words: !how.filter.Bound}) {
				t.Errorf("%+v is said to be held", w.Held())
			}
			only4, only6, none := []port.QueuePair{qp4}, []port.QueuePair{qp6}, []port.QueuePair(nil)
			x.check(t, "stopped", only6, only4)
			for c.recv(10*time.Millisecond) != nil {
			}
			f := roce(100, 0, false, 7)
			for _, from := range []*raw{bed.a, bed.b} {
				crossed(t, from, c, f)
			}
			crossed(t, c, bed.a, f)
			for bed.b.recv(10*time.Millisecond) != nil || bed.a.recv(10*time.Millisecond) != nil {
			}
			// The next process goes on with it, and a stop with nothing to hold takes all away.
			w = again()
			stall(t, w)
			x.check(t, "started again", only6, only4)
			if err := errors.Join(unguard(w.A[0], qp6), w.A[0].Bind(qp6, false), w.Close()); err != nil {
				t.Fatal(err)
			}
			if now := settings(t, bed); now != was || w.Held() != (Held{}) {
				t.Errorf("was\n%s\nis\n%s", was, now)
			}
			x.check(t, "stopped, with nothing to hold", none, []port.QueuePair{qp4, qp6})
		})
	}
}
