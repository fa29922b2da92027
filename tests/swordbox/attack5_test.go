package swordbox

import (
	"encoding/binary"
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/quillon/quillon/internal/rack/host"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/rack/rnic"
	"github.com/quillon/quillon/tests/bed"
	"github.com/quillon/quillon/tor/conn"
)

// grabber is a client whose queue pair is of another protection domain than the memory that it has heard the R_Key of.
type grabber struct {
	*managers
	m, own  *rnic.MR
	a, b, e *bed.Peer
	n       uint32 // requests of e's that the server has executed
}

func newGrabber(t *testing.T, x *bed.Box, managed bool, c bed.SceneConfig) *grabber {
	c.Box = x
	g := &grabber{managers: newManagers(t, c)}
	g.connect(t, managed)
	return g
}

// Far is the server's end of e's connection.
func (g *grabber) Far() *rnic.QP { return g.e.Far }

func (g *grabber) connect(t *testing.T, managed bool) {
	pd, other := g.PD(), g.PD()
	g.m, g.own = g.MR(pd, va, 1<<16, all), g.MR(other, 1<<30, 1<<16, all)
	g.a, g.b = g.Peer(0, 0, bed.Link{PD: pd}), g.Peer(1, 0, bed.Link{PD: pd})
	if managed {
		g.announce(g.a, 1)
		g.announce(g.b, 2)
	}
	g.e = g.Peer(2, 0, bed.Link{PD: other})
	if managed {
		g.announce(g.e, 3)
	}
	g.others(t)
}

// others has the other two do what they have a right to.
func (g *grabber) others(t *testing.T) {
	known(t, g.Scene, g.m, g.a, g.b)
	for k := range uint64(5) {
		g.a.WriteWord(g.m, va+8, k)
		g.b.WriteWord(g.m, va+8, k)
		g.a.Add(g.m, va+8, 1)
		g.b.Add(g.m, va+8, 1)
	}
}

// made is a WRITE to others' memory with PSN psn, from the client itself; to the server, or to nobody.
func (g *grabber) made(psn uint32, here bool) []byte {
	f := g.e.Frame(psn, bed.Packet{Op: hdr.WriteOnly, Ext: bed.RETH(va+8, g.m.RKey, 8), Payload: make([]byte, 8), AckReq: true, SrcMAC: g.e.Here.ClientMAC})
	if !here {
		f[5] ^= 0x55
	}
	return f
}

// write is a request of e's that the server executes.
func (g *grabber) write(t *testing.T) {
	if st := g.e.WriteWord(g.own, 1<<30, 1); st != rnic.Success {
		t.Fatal(st)
	}
	g.n++
}

// grab has e write to others' memory, which the server refuses.
func (g *grabber) grab(t *testing.T) {
	g.Pause(time.Millisecond)
	warm(t, g.m, va+8, 2, g.a, g.b)
	was := bed.WordAt(g.m, va+8)
	st := g.e.WriteWord(g.m, va+8, 0x666)
	now := bed.WordAt(g.m, va+8)
	t.Logf("%v; synced %d; moved %d", st, g.Count("synced"), g.Count("moved"))
	if st == rnic.Success || now != was {
		t.Errorf("a WRITE that the server refuses ended as %v, and %#x became %#x", st, was, now)
	}
	warm(t, g.m, va+8, 3, g.a, g.b)
	healthy(t, g.a, g.b)
}

// A client's frames that reach nobody lead what is expected of it once around all PSNs, in steps that are not far. Then what the server has executed
// is ahead, and a repetition of it shows no right.
func TestAttack5RightByStepsAround(t *testing.T) {
	for _, mode := range []string{"mux", "replace"} {
		t.Run(mode, func(t *testing.T) {
			for _, x := range []*bed.Box{nil, ofSwordbox(graph.Args{"mode": mode})} {
				g := newGrabber(t, x, true, bed.SceneConfig{})
				first := g.e.Here.ClientPSN
				g.Send(time.Microsecond, g.made(first, false), g.made(first+30_000, false)) // followed, and not any more
				const step = 30_000
				at := first + 1
				at += step
				g.Send(time.Microsecond, g.made(at, false))
				for range 20 {
					g.write(t)
				}
				t.Logf("synced %d", g.Count("synced"))
				end := first + g.n - 3 + 1<<24
				var frames [][]byte
				for at += step; at+step < end; at += step {
					frames = append(frames, g.made(at, false))
				}
				frames = append(frames, g.made(end-10_000, false), g.made(end-5_000, false))
				g.Send(time.Microsecond, frames...)
				g.Send(2*time.Microsecond, g.made(end, true), g.made(end+1, true), g.made(end+2, true))
				g.grab(t)
			}
		})
	}
}

// Frames crossed unseen, as the box was late: what the client sends next in its turn the server has executed.
func TestAttack5RightBehindBypass(t *testing.T) {
	for _, managed := range []bool{true, false} {
		for _, mode := range []string{"mux", "replace"} {
			t.Run(fmt.Sprintf("managed %v, %s", managed, mode), func(t *testing.T) {
				for _, x := range []*bed.Box{nil, ofSwordbox(graph.Args{"mode": mode})} {
					g := newGrabber(t, x, managed, bed.SceneConfig{})
					for range 20 {
						g.write(t)
					}
					was := g.n
					g.Sleep(400 * time.Microsecond)
					g.Pause(100 * time.Microsecond)
					for range 5 {
						g.write(t)
					}
					g.Pause(time.Millisecond)
					g.others(t)
					for k := was; k < g.n; k++ {
						g.Send(time.Microsecond, g.made(g.e.Here.ClientPSN+k, true))
					}
					g.grab(t)
				}
			})
		}
	}
}

// As TestAttack5RightByStepsAround, and what is made up comes between a request that the server executes and the answer to that: as to any request, but to
// another one.
func TestAttack5RightUnderWay(t *testing.T) {
	for _, mode := range []string{"mux", "replace"} {
		t.Run(mode, func(t *testing.T) {
			for _, x := range []*bed.Box{nil, ofSwordbox(graph.Args{"mode": mode})} {
				g := newGrabber(t, x, true, bed.SceneConfig{})
				const step = 30_000
				first := g.e.Here.ClientPSN
				g.Send(time.Microsecond, g.made(first, false), g.made(first+step, false), g.made(first+1+step, false))
				for range 20 {
					g.write(t)
				}
				end := first + g.n - 2 + 1<<24
				var frames [][]byte
				at := first + 1 + 2*step
				for ; at+70_000 < end; at += step { // what it comes to is far from there
					frames = append(frames, g.made(at, false))
				}
				g.Send(time.Microsecond, frames...)
				g.Pause(time.Millisecond)
				g.Stall()
				id := g.e.Post(rnic.SendWR{Op: rnic.OpWrite, SGL: [][]byte{make([]byte, 8)}, RemoteAddr: 1 << 30, RKey: g.own.RKey})
				g.Pause(5 * time.Microsecond)
				g.Send(time.Microsecond, g.made(at, false), g.made(at+step, false), g.made(end, false), g.made(end+1, false), g.made(end+2, false))
				g.Thaw()
				g.e.Await()
				t.Logf("%v", g.e.Status(id))
				g.grab(t)
			}
		})
	}
}

// As TestAttack5RightUnderWay, with the client's own rights: what others have over its connection does not go where nobody is.
func TestAttack5CarrierToNobody(t *testing.T) {
	for _, mode := range []string{"mux", "replace"} {
		t.Run(mode, func(t *testing.T) {
			for _, x := range []*bed.Box{nil, ofSwordbox(graph.Args{"mode": mode, "shared": "1"})} {
				s := newManagers(t, bed.SceneConfig{Box: x})
				pd := s.PD()
				m := s.MR(pd, va, 1<<16, all)
				e := s.Peer(2, 0, bed.Link{PD: pd})
				s.announce(e, 3)
				made := func(psn uint32) []byte {
					f := e.Frame(psn, bed.Packet{Op: hdr.FetchAdd, Ext: bed.AtomicETH(va, m.RKey, 1, 0), AckReq: true, SrcMAC: e.Here.ClientMAC})
					f[5] ^= 0x55 // to nobody
					return f
				}
				const step = 30_000
				first := e.Here.ClientPSN
				s.Send(time.Microsecond, made(first), made(first+step), made(first+1+step))
				for range 20 {
					e.Add(m, va, 1)
				}
				end := first + 20 - 2 + 1<<24
				var frames [][]byte
				at := first + 1 + 2*step
				for ; at+70_000 < end; at += step {
					frames = append(frames, made(at))
				}
				s.Send(time.Microsecond, frames...)
				s.Pause(time.Millisecond)
				s.Stall()
				post(e, m, va, 1)
				s.Pause(5 * time.Microsecond)
				s.Send(time.Microsecond, made(at), made(at+step), made(end), made(end+1), made(end+2))
				s.Thaw()
				e.Await()
				for range 5 {
					e.Add(m, va, 1)
				}
				t.Logf("synced %d", s.Count("synced"))
				a, b := s.Peer(0, 0, bed.Link{PD: pd}), s.Peer(1, 0, bed.Link{PD: pd})
				s.announce(a, 1)
				s.announce(b, 2)
				for range 20 {
					s.Pause(500 * time.Microsecond)
					post(a, m, va, 1)
					post(b, m, va, 1)
					a.Await(b)
					if x := a.Status(a.Posted() - 1); x != rnic.Success {
						break
					}
				}
				t.Logf("moved %d; %d in memory; resent %d", s.Count("moved"), bed.WordAt(m, va), s.Count("resent"))
				healthy(t, a, b)
				for _, p := range []*bed.Peer{a, b} {
					for id := range p.Posted() {
						if d := p.Latency(id); d > 20*time.Millisecond {
							t.Fatalf("an operation took %v", d)
						}
					}
				}
			}
		})
	}
}

// joining is a server whose IP joins fragments again, as Linux' does for its soft RoCE (rxe).
type joining struct {
	host.Endpoint
	first []byte
}

// Input implements host.Endpoint.
func (j *joining) Input(now clock.Time, b *packet.Buf) {
	p := b.Bytes()
	if len(p) > 34 && p[12] == 8 && p[13] == 0 {
		switch part := binary.BigEndian.Uint16(p[20:]) & 0x3FFF; {
		case part == 0x2000:
			j.first = append([]byte(nil), p...)
			b.Put()
			return
		case part != 0 && j.first != nil:
			whole := append(j.first, p[34:]...)
			ip := hdr.IPv4(whole[14:34])
			binary.BigEndian.PutUint16(whole[20:], 0x4000)
			ip.SetTotalLen(uint16(len(whole) - 14))
			ip.UpdateChecksum()
			b.SetBytes(whole)
			j.first = nil
		}
	}
	j.Endpoint.Input(now, b)
}

// fragments are frame b in two.
func fragments(b []byte) [][]byte {
	const cut = 34 + 24
	part := func(p []byte, off uint16) []byte {
		p = append(append([]byte(nil), b[:34]...), p...)
		ip := hdr.IPv4(p[14:34])
		binary.BigEndian.PutUint16(p[20:], off)
		ip.SetTotalLen(uint16(len(p) - 14))
		ip.UpdateChecksum()
		return p
	}
	return [][]byte{part(b[34:cut], 0x2000), part(b[cut:], (cut-34)/8)}
}

// A client sends a request in fragments, which are not looked into here and which the server joins again, and then another one with the same PSN, which the server
// acknowledges unread. That shows no right.
func TestAttack5RightByFragments(t *testing.T) {
	for _, managed := range []bool{true, false} {
		for _, mode := range []string{"mux", "replace"} {
			t.Run(fmt.Sprintf("managed %v, %s", managed, mode), func(t *testing.T) {
				for _, x := range []*bed.Box{nil, ofSwordbox(graph.Args{"mode": mode})} {
					g := &grabber{managers: &managers{}}
					g.Scene = bed.NewScene(t, bed.SceneConfig{Box: x, Profile: rnic.RXE, Wrap: func(machine string, nic *rnic.NIC) host.Endpoint {
						x := &bed.Spy{Endpoint: nic, Pool: nic.Pool()}
						if machine == "s0" {
							g.server = x
							return &joining{Endpoint: x}
						}
						return x
					}})
					g.connect(t, managed)
					for range 20 {
						g.Pause(500 * time.Microsecond)
						g.write(t)
					}
					k := g.e.Here.ClientPSN + g.n
					real := g.e.Frame(k, bed.Packet{Op: hdr.WriteOnly, Ext: bed.RETH(1<<30, g.own.RKey, 8), Payload: make([]byte, 8), AckReq: true, SrcMAC: g.e.Here.ClientMAC})
					was := g.Far().Expected()
					g.Send(2*time.Microsecond, fragments(real)...)
					if g.Far().Expected() != was+1 {
						t.Fatal("the server did not execute it")
					}
					g.Send(2*time.Microsecond, g.made(k, true))
					g.e.Post(rnic.SendWR{Op: rnic.OpWrite, SGL: [][]byte{make([]byte, 8)}, RemoteAddr: va + 8, RKey: g.m.RKey}) // its NIC takes the answer for that to this one
					g.e.Await()
					g.grab(t)
				}
			})
		}
	}
}

// detour has what a machine sends to a queue pair wait on the way, while it says so.
type detour struct {
	host.Endpoint
	pool *packet.Pool
	qpn  uint32 // 0: nothing waits any more
	held [][]byte
}

// Output implements host.Endpoint.
func (d *detour) Output(now clock.Time, out *packet.Batch) {
	if d.qpn == 0 {
		for ; len(d.held) > 0 && !out.Full(); d.held = d.held[1:] {
			b := d.pool.Get()
			b.Verdict = packet.Generated
			b.SetBytes(d.held[0])
			out.Add(b)
		}
		d.Endpoint.Output(now, out)
		return
	}
	before := out.Len()
	d.Endpoint.Output(now, out)
	all := append([]*packet.Buf(nil), out.Bufs()...)
	out.Reset()
	for i, b := range all {
		var f hdr.Frame
		if i >= before && hdr.Parse(b.Bytes(), &f) == hdr.IsRoCE && f.BTHOf(b.Bytes()).DestQP() == d.qpn {
			d.held = append(d.held, append([]byte(nil), b.Bytes()...))
			b.Put()
			continue
		}
		out.Add(b)
	}
}

// Deadline implements host.Endpoint.
func (d *detour) Deadline() clock.Time {
	if d.qpn == 0 && len(d.held) > 0 {
		return 0
	}
	return d.Endpoint.Deadline()
}

// What the server answers over one connection comes half a second late, as over a way of its own that is full. Meanwhile its client goes on over another's connection. The answers
// that come late do not acknowledge what it has sent since.
func TestAttack5LateAnswers(t *testing.T) {
	for _, mode := range []string{"mux", "replace"} {
		for _, more := range []int{0, 5, 10, 30} {
			t.Run(fmt.Sprintf("%s, %d", mode, more), func(t *testing.T) {
				for _, x := range []*bed.Box{nil, ofSwordbox(graph.Args{"mode": mode, "shared": "1"})} {
					var d *detour
					deaf := false
					s := &managers{}
					k := rnic.DefaultConn()
					k.Timeout = 18
					s.Scene = bed.NewScene(t, bed.SceneConfig{Box: x, Conn: k, Profile: rnic.RXE, Wrap: func(machine string, nic *rnic.NIC) host.Endpoint {
						x := &bed.Spy{Endpoint: nic, Pool: nic.Pool()}
						if machine == "s0" {
							s.server = x
							x.Lose = func([]byte) bool { return deaf }
							d = &detour{Endpoint: x, pool: nic.Pool()}
							return d
						}
						return x
					}})
					pd := s.PD()
					m := s.MR(pd, va, 1<<16, all)
					a, b := s.Peer(0, 0, bed.Link{PD: pd}), s.Peer(1, 0, bed.Link{PD: pd})
					s.announce(a, 1)
					s.announce(b, 2)
					known(t, s.Scene, m, a, b)
					for _, p := range []*bed.Peer{a, b} {
						for range 3 {
							p.WriteWord(m, va+64, 0)
							p.ReadWord(m, va+64)
						}
					}
					d.qpn = a.Here.ClientQPN
					for range 70 {
						b.Post(rnic.SendWR{Op: rnic.OpWrite, SGL: [][]byte{make([]byte, 8)}, RemoteAddr: va, RKey: m.RKey})
						s.Pause(10 * time.Millisecond)
						b.Post(rnic.SendWR{Op: rnic.OpRead, SGL: [][]byte{make([]byte, 8)}, RemoteAddr: va + 2048, RKey: m.RKey})
					}
					if x != nil {
						for range more {
							a.WriteWord(m, va, 0)
						}
					}
					deaf = true
					first := a.Posted()
					for i := range uint64(15) {
						w := rnic.SendWR{Op: rnic.OpWrite, SGL: [][]byte{binary.LittleEndian.AppendUint64(nil, 0x77+i)}, RemoteAddr: va, RKey: m.RKey}
						a.Post(w)
					}
					s.Pause(100 * time.Microsecond)
					t.Logf("%d answers wait; moved %d, failed %d; %v", len(d.held), s.Count("moved"), s.Count("connections-failed"), a.State())
					d.qpn = 0
					s.Pause(time.Millisecond)
					for i := range 15 {
						if st := a.Status(first + i); st != bed.Pending && bed.WordAt(m, va) < 0x77+uint64(i) {
							t.Errorf("WRITE %d: %v, and it is not in memory", i, st)
						}
					}
					deaf = false
					a.Await(b)
					healthy(t, a, b)
				}
			})
		}
	}
}

// Somebody makes up a connection manager's handshake in the name of a client's queue pair, as in TestAttackHandshakeOfAnother, and a request from before the connection. What the server
// answers to that does not acknowledge what the client has under way over another's connection.
func TestAttack5HandshakeAndOldRequest(t *testing.T) {
	for _, mode := range []string{"mux", "replace"} {
		for _, handshake := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, handshake %v", mode, handshake), func(t *testing.T) {
				for _, x := range []*bed.Box{nil, ofSwordbox(graph.Args{"mode": mode, "shared": "2"})} {
					deaf := uint32(0)
					s := newManagers(t, bed.SceneConfig{Box: x})
					s.server.Lose = func(b []byte) bool {
						var f hdr.Frame
						return deaf != 0 && hdr.Parse(b, &f) == hdr.IsRoCE && f.BTHOf(b).DestQP() == deaf
					}
					pd := s.PD()
					m := s.MR(pd, va, 1<<16, all)
					a, b := s.Peer(0, 0, bed.Link{PD: pd}), s.Peer(1, 0, bed.Link{PD: pd})
					s.announce(a, 1)
					s.announce(b, 2)
					for i := range uint64(16) { // words of both connections
						for range 3 {
							warm(t, m, va+256*i, 1, a, b)
							a.WriteWord(m, va+256*i, 0)
							b.WriteWord(m, va+256*i, 0)
						}
					}
					word := uint64(0) // of b's connection
					for i := range uint64(16) {
						was := a.Far.Expected()
						if a.WriteWord(m, va+256*i, 0); a.Far.Expected() == was {
							word = va + 256*i
						}
					}
					_, next := a.Pending()
					t.Logf("word %#x; a's requests count from %d, its server's end from %d", word, next, a.Far.Expected())
					if x == nil {
						word = va
					}
					if word == 0 {
						t.Fatal("no word is of b's connection")
					}
					made := *b
					made.Here = a.Here
					made.Here.ServerQPN, made.Here.ServerPSN, made.Here.ClientPSN = 0x999, 5, 6
					if handshake {
						s.announce(&made, 77)
					}
					s.Pause(time.Millisecond)
					if x == nil {
						deaf = a.Here.ServerQPN
					} else {
						deaf = b.Here.ServerQPN
					}
					first := a.Posted()
					for i := range uint64(100) {
						a.Post(rnic.SendWR{Op: rnic.OpWrite, SGL: [][]byte{binary.LittleEndian.AppendUint64(nil, 1000+i)}, RemoteAddr: word, RKey: m.RKey})
					}
					s.Pause(20 * time.Microsecond)
					s.Send(time.Microsecond, a.Frame(a.Here.ClientPSN-1, bed.Packet{Op: hdr.WriteOnly, Ext: bed.RETH(va, 0x55, 0), AckReq: true}))
					n := 0
					for i := range 100 {
						if st := a.Status(first + i); st == rnic.Success && bed.WordAt(m, word) < 1000+uint64(i) {
							n++
						}
					}
					if n > 0 {
						t.Errorf("%d WRITEs are acknowledged, and not in memory", n)
					}
					deaf = 0
					a.Await(b)
					healthy(t, a, b)
				}
			})
		}
	}
}

// The way to the server's end of one connection is interrupted for some seconds while its client is quiet, and nobody sends anything wrong. The client goes on afterwards.
func TestAttack5LongOutageOfTheQuiet(t *testing.T) {
	for _, outage := range []time.Duration{2 * time.Second, 5 * time.Second} {
		t.Run(fmt.Sprint(outage), func(t *testing.T) {
			for _, x := range []*bed.Box{nil, ofSwordbox(graph.Args{"mode": "mux", "idle": "2s"})} {
				qpn := uint32(0)
				s := &managers{}
				s.Scene = bed.NewScene(t, bed.SceneConfig{Box: x, Wrap: func(machine string, nic *rnic.NIC) host.Endpoint {
					x := &bed.Spy{Endpoint: nic, Pool: nic.Pool()}
					if machine == "s0" {
						s.server = x
						x.Lose = func(b []byte) bool {
							var f hdr.Frame
							return qpn != 0 && hdr.Parse(b, &f) == hdr.IsRoCE && f.BTHOf(b).DestQP() == qpn
						}
					}
					return x
				}})
				pd := s.PD()
				m := s.MR(pd, va, 1<<16, all)
				a, b := s.Peer(0, 0, bed.Link{PD: pd}), s.Peer(1, 0, bed.Link{PD: pd})
				s.announce(a, 1)
				s.announce(b, 2)
				known(t, s.Scene, m, a, b)
				s.Pause(time.Second)
				warm(t, m, va, 1, a)
				qpn = b.Here.ServerQPN
				for range 1 + int((2*time.Second+outage)/(10*time.Millisecond)) {
					s.Pause(10 * time.Millisecond)
					warm(t, m, va, 1, a)
				}
				qpn = 0
				s.Pause(500 * time.Millisecond)
				for range 10 {
					post(b, m, va, 1)
					if b.Await(); b.Status(b.Posted()-1) != rnic.Success {
						break
					}
				}
				t.Logf("moved %d, gone %d", s.Count("moved"), s.Count("connections-gone"))
				healthy(t, a, b)
			}
		})
	}
}

// The answer to an atomic is lost that goes over another's connection, and the next request of that connection's own client is refused. The first client asks again, and has its answer.
func TestAttack5RefusedBehindLost(t *testing.T) {
	for _, mode := range []string{"mux", "replace"} {
		t.Run(mode, func(t *testing.T) {
			for _, x := range []*bed.Box{nil, ofSwordbox(graph.Args{"mode": mode, "shared": "1"})} {
				lose := false
				s := &managers{}
				s.Scene = bed.NewScene(t, bed.SceneConfig{Box: x, Wrap: func(machine string, nic *rnic.NIC) host.Endpoint {
					x := &bed.Spy{Endpoint: nic, Pool: nic.Pool()}
					if machine == "s0" {
						s.server = x
						x.LoseOut = func(b []byte) bool {
							var f hdr.Frame
							if lose && hdr.Parse(b, &f) == hdr.IsRoCE && f.Op == hdr.AtomicAck {
								lose = false
								return true
							}
							return false
						}
					}
					return x
				}})
				pd := s.PD()
				m := s.MR(pd, va, 1<<16, all)
				a, b := s.Peer(0, 0, bed.Link{PD: pd}), s.Peer(1, 0, bed.Link{PD: pd})
				s.announce(a, 1)
				s.announce(b, 2)
				known(t, s.Scene, m, a, b)
				lose = true
				post(b, m, va, 1)
				s.Pause(3 * time.Microsecond)
				a.Post(rnic.SendWR{Op: rnic.OpWrite, SGL: [][]byte{make([]byte, 8)}, RemoteAddr: va + 4096, RKey: 0x55})
				a.Await(b)
				t.Logf("moved %d; lost %v; %v, %v", s.Count("moved"), !lose, a.Status(a.Posted()-1), b.Status(b.Posted()-1))
				for range 3 {
					post(b, m, va, 1)
				}
				b.Await()
				healthy(t, b)
			}
		})
	}
}

// A box that is put in anew, and is told of connections by static=, knows not where they count: repetitions that the server acknowledges unread show no right.
func TestAttack5RightOfStatic(t *testing.T) {
	for _, mode := range []string{"mux", "replace"} {
		t.Run(mode, func(t *testing.T) {
			for _, x := range []*bed.Box{nil, ofSwordbox(graph.Args{"mode": mode})} {
				g := &grabber{}
				if x != nil {
					args := x.Args
					x.Configure = func(*bed.Bed) graph.Args {
						a := maps.Clone(args)
						if g.e != nil {
							c := g.e.Here
							a["static"] = conn.StaticConn{Client: c.ClientIP, ClientQPN: c.ClientQPN, Server: c.ServerIP, ServerQPN: c.ServerQPN}.String()
						}
						return a
					}
				}
				g.managers = newManagers(t, bed.SceneConfig{Box: x})
				g.connect(t, false)
				for range 40 {
					g.write(t)
				}
				g.Remove()
				g.Insert()
				g.others(t)
				for k := g.n - 3; k < g.n; k++ {
					g.Send(time.Microsecond, g.made(g.e.Here.ClientPSN+k, true))
				}
				g.grab(t)
			}
		})
	}
}

// As TestAttack4NumberComesBack, without a connection manager, as where a client's machine was started again: its queue pair's number is its next one's, with another queue pair of the server's.
func TestAttack5NumberComesBackUnannounced(t *testing.T) {
	for _, alone := range []bool{false, true} { // nothing was shared, and both ends count alike
		for _, far := range []int{-20, -10, 0, 1, 100, 100_000} {
			t.Run(fmt.Sprintf("alone %v, %d away", alone, far), func(t *testing.T) {
				for _, x := range []*bed.Box{nil, ofSwordbox(graph.Args{"mode": "mux"})} {
					s := newManagers(t, bed.SceneConfig{Box: x})
					pd := s.PD()
					m := s.MR(pd, va, 1<<16, all)
					a, b := s.Peer(0, 0, bed.Link{PD: pd}), s.Peer(1, 0, bed.Link{PD: pd})
					if known(t, s.Scene, m, a); !alone {
						known(t, s.Scene, m, b, a)
					}
					_, next := a.Pending()
					a.QP.Reset()
					s.Pause(time.Second)
					for range 3 {
						s.Pause(20 * time.Millisecond)
						if !alone {
							warm(t, m, va, 1, b)
						}
					}
					c := rnic.DefaultConn()
					c.SQPSN = (next + uint32(far)) & hdr.PSNMask
					again := s.Peer(0, 1, bed.Link{PD: pd, Near: a.QP, Conn: c})
					for range 10 {
						s.Pause(20 * time.Millisecond)
						post(again, m, va, 2)
						if !alone {
							post(b, m, va, 2)
						}
						again.Await(b)
						if st := again.Status(again.Posted() - 1); st != rnic.Success {
							t.Errorf("%v after %v", st, again.Latency(again.Posted()-1))
							break
						}
					}
					healthy(t, again, b)
				}
			})
		}
	}
}

// Worlds in which the box is killed, its tables are small, and something was found.
func TestAttack5FoundWorlds(t *testing.T) {
	defer func(was bool) { bed.Spread = was }(bed.Spread)
	bed.Spread = true
	for _, seed := range []uint64{
		111000574, // a SEND is acknowledged that never came
		111000197, // a client is told a remote operational error
	} {
		if _, _, err := wild()["crash"].Try(seed); err != nil {
			t.Errorf("seed %d: %v", seed, err)
		}
	}
}

// The last packet of a READ's answer is lost, and the SEND behind it waits for a receive: the rest of the READ is done again behind it. Then the box is killed. The SEND comes.
func TestAttack5RereadBehindSend(t *testing.T) {
	for _, kill := range []bool{false, true} {
		t.Run(fmt.Sprintf("kill %v", kill), func(t *testing.T) {
			lossy := false
			bed.Both(t, bed.SceneConfig{Box: ofSwordbox(graph.Args{"mode": "mux"}), Wrap: func(machine string, nic *rnic.NIC) host.Endpoint {
				return &bed.Spy{Endpoint: nic, Lose: func(b []byte) bool {
					var f hdr.Frame
					if machine != "s0" && lossy && hdr.Parse(b, &f) == hdr.IsRoCE && f.Op == hdr.ReadRespLast {
						lossy = false
						return true
					}
					return false
				}}
			}}, func(t *testing.T, s *bed.Scene) {
				k := rnic.DefaultConn()
				k.MinRNRTimer, k.RNRRetry = 0, 7 // 655 ms
				l := bed.Link{PD: s.PD(), Conn: k}
				m := s.MR(l.PD, va, 1<<16, all)
				a, b := s.Peer(0, 0, l), s.Peer(1, 0, l)
				known(t, s, m, a, b)
				a.Do(rnic.SendWR{Op: rnic.OpRead, SGL: [][]byte{make([]byte, 2048)}, RemoteAddr: va, RKey: m.RKey}) // its path MTU is known then
				lossy = true
				buf := make([]byte, 2048)
				a.Post(rnic.SendWR{Op: rnic.OpRead, SGL: [][]byte{buf}, RemoteAddr: va, RKey: m.RKey})
				send := a.Post(rnic.SendWR{Op: rnic.OpSend, SGL: [][]byte{[]byte("0123456789abcdef")}})
				a.Post(rnic.SendWR{Op: rnic.OpWrite, SGL: [][]byte{make([]byte, 8)}, RemoteAddr: va + 4096, RKey: m.RKey})
				s.Pause(200 * time.Microsecond)
				if s.Instance() != nil && kill {
					s.Remove()
					s.Insert()
				}
				s.Pause(10 * time.Millisecond)
				got := make([]byte, 64)
				if err := a.Far.PostRecv(&rnic.RecvWR{Buf: got}); err != nil {
					t.Fatal(err)
				}
				a.Await()
				t.Logf("READ %v, SEND %v, WRITE %v; moved %d", a.Status(send-1), a.Status(send), a.Status(send+1), s.Count("moved"))
				if a.Status(send) == rnic.Success && string(got[:16]) != "0123456789abcdef" {
					t.Error("the SEND is acknowledged, and did not come")
				}
				healthy(t, a)
			})
		})
	}
}

// A copy of a READ's request comes late, in front of the client's next atomic, as when the client asked again and the answer was just coming. The server remembers one READ or atomic at a time, and the client never has more under
// way.
func TestAttack5CopyOfRead(t *testing.T) {
	for _, op := range []rnic.Op{rnic.OpFetchAdd, rnic.OpRead} {
		for _, first := range []bool{true, false} {
			t.Run(fmt.Sprintf("%v, the copy first %v", op, first), func(t *testing.T) {
				bed.Both(t, bed.SceneConfig{Box: ofSwordbox(graph.Args{"mode": "mux", "shared": "1"}), Profile: rnic.ConnectX}, func(t *testing.T, s *bed.Scene) {
					k := rnic.DefaultConn()
					k.MaxRdAtomic, k.MaxDestRdAtomic = 1, 1
					l := bed.Link{PD: s.PD(), Conn: k}
					m := s.MR(l.PD, va, 1<<16, all)
					a, b := s.Peer(0, 0, l), s.Peer(1, 0, l)
					known(t, s, m, a, b)
					for range 5 {
						_, psn := a.Pending()
						if _, st := a.ReadWord(m, va+2048); st != rnic.Success {
							t.Fatal(st)
						}
						copied := func() {
							s.Send(0, a.Frame(psn, bed.Packet{Op: hdr.ReadRequest, Ext: bed.RETH(va+2048, m.RKey, 8), AckReq: true}))
						}
						w := rnic.SendWR{Op: op, SGL: [][]byte{make([]byte, 8)}, RemoteAddr: va + 4096, RKey: m.RKey, Swap: 1}
						s.Stall() // it takes a while
						if !first {
							a.Post(w)
							s.Pause(5 * time.Microsecond)
						}
						copied()
						if first {
							a.Post(w)
						}
						s.Pause(5 * time.Microsecond)
						s.Thaw()
						a.Await(b)
						if a.State() != rnic.StateReady {
							break
						}
					}
					t.Logf("moved %d", s.Count("moved"))
					healthy(t, a, b)
				})
			})
		}
	}
}

// A client goes without a word, and what another one has over its connection is not answered; that one gives up and disconnects. The next connection of a third has nothing to do with it.
func TestAttack5PlaceOfOrphan(t *testing.T) {
	for _, x := range []*bed.Box{nil, ofSwordbox(graph.Args{"mode": "mux", "shared": "1"})} {
		s := newManagers(t, bed.SceneConfig{Box: x})
		k := rnic.DefaultConn()
		k.Timeout, k.RetryCnt = 9, 1 // 2 ms, twice
		pd := s.PD()
		m := s.MR(pd, va, 1<<16, all)
		a := s.Peer(0, 0, bed.Link{PD: pd})
		known(t, s.Scene, m, a)
		b := s.Peer(1, 0, bed.Link{PD: pd, Conn: k})
		s.announce(b, 2)
		warm(t, m, va, 3, b)
		a.QP.Reset()
		a.Far.Reset()
		post(b, m, va, 1)
		b.Await()
		t.Logf("b: %v, moved %d", b.Status(b.Posted()-1), s.Count("moved"))
		s.Send(10*time.Microsecond, func() []byte {
			d := datagram(b, true, hdr.CMFields{AttributeID: hdr.DisconnectRequest, TransactionID: 2 | 8<<32, LocalCommID: 2, RemoteCommID: 2 | 1<<24, RemoteQPN: b.Here.ServerQPN})
			return d.Bytes()
		}())
		d := datagram(b, false, hdr.CMFields{AttributeID: hdr.DisconnectReply, TransactionID: 2 | 8<<32, LocalCommID: 2 | 1<<24, RemoteCommID: 2})
		s.server.Send(s.Clock.Now(), d.Bytes())
		s.Pause(50 * time.Microsecond)
		c := s.Peer(2, 0, bed.Link{PD: pd, Conn: k})
		c.Receive(4, 64)
		s.announce(c, 9)
		for range 3 {
			c.Do(rnic.SendWR{Op: rnic.OpSend, SGL: [][]byte{make([]byte, 16)}})
		}
		t.Logf("c: %v", c.Latency(c.Posted()-1))
		healthy(t, c)
	}
}

// As TestServersNumberComesBack, and the new connection counts from a PSN on that is about where the old one came to, as Clover's and Sherman's queue pairs do,
// which all begin with one. What is acknowledged is in memory: no question of the box's takes a request's place. How far the new one comes is open (docs/SECURITY.md).
func TestAttack5ServersNumberAndPSN(t *testing.T) {
	for d := range uint32(20) {
		for _, mode := range []string{"mux", "replace"} {
			t.Run(fmt.Sprintf("%s, %d", mode, d), func(t *testing.T) {
				bed.Both(t, bed.SceneConfig{Box: ofSwordbox(graph.Args{"mode": mode}), Profile: rnic.RXE}, func(t *testing.T, s *bed.Scene) {
					k := rnic.DefaultConn()
					k.Timeout, k.RetryCnt, k.SQPSN, k.RQPSN = 14, 7, 3185, 3185
					l := bed.Link{PD: s.PD(), Conn: k}
					m := s.MR(l.PD, va, 4096, all)
					a, b := s.Peer(0, 0, l), s.Peer(1, 0, l)
					known(t, s, m, a, b)
					s.Pause(110 * time.Millisecond)
					l.Far, l.Conn.SQPSN, l.Conn.RQPSN = a.Far, 3185+d, 3185+d
					again := s.Peer(0, 0, l)
					const n = 30
					for i := range n {
						again.Post(rnic.SendWR{Op: rnic.OpWrite, SGL: [][]byte{binary.LittleEndian.AppendUint64(nil, 0x700+uint64(i))}, RemoteAddr: va + 1024, RKey: m.RKey})
					}
					for range 100 { // 1 s
						s.Pause(10 * time.Millisecond)
						warm(t, m, va, 1, b)
					}
					for i := range n {
						if again.Status(i) == rnic.Success && bed.WordAt(m, va+1024) < 0x700+uint64(i) {
							t.Errorf("WRITE %d is acknowledged, and not in memory", i)
						}
					}
				})
			})
		}
	}
}

// The last packet of a READ's answer is lost behind the box, and the SEND behind the READ waits for a receive. The READ is answered again, as it is by the server.
func TestAttack5RereadStarves(t *testing.T) {
	for _, warmed := range []bool{true, false} {
		t.Run(fmt.Sprintf("shared before %v", warmed), func(t *testing.T) {
			lossy := false
			bed.Both(t, bed.SceneConfig{Box: ofSwordbox(graph.Args{"mode": "mux"}), Wrap: func(machine string, nic *rnic.NIC) host.Endpoint {
				return &bed.Spy{Endpoint: nic, Lose: func(b []byte) bool {
					var f hdr.Frame
					if lossy && machine != "s0" && hdr.Parse(b, &f) == hdr.IsRoCE && f.Op == hdr.ReadRespLast {
						lossy = false
						return true
					}
					return false
				}}
			}}, func(t *testing.T, s *bed.Scene) {
				k := rnic.DefaultConn()
				k.Timeout, k.RetryCnt, k.MinRNRTimer, k.RNRRetry = 10, 5, 10, 7 // 4 ms, six times; 0.32 ms, without end
				l := bed.Link{PD: s.PD(), Conn: k}
				m := s.MR(l.PD, va, 1<<16, all)
				a, b := s.Peer(0, 0, l), s.Peer(1, 0, l)
				if known(t, s, m, a); warmed {
					known(t, s, m, b, a)
				}
				a.Do(rnic.SendWR{Op: rnic.OpRead, SGL: [][]byte{make([]byte, 2048)}, RemoteAddr: va, RKey: m.RKey}) // its path MTU is known then
				lossy = true
				read := a.Post(rnic.SendWR{Op: rnic.OpRead, SGL: [][]byte{make([]byte, 2048)}, RemoteAddr: va, RKey: m.RKey})
				a.Post(rnic.SendWR{Op: rnic.OpSend, SGL: [][]byte{make([]byte, 16)}})
				s.Pause(200 * time.Millisecond)
				t.Logf("READ %v after %v", a.Status(read), a.Latency(read))
				if err := a.Far.PostRecv(&rnic.RecvWR{Buf: make([]byte, 64)}); err != nil {
					t.Fatal(err)
				}
				a.Await(b)
				healthy(t, a, b)
			})
		})
	}
}
