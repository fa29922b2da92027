package swordbox

import (
	"encoding/binary"
	"fmt"
	"maps"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/quillon/quillon/internal/rack/history/fault"
	"github.com/quillon/quillon/internal/rack/host"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/rack/rnic"
	"github.com/quillon/quillon/tests/bed"
	"github.com/quillon/quillon/tor/conn"
)

// udpSum is the sum over UDP and its pseudo header of a RoCEv2 frame, 0xFFFF when the checksum in it is right; and the place
// of the checksum. 0: the frame has no UDP.
func udpSum(b []byte) (sum uint16, at int) {
	var f hdr.Frame
	if hdr.Parse(b, &f) != hdr.IsRoCE || f.L4 == 0 {
		return 0, 0
	}
	n := int(binary.BigEndian.Uint16(b[f.L4+4:]))
	s := uint32(n) + hdr.ProtoUDP
	add := func(p []byte) {
		for i := 0; i+1 < len(p); i += 2 {
			s += uint32(binary.BigEndian.Uint16(p[i:]))
		}
		if len(p)&1 != 0 {
			s += uint32(p[len(p)-1]) << 8
		}
	}
	if f.Net == hdr.NetIPv4 {
		add(b[f.L3+12 : f.L3+20])
	} else {
		add(b[f.L3+8 : f.L3+40])
	}
	add(b[f.L4 : int(f.L4)+n])
	for s > 0xFFFF {
		s = s>>16 + s&0xFFFF
	}
	return uint16(s), int(f.L4) + 6
}

// summing is a NIC that fills in UDP checksums, and throws frames away of which they are wrong.
func summing(_ string, nic *rnic.NIC) host.Endpoint {
	return &bed.Spy{Endpoint: nic, Out: func(_ clock.Time, b []byte) {
		if _, at := udpSum(b); at != 0 {
			s, _ := udpSum(b)
			binary.BigEndian.PutUint16(b[at:], ^s)
		}
	}, Lose: func(b []byte) bool {
		s, at := udpSum(b)
		return at != 0 && b[at]|b[at+1] != 0 && s != 0xFFFF
	}}
}

// Hosts whose NICs fill in UDP checksums, and check them, are served as others.
func TestAttackUDPChecksums(t *testing.T) {
	for _, six := range []bool{false, true} {
		for _, mode := range []string{"mux", "replace"} {
			for _, order := range []string{"strict", "word"} {
				t.Run(fmt.Sprintf("%v/%s/%s", six, mode, order), func(t *testing.T) {
					bed.Both(t, bed.SceneConfig{Box: ofSwordbox(graph.Args{"mode": mode, "order": order}), IPv6: six, Wrap: summing}, func(t *testing.T, s *bed.Scene) {
						pd := s.PD()
						m := s.MR(pd, va, 1<<16, all)
						a, b := s.Peer(0, 0, bed.Link{PD: pd}), s.Peer(1, 0, bed.Link{PD: pd})
						known(t, s, m, a, b)
						for range 20 {
							for _, p := range []*bed.Peer{a, b} {
								post(p, m, va, 2)
								p.Post(rnic.SendWR{Op: rnic.OpRead, SGL: [][]byte{make([]byte, 3000)}, RemoteAddr: va + 4096, RKey: m.RKey})
								p.Post(rnic.SendWR{Op: rnic.OpWrite, SGL: [][]byte{make([]byte, 3000)}, RemoteAddr: va + 8192, RKey: m.RKey})
								p.Post(rnic.SendWR{Op: rnic.OpRead, SGL: [][]byte{make([]byte, 8)}, RemoteAddr: va, RKey: m.RKey})
							}
							a.Await(b)
						}
						healthy(t, a, b)
						for _, p := range []*bed.Peer{a, b} {
							for id := range p.Posted() {
								if d := p.Latency(id); d > time.Millisecond {
									t.Fatalf("an operation took %v", d)
								}
							}
						}
					})
				})
			}
		}
	}
}

// managers sends datagrams of the connection manager: from clients by the scene's sender, and from the server.
type managers struct {
	*bed.Scene
	server *bed.Spy
}

func newManagers(t *testing.T, c bed.SceneConfig) *managers {
	g := &managers{}
	c.Wrap = func(machine string, nic *rnic.NIC) host.Endpoint {
		x := &bed.Spy{Endpoint: nic, Pool: nic.Pool()}
		if machine == "s0" {
			g.server = x
		}
		return x
	}
	g.Scene = bed.NewScene(t, c)
	return g
}

// datagram is a message about the connection of p, from its client or to it.
func datagram(p *bed.Peer, up bool, m hdr.CMFields) bed.Packet {
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
	return f
}

// announce is the handshake of p's connection, with that identifier on both sides.
func (g *managers) announce(p *bed.Peer, id uint32) {
	c := p.Here
	g.Send(10*time.Microsecond, datagram(p, true, hdr.CMFields{AttributeID: hdr.ConnectRequest, TransactionID: uint64(id), LocalCommID: id, ServiceID: 0x106 << 16, TransportService: hdr.RC, PKey: 0xFFFF, PathMTU: c.MTU,
		LocalGID: c.ClientIP, RemoteGID: c.ServerIP, LocalACKTimeout: 14, RetryCount: 7, RNRRetryCount: 7, LocalQPN: c.ClientQPN, StartingPSN: c.ServerPSN, ResponderResources: 1, InitiatorDepth: 16}).Bytes())
	g.server.Send(g.Clock.Now(), datagram(p, false, hdr.CMFields{AttributeID: hdr.ConnectReply, TransactionID: uint64(id), LocalCommID: id | 1<<24, RemoteCommID: id, LocalQPN: c.ServerQPN, StartingPSN: c.ClientPSN,
		ResponderResources: 16, InitiatorDepth: 1, RNRRetryCount: 7}).Bytes())
	g.Pause(50 * time.Microsecond)
	g.Send(10*time.Microsecond, datagram(p, true, hdr.CMFields{AttributeID: hdr.ReadyToUse, TransactionID: uint64(id), LocalCommID: id, RemoteCommID: id | 1<<24}).Bytes())
}

// A request for the end of a connection that does not come to the server ends nobody.
func TestAttackUnseenDisconnect(t *testing.T) {
	defects := map[string]func(p *bed.Packet, b []byte) []byte{
		"MAC": func(p *bed.Packet, _ []byte) []byte { p.DstMAC = [6]byte{2, 0, 0, 9, 9, 9}; return p.Bytes() },
		"P_Key": func(_ *bed.Packet, b []byte) []byte {
			var f hdr.Frame
			hdr.Parse(b, &f)
			f.BTHOf(b).SetPKey(0x8001)
			hdr.SetICRC(b, &f)
			return b
		},
		"VLAN": func(_ *bed.Packet, b []byte) []byte {
			return append(append(append([]byte(nil), b[:12]...), 0x81, 0, 0, 7), b[12:]...)
		},
	}
	for name, defect := range defects {
		for _, mode := range []string{"mux", "replace"} {
			t.Run(name+"/"+mode, func(t *testing.T) {
				for _, x := range []*bed.Box{nil, ofSwordbox(graph.Args{"mode": mode})} {
					s := newManagers(t, bed.SceneConfig{Box: x})
					pd := s.PD()
					m := s.MR(pd, va, 1<<16, all)
					a, b := s.Peer(0, 0, bed.Link{PD: pd}), s.Peer(1, 0, bed.Link{PD: pd})
					s.announce(a, 1)
					s.announce(b, 2)
					known(t, s.Scene, m, a, b)
					t.Logf("conns %d, moved %d, synced %d", s.Count("conns"), s.Count("moved"), s.Count("synced"))
					k := datagram(b, true, hdr.CMFields{AttributeID: hdr.DisconnectRequest, TransactionID: 2 | 8<<32, LocalCommID: 2, RemoteCommID: 2 | 1<<24, RemoteQPN: b.Here.ServerQPN})
					s.Send(10*time.Microsecond, defect(&k, k.Bytes()))
					for range 80 {
						s.Pause(100 * time.Millisecond)
						post(a, m, va, 1)
						post(b, m, va, 1)
						a.Await(b)
					}
					t.Logf("moved %d, synced %d", s.Count("moved"), s.Count("synced"))
					healthy(t, a, b)
				}
			})
		}
	}
}

// A made-up request with the very PSN that comes next, in a frame of another shape than those of its connection, which the server
// throws away unseen, takes no request's place.
func TestAttackExactOtherShape(t *testing.T) {
	tag := func(b []byte, tags ...byte) []byte {
		return append(append(append([]byte(nil), b[:12]...), tags...), b[12:]...)
	}
	shapes := map[string]func(b []byte) []byte{
		"a tag of 0x88A8": func(b []byte) []byte { return tag(b, 0x88, 0xA8, 0, 0) },
		"two tags":        func(b []byte) []byte { return tag(b, 0x81, 0, 0, 0, 0x81, 0, 0, 0) },
		"0x88A8 and 8100": func(b []byte) []byte { return tag(b, 0x88, 0xA8, 0, 0, 0x81, 0, 0, 0) },
		"IPv4 options":    func(b []byte) []byte { return options(b, 1) },
		"long options":    func(b []byte) []byte { return options(b, 10) },
		"UDP checksum":    func(b []byte) []byte { b[14+20+6] = 1; return b },
	}
	for name, shape := range shapes {
		for _, mode := range []string{"mux", "replace"} {
			t.Run(name+"/"+mode, func(t *testing.T) {
				wrap := func(machine string, nic *rnic.NIC) host.Endpoint { // a server as most are
					return &bed.Spy{Endpoint: nic, Lose: func(b []byte) bool {
						s, at := udpSum(b)
						return machine == "s0" && (b[12] == 8 && b[13] == 0 && b[14] != 0x45 || at != 0 && b[at]|b[at+1] != 0 && s != 0xFFFF)
					}}
				}
				bed.Both(t, bed.SceneConfig{Box: ofSwordbox(graph.Args{"mode": mode}), Wrap: wrap}, func(t *testing.T, s *bed.Scene) {
					pd := s.PD()
					m := s.MR(pd, va, 1<<16, all)
					a, b := s.Peer(0, 0, bed.Link{PD: pd}), s.Peer(1, 0, bed.Link{PD: pd})
					known(t, s, m, a, b)
					x := a.Frame(a.Here.ClientPSN+20, bed.Packet{Op: hdr.WriteOnly, Ext: bed.RETH(va+4096, m.RKey, 64), Payload: make([]byte, 64), AckReq: true})
					s.Send(10*time.Microsecond, shape(x))
					s.Pause(time.Millisecond)
					sent := 20
					for range 5 {
						warm(t, m, va, 3, a, b)
						if st := a.WriteWord(m, va+4096, uint64(sent)); st != rnic.Success {
							t.Fatalf("WRITE: %v", st)
						}
						if now := bed.WordAt(m, va+4096); now != uint64(sent) {
							t.Errorf("%d was written, %d is there", sent, now)
						}
						sent++
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

// As TestAttackExactOtherShape, where all frames have a priority tag, and the made-up one has a tag of another type.
func TestAttackOtherTag(t *testing.T) {
	tag := func(b []byte, kind ...byte) []byte {
		return append(append(append(append([]byte(nil), b[:12]...), kind...), 0x60, 0), b[12:]...)
	}
	wrap := func(machine string, nic *rnic.NIC) host.Endpoint {
		x := &bed.Spy{Endpoint: nic, Lose: func(b []byte) bool { return machine == "s0" && b[12] == 0x88 }}
		return &retag{Endpoint: x, out: func(b []byte) []byte { return tag(b, 0x81, 0) }}
	}
	bed.Both(t, bed.SceneConfig{Box: ofSwordbox(graph.Args{"mode": "mux"}), Wrap: wrap}, func(t *testing.T, s *bed.Scene) {
		pd := s.PD()
		m := s.MR(pd, va, 1<<16, all)
		a, b := s.Peer(0, 0, bed.Link{PD: pd}), s.Peer(1, 0, bed.Link{PD: pd})
		known(t, s, m, a, b)
		x := a.Frame(a.Here.ClientPSN+20, bed.Packet{Op: hdr.WriteOnly, Ext: bed.RETH(va+4096, m.RKey, 64), Payload: make([]byte, 64), AckReq: true})
		s.Send(10*time.Microsecond, tag(x, 0x88, 0xA8))
		s.Pause(time.Millisecond)
		warm(t, m, va, 5, a, b)
		healthy(t, a, b)
		if now := bed.WordAt(m, va); now != 40+10 {
			t.Errorf("50 additions make %d", now)
		}
	})
}

// options is an IPv4 frame with n words of options that say nothing.
func options(b []byte, n int) []byte {
	p := append(append([]byte(nil), b[:34]...), make([]byte, 4*n)...)
	for i := range 4 * n {
		p[34+i] = 1
	}
	p = append(p, b[34:]...)
	ip := p[14:]
	ip[0] = 0x45 + byte(n)
	binary.BigEndian.PutUint16(ip[2:], binary.BigEndian.Uint16(ip[2:])+uint16(4*n))
	ip[10], ip[11] = 0, 0
	s := uint32(0)
	for i := 0; i < 20+4*n; i += 2 {
		s += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	for s > 0xFFFF {
		s = s>>16 + s&0xFFFF
	}
	binary.BigEndian.PutUint16(ip[10:], ^uint16(s))
	var f hdr.Frame
	if hdr.Parse(p, &f) == hdr.IsRoCE {
		hdr.SetICRC(p, &f)
	}
	return p
}

// A client that carries others' operations, and sends a request that the server throws away unseen, ends nobody else.
func TestAttackOwnOtherShape(t *testing.T) {
	tag := func(b []byte, tags ...byte) []byte {
		return append(append(append([]byte(nil), b[:12]...), tags...), b[12:]...)
	}
	shapes := map[string]func(b []byte) []byte{
		"a tag of 0x88A8": func(b []byte) []byte { return tag(b, 0x88, 0xA8, 0, 0) },
		"IPv4 options":    func(b []byte) []byte { return options(b, 1) },
		"UDP checksum":    func(b []byte) []byte { b[14+20+6] = 1; return b },
		"TTL": func(b []byte) []byte {
			ip := hdr.IPv4(b[14:][:20])
			ip.SetTTL(1)
			ip.UpdateChecksum()
			return b
		},
	}
	wrap := func(machine string, nic *rnic.NIC) host.Endpoint { // a server as most are, behind a router
		return &bed.Spy{Endpoint: nic, Lose: func(b []byte) bool {
			s, at := udpSum(b)
			return machine == "s0" && (b[12] == 8 && b[13] == 0 && (b[14] != 0x45 || b[22] < 2) || at != 0 && b[at]|b[at+1] != 0 && s != 0xFFFF)
		}}
	}
	requests := map[string]func(rkey uint32) bed.Packet{
		"long WRITE": func(rkey uint32) bed.Packet {
			return bed.Packet{Op: hdr.WriteOnly, Ext: bed.RETH(va+4096, rkey, 64), Payload: make([]byte, 64), AckReq: true}
		},
		"short WRITE": func(rkey uint32) bed.Packet {
			return bed.Packet{Op: hdr.WriteOnly, Ext: bed.RETH(va+4096, rkey, 8), Payload: make([]byte, 8), AckReq: true}
		},
		"READ": func(rkey uint32) bed.Packet {
			return bed.Packet{Op: hdr.ReadRequest, Ext: bed.RETH(va+4096, rkey, 64), AckReq: true}
		},
		"FETCH-ADD": func(rkey uint32) bed.Packet {
			return bed.Packet{Op: hdr.FetchAdd, Ext: bed.AtomicETH(va+4096, rkey, 1, 0), AckReq: true}
		},
		"SEND": func(uint32) bed.Packet {
			return bed.Packet{Op: hdr.SendOnly, Payload: make([]byte, 64), AckReq: true}
		},
	}
	for name, shape := range shapes {
		for what, request := range requests {
			for i, args := range []graph.Args{{"mode": "mux"}, {"mode": "replace"}, {"mode": "mux", "track": "0+ffffffffffff"}} {
				for bad := range 3 {
					t.Run(fmt.Sprintf("%s/%s/%d/%d", name, what, i, bad), func(t *testing.T) {
						bed.Both(t, bed.SceneConfig{Box: ofSwordbox(args), Wrap: wrap}, func(t *testing.T, s *bed.Scene) {
							pd := s.PD()
							m := s.MR(pd, va, 1<<16, all)
							peers := []*bed.Peer{s.Peer(0, 0, bed.Link{PD: pd}), s.Peer(1, 0, bed.Link{PD: pd}), s.Peer(2, 0, bed.Link{PD: pd})}
							known(t, s, m, peers...)
							n := uint32(20)
							if args["track"] != "" { // they have written there
								for _, p := range peers {
									p.Write(m, va+4096, make([]byte, 64))
								}
								n++
							}
							start := s.Clock.Now()
							s.Send(10*time.Microsecond, shape(peers[bad].Frame(peers[bad].Here.ClientPSN+n, request(m.RKey))))
							others := append(append([]*bed.Peer(nil), peers[:bad]...), peers[bad+1:]...)
							slowest := time.Duration(0)
							for range 10 {
								for _, p := range others {
									post(p, m, va, 2)
								}
								others[0].Await(others[1:]...)
								s.Pause(20 * time.Millisecond)
							}
							for _, p := range others {
								for id := range p.Posted() {
									slowest = max(slowest, p.Latency(id))
								}
							}
							t.Logf("the slowest took %v; %d were sent again by the box, in %v", slowest, s.Count("resent"), s.Clock.Now().Sub(start))
							healthy(t, others...)
						})
					})
				}
			}
		}
	}
}

// A client whose path MTU is more than what the way to the server takes is told by its own time-out, and nobody else is.
func TestAttackTooLongForTheWay(t *testing.T) {
	wrap := func(machine string, nic *rnic.NIC) host.Endpoint {
		return &bed.Spy{Endpoint: nic, Lose: func(b []byte) bool { return machine == "s0" && len(b) > 1518 }}
	}
	for i, args := range []graph.Args{{"mode": "mux"}, {"mode": "replace"}, {"mode": "mux", "track": "0+ffffffffffff"}} {
		for bad := range 3 {
			t.Run(fmt.Sprintf("%d/%d", i, bad), func(t *testing.T) {
				c := rnic.DefaultConn()
				c.PathMTU, c.Timeout, c.RetryCnt = 4096, 10, 7 // 4 ms
				bed.Both(t, bed.SceneConfig{Box: ofSwordbox(args), MTU: 4096, Conn: c, Profile: rnic.ConnectX, Wrap: wrap}, func(t *testing.T, s *bed.Scene) {
					pd := s.PD()
					m := s.MR(pd, va, 1<<16, all)
					peers := []*bed.Peer{s.Peer(0, 0, bed.Link{PD: pd, Conn: c}), s.Peer(1, 0, bed.Link{PD: pd, Conn: c}), s.Peer(2, 0, bed.Link{PD: pd, Conn: c})}
					known(t, s, m, peers...)
					for _, p := range peers {
						p.Write(m, va+4096, make([]byte, 16))
						p.WriteWord(m, va+8, 1)
					}
					peers[bad].Post(rnic.SendWR{Op: rnic.OpWrite, SGL: [][]byte{make([]byte, 4000)}, RemoteAddr: va + 4096, RKey: m.RKey})
					others := append(append([]*bed.Peer(nil), peers[:bad]...), peers[bad+1:]...)
					for range 10 {
						for _, p := range others {
							post(p, m, va, 2)
						}
						others[0].Await(others[1:]...)
						s.Pause(20 * time.Millisecond)
					}
					peers[bad].Await()
					t.Logf("%v, %d sent again", peers[bad].Status(peers[bad].Posted()-1), s.Count("resent"))
					healthy(t, others...)
				})
			})
		}
	}
}

// The way to the server carries shorter packets from one moment on, and a client goes on with WRITEs that are too long for it: it is told, and the
// others, who have operations behind these, go on.
func TestAttackWayShrinks(t *testing.T) {
	for _, mode := range []string{"mux", "replace"} {
		for bad := range 3 {
			t.Run(fmt.Sprintf("%s/%d", mode, bad), func(t *testing.T) {
				short := false
				wrap := func(machine string, nic *rnic.NIC) host.Endpoint {
					return &bed.Spy{Endpoint: nic, Lose: func(b []byte) bool { return short && machine == "s0" && len(b) > 700 }}
				}
				bed.Both(t, bed.SceneConfig{Box: ofSwordbox(graph.Args{"mode": mode, "track": "0+ffffffffffff"}), Wrap: wrap}, func(t *testing.T, s *bed.Scene) {
					pd := s.PD()
					m := s.MR(pd, va, 1<<16, all)
					peers := []*bed.Peer{s.Peer(0, 0, bed.Link{PD: pd}), s.Peer(1, 0, bed.Link{PD: pd}), s.Peer(2, 0, bed.Link{PD: pd})}
					known(t, s, m, peers...)
					for range 3 {
						for _, p := range peers {
							p.Write(m, va+4096, make([]byte, 1000))
							p.WriteWord(m, va+8, 1)
						}
					}
					short = true
					defer func() { short = false }()
					for range 3 {
						peers[bad].Post(rnic.SendWR{Op: rnic.OpWrite, SGL: [][]byte{make([]byte, 1000)}, RemoteAddr: va + 4096, RKey: m.RKey})
					}
					others := append(append([]*bed.Peer(nil), peers[:bad]...), peers[bad+1:]...)
					for range 10 {
						for _, p := range others {
							post(p, m, va, 2)
						}
						others[0].Await(others[1:]...)
						s.Pause(20 * time.Millisecond)
					}
					healthy(t, others...)
					for _, p := range others {
						for id := range p.Posted() {
							if d := p.Latency(id); d > time.Second {
								t.Fatalf("an operation took %v", d)
							}
						}
					}
					t.Logf("%d were sent again", s.Count("resent"))
				})
			})
		}
	}
}

// A connection that carries others' operations, and that somebody names with static= while it is in use, goes on.
func TestAttackNamedInUse(t *testing.T) {
	of := func(peers ...*bed.Peer) string {
		var all []string
		for _, p := range peers {
			c := p.Here
			all = append(all, conn.StaticConn{Client: c.ClientIP, ClientQPN: c.ClientQPN, Server: c.ServerIP, ServerQPN: c.ServerQPN}.String())
		}
		return strings.Join(all, ";")
	}
	for _, mode := range []string{"mux", "replace"} {
		for _, restart := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/%v", mode, restart), func(t *testing.T) {
				box := ofSwordbox(graph.Args{"mode": mode})
				args := ""
				box.Configure = func(*bed.Bed) graph.Args {
					a := maps.Clone(box.Args)
					if args != "" {
						a["static"] = args
					}
					return a
				}
				box.Clean = true
				bed.Both(t, bed.SceneConfig{Box: box}, func(t *testing.T, s *bed.Scene) {
					pd := s.PD()
					m := s.MR(pd, va, 1<<16, all)
					a, b := s.Peer(0, 0, bed.Link{PD: pd}), s.Peer(1, 0, bed.Link{PD: pd})
					known(t, s, m, a, b)
					args = of(a, b)
					switch {
					case s.Instance() == nil:
					case restart:
						s.Remove()
						s.Insert()
					default:
						if _, err := s.Instance().Set("box", graph.Args{"static": args}); err != nil {
							t.Logf("refused: %v", err)
						}
					}
					s.Pause(50 * time.Millisecond)
					for range 10 {
						post(a, m, va, 2)
						post(b, m, va, 2)
						a.Await(b)
					}
					healthy(t, a, b)
					if now := bed.WordAt(m, va); now != 40+40 {
						t.Errorf("80 additions make %d", now)
					}
					args = ""
				})
			})
		}
	}
}

// Somebody makes up a connection manager's handshake in the name of a client's queue pair that is in use, and quiet just then. The server
// has another queue pair then, and the client's own connection goes on.
func TestAttackHandshakeOfAnother(t *testing.T) {
	for _, managed := range []bool{true, false} {
		for _, quiet := range []time.Duration{time.Millisecond, time.Second} {
			for _, args := range []graph.Args{{"mode": "mux"}, {"mode": "replace", "guard": "drop"}} {
				t.Run(fmt.Sprintf("managed %v, %v, %s", managed, quiet, args["mode"]), func(t *testing.T) {
					for _, x := range []*bed.Box{nil, ofSwordbox(args)} {
						s := newManagers(t, bed.SceneConfig{Box: x})
						pd := s.PD()
						m := s.MR(pd, va, 1<<16, all)
						a, b := s.Peer(0, 0, bed.Link{PD: pd}), s.Peer(1, 0, bed.Link{PD: pd})
						if managed {
							s.announce(a, 1)
							s.announce(b, 2)
						}
						known(t, s.Scene, m, a, b)
						s.Pause(quiet)
						made := *b
						made.Here.ServerQPN, made.Here.ServerPSN, made.Here.ClientPSN = 0x999, 5, 6
						t.Logf("moved %d, bound %d", s.Count("moved"), s.Bound())
						s.announce(&made, 77)
						for range 10 {
							s.Pause(5 * time.Millisecond)
							post(a, m, va, 2)
							post(b, m, va, 2)
							a.Await(b)
						}
						healthy(t, a, b)
						if now := bed.WordAt(m, va); now != 40+40 {
							t.Errorf("80 additions make %d", now)
						}
					}
				})
			}
		}
	}
}

// The numbering of a connection that carries others' operations comes round, twice.
func TestAttackComesRound(t *testing.T) {
	if os.Getenv("QUILLON_LONG") == "" {
		t.Skip("it takes minutes: QUILLON_LONG=1 runs it")
	}
	const size = 20 << 20
	c := rnic.DefaultConn()
	c.PathMTU = 256
	for _, mode := range []string{"mux", "replace"} {
		for reader := range 2 {
			t.Run(fmt.Sprint(mode, reader), func(t *testing.T) {
				s := bed.NewScene(t, bed.SceneConfig{MTU: 256, Conn: c, Box: ofSwordbox(graph.Args{"mode": mode})})
				pd := s.PD()
				m := s.MR(pd, va, size, all)
				l := bed.Link{PD: pd, Conn: c}
				peers := []*bed.Peer{s.Peer(0, 0, l), s.Peer(1, 0, l)}
				a, b := peers[reader], peers[1-reader]
				known(t, s, m, a, b)
				sum := uint64(40)
				for k := range 2*(1<<24)/(size/256) + 10 {
					if st := a.Do(rnic.SendWR{Op: rnic.OpRead, SGL: [][]byte{make([]byte, size)}, RemoteAddr: va, RKey: m.RKey}); st != rnic.Success {
						t.Fatalf("READ %d: %v", k, st)
					}
					warm(t, m, va, 3, a, b)
					if sum += 6; bed.WordAt(m, va) != sum {
						t.Fatalf("after READ %d: %d additions make %d", k, sum, bed.WordAt(m, va))
					}
				}
				t.Logf("moved %d", s.Count("moved"))
				healthy(t, a, b)
			})
		}
	}
}

// The box was late, and frames crossed unseen: it does not know where connections count. Requests in a row that somebody makes up then
// do not tell it.
func TestAttackInTurnBehindBypass(t *testing.T) {
	kinds := map[string]func(rkey uint32) bed.Packet{
		"empty WRITE": func(uint32) bed.Packet {
			return bed.Packet{Op: hdr.WriteOnly, Ext: bed.RETH(va, 0x55, 0), AckReq: true}
		},
		"SEND": func(uint32) bed.Packet { return bed.Packet{Op: hdr.SendOnly, Payload: make([]byte, 16), AckReq: true} },
		"READ": func(rkey uint32) bed.Packet {
			return bed.Packet{Op: hdr.ReadRequest, Ext: bed.RETH(va, rkey, 8), AckReq: true}
		},
	}
	for name, kind := range kinds {
		for _, managed := range []bool{true, false} {
			for _, far := range []int{-12, -200, -1000, -100000, 15, 1000, 100000, 1 << 22} {
				for _, n := range []int{3, 8} {
					t.Run(fmt.Sprintf("%s, managed %v, %d frames, %d away", name, managed, n, far), func(t *testing.T) {
						for _, x := range []*bed.Box{nil, ofSwordbox(graph.Args{"mode": "mux"})} {
							s := newManagers(t, bed.SceneConfig{Box: x})
							pd := s.PD()
							m := s.MR(pd, va, 1<<16, all)
							a, b := s.Peer(0, 0, bed.Link{PD: pd}), s.Peer(1, 0, bed.Link{PD: pd})
							if managed {
								s.announce(a, 1)
								s.announce(b, 2)
							}
							for range 20 {
								s.Pause(500 * time.Microsecond)
								warm(t, m, va, 1, a)
							}
							s.Sleep(200 * time.Microsecond)
							warm(t, m, va, 2, a, b)
							s.Pause(time.Millisecond)
							var frames [][]byte
							for k := range n {
								frames = append(frames, a.Frame(a.Here.ClientPSN+22+uint32(far)+uint32(k), kind(m.RKey)))
							}
							s.Send(10*time.Microsecond, frames...)
							synced := s.Count("synced")
							for range 10 {
								s.Pause(20 * time.Millisecond)
								post(a, m, va, 2)
								post(b, m, va, 2)
								a.Await(b)
								if a.State() != rnic.StateReady || a.Status(a.Posted()-1) != rnic.Success {
									break
								}
							}
							healthy(t, a, b)
							if now := bed.WordAt(m, va); now != 20+4+40 {
								t.Errorf("64 additions make %d; synced %d", now, synced)
							}
						}
					})
				}
			}
		}
	}
}

// Requests in a row that somebody makes up come between the handshake of a connection and its first request.
func TestAttackInTurnBeforeFirst(t *testing.T) {
	for _, far := range []int{-12, -1000, -100000, -1 << 22, 15, 1000, 100000, 1 << 22} {
		for _, n := range []int{1, 3, 8} {
			for _, before := range []int{0, 1, 2} {
				t.Run(fmt.Sprintf("%d frames, %d away, after %d", n, far, before), func(t *testing.T) {
					for _, x := range []*bed.Box{nil, ofSwordbox(graph.Args{"mode": "mux"})} {
						s := newManagers(t, bed.SceneConfig{Box: x})
						pd := s.PD()
						m := s.MR(pd, va, 1<<16, all)
						b := s.Peer(1, 0, bed.Link{PD: pd})
						s.announce(b, 2)
						known(t, s.Scene, m, b)
						a := s.Peer(0, 0, bed.Link{PD: pd})
						s.announce(a, 1)
						if before > 0 {
							warm(t, m, va, before, a)
						}
						var frames [][]byte
						for k := range n {
							frames = append(frames, a.Frame(a.Here.ClientPSN+uint32(before)+uint32(far)+uint32(k), bed.Packet{Op: hdr.WriteOnly, Ext: bed.RETH(va, 0x55, 0), AckReq: true}))
						}
						s.Send(10*time.Microsecond, frames...)
						for range 10 {
							s.Pause(20 * time.Millisecond)
							post(a, m, va, 2)
							post(b, m, va, 2)
							a.Await(b)
							if a.State() != rnic.StateReady || a.Status(a.Posted()-1) != rnic.Success {
								break
							}
						}
						healthy(t, a, b)
						if now := bed.WordAt(m, va); now != 20+uint64(before)+40 {
							t.Errorf("%d additions make %d; synced %d", 60+before, now, s.Count("synced"))
						}
					}
				})
			}
		}
	}
}

// As TestAttackInTurn, with PSNs that the client comes to.
func TestAttackInTurnReached(t *testing.T) {
	for _, far := range []int{12, 25, 40} {
		for n := range 12 {
			for _, pause := range []time.Duration{0, 300 * time.Microsecond, 2 * time.Millisecond} {
				t.Run(fmt.Sprintf("%d after %d, %v", far, n, pause), func(t *testing.T) {
					bed.Both(t, bed.SceneConfig{Box: ofSwordbox(nil)}, func(t *testing.T, s *bed.Scene) {
						pd := s.PD()
						m := s.MR(pd, va, 1<<16, all)
						a, b := s.Peer(0, 0, bed.Link{PD: pd}), s.Peer(1, 0, bed.Link{PD: pd})
						known(t, s, m, b)
						for range n {
							s.Pause(pause)
							warm(t, m, va, 1, a)
						}
						was := s.Count("synced")
						var frames [][]byte
						for k := range 8 {
							frames = append(frames, a.Frame(a.Here.ClientPSN+uint32(n+far+k), bed.Packet{Op: hdr.WriteOnly, Ext: bed.RETH(va, 0x55, 0), AckReq: true}))
						}
						s.Send(10*time.Microsecond, frames...)
						t.Logf("synced %d then %d", was, s.Count("synced"))
						for k := range 100 {
							s.Pause(50 * time.Microsecond)
							if _, st := a.Add(m, va, 1); st != rnic.Success {
								t.Fatalf("addition %d: %v", k, st)
							}
						}
						healthy(t, a, b)
					})
				})
			}
		}
	}
}

// retag has all frames that a machine sends, or that come to it, be in another Ethernet header.
type retag struct {
	host.Endpoint
	out, in func(b []byte) []byte
}

// Input implements host.Endpoint.
func (r *retag) Input(now clock.Time, b *packet.Buf) {
	if r.in != nil {
		b.SetBytes(r.in(append([]byte(nil), b.Bytes()...)))
	}
	r.Endpoint.Input(now, b)
}

// Output implements host.Endpoint.
func (r *retag) Output(now clock.Time, out *packet.Batch) {
	had := out.Len()
	r.Endpoint.Output(now, out)
	for _, b := range out.Bufs()[had:] {
		if r.out != nil {
			b.SetBytes(r.out(append([]byte(nil), b.Bytes()...)))
		}
	}
}

// A server whose frames have priority tags (VID 0), and clients whose frames have none, or the other way round: nothing moves, and what is
// lost heals as on a wire.
func TestAttackTagsOneWay(t *testing.T) {
	tagged := func(b []byte) []byte {
		return append(append(append([]byte(nil), b[:12]...), 0x81, 0, 0x60, 0), b[12:]...)
	}
	for _, who := range []string{"s0", "c"} {
		for dir := range fault.Dir(2) {
			for frame := 3; frame < 40; frame += 3 {
				lost := fault.Schedule{{Action: fault.Drop, Where: "c0", Dir: dir, Frame: frame}}
				t.Run(fmt.Sprintf("%s/%v", who, lost[0]), func(t *testing.T) {
					wrap := func(machine string, nic *rnic.NIC) host.Endpoint {
						if strings.HasPrefix(machine, who) {
							return &retag{Endpoint: nic, out: tagged}
						}
						return nic
					}
					c := rnic.DefaultConn()
					c.Timeout = 8
					bed.Both(t, bed.SceneConfig{Box: ofSwordbox(nil), Schedule: lost, Wrap: wrap, Conn: c}, func(t *testing.T, s *bed.Scene) {
						pd := s.PD()
						m := s.MR(pd, va, 1<<16, all)
						a, b := s.Peer(0, 0, bed.Link{PD: pd}), s.Peer(1, 0, bed.Link{PD: pd})
						known(t, s, m, a, b)
						for k := range 10 {
							post(a, m, va, 2)
							a.Post(rnic.SendWR{Op: rnic.OpWrite, SGL: [][]byte{make([]byte, 16)}, RemoteAddr: va + 64*uint64(k), RKey: m.RKey})
							a.Post(rnic.SendWR{Op: rnic.OpRead, SGL: [][]byte{make([]byte, 1600)}, RemoteAddr: va, RKey: m.RKey})
							post(b, m, va, 2)
							a.Await(b)
						}
						healthy(t, a, b)
						t.Logf("synced %d, moved %d", s.Count("synced"), s.Count("moved"))
					})
				})
			}
		}
	}
}

// A client goes on sending to a queue pair that was its own, and is another client's by now: guard=drop does not take that one's frames
// for made up.
func TestAttackFormerOwner(t *testing.T) {
	for _, guard := range []string{"pass", "drop"} {
		for _, quiet := range []time.Duration{time.Millisecond, 3 * time.Second} {
			t.Run(fmt.Sprint(guard, quiet), func(t *testing.T) {
				bed.Both(t, bed.SceneConfig{Box: ofSwordbox(graph.Args{"mode": "mux", "guard": guard})}, func(t *testing.T, s *bed.Scene) {
					pd := s.PD()
					m := s.MR(pd, va, 1<<16, all)
					a, c := s.Peer(0, 0, bed.Link{PD: pd}), s.Peer(2, 0, bed.Link{PD: pd})
					known(t, s, m, a, c)
					a.Far.Reset()
					a.QP.Reset()
					s.Pause(quiet)
					own := a.Frame(a.Here.ClientPSN+20, bed.Packet{Op: hdr.WriteOnly, Ext: bed.RETH(va, 0x55, 0), AckReq: true, SrcMAC: a.Here.ClientMAC})
					s.Send(10*time.Microsecond, own)
					b := s.Peer(1, 0, bed.Link{PD: pd, Far: a.Far})
					for range 20 {
						s.Send(10*time.Microsecond, own)
						post(b, m, va, 1)
						s.Pause(400 * time.Millisecond)
					}
					b.Await()
					healthy(t, b)
					for id := range b.Posted() {
						if d := b.Latency(id); d > time.Second {
							t.Fatalf("an operation took %v", d)
						}
					}
				})
			})
		}
	}
}

// Hosts whose frames are longer than what is in them, or that change from frame to frame what a frame may change, are served as others.
func TestAttackOddFrames(t *testing.T) {
	n := byte(0)
	ways := map[string]func(b []byte) []byte{
		"a trailer": func(b []byte) []byte { return append(b, 1, 2, 3, 4) },
		"a source port for each": func(b []byte) []byte {
			if b[12] == 8 && b[23] == 17 {
				n++
				b[34], b[35] = 0xC0, n
				var f hdr.Frame
				if hdr.Parse(b, &f) == hdr.IsRoCE {
					hdr.SetICRC(b, &f)
				}
			}
			return b
		},
		"DSCP and TTL for each": func(b []byte) []byte {
			if b[12] == 8 && b[23] == 17 {
				n++
				ip := hdr.IPv4(b[14:][:20])
				ip.SetTOS(n&0x3F<<2 | ip.TOS()&3)
				ip.SetTTL(16 + n&0xF) // below manyHops
				ip.UpdateChecksum()
			}
			return b
		},
		"a priority for each": func(b []byte) []byte {
			n++
			return append(append(append([]byte(nil), b[:12]...), 0x81, 0, n<<5, 0), b[12:]...)
		},
		"a priority for some": func(b []byte) []byte {
			if n++; n%3 != 0 {
				return b
			}
			return append(append(append([]byte(nil), b[:12]...), 0x81, 0, n<<5, 0), b[12:]...)
		},
	}
	for name, way := range ways {
		for _, who := range []string{"s0", "c", ""} {
			for _, mode := range []string{"mux", "replace"} {
				t.Run(fmt.Sprintf("%s/%s/%s", name, who, mode), func(t *testing.T) {
					wrap := func(machine string, nic *rnic.NIC) host.Endpoint {
						if strings.HasPrefix(machine, who) {
							return &retag{Endpoint: nic, out: way}
						}
						return nic
					}
					bed.Both(t, bed.SceneConfig{Box: ofSwordbox(graph.Args{"mode": mode, "track": "0+ffffffffffff"}), Wrap: wrap}, func(t *testing.T, s *bed.Scene) {
						pd := s.PD()
						m := s.MR(pd, va, 1<<16, all)
						a, b := s.Peer(0, 0, bed.Link{PD: pd}), s.Peer(1, 0, bed.Link{PD: pd})
						known(t, s, m, a, b)
						for k := range 20 {
							for _, p := range []*bed.Peer{a, b} {
								post(p, m, va, 2)
								p.Post(rnic.SendWR{Op: rnic.OpWrite, SGL: [][]byte{make([]byte, 16)}, RemoteAddr: va + 64 + 64*uint64(k), RKey: m.RKey})
								p.Post(rnic.SendWR{Op: rnic.OpRead, SGL: [][]byte{make([]byte, 1600)}, RemoteAddr: va, RKey: m.RKey})
								p.Post(rnic.SendWR{Op: rnic.OpWrite, SGL: [][]byte{make([]byte, 3000)}, RemoteAddr: va + 8192, RKey: m.RKey})
							}
							a.Await(b)
						}
						healthy(t, a, b)
						slowest := time.Duration(0)
						for _, p := range []*bed.Peer{a, b} {
							for id := range p.Posted() {
								slowest = max(slowest, p.Latency(id))
							}
						}
						t.Logf("the slowest took %v; moved %d", slowest, s.Count("moved"))
						if now := bed.WordAt(m, va); now != 40+80 {
							t.Errorf("120 additions make %d", now)
						}
						if slowest > time.Millisecond {
							t.Errorf("the slowest took %v", slowest)
						}
					})
				})
			}
		}
	}
}

// A client whose connection carried what the server refused, and that goes on over others', is quiet for idle=. Then it goes on, or is told.
func TestAttackDeadAndQuiet(t *testing.T) {
	for _, mode := range []string{"mux", "replace"} {
		t.Run(mode, func(t *testing.T) {
			c := rnic.DefaultConn()
			c.Timeout = 8
			s := bed.NewScene(t, bed.SceneConfig{Box: ofSwordbox(graph.Args{"mode": mode, "idle": "2s"}), Conn: c, Profile: rnic.RXE})
			pd := s.PD()
			m, gone := s.MR(pd, va, 1<<16, all), s.MR(pd, 1<<30, 1<<16, all)
			var peers []*bed.Peer
			for i := range 3 {
				peers = append(peers, s.Peer(i, 0, bed.Link{PD: pd}), s.Peer(i, 1, bed.Link{PD: pd}))
			}
			known(t, s, m, peers...)
			for range 5 {
				warm(t, gone, 1<<30, 1, peers...)
			}
			for _, p := range peers {
				p.Write(m, va+128, make([]byte, 8))
			}
			if err := gone.Dereg(); err != nil {
				t.Fatal(err)
			}
			for _, p := range peers[1:2] {
				p.Post(rnic.SendWR{Op: rnic.OpFetchAdd, SGL: [][]byte{make([]byte, 8)}, RemoteAddr: 1 << 30, RKey: gone.RKey, Swap: 1})
			}
			peers[1].Await()
			for i, p := range peers {
				t.Logf("%d: %v here, %v there", i, p.State(), p.Far.State())
			}
			for range 5 {
				warm(t, m, va, 1, peers[2:]...)
			}
			alive := 0
			for i, p := range peers {
				if p.State() != rnic.StateReady || p.Far.State() == rnic.StateReady {
					continue
				}
				alive++
				if _, st := p.Add(m, va, 1); st != rnic.Success {
					t.Logf("%d: %v at once", i, st)
					continue
				}
				for range 30 {
					s.Pause(200 * time.Millisecond)
					for k, q := range peers {
						if k != i && q.State() == rnic.StateReady {
							q.Add(m, va, 1)
						}
					}
				}
				_, st := p.Add(m, va, 1)
				t.Logf("%d: %v after it was quiet; gone %d", i, st, s.Count("connections-gone"))
				if st == bed.Hung {
					t.Errorf("%d is not told", i)
				}
			}
			if alive == 0 {
				t.Skip("nobody's connection carried what was refused")
			}
		})
	}
}

// A request that went over another's connection is lost, the box starts anew before it has sent it again, and its client is patient, or gone without a word.
// Those behind it go on, or, in the second case, are told.
func TestAttackLostWithBoxAndClient(t *testing.T) {
	for _, mode := range []string{"mux", "replace"} {
		for lane := range 3 {
			for who := 1; who < 3; who++ { // 0 goes over its own connection
				for _, how := range []string{"gone", "slow", "set"} {
					size := []int{64, 3000}[(lane+who)%2]
					t.Run(fmt.Sprintf("%s/%d/%d/%s", mode, lane, who, how), func(t *testing.T) {
						lose := 0
						wrap := func(machine string, nic *rnic.NIC) host.Endpoint {
							if machine != "s0" {
								return nic
							}
							return &bed.Spy{Endpoint: nic, Lose: func(b []byte) bool {
								if lose > 0 {
									var f hdr.Frame
									if hdr.Parse(b, &f) == hdr.IsRoCE && f.Op.Has(hdr.IsWrite) {
										lose--
										return true
									}
								}
								return false
							}}
						}
						c := rnic.DefaultConn()
						s := bed.NewScene(t, bed.SceneConfig{Box: ofSwordbox(graph.Args{"mode": mode, "track": "0+ffffffffffff"}), Wrap: wrap, Conn: c, Profile: rnic.ConnectX})
						pd := s.PD()
						m := s.MR(pd, va, 1<<16, all)
						var peers []*bed.Peer
						for i := range 3 {
							l := bed.Link{PD: pd, Conn: c}
							if i == who && how != "gone" { // patient
								l.Conn.Timeout = 20
							}
							peers = append(peers, s.Peer((i+lane)%3, 0, l))
						}
						known(t, s, m, peers...)
						for _, p := range peers {
							p.Write(m, va+4096, make([]byte, size))
							p.Write(m, va+4096, make([]byte, size))
						}
						lose = 8
						bad := peers[who]
						bad.Post(rnic.SendWR{Op: rnic.OpWrite, SGL: [][]byte{make([]byte, size)}, RemoteAddr: va + 4096, RKey: m.RKey})
						s.Pause(20 * time.Microsecond)
						if how == "set" {
							if _, err := s.Instance().Set("box", graph.Args{"settle": "201ms"}); err != nil {
								t.Fatal(err)
							}
						} else {
							s.Remove()
							s.Insert()
						}
						if how == "gone" {
							bad.QP.Reset()
						}
						lose = 0
						var others []*bed.Peer
						for i, p := range peers {
							if i != who {
								others = append(others, p)
							}
						}
						for range 5 {
							s.Pause(time.Millisecond)
							for _, p := range others {
								post(p, m, va, 2)
								p.Post(rnic.SendWR{Op: rnic.OpWrite, SGL: [][]byte{make([]byte, size)}, RemoteAddr: va + 4096, RKey: m.RKey})
							}
							others[0].Await(others[1])
							if others[0].Status(others[0].Posted()-1) == bed.Hung {
								break
							}
						}
						if how != "gone" {
							healthy(t, others...)
						}
						for k, p := range others { // nobody knows what was executed: they may be told an error
							for id := range p.Posted() {
								if p.Status(id) == bed.Hung || p.Latency(id) > time.Second {
									t.Fatalf("peer %d: operation %d: %v after %v", k, id, p.Status(id), p.Latency(id))
								}
							}
						}
					})
				}
			}
		}
	}
}

// As TestAttackInTurnBeforeFirst, for connections of static=.
func TestAttackInTurnStatic(t *testing.T) {
	for _, psn := range []bool{true, false} {
		for _, far := range []int{-1000, 15} {
			t.Run(fmt.Sprintf("psn %v, %d", psn, far), func(t *testing.T) {
				bed.Both(t, bed.SceneConfig{Box: ofSwordbox(nil)}, func(t *testing.T, s *bed.Scene) {
					pd := s.PD()
					m := s.MR(pd, va, 1<<16, all)
					a, b := s.Peer(0, 0, bed.Link{PD: pd}), s.Peer(1, 0, bed.Link{PD: pd})
					known(t, s, m, b)
					c := a.Here
					if s.Instance() != nil {
						x := conn.StaticConn{Client: c.ClientIP, ClientQPN: c.ClientQPN, Server: c.ServerIP, ServerQPN: c.ServerQPN, HasPSN: psn, PSN: c.ClientPSN}
						if _, err := s.Instance().Set("box", graph.Args{"static": x.String()}); err != nil {
							t.Fatal(err)
						}
						s.Pause(50 * time.Millisecond)
					}
					var frames [][]byte
					for k := range 3 {
						frames = append(frames, a.Frame(a.Here.ClientPSN+uint32(far+k), bed.Packet{Op: hdr.WriteOnly, Ext: bed.RETH(va, 0x55, 0), AckReq: true}))
					}
					s.Send(10*time.Microsecond, frames...)
					for k := range 40 {
						s.Pause(50 * time.Microsecond)
						if _, st := a.Add(m, va, 1); st != rnic.Success {
							t.Fatalf("addition %d: %v", k, st)
						}
					}
					healthy(t, a, b)
				})
			})
		}
	}
}

// Behind a bypass a client repeats some requests that were executed, as their acknowledgement was lost, and goes on with new ones when the server has
// acknowledged all of them again. Nobody makes up anything.
func TestAttackRepeatsSomeBehindBypass(t *testing.T) {
	for _, profile := range []rnic.Profile{rnic.RXE, rnic.ConnectX} {
		for again := 2; again < 6; again++ {
			t.Run(fmt.Sprintf("%v/%d", profile, again), func(t *testing.T) {
				loseIn, loseOut, sent := false, false, 0
				wrap := func(machine string, nic *rnic.NIC) host.Endpoint {
					if machine != "c0" {
						return nic
					}
					return &bed.Spy{Endpoint: nic, Lose: func([]byte) bool { return loseIn }, LoseOut: func([]byte) bool {
						sent++
						return loseOut && sent > again
					}}
				}
				c := rnic.DefaultConn()
				c.Timeout = 10 // 4 ms
				bed.Both(t, bed.SceneConfig{Box: ofSwordbox(nil), Conn: c, Profile: profile, Wrap: wrap}, func(t *testing.T, s *bed.Scene) {
					loseIn, loseOut = false, false
					pd := s.PD()
					m := s.MR(pd, va, 1<<16, all)
					a, b := s.Peer(0, 0, bed.Link{PD: pd}), s.Peer(1, 0, bed.Link{PD: pd})
					known(t, s, m, b)
					for range 10 {
						s.Pause(500 * time.Microsecond)
						warm(t, m, va, 1, a)
					}
					s.Sleep(200 * time.Microsecond)
					loseIn = true
					for k := range 12 {
						a.Post(rnic.SendWR{Op: rnic.OpWrite, SGL: [][]byte{make([]byte, 16)}, RemoteAddr: va + 64 + 64*uint64(k), RKey: m.RKey})
					}
					s.Pause(time.Millisecond)
					loseIn, loseOut, sent = false, true, 0
					s.Until(func() bool { return sent >= again }, time.Second)
					s.Pause(100 * time.Microsecond)
					loseOut = false
					a.Await()
					t.Logf("%d were sent again; the last WRITE took %v; synced %d, gaps %d", sent, a.Latency(a.Posted()-1), s.Count("synced"), s.Count("psn-gap"))
					for range 20 {
						s.Pause(time.Millisecond)
						if _, st := a.Add(m, va, 1); st != rnic.Success {
							t.Fatalf("an addition: %v", st)
						}
					}
					healthy(t, a, b)
					t.Logf("synced %d, gaps %d", s.Count("synced"), s.Count("psn-gap"))
				})
			})
		}
	}
}
