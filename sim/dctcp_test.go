package sim

import (
	"fmt"
	"testing"
	"time"
)

func TestMarkedLoadScales(t *testing.T) {
	for _, flows := range []int{1, 4, 16} {
		for _, rtt := range []time.Duration{20 * time.Microsecond, 100 * time.Microsecond} {
			l := square(400, 200, 200, 4*.1, 0.5*.1)
			o, err := l.Scaled(t.Context(), ScaledConfig{Regions: 5, Capacity: gig / 10, Piece: 8 * time.Microsecond, Victims: 100, Marked: &DCTCP{flows, rtt}})
			fmt.Println(flows, rtt, o, err)
		}
	}
}
