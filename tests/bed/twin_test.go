package bed

import (
	"testing"
	"time"
)

// The law is the bare wire's: whatever happens there it allows, also behind a box
// that only passes.
func TestLaw(t *testing.T) {
	SweepTwins(t, Twins{Box: wire(), Limits: Limits{Deep: true, Alive: 110 * time.Millisecond, Gone: 400 * time.Millisecond}}, 0, Schedules(300))
}
