package xdp

import (
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/quillon/quillon/nf/p4"
	"github.com/quillon/quillon/nf/p4/stf"
)

// benchmark runs a frame in the kernel again and again. ns/run is the program's time as the kernel's test run tells it, its own part included. The next run has
// the frame as the one before has left it: so the router's next hop is the router, and its frame has the time to live of all runs.
func benchmark(b *testing.B, program, entries, frame string) {
	w := newTwin(b, read(b, "../../../p4src/"+program+".json"))
	all, err := stf.Parse(strings.NewReader(entries))
	if err != nil {
		b.Fatal(err)
	}
	w.both(func(sw *p4.Switch) error { return stf.Configure(sw, all) })
	data := frameOf(b, frame)
	outcome, port, _, _ := w.inKernel(1, data)
	if outcome != Forwarded || port != 2 {
		all, _ := w.x.Outcomes()
		b.Fatalf("outcome %s, port %d", all[outcome].Name, port)
	}
	repeat(b, w.x.prog, data)
	b.ReportMetric(float64(w.x.size), "insns")
}

const (
	bridgeEntries = `add smac meta.vid:1 hdr.ethernet.src:0x020000000001 known(port:1)
add dmac meta.vid:1 hdr.ethernet.dst:0x020000000002 forward(port:2)
`
	routerEntries = `add router_mac standard_metadata.ingress_port:1 hdr.ethernet.dst:0x0200000000fe NoAction()
add ipv4_lpm hdr.ipv4.dst:0x0a000000/8 set_next_hop(next_hop:1)
add next_hop meta.next_hop:1 forward(dst:0x0200000000fe, src:0x020000000012, port:2)
`
)

// The frames have 60 bytes.
var (
	bridgeFrame = "020000000002 020000000001 0800" + strings.Repeat("00", 46)
	routerFrame = "0200000000fe 020000000001 0800 4500002400014000ff11a80cc0a800010a09090903e807d0001000007061796c6f616421" + strings.Repeat("00", 10)
)

func BenchmarkBridge(b *testing.B) { benchmark(b, "l2_bridge", bridgeEntries, bridgeFrame) }

func BenchmarkRouter(b *testing.B) { benchmark(b, "ipv4_router", routerEntries, routerFrame) }

// BenchmarkNothing is what a test run costs beside the program.
func BenchmarkNothing(b *testing.B) {
	requireKernel(b)
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, License: "GPL", Instructions: nothing})
	if err != nil {
		b.Fatal(err)
	}
	defer prog.Close()
	repeat(b, prog, make([]byte, 60))
}

// repeat runs a program with a frame many times, and reports the least that a run took: others share the machine.
func repeat(b *testing.B, prog *ebpf.Program, frame []byte) {
	least := time.Hour
	for b.Loop() {
		_, d, err := prog.Benchmark(frame, 250, nil)
		if err != nil {
			b.Fatal(err)
		}
		least = min(least, d)
	}
	b.ReportMetric(float64(least.Nanoseconds()), "ns/run")
}

var nothing = asm.Instructions{asm.Mov.Imm(asm.R0, xdpDrop), asm.Return()}
