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

	"pgregory.net/rapid"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/port"
)

func newGuard(tb testing.TB) *Guard {
	tb.Helper()
	root(tb)
	g, err := NewGuard()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := g.Close(); err != nil {
			tb.Error(err)
		}
	})
	return g
}

const (
	guardVA   = 0x7F00_1234_5678
	guardSwap = 0x0000_9001_0008_0800
)

// guards has the word at guardVA of a server guarded from all but guardSwap's.
func guards(g *Guard, servers ...netip.Addr) {
	for _, a := range servers {
		w := port.WordAt(port.Words(a), guardVA)
		g.Put(w, w.Place(guardSwap))
	}
}

// atomicBTH is an atomic from its BTH on, behind own bytes of another extended header.
func atomicBTH(op byte, own int, va, swap uint64) []byte {
	b := make([]byte, 12+own+28+4)
	b[0], b[2], b[3], b[7] = op, 0xFF, 0xFF, 9
	binary.BigEndian.PutUint64(b[12+own:], va)
	binary.BigEndian.PutUint64(b[12+own+12:], swap)
	return b
}

// guardFrame is a frame, and whether it is held by a guard of guardVA at both
// addresses.
type guardFrame struct {
	name  string
	frame []byte
	held  bool
}

func guardFrames() (all []guardFrame) {
	for tags := range 4 {
		for _, x := range []struct {
			name string
			q    port.QueuePair
			v1   bool
		}{{"v4", bound4, false}, {"v6", bound6, false}, {"v1", bound6, true}, {"v1 mapped", bound4, true}} {
			add := func(what string, bth []byte, held bool) {
				all = append(all, guardFrame{fmt.Sprintf("%s, %d tags, %s", x.name, tags, what), carry(x.q, tags, x.v1, bth), held && tags < 3})
			}
			const other = guardSwap + 1<<28
			add("CAS", atomicBTH(0x13, 0, guardVA, other), true)
			add("CAS that links the same", atomicBTH(0x13, 0, guardVA, guardSwap|7<<11), false)
			add("CAS of the next word", atomicBTH(0x13, 0, guardVA+8, other), false)
			for op := range 256 {
				own := 0
				if op>>5 == 5 {
					own = 4
				}
				atomic := op&0x1F == 0x13 || op&0x1F == 0x14 || op&0x1F == 0x18 || op&0x1F == 0x19
				add(fmt.Sprintf("opcode %#x", op), atomicBTH(byte(op), own, guardVA, other), atomic && (own == 4 || op < 0x20))
			}
			far := x.q
			far.Addr = far.Addr.Next()
			all = append(all, guardFrame{x.name + " to another server", carry(far, tags, x.v1, atomicBTH(0x13, 0, guardVA, other)), false})
		}
	}
	for _, f := range []struct{ op, own int }{{0x13, 0}, {0xB3, 4}} {
		bth := atomicBTH(byte(f.op), f.own, guardVA, 0)
		for n := range len(bth) {
			all = append(all, guardFrame{fmt.Sprintf("opcode %#x, %d bytes", f.op, n), carry(bound4, 0, false, bth[:n]), n >= 12+f.own+20})
		}
	}
	return all
}

// While no worker takes them, just the atomics to guarded words do not cross, for as
// long as the guard holds; nor do frames to bound queue pairs where those are, too.
func TestGuarded(t *testing.T) {
	root(t)
	for _, c := range []struct {
		name string
		f    port.Filter
	}{
		{"RoCE", port.Filter{RoCE: true}},
		{"hosts", port.Filter{RoCE: true, Hosts: []netip.Addr{bound4.Addr, bound6.Addr}}},
		{"all", port.Filter{All: true}},
		{"bound", port.Filter{RoCE: true, Bound: true}},
	} {
		c.f.Guarded = true
		mine := part(t, here, ProgramSpec{Filter: c.f, Cross: Pass, Stale: time.Minute}, 1)
		mine.Guard, mine.Bound = newGuard(t), newSet(t)
		p := program(t, mine)
		check := func(when string, live bool, held func(guardFrame) bool) {
			t.Helper()
			for _, f := range guardFrames() {
				want := uint32(xdpPass)
				if live {
					want = xdpRedirect
				} else if held(f) {
					want = xdpDrop
				}
				if act, _, err := p.Prog.Test(f.frame); err != nil || act != want && !(live && act == xdpPass) {
					t.Fatalf("%s, %s, %s: action %d, not %d (%v)", c.name, when, f.name, act, want, err)
				}
			}
		}
		none := func(guardFrame) bool { return false }
		held := func(f guardFrame) bool { return f.held }
		check("nothing is guarded", false, none)
		guards(mine.Guard, bound4.Addr, bound6.Addr)
		check("guarded", false, held)
		const margin = 15 * time.Second // a busy machine takes seconds for a check
		atomic.AddUint64(mine.Guard.Seen(), ^uint64(port.GuardFor-margin))
		check("nearly over", false, held)
		atomic.AddUint64(mine.Guard.Seen(), ^uint64(2*margin))
		check("over", false, none)
		atomic.StoreUint64(mine.Guard.Seen(), uint64(clock.Kernel()))
		alive(t, mine)
		check("alive", true, none)
		atomic.StoreUint64(mine.State.Heartbeat(0), 1)
		check("stale", false, held)
		if c.f.Bound {
			if err := mine.Bound.Put(port.QueuePair{Addr: bound4.Addr, QPN: 9}, true); err != nil {
				t.Fatal(err)
			}
			if act, _, _ := p.Prog.Test(carry(bound4, 0, false, atomicBTH(0, 0, 0, 0))); act != xdpDrop {
				t.Errorf("a frame to a bound queue pair: action %d", act)
			}
		}
		mine.Guard.Replace(port.NewGuard(nil))
		if act, _, _ := p.Prog.Test(carry(bound6, 0, false, atomicBTH(0x13, 0, guardVA, 0))); act != xdpPass {
			t.Errorf("%s: nothing is guarded again: action %d", c.name, act)
		}
	}
}

// TestGuardAgrees: the program and port.Guard hold the same, whatever is guarded.
func TestGuardAgrees(t *testing.T) {
	mine := part(t, here, ProgramSpec{Filter: port.Filter{RoCE: true, Guarded: true}, Cross: Pass}, 1)
	mine.Guard = newGuard(t)
	p := program(t, mine)
	held := 0
	rapid.Check(t, func(t *rapid.T) {
		mine.Guard.Replace(port.NewGuard(nil))
		q := port.QueuePair{Addr: netip.AddrFrom4([4]byte(rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, "v4")))}
		if rapid.Bool().Draw(t, "v6") {
			q.Addr = netip.AddrFrom16([16]byte(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "v6 address")))
		}
		va, swap := rapid.Uint64().Draw(t, "va"), rapid.Uint64().Draw(t, "swap")
		w := port.WordAt(port.Words(q.Addr), va)
		for range rapid.IntRange(0, 9).Draw(t, "places") {
			v := w.Place(rapid.SampledFrom([]uint64{swap, swap ^ 1<<18, swap ^ 1<<19, swap ^ 1<<63}).Draw(t, "place"))
			if rapid.Bool().Draw(t, "another word") {
				v ^= 1 << rapid.IntRange(33, 63).Draw(t, "bit")
			}
			mine.Guard.Put(w, v)
		}
		bth := atomicBTH(0x13, 0, va, swap)
		want := mine.Guard.Stops(q.Addr, bth)
		if want {
			held++
		}
		act, _, err := p.Prog.Test(carry(q, rapid.IntRange(0, 2).Draw(t, "tags"), false, bth))
		if err != nil || (act == xdpDrop) != want {
			t.Fatalf("action %d, %v; port.Guard stops it: %v", act, err, want)
		}
	})
	if held == 0 {
		t.Error("nothing was held")
	}
}

// A program keeps its guard, also when its filter is Closed; what is stored there holds
// when the process has let go of it, and its memory stays while somebody has it.
func TestGuardKept(t *testing.T) {
	root(t)
	frame := carry(bound4, 0, false, atomicBTH(0x13, 0, guardVA, 0))
	for _, filter := range []port.Filter{{RoCE: true, Guarded: true}, {RoCE: true, Guarded: true, Closed: true, Bound: true}} {
		mine := part(t, here, ProgramSpec{Filter: filter, Cross: Pass}, 1)
		mine.Bound = newSet(t)
		if _, err := Load(PortProgram, mine); err == nil {
			t.Error("loaded without a guard")
		}
		g, err := NewGuard()
		if err != nil {
			t.Fatal(err)
		}
		mine.Guard = g
		p := program(t, mine)
		words := g.Guard
		if err := g.Close(); err != nil {
			t.Error(err)
		}
		mine.Guard, g = nil, nil
		runtime.GC()
		guards(&Guard{Guard: words}, bound4.Addr)
		if act, _, err := p.Prog.Test(frame); err != nil || act != xdpDrop {
			t.Errorf("%+v: action %d, %v", filter, act, err)
		}
		next, err := (&Attached{Prog: p.Prog, ifindex: here}).Guard()
		if err != nil || next == nil || !next.Stops(bound4.Addr, atomicBTH(0x13, 0, guardVA, 0)) {
			t.Fatalf("%+v: the guard is gone (%v)", filter, err)
		}
		if err := next.Close(); err != nil {
			t.Error(err)
		}
		runtime.KeepAlive(words)
	}
	none := program(t, part(t, here, ProgramSpec{Filter: port.Filter{RoCE: true, Closed: true}, Cross: Pass}, 1))
	if g, err := (&Attached{Prog: none.Prog, ifindex: here}).Guard(); g != nil || err != nil {
		t.Errorf("a program that has no guard has %v, %v", g, err)
	}
}

// TestGuardedStays: what stays in Replace is held all the time.
func TestGuardedStays(t *testing.T) {
	mine := part(t, here, ProgramSpec{Filter: port.Filter{RoCE: true, Guarded: true}, Cross: Pass}, 1)
	mine.Guard = newGuard(t)
	p := program(t, mine)
	frame := carry(bound4, 0, false, atomicBTH(0x13, 0, guardVA, 0))
	stays := port.WordAt(port.Words(bound4.Addr), guardVA)
	var some [2]*port.Guard
	for i := range some {
		some[i] = port.NewGuard(nil)
		all := []uint64{stays.Place(guardSwap), 3, 5, 7, 9}
		if i == 1 {
			slices.Reverse(all)
			all = all[1:]
		}
		for _, v := range all {
			some[i].Put(stays, v)
		}
	}
	mine.Guard.Replace(some[0])
	done := make(chan error)
	go func() {
		defer close(done)
		for i := range 20000 {
			mine.Guard.Replace(some[i%2])
		}
	}()
	for n := 0; ; n++ {
		select {
		case <-done:
			t.Logf("%d frames", n)
			return
		default:
		}
		if act, _, err := p.Prog.Test(frame); err != nil || act != xdpDrop {
			t.Error(errors.Join(err, fmt.Errorf("action %d", act)))
			<-done
			return
		}
	}
}
