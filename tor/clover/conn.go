package clover

import (
	"slices"
	"unsafe"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
	wire "github.com/quillon/quillon/nf/hdr/clover"
	"github.com/quillon/quillon/tor/index"
)

// addr is an IP address, IPv4 as IPv4-mapped.
type addr struct{ hi, lo uint64 }

// pendingWrite is an entry that was written over a connection and whose CAS
// has not been steered or acknowledged yet.
type pendingWrite struct {
	at      clock.Time
	va      uint64
	end     uint32 // PSN of its last packet
	slot    int32  // address slot; noSlot when its key is not tracked
	key     int32
	size    uint32
	region  uint16
	version uint8
}

// maxWrites is the number of written entries that a connection may have
// waiting for their CAS: one a thread that shares it, and a few that never
// get one (creations).
const maxWrites = 8

// trustedMatches is how many responses must fit a connection's outstanding
// requests, each of them fitting no other, before the two directions count as
// paired.
const trustedMatches = 3

// row is a reliable connection, seen from the memory server: requests are
// found by (server, its QPN), responses by (client, its QPN) once paired.
type row struct {
	server, client addr
	sqpn, cqpn     uint32
	sid            uint16 // server number
	sport          uint16
	used           bool
	paired         bool
	resync         bool // take the next PSN as it comes
	matches        uint8
	ahead          uint8  // requests in a row that were ahead of epsn
	epsn           uint32 // next PSN expected of the client
	slack          uint32 // PSNs that an earlier READ may have used beyond epsn
	acked          uint32 // newest PSN that the server answered
	mtu            uint16 // path MTU, 0 = not known
	last           clock.Time
	nw             int
	writes         [maxWrites]pendingWrite
	head           uint8 // newest record, modulo window
	// start is the newest steered CAS's frame up to the end of the BTH: a
	// retransmission by the control side begins with it.
	start    [14 + 8 + 40 + 8 + hdr.BTHLen]byte
	startLen uint8
	out      uint8 // the app's output towards the server
	startF   hdr.Frame
	// front and back are the places+1 of answers that are held, in their
	// order; 0: none. heldTo is the PSN of the one at the back.
	front, back int32
	heldTo      uint32
}

// take removes the i-th waiting entry.
func (r *row) take(i int) {
	r.nw--
	copy(r.writes[i:], r.writes[i+1:r.nw+1])
}

// linked removes the waiting entry at va, if there is one.
func (r *row) linked(va uint64) {
	for i := range r.writes[:r.nw] {
		if r.writes[i].va == va {
			r.take(i)
			return
		}
	}
}

// op kinds.
const (
	opNone uint8 = iota
	opRead
	opCAS
)

// op is a request that was forwarded: what was done to it, so that its
// retransmission takes the same road and its answer can be turned back.
type op struct {
	va, newVA uint64
	swap      uint64 // CAS: as the client sent it; it compares with Fresh(cliVer)
	entry     uint64 // CAS: address of the new entry; 0: not known
	psn       uint32
	epoch     uint32 // of the key when the request passed
	n         uint32 // CAS: number of the append; READ: of the tail's
	rkey      uint32 // as the client sent it, and as it is sent
	key       int32  // key slot; noSlot: not attributed
	slot      int32  // CAS: address slot of the new entry
	size      uint32 // CAS: of the new entry, and region its region
	region    uint16
	npsn      uint16
	kind      uint8
	live      bool // not answered yet
	steered   bool
	void      bool  // CAS: what was before it was given up
	cliVer    uint8 // version that the client expects at va
	newVer    uint8 // version at newVA
	repairs   uint8
}

// compare is what a CAS compares with, as the client sent it.
func (o *op) compare() uint64 { return uint64(wire.Fresh(o.cliVer)) }

// window is the number of READs and atomics of a connection that are
// remembered: Clover's and rxe's usual limit of outstanding ones
// (max_rd_atomic).
const window = 16

// lookback is how many PSNs a retransmission may go back: what rxe lets a
// queue pair have outstanding (RXE_MAX_UNACKED_PSNS).
const lookback = 128

type connTable struct {
	rows     []row
	ops      []op // window per row, a ring in the order of PSNs
	free     []int32
	ix       index.Index // (server, sqpn)
	rx       index.Index // (client, cqpn), paired or candidates
	unpaired []int32     // rows
}

func newConnTable(n int) connTable {
	t := connTable{rows: make([]row, n), ops: make([]op, n*window), free: make([]int32, 0, n), unpaired: make([]int32, 0, n), ix: index.New(n), rx: index.New(n)}
	for i := n - 1; i >= 0; i-- {
		t.free = append(t.free, int32(i))
	}
	return t
}

func connHash(a addr, qpn uint32) uint32 {
	return uint32(index.Mix(a.lo ^ a.hi*0x9E3779B97F4A7C15 ^ uint64(qpn)<<40))
}

// request finds the row of requests to (server, qpn); noSlot if there is none.
func (t *connTable) request(server addr, qpn uint32) int32 {
	h := connHash(server, qpn)
	for p := t.ix.Start(h); t.ix.E[p] != 0; p = t.ix.Next(p) {
		if s, ok := t.ix.Slot(p, h); ok && t.rows[s].sqpn == qpn && t.rows[s].server == server {
			return s
		}
	}
	return noSlot
}

// response finds the row of responses to (client, qpn).
func (t *connTable) response(client, server addr, qpn uint32) int32 {
	h := connHash(client, qpn)
	for p := t.rx.Start(h); t.rx.E[p] != 0; p = t.rx.Next(p) {
		if s, ok := t.rx.Slot(p, h); ok && t.rows[s].cqpn == qpn && t.rows[s].client == client && t.rows[s].server == server {
			return s
		}
	}
	return noSlot
}

func (t *connTable) insert(server, client addr, sqpn uint32) int32 {
	n := len(t.free) - 1
	if n < 0 {
		return noSlot
	}
	s := t.free[n]
	t.free = t.free[:n]
	t.rows[s] = row{server: server, client: client, sqpn: sqpn, used: true}
	t.forgetOps(s)
	t.ix.Put(connHash(server, sqpn), s)
	t.unpaired = append(t.unpaired, s)
	return s
}

// name notes that the client's QPN of row s is (or may be) cqpn.
func (t *connTable) name(s int32, cqpn uint32) {
	t.unname(s)
	r := &t.rows[s]
	r.cqpn = cqpn
	t.rx.Put(connHash(r.client, cqpn), s)
}

func (t *connTable) unname(s int32) {
	r := &t.rows[s]
	if r.cqpn != 0 {
		t.rx.Del(connHash(r.client, r.cqpn), s)
	}
	if r.paired {
		t.unpaired = append(t.unpaired, s)
	}
	r.cqpn, r.matches, r.paired = 0, 0, false
}

// pair notes that the two directions of row s, which has a name, belong
// together.
func (t *connTable) pair(s int32) {
	t.rows[s].paired = true
	t.unpaired = slices.DeleteFunc(t.unpaired, func(u int32) bool { return u == s })
}

func (t *connTable) remove(s int32) {
	t.unname(s)
	r := &t.rows[s]
	t.ix.Del(connHash(r.server, r.sqpn), s)
	*r = row{}
	t.unpaired = slices.DeleteFunc(t.unpaired, func(u int32) bool { return u == s })
	t.free = append(t.free, s)
}

// op is the record of the request of row s that used PSN psn; nil if there is
// none.
func (t *connTable) op(s int32, psn uint32) *op {
	ring := t.ops[int(s)*window : (int(s)+1)*window]
	for i, n := t.rows[s].head, 0; n < window; i, n = i-1, n+1 {
		o := &ring[i%window]
		if o.kind == opNone {
			return nil
		}
		switch d := hdr.PSNDiff(psn, o.psn); {
		case d >= 0 && d < int32(o.npsn):
			return o
		case d > 0:
			return nil
		}
	}
	return nil
}

// oldest is the record of row s that the next one takes the place of.
func (t *connTable) oldest(s int32) *op {
	return &t.ops[int(s)*window+int((t.rows[s].head+1)%window)]
}

// newOp is an empty record for PSN psn of row s, in place of the oldest one.
func (t *connTable) newOp(s int32, psn uint32) *op {
	o := t.oldest(s)
	t.rows[s].head++
	*o = op{psn: psn, npsn: 1, live: true, key: noSlot, slot: noSlot}
	return o
}

// forgetOps empties the records of row s.
func (t *connTable) forgetOps(s int32) { clear(t.ops[int(s)*window : (int(s)+1)*window]) }

func (t *connTable) len() int { return len(t.rows) - len(t.free) }

const (
	sizeofRow = unsafe.Sizeof(row{})
	sizeofOp  = unsafe.Sizeof(op{})
)
