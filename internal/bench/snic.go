package bench

import (
	"fmt"
	"net/netip"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
)

// The load of a board: frames of 64 bytes, of so many tenants with so many flows
// each, as they come when a core is busy: a full batch every 10 µs.
const (
	snicTenants = 16
	snicFlows   = 64
	snicEvery   = 10_000 // ns
	snicBatches = 4096
)

// snicBenchmark is what a board costs a frame: parsing, rules, admission, credits
// and dispatch, with a task that passes everything on; beside it that task alone.
func snicBenchmark() Benchmark {
	return Benchmark{"snic", fmt.Sprintf("a SuperNIC's scheduling: %d tenants, a task that does nothing, in memory", snicTenants), func(clock.Clock) (*contest, error) {
		return snicContest("  t: {kind: wire}\n", "t")
	}}
}

// snicModelledBenchmarks are what a board costs a frame whose tasks' time is modelled: the scheduler sends each by itself,
// side by side through all tasks, as these are independent, or through one after the other.
func snicModelledBenchmarks() (all []Benchmark) {
	tasks := ""
	for i := range 4 {
		tasks += fmt.Sprintf("  t%d: {kind: wire, latency: 100ns, credits: 1000}\n", i)
	}
	for _, x := range [][3]string{{"snic-modelled", "side by side", "auto"}, {"snic-modelled-line", "one after the other", "off"}} {
		all = append(all, Benchmark{x[0], "a SuperNIC's scheduling, frame by frame: four tasks that do nothing and have a latency, " + x[1] + ", in memory",
			func(clock.Clock) (*contest, error) {
				return snicContest(tasks, "t0 -> t1 -> t2 -> t3", "parallel", x[2])
			}})
	}
	return all
}

// snicChainBenchmark is a board that works.
func snicChainBenchmark() Benchmark {
	return Benchmark{"snic-chain", "a SuperNIC: firewall -> NAPT -> VXLAN, 16 tenants, in memory", func(clock.Clock) (*contest, error) {
		return snicContest(snicChain, "fw -> nat -> vx")
	}}
}

// Tasks that work: the first two remember flows.
const (
	snicState = `  fw:  {kind: firewall, args: {rules: "allow+in:a"}}
  nat: {kind: napt, args: {public: 198.51.100.1}}
`
	snicChain = snicState + `  vx:  {kind: vxlan, args: {vni: "42", local: 192.0.2.1, local-mac: "02:00:00:00:00:01", remote: 192.0.2.2, remote-mac: "02:00:00:00:00:02"}}
`
)

func snicContest(tasks, run string, more ...string) (*contest, error) {
	// Regions are loaded before the second batch comes.
	args := graph.Args{"deployment": snicDeployment(tasks, run), "pr-rate": "1000G", "port-rate": "10000G"}
	for i := 0; i < len(more); i += 2 {
		args[more[i]] = more[i+1]
	}
	return boardMix(snicBatches, 0).contest(64, "snic", args)
}

// boardMix is full batches of all tenants' frames, so many of their flows from each of some numbers on.
func boardMix(batches int, flows ...int) *mix {
	m := &mix{}
	for n := range batches {
		for _, first := range flows {
			b := mixBatch{port: "pa", at: clock.Time(1_000_000_000 + len(m.batches)*snicEvery)}
			for i := range packet.MaxBatch {
				k := n*packet.MaxBatch + i
				m.bytes = append(m.bytes, udpFrame(byte(k%snicTenants+1), uint16(1024+first+k/snicTenants%snicFlows))...)
				b.ends = append(b.ends, len(m.bytes))
				m.frames++
			}
			m.batches = append(m.batches, b)
		}
	}
	return m
}

// udpFrame is a datagram of 64 bytes with its Ethernet header from 10.tenant.0.1.
func udpFrame(tenant byte, port uint16) []byte {
	const l3, l4, n = 14, 14 + 20, 60
	b := make([]byte, n)
	hdr.Ethernet(b).Encode(&hdr.EthernetFields{Dst: [6]byte{2, 0, 0, 0, 0, 2}, Src: [6]byte{2, 0, 0, 0, 0, 1}, EtherType: hdr.EtherIPv4})
	hdr.IPv4(b[l3:]).Encode(&hdr.IPv4Fields{
		TotalLen: n - l3, DF: true, TTL: 64, Protocol: hdr.ProtoUDP,
		Src: netip.AddrFrom4([4]byte{10, tenant, 0, 1}), Dst: netip.AddrFrom4([4]byte{203, 0, 113, 7}),
	})
	hdr.UDP(b[l4:]).Encode(&hdr.UDPFields{SrcPort: port, DstPort: 80, Len: n - l4})
	return b
}
