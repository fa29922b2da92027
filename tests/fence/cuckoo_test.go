package fence

import (
	"fmt"
	"testing"
	"time"

	"github.com/quillon/quillon/internal/rack/host"
	"github.com/quillon/quillon/internal/rack/store"
	"github.com/quillon/quillon/internal/rack/ycsb"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/port/mem"
)

// What a client that seems dead does.
const (
	stops = iota // it stands still, and goes on
	lags         // its cable does
)

// drama is one run of RCuckoo's clients, of which the first one is slow.
type drama struct {
	seed     uint64
	fenced   bool
	how      int
	box      bool // a swordbox behind the fence
	restarts bool // the fence is killed after it was asked, and another one starts
	lossy    bool // the first answers of the fence's are lost
	succeeds bool // the first repairer stops behind the fence's answer
}

// stage is what a drama plays on.
type stage struct {
	play
	sim     host.Sim
	server  *store.Server
	fleet   *store.Fleet
	clients []*actor
	answers int // of the fence's
	lost    int
}

// actor is a client's machine and its cable.
type actor struct {
	port.Port // the bridge's end of the cable
	node      *host.Node
	s         *stage
	stopped   bool
	held      bool // its cable
	came      int
	// What happens when it is told that it has a lock, or that somebody is shut out; nil: nothing.
	locked, told func()
	loses        int // answers of the fence's
}

func (a *actor) Breath(now clock.Time) (int, error) {
	if a.stopped {
		return 0, nil
	}
	return a.node.Breath(now)
}

func (a *actor) Deadline() clock.Time {
	if a.stopped {
		return clock.Never
	}
	return a.node.Deadline()
}

func (a *actor) Rx(b *packet.Batch) (int, error) {
	if a.held {
		return 0, nil
	}
	n, err := a.Port.Rx(b)
	a.came += n
	return n, err
}

// Tx looks at what the client is sent.
func (a *actor) Tx(b *packet.Batch) (int, error) {
	var f hdr.Frame
	for _, x := range b.Bufs() {
		p := x.Bytes()
		if hdr.Parse(p, &f) != hdr.IsRoCE {
			continue
		}
		if f.Op == hdr.AtomicAck && a.locked != nil && f.AtomicAckETHOf(p).Original() == 0 {
			a.locked()
			a.locked = nil
		}
		if m, ok := f.CMOf(p); ok && m.AttributeID() == hdr.ConnectReject {
			a.s.answers++
			if a.loses > 0 {
				a.loses--
				a.s.lost++
				p[len(p)-1] ^= 1 // its CRC is wrong
				continue
			}
			if a.told != nil && a.s.answers > 1 { // the first one is a cookie
				a.told()
				a.told = nil
			}
		}
	}
	return a.Port.Tx(b)
}

func newStage(t *testing.T, d drama) *stage {
	s := &stage{play: play{t: t, clk: clock.NewManual(1000), box: d.box, keep: map[string][]byte{}}}
	var err error
	if s.pool, err = packet.NewPool(1<<14, 2048, nil); err != nil {
		t.Fatal(err)
	}
	k, err := store.Named("rcuckoo")
	if err != nil {
		t.Fatal(err)
	}
	spec := store.Spec{Keys: 24, Sessions: 16}
	if err := k.Check(&spec); err != nil {
		t.Fatal(err)
	}
	nic := s.nic(server)
	memory, err := store.NewServer(k, spec, nic, 7)
	if err != nil {
		t.Fatal(err)
	}
	s.fleet = store.NewFleet(k, store.Work{Mix: ycsb.A, Theta: 0.5, Seed: d.seed, Keep: true, Patience: 20 * time.Millisecond})
	wire := func(a, b string) (port.Port, port.Port) { return mem.NewWire(a, b, s.pool, 2048, s.clk) }
	ip, mac := addr(server)
	var ends []port.Port
	var workers []host.Worker
	for i := range 3 {
		n := byte(20 + i)
		nic := s.nic(n)
		c, err := s.fleet.Add(nic, ip, mac, 2, uint64(i)+1)
		if err != nil {
			t.Fatal(err)
		}
		w, b := wire(fmt.Sprint("c", i), fmt.Sprint("b", i))
		a := &actor{Port: b, node: host.NewNode(w, nic, c), s: s}
		s.clients = append(s.clients, a)
		ends, workers = append(ends, a), append(workers, a)
	}
	m0, m1 := wire("m0", "m1")
	n0, n1 := wire("n0", "n1")
	s.ports = map[string][]port.Port{"a": {m1}, "b": {n0}}
	s.start(d.fenced)
	s.sim = host.Sim{Clock: s.clk, Workers: append(workers, host.NewNode(n1, nic, memory), host.NewBridge(append(ends, m0)...), breath{&s.play})}
	s.server = memory
	return s
}

func (s *stage) until(what string, done func() bool) error {
	err := s.sim.Run(func() bool { return done() || s.fleet.Err() != nil }, 2*time.Second)
	if s.fleet.Err() != nil {
		err = s.fleet.Err()
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", what, err)
	}
	return err
}

func (s *stage) fact(name string) uint64 {
	for _, x := range s.fleet.Facts() {
		if x.Name == name {
			return x.Count
		}
	}
	s.t.Fatal("no such fact: ", name)
	return 0
}

// run plays a drama, and says what is wrong then.
func (d drama) run(t *testing.T) (s *stage, late int, wrong error) {
	s = newStage(t, d)
	f := s.fleet
	fail := func(err error) {
		if err != nil {
			t.Fatalf("%+v: %v", d, err)
		}
	}
	fail(s.until("connecting", f.Connected))
	f.Start()
	fail(s.until("working", func() bool { return f.Live().Ops > 50+7*d.seed }))
	slow := s.clients[0]
	caught := false
	slow.locked = func() { slow.stopped, slow.held, caught = d.how == stops, d.how == lags, true }
	fail(s.until("locking", func() bool { return caught }))
	for _, a := range s.clients[1:] {
		if d.lossy {
			a.loses = 1
		}
		if d.succeeds {
			a.told = func() {
				a.stopped = true
				for _, o := range s.clients {
					o.told = nil
				}
			}
		}
	}
	answers := s.answers
	if d.restarts {
		fail(s.until("asking", func() bool { return s.answers > answers+1 || s.fact("repaired") > 0 }))
		s.start(d.fenced)
	}
	fail(s.until("repairing", func() bool { return s.fact("repaired") > 0 }))
	ops := f.Live().Ops
	fail(s.until("working on", func() bool { return f.Live().Ops > ops+100 }))
	came := slow.came
	for _, a := range s.clients {
		a.stopped, a.held = false, false
	}
	ops = f.Live().Ops
	if err := s.until("going on", func() bool { return f.Live().Ops > ops+300 }); err != nil {
		return s, slow.came - came, err
	}
	f.Stop()
	if err := s.until("ending", f.Idle); err != nil {
		return s, slow.came - came, err
	}
	v := f.Judge(s.server.Store())
	switch n := s.fact("robbed"); {
	case !v.OK():
		wrong = fmt.Errorf("%+v", v)
	case n > 0:
		wrong = fmt.Errorf("%d locks of the living were taken away", n)
	}
	return s, slow.came - came, wrong
}

// TestRepairersAsk: what a client that was declared dead sends late does damage, and none when those who repair have it shut out.
func TestRepairersAsk(t *testing.T) {
	late, harmed, all := 0, 0, 0
	for _, how := range []int{stops, lags} {
		for seed := range uint64(seeds / 2) {
			s, n, wrong := drama{seed: seed, fenced: true, how: how}.run(t)
			late += n
			if wrong != nil || s.fact("shut-out") == 0 || s.fact("not-shut-out") > 0 {
				t.Errorf("seed %d, how %d: %v, %v", seed, how, wrong, s.fleet.Facts())
			}
			s, _, wrong = drama{seed: seed, how: how}.run(t)
			if all++; wrong != nil {
				harmed++
			}
			if s.fact("not-shut-out") == 0 {
				t.Errorf("seed %d, how %d: nobody noticed that nobody is shut out: %v", seed, how, s.fleet.Facts())
			}
		}
	}
	t.Logf("%d late frames in %d histories; without a fence %d of %d were harmed", late, all, harmed, all)
	if late < all || harmed < all/2 {
		t.Error("this shows nothing")
	}
}

// TestRepairersFail: who repairs stops when the fence has answered, answers are lost, the fence is killed: nothing lands.
func TestRepairersFail(t *testing.T) {
	lost, late := 0, 0
	for name, d := range map[string]drama{
		"repairers stop":  {succeeds: true},
		"answers lost":    {lossy: true},
		"fence killed":    {restarts: true},
		"all":             {succeeds: true, lossy: true, restarts: true},
		"before swordbox": {box: true},
	} {
		for seed := range uint64(4) {
			d.seed, d.fenced, d.how = seed, true, int(seed%2)
			s, n, wrong := d.run(t)
			lost += s.lost
			late += n
			if wrong != nil || s.fact("shut-out") == 0 || s.fact("not-shut-out") > 0 {
				t.Errorf("%s, seed %d: %v, %v", name, seed, wrong, s.fleet.Facts())
			}
			if d.succeeds && s.fact("shut-out") < 2 {
				t.Errorf("%s, seed %d: the repairer that stopped is not shut out: %v", name, seed, s.fleet.Facts())
			}
		}
	}
	t.Logf("%d answers lost, %d late frames", lost, late)
}
