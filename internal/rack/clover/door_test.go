package clover

import (
	"net/netip"
	"testing"

	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/rack/rnic"
)

// TestDoor: a metadata server that asks without a store number does not take the memory node. One that comes
// back with the node's number takes it, and then no other metadata server is let in.
func TestDoor(t *testing.T) {
	pool, err := packet.NewPool(64, 2048, nil)
	if err != nil {
		t.Fatal(err)
	}
	nic, err := rnic.New(rnic.Config{MAC: [6]byte{2, 0, 0, 0, 0, 9}, IP: netip.MustParseAddr("10.0.0.9"), Profile: rnic.ConnectX, Pool: pool})
	if err != nil {
		t.Fatal(err)
	}
	p, err := NewMemoryPart(nic, MemoryConfig{Classes: []Class{{Slab: 128, Entries: 64}}, Slots: 4}, 5)
	if err != nil {
		t.Fatal(err)
	}
	knock := func(role uint32, store uint64) bool {
		_, _, err := p.manager.door(pack(afarHello{afarMagic, role, store}))
		return err == nil
	}
	for i, k := range []struct {
		role  uint32
		store uint64
		want  bool
	}{
		{afarMetadata, 0, true}, {afarMetadata, 0, true}, {afarMetadata, 6, false}, {afarClient, 6, false},
		{afarMetadata, 5, true}, {afarMetadata, 0, false}, {afarMetadata, 5, false}, {afarClient, 5, true},
	} {
		if got := knock(k.role, k.store); got != k.want {
			t.Errorf("%d: role %d, store %d: %v", i, k.role, k.store, got)
		}
	}
	for _, bad := range [][]byte{nil, {1}, make([]byte, 56)} {
		if _, _, err := p.manager.door(bad); err != errAfarVersion {
			t.Errorf("%v: %v", bad, err)
		}
	}
}
