package bed

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
)

// Packet is a RoCE packet as somebody writes it who need not tell the truth.
type Packet struct {
	SrcMAC, DstMAC [6]byte
	Src, Dst       netip.Addr
	SrcPort        uint16 // UDP; 0 = 0xC000
	TOS            byte
	V1             bool // RoCE v1: no UDP
	Op             hdr.Opcode
	QPN, PSN       uint32
	AckReq         bool
	Ext, Payload   []byte // extended headers, and what is behind them
}

// Bytes is the frame, with right lengths and checksums.
func (p Packet) Bytes() []byte {
	l3, udp, et := 20, hdr.UDPLen, uint16(hdr.EtherIPv4)
	switch {
	case p.V1:
		l3, udp, et = 40, 0, hdr.EtherRoCEv1
	case p.Src.Is6():
		l3, et = 40, hdr.EtherIPv6
	}
	pad := -len(p.Payload) & 3
	n := 14 + l3 + udp + hdr.BTHLen + len(p.Ext) + len(p.Payload) + pad + hdr.ICRCLen
	b := make([]byte, n)
	copy(b, p.DstMAC[:])
	copy(b[6:], p.SrcMAC[:])
	binary.BigEndian.PutUint16(b[12:], et)
	switch {
	case p.V1:
		hdr.GRH(b[14:]).Encode(&hdr.IPv6Fields{PayloadLen: uint16(n - 54), NextHeader: hdr.ProtoBTH, HopLimit: 64, TrafficClass: p.TOS, Src: netip.AddrFrom16(p.Src.As16()), Dst: netip.AddrFrom16(p.Dst.As16())})
	case p.Src.Is6():
		hdr.IPv6(b[14:]).Encode(&hdr.IPv6Fields{PayloadLen: uint16(n - 54), NextHeader: 17, HopLimit: 64, TrafficClass: p.TOS, Src: p.Src, Dst: p.Dst})
	default:
		hdr.IPv4(b[14:]).Encode(&hdr.IPv4Fields{TotalLen: uint16(n - 14), DF: true, TTL: 64, TOS: p.TOS, Protocol: 17, Src: p.Src, Dst: p.Dst})
	}
	u := b[14+l3:]
	if !p.V1 {
		binary.BigEndian.PutUint16(u, max(p.SrcPort, 0xC000))
		binary.BigEndian.PutUint16(u[2:], hdr.RoCEv2Port)
		binary.BigEndian.PutUint16(u[4:], uint16(n-14-l3))
	}
	u = u[udp:]
	hdr.BTH(u).Encode(&hdr.BTHFields{OpCode: p.Op, Pad: pad, PKey: 0xFFFF, DestQP: p.QPN, PSN: p.PSN & hdr.PSNMask, Ack: p.AckReq})
	copy(u[hdr.BTHLen:], p.Ext)
	copy(u[hdr.BTHLen+len(p.Ext):], p.Payload)
	var f hdr.Frame
	if hdr.Parse(b, &f) == hdr.IsRoCE { // otherwise nobody looks at the ICRC
		hdr.SetICRC(b, &f)
	}
	return b
}

// RETH is the extended header of a READ or a WRITE.
func RETH(va uint64, rkey, n uint32) []byte {
	h := hdr.RETH(make([]byte, hdr.RETHLen))
	h.SetVA(va)
	h.SetRKey(rkey)
	h.SetDMALength(n)
	return h
}

// AtomicETH is the extended header of a CAS or a FETCH-ADD.
func AtomicETH(va uint64, rkey uint32, swap, compare uint64) []byte {
	h := hdr.AtomicETH(make([]byte, hdr.AtomicETHLen))
	h.SetVA(va)
	h.SetRKey(rkey)
	h.SetSwap(swap)
	h.SetCompare(compare)
	return h
}

// Sender is a machine that sends frames as they are, and counts what it gets.
// It is a host.Endpoint.
type Sender struct {
	pool *packet.Pool
	due  []timed
	Got  int
	// Heard, if not nil, is given each frame that comes.
	Heard func(now clock.Time, b []byte)
}

type timed struct {
	at   clock.Time
	make func() []byte
}

// Send sends a frame at a time, behind those that were to be sent before.
func (s *Sender) Send(at clock.Time, b []byte) { s.At(at, func() []byte { return b }) }

// At is Send for a frame that is made when it is sent; nil: none is.
func (s *Sender) At(at clock.Time, f func() []byte) { s.due = append(s.due, timed{at, f}) }

// Sort puts what is to be sent in order of time.
func (s *Sender) Sort() {
	slices.SortStableFunc(s.due, func(a, b timed) int { return int(a.at.Sub(b.at)) })
}

// Left is how many frames are still to be sent.
func (s *Sender) Left() int { return len(s.due) }

// Input implements host.Endpoint.
func (s *Sender) Input(now clock.Time, b *packet.Buf) {
	s.Got++
	if s.Heard != nil {
		s.Heard(now, b.Bytes())
	}
	b.Put()
}

// Output implements host.Endpoint.
func (s *Sender) Output(now clock.Time, out *packet.Batch) {
	for len(s.due) > 0 && s.due[0].at <= now && !out.Full() {
		b := s.pool.Get()
		if b == nil {
			return
		}
		b.Verdict = packet.Generated
		if p := s.due[0].make(); p != nil && b.SetBytes(p) {
			out.Add(b)
		} else {
			b.Put()
		}
		s.due = s.due[1:]
	}
}

// Deadline implements host.Endpoint.
func (s *Sender) Deadline() clock.Time {
	if len(s.due) == 0 {
		return clock.Never
	}
	return s.due[0].at
}

// Tick implements host.Endpoint.
func (s *Sender) Tick(clock.Time) {}
