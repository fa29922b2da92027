package track

import (
	"net/netip"
	"testing"
	"time"
)

// TestLines has lines as conntrack has them.
func TestLines(t *testing.T) {
	a, b, p := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("198.51.100.1")
	for _, c := range []struct {
		x    Connection
		want string
	}{
		{Connection{App: "nat", Proto: 6, State: "ESTABLISHED", Left: 431999 * time.Second, Orig: Tuple{a, b, 40000, 443}, Reply: Tuple{b, p, 443, 50000}, Assured: true},
			"tcp      6 431999 ESTABLISHED src=10.0.0.1 dst=192.0.2.1 sport=40000 dport=443 src=192.0.2.1 dst=198.51.100.1 sport=443 dport=50000 [ASSURED] app=nat"},
		{Connection{App: "fw", Proto: 17, Left: 29 * time.Second, Orig: Tuple{a, b, 5353, 53}, Reply: Tuple{b, a, 53, 5353}, Unreplied: true},
			"udp      17 29 src=10.0.0.1 dst=192.0.2.1 sport=5353 dport=53 [UNREPLIED] src=192.0.2.1 dst=10.0.0.1 sport=53 dport=5353 app=fw"},
		{Connection{App: "nat", Proto: 1, State: Mapping, Orig: Tuple{Src: a, SPort: 7}, Reply: Tuple{Dst: p, DPort: 9}},
			"icmp     1 0 MAPPING src=10.0.0.1 dst=0.0.0.0 id=7 src=0.0.0.0 dst=198.51.100.1 id=9 app=nat"},
		{Connection{App: "fw", Proto: 99, Orig: Tuple{Src: netip.MustParseAddr("fd00::1")}, Reply: Tuple{Dst: netip.MustParseAddr("fd00::1")}},
			"unknown  99 0 src=fd00::1 dst=:: src=:: dst=fd00::1 app=fw"},
	} {
		if got := c.x.String(); got != c.want {
			t.Errorf("%s\nwant\n%s", got, c.want)
		}
	}
}

// TestFilter: each part of a filter keeps what it says, and nothing else.
func TestFilter(t *testing.T) {
	x := Connection{App: "nat", Proto: 6, State: "ESTABLISHED", Orig: Tuple{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("192.0.2.1"), 40000, 443},
		Reply: Tuple{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("198.51.100.1"), 443, 50000}}
	in, out := netip.MustParsePrefix, netip.MustParsePrefix("203.0.113.0/24")
	for _, c := range []struct{ yes, no Filter }{
		{Filter{}, Filter{App: "na"}},
		{Filter{App: "nat"}, Filter{App: "fw"}},
		{Filter{Proto: 6}, Filter{Proto: 17}},
		{Filter{State: "ESTABLISHED"}, Filter{State: "CLOSE"}},
		{Filter{Src: in("10.0.0.0/8")}, Filter{Src: out}},
		{Filter{Dst: in("192.0.2.1/32")}, Filter{Dst: in("192.0.2.2/32")}},
		{Filter{ReplySrc: in("192.0.2.0/24")}, Filter{ReplySrc: in("10.0.0.0/8")}},
		{Filter{ReplyDst: in("198.51.100.0/24")}, Filter{ReplyDst: in("10.0.0.0/8")}},
		{Filter{SPort: 40000}, Filter{SPort: 443}},
		{Filter{DPort: 443}, Filter{DPort: 50000}},
		{Filter{ReplySPort: 443}, Filter{ReplySPort: 40000}},
		{Filter{ReplyDPort: 50000}, Filter{ReplyDPort: 443}},
		{Filter{App: "nat", Proto: 6, SPort: 40000}, Filter{App: "nat", Proto: 6, SPort: 1}},
	} {
		if !c.yes.Has(&x) || c.no.Has(&x) {
			t.Errorf("%+v: %v, %+v: %v", c.yes, c.yes.Has(&x), c.no, c.no.Has(&x))
		}
	}
}
