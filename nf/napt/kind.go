package napt

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/quillon/quillon/nf/arg"
	"github.com/quillon/quillon/nf/counter"
	"github.com/quillon/quillon/nf/effect"
	"github.com/quillon/quillon/nf/graph"
)

const (
	reasonOut graph.Reason = iota
	reasonIn
	reasonHairpin
	reasonErrorOut
	reasonErrorIn
	reasonLater
	reasonARP
	reasonNotIP
	reasonIPv6
	reasonNotPrivate
	reasonLocal
	reasonNotOurs
	reasonNotOursDropped
	reasonMalformed
	reasonNoMapping
	reasonNoSession
	reasonFiltered
	reasonExhausted
	reasonHost
	reasonFull
	reasonProtocol
	reasonRoCE
	reasonICMP
	reasonUnrelated
	reasonStray
	numReasons

	// lastRewritten: up to it the frame was changed.
	lastRewritten = reasonARP
)

var reasons = [numReasons]counter.Def{
	reasonOut:            {Name: "outward", Help: "from a private address: got a public one"},
	reasonIn:             {Name: "inward", Help: "to a public address: got the private one"},
	reasonHairpin:        {Name: "hairpin", Help: "from a private address to another by its public one: both translated"},
	reasonErrorOut:       {Name: "error-outward", Help: "an ICMP error from a private address: translated with what it quotes"},
	reasonErrorIn:        {Name: "error-inward", Help: "an ICMP error to a public address: translated with what it quotes"},
	reasonLater:          {Name: "later-fragment", Help: "a fragment of a datagram whose first one was translated: so is it"},
	reasonARP:            {Name: "arp-answered", Help: "an ARP request for a public address: made into the answer (mac=)"},
	reasonNotIP:          {Name: "not-ip", Help: "no IP datagram: passed"},
	reasonIPv6:           {Name: "ipv6", Help: "IPv6: passed"},
	reasonNotPrivate:     {Name: "not-private", Help: "on the private side, and from no private address (private=): passed"},
	reasonLocal:          {Name: "local", Help: "to a multicast, broadcast or link-local address: passed"},
	reasonNotOurs:        {Name: "not-public", Help: "on the public side, and to none of the public addresses: passed (others=)"},
	reasonNotOursDropped: {Name: "not-public-dropped", Help: "on the public side, and to none of the public addresses: dropped (others=)"},
	reasonMalformed:      {Name: "malformed", Help: "a header contradicts itself or is cut short, or there are more than two VLAN tags: dropped"},
	reasonNoMapping:      {Name: "no-mapping", Help: "to a public port that is nobody's, or TCP in the middle of a connection that is not known: dropped"},
	reasonNoSession:      {Name: "no-session", Help: "TCP in the middle of a connection that this end does not have: dropped"},
	reasonFiltered:       {Name: "filtered", Help: "from who was not sent to (filter=), or on the public side from a public address: dropped"},
	reasonExhausted:      {Name: "ports-exhausted", Help: "no public port is free: dropped"},
	reasonHost:           {Name: "host-limit", Help: "its private address has too many mappings (per-host=): dropped"},
	reasonFull:           {Name: "full", Help: "no room for another mapping or session: dropped"},
	reasonProtocol:       {Name: "other-protocol", Help: "of a protocol without ports: dropped"},
	reasonRoCE:           {Name: "roce", Help: "RoCEv2, whose ICRC covers addresses and ports: dropped"},
	reasonICMP:           {Name: "other-icmp", Help: "ICMP other than queries and errors, as a redirect: dropped"},
	reasonUnrelated:      {Name: "unrelated", Help: "an ICMP error that quotes nothing that was translated: dropped"},
	reasonStray:          {Name: "stray-fragment", Help: "a fragment of a datagram whose first one has not passed: dropped"},
}

const (
	ctrNew counter.ID = iota
	ctrOver
	ctrMappings
	numCounters
)

var counters = [numCounters]counter.Def{
	ctrNew:      {Name: "mappings-made", Help: "private ends that got a public port"},
	ctrOver:     {Name: "timed-out", Help: "mappings forgotten because their time was over"},
	ctrMappings: {Name: "mappings", Help: "mappings that are there, when last looked at"},
}

// Kind declares napt.
func Kind() *graph.Kind {
	return &graph.Kind{
		Name:    "napt",
		Summary: "shares public IPv4 addresses among private hosts (NAPT)",
		Doc: `Port a is the private side, port b the public one. TCP, UDP and ICMP queries
from private addresses (private=) leave with a public address and port; what comes
to these goes back to who has them. Two private hosts reach each other by their
public ends, too.

A private end has one public end, whoever it talks to (endpoint-independent mapping,
RFC 4787), with its own port where that is free. Who may answer is what filter= says:
endpoint (anyone), address (hosts that were sent to) or port (host and port).

Who sends to a private address from port b does not get there (others=): what hosts
behind port a have of their own, in private=, is not to be reached around the
translation. Nothing bounds what of the ports one host uses up, as with Linux,
OpenWrt and Cisco IOS, unless per-host= does; where hosts do not trust each
other, set it (RFC 6888 REQ-4).

What a private host sends and cannot be translated is dropped: another protocol than
TCP, UDP and ICMP, RoCEv2, fragments without their first one. IPv6 passes.

With mac=, frames to b come from that address, and ARP requests for the public
addresses are answered with it. Without, whoever routes to them needs an entry with
any MAC behind port a. While quillon is not running, or too slow, nothing passes.

  quillon run --inline eth1,eth2 --nf napt,public=198.51.100.1,mac=02:00:00:00:00:01
  quillon run --inline eth1,eth2 --nf napt,public=198.51.100.1+198.51.100.2,filter=endpoint`,
		In:  []string{"a", "b"},
		Out: []string{"a", "b"},
		Params: []graph.Param{
			{Name: "public", Help: "public addresses, joined by +; needed"},
			{Name: "ports", Default: "1024-65535", Help: "public ports that may be given out"},
			{Name: "private", Default: "10.0.0.0/8+172.16.0.0/12+192.168.0.0/16+100.64.0.0/10", Help: "private prefixes, joined by +"},
			{Name: "mac", Default: "none", Help: "MAC address on the public side"},
			{Name: "filter", Default: "address", Help: "who may answer: endpoint, address or port"},
			{Name: "others", Default: "hide", Help: "IPv4 from b to other than public addresses: hide (drop what goes to private addresses, pass the rest), pass or drop"},
			{Name: "mappings", Default: "65536", Help: "private ends that there is room for, about 60 bytes each; with another number all starts anew"},
			{Name: "sessions", Default: "131072", Help: "TCP connections and permissions that there is room for, about 50 bytes each"},
			{Name: "per-host", Default: "none", Help: "mappings of a private address at most"},
			{Name: "udp-idle", Default: "5m", Help: "a UDP mapping is forgotten after so long without a packet of its host"},
			{Name: "icmp-idle", Default: "1m", Help: "one of an ICMP query is"},
			{Name: "tcp-idle", Default: "2h4m", Help: "an open TCP connection is forgotten after so long without a packet"},
			{Name: "tcp-trans", Default: "4m", Help: "one that is not open yet, or closing, is"},
		},
		Counters: counters[:],
		Reasons:  reasons[:],
		Effects: graph.Always(effect.Effects{Reads: effect.Flow | effect.L4Other,
			Writes: effect.Ethernet | effect.Encap | effect.IPAddresses | effect.Ports | effect.L4Other, Drops: true, Answers: true, State: true}),
		New: func(env graph.Env, args graph.Args) (graph.App, error) {
			s, err := parse(args)
			if err != nil {
				return nil, err
			}
			return newApp(s, env), nil
		},
	}
}

// Filtering.
const (
	byEndpoint = iota
	byAddress
	byPort
)

// What becomes of what comes to others than the public addresses.
const (
	hideOthers = iota
	passOthers
	dropOthers
)

// prefix of private addresses.
type prefix struct{ addr, mask uint32 }

// settings are the parsed arguments.
type settings struct {
	public             []uint32
	ports              [2]uint16
	private            []prefix
	mac                [6]byte
	filter             int
	others             int
	mappings, sessions int
	perHost            int // 0: no limit
	udpIdle, icmpIdle  time.Duration
	tcpIdle, tcpTrans  time.Duration
}

// same reports whether a state made for o does for s.
func (s *settings) same(o *settings) bool {
	return slices.Equal(s.public, o.public) && s.ports == o.ports && s.mappings == o.mappings && s.sessions == o.sessions
}

func (a *app) isPrivate(addr uint32) bool {
	for _, p := range a.private {
		if addr&p.mask == p.addr {
			return true
		}
	}
	return false
}

func addrOf(v uint32) netip.Addr { return netip.AddrFrom4([4]byte(be.AppendUint32(nil, v))) }

func number(a netip.Addr) uint32 {
	b := a.As4()
	return be.Uint32(b[:])
}

const maxPublic = 64

// longest is the longest time that may be set.
const longest = arg.Longest

func parse(args graph.Args) (settings, error) {
	s := settings{ports: [2]uint16{1024, 65535}, filter: byAddress, mappings: 65536, sessions: 131072,
		udpIdle: 5 * time.Minute, icmpIdle: time.Minute, tcpIdle: 124 * time.Minute, tcpTrans: 4 * time.Minute}
	all := graph.Args{"private": "10.0.0.0/8+172.16.0.0/12+192.168.0.0/16+100.64.0.0/10"}
	for name, v := range args {
		all[name] = v
	}
	r := arg.Read("napt", all)
	r.Each("public", func(x string) error {
		a, err := arg.ParseAddr(x)
		switch {
		case err != nil || !a.Is4() || a.IsLinkLocalUnicast() || a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
			return errors.New("want the IPv4 address of a host")
		case slices.Contains(s.public, number(a)):
			return errors.New("it is there twice")
		case len(s.public) == maxPublic:
			return fmt.Errorf("at most %d addresses", maxPublic)
		}
		s.public = append(s.public, number(a))
		return nil
	})
	r.Func("ports", func(v string) error {
		from, to, _ := strings.Cut(v, "-")
		lo, e1 := strconv.ParseUint(from, 10, 16)
		hi, e2 := strconv.ParseUint(to, 10, 16)
		if s.ports = [2]uint16{uint16(lo), uint16(hi)}; e1 != nil || e2 != nil || lo < 1 || hi < lo {
			return errors.New("want two numbers from 1 to 65535, such as 1024-65535")
		}
		return nil
	})
	r.Each("private", func(x string) error {
		p, err := netip.ParsePrefix(x)
		if err != nil || !p.Addr().Is4() || p != p.Masked() {
			return errors.New("it is no IPv4 prefix without bits behind it")
		}
		s.private = append(s.private, prefix{number(p.Addr()), uint32(uint64(0xFFFFFFFF) << (32 - p.Bits()))})
		return nil
	})
	r.MAC("mac", &s.mac, "none")
	arg.Choice(r, "filter", &s.filter, "endpoint", "address", "port")
	arg.Choice(r, "others", &s.others, "hide", "pass", "drop")
	arg.Number(r, "mappings", &s.mappings, 1, 1<<24)
	arg.Number(r, "sessions", &s.sessions, 1, 1<<24)
	arg.Number(r, "per-host", &s.perHost, 1, 1<<24, "none")
	r.Duration("udp-idle", &s.udpIdle, 1, longest)
	r.Duration("icmp-idle", &s.icmpIdle, 1, longest)
	r.Duration("tcp-idle", &s.tcpIdle, 1, longest)
	r.Duration("tcp-trans", &s.tcpTrans, 1, longest)
	r.Need("public", "the public addresses")
	return s, r.Err()
}
