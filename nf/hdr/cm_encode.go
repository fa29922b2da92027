package hdr

import "net/netip"

// CMFields are the fields of a connection manager's message, for Encode; those
// that the message does not have are left out. LIDs are the permissive 0xFFFF
// and 0, as RoCE has it, alternate paths are empty.
type CMFields struct {
	AttributeID               CMAttr
	TransactionID             uint64
	LocalCommID, RemoteCommID uint32
	// ConnectRequest.
	ServiceID              uint64
	TransportService       Opcode // RC or UC
	PKey                   uint16
	PathMTU                int // bytes
	LocalGID, RemoteGID    netip.Addr
	FlowLabel              uint32
	PacketRate             uint8 // code (IBTA 9.11.1)
	TrafficClass, HopLimit uint8
	LocalACKTimeout        uint8 // code: 4.096 us * 2^code
	// RemoteResponseTimeout and LocalResponseTimeout are how long the receiver
	// may take to answer, and how long the sender will, codes of 4.096 us *
	// 2^code; MaxCMRetries how often either sends again.
	RemoteResponseTimeout, LocalResponseTimeout uint8
	MaxCMRetries, RetryCount                    uint8
	// ConnectRequest and ConnectReply.
	CAGUID                             uint64
	LocalQPN, StartingPSN              uint32
	ResponderResources, InitiatorDepth uint8
	RNRRetryCount                      uint8
	FlowControl                        bool // end to end, by credits in AETHs
	SRQ                                bool // the queue pair has a shared receive queue
	// ConnectReply: the delay of acknowledgements, a code like the timeouts.
	TargetACKDelay uint8
	// MsgRcptAck and ConnectReject: the message concerned, 0 ConnectRequest, 1
	// ConnectReply, 2 other.
	Message uint8
	// MsgRcptAck: how long the real answer may take, a code like the timeouts.
	ServiceTimeout uint8
	// ConnectReject.
	Reason uint16
	// DisconnectRequest: the receiver's queue pair.
	RemoteQPN uint32
	// PrivateData is cut off where the message has no more room for it.
	PrivateData []byte
}

// Encode writes all 256 bytes.
func (m CM) Encode(f *CMFields) {
	m = m[:MADLen]
	clear(m)
	m[0], m[1], m[2], m[3] = 1, 7, 2, 3
	be.PutUint64(m[8:], f.TransactionID)
	be.PutUint16(m[16:], uint16(f.AttributeID))
	be.PutUint32(m.at(0), f.LocalCommID)
	if f.AttributeID != ConnectRequest {
		be.PutUint32(m.at(4), f.RemoteCommID)
	}
	copy(m.PrivateData(), f.PrivateData)
	switch f.AttributeID {
	case ConnectRequest:
		f.connectRequest(m)
	case ConnectReply:
		be.PutUint32(m.at(12), f.LocalQPN<<8)
		be.PutUint32(m.at(20), f.StartingPSN<<8)
		m.at(24)[0], m.at(25)[0] = f.ResponderResources, f.InitiatorDepth
		m.at(26)[0] = f.TargetACKDelay<<3 | bit(f.FlowControl)
		m.at(27)[0] = f.RNRRetryCount<<5 | bit(f.SRQ)<<4
		be.PutUint64(m.at(28), f.CAGUID)
	case MsgRcptAck:
		m.at(8)[0], m.at(9)[0] = f.Message<<6, f.ServiceTimeout<<3
	case ConnectReject:
		m.at(8)[0] = f.Message << 6
		be.PutUint16(m.at(10), f.Reason)
	case DisconnectRequest:
		be.PutUint32(m.at(8), f.RemoteQPN<<8)
	}
}

func (f *CMFields) connectRequest(m CM) {
	be.PutUint64(m.at(8), f.ServiceID)
	be.PutUint64(m.at(16), f.CAGUID)
	be.PutUint32(m.at(32), f.LocalQPN<<8|uint32(f.ResponderResources))
	m.at(39)[0] = f.InitiatorDepth
	m.at(43)[0] = f.RemoteResponseTimeout<<3 | uint8(f.TransportService>>5)<<1 | bit(f.FlowControl)
	be.PutUint32(m.at(44), f.StartingPSN<<8|uint32(f.LocalResponseTimeout&31)<<3|uint32(f.RetryCount&7))
	be.PutUint16(m.at(48), f.PKey)
	mtu := uint8(0)
	for c := uint8(1); c <= 5; c++ {
		if f.PathMTU == 128<<c {
			mtu = c
		}
	}
	m.at(50)[0] = mtu<<4 | f.RNRRetryCount&7
	m.at(51)[0] = f.MaxCMRetries<<4 | bit(f.SRQ)<<3
	be.PutUint32(m.at(52), 0xFFFFFFFF)
	l, r := f.LocalGID.As16(), f.RemoteGID.As16()
	copy(m.at(56), l[:])
	copy(m.at(72), r[:])
	be.PutUint32(m.at(88), f.FlowLabel<<12|uint32(f.PacketRate&63))
	m.at(92)[0], m.at(93)[0] = f.TrafficClass, f.HopLimit
	m.at(95)[0] = f.LocalACKTimeout << 3
}

func bit(v bool) uint8 {
	if v {
		return 1
	}
	return 0
}

// CAGUID of a ConnectRequest or ConnectReply names the sender's channel
// adapter.
func (m CM) CAGUID() uint64 {
	switch m.AttributeID() {
	case ConnectRequest:
		return be.Uint64(m.at(16))
	case ConnectReply:
		return be.Uint64(m.at(28))
	}
	return 0
}

// Codes of times, each 4.096 us * 2^code: RemoteResponseTimeout and
// LocalResponseTimeout of a ConnectRequest are how long its receiver may take
// to answer and how long its sender will; LocalACKTimeout is the requester's;
// TargetACKDelay, of a ConnectReply, is how long acknowledgements take;
// ServiceTimeout, of a MsgRcptAck, how long the answer will.
func (m CM) RemoteResponseTimeout() uint8 { return m.field(ConnectRequest, 43, 3, 31) }
func (m CM) LocalResponseTimeout() uint8  { return m.field(ConnectRequest, 47, 3, 31) }
func (m CM) LocalACKTimeout() uint8       { return m.field(ConnectRequest, 95, 3, 31) }
func (m CM) TargetACKDelay() uint8        { return m.field(ConnectReply, 26, 3, 31) }
func (m CM) ServiceTimeout() uint8        { return m.field(MsgRcptAck, 9, 3, 31) }

// Retries of a ConnectRequest: of the transport, of requests that met a
// receiver that was not ready, and of the connection manager's messages.
func (m CM) RetryCount() uint8   { return m.field(ConnectRequest, 47, 0, 7) }
func (m CM) MaxCMRetries() uint8 { return m.field(ConnectRequest, 51, 4, 15) }

// RNRRetryCount, of a ConnectRequest or ConnectReply, is the receiver's.
func (m CM) RNRRetryCount() uint8 {
	return m.field(ConnectRequest, 50, 0, 7) | m.field(ConnectReply, 27, 5, 7)
}

// Message is the one that a MsgRcptAck or ConnectReject is about: 0
// ConnectRequest, 1 ConnectReply, 2 another.
func (m CM) Message() uint8 {
	return m.field(MsgRcptAck, 8, 6, 3) | m.field(ConnectReject, 8, 6, 3)
}

// field is a part of byte i of message a, 0 of others.
func (m CM) field(a CMAttr, i, shift int, mask uint8) uint8 {
	if !m.is(a) {
		return 0
	}
	return m.at(i)[0] >> shift & mask
}

// ServiceIDOfPort is the service ID of a TCP-like port in RDMA IP CM (IBTA
// A11.2).
func ServiceIDOfPort(port uint16) uint64 { return 0x01060000 | uint64(port) }

// IPCMLen is the length of what RDMA IP CM puts in front of a ConnectRequest's
// private data.
const IPCMLen = 36

// AppendIPCM appends the private data of RDMA IP CM (IBTA A11.6): the source's
// port and both addresses. The destination's port is in the service ID.
func AppendIPCM(p []byte, src netip.AddrPort, dst netip.Addr) []byte {
	version := byte(6 << 4)
	a, b := src.Addr().As16(), dst.As16()
	if dst.Unmap().Is4() {
		version = 4 << 4
		clear(a[:12])
		clear(b[:12])
	}
	p = append(p, 0, version)
	p = be.AppendUint16(p, src.Port())
	p = append(p, a[:]...)
	return append(p, b[:]...)
}

// FlowLabel of a ConnectRequest's primary path; RoCEv2 makes the UDP source
// port of it.
func (m CM) FlowLabel() uint32 {
	if m.is(ConnectRequest) {
		return be.Uint32(m.at(88)) >> 12
	}
	return 0
}
