package bed

import "testing"

// The law is the bare wire's: whatever happens there it allows, also behind a box
// that only passes.
func TestLaw(t *testing.T) {
	SweepTwins(t, Twins{Box: wire()}, 0, Schedules(300))
}
