package xsk

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/port"
)

func newSet(tb testing.TB, qs ...port.QueuePair) *Set {
	tb.Helper()
	root(tb)
	s, err := NewSet()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := errors.Join(s.Close(), s.Close()); err != nil {
			tb.Error(err)
		}
	})
	for _, q := range qs {
		if err := s.Put(q, true); err != nil {
			tb.Fatal(err)
		}
	}
	return s
}

// members are what is in a set, in order.
func members(tb testing.TB, s *Set) []setKey {
	tb.Helper()
	all, err := s.keys()
	if err != nil {
		tb.Fatal(err)
	}
	slices.SortFunc(all, func(a, b setKey) int { return slices.Compare(a[:], b[:]) })
	return all
}

// roceTo is a SEND to a queue pair, behind tags VLAN tags; v1 in RoCE v1, of which an
// IPv4 address is a mapped one.
func roceTo(q port.QueuePair, tags int, v1 bool) []byte {
	bth := make([]byte, 12+16+4) // BTH, payload, ICRC
	bth[0], bth[1], bth[2], bth[3] = 4, 0x40, 0xFF, 0xFF
	binary.BigEndian.PutUint32(bth[4:], 0xC0<<24|q.QPN) // FECN and BECN
	binary.BigEndian.PutUint32(bth[8:], 0x80<<24|7)
	return carry(q, tags, v1, bth)
}

// carry is a frame to an address that carries bth.
func carry(q port.QueuePair, tags int, v1 bool, bth []byte) []byte {
	udp := append([]byte{0xC0, 1, 0x12, 0xB7, 0, byte(8 + len(bth)), 0, 0}, bth...)
	f := []byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1}
	for range tags {
		f = append(f, 0x81, 0, 0, 5)
	}
	if q.Addr.Is4() && !v1 {
		src := q.Addr.As4()
		src[0]++
		f = append(f, 8, 0, 0x45, 0, 0, byte(20+len(udp)), 0, 0, 0x40, 0, 64, 17, 0, 0)
		f = append(append(append(f, src[:]...), q.Addr.AsSlice()...), udp...)
		return f
	}
	src, dst := q.Addr.As16(), q.Addr.As16()
	src[0]++
	if v1 {
		f = append(f, 0x89, 0x15, 0x60, 0, 0, 0, 0, byte(len(bth)), ipprotoBTH, 64)
		udp = bth
	} else {
		f = append(f, 0x86, 0xDD, 0x60, 0, 0, 0, 0, byte(len(udp)), 17, 64)
	}
	return append(append(append(f, src[:]...), dst[:]...), udp...)
}

var (
	bound4 = port.QueuePair{Addr: netip.MustParseAddr("10.0.0.2"), QPN: 0x123456}
	bound6 = port.QueuePair{Addr: netip.MustParseAddr("fd00::2"), QPN: 17}
)

// boundFrame is a frame, and whether it is wanted by {RoCE} and held by a set of
// bound4 and bound6.
type boundFrame struct {
	name         string
	frame        []byte
	wanted, held bool
	stranger     bool // neither end is one of the two's address
}

// boundFrames are frames to the two and to others, of every kind.
func boundFrames() (all []boundFrame) {
	other := func(q port.QueuePair, qpn uint32, addr string) port.QueuePair {
		q.QPN += qpn
		if addr != "" {
			q.Addr = netip.MustParseAddr(addr)
		}
		return q
	}
	for tags := range 4 {
		for _, x := range []struct {
			name string
			q    port.QueuePair
			v1   bool
			held bool
		}{
			{"v4", bound4, false, true},
			{"v4 to the next QPN", other(bound4, 1, ""), false, false},
			{"v4 to QPN 0", other(bound4, -bound4.QPN, ""), false, false},
			{"v4 to another address", other(bound4, 0, "10.0.0.3"), false, false},
			{"v4 to the other one's QPN", other(bound6, 0, "10.0.0.2"), false, false},
			{"v6", bound6, false, true},
			{"v6 to the next QPN", other(bound6, 1, ""), false, false},
			{"v6 to another address", other(bound6, 0, "fd00:0:0:1::2"), false, false},
			{"v6 to a like IPv4 address", other(bound4, 0, "::10.0.0.2"), false, false},
			{"v1", bound6, true, true},
			{"v1 with a mapped GID", bound4, true, true},
			{"v1 to the next QPN", other(bound6, 1, ""), true, false},
			{"v1 to another GID", other(bound6, 0, "fe80::2"), true, false},
		} {
			// Behind more than two tags nobody looks.
			all = append(all, boundFrame{fmt.Sprintf("%s, %d tags", x.name, tags), roceTo(x.q, tags, x.v1), true, x.held && tags < 3,
				x.q.Addr != bound4.Addr && x.q.Addr != bound6.Addr && tags < 3})
		}
	}
	// At 14: IPv4, IPv6, or the global route header.
	of := func(name string, q port.QueuePair, v1, wanted, held bool, change func(f []byte) []byte) {
		all = append(all, boundFrame{name, change(roceTo(q, 0, v1)), wanted, held, false})
	}
	set := func(at int, v ...byte) func([]byte) []byte {
		return func(f []byte) []byte { copy(f[at:], v); return f }
	}
	cut := func(n int) func([]byte) []byte { return func(f []byte) []byte { return f[:n] } }
	of("v4 with options", bound4, false, true, true, func(f []byte) []byte {
		f[14], f[17] = 0x46, f[17]+4
		return slices.Insert(f, 34, 1, 1, 1, 1)
	})
	of("v4, first fragment", bound4, false, true, false, set(20, 0x20))
	of("v4, later fragment", bound4, false, true, false, set(20, 0, 9))
	of("v4, TCP", bound4, false, false, false, set(23, 6))
	of("v4, another UDP port", bound4, false, false, false, set(37, 0xB8))
	of("v4, version 5", bound4, false, false, false, set(14, 0x55))
	of("v4, short header length", bound4, false, false, false, set(14, 0x44))
	of("v4, ends in the BTH", bound4, false, true, false, cut(14+20+8+11))
	of("v4, ends behind the BTH", bound4, false, true, true, cut(14+20+8+12))
	of("v6, hop-by-hop options", bound6, false, true, false, func(f []byte) []byte {
		f[20] = 0
		return slices.Insert(f, 54, 17, 0, 1, 4, 0, 0, 0, 0)
	})
	of("v6, fragment", bound6, false, true, false, set(20, 44))
	of("v6, another UDP port", bound6, false, false, false, set(57, 0xB8))
	of("v6, ends in the BTH", bound6, false, true, false, cut(14+40+8+11))
	of("v1, another next header", bound6, true, true, false, set(20, 17))
	of("v1, version 4", bound6, true, true, false, set(14, 0x45))
	of("v1, ends in the BTH", bound6, true, true, false, cut(14+40+11))
	return all
}

// alive makes the worker of the tester's queue a live one: its heartbeat is
// fresh, and it has a socket.
func alive(tb testing.TB, mine Part) {
	tb.Helper()
	u, err := NewUMEM(64, 2048)
	if err != nil {
		tb.Fatal(err)
	}
	s, err := Open(u, Options{Ring: 64})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := errors.Join(s.Close(), u.Close()); err != nil {
			tb.Error(err)
		}
	})
	if err := mine.Sockets.Put(uint32(0), uint32(s.FD)); err != nil {
		tb.Fatal(err)
	}
	beat(tb, mine)
}

func beat(tb testing.TB, mine Part) {
	tb.Helper()
	atomic.StoreUint64(mine.State.Heartbeat(0), uint64(clock.Kernel()))
}

// While no worker takes them, just the frames to bound queue pairs do not cross.
func TestBound(t *testing.T) {
	root(t)
	hosts := []netip.Addr{bound4.Addr, bound6.Addr}
	for _, c := range []struct {
		name   string
		spec   ProgramSpec
		queues int
	}{
		{"RoCE", ProgramSpec{Filter: port.Filter{RoCE: true}}, 1},
		{"RoCE, no such queue", ProgramSpec{Filter: port.Filter{RoCE: true}}, 0},
		{"RoCE, shared", ProgramSpec{Filter: port.Filter{RoCE: true}, Shared: true}, 1},
		{"RoCE, redirected", ProgramSpec{Filter: port.Filter{RoCE: true}, Other: 1}, 1},
		{"hosts", ProgramSpec{Filter: port.Filter{RoCE: true, Hosts: hosts}}, 1},
		{"all", ProgramSpec{Filter: port.Filter{All: true}}, 1},
		{"all, redirected", ProgramSpec{Filter: port.Filter{All: true}, Other: 1}, 1},
		{"all but long ones", ProgramSpec{Filter: port.Filter{All: true}, Longest: 14}, 1},
	} {
		if c.spec.Other == 0 {
			c.spec.Cross = Pass
		}
		c.spec.Filter.Bound, c.spec.Stale = true, time.Minute
		mine := part(t, here, c.spec, c.queues)
		mine.Bound = newSet(t, bound4, bound6)
		p := program(t, mine)
		away := uint32(xdpPass)
		if c.spec.Cross == Redirect {
			away = xdpRedirect
		}
		check := func(when string, taken bool, held func(boundFrame) bool) {
			t.Helper()
			for _, f := range boundFrames() {
				wanted := f.wanted || c.spec.Filter.All
				if len(c.spec.Filter.Hosts) > 0 {
					wanted = wanted && !f.stranger
				}
				want, missed, bypassed := away, uint64(0), uint64(0)
				switch {
				case taken && wanted && c.spec.Longest == 0:
					want = xdpRedirect
				case !wanted:
					bypassed = 1
				default:
					missed = 1
					if held(f) {
						want = xdpDrop
					}
				}
				var m, b, shut uint64
				if c.queues > 0 {
					shut = atomic.LoadUint64(mine.State.ShutOut(0))
					m, b = atomic.LoadUint64(mine.State.Missed(0)), atomic.LoadUint64(mine.State.Bypassed(0))
				}
				act, _, err := p.Prog.Test(f.frame)
				if err != nil {
					t.Fatal(err)
				}
				if act != want {
					t.Errorf("%s, %s, %s: action %d, not %d", c.name, when, f.name, act, want)
				}
				if c.queues == 0 {
					continue
				}
				m, b = atomic.LoadUint64(mine.State.Missed(0))-m, atomic.LoadUint64(mine.State.Bypassed(0))-b
				if s := atomic.LoadUint64(mine.State.ShutOut(0)) - shut; s > 1 || (s == 1) != (want == xdpDrop) {
					t.Errorf("%s, %s, %s: %d shut out, action %d", c.name, when, f.name, s, act)
				}
				if m != missed || b != bypassed {
					t.Errorf("%s, %s, %s: %d missed and %d bypassed, not %d and %d", c.name, when, f.name, m, b, missed, bypassed)
				}
			}
		}
		held := func(f boundFrame) bool { return f.held }
		check("no worker", false, held)
		if c.queues > 0 {
			alive(t, mine)
			check("alive", true, held)
			atomic.StoreUint64(mine.State.Heartbeat(0), 1)
			check("stale", false, held)
			beat(t, mine)
			check("alive again", true, held)
			if err := mine.Sockets.Delete(uint32(0)); err != nil {
				t.Fatal(err)
			}
			check("no socket", false, held)
		}
		for _, q := range []port.QueuePair{bound4, bound6} {
			if err := mine.Bound.Put(q, false); err != nil {
				t.Fatal(err)
			}
		}
		check("none is bound", false, func(boundFrame) bool { return false })
	}
}

// TestBoundAgreesWithParser: what the parser takes for RoCE to a bound queue pair is
// held, and nothing else that it can tell.
func TestBoundAgreesWithParser(t *testing.T) {
	root(t)
	for _, filter := range []port.Filter{{RoCE: true, Bound: true}, {All: true, Bound: true}} {
		mine := part(t, here, ProgramSpec{Filter: filter, Cross: Pass}, 1)
		mine.Bound = newSet(t)
		p := program(t, mine)
		drops := func(t *rapid.T, f []byte, qs ...port.QueuePair) bool {
			if err := errors.Join(mine.Bound.Clear(), mine.Bound.Replace(nil, qs)); err != nil {
				t.Fatal(err)
			}
			act, _, err := p.Prog.Test(f)
			if err != nil || act != xdpDrop && act != xdpPass {
				t.Fatalf("action %d, %v", act, err)
			}
			return act == xdpDrop
		}
		rapid.Check(t, func(t *rapid.T) {
			f := drawFrame(t)
			var h hdr.Frame
			why := hdr.Parse(f, &h)
			if why != hdr.IsRoCE {
				// Those that were not changed are to addresses and QPNs of zeroes.
				zero := []port.QueuePair{{Addr: netip.IPv6Unspecified()}, {Addr: netip.IPv4Unspecified()}}
				if (why == hdr.NotRoCE || why == hdr.Fragment || why == hdr.DeepTags || why == hdr.BadIP) && drops(t, f, zero...) {
					t.Fatalf("%v is held: %x", why, f)
				}
				return
			}
			q := port.QueuePair{QPN: hdr.BTH(f[h.BTH:]).DestQP()}
			direct := h.Net == hdr.NetGRH
			if h.Net == hdr.NetIPv4 {
				q.Addr, direct = netip.AddrFrom4([4]byte(f[h.L3+16:])), true
			} else {
				q.Addr = netip.AddrFrom16([16]byte(f[h.L3+24:]))
				direct = direct || h.L4 == h.L3+40
			}
			if got := drops(t, f, q); got != direct {
				t.Fatalf("to %v, which is bound: held %v: %x", q, got, f)
			}
			near := []port.QueuePair{{Addr: q.Addr, QPN: q.QPN ^ 1}, {Addr: q.Addr.Next(), QPN: q.QPN}, {Addr: netip.AddrFrom4([4]byte{1}), QPN: q.QPN}}
			near = slices.DeleteFunc(near, func(n port.QueuePair) bool { return n == q || !n.Addr.IsValid() })
			if drops(t, f, near...) {
				t.Fatalf("to %v, which is not bound: held: %x", q, f)
			}
		})
	}
}

// A program keeps its set, also when its filter is Closed, in which it does not look
// into it.
func TestBoundKept(t *testing.T) {
	root(t)
	for _, filter := range []port.Filter{{RoCE: true, Bound: true}, {RoCE: true, Bound: true, Closed: true}, {All: true, Bound: true, Closed: true}} {
		mine := part(t, here, ProgramSpec{Filter: filter, Cross: Pass}, 1)
		if _, err := Load(PortProgram, mine); err == nil {
			t.Error("loaded without a set")
		}
		set, err := NewSet()
		if err != nil {
			t.Fatal(err)
		}
		mine.Bound = set
		p := program(t, mine)
		if err := errors.Join(set.Put(bound4, true), set.Close()); err != nil {
			t.Fatal(err)
		}
		want, _ := keyOf(bound4)
		got, err := (&Attached{Prog: p.Prog, ifindex: here}).Set()
		if err != nil || got == nil || !slices.Equal(members(t, got), []setKey{want}) {
			t.Fatalf("%+v: the set is gone (%v)", filter, err)
		}
		if err := got.Close(); err != nil {
			t.Error(err)
		}
		frame := roceTo(port.QueuePair{Addr: bound4.Addr, QPN: 1}, 0, false)
		if act, _, err := p.Prog.Test(frame); err != nil || (act == xdpDrop) != filter.Closed {
			t.Errorf("%+v: action %d, %v", filter, act, err)
		}
	}
	none := program(t, part(t, here, ProgramSpec{Filter: port.Filter{RoCE: true, Closed: true}, Cross: Pass}, 1))
	if s, err := (&Attached{Prog: none.Prog, ifindex: here}).Set(); s != nil || err != nil {
		t.Errorf("a program that has no set has %v, %v", s, err)
	}
}

func TestSet(t *testing.T) {
	s := newSet(t)
	key := func(q port.QueuePair) setKey {
		k, err := keyOf(q)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	check := func(what string, want ...port.QueuePair) {
		t.Helper()
		var keys []setKey
		for _, q := range want {
			keys = append(keys, key(q))
		}
		slices.SortFunc(keys, func(a, b setKey) int { return slices.Compare(a[:], b[:]) })
		if got := members(t, s); !slices.Equal(got, keys) {
			t.Errorf("%s: %x, not %x", what, got, keys)
		}
	}
	mapped := port.QueuePair{Addr: netip.MustParseAddr("::ffff:10.0.0.2"), QPN: bound4.QPN}
	do := func(q port.QueuePair, on bool) {
		t.Helper()
		if err := s.Put(q, on); err != nil {
			t.Fatal(err)
		}
	}
	do(bound4, false)
	check("nothing was in it")
	do(bound4, true)
	do(mapped, true)
	do(bound6, true)
	check("two", bound4, bound6)
	do(mapped, false)
	check("taken out", bound6)
	o := newSet(t, bound4)
	for _, from := range []*Set{o, s} {
		if err := s.Add(from); err != nil {
			t.Fatal(err)
		}
	}
	check("added", bound4, bound6)
	for _, bad := range []port.QueuePair{{QPN: 1}, {Addr: bound4.Addr, QPN: 1 << 24}} {
		if s.Put(bad, true) == nil || s.Put(bad, false) == nil || s.Replace(nil, []port.QueuePair{bad}) == nil || s.Replace([]port.QueuePair{bad}, nil) != nil { // no set has it
			t.Errorf("%v was accepted", bad)
		}
	}
	check("refused", bound4, bound6)
	if n := testing.AllocsPerRun(100, func() { do(bound4, true); do(bound6, false); do(bound6, true) }); n != 0 {
		t.Errorf("%v allocations", n)
	}

	// As many as there can be, and then all but one.
	all := make([]port.QueuePair, port.MaxBound)
	for i := range all {
		all[i] = port.QueuePair{Addr: bound4.Addr, QPN: uint32(i)}
	}
	for _, was := range [][]port.QueuePair{nil, {bound4, bound6}} { // what others had stays
		err := s.Replace(was, all)
		if was != nil && err != nil || was == nil && err != errSetFull {
			t.Fatal(was, err)
		}
	}
	check("full", all...)
	if err := s.Put(bound6, true); err != errSetFull {
		t.Errorf("one more: %v", err)
	}
	if err := s.Replace(nil, append(all, bound6)); err != errSetFull {
		t.Errorf("all and one more: %v", err)
	}
	do(all[7], true)
	check("still full", all...)
	all[9].Addr = bound6.Addr
	if err := s.Replace([]port.QueuePair{{Addr: bound4.Addr, QPN: 9}}, all); err != nil {
		t.Fatal(err)
	}
	check("another one", all...)
	if err := s.Replace(all[2:], nil); err != nil {
		t.Fatal(err)
	}
	check("those of others", all[:2]...)
	if err := s.Clear(); err != nil {
		t.Fatal(err)
	}
	check("none")

	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Put(bound4, true); err != port.ErrClosed {
		t.Errorf("closed: %v", err)
	}
}

// TestSetStays: what stays bound in Replace is in the set all the time.
func TestSetStays(t *testing.T) {
	mine := part(t, here, ProgramSpec{Filter: port.Filter{RoCE: true, Bound: true}, Cross: Pass}, 1)
	mine.Bound = newSet(t, bound4)
	p := program(t, mine)
	frame := roceTo(bound4, 0, false)
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		var was []port.QueuePair
		for i := range 300 {
			qs := []port.QueuePair{{Addr: bound6.Addr, QPN: uint32(i)}, bound4, {Addr: bound4.Addr, QPN: uint32(i)}}
			if err := mine.Bound.Replace(was, qs[i%2:]); err != nil {
				done <- err
				return
			}
			was = qs[i%2:]
		}
		close(done)
	}()
	for n := 0; ; n++ {
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
			t.Logf("%d frames", n)
			return
		default:
		}
		if act, _, err := p.Prog.Test(frame); err != nil || act != xdpDrop {
			t.Fatalf("action %d, %v", act, err)
		}
	}
}

// TestSetRights: a process that kept no capability but CAP_BPF can make and change a
// set; one that kept none can change it where the kernel lets it, as since Linux 5.19.
func TestSetRights(t *testing.T) {
	s := newSet(t)
	for _, x := range []struct {
		what string
		caps uint32 // of the second word
		must bool
	}{{"with CAP_BPF", 1 << (unix.CAP_BPF - 32), true}, {"with no capability", 0, false}} {
		err := make(chan error)
		go func() {
			runtime.LockOSThread() // the thread ends with its rights
			head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
			caps := [2]unix.CapUserData{1: {Permitted: x.caps, Effective: x.caps}}
			if e := unix.Capset(&head, &caps[0]); e != nil {
				err <- e
				return
			}
			e := errors.Join(s.Put(bound4, true), s.Put(bound4, false), s.Replace(nil, []port.QueuePair{bound6}))
			if x.must {
				fresh, e2 := NewSet()
				e = errors.Join(e, e2, fresh.Close())
			}
			err <- e
		}()
		if e := <-err; e != nil && x.must {
			t.Errorf("%s: %v", x.what, e)
		} else {
			t.Logf("%s: %v", x.what, e)
		}
	}
}

func BenchmarkBind(b *testing.B) {
	for _, n := range []int{0, 1000, port.MaxBound - 1} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s := newSet(b)
			qs := make([]port.QueuePair, n)
			for i := range qs {
				qs[i] = port.QueuePair{Addr: bound6.Addr, QPN: 1000 + uint32(i)}
			}
			if err := s.Replace(nil, qs); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			on := false
			for b.Loop() {
				on = !on
				if err := s.Put(bound4, on); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkRebind fills an empty set, says the same again, as a process does that
// goes on with what the one before had bound, and empties it.
func BenchmarkRebind(b *testing.B) {
	for _, n := range []int{1000, port.MaxBound} {
		s := newSet(b)
		qs := make([]port.QueuePair, n)
		for i := range qs {
			qs[i] = port.QueuePair{Addr: bound6.Addr, QPN: uint32(i)}
		}
		for _, x := range []struct {
			name      string
			first, qs []port.QueuePair
		}{{"fill", nil, qs}, {"same", qs, qs}, {"empty", qs, nil}} {
			b.Run(fmt.Sprintf("%s/%d", x.name, n), func(b *testing.B) {
				for range b.N {
					b.StopTimer()
					if err := errors.Join(s.Clear(), s.Replace(nil, x.first)); err != nil {
						b.Fatal(err)
					}
					b.StartTimer()
					if err := s.Replace(x.first, x.qs); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// BenchmarkProgram is a frame's way through the program, by the kernel's clock,
// with a filter that is open, closed, Bound or Guarded.
func BenchmarkProgram(b *testing.B) {
	frame := carry(bound4, 0, false, atomicBTH(0x13, 0, guardVA, 0))
	for _, x := range []struct {
		name string
		f    port.Filter
	}{
		{"open", port.Filter{RoCE: true}},
		{"closed", port.Filter{RoCE: true, Closed: true}},
		{"bound", port.Filter{RoCE: true, Bound: true}},
		{"guarded", port.Filter{RoCE: true, Guarded: true}},
	} {
		for _, lives := range []bool{true, false} {
			name := x.name + "/missed"
			if lives {
				name = x.name + "/alive"
			}
			b.Run(name, func(b *testing.B) {
				mine := part(b, here, ProgramSpec{Filter: x.f, Cross: Pass, Stale: time.Hour, Longest: 1600}, 1)
				mine.Bound, mine.Guard = newSet(b, bound6), newGuard(b)
				if lives {
					alive(b, mine)
				}
				p := program(b, mine)
				const each = 100000
				var total time.Duration
				rounds := 0
				for b.Loop() {
					_, d, err := p.Prog.Benchmark(frame, each, nil)
					if err != nil {
						b.Fatal(err)
					}
					total += d
					rounds++
				}
				b.ReportMetric(float64(total.Nanoseconds())/float64(rounds), "ns/frame")
			})
		}
	}
}
