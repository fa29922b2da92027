package vxlan

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/quillon/quillon/nf/arg"
	"github.com/quillon/quillon/nf/counter"
	"github.com/quillon/quillon/nf/effect"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/mtu"
	"github.com/quillon/quillon/nf/table"
)

// Reasons: why a frame went the way it did.
const (
	reasonEncapsulated graph.Reason = iota
	reasonDecapsulated
	reasonTold
	reasonResolved
	reasonShort
	reasonTagged
	reasonNoVNI
	reasonNotTunnel
	reasonTooBig
	reasonNoRoom
	reasonBadIPChecksum
	reasonFragment
	reasonOtherPeer
	reasonBadLength
	reasonBadChecksum
	reasonNoChecksum
	reasonBadFlags
	reasonUnknownVNI
	reasonInnerTag
	reasonCongested
	numReasons
)

var reasons = [numReasons]counter.Def{
	reasonEncapsulated:  {Name: "encapsulated", Help: "into the tunnel"},
	reasonDecapsulated:  {Name: "decapsulated", Help: "out of the tunnel"},
	reasonTold:          {Name: "told-too-big", Help: "made: an ICMP error that tells the sender of a frame that was too big how long a packet may be"},
	reasonResolved:      {Name: "resolved", Help: "made of its question: the answer to who has local= (ARP, neighbour discovery)"},
	reasonShort:         {Name: "short", Help: "too short for its Ethernet header or VLAN tags (others=)"},
	reasonTagged:        {Name: "tagged", Help: "from a VLAN that is no tenant's, or with a second tag (inner-tags=, others=)"},
	reasonNoVNI:         {Name: "no-vni", Help: "from no tenant's VLAN, and there is no vni= (others=)"},
	reasonNotTunnel:     {Name: "not-tunnel", Help: "on the tunnel's side, and not to its address and port (others=)"},
	reasonTooBig:        {Name: "too-big", Help: "dropped: the datagram would be longer than mtu="},
	reasonNoRoom:        {Name: "no-room", Help: "dropped: the buffer has no room for the outer headers"},
	reasonBadIPChecksum: {Name: "bad-ip-checksum", Help: "dropped: outer IPv4 header checksum is wrong"},
	reasonFragment:      {Name: "fragment", Help: "dropped: a first fragment of a tunnel datagram"},
	reasonOtherPeer:     {Name: "other-peer", Help: "dropped: not from the remote address"},
	reasonBadLength:     {Name: "bad-length", Help: "dropped: UDP length is not what IP says, or the inner frame is no frame"},
	reasonBadChecksum:   {Name: "bad-udp-checksum", Help: "dropped: outer UDP checksum is wrong"},
	reasonNoChecksum:    {Name: "no-udp-checksum", Help: "dropped: no outer UDP checksum over IPv6 (checksum6=)"},
	reasonBadFlags:      {Name: "bad-flags", Help: "dropped: the VXLAN header has no VNI"},
	reasonUnknownVNI:    {Name: "unknown-vni", Help: "dropped: nobody here has this VNI"},
	reasonInnerTag:      {Name: "inner-tag", Help: "dropped: the inner frame is tagged (inner-tags=)"},
	reasonCongested:     {Name: "congested", Help: "dropped: met congestion in the tunnel, and its sender does not know ECN"},
}

const (
	ctrCELost counter.ID = iota
	ctrMSS
	numCounters
)

var counters = [numCounters]counter.Def{
	ctrCELost: {Name: "ce-lost", Help: "frames other than IP that met congestion in the tunnel, and cannot say so"},
	ctrMSS:    {Name: "mss-lowered", Help: "TCP SYNs whose maximum segment size was lowered (mss=)"},
}

// Kind returns the declaration of the network function "vxlan".
func Kind() *graph.Kind {
	return &graph.Kind{
		Name:    "vxlan",
		Summary: "carry Ethernet frames over IP, one VNI for all or one a VLAN (RFC 7348)",
		Doc: `Frames that come in at port a leave by port b in UDP datagrams to the remote
end, and the other way around. There is one remote end; MAC addresses are given,
not asked for. Who asks on the tunnel's side for local=, by ARP or neighbour
discovery, is answered with local-mac; other questions pass, and are answered by
the hosts that have the addresses.

  --nf vxlan,vni=5000,local=10.0.0.1,remote=10.0.0.2,local-mac=02:00:00:00:00:01,remote-mac=02:00:00:00:00:02

A VLAN of tenants= has a VNI of its own: its tag is left out in the tunnel, and
put back behind it. What is none of the tunnel's passes untouched (others=). What
came in by the tunnel is checked: checksums, lengths, sender, flags, VNI.

Nothing is fragmented: give the inner network an MTU of 50 bytes less than mtu=
over IPv4, and 70 less over IPv6. The sender of a longer packet is told so by
ICMP, in the name of the packet's destination (IPv4: if the packet has DF; without
it is dropped and no more); mss=auto has TCP ask for no more than fits.
ECN is that of RFC 6040; the inner TTL stays.

While quillon is not running, or too slow, frames cross as they are: those of port
a are seen behind port b without the tunnel.

Port a is the plain side, port b the tunnel's.`,
		In:       []string{"a", "b"},
		Out:      []string{"a", "b"},
		Params:   arguments.Params(),
		Counters: counters[:],
		Reasons:  reasons[:],
		Describe: describe,
		Tables: []table.Decl{{
			Name: "tenants", Help: "VNIs of VLANs (tenants=)",
			Keys: []table.Field{{Name: "hdr.vlan.vid", Bits: 12, Help: "VLAN on the plain side, 1 to 4094"}},
			Actions: []table.Action{{Name: "to_vni", Scope: table.EntryOnly, Help: "its frames go by this network",
				Params: []table.Field{{Name: "vni", Bits: 24, Help: "network identifier"}}}},
			Size: maxTenants, May: table.Insert | table.Modify | table.Delete,
			Setting: &table.Setting{Arg: "tenants", Of: tenantsOf, Set: setTenants},
		}},
		Note: func(args graph.Args) string {
			s, err := parseArgs(args)
			if err != nil {
				return ""
			}
			return mtu.Note(s.inner(), s.mtu, s.mss)
		},
		Effects: graph.Always(effect.Effects{Reads: effect.AllFields, Writes: effect.AllFields, Drops: true, Answers: true}),
		Decides: decides,
		New: func(_ graph.Env, args graph.Args) (graph.App, error) {
			s, err := parseArgs(args)
			if err != nil {
				return nil, err
			}
			return newApp(s), nil
		},
	}
}

const maxTenants = 4094

// tenant is a VLAN and the VNI of its network.
type tenant struct {
	vid uint16
	vni uint32
}

// Modes of RFC 6040.
const (
	ecnNormal = iota
	ecnCompatibility
)

// settings are the parsed arguments.
type settings struct {
	vni       int32      `arg:"vni" range:"0..2^24-1" keep:"none" help:"network identifier of frames that are of no tenant's VLAN"` // -1: none
	tenants   tenants    `arg:"tenants" default:"none" help:"identifiers of VLANs, as VLAN:VNI+VLAN:VNI, such as 100:5000+200:5001; is the table tenants"`
	local     netip.Addr `arg:"local" need:"both ends' addresses are given" help:"IPv4 or IPv6 address of this end"`
	remote    netip.Addr `arg:"remote" need:"both ends' addresses are given" help:"address of the other end, of the same family"`
	localMAC  [6]byte    `arg:"local-mac" need:"both ends' addresses are given" help:"MAC address of this end"`
	remoteMAC [6]byte    `arg:"remote-mac" need:"both ends' addresses are given" help:"MAC address of the other end, or of the router to it"`
	outerVLAN uint16     `arg:"outer-vlan" range:"1..4094" keep:"none" help:"VLAN of the tunnel's own network; none: sent untagged, and taken with any tags"` // 0: none
	port      uint16     `arg:"udp-port" range:"1..65535" help:"UDP port of both ends"`
	mtu       int        `arg:"mtu" range:"576..65535" help:"bytes of the longest IP datagram on the tunnel's side"`
	mtu.Setting
	ttl        uint8 `arg:"ttl" range:"1..255" help:"TTL or hop limit of the outer header"`
	dscp       int   `arg:"dscp" range:"0..63" keep:"copy" help:"DSCP of the outer header: 0 to 63, or copy that of the inner one"` // -1: copy
	ecn        int   `arg:"ecn" words:"normal compatibility" help:"into the tunnel: normal or compatibility mode of RFC 6040; compatibility where the other end does not follow it"`
	zero6      bool  `arg:"checksum6" words:"full zero" help:"UDP checksum over IPv6: full, or zero (RFC 6935) when the other end is set up for it"`
	keepTags   bool  `arg:"inner-tags" words:"drop keep" help:"tagged frames inside the tunnel: drop (those from a: as others), or keep"`
	dropOthers bool  `arg:"others" words:"pass drop" help:"frames that are none of the tunnel's: pass or drop"`
	mss        mtu.MSS
	offload    bool `arg:"offload" words:"off on" help:"on: frames of flows that other functions let cross in the kernel do so here, too, over IPv4 without outer-vlan=; off: all come here"`
}

// inner returns the length of the longest IP datagram, in an untagged frame, that fits in the tunnel.
func (s *settings) inner() int {
	ip := hdr.IPv4Len
	if s.local.Is6() {
		ip = hdr.IPv6Len
	}
	return s.mtu - ip - hdr.UDPLen - hdr.VXLANLen - hdr.EthernetLen
}

// tenants are VLANs with networks of their own.
type tenants []tenant

// UnmarshalText reads VLAN:VNI+VLAN:VNI, or none.
func (t *tenants) UnmarshalText(text []byte) (err error) {
	*t, err = parseTenants(string(text))
	return err
}

func parseTenants(v string) ([]tenant, error) {
	if v == "none" || v == "" {
		return nil, nil
	}
	var all []tenant
	vlans, vnis := map[uint16]bool{}, map[uint32]bool{}
	for x := range arg.Items(v, "+") {
		l, n, ok := strings.Cut(x, ":")
		vid, err1 := strconv.ParseUint(l, 10, 12)
		vni, err2 := strconv.ParseUint(n, 0, 24)
		if !ok || err1 != nil || err2 != nil || vid == 0 || vid == 4095 {
			return nil, fmt.Errorf("%q is not a VLAN from 1 to 4094, a colon and a VNI of 24 bits", x)
		}
		t := tenant{uint16(vid), uint32(vni)}
		if vlans[t.vid] || vnis[t.vni] {
			return nil, fmt.Errorf("%s: the VLAN or the VNI is there twice", x)
		}
		vlans[t.vid], vnis[t.vni] = true, true
		all = append(all, t)
	}
	return all, nil
}

var arguments = arg.Declare("vxlan", settings{vni: -1, port: hdr.PortVXLAN, mtu: 1500, ttl: 64, dscp: -1, offload: true})

func parseArgs(args graph.Args) (settings, error) {
	s, r := arguments.Read(args)
	room := s.inner()
	if s.keepTags {
		room -= hdr.MaxTags * hdr.VLANLen
	}
	s.mss = s.MSS.Within(room)
	switch {
	case s.local.Is4() != s.remote.Is4():
		r.Failf("local= and remote= are not of the same family")
	case s.local == s.remote:
		r.Failf("local= and remote= are the same")
	case slices.ContainsFunc(s.tenants, func(t tenant) bool { return s.vni == int32(t.vni) }):
		r.Failf("vni=%d is a tenant's, too", s.vni)
	}
	return s, r.Err()
}

// tenantsOf and setTenants turn tenants= into the table, and back.
func tenantsOf(args table.Args) (r table.Rows) {
	all, _ := parseTenants(args["tenants"])
	for _, t := range all {
		r.Entries = append(r.Entries, table.Entry{
			Key: []table.Cond{{V: table.Uint(uint64(t.vid))}}, Call: table.Call{Params: []table.Value{table.Uint(uint64(t.vni))}},
		})
	}
	return r
}

func setTenants(args table.Args, r table.Rows) (table.Args, error) {
	var all []string
	for _, e := range r.Entries {
		all = append(all, fmt.Sprintf("%d:%d", e.Key[0].V.Lo, e.Params[0].Lo))
	}
	v := "none"
	if len(all) > 0 {
		v = strings.Join(all, "+")
	}
	if _, err := parseTenants(v); err != nil {
		return nil, table.Errorf(table.Invalid, "tenants: %v", err)
	}
	return table.Args{"tenants": v}, nil
}

// describe implements graph.Kind.Describe: it returns the text of a trace record.
func describe(_ graph.App, kind uint16, args [4]uint64) string {
	if kind == traceEncapsulate {
		return fmt.Sprintf("to VNI %d, source port %d", args[0], args[1])
	}
	return fmt.Sprintf("from VNI %d, source port %d", args[0], args[1])
}
