package p4

import (
	"fmt"
	"maps"
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

// aheadLook is how often an app looks whether what runs its frames ahead of it is ready, aheadIdle how often it looks whether there is any.
const (
	aheadLook = 5 * clock.Duration(1e6)
	aheadIdle = 100 * clock.Duration(1e6)
)

// Ahead runs an app's frames in the kernel, ahead of the app (package xdp). All of its methods are called by the app's worker, none at the same time as another.
type Ahead interface {
	// Join tells it the queues of the ports whose frames come in by port number, and of those to which frames go. At first it is an error if it cannot run
	// frames of any, and it must; with wait it returns when the program runs, or with an error if it cannot, and must.
	Join(from, to map[int][]port.Port, now clock.Time, wait bool) error
	// Use has it run frames by a Switch; nil: by none. Until it is ready all frames are the app's.
	Use(sw *Switch)
	// Look takes what has become ready, and the time.
	Look(now clock.Time)
	// Links tells it the ports that have no link: frames to them are the app's.
	Links(down map[uint32]bool)
	// Counts are of all frames that it has finished, and given to the app.
	Counts() (finished, given uint64)
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

// frontOf is what runs frames ahead of an app, by its argument exec; nil: nothing does.
func (a *App) frontOf(args graph.Args) (Ahead, error) {
	switch exec := args["exec"]; {
	case exec != "" && !slices.Contains([]string{ExecEngine, ExecAuto, ExecXDP}, exec):
		return nil, fmt.Errorf("exec=%s: want engine, xdp or auto", exec)
	case exec == "" || exec == ExecEngine || a.makeAhead == nil:
		return nil, nil
	default:
		return a.makeAhead(exec == ExecXDP), nil
	}
}

// Takes implements graph.Reconfigurer: exec may change.
func (a *App) Takes(args graph.Args) bool { return maps.Equal(withoutExec(args), withoutExec(a.args)) }

func withoutExec(args graph.Args) graph.Args {
	rest := maps.Clone(args)
	delete(rest, "exec")
	return rest
}

// Reconfigure implements graph.Reconfigurer.
func (a *App) Reconfigure(args graph.Args) error {
	next, err := a.frontOf(args)
	if err != nil {
		return err
	}
	if next != nil && a.joined != nil {
		if err := next.Join(a.joined.From, a.joined.To, a.clock.Now(), false); err != nil {
			return fmt.Errorf("exec=xdp: %w", err)
		}
	}
	if a.ahead != nil {
		a.ahead.Leave()
		finished, given := a.ahead.Counts()
		a.finished, a.given = a.finished-finished, a.given-given // what is not counted yet: Tick counts the differences
	}
	a.ahead, a.args = next, args
	if next != nil {
		next.Links(a.down)
		next.Use(a.sw)
	}
	return nil
}

// Hooks implements graph.Hooked.
func (a *App) Hooks() graph.Hooks {
	return graph.Hooks{Join: a.join, Leave: a.leave, Ahead: func() bool { return a.ahead != nil }, Scan: a.scan}
}

// join takes the ports that the app is linked to.
func (a *App) join(j graph.Joined, first bool) error {
	delete(j.From, cpuInput) // frames of the controller
	a.joined = &j
	if a.ahead == nil {
		return nil
	}
	if err := a.ahead.Join(j.From, j.To, a.clock.Now(), first); err != nil {
		return fmt.Errorf("exec=xdp: %w", err)
	}
	return nil
}

// leave takes the program from before the ports.
func (a *App) leave() {
	if a.ahead != nil {
		a.ahead.Leave()
	}
}

// Tick implements graph.Ticker.
func (a *App) Tick(c *graph.Ctx) clock.Time {
	switch {
	case a.makeAhead == nil:
		return clock.Never
	case a.ahead == nil:
		a.count(c, 0, 0)
		return c.Now().Add(aheadIdle)
	}
	a.ahead.Look(c.Now())
	if now := c.Now(); now.Sub(a.counted) >= aheadIdle {
		a.counted = now
		finished, given := a.ahead.Counts()
		a.count(c, finished, given)
	}
	return c.Now().Add(aheadLook)
}

// count counts the frames that the kernel has run since the last time.
func (a *App) count(c *graph.Ctx, finished, given uint64) {
	c.Count(countFinished, finished-a.finished)
	c.Count(countGiven, given-a.given)
	a.finished, a.given = finished, given
}
