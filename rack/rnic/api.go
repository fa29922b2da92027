// Package rnic is a soft RoCEv2 NIC: queue pairs, memory regions and
// completion queues with a verbs-like API, as one state machine.
//
// A NIC takes frames and the time (Input, Tick), and returns frames and its next
// deadline (Output, Deadline). It has no goroutine, no lock and no wall clock
// inside. One owner drives a NIC, from a live port or from the events of a
// simulation, and calls its verbs from the same goroutine.
//
//	          verbs: PostSend, PostRecv ──┐      ┌──► CQ.Poll
//	                                      ▼      │
//	port.Rx ──► Input ──► filter ──► requester, responder ──► Output ──► port.Tx
//	                        │             ▲
//	                  ARP, ND, echo      Tick at Deadline
//
// Sources: IBTA Architecture Specification Volume 1 Release 1.4, chapters 9
// to 11 and annex A17. Where implementations differ, a Profile selects the one
// that the NIC copies.
package rnic

import (
	"errors"
	"net/netip"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/packet"
)

// Profile selects whose wire behaviour the NIC copies where implementations
// differ (syndromes, ACK coalescing, MigReq, header defaults).
type Profile uint8

const (
	// RXE is Linux rdma_rxe (6.1): syndrome 0x1F, MigReq 0, TOS 0, one ACK
	// for each packet that asks for one.
	RXE Profile = iota
	// ConnectX is Mellanox ConnectX-5: syndrome 0x00, MigReq 1, TOS 0x02,
	// coalesced ACKs.
	ConnectX
)

// Config describes a NIC.
type Config struct {
	MAC     [6]byte
	IP      netip.Addr // IPv4 or IPv6
	Profile Profile
	// AckCoalesce is the most request packets that one ACK may cover while
	// more input waits: 1 acknowledges each packet that asks for it (rxe).
	// 0 takes the profile's default: rxe 1, ConnectX 16.
	AckCoalesce int
	// LateAtomics makes the responder execute an atomic, like a READ, only when it sends the
	// response, so that it may execute later WRITEs and SENDs first. IBTA's transaction
	// ordering allows this; a requester that must avoid it sets Fence.
	LateAtomics bool
	// Link is the form of the frames of all queue pairs whose Conn has no Link.
	Link Link
	// CNPInterval is the least time between two congestion notifications that a
	// queue pair sends, each for a received frame that was marked CE. 0 takes the
	// profile's default: ConnectX 4 us, rxe sends none. Negative: none are sent.
	CNPInterval clock.Duration
	// LinkMTU is the Ethernet MTU; path MTUs above it are refused.
	// 0 = 1500.
	LinkMTU int
	// Slots is the size of the frame pool; 0 = 1024. Not used with Pool.
	Slots int
	// Pool, if not nil, is the pool from which Output takes its frames. With a port's pool
	// frames are sent without a copy.
	Pool *packet.Pool
	// FirstQPN is the number of the first queue pair; 0 = 17 (rxe: 16 is the
	// lowest, 17 the usual).
	FirstQPN uint32
	Seed     uint64 // for R_Keys and NIC.RandomPSN
}

// Access is a set of rights that a memory region or a queue pair grants.
type Access uint8

const (
	LocalWrite Access = 1 << iota
	RemoteWrite
	RemoteRead
	RemoteAtomic
	MWBind // of a region: memory windows may be bound to it
)

// Type is the type of a queue pair.
type Type uint8

const (
	TypeRC Type = iota
	TypeUC
	TypeUD
)

// Op is a work request's operation.
type Op uint8

const (
	OpSend Op = iota
	OpSendImm
	OpSendInv
	OpWrite
	OpWriteImm
	OpRead
	OpCompareSwap
	OpFetchAdd
	OpMaskedCompareSwap
	OpRecv         // in completions only
	OpRecvImm      // in completions only: SEND with immediate
	OpRecvWriteImm // in completions only: WRITE with immediate
	// The following requests send no packet. The NIC executes one when all requests before it
	// were sent (with Fence: when all of them completed).
	OpBindMW    // binds a memory window, see Bind
	OpLocalInv  // invalidates RKey
	OpFastRegMR // registers a fast region that was invalidated anew, see Bind
)

// SendWR is a work request for the send queue. The NIC uses the memory of SGL in place until
// the request completes; the caller must not touch it meanwhile.
type SendWR struct {
	ID uint64
	Op Op
	// SGL holds the data that SEND and WRITE send, in order, or takes the data that READ
	// reads. Atomics put the original value (little-endian) into the first 8 bytes of
	// the first slice.
	SGL        [][]byte
	RemoteAddr uint64
	RKey       uint32 // also: the key that SendInv invalidates
	Compare    uint64 // atomics
	Swap       uint64 // also: the addend
	// CompareMask and SwapMask are for OpMaskedCompareSwap.
	CompareMask, SwapMask uint64
	Imm                   uint32
	Signaled, Fence       bool
	Solicited             bool
	AH                    *AH // UD
	// Bind is for OpBindMW and OpFastRegMR. The NIC uses it in place until the
	// request completes.
	Bind *Bind
}

// AH is an address handle: the destination of a UD SEND.
type AH struct {
	MAC  [6]byte
	IP   netip.Addr
	QPN  uint32
	QKey uint32
}

// RecvWR is a work request for the receive queue.
type RecvWR struct {
	ID  uint64
	Buf []byte // UD: the first 40 bytes are left for the GRH
}

// Status is the status of a completion; the values are those of ibv_wc_status that occur here.
type Status uint8

const (
	Success Status = iota
	LocalLengthError
	LocalProtectionError
	WRFlushError
	RemoteInvalidRequestError
	RemoteAccessError
	RemoteOperationError
	RetryExceededError
	RNRRetryExceededError
	LocalQPOperationError
	MWBindError
)

// WC is a work completion.
type WC struct {
	ID      uint64
	QPN     uint32
	Op      Op
	Status  Status
	ByteLen uint32
	Imm     uint32
	SrcQP   uint32 // UD
	// SrcMAC is the source MAC address of a received datagram.
	SrcMAC [6]byte
}

// Conn holds the attributes of a connected queue pair: those that verbs demand
// for the transitions to RTR and RTS.
type Conn struct {
	RemoteMAC [6]byte
	RemoteIP  netip.Addr
	DestQPN   uint32
	PathMTU   int    // 256, 512, 1024, 2048 or 4096
	SQPSN     uint32 // first PSN that we send
	RQPSN     uint32 // first PSN that we expect
	// FlowLabel, if not 0, determines the UDP source port; otherwise the numbers of both queue
	// pairs do.
	FlowLabel uint32
	// MaxRdAtomic is the largest number of outstanding READs and atomics. MaxDestRdAtomic is the
	// number of responder resources, rounded up to a power of two; it may be NoRdAtomic. 0 = 16.
	MaxRdAtomic, MaxDestRdAtomic int
	Timeout                      int // local ACK timeout: 4.096 us * 2^Timeout; 0 = none
	// RetryCnt and RNRRetry are the numbers of retries in a row, without progress, after which
	// the requester gives up. RNRRetry 7 means without end; so does RetryCnt 7 with the RXE
	// profile, as in rxe.
	RetryCnt, RNRRetry int
	MinRNRTimer        int // code of AETH RNR NAK
	// Link is the form of the queue pair's frames; nil takes the NIC's. Received frames
	// must have the same RoCE version and VLAN. Connect copies Link.
	Link *Link
}

// NoRdAtomic, as Conn.MaxDestRdAtomic, gives the responder no resources: it
// refuses READs and atomics with NAK invalid request.
const NoRdAtomic = -1

// DefaultConn returns a Conn with the usual numbers of rxe and Clover: MTU 1024, timeout 14 (67
// ms), 7 retries, minimum RNR timer 12.
func DefaultConn() Conn {
	return Conn{PathMTU: 1024, MaxRdAtomic: 16, MaxDestRdAtomic: 16, Timeout: 14, RetryCnt: 7, RNRRetry: 7, MinRNRTimer: 12}
}

// QPInit describes a new queue pair for CreateQP.
type QPInit struct {
	PD             *PD
	Type           Type
	SendCQ, RecvCQ *CQ
	MaxSend        int // work requests; 0 = 128
	MaxRecv        int // 0 = 128
	Access         Access
	QKey           uint32 // UD
	SQSigAll       bool
	// QPN is the number that the queue pair is to have; 0: any. It must be free, and may have been in use until now.
	QPN uint32
}

// Errors of the verbs.
var (
	ErrQueueFull = errors.New("work queue is full")
	ErrState     = errors.New("queue pair is not in a state for that")
	ErrInvalid   = errors.New("invalid argument")
)
