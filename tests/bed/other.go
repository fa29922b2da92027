package bed

import (
	"encoding/binary"
	"slices"

	"github.com/quillon/quillon/internal/rack/host"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/rack/rnic"
)

// Transports that hdr does not name: their opcodes' top three bits, and how many
// bytes follow the BTH before the headers that RC has too.
const (
	XRC hdr.Opcode = 0xA0 // IBTA annex A14: XRCETH
	DC  hdr.Opcode = 0xC0 // a manufacturer's dynamic connections; DCETH
)

// Other is a NIC that also executes FETCH-ADDs, CASes and short WRITEs that come in
// ways which rnic does not speak: XRC, DC, in IP fragments, and behind IPv6
// extension headers. Nobody is asked for rights, and nothing is answered: what
// they do to memory is what counts.
type Other struct {
	host.Endpoint
	// Regions are what they may reach.
	Regions func() []*rnic.MR
	// Only, if not 0: nothing is executed but for queue pairs from this number on,
	// and for each of them once.
	Only uint32
	once map[uint32]bool
	// Did, if not nil, is told of what was executed, by the number of the queue pair,
	// and of what the word was before.
	Did   func(qpn uint32, original uint64)
	parts map[uint16][]byte // of IPv4 packets in fragments: what has come of the payload, by identification
	Done  int
}

// Input implements host.Endpoint.
func (o *Other) Input(now clock.Time, b *packet.Buf) {
	var f hdr.Frame
	p := b.Bytes()
	why := hdr.Parse(p, &f)
	plain := why == hdr.IsRoCE && f.Op.Transport() == hdr.RC && (f.Net != hdr.NetIPv6 || p[f.L3+6] == hdr.ProtoUDP)
	if !plain && o.odd(p) {
		o.Done++
		b.Put()
		return
	}
	o.Endpoint.Input(now, b)
}

// odd executes what is in a frame, if anything is.
func (o *Other) odd(p []byte) bool {
	if len(p) < 14+20 {
		return false
	}
	var udp []byte
	switch ip := p[14:]; binary.BigEndian.Uint16(p[12:]) {
	case hdr.EtherIPv4:
		frag := binary.BigEndian.Uint16(ip[6:])
		total := min(int(binary.BigEndian.Uint16(ip[2:])), len(ip))
		if total < 20 {
			return false
		}
		if udp = ip[20:total]; frag&0x3FFF != 0 {
			if udp = o.whole(binary.BigEndian.Uint16(ip[4:]), int(frag&0x1FFF)*8, frag&0x2000 != 0, udp); udp == nil {
				return true
			}
		}
	case hdr.EtherIPv6:
		if len(ip) < 40 {
			return false
		}
		next, at := ip[6], 40
		for next == 0 || next == 60 { // hop-by-hop, destination options (RFC 8200 4.3, 4.6)
			if len(ip) < at+8 {
				return false
			}
			next, at = ip[at], at+8+8*int(ip[at+1])
		}
		if next != 17 || len(ip) < at {
			return false
		}
		udp = ip[at:]
	}
	if len(udp) < 8+hdr.BTHLen+hdr.AtomicETHLen || binary.BigEndian.Uint16(udp[2:]) != hdr.RoCEv2Port {
		return false
	}
	bth := udp[8:]
	op, rest, qpn := hdr.Opcode(bth[0]), bth[hdr.BTHLen:], hdr.BTH(bth).DestQP()
	if o.Only != 0 {
		if qpn < o.Only || o.once[qpn] {
			return false
		}
		if o.once == nil {
			o.once = map[uint32]bool{}
		}
		o.once[qpn] = true
	}
	switch op.Transport() {
	case XRC:
		rest = rest[4:]
	case DC:
		rest = rest[8:]
	}
	return o.execute(op&0x1F, qpn, rest)
}

// whole is the payload of a packet when all fragments are there, which come in
// order; nil before.
func (o *Other) whole(id uint16, at int, more bool, part []byte) []byte {
	if o.parts == nil {
		o.parts = map[uint16][]byte{}
	}
	if len(o.parts[id]) != at {
		return nil
	}
	o.parts[id] = append(o.parts[id], part...)
	if more {
		return nil
	}
	all := o.parts[id]
	delete(o.parts, id)
	return all
}

func (o *Other) execute(op hdr.Opcode, qpn uint32, b []byte) bool {
	if len(b) < hdr.RETHLen+8 {
		return false
	}
	at, key := binary.BigEndian.Uint64(b), binary.BigEndian.Uint32(b[8:])
	i := slices.IndexFunc(o.Regions(), func(m *rnic.MR) bool {
		return m.RKey == key && m.Valid() && m.VA <= at && at+8 <= m.VA+uint64(len(m.Mem))
	})
	if i < 0 {
		return false
	}
	word := o.Regions()[i].Mem[at-o.Regions()[i].VA:]
	now := binary.LittleEndian.Uint64(word)
	original := now
	switch op {
	case hdr.WriteOnly:
		now = binary.LittleEndian.Uint64(b[hdr.RETHLen:])
	case hdr.FetchAdd:
		now += hdr.AtomicETH(b).Swap()
	case hdr.CompareSwap:
		if a := hdr.AtomicETH(b); now == a.Compare() {
			now = a.Swap()
		}
	default:
		return false
	}
	binary.LittleEndian.PutUint64(word, now)
	if o.Did != nil {
		o.Did(qpn, original)
	}
	return true
}

// Fragments are an IPv4 frame in pieces of size bytes of payload, a multiple of 8.
func Fragments(frame []byte, id uint16, size int) (out [][]byte) {
	head, body := frame[:34], frame[34:]
	for at := 0; at < len(body); at += size {
		end := min(at+size, len(body))
		p := append(slices.Clone(head), body[at:end]...)
		ip := hdr.IPv4(p[14:])
		ip.SetTotalLen(uint16(20 + end - at))
		binary.BigEndian.PutUint16(p[18:], id)
		more := uint16(0)
		if end < len(body) {
			more = 0x2000
		}
		binary.BigEndian.PutUint16(p[20:], more|uint16(at/8))
		ip.UpdateChecksum()
		out = append(out, p)
	}
	return out
}

// Extended is an IPv6 frame with an extension header in front of UDP: kind 0
// (hop-by-hop) or 60 (destination options), of eight bytes of padding.
func Extended(frame []byte, kind byte) []byte {
	p := slices.Insert(slices.Clone(frame), 54, frame[20], 0, 1, 4, 0, 0, 0, 0)
	p[20] = kind
	binary.BigEndian.PutUint16(p[18:], binary.BigEndian.Uint16(frame[18:])+8)
	var f hdr.Frame
	if hdr.Parse(p, &f) == hdr.IsRoCE {
		hdr.SetICRC(p, &f)
	}
	return p
}

// Spy stands between a NIC and its cable. Each function may change the frame, and
// is nil where nothing is to be seen.
type Spy struct {
	host.Endpoint
	// In sees what comes to the NIC, and Out what it sends.
	In, Out func(now clock.Time, b []byte)
	// Lose reports that a frame that comes is lost, and LoseOut that one is that the NIC sends.
	Lose, LoseOut func(b []byte) bool
	// Also, by time, is sent in front of what the NIC sends, from Pool.
	Also []timed
	Pool *packet.Pool
}

// Input implements host.Endpoint.
func (s *Spy) Input(now clock.Time, b *packet.Buf) {
	if s.Lose != nil && s.Lose(b.Bytes()) {
		b.Put()
		return
	}
	if s.In != nil {
		s.In(now, b.Bytes())
	}
	s.Endpoint.Input(now, b)
}

// Output implements host.Endpoint.
func (s *Spy) Output(now clock.Time, out *packet.Batch) {
	for len(s.Also) > 0 && s.Also[0].at <= now && !out.Full() {
		b := s.Pool.Get()
		if b == nil {
			break
		}
		b.Verdict = packet.Generated
		if b.SetBytes(s.Also[0].make()) {
			out.Add(b)
		} else {
			b.Put()
		}
		s.Also = s.Also[1:]
	}
	before := out.Len()
	s.Endpoint.Output(now, out)
	for _, b := range out.Bufs()[before:] {
		if s.Out != nil {
			s.Out(now, b.Bytes())
		}
	}
	if s.LoseOut == nil {
		return
	}
	all := slices.Clone(out.Bufs())
	out.Reset()
	for i, b := range all {
		if i >= before && s.LoseOut(b.Bytes()) {
			b.Put()
		} else {
			out.Add(b)
		}
	}
}

// Send has a frame be sent in front of what the NIC sends, behind those that were to be sent before.
func (s *Spy) Send(at clock.Time, b []byte) {
	s.Also = append(s.Also, timed{at, func() []byte { return b }})
}

// Deadline implements host.Endpoint.
func (s *Spy) Deadline() clock.Time {
	if len(s.Also) > 0 {
		return min(s.Endpoint.Deadline(), s.Also[0].at)
	}
	return s.Endpoint.Deadline()
}

// ECN is the congestion bits of a RoCEv2 frame's IP header, and SetECN sets them
// (RFC 3168): 0 not capable, 1 and 2 capable, 3 congestion experienced. Neither
// changes the ICRC, which does not cover them.
func ECN(p []byte) byte {
	if binary.BigEndian.Uint16(p[12:]) == hdr.EtherIPv6 {
		return p[15] >> 4 & 3
	}
	return p[15] & 3
}

// SetECN sets the congestion bits.
func SetECN(p []byte, v byte) {
	if binary.BigEndian.Uint16(p[12:]) == hdr.EtherIPv6 {
		p[15] = p[15]&^0x30 | v<<4
		return
	}
	p[15] = p[15]&^3 | v
	hdr.IPv4(p[14:]).UpdateChecksum()
}
