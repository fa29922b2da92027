package bed

import (
	"slices"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
)

// In a managed world the connection manager's datagrams pass when a session is
// connected, and when it ends, as those of rdma_cm do. Nobody at the ends heeds
// them (Connect has done the work), but who stands between may.

// handshake is how long a session's handshake takes, in steps.
const handshake = 20 * time.Microsecond

// later has a machine's spy send a frame.
func (p *play) later(machine string, at clock.Time, frame []byte) {
	s := p.spies[machine]
	i := len(s.Also)
	for i > 0 && s.Also[i-1].at > at {
		i--
	}
	s.Also = slices.Insert(s.Also, i, timed{at, func() []byte { return frame }})
}

// manage sends the datagrams of a connection that begins.
func (p *play) manage(q *queue, now clock.Time) {
	c, id := p.ends[len(p.ends)-1], uint32(q.number<<4|q.life)
	near, far := &q.Near, &q.Far
	request := hdr.CMFields{
		AttributeID: hdr.ConnectRequest, TransactionID: uint64(id) | 7<<32, LocalCommID: 0x51000000 | id, ServiceID: 0x106 << 16, TransportService: hdr.RC, PKey: 0xFFFF,
		PathMTU: c.MTU, LocalGID: c.ClientIP, RemoteGID: c.ServerIP, HopLimit: 64, LocalACKTimeout: uint8(near.Timeout), RemoteResponseTimeout: 20, LocalResponseTimeout: 20,
		MaxCMRetries: 15, RetryCount: uint8(near.RetryCnt), RNRRetryCount: 7, LocalQPN: c.ClientQPN, StartingPSN: c.ServerPSN,
		ResponderResources: uint8(max(near.MaxDestRdAtomic, 0)), InitiatorDepth: uint8(near.MaxRdAtomic),
	}
	reply := hdr.CMFields{
		AttributeID: hdr.ConnectReply, TransactionID: request.TransactionID, LocalCommID: 0x52000000 | id, RemoteCommID: request.LocalCommID,
		LocalQPN: c.ServerQPN, StartingPSN: c.ClientPSN, ResponderResources: uint8(max(far.MaxDestRdAtomic, 0)), InitiatorDepth: 1, RNRRetryCount: uint8(near.RNRRetry), TargetACKDelay: 15,
	}
	ready := hdr.CMFields{AttributeID: hdr.ReadyToUse, TransactionID: request.TransactionID, LocalCommID: request.LocalCommID, RemoteCommID: reply.LocalCommID}
	q.at = max(q.at, introduce(p, q, &c, now, &request, &reply, &ready).Add(handshake))
}

// unmanage sends the datagrams of a connection that ends.
func (p *play) unmanage(q *queue, now clock.Time) {
	c, id := p.ends[q.end], uint32(q.number<<4|q.life)
	request := hdr.CMFields{AttributeID: hdr.DisconnectRequest, TransactionID: uint64(id) | 8<<32, LocalCommID: 0x51000000 | id, RemoteCommID: 0x52000000 | id, RemoteQPN: c.ServerQPN}
	reply := hdr.CMFields{AttributeID: hdr.DisconnectReply, TransactionID: request.TransactionID, LocalCommID: 0x52000000 | id, RemoteCommID: 0x51000000 | id}
	part(p, q, &c, now, &request, &reply)
}

// datagram is a message of the connection manager's, from the client or to it, in frames such as the
// world's queue pairs send.
func (p *play) datagram(c *Connection, up bool, m *hdr.CMFields) []byte {
	d := hdr.DETH(make([]byte, hdr.DETHLen))
	d.SetQKey(hdr.GSIQKey)
	d.SetSrcQP(1)
	mad := hdr.CM(make([]byte, hdr.MADLen))
	mad.Encode(m)
	link := &p.w.Link
	f := Packet{V1: link.RoCEv1, SrcMAC: c.ClientMAC, DstMAC: c.ServerMAC, Src: c.ClientIP, Dst: c.ServerIP, Op: hdr.UDSendOnly, QPN: 1, Ext: d, Payload: mad}
	if !up {
		f.SrcMAC, f.DstMAC, f.Src, f.Dst = c.ServerMAC, c.ClientMAC, c.ServerIP, c.ClientIP
	}
	b := f.Bytes()
	if t := link.Tag; t.On {
		b = slices.Insert(b, 12, 0x81, 0, t.PCP<<5|byte(t.VID>>8), byte(t.VID))
	}
	return b
}
