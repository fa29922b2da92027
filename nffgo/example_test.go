package nffgo_test

import (
	"log"

	"github.com/intel-go/nff-go/flow"
	nff "github.com/intel-go/nff-go/packet"

	"github.com/quillon/quillon/internal/registry"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nffgo"
)

// A NAPT of quillon's between DPDK ports 0 and 1.
func ExampleGraph() {
	flow.CheckFatal(flow.SystemInit(&flow.Config{CPUList: "0-6"})) // as many processors as the flows take
	spec, err := graph.ParseSpec([]byte(`
ports: {in: {kind: dpdk}, out: {kind: dpdk}}
apps: {nat: {kind: napt, args: {public: 198.51.100.1}}}
links: [in.out -> nat.a, nat.b -> out.in, out.out -> nat.b, nat.a -> in.in]`))
	if err != nil {
		log.Fatal(err)
	}
	g, err := nffgo.New(nffgo.Config{Graph: graph.Config{Spec: spec, Kinds: registry.Kinds()}, Ports: []string{"in", "out"}})
	if err != nil {
		log.Fatal(err)
	}
	flow.CheckFatal(g.Between(0, 1))
	flow.CheckFatal(flow.SystemStart()) // until interrupted
}

// A handler of nff-go's as a network function: in a spec it is an app of kind no-ssh.
func ExampleApp() {
	kind := nffgo.App("no-ssh", "drops TCP to port 22", func(p *nff.Packet, _ flow.UserContext) bool {
		p.ParseL3()
		if ip := p.GetIPv4(); ip == nil {
			return true
		}
		p.ParseL4ForIPv4()
		tcp := p.GetTCPForIPv4()
		return tcp == nil || nff.SwapBytesUint16(tcp.DstPort) != 22
	})
	_ = append(registry.Kinds(), kind) // graph.Config.Kinds
}
