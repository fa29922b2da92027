package swordbox

import (
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/tor/hold"
)

// client is the requester's side of a connection: what its client has sent, what was
// sent on of that, and what it has been told. All PSNs are as the client numbers.
//
// Its operations are in a ring (node.op) and numbered from 0 on, modulo 2^32:
//
//	first            head             tail
//	| answered       | not answered   | next
//
// head is where its oldest unacknowledged PSN is (una), and with base its MSN.
type client struct {
	gone      bool // its queue pair was sent a NAK that ends it, or it left
	failed    bool // or will be sent one: an operation of its failed
	gapNAK    bool // it sent a PSN beyond the expected one: a NAK (PSN sequence error) is owed
	toldGap   bool // and sent
	tellPart  bool // the server acknowledged packets of its oldest message, not all: it is to be told
	mixed     bool // its open ops are on several connections
	isReady   bool // in node.ready
	waits     bool // in node.waiting
	vague     bool // its newest request is a READ of vagueLen bytes that waits here. As the path MTU is not known, nor is how many PSNs it takes
	unsure    bool // its newest op is such a READ that was sent on, over its own connection: its answer tells
	doomed    bool // no connection can carry its next request: it was sent a NAK, and will be gone
	doubted   bool // operation number again is to be answered once more, when the server was heard
	owes      bool // an acknowledgement is due when no READ is done again any more
	misshapen bool // its requests contradict themselves (see measure)
	// syn is the syndrome of an acknowledgement (with its credits), as the server gives it.
	syn               hdr.Syndrome
	arrived, admitted uint32     // the expected PSN; and that of what is sent on next
	head, tail        uint32     // ops: oldest that is not answered, and next
	first             uint32     // oldest that is remembered
	span              uint32     // how many are remembered: the ring's places, a power of two
	unsent            int32      // ops on record with sUnsent
	open              int32      // ops that the server has not answered
	bare              int32      // of these, with fBare
	lane              int32      // connection of the youngest open op
	cur               int32      // op of a message whose packets are still coming; none
	base              uint32     // MSN before the first operation on record: see released
	answerer          int32      // connection that the newest answer came over
	stall             hold.Queue // requests that wait
	rest, part        uint32     // bytes of the WRITE at hand that are to come, and in each of its packets
	vagueLen          uint32     // see vague
	pastAt            uint32     // of past, as often as it was filled

	down    header       // of frames to it
	ended   uint32       // PSN of the request that ended its queue pair
	rereads int32        // READs that are done again
	again   uint32       // see doubted
	verdict hdr.Syndrome // of the NAK that ended its queue pair; 0: another one
	began   clock.Time   // when the message of cur began
	past    [16]past     // answers to atomics that are not on record any more
}

// released is how many of its messages are answered, modulo 2^24 (IBTA: MSN).
func (c *client) released() uint32 { return (c.base + c.head) & 0xFFFFFF }
