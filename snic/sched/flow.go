package sched

import (
	"fmt"
	"math/bits"
)

// order keeps the packets of each flow in their order of arrival.
type order struct {
	packets []packet
	flows   flows
	leaving ring    // packets, for Leave
	work    []int32 // packets whose predecessor got on
}

// flows is a hash table of the flows that have packets inside. A flow is identified by a hash, a
// tenant and a direction, so that flows of two tenants are never the same, whatever hashes they have.
type flows struct {
	first []int32 // of a bucket
	e     []flow
	free  []int32
	odd   uint64 // multiplier of the hash
	shift uint
}

type flow struct {
	hash       uint64
	tenant     int32
	back       bool
	head, tail int32 // packets that have not left, by arrival
	last       int32 // the last of those that are not finished
	next       int32 // in the bucket
	bucket     uint32
}

// newFlows makes a table for n flows, with at least twice as many buckets.
func newFlows(n int, seed uint64) flows {
	log := uint(bits.Len(uint(n)) + 1)
	f := flows{
		first: make([]int32, 1<<log), e: make([]flow, n), free: make([]int32, n),
		odd: (seed*0xd1342543de82ef95 + 0x9e3779b97f4a7c15) | 1, shift: 64 - log,
	}
	for i := range f.first {
		f.first[i] = none
	}
	for i := range f.free {
		f.free[i] = int32(n - 1 - i)
	}
	return f
}

func (f *flows) bucket(hash uint64, tenant int32) uint32 {
	x := (hash ^ uint64(tenant)<<40) * f.odd
	return uint32((x ^ x>>32) * f.odd >> f.shift)
}

// join makes a packet the last of its flow.
func (o *order) join(p int32) {
	f := &o.flows
	pk := &o.packets[p]
	k := f.bucket(pk.flow, pk.tenant)
	b := &f.first[k]
	for i := *b; i != none; i = f.e[i].next {
		e := &f.e[i]
		if e.hash != pk.flow || e.tenant != pk.tenant || e.back != pk.back {
			continue
		}
		pk.queue = i
		o.packets[e.tail].next = p
		e.tail = p
		if pk.before = e.last; e.last != none {
			o.packets[e.last].after = p
		}
		e.last = p
		return
	}
	i := f.free[len(f.free)-1]
	f.free = f.free[:len(f.free)-1]
	e := &f.e[i]
	e.hash, e.tenant, e.back, e.head, e.tail, e.last, e.next, e.bucket = pk.flow, pk.tenant, pk.back, p, p, p, *b, k
	*b = i
	pk.queue = i
}

// part is called when a packet is finished. It lets those packets of the flow leave that are finished
// and have no unfinished packet before them.
func (o *order) part(p int32) {
	f := &o.flows
	pk := &o.packets[p]
	e := &f.e[pk.queue]
	if pk.after == none {
		e.last = pk.before
	} else {
		o.packets[pk.after].before = pk.before
	}
	if pk.before != none {
		o.packets[pk.before].after = pk.after
	}
	pk.before, pk.after = none, none
	if e.head != p {
		return
	}
	for p != none && o.packets[p].finished {
		o.leaving.push(p)
		p = o.packets[p].next
	}
	if e.head = p; p != none {
		return
	}
	b := &f.first[e.bucket]
	for *b != pk.queue {
		b = &f.e[*b].next
	}
	*b = e.next
	f.free = append(f.free, pk.queue)
}

// wake puts the packet after pk in its flow on the work list if that packet is held, because pk has gone on.
func (o *order) wake(pk *packet) {
	if pk.after != none {
		o.look(pk.after)
	}
}

func (o *order) look(a int32) {
	if q := &o.packets[a]; q.held != 0 && !q.woken {
		q.woken = true
		o.work = append(o.work, a)
	}
}

// checkFlows returns an error if the table of flows and the packets do not agree.
func (o *order) checkFlows() error {
	known := 0
	for b := range o.flows.first {
		for i := o.flows.first[b]; i != none; i = o.flows.e[i].next {
			known++
			e := &o.flows.e[i]
			last, active := none, none
			for p := e.head; p != none; p = o.packets[p].next {
				pk := &o.packets[p]
				if !pk.inside || pk.queue != i || pk.flow != e.hash || pk.tenant != e.tenant || pk.back != e.back {
					return fmt.Errorf("sched: packet %d is in flow %d by mistake", p, i)
				}
				if last = p; pk.finished {
					continue
				}
				if pk.before != active || active != none && o.packets[active].after != p {
					return fmt.Errorf("sched: packet %d is behind %d, not %d", p, pk.before, active)
				}
				active = p
			}
			if o.packets[e.head].finished || last != e.tail || active != e.last {
				return fmt.Errorf("sched: flow %d ends with %d and %d, not %d and %d", i, last, active, e.tail, e.last)
			}
		}
	}
	if known+len(o.flows.free) != len(o.flows.e) {
		return fmt.Errorf("sched: %d flows are known, %d free, of %d", known, len(o.flows.free), len(o.flows.e))
	}
	return nil
}
