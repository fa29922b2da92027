package hdr

import (
	"encoding/binary"
	"net/netip"
	"time"
)

// FencePort is where a client asks, of a memory server, that another client be shut out from it; a fence on the way
// (tor/fence) takes that. It is asked by a ConnectRequest whose private data is a FenceRequest, and answered by a ConnectReject
// whose private data is a FenceReply, or a text that says why not.
const FencePort = 7473

// FenceKeys is how many R_Keys a FenceRequest names at most.
const FenceKeys = 8

// FenceRequest is who is to be shut out, and from what: client, queue pair of the server's (0: all), and R_Keys, under
// which the asker itself may write. Cookie is 0, or what the fence said last.
type FenceRequest struct {
	Client netip.Addr // IPv4
	QPN    uint32
	Cookie uint64
	Keys   [FenceKeys]uint32
	N      int // of Keys
}

const (
	fenceMagic      = 0x514C4632 // "QLF2"
	fenceRequestLen = 20         // and 4 for each R_Key; 0 ends them
	fenceReplyLen   = 20
)

// Bytes is the request as private data.
func (r *FenceRequest) Bytes() []byte {
	b := binary.BigEndian.AppendUint32(nil, fenceMagic)
	c := r.Client.As4()
	b = append(b, c[:]...)
	b = binary.BigEndian.AppendUint32(b, r.QPN)
	b = binary.BigEndian.AppendUint64(b, r.Cookie)
	for _, k := range r.Keys[:r.N] {
		b = binary.BigEndian.AppendUint32(b, k)
	}
	return b
}

// Parse reads what Bytes makes; false: it is something else.
func (r *FenceRequest) Parse(b []byte) bool {
	be := binary.BigEndian
	if len(b) < fenceRequestLen || be.Uint32(b) != fenceMagic {
		return false
	}
	*r = FenceRequest{Client: netip.AddrFrom4([4]byte(b[4:])), QPN: be.Uint32(b[8:]), Cookie: be.Uint64(b[12:])}
	for b = b[fenceRequestLen:]; len(b) >= 4 && r.N < FenceKeys && be.Uint32(b) != 0; b = b[4:] {
		r.Keys[r.N] = be.Uint32(b)
		r.N++
	}
	return true
}

// FenceReply is a fence's answer: a cookie that it wants to hear, more than once if its disk is slow; or 0, and the client is shut out. Settle is then how
// long something of the client may still be under way; below 0: for how long nothing has been.
type FenceReply struct {
	Cookie uint64
	Settle time.Duration
}

// Bytes is the reply as private data.
func (r FenceReply) Bytes() []byte {
	b := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32(nil, fenceMagic), r.Cookie)
	return binary.BigEndian.AppendUint64(b, uint64(r.Settle))
}

// Parse reads what Bytes makes; false: the request is refused.
func (r *FenceReply) Parse(b []byte) bool {
	if len(b) < fenceReplyLen || binary.BigEndian.Uint32(b) != fenceMagic {
		return false
	}
	*r = FenceReply{binary.BigEndian.Uint64(b[4:]), time.Duration(binary.BigEndian.Uint64(b[12:]))}
	return true
}
