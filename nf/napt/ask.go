package napt

import (
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
)

// For usual frames that go outward, the probable places of mappings and sessions are searched for a whole batch
// at once (flow.Scout). The places are only guesses, and are checked before use.

// ask is what is known of a frame of a batch before its turn. Only usual frames (hdr.Usual) that go outward have
// one.
type ask struct {
	usual   bool
	key     private
	hash    uint64
	peer    peer // it goes to, without a mapping
	place   int  // where the mapping may be
	session int  // and the session
}

// scout renews the scouts from the shards' tables, which may have been replaced when a state was loaded.
func (a *app) scout() {
	for i := range a.st.shards {
		s := a.st.take(i)
		a.mappings[i], a.sessions[i] = s.mappings.Scout(), s.sessions.Scout()
		a.st.give(s)
	}
}

// ahead fills a.asks for the frames of a batch that came in at port in.
func (a *app) ahead(in int, bufs []*packet.Buf) {
	for i, x := range bufs {
		q := &a.asks[i]
		if q.usual = false; in == portA {
			a.gather(x.Bytes(), q)
		}
	}
	if in != portA {
		return
	}
	for i := range bufs {
		if q := &a.asks[i]; q.usual {
			n := a.st.shardOf(q.key.port)
			q.place = a.mappings[n].Near(q.hash)
			p := q.peer
			p.mapping = uint32(q.place)
			if p.kind = tcpSession; q.key.class == classUDP {
				if a.filter == byEndpoint {
					continue
				}
				a.permission(&p, classUDP)
			}
			q.session = a.sessions[n].Near(p.hash(a.Seed))
		}
	}
}

// gather fills q if b is a usual frame that has to be translated outward; only q.usual and what it needs are set.
func (a *app) gather(b []byte, q *ask) {
	end, proto, ok := hdr.Usual(b)
	if !ok {
		return
	}
	h := (*[hdr.UsualL4 + hdr.UDPLen]byte)(b)
	src, dst := be.Uint32(h[26:]), be.Uint32(h[30:])
	if src == 0 || !a.isPrivate(src) || local(dst) {
		return
	}
	class := uint16(classUDP)
	if proto == hdr.ProtoTCP {
		if class = classTCP; end < hdr.UsualL4+hdr.TCPLen {
			return
		}
	} else if be.Uint16(h[36:]) == hdr.RoCEv2Port {
		return
	}
	q.usual, q.session = true, -1
	q.key = private{addr: src, port: be.Uint16(h[34:]), class: class}
	q.hash = q.key.hash(a.Seed)
	q.peer = peer{addr: dst, port: be.Uint16(h[36:])}
}

// translate returns what becomes of a usual frame that goes outward, and rewrites it.
func (a *app) translate(c *graph.Ctx, b []byte, q *ask) verdict {
	flags := uint8(0)
	if q.key.class == classTCP {
		flags = hdr.TCP(b[hdr.UsualL4:]).Flags()
	}
	s := a.st.take(a.st.shardOf(q.key.port))
	m, r := a.opens(c, s, q, hdr.Ethernet(b).Src(), flags)
	if m == nil {
		a.st.give(s)
		return verdict{drop, r}
	}
	rewriteUsual(b, a.public[m.public], m.port)
	a.st.give(s)
	if a.ours(q.peer.addr) {
		var d hdr.Layers
		hdr.Walk(b, &d)
		host, r := a.inward(b, &d, int(q.key.class))
		if r != reasonIn {
			return verdict{drop, r}
		}
		a.frame(b, portA, portA, host)
		return verdict{portA, reasonHairpin}
	}
	if a.mac != [6]byte{} {
		hdr.Ethernet(b).SetSrc(a.mac)
	}
	return verdict{portB, reasonOut}
}
