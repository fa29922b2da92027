package xdp

import (
	"fmt"
	"testing"

	"github.com/quillon/quillon/nf/p4"
)

// routerFlow is a frame of a UDP flow, for the router: from one of many hosts.
func routerFlow(t testing.TB, flow uint16) []byte {
	b := frameOf(t, routerFrame)
	b[28], b[29] = byte(flow>>8), byte(flow)
	sum := uint32(0)
	b[24], b[25] = 0, 0
	for i := 14; i < 34; i += 2 {
		sum += uint32(b[i])<<8 | uint32(b[i+1])
	}
	sum = sum>>16 + sum&0xffff
	sum = sum>>16 + sum&0xffff
	b[24], b[25] = byte(^sum>>8), byte(^sum)
	return b
}

// TestRouterGroups: the router's flows go by the same next hops in the kernel as in the engine, while members of the group get other weights and actions, links fail,
// and the group has nobody for a while; no frame goes to the engine.
func TestRouterGroups(t *testing.T) {
	w := newTwin(t, read(t, "../../../p4src/ipv4_router.json"))
	const profile = "router_ingress.ecmp_selector"
	insert := func(table string, e p4.Entry) {
		w.both(func(sw *p4.Switch) error { _, err := sw.Insert("router_ingress."+table, e); return err })
	}
	insert("router_mac", p4.Entry{Key: []p4.Match{{Value: []byte{1}}, {Value: []byte{2, 0, 0, 0, 0, 0xfe}}}, Action: p4.Action{Name: "NoAction"}})
	ten := []p4.Match{{Value: []byte{10, 0, 0, 0}, Prefix: 8}}
	insert("ipv4_lpm", p4.Entry{Key: ten, Action: p4.Action{Name: "router_ingress.set_group"}})
	const members = 5
	group := make([]p4.GroupMember, members)
	for i := range byte(members) {
		insert("next_hop", p4.Entry{Key: []p4.Match{{Value: []byte{i}}}, Action: p4.Action{Name: "router_ingress.forward", Args: [][]byte{{2, i}, {3, i}, {i}}}})
		group[i] = p4.GroupMember{ID: uint32(1 + i), Watch: uint32(i), HasWatch: true}
	}
	setMember := func(id uint32, hop byte) {
		w.both(func(sw *p4.Switch) error {
			return sw.SetMember(profile, id, p4.Action{Name: "router_ingress.choose", Args: [][]byte{{hop}}})
		})
	}
	setGroup := func(all []p4.GroupMember) {
		w.both(func(sw *p4.Switch) error { return sw.SetGroup(profile, 9, all) })
	}
	for i := range uint32(members) {
		setMember(1+i, byte(i))
	}
	setGroup(group)
	insert("ecmp", p4.Entry{Key: ten, Group: 9})
	flows := func(what string) {
		w.Helper()
		before := w.kernel
		for i := range uint16(200) {
			w.frame(1, routerFlow(t, 7*i))
		}
		if w.kernel != before+200 {
			t.Errorf("%s: %d of 200 frames stayed in the kernel: %v", what, w.kernel-before, w.engine)
		}
	}
	flows("five members")
	for _, port := range []uint32{1, 3, 0, 2, 4} { // at last nobody is left
		w.both(func(sw *p4.Switch) error { sw.SetLink(port, false); return nil })
		flows(fmt.Sprintf("port %d is down, too", port))
	}
	for port := range uint32(members) {
		w.both(func(sw *p4.Switch) error { sw.SetLink(port, true); return nil })
		group[port].Weight = int(3 * port)
	}
	setGroup(group)
	flows("weights")
	setMember(2, 4)
	flows("another action")
	setGroup(group[1:3])
	w.both(func(sw *p4.Switch) error { return sw.DeleteMember(profile, 1) })
	setMember(6, 0)
	flows("fewer members")
	setGroup(nil)
	flows("none")
	group[1].Weight = maxShares
	setGroup(group[1:2])
	flows("as many shares as there is room for")
	group[1].Weight++
	setGroup(group[1:2])
	before := w.kernel
	w.frame(1, routerFlow(t, 1))
	if w.kernel != before {
		t.Error("a group with more shares is in the kernel")
	}
	w.counts()
}
