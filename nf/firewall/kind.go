package firewall

import (
	"cmp"
	"time"

	"github.com/quillon/quillon/nf/arg"
	"github.com/quillon/quillon/nf/counter"
	"github.com/quillon/quillon/nf/effect"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/table"
)

const (
	reasonKnown graph.Reason = iota
	reasonNew
	reasonRelated
	reasonLater
	reasonControl
	reasonOther
	reasonOtherDropped
	reasonMalformed
	reasonDenied
	reasonDefault
	reasonNone
	reasonWindow
	reasonFlags
	reasonHalfSource
	reasonSource
	reasonHalf
	reasonFull
	reasonUnrelated
	reasonICMP
	reasonFragment
	reasonStray
	reasonTiny
	reasonRouted
	reasonRate
	numReasons
)

var reasons = [numReasons]counter.Def{
	reasonKnown:        {Name: "known", Help: "of a connection: passed"},
	reasonNew:          {Name: "opened", Help: "opens a connection, as the rules let it: passed"},
	reasonRelated:      {Name: "related", Help: "an ICMP error about a packet of a connection: passed"},
	reasonLater:        {Name: "later-fragment", Help: "a fragment of a datagram whose first one passed: passed"},
	reasonControl:      {Name: "neighbour-discovery", Help: "IPv6 neighbour discovery or multicast listeners: passed"},
	reasonOther:        {Name: "not-ip", Help: "no IP datagram: passed (non-ip=)"},
	reasonOtherDropped: {Name: "not-ip-dropped", Help: "no IP datagram: dropped (non-ip=)"},
	reasonMalformed:    {Name: "malformed", Help: "a header contradicts itself or is cut short, there are more than two VLAN tags, or IPv6 options behind a fragment header: dropped"},
	reasonDenied:       {Name: "denied", Help: "a rule says so: dropped"},
	reasonDefault:      {Name: "denied-by-default", Help: "no rule allows it (default=): dropped"},
	reasonNone:         {Name: "no-connection", Help: "of no connection, and opens none: dropped"},
	reasonWindow:       {Name: "out-of-window", Help: "TCP numbers that its receiver could not take: dropped (mode=)"},
	reasonFlags:        {Name: "bad-flags", Help: "TCP flags that no TCP sends together: dropped"},
	reasonHalfSource:   {Name: "source-limit", Help: "its sender has too many half-open connections (half-per-source=): dropped"},
	reasonSource:       {Name: "source-connections", Help: "its sender has too many connections, open ones included (per-source=): dropped"},
	reasonHalf:         {Name: "half-open-limit", Help: "there are too many half-open connections (half=): dropped"},
	reasonFull:         {Name: "full", Help: "no room for a connection that would not be at the cost of an open one: dropped"},
	reasonUnrelated:    {Name: "unrelated", Help: "an ICMP error that quotes no packet of a connection: dropped"},
	reasonICMP:         {Name: "other-icmp", Help: "ICMP other than queries, errors and neighbour discovery, as a redirect: dropped"},
	reasonFragment:     {Name: "fragment", Help: "a fragment: dropped (fragments=)"},
	reasonStray:        {Name: "stray-fragment", Help: "a fragment of a datagram whose first one has not passed: dropped"},
	reasonRouted:       {Name: "source-route", Help: "its sender says by what way it goes on (IPv4 options 131 and 137, IPv6 routing header 0), so its destination is another: dropped"},
	reasonRate:         {Name: "rule-rate", Help: "would open a connection beyond its rule's limit (rate:): dropped"},
	reasonTiny:         {Name: "tiny-fragment", Help: "a fragment that divides the transport header: dropped"},
}

const (
	ctrOpened counter.ID = iota
	ctrOver
	ctrEvicted
	ctrEnded
	ctrConns
	numCounters
)

var counters = [numCounters]counter.Def{
	ctrOpened:  {Name: "connections-opened", Help: "connections that were opened"},
	ctrOver:    {Name: "timed-out", Help: "connections forgotten because their time was over"},
	ctrEvicted: {Name: "evicted", Help: "half-open connections forgotten for another"},
	ctrEnded:   {Name: "ended", Help: "connections forgotten because the rules have changed"},
	ctrConns:   {Name: "connections", Help: "connections that are there, when last looked at"},
}

// Kind returns the declaration of the network function "firewall".
func Kind() *graph.Kind {
	return &graph.Kind{
		Name:    "firewall",
		Summary: "lets connections be opened by rules, follows them, and drops what belongs to none",
		Doc: `A packet of a connection passes, both ways, and so does an ICMP error about one.
What would open a connection (a TCP SYN, an ICMP query, anything of UDP or another
protocol) is compared with the rules: the first that it meets, by priority, allows
it or denies it; default= decides when there is none. All else is dropped. What is
no IP datagram passes, and so does IPv6 neighbour discovery.

A rule is allow or deny and conditions, with + in between; rules are separated by ;
or a new line: in:a or b (the port), src and dst (addresses or prefixes), proto (a
number, tcp, udp, icmp), sport and dport (a port, or a range as 80-90), prio (the
higher one counts; without, a rule counts before those behind it). With rate:N a rule
that allows opens at most N connections a second, burst:M of them at once (N without),
and drops what would open more. rules= is for
IPv4 and rules6= for IPv6, and rules of one open nothing of the other; they are the
tables acl and acl_ipv6, too, which also count what each rule decided. When rules change,
connections that they would not allow any more end with their next packet.

With mode=strict a TCP connection begins with a SYN, and segments are dropped whose
numbers are out of the window; mode=loose takes up connections in the middle, when
a rule allows it, and does not look at numbers.

A connection is half-open while its handshake lasts, or until somebody answers.
Their number is bounded, in all and for each source, and they make room for others;
open connections do not: a flood of SYNs ends none. The table is full only with
connections that are open: then new ones are dropped. So that no source fills it
alone, per-source= bounds all connections that it opens.

Fragments pass behind the first one of their datagram, when that has passed. While
quillon is not running, or too slow, nothing passes.

Answers to a broadcast come from an address that nothing was sent to, and are of no
connection. For DHCP with its server behind b, rules= takes
allow+in:b+proto:udp+sport:67+dport:68 as well, and rules6= for DHCPv6
allow+in:b+proto:udp+sport:547+dport:546.

  quillon run --inline eth1,eth2 --nf firewall,rules=allow+in:a
  quillon run --inline eth1,eth2 --nf 'firewall,rules=allow+in:a;allow+in:b+dst:10.0.0.5+proto:tcp+dport:443'
  quillon run --inline eth1,eth2 --nf 'firewall,rules=allow+in:a;allow+in:b+proto:tcp+dport:22+rate:5'`,
		In:       []string{"a", "b"},
		Out:      []string{"a", "b"},
		Params:   arguments.Params(),
		Counters: counters[:],
		Reasons:  reasons[:],
		Tables:   []table.Decl{decl(32), decl(128)},
		Note:     oneFamily,
		Decides:  decides,
		Effects:  graph.Always(effect.Effects{Reads: effect.Flow | effect.L4Other | effect.Length, Drops: true, State: true}),
		New: func(env graph.Env, args graph.Args) (graph.App, error) {
			a, err := newApp(args, env)
			if err != nil {
				return nil, err
			}
			return a, nil
		},
	}
}

// decides implements graph.Kind.Decides: it returns the number of connections that may be decided.
func decides(args graph.Args) int {
	if s, err := parse(args); err == nil && s.offload {
		return s.conns
	}
	return 0
}

// oneFamily returns a note for the user if rules are given for one family only, so that the other can open
// nothing.
func oneFamily(args graph.Args) string {
	s, err := parse(args)
	if err != nil || s.allow {
		return ""
	}
	switch four, six := len(s.rules[0]) > 0, len(s.rules[1]) > 0; {
	case four && !six:
		return "rules= is for IPv4; rules6= has no rules, so no connection can be opened by IPv6"
	case six && !four:
		return "rules6= is for IPv6; rules= has no rules, so no connection can be opened by IPv4"
	}
	return ""
}

// settings are the parsed arguments.
type settings struct {
	_             struct{}         `arg:"rules" own:"true" default:"none" help:"rules for IPv4; can be changed while running"`
	_             struct{}         `arg:"rules6" own:"true" default:"none" help:"rules for IPv6"`
	rules         [2][]table.Entry // IPv4, IPv6
	allow         bool             `arg:"default" words:"deny allow" help:"deny or allow: what opens a connection and meets no rule"`
	strict        bool             `arg:"mode" words:"loose strict" help:"strict, or loose: TCP connections may be taken up in the middle, and numbers are not looked at"`
	conns         int              `arg:"conns" range:"1..2^24" help:"connections that there is room for, about 150 bytes each"`
	half          int              `arg:"half" range:"1..2^24" default:"a quarter of conns" help:"half-open connections at most"`
	halfPerSource int              `arg:"half-per-source" range:"1..2^24" help:"half-open connections of an IPv4 address, or of an IPv6 /64, at most"`
	perSource     int              `arg:"per-source" range:"1..2^24" keep:"none" help:"connections of an IPv4 address, or of an IPv6 /64, at most, open ones included: of who opened them; can be changed while running"` // 0: no limit
	tcpHalf       time.Duration    `arg:"tcp-half" range:"1ns.." help:"a half-open connection is forgotten after so long, TCP or not"`
	tcpIdle       time.Duration    `arg:"tcp-idle" range:"1ns.." help:"an open TCP connection is forgotten after so long without a packet"`
	tcpClose      time.Duration    `arg:"tcp-close" range:"1ns.." help:"a TCP connection with a FIN is"`
	udpIdle       time.Duration    `arg:"udp-idle" range:"1ns.." help:"a UDP flow that was answered is"`
	icmpIdle      time.Duration    `arg:"icmp-idle" range:"1ns.." help:"an ICMP query that was answered is"`
	otherIdle     time.Duration    `arg:"other-idle" range:"1ns.." help:"a flow of another protocol that was answered is"`
	dropFragments bool             `arg:"fragments" words:"pass drop" help:"pass, behind their first one, or drop"`
	offload       bool             `arg:"offload" words:"off on" help:"on: frames of open connections cross in the kernel, where ports and the other functions allow it; off: all come here"`
	dropNonIP     bool             `arg:"non-ip" words:"pass drop" help:"what is no IP datagram, such as ARP: pass or drop"`
}

var arguments = arg.Declare("firewall", settings{
	strict: true, conns: 65536, halfPerSource: 256, tcpHalf: 30 * time.Second, tcpIdle: 124 * time.Minute,
	tcpClose: 2 * time.Minute, udpIdle: 5 * time.Minute, icmpIdle: time.Minute, otherIdle: 10 * time.Minute,
})

func parse(args graph.Args) (settings, error) {
	s, r := arguments.Read(args)
	for i, name := range [2]string{"rules", "rules6"} {
		r.Func(name, func(v string) (err error) {
			s.rules[i], err = parseRules(v, decl([2]int{32, 128}[i]).Keys)
			return err
		})
	}
	s.half = cmp.Or(s.half, max(1, s.conns/4))
	return s, r.Err()
}
