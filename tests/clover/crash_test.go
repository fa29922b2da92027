package clover

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/quillon/quillon/internal/rack/history"
	"github.com/quillon/quillon/internal/rack/host"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/rack/rnic"
	"github.com/quillon/quillon/tests/bed"
)

// What a crash of the box leaves, when clients die with it.

// outage is a scene of chains whose server's link loses what the test wants.
type outage struct {
	*bed.Scene
	c    *chains
	all  []*appender // each at a client of its own
	lose func(f *hdr.Frame, b []byte) bool
}

// outages plays a scenario with so many clients, on a bare wire and through the box,
// and before it so many appends that the box knows all that it can.
func outages(t *testing.T, clients int, clean bool, play func(t *testing.T, o *outage)) {
	t.Helper()
	o := &outage{}
	conn := rnic.DefaultConn()
	conn.Timeout = 8 // 1 ms
	box := ofSteer(graph.Args{"settle": "1ms", "repair": "2ms"})
	box.Clean = clean
	wrap := func(machine string, nic *rnic.NIC) host.Endpoint {
		return &bed.Spy{Endpoint: nic, Lose: func(b []byte) bool {
			var f hdr.Frame
			return machine == "s0" && o.lose != nil && hdr.Parse(b, &f) == hdr.IsRoCE && o.lose(&f, b)
		}}
	}
	bed.Both(t, bed.SceneConfig{Clients: clients, Sessions: 1, Box: box, Wrap: wrap}, func(t *testing.T, s *bed.Scene) {
		l := bed.Link{PD: s.PD(), Conn: conn}
		*o = outage{Scene: s, c: newChains(t, s, l.PD)}
		for i := range clients {
			o.all = append(o.all, o.c.appender(s.Peer(i, 0, l)))
		}
		for _, p := range o.all { // each goes on for so long that it is paired
			for range 10 {
				o.c.touch(p, 1)
				p.Await()
				s.Pause(time.Millisecond)
			}
		}
		for round := range uint64(12) {
			o.c.begin(round, o.all...)
			o.c.end(o.all...)
		}
		play(t, o)
		o.c.check()
	})
}

// append has p begin an append to a key, whose CAS comes to the server, or is lost
// just in front of it.
func (o *outage) append(p *appender, key uint64, lost bool) {
	was, seen := o.lose, false
	o.lose = func(f *hdr.Frame, b []byte) bool {
		mine := !seen && f.Op == hdr.CompareSwap && f.BTHOf(b).DestQP() == p.Here.ServerQPN
		seen = seen || mine
		return mine && lost || was != nil && was(f, b)
	}
	o.c.begin(key, p)
	if !o.Until(func() bool { return seen }, time.Millisecond) {
		o.c.t.Error("no CAS came")
	}
}

// The double failure: a CAS is lost behind the box, another client's is led
// behind its entry and executed, and then box and first client die. What was
// acknowledged is in the chain when the next box had time.
func TestDoubleFailure(t *testing.T) {
	outages(t, 3, false, func(t *testing.T, o *outage) {
		a, b := o.all[0], o.all[1]
		o.append(a, 0, true)
		o.append(b, 0, false)
		o.Remove()
		a.Fail()
		o.c.end(b)
		o.Insert()
		o.Pause(30 * time.Millisecond)
		if len(o.c.acked) != 37 {
			t.Errorf("%d appends were acknowledged, want 37", len(o.c.acked))
		}
	})
}

// While nobody is there, a third client links its entry where the lost one is to go: it
// waits for the next box, which sends the lost one first. Then it is refused as on a bare
// wire, and links behind what was acknowledged. Who appends elsewhere does not wait.
func TestLinkedMeanwhile(t *testing.T) {
	outages(t, 4, false, func(t *testing.T, o *outage) {
		a, b, x, y := o.all[0], o.all[1], o.all[2], o.all[3]
		o.append(a, 0, true)
		o.append(b, 0, false)
		o.Remove()
		a.Fail()
		o.c.walk(0, x)
		o.c.begin(0, x)
		for range 3 {
			o.c.begin(1, y)
			o.c.end(y)
		}
		o.Pause(2 * time.Millisecond)
		o.Insert()
		o.c.end(b, x)
		if o.Instance() != nil {
			if o.Count("inherited") == 0 || o.Count("appends-failed") != 0 {
				t.Errorf("%d appends were inherited, %d refused", o.Count("inherited"), o.Count("appends-failed"))
			}
		}
		for range 3 {
			o.c.begin(0, x, y)
			o.c.end(x, y)
		}
	})
}

// It comes to the next box before the lost one was sent again.
func TestLinkedAtOnce(t *testing.T) {
	outages(t, 3, false, func(t *testing.T, o *outage) {
		a, b, x := o.all[0], o.all[1], o.all[2]
		o.append(a, 0, true)
		o.append(b, 0, false)
		o.Remove()
		a.Fail()
		o.c.end(b)
		o.lose = func(f *hdr.Frame, b []byte) bool { return f.Op == hdr.WriteOnly && f.RETHOf(b).DMALength() == 0 }
		o.Insert()
		o.c.walk(0, x)
		o.c.begin(0, x)
		o.Pause(2 * time.Millisecond)
		if o.Instance() != nil && (o.Count("awaits") == 0 || o.Count("asked") == 0) {
			t.Errorf("%d atomics wait, %d questions", o.Count("awaits"), o.Count("asked"))
		}
		o.lose = nil
		o.c.end(x)
	})
}

// crash is a world in which appends to a key go one behind another, CASes are lost,
// and the box dies, and with it the clients whose CASes are lost.
type crash struct {
	Lost   []bool // of each append; each is another client's
	After  time.Duration
	Outage time.Duration
	Other  bool          // who goes on during the outage does so with another key, and does not wait
	Again  time.Duration // the next box dies, too, so long after it came; 0: it does not
	Clean  bool          // the box ends cleanly
}

func randomCrash(seed uint64) crash {
	rng := rand.New(rand.NewPCG(seed, 0x6372617368))
	us := func(n int) time.Duration { return time.Duration(rng.IntN(n)) * time.Microsecond }
	w := crash{Lost: make([]bool, 2+rng.IntN(4)), After: us(12), Outage: us(3000), Other: rng.IntN(2) == 0, Clean: rng.IntN(4) == 0}
	for i := range w.Lost {
		w.Lost[i] = rng.IntN(3) == 0
	}
	w.Lost[rng.IntN(len(w.Lost)-1)] = true
	w.Lost[len(w.Lost)-1] = false
	if rng.IntN(4) == 0 {
		w.Again = time.Microsecond + us(300)
	}
	return w
}

func (w crash) play(t *testing.T, o *outage) {
	last := o.all[len(w.Lost)]
	live := []*appender{}
	for i, lost := range w.Lost {
		o.append(o.all[i], 0, lost)
		if !lost {
			live = append(live, o.all[i])
		}
	}
	o.Pause(w.After)
	o.Remove()
	for i, lost := range w.Lost {
		if lost {
			o.all[i].Fail()
		}
	}
	if w.Other {
		o.c.begin(1, last)
		o.c.end(last)
	} else {
		o.c.walk(0, last)
		o.c.begin(0, last)
	}
	o.Pause(w.Outage)
	o.Insert()
	if w.Again > 0 {
		o.Pause(w.Again)
		o.Remove()
		o.Pause(w.Outage)
		o.Insert()
	}
	o.c.end(live...)
	if !w.Other {
		o.c.end(last)
	}
	for range 3 {
		o.c.begin(0, append(live, last)...)
		o.c.end(append(live, last)...)
	}
	o.Pause(100 * time.Millisecond)
	if n := o.Count("held"); n != 0 {
		t.Errorf("%d answers are still held", n)
	}
}

// TestCrashes plays such worlds: chains are whole at the end, with ahead= as it is
// by default, and everybody was told.
func TestCrashes(t *testing.T) {
	first, n := uint64(0), min(bed.Schedules(60), 1000)
	if seed, ok := bed.Seed(); ok {
		first, n = seed, 1
	}
	inherited := uint64(0)
	for seed := first; seed < first+uint64(n) && !t.Failed(); seed++ {
		w := randomCrash(seed)
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			outages(t, len(w.Lost)+1, w.Clean, func(t *testing.T, o *outage) {
				w.play(t, o)
				inherited += o.Count("inherited")
				if t.Failed() {
					t.Logf("%+v", w)
				}
			})
		})
	}
	if inherited == 0 {
		t.Error("nothing was inherited")
	}
}

// TestStoreCrashes plays those worlds of Clover's store in which both the box and a
// client die.
func TestStoreCrashes(t *testing.T) {
	counts := map[string]uint64{}
	for seed, n := uint64(1<<40), 2*min(bed.Schedules(60), 1000); n > 0; seed++ {
		if n == min(bed.Schedules(60), 1000) && seed < bed.LibraryStores {
			seed = bed.LibraryStores | 1<<40
		}
		w := bed.RandomStore(seed)
		if len(w.Ends) == 0 || len(w.Faults.Machines) == 0 {
			continue
		}
		n--
		if err := bed.TryStore(seed, ofStores(), nil, counts); err != nil && !errors.Is(err, history.ErrUndecided) {
			t.Fatalf("seed %d: %v\n%+v", seed, err, w)
		}
	}
	t.Logf("%v", counts)
}
