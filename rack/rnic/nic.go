package rnic

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math/rand/v2"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
)

// pathOverhead is the number of bytes that rxe subtracts from the Ethernet MTU before it rounds
// down to a path MTU: IPv6, UDP, BTH, the longest extended header of a packet
// with payload, and the ICRC.
const pathOverhead = 80

// starveDelay is the time after which a driver should call Output again if the pool had no
// frame: about the time of one batch.
const starveDelay = 1000 // ns

// Stats holds a NIC's totals. Every frame given to Input counts in
// RxFrames and in exactly one of RxRequests, RxResponses, RxControl and the
// Drop counters. Every frame that Output made counts in TxFrames and in one of
// TxRequests, TxResponses and TxControl.
type Stats struct {
	RxFrames, RxRequests, RxResponses, RxControl uint64
	TxFrames, TxRequests, TxResponses, TxControl uint64

	DropNotForUs   uint64 // other MAC or IP address, VLAN, or RoCE version
	DropNotRoCE    uint64 // a protocol that the NIC does not speak
	DropMalformed  uint64 // lengths, versions, fragments, IP checksum
	DropBadICRC    uint64
	DropBadPKey    uint64
	DropUnknownQPN uint64
	DropWrongPeer  uint64 // not from the connection's address
	DropBadQKey    uint64
	DropBadState   uint64 // queue pair not connected, in error, or of another type
	DropStale      uint64 // response to a request that was answered already, or was never sent
	DropSequence   uint64 // request out of sequence, in the shadow of a NAK or unreliable
	DropDuplicate  uint64 // duplicate READ or atomic that is not remembered any more
	DropBusy       uint64 // more unanswered requests than the responder holds
	DropNoRecv     uint64 // unreliable message without receive request, or too long
	DropBadAccess  uint64 // unreliable WRITE outside of a region
	DropControl    uint64 // ARP, ND or echo that found the reply queue full

	Duplicates    uint64 // duplicate requests that were answered again
	OutOfSequence uint64 // requests ahead of the expected PSN
	NAKSequenceTx uint64
	NAKSequenceRx uint64
	NAKErrorTx    uint64 // invalid request, remote access, remote operation
	NAKErrorRx    uint64
	RNRTx, RNRRx  uint64
	Timeouts      uint64
	ImplicitNAKs  uint64 // responses that showed that an earlier one was lost
	Retransmitted uint64 // request packets
	ReplayedAtoms uint64 // atomics answered from a responder resource
	AcksMerged    uint64 // acknowledgements left out by coalescing
	CQOverruns    uint64
	PoolEmpty     uint64 // Output found no free frame

	CERx         uint64 // frames that were marked CE on the way
	CNPTx, CNPRx uint64 // congestion notifications
}

// NIC is a soft RoCEv2 NIC. It is not for concurrent use.
type NIC struct {
	cfg        Config
	ip4        bool
	maxPathMTU int
	pool       *packet.Pool
	rand       *rand.Rand
	stats      Stats
	now        clock.Time
	starved    bool

	qps    []*QP // by QPN - cfg.FirstQPN
	gsi    *QP   // queue pair 1
	freeQP []uint32
	mrs    []*MR    // by R_Key >> 8
	freeMR []uint32 // their R_Keys

	reqQ, rspQ queue
	timers     timers
	control    controlQueue

	ipID  uint16
	frame hdr.Frame
}

// New makes a NIC. It returns an error, mostly ErrInvalid, if c is not usable.
func New(c Config) (*NIC, error) {
	if !c.IP.IsValid() || c.IP.IsUnspecified() || c.IP.IsMulticast() {
		return nil, fmt.Errorf("rnic: %v is not an address for a NIC: give a unicast IPv4 or IPv6 address: %w", c.IP, ErrInvalid)
	}
	if c.MAC == [6]byte{} || c.MAC[0]&1 != 0 {
		return nil, fmt.Errorf("rnic: %x is not an address for a NIC: give a unicast MAC address: %w", c.MAC, ErrInvalid)
	}
	if c.Profile > ConnectX {
		return nil, fmt.Errorf("rnic: profile %d does not exist: %w", c.Profile, ErrInvalid)
	}
	c.LinkMTU = cmp.Or(c.LinkMTU, 1500)
	c.Slots = cmp.Or(c.Slots, 1024)
	c.FirstQPN = cmp.Or(c.FirstQPN, 17)
	if c.FirstQPN < 2 || c.FirstQPN > 0xFFFFFF {
		return nil, fmt.Errorf("rnic: first queue pair number %#x is not 2 to 0xffffff: %w", c.FirstQPN, ErrInvalid)
	}
	if c.AckCoalesce < 0 {
		return nil, fmt.Errorf("rnic: an ACK cannot cover %d packets: %w", c.AckCoalesce, ErrInvalid)
	}
	if c.AckCoalesce == 0 {
		c.AckCoalesce = 1
		if c.Profile == ConnectX {
			c.AckCoalesce = 16
		}
	}
	if c.CNPInterval == 0 && c.Profile == ConnectX {
		c.CNPInterval = 4000
	}
	if err := c.Link.check(); err != nil {
		return nil, err
	}
	c.IP = c.IP.Unmap()
	n := &NIC{cfg: c, ip4: c.IP.Is4(), pool: c.Pool}
	for m := 4096; m >= 256; m /= 2 {
		if m+pathOverhead <= c.LinkMTU {
			n.maxPathMTU = m
			break
		}
	}
	if n.maxPathMTU == 0 {
		return nil, fmt.Errorf("rnic: link MTU %d is below %d, too small for any path MTU: %w", c.LinkMTU, 256+pathOverhead, ErrInvalid)
	}
	if n.pool == nil {
		size := (packet.Headroom + 14 + c.LinkMTU + 63) &^ 63
		p, err := packet.NewPool(c.Slots, size, nil)
		if err != nil {
			return nil, err
		}
		n.pool = p
	}
	for n.maxPathMTU >= 256 && 14+n.maxPathMTU+pathOverhead > n.pool.SlotSize()-packet.Headroom {
		n.maxPathMTU /= 2
	}
	if n.maxPathMTU < 256 {
		return nil, fmt.Errorf("rnic: slots of %d bytes are too small for any path MTU: %w", n.pool.SlotSize(), ErrInvalid)
	}
	n.rand = rand.New(rand.NewPCG(c.Seed, 0x726e6963))
	n.control.ring = make([]*packet.Buf, controlDepth)
	n.ipID = uint16(n.rand.Uint32())
	return n, nil
}

// RandomPSN returns a starting PSN from the NIC's seeded random source.
func (n *NIC) RandomPSN() uint32 { return n.rand.Uint32() & hdr.PSNMask }

// Config returns the NIC's configuration with all defaults filled in.
func (n *NIC) Config() Config { return n.cfg }

// Pool returns the pool from which Output takes its frames.
func (n *NIC) Pool() *packet.Pool { return n.pool }

// MaxPathMTU returns the largest path MTU that the link and the pool's slots carry, in bytes.
func (n *NIC) MaxPathMTU() int { return n.maxPathMTU }

// Stats returns the totals so far.
func (n *NIC) Stats() Stats { return n.stats }

// QP returns the queue pair with number qpn, or nil if there is none.
func (n *NIC) QP(qpn uint32) *QP {
	if i := qpn - n.cfg.FirstQPN; i < uint32(len(n.qps)) {
		return n.qps[i]
	}
	if qpn == 1 {
		return n.gsi
	}
	return nil
}

// Input takes a received frame, and owns b from then on.
func (n *NIC) Input(now clock.Time, b *packet.Buf) {
	n.now = now
	n.stats.RxFrames++
	if !n.input(b) {
		b.Put()
	}
}

// input handles a frame; it returns true if it kept b (to reply in it).
func (n *NIC) input(b *packet.Buf) bool {
	p, f, s := b.Bytes(), &n.frame, &n.stats
	why := hdr.Parse(p, f)
	if len(p) < 14 {
		s.DropMalformed++
		return false
	}
	if [6]byte(p[:6]) != n.cfg.MAC {
		if p[0]&1 != 0 && why == hdr.NotRoCE && f.Tags == 0 {
			return n.inputControl(b, p)
		}
		s.DropNotForUs++
		return false
	}
	switch {
	case f.Tags > 0 && (f.Tags > 1 || why == hdr.NotRoCE):
		s.DropNotForUs++
		return false
	case why == hdr.IsRoCE:
	case why == hdr.NotRoCE:
		return n.inputControl(b, p)
	default:
		s.DropMalformed++
		return false
	}
	if !n.forUs(p, f) {
		s.DropNotForUs++
		return false
	}
	if f.Net == hdr.NetIPv4 && sum16(p[f.L3:f.L4], 0) != 0xFFFF {
		s.DropMalformed++
		return false
	}
	if !hdr.GoodICRC(p, f) {
		s.DropBadICRC++
		return false
	}
	bth := f.BTHOf(p)
	if bth.PKey()&0x7FFF != 0x7FFF { // ours is the default, full member
		s.DropBadPKey++
		return false
	}
	q := n.QP(bth.DestQP())
	if q == nil {
		s.DropUnknownQPN++
		return false
	}
	q.input(p, f)
	return false
}

func (n *NIC) forUs(p []byte, f *hdr.Frame) bool {
	if f.Net == hdr.NetIPv4 {
		return n.ip4 && [4]byte(p[f.L3+16:]) == n.cfg.IP.As4()
	}
	// The GID of an IPv4 address is the address mapped to IPv6.
	return (!n.ip4 || f.Net == hdr.NetGRH) && [16]byte(p[f.L3+24:]) == n.cfg.IP.As16()
}

// input handles a packet whose ICRC and P_Key are right.
func (q *QP) input(p []byte, f *hdr.Frame) {
	s := &q.nic.stats
	if q.state != StateReady {
		s.DropBadState++
		return
	}
	if !q.tmpl.alike(p, f) {
		s.DropNotForUs++
		return
	}
	if marked(p, f) {
		q.congested()
	}
	switch f.Op.Transport() {
	case hdr.RC:
		if q.Type != TypeRC {
			s.DropBadState++
			return
		}
		if !q.fromPeer(p, f) {
			s.DropWrongPeer++
			return
		}
		if f.Op.Has(hdr.IsResponse) {
			q.req.inputResponse(q, p, f)
		} else {
			q.resp.inputRequest(q, p, f)
		}
	case hdr.UC:
		if q.Type != TypeUC {
			s.DropBadState++
			return
		}
		if !q.fromPeer(p, f) {
			s.DropWrongPeer++
			return
		}
		q.resp.inputUC(q, p, f)
	case hdr.UD:
		if q.Type != TypeUD {
			s.DropBadState++
			return
		}
		q.resp.inputUD(q, p, f)
	case hdr.CNT:
		if q.Type != TypeUD && !q.fromPeer(p, f) {
			s.DropWrongPeer++
			return
		}
		s.RxControl++ // there is no rate control
		s.CNPRx++
		q.stats.CNPRx++
	default:
		s.DropBadState++
	}
}

func (q *QP) fromPeer(p []byte, f *hdr.Frame) bool {
	if f.Net == hdr.NetIPv4 {
		return [4]byte(p[f.L3+12:]) == q.tmpl.peer4
	}
	return [16]byte(p[f.L3+8:]) == q.tmpl.peer6
}

// Output appends the frames that are due to out until out is full: first the
// replies of the NIC itself, then responses, then requests. It serves the queue pairs
// round robin. The caller owns the frames.
func (n *NIC) Output(now clock.Time, out *packet.Batch) {
	n.now = now
	n.starved = false
	for !out.Full() {
		if b := n.control.pop(); b != nil {
			n.stats.TxControl++
			n.emit(b, out)
			continue
		}
		if n.rspQ.head == nil && n.reqQ.head == nil {
			return
		}
		b := n.pool.Get()
		if b == nil {
			n.starved = true
			n.stats.PoolEmpty++
			return
		}
		if q := n.rspQ.head; q != nil {
			n.rspQ.popRsp()
			switch {
			case q.cnpDue:
				q.sendCNP(b)
				n.stats.TxControl++
				n.emit(b, out)
			case q.resp.sendResponse(q, b):
				n.stats.TxResponses++
				n.emit(b, out)
			default:
				b.Put()
			}
			if q.resp.pending() {
				n.rspQ.pushRsp(q)
			}
			continue
		}
		q := n.reqQ.head
		n.reqQ.popReq()
		if q.req.sendRequest(q, b) {
			n.stats.TxRequests++
			n.emit(b, out)
		} else {
			b.Put()
		}
		q.kick()
	}
}

func (n *NIC) emit(b *packet.Buf, out *packet.Batch) {
	b.Verdict = packet.Generated
	n.stats.TxFrames++
	out.Add(b)
}

// Deadline returns the time at which Tick or Output has work even if no frame is received. A time
// that has passed means at once. It may be too early, because only Tick notices that a timer
// was moved to a later time.
func (n *NIC) Deadline() clock.Time {
	if n.starved {
		return n.now.Add(starveDelay)
	}
	if n.control.n > 0 || n.rspQ.head != nil || n.reqQ.head != nil {
		return n.now
	}
	return n.timers.next()
}

// Tick serves the timers that are due at time now.
func (n *NIC) Tick(now clock.Time) {
	n.now = now
	for {
		q := n.timers.due(now)
		if q == nil {
			return
		}
		q.req.expire(q)
	}
}

// queue is a FIFO of queue pairs that have something to send.
type queue struct{ head, tail *QP }

func (l *queue) pushReq(q *QP) {
	if q.inReq {
		return
	}
	q.inReq = true
	if l.head == nil {
		l.head = q
	} else {
		l.tail.reqNext = q
	}
	l.tail = q
}

func (l *queue) popReq() {
	q := l.head
	l.head, q.reqNext, q.inReq = q.reqNext, nil, false
}

func (l *queue) pushRsp(q *QP) {
	if q.inRsp {
		return
	}
	q.inRsp = true
	if l.head == nil {
		l.head = q
	} else {
		l.tail.rspNext = q
	}
	l.tail = q
}

func (l *queue) popRsp() {
	q := l.head
	l.head, q.rspNext, q.inRsp = q.rspNext, nil, false
}

// sum16 is the ones' complement sum of b's big-endian words and s, folded.
func sum16(b []byte, s uint32) uint16 {
	for len(b) >= 2 {
		s += uint32(binary.BigEndian.Uint16(b))
		b = b[2:]
	}
	if len(b) == 1 {
		s += uint32(b[0]) << 8
	}
	s = s>>16 + s&0xFFFF
	s += s >> 16
	return uint16(s)
}
