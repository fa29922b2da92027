package aead

import (
	"net/netip"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/mtu"
	"github.com/quillon/quillon/nf/packet"
)

// tunnelTTL is the TTL of outer headers in tunnel mode.
const tunnelTTL = 64

// App is the instance of the function in one worker.
type App struct {
	store *store
	cfg   *config
	// nonce and aad are arguments of the cipher. They are fields, so that a call through an interface does not
	// allocate them.
	nonce [saltLen + ivLen]byte
	aad   [12]byte
	d     datagram // that is opened: a local one would be cleared for each
	// The last answers of cfg.out and cfg.in, because packets of one flow often come together.
	dst  netip.Addr
	sa   *sa // nil: none covers dst
	last *inSA

	teller mtu.Teller
}

// covering returns the SA with the longest prefix that contains dst, or nil if none does.
func (a *App) covering(dst netip.Addr) *sa {
	if dst != a.dst {
		a.dst = dst
		a.sa, _ = a.cfg.out.Lookup(dst)
	}
	return a.sa
}

// taking returns the inbound SA with that SPI, or nil if there is none.
func (a *App) taking(spi uint32) *inSA {
	if a.last == nil || a.last.sa.spi != spi {
		a.last = a.cfg.in[spi]
	}
	return a.last
}

// Ports.
const (
	plain = iota
	protected
)

// Push sends every frame to the other side, or drops it.
func (a *App) Push(c *graph.Ctx, in int, batch *packet.Batch) {
	for _, f := range batch.Bufs() {
		var r graph.Reason
		if in == plain {
			r = a.protect(c, f)
		} else {
			r = a.open(c, f)
		}
		switch r {
		case reasonOpened:
			a.lower(c, f)
		case reasonTooBig:
			var l hdr.Layers
			hdr.Walk(f.Bytes(), &l)
			a.teller.Tell(c, f, &l, a.cfg.inner(), plain, reasonTold)
		}
		switch {
		case r >= firstDropped:
			c.Drop(f, r)
			continue
		case r >= firstPassed:
			c.Mark(f, packet.Forwarded, r)
		default:
			c.Mark(f, packet.Rewritten, r)
		}
		c.Emit(1-in, f)
	}
}

// lower reduces the MSS option of a TCP SYN to what mss= says.
func (a *App) lower(c *graph.Ctx, f *packet.Buf) {
	if a.cfg.mss == (mtu.MSS{}) {
		return
	}
	b := f.Bytes()
	var l hdr.Layers
	if hdr.Walk(b, &l) && a.cfg.mss.Lower(b, &l) {
		c.Count(ctrMSS, 1)
	}
}

// seal encrypts b[from:len(b)-icvLen], which ends with the ESP trailer, in place;
// the ICV goes behind it. The ESP header is at from-ivLen-espLen.
func (a *App) seal(s *sa, b []byte, from int, seq uint64) {
	h := b[from-ivLen-espLen:]
	be.PutUint64(h, uint64(s.spi)<<32|seq&0xFFFFFFFF) // one store: it is read as one
	be.PutUint64(h[espLen:], s.iv0+seq)
	nonce, aad := a.params(s, h, seq)
	text := b[from : len(b)-icvLen]
	s.gcm.Seal(text[:0], nonce, text, aad)
}

// params returns the nonce and the associated data (RFC 4106 3, 4, 5) of a packet whose ESP header is at h. Both
// are valid until the next call.
func (a *App) params(s *sa, h []byte, seq uint64) (nonce, aad []byte) {
	copy(a.nonce[:], s.salt[:])
	copy(a.nonce[saltLen:], h[espLen:espLen+ivLen])
	if !s.esn {
		return a.nonce[:], h[:espLen]
	}
	copy(a.aad[:4], h)
	be.PutUint64(a.aad[4:], seq)
	return a.nonce[:], a.aad[:]
}

// pad returns the number of padding bytes behind n bytes, so that pad length and next header end on a multiple of
// 4 (RFC 4303 2.4).
func pad(n int) int { return -(n + trailerLen) & 3 }

// protect changes a packet that an SA covers into ESP. It returns the reason of what became of the frame.
func (a *App) protect(c *graph.Ctx, f *packet.Buf) graph.Reason {
	var d datagram
	b := f.Bytes()
	switch parse(b, &d) {
	case notIP:
		return reasonNotIP
	case malformed:
		return reasonMalformed
	}
	if d.neighbour(b) {
		return reasonNeighbour
	}
	s := a.covering(d.dst(b))
	switch {
	case s == nil && a.cfg.dropOther:
		return reasonOther
	case s == nil:
		return reasonNoSA
	case d.fragment && !a.cfg.tunnel:
		return reasonFragment
	}
	// The headers before the payload stay in front, or, in a tunnel, come behind the outer header.
	front, next, outer := d.body, d.proto, 0
	if a.cfg.tunnel {
		front, next, outer = d.l3, protoIPv4, a.cfg.outerLen()
		if d.v6 {
			next = protoIPv6
		}
	}
	n := d.end - front
	p := pad(n)
	tail := p + trailerLen + icvLen
	grow := outer + espLen + ivLen
	if d.end-d.l3+grow+tail > a.cfg.mtu {
		return reasonTooBig
	}
	f.TrimBack(len(b) - d.end) // Ethernet's padding
	a.lower(c, f)
	tos := d.tos(b)
	df := d.v6 || hdr.IPv4(b[d.l3:]).DF()
	was := f.Len()
	b, ok := f.Prepend(grow)
	if !ok {
		return reasonNoRoom
	}
	why, seq := reasonNoRoom, uint64(0)
	if b, ok = f.Append(tail); ok {
		seq, why = s.next(n, a.cfg.lifetime)
	}
	if seq == 0 { // who looks at what is dropped sees it as it came
		f.SetFrame(int(f.Off())+grow, was)
		return why
	}
	copy(b, b[grow:grow+front])
	from := grow + front
	for i := range p {
		b[from+n+i] = byte(i + 1)
	}
	b[from+n+p], b[from+n+p+1] = byte(p), next
	if a.cfg.tunnel {
		a.cfg.encapsulate(b, d.l3, tos, df, seq)
	} else {
		d.end = len(b)
		d.reshape(b, protoESP)
	}
	a.seal(s, b, from, seq)
	if c.Traced(f) {
		c.Trace(f, traceProtected, uint64(s.spi), seq, uint64(n))
	}
	return reasonProtected
}

// encapsulate writes a tunnel's outer header at offset l3, and the EtherType before it (RFC 4301 5.1.2, RFC 6040
// 4.1).
func (cfg *config) encapsulate(b []byte, l3 int, tos uint8, df bool, seq uint64) {
	if cfg.local.Is6() {
		be.PutUint16(b[l3-2:], hdr.EtherIPv6)
		hdr.IPv6(b[l3:]).Encode(&hdr.IPv6Fields{TrafficClass: tos, PayloadLen: uint16(len(b) - l3 - hdr.IPv6Len),
			NextHeader: protoESP, HopLimit: tunnelTTL, Src: cfg.local, Dst: cfg.remote})
		return
	}
	be.PutUint16(b[l3-2:], hdr.EtherIPv4)
	hdr.IPv4(b[l3:]).Encode(&hdr.IPv4Fields{TOS: tos, TotalLen: uint16(len(b) - l3), ID: uint16(seq), DF: df,
		TTL: tunnelTTL, Protocol: protoESP, Src: cfg.local, Dst: cfg.remote})
}

// open verifies and decrypts ESP of the app's own SAs. It returns the reason of what became of the frame.
func (a *App) open(c *graph.Ctx, f *packet.Buf) graph.Reason {
	d := &a.d
	b := f.Bytes()
	switch parse(b, d) {
	case notIP:
		return reasonNotIP
	case malformed:
		return reasonMalformed
	}
	if d.proto != protoESP || d.fragment {
		switch {
		case d.neighbour(b):
			return reasonNeighbour
		case d.fragment && (a.ours(b, d) || a.cfg.covered.Contains(d.src(b))):
			return reasonFragment
		case a.cfg.covered.Contains(d.src(b)):
			return reasonUnprotected
		}
		return reasonClear
	}
	n := d.end - d.body - espLen - ivLen - icvLen // of the ciphertext
	if n < -ivLen-icvLen {
		return reasonBadESP
	}
	h := b[d.body:d.end]
	s := a.taking(be.Uint32(h))
	if s == nil || a.cfg.tunnel && !a.ours(b, d) {
		return reasonUnknownSA
	}
	if n < trailerLen+2 || n%4 != 0 {
		return reasonBadESP
	}
	seq, ok := s.sa.expect(be.Uint32(h[4:]))
	if !ok {
		return reasonReplay
	}
	nonce, aad := a.params(s.sa, h, seq)
	text := h[espLen+ivLen:]
	text, err := s.sa.gcm.Open(text[:0], nonce, text, aad)
	if err != nil {
		s.sa.refuse()
		return reasonForged
	}
	if !s.sa.accept(seq, n) {
		return reasonReplay
	}
	p, next := int(text[n-2]), text[n-1]
	if p+trailerLen > n {
		return reasonBadPadding
	}
	n -= p + trailerLen
	for i, x := range text[n : n+p] {
		if int(x) != i+1 {
			return reasonBadPadding
		}
	}
	if next == hdr.ProtoNoNext {
		return reasonDummy
	}
	if c.Traced(f) {
		c.Trace(f, traceOpened, uint64(s.sa.spi), seq, uint64(n))
	}
	if a.cfg.tunnel {
		return a.decapsulate(f, s, d, text[:n], next)
	}
	if s.from.IsValid() && !s.covers(d.src(b)) {
		return reasonNotCovered
	}
	// The headers before the ESP header move up to the payload.
	const shrink = espLen + ivLen
	copy(b[shrink:], b[:d.body])
	d.end = d.body + n
	f.SetFrame(int(f.Off())+shrink, d.end)
	d.reshape(f.Bytes(), next)
	return reasonOpened
}

// ours reports whether the packet has the outer addresses of packets that come by the tunnel.
func (a *App) ours(b []byte, d *datagram) bool {
	return a.cfg.tunnel && d.dst(b) == a.cfg.local && d.src(b) == a.cfg.remote
}

// decapsulate makes f a frame of the inner packet, whose bytes are inner, if the packet is valid and covered by
// s.
func (a *App) decapsulate(f *packet.Buf, s *inSA, outer *datagram, inner []byte, next uint8) graph.Reason {
	b := f.Bytes()
	var d datagram
	var what sort
	var t uint16
	at := outer.body + espLen + ivLen
	switch end := at + len(inner); next {
	case protoIPv4:
		t, what = hdr.EtherIPv4, d.parse4(b[:end], at)
	case protoIPv6:
		t, what = hdr.EtherIPv6, d.parse6(b[:end], at)
	default:
		return reasonNotTunnel
	}
	if what != isIP {
		return reasonMalformed
	}
	if !s.covers(d.src(b)) {
		return reasonNotCovered
	}
	old := d.tos(b)
	ecn, ok := ecnOut(old, outer.tos(b))
	if !ok {
		return reasonECN
	}
	if ecn != old&3 {
		d.setTOS(b, old&^3|ecn)
	}
	shrink := at - outer.l3
	copy(b[shrink:], b[:outer.l3])
	f.SetFrame(int(f.Off())+shrink, d.end-shrink)
	be.PutUint16(f.Bytes()[outer.l3-2:], t)
	return reasonOpened
}
