package swordbox

import (
	"fmt"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/rack/rnic"
	"github.com/quillon/quillon/tests/bed"
)

// A request that went as a WRITE in the place of an atomic is lost, and the server asks
// for it. The box is killed before, or shortly after, the server's NAK comes: a NAK that
// the server sends once (rxe_resp.c: sent_psn_nak). The connection goes on, and each addition is
// done once.
func TestCrashBehindNAK(t *testing.T) {
	for _, profile := range []rnic.Profile{rnic.RXE, rnic.ConnectX} {
		for _, after := range []time.Duration{0, 1e3, 2e3, 3e3, 6e3, 20e3} {
			t.Run(fmt.Sprint(profile, "/", after), func(t *testing.T) {
				bed.Both(t, bed.SceneConfig{Profile: profile, Box: ofSwordbox(graph.Args{"settle": "100us", "pair": "100us", "writable": "assume"})}, func(t *testing.T, s *bed.Scene) {
					pd := s.PD()
					m := s.MR(pd, va, 4096, all)
					a, b, x := s.Peer(0, 0, bed.Link{PD: pd}), s.Peer(1, 0, bed.Link{PD: pd}), s.Peer(2, 0, bed.Link{PD: pd})
					warm(t, m, va, 20, a, b)
					warm(t, m, va, 20, b)
					from := bed.WordAt(m, va)
					add := func() int {
						return b.Post(rnic.SendWR{Op: rnic.OpFetchAdd, SGL: [][]byte{make([]byte, 8)}, RemoteAddr: va, RKey: m.RKey, Swap: 1})
					}
					add()
					s.Pause(10 * time.Microsecond)
					s.Freeze()
					lost := add()
					s.Pause(30 * time.Microsecond)
					s.Thaw()
					add()
					s.Pause(after)
					s.Remove()
					s.Pause(30 * time.Microsecond)
					if _, st := x.Add(m, va, 1000); st != rnic.Success {
						t.Fatal(st)
					}
					s.Insert()
					a.Await(b)
					healthy(t, a, b, x)
					if v, want := bed.WordAt(m, va)-from, uint64(1003); v != want {
						t.Errorf("the word grew by %d, want %d", v, want)
					}
					if d := b.Latency(lost); d > 10*time.Millisecond {
						t.Errorf("it took %v", d)
					}
				})
			})
		}
	}
}

// A SEND behind such a WRITE finds no receive buffer, before and after the crash: its
// client waits as the server says (RNR NAK), and no connection ends.
func TestCrashBehindRNR(t *testing.T) {
	for _, lost := range []bool{false, true} {
		t.Run(fmt.Sprint("lost ", lost), func(t *testing.T) {
			bed.Both(t, bed.SceneConfig{Profile: rnic.RXE, Box: ofSwordbox(graph.Args{"settle": "100us", "pair": "100us", "writable": "assume"})}, func(t *testing.T, s *bed.Scene) {
				pd := s.PD()
				m := s.MR(pd, va, 4096, all)
				a, b := s.Peer(0, 0, bed.Link{PD: pd}), s.Peer(1, 0, bed.Link{PD: pd})
				warm(t, m, va, 20, a, b)
				warm(t, m, va, 20, a)
				from := bed.WordAt(m, va)
				if lost {
					s.Freeze()
				}
				for range 3 {
					a.Post(rnic.SendWR{Op: rnic.OpFetchAdd, SGL: [][]byte{make([]byte, 8)}, RemoteAddr: va, RKey: m.RKey, Swap: 1})
				}
				a.Post(rnic.SendWR{Op: rnic.OpSend, SGL: [][]byte{make([]byte, 16)}})
				s.Pause(4 * time.Microsecond)
				s.Remove()
				s.Thaw()
				s.Pause(30 * time.Microsecond)
				s.Insert()
				s.Pause(30 * time.Millisecond)
				a.Receive(1, 64)
				a.Await(b)
				healthy(t, a, b)
				if v := bed.WordAt(m, va) - from; v != 3 {
					t.Errorf("the word grew by %d, want 3", v)
				}
				warm(t, m, va, 20, a, b)
			})
		})
	}
}
