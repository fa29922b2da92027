package table_test

import (
	"fmt"

	"github.com/quillon/quillon/nf/table"
)

// An entry is read as quillon table insert takes it, and written again.
func ExampleDecl() {
	d := table.Decl{
		Name:    "routes",
		Keys:    []table.Field{{Name: "dst", Bits: 32, Match: table.LPM, Form: table.IP}},
		Actions: []table.Action{{Name: "forward", Params: []table.Field{{Name: "port", Bits: 9}}}},
		May:     table.Insert,
	}
	text, err := table.TextOf([]string{"dst=10.0.0.0/8", "forward", "port=2"})
	if err != nil {
		fmt.Println(err)
		return
	}
	e, err := d.Parse(text)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(d.KeyText(&e), d.Actions[e.Call.Action].Name)
	text.Match["dst"] = "10.0.0.0/33"
	_, err = d.Parse(text)
	fmt.Println(err)
	// Output:
	// entry dst=10.0.0.0/8 forward
	// table routes: dst=10.0.0.0/33: want a prefix length from 0 to 32
}
