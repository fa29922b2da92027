package value_test

import (
	"fmt"

	"github.com/quillon/quillon/nf/value"
)

// Numbers are bytes, as wide as a field, and are written in the form of the field.
func ExampleParse() {
	for _, s := range []string{"80", "0x50", "10.0.0.1", "02:00:00:00:00:05"} {
		v, width, err := value.Parse(s)
		fmt.Printf("%x %d %v\n", v, width, err)
	}
	v, _ := value.ParseBits("10.0.0.1", 32)
	fmt.Println(value.Format(value.IP, 32, v), value.Uint64(v))
	// Output:
	// 50 0 <nil>
	// 50 0 <nil>
	// 0a000001 32 <nil>
	// 020000000005 48 <nil>
	// 10.0.0.1 167772161
}
