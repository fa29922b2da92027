package swordbox

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/quillon/quillon/internal/rack/host"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/rack/rnic"
	"github.com/quillon/quillon/tests/bed"
)

// Switches between a client and the box route frame by frame, as adaptive routing does where ways are not of one length (a dragonfly's minimal and other ways): some of a connection's frames have a TTL that is three
// less than the others', and all of them have more than enough. A server takes all of them.
func TestAttack11TwoWays(t *testing.T) {
	for _, mode := range []string{"mux", "replace"} {
		for _, less := range []byte{0, 3} { // 0: loss alone
			profile := rnic.ConnectX
			t.Run(fmt.Sprint(mode, less), func(t *testing.T) {
				conn := rnic.DefaultConn()
				conn.Timeout, conn.RetryCnt = 12, 7 // 17 ms, eight times
				long := false
				bed.Both(t, bed.SceneConfig{Conn: conn, Profile: profile, Box: ofSwordbox(graph.Args{"mode": mode}), Wrap: func(machine string, nic *rnic.NIC) host.Endpoint {
					r := rand.New(rand.NewPCG(11, uint64(machine[len(machine)-1])))
					return &bed.Spy{Endpoint: nic, Lose: func([]byte) bool { return long && r.IntN(500) == 0 }, Out: func(_ clock.Time, b []byte) {
						if long && machine != "s0" && r.IntN(2) == 0 {
							lowerTTL(b, less)
						}
					}}
				}}, func(t *testing.T, s *bed.Scene) {
					l := bed.Link{PD: s.PD(), Conn: conn}
					m := s.MR(l.PD, va, 1<<16, all)
					a, b := s.Peer(0, 0, l), s.Peer(1, 0, l)
					known(t, s, m, a, b)
					long = true
					worst := time.Duration(0)
					for range 300 {
						for _, p := range []*bed.Peer{a, b} {
							from := p.Posted()
							post(p, m, va, 3)
							p.Post(rnic.SendWR{Op: rnic.OpWrite, SGL: [][]byte{make([]byte, 4096)}, RemoteAddr: va + 4096, RKey: m.RKey})
							p.Await()
							for id := from; id < p.Posted(); id++ {
								worst = max(worst, p.Latency(id))
							}
						}
					}
					t.Logf("the slowest operation took %v", worst)
					healthy(t, a, b)
					if worst > 100*time.Millisecond {
						t.Errorf("an operation took %v", worst)
					}
				})
			})
		}
	}
}

// lowerTTL makes the TTL of an IPv4 frame n less, as n routers do.
func lowerTTL(b []byte, n byte) {
	var f hdr.Frame
	if hdr.Parse(b, &f) != hdr.IsRoCE || f.Net != hdr.NetIPv4 {
		return
	}
	ip := b[f.L3:]
	ip[8] -= n
	sumIP(ip)
}

func sumIP(ip []byte) {
	ip[10], ip[11] = 0, 0
	sum := uint32(0)
	for i := 0; i < 20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum))
}
