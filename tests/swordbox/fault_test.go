package swordbox

import (
	"encoding/binary"
	"maps"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/rack/rnic"
	"github.com/quillon/quillon/tests/bed"
	tor "github.com/quillon/quillon/tor/swordbox"
)

// Each test plays one scenario on a bare wire, which shows that it is no fault of
// the scenario's, and through swordbox: nothing may happen there that did not
// happen on the wire.

// ofSwordbox is a swordbox with its defaults, but for args.
func ofSwordbox(args graph.Args) *bed.Box {
	a := graph.Args{"conns": "64", "words": "1024", "hold": "256"}
	maps.Copy(a, args)
	return &bed.Box{Kind: *tor.Kind(), Args: a, Closed: true}
}

const (
	va  = 0x10000
	all = rnic.RemoteRead | rnic.RemoteWrite | rnic.RemoteAtomic
)

// warm has peers do atomics on a word in turns, so that the box knows their
// connections and has put their operations together.
func warm(t *testing.T, m *rnic.MR, va uint64, rounds int, peers ...*bed.Peer) {
	t.Helper()
	for range rounds {
		for _, p := range peers {
			if _, st := p.Add(m, va, 1); st != rnic.Success {
				t.Fatalf("FETCH-ADD: %v", st)
			}
		}
	}
}

// Three frames of somebody who knows a client's address and its server's queue
// pair number, far from all PSNs in use, sent while the client is quiet: the
// client's WRITEs that are acknowledged are in memory all the same.
func TestFault01SpoofedFarAway(t *testing.T) {
	bed.Both(t, bed.SceneConfig{Box: ofSwordbox(nil)}, func(t *testing.T, s *bed.Scene) {
		pd := s.PD()
		m := s.MR(pd, va, 4096, all)
		a, b := s.Peer(0, 0, bed.Link{PD: pd}), s.Peer(1, 0, bed.Link{PD: pd})
		warm(t, m, va, 20, a, b)
		warm(t, m, va, 50, b) // over a's connection, if it is the shared one
		for _, victim := range []*bed.Peer{a, b} {
			s.Pause(110 * time.Millisecond)
			far := victim.Here.ClientPSN + 1<<20
			f := victim.Frame(far, bed.Packet{Op: hdr.WriteOnly, Ext: bed.RETH(va, m.RKey, 0), AckReq: true})
			s.Send(10*time.Millisecond, f, f, f)
		}
		for i := range 100 {
			for k, p := range []*bed.Peer{a, b} {
				at := uint64(va + 1024 + 8*(2*i+k))
				p.Post(rnic.SendWR{Op: rnic.OpWrite, SGL: [][]byte{binary.LittleEndian.AppendUint64(nil, at)}, RemoteAddr: at, RKey: m.RKey})
			}
		}
		a.Await(b)
		lost, failed := 0, 0
		for i := range 100 {
			for k, p := range []*bed.Peer{a, b} {
				at := uint64(va + 1024 + 8*(2*i+k))
				switch done := p.Status(p.Posted() - 100 + i); {
				case done != rnic.Success:
					failed++
				case bed.WordAt(m, at) != at:
					lost++
				}
			}
		}
		if lost+failed > 0 {
			t.Errorf("of 200 WRITEs %d were acknowledged and are not in memory, and %d failed", lost, failed)
		}
	})
}
