package hdr

// Reach says what a frame may do to the memory of the host that it goes to.
type Reach uint8

const (
	// ReachNone: it is not RoCE, or RoCE that writes nothing there: a response, a
	// READ, a congestion notification, a datagram of the subnet or connection
	// manager, or what no receiver takes.
	ReachNone Reach = iota
	// ReachRC: of a reliable connection, and parsed as a whole. Its opcode says what
	// it does; a follower of connections knows where.
	ReachRC
	// ReachRange: it writes within Change.Len bytes from Change.VA on.
	ReachRange
	// ReachMore: it goes on with a WRITE whose first packet said where.
	ReachMore
	// ReachSend: it writes to a buffer that the host's application posted.
	ReachSend
	// ReachAny: it may be RoCE that writes, and does not say where.
	ReachAny
)

// Change is what ChangeOf finds.
type Change struct {
	Reach Reach
	VA    uint64
	Len   uint32
}

// Transport of the extended reliable connection (IBTA annex A14).
const xrc Opcode = 0xA0

// ChangeOf says what frame b, for which Parse filled f, may do to memory: for
// every frame, whatever f.Why. It errs towards more. Opcodes of RD and XRC are
// read as those of RC behind their own headers; manufacturers' opcodes, other
// transport versions, fragments of UDP datagrams that may be for RoCE's port, and
// frames with more tags than Parse steps over, may do anything. UDP lengths shorter than
// the IP datagram's are taken as Linux takes them. Tunnels and IPsec are not looked
// into.
func ChangeOf(b []byte, f *Frame) Change {
	switch f.Why {
	case NotRoCE, Truncated, BadIP:
		return Change{}
	case IsRoCE:
		if f.Op.Transport() == RC {
			return Change{Reach: ReachRC}
		}
	case Fragment:
		if fragmentMayBeRoCE(b, f) {
			return Change{Reach: ReachAny}
		}
		return Change{}
	case DeepTags, BadVersion:
		return Change{Reach: ReachAny}
	case BadLength:
		if f.BTH == 0 {
			// The UDP length: what is too long no receiver takes.
			if n := int(f.L4); n != 0 && UDP(b[n:]).Len() >= UDPLen+BTHLen && n+int(UDP(b[n:]).Len()) <= len(b) {
				return Change{Reach: ReachAny}
			}
			return Change{}
		}
	}
	return changeOfOpcode(b, f)
}

// changeOfOpcode is ChangeOf for a frame whose BTH was found.
func changeOfOpcode(b []byte, f *Frame) Change {
	own := 0 // bytes of the transport's own headers
	switch f.Op.Transport() {
	case xrc:
		own = 4
	case RD:
		own = 4 + DETHLen
	case UD:
		if f.BTHOf(b).DestQP() <= 1 {
			return Change{}
		}
	case RC, UC:
	case CNT:
		if f.Op == CNP {
			return Change{}
		}
		return Change{Reach: ReachAny}
	default:
		return Change{Reach: ReachAny}
	}
	i := &opTable[f.Op&0x1F]
	at := int(f.BTH) + BTHLen + own
	switch {
	case i.Name == "":
		return Change{Reach: ReachAny}
	case i.Flags&IsResponse != 0, i.Flags&IsRead != 0, f.Op&0x1F == Flush:
		return Change{}
	case i.Flags&IsSend != 0:
		return Change{Reach: ReachSend}
	case i.Ext&(HasRETH|HasAtomicETH|HasMaskedAtomicETH) == 0:
		return Change{Reach: ReachMore}
	case at+int(i.Len) > int(f.End):
		return Change{} // no receiver takes it
	}
	c := Change{ReachRange, be.Uint64(b[at:]), 8}
	if i.Ext&HasRETH != 0 && f.Op&0x1F != AtomicWrite {
		c.Len = RETH(b[at : at+RETHLen]).DMALength()
	}
	return c
}

// fragmentMayBeRoCE: later fragments of a UDP datagram do not say for which port.
func fragmentMayBeRoCE(b []byte, f *Frame) bool {
	h := b[f.L3:]
	var first bool
	if f.Net == NetIPv4 {
		if h[9] != ProtoUDP {
			return false
		}
		first, h = IPv4(h).FragOffset() == 0, h[IPv4(h).HeaderLen():]
	} else {
		_, off, ok := IPv6(h).Upper()
		if !ok || len(h) < off+8 {
			return false
		}
		switch h[off] {
		case ProtoUDP:
		case ProtoHopByHop, ProtoRouting, ProtoDstOption:
			return true
		default:
			return false
		}
		first, h = be.Uint16(h[off+2:])&^7 == 0, h[off+8:]
	}
	return !first || len(h) < UDPLen || UDP(h).DstPort() == RoCEv2Port
}
