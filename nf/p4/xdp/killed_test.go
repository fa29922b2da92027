package xdp

import (
	"bytes"
	"slices"
	"strconv"
	"testing"

	"github.com/quillon/quillon/internal/xsk"
	"github.com/quillon/quillon/nf/p4"
)

// killedAfter has a process end behind so many stores of a change, and returns how many it made. Go code does not go on behind the store; the
// program in the kernel does.
func killedAfter(hook *func(word int, x uint64), stores int, change func() error) (made int, err error) {
	type killed struct{}
	store := *hook
	defer func() {
		*hook = store
		if x := recover(); x != nil && x != any(killed{}) {
			panic(x)
		}
	}()
	*hook = func(word int, x uint64) {
		if made == stores {
			panic(killed{})
		}
		made++
		store(word, x)
	}
	return made, change()
}

// moments makes a change, and returns numbers of stores of which each may be the last one: those in front of and behind a store to the slots in
// use and to the generation, at most 24, and those of the whole change.
func moments(r random, hook *func(word int, x uint64), v *vectors, change func() error) (at []int, err error) {
	store, all := *hook, 0
	defer func() { *hook = store }()
	*hook = func(word int, x uint64) {
		if word == generationAt || word >= v.live(0) && word < v.numbers(0) || word >= v.live(1) && word < v.numbers(1) {
			at = append(at, all, all+1)
		}
		all++
		store(word, x)
	}
	err = change()
	for len(at) > 22 {
		i := r.IntN(len(at))
		at = slices.Delete(at, i, i+1)
	}
	at = append(at, 0, all)
	slices.Sort(at)
	return slices.Compact(at), err
}

// TestKilledBetweenStores: of a process that is killed between any two stores of a change, frames see the entries before or after it, and the next
// process finds the counts of the others.
func TestKilledBetweenStores(t *testing.T) {
	src := bytes.Replace(pairs(t, "range"), []byte(`"max_size":`+strconv.Itoa(mostPairs)), []byte(`"with_counters":true,"max_size":`+strconv.Itoa(mostPairs)), 1)
	r := newRandom(t)
	entry := func(low, high, value uint64, priority int32) p4.Entry {
		return p4.Entry{Key: []p4.Match{{Value: bigEndian(low), Mask: bigEndian(high)}}, Priority: priority,
			Action: p4.Action{Name: "set", Args: [][]byte{bigEndian(value), bigEndian(value)}}}
	}
	stays := entry(0x101, 0x8210, 1, 50)
	start := func() (w *twin, changed p4.Handle) {
		w = newTwinOf(t, src, true)
		insert := func(e p4.Entry) p4.Handle {
			h, err := w.sw.Insert("t", e)
			if err != nil {
				t.Fatal(err)
			}
			return h
		}
		insert(stays)
		for n := range uint64(150) { // others, so that pieces lie in several words
			insert(entry(0x9001+n, 0x9210+7*n, 5, 10+int32(n%40)))
		}
		for n := uint64(0); ; n++ { // its pieces lie in two words
			prio := int32(20 + n%30)
			changed = insert(entry(0x102, 0x820f, 2, prio))
			v := w.x.tables[0].vectors
			if i := slices.Index(v.used, v.latest); v.used[i].slot/64 != v.used[i+2].slot/64 {
				return w, changed
			}
			if err := w.sw.Delete("t", changed); err != nil {
				t.Fatal(err)
			}
			insert(entry(0x9001+n, 0x9f10, 5, prio))
		}
	}
	changes := []struct {
		name   string
		states []uint64 // what a frame that meets the changed entry sees, before and after
		more   int      // entries
		do     func(w *twin, h p4.Handle) error
	}{
		{"delete", []uint64{2, 1}, -1, func(w *twin, h p4.Handle) error { return w.sw.Delete("t", h) }},
		{"modify", []uint64{2, 3}, 0, func(w *twin, h p4.Handle) error {
			return w.sw.Modify("t", h, p4.Entry{Action: entry(0, 0, 3, 0).Action})
		}},
		{"insert", []uint64{2, 4}, 1, func(w *twin, _ p4.Handle) error {
			_, err := w.sw.Insert("t", entry(0x103, 0x820e, 4, 19))
			return err
		}},
	}
	for _, c := range changes {
		t.Run(c.name, func(t *testing.T) {
			w, h := start()
			at, err := moments(r, &w.x.tables[0].vectors.store, w.x.tables[0].vectors.vectors, func() error { return c.do(w, h) })
			if err != nil {
				t.Fatal(err)
			}
			last := 0
			for _, n := range at {
				w, h := start()
				for range 7 {
					_, _, _, _ = w.inKernel(1, padded(0x101)) // hits the one that stays
				}
				before := 0
				_ = w.sw.Entries("t", func(p4.Handle, p4.Entry) bool { before++; return true })
				v := w.x.tables[0].vectors.vectors
				_, _ = killedAfter(&v.store, n, func() error { return c.do(w, h) })
				hits := uint64(7)
				for i, key := range []uint16{0x180, 0x5000, 0x8208} { // in each of its pieces
					outcome, _, out, _ := w.inKernel(1, padded(key))
					state := -1
					if outcome == Forwarded {
						state = slices.Index(c.states, uint64(out[9]))
					}
					if state < last || i > 0 && state != last {
						t.Fatalf("killed behind %d of %d stores: key %x: outcome %d, state %d, before it was %d, frame %x", n, at[len(at)-1], key, outcome, state, last, out[:18])
					}
					if last = state; c.states[state] == 1 {
						hits++
					}
				}
				want := before + c.more*last
				if got, rows := w.nextCounts(src, stays); got != hits || rows != want {
					t.Fatalf("killed behind %d of %d stores: the next process finds %d frames of an entry, want %d, and %d entries, want %d", n, at[len(at)-1], got, hits, rows, want)
				}
			}
			if last != 1 {
				t.Errorf("behind all stores the change is not seen")
			}
		})
	}
}

// nextCounts is how many frames of an entry the next process finds, and how many entries.
func (w *twin) nextCounts(src []byte, e p4.Entry) (frames uint64, entries int) {
	w.Helper()
	prog, tree, err := p4.LoadTree(src)
	if err != nil {
		w.Fatal(err)
	}
	sw, err := p4.NewSwitch(prog, p4.Config{})
	if err != nil {
		w.Fatal(err)
	}
	o := Options{From: []Source{{Index: loopback, Port: 1}}, To: w.x.to, Outlives: true}
	if o.Left, err = (&xsk.Attached{Prog: w.x.Program()}).AllMaps(); err != nil {
		w.Fatal(err)
	}
	for _, m := range o.Left {
		defer m.Close()
	}
	x, err := New(tree, sw.Config(), o)
	if err != nil {
		w.Fatal(err)
	}
	defer x.Close()
	if !x.Inherits() {
		w.Fatal("it does not inherit")
	}
	x.Begin(sw, 0)
	entries = len(x.old.rows[0])
	h, err := sw.Insert("t", e)
	if err != nil {
		w.Fatal(err)
	}
	c, err := sw.EntryCount("t", h)
	if err != nil {
		w.Fatal(err)
	}
	return c.Packets, entries
}

// TestKilledValueSet: of a process that is killed while it changes the members of a value set, frames see those before or after the change at
// all transitions, also when the members are as many as fit.
func TestKilledValueSet(t *testing.T) {
	r := newRandom(t)
	for _, more := range []uint64{0, maxValues - 2} {
		set := func(w *twin, all ...uint64) error {
			for n := range more {
				all = append(all, 1000+n)
			}
			return w.sw.SetValueSet("vs", values(all...))
		}
		start := func() *twin {
			w := newTwin(t, askingOf(t, 2))
			if err := set(w, 3, 5); err != nil {
				t.Fatal(err)
			}
			return w
		}
		w := start()
		s := w.x.vsets[0]
		at, err := moments(r, &s.store, s.in[0], func() error { return set(w, 7, 5) })
		if err != nil {
			t.Fatal(err)
		}
		last := 0
		for _, n := range at {
			w := start()
			_, _ = killedAfter(&w.x.vsets[0].store, n, func() error { return set(w, 7, 5) })
			var to [6]uint32
			for i, key := range []uint16{3, 5, 7} {
				_, to[i], _, _ = w.inKernel(1, askingFrame(key, 9))
				_, to[3+i], _, _ = w.inKernel(1, askingFrame(9, key))
			}
			state := slices.Index([][6]uint32{{3, 3, 2, 3, 3, 2}, {2, 3, 3, 2, 3, 3}}, to)
			if state < last {
				t.Fatalf("killed behind %d of %d stores: keys 3, 5 and 7 go to ports %v", n, at[len(at)-1], to)
			}
			last = state
		}
		if last != 1 {
			t.Error("behind all stores the change is not seen")
		}
	}
}
