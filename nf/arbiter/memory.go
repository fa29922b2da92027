package arbiter

import (
	"sync/atomic"
	"unsafe"

	"github.com/quillon/quillon/nf/arbiter/message"
)

// The state that outlives the process is used where it lies in memory: a header, the clients, and what they hold.
// All other state is built from it. Each record has a number that is stored last and says that the record is
// complete, so that the process may be killed between any two stores.

// header is the beginning of the memory.
type header struct {
	magic   uint64
	clients uint64 // how many there is room for
	holds   uint64
	token   uint64 // the last one given out
	// pending is the token of the grant that is being made (token<<1 | 1) or given back (token<<1); 0 if there is
	// none.
	pending uint64
	// noting is the request that is being executed: its client's index plus 1 (upper 32 bits), and its number; 0:
	// none.
	noting uint64
	// young is 1 while leases may last that were given by a process whose state is lost.
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

// maxTargets is the number of different servers' queue pairs by which a client may change locked words at a time.
const maxTargets = 16

// client is the record of a client.
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

// target is a server's queue pair by which a client changes words that it holds.
type target struct {
	server [4]byte
	qpn    uint32
}

// slot is the last request among those with equal numbers modulo message.Slots, and its answer.
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

// older reports whether a request came before the one that is in the slot. Numbers come around: of two, the later one is less than 2^31
// ahead. 0 is no request's number.
func (l *slot) older(request uint32) bool { return l.request != 0 && int32(request-l.request) < 0 }

// hold is the record of a word that a client holds.
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

// lay places the header and the tables in memory m, which has memLen bytes and begins at a word's boundary.
func lay(m []byte, clients, holds int) (h *header, c []client, l []hold) {
	p := unsafe.Pointer(unsafe.SliceData(m))
	h = (*header)(p)
	p = unsafe.Add(p, unsafe.Sizeof(header{}))
	c = unsafe.Slice((*client)(p), clients)
	p = unsafe.Add(p, uintptr(clients)*unsafe.Sizeof(client{}))
	return h, c, unsafe.Slice((*hold)(p), holds)
}

// pend notes the grant that is being made or given back, and done notes that none is.
func (h *header) pend(token uint64, making bool) {
	v := token << 1
	if making {
		v |= 1
	}
	atomic.StoreUint64(&h.pending, v)
}

func (h *header) done() { atomic.StoreUint64(&h.pending, 0) }

// note notes the request of client i that is being executed; request 0 means none.
func (h *header) note(i int32, request uint32) {
	v := uint64(0)
	if request != 0 {
		v = uint64(i+1)<<32 | uint64(request)
	}
	atomic.StoreUint64(&h.noting, v)
}

// mend undoes the request that was being executed when the process ended. Nobody has its answer, and it is
// executed anew when it comes again. A grant that was being given back is given back completely.
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

// restore builds the lists and tables from the memory. It returns false if a table has no room, because hashes
// have another seed than before.
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
		if !s.settles(k) {
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
