package sim

import (
	"fmt"
	"maps"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/snic"
	"github.com/quillon/quillon/snic/attach"
	"github.com/quillon/quillon/snic/pool"
)

// Topology is how the boards of a pool are joined.
type Topology uint8

// Topologies.
const (
	Single         Topology = iota // one board
	Intermediate                   // two, with a cable between them; endpoints are at the first one
	SwitchAttached                 // two, at a switch that endpoints are at
	Ring                           // as Intermediate, with a third board between them: it passes what comes from one to the other
)

// Kinds of the apps.
const (
	boardApp  = "snic"
	switchApp = "attach"
)

// Numbers of a node's ports: where frames come in and leave, and where other boards are.
const (
	portIn = iota
	portOut
	portOthers // where frames of others come in, who have a port of their own
	_          // where they leave
	portPool
)

// How often a node and its pool hear of each other, as with quillon run: while something is under way, and otherwise. How often
// the members of a pool say that they live, and when they are lost.
const (
	talkSoon   = 200 * Microsecond
	talkIdle   = 10 * Millisecond
	poolPeriod = 100 * time.Millisecond
	poolDead   = 10 * poolPeriod
)

// torLatency is the switch's: commodity ones have 0.8 to 1 µs (section 5.7.1).
const torLatency = 900 * Nanosecond

// rack is a board, or a pool of them: live apps, in virtual time, with cables between them.
type rack struct {
	k      kernel
	nodes  []*node
	boards []*node // of these
	entry  *node   // that endpoints are at
	pool   []*member
}

// rackConfig describes a rack.
type rackConfig struct {
	SNIC
	topology   Topology
	deployment string // without regions
	regions    [2]int // of the boards
	args       graph.Args
	workers    int        // of a board; 0: one, as the source's boards have one scheduler
	frames     frames     // of each worker of a node
	perByte    Time       // of cables
	entrance   graph.Args // of the board that endpoints are at, besides
	seed       uint64
	around     func(board int) *body
}

// build makes the nodes.
func (r *rack) build(c *rackConfig) (err error) {
	of := func(regions int, deployment string, more graph.Args) graph.Args {
		a := maps.Clone(c.args)
		maps.Copy(a, more)
		a["deployment"] = fmt.Sprintf("regions: {count: %d, area: 1}\n", regions) + deployment
		return a
	}
	ports, way := []string{"p0", "p1", "p2", "p3"}, graph.Args{}
	boards := 1
	if c.topology != Single {
		boards, ports = 2, append(ports, "p14")
		way["pool-port"], way["pool-mtu"] = "p14", "9216"
	}
	if c.topology == SwitchAttached {
		way["pre-launch"] = "off"
	}
	add := func(app string, args graph.Args, ports ...string) (*node, error) {
		workers := 1
		if app == boardApp {
			workers = max(c.workers, 1)
		}
		n, err := newNode(&r.k, app, args, ports, workers, c.frames, c.seed, c.around(len(r.nodes)))
		r.nodes = append(r.nodes, n)
		return n, err
	}
	for i := range boards {
		args := of(c.regions[i], c.deployment, way)
		if i == 0 && c.topology != SwitchAttached {
			maps.Copy(args, c.entrance)
		}
		b, err := add(boardApp, args, ports...)
		if err == nil && boards > 1 {
			join := snic.NewPeering(i, address(i))
			err = r.join(b, join, pool.Config{Board: i, Topology: pool.Intermediate(snic.MaxPeers, c.topology != SwitchAttached), Host: join})
		}
		if err != nil {
			return err
		}
	}
	r.boards, r.entry = r.nodes[:boards], r.nodes[0]
	half := c.half()
	switch c.topology {
	case Intermediate:
		r.cable(c, r.boards[0], portPool, r.boards[1], portPool, half, half)
	case Ring:
		b, err := add(boardApp, of(1, passing, nil), "p0", "p1")
		if err != nil {
			return err
		}
		r.cable(c, r.boards[0], portPool, b, portIn, half, half)
		r.cable(c, b, portOut, r.boards[1], portPool, half, half)
	case SwitchAttached:
		args := of(c.regions[0], c.deployment, nil)
		s, err := add(switchApp, graph.Args{"deployment": args["deployment"], "board-mtu": "9216", "hold": "4096", "flows": "1024"}, "p0", "p1", "p2", "p3", "b0", "b1")
		if err == nil {
			err = r.join(s, attach.NewJoining(address(attach.Number)), pool.Config{Board: attach.Number, Topology: attach.Topology()})
		}
		if err != nil {
			return err
		}
		for i, b := range r.boards {
			r.cable(c, s, portPool+i, b, portPool, torLatency, half)
			b.cables[portPool].delay -= torLatency // what comes from a board is in the switch
		}
		r.entry = s
	}
	for _, n := range r.nodes {
		if _, err := n.inst.Step(0); err != nil {
			return err
		}
		n.tick()
	}
	return nil
}

// passing is the deployment of a board that passes the service paths of others (NSH).
const passing = "tasks: {none: {kind: dummy}}\ntenants: {none: {}}\ndags: [{uid: 1, tenant: none, run: none}]\nrules: [{match: \"type:0x894f\", road: switch}]\n"

// half is from a board's cable to its scheduler, and from there to a cable.
func (n *SNIC) half() Time { return From(n.Path-time.Duration(n.Scheduler)*n.Cycle) / 2 }

// cable joins two nodes; x and y are what a frame takes between the cable and each of them.
func (r *rack) cable(c *rackConfig, a *node, p int, b *node, q int, x, y Time) {
	delay := x + From(Rack100G().Propagation) + y
	a.cables[p] = &cable{link{perByte: c.perByte, delay: delay, bound: never}, b, q}
	b.cables[q] = &cable{link{perByte: c.perByte, delay: delay, bound: never}, a, p}
}

// begin lets all nodes load what they run and hear of each other, until a time.
func (r *rack) begin(until Time) error {
	for _, m := range r.pool {
		if m.next == never {
			m.fire(poolTalk, 0, nil)
		}
	}
	for r.k.next() <= until {
		r.k.step()
	}
	r.k.now = until
	return r.failed()
}

// failed is the first error of the nodes.
func (r *rack) failed() error {
	for _, n := range r.nodes {
		if n.err != nil {
			return n.err
		}
	}
	return nil
}

// close ends all nodes, in which no frame may be missing.
func (r *rack) close() error {
	err := r.failed()
	for _, n := range r.nodes {
		if err == nil {
			err = n.inst.Conservation()
		}
		if err == nil {
			err = n.inst.Close()
		}
	}
	return err
}

// address is that of a member's port to the pool.
func address(member int) [6]byte { return [6]byte{2, 'p', 'o', 'o', 'l', byte(member)} }

// joining is what joins an app with its part of the pool: snic.Peering and attach.Joining.
type joining interface {
	On(n *pool.Node, now clock.Time, e pool.Event)
	Exchange(do func(func(n *pool.Node, now clock.Time)), visit func(func(graph.App)) error) (bool, error)
}

// member is a node's part of the pool. It does what quillon run and snic/pool/gossip do, in virtual time: messages
// go over links of the rack's rate, none is lost.
type member struct {
	*node
	rack *rack
	id   uint32
	part *pool.Node
	join joining
	next Time              // when it is to look
	mail map[uint64][]byte // on the way to it
	sent uint64
}

// Kinds of events of a member.
const (
	poolTalk uint32 = iota // app and pool hear of each other
	poolLook               // the Node's deadline
	poolHear               // a message
)

// join makes a node a member of the pool.
func (r *rack) join(n *node, by joining, c pool.Config) error {
	c.Inc, c.Period, c.Dead = 1, poolPeriod, poolDead
	part, err := pool.New(r.k.now.Clock(), c)
	if err != nil {
		return err
	}
	m := &member{node: n, rack: r, part: part, join: by, next: never, mail: map[uint64][]byte{}}
	m.id = r.k.add(m)
	r.pool = append(r.pool, m)
	return nil
}

// fire implements actor.
func (m *member) fire(kind uint32, arg uint64, _ *packet.Buf) {
	switch kind {
	case poolTalk:
		soon, err := m.join.Exchange(m.do, func(visit func(graph.App)) error {
			for w := range m.pools {
				visit(m.inst.App(appName, w))
			}
			return nil
		})
		m.note(err)
		m.tick()
		wait := talkIdle
		if soon {
			wait = talkSoon
		}
		m.k.plan(m.k.now+wait, m.id, poolTalk, 0, nil)
	case poolLook:
		if m.next <= m.k.now {
			m.next = never
			m.do(func(*pool.Node, clock.Time) {})
		}
	case poolHear:
		s, err := pool.Decode(m.mail[arg])
		delete(m.mail, arg)
		if err != nil {
			m.note(err)
			return
		}
		m.do(func(n *pool.Node, now clock.Time) { n.Input(now, s) })
	}
}

// do has the Node used, and then says what it has to say.
func (m *member) do(f func(*pool.Node, clock.Time)) {
	now := m.k.now.Clock()
	f(m.part, now)
	m.part.Advance(now)
	for e := m.part.Events(); len(e) > 0; e = m.part.Events() {
		for _, e := range e {
			m.join.On(m.part, now, e)
		}
	}
	for s := m.part.Poll(now); s != nil; s = m.part.Poll(now) {
		for _, to := range m.rack.pool {
			if to.part.Board != s.To {
				continue
			}
			bytes, err := s.Encode()
			m.note(err)
			n := Rack100G()
			to.sent++
			to.mail[to.sent] = bytes
			took := From(n.Propagation+n.Switch) + Time(float64(len(bytes)+wireOverhead)*8e3/n.GbitPerSecond)
			m.k.plan(m.k.now+took, to.id, poolHear, to.sent, nil)
		}
	}
	if at := m.part.Next(); at != clock.Never {
		if t := max(fromClock(at), m.k.now+Nanosecond); t < m.next {
			m.next = t
			m.k.plan(t, m.id, poolLook, 0, nil)
		}
	}
}
