package rnic

import (
	"encoding/binary"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
)

const (
	etherLen = 14
	tagLen   = hdr.VLANLen
	ipv4Len  = 20
	ipv6Len  = 40
	udpLen   = 8
	hopLimit = 64
	// maxExt is the size of the extended headers of WRITE ONLY with immediate;
	// no other packet with a payload has more.
	maxExt = hdr.RETHLen + hdr.ImmDtLen
)

// template holds the headers of a queue pair's frames, up to and including the
// BTH. Fields that differ from frame to frame are zero.
type template struct {
	head      [etherLen + tagLen + ipv6Len + udpLen + hdr.BTHLen]byte
	size      int    // bytes of head in use
	ipSum     uint32 // sum of the IPv4 header in head
	frame     hdr.Frame
	peer4     [4]byte
	peer6     [16]byte // with RoCE v1: the peer's GID
	vid       uint16
	transport hdr.Opcode
}

// sourcePort returns the UDP source port that Linux derives, by a flow label, from the two queue
// pair numbers of a connection. It is the same in both directions.
func sourcePort(local, remote uint32) uint16 {
	v := uint64(local) * uint64(remote)
	v ^= v >> 20
	v ^= v >> 40
	return flowPort(uint32(v))
}

// flowPort returns the UDP source port that Linux makes of a flow label (20 bits).
func flowPort(label uint32) uint16 { return 0xC000 | uint16(label&0x3FFF^label>>14&0x3F) }

// sourcePortUD returns rxe's UDP source port for datagrams: a multiplicative hash of the sender's QPN.
func sourcePortUD(local uint32) uint16 { return 0xC000 | uint16(local*0x61C88647>>18) }

// init makes the headers of q's frames for a connection with attributes c. It changes nothing but t.
func (t *template) init(q *QP, c *Conn, look Link) {
	*t = template{vid: look.Tag.VID}
	h, cfg := t.head[:], &q.nic.cfg
	copy(h, c.RemoteMAC[:])
	copy(h[6:], cfg.MAC[:])
	at := etherLen
	if look.Tag.On {
		binary.BigEndian.PutUint16(h[12:], hdr.EtherVLAN)
		binary.BigEndian.PutUint16(h[14:], uint16(look.Tag.PCP)<<13|look.Tag.VID)
		at += tagLen
	}
	t.frame.L3 = uint16(at)
	at = t.network(q, c, look)
	if !look.RoCEv1 {
		t.frame.L4 = uint16(at)
		binary.BigEndian.PutUint16(h[at:], q.sourcePort(c))
		binary.BigEndian.PutUint16(h[at+2:], hdr.RoCEv2Port)
		at += udpLen
	}
	hdr.BTH(h[at:]).Encode(&hdr.BTHFields{MigReq: cfg.Profile == ConnectX, PKey: 0xFFFF, DestQP: c.DestQPN})
	t.size = at + hdr.BTHLen
	t.frame.BTH = uint16(at)
	switch q.Type {
	case TypeUC:
		t.transport = hdr.UC
	case TypeUD:
		t.transport = hdr.UD
	}
}

// network writes the Ethernet type and the network header at t.frame.L3, and
// returns where it ends.
func (t *template) network(q *QP, c *Conn, look Link) int {
	n, l3 := q.nic, int(t.frame.L3)
	ip, tos := t.head[l3:], look.ECN.bits(n.cfg.Profile)
	if n.ip4 && !look.RoCEv1 {
		t.frame.Net = hdr.NetIPv4
		binary.BigEndian.PutUint16(t.head[l3-2:], hdr.EtherIPv4)
		ip[0], ip[1], ip[6], ip[8], ip[9] = 0x45, tos, 0x40, hopLimit, 17
		src := n.cfg.IP.As4()
		copy(ip[12:], src[:])
		if q.Type != TypeUD {
			t.peer4 = c.RemoteIP.As4()
			copy(ip[16:], t.peer4[:])
		}
		t.ipSum = uint32(sum16(ip[:ipv4Len], 0))
		return l3 + ipv4Len
	}
	t.frame.Net = hdr.NetIPv6
	kind, next := uint16(hdr.EtherIPv6), byte(17)
	if look.RoCEv1 {
		t.frame.Net = hdr.NetGRH
		kind, next = hdr.EtherRoCEv1, hdr.ProtoBTH
	}
	binary.BigEndian.PutUint16(t.head[l3-2:], kind)
	binary.BigEndian.PutUint32(ip, 6<<28|uint32(tos)<<20)
	ip[6], ip[7] = next, hopLimit
	src := n.cfg.IP.As16()
	copy(ip[8:], src[:])
	if q.Type != TypeUD {
		t.peer6 = c.RemoteIP.As16()
		copy(ip[24:], t.peer6[:])
	}
	return l3 + ipv6Len
}

// sourcePort returns the UDP source port of the queue pair's frames, with attributes c.
func (q *QP) sourcePort(c *Conn) uint16 {
	switch {
	case q.Type == TypeUD:
		return sourcePortUD(q.QPN)
	case c.FlowLabel != 0:
		return flowPort(c.FlowLabel)
	}
	return sourcePort(q.QPN, c.DestQPN)
}

// begin writes the headers of a packet with ext bytes of extended headers and payload bytes
// of payload into b. It returns the frame, and the part behind the BTH: extended headers,
// payload and pad. Only the pad is zeroed there; the caller writes the rest, and then calls finish.
func (q *QP) begin(b *packet.Buf, op hdr.Opcode, psn uint32, ext, payload int) (p, body []byte) {
	t := &q.tmpl
	pad := -payload & 3
	n := ext + payload + pad
	p, ok := b.Append(t.size + n + hdr.ICRCLen)
	if !ok {
		panic("rnic: slot smaller than Connect allowed") // Connect checked the pool's slots
	}
	copy(p, t.head[:t.size])
	size := hdr.BTHLen + n + hdr.ICRCLen
	if t.frame.L4 != 0 {
		size += udpLen
		binary.BigEndian.PutUint16(p[t.frame.L4+4:], uint16(size))
	}
	l3 := p[t.frame.L3:]
	if t.frame.Net == hdr.NetIPv4 {
		total, id := uint16(ipv4Len+size), q.nic.ipID
		q.nic.ipID++
		binary.BigEndian.PutUint16(l3[2:], total)
		binary.BigEndian.PutUint16(l3[4:], id)
		binary.BigEndian.PutUint16(l3[10:], ^fold(t.ipSum+uint32(total)+uint32(id)))
	} else {
		binary.BigEndian.PutUint16(l3[4:], uint16(size))
	}
	h := p[t.frame.BTH:]
	h[0] = byte(op | t.transport)
	h[1] |= byte(pad) << 4
	binary.BigEndian.PutUint32(h[8:], psn)
	body = h[hdr.BTHLen : hdr.BTHLen+n]
	clear(body[ext+payload:])
	return p, body
}

// finish writes the ICRC.
func (q *QP) finish(p []byte) {
	f := &q.tmpl.frame
	f.End = uint16(len(p) - hdr.ICRCLen)
	hdr.SetICRC(p, f)
}

func fold(s uint32) uint16 {
	s = s>>16 + s&0xFFFF
	s += s >> 16
	return uint16(s)
}

// gather copies bytes of a scattered message, from offset off, into dst.
func gather(dst []byte, sgl [][]byte, off int) {
	for _, s := range sgl {
		if off >= len(s) {
			off -= len(s)
			continue
		}
		k := copy(dst, s[off:])
		dst, off = dst[k:], 0
		if len(dst) == 0 {
			return
		}
	}
}

// scatter copies src into the bytes of a scattered message from offset off.
func scatter(sgl [][]byte, off int, src []byte) {
	for _, s := range sgl {
		if off >= len(s) {
			off -= len(s)
			continue
		}
		k := copy(s[off:], src)
		src, off = src[k:], 0
		if len(src) == 0 {
			return
		}
	}
}

// rnrMicros holds the wait after an RNR NAK, in microseconds, by its timer code
// (IBTA 9.7.5.2.8).
var rnrMicros = [32]int32{
	655360, 10, 20, 30, 40, 60, 80, 120, 160, 240, 320, 480, 640, 960, 1280, 1920,
	2560, 3840, 5120, 7680, 10240, 15360, 20480, 30720, 40960, 61440, 81920, 122880, 163840, 245760, 327680, 491520,
}

func rnrDelay(code uint8) clock.Duration { return clock.Duration(rnrMicros[code&31]) * 1000 }

// ackTimeout returns 4.096 us * 2^code, or 0 (no timeout) for code 0 (IBTA 9.7.6.1.3).
func ackTimeout(code int) clock.Duration {
	if code == 0 {
		return 0
	}
	return clock.Duration(4096) << code
}

// bth returns the BTH of a frame that begin made.
func (t *template) bth(p []byte) hdr.BTH { return hdr.BTH(p[t.frame.BTH:t.size]) }
