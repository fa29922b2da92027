package nsh

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/quillon/quillon/nf/arg"
	"github.com/quillon/quillon/nf/counter"
	"github.com/quillon/quillon/nf/effect"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/match"
	"github.com/quillon/quillon/nf/mtu"
)

// Reasons: why a frame went the way it did.
const (
	reasonEntered graph.Reason = iota
	reasonLeft
	reasonPassed
	reasonShort
	reasonNoNSH
	reasonOnPath
	reasonUnmatched
	reasonNotIP
	reasonOtherPath
	reasonTooBig
	reasonNoRoom
	reasonBadHeader
	reasonBadMDType
	reasonOAM
	reasonNoTTL
	reasonNoIndex
	reasonBadInner
	reasonNextProtocol
	reasonTold
	numReasons
)

const (
	ctrMSS counter.ID = iota
	numCounters
)

var counters = [numCounters]counter.Def{
	ctrMSS: {Name: "mss-lowered", Help: "TCP SYNs whose maximum segment size was lowered (mss=)"},
}

var reasons = [numReasons]counter.Def{
	reasonEntered:      {Name: "entered", Help: "put on the path"},
	reasonLeft:         {Name: "left", Help: "taken off its path"},
	reasonPassed:       {Name: "passed", Help: "passed on along its path, SI or TTL lowered"},
	reasonShort:        {Name: "short", Help: "too short for its Ethernet header or VLAN tags, forwarded"},
	reasonNoNSH:        {Name: "no-nsh", Help: "without NSH where it is expected, forwarded"},
	reasonOnPath:       {Name: "on-path", Help: "from the plain side, and on a path already, forwarded"},
	reasonUnmatched:    {Name: "unmatched", Help: "not of those that enter (match=), forwarded"},
	reasonNotIP:        {Name: "not-ip", Help: "no sound IP header, and next=ip, forwarded"},
	reasonOtherPath:    {Name: "other-path", Help: "on a path that does not end here (exit=), forwarded"},
	reasonTooBig:       {Name: "too-big", Help: "dropped: longer than mtu= with the header"},
	reasonNoRoom:       {Name: "no-room", Help: "dropped: the buffer has no room for the header"},
	reasonBadHeader:    {Name: "bad-header", Help: "dropped: NSH version or length is wrong"},
	reasonBadMDType:    {Name: "bad-md-type", Help: "dropped: no known MD type, or type 1 with another length than 24 bytes"},
	reasonOAM:          {Name: "oam", Help: "dropped: of operations and maintenance (oam=)"},
	reasonNoTTL:        {Name: "no-ttl", Help: "dropped: its TTL has run out"},
	reasonNoIndex:      {Name: "no-index", Help: "dropped: came in with service index 0"},
	reasonBadInner:     {Name: "bad-inner", Help: "dropped: what follows the NSH is not of the next protocol"},
	reasonNextProtocol: {Name: "next-protocol", Help: "dropped at the end of its path: next protocol is not Ethernet, IPv4 or IPv6"},
	reasonTold:         {Name: "told-too-big", Help: "the sender of a frame that was too big is told so by ICMP"},
}

// Roles of RFC 7665.
type role uint8

const (
	edge role = iota
	task
	forwarder
)

// Kind returns the declaration of the network function "nsh".
func Kind() *graph.Kind {
	return &graph.Kind{
		Name:    "nsh",
		Summary: "put frames on a service path, pass them on, take them off (NSH, RFC 8300)",
		Doc: `role=edge: frames from port a that match enter the path and leave by port b;
frames on a path that come in at b are taken off it and leave by a.

  --nf nsh,spi=7,si=3,dst=02:00:00:00:00:22,src=02:00:00:00:00:fe,match=proto:17+dport:4791

role=task: lowers the service index of frames on a path, in both directions.
role=forwarder: lowers their TTL, and gives them the next hop's MAC addresses.

  --nf nsh,role=task

A frame that comes in with service index 0 is dropped: a path's first index is
at least one more than it has tasks. What is not on a path, or does not match,
passes untouched.

The header makes frames 22 bytes longer, with next=ip 8 bytes. The sender of a
packet that no longer fits (mtu=) is told so by ICMP, and how long it may be (IPv4
without DF: it is dropped and no more); mss=auto has TCP ask for no more than fits.

At an edge port a is the plain side, port b the path's.`,
		In:       []string{"a", "b"},
		Out:      []string{"a", "b"},
		Params:   arguments.Params(),
		Counters: counters[:],
		Reasons:  reasons[:],
		Describe: describe,
		Note: func(args graph.Args) string {
			s, err := parseArgs(args)
			if err != nil || s.role != edge || s.match.None() {
				return ""
			}
			note := mtu.Note(s.inner(0), s.mtu, s.mss)
			if !s.match.All() {
				note = "of those that match=, " + note
			}
			return note
		},
		Effects: graph.Always(effect.Effects{Reads: effect.AllFields, Writes: effect.AllFields, Drops: true, Answers: true}),
		New: func(_ graph.Env, args graph.Args) (graph.App, error) {
			s, err := parseArgs(args)
			if err != nil {
				return nil, err
			}
			return &app{s: s}, nil
		},
	}
}

// settings are the parsed arguments.
type settings struct {
	role   role        `arg:"role" words:"edge task forwarder" help:"edge, task or forwarder"`
	spi    uint32      `arg:"spi" range:"0..2^24-1" default:"-" help:"edge: service path identifier of frames that enter; not needed with match=none"`
	si     uint8       `arg:"si" range:"1..255" help:"edge: their service index"`
	ttl    uint8       `arg:"ttl" range:"1..63" help:"edge: their TTL"`
	nextIP bool        `arg:"next" words:"ethernet ip" help:"edge: ethernet carries whole frames behind an Ethernet header of their own; ip puts the NSH in front of the IP header"`
	dst    [6]byte     `arg:"dst" own:"true" help:"outer destination MAC address; needed to enter with next=ethernet, otherwise left as it is"` // may be a group's
	src    [6]byte     `arg:"src" help:"outer source MAC address; as dst"`
	match  match.Match `arg:"match" help:"edge: frames that enter: all, none, or terms that must all hold, of vlan, type, proto, src, dst, sport, dport, vni, qpn: dst:10.0.0.0/8+proto:6+dport:80-90"`
	exit   exit        `arg:"exit" default:"any" help:"edge: paths that end here: any, none, SPI or SPI:SI"`
	mtu    int         `arg:"mtu" range:"68..65535" help:"edge: most bytes behind the outer Ethernet header"`
	mtu.Setting
	passOAM bool `arg:"oam" words:"drop pass" help:"packets of operations and maintenance: drop, or pass them as others"`

	mss            mtu.MSS
	hasDst, hasSrc bool
}

// inner returns the length of the longest IP datagram that fits on the path, in a frame with so many VLAN tags.
func (s *settings) inner(tags int) int {
	if s.nextIP {
		return s.mtu - hdr.NSHLen // the tags stay in front of the header
	}
	return s.mtu - hdr.NSHLen - hdr.EthernetLen - hdr.VLANLen*tags
}

// exit says which paths end here.
type exit struct {
	any, index bool
	never      bool
	spi        uint32
	si         uint8
}

func (s *settings) exits(spi uint32, si uint8) bool {
	e := &s.exit
	return e.any || !e.never && spi == e.spi && (!e.index || si == e.si)
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (e *exit) UnmarshalText(text []byte) error {
	v := string(text)
	switch v {
	case "any":
		*e = exit{any: true}
		return nil
	case "none":
		*e = exit{never: true}
		return nil
	}
	p, i, ok := strings.Cut(v, ":")
	spi, err := strconv.ParseUint(p, 0, 24)
	var si uint64
	if ok && err == nil {
		si, err = strconv.ParseUint(i, 0, 8)
	}
	if err != nil {
		return errors.New("want any, none, an SPI of 24 bits, or SPI:SI")
	}
	*e = exit{index: ok, spi: uint32(spi), si: uint8(si)}
	return nil
}

var arguments = arg.Declare("nsh", settings{si: 255, ttl: 63, exit: exit{any: true}, mtu: 1500})

func parseArgs(args graph.Args) (settings, error) {
	s, r := arguments.Read(args)
	r.Func("dst", func(v string) error {
		h, err := net.ParseMAC(v)
		if err != nil || len(h) != len(s.dst) {
			return errors.New("want a MAC address such as 02:00:00:00:00:01")
		}
		s.dst = [6]byte(h)
		return nil
	})
	s.hasDst = r.Given("dst")
	s.hasSrc = r.Given("src")
	s.mss = s.MSS.Within(s.inner(0))
	if s.role != edge {
		for _, name := range []string{"spi", "si", "ttl", "next", "match", "exit", "mtu", "mss"} {
			if r.Given(name) {
				r.Failf("%s= is for role=edge only", name)
			}
		}
		return s, r.Err()
	}
	switch {
	case s.match.None():
	case !r.Given("spi"):
		r.Failf("spi= is missing (or match=none)")
	case !s.nextIP && !(s.hasDst && s.hasSrc):
		r.Failf("dst= and src=, of the outer Ethernet header, are missing")
	}
	return s, r.Err()
}

// describe implements graph.Kind.Describe: it returns the text of a trace record.
func describe(_ graph.App, kind uint16, args [4]uint64) string {
	what := [...]string{traceEntered: "enters", traceLeft: "leaves", tracePassed: "goes on along"}
	if int(kind) >= len(what) {
		return ""
	}
	return fmt.Sprintf("%s path %d, index %d", what[kind], args[0], args[1])
}
