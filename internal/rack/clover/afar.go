package clover

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/quillon/quillon/internal/rack/cm"
	"github.com/quillon/quillon/internal/rack/host"
	"github.com/quillon/quillon/internal/rack/ycsb"
	"github.com/quillon/quillon/nf/clock"
	wire "github.com/quillon/quillon/nf/hdr/clover"
	"github.com/quillon/quillon/rack/rnic"
)

// The machines of a store can be in separate processes. Then they find each other over the wire:
//
//	metadata server ── asks ──► memory node       answer: the layout; the node accepts one metadata server only
//	                ── WRITEs ►                   the first entry of each key
//	client ── asks ──► metadata server            answer: the client's number, keys, size of entries
//	       ── asks ──► memory node                for a queue pair a session, and some for the background
//
// The answers are private data of the connection manager's datagrams. Such a store has one memory node.

// afarHello is what a machine sends with its request for a connection. afarStore is a metadata server's
// answer. A memory node answers with its layout.
type afarHello struct {
	Magic uint32
	Role  uint32
	// Store is the number that the memory node had when the client learned it from the metadata server. By
	// this number the memory node sees whether it was started anew since then. 0: not known yet.
	Store uint64
}

type afarStore struct {
	Magic  uint32
	Number uint32 // the client's number
	Keys   uint32
	Slab   uint32
	Store  uint64
}

const (
	afarMagic = 0x51434C01
	// Roles of the machine that asks.
	afarMetadata = 1 // the metadata server asks a memory node
	afarClient   = 2
	afarFirst    = 3 // a client asks the metadata server for the first time
	// mostAfar is how many sessions a client has at most. Sessions are numbered over all clients.
	mostAfar = 1 << 10
	// mostAfarClients bounds the numbers of clients. A number is not used again, so clients that have ended
	// count, too.
	mostAfarClients = 1 << 12
)

var errAfarVersion = errors.New("it speaks another version of quillon rack")

func pack(v any) []byte {
	b, err := binary.Append(nil, binary.BigEndian, v)
	if err != nil {
		panic(err) // v is not of fixed size
	}
	return b
}

func unpack(b []byte, v any) error {
	if _, err := binary.Decode(b, binary.BigEndian, v); err != nil {
		return errAfarVersion
	}
	return nil
}

// knock answers a request from a machine of another process.
func (g *manager) knock(now clock.Time, e cm.Event) error {
	qp, private, err := g.door(e.PrivateData)
	if err != nil {
		g.refused++
		return e.ID.Reject(cm.ReasonConsumer, []byte(err.Error()))
	}
	p := g.params
	p.QP, p.PrivateData = qp, private
	if err := e.ID.Accept(now, p); err != nil {
		if g.gone != nil {
			g.gone(qp)
		}
		return e.ID.Reject(cm.ReasonNoResources, nil)
	}
	g.accepted++
	return nil
}

// refusal is the error that tells why a request was not accepted. nil: there is no more to tell than the
// event's reason.
func refusal(e cm.Event) error {
	ip := e.ID.Peer().IP
	switch {
	case e.Kind == cm.Unreachable:
		return fmt.Errorf("%v does not answer", ip)
	case e.Reason == cm.ReasonInvalidServiceID:
		return fmt.Errorf("%v is no machine of clover", ip)
	case e.Reason == cm.ReasonConsumer && len(bytes.TrimRight(e.PrivateData, "\x00")) > 0:
		return fmt.Errorf("%v refuses: %s", ip, bytes.TrimRight(e.PrivateData, "\x00"))
	}
	return nil
}

// Part is one machine of a store whose other machines are in other processes. It implements host.App.
type Part struct {
	cl      *Cluster
	nic     *rnic.NIC
	manager *manager
	me      Machine
	built   bool
}

// PartStats counts the connections that other machines have asked for.
type PartStats struct {
	Accepted    uint64 `json:"accepted"`
	Connections int    `json:"connections"` // now
	Refused     uint64 `json:"refused"`
}

func newPart(c Config, nic *rnic.NIC) (*Part, error) {
	if c.Conn == (rnic.Conn{}) {
		c.Conn = rnic.DefaultConn()
	}
	c.CM = true
	c.Conn.PathMTU = min(c.Conn.PathMTU, nic.MaxPathMTU())
	p := &Part{nic: nic, cl: &Cluster{cfg: c, afar: true, cms: managed{of: map[*rnic.NIC]*manager{}}}}
	n := nic.Config()
	p.me = Machine{Name: n.IP.String(), MAC: n.MAC, IP: n.IP}
	if err := p.cl.manage(&p.me, nic); err != nil {
		return nil, err
	}
	p.manager = p.cl.cms.of[nic]
	return p, nil
}

// Step implements host.App.
func (p *Part) Step(now clock.Time) bool { return p.manager.Step(now) }

// Deadline implements host.App.
func (p *Part) Deadline() clock.Time { return p.manager.Deadline() }

// Err is the first error.
func (p *Part) Err() error { return p.cl.Err() }

// Ready reports whether all connections that the machine asked for are established, and its first work is
// done (a metadata server's: to write the first entries).
func (p *Part) Ready() bool {
	f := (*filler)(nil)
	if p.cl.meta != nil {
		f = p.cl.meta.filler
	}
	return p.built && len(p.manager.orders)+len(p.manager.asked) == 0 && (f == nil || f.done == f.all)
}

// Stats counts the connections that other machines have asked for.
func (p *Part) Stats() PartStats {
	return PartStats{p.manager.accepted, p.manager.open, p.manager.refused}
}

// End begins to end all connections that the machine asked for. Ended reports when none is left.
func (p *Part) End() { p.cl.End() }

// Ended reports whether the connections that the machine asked for have ended.
func (p *Part) Ended() bool {
	return p.manager.ending && len(p.manager.asked) == 0 && p.cl.cms.down.Load() >= p.cl.cms.up.Load()
}

// Cluster is a client's load. It can be used once the Part is Ready.
func (p *Part) Cluster() *Cluster { return p.cl }

// admit lets other machines connect. Each connection gets a new queue pair.
func (p *Part) admit(pd *rnic.PD, cq *rnic.CQ, accept func(q *rnic.QP) error, answer func(h afarHello) ([]byte, error), gone func(q *rnic.QP)) {
	g := p.manager
	g.door = func(hello []byte) (*rnic.QP, []byte, error) {
		var h afarHello
		if err := unpack(hello, &h); err != nil || h.Magic != afarMagic {
			return nil, nil, errAfarVersion
		}
		private, err := answer(h)
		if err != nil {
			return nil, nil, err
		}
		q, err := p.nic.CreateQP(rnic.QPInit{PD: pd, SendCQ: cq, RecvCQ: cq, Access: rnic.RemoteWrite | rnic.RemoteRead | rnic.RemoteAtomic, MaxSend: replyDepth, MaxRecv: 4})
		if err != nil {
			return nil, nil, err
		}
		if err := accept(q); err != nil {
			q.Destroy()
			return nil, nil, err
		}
		g.open++
		return q, private, nil
	}
	g.gone = func(q *rnic.QP) {
		if q != nil {
			gone(q)
			q.Destroy()
			g.open--
		}
	}
}

// NewMemoryPart makes a memory node. store must be another number each time a memory node is started.
func NewMemoryPart(nic *rnic.NIC, c MemoryConfig, store uint64) (*Part, error) {
	c.FirstLH, c.FirstSlot = 1, FirstShortcut
	m, err := NewMemory(nic, c)
	if err != nil {
		return nil, err
	}
	p, err := newPart(Config{}, nic)
	if err != nil {
		return nil, err
	}
	p.built = true
	owned := false
	told := pack(afarStore{Magic: afarMagic, Store: store})
	for _, s := range m.Layout() {
		told = append(told, pack(s)...)
	}
	p.admit(m.pd, m.cq, func(*rnic.QP) error { return nil }, func(h afarHello) ([]byte, error) {
		switch {
		case h.Store != 0 && h.Store != store:
			return nil, errors.New("this memory node was started anew: what it held is gone")
		case h.Role == afarMetadata && owned:
			return nil, errors.New("this memory node has, or has had, a metadata server: start it anew, too")
		case h.Role == afarMetadata && h.Store == store:
			owned = true // it has seen what there is, and takes it
		}
		return told, nil
	}, func(*rnic.QP) {})
	return p, nil
}

// NewMetadataPart makes the metadata server of the memory node at address ip. It writes the first entries of
// the keys from 1 on over the wire.
func NewMetadataPart(nic *rnic.NIC, c MetadataConfig, keys, slab int, ip netip.Addr, mac [6]byte) (*Part, error) {
	p, err := newPart(Config{Keys: ycsb.Sequential(1, keys), Slab: slab}, nic)
	if err != nil {
		return nil, err
	}
	memory := &Machine{Name: ip.String(), MAC: mac, IP: ip}
	return p, p.look(memory, afarMetadata, func(private []byte) error {
		var h afarStore
		if err := unpack(private, &h); err != nil || h.Magic != afarMagic {
			return fmt.Errorf("%v: %w", ip, errAfarVersion)
		}
		l := make(Layout, 2)
		if err := unpack(private[binary.Size(h):], l); err != nil {
			return err
		}
		if s := &l[0]; s.Kind != KindData || int(s.Slab) != slab {
			return fmt.Errorf("the memory node's entries have %d bytes, not %d", s.Slab, slab)
		}
		if n := min(int(l[0].Count)/2, int(l[1].Count)); keys > n {
			return fmt.Errorf("%d keys are too many for the memory node: %d entries and %d shortcuts have room for %d", keys, l[0].Count, l[1].Count, n)
		}
		m, err := NewMetadata(nic, l, c)
		if err != nil {
			return err
		}
		p.cl.meta, p.cl.store = m, h.Store
		q, err := p.cl.connect(side{&p.me, nic, m.pd, m.cq}, side{m: memory}, walkers)
		if err != nil {
			return err
		}
		m.memory = []*rnic.QP{q}
		m.filler = &filler{m: m, cl: p.cl, all: 2 * keys}
		p.manager.app, p.built = m.filler, true
		number := uint32(0)
		p.admit(m.pd, m.cq, m.accept, func(h afarHello) ([]byte, error) {
			switch {
			case m.filler.done < m.filler.all:
				return nil, fmt.Errorf("the metadata server makes keys still: %d of %d", m.filler.done/2, keys)
			case h.Role == afarFirst && number == mostAfarClients-1:
				return nil, fmt.Errorf("%d clients have come, and there are numbers for no more: start the store anew", number)
			case h.Role == afarFirst:
				number++
			}
			return pack(afarStore{afarMagic, number, uint32(keys), uint32(slab), p.cl.store}), nil
		}, m.release)
		return nil
	})
}

// look asks a machine for a first connection. The answer tells the parameters of the store. The connection
// stays until the end.
func (p *Part) look(to *Machine, role uint32, told func(private []byte) error) error {
	cq := p.nic.CreateCQ(4)
	q, err := p.nic.CreateQP(rnic.QPInit{PD: p.nic.AllocPD(), SendCQ: cq, RecvCQ: cq, MaxSend: 1, MaxRecv: 1})
	p.cl.order(p.nic, order{qp: q, to: to, hello: pack(afarHello{Magic: afarMagic, Role: role}), told: told})
	return err
}

// NewClientPart makes a client of a metadata server and a memory node at two addresses. keys and slab are
// what the caller expects of the store; 0: what the store has.
func NewClientPart(nic *rnic.NIC, c Config, keys, slab int, metadata, memory Machine) (*Part, error) {
	if c.Sessions < 1 || c.Sessions > mostAfar {
		return nil, fmt.Errorf("a client has 1 to %d sessions, not %d", mostAfar, c.Sessions)
	}
	c.QPs, c.Nap = c.Sessions, DefaultNap
	p, err := newPart(c, nic)
	if err != nil {
		return nil, err
	}
	return p, p.look(&metadata, afarFirst, func(private []byte) error {
		var h afarStore
		if err := unpack(private, &h); err != nil || h.Magic != afarMagic {
			return fmt.Errorf("%v: %w", metadata.IP, errAfarVersion)
		}
		switch {
		case h.Number == 0 || h.Slab == 0:
			return fmt.Errorf("%v is no metadata server", metadata.IP)
		case keys > int(h.Keys):
			return fmt.Errorf("the store holds %d keys, not %d", h.Keys, keys)
		case slab != 0 && slab != int(h.Slab):
			return fmt.Errorf("the store's entries have %d bytes, not %d", h.Slab, slab)
		case keys == 0:
			keys = int(h.Keys)
		}
		p.cl.cfg.Keys, p.cl.cfg.Slab, p.cl.store = ycsb.Sequential(1, keys), int(h.Slab), h.Store
		ld, err := p.cl.client(int(h.Number), &p.me, nic, []side{{m: &memory}}, side{m: &metadata})
		if err != nil {
			return err
		}
		p.cl.compute = []*loader{ld}
		p.manager.app, p.built = ld, true
		return nil
	})
}

// filler writes the first entries of the keys and their shortcuts, and then works as a metadata server. It
// implements host.App.
type filler struct {
	m               *Metadata
	cl              *Cluster
	next, done, all int // WRITEs

	slot   uint32
	at     Pointer
	broken bool
	wr     rnic.SendWR
}

// fillDepth is how many WRITEs are under way at most.
const fillDepth = 32

func (f *filler) written(ok bool) {
	f.done++
	f.broken = f.broken || !ok
}

// Step implements host.App.
func (f *filler) Step(now clock.Time) bool {
	did := f.m.Step(now)
	if f.broken {
		f.cl.cms.fail(errors.New("the memory node does not take the keys: the connection broke"))
		return did
	}
	for ; f.next < f.all && f.next-f.done < fillDepth; f.next++ {
		did = true
		if err := f.post(); err != nil {
			f.cl.cms.fail(err)
			return true
		}
	}
	return did
}

// post writes an entry, or the entry's shortcut.
func (f *filler) post() (err error) {
	key := f.cl.cfg.Keys[f.next/2]
	f.wr = rnic.SendWR{ID: idFill, Op: rnic.OpWrite, Signaled: true}
	var b []byte
	var s *Space
	if f.next%2 == 0 {
		if f.at, f.slot, err = f.m.firstOf(f.cl.cfg.Slab, key); err != nil {
			return err
		}
		b = make([]byte, ValueAt+8)
		put64(b, 0, uint64(wire.Fresh(wire.MinVersion)))
		put64(b, wire.KeyAt, key)
		s, f.wr.RemoteAddr = f.m.layout.Entry(f.at.LH())
	} else {
		b = make([]byte, 8)
		put64(b, 0, uint64(f.at))
		s, f.wr.RemoteAddr = f.m.layout.Shortcut(f.slot)
	}
	f.wr.RKey, f.wr.SGL = s.RKey, [][]byte{b}
	return f.m.memory[0].PostSend(&f.wr)
}

// Deadline implements host.App.
func (f *filler) Deadline() clock.Time { return f.m.Deadline() }

// Filled is how many keys a metadata server has written.
func (p *Part) Filled() int {
	if p.cl.meta == nil || p.cl.meta.filler == nil {
		return 0
	}
	return p.cl.meta.filler.done / 2
}

// MetadataStats is the count of a metadata server; zero for other machines.
func (p *Part) MetadataStats() (s MetadataStats) {
	if p.cl.meta != nil {
		s = p.cl.meta.Stats()
	}
	return s
}

var _ host.App = (*Part)(nil)
