// Package scale runs a load on the regions of an sNIC in virtual time, scaled
// by snic/region or provisioned statically, and says what that costs in time
// and in regions.
//
// The load is closed: endpoints are slowed by back-pressure (the last hop's flow
// control), not dropped. Where the regions handle a part of what is offered,
// the endpoints get that part of their work done, and the rest of their load
// comes later: the slowdown is how much longer the load takes than it would
// on hardware that is never short.
//
// Regions are counted as the source does (section 5.7.2): those that are accessed,
// and those being reconfigured or stopped (snic/region). As many are accessed as
// the load needs, of those that run: one that is only kept until a monitor period
// is over costs nothing. Static ones are counted all the time. A load that takes
// longer uses its regions longer.
//
// Packets are a fluid here: what the packet store holds (some microseconds) is
// nothing beside a reconfiguration (milliseconds).
package scale

import (
	"fmt"
	"math"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/snic/region"
)

// Load is what endpoints offer together: bits a second, by intervals.
type Load struct {
	Interval clock.Duration
	Rate     []float64
}

// Mean and Peak are of all intervals.
func (l *Load) Mean() float64 {
	sum := 0.0
	for _, r := range l.Rate {
		sum += r
	}
	return sum / float64(len(l.Rate))
}

// Peak is the greatest rate.
func (l *Load) Peak() float64 {
	peak := 0.0
	for _, r := range l.Rate {
		peak = math.Max(peak, r)
	}
	return peak
}

// Outcome is what a load took.
type Outcome struct {
	// Slowdown is by how much longer the load took: 0 is not at all.
	Slowdown float64
	// Regions is their time over the load's own length: the mean number that is
	// paid for.
	Regions float64
	// Redirected is the part of the work that a peer did.
	Redirected float64
	// Stats are those of the regions; only of Scaled.
	Stats region.Stats
}

// Static provides so many regions, of a capacity in bits a second, all the time.
func Static(l *Load, capacity float64, regions int) Outcome {
	have, took := capacity*float64(regions), 0.0
	for _, r := range l.Rate {
		took += math.Max(1, r/have)
	}
	took /= float64(len(l.Rate))
	return Outcome{Slowdown: took - 1, Regions: float64(regions) * took}
}

// Instant provides in every interval what it needs.
func Instant(l *Load, capacity float64) Outcome {
	sum := 0.0
	for _, r := range l.Rate {
		sum += math.Ceil(r / capacity * (1 - 1e-9))
	}
	return Outcome{Regions: sum / float64(len(l.Rate))}
}

// Board is an sNIC whose regions are scaled.
type Board struct {
	region.Config
	Capacity float64 // of a region, bits a second
	// Taken is the part of the time for which others want one more region, and
	// Turn how long such a time and the one without are together. They take one
	// that is free or has a victim: nothing that runs is stopped to scale others
	// out (section 5.4.4).
	Taken float64
	Turn  clock.Duration
	// Background is what others have running in the same regions, bits a second:
	// served first, and not counted.
	Background float64
	// Peer is another board of the pool, idle and as large. It is asked for help
	// when a task has been overloaded for a monitor period and no region is free,
	// and takes what is over after a reconfiguration.
	Peer bool
}

// Scaled runs a load on a board. step is how often it is sampled, the length of
// l's intervals at most.
func Scaled(l *Load, b Board, step clock.Duration) (Outcome, error) {
	if step <= 0 || step > l.Interval {
		return Outcome{}, fmt.Errorf("scale: a step of %v for intervals of %v", step, l.Interval)
	}
	f, err := region.New(0, b.Config)
	if err != nil {
		return Outcome{}, err
	}
	if err := f.SetTask(task, b.Capacity); err != nil {
		return Outcome{}, err
	}
	if err := f.Add(chain, region.Chain{Area: b.Areas[0], Tasks: []int{task}}); err != nil {
		return Outcome{}, err
	}
	if d := f.Launch(0, region.Demand{Chain: chain, Pre: true}); d.Choice == region.Refused {
		return Outcome{}, fmt.Errorf("scale: %v", d.Reason)
	}
	// The load begins when the first instance runs.
	now := f.Next()
	f.Advance(now)
	r := run{l: l, b: b, f: f, start: now, now: now, peer: clock.Never}
	before := paid(f)
	for r.at < float64(len(l.Rate)) {
		r.step(step)
	}
	length := float64(len(l.Rate)) * float64(l.Interval)
	return Outcome{
		Slowdown:   float64(r.now.Sub(r.start))/length - 1,
		Regions:    (float64(paid(f)-before)*r.share() + r.helped*float64(step)) / length,
		Redirected: r.redirected / math.Max(r.work, 1),
		Stats:      f.Stats(),
	}, f.Check()
}

// The chain that a load needs, and its task.
const (
	task  = 0
	chain = 0
)

// run is a load under way.
type run struct {
	l          *Load
	b          Board
	f          *region.Fabric
	start, now clock.Time
	at         float64 // intervals of the load that are done
	taken      bool
	peer       clock.Time // when the peer helps
	helped     float64    // regions of the peer, times steps
	work       float64    // bits
	redirected float64    // of them
	others     float64    // bits of the background
}

// share is the part of the board's regions' time that is the load's own.
func (r *run) share() float64 {
	own := r.work - r.redirected
	return own / math.Max(own+r.others, 1)
}

func (r *run) step(step clock.Duration) {
	f, b := r.f, &r.b
	rate := r.l.Rate[int(r.at)]
	if b.Taken > 0 {
		want := r.now.Sub(r.start)%b.Turn < clock.Duration(b.Taken*float64(b.Turn))
		for i := range f.Regions() {
			switch f.Region(i).State {
			case region.Free, region.Victim:
				if want && !r.taken {
					f.Fail(r.now, i)
					r.taken = true
				}
			case region.Failed:
				if !want {
					f.Repair(r.now, i)
					r.taken = false
				}
			}
		}
	}
	running := 0
	for i := range f.Regions() {
		if f.Region(i).State == region.Running {
			running++
		}
	}
	if running == 0 && f.Free() > 0 {
		f.Launch(r.now, region.Demand{Chain: chain})
	}
	// What the peer takes is no more offered here. The rest is, whatever of it
	// is done.
	own := math.Max(b.Capacity*float64(running)-b.Background, 0)
	away := 0.0
	if r.now >= r.peer {
		away = math.Min(math.Max(rate-own, 0), b.Capacity*float64(f.Regions()))
	}
	bytes := (rate - away + b.Background) / 8 * step.Seconds()
	// One region is filled after the other, and the last one told what is too much.
	for i := range f.Regions() {
		if f.Region(i).State != region.Running {
			continue
		}
		part := bytes
		if running--; running > 0 {
			part = math.Min(bytes, b.Capacity/8*step.Seconds())
		}
		f.Load(i, task, int64(part))
		bytes -= part
	}
	done := 1.0
	if rate > own+away {
		done = (own + away) / rate
	}
	r.at += done * float64(step) / float64(r.l.Interval)
	r.work += rate * done * step.Seconds()
	r.redirected += away * step.Seconds()
	r.others += b.Background * step.Seconds()
	r.helped += away / b.Capacity
	r.now = r.now.Add(step)
	for f.Next() <= r.now {
		f.Advance(f.Next())
		r.answer()
	}
	f.Sample(r.now)
	r.answer()
}

// answer does what a body does: when a region is to stop, nothing is inside;
// when a task is overloaded and no region is free, a peer is asked.
func (r *run) answer() {
	for _, e := range r.f.Events() {
		switch e.Kind {
		case region.Stop:
			r.f.Stopped(e.At, e.Region, e.Seq)
		case region.Overload:
			if r.b.Peer && r.peer == clock.Never {
				r.peer = r.now.Add(clock.Duration(float64(r.b.Bitstream) / float64(r.b.Rate) * 1e9))
			}
		}
	}
}

// paid is the time of regions that costs.
func paid(f *region.Fabric) clock.Duration {
	sum := clock.Duration(0)
	for i := range f.Regions() {
		t := f.Times(i)
		sum += t.Accessed + t.In[region.Loading] + t.In[region.Stopping]
	}
	return sum
}
