package clover

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/quillon/quillon/internal/rack/cm"
	"github.com/quillon/quillon/internal/rack/host"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/rack/rnic"
)

// With Config.CM the connection managers of the machines connect and disconnect the queue pairs over the
// wire. The machine that will send requests asks for the connection. The private data of its request says for
// which queue pair: by the connection's number in the rack, or, if the other machine is in another process, by
// what the asking machine is (afarHello).

// asking is how many connections a machine asks for at a time, so that a hundred requests do not overrun the
// machine that they go to.
const asking = 4

// answerWithin is the connection managers' response timeout: 4.096 us * 2^15 are 0.13 s.
const answerWithin = 15

// service is the port number that requests name.
const service = 7471

// order is a connection to ask for.
type order struct {
	qp    *rnic.QP
	to    *Machine
	hello []byte                     // private data of the request
	told  func(private []byte) error // takes the private data of the answer; nil: the answer tells nothing
}

// manager is the connection manager on a machine, in front of its application. It
// implements host.App.
type manager struct {
	cl     *Cluster
	agent  *cm.Agent
	app    host.App            // nil: a memory node has no application
	orders []order             // to ask for
	asked  map[*cm.ID]order    // requested, and not established yet
	mine   []*cm.ID            // established, asked for by this machine
	wanted map[uint32]*rnic.QP // queue pairs that other machines of this process will ask for, by number
	params cm.Params
	ending bool
	// door returns the queue pair that another machine asks for, and the private data of the answer. If door
	// returns an error, the request is rejected with the error's text.
	door func(hello []byte) (qp *rnic.QP, private []byte, err error)
	gone func(qp *rnic.QP) // a connection that door let in has ended; nil: it may not end before Disconnect
	// Of door: requests, and connections that are open now.
	accepted, refused uint64
	open              int
}

// managed are the connections of a cluster whose connection managers make them.
type managed struct {
	of     map[*rnic.NIC]*manager
	number uint32
	end    atomic.Bool
	// up counts the connections that were established, down those that have ended. The machine that asked for
	// a connection counts it.
	up, down atomic.Int64
	failure  atomic.Pointer[error]
}

func (m *managed) fail(err error) { m.failure.CompareAndSwap(nil, &err) }

// manage puts a connection manager on a machine, if Config.CM asks for one.
func (cl *Cluster) manage(m *Machine, nic *rnic.NIC) error {
	if !cl.cfg.CM {
		return nil
	}
	if m.NIC != nil {
		return fmt.Errorf("clover: %s: a NIC that others use has a connection manager of its own", m.Name)
	}
	a, err := cm.New(nic, cm.Config{ResponseTimeout: answerWithin, Seed: cl.cfg.Seed})
	if err != nil {
		return err
	}
	a.Listen(service)
	c := &cl.cfg.Conn
	g := &manager{cl: cl, agent: a, asked: map[*cm.ID]order{}, wanted: map[uint32]*rnic.QP{}, params: cm.Params{
		PathMTU: c.PathMTU, LocalACKTimeout: uint8(c.Timeout), RetryCount: uint8(c.RetryCnt), RNRRetryCount: uint8(c.RNRRetry), LocalPort: service,
	}}
	g.door = func(hello []byte) (*rnic.QP, []byte, error) {
		n := binary.BigEndian.Uint32(hello)
		qp := g.wanted[n]
		if qp == nil {
			return nil, nil, errors.New("no such connection is expected")
		}
		delete(g.wanted, n)
		return qp, nil, nil
	}
	cl.cms.of[nic] = g
	return nil
}

// front returns the connection manager of a NIC with the application app behind it. Without Config.CM it
// returns app itself.
func (cl *Cluster) front(nic *rnic.NIC, app host.App) host.App {
	g := cl.cms.of[nic]
	if g == nil {
		return app
	}
	g.app = app
	return g
}

// order orders a connection from a machine. It is made once the cluster is breathed.
func (cl *Cluster) order(from *rnic.NIC, o order) {
	cl.cms.number++
	g := cl.cms.of[from]
	g.orders = append(g.orders, o)
}

// Step implements host.App.
func (g *manager) Step(now clock.Time) bool {
	did := g.agent.Step(now)
	for {
		e, ok := g.agent.Poll()
		if !ok {
			break
		}
		did = true
		if err := g.event(now, e); err != nil {
			g.cl.cms.fail(err)
		}
	}
	if g.cl.cms.end.Load() && !g.ending {
		g.ending, did = true, true
		for _, id := range g.mine {
			if err := id.Disconnect(now); err != nil {
				g.cl.cms.fail(err)
			}
		}
	}
	for len(g.orders) > 0 && len(g.asked) < asking {
		o := g.orders[0]
		p := g.params
		p.QP, p.PrivateData = o.qp, o.hello
		id, err := g.agent.Dial(now, cm.Peer{IP: o.to.IP, MAC: o.to.MAC, Port: service}, p)
		if err != nil {
			g.cl.cms.fail(err)
			break
		}
		g.orders, g.asked[id], did = g.orders[1:], o, true
	}
	// The application may use no connection that is not there yet, or that has ended.
	if g.app != nil && !g.ending && len(g.orders)+len(g.asked) == 0 {
		did = g.app.Step(now) || did
	}
	return did
}

// Deadline implements host.App.
func (g *manager) Deadline() clock.Time {
	d := g.agent.Deadline()
	if g.app != nil && !g.ending {
		d = min(d, g.app.Deadline())
	}
	return d
}

func (g *manager) event(now clock.Time, e cm.Event) error {
	switch e.Kind {
	case cm.Requested:
		return g.knock(now, e)
	case cm.Established:
		o, mine := g.asked[e.ID]
		if !mine {
			return nil
		}
		delete(g.asked, e.ID)
		g.mine = append(g.mine, e.ID)
		g.cl.cms.up.Add(1)
		if o.told != nil {
			return o.told(e.PrivateData)
		}
		return nil
	case cm.Disconnected:
		if g.gone != nil && !e.ID.Active() {
			g.gone(e.ID.QP())
			return nil
		}
		if g.ending && e.ID.Active() {
			g.cl.cms.down.Add(1)
		} else if !g.cl.cms.end.Load() {
			return fmt.Errorf("clover: %v ended by itself", e.ID)
		}
		return nil
	case cm.Rejected, cm.Unreachable:
		if g.gone != nil && !e.ID.Active() {
			g.gone(e.ID.QP())
			return nil
		}
		if err := refusal(e); err != nil {
			return err
		}
	}
	return fmt.Errorf("clover: %v: %v, reason %d", e.ID, e.Kind, e.Reason)
}

// Connected reports whether all connections are made. Without Config.CM they are made from the start.
func (cl *Cluster) Connected() bool { return cl.cms.up.Load() >= int64(cl.cms.number) }

// End ends all connections that the connection managers have made. The cluster must be stopped, is breathed on,
// and does nothing more. Ended reports whether both ends of all connections know.
func (cl *Cluster) End() { cl.cms.end.Store(true) }

// Ended reports whether all connections have ended that the connection managers have made.
func (cl *Cluster) Ended() bool { return cl.cms.down.Load() >= int64(cl.cms.number) }
