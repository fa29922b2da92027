package xdp

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"math/big"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/quillon/quillon/nf/p4"
)

// TestPiecesOfRange: a value is in exactly one piece of a range if it is in the range, and else in none.
func TestPiecesOfRange(t *testing.T) {
	r := newRandom(t)
	for n := range 4000 {
		size := 1 + r.IntN(2)
		top := 1 << (8 * size)
		low := r.IntN(top)
		high := low + r.IntN(top-low)
		if n%8 == 0 {
			low, high = low&^0xff, high|0xff
		}
		digits := func(v int) []uint8 { return []uint8{uint8(v >> 8), uint8(v)}[2-size:] }
		all := piecesOfRange(digits(low), digits(high))
		if len(all) > 2*size-1 {
			t.Fatalf("%d to %d: %d pieces", low, high, len(all))
		}
		for _, v := range []int{low, high, max(low-1, 0), min(high+1, top-1), r.IntN(top), low | 0xff&(top-1), high &^ 0xff, (low + high) / 2} {
			in := 0
			for _, p := range all {
				has := true
				for i, b := range digits(v) {
					has = has && p[i].has(int(b))
				}
				if has {
					in++
				}
			}
			if want := v >= low && v <= high; in > 1 || (in == 1) != want {
				t.Fatalf("%d to %d: %d is in %d pieces", low, high, v, in)
			}
		}
	}
}

// priorities are in any order, ascending or descending, or all alike.
func (r random) priority(how string, n int) int32 {
	switch how {
	case "ascending":
		return int32(1 + n)
	case "descending":
		return int32(1<<20 - n)
	case "alike":
		return 1
	}
	return int32(1 + r.IntN(500))
}

// TestManyRanges inserts, changes and deletes ranges, and looks for keys meanwhile, until there is no room.
func TestManyRanges(t *testing.T) {
	for _, how := range []string{"ascending", "descending", "alike", "random"} {
		t.Run(how, func(t *testing.T) {
			w := newTwin(t, pairs(t, "range"))
			r := newRandom(t)
			type one struct {
				h         p4.Handle
				low, high uint16
			}
			var have []one
			v := w.x.tables[0].vectors
			near := func() uint16 {
				if len(have) > 0 && r.IntN(2) == 0 {
					e := have[r.IntN(len(have))]
					return []uint16{e.low, e.high, e.low - 1, e.high + 1, e.low | 0xff, e.high &^ 0xff}[r.IntN(6)]
				}
				return uint16(r.Uint64() >> r.IntN(64))
			}
			for n := range 6000 {
				action := p4.Action{Name: "set", Args: [][]byte{bigEndian(uint64(n)), bigEndian(uint64(n))}}
				grows := n%3000 < 2000
				switch {
				case len(have) > 0 && (!grows || r.IntN(8) == 0):
					i := r.IntN(len(have))
					w.both(func(sw *p4.Switch) error { return sw.Delete("t", have[i].h) })
					have[i] = have[len(have)-1]
					have = have[:len(have)-1]
				case len(have) > 0 && r.IntN(4) == 0:
					e := have[r.IntN(len(have))]
					w.both(func(sw *p4.Switch) error { return sw.Modify("t", e.h, p4.Entry{Action: action}) })
				case len(v.used) < v.size()-3:
					low, high := near(), near()
					e := one{low: min(low, high), high: max(low, high)}
					if r.IntN(8) == 0 {
						e.high = e.low
					}
					m := p4.Match{Value: bigEndian(uint64(e.low)), Mask: bigEndian(uint64(e.high))}
					prio := r.priority(how, n)
					w.both(func(sw *p4.Switch) (err error) {
						e.h, err = sw.Insert("t", p4.Entry{Key: []p4.Match{m}, Priority: prio, Action: action})
						return err
					})
					have = append(have, e)
				}
				for range 2 {
					b := make([]byte, 64)
					binary.BigEndian.PutUint16(b, near())
					w.frame(1, b)
				}
				if t.Failed() {
					t.Fatalf("after change %d of %d entries", n, len(have))
				}
			}
			if s := w.x.Stopped(); len(s) > 0 || w.kernel != 12000 {
				t.Errorf("stopped: %v, %d frames in the kernel, to the engine: %v", s, w.kernel, w.engine)
			}
			w.counts()
		})
	}
}

// TestRangesOfWidths compares keys at the ends of ranges, which begin and end at 0, at the highest number and beside borders of bytes, of
// numbers of 1 to 128 bits. Many have one priority.
func TestRangesOfWidths(t *testing.T) {
	for _, bits := range []int{1, 2, 7, 8, 9, 15, 17, 31, 32, 33, 63, 64, 65, 72, 127, 128} {
		t.Run(strconv.Itoa(bits), func(t *testing.T) {
			w := newTwin(t, widePairs(t, "range", bits))
			r := newRandom(t)
			top := new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), uint(bits)), big.NewInt(1))
			number := func() *big.Int {
				n := new(big.Int)
				switch r.IntN(6) {
				case 0:
				case 1:
					n.Set(top)
				case 2, 3: // beside a power of two
					n.Lsh(big.NewInt(1), uint(r.IntN(bits+1)))
					n.Add(n, big.NewInt(int64(r.IntN(3)-1)))
				default:
					n.SetUint64(r.Uint64() >> r.IntN(64))
					n.Lsh(n, uint(r.IntN(bits)))
					n.Add(n, big.NewInt(int64(r.IntN(3)-1)))
				}
				if n.Sign() < 0 || n.Cmp(top) > 0 {
					return new(big.Int).And(top, n.Abs(n))
				}
				return n
			}
			var ends []*big.Int
			var have []p4.Handle
			for n := range 400 {
				switch i := r.IntN(max(1, len(have))); {
				case len(have) > 60 || len(have) > 0 && r.IntN(6) == 0:
					w.both(func(sw *p4.Switch) error { return sw.Delete("t", have[i]) })
					have = slices.Delete(have, i, i+1)
				case len(have) > 0 && r.IntN(4) == 0:
					w.both(func(sw *p4.Switch) error {
						return sw.Modify("t", have[i], p4.Entry{Action: p4.Action{Name: "set", Args: [][]byte{bigEndian(uint64(n)), {1}}}})
					})
				default:
					low, high := number(), number()
					if low.Cmp(high) > 0 {
						low, high = high, low
					}
					ends = append(ends, low, high)
					e := p4.Entry{Key: []p4.Match{{Value: low.Bytes(), Mask: high.Bytes()}}, Priority: int32(1 + r.IntN(3)),
						Action: p4.Action{Name: "set", Args: [][]byte{bigEndian(uint64(n)), {2}}}}
					var err error
					w.both(func(sw *p4.Switch) error {
						var h p4.Handle
						if h, err = sw.Insert("t", e); err == nil && sw == w.ref {
							have = append(have, h)
						}
						return err
					})
				}
				for range 4 {
					k := number()
					if len(ends) > 0 && r.IntN(3) > 0 {
						k.Add(ends[r.IntN(len(ends))], big.NewInt(int64(r.IntN(3)-1)))
					}
					k.And(k.Abs(k), top)
					b := make([]byte, 64)
					k.Lsh(k, uint((8-bits%8)%8)).FillBytes(b[:(bits+7)/8])
					w.frame(1, b)
				}
				if t.Failed() {
					t.Fatalf("after change %d of %d entries", n, len(have))
				}
			}
			if s := w.x.Stopped(); len(s) > 0 || w.kernel != 1600 {
				t.Errorf("stopped: %v, %d frames in the kernel, to the engine: %v", s, w.kernel, w.engine)
			}
		})
	}
}

// manyTables is a program with so many tables of pairs, one behind the other.
func manyTables(t *testing.T, kind string, bits, tables int) []byte {
	t.Helper()
	var root obj
	if err := json.Unmarshal(widePairs(t, kind, bits), &root); err != nil {
		t.Fatal(err)
	}
	ingress := root["pipelines"].(arr)[0].(obj)
	first := ingress["tables"].(arr)[0].(obj)
	var all arr
	for i := range tables {
		next := any(nil)
		if i < tables-1 {
			next = fmt.Sprintf("t%d", i+1)
		}
		one := maps.Clone(first)
		one["name"], one["id"], one["base_default_next"], one["next_tables"] = fmt.Sprintf("t%d", i), 10+i, next, obj{"set": next}
		all = append(all, one)
	}
	ingress["tables"], ingress["init_table"] = all, "t0"
	b, err := json.Marshal(root)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestManyRangeTables: the kernel takes programs with several tables of ranges, also of wide keys, within a share of the verifier's limit of a
// million instructions, and with few exits.
func TestManyRangeTables(t *testing.T) {
	requireKernel(t)
	for _, bits := range []int{16, 128, 256} {
		for _, few := range []bool{false, true} {
			for _, n := range []int{2, 3, 8}[:map[bool]int{false: 3, true: 1}[few]] {
				prog, tree, err := p4.LoadTree(manyTables(t, "range", bits, n))
				if err != nil {
					t.Fatal(err)
				}
				sw, err := p4.NewSwitch(prog, p4.Config{})
				if err != nil {
					t.Fatal(err)
				}
				tried := 0
				o := Options{From: []Source{{Index: loopback, Port: 1}}, edit: func(_ descriptors, code asm.Instructions) asm.Instructions {
					if tried++; tried == 1 && few { // so that the kernel refuses it
						return code[1:]
					}
					return code
				}}
				x, err := New(tree, sw.Config(), o)
				if err != nil {
					t.Fatalf("%d tables of %d bits: %v", n, bits, err)
				}
				if want := map[bool]int{false: 1, true: 2}[few]; tried != want {
					t.Errorf("%d tables of %d bits: the kernel takes the program in attempt %d, want %d", n, bits, tried, want)
				}
				if err := x.Close(); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

// TestTooManyRanges: the engine has the frames of a table whose entries come to more pieces than there are slots, and says so.
func TestTooManyRanges(t *testing.T) {
	w := newTwin(t, pairs(t, "range"))
	for i := range uint64(mostPairs) {
		m := p4.Match{Value: bigEndian(256*(i%200) + 1), Mask: bigEndian(256*(i%200) + 700)}
		w.both(func(sw *p4.Switch) error {
			_, err := sw.Insert("t", p4.Entry{Key: []p4.Match{m}, Priority: int32(1 + i), Action: p4.Action{Name: "set", Args: [][]byte{{1}, {1}}}})
			return err
		})
	}
	w.frame(1, make([]byte, 64))
	if why := w.x.Stopped()["t"]; !strings.Contains(why, "pieces") || w.kernel != 0 || len(w.engine) != 1 {
		t.Errorf("stopped: %q, %d frames in the kernel, in the engine: %v", why, w.kernel, w.engine)
	}
}

// TestTooManyMasks: the engine has the frames of a table whose entries have more masks than there is room for, and says so, until the program is
// loaded anew with fewer.
func TestTooManyMasks(t *testing.T) {
	w := newTwin(t, pairs(t, "ternary"))
	var all []p4.Handle
	frames := func() {
		for bit := range 16 {
			w.frame(1, padded(1<<bit))
		}
	}
	for i := range uint64(maxMasks + 4) {
		e := p4.Entry{Key: []p4.Match{{Value: bigEndian(1 << i), Mask: bigEndian(0xfff ^ 1<<(i+1))}}, Priority: int32(1 + i), Action: p4.Action{Name: "set", Args: [][]byte{{byte(i)}, {1}}}}
		w.both(func(sw *p4.Switch) error {
			h, err := sw.Insert("t", e)
			if sw == w.sw {
				all = append(all, h)
			}
			return err
		})
		frames()
	}
	if why := w.x.Stopped()["t"]; !strings.HasSuffix(why, "the entries have more than 8 different masks") || w.kernel != 16*maxMasks {
		t.Errorf("stopped: %q, %d frames in the kernel, in the engine: %v", why, w.kernel, w.engine)
	}
	for i, h := range all {
		w.both(func(sw *p4.Switch) error {
			if i%2 == 0 {
				return sw.Delete("t", h)
			}
			return sw.Modify("t", h, p4.Entry{Action: p4.Action{Name: "set", Args: [][]byte{{99}, {byte(i)}}}})
		})
		frames()
	}
	if w.kernel != 16*maxMasks {
		t.Errorf("%d frames in the kernel: the table is there again without a new program", w.kernel)
	}
	x, err := New(w.x.tree, w.sw.Config(), Options{From: []Source{{Index: loopback, Port: 1}}, To: w.x.to})
	if err != nil {
		t.Fatal(err)
	}
	w.x.End()
	_ = w.x.Close()
	w.x = x
	x.Begin(w.sw, w.now)
	if frames(); w.kernel != 16*(maxMasks+1) {
		t.Errorf("anew: %d frames in the kernel, stopped: %v", w.kernel, x.Stopped())
	}
}

// TestOrderOfEntries replaces an entry by another one again and again, each in two changes of which the first one inserts, while another
// processor runs frames. All frames see one of the two, and never one that is before what a frame has seen.
func TestOrderOfEntries(t *testing.T) {
	if runtime.NumCPU() < 2 {
		t.Skip("it takes two processors")
	}
	for _, kind := range []string{"ternary", "range"} {
		t.Run(kind, func(t *testing.T) {
			w := newTwin(t, pairs(t, kind))
			w.x.port(1)
			r := newRandom(t)
			insert := func(m p4.Match, priority int32, i uint64) p4.Handle {
				h, err := w.sw.Insert("t", p4.Entry{Key: []p4.Match{m}, Priority: priority, Action: p4.Action{Name: "set", Args: [][]byte{bigEndian(i), bigEndian(i)}}})
				if err != nil {
					t.Fatal(err)
				}
				return h
			}
			// match is one that a key of 0x0180 meets: another one for each number from 0 to 5.
			match := func(n uint64) p4.Match {
				if kind == "ternary" {
					return p4.Match{Value: bigEndian(0x0180), Mask: bigEndian(0xff ^ 1<<n)}
				}
				return p4.Match{Value: bigEndian(n * 0x30), Mask: bigEndian(0x0180 + n*0x70)}
			}
			var rest []p4.Handle
			for n := range uint64(150) { // others between them
				if kind == "ternary" && n < 6 { // so that all masks stay
					m := match(n)
					m.Value = bigEndian(0x7000)
					insert(m, 1, 0)
				}
				if kind == "range" {
					rest = append(rest, insert(p4.Match{Value: bigEndian(0x8001 + n), Mask: bigEndian(0x8210 + 7*n)}, int32(1+r.IntN(60)), 0))
				}
			}
			var stop atomic.Bool
			var frames, changing atomic.Uint64
			var group sync.WaitGroup
			h := insert(match(0), 30, 1)
			group.Add(1)
			go func() {
				defer group.Done()
				runtime.LockOSThread()
				pin(t, 1)
				last := uint64(0)
				for !stop.Load() {
					b := make([]byte, 64)
					b[0], b[1] = 1, 0x80
					out := make([]byte, 64)
					code, err := w.x.prog.Run(&ebpf.RunOptions{Data: b, DataOut: out})
					x, y := binary.BigEndian.Uint64(out[2:]), binary.BigEndian.Uint64(out[10:])
					if code == xdpPass && err == nil {
						changing.Add(1)
						continue
					}
					if err != nil || code != xdpRedirect || x != y || x < max(1, last) {
						t.Errorf("code %d, %v: %d and %d, before it was %d", code, err, x, y, last)
						return
					}
					last = x
					frames.Add(1)
				}
			}()
			begun := time.Now()
			changes := 0
			for i := uint64(2); !t.Failed() && (i <= 100_000 || frames.Load() < 1000) && time.Since(begun) < 20*time.Second; i++ {
				next := insert(match(i%6), int32(1+r.IntN(60)), i)
				if err := w.sw.Delete("t", h); err != nil {
					t.Fatal(err)
				}
				h = next
				if changes += 2; kind == "range" && i%16 == 0 {
					k := r.IntN(len(rest))
					if err := w.sw.Delete("t", rest[k]); err != nil {
						t.Fatal(err)
					}
					rest[k] = insert(p4.Match{Value: bigEndian(0x8001 + i%99), Mask: bigEndian(0x8210 + i%999)}, int32(1+r.IntN(60)), 0)
				}
			}
			took := time.Since(begun)
			stop.Store(true)
			group.Wait()
			w.met(changing.Load(), uint64(changes))
			if s := w.x.Stopped(); len(s) > 0 || frames.Load() < 1000 {
				t.Errorf("%d frames, stopped: %v", frames.Load(), s)
			}
			t.Logf("%d frames in the kernel, %d met changes, %.0f changes a second", frames.Load(), changing.Load(), float64(changes)/took.Seconds())
		})
	}
}
