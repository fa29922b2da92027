package arg_test

import (
	"fmt"

	"github.com/quillon/quillon/nf/arg"
)

// Arguments are declared once, and read with their defaults, units and bounds.
func ExampleDeclare() {
	type settings struct {
		MTU    int  `arg:"mtu" range:"576..65535" help:"bytes of the longest packet"`
		Others bool `arg:"others" words:"pass drop" help:"what becomes of other frames"`
	}
	arguments := arg.Declare("tunnel", settings{MTU: 1500})
	s, r := arguments.Read(map[string]string{"others": "drop"})
	fmt.Println(s, r.Err())
	_, r = arguments.Read(map[string]string{"mtu": "9"})
	fmt.Println(r.Err())
	for _, p := range arguments.Params() {
		fmt.Println(p.Name, p.Help)
	}
	// Output:
	// {1500 true} <nil>
	// tunnel: mtu=9: want a number from 576 to 65535
	// mtu bytes of the longest packet
	// others what becomes of other frames
}
