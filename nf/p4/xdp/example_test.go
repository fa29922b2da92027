package xdp_test

import (
	"fmt"
	"os"

	"github.com/quillon/quillon/nf/p4"
	"github.com/quillon/quillon/nf/p4/xdp"
)

// What of a program the kernel would run, and which frames it would leave to the engine.
func ExampleAnalyse() {
	src, err := os.ReadFile("../../../p4src/ipv4_router.json")
	if err != nil {
		fmt.Println(err)
		return
	}
	_, tree, err := p4.LoadTree(src)
	if err != nil {
		fmt.Println(err)
		return
	}
	r := xdp.Analyse(tree, p4.Config{})
	fmt.Println(r.Kernel)
	for _, p := range r.Parts {
		if len(p.Engine)+len(p.When) > 0 {
			fmt.Println(p.Kind, p.Name, p.Engine, p.When)
		}
	}
	// Output:
	// true
	// state options [] [the frame has many bytes in fields of variable length a checksum covers a field of variable length that does not end with 32 bits]
	// table router_ingress.ecmp [] [its group has more than 256 shares]
}
