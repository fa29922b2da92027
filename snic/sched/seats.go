package sched

import "slices"

// Buckets is the number of buckets of flows of a chain with seats. Flows of one bucket stay together: one in
// Buckets pairs of flows cannot be separated.
const Buckets = 1 << bucketBits

const bucketBits = 10

// seats say to which instance of a chain flows go: a table of buckets of flows, each with the recent work
// of its flows. A bucket without flows has no instance. Want gives it the instance of rendezvous hashing,
// or the one with least work if that has less.
type seats struct {
	region [Buckets]int32 // none: a packet decides
	work   [Buckets]float32
	fresh  [Buckets]float32 // since Balance
	long   [Buckets]float32 // as work, of four times as long
}

// Seat assigns flows of a chain, with Spread PerFlow, to its instances by their work (Want, Balance), not by
// rendezvous hashing alone. It must be called before the chain's first Place, and holds until the chain has no
// instance any more.
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

// Bucket returns the bucket of a flow, 0 to Buckets-1. It is the same for all chains with seats.
func (in *Instances) Bucket(flow uint64) int {
	x := (flow ^ flow>>32) * in.odd
	x = (x ^ x>>29) * 0xbf58476d1ce4e5b9
	return int(x >> (64 - bucketBits))
}

// seat returns the instance of a bucket, and chooses one if it has none. The chain must have an instance that
// takes packets.
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

// Want adds the work of a packet of a flow, in ns of an instance, to a chain, whether or not the packet will
// be let in. It returns the region that the packet would go to; -1: none takes packets. Without Seat it only
// says where the flow goes.
func (in *Instances) Want(chain int, flow uint64, work float32) int {
	c := &in.chains[chain]
	if len(c.open) == 0 {
		return int(none)
	}
	t := c.seats
	if t == nil {
		return int(in.choose(c, PerFlow, flow, 0))
	}
	k := uint32(in.Bucket(flow))
	r := c.open[0]
	if len(c.open) > 1 {
		r = in.seat(c, k)
	} else if t.region[k] != r {
		in.sit(c, k, r) // so that it stays when there are more
	}
	t.fresh[k] += work
	in.queues.regions[r].work += work
	return int(r)
}

// Balance ends a measurement of the work of a chain's flows. fade, from 0 to 1, is the part of earlier
// measurements that no longer counts, so that about the last 1/fade measurements count. While an instance has
// more work than full, or packets wait for its credits, buckets move from it to the instances with least work,
// as long as that makes the fullest instance emptier. Flows keep their order: see the package comment. forget:
// flows leave nothing behind, here or in a task, so that a bucket without flows loses its instance. Balance
// returns how many buckets were moved.
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
		t.fresh[k] = 0
		r := t.region[k]
		if t.work[k] < full*faint {
			t.work[k] = 0
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
	// longer is the time that seats.long covers, as a multiple of that of work.
	longer = 4
	// faint is the part of a full instance below which a bucket counts for nothing.
	faint = 1e-4
	// uneven is how much more work, as a part of its own, the fullest instance must have than the emptiest one
	// before anything is moved.
	uneven = 1. / 16
	// most is the largest part of the difference that a moved bucket may have: a larger bucket would only make
	// another instance the fullest.
	most = .8
)

// ends returns the instances with most and with least work; of equal ones the first.
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

// ease moves buckets from the fullest instance to the emptiest: the bucket whose work is nearest to half of the
// difference, and more buckets if that one is much smaller than the difference. It returns how many it moved.
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

// Heaviest describes the fullest instance of a chain with seats, at the last Balance: the work of the instance and
// of its largest bucket. Both are 0 without seats.
func (in *Instances) Heaviest(chain int) (instance, bucket float32) {
	c := &in.chains[chain]
	if c.seats == nil || len(c.open) == 0 {
		return 0, 0
	}
	full, _ := in.ends(c)
	for k, r := range c.seats.region {
		if r == full {
			instance += c.seats.work[k]
			bucket = max(bucket, c.seats.work[k])
		}
	}
	return instance, bucket
}

// Spare reports whether a chain with seats could do without its emptiest instance: each of the others would have no
// more work than full. It counts the recent work of buckets, or that of a longer time, whichever is more, because the
// work of few flows varies by chance.
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

// leaveSeats removes an instance that takes no more packets from all buckets.
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
