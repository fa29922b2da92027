package hdr_test

import (
	"bytes"
	"net/netip"
	"testing"

	"github.com/quillon/quillon/nf/hdr"
)

// fieldsOf reads everything that Encode writes.
func fieldsOf(m hdr.CM) *hdr.CMFields {
	f := &hdr.CMFields{
		AttributeID: m.AttributeID(), TransactionID: m.TransactionID(), LocalCommID: m.LocalCommID(), RemoteCommID: m.RemoteCommID(),
		ServiceID: m.ServiceID(), TransportService: m.TransportService(), PKey: m.PKey(), PathMTU: m.PathMTU(),
		LocalGID: m.PrimaryLocalGID(), RemoteGID: m.PrimaryRemoteGID(), FlowLabel: m.FlowLabel(), LocalACKTimeout: m.LocalACKTimeout(),
		RemoteResponseTimeout: m.RemoteResponseTimeout(), LocalResponseTimeout: m.LocalResponseTimeout(), MaxCMRetries: m.MaxCMRetries(), RetryCount: m.RetryCount(),
		CAGUID: m.CAGUID(), LocalQPN: m.LocalQPN(), StartingPSN: m.StartingPSN(), ResponderResources: m.ResponderResources(), InitiatorDepth: m.InitiatorDepth(),
		RNRRetryCount: m.RNRRetryCount(), TargetACKDelay: m.TargetACKDelay(), Message: m.Message(), ServiceTimeout: m.ServiceTimeout(), Reason: m.Reason(),
		RemoteQPN: m.RemoteQPN(), PrivateData: m.PrivateData(),
	}
	if m.AttributeID() == hdr.ConnectRequest {
		f.PacketRate, f.TrafficClass, f.HopLimit = m[24+91]&63, m[24+92], m[24+93]
	}
	return f
}

// What Linux and ConnectX-5 sent is written again, to the last bit.
func TestCMEncodeAsCaptured(t *testing.T) {
	n := 0
	for _, name := range captures() {
		for i, b := range readPcap(t, name) {
			var f hdr.Frame
			hdr.Parse(b, &f)
			m, ok := f.CMOf(b)
			if !ok {
				continue
			}
			n++
			got := hdr.CM(bytes.Repeat([]byte{0xEE}, hdr.MADLen))
			got.Encode(fieldsOf(m))
			if !bytes.Equal(got, m) {
				t.Errorf("%s, frame %d, %v:\ngot  %x\nwant %x", name, i+1, m.AttributeID(), []byte(got), []byte(m))
			}
		}
	}
	if n != 13+5 {
		t.Errorf("%d messages", n)
	}
}

// Fields that no capture has set.
func TestCMEncode(t *testing.T) {
	a, b := netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::2")
	for _, f := range []hdr.CMFields{
		{AttributeID: hdr.ConnectRequest, TransactionID: 1 << 63, LocalCommID: 2, ServiceID: 3, TransportService: hdr.UC, PKey: 0x8001, PathMTU: 4096, LocalGID: a, RemoteGID: b,
			FlowLabel: 0xABCDE, PacketRate: 63, TrafficClass: 5, HopLimit: 6, LocalACKTimeout: 31, RemoteResponseTimeout: 30, LocalResponseTimeout: 29, MaxCMRetries: 14,
			RetryCount: 5, CAGUID: 1 << 62, LocalQPN: 0xFFFFFE, StartingPSN: 0xFFFFFF, ResponderResources: 255, InitiatorDepth: 254, RNRRetryCount: 6},
		{AttributeID: hdr.MsgRcptAck, LocalCommID: 1, RemoteCommID: 2, Message: 1, ServiceTimeout: 31},
		{AttributeID: hdr.ConnectReject, LocalCommID: 1, RemoteCommID: 2, Message: 2, Reason: 28},
		{AttributeID: hdr.ConnectReply, LocalCommID: 1, RemoteCommID: 2, TransactionID: 7, LocalQPN: 9, StartingPSN: 8, ResponderResources: 1, InitiatorDepth: 2, RNRRetryCount: 3, TargetACKDelay: 31, CAGUID: 5},
	} {
		m := hdr.CM(bytes.Repeat([]byte{0xEE}, hdr.MADLen))
		f.PrivateData = bytes.Repeat([]byte("p"), 300) // more than fits
		m.Encode(&f)
		g := fieldsOf(m)
		n := hdr.CM(make([]byte, hdr.MADLen))
		n.Encode(g)
		if !bytes.Equal(m, n) || !bytes.Equal(g.PrivateData, f.PrivateData[:len(g.PrivateData)]) {
			t.Errorf("%v: %x, read again %x", f.AttributeID, []byte(m), []byte(n))
		}
		if got, ok := hdr.CMFrom(m); !ok || got.LocalCommID() != f.LocalCommID || got.Message() != f.Message || got.ServiceTimeout() != f.ServiceTimeout || got.Reason() != f.Reason ||
			got.RNRRetryCount() != f.RNRRetryCount || got.FlowLabel() != f.FlowLabel || got.RetryCount() != f.RetryCount || got.MaxCMRetries() != f.MaxCMRetries ||
			got.RemoteResponseTimeout() != f.RemoteResponseTimeout || got.LocalResponseTimeout() != f.LocalResponseTimeout || got.LocalACKTimeout() != f.LocalACKTimeout ||
			got.TargetACKDelay() != f.TargetACKDelay || got.CAGUID() != f.CAGUID {
			t.Errorf("%v: read as %+v", f.AttributeID, g)
		}
	}
}

func TestIPCM(t *testing.T) {
	for _, v := range [][2]string{{"10.0.0.1", "10.0.0.2"}, {"fd00::1", "fd00::2"}} {
		src, dst := netip.AddrPortFrom(netip.MustParseAddr(v[0]), 4000), netip.AddrPortFrom(netip.MustParseAddr(v[1]), 18515)
		m := hdr.CM(make([]byte, hdr.MADLen))
		private := hdr.AppendIPCM(nil, src, dst.Addr())
		m.Encode(&hdr.CMFields{AttributeID: hdr.ConnectRequest, ServiceID: hdr.ServiceIDOfPort(dst.Port()), LocalGID: src.Addr(), RemoteGID: dst.Addr(), PrivateData: private})
		if s, d, ok := m.IPEndpoints(); !ok || s != src || d != dst || len(private) != hdr.IPCMLen {
			t.Errorf("%v %v %v", s, d, ok)
		}
	}
}
