package dag_test

import (
	"fmt"

	"github.com/quillon/quillon/snic/dag"
)

// A firewall, a NAPT and a tunnel in a line, and a task that watches payloads.
func Example() {
	d, err := dag.ParseDeployment([]byte(`
regions: {count: 3, area: 2}
tasks:
  fw:   {kind: firewall, reads: [ip-addresses, ports], drops: true, state: true}
  nat:  {kind: napt, reads: [ip-addresses, ports], writes: [ip-addresses, ports], drops: true, state: true}
  scan: {kind: dummy, reads: [payload]}
  vpn:  {kind: vxlan, writes: [encap, length]}
tenants:
  alice: {weight: 2}
dags:
  - {uid: 7, tenant: alice, run: fw -> nat -> scan -> vpn}
`), dag.Known{})
	if err != nil {
		fmt.Println(err)
		return
	}
	chains, err := d.Chains(0)
	if err != nil {
		fmt.Println(err)
		return
	}
	var all []dag.Candidate
	for i, c := range chains {
		all = append(all, dag.Candidate{Chain: dag.ChainID(i), Tasks: c.Tasks})
	}
	for i, stage := range d.Stages(0, 0) {
		for _, branch := range stage {
			visits, _ := dag.Cover(branch, all)
			for _, v := range visits {
				fmt.Printf("stage %d, branch %s: chain %s, mask %b\n", i, d.Names(branch...), d.Names(chains[v.Chain].Tasks...), v.Mask)
			}
		}
	}
	// Output:
	// stage 0, branch fw -> nat: chain fw -> nat, mask 11
	// stage 0, branch scan: chain scan, mask 1
	// stage 1, branch vpn: chain vpn, mask 1
}
