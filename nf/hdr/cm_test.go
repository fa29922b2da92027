package hdr_test

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quillon/quillon/nf/hdr"
)

func walkCM(m hdr.CM) {
	m.TransactionID()
	m.LocalCommID()
	m.RemoteCommID()
	m.ServiceID()
	m.LocalQPN()
	m.RemoteQPN()
	m.StartingPSN()
	m.ResponderResources()
	m.InitiatorDepth()
	m.TransportService()
	m.PathMTU()
	m.PKey()
	m.PrimaryLocalGID()
	m.PrimaryRemoteGID()
	m.Reason()
	m.PrivateData()
	m.IPEndpoints()
}

// row is what a tracker of connections wants to know.
type row struct {
	Attr              hdr.CMAttr
	Local, Remote     uint32
	QPN, PSN          uint32
	RemoteQPN         uint32
	MTU               int
	Resources, Depth  uint8
	From, To          string
	Transaction       uint64
	Private, Src, Dst string
}

func rowOf(t *testing.T, id string) row {
	t.Helper()
	b, f := frameOf(t, id)
	m, ok := f.CMOf(b)
	if !ok {
		t.Fatal(id, "is no CM message")
	}
	return rowOfCM(m)
}

func rowOfCM(m hdr.CM) row {
	r := row{
		Attr: m.AttributeID(), Local: m.LocalCommID(), Remote: m.RemoteCommID(), QPN: m.LocalQPN(), PSN: m.StartingPSN(), RemoteQPN: m.RemoteQPN(),
		MTU: m.PathMTU(), Resources: m.ResponderResources(), Depth: m.InitiatorDepth(), Transaction: m.TransactionID(),
	}
	if a := m.PrimaryLocalGID(); a.IsValid() {
		r.From, r.To = a.String(), m.PrimaryRemoteGID().String()
	}
	if s, d, ok := m.IPEndpoints(); ok {
		r.Src, r.Dst = s.String(), d.String()
	}
	return r
}

func TestCMVectors(t *testing.T) {
	for id, want := range map[string]row{
		"V30": {Attr: hdr.ConnectRequest, Local: 0x880fe417, QPN: 0x366, PSN: 0x96cb1e, MTU: 1024, Resources: 16, Depth: 16,
			From: "192.168.1.13", To: "192.168.1.12", Src: "192.168.1.13:34297", Dst: "192.168.1.12:20886", Transaction: 0x217e40f88},
		"V31": {Attr: hdr.ConnectReply, Local: 0xacac6cc7, Remote: 0x880fe417, QPN: 0x1f0, PSN: 0x909cac, Resources: 16, Depth: 16, Transaction: 0x217e40f88},
		"V32": {Attr: hdr.ReadyToUse, Local: 0x880fe417, Remote: 0xacac6cc7, Transaction: 0x217e40f88},
	} {
		if d := cmp.Diff(want, rowOf(t, id)); d != "" {
			t.Errorf("%s (-want +got):\n%s", id, d)
		}
	}
}

// A capture of perftest -R holds two connections from request to disconnect.
// What the messages say must agree with each other and with the packets.
func TestCMHandshakes(t *testing.T) {
	count := map[hdr.CMAttr]int{}
	requests, replies := map[uint32]row{}, map[uint32]row{}
	firstPSN, wanted := map[uint32]uint32{}, map[uint32]uint32{}
	for _, b := range readPcap(t, "../../tests/pcap/rxe/perftest-write-rdmacm-128B.pcap") {
		var f hdr.Frame
		if hdr.Parse(b, &f) != hdr.IsRoCE {
			t.Fatal(f.Why)
		}
		if h := f.BTHOf(b); f.Op.Has(hdr.IsRequest) && f.Op.Transport() == hdr.RC {
			if _, seen := firstPSN[h.DestQP()]; !seen {
				firstPSN[h.DestQP()] = h.PSN()
			}
		}
		m, ok := f.CMOf(b)
		if !ok {
			continue
		}
		r := rowOfCM(m)
		count[r.Attr]++
		switch r.Attr {
		case hdr.ConnectRequest:
			requests[r.Local] = r
			if m.TransportService() != hdr.RC || r.From != f.IPv4Of(b).Src().String() || r.To != f.IPv4Of(b).Dst().String() {
				t.Errorf("request %+v", r)
			}
			if s, _, ok := m.IPEndpoints(); !ok || s.Addr() != netip.MustParseAddr(r.From) {
				t.Errorf("endpoints of %+v", r)
			}
		case hdr.ConnectReply:
			q, ok := requests[r.Remote]
			if !ok || r.QPN == 0 || r.Transaction != q.Transaction {
				t.Errorf("reply %+v to %+v", r, q)
			}
			replies[r.Remote] = r
			wanted[r.QPN], wanted[q.QPN] = r.PSN, q.PSN
		case hdr.ReadyToUse:
			if p, ok := replies[r.Local]; !ok || p.Local != r.Remote {
				t.Errorf("ready to use %+v", r)
			}
		case hdr.DisconnectRequest:
			if r.RemoteQPN != replies[r.Local].QPN && r.RemoteQPN != requests[r.Remote].QPN {
				t.Errorf("disconnect %+v", r)
			}
		}
	}
	if len(requests) != 2 || len(replies) != 2 || count[hdr.ReadyToUse] != 2 || count[hdr.DisconnectRequest] < 2 {
		t.Errorf("%v", count)
	}
	for qp, psn := range firstPSN {
		if wanted[qp] != psn {
			t.Errorf("QP %x starts at PSN %x, its connection manager said %x", qp, psn, wanted[qp])
		}
	}
}

func TestCMOfRefuses(t *testing.T) {
	for name, change := range map[string]func(b []byte, f *hdr.Frame){
		"another queue pair": func(b []byte, f *hdr.Frame) { f.BTHOf(b).SetDestQP(2) },
		"another Q_Key":      func(b []byte, f *hdr.Frame) { f.DETHOf(b).SetQKey(1) },
		"another class":      func(b []byte, f *hdr.Frame) { f.PayloadOf(b)[1] = 4 },
		"another version":    func(b []byte, f *hdr.Frame) { f.PayloadOf(b)[2] = 1 },
		"unknown attribute":  func(b []byte, f *hdr.Frame) { f.PayloadOf(b)[17] = 0x1B },
		"short datagram":     func(b []byte, f *hdr.Frame) { f.End -= 4 },
	} {
		b, f := frameOf(t, "V30")
		change(b, f)
		if m, ok := f.CMOf(b); ok {
			t.Errorf("%s: taken for %v", name, m.AttributeID())
		}
	}
}

func FuzzCM(f *testing.F) {
	for _, id := range []string{"V30", "V31", "V32"} {
		b, fr := frameOf(f, id)
		f.Add(fr.PayloadOf(b))
	}
	f.Fuzz(func(t *testing.T, mad []byte) {
		b, fr := frameOf(t, "V30")
		copy(fr.PayloadOf(b), mad)
		if m, ok := fr.CMOf(b); ok {
			walkCM(m)
			if m.AttributeID().String() == "CM?" || len(m.PrivateData()) > 224 {
				t.Fatal(m.AttributeID(), len(m.PrivateData()))
			}
		}
	})
}
