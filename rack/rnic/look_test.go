package rnic

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
)

// mark sets the ECN codepoint CE as a switch does.
func mark(p []byte) {
	var f hdr.Frame
	hdr.Parse(p, &f)
	if f.Net != hdr.NetIPv4 {
		hdr.IPv6(p[f.L3:]).SetTrafficClass(hdr.IPv6(p[f.L3:]).TrafficClass() | 3)
	} else {
		p[f.L3+1] |= 3
		f.IPv4Of(p).UpdateChecksum()
	}
}

func looks() []Link {
	var all []Link
	for _, tag := range []Tag{{}, {On: true}, {On: true, PCP: 3}, {On: true, PCP: 5, VID: 7}, {On: true, VID: 4094}} {
		for _, v1 := range []bool{false, true} {
			for e := ECNProfile; e <= ECT1; e++ {
				all = append(all, Link{Tag: tag, RoCEv1: v1, ECN: e})
			}
		}
	}
	return all
}

// seen is the Link of a frame as hdr.Parse reads it.
func seen(p []byte) Link {
	var f hdr.Frame
	var l Link
	hdr.Parse(p, &f)
	if f.Tags == 1 {
		v := f.VLANOf(p, 0)
		l.Tag = Tag{On: true, PCP: v.PCP(), VID: v.VID()}
	}
	l.RoCEv1 = f.Net == hdr.NetGRH
	tos := p[f.L3+1]
	if f.Net != hdr.NetIPv4 {
		tos = hdr.IPv6(p[f.L3:]).TrafficClass()
	}
	l.ECN = []ECN{NotECT, ECT1, ECT0, 9}[tos&3]
	return l
}

// TestLooks: all operations of all types of queue pairs with every tag, RoCE version and codepoint. Each
// frame has the configured look, whether the NIC or the queue pair was configured.
func TestLooks(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for i, look := range looks() {
			c, perQP := Config{Profile: ConnectX}, i%2 == 1
			k := quick()
			if perQP {
				k.Link = &look
			} else {
				c.Link = look
			}
			l := newLink(t, c, v6, 1)
			l.checkFrames()
			check, want, frames := l.tap, look, 0
			if want.ECN == ECNProfile {
				want.ECN = ECT0
			}
			l.tap = func(from int, p []byte) {
				check(from, p)
				frames++
				if got := seen(p); got != want {
					t.Errorf("frame looks like %+v, want %+v", got, want)
				}
			}
			rc, uc, ud := l.pair(TypeRC, k, 4096), l.pair(TypeUC, k, 4096), l.pair(TypeUD, k, 4096)
			everything(t, rc, uc, ud)
			if frames < 10 {
				t.Errorf("%+v: %d frames", look, frames)
			}
			l.conserved()
		}
	}
}

// everything does a WRITE, a READ, an atomic and SENDs over the three pairs.
func everything(t *testing.T, rc, uc, ud *pair) {
	t.Helper()
	src, dst, word := make([]byte, 600), make([]byte, 600), make([]byte, 8)
	fill(src, 3)
	for _, w := range []SendWR{{Op: OpWrite, SGL: [][]byte{src}}, {Op: OpRead, SGL: [][]byte{dst}}, {Op: OpFetchAdd, SGL: [][]byte{word}}} {
		w.RemoteAddr, w.RKey, w.Signaled = testVA, rc.mr[1].RKey, true
		rc.post(&w)
		if got := rc.one(0); got.Status != Success {
			t.Fatalf("%+v", got)
		}
	}
	peer := ud.l.nic[1].Config()
	ah := &AH{MAC: peer.MAC, IP: peer.IP, QPN: ud.qp[1].QPN, QKey: 0x1234}
	for _, p := range []*pair{rc, uc, ud} {
		buf := make([]byte, 1000)
		p.qp[1].PostRecv(&RecvWR{Buf: buf})
		p.post(&SendWR{Op: OpSend, SGL: [][]byte{src[:200]}, AH: ah})
		w := p.one(1)
		data := buf[:200]
		if p == ud {
			data = buf[grhLen : grhLen+200]
		}
		if w.Status != Success || !bytes.Equal(data, src[:200]) {
			t.Fatalf("type %d: %+v", p.qp[1].Type, w)
		}
	}
	if !bytes.Equal(src, dst) {
		t.Fatal("data differ")
	}
}

// TestOtherVLAN: the NIC takes no frames of another VLAN or RoCE version. A priority tag counts as no tag
// (IEEE 802.1Q 6.9.1).
func TestOtherVLAN(t *testing.T) {
	for _, c := range []struct {
		a, b Link
		want bool
	}{
		{Link{}, Link{Tag: Tag{On: true, PCP: 4}}, true},
		{Link{Tag: Tag{On: true, VID: 9, PCP: 1}}, Link{Tag: Tag{On: true, VID: 9}}, true},
		{Link{ECN: ECT1}, Link{}, true},
		{Link{}, Link{Tag: Tag{On: true, VID: 9}}, false},
		{Link{Tag: Tag{On: true, VID: 8}}, Link{Tag: Tag{On: true, VID: 9}}, false},
		{Link{RoCEv1: true}, Link{}, false},
	} {
		l := newLink(t, Config{}, false, 1)
		k := quick()
		k.RetryCnt = 1
		p := l.pair(TypeRC, k, 64)
		for i, look := range []Link{c.a, c.b} {
			d := p.qp[i].conn
			d.Link = &look
			p.qp[i].Reset()
			if err := p.qp[i].Connect(d); err != nil {
				t.Fatal(err)
			}
		}
		p.post(&SendWR{Op: OpWrite, SGL: [][]byte{{1}}, RemoteAddr: testVA, RKey: p.mr[1].RKey, Signaled: true})
		if w := p.one(0); (w.Status == Success) != c.want || (l.nic[1].Stats().DropNotForUs == 0) != c.want {
			t.Errorf("%+v to %+v: %+v", c.a, c.b, w)
		}
		l.conserved()
	}
	for _, bad := range []Link{{Tag: Tag{On: true, PCP: 8}}, {Tag: Tag{On: true, VID: 4095}}, {ECN: 4}, {Tag: Tag{VID: 5}}} {
		if _, err := New(Config{MAC: macA, IP: ip4A, Link: bad}); !errors.Is(err, ErrInvalid) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

// TestDoubleTag: the NIC takes no frame with two tags, or with a tag of 802.1ad.
func TestDoubleTag(t *testing.T) {
	for _, kinds := range [][]uint16{{hdr.EtherVLAN, hdr.EtherVLAN}, {hdr.EtherQinQ}} {
		l := newLink(t, Config{}, false, 1)
		p := l.pair(TypeRC, quick(), 64)
		p.post(&SendWR{Op: OpWrite, SGL: [][]byte{{1}}, RemoteAddr: testVA, RKey: p.mr[1].RKey})
		l.nic[0].Output(l.now, &l.batch)
		b := l.batch.At(0)
		l.batch.Reset()
		frame := bytes.Clone(b.Bytes()[:12])
		for _, k := range kinds {
			frame = binary.BigEndian.AppendUint32(frame, uint32(k)<<16)
		}
		b.SetBytes(append(frame, b.Bytes()[12:]...))
		l.nic[1].Input(l.now, b)
		if s := l.nic[1].Stats(); s.DropNotForUs != 1 || p.mem[1][0] != 0 {
			t.Errorf("%x: %+v", kinds, s)
		}
	}
}

// TestCNP: a frame with the mark CE makes the ConnectX profile send a congestion notification to the queue
// pair that sent the frame, at most once in each interval (IBTA A17.9; mlx5: min_time_between_cnps, 4 us).
// rxe sends none. Both sides count.
func TestCNP(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for _, ty := range []Type{TypeRC, TypeUC} {
			for _, c := range []struct {
				config Config
				cnps   uint64
			}{{Config{Profile: RXE}, 0}, {Config{Profile: ConnectX}, 3}, {Config{Profile: RXE, CNPInterval: 1}, 10},
				{Config{Profile: ConnectX, CNPInterval: -1}, 0}} {
				l := newLink(t, c.config, v6, 1)
				l.checkFrames()
				check, cnps := l.tap, 0
				p := l.pair(ty, quick(), 64)
				l.tap = func(from int, b []byte) {
					check(from, b)
					var f hdr.Frame
					if hdr.Parse(b, &f); f.Op == hdr.CNP {
						cnps++
						if h := f.BTHOf(b); from != 1 || h.DestQP() != p.qp[0].QPN || !h.BECN() || h.PSN() != 0 || h.AckReq() {
							t.Errorf("%x", b)
						}
					} else if from == 0 {
						mark(b)
					}
				}
				for range 10 { // one a microsecond
					p.post(&SendWR{Op: OpWrite, SGL: [][]byte{{1}}, RemoteAddr: testVA, RKey: p.mr[1].RKey, Signaled: true})
					for at := l.now; l.now == at && l.step(); {
					}
				}
				if got := p.done(0); len(got) != 10 || got[9].Status != Success {
					t.Fatalf("%+v", got)
				}
				a, b := p.qp[0].Stats(), p.qp[1].Stats()
				if b.CERx != 10 || b.CNPTx != c.cnps || a.CNPRx != c.cnps || cnps != int(c.cnps) || a.CERx != 0 {
					t.Errorf("type %d, %+v: %d on the wire, %+v and %+v", ty, c.config, cnps, a, b)
				}
				if s := l.nic[0].Stats(); s.CNPRx != c.cnps || l.nic[1].Stats().CNPTx != c.cnps || l.nic[1].Stats().CERx != 10 {
					t.Errorf("%+v", s)
				}
				l.conserved()
			}
		}
	}
}

// TestCNPOfStranger: a notification from another address is not counted.
func TestCNPOfStranger(t *testing.T) {
	l := newLink(t, Config{}, false, 1)
	p := l.pair(TypeRC, quick(), 64)
	b := l.pool.Get()
	p.qp[1].sendCNP(b)
	f := b.Bytes()
	f[29]++ // source address
	hdr.IPv4(f[14:34]).UpdateChecksum()
	var fr hdr.Frame
	hdr.Parse(f, &fr)
	hdr.SetICRC(f, &fr)
	l.nic[0].Input(l.now, b)
	if s := l.nic[0].Stats(); s.DropWrongPeer != 1 || s.CNPRx != 0 || p.qp[0].Stats().CNPRx != 0 {
		t.Errorf("%+v", s)
	}
}

// TestCNPAsConnectX: a notification is byte for byte that of a ConnectX-4 Lx (capture in secdev/scapy,
// test/contrib/roce.uts).
func TestCNPAsConnectX(t *testing.T) {
	want, _ := hex.DecodeString("e41d2dab2bc27cfe90643b32080045c2003c718c4000401191610a0011010a001201000012b7002800008100ffff40000118" +
		"000000000000000000000000000000000000000082fd002a")
	pool, err := packet.NewPool(4, 4096, nil)
	if err != nil {
		t.Fatal(err)
	}
	n, err := New(Config{MAC: [6]byte(want[6:12]), IP: netip.AddrFrom4([4]byte(want[26:30])), Profile: ConnectX, Pool: pool})
	if err != nil {
		t.Fatal(err)
	}
	cq := n.CreateCQ(4)
	q, err := n.CreateQP(QPInit{PD: n.AllocPD(), SendCQ: cq, RecvCQ: cq})
	if err != nil {
		t.Fatal(err)
	}
	c := DefaultConn()
	c.RemoteMAC, c.RemoteIP, c.DestQPN = [6]byte(want[:6]), netip.AddrFrom4([4]byte(want[30:34])), 0x118
	if err := q.Connect(c); err != nil {
		t.Fatal(err)
	}
	n.ipID = binary.BigEndian.Uint16(want[18:])
	b := pool.Get()
	q.sendCNP(b)
	if !bytes.Equal(b.Bytes(), want) {
		t.Errorf("%x\nwant %x", b.Bytes(), want)
	}
}

// TestSlotsForTags: Connect refuses when frames with all headers and tags would not fit into the pool's
// slots.
func TestSlotsForTags(t *testing.T) {
	refused := 0
	for size := 256 + pathOverhead + etherLen; size < 256+128; size++ {
		pool, err := packet.NewPool(4, packet.Headroom+size, nil)
		if err != nil {
			t.Fatal(fmt.Sprint(size, err))
		}
		n, err := New(Config{MAC: macA, IP: ip6A, Pool: pool, Link: Link{Tag: Tag{On: true, VID: 1}}})
		if err != nil {
			t.Fatal(err)
		}
		cq := n.CreateCQ(4)
		q, err := n.CreateQP(QPInit{PD: n.AllocPD(), SendCQ: cq, RecvCQ: cq})
		if err != nil {
			t.Fatal(err)
		}
		c := quick()
		c.RemoteIP = ip6B
		if err := q.Connect(c); err != nil {
			if !errors.Is(err, ErrInvalid) {
				t.Error(err)
			}
			refused++
			continue
		}
		w := SendWR{Op: OpWriteImm, SGL: [][]byte{make([]byte, 256)}}
		if err := q.PostSend(&w); err != nil {
			t.Fatal(err)
		}
		var out packet.Batch
		n.Output(1, &out)
		out.PutAll()
	}
	if refused == 0 {
		t.Error("frames fit into every slot")
	}
}
