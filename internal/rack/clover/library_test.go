package clover

import (
	"testing"
	"time"

	"github.com/quillon/quillon/internal/rack/ycsb"
	wire "github.com/quillon/quillon/nf/hdr/clover"
)

// stale is a rack on which one node knows only the first entry of a key. Another node has appended n
// entries, and no shortcut was written yet.
func stale(t *testing.T, search Search, direct bool, n int) *rig {
	t.Helper()
	r := newRig(t, Config{Keys: ycsb.Sequential(1, 1), Entries: 512 + 3*n, Sessions: 1, Search: search, Direct: direct, Nap: time.Hour}, 2, 1)
	for node := range 2 {
		if x := r.op(node, 0, false, 1, nil); x.Err != nil {
			t.Fatal(x.Err)
		}
	}
	for range n {
		if x := r.op(0, 0, true, 1, make([]byte, 8)); x.Err != nil || !x.FirstTry {
			t.Fatalf("%+v", x)
		}
	}
	return r
}

// A reader reads whole entries however long the chain is, as Clover's library does.
func TestLibraryReadsWholeEntries(t *testing.T) {
	const n = 2000
	r := stale(t, SearchLibrary, true, n)
	x := r.op(1, 0, false, 1, nil)
	if x.Err != nil || x.RoundTrips != n+2 {
		t.Errorf("%d round trips, not %d: %v", x.RoundTrips, n+2, x.Err)
	}
	if h := r.cl.ClientStats().HeaderReads; h != 0 {
		t.Errorf("%d READs of headers", h)
	}
}

// A search goes on from the shortcut, even if the shortcut names the entry where the search began. A write
// does so after each CAS that failed, and reads the header of its own entry unless nothing in the network
// leads CASes.
func TestLibrarySearch(t *testing.T) {
	for _, c := range []struct {
		search      Search
		direct      bool
		read, write int // round trips
	}{
		// A write: WRITE, CAS, headers of T and of three behind it, CAS.
		{SearchHeaders, false, 0, 7},
		// Read: the entry with the shortcut, the entry again, three more entries. Write: WRITE, CAS, the
		// header with the shortcut, the header again, three more headers, CAS.
		{SearchLibrary, true, 5, 9},
		{SearchLibrary, false, 5, 10},
	} {
		r := stale(t, c.search, c.direct, 3)
		if c.search == SearchHeaders {
			r.settle()
		}
		if x := r.op(1, 0, false, 1, nil); x.Err != nil || x.FirstTry || c.search == SearchLibrary && x.RoundTrips != c.read {
			t.Errorf("%v: a read takes %d round trips, not %d: %v", c.search, x.RoundTrips, c.read, x.Err)
		}
		r = stale(t, c.search, c.direct, 3)
		if x := r.op(1, 0, true, 1, make([]byte, 8)); x.Err != nil || x.FirstTry || x.RoundTrips != c.write {
			t.Errorf("%v, direct=%v: a write takes %d round trips, not %d: %v", c.search, c.direct, x.RoundTrips, c.write, x.Err)
		}
		if v := r.cl.Integrity(); v.InChain != 5 || v.BrokenLinks != 0 {
			t.Errorf("%v: %+v", c.search, v)
		}
	}
}

// A thread that sleeps finds the records of the writes meanwhile, and writes the oldest entry of each key to
// its shortcut.
func TestLibraryNaps(t *testing.T) {
	const nap = 200 * time.Microsecond
	r := newRig(t, Config{Keys: ycsb.Sequential(1, 1), Entries: 512, Sessions: 1, Search: SearchLibrary, Nap: nap}, 1, 1)
	var first Pointer
	begun := r.clk.Now()
	for i := range 3 {
		x := r.op(0, 0, true, 1, make([]byte, 8))
		if x.Err != nil {
			t.Fatal(x.Err)
		}
		if i == 0 {
			first, begun = x.Entry, x.End
		}
	}
	c := r.cl.compute[0].c
	if st := c.Stats(); st.ShortcutWrites != 0 || c.Quiet() {
		t.Skipf("three writes took longer than a nap: %+v", st)
	}
	r.settle()
	st := c.Stats()
	if took := r.clk.Now().Sub(begun); st.ShortcutWrites != 1 || st.GCRecord != 3 || took > 2*nap {
		t.Errorf("%+v after %v", st, took)
	}
	s, va := r.cl.meta.layout.Shortcut(c.keys[1].slot)
	if got := pointerAt(r.cl.memory[0].at(s, va, 8), 0); wire.Ref(got.LH(), got.Version()) != first {
		t.Errorf("the shortcut is %v, the oldest entry %v", got, first)
	}
}

// Threads keep entries of their own, and give them back.
func TestLibraryEntries(t *testing.T) {
	r := newRig(t, Config{Keys: ycsb.Sequential(1, 1), Entries: 512, Sessions: 2, Search: SearchLibrary, Nap: time.Microsecond}, 1, 1)
	r.op(0, 0, false, 1, nil)
	for i := range 20 {
		if x := r.op(0, 0, true, 1, make([]byte, 8)); x.Err != nil || x.RoundTrips != 2+b2i(i%GrantMax == 0) {
			t.Fatalf("write %d: %+v", i, x)
		}
	}
	c := r.cl.compute[0].c
	if st := c.Stats(); st.Grants != 2 || c.sessions[1].mine[0].n != 0 || c.sessions[0].mine[0].n != 2*GrantMax-20 {
		t.Errorf("%+v", st)
	}
	c.Release()
	r.settle()
	if n := r.cl.meta.Stats().Retired; n != 2*GrantMax-20 {
		t.Errorf("%d entries came back", n)
	}
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// The library's own work before the first request, and after each round trip, is a part of an operation's
// latency. The program's work between two operations is not.
func TestLibraryWork(t *testing.T) {
	const d = time.Second // more than everything else takes
	for _, c := range []struct {
		name        string
		work        Work
		read, write int // how many times d is in the latency of a read, and of a write
		took        int // how many times d is in the time of both, one after the other
	}{
		{"before", Work{Read: d, Write: 2 * d}, 1, 2, 3},
		{"round trips", Work{Round: d}, 1, 2, 3},
		{"between", Work{Between: d}, 0, 0, 2},
		{"all", Work{Read: d, Write: d, Round: d, Between: d}, 2, 3, 7},
	} {
		// Headers: entries are in stock, so that a write has two round trips.
		r := newRig(t, Config{Keys: ycsb.Sequential(1, 1), Entries: 512, Sessions: 1, Search: SearchHeaders}, 1, 1)
		r.op(0, 0, false, 1, nil)
		r.op(0, 0, true, 1, make([]byte, 8))
		r.cl.compute[0].c.work = c.work
		begun := r.clk.Now()
		read := r.op(0, 0, false, 1, nil)
		write := r.op(0, 0, true, 1, make([]byte, 8))
		if read.Err != nil || write.Err != nil {
			t.Fatal(read.Err, write.Err)
		}
		for _, x := range []struct {
			what string
			took time.Duration
			n    int
		}{{"a read", read.Latency(), c.read}, {"a write", write.Latency(), c.write}, {"both", r.clk.Now().Sub(begun), c.took}} {
			if want := time.Duration(x.n) * d; x.took < want || x.took >= want+d/2 {
				t.Errorf("%s: %s takes %v, not %v", c.name, x.what, x.took, want)
			}
		}
	}
}
