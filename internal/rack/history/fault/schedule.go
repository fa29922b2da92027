package fault

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// Action is what goes wrong.
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

// OfFrame reports whether the action befalls a frame, and not a machine.
func (a Action) OfFrame() bool { return a <= Corrupt }

// Dir is a direction on a link.
type Dir uint8

const (
	Up   Dir = iota // towards the servers
	Down            // towards the clients
)

func (d Dir) String() string { return [...]string{"up", "down"}[d] }

// Fault is one thing that goes wrong.
type Fault struct {
	Action Action
	// Where is the name of a link, or of a machine.
	Where string
	Dir   Dir
	// Frame is the frame's number in its direction, from 1.
	Frame int
	// By is how much later a delayed frame, or the copy of a doubled one, comes.
	By time.Duration
	// Byte is the offset of the byte that is damaged, modulo what the frame has
	// behind its Ethernet header (the Ethernet FCS guards that on every cable).
	Byte int
	// At is when a machine dies or comes back, from the start of the run.
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

// Schedule is what goes wrong in one run.
type Schedule []Fault

// String is one fault to a line.
func (s Schedule) String() string {
	var b strings.Builder
	for _, f := range s {
		b.WriteString(f.String())
		b.WriteByte('\n')
	}
	return b.String()
}

// Mix says how much goes wrong in a random schedule.
type Mix struct {
	// Links are struck by frame faults, all alike.
	Links []string
	// Frames is how many faults of frames there are at most, and Within the
	// highest number of a frame that is struck; early ones are more often.
	Frames, Within int
	// Late is the longest delay; 0 = 50 µs.
	Late time.Duration
	// Machines may die; at most Deaths of them do, at a time up to Until after
	// the start, rather early, and come back after at most Absence (0: never).
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
			// Losses come in bursts, too.
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

// Machines are the faults that befall machines, by time.
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

// Shrink leaves faults away as long as fails still says that the rest makes the
// run fail, until every single one that is left matters (Zeller and Hildebrandt,
// "Simplifying and isolating failure-inducing input", TSE 2002: ddmin). s itself
// must fail. fails is called at most tries times (0: as often as it takes).
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
