package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/quillon/quillon/internal/admin"
	"github.com/quillon/quillon/internal/version"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/snic/pool/gossip"
)

// leastWatchdog is the shortest limit of --watchdog: a worker may need a part of it for a report on large
// tables.
const leastWatchdog = time.Second

func (f *runFlags) checkWatchdog() error {
	if f.watchdog != 0 && f.watchdog < leastWatchdog {
		return fmt.Errorf("--watchdog %v: want %v or more, or 0 for none", f.watchdog, leastWatchdog)
	}
	return nil
}

// watchLimit is how long a worker may be without a breath. It is at most half of the service manager's limit,
// so that the process can end itself before the manager ends it.
func (r *running) watchLimit() time.Duration {
	limit := r.watchdog
	if w := r.manager.watchdog; w > 0 && (limit == 0 || w/2 < limit) {
		limit = w / 2
	}
	return limit
}

// watch ends the process if a worker is stuck. While none is, it sends WATCHDOG=1 to the service manager.
// With --watchdog 0 it only stops sending, so that the manager ends the process.
func (r *running) watch(ctx context.Context) {
	limit := r.watchLimit()
	if limit == 0 {
		return
	}
	s := r.inst.Watch(ctx, limit, func() {
		if r.manager.watchdog > 0 {
			r.manager.send("WATCHDOG=1")
		}
	})
	switch {
	case s == nil:
	case r.watchdog == 0:
		r.log.Warn(fmt.Sprintf("%v: the service manager hears nothing more of this process", s))
	default:
		r.life.crash(s.Error() + leftWires(r.spec, s))
	}
}

// process is the output of "show process".
type process struct {
	PID        int                 `json:"pid"`
	Version    string              `json:"version"`
	Since      time.Time           `json:"since"`    // when the process was started
	Troubles   []string            `json:"troubles"` // what is wrong, for people
	Namespace  string              `json:"network_namespace"`
	Privileges *privileges         `json:"privileges"`
	Priority   string              `json:"priority"`
	Latency    string              `json:"latency,omitempty"`
	Watchdog   string              `json:"watchdog"`
	Manager    string              `json:"manager"`
	Workers    []graph.WorkerTimes `json:"workers"`
	// Pool counts messages of the pool that were refused; nil: the board is in no pool.
	Pool *gossip.Drops `json:"pool_dropped,omitempty"`
}

func (r *running) process() process {
	p := process{PID: os.Getpid(), Version: version.This().Version, Since: time.Unix(0, int64(r.begun)), Troubles: []string{}, Namespace: r.namespace, Privileges: r.privileges, Priority: r.priorityNote, Latency: r.latencyNote, Watchdog: "off", Manager: "none"}
	if l := r.watchLimit(); l > 0 {
		p.Watchdog = fmt.Sprintf("%v without a breath", l)
	}
	switch w := r.manager.watchdog; {
	case w > 0:
		p.Manager = fmt.Sprintf("is told, and watches: %v", w)
	case r.manager.there():
		p.Manager = "is told"
	}
	if t := r.troubles.Load(); t != nil {
		p.Troubles = *t
	}
	if inst := r.life.inst.Load(); inst != nil {
		p.Workers = inst.Times()
	}
	if r.joined != nil {
		d := r.joined.pool.Drops()
		p.Pool = &d
	}
	return p
}

func newShowProcessCmd() *cobra.Command {
	return asking(&cobra.Command{
		Use: "process", Short: "Show what the process may do, and who watches it", Args: exactly(),
		Example: "  quillon show process",
	}, func(c *admin.Client, _ []string) (p process, err error) {
		text, err := c.Process()
		if err == nil {
			err = json.Unmarshal(text, &p)
		}
		if err == nil && p.Privileges == nil {
			err = errors.New("the instance has not started yet")
		}
		return p, err
	}, func(w io.Writer, p process) {
		fmt.Fprintf(w, "process %d, network namespace %s, version %s, since %s\n", p.PID, p.Namespace, p.Version, p.Since.Local().Format(time.DateTime))
		for _, t := range p.Troubles {
			fmt.Fprintf(w, "trouble: %s\n", t)
		}
		p.Privileges.print(w)
		if p.Latency != "" {
			fmt.Fprintf(w, "latency: %s\n", p.Latency)
		}
		fmt.Fprintf(w, "priority: %s\nwatchdog: %s\nservice manager: %s\n", p.Priority, p.Watchdog, p.Manager)
		for _, t := range p.Workers {
			fmt.Fprintf(w, "worker %d: thread %d, ran %v, waited for a processor %v\n", t.Worker, t.Thread, t.Ran.Round(time.Millisecond), t.Waited.Round(time.Millisecond))
		}
		if p.Pool != nil {
			fmt.Fprintf(w, "messages of the pool that were not taken: %v\n", p.Pool)
		}
	})
}
