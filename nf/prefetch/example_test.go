package prefetch_test

import (
	"fmt"
	"unsafe"

	"github.com/quillon/quillon/nf/prefetch"
)

// Lines of a batch are asked for first: they come together, and not one after the other.
func ExampleLine() {
	table := make([]uint64, 1<<20)
	batch := []int{7, 300_000, 900_000}
	for _, i := range batch {
		prefetch.Line(uintptr(unsafe.Pointer(&table[i])))
	}
	for _, i := range batch {
		table[i]++
	}
	fmt.Println(table[300_000])
	// Output:
	// 1
}
