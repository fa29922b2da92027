package bridge

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// linux/if_bridge.h.
const (
	vlanEntry      = 1 // BRIDGE_VLANDB_ENTRY, which holds:
	vlanEntryInfo  = 1 // struct bridge_vlan_info: flags (2), vid (2)
	vlanEntryRange = 2 // the last vid, where there are several
	vlanTunnel     = 4 // a nest, which is there or not
	vlanMsgLen     = 8 // struct br_vlan_msg, laid out as struct br_port_msg is
)

// vlanOptions are the options that a VLAN of a port may have of its own, with the names of bridge(8)
// and their default values.
var vlanOptions = []struct {
	attr  uint16
	name  string
	usual uint32
}{
	{3, "state", stateForwarding},
	{vlanTunnel, "tunnel_info", 0},
	{6, "mcast_router", 1},
	{8, "mcast_max_groups", 0},
	{9, "neigh_suppress", 0},
}

// ownOptions returns a text that names the VLANs of port index with options that differ from their
// default, and these options, or "" if there are none.
func ownOptions(index int) (string, error) {
	req := nl.NewNetlinkRequest(unix.RTM_GETVLAN, unix.NLM_F_DUMP)
	req.AddData(portMsg{index})
	msgs, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWVLAN)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("options of VLANs: %w", err)
	}
	return nameOptions(msgs, index), nil
}

func nameOptions(msgs [][]byte, index int) string {
	var vlans []string
	for _, m := range msgs {
		if len(m) < vlanMsgLen || int(binary.NativeEndian.Uint32(m[4:])) != index {
			continue
		}
		for _, e := range nested([][]byte{m[vlanMsgLen:]}, vlanEntry) {
			in := [][]byte{e}
			var names []string
			for _, o := range vlanOptions {
				for _, v := range nested(in, o.attr) {
					if o.attr == vlanTunnel || len(v) == 1 && uint32(v[0]) != o.usual ||
						len(v) == 4 && binary.NativeEndian.Uint32(v) != o.usual {
						names = append(names, o.name)
					}
				}
			}
			info := nested(in, vlanEntryInfo)
			if len(names) == 0 || len(info) == 0 || len(info[0]) < 4 {
				continue
			}
			vlan := fmt.Sprintf("VLAN %d", binary.NativeEndian.Uint16(info[0][2:]))
			if last := nested(in, vlanEntryRange); len(last) > 0 && len(last[0]) >= 2 {
				vlan += fmt.Sprintf("-%d", binary.NativeEndian.Uint16(last[0]))
			}
			vlans = append(vlans, vlan+": "+strings.Join(names, ", "))
		}
	}
	return strings.Join(vlans, "; ")
}
