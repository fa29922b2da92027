package swordbox

import (
	"testing"
	"time"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/rack/rnic"
	"github.com/quillon/quillon/tests/bed"
)

// Clients and their queue pairs at the server go without a word (a host is switched off, its server's process ends). One connection lives. What the box asks about those that are gone becomes rare.
func TestDeadAreAskedRarely(t *testing.T) {
	const each = 100
	g := newManagers(t, bed.SceneConfig{Sessions: each, Box: ofSwordbox(graph.Args{"mode": "mux", "conns": "512", "words": "64", "window": "64", "idle": "2s", "shared": "64", "servers": "10.0.2.1"})})
	s := g.Scene
	pd := s.PD()
	m := s.MR(pd, va, 1<<16, all)
	var peers []*bed.Peer
	for c := range 3 {
		for k := range each {
			peers = append(peers, s.Peer(c, k, bed.Link{PD: pd}))
			g.announce(peers[len(peers)-1], uint32(len(peers)))
		}
	}
	for r := range 22 {
		for i, p := range peers {
			p.Post(rnic.SendWR{Op: rnic.OpFetchAdd, SGL: [][]byte{make([]byte, 8)}, RemoteAddr: va + 64*uint64((i+r)%64), RKey: m.RKey, Swap: 1})
			if i%10 == 9 {
				s.Pause(5 * time.Microsecond)
			}
		}
		peers[0].Await(peers[1:]...)
		s.Pause(200 * time.Microsecond)
	}
	t.Log("bound", s.Bound(), "moved", s.Count("moved"))
	for _, p := range peers[1:] {
		p.Far.Destroy()
		p.QP.Destroy()
	}
	last, rate := s.Count("generated"), 0.0
	for k := range 8 {
		for range 60 {
			s.Pause(time.Second)
			if _, st := peers[0].Add(m, va, 1); st != rnic.Success {
				t.Fatal(st)
			}
		}
		now := s.Count("generated")
		rate = float64(now-last) / 60
		t.Logf("minute %d: bound %d, %d connections, %.0f frames a second made by the box", k, s.Bound(), s.Count("conns"), rate)
		last = now
	}
	if rate > 10 {
		t.Errorf("%.0f frames a second go to %d queue pairs that are not there any more, without end", rate, len(peers)-1)
	}
}
