package xsk

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf/rlimit"
	"pgregory.net/rapid"

	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/port"
)

func root(tb testing.TB) {
	tb.Helper()
	if os.Getuid() != 0 {
		tb.Skip("needs root: BPF programs, AF_XDP")
	}
	if err := rlimit.RemoveMemlock(); err != nil {
		tb.Fatal(err)
	}
}

// tester runs a program on frames, without an interface.
type tester struct {
	p  *Program
	st *State
}

func load(tb testing.TB, spec ProgramSpec) *tester { return loadQueues(tb, spec, 1) }

func loadQueues(tb testing.TB, spec ProgramSpec, queues int) *tester {
	tb.Helper()
	root(tb)
	mine := part(tb, here, spec, queues)
	return &tester{program(tb, mine), mine.State}
}

// here is the interface that frames of a tester come from: the loopback.
const here = 1

func part(tb testing.TB, ifindex int, spec ProgramSpec, queues int) Part {
	tb.Helper()
	st, err := NewState(ifindex, queues)
	if err != nil {
		tb.Fatal(err)
	}
	sockets, err := NewSocketMap(1)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := errors.Join(sockets.Close(), st.Close()); err != nil {
			tb.Error(err)
		}
	})
	return Part{Index: ifindex, Spec: spec, State: st, Sockets: sockets}
}

func program(tb testing.TB, parts ...Part) *Program {
	tb.Helper()
	p, err := Load(PortProgram, parts...)
	if err != nil {
		tb.Fatalf("%+v", err)
	}
	tb.Cleanup(func() {
		if err := p.Close(); err != nil {
			tb.Error(err)
		}
	})
	return p
}

// wanted runs the program on a frame, of at least 14 bytes; there is no
// socket, so a wanted frame is a missed one.
func (t *tester) wanted(tb interface {
	Fatalf(string, ...any)
}, frame []byte) bool {
	b, m := atomic.LoadUint64(t.st.Bypassed(0)), atomic.LoadUint64(t.st.Missed(0))
	act, _, err := t.p.Prog.Test(frame)
	if err != nil || act != 2 {
		tb.Fatalf("action %d, %v", act, err)
	}
	b, m = atomic.LoadUint64(t.st.Bypassed(0))-b, atomic.LoadUint64(t.st.Missed(0))-m
	if b+m != 1 {
		tb.Fatalf("counted %d bypassed, %d missed", b, m)
	}
	return m == 1
}

// TestFilterAgreesWithParser: what the parser calls RoCE must reach it, and what
// may change memory as far as it can tell; other frames must not, but those behind
// IPv6's extension headers.
func TestFilterAgreesWithParser(t *testing.T) {
	for _, mode := range []struct {
		name string
		spec ProgramSpec
	}{
		{"plain", ProgramSpec{Filter: port.Filter{RoCE: true}, Cross: Pass}},
		{"shared", ProgramSpec{Filter: port.Filter{RoCE: true}, Cross: Pass, Shared: true}},
	} {
		prog := load(t, mode.spec)
		rapid.Check(t, func(t *rapid.T) {
			f := drawFrame(t)
			var h hdr.Frame
			why := hdr.Parse(f, &h)
			got := prog.wanted(t, f)
			switch {
			case (why == hdr.IsRoCE || hdr.ChangeOf(f, &h).Reach != hdr.ReachNone) && !got:
				t.Fatalf("%s: RoCE (%v) is not wanted: %x", mode.name, why, f)
			case why == hdr.DeepTags || why == hdr.IsRoCE || hdr.ChangeOf(f, &h).Reach != hdr.ReachNone:
			case h.Net == hdr.NetIPv6 && slices.Contains([]byte{0, 43, 44, 60}, f[h.L3+6]):
				// Behind an extension header: not looked for.
			case len(f) >= 14+4*int(h.Tags) && binary.BigEndian.Uint16(f[12+4*h.Tags:]) == hdr.EtherRoCEv1:
				// The filter looks at RoCE v1's Ethernet type only.
			case (why == hdr.NotRoCE || why == hdr.Fragment || why == hdr.BadIP) && got:
				t.Fatalf("%s: %v is wanted: %x", mode.name, why, f)
			}
		})
	}
}

// drawFrame is a RoCE frame or nearly one.
func drawFrame(t *rapid.T) []byte {
	f := []byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1}
	for range rapid.IntRange(0, 3).Draw(t, "tags") {
		f = append(f, rapid.SampledFrom([][]byte{{0x81, 0}, {0x88, 0xA8}}).Draw(t, "tag")...)
		f = append(f, 0, 5)
	}
	body := make([]byte, 8+12+16+4) // UDP, BTH, a payload, ICRC
	body[0], body[1], body[2], body[3], body[5] = 0xC0, 1, 0x12, 0xB7, byte(len(body))
	body[8], body[10], body[11] = 4, 0xFF, 0xFF // SEND only
	ip := make([]byte, 20+4*rapid.IntRange(0, 2).Draw(t, "options"))
	switch rapid.IntRange(0, 2).Draw(t, "network") {
	case 0:
		ip[0], ip[3], ip[8], ip[9] = 0x40|byte(len(ip)/4), byte(len(ip)+len(body)), 64, 17
		copy(ip[6:], rapid.SampledFrom([][]byte{{0x40, 0}, {0x20, 0}, {0x20, 9}, {0, 9}}).Draw(t, "fragment"))
		f = append(append(f, 8, 0), ip...)
	case 1:
		ip = make([]byte, 40)
		next := byte(17)
		for range rapid.IntRange(0, 2).Draw(t, "headers") {
			h := rapid.SampledFrom([]byte{0, 43, 44, 60, 135}).Draw(t, "header")
			body = append([]byte{next, 0, 0, byte(rapid.IntRange(0, 9).Draw(t, "offset")), 0, 0, 0, 0}, body...)
			next = h
		}
		ip[0], ip[5], ip[6] = 0x60, byte(len(body)), next
		f = append(append(f, 0x86, 0xDD), ip...)
	case 2:
		ip = make([]byte, 40)
		body = body[8:]
		ip[0], ip[5], ip[6] = 0x60, byte(len(body)), 0x1B
		f = append(append(f, 0x89, 0x15), ip...)
	}
	f = append(f, body...)
	for range rapid.IntRange(0, 2).Draw(t, "changes") {
		at := rapid.IntRange(12, len(f)-1).Draw(t, "at")
		f[at] = rapid.Byte().Draw(t, "byte")
	}
	if rapid.IntRange(0, 3).Draw(t, "cut") == 0 {
		f = f[:rapid.IntRange(14, len(f)).Draw(t, "length")]
	}
	return f
}

// Datagrams from and to a filter's UDP ports are wanted, and those whose ports are not seen, whatever else it wants.
func TestUDPPorts(t *testing.T) {
	hosts := []netip.Addr{netip.MustParseAddr("10.0.0.2")}
	filters := []port.Filter{
		{UDP: []uint16{1234}}, {UDP: []uint16{1234, 53}, RoCE: true}, {UDP: []uint16{1234}, RoCE: true, Hosts: hosts}, {UDP: []uint16{4791}},
	}
	for _, filter := range filters {
		prog := load(t, ProgramSpec{Filter: filter, Cross: Pass})
		roce := prog
		if filter.RoCE {
			roce = load(t, ProgramSpec{Filter: port.Filter{RoCE: true, Hosts: filter.Hosts}, Cross: Pass})
		}
		rapid.Check(t, func(t *rapid.T) {
			f := drawFrame(t)
			var h hdr.Frame
			hdr.Parse(f, &h)
			l4, seen := 0, false // the UDP header, and whether there is one as far as can be seen
			switch at := 14 + 4*int(h.Tags); {
			case h.Tags > 2 || len(f) < at+20:
			case f[at-2] == 8 && f[at-1] == 0 && f[at]>>4 == 4 && f[at]&15 >= 5 && f[at+9] == hdr.ProtoUDP:
				l4, seen = at+4*int(f[at]&15), binary.BigEndian.Uint16(f[at+6:])&0x1FFF == 0
			case f[at-2] == 0x86 && f[at-1] == 0xDD && f[at]>>4 == 6 && len(f) >= at+48 && f[at+6] == hdr.ProtoUDP:
				l4, seen = at+40, true
			}
			if l4 == 0 || len(f) < l4+8 {
				prog.wanted(t, f) // whatever it says, it ends
				return
			}
			if seen {
				p := rapid.SampledFrom([]uint16{1234, 53, 4791, 1235, 0xD204}).Draw(t, "port")
				binary.BigEndian.PutUint16(f[l4+rapid.SampledFrom([]int{0, 2}).Draw(t, "side"):], p)
			}
			want := !seen
			for _, p := range filter.UDP {
				want = want || binary.BigEndian.Uint16(f[l4:]) == p || binary.BigEndian.Uint16(f[l4+2:]) == p
			}
			if filter.RoCE {
				want = want || roce.wanted(t, f)
			}
			if got := prog.wanted(t, f); got != want {
				t.Fatalf("%+v: wanted %v, not %v: %x", filter, got, want, f)
			}
		})
	}
}

func TestHosts(t *testing.T) {
	hosts := []netip.Addr{netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("fd00::2")}
	prog := load(t, ProgramSpec{Filter: port.Filter{RoCE: true, Hosts: hosts}, Cross: Pass})
	rapid.Check(t, func(t *rapid.T) {
		v6 := rapid.Bool().Draw(t, "v6")
		side := func(what string) netip.Addr {
			if v6 {
				return netip.AddrFrom16([16]byte{0xfd, 15: rapid.Byte().Draw(t, what) & 3})
			}
			return netip.AddrFrom4([4]byte{10, 3: rapid.Byte().Draw(t, what) & 3})
		}
		src, dst := side("source"), side("destination")
		f := []byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1}
		if v6 {
			f = append(f, 0x86, 0xDD, 0x60, 0, 0, 0, 0, 8, 17, 64)
		} else {
			f = append(f, 8, 0, 0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0)
		}
		f = append(append(f, src.AsSlice()...), dst.AsSlice()...)
		f = append(f, 0, 1, 0x12, 0xB7, 0, 8, 0, 0)
		want := false
		for _, h := range hosts {
			want = want || h == src || h == dst
		}
		if got := prog.wanted(t, f); got != want {
			t.Fatalf("%v to %v: wanted %v", src, dst, got)
		}
	})
	bad := part(t, here, ProgramSpec{Filter: port.Filter{RoCE: true, Hosts: make([]netip.Addr, 1)}, Cross: Pass}, 1)
	if _, err := Load(PortProgram, bad); err == nil {
		t.Error("the zero address was accepted")
	}
}

// Of a closed filter, what is wanted and nobody takes does not cross; the rest
// does.
func TestClosed(t *testing.T) {
	want := roceFrame()
	other := append([]byte(nil), want...)
	other[37]++ // UDP port
	for _, c := range []struct {
		name   string
		filter port.Filter
		stale  time.Duration
		cross  bool // what no app wants
	}{
		{"RoCE", port.Filter{RoCE: true, Closed: true}, 0, true},
		{"RoCE, heartbeat", port.Filter{RoCE: true, Closed: true}, time.Second, true},
		{"hosts", port.Filter{RoCE: true, Closed: true, Hosts: []netip.Addr{netip.MustParseAddr("10.0.0.2")}}, 0, true},
		{"RoCE, by port", port.Filter{UDP: []uint16{4791}, Closed: true}, 0, true},
		{"all", port.Filter{All: true, Closed: true}, 0, false},
		{"all, heartbeat", port.Filter{All: true, Closed: true}, time.Second, false},
	} {
		for _, cross := range []Cross{Pass, Redirect} {
			for _, queues := range []int{1, 0} { // 0: a queue that no worker knows
				p := loadQueues(t, ProgramSpec{Filter: c.filter, Cross: cross, Other: 1, Stale: c.stale}, queues)
				away := uint32(2)
				if cross == Redirect {
					away = xdpRedirect
				}
				for _, f := range []struct {
					frame []byte
					cross bool
				}{{want, false}, {other, c.cross}} {
					act, _, err := p.p.Prog.Test(f.frame)
					if err != nil {
						t.Fatal(err)
					}
					if f.cross && act != away || !f.cross && act != xdpDrop {
						t.Errorf("%s, %v, %d queues: action %d, to cross: %v", c.name, cross, queues, act, f.cross)
					}
				}
				if queues == 0 {
					continue
				}
				missed, bypassed := uint64(2), uint64(0)
				if c.cross {
					missed, bypassed = 1, 1
				}
				if m, b := atomic.LoadUint64(p.st.Missed(0)), atomic.LoadUint64(p.st.Bypassed(0)); m != missed || b != bypassed {
					t.Errorf("%s: %d missed and %d bypassed, not %d and %d", c.name, m, b, missed, bypassed)
				}
			}
		}
	}
}

// roceFrame is a frame to UDP port 4791 over IPv4, from 10.0.0.1 to 10.0.0.2.
func roceFrame() []byte {
	f := []byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0, 0, 44, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2}
	f = append(f, 0xC0, 1, 0x12, 0xB7, 0, 24, 0, 0)
	return append(f, make([]byte, 16)...)
}

// One program for two interfaces does on each what its own part says, and passes
// frames of any other.
func TestTwoInterfaces(t *testing.T) {
	root(t)
	roce, all := ProgramSpec{Filter: port.Filter{RoCE: true}, Cross: Pass}, ProgramSpec{Filter: port.Filter{All: true, Closed: true}, Stale: time.Second}
	const there = 0x7fff_0001
	counts := func(p Part) [2]uint64 {
		return [2]uint64{atomic.LoadUint64(p.State.Bypassed(0)), atomic.LoadUint64(p.State.Missed(0))}
	}
	other := append([]byte(nil), roceFrame()...)
	other[37]++ // UDP port
	for _, x := range []struct {
		index    [2]int
		act      uint32
		counted  [2][2]uint64 // bypassed and missed of both
		programs [2]ProgramSpec
	}{
		{[2]int{here, there}, xdpPass, [2][2]uint64{{1, 1}, {}}, [2]ProgramSpec{roce, all}},
		{[2]int{there, here}, xdpPass, [2][2]uint64{{}, {1, 1}}, [2]ProgramSpec{all, roce}},
		{[2]int{here, there}, xdpDrop, [2][2]uint64{{0, 2}, {}}, [2]ProgramSpec{all, roce}},
		{[2]int{there, here}, xdpDrop, [2][2]uint64{{}, {0, 2}}, [2]ProgramSpec{roce, all}},
		{[2]int{there, there + 1}, xdpPass, [2][2]uint64{}, [2]ProgramSpec{all, all}},
	} {
		a, b := part(t, x.index[0], x.programs[0], 1), part(t, x.index[1], x.programs[1], 1)
		p := program(t, a, b)
		for _, f := range [][]byte{roceFrame(), other} {
			if act, _, err := p.Prog.Test(f); err != nil || act != x.act {
				t.Errorf("%v: action %d, %v", x.index, act, err)
			}
		}
		if got := [2][2]uint64{counts(a), counts(b)}; got != x.counted {
			t.Errorf("%v: counted %d, not %d", x.index, got, x.counted)
		}
		for _, own := range []Part{a, b} {
			st, err := (&Attached{Prog: p.Prog, ifindex: own.Index}).State()
			if err != nil {
				t.Fatal(err)
			}
			own.State.SetRestore([restoreWords]uint64{uint64(own.Index), 7})
			if st.Restore() != own.State.Restore() {
				t.Errorf("%d: another's state", own.Index)
			}
			if err := st.Close(); err != nil {
				t.Error(err)
			}
		}
		if _, err := (&Attached{Prog: p.Prog, ifindex: 5}).State(); err == nil {
			t.Error("state of an interface that the program is not for")
		}
	}
}

func TestRefused(t *testing.T) {
	root(t)
	if _, err := NewUMEM(0, 2048); err == nil {
		t.Error("a UMEM of nothing")
	}
	if _, err := NewUMEM(64, 1000); err == nil {
		t.Error("chunks of 1000 bytes")
	}
	u, err := NewUMEM(64, 2048)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(u, Options{Ring: 100}); err == nil {
		t.Error("a ring of 100")
	}
	s, err := Open(u, Options{Ring: 64})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Bind(u, 1<<30, 0, Options{}); err == nil {
		t.Error("bound to an interface that is not")
	}
	// The rings are whole: a producer never gets more room than there is.
	if n := s.Fill.Room(1000); n != 64 {
		t.Errorf("room for %d", n)
	}
	s.Fill.Submit(60)
	if n := s.Fill.Room(1000); n != 4 {
		t.Errorf("room for %d", n)
	}
	if n := s.Fill.Unconsumed(); n != 60 {
		t.Errorf("%d unconsumed", n)
	}
	if n := s.Rx.Ready(10); n != 0 {
		t.Errorf("%d ready", n)
	}
	for range 2 {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if err := u.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestRing moves entries between two ends of one ring, as process and kernel.
func TestRing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var words [3]uint32
		entries := make([]uint64, 8)
		start := rapid.OneOf(rapid.Uint32(), rapid.Uint32Min(1<<32-100)).Draw(t, "start") // often just before the wrap
		words[0], words[1] = start, start
		end := func() *Ring[uint64] {
			return &Ring[uint64]{prod: &words[0], cons: &words[1], flag: &words[2], entries: entries, mask: 7, next: start, seen: start}
		}
		p, c := end(), end()
		put, got := uint64(0), uint64(0)
		for range 50 {
			if rapid.Bool().Draw(t, "produce") {
				want := rapid.IntRange(1, 12).Draw(t, "n")
				n := p.Room(want)
				if n != min(want, 8-int(put-got)) {
					t.Fatalf("room for %d, with %d of 8 in the ring", n, put-got)
				}
				for i := range n {
					p.Write(i, put)
					put++
				}
				p.Submit(n)
			} else {
				want := rapid.IntRange(1, 12).Draw(t, "n")
				n := c.Ready(want)
				if n != min(want, int(put-got)) {
					t.Fatalf("%d ready of %d", n, put-got)
				}
				for i := range n {
					if v := c.Read(i); v != got {
						t.Fatalf("read %d, not %d", v, got)
					}
					got++
				}
				c.Release(n)
			}
		}
	})
}
