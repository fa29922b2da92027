package engine_test

import (
	"fmt"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"

	"github.com/quillon/quillon/controlplane/ctl"
	"github.com/quillon/quillon/controlplane/p4info"
	"github.com/quillon/quillon/controlplane/p4rt/engine"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/p4"
	"github.com/quillon/quillon/p4src"
)

// An app of kind p4 as a device: it gets a program, and an entry for one of the program's tables. A p4rt.Server makes the device
// reachable, and calls the same methods for its clients.
func Example() {
	spec, err := graph.ParseSpec([]byte("apps: {sw: {kind: p4}}"))
	if err != nil {
		fmt.Println(err)
		return
	}
	inst, err := graph.New(graph.Config{Spec: spec, Kinds: []graph.Kind{*p4.Kind()}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer inst.Close()
	dev, err := engine.New(engine.Config{Instance: inst, App: "sw"})
	if err != nil {
		fmt.Println(err)
		return
	}
	program, _ := p4src.Files.ReadFile("ipv4_router.json")
	text, _ := p4src.Files.ReadFile("ipv4_router.p4info.txtpb")
	info, err := p4info.Parse(text)
	if err != nil {
		fmt.Println(err)
		return
	}
	pipe, err := dev.Build(info, program) // beside the program that runs, if there is one
	if err == nil {
		err = dev.Commit(pipe)
	}
	if err != nil {
		fmt.Println(err)
		return
	}
	route, err := ctl.ParseEntity(info, p4v1.Update_INSERT, "{table: ipv4_lpm, match: {hdr.ipv4.dst: 10.0.0.0/8}, action: set_next_hop, params: {next_hop: 1}}")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(pipe.Write([]*p4v1.Update{{Type: p4v1.Update_INSERT, Entity: route}}, p4v1.WriteRequest_CONTINUE_ON_ERROR))
	err = pipe.Read(p4info.EntryOf(&p4v1.TableEntry{TableId: route.GetTableEntry().TableId}), func(e *p4v1.Entity) error {
		fmt.Println(info.Text(e))
		return nil
	})
	fmt.Println(err)
	// Output:
	// []
	// table router_ingress.ipv4_lpm hdr.ipv4.dst=10.0.0.0/8 -> router_ingress.set_next_hop(next_hop=1)
	// <nil>
}
