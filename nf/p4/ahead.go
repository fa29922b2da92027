package p4

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/port"
)

// Values of an app's argument exec, which says what runs its frames.
const (
	ExecEngine = "engine"
	ExecAuto   = "auto"
	ExecXDP    = "xdp"
)

// Values of an app's argument fail, which says what becomes of frames when the process dies while its app has an Ahead.
const (
	FailOpen     = "open"
	FailClosed   = "closed"
	FailHeadless = "headless"
)

// aheadLook is how often an app asks its Ahead for what has become ready. aheadIdle is how often an app without
// an Ahead runs its timer, and how often it reads an Ahead's counts.
const (
	aheadLook = 5 * clock.Duration(1e6)
	aheadIdle = 100 * clock.Duration(1e6)
)

// Ahead runs an app's frames in the kernel, before the app sees them (package xdp). The app's worker calls all
// methods, one at a time.
type Ahead interface {
	// Join gives it the queues of the ports from which frames come, by port number, and of those to which
	// frames go. In the first call it returns an error if it cannot run frames of any port although it must.
	// With wait it returns when the program runs, or with an error if the program cannot run although it must.
	Join(from, to map[int][]port.Port, now clock.Time, wait bool) error
	// Use gives it the Switch by which it runs frames; nil: it runs none. Until it is ready the app gets all
	// frames.
	Use(sw *Switch)
	// Look takes over what has become ready, and tells it the time.
	Look(now clock.Time)
	// Links gives it the ports that have no link. The app gets frames to these ports.
	Links(down map[uint32]bool)
	// Counts returns how many frames it has finished, how many it has given to the app, and how many it has dropped
	// because there was no app. The first call of an Ahead that takes over from a process that was killed has that
	// one's, too.
	Counts() (finished, given, dropped uint64)
	// Report returns what the app's report shows about it.
	Report() any
	// Leave ends it, but for what another Ahead at the same ports may go on with. Left, which is called after Leave and after the Join
	// of others, ends that.
	Leave()
	Left()
}

// KindAhead is like Kind; apps whose argument exec is not engine get an Ahead from the function. must says that
// it is an error if the Ahead cannot run frames. fail is the value of the argument fail.
func KindAhead(ahead func(must bool, fail string) Ahead) *graph.Kind {
	k := Kind()
	k.New = func(env graph.Env, args graph.Args) (graph.App, error) { return newApp(env, args, ahead) }
	return k
}

// frontOf returns the Ahead that the argument exec asks for; nil: none.
func (a *App) frontOf(args graph.Args) (Ahead, error) {
	fail := cmp.Or(args["fail"], FailOpen)
	switch exec := args["exec"]; {
	case !slices.Contains([]string{FailOpen, FailClosed, FailHeadless}, fail):
		return nil, fmt.Errorf("fail=%s: want open, closed or headless", fail)
	case exec != "" && !slices.Contains([]string{ExecEngine, ExecAuto, ExecXDP}, exec):
		return nil, fmt.Errorf("exec=%s: want engine, xdp or auto", exec)
	case fail != FailOpen && (exec == "" || exec == ExecEngine):
		return nil, fmt.Errorf("fail=%s takes exec=xdp or exec=auto", fail)
	case exec == "" || exec == ExecEngine || a.makeAhead == nil:
		return nil, nil
	default:
		return a.makeAhead(exec == ExecXDP, fail), nil
	}
}

// Takes implements graph.Reconfigurer: exec and fail may change.
func (a *App) Takes(args graph.Args) bool { return maps.Equal(withoutExec(args), withoutExec(a.args)) }

func withoutExec(args graph.Args) graph.Args {
	rest := maps.Clone(args)
	delete(rest, "exec")
	delete(rest, "fail")
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
		a.ahead.Left()
		finished, given, dropped := a.ahead.Counts() // what is not counted yet: Tick counts the differences
		a.finished, a.given, a.dropped = a.finished-finished, a.given-given, a.dropped-dropped
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
	return graph.Hooks{Join: a.join, Leave: a.leave, Left: a.left, Ahead: func() bool { return a.ahead != nil }, Scan: a.scan}
}

// join handles the ports to which the app is linked.
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

// leave and left end the Ahead.
func (a *App) leave() {
	if a.ahead != nil {
		a.ahead.Leave()
	}
}

func (a *App) left() {
	if a.ahead != nil {
		a.ahead.Left()
	}
}

// Tick implements graph.Ticker.
func (a *App) Tick(c *graph.Ctx) clock.Time {
	switch {
	case a.makeAhead == nil:
		return clock.Never
	case a.ahead == nil:
		a.count(c, 0, 0, 0)
		return c.Now().Add(aheadIdle)
	}
	a.ahead.Look(c.Now())
	if now := c.Now(); now.Sub(a.counted) >= aheadIdle {
		a.counted = now
		finished, given, dropped := a.ahead.Counts()
		a.count(c, finished, given, dropped)
	}
	return c.Now().Add(aheadLook)
}

// count adds the frames that the kernel has run since the last call.
func (a *App) count(c *graph.Ctx, finished, given, dropped uint64) {
	c.Count(countFinished, finished-a.finished)
	c.Count(countGiven, given-a.given)
	c.Count(countHeadless, dropped-a.dropped)
	a.finished, a.given, a.dropped = finished, given, dropped
}
