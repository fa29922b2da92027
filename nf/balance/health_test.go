package balance

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/hdr"
)

// farm are backends that answer checks as real ones do, each in a way that can be set.
type farm struct {
	t    *testing.T
	x    *graphtest.Test
	mode map[string]string // by address: "" (well), silent, refuse, 503, junk, liar
	seen map[string]int    // checks by address
	rst  int
}

const (
	boxMAC = "02:00:00:00:00:99"
	box4   = "10.0.0.99"
	box6   = "fd00::99"
)

func newFarm(t *testing.T, check string, more graph.Args) *farm {
	a := graph.Args{"vip": "10.0.0.100+fd00::100", "port": "80", "size": "1021", "check": check, "check-from": box4 + "@" + boxMAC + "+" + box6 + "@" + boxMAC,
		"backends": "10.0.0.1@02:00:00:00:00:01+10.0.0.2@02:00:00:00:00:02+10.0.0.3@02:00:00:00:00:03+fd00::1@02:00:00:00:00:11+fd00::2@02:00:00:00:00:12"}
	for k, v := range more {
		a[k] = v
	}
	return &farm{t: t, x: graphtest.New(t, *Kind(), a), mode: map[string]string{}, seen: map[string]int{}}
}

// live lets time go on: what the box sends is answered at once.
func (f *farm) live(d time.Duration) {
	f.t.Helper()
	for ; d > 0; d -= 10 * time.Millisecond {
		f.take(f.x.Advance(10 * time.Millisecond))
	}
}

func (f *farm) take(r graphtest.Result) {
	f.t.Helper()
	for _, out := range r.Out["b"] {
		for _, answer := range f.answer(out.Bytes) {
			f.take(f.x.Push("b", answer))
		}
	}
}

// answer is what a backend sends for a frame; the frame must be right to the last checksum.
func (f *farm) answer(b []byte) (all [][]byte) {
	f.t.Helper()
	p := gopacket.NewPacket(b, layers.LayerTypeEthernet, gopacket.Default)
	if e := p.ErrorLayer(); e != nil {
		f.t.Fatalf("%x: %v", b, e.Error())
	}
	eth := p.LinkLayer().(*layers.Ethernet)
	if eth.SrcMAC.String() != boxMAC {
		return nil // a client's
	}
	var src, dst net.IP
	var reply gopacket.SerializableLayer
	back := &layers.Ethernet{SrcMAC: eth.DstMAC, DstMAC: eth.SrcMAC, EthernetType: eth.EthernetType}
	var checksum gopacket.NetworkLayer
	proto := layers.IPProtocolTCP
	if ip, ok := p.NetworkLayer().(*layers.IPv4); ok {
		src, dst = ip.SrcIP, ip.DstIP
		if proto = ip.Protocol; hdr.Checksum(b[14:34], 0) != 0 || src.String() != box4 {
			f.t.Errorf("a bad IPv4 header: %x", b)
		}
		r := &layers.IPv4{Version: 4, IHL: 5, TTL: 64, Protocol: proto, SrcIP: dst, DstIP: src}
		reply, checksum = r, r
	} else {
		ip := p.NetworkLayer().(*layers.IPv6)
		src, dst, proto = ip.SrcIP, ip.DstIP, ip.NextHeader
		if src.String() != box6 {
			f.t.Errorf("checks come from %v", src)
		}
		r := &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: proto, SrcIP: dst, DstIP: src}
		reply, checksum = r, r
	}
	var d hdr.Layers
	if !hdr.Walk(b, &d) || d.Malformed() {
		f.t.Fatalf("malformed: %x", b)
	}
	if proto != layers.IPProtocolICMPv4 {
		if got := pseudo(src, dst, uint8(proto), b[d.L4:d.End]); got != 0 {
			f.t.Errorf("a wrong checksum: %x", b)
		}
	} else if hdr.Checksum(b[d.L4:d.End], 0) != 0 {
		f.t.Errorf("a wrong checksum: %x", b)
	}
	mode := f.mode[dst.String()]
	send := func(ls ...gopacket.SerializableLayer) {
		s := gopacket.NewSerializeBuffer()
		if err := gopacket.SerializeLayers(s, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, append([]gopacket.SerializableLayer{back, reply}, ls...)...); err != nil {
			f.t.Fatal(err)
		}
		all = append(all, bytes.Clone(s.Bytes()))
	}
	switch proto {
	case layers.IPProtocolICMPv4, layers.IPProtocolICMPv6:
		f.seen[dst.String()]++
		if mode == "silent" {
			return nil
		}
		body := bytes.Clone(b[d.L4:d.End])
		if body[0] = 0; proto == layers.IPProtocolICMPv6 {
			body[0] = 129
		}
		if mode == "liar" {
			body[9]++
		}
		body[2], body[3] = 0, 0
		send(gopacket.Payload(body)) // nobody here looks at its checksum
		return all
	}
	tcp := p.TransportLayer().(*layers.TCP)
	r := &layers.TCP{SrcPort: tcp.DstPort, DstPort: tcp.SrcPort, Seq: 5000, Ack: tcp.Seq + 1, ACK: true, Window: 1000}
	if err := r.SetNetworkLayerForChecksum(checksum); err != nil {
		f.t.Fatal(err)
	}
	switch {
	case tcp.RST:
		f.rst++
		return nil
	case tcp.SYN:
		f.seen[dst.String()]++
		switch mode {
		case "silent":
			return nil
		case "refuse":
			r.RST = true
		case "liar":
			r.Ack, r.SYN = 7, true
		default:
			r.SYN = true
		}
		send(r)
	default:
		r.Seq, r.Ack = 5001, tcp.Seq+uint32(len(tcp.Payload))
		if !strings.HasPrefix(string(tcp.Payload), "GET /health HTTP/1.0\r\nHost: ") || !strings.HasSuffix(string(tcp.Payload), "\r\n\r\n") {
			f.t.Errorf("asked for %q", tcp.Payload)
		}
		text := "HTTP/1.0 200 OK\r\n\r\nwell"
		switch mode {
		case "503":
			text = "HTTP/1.1 503 Service Unavailable\r\n\r\n"
		case "junk":
			text = "SSH-2.0-OpenSSH_9.2p1 Debian"
		case "redirect":
			text = "HTTP/1.1 301 Moved Permanently\r\n\r\n"
		}
		send(r, gopacket.Payload(text))
	}
	return all
}

// health is what the app reports of a backend.
func (f *farm) health(addr string) (health, last string) {
	f.t.Helper()
	reports, err := f.x.Inst.Report(graphtest.App)
	if err != nil {
		f.t.Fatal(err)
	}
	text, _ := json.Marshal(reports[0])
	var rows []struct {
		Backend, Health string
		Last            string `json:"last_check"`
	}
	if err := json.Unmarshal(text, &rows); err != nil {
		f.t.Fatal(err)
	}
	for _, r := range rows {
		if r.Backend == addr {
			return r.Health, r.Last
		}
	}
	f.t.Fatalf("no backend %s in %s", addr, text)
	return "", ""
}

// TestChecks: a backend that fails in some way is found down after check-fall checks, and up again after check-rise.
func TestChecks(t *testing.T) {
	for check, modes := range map[string]map[string]string{
		"icmp": {"silent": "no answer in time", "liar": "no answer in time"},
		"tcp":  {"silent": "no answer in time", "refuse": "refused", "liar": "no answer in time"},
		"http": {"silent": "no answer in time", "refuse": "refused", "503": "status 503", "junk": "no answer of HTTP/1"},
	} {
		for mode, why := range modes {
			for _, addr := range []string{"10.0.0.2", "fd00::2"} {
				t.Run(check+"-"+mode+"-"+addr, func(t *testing.T) {
					f := newFarm(t, check, graph.Args{"check-path": "/health", "check-interval": "1s", "check-timeout": "300ms", "check-rise": "2", "check-fall": "3"})
					f.live(3 * time.Second)
					for a := range map[string]bool{"10.0.0.1": true, "10.0.0.3": true, "fd00::1": true, addr: true} {
						if h, last := f.health(a); h != "up" || last != "answered" {
							t.Errorf("%s is %s: %s", a, h, last)
						}
						if n := f.seen[a]; n < 2 || n > 4 {
							t.Errorf("%s was checked %d times in 3 s", a, n)
						}
					}
					f.mode[addr] = mode
					f.live(1900 * time.Millisecond)
					if h, _ := f.health(addr); h != "up" {
						t.Error("down after fewer checks than check-fall")
					}
					f.live(2500 * time.Millisecond)
					if h, last := f.health(addr); h != "down" || last != why {
						t.Errorf("%s: %s", h, last)
					}
					if h, _ := f.health("10.0.0.1"); h != "up" {
						t.Error("another is down")
					}
					f.mode[addr] = ""
					f.live(900 * time.Millisecond)
					if h, _ := f.health(addr); h != "down" {
						t.Error("up after fewer checks than check-rise")
					}
					f.live(1150 * time.Millisecond) // two checks have begun, and perhaps not three
					if h, last := f.health(addr); h != "up" || last != "answered" {
						t.Errorf("%s: %s", h, last)
					}
					if check != "icmp" && f.rst == 0 {
						t.Error("connections are left open")
					}
				})
			}
		}
	}
	f := newFarm(t, "http", graph.Args{"check-path": "/health"})
	f.mode["10.0.0.1"] = "redirect"
	f.live(20 * time.Second)
	if h, last := f.health("10.0.0.1"); h != "up" {
		t.Errorf("one that redirects is %s: %s", h, last)
	}
}

// backends are those that so many clients' packets go to, by client.
func (f *farm) backends(clients int) []string {
	f.t.Helper()
	at := make([]string, clients)
	for i := range at {
		s := request(false, true, i)
		s.dst = "10.0.0.100"
		got := 0
		for _, out := range f.x.Push("a", build(f.t, s)).Out["b"] {
			if net.HardwareAddr(out.Bytes[6:12]).String() != boxMAC { // that is a check
				at[i] = netip.AddrFrom4([4]byte(out.Bytes[30:34])).String()
				got++
			}
		}
		if got != 1 {
			f.t.Fatalf("client %d: %d frames", i, got)
		}
	}
	return at
}

// TestDown: new connections go to backends that are well, connections of these do not move, and those of one that is down stay or go
// as they are told. Where all are down it is as if none was.
func TestDown(t *testing.T) {
	for _, what := range []string{"keep", "move"} {
		f := newFarm(t, "tcp", graph.Args{"check-interval": "100ms", "check-timeout": "50ms", "check-down": what})
		before := f.backends(300)
		f.mode["10.0.0.2"] = "refuse"
		f.live(time.Second)
		after, moved := f.backends(300), 0
		for i := range before {
			switch {
			case before[i] != "10.0.0.2":
				if after[i] != before[i] {
					t.Fatalf("%s: client %d went from %s to %s", what, i, before[i], after[i])
				}
			case after[i] != before[i]:
				moved++
			}
		}
		if (moved > 0) != (what == "move") {
			t.Errorf("%s: %d connections moved", what, moved)
		}
		fresh := f.backends(900)[300:]
		count := map[string]int{}
		for _, a := range fresh {
			count[a]++
		}
		if count["10.0.0.2"] != 0 || count["10.0.0.1"] < 200 || count["10.0.0.3"] < 200 {
			t.Errorf("%s: new connections: %v", what, count)
		}
		f.mode["10.0.0.1"], f.mode["10.0.0.3"] = "silent", "silent"
		f.live(time.Second)
		count = map[string]int{}
		for _, a := range f.backends(1500)[900:] {
			count[a]++
		}
		if len(count) != 3 {
			t.Errorf("%s: with all down: %v", what, count)
		}
	}
}

// TestManyDown: with all but one of many backends down, that one gets all.
func TestManyDown(t *testing.T) {
	var all []string
	for i := range 200 {
		all = append(all, fmt.Sprintf("10.0.1.%d@02:00:00:00:01:%02x", i+1, i+1))
	}
	f := newFarm(t, "tcp", graph.Args{"check-interval": "1s", "check-timeout": "500ms", "size": "20011", "backends": strings.Join(all, "+")})
	for i := range 200 {
		if i != 77 {
			f.mode[fmt.Sprintf("10.0.1.%d", i+1)] = "refuse"
		}
	}
	f.live(6 * time.Second)
	for i, a := range f.backends(100) {
		if a != "10.0.1.78" {
			t.Fatalf("client %d goes to %s", i, a)
		}
	}
}

// TestOwnAddress: the box answers for its own address, and for no other's; what comes for it does not go on to clients.
func TestOwnAddress(t *testing.T) {
	f := newFarm(t, "icmp", nil)
	f.live(3 * time.Second)
	arp := func(target string) []byte {
		s := gopacket.NewSerializeBuffer()
		_ = gopacket.SerializeLayers(s, gopacket.SerializeOptions{FixLengths: true},
			&layers.Ethernet{SrcMAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, DstMAC: layers.EthernetBroadcast, EthernetType: layers.EthernetTypeARP},
			&layers.ARP{AddrType: layers.LinkTypeEthernet, Protocol: layers.EthernetTypeIPv4, HwAddressSize: 6, ProtAddressSize: 4, Operation: layers.ARPRequest,
				SourceHwAddress: []byte{2, 0, 0, 0, 0, 1}, SourceProtAddress: []byte{10, 0, 0, 1}, DstHwAddress: make([]byte, 6), DstProtAddress: net.ParseIP(target).To4()})
		return bytes.Clone(s.Bytes())
	}
	r := f.x.Push("b", arp(box4))
	if len(r.Out["a"]) != 0 || len(r.Out["b"]) != 1 {
		t.Fatalf("%+v", r.Out)
	}
	got, ok := gopacket.NewPacket(r.Out["b"][0].Bytes, layers.LayerTypeEthernet, gopacket.Default).Layer(layers.LayerTypeARP).(*layers.ARP)
	if !ok || got.Operation != layers.ARPReply || net.HardwareAddr(got.SourceHwAddress).String() != boxMAC || net.IP(got.SourceProtAddress).String() != box4 ||
		net.IP(got.DstProtAddress).String() != "10.0.0.1" || net.HardwareAddr(got.DstHwAddress).String() != "02:00:00:00:00:01" {
		t.Errorf("%+v", got)
	}
	for _, in := range []string{"a", "b"} {
		other := arp("10.0.0.7")
		if in == "a" {
			other = arp(box4) // clients are not its segment
		}
		r := f.x.Push(in, other)
		if out := r.Out[map[string]string{"a": "b", "b": "a"}[in]]; len(out) != 1 || !bytes.Equal(out[0].Bytes, other) {
			t.Errorf("from %s: %+v", in, r.Out)
		}
	}
	ns := func(from, target string) []byte {
		ip := &layers.IPv6{Version: 6, HopLimit: 255, NextHeader: layers.IPProtocolICMPv6, SrcIP: net.ParseIP(from), DstIP: net.ParseIP("ff02::1:ff00:99")}
		icmp := &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(layers.ICMPv6TypeNeighborSolicitation, 0)}
		_ = icmp.SetNetworkLayerForChecksum(ip)
		s := gopacket.NewSerializeBuffer()
		_ = gopacket.SerializeLayers(s, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true},
			&layers.Ethernet{SrcMAC: net.HardwareAddr{2, 0, 0, 0, 0, 0x11}, DstMAC: net.HardwareAddr{0x33, 0x33, 0xff, 0, 0, 0x99}, EthernetType: layers.EthernetTypeIPv6},
			ip, icmp, &layers.ICMPv6NeighborSolicitation{TargetAddress: net.ParseIP(target)})
		return bytes.Clone(s.Bytes())
	}
	// Who asks whether the address is free has none yet: all are told that it is not (RFC 4861 7.2.4).
	for from, want := range map[string]struct {
		mac, to string
		flags   uint8
	}{"fd00::1": {"02:00:00:00:00:11", "fd00::1", 0x60}, "::": {"33:33:00:00:00:01", "ff02::1", 0x20}} {
		r = f.x.Push("b", ns(from, box6))
		if len(r.Out["a"]) != 0 || len(r.Out["b"]) != 1 {
			t.Fatalf("%s: %+v", from, r.Out)
		}
		b := r.Out["b"][0].Bytes
		na, ok := gopacket.NewPacket(b, layers.LayerTypeEthernet, gopacket.Default).Layer(layers.LayerTypeICMPv6NeighborAdvertisement).(*layers.ICMPv6NeighborAdvertisement)
		if !ok || na.TargetAddress.String() != box6 || len(na.Options) != 1 || net.HardwareAddr(na.Options[0].Data).String() != boxMAC || pseudo(b[22:38], b[38:54], 58, b[54:]) != 0 ||
			na.Flags != want.flags || net.HardwareAddr(b[:6]).String() != want.mac || net.IP(b[38:54]).String() != want.to {
			t.Errorf("%s: %+v in %x", from, na, b)
		}
	}
	tagged := ns("fd00::1", box6) // of another network
	tagged = append(append(bytes.Clone(tagged[:12]), 0x81, 0, 0, 7), tagged[12:]...)
	for _, other := range [][]byte{ns("fd00::1", "fd00::98"), tagged} {
		if r := f.x.Push("b", other); len(r.Out["a"]) != 1 || len(r.Out["b"]) != 0 {
			t.Errorf("%+v", r.Out)
		}
	}
}

// TestStrangers: who does not know the numbers of a check cannot say that a backend is well or not.
func TestStrangers(t *testing.T) {
	f := newFarm(t, "tcp", graph.Args{"check-interval": "100ms", "check-timeout": "90ms"})
	f.mode["10.0.0.1"] = "silent"
	for i := range 400 {
		f.live(10 * time.Millisecond)
		for _, who := range []string{"10.0.0.1", "10.0.0.2"} {
			b := build(t, seg{tcp: true, src: who, dst: box4, sport: 80, dport: uint16(32768 + 70*i), srcMAC: 1, dstMAC: 0x99})
			b[47] = []byte{0x12, 0x14}[i%2] // SYN and ACK, or RST and ACK
			copy(b[42:], []byte{byte(i), 2, 3, 4})
			if r := f.x.Push("b", b); len(r.Out["a"])+len(r.Out["b"]) != 0 {
				t.Fatalf("%+v", r.Out)
			}
		}
	}
	if h, last := f.health("10.0.0.1"); h != "down" {
		t.Errorf("%s: %s", h, last)
	}
	if h, last := f.health("10.0.0.2"); h != "up" {
		t.Errorf("%s: %s", h, last)
	}
}

// TestCheckArguments: what cannot be is refused, with the reason.
func TestCheckArguments(t *testing.T) {
	for want, more := range map[string]graph.Args{
		"no address of its family": {"check-from": box4 + "@" + boxMAC},
		"longer than":              {"check-timeout": "3s"},
		"want a path":              {"check-path": "health"},
		"is another's":             {"check-from": "10.0.0.1@" + boxMAC + "+" + box6 + "@" + boxMAC},
		"of a family":              {"check-from": box4 + "@" + boxMAC + "+10.0.0.98@" + boxMAC},
	} {
		a := graph.Args{"vip": "10.0.0.100+fd00::100", "port": "80", "check": "http", "check-from": box4 + "@" + boxMAC + "+" + box6 + "@" + boxMAC,
			"backends": "10.0.0.1@02:00:00:00:00:01+fd00::1@02:00:00:00:00:11"}
		if _, err := parse(a); err != nil {
			t.Fatal(err)
		}
		for k, v := range more {
			a[k] = v
		}
		if _, err := parse(a); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %s", more, err, want)
		}
	}
}
