package clio

import (
	"encoding/binary"

	"github.com/quillon/quillon/nf/hdr"
)

// End is one end of a frame. Clio knows IPv4 only.
type End struct {
	MAC  [6]byte
	IP   [4]byte
	Port uint16
}

// Kind is what Parse finds.
type Kind uint8

const (
	// NotClio: of no concern, such as IPv6 or another port.
	NotClio Kind = iota
	// Fragment of an IP datagram from or to the port, or of unknown port.
	Fragment
	// Malformed: a length contradicts another, or the frame is cut short.
	Malformed
	// Control: an ACK or a NACK of go-back-N.
	Control
	// Other: a lego header that is not of the key/value store nor of sessions.
	Other
	// Message: of the key/value store or of sessions, whole.
	Message
)

// Frame is where Parse found things: offsets from the frame's first byte.
type Frame struct {
	hdr.Layers
	GBN  int // 0: none
	Lego int
	Op   int // what follows the lego header
	Data int // the value
	// Stop is the end of the UDP datagram; End, in Layers, that of IP's.
	Stop int
}

// Parse finds the headers of a frame, which may have VLAN tags. reliable says
// that there is a go-back-N header. Checksums are not looked at.
func Parse(b []byte, reliable bool, f *Frame) Kind {
	*f = Frame{}
	if !hdr.Walk(b, &f.Layers) || f.EtherType != hdr.EtherIPv4 || f.L3 == 0 || f.Proto != hdr.ProtoUDP {
		return NotClio
	}
	if f.Fragment {
		if f.L4 != 0 && f.End >= f.L4+4 && !ours(b[f.L4:]) {
			return NotClio
		}
		return Fragment
	}
	if f.End < f.L4+hdr.UDPLen {
		return NotClio
	}
	u := hdr.UDP(b[f.L4:f.End])
	if !ours(u) {
		return NotClio
	}
	n := int(u.Len())
	if n < hdr.UDPLen || n > len(u) {
		return Malformed
	}
	f.Stop, f.Lego = f.L4+n, f.L4+hdr.UDPLen
	if reliable {
		f.GBN = f.Lego
		f.Lego += GBNLen
		if f.Stop < f.Lego {
			return Malformed
		}
		switch GBN(b[f.GBN:]).Type() {
		case ACK, NACK:
			return Control
		case DATA:
		default:
			return Malformed
		}
	}
	f.Op = f.Lego + LegoLen
	if f.Stop < f.Op {
		return Malformed
	}
	h := Lego(b[f.Lego:])
	if int(h.Size()) != f.Stop-f.Lego {
		return Malformed
	}
	op, rest := h.Opcode(), f.Stop-f.Op
	switch {
	case op.OfSessions():
		f.Data = f.Op + SessionLen
		if rest < SessionLen {
			return Malformed
		}
	case !op.OfKeys():
		return Other
	case op.IsAnswer():
		f.Data = f.Op + AnswerLen
		if rest < AnswerLen {
			return Malformed
		}
		if op == Read.Answer() && h.Status() == OK && rest != AnswerLen+int(Answer(b[f.Op:]).ValueSize()) {
			return Malformed
		}
	default:
		f.Data = f.Op + RequestLen
		if rest < RequestLen {
			return Malformed
		}
		q := Request(b[f.Op:])
		if n := q.KeySize(); n == 0 || n > MaxKey {
			return Malformed
		}
		if (op == Create || op == Update) && rest != RequestLen+int(q.ValueSize()) {
			return Malformed
		}
	}
	return Message
}

// ParseKeys is Parse for who is on the way between clients and devices, in front of
// go-back-N: Message is a request of the key/value store to a device, or, with
// answers, an answer of one; all else that is whole is Other.
func ParseKeys(b []byte, answers bool, f *Frame) Kind {
	k := Parse(b, false, f)
	if k != Message {
		return k
	}
	u, op := hdr.UDP(b[f.L4:]), Lego(b[f.Lego:]).Opcode()
	device := u.DstPort()
	if answers {
		device = u.SrcPort()
	}
	if !op.OfKeys() || op.IsAnswer() != answers || device != Port {
		return Other
	}
	return Message
}

func ours(u []byte) bool {
	return hdr.UDP(u).DstPort() == Port || hdr.UDP(u).SrcPort() == Port
}

// Src and Dst are the ends of a parsed frame.
func (f *Frame) Src(b []byte) End {
	return End{[6]byte(b[6:12]), [4]byte(b[f.L3+12:]), hdr.UDP(b[f.L4:]).SrcPort()}
}

func (f *Frame) Dst(b []byte) End {
	return End{[6]byte(b[:6]), [4]byte(b[f.L3+16:]), hdr.UDP(b[f.L4:]).DstPort()}
}

// SetSrc and SetDst write an end; the checksums are left to Seal.
func (f *Frame) SetSrc(b []byte, e End) {
	copy(b[6:12], e.MAC[:])
	copy(b[f.L3+12:], e.IP[:])
	hdr.UDP(b[f.L4:]).SetSrcPort(e.Port)
}

func (f *Frame) SetDst(b []byte, e End) {
	copy(b[:6], e.MAC[:])
	copy(b[f.L3+16:], e.IP[:])
	hdr.UDP(b[f.L4:]).SetDstPort(e.Port)
}

// Swap exchanges source and destination: the frame goes back.
func (f *Frame) Swap(b []byte) {
	s, d := f.Src(b), f.Dst(b)
	f.SetSrc(b, d)
	f.SetDst(b, s)
}

// Summed reports whether the datagram has a UDP checksum.
func (f *Frame) Summed(b []byte) bool { return hdr.UDP(b[f.L4:]).Checksum() != 0 }

// sum is that of the pseudo-header and the datagram up to stop.
func (f *Frame) sum(b []byte, stop int) uint16 {
	be := binary.BigEndian
	s := uint32(hdr.ProtoUDP) + uint32(stop-f.L4)
	for i := f.L3 + 12; i < f.L3+20; i += 2 {
		s += uint32(be.Uint16(b[i:]))
	}
	return hdr.Checksum(b[f.L4:stop], s)
}

// Sound reports whether the checksums of IP and, if there is one, of UDP are
// right.
func (f *Frame) Sound(b []byte) bool {
	return hdr.IPv4(b[f.L3:]).ChecksumOK() && (!f.Summed(b) || f.sum(b, f.Stop) == 0)
}

// Seal sets lengths and checksums of a datagram that ends at stop; the frame has
// to end there, too. summed: with a UDP checksum.
func (f *Frame) Seal(b []byte, stop int, summed bool) {
	f.Stop, f.End = stop, stop
	ip, u := hdr.IPv4(b[f.L3:]), hdr.UDP(b[f.L4:])
	ip.SetTotalLen(uint16(stop - f.L3))
	ip.UpdateChecksum()
	u.SetLen(uint16(stop - f.L4))
	u.SetChecksum(0)
	if summed {
		s := f.sum(b, stop)
		if s == 0 {
			s = 0xFFFF
		}
		u.SetChecksum(s)
	}
}

// HeadersLen is the length of the headers below Clio's, without VLAN tags.
const HeadersLen = hdr.EthernetLen + hdr.IPv4Len + hdr.UDPLen

// Headers writes those of a frame from src to dst whose Clio part has n bytes,
// as Clio's own library does: id 0, DF, TTL 64. Seal completes them.
func Headers(b []byte, src, dst *End, n int) {
	e := hdr.Ethernet(b)
	e.SetDst(dst.MAC)
	e.SetSrc(src.MAC)
	e.SetEtherType(hdr.EtherIPv4)
	ip := b[hdr.EthernetLen:]
	clear(ip[:hdr.IPv4Len])
	ip[0], ip[6], ip[8], ip[9] = 0x45, 0x40, 64, hdr.ProtoUDP
	copy(ip[12:], src.IP[:])
	copy(ip[16:], dst.IP[:])
	hdr.IPv4(ip).SetTotalLen(uint16(hdr.IPv4Len + hdr.UDPLen + n))
	hdr.UDP(ip[hdr.IPv4Len:]).Encode(&hdr.UDPFields{SrcPort: src.Port, DstPort: dst.Port, Len: uint16(hdr.UDPLen + n)})
}

// Plain is where things are in a frame without VLAN tags and IP options.
func Plain(reliable bool) Frame {
	f := Frame{Layers: hdr.Layers{EtherType: hdr.EtherIPv4, Proto: hdr.ProtoUDP, Net: hdr.EthernetLen, L3: hdr.EthernetLen, L4: hdr.EthernetLen + hdr.IPv4Len}, Lego: HeadersLen}
	if reliable {
		f.GBN = HeadersLen
		f.Lego += GBNLen
	}
	f.Op = f.Lego + LegoLen
	return f
}

// Wrap makes room for a go-back-N header in front of the lego header of a frame
// without one; b begins GBNLen bytes before the frame. The header itself and
// Seal are the caller's.
func (f *Frame) Wrap(b []byte) {
	copy(b, b[GBNLen:GBNLen+f.Lego])
	f.GBN = f.Lego
	f.Lego += GBNLen
	f.Op += GBNLen
	f.Data += GBNLen
	f.Stop += GBNLen
	f.End += GBNLen
}

// Unwrap takes the go-back-N header away: the frame is b from GBNLen on. Seal is
// the caller's.
func (f *Frame) Unwrap(b []byte) {
	copy(b[GBNLen:], b[:f.GBN])
	f.Lego -= GBNLen
	f.Op -= GBNLen
	f.Data -= GBNLen
	f.Stop -= GBNLen
	f.End -= GBNLen
	f.GBN = 0
}

// AnswerEnd is where the frame of a request ends when it is made the answer with a
// value of n bytes.
func (f *Frame) AnswerEnd(n int) int { return f.Op + AnswerLen + n }

// Answer turns a request on a key into its answer. b has been cut, or grown, to
// AnswerEnd bytes.
func (f *Frame) Answer(b []byte, status Status, value []byte) {
	summed := f.Summed(b)
	f.Swap(b)
	h := Lego(b[f.Lego:])
	h.SetOpcode(h.Opcode().Answer())
	h.SetStatus(status)
	h.SetSize(uint16(len(b) - f.Lego))
	Answer(b[f.Op:]).Encode(Request(b[f.Op:]).KeySize(), uint16(len(value)))
	f.Data = f.Op + AnswerLen
	copy(b[f.Data:], value)
	f.Seal(b, len(b), summed)
}
