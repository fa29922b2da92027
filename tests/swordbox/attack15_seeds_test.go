package swordbox

import (
	"fmt"
	"testing"
)

// TestAttack15Seeds plays worlds in which faults were found.
func TestAttack15Seeds(t *testing.T) {
	for _, c := range []struct {
		name   string
		seed   uint64
		crowds int
	}{{"replace", 2000218, 20}} {
		t.Run(fmt.Sprint(c.name, c.seed), func(t *testing.T) {
			w := twins()[c.name]
			w.Limits.Crowds = c.crowds
			if _, _, err := w.Try(c.seed); err != nil {
				t.Error(err)
			}
		})
	}
}
