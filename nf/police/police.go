package police

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"github.com/quillon/quillon/nf/arg"
	"github.com/quillon/quillon/nf/counter"
	"github.com/quillon/quillon/nf/effect"
	"github.com/quillon/quillon/nf/flow"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/offload"
	"github.com/quillon/quillon/nf/packet"
)

// Reasons of police.
const (
	reasonNotIP graph.Reason = iota
	reasonMalformed
	reasonOther
	reasonMarked
	reasonDropped
	reasonFull
	numReasons
)

var reasons = [numReasons]counter.Def{
	reasonNotIP:     {Name: "not-ip", Help: "not an IP datagram: passed"},
	reasonMalformed: {Name: "malformed", Help: "a header contradicts itself or is cut short, or there are more than two VLAN tags: passed"},
	reasonOther:     {Name: "not-policed", Help: "received on a port that is not policed (on=): passed"},
	reasonMarked:    {Name: "marked", Help: "got another DSCP because of its colour"},
	reasonDropped:   {Name: "over-rate", Help: "dropped because of its colour"},
	reasonFull:      {Name: "flows-full", Help: "no room for a meter of its own: dropped (full=drop), or passed (full=pass)"},
}

// Counters of police.
const (
	ctrPackets  counter.ID = 0 // of each colour
	ctrBytes               = ctrPackets + counter.ID(numColours)
	ctrShared              = ctrBytes + counter.ID(numColours)
	ctrFlows               = ctrShared + 1
	numCounters            = ctrFlows + 1
)

var counters = func() []counter.Def {
	d := make([]counter.Def, numCounters)
	for c, name := range colourNames {
		d[int(ctrPackets)+c] = counter.Def{Name: name, Help: "packets that became " + name}
		d[int(ctrBytes)+c] = counter.Def{Name: name + "-bytes", Help: "IP bytes of packets that became " + name}
	}
	d[ctrShared] = counter.Def{Name: "shared", Help: "packets without a meter of their own that went through the common one (full=shared)"}
	d[ctrFlows] = counter.Def{Name: "flows", Help: "keys that got a meter"}
	return d
}()

// Kind returns the declaration of the network function "police".
func Kind() *graph.Kind {
	return &graph.Kind{
		Name:    "police",
		Summary: "colours packets by two token buckets, and marks or drops them by colour",
		Doc: `With pir= the two rate three colour marker of RFC 2698: red above the peak
rate, yellow above the committed rate, green otherwise. Without it the single
rate marker of RFC 2697: green within the committed burst, yellow within the
excess burst, red otherwise. With aware=af a packet never gets a better colour
than its DSCP says (AFx1 green, AFx2 yellow, AFx3 red, others green).

A colour's action is pass, drop, or dscp:N with a number or a name such as AF12,
CS1, EF: the DSCP is written and the IPv4 checksum adapted; ECN stays. Frames
that are no IP datagrams, or malformed, pass and are counted.

With per=src, dst or flow each key has a meter of its own. A meter whose buckets
are full again makes room for another key, and nothing is forgotten by that.
When there is no such place for a new key, full= says what happens. A packet counts
with the bytes of its IP datagram; the Ethernet header, and what a frame has behind
the datagram, do not count. Fragments are metered; with per=flow those of a datagram
share a meter without ports.

A TCP sender that loses the end of what is on its way waits for 200 ms or more
before it sends again. The tokens of that time must have room in the burst, or the
connection stays far below the rate: at 100 Mbit/s and a round trip of 0.2 ms it
got 95 % or more with bursts of 200 ms, and 13 % with 10 ms. A shaper (shape) does
without: it lets frames wait instead of dropping them.

  quillon run --inline eth1,eth2 --nf police,cir=100Mbit,pir=200Mbit,yellow=dscp:AF12
  quillon run --inline eth1,eth2 --nf police,cir=10Mbit,per=src,on=a`,
		In:       []string{"a", "b"},
		Out:      []string{"a", "b"},
		Params:   arguments.Params(),
		Counters: counters,
		Reasons:  reasons[:],
		Describe: describe,
		Decides:  decides,
		Effects:  graph.Always(effect.Effects{Reads: effect.Flow | effect.Length, Writes: effect.Encap | effect.IPOther, Drops: true, State: true}),
		New: func(_ graph.Env, args graph.Args) (graph.App, error) {
			s, err := parsePolice(args)
			if err != nil {
				return nil, err
			}
			p := &police{settings: s}
			p.chain()
			if s.per != perPort {
				p.table = flowTable{flow.New[flow.Key, meter](s.flows)}
			}
			return p, nil
		},
	}
}

// action is what is done to packets of a colour: they are dropped, marked with a DSCP, or passed.
type action struct {
	drop, mark bool
	dscp       uint8
}

// UnmarshalText reads pass, drop or dscp:N.
func (a *action) UnmarshalText(text []byte) (err error) {
	v := string(text)
	if d, ok := strings.CutPrefix(v, "dscp:"); ok {
		*a = action{mark: true}
		a.dscp, err = parseDSCP(d)
		return err
	}
	if v != "pass" && v != "drop" {
		return fmt.Errorf("want pass, drop or dscp:N")
	}
	*a = action{drop: v == "drop"}
	return nil
}

// MarshalText writes what UnmarshalText reads.
func (a *action) MarshalText() ([]byte, error) {
	switch {
	case a.mark:
		return fmt.Appendf(nil, "dscp:%d", a.dscp), nil
	case a.drop:
		return []byte("drop"), nil
	}
	return []byte("pass"), nil
}

// parseDSCP reads a number or a name of RFC 2474, 2597 or 3246.
func parseDSCP(v string) (uint8, error) {
	if n, err := strconv.ParseUint(v, 10, 6); err == nil {
		return uint8(n), nil
	}
	switch name := strings.ToUpper(v); {
	case name == "EF":
		return 46, nil
	case len(name) == 3 && name[:2] == "CS" && name[2] >= '0' && name[2] <= '7':
		return (name[2] - '0') * 8, nil
	case len(name) == 4 && name[:2] == "AF" && name[2] >= '1' && name[2] <= '4' && name[3] >= '1' && name[3] <= '3':
		return (name[2]-'0')*8 + (name[3]-'0')*2, nil
	}
	return 0, fmt.Errorf("want a DSCP from 0 to 63, CS0 to CS7, AF11 to AF43, or EF")
}

// precedence returns the colour that a DSCP stands for (RFC 2597 6).
func precedence(dscp uint8) colour {
	if class := dscp >> 3; dscp&1 == 0 && class >= 1 && class <= 4 {
		switch dscp >> 1 & 3 {
		case 2:
			return yellow
		case 3:
			return red
		}
	}
	return green
}

// full says what becomes of packets whose key has no room for a meter.
type full uint8

const (
	fullShared full = iota
	fullPass
	fullDrop
)

type settings struct {
	marker
	aware   bool               `arg:"aware" words:"no af" help:"no, or af: the colour that packets come with counts"`
	actions [numColours]action `arg:"green yellow red" help:"pass, drop or dscp:N"`
	on      inputs             `arg:"on" words:"a b both" help:"the port whose received packets are policed: a, b or both"`
	per     per                `arg:"per" words:"port src dst flow" help:"packets that share a meter: those of a port, src, dst or flow (5-tuple), in whatever VLAN"`
	flows   int                `arg:"flows" range:"1..2^22" help:"meters that there is room for; for another number all meters start anew"`
	offload bool               `arg:"offload" words:"off on" help:"on: frames of flows that other functions let cross in the kernel do so here, by the same meters, where one worker has them; off: all come here"`
	full    full               `arg:"full" words:"shared pass drop" help:"a key without room: shared (one meter for all such), pass or drop"`
	failing `arg:"fail" words:"open wait closed" help:"frames while the worker gets no processor, or has died: open (they cross as they are after 60 ms), wait (they wait for it for 1 s, and then cross), closed (they wait, and are dropped then)"`
}

var arguments = arg.Declare("police", settings{on: both, flows: 65536, actions: [numColours]action{red: {drop: true}}})

// inputs are the ports whose frames a function works on: a, b or both.
type inputs uint8

const both inputs = 2

func (i inputs) has(in int) bool { return i == both || int(i) == in }

// waitOfTCP is, in ms, the smallest retransmission time-out of Linux (TCP_RTO_MIN). A sender may be silent for so
// long, and a burst must have room for the tokens of that time.
const waitOfTCP = 200

func parsePolice(args graph.Args) (settings, error) {
	s, r := arguments.Read(args)
	switch {
	case s.pir.perSecond == 0:
		s.single = true
	case s.pir.packets != s.cir.packets:
		r.Failf("cir= and pir= must both be in bits or both in packets")
	case s.pir.perSecond < s.cir.perSecond:
		r.Failf("pir= is below cir=: the peak rate is the higher one")
	}
	s.cbs = cmp.Or(s.cbs, s.cir.burst(waitOfTCP))
	if s.pbs == 0 {
		s.pbs = s.cbs
		if !s.single {
			s.pbs = max(s.pbs, s.pir.burst(waitOfTCP))
		}
	}
	s.roomC, s.roomP = s.cir.room(s.cbs), s.cir.room(s.pbs)
	return s, r.Err()
}

// police is the instance of the function in one worker.
type police struct {
	settings
	ports  [2]meter // with per=port
	shared [2]meter // of keys without room
	table  flowTable
	begun  bool
	seed   uint64 // of the table
	led
}

// Takes implements graph.Reconfigurer: the number of meters, per= and the unit of the rates cannot change.
func (p *police) Takes(args graph.Args) bool {
	s, err := parsePolice(args)
	return err == nil && s.flows == p.flows && s.per == p.per && s.cir.packets == p.cir.packets
}

// Reconfigure implements graph.Reconfigurer. Tokens that a smaller burst has no room for are lost; a larger
// bucket fills with time.
func (p *police) Reconfigure(args graph.Args) error {
	s, err := parsePolice(args)
	if err != nil {
		return err
	}
	p.settings = s
	p.recall()
	p.chain()
	clamp := func(x *meter) { x.c, x.p = min(x.c, s.roomC), min(x.p, s.roomP) }
	for i := range 2 {
		clamp(&p.ports[i])
		clamp(&p.shared[i])
	}
	for i := p.table.Next(0); i >= 0; i = p.table.Next(i + 1) {
		clamp(&p.table.At(i).Val)
	}
	return nil
}

// Push implements graph.App.
func (p *police) Push(c *graph.Ctx, in int, b *packet.Batch) {
	if !p.begun {
		p.begun, p.seed = true, c.Rand().Uint64()
		m := p.fresh(c.Now())
		p.ports, p.shared = [2]meter{m, m}, [2]meter{m, m}
	}
	p.lead(c)
	for _, x := range b.Bufs() {
		p.one(c, in, x)
	}
}

func (p *police) one(c *graph.Ctx, in int, x *packet.Buf) {
	pass := func(r graph.Reason) {
		c.Mark(x, x.Verdict, r)
		c.Emit(1-in, x)
	}
	frame := x.Bytes()
	if !p.on.has(in) {
		if c.Drafted(x) {
			p.decide(c, in, x, offload.Metered{})
		}
		pass(reasonOther)
		return
	}
	var d hdr.Layers
	if !hdr.Walk(frame, &d) || d.Malformed() {
		pass(reasonMalformed)
		return
	}
	net := d.Family()
	if net == hdr.NetNone {
		pass(reasonNotIP)
		return
	}
	m := &p.ports[in]
	if p.per != perPort {
		key := p.per.key(frame, &d, in)
		var isNew bool
		if m, isNew = p.table.meter(p, &key, c.Now()); isNew {
			c.Count(ctrFlows, 1)
		}
		if m == nil {
			switch p.full {
			case fullDrop:
				c.Drop(x, reasonFull)
				return
			case fullPass:
				pass(reasonFull)
				return
			}
			m = &p.shared[in]
			c.Count(ctrShared, 1)
		}
	}
	ip, was := frame[d.L3:d.End], green
	if p.aware {
		was = precedence(tos(ip, net) >> 2)
	}
	got := p.coloured(m, c.Now(), len(ip), was)
	c.Count(ctrPackets+counter.ID(got), 1)
	c.Count(ctrBytes+counter.ID(got), uint64(len(ip)))
	c.Trace(x, 0, uint64(got), m.c/nano, m.p/nano)
	a, marked := p.actions[got], false
	if a.drop {
		c.Drop(x, reasonDropped)
		return
	}
	if marked = a.mark && setDSCP(ip, net, a.dscp); marked {
		c.Mark(x, packet.Rewritten, reasonMarked)
	}
	if c.Drafted(x) && p.lend(m) {
		p.decide(c, in, x, offload.Metered{Number: m.number, Gen: p.gens[m.number], Size: len(ip), Mark: marked, DSCP: a.dscp, Marked: uint16(reasonMarked), Dropped: uint16(reasonDropped)})
	}
	c.Emit(1-in, x)
}

// describe implements graph.Kind.Describe: it returns the text of a trace record.
func describe(app graph.App, _ uint16, args [4]uint64) string {
	if args[0] >= uint64(numColours) {
		return "no colour"
	}
	unit := "bits"
	if app.(*police).cir.packets {
		unit = "packets"
	}
	return fmt.Sprintf("%s; tokens left: %d and %d %s", colourNames[args[0]], args[1], args[2], unit)
}

// tos returns the octet of an IP header that has DSCP and ECN.
func tos(ip []byte, net uint8) uint8 {
	if net == hdr.NetIPv6 {
		return hdr.IPv6(ip).TrafficClass()
	}
	return hdr.IPv4(ip).TOS()
}

// setDSCP writes the DSCP and keeps ECN. It returns false if the DSCP was the same before. The ICRC of RoCE does
// not cover the DSCP.
func setDSCP(ip []byte, net, dscp uint8) bool {
	old := tos(ip, net)
	now := dscp<<2 | old&3
	if now == old {
		return false
	}
	offload.SetTOS(ip, now)
	return true
}
