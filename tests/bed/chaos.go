package bed

import (
	"math/rand/v2"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
)

// upward has a client's machine send a datagram of the connection manager's, and downward the server's.
func upward(p *play, q *queue, c *Connection, at clock.Time, m hdr.CMFields) {
	p.later(p.machines[q.Client].name, at, p.datagram(c, true, &m))
}

func downward(p *play, c *Connection, at clock.Time, m hdr.CMFields) {
	p.later("s0", at, p.datagram(c, false, &m))
}

// chaos is what is random about the datagrams of a life of a session's; nil: nothing is.
func chaos(p *play, q *queue, what uint64) *rand.Rand {
	if p.w.Chaos == 0 {
		return nil
	}
	return rand.New(rand.NewPCG(p.w.Chaos, uint64(q.number)<<16|uint64(q.life)<<8|what))
}

// introduce sends the datagrams of a connection that begins, and returns when its client may send requests: when it
// has the reply.
func introduce(p *play, q *queue, c *Connection, now clock.Time, request, reply, ready *hdr.CMFields) clock.Time {
	rng := chaos(p, q, 1)
	if rng == nil {
		upward(p, q, c, now, *request)
		downward(p, c, now.Add(handshake), *reply)
		upward(p, q, c, now.Add(2*handshake), *ready)
		return now.Add(2 * handshake)
	}
	yes := func(of int) bool { return rng.IntN(of) == 0 }
	soon := func() time.Duration { return time.Duration(rng.IntN(400)) * time.Microsecond }
	if yes(4) { // an attempt before it, which the server refuses, or the client gives up
		old := *request
		old.LocalCommID |= 0x00F00000
		old.TransactionID |= 0xF << 40
		upward(p, q, c, now, old)
		no := hdr.CMFields{AttributeID: hdr.ConnectReject, TransactionID: old.TransactionID, Message: 0, Reason: []uint16{10, 28, 1, 8}[rng.IntN(4)]}
		if yes(2) {
			no.RemoteCommID = old.LocalCommID
			downward(p, c, now.Add(handshake), no)
		} else {
			no.LocalCommID, no.Reason = old.LocalCommID, 4
			upward(p, q, c, now.Add(handshake), no)
		}
		if yes(2) {
			upward(p, q, c, now.Add(soon()), old) // a copy of it comes late
		}
		now = now.Add(2 * handshake)
	}
	upward(p, q, c, now, *request)
	if yes(2) {
		for range 1 + rng.IntN(3) {
			upward(p, q, c, now.Add(soon()), *request) // also when the connection is there
		}
	}
	if yes(3) {
		downward(p, c, now.Add(handshake/2), hdr.CMFields{AttributeID: hdr.MsgRcptAck, TransactionID: request.TransactionID, LocalCommID: reply.LocalCommID, RemoteCommID: request.LocalCommID, ServiceTimeout: 18})
	}
	downward(p, c, now.Add(handshake), *reply)
	if yes(2) {
		for range 1 + rng.IntN(3) {
			downward(p, c, now.Add(handshake+soon()), *reply)
		}
	}
	if yes(3) {
		upward(p, q, c, now.Add(3*handshake/2), hdr.CMFields{AttributeID: hdr.MsgRcptAck, TransactionID: request.TransactionID, LocalCommID: request.LocalCommID, RemoteCommID: reply.LocalCommID, Message: 1, ServiceTimeout: 18})
	}
	switch rng.IntN(3) {
	case 0: // it is lost, and the server takes the first request for it
	case 1:
		upward(p, q, c, now.Add(2*handshake+soon()), *ready)
	default:
		upward(p, q, c, now.Add(2*handshake), *ready)
		if yes(2) {
			upward(p, q, c, now.Add(2*handshake+soon()), *ready)
		}
	}
	return now.Add(2 * handshake)
}

// part sends the datagrams of a connection that ends: one end asks for it, or both do.
func part(p *play, q *queue, c *Connection, now clock.Time, request, reply *hdr.CMFields) {
	rng := chaos(p, q, 2)
	if rng == nil {
		upward(p, q, c, now, *request)
		downward(p, c, now.Add(handshake), *reply)
		return
	}
	yes := func(of int) bool { return rng.IntN(of) == 0 }
	soon := func() time.Duration { return time.Duration(rng.IntN(400)) * time.Microsecond }
	server := hdr.CMFields{AttributeID: hdr.DisconnectRequest, TransactionID: request.TransactionID | 9<<36, LocalCommID: request.RemoteCommID, RemoteCommID: request.LocalCommID, RemoteQPN: c.ClientQPN}
	client := hdr.CMFields{AttributeID: hdr.DisconnectReply, TransactionID: server.TransactionID, LocalCommID: request.LocalCommID, RemoteCommID: request.RemoteCommID}
	way := rng.IntN(4)
	p.serverAsks = way == 0
	if way != 0 { // the client asks
		upward(p, q, c, now, *request)
		for yes(2) {
			upward(p, q, c, now.Add(soon()), *request)
		}
		if !yes(3) {
			downward(p, c, now.Add(handshake), *reply)
		}
		for yes(2) {
			downward(p, c, now.Add(handshake+soon()), *reply)
		}
	}
	if way < 2 { // the server asks
		downward(p, c, now.Add(time.Duration(rng.IntN(int(handshake)))), server)
		if !yes(3) {
			upward(p, q, c, now.Add(2*handshake), client)
		}
		for yes(2) {
			upward(p, q, c, now.Add(2*handshake+soon()), client)
		}
	}
}
