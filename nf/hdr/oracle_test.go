package hdr_test

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"

	"github.com/quillon/quillon/nf/hdr"
)

// fields is a set of header fields by name; both sides print them alike.
type fields map[string]string

func (f fields) put(name string, v ...any) { f[name] = fmt.Sprintln(v...) }

func ip(b []byte) netip.Addr { a, _ := netip.AddrFromSlice(b); return a }

// gopacketFields is what gopacket sees in a frame, ourFields what we see.
func gopacketFields(b []byte) fields {
	out := fields{}
	tags := 0
	for _, l := range gopacket.NewPacket(b, layers.LayerTypeEthernet, gopacket.Default).Layers() {
		switch l := l.(type) {
		case *layers.Ethernet:
			out.put("eth", [6]byte(l.DstMAC), [6]byte(l.SrcMAC), uint16(l.EthernetType))
		case *layers.Dot1Q:
			out.put(fmt.Sprint("tag", tags), l.Priority, l.DropEligible, l.VLANIdentifier, uint16(l.Type))
			tags++
		case *layers.ARP:
			out.put("arp", l.Operation, [6]byte(l.SourceHwAddress), ip(l.SourceProtAddress), [6]byte(l.DstHwAddress), ip(l.DstProtAddress))
		case *layers.IPv4:
			out.put("ip4", l.IHL*4, l.TOS, l.Length, l.Id, l.Flags&layers.IPv4DontFragment != 0, l.Flags&layers.IPv4MoreFragments != 0,
				int(l.FragOffset)*8, l.TTL, uint8(l.Protocol), l.Checksum, ip(l.SrcIP), ip(l.DstIP))
		case *layers.IPv6:
			out.put("ip6", l.TrafficClass, l.FlowLabel, l.Length, uint8(l.NextHeader), l.HopLimit, ip(l.SrcIP), ip(l.DstIP))
		case *layers.UDP:
			out.put("udp", uint16(l.SrcPort), uint16(l.DstPort), l.Length, l.Checksum)
		case *layers.TCP:
			fl := uint8(0)
			for i, f := range []bool{l.FIN, l.SYN, l.RST, l.PSH, l.ACK, l.URG, l.ECE, l.CWR} {
				if f {
					fl |= 1 << i
				}
			}
			out.put("tcp", uint16(l.SrcPort), uint16(l.DstPort), l.Seq, l.Ack, int(l.DataOffset)*4, fl, l.Window, l.Checksum, l.Urgent)
		case *layers.ICMPv4:
			out.put("icmp", l.TypeCode.Type(), l.TypeCode.Code(), l.Checksum, l.Id, l.Seq)
		}
	}
	return out
}

func ourFields(b []byte) fields {
	out := fields{}
	e := hdr.Ethernet(b)
	out.put("eth", e.Dst(), e.Src(), e.EtherType())
	et, at := e.EtherType(), hdr.EthernetLen
	for i := 0; et == hdr.EtherVLAN || et == hdr.EtherQinQ; i++ {
		v := hdr.VLAN(b[at:])
		out.put(fmt.Sprint("tag", i), v.PCP(), v.DEI(), v.VID(), v.EtherType())
		et, at = v.EtherType(), at+hdr.VLANLen
	}
	var proto uint8
	switch et {
	case hdr.EtherARP:
		h := hdr.ARP(b[at:])
		out.put("arp", h.Op(), h.SHA(), h.SPA(), h.THA(), h.TPA())
		return out
	case hdr.EtherIPv4:
		h := hdr.IPv4(b[at:])
		out.put("ip4", h.HeaderLen(), h.TOS(), h.TotalLen(), h.ID(), h.DF(), h.MF(), h.FragOffset(), h.TTL(), h.Protocol(), h.Checksum(), h.Src(), h.Dst())
		if h.IsFragment() {
			return out
		}
		proto, at = h.Protocol(), at+h.HeaderLen()
	case hdr.EtherIPv6:
		h := hdr.IPv6(b[at:])
		out.put("ip6", h.TrafficClass(), h.FlowLabel(), h.PayloadLen(), h.NextHeader(), h.HopLimit(), h.Src(), h.Dst())
		p, off, ok := h.Upper()
		if !ok {
			return out
		}
		proto, at = p, at+off
	}
	switch proto {
	case hdr.ProtoUDP:
		h := hdr.UDP(b[at:])
		out.put("udp", h.SrcPort(), h.DstPort(), h.Len(), h.Checksum())
	case hdr.ProtoTCP:
		h := hdr.TCP(b[at:])
		out.put("tcp", h.SrcPort(), h.DstPort(), h.Seq(), h.Ack(), h.HeaderLen(), h.Flags(), h.Window(), h.Checksum(), h.Urgent())
	case hdr.ProtoICMP:
		h := hdr.ICMP(b[at:])
		out.put("icmp", h.Type(), h.Code(), h.Checksum(), h.ID(), h.Seq())
	}
	return out
}

// built are frames that no capture holds, written by gopacket.
func built(t testing.TB) (frames [][]byte) {
	mac := []byte{2, 0, 0, 0, 0, 1}
	eth := func(et layers.EthernetType) *layers.Ethernet {
		return &layers.Ethernet{SrcMAC: mac, DstMAC: []byte{2, 0, 0, 0, 0, 2}, EthernetType: et}
	}
	v4 := &layers.IPv4{Version: 4, TTL: 9, TOS: 3, Id: 77, Protocol: layers.IPProtocolICMPv4, SrcIP: []byte{10, 1, 2, 3}, DstIP: []byte{10, 4, 5, 6},
		Options: []layers.IPv4Option{{OptionType: 148, OptionLength: 4, OptionData: []byte{0, 0}}}}
	frag := *v4
	frag.Flags, frag.FragOffset = layers.IPv4MoreFragments, 185
	v6 := &layers.IPv6{Version: 6, TrafficClass: 0x5A, FlowLabel: 0xABCDE, HopLimit: 3, NextHeader: layers.IPProtocolIPv6HopByHop,
		SrcIP: bytes.Repeat([]byte{0xFD}, 16), DstIP: bytes.Repeat([]byte{0xFC}, 16)}
	udp := &layers.UDP{SrcPort: 4000, DstPort: 5000}
	if err := udp.SetNetworkLayerForChecksum(v6); err != nil {
		t.Fatal(err)
	}
	hop := gopacket.Payload{17, 0, 1, 4, 0, 0, 0, 0}
	for _, ls := range [][]gopacket.SerializableLayer{
		{eth(layers.EthernetTypeARP), &layers.ARP{AddrType: 1, Protocol: 0x800, HwAddressSize: 6, ProtAddressSize: 4, Operation: 1,
			SourceHwAddress: mac, SourceProtAddress: []byte{10, 0, 0, 1}, DstHwAddress: make([]byte, 6), DstProtAddress: []byte{10, 0, 0, 2}}},
		{eth(layers.EthernetTypeQinQ), &layers.Dot1Q{Priority: 5, DropEligible: true, VLANIdentifier: 4000, Type: layers.EthernetTypeDot1Q},
			&layers.Dot1Q{Priority: 1, VLANIdentifier: 12, Type: layers.EthernetTypeIPv4}, v4,
			&layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(8, 0), Id: 5, Seq: 6}, gopacket.Payload("ping")},
		{eth(layers.EthernetTypeIPv4), &frag, gopacket.Payload(make([]byte, 64))},
		{eth(layers.EthernetTypeIPv6), v6, hop, udp, gopacket.Payload("odd")},
	} {
		w := gopacket.NewSerializeBuffer()
		if err := gopacket.SerializeLayers(w, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, ls...); err != nil {
			t.Fatal(err)
		}
		frames = append(frames, bytes.Clone(w.Bytes()))
	}
	return frames
}

func TestGopacketAgrees(t *testing.T) {
	seen := map[string]int{}
	for i, b := range append(built(t), corpus(t)...) {
		want := gopacketFields(b)
		if d := cmp.Diff(want, ourFields(b)); d != "" {
			t.Errorf("frame %d (-gopacket +hdr):\n%s%x", i, d, b)
		}
		for k := range want {
			seen[k]++
		}
	}
	for _, k := range []string{"eth", "tag0", "tag1", "arp", "ip4", "ip6", "udp", "tcp", "icmp"} {
		if seen[k] == 0 {
			t.Errorf("no frame has %s", k)
		}
	}
	// The checksums that gopacket computed, over options, an odd payload and
	// a pseudo-header, are right to us too.
	frames := built(t)
	icmp := hdr.IPv4(frames[1][22:])
	if !icmp.ChecksumOK() || hdr.Checksum(icmp[icmp.HeaderLen():icmp.TotalLen()], 0) != 0 {
		t.Error("IPv4 or ICMP checksum")
	}
	v6 := hdr.IPv6(frames[3][14:])
	seg := v6[48 : 40+int(v6.PayloadLen())]
	if hdr.Checksum(seg, hdr.PseudoSum(v6.Src(), v6.Dst(), hdr.ProtoUDP, len(seg))) != 0 {
		t.Error("UDP checksum over IPv6")
	}
}

// tsharkFields are the fields asked of tshark; ourRow prints ours like it.
var tsharkFields = strings.Fields(`infiniband.bth.opcode infiniband.bth.se infiniband.bth.m infiniband.bth.padcnt infiniband.bth.tver
	infiniband.bth.p_key infiniband.bth.destqp infiniband.bth.a infiniband.bth.psn infiniband.deth.srcqp
	infiniband.reth.va infiniband.reth.r_key infiniband.reth.dmalen infiniband.atomiceth.swapdt infiniband.atomiceth.cmpdt
	infiniband.aeth.syndrome infiniband.aeth.msn infiniband.atomicacketh.origremdt infiniband.immdt infiniband.ieth
	infiniband.mad.attributeid infiniband.cm.req infiniband.cm.req.localqpn infiniband.cm.req.startpsn infiniband.cm.req.pppmtu
	infiniband.cm.req.serviceid.dport infiniband.cm.req.ip_cm.sport infiniband.cm.rep infiniband.cm.rep.remotecommid
	infiniband.cm.rep.localqpn infiniband.cm.rep.startpsn infiniband.cm.dreq.localcommid infiniband.cm.req.remoteqpneecn`)

func ourRow(b []byte, f *hdr.Frame) []string {
	out := map[string]string{}
	set := func(name, format string, v any) { out["infiniband."+name] = fmt.Sprintf(format, v) }
	bit := func(v bool) int {
		if v {
			return 1
		}
		return 0
	}
	h := f.BTHOf(b)
	set("bth.opcode", "%d", h.OpCode())
	set("bth.se", "%d", bit(h.Solicited()))
	set("bth.m", "%d", bit(h.MigReq()))
	set("bth.padcnt", "%d", h.PadCount())
	set("bth.tver", "%d", h.TVer())
	set("bth.p_key", "%d", h.PKey())
	set("bth.destqp", "0x%06x", h.DestQP())
	set("bth.a", "%d", bit(h.AckReq()))
	set("bth.psn", "%d", h.PSN())
	ext := f.Op.Info().Ext
	if ext&hdr.HasDETH != 0 {
		set("deth.srcqp", "0x%08x", f.DETHOf(b).SrcQP())
	}
	if ext&hdr.HasRETH != 0 {
		r := f.RETHOf(b)
		set("reth.va", "0x%016x", r.VA())
		set("reth.r_key", "0x%08x", r.RKey())
		set("reth.dmalen", "%d", r.DMALength())
	}
	if ext&hdr.HasAtomicETH != 0 {
		a := f.AtomicETHOf(b)
		set("reth.va", "0x%016x", a.VA())
		set("reth.r_key", "0x%08x", a.RKey())
		set("atomiceth.swapdt", "%d", a.Swap())
		set("atomiceth.cmpdt", "%d", a.Compare())
	}
	if ext&hdr.HasAETH != 0 {
		set("aeth.syndrome", "%d", f.AETHOf(b).Syndrome())
		set("aeth.msn", "%d", f.AETHOf(b).MSN())
	}
	if ext&hdr.HasAtomicAckETH != 0 {
		set("atomicacketh.origremdt", "%d", f.AtomicAckETHOf(b).Original())
	}
	if ext&hdr.HasImmDt != 0 {
		set("immdt", "%08x", f.ImmDtOf(b).Data())
	}
	if ext&hdr.HasIETH != 0 {
		set("ieth", "%08x", f.IETHOf(b).RKey())
	}
	if m, ok := f.CMOf(b); ok {
		set("mad.attributeid", "0x%04x", uint16(m.AttributeID()))
		switch m.AttributeID() {
		case hdr.ConnectRequest:
			set("cm.req", "0x%08x", m.LocalCommID())
			set("cm.req.localqpn", "0x%06x", m.LocalQPN())
			set("cm.req.startpsn", "0x%06x", m.StartingPSN())
			set("cm.req.pppmtu", "0x%02x", map[int]int{256: 1, 512: 2, 1024: 3, 2048: 4, 4096: 5}[m.PathMTU()])
			if s, d, ok := m.IPEndpoints(); ok {
				set("cm.req.serviceid.dport", "0x%04x", d.Port())
				set("cm.req.ip_cm.sport", "0x%04x", s.Port())
			}
		case hdr.ConnectReply:
			set("cm.rep", "0x%08x", m.LocalCommID())
			set("cm.rep.remotecommid", "0x%08x", m.RemoteCommID())
			set("cm.rep.localqpn", "0x%06x", m.LocalQPN())
			set("cm.rep.startpsn", "0x%06x", m.StartingPSN())
		case hdr.DisconnectRequest:
			set("cm.dreq.localcommid", "0x%08x", m.LocalCommID())
			set("cm.req.remoteqpneecn", "0x%06x", m.RemoteQPN())
		}
	}
	row := make([]string, len(tsharkFields))
	for i, n := range tsharkFields {
		row[i] = out[n]
	}
	return row
}

func TestTsharkAgrees(t *testing.T) {
	if _, err := exec.LookPath("tshark"); err != nil {
		t.Skip("tshark is not installed: its dissection is not compared")
	}
	name := filepath.Join(t.TempDir(), "frames.pcap")
	file, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	w := pcapgo.NewWriter(file)
	if err := w.WriteFileHeader(0xFFFF, layers.LinkTypeEthernet); err != nil {
		t.Fatal(err)
	}
	var want [][]string
	for _, b := range corpus(t) {
		var f hdr.Frame
		hdr.Parse(b, &f)
		if f.BTH == 0 || f.Op == hdr.MaskedCompSwap {
			continue // tshark does not know masked atomics
		}
		want = append(want, ourRow(b, &f))
		if err := w.WritePacket(gopacket.CaptureInfo{CaptureLength: len(b), Length: len(b)}, b); err != nil {
			t.Fatal(err)
		}
	}
	args := []string{"-r", name, "-T", "fields", "-E", "occurrence=f"}
	for _, f := range tsharkFields {
		args = append(args, "-e", f)
	}
	cmd := exec.Command("tshark", args...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err, stderr.String())
	}
	lines := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
	if len(lines) != len(want) {
		t.Fatalf("%d lines for %d frames", len(lines), len(want))
	}
	for i, l := range lines {
		for k, v := range strings.Split(l, "\t") {
			if v != want[i][k] {
				t.Errorf("frame %d: %s is %q to tshark, %q to us", i+1, tsharkFields[k], v, want[i][k])
			}
		}
	}
}
