package effect_test

import (
	"fmt"

	"github.com/quillon/quillon/nf/effect"
)

// Two functions may run side by side if neither reads or writes what the other one writes.
func ExampleIndependent() {
	counts := effect.Effects{Reads: effect.Flow}
	translates := effect.Effects{Reads: effect.Flow, Writes: effect.IPAddresses}
	pads := effect.Effects{Writes: effect.Payload}
	fmt.Println(effect.Independent(&counts, &pads), effect.Independent(&counts, &translates))
	// Output:
	// true false
}
