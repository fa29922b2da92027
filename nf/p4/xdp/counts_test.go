package xdp

import (
	"bytes"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/quillon/quillon/nf/p4"
	"github.com/quillon/quillon/nf/p4/stf"
)

// counting is the program of pairs whose entries count.
func counting(t testing.TB, kind string) []byte {
	return bytes.Replace(pairs(t, kind), []byte(`"max_size":`+strconv.Itoa(mostPairs)), []byte(`"with_counters":true,"max_size":`+strconv.Itoa(mostPairs)), 1)
}

// TestResetWhileCounting: a count that is reset while another processor counts begins at 0.
func TestResetWhileCounting(t *testing.T) {
	if runtime.NumCPU() < 2 {
		t.Skip("it takes two processors")
	}
	w := newTwin(t, read(t, "../../../p4src/l2_bridge.json"))
	all, err := stf.Parse(strings.NewReader(bridgeEntries))
	if err == nil {
		err = stf.Configure(w.sw, all)
	}
	if err != nil {
		t.Fatal(err)
	}
	w.x.port(1)
	h, err := w.sw.Find("bridge_ingress.dmac", []p4.Match{{Value: []byte{1}}, {Value: []byte{2, 0, 0, 0, 0, 2}}}, 0)
	if err != nil {
		t.Fatal(err)
	}
	var over atomic.Bool
	ended := make(chan error, 1)
	frame := frameOf(t, bridgeFrame)
	go func() {
		runtime.LockOSThread()
		pin(t, 1)
		for !over.Load() {
			if _, err := w.x.prog.Run(&ebpf.RunOptions{Data: frame, Repeat: 10_000}); err != nil {
				ended <- err
				return
			}
		}
		ended <- nil
	}()
	frames := func() (n uint64) {
		for i := range firstReason {
			n += w.x.counts.frames(i)
		}
		return n
	}
	for frames() < 100_000 {
		runtime.Gosched()
	}
	wrong, resets := 0, 0
	for before := frames(); before < 500_000; before = frames() {
		resets++
		errs := [2]error{w.sw.SetCount("bridge_ingress.port_rx", 1, p4.Count{}), w.sw.SetEntryCount("bridge_ingress.dmac", h, p4.Count{})}
		if errs != [2]error{} {
			t.Fatal(errs)
		}
		a, _ := w.sw.Count("bridge_ingress.port_rx", 1)
		b, _ := w.sw.EntryCount("bridge_ingress.dmac", h)
		if most := frames() - before + 1; a.Packets > most || b.Packets > most { // and one that has counted there, and not its outcome
			wrong++
		}
	}
	over.Store(true)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if wrong > 0 {
		t.Errorf("of %d resets %d have not set a count to 0", resets, wrong)
	}
}

// TestCountsOfGone: a frame that was on its way to the end when its entry was deleted does not count for the entry in its place.
func TestCountsOfGone(t *testing.T) {
	for _, kind := range []string{"exact", "ternary", "lpm", "range"} {
		for _, outlives := range []bool{false, true} {
			t.Run(kind+strconv.FormatBool(outlives), func(t *testing.T) {
				w := newTwinOf(t, counting(t, kind), outlives)
				insert := func(key byte) int {
					e := p4.Entry{Priority: 1, Key: []p4.Match{{Value: []byte{key}}}, Action: p4.Action{Name: "set", Args: [][]byte{{1}, {1}}}}
					switch kind {
					case "exact":
						e.Priority = 0
					case "lpm":
						e.Priority, e.Key[0].Prefix = 0, 16
					case "range":
						e.Key[0].Mask = []byte{key}
					}
					h, err := w.sw.Insert("t", e)
					if err != nil {
						t.Fatal(err)
					}
					return int(h)
				}
				row := insert(1)
				at, _ := w.x.cell(0, row)
				if err := w.sw.Delete("t", p4.Handle(row)); err != nil {
					t.Fatal(err)
				}
				if again := insert(2); again != row {
					t.Fatalf("row %d, want %d", again, row)
				}
				*w.x.counts.word(0, w.x.counts.direct[0]+16*at) += 1 // the frame comes to its end
				if c, err := w.sw.EntryCount("t", p4.Handle(row)); err != nil || c.Packets != 0 {
					t.Errorf("the entry that is new has counted %d frames: %v", c.Packets, err)
				}
			})
		}
	}
}

// TestCountsOfFullTable: a full table whose entries are replaced again and again has a number for each of them.
func TestCountsOfFullTable(t *testing.T) {
	w := newTwin(t, counting(t, "exact"))
	insert := func(n int) p4.Handle {
		h, err := w.sw.Insert("t", p4.Entry{Key: []p4.Match{{Value: bigEndian(uint64(n))}}, Action: p4.Action{Name: "set", Args: [][]byte{{1}, {1}}}})
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	var all []p4.Handle
	for n := range mostPairs {
		all = append(all, insert(n))
	}
	for n := range 3 * mostPairs {
		if err := w.sw.Delete("t", all[n%mostPairs]); err != nil {
			t.Fatal(err)
		}
		all[n%mostPairs] = insert(mostPairs + n)
	}
	if why := w.x.Stopped(); len(why) > 0 {
		t.Fatal(why)
	}
	numbers := map[int]bool{w.x.tree.Tables[0].Size: true} // the default entry's
	for _, h := range all {
		at, there := w.x.cell(0, int(h))
		if !there || numbers[at] || at >= numbersOf(&w.x.tree.Tables[0], false) {
			t.Fatalf("entry %d has number %d: %v", h, at, there)
		}
		numbers[at] = true
	}
}

// TestCountsOfManyProcessors: processors that have one row count all frames.
func TestCountsOfManyProcessors(t *testing.T) {
	if runtime.NumCPU() < 2 {
		t.Skip("it takes two processors")
	}
	w := newTwinWith(t, read(t, "../../../p4src/l2_bridge.json"), Options{counts: 3 << 20})
	if c := &w.x.counts; c.rows != 1 || !c.shared {
		t.Fatalf("%d rows of %d bytes, shared %v", c.rows, c.row, c.shared)
	}
	all, err := stf.Parse(strings.NewReader(bridgeEntries))
	if err == nil {
		err = stf.Configure(w.sw, all)
	}
	if err != nil {
		t.Fatal(err)
	}
	w.x.port(1)
	const frames = 400_000
	var errs [2]error
	var done sync.WaitGroup
	frame := frameOf(t, bridgeFrame)
	for cpu := range errs {
		done.Add(1)
		go func() {
			defer done.Done()
			runtime.LockOSThread()
			pin(t, cpu)
			for range 40 { // in pieces, so that both run at the same time
				if _, errs[cpu] = w.x.prog.Run(&ebpf.RunOptions{Data: frame, Repeat: frames / 40}); errs[cpu] != nil {
					return
				}
			}
		}()
	}
	done.Wait()
	if errs != [2]error{} {
		t.Fatal(errs)
	}
	c, err := w.sw.Count("bridge_ingress.port_rx", 1)
	// A test run that a signal has ended is made again.
	if all := w.x.counts.frames(Forwarded); err != nil || all < 2*frames || c != (p4.Count{Packets: all, Bytes: 60 * all}) {
		t.Errorf("counted %+v and %d forwarded, of %d or more: %v", c, all, 2*frames, err)
	}
}

// TestPlacesOfManyProcessors: rows of all processors lie apart, and a program whose counts are too many says so.
func TestPlacesOfManyProcessors(t *testing.T) {
	_, tree, err := p4.LoadTree(read(t, "../../../p4src/l2_bridge.json"))
	if err != nil {
		t.Fatal(err)
	}
	for n, rows := range map[int]int{1: 1, 2: 2, 3: 3, 250: 250, 512: 128, 4096: 128} { // a row has 2 MiB
		c, err := placeCounts(tree, n, maxCounts, true, 3)
		if err != nil || c.rows != rows || c.shared != (rows < n) || c.row%128 != 0 || c.size() != c.row*(rows+1) || c.size() > maxCounts {
			t.Errorf("of %d processors: %d rows of %d bytes, shared %v, all take %d: %v", n, c.rows, c.row, c.shared, c.size(), err)
		}
	}
	if _, err := placeCounts(tree, 512, 1<<20, true, 3); err == nil || !strings.Contains(err.Error(), "take 4 MiB, more than ") {
		t.Errorf("too many for one row: %v", err)
	}
	s := &settings{Processors: 2}
	c := &compiled{}
	a := markOf(tree, s, c, nil)
	s.Processors = 4
	if markOf(tree, s, c, nil) == a {
		t.Error("programs of machines with other numbers of processors share counts")
	}
}
