package bed

import (
	"testing"
)

// The law is the bare wire's: whatever happens there it allows.
func TestLaw(t *testing.T) {
	bad := 0
	var ops [numClasses]int
	for seed := range uint64(Schedules(300)) {
		r, _, err := TryWorld(seed, nil, Limits{})
		if r != nil {
			for c, n := range r.Ops {
				ops[c] += n
			}
		}
		if err != nil {
			t.Errorf("seed %d: %v", seed, err)
			if bad++; bad == 10 {
				break
			}
		}
	}
	t.Log(ops)
}
