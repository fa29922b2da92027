package kvcache

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/hdr/clio"
)

var device = clio.End{MAC: [6]byte{2, 0, 0, 0, 0, 99}, IP: [4]byte{192, 168, 1, 99}, Port: clio.Port}

func client(i int) clio.End {
	return clio.End{MAC: [6]byte{2, 0, 0, 0, 0, byte(i)}, IP: [4]byte{192, 168, 1, byte(i)}, Port: 8000}
}

func ask(from int, id uint16, op clio.Opcode, key uint64, value string, tags int) []byte {
	n := clio.LegoLen + clio.RequestLen + len(value)
	b := make([]byte, clio.HeadersLen+n)
	src := client(from)
	clio.Headers(b, &src, &device, n)
	f := clio.Plain(false)
	clio.Lego(b[f.Lego:]).Encode(&clio.Fields{ID: id, Opcode: op, Size: uint16(n)})
	clio.Request(b[f.Op:]).Encode(key, 8, uint16(len(value)))
	copy(b[f.Op+clio.RequestLen:], value)
	f.Seal(b, len(b), true)
	for range tags {
		b = slices.Insert(b, 12, 0x81, 0, 0, 42)
	}
	return b
}

// reply is a device's to a request.
func reply(req []byte, status clio.Status, value string) []byte {
	var f clio.Frame
	b := slices.Clone(req)
	clio.Parse(b, false, &f)
	n := f.AnswerEnd(len(value))
	b = append(b, make([]byte, max(0, n-len(b)))...)[:n]
	f.Answer(b, status, []byte(value))
	return b
}

// test is a cache whose clients 1 and 2 are known, and have used numbers below 100.
type test struct {
	*graphtest.Test
	t  *testing.T
	id uint16
}

func newTest(t *testing.T, args graph.Args) *test {
	return settled(&test{graphtest.New(t, *Kind(), args), t, 100})
}

// settled is x after a while, and with two clients that asked for something.
func settled(x *test) *test {
	x.Advance(time.Second)
	for i := 1; i <= 2; i++ {
		x.Push("b", ask(i, 1, clio.Read, 12345, "", 0))
	}
	x.Advance(time.Second)
	return x
}

// get is a read by a client; "" when it missed. put is a write, answered.
func (x *test) get(from int, key uint64) string {
	x.t.Helper()
	x.id++
	q := ask(from, x.id, clio.Read, key, "", 0)
	r := x.Push("b", q)
	if len(r.Out["a"]) == 1 {
		return ""
	}
	var f clio.Frame
	p := r.Out["b"][0].Bytes
	if clio.Parse(p, false, &f) != clio.Message || !f.Sound(p) || f.Src(p) != device || f.Dst(p) != client(from) || clio.Lego(p[f.Lego:]).ID() != x.id {
		x.t.Fatalf("%x", p)
	}
	return string(p[f.Data:f.Stop])
}

func (x *test) fill(from int, key uint64, value string) {
	x.id++
	q := ask(from, x.id, clio.Read, key, "", 0)
	if r := x.Push("b", q); len(r.Out["a"]) == 1 {
		x.Push("a", reply(q, clio.OK, value))
	}
}

func TestReads(t *testing.T) {
	for tags := range 3 {
		x := newTest(t, nil)
		x.Push("b", ask(1, 1, clio.Read, 12345, "", tags))
		x.Advance(100 * time.Millisecond)
		q := ask(1, 200, clio.Read, 7, "", tags)
		got := x.Push("b", q)
		if len(got.Out["a"]) != 1 || !bytes.Equal(got.Out["a"][0].Bytes, q) {
			t.Fatalf("a miss is changed: %v", got)
		}
		a := reply(q, clio.OK, "value")
		if got := x.Push("a", a); len(got.Out["b"]) != 1 || !bytes.Equal(got.Out["b"][0].Bytes, a) {
			t.Fatalf("an answer is changed: %v", got)
		}
		// The device's own answer, byte for byte.
		if got := x.Push("b", q); len(got.Out["b"]) != 1 || !bytes.Equal(got.Out["b"][0].Bytes, a) || got.Out["b"][0].Reason != "hit" {
			t.Fatalf("%d tags: got %v, want\n%x", tags, got, a)
		}
	}
}

// Writes, one after another and under way together, lost and repeated.
func TestWrites(t *testing.T) {
	x := newTest(t, nil)
	x.fill(1, 7, "old")
	if x.get(2, 7) != "old" {
		t.Fatal("not filled")
	}
	w := ask(1, 300, clio.Update, 7, "new", 0)
	x.Push("b", w)
	if v := x.get(2, 7); v != "" {
		t.Fatalf("%q while a write is under way", v)
	}
	x.Push("a", reply(w, clio.OK, ""))
	if v := x.get(2, 7); v != "new" {
		t.Fatalf("%q after the write", v)
	}
	// A repetition of it, much later: the device answers, and does not execute it.
	v2 := ask(2, 301, clio.Update, 7, "newer", 0)
	x.Push("b", v2)
	x.Push("a", reply(v2, clio.OK, ""))
	x.Push("b", w)
	x.Push("a", reply(w, clio.OK, ""))
	if v := x.get(2, 7); v == "new" {
		t.Fatal("learnt from a repetition")
	}
	// Two at a time: nobody knows which was last.
	a, b := ask(1, 400, clio.Update, 7, "a", 0), ask(2, 400, clio.Update, 7, "b", 0)
	x.Push("b", a, b)
	x.Push("a", reply(b, clio.OK, ""))
	if v := x.get(2, 7); v != "" {
		t.Fatalf("%q while a write is under way", v)
	}
	x.Push("a", reply(a, clio.OK, ""))
	if v := x.get(2, 7); v != "" {
		t.Fatalf("%q after two writes", v)
	}
	// A read that was overtaken by a write does not fill.
	r := ask(1, 500, clio.Read, 7, "", 0)
	x.Push("b", r)
	w = ask(2, 501, clio.Update, 7, "latest", 0)
	x.Push("b", w)
	x.Push("a", reply(w, clio.OK, ""), reply(r, clio.OK, "stale"))
	if v := x.get(1, 7); v == "stale" {
		t.Fatal("filled by a read that was overtaken")
	}
	x.id = 510
	r = ask(1, 520, clio.Read, 9, "", 0)
	w = ask(2, 521, clio.Delete, 9, "", 0)
	x.Push("b", r, w)
	x.Push("a", reply(w, clio.OK, ""), reply(r, clio.OK, "stale"))
	x.id = 530
	if v := x.get(1, 9); v != "" {
		t.Fatalf("%q, filled by a read that a deletion has overtaken", v)
	}
	// No answer: out of the cache until it has settled.
	w = ask(2, 600, clio.Update, 7, "lost", 0)
	x.Push("b", w)
	x.Advance(90 * time.Millisecond)
	x.id = 700
	x.fill(1, 7, "stale")
	if v := x.get(1, 7); v != "" {
		t.Fatalf("%q before a lost write has settled", v)
	}
	x.Advance(50 * time.Millisecond)
	x.fill(1, 7, "settled")
	if v := x.get(1, 7); v != "settled" {
		t.Fatalf("%q after a lost write has settled", v)
	}
	// Unknown, and refused.
	for i, status := range []clio.Status{clio.Unknown, clio.Busy} {
		k := uint64(20 + i)
		w = ask(2, uint16(900+i), clio.Update, k, "unknown", 0)
		x.Push("b", w)
		x.Push("a", reply(w, status, ""))
		x.id = uint16(1000 + 10*i)
		x.fill(1, k, "stale")
		if v := x.get(1, k); v != "" {
			t.Fatalf("%q after a write that was answered with status %d", v, status)
		}
	}
	w = ask(2, 1100, clio.Create, 8, "refused", 0)
	x.Push("b", w)
	x.Push("a", reply(w, clio.Invalid, ""))
	if v := x.get(1, 8); v != "" {
		t.Fatalf("%q was refused", v)
	}
}

func TestReplacement(t *testing.T) {
	for policy, want := range map[string][]string{"fifo": {"", "2", "3", "4"}, "lru": {"1", "", "3", "4"}} {
		x := newTest(t, graph.Args{"policy": policy, "entries": "3"})
		for k := uint64(1); k <= 3; k++ {
			x.fill(1, k, fmt.Sprint(k))
		}
		x.get(1, 1) // used, and still the first
		x.fill(1, 4, "4")
		for k := uint64(1); k <= 4; k++ {
			i, e := x.App().(*app).cache.find(&key{k, device.IP, 0, 8}, (&key{k, device.IP, 0, 8}).hash()), want[k-1]
			if (i == none) != (e == "") {
				t.Errorf("%s: key %d", policy, k)
			}
		}
		if x.Counter("entries") != 3 || x.Counter("bytes") != 3 || x.Counter("evicted") != 1 {
			t.Errorf("%s: %d entries", policy, x.Counter("entries"))
		}
	}
	x := newTest(t, graph.Args{"value": "10", "bytes": "15"})
	x.fill(1, 1, "0123456789")
	x.fill(1, 2, "01234")
	x.fill(1, 3, "0123456789x")
	if x.get(1, 1) == "" || x.get(1, 2) == "" || x.get(1, 3) != "" {
		t.Error("bytes")
	}
	if x.fill(1, 4, "0"); x.get(1, 1) != "" || x.get(1, 4) != "0" {
		t.Error("bytes: no room was made")
	}
}

func TestForgets(t *testing.T) {
	x := newTest(t, graph.Args{"pending": "2"})
	x.fill(1, 1, "1")
	for i := range uint64(3) {
		x.Push("b", ask(1, uint16(500+i), clio.Update, 10+i, "x", 0))
	}
	x.id = 600
	if x.get(1, 1) != "" || x.Counter("forgot-all") != 1 {
		t.Error("a write that is not followed")
	}
	if x.fill(1, 1, "1"); x.get(1, 1) != "" {
		t.Error("learnt too early")
	}
	x.Advance(200 * time.Millisecond)
	if x.fill(1, 1, "1"); x.get(1, 1) != "1" {
		t.Error("not learnt again")
	}
	// At the start writes may be under way that nobody saw.
	y := &test{graphtest.New(t, *Kind(), nil), t, 100}
	y.Push("b", ask(1, 1, clio.Read, 12345, "", 0))
	if y.fill(1, 1, "1"); y.get(1, 1) != "" || y.Counter("settling") == 0 {
		t.Error("learnt at the start")
	}
	// A session that nobody knows: of its first 64 nothing is learnt.
	q := ask(3, 1, clio.Read, 9, "", 0)
	x.Push("b", q)
	x.Push("a", reply(q, clio.OK, "9"))
	q = ask(3, 65, clio.Read, 9, "", 0)
	x.Push("b", q)
	x.Push("a", reply(q, clio.OK, "9"))
	if x.get(1, 9) != "" {
		t.Error("learnt from a stranger")
	}
}

// The tables against models.
func TestTables(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 6).Draw(t, "entries")
		c := newCache(n, 8, n*8, nil)
		var model []uint64 // oldest first
		for range rapid.IntRange(1, 100).Draw(t, "steps") {
			k := key{key: rapid.Uint64Range(0, 12).Draw(t, "key"), size: 8}
			i := c.find(&k, k.hash())
			at := slices.Index(model, k.key)
			if (i == none) != (at < 0) {
				t.Fatalf("key %d: entry %d, %v", k.key, i, model)
			}
			switch {
			case i == none:
				c.add(&k, k.hash(), []byte{byte(k.key)})
				if len(model) == n {
					model = model[1:]
				}
				model = append(model, k.key)
			case rapid.Bool().Draw(t, "touch"):
				c.order.Renew(i)
				model = append(slices.Delete(model, at, at+1), k.key)
			default:
				c.remove(i)
				model = slices.Delete(model, at, at+1)
			}
			var got []uint64
			for i := c.order.Oldest(); i != none; i = c.order.Newer(i) {
				got = append(got, c.entries[i].key.key)
				if c.value(i)[0] != byte(c.entries[i].key.key) {
					t.Fatal("another's value")
				}
			}
			if !slices.Equal(got, model) || c.used != len(model) || c.bytes != len(model) {
				t.Fatalf("%v, want %v", got, model)
			}
		}
	})
}

func TestPasses(t *testing.T) {
	x := newTest(t, graph.Args{"policy": "lru"})
	session := ask(1, 9, clio.OpenSession, 0, "", 0)
	fragment := ask(1, 9, clio.Read, 0, "", 0)
	fragment[20] = 0x20
	malformed := ask(1, 9, clio.Read, 0, "", 0)
	malformed[39]--
	for reason, f := range map[string][]byte{"not-keys": session, "fragment": fragment, "malformed": malformed} {
		for in, out := range map[string]string{"a": "b", "b": "a"} {
			if got := x.Push(in, f).Out[out]; len(got) != 1 || got[0].Reason != reason || !bytes.Equal(got[0].Bytes, f) {
				t.Errorf("%s: %v", reason, got)
			}
		}
	}
	damaged := ask(1, 9, clio.Update, 0, "v", 0)
	damaged[len(damaged)-1] ^= 1
	if got := x.Push("b", damaged); len(got.Dropped) != 1 {
		t.Errorf("%v", got)
	}
	if err := x.Set(graph.Args{"policy": "fifo"}); err != nil || x.App().(*app).lru {
		t.Error(err)
	}
	for _, a := range []graph.Args{{"policy": "mru"}, {"entries": "0"}, {"value": "2000"}, {"bytes": "3"}, {"settle": "0s"}, {"devices": "x"}, {"y": ""}} {
		if _, err := Kind().New(graph.Env{Workers: 1}, a); err == nil {
			t.Errorf("%v is taken", a)
		}
	}
}

func FuzzPush(f *testing.F) {
	f.Add(ask(1, 200, clio.Read, 7, "", 0), false)
	f.Add(ask(1, 200, clio.Update, 7, "value", 1), false)
	f.Add(reply(ask(1, 200, clio.Read, 7, "", 2), clio.OK, "value"), true)
	f.Fuzz(func(t *testing.T, p []byte, fromDevice bool) {
		if len(p) > 2000 {
			return
		}
		x := settled(&test{graphtest.NewSmall(t, *Kind(), graph.Args{"entries": "4", "pending": "4", "sessions": "4"}), t, 100})
		x.fill(1, 7, "value")
		in := "b"
		if fromDevice {
			in = "a"
		}
		var fr clio.Frame
		if clio.Parse(p, false, &fr) == clio.Message {
			p = p[:fr.Stop]
			fr.Seal(p, fr.Stop, true)
		}
		for range 2 {
			r := x.Push(in, p)
			all := slices.Concat(r.Out["a"], r.Out["b"], r.Dropped)
			if len(all) != 1 {
				t.Fatalf("%d frames", len(all))
			}
			if all[0].Reason == "hit" {
				if clio.Parse(all[0].Bytes, false, &fr) != clio.Message || !fr.Sound(all[0].Bytes) {
					t.Fatalf("%x", all[0].Bytes)
				}
			} else if !bytes.Equal(all[0].Bytes, p) {
				t.Fatalf("%s changed a frame", all[0].Reason)
			}
		}
	})
}

func TestAllocs(t *testing.T) {
	q := ask(1, 200, clio.Read, 7, "", 0)
	for _, fs := range [][][]byte{{q}, {ask(1, 200, clio.Update, 7, "value", 0)}} {
		if n := graphtest.Allocs(t, *Kind(), graph.Args{"settle": "1us"}, "b", fs...); n != 0 {
			t.Errorf("%v allocations", n)
		}
	}
	if n := graphtest.Allocs(t, *Kind(), graph.Args{"settle": "1us"}, "a", reply(q, clio.OK, "value")); n != 0 {
		t.Errorf("%v allocations", n)
	}
	// The tables, through all of a pair's life.
	c, p := newCache(4, 8, 32, nil), newPendings(4)
	s, v := newSenders(4), []byte("v")
	i := uint64(0)
	if n := testing.AllocsPerRun(100, func() {
		i++
		k, r := key{key: i % 8, size: 8}, request{id: uint16(i)}
		s.fresh(1, &r, 0)
		if e := c.find(&k, k.hash()); e == none {
			c.add(&k, k.hash(), v)
		}
		if e := p.add(1, &r, &k, k.hash(), clio.Read); e != none && p.find(&r) == e && i%2 == 0 {
			p.remove(e)
		}
		if p.free == none {
			p.clear()
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// known is a Kind whose apps know key 7 from the start.
func known(size int) graph.Kind {
	k := *Kind()
	inner := k.New
	k.New = func(env graph.Env, args graph.Args) (graph.App, error) {
		x, err := inner(env, args)
		if err == nil {
			a, kk := x.(*app), key{7, device.IP, 0, 8}
			a.cache.entries[a.cache.add(&kk, kk.hash(), make([]byte, size))].valid = true
			a.quiet = 1
		}
		return x, err
	}
	return k
}

func TestHitAllocs(t *testing.T) {
	if n := graphtest.Allocs(t, known(1024), nil, "b", ask(1, 200, clio.Read, 7, "", 1)); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkHit(b *testing.B) {
	for name, size := range map[string]int{"8": 8, "1024": 1024} {
		b.Run(name, func(b *testing.B) {
			graphtest.Benchmark(b, known(size), nil, "b", ask(1, 200, clio.Read, 7, "", 0))
		})
	}
}

func BenchmarkMiss(b *testing.B) {
	graphtest.Benchmark(b, known(8), nil, "b", ask(1, 200, clio.Read, 8, "", 0))
}

// A write that passed while nothing might be learnt is under way when that is over:
// a read that overtakes it brings the old value.
func TestWriteWhileSettling(t *testing.T) {
	x := &test{graphtest.New(t, *Kind(), nil), t, 200}
	x.Push("b", ask(1, 1, clio.Read, 12345, "", 0), ask(2, 1, clio.Read, 12345, "", 0))
	x.Advance(90 * time.Millisecond)
	w := ask(1, 100, clio.Update, 7, "new", 0)
	if got := x.Push("b", w).Out["a"]; len(got) != 1 || got[0].Reason != "settling" {
		t.Fatal(got)
	}
	x.Advance(20 * time.Millisecond)
	x.fill(2, 7, "old")
	x.Push("a", reply(w, clio.OK, ""))
	if v := x.get(2, 7); v != "" {
		t.Fatalf("%q after a write that was answered", v)
	}
	if x.fill(2, 7, "new"); x.get(2, 7) != "new" {
		t.Error("not learnt after the write")
	}
	// More writes than can be followed begin the time anew.
	y := &test{graphtest.New(t, *Kind(), graph.Args{"pending": "2"}), t, 200}
	y.Push("b", ask(1, 1, clio.Read, 12345, "", 0))
	y.Advance(90 * time.Millisecond)
	for i := range uint64(3) {
		y.Push("b", ask(1, uint16(100+i), clio.Update, 10+i, "x", 0))
	}
	y.Advance(90 * time.Millisecond)
	if y.fill(1, 1, "1"); y.get(1, 1) != "" {
		t.Error("learnt while a write may be under way that is not followed")
	}
}

// The same addresses in another VLAN are other machines.
func TestVLANs(t *testing.T) {
	for _, tags := range []int{1, 2} {
		testVLANs(t, tags)
	}
}

func testVLANs(t *testing.T, tags int) {
	in := func(vid byte, p []byte) []byte {
		p[11+4*tags] = vid // the innermost tag's
		return p
	}
	x := newTest(t, nil)
	for vid := byte(1); vid <= 2; vid++ {
		x.Push("b", in(vid, ask(1, 1, clio.Read, 12345, "", tags)))
	}
	x.Advance(100 * time.Millisecond)
	q := in(1, ask(1, 200, clio.Read, 7, "", tags))
	x.Push("b", q)
	x.Push("a", reply(q, clio.OK, "one's"))
	if got := x.Push("b", in(1, ask(1, 201, clio.Read, 7, "", tags))); len(got.Out["b"]) != 1 {
		t.Fatal("not learnt")
	}
	q = in(2, ask(1, 200, clio.Read, 7, "", tags))
	if got := x.Push("b", q); len(got.Out["a"]) != 1 {
		t.Fatalf("another VLAN's value: %v", got)
	}
	x.Push("a", reply(q, clio.OK, "two's"))
	for vid, want := range map[byte]string{1: "one's", 2: "two's"} {
		if got := x.Push("b", in(vid, ask(1, 202, clio.Read, 7, "", tags))).Out["b"]; len(got) != 1 || !bytes.HasSuffix(got[0].Bytes, []byte(want)) {
			t.Errorf("VLAN %d: %v", vid, got)
		}
	}
}

// It sleeps when it waits for no answer.
func TestSleeps(t *testing.T) {
	x := newTest(t, nil)
	x.Advance(time.Second)
	if at := x.Inst.NextTick(); at != clock.Never {
		t.Errorf("wakes at %d", at)
	}
	x.Push("b", ask(1, 200, clio.Update, 7, "x", 0))
	if at, want := x.Inst.NextTick(), x.Clock.Now().Add(100*time.Millisecond); at != want {
		t.Errorf("wakes at %d, want %d", at, want)
	}
	if x.Advance(100 * time.Millisecond); x.Counter("expired") != 1 || x.Counter("pending") != 0 || x.Inst.NextTick() != clock.Never {
		t.Errorf("%d expired", x.Counter("expired"))
	}
}

// Reads that nobody answers do not keep writes from being followed.
func TestReadsYield(t *testing.T) {
	x := newTest(t, graph.Args{"pending": "8"})
	x.fill(1, 1, "1")
	for i := range uint64(20) {
		x.Push("b", ask(2, uint16(500+i), clio.Read, 100+i, "", 0))
	}
	for i := range uint64(8) {
		x.Push("b", ask(1, uint16(500+i), clio.Update, 10+i, "x", 0))
	}
	x.id = 600
	if x.get(1, 1) != "1" || x.Counter("forgot-all") != 0 || x.Counter("pending") != 8 {
		t.Errorf("forgot all; %d pending", x.Counter("pending"))
	}
	x.Push("a", reply(ask(1, 503, clio.Update, 13, "x", 0), clio.OK, ""))
	if x.get(1, 13) != "x" {
		t.Error("not learnt")
	}
	if x.Push("b", ask(1, 700, clio.Update, 40, "x", 0), ask(1, 701, clio.Update, 41, "x", 0)); x.Counter("forgot-all") != 1 {
		t.Error("a write is not followed")
	}
}

// Of a session that is not known an old repetition comes first, and then one of a
// write that was long since followed by another.
func TestOldRepetitionFirst(t *testing.T) {
	x := newTest(t, nil)
	w := ask(2, 300, clio.Update, 7, "newest", 0)
	x.Push("b", w)
	x.Push("a", reply(w, clio.OK, ""))
	x.Push("b", ask(3, 10, clio.Read, 9, "", 0))
	old := ask(3, 900, clio.Update, 7, "old", 0)
	x.Push("b", old)
	x.Push("a", reply(old, clio.OK, "")) // it was executed before w
	x.id = 1000
	if v := x.get(1, 7); v != "" {
		t.Fatalf("%q was learnt from a repetition", v)
	}
	x.Advance(100 * time.Millisecond)
	w = ask(3, 1001, clio.Update, 7, "next", 0)
	x.Push("b", w)
	x.Push("a", reply(w, clio.OK, ""))
	if v := x.get(1, 7); v != "next" {
		t.Errorf("%q: nothing is learnt from a session that is known", v)
	}
}

// What one worker learns others answer with.
func TestTwoWorkers(t *testing.T) {
	x := graphtest.NewGang(t, *Kind(), 2, nil)
	settle := func() { x.Now = x.Now.Add(200 * time.Millisecond) }
	settle()
	x.Push(0, 1, [][]byte{ask(1, 1, clio.Read, 12345, "", 0), ask(2, 1, clio.Read, 12345, "", 0)})
	settle()
	q := ask(1, 200, clio.Read, 7, "", 0)
	x.Push(0, 1, [][]byte{q})
	x.Push(1, 0, [][]byte{reply(q, clio.OK, "value")})
	x.Took(0)
	x.Took(1)
	again := ask(2, 200, clio.Read, 7, "", 0)
	for w := range 2 {
		x.Push(w, 1, [][]byte{again, again}) // two of a batch: each has a value of its own until its answer is made
		for _, f := range x.Took(1) {
			if !bytes.Equal(f, reply(again, clio.OK, "value")) {
				t.Errorf("worker %d answers %x", w, f)
			}
		}
	}
	w := ask(1, 201, clio.Update, 7, "new", 0)
	x.Push(1, 1, [][]byte{w})
	x.Push(0, 1, [][]byte{again})
	if got := x.Took(1); len(got) != 0 {
		t.Errorf("a write is under way, and there is an answer: %x", got)
	}
	if _, err := Kind().New(graph.Env{Workers: 1}, nil); err != nil {
		t.Error(err)
	}
	count := x.Close()
	if count["hit"] != 4 || count["write"] != 1 || count["pending"] != 1 || count["entries"] != 1 || count["bytes"] != 3 {
		t.Errorf("%v", count)
	}
}

// BenchmarkWorkers: hits of 1 KB, by one worker and by two.
func BenchmarkWorkers(b *testing.B) {
	for _, workers := range []int{1, 2} {
		b.Run(fmt.Sprint(workers), func(b *testing.B) {
			x := graphtest.NewGang(b, *Kind(), workers, nil)
			x.Push(0, 1, [][]byte{ask(1, 1, clio.Read, 12345, "", 0)})
			x.Now = x.Now.Add(200 * time.Millisecond)
			x.Push(0, 1, [][]byte{ask(1, 2, clio.Read, 12345, "", 0)})
			x.Now = x.Now.Add(200 * time.Millisecond)
			var frames [][]byte
			for key := range uint64(64) {
				q := ask(1, uint16(200+key), clio.Read, key, "", 0)
				x.Push(0, 1, [][]byte{q})
				x.Push(0, 0, [][]byte{reply(q, clio.OK, string(make([]byte, 1024)))})
				frames = append(frames, q)
			}
			x.Benchmark(b, 1, frames)
			if n := x.Close()["hit"]; n == 0 {
				b.Error("no hits")
			}
		})
	}
}
