package napt

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
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

// Kind returns the declaration of the network function "napt".
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
		In:       []string{"a", "b"},
		Out:      []string{"a", "b"},
		Params:   arguments.Params(),
		Counters: counters[:],
		Reasons:  reasons[:],
		Effects: graph.Always(effect.Effects{Reads: effect.Flow | effect.L4Other,
			Writes: effect.Ethernet | effect.Encap | effect.IPAddresses | effect.Ports | effect.L4Other, Drops: true, Answers: true, State: true}),
		Decides: decides,
		New: func(env graph.Env, args graph.Args) (graph.App, error) {
			s, err := parse(args)
			if err != nil {
				return nil, err
			}
			return newApp(s, env), nil
		},
	}
}

// decides implements graph.Kind.Decides: it returns the number of sessions that may be decided.
func decides(args graph.Args) int {
	if s, err := parse(args); err == nil && s.offload {
		return s.sessions
	}
	return 0
}

// Values of filter=.
const (
	byEndpoint = iota
	byAddress
	byPort
)

// Values of others=: what becomes of packets from b to addresses that are not public ones.
const (
	hideOthers = iota
	passOthers
	dropOthers
)

// prefix is a prefix of private addresses, with the address bits masked.
type prefix struct{ addr, mask uint32 }

// settings are the parsed arguments.
type settings struct {
	given    []address     `arg:"public" need:"the public addresses" help:"public addresses, joined by +; needed"`
	ports    span          `arg:"ports" help:"public ports that may be given out"`
	private  []prefix      `arg:"private" help:"private prefixes, joined by +"`
	mac      [6]byte       `arg:"mac" keep:"none" help:"MAC address on the public side"`
	filter   int           `arg:"filter" words:"endpoint address port" help:"who may answer: endpoint, address or port"`
	others   int           `arg:"others" words:"hide pass drop" help:"IPv4 from b to other than public addresses: hide (drop what goes to private addresses, pass the rest), pass or drop"`
	mappings int           `arg:"mappings" range:"1..2^24" help:"private ends that there is room for, about 60 bytes each; with another number all starts anew"`
	sessions int           `arg:"sessions" range:"1..2^24" help:"TCP connections and permissions that there is room for, about 50 bytes each"`
	offload  bool          `arg:"offload" words:"off on" help:"on: frames of open TCP connections, and of UDP flows in both directions, cross in the kernel, where ports and the other functions allow it; off: all come here"`
	perHost  int           `arg:"per-host" range:"1..2^24" keep:"none" help:"mappings of a private address at most"` // 0: no limit
	udpIdle  time.Duration `arg:"udp-idle" range:"1ns.." help:"a UDP mapping is forgotten after so long without a packet of its host"`
	icmpIdle time.Duration `arg:"icmp-idle" range:"1ns.." help:"one of an ICMP query is"`
	tcpIdle  time.Duration `arg:"tcp-idle" range:"1ns.." help:"an open TCP connection is forgotten after so long without a packet"`
	tcpTrans time.Duration `arg:"tcp-trans" range:"1ns.." help:"one that is not open yet, or closing, is"`
	public   []uint32      // those given
}

// same reports whether a state that was made for settings o can be used with s.
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

var arguments = arg.Declare("napt", settings{
	ports:   span{1024, 65535},
	private: []prefix{{10 << 24, 0xFF << 24}, {172<<24 | 16<<16, 0xFFF << 20}, {192<<24 | 168<<16, 0xFFFF << 16}, {100<<24 | 64<<16, 0x3FF << 22}},
	filter:  byAddress, mappings: 65536, sessions: 131072, udpIdle: 5 * time.Minute, icmpIdle: time.Minute, tcpIdle: 124 * time.Minute, tcpTrans: 4 * time.Minute,
})

func parse(args graph.Args) (settings, error) {
	s, r := arguments.Read(args)
	for _, a := range s.given {
		if slices.Contains(s.public, uint32(a)) {
			r.Failf("public=%s: %v is there twice", args["public"], a)
		}
		s.public = append(s.public, uint32(a))
	}
	if len(s.public) > maxPublic {
		r.Failf("public: at most %d addresses", maxPublic)
	}
	return s, r.Err()
}

// address is the IPv4 address of a host, as a number.
type address uint32

// UnmarshalText implements encoding.TextUnmarshaler.
func (a *address) UnmarshalText(text []byte) error {
	x, err := arg.ParseAddr(string(text))
	if err != nil || !x.Is4() || x.IsLinkLocalUnicast() || x == netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
		return errors.New("want the IPv4 address of a host")
	}
	*a = address(number(x))
	return nil
}

func (a address) String() string {
	return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, uint32(a)))).String()
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (p *prefix) UnmarshalText(text []byte) error {
	x, err := netip.ParsePrefix(string(text))
	if err != nil || !x.Addr().Is4() || x != x.Masked() {
		return errors.New("it is no IPv4 prefix without bits behind it")
	}
	*p = prefix{number(x.Addr()), uint32(uint64(0xFFFFFFFF) << (32 - x.Bits()))}
	return nil
}

// MarshalText implements encoding.TextMarshaler.
func (p *prefix) MarshalText() ([]byte, error) {
	return fmt.Appendf(nil, "%v/%d", address(p.addr), bits.OnesCount32(p.mask)), nil
}

// span is a range of ports, from the first to the last.
type span [2]uint16

// UnmarshalText reads two numbers, such as 1024-65535.
func (s *span) UnmarshalText(text []byte) error {
	from, to, _ := strings.Cut(string(text), "-")
	lo, e1 := strconv.ParseUint(from, 10, 16)
	hi, e2 := strconv.ParseUint(to, 10, 16)
	if *s = (span{uint16(lo), uint16(hi)}); e1 != nil || e2 != nil || lo < 1 || hi < lo {
		return errors.New("want two numbers from 1 to 65535, such as 1024-65535")
	}
	return nil
}

// MarshalText implements encoding.TextMarshaler.
func (s *span) MarshalText() ([]byte, error) { return fmt.Appendf(nil, "%d-%d", s[0], s[1]), nil }
