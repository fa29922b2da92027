package clover

import (
	"fmt"
	"math/rand/v2"
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
	t.Helper()
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

// crash is a world in which clients die with the box, and their CASes are lost.
type crash struct {
	Lost   []bool        // of so many appends to one key in a row: the clients of those that are lost die
	After  time.Duration // of the last of them, when the box dies
	Outage time.Duration
	GoOn   bool          // the others go on during the outage
	Again  time.Duration // the next box dies, too, so long after it came; 0: it does not
	Clean  bool
}

func randomCrash(seed uint64) crash {
	rng := rand.New(rand.NewPCG(seed, 0x6372617368))
	w := crash{Lost: make([]bool, 2+rng.IntN(4)), After: time.Duration(rng.IntN(12)) * time.Microsecond, Outage: time.Duration(rng.IntN(3000)) * time.Microsecond, GoOn: rng.IntN(2) == 0, Clean: rng.IntN(4) == 0}
	for i := range w.Lost {
		w.Lost[i] = rng.IntN(3) == 0
	}
	w.Lost[rng.IntN(len(w.Lost)-1)] = true
	w.Lost[len(w.Lost)-1] = false
	if rng.IntN(4) == 0 {
		w.Again = time.Duration(1+rng.IntN(300)) * time.Microsecond
	}
	return w
}

func TestTemp(t *testing.T) {
	for seed := range uint64(200) {
		w := randomCrash(seed)
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			conn := rnic.DefaultConn()
			conn.Timeout = 8
			o := &outage{}
			wrap := func(machine string, nic *rnic.NIC) host.Endpoint {
				return &bed.Spy{Endpoint: nic, Lose: func(b []byte) bool {
					var f hdr.Frame
					return machine == "s0" && o.lose != nil && hdr.Parse(b, &f) == hdr.IsRoCE && o.lose(&f, b)
				}}
			}
			box := ofSteer(graph.Args{"settle": "1ms", "repair": "2ms"})
			box.Clean = w.Clean
			s := bed.NewScene(t, bed.SceneConfig{Box: box, Clients: len(w.Lost) + 1, Sessions: 1, Wrap: wrap, Seed: seed})
			l := bed.Link{PD: s.PD(), Conn: conn}
			*o = outage{Scene: s, c: newChains(t, s, l.PD)}
			var all, live []*appender
			for i := range len(w.Lost) + 1 {
				all = append(all, o.c.appender(s.Peer(i, 0, l)))
			}
			for _, p := range all {
				for range 10 {
					o.c.touch(p, 1)
					p.Await()
					s.Pause(time.Millisecond)
				}
			}
			for round := range uint64(12) {
				o.c.begin(round, all...)
				o.c.end(all...)
			}
			for i, lost := range w.Lost {
				if lost {
					o.lost(all[i])
				} else {
					live = append(live, all[i])
				}
				o.c.begin(0, all[i])
				o.until(all[i])
			}
			last := all[len(w.Lost)]
			s.Pause(w.After)
			o.Remove()
			for i, lost := range w.Lost {
				if lost {
					all[i].Fail()
				}
			}
			if w.GoOn {
				o.c.begin(0, last)
				o.c.end(last)
			}
			s.Pause(w.Outage)
			o.Insert()
			if w.Again > 0 {
				s.Pause(w.Again)
				o.Remove()
				s.Pause(w.Outage)
				o.Insert()
			}
			o.c.end(live...)
			live = append(live, last)
			for range 3 {
				o.c.begin(0, live...)
				o.c.end(live...)
			}
			s.Pause(100 * time.Millisecond)
			o.c.check()
			if t.Failed() {
				t.Logf("%+v; inherited %d disowned %d asked %d repaired %d failed %d", w, s.Count("inherited"), s.Count("disowned"), s.Count("asked"), s.Count("repaired"), s.Count("appends-failed"))
			}
		})
	}
}
