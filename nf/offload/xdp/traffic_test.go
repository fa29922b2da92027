package xdp

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strconv"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/offload"
	"github.com/quillon/quillon/nf/outer"
)

var be = binary.BigEndian

// datagram is what a frame is made of.
type datagram struct {
	src, dst         [6]byte // MAC addresses
	vlan             int     // negative: untagged
	from, to         [4]byte
	sport, dport     uint16
	proto            uint8
	tos              uint8
	frag             uint16
	options          int
	seq, ack         uint32
	win              uint16
	flags            uint8
	payload, padding int
	noSum            bool
	six              bool // IPv6: see sixOf
}

// sixOf is an IPv6 address for an IPv4 one. Every second one is folded (offload.Key.Bytes) to what others are folded to.
func sixOf(a [4]byte) (s [16]byte) {
	s = [16]byte{0x20, 0x01, 0x0d, 0xb8}
	copy(s[12:], a[:])
	if a[3]&1 != 0 {
		copy(s[8:], a[:])
	}
	return s
}

// bytes is the frame.
func (d *datagram) bytes(r *rand.Rand) []byte {
	b := append(append([]byte{}, d.dst[:]...), d.src[:]...)
	if d.vlan >= 0 {
		b = be.AppendUint32(b, 0x8100<<16|uint32(r.IntN(8))<<13|uint32(d.vlan))
	}
	var l4 []byte
	if d.proto == hdr.ProtoTCP {
		l4 = make([]byte, 20)
		be.PutUint32(l4[4:], d.seq)
		be.PutUint32(l4[8:], d.ack)
		l4[12], l4[13] = 5<<4, d.flags
		be.PutUint16(l4[14:], d.win)
	} else {
		l4 = make([]byte, 8)
		be.PutUint16(l4[4:], uint16(8+d.payload))
	}
	be.PutUint16(l4, d.sport)
	be.PutUint16(l4[2:], d.dport)
	for range d.payload {
		l4 = append(l4, byte(r.Uint32()))
	}
	if d.six {
		return d.bytes6(r, b, l4)
	}
	b = be.AppendUint16(b, 0x0800)
	ip := make([]byte, 20+d.options)
	ip[0], ip[1], ip[8], ip[9] = 0x40|byte(len(ip)/4), d.tos, byte(1+r.IntN(255)), d.proto
	for i := 20; i < len(ip); i++ {
		ip[i] = 1 // nothing
	}
	be.PutUint16(ip[2:], uint16(len(ip)+len(l4)))
	be.PutUint16(ip[4:], uint16(r.Uint32()))
	be.PutUint16(ip[6:], d.frag)
	copy(ip[12:], d.from[:])
	copy(ip[16:], d.to[:])
	be.PutUint16(ip[10:], hdr.Checksum(ip, 0))
	sum := hdr.Checksum(l4, hdr.PseudoSum(netip.AddrFrom4(d.from), netip.AddrFrom4(d.to), d.proto, len(l4)))
	switch {
	case d.proto == hdr.ProtoTCP:
		be.PutUint16(l4[16:], sum)
	case !d.noSum:
		if sum == 0 {
			sum = 0xFFFF
		}
		be.PutUint16(l4[6:], sum)
	}
	b = append(append(b, ip...), l4...)
	for range d.padding {
		b = append(b, byte(r.Uint32()))
	}
	return b
}

// bytes6 is the frame of IPv6, behind its MAC addresses and tag.
func (d *datagram) bytes6(r *rand.Rand, b, l4 []byte) []byte {
	from, to := sixOf(d.from), sixOf(d.to)
	ip, next := make([]byte, 40), d.proto
	if d.options > 0 { // PadN
		ip, next = append(ip, next, 0, 1, 4, 0, 0, 0, 0), hdr.ProtoHopByHop
	}
	if d.frag != 0 {
		ip = append(ip, next, 0, byte(d.frag>>5)&0xF8, d.frag2(), 0, 0, 0, byte(r.Uint32()))
		next = hdr.ProtoFragment
	}
	be.PutUint32(ip, 6<<28|uint32(d.tos)<<20|r.Uint32()&0xFFFFF)
	be.PutUint16(ip[4:], uint16(len(ip)-40+len(l4)))
	ip[6], ip[7] = next, byte(1+r.IntN(255))
	copy(ip[8:], from[:])
	copy(ip[24:], to[:])
	sum := hdr.Checksum(l4, hdr.PseudoSum(netip.AddrFrom16(from), netip.AddrFrom16(to), d.proto, len(l4)))
	if d.proto == hdr.ProtoTCP {
		be.PutUint16(l4[16:], sum)
	} else if !d.noSum {
		be.PutUint16(l4[6:], max(sum, 1)) // 0 says that there is none
	}
	b = append(append(be.AppendUint16(b, 0x86DD), ip...), l4...)
	for range d.padding {
		b = append(b, byte(r.Uint32()))
	}
	return b
}

// frag2 is the lower byte of an IPv6 fragment's offset and flags: more of them follow, if they do with IPv4.
func (d *datagram) frag2() byte { return byte(d.frag >> 13 & 1) }

// conversation is a flow between a host behind port a and one behind port b.
type conversation struct {
	client, server   [4]byte
	cport, sport     uint16
	cmac, smac, gmac [6]byte
	vlan             int
	proto            uint8
	six              bool
	public           [4]byte // as the server sees the client; zero: it has seen nothing
	pport            uint16
	next             [2]uint32 // sequence numbers, of client and server
	step             int
	behind           [4]byte // who answers in the server's place; zero: the server
}

// world is traffic through two boxes, of which one has flows run in front of it.
type world struct {
	testing.TB
	r           *rand.Rand
	plain, fast *box
	all         []*conversation
	tunnel      *outer.Header // on side b; nil: there is none
	vni         uint32
	vip         [4]byte // of a balancer; zero: there is none
	frames      int
	sixth       int        // one of so many conversations is over IPv6; 0: none
	exact       bool       // time does not go on by itself
	at          clock.Time // what time it is; 0: the kernel's clock says it
}

// now is the time of the next frame.
func (w *world) now() clock.Time {
	if w.at == 0 {
		return now()
	}
	if !w.exact {
		w.at += clock.Time(w.r.Int64N(int64(4 * time.Millisecond)))
	}
	w.fast.tell(w.at)
	return w.at
}

func (w *world) conversation(n int) *conversation {
	r := w.r
	c := &conversation{client: [4]byte{10, 0, 0, byte(1 + r.IntN(20))}, server: [4]byte{203, 0, 113, byte(1 + r.IntN(4))}, cport: uint16(2000 + n), sport: uint16([]int{53, 80, 443, 5000}[r.IntN(4)]),
		cmac: [6]byte{2, 1, 0, 0, 0, byte(r.IntN(20))}, smac: [6]byte{2, 2, 0, 0, 0, byte(r.IntN(4))}, gmac: [6]byte{2, 3, 0, 0, 0, 1}, vlan: -1, proto: hdr.ProtoUDP}
	if r.IntN(4) == 0 && w.tunnel == nil {
		c.vlan = 7
	}
	if r.IntN(2) == 0 {
		c.proto = hdr.ProtoTCP
	}
	if c.six = w.sixth > 0 && n%w.sixth == 0; c.six { // their ports are few: keys of several are the same
		c.client, c.cport, c.vlan = [4]byte{10, 0, byte(1 + n/256), byte(n)}, uint16(2000+n%2), -1
	}
	if w.vip != [4]byte{} {
		c.server = w.vip
		if r.IntN(8) > 0 {
			c.sport = 80
		}
	}
	c.next = [2]uint32{r.Uint32(), r.Uint32()}
	return c
}

// send sends a frame of a conversation, by the client (0) or the server.
func (w *world) send(c *conversation, from int, change func(d *datagram)) {
	w.Helper()
	d := datagram{src: c.cmac, dst: c.gmac, vlan: c.vlan, from: c.client, to: c.server, sport: c.cport, dport: c.sport, proto: c.proto,
		flags: 0x10, win: uint16(1000 + w.r.IntN(60000)), payload: w.r.IntN(200), seq: c.next[from], ack: c.next[1-from], noSum: w.r.IntN(4) == 0, six: c.six}
	if from == 1 {
		if c.public == [4]byte{} {
			return
		}
		d.src, d.dst, d.from, d.to, d.sport, d.dport = c.smac, c.gmac, c.server, c.public, c.sport, c.pport
		if c.behind != [4]byte{} {
			d.from = c.behind
		}
	}
	if w.r.IntN(3) == 0 {
		d.tos = byte(w.r.IntN(256))
	}
	if change != nil {
		change(&d)
	}
	if d.proto == hdr.ProtoTCP && d.seq == c.next[from] {
		n := uint32(d.payload)
		if d.flags&3 != 0 {
			n++
		}
		c.next[from] += n
	}
	f := d.bytes(w.r)
	if from == 1 {
		f = w.into(f, d.tos)
	}
	out := w.push(from, f)
	if from == 0 && len(out[1]) == 1 {
		w.learn(c, out[1][0])
	}
}

// into has a frame come by the tunnel, if there is one.
func (w *world) into(f []byte, tos uint8) []byte {
	if w.tunnel == nil {
		return f
	}
	b := append(make([]byte, w.tunnel.Len()+hdr.VXLANLen), f...)
	hdr.VXLAN(b[w.tunnel.Len():]).Encode(w.vni)
	if w.r.IntN(8) == 0 {
		tos = byte(w.r.IntN(256))
	}
	w.tunnel.Put(b, tos, w.r.Uint32())
	return b
}

// learn notes how the server sees the client.
func (w *world) learn(c *conversation, f []byte) {
	if w.tunnel != nil {
		if len(f) < offload.TunnelLen {
			return
		}
		f = f[offload.TunnelLen:]
	}
	var l hdr.Layers
	if hdr.Walk(f, &l) && l.L4 > 0 {
		at := l.L3 + 12
		if l.EtherType == hdr.EtherIPv6 {
			at = l.L3 + 8 + 12
		}
		c.public = [4]byte(f[at:])
		if w.vip != [4]byte{} && l.EtherType == hdr.EtherIPv4 {
			c.behind = [4]byte(f[l.L3+16:])
		}
		c.pport = be.Uint16(f[l.L4:])
	}
}

// push gives a frame to both boxes, and compares what leaves.
func (w *world) push(port int, f []byte) [2][][]byte {
	w.Helper()
	at := w.now()
	w.frames++
	a, b := w.plain.frame(at, port, f), w.fast.frame(at, port, f)
	if fmt.Sprintf("%x", a) != fmt.Sprintf("%x", b) {
		w.Fatalf("frame %d at port %d:\n%s\nwithout: %x\nwith:    %x", w.frames, port, hex.Dump(f), a, b)
	}
	return a
}

// compare compares what both boxes know and have counted.
func (w *world) compare() {
	w.Helper()
	at := w.now()
	ca, na := w.plain.state(at)
	cb, nb := w.fast.state(at)
	if len(ca) != len(cb) {
		w.Fatalf("frame %d: %d connections without, %d with", w.frames, len(ca), len(cb))
	}
	for i := range ca {
		if id(&ca[i]) != id(&cb[i]) {
			w.Fatalf("frame %d:\nwithout: %v\nwith:    %v", w.frames, ca[i].String(), cb[i].String())
		}
		// The kernel's clock is coarse. A permission, or mapping, beside an entry is told once a second.
		apart := 500 * time.Millisecond
		if !cb[i].Offload {
			apart = 1500 * time.Millisecond
		}
		if d := ca[i].Left - cb[i].Left; d < -apart || d > apart {
			w.Fatalf("frame %d: %v is left without, %v with: %v", w.frames, ca[i].Left, cb[i].Left, cb[i].String())
		}
	}
	for name, n := range na {
		if m := nb[name]; m != n && !hasSuffix(name, " calls", " sampled-ns", " sampled-packets", " counter connections", " counter mappings") {
			w.Errorf("frame %d: %s is %d without, %d with", w.frames, name, n, m)
		}
	}
	if w.Failed() {
		w.FailNow()
	}
}

func hasSuffix(s string, suffixes ...string) bool {
	for _, x := range suffixes {
		if len(s) >= len(x) && s[len(s)-len(x):] == x {
			return true
		}
	}
	return false
}

// go on has a conversation take a step: what usually comes next.
func (w *world) goOn(c *conversation) {
	w.Helper()
	c.step++
	if c.proto == hdr.ProtoTCP && c.step <= 3 {
		switch c.step {
		case 1:
			w.send(c, 0, func(d *datagram) { d.flags, d.payload, d.ack = 2, 0, 0 })
		case 2:
			w.send(c, 1, func(d *datagram) { d.flags, d.payload = 0x12, 0 })
		case 3:
			w.send(c, 0, func(d *datagram) { d.payload = 0 })
		}
		return
	}
	w.send(c, w.r.IntN(2), nil)
}

// odd has a conversation do what is not plain.
func (w *world) odd(c *conversation) {
	w.Helper()
	from := w.r.IntN(2)
	switch w.r.IntN(13) {
	case 0:
		w.send(c, from, func(d *datagram) { d.frag = 0x2000 })
	case 1:
		w.send(c, from, func(d *datagram) { d.options = 4 })
	case 2:
		w.send(c, from, func(d *datagram) { d.padding = 1 + w.r.IntN(30) })
	case 3: // far out of the window
		w.send(c, from, func(d *datagram) { d.seq += 1 << 30 })
	case 4:
		w.send(c, from, func(d *datagram) { d.ack += 1 << 20 })
	case 5: // again
		w.send(c, from, func(d *datagram) { d.seq -= uint32(w.r.IntN(3000)) })
	case 6:
		w.send(c, from, func(d *datagram) { d.flags = 0x11 })
	case 7:
		w.send(c, from, func(d *datagram) { d.flags = 0x14 })
	case 8: // another connection of the same ports
		c.next, c.step = [2]uint32{w.r.Uint32(), w.r.Uint32()}, 0
		w.goOn(c)
	case 9:
		c.cmac[5]++
		w.send(c, 0, nil)
	case 10:
		w.send(c, from, func(d *datagram) { d.payload = 1300 + w.r.IntN(160) })
	case 11:
		w.send(c, from, func(d *datagram) { d.flags |= []byte{8, 0x20, 0x40, 0x80}[w.r.IntN(4)] })
	case 12: // an ICMP error about the last frame of the other one
		w.icmp(c, from)
	}
}

// icmp sends an error about a frame that the other end has sent.
func (w *world) icmp(c *conversation, from int) {
	w.Helper()
	if c.public == [4]byte{} || c.six {
		return
	}
	q := datagram{vlan: -1, from: c.server, to: c.client, sport: c.sport, dport: c.cport, proto: c.proto, seq: c.next[1] - uint32(w.r.IntN(2000)), flags: 0x10, payload: 8}
	src, dst, mac := c.client, c.server, c.cmac
	if from == 1 {
		q = datagram{vlan: -1, from: c.public, to: c.server, sport: c.pport, dport: c.sport, proto: c.proto, seq: c.next[0] - uint32(w.r.IntN(2000)), flags: 0x10, payload: 8}
		src, dst, mac = c.server, c.public, c.smac
	}
	quoted := q.bytes(w.r)[14:]
	b := append(append([]byte{}, c.gmac[:]...), mac[:]...)
	if c.vlan >= 0 {
		b = be.AppendUint32(b, 0x8100<<16|uint32(c.vlan))
	}
	b = be.AppendUint16(b, 0x0800)
	ip := make([]byte, 28, 28+len(quoted))
	ip[0], ip[8], ip[9], ip[20], ip[21] = 0x45, 64, 1, 3, 1
	be.PutUint16(ip[2:], uint16(28+len(quoted)))
	copy(ip[12:], src[:])
	copy(ip[16:], dst[:])
	be.PutUint16(ip[10:], hdr.Checksum(ip[:20], 0))
	ip = append(ip, quoted...)
	be.PutUint16(ip[22:], hdr.Checksum(ip[20:], 0))
	f := append(b, ip...)
	if from == 1 {
		f = w.into(f, 0)
	}
	w.push(from, f)
}

// set changes the settings of a function.
func (w *world) set(apps []string) {
	w.Helper()
	var args graph.Args
	name := apps[w.r.IntN(len(apps))]
	pick := func(all ...string) string { return all[w.r.IntN(len(all))] }
	switch name {
	case "firewall":
		args = graph.Args{"rules": pick("allow+in:a", "deny+dst:203.0.113.2;allow+in:a", "deny+src:10.0.0.0/29;allow+in:a", "deny+proto:udp;allow+in:a"),
			"rules6": pick("allow+in:a", "allow+in:a", "deny+dst:2001:db8::cb00:7102/128;allow+in:a", "deny+proto:udp;allow+in:a"), "mode": pick("strict", "loose")}
	case "napt":
		args = graph.Args{"filter": pick("endpoint", "address", "port"), "udp-idle": pick("1m", "5m"), "private": pick("10.0.0.0/8", "10.0.0.0/28")}
	case "balance":
		args = graph.Args{"backends": pick(backends, "10.9.0.1@02:00:00:00:09:01+10.9.0.2@02:00:00:00:09:02/drain+10.9.0.3@02:00:00:00:09:03", "10.9.0.1@02:00:00:00:09:01/down+10.9.0.3@02:00:00:00:09:04*3", "none"),
			"mac": pick("02:00:00:00:00:77", "02:00:00:00:00:78")}
	case "police":
		args = graph.Args{"cbs": pick("1500", "3000", "800"), "yellow": pick("pass", "dscp:AF12", "drop"), "red": pick("drop", "dscp:CS1"), "green": pick("pass", "dscp:11"), "aware": pick("no", "af")}
		if len(w.all) > 0 && w.r.IntN(3) == 0 { // for a while all come up
			w.setBoth(name, graph.Args{"offload": "off"})
			for range 50 {
				w.goOn(w.all[w.r.IntN(len(w.all))])
			}
			args["offload"] = "on"
		}
	case "vxlan":
		args = graph.Args{"dscp": pick("copy", "7"), "mtu": pick("1500", "1300"), "ecn": pick("normal", "compatibility"), "ttl": pick("64", "9")}
	}
	w.setBoth(name, args)
}

// setBoth changes the settings of a function in both boxes.
func (w *world) setBoth(name string, args graph.Args) {
	w.Helper()
	for _, x := range []*box{w.plain, w.fast} {
		if _, err := x.inst.Set(name, args); err != nil {
			w.Fatal(name, args, err)
		}
	}
}

const (
	public   = "198.51.100.1"
	mac      = "02:00:00:00:00:99"
	vip      = "203.0.113.80"
	backends = "10.9.0.1@02:00:00:00:09:01+10.9.0.2@02:00:00:00:09:02*2+10.9.0.3@02:00:00:00:09:03"
)

var chains = []struct {
	name string
	apps []string
	args map[string]graph.Args
}{
	{"firewall", []string{"firewall"}, map[string]graph.Args{"firewall": {"rules": "allow+in:a", "rules6": "allow+in:a"}}},
	{"firewall-loose", []string{"firewall"}, map[string]graph.Args{"firewall": {"rules": "allow+in:a", "rules6": "allow+in:a", "mode": "loose"}}},
	{"napt", []string{"napt"}, map[string]graph.Args{"napt": {"public": public, "mac": mac}}},
	{"napt-endpoint", []string{"napt"}, map[string]graph.Args{"napt": {"public": public, "filter": "endpoint"}}},
	{"napt-port", []string{"napt"}, map[string]graph.Args{"napt": {"public": public, "filter": "port", "mac": mac}}},
	{"both", []string{"firewall", "napt"}, map[string]graph.Args{"firewall": {"rules": "allow+in:a", "rules6": "allow+in:a"}, "napt": {"public": public, "mac": mac}}},
	{"balance", []string{"balance"}, map[string]graph.Args{"balance": {"vip": vip, "port": "80", "backends": backends, "conns": "64"}}},
	{"firewall-balance", []string{"firewall", "balance"}, map[string]graph.Args{"firewall": {"rules": "allow+in:a"}, "balance": {"vip": vip, "port": "80", "backends": backends}}},
	{"police", []string{"police"}, map[string]graph.Args{"police": {"cir": "200kbit", "pir": "400kbit", "cbs": "1500", "pbs": "3000", "yellow": "dscp:AF12"}}},
	{"police-single", []string{"police"}, map[string]graph.Args{"police": {"cir": "10kbit", "cbs": "1500", "pbs": "800", "per": "flow", "yellow": "dscp:9", "aware": "af"}}},
	{"police-packets", []string{"police"}, map[string]graph.Args{"police": {"cir": "10pps", "pir": "20pps", "cbs": "3", "pbs": "5", "per": "src", "red": "dscp:CS1", "on": "a"}}},
	{"firewall-police", []string{"firewall", "police"}, map[string]graph.Args{"firewall": {"rules": "allow+in:a", "rules6": "allow+in:a"}, "police": {"cir": "20kbit", "cbs": "2000", "per": "dst"}}},
	{"police-between", []string{"firewall", "police", "napt"}, map[string]graph.Args{"firewall": {"rules": "allow+in:a", "rules6": "allow+in:a"}, "police": {"cir": "450kbit", "cbs": "4000", "yellow": "dscp:AF12"},
		"napt": {"public": public, "mac": mac}}},
	{"police-vxlan", []string{"police", "vxlan"}, map[string]graph.Args{"police": {"cir": "300kbit", "cbs": "4000", "yellow": "dscp:AF12"}, "vxlan": {"vni": "5000", "local": "192.0.2.1", "remote": "192.0.2.2", "local-mac": "02:00:00:00:00:01", "remote-mac": "02:00:00:00:00:02"}}},
	{"chain", []string{"firewall", "napt", "vxlan"}, map[string]graph.Args{"firewall": {"rules": "allow+in:a", "rules6": "allow+in:a"}, "napt": {"public": public, "mac": mac},
		"vxlan": {"vni": "5000", "local": "192.0.2.1", "remote": "192.0.2.2", "local-mac": "02:00:00:00:00:01", "remote-mac": "02:00:00:00:00:02"}}},
}

// TestSame: random traffic through functions leaves alike, and leaves alike what they know and have counted, whether frames of decided flows are run in front of
// them or not.
func TestSame(t *testing.T) { same(t, 1, 0) }

// TestSameSix: nor of IPv6.
func TestSameSix(t *testing.T) { same(t, 1, 1) }

// TestSameWorkers: nor with several workers.
func TestSameWorkers(t *testing.T) {
	for _, workers := range []int{2, 4} {
		t.Run(strconv.Itoa(workers), func(t *testing.T) { same(t, workers, 2) })
	}
}

// same sends traffic, of which one flow of so many is IPv6.
func same(t *testing.T, workers, sixth int) {
	for _, c := range chains {
		t.Run(c.name, func(t *testing.T) {
			s := spec(c.apps, c.args)
			w := &world{TB: t, r: rand.New(rand.NewPCG(1, 2)), plain: newBoxOf(t, s, workers, 0, false), fast: newBoxOf(t, s, workers, 64, true), at: clock.Time(time.Hour), sixth: sixth}
			if _, ok := c.args["balance"]; ok {
				w.vip = netip.MustParseAddr(vip).As4()
			}
			if _, ok := c.args["vxlan"]; ok {
				w.vni = 5000
				w.tunnel = outer.New(outer.Config{LocalMAC: [6]byte{2, 0, 0, 0, 0, 2}, RemoteMAC: [6]byte{2, 0, 0, 0, 0, 1}, Local: netip.MustParseAddr("192.0.2.2"),
					Remote: netip.MustParseAddr("192.0.2.1"), TTL: 64, Proto: hdr.ProtoUDP, Port: hdr.PortVXLAN})
			}
			for n := range 40 {
				w.all = append(w.all, w.conversation(n))
			}
			for n := range 20_000 {
				x := w.all[w.r.IntN(len(w.all))]
				if w.r.IntN(20) == 0 {
					w.odd(x)
				} else {
					w.goOn(x)
				}
				if n%1000 == 999 {
					for range 3 { // meters tell what they have counted
						w.at = w.at.Add(11 * time.Millisecond)
						w.fast.tell(w.at)
						w.plain.breathe(w.at)
						w.fast.breathe(w.at)
					}
					w.compare()
				}
				if n%1500 == 1499 {
					w.set(c.apps)
				}
			}
			r, err := w.fast.inst.Ahead()
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%d frames, %d run in front: %v, decisions %v", w.frames, w.fast.ran, r.Outcomes, r.Decisions)
			// Of several workers each has its own places and meters; IPv6 addresses are not rewritten.
			none := workers > 1 && (c.args["balance"] != nil || c.args["police"] != nil) || sixth == 1 && c.args["balance"] != nil
			if none != (w.fast.ran == 0) || !none && w.fast.ran < w.frames/5 {
				t.Errorf("of %d frames %d were run in front", w.frames, w.fast.ran)
			}
		})
	}
}
