package open

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/offload/xdp"
)

// Running is a graph that runs between ports of this machine.
type Running struct {
	Graph *graph.Instance
	Ports *Ports

	ended chan struct{} // closed when the workers have ended, with err
	err   error
	end   context.CancelFunc
}

// Start opens the ports of g.Spec and runs the graph between them, until Stop. g needs a Spec and Kinds; its ports, what runs flows in front of it, its clock
// and a seed (when there is none) are set here. Of cfg.Filter only All counts, which has all frames come; else those come
// that the graph wants.
func Start(g graph.Config, cfg Config) (_ *Running, err error) {
	if err := g.Spec.Validate(g.Kinds, Kinds()); err != nil {
		return nil, err
	}
	if !cfg.Filter.All {
		if cfg.Filter, err = graph.Wants(g.Spec, g.Kinds); err != nil {
			return nil, err
		}
	}
	ports, err := Prepare(g.Spec, cfg)
	if err != nil {
		return nil, err
	}
	g.Ports, g.OpenPort, g.ClosedPort, g.Clock, g.Ahead = ports.Queues(), ports.Add, ports.Closed, cfg.Clock, xdp.Open
	if g.Seed == 0 {
		g.Seed = rand.Uint64()
	}
	inst, err := graph.New(g)
	if err != nil {
		return nil, errors.Join(err, ports.Undo())
	}
	if err = ports.Orphaned(inst); err == nil {
		if err = inst.Begin(cfg.Clock.Now()); err == nil {
			err = ports.Attach()
		}
	}
	if err == nil {
		inst.Lead()
	}
	if err != nil {
		ports.Revert()
		return nil, errors.Join(err, inst.Close(), ports.Undo())
	}
	ctx, end := context.WithCancel(context.Background())
	r := &Running{Graph: inst, Ports: ports, ended: make(chan struct{}), end: end}
	go func() {
		r.err = inst.Run(ctx)
		close(r.ended)
	}()
	return r, nil
}

// Ended is closed when the workers have ended, by Stop or because one failed.
func (r *Running) Ended() <-chan struct{} { return r.ended }

// Err is why the workers have ended before Stop; nil: they run.
func (r *Running) Err() error {
	select {
	case <-r.ended:
		return fmt.Errorf("the graph has ended: %w", r.err)
	default:
		return nil
	}
}

// Stop ends the workers and puts the interfaces back as they were. It is called once, in the network namespace of Start. Its
// error is that of the workers, too.
func (r *Running) Stop() error {
	err := r.Ports.Detach()
	r.end()
	<-r.ended
	return errors.Join(err, r.err, r.Graph.Close(), r.Ports.Close())
}

// Run is Start, and Stop when ctx is done or a worker has failed. Once the graph runs, started is called; nil: nothing is.
func Run(ctx context.Context, g graph.Config, cfg Config, started func(*Running)) error {
	r, err := Start(g, cfg)
	if err != nil {
		return err
	}
	if started != nil {
		started(r)
	}
	select {
	case <-ctx.Done():
	case <-r.ended:
	}
	return r.Stop()
}
