package history

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/anishathalye/porcupine"
	"pgregory.net/rapid"

	"github.com/quillon/quillon/rack/rnic"
)

// event is one line of a test's history: a call with its client, or a return with its result. A call that
// never returns stays open.
type event[I, O any] struct {
	client int
	call   *I
	out    O
	forget bool
}

func replay[I, O any](events []event[I, O]) *Log[I, O] {
	l := new(Log[I, O])
	open := map[int]int{}
	for _, e := range events {
		switch {
		case e.call != nil:
			open[e.client] = l.Call(e.client, 0, *e.call)
		case e.forget:
			l.Forget(open[e.client])
		default:
			l.Return(open[e.client], 0, e.out)
		}
	}
	return l
}

type we = event[Word, uint64]

func call(client int, w Word) we           { return we{client: client, call: &w} }
func ret(client int, out uint64) we        { return we{client: client, out: out} }
func forget(client int) we                 { return we{client: client, forget: true} }
func seq(events ...[]we) (all []we)        { return append(all, concat(events)...) }
func do(client int, w Word, o uint64) []we { return []we{call(client, w), ret(client, o)} }
func concat(events [][]we) (all []we) {
	for _, e := range events {
		all = append(all, e...)
	}
	return all
}

var (
	read  = Word{Op: rnic.OpRead}
	write = Word{Op: rnic.OpWrite, Swap: 7}
	cas   = Word{Op: rnic.OpCompareSwap, Swap: 8}
	faa   = Word{Op: rnic.OpFetchAdd, Swap: 1}
	mcas  = Word{Op: rnic.OpMaskedCompareSwap, Compare: 0x10, CompareMask: 0xF0, Swap: 0xFFFF, SwapMask: 0xFF00}
)

func TestWords(t *testing.T) {
	for _, c := range []struct {
		name string
		h    []we
		ok   bool
	}{
		{"nothing", nil, true},
		{"read of what was written", seq(do(1, write, 0), do(2, read, 7)), true},
		{"lost write", seq(do(1, write, 0), do(2, read, 0)), false},
		{"read during a write", seq([]we{call(1, write)}, do(2, read, 0), do(2, read, 7), []we{ret(1, 0)}), true},
		{"and back again", seq([]we{call(1, write)}, do(2, read, 7), do(2, read, 0), []we{ret(1, 0)}), false},
		{"CAS that succeeded", seq(do(1, cas, 0), do(2, read, 8)), true},
		{"CAS that failed", seq(do(1, write, 0), do(1, cas, 7), do(2, read, 7)), true},
		{"CAS told a wrong value", seq(do(1, write, 0), do(1, cas, 6)), false},
		{"two CASes cannot both succeed", seq(do(1, cas, 0), do(2, cas, 0)), false},
		{"not even at the same time", []we{call(1, cas), call(2, cas), ret(1, 0), ret(2, 0)}, false},
		{"FETCH-ADDs in any order", []we{call(1, faa), call(2, faa), ret(1, 1), ret(2, 0)}, true},
		{"FETCH-ADD counted once", seq(do(1, faa, 0), do(2, faa, 0)), false},
		{"masked CAS that succeeded", seq(do(1, Word{Op: rnic.OpWrite, Swap: 0xAB1C}, 0), do(1, mcas, 0xAB1C), do(1, read, 0xFF1C)), true},
		{"masked CAS that failed", seq(do(1, write, 0), do(1, mcas, 7), do(1, read, 7)), true},
		{"masked CAS that ignored its mask", seq(do(1, Word{Op: rnic.OpWrite, Swap: 0x1C}, 0), do(1, mcas, 0x1C), do(1, read, 0xFFFF)), false},
		{"open write that happened", seq([]we{call(1, write)}, do(2, read, 0), do(2, read, 7)), true},
		{"open write that did not", seq([]we{call(1, write)}, do(2, read, 0), do(2, read, 0)), true},
		{"open write that came and went", seq([]we{call(1, write)}, do(2, read, 7), do(2, read, 0)), false},
		{"open write that was not called yet", seq(do(2, read, 7), []we{call(1, write)}), false},
		{"open FETCH-ADD happens once", seq([]we{call(1, faa)}, do(2, read, 1), do(2, read, 2)), false},
		{"forgotten write", seq([]we{call(1, write), forget(1)}, do(2, read, 7)), false},
		{"other words do not matter", seq(do(1, write, 0), do(2, Word{Op: rnic.OpRead, Addr: 8}, 0)), true},
		{"wrong byte order", seq(do(1, cas, 0), do(2, read, 8<<56)), false},
	} {
		err := Check(Words(nil), replay(c.h), 0)
		var bad *NotLinearizable
		if (err == nil) != c.ok || !c.ok && !errors.As(err, &bad) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if err := Check(Words(func(a uint64) uint64 { return a + 1 }), replay(do(1, Word{Op: rnic.OpRead, Addr: 8}, 9)), 0); err != nil {
		t.Error(err)
	}
}

// A client can have several requests under way. They take effect in their order, but a READ can be overtaken.
func TestInOrder(t *testing.T) {
	type req struct {
		w   Word
		out uint64
	}
	other := Word{Op: rnic.OpWrite, Swap: 9}
	for _, c := range []struct {
		name string
		reqs []req
		ok   bool
	}{
		{"writes", []req{{write, 0}, {other, 0}, {cas, 9}}, true},
		{"the first write came last", []req{{write, 0}, {other, 0}, {cas, 7}}, false},
		{"read of what is asked for later", []req{{read, 7}, {write, 0}}, true},
		{"read before the write before it", []req{{write, 0}, {read, 0}}, false},
	} {
		l := new(Log[Word, uint64])
		for _, r := range c.reqs {
			l.Call(1, 0, r.w)
		}
		for i, r := range c.reqs {
			l.Return(i, 0, r.out)
		}
		if err := Check(Words(nil), l, 0); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	// Of the open requests of one connection, the first ones have happened, and then no more.
	for _, c := range []struct {
		reads []uint64
		ok    bool
	}{{[]uint64{0, 7, 9}, true}, {[]uint64{9}, true}, {[]uint64{9, 7}, false}, {[]uint64{7, 7}, true}} {
		l := new(Log[Word, uint64])
		l.Call(1, 0, write)
		l.Call(1, 0, other)
		for _, v := range c.reads {
			l.Return(l.Call(2, 0, read), 0, v)
		}
		if err := Check(Words(nil), l, 0); (err == nil) != c.ok {
			t.Errorf("%v: %v", c.reads, err)
		}
	}
	// A CAS without an answer that failed does not keep the next request from happening.
	l := new(Log[Word, uint64])
	l.Call(1, 0, Word{Op: rnic.OpCompareSwap, Compare: 3, Swap: 4})
	l.Call(1, 0, write)
	l.Return(l.Call(2, 0, read), 0, 7)
	if err := Check(Words(nil), l, 0); err != nil {
		t.Error(err)
	}
}

func TestLocks(t *testing.T) {
	type le = event[Lock, struct{}]
	take := func(c int) le { return le{client: c, call: &Lock{Owner: uint64(c)}} }
	steal := func(c, from int) le { return le{client: c, call: &Lock{Owner: uint64(c), From: uint64(from)}} }
	drop := func(c int) le { return le{client: c, call: &Lock{Owner: uint64(c), Release: true}} }
	ok := func(c int) le { return le{client: c} }
	for _, c := range []struct {
		name string
		h    []le
		ok   bool
	}{
		{"one after the other", []le{take(1), ok(1), drop(1), ok(1), take(2), ok(2)}, true},
		{"two holders", []le{take(1), ok(1), take(2), ok(2)}, false},
		{"two at the same time", []le{take(1), take(2), ok(1), ok(2)}, false},
		{"taken while it is released", []le{take(1), ok(1), drop(1), take(2), ok(2), ok(1)}, true},
		{"taken behind an open release", []le{take(1), ok(1), drop(1), take(2), ok(2)}, true},
		{"released twice", []le{take(1), ok(1), drop(1), ok(1), drop(1), ok(1)}, false},
		{"taken from the dead", []le{take(1), ok(1), steal(2, 1), ok(2)}, true},
		{"taken from one of whom nobody knew that he had it", []le{take(1), steal(2, 1), ok(2)}, true},
		{"taken from one who has it no more", []le{take(1), ok(1), drop(1), ok(1), steal(2, 1), ok(2)}, false},
	} {
		if err := Check(Locks(), replay(c.h), 0); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestRegisters(t *testing.T) {
	type re = event[Register, uint64]
	put := func(c int, v uint64) re { return re{client: c, call: &Register{Key: 3, Write: true, Value: v}} }
	get := func(c int) re { return re{client: c, call: &Register{Key: 3}} }
	out := func(c int, v uint64) re { return re{client: c, out: v} }
	for _, c := range []struct {
		name string
		h    []re
		ok   bool
	}{
		{"latest", []re{put(1, 5), out(1, 0), put(2, 6), out(2, 0), get(1), out(1, 6)}, true},
		{"stale", []re{put(1, 5), out(1, 0), put(2, 6), out(2, 0), get(1), out(1, 5)}, false},
		{"open", []re{put(1, 5), get(2), out(2, 5), get(3)}, true},
		{"lost", []re{put(1, 5), out(1, 0), get(2), out(2, 0)}, false},
	} {
		if err := Check(Registers(nil), replay(c.h), 0); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// If requests happen in some order, each between its call and its return, the history is always explained. An
// answer that the word never had is never explained.
func TestWhatHappensIsExplained(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type client struct {
			w    Word
			id   int
			busy bool
			out  uint64
			done bool
		}
		l := new(Log[Word, uint64])
		conns := []int{l.NewClient(), l.NewClient(), l.NewClient(), l.NewClient()}
		var words [2]uint64
		cs := make([]client, 4)
		var returned []int
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			who := rapid.IntRange(0, len(cs)-1).Draw(t, "client")
			c := &cs[who]
			switch {
			case !c.busy:
				small := rapid.Uint64Range(0, 2)
				c.w = Word{
					Op:   rapid.SampledFrom([]rnic.Op{rnic.OpRead, rnic.OpWrite, rnic.OpCompareSwap, rnic.OpFetchAdd, rnic.OpMaskedCompareSwap}).Draw(t, "op"),
					Addr: 8 * rapid.Uint64Range(0, 1).Draw(t, "word"), Compare: small.Draw(t, "compare"), Swap: small.Draw(t, "swap"),
					CompareMask: small.Draw(t, "mask"), SwapMask: small.Draw(t, "mask"),
				}
				c.id, c.busy, c.done = l.Call(conns[who], 0, c.w), true, false
			case !c.done:
				v := &words[c.w.Addr/8]
				c.out, *v, c.done = *v, c.w.After(*v), true
			case rapid.IntRange(0, 9).Draw(t, "open") == 0:
				conns[who] = l.NewClient() // the request gets no answer; the client goes on with another connection
				c.busy = false
			default:
				l.Return(c.id, 0, c.out)
				if c.w.Op != rnic.OpWrite {
					returned = append(returned, c.id)
				}
				c.busy = false
			}
		}
		if err := Check(Words(nil), l, 0); err != nil {
			t.Fatal(err)
		}
		if len(returned) > 0 {
			l.ops[rapid.SampledFrom(returned).Draw(t, "lie")].Out = 1 << 40
			if Check(Words(nil), l, 0) == nil {
				t.Fatal("a value that was never there is explained")
			}
		}
	})
}

// Porcupine and the search have the same verdict for any history.
func TestPorcupineAgrees(t *testing.T) {
	verdicts := map[bool]int{}
	rapid.Check(t, func(t *rapid.T) {
		l := new(Log[Word, uint64])
		small := rapid.Uint64Range(0, 3)
		var open []int
		for range rapid.IntRange(1, 24).Draw(t, "events") {
			if len(open) > 0 && rapid.Bool().Draw(t, "return") {
				// On every connection requests return in order.
				i := rapid.IntRange(0, len(open)-1).Draw(t, "which")
				for k := range i {
					if l.ops[open[k]].Client == l.ops[open[i]].Client {
						i = k
						break
					}
				}
				l.Return(open[i], 0, small.Draw(t, "told"))
				open = append(open[:i], open[i+1:]...)
				continue
			}
			open = append(open, l.Call(rapid.IntRange(1, 3).Draw(t, "client"), 0, Word{
				Op:      rapid.SampledFrom([]rnic.Op{rnic.OpRead, rnic.OpWrite, rnic.OpCompareSwap, rnic.OpFetchAdd, rnic.OpMaskedCompareSwap}).Draw(t, "op"),
				Compare: small.Draw(t, "compare"), Swap: small.Draw(t, "swap"), CompareMask: small.Draw(t, "mask"), SwapMask: small.Draw(t, "mask"),
			}))
		}
		err := Check(Words(nil), l, 0)
		m := Words(nil)
		model, ops := m.porcupine(0, m.objects(l.Ops())[0])
		if ok := porcupine.CheckOperations(model, ops); ok != (err == nil) {
			t.Fatalf("porcupine says %v, the search %v:\n%s", ok, err, Text(m, l, 0))
		}
		verdicts[err == nil]++
	})
	if verdicts[true] == 0 || verdicts[false] == 0 {
		t.Errorf("verdicts %v", verdicts)
	}
}

func TestUndecided(t *testing.T) {
	l := new(Log[Word, uint64])
	for c := range 40 {
		l.Call(c, 0, Word{Op: rnic.OpFetchAdd, Swap: 1 << c})
	}
	id := l.Call(40, 0, read)
	l.Return(id, 0, 1<<50)
	if err := Check(Words(nil), l, 1000); !errors.Is(err, ErrUndecided) {
		t.Error(err)
	}
}

func TestVisualizeFile(t *testing.T) {
	l := replay(seq(do(1, write, 0), do(2, read, 0)))
	err := Check(Words(nil), l, 0)
	if _, e := VisualizeFile(Locks(), new(Log[Lock, struct{}]), err, "x"); e != nil {
		t.Error(e)
	}
	t.Setenv("TMPDIR", t.TempDir())
	name, e := VisualizeFile(Words(nil), l, err, "history-*.html")
	if e != nil {
		t.Fatal(e)
	}
	page, e := os.ReadFile(name)
	if e != nil || !strings.Contains(string(page), "<html") || !strings.Contains(string(page), "WRITE 0x7") {
		t.Errorf("%v; page of %d bytes", e, len(page))
	}
	if s := Text(Words(nil), l, 0); !strings.Contains(s, "READ = 0x0") {
		t.Error(s)
	}
	if name, e := VisualizeFile(Words(nil), l, nil, "x"); name != "" || e != nil {
		t.Error(name, e)
	}
}
