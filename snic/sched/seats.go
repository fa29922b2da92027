package sched

import "slices"

// Buckets is how many buckets of flows a chain with seats has. Flows of one bucket stay together: of
// two flows, one in so many pairs cannot be parted.
const Buckets = 1 << bucketBits

const bucketBits = 10

// seats say to which instance of a chain flows go: a table of fixed size of buckets of flows, each
// with what its flows have brought of late. A bucket that nobody uses has no instance. By Want it gets
// one by rendezvous hashing, or the one with least work, where that has less.
type seats struct {
	region [Buckets]int32 // none: a packet decides
	work   [Buckets]float32
	fresh  [Buckets]float32 // since Balance
	long   [Buckets]float32 // as work, of four times as long
	// Of each bucket, the flow that has most of its work, if one has more than all others together
	// (the majority vote of Boyer and Moore), and by how much it leads.
	flow [Buckets]uint32
	lead [Buckets]float32
}

// Seat has flows of a chain, with Spread PerFlow, go to its instances by the work that they bring (Want,
// Balance), not by rendezvous hashing alone. It is to be called before the chain's first Place, and holds until it
// has no instance any more.
func (in *Instances) Seat(chain int) {
	c := &in.chains[chain]
	if c.seats != nil {
		return
	}
	c.seats = new(seats)
	for k := range c.seats.region {
		c.seats.region[k] = none
	}
}

// bucketOf is the bucket of a flow, and what tells it from others there.
func (in *Instances) bucketOf(flow uint64) (bucket uint32, rest uint32) {
	x := (flow ^ flow>>32) * in.odd
	x = (x ^ x>>29) * 0xbf58476d1ce4e5b9
	return uint32(x >> (64 - bucketBits)), uint32(x)
}

// Bucket is that of a flow, 0 to Buckets-1: as a chain with seats has it.
func (in *Instances) Bucket(flow uint64) int {
	k, _ := in.bucketOf(flow)
	return int(k)
}

// seat is the instance of a bucket, of several that take packets.
func (in *Instances) seat(c *chain, k uint32) int32 {
	r := c.seats.region[k]
	if r == none {
		r = rendezvous(c.open, uint64(k))
		if _, free := in.ends(c); in.queues.regions[r].work > (1+uneven)*in.queues.regions[free].work {
			r = free
		}
		in.sit(c, k, r)
	}
	return r
}

// sit moves a bucket to an instance, or to none.
func (in *Instances) sit(c *chain, k uint32, r int32) {
	t := c.seats
	w := t.work[k] + t.fresh[k]
	if old := t.region[k]; old != none {
		in.queues.regions[old].work -= w
	}
	if t.region[k] = r; r != none {
		in.queues.regions[r].work += w
	}
}

// Want says that a packet of a flow brings a chain so much work, in ns of an instance, whether it will
// be let in or not, and returns the region that is to do it; -1: none takes packets. Without
// Seat it only tells where the flow goes.
func (in *Instances) Want(chain int, flow uint64, work float32) int {
	c := &in.chains[chain]
	if len(c.open) == 0 {
		return int(none)
	}
	t := c.seats
	if t == nil {
		return int(in.choose(c, PerFlow, flow, 0))
	}
	k, rest := in.bucketOf(flow)
	r := c.open[0]
	if len(c.open) > 1 {
		r = in.seat(c, k)
	} else if t.region[k] != r {
		in.sit(c, k, r) // so that it stays when there are more
	}
	t.fresh[k] += work
	in.queues.regions[r].work += work
	switch {
	case t.flow[k] == rest:
		t.lead[k] += work
	case t.lead[k] >= work:
		t.lead[k] -= work
	default:
		t.flow[k], t.lead[k] = rest, work-t.lead[k]
	}
	return int(r)
}

// Balance ends a measurement of what flows bring a chain: fade is how much of what was measured before
// counts no more, from 0 to 1, so that what counts is about that of the last 1/fade measurements. While an
// instance has more than full of that, or packets wait for its credits, buckets go from there to those that have least, as far as
// this makes the fullest one emptier. Packets that are inside are followed in order: see the
// package. forget: what a flow has left behind, here or in a task, is nothing, so that a bucket that nobody
// uses any more has no instance. Balance returns how many buckets were moved.
func (in *Instances) Balance(chain int, fade, full float32, forget bool) (moved int) {
	c := &in.chains[chain]
	t := c.seats
	if t == nil {
		return 0
	}
	for _, r := range c.open {
		in.queues.regions[r].work = 0
	}
	for k := range t.region {
		if t.work[k] == 0 && t.long[k] == 0 && t.fresh[k] == 0 {
			continue
		}
		t.long[k] += (t.fresh[k] - t.long[k]*fade) / longer
		t.work[k] += t.fresh[k] - t.work[k]*fade
		t.lead[k] -= t.lead[k] * fade
		t.fresh[k] = 0
		r := t.region[k]
		if t.work[k] < full*faint {
			t.work[k], t.lead[k] = 0, 0
			if t.long[k] < full*faint {
				t.long[k] = 0
			}
			if forget {
				t.region[k] = none
			}
		} else if r != none {
			in.queues.regions[r].work += t.work[k]
		}
	}
	for len(c.open) > 1 {
		n := in.ease(c, full)
		if moved += n; n == 0 || moved >= Buckets {
			break
		}
	}
	return moved
}

const (
	// longer is of how many times as much time seats.long is.
	longer = 4
	// faint is the part of a full instance below which a bucket counts for nothing.
	faint = 1e-4
	// uneven is by which part of its work the fullest instance has more than the emptiest one before
	// anything is moved for it.
	uneven = 1. / 16
	// most is which part of the difference a bucket has at most that is moved: with more, little is gained
	// but that another one is the fullest.
	most = .8
)

// ends are the instances that have most and least work, the first of them each.
func (in *Instances) ends(c *chain) (full, free int32) {
	full, free = c.open[0], c.open[0]
	for _, r := range c.open[1:] {
		if in.queues.regions[r].work > in.queues.regions[full].work {
			full = r
		}
		if in.queues.regions[r].work < in.queues.regions[free].work {
			free = r
		}
	}
	return full, free
}

// ease moves buckets from the fullest instance to the emptiest, and returns how many: the one that is nearest to half
// of the difference, or, where all are light against it, as many as it takes.
func (in *Instances) ease(c *chain, full float32) (moved int) {
	t := c.seats
	from, to := in.ends(c)
	if in.queues.regions[from].load > in.queues.regions[from].running {
		full = 0
	}
	high, low := in.queues.regions[from].work, in.queues.regions[to].work
	diff := high - low
	if high <= full || diff <= high*uneven {
		return 0
	}
	best, gain := -1, float32(0)
	for k, r := range t.region {
		if w := t.work[k]; r == from && w > 0 && w <= most*diff && min(w, diff-w) > gain {
			best, gain = k, min(w, diff-w)
		}
	}
	if best < 0 {
		return 0
	}
	in.sit(c, uint32(best), to)
	moved++
	if gain > diff/8 {
		return moved
	}
	for k, r := range t.region {
		if w := t.work[k]; r == from && w > 0 {
			if in.queues.regions[from].work <= full || in.queues.regions[from].work-in.queues.regions[to].work < 2*w {
				continue
			}
			in.sit(c, uint32(k), to)
			moved++
		}
	}
	return moved
}

// Heaviest is what the fullest instance of a chain with seats had to do when Balance was called last, in all, of the
// bucket that has most, and of one flow in it at least.
func (in *Instances) Heaviest(chain int) (instance, bucket, flow float32) {
	c := &in.chains[chain]
	if c.seats == nil || len(c.open) == 0 {
		return 0, 0, 0
	}
	full, _ := in.ends(c)
	best := -1
	for k, r := range c.seats.region {
		if r != full {
			continue
		}
		if instance += c.seats.work[k]; best < 0 || c.seats.work[k] > c.seats.work[best] {
			best = k
		}
	}
	if best < 0 {
		return 0, 0, 0
	}
	return instance, c.seats.work[best], c.seats.lead[best]
}

// Spare reports whether the other instances of a chain with seats would have no more than full each, if the
// emptiest one were not there: by what their buckets have of late, or had for longer, whichever is more. What
// few flows bring is more or less by chance.
func (in *Instances) Spare(chain int, full float32) bool {
	c := &in.chains[chain]
	if c.seats == nil || len(c.open) < 2 {
		return true
	}
	t := c.seats
	_, free := in.ends(c)
	// The heaviest first, each to the emptiest: as they would go.
	room := make([]float32, 0, len(c.open))
	for _, r := range c.open {
		if r != free {
			room = append(room, full)
		}
	}
	var heavy []float32
	for k, r := range t.region {
		w := max(t.work[k], t.long[k])
		switch {
		case r == none || w == 0:
		case r == free:
			heavy = append(heavy, w)
		default:
			i := slices.Index(c.open, r)
			if j := slices.Index(c.open, free); i > j {
				i--
			}
			room[i] -= w
		}
	}
	slices.Sort(heavy)
	for _, w := range slices.Backward(heavy) {
		i := 0
		for j := range room {
			if room[j] > room[i] {
				i = j
			}
		}
		if room[i] -= w; room[i] < 0 {
			return false
		}
	}
	return true
}

// leaveSeats takes an instance that takes no more packets from all buckets.
func (in *Instances) leaveSeats(c *chain, region int32) {
	if c.seats == nil {
		return
	}
	for k, r := range c.seats.region {
		if r == region {
			in.sit(c, uint32(k), none)
		}
	}
	in.queues.regions[region].work = 0
}
