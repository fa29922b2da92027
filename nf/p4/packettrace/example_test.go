package packettrace_test

import (
	"fmt"
	"os"

	"github.com/quillon/quillon/nf/p4"
	"github.com/quillon/quillon/nf/p4/packettrace"
)

// A program's steps with two packets are compared: where do they part?
func ExampleDiff() {
	src, err := os.ReadFile("../../../p4src/l2_bridge.json")
	if err != nil {
		fmt.Println(err)
		return
	}
	prog, err := p4.Load(src)
	if err != nil {
		fmt.Println(err)
		return
	}
	sw, err := p4.NewSwitch(prog, p4.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	frame := make([]byte, 64)
	emit := func(uint32, []byte) {}
	untagged := sw.Trace(0, 0, 1, frame, emit)
	frame[12], frame[13] = 0x81, 0
	tagged := sw.Trace(0, 0, 1, frame, emit)
	d := packettrace.Diff([]packettrace.Trace{untagged}, []packettrace.Trace{tagged})
	fmt.Print(d.Text("untagged", "tagged"))
	// Output:
	// packet 0
	//     64 bytes come in on port 1
	//     parser
	//     state start
	//   untagged: ingress
	//   tagged: state vlan at byte 14
}
