package classify_test

import (
	"fmt"

	"github.com/quillon/quillon/nf/classify"
)

// Rules over an IPv4 address and a port: the first one that a packet meets. A key has a word for each field, and one more for
// each 64 bits above the first.
func ExampleSet() {
	s := classify.New([]classify.Field{{Bits: 32}, {Bits: 16, Range: true}})
	// Rule 0: from 10.0.0.0/8, to ports 80 to 443. Of a range the key has the lowest value, and the mask the highest.
	s.Insert(0, []uint64{10 << 24, 80}, []uint64{0xff000000, 443}, 1)
	// Rule 1, behind it: from anywhere, to any port.
	s.Insert(1, []uint64{0, 0}, []uint64{0, 0xffff}, 2)

	from := uint64(10<<24 | 1)
	fmt.Println(s.Find([]uint64{from, 100}), s.Find([]uint64{from, 22}))
	s.Remove(1)
	fmt.Println(s.Find([]uint64{from, 22}) == classify.None)
	// Output:
	// 0 1
	// true
}
