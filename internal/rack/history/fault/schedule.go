package fault

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// Action is the kind of a fault.
type Action uint8

const (
	Drop Action = iota
	Duplicate
	Delay
	Corrupt
	Kill
	Restart
	numActions
)

func (a Action) String() string {
	return [...]string{"drop", "duplicate", "delay", "corrupt", "kill", "restart"}[a]
}

// OfFrame reports whether the action happens to a frame, and not to a machine.
func (a Action) OfFrame() bool { return a <= Corrupt }

// Dir is a direction on a link.
type Dir uint8

const (
	Up   Dir = iota // towards the servers
	Down            // towards the clients
)

func (d Dir) String() string { return [...]string{"up", "down"}[d] }

// Fault is one fault.
type Fault struct {
	Action Action
	// Where is the name of a link, or of a machine.
	Where string
	Dir   Dir
	// Frame is the frame's number in its direction, from 1.
	Frame int
	// By is how much later a delayed frame, or the copy of a duplicated one, arrives.
	By time.Duration
	// Byte is the offset of the damaged byte behind the Ethernet header, modulo the number of bytes there.
	// (The Ethernet FCS protects the header on every cable.)
	Byte int
	// At is the time at which a machine dies or comes back, from the start of the run.
	At time.Duration
}

func (f Fault) String() string {
	if !f.Action.OfFrame() {
		return fmt.Sprintf("%v %s at %v", f.Action, f.Where, f.At)
	}
	s := fmt.Sprintf("%v %s %v %d", f.Action, f.Where, f.Dir, f.Frame)
	switch f.Action {
	case Duplicate, Delay:
		s += fmt.Sprintf(" by %v", f.By)
	case Corrupt:
		s += fmt.Sprintf(" byte %d", f.Byte)
	}
	return s
}

// Schedule is the faults of a run.
type Schedule []Fault

// String returns one fault in each line.
func (s Schedule) String() string {
	var b strings.Builder
	for _, f := range s {
		b.WriteString(f.String())
		b.WriteByte('\n')
	}
	return b.String()
}

// Mix describes random schedules.
type Mix struct {
	// Links are the links on which frame faults happen, all with the same probability.
	Links []string
	// Frames is the most faults of frames, and Within the highest number of a frame with a fault; early
	// frames have faults more often.
	Frames, Within int
	// Late is the longest delay; 0 = 50 µs.
	Late time.Duration
	// At most Deaths of the Machines die, at a time up to Until after the start, more often early, and come
	// back after at most Absence (0: never).
	Machines []string
	Deaths   int
	Until    time.Duration
	Absence  time.Duration
}

// Random makes a schedule. Equal seeds and mixes give equal schedules.
func Random(seed uint64, m Mix) Schedule {
	rng := rand.New(rand.NewPCG(seed, 0x6661756c74))
	late := m.Late
	late = cmp.Or(late, 50*time.Microsecond)
	var s Schedule
	if len(m.Links) > 0 && m.Frames > 0 {
		for range rng.IntN(m.Frames + 1) {
			f := Fault{
				Action: Action(rng.IntN(int(Corrupt) + 1)),
				Where:  m.Links[rng.IntN(len(m.Links))],
				Dir:    Dir(rng.IntN(2)),
				Frame:  1 + rng.IntN(max(m.Within, 1))>>rng.IntN(5),
			}
			switch f.Action {
			case Duplicate, Delay:
				f.By = time.Duration(rng.Int64N(int64(late)))
			case Corrupt:
				f.Byte = rng.IntN(1500)
			}
			s = append(s, f)
			// Losses also come in bursts.
			if f.Action == Drop && rng.IntN(4) == 0 {
				for range rng.IntN(8) {
					f.Frame++
					s = append(s, f)
				}
			}
		}
	}
	if len(m.Machines) > 0 && m.Deaths > 0 {
		who := rng.Perm(len(m.Machines))
		for _, i := range who[:min(rng.IntN(m.Deaths+1), len(who))] {
			f := Fault{Action: Kill, Where: m.Machines[i], At: time.Duration(rng.Int64N(int64(max(m.Until, 1))) >> rng.IntN(6))}
			s = append(s, f)
			if m.Absence > 0 {
				f.Action = Restart
				f.At += 1 + time.Duration(rng.Int64N(int64(m.Absence)))
				s = append(s, f)
			}
		}
	}
	return s
}

// Machines returns the faults of machines, by time.
func (s Schedule) Machines() []Fault {
	var m []Fault
	for _, f := range s {
		if !f.Action.OfFrame() {
			m = append(m, f)
		}
	}
	slices.SortStableFunc(m, func(a, b Fault) int { return cmp.Compare(a.At, b.At) })
	return m
}

// Shrink leaves out faults as long as fails reports that the run still fails with the rest, until every fault
// that is left matters (Zeller and Hildebrandt, "Simplifying and isolating failure-inducing input", TSE 2002:
// ddmin). A run with s must fail. fails is called at most tries times (0: no limit).
func Shrink(s Schedule, tries int, fails func(Schedule) bool) Schedule {
	parts := 2
	for n := 0; len(s) > 0; {
		size := (len(s) + parts - 1) / parts
		smaller := false
		for at := 0; at < len(s); at += size {
			if n++; tries > 0 && n > tries {
				return s
			}
			rest := slices.Concat(s[:at:at], s[min(at+size, len(s)):])
			if fails(rest) {
				s, smaller = rest, true
				parts = max(parts-1, 2)
				break
			}
		}
		if smaller {
			continue
		}
		if size == 1 {
			return s
		}
		parts = min(2*parts, len(s))
	}
	return s
}
