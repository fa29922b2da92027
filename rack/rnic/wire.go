package rnic

import (
	"encoding/binary"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
)

const (
	etherLen = 14
	ipv4Len  = 20
	ipv6Len  = 40
	udpLen   = 8
	hopLimit = 64
	// tosECT0 is what ConnectX-5 sends: ECN-capable transport (0).
	tosECT0 = 0x02
)

// template holds the headers of a queue pair's frames, up to and with the
// BTH. What differs from frame to frame is zero.
type template struct {
	head      [etherLen + ipv6Len + udpLen + hdr.BTHLen]byte
	size      int    // bytes of head in use
	ipSum     uint32 // sum of the IPv4 header as it stands in head
	frame     hdr.Frame
	peer4     [4]byte
	peer6     [16]byte
	transport hdr.Opcode
}

// sourcePort is the UDP source port of a connection: the flow label that
// Linux derives from the two queue pair numbers, the same in both directions.
func sourcePort(local, remote uint32) uint16 {
	v := uint64(local) * uint64(remote)
	v ^= v >> 20
	v ^= v >> 40
	return flowPort(uint32(v))
}

// flowPort is the UDP source port that Linux makes of a flow label (20 bits).
func flowPort(label uint32) uint16 { return 0xC000 | uint16(label&0x3FFF^label>>14&0x3F) }

// sourcePortUD is rxe's for datagrams: a multiplicative hash of the number.
func sourcePortUD(local uint32) uint16 { return 0xC000 | uint16(local*0x61C88647>>18) }

func (t *template) init(n *NIC, q *QP) {
	*t = template{}
	h, c := t.head[:], &n.cfg
	copy(h, q.conn.RemoteMAC[:])
	copy(h[6:], c.MAC[:])
	tos := byte(0)
	if c.Profile == ConnectX {
		tos = tosECT0
	}
	l4 := etherLen + ipv4Len
	ip := h[etherLen:]
	if n.ip4 {
		binary.BigEndian.PutUint16(h[12:], hdr.EtherIPv4)
		ip[0], ip[1], ip[6], ip[8], ip[9] = 0x45, tos, 0x40, hopLimit, 17
		src := c.IP.As4()
		copy(ip[12:], src[:])
		if q.Type != TypeUD {
			t.peer4 = q.conn.RemoteIP.As4()
			copy(ip[16:], t.peer4[:])
		}
		t.ipSum = uint32(sum16(ip[:ipv4Len], 0))
		t.frame.Net = hdr.NetIPv4
	} else {
		binary.BigEndian.PutUint16(h[12:], hdr.EtherIPv6)
		l4 = etherLen + ipv6Len
		binary.BigEndian.PutUint32(ip, 6<<28|uint32(tos)<<20)
		ip[6], ip[7] = 17, hopLimit
		src := c.IP.As16()
		copy(ip[8:], src[:])
		if q.Type != TypeUD {
			t.peer6 = q.conn.RemoteIP.As16()
			copy(ip[24:], t.peer6[:])
		}
		t.frame.Net = hdr.NetIPv6
	}
	port := sourcePort(q.QPN, q.conn.DestQPN)
	if q.conn.FlowLabel != 0 {
		port = flowPort(q.conn.FlowLabel)
	}
	if q.Type == TypeUD {
		port = sourcePortUD(q.QPN)
	}
	binary.BigEndian.PutUint16(h[l4:], port)
	binary.BigEndian.PutUint16(h[l4+2:], hdr.RoCEv2Port)
	bth := l4 + udpLen
	hdr.BTH(h[bth:]).Encode(&hdr.BTHFields{MigReq: c.Profile == ConnectX, PKey: 0xFFFF, DestQP: q.conn.DestQPN})
	t.size = bth + hdr.BTHLen
	t.frame.L3, t.frame.L4, t.frame.BTH = etherLen, uint16(l4), uint16(bth)
	switch q.Type {
	case TypeUC:
		t.transport = hdr.UC
	case TypeUD:
		t.transport = hdr.UD
	}
}

// begin writes the headers of a packet with ext bytes of extended headers and
// a payload, and returns the frame and what follows the BTH: extended headers,
// payload and pad (zeroed).
func (q *QP) begin(b *packet.Buf, op hdr.Opcode, psn uint32, ext, payload int) (p, body []byte) {
	t := &q.tmpl
	pad := -payload & 3
	n := ext + payload + pad
	p, ok := b.Append(t.size + n + hdr.ICRCLen)
	if !ok {
		panic("rnic: slot smaller than Connect allowed") // Connect checked the pool's slots
	}
	copy(p, t.head[:t.size])
	udp := udpLen + hdr.BTHLen + n + hdr.ICRCLen
	if t.frame.Net == hdr.NetIPv4 {
		total, id := uint16(ipv4Len+udp), q.nic.ipID
		q.nic.ipID++
		binary.BigEndian.PutUint16(p[etherLen+2:], total)
		binary.BigEndian.PutUint16(p[etherLen+4:], id)
		binary.BigEndian.PutUint16(p[etherLen+10:], ^fold(t.ipSum+uint32(total)+uint32(id)))
	} else {
		binary.BigEndian.PutUint16(p[etherLen+4:], uint16(udp))
	}
	binary.BigEndian.PutUint16(p[t.frame.L4+4:], uint16(udp))
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

// rnrMicros is the wait of an RNR NAK by its timer code, in microseconds
// (IBTA 9.7.5.2.8).
var rnrMicros = [32]int32{
	655360, 10, 20, 30, 40, 60, 80, 120, 160, 240, 320, 480, 640, 960, 1280, 1920,
	2560, 3840, 5120, 7680, 10240, 15360, 20480, 30720, 40960, 61440, 81920, 122880, 163840, 245760, 327680, 491520,
}

func rnrDelay(code uint8) clock.Duration { return clock.Duration(rnrMicros[code&31]) * 1000 }

// ackTimeout is 4.096 us * 2^code; 0 = none (IBTA 9.7.6.1.3).
func ackTimeout(code int) clock.Duration {
	if code == 0 {
		return 0
	}
	return clock.Duration(4096) << code
}

// bth is the BTH of a frame that begin made.
func (t *template) bth(p []byte) hdr.BTH { return hdr.BTH(p[t.frame.BTH:t.size]) }
