package ethtool

import (
	"sync"
	"testing"

	"github.com/quillon/quillon/internal/netnstest"
)

func TestChange(t *testing.T) {
	netnstest.Enter(t)
	netnstest.Veth(t, "v0", "v1")
	tool, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	defer tool.Close()
	if d, err := tool.Driver("v0"); d != "veth" || err != nil {
		t.Errorf("driver %q, %v", d, err)
	}
	if rx, tx, err := tool.Queues("v0"); rx < 1 || tx < 1 || err != nil {
		t.Errorf("%d and %d queues, %v", rx, tx, err)
	}
	const name = "tx-checksum-ip-generic"
	for _, on := range []bool{false, true} {
		if err := tool.Change("v0", map[string]bool{name: on, "rx-gro": !on}); err != nil {
			t.Error(err)
		}
		f, err := tool.Features("v0")
		if err != nil || f[name].Active != on || f["rx-gro"].Active == on {
			t.Errorf("%s is %+v, rx-gro %+v, want %v, %v (%v)", name, f[name], f["rx-gro"], on, !on, err)
		}
	}
	if err := tool.Change("v0", map[string]bool{"warp": true}); err == nil || err.Error() != `no feature "warp"` {
		t.Errorf("unknown feature: %v", err)
	}
	if _, err := tool.Features("nothing"); err == nil {
		t.Error("features of an interface that is not there")
	}
}

// TestMovingStacks: answers are whole although stacks grow and move.
func TestMovingStacks(t *testing.T) {
	netnstest.Enter(t)
	netnstest.Veth(t, "v0", "v1")
	tool, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	defer tool.Close()
	want, err := tool.Features("v0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 300 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			if got, err := tool.Features("v0"); err != nil || len(got) != len(want) {
				t.Errorf("%d features instead of %d, %v", len(got), len(want), err)
			}
		}()
	}
	wg.Wait()
}
