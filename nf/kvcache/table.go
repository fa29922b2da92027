package kvcache

import (
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/flow"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/hdr/clio"
	"github.com/quillon/quillon/nf/memory"
)

const none = int32(-1)

// key is a key of a device. The device is an address in certain VLANs (of both tags).
type key struct {
	key    uint64
	device [4]byte
	vlans  uint32
	size   uint8
}

func (k *key) hash() uint64 {
	d := uint64(k.device[0]) | uint64(k.device[1])<<8 | uint64(k.device[2])<<16 | uint64(k.device[3])<<24 | uint64(k.size)<<32 | uint64(k.vlans)<<40
	return hdr.Fold(hdr.Fold(d, k.key), 1)
}

// request identifies a request: its session and its number.
type request struct {
	device, client [4]byte
	vlans          uint32
	port, id       uint16
}

func (r *request) hash() uint64 {
	be := func(a [4]byte) uint64 { return uint64(a[0])<<24 | uint64(a[1])<<16 | uint64(a[2])<<8 | uint64(a[3]) }
	return hdr.Fold(hdr.Fold(be(r.device)<<32|be(r.client), uint64(r.vlans)<<32|uint64(r.port)<<16|uint64(r.id)), 2)
}

// entry is a pair of key and value. It is valid, or waits for the answer to its write.
type entry struct {
	key    key
	hash   uint64
	valid  bool
	writer int32 // pending write that it waits for; none
	n      int   // bytes of its value
	next   int32 // of its chain, or of the free ones
}

// cache is a hash table of entries with their values. Both number and bytes of values are limited.
type cache struct {
	entries      []entry
	order        flow.Ages    // in which they are replaced
	values       []byte       // from the first entry on: not before it is known that there is no space
	space        memory.Space // where values are instead; nil: there is none
	size         int          // longest value
	heads        []int32
	free         int32
	bytes, limit int
	used         int
	evicted      uint64
}

func newCache(n, size, limit int, space memory.Space) cache {
	c := cache{entries: make([]entry, n), order: flow.NewAges(n), space: space, size: size, limit: limit, heads: make([]int32, ceil2(n))}
	for i := range c.heads {
		c.heads[i] = none
	}
	for i := range c.entries {
		c.entries[i].next = int32(i) + 1
	}
	c.entries[n-1].next = none
	return c
}

// grow makes room for n entries, if there are fewer. Entries keep their places.
func (c *cache) grow(n int) {
	was := *c
	if n <= len(was.entries) {
		return
	}
	*c = newCache(n, was.size, was.limit, was.space)
	copy(c.entries, was.entries)
	c.free, c.entries[n-1].next = int32(len(was.entries)), was.free
	c.bytes, c.used, c.evicted = was.bytes, was.used, was.evicted
	for i := was.order.Oldest(); i != none; i = was.order.Newer(i) {
		c.order.Add(i)
		head := &c.heads[c.entries[i].hash&uint64(len(c.heads)-1)]
		c.entries[i].next, *head = *head, i
	}
}

func ceil2(n int) int {
	p := 1
	for p < n {
		p *= 2
	}
	return p
}

func (c *cache) find(k *key, hash uint64) int32 {
	for i := c.heads[hash&uint64(len(c.heads)-1)]; i != none; i = c.entries[i].next {
		if e := &c.entries[i]; e.hash == hash && e.key == *k {
			return i
		}
	}
	return none
}

// value returns the value of entry i, in the cache's own memory.
func (c *cache) value(i int32) []byte {
	return c.values[int(i)*c.size:][:c.entries[i].n]
}

// at returns the address of entry i's value in the space.
func (c *cache) at(i int32) uint64 { return uint64(i) * uint64(c.size) }

// add makes a new entry, which is the newest one and not valid. The oldest entries are removed for it. It returns
// none if there is no place, or if the page of the value is not there. The key must have no entry, and the value
// must not be longer than c.size.
func (c *cache) add(k *key, hash uint64, value []byte) int32 {
	for c.free == none || c.bytes+len(value) > c.limit {
		oldest := c.order.Oldest()
		if oldest == none {
			return none
		}
		c.evicted++
		c.remove(oldest)
	}
	i := c.free
	e := &c.entries[i]
	c.free = e.next
	head := &c.heads[hash&uint64(len(c.heads)-1)]
	*e = entry{key: *k, hash: hash, writer: none, n: len(value), next: *head}
	*head = i
	c.order.Add(i)
	c.bytes += e.n
	c.used++
	if c.space == nil {
		if c.values == nil {
			c.values = make([]byte, len(c.entries)*c.size)
		}
		copy(c.value(i), value)
	} else if _, o := c.space.Write(c.at(i), value); o != memory.OK {
		c.remove(i)
		return none
	}
	return i
}

func (c *cache) remove(i int32) {
	e := &c.entries[i]
	p := &c.heads[e.hash&uint64(len(c.heads)-1)]
	for *p != i {
		p = &c.entries[*p].next
	}
	*p = e.next
	c.order.Remove(i)
	c.bytes -= e.n
	c.used--
	e.valid, e.writer = false, none
	e.next, c.free = c.free, i
}

func (c *cache) clear() {
	for i := c.order.Oldest(); i != none; i = c.order.Oldest() {
		c.remove(i)
	}
}

// pending is a request that has passed the cache, and whose answer has not.
type pending struct {
	req              request
	key              key
	reqHash, hash    uint64
	code             clio.Opcode
	spoiled          bool // nothing is learnt from its answer
	since            clock.Time
	nextReq, nextKey int32 // of their chains; nextReq also of the free ones
}

// pendings is a table of requests, which are found by request and by key.
type pendings struct {
	rows         []pending
	order        flow.Ages // by since
	byReq, byKey []int32
	free         int32
	used         int
}

func newPendings(n int) pendings {
	p := pendings{rows: make([]pending, n), order: flow.NewAges(n), byReq: make([]int32, ceil2(n)), byKey: make([]int32, ceil2(n))}
	for i := range p.byReq {
		p.byReq[i], p.byKey[i] = none, none
	}
	for i := range p.rows {
		p.rows[i].nextReq = int32(i) + 1
	}
	p.rows[n-1].nextReq = none
	return p
}

func (p *pendings) find(r *request) int32 {
	h := r.hash()
	for i := p.byReq[h&uint64(len(p.byReq)-1)]; i != none; i = p.rows[i].nextReq {
		if x := &p.rows[i]; x.reqHash == h && x.req == *r {
			return i
		}
	}
	return none
}

// add notes a request and returns its row, or none if there is no place.
func (p *pendings) add(now clock.Time, r *request, k *key, hash uint64, code clio.Opcode) int32 {
	i := p.free
	if i == none {
		return none
	}
	x := &p.rows[i]
	p.free = x.nextReq
	h := r.hash()
	a, b := &p.byReq[h&uint64(len(p.byReq)-1)], &p.byKey[hash&uint64(len(p.byKey)-1)]
	*x = pending{req: *r, key: *k, reqHash: h, hash: hash, code: code, since: now, nextReq: *a, nextKey: *b}
	*a, *b = i, i
	p.order.Add(i)
	p.used++
	return i
}

// refresh treats a request as if it had come now.
func (p *pendings) refresh(now clock.Time, i int32) {
	p.order.Renew(i)
	p.rows[i].since = now
}

func (p *pendings) remove(i int32) {
	x := &p.rows[i]
	a := &p.byReq[x.reqHash&uint64(len(p.byReq)-1)]
	for *a != i {
		a = &p.rows[*a].nextReq
	}
	*a = x.nextReq
	b := &p.byKey[x.hash&uint64(len(p.byKey)-1)]
	for *b != i {
		b = &p.rows[*b].nextKey
	}
	*b = x.nextKey
	p.order.Remove(i)
	p.used--
	x.nextReq, p.free = p.free, i
}

// yield removes a read that is among the 16 oldest requests, and returns false if there is none. That does no
// harm: nothing is learnt from the answer.
func (p *pendings) yield() bool {
	for i, n := p.order.Oldest(), 0; i != none && n < 16; i, n = p.order.Newer(i), n+1 {
		if p.rows[i].code == clio.Read {
			p.remove(i)
			return true
		}
	}
	return false
}

func (p *pendings) clear() {
	for i := p.order.Oldest(); i != none; i = p.order.Oldest() {
		p.remove(i)
	}
}

// sender is a session of a client, and its highest request number so far.
type sender struct {
	device, client [4]byte
	vlans          uint32
	port, last     uint16
	used           clock.Time // 0: none
	since          clock.Time // when it was first heard of
}

const ways = 4

// senders is a table of sessions, in sets of ways places. The session of a set that was silent for longest makes
// room.
type senders struct {
	rows []sender
	mask uint64
}

func newSenders(n int) senders {
	n = ceil2((n + ways - 1) / ways)
	return senders{make([]sender, n*ways), uint64(n - 1)}
}

// span is how far apart the numbers of a session's requests under way may be. Requests that passed before the
// session was known have numbers at most span above its first known one.
const span = 64

// fresh notes a request, and reports whether its number is above all earlier ones of its session, including those
// that passed before the session was known: these arrive within settle.
func (s *senders) fresh(now clock.Time, r *request, settle time.Duration) bool {
	q := *r
	q.id = 0
	set := s.rows[(q.hash()>>32&s.mask)*ways:][:ways]
	oldest := &set[0]
	for i := range set {
		x := &set[i]
		if x.used != 0 && x.device == r.device && x.client == r.client && x.port == r.port && x.vlans == r.vlans {
			x.used = now
			if int16(r.id-x.last) <= 0 {
				return false
			}
			x.last = r.id
			return now.Sub(x.since) >= settle
		}
		if x.used < oldest.used {
			oldest = x
		}
	}
	*oldest = sender{r.device, r.client, r.vlans, r.port, r.id + span, max(now, 1), now}
	return false
}
