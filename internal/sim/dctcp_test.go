package sim

import (
	"fmt"
	"testing"
	"time"
)

// TestMarkedLoadScales: endpoints that a board slows by marks get as many instances as what they want to send needs: what waits while
// marks are given counts. On one instance a load of four takes 150 % longer. Who finds room in one instance gets no other.
func TestMarkedLoadScales(t *testing.T) {
	const region = gig / 10 // a piece is one packet of 1,000 bytes
	for _, wanted := range []struct {
		regions     float64
		least, most int
	}{{0.97, 1, 1}, {1.5, 2, 2}, {4, 3, 5}} {
		for _, flows := range []int{1, 4, 16} {
			if testing.Short() && flows != 4 {
				continue
			}
			for _, rtt := range []time.Duration{20 * time.Microsecond, 100 * time.Microsecond} {
				t.Run(fmt.Sprintf("%v/flows=%d/rtt=%v", wanted.regions, flows, rtt), func(t *testing.T) {
					l := square(400, 200, 200, wanted.regions/10, 0.5/10)
					o, err := l.Scaled(t.Context(), ScaledConfig{Regions: 5, Capacity: region, Piece: 8 * time.Microsecond, Victims: 100, Marked: &DCTCP{flows, rtt}})
					if err != nil {
						t.Fatal(err)
					}
					t.Logf("%d instances, %.1f %% longer", o.Most, 100*o.Slowdown)
					one := max(l.Static(region, 1).Slowdown, 0.25) // one flow of few packets leaves a part of it idle
					if o.Most < wanted.least || o.Most > wanted.most || o.Slowdown > one/2 {
						t.Errorf("%+v; one instance takes %v longer", o, one)
					}
				})
			}
		}
	}
	for _, d := range []DCTCP{{}, {Flows: 65, RTT: 1}, {Flows: 1}} {
		if _, err := square(10, 1, 1, 1, 1).Scaled(t.Context(), ScaledConfig{Regions: 1, Capacity: gig, Marked: &d}); err == nil {
			t.Errorf("%+v is run", d)
		}
	}
}

// TestDCTCP: a window of packets without a mark makes the window one larger, one with marks smaller by half the estimated part of them,
// and one with a loss half as large, once (RFC 8257, section 3.3; RFC 5681).
func TestDCTCP(t *testing.T) {
	s := &(&DCTCP{Flows: 1}).senders()[0]
	turn := func(marked func(i int) bool, lost int) {
		for s.may() {
			s.send()
		}
		for i := range s.out {
			s.answer(marked(i), i < lost)
		}
	}
	none, all := func(int) bool { return false }, func(int) bool { return true }
	turn(none, 0)
	nearly(t, "slow start", s.window, 2*dctcpFirst, 0)
	turn(all, 0)
	nearly(t, "the first marks", s.window, 2*dctcpFirst*(1-s.alpha/2), 1e-9)
	nearly(t, "the estimate", s.alpha, 1-15./16/16, 1e-9)
	for range 200 {
		turn(func(i int) bool { return i%4 == 0 }, 0)
	}
	nearly(t, "one packet of a least window is marked", s.alpha, 0.5, 0.01)
	for range 200 {
		turn(none, 0)
	}
	before := s.window
	turn(none, 0)
	nearly(t, "a window more", s.window, before+1, 0.05)
	before = s.window
	turn(none, 5)
	if s.window < before/2 || s.window > before/2+2 {
		t.Errorf("%v, after losses of a window of %v", s.window, before)
	}
}
