package registry

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/track"
)

var be = binary.BigEndian

// packetOf is a TCP SYN or a datagram.
func packetOf(proto uint8, src, dst [4]byte, sport, dport uint16) []byte {
	n := 14 + 20 + 20
	if proto == hdr.ProtoUDP {
		n -= 12
	}
	b := make([]byte, n)
	copy(b, []byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45})
	be.PutUint16(b[16:], uint16(n-14))
	b[22], b[23] = 64, proto
	copy(b[26:], src[:])
	copy(b[30:], dst[:])
	be.PutUint16(b[24:], hdr.Checksum(b[14:34], 0))
	be.PutUint16(b[34:], sport)
	be.PutUint16(b[36:], dport)
	if proto == hdr.ProtoUDP {
		be.PutUint16(b[38:], 8)
		return b
	}
	b[46], b[47] = 5<<4, 2 // SYN
	be.PutUint16(b[48:], 1000)
	return b
}

// tupleOf is what a frame says.
func tupleOf(b []byte) (proto uint8, t track.Tuple) {
	return b[23], track.Tuple{Src: netip.AddrFrom4([4]byte(b[26:30])), Dst: netip.AddrFrom4([4]byte(b[30:34])), SPort: be.Uint16(b[34:]), DPort: be.Uint16(b[36:])}
}

func kindOf(t testing.TB, name string) graph.Kind {
	t.Helper()
	for _, k := range Kinds() {
		if k.Name == name {
			return k
		}
	}
	t.Fatalf("no kind %s", name)
	panic("unreachable")
}

// TestConnections: what functions list is what frames before and behind them show: each connection once, in as many workers as there are.
func TestConnections(t *testing.T) {
	for _, c := range []struct {
		kind string
		args graph.Args
		vip  bool // all go to 192.0.2.100:80
	}{
		{"firewall", graph.Args{"rules": "allow+in:a"}, false},
		{"napt", graph.Args{"public": "198.51.100.1+198.51.100.2", "filter": "port"}, false},
		{"balance", graph.Args{"vip": "192.0.2.100", "port": "80", "backends": "192.0.2.1@02:00:00:00:00:11+192.0.2.2@02:00:00:00:00:12"}, true},
	} {
		for workers := 1; workers <= 3; workers++ {
			t.Run(fmt.Sprint(c.kind, workers), func(t *testing.T) {
				x := graphtest.NewGang(t, kindOf(t, c.kind), workers, c.args)
				rnd := rand.New(rand.NewPCG(uint64(workers), 7))
				want := map[string]bool{}
				for n := range 3000 {
					proto, dst, dport := uint8(hdr.ProtoUDP), [4]byte{203, 0, 113, byte(rnd.IntN(3))}, uint16(50+rnd.IntN(3))
					if rnd.IntN(2) == 0 {
						proto = hdr.ProtoTCP
					}
					if c.vip {
						dst, dport = [4]byte{192, 0, 2, 100}, 80
					}
					in := packetOf(proto, [4]byte{10, 0, 0, byte(1 + rnd.IntN(20))}, dst, uint16(1024+rnd.IntN(60)), dport)
					// A client comes by one worker, as it does with RSS.
					x.Push(int(in[29])%workers, 0, [][]byte{slices.Clone(in)})
					x.Now = x.Now.Add(1000)
					out := x.Took(1)
					if len(out) != 1 {
						t.Fatalf("frame %d: %d frames left", n, len(out))
					}
					_, orig := tupleOf(in)
					_, sent := tupleOf(out[0])
					want[fmt.Sprint(proto, orig, sent.Reversed())] = true
				}
				got := map[string]int{}
				mappings := 0
				err := x.Inst.Connections(graphtest.App, func(*track.Connection) bool { return true }, func(y *track.Connection) error {
					if y.App != graphtest.App || y.Left <= 0 || y.Left > 200*time.Hour {
						t.Errorf("%s", y)
					}
					if y.State == track.Mapping {
						mappings++
						return nil
					}
					got[fmt.Sprint(y.Proto, y.Orig, y.Reply)]++
					return nil
				})
				if err != nil {
					t.Fatal(err)
				}
				for _, k := range slices.Sorted(maps.Keys(want)) {
					if got[k] != 1 {
						t.Fatalf("%s is listed %d times", k, got[k])
					}
				}
				if len(got) != len(want) || len(want) < 1000 {
					t.Errorf("%d are listed, want %d", len(got), len(want))
				}
				if (mappings > 0) != (c.kind == "napt") {
					t.Errorf("%d mappings", mappings)
				}
			})
		}
	}
}

// BenchmarkConnections lists a firewall's million of connections, of which a filter keeps none. A worker waits for 64 of them between
// two breaths.
func BenchmarkConnections(b *testing.B) {
	x := graphtest.NewGang(b, kindOf(b, "firewall"), 1, graph.Args{"rules": "allow+in:a", "conns": "1048576", "half": "1048576", "half-per-source": "1048576"})
	x.Quiet = true
	for i := range 1_000_000 {
		x.Push(0, 0, [][]byte{packetOf(hdr.ProtoUDP, [4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}, [4]byte{203, 0, 113, 1}, 1024, 53)})
	}
	for b.Loop() {
		n := 0
		err := x.Inst.Connections(graphtest.App, func(*track.Connection) bool { n++; return false }, nil)
		if err != nil || n < 900_000 {
			b.Fatal(n, err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/1e6, "ns/connection")
}
