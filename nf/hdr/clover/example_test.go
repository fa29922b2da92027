package clover_test

import (
	"fmt"

	"github.com/quillon/quillon/nf/hdr/clover"
)

// A slab of an entry has one of a few sizes, which are numbered.
func ExampleClass() {
	for _, size := range []uint32{128, 256, 300} {
		class, ok := clover.Class(size)
		fmt.Println(size, class, ok)
	}
	// Output:
	// 128 0 true
	// 256 1 true
	// 300 0 false
}
