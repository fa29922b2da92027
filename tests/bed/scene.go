package bed

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/quillon/quillon/internal/rack/history"
	"github.com/quillon/quillon/internal/rack/history/fault"
	"github.com/quillon/quillon/internal/rack/host"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/rack/rnic"
)

// Scene is a bed that a test drives step by step: it connects sessions as it
// likes, posts work and looks at what comes of it. Everything happens in virtual
// time.
type Scene struct {
	*Bed
	tb     testing.TB
	peers  []*Peer
	hosts  []*Sender
	frozen *host.Node // the server, while it does not run
	until  alarm
}

// alarm is a host.Worker that does nothing but make time stop at a moment.
type alarm struct{ at clock.Time }

// Breath implements host.Worker.
func (*alarm) Breath(clock.Time) (int, error) { return 0, nil }

// Deadline implements host.Worker.
func (a *alarm) Deadline() clock.Time { return a.at }

// SceneConfig describes a scene. The zero value of a field takes the default that
// is given with it.
type SceneConfig struct {
	Clients  int // 0 = 3
	Sessions int // of a client; 0 = 2
	Senders  int // machines that send whatever the test wants; 0 = 1
	Others   int // guests in front of them, which the test attaches (Bed.Attach)
	MTU      int // 0 = 1024
	Profile  rnic.Profile
	Conn     rnic.Conn // PathMTU 0: rnic.DefaultConn
	IPv6     bool
	Box      *Box // nil: the bare wire
	Seed     uint64
	Schedule fault.Schedule
	Wrap     func(machine string, nic *rnic.NIC) host.Endpoint // see Config
}

// Pending is the status of a work request that has no completion, and Hung of one
// that had none after as long as a scene waits for it.
const (
	Pending rnic.Status = 0xFE
	Hung    rnic.Status = 0xFF
)

// patience is how long a scene waits for a completion: longer than the retries of
// the usual settings take.
const patience = 20 * time.Second

// NewScene makes a scene; it ends with the test.
func NewScene(tb testing.TB, c SceneConfig) *Scene {
	tb.Helper()
	or(&c.Clients, 3)
	or(&c.Sessions, 2)
	or(&c.Senders, 1)
	or(&c.MTU, 1024)
	if c.Conn.PathMTU == 0 {
		c.Conn = rnic.DefaultConn()
	}
	s := &Scene{tb: tb}
	b, err := New(Config{
		Clients: c.Clients, Guests: c.Others + c.Senders, Sessions: c.Sessions, MTU: c.MTU, Profile: c.Profile, Conn: c.Conn, IPv6: c.IPv6,
		Box: c.Box, Seed: c.Seed, Schedule: c.Schedule, Wrap: c.Wrap,
		Serve: func(*rnic.PD) error { return nil },
		App:   func(*Bed, *Client) (host.App, error) { return Idle{}, nil },
	})
	if err != nil {
		tb.Fatal(err)
	}
	s.Bed = b
	b.sim.Workers = append(b.sim.Workers, &s.until)
	for i := range c.Senders {
		at, _, _ := b.Guest(c.Others + i)
		h := &Sender{pool: b.Pool}
		s.hosts = append(s.hosts, h)
		b.Attach(c.Others+i, host.NewNode(at, h, nil))
	}
	tb.Cleanup(func() {
		s.Thaw()
		if err := s.Close(); err != nil {
			tb.Error(err)
		}
	})
	return s
}

// Both plays a scenario on a bare wire, where it must pass (or the test is
// wrong), and through the box.
func Both(t *testing.T, c SceneConfig, play func(t *testing.T, s *Scene)) {
	box := c.Box
	t.Run("wire", func(t *testing.T) {
		c.Box = nil
		play(t, NewScene(t, c))
	})
	t.Run("box", func(t *testing.T) {
		c.Box = box
		play(t, NewScene(t, c))
	})
}

// PD is a new protection domain of the server's.
func (s *Scene) PD() *rnic.PD { return s.nic.AllocPD() }

// MR registers size bytes of the server's memory at va.
func (s *Scene) MR(pd *rnic.PD, va uint64, size int, a rnic.Access) *rnic.MR {
	s.tb.Helper()
	m, err := pd.RegMR(make([]byte, size), va, a|rnic.LocalWrite)
	if err != nil {
		s.tb.Fatal(err)
	}
	return m
}

// FastMR is MR for a region that a SEND with invalidate may invalidate.
func (s *Scene) FastMR(pd *rnic.PD, va uint64, size int, a rnic.Access) *rnic.MR {
	s.tb.Helper()
	m, err := pd.FastRegMR(make([]byte, size), va, a|rnic.LocalWrite)
	if err != nil {
		s.tb.Fatal(err)
	}
	return m
}

// WordAt is the word of a region at an address of it.
func WordAt(m *rnic.MR, va uint64) uint64 { return binary.LittleEndian.Uint64(m.Mem[va-m.VA:]) }

// Peer is a connected session, as its client sees it.
type Peer struct {
	*rnic.QP
	Far  *rnic.QP // the server's
	Here Connection

	scene *Scene
	from  *Client
	done  []rnic.Status // of the work requests, by number
	took  []clock.Time
	at    []clock.Time
}

// Peer connects a session of a client.
func (s *Scene) Peer(client, session int, l Link) *Peer {
	s.tb.Helper()
	l.Recv = max(l.Recv, 64)
	c := s.clients[client]
	n := client*s.cfg.Sessions + session
	q, err := s.Connect(c, n, l)
	if err != nil {
		s.tb.Fatal(err)
	}
	p := &Peer{QP: q, Far: s.conns[n].server, Here: s.conns[n].Connection, scene: s, from: c}
	s.peers = append(s.peers, p)
	return p
}

// Post posts a work request and returns its number.
func (p *Peer) Post(w rnic.SendWR) int {
	p.scene.tb.Helper()
	w.ID, w.Signaled = uint64(len(p.done)), true
	p.done, p.at, p.took = append(p.done, Pending), append(p.at, p.scene.Clock.Now()), append(p.took, clock.Never)
	if err := p.PostSend(&w); err != nil {
		p.scene.tb.Fatal(err)
	}
	return int(w.ID)
}

// Status is that of a work request.
func (p *Peer) Status(id int) rnic.Status { return p.done[id] }

// Latency is how long a work request took.
func (p *Peer) Latency(id int) time.Duration { return p.took[id].Sub(p.at[id]) }

// Do posts a work request and waits for its completion.
func (p *Peer) Do(w rnic.SendWR) rnic.Status {
	p.scene.tb.Helper()
	id := p.Post(w)
	p.Await()
	return p.done[id]
}

// Await waits until all work requests of the peers have completed; without peers,
// of this one.
func (p *Peer) Await(more ...*Peer) {
	p.scene.tb.Helper()
	all := append(more, p)
	left := func() bool {
		for _, p := range all {
			for _, d := range p.done {
				if d == Pending {
					return true
				}
			}
		}
		return false
	}
	p.scene.Until(func() bool { return !left() }, patience)
	for _, p := range all {
		for i, d := range p.done {
			if d == Pending {
				p.done[i] = Hung
			}
		}
	}
}

// Write writes data and waits.
func (p *Peer) Write(m *rnic.MR, va uint64, data []byte) rnic.Status {
	p.scene.tb.Helper()
	return p.Do(rnic.SendWR{Op: rnic.OpWrite, SGL: [][]byte{data}, RemoteAddr: va, RKey: m.RKey})
}

// WriteWord writes a word and waits.
func (p *Peer) WriteWord(m *rnic.MR, va, v uint64) rnic.Status {
	p.scene.tb.Helper()
	return p.Write(m, va, binary.LittleEndian.AppendUint64(nil, v))
}

// ReadWord reads a word.
func (p *Peer) ReadWord(m *rnic.MR, va uint64) (uint64, rnic.Status) {
	p.scene.tb.Helper()
	b := make([]byte, 8)
	st := p.Do(rnic.SendWR{Op: rnic.OpRead, SGL: [][]byte{b}, RemoteAddr: va, RKey: m.RKey})
	return binary.LittleEndian.Uint64(b), st
}

// CAS compares and swaps; it returns the original value.
func (p *Peer) CAS(m *rnic.MR, va, compare, swap uint64) (uint64, rnic.Status) {
	p.scene.tb.Helper()
	b := make([]byte, 8)
	st := p.Do(rnic.SendWR{Op: rnic.OpCompareSwap, SGL: [][]byte{b}, RemoteAddr: va, RKey: m.RKey, Compare: compare, Swap: swap})
	return binary.LittleEndian.Uint64(b), st
}

// Add adds; it returns the original value.
func (p *Peer) Add(m *rnic.MR, va, n uint64) (uint64, rnic.Status) {
	p.scene.tb.Helper()
	b := make([]byte, 8)
	st := p.Do(rnic.SendWR{Op: rnic.OpFetchAdd, SGL: [][]byte{b}, RemoteAddr: va, RKey: m.RKey, Swap: n})
	return binary.LittleEndian.Uint64(b), st
}

// Receive posts n receives of size bytes at the server's end.
func (p *Peer) Receive(n, size int) {
	p.scene.tb.Helper()
	for range n {
		if err := p.Far.PostRecv(&rnic.RecvWR{Buf: make([]byte, size)}); err != nil {
			p.scene.tb.Fatal(err)
		}
	}
}

// Frame is a frame that claims to be the peer's client's, and is not.
func (p *Peer) Frame(psn uint32, k Packet) []byte {
	k.DstMAC, k.Dst, k.QPN, k.PSN = p.Here.ServerMAC, p.Here.ServerIP, p.Here.ServerQPN, psn
	if !k.Src.IsValid() {
		k.Src = p.Here.ClientIP
	}
	if k.SrcMAC == [6]byte{} {
		k.SrcMAC = [6]byte{2, 0, 0, 0, 0xee, 1}
	}
	return k.Bytes()
}

// Send sends frames from a sender, one each gap, from now on, and waits until they
// have come.
func (s *Scene) Send(gap time.Duration, frames ...[]byte) {
	s.tb.Helper()
	h, at := s.hosts[0], s.Clock.Now()
	for i, b := range frames {
		h.Send(at.Add(time.Duration(i)*gap), b)
	}
	s.Until(func() bool { return h.Left() == 0 }, time.Minute)
	s.Pause(50 * time.Microsecond)
}

// poll takes all completions.
func (s *Scene) poll() {
	var wc [32]rnic.WC
	now := s.Clock.Now()
	for _, c := range s.clients {
		for {
			n := c.CQ.Poll(wc[:])
			for _, w := range wc[:n] {
				for _, p := range s.peers {
					if p.from == c && p.QPN == w.QPN && w.ID < uint64(len(p.done)) && p.done[w.ID] == Pending {
						p.done[w.ID], p.took[w.ID] = w.Status, now
						break
					}
				}
			}
			if n < len(wc) {
				break
			}
		}
	}
	for s.cq.Poll(wc[:]) == len(wc) { // receives, so that there is room for more
	}
}

// Until lets everything run until done, at most for limit; false when it was not.
func (s *Scene) Until(done func() bool, limit time.Duration) bool {
	s.tb.Helper()
	ok := false
	end := s.Clock.Now().Add(limit)
	s.until.at = end
	err := s.Bed.Run(func() bool {
		s.poll()
		ok = done()
		return ok || s.Clock.Now() >= end
	}, limit)
	if err != nil && !errors.Is(err, host.ErrLate) {
		s.tb.Fatal(err)
	}
	return ok
}

// Pause lets d go by.
func (s *Scene) Pause(d time.Duration) {
	s.tb.Helper()
	s.Until(func() bool { return false }, d)
}

// Freeze keeps the server from doing anything, as when its machine is starved;
// what is sent to it meanwhile is lost.
func (s *Scene) Freeze() {
	if s.frozen == nil {
		s.frozen, s.server.node = s.server.node, nil
	}
}

// Thaw ends that.
func (s *Scene) Thaw() {
	s.server.stalled = false
	if s.frozen != nil {
		s.server.node, s.frozen = s.frozen, nil
	}
}

// Stall keeps the server from doing anything until Thaw; what is sent to it
// meanwhile waits.
func (s *Scene) Stall() { s.server.stalled = true }

// Remove takes the box out, as in a crash, and Insert puts it back, with nothing
// remembered.
func (s *Scene) Remove() {
	s.tb.Helper()
	if err := s.box.down(); err != nil {
		s.tb.Fatal(err)
	}
}

// Insert puts the box back.
func (s *Scene) Insert() {
	s.tb.Helper()
	if err := s.box.up(); err != nil {
		s.tb.Fatal(err)
	}
}

// Count is a counter of the box, or how many frames met a reason; 0 on a bare wire.
func (s *Scene) Count(name string) uint64 {
	n := uint64(0)
	if s.Instance() == nil {
		return 0
	}
	for _, c := range s.Instance().Counters() {
		if c.Node == "box" && c.Name == name {
			n += c.Value
		}
	}
	return n
}

// Bound is how many queue pairs the box has bound.
func (s *Scene) Bound() int { return len(s.box.bound) }

// Posted is how many work requests were posted.
func (p *Peer) Posted() int { return len(p.done) }

// Stranger is somebody at the first sender's address whose peer is that of p.
func (s *Scene) Stranger(p *Peer) *Peer {
	x := &Peer{QP: p.QP, Far: p.Far, Here: p.Here, scene: s}
	x.Here.ClientMAC, x.Here.ClientIP = s.Sender()
	x.Here.ServerQPN = 0x777
	return x
}

// Sender is the first sender's addresses.
func (s *Scene) Sender() (mac [6]byte, ip netip.Addr) {
	_, mac, ip = s.Guest(s.cfg.Guests - len(s.hosts))
	return mac, ip
}

// Ends are the server's queue pairs whose peer is at an address.
func (s *Scene) Ends(client netip.Addr) []*rnic.QP { return s.ends(client) }

// StoreRun is Clover's store in a scene, whose first guests it takes: its metadata
// server, and its clients.
type StoreRun struct {
	*storeLoad
	Result MixedResult
	scene  *Scene
}

// StoreOthers is how many guests a store with so many clients takes.
func StoreOthers(clients int) int { return clients + 1 }

// Store starts a store and its load.
func (s *Scene) Store(x Store) *StoreRun {
	s.tb.Helper()
	x = Mixed{Store: x}.defaults().Store
	r := &StoreRun{scene: s, Result: MixedResult{Keys: new(history.Log[history.Register, uint64])}}
	l, err := x.load(s.Bed, s.cfg.Seed, &r.Result)
	if err != nil {
		s.tb.Fatal(err)
	}
	r.storeLoad = l
	return r
}

// Wait waits until all its sessions are through, at most for limit; false when
// they are not.
func (r *StoreRun) Wait(limit time.Duration) bool {
	r.scene.tb.Helper()
	return r.scene.Until(func() bool { return r.done(r.scene.Bed) }, limit)
}

// Check is the verdict: what the clients were told, and what is in memory.
func (r *StoreRun) Check() error { return r.check(r.scene.Bed, nil) }

// Sleep has the box not run for d: what need not be held crosses unseen.
func (s *Scene) Sleep(d time.Duration) { s.box.asleep = s.Clock.Now().Add(d) }

// Reboot starts the machine of the box anew: all is lost but its disk (Box.Journal). The box is back at once.
func (s *Scene) Reboot() {
	s.tb.Helper()
	if s.box.inst == nil {
		return // the bare wire
	}
	if err := s.box.reboot(); err != nil {
		s.tb.Fatal(err)
	}
	if err := s.box.up(); err != nil {
		s.tb.Fatal(err)
	}
}
