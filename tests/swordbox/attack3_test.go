package swordbox

import (
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/quillon/quillon/internal/rack/host"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/rack/rnic"
	"github.com/quillon/quillon/tests/bed"
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
