package bench

import (
	"errors"
	"io"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/packet"
)

// TestInterleave: what a box receives of two mixes comes by time, each mix's
// frames in their order.
func TestInterleave(t *testing.T) {
	x := &mix{bytes: []byte("abbd"), frames: 3, batches: []mixBatch{{"pa", 1, []int{1, 3}}, {"pb", 5, []int{4}}}}
	y := &mix{bytes: []byte("CCCE"), frames: 2, batches: []mixBatch{{"pb", 2, []int{3}}, {"pa", 9, []int{4}}}}
	z := interleave(x, y)
	got := ""
	for _, f := range z.list() {
		got += string(f) + " "
	}
	if want := "a bb CCC d E "; got != want || z.frames != 5 {
		t.Errorf("%d frames: %q, want %q", z.frames, got, want)
	}
	for i, want := range []mixBatch{{port: "pa", at: 1}, {port: "pb", at: 2}, {port: "pb", at: 5}, {port: "pa", at: 9}} {
		if b := z.batches[i]; b.port != want.port || b.at != want.at {
			t.Errorf("batch %d: on %s at %d, want %s at %d", i, b.port, b.at, want.port, want.at)
		}
	}
}

// TestTwoWorkers: each of two workers with a server of its own treats the load
// as one worker alone does: what goes in comes out.
// looks is a clock that goes on by a nanosecond each time somebody looks: a race is not over because
// a thread got no processor for so long.
type looks struct{ n atomic.Int64 }

func (l *looks) Now() clock.Time { return clock.Time(l.n.Add(1)) }

func TestTwoWorkers(t *testing.T) {
	c, err := twoWorkers(&looks{}, "swordbox", swordboxArgs(), recordLocks)
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	counted := map[string]int{}
	for name, r := range map[string]Run{"two": c.work, "one": c.pass} {
		timed, err := r()
		if err != nil {
			t.Fatal(err)
		}
		if counted[name], err = timed(); err != nil {
			t.Fatal(err)
		}
	}
	// The first quarter of the batches is left out. Two are over as soon as one of them is.
	if most := 2 * mixFrames; counted["one"] < mixFrames || counted["two"] < mixFrames/2 || counted["two"] > most {
		t.Errorf("two workers played %d frames, one %d", counted["two"], counted["one"])
	}
}

// endless is a player that has n batches of a frame each, or no end.
type endless struct {
	n, played int
	err       error
	left      bool
}

func (e *endless) step() (int, error) {
	if e.played++; e.played == e.n+1 {
		return 0, e.err
	}
	return 1, nil
}

func (e *endless) leave() { e.left = true }

// TestRace: it is over for all when it is for one, and what that one says is its error unless it is at its end.
func TestRace(t *testing.T) {
	broken := errors.New("broken")
	for _, end := range []error{io.EOF, broken} {
		r := &race{clk: &looks{}}
		a, b := &endless{n: 1000, err: end}, &endless{n: -1}
		n, err := r.run(a, b)
		if n < 1000 || n != 1000+b.played || !a.left || !b.left || r.took <= 0 {
			t.Errorf("%d frames in %v, %d of them the other's; left: %v %v", n, r.took, b.played, a.left, b.left)
		}
		if errors.Is(err, broken) != (end == broken) || err != nil && end != broken {
			t.Errorf("error %v, want %v", err, end)
		}
	}
}

// TestLaps: what is played again and again goes on in time, and begins with its first frame.
func TestLaps(t *testing.T) {
	pool, err := packet.NewPool(packet.MaxBatch, 2048, nil)
	if err != nil {
		t.Fatal(err)
	}
	m := boardMix(2, 0)
	m.lap = 2 * snicEvery
	inst, err := graph.New(drained("wire", nil, pool))
	if err != nil {
		t.Fatal(err)
	}
	defer inst.Close()
	p := &playback{mix: m, inst: inst, pool: pool}
	for n := range 5 {
		next := p.since + m.batches[p.at].at
		if at := clock.Time(1_000_000_000 + n*snicEvery); next != at || p.from != n%2*64*60 {
			t.Errorf("batch %d comes at %d from byte %d, want %d", n, next, p.from, at)
		}
		if moved, err := p.step(); moved != packet.MaxBatch || err != nil {
			t.Fatal(moved, err)
		}
	}
}

func TestFigures(t *testing.T) {
	s := Side{ns: []float64{30, 10, 20, 40}, packets: 100, allocs: 25}
	want := Figures{NsPerPacket: Spread{Median: 25, Min: 10, Max: 40}, Mpps: 40, Gbps: 32, Allocs: 0.25}
	if d := cmp.Diff(want, s.Figures(100)); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
}
