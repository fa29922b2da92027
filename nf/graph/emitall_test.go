package graph_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/packet"
)

// sender sends what it gets by output out, one by one or all at once, and before each frame
// that begins with "2" one of its own.
type sender struct {
	all  bool
	bufs []*packet.Buf
}

func (s *sender) Push(c *graph.Ctx, _ int, b *packet.Batch) {
	s.bufs = s.bufs[:0]
	for _, x := range b.Bufs() {
		if x.Bytes()[0] == '2' {
			y := x.Pool().Get()
			y.SetBytes([]byte("own"))
			s.bufs = append(s.bufs, y)
		}
		s.bufs = append(s.bufs, x)
	}
	if s.all {
		c.EmitAll(0, s.bufs)
		return
	}
	for _, x := range s.bufs {
		c.Emit(0, x)
	}
}

// EmitAll is Emit of each: where there is room, where there is not enough, where nothing
// is linked, and while somebody traces.
func TestEmitAll(t *testing.T) {
	play := func(all, linked, traced bool) (out []string) {
		spec := "ports: {a: {kind: mem}, b: {kind: mem}}\napps: {w: {kind: sender}}\nlinks: [a.out -> w.in"
		if linked {
			spec += ", w.out -> b.in"
		}
		kind := graph.Kind{Name: "sender", In: []string{"in"}, Out: []string{"out"}, New: func(graph.Env, graph.Args) (graph.App, error) { return &sender{all: all}, nil }}
		x := newBenchOf(t, parse(t, spec+"]\n"), 64, append(kinds(), kind))
		if traced {
			if err := x.inst.AddTrace("a", 100, ""); err != nil {
				t.Fatal(err)
			}
		}
		for i := range 12 {
			var frames []string
			for n := range 60 {
				frames = append(frames, fmt.Sprint(n%7, " ", i))
			}
			x.send("a", frames...)
			x.step()
			x.conserve()
		}
		if traced {
			for _, p := range x.inst.Trace() {
				for _, l := range p.Lines {
					out = append(out, l.Text)
				}
			}
		}
		out = append(out, fmt.Sprint(x.inst.Counters()))
		for _, l := range x.inst.Runtime().Links {
			out = append(out, fmt.Sprint(l.Link, l.Depth, l.Drops, l.Packets))
		}
		for range 12 {
			out = append(out, x.recv("b")...)
			x.step()
		}
		return out
	}
	for _, linked := range []bool{true, false} {
		for _, traced := range []bool{false, true} {
			one, all := play(false, linked, traced), play(true, linked, traced)
			if !slices.Equal(one, all) {
				t.Errorf("linked %v, traced %v: one by one\n%q\nat once\n%q", linked, traced, one, all)
			}
		}
	}
}
