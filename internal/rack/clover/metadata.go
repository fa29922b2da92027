package clover

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/quillon/quillon/nf/clock"
	wire "github.com/quillon/quillon/nf/hdr/clover"
	"github.com/quillon/quillon/rack/rnic"
)

// entryState says what the metadata server knows about an entry in its present version.
type entryState uint8

const (
	entryFree    entryState = iota // never granted, or listed again
	entryGranted                   // a client has the entry
	entryLinked                    // known to be in its key's chain
	entryRetired                   // known to be superseded, or given back; waits for its grace period
	entryParked                    // out of versions
)

type entryMeta struct {
	version uint8
	state   entryState
}

type keyMeta struct {
	key   uint64
	head  Pointer // the oldest entry of the chain that is not retired
	slot  uint32
	dirty bool // waits for a walk, or is walked now
}

// class is the free entries of one slab size.
type class struct {
	slab   int
	fresh  []freshRun
	turn   int
	listed queue[Pointer] // recycled
	free   int            // entries in fresh and listed
	total  int
}

type freshRun struct{ next, end uint32 }

type retired struct {
	entry Pointer
	ready clock.Time
}

// MetadataStats are a metadata server's totals.
type MetadataStats struct {
	Requests, Granted, Refused, Retired, Recycled, Parked uint64
	// Broken counts walks that met an entry of another version or key, or whose READ failed. It is zero
	// unless the store is damaged or a connection broke.
	Broken uint64
}

// MetadataConfig describes a metadata server.
type MetadataConfig struct {
	// GCBelow is a share of free entries. When a class has at most this share free, superseded entries are
	// searched for and recycled; 0 = 0.5, 1 = always.
	GCBelow float64
	// MaxClients is how many connections the server can serve; 0 = 4096, or more if the clients of a Cluster
	// need more.
	MaxClients int
}

// Metadata is the metadata server. It grants entries, knows the head of every key's chain, and recycles
// superseded entries. It implements host.App.
//
// Recycling never trusts a report. A writer whose CAS was steered does not know which entry it superseded, so
// the server takes from a GC request only the names of keys whose chains have grown. It walks such a chain
// from the head with RDMA READs of its own, and retires an entry only when it has read, in that entry, the
// link to its successor. A chain is linked from its head on. So an entry that was walked is reachable, an
// entry that has a successor is no tail, and an entry that has no successor yet is never recycled, in
// whatever order the writes were acknowledged.
type Metadata struct {
	pd      *rnic.PD
	cq      *rnic.CQ
	cfg     MetadataConfig
	layout  Layout
	first   uint32 // lowest handle
	entries []entryMeta
	classes []*class
	keys    map[uint64]*keyMeta
	slots   queue[uint32] // free shortcut slots
	conns   []*serverConn
	free    []int      // free places in conns
	filler  *filler    // of a store that is loaded over the wire
	memory  []*rnic.QP // by memory node
	dirty   queue[*keyMeta]
	grace   queue[retired]
	walkers []walker
	idle    []int // walkers
	ledger  *ledger
	stats   MetadataStats
	wcs     [32]rnic.WC
}

type serverConn struct {
	qp    *rnic.QP
	recv  [2][]byte
	reply [2][]byte
	turn  int
	wr    rnic.SendWR
	sgl   [1][]byte
}

// walkLen is how many bytes a walk reads of an entry: header, key, and the first 8 bytes of the value, which
// the ledger takes.
const walkLen = 24

type walker struct {
	key  *keyMeta
	hops int
	buf  [walkLen]byte
	wr   rnic.SendWR
	sgl  [1][]byte
}

const (
	walkers  = 64
	walkHops = 64 // after so many entries of one key another key has its turn
)

// IDs of completions. The comment names the bits below.
const (
	idRecv  = iota << 56 // connection<<8 | buffer
	idReply              // connection
	idWalk               // walker
	idFill               // none: a WRITE of the filler
)

// NewMetadata makes the server of the memory nodes whose layouts are joined in l.
func NewMetadata(nic *rnic.NIC, l Layout, c MetadataConfig) (*Metadata, error) {
	c.GCBelow = cmp.Or(c.GCBelow, 0.5)
	c.MaxClients = cmp.Or(c.MaxClients, 4096)
	if c.GCBelow < 0 || c.GCBelow > 1 || c.MaxClients < 0 {
		return nil, fmt.Errorf("clover: GC below a share of %v free is outside 0..1, or a negative number", c.GCBelow)
	}
	m := &Metadata{pd: nic.AllocPD(), cfg: c, layout: l, keys: make(map[uint64]*keyMeta)}
	m.cq = nic.CreateCQ(4*c.MaxClients + 2*walkers)
	lo, hi := ^uint32(0), uint32(0)
	for i := range l {
		s := &l[i]
		if s.Kind == KindShortcut {
			for j := range s.Count {
				m.slots.push(s.FirstLH + j)
			}
			continue
		}
		lo, hi = min(lo, s.FirstLH), max(hi, s.FirstLH+s.Count)
		k := m.class(int(s.Slab))
		if k == nil {
			k = &class{slab: int(s.Slab)}
			m.classes = append(m.classes, k)
		}
		k.fresh = append(k.fresh, freshRun{s.FirstLH, s.FirstLH + s.Count})
		k.free += int(s.Count)
		k.total += int(s.Count)
	}
	if hi == 0 || m.slots.n == 0 {
		return nil, fmt.Errorf("clover: the layout has no entries or no shortcuts")
	}
	m.first = lo
	m.entries = make([]entryMeta, hi-lo)
	for i := range m.entries {
		m.entries[i].version = wire.MinVersion
	}
	m.walkers = make([]walker, walkers)
	for i := range m.walkers {
		w := &m.walkers[i]
		w.sgl[0] = w.buf[:]
		m.idle = append(m.idle, i)
	}
	return m, nil
}

func (m *Metadata) class(slab int) *class {
	for _, k := range m.classes {
		if k.slab == slab {
			return k
		}
	}
	return nil
}

// meta is what the server knows about an entry; nil if the handle does not exist.
func (m *Metadata) meta(lh uint32) *entryMeta {
	if i := lh - m.first; i < uint32(len(m.entries)) {
		return &m.entries[i]
	}
	return nil
}

// Stats may be called by the owner's goroutine only.
func (m *Metadata) Stats() MetadataStats { return m.stats }

// Deadline implements host.App.
func (m *Metadata) Deadline() clock.Time {
	if m.grace.n == 0 {
		return clock.Never
	}
	return m.grace.front().ready
}

// Step implements host.App.
func (m *Metadata) Step(now clock.Time) bool {
	did := false
	for {
		k := m.cq.Poll(m.wcs[:])
		for i := range m.wcs[:k] {
			m.complete(now, &m.wcs[i])
		}
		if k == 0 {
			break
		}
		did = true
	}
	for m.grace.n > 0 && m.grace.front().ready <= now {
		m.relist(m.grace.pop().entry)
		did = true
	}
	for m.dirty.n > 0 && len(m.idle) > 0 && m.scarce() {
		i := m.idle[len(m.idle)-1]
		m.idle = m.idle[:len(m.idle)-1]
		w := &m.walkers[i]
		w.key, w.hops = m.dirty.pop(), 0
		m.read(i)
		did = true
	}
	return did
}

func (m *Metadata) scarce() bool {
	return slices.ContainsFunc(m.classes, func(k *class) bool { return float64(k.free) <= m.cfg.GCBelow*float64(k.total) })
}

func (m *Metadata) complete(now clock.Time, c *rnic.WC) {
	arg := c.ID & (1<<56 - 1)
	switch c.ID &^ (1<<56 - 1) {
	case idRecv:
		if c.Status != rnic.Success {
			return
		}
		conn := m.conns[arg>>8]
		if conn == nil || conn.qp.QPN != c.QPN { // it has ended
			return
		}
		buf := conn.recv[arg&1]
		m.serve(now, conn, buf[:min(int(c.ByteLen), len(buf))])
		_ = conn.qp.PostRecv(&rnic.RecvWR{ID: c.ID, Buf: buf})
	case idFill:
		m.filler.written(c.Status == rnic.Success)
	case idWalk:
		m.walked(now, int(arg), c.Status == rnic.Success)
	}
}

// serve answers one request. A message of another length than MsgLen and LargeMsgLen gets no answer, since it
// may have no address to answer to. A message whose length is wrong for its type gets resBad.
func (m *Metadata) serve(now clock.Time, c *serverConn, req []byte) {
	m.stats.Requests++
	if len(req) != MsgLen && len(req) != LargeMsgLen {
		m.stats.Refused++
		return
	}
	out := c.reply[c.turn]
	c.turn ^= 1
	clear(out)
	t := MsgType(u32(req, msgType))
	res := resBad
	switch {
	case t == MsgGC && len(req) == LargeMsgLen:
		res = m.gcRequest(req)
	case len(req) != MsgLen:
	case t == MsgInit:
		if i := u32(req, initIndex); i < uint32(len(m.layout)) {
			putSpace(out, &m.layout[i])
			put32(out, initTotal, uint32(len(m.layout)))
			res = resOK
		}
	case t == MsgAskEntry:
		res = m.grant(req, out)
	case t == MsgEntry:
		res = m.entryRequest(req, out)
	case t == MsgRecycle:
		res = m.giveBack(now, req)
	}
	if res == resBad {
		m.stats.Refused++
	}
	put32(out, msgType, uint32(t)+1)
	put32(out, msgDes, u32(req, msgSrc))
	put32(out, msgThread, u32(req, msgThread))
	put64(out, msgOption, res)
	put64(out, msgCRC, crcDone)
	c.sgl[0] = out
	c.wr = rnic.SendWR{ID: idReply, Op: rnic.OpWrite, SGL: c.sgl[:], RemoteAddr: u64(req, msgAddr), RKey: u32(req, msgRKey), Signaled: true}
	_ = c.qp.PostSend(&c.wr)
}

// grant lists up to GrantMax entries of the class that the request names. Fresh entries come first, from all
// memory nodes in turn. Recycled ones follow, the oldest first, so that cached references stay useful for
// long.
func (m *Metadata) grant(req, out []byte) uint64 {
	k := m.class(int(u32(req, grantSize)))
	want := int(u32(req, grantCount))
	if k == nil || want < 1 || want > GrantMax {
		return resBad
	}
	put32(out, grantSize, uint32(k.slab))
	n := 0
	for range k.fresh {
		r := &k.fresh[k.turn]
		k.turn = (k.turn + 1) % len(k.fresh)
		for n < want && r.next < r.end {
			m.meta(r.next).state = entryGranted
			put64(out, grantPtrs+8*n, uint64(wire.Ref(r.next, wire.MinVersion)))
			r.next++
			n++
		}
		if n > 0 {
			break
		}
	}
	for n < want && k.listed.n > 0 {
		p := k.listed.pop()
		m.meta(p.LH()).state = entryGranted
		put64(out, grantPtrs+8*n, uint64(p))
		n++
	}
	k.free -= n
	m.stats.Granted += uint64(n)
	put32(out, grantCount, uint32(n))
	if n == 0 {
		return resNoSpace
	}
	return resOK
}

func (m *Metadata) entryRequest(req, out []byte) uint64 {
	key, own := u64(req, entKey), pointerAt(req, entPtr)
	put64(out, entKey, key)
	put32(out, entFactor, 1)
	switch u32(req, entType) {
	case EntryQuery:
		k := m.keys[key]
		if k == nil {
			return resNoKey
		}
		put64(out, entPtr, uint64(k.head))
		put32(out, entShortcut, k.slot)
		if own != 0 && m.wasLinked(own) {
			return resLinked
		}
		return resOK
	case EntryOpen:
		if k := m.keys[key]; k != nil {
			put64(out, entPtr, uint64(k.head))
			put32(out, entShortcut, k.slot)
			return resExists
		}
		e := m.meta(own.LH())
		if e == nil || e.version != own.Version() || e.state != entryGranted {
			return resBad
		}
		if m.slots.n == 0 {
			return resNoSpace
		}
		k := m.create(key, own)
		put64(out, entPtr, uint64(own))
		put32(out, entShortcut, k.slot)
		return resOK
	}
	return resBad
}

func (m *Metadata) create(key uint64, head Pointer) *keyMeta {
	m.meta(head.LH()).state = entryLinked
	k := &keyMeta{key: key, head: head, slot: m.slots.pop()}
	m.keys[key] = k
	return k
}

// wasLinked reports whether the server knows that the entry, in the version of p, is or was in its chain.
func (m *Metadata) wasLinked(p Pointer) bool {
	e := m.meta(p.LH())
	return e != nil && (e.version > p.Version() ||
		e.version == p.Version() && e.state != entryFree && e.state != entryGranted)
}

func (m *Metadata) gcRequest(req []byte) uint64 {
	n := u32(req, gcCount)
	if n > GCMax {
		return resBad
	}
	for i := range int(n) {
		k := m.keys[u64(req, gcEntries+i*gcEntryLen+gcKey)]
		if k != nil && !k.dirty {
			k.dirty = true
			m.dirty.push(k)
		}
	}
	return resOK
}

// giveBack takes entries back that a client was granted and has never tried to link.
func (m *Metadata) giveBack(now clock.Time, req []byte) uint64 {
	n := u32(req, grantCount)
	if n > GrantMax {
		return resBad
	}
	for i := range int(n) {
		p := pointerAt(req, grantPtrs+8*i)
		e := m.meta(p.LH())
		if e == nil || e.version != p.Version() || e.state != entryGranted {
			return resBad
		}
		m.retire(now, p, e)
	}
	return resOK
}

func (m *Metadata) retire(now clock.Time, p Pointer, e *entryMeta) {
	e.state = entryRetired
	s, _ := m.layout.Entry(p.LH())
	m.grace.push(retired{p, now.Add(2 * rtt(int(s.Slab)))})
	m.stats.Retired++
}

// rtt is Clover's estimate of a round trip by slab size. The grace period is twice as long.
func rtt(slab int) time.Duration {
	switch {
	case slab < 1<<10:
		return 2 * time.Microsecond
	case slab < 4<<10:
		return 3 * time.Microsecond
	case slab < 8<<10:
		return 4 * time.Microsecond
	case slab < 16<<10:
		return 5 * time.Microsecond
	}
	return 10 * time.Microsecond
}

// relist makes a retired entry available with its next version. Versions are never used twice, so a reference
// to an earlier version can never pass for the present one: an entry that has no versions left is parked.
func (m *Metadata) relist(p Pointer) {
	e := m.meta(p.LH())
	if e.version+1 >= ParkVersion {
		e.state = entryParked
		m.stats.Parked++
		return
	}
	e.version++
	e.state = entryFree
	s, _ := m.layout.Entry(p.LH())
	k := m.class(int(s.Slab))
	k.listed.push(wire.Ref(p.LH(), e.version))
	k.free++
	m.stats.Recycled++
}

// read posts the READ for the next step of a walk.
func (m *Metadata) read(i int) {
	w := &m.walkers[i]
	s, va := m.layout.Entry(w.key.head.LH())
	w.wr = rnic.SendWR{ID: idWalk | uint64(i), Op: rnic.OpRead, SGL: w.sgl[:], RemoteAddr: va, RKey: s.RKey, Signaled: true}
	if m.memory[s.Node].PostSend(&w.wr) != nil {
		m.endWalk(i, true)
	}
}

func (m *Metadata) endWalk(i int, again bool) {
	w := &m.walkers[i]
	if again {
		m.dirty.push(w.key)
	} else {
		w.key.dirty = false
	}
	w.key = nil
	m.idle = append(m.idle, i)
}

func (m *Metadata) walked(now clock.Time, i int, ok bool) {
	w := &m.walkers[i]
	if !ok {
		m.stats.Broken++
		m.endWalk(i, false)
		return
	}
	k := w.key
	h := pointerAt(w.buf[:], 0)
	next := h.Next()
	if next == 0 {
		m.endWalk(i, false)
		return
	}
	e, ne := m.meta(k.head.LH()), m.meta(next.LH())
	if h.Version() != k.head.Version() || u64(w.buf[:], wire.KeyAt) != k.key ||
		ne == nil || ne.version != next.Version() || ne.state == entryFree || ne.state > entryLinked {
		m.stats.Broken++
		m.endWalk(i, false)
		return
	}
	if m.ledger != nil {
		m.ledger.superseded(k.key, u64(w.buf[:], ValueAt))
	}
	m.retire(now, k.head, e)
	k.head = next
	ne.state = entryLinked
	w.hops++
	if w.hops == walkHops {
		m.endWalk(i, true)
		return
	}
	m.read(i)
}
