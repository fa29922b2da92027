// Package hdrtest builds frames for tests with gopacket, which shares no code with nf/hdr.
package hdrtest

import (
	"bytes"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
)

// Stack is an Ethernet header between 02:00:00:00:00:01 and :02, and VLAN tags behind it, the outer one first.
func Stack(vlans ...uint16) []gopacket.SerializableLayer {
	l := []gopacket.SerializableLayer{&layers.Ethernet{SrcMAC: []byte{2, 0, 0, 0, 0, 1}, DstMAC: []byte{2, 0, 0, 0, 0, 2}}}
	for _, v := range vlans {
		l = append(l, &layers.Dot1Q{VLANIdentifier: v})
	}
	return l
}

// Build is a frame of these layers. Lengths and checksums are computed, those of TCP, UDP and ICMPv6 over the IP header in
// front of them. An Ethernet type, or an IP protocol, that is 0 becomes that of the layer behind it.
func Build(t testing.TB, ls ...gopacket.SerializableLayer) []byte {
	t.Helper()
	var ip gopacket.NetworkLayer
	for i, l := range ls {
		next := gopacket.LayerTypeZero
		if i+1 < len(ls) {
			next = ls[i+1].LayerType()
		}
		switch l := l.(type) {
		case *layers.Ethernet:
			if l.EthernetType == 0 {
				l.EthernetType = etherTypes[next]
			}
		case *layers.Dot1Q:
			if l.Type == 0 {
				l.Type = etherTypes[next]
			}
		case *layers.IPv4:
			if ip, l.Version = l, 4; l.Protocol == 0 {
				l.Protocol = protocols[next]
			}
		case *layers.IPv6:
			if ip, l.Version = l, 6; l.NextHeader == 0 {
				l.NextHeader = protocols[next]
			}
		case interface {
			SetNetworkLayerForChecksum(gopacket.NetworkLayer) error
		}:
			if err := l.SetNetworkLayerForChecksum(ip); err != nil {
				t.Fatal(err)
			}
		}
	}
	out := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(out, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, ls...); err != nil {
		t.Fatal(err)
	}
	return bytes.Clone(out.Bytes())
}

var etherTypes = map[gopacket.LayerType]layers.EthernetType{
	layers.LayerTypeDot1Q: layers.EthernetTypeDot1Q,
	layers.LayerTypeIPv4:  layers.EthernetTypeIPv4,
	layers.LayerTypeIPv6:  layers.EthernetTypeIPv6,
	layers.LayerTypeARP:   layers.EthernetTypeARP,
}

var protocols = map[gopacket.LayerType]layers.IPProtocol{
	layers.LayerTypeTCP:    layers.IPProtocolTCP,
	layers.LayerTypeUDP:    layers.IPProtocolUDP,
	layers.LayerTypeICMPv4: layers.IPProtocolICMPv4,
	layers.LayerTypeICMPv6: layers.IPProtocolICMPv6,
}
