package rnic

import (
	"encoding/binary"
	"fmt"

	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
)

// Link describes the headers of frames below the transport.
type Link struct {
	Tag Tag
	// RoCEv1 puts a GRH in place of IP and UDP (IBTA annex A16). GIDs are the
	// IP addresses, IPv4 ones mapped to IPv6.
	RoCEv1 bool
	ECN    ECN
}

// Tag is an IEEE 802.1Q tag. With VID 0 it is a priority tag, which names no VLAN: a queue pair
// that sends frames with such a tag takes frames without a tag, and the reverse. The NIC answers ARP,
// neighbour discovery and echo only if they have no tag.
type Tag struct {
	On  bool
	PCP uint8
	VID uint16
}

// ECN is the codepoint in the IP header of RoCE frames (RFC 3168).
type ECN uint8

const (
	ECNProfile ECN = iota // ECT(0) with the ConnectX profile, Not-ECT with rxe
	NotECT
	ECT0
	ECT1
)

// ecnCE is the codepoint that a congested switch sets.
const ecnCE = 3

// cnpTOS is the traffic class of ConnectX' congestion notifications (DSCP 48), without
// the ECN bits.
const cnpTOS = 48 << 2

// bits returns the two bits of the codepoint in the IP header.
func (e ECN) bits(p Profile) byte {
	switch {
	case e == ECT0 || e == ECNProfile && p == ConnectX:
		return 2
	case e == ECT1:
		return 1
	}
	return 0
}

func (l *Link) check() error {
	if l.Tag.PCP > 7 || l.Tag.VID > 4094 || l.ECN > ECT1 {
		return fmt.Errorf("rnic: a tag has a PCP of 0 to 7 and a VID of 0 to 4094, ECN four codepoints, not %+v: %w", *l, ErrInvalid)
	}
	if !l.Tag.On && l.Tag != (Tag{}) {
		return fmt.Errorf("rnic: tag %+v is not on: %w", l.Tag, ErrInvalid)
	}
	return nil
}

// alike reports whether a received frame has the network header and the VLAN of the frames
// that the queue pair sends.
func (t *template) alike(p []byte, f *hdr.Frame) bool {
	if f.Tags == 0 {
		return f.Net == t.frame.Net && t.vid == 0
	}
	return f.Net == t.frame.Net && f.VLANOf(p, 0).VID() == t.vid && f.EthernetOf(p).EtherType() == hdr.EtherVLAN
}

// marked reports whether a RoCEv2 frame was marked CE on the way and is no congestion
// notification.
func marked(p []byte, f *hdr.Frame) bool {
	ecn := p[f.L3+1]
	switch f.Net {
	case hdr.NetIPv6:
		ecn >>= 4
	case hdr.NetGRH:
		return false
	}
	return ecn&3 == ecnCE && f.Op != hdr.CNP
}

// congested counts a frame that was marked CE, and queues a congestion notification to the peer
// (IBTA A17.9), unless the queue pair sent one less than Config.CNPInterval ago.
func (q *QP) congested() {
	n := q.nic
	n.stats.CERx++
	q.stats.CERx++
	every := n.cfg.CNPInterval
	if every <= 0 || q.Type == TypeUD || n.now < q.cnpNext {
		return
	}
	q.cnpNext = n.now.Add(every)
	q.cnpDue = true
	n.rspQ.pushRsp(q)
}

// sendCNP makes a congestion notification: BECN, PSN 0, and 16 reserved bytes of
// zero (IBTA A17.9). Fields that IBTA leaves open are as ConnectX has them: UDP source port 0,
// DSCP 48, no MigReq.
func (q *QP) sendCNP(b *packet.Buf) {
	q.cnpDue = false
	q.stats.CNPTx++
	q.nic.stats.CNPTx++
	t := &q.tmpl
	p, _ := q.begin(b, hdr.CNP, 0, 0, 16)
	h := t.bth(p)
	h.SetOpCode(hdr.CNP)
	h.SetBECN(true)
	h.SetMigReq(false)
	l3 := p[t.frame.L3:]
	if t.frame.Net == hdr.NetIPv4 {
		l3[1] |= cnpTOS
		binary.BigEndian.PutUint16(l3[10:], ^fold(uint32(^binary.BigEndian.Uint16(l3[10:]))+cnpTOS))
	} else {
		hdr.IPv6(l3).SetTrafficClass(hdr.IPv6(l3).TrafficClass() | cnpTOS)
	}
	if t.frame.L4 != 0 {
		clear(p[t.frame.L4 : t.frame.L4+2])
	}
	q.finish(p)
}
