package xdp

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/big"
	"math/bits"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/p4"
	"github.com/quillon/quillon/nf/p4/internal/ir"
)

// metering is a program whose frames are metered by the cell in their bytes 2 and 3. It writes the color to byte 4, and sends the
// frame to the port in bytes 0 and 1.
func metering(t testing.TB, kind string, rates int) []byte {
	h := func(name string, bits int) obj { return fieldOf(field{"h", name, bits}) }
	root := obj{"__meta__": obj{"version": arr{2, 23}},
		"header_types": arr{obj{"name": "std_t", "id": 1, "fields": stdFields},
			obj{"name": "h_t", "id": 3, "fields": arr{arr{"port", 16, false}, arr{"cell", 16, false}, arr{"color", 8, false}}}},
		"headers": arr{obj{"name": "standard_metadata", "id": 1, "header_type": "std_t", "metadata": true},
			obj{"name": "h", "id": 3, "header_type": "h_t", "metadata": false}},
		"meter_arrays": arr{obj{"name": "m", "id": 0, "type": kind, "rate_count": rates, "size": 4, "is_direct": false}},
		"actions": arr{obj{"name": "measure", "id": 1, "runtime_data": arr{}, "primitives": arr{
			prim("execute_meter", obj{"type": "meter_array", "value": "m"}, h("cell", 16), h("color", 8)),
			prim("assign", fieldOf(specField), h("port", 16))}}},
	}
	return oneAction(t, root, "measure", arr{prim("extract", obj{"type": "regular", "value": "h"})}, arr{"h"})
}

// measured is a frame of that program.
func measured(port, cell, length int) []byte {
	b := make([]byte, length)
	binary.BigEndian.PutUint16(b, uint16(port))
	binary.BigEndian.PutUint16(b[2:], uint16(cell))
	b[4] = 0xff
	return b
}

// plain is a meter that keeps, without bounds, how many tokens have come since it was configured.
type plain struct {
	since        clock.Time
	rates        []p4.Rate
	tokens, seen []*big.Int
}

func newPlain(now clock.Time, rates []p4.Rate) *plain {
	m := &plain{since: now, rates: rates}
	for _, r := range rates {
		m.tokens, m.seen = append(m.tokens, new(big.Int).SetUint64(r.Burst)), append(m.seen, new(big.Int))
	}
	return m
}

func (m *plain) color(now clock.Time, need int64) byte {
	micros := int64(now)/1000 - int64(m.since)/1000
	for i, r := range m.rates {
		total := new(big.Int).SetUint64(r.PerSecond)
		total.Mul(total, big.NewInt(micros)).Div(total, big.NewInt(1e6))
		t := m.tokens[i]
		t.Add(t, total).Sub(t, m.seen[i])
		if burst := new(big.Int).SetUint64(r.Burst); t.Cmp(burst) > 0 {
			t.Set(burst)
		}
		m.seen[i] = total
	}
	for i := len(m.rates) - 1; i >= 0; i-- {
		if m.tokens[i].Cmp(big.NewInt(need)) < 0 {
			return byte(i + 1)
		}
		m.tokens[i].Sub(m.tokens[i], big.NewInt(need))
	}
	return 0
}

// TestMeterModel compares colors with a model. Some frames are run by the kernel, some by the engine, and some by the engine after
// the kernel has metered them: all have one meter.
func TestMeterModel(t *testing.T) {
	for _, kind := range []string{"packets", "bytes"} {
		for rates := 1; rates <= 3; rates++ {
			t.Run(fmt.Sprint(kind, rates), func(t *testing.T) {
				w := newTwin(t, metering(t, kind, rates))
				rnd := newRandom(t)
				var colors [4]int
				for range 150 {
					cell := rnd.IntN(4)
					var all []p4.Rate
					for i := range rates {
						r := p4.Rate{PerSecond: rnd.Uint64() >> rnd.IntN(64), Burst: rnd.Uint64() >> rnd.IntN(64)}
						if rnd.IntN(2) == 0 {
							r = p4.Rate{PerSecond: 1 + rnd.Uint64N(5000), Burst: 1 + rnd.Uint64N(3000)}
						}
						if i > 0 {
							r.PerSecond = max(r.PerSecond, all[i-1].PerSecond)
						}
						all = append(all, r)
					}
					w.sw.Advance(w.now)
					if err := w.sw.SetMeter("m", cell, all...); err != nil {
						t.Fatal(err)
					}
					model := newPlain(w.now, all)
					for range 40 {
						step := clock.Time(rnd.Uint64() >> (22 + rnd.IntN(40)))
						if w.now+step > w.now && w.now+step < 1<<62 {
							w.now += step
						}
						length := 64 + rnd.IntN(1000)
						need := int64(1)
						if kind == "bytes" {
							need = int64(length)
						}
						want := model.color(w.now, need)
						var got byte
						switch by := rnd.IntN(4); by {
						case 0, 1:
							outcome, _, out, _ := w.inKernel(1, measured(2, cell, length))
							if outcome != Forwarded {
								t.Fatalf("outcome %d", outcome)
							}
							got = out[4]
						default:
							if f := measured(7, cell, length); by == 3 {
								if outcome, _, _, _ := w.inKernel(1, f); outcome < firstReason {
									t.Fatalf("outcome %d", outcome)
								}
							}
							all, _ := process(w.sw, w.now, 1, measured(7, cell, length))
							got = all[0].frame[4]
						}
						if got != want {
							t.Fatalf("rates %v, at %d, length %d: color %d, want %d", all, w.now, length, got, want)
						}
						colors[got]++
					}
				}
				if t.Logf("colors: %v", colors); colors[0] == 0 || colors[rates] == 0 {
					t.Error("a color is missing: nothing is compared")
				}
			})
		}
	}
}

// TestMeterCells compares all words of cells behind a frame with those that ir.Meter leaves. The cells are such as no few frames make:
// any number of tokens, and times at which what has come is just as much as 64 bits hold.
func TestMeterCells(t *testing.T) {
	const rates = 2
	w := newTwin(t, metering(t, "bytes", rates))
	rnd := newRandom(t)
	edge := func() uint64 {
		v := uint64(1)<<rnd.IntN(64) - 1
		switch rnd.IntN(3) {
		case 0:
			return rnd.Uint64() >> rnd.IntN(64)
		case 1:
			return v - rnd.Uint64N(min(v, 2)+1)
		}
		return ^v - rnd.Uint64N(2)
	}
	fuller := 0 // buckets that are full because more came in whole seconds than a word holds
	for range 20_000 {
		micros := rnd.Uint64() >> (11 + rnd.IntN(53))
		since := []uint64{rnd.Uint64N(2_000_001), rnd.Uint64N(3) * ir.Million, rnd.Uint64() >> rnd.IntN(64)}[rnd.IntN(3)]
		cell := w.x.meters[0].words()[ir.MeterWords(rates):][:ir.MeterWords(rates)]
		clear(cell)
		cell[ir.MeterOn], cell[ir.MeterLast] = rates, micros-min(since, micros)
		if rnd.IntN(8) == 0 {
			cell[ir.MeterLast] = micros + rnd.Uint64N(3)
		}
		for b := range rates {
			k := cell[ir.MeterBuckets+ir.BucketWords*b:]
			rate, burst := edge(), edge()
			k[ir.BucketMicro], k[ir.BucketPart], k[ir.BucketBurst] = rate/ir.Million, rate%ir.Million, burst
			k[ir.BucketTokens], k[ir.BucketRest] = burst, rnd.Uint64N(ir.Million)
			if left := edge(); left < burst {
				k[ir.BucketTokens] = left
			}
			if rnd.IntN(3) == 0 {
				k[ir.BucketBack] = edge()
			}
			if s := min(since, micros); s/ir.Million > 0 && burst/(s/ir.Million) >= rate {
				_, carry := bits.Add64(s/ir.Million*rate, new(big.Int).Div(new(big.Int).Mul(new(big.Int).SetUint64(s%ir.Million), new(big.Int).SetUint64(rate)), big.NewInt(ir.Million)).Uint64(), 0)
				fuller += int(carry)
			}
		}
		before, want := slices.Clone(cell), ir.Meter(slices.Clone(cell))
		w.now = clock.Time(micros * 1000)
		length := 64 + rnd.IntN(1000)
		outcome, _, out, _ := w.inKernel(1, measured(2, 1, length))
		if outcome != Forwarded {
			t.Fatalf("outcome %d", outcome)
		}
		if color := want.Color(micros, uint64(length)); uint64(out[4]) != color || !slices.Equal(cell, want) {
			t.Fatalf("at %d, length %d, cell %d: color %d and %d, want %d and %d", micros, length, before, out[4], cell, color, want)
		}
	}
	if t.Logf("%d buckets are full by a carry", fuller); fuller == 0 {
		t.Error("nothing is compared where whole seconds bring more than a word holds")
	}
}

// TestMeterOnce has the kernel and the engine meter frames by one cell at the same time. No token comes, so that exactly as many frames
// are green and yellow as there are tokens. Frames that the kernel gives away take none.
func TestMeterOnce(t *testing.T) {
	if runtime.NumCPU() < 2 {
		t.Skip("it takes two processors")
	}
	w := newTwin(t, metering(t, "packets", 2))
	w.x.port(1)
	const green, yellow = 30_000, 12_000
	if err := w.sw.SetMeter("m", 1, p4.Rate{Burst: green}, p4.Rate{Burst: green + yellow}); err != nil {
		t.Fatal(err)
	}
	var stop atomic.Bool
	var kernel [3]int
	given := 0
	var group sync.WaitGroup
	group.Add(1)
	go func() {
		defer group.Done()
		runtime.LockOSThread()
		pin(t, 1)
		for n := 0; !stop.Load(); n++ {
			opt := &ebpf.RunOptions{Data: measured([]int{2, 2, 7}[n%3], 1, 64), DataOut: make([]byte, 320)}
			code, err := w.x.prog.Run(opt)
			switch {
			case err != nil:
				t.Error(err)
				return
			case code == xdpRedirect:
				kernel[opt.DataOut[4]]++
			default:
				given++
			}
		}
	}()
	var engine [3]int
	run := func() (color byte) {
		w.sw.Process(1, 1, measured(7, 1, 64), func(_ uint32, f []byte) { color = f[4] })
		engine[color]++
		return color
	}
	for end := time.Now().Add(20 * time.Second); run() != 2 && time.Now().Before(end); {
		for range 10 {
			run()
		}
		time.Sleep(50 * time.Microsecond)
	}
	stop.Store(true)
	group.Wait()
	for run() != 2 { // what was given back
	}
	if g, y := kernel[0]+engine[0], kernel[1]+engine[1]; g != green || y != yellow {
		t.Errorf("%d green and %d yellow frames of %d and %d", g, y, green, yellow)
	}
	if kernel[0] < 20 || engine[0] < 20 || given < 20 {
		t.Error("too few frames of one side: nothing is compared")
	}
	t.Logf("colors in the kernel %v, in the engine %v, %d frames given away", kernel, engine, given)
}

// TestMeterTime meters frames by the kernel's own clock.
func TestMeterTime(t *testing.T) {
	w := newTwin(t, metering(t, "packets", 2))
	w.x.port(1)
	const rate, burst = 1000, 1000
	before := clock.Kernel()
	w.x.clock.store(1, 0)
	w.x.Now(0) // the Switch's time begins
	after := clock.Kernel()
	if err := w.sw.SetMeter("m", 0, p4.Rate{PerSecond: rate, Burst: burst}, p4.Rate{PerSecond: rate, Burst: burst}); err != nil {
		t.Fatal(err)
	}
	green := int64(0)
	run := func() bool {
		opt := &ebpf.RunOptions{Data: measured(2, 0, 64), DataOut: make([]byte, 320)}
		if code, err := w.x.prog.Run(opt); err != nil || code != xdpRedirect {
			t.Fatalf("code %d, %v", code, err)
		}
		if opt.DataOut[4] == 0 {
			green++
		}
		return opt.DataOut[4] == 0
	}
	for run() {
	}
	drained := clock.Kernel()
	time.Sleep(300 * time.Millisecond)
	least := clock.Kernel()
	for run() {
	}
	most := clock.Kernel()
	// Tokens that came before the bucket was drained may be lost: it was full.
	low, high := burst+(least-drained)*rate/1e9-1, burst+(most-before)*rate/1e9+1
	if green < low || green > high {
		t.Errorf("%d green frames, want %d to %d; the clock was set within %d ns", green, low, high, after-before)
	}
}

// TestMeterGone: rates that are taken away are no limit from the next frame on, and rates hold after the kernel has ended.
func TestMeterGone(t *testing.T) {
	w := newTwin(t, metering(t, "packets", 2))
	limit := []p4.Rate{{Burst: 1}, {Burst: 2}}
	colors := func() (s string) {
		for range 3 {
			_, _, out, _ := w.inKernel(1, measured(2, 3, 64))
			s += string('0' + out[4])
		}
		return s
	}
	set := func(rates ...p4.Rate) {
		if err := w.sw.SetMeter("m", 3, rates...); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []string{"000", "012", "222"} {
		if want == "012" {
			set(limit...)
		}
		if got := colors(); got != want {
			t.Errorf("colors %s, want %s", got, want)
		}
	}
	set()
	if got := colors(); got != "000" {
		t.Errorf("without rates: %s", got)
	}
	set(limit...)
	_, _, _, _ = w.inKernel(1, measured(2, 3, 64))
	w.x.End()
	if got, _ := w.sw.Meter("m", 3); len(got) != 2 || got[1] != limit[1] {
		t.Errorf("rates %v", got)
	}
	for _, want := range []byte{1, 2} {
		if all, _ := process(w.sw, w.now, 1, measured(2, 3, 64)); all[0].frame[4] != want {
			t.Errorf("behind the kernel's frame: color %d, want %d", all[0].frame[4], want)
		}
	}
}

// TestMeterOwner: when a process dies that has a cell, the program that goes on takes the cell from it.
func TestMeterOwner(t *testing.T) {
	requireKernel(t)
	prog, tree, err := p4.LoadTree(metering(t, "packets", 2))
	if err != nil {
		t.Fatal(err)
	}
	sw, err := p4.NewSwitch(prog, p4.Config{})
	if err != nil {
		t.Fatal(err)
	}
	x, err := New(tree, sw.Config(), Options{From: []Source{{Index: loopback, Port: 1}}, To: map[uint32]Target{2: {loopback, 1 << 16}}, Outlives: true})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	x.Begin(sw, 0)
	if err := sw.SetMeter("m", 1, p4.Rate{Burst: 1}, p4.Rate{Burst: 2}); err != nil {
		t.Fatal(err)
	}
	cell := x.meters[0].words()[ir.MeterWords(2):]
	cell[ir.MeterLock] = x.Owner()
	for _, want := range []struct {
		code  uint32
		color byte
	}{{xdpDrop, 0xff}, {xdpRedirect, 0}, {xdpRedirect, 1}} {
		opt := &ebpf.RunOptions{Data: measured(2, 1, 64), DataOut: make([]byte, 320)}
		code, err := x.prog.Run(opt)
		if err != nil || code != want.code || opt.DataOut[4] != want.color {
			t.Errorf("code %d, color %d, %v, want %v", code, opt.DataOut[4], err, want)
		}
	}
}

// entryMetering is a program whose frames are counted and metered by the entry for their bytes 2 and 3. It writes the color to byte 4, and
// sends the frame to the port in bytes 0 and 1.
func entryMetering(t testing.TB) []byte {
	var root obj
	if err := json.Unmarshal(metering(t, "packets", 2), &root); err != nil {
		t.Fatal(err)
	}
	m := root["meter_arrays"].([]any)[0].(obj)
	m["is_direct"], m["binding"], m["result_target"] = true, "t", arr{"h", "color"}
	a := root["actions"].([]any)[0].(obj)
	a["primitives"] = a["primitives"].([]any)[1:]
	table := root["pipelines"].([]any)[0].(obj)["tables"].([]any)[0].(obj)
	table["max_size"], table["with_counters"], table["direct_meters"] = 4, true, "m"
	table["key"] = arr{obj{"match_type": "exact", "name": "cell", "target": arr{"h", "cell"}, "mask": nil}}
	b, err := json.Marshal(root)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestMeterNumbers: the rates of an entry hold for its frames when it has another number in the kernel than in the Switch.
func TestMeterNumbers(t *testing.T) {
	for _, outlives := range []bool{false, true} {
		w := newTwinOf(t, entryMetering(t), outlives)
		insert := func(cell byte) p4.Handle {
			h, err := w.sw.Insert("t", p4.Entry{Key: []p4.Match{{Value: []byte{0, cell}}}, Action: p4.Action{Name: "measure"}})
			if err != nil {
				t.Fatal(err)
			}
			return h
		}
		for range 20 { // the Switch has the same row again, the kernel another number
			if err := w.sw.Delete("t", insert(1)); err != nil {
				t.Fatal(err)
			}
		}
		limited := insert(1)
		insert(2)
		if err := w.sw.SetEntryMeter("t", limited, p4.Rate{Burst: 1}, p4.Rate{Burst: 2}); err != nil {
			t.Fatal(err)
		}
		for cell, want := range []string{1: "012", 2: "000", 3: "ffffff"} {
			if want == "" {
				continue
			}
			got := ""
			for range 3 {
				outcome, _, out, _ := w.inKernel(1, measured(2, cell, 64))
				if outcome != Forwarded {
					t.Fatalf("outcome %d", outcome)
				}
				got += fmt.Sprintf("%x", out[4])
			}
			if got != want {
				t.Errorf("outlives %v, entry %d: colors %s, want %s", outlives, cell, got, want)
			}
		}
	}
}

// TestMeterCopies: copies of a frame leave together in the kernel when their entries have meters without rates, and are the engine's when
// one has rates.
func TestMeterCopies(t *testing.T) {
	var root obj
	if err := json.Unmarshal(pairs(t, "copies"), &root); err != nil {
		t.Fatal(err)
	}
	root["meter_arrays"] = arr{obj{"name": "m", "id": 0, "type": "packets", "rate_count": 2, "size": 64, "is_direct": true, "binding": "e", "result_target": arr{"out", "b"}}}
	root["pipelines"].([]any)[1].(obj)["tables"].([]any)[0].(obj)["direct_meters"] = "m"
	src, err := json.Marshal(root)
	if err != nil {
		t.Fatal(err)
	}
	w := newTwin(t, src)
	var last p4.Handle
	for rid := range byte(2) {
		w.both(func(sw *p4.Switch) error {
			last, err = sw.Insert("e", p4.Entry{Key: []p4.Match{{Value: []byte{rid}}}, Action: p4.Action{Name: "add"}})
			return err
		})
	}
	w.both(func(sw *p4.Switch) error { return sw.SetMulticast(1, []p4.Replica{{Port: 1}, {Port: 2, Rid: 1}}) })
	frame := append([]byte{0, 1, 0, 0, 0, 0, 0, 0, 0, 41}, make([]byte, 54)...)
	if w.frame(5, frame); w.kernel != 1 {
		t.Errorf("without rates: %v", w.engine)
	}
	w.both(func(sw *p4.Switch) error { return sw.SetEntryMeter("e", last, p4.Rate{Burst: 1}, p4.Rate{Burst: 2}) })
	kernel := w.kernel
	if w.frame(5, frame); w.kernel != kernel {
		t.Error("with rates the kernel had the frame")
	}
	w.counts()
}

// limits sets or removes rates of a random meter of both switches.
func (w *twin) limits(r random, have handles) {
	w.Helper()
	var rates []p4.Rate
	for range 2 * min(r.IntN(6), 1) {
		x := p4.Rate{PerSecond: r.Uint64() >> r.IntN(64), Burst: r.Uint64() >> r.IntN(64)}
		if r.IntN(2) == 0 {
			x = p4.Rate{PerSecond: r.Uint64N(100), Burst: r.Uint64N(300)}
		}
		if len(rates) > 0 {
			x.PerSecond = max(x.PerSecond, rates[0].PerSecond)
		}
		rates = append(rates, x)
	}
	name, i := []string{"m", "bytes"}[r.IntN(2)], r.IntN(4)
	w.both(func(sw *p4.Switch) error { return sw.SetMeter(name, i, rates...) })
	for _, t := range w.sw.Program().Tables() {
		if !t.Meters {
			continue
		}
		h := p4.DefaultEntry
		if list := have[t.Name]; len(list) > 0 && r.IntN(3) > 0 {
			h = list[r.IntN(len(list))]
		}
		w.both(func(sw *p4.Switch) error { return sw.SetEntryMeter(t.Name, h, rates...) })
	}
}
