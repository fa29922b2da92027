package arbiter

import (
	"sync/atomic"
	"unsafe"

	"github.com/quillon/quillon/nf/arbiter/message"
)

// What outlives the process is in memory as it is used: a header, clients, and what they hold. All else is made of it. A number is
// stored last that says that what it is about is whole, so that a process may be killed between any two stores.

// header is at the beginning of the memory.
type header struct {
	magic   uint64
	clients uint64 // how many there is room for
	holds   uint64
	token   uint64 // the last one given out
	// pending is the grant that is being made (token<<1 | 1) or given back (token<<1); 0: none is.
	pending uint64
	// noting is the request that is being done: its client's place, from 1 on, and its number; 0: none is.
	noting uint64
	// young is 1 while leases of a process may last whose state is lost.
	young  uint64
	secret [16]byte
}

const memMagic = 0x31_7265_7469_6271_61 // "aqbiter1", but for a byte

// States of a client.
const (
	free  = iota
	live  // it has a lease
	dying // its lease has ended, or a later incarnation has come: it is being shut out
	shut  // it is shut out, and holds nothing
)

// maxTargets is how many different servers' queue pairs a client changes locked words by, at a time.
const maxTargets = 16

// client is a client that is known.
type client struct {
	state       uint32
	number      uint32
	incarnation uint64
	session     uint64
	lease       uint32 // ms
	heir        uint64 // the incarnation that waits for the end of this one; 0: none does
	from        peer
	targets     [maxTargets]target
	nTargets    uint32
	slots       [message.Slots]slot
}

// target is where a client changes words that it holds.
type target struct {
	server [4]byte
	qpn    uint32
}

// slot is the last of the requests whose numbers are alike modulo message.Slots, and its answer.
type slot struct {
	request uint32
	op      message.Op
	result  message.Result
	word    uint8
	holder  [4]byte
	wait    uint32
	handle  uint32
	token   uint64
}

// hold is a word that a client holds.
type hold struct {
	token     uint64 // stored last; 0: the place is free
	addr      uint64
	space     uint32
	head      int32 // the first hold of its grant: its handle
	client    int32
	exclusive bool
}

func memLen(clients, holds int) int {
	return int(unsafe.Sizeof(header{})) + clients*int(unsafe.Sizeof(client{})) + holds*int(unsafe.Sizeof(hold{}))
}

// lay lays the header and the tables over memory of memLen bytes, which begins at a word's boundary.
func lay(m []byte, clients, holds int) (h *header, c []client, l []hold) {
	p := unsafe.Pointer(unsafe.SliceData(m))
	h = (*header)(p)
	p = unsafe.Add(p, unsafe.Sizeof(header{}))
	c = unsafe.Slice((*client)(p), clients)
	p = unsafe.Add(p, uintptr(clients)*unsafe.Sizeof(client{}))
	return h, c, unsafe.Slice((*hold)(p), holds)
}

// pend says which grant is being made, or given back; done: none is.
func (h *header) pend(token uint64, making bool) {
	v := token << 1
	if making {
		v |= 1
	}
	atomic.StoreUint64(&h.pending, v)
}

func (h *header) done() { atomic.StoreUint64(&h.pending, 0) }

// note says which request is being done, of client i; 0: none is any more.
func (h *header) note(i int32, request uint32) {
	v := uint64(0)
	if request != 0 {
		v = uint64(i+1)<<32 | uint64(request)
	}
	atomic.StoreUint64(&h.noting, v)
}

// mend undoes the request that was being done when the process ended: nobody has its answer, and it is done anew when it comes again. A grant that was
// being given back is given back whole.
func (s *state) mend() {
	drop := func(token uint64) {
		for i := range s.holds {
			if token != 0 && s.holds[i].token == token {
				s.holds[i].token = 0
			}
		}
	}
	drop(s.head.pending >> 1)
	if i, request := s.head.noting>>32, uint32(s.head.noting); i > 0 && i <= uint64(len(s.clients)) {
		l := &s.clients[i-1].slots[request%message.Slots]
		if s.head.pending == 0 && l.request == request && l.op == message.Acquire && l.result == message.OK {
			drop(l.token)
		}
		*l = slot{request: request - 1, op: message.Acquire, result: message.TimedOut}
	}
	s.head.done()
	s.head.note(0, 0)
	for i := range s.clients {
		for k := range s.clients[i].slots {
			if l := &s.clients[i].slots[k]; l.result == message.Waiting {
				l.request, l.result = l.request-1, message.TimedOut // nobody knows the line any more
			}
		}
	}
}

// restore makes lists and tables of what is in memory; false: there is no room for it, with another seed of hashes.
func (s *state) restore() bool {
	for i := range s.clients {
		if s.clients[i].state == free {
			s.freeClients = append(s.freeClients, int32(i))
			continue
		}
		k := s.clients[i].key()
		at := s.byKey.Add(&k, k.hash(s.lines.seed))
		if at < 0 {
			return false
		}
		s.byKey.At(at).Val = int32(i)
		if !s.settles(k.ip) {
			return false
		}
	}
	for i := range s.holds {
		h := &s.holds[i]
		if h.token == 0 {
			s.freeHolds = append(s.freeHolds, int32(i))
			continue
		}
		k := wordKey{h.addr, h.space}
		at := s.place(&k)
		if at < 0 {
			return false
		}
		s.link(int32(i), at)
	}
	for i := range s.holds {
		h := &s.holds[i]
		if h.token == 0 {
			continue
		}
		if head := h.head; head == int32(i) {
			s.linkGrant(head)
		} else {
			s.beside[i].next, s.beside[head].next = s.beside[head].next, int32(i)
		}
	}
	return true
}
