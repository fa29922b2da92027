package firewall

import (
	"github.com/quillon/quillon/nf/flow"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
)

// The connections of a batch are searched in three steps (flow.Scout), each for all frames: gather, near, one.

// ask is what gather and near have found out about one frame of a batch.
type ask struct {
	way     uint8
	answer  bool     // it does not open a connection
	key     flow.Key // with connection
	hash    uint64
	place   int // where the connection may be
	seg     segment
	verdict verdict // with decided
}

// Values of ask.way: what has to be done for a frame.
const (
	connection = iota // look for its connection
	decided           // nothing
	quoting           // look at what the ICMP error quotes
	fragmented        // look for its datagram
)

// scout renews the scouts from the shards' tables, which may have been replaced when a state was loaded.
func (a *app) scout() {
	for i := range a.scouts {
		s := a.st.take(uint64(i))
		a.scouts[i] = s.conns.Scout()
		a.st.give(s)
	}
}

// near sets q.place to where the connection probably is.
func (a *app) near(q *ask) {
	if q.way == connection {
		q.place = a.scouts[q.hash&uint64(len(a.scouts)-1)].Near(q.hash)
	}
}

func (q *ask) decide(pass bool, r graph.Reason) { q.way, q.verdict = decided, verdict{pass, r} }

// gather finds out what has to be done for a frame that came in at input in. It changes nothing but q.
func (a *app) gather(in int, frame []byte, q *ask) {
	var d hdr.Layers
	switch end, proto, ok := hdr.Usual(frame); {
	case ok && proto == hdr.ProtoUDP:
		q.way, q.answer = connection, false
		q.key.Usual(frame, in == 1)
		q.hash = q.key.Hash(a.Seed)
	case ok:
		d.Usual(end, proto)
		a.whole(in, frame, &d, q)
	case !hdr.Walk(frame, &d) || d.Malformed():
		q.decide(false, reasonMalformed)
	case d.L3 != 0 && d.L4 != 0 && d.Family() == hdr.NetIPv6 && isExtension(d.Proto):
		q.decide(false, reasonMalformed) // what is behind it would not be seen
	case d.L3 == 0 && a.dropNonIP:
		q.decide(false, reasonOtherDropped)
	case d.L3 == 0:
		q.decide(true, reasonOther)
	case sourceRouted(frame[d.L3:d.End], d.Family()):
		q.decide(false, reasonRouted)
	case !d.Fragment:
		a.whole(in, frame, &d, q)
	case a.dropFragments:
		q.decide(false, reasonFragment)
	default:
		q.way = fragmented
	}
}

// whole is gather for a whole datagram, or for the first fragment of one.
func (a *app) whole(in int, frame []byte, d *hdr.Layers, q *ask) {
	l4 := frame[d.L4:d.End]
	if len(l4) < leastHeader(d.Proto) {
		q.decide(false, reasonMalformed)
		return
	}
	q.way, q.answer, q.place = connection, false, -1
	k := &q.key
	*k = flow.Key{Tag: d.VLANs()}
	k.Addrs(frame, d)
	switch {
	case d.Proto == hdr.ProtoTCP:
		if n := hdr.TCP(l4).HeaderLen(); n < hdr.TCPLen || n > len(l4) {
			q.decide(false, reasonMalformed)
			return
		}
		k.SrcPort, k.DstPort = be.Uint16(l4), be.Uint16(l4[2:])
		if q.seg = parseSegment(l4); !q.seg.possible() {
			q.decide(false, reasonFlags)
			return
		}
		q.seg.cut = d.Fragment
		q.answer = q.seg.flags != flagSYN && (a.strict || q.seg.flags&(flagSYN|flagRST) != 0)
	case d.Proto == hdr.ProtoUDP:
		k.SrcPort, k.DstPort = be.Uint16(l4), be.Uint16(l4[2:])
	case d.Proto == hdr.ProtoICMP && k.Family == hdr.NetIPv4, d.Proto == hdr.ProtoICMPv6 && k.Family == hdr.NetIPv6:
		typ := l4[0]
		if flow.IsError(k.Family, typ) {
			q.way = quoting
			return
		}
		if k.Family == hdr.NetIPv6 && isControl(typ) {
			q.decide(true, reasonControl)
			return
		}
		request, isAnswer, ok := flow.Query(k.Family, typ)
		if !ok {
			q.decide(false, reasonICMP)
			return
		}
		q.answer = isAnswer
		a.query(k, hdr.ICMP(l4).ID(), request, in, isAnswer)
	}
	if in == 1 {
		*k = k.Reversed()
	}
	q.hash = k.Hash(a.Seed)
}
