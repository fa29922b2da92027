package topo

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/quillon/quillon/internal/ethtool"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Config describes a rack.
type Config struct {
	Compute int // compute nodes, 1 to 64; 0 = 3
	// Memory is the number of memory nodes, 1 to 8; 0 = 1. Several are on a bridge of their own behind the
	// inline place.
	Memory int
	// Flat: memory nodes are on the same bridge as all other nodes, and there is no inline place.
	Flat bool
	MTU  int // of all links, 1280 to 9000; 0 = 1500
	IPv6 bool
}

// Role of a node.
type Role string

const (
	Compute  Role = "compute"
	Memory   Role = "memory"
	Metadata Role = "metadata"
)

// Addr is the address of a node.
type Addr struct {
	MAC [6]byte
	IP  netip.Addr
}

// Interface is the name of the only link in each node's namespace.
const Interface = "eth0"

// Node is one machine of the rack.
type Node struct {
	Name  string
	Role  Role
	Addr  Addr
	Space *Space
}

// Topology is a rack that was built.
type Topology struct {
	MTU int
	// Nodes has the compute nodes first, then memory, then metadata.
	Nodes []Node
	// Switch is the namespace with the bridge and both ends of the inline place.
	Switch *Space
	// Inline are the two interfaces, in Switch, between which the middlebox runs: the first leads to the
	// bridge, the second to the memory nodes.
	Inline [2]string
	flat   bool
}

// Plan returns the nodes of a rack, with names, roles and addresses, and makes nothing.
func Plan(c Config) ([]Node, error) {
	c.Compute = cmp.Or(c.Compute, 3)
	if c.Compute < 1 || c.Compute > 64 {
		return nil, fmt.Errorf("a rack has 1 to 64 compute nodes, not %d", c.Compute)
	}
	if c.Memory < 0 || c.Memory > 8 {
		return nil, fmt.Errorf("a rack has 1 to 8 memory nodes, not %d", c.Memory)
	}
	node := func(name string, role Role, host byte) Node {
		ip := netip.AddrFrom4([4]byte{10, 77, 0, host})
		if c.IPv6 {
			ip = netip.AddrFrom16([16]byte{0: 0xfd, 1: 0x77, 15: host})
		}
		return Node{Name: name, Role: role, Addr: Addr{MAC: [6]byte{0x02, 0x77, 0, 0, 0, host}, IP: ip}}
	}
	var nodes []Node
	for i := range c.Compute {
		nodes = append(nodes, node(fmt.Sprintf("c%d", i), Compute, byte(11+i)))
	}
	for i := range max(1, c.Memory) {
		name := "mn"
		if i > 0 {
			name = fmt.Sprintf("mn%d", i)
		}
		nodes = append(nodes, node(name, Memory, byte(101+i)))
	}
	return append(nodes, node("ms", Metadata, 201)), nil
}

// New builds a rack. It needs CAP_SYS_ADMIN and CAP_NET_ADMIN; without them
// the error wraps port.ErrNotSupported. On an error nothing is left behind.
func New(c Config) (_ *Topology, err error) {
	c.MTU = cmp.Or(c.MTU, 1500)
	if c.MTU < 1280 || c.MTU > 9000 {
		return nil, fmt.Errorf("a rack's MTU is 1280 to 9000, not %d", c.MTU)
	}
	t := &Topology{MTU: c.MTU, Inline: [2]string{"m1", "n0"}, flat: c.Flat}
	if t.Nodes, err = Plan(c); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = t.Close()
		}
	}()
	if t.Switch, err = NewSpace(true); err != nil {
		return nil, fmt.Errorf("switch: %w", err)
	}
	for i := range t.Nodes {
		if t.Nodes[i].Space, err = NewSpace(false); err != nil {
			return nil, fmt.Errorf("node %s: %w", t.Nodes[i].Name, err)
		}
	}
	if err = t.Switch.Do(t.wire); err != nil {
		return nil, fmt.Errorf("switch: %w", err)
	}
	for i := range t.Nodes {
		n := &t.Nodes[i]
		if err = n.Space.Do(func() error { return LinkUp(Interface) }); err != nil {
			return nil, fmt.Errorf("node %s: %w", n.Name, err)
		}
	}
	if err = t.Forwards(); err != nil {
		return nil, fmt.Errorf("switch: %w", err)
	}
	return t, nil
}

// A port of a bridge forwards once the kernel has noticed that its link is up, which takes up to a second.
const (
	noticeEvery = time.Millisecond
	noticeTries = 10_000
	forwarding  = "3" // BR_STATE_FORWARDING
)

// Forwards waits until every port of the bridges forwards. A port whose other end was down for a moment does
// not forward for up to a second. That happens when a process opens an interface of the inline place.
func (t *Topology) Forwards() error { return t.Switch.Do(t.forwards) }

// forwards is Forwards; it runs in the switch namespace.
func (t *Topology) forwards() error {
	ports, err := filepath.Glob("/sys/class/net/*/brport")
	if err != nil {
		return err
	}
	for try := 0; len(ports) > 0; try++ {
		state, err := os.ReadFile(ports[0] + "/state")
		if err != nil {
			return err
		}
		if strings.TrimSpace(string(state)) == forwarding {
			ports = ports[1:]
			continue
		}
		if try == noticeTries {
			return fmt.Errorf("the bridge does not forward: %s", ports[0])
		}
		time.Sleep(noticeEvery)
	}
	return nil
}

// bridge makes one of the rack's bridges.
func (t *Topology) bridge(name string) (netlink.Link, error) {
	off, ageing := false, uint32(0)
	br := &netlink.Bridge{
		LinkAttrs:         netlink.LinkAttrs{Name: name, MTU: t.MTU},
		MulticastSnooping: &off,
		AgeingTime:        &ageing,
	}
	if err := netlink.LinkAdd(br); err != nil {
		return nil, fmt.Errorf("cannot make the bridge: %w", supported(err))
	}
	return br, nil
}

// wire makes all links; it runs in the switch namespace.
func (t *Topology) wire() error {
	front, err := t.bridge("br")
	if err != nil {
		return err
	}
	var memory, others [][6]byte
	for i := range t.Nodes {
		if n := &t.Nodes[i]; n.Role == Memory {
			memory = append(memory, n.Addr.MAC)
		} else {
			others = append(others, n.Addr.MAC)
		}
	}
	back := front // the bridge of the memory nodes; nil: there is one node, at the inline place itself
	switch {
	case t.flat:
	case len(memory) == 1:
		back = nil
	default:
		if back, err = t.bridge("back"); err != nil {
			return err
		}
	}
	for i := range t.Nodes {
		n := &t.Nodes[i]
		local, br := n.Name, front
		if n.Role == Memory {
			br = back
		}
		if br == nil {
			local = t.Inline[1]
		}
		if err := t.veth(local, Interface, n); err != nil {
			return err
		}
		if br != nil {
			if err := join(br, local, n.Addr.MAC); err != nil {
				return err
			}
		}
	}
	if t.flat {
		return LinkUp("br")
	}
	if err := t.veth("m0", t.Inline[0], nil); err != nil {
		return err
	}
	if err := join(front, "m0", memory...); err != nil {
		return err
	}
	if back != nil {
		if err := t.veth("b0", t.Inline[1], nil); err != nil {
			return err
		}
		if err := join(back, "b0", others...); err != nil {
			return err
		}
		if err := LinkUp("back"); err != nil {
			return err
		}
	}
	for _, name := range []string{t.Inline[0], t.Inline[1]} {
		if err := LinkUp(name); err != nil {
			return err
		}
	}
	return LinkUp("br")
}

// veth makes a veth pair; the peer is in n's namespace, or here if n is nil.
func (t *Topology) veth(local, peer string, n *Node) error {
	v := &netlink.Veth{
		LinkAttrs:       netlink.LinkAttrs{Name: local, MTU: t.MTU, TxQLen: 1000, NumTxQueues: 1, NumRxQueues: 1},
		PeerName:        peer,
		PeerMTU:         uint32(t.MTU),
		PeerNumTxQueues: 1,
		PeerNumRxQueues: 1,
	}
	if n != nil {
		v.PeerHardwareAddr = n.Addr.MAC[:]
		v.PeerNamespace = netlink.NsFd(n.Space.ns.Fd())
	}
	if err := netlink.LinkAdd(v); err != nil {
		return fmt.Errorf("cannot make the veth pair %s-%s: %w", local, peer, supported(err))
	}
	return nil
}

// join makes a link a port of the bridge, and enters addresses that are behind this port.
func join(br netlink.Link, name string, macs ...[6]byte) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if err := netlink.LinkSetMaster(l, br); err != nil {
		return fmt.Errorf("%s: cannot join the bridge: %w", name, err)
	}
	if err := LinkUp(name); err != nil {
		return err
	}
	for _, mac := range macs {
		err = netlink.NeighSet(&netlink.Neigh{
			LinkIndex:    l.Attrs().Index,
			Family:       unix.AF_BRIDGE,
			Flags:        netlink.NTF_MASTER,
			State:        netlink.NUD_NOARP,
			HardwareAddr: net.HardwareAddr(mac[:]),
		})
		if err != nil {
			return fmt.Errorf("%s: cannot fill the bridge's table: %w", name, err)
		}
	}
	return nil
}

// LinkUp sets a link's offloads and brings it up. Checksum offload is off, because AF_XDP must see frames
// with their checksums. GRO makes a veth take frames that XDP redirects to it; the kernel tells the other end
// so only if GRO is set while the link is up.
func LinkUp(name string) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if l.Type() == "veth" {
		for _, f := range []string{"tx-tcp-segmentation", "tx-tcp6-segmentation", "tx-generic-segmentation", "tx-checksum-ip-generic"} {
			if err := feature(name, f, false); err != nil {
				return err
			}
		}
	}
	if err := netlink.LinkSetUp(l); err != nil {
		return fmt.Errorf("%s: cannot bring it up: %w", name, err)
	}
	if l.Type() == "veth" {
		return feature(name, "rx-gro", true)
	}
	return nil
}

// feature sets an offload of a link in the namespace of the calling thread.
func feature(link, name string, on bool) error {
	e, err := ethtool.Open()
	if err != nil {
		return fmt.Errorf("%s: %w", link, err)
	}
	defer e.Close()
	if err := e.Change(link, map[string]bool{name: on}); err != nil {
		return fmt.Errorf("%s: cannot set %s to %t: %w", link, name, on, err)
	}
	return nil
}

// Close removes the links and the namespaces. Processes that run in them must have been stopped.
func (t *Topology) Close() error {
	var errs []error
	if t.Switch != nil {
		errs = append(errs, t.Switch.Do(func() error {
			links, err := netlink.LinkList()
			if err != nil {
				return err
			}
			for _, l := range links {
				if l.Type() != "veth" && l.Type() != "bridge" {
					continue
				}
				// When one end of a pair is removed, the other end is gone, too.
				var gone netlink.LinkNotFoundError
				if err := netlink.LinkDel(l); err != nil && !errors.As(err, &gone) && !errors.Is(err, unix.ENODEV) {
					return fmt.Errorf("cannot remove %s: %w", l.Attrs().Name, err)
				}
			}
			return nil
		}))
		t.Switch.Close()
	}
	for i := range t.Nodes {
		if t.Nodes[i].Space != nil {
			t.Nodes[i].Space.Close()
		}
	}
	return errors.Join(errs...)
}

// Veth makes a veth pair with one queue, near in a and far in b, and brings both ends up.
func Veth(a *Space, near string, b *Space, far string) error { return VethOf(1, a, near, b, far) }

// VethOf is Veth for this number of queues.
func VethOf(queues int, a *Space, near string, b *Space, far string) error {
	err := a.Do(func() error {
		return supported(netlink.LinkAdd(&netlink.Veth{
			LinkAttrs: netlink.LinkAttrs{Name: near, TxQLen: 1000, NumTxQueues: queues, NumRxQueues: queues},
			PeerName:  far, PeerNumTxQueues: uint32(queues), PeerNumRxQueues: uint32(queues), PeerNamespace: netlink.NsFd(b.ns.Fd()),
		}))
	})
	if err == nil {
		err = a.Do(func() error { return LinkUp(near) })
	}
	if err == nil {
		err = b.Do(func() error { return LinkUp(far) })
	}
	if err != nil {
		return fmt.Errorf("veth pair %s-%s: %w", near, far, err)
	}
	return nil
}
