package bridge

import (
	"encoding/binary"
	"testing"

	"github.com/vishvananda/netlink/nl"
)

// TestOwnOptions: this kernel's bridge may have no VLANs, so the messages are made
// here, as linux/if_bridge.h has them.
func TestOwnOptions(t *testing.T) {
	u16 := func(v uint16) []byte { return binary.NativeEndian.AppendUint16(nil, v) }
	u32 := func(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }
	usual := map[int][]byte{3: {3}, 6: {1}, 7: u32(5), 8: u32(0), 9: {0}}
	message := func(index int, vid, last uint16, own map[int][]byte) []byte {
		e := nl.NewRtAttr(vlanEntry|0x8000, nil)
		e.AddRtAttr(vlanEntryInfo, append(u16(0), u16(vid)...))
		if last > 0 {
			e.AddRtAttr(vlanEntryRange, u16(last))
		}
		for attr := 3; attr <= 9; attr++ {
			if v, ok := own[attr]; ok {
				e.AddRtAttr(attr, v)
			} else if v, ok := usual[attr]; ok {
				e.AddRtAttr(attr, v)
			}
		}
		return append(portMsg{index}.Serialize(), e.Serialize()...)
	}
	msgs := [][]byte{
		message(5, 1, 0, nil),
		message(6, 2, 0, map[int][]byte{3: {4}}),
		message(5, 10, 0, map[int][]byte{3: {4}}),
		message(5, 20, 22, map[int][]byte{4: nl.NewRtAttr(1, u32(99)).Serialize(), 6: {2}, 8: u32(7), 9: {1}}),
		{1, 2, 3},
	}
	const want = "VLAN 10: state; VLAN 20-22: tunnel_info, mcast_router, mcast_max_groups, neigh_suppress"
	if got := nameOptions(msgs, 5); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if got := nameOptions(msgs[:1], 5); got != "" {
		t.Error(got)
	}
}
