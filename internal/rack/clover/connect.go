package clover

import (
	"context"
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
// wire. The machine that will send requests asks for the connection; the private data of its request is the
// connection's number in the rack. A memory node that is asked answers with the places of its memory.

// asking is how many connections a machine asks for at a time, so that a hundred requests do not overrun the
// machine that they go to.
const asking = 4

// answerWithin is the connection managers' response timeout: 4.096 us * 2^15 are 0.13 s.
const answerWithin = 15

// service is the port number that requests name.
const service = 7471

// order is a connection to ask for.
type order struct {
	number uint32
	qp     *rnic.QP
	to     *Machine
	memory *Memory // nil: a metadata server, or a machine of another process
	// For a machine of another process: the private data of the request, and the function that takes the
	// answer's.
	hello []byte
	told  func(private []byte) error
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
	wanted map[uint32]*rnic.QP // queue pairs that other machines will ask for, by number
	memory *Memory             // the machine's memory, if it is a memory node
	params cm.Params
	ending bool
	// door, if not nil, makes the queue pairs that machines of other processes ask for. If it returns an
	// error, the request is rejected with the error's text.
	door func(hello []byte) (qp *rnic.QP, private []byte, err error)
	gone func(qp *rnic.QP) // a connection that door let in has ended
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
	moved    chan struct{} // up or down has changed
	failure  atomic.Pointer[error]
}

func (m *managed) fail(err error) {
	m.failure.CompareAndSwap(nil, &err)
	m.signal()
}

func (m *managed) signal() {
	select {
	case m.moved <- struct{}{}:
	default:
	}
}

// manage puts a connection manager in front of a machine's application and returns the manager. Without
// Config.CM it returns the application itself.
func (cl *Cluster) manage(m *Machine, nic *rnic.NIC, mem *Memory, app host.App) (host.App, error) {
	if !cl.cfg.CM {
		return app, nil
	}
	if m.NIC != nil {
		return nil, fmt.Errorf("clover: %s: a NIC that others use has a connection manager of its own", m.Name)
	}
	g := cl.cms.of[nic]
	if g == nil {
		a, err := cm.New(nic, cm.Config{ResponseTimeout: answerWithin, Seed: cl.cfg.Seed})
		if err != nil {
			return nil, err
		}
		a.Listen(service)
		c := &cl.cfg.Conn
		g = &manager{cl: cl, agent: a, memory: mem, asked: map[*cm.ID]order{}, wanted: map[uint32]*rnic.QP{}, params: cm.Params{
			PathMTU: c.PathMTU, LocalACKTimeout: uint8(c.Timeout), RetryCount: uint8(c.RetryCnt), RNRRetryCount: uint8(c.RNRRetry), LocalPort: service,
		}}
		cl.cms.of[nic] = g
	}
	g.app = app
	return g, nil
}

// order orders a connection. It is made once the cluster is breathed.
func (cl *Cluster) order(a, b side, qa, qb *rnic.QP) {
	cl.cms.number++
	from, to := cl.cms.of[a.nic], cl.cms.of[b.nic]
	from.orders = append(from.orders, order{number: cl.cms.number, qp: qa, to: b.m, memory: to.memory})
	to.wanted[cl.cms.number] = qb
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
		if o.hello == nil {
			p.PrivateData = binary.BigEndian.AppendUint32(nil, o.number)
		}
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
		if g.door != nil {
			return g.knock(now, e)
		}
		n := binary.BigEndian.Uint32(e.PrivateData)
		qp := g.wanted[n]
		if qp == nil {
			return e.ID.Reject(cm.ReasonConsumer, nil)
		}
		delete(g.wanted, n)
		p := g.params
		p.QP, p.PrivateData = qp, g.memory.announce(nil)
		return e.ID.Accept(now, p)
	case cm.Established:
		o, mine := g.asked[e.ID]
		if !mine {
			return nil
		}
		delete(g.asked, e.ID)
		g.mine = append(g.mine, e.ID)
		g.cl.cms.up.Add(1)
		g.cl.cms.signal()
		if o.told != nil {
			return o.told(e.PrivateData)
		}
		if o.memory != nil {
			return g.cl.meta.layout.within(o.memory.layout[0].Node, e.PrivateData)
		}
		return nil
	case cm.Disconnected:
		if g.door != nil && !e.ID.Active() {
			g.gone(e.ID.QP())
			return nil
		}
		if g.ending && e.ID.Active() {
			g.cl.cms.down.Add(1)
			g.cl.cms.signal()
		} else if !g.cl.cms.end.Load() {
			return fmt.Errorf("clover: %v ended by itself", e.ID)
		}
		return nil
	case cm.Rejected, cm.Unreachable:
		if g.door != nil && !e.ID.Active() {
			g.gone(e.ID.QP())
			return nil
		}
		if err := refusal(e); err != nil {
			return err
		}
	}
	return fmt.Errorf("clover: %v: %v, reason %d", e.ID, e.Kind, e.Reason)
}

// announce appends where a memory node's memory is: address, R_Key and bytes of the entries, and of the
// shortcuts.
func (m *Memory) announce(b []byte) []byte {
	if m == nil {
		return b
	}
	for _, r := range []*rnic.MR{m.data, m.shortcuts} {
		b = binary.BigEndian.AppendUint64(b, r.VA)
		b = binary.BigEndian.AppendUint32(b, r.RKey)
		b = binary.BigEndian.AppendUint64(b, uint64(len(r.Mem)))
	}
	return b
}

// within checks that what a memory node announced contains all that l says of the node.
func (l Layout) within(node uint32, announced []byte) error {
	const each = 8 + 4 + 8
	for i := range l {
		s, has := &l[i], false
		for b := announced; s.Node == node && len(b) >= each && !has; b = b[each:] {
			va, rkey, n := binary.BigEndian.Uint64(b), binary.BigEndian.Uint32(b[8:]), binary.BigEndian.Uint64(b[12:])
			has = rkey == s.RKey && s.VA >= va && s.VA-va <= n && uint64(s.Count)*uint64(s.Slab) <= n-(s.VA-va)
		}
		if s.Node == node && !has {
			return fmt.Errorf("clover: memory node %d does not have %d entries at %#x under R_Key %#x", node, s.Count, s.VA, s.RKey)
		}
	}
	return nil
}

// Connected waits until all connections are made, while another goroutine breathes the cluster. Without
// Config.CM they are made from the start.
func (cl *Cluster) Connected(ctx context.Context) error {
	if !cl.cfg.CM {
		return nil
	}
	return cl.cms.wait(ctx, &cl.cms.up)
}

// Disconnect ends all connections that the connection managers have made, and waits until both ends know.
// Another goroutine breathes the cluster, which must be stopped, and does nothing afterwards.
func (cl *Cluster) Disconnect(ctx context.Context) error {
	if !cl.cfg.CM {
		return nil
	}
	cl.cms.end.Store(true)
	return cl.cms.wait(ctx, &cl.cms.down)
}

// wait waits until the counter so has reached the number of connections.
func (m *managed) wait(ctx context.Context, so *atomic.Int64) error {
	for so.Load() < int64(m.number) {
		if err := m.failure.Load(); err != nil {
			return *err
		}
		select {
		case <-m.moved:
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("clover: %d of %d connections", so.Load(), m.number), context.Cause(ctx))
		}
	}
	return nil
}
