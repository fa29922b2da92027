package demo

import (
	"errors"
	"strings"
	"testing"

	"github.com/quillon/quillon/internal/rack/store"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/port"
)

// others are short runs of each store that is not Clover.
func others(t *testing.T) (all []Config) {
	for _, name := range store.Names() {
		c := small()
		c.Store, c.Warmup, c.Nodes, c.Clients, c.Keys = name, 0.1, 2, 4, 64
		if len(Works(name)) > 0 {
			c.Keys = 4
		}
		if err := c.Check(); err != nil {
			t.Fatal(err)
		}
		all = append(all, c)
	}
	return all
}

// heldBoxed checks that each phase had its mode's effects.
func heldBoxed(t *testing.T, r *Result) {
	t.Helper()
	for i, p := range r.Phases {
		if p.Ops == 0 || p.Errors != 0 || p.Name != boxModes[i] || (p.Moved > 0) != (i > 0) || (p.Replaced > 0) != (i == 2) || p.PacketsPerOp < 1 && i > 0 {
			t.Errorf("%s: %+v", r.Config.Store, p)
		}
	}
	if v := r.Integrity; !v.OK() || v.Keys != uint64(r.Config.Keys) || v.AckedWrites == 0 || v.Checked == 0 || !strings.HasPrefix(v.String(), "integrity: OK") {
		t.Errorf("%s: %+v", r.Config.Store, v)
	}
}

func TestOthersInMemory(t *testing.T) {
	for _, c := range others(t) {
		r, err := InMemory(t.Context(), clock.NewWall(), c, func(clock.Time, Progress) {})
		if err != nil {
			t.Fatalf("%s: %v", c.Store, err)
		}
		heldBoxed(t, r)
	}
}

func TestOthersInNamespaces(t *testing.T) {
	for _, c := range others(t) {
		r, err := InNamespaces(t.Context(), clock.NewWall(), c, patient(), func(clock.Time, Progress) {})
		if errors.Is(err, port.ErrNotSupported) {
			t.Skip(err)
		}
		if err != nil {
			t.Fatalf("%s: %v", c.Store, err)
		}
		heldBoxed(t, r)
	}
}

// TestVerdictFails: a wrong result is told, and is not OK.
func TestVerdictFails(t *testing.T) {
	for _, v := range []Integrity{{Keys: 1, Checked: 1, Lost: 1}, {Keys: 1, Checked: 1, Wrong: "key 1: no order"}, {Wrong: "lock 3 is still held"}} {
		if s := v.String(); v.OK() || !strings.HasPrefix(s, "integrity: FAILED") || !strings.Contains(s, v.Wrong) {
			t.Errorf("%+v: %s", v, s)
		}
	}
}
