package sched

import "fmt"

// Instances knows which regions hold a chain, and to which of them a flow goes. For a chain with seats (Seat) the
// owner reports the work of flows (Want) and calls Balance to move flows.
type Instances struct {
	chains []chain
	odd    uint64 // multiplier of the hash of buckets
	queues *queues
}

type chain struct {
	tasks      int32   // while there are instances
	placed     int32   // instances
	open       []int32 // those that take packets, ascending
	only       int32   // that of open, if it is one; else none
	turn       int32   // of open, for RoundRobin and LeastLoaded
	seats      *seats  // nil: flows go by rendezvous
	head, tail int32   // headers that wait for an instance
	parked     int32
}

func (c *chain) setOpen(open []int32) {
	c.open, c.only = open, none
	if len(open) == 1 {
		c.only = open[0]
	}
}

func (in *Instances) checkRegion(region int) error {
	if region < 0 || region >= len(in.queues.regions) {
		return fmt.Errorf("sched: region %d: there are 0 to %d", region, len(in.queues.regions)-1)
	}
	return nil
}

// instance returns the region, or an error if it holds no chain.
func (in *Instances) instance(region int) (*region, error) {
	if err := in.checkRegion(region); err != nil {
		return nil, err
	}
	if in.queues.regions[region].chain == none {
		return nil, fmt.Errorf("sched: region %d holds no chain", region)
	}
	return &in.queues.regions[region], nil
}

// choose returns the region of an instance of a chain that takes packets, for the tasks in mask, or none.
func (in *Instances) choose(c *chain, spread Spread, flow uint64, mask uint16) int32 {
	switch len(c.open) {
	case 0:
		return none
	case 1:
		return c.open[0]
	}
	best := c.open[0]
	switch spread {
	case RoundRobin:
		c.turn++
		if int(c.turn) >= len(c.open) {
			c.turn = 0
		}
		best = c.open[c.turn]
	case LeastLoaded:
		// Of equal instances the one whose tasks have less to do is chosen, and then the next in turn, so that
		// all have the same work. By turns alone, two branches of a stage with two instances of their chain
		// would each always go to the same instance: in each instance one task would have all the work, and the
		// other none.
		if int(c.turn) >= len(c.open) {
			c.turn = 0
		}
		at := int(c.turn)
		for i, k := at, len(c.open); k > 0; k-- {
			x, y := &in.queues.regions[c.open[i]], &in.queues.regions[c.open[at]]
			if x.load < y.load || x.load == y.load && i != at && x.doing(mask) < y.doing(mask) {
				at = i
			}
			if i++; i == len(c.open) {
				i = 0
			}
		}
		best, c.turn = c.open[at], int32(at+1)
	default:
		if c.seats != nil {
			if r := c.seats.region[in.Bucket(flow)]; r != none {
				return r
			}
		}
		return rendezvous(c.open, flow)
	}
	return best
}

// rendezvous returns the region that has the greatest weight for a flow.
func rendezvous(open []int32, flow uint64) int32 {
	best, most := open[0], weight(flow, open[0])
	for _, r := range open[1:] {
		if w := weight(flow, r); w > most {
			best, most = r, w
		}
	}
	return best
}

// weight returns the weight of a region for a flow in rendezvous hashing.
func weight(flow uint64, region int32) uint64 {
	x := flow ^ uint64(region+1)*0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// park puts a header into the list of those that wait for an instance of a chain.
func (in *Instances) park(c *chain, h int32) {
	in.queues.headers[h].state = parked
	in.queues.add(h, &c.head, &c.tail)
	c.parked++
}

// unlink takes a header out of the list of those that wait for an instance of a chain.
func (in *Instances) unlink(c *chain, h int32) {
	in.queues.cut(h, &c.head, &c.tail)
	c.parked--
}
