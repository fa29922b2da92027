package snic

import (
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/firewall"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/napt"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/snic/pool"
	"github.com/quillon/quillon/snic/region"
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

// refuser knows something, and takes nothing of what others have known.
type refuser struct{ tally }

func (*refuser) Load(io.Reader) error { return io.ErrUnexpectedEOF }

func peerKinds() []graph.Kind {
	two := []string{"a", "b"}
	return append(kinds(), graph.Kind{Name: "diary", In: two, Out: two, Params: []graph.Param{{Name: "n"}, {Name: "note"}}, New: func(_ graph.Env, a graph.Args) (graph.App, error) {
		n, err := strconv.Atoi(a["n"])
		return &diary{pages: n}, err
	}}, graph.Kind{Name: "refuser", In: two, Out: two, New: func(graph.Env, graph.Args) (graph.App, error) { return &refuser{}, nil }}, *firewall.Kind(), *napt.Kind(), graph.Kind{Name: "hoard", In: two, Out: two, New: func(graph.Env, graph.Args) (graph.App, error) { return &hoard{}, nil }},
		graph.Kind{Name: "tally", In: two, Out: two, New: func(graph.Env, graph.Args) (graph.App, error) { return &tally{}, nil }})
}

// member is a board of a rack, with its part of the pool.
type member struct {
	*graphtest.Test
	crew *crew // of several workers; then there is no Test
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
	late    int             // of 100 messages
	parted  map[[2]int]bool // from and to: neither messages nor frames
	inc     uint64
	args    []string
	visits  bool // a board is visited by its part of the pool, now
	workers int  // of each board; 0: one
}

type parcel struct {
	at   clock.Duration
	to   int
	data []byte
}

const slice = 50 * time.Microsecond

func newRack(t *testing.T, deployments []string, args ...string) *rack {
	return newRackOf(t, 0, deployments, args...)
}

func newRackOf(t *testing.T, workers int, deployments []string, args ...string) *rack {
	r := &rack{t: t, rng: rand.New(rand.NewPCG(1, 2)), args: args, parted: map[[2]int]bool{}, workers: workers}
	for i, d := range deployments {
		r.members = append(r.members, nil)
		r.start(i, d)
	}
	return r
}

// start starts a board, anew if it was there.
func (r *rack) start(i int, d string) {
	t, args := r.t, r.args
	{
		a := graph.Args{"deployment": d, "pool-port": "p14"}
		for k := 0; k < len(args); k += 2 {
			a[args[k]] = args[k+1]
		}
		m := &member{mac: [6]byte{2, 0, 0, 0, 0, byte(i)}, out: map[string][]graphtest.Frame{}, drop: map[string]int{}}
		if r.workers > 0 {
			m.crew = newCrew(t, memoryKinds(), r.workers, a)
		} else {
			m.Test = graphtest.NewOuter(t, memoryKinds(), a)
		}
		m.join = NewPeering(i, m.mac)
		var err error
		r.inc++
		m.node, err = pool.New(m.clock(), pool.Config{Board: i, Topology: pool.Intermediate(MaxPeers, false), Inc: r.inc, Host: m.join, Period: time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		r.members[i] = m
	}
}

// clock is a board's time.
func (m *member) clock() clock.Time {
	if m.crew != nil {
		return m.crew.now
	}
	return m.Clock.Now()
}

// boards are its parts, one a worker.
func (m *member) boards() []*board {
	if m.crew != nil {
		return m.crew.boards()
	}
	return []*board{m.App().(*board)}
}

// player gives it frames and time.
func (m *member) player() player {
	if m.crew != nil {
		return m.crew
	}
	return single{m.Test}
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
			if to >= 0 && !r.parted[[2]int{i, to}] && !(r.cut != nil && r.cut(f.Bytes)) {
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
	r.take(i, r.members[i].player().Push(port, frames...))
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
			if p.data[0] == 'P' { // of a Pager
				if m := r.members[p.to]; !m.dead {
					m.join.Page(m.clock(), p.data)
				}
			} else if s, err := pool.Decode(p.data); err != nil {
				r.t.Fatal(err)
			} else if m := r.members[p.to]; !m.dead {
				r.do(m)(func(n *pool.Node, now clock.Time) { n.Input(now, s) })
			}
		}
		for i, m := range r.members {
			r.take(i, m.player().Advance(slice))
			if m.dead {
				continue
			}
			do := r.do(m)
			do(func(n *pool.Node, now clock.Time) { n.Advance(now) })
			if r.now%(4*slice) == 0 {
				if _, err := m.join.Exchange(do, func(f func(graph.App)) error {
					r.visits = true
					for _, b := range m.boards() {
						f(b)
					}
					r.visits = false
					return nil
				}); err != nil {
					r.t.Fatal(err)
				}
			}
			for s := m.node.Poll(m.clock()); s != nil; s = m.node.Poll(m.clock()) {
				for range 1 + r.rng.IntN(2) {
					if b, err := s.Encode(); err != nil {
						r.t.Fatal(err)
					} else if s.To < len(r.members) && r.rng.IntN(100) >= r.lose && !r.parted[[2]int{i, s.To}] {
						d := clock.Duration(20+r.rng.IntN(300)) * time.Microsecond
						if r.late > 0 && r.rng.IntN(100) < r.late {
							d += clock.Duration(r.rng.IntN(20000)) * time.Microsecond
						}
						r.net = append(r.net, parcel{r.now + d, s.To, b})
					}
				}
			}
		}
	}
}

func (r *rack) do(m *member) func(func(*pool.Node, clock.Time)) {
	return func(f func(*pool.Node, clock.Time)) {
		f(m.node, m.clock())
		for e := m.node.Events(); len(e) > 0; e = m.node.Events() {
			for _, e := range e {
				m.join.On(m.node, m.clock(), e)
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
	if v := r.members[0].App().(*board).poolView(); v.Sent != 45 || v.Answered != 45 || len(v.Peers) != 1 || !v.Peers[0].Same || len(v.Away) != 1 || v.Away[0].Peer != 1 || v.Away[0].State != "there" {
		t.Errorf("what it says of the pool: %+v", v)
	}
	if v := r.members[1].App().(*board).poolView(); v.Served != 45 || len(v.Guests) != 1 || v.Guests[0].UID != 8 || v.Guests[0].State != "runs" {
		t.Errorf("what the peer says of the pool: %+v", v)
	}
	if p := r.members[1].Counter("in"); p == 0 || len(r.members[1].drop) != 0 || len(r.members[0].drop) != 0 {
		t.Errorf("%d frames at the peer; dropped %v %v", p, r.members[0].drop, r.members[1].drop)
	}
}

// seq is a frame of a source with a number, as four letters.
func seq(src byte, n int) []byte { return frame(src, fmt.Sprintf("%04d", n)) }

// inOrder checks that frames are those from number from on, each once, in order,
// and that tally has numbered them the same.
func inOrder(t *testing.T, fs []graphtest.Frame, from int) int {
	t.Helper()
	for i, f := range fs {
		p := f.Bytes[42:]
		if string(p[:4]) != fmt.Sprintf("%04d", from+i) || int(binary.BigEndian.Uint16(p[4:])) != from+i {
			t.Fatalf("frame %d: %q number %d", from+i, p[:4], binary.BigEndian.Uint16(p[4:]))
		}
	}
	return from + len(fs)
}

// When a region frees the DAG comes home, with its state, under traffic: no frame is lost,
// none is out of order, and tally has counted each once.
func TestPeerComesHome(t *testing.T) {
	r := newRack(t, []string{pair(1), pair(2)}, "idle", "20ms")
	r.run(10 * time.Millisecond)
	next, sent := 1, 0
	other := true
	traffic := func() {
		if r.now%(200*time.Microsecond) == 0 {
			sent++
			r.push(0, "p0", seq(2, sent))
			if other {
				r.push(0, "p0", frame(1, "-"))
			}
		}
	}
	r.run(60*time.Millisecond, traffic)
	if s := r.state(0, 8); s != "at peer 1" {
		t.Fatalf("it is %s: %v\n%+v", s, r.members[0].drop, r.members[0].App().(*board).Report().(View).Events)
	}
	other = false // its region is given up
	r.run(100*time.Millisecond, traffic)
	if s := r.state(0, 8); s != "ready" {
		t.Fatalf("it is %s: %v %v", s, r.members[0].drop, r.members[1].drop)
	}
	if g := r.members[1].App().(*board).cat.services[1].hosted.guests; len(g) > 0 {
		t.Errorf("still a guest: %+v", g)
	}
	r.run(5 * time.Millisecond)
	var all []graphtest.Frame
	for _, f := range r.flush(0, "p1") {
		if f.Bytes[29] == 2 {
			all = append(all, f)
		}
	}
	if next = inOrder(t, all, 1); next != sent+1 {
		t.Errorf("%d of %d came out: dropped %v %v", next-1, sent, r.members[0].drop, r.members[1].drop)
	}
	if p := r.members[0].App().(*board).near.pool; p.sent == 0 || p.failed != 0 {
		t.Errorf("%d sent, %d failed", p.sent, p.failed)
	}
}

// A peer that dies takes the frames with it that are under way, until it is found
// dead; then the DAG runs here, with what it knew when it left, by a switch.
func TestPeerDies(t *testing.T) {
	r := newRack(t, []string{pair(1), pair(2)})
	sent := 0
	traffic := func() {
		if r.now%(200*time.Microsecond) == 0 {
			sent++
			r.push(0, "p0", seq(2, sent))
		}
	}
	r.run(10 * time.Millisecond)
	r.push(0, "p0", frame(1, "-"))
	r.run(60*time.Millisecond, traffic)
	if s := r.state(0, 8); s != "at peer 1" {
		t.Fatalf("it is %s: %v\n%+v", s, r.members[0].drop, r.members[0].App().(*board).Report().(View).Events)
	}
	r.members[1].dead = true
	before := sent
	r.run(60*time.Millisecond, traffic)
	if s := r.state(0, 8); s != "ready" {
		t.Fatalf("it is %s: %v\n%+v", s, r.members[0].drop, r.members[0].App().(*board).Report())
	}
	r.run(time.Millisecond)
	out := 0
	for _, f := range r.flush(0, "p1") {
		if f.Bytes[29] == 2 {
			out++
		}
	}
	// 5 ms until it is found dead, 200 us a frame.
	if lost := sent - out; lost > 27 || out < before {
		t.Errorf("%d of %d are lost: %v", lost, sent, r.members[0].drop)
	}
}

// When a peer dies a DAG goes on with what it knew at the last copy that was made there: no older than pool-copy= and
// the time to tell; without copies with what it knew when it went there. Nothing is copied when nothing has come.
func TestPeerCopies(t *testing.T) {
	for _, c := range []struct {
		every string
		lost  time.Duration // of what was learnt, at most
	}{{"0", time.Hour}, {"10ms", 11 * time.Millisecond}, {"40ms", 41 * time.Millisecond}} {
		for range 3 {
			r := newRack(t, []string{pair(1), pair(2)}, "pool-copy", c.every)
			sent := 0
			const gap = 200 * time.Microsecond
			traffic := func() {
				if r.now%gap == 0 {
					sent++
					r.push(0, "p0", seq(2, sent))
				}
			}
			r.run(10 * time.Millisecond)
			r.push(0, "p0", frame(1, "-"))
			r.run(30*time.Millisecond, traffic)
			if s := r.state(0, 8); s != "at peer 1" {
				t.Fatalf("it is %s: %v", s, r.members[0].drop)
			}
			b, host := r.members[0].App().(*board), r.members[1].App().(*board)
			at := func(b *board) int { return int(b.cat.tasks[b.cat.services[b.cat.dagOf[1]].tasks[0]].app.(*tally).n) }
			left := at(b)
			r.run(100*time.Millisecond+time.Duration(r.rng.IntN(400))*slice, traffic)
			r.members[1].dead = true
			knew := at(host)
			r.run(slice)
			for r.state(0, 8) == "at peer 1" {
				r.run(slice)
			}
			r.run(20 * time.Millisecond)
			if c.every == "0" {
				if at(b) != left {
					t.Errorf("it knows %d, and knew %d when it left", at(b), left)
				}
			} else if lost := knew - at(b); lost < 0 || time.Duration(lost)*gap > c.lost {
				t.Errorf("every %s: of %d frames that were counted %d are lost", c.every, knew, lost)
			}
			v := host.poolView().Guests
			if len(v) != 1 || (v[0].Copied > 0) != (c.every != "0") {
				t.Errorf("every %s: what it says of its guests: %+v", c.every, v)
			}
		}
	}
	// What has not changed is not saved again.
	r := newRack(t, []string{pair(1), pair(2)}, "pool-copy", "10ms")
	r.run(10 * time.Millisecond)
	r.push(0, "p0", frame(1, "-"), frame(2, "a"))
	r.run(60 * time.Millisecond)
	host := r.members[1].App().(*board)
	v := host.poolView().Guests
	r.run(50 * time.Millisecond)
	if w := host.poolView().Guests; len(v) != 1 || len(w) != 1 || v[0].Copied == 0 || w[0].Copied < v[0].Copied+0.04 {
		t.Errorf("it is copied without need: %+v, %+v", v, w)
	}
}

// A peer that leaves gives back what it runs for others, with its state, whether there is room
// or not: no frame is lost, none is out of order, and tally has counted each once.
func TestPeerLeaves(t *testing.T) {
	for name, c := range map[string]struct {
		here, third int // regions
		busy        bool
	}{"by a switch": {1, 1, false}, "its region is there": {1, 1, true}, "to a third board": {1, 2, false}} {
		t.Run(name, func(t *testing.T) {
			r := newRack(t, []string{pair(c.here), pair(2), pair(c.third)}, "idle", "200ms")
			r.lose = 10
			r.run(20 * time.Millisecond)
			sent := 0
			busy := true
			traffic := func() {
				if r.now%(100*time.Microsecond) == 0 {
					sent++
					r.push(0, "p0", seq(2, sent))
					if busy {
						r.push(0, "p0", frame(1, "-"))
					}
				}
			}
			r.run(60*time.Millisecond, traffic)
			if s := r.state(0, 8); s != "at peer 1" {
				t.Fatalf("it is %s: %v", s, r.members[0].drop)
			}
			busy = c.busy
			r.do(r.members[1])(func(n *pool.Node, now clock.Time) { n.Leave(now) })
			from := r.now
			r.run(3*time.Millisecond, traffic)
			if v := r.members[0].App().(*board).poolView(); !slices.ContainsFunc(v.Peers, func(p PeerView) bool { return p.Board == 1 && p.Leaving }) {
				t.Errorf("what it says of the pool: %+v", v)
			}
			for left := false; !left && r.now < from+100*time.Millisecond; {
				r.run(slice, traffic)
				left = r.members[1].node.Left()
			}
			r.run(5*time.Millisecond, traffic) // its sockets are closed
			if !r.members[1].node.Left() {
				t.Errorf("after %v it still has %+v", r.now-from, r.members[1].App().(*board).poolView())
			}
			r.members[1].dead = true
			r.run(40*time.Millisecond, traffic)
			if s := r.state(0, 8); c.third == 2 && s != "at peer 2" || c.third == 1 && s != "ready" {
				t.Errorf("it is %s", s)
			}
			r.run(100 * time.Millisecond)
			var all []graphtest.Frame
			for _, f := range r.flush(0, "p1") {
				if f.Bytes[29] == 2 {
					all = append(all, f)
				}
			}
			if next := inOrder(t, all, 1); next != sent+1 {
				t.Errorf("%d of %d came out: dropped %v %v %v", next-1, sent, r.members[0].drop, r.members[1].drop, r.members[2].drop)
			}
		})
	}
}

// A peer that cannot take over what a DAG knows gives its region back, and the DAG runs where it
// was.
func TestPeerRefusesState(t *testing.T) {
	text := func(regions int) string { return strings.Replace(pair(regions), "kind: tally", "kind: refuser", 1) }
	r := newRack(t, []string{text(1), text(2)}, "idle", "10s")
	r.run(10*time.Millisecond, func() { r.push(0, "p0", frame(1, "-")) })
	r.push(0, "p0", frame(2, "a"))
	b := r.members[1].App().(*board)
	free := func() (n int) {
		for i := range b.placing.fabric.Regions() {
			if v := b.placing.fabric.Region(i); v.State == region.Free || v.State == region.Victim {
				n++
			}
		}
		return n
	}
	r.run(40*time.Millisecond, func() { r.push(0, "p0", frame(1, "-")) })
	if v := b.poolView(); v.Failed == 0 {
		t.Fatalf("the peer was not asked: %+v", v)
	}
	r.run(300 * time.Millisecond)
	if n, v := free(), b.poolView(); n+len(v.Guests) != 2 {
		t.Errorf("%d of 2 regions of the peer are free: %+v", n, v)
	}
	if fs := r.flush(0, "p1"); !slices.ContainsFunc(fs, func(f graphtest.Frame) bool { return f.Bytes[29] == 2 }) {
		t.Error("its frame did not come out")
	}
}

// A DAG with a task whose state cannot be told stays: at a peer, and back home, it would have
// forgotten, as a cache what was written, or a cipher which numbers are used.
func TestPeerUntoldState(t *testing.T) {
	text := func(regions int) string {
		return strings.Replace(pair(regions), "kind: tally", "kind: mark, args: {letter: t}", 1)
	}
	r := newRack(t, []string{text(1), text(2)}, "idle", "10s")
	r.run(10*time.Millisecond, func() { r.push(0, "p0", frame(1, "-")) })
	r.run(40*time.Millisecond, func() { r.push(0, "p0", frame(1, "-"), frame(2, "a")) })
	v := r.members[0].App().(*board).poolView()
	if !slices.ContainsFunc(v.Stays, func(a AwayView) bool { return a.UID == 8 && a.State == "t has state that cannot be told" }) {
		t.Errorf("what it says of the pool: %+v", v)
	}
	if slices.ContainsFunc(v.Away, func(a AwayView) bool { return a.UID == 8 }) || len(r.flush(0, "p1")) == 0 {
		t.Errorf("it is %s: %+v", r.state(0, 8), v)
	}
}

// A peer with another deployment is no peer: what is too much runs here, in turn.
func TestPeerOfAnotherDeployment(t *testing.T) {
	r := newRack(t, []string{pair(1), strings.Replace(pair(2), "letter: m", "letter: n", 1)})
	r.run(20 * time.Millisecond)
	r.push(0, "p0", frame(2, "a"))
	r.run(40 * time.Millisecond)
	if n, _ := numbers(r.flush(0, "p1")); len(n) != 1 || n[0] != 1 || r.members[1].Counter("in") != 0 {
		t.Errorf("%v; the other board had %d frames", n, r.members[1].Counter("in"))
	}
	// When it is given the same one it takes part.
	if err := r.members[1].Set(graph.Args{"deployment": pair(2), "pool-port": "p14"}); err != nil {
		t.Fatal(err)
	}
	r.run(20 * time.Millisecond)
	r.push(0, "p0", frame(1, "-"))
	r.run(20 * time.Millisecond)
	if s := r.state(0, 7); s != "at peer 1" || tail(r.flush(0, "p1")) != "-m" {
		t.Errorf("it is %s", s)
	}
}

// What is no frame of a peer is dropped, with its reason.
func TestPeerFrames(t *testing.T) {
	r := newRack(t, []string{pair(1), pair(2), pair(1)})
	r.run(20 * time.Millisecond)
	r.push(0, "p0", frame(2, "a"))
	var request []byte
	r.cut = func(f []byte) bool {
		if f[11] == 0 {
			request = f
		}
		return false
	}
	r.run(40*time.Millisecond, func() { r.push(0, "p0", frame(2, "b")) })
	if request == nil || len(request) != 22+43 {
		t.Fatalf("no frame went to the peer: %x", request)
	}
	clear(r.members[1].drop)
	change := func(at int, v byte) []byte {
		f := slices.Clone(request)
		f[at] = v
		return f
	}
	for _, x := range []struct {
		frame  []byte
		reason string
	}{
		{change(0, 4), "bad-peer"},     // to somebody else
		{change(11, 9), "bad-peer"},    // of nobody
		{change(12, 8), "bad-peer"},    // not NSH
		{change(14, 0x80), "bad-peer"}, // another version
		{change(15, 0xc6), "bad-peer"}, // with metadata
		{change(17, 1), "bad-peer"},    // IPv4 follows
		{change(21, 0x01), "bad-peer"}, // an index of others
		{change(21, 0x2e), "twice"},    // to leave by the pool's port
		{change(20, 7), "unserved"},    // a DAG that does not run for it
		{change(20, 99), "unserved"},   // of nobody
		{request[:30], "bad-peer"},     // cut
		{frame(1, "-"), "bad-peer"},    // not of the pool
		{change(21, 0x31), "unasked"},  // back from a peer that nothing was sent to
		{slices.Clone(request[22:]), "bad-peer"},
	} {
		r.push(1, "p14", x.frame)
		if r.members[1].drop[x.reason] != 1 || len(r.members[1].drop) != 1 {
			t.Errorf("%x: %v, want %s", x.frame[:22], r.members[1].drop, x.reason)
		}
		clear(r.members[1].drop)
	}
	// Back from another peer than the one that it was sent to.
	r.members[0].drop = map[string]int{}
	answer := func(mac byte, uid byte) []byte {
		f := change(21, 0x31)
		f[5], f[11], f[20] = 0, mac, uid
		return f
	}
	for _, x := range []struct {
		frame  []byte
		reason string
	}{{answer(2, 8), "unasked"}, {answer(1, 7), "unasked"}, {answer(1, 99), "unasked"}, {answer(0, 8), "bad-peer"}, {answer(1, 8), ""}} {
		r.flush(0, "p1")
		r.push(0, "p14", x.frame)
		if out := r.flush(0, "p1"); x.reason == "" && len(out) != 1 || x.reason != "" && (len(out) != 0 || r.members[0].drop[x.reason] != 1) {
			t.Errorf("%x: %v, %d out, want %s", x.frame[:22], r.members[0].drop, len(out), x.reason)
		}
		clear(r.members[0].drop)
	}
	r.push(1, "p15", frame(1, "-"))
	if r.members[1].drop["bad-peer"] != 1 {
		t.Errorf("by the other port of the pair: %v", r.members[1].drop)
	}
	// Two that have the same address are both not known by it.
	mac := r.members[2].join.mac
	r.members[2].join.mac = r.members[0].mac
	r.run(20 * time.Millisecond)
	clear(r.members[1].drop)
	r.push(1, "p14", request)
	if r.members[1].drop["bad-peer"] != 1 {
		t.Errorf("of an address of two: %v", r.members[1].drop)
	}
	r.members[2].join.mac = mac
	r.run(20 * time.Millisecond)
	r.push(1, "p14", request)
	if r.members[1].drop["bad-peer"] != 1 {
		t.Errorf("of an address of one again: %v", r.members[1].drop)
	}
	// What is too long for the segment does not go there.
	r.push(0, "p0", frame(2, strings.Repeat("x", 1493-28)))
	r.push(0, "p0", frame(2, strings.Repeat("x", 1492-28-14)))
	if r.members[0].drop["pool-mtu"] != 1 {
		t.Errorf("too long: %v", r.members[0].drop)
	}
}

// Connections of a firewall and an address translator stay while their DAG goes to
// a peer, comes home, and goes there again.
func TestPeerState(t *testing.T) {
	text := func(regions int) string {
		return fmt.Sprintf(`
regions: {count: %d, area: 2}
tasks:
  fw:  {kind: firewall, args: {rules: "allow+in:a"}}
  nat: {kind: napt, args: {public: 203.0.113.1}}
  o: {kind: mark, args: {letter: o}, reads: [ip-addresses], writes: [payload], area: 2}
tenants: {u: {}, v: {}}
dags: [{uid: 2, tenant: v, run: o}, {uid: 1, tenant: u, run: fw -> nat}]
rules: [{match: "src:10.0.0.1", dag: 1}, {match: "dst:203.0.113.1", dag: 1}, {match: "src:203.0.113.1", dag: 1}, {match: "src:10.0.0.2", dag: 2}]
`, regions)
	}
	r := newRack(t, []string{text(1), text(2)}, "idle", "20ms")
	r.run(10 * time.Millisecond)
	busy := true
	traffic := func() {
		if busy && r.now%time.Millisecond == 0 {
			r.push(0, "p0", frame(2, "-"))
		}
	}
	r.run(10*time.Millisecond, traffic)
	r.push(0, "p0", frame(1, "hello"))
	r.run(40*time.Millisecond, traffic)
	if s := r.state(0, 1); s != "at peer 1" {
		t.Fatalf("it is %s", s)
	}
	var answer []byte
	for _, f := range r.flush(0, "p1") {
		if string(f.Bytes[26:30]) == "\xcb\x00\x71\x01" {
			answer = answerTo(f.Bytes)
		}
	}
	if answer == nil {
		t.Fatal("it was not translated")
	}
	passes := func(when, where string) {
		t.Helper()
		r.push(0, "p1", answer)
		r.run(10*time.Millisecond, traffic)
		back := r.flush(0, "p0")
		if len(back) != 1 || string(back[0].Bytes[30:34]) != "\x0a\x00\x00\x01" || back[0].Bytes[37] != 9 {
			t.Errorf("%s: the answer does not come back: %v %v %v", when, back, r.members[0].drop, r.members[1].drop)
		}
		if s := r.state(0, 1); s != where {
			t.Fatalf("%s: it is %s, want %s\n%+v\n%+v", when, s, where, r.members[0].App().(*board).Report(), r.members[0].App().(*board).poolView())
		}
	}
	passes("at the peer", "at peer 1")
	for range 3 {
		busy = false
		r.run(60 * time.Millisecond)
		passes("at home", "ready")
		r.run(60 * time.Millisecond) // its region is given up
		busy = true
		r.run(20*time.Millisecond, traffic)
		r.push(0, "p1", answer)
		r.run(40*time.Millisecond, traffic)
		r.flush(0, "p0")
		passes("at the peer again", "at peer 1")
	}
}

// What a peer has learnt for a DAG of another board goes with it: when it comes home, when its board dies, when
// another deployment comes, and when the peer has had some of it and would not take the rest. Then the peer takes
// a DAG like that again.
func TestPeerForgets(t *testing.T) {
	text := func(regions int, kind, other string) string {
		return fmt.Sprintf(`
regions: {count: %d, area: 2}
tasks:
  fw:  {kind: firewall, args: {rules: "allow+in:a"}}
  x: {kind: %s, reads: [ip-addresses], writes: [payload], answers: true, state: true}
  o: {kind: mark, remote: false, args: {letter: %s}, reads: [ip-addresses], writes: [payload], area: 2}
tenants: {u: {}, v: {}}
dags: [{uid: 2, tenant: v, run: o}, {uid: 1, tenant: u, run: fw -> x}]
rules: [{match: "src:10.0.0.1", dag: 1}, {match: "dst:10.0.0.1", dag: 1}, {match: "src:10.0.0.2", dag: 2}]
`, regions, kind, other)
	}
	for _, how := range []string{"home", "death", "deployment", "refusal"} {
		t.Run(how, func(t *testing.T) {
			kind := "tally"
			if how == "refusal" {
				kind = "refuser"
			}
			r := newRack(t, []string{text(1, kind, "o"), text(2, kind, "o"), text(1, kind, "o")}, "idle", "20ms")
			r.run(10 * time.Millisecond)
			busy := true
			traffic := func() {
				if busy && r.now%time.Millisecond == 0 {
					r.push(0, "p0", frame(2, "-"))
				}
			}
			host := r.members[1].App().(*board)
			knows := func() int { return len(host.near.save(&host.cat.services[host.cat.dagOf[1]])) }
			none := knows()
			r.push(0, "p0", frame(1, "hello"))
			r.run(30 * time.Millisecond)
			r.run(30*time.Millisecond, traffic)
			if how == "refusal" { // the first time it knew nothing; it is not asked again so soon
				r.run(asideFor, traffic)
			}
			r.push(0, "p0", frame(1, "again"))
			most := 0
			r.run(40*time.Millisecond, traffic, func() { most = max(most, knows()) })
			if how != "refusal" && r.state(0, 1) != "at peer 1" {
				t.Fatalf("it is %s: %+v", r.state(0, 1), r.members[0].App().(*board).poolView())
			}
			if how != "refusal" && most <= none {
				t.Fatalf("the peer has known no connection: %d bytes, with none %d", most, none)
			}
			next := text(2, kind, "o")
			switch how {
			case "home":
				busy = false
			case "death":
				r.members[0].dead = true
			case "deployment":
				next = text(2, kind, "q")
				if err := r.members[1].Set(graph.Args{"deployment": next, "pool-port": "p14", "idle": "20ms"}); err != nil {
					t.Fatal(err)
				}
			}
			r.run(80*time.Millisecond, traffic)
			if n := knows(); n != none {
				t.Errorf("it still knows %d bytes, with no connection %d", n, none)
			}
			if how == "refusal" {
				if host.near.pool.failed < 2 {
					t.Error("the peer has not been asked")
				}
				return
			}
			if i := slices.IndexFunc(host.cat.tasks, func(x task) bool { return x.Name == "x" }); host.cat.tasks[i].app.(*tally).n != 0 {
				t.Errorf("a task has counted %d frames", host.cat.tasks[i].app.(*tally).n)
			}
			// A guest again, of another board.
			if err := r.members[2].Set(graph.Args{"deployment": strings.Replace(next, "count: 2", "count: 1", 1), "pool-port": "p14", "idle": "20ms"}); err != nil {
				t.Fatal(err)
			}
			r.members[0].dead = true
			again := func() {
				if r.now%time.Millisecond == 0 {
					r.push(2, "p0", frame(2, "-"), frame(1, "."))
				}
			}
			r.run(10 * time.Millisecond)
			r.push(2, "p0", frame(2, "-"))
			r.run(200*time.Millisecond, again)
			if r.state(2, 1) != "at peer 1" {
				t.Errorf("another board's is %s: %+v", r.state(2, 1), r.members[2].App().(*board).poolView())
			}
		})
	}
}

// A task that gets more than it can, on a board without a free region, has its
// DAG with most traffic go to a peer, in order.
func TestPeerRelieves(t *testing.T) {
	text := func(regions int) string {
		return strings.Replace(pair(regions), "t: {", "t: {throughput: 2Mbit, ", 1)
	}
	r := newRack(t, []string{text(2), text(4)}, "fair", "off", "store", "1M")
	r.run(20 * time.Millisecond)
	sent := 0
	push := func() { // of two flows in turn
		sent++
		f := seq(2, (sent+1)/2)
		f[35] += byte(sent & 1)
		r.push(0, "p0", f)
	}
	r.run(300*time.Millisecond, func() {
		if r.now%(200*time.Microsecond) == 0 { // 46 bytes: 1.84 Mbit/s
			push()
		}
	})
	if s := r.state(0, 8); s != "ready" {
		t.Fatalf("below its throughput it is %s", s)
	}
	r.run(400*time.Millisecond, func() {
		if r.now%(100*time.Microsecond) == 0 {
			push()
		}
	})
	if s := r.state(0, 8); s != "at peer 1" {
		t.Errorf("overloaded, it is %s: %v", s, r.members[0].drop)
	}
	if p := r.members[0].App().(*board).near.pool; p.sent < 3000 {
		t.Errorf("%d frames went there: it goes to and fro", p.sent)
	}
	r.run(500 * time.Millisecond)
	var next [2]int
	for _, f := range r.flush(0, "p1") {
		flow := f.Bytes[35] & 1
		if next[flow]++; string(f.Bytes[42:46]) != fmt.Sprintf("%04d", next[flow]) {
			t.Fatalf("frame %d of flow %d: %q", next[flow], flow, f.Bytes[42:46])
		}
	}
	if next[0]+next[1] != sent {
		t.Errorf("%d of %d came out: %v %v", next[0]+next[1], sent, r.members[0].drop, r.members[1].drop)
	}
}

// Whatever happens, no frame is there twice, none of a flow passes another, and what
// is missing was dropped with a reason; while no board dies, nothing is dropped and
// each frame is counted by one instance of the state.
func TestPeerMachine(t *testing.T) {
	for seed := range uint64(12) {
		if testing.Short() && seed >= 3 {
			break
		}
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 9))
			r := newRack(t, []string{pair(1), pair(1 + int(seed%2)), pair(2)}, "idle", "15ms")
			r.rng, r.lose = rng, rng.IntN(8) // with more, boards take each other for dead now and then
			if seed%3 > 0 {
				r.lose *= 5
			}
			r.run(20 * time.Millisecond)
			sent := [3]int{} // by source
			// Boards die, or are given other deployments, one after the other.
			deadly, deploys := seed%3 == 2, seed%3 == 1
			for range 12 {
				gap := [3]int{}
				for i := range gap {
					gap[i] = rng.IntN(3) * (1 + rng.IntN(10)) // in slices; 0: none
				}
				n := 0
				r.run(time.Duration(rng.IntN(80))*time.Millisecond, func() {
					n++
					for src := 1; src <= 2; src++ {
						if gap[src] > 0 && n%gap[src] == 0 {
							sent[src]++
							r.push(0, "p0", seq(byte(src), sent[src]))
						}
					}
				})
				if i := rng.IntN(3); deploys && rng.IntN(2) == 0 {
					text := strings.Replace(pair(r.members[i].App().(*board).regions), "letter: m", "letter: "+string("mno"[rng.IntN(3)]), 1)
					if err := r.members[i].Set(graph.Args{"deployment": text, "pool-port": "p14", "idle": "15ms"}); err != nil {
						t.Fatal(err)
					}
				}
				if deadly && rng.IntN(6) == 0 {
					r.members[1+rng.IntN(2)].dead = true
				}
			}
			r.run(700 * time.Millisecond)
			last, out := [3]int{}, [3]int{}
			for _, f := range r.flush(0, "p1") {
				src := int(f.Bytes[29])
				var n int
				if _, err := fmt.Sscanf(string(f.Bytes[42:46]), "%04d", &n); err != nil || n <= last[src] {
					t.Fatalf("of source %d, %d follows %d: %v", src, n, last[src], err)
				}
				last[src] = n
				out[src]++
				if !deadly && !deploys && src == 2 && int(binary.BigEndian.Uint16(f.Bytes[46:])) != out[2] {
					t.Fatalf("frame %d is number %d of the state", out[2], binary.BigEndian.Uint16(f.Bytes[46:]))
				}
			}
			if !deadly && !deploys && out != sent {
				t.Errorf("%v of %v came out: %v %v %v", out, sent, r.members[0].drop, r.members[1].drop, r.members[2].drop)
			}
			for i, m := range r.members {
				for n := range m.App().(*board).cat.services {
					if a := m.App().(*board).cat.services[n].where; a.waits() {
						t.Errorf("board %d: DAG %d still waits: %+v", i, n, a)
					}
				}
				if n := m.App().(*board).stock.inside; n > 0 {
					t.Errorf("board %d: %d packets are inside", i, n)
				}
				if err := m.App().(*board).runner.sched.Check(); err != nil {
					t.Errorf("board %d: %v", i, err)
				}
			}
		})
	}
}

// Whatever boards do, leave, die or start anew, and whoever does not hear whom, for a while: when all
// is well again DAGs run, those that are at a peer have a lease there, and no peer has any other.
// While they only leave, nothing is dropped and each frame is counted by one instance of the state.
func TestPeerFaults(t *testing.T) {
	for seed := range uint64(14) {
		if testing.Short() && seed >= 4 {
			break
		}
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 11))
			leaves := seed%2 == 0 // and nothing worse
			texts := []string{pair(1), pair(1 + rng.IntN(2)), pair(2), pair(2)}
			r := newRack(t, texts, "idle", "15ms", "pool-copy", [...]string{"0", "5ms"}[seed/2%2])
			r.rng = rng
			if !leaves {
				r.lose, r.late = rng.IntN(30), rng.IntN(30)
			}
			r.run(20 * time.Millisecond)
			sent := [3]int{} // by source
			n := 0
			gap := [3]int{}
			traffic := func() {
				n++
				for src := 1; src <= 2; src++ {
					if gap[src] > 0 && n%gap[src] == 0 {
						sent[src]++
						r.push(0, "p0", seq(byte(src), sent[src]))
					}
				}
			}
			for range 14 {
				for i := range gap {
					gap[i] = rng.IntN(3) * (1 + rng.IntN(10)) // in slices; 0: none
				}
				r.run(time.Duration(rng.IntN(60))*time.Millisecond, traffic)
				i := 1 + rng.IntN(3)
				what := 0
				if !leaves {
					what = rng.IntN(5)
				}
				switch m := r.members[i]; {
				case m.dead:
					r.start(i, texts[i])
				case what == 0 && leaves:
					r.do(m)(func(n *pool.Node, now clock.Time) { n.Leave(now) })
					for k := 0; !m.node.Left(); k++ {
						if k == 2000 {
							t.Fatalf("board %d does not come to leave: %+v", i, m.App().(*board).poolView())
						}
						r.run(slice, traffic)
					}
					r.run(time.Millisecond, traffic)
					m.dead = true
				case what == 0:
					r.do(m)(func(n *pool.Node, now clock.Time) { n.Leave(now) })
					r.run(time.Duration(rng.IntN(10))*time.Millisecond, traffic)
					m.dead = true
				case what == 1:
					m.dead = true
				case what == 2:
					r.start(i, texts[i]) // so soon that nobody has missed it
				case what == 3:
					j := rng.IntN(4)
					r.parted[[2]int{i, j}] = true
					if rng.IntN(2) == 0 {
						r.parted[[2]int{j, i}] = true
					}
				default:
					clear(r.parted)
				}
			}
			clear(r.parted)
			r.lose, r.late = 0, 0
			r.run(200 * time.Millisecond)
			last, out := [3]int{}, [3]int{}
			seen := map[string]bool{}
			check := func() {
				t.Helper()
				for _, f := range r.flush(0, "p1") {
					src := int(f.Bytes[29])
					if key := fmt.Sprint(src, string(f.Bytes[42:46])); seen[key] {
						t.Fatalf("source and frame %s come twice", key)
					} else {
						seen[key] = true
					}
					var n int
					if _, err := fmt.Sscanf(string(f.Bytes[42:46]), "%04d", &n); err != nil || leaves && n <= last[src] {
						t.Fatalf("of source %d, %d follows %d: %v", src, n, last[src], err)
					}
					last[src] = n
					out[src]++
					if leaves && src == 2 && int(binary.BigEndian.Uint16(f.Bytes[46:])) != out[2] {
						t.Fatalf("frame %d is number %d of the state", out[2], binary.BigEndian.Uint16(f.Bytes[46:]))
					}
				}
			}
			check()
			if leaves && out != sent {
				t.Errorf("%v of %v came out: %v %v %v %v", out, sent, r.members[0].drop, r.members[1].drop, r.members[2].drop, r.members[3].drop)
			}
			// All goes on.
			before, had := sent, out
			gap = [3]int{0, 7, 5}
			r.run(50*time.Millisecond, traffic)
			r.run(150 * time.Millisecond)
			check()
			for src := 1; src <= 2; src++ {
				if got, want := out[src]-had[src], sent[src]-before[src]; got != want {
					t.Errorf("when all is well, %d of %d of source %d came out: %v %v %v %v", got, want, src, r.members[0].drop, r.members[1].drop, r.members[2].drop, r.members[3].drop)
				}
			}
			for i, m := range r.members {
				b := m.App().(*board)
				if m.dead {
					continue
				}
				guests := 0
				for _, g := range b.poolView().Guests {
					guests++
					away := r.members[g.Peer].App().(*board).poolView().Away
					if !slices.ContainsFunc(away, func(a AwayView) bool { return a.UID == g.UID && a.Peer == i }) {
						t.Errorf("board %d runs DAG %d for board %d, which has it elsewhere: %+v", i, g.UID, g.Peer, away)
					}
				}
				if len(m.join.promised) > 0 || len(m.join.chains) != guests {
					t.Errorf("board %d has %d guests, and has promised %v, %v", i, guests, m.join.promised, m.join.chains)
				}
				for n := range b.cat.services {
					if a := b.cat.services[n].where; a.underWay() {
						t.Errorf("board %d: DAG %d still waits: %+v", i, n, a)
					}
				}
				if b.stock.inside > 0 {
					t.Errorf("board %d: %d packets are inside", i, b.stock.inside)
				}
				if err := b.runner.sched.Check(); err != nil {
					t.Errorf("board %d: %v", i, err)
				}
			}
		})
	}
}

// What a board and its pool say to each other allocates nothing once it has been said, also while a DAG is at a peer and
// regions come and go; and it is right whichever of the two told is used.
func TestPeerTellAllocs(t *testing.T) {
	r := newRack(t, []string{pair(1), pair(2)})
	r.run(20 * time.Millisecond)
	r.push(0, "p0", frame(1, "-"), frame(2, "b"))
	r.run(60 * time.Millisecond)
	if s := r.state(0, 8); s != "at peer 1" {
		t.Fatalf("it is %s", s)
	}
	for i, m := range r.members {
		b := m.App().(*board)
		now := m.Clock.Now()
		do := func(f func(*pool.Node, clock.Time)) { f(m.node, now) }
		visit := func(f func(graph.App)) error { f(b); return nil }
		whole := 0
		exchange := func() {
			b.cat.seen = b.cat.seen.Add(fullEvery / 4)
			if c := b.near.pool.states[1-b.near.pool.last].closed; len(c) > 1 {
				c[1] = !c[1] // what is there is not to be told
			}
			m.join.On(m.node, now, pool.Event{Kind: pool.PeerUp, Want: -1})
			b.near.pool.orders = b.near.pool.orders[:0]
			if _, err := m.join.Exchange(do, visit); err != nil {
				t.Fatal(err)
			}
			if m.join.now.whole {
				whole++
			}
			if t := m.join.now; len(t.closed) != 2 || t.closed[1] != (i == 0 || len(b.cat.services[b.cat.dagOf[1]].hosted.guests) > 0) || len(t.info.Regions)+len(t.info.Chains) == 0 {
				panic(fmt.Sprintf("board %d tells %+v", i, t))
			}
		}
		for range 16 {
			exchange()
		}
		whole = 0
		if n := testing.AllocsPerRun(50, func() {
			for range 4 {
				exchange()
			}
		}); n > 0 {
			t.Errorf("board %d: %v allocations", i, n)
		}
		if whole < 40 || whole > 60 {
			t.Errorf("board %d: all was told %d times of 200", i, whole)
		}
	}
}

// BenchmarkTell is what a board of many DAGs is asked by its pool every 10 ms at most, on its worker.
func BenchmarkTell(b *testing.B) {
	var text strings.Builder
	const dags = 10_000
	text.WriteString("regions: {count: 4, area: 2}\ntasks: {a: {kind: tally, state: true, reads: [ip-addresses], writes: [payload]}, b: {kind: mark, args: {letter: b}, reads: [ip-addresses], writes: [payload]}}\ntenants: {u: {}}\ndags:\n")
	for i := range dags {
		fmt.Fprintf(&text, "  - {uid: %d, tenant: u, run: b}\n", i+1)
	}
	m := graphtest.NewOuter(b, memoryKinds(), graph.Args{"deployment": text.String(), "pool-port": "p14"})
	m.Advance(30 * time.Millisecond)
	x := m.App().(*board)
	b.ReportAllocs()
	for b.Loop() {
		x.cat.seen = x.cat.seen.Add(fullEvery)
		x.near.tellPool()
	}
}

// Frames to a peer, at the peer, and back cost no allocation.
func TestPeerAllocs(t *testing.T) {
	r := newRack(t, []string{pair(1), pair(2)})
	r.run(20 * time.Millisecond)
	var request, answer []byte
	r.cut = func(f []byte) bool {
		if f[21]&siAnswer != 0 {
			answer = f
		} else {
			request = f
		}
		return false
	}
	r.run(40*time.Millisecond, func() { r.push(0, "p0", frame(2, "b")) })
	if request == nil || answer == nil {
		t.Fatal("nothing went there and back")
	}
	switched := 0.0 // what the test's ports cost, which keep copies
	for i, x := range []struct {
		name, port string
		member     int
		frame      []byte
	}{
		{"switched", "p0", 0, frame(9, "b")},
		{"to the peer", "p0", 0, frame(2, "b")},
		{"at the peer", "p14", 1, request},
		{"back", "p14", 0, answer},
	} {
		b := r.members[x.member].App().(*board)
		var batch packet.Batch
		m := r.members[x.member]
		push := func() {
			for range 4 {
				f := m.Pool.Get()
				f.SetBytes(x.frame)
				batch.Add(f)
			}
			if err := m.Inst.Push("in-"+x.port, m.Clock.Now(), &batch); err != nil {
				t.Fatal(err)
			}
		}
		before := b.near.pool.sent + b.near.pool.served + b.near.pool.answered
		n := testing.AllocsPerRun(100, push)
		if i == 0 {
			switched = n
			continue
		}
		if n > switched {
			t.Errorf("%s: %v allocations for 4 frames, switched ones %v", x.name, n, switched)
		}
		if n := b.near.pool.sent + b.near.pool.served + b.near.pool.answered - before; n < 400 {
			t.Errorf("%s: %d frames", x.name, n)
		}
	}
}

// TestPeerBatch: frames of two DAGs with the same tasks that come from a peer together go back each as one of its own DAG.
func TestPeerBatch(t *testing.T) {
	text := func(regions int) string {
		return fmt.Sprintf(`
regions: {count: %d, area: 1}
tasks:
  m: {kind: mark, args: {letter: m}, reads: [ip-addresses], writes: [payload]}
  z: {kind: mark, args: {letter: z}, reads: [ip-addresses], writes: [payload]}
tenants: {u: {}}
dags: [{uid: 7, tenant: u, run: m}, {uid: 8, tenant: u, run: m}, {uid: 9, tenant: u, run: z}]
rules: [{match: "src:10.0.0.1", dag: 7}, {match: "src:10.0.0.2", dag: 8}, {match: "src:10.0.0.3", dag: 9}]
`, regions)
	}
	r := newRack(t, []string{text(1), text(3)}, "fair", "off", "pre-launch", "off")
	r.run(50*time.Millisecond, func() { r.push(0, "p0", frame(3, "9")) }) // it has the region
	r.run(50*time.Millisecond, func() { r.push(0, "p0", frame(1, "7"), frame(2, "8"), frame(3, "9")) })
	for _, uid := range []uint32{7, 8} {
		if s := r.state(0, uid); s != "at peer 1" {
			t.Fatalf("DAG %d is %s", uid, s)
		}
	}
	r.run(5 * time.Millisecond)
	r.wire = nil
	r.push(0, "p0", frame(1, "7"), frame(2, "8"), frame(1, "7"))
	var frames [][]byte
	for _, p := range r.wire {
		frames = append(frames, p.data)
	}
	before := r.members[1].App().(*board).runner.sched.Books().Bulk
	res := r.members[1].Push("p14", frames...)
	if n := r.members[1].App().(*board).runner.sched.Books().Bulk - before; len(frames) != 3 || n != 3 {
		t.Fatalf("of %d frames %d ran at once", len(frames), n)
	}
	for _, f := range res.Out["p14"] {
		uid, payload := f.Bytes[20], f.Bytes[22+42]
		if uid != payload-'0' {
			t.Errorf("a frame of DAG %c goes back as one of DAG %d", payload, uid)
		}
	}
	if n := len(res.Out["p14"]); n != 3 {
		t.Errorf("%d go back", n)
	}
	r.wire = nil
}
