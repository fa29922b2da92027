package clover

import (
	"slices"
	"testing"
	"unsafe"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
)

func stateOf(t *testing.T, workers int) *state {
	t.Helper()
	cfg, err := parseArgs(graph.Args{"keys": "4", "conns": "4"})
	if err != nil {
		t.Fatal(err)
	}
	return newState(cfg, workers)
}

// What a worker changes, and what each turn changes, shares no line of the cache with what
// other workers read meanwhile.
func TestLines(t *testing.T) {
	for name, size := range map[string]uintptr{
		"turn": unsafe.Sizeof(turn{}), "row": unsafe.Sizeof(row{}), "openOps": unsafe.Sizeof(openOps{}), "freeNotes": unsafe.Sizeof(freeNotes{}),
		"a connection's ops": window * unsafe.Sizeof(op{}), "parsed": unsafe.Sizeof(parsed{}),
	} {
		if size%line != 0 {
			t.Errorf("%s: %d bytes are no whole lines", name, size)
		}
	}
	var s state
	read := unsafe.Offsetof(s.cfg) + unsafe.Sizeof(s.cfg)
	if changed := unsafe.Offsetof(s.chains); changed < read+line-1 {
		t.Errorf("what changes begins at %d, what is read ends at %d", changed, read)
	}
	for name, at := range map[string]uintptr{"conns": unsafe.Offsetof(s.conns), "ops": unsafe.Offsetof(s.ops), "settled": unsafe.Offsetof(s.settled), "open": unsafe.Offsetof(s.open)} {
		if at < unsafe.Sizeof(s.atKeys) || at >= read {
			t.Errorf("%s is not among what is read", name)
		}
	}
	if first, end := unsafe.Offsetof(s.booked), unsafe.Offsetof(s.addrs)+unsafe.Sizeof(s.addrs); first%line != 0 || end != first+line {
		t.Errorf("what most turns change is at %d to %d, and no line", first, end)
	}
}

// A frame that was looked at takes two lines, and not three.
func TestLinesOfBatch(t *testing.T) {
	app, err := newApp(graph.Env{Workers: 1, Share: func(f func() any) any { return f() }}, graph.Args{"keys": "4", "conns": "4"})
	if err != nil {
		t.Fatal(err)
	}
	s := app.(*Steer)
	if at := uintptr(unsafe.Pointer(&s.batch[0])); at%line != 0 || unsafe.Sizeof(s.batch[0]) != 2*line {
		t.Errorf("%d bytes, the first at %#x", unsafe.Sizeof(s.batch[0]), at)
	}
}

// Whatever the order of gaps, all those that an entry ends are over, and those that were
// over behind them, and no other one.
func TestGapsInAnyOrder(t *testing.T) {
	gaps := []gap{{key: 0, n: 1, lh: 5}, {key: 0, n: 2, over: true}, {key: 0, n: 3, over: true}, {key: 1, n: 1, lh: 5}, {key: 2, n: 1, lh: 6}}
	var try func(done, left []gap)
	try = func(done, left []gap) {
		for i := range left {
			try(append(slices.Clone(done), left[i]), slices.Delete(slices.Clone(left), i, i+1))
		}
		if len(left) > 0 {
			return
		}
		s := stateOf(t, 1)
		for i := range s.keys.s {
			s.keys.s[i].sent = 4
		}
		s.gaps = append(s.gaps, done...)
		if s.relinked(0, 5, 0, true); len(s.gaps) != 1 || s.gaps[0] != gaps[4] {
			t.Fatalf("%+v: left are %+v", done, s.gaps)
		}
		for i, want := range []uint32{3, 1, 0} {
			if got := s.keys.s[i].sure; got != want {
				t.Fatalf("%+v: key %d is linked up to %d, want %d", done, i, got, want)
			}
		}
	}
	try(nil, gaps)
}

// Each worker has records of its own, which come back to it, and when it has none it takes
// others'.
func TestNotesOfWorkers(t *testing.T) {
	j := journal{b: make([]byte, journalLen), free: make([]freeNotes, 3)}
	for i := range int32(maxNotes) {
		j.put(i)
	}
	took := map[int32]bool{}
	take := func(worker int) int32 {
		f := j.from(worker)
		i := f.list[len(f.list)-1]
		f.list = f.list[:len(f.list)-1]
		if took[i] {
			t.Fatalf("record %d was taken twice", i)
		}
		took[i] = true
		return i
	}
	own := make([]int, 3)
	for w := range own {
		own[w] = len(j.free[w].list)
		if own[w] < maxNotes/3 {
			t.Errorf("worker %d has %d records", w, own[w])
		}
	}
	for range maxNotes {
		take(2)
	}
	if n := j.left(); n != 0 || len(j.from(1).list) != 0 {
		t.Errorf("%d records are left", n)
	}
	for i := range took {
		j.put(i)
	}
	for w := range own {
		if n := len(j.free[w].list); n != own[w] {
			t.Errorf("worker %d has %d records, and had %d", w, n, own[w])
		}
	}
}

// One worker repairs for all.
func TestRepairsOfAll(t *testing.T) {
	st := stateOf(t, 3)
	for w := range 3 {
		o := &st.ops[w*window]
		*o = op{kind: opCAS, steered: true, live: true}
		(&desk{state: st, worker: w}).enlist(o, int32(w*window), 0)
	}
	st.keys.s[0].cuts = 1 // they will not be linked, so no frame is made
	first := repairs{&desk{state: st}}
	first.repair(nil, clock.Time(0).Add(st.cfg.repair))
	for w := range 3 {
		if o := &st.ops[w*window]; o.repairs != 1 || o.list != 1 {
			t.Errorf("what worker %d met: %d repairs, list %d", w, o.repairs, o.list)
		}
		st.close(&st.ops[w*window])
	}
	for w := range st.open {
		if x := &st.open[w]; x.n != 0 || x.lists != [maxRepairs + 1]opList{} {
			t.Errorf("worker %d still has %+v", w, *x)
		}
	}
}
