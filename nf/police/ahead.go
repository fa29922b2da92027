package police

import (
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/counter"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/offload"
	"github.com/quillon/quillon/nf/packet"
)

// A meter of decided flows borrows a Meter from the kernel (package offload). The program uses that for the
// frames that it runs, and the function for the frames that come up; each takes it first. The entry of a flow
// only says which meters its directions use.

// led is the app's connection to the kernel.
type led struct {
	ahead   *offload.Table // nil: none
	of      []*meter       // by the number of what the kernel has lent
	gens    []uint32
	hand    int
	counted [numColours]offload.Counts // by the kernel, and by no counter yet
	chains  []offload.Flows            // of entries, by their flows: none has to do with one thing here alone
}

const numChains = 1 << 14

// chain allocates p.chains if frames may be decided.
func (p *police) chain() {
	if p.offload && p.chains == nil {
		p.chains = make([]offload.Flows, numChains)
	}
}

// decide adds a Part to the draft of frame x, which came in at port in and was measured by m.
func (p *police) decide(c *graph.Ctx, in int, x *packet.Buf, m offload.Metered) {
	var d hdr.Layers
	if !p.offload || p.ahead == nil || !hdr.Walk(x.Bytes(), &d) {
		return
	}
	k := perFlow.key(x.Bytes(), &d, 0)
	if in == 1 {
		k = k.Reversed()
	}
	hash := k.Hash(p.seed)
	c.Decide(x, offload.Part{Owner: p, Ref: uint32(hash % numChains), In: in, State: hash, Meter: m})
}

// Decides implements offload.Owner.
func (p *police) Decides(uint32) bool { return true }

// Flows implements offload.Owner.
func (p *police) Flows(ref uint32) *offload.Flows { return &p.chains[ref] }

// Used implements offload.Owner. It does nothing, because the meters have all that the kernel has done.
func (p *police) Used(uint32, *offload.Usage) {}

// lead has the app use the offload.Table that runs flows in front of the graph. The former Table has taken its
// Meters back.
func (p *police) lead(c *graph.Ctx) {
	if t := c.Ahead(); t != p.ahead {
		p.ahead, p.of, p.gens = t, nil, nil
		c.Wake(c.Now())
	}
}

// lend borrows a Meter from the kernel for x, if x has none yet, and returns false if x has none afterwards.
func (p *police) lend(x *meter) bool {
	if !p.offload || p.ahead == nil || x == &p.shared[0] || x == &p.shared[1] {
		return false
	}
	if x.number != 0 {
		return true
	}
	n, gen := p.ahead.Lend(p, func(m *offload.Meter) {
		m.At, m.C, m.P = p.ahead.KernelTime(x.at), x.c, x.p
		m.CIR, m.PIR, m.RoomC, m.RoomP = p.cir.perSecond, p.pir.perSecond, p.roomC, p.roomP
		for _, f := range [...]struct {
			is   bool
			flag uint32
		}{{p.single, offload.MeterSingle}, {p.cir.packets, offload.MeterPackets}, {p.aware, offload.MeterAware}} {
			if f.is {
				m.Flags |= f.flag
			}
		}
		for i, a := range p.actions {
			switch {
			case a.mark:
				m.Acts[i] = a.dscp
			case a.drop:
				m.Acts[i] = offload.ActDrop
			default:
				m.Acts[i] = offload.ActPass
			}
		}
	})
	if n == 0 {
		return false
	}
	for len(p.of) <= int(n) {
		p.of, p.gens = append(p.of, nil), append(p.gens, 0)
	}
	x.number, p.of[n], p.gens[n] = n, x, gen
	return true
}

// coloured is mark, for a meter that may have one of the kernel's.
func (p *police) coloured(x *meter, now clock.Time, size int, was colour) colour {
	if x.number == 0 {
		return p.mark(x, now, size, was)
	}
	m := p.ahead.Meter(x.number)
	m.Take()
	p.read(x, m)
	got := p.mark(x, now, size, was)
	m.At, m.C, m.P = p.ahead.KernelTime(x.at), x.c, x.p
	m.Give()
	return got
}

// read copies the buckets of the kernel's Meter m to x, and takes its counts. The caller has taken m.
func (p *police) read(x *meter, m *offload.Meter) {
	x.at, x.c, x.p = p.ahead.GraphTime(m.At), m.C, m.P
	for i := range m.Counts {
		p.counted[i].Packets += m.Counts[i].Packets
		p.counted[i].Bytes += m.Counts[i].Bytes
		m.Counts[i] = offload.Counts{}
	}
}

// load updates x from its kernel's Meter, if it has one.
func (p *police) load(x *meter) {
	if x.number != 0 {
		m := p.ahead.Meter(x.number)
		m.Take()
		p.read(x, m)
		m.Give()
	}
}

// Back implements offload.Meterer.
func (p *police) Back(n uint16, _ *offload.Meter) {
	x := p.of[n]
	p.load(x)
	x.number, p.of[n] = 0, nil
}

// give returns the kernel's Meter of x, if it has one.
func (p *police) give(x *meter) {
	if n := x.number; n != 0 {
		p.ahead.Return(n)
		p.Back(n, nil)
	}
}

// recall returns all Meters to the kernel.
func (p *police) recall() {
	for _, x := range p.of {
		if x != nil {
			p.give(x)
		}
	}
}

// every is the time between two Ticks that take counts from the kernel, and leastLooks the smallest number of
// meters that a Tick looks at. All meters are looked at within a second.
const (
	every      = 10 * time.Millisecond
	leastLooks = 64
)

// Tick implements graph.Ticker.
func (p *police) Tick(c *graph.Ctx) clock.Time {
	p.lead(c)
	for n := max(leastLooks, len(p.of)/100); n > 0; n-- {
		if p.hand++; p.hand >= len(p.of) {
			p.hand = 0
			break
		}
		if x := p.of[p.hand]; x != nil {
			p.load(x)
		}
	}
	p.count(c)
	if p.ahead == nil {
		return c.Now().Add(time.Second)
	}
	return c.Now().Add(every)
}

// count adds what the kernel has counted to the counters.
func (p *police) count(c *graph.Ctx) {
	for i := range p.counted {
		c.Count(ctrPackets+counter.ID(i), p.counted[i].Packets)
		c.Count(ctrBytes+counter.ID(i), p.counted[i].Bytes)
	}
	p.counted = [numColours]offload.Counts{}
}

// Held implements graph.Holder, and so does Stop: it counts what the kernel has run since the last Tick.
func (p *police) Held() int { return 0 }

// Stop implements graph.Holder.
func (p *police) Stop(c *graph.Ctx) {
	p.recall()
	p.count(c)
}

// decides implements graph.Kind.Decides.
func decides(args graph.Args) int {
	if s, err := parsePolice(args); err == nil && s.offload {
		return s.flows
	}
	return 0
}
