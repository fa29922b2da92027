package replicate

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/hdr/clio"
)

var (
	client  = clio.End{MAC: [6]byte{2, 0, 0, 0, 0, 1}, IP: [4]byte{192, 168, 1, 1}, Port: 8000}
	devices = []clio.End{
		{MAC: [6]byte{2, 0, 0, 0, 0, 0x10}, IP: [4]byte{192, 168, 1, 10}, Port: clio.Port},
		{MAC: [6]byte{2, 0, 0, 0, 0, 0x11}, IP: [4]byte{192, 168, 1, 11}, Port: clio.Port},
	}
	args = graph.Args{"replicas": "192.168.1.10@02:00:00:00:00:10+192.168.1.11@02:00:00:00:00:11", "tries": "3"}
)

// ask is a request to device d; tags are VLAN tags.
func ask(d int, id uint16, op clio.Opcode, key uint64, value string, copies bool, tags int) []byte {
	n := clio.LegoLen + clio.RequestLen + len(value)
	b := make([]byte, clio.HeadersLen+n)
	clio.Headers(b, &client, &devices[d], n)
	f := clio.Plain(false)
	clio.Lego(b[f.Lego:]).Encode(&clio.Fields{ID: id, Opcode: op, Size: uint16(n), Replicate: copies})
	clio.Request(b[f.Op:]).Encode(key, 8, uint16(len(value)))
	copy(b[f.Op+clio.RequestLen:], value)
	f.Seal(b, len(b), true)
	for range tags {
		b = slices.Insert(b, 12, 0x81, 0, 0, 42)
	}
	return b
}

// reply is a device's to a request.
func reply(req []byte, status clio.Status) []byte {
	var f clio.Frame
	b := slices.Clone(req)
	clio.Parse(b, false, &f)
	b = b[:f.AnswerEnd(0)]
	f.Answer(b, status, nil)
	return b
}

func frames(fs []graphtest.Frame) (all [][]byte) {
	for _, f := range fs {
		all = append(all, f.Bytes)
	}
	slices.SortFunc(all, bytes.Compare)
	return all
}

func same(t *testing.T, what string, got []graphtest.Frame, want ...[]byte) {
	t.Helper()
	slices.SortFunc(want, bytes.Compare)
	if !slices.EqualFunc(frames(got), want, bytes.Equal) {
		t.Fatalf("%s: got %x\nwant %x", what, frames(got), want)
	}
}

// Byte for byte: a write to both devices, one answer.
func TestCopies(t *testing.T) {
	for tags := range 3 {
		x := graphtest.New(t, *Kind(), args)
		w0, w1 := ask(0, 5, clio.Update, 7, "value", true, tags), ask(1, 5, clio.Update, 7, "value", true, tags)
		same(t, "copies", x.Push("b", w0).Out["a"], w0, w1)
		got := x.Push("a", reply(w1, clio.OK))
		if len(got.Out["b"]) != 0 || len(got.Dropped) != 1 || got.Dropped[0].Reason != "joined" {
			t.Fatalf("%v", got)
		}
		same(t, "answer", x.Push("a", reply(w0, clio.OK)).Out["b"], reply(w0, clio.OK))
		if x.Counter("answered") != 1 || x.Counter("pending") != 0 || x.Inst.Held() != 0 {
			t.Error("books")
		}
		for _, from := range []int{0, 1} {
			if got := x.Push("a", reply([][]byte{w0, w1}[from], clio.OK)); len(got.Dropped) != 1 || got.Dropped[0].Reason != "late" {
				t.Errorf("late: %v", got)
			}
		}
	}
}

func TestPasses(t *testing.T) {
	x := graphtest.New(t, *Kind(), args)
	fragment := ask(0, 5, clio.Update, 7, "value", true, 0)
	fragment[20] = 0x20
	for reason, f := range map[string][]byte{"plain": ask(0, 5, clio.Read, 7, "", false, 0), "fragment": fragment, "not-keys": ask(0, 5, clio.OpenSession, 7, "", false, 0)} {
		if got := x.Push("b", f).Out["a"]; len(got) != 1 || got[0].Reason != reason || !bytes.Equal(got[0].Bytes, f) {
			t.Errorf("%s: %v", reason, got)
		}
	}
	for _, f := range [][]byte{ask(1, 6, clio.Update, 7, "value", true, 0), ask(0, 6, clio.Update, 7, "value", false, 0)} {
		same(t, "no copies", x.Push("b", f).Out["a"], f)
	}
	r := ask(0, 8, clio.Read, 7, "", false, 0)
	same(t, "a read's answer", x.Push("a", reply(r, clio.OK)).Out["b"], reply(r, clio.OK))
}

// Of a key one write is under way; of another key another.
func TestOrder(t *testing.T) {
	x := graphtest.New(t, *Kind(), args)
	var w [4][2][]byte
	for i := range w {
		key := uint64(7)
		if i == 3 {
			key = 8
		}
		for d := range devices {
			w[i][d] = ask(d, uint16(i), clio.Update, key, "value", true, 0)
		}
	}
	same(t, "the first and the other key's", x.Push("b", w[0][0], w[1][0], w[2][0], w[3][0]).Out["a"], w[0][0], w[0][1], w[3][0], w[3][1])
	if got := x.Push("b", w[1][0]); len(got.Dropped) != 1 || got.Dropped[0].Reason != "repeated" {
		t.Errorf("%v", got)
	}
	if x.Counter("waiting") != 2 || x.Inst.Held() != 4 {
		t.Errorf("%d wait", x.Counter("waiting"))
	}
	for i := range 3 {
		x.Push("a", reply(w[i][0], clio.OK))
		got := x.Push("a", reply(w[i][1], clio.OK))
		same(t, "answer", got.Out["b"], reply(w[i][0], clio.OK))
		if i < 2 {
			same(t, "the next", got.Out["a"], w[i+1][0], w[i+1][1])
		}
	}
}

func TestLoss(t *testing.T) {
	x := graphtest.New(t, *Kind(), args)
	w0, w1 := ask(0, 5, clio.Update, 7, "value", true, 0), ask(1, 5, clio.Update, 7, "value", true, 0)
	x.Push("b", w0)
	x.Push("a", reply(w0, clio.OK))
	same(t, "again, to the one", x.Advance(1500 * time.Microsecond).Out["a"], w1)
	x.Push("b", ask(0, 6, clio.Update, 7, "next", true, 0)) // waits
	got := x.Advance(2600 * time.Microsecond)
	// Two more times, and the next write goes to the primary alone.
	same(t, "to the end", got.Out["a"], w1, w1, ask(0, 6, clio.Update, 7, "next", true, 0))
	same(t, "degraded", got.Out["b"], reply(w0, clio.OK))
	if x.Counter("degraded") != 1 || x.Counter("down") != 1 {
		t.Errorf("%d degraded", x.Counter("degraded"))
	}
	same(t, "alone", x.Push("a", reply(ask(0, 6, clio.Update, 7, "next", true, 0), clio.OK)).Out["b"], reply(ask(0, 6, clio.Update, 7, "next", true, 0), clio.OK))
	// Up again, by the operator.
	for _, v := range [][2]string{{"timeout", "2ms"}, {"timeout", "1ms"}, {"revive", "1"}} {
		again := maps.Clone(args)
		again[v[0]] = v[1]
		if err := x.Set(again); err != nil {
			t.Fatal(err)
		}
		if up := x.App().(*app).up; (up == 3) != (v[0] == "revive") {
			t.Fatalf("%s: %b are up", v[0], up)
		}
	}
	// The primary dies.
	w0, w1 = ask(0, 9, clio.Update, 7, "last", true, 0), ask(1, 9, clio.Update, 7, "last", true, 0)
	x.Push("b", w0, ask(0, 10, clio.Update, 7, "wait", true, 0))
	x.Push("a", reply(w1, clio.OK))
	got = x.Advance(10 * time.Millisecond)
	same(t, "unknown", got.Out["b"], reply(w0, clio.Unknown), reply(ask(0, 10, clio.Update, 7, "wait", true, 0), clio.Busy))
	w := ask(0, 11, clio.Update, 9, "x", true, 0)
	same(t, "busy", x.Push("b", w).Out["b"], reply(w, clio.Busy))
}

func TestDisagreement(t *testing.T) {
	for _, c := range []struct {
		primary, other, want clio.Status
		diverged             uint64
	}{{clio.OK, clio.OK, clio.OK, 0}, {clio.OK, clio.Invalid, clio.Unknown, 1}, {clio.Invalid, clio.OK, clio.Invalid, 1}, {clio.Invalid, clio.Invalid, clio.Invalid, 0}, {clio.OK, clio.Unknown, clio.Unknown, 0}} {
		x := graphtest.New(t, *Kind(), args)
		w0, w1 := ask(0, 5, clio.Update, 7, "value", true, 0), ask(1, 5, clio.Update, 7, "value", true, 0)
		x.Push("b", w0)
		x.Push("a", reply(w0, c.primary))
		same(t, "answer", x.Push("a", reply(w1, c.other)).Out["b"], reply(w0, c.want))
		if x.Counter("diverged") != c.diverged {
			t.Errorf("%+v", c)
		}
	}
}

func TestNoPlace(t *testing.T) {
	x := graphtest.New(t, *Kind(), graph.Args{"replicas": args["replicas"], "pending": "2"})
	x.Push("b", ask(0, 1, clio.Update, 1, "a", true, 0), ask(0, 2, clio.Update, 1, "b", true, 0))
	w := ask(0, 3, clio.Update, 3, "c", true, 0)
	same(t, "busy", x.Push("b", w).Out["b"], reply(w, clio.Busy))
	for _, a := range []graph.Args{nil, {"replicas": "1.2.3.4"}, {"replicas": "::1@02:00:00:00:00:10"}, {"replicas": args["replicas"] + "+192.168.1.10@02:00:00:00:00:12"},
		{"replicas": args["replicas"], "tries": "0"}, {"replicas": args["replicas"], "z": "0"}, {"replicas": args["replicas"], "timeout": "0"}} {
		if _, err := Kind().New(graph.Env{Workers: 1}, a); err == nil {
			t.Errorf("%v is taken", a)
		}
	}
}

func FuzzPush(f *testing.F) {
	f.Add(ask(0, 5, clio.Update, 7, "value", true, 0), false)
	f.Add(ask(0, 5, clio.Delete, 7, "", true, 1), false)
	f.Add(reply(ask(0, 4, clio.Update, 7, "value", true, 2), clio.OK), true)
	f.Fuzz(func(t *testing.T, p []byte, fromDevice bool) {
		if len(p) > 2000 {
			return
		}
		x := graphtest.NewSmall(t, *Kind(), graph.Args{"replicas": args["replicas"], "pending": "4"})
		x.Push("b", ask(0, 4, clio.Update, 7, "value", true, 0), ask(0, 3, clio.Update, 7, "value", true, 0))
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
			for side, fs := range x.Push(in, p).Out {
				for _, o := range fs {
					if !bytes.Equal(o.Bytes, p) && (clio.Parse(o.Bytes, false, &fr) != clio.Message || !fr.Sound(o.Bytes)) {
						t.Fatalf("%s: %x", side, o.Bytes)
					}
				}
			}
		}
		x.Advance(50 * time.Millisecond)
		if x.Inst.Held() != 0 {
			t.Fatalf("%d held", x.Inst.Held())
		}
	})
}

func TestAllocs(t *testing.T) {
	a := graph.Args{"replicas": args["replicas"], "pending": "8", "tick": "1us", "timeout": "3us", "tries": "1"}
	// Copies, waiting, repetitions, timeouts, and death; then Busy.
	if n := graphtest.Allocs(t, *Kind(), a, "b", ask(0, 5, clio.Update, 7, "value", true, 0), ask(0, 6, clio.Update, 7, "value", true, 0)); n != 0 {
		t.Errorf("%v allocations", n)
	}
	a["tries"] = "1000000"
	if n := graphtest.Allocs(t, *Kind(), a, "b", ask(0, 5, clio.Update, 7, "value", true, 0), ask(0, 6, clio.Update, 7, "value", true, 0)); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if n := graphtest.Allocs(t, *Kind(), a, "a", reply(ask(0, 5, clio.Read, 7, "", false, 0), clio.OK)); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkRead(b *testing.B) {
	graphtest.Benchmark(b, *Kind(), args, "b", ask(0, 5, clio.Read, 7, "", false, 0))
}

// Who asks another device than the primary, and for no copies, is answered by it:
// after the primary's death that is how its data is read.
func TestOtherDevices(t *testing.T) {
	x := graphtest.New(t, *Kind(), args)
	for id, op := range []clio.Opcode{clio.Read, clio.Update} {
		q := ask(1, uint16(id), op, 7, "", false, 0)
		same(t, "request", x.Push("b", q).Out["a"], q)
		same(t, "answer", x.Push("a", reply(q, clio.OK)).Out["b"], reply(q, clio.OK))
	}
}

// The same addresses in another VLAN are other clients, and other devices.
func TestVLANs(t *testing.T) {
	for _, tags := range []int{1, 2} {
		testVLANs(t, tags)
	}
}

func testVLANs(t *testing.T, tags int) {
	x := graphtest.New(t, *Kind(), args)
	in := func(vid byte, p []byte) []byte {
		p[11+4*tags] = vid // the innermost tag's
		return p
	}
	for vid := byte(1); vid <= 2; vid++ {
		w0, w1 := in(vid, ask(0, 5, clio.Update, 7, "value", true, tags)), in(vid, ask(1, 5, clio.Update, 7, "value", true, tags))
		same(t, "copies", x.Push("b", w0).Out["a"], w0, w1)
	}
	for vid := byte(1); vid <= 2; vid++ {
		w0, w1 := in(vid, ask(0, 5, clio.Update, 7, "value", true, tags)), in(vid, ask(1, 5, clio.Update, 7, "value", true, tags))
		x.Push("a", reply(w0, clio.OK))
		same(t, "answer", x.Push("a", reply(w1, clio.OK)).Out["b"], reply(w0, clio.OK))
	}
}

// It sleeps when it waits for no answer.
func TestSleeps(t *testing.T) {
	x := graphtest.New(t, *Kind(), args)
	x.Advance(time.Millisecond)
	if at := x.Inst.NextTick(); at != clock.Never {
		t.Errorf("wakes at %d", at)
	}
	w0, w1 := ask(0, 5, clio.Update, 7, "value", true, 0), ask(1, 5, clio.Update, 7, "value", true, 0)
	x.Push("b", w0)
	if at, want := x.Inst.NextTick(), x.Clock.Now().Add(time.Millisecond); at != want {
		t.Errorf("wakes at %d, want %d", at, want)
	}
	x.Push("a", reply(w0, clio.OK), reply(w1, clio.OK))
	if x.Advance(time.Second); x.Inst.NextTick() != clock.Never || x.Counter("retransmitted") != 0 {
		t.Errorf("%d sent again", x.Counter("retransmitted"))
	}
}

// Writes of a key by two workers: one at a time, and each goes on with what is the other's.
func TestTwoWorkers(t *testing.T) {
	x := graphtest.NewGang(t, *Kind(), 2, args)
	first, second := ask(0, 5, clio.Update, 7, "value", true, 0), ask(0, 6, clio.Update, 7, "newer", true, 0)
	took := func(port int, want ...[]byte) {
		t.Helper()
		got := x.Took(port)
		slices.SortFunc(got, bytes.Compare)
		slices.SortFunc(want, bytes.Compare)
		if !slices.EqualFunc(got, want, bytes.Equal) {
			t.Fatalf("got %x\nwant %x", got, want)
		}
	}
	x.Push(0, 1, [][]byte{first})
	took(0, first, ask(1, 5, clio.Update, 7, "value", true, 0))
	x.Push(0, 1, [][]byte{second}) // waits
	x.Push(1, 1, [][]byte{second}) // a repetition
	took(0)
	x.Push(1, 0, [][]byte{reply(first, clio.OK), reply(ask(1, 5, clio.Update, 7, "value", true, 0), clio.OK)})
	took(1, reply(first, clio.OK))
	took(0, second, ask(1, 6, clio.Update, 7, "newer", true, 0))
	if n := x.Inst.Held(); n != 3 { // the copy that the second worker keeps, and two that go back to the first
		t.Errorf("%d frames are held", n)
	}
	x.Now = x.Now.Add(time.Millisecond / 2)
	x.Push(0, 1, nil)
	if n := x.Inst.Held(); n != 1 {
		t.Errorf("%d frames are held", n)
	}
	x.Push(0, 0, [][]byte{reply(second, clio.OK), reply(ask(1, 6, clio.Update, 7, "newer", true, 0), clio.OK)})
	took(1, reply(second, clio.OK))
	count := x.Close()
	if count["moved"] != 2 || count["answered"] != 2 || count["repeated"] != 1 || count["pending"] != 0 || count["unanswered"] != 0 {
		t.Errorf("%v", count)
	}
}

// BenchmarkWorkers: reads, and writes that are not copied, by one worker and by two; then late answers, which are looked for.
func BenchmarkWorkers(b *testing.B) {
	late := reply(ask(0, 5, clio.Update, 7, "value", true, 0), clio.OK)
	for name, f := range map[string][]byte{"passed": ask(0, 5, clio.Read, 7, "", false, 0), "late": late} {
		for _, workers := range []int{1, 2} {
			b.Run(fmt.Sprintf("%s/%d", name, workers), func(b *testing.B) {
				x := graphtest.NewGang(b, *Kind(), workers, args)
				x.Benchmark(b, map[string]int{"passed": 1, "late": 0}[name], slices.Repeat([][]byte{f}, 64))
			})
		}
	}
}
