package afxdp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/internal/ethtool"

	"github.com/quillon/quillon/internal/xsk/offload"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
)

var tbContext = context.Background()

func open(tb testing.TB, cfg PairConfig) *Pair {
	tb.Helper()
	cfg.A, cfg.B = "dutA", "dutB"
	w, err := OpenPair(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := w.Close(); err != nil {
			tb.Error("close: ", err)
		}
	})
	return w
}

// patient is a heartbeat's limit that a busy machine does not exceed.
const patient = 20 * time.Second

func TestForward(t *testing.T) {
	for _, c := range []struct {
		name     string
		mtu      int
		sizes    []int
		mode     Mode
		separate bool
		busyPoll int
	}{
		{"native", 1500, []int{64, 65, 127, 128, 512, 1024, 1514}, Auto, false, 0},
		{"separate", 1500, []int{64, 128, 1514}, Auto, true, 0},
		{"generic", 1500, []int{64, 128, 1514}, Generic, false, 0},
		{"busy-poll", 1500, []int{64, 1514}, Auto, false, 20},
		{"roce4096", 4200, []int{64, 1024, 3840, 3841, 4095, 4096, 4097, 4154, 4214}, Auto, false, 0},
		{"jumbo", 9000, []int{64, 3841, 7680, 7681, 9014}, Auto, false, 0},
		{"jumbo-separate", 9000, []int{64, 9014}, Auto, true, 0},
		{"jumbo-generic", 9000, []int{64, 9014}, Generic, false, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			bed := newBed(t, c.mtu, 1)
			w := open(t, PairConfig{Separate: c.separate, Options: Options{Mode: c.mode, Stale: patient, BusyPoll: c.busyPoll}})
			t.Log(w.Info())
			p := startPump(w.A, w.B, nil)
			seq := uint32(0)
			for round := range 3 {
				for _, size := range c.sizes {
					for tags := range 3 {
						if size+4*tags > c.mtu+14 && tags > 0 || tags == 2 && size < 68 {
							continue
						}
						seq++
						crossed(t, bed.a, bed.b, roce(size, tags, size > 90 && round == 1, seq))
						crossed(t, bed.b, bed.a, roce(size, tags, false, seq))
					}
				}
			}
			p.halt(t)
			for _, x := range []*Port{w.A[0], w.B[0]} {
				s := x.Stats()
				if s.RxPackets == 0 || s.RxPackets != s.TxPackets || s.RxDropped+s.TxDropped+s.Bypassed != 0 {
					t.Errorf("%s: %+v", x.Name(), s)
				}
				if x.part != nil {
					t.Error("a frame is half received")
				}
			}
			conserved(t, w)
		})
	}
}

// conserved wants every chunk in a ring or free.
func conserved(t *testing.T, w *Pair) {
	t.Helper()
	for i := range w.A {
		a, b := w.A[i], w.B[i]
		for a.sock.Tx.Unconsumed()+b.sock.Tx.Unconsumed() > 0 {
			_ = a.kick()
			_ = b.kick()
		}
		a.reap()
		b.reap()
		if a.jumbo != nil && a.jumbo.InUse() != 0 {
			t.Errorf("%d jumbo slots are lost", a.jumbo.InUse())
		}
		if a.pool == b.pool {
			if lost := a.pool.InUse() - a.posted - b.posted; lost != 0 {
				t.Errorf("%d chunks are lost", lost)
			}
			continue
		}
		if lost := a.pool.InUse() - a.posted + b.pool.InUse() - b.posted; lost != 0 {
			t.Errorf("%d chunks are lost", lost)
		}
	}
}

func TestFilterCrossesInKernel(t *testing.T) {
	bed := newBed(t, 1500, 1)
	w := open(t, PairConfig{Options: Options{Filter: &port.Filter{RoCE: true}, Stale: patient}})
	t.Log(w.Info())
	p := startPump(w.A, w.B, nil)
	defer func() { p.halt(t) }()

	mod := func(f []byte, at int, v byte) []byte { f[at] = v; return f }
	v1 := roce(100, 0, true, 1) // its header has the shape of RoCE v1's
	v1[12], v1[13] = 0x89, 0x15
	type probe struct {
		name  string
		frame []byte
		roce  bool // wanted by {RoCE}
		hosts bool // wanted by {RoCE, Hosts: 10.0.0.2, fd00::1}
	}
	probes := []probe{
		{"v4", roce(100, 0, false, 1), true, true},
		{"v4 one tag", roce(100, 1, false, 2), true, true},
		{"v4 two tags", roce(100, 2, false, 3), true, true},
		{"v6", roce(100, 0, true, 4), true, true},
		{"v6 two tags", roce(120, 2, true, 5), true, true},
		{"v1", v1, true, true},
		{"other source, listed destination", mod(roce(100, 0, false, 6), 29, 99), true, true},
		{"listed destination changed", mod(roce(100, 0, false, 7), 33, 99), true, false},
		{"v6 source changed", mod(roce(100, 0, true, 8), 37, 99), true, false},
		{"UDP port", mod(roce(100, 0, false, 9), 37, 0xB8), false, false},
		{"v6 UDP port", mod(roce(100, 0, true, 10), 57, 0xB8), false, false},
		{"TCP", mod(roce(100, 0, false, 11), 23, 6), false, false},
		{"fragment offset", mod(roce(100, 0, false, 12), 21, 1), true, true},
		{"more fragments", mod(roce(100, 0, false, 13), 20, 0x20), true, true},
		{"do not fragment", mod(roce(100, 0, false, 14), 20, 0x40), true, true},
		{"version 5", mod(roce(100, 0, false, 15), 14, 0x55), false, false},
		{"short header length", mod(roce(100, 0, false, 16), 14, 0x44), false, false},
		{"header longer than the frame", mod(roce(60, 0, false, 17), 14, 0x4F), false, false},
		{"v6 extension header", mod(roce(100, 0, true, 18), 20, 0), true, true},
		{"ARP", mod(roce(60, 0, false, 19), 13, 6), false, false},
		{"nothing but Ethernet", make([]byte, 14), false, false},
		{"tag and hardly anything", append(make([]byte, 12), 0x81, 0, 0, 1, 8, 0, 0x45, 0), false, false},
	}
	check := func(filter string, wanted func(probe) bool) {
		t.Helper()
		for _, x := range probes {
			for _, d := range []struct {
				from, to *raw
				in       *Port
			}{{bed.a, bed.b, w.A[0]}, {bed.b, bed.a, w.B[0]}} {
				before := d.in.Stats()
				crossed(t, d.from, d.to, x.frame)
				after := d.in.Stats()
				if got := after.RxPackets - before.RxPackets; got+(after.Bypassed-before.Bypassed) != 1 || (got == 1) != wanted(x) {
					t.Errorf("filter %s, frame %q: received %d, bypassed %d, wanted %v", filter, x.name, got, after.Bypassed-before.Bypassed, wanted(x))
				}
			}
		}
	}
	set := func(f port.Filter) {
		t.Helper()
		for _, x := range []*Port{w.A[0], w.B[0]} {
			if err := x.SetFilter(f); err != nil {
				t.Fatal(err)
			}
		}
	}
	check("RoCE", func(p probe) bool { return p.roce })
	set(port.Filter{RoCE: true, Hosts: []netip.Addr{netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("fd00::1")}})
	check("hosts", func(p probe) bool { return p.hosts })
	set(port.Filter{})
	check("nothing", func(probe) bool { return false })
	set(port.Filter{All: true})
	check("all", func(probe) bool { return true })
	set(port.Filter{RoCE: true, Watched: true})
	check("RoCE, watched", func(probe) bool { return true })
	set(port.Filter{Watched: true})
	check("nothing, watched", func(probe) bool { return true })
	if m := w.A[0].Missed(); m != 0 {
		t.Errorf("%d frames were missed", m)
	}
}

// TestWatchedStall has the worker pause while somebody looks: what nobody wants crosses, and is not missed.
func TestWatchedStall(t *testing.T) {
	bed := newBed(t, 1500, 1)
	w := open(t, PairConfig{Options: Options{Stale: 2 * time.Second, Filter: &port.Filter{RoCE: true, Closed: true}}})
	for _, x := range []*Port{w.A[0], w.B[0]} {
		if err := x.SetFilter(port.Filter{RoCE: true, Closed: true, Watched: true}); err != nil {
			t.Fatal(err)
		}
	}
	b := new(packet.Batch)
	if n, err := w.A[0].Rx(b); n != 0 || err != nil { // alive
		t.Fatal(n, err)
	}
	other := roce(100, 0, false, 1)
	other[37]++ // UDP port
	end := time.Now().Add(60 * time.Second)
	for got := 0; got == 0; b.PutAll() {
		if time.Now().After(end) {
			t.Fatal("the worker gets nothing")
		}
		if err := bed.a.send(other); err != nil {
			t.Fatal(err)
		}
		var err error
		if got, err = w.A[0].Rx(b); err != nil {
			t.Fatal(err)
		}
	}
	missed := w.A[0].Missed()
	for bed.b.recv(10*time.Millisecond) == nil {
		if time.Now().After(end) {
			t.Fatal("nothing crosses while the worker stands")
		}
		if err := bed.a.send(other); err != nil {
			t.Fatal(err)
		}
	}
	was := w.A[0].Stats()
	for range 20 {
		crossed(t, bed.a, bed.b, other)
	}
	if s := w.A[0].Stats(); s.Bypassed != was.Bypassed+20 || s.Missed != 0 || s.ShutOut != 0 || w.A[0].Missed() != missed {
		t.Errorf("%+v, was %+v; missed %d, was %d", s, was, w.A[0].Missed(), missed)
	}
}

// TestStallClosed has the worker of a closed filter pause: what it wants does
// not cross, and everything else does.
func TestStallClosed(t *testing.T) {
	bed := newBed(t, 1500, 1)
	w := open(t, PairConfig{Options: Options{Stale: 2 * time.Second, Filter: &port.Filter{RoCE: true, Closed: true}}})
	b := new(packet.Batch)
	if n, err := w.A[0].Rx(b); n != 0 || err != nil { // alive
		t.Fatal(n, err)
	}
	other := roce(100, 0, false, 1)
	other[37]++ // UDP port
	shut := func(what string) {
		t.Helper()
		before, was := w.A[0].Missed(), w.A[0].Stats()
		for k := range uint32(20) {
			if err := bed.a.send(roce(100, 0, false, k)); err != nil {
				t.Fatal(err)
			}
			// It would arrive before this one.
			crossed(t, bed.a, bed.b, other)
		}
		if n := w.A[0].Missed() - before; n != 20 {
			t.Errorf("%s: %d frames counted, not 20", what, n)
		}
		if s := w.A[0].Stats(); s.ShutOut != was.ShutOut+20 || s.Missed != was.Missed || s.Bypassed != was.Bypassed+20 {
			t.Errorf("%s: %+v, was %+v", what, s, was)
		}
	}
	// The worker does nothing until its heartbeat is stale.
	for end := time.Now().Add(60 * time.Second); w.A[0].Missed() == 0; {
		if time.Now().After(end) {
			t.Fatal("no frame was missed while the worker stood")
		}
		if err := bed.a.send(roce(100, 0, false, 2)); err != nil {
			t.Fatal(err)
		}
		crossed(t, bed.a, bed.b, other)
	}
	shut("stalled")
	// Late frames are dropped, and the next one is taken.
	if n, err := w.A[0].Rx(b); n != 0 || err != nil {
		t.Fatal(n, err)
	}
	if err := bed.a.send(roce(100, 0, false, 3)); err != nil {
		t.Fatal(err)
	}
	if n, err := w.A[0].Rx(b); n != 1 || err != nil {
		t.Fatalf("received %d, %v", n, err)
	}
	b.PutAll()
	// An open filter lets them cross.
	for _, x := range []*Port{w.A[0], w.B[0]} {
		if err := x.SetFilter(port.Filter{}); err != nil {
			t.Fatal(err)
		}
	}
	crossed(t, bed.a, bed.b, roce(100, 0, false, 4))
	conserved(t, w)
}

// TestHold: of a filter that is Closed, frames wait in the ring for a worker that gets no processor, where those
// of an open one go past it; also when the filter changes meanwhile.
func TestHold(t *testing.T) {
	bed := newBed(t, 1500, 1)
	all := port.Filter{All: true}
	closed := port.Filter{All: true, Closed: true}
	w := open(t, PairConfig{Options: Options{Filter: &closed}})
	b := new(packet.Batch)
	// pause has the worker do nothing for longer than DefaultStale while frames come, and tells how many it
	// gets then; a pause that a busy machine made as long as DefaultHold is made again.
	pause := func() (got int) {
		for {
			start, missed := time.Now(), w.A[0].Missed()
			if n, err := w.A[0].Rx(b); n != 0 || err != nil {
				t.Fatal(n, err)
			}
			_ = unix.Nanosleep(&unix.Timespec{Nsec: int64(DefaultStale + DefaultStale/2)}, nil)
			for k := range uint32(20) {
				if err := bed.a.send(roce(100, 0, false, k)); err != nil {
					t.Fatal(err)
				}
			}
			n, err := w.A[0].Rx(b)
			if err != nil {
				t.Fatal(err)
			}
			b.PutAll()
			if time.Since(start) < DefaultHold/2 {
				if told := w.A[0].Missed() != missed; told != (n == 0) {
					t.Errorf("of %d frames the worker got %d, and that some were missed was told: %v", 20, n, told)
				}
				return n
			}
			for _, x := range []*Port{w.A[0], w.B[0]} { // what one breath left
				for n := 1; n > 0; b.PutAll() {
					if n, err = x.Rx(b); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
	}
	for _, c := range []struct {
		filter port.Filter
		want   int
	}{{closed, 20}, {all, 0}, {closed, 20}} {
		for _, x := range []*Port{w.A[0], w.B[0]} {
			if err := x.SetFilter(c.filter); err != nil {
				t.Fatal(err)
			}
		}
		before := w.A[0].Stats()
		if n := pause(); n != c.want {
			t.Errorf("%+v: the worker got %d frames after its pause, not %d; %+v, was %+v", c.filter, n, c.want, w.A[0].Stats(), before)
		}
	}
	if s := w.A[0].Stats(); s.Missed == 0 || s.ShutOut != 0 {
		t.Errorf("%+v: want frames that were missed, and none shut out", s)
	}
	conserved(t, w)
}

// TestStall has the worker pause: frames cross in the kernel meanwhile, and
// those that it was too late for are not sent behind them.
func TestStall(t *testing.T) {
	bed := newBed(t, 1500, 1)
	w := open(t, PairConfig{Options: Options{Stale: 2 * time.Second}})
	b := new(packet.Batch)
	rx := func(want int) {
		t.Helper()
		n, err := w.A[0].Rx(b)
		if err != nil || n != want {
			t.Fatalf("received %d (%v), not %d", n, err, want)
		}
	}
	rx(0)
	late := roce(100, 0, false, 1)
	if err := bed.a.send(late); err != nil {
		t.Fatal(err)
	}
	if w.A[0].Missed() != 0 {
		t.Fatal("missed before the stall")
	}
	// The worker does nothing until frames cross.
	for end := time.Now().Add(60 * time.Second); ; {
		fresh := roce(100, 0, false, 2)
		if err := bed.a.send(fresh); err != nil {
			t.Fatal(err)
		}
		if got := bed.b.recv(time.Millisecond); got != nil {
			if !bytes.Equal(got, fresh) {
				t.Fatalf("got %x", got)
			}
			break
		}
		if time.Now().After(end) {
			t.Fatal("nothing crossed while the worker stood")
		}
	}
	missed := w.A[0].Missed()
	if missed == 0 {
		t.Error("a missed frame was not reported")
	}
	rx(0) // the late ones are dropped, and the apps hear of it first
	if w.A[0].Missed() <= missed {
		t.Error("the worker's own pause was not reported")
	}
	s := w.A[0].Stats()
	if s.RxDropped == 0 || s.RxPackets != 0 {
		t.Errorf("late frames: %+v", s)
	}
	if err := bed.a.send(late); err != nil {
		t.Fatal(err)
	}
	rx(1)
	if !bytes.Equal(b.At(0).Bytes(), late) {
		t.Errorf("got %x", b.At(0).Bytes())
	}
	b.PutAll()
	conserved(t, w)
}

func TestQueues(t *testing.T) {
	bed := newBed(t, 1500, 4)
	w := open(t, PairConfig{Options: Options{Stale: patient}})
	if len(w.A) != 4 || len(w.B) != 4 {
		t.Fatalf("%d and %d queues\n%v", len(w.A), len(w.B), w.Info())
	}
	p := startPump(w.A, w.B, nil)
	for i := range 64 {
		crossed(t, bed.a, bed.b, roce(100, 0, false, uint32(i)))
		crossed(t, bed.b, bed.a, roce(100, 0, false, uint32(i)))
	}
	p.halt(t)
	used, sum := 0, uint64(0)
	for _, x := range w.A {
		if n := x.Stats().RxPackets; n > 0 {
			used++
			sum += n
		}
	}
	if sum != 64 {
		t.Errorf("%d of 64 frames were received", sum)
	}
	t.Logf("%d queues used", used)

	few, err := OpenPair(PairConfig{A: "dutA", B: "dutB", Options: Options{Queues: 2}})
	if err == nil {
		_ = few.Close()
		t.Fatal("opened a pair that is open")
	}
	if !strings.Contains(err.Error(), "in use") {
		t.Error(err)
	}
	// The failed attempt left the wire as it was.
	p = startPump(w.A, w.B, nil)
	crossed(t, bed.a, bed.b, roce(100, 0, false, 1))
	p.halt(t)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	few, err = OpenPair(PairConfig{A: "dutA", B: "dutB", Options: Options{Queues: 2}})
	if err != nil {
		t.Fatal(err)
	}
	if u := few.Info().Interfaces[0].Unopened; len(u) != 2 || u[0] != 2 {
		t.Errorf("unopened: %v", u)
	}
	if err := few.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestUnequalQueues: one interface has four queues, the other one only one. What comes in on any of the four is received, and nothing is dropped or crosses unseen.
func TestUnequalQueues(t *testing.T) {
	bed := newBed(t, 1500, 4)
	if out, err := exec.Command("ethtool", "-L", "dutB", "rx", "1", "tx", "1").CombinedOutput(); err != nil {
		t.Skipf("%v: %s", err, out)
	}
	for _, x := range []struct{ asked, a, b int }{{0, 4, 1}, {3, 3, 1}, {1, 1, 1}} {
		w, err := OpenPair(PairConfig{A: "dutA", B: "dutB", Options: Options{Queues: x.asked, Stale: patient, Filter: &port.Filter{All: true, Closed: true}}})
		if err != nil {
			t.Fatal(err)
		}
		if len(w.A) != x.a || len(w.B) != x.b {
			t.Errorf("%d asked for: %d and %d", x.asked, len(w.A), len(w.B))
		}
		if told := strings.Contains(strings.Join(w.Info().Notes, "\n"), "dutA: they are dropped"); told == (x.a == 4) {
			t.Errorf("%d asked for: notes %q", x.asked, w.Info().Notes)
		}
		if x.asked == 0 {
			// The pump of A's other queues sends to the one queue that B has, as a worker does.
			b := []*Port{w.B[0], w.B[0], w.B[0], w.B[0]}
			p := startPump(w.A, b, nil)
			for i := range 64 {
				f := roce(100, 0, false, uint32(i))
				f[35] = byte(i) // of the UDP source port: another flow, and queue
				crossed(t, bed.a, bed.b, f)
				crossed(t, bed.b, bed.a, f)
			}
			p.halt(t)
			if w.A[1].Stats().RxPackets+w.A[2].Stats().RxPackets+w.A[3].Stats().RxPackets == 0 {
				t.Error("all frames came in on one queue")
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestMoreQueues: who asks for more queues than there are gets those that there are, and is told.
func TestMoreQueues(t *testing.T) {
	newBed(t, 1500, 1)
	w := open(t, PairConfig{Options: Options{Queues: 2}})
	if n := w.Info().Notes; len(w.A) != 1 || !slices.Contains(n, "dutA and dutB have only 1 of the 2 queues that were asked for (ethtool -L)") {
		t.Errorf("%d queues, notes %q", len(w.A), n)
	}
}

// Whoever has a pair open is there for Unserved, whether it moves frames or not, and is not when it is closed.
func TestUnserved(t *testing.T) {
	newBed(t, 1500, 2)
	if err := Unserved("dutA"); err != nil {
		t.Fatal(err)
	}
	w, err := OpenPair(PairConfig{A: "dutA", B: "dutB"})
	if err != nil {
		t.Fatal(err)
	}
	if err := Unserved("dutB"); err == nil || !strings.Contains(err.Error(), "interface dutB has AF_XDP sockets of a process that lives") {
		t.Error(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	for _, dev := range []string{"dutA", "dutB"} {
		if err := Unserved(dev); err != nil {
			t.Error(err)
		}
	}
}

// settings are everything that Close has to put back.
func settings(t *testing.T, bed *bed) string {
	t.Helper()
	var b strings.Builder
	look := func(name string) func() error {
		return func() error {
			l, err := netlink.LinkByName(name)
			if err != nil {
				return err
			}
			e, err := ethtool.Open()
			if err != nil {
				return err
			}
			defer e.Close()
			f, err := e.Features(name)
			fmt.Fprintf(&b, "%s promisc=%d xdp=%v %v\n", name, l.Attrs().Promisc, l.Attrs().Xdp != nil && l.Attrs().Xdp.Attached, f)
			return err
		}
	}
	for _, x := range []struct {
		ns   netns.NsHandle
		name string
	}{{bed.near, "dutA"}, {bed.near, "dutB"}, {bed.farA, "farA"}, {bed.farB, "farB"}} {
		if err := offload.Within(x.ns, look(x.name)); err != nil {
			t.Fatal(err)
		}
	}
	return b.String()
}

// rename gives an interface of ns another name, which it may have only while it is down.
func rename(t *testing.T, ns netns.NsHandle, from, to string) {
	t.Helper()
	err := offload.Within(ns, func() error {
		l, err := netlink.LinkByName(from)
		if err != nil {
			return err
		}
		return errors.Join(netlink.LinkSetDown(l), netlink.LinkSetName(l, to), netlink.LinkSetUp(l))
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestCloseRestoresRenamed: settings belong to the interface, whatever it is called at the end.
func TestCloseRestoresRenamed(t *testing.T) {
	bed := newBed(t, 1500, 1)
	was := settings(t, bed)
	w := open(t, PairConfig{})
	rename(t, bed.near, "dutA", "uplink0")
	rename(t, bed.farB, "farB", "other0")
	if err := w.Close(); err != nil {
		t.Error(err)
	}
	rename(t, bed.near, "uplink0", "dutA")
	rename(t, bed.farB, "other0", "farB")
	if now := settings(t, bed); now != was {
		t.Errorf("was\n%s\nis\n%s", was, now)
	}
}

func TestCloseRestores(t *testing.T) {
	bed := newBed(t, 1500, 1)
	was := settings(t, bed)
	w := open(t, PairConfig{})
	during := settings(t, bed)
	if during == was || len(w.Info().Interfaces[0].Changed) == 0 {
		t.Error("nothing was changed")
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if now := settings(t, bed); now != was {
		t.Errorf("was\n%s\nis\n%s", was, now)
	}
	if _, err := w.A[0].Rx(new(packet.Batch)); err != port.ErrClosed {
		t.Error("a closed port receives: ", err)
	}
	_ = w.A[0].Stats()

	// A kept wire remembers what to put back, over several owners.
	for range 2 {
		w = open(t, PairConfig{Keep: true})
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		crossed(t, bed.a, bed.b, roce(100, 0, false, 1))
		if now := settings(t, bed); now != during {
			t.Errorf("kept wire: was\n%s\nis\n%s", during, now)
		}
	}
	if err := Detach("dutA", "dutB"); err != nil {
		t.Fatal(err)
	}
	if now := settings(t, bed); now != was {
		t.Errorf("after Detach: was\n%s\nis\n%s", was, now)
	}
	if err := Detach("dutA", "dutB"); err != nil {
		t.Error("Detach of nothing: ", err)
	}

	// A wire without a process, made twice, then taken over.
	for i := range 2 {
		info, err := Wire("dutA", "dutB")
		if err != nil || !info.Wire || info.Resumed != (i == 1) {
			t.Fatalf("%+v, %v", info, err)
		}
		crossed(t, bed.a, bed.b, roce(100, 0, false, 1))
		crossed(t, bed.b, bed.a, roce(1400, 1, true, 1))
	}
	if w = open(t, PairConfig{}); !w.Info().Resumed {
		t.Error("the wire was not taken over")
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if now := settings(t, bed); now != was {
		t.Errorf("after a wire: was\n%s\nis\n%s", was, now)
	}

	// A refused Open changes nothing.
	for _, c := range []PairConfig{
		{A: "dutA", B: "nosuch"}, {A: "dutA", B: "dutA"}, {A: "dutA", B: "dutB", Options: Options{Ring: 100}},
		{A: "dutA", B: "dutB", Options: Options{Frames: 64}}, {A: "dutA", B: "dutB", Options: Options{Stale: time.Millisecond}},
		{A: "dutA", B: "lo"},
	} {
		if _, err := OpenPair(c); err == nil {
			t.Errorf("%+v was accepted", c)
		} else {
			t.Log(err)
		}
	}
	if now := settings(t, bed); now != was {
		t.Errorf("after refusals: was\n%s\nis\n%s", was, now)
	}
}

func TestDevice(t *testing.T) {
	bed := newBed(t, 1500, 1)
	v, err := Open(Config{Interface: "dutA", Index: 7})
	if err != nil {
		t.Fatal(err)
	}
	t.Log(v.Info())
	p, b := v.Ports[0], new(packet.Batch)
	for i := range 200 {
		f := roce(64+i*7, 0, false, uint32(i))
		if err := bed.a.send(f); err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(60 * time.Second); b.Len() == 0 && time.Now().Before(end); {
			if err := p.Wait(tbContext, 10*time.Millisecond); err != nil {
				t.Fatal(err)
			}
			if _, err := p.Rx(b); err != nil {
				t.Fatal(err)
			}
		}
		if b.Len() != 1 || !bytes.Equal(b.At(0).Bytes(), f) || b.At(0).Port != 7 || b.At(0).RxTime == 0 {
			t.Fatal("the frame did not arrive as it was")
		}
		if i%2 == 0 { // a frame of another pool
			other, err := packet.NewPool(1, 2048, nil)
			if err != nil {
				t.Fatal(err)
			}
			x := other.Get()
			x.SetBytes(b.At(0).Bytes())
			b.PutAll()
			b.Add(x)
			if n, err := p.Tx(b); n != 1 || err != nil || other.Free() != 1 {
				t.Fatal(n, err)
			}
		} else if n, err := p.Tx(b); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		if got := bed.a.recv(2 * time.Second); !bytes.Equal(got, f) {
			t.Fatalf("sent %d bytes, got %d", len(f), len(got))
		}
	}
	// Unsendable frames are taken, dropped and counted.
	other, err := packet.NewPool(2, 4096, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{5, 2000} {
		x := other.Get()
		x.SetBytes(make([]byte, n))
		b.Add(x)
	}
	if n, err := p.Tx(b); n != 2 || err != nil || p.Stats().TxDropped != 2 || other.Free() != 2 {
		t.Error(n, err, p.Stats())
	}
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	if l, _ := netlink.LinkByName("dutA"); l.Attrs().Xdp != nil && l.Attrs().Xdp.Attached {
		t.Error("a program is still attached")
	}
}

// TestNoAllocation counts on a live veth.
func TestNoAllocation(t *testing.T) {
	bed := newBed(t, 9000, 1)
	w := open(t, PairConfig{Options: Options{Stale: patient}})
	b := new(packet.Batch)
	small, big := roce(100, 0, false, 1), roce(9000, 0, false, 2)
	ctx := context.Background()
	moved := 0
	allocs := testing.AllocsPerRun(500, func() {
		for _, f := range [][]byte{small, big} {
			if _, err := unix.Write(bed.a.fd, f); err != nil {
				t.Fatal(err)
			}
			for try := 0; try < 100; try++ {
				if err := w.A[0].Wait(ctx, time.Millisecond); err != nil {
					t.Fatal(err)
				}
				n, err := w.A[0].Rx(b)
				if err != nil {
					t.Fatal(err)
				}
				if n > 0 {
					break
				}
			}
			n, err := w.B[0].Tx(b)
			if err != nil {
				t.Fatal(err)
			}
			moved += n
		}
		_ = w.A[0].Missed()
	})
	if allocs != 0 {
		t.Errorf("%v allocations for two frames", allocs)
	}
	if moved < 900 {
		t.Errorf("%d frames of 1000 were moved", moved)
	}
}

// TestIdle: a worker that waits longer than the heartbeat's limit is alive.
// TestFullBatches: the kernel hears of a full batch with the fourth one, with
// one that is not full, at the second Rx, or at Wait.
func TestFullBatches(t *testing.T) {
	newBed(t, 1500, 1)
	w := open(t, PairConfig{Options: Options{Stale: patient}})
	p := w.B[0]
	var b, none packet.Batch
	send := func(n int) {
		t.Helper()
		for range n {
			x := p.pool.Get()
			x.SetBytes(roce(64, 0, false, 1))
			b.Add(x)
		}
		if k, err := p.Tx(&b); err != nil || k != n {
			t.Fatalf("took %d of %d: %v", k, n, err)
		}
	}
	left := func(when string, want int) {
		t.Helper()
		if n := p.sock.Tx.Unconsumed(); n != want {
			t.Errorf("%s: %d frames wait, want %d", when, n, want)
		}
	}
	rx := func() {
		t.Helper()
		if _, err := p.Rx(&none); err != nil {
			t.Fatal(err)
		}
		none.PutAll()
	}
	const full = packet.MaxBatch
	for i := range maxUnsent / full {
		left("full batches", i*full)
		send(full)
	}
	left("enough full batches", 0)
	send(full)
	send(1)
	left("and one more", 0)
	send(full)
	rx()
	left("first Rx", full)
	rx()
	left("second Rx", 0)
	send(full)
	if err := p.Wait(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	left("Wait", 0)
	// A frame of a sparse flow is told at once, and so are full batches for a while.
	at := func(rx int64, sparse bool) {
		for i := range full {
			x := p.pool.Get()
			x.SetBytes(roce(64, 0, false, 1))
			x.RxTime, x.Sparse = rx, sparse && i == 5
			b.Add(x)
		}
		if k, err := p.Tx(&b); err != nil || k != full {
			t.Fatalf("took %d: %v", k, err)
		}
	}
	at(1000, true)
	left("a sparse one", 0)
	at(int64(hurryFor), false)
	left("soon after it", 0)
	at(1000+int64(hurryFor), false)
	left("later", full)
	if err := p.kick(); err != nil {
		t.Error(err)
	}
	conserved(t, w)
}

func TestIdle(t *testing.T) {
	bed := newBed(t, 1500, 1)
	const stale = time.Second
	w := open(t, PairConfig{Options: Options{Stale: stale}})
	b := new(packet.Batch)
	for _, x := range []*Port{w.A[0], w.B[0]} {
		if _, err := x.Rx(b); err != nil {
			t.Fatal(err)
		}
	}
	wait := func(others []port.Port) {
		t.Helper()
		ok, err := w.A[0].WaitAny(tbContext, others, 2*stale)
		if !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	wait([]port.Port{w.B[0]})
	if err := w.A[0].Wait(tbContext, 2*stale); err != nil {
		t.Fatal(err)
	}
	// A frame on either wakes it, and is received.
	for _, d := range []struct {
		far  *raw
		port *Port
	}{{bed.a, w.A[0]}, {bed.b, w.B[0]}} {
		if err := d.far.send(roce(100, 0, false, 1)); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if err := w.A[0].Wait(tbContext, time.Minute); err != nil || time.Since(start) > 30*time.Second {
			t.Fatal("not woken: ", err)
		}
		if n, err := d.port.Rx(b); n != 1 || err != nil {
			t.Fatalf("%s: received %d, %v; missed %d", d.port.Name(), n, err, d.port.Missed())
		}
		b.PutAll()
	}
	ctx, cancel := context.WithCancel(tbContext)
	cancel()
	if err := w.A[0].Wait(ctx, time.Minute); err != context.Canceled {
		t.Error(err)
	}
	if ok, _ := w.A[0].WaitAny(tbContext, []port.Port{other{}}, time.Minute); ok {
		t.Error("waited for a port without a file")
	}
}

type other struct{ port.Port }

// TestTCP has the kernels at both far ends, with all their offloads on, talk
// TCP through the pair: checksums and segments must be whole, in the process
// and in the kernel.
func TestTCP(t *testing.T) {
	for _, c := range []struct {
		name   string
		filter port.Filter
		mode   Mode
	}{{"process", port.Filter{All: true}, Auto}, {"kernel", port.Filter{RoCE: true}, Auto}, {"generic", port.Filter{All: true}, Generic}, {"kernel generic", port.Filter{RoCE: true}, Generic}} {
		t.Run(c.name, func(t *testing.T) {
			bed := newBed(t, 1500, 1)
			for _, x := range []struct {
				ns         netns.NsHandle
				name, addr string
			}{{bed.farA, "farA", "10.9.0.1/24"}, {bed.farB, "farB", "10.9.0.2/24"}} {
				err := offload.Within(x.ns, func() error {
					l, err := netlink.LinkByName(x.name)
					if err != nil {
						return err
					}
					a, err := netlink.ParseAddr(x.addr)
					if err != nil {
						return err
					}
					return netlink.AddrAdd(l, a)
				})
				if err != nil {
					t.Fatal(err)
				}
			}
			w := open(t, PairConfig{Options: Options{Filter: &c.filter, Mode: c.mode, Stale: patient}})
			p := startPump(w.A, w.B, nil)
			defer p.halt(t)
			const total = 4 << 20
			got := make(chan error, 1)
			listening := make(chan int, 1)
			go func() {
				got <- offload.Within(bed.farB, func() error {
					fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
					if err != nil {
						return err
					}
					defer unix.Close(fd)
					if err := errors.Join(unix.Bind(fd, &unix.SockaddrInet4{Port: 7000}), unix.Listen(fd, 1)); err != nil {
						return err
					}
					listening <- fd
					conn, _, err := unix.Accept4(fd, unix.SOCK_CLOEXEC)
					if err != nil {
						return err
					}
					defer unix.Close(conn)
					buf, sum := make([]byte, 1<<16), 0
					for {
						n, err := unix.Read(conn, buf)
						if err != nil {
							return err
						}
						if n == 0 {
							break
						}
						for i, v := range buf[:n] {
							if v != byte((sum+i)*31) {
								return fmt.Errorf("byte %d is wrong", sum+i)
							}
						}
						sum += n
					}
					if sum != total {
						return fmt.Errorf("%d bytes of %d", sum, total)
					}
					return nil
				})
			}()
			<-listening
			err := offload.Within(bed.farA, func() error {
				fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
				if err != nil {
					return err
				}
				defer unix.Close(fd)
				if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 3000); err != nil {
					return err
				}
				if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_SYNCNT, 2); err != nil {
					return err
				}
				if err := unix.Connect(fd, &unix.SockaddrInet4{Port: 7000, Addr: [4]byte{10, 9, 0, 2}}); err != nil {
					return fmt.Errorf("connect: %w", err)
				}
				data := make([]byte, total)
				for i := range data {
					data[i] = byte(i * 31)
				}
				for len(data) > 0 {
					n, err := unix.Write(fd, data)
					if err != nil {
						return err
					}
					data = data[n:]
				}
				return nil
			})
			if err != nil {
				t.Fatal(err, w.Info())
			}
			if err := <-got; err != nil {
				t.Fatal(err)
			}
			s := w.A[0].Stats()
			if (s.RxPackets > s.Bypassed+s.Missed) != c.filter.All {
				t.Errorf("%+v", s)
			}
		})
	}
}

// TestLinkGone: the interface vanishes under the port.
func TestLinkGone(t *testing.T) {
	newBed(t, 1500, 1)
	w := open(t, PairConfig{})
	b := new(packet.Batch)
	if _, err := w.A[0].Rx(b); err != nil {
		t.Fatal(err)
	}
	l, err := netlink.LinkByName("dutA")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkDel(l); err != nil {
		t.Fatal(err)
	}
	if err := w.A[0].Wait(tbContext, 10*time.Second); !errors.Is(err, port.ErrClosed) || !strings.Contains(err.Error(), "dutA") {
		t.Errorf("Wait says %v", err)
	}
	if n, err := w.A[0].Rx(b); n != 0 || err != nil && !errors.Is(err, port.ErrClosed) {
		t.Error(n, err)
	}
	x := w.A[0].Pool().Get()
	x.SetBytes(roce(100, 0, false, 1))
	b.Add(x)
	if _, err := w.A[0].Tx(b); err != nil && !errors.Is(err, port.ErrClosed) {
		t.Error(err)
	}
	b.PutAll()
	if err := w.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
}

// TestOpenFails: what is refused at the last moment leaves no file open and no setting
// changed.
func TestOpenFails(t *testing.T) {
	bed := newBed(t, 1500, 1)
	la := netlink.NewLinkAttrs()
	la.Name = "br0"
	d := &netlink.Bridge{LinkAttrs: la} // which runs no native XDP
	if err := errors.Join(netlink.LinkAdd(d), netlink.LinkSetUp(d)); err != nil {
		t.Fatal(err)
	}
	files := func() int {
		list, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	was, open := settings(t, bed), 0
	for round := range 4 {
		for _, c := range []PairConfig{
			{A: "dutA", B: "br0", Options: Options{Mode: Native}},
			{A: "br0", B: "dutA", Options: Options{Mode: Native}},
			{A: "dutA", B: "lo"},
			{A: "dutA", B: "nosuch"},
			{A: "dutA", B: "dutB", Options: Options{Copy: CopyNever}},
			{A: "dutA", B: "dutB", Options: Options{Copy: CopyNever, Mode: Generic}},
			{A: "dutA", B: "dutB", Options: Options{Filter: &port.Filter{RoCE: true, Hosts: []netip.Addr{{}}}}},
		} {
			if w, err := OpenPair(c); err == nil {
				t.Errorf("%s and %s were opened: %v", c.A, c.B, w.Close())
			}
		}
		if v, err := Open(Config{Interface: "br0", Options: Options{Mode: Native}}); err == nil {
			t.Errorf("a bridge runs native XDP: %v", v.Close())
		}
		if round == 0 {
			open = files()
		}
	}
	if n := files(); n != open {
		t.Errorf("%d files are open, %d were", n, open)
	}
	if now := settings(t, bed); now != was {
		t.Errorf("was\n%s\nis\n%s", was, now)
	}
}

// TestCopy: a veth has no zero-copy. Who allows nothing else is told so.
func TestCopy(t *testing.T) {
	newBed(t, 1500, 1)
	w, err := OpenPair(PairConfig{A: "dutA", B: "dutB", Keep: true, Options: Options{Copy: CopyAlways, Mode: Generic}})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	refused := func(want string) {
		t.Helper()
		w, err := OpenPair(PairConfig{A: "dutA", B: "dutB", Options: Options{Copy: CopyNever}})
		if err == nil {
			err = w.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	refused("interface dutA is one end of runs generic XDP, which has no zero-copy")
	if err := Detach("dutA", "dutB"); err != nil {
		t.Fatal(err)
	}
	refused("interface dutA: its driver (veth) has no zero-copy for queue 0 and an MTU of 1500")
}

// TestUnequalMTU: of two interfaces with different MTUs it is said what cannot cross.
func TestUnequalMTU(t *testing.T) {
	newBed(t, 1500, 1)
	notes := func() string {
		w, err := OpenPair(PairConfig{A: "dutA", B: "dutB"})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		return strings.Join(w.Info().Notes, "\n")
	}
	if n := notes(); n != "" {
		t.Error(n)
	}
	for _, c := range []struct {
		name string
		mtu  int
		want string
	}{
		{"dutA", 1400, "dutB has an MTU of 1500, dutA of only 1400: longer frames cannot cross; give both the same (ip link set dutA mtu 1500)"},
		{"dutB", 1300, "dutA has an MTU of 1400, dutB of only 1300: longer frames cannot cross; give both the same (ip link set dutB mtu 1400)"},
	} {
		l, err := netlink.LinkByName(c.name)
		if err == nil {
			err = netlink.LinkSetMTU(l, c.mtu)
		}
		if err != nil {
			t.Fatal(err)
		}
		if n := notes(); n != c.want {
			t.Errorf("%q, want %q", n, c.want)
		}
	}
}

// TestTooLong: a frame that crosses in the kernel and is longer than the other interface sends is counted, with and without a tag, in native
// and in generic mode; a tag is not counted as length. So is one after the MTU was changed.
func TestTooLong(t *testing.T) {
	for _, mode := range []Mode{Native, Generic} {
		bed := newBed(t, 2000, 1)
		w := open(t, PairConfig{Options: Options{Mode: mode, Filter: &port.Filter{}}})
		far := func(mtu int) {
			l, err := netlink.LinkByName("dutB")
			if err == nil {
				err = netlink.LinkSetMTU(l, mtu)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		want := uint64(0)
		for _, mtu := range []int{1500, 1400} {
			far(mtu)
			for tags := range 2 {
				crossed(t, bed.a, bed.b, roce(14+mtu+4*tags, tags, false, 1))
				// The kernel lets a frame without a tag be as long as one with a tag.
				if err := bed.a.send(roce(14+mtu+5, tags, false, 2)); err != nil {
					t.Fatal(err)
				}
				want++
				crossed(t, bed.a, bed.b, roce(300, tags, false, 3))
			}
		}
		if s := w.A[0].Stats(); s.TooLong != want || s.Bypassed < want {
			t.Errorf("%v: %+v: want %d too long", mode, s, want)
		}
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestMoved: an interface that is moved to another network namespace is gone for
// the pair. It keeps its program, which Detach takes off where it is now, and
// puts back its settings unless it got another number there.
func TestMoved(t *testing.T) {
	for _, renumbered := range []bool{false, true} {
		bed := newBed(t, 1500, 1)
		was := settings(t, bed)
		if renumbered {
			err := offload.Within(bed.farB, func() error {
				for _, n := range []string{"o1", "o2", "o3"} {
					la := netlink.NewLinkAttrs()
					la.Name = n
					if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: la, PeerName: n + "p"}); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		w := open(t, PairConfig{})
		if _, err := w.A[0].Rx(new(packet.Batch)); err != nil {
			t.Fatal(err)
		}
		l, err := netlink.LinkByName("dutA")
		if err == nil {
			err = netlink.LinkSetNsFd(l, int(bed.farB))
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := w.A[0].Wait(tbContext, 10*time.Second); !errors.Is(err, port.ErrClosed) || !strings.Contains(err.Error(), "dutA") {
			t.Errorf("Wait says %v", err)
		}
		if err := w.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		err = offload.Within(bed.farB, func() error { return Detach("dutA", "dutA") })
		if unknown := err != nil && strings.Contains(err.Error(), "interface dutA is free, and its settings stay as they are"); unknown != renumbered {
			t.Errorf("renumbered %v: %v", renumbered, err)
		}
		err = offload.Within(bed.farB, func() error {
			l, err := netlink.LinkByName("dutA")
			if err == nil {
				err = netlink.LinkSetNsFd(l, int(bed.near))
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		now := settings(t, bed)
		if containsXDP(now) {
			t.Errorf("renumbered %v: a program stays: %s", renumbered, now)
		}
		if !renumbered && now != was {
			t.Errorf("was\n%s\nis\n%s", was, now)
		}
	}
}

// TestMTURaised: frames for which nobody had memory when the pair was opened cross in
// the kernel, and the apps are told.
func TestMTURaised(t *testing.T) {
	for _, mode := range []Mode{Auto, Generic} {
		for _, mtu := range []int{1500, 5000} {
			bed := newBed(t, mtu, 1)
			w := open(t, PairConfig{Options: Options{Stale: patient, Mode: mode}})
			p := startPump(w.A, w.B, nil)
			for _, x := range []struct {
				ns   netns.NsHandle
				name string
			}{{bed.farA, "farA"}, {bed.farB, "farB"}, {bed.near, "dutA"}, {bed.near, "dutB"}} {
				err := offload.Within(x.ns, func() error {
					l, err := netlink.LinkByName(x.name)
					if err != nil {
						return err
					}
					return netlink.LinkSetMTU(l, 9000)
				})
				if err != nil {
					t.Fatal(err)
				}
			}
			for n, size := range []int{mtu + 14, mtu + overhead, mtu + overhead + 1, mtu + 1000, 9014} {
				before := w.A[0].Stats()
				crossed(t, bed.a, bed.b, roce(size, 0, false, uint32(n)))
				crossed(t, bed.b, bed.a, roce(size, 0, false, uint32(n)))
				s := w.A[0].Stats()
				if long := size > mtu+overhead; (s.Missed > before.Missed) != long || s.Bypassed+s.ShutOut > 0 || (s.RxPackets > before.RxPackets) == long || s.RxDropped > 0 {
					t.Errorf("%d bytes, MTU %d: was %+v, is %+v", size, mtu, before, s)
				}
			}
			p.halt(t)
			if m := w.A[0].Missed(); m < 3 {
				t.Errorf("%d missed", m)
			}
			conserved(t, w)
			if err := w.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestDown: of what an interface that is down was given few frames are sent when it
// is up again.
func TestDown(t *testing.T) {
	bed := newBed(t, 1500, 1)
	w := open(t, PairConfig{Options: Options{Stale: patient}})
	p := w.B[0]
	l, err := netlink.LinkByName("dutB")
	if err != nil {
		t.Fatal(err)
	}
	send := func(frames int, seq uint32) {
		t.Helper()
		var b packet.Batch
		for range frames {
			x := p.pool.Get()
			x.SetBytes(roce(100, 0, false, seq))
			b.Add(x)
		}
		if n, err := p.Tx(&b); n != frames || err != nil || b.Len() != 0 {
			t.Fatalf("took %d of %d, %v", n, frames, err)
		}
	}
	for round := range 3 {
		if err := netlink.LinkSetDown(l); err != nil {
			t.Fatal(err)
		}
		was, given := p.Stats().TxDropped, uint64(0)
		for range 40 { // more than a ring holds
			send(packet.MaxBatch, 1)
			send(3, 1)
			given += packet.MaxBatch + 3
		}
		if n := given - (p.Stats().TxDropped - was); n > maxUnsent {
			t.Errorf("%d frames of %d are kept", n, given)
		}
		if err := p.Wait(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		if err := netlink.LinkSetUp(l); err != nil {
			t.Fatal(err)
		}
		seq, old := uint32(10+round), 0
		want := roce(100, 0, false, seq)
		for try := 0; ; try++ { // the carrier comes in its own time
			send(1, seq)
			got := bed.b.recv(10 * time.Millisecond)
			for ; bytes.Equal(got, roce(100, 0, false, 1)); got = bed.b.recv(10 * time.Millisecond) {
				old++
			}
			if bytes.Equal(got, want) {
				break
			}
			if got != nil || try == 500 {
				t.Fatalf("of %d bytes after round %d came %d", len(want), round, len(got))
			}
		}
		if old > maxUnsent {
			t.Errorf("%d frames came late", old)
		}
		for bed.b.recv(10*time.Millisecond) != nil {
		}
	}
	conserved(t, w)
}

// TestPeerNamespaceGoes: a port does not keep the namespace of a veth's other end,
// and puts the settings there back while there is one.
func TestPeerNamespaceGoes(t *testing.T) {
	bed := newBed(t, 1500, 1)
	name := fmt.Sprintf("quillon-test-%d", os.Getpid())
	ns := netns.None()
	err := offload.Within(bed.near, func() (err error) {
		ns, err = netns.NewNamed(name)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	gone := sync.OnceFunc(func() {
		if err := errors.Join(ns.Close(), netns.DeleteNamed(name)); err != nil {
			t.Error(err)
		}
	})
	defer gone()
	la := netlink.NewLinkAttrs()
	la.Name = "dutC"
	err = errors.Join(
		netlink.LinkAdd(&netlink.Veth{LinkAttrs: la, PeerName: "farC", PeerNamespace: netlink.NsFd(int(ns))}),
		netlink.LinkSetUp(&netlink.Veth{LinkAttrs: la}))
	if err != nil {
		t.Fatal(err)
	}
	err = offload.Within(ns, func() error {
		la.Name = "farC"
		return netlink.LinkSetUp(&netlink.Veth{LinkAttrs: la})
	})
	if err != nil {
		t.Fatal(err)
	}
	far := func() map[string]ethtool.Feature {
		var f map[string]ethtool.Feature
		err := offload.Within(ns, func() error {
			f = features(t, "farC")
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	was := far()
	for range 2 {
		w, err := OpenPair(PairConfig{A: "dutC", B: "dutB"})
		if err != nil {
			t.Fatal(err)
		}
		if maps.Equal(was, far()) || len(w.Info().Notes) > 0 {
			t.Errorf("the other end was not set: %v", w.Info())
		}
		if err := w.Close(); err != nil {
			t.Error(err)
		}
		if !maps.Equal(was, far()) {
			t.Error("the other end is not as it was")
		}
	}
	w, err := OpenPair(PairConfig{A: "dutC", B: "dutB"})
	if err != nil {
		t.Fatal(err)
	}
	gone()
	if err := w.A[0].Wait(tbContext, 10*time.Second); !errors.Is(err, port.ErrClosed) {
		t.Errorf("the veth of a namespace that is gone: %v", err)
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
}

// TestRecreated: the settings of another interface of the same name stay.
func TestRecreated(t *testing.T) {
	newBed(t, 1500, 1)
	w := open(t, PairConfig{})
	la := netlink.NewLinkAttrs()
	la.Name = "dutA"
	if err := errors.Join(netlink.LinkDel(&netlink.Veth{LinkAttrs: la}), netlink.LinkAdd(&netlink.Veth{LinkAttrs: la, PeerName: "farD"})); err != nil {
		t.Fatal(err)
	}
	tool, err := ethtool.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer tool.Close()
	if err := tool.Change("dutA", map[string]bool{"rx-vlan-hw-parse": false}); err != nil {
		t.Fatal(err)
	}
	was := features(t, "dutA")
	if err := w.Close(); err != nil {
		t.Error(err)
	}
	if !maps.Equal(was, features(t, "dutA")) {
		t.Error("settings were changed")
	}
}

// TestTakenOff: somebody takes a program off, or puts another one there.
func TestTakenOff(t *testing.T) {
	bed := newBed(t, 1500, 1)
	was := settings(t, bed)
	for _, others := range []bool{false, true} {
		w, err := OpenPair(PairConfig{A: "dutA", B: "dutB"})
		if err != nil {
			t.Fatal(err)
		}
		l, err := netlink.LinkByName("dutA")
		if err == nil {
			err = netlink.LinkSetXdpFdWithFlags(l, -1, unix.XDP_FLAGS_DRV_MODE)
		}
		if err != nil {
			t.Fatal(err)
		}
		if others {
			p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "others", Type: ebpf.XDP, Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()}})
			if err != nil {
				t.Fatal(err)
			}
			if err := netlink.LinkSetXdpFdWithFlags(l, p.FD(), unix.XDP_FLAGS_DRV_MODE); err != nil {
				t.Fatal(err)
			}
			if err := p.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); !others && err != nil || others && (err == nil || !strings.Contains(err.Error(), "another XDP program")) {
			t.Errorf("another program %v: %v", others, err)
		}
		now := settings(t, bed)
		if others != containsXDP(now) {
			t.Errorf("another program %v, and afterwards %v", others, !others)
		}
		if !others && now != was {
			t.Errorf("was\n%s\nis\n%s", was, now)
		}
	}
}

// TestOthersPromiscuous: frames for others come in also when whoever else had asked
// for them is gone.
func TestOthersPromiscuous(t *testing.T) {
	bed := newBed(t, 1500, 1)
	was := settings(t, bed)
	l, err := netlink.LinkByName("dutA")
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0) // a tcpdump
	if err != nil {
		t.Fatal(err)
	}
	mr := unix.PacketMreq{Ifindex: int32(l.Attrs().Index), Type: unix.PACKET_MR_PROMISC}
	if err := unix.SetsockoptPacketMreq(fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP, &mr); err != nil {
		t.Fatal(err)
	}
	w := open(t, PairConfig{})
	if err := unix.Close(fd); err != nil {
		t.Fatal(err)
	}
	if l, err = netlink.LinkByName("dutA"); err != nil || l.Attrs().Promisc == 0 {
		t.Errorf("not promiscuous any more: %v", err)
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
	if now := settings(t, bed); now != was {
		t.Errorf("was\n%s\nis\n%s", was, now)
	}
}

// TestPurgeWithinFrame: of a frame whose first chunks were dropped the rest is, too.
func TestPurgeWithinFrame(t *testing.T) {
	newBed(t, 9000, 1)
	w := open(t, PairConfig{Options: Options{Stale: patient}})
	p := w.A[0]
	chunk := func() *packet.Buf {
		x := p.pool.Get()
		x.SetBytes(make([]byte, 1000))
		return x
	}
	if x := p.gather(chunk(), false); x != nil || p.part == nil {
		t.Fatal("a frame is whole already")
	}
	p.purge()
	if x := p.gather(chunk(), true); x != nil {
		t.Errorf("the end of a frame became one of %d bytes", x.Len())
	}
	for _, last := range []bool{false, true} {
		if x := p.gather(chunk(), last); (x != nil) != last || last && x.Len() != 2000 {
			t.Fatal("the next frame is not whole")
		} else if x != nil {
			x.Put()
		}
	}
	if s := p.Stats(); s.RxDropped != 1 {
		t.Errorf("%d dropped", s.RxDropped)
	}
	conserved(t, w)
}

// TestDeviceOfClosedPorts: a plan takes a port away by closing its queues; a
// later one may open it again.
func TestDeviceOfClosedPorts(t *testing.T) {
	newBed(t, 1500, 1)
	before := features(t, "dutA")
	for range 2 {
		v, err := Open(Config{Interface: "dutA"})
		if err != nil {
			t.Fatal(err)
		}
		defer v.Close()
		x := v.Ports[0].Pool().Get()
		for _, p := range v.Ports {
			if err := p.Close(); err != nil {
				t.Error(err)
			}
		}
		if !maps.Equal(before, features(t, "dutA")) {
			t.Error("the settings are not as they were")
		}
		x.SetBytes([]byte("an app may hold it longer")) // its memory is still there
		x.Put()
	}
}

// TestMemoryGoes: the UMEM of a port that was closed goes with the last frame of
// it that an app holds, and no file of it stays open.
func TestMemoryGoes(t *testing.T) {
	newBed(t, 1500, 1)
	files := func() int {
		fs, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(fs)
	}
	before := files()
	held, at := func() (*packet.Buf, []byte) {
		v, err := Open(Config{Interface: "dutA"})
		if err != nil {
			t.Fatal(err)
		}
		p := v.Ports[0]
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		return p.Pool().Get(), p.umem.Mem
	}()
	if n := files(); n != before {
		t.Errorf("%d files are open, were %d", n, before)
	}
	mapped := func() bool {
		_, _, e := unix.Syscall(unix.SYS_MADVISE, uintptr(unsafe.Pointer(&at[0])), uintptr(len(at)), unix.MADV_NORMAL)
		return e == 0
	}
	for range 5 {
		runtime.GC()
		time.Sleep(time.Millisecond)
	}
	if !mapped() || !held.SetBytes([]byte("still here")) {
		t.Fatal("the memory of a frame that is held has gone")
	}
	held.Put()
	for try := 0; mapped(); try++ {
		if try == 1000 {
			t.Fatal("the memory stays")
		}
		runtime.GC()
		time.Sleep(time.Millisecond)
	}
}

// features are what is switched on.
func features(t *testing.T, name string) map[string]ethtool.Feature {
	t.Helper()
	tool, err := ethtool.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer tool.Close()
	f, err := tool.Features(name)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestTwinCloses: a plan may take one port of a pair away while the worker of
// the other one waits for both.
func TestTwinCloses(t *testing.T) {
	newBed(t, 1500, 1)
	for range 10 {
		w := open(t, PairConfig{})
		ctx, cancel := context.WithCancel(context.Background())
		begun, done := make(chan struct{}), make(chan error)
		go func() {
			for n := 0; ; n++ {
				if n == 100 {
					close(begun)
				}
				if err := w.A[0].Wait(ctx, time.Nanosecond); err != nil {
					done <- err
					return
				}
			}
		}()
		<-begun
		if err := w.B[0].Close(); err != nil {
			t.Error(err)
		}
		cancel()
		if err := <-done; err != context.Canceled {
			t.Errorf("%v", err)
		}
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}
}

// bridged joins both interfaces of bed and those of more by a bridge, and waits until frames pass to all of the first two.
func bridged(t *testing.T, bed *bed, more ...string) {
	t.Helper()
	la := netlink.NewLinkAttrs()
	la.Name = "br0"
	br := &netlink.Bridge{LinkAttrs: la}
	if err := errors.Join(netlink.LinkAdd(br), netlink.LinkSetUp(br)); err != nil {
		t.Fatal(err)
	}
	for _, name := range append([]string{"dutA", "dutB"}, more...) {
		l, err := netlink.LinkByName(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := netlink.LinkSetMaster(l, br); err != nil {
			t.Fatal(err)
		}
	}
	// The bridge's ports come up in their own time.
	for _, d := range [][2]*raw{{bed.a, bed.b}, {bed.b, bed.a}} {
		for try := 0; ; try++ {
			_ = d[0].send(append([]byte{2, 9, 9, 9, 9, 9, 2, 9, 9, 9, 9, byte(d[0].index)}, make([]byte, 50)...))
			if d[1].recv(10*time.Millisecond) != nil {
				break
			}
			if try == 500 {
				t.Fatal("the bridge does not forward")
			}
		}
		for d[1].recv(10*time.Millisecond) != nil {
		}
	}
}

// TestPassToBridge: two ports of a bridge, which forwards what no worker takes.
func TestPassToBridge(t *testing.T) {
	bed := newBed(t, 1500, 1)
	bridged(t, bed)
	w := open(t, PairConfig{Fallback: Pass, Options: Options{Filter: &port.Filter{RoCE: true}, Stale: patient}})
	both := func() {
		t.Helper()
		for range 10 {
			crossed(t, bed.a, bed.b, roce(100, 0, false, 1))
			crossed(t, bed.b, bed.a, func() []byte { // the answer: the other way round
				f := roce(1400, 0, true, 2)
				copy(f, []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2})
				return f
			}())
		}
	}
	both()
	if s := w.A[0].Stats(); s.RxPackets != 0 || s.Missed != 10 || s.Bypassed != 0 || w.A[0].Missed() != 10 {
		t.Errorf("before the worker: %+v, missed %d", s, w.A[0].Missed())
	}
	p := startPump(w.A, w.B, nil)
	both()
	p.halt(t)
	if s := w.A[0].Stats(); s.RxPackets != 10 || s.Missed != 10 || s.Bypassed != 0 {
		t.Errorf("with the worker: %+v", s)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	both()
}
