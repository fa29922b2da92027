package xdp

import (
	"encoding/binary"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/quillon/quillon/internal/xsk"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/p4"
	"github.com/quillon/quillon/nf/p4/stf"
)

// survivor is an Executor of the program that adds to registers, which finds no program of its interface: as if its process was dead.
type survivor struct {
	testing.TB
	x  *Executor
	sw *p4.Switch
}

func newSurvivor(t testing.TB, source []byte, before *survivor) *survivor {
	t.Helper()
	prog, tree, err := p4.LoadTree(source)
	if err != nil {
		t.Fatal(err)
	}
	s := &survivor{TB: t}
	if s.sw, err = p4.NewSwitch(prog, p4.Config{}); err != nil {
		t.Fatal(err)
	}
	o := Options{From: []Source{{Index: loopback, Port: 1}}, To: map[uint32]Target{2: {Index: loopback, Longest: 1 << 16}}, Outlives: true, Source: source}
	if before != nil {
		if o.Left, err = (&xsk.Attached{Prog: before.x.Program()}).AllMaps(); err != nil {
			t.Fatal(err)
		}
		for _, m := range o.Left {
			t.Cleanup(func() { _ = m.Close() })
		}
	}
	if s.x, err = New(tree, s.sw.Config(), o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.x.Close() })
	s.x.Begin(s.sw, 0)
	return s
}

// run has frames to a port run, and returns what became of the last.
func (s *survivor) run(port byte, frames int) (code uint32) {
	s.Helper()
	b := make([]byte, 64)
	b[1] = port
	code, err := s.x.prog.Run(&ebpf.RunOptions{Data: b, Repeat: uint32(frames)})
	if err != nil {
		s.Fatal(err)
	}
	return code
}

func (s *survivor) register() uint64 {
	s.Helper()
	b, err := s.sw.Register("a", 1)
	if err != nil {
		s.Fatal(err)
	}
	return binary.BigEndian.Uint64(append(make([]byte, 8-len(b)), b...))
}

func (s *survivor) frames(outcome int) uint64 {
	s.Helper()
	all, err := s.x.Outcomes()
	if err != nil {
		s.Fatal(err)
	}
	return all[outcome].Frames
}

// TestHeritageRegisters: registers and counts go on where a process that was killed has left them, also when it had the registers at that time.
func TestHeritageRegisters(t *testing.T) {
	requireKernel(t)
	source := adding(t)
	a := newSurvivor(t, source, nil)
	if code := a.run(2, 1); code != xdpRedirect || a.register() != 1 {
		t.Fatalf("code %d, register %d", code, a.register())
	}
	if code := a.run(7, 1); code != xdpDrop || a.frames(HeadlessDropped) != 1 || a.register() != 1 {
		t.Errorf("a frame of the engine, of which there is none: code %d, %d dropped, register %d", code, a.frames(HeadlessDropped), a.register())
	}
	a.x.Lock() // and the process is killed
	if code := a.run(2, 1); code != xdpDrop {
		t.Errorf("while the registers are taken: code %d", code)
	}
	if code := a.run(2, 1); code != xdpRedirect {
		t.Errorf("after a frame has found them taken by a process that is gone: code %d", code)
	}
	a.x.Lock()
	b := newSurvivor(t, source, a)
	if got := *b.x.turnWord.word(0); got != 0 {
		t.Errorf("a process that is gone has the registers: %d", got)
	}
	if !b.x.Inherits() || b.register() != 2 {
		t.Errorf("inherits %v, register %d, want 2", b.x.Inherits(), b.register())
	}
	for range 3 { // both programs are there for a moment
		a.run(2, 1)
		b.run(2, 1)
	}
	if got, n := b.register(), b.frames(Forwarded); got != 8 || n != 8 {
		t.Errorf("register %d, %d frames, want 8 of both", got, n)
	}
	b.x.Lock() // of a process that lives: a frame of the program before must not free it
	a.run(2, 1)
	if got := *b.x.turnWord.word(0); got != uint64(b.x.owner) {
		t.Errorf("the registers of the next process were freed: %d", got)
	}
	b.x.Unlock()
	b.x.turnWord.store(0, 1) // of a frame of the program before
	if got := *newSurvivor(t, source, b).x.turnWord.word(0); got != 1 {
		t.Errorf("the registers of a frame were freed: %d", got)
	}
	b.x.turnWord.store(0, 0)
	other := newSurvivor(t, append(source, ' '), b)
	if other.x.Inherits() || other.register() != 0 {
		t.Errorf("another program inherits: %v, register %d", other.x.Inherits(), other.register())
	}
}

// TestHeritageWatched: when the process is killed while somebody watches, the program runs the frames.
func TestHeritageWatched(t *testing.T) {
	requireKernel(t)
	a := newSurvivor(t, adding(t), nil)
	a.x.Watch(0, true)
	if code := a.run(2, 10); code != xdpRedirect || a.register() != 10 {
		t.Errorf("code %d, register %d", code, a.register())
	}
	if finished, given, dropped, err := a.x.sums(); finished != 10 || given != 0 || dropped != 0 || err != nil {
		t.Errorf("finished %d, given %d, dropped %d: %v", finished, given, dropped, err)
	}
	a.x.turn(false) // before it has entries
	if code := a.run(2, 1); code != xdpDrop {
		t.Errorf("without entries: code %d", code)
	}
}

// TestCountsOfKinds: the next process finds the counts of entries of every kind of table, in whatever order it adds the entries.
func TestCountsOfKinds(t *testing.T) {
	kinds := map[sort]int{}
	for n := range 40 {
		r := random{newRandomOf(uint64(1000 + n))}
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			src := (&author{random: r}).program()
			prog, tree, err := p4.LoadTree(src)
			if err != nil || len(prog.Profiles()) > 0 {
				t.Skip("not a program for this test: ", err)
			}
			w := newTwinOf(t, src, true)
			have := handles{}
			for range 60 {
				tables := prog.Tables()
				w.changeTable(r, tables[r.IntN(len(tables))], have)
			}
			for of, all := range have { // what only the Switch counts is not left
				for _, h := range all {
					_ = w.sw.SetEntryCount(of, h, p4.Count{})
				}
			}
			for range 200 {
				_, _, _, _ = w.inKernel(uint32(r.IntN(6)), r.payload())
			}
			if len(w.x.Stopped()) > 0 {
				t.Skip("a table is not in the kernel")
			}
			o := Options{From: []Source{{Index: loopback, Port: 1}}, To: w.x.to, Outlives: true}
			if o.Left, err = (&xsk.Attached{Prog: w.x.Program()}).AllMaps(); err != nil {
				t.Fatal(err)
			}
			for _, m := range o.Left {
				defer m.Close()
			}
			sw, err := p4.NewSwitch(prog, p4.Config{})
			if err != nil {
				t.Fatal(err)
			}
			x, err := New(tree, sw.Config(), o)
			if err != nil {
				t.Fatal(err)
			}
			defer x.Close()
			if !x.Inherits() {
				t.Fatal("it does not inherit")
			}
			x.Begin(sw, 0)
			for i, table := range prog.Tables() {
				var all []p4.Entry
				var want []p4.Count
				_ = w.sw.Entries(table.Name, func(h p4.Handle, e p4.Entry) bool {
					e.Key = slices.Clone(e.Key)
					for k := range e.Key {
						e.Key[k].Value, e.Key[k].Mask = slices.Clone(e.Key[k].Value), slices.Clone(e.Key[k].Mask)
					}
					c, _ := w.sw.EntryCount(table.Name, h)
					all, want = append(all, e), append(want, c)
					return true
				})
				for _, k := range r.Perm(len(all)) {
					h, err := sw.Insert(table.Name, all[k])
					if err != nil {
						t.Fatal(err)
					}
					if got, _ := sw.EntryCount(table.Name, h); table.Counters && got != want[k] {
						t.Errorf("table %s, entry %+v: %v, want %v", table.Name, all[k], got, want[k])
					}
					if kind, _ := sortOf(&tree.Tables[i]); table.Counters && want[k].Packets > 0 {
						kinds[kind]++
					}
				}
			}
			x.old.disown(x) // another process's program goes on, and this one ends
			x.End()
			for _, table := range prog.Tables() {
				_ = sw.Entries(table.Name, func(h p4.Handle, e p4.Entry) bool {
					if got, _ := sw.EntryCount(table.Name, h); got != (p4.Count{}) {
						t.Errorf("table %s, entry %+v: the Switch has taken counts of the program that goes on: %v", table.Name, e, got)
					}
					return true
				})
			}
		})
	}
	if t.Logf("entries that counted, by kind: %v", kinds); kinds[direct] == 0 || kinds[stepped]+kinds[trie] == 0 || kinds[tuples] == 0 {
		t.Error("a kind of table is missing")
	}
}

// TestSuccession: a program takes the place of the one before when its controller has said all, sooner if no table lacks entries.
func TestSuccession(t *testing.T) {
	requireKernel(t)
	source := read(t, "../../../p4src/l2_bridge.json")
	a := newSurvivor(t, source, nil)
	say := func(s *survivor, entries string) {
		t.Helper()
		all, err := stf.Parse(strings.NewReader(entries))
		if err == nil {
			err = stf.Configure(s.sw, all)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	say(a, bridgeEntries)
	smac, dmac, _ := strings.Cut(bridgeEntries, "\n")
	const ms = clock.Time(1e6)
	for _, of := range []struct {
		name, first, second string
		takes               clock.Time // behind the second
	}{{"nothing", "", "", 0}, {"all", smac, dmac, 500 * ms}, {"one table", smac, "", 5000 * ms}} {
		s := newSurvivor(t, source, a)
		k := &kernel{run: &running{x: s.x, waits: true}, waits: succession{on: true, changes: s.x.changes}}
		at := func(now clock.Time, begun bool) {
			t.Helper()
			if k.wait(now); k.waits.begun != begun {
				t.Errorf("%s: after %v it is attached: %v", of.name, now, k.waits.begun)
			}
		}
		at(0, false)
		at(100_000*ms, false)
		if of.first == "" {
			continue
		}
		say(s, of.first)
		at(100_010*ms, false)
		last := 100_010 * ms
		if of.second != "" {
			at(100_500*ms, false)
			say(s, of.second)
			last = 100_505 * ms
			at(last, false)
		}
		at(last+of.takes-ms, false)
		at(last+of.takes, true)
		ended(t, k)
	}
	// A controller that never stops is not waited for without end.
	s := newSurvivor(t, source, a)
	k := &kernel{run: &running{x: s.x, waits: true}, waits: succession{on: true, changes: s.x.changes}}
	for now := clock.Time(0); now <= 10_200*ms; now += 300 * ms {
		s.x.changes++
		if k.wait(now); k.waits.begun != (now > 10_000*ms) {
			t.Errorf("changed each 300 ms, after %v it is attached: %v", now, k.waits.begun)
		}
	}
	ended(t, k)
	// Nothing was there that it could lack.
	k = &kernel{run: &running{x: newSurvivor(t, source, newSurvivor(t, source, nil)).x}, waits: succession{on: true}}
	k.waits.changes = k.run.x.changes
	if k.wait(0); !k.waits.begun {
		t.Error("it waits for entries though none were there before")
	}
	ended(t, k)
}

// TestSuccessionOfValueSets: a program waits for the members of value sets that the one before had.
func TestSuccessionOfValueSets(t *testing.T) {
	requireKernel(t)
	source := askingOf(t, 2)
	const ms = clock.Time(1e6)
	many := make([]uint64, maxValues+1)
	for i := range many {
		many[i] = uint64(i)
	}
	for _, had := range [][]uint64{{3, 5}, many} {
		a := newSurvivor(t, source, nil)
		if err := a.sw.SetValueSet("vs", values(had...)); err != nil {
			t.Fatal(err)
		}
		s := newSurvivor(t, source, a)
		k := &kernel{run: &running{x: s.x, waits: true}, waits: succession{on: true, changes: s.x.changes}}
		at := func(now clock.Time, begun bool) {
			t.Helper()
			if k.wait(now); k.waits.begun != begun {
				t.Errorf("of %d members: after %v it is attached: %v", len(had), now, k.waits.begun)
			}
		}
		at(0, false)
		at(100_000*ms, false)
		if err := s.sw.SetValueSet("vs", values(7)); err != nil {
			t.Fatal(err)
		}
		at(100_010*ms, false)
		at(100_509*ms, false)
		at(100_510*ms, true)
		ended(t, k)
	}
	s := newSurvivor(t, source, newSurvivor(t, source, nil)) // without members
	k := &kernel{run: &running{x: s.x, waits: true}, waits: succession{on: true, changes: s.x.changes}}
	if k.wait(0); !k.waits.begun {
		t.Error("it waits for members though none were there before")
	}
	ended(t, k)
}

// ended waits until a program is attached, to no interface, and takes it off.
func ended(t *testing.T, k *kernel) {
	t.Helper()
	for range 1000 {
		if b := k.ready.Load(); b != nil {
			b.run.stop()
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("10 s later it is not attached")
}
