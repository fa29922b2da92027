package native_test

import (
	"fmt"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"

	"github.com/quillon/quillon/controlplane/p4info"
	"github.com/quillon/quillon/controlplane/p4rt/native"
	"github.com/quillon/quillon/nf/firewall"
	"github.com/quillon/quillon/nf/graph"
)

// A graph of Go apps as a device: what its functions declare is the P4Info, and their arguments are entries. A p4rt.Server
// makes the device reachable.
func Example() {
	spec, err := graph.ParseSpec([]byte("apps: {fw: {kind: firewall, args: {rules: 'allow+in:a+proto:tcp+dport:443'}}}"))
	if err != nil {
		fmt.Println(err)
		return
	}
	inst, err := graph.New(graph.Config{Spec: spec, Kinds: []graph.Kind{*firewall.Kind()}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer inst.Close()
	dev, err := native.New(inst)
	if err != nil {
		fmt.Println(err)
		return
	}
	pipe := dev.Pipeline()
	for _, t := range pipe.Info().Tables {
		fmt.Println(t.Name)
		err := pipe.Read(p4info.EntryOf(&p4v1.TableEntry{TableId: t.ID}), func(e *p4v1.Entity) error {
			fmt.Println(" ", pipe.Info().Text(e))
			return nil
		})
		if err != nil {
			fmt.Println(err)
		}
	}
	// Output:
	// fw.acl
	//   table fw.acl in=0 proto=6 dport=443..443 priority=10 -> fw.allow()
	// fw.acl_ipv6
}
