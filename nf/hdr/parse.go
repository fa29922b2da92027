package hdr

// Why says why Parse stopped. RoCE (zero) means that the transport was found.
type Why uint8

const (
	// IsRoCE: a BTH with a known opcode and all its headers was found.
	IsRoCE Why = iota
	// NotRoCE: a well-formed frame of something else.
	NotRoCE
	// Truncated: a header does not fit in the frame.
	Truncated
	// BadLength: length fields contradict the frame or each other.
	BadLength
	// BadIP: version or header length is wrong.
	BadIP
	// Fragment of an IP datagram: the transport cannot be seen as a whole.
	Fragment
	// DeepTags: more VLAN tags than MaxTags.
	DeepTags
	// UnknownOpcode: a BTH whose opcode is not in the table.
	UnknownOpcode
	// BadVersion: a BTH whose transport version is not 0.
	BadVersion
	NumWhy
)

var whyNames = [NumWhy]string{"roce", "not-roce", "truncated", "bad-length", "bad-ip", "fragment", "deep-tags", "unknown-opcode", "bad-tver"}

func (w Why) String() string {
	if w < NumWhy {
		return whyNames[w]
	}
	return "why?"
}

// MaxTags is the number of VLAN tags that Parse steps over (802.1ad: two).
const MaxTags = 2

// Ethernet types.
const (
	EtherIPv4   = 0x0800
	EtherARP    = 0x0806
	EtherVLAN   = 0x8100
	EtherIPv6   = 0x86DD
	EtherQinQ   = 0x88A8
	EtherRoCEv1 = 0x8915
)

// Kinds of network layer under a BTH.
const (
	NetNone uint8 = iota
	NetIPv4
	NetIPv6
	NetGRH // RoCE v1: an IPv6-shaped global route header, no UDP
)

// Frame is where Parse found things: offsets from the frame's first byte.
// Offsets of what was not reached are 0.
type Frame struct {
	Why  Why
	Net  uint8  // NetIPv4, NetIPv6, NetGRH
	Tags uint8  // VLAN tags stepped over
	Op   Opcode // valid when BTH != 0
	L3   uint16 // network header
	L4   uint16 // UDP header; 0 for RoCE v1
	BTH  uint16
	// Payload is the first byte after all extended headers; End the first
	// byte of the ICRC, so End-Pad is the payload's end.
	Payload, End uint16
	Pad          uint8
	// Plain: RoCE (Why is IsRoCE) over IPv4 without tags and options. So L3, L4 and BTH
	// are those of most frames: see PlainBTH.
	Plain bool
}

// PlainBTH is Frame.BTH of a frame that is Plain.
const PlainBTH = EthernetLen + IPv4Len + UDPLen

// ext is the offset of extended header i (bit i of Ext); the opcode must have it.
// It is added up in 16 bits, so that the compiler sees that the header does not end in front of its begin.
func (f *Frame) ext(i int) int { return int(f.BTH + BTHLen + uint16(opTable[f.Op].off[i])) }

// The headers of a parsed frame. The caller knows from Net, or from the opcode,
// that the header is there.
func (f *Frame) EthernetOf(b []byte) Ethernet { return Ethernet(b[:EthernetLen]) }

// VLANOf is tag i, the outermost first; i < f.Tags.
func (f *Frame) VLANOf(b []byte, i int) VLAN {
	o := EthernetLen + i*VLANLen
	return VLAN(b[o : o+VLANLen])
}

// VIDs is the IDs of the VLANs that a frame is in, by its first n tags, as one number: 12 bits each, the outermost first. A priority
// tag has no ID. It is 0 for a frame in no VLAN.
func VIDs(b []byte, n uint8) (ids uint32) {
	for i := range int(n) {
		if v := VLAN(b[EthernetLen+i*VLANLen:]).VID(); v != 0 {
			ids = ids<<12 | uint32(v)
		}
	}
	return ids
}

// HopsOf is the TTL, or the hop limit, of parsed frame b.
func (f *Frame) HopsOf(b []byte) uint8 {
	if f.Net == NetIPv4 {
		return b[f.L3+8]
	}
	return b[f.L3+7]
}

// IPv4Of is the header with its options.
func (f *Frame) IPv4Of(b []byte) IPv4 {
	h := IPv4(b[f.L3:])
	return h[:h.HeaderLen()]
}

// PlainIPv4Of is the header without options.
func (f *Frame) PlainIPv4Of(b []byte) *[IPv4Len]byte {
	o := int(f.L3)
	return (*[IPv4Len]byte)(b[o : o+IPv4Len : o+IPv4Len])
}

// ChecksumOK reports whether the checksum of the network header is right, if it
// has one.
func (f *Frame) ChecksumOK(b []byte) bool {
	switch {
	case f.Net != NetIPv4:
		return true
	case f.L4-f.L3 == IPv4Len:
		return plainSumOK(f.PlainIPv4Of(b))
	}
	return f.IPv4Of(b).ChecksumOK()
}

// Flaw is what is wrong with the check sums of a frame.
type Flaw uint8

const (
	NoFlaw Flaw = iota
	// BadChecksum: that of the network header.
	BadChecksum
	// BadICRC: the invariant CRC.
	BadICRC
)

// Headers end where their capacity does: the compiler then has no empty one to think of.
func (f *Frame) IPv6Of(b []byte) IPv6 { o := int(f.L3); return IPv6(b[o : o+IPv6Len : o+IPv6Len]) }
func (f *Frame) GRHOf(b []byte) GRH   { o := int(f.L3); return GRH(b[o : o+GRHLen : o+GRHLen]) }
func (f *Frame) UDPOf(b []byte) UDP   { o := int(f.L4); return UDP(b[o : o+UDPLen : o+UDPLen]) }
func (f *Frame) BTHOf(b []byte) BTH   { o := int(f.BTH); return BTH(b[o : o+BTHLen : o+BTHLen]) }
func (f *Frame) FETHOf(b []byte) FETH {
	o := f.ext(0)
	return FETH(b[o : o+FETHLen : o+FETHLen])
}
func (f *Frame) DETHOf(b []byte) DETH {
	o := f.ext(1)
	return DETH(b[o : o+DETHLen : o+DETHLen])
}
func (f *Frame) RETHOf(b []byte) RETH {
	o := f.ext(2)
	return RETH(b[o : o+RETHLen : o+RETHLen])
}
func (f *Frame) AtomicETHOf(b []byte) AtomicETH {
	o := f.ext(3)
	return AtomicETH(b[o : o+AtomicETHLen : o+AtomicETHLen])
}
func (f *Frame) MaskedAtomicETHOf(b []byte) MaskedAtomicETH {
	o := f.ext(4)
	return MaskedAtomicETH(b[o : o+MaskedAtomicETHLen : o+MaskedAtomicETHLen])
}
func (f *Frame) AETHOf(b []byte) AETH {
	o := f.ext(5)
	return AETH(b[o : o+AETHLen : o+AETHLen])
}
func (f *Frame) AtomicAckETHOf(b []byte) AtomicAckETH {
	o := f.ext(6)
	return AtomicAckETH(b[o : o+AtomicAckETHLen : o+AtomicAckETHLen])
}
func (f *Frame) ImmDtOf(b []byte) ImmDt {
	o := f.ext(7)
	return ImmDt(b[o : o+ImmDtLen : o+ImmDtLen])
}
func (f *Frame) IETHOf(b []byte) IETH {
	o := f.ext(8)
	return IETH(b[o : o+IETHLen : o+IETHLen])
}

// PayloadOf is the payload without pad.
func (f *Frame) PayloadOf(b []byte) []byte {
	return b[f.Payload : f.End-uint16(f.Pad) : f.End-uint16(f.Pad)]
}

// Parse walks frame b (Ethernet, without FCS) and fills f, also when it stops
// early: f.Why, which it returns, says how far it got. Ethernet padding behind
// the IP datagram is allowed. Frames longer than 65535 bytes are BadLength.
func Parse(b []byte, f *Frame) Why {
	examine(b, f, false)
	return f.Why
}

// Examine is Parse, and says of a RoCE frame what is wrong with its check sums; of any other NoFlaw.
func Examine(b []byte, f *Frame) Flaw { return examine(b, f, true) }

// examine is Examine, with sums, or else Parse. It is not part of its callers, so that the compiler
// makes one piece of it and parseBTH.
//
//go:noinline
func examine(b []byte, f *Frame, sums bool) Flaw {
	// IPv4 without tags and options, all in order, is most of what there is. Any other frame, and any in which
	// something is wrong, goes the long way.
	const l3, l4, bth, least = EthernetLen, EthernetLen + IPv4Len, PlainBTH, PlainBTH + BTHLen + ICRCLen
	if len(b) >= least && len(b) <= 0xFFFF {
		c := (*[least]byte)(b)
		total, op, pad := int(be.Uint16(c[l3+2:])), Opcode(c[bth]), c[bth+1]>>4&3
		i := &opTable[op]
		rest := total - (least - l3) - int(i.Len) // payload and padding; below 0 if total is too small
		if be.Uint32(c[12:])>>8 == EtherIPv4<<8|0x45 && be.Uint32(c[l3+6:])&0x3FFF00FF == ProtoUDP &&
			be.Uint32(c[l4+2:]) == RoCEv2Port<<16|uint32(total-IPv4Len) && l3+total <= len(b) &&
			c[bth+1]&15 == 0 && i.Name != "" && rest >= int(pad) && rest&int(i.mustNot) == 0 {
			// What changes is not in the literal: the compiler would build it elsewhere and copy it, and a copy waits for
			// what was just stored in smaller pieces.
			*f = Frame{Net: NetIPv4, L3: l3, L4: l4, BTH: bth, Plain: true}
			f.Op, f.Pad, f.Payload, f.End = op, pad, bth+BTHLen+uint16(i.Len), uint16(l3+total-ICRCLen)
			switch {
			case !sums:
				return NoFlaw
			case !plainSumOK((*[IPv4Len]byte)(c[l3:])):
				return BadChecksum
			case total >= plainLimit:
				return f.flaw(b)
			case hasRows:
				if !goodRows(&c[l3], total) {
					return BadICRC
				}
			case clmulCRC(icrcSeed, &c[l3], total, &icrcOnes[NetIPv4]) != icrcResidue:
				return BadICRC
			}
			return NoFlaw
		}
	}
	*f = Frame{}
	if f.Why = parse(b, f); !sums || f.Why != IsRoCE {
		return NoFlaw
	}
	return f.flaw(b)
}

// flaw is Examine for a RoCE frame that was parsed.
func (f *Frame) flaw(b []byte) Flaw {
	switch {
	case !f.ChecksumOK(b):
		return BadChecksum
	case !GoodICRC(b, f):
		return BadICRC
	}
	return NoFlaw
}

func parse(b []byte, f *Frame) Why {
	if len(b) > 0xFFFF {
		return BadLength
	}
	if len(b) < 14 {
		return Truncated
	}
	et := be.Uint16(b[12:])
	at := 14
	for et == EtherVLAN || et == EtherQinQ {
		if f.Tags == MaxTags {
			return DeepTags
		}
		if len(b) < at+4 {
			return Truncated
		}
		et = be.Uint16(b[at+2:])
		at += 4
		f.Tags++
	}
	end := len(b)
	switch et {
	case EtherIPv4:
		f.L3 = uint16(at)
		if len(b) < at+20 {
			return Truncated
		}
		ip := b[at:]
		ihl := int(ip[0]&15) * 4
		if ip[0]>>4 != 4 || ihl < 20 {
			return BadIP
		}
		f.Net = NetIPv4
		total := int(be.Uint16(ip[2:]))
		if total < ihl {
			return BadLength
		}
		if len(ip) < total {
			return Truncated
		}
		if be.Uint16(ip[6:])&0x3FFF != 0 { // more fragments, or an offset
			return Fragment
		}
		if ip[9] != ProtoUDP {
			return NotRoCE
		}
		end = at + total
		at += ihl
	case EtherIPv6:
		f.L3 = uint16(at)
		if len(b) < at+40 {
			return Truncated
		}
		if b[at]>>4 != 6 {
			return BadIP
		}
		f.Net = NetIPv6
		total := 40 + int(be.Uint16(b[at+4:]))
		if len(b) < at+total {
			return Truncated
		}
		end = at + total
		// Senders of RoCE use no extension headers; Upper steps over them,
		// and the ICRC takes them as they are.
		next, off, ok := IPv6(b[at:end]).Upper()
		switch {
		case !ok:
			return Truncated
		case next == ProtoFragment:
			return Fragment
		case next != ProtoUDP:
			return NotRoCE
		}
		at += off
	case EtherRoCEv1:
		f.L3 = uint16(at)
		if len(b) < at+40 {
			return Truncated
		}
		if b[at]>>4 != 6 {
			return BadIP
		}
		total := 40 + int(be.Uint16(b[at+4:]))
		if len(b) < at+total {
			return Truncated
		}
		f.Net = NetGRH
		if b[at+6] != ProtoBTH {
			return NotRoCE
		}
		end = at + total
		return parseBTH(b, f, at+40, end)
	default:
		return NotRoCE
	}
	if end < at+8 {
		return Truncated
	}
	f.L4 = uint16(at)
	if be.Uint16(b[at+2:]) != RoCEv2Port {
		return NotRoCE
	}
	ul := int(be.Uint16(b[at+4:]))
	if ul < UDPLen || at+ul != end {
		return BadLength
	}
	return parseBTH(b, f, at+8, end)
}

// parseBTH: a BTH at offset at of a datagram that ends at end.
func parseBTH(b []byte, f *Frame, at, end int) Why {
	if end < at+BTHLen+ICRCLen {
		return Truncated
	}
	h := BTH(b[at : at+BTHLen])
	f.BTH = uint16(at)
	f.End = uint16(end - ICRCLen)
	f.Op = h.OpCode()
	if h.TVer() != 0 {
		return BadVersion
	}
	i := &opTable[f.Op]
	if i.Name == "" {
		return UnknownOpcode
	}
	p := at + BTHLen + int(i.Len)
	f.Pad = uint8(h.PadCount())
	if p+int(f.Pad) > int(f.End) {
		return Truncated
	}
	// A branch on what the opcode may do would be a guess for every frame.
	if (int(f.End)-p)&int(i.mustNot) != 0 {
		return BadLength
	}
	f.Payload = uint16(p)
	return IsRoCE
}
