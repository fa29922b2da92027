package hdr

import (
	"net/netip"
	"slices"
)

// MADLen is the size of a management datagram (IBTA 13.4.2).
const MADLen = 256

// GSIQKey is the Q_Key of QP 1, the general services interface.
const GSIQKey = 0x80010000

// CM is a connection manager's management datagram, 256 bytes (IBTA 12.6,
// 13.4.3): 24 bytes of MAD header, then the message.
//
//	0 BaseVersion | 1 MgmtClass 0x07 | 2 ClassVersion 2 | 3 Method 3 |
//	8 TransactionID | 16 AttributeID | 24 message: LocalCommID |
//	28 RemoteCommID in all but a ConnectRequest |
//
// Getters of fields that a message does not have return zero.
type CM []byte

// CMAttr is the AttributeID of a CM: which message it is.
type CMAttr uint16

// The messages of the connection manager (IBTA table 99).
const (
	ConnectRequest     CMAttr = 0x0010
	MsgRcptAck         CMAttr = 0x0011
	ConnectReject      CMAttr = 0x0012
	ConnectReply       CMAttr = 0x0013
	ReadyToUse         CMAttr = 0x0014
	DisconnectRequest  CMAttr = 0x0015
	DisconnectReply    CMAttr = 0x0016
	ServiceIDRequest   CMAttr = 0x0017
	ServiceIDReply     CMAttr = 0x0018
	LoadAlternatePath  CMAttr = 0x0019
	AlternatePathReply CMAttr = 0x001A
)

var cmNames = [...]string{"ConnectRequest", "MsgRcptAck", "ConnectReject", "ConnectReply", "ReadyToUse",
	"DisconnectRequest", "DisconnectReply", "ServiceIDRequest", "ServiceIDReply", "LoadAlternatePath", "AlternatePathReply"}

func (a CMAttr) String() string {
	if i := int(a) - int(ConnectRequest); i >= 0 && i < len(cmNames) {
		return cmNames[i]
	}
	return "CM?"
}

// CMOf is the connection manager's message in a parsed frame; false when the
// frame carries none: it must be a SEND to QP 1 with GSIQKey, hold a whole
// datagram of class 7 version 2, and name a known message.
func (f *Frame) CMOf(b []byte) (CM, bool) {
	if f.Why != IsRoCE || f.Op != UDSendOnly || f.BTHOf(b).DestQP() != 1 || f.DETHOf(b).QKey() != GSIQKey {
		return nil, false
	}
	return CMFrom(f.PayloadOf(b))
}

// CMFrom is the message in what a SEND to QP 1 carried; false when it is none.
func CMFrom(payload []byte) (CM, bool) {
	m := CM(payload)
	if len(m) < MADLen || m[0] != 1 || m[1] != 7 || m[2] != 2 {
		return nil, false
	}
	a := m.AttributeID()
	return m[:MADLen], a >= ConnectRequest && a <= AlternatePathReply
}

// at is byte i of the message.
func (m CM) at(i int) []byte { return m[24+i:] }

func (m CM) uint24(i int) uint32 { return be.Uint32(m.at(i)) >> 8 }

func (m CM) is(a ...CMAttr) bool { return slices.Contains(a, m.AttributeID()) }

func (m CM) TransactionID() uint64 { return be.Uint64(m[8:]) }
func (m CM) AttributeID() CMAttr   { return CMAttr(be.Uint16(m[16:])) }

// LocalCommID is the sender's name for the connection. (A service ID request
// or reply has its RequestID there.)
func (m CM) LocalCommID() uint32 { return be.Uint32(m.at(0)) }

// RemoteCommID is the receiver's name for the connection.
func (m CM) RemoteCommID() uint32 {
	if m.is(ConnectRequest, ServiceIDRequest, ServiceIDReply) {
		return 0
	}
	return be.Uint32(m.at(4))
}

// ServiceID, of a ConnectRequest. RDMA IP CM puts a port space and a port
// there (IBTA A11.2): 0x0106 is TCP's.
func (m CM) ServiceID() uint64 {
	if m.is(ConnectRequest) {
		return be.Uint64(m.at(8))
	}
	return 0
}

// LocalQPN is the sender's queue pair, of a ConnectRequest or ConnectReply.
func (m CM) LocalQPN() uint32 {
	switch m.AttributeID() {
	case ConnectRequest:
		return m.uint24(32)
	case ConnectReply:
		return m.uint24(12)
	}
	return 0
}

// RemoteQPN is the receiver's queue pair, of a DisconnectRequest.
func (m CM) RemoteQPN() uint32 {
	if m.is(DisconnectRequest) {
		return m.uint24(8)
	}
	return 0
}

// StartingPSN, of a ConnectRequest or ConnectReply, is the first PSN that the
// message's sender expects at LocalQPN: the other side's first (IBTA 12.7.31).
func (m CM) StartingPSN() uint32 {
	switch m.AttributeID() {
	case ConnectRequest:
		return m.uint24(44)
	case ConnectReply:
		return m.uint24(20)
	}
	return 0
}

// ResponderResources and InitiatorDepth, of a ConnectRequest or ConnectReply,
// are the READs and atomics that the sender takes and issues at once.
func (m CM) ResponderResources() uint8 {
	switch m.AttributeID() {
	case ConnectRequest:
		return m.at(35)[0]
	case ConnectReply:
		return m.at(24)[0]
	}
	return 0
}

func (m CM) InitiatorDepth() uint8 {
	switch m.AttributeID() {
	case ConnectRequest:
		return m.at(39)[0]
	case ConnectReply:
		return m.at(25)[0]
	}
	return 0
}

// TransportService of a ConnectRequest: RC, UC or RD.
func (m CM) TransportService() Opcode {
	if m.is(ConnectRequest) {
		return [4]Opcode{RC, UC, RD, 0xFF}[m.at(43)[0]>>1&3]
	}
	return 0xFF
}

// PKey is the partition of a ConnectRequest's primary path.
func (m CM) PKey() uint16 {
	if m.is(ConnectRequest) {
		return be.Uint16(m.at(48))
	}
	return 0
}

// PathMTU of a ConnectRequest, in bytes; 0 when its code is none.
func (m CM) PathMTU() int {
	if c := m.at(50)[0] >> 4; m.is(ConnectRequest) && c >= 1 && c <= 5 {
		return 128 << c
	}
	return 0
}

// PrimaryLocalGID and PrimaryRemoteGID of a ConnectRequest: under RoCEv2 the
// addresses of sender and receiver, an IPv4 one unmapped. Otherwise invalid.
func (m CM) PrimaryLocalGID() netip.Addr  { return m.gid(56) }
func (m CM) PrimaryRemoteGID() netip.Addr { return m.gid(72) }

func (m CM) gid(i int) netip.Addr {
	if !m.is(ConnectRequest) {
		return netip.Addr{}
	}
	return netip.AddrFrom16([16]byte(m.at(i))).Unmap()
}

// Reason of a ConnectReject (IBTA table 102).
func (m CM) Reason() uint16 {
	if m.is(ConnectReject) {
		return be.Uint16(m.at(10))
	}
	return 0
}

// PrivateData is what the two consumers told each other; nil where the
// message has no room for it.
func (m CM) PrivateData() []byte {
	from := 0
	switch m.AttributeID() {
	case ConnectRequest:
		from = 140
	case MsgRcptAck:
		from = 10
	case ConnectReject:
		from = 84
	case ConnectReply:
		from = 36
	case ReadyToUse, DisconnectReply:
		from = 8
	case DisconnectRequest:
		from = 12
	default:
		return nil
	}
	return m.at(from)
}

// IPEndpoints are source and destination of a ConnectRequest whose private
// data begin as RDMA IP CM says (IBTA A11.6): the source's port is there, the
// destination's in the service ID. false when they do not.
func (m CM) IPEndpoints() (src, dst netip.AddrPort, ok bool) {
	if !m.is(ConnectRequest) || m.ServiceID()>>24 != 1 {
		return src, dst, false
	}
	p := m.PrivateData()
	if p[0]>>4 != 0 {
		return src, dst, false
	}
	a, b := netip.AddrFrom16([16]byte(p[4:])), netip.AddrFrom16([16]byte(p[20:]))
	switch p[1] >> 4 {
	case 4:
		a, b = netip.AddrFrom4([4]byte(p[16:])), netip.AddrFrom4([4]byte(p[32:]))
	case 6:
	default:
		return src, dst, false
	}
	return netip.AddrPortFrom(a, be.Uint16(p[2:])), netip.AddrPortFrom(b, uint16(m.ServiceID())), true
}
