// Package rnic is a soft RoCEv2 NIC: queue pairs, memory regions and
// completion queues with a verbs-like API, as one state machine.
//
// Frames and the time go in (Input, Tick), frames and a next deadline come
// out (Output, Deadline). There is no goroutine, no lock and no wall clock
// inside: one owner drives a NIC, live from a port or in a simulation from
// events, and calls its verbs from the same goroutine.
//
//	          verbs: PostSend, PostRecv ──┐      ┌──► CQ.Poll
//	                                      ▼      │
//	port.Rx ──► Input ──► filter ──► requester, responder ──► Output ──► port.Tx
//	                        │             ▲
//	                  ARP, ND, echo      Tick at Deadline
//
// Sources: IBTA Architecture Specification Volume 1 Release 1.4, chapters 9
// to 11 and annex A17; where implementations differ, a Profile says whose
// behaviour is copied.
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
	// LateAtomics executes an atomic when it is answered, as READs are, so that
	// WRITEs and SENDs behind it may be executed first. Responders may do that
	// (transaction ordering); requesters that mind set Fence.
	LateAtomics bool
	// Link is what frames look like, where a queue pair's Conn says nothing else.
	Link Link
	// CNPInterval is the least time between two congestion notifications of a
	// queue pair, each of which answers a frame that was marked CE. 0 takes the
	// profile's default: ConnectX 4 us, rxe sends none. Negative: none.
	CNPInterval clock.Duration
	// LinkMTU is the Ethernet MTU; path MTUs above it are refused.
	// 0 = 1500.
	LinkMTU int
	// Slots is the size of the frame pool; 0 = 1024. Not used with Pool.
	Slots int
	// Pool, if not nil, is where Output takes frames from: a port's pool, so
	// that frames go out without a copy.
	Pool *packet.Pool
	// FirstQPN is the number of the first queue pair; 0 = 17 (rxe: 16 is the
	// lowest, 17 the usual).
	FirstQPN uint32
	Seed     uint64 // for R_Keys and NIC.RandomPSN
}

// Access flags of a memory region and of a queue pair.
type Access uint8

const (
	LocalWrite Access = 1 << iota
	RemoteWrite
	RemoteRead
	RemoteAtomic
	MWBind // of a region: memory windows may be bound to it
)

// Type of a queue pair.
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
	// Requests without a packet: they are executed when all before them were
	// sent (with Fence: when all before them completed).
	OpBindMW    // binds a memory window, see Bind
	OpLocalInv  // invalidates RKey
	OpFastRegMR // registers a fast region that was invalidated anew, see Bind
)

// SendWR is a work request for the send queue. Slices are used in place until
// the request completes; the caller leaves them alone meanwhile.
type SendWR struct {
	ID uint64
	Op Op
	// SGL is what SEND and WRITE send, in order, or where READ puts what it
	// reads. Atomics put the original value, in host byte order of the
	// memory (little-endian), into the first 8 bytes.
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
	// Bind is for OpBindMW and OpFastRegMR; it is used in place until the
	// request completes.
	Bind *Bind
}

// AH is an address handle: where a UD SEND goes.
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

// Status of a completion: what ibv_wc_status calls it.
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
	// SrcMAC is where a datagram came from on the link.
	SrcMAC [6]byte
}

// Conn is what a queue pair must know to talk: the union of what verbs want
// for the transitions to RTR and RTS.
type Conn struct {
	RemoteMAC [6]byte
	RemoteIP  netip.Addr
	DestQPN   uint32
	PathMTU   int    // 256, 512, 1024, 2048 or 4096
	SQPSN     uint32 // first PSN that we send
	RQPSN     uint32 // first PSN that we expect
	// FlowLabel decides the UDP source port, if not 0; otherwise the queue
	// pairs' numbers do.
	FlowLabel uint32
	// MaxRdAtomic is how many READs and atomics may be outstanding,
	// MaxDestRdAtomic how many the responder remembers, rounded up to a power
	// of two. 0 = 16. MaxDestRdAtomic may be NoRdAtomic.
	MaxRdAtomic, MaxDestRdAtomic int
	Timeout                      int // local ACK timeout: 4.096 us * 2^Timeout; 0 = none
	// RetryCnt and RNRRetry are how often in a row, without progress, the
	// requester tries again. 7 RNR retries are without end; with the RXE
	// profile so are 7 of the others, as rxe has it.
	RetryCnt, RNRRetry int
	MinRNRTimer        int // code of AETH RNR NAK
	// Link, if not nil, is what the queue pair's frames look like; nil takes the
	// NIC's. Frames that come in must be alike. Connect copies it.
	Link *Link
}

// NoRdAtomic as Conn.MaxDestRdAtomic: the responder has no resources, and
// refuses READs and atomics with NAK invalid request.
const NoRdAtomic = -1

// DefaultConn has rxe's and Clover's usual numbers: MTU 1024, timeout 14 (67
// ms), 7 retries, minimum RNR timer 12.
func DefaultConn() Conn {
	return Conn{PathMTU: 1024, MaxRdAtomic: 16, MaxDestRdAtomic: 16, Timeout: 14, RetryCnt: 7, RNRRetry: 7, MinRNRTimer: 12}
}

// QPInit describes a queue pair that is to be made.
type QPInit struct {
	PD             *PD
	Type           Type
	SendCQ, RecvCQ *CQ
	MaxSend        int // work requests; 0 = 128
	MaxRecv        int // 0 = 128
	Access         Access
	QKey           uint32 // UD
	SQSigAll       bool
}

// Errors of the verbs.
var (
	ErrQueueFull = errors.New("work queue is full")
	ErrState     = errors.New("queue pair is not in a state for that")
	ErrInvalid   = errors.New("invalid argument")
)
