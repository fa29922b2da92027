package snic

import (
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/snic/pool"
)

// tally numbers frames: it adds how many it has seen, in two bytes. That number is its
// state. '?' as a frame's last byte has it answered.
type tally struct{ n uint16 }

func (m *tally) Push(c *graph.Ctx, in int, b *packet.Batch) {
	for _, x := range b.Bufs() {
		p := x.Bytes()
		out := 1 - in
		if p[len(p)-1] == '?' {
			out = in
		}
		m.n++
		q, _ := x.Append(2)
		binary.BigEndian.PutUint16(q[len(q)-2:], m.n)
		c.Emit(out, x)
	}
}

func (m *tally) Save(w io.Writer) error { return binary.Write(w, binary.BigEndian, m.n) }
func (m *tally) Load(r io.Reader) error { return binary.Read(r, binary.BigEndian, &m.n) }

func peerKinds() []graph.Kind {
	two := []string{"a", "b"}
	return append(kinds(), graph.Kind{Name: "tally", In: two, Out: two, New: func(graph.Env, graph.Args) (graph.App, error) { return &tally{}, nil }})
}

// member is a board of a rack, with its part of the pool.
type member struct {
	*graphtest.Test
	node *pool.Node
	join *Peering
	dead bool
	mac  [6]byte
	out  map[string][]graphtest.Frame
	drop map[string]int
}

// rack is boards on a segment, in virtual time; the pool's messages may be lost and repeated.
type rack struct {
	t       *testing.T
	members []*member
	now     clock.Duration
	wire    []parcel
	net     []parcel
	rng     *rand.Rand
	lose    int // of 100
	cut     func(f []byte) bool
}

type parcel struct {
	at   clock.Duration
	to   int
	data []byte
}

const slice = 50 * time.Microsecond

func newRack(t *testing.T, deployments []string, args ...string) *rack {
	r := &rack{t: t, rng: rand.New(rand.NewPCG(1, 2))}
	for i, d := range deployments {
		a := graph.Args{"deployment": d, "pool-port": "p14"}
		for k := 0; k < len(args); k += 2 {
			a[args[k]] = args[k+1]
		}
		m := &member{Test: graphtest.NewOuter(t, peerKinds(), a), mac: [6]byte{2, 0, 0, 0, 0, byte(i)}, out: map[string][]graphtest.Frame{}, drop: map[string]int{}}
		m.join = NewPeering(i, m.mac)
		var err error
		m.node, err = pool.New(m.Clock.Now(), pool.Config{Board: i, Topology: pool.Intermediate(MaxPeers, false), Inc: 1, Host: m.join, Period: time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		r.members = append(r.members, m)
	}
	return r
}

func (r *rack) take(i int, res graphtest.Result) {
	m := r.members[i]
	for p, fs := range res.Out {
		if p != "p14" {
			m.out[p] = append(m.out[p], fs...)
			continue
		}
		for _, f := range fs {
			to := slices.IndexFunc(r.members, func(o *member) bool { return o.mac == [6]byte(f.Bytes[:6]) })
			if to >= 0 && !(r.cut != nil && r.cut(f.Bytes)) {
				r.wire = append(r.wire, parcel{r.now + 10*time.Microsecond, to, f.Bytes})
			}
		}
	}
	for _, f := range res.Dropped {
		m.drop[f.Reason]++
	}
}

// push gives frames to a board.
func (r *rack) push(i int, port string, frames ...[]byte) {
	r.take(i, r.members[i].Push(port, frames...))
}

func due(q []parcel, now clock.Duration) (ready, left []parcel) {
	for _, p := range q {
		if p.at <= now {
			ready = append(ready, p)
		} else {
			left = append(left, p)
		}
	}
	return ready, left
}

// run lets time pass; each is called every slice of it.
func (r *rack) run(d time.Duration, each ...func()) {
	r.t.Helper()
	for end := r.now + d; r.now < end; r.now += slice {
		for _, f := range each {
			f()
		}
		var ready []parcel
		ready, r.wire = due(r.wire, r.now)
		for _, p := range ready {
			if !r.members[p.to].dead {
				r.push(p.to, "p14", p.data)
			}
		}
		ready, r.net = due(r.net, r.now)
		for _, p := range ready {
			if s, err := pool.Decode(p.data); err != nil {
				r.t.Fatal(err)
			} else if m := r.members[p.to]; !m.dead {
				r.do(m)(func(n *pool.Node, now clock.Time) { n.Input(now, s) })
			}
		}
		for i, m := range r.members {
			r.take(i, m.Advance(slice))
			if m.dead {
				continue
			}
			do := r.do(m)
			do(func(n *pool.Node, now clock.Time) { n.Advance(now) })
			if r.now%(4*slice) == 0 {
				if _, err := m.join.Exchange(do, func(f func(graph.App)) error { f(m.App()); return nil }); err != nil {
					r.t.Fatal(err)
				}
			}
			for s := m.node.Poll(m.Clock.Now()); s != nil; s = m.node.Poll(m.Clock.Now()) {
				for range 1 + r.rng.IntN(2) {
					if b, err := s.Encode(); err != nil {
						r.t.Fatal(err)
					} else if s.To < len(r.members) && r.rng.IntN(100) >= r.lose {
						r.net = append(r.net, parcel{r.now + clock.Duration(20+r.rng.IntN(300))*time.Microsecond, s.To, b})
					}
				}
			}
		}
	}
}

func (r *rack) do(m *member) func(func(*pool.Node, clock.Time)) {
	return func(f func(*pool.Node, clock.Time)) {
		f(m.node, m.Clock.Now())
		for e := m.node.Events(); len(e) > 0; e = m.node.Events() {
			for _, e := range e {
				m.join.On(m.node, m.Clock.Now(), e)
			}
		}
	}
}

// state is what a board says of a DAG.
func (r *rack) state(i int, uid uint32) string {
	v := r.members[i].App().(*board).Report().(View)
	at := slices.IndexFunc(v.DAGs, func(d DAGView) bool { return d.UID == uid })
	return v.DAGs[at].State
}

func (r *rack) flush(i int, port string) []graphtest.Frame {
	fs := r.members[i].out[port]
	delete(r.members[i].out, port)
	return fs
}

// pair is two DAGs, one of which has state, for boards with so many regions.
func pair(regions int) string {
	return fmt.Sprintf(`
regions: {count: %d, area: 1}
tasks:
  m: {kind: mark, args: {letter: m}, reads: [ip-addresses], writes: [payload], area: 1}
  t: {kind: tally, reads: [ip-addresses], writes: [payload], answers: true, state: true, area: 1}
tenants: {alice: {}, bob: {}}
dags:
  - {uid: 7, tenant: alice, run: m}
  - {uid: 8, tenant: bob, run: t}
rules:
  - {match: "src:10.0.0.1", dag: 7}
  - {match: "src:10.0.0.2", dag: 8}
`, regions)
}

// numbers are those that tally gave, with what was in front of them.
func numbers(fs []graphtest.Frame) (out []int, tags string) {
	for _, f := range fs {
		p := f.Bytes[42:]
		out = append(out, int(binary.BigEndian.Uint16(p[len(p)-2:])))
		tags += string(p[:len(p)-2])
	}
	return out, tags
}

// A DAG for which a board has no region runs at a peer: frames go there and come
// back, answers too; what waited goes first.
func TestPeerThereAndBack(t *testing.T) {
	r := newRack(t, []string{pair(1), pair(2)})
	r.lose = 10
	r.run(20 * time.Millisecond)
	// The board's only region has the other DAG.
	r.push(0, "p0", frame(1, "-"))
	if got := tail(r.flush(0, "p1")); got != "-m" {
		t.Fatalf("at home: %q, %v", got, r.members[0].drop)
	}
	r.push(0, "p0", frame(2, "a"), frame(2, "b"))
	r.run(40*time.Millisecond, func() {
		if r.now%time.Millisecond == 0 {
			r.push(0, "p2", frame(2, "c"))
		}
	})
	if s := r.state(0, 8); s != "at peer 1" {
		t.Fatalf("it is %s, %v %v", s, r.members[0].drop, r.members[1].drop)
	}
	n, tags := numbers(r.flush(0, "p1"))
	if tags != "ab" || n[0] != 1 || n[1] != 2 {
		t.Errorf("what waited: %v %q", n, tags)
	}
	n, tags = numbers(r.flush(0, "p3"))
	for i := range n {
		if n[i] != i+3 {
			t.Fatalf("numbers of another pair: %v %q", n, tags)
		}
	}
	if len(n) != 40 {
		t.Errorf("%d of 40 came back", len(n))
	}
	// Back, and an answer each way.
	r.push(0, "p3", back(2, "k"))
	r.run(time.Millisecond)
	if _, tags := numbers(r.flush(0, "p2")); tags != "k" {
		t.Errorf("back: %q", tags)
	}
	r.push(0, "p0", frame(2, "x?"), frame(2, "y"))
	r.run(time.Millisecond)
	_, there := numbers(r.flush(0, "p1"))
	_, here := numbers(r.flush(0, "p0"))
	if there != "y" || here != "x?" {
		t.Errorf("answered %q, went on %q", here, there)
	}
	if r.members[1].out["p1"] != nil || r.members[1].out["p0"] != nil {
		t.Error("the peer has sent frames by its own ports")
	}
	if p := r.members[1].Counter("in"); p == 0 || len(r.members[1].drop) != 0 || len(r.members[0].drop) != 0 {
		t.Errorf("%d frames at the peer; dropped %v %v", p, r.members[0].drop, r.members[1].drop)
	}
}
