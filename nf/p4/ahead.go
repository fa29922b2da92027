package p4

import (
	"fmt"
	"slices"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/port"
)

// What runs an app's frames: its argument exec.
const (
	ExecEngine = "engine"
	ExecAuto   = "auto"
	ExecXDP    = "xdp"
)

// aheadLook is how often an app looks whether what runs its frames ahead of it is ready.
const aheadLook = 5 * clock.Duration(1e6)

// Ahead runs an app's frames in the kernel, ahead of the app (package xdp). All of its methods are called by the app's worker, none at the same time as another.
type Ahead interface {
	// Join tells it the queues of the ports whose frames come in by port number, and of those to which frames go. With wait it returns when all is done, and says
	// what cannot be done.
	Join(from, to map[int][]port.Port, wait bool) error
	// Use has it run frames by a Switch; nil: by none. Until it is ready all frames are the app's.
	Use(sw *Switch)
	// Look takes what has become ready.
	Look()
	// Report is what an app shows of it.
	Report() any
	// Leave ends it.
	Leave()
}

// KindAhead is Kind, with what runs frames of apps ahead of them, if their argument exec is not engine; must: it is an error if that cannot be.
func KindAhead(ahead func(must bool) Ahead) *graph.Kind {
	k := Kind()
	k.New = func(env graph.Env, args graph.Args) (graph.App, error) { return newApp(env, args, ahead) }
	return k
}

// readExec reads the argument exec.
func (a *App) readExec(env graph.Env, args graph.Args, ahead func(must bool) Ahead) error {
	exec := args["exec"]
	switch {
	case exec == "" || exec == ExecEngine:
		return nil
	case !slices.Contains([]string{ExecAuto, ExecXDP}, exec):
		return fmt.Errorf("exec=%s: want engine, xdp or auto", exec)
	case env.Inside || ahead == nil || env.Asked:
		if exec == ExecXDP && !env.Asked {
			return fmt.Errorf("exec=xdp: no frames can be run in the kernel here")
		}
		return nil
	}
	a.ahead = ahead(exec == ExecXDP)
	return nil
}

// Join implements graph.Joiner.
func (a *App) Join(j graph.Joined, first bool) error {
	if a.ahead == nil {
		return nil
	}
	from := map[int][]port.Port{}
	for in, queues := range j.From {
		if in < Ports { // not the input of the controller's frames
			from[in] = queues
		}
	}
	if err := a.ahead.Join(from, j.To, first); err != nil {
		return fmt.Errorf("exec=xdp: %w", err)
	}
	return nil
}

// Leave implements graph.Joiner.
func (a *App) Leave() {
	if a.ahead != nil {
		a.ahead.Leave()
	}
}

// Ahead implements graph.Joiner.
func (a *App) Ahead() bool { return a.ahead != nil }

// Tick implements graph.Ticker.
func (a *App) Tick(c *graph.Ctx) clock.Time {
	if a.ahead == nil {
		return clock.Never
	}
	a.ahead.Look()
	return c.Now().Add(aheadLook)
}
