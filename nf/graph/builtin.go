package graph

import (
	"github.com/quillon/quillon/nf/arg"
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
			Doc: `What any function in its place must be measured against. Where frames that no app wants cross in the kernel, as
between the two ports of an inline pair, the frames of a wire do: it costs nothing. With see=all they come to the worker,
as those of a function do that has to see them.`,
			In:      []string{"a", "b"},
			Out:     []string{"a", "b"},
			Params:  wireArguments.Params(),
			Effects: Always(effect.Effects{}),
			New: func(_ Env, args Args) (App, error) {
				w, r := wireArguments.Read(args)
				if err := r.Err(); err != nil {
					return nil, err
				}
				return w, nil
			},
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

// wire wants no frames, unless all is set. The graph sets all where a frame would cross to another port in the
// kernel than in the graph.
type wire struct {
	all bool `arg:"see" words:"none all" help:"none: frames cross in the kernel where they can, but for those that a tap or a trace looks at; all: each frame comes to the worker"`
}

var wireArguments = arg.Declare("wire", wire{})

func (wire) Push(c *Ctx, in int, b *packet.Batch) { c.EmitAll(1-in, b.Bufs()) }

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
