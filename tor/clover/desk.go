package clover

import (
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/tor/conn"
)

// desk is what a worker has at hand: the state that it shares, the frame, and what is made and let
// go of in its turn. Its methods are the steps that Steer, requests, responses, repairs and legacy have in
// common; they lie with their subjects (known.go, row.go, chain.go, wait.go, journal.go), and what
// becomes of a connection here.
type desk struct {
	*state
	worker, workers int
	*parsed         // the frame at hand
	lookout
	goes   []gone // by the worker's turn, to be sent after it
	ending bool
	held   parsed    // a frame that was held
	g      hdr.Frame // of one that is made
}

// gone is a frame that was held and goes on.
type gone struct {
	x   *packet.Buf
	out uint8
}

// event takes what a frame meant to the table of connections.
func (s *desk) event(i int32, e conn.Event) {
	r := &s.rows[i]
	switch e {
	case conn.Opened, conn.Replaced:
		*r = row{sid: noServer, region: noRegion, due: r.due}
	case conn.Unpaired:
		s.leave(i)
	case conn.NowPaired:
		// The app numbers requests from now on: no frame alone undoes the pairing.
		x := s.conns.Row(conn.Slot(i))
		s.conns.Pin(conn.Slot(i))
		s.serve(i)
		r.answered = s.ctx.Now()
		if x.Client.HasPSN {
			r.epsn, r.acked = x.Client.StartPSN, (x.Client.StartPSN-1)&hdr.PSNMask
		}
	}
}

// serve has connection i, both of whose directions are known, be one to a memory
// node, if there is a place for that.
func (s *desk) serve(i int32) {
	r := &s.rows[i]
	if r.sid = s.meet(s.conns.Row(conn.Slot(i)).Server.Addr); r.sid != noServer {
		v := &s.servers[r.sid]
		v.rows++
		v.seen = s.age
	}
}
