package wire

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/port/mem"
	"github.com/quillon/quillon/snic/hop"
)

func frame(seq uint32, n int) []byte {
	p := make([]byte, n)
	binary.BigEndian.PutUint32(p, seq)
	for i := 14; i < n; i++ {
		p[i] = byte(seq) + byte(i)
	}
	return p
}

// cable joins two apps by their ports b.
type cable struct {
	x    [2]*graphtest.Test
	out  [2][][]byte // to a
	rng  *rand.Rand
	lose float64
}

func join(t *testing.T, args graph.Args) *cable {
	c := &cable{rng: rand.New(rand.NewPCG(1, 2))}
	for i := range c.x {
		c.x[i] = graphtest.New(t, *Kind(), args)
		// Clocks tell different times.
		c.x[i].Clock.Advance(time.Duration(i) * 777 * time.Microsecond)
	}
	return c
}

// take carries what an app gave out to the other.
func (c *cable) take(i int, r graphtest.Result) {
	for _, f := range r.Out["a"] {
		c.out[i] = append(c.out[i], f.Bytes)
	}
	for _, f := range r.Out["b"] {
		if c.rng.Float64() < c.lose {
			continue
		}
		c.take(1-i, c.x[1-i].Push("b", f.Bytes))
	}
}

func (c *cable) advance(d time.Duration) {
	for i := range c.x {
		c.take(i, c.x[i].Advance(d))
	}
}

func TestThereAndBack(t *testing.T) {
	for _, lose := range []float64{0, .2} {
		c := join(t, graph.Args{"frame": "2000", "timeout": "100us"})
		c.lose = lose
		c.advance(time.Millisecond)
		sent := [2]int{}
		for k := range 300 {
			for i := range c.x {
				if c.rng.IntN(2) == 0 {
					c.take(i, c.x[i].Push("a", frame(uint32(sent[i]), 14+c.rng.IntN(1900))))
					sent[i]++
				}
			}
			if k%3 == 0 {
				c.advance(30 * time.Microsecond)
			}
		}
		c.lose = 0
		for range 100 {
			c.advance(time.Millisecond)
		}
		for i := range c.x {
			if len(c.out[i]) != sent[1-i] {
				t.Errorf("with %g lost: %d frames of %d arrive", lose, len(c.out[i]), sent[1-i])
			}
			for k, p := range c.out[i] {
				if !bytes.Equal(p, frame(uint32(k), len(p))) {
					t.Fatalf("with %g lost: frame %d is %x", lose, k, p[:14])
				}
			}
			if c.x[i].Counter("up") != 1 || c.x[i].Counter("unacked-bytes") != 0 || (c.x[i].Counter("resent") > 0) != (lose > 0) {
				t.Errorf("with %g lost: up %d, %d not acknowledged, %d sent again", lose, c.x[i].Counter("up"), c.x[i].Counter("unacked-bytes"), c.x[i].Counter("resent"))
			}
		}
	}
}

// TestBackPressure: a dead cable stops the neighbour behind a, and nothing is
// lost of what came until it stopped.
func TestBackPressure(t *testing.T) {
	c := join(t, graph.Args{"queue": "64"})
	c.advance(time.Millisecond)
	c.lose = 1
	sent := 0
	pauses := func() (n int, last uint16) {
		for _, p := range c.out[0] {
			if q, ok := hop.DecodePause(p, 3); ok {
				n, last = n+1, q
			}
		}
		return n, last
	}
	for last := uint16(0); last == 0; _, last = pauses() {
		c.take(0, c.x[0].Push("a", frame(uint32(sent), 1000)))
		if sent++; sent > 200 {
			t.Fatal("nobody is asked to pause")
		}
	}
	for range 10 { // what was on its way
		c.take(0, c.x[0].Push("a", frame(uint32(sent), 1000)))
		sent++
	}
	c.advance(time.Millisecond)
	if n, last := pauses(); n < 4 || n > 10 || last != 0xFFFF { // every 168 us
		t.Errorf("%d pauses, the last of %d", n, last)
	}
	c.lose = 0
	for range 20 {
		c.advance(10 * time.Millisecond)
	}
	if _, last := pauses(); last != 0 {
		t.Error("the pause is not ended")
	}
	if len(c.out[1]) != sent {
		t.Errorf("%d of %d frames arrive", len(c.out[1]), sent)
	}
	// Who does not pause loses, and it is counted.
	c.lose = 1
	for range 200 {
		c.x[0].Push("a", frame(0, 1000))
	}
	if n := c.x[0].Counter("queue-full"); n < 50 {
		t.Errorf("%d dropped", n)
	}
}

// TestPauseBehind: a neighbour behind a that asks for a pause stops the sender at
// the other end of the cable, and nothing is lost.
func TestPauseBehind(t *testing.T) {
	c := join(t, graph.Args{"rate": "10Gbit", "delay": "1us"}) // a pause is of 3.4 ms
	c.advance(time.Millisecond)
	pause := make([]byte, hop.MinFrame)
	hop.EncodePause(pause, [6]byte{2}, 3, 0xFFFF)
	c.take(1, c.x[1].Push("a", pause))
	sent := 0
	for range 150 {
		c.take(0, c.x[0].Push("a", frame(uint32(sent), 1000)))
		sent++
	}
	if len(c.out[1]) != 0 || c.x[1].Counter("pauses-asked") == 0 || c.x[0].Counter("pauses-obeyed") == 0 {
		t.Errorf("%d frames pass, %d pauses", len(c.out[1]), c.x[1].Counter("pauses-asked"))
	}
	c.advance(3 * time.Millisecond)
	if len(c.out[1]) != 0 {
		t.Error("frames pass in a pause")
	}
	for range 10 {
		c.advance(time.Millisecond)
	}
	if len(c.out[1]) != sent || c.x[1].Counter("overrun") != 0 {
		t.Errorf("%d frames of %d, %d overrun", len(c.out[1]), sent, c.x[1].Counter("overrun"))
	}
}

func TestDropped(t *testing.T) {
	x := graphtest.New(t, *Kind(), nil)
	for _, f := range [][]byte{frame(0, 13), frame(0, 1519)} {
		if r := x.Push("a", f); len(r.Dropped) != 1 || r.Dropped[0].Reason != "length" {
			t.Errorf("%d bytes: %+v", len(f), r)
		}
	}
	if r := x.Push("b", frame(0, 60)); len(r.Dropped) != 1 || r.Dropped[0].Reason != "not-hop" {
		t.Errorf("%+v", r)
	}
	// A frame that waits when the app ends is dropped by name; the books are right.
	x.Push("a", frame(0, 100))
	if x.App().(*app).Held() != 1 {
		t.Error("it does not wait for the other end")
	}
}

func TestArguments(t *testing.T) {
	for _, a := range []graph.Args{
		{"rate": "9"}, {"rate": "0.5Mbit"}, {"rate": "NaNGbit"}, {"delay": "-1s"}, {"frame": "59"}, {"frame": "x"}, {"queue": "1"}, {"class": "8"}, {"mac": "1"},
		{"mac": "01:00:00:00:00:00"}, {"timeout": "0s"}, {"color": "red"}, {"delay": "900ms", "rate": "10Tbit"},
	} {
		if _, err := build(a); err == nil || !strings.HasPrefix(err.Error(), "hop: ") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%v: %v", a, err)
		}
	}
}

// loop is both ends of a cable on one worker each, without the test's copies.
func TestNoAllocation(t *testing.T) {
	clk := clock.NewManual(graphtest.Start)
	pool, err := packet.NewPool(512, 2048, nil)
	if err != nil {
		t.Fatal(err)
	}
	var near, far [2]port.Port // hosts' ends; far[i] is the graph's
	for i := range near {
		a, b := mem.NewWire("host", "box", pool, 256, clk)
		near[i], far[i] = a, b
	}
	cableA, cableB := mem.NewWire("x", "y", pool, 256, clk)
	spec := func() *graph.Spec {
		return &graph.Spec{Ports: map[string]graph.PortSpec{"p": {Kind: "mem"}, "c": {Kind: "mem"}}, Apps: map[string]graph.AppSpec{"h": {Kind: "hop"}},
			Links: []string{"p.out -> h.a", "h.b -> c.in", "c.out -> h.b", "h.a -> p.in"}}
	}
	var inst [2]*graph.Instance
	for i, c := range []port.Port{cableA, cableB} {
		if inst[i], err = graph.New(graph.Config{Clock: clk, Kinds: []graph.Kind{*Kind()}, Spec: spec(),
			Ports: map[string][]port.Port{"p": {far[i]}, "c": {c}}}); err != nil {
			t.Fatal(err)
		}
	}
	step := func() {
		clk.Advance(time.Microsecond)
		for _, x := range inst {
			if _, err := x.Step(clk.Now()); err != nil {
				t.Fatal(err)
			}
		}
	}
	got := 0
	var batch packet.Batch
	data := frame(1, 200)
	round := func() {
		for range 8 {
			x := pool.Get()
			x.SetBytes(data)
			batch.Add(x)
		}
		if n, _ := near[0].Tx(&batch); n != 8 {
			t.Fatal("not sent")
		}
		for range 3 {
			step()
		}
		if _, err := near[1].Rx(&batch); err != nil {
			t.Fatal(err)
		}
		got += batch.Len()
		batch.PutAll()
	}
	for range 10 {
		step()
	}
	for range 100 {
		round()
	}
	got = 0
	if n := testing.AllocsPerRun(200, round); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if got != 201*8 {
		t.Errorf("%d frames arrive, want %d", got, 201*8)
	}
}

// Frames of several queues, on both sides, go through the one worker that has the link: each queue's in its order.
func TestWorkers(t *testing.T) {
	x := graphtest.NewGang(t, *Kind(), 3, graph.Args{"timeout": "100us"})
	peer, err := hop.New(hop.Config{Epoch: 7, MAC: [6]byte{2, 0, 0, 0, 0, 0xEE}, Timeout: 100 * time.Microsecond})
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	const each = 200
	var sent, back [3]uint32 // by worker
	var got [3]uint32        // of what worker w had from a
	arrived := 0
	for round := 0; round < 2000; round++ {
		x.Now = x.Now.Add(10 * time.Microsecond)
		var in [3][2][][]byte
		for w := range in {
			for range rng.IntN(4) {
				if sent[w] < each {
					in[w][0] = append(in[w][0], frame(uint32(w)<<16|sent[w], 60+rng.IntN(1000)))
					sent[w]++
				}
			}
		}
		if n := back[0]; n < each && peer.Send(frame(n, 100)) {
			back[0]++
		}
		for n := 0; n < 32 && peer.Pending(x.Now) != hop.Nothing; n++ {
			p := make([]byte, 2048)
			p = p[:peer.Poll(x.Now, p)]
			w := int(rng.Int32N(3)) // another queue each time: the link puts them in order again
			in[w][1] = append(in[w][1], p)
		}
		var wg sync.WaitGroup
		for w := range in {
			wg.Go(func() {
				x.Push(w, 0, in[w][0])
				x.Push(w, 1, in[w][1])
			})
		}
		wg.Wait()
		for range 2 {
			if _, err := x.Inst.Step(x.Now); err != nil {
				t.Fatal(err)
			}
		}
		for _, f := range x.Took(1) {
			p, ev := peer.Input(x.Now, f)
			if ev != hop.Deliver {
				continue
			}
			peer.Consumed(len(p))
			seq := binary.BigEndian.Uint32(p)
			w := seq >> 16
			if seq&0xFFFF != got[w] {
				t.Fatalf("of worker %d frame %d arrives, want %d", w, seq&0xFFFF, got[w])
			}
			got[w]++
		}
		for _, f := range x.Took(0) {
			if len(f) == hop.MinFrame && f[12] == 0x88 && f[13] == 0x08 {
				continue // a pause
			}
			if seq := binary.BigEndian.Uint32(f); seq != uint32(arrived) {
				t.Fatalf("frame %d arrives, want %d", seq, arrived)
			}
			arrived++
		}
		if got == [3]uint32{each, each, each} && arrived == each {
			break
		}
	}
	if got != [3]uint32{each, each, each} || arrived != each {
		t.Errorf("%v of %d frames a worker arrive, and %d of %d back", got, each, arrived, each)
	}
	if n := x.Close()["hand-over-full"]; n != 0 {
		t.Errorf("%d frames found no room", n)
	}
}

// Inside another function nothing can be handed over: that gives all frames to the first worker, and the others have no link.
func TestInsideOfSeveralWorkers(t *testing.T) {
	if !Kind().Alone {
		t.Error("others may get frames of the link")
	}
	for worker := range 2 {
		x, err := Kind().New(graph.Env{Name: "x", Worker: worker, Workers: 1, Inside: true}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, link := x.(*app); link != (worker == owner) {
			t.Errorf("worker %d has a %T", worker, x)
		}
	}
}
