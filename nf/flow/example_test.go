package flow_test

import (
	"fmt"

	"github.com/quillon/quillon/nf/flow"
)

// A table of fixed size: a key is found again, and -1 says that there is none.
func ExampleTable() {
	t := flow.New[[2]uint32, string](16)
	k, hash := [2]uint32{1, 2}, uint64(42)
	fmt.Println(t.Find(&k, hash))
	at := t.Add(&k, hash)
	t.At(at).Val = "known"
	fmt.Println(t.At(t.Find(&k, hash)).Val, t.Len())
	t.Del(at)
	fmt.Println(t.Find(&k, hash), t.Len())
	// Output:
	// -1
	// known 1
	// -1 0
}
