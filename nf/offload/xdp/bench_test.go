package xdp

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
)

// BenchmarkRun is a frame of a flow that changes nothing, in the kernel's test run, whose own part is that of BenchmarkRun/off.
func BenchmarkRun(b *testing.B) {
	for _, proto := range []uint8{hdr.ProtoUDP, hdr.ProtoTCP} {
		x := newBox(b, spec([]string{"firewall"}, map[string]graph.Args{"firewall": {"rules": "allow+in:a"}}), 64)
		w := &world{TB: b, r: rand.New(rand.NewPCG(1, 2)), plain: newBox(b, spec([]string{"firewall"}, map[string]graph.Args{"firewall": {"rules": "allow+in:a"}}), 0), fast: x}
		c := w.conversation(0)
		c.proto, c.vlan = proto, -1
		for range 20 {
			w.goOn(c)
		}
		d := datagram{src: c.cmac, dst: c.gmac, vlan: -1, from: c.client, to: c.server, sport: c.cport, dport: c.sport, proto: c.proto,
			flags: 0x10, win: 1000, payload: 10, seq: c.next[0], ack: c.next[1]}
		f := d.bytes(w.r)
		for _, on := range []bool{true, false} {
			name := map[uint8]string{hdr.ProtoUDP: "udp", hdr.ProtoTCP: "tcp"}[proto]
			if !on {
				name = "off"
			}
			b.Run(name, func(b *testing.B) {
				x.e.Turn(0, loopback, on)
				before, _ := x.e.Outcomes()
				var took time.Duration
				n := 0
				for b.Loop() {
					_, d, err := x.e.prog.Benchmark(f, 10_000, nil)
					if err != nil {
						b.Fatal(err)
					}
					took += d * 10_000
					n += 10_000
				}
				after, _ := x.e.Outcomes()
				if on && after["finished"]-before["finished"] < uint64(n) {
					b.Fatal(after)
				}
				b.ReportMetric(float64(took.Nanoseconds())/float64(n), "ns/frame")
			})
		}
	}
}

var _ = ebpf.XDP
