// Package mirror copies chosen frames to another port, or to a collector behind an IP network, and lets
// all frames pass untouched.
//
//	a ─► frames ─► b        copy ─► frames, as they are (to=frames)
//	  ◄─        ◄─               ─► Ethernet IP UDP VXLAN frame (to=vxlan, RFC 7348)
//	                             ─► Ethernet IP GRE ERSPAN frame (to=erspan, type II)
//
// A copy is made of the frame as it came in. If there is no buffer for a copy, there is none, which is counted:
// no frame waits for its copy. Datagrams to the collector are never fragmented: a copy that would make one longer
// than mtu= is cut, as with snap=. ERSPAN's T bit says that a copy was cut. Its sequence number counts the copies
// of one worker, and its Index tells the direction (0: the frame came in at a, 1: at b).
package mirror

import (
	"net/netip"

	"github.com/quillon/quillon/nf/arg"
	"github.com/quillon/quillon/nf/counter"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/match"
	"github.com/quillon/quillon/nf/outer"
	"github.com/quillon/quillon/nf/packet"
)

const (
	reasonCopy graph.Reason = iota
	numReasons
)

var reasons = [numReasons]counter.Def{
	reasonCopy: {Name: "copy", Help: "made: a copy of a frame"},
}

const (
	ctrCopied counter.ID = iota
	ctrCut
	ctrUncopied
	numCounters
)

var counters = [numCounters]counter.Def{
	ctrCopied:   {Name: "copied", Help: "frames that were copied"},
	ctrCut:      {Name: "cut", Help: "of these, those whose copy is shorter (snap=, mtu=)"},
	ctrUncopied: {Name: "uncopied", Help: "frames for whose copy there was no buffer: they went on uncopied"},
}

// Values of to=: the headers in front of a copy.
const (
	toFrames = iota
	toVXLAN
	toERSPAN
)

type settings struct {
	match   match.Match `arg:"match" help:"frames that are copied: all, or terms that must all hold, of vlan, type, proto, src, dst, sport, dport, vni, qpn: dst:10.0.0.0/8+proto:6+dport:80-90"`
	on      int         `arg:"on" words:"a b both" help:"the port whose received frames are copied: a, b or both"`
	every   int         `arg:"every" range:"1..1e9" help:"copy one of so many of these frames"`
	snap    int         `arg:"snap" range:"14..65535" keep:"all" help:"bytes of a frame that are copied at most"` // 0: all
	to      int         `arg:"to" words:"frames vxlan erspan" help:"frames: as they are; vxlan or erspan: in datagrams to the collector at remote="`
	by      int         `arg:"by" words:"a b copy" help:"the output that copies leave by: copy, or that of side a or b"`
	local   netip.Addr  `arg:"local" help:"vxlan, erspan: source address of the datagrams, IPv4 or IPv6"`
	remote  netip.Addr  `arg:"remote" help:"vxlan, erspan: the collector's address"`
	from    [6]byte     `arg:"local-mac" help:"vxlan, erspan: source MAC address"`
	towards [6]byte     `arg:"remote-mac" help:"vxlan, erspan: the collector's MAC address, or that of the router to it"`
	vlan    uint16      `arg:"outer-vlan" range:"1..4094" keep:"none" help:"vxlan, erspan: VLAN of the datagrams"` // 0: none
	ttl     uint8       `arg:"ttl" range:"1..255" help:"vxlan, erspan: TTL or hop limit of the datagrams"`
	dscp    uint8       `arg:"dscp" range:"0..63" help:"vxlan, erspan: DSCP of the datagrams"`
	mtu     int         `arg:"mtu" range:"576..65535" help:"vxlan, erspan: the longest datagram; longer copies are cut"`
	vni     uint32      `arg:"vni" range:"0..2^24-1" help:"vxlan: the network identifier"`
	port    uint16      `arg:"udp-port" range:"1..65535" help:"vxlan: the collector's UDP port"`
	session uint16      `arg:"session" range:"0..1023" help:"erspan: the session"`
}

var arguments = arg.Declare("mirror", settings{on: 2, by: 2, every: 1, ttl: 64, mtu: 1500, port: hdr.PortVXLAN})

// Kind returns the declaration of the network function "mirror".
func Kind() *graph.Kind {
	return &graph.Kind{
		Name:    "mirror",
		Summary: "copies chosen frames to another port, or to a collector (VXLAN, ERSPAN)",
		Doc: `All frames pass untouched. Of those that match=, on= and every= choose, a copy leaves
by the output copy, or with by= by that of side a or b: as it came, or in a datagram to a
collector. Where there is no buffer for a copy, there is none; frames do not wait.

  quillon run --inline eth1,eth2 --nf mirror,match=proto:6+dport:80,to=erspan,by=b,session=7,local=10.0.0.1,remote=10.0.0.9,local-mac=02:00:00:00:00:01,remote-mac=02:00:00:00:00:09

In a spec, link the output copy to a port of its own:

  links: [pa -> mirror.a, mirror.b -> pb, pb -> mirror.b, mirror.a -> pa, mirror.copy -> monitor]

Datagrams are not fragmented: what would make one longer than mtu= is cut.`,
		In:       []string{"a", "b"},
		Out:      []string{"a", "b", "copy"},
		Params:   arguments.Params(),
		Counters: counters[:],
		Reasons:  reasons[:],
		New: func(_ graph.Env, args graph.Args) (graph.App, error) {
			s, err := parse(args)
			if err != nil {
				return nil, err
			}
			return newApp(s), nil
		},
	}
}

func parse(args graph.Args) (settings, error) {
	s, r := arguments.Read(args)
	if s.to == toFrames {
		for _, name := range []string{"local", "remote", "local-mac", "remote-mac", "outer-vlan", "ttl", "dscp", "mtu", "vni", "udp-port", "session"} {
			if r.Given(name) {
				r.Failf("%s= is for to=vxlan and to=erspan", name)
			}
		}
		return s, r.Err()
	}
	for _, name := range []string{"local", "remote", "local-mac", "remote-mac"} {
		r.Need(name, "both ends' addresses are given")
	}
	if s.local.Is4() != s.remote.Is4() {
		r.Failf("local= and remote= are not of the same family")
	}
	return s, r.Err()
}

type app struct {
	settings
	outer *outer.Header // nil: copies are as they came
	more  int           // bytes of headers behind outer
	skip  int           // frames until the next is copied
	seq   uint32
}

func newApp(s settings) *app {
	a := &app{settings: s}
	cfg := outer.Config{LocalMAC: s.from, RemoteMAC: s.towards, VLAN: s.vlan, Local: s.local, Remote: s.remote, TTL: s.ttl, Proto: hdr.ProtoUDP, Port: s.port}
	switch s.to {
	case toVXLAN:
		a.outer, a.more = outer.New(cfg), hdr.VXLANLen
	case toERSPAN:
		cfg.Proto = hdr.ProtoGRE
		a.outer, a.more = outer.New(cfg), hdr.GRESeqLen+hdr.ERSPANLen
	}
	return a
}

// Takes implements graph.Reconfigurer.
func (*app) Takes(graph.Args) bool { return true }

// Reconfigure implements graph.Reconfigurer. Sequence numbers continue.
func (a *app) Reconfigure(args graph.Args) error {
	s, err := parse(args)
	if err == nil {
		seq := a.seq
		*a = *newApp(s)
		a.seq = seq
	}
	return err
}

// Push implements graph.App.
func (a *app) Push(c *graph.Ctx, in int, b *packet.Batch) {
	for _, x := range b.Bufs() {
		if a.on == 2 || a.on == in {
			a.look(c, in, x)
		}
		c.Emit(1-in, x)
	}
}

// look copies frame x if match= and every= choose it.
func (a *app) look(c *graph.Ctx, in int, x *packet.Buf) {
	var l hdr.Layers
	if _ = hdr.Walk(x.Bytes(), &l); !a.match.Holds(x.Bytes(), &l) {
		return
	}
	if a.skip++; a.skip < a.every {
		return
	}
	a.skip = 0
	y := c.Copy(x)
	if y == nil || !a.fill(y, x.Bytes(), &l, in) {
		c.Count(ctrUncopied, 1)
		if y != nil {
			c.Discard(y)
		}
		return
	}
	c.Count(ctrCopied, 1)
	if y.Len() < x.Len()+a.wrap() {
		c.Count(ctrCut, 1)
	}
	c.Mark(y, packet.Generated, reasonCopy)
	c.Emit(a.by, y)
}

// wrap returns the number of bytes of headers in front of a copy.
func (a *app) wrap() int {
	if a.outer == nil {
		return 0
	}
	return a.outer.Len() + a.more
}

// fill makes y the copy of frame b, in which hdr.Walk found l, with headers in front. y must be as long as b.
// fill returns false if there is no room.
func (a *app) fill(y *packet.Buf, b []byte, l *hdr.Layers, in int) bool {
	n := len(b)
	if a.snap > 0 {
		n = min(n, a.snap)
	}
	if a.outer != nil {
		n = min(n, a.mtu-a.outer.IPLen()-a.more)
	}
	if !y.TrimBack(len(b) - n) {
		return false
	}
	copy(y.Bytes(), b[:n])
	if a.outer == nil {
		return true
	}
	p, ok := y.Prepend(a.wrap())
	if !ok {
		return false
	}
	h := p[a.outer.Len():]
	if a.to == toVXLAN {
		hdr.VXLAN(h).Encode(a.vni)
	} else {
		f := hdr.ERSPANFields{Tagged: l.Tags > 0, Truncated: n < len(b), Session: a.session, Index: uint32(in)}
		if f.Tagged {
			t := hdr.VLAN(b[hdr.EthernetLen:])
			f.VLAN, f.COS = t.VID(), t.PCP()
		}
		hdr.GRESeq(h).Encode(hdr.EtherERSPAN, a.seq)
		hdr.ERSPAN(h[hdr.GRESeqLen:]).Encode(&f)
		a.seq++
	}
	flow := uint32(0)
	if len(b) >= hdr.EthernetLen {
		flow = outer.Flow(b, l)
	}
	a.outer.Put(p, a.dscp<<2, flow)
	return true
}
