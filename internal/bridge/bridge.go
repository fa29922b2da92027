package bridge

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"slices"
	"sort"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Splice describes a middlebox's place in a bridge, and the settings that Remove restores.
type Splice struct {
	Bridge string `json:"bridge"`
	Port   string `json:"port"`
	Outer  string `json:"outer"` // the veth end in the bridge
	Inner  string `json:"inner"` // the veth end for the middlebox
	// Namespace identifies the network namespace.
	Namespace string `json:"namespace"`
	// Before has the settings of Port before Insert.
	Before Settings `json:"before"`
}

// Settings are the settings of a bridge port.
type Settings struct {
	MTU     int             `json:"mtu"`
	Up      bool            `json:"up"`
	Promisc bool            `json:"promisc"`
	MAC     string          `json:"mac"`
	State   byte            `json:"state"` // STP state
	Attrs   Attrs           `json:"attrs"`
	VLANs   []VLAN          `json:"vlans"`
	FDB     []FDBEntry      `json:"fdb"`
	MDB     []MDBEntry      `json:"mdb"`
	Offload map[string]bool `json:"offload"`
}

// VLAN is the membership of a port in a VLAN.
type VLAN struct {
	ID       uint16 `json:"id"`
	PVID     bool   `json:"pvid,omitempty"`
	Untagged bool   `json:"untagged,omitempty"`
}

// FDBEntry is a static forwarding entry, which the administrator made.
type FDBEntry struct {
	MAC   string `json:"mac"`
	VLAN  int    `json:"vlan,omitempty"`
	State int    `json:"state"`
	Flags int    `json:"flags,omitempty"`
}

// Attrs are IFLA_BRPORT_* attributes by type, with the bytes that the kernel gave.
type Attrs map[uint16][]byte

// settable are the attributes of a port that can be set as they are read
// (linux/if_link.h). 43 and 44 are neigh_vlan_suppress and backup_nhid.
var settable = []uint16{
	nl.IFLA_BRPORT_PRIORITY, nl.IFLA_BRPORT_COST, nl.IFLA_BRPORT_MODE, nl.IFLA_BRPORT_GUARD,
	nl.IFLA_BRPORT_PROTECT, nl.IFLA_BRPORT_FAST_LEAVE, nl.IFLA_BRPORT_LEARNING,
	nl.IFLA_BRPORT_UNICAST_FLOOD, nl.IFLA_BRPORT_PROXYARP, nl.IFLA_BRPORT_PROXYARP_WIFI,
	nl.IFLA_BRPORT_MULTICAST_ROUTER, nl.IFLA_BRPORT_MCAST_FLOOD, nl.IFLA_BRPORT_MCAST_TO_UCAST,
	nl.IFLA_BRPORT_VLAN_TUNNEL, nl.IFLA_BRPORT_BCAST_FLOOD, nl.IFLA_BRPORT_GROUP_FWD_MASK,
	nl.IFLA_BRPORT_NEIGH_SUPPRESS, nl.IFLA_BRPORT_ISOLATED, nl.IFLA_BRPORT_BACKUP_PORT,
	nl.IFLA_BRPORT_MCAST_EHT_HOSTS_LIMIT, nl.IFLA_BRPORT_LOCKED, nl.IFLA_BRPORT_MAB,
	nl.IFLA_BRPORT_MCAST_MAX_GROUPS, 43, 44,
}

// addrGenNone is IN6_ADDR_GEN_MODE_NONE (linux/if_link.h).
const addrGenNone = 1

// nlaTypeMask takes the flags off an attribute's type (linux/netlink.h).
const nlaTypeMask = 0x3FFF

// stateForwarding is BR_STATE_FORWARDING (linux/if_bridge.h).
const stateForwarding = 3

// Config has the arguments of Insert.
type Config struct {
	Bridge, Port string
	// Name is the beginning of the names of the veth ends; by default it is Port.
	Name string
	// StateDir is the directory of the state files.
	StateDir string
	// Ready, if not nil, is called before Insert reads the settings of Port. Insert fails with its error.
	Ready func() error
	// afterStep, if not nil, is called after every step. Its error makes the step fail.
	afterStep func(step string) error
}

// Insert puts a veth pair between the bridge and its port. If it fails, it undoes
// what it has done.
func Insert(cfg Config) (_ *Splice, err error) {
	br, err := bridgeLink(cfg.Bridge)
	if err != nil {
		return nil, err
	}
	ns, err := Namespace()
	if err != nil {
		return nil, err
	}
	s := &Splice{Bridge: cfg.Bridge, Port: cfg.Port, Namespace: ns}
	if _, err := os.Lstat(statePath(cfg.StateDir, ns, cfg.Port)); err == nil {
		return nil, spliced(cfg.StateDir, s)
	}
	prt, err := portOf(br, cfg.Port)
	if err != nil {
		return nil, err
	}
	name := cfg.Name
	name = cmp.Or(name, cfg.Port)
	s.Outer, s.Inner = ifname(name, "-b"), ifname(name, "-q")
	for _, n := range []string{s.Outer, s.Inner} {
		switch l, err := find(n); {
		case err != nil:
			return nil, err
		case l != nil:
			return nil, fmt.Errorf("an interface %s exists already; choose another --veth", n)
		}
	}
	if cfg.Ready != nil {
		if err := cfg.Ready(); err != nil {
			return nil, err
		}
	}
	if s.Before, err = read(br, prt); err != nil {
		return nil, fmt.Errorf("read the settings of %s: %w", cfg.Port, err)
	}
	lost, err := ownOptions(prt.Attrs().Index)
	switch {
	case err != nil:
		return nil, fmt.Errorf("read the settings of %s: %w", cfg.Port, err)
	case lost != "":
		return nil, fmt.Errorf("%s has options for single VLANs, which would be lost (%s): take them off first", cfg.Port, lost)
	}
	if err := takesGroups(br, s); err != nil {
		return nil, err
	}

	var undo []func() error
	defer func() {
		if err == nil {
			return
		}
		for i := len(undo) - 1; i >= 0; i-- {
			if e := undo[i](); e != nil {
				err = fmt.Errorf("%w; and undoing it: %w", err, e)
			}
		}
	}()
	step := func(what string, do, back func() error) error {
		if err := do(); err != nil {
			return fmt.Errorf("%s: %w", what, explain(err))
		}
		if back != nil {
			undo = append(undo, back)
		}
		if cfg.afterStep != nil {
			return cfg.afterStep(what)
		}
		return nil
	}
	var outer, inner netlink.Link
	for _, x := range []struct {
		what     string
		do, back func() error
	}{
		{"write the state file", func() error { return save(cfg.StateDir, s) }, func() error { return forget(cfg.StateDir, s) }},
		{"create " + s.Outer, func() error {
			outer, inner, err = makeVeth(s)
			return err
		}, func() error { return netlink.LinkDel(outer) }},
		{"set " + s.Outer + " up", func() error { return netlink.LinkSetUp(outer) }, nil},
		{"set " + s.Inner + " up", func() error { return netlink.LinkSetUp(inner) }, nil},
		{"put " + s.Outer + " into " + s.Bridge, func() error {
			return join(br, outer, s.Before)
		}, func() error { return netlink.LinkSetNoMaster(outer) }},
		{"take " + s.Port + " out of " + s.Bridge, func() error {
			return netlink.LinkSetNoMaster(prt)
		}, func() error { return rejoin(br, prt, s.Before) }},
		{"set the forwarding entries of " + s.Outer, func() error {
			return errors.Join(setFDB(outer, s.Before.FDB), setMDB(br, outer, s.Before.MDB))
		}, nil},
	} {
		if err = step(x.what, x.do, x.back); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// Remove puts the port back as it was and deletes the veth pair. It also
// undoes what a crash of Insert or Remove left. If parts are gone (the
// port was unplugged, the bridge deleted) or settings cannot be restored,
// Remove undoes everything else and then names them in its error.
func Remove(stateDir string, s *Splice) error {
	ns, err := Namespace()
	if err != nil {
		return err
	}
	if s.Namespace != ns {
		return fmt.Errorf("%s was spliced in another network namespace (%s); run this there", s.Port, s.Namespace)
	}
	var errs []error
	br, err := find(s.Bridge)
	if err != nil {
		return err
	}
	prt, err := find(s.Port)
	if err != nil {
		return err
	}
	switch {
	case br == nil:
		errs = append(errs, fmt.Errorf("bridge %s is gone", s.Bridge))
	case br.Type() != "bridge":
		errs = append(errs, fmt.Errorf("%s is not a bridge any more (it is a %s)", s.Bridge, br.Type()))
	case prt == nil:
		errs = append(errs, fmt.Errorf("interface %s is gone", s.Port))
	default:
		if err := takesGroups(br, s); err != nil {
			return err
		}
		if err := enslave(br, prt); err != nil {
			return fmt.Errorf("put %s back into %s: %w", s.Port, s.Bridge, explain(err))
		}
		if err := restore(br, prt, s.Before); err != nil {
			errs = append(errs, fmt.Errorf("%s is in %s, but not all of its settings are as they were: %w", s.Port, s.Bridge, explain(err)))
		}
	}
	outer, err := find(s.Outer)
	if err == nil && outer != nil {
		err = netlink.LinkDel(outer)
	}
	if err != nil {
		return fmt.Errorf("delete %s: %w", s.Outer, explain(err))
	}
	if err := forget(stateDir, s); err != nil && !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// find returns the interface called name, or nil if there is none.
func find(name string) (netlink.Link, error) {
	l, err := netlink.LinkByName(name)
	switch {
	case err == nil:
		return l, nil
	case errors.As(err, new(netlink.LinkNotFoundError)):
		return nil, nil
	}
	return nil, fmt.Errorf("%s: %w", name, explain(err))
}

// bridgeLink returns the bridge called name. It is an error if the interface is no bridge.
func bridgeLink(name string) (netlink.Link, error) {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return nil, missing(name, err)
	}
	if l.Type() != "bridge" {
		return nil, fmt.Errorf("%s is not a bridge (it is a %s)", name, l.Type())
	}
	return l, nil
}

func missing(name string, err error) error {
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return fmt.Errorf("no interface is called %s; ip link shows what there is", name)
	}
	return fmt.Errorf("%s: %w", name, explain(err))
}

// portOf returns the port called name of bridge br.
func portOf(br netlink.Link, name string) (netlink.Link, error) {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return nil, missing(name, err)
	}
	if l.Attrs().MasterIndex == br.Attrs().Index {
		return l, nil
	}
	all, err := netlink.LinkList()
	if err != nil {
		return nil, explain(err)
	}
	var ports []string
	for _, x := range all {
		if x.Attrs().MasterIndex == br.Attrs().Index {
			ports = append(ports, x.Attrs().Name)
		}
	}
	sort.Strings(ports)
	has := "it has none"
	if len(ports) > 0 {
		has = "its ports are " + strings.Join(ports, ", ")
	}
	return nil, fmt.Errorf("%s is not a port of %s; %s", name, br.Attrs().Name, has)
}

// ifname returns name with the suffix. It shortens name so that the result has at most 15 characters.
func ifname(name, suffix string) string {
	if n := unix.IFNAMSIZ - 1 - len(suffix); len(name) > n {
		name = name[:n]
	}
	return name + suffix
}

// makeVeth creates the veth pair of s with the MAC and MTU of the port. Both ends
// send nothing of their own, because they have no IPv6 address. outer hands over complete
// frames (checksums done, segments cut) and has GRO on, so that XDP frames redirected to
// inner arrive: a veth without NAPI does not take them.
func makeVeth(s *Splice) (outer, inner netlink.Link, err error) {
	mac, err := net.ParseMAC(s.Before.MAC)
	if err != nil {
		return nil, nil, err
	}
	la := netlink.NewLinkAttrs()
	la.Name, la.MTU, la.HardwareAddr = s.Outer, s.Before.MTU, mac
	// When the answer is what failed, the pair is there.
	defer func() {
		if err != nil && !errors.Is(err, unix.EEXIST) {
			_ = netlink.LinkDel(&netlink.Veth{LinkAttrs: la})
		}
	}()
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: la, PeerName: s.Inner, PeerMTU: uint32(s.Before.MTU)}); err != nil {
		return nil, nil, err
	}
	if outer, err = netlink.LinkByName(s.Outer); err != nil {
		return nil, nil, err
	}
	if inner, err = netlink.LinkByName(s.Inner); err != nil {
		return nil, nil, err
	}
	for _, l := range []netlink.Link{outer, inner} {
		// A kernel without IPv6 has nothing to keep quiet.
		if err := netlink.LinkSetIP6AddrGenMode(l, addrGenNone); err != nil && !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.EAFNOSUPPORT) {
			return nil, nil, err
		}
	}
	if err := netlink.LinkSetAlias(inner, s.alias()); err != nil {
		return nil, nil, err
	}
	return outer, inner, completeFrames(s.Outer)
}

// alias returns the alias of the inner end, which marks it in the kernel. It stays with the interface wherever the
// state file is.
func (s *Splice) alias() string { return fmt.Sprintf("quillon splice: %s %s", s.Bridge, s.Port) }

// Of returns the splice whose inner end and port are a and b, in either order, or nil if there is none.
// Only Bridge, Port and Inner are set in it.
func Of(a, b string) (*Splice, error) {
	for _, x := range [][2]string{{a, b}, {b, a}} {
		s := &Splice{Inner: x[0], Port: x[1]}
		l, err := find(s.Inner)
		if err != nil {
			return nil, err
		}
		if l == nil || l.Type() != "veth" {
			continue
		}
		if f := strings.Fields(l.Attrs().Alias); len(f) == 4 {
			s.Bridge = f[2]
		}
		if l.Attrs().Alias == s.alias() {
			return s, nil
		}
	}
	return nil, nil
}

// join puts l into bridge br with the settings of a port.
func join(br, l netlink.Link, want Settings) error {
	if err := netlink.LinkSetMaster(l, br); err != nil {
		return err
	}
	return setPort(br, l, want)
}

// rejoin puts l into br and gives it all settings back that it had there.
func rejoin(br, l netlink.Link, want Settings) error {
	if err := enslave(br, l); err != nil {
		return err
	}
	return restore(br, l, want)
}

// enslave puts l into br, unless it is in br already.
func enslave(br, l netlink.Link) error {
	now, err := netlink.LinkByIndex(l.Attrs().Index)
	if err != nil || now.Attrs().MasterIndex == br.Attrs().Index {
		return err
	}
	return netlink.LinkSetMaster(l, br)
}

// restore gives l, a port of br, its settings back. If one cannot be set, restore sets the others
// and returns an error.
func restore(br, l netlink.Link, want Settings) error {
	now, err := netlink.LinkByIndex(l.Attrs().Index)
	if err != nil {
		return err
	}
	var errs []error
	a := now.Attrs()
	if a.MTU != want.MTU {
		if err := netlink.LinkSetMTU(l, want.MTU); err != nil {
			errs = append(errs, fmt.Errorf("MTU %d: %w", want.MTU, err))
		}
	}
	if promisc := a.RawFlags&unix.IFF_PROMISC != 0; promisc != want.Promisc {
		set := netlink.SetPromiscOff
		if want.Promisc {
			set = netlink.SetPromiscOn
		}
		errs = append(errs, set(l))
	}
	if up := a.Flags&net.FlagUp != 0; up != want.Up {
		set := netlink.LinkSetDown
		if want.Up {
			set = netlink.LinkSetUp
		}
		errs = append(errs, set(l))
	}
	return errors.Join(append(errs, setOffload(a.Name, want.Offload), setPort(br, l, want), setFDB(l, want.FDB), setMDB(br, l, want.MDB))...)
}

// setPort gives l, a port of br, the wanted bridge settings; it touches only
// what differs.
func setPort(br, l netlink.Link, want Settings) error {
	now, err := read(br, l)
	if err != nil {
		return err
	}
	var errs []error
	for _, id := range settable {
		v, ok := want.Attrs[id]
		if !ok || string(v) == string(now.Attrs[id]) {
			continue
		}
		if err := setAttr(l, id, v); err != nil {
			errs = append(errs, fmt.Errorf("bridge port attribute %d: %w", id, err))
		}
	}
	have := map[VLAN]bool{}
	for _, v := range now.VLANs {
		have[v] = true
	}
	keep := map[uint16]bool{}
	for _, v := range want.VLANs {
		keep[v.ID] = true
		if !have[v] {
			if err := netlink.BridgeVlanAdd(l, v.ID, v.PVID, v.Untagged, false, true); err != nil {
				errs = append(errs, fmt.Errorf("VLAN %d: %w", v.ID, err))
			}
		}
	}
	for _, v := range now.VLANs {
		if !keep[v.ID] {
			if err := netlink.BridgeVlanDel(l, v.ID, false, false, false, true); err != nil {
				errs = append(errs, fmt.Errorf("VLAN %d: %w", v.ID, err))
			}
		}
	}
	// The kernel sets the state itself; only one that was set by hand differs,
	// and with STP the kernel refuses to be told.
	if now.State == stateForwarding && want.Up && want.State != stateForwarding {
		err := setAttr(l, nl.IFLA_BRPORT_STATE, []byte{want.State})
		if err != nil && !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.ENETDOWN) {
			errs = append(errs, fmt.Errorf("port state: %w", err))
		}
	}
	return errors.Join(errs...)
}

func setAttr(l netlink.Link, id uint16, v []byte) error {
	req := nl.NewNetlinkRequest(unix.RTM_SETLINK, unix.NLM_F_ACK)
	msg := nl.NewIfInfomsg(unix.AF_BRIDGE)
	msg.Index = int32(l.Attrs().Index)
	req.AddData(msg)
	info := nl.NewRtAttr(unix.IFLA_PROTINFO|unix.NLA_F_NESTED, nil)
	info.AddRtAttr(int(id), v)
	req.AddData(info)
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// setFDB adds the entries to port l.
func setFDB(l netlink.Link, want []FDBEntry) error {
	var errs []error
	for _, e := range want {
		mac, err := net.ParseMAC(e.MAC)
		if err != nil {
			return err
		}
		n := &netlink.Neigh{LinkIndex: l.Attrs().Index, Family: unix.AF_BRIDGE, State: e.State, Flags: e.Flags | netlink.NTF_MASTER, HardwareAddr: mac, Vlan: e.VLAN}
		if err := netlink.NeighSet(n); err != nil {
			errs = append(errs, fmt.Errorf("forwarding entry %s: %w", e.MAC, err))
		}
	}
	return errors.Join(errs...)
}

// read returns the present settings of port l of bridge br.
func read(br, l netlink.Link) (Settings, error) {
	l, err := netlink.LinkByIndex(l.Attrs().Index)
	if err != nil {
		return Settings{}, err
	}
	a := l.Attrs()
	s := Settings{
		MTU:     a.MTU,
		Up:      a.Flags&net.FlagUp != 0,
		Promisc: a.RawFlags&unix.IFF_PROMISC != 0,
		MAC:     a.HardwareAddr.String(),
	}
	if s.Attrs, err = portAttrs(a.Index); err != nil {
		return s, err
	}
	if v := s.Attrs[nl.IFLA_BRPORT_STATE]; len(v) == 1 {
		s.State = v[0]
	}
	for id := range s.Attrs {
		if !slices.Contains(settable, id) {
			delete(s.Attrs, id)
		}
	}
	vlans, err := netlink.BridgeVlanList()
	if err != nil {
		return s, err
	}
	for _, v := range vlans[int32(a.Index)] {
		s.VLANs = append(s.VLANs, VLAN{ID: v.Vid, PVID: v.PortVID(), Untagged: v.EngressUntag()})
	}
	neigh, err := netlink.NeighList(a.Index, unix.AF_BRIDGE)
	if err != nil {
		return s, err
	}
	for _, n := range neigh {
		mac := n.HardwareAddr.String()
		byHand := n.State&netlink.NUD_NOARP != 0 || n.State&netlink.NUD_PERMANENT != 0 && mac != s.MAC
		if n.MasterIndex != br.Attrs().Index || !byHand {
			continue
		}
		s.FDB = append(s.FDB, FDBEntry{MAC: mac, VLAN: n.Vlan, State: n.State, Flags: n.Flags & netlink.NTF_STICKY})
	}
	sort.Slice(s.FDB, func(i, j int) bool {
		a, b := s.FDB[i], s.FDB[j]
		return a.MAC < b.MAC || a.MAC == b.MAC && a.VLAN < b.VLAN
	})
	if s.MDB, err = mdb(br.Attrs().Index, a.Index); err != nil {
		return s, err
	}
	s.Offload, err = offload(a.Name)
	return s, err
}

// portAttrs returns all bridge port attributes of the interface.
func portAttrs(index int) (Attrs, error) {
	req := nl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_DUMP)
	req.AddData(nl.NewIfInfomsg(unix.AF_BRIDGE))
	msgs, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
	if err != nil {
		return nil, err
	}
	out := Attrs{}
	for _, m := range msgs {
		info := nl.DeserializeIfInfomsg(m)
		if int(info.Index) != index {
			continue
		}
		attrs, err := nl.ParseRouteAttr(m[info.Len():])
		if err != nil {
			return nil, err
		}
		for _, a := range attrs {
			if a.Attr.Type&nlaTypeMask != unix.IFLA_PROTINFO {
				continue
			}
			inner, err := nl.ParseRouteAttr(a.Value)
			if err != nil {
				return nil, err
			}
			for _, x := range inner {
				out[x.Attr.Type&nlaTypeMask] = append([]byte(nil), x.Value...)
			}
		}
	}
	return out, nil
}

// explain adds to an error that has a usual cause what the user can do about it.
func explain(err error) error {
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		return fmt.Errorf("%w: this needs root (CAP_NET_ADMIN)", err)
	}
	return err
}
