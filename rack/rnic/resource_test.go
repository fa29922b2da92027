package rnic

import (
	"encoding/binary"
	"testing"

	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
)

// cross hands the frames that NIC from has to send to the other one, which sends nothing meanwhile.
func (l *link) cross(from int) {
	for {
		l.nic[from].Output(l.now, &l.batch)
		if l.batch.Len() == 0 {
			return
		}
		for _, b := range l.batch.Bufs() {
			l.nic[1-from].Input(l.now, b)
		}
		l.batch.Reset()
	}
}

// TestWithdrawnAtomic: an atomic that waits to be executed late, whose region goes away, and whose only resource a
// later request takes, is refused. It is never answered with the later one's value (IBTA 9.7.5.1.3).
func TestWithdrawnAtomic(t *testing.T) {
	for _, op := range []Op{OpFetchAdd, OpRead} {
		l := newLink(t, Config{LateAtomics: true}, false, 1)
		k := quick()
		k.MaxRdAtomic, k.MaxDestRdAtomic = 2, 1
		p := l.pair(TypeRC, k, 64)
		other := make([]byte, 64)
		other[0] = 42
		mr, err := p.pd[1].RegMR(other, testVA, allFlag)
		if err != nil {
			t.Fatal(err)
		}
		first, second := make([]byte, 8), make([]byte, 8)
		p.post(&SendWR{ID: 1, Op: OpFetchAdd, SGL: [][]byte{first}, RemoteAddr: testVA, RKey: p.mr[1].RKey, Swap: 1, Signaled: true})
		l.cross(0)
		if err := p.mr[1].Dereg(); err != nil {
			t.Fatal(err)
		}
		p.post(&SendWR{ID: 2, Op: op, SGL: [][]byte{second}, RemoteAddr: testVA, RKey: mr.RKey, Swap: 1, Signaled: true})
		l.cross(0)
		if got := p.done(0); len(got) != 2 || got[0].Status != RemoteAccessError || got[1].Status != WRFlushError {
			t.Errorf("operation %d: %+v, the first one found %d", op, got, first[0])
		}
		if p.mem[1][0] != 0 || other[0] != 42 {
			t.Errorf("operation %d: memory has %d and %d", op, p.mem[1][0], other[0])
		}
		l.conserved()
	}
}

// TestPSNsComeAround: a repeated atomic is answered from its own resource, also when an older one with the same PSN
// is remembered, as nothing but WRITEs came between.
func TestPSNsComeAround(t *testing.T) {
	for _, profile := range []Profile{RXE, ConnectX} {
		l := newLink(t, Config{Profile: profile}, false, 1)
		p := l.pair(TypeRC, quick(), 64)
		var frame []byte
		l.tap = func(from int, b []byte) {
			if from == 0 {
				frame = append(frame[:0], b...)
			}
		}
		start := p.qp[0].req.postPSN
		for range 2 {
			r, s := &p.qp[0].req, &p.qp[1].resp
			r.postPSN, r.sendPSN, r.maxPSN, r.una, s.epsn, s.notRead = start, start, start, start, start, start // 2^24 packets later
			p.post(&SendWR{Op: OpFetchAdd, SGL: [][]byte{make([]byte, 8)}, RemoteAddr: testVA, RKey: p.mr[1].RKey, Swap: 1, Signaled: true})
			if w := p.one(0); w.Status != Success {
				t.Fatal(w)
			}
		}
		repeat := func(b []byte) (answers, original int) {
			x := l.pool.Get()
			x.SetBytes(b)
			l.nic[1].Input(l.now, x)
			var out packet.Batch
			l.nic[1].Output(l.now, &out)
			for _, x := range out.Bufs() {
				var f hdr.Frame
				hdr.Parse(x.Bytes(), &f)
				answers, original = answers+1, int(f.AtomicAckETHOf(x.Bytes()).Original())
			}
			out.PutAll()
			return answers, original
		}
		if n, original := repeat(frame); n != 1 || original != 1 {
			t.Errorf("profile %d: %d answers, the repeated atomic found %d, want 1", profile, n, original)
		}
		// A READ has the PSN now: whoever repeats an atomic there gets nothing.
		r, s := &p.qp[0].req, &p.qp[1].resp
		r.postPSN, r.sendPSN, r.maxPSN, r.una, s.epsn, s.notRead = start, start, start, start, start, start
		atomic := append([]byte(nil), frame...)
		p.post(&SendWR{Op: OpRead, SGL: [][]byte{make([]byte, 8)}, RemoteAddr: testVA, RKey: p.mr[1].RKey, Signaled: true})
		if w := p.one(0); w.Status != Success {
			t.Fatal(w)
		}
		if n, _ := repeat(atomic); n != 0 || l.nic[1].Stats().DropDuplicate != 1 {
			t.Errorf("profile %d: %d answers to an atomic where a READ was", profile, n)
		}
		if v := binary.LittleEndian.Uint64(p.mem[1]); v != 2 {
			t.Errorf("profile %d: %d additions", profile, v)
		}
		l.conserved()
	}
}

// TestRefusedConnect: a Connect that is refused leaves the queue pair as it was, whatever is wrong.
func TestRefusedConnect(t *testing.T) {
	pool, err := packet.NewPool(4, packet.Headroom+etherLen+ipv6Len+udpLen+hdr.BTHLen+maxExt+256+hdr.ICRCLen, nil)
	if err != nil {
		t.Fatal(err)
	}
	n, err := New(Config{MAC: macA, IP: ip6A, Pool: pool})
	if err != nil {
		t.Fatal(err)
	}
	cq := n.CreateCQ(4)
	q, err := n.CreateQP(QPInit{PD: n.AllocPD(), SendCQ: cq, RecvCQ: cq})
	if err != nil {
		t.Fatal(err)
	}
	good := quick()
	good.RemoteIP = ip6B
	if err := q.Connect(good); err != nil {
		t.Fatal(err)
	}
	q.Fail()
	q.Reset()
	conn, why, mtu, tmpl, epsn := q.Conn(), q.Failure(), q.mtu, q.tmpl, q.Expected()
	una, next := q.Pending()
	for what, f := range map[string]func(c *Conn){
		"no room for the tag": func(c *Conn) { c.Link = &Link{Tag: Tag{On: true, VID: 1}} },
		"a path MTU":          func(c *Conn) { c.PathMTU = 300 },
		"a family":            func(c *Conn) { c.RemoteIP = ip4B },
		"retries":             func(c *Conn) { c.RetryCnt = 8 },
		"a link":              func(c *Conn) { c.Link = &Link{Tag: Tag{On: true, VID: 1 << 12}} },
	} {
		bad := good
		bad.DestQPN, bad.SQPSN, bad.RQPSN, bad.MaxDestRdAtomic = 99, 98, 97, 2
		f(&bad)
		if err := q.Connect(bad); err == nil {
			t.Fatalf("%s: not refused", what)
		}
		if u, x := q.Pending(); q.Conn() != conn || q.Failure() != why || q.mtu != mtu || q.tmpl != tmpl || q.Expected() != epsn || u != una || x != next || q.State() != StateReset {
			t.Errorf("%s: the queue pair has changed: %+v, %v, expects %d, asks from %d", what, q.Conn(), q.Failure(), q.Expected(), u)
		}
	}
}
