package clock_test

import (
	"fmt"
	"time"

	"github.com/quillon/quillon/nf/clock"
)

// A test owns the time.
func ExampleManual() {
	c := clock.NewManual(0)
	begin := c.Now()
	c.Advance(3 * time.Millisecond)
	fmt.Println(c.Now().Sub(begin))
	// Output:
	// 3ms
}
