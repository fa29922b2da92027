package arbiter

import (
	"testing"

	"github.com/quillon/quillon/nf/arbiter/message"
)

// TestNumbersComeAround: a client has made 2^32 requests. What it asks then is new, and what comes late from before is old. A client that
// nobody knows any more may go on with any number.
func TestNumbersComeAround(t *testing.T) {
	const last = 1<<32 - 1
	x := begun(t, with())
	one := x.want(x.ask(1, acquire(last, 0, excl(1))), message.OK)
	x.want(x.ask(1, acquire(last-15, 0, excl(2))), message.OK)
	x.want(x.ask(1, release(message.Slots-1, &one)), message.OK) // in the slot of the first one
	x.want(x.ask(2, acquire(1, 0, excl(1))), message.OK)
	late := acquire(last, 0, excl(1))
	late.Session = x.sessions[1]
	if r := x.Push("a", datagram(t, 1, 1000, &late)); len(r.Dropped) != 1 || r.Dropped[0].Reason != "old" {
		t.Errorf("a request of before: %+v", r)
	}
	// One that is in line is given up by its number.
	x.want(x.ask(1, acquire(2*message.Slots-2, 400, excl(1))), message.Waiting)
	x.want(x.ask(1, message.Message{Op: message.Release, Request: 3*message.Slots - 2, Lease: 500, Handle: 2*message.Slots - 2}), message.OK)
	if n := x.Counter("waiting"); n != 0 {
		t.Errorf("%d requests are in line", n)
	}
}
