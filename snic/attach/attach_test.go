package attach

import (
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/effect"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/snic"
	"github.com/quillon/quillon/snic/mat"
	"github.com/quillon/quillon/snic/pool"
)

// mark counts frames in the last two bytes of their addresses' UDP payload: state, if it is to be one.
type tally struct{ n uint16 }

func (m *tally) Push(c *graph.Ctx, in int, b *packet.Batch) {
	for _, x := range b.Bufs() {
		m.n++
		p := x.Bytes()
		binary.BigEndian.PutUint16(p[len(p)-2:], m.n)
		c.Emit(1-in, x)
	}
}
func (m *tally) Save(w io.Writer) error { return binary.Write(w, binary.BigEndian, m.n) }
func (m *tally) Load(r io.Reader) error { return binary.Read(r, binary.BigEndian, &m.n) }

func functions() []graph.Kind {
	two := []string{"a", "b"}
	k := func(name string, e effect.Effects) graph.Kind {
		return graph.Kind{Name: name, In: two, Out: two, Effects: graph.Always(e), New: func(graph.Env, graph.Args) (graph.App, error) { return &tally{}, nil }}
	}
	return []graph.Kind{k("tally", effect.Effects{Reads: effect.Payload, Writes: effect.Payload, State: true}), k("mark", effect.Effects{Reads: effect.Payload, Writes: effect.Payload})}
}

// member is a board, or the switch.
type member struct {
	*graphtest.Test
	node *pool.Node
	on   func(*pool.Node, clock.Time, pool.Event)
	swap func(func(func(*pool.Node, clock.Time)), func(func(graph.App)) error) (bool, error)
	dead bool
}

// rack is a switch and boards, in virtual time.
type rack struct {
	t    *testing.T
	tor  *member
	all  [Number + 1]*member
	now  clock.Duration
	wire []parcel
	net  []parcel
	rng  *rand.Rand
	out  map[string][]graphtest.Frame
	drop map[string]int
	inc  uint64
	text string
}

type parcel struct {
	at   clock.Duration
	to   int
	port string
	data []byte
}

const slice = 50 * time.Microsecond

func newRack(t *testing.T, boards int, text string) *rack {
	r := &rack{t: t, rng: rand.New(rand.NewPCG(1, 2)), out: map[string][]graphtest.Frame{}, drop: map[string]int{}, text: text}
	j := NewJoining([6]byte{2, 0, 0, 0, 1, 0})
	r.tor = r.add(Number, graphtest.New(t, *Kind(functions()...), graph.Args{"deployment": text, "boards": fmt.Sprint(max(boards, 2)), "board-mtu": "1522"}), pool.Config{Topology: Topology()})
	r.tor.on, r.tor.swap = j.On, j.Exchange
	for i := range boards {
		r.board(i)
	}
	r.run(20 * time.Millisecond)
	return r
}

func (r *rack) add(i int, x *graphtest.Test, c pool.Config) *member {
	x.Clock.Set(graphtest.Start.Add(r.now))
	r.inc++
	c.Board, c.Inc, c.Period = i, r.inc, time.Millisecond
	n, err := pool.New(x.Clock.Now(), c)
	if err != nil {
		r.t.Fatal(err)
	}
	r.all[i] = &member{Test: x, node: n}
	return r.all[i]
}

// board starts a board.
func (r *rack) board(i int) *member {
	join := snic.NewPeering(i, [6]byte{2, 0, 0, 0, 0, byte(i)})
	x := graphtest.NewOuter(r.t, append([]graph.Kind{*snic.Kind(functions()...)}, functions()...), graph.Args{"deployment": r.text, "pool-port": "p14", "pool-mtu": "1522", "pool-copy": "5ms", "fair": "off", "pre-launch": "off"})
	m := r.add(i, x, pool.Config{Topology: pool.Intermediate(snic.MaxPeers, false), Host: join})
	m.on, m.swap = join.On, join.Exchange
	return m
}

func (r *rack) take(i int, res graphtest.Result) {
	for p, fs := range res.Out {
		for _, f := range fs {
			var n int
			switch k, _ := fmt.Sscanf(p, "b%d", &n); {
			case i != Number:
				if p != "p14" {
					r.t.Fatalf("board %d sends by %s", i, p)
				}
				r.wire = append(r.wire, parcel{r.now + 10*time.Microsecond, Number, fmt.Sprintf("b%d", i), f.Bytes})
			case k == 1:
				r.wire = append(r.wire, parcel{r.now + 10*time.Microsecond, n, "p14", f.Bytes})
			default:
				r.out[p] = append(r.out[p], f)
			}
		}
	}
	for _, f := range res.Dropped {
		r.drop[fmt.Sprintf("%d %s", i, f.Reason)]++
	}
}

func (r *rack) push(port string, frames ...[]byte) { r.take(Number, r.tor.Push(port, frames...)) }

func due(q *[]parcel, now clock.Duration) (ready []parcel) {
	*q = slices.DeleteFunc(*q, func(p parcel) bool {
		if p.at <= now {
			ready = append(ready, p)
		}
		return p.at <= now
	})
	return ready
}

// run lets time pass; each is called every slice of it.
func (r *rack) run(d time.Duration, each ...func()) {
	r.t.Helper()
	for end := r.now + d; r.now < end; r.now += slice {
		for _, f := range each {
			f()
		}
		for _, p := range due(&r.wire, r.now) {
			if m := r.all[p.to]; m != nil && !m.dead {
				r.take(p.to, m.Push(p.port, p.data))
			}
		}
		for _, p := range due(&r.net, r.now) {
			s, err := pool.Decode(p.data)
			if err != nil {
				r.t.Fatal(err)
			}
			if m := r.all[p.to]; m != nil && !m.dead {
				m.do(func(n *pool.Node, now clock.Time) { n.Input(now, s) })
			}
		}
		for i, m := range r.all {
			if m == nil {
				continue
			}
			r.take(i, m.Advance(slice))
			if m.dead {
				continue
			}
			m.do(func(n *pool.Node, now clock.Time) { n.Advance(now) })
			if r.now%(4*slice) == 0 {
				if _, err := m.swap(m.do, func(f func(graph.App)) error { f(m.App()); return nil }); err != nil {
					r.t.Fatal(err)
				}
			}
			for s := m.node.Poll(m.Clock.Now()); s != nil; s = m.node.Poll(m.Clock.Now()) {
				b, err := s.Encode()
				if err != nil {
					r.t.Fatal(err)
				}
				r.net = append(r.net, parcel{r.now + clock.Duration(20+r.rng.IntN(300))*time.Microsecond, s.To, "", b})
			}
		}
	}
}

func (m *member) do(f func(*pool.Node, clock.Time)) {
	f(m.node, m.Clock.Now())
	for e := m.node.Events(); len(e) > 0; e = m.node.Events() {
		for _, e := range e {
			m.on(m.node, m.Clock.Now(), e)
		}
	}
}

// frame is one of flow n of a tenant, with a number.
func frame(tenant byte, flow uint16, seq uint32, size int) []byte {
	f := make([]byte, max(size, 60))
	copy(f, []byte{2, 0, 0, 0, 0, 0xFE, 2, 0, 0, 0, 0, 0xFD, 8, 0, 0x45, 0})
	binary.BigEndian.PutUint16(f[16:], uint16(len(f)-14))
	copy(f[22:], []byte{64, 17, 0, 0, 10, 0, 0, tenant, 192, 0, 2, 1})
	binary.BigEndian.PutUint16(f[34:], flow)
	binary.BigEndian.PutUint16(f[36:], 9)
	binary.BigEndian.PutUint16(f[38:], uint16(len(f)-34))
	binary.BigEndian.PutUint32(f[44:], seq)
	return f
}

// deployment has DAG 7 without state, and DAG 8 with.
func deployment(regions int, more string) string {
	return fmt.Sprintf(`
regions: {count: %d, area: 1}
tasks:
  m: {kind: mark, area: 1%s}
  t: {kind: tally, area: 1}
tenants: {alice: {}, bob: {}}
dags:
  - {uid: 7, tenant: alice, run: m}
  - {uid: 8, tenant: bob, run: t}
rules:
  - {match: "src:10.0.0.1", dag: 7}
  - {match: "src:10.0.0.2", dag: 8}
`, regions, more)
}

// at are the boards of a DAG.
func (r *rack) at(dag int) (boards []int) {
	for _, p := range r.tor.App().(*app).view.DAGs[dag].Assignments {
		boards = append(boards, p.Board)
	}
	slices.Sort(boards)
	return boards
}

// tallies are what DAG 8's task has counted, in the order in which frames left.
func (r *rack) tallies(port string) (n []int) {
	for _, f := range r.out[port] {
		n = append(n, int(binary.BigEndian.Uint16(f.Bytes[len(f.Bytes)-2:])))
	}
	delete(r.out, port)
	return n
}

// TestThereAndBack: the first frames of a DAG have a board launch it, and wait; they leave opposite, both ways, whole; what
// no rule knows crosses. DAGs go to different boards.
func TestThereAndBack(t *testing.T) {
	r := newRack(t, 2, deployment(1, ""))
	r.push("p0", frame(1, 5, 1, 100), frame(9, 5, 2, 100))
	if len(r.out["p1"]) != 1 {
		t.Errorf("%d frames cross", len(r.out["p1"]))
	}
	r.push("p2", frame(2, 5, 3, 1514))
	r.run(30 * time.Millisecond)
	if len(r.out["p1"]) != 2 || len(r.out["p3"]) != 1 {
		t.Fatalf("%v leave, dropped %v", r.out, r.drop)
	}
	got := r.out["p3"][0].Bytes
	want := frame(2, 5, 3, 1514)
	binary.BigEndian.PutUint16(want[len(want)-2:], 1)
	if !slices.Equal(got, want) {
		t.Errorf("%x of %x", got[:60], want[:60])
	}
	a, b := r.at(0), r.at(1)
	if len(a) != 1 || len(b) != 1 || a[0] == b[0] {
		t.Errorf("DAGs are at %v and %v", a, b)
	}
	// The way back.
	f := frame(2, 5, 4, 100)
	copy(f[26:], []byte{192, 0, 2, 1, 10, 0, 0, 2})
	r.push("p3", f)
	r.run(time.Millisecond)
	if n := r.tallies("p2"); len(n) != 1 || n[0] != 2 {
		t.Errorf("back: %v, dropped %v", n, r.drop)
	}
	if len(r.drop) > 0 || r.tor.Counter("to-boards") != 3 || r.tor.Counter("from-boards") != 3 {
		t.Errorf("%d to boards, %d back, dropped %v", r.tor.Counter("to-boards"), r.tor.Counter("from-boards"), r.drop)
	}
}

// TestStrangers: a frame of a host is an ordinary frame, though it looks like a board's. A frame that comes
// through a board's port and is no answer of that board, or no answer of a DAG that runs there, is dropped.
func TestStrangers(t *testing.T) {
	r := newRack(t, 2, deployment(1, ""))
	r.push("p0", frame(1, 5, 1, 100))
	r.run(30 * time.Millisecond)
	at := r.at(0)[0]
	clear(r.out)
	inner := frame(1, 5, 2, 100)
	forge := func(board int, uid uint32, si byte) []byte {
		h := []byte{2, 0, 0, 0, 1, 0, 2, 0, 0, 0, 0, byte(board), 0x89, 0x4F, 0x0F, 0xC2, 1, 3, byte(uid >> 16), byte(uid >> 8), byte(uid), si}
		return append(h, inner...)
	}
	good := forge(at, 7, 0x31)
	r.push("p2", good) // a host
	if len(r.out["p3"]) != 1 || !slices.Equal(r.out["p3"][0].Bytes, good) || len(r.out["p1"]) != 0 {
		t.Errorf("of a host: %v", r.out)
	}
	for why, f := range map[string][]byte{"address of the other board": forge(1-at, 7, 0x31), "a request": forge(at, 7, 0x21), "bad index": forge(at, 7, 0x71), "cut": good[:30]} {
		r.push(fmt.Sprintf("b%d", at), f)
		if r.drop[fmt.Sprintf("%d bad-board", Number)] != 1 {
			t.Errorf("%s: %v", why, r.drop)
		}
		clear(r.drop)
	}
	r.push(fmt.Sprintf("b%d", 1-at), forge(1-at, 7, 0x31)) // DAG 7 is not there
	r.push(fmt.Sprintf("b%d", at), forge(at, 99, 0x31))
	if r.drop[fmt.Sprintf("%d unasked", Number)] != 2 || len(r.out["p1"]) != 0 {
		t.Errorf("%v %v", r.drop, r.out["p1"])
	}
	if r.push(fmt.Sprintf("b%d", at), good); len(r.out["p1"]) != 1 {
		t.Errorf("the board's own: %v", r.drop)
	}
}

// load pushes frames of so many flows, evenly, at a rate in bits a second; it returns what to call each slice.
func (r *rack) load(tenant byte, flows int, rate float64, sent *int) func() {
	owed := 0.0
	return func() {
		for owed += rate * slice.Seconds() / 8; owed >= 500; owed -= 500 {
			r.push("p0", frame(tenant, uint16(*sent%flows), uint32(*sent), 500))
			*sent++
		}
	}
}

// disordered is how many groups have flows whose frames left in another order than they came.
func (r *rack) disordered(port string) int {
	last, bad := map[uint16]uint32{}, map[uint8]bool{}
	for _, f := range r.out[port] {
		flow, seq := binary.BigEndian.Uint16(f.Bytes[34:]), binary.BigEndian.Uint32(f.Bytes[44:])
		if was, ok := last[flow]; ok && seq <= was {
			var l hdr.Layers
			hdr.Walk(f.Bytes, &l)
			bad[group(mat.Hash(f.Bytes, &l))] = true
		}
		last[flow] = seq
	}
	return len(bad)
}

// TestOverload: a DAG without state that is more than a board can do gets another one, flow by flow; nothing is lost, and
// only flows of groups that are counted lose their order.
func TestOverload(t *testing.T) {
	r := newRack(t, 2, deployment(1, ", throughput: 8Mbit"))
	sent := 0
	r.run(100*time.Millisecond, r.load(1, 40, 3e6, &sent))
	if at := r.at(0); len(at) != 1 {
		t.Fatalf("3 of 8 Mbit/s: at %v", at)
	}
	heavy := r.load(1, 40, 12e6, &sent)
	r.run(450*time.Millisecond, heavy)
	at := r.at(0)
	if len(at) != 2 {
		t.Fatalf("12 of 8 Mbit/s: at %v; %+v, dropped %v", at, r.tor.App().(*app).view, r.drop)
	}
	r.run(100*time.Millisecond, heavy)
	places := r.tor.App().(*app).view.DAGs[0].Assignments
	r.run(250 * time.Millisecond) // what the first board had too much of
	if n := len(r.out["p1"]); n != sent || len(r.drop) > 0 {
		t.Errorf("%d of %d leave, dropped %v", n, sent, r.drop)
	}
	if out := r.disordered("p1"); out > int(r.tor.Counter("groups-forced")) {
		t.Errorf("%d groups out of order, %d moved without a pause", out, r.tor.Counter("groups-forced"))
	}
	for _, p := range places {
		if p.Rate < 12e6/3 {
			t.Errorf("board %d has %.1f of 12 Mbit/s", p.Board, p.Rate/1e6)
		}
	}
}

// TestDeath: a board dies. Frames that waited there are lost. Within the time of the pool's failure detector,
// and that of a launch, its DAG runs elsewhere, and a DAG with state goes on from the last copy.
func TestDeath(t *testing.T) {
	r := newRack(t, 2, deployment(2, ""))
	sent := 0
	load := r.load(2, 10, 4e6, &sent)
	r.run(100*time.Millisecond, load)
	at := r.at(1)
	n := r.tallies("p1")
	if len(at) != 1 || len(n) < 80 {
		t.Fatalf("at %v: %v", at, n)
	}
	r.all[at[0]].dead = true
	died, before := r.now, sent
	last := n[len(n)-1]
	for len(r.out["p1"]) < 3 && r.now < died+50*time.Millisecond {
		r.run(slice, load)
	}
	if took := r.now - died; took > 20*time.Millisecond { // 5 ms without a message, 5 ms of PR, and the messages
		t.Errorf("after %v: at %v, dropped %v", took, r.at(1), r.drop)
	}
	r.run(20*time.Millisecond, load)
	if now := r.at(1); len(now) != 1 || now[0] == at[0] {
		t.Errorf("at %v after %v", now, at)
	}
	n = r.tallies("p1")
	if n[0] < last-30 || n[0] <= 10 { // a copy is made every 5 ms, of 1000 frames a second
		t.Errorf("goes on with %d after %d", n[0], last)
	}
	if lost := sent - before - len(n); lost > 10 {
		t.Errorf("%d of %d lost", lost, sent-before)
	}
}

// TestNoBoard: while no board can be had frames cross where endpoints do the work, and are dropped where not; a board that
// joins is asked at once.
func TestNoBoard(t *testing.T) {
	r := newRack(t, 0, deployment(2, ", endpoint: true"))
	r.push("p0", frame(1, 1, 1, 100), frame(2, 1, 2, 100))
	r.run(10 * time.Millisecond)
	if len(r.out["p1"]) != 1 || r.out["p1"][0].Bytes[29] != 1 || r.drop[fmt.Sprintf("%d no-board", Number)] != 1 {
		t.Fatalf("%v %v", r.out, r.drop)
	}
	clear(r.out)
	r.board(0)
	sent := 0
	r.run(30*time.Millisecond, r.load(2, 1, 4e6, &sent))
	if n := r.tallies("p1"); len(n) < 5 || n[0] != 1 {
		t.Errorf("with a board: %v, dropped %v", n, r.drop)
	}
}

// TestLeave: a board that is stopped gives its DAGs to the other one, with their state: no frame is lost, and
// none is counted twice.
func TestLeave(t *testing.T) {
	r := newRack(t, 2, deployment(2, ""))
	sent := 0
	load := r.load(2, 10, 4e6, &sent)
	r.run(50*time.Millisecond, load)
	at := r.at(1)[0]
	r.all[at].do(func(n *pool.Node, now clock.Time) { n.Leave(now) })
	r.run(60*time.Millisecond, load)
	left := false
	r.all[at].do(func(n *pool.Node, _ clock.Time) { left = n.Left() })
	if now := r.at(1); !left || len(now) != 1 || now[0] == at {
		t.Errorf("left: %v; it is at %v after %d", left, now, at)
	}
	r.run(20 * time.Millisecond)
	n := r.tallies("p1")
	for i := range n {
		if n[i] != i+1 {
			t.Fatalf("frame %d has number %d", i, n[i])
		}
	}
	if len(n) != sent || len(r.drop) > 0 {
		t.Errorf("%d of %d, dropped %v", len(n), sent, r.drop)
	}
}

// TestNoAllocation: steering takes none.
func TestNoAllocation(t *testing.T) {
	kind := *Kind(functions()...)
	var p *app
	build := kind.New
	kind.New = func(e graph.Env, a graph.Args) (graph.App, error) {
		x, err := build(e, a)
		p = x.(*app)
		return x, err
	}
	l := graphtest.NewLoop(t, kind, graph.Args{"deployment": deployment(1, ""), "gap": "0s"}, "p0", frame(1, 1, 1, 100), frame(1, 2, 2, 100))
	p.boards[0], p.boards[1] = board{up: true}, board{up: true}
	to := Table{Mode: Go, Boards: 3}
	if n := testing.AllocsPerRun(100, func() {
		for i := range to.To {
			to.To[i] ^= 1
		}
		p.turn(0, 0, &to)
		l.Breath()
	}); n != 0 || p.sent < 200 || p.turned == 0 {
		t.Errorf("%v allocations, %d frames, %d groups turned", n, p.sent, p.turned)
	}
}

// TestPairs: by which port a frame leaves depends only on the port that it came in by, whatever addresses were seen where.
func TestPairs(t *testing.T) {
	r := newRack(t, 2, deployment(1, ""))
	known := frame(9, 1, 1, 100)
	copy(known[6:12], []byte{2, 0, 0, 0, 0, 0xFE}) // the address that frames below go to
	r.push("p2", known)
	r.push("p0", frame(9, 1, 2, 100), frame(1, 1, 3, 100))
	r.run(30 * time.Millisecond)
	r.push("p0", frame(1, 1, 4, 100)) // its board is there, now
	r.run(time.Millisecond)
	if len(r.out) != 2 || len(r.out["p3"]) != 1 || len(r.out["p1"]) != 3 || len(r.drop) > 0 {
		t.Errorf("%v, dropped %v", r.out, r.drop)
	}
}
