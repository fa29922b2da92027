package clover

import (
	"testing"
	"time"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/rack/host"
	"github.com/quillon/quillon/rack/rnic"
	"github.com/quillon/quillon/tests/bed"
)

// What a crash of the box leaves, when a client dies with it.

// outage is a scene of chains whose server's link loses what the test wants, and
// what came by it.
type outage struct {
	*bed.Scene
	c    *chains
	lose func(f *hdr.Frame, b []byte) bool
	box  *bed.Box
}

// outages plays a scenario with three clients and a box that lives, and its
// beginning: two appends a key, so that the box knows all that it can.
func outages(t *testing.T, args graph.Args, play func(o *outage, a, b, x *appender)) {
	o := &outage{}
	conn := rnic.DefaultConn()
	conn.Timeout = 8 // 1 ms
	wrap := func(machine string, nic *rnic.NIC) host.Endpoint {
		return &bed.Spy{Endpoint: nic, Lose: func(b []byte) bool {
			var f hdr.Frame
			return machine == "s0" && o.lose != nil && hdr.Parse(b, &f) == hdr.IsRoCE && o.lose(&f, b)
		}}
	}
	all := graph.Args{"settle": "1ms", "repair": "2ms"}
	for k, v := range args {
		all[k] = v
	}
	bed.Both(t, bed.SceneConfig{Box: ofSteer(all), Wrap: wrap}, func(t *testing.T, s *bed.Scene) {
		l := bed.Link{PD: s.PD(), Conn: conn}
		*o = outage{Scene: s, c: newChains(t, s, l.PD)}
		a, b, x := o.c.appender(s.Peer(0, 0, l)), o.c.appender(s.Peer(1, 0, l)), o.c.appender(s.Peer(2, 0, l))
		for _, p := range []*appender{a, b, x} { // who is slow is sure to be paired
			for range 10 {
				o.c.touch(p, 1)
				p.Await()
				s.Pause(time.Millisecond)
			}
		}
		for round := range uint64(12) {
			o.c.begin(round, a, b, x)
			o.c.end(a, b, x)
		}
		play(o, a, b, x)
		o.lose = nil
		o.c.check()
	})
}

// lost has the next CAS of p's lost behind the box.
func (o *outage) lost(p *appender) {
	was, once := o.lose, true
	o.lose = func(f *hdr.Frame, b []byte) bool {
		mine := once && f.Op == hdr.CompareSwap && f.BTHOf(b).DestQP() == p.Here.ServerQPN
		once = once && !mine
		return mine || was != nil && was(f, b)
	}
}

// until runs the scene until a CAS of p's has come to the server's link.
func (o *outage) until(p *appender) {
	was, seen := o.lose, false
	o.lose = func(f *hdr.Frame, b []byte) bool {
		seen = seen || f.Op == hdr.CompareSwap && f.BTHOf(b).DestQP() == p.Here.ServerQPN
		return was != nil && was(f, b)
	}
	if !o.Until(func() bool { return seen }, time.Millisecond) {
		o.c.t.Error("no CAS came")
	}
}

// The double failure: a CAS is lost behind the box, another client's is led
// behind its entry and executed, and then box and first client die. What was
// acknowledged is in the chain when the next box had time.
func TestDoubleFailure(t *testing.T) {
	outages(t, nil, func(o *outage, a, b, x *appender) {
		o.lost(a)
		o.c.begin(0, a)
		o.until(a)
		o.c.begin(0, b)
		o.until(b)
		o.Remove()
		a.Fail()
		o.c.end(b)
		o.Insert()
		o.Pause(30 * time.Millisecond)
		if len(o.c.acked) != 37 {
			o.c.t.Errorf("%d appends were acknowledged, want 37", len(o.c.acked))
		}
	})
}
