package store

import (
	"fmt"
	"math"

	"github.com/quillon/quillon/internal/rack/clover"
	"github.com/quillon/quillon/internal/rack/history"
)

// Clover is the clients of a Clover store whose other machines are in other processes. It has the methods of
// a Fleet, which must be called by the goroutine that runs the clients.
type Clover struct {
	*clover.Part
	sessions int
	most     int
	log      history.Log[history.Register, uint64]
	window   clover.Window
	running  bool
}

// NewClover makes a Clover from a client with this number of sessions. With keep it records the answers that
// the client gets.
func NewClover(p *clover.Part, sessions int, keep bool) *Clover {
	c := &Clover{Part: p, sessions: sessions}
	c.log.Off = !keep
	return c
}

// Connected is as in Fleet.
func (c *Clover) Connected() bool { return c.Ready() }

// Allow is as in Fleet; every session may do the same number of operations.
func (c *Clover) Allow(n int) { c.most = (n + c.sessions - 1) / c.sessions }

// Begin is as in Fleet.
func (c *Clover) Begin() { c.window = c.Cluster().Begin() }

// Start is as in Fleet.
func (c *Clover) Start() {
	l := clover.Load{MaxOps: c.most}
	if !c.log.Off {
		l.Log = &c.log
	}
	c.Cluster().Start(l)
	c.running = true
}

// Stop is as in Fleet.
func (c *Clover) Stop() {
	if c.running {
		c.Cluster().StopSoon()
	}
}

// Spent is as in Fleet.
func (c *Clover) Spent() bool { return c.most > 0 && c.running && c.Cluster().Stopped() }

// Idle is as in Fleet; the window of the measurement must have ended, too.
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

// Live is as in Fleet.
func (c *Clover) Live() Meter {
	v := c.Cluster().Live()
	return Meter{Ops: v.Ops, First: v.FirstTry, Errors: v.Errors}
}

// Measured is as in Fleet.
func (c *Clover) Measured() *Meter {
	m := c.window.Measured()
	return &Meter{Ops: m.Ops, First: m.FirstTry, Errors: m.Errors, Read: m.Read, Write: m.Write}
}

// Facts is as in Fleet.
func (c *Clover) Facts() []Fact {
	s := c.Cluster().ClientStats()
	return []Fact{{"reads", s.Reads}, {"writes", s.Writes}, {"round-trips", s.RoundTrips}, {"hops", s.Hops}, {"cas-failed", s.CASFailed}, {"stale", s.Stale},
		{"queries", s.Queries}, {"grants", s.Grants}}
}

// Judge is as in Fleet, without the memory.
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

// CheckClover refuses values that a Clover memory node cannot have.
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
