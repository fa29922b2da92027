package p4rt

import (
	"testing"
	"time"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/protobuf/proto"

	"github.com/quillon/quillon/nf/clock"
)

func message(n byte) *p4v1.P4Data {
	return &p4v1.P4Data{Data: &p4v1.P4Data_Bitstring{Bitstring: []byte{n}}}
}

// TestDigestLists: sizes and times of lists, and what is not said twice.
func TestDigestLists(t *testing.T) {
	const ms = clock.Time(time.Millisecond)
	g := newDigest(7, &p4v1.DigestEntry_Config{MaxListSize: 3, MaxTimeoutNs: int64(10 * ms), AckTimeoutNs: int64(100 * ms)})
	add := func(now clock.Time, n byte, want int) *p4v1.DigestList {
		t.Helper()
		l, lost := g.add(now, message(n))
		if len(l.GetData()) != want || lost {
			t.Fatalf("at %d: %v, want a list of %d", now, l, want)
		}
		return l
	}
	if g.next() != clock.Never {
		t.Error("something is due")
	}
	add(1*ms, 1, 0)
	add(2*ms, 1, 0) // twice
	add(3*ms, 2, 0)
	if g.next() != 11*ms || g.due(10*ms) != nil {
		t.Errorf("due at %d", g.next())
	}
	if l := g.due(11 * ms); len(l.GetData()) != 2 || l.GetListId() != 1 || l.GetDigestId() != 7 || l.GetTimestamp() != int64(11*ms) {
		t.Error(l)
	}
	add(12*ms, 1, 0) // not acknowledged
	add(12*ms, 3, 0)
	add(12*ms, 4, 0)
	second := add(13*ms, 5, 3)
	g.ack(1)
	g.ack(99)
	add(14*ms, 1, 0)
	if g.ack(second.GetListId()); len(g.cache) != 0 {
		t.Errorf("%d messages are still remembered", len(g.cache))
	}
	add(20*ms, 3, 0)
	if l := g.due(24 * ms); len(l.GetData()) != 2 {
		t.Error(l)
	}
	add(25*ms, 3, 0)
	add(123*ms, 3, 0) // 99 ms old
	if len(g.buffer) != 0 {
		t.Error("forgotten too early")
	}
	add(124*ms, 3, 0) // 100 ms old
	if len(g.buffer) != 1 {
		t.Error("an old list is still remembered")
	}
	// Without a cache, one by one.
	g = newDigest(7, nil)
	for range 3 {
		if l, _ := g.add(1, message(1)); len(l.GetData()) != 1 {
			t.Error(l)
		}
	}
	// A controller that never acknowledges does not fill the memory.
	g = newDigest(7, &p4v1.DigestEntry_Config{AckTimeoutNs: 1 << 60, MaxListSize: 1})
	lost := 0
	for n := range maxCache + 10 {
		if _, l := g.add(clock.Time(n), &p4v1.P4Data{Data: &p4v1.P4Data_Bitstring{Bitstring: []byte{byte(n >> 16), byte(n >> 8), byte(n)}}}); l {
			lost++
		}
	}
	if lost != 10 || len(g.cache) != maxCache {
		t.Errorf("%d lost, %d remembered", lost, len(g.cache))
	}
}

// TestLongDigestLists: a list stays below what clients take in one message,
// whatever its size may be.
func TestLongDigestLists(t *testing.T) {
	g := newDigest(7, &p4v1.DigestEntry_Config{MaxListSize: 1 << 20, MaxTimeoutNs: int64(time.Hour), AckTimeoutNs: int64(time.Hour)})
	sent := 0
	for n := range 5000 {
		data := make([]byte, 1000)
		data[0], data[1] = byte(n>>8), byte(n)
		l, lost := g.add(0, &p4v1.P4Data{Data: &p4v1.P4Data_Bitstring{Bitstring: data}})
		if size := proto.Size(l); lost || size > maxAnswer+2000 {
			t.Fatalf("message %d: a list of %d bytes, lost: %v", n, size, lost)
		}
		sent += len(l.GetData())
	}
	if sent < 4000 {
		t.Errorf("%d messages were sent", sent)
	}
}
