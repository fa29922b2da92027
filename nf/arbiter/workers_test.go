package arbiter

import (
	"sync"
	"testing"

	"github.com/quillon/quillon/nf/arbiter/message"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/hdr"
)

// TestWorkers: several workers share one state; each host's frames come to one of them, and all want the same word.
func TestWorkers(t *testing.T) {
	const workers, rounds = 3, 300
	x := graphtest.NewGang(t, *Kind(), workers, with())
	frames := [workers][][]byte{}
	x.Push(0, 0, [][]byte{datagram(t, 1, 1000, &message.Message{Op: message.Hello})})
	x.Now = x.Now.Add(2_000_000_000)
	for w := range workers {
		x.Push(0, 0, [][]byte{datagram(t, byte(w+1), 1000, &message.Message{Op: message.Hello})})
		sent := x.Took(0)
		var m message.Message
		if !m.Parse(sent[len(sent)-1][hdr.EthernetLen+hdr.IPv4Len+hdr.UDPLen:]) {
			t.Fatal("no answer")
		}
		for i := range uint32(rounds) {
			a, r := acquire(2*i+1, 0, excl(1)), message.Message{Op: message.Release, Request: 2*i + 2, Lease: 500, Handle: 2*i + 1}
			a.Session, r.Session = m.Session, m.Session
			frames[w] = append(frames[w], datagram(t, byte(w+1), 1000, &a), datagram(t, byte(w+1), 1000, &r))
		}
	}
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for _, f := range frames[w] {
				x.Push(w, 0, [][]byte{f})
			}
		})
	}
	wg.Wait()
	answers := len(x.Took(0))
	n := x.Close()
	if answers != 2*workers*rounds || n["granted"] != n["released"] || n["granted"]+n["denied"] != workers*rounds || n["locks"] != 0 || n["words"] != 0 {
		t.Errorf("%d answers, %v", answers, n)
	}
}
