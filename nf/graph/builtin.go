package graph

import (
	"github.com/quillon/quillon/nf/counter"
	"github.com/quillon/quillon/nf/effect"
	"github.com/quillon/quillon/nf/packet"
)

// Builtin are the kinds that belong to the engine itself: for wiring, and to
// measure others against.
func Builtin() []Kind {
	return []Kind{
		{
			Name:    "wire",
			Summary: "passes frames from a to b and from b to a, untouched",
			Doc:     "What any function in its place must be measured against.",
			In:      []string{"a", "b"},
			Out:     []string{"a", "b"},
			Effects: Always(effect.Effects{}),
			New:     func(Env, Args) (App, error) { return wire{}, nil },
		},
		{
			Name:    "tee",
			Summary: "passes frames from in to out and a copy of each to copy",
			Doc:     "A frame for whose copy there is no buffer goes on uncopied.",
			In:      []string{"in"},
			Out:     []string{"out", "copy"},
			Counters: []counter.Def{
				teeUncopied: {Name: "uncopied", Help: "frames for whose copy there was no buffer"},
			},
			New: func(Env, Args) (App, error) { return tee{}, nil },
		},
		{
			Name:    "sink",
			Summary: "drops all frames",
			Doc:     "The end of a link whose frames nobody needs.",
			In:      []string{"in"},
			Reasons: []counter.Def{sinkSunk: {Name: "sunk", Help: "dropped because that is what a sink does"}},
			New:     func(Env, Args) (App, error) { return sink{}, nil },
		},
	}
}

type wire struct{}

func (wire) Push(c *Ctx, in int, b *packet.Batch) {
	for _, x := range b.Bufs() {
		c.Emit(1-in, x)
	}
}

type tee struct{}

const teeUncopied counter.ID = 0

func (tee) Push(c *Ctx, _ int, b *packet.Batch) {
	for _, x := range b.Bufs() {
		if y := c.Get(); y == nil {
			c.Count(teeUncopied, 1)
		} else if y.SetBytes(x.Bytes()) {
			y.RxTime, y.Seq, y.Port, y.Queue = x.RxTime, x.Seq, x.Port, x.Queue
			c.Emit(1, y)
		} else {
			c.Count(teeUncopied, 1)
			c.Discard(y)
		}
		c.Emit(0, x)
	}
}

type sink struct{}

const sinkSunk Reason = 0

func (sink) Push(c *Ctx, _ int, b *packet.Batch) {
	for _, x := range b.Bufs() {
		c.Drop(x, sinkSunk)
	}
}
