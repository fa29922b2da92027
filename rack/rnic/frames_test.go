package rnic

import (
	"bytes"
	"encoding/binary"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"

	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/hdr/hdrtest"
	"github.com/quillon/quillon/nf/packet"
)

// TestUnreliable: messages arrive whole or not at all.
func TestUnreliable(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		l := newLink(t, Config{}, v6, 3)
		l.checkFrames()
		p := l.pair(TypeUC, quick(), 1<<16)
		drop := 0
		l.lose = func(int, []byte) bool { drop++; return drop%7 == 0 }
		want := map[uint32]bool{}
		bufs := make([][]byte, 40)
		for i := range bufs {
			bufs[i] = make([]byte, 1500)
			if err := p.qp[1].PostRecv(&RecvWR{ID: uint64(i), Buf: bufs[i]}); err != nil {
				t.Fatal(err)
			}
			src := make([]byte, 100*(i%10)+1)
			fill(src, byte(i))
			op := OpSendImm
			if i%2 == 1 {
				op = OpWriteImm
			}
			p.post(&SendWR{ID: uint64(i), Op: op, SGL: [][]byte{src}, RemoteAddr: testVA + uint64(i)<<10, RKey: p.mr[1].RKey, Imm: uint32(i), Signaled: true})
			want[uint32(i)] = true
		}
		if got := p.done(0); len(got) != len(bufs) {
			t.Fatalf("%d completions", len(got))
		}
		got := p.done(1)
		if len(got) < 20 || len(got) == len(bufs) {
			t.Fatalf("%d messages arrived", len(got))
		}
		for _, w := range got {
			n := 100*(int(w.Imm)%10) + 1
			src := make([]byte, n)
			fill(src, byte(w.Imm))
			b := bufs[w.ID]
			if w.Op == OpRecvWriteImm {
				b = p.mem[1][w.Imm<<10:]
			}
			if !want[w.Imm] || int(w.ByteLen) != n || !bytes.Equal(b[:n], src) {
				t.Errorf("%+v", w)
			}
			want[w.Imm] = false
		}
		// No receive, wrong key: dropped, counted, and the connection lives.
		l.lose = nil
		p.qp[1].Reset()
		p.qp[1].conn.RQPSN = p.qp[0].req.postPSN
		if err := p.qp[1].Connect(p.qp[1].conn); err != nil {
			t.Fatal(err)
		}
		p.post(&SendWR{Op: OpSend, SGL: [][]byte{make([]byte, 300)}})
		p.post(&SendWR{Op: OpWrite, SGL: [][]byte{make([]byte, 300)}, RemoteAddr: testVA - 1, RKey: p.mr[1].RKey})
		p.post(&SendWR{Op: OpWrite, SGL: [][]byte{{0xAB}}, RemoteAddr: testVA, RKey: p.mr[1].RKey})
		l.run(1000)
		s := l.nic[1].Stats()
		if p.mem[1][0] != 0xAB || s.DropNoRecv != 1 || s.DropBadAccess != 1 || p.qp[1].State() != StateReady {
			t.Errorf("%+v", s)
		}
		l.conserved()
	}
}

func TestDatagram(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		l := newLink(t, Config{}, v6, 3)
		l.checkFrames()
		var frame []byte
		check := l.tap
		l.tap = func(i int, p []byte) { check(i, p); frame = bytes.Clone(p) }
		p := l.pair(TypeUD, Conn{SQPSN: 7}, 64)
		peer := l.nic[1].Config()
		ah := &AH{MAC: peer.MAC, IP: peer.IP, QPN: p.qp[1].QPN, QKey: 0x1234}
		src := make([]byte, 1024)
		for _, n := range []int{0, 1, 61, 1024} {
			fill(src, byte(n))
			buf := make([]byte, 40+n)
			if err := p.qp[1].PostRecv(&RecvWR{ID: 5, Buf: buf}); err != nil {
				t.Fatal(err)
			}
			p.post(&SendWR{ID: 4, Op: OpSendImm, SGL: [][]byte{src[:n]}, Imm: 9, Signaled: true, AH: ah})
			if w := p.one(0); w.Status != Success || w.ID != 4 {
				t.Fatalf("%+v", w)
			}
			if w, want := p.one(1), (WC{ID: 5, QPN: p.qp[1].QPN, Op: OpRecvImm, ByteLen: uint32(40 + n), Imm: 9, SrcQP: p.qp[0].QPN, SrcMAC: macA}); w != want {
				t.Fatalf("%+v, want %+v", w, want)
			}
			grh := frame[14 : 14+40]
			if !v6 {
				grh = append(make([]byte, 20), frame[14:34]...)
			}
			if !bytes.Equal(buf[:40], grh) || !bytes.Equal(buf[40:], src[:n]) {
				t.Fatalf("%d bytes arrived wrong", n)
			}
		}
		// Wrong key; no receive request; too long for the receive request.
		bad := *ah
		bad.QKey = 1
		p.post(&SendWR{Op: OpSend, AH: &bad})
		p.post(&SendWR{Op: OpSend, AH: ah})
		l.run(100)
		p.qp[1].PostRecv(&RecvWR{Buf: make([]byte, 41)})
		p.post(&SendWR{Op: OpSend, AH: ah, SGL: [][]byte{src[:2]}})
		// A controlled key is the sender's own.
		bad.QKey = 1 << 31
		p.post(&SendWR{Op: OpSend, AH: &bad})
		l.run(100)
		if s := l.nic[1].Stats(); s.DropBadQKey != 1 || s.DropNoRecv != 2 || p.cq[1].Len() != 1 {
			t.Errorf("%+v, %d completions", s, p.cq[1].Len())
		}
		for _, w := range []SendWR{{Op: OpSend}, {Op: OpWrite, AH: ah}, {Op: OpSend, AH: ah, SGL: [][]byte{make([]byte, 1025)}}} {
			if p.qp[0].PostSend(&w) == nil {
				t.Errorf("%+v was taken", w)
			}
		}
		l.conserved()
	}
}

// TestFilter damages a good request in one field at a time and makes the ICRC right. The NIC drops the frame
// for the right reason and changes no memory.
func TestFilter(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		l3, src := 20, 14+15
		if v6 {
			l3, src = 40, 14+23
		}
		bth := 14 + l3 + 8
		for _, c := range []struct {
			name string
			edit func(p []byte)
			get  func(s *Stats) uint64
			raw  bool // leave the ICRC as it is
		}{
			{"good", func(p []byte) {}, func(s *Stats) uint64 { return s.RxRequests }, false},
			{"TTL and ECN", func(p []byte) {
				if !v6 {
					p[15], p[22] = 3, 9
					p[24], p[25] = 0, 0
					binary.BigEndian.PutUint16(p[24:], ^sum16(p[14:34], 0))
				} else {
					p[15], p[21] = 0x30, 9
				}
			}, func(s *Stats) uint64 { return s.RxRequests }, true},
			{"source port", func(p []byte) { p[14+l3]++ }, func(s *Stats) uint64 { return s.RxRequests }, false},
			{"ICRC", func(p []byte) { p[len(p)-2]++ }, func(s *Stats) uint64 { return s.DropBadICRC }, true},
			{"payload", func(p []byte) { p[len(p)-5]++ }, func(s *Stats) uint64 { return s.DropBadICRC }, true},
			{"MAC", func(p []byte) { p[5]++ }, func(s *Stats) uint64 { return s.DropNotForUs }, false},
			{"broadcast", func(p []byte) { copy(p, bytes.Repeat([]byte{0xFF}, 6)) }, func(s *Stats) uint64 { return s.DropNotForUs }, false},
			{"destination address", func(p []byte) { p[14+l3-1]++ }, func(s *Stats) uint64 { return s.DropNotForUs }, false},
			{"source address", func(p []byte) { p[src]++ }, func(s *Stats) uint64 { return s.DropWrongPeer }, false},
			{"P_Key", func(p []byte) { p[bth+3] = 0xFE }, func(s *Stats) uint64 { return s.DropBadPKey }, false},
			{"limited P_Key", func(p []byte) { p[bth+2] = 0x7F }, func(s *Stats) uint64 { return s.RxRequests }, false},
			{"TVer", func(p []byte) { p[bth+1] |= 1 }, func(s *Stats) uint64 { return s.DropMalformed }, false},
			{"QPN", func(p []byte) { p[bth+7]++ }, func(s *Stats) uint64 { return s.DropUnknownQPN }, false},
			{"QPN 0", func(p []byte) { clear(p[bth+5 : bth+8]) }, func(s *Stats) uint64 { return s.DropUnknownQPN }, false},
			{"opcode", func(p []byte) { p[bth] = 0x15 }, func(s *Stats) uint64 { return s.DropMalformed }, false},
			{"UC opcode", func(p []byte) { p[bth] |= 0x20 }, func(s *Stats) uint64 { return s.DropBadState }, false},
			{"UDP port", func(p []byte) { p[14+l3+3]++ }, func(s *Stats) uint64 { return s.DropNotRoCE }, true},
			{"IP version", func(p []byte) { p[14] = 0x55 }, func(s *Stats) uint64 { return s.DropMalformed }, true},
		} {
			l := newLink(t, Config{}, v6, 1)
			p := l.pair(TypeRC, quick(), 64)
			p.post(&SendWR{Op: OpWrite, SGL: [][]byte{[]byte("12345678")}, RemoteAddr: testVA, RKey: p.mr[1].RKey})
			l.nic[0].Output(l.now, &l.batch)
			b := l.batch.At(0)
			l.batch.Reset()
			var f hdr.Frame
			hdr.Parse(b.Bytes(), &f)
			c.edit(b.Bytes())
			if !c.raw {
				if p := b.Bytes(); !v6 {
					p[24], p[25] = 0, 0
					binary.BigEndian.PutUint16(p[24:], ^sum16(p[14:34], 0))
				}
				hdr.SetICRC(b.Bytes(), &f)
			}
			l.nic[1].Input(l.now, b)
			s := l.nic[1].Stats()
			if c.get(&s) != 1 || (s.RxRequests == 1) != (p.mem[1][0] == '1') {
				t.Errorf("v6 %v, %s: %+v, memory %x", v6, c.name, s, p.mem[1][:8])
			}
			l.conserved()
		}
	}
}

// reply gives a frame to NIC i and returns its answer; nil: there is none.
func (l *link) reply(i int, frame []byte) gopacket.Packet {
	b := l.pool.Get()
	b.SetBytes(frame)
	l.nic[i].Input(l.now, b)
	var out packet.Batch
	l.nic[i].Output(l.now, &out)
	defer out.PutAll()
	if out.Len() == 0 {
		return nil
	}
	return gopacket.NewPacket(bytes.Clone(out.At(0).Bytes()), layers.LayerTypeEthernet, gopacket.Default)
}

func TestNeighbours(t *testing.T) {
	host := net.HardwareAddr{2, 9, 9, 9, 9, 9}
	all := net.HardwareAddr{0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF}
	own := net.HardwareAddr(macA[:])
	l := newLink(t, Config{}, false, 1)
	arp := func(target net.IP, op uint16) []byte {
		return append(hdrtest.Build(t, &layers.Ethernet{SrcMAC: host, DstMAC: all, EthernetType: layers.EthernetTypeARP},
			&layers.ARP{AddrType: 1, Protocol: layers.EthernetTypeIPv4, HwAddressSize: 6, ProtAddressSize: 4, Operation: op,
				SourceHwAddress: host, SourceProtAddress: net.IP{10, 0, 0, 9}, DstHwAddress: make([]byte, 6), DstProtAddress: target}), make([]byte, 18)...)
	}
	r := l.reply(0, arp(net.IP{10, 0, 0, 1}, layers.ARPRequest))
	if r == nil {
		t.Fatal("no ARP reply")
	}
	e, a := r.LinkLayer().(*layers.Ethernet), r.Layer(layers.LayerTypeARP).(*layers.ARP)
	if e.DstMAC.String() != host.String() || e.SrcMAC.String() != own.String() || a.Operation != layers.ARPReply ||
		!bytes.Equal(a.SourceHwAddress, own) || !net.IP(a.SourceProtAddress).Equal(net.IP{10, 0, 0, 1}) ||
		!bytes.Equal(a.DstHwAddress, host) || !net.IP(a.DstProtAddress).Equal(net.IP{10, 0, 0, 9}) {
		t.Errorf("%v", r)
	}
	if l.reply(0, arp(net.IP{10, 0, 0, 2}, layers.ARPRequest)) != nil || l.reply(0, arp(net.IP{10, 0, 0, 1}, layers.ARPReply)) != nil {
		t.Error("answered an ARP packet that asks for nothing of ours")
	}

	echo := func(dst net.IP) []byte {
		return append(hdrtest.Build(t, &layers.Ethernet{SrcMAC: host, DstMAC: own, EthernetType: layers.EthernetTypeIPv4},
			&layers.IPv4{Version: 4, TTL: 3, Protocol: layers.IPProtocolICMPv4, SrcIP: net.IP{10, 0, 0, 9}, DstIP: dst},
			&layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(8, 0), Id: 77, Seq: 3}, gopacket.Payload("ping of odd length....")), 0, 0)
	}
	r = l.reply(0, echo(net.IP{10, 0, 0, 1}))
	if r == nil {
		t.Fatal("no echo reply")
	}
	ip, ic := r.NetworkLayer().(*layers.IPv4), r.Layer(layers.LayerTypeICMPv4).(*layers.ICMPv4)
	raw := r.Data()
	if !ip.DstIP.Equal(net.IP{10, 0, 0, 9}) || !ip.SrcIP.Equal(net.IP{10, 0, 0, 1}) || ic.TypeCode.Type() != 0 || ic.Id != 77 || ic.Seq != 3 ||
		string(ic.Payload) != "ping of odd length...." || sum16(raw[14:34], 0) != 0xFFFF || sum16(raw[34:], 0) != 0xFFFF {
		t.Errorf("%v", r)
	}
	bad := echo(net.IP{10, 0, 0, 1})
	bad[40]++
	if l.reply(0, bad) != nil || l.reply(0, echo(net.IP{10, 0, 0, 2})) != nil {
		t.Error("answered a wrong echo request")
	}
	if s := l.nic[0].Stats(); s.RxControl != 2 || s.TxControl != 2 || s.DropNotRoCE != 4 {
		t.Errorf("%+v", s)
	}
	// More frames than can wait: the rest are dropped and counted.
	for range controlDepth + 1 {
		b := l.pool.Get()
		b.SetBytes(echo(net.IP{10, 0, 0, 1}))
		l.nic[0].Input(l.now, b)
	}
	if s := l.nic[0].Stats(); s.DropControl != 1 || l.nic[0].Deadline() > l.now {
		t.Errorf("%+v", s)
	}
	l.nic[0].Output(l.now, &l.batch)
	l.batch.PutAll()
	l.conserved()

	l = newLink(t, Config{}, true, 1)
	for _, src := range []string{"fd00::9", "::"} {
		from := net.ParseIP(src)
		ip6 := &layers.IPv6{Version: 6, HopLimit: 255, NextHeader: layers.IPProtocolICMPv6, SrcIP: from, DstIP: net.ParseIP("ff02::1:ff00:1")}
		ic6 := &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(135, 0)}
		r := l.reply(0, hdrtest.Build(t, &layers.Ethernet{SrcMAC: host, DstMAC: net.HardwareAddr{0x33, 0x33, 0xFF, 0, 0, 1}, EthernetType: layers.EthernetTypeIPv6}, ip6, ic6,
			&layers.ICMPv6NeighborSolicitation{TargetAddress: net.ParseIP("fd00::1")}))
		if r == nil {
			t.Fatal("no neighbour advertisement")
		}
		na, _ := r.Layer(layers.LayerTypeICMPv6NeighborAdvertisement).(*layers.ICMPv6NeighborAdvertisement)
		want, mac := from, host.String()
		if src == "::" {
			want, mac = net.ParseIP("ff02::1"), "33:33:00:00:00:01"
		}
		raw := r.Data()
		if na == nil || !na.TargetAddress.Equal(net.ParseIP("fd00::1")) || len(na.Options) != 1 || !bytes.Equal(na.Options[0].Data, own) ||
			na.Solicited() != (src != "::") || !r.NetworkLayer().(*layers.IPv6).DstIP.Equal(want) || r.LinkLayer().(*layers.Ethernet).DstMAC.String() != mac ||
			sum6(raw[14:54], raw[54:]) != 0xFFFF {
			t.Errorf("%v", r)
		}
	}
	ip6 := &layers.IPv6{Version: 6, HopLimit: 5, NextHeader: layers.IPProtocolICMPv6, SrcIP: net.ParseIP("fd00::9"), DstIP: net.ParseIP("fd00::1")}
	ic6 := &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(128, 0)}
	r = l.reply(0, hdrtest.Build(t, &layers.Ethernet{SrcMAC: host, DstMAC: own, EthernetType: layers.EthernetTypeIPv6}, ip6, ic6, gopacket.Payload("\x00\x01\x00\x02ping")))
	if r == nil {
		t.Fatal("no echo reply")
	}
	raw = r.Data()
	if raw[54] != 129 || sum6(raw[14:54], raw[54:]) != 0xFFFF || string(raw[62:]) != "ping" || !r.NetworkLayer().(*layers.IPv6).SrcIP.Equal(net.ParseIP("fd00::1")) {
		t.Errorf("%v", r)
	}
	l.conserved()
}

// TestTshark shows one frame of every kind to Wireshark's dissectors.
func TestTshark(t *testing.T) {
	if _, err := exec.LookPath("tshark"); err != nil {
		t.Skip("tshark is not installed: apt-get install tshark")
	}
	name := filepath.Join(t.TempDir(), "rnic.pcap")
	file, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	w := pcapgo.NewWriter(file)
	if err := w.WriteFileHeader(65536, layers.LinkTypeEthernet); err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, v6 := range []bool{false, true} {
		for i, look := range []Link{{}, {}, {RoCEv1: true}, {Tag: Tag{On: true, VID: 7}}, {Tag: Tag{On: true, PCP: 3}, RoCEv1: true}} {
			profile := RXE
			if i > 0 {
				profile = ConnectX
			}
			l := newLink(t, Config{Profile: profile, Link: look}, v6, 1)
			l.tap = func(_ int, p []byte) {
				if i > 1 { // and CNPs
					mark(p)
				}
				if err := w.WritePacket(gopacket.CaptureInfo{Timestamp: time.Unix(0, int64(l.now)), CaptureLength: len(p), Length: len(p)}, p); err != nil {
					t.Error(err)
				}
				var f hdr.Frame
				hdr.Parse(p, &f)
				want = append(want, strings.ToLower(f.Op.String()))
			}
			c := quick()
			p, uc, ud := l.pair(TypeRC, c, 4096), l.pair(TypeUC, c, 4096), l.pair(TypeUD, c, 64)
			for _, q := range []*pair{p, uc, ud} {
				for range 6 {
					if err := q.qp[1].PostRecv(&RecvWR{Buf: make([]byte, 2000)}); err != nil {
						t.Fatal(err)
					}
				}
			}
			key := p.mr[1].RKey
			for _, n := range []int{5, 1001} {
				data := [][]byte{make([]byte, n)}
				for _, op := range []Op{OpSend, OpSendImm, OpWrite, OpWriteImm, OpRead, OpCompareSwap, OpFetchAdd} {
					sgl := data
					if op >= OpCompareSwap {
						sgl = [][]byte{make([]byte, 8)}
					}
					p.post(&SendWR{Op: op, SGL: sgl, RemoteAddr: testVA, RKey: key, Solicited: true})
					if op <= OpWriteImm && op != OpSendInv {
						uc.post(&SendWR{Op: op, SGL: data, RemoteAddr: testVA, RKey: uc.mr[1].RKey})
					}
				}
			}
			peer := l.nic[1].Config()
			ud.post(&SendWR{Op: OpSend, SGL: [][]byte{make([]byte, 13)}, AH: &AH{MAC: peer.MAC, IP: peer.IP, QPN: ud.qp[1].QPN, QKey: 0x1234}})
			l.run(10_000)
			p.post(&SendWR{Op: OpRead, SGL: [][]byte{make([]byte, 4)}, RemoteAddr: 1, RKey: key}) // NAK
			l.run(10_000)
		}
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	// Wireshark takes payloads for RPC over RDMA, and reports that IPv6 frames have no UDP checksum, as
	// RoCEv2 wants.
	cmd := exec.Command("tshark", "-r", name, "--disable-protocol", "rpcordma", "-o", "ip.check_checksum:TRUE", "-T", "fields",
		"-e", "infiniband.bth.opcode", "-e", "_ws.malformed", "-e", "ip.checksum.status", "-e", "_ws.expert.message", "-e", "_ws.expert.severity")
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimRight(string(out), "\n"), "\n")
	if len(lines) != len(want) {
		t.Fatalf("tshark saw %d frames of %d", len(lines), len(want))
	}
	for i, s := range lines {
		f := strings.Split(s, "\t")
		if f[0] == "" || f[1] != "" || f[2] != "" && f[2] != "1" || f[3] != "" && f[3] != "Illegal checksum value (0)" {
			t.Errorf("frame %d (%s): %q", i+1, want[i], s)
		}
	}
}
