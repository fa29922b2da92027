package xdp

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/p4"
)

// stopping is a twin whose only table stops, and the time of its app.
type stopping struct {
	*twin
	at clock.Time
}

func (s *stopping) entry(key, mask uint64, priority int32) p4.Entry {
	return p4.Entry{Priority: priority, Key: []p4.Match{{Value: bigEndian(key), Mask: bigEndian(mask)}}, Action: p4.Action{Name: "set", Args: [][]byte{bigEndian(key & 255), bigEndian(mask)}}}
}

func (s *stopping) insert(e p4.Entry) (h p4.Handle) {
	s.Helper()
	s.both(func(sw *p4.Switch) (err error) { h, err = sw.Insert("t", e); return err })
	return h
}

func (s *stopping) delete(h p4.Handle) {
	s.Helper()
	s.both(func(sw *p4.Switch) error { return sw.Delete("t", h) })
}

// pass lets time pass, in which the app looks after its Executor every 5 ms.
func (s *stopping) pass(ms int) {
	for range ms / 5 {
		s.at += clock.Time(5 * 1e6)
		again(s.x, s.at)
		for n := 0; s.x.graces.busy != nil && len(s.x.graces.busy) == 0 && n < 1000; n++ { // the kernel's time
			time.Sleep(time.Millisecond)
		}
	}
}

// runs checks whether the kernel runs frames of the table; the twin compares what becomes of them.
func (s *stopping) runs(when string, want bool) {
	s.Helper()
	before := s.kernel
	for key := range uint16(40) {
		s.frame(1, padded(key<<8|key))
	}
	if n := s.kernel - before; n != 40 && want || n != 0 && !want {
		s.Errorf("%s: the kernel ran %d of 40 frames: %v", when, n, s.x.Stopped())
	}
	if stopped := s.x.Stopped()["t"]; (stopped == "") != want {
		s.Errorf("%s: stopped: %q", when, stopped)
	}
}

// TestStoppedMasks: a table with more masks than the kernel has places for runs there again a second after its masks fit.
func TestStoppedMasks(t *testing.T) {
	for _, goes := range []string{"the first", "the last"} {
		t.Run(goes, func(t *testing.T) {
			s := &stopping{twin: newTwin(t, counting(t, "ternary"))}
			var all []p4.Handle
			for n := range maxMasks {
				all = append(all, s.insert(s.entry(uint64(n)<<8|7, 0xff<<8|1<<n, int32(n+1))))
			}
			s.runs("with as many masks as fit", true)
			last := s.insert(s.entry(0x1234, 0xfff0, 50))
			more := s.insert(s.entry(0x1114, 0xfff0, 51))
			s.runs("with one more", false)
			if why := shownStops(s.x)["t"]; !strings.Contains(why, "8 different masks") || !strings.Contains(why, "2 of its entries are not in the kernel") {
				t.Errorf("it says %q", why)
			}
			s.pass(5000)
			s.runs("5 s later", false)
			s.delete(s.insert(s.entry(0x2224, 0xfff0, 52))) // refused, as the others
			if goes == "the first" {
				s.delete(all[0])
			} else {
				s.delete(last)
				s.runs("without one of two entries with this mask", false)
				s.pass(2000)
				s.runs("2 s later", false)
				s.delete(s.insert(s.entry(0x2224, 0xfff0, 52)))
				s.delete(more)
			}
			s.runs("before the kernel has it", false)
			s.pass(500)
			s.runs("half a second later", false)
			s.pass(700)
			s.runs("again", true)
			s.both(func(sw *p4.Switch) error { return sw.Modify("t", all[2], p4.Entry{Action: s.entry(9, 9, 0).Action}) })
			s.delete(all[3])
			s.insert(s.entry(0x900, 0xff0f, 60))
			s.runs("after changes", true)
			s.counts()
		})
	}
}

// TestStoppedFlaps: a table whose entries fit, and do not, many times a second stays with the engine.
func TestStoppedFlaps(t *testing.T) {
	s := &stopping{twin: newTwin(t, pairs(t, "ternary"))}
	for n := range maxMasks {
		s.insert(s.entry(uint64(n)<<8|7, 0xff<<8|1<<n, int32(n+1)))
	}
	graces := s.x.graces.n
	for range 50 {
		h := s.insert(s.entry(0x1234, 0xfff0, 50))
		s.pass(100)
		s.delete(h)
		s.pass(500)
		s.runs("while it flaps", false)
	}
	if n := s.x.graces.n - graces; n > 2 {
		t.Errorf("frames waited for %d grace periods", n)
	}
	s.pass(1000)
	s.runs("at the end", true)
}

// TestStoppedMany: entries that the kernel lacks come there in steps, so that the app's frames do not wait.
func TestStoppedMany(t *testing.T) {
	s := &stopping{twin: newTwin(t, pairs(t, "ternary"))}
	var all []p4.Handle
	for n := range maxMasks {
		all = append(all, s.insert(s.entry(uint64(n)<<8|7, 0xff<<8|1<<n, int32(n+1))))
	}
	const many = mostPairs - maxMasks
	for n := range many {
		s.insert(s.entry(uint64(n)<<4, 0xfff0, int32(100+n)))
	}
	s.delete(all[4])
	wait, release := s.x.graces.wait, make(chan struct{})
	s.x.graces.wait = func() error {
		select {
		case <-release:
		case <-time.After(10 * time.Second):
			t.Error("the app's frames wait for a grace period")
		}
		return wait()
	}
	for range 3 {
		again(s.x, s.at)
		s.at += clock.Time(1e9)
	}
	close(release)
	for s.pass(5); s.x.tables[0].out.missing == many; s.pass(5) {
		if s.at > clock.Time(9e9) {
			t.Fatal("nothing comes to the kernel")
		}
	}
	steps := 0
	for ; s.x.tables[0].out.missing > 0 && steps < 10_000; steps++ {
		s.pass(5)
	}
	if steps < 2 || steps == 10_000 {
		t.Errorf("%d entries came in %d steps", many, steps+1)
	}
	s.pass(5)
	s.runs("again", true)
}

// TestStoppedSize: a table that a controller gave more entries than the program says runs in the kernel again when there are fewer, and so does one with ranges.
func TestStoppedSize(t *testing.T) {
	s := &stopping{twin: newTwinOf(t, counting(t, "exact"), true)}
	s.both(func(sw *p4.Switch) error { return sw.Fix("t", false, 2*mostPairs) })
	var all []p4.Handle
	for n := range mostPairs + 5 {
		e := s.entry(uint64(n), 0, 0)
		e.Key[0].Mask = nil
		all = append(all, s.insert(e))
	}
	s.runs("with more entries", false)
	for _, h := range all[mostPairs+1:] {
		s.delete(h)
	}
	s.pass(3000)
	s.runs("with one more", false)
	s.delete(all[mostPairs])
	s.pass(1500)
	s.runs("again", true)
	for n := range 5 { // those that stay are not the first ones
		e := s.entry(uint64(mostPairs+10+n), 0, 0)
		e.Key[0].Mask = nil
		s.insert(e)
	}
	for _, h := range all[:5] {
		s.delete(h)
	}
	s.pass(3000)
	s.runs("without the first ones", true)
	s.counts()

	r := &stopping{twin: newTwin(t, pairs(t, "range"))}
	all = nil
	for n := range uint64(700) { // with three pieces each
		all = append(all, r.insert(r.entry(n<<5+1, (n<<5+0x310)|1, int32(n+1))))
	}
	r.runs("with too many pieces", false)
	for _, h := range all[:200] {
		r.delete(h)
	}
	r.pass(3000)
	r.runs("with fewer", true)
}

// TestStoppedRandom: entries with up to 11 masks come and go, and frames see those of the engine, wherever they run.
func TestStoppedRandom(t *testing.T) {
	r := newRandom(t)
	s := &stopping{twin: newTwinOf(t, counting(t, "ternary"), r.IntN(2) == 0)}
	masks := make([]uint64, 11)
	for i := range masks {
		masks[i] = 1<<i | 0x3000
	}
	have := map[p4.Handle]uint64{}
	stops, runs := 0, 0
	for round := range 400 {
		for range 1 + r.IntN(6) {
			want := 3 + round/20%7 // it is stopped for some rounds, and not for others
			mask := masks[r.IntN(want+2)]
			key := uint64(r.IntN(1 << 14))
			e := s.entry(key&mask, mask, int32(1+r.IntN(4)))
			if r.IntN(3) > 0 && len(have) < 60 {
				if h, err := s.sw.Insert("t", e); err == nil {
					have[h] = mask
					if g, err := s.ref.Insert("t", e); err != nil || g != h {
						t.Fatal(g, h, err)
					}
				}
				continue
			}
			var list []p4.Handle
			for h := range have {
				list = append(list, h)
			}
			if slices.Sort(list); len(list) > 0 {
				h := list[r.IntN(len(list))]
				if r.IntN(3) == 0 {
					s.both(func(sw *p4.Switch) error { return sw.Modify("t", h, p4.Entry{Action: e.Action}) })
				} else {
					delete(have, h)
					s.delete(h)
				}
			}
		}
		s.pass(r.IntN(600))
		for range 20 {
			s.frame(1, padded(uint16(r.IntN(1<<14))))
		}
		different := map[uint64]bool{}
		for _, m := range have {
			different[m] = true
		}
		stopped := len(s.x.Stopped()) > 0
		if len(different) > maxMasks && !stopped {
			t.Fatalf("round %d: %d masks, and not stopped", round, len(different))
		}
		if stopped {
			stops++
		} else {
			runs++
		}
		if stopped && len(different) <= maxMasks && r.IntN(4) == 0 {
			if s.pass(2000); len(s.x.Stopped()) > 0 {
				t.Fatalf("round %d: %d masks, 2 s later: %v", round, len(different), s.x.Stopped())
			}
		}
	}
	if stops < 20 || runs < 20 {
		t.Errorf("stopped in %d rounds, and not in %d", stops, runs)
	}
	s.counts()
}

// TestStoppedLook: the app has stopped tables begin again.
func TestStoppedLook(t *testing.T) {
	s := &stopping{twin: newTwin(t, pairs(t, "ternary"))}
	k := &kernel{run: &running{x: s.x}, sw: s.sw}
	var last p4.Handle
	for n := range maxMasks + 1 {
		last = s.insert(s.entry(uint64(n)<<8|7, 0x3f<<8|1<<n, int32(n+1)))
	}
	k.Look(s.at)
	r := k.Report().(Running)
	if !strings.Contains(fmt.Sprint(r.Stopped), "1 of its entries") {
		t.Errorf("it reports %v", r.Stopped)
	}
	s.delete(last)
	for range 300 {
		s.at += clock.Time(5 * 1e6)
		k.Look(s.at)
	}
	s.runs("again", true)
}
