package clover

import (
	"testing"
	"time"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	wire "github.com/quillon/quillon/nf/hdr/clover"
)

// strangerGoes reports whether a CAS of another client's at an address goes on.
func (x *crashed) strangerGoes(at uint64) bool {
	x.t.Helper()
	_, cas := x.frames(x.Push("a", frameOf{src: x.client, dst: x.server, sport: 0xC040, op: hdr.CompareSwap, qpn: 0x40, psn: 7, ext: atomicETH(at, x.rkey, x.swap(0x9777, 1, 1), uint64(wire.Fresh(1)))}.bytes()))
	return cas[0x40] != nil
}

// awaitsEnd sends no answers, and checks whether others' atomics go on after a minute.
func (x *crashed) awaitsEnd(what string) {
	x.t.Helper()
	for i := 0; i < 7; i++ {
		x.Advance(10 * time.Second)
	}
	if !x.strangerGoes(entryAt(0x9001)) {
		x.t.Errorf("%s: others still wait after 70 s", what)
	}
}

// TestAwaitsOnlyWhatMayCome: a server whose answer is past a CAS on record has executed that CAS, though it
// does not repeat the result. Others' atomics do not wait for it any more. An answer with an earlier PSN than
// the server had reached on record comes from another connection.
func TestAwaitsOnlyWhatMayCome(t *testing.T) {
	for psn, goes := range map[uint32]bool{107: true, 108: false, 109: true, 110: true, 300: true} {
		x := crash(t, graph.Args{}).next(graph.Args{}, time.Second)
		x.Advance(time.Millisecond)
		if x.strangerGoes(entryAt(0x9001)) {
			t.Fatal("nobody waits")
		}
		x.ack(0x20, psn)
		if x.strangerGoes(entryAt(0x9001)) != goes {
			t.Errorf("the server has executed all up to %d: others go on is %v", psn, !goes)
		}
	}
}

// A flush takes CASes over anew whose repairs are exhausted, or nearly.
func TestAwaitsEndAfterFlush(t *testing.T) {
	for _, after := range []time.Duration{0, time.Second, 4 * time.Second, 9 * time.Second, 12 * time.Second, 25 * time.Second} {
		x := crash(t, graph.Args{"idle": "0"})
		for at := time.Duration(0); at < after; at += time.Second {
			x.Advance(time.Second)
		}
		x.App().(graph.Flusher).Flush(nil)
		x.Advance(20 * time.Millisecond)
		x.Advance(1300 * time.Millisecond)
		if !x.strangerGoes(entryAt(0x9001)) {
			t.Errorf("flush after %v: others wait 1.3 s later", after)
		}
		x.awaitsEnd("flush after " + after.String())
	}
}

// Repairs are turned off, or made slow, while others wait.
func TestAwaitsEndAtReconfigure(t *testing.T) {
	for _, repair := range []string{"0", "1h"} {
		x := crash(t, graph.Args{}).next(graph.Args{}, time.Second)
		x.Advance(time.Millisecond)
		if x.strangerGoes(entryAt(0x9001)) {
			t.Fatal("nobody waits")
		}
		if err := x.App().(graph.Reconfigurer).Reconfigure(graph.Args{"settle": "0", "repair": repair}); err != nil {
			t.Fatal(err)
		}
		x.awaitsEnd("repair=" + repair)
	}
	x := crash(t, graph.Args{}).next(graph.Args{"repair": "10s"}, time.Second)
	x.Advance(time.Millisecond)
	x.awaitsEnd("repair=10s from the start")
}

// A word is guarded no longer when its record is too old to be taken over.
func TestGuardOfOld(t *testing.T) {
	x := crash(t, graph.Args{"idle": "0"})
	for range 12 {
		x.Advance(10 * time.Second)
	}
	if x.atomic(0x9777, entryAt(0x9001)) {
		t.Error("two minutes later, when its record is too old, the word is still guarded")
	}
}
