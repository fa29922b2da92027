package clover

import (
	"strings"
	"testing"

	"github.com/quillon/quillon/rack/rnic"
)

// within finds each difference between a memory node's announcement and the metadata server's layout.
func TestAnnounced(t *testing.T) {
	m := &Memory{data: &rnic.MR{VA: 0x1000, RKey: 5, Mem: make([]byte, 4096)}, shortcuts: &rnic.MR{VA: 0x9000, RKey: 6, Mem: make([]byte, 64)}}
	private := append(m.announce(nil), make([]byte, 156)...) // as the field arrives: it has 196 bytes
	for _, c := range []struct {
		s    Space
		says string
	}{
		{Space{VA: 0x1000, RKey: 5, Count: 32, Slab: 128}, ""}, {Space{VA: 0x1800, RKey: 5, Count: 16, Slab: 128}, ""},
		{Space{VA: 0x9000, RKey: 6, Count: 8, Slab: 8, Kind: KindShortcut}, ""}, {Space{VA: 0, RKey: 9, Node: 1, Count: 8, Slab: 8}, ""},
		{Space{VA: 0x1000, RKey: 5, Count: 33, Slab: 128}, "does not have"}, {Space{VA: 0x1800, RKey: 5, Count: 17, Slab: 128}, "does not have"},
		{Space{VA: 0x1000, RKey: 6, Count: 1, Slab: 8}, "does not have"}, {Space{VA: 0xFF8, RKey: 5, Count: 1, Slab: 8}, "does not have"},
	} {
		err := Layout{c.s}.within(0, private)
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%+v: %v", c.s, err)
		}
	}
}
