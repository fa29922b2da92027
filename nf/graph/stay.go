package graph

import (
	"math"
	"math/bits"
	"slices"
	"sync/atomic"

	"github.com/quillon/quillon/nf/clock"
)

// Stay counts the frames that stayed with a worker for about the same time. The time begins when the worker looks
// at its ports, and ends when it has given the frames of that look to ports again. For a frame that an app holds,
// the breath in which it comes and the breath in which it leaves count, without the time between them. Time in the
// kernel does not count.
type Stay struct {
	UpTo   clock.Duration `json:"up_to_ns"` // and longer than that of the Stay before
	Frames uint64         `json:"frames"`
}

// Stays are counted by their length, in steps of a quarter of a power of two, from leastStay on. The last step is for
// all that is longer.
const (
	leastStay   = 8 // 256 ns, as a power of two
	stayOctaves = 20
	stayParts   = 4
	staySteps   = stayOctaves*stayParts + 1
)

// stays counts the stays of one worker. Only this worker adds to them; any goroutine may read them.
type stays struct {
	frames [staySteps]atomic.Uint64
	ns     atomic.Uint64 // of all together
}

// stayStep returns the step of a stay of length d.
func stayStep(d clock.Duration) int {
	d = max(d-1, 1<<leastStay)
	octave := bits.Len64(uint64(d)) - 1
	return min((octave-leastStay)*stayParts+int(d>>(octave-2))&(stayParts-1), staySteps-1)
}

// stayUpTo returns the longest stay of a step.
func stayUpTo(step int) clock.Duration {
	if step == staySteps-1 {
		return math.MaxInt64
	}
	return clock.Duration(stayParts+step%stayParts+1) << (leastStay + step/stayParts - 2)
}

func (s *stays) add(d clock.Duration, frames int) {
	n := &s.frames[stayStep(d)]
	n.Store(n.Load() + uint64(frames))
	s.ns.Store(s.ns.Load() + uint64(d)*uint64(frames))
}

// staysOf returns the stays of all workers, the short ones first, without steps that have no frame, and the sum of the
// times of all frames.
func staysOf(all []*worker) (steps []Stay, together clock.Duration) {
	for _, w := range all {
		together += clock.Duration(w.stays.ns.Load())
	}
	for step := range staySteps {
		frames := uint64(0)
		for _, w := range all {
			frames += w.stays.frames[step].Load()
		}
		if frames > 0 {
			steps = append(steps, Stay{stayUpTo(step), frames})
		}
	}
	return steps, together
}

// StaysSince returns the stays that were counted between two readings: before is the earlier one, after the later one.
func StaysSince(before, after []Stay) (grown []Stay) {
	for _, s := range after {
		if i := slices.IndexFunc(before, func(b Stay) bool { return b.UpTo == s.UpTo }); i >= 0 {
			s.Frames -= min(before[i].Frames, s.Frames)
		}
		if s.Frames > 0 {
			grown = append(grown, s)
		}
	}
	return grown
}

// StayOf returns a time that the given share (0 to 1) of the frames did not exceed. It is at most a quarter longer than
// the longest time of these frames. StayOf returns 0 if there are no frames.
func StayOf(all []Stay, share float64) clock.Duration {
	total := uint64(0)
	for _, s := range all {
		total += s.Frames
	}
	left := uint64(math.Ceil(share * float64(total)))
	for _, s := range all {
		if left <= s.Frames {
			return s.UpTo
		}
		left -= s.Frames
	}
	return 0
}
