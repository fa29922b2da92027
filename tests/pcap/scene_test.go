package pcap_test

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"flag"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/port/pcap"
)

var inputs = flag.Bool("inputs", false, "write the inputs of the cases that were made by hand anew")

// TestInputs: the inputs a.pcap and b.pcap of cases that were made by hand are what
// their scenes say.
func TestInputs(t *testing.T) {
	for dir, play := range map[string]func(*scene){
		"napt": naptScene, "firewall": firewallScene, "balance": balanceScene, "police": policeScene, "shape": shapeScene,
		"vxlan-made": vxlanScene, "vxlan-made-ipv6": vxlanSixScene, "nsh-edge": nshScene, "nsh-task": nshTaskScene, "nsh-forwarder": nshTaskScene, "aead-made": aeadScene, "aead-made-tunnel": aeadTunnelScene,
		"firewall-limits": limitsScene,
		"kvcache":         cacheScene, "replicate": replicateScene, "gobackn": gobacknScene, "hop": hopScene, "pfc": pfcScene, "arbiter": arbiterScene,
	} {
		t.Run(dir, func(t *testing.T) {
			s := &scene{T: t, now: clock.Time(1_800_000_000 * time.Second)}
			play(s)
			for side, name := range []string{"a.pcap", "b.pcap"} {
				path := filepath.Join(dir, name)
				got := s.capture(side)
				if *inputs {
					if err := errorOf(os.MkdirAll(dir, 0o755), os.WriteFile(path, got, 0o644)); err != nil {
						t.Fatal(err)
					}
				}
				if want, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
					t.Errorf("%s is not what the scene says (%v)", path, err)
				}
			}
		})
	}
}

func errorOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// scene is what comes in on both sides, one frame after another.
type scene struct {
	*testing.T
	now clock.Time
	in  [2][]pcap.Packet
}

// a and b have frames come in there, a microsecond apart.
func (s *scene) a(frames ...[]byte) { s.come(0, frames) }
func (s *scene) b(frames ...[]byte) { s.come(1, frames) }

func (s *scene) come(side int, frames [][]byte) {
	for _, f := range frames {
		s.now += 1000
		s.in[side] = append(s.in[side], pcap.Packet{Time: s.now, Data: f, OrigLen: uint32(len(f))})
	}
}

// wait lets time pass.
func (s *scene) wait(d time.Duration) { s.now = s.now.Add(d) }

func (s *scene) capture(side int) []byte {
	var b bytes.Buffer
	h := pcap.NewHeader(pcap.Classic)
	h.Nano = true
	w, err := pcap.NewWriter(&b, h)
	if err != nil {
		s.Fatal(err)
	}
	for i := range s.in[side] {
		if err := w.Write(&s.in[side][i]); err != nil {
			s.Fatal(err)
		}
	}
	if err := w.Flush(); err != nil {
		s.Fatal(err)
	}
	return b.Bytes()
}

// host is one end of a conversation: its MAC address is 02:00 and the last four
// bytes of its IP address, or what a multicast address has, unless mac says another.
type host struct {
	ip  netip.Addr
	mac net.HardwareAddr
}

func at(ip string) host {
	h := host{ip: netip.MustParseAddr(ip)}
	b := h.ip.AsSlice()
	h.mac = append(net.HardwareAddr{2, 0}, b[len(b)-4:]...)
	switch {
	case h.ip.IsMulticast() && h.ip.Is6(): // RFC 2464 section 7
		h.mac[0], h.mac[1] = 0x33, 0x33
	case h.ip.IsMulticast(): // RFC 1112 section 6.4
		copy(h.mac, []byte{1, 0, 0x5E, h.mac[3] & 0x7F})
	}
	return h
}

// via is a host behind a router: frames from and to it have the router's MAC address.
func via(ip string, mac net.HardwareAddr) host { return host{netip.MustParseAddr(ip), mac} }

// talk is how a host's packets to another look. Lengths and checksums are gopacket's.
type talk struct {
	from, to host
	vlans    []uint16
	tos, ttl uint8 // ttl 0: 64
	id       uint16
	df       bool
	options  []byte // of IPv4; of IPv6 a hop-by-hop header of these
}

func (k talk) back() talk {
	k.from, k.to = k.to, k.from
	return k
}

func (k talk) six() bool { return k.from.ip.Is6() }

// build is a frame of the talk with these layers behind IP.
func (k talk) build(proto layers.IPProtocol, above ...gopacket.SerializableLayer) []byte {
	types := make([]layers.EthernetType, len(k.vlans), len(k.vlans)+1)
	for i := range types {
		types[i] = layers.EthernetTypeDot1Q
	}
	types = append(types, layers.EthernetTypeIPv4)
	if k.six() {
		types[len(k.vlans)] = layers.EthernetTypeIPv6
	}
	l := []gopacket.SerializableLayer{&layers.Ethernet{SrcMAC: k.from.mac, DstMAC: k.to.mac, EthernetType: types[0]}}
	for i, v := range k.vlans {
		l = append(l, &layers.Dot1Q{VLANIdentifier: v, Type: types[i+1]})
	}
	ttl := cmp.Or(k.ttl, 64)
	var ip gopacket.NetworkLayer
	if k.six() {
		n := &layers.IPv6{Version: 6, TrafficClass: k.tos, HopLimit: ttl, NextHeader: proto, SrcIP: k.from.ip.AsSlice(), DstIP: k.to.ip.AsSlice()}
		l, ip = append(l, n), n
		if k.options != nil {
			n.NextHeader = layers.IPProtocolIPv6HopByHop
			l = append(l, gopacket.Payload(append([]byte{byte(proto), 0}, k.options...)))
		}
	} else {
		n := &layers.IPv4{Version: 4, TOS: k.tos, TTL: ttl, Id: k.id, Protocol: proto, SrcIP: k.from.ip.AsSlice(), DstIP: k.to.ip.AsSlice()}
		if k.df {
			n.Flags = layers.IPv4DontFragment
		}
		if k.options != nil {
			n.Options = []layers.IPv4Option{{OptionType: k.options[0], OptionLength: uint8(len(k.options)), OptionData: k.options[2:]}}
		}
		l, ip = append(l, n), n
	}
	for _, x := range above {
		if c, ok := x.(interface {
			SetNetworkLayerForChecksum(gopacket.NetworkLayer) error
		}); ok {
			_ = c.SetNetworkLayerForChecksum(ip)
		}
	}
	b := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, append(l, above...)...); err != nil {
		panic(err)
	}
	return bytes.Clone(b.Bytes())
}

// filling is n bytes that tell where they belong.
func filling(n int) gopacket.Payload {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i) ^ byte(i>>8)<<4
	}
	return b
}

func (k talk) udp(src, dst uint16, payload []byte) []byte {
	return k.build(layers.IPProtocolUDP, &layers.UDP{SrcPort: layers.UDPPort(src), DstPort: layers.UDPPort(dst)}, gopacket.Payload(payload))
}

// tcp is a segment with these flags, as "SA"; a SYN has an MSS.
func (k talk) tcp(src, dst uint16, flags string, seq, ack uint32, payload []byte) []byte {
	has := func(f byte) bool { return slices.Contains([]byte(flags), f) }
	h := &layers.TCP{SrcPort: layers.TCPPort(src), DstPort: layers.TCPPort(dst), Seq: seq, Ack: ack, Window: 4096,
		SYN: has('S'), ACK: has('A'), FIN: has('F'), RST: has('R'), PSH: has('P'), URG: has('U')}
	if h.SYN {
		h.Options = []layers.TCPOption{{OptionType: layers.TCPOptionKindMSS, OptionLength: 4, OptionData: []byte{0x05, 0xB4}}}
	}
	return k.build(layers.IPProtocolTCP, h, gopacket.Payload(payload))
}

// echo is an ICMP query, or its answer.
func (k talk) echo(answer bool, id, seq uint16, payload []byte) []byte {
	if k.six() {
		typ := uint8(layers.ICMPv6TypeEchoRequest)
		if answer {
			typ = layers.ICMPv6TypeEchoReply
		}
		return k.build(layers.IPProtocolICMPv6, &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(typ, 0)},
			&layers.ICMPv6Echo{Identifier: id, SeqNumber: seq}, gopacket.Payload(payload))
	}
	typ := uint8(layers.ICMPv4TypeEchoRequest)
	if answer {
		typ = layers.ICMPv4TypeEchoReply
	}
	return k.build(layers.IPProtocolICMPv4, &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(typ, 0), Id: id, Seq: seq}, gopacket.Payload(payload))
}

// failed is an ICMP error about a frame, of which it quotes n bytes from the IP header on.
func (k talk) failed(typ, code uint8, word uint32, about []byte, n int) []byte {
	var w [4]byte
	binary.BigEndian.PutUint32(w[:], word)
	quote := about[14:]
	quote = quote[:min(n, len(quote))]
	if k.six() {
		return k.build(layers.IPProtocolICMPv6, &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(typ, code)}, gopacket.Payload(append(w[:], quote...)))
	}
	return k.build(layers.IPProtocolICMPv4, &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(typ, code), Id: uint16(word >> 16), Seq: uint16(word)}, gopacket.Payload(quote))
}

// raw is a packet of any protocol.
func (k talk) raw(proto uint8, payload []byte) []byte {
	return k.build(layers.IPProtocol(proto), gopacket.Payload(payload))
}

// arp is the question who has an address.
func arp(from host, ip string) []byte {
	b := gopacket.NewSerializeBuffer()
	err := gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true},
		&layers.Ethernet{SrcMAC: from.mac, DstMAC: layers.EthernetBroadcast, EthernetType: layers.EthernetTypeARP},
		&layers.ARP{AddrType: layers.LinkTypeEthernet, Protocol: layers.EthernetTypeIPv4, HwAddressSize: 6, ProtAddressSize: 4, Operation: layers.ARPRequest,
			SourceHwAddress: from.mac, SourceProtAddress: from.ip.AsSlice(), DstHwAddress: make([]byte, 6), DstProtAddress: netip.MustParseAddr(ip).AsSlice()})
	if err != nil {
		panic(err)
	}
	return append(bytes.Clone(b.Bytes()), make([]byte, 18)...) // Ethernet's shortest frame
}

// fragments divides an untagged IPv4 frame behind so many bytes of its payload, multiples of 8.
func fragments(frame []byte, cuts ...int) (all [][]byte) {
	head := 14 + int(frame[14]&15)*4
	rest := frame[head:]
	from := 0
	for i := range len(cuts) + 1 {
		to := len(rest)
		if i < len(cuts) {
			to = cuts[i]
		}
		f := slices.Concat(frame[:head], rest[from:to])
		binary.BigEndian.PutUint16(f[16:], uint16(len(f)-14))
		more := uint16(0x2000)
		if i == len(cuts) {
			more = 0
		}
		binary.BigEndian.PutUint16(f[20:], more|uint16(from/8))
		all = append(all, sealed(f))
		from = to
	}
	return all
}

// sealed gives an untagged IPv4 frame the header checksum that it should have.
func sealed(f []byte) []byte {
	h := f[14 : 14+int(f[14]&15)*4]
	h[10], h[11] = 0, 0
	sum := uint32(0)
	for i := 0; i < len(h); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(h[i:]))
	}
	for sum > 0xFFFF {
		sum = sum>>16 + sum&0xFFFF
	}
	binary.BigEndian.PutUint16(h[10:], ^uint16(sum))
	return f
}

// changed is a copy of a frame with a byte of it changed; negative: counted from its end.
func changed(f []byte, at int, by byte) []byte {
	f = bytes.Clone(f)
	if at < 0 {
		at += len(f)
	}
	f[at] ^= by
	return f
}
