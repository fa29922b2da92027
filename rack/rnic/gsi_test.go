package rnic

import (
	"testing"

	"github.com/quillon/quillon/nf/hdr"
)

// Queue pair 1 takes and sends datagrams with its own Q_Key. A NIC has only one queue pair 1.
func TestGSI(t *testing.T) {
	l := newLink(t, Config{}, false, 1)
	l.checkFrames()
	var q [2]*QP
	var cq [2]*CQ
	buf := make([]byte, 40+256)
	for i, n := range l.nic {
		cq[i] = n.CreateCQ(8)
		if n.QP(1) != nil {
			t.Fatal("there is a queue pair 1 already")
		}
		init := QPInit{PD: n.AllocPD(), SendCQ: cq[i], RecvCQ: cq[i], MaxSend: 4, MaxRecv: 4, Type: TypeRC, QKey: 5}
		for name, bad := range map[string]QPInit{"no queues": {PD: init.PD, SendCQ: cq[i], RecvCQ: cq[i]}, "no PD": {SendCQ: cq[i], RecvCQ: cq[i], MaxSend: 1, MaxRecv: 1}} {
			if _, err := n.CreateGSI(bad); err == nil {
				t.Errorf("%s: made", name)
			}
		}
		var err error
		if q[i], err = n.CreateGSI(init); err != nil {
			t.Fatal(err)
		}
		if _, err := n.CreateGSI(init); err == nil {
			t.Error("two of them")
		}
		if err := q[i].Connect(Conn{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := q[1].PostRecv(&RecvWR{Buf: buf}); err != nil {
		t.Fatal(err)
	}
	if err := q[0].PostSend(&SendWR{Op: OpSend, SGL: [][]byte{[]byte("mad")}, Signaled: true, AH: &AH{MAC: macB, IP: ip4B, QPN: 1, QKey: hdr.GSIQKey}}); err != nil {
		t.Fatal(err)
	}
	l.run(1000)
	var w [1]WC
	if n := cq[1].Poll(w[:]); n != 1 || w[0] != (WC{QPN: 1, Op: OpRecv, ByteLen: 43, SrcQP: 1, SrcMAC: macA}) || string(buf[40:43]) != "mad" {
		t.Errorf("%d %+v %q", n, w, buf[40:43])
	}
	// An application's queue pair cannot use the controlled Q_Key.
	p := l.pair(TypeUD, Conn{}, 64)
	p.post(&SendWR{Op: OpSend, SGL: [][]byte{[]byte("mad")}, AH: &AH{MAC: macB, IP: ip4B, QPN: 1, QKey: hdr.GSIQKey}})
	l.run(1000)
	if s := l.nic[1].Stats(); s.DropBadQKey != 1 {
		t.Errorf("%+v", s)
	}
	q[1].Destroy()
	if l.nic[1].QP(1) != nil {
		t.Error("still there")
	}
	if _, err := l.nic[1].CreateGSI(QPInit{PD: l.nic[1].AllocPD(), SendCQ: cq[1], RecvCQ: cq[1], MaxSend: 4, MaxRecv: 4}); err != nil {
		t.Error(err)
	}
	l.conserved()
}

// Fail flushes the requests that wait. Then the queue pair answers no more.
func TestFail(t *testing.T) {
	l := newLink(t, Config{}, false, 1)
	p := l.pair(TypeRC, quick(), 64)
	p.post(&SendWR{ID: 3, Op: OpWrite, SGL: [][]byte{make([]byte, 8)}, RemoteAddr: testVA, RKey: p.mr[1].RKey})
	p.qp[0].Fail()
	p.qp[0].Fail()
	if w := p.one(0); w.Status != WRFlushError || w.ID != 3 || p.qp[0].State() != StateError {
		t.Errorf("%+v", w)
	}
	q := l.pair(TypeRC, quick(), 64)
	q.qp[1].Fail()
	q.post(&SendWR{Op: OpWrite, SGL: [][]byte{make([]byte, 8)}, RemoteAddr: testVA, RKey: q.mr[1].RKey, Signaled: true})
	for l.nic[1].Stats().DropBadState == 0 {
		if !l.step() {
			t.Fatal("nothing arrived")
		}
	}
	if l.nic[1].Stats().TxResponses != 0 {
		t.Error("answered")
	}
}

// A flow label determines the source port.
func TestFlowLabel(t *testing.T) {
	for _, c := range []struct {
		label uint32
		want  uint16
	}{{0x5098e, 51610}, {1, 0xC001}, {0xFC000, 0xC03F}} { // the first is of a capture of rxe
		l := newLink(t, Config{}, false, 1)
		conn := quick()
		conn.FlowLabel = c.label
		p := l.pair(TypeRC, conn, 64)
		var ports []uint16
		l.tap = func(_ int, b []byte) {
			var f hdr.Frame
			hdr.Parse(b, &f)
			ports = append(ports, f.UDPOf(b).SrcPort())
		}
		p.post(&SendWR{Op: OpWrite, SGL: [][]byte{make([]byte, 8)}, RemoteAddr: testVA, RKey: p.mr[1].RKey, Signaled: true})
		p.one(0)
		if len(ports) != 2 || ports[0] != c.want || ports[1] != c.want {
			t.Errorf("%#x: %d, want %d", c.label, ports, c.want)
		}
	}
}
