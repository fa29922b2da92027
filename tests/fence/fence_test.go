// Package fence plays clients that are declared dead and are not: what they send afterwards never gets to the memory. In some plays the
// test has them shut out, in others those who repair.
package fence

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/quillon/quillon/internal/rack/cm"
	"github.com/quillon/quillon/internal/rack/history"
	"github.com/quillon/quillon/internal/rack/host"
	"github.com/quillon/quillon/internal/rack/locks"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/port/mem"
	"github.com/quillon/quillon/rack/rnic"
	tor "github.com/quillon/quillon/tor/fence"
	"github.com/quillon/quillon/tor/swordbox"
)

// Machines: the server, a client that is slow, and one that takes its locks.
const (
	server, slow, other = 9, 20, 21
	sessions            = 3 // of each client
	words               = 2
)

func addr(n byte) (netip.Addr, [6]byte) {
	return netip.AddrFrom4([4]byte{10, 0, 0, n}), [6]byte{2, 0, 10, 0, 0, n}
}

// play is one run.
type play struct {
	t      *testing.T
	clk    *clock.Manual
	pool   *packet.Pool
	box    bool // a swordbox behind the fence
	keep   map[string][]byte
	inst   *graph.Instance
	ports  map[string][]port.Port
	lag    *lagging
	memory *locks.Memory
	qpns   []uint32 // of the server, by session of the slow client
	agent  *cm.Agent
	bn     *rnic.NIC
	a, b   *locks.Client
	rkeys  []uint32
	dead   bool
	last   [words]uint64
	landed int  // values of the slow client's that came into words after it was dead
	void   bool // the slow client held no lock
	late   int  // frames that it sent before, and that came then
}

// lagging is the cable of the slow client: while it is held nothing of it arrives.
type lagging struct {
	port.Port
	held bool
	came int
}

func (l *lagging) Rx(b *packet.Batch) (int, error) {
	if l.held {
		return 0, nil
	}
	n, err := l.Port.Rx(b)
	l.came += n
	return n, err
}

// breath is a graph as a worker.
type breath struct{ p *play }

func (x breath) Breath(now clock.Time) (int, error) { return x.p.inst.Step(now) }
func (x breath) Deadline() clock.Time               { return x.p.inst.NextTick() }

// look is the director: it sees each change of a word.
type look struct{ p *play }

func (x look) Breath(clock.Time) (int, error) {
	p := x.p
	for i, a := range p.memory.Addrs() {
		w := p.memory.Word(a)
		if w == p.last[i] {
			continue
		}
		p.last[i] = w
		if s, _ := locks.OwnerOf(w); p.dead && w != 0 && s < sessions {
			p.landed++
		}
	}
	return 0, nil
}
func (look) Deadline() clock.Time { return clock.Never }

// asking is the other client with its connection manager.
type asking struct {
	*locks.Client
	agent *cm.Agent
}

func (x asking) Step(now clock.Time) bool { a := x.agent.Step(now); return x.Client.Step(now) || a }
func (x asking) Deadline() clock.Time     { return min(x.agent.Deadline(), x.Client.Deadline()) }

// start starts the network functions, with what they find in memory.
func (p *play) start(fenced bool) {
	s := &graph.Spec{Ports: map[string]graph.PortSpec{"a": {Kind: "mem"}, "b": {Kind: "mem"}}, Apps: map[string]graph.AppSpec{
		"fence": {Kind: "fence", Args: graph.Args{"requests": "on", "settle": "2ms"}}},
		Links: []string{"a.out -> fence.a", "fence.a -> a.in"}}
	last := "fence"
	if !fenced {
		s.Apps["fence"] = graph.AppSpec{Kind: "fence"} // which lets all pass
	}
	if p.box {
		s.Apps["box"] = graph.AppSpec{Kind: "swordbox", Args: graph.Args{"replace": "learnt", "writable": "assume", "settle": "10us", "pair": "1us", "alive": "1s"}}
		s.Links = append(s.Links, "fence.b -> box.a", "box.a -> fence.b")
		last = "box"
	}
	s.Links = append(s.Links, last+".b -> b.in", "b.out -> "+last+".b")
	var err error
	p.inst, err = graph.New(graph.Config{Spec: s, Kinds: []graph.Kind{*tor.Kind(), *swordbox.Kind()}, Ports: p.ports, Seed: 1,
		Memory: func(app string, size int) ([]byte, error) {
			if len(p.keep[app]) < size {
				p.keep[app] = append(p.keep[app], make([]byte, size-len(p.keep[app]))...)
			}
			return p.keep[app][:size], nil
		}})
	if err != nil {
		p.t.Fatal(err)
	}
}

func (p *play) nic(n byte) *rnic.NIC {
	ip, mac := addr(n)
	x, err := rnic.New(rnic.Config{IP: ip, MAC: mac, Profile: rnic.ConnectX, Pool: p.pool, Seed: uint64(n), FirstQPN: uint32(n) * 0x100})
	if err != nil {
		p.t.Fatal(err)
	}
	return x
}

// connect makes a connected pair of queue pairs.
func (p *play) connect(c *rnic.NIC, cpd *rnic.PD, ccq *rnic.CQ, s *rnic.NIC, spd *rnic.PD, scq *rnic.CQ) (qc, qs *rnic.QP) {
	make := func(n *rnic.NIC, pd *rnic.PD, cq *rnic.CQ) *rnic.QP {
		q, err := n.CreateQP(rnic.QPInit{PD: pd, SendCQ: cq, RecvCQ: cq, Access: rnic.RemoteWrite | rnic.RemoteRead | rnic.RemoteAtomic})
		if err != nil {
			p.t.Fatal(err)
		}
		return q
	}
	qc, qs = make(c, cpd, ccq), make(s, spd, scq)
	up, down := c.RandomPSN(), s.RandomPSN()
	for _, x := range []struct {
		q, to    *rnic.QP
		at       *rnic.NIC
		out, in_ uint32
	}{{qc, qs, s, up, down}, {qs, qc, c, down, up}} {
		k := rnic.DefaultConn()
		k.RemoteMAC, k.RemoteIP, k.DestQPN, k.SQPSN, k.RQPSN = x.at.Config().MAC, x.at.Config().IP, x.to.QPN, x.out, x.in_
		if err := x.q.Connect(k); err != nil {
			p.t.Fatal(err)
		}
	}
	return qc, qs
}

// run plays: the slow client's cable stops while it holds a lock; it is declared dead, and shut out if fenced; the
// other one takes its lock; its cable goes on.
func run(t *testing.T, seed uint64, fenced, box, restart bool) *play {
	p := &play{t: t, clk: clock.NewManual(1000), box: box, keep: map[string][]byte{}}
	var err error
	if p.pool, err = packet.NewPool(1<<14, 2048, nil); err != nil {
		t.Fatal(err)
	}
	wire := func(a, b string) (port.Port, port.Port) { return mem.NewWire(a, b, p.pool, 2048, p.clk) }
	if p.memory, err = locks.NewMemory(locks.Layout{Words: words, Block: 64, Sessions: 2 * sessions}); err != nil {
		t.Fatal(err)
	}
	s := p.nic(server)
	spd, scq := s.AllocPD(), s.CreateCQ(64)
	grant, err := p.memory.Serve(spd)
	if err != nil {
		t.Fatal(err)
	}
	p.rkeys = []uint32{grant.Words.RKey, grant.Blocks.RKey}
	w, m := new(history.Log[history.Word, uint64]), new(history.Log[history.Lock, struct{}])
	client := func(n byte, first int) (*rnic.NIC, *locks.Client) {
		c := p.nic(n)
		cpd, cq := c.AllocPD(), c.CreateCQ(1024)
		x, err := locks.New(locks.Config{Layout: p.memory.Layout, Work: locks.Spin, First: first, Own: sessions, Ops: 1 << 30, Seed: seed, CQ: cq,
			WordLog: w, LockLog: m, Tries: 1 << 20,
			Dial: func(_ clock.Time, session int) (*rnic.QP, locks.Grant, error) {
				if p.dead && n == slow {
					return nil, grant, rnic.ErrState // nobody connects the dead
				}
				qc, qs := p.connect(c, cpd, cq, s, spd, scq)
				if n == slow {
					p.qpns = append(p.qpns, qs.QPN)
				}
				return qc, grant, nil
			},
			Dead: func(session, _ int) bool { return p.dead && session < sessions },
		})
		if err != nil {
			t.Fatal(err)
		}
		return c, x
	}
	an, a := client(slow, 0)
	bn, b := client(other, sessions)
	p.a, p.b, p.bn = a, b, bn
	if p.agent, err = cm.New(bn, cm.Config{ResponseTimeout: 10, Seed: seed}); err != nil {
		t.Fatal(err)
	}
	aw, ab := wire("a", "ab")
	bw, bb := wire("b", "bb")
	m0, m1 := wire("m0", "m1")
	n0, n1 := wire("n0", "n1")
	p.lag = &lagging{Port: ab}
	p.ports = map[string][]port.Port{"a": {m1}, "b": {n0}}
	p.start(fenced)
	sim := host.Sim{Clock: p.clk, Workers: []host.Worker{host.NewNode(aw, an, a), host.NewNode(bw, bn, asking{b, p.agent}), host.NewNode(n1, s, nil),
		host.NewBridge(p.lag, bb, m0), breath{p}, look{p}}}
	until := func(what string, done func() bool) {
		t.Helper()
		if err := sim.Run(func() bool { return done() || b.Err() != nil }, 2*time.Second); err != nil {
			t.Fatalf("seed %d: %s: %v", seed, what, err)
		}
	}
	until("working", func() bool {
		if a.Stats().Done < 10+seed || b.Stats().Done < 200 || fenced && p.clk.Now() < clock.Time(10*time.Millisecond) { // it takes a while until the fence has paired connections that no manager made
			return false
		}
		for _, at := range p.memory.Addrs() { // the slow client holds a lock
			if s, _ := locks.OwnerOf(p.memory.Word(at)); s >= 0 && s < sessions {
				return true
			}
		}
		return false
	})
	p.lag.held = true
	if fenced {
		p.ask(until)
	}
	if restart { // as after a kill: what the process before has is gone, but for its memory
		p.start(true)
	}
	p.dead = true
	for i, at := range p.memory.Addrs() {
		p.last[i] = p.memory.Word(at)
	}
	// What gave its lock back was under way: then there is none to be taken.
	done := b.Stats().Done + 200
	until("taking its lock", func() bool { return b.Stats().Stolen > 0 || b.Stats().Done > done })
	if p.void = b.Stats().Stolen == 0; p.void {
		return p
	}
	came := p.lag.came
	p.lag.held = false
	more := b.Stats().Done + 100
	until("going on", func() bool { return b.Stats().Done > more })
	p.late = p.lag.came - came
	return p
}

// ask has the fence shut out each session of the slow client, as a repairer would.
func (p *play) ask(until func(string, func() bool)) {
	p.t.Helper()
	for _, qpn := range p.qpns {
		r := p.askAbout(until, qpn, 0)
		if r = p.askAbout(until, qpn, r.Cookie); r.Cookie != 0 {
			p.t.Fatal("another cookie")
		}
		at := p.clk.Now().Add(r.Settle)
		until("waiting", func() bool { return p.clk.Now() >= at })
	}
}

// askAbout asks once.
func (p *play) askAbout(until func(string, func() bool), qpn uint32, cookie uint64) (r hdr.FenceReply) {
	p.t.Helper()
	ip, mac := addr(server)
	dead, _ := addr(slow)
	q, err := p.bn.CreateQP(rnic.QPInit{PD: p.bn.AllocPD(), SendCQ: p.bn.CreateCQ(1), RecvCQ: p.bn.CreateCQ(1)})
	if err != nil {
		p.t.Fatal(err)
	}
	ask := hdr.FenceRequest{Client: dead, QPN: qpn, Cookie: cookie}
	ask.N = copy(ask.Keys[:], p.rkeys)
	if _, err := p.agent.Dial(p.clk.Now(), cm.Peer{IP: ip, MAC: mac, Port: hdr.FencePort}, cm.Params{QP: q, PrivateData: ask.Bytes()}); err != nil {
		p.t.Fatal(err)
	}
	until("asking", func() bool {
		e, ok := p.agent.Poll()
		if ok {
			if !r.Parse(e.PrivateData) || e.Kind != cm.Rejected {
				p.t.Fatalf("%v: %s", e.Kind, e.PrivateData)
			}
		}
		return ok
	})
	return r
}

// harmed is what late frames have done.
func (p *play) harmed() string {
	if p.landed > 0 {
		return fmt.Sprintf("%d values landed", p.landed)
	}
	if err := p.b.Err(); err != nil {
		return err.Error()
	}
	return ""
}

const seeds = 20

// TestLateWrites: of a client that is shut out nothing lands; without a fence it does.
func TestLateWrites(t *testing.T) {
	for _, box := range []bool{false, true} {
		late, harmed, void := 0, 0, 0
		for seed := range uint64(seeds) {
			for _, restart := range []bool{false, true} {
				p := run(t, seed, true, box, restart)
				late += p.late
				if p.void {
					void++
				}
				if h := p.harmed(); h != "" {
					t.Errorf("seed %d, box %v, restart %v: %s", seed, box, restart, h)
				}
			}
			if run(t, seed, false, box, false).harmed() != "" {
				harmed++
			}
		}
		if late < seeds || harmed == 0 || void > seeds {
			t.Errorf("box %v: %d late frames, and without a fence %d of %d were harmed: this shows nothing", box, late, harmed, seeds)
		}
		t.Logf("box %v: %d late frames shut out in %d runs (%d in which no lock was held); without a fence %d of %d were harmed", box, late, 2*seeds, void, harmed, seeds)
	}
}
