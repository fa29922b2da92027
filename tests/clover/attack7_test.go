package clover

import (
	"fmt"
	"testing"
	"time"

	"github.com/quillon/quillon/internal/rack/host"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	wire "github.com/quillon/quillon/nf/hdr/clover"
	"github.com/quillon/quillon/rack/rnic"
	"github.com/quillon/quillon/tests/bed"
)

// datagram is a message of the connection manager about the connection of p, from its client or to it.
func datagram(p *bed.Peer, up bool, m hdr.CMFields) []byte {
	d := hdr.DETH(make([]byte, hdr.DETHLen))
	d.SetQKey(hdr.GSIQKey)
	d.SetSrcQP(1)
	mad := hdr.CM(make([]byte, hdr.MADLen))
	mad.Encode(&m)
	c := p.Here
	f := bed.Packet{SrcMAC: c.ClientMAC, DstMAC: c.ServerMAC, Src: c.ClientIP, Dst: c.ServerIP, Op: hdr.UDSendOnly, QPN: 1, Ext: d, Payload: mad}
	if !up {
		f.SrcMAC, f.DstMAC, f.Src, f.Dst = c.ServerMAC, c.ClientMAC, c.ServerIP, c.ClientIP
	}
	return f.Bytes()
}

// A client without any right to others' memory has atomics of its own executed before the ConnectReply has passed, and repeats their PSNs: in a WRITE that reaches nobody, and in a CAS that is to link it, which the server, as it remembers the atomic with that PSN, answers with the value that its own
// word had. Others' appends are led behind an entry that is in no chain of theirs, and acknowledged. On a bare wire nothing of that is executed.
func TestAttack7LedBehindRepetitions(t *testing.T) {
	for _, profile := range []rnic.Profile{rnic.RXE, rnic.ConnectX} {
		// The ConnectRequest comes again, so that the first PSN is believed; or the box expects PSN 0; or the atomics cross unseen later, as the box is late.
		for _, how := range []string{"again", "zero", "bypass"} {
			t.Run(fmt.Sprintf("%v, %s", profile, how), func(t *testing.T) {
				var server *bed.Spy
				wrap := func(machine string, nic *rnic.NIC) host.Endpoint {
					x := &bed.Spy{Endpoint: nic, Pool: nic.Pool()}
					if machine == "s0" {
						server = x
					}
					return x
				}
				bed.Both(t, bed.SceneConfig{Profile: profile, Box: ofSteer(graph.Args{"settle": "0s", "pair": "60us"}), Wrap: wrap}, func(t *testing.T, s *bed.Scene) {
					l, other := bed.Link{PD: s.PD()}, bed.Link{PD: s.PD()}
					c := newChains(t, s, l.PD)
					own := s.MR(other.PD, 1<<40, 4096, rnic.RemoteRead|rnic.RemoteWrite|rnic.RemoteAtomic)
					a, b := c.appender(s.Peer(0, 0, l)), c.appender(s.Peer(1, 0, l))
					rounds := func() {
						for round := range uint64(60) {
							c.begin(round, a, b)
							c.end(a, b)
							s.Pause(100 * time.Microsecond)
						}
						for k := range uint64(keys) {
							c.walk(k, a)
							c.walk(k, b)
						}
					}
					rounds()
					other.Conn = rnic.DefaultConn()
					other.Conn.SQPSN, other.Conn.RQPSN = 0xFFFFF8, 0xFFFFF8
					m := s.Peer(2, 0, other)
					h := m.Here
					made := func(n uint32, k bed.Packet) []byte {
						k.AckReq, k.SrcMAC = true, h.ClientMAC
						return m.Frame(h.ClientPSN+n, k)
					}
					once := func(n uint32) []byte {
						return made(n, bed.Packet{Op: hdr.CompareSwap, Ext: bed.AtomicETH(entryAt(1), c.m.RKey, 0, 0)})
					}
					toNobody := func(b []byte) []byte { b[5] ^= 0x55; return b }
					atomics := func() {
						for range 16 { // the first finds 0, the others Fresh(1)
							m.Post(rnic.SendWR{Op: rnic.OpCompareSwap, SGL: [][]byte{make([]byte, 8)}, RemoteAddr: 1 << 40, RKey: own.RKey, Compare: 0, Swap: uint64(wire.Fresh(1))})
						}
						m.Await()
					}
					req := func() {
						s.Send(10*time.Microsecond, datagram(m, true, hdr.CMFields{AttributeID: hdr.ConnectRequest, TransactionID: 3, LocalCommID: 3, ServiceID: 0x106 << 16, TransportService: hdr.RC, PKey: 0xFFFF, PathMTU: h.MTU,
							LocalGID: h.ClientIP, RemoteGID: h.ServerIP, LocalACKTimeout: 14, RetryCount: 7, RNRRetryCount: 7, LocalQPN: h.ClientQPN, StartingPSN: h.ServerPSN, ResponderResources: 1, InitiatorDepth: 16}))
					}
					req()
					if how != "bypass" {
						atomics()
					}
					if how == "again" {
						req()
					}
					server.Send(s.Clock.Now(), datagram(m, false, hdr.CMFields{AttributeID: hdr.ConnectReply, TransactionID: 3, LocalCommID: 3 | 1<<24, RemoteCommID: 3, LocalQPN: h.ServerQPN, StartingPSN: h.ClientPSN,
						ResponderResources: 16, InitiatorDepth: 1, RNRRetryCount: 7}))
					s.Pause(50 * time.Microsecond)
					s.Send(10*time.Microsecond, datagram(m, true, hdr.CMFields{AttributeID: hdr.ReadyToUse, TransactionID: 3, LocalCommID: 3, RemoteCommID: 3 | 1<<24}))
					if how == "bypass" {
						s.Sleep(400 * time.Microsecond)
						s.Pause(100 * time.Microsecond)
						atomics()
						s.Pause(time.Millisecond)
						rounds()
					}
					for n := range uint32(8) {
						if how != "zero" {
							s.Send(5*time.Microsecond, once(n))
						}
					}
					tail := b.tail[1]
					swap := wire.Pointer(tail)<<28 | 1<<19 | wire.Fresh(1)
					s.Send(20*time.Microsecond,
						once(8), // PSN 0
						toNobody(made(9, bed.Packet{Op: hdr.WriteOnly, Ext: bed.RETH(entryAt(tail), c.m.RKey, slab), Payload: entry(0)})),
						once(9),
						made(10, bed.Packet{Op: hdr.CompareSwap, Ext: bed.AtomicETH(entryAt(a.tail[0]), c.m.RKey, uint64(swap), uint64(wire.Fresh(1)))}))
					t.Logf("steered %d; the tail of key 0 has %v", s.Count("steered-cas"), c.head(a.tail[0]))
					for range 3 {
						c.begin(0, a)
						c.end(a)
					}
					t.Logf("steered %d; a's append is %d, the tails were %v", s.Count("steered-cas"), a.lh, b.tail)
					c.check()
				})
			})
		}
	}
}

// A client without any right to others' memory sends each PSN twice: in a CAS under others' R_Key, or a WRITE, that reaches nobody, and in a CAS to its own word, which the server executes. The box takes the answer for that to the first one: that the R_Key is its client's, that the entry is written, that it is linked.
// Others' appends are led behind an entry that is in no chain of theirs, and acknowledged. On a bare wire nothing happens to their memory.
func TestAttack7LedBehindAnothersAnswer(t *testing.T) {
	for _, profile := range []rnic.Profile{rnic.RXE, rnic.ConnectX} {
		t.Run(fmt.Sprint(profile), func(t *testing.T) {
			bed.Both(t, bed.SceneConfig{Profile: profile, Box: ofSteer(graph.Args{"settle": "0s", "pair": "60us"})}, func(t *testing.T, s *bed.Scene) {
				l, other := bed.Link{PD: s.PD()}, bed.Link{PD: s.PD()}
				c := newChains(t, s, l.PD)
				own := s.MR(other.PD, 1<<40, 4096, rnic.RemoteRead|rnic.RemoteWrite|rnic.RemoteAtomic)
				a, b, m := c.appender(s.Peer(0, 0, l)), c.appender(s.Peer(1, 0, l)), s.Peer(2, 0, other)
				for round := range uint64(60) {
					c.begin(round, a, b)
					c.end(a, b)
					m.Do(rnic.SendWR{Op: rnic.OpCompareSwap, SGL: [][]byte{make([]byte, 8)}, RemoteAddr: 1 << 40, RKey: own.RKey, Swap: uint64(wire.Fresh(1))})
					s.Pause(100 * time.Microsecond)
				}
				for k := range uint64(keys) {
					c.walk(k, a)
					c.walk(k, b)
				}
				_, next := m.Pending()
				made := func(n uint32, here bool, k bed.Packet) []byte {
					k.AckReq, k.SrcMAC = true, m.Here.ClientMAC
					f := m.Frame(next+n, k)
					if !here {
						f[5] ^= 0x55
					}
					return f
				}
				real := func(n uint32) []byte {
					return made(n, true, bed.Packet{Op: hdr.CompareSwap, Ext: bed.AtomicETH(1<<40, own.RKey, 0, 0)})
				}
				tail := b.tail[1]
				swap := wire.Pointer(tail)<<28 | 1<<19 | wire.Fresh(1)
				s.Send(20*time.Microsecond,
					made(0, false, bed.Packet{Op: hdr.CompareSwap, Ext: bed.AtomicETH(entryAt(1), c.m.RKey, uint64(wire.Fresh(2)), uint64(wire.Fresh(2)))}), real(0),
					made(1, false, bed.Packet{Op: hdr.WriteOnly, Ext: bed.RETH(entryAt(tail), c.m.RKey, slab), Payload: entry(0)}), real(1),
					made(2, false, bed.Packet{Op: hdr.CompareSwap, Ext: bed.AtomicETH(entryAt(a.tail[0]), c.m.RKey, uint64(swap), uint64(wire.Fresh(1)))}), real(2))
				for range 3 {
					c.begin(0, a)
					c.end(a)
				}
				t.Logf("steered %d; a's append is %d, the tails were %v", s.Count("steered-cas"), a.lh, b.tail)
				c.check()
			})
		})
	}
}

// A CAS is lost behind the box, and its client dies, and perhaps the box. Both queue pairs are connected anew with their old numbers, and a first PSN that is a little before the lost CAS's. The box takes the new connection for the old one, since it is not far from it, and sends the lost CAS again until it comes to its turn there:
// the server executes it in the place of the new client's own, and answers that one from what it remembers. The new client is told of a success, and its entry is in no chain.
func TestAttack7LostCASInNewConnection(t *testing.T) {
	for _, c := range []struct {
		lead   int
		killed bool
	}{{2, true}, {6, true}, {2, false}, {6, false}} { // not killed: the same box goes on
		lead := c.lead
		t.Run(fmt.Sprintf("%d, killed %v", lead, c.killed), func(t *testing.T) {
			outages(t, 3, false, func(t *testing.T, o *outage) {
				a := o.all[0]
				o.append(a, 0, true)
				_, next := a.Pending()
				o.lose = func(f *hdr.Frame, b []byte) bool { return f.BTHOf(b).DestQP() == a.Here.ServerQPN }
				if c.killed {
					o.Remove()
				}
				a.QP.Reset()
				a.Far.Reset()
				o.lose = nil
				conn := rnic.DefaultConn()
				conn.Timeout = 8
				conn.SQPSN = (next - 1 - uint32(lead)) & hdr.PSNMask
				again := o.c.appender(o.Peer(0, 0, bed.Link{PD: o.c.pd, Near: a.QP, Far: a.Far, Conn: conn}))
				again.tail = o.all[1].tail
				if c.killed {
					o.Insert()
				}
				o.Pause(5 * time.Millisecond)
				o.c.touch(again, lead-1)
				again.Await()
				again.key, again.lh = 1, o.c.next
				o.c.next++
				if st := again.Do(rnic.SendWR{Op: rnic.OpWrite, SGL: [][]byte{entry(1)}, RemoteAddr: entryAt(again.lh), RKey: o.c.m.RKey}); st != rnic.Success {
					t.Fatal(st)
				}
				o.Pause(100 * time.Millisecond)
				o.c.walk(1, again)
				o.c.link(again)
				o.c.end(again)
				t.Logf("inherited %d, asked %d, repaired %d", o.Count("inherited"), o.Count("asked"), o.Count("repaired"))
			})
		})
	}
}

// As TestAttack7LedBehindRepetitions, without a connection manager: the client has its connection be met anew, by requests far ahead that reach nobody, after a second in which it was quiet, and begins again with PSNs that the server has executed.
func TestAttack7LedBehindRepetitionsMetAnew(t *testing.T) {
	bed.Both(t, bed.SceneConfig{Profile: rnic.RXE, Box: ofSteer(graph.Args{"settle": "0s", "pair": "60us"})}, func(t *testing.T, s *bed.Scene) {
		l, other := bed.Link{PD: s.PD()}, bed.Link{PD: s.PD()}
		c := newChains(t, s, l.PD)
		own := s.MR(other.PD, 1<<40, 4096, rnic.RemoteRead|rnic.RemoteWrite|rnic.RemoteAtomic)
		a, b, m := c.appender(s.Peer(0, 0, l)), c.appender(s.Peer(1, 0, l)), s.Peer(2, 0, other)
		for range 20 {
			m.Do(rnic.SendWR{Op: rnic.OpCompareSwap, SGL: [][]byte{make([]byte, 8)}, RemoteAddr: 1 << 40, RKey: own.RKey, Swap: uint64(wire.Fresh(1))})
			s.Pause(200 * time.Microsecond)
		}
		_, next := m.Pending()
		first := next - 16 // what the server remembers
		made := func(n uint32, here bool, k bed.Packet) []byte {
			k.AckReq, k.SrcMAC = true, m.Here.ClientMAC
			f := m.Frame(first+n, k)
			if !here {
				f[5] ^= 0x55
			}
			return f
		}
		once := func(n uint32, here bool) []byte {
			return made(n, here, bed.Packet{Op: hdr.CompareSwap, Ext: bed.AtomicETH(entryAt(1), c.m.RKey, 0, 0)})
		}
		s.Pause(1200 * time.Millisecond)
		for n := range uint32(32) { // maxAhead
			s.Send(0, once(1<<20+n, false))
		}
		for n := range uint32(10) {
			s.Send(0, once(n, true))
			s.Pause(200 * time.Microsecond)
		}
		for round := range uint64(60) {
			c.begin(round, a, b)
			c.end(a, b)
			s.Pause(100 * time.Microsecond)
		}
		for k := range uint64(keys) {
			c.walk(k, a)
			c.walk(k, b)
		}
		tail := b.tail[1]
		swap := wire.Pointer(tail)<<28 | 1<<19 | wire.Fresh(1)
		s.Send(20*time.Microsecond, once(10, true),
			made(11, false, bed.Packet{Op: hdr.WriteOnly, Ext: bed.RETH(entryAt(tail), c.m.RKey, slab), Payload: entry(0)}), once(11, true),
			made(12, true, bed.Packet{Op: hdr.CompareSwap, Ext: bed.AtomicETH(entryAt(a.tail[0]), c.m.RKey, uint64(swap), uint64(wire.Fresh(1)))}))
		for range 3 {
			c.begin(0, a)
			c.end(a)
		}
		t.Logf("steered %d; a's append is %d, the tails were %v", s.Count("steered-cas"), a.lh, b.tail)
		c.check()
	})
}
