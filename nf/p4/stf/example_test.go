package stf_test

import (
	"fmt"
	"os"

	"github.com/quillon/quillon/nf/p4"
	"github.com/quillon/quillon/nf/p4/stf"
)

// A test file runs on the engine.
func ExampleRun() {
	src, err := os.ReadFile("../../../p4src/ipv4_router.json")
	if err != nil {
		fmt.Println(err)
		return
	}
	prog, err := p4.Load(src)
	if err != nil {
		fmt.Println(err)
		return
	}
	f, err := os.Open("../../../tests/p4/ipv4_router/unicast.stf")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer f.Close()
	statements, err := stf.Parse(f)
	if err != nil {
		fmt.Println(err)
		return
	}
	res, err := stf.Run(prog, statements, p4.Config{})
	fmt.Println(len(res.Failures), err)
	// Output:
	// 0 <nil>
}
