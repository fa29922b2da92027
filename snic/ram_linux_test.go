package snic

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
)

// until waits for something that is done beside the test.
func until(t *testing.T, what string, done func() bool) {
	t.Helper()
	wall := clock.NewWall()
	for end := wall.Now().Add(10 * time.Second); !done(); runtime.Gosched() {
		if wall.Now() > end {
			t.Fatal("not in time: ", what)
		}
	}
}

// What a board has taken of the machine's memory is given back when another takes its place.
func TestMemoryGivenBack(t *testing.T) {
	x := onMemory(t, fmt.Sprintf(touching, "16k", "", "", "8k"), "memory", "16M")
	old := x.App().(*board).memory.ram
	for i := 0; i < len(old.bytes); i += 4096 {
		old.bytes[i] = 1
	}
	if err := x.Set(graph.Args{"memory": "8M"}); err != nil {
		t.Fatal(err)
	}
	until(t, "given back", func() bool {
		for i := 0; i < len(old.bytes); i += 4096 {
			if old.bytes[i] != 0 {
				return false
			}
		}
		return true
	})
	if x.App().(*board).memory.ram == old {
		t.Error("the same board")
	}
}

// Memory that nobody has any more is unmapped, and not before.
func TestMemoryUnmapped(t *testing.T) {
	mapped := func(at uintptr) bool {
		text, err := os.ReadFile("/proc/self/maps")
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range strings.Split(string(bytes.TrimSpace(text)), "\n") {
			var from, to uintptr
			if _, err := fmt.Sscanf(line, "%x-%x", &from, &to); err != nil {
				t.Fatal(err)
			}
			if from <= at && at < to {
				return true
			}
		}
		return false
	}
	r, err := newRAM(64 << 20)
	if err != nil {
		t.Fatal(err)
	}
	at := uintptr(unsafe.Pointer(&r.bytes[32<<20]))
	runtime.GC()
	runtime.GC()
	if !mapped(at) {
		t.Fatal("unmapped while it is in use")
	}
	runtime.KeepAlive(r)
	r = nil
	until(t, "unmapped", func() bool { runtime.GC(); return !mapped(at) })
}

// Pages that a board keeps for peers, or has under way, stay where they are until its Pager has done with them, though
// another board has taken its place.
func TestPagesOfAnotherBoard(t *testing.T) {
	r := rackWithMemory(t, []string{alone("4k"), alone("4k")})
	r.run(30 * time.Millisecond)
	if err := r.members[0].Set(graph.Args{"deployment": alone("100k")}); err != nil {
		t.Fatal(err)
	}
	n := 0
	touch := func() {
		if r.now%(200*time.Microsecond) == 0 {
			r.push(0, "p0", flows(1, 200)[n%200])
			n++
		}
	}
	r.run(100*time.Millisecond, touch)
	if r.members[1].join.Keeps() == 0 {
		t.Fatal("nothing is away")
	}
	old := r.memory(1).ram
	if err := r.members[1].Set(graph.Args{"memory": "128k"}); err != nil {
		t.Fatal(err)
	}
	p := &r.members[1].join.pages
	if p.ram != old || slices.Max(old.bytes) == 0 {
		t.Fatal("it is gone while pages are there")
	}
	r.run(30*time.Millisecond, touch)
	if p.ram != r.memory(1).ram || p.ram == old {
		t.Error("the pages are those of another board")
	}
	until(t, "given back", func() bool { return slices.Max(old.bytes) == 0 })
	r.check()
	// The task whose pages were there is told that they are lost.
	if v := taskOf(r.members[0].Test, "a"); !strings.HasSuffix(v.Fault, "is lost with the board that had it") {
		t.Errorf("%+v", v)
	}
}
