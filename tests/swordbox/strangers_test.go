package swordbox

import (
	"fmt"
	"testing"
	"time"

	"github.com/quillon/quillon/internal/rack/history/fault"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/rack/rnic"
	"github.com/quillon/quillon/tests/bed"
)

// Requests that somebody makes up, of which the first says that its message is in packets of
// 256 bytes, do not have the box take a wrong path MTU for a connection's.
func TestAttackMadeUpMTU(t *testing.T) {
	for _, c := range []struct {
		name  string
		quiet time.Duration
		far   int
		warm  int
		alone bool // nobody else is there: its two ends count alike
	}{
		{"before it is followed", 0, 100000, 0, false},
		{"before it is followed, after one", 0, 100000, 1, false},
		{"before it is followed, after two", 0, -100000, 2, false},
		{"before it is followed, after two, alone", 0, -100000, 2, true},
		{"quiet", 300 * time.Millisecond, 100000, 20, false},
		{"quiet, alone", 300 * time.Millisecond, 100000, 20, true},
		{"quiet, behind, alone", 300 * time.Millisecond, -100000, 20, true},
		{"busy", 0, 100000, 20, false},
	} {
		for _, mode := range []string{"mux", "replace"} {
			t.Run(c.name+"/"+mode, func(t *testing.T) {
				bed.Both(t, bed.SceneConfig{Box: ofSwordbox(graph.Args{"mode": mode})}, func(t *testing.T, s *bed.Scene) {
					pd := s.PD()
					m := s.MR(pd, va, 1<<16, all)
					a, b := s.Peer(0, 0, bed.Link{PD: pd}), s.Peer(1, 0, bed.Link{PD: pd})
					if !c.alone {
						known(t, s, m, b)
					}
					for range c.warm {
						s.Pause(500 * time.Microsecond)
						warm(t, m, va, 1, a)
					}
					s.Pause(c.quiet)
					s.Send(10*time.Microsecond, a.Frame(a.Here.ClientPSN+uint32(c.far), bed.Packet{Op: hdr.WriteFirst, Ext: bed.RETH(va, 0x55, 1024), Payload: make([]byte, 256)}))
					if c.warm < 20 {
						known(t, s, m, a)
					}
					for range 5 {
						if st := a.Do(rnic.SendWR{Op: rnic.OpRead, SGL: [][]byte{make([]byte, 1024)}, RemoteAddr: va, RKey: m.RKey}); st != rnic.Success {
							t.Fatalf("READ: %v", st)
						}
						warm(t, m, va, 3, a)
						if st := a.Do(rnic.SendWR{Op: rnic.OpRead, SGL: [][]byte{make([]byte, 4000)}, RemoteAddr: va, RKey: m.RKey}); st != rnic.Success {
							t.Fatalf("READ: %v", st)
						}
						warm(t, m, va, 3, a)
						if !c.alone {
							warm(t, m, va, 3, a, b)
						}
					}
					healthy(t, a, b)
				})
			})
		}
	}
}

// Several requests in a row that somebody makes up, as if they came next to each other,
// while a connection is paired and not yet followed, do not have its client ended.
func TestAttackInTurn(t *testing.T) {
	for _, far := range []int{1000, -1000, 100000, -100000, 1 << 22} {
		for n := range 6 {
			t.Run(fmt.Sprintf("%d after %d", far, n), func(t *testing.T) {
				bed.Both(t, bed.SceneConfig{Box: ofSwordbox(nil)}, func(t *testing.T, s *bed.Scene) {
					pd := s.PD()
					m := s.MR(pd, va, 1<<16, all)
					a, b := s.Peer(0, 0, bed.Link{PD: pd}), s.Peer(1, 0, bed.Link{PD: pd})
					known(t, s, m, b)
					for range n {
						s.Pause(2 * time.Millisecond)
						warm(t, m, va, 1, a)
					}
					s.Pause(10 * time.Millisecond)
					was := s.Count("synced")
					var frames [][]byte
					for k := range 8 {
						frames = append(frames, a.Frame(a.Here.ClientPSN+uint32(far)+uint32(k), bed.Packet{Op: hdr.WriteOnly, Ext: bed.RETH(va, 0x55, 0), AckReq: true}))
					}
					s.Send(10*time.Microsecond, frames...)
					t.Logf("synced %d then %d", was, s.Count("synced"))
					for range 10 {
						s.Pause(500 * time.Microsecond)
						warm(t, m, va, 1, a)
					}
					warm(t, m, va, 20, a, b)
					healthy(t, a, b)
				})
			})
		}
	}
}

// What the box has learnt of a connection that it did not follow yet, and that is gone, it does
// not take for another one's that comes in its place.
func TestAttackPlaceOfAnother(t *testing.T) {
	for _, mtus := range [][2]int{{256, 1024}, {1024, 256}} {
		for n := 1; n <= 5; n++ {
			t.Run(fmt.Sprintf("%d after %d, %d", mtus[1], mtus[0], n), func(t *testing.T) {
				bed.Both(t, bed.SceneConfig{Box: ofSwordbox(graph.Args{"idle": "1s"})}, func(t *testing.T, s *bed.Scene) {
					pd := s.PD()
					m := s.MR(pd, va, 1<<16, all)
					first, second := rnic.DefaultConn(), rnic.DefaultConn()
					first.PathMTU, second.PathMTU = mtus[0], mtus[1]
					b := s.Peer(1, 0, bed.Link{PD: pd})
					known(t, s, m, b)
					read := func(p *bed.Peer, n int) {
						t.Helper()
						if st := p.Do(rnic.SendWR{Op: rnic.OpRead, SGL: [][]byte{make([]byte, n)}, RemoteAddr: va, RKey: m.RKey}); st != rnic.Success {
							t.Fatalf("READ of %d: %v", n, st)
						}
					}
					a := s.Peer(0, 0, bed.Link{PD: pd, Conn: first})
					for k := range n {
						s.Pause(2 * time.Millisecond)
						if k == n-1 {
							read(a, 1024)
						} else {
							warm(t, m, va, 1, a)
						}
					}
					t.Logf("synced %d", s.Count("synced"))
					for range 10 { // a is quiet until it is forgotten
						s.Pause(300 * time.Millisecond)
						warm(t, m, va, 1, b)
					}
					c := s.Peer(2, 0, bed.Link{PD: pd, Conn: second})
					for range 10 {
						s.Pause(2 * time.Millisecond)
						warm(t, m, va, 1, c)
					}
					for range 3 {
						read(c, 1024)
						warm(t, m, va, 1, c)
					}
					healthy(t, b, c)
				})
			})
		}
	}
}

// A made-up request a little ahead of what is expected, while a READ is under way whose length in
// packets is not known, does not tell how many these are.
func TestAttackAheadOfRead(t *testing.T) {
	for _, ahead := range []uint32{2, 3, 4, 5, 8, 16, 17, 60, 100, 200, 250} {
		for _, waits := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d, %v", ahead, waits), func(t *testing.T) {
				bed.Both(t, bed.SceneConfig{Box: ofSwordbox(nil)}, func(t *testing.T, s *bed.Scene) {
					pd := s.PD()
					m := s.MR(pd, va, 1<<16, all)
					a, b := s.Peer(0, 0, bed.Link{PD: pd}), s.Peer(1, 0, bed.Link{PD: pd})
					known(t, s, m, a, b)
					s.Stall()
					if waits {
						post(a, m, va, 1)
					}
					a.Post(rnic.SendWR{Op: rnic.OpRead, SGL: [][]byte{make([]byte, 1<<16)}, RemoteAddr: va, RKey: m.RKey})
					s.Pause(50 * time.Microsecond)
					n := uint32(20)
					if waits {
						n++
					}
					s.Send(10*time.Microsecond, a.Frame(a.Here.ClientPSN+n+ahead, bed.Packet{Op: hdr.WriteOnly, Ext: bed.RETH(va, 0x55, 0), AckReq: true}))
					s.Pause(50 * time.Microsecond)
					s.Thaw()
					a.Await(b)
					for range 5 {
						warm(t, m, va, 3, a, b)
						if st := a.Do(rnic.SendWR{Op: rnic.OpRead, SGL: [][]byte{make([]byte, 1024)}, RemoteAddr: va, RKey: m.RKey}); st != rnic.Success {
							t.Fatalf("READ: %v", st)
						}
					}
					healthy(t, a, b)
				})
			})
		}
	}
}

// One frame that is lost behind a READ whose length in packets is not known yet ends nobody.
func TestAttackLossBehindRead(t *testing.T) {
	for dir := range fault.Dir(2) {
		for frame := 20; frame < 27; frame++ {
			for _, size := range []int{300, 600, 2048, 4096, 1 << 16, -300, -600, -2048} { // negative: behind an atomic
				lost := fault.Schedule{{Action: fault.Drop, Where: "c0", Dir: dir, Frame: frame}}
				t.Run(fmt.Sprintf("%v/%d", lost[0], size), func(t *testing.T) {
					bed.Both(t, bed.SceneConfig{Box: ofSwordbox(nil), Schedule: lost}, func(t *testing.T, s *bed.Scene) {
						pd := s.PD()
						m := s.MR(pd, va, 1<<17, all)
						a, b := s.Peer(0, 0, bed.Link{PD: pd}), s.Peer(1, 0, bed.Link{PD: pd})
						known(t, s, m, a, b)
						size := size
						if size < 0 {
							size = -size
							post(a, m, va, 1)
						}
						a.Post(rnic.SendWR{Op: rnic.OpRead, SGL: [][]byte{make([]byte, size)}, RemoteAddr: va, RKey: m.RKey})
						for k := range 6 {
							a.Post(rnic.SendWR{Op: rnic.OpWrite, SGL: [][]byte{make([]byte, 16)}, RemoteAddr: va + 1<<16 + 64*uint64(k), RKey: m.RKey})
						}
						a.Await()
						healthy(t, a)
						for range 3 {
							warm(t, m, va, 3, a, b)
						}
						healthy(t, a, b)
					})
				})
			}
		}
	}
}

// A made-up request with the very PSN that the server expects next, which the server throws away unseen, takes no request's place: not
// the next one of its client, and nobody else's.
func TestAttackExactUnseen(t *testing.T) {
	other := [6]byte{2, 0, 0, 9, 9, 9}
	defects := []struct {
		name string
		undo func(b []byte, f *hdr.Frame) // behind the checksums
	}{
		{"P_Key", func(b []byte, f *hdr.Frame) { f.BTHOf(b).SetPKey(0x8001); hdr.SetICRC(b, f) }},
		{"limited P_Key", func(b []byte, f *hdr.Frame) { f.BTHOf(b).SetPKey(1); hdr.SetICRC(b, f) }},
		{"MAC", func(b []byte, _ *hdr.Frame) { copy(b, other[:]) }},
		{"ICRC", func(b []byte, _ *hdr.Frame) { b[len(b)-1] ^= 1 }},
		{"IPv4 checksum", func(b []byte, f *hdr.Frame) { b[f.L3+10] ^= 1 }},
		{"BTH version", func(b []byte, f *hdr.Frame) { b[f.BTH+1] |= 1; hdr.SetICRC(b, f) }},
	}
	requests := []struct {
		name string
		k    bed.Packet
	}{
		{"empty WRITE", bed.Packet{Op: hdr.WriteOnly, Ext: bed.RETH(va, 0x55, 0), AckReq: true}},
		{"WRITE", bed.Packet{Op: hdr.WriteOnly, Ext: bed.RETH(va, 0x55, 64), Payload: make([]byte, 64), AckReq: true}},
		{"WRITE FIRST", bed.Packet{Op: hdr.WriteFirst, Ext: bed.RETH(va, 0x55, 4096), Payload: make([]byte, 1024)}},
		{"SEND", bed.Packet{Op: hdr.SendOnly, Payload: make([]byte, 64), AckReq: true}},
		{"READ", bed.Packet{Op: hdr.ReadRequest, Ext: bed.RETH(va, 0x55, 5000), AckReq: true}},
		{"CAS", bed.Packet{Op: hdr.CompareSwap, Ext: bed.AtomicETH(va, 0x55, 1, 0), AckReq: true}},
	}
	for _, mode := range []string{"mux", "replace"} {
		for _, d := range defects {
			for _, r := range requests {
				t.Run(mode+"/"+d.name+"/"+r.name, func(t *testing.T) {
					bed.Both(t, bed.SceneConfig{Box: ofSwordbox(graph.Args{"mode": mode})}, func(t *testing.T, s *bed.Scene) {
						pd := s.PD()
						m := s.MR(pd, va, 1<<16, all)
						a, b := s.Peer(0, 0, bed.Link{PD: pd}), s.Peer(1, 0, bed.Link{PD: pd})
						known(t, s, m, a, b)
						x := a.Frame(a.Here.ClientPSN+20, r.k)
						var f hdr.Frame
						if hdr.Parse(x, &f) != hdr.IsRoCE {
							t.Fatal("it is no RoCE")
						}
						d.undo(x, &f)
						s.Send(10*time.Microsecond, x)
						s.Pause(time.Millisecond)
						for range 5 {
							warm(t, m, va, 3, a, b)
							if st := a.Do(rnic.SendWR{Op: rnic.OpRead, SGL: [][]byte{make([]byte, 4000)}, RemoteAddr: va, RKey: m.RKey}); st != rnic.Success {
								t.Fatalf("READ: %v", st)
							}
						}
						healthy(t, a, b)
						if now := bed.WordAt(m, va); now != 40+30 {
							t.Errorf("70 additions make %d", now)
						}
					})
				})
			}
		}
	}
}
