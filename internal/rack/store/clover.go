package store

import (
	"fmt"
	"math"

	"github.com/quillon/quillon/internal/rack/clover"
	"github.com/quillon/quillon/internal/rack/history"
)

// Clover is clients of a Clover store whose other machines are in other processes, with what a Fleet
// does; the methods are called by the goroutine that breathes them.
type Clover struct {
	*clover.Part
	sessions int
	most     int
	log      history.Log[history.Register, uint64]
	window   clover.Window
	running  bool
}

// NewClover makes them of a client of so many sessions. keep: what it is told is kept.
func NewClover(p *clover.Part, sessions int, keep bool) *Clover {
	c := &Clover{Part: p, sessions: sessions}
	c.log.Off = !keep
	return c
}

// Connected is Fleet's.
func (c *Clover) Connected() bool { return c.Ready() }

// Allow is Fleet's; all sessions have the same share.
func (c *Clover) Allow(n int) { c.most = (n + c.sessions - 1) / c.sessions }

// Begin is Fleet's.
func (c *Clover) Begin() { c.window = c.Cluster().Begin() }

// Start is Fleet's.
func (c *Clover) Start() {
	l := clover.Load{MaxOps: c.most}
	if !c.log.Off {
		l.Log = &c.log
	}
	c.Cluster().Start(l)
	c.running = true
}

// Stop is Fleet's.
func (c *Clover) Stop() {
	if c.running {
		c.Cluster().StopSoon()
	}
}

// Spent is Fleet's.
func (c *Clover) Spent() bool { return c.most > 0 && c.running && c.Cluster().Stopped() }

// Idle is Fleet's: the window has ended, too.
func (c *Clover) Idle() bool {
	if !c.running {
		return true
	}
	if !c.Cluster().Stopped() {
		return false
	}
	c.window.EndSoon()
	return c.window.Ended()
}

// Live is Fleet's.
func (c *Clover) Live() Meter {
	v := c.Cluster().Live()
	return Meter{Ops: v.Ops, First: v.FirstTry, Errors: v.Errors}
}

// Measured is Fleet's.
func (c *Clover) Measured() *Meter {
	m := c.window.Measured()
	return &Meter{Ops: m.Ops, First: m.FirstTry, Errors: m.Errors, Read: m.Read, Write: m.Write}
}

// Facts is Fleet's.
func (c *Clover) Facts() []Fact {
	s := c.Cluster().ClientStats()
	return []Fact{{"reads", s.Reads}, {"writes", s.Writes}, {"round-trips", s.RoundTrips}, {"hops", s.Hops}, {"cas-failed", s.CASFailed}, {"stale", s.Stale},
		{"queries", s.Queries}, {"grants", s.Grants}}
}

// Judge is Fleet's.
func (c *Clover) Judge(Store) Verdict {
	var v Verdict
	for _, o := range c.log.Ops() {
		if o.In.Write && !o.Open() {
			v.Written++
		}
	}
	v.Checked = c.log.Len()
	if err := history.Check(history.Registers(nil), &c.log, 0); err != nil {
		v.Wrong = err.Error()
	}
	return v
}

// CheckClover refuses what cannot be of a Clover memory node.
func CheckClover(entries, slab, keys int) error {
	switch {
	case slab < 128 || slab > 1024 || slab&(slab-1) != 0:
		return fmt.Errorf("entry %d: want a power of two, 128 to 1024", slab)
	case entries < 64 || entries > 1<<24:
		return fmt.Errorf("entries %d: want 64 to %d", entries, 1<<24)
	case keys < 1 || keys > math.MaxInt32 || 2*keys > entries:
		return fmt.Errorf("keys %d: want 1 to %d, half of the entries", keys, entries/2)
	}
	return nil
}
