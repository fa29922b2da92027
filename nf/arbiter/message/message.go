// Package message has the messages between clients and nf/arbiter: UDP datagrams to Port, and answers. Numbers
// are big-endian; offsets and lengths are in bytes.
//
//	 0 magic "QA" | 2 version, 1 | 3 op (an answer has bit 7 set)
//	 4 request | 8 client | 12 attempt (2) | 14 words (1) | 15 result (1)
//	16 incarnation (8) | 24 session (8) | 32 token (8)
//	40 lease, ms | 44 wait, ms | 48 handle | 52 holder, an IPv4 address
//	56 words of an acquire: space (4) | address (8) | server's queue pair (3) | 1: exclusive (1)
//
// A client is identified by an IPv4 address and a number; an address has at most Clients clients at a time. One
// life of a client is an incarnation. A higher incarnation says that the one before has ended, and that nothing
// that it began can be sent any more.
//
// Hello asks for a session, a number that only the receiver of the answer knows. The token of a Hello is a nonce,
// which the answer repeats. All other requests carry the session, and renew the lease of all that the client
// holds. Request numbers rise from 1, and go on with Slots behind 2^32-1; of two, the later one is less than 2^31 ahead. A client has at
// most one request under way among those that are equal modulo Slots. A repeated request is executed once, and gets the same answer.
// The attempt counts how often the client has sent a request; an answer has the attempt of the last one that came.
//
// Acquire asks for all of its words or none. With a wait, the request stands in line until it has them or the
// time is over. Meanwhile it is answered with Waiting, and the outcome is sent without another request. The
// answer OK has the fencing token, which rises with each grant, and the handle; Release names both. A Release
// with token 0 has the number of an Acquire as its handle instead: that request is given up, or its words are
// given back, whatever has become of it. The lease in an answer is what is left of the client's lease at the
// arbiter.
//
// An answer has Len bytes, so that no answer is longer than its request.
package message

import "encoding/binary"

// Port is the arbiter's UDP port.
const Port = 7474

// Sizes, and bounds.
const (
	Len     = 56 // without words
	WordLen = 16
	Most    = 32 // words of an acquire
	Slots   = 16 // requests of a client whose answers are remembered
	Clients = 64 // clients of an address at a time
	version = 1
	magic   = 'Q'<<8 | 'A'
	answers = 0x80
)

// Op is what a message asks for.
type Op uint8

// Ops.
const (
	Hello Op = 1 + iota
	Acquire
	Renew
	Release
	ops
)

// Result says what became of a request.
type Result uint8

// Results.
const (
	OK        Result = iota // granted, renewed, released; of Hello: here is a session
	Waiting                 // in line
	Held                    // denied: word Words of the request is held by Holder, whose lease has Wait ms left, or somebody is in line for it
	TimedOut                // denied: the wait is over
	NoSession               // nobody knows the session: say hello
	Lost                    // the lease has ended: begin another incarnation
	Stale                   // a later incarnation of the client has come
	Settling                // not done: the incarnation before is being shut out, or the arbiter has lost its state. Send it again in Wait ms, or give it up
	Shut                    // the client is shut out from a server, by its operator
	Full                    // no room: too many clients, locks or waiting requests
	NotYours                // of Release: nothing is held under this token
	Refused                 // a request that has no sense: no words, too many, the same one twice, no lease
	results
)

var names = [results]string{"ok", "waiting", "held", "timed out", "no session", "lost", "stale", "settling", "shut out", "full", "not yours", "refused"}

func (r Result) String() string {
	if int(r) < len(names) {
		return names[r]
	}
	return "unknown"
}

// Word is a word of memory, and how it is to be locked.
type Word struct {
	Space     uint32 // with a fence: the memory server's IPv4 address
	Addr      uint64
	QPN       uint32 // of the server's, by which the client will change it; 0: any. It is no part of the word's name
	Exclusive bool
}

// Message is a request or an answer.
type Message struct {
	Op          Op
	Answer      bool
	Request     uint32
	Client      uint32
	Attempt     uint16
	Result      Result
	Incarnation uint64
	Session     uint64
	Token       uint64
	Lease, Wait uint32
	Handle      uint32
	Holder      [4]byte
	N           int // words; of an answer: the number of one
	Words       [Most]Word
}

// Append appends the encoded message m to b. Only an Acquire has its words encoded.
func (m *Message) Append(b []byte) []byte {
	be := binary.BigEndian
	op := byte(m.Op)
	if m.Answer {
		op |= answers
	}
	b = append(b, magic>>8, magic&0xFF, version, op)
	b = be.AppendUint32(b, m.Request)
	b = be.AppendUint32(b, m.Client)
	b = be.AppendUint16(b, m.Attempt)
	b = append(b, byte(m.N), byte(m.Result))
	b = be.AppendUint64(b, m.Incarnation)
	b = be.AppendUint64(b, m.Session)
	b = be.AppendUint64(b, m.Token)
	b = be.AppendUint32(b, m.Lease)
	b = be.AppendUint32(b, m.Wait)
	b = be.AppendUint32(b, m.Handle)
	b = append(b, m.Holder[:]...)
	if m.Answer || m.Op != Acquire {
		return b
	}
	for i := range m.Words[:m.N] {
		w := &m.Words[i]
		b = be.AppendUint32(b, w.Space)
		b = be.AppendUint64(b, w.Addr)
		last := w.QPN << 8
		if w.Exclusive {
			last |= 1
		}
		b = be.AppendUint32(b, last)
	}
	return b
}

// Parse decodes b into m, or returns false if b is no valid message. Elements of Words from index N on are not
// changed.
func (m *Message) Parse(b []byte) bool {
	be := binary.BigEndian
	if len(b) < Len || be.Uint16(b) != magic || b[2] != version {
		return false
	}
	m.Op, m.Answer = Op(b[3]&^answers), b[3]&answers != 0
	m.Request, m.Client, m.Attempt = be.Uint32(b[4:]), be.Uint32(b[8:]), be.Uint16(b[12:])
	m.N, m.Result = int(b[14]), Result(b[15])
	m.Incarnation, m.Session, m.Token = be.Uint64(b[16:]), be.Uint64(b[24:]), be.Uint64(b[32:])
	m.Lease, m.Wait, m.Handle, m.Holder = be.Uint32(b[40:]), be.Uint32(b[44:]), be.Uint32(b[48:]), [4]byte(b[52:])
	if m.Op == 0 || m.Op >= ops || m.Result >= results {
		return false
	}
	if m.Answer || m.Op != Acquire {
		return len(b) == Len
	}
	if m.N > Most || len(b) != Len+m.N*WordLen {
		return false
	}
	for i := range m.N {
		p := b[Len+i*WordLen:]
		last := be.Uint32(p[12:])
		if last&0xFE != 0 {
			return false
		}
		m.Words[i] = Word{be.Uint32(p), be.Uint64(p[4:]), last >> 8, last&1 != 0}
	}
	return true
}
