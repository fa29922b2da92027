package gossip

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/snic/pool"
)

// patience is how long a test waits for what takes a fraction of a second.
const patience = 60 * time.Second

// board is a Host with regions that take no time.
type board struct {
	*Pool
	t      *testing.T
	free   atomic.Int32
	events chan pool.Event
	jobs   chan func(n *pool.Node, now clock.Time)
	twins  chan string
}

func (b *board) Reserve(_ clock.Time, _ pool.Lease, _ int, _ float64) bool {
	if b.free.Add(-1) < 0 {
		b.free.Add(1)
		return false
	}
	return true
}

func (b *board) Load(_ clock.Time, l pool.Lease, _ int) {
	b.jobs <- func(n *pool.Node, now clock.Time) { n.Ready(now, l) }
}

// state is as long as one may be.
var state = strings.Repeat("state ..", pool.MaxState/8)

func (b *board) Save(_ clock.Time, l pool.Lease) {
	b.jobs <- func(n *pool.Node, now clock.Time) { n.Saved(now, l, []byte(state)) }
}

func (b *board) Restore(clock.Time, pool.Lease, []byte) {}
func (b *board) Release(clock.Time, pool.Lease)         { b.free.Add(1) }

func start(t *testing.T, number int, join ...string) *board {
	t.Helper()
	return startAt(t, number, 0, join...)
}

// startAt is start at a time that the board's clock shows; 0: the true one.
func startAt(t *testing.T, number int, at uint64, join ...string) *board {
	t.Helper()
	return startWith(t, number, at, "", join...)
}

// startWith is startAt at an address; "": any.
func startWith(t *testing.T, number int, at uint64, listen string, join ...string) *board {
	t.Helper()
	b := &board{t: t, events: make(chan pool.Event, 1000), jobs: make(chan func(*pool.Node, clock.Time), 1000), twins: make(chan string, 100)}
	b.free.Store(1)
	p, err := Start(Config{
		Node: pool.Config{Board: number, Inc: at, Topology: pool.Intermediate(3, true), Chains: []pool.Chain{{Area: 1, Bitstream: 1000, Stateful: true}}, Host: b,
			Period: 20 * time.Millisecond, Dead: time.Second},
		Listen: listen, Join: join, Secret: bytes.Repeat([]byte{7}, 16),
		Twin: func(addr string, there, first bool) { b.twins <- fmt.Sprint(addr, " there ", there, ", first ", first) },
		On:   func(_ *pool.Node, _ clock.Time, e pool.Event) { b.events <- e },
	})
	if err != nil {
		t.Fatal(err)
	}
	b.Pool = p
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	b.Do(func(n *pool.Node, now clock.Time) { n.Tell(now, pool.Info{Regions: []int{1}, Pages: 5}) })
	go func() {
		for {
			select {
			case f := <-b.jobs:
				b.Do(f)
			case <-p.done:
				return
			}
		}
	}()
	return b
}

// until waits for an event.
func (b *board) until(what string, is func(e pool.Event) bool) pool.Event {
	b.t.Helper()
	seen := []string{}
	late := time.After(patience)
	for {
		select {
		case e := <-b.events:
			if is(e) {
				return e
			}
			seen = append(seen, fmt.Sprintf("%v (want %d, peer %d)", e.Kind, e.Want, e.Peer))
		case <-late:
			b.t.Fatalf("%s does not come; %s", what, strings.Join(seen, ", "))
		}
	}
}

func (b *board) kind(k pool.Kind) pool.Event {
	b.t.Helper()
	return b.until(k.String(), func(e pool.Event) bool { return e.Kind == k })
}

// knows waits until a board knows of others' regions.
func (b *board) knows(others ...int) {
	b.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	late := time.After(patience)
	for {
		ok := true
		b.Do(func(n *pool.Node, _ clock.Time) {
			for _, i := range others {
				v := n.View(i)
				ok = ok && v.Alive && len(v.Info.Regions) == 1
			}
		})
		if ok {
			return
		}
		select {
		case <-tick.C:
		case <-late:
			b.t.Fatalf("board %d does not know of %v", b.Config.Node.Board, others)
		}
	}
}

// TestPool: a chain goes to a peer; when that dies, to another; comes back with its
// state; and goes when the last peer leaves.
func TestPool(t *testing.T) {
	a := start(t, 0)
	b := start(t, 1, a.Addr())
	c := start(t, 2, b.Addr())
	a.knows(1, 2)
	a.Do(func(n *pool.Node, now clock.Time) {
		if err := n.Want(now, 1, 0, 1e6); err != nil {
			t.Error(err)
		}
	})
	first := a.kind(pool.Redirect)
	dies, stays := b, c
	if first.Peer == 2 {
		dies, stays = c, b
	}
	if first.Want != 1 || dies.free.Load() != 0 {
		t.Errorf("%+v, %d regions free", first, dies.free.Load())
	}
	// It dies without a word.
	if err := dies.close(false); err != nil {
		t.Error(err)
	}
	if e := a.kind(pool.PeerLost); e.Peer != first.Peer {
		t.Errorf("%+v", e)
	}
	a.kind(pool.Unredirect)
	if e := a.kind(pool.Redirect); e.Peer != 3-first.Peer || stays.free.Load() != 0 {
		t.Errorf("%+v", e)
	}
	// Home again.
	a.Do(func(n *pool.Node, _ clock.Time) {
		if !n.Freed(1) {
			t.Error("nothing is to come back")
		}
	})
	a.kind(pool.Return)
	a.Do(func(n *pool.Node, now clock.Time) { n.Local(now, 1) })
	a.kind(pool.Pause)
	if e := a.kind(pool.Resume); e.Lost || len(e.State) != pool.MaxState || string(e.State) != state {
		t.Errorf("%d bytes of state, lost %v", len(e.State), e.Lost)
	}
	// One that starts anew under its number is known again.
	again := start(t, first.Peer, stays.Addr())
	a.until("the new board", func(e pool.Event) bool { return e.Kind == pool.PeerUp && e.Peer == first.Peer })
	if err := again.Close(); err != nil {
		t.Error(err)
	}
	if e := a.kind(pool.PeerLost); e.Peer != first.Peer {
		t.Errorf("%+v", e)
	}
}

// twin waits for a word about another board of the same number.
func (b *board) twin(other *board, there, first bool) {
	b.t.Helper()
	select {
	case got := <-b.twins:
		if want := fmt.Sprint(other.Addr(), " there ", there, ", first ", first); got != want {
			b.t.Fatalf("%q, want %q", got, want)
		}
	case <-time.After(patience):
		b.t.Fatal("no word about the other board")
	}
}

// pages has a board tell how many pages it has, by which it is known, and sees waits until a peer is
// known by so many.
func (b *board) pages(n int) {
	b.Do(func(node *pool.Node, now clock.Time) { node.Tell(now, pool.Info{Regions: []int{1}, Pages: n}) })
}

func (b *board) sees(peer, pages int) {
	b.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	late := time.After(patience)
	for {
		var v pool.Peer
		b.Do(func(n *pool.Node, _ clock.Time) { v = n.View(peer) })
		if v.Alive && v.Info.Pages == pages || pages == 0 && !v.Alive {
			return
		}
		select {
		case <-tick.C:
		case <-late:
			b.t.Fatalf("board %d has %+v, want %d pages", peer, v, pages)
		}
	}
}

// TestTwins: of two boards of the same number the first is in the pool; the other one is, when that
// has gone.
func TestTwins(t *testing.T) {
	a := start(t, 0)
	a.pages(10)
	c := start(t, 2, a.Addr())
	c.sees(0, 10)
	a.sees(2, 5)
	a.Do(func(n *pool.Node, now clock.Time) {
		if err := n.Want(now, 1, 0, 1); err != nil {
			t.Error(err)
		}
	})
	a.kind(pool.Redirect)
	b := start(t, 0, c.Addr())
	b.pages(20)
	b.twin(a, true, false)
	a.twin(b, true, true)
	b.Do(func(n *pool.Node, now clock.Time) {
		if n.View(2).Alive {
			t.Error("the one that came later has a peer")
		}
		if err := n.Want(now, 1, 0, 1); err != nil {
			t.Error(err)
		}
	})
	b.kind(pool.NoPeer)
	c.sees(0, 10)
	a.Do(func(n *pool.Node, _ clock.Time) {
		if n.Where(1) != 2 {
			t.Errorf("what the first has at the peer is at %d", n.Where(1))
		}
	})
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	b.twin(a, false, false)
	b.sees(2, 5)
	c.sees(0, 20)
}

// TestTwinsClocks: which board was there first does not depend on their clocks. Nothing of it is heard at peers.
func TestTwinsClocks(t *testing.T) {
	now := uint64(clock.NewWall().Now())
	for name, at := range map[string][2]uint64{"the second's is behind": {now, now - uint64(10*time.Minute)}, "the first's is ahead": {now + uint64(10*time.Minute), now}, "both": {now, 1}} {
		t.Run(name, func(t *testing.T) {
			a := startAt(t, 0, at[0])
			a.pages(10)
			c := start(t, 2, a.Addr())
			c.sees(0, 10)
			a.sees(2, 5)
			a.Do(func(n *pool.Node, now clock.Time) {
				if err := n.Want(now, 1, 0, 1); err != nil {
					t.Error(err)
				}
			})
			a.kind(pool.Redirect)
			b := startAt(t, 0, at[1], c.Addr())
			b.pages(20)
			b.twin(a, true, false)
			a.twin(b, true, true)
			tick := time.NewTicker(10 * time.Millisecond)
			defer tick.Stop()
			for range 50 {
				<-tick.C
				c.sees(0, 10)
				a.Do(func(n *pool.Node, _ clock.Time) {
					if n.Where(1) != 2 {
						t.Fatalf("what the first has at the peer is at %d", n.Where(1))
					}
				})
			}
			if len(a.twins)+len(b.twins) > 0 {
				t.Error("they say more of each other")
			}
			if err := a.Close(); err != nil {
				t.Error(err)
			}
			b.twin(a, false, false)
			c.sees(0, 20)
			b.sees(2, 5)
		})
	}
}

// TestTwinsMeet: two pools, each with a board of the same number, become one: the
// board that was there first stays, and is known to all.
func TestTwinsMeet(t *testing.T) {
	a := start(t, 0)
	a.pages(10)
	b := start(t, 0)
	b.pages(20)
	c, d := start(t, 1, a.Addr()), start(t, 2, b.Addr())
	c.pages(11)
	d.pages(12)
	c.sees(0, 10)
	d.sees(0, 20)
	b.sees(2, 12)
	if _, err := b.list.Join([]string{a.Addr()}); err != nil {
		t.Fatal(err)
	}
	b.twin(a, true, false)
	a.twin(b, true, true)
	c.sees(0, 10)
	d.sees(0, 10)
	a.sees(2, 12)
	a.sees(1, 11)
	b.sees(2, 0)
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	b.twin(a, false, false)
	c.sees(0, 20)
	d.sees(0, 20)
	b.sees(1, 11)
}

func TestRefused(t *testing.T) {
	a := start(t, 0)
	node := pool.Config{Board: 1, Topology: pool.Intermediate(2, true), Host: &board{}}
	for _, c := range []Config{
		{Node: node, Listen: "0.0.0.0:0"}, {Node: node, Listen: "x"}, {Node: node, Listen: "localhost:1"}, {Node: node, Secret: []byte("short")},
		{Node: pool.Config{}}, {Node: node, Join: []string{"127.0.0.1"}}, {Node: node, Join: []string{":1"}},
	} {
		p, err := Start(c)
		if err == nil {
			t.Errorf("%s, join %v: accepted", c.Listen, c.Join)
			_ = p.Close()
		} else if strings.Contains(err.Error(), "\n") {
			t.Errorf("%q", err)
		}
	}
	for _, secret := range [][]byte{nil, bytes.Repeat([]byte{8}, 16)} {
		var alone []error
		p, err := Start(Config{Node: node, Join: []string{a.Addr()}, Secret: secret, Alone: func(err error) { alone = append(alone, err) }})
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		if len(alone) != 1 || alone[0] == nil || !strings.Contains(alone[0].Error(), "nobody of "+a.Addr()+" answers") || strings.Contains(alone[0].Error(), "\n") {
			t.Errorf("secret %q: alone: %v", secret, alone)
		}
	}
	a.Do(func(n *pool.Node, _ clock.Time) {
		if n.View(1).Alive {
			t.Error("a board without the secret is known")
		}
	})
}

// unused are two addresses without a listener. The kernel gives their ports to no program that asks for any
// port, as they are below net.ipv4.ip_local_port_range. A port from that range may be given twice, or be the
// port of the dialling end itself, which then connects to itself.
func unused(t *testing.T) (addrs [2]string) {
	t.Helper()
	for n := 0; n < len(addrs); {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 20_000+rand.IntN(12_000)))
		if err != nil {
			continue // the port is in use
		}
		defer l.Close()
		addrs[n] = l.Addr().String()
		n++
	}
	return addrs
}

// TestNobodyThere: boards that are told to join each other come up in any order, as after a power cut. A
// board that finds no other one is a pool of one until another answers, and reports both.
func TestNobodyThere(t *testing.T) {
	addrs := unused(t)
	first, second := addrs[0], addrs[1]
	alone := make(chan error, 10)
	a, err := Start(Config{
		Node:   pool.Config{Board: 0, Topology: pool.Intermediate(3, true), Host: &board{}, Period: 20 * time.Millisecond, Dead: time.Second},
		Listen: first, Join: []string{first, second, "127.0.0.1:1"}, Secret: bytes.Repeat([]byte{7}, 16),
		Alone: func(err error) { alone <- err },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	if err := <-alone; err == nil || !strings.Contains(err.Error(), "nobody of "+second+", 127.0.0.1:1 answers") {
		t.Error(err)
	}
	alive := func(want bool) {
		t.Helper()
		late := time.After(patience)
		for is := !want; is != want; {
			a.Do(func(n *pool.Node, _ clock.Time) { is = n.View(1).Alive })
			select {
			case <-late:
				t.Fatalf("the other board is there: %v, want %v", is, want)
			case <-time.After(5 * time.Millisecond):
			}
		}
	}
	for range 2 { // and again when it was away
		b := startWith(t, 1, 0, second) // which joins no board
		alive(true)
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		alive(false)
	}
	if err := <-alone; err != nil || len(alone) > 0 {
		t.Error(err, len(alone))
	}
}

func TestName(t *testing.T) {
	for _, s := range []string{"", "1", "x/1", "1/x", "-1/2", "256/1", "1/2/3"} {
		if _, ok := parseName(s); ok {
			t.Errorf("%q is a name", s)
		}
	}
	if n, ok := parseName("3/77"); n != (name{3, 77}) || !ok || n.String() != "3/77" {
		t.Error(n, ok)
	}
}

// TestNothingLeft: of a Pool that was closed, however often, or never came to be,
// no goroutine is left.
func TestNothingLeft(t *testing.T) {
	before := runtime.NumGoroutine()
	var boards []*Pool
	join := []string(nil)
	for i := range 3 {
		p, err := Start(Config{Node: pool.Config{Board: i, Topology: pool.Intermediate(3, true), Host: &board{}}, Join: join})
		if err != nil {
			t.Fatal(err)
		}
		join = []string{p.Addr()}
		boards = append(boards, p)
	}
	p, err := Start(Config{Node: pool.Config{Board: 2, Topology: pool.Intermediate(3, true), Host: &board{}}, Join: []string{"127.0.0.1:1"}})
	if err != nil {
		t.Fatal(err)
	}
	boards = append(boards, p)
	if p, err := Start(Config{Node: pool.Config{Board: 2, Topology: pool.Intermediate(3, true), Host: &board{}}, Listen: join[0]}); err == nil {
		t.Errorf("two listen on %s", p.Addr())
	}
	var all sync.WaitGroup
	for _, p := range boards {
		for range 2 {
			all.Go(func() {
				if err := p.Close(); err != nil {
					t.Error(err)
				}
			})
		}
	}
	all.Wait()
	for _, p := range boards {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		p.Do(func(n *pool.Node, now clock.Time) { n.Advance(now) })
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	late := time.After(patience)
	for runtime.NumGoroutine() > before {
		select {
		case <-tick.C:
		case <-late:
			stacks := make([]byte, 1<<16)
			t.Fatalf("%d goroutines, %d before\n%s", runtime.NumGoroutine(), before, stacks[:runtime.Stack(stacks, true)])
		}
	}
}
