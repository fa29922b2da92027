package bed

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/quillon/quillon/internal/rack/history"
	"github.com/quillon/quillon/internal/rack/history/fault"
	"github.com/quillon/quillon/internal/rack/host"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/journal"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/port/mem"
	"github.com/quillon/quillon/rack/rnic"
)

// Box is the network function on the server's cable.
type Box struct {
	Kind graph.Kind
	Args graph.Args
	// Front are apps between the clients and this one, from the clients' side on.
	Front []Stage
	// Configure, if not nil, gives the arguments instead, each time that the box
	// starts: it may look at the bed's connections.
	Configure func(*Bed) graph.Args
	// Clean: it goes down cleanly, not as in a crash.
	Clean bool
	// Killed: trials of a sweep have it die, and nobody else, when it carries something:
	// in the middle of a breath, before the first store to some page of its memory.
	Killed bool
	// Late: it is not there at the beginning, and frames cross.
	Late bool
	// Workers is how many the box has; 0 = 1.
	Workers int
	// Reloads are the settings that it may be given while it runs (BoxReloads); none: some that change little.
	Reloads []graph.Args
	// Journal: its machine has a disk, on which apps keep journals; a write there takes so long. 0: it has none.
	Journal time.Duration
	// Journals, if not nil, opens the apps' journals in place of that disk.
	Journals func(app string, slots int, arrange journal.Arrange) (journal.Journal, error)
	// Connected and Disconnected, if not nil, are told about queue pairs that were
	// connected, and that are gone, while the box runs: what a connection
	// manager's packets, or a controller, would tell it.
	Connected, Disconnected func(*graph.Instance, Connection)
}

// Stage is an app in front of the box.
type Stage struct {
	Name string
	Kind graph.Kind
	Args graph.Args
}

// Connection is a connected pair of queue pairs.
type Connection struct {
	Session int // among all clients'
	Client  int
	// Addresses and numbers of both ends, and the first PSN of each direction.
	ClientMAC, ServerMAC [6]byte
	ClientIP, ServerIP   netip.Addr
	ClientQPN, ServerQPN uint32
	ClientPSN, ServerPSN uint32
	MTU                  int
}

// Config describes a bed.
type Config struct {
	Clients int
	// Guests are places on the bridge for machines of others (Attach): their
	// cables and they themselves are called g0 and so on. They do not come back.
	Guests   int
	Sessions int // queue pairs a client
	MTU      int // path MTU; 0 = 256, so that little data makes many packets
	Profile  rnic.Profile
	// Conn, if its PathMTU is not 0, replaces the bed's own timers and counts.
	Conn     rnic.Conn
	Box      *Box
	Schedule fault.Schedule
	Seed     uint64
	// Grace is how long after a client's death everybody may know of it: by then
	// nothing that it sent is on its way any more. 0 = 1 ms.
	Grace time.Duration
	// Serve registers the memory, each time that the server starts.
	Serve func(pd *rnic.PD) error
	// App makes the application of a client, each time that the client starts;
	// nil: the client does not come back. See Idle.
	App func(b *Bed, c *Client) (host.App, error)
	// IPv6 gives all machines IPv6 addresses.
	IPv6 bool
	// Wrap, if not nil, gives what stands between a machine's NIC and its cable,
	// each time that the machine starts.
	Wrap func(machine string, nic *rnic.NIC) host.Endpoint
	// Second is the second NIC of the server's machine.
	Second Second
	// Tune, if not nil, may change what a machine's NIC is made with.
	Tune func(machine string, c *rnic.Config)
}

// Client is a client machine.
type Client struct {
	Number int
	NIC    *rnic.NIC
	PD     *rnic.PD
	CQ     *rnic.CQ
	App    host.App // of this life
	Life   int      // how often the machine was started again
}

// machine is a node that can die; its cable eats what comes then.
type machine struct {
	name     string
	mac      [6]byte
	ip       netip.Addr
	port     *mem.Port
	node     *host.Node // nil: dead
	restarts int
	deaths   int
	diedAt   clock.Time // of the last death
	lost     int        // buffers that died with it
	stalled  bool       // what comes waits in its port
	rx       packet.Batch
}

// Breath implements host.Worker.
func (m *machine) Breath(now clock.Time) (int, error) {
	if m.stalled {
		return 0, nil
	}
	if m.node != nil {
		return m.node.Breath(now)
	}
	m.rx.Reset()
	n, err := m.port.Rx(&m.rx)
	m.rx.PutAll()
	return n, err
}

// Deadline implements host.Worker.
func (m *machine) Deadline() clock.Time {
	if m.node == nil || m.stalled {
		return clock.Never
	}
	return m.node.Deadline()
}

// Bed is a rack that runs.
type Bed struct {
	Clock *clock.Manual
	Pool  *packet.Pool

	cfg      Config
	start    clock.Time
	clients  []*Client
	machines []*machine // of the clients, and those of guests behind them
	server   *machine
	nic      *rnic.NIC // the server's
	second   *rnic.NIC // that of its second NIC; nil: there is none
	pd       *rnic.PD
	cq       *rnic.CQ
	conns    []end // by session
	box      *box
	bridge   *host.Bridge
	wires    []*fault.Wire
	ports    []*mem.Port
	faults   []fault.Fault // of machines, to come
	sim      *host.Sim
}

// end is the state of a session's connection.
type end struct {
	Connection
	client, server *rnic.QP // nil: none
}

const slots, wireDepth = 2048, 256

// New makes a bed at time 0 of its clock plus one second.
func New(c Config) (*Bed, error) {
	if c.Clients < 1 || c.Guests < 0 || c.Clients+c.Guests > 200 || c.Sessions < 1 || c.Serve == nil || c.App == nil {
		return nil, errors.New("bed: want 1 to 200 clients and guests, with sessions, something to serve and applications")
	}
	c.MTU = cmp.Or(c.MTU, 256)
	if c.Conn.PathMTU == 0 {
		// 4.096 us * 2^7 = 0.5 ms, 7 tries: a queue pair fails after 4 ms.
		c.Conn = rnic.Conn{MaxRdAtomic: 16, MaxDestRdAtomic: 16, Timeout: 7, RetryCnt: 6, RNRRetry: 6, MinRNRTimer: 1}
	}
	c.Conn.PathMTU = c.MTU
	c.Grace = cmp.Or(c.Grace, time.Millisecond)
	// Room for the longest packet, an even more generous headroom, and growth.
	pool, err := packet.NewPool(slots, (packet.Headroom+14+c.MTU+128+63)&^63, nil)
	if err != nil {
		return nil, err
	}
	b := &Bed{cfg: c, Pool: pool, Clock: clock.NewManual(clock.Time(time.Second)), conns: make([]end, c.Clients*c.Sessions), faults: c.Schedule.Machines()}
	b.start = b.Clock.Now()
	var workers []host.Worker
	cable := func(name string, a, z port.Port) {
		w := fault.NewWire(name, a, z, c.Schedule)
		b.wires = append(b.wires, w)
		workers = append(workers, w)
	}
	wire := func(name string) (*mem.Port, *mem.Port) {
		x, y := mem.NewWire(name, name+"-far", pool, wireDepth, b.Clock)
		b.ports = append(b.ports, x, y)
		return x, y
	}
	var ends []port.Port
	for i := range c.Clients + c.Guests {
		name := fmt.Sprintf("c%d", i)
		if i >= c.Clients {
			name = fmt.Sprintf("g%d", i-c.Clients)
		}
		near, far := wire(name)
		up, down := wire(name + "-bridge")
		m := &machine{name: name, mac: [6]byte{2, 0, 0, 0, 1, byte(i)}, ip: netip.AddrFrom4([4]byte{10, 0, 1, byte(i + 1)}), port: near}
		if c.IPv6 {
			m.ip = netip.AddrFrom16([16]byte{0xfd, 14: 1, 15: byte(i + 1)})
		}
		b.machines = append(b.machines, m)
		if i < c.Clients {
			b.clients = append(b.clients, &Client{Number: i})
		}
		workers = append(workers, m)
		cable(name, far, up)
		ends = append(ends, down)
	}
	near, far := wire("s0")
	b.server = &machine{name: "s0", mac: [6]byte{2, 0, 0, 0, 2, 0}, ip: netip.AddrFrom4([4]byte{10, 0, 2, 1}), port: near}
	if c.IPv6 {
		b.server.ip = netip.AddrFrom16([16]byte{0xfd, 14: 2, 15: 1})
	}
	in, out := wire("in")
	ends = append(ends, in)
	boxIn, boxOut := wire("box-in")
	toServer, fromBox := wire("box-out")
	workersOfBox := 1
	if c.Box != nil {
		workersOfBox = max(c.Box.Workers, 1)
	}
	b.box = &box{bed: b, a: newSpread(boxOut, workersOfBox, c.Seed), b: newSpread(toServer, workersOfBox, c.Seed+1), memory: map[string][]byte{}, bound: map[port.QueuePair]bool{}, guard: port.NewGuard(nil), torn: map[string]*torn{}, rng: rand.New(rand.NewPCG(b.cfg.Seed, 0x746F726E))}
	if c.Box != nil && c.Box.Journal > 0 {
		b.box.disk = &disk{bed: b, takes: c.Box.Journal, journals: map[string]*sectors{}, lost: map[lost]bool{}, shut: map[[2]uint64]bool{}, rng: rand.New(rand.NewPCG(c.Seed, 0x6469736B))}
	}
	b.bridge = host.NewBridge(ends...)
	for i, m := range append(slices.Clone(b.machines), b.server) {
		b.bridge.Fix(m.mac, i)
	}
	if c.Second != NoSecond {
		b.bridge.Fix(b.twin().mac, len(b.machines))
	}
	workers = append(workers, b.bridge)
	cable("in", out, boxIn)
	workers = append(workers, b.box)
	cable("s0", fromBox, far)
	workers = append(workers, b.server)
	b.sim = &host.Sim{Clock: b.Clock, Workers: append(workers, (*fate)(b))}
	if err := b.startServer(); err != nil {
		return nil, err
	}
	if c.Box != nil && !c.Box.Late {
		if err := b.box.up(); err != nil {
			return nil, err
		}
	}
	for i := range b.clients {
		if err := b.startClient(i); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// nicOf makes a machine's NIC. Every life has other keys, PSNs and numbers of
// queue pairs than the one before, as time has it on a real one.
func (b *Bed) nicOf(m *machine, index int) (*rnic.NIC, error) {
	c := rnic.Config{
		MAC: m.mac, IP: m.ip, Profile: b.cfg.Profile, LinkMTU: b.cfg.MTU + 80, Pool: b.Pool,
		FirstQPN: uint32(0x11 + 0x100*(index+1) + 0x10000*m.restarts),
		Seed:     b.cfg.Seed<<20 ^ uint64(index)<<10 ^ uint64(m.restarts),

		LateAtomics: late(b.cfg.Seed),
	}
	if b.cfg.Tune != nil {
		b.cfg.Tune(m.name, &c)
	}
	return rnic.New(c)
}

// late reports whether the NICs of a seed's bed execute atomics late: one of four do.
func late(seed uint64) bool { return seed>>2&3 == 3 }

// words is the model of the memory of a seed's bed.
func words(seed uint64) history.Model[history.Word, uint64] {
	if late(seed) {
		return history.Unfenced(nil)
	}
	return history.Words(nil)
}

// Guest is where a guest's machine is: its cable's end and its addresses.
func (b *Bed) Guest(i int) (at port.Port, mac [6]byte, ip netip.Addr) {
	m := b.machines[b.cfg.Clients+i]
	return m.port, m.mac, m.ip
}

// Attach puts a machine, made for the port of Guest, into a guest's place.
func (b *Bed) Attach(i int, n *host.Node) { b.machines[b.cfg.Clients+i].node = n }

// Server is the NIC of the server that runs now.
func (b *Bed) Server() *rnic.NIC { return b.nic }

func (b *Bed) startServer() error {
	m := b.server
	var err error
	if b.nic, err = b.nicOf(m, 255); err != nil {
		return err
	}
	b.pd = b.nic.AllocPD()
	b.cq = b.nic.CreateCQ(16)
	at := b.wrapped(m, b.nic)
	if b.cfg.Second != NoSecond {
		if at, err = b.both(at); err != nil {
			return err
		}
	}
	m.node = host.NewNode(m.port, at, nil)
	return b.cfg.Serve(b.pd)
}

func (b *Bed) startClient(i int) error {
	c, m := b.clients[i], b.machines[i]
	var err error
	if c.NIC, err = b.nicOf(m, i); err != nil {
		return err
	}
	c.PD = c.NIC.AllocPD()
	c.CQ = c.NIC.CreateCQ(1024)
	c.Life = m.restarts
	app, err := b.cfg.App(b, c)
	if err != nil {
		return err
	}
	c.App = app
	if app != nil {
		m.node = host.NewNode(m.port, b.wrapped(m, c.NIC), app)
	}
	return nil
}

func (b *Bed) wrapped(m *machine, nic *rnic.NIC) host.Endpoint {
	if b.cfg.Wrap == nil {
		return nic
	}
	return b.cfg.Wrap(m.name, nic)
}

// errDown: the machine that is asked for is not there.
var errDown = errors.New("bed: the server is down")

// Link is how a session's queue pairs are made. The zero value of a field takes
// the bed's own.
type Link struct {
	PD     *rnic.PD    // of the server's queue pair
	Access rnic.Access // that the server's queue pair gives; 0 = all (None: none)
	// Conn is used where its PathMTU is not 0. First PSNs that are 0 are random.
	Conn       rnic.Conn
	ClientConn *rnic.Conn // of the client's end, where it differs
	Recv       int        // work requests that the server's receive queue holds; 0 = 1
	CQ         *rnic.CQ   // the server's
	// Near and Far are queue pairs that are connected anew, with the numbers that they have; nil: new ones
	// are made.
	Near, Far *rnic.QP
	// NearQPN and FarQPN are the numbers of new queue pairs; 0: any.
	NearQPN, FarQPN uint32
	Sends           int // work requests that the server's send queue holds; 0 = 1
	// NIC is that of the server's queue pair; nil: the first.
	NIC *rnic.NIC
}

// All is every right that a queue pair can give, and None is none: LocalWrite
// says nothing about a peer.
const (
	All  = rnic.RemoteWrite | rnic.RemoteRead | rnic.RemoteAtomic
	None = rnic.LocalWrite
)

// Dial connects a session of a client anew, with all rights; its queue pair of
// before is taken away on both sides first. It is what a connection manager would
// do, at once and without a packet.
func (b *Bed) Dial(c *Client, session int) (*rnic.QP, error) {
	return b.Connect(c, session, Link{})
}

// Connect is Dial for queue pairs as l has them.
func (b *Bed) Connect(c *Client, session int, l Link) (*rnic.QP, error) {
	b.hangUp(session, l.Near, l.Far)
	if b.server.node == nil {
		return nil, errDown
	}
	l = l.defaults(b)
	q, err := l.near(c)
	if err != nil {
		return nil, err
	}
	r, err := l.far(l.NIC)
	if err != nil {
		return nil, err
	}
	k := l.Conn
	if k.SQPSN == 0 {
		k.SQPSN = c.NIC.RandomPSN()
	}
	if k.RQPSN == 0 {
		k.RQPSN = l.NIC.RandomPSN()
	}
	m, s := b.machines[c.Number], l.NIC.Config()
	x := Connection{
		Session: session, Client: c.Number, ClientMAC: m.mac, ServerMAC: s.MAC, ClientIP: m.ip, ServerIP: s.IP,
		ClientQPN: q.QPN, ServerQPN: r.QPN, ClientPSN: k.SQPSN, ServerPSN: k.RQPSN, MTU: k.PathMTU,
	}
	near := k
	if l.ClientConn != nil {
		near = *l.ClientConn
	}
	near.RemoteMAC, near.RemoteIP, near.DestQPN, near.SQPSN, near.RQPSN = s.MAC, s.IP, r.QPN, x.ClientPSN, x.ServerPSN
	if err := q.Connect(near); err != nil {
		return nil, err
	}
	k.RemoteMAC, k.RemoteIP, k.DestQPN, k.SQPSN, k.RQPSN = m.mac, m.ip, q.QPN, x.ServerPSN, x.ClientPSN
	if err := r.Connect(k); err != nil {
		return nil, err
	}
	b.conns[session] = end{x, q, r}
	if f := b.cfg.Box; f != nil && f.Connected != nil && b.box.inst != nil {
		f.Connected(b.box.inst, x)
	}
	return q, nil
}

// near is the client's queue pair.
func (l *Link) near(c *Client) (*rnic.QP, error) {
	if l.Near != nil {
		return l.Near, nil
	}
	return c.NIC.CreateQP(rnic.QPInit{PD: c.PD, SendCQ: c.CQ, RecvCQ: c.CQ, Access: All, QPN: l.NearQPN})
}

// far is the server's queue pair.
func (l *Link) far(nic *rnic.NIC) (*rnic.QP, error) {
	if l.Far != nil {
		return l.Far, nil
	}
	return nic.CreateQP(rnic.QPInit{PD: l.PD, SendCQ: l.CQ, RecvCQ: l.CQ, Access: l.Access, MaxSend: max(l.Sends, 1), MaxRecv: l.Recv, QPN: l.FarQPN})
}

func (l Link) defaults(b *Bed) Link {
	if l.PD == nil {
		l.PD = b.pd
	}
	if l.NIC == nil {
		l.NIC = b.nic
	}
	l.Access = cmp.Or(l.Access, All)
	if l.Conn.PathMTU == 0 {
		psns := [2]uint32{l.Conn.SQPSN, l.Conn.RQPSN}
		l.Conn = b.cfg.Conn
		l.Conn.SQPSN, l.Conn.RQPSN = psns[0], psns[1]
	}
	if l.CQ == nil {
		l.CQ = b.cq
	}
	l.Recv = max(l.Recv, 1)
	return l
}

// Idle is the application of a client that a test drives.
type Idle struct{}

// Step implements host.App.
func (Idle) Step(clock.Time) bool { return false }

// Deadline implements host.App.
func (Idle) Deadline() clock.Time { return clock.Never }

// hangUp takes a session's queue pairs away, but for those to keep, which are only reset.
func (b *Bed) hangUp(session int, keep ...*rnic.QP) {
	e := &b.conns[session]
	if e.client == nil {
		return
	}
	for _, q := range []*rnic.QP{e.client, e.server} {
		if slices.Contains(keep, q) {
			q.Reset()
		} else {
			q.Destroy()
		}
	}
	e.client, e.server = nil, nil
	if f := b.cfg.Box; f != nil && f.Disconnected != nil && b.box.inst != nil {
		f.Disconnected(b.box.inst, e.Connection)
	}
}

// Connections are those that exist.
func (b *Bed) Connections() []Connection {
	var c []Connection
	for i := range b.conns {
		if b.conns[i].client != nil {
			c = append(c, b.conns[i].Connection)
		}
	}
	return c
}

// Addr is the server's address.
func (b *Bed) Addr() netip.Addr { return b.server.ip }

// Clients are the clients, as they live now.
func (b *Bed) Clients() []*Client { return b.clients }

// Dead reports whether a client's life (0 is the first) is over for so long that
// nothing of it is on its way any more.
func (b *Bed) Dead(client, life int) bool {
	m := b.machines[client]
	if life == m.restarts && m.node != nil {
		return false
	}
	return b.Clock.Now() >= m.diedAt.Add(b.cfg.Grace)
}

// Down reports whether a client is dead at this moment.
func (b *Bed) Down(client int) bool { return b.machines[client].node == nil }

// Deaths is how often a client has died.
func (b *Bed) Deaths(client int) int { return b.machines[client].deaths }

// More reports whether a machine will still die or come back.
func (b *Bed) More() bool { return len(b.faults) > 0 }

// Instance is the graph of the box; nil when there is none, or it is down.
func (b *Bed) Instance() *graph.Instance { return b.box.inst }

// Struck is how many frames a fault befell.
func (b *Bed) Struck() int {
	n := 0
	for _, w := range b.wires {
		n += w.Struck
	}
	return n
}

// Run lets everything run until done, at most for limit.
func (b *Bed) Run(done func() bool, limit time.Duration) error {
	if err := b.sim.Run(done, limit); err != nil {
		return fmt.Errorf("bed: after %v: %w", b.Clock.Now().Sub(b.start), err)
	}
	return nil
}

// fate makes the schedule's machines die and come back; it is a host.Worker.
type fate Bed

// Breath implements host.Worker.
func (f *fate) Breath(now clock.Time) (int, error) {
	b := (*Bed)(f)
	n := 0
	for len(b.faults) > 0 && b.start.Add(b.faults[0].At) <= now {
		x := b.faults[0]
		b.faults = b.faults[1:]
		if err := b.strike(x, now); err != nil {
			return n, fmt.Errorf("bed: %v: %w", x, err)
		}
		n++
	}
	return n, nil
}

// Deadline implements host.Worker.
func (f *fate) Deadline() clock.Time {
	at := clock.Never
	if len(f.faults) > 0 {
		at = f.start.Add(f.faults[0].At)
	}
	return at
}

// strike makes one machine die or come back; what is so already stays so, since
// a schedule that was shrunk may say anything.
func (b *Bed) strike(x fault.Fault, now clock.Time) error {
	kill := x.Action == fault.Kill
	switch x.Where {
	case "box":
		if kill && b.box.disk != nil && b.box.disk.rng.IntN(2) == 0 {
			return b.box.reboot()
		}
		if kill {
			return b.box.die()
		}
		return b.box.up()
	case "s0":
		m := b.server
		switch {
		case kill && m.node != nil:
			m.kill(now)
			for i := range b.conns {
				if e := &b.conns[i]; e.client != nil {
					e.server.Destroy()
				}
			}
		case !kill && m.node == nil:
			m.restarts++
			return b.startServer()
		}
		return nil
	}
	for i, m := range b.machines {
		if m.name != x.Where {
			continue
		}
		switch {
		case kill && m.node != nil:
			m.kill(now)
			for s := range b.conns {
				if b.conns[s].Client == i {
					b.hangUp(s)
				}
			}
		case !kill && m.node == nil && i < b.cfg.Clients:
			m.restarts++
			return b.startClient(i)
		}
	}
	return nil
}

// kill ends a machine's life. Frames that its port holds die with it.
func (m *machine) kill(now clock.Time) {
	m.lost += m.node.Held()
	m.node, m.diedAt = nil, now
	m.deaths++
}

// Settle lets what is on its way arrive, until nothing moves, at most for limit.
func (b *Bed) Settle(limit time.Duration) error {
	end := b.Clock.Now().Add(limit)
	err := b.Run(func() bool { return b.Clock.Now() >= end }, 2*limit)
	if errors.Is(err, host.ErrStuck) {
		return nil
	}
	return err
}

// Close ends the bed, and checks that the box has lost or doubled no frame
// without a reason, and nobody a buffer.
func (b *Bed) Close() error {
	err := b.box.down()
	for _, t := range b.box.torn {
		t.close()
	}
	held := b.bridge.Held() + b.box.out[0].Len() + b.box.out[1].Len() + b.box.a.Held() + b.box.b.Held()
	for _, w := range b.wires {
		held += w.Held()
	}
	for _, p := range b.ports {
		held += p.Pending()
	}
	for _, m := range append(b.machines, b.server) {
		held += m.lost
		if m.node != nil {
			held += m.node.Held()
		}
	}
	if n := b.Pool.InUse(); n != held && !b.box.killed {
		err = errors.Join(err, fmt.Errorf("bed: %d buffers are in use and %d wait somewhere", n, held))
	}
	return err
}
