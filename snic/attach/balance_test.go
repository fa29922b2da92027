package attach

import (
	"slices"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/snic/pool"
)

// fake is a board as a switch sees it: so many regions, each of which handles so many bits a second.
type fake struct {
	b      *Balancer
	node   *pool.Node // of the switch
	boards []*server
	now    clock.Time
	events []pool.Kind
}

type server struct {
	*pool.Node
	regions  int
	capacity float64
	chains   map[pool.Lease]int
	state    map[int]string // of chains
	dead     bool
	ready    []func(clock.Time)
}

func (s *server) Reserve(_ clock.Time, l pool.Lease, chain int, _ float64) bool {
	if len(s.chains) >= s.regions {
		return false
	}
	s.chains[l] = chain
	return true
}
func (s *server) Load(_ clock.Time, l pool.Lease, _ int) {
	s.ready = append(s.ready, func(now clock.Time) { s.Ready(now, l) })
}
func (s *server) Restore(_ clock.Time, l pool.Lease, state []byte) {
	s.state[s.chains[l]] = string(state)
	s.ready = append(s.ready, func(now clock.Time) { s.Restored(now, l) })
}
func (s *server) Save(_ clock.Time, l pool.Lease) {
	s.ready = append(s.ready, func(now clock.Time) { s.Saved(now, l, []byte(s.state[s.chains[l]])) })
}
func (s *server) Release(_ clock.Time, l pool.Lease) { delete(s.chains, l) }

func newFake(t *testing.T, dags []DAG, servers ...*server) *fake {
	f := &fake{b: NewBalancer(0, dags), boards: servers}
	chains := slices.Repeat([]pool.Chain{{Stateful: true, Hand: true}}, len(dags))
	var err error
	if f.node, err = pool.New(0, pool.Config{Board: Number, Topology: Topology(), Inc: 1, Chains: chains, Period: time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	for i, s := range servers {
		s.chains, s.state = map[pool.Lease]int{}, map[int]string{}
		if s.Node, err = pool.New(0, pool.Config{Board: i, Topology: pool.Intermediate(Number+1, false), Inc: 1, Chains: chains, Period: time.Millisecond, Host: s}); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

// run lets time pass, with so many bits a second for each DAG, in all groups alike.
func (f *fake) run(d time.Duration, rates ...float64) {
	const step = time.Millisecond
	for end := f.now.Add(d); f.now < end; f.now = f.now.Add(step) {
		for dag, r := range rates {
			var bytes [Buckets]uint64
			for i := range bytes {
				bytes[i] = uint64(r * step.Seconds() / 8 / Buckets)
			}
			if r > 0 {
				f.b.Count(dag, &bytes)
			}
		}
		f.b.Advance(f.now, f.node)
		f.node.Advance(f.now)
		for i, s := range f.boards {
			if s.dead {
				continue
			}
			for _, do := range s.ready {
				do(f.now)
			}
			s.ready = nil
			info := pool.Info{Regions: make([]int, max(0, s.regions-len(s.chains)))}
			for _, c := range s.chains {
				for _, p := range f.b.Assignments(c) {
					if p.Board == i {
						info.Load += p.Rate
						info.Chains = append(info.Chains, pool.Hosted{Chain: c, Left: max(1, s.capacity-p.Rate), Closed: f.b.dags[c].State})
					}
				}
			}
			s.Tell(f.now, info)
			s.Advance(f.now)
			for m := s.Poll(f.now); m != nil; m = s.Poll(f.now) {
				if m.To == Number {
					f.node.Input(f.now, m)
				}
			}
			s.Events()
		}
		for m := f.node.Poll(f.now); m != nil; m = f.node.Poll(f.now) {
			if m.To < len(f.boards) && !f.boards[m.To].dead {
				f.boards[m.To].Input(f.now, m)
			}
		}
		for e := f.node.Events(); len(e) > 0; e = f.node.Events() {
			for _, e := range e {
				f.events = append(f.events, e.Kind)
				f.b.On(f.now, f.node, e)
			}
		}
	}
}

func (f *fake) at(dag int) (boards []int) {
	for _, p := range f.b.Assignments(dag) {
		boards = append(boards, p.Board)
	}
	slices.Sort(boards)
	return boards
}

// TestGrowAndShrink: load that is more than a board can do goes to more boards, by what each can do, and comes back.
func TestGrowAndShrink(t *testing.T) {
	f := newFake(t, []DAG{{}}, &server{regions: 1, capacity: 1e9}, &server{regions: 1, capacity: 3e9}, &server{regions: 1, capacity: 1e9})
	f.run(500*time.Millisecond, 0.5e9)
	if at := f.at(0); !slices.Equal(at, []int{0}) {
		t.Fatalf("0.5 Gbit/s at %v", at)
	}
	f.run(2*time.Second, 3e9)
	if at := f.at(0); !slices.Equal(at, []int{0, 1}) {
		t.Fatalf("3 Gbit/s at %v", at)
	}
	for _, p := range f.b.Assignments(0) {
		if left := f.boards[p.Board].capacity - p.Rate; left < 0.1e9 {
			t.Errorf("board %d, which can do %g, has %g", p.Board, f.boards[p.Board].capacity, p.Rate)
		}
	}
	f.run(2*time.Second, 4.4e9)
	if at := f.at(0); len(at) != 3 {
		t.Errorf("4.4 Gbit/s at %v", at)
	}
	launched := f.b.Launched
	f.run(3*time.Second, 4.4e9)
	if f.b.Launched != launched {
		t.Error("it is not calm under the same load")
	}
	f.run(6*time.Second, 0.3e9)
	if at := f.at(0); len(at) != 1 {
		t.Errorf("0.3 Gbit/s at %v", at)
	}
	if n := len(f.boards[0].chains) + len(f.boards[1].chains) + len(f.boards[2].chains); n != 1 {
		t.Errorf("%d regions are used", n)
	}
}

// TestMoveState: of two DAGs with state on an overloaded board one goes to a board with less load, with its
// state. It does not go back and forth.
func TestMoveState(t *testing.T) {
	f := newFake(t, []DAG{{State: true}, {State: true}}, &server{regions: 2, capacity: 1e9})
	f.run(100*time.Millisecond, 0.99e9, 0.4e9)
	f.boards[0].state[0] = "what 0 knows"
	s := &server{regions: 2, capacity: 1e9, chains: map[pool.Lease]int{}, state: map[int]string{}}
	var err error
	if s.Node, err = pool.New(f.now, pool.Config{Board: 1, Topology: pool.Intermediate(Number+1, false), Inc: 9, Chains: f.node.Chains, Period: time.Millisecond, Host: s}); err != nil {
		t.Fatal(err)
	}
	f.boards = append(f.boards, s)
	f.run(5*time.Second, 0.99e9, 0.4e9)
	if a, b := f.at(0), f.at(1); !slices.Equal(a, []int{1}) || !slices.Equal(b, []int{0}) {
		t.Fatalf("they are at %v and %v", a, b)
	}
	if s.state[0] != "what 0 knows" {
		t.Errorf("state %q", s.state[0])
	}
	n := 0
	for _, e := range f.events {
		if e == pool.Resume {
			n++
		}
	}
	if n != 1 || f.b.Lost != 0 {
		t.Errorf("%d moves, %d states lost", n, f.b.Lost)
	}
}

// TestIdle: a DAG for which no frames come gives way to another one.
func TestIdle(t *testing.T) {
	f := newFake(t, []DAG{{}, {}}, &server{regions: 1, capacity: 1e9})
	f.run(100*time.Millisecond, 1e6, 0)
	f.run(500*time.Millisecond, 0, 1e6)
	if f.b.dags[1].Mode != Nowhere {
		t.Errorf("%v while the other may still be used", f.b.dags[1].Mode)
	}
	f.run(time.Second, 0, 1e6)
	if a, b := f.at(0), f.at(1); len(a) != 0 || len(b) != 1 {
		t.Errorf("they are at %v and %v", a, b)
	}
}
