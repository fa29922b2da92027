package controller

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"

	"github.com/quillon/quillon/controlplane/ctl"
	"github.com/quillon/quillon/controlplane/p4info"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/value"
	"github.com/quillon/quillon/nf/yaml"
)

// Routes holds the configuration of each router, by the name of its device. Its file is YAML:
//
//	s1:
//	  interfaces:
//	    - {port: 1, mac: 02:00:00:00:01:01, address: 10.0.1.1/24}
//	    - {port: 2, mac: 02:00:00:00:01:02, address: 10.0.2.1/24}
//	  routes:
//	    - {prefix: 10.9.0.0/16, via: 10.0.2.2}
//	    - {prefix: 0.0.0.0/0, via: [10.0.1.254, 10.0.2.254]}
//	  neighbors:
//	    - {address: 10.0.2.2, mac: 02:00:00:00:02:02}
type Routes map[string]*RouterConfig

// RouterConfig is the configuration of one router. The router finds neighbours that are not in Neighbors by
// ARP.
type RouterConfig struct {
	Interfaces []Interface
	Routes     []Route
	Neighbors  map[netip.Addr]MAC
}

// MAC is an Ethernet address.
type MAC [6]byte

func (m MAC) String() string { return net.HardwareAddr(m[:]).String() }

// Interface is a port of the router with its address.
type Interface struct {
	Port    uint32
	MAC     MAC
	Address netip.Prefix // the address, with the length of its network
}

// Route sends packets to a prefix through the neighbours in Via. With several neighbours, all packets of a flow
// take the same one.
type Route struct {
	Prefix netip.Prefix
	Via    []netip.Addr
}

// ReadRoutes reads a file of Routes.
func ReadRoutes(file string) (Routes, error) {
	src, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return parseRoutes(file, src)
}

func parseRoutes(file string, src []byte) (Routes, error) {
	root, err := yaml.Tree(file, src)
	if err != nil {
		return nil, err
	}
	if err := root.Want(yaml.Mapping, "routes"); err != nil {
		return nil, err
	}
	all := Routes{}
	for i, k := range root.Keys {
		c := &RouterConfig{Neighbors: map[netip.Addr]MAC{}}
		err := root.List[i].Fields("router "+k.Text, map[string]func(*yaml.Node) error{
			"interfaces": yaml.Each(c.readInterface),
			"routes":     yaml.Each(c.readRoute),
			"neighbors":  yaml.Each(c.readNeighbor),
		})
		if err != nil {
			return nil, err
		}
		if len(c.Interfaces) == 0 {
			return nil, k.Errorf("router %s: interfaces are missing", k.Text)
		}
		for _, r := range c.Routes {
			if slices.ContainsFunc(c.Interfaces, func(i Interface) bool {
				return r.Prefix == i.Address.Masked() || r.Prefix.IsSingleIP() && i.Address.Contains(r.Prefix.Addr())
			}) {
				return nil, k.Errorf("router %s: route %s: that is an interface's own network", k.Text, r.Prefix)
			}
			for _, v := range r.Via {
				if c.interfaceOf(v) == nil {
					return nil, k.Errorf("router %s: route %s: %s is in no interface's network", k.Text, r.Prefix, v)
				}
			}
		}
		for a := range c.Neighbors {
			if c.interfaceOf(a) == nil {
				return nil, k.Errorf("router %s: neighbor %s is in no interface's network", k.Text, a)
			}
		}
		all[k.Text] = c
	}
	return all, nil
}

func macInto(m *MAC) func(*yaml.Node) error {
	return func(n *yaml.Node) error {
		a, err := net.ParseMAC(n.Text)
		if err != nil || len(a) != 6 || a[0]&1 != 0 {
			return fmt.Errorf("%q: want a MAC address of one station, as 02:00:00:00:00:01", n.Text)
		}
		copy(m[:], a)
		return nil
	}
}

func addrInto(a *netip.Addr) func(*yaml.Node) error {
	return func(n *yaml.Node) (err error) {
		if *a, err = netip.ParseAddr(n.Text); err != nil || !a.Is4() {
			return fmt.Errorf("%q: want an IPv4 address", n.Text)
		}
		return nil
	}
}

func prefixInto(p *netip.Prefix) func(*yaml.Node) error {
	return func(n *yaml.Node) (err error) {
		if *p, err = netip.ParsePrefix(n.Text); err != nil || !p.Addr().Is4() {
			return fmt.Errorf("%q: want an IPv4 prefix, as in 10.0.0.0/8", n.Text)
		}
		return nil
	}
}

func (c *RouterConfig) readInterface(n *yaml.Node) error {
	var i Interface
	err := n.Fields("interface", map[string]func(*yaml.Node) error{"port": yaml.Int(&i.Port), "mac": macInto(&i.MAC), "address": prefixInto(&i.Address)})
	if err != nil {
		return err
	}
	if i.MAC == (MAC{}) || !i.Address.IsValid() {
		return n.Errorf("interface: port, mac and address are wanted")
	}
	if o := c.interfaceOf(i.Address.Addr()); o != nil || slices.ContainsFunc(c.Interfaces, func(o Interface) bool { return i.Address.Contains(o.Address.Addr()) }) {
		return n.Errorf("interface: %s is in another interface's network", i.Address)
	}
	c.Interfaces = append(c.Interfaces, i)
	return nil
}

func (c *RouterConfig) readRoute(n *yaml.Node) error {
	var r Route
	err := n.Fields("route", map[string]func(*yaml.Node) error{
		"prefix": prefixInto(&r.Prefix),
		"via": func(n *yaml.Node) error {
			add := func(n *yaml.Node) error {
				var a netip.Addr
				err := addrInto(&a)(n)
				r.Via = append(r.Via, a)
				return err
			}
			if n.Kind == yaml.Sequence {
				return yaml.Each(add)(n)
			}
			return add(n)
		},
	})
	if err != nil {
		return err
	}
	if !r.Prefix.IsValid() || len(r.Via) == 0 {
		return n.Errorf("route: prefix and via are wanted")
	}
	if r.Prefix != r.Prefix.Masked() {
		return n.Errorf("route: %s has bits behind its prefix: want %s", r.Prefix, r.Prefix.Masked())
	}
	if slices.ContainsFunc(c.Routes, func(o Route) bool { return o.Prefix == r.Prefix }) {
		return n.Errorf("route: %s is there twice", r.Prefix)
	}
	c.Routes = append(c.Routes, r)
	return nil
}

func (c *RouterConfig) readNeighbor(n *yaml.Node) error {
	var a netip.Addr
	var m MAC
	if err := n.Fields("neighbor", map[string]func(*yaml.Node) error{"address": addrInto(&a), "mac": macInto(&m)}); err != nil {
		return err
	}
	if !a.IsValid() || m == (MAC{}) {
		return n.Errorf("neighbor: address and mac are wanted")
	}
	c.Neighbors[a] = m
	return nil
}

// interfaceOf returns the interface whose network contains a, or nil if none does.
func (c *RouterConfig) interfaceOf(a netip.Addr) *Interface {
	for i := range c.Interfaces {
		if c.Interfaces[i].Address.Contains(a) {
			return &c.Interfaces[i]
		}
	}
	return nil
}

// own reports whether a is an address of the router.
func (c *RouterConfig) own(a netip.Addr) bool {
	return slices.ContainsFunc(c.Interfaces, func(i Interface) bool { return i.Address.Addr() == a })
}

// lookup returns the neighbour to which a packet for a is sent. ok is false if no route leads to a.
func (c *RouterConfig) lookup(a netip.Addr) (netip.Addr, bool) {
	if c.interfaceOf(a) != nil {
		return a, true
	}
	var best *Route
	for i := range c.Routes {
		if r := &c.Routes[i]; r.Prefix.Contains(a) && (best == nil || r.Prefix.Bits() > best.Prefix.Bits()) {
			best = r
		}
	}
	if best == nil {
		return netip.Addr{}, false
	}
	return best.Via[0], true
}

// Router turns a device into a router. The device runs p4src's ipv4_router, or a program with the same tables
// (router_mac, port_mac, ipv4_lpm, ecmp, next_hop) and packet headers. Router answers ARP and echo requests for
// its own addresses, finds neighbours by ARP and checks from time to time that they still answer, and keeps a
// few frames for a neighbour until it has answered.
type Router struct {
	Config *RouterConfig
	// Report, if it is not nil, gets a line of text for each change of a neighbour.
	Report func(string)

	info   *p4info.Info
	tables map[string]*p4info.Table
	order  []*p4info.Table // what is referred to is before what refers to it

	have      map[string]*p4v1.Entity // what the device holds of the tables
	neighbors map[netip.Addr]*neighbor
	now       int // seconds, by Tick
	budget    int // ICMP errors that may be sent before the next Tick
}

// neighbor is a station in one of the router's networks.
type neighbor struct {
	mac    MAC
	known  bool
	static bool
	id     uint16   // of its next hop, once known
	asked  int      // requests without an answer
	last   int      // when it was asked, or answered
	frames [][]byte // that wait for it
}

// Bounds of the router.
const (
	maxNeighbors  = 4000
	framesToKeep  = 3
	requests      = 3   // to a neighbour, a second each, before it is given up
	reachable     = 60  // seconds before a neighbour is asked after
	errorsASecond = 100 // ICMP errors
)

// Claim implements ctl.App.
func (r *Router) Claim(d *ctl.Device) error {
	r.info = d.Info
	r.tables, r.order = map[string]*p4info.Table{}, nil
	for _, name := range []string{"router_mac", "port_mac", "next_hop", "ecmp", "ipv4_lpm"} {
		t, err := p4info.ByName(d.Info.Tables, "table", name)
		if err != nil {
			return fmt.Errorf("%s: the program is no router: %w", d.Target, err)
		}
		r.tables[name], r.order = t, append(r.order, t)
		if err := d.Claim(t); err != nil {
			return err
		}
	}
	if d.Info.PacketIn == nil || d.Info.PacketOut == nil {
		return fmt.Errorf("%s: the program has no packets to and from the controller", d.Target)
	}
	_, err := r.entities()
	return err
}

// entities returns all entries that the tables should hold, by p4info.Key.
func (r *Router) entities() (map[string]*p4v1.Entity, error) {
	out := map[string]*p4v1.Entity{}
	var failed error
	add := func(table string, match [][2]string, action string, params ...[2]string) {
		e, err := ctl.ParseEntity(r.info, p4v1.Update_INSERT, ctl.EntryText(table, match, 0, false, action, params))
		if err != nil && failed == nil {
			failed = err
		}
		if err == nil {
			out[p4info.Key(e)] = e
		}
	}
	name := func(t string) string { return r.tables[t].Name }
	for _, i := range r.Config.Interfaces {
		port := fmt.Sprint(i.Port)
		add(name("router_mac"), [][2]string{{"ingress_port", port}, {"dst", i.MAC.String()}}, "NoAction")
		add(name("port_mac"), [][2]string{{"egress_port", port}}, "set_source", [2]string{"src", i.MAC.String()})
		add(name("ipv4_lpm"), [][2]string{{"dst", i.Address.Masked().String()}}, "punt")
		add(name("ipv4_lpm"), [][2]string{{"dst", i.Address.Addr().String() + "/32"}}, "punt")
	}
	hop := func(n *neighbor) [2]string { return [2]string{"next_hop", fmt.Sprint(n.id)} }
	for a, n := range r.neighbors {
		if i := r.Config.interfaceOf(a); n.known && i != nil {
			add(name("next_hop"), [][2]string{hop(n)}, "forward",
				[2]string{"dst", n.mac.String()}, [2]string{"src", i.MAC.String()}, [2]string{"port", fmt.Sprint(i.Port)})
			add(name("ipv4_lpm"), [][2]string{{"dst", a.String() + "/32"}}, "set_next_hop", hop(n))
		}
	}
	for _, route := range r.Config.Routes {
		match := [][2]string{{"dst", route.Prefix.String()}}
		var hops []*neighbor
		for _, v := range route.Via {
			if n := r.neighbors[v]; n != nil && n.known {
				hops = append(hops, n)
			}
		}
		switch len(hops) {
		case 0: // what comes for it is why the neighbour is asked for
			add(name("ipv4_lpm"), match, "punt")
		case 1:
			add(name("ipv4_lpm"), match, "set_next_hop", hop(hops[0]))
		default:
			e, err := r.group(route.Prefix, hops)
			if err != nil {
				return nil, err
			}
			out[p4info.Key(e)] = e
			add(name("ipv4_lpm"), match, "set_group")
		}
	}
	return out, failed
}

// group returns the entry of a prefix with several next hops.
func (r *Router) group(p netip.Prefix, hops []*neighbor) (*p4v1.Entity, error) {
	var choices []string
	for _, n := range hops {
		choices = append(choices, fmt.Sprintf("{action: choose, params: {next_hop: %d}}", n.id))
	}
	text := fmt.Sprintf("{table: %s, match: {dst: %s}, actions: [%s]}", r.tables["ecmp"].Name, p, strings.Join(choices, ", "))
	return ctl.ParseEntity(r.info, p4v1.Update_INSERT, text)
}

// Begin implements ctl.App. It finds the neighbours that were known before in the entries of the tables.
func (r *Router) Begin(ctx context.Context, s *ctl.Session) error {
	r.have, r.neighbors, r.budget = map[string]*p4v1.Entity{}, map[netip.Addr]*neighbor{}, errorsASecond
	err := s.Entries(ctx, r.info, func(e *p4v1.Entity) error {
		r.have[p4info.Key(e)] = e
		return nil
	}, r.order...)
	if err != nil {
		return err
	}
	for a, m := range r.Config.Neighbors {
		r.neighbors[a] = &neighbor{mac: m, known: true, static: true}
	}
	r.takeOver()
	for _, n := range r.neighbors {
		if n.known && n.id == 0 {
			n.id = r.freeID()
		}
	}
	for _, route := range r.Config.Routes {
		for _, v := range route.Via {
			if r.neighbors[v] == nil {
				r.ask(s, v)
			}
		}
	}
	return r.update(ctx, s)
}

// takeOver adds a neighbour for each route to a single address whose next hop leaves by the port of the
// address's network.
func (r *Router) takeOver() {
	type target struct {
		mac  MAC
		port uint32
	}
	hops := map[uint16]target{}
	for _, e := range r.have {
		t := e.GetTableEntry()
		if p := t.Action.GetAction().GetParams(); t.TableId == r.tables["next_hop"].ID && len(p) == 3 {
			var x target
			copy(x.mac[6-len(p[0].Value):], p[0].Value)
			x.port = p4info.PortNumber(p[2].Value)
			hops[uint16(p4info.PortNumber(t.Match[0].GetExact().GetValue()))] = x
		}
	}
	for _, e := range r.have {
		t := e.GetTableEntry()
		if t.TableId != r.tables["ipv4_lpm"].ID || len(t.Match) != 1 || t.Match[0].GetLpm().GetPrefixLen() != 32 {
			continue
		}
		p := t.Action.GetAction().GetParams()
		if len(p) != 1 {
			continue
		}
		var b [4]byte
		v := t.Match[0].GetLpm().GetValue()
		copy(b[4-len(v):], v)
		a := netip.AddrFrom4(b)
		id := uint16(p4info.PortNumber(p[0].Value))
		x, ok := hops[id]
		i := r.Config.interfaceOf(a)
		if !ok || i == nil || i.Port != x.port || id == 0 {
			continue
		}
		n := r.neighbors[a]
		if n == nil {
			n = &neighbor{mac: x.mac, known: true, last: r.now - reachable} // to be asked after soon
			r.neighbors[a] = n
		}
		if !slices.ContainsFunc(r.known(), func(o *neighbor) bool { return o != n && o.id == id }) {
			n.id = id
		}
	}
}

func (r *Router) known() []*neighbor {
	var out []*neighbor
	for _, n := range r.neighbors {
		if n.known {
			out = append(out, n)
		}
	}
	return out
}

// freeID returns an id that no next hop has.
func (r *Router) freeID() uint16 {
	used := map[uint16]bool{}
	for _, n := range r.known() {
		used[n.id] = true
	}
	for id := uint16(1); ; id++ {
		if !used[id] {
			return id
		}
	}
}

// update writes the tables so that they hold what entities returns.
func (r *Router) update(ctx context.Context, s *ctl.Session) error {
	want, err := r.entities()
	if err != nil {
		return err
	}
	if err := s.Replace(ctx, r.info, r.have, want, r.order...); err != nil {
		return err
	}
	r.have = want
	return nil
}

// Reasons in the packet_in header of p4src's ipv4_router.
const (
	reasonNoTTL = 4
	reasonToCPU = 5
)

// Handle implements ctl.App.
func (r *Router) Handle(ctx context.Context, s *ctl.Session, messages []*p4v1.StreamMessageResponse) error {
	changed := false
	for _, m := range messages {
		p := m.GetPacket()
		if p == nil {
			continue
		}
		var port, reason uint32
		for _, v := range p.Metadata {
			if f := p4info.FieldByID(r.info.PacketIn.Fields, v.MetadataId); f != nil {
				switch f.Name {
				case "ingress_port":
					port = p4info.PortNumber(v.Value)
				case "reason":
					reason = p4info.PortNumber(v.Value)
				}
			}
		}
		frame := p.Payload
		if len(frame) < 14 {
			continue
		}
		switch binary.BigEndian.Uint16(frame[12:]) {
		case 0x0806:
			changed = r.arp(s, port, frame) || changed
		case 0x0800:
			r.ipv4(s, port, reason, frame)
		}
	}
	if changed {
		return r.update(ctx, s)
	}
	return nil
}

// Tick implements ctl.App. It repeats ARP requests without an answer, and asks neighbours that have been silent
// for a while.
func (r *Router) Tick(ctx context.Context, s *ctl.Session) error {
	r.now++
	r.budget = errorsASecond
	changed := false
	for a, n := range r.neighbors {
		switch {
		case n.static:
		case n.known && n.asked == 0 && r.now-n.last < reachable:
		case n.asked < requests:
			n.asked++
			r.request(s, a, n)
		case r.wanted(a): // a route's: for ever, but less often
			changed = changed || n.known
			r.lost(a, n)
			if r.now%10 == 0 {
				r.request(s, a, n)
			}
		default:
			changed = changed || n.known
			r.lost(a, n)
			delete(r.neighbors, a)
		}
	}
	if changed {
		return r.update(ctx, s)
	}
	return nil
}

// wanted reports whether a route leads through a.
func (r *Router) wanted(a netip.Addr) bool {
	return slices.ContainsFunc(r.Config.Routes, func(x Route) bool { return slices.Contains(x.Via, a) })
}

func (r *Router) lost(a netip.Addr, n *neighbor) {
	if n.known && r.Report != nil {
		r.Report(fmt.Sprintf("%s does not answer any more", a))
	}
	n.known, n.frames, n.id = false, nil, 0
}

// ask starts to look for a neighbour, and returns it; it returns nil if the router has maxNeighbors already.
func (r *Router) ask(s *ctl.Session, a netip.Addr) *neighbor {
	n := r.neighbors[a]
	if n != nil {
		return n
	}
	if len(r.neighbors) >= maxNeighbors {
		return nil
	}
	n = &neighbor{asked: 1}
	r.neighbors[a] = n
	r.request(s, a, n)
	return n
}

// arp handles an ARP frame. changed is true if a neighbour is new or has another MAC address.
func (r *Router) arp(s *ctl.Session, port uint32, frame []byte) (changed bool) {
	b := frame[14:]
	if len(b) < 28 || binary.BigEndian.Uint64(b)>>16 != 0x000108000604 {
		return false
	}
	op := binary.BigEndian.Uint16(b[6:])
	var sender MAC
	copy(sender[:], b[8:])
	from, to := netip.AddrFrom4([4]byte(b[14:18])), netip.AddrFrom4([4]byte(b[24:28]))
	i := r.Config.interfaceOf(from)
	if i == nil || i.Port != port || sender[0]&1 != 0 || sender == (MAC{}) || r.Config.own(from) {
		return false
	}
	n := r.neighbors[from]
	if n == nil && to == i.Address.Addr() && len(r.neighbors) < maxNeighbors {
		n = &neighbor{} // who asks for us will talk to us
		r.neighbors[from] = n
	}
	if n != nil && !n.static {
		n.asked, n.last = 0, r.now
		if !n.known || n.mac != sender {
			if !n.known {
				n.id = r.freeID()
			}
			n.mac, n.known, changed = sender, true, true
			if r.Report != nil {
				r.Report(fmt.Sprintf("%s is at %s, port %d", from, sender, port))
			}
			for _, f := range n.frames {
				r.forward(s, i, n, f)
			}
			n.frames = nil
		}
	}
	if op == 1 && to == i.Address.Addr() {
		r.send(s, port, arpFrame(2, i.MAC, to, sender, from))
	}
	return changed
}

// request sends an ARP request for a neighbour: to its MAC address if that is known, else as a broadcast.
func (r *Router) request(s *ctl.Session, a netip.Addr, n *neighbor) {
	i := r.Config.interfaceOf(a)
	if i == nil {
		return
	}
	n.last = r.now
	f := arpFrame(1, i.MAC, i.Address.Addr(), MAC{}, a)
	if n.known {
		copy(f, n.mac[:])
	} else {
		copy(f, []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
	}
	r.send(s, i.Port, f)
}

// arpFrame returns an Ethernet frame with an ARP message (RFC 826).
func arpFrame(op uint16, from MAC, fromIP netip.Addr, to MAC, toIP netip.Addr) []byte {
	f := make([]byte, 0, 60)
	f = append(f, to[:]...)
	f = append(f, from[:]...)
	f = append(f, 8, 6, 0, 1, 8, 0, 6, 4)
	f = binary.BigEndian.AppendUint16(f, op)
	f = append(f, from[:]...)
	f = append(f, fromIP.AsSlice()...)
	f = append(f, to[:]...)
	f = append(f, toIP.AsSlice()...)
	return f[:60]
}

// ipv4 handles an IPv4 frame that the device gave to the controller. The program has checked that the header is
// complete and its checksum is right.
func (r *Router) ipv4(s *ctl.Session, port, reason uint32, frame []byte) {
	b := frame[14:]
	if len(b) < 20 || b[0]>>4 != 4 {
		return
	}
	header, total := int(b[0]&15)*4, int(binary.BigEndian.Uint16(b[2:]))
	if header < 20 || total < header || total > len(b) {
		return
	}
	b = b[:total] // without the padding
	src, dst := netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20]))
	var in *Interface
	for i := range r.Config.Interfaces {
		if r.Config.Interfaces[i].Port == port {
			in = &r.Config.Interfaces[i]
		}
	}
	if in == nil || src.IsMulticast() || src.IsUnspecified() {
		return
	}
	switch {
	case r.Config.own(dst):
		if b[9] == 1 && len(b) >= header+8 && b[header] == 8 { // echo request
			answer := slices.Clone(b[header:])
			answer[0] = 0
			r.icmp(s, in, frame, dst, src, answer)
		}
	case reason == reasonNoTTL:
		if r.budget == 0 || b[9] == 1 && len(b) > header && b[header] != 8 && b[header] != 0 { // no errors about errors
			return
		}
		r.budget--
		// RFC 792: time exceeded, with the header and 8 bytes of what it carried.
		answer := append([]byte{11, 0, 0, 0, 0, 0, 0, 0}, b[:min(len(b), header+8)]...)
		r.icmp(s, in, frame, in.Address.Addr(), src, answer)
	case reason == reasonToCPU:
		via, ok := r.Config.lookup(dst)
		if !ok {
			return
		}
		n := r.ask(s, via)
		switch {
		case n == nil:
		case n.known: // it was found while this was under way
			r.forward(s, r.Config.interfaceOf(via), n, frame)
		case len(n.frames) < framesToKeep:
			n.frames = append(n.frames, slices.Clone(frame))
		}
	}
}

// icmp sends an ICMP message back to the sender of a frame.
func (r *Router) icmp(s *ctl.Session, in *Interface, frame []byte, from, to netip.Addr, message []byte) {
	f := make([]byte, 0, 14+20+len(message))
	f = append(f, frame[6:12]...)
	f = append(f, in.MAC[:]...)
	f = append(f, 8, 0, 0x45, 0)
	f = binary.BigEndian.AppendUint16(f, uint16(20+len(message)))
	f = append(f, 0, 0, 0, 0, 64, 1, 0, 0)
	f = append(f, from.AsSlice()...)
	f = append(f, to.AsSlice()...)
	binary.BigEndian.PutUint16(f[24:], hdr.Checksum(f[14:34], 0))
	message[2], message[3] = 0, 0
	binary.BigEndian.PutUint16(message[2:], hdr.Checksum(message, 0))
	r.send(s, in.Port, append(f, message...))
}

// forward sends a frame that waited for a neighbour, changed as the device would have changed it.
func (r *Router) forward(s *ctl.Session, out *Interface, n *neighbor, frame []byte) {
	b := frame[14:]
	if out == nil || b[8] <= 1 {
		return
	}
	copy(frame, n.mac[:])
	copy(frame[6:], out.MAC[:])
	b[8]--
	header := b[:int(b[0]&15)*4]
	header[10], header[11] = 0, 0
	binary.BigEndian.PutUint16(header[10:], hdr.Checksum(header, 0))
	r.send(s, out.Port, frame)
}

// send sends a frame out of a port. It ignores the error because the end of the session is noticed elsewhere.
func (r *Router) send(s *ctl.Session, port uint32, frame []byte) {
	p := &p4v1.PacketOut{Payload: frame}
	for _, f := range r.info.PacketOut.Fields {
		v := []byte{0}
		if strings.HasSuffix(f.Name, "port") {
			v = value.Bytes(uint64(port))
		}
		p.Metadata = append(p.Metadata, &p4v1.PacketMetadata{MetadataId: f.ID, Value: v})
	}
	_ = s.Send(&p4v1.StreamMessageRequest{Update: &p4v1.StreamMessageRequest_Packet{Packet: p}})
}
