package vpc

import (
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/internal/rack/topo"
)

// Interface is the name of the link in the hosts' namespace.
const Interface = "eth0"

// The longest IP packets, in bytes: on the wire, and of hosts. The difference is for the tunnel: 20 of the
// outer header, 8 + 8 + 16 of ESP, and up to 5 of its trailer.
const (
	WireMTU = 1500
	HostMTU = 1440
)

// Service is the port of the servers; no host may open connections to Forbidden.
const (
	Service   = 5201 // TCP and UDP
	Forbidden = 5202
)

// Site is one of the two ends of the network.
type Site struct {
	Name string
	// Hosts is the namespace of the hosts; nil in the result of Sites.
	Hosts *topo.Space
	MAC   [6]byte
	// Client and Server are the addresses of the hosts. Shared is the address of the board's NAPT, by which
	// others see the client. Tunnel is the address of the board's end of the tunnel.
	Client, Server, Shared, Tunnel netip.Addr
	// Public contains Server and Shared; Private contains Client.
	Public, Private netip.Prefix
	// Inline are the board's interfaces in Boards: the first leads to the hosts, the second to the wire.
	Inline [2]string
	// SPI and Key protect what the site sends.
	SPI uint32
	Key string
}

// Sites returns both ends, without making anything.
func Sites() [2]Site {
	a, p := netip.MustParseAddr, netip.MustParsePrefix
	return [2]Site{{
		Name: "a", MAC: [6]byte{2, 0x56, 0, 0, 0, 1},
		Client: a("10.1.0.2"), Server: a("198.51.100.10"), Shared: a("198.51.100.1"), Tunnel: a("192.0.2.1"),
		Private: p("10.1.0.0/16"), Public: p("198.51.100.0/24"), Inline: [2]string{"a-in", "a-out"},
		SPI: 0x100, Key: "8d3c1ce01bff5dd62a3a4d9cc8b1c5c0a1b2c3d4",
	}, {
		Name: "b", MAC: [6]byte{2, 0x56, 0, 0, 0, 2},
		Client: a("10.2.0.2"), Server: a("203.0.113.10"), Shared: a("203.0.113.1"), Tunnel: a("192.0.2.2"),
		Private: p("10.2.0.0/16"), Public: p("203.0.113.0/24"), Inline: [2]string{"b-in", "b-out"},
		SPI: 0x200, Key: "51f02f4fdd4f9e7b1b1b79d40f5cf9e3deadbeef",
	}}
}

// Keys returns the content of the key file, which both boards have.
func Keys() string {
	s := Sites()
	return fmt.Sprintf("%#x %s\n%#x %s\n", s[0].SPI, s[0].Key, s[1].SPI, s[1].Key)
}

// Rules returns the rules of a site's firewall. The site's private hosts may open connections to the other
// site's public addresses, and the other site's public addresses may open connections to this site's server.
// Nothing else is allowed.
func (s *Site) Rules() []string {
	t := s.other()
	var r []string
	for _, proto := range []string{"tcp", "udp"} {
		r = append(r,
			fmt.Sprintf("allow+in:a+src:%v+dst:%v+proto:%s+dport:%d", s.Private, t.Public, proto, Service),
			fmt.Sprintf("allow+in:b+src:%v+dst:%v+proto:%s+dport:%d", t.Public, s.Server, proto, Service))
	}
	return r
}

func (s *Site) other() Site {
	all := Sites()
	if s.Name == all[0].Name {
		return all[1]
	}
	return all[0]
}

// Tasks returns the network tasks of a site's board, by name, in the form that a deployment in YAML has: fw,
// nat and aes. keys is the name of a file with Keys.
func (s *Site) Tasks(keys string, rules []string) map[string]string {
	t := s.other()
	return map[string]string{
		"fw":  fmt.Sprintf("{kind: firewall, args: {rules: %q}}", strings.Join(rules, ";")),
		"nat": fmt.Sprintf("{kind: napt, args: {public: %v, private: %v}}", s.Shared, s.Private),
		"aes": fmt.Sprintf("{kind: aead, args: {keys: %q, mode: tunnel, local: %v, remote: %v, out: %#x@%v, in: %#x@%v}}",
			keys, s.Tunnel, t.Tunnel, s.SPI, t.Public, t.SPI, t.Public),
	}
}

// Net is both sites, the place for the boards, and the wire between the boards.
type Net struct {
	Sites [2]Site
	// Boards is the namespace of both boards' interfaces.
	Boards *topo.Space
	// Wire is a namespace with a bridge between Tap[0], which leads to the first site's board, and Tap[1];
	// nil if the wire is a link.
	Wire *topo.Space
	Tap  [2]string
}

// New makes the network. With tap the frames on the wire cross a bridge, where they can be captured. Without
// root the error wraps port.ErrNotSupported. After an error nothing is left behind.
func New(tap bool) (_ *Net, err error) {
	n := &Net{Sites: Sites(), Tap: [2]string{"a-tap", "b-tap"}}
	defer func() {
		if err != nil {
			n.Close()
		}
	}()
	if n.Boards, err = topo.NewSpace(true); err != nil {
		return nil, err
	}
	for i := range n.Sites {
		if n.Sites[i].Hosts, err = topo.NewSpace(false); err != nil {
			return nil, err
		}
	}
	for i := range n.Sites {
		s := &n.Sites[i]
		if err := topo.Veth(n.Boards, s.Inline[0], s.Hosts, Interface); err != nil {
			return nil, err
		}
		if err := s.Hosts.Do(s.configure); err != nil {
			return nil, fmt.Errorf("site %s: %w", s.Name, err)
		}
	}
	if !tap {
		return n, topo.Veth(n.Boards, n.Sites[0].Inline[1], n.Boards, n.Sites[1].Inline[1])
	}
	if n.Wire, err = topo.NewSpace(true); err != nil {
		return nil, err
	}
	for i := range n.Sites {
		if err := topo.Veth(n.Boards, n.Sites[i].Inline[1], n.Wire, n.Tap[i]); err != nil {
			return nil, err
		}
	}
	return n, n.Wire.Do(n.bridge)
}

// bridge joins both taps; it runs in the namespace of the wire.
func (n *Net) bridge() error {
	off := false
	br := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br", MTU: WireMTU}, MulticastSnooping: &off}
	if err := netlink.LinkAdd(br); err != nil {
		return err
	}
	for _, name := range n.Tap {
		l, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		if err := netlink.LinkSetMaster(l, br); err != nil {
			return err
		}
	}
	return netlink.LinkSetUp(br)
}

// configure gives the hosts' link its addresses and routes. Neighbours are fixed, so that only what hosts
// send to each other is on the wire.
func (s *Site) configure() error {
	l, err := netlink.LinkByName(Interface)
	if err != nil {
		return err
	}
	if err := netlink.LinkSetDown(l); err != nil {
		return err
	}
	if err := netlink.LinkSetHardwareAddr(l, s.MAC[:]); err != nil {
		return err
	}
	if err := netlink.LinkSetMTU(l, HostMTU); err != nil {
		return err
	}
	if err := topo.LinkUp(Interface); err != nil {
		return err
	}
	for _, a := range []netip.Addr{s.Client, s.Server} {
		if err := netlink.AddrAdd(l, &netlink.Addr{IPNet: network(netip.PrefixFrom(a, 32))}); err != nil {
			return err
		}
	}
	t := s.other()
	for _, p := range []netip.Prefix{t.Public, t.Private} {
		if err := netlink.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Scope: netlink.SCOPE_LINK, Dst: network(p), Src: s.Client.AsSlice()}); err != nil {
			return err
		}
	}
	for _, a := range []netip.Addr{t.Server, t.Shared, t.Client} {
		if err := netlink.NeighSet(&netlink.Neigh{LinkIndex: l.Attrs().Index, Family: unix.AF_INET, State: netlink.NUD_PERMANENT,
			IP: a.AsSlice(), HardwareAddr: t.MAC[:]}); err != nil {
			return err
		}
	}
	return nil
}

func network(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), 32)}
}

// Close removes everything. Processes in the namespaces must have been stopped.
func (n *Net) Close() {
	for _, s := range []*topo.Space{n.Boards, n.Wire, n.Sites[0].Hosts, n.Sites[1].Hosts} {
		if s != nil {
			s.Close()
		}
	}
}
