package store

import (
	"time"

	"github.com/quillon/quillon/internal/rack/cm"
	"github.com/quillon/quillon/internal/rack/onesided"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/rack/rnic"
)

// shutting is a request to a fence to shut a session out.
type shutting struct {
	id      *cm.ID
	qp      *rnic.QP
	keys    []uint32
	rounds  int
	again   clock.Time // when the request is sent again; 0: it is under way
	how     onesided.Shut
	settled clock.Time
}

// At most mostShutting requests to a fence are under way. A request is sent again with the cookie that the
// fence answers. If the fence refuses, it is sent again after a pause that doubles with each round: a fence
// that was restarted must first see that the client may write to that memory. If the fence answers with a
// cookie each time, shutRounds rounds take 1.4 s.
const (
	mostShutting = 16
	shutRounds   = 12
	shutPause    = time.Millisecond
)

// shut is an onesided.Shutter. If there is no fence, the memory node itself answers that it has no such
// service, or there is no answer and the connection manager gives up.
func (d *dialer) shut(now clock.Time, who onesided.Dead, keys []uint32) (settled clock.Time, how onesided.Shut) {
	x := d.shutting[who]
	switch {
	case x == nil && len(d.shutting) == mostShutting:
	case x == nil:
		x = &shutting{keys: append([]uint32(nil), keys...)}
		d.shutting[who] = x
		d.askFence(now, who, x, 0)
	case x.again != 0 && now >= x.again:
		d.askFence(now, who, x, 0)
	case x.how != onesided.Asked:
		delete(d.shutting, who)
		return x.settled, x.how
	}
	return 0, onesided.Asked
}

// askFence sends the request; cookie is the one that the fence answered, 0 at first.
func (d *dialer) askFence(now clock.Time, who onesided.Dead, x *shutting, cookie uint64) {
	x.how, x.again = onesided.NotShut, 0
	qp, err := d.nic.CreateQP(rnic.QPInit{PD: d.pd, SendCQ: d.cq, RecvCQ: d.cq, MaxSend: 1, MaxRecv: 1})
	if err != nil {
		return
	}
	to := d.peer
	to.Port = hdr.FencePort
	r := hdr.FenceRequest{Client: who.Addr, QPN: who.QPN, Cookie: cookie}
	r.N = copy(r.Keys[:], x.keys)
	if x.id, err = d.agent.Dial(now, to, cm.Params{QP: qp, PrivateData: r.Bytes()}); err != nil {
		qp.Destroy()
		return
	}
	x.qp, x.how = qp, onesided.Asked
	x.rounds++
}

// shutEvent takes an event that may be the answer of a fence.
func (d *dialer) shutEvent(now clock.Time, e cm.Event) {
	for who, x := range d.shutting {
		if x.id != e.ID || x.again != 0 || x.how != onesided.Asked {
			continue
		}
		if e.Kind == cm.Established { // a fence accepts no connection, so this is not one
			_ = e.ID.Disconnect(now)
		} else {
			x.qp.Destroy()
		}
		var a hdr.FenceReply
		ok := a.Parse(e.PrivateData)
		fenced := e.Kind == cm.Rejected && e.Reason == cm.ReasonConsumer
		switch {
		case fenced && ok && a.Cookie == 0:
			x.how, x.settled = onesided.ShutOut, now.Add(a.Settle)
		case !fenced || x.rounds >= shutRounds:
			x.how = onesided.NotShut
		case ok:
			d.askFence(now, who, x, a.Cookie)
		default:
			x.again = now.Add(shutPause << x.rounds)
		}
		return
	}
}
