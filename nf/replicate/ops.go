package replicate

import (
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/flow"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/hdr/clio"
	"github.com/quillon/quillon/nf/hold"
)

const none = int32(-1)

// request identifies a request: its client's session, in VLANs (of both tags), and its number.
type request struct {
	client   [4]byte
	port, id uint16
	vlans    uint32
}

func (r *request) hash() uint64 {
	a := r.client
	return hdr.Fold(uint64(a[0])|uint64(a[1])<<8|uint64(a[2])<<16|uint64(a[3])<<24, uint64(r.vlans)<<32|uint64(r.port)<<16|uint64(r.id))
}

// key is a key of the devices in certain VLANs (of both tags).
type key struct {
	key   uint64
	vlans uint32
	size  uint8
}

func (k *key) hash() uint64 { return hdr.Fold(uint64(k.size)|uint64(k.vlans)<<8, k.key) }

// op is a write that runs, which means that devices are asked, or that waits for another write of its key.
type op struct {
	req     request
	key     key
	code    clio.Opcode
	b       hold.Queue // the request: a copy when running, itself when it waits
	running bool
	waiting uint8 // bit i: replica i has not answered
	asked   uint8 // those that it was sent to, and are not down
	agreed  bool  // another than the primary has answered OK
	status  clio.Status
	others  clio.Status // of another than the primary, when not OK
	due     clock.Time
	tries   int
	// Chains: nextReq by request, or of the free ops; nextKey by key, of those that run. next is the op that
	// waits behind this one, and last is the last one of those that wait.
	nextReq, nextKey, next, last int32
}

type ops struct {
	rows          []op
	order         flow.Ages // of those that run, by due
	byReq, byKey  []int32
	free          int32
	used, running int
}

func newOps(n int) ops {
	size := 1
	for size < n {
		size *= 2
	}
	t := ops{rows: make([]op, n), order: flow.NewAges(n), byReq: make([]int32, size), byKey: make([]int32, size)}
	for i := range size {
		t.byReq[i], t.byKey[i] = none, none
	}
	for i := range t.rows {
		t.rows[i].nextReq = int32(i) + 1
	}
	t.rows[n-1].nextReq = none
	return t
}

func (t *ops) reqHead(r *request) *int32 { return &t.byReq[r.hash()&uint64(len(t.byReq)-1)] }
func (t *ops) keyHead(k *key) *int32     { return &t.byKey[k.hash()&uint64(len(t.byKey)-1)] }

func (t *ops) find(r *request) int32 {
	for i := *t.reqHead(r); i != none; i = t.rows[i].nextReq {
		if t.rows[i].req == *r {
			return i
		}
	}
	return none
}

// add notes a write and returns its op, or none if there is no place.
func (t *ops) add(r *request, k key, code clio.Opcode) int32 {
	i := t.free
	if i == none {
		return none
	}
	t.free = t.rows[i].nextReq
	head := t.reqHead(r)
	t.rows[i] = op{req: *r, key: k, code: code, nextReq: *head, nextKey: none, next: none, last: none}
	*head = i
	t.used++
	return i
}

// active returns the running write of i's key, or none.
func (t *ops) active(i int32) int32 {
	k := &t.rows[i].key
	for j := *t.keyHead(k); j != none; j = t.rows[j].nextKey {
		if t.rows[j].key == *k {
			return j
		}
	}
	return none
}

// wait puts write i behind all writes that wait for first.
func (t *ops) wait(first, i int32) {
	f := &t.rows[first]
	if f.last == none {
		f.next = i
	} else {
		t.rows[f.last].next = i
	}
	f.last = i
}

// start makes write i run. Its due time must be the latest of all.
func (t *ops) start(i int32) {
	o := &t.rows[i]
	head := t.keyHead(&o.key)
	o.nextKey = *head
	*head = i
	t.order.Add(i)
	t.running++
}

// finish ends what start began.
func (t *ops) finish(i int32) {
	o := &t.rows[i]
	p := t.keyHead(&o.key)
	for *p != i {
		p = &t.rows[*p].nextKey
	}
	*p = o.nextKey
	t.order.Remove(i)
	t.running--
}

func (t *ops) remove(i int32) {
	o := &t.rows[i]
	p := t.reqHead(&o.req)
	for *p != i {
		p = &t.rows[*p].nextReq
	}
	*p = o.nextReq
	*o = op{nextReq: t.free, nextKey: none, next: none, last: none}
	t.free = i
	t.used--
}
