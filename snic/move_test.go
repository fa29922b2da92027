package snic

import (
	"encoding/binary"
	"encoding/json"
	"io"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/snic/pool"
)

// save is the state of a DAG's tasks, saved at once.
func (nb *nearby) save(s *service) []byte {
	o := &outgoing{}
	for !nb.saveSome(s, o, 1<<10) {
	}
	return o.out.bytes()
}

// hoard knows an eighth of what may be moved for each frame that it has seen.
type hoard struct{ n int }

func (h *hoard) Push(c *graph.Ctx, in int, b *packet.Batch) {
	h.n += b.Len()
	for _, x := range b.Bufs() {
		c.Emit(1-in, x)
	}
}

func (h *hoard) Save(w io.Writer) error {
	_, err := w.Write(make([]byte, h.n*pool.MaxState/8))
	return err
}

func (h *hoard) Load(r io.Reader) error {
	n, err := io.Copy(io.Discard, r)
	h.n = int(n) / (pool.MaxState / 8)
	return err
}

// A DAG whose state is too much stays where it is, here or at the peer, with the reason, and
// its frames go on.
func TestPeerTooMuch(t *testing.T) {
	text := func(regions int) string { return strings.Replace(pair(regions), "kind: tally", "kind: hoard", 1) }
	for _, there := range []bool{false, true} {
		r := newRack(t, []string{text(1), text(2)}, "idle", "20ms")
		r.run(10 * time.Millisecond)
		busy := true
		traffic := func() {
			if busy && r.now%(200*time.Microsecond) == 0 {
				r.push(0, "p0", frame(1, "-"))
			}
		}
		r.run(10*time.Millisecond, traffic)
		r.push(0, "p0", frame(2, "a"))
		if !there {
			b := r.members[0].App().(*board)
			b.cat.tasks[b.cat.services[b.cat.dagOf[1]].tasks[0]].app.(*hoard).n = 9
		}
		r.run(40*time.Millisecond, traffic)
		where, stays := "at peer 1", "there, and cannot come home: its state is more than 16 MB"
		if there {
			for range 9 {
				r.push(0, "p0", frame(2, "a"))
			}
			r.run(5*time.Millisecond, traffic)
			busy = false // its region is given up
		} else {
			where, stays = "ready", "its state is more than 16 MB"
			busy = false
		}
		r.run(80*time.Millisecond, traffic)
		r.flush(0, "p1")
		for range 5 {
			r.push(0, "p0", frame(2, "z"))
			r.run(10 * time.Millisecond)
		}
		if got := tail(r.flush(0, "p1")); got != "z z z z z" {
			t.Errorf("there %v: the last frames are %q: %v %v", there, got, r.members[0].drop, r.members[1].drop)
		}
		v := r.members[0].App().(*board).poolView()
		if text, err := json.Marshal(v); err != nil || strings.Contains(string(text), "null") {
			t.Errorf("%s: %v", text, err)
		}
		if !slices.ContainsFunc(append(v.Stays, v.Away...), func(a AwayView) bool { return a.UID == 8 && a.State == stays }) || r.state(0, 8) != where {
			t.Errorf("there %v: it is %s; %+v", there, r.state(0, 8), v)
		}
		if !there {
			continue
		}
		// A peer that stops says what is lost, or has it go home if it is less by now.
		m := r.members[1]
		what, stuck := m.join.Remains(m.node)
		if len(what) != 1 || what[0] != "DAG 8 (t) of board 0, its state is more than 16 MB" || !stuck {
			t.Errorf("what remains: %q, stuck %v", what, stuck)
		}
		b := m.App().(*board)
		b.cat.tasks[b.cat.services[b.cat.dagOf[1]].tasks[0]].app.(*hoard).n = 3
		r.do(m)(func(n *pool.Node, now clock.Time) { n.Leave(now) })
		if what, stuck := m.join.Remains(m.node); len(what) != 1 || stuck {
			t.Errorf("what remains while it leaves: %q, stuck %v", what, stuck)
		}
		r.run(60 * time.Millisecond)
		home := r.members[0].App().(*board)
		if n := home.cat.tasks[home.cat.services[home.cat.dagOf[1]].tasks[0]].app.(*hoard).n; n != 3 {
			t.Errorf("home came %d, want 3", n)
		}
		if what, _ := m.join.Remains(m.node); len(what) != 0 {
			t.Errorf("what remains at last: %q; it is %s", what, r.state(0, 8))
		}
	}
}

// diary is a tally that knows so many pages more.
type diary struct {
	tally
	pages   int
	writes  int   // calls of next
	most    int   // that one was to write
	saves   int   // begun
	reads   int   // calls of read
	visited *bool // set: what is read is not read beside the worker
	t       *testing.T
}

const pageLen = 16

func (d *diary) Saving(w io.Writer) func(int) (bool, error) {
	d.saves++
	if err := d.tally.Save(w); err != nil {
		return func(int) (bool, error) { return false, err }
	}
	left := d.pages
	return func(n int) (bool, error) {
		d.writes++
		d.most = max(d.most, n)
		n = min(n, left)
		left -= n
		_, err := w.Write(make([]byte, n*pageLen))
		return left > 0, err
	}
}

func (d *diary) Save(w io.Writer) error {
	for next := d.Saving(w); ; {
		if more, err := next(1000); !more {
			return err
		}
	}
}

func (d *diary) Loading() func(io.Reader) (func(), error) {
	return func(r io.Reader) (func(), error) {
		d.reads++
		if d.visited != nil && *d.visited {
			d.t.Error("a board stands still for what is read")
		}
		var n tally
		if err := n.Load(r); err != nil {
			return nil, err
		}
		if b, err := io.ReadAll(r); err != nil || len(b) != d.pages*pageLen {
			return nil, io.ErrUnexpectedEOF
		}
		return func() { d.tally = n }, nil
	}
}

func (d *diary) Load(r io.Reader) error {
	put, err := d.Loading()(r)
	if err == nil {
		put()
	}
	return err
}

func diaryText(pages string, regions int) string {
	return strings.Replace(pair(regions), "kind: tally", "kind: diary, args: {n: '"+pages+"'}", 1)
}

// Inherit takes over one of as many pages.
func (d *diary) Inherit(from graph.App) bool {
	o, ok := from.(*diary)
	if ok = ok && o.pages == d.pages; ok {
		d.tally = o.tally
	}
	return ok
}

// A task with other arguments has what it knew, without anybody writing that down, if it can.
func TestInherit(t *testing.T) {
	text := func(args string) graph.Args {
		return graph.Args{"deployment": `
regions: {count: 1, area: 1}
tasks: {x: {kind: diary, args: {` + args + `}}}
tenants: {u: {}}
dags: [{uid: 1, tenant: u, run: x}]
rules: [{match: "src:10.0.0.0/8", dag: 1}]
`}
	}
	m := graphtest.NewOuter(t, peerKinds(), text("n: '3'"))
	m.Advance(30 * time.Millisecond)
	task := func() *diary { return m.App().(*board).cat.tasks[0].app.(*diary) }
	m.Push("p0", frame(1, "-"))
	for i, c := range []struct {
		args  string
		n     uint16
		saves int
	}{{"n: '3', note: a", 1, 0}, {"n: '3'", 1, 0}, {"n: '4'", 0, 1}} {
		was := task()
		if err := m.Set(text(c.args)); err != nil {
			t.Fatal(err)
		}
		m.Advance(time.Millisecond)
		if x := task(); x == was || x.n != c.n || was.saves != c.saves {
			t.Errorf("%d: it counts from %d, saved %d times", i, x.n, was.saves)
		}
	}
}

// diaries is a rack with two boards, of so many regions, and a diary each; the first has traffic of both DAGs.
func diaries(t *testing.T, pages string, there int, args ...string) (*rack, func(i int) *diary) {
	r := newRack(t, []string{diaryText(pages, 1), diaryText(pages, there)}, append(args, "idle", "20ms")...)
	r.run(10 * time.Millisecond)
	d := func(i int) *diary {
		b := r.members[i].App().(*board)
		return b.cat.tasks[b.cat.services[b.cat.dagOf[1]].tasks[0]].app.(*diary)
	}
	for i := range r.members {
		d(i).visited, d(i).t = &r.visits, t
	}
	return r, d
}

// What a DAG knows is saved a piece at a time, there and back, and read beside the worker: the
// other one's frames go on at once meanwhile, and of its own none is lost, and none out of order.
func TestMoveInPieces(t *testing.T) {
	const pages = 100 * pieceRecords
	r, d := diaries(t, strconv.Itoa(pages), 2)
	here, there := d(0), d(1) // which forgets all in the end, by starting anew
	sent, others, other := 0, 0, true
	var made *renewal
	writes, first, last := 0, clock.Duration(0), clock.Duration(0)
	each := func() {
		if r.now%(200*time.Microsecond) == 0 {
			sent++
			r.push(0, "p0", seq(2, sent))
		}
		if other {
			others++
			r.push(0, "p0", frame(1, "-"))
			if out := r.members[0].out["p1"]; others > 1 && (len(out) == 0 || out[len(out)-1].Bytes[29] != 1) {
				t.Fatalf("a frame of the other DAG waits after %d pieces", here.writes)
			}
		}
		if f := r.members[1].App().(*board).cat.tasks[1].fresh; f != nil {
			made = f
		}
		if now := here.writes + there.writes; now > writes+1+int(slice/pieceEvery) {
			t.Fatalf("%d pieces within %v", now-writes, slice)
		} else {
			if writes < now && now <= pages/pieceRecords {
				if last = r.now; first == 0 {
					first = r.now
				}
			}
			writes = now
		}
	}
	r.run(80*time.Millisecond, each)
	if s := r.state(0, 8); s != "at peer 1" {
		t.Fatalf("it is %s: %v", s, r.members[0].drop)
	}
	other = false
	r.run(150*time.Millisecond, each)
	if s := r.state(0, 8); s != "ready" {
		t.Fatalf("it is %s: %v %v", s, r.members[0].drop, r.members[1].drop)
	}
	r.run(5 * time.Millisecond)
	var all []graphtest.Frame
	for _, f := range r.flush(0, "p1") {
		if f.Bytes[29] == 2 {
			all = append(all, f)
		}
	}
	if next := inOrder(t, all, 1); next != sent+1 {
		t.Errorf("%d of %d came out: dropped %v %v", next-1, sent, r.members[0].drop, r.members[1].drop)
	}
	if now := d(1); made == nil || made.app != graph.App(now) || now == there || now.n != 0 {
		t.Error("the peer has not forgotten, or has stood still for that")
	}
	if took := last - first + slice; took < (pages/pieceRecords-1)*pieceEvery || took > 2*pages/pieceRecords*pieceEvery {
		t.Errorf("%d pieces took %v", pages/pieceRecords, took)
	}
	for i, x := range []*diary{here, there} {
		if x.saves != 1 || x.writes != pages/pieceRecords || x.most != pieceRecords || x.reads != 1 {
			t.Errorf("board %d: begun %d times to save, in %d pieces of up to %d; read %d times", i, x.saves, x.writes, x.most, x.reads)
		}
		if p := r.members[i].App().(*board).near.pool; p.saving || p.failed > 0 {
			t.Errorf("board %d: saving %v, %d failed", i, p.saving, p.failed)
		}
	}
}

// Whatever happens while a DAG is being saved, it goes on, with what it knew or what it was to forget, and
// nothing is left half done.
func TestMoveInterrupted(t *testing.T) {
	const pages, before = 500 * pieceRecords, 1000
	redeploy := func(r *rack, i int, old, new string) {
		args := graph.Args{"deployment": strings.Replace(diaryText(strconv.Itoa(pages), 1+i), old, new, 1), "pool-port": "p14", "idle": "20ms"}
		if err := r.members[i].Set(args); err != nil {
			r.t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		back    bool // it is on its way home, not to the peer
		do      func(r *rack)
		forgets bool // what the DAG knew
	}{
		"the peer dies":                {do: func(r *rack) { r.members[1].dead = true }},
		"the task starts anew":         {do: func(r *rack) { redeploy(r, 0, "kind: diary,", "restart: 1, kind: diary,") }, forgets: true},
		"its arguments change":         {do: func(r *rack) { redeploy(r, 0, "letter: m", "letter: n") }},
		"the same deployment":          {do: func(r *rack) { redeploy(r, 0, "area: 1}", "area:  1}") }},
		"coming home, the peer starts": {back: true, do: func(r *rack) { redeploy(r, 1, "kind: diary,", "restart: 1, kind: diary,") }, forgets: true},
	} {
		t.Run(name, func(t *testing.T) {
			r, d := diaries(t, strconv.Itoa(pages), 2)
			here, there := d(0), d(1)
			here.n = before
			sent, done := 0, 0
			other := true
			each := func() {
				if r.now%(500*time.Microsecond) == 0 {
					sent++
					r.push(0, "p0", seq(2, sent))
					if other {
						r.push(0, "p0", frame(1, "-"))
					}
				}
				at := here
				if c.back {
					at = there
					other = other && r.state(0, 8) != "at peer 1"
				}
				if done == 0 && at.writes > 100 && at.writes < 300 {
					done = sent
					c.do(r)
				}
			}
			r.run(250*time.Millisecond, each)
			other = false
			r.run(150*time.Millisecond, each)
			r.run(2 * time.Millisecond)
			if s := r.state(0, 8); done == 0 || s != "ready" {
				t.Fatalf("%d frames before; it is %s: %v %v", done, s, r.members[0].drop, r.members[1].drop)
			}
			var numbers []int
			last := 0
			for _, f := range r.flush(0, "p1") {
				p := f.Bytes[42:]
				if f.Bytes[29] != 2 {
					continue
				}
				n, _ := strconv.Atoi(string(p[:4]))
				if n != last+1 {
					t.Errorf("frame %d after %d", n, last)
				}
				last = n
				numbers = append(numbers, int(binary.BigEndian.Uint16(p[4:])))
			}
			if last != sent {
				t.Fatalf("%d of %d came out: %v %v", last, sent, r.members[0].drop, r.members[1].drop)
			}
			was := before
			for i, n := range numbers {
				switch {
				case n == 1 && c.forgets:
					c.forgets = false
				case n != was+1:
					t.Errorf("frame %d is number %d, after %d", i+1, n, was)
				}
				was = n
			}
			if c.forgets {
				t.Error("it has not forgotten")
			}
			for i, m := range r.members {
				b := m.App().(*board)
				if s := &b.cat.services[b.cat.dagOf[1]]; !m.dead && (b.near.pool.saving || s.where.out != nil) {
					t.Errorf("board %d still saves", i)
				}
			}
		})
	}
}

// A DAG of which one task would not have what it is given goes on with all that it had.
func TestMoveAllOrNothing(t *testing.T) {
	m := graphtest.NewOuter(t, peerKinds(), graph.Args{"pool-port": "p14", "deployment": `
regions: {count: 1, area: 2}
tasks:
  x: {kind: diary, args: {n: '3'}, state: true, answers: true}
  y: {kind: diary, args: {n: '4'}, state: true, answers: true}
tenants: {u: {}}
dags: [{uid: 1, tenant: u, run: x -> y}]
rules: [{match: "src:10.0.0.0/8", dag: 1}]
`})
	m.Advance(30 * time.Millisecond)
	for range 5 {
		m.Push("p0", frame(1, "-"))
	}
	b := m.App().(*board)
	s := &b.cat.services[b.cat.dagOf[0]]
	task := func(i int) *diary { return b.cat.tasks[s.tasks[i]].app.(*diary) }
	state := b.near.save(s)
	m.Push("p0", frame(1, "-"))
	for cut := range len(state) {
		if b.near.restore(s, state[:cut], nil) && cut != 0 && cut != headLen+2+3*pageLen {
			t.Errorf("%d of %d bytes are taken", cut, len(state))
		}
		if n := task(1).n; n != 6 {
			t.Fatalf("%d bytes: the second one counts from %d", cut, n)
		}
	}
	task(0).n = 6
	task(1).pages++ // it takes only what has as many
	in := b.near.arrive(s, state)
	in.read()
	if b.near.restore(s, state, in) || task(0).n != 6 || task(1).n != 6 {
		t.Errorf("one refuses, and they count from %d and %d", task(0).n, task(1).n)
	}
	task(1).pages--
	in = b.near.arrive(s, state)
	in.read()
	reads := task(0).reads
	if !b.near.restore(s, state, in) || task(0).n != 5 || task(1).n != 5 || task(0).reads != reads {
		t.Errorf("taken, and they count from %d and %d; read again %v", task(0).n, task(1).n, task(0).reads > reads)
	}
	// What was read for others is read again.
	in.apps = slices.Clone(in.apps)
	in.apps[0] = &diary{}
	in.parts = nil
	task(0).n = 9
	if !b.near.restore(s, state, in) || task(0).n != 5 {
		t.Error("what was read for a task that is gone")
	}
	m.Push("p0", frame(1, "-"))
}

// BenchmarkMove is what a move of 100,000 connections through a firewall and an address translator costs:
// save and restore stop the worker, the rest is done beside it.
func BenchmarkMove(b *testing.B) {
	m := graphtest.NewOuter(b, peerKinds(), graph.Args{"deployment": `
regions: {count: 1, area: 2}
tasks:
  fw:  {kind: firewall, args: {rules: "allow+in:a", conns: 131072, half: 131072, half-per-source: 131072}}
  nat: {kind: napt, args: {public: 203.0.113.1+203.0.113.2+203.0.113.3, mappings: 131072}}
tenants: {u: {}}
dags: [{uid: 1, tenant: u, run: fw -> nat}]
rules: [{match: "src:10.0.0.0/8", dag: 1}]
`, "fair": "off"})
	m.Advance(30 * time.Millisecond)
	f := frame(1, "hello")
	for i := range 100_000 {
		binary.BigEndian.PutUint16(f[34:], uint16(1000+i%50000))
		f[29] = byte(1 + i/50000)
		m.Push("p0", f)
	}
	board := m.App().(*board)
	s := &board.cat.services[board.cat.dagOf[0]]
	state := board.near.save(s)
	if len(state) < 100_000*(89+31) {
		b.Fatalf("the state has %d bytes", len(state))
	}
	message := pool.State{From: 0, To: 1, Inc: 1, Seq: 1, Asks: []pool.Ask{{ID: 1, Phase: pool.Handed, State: state}}}
	bytes, err := message.Encode()
	if err != nil {
		b.Fatal(err)
	}
	for _, x := range []struct {
		name string
		do   func() bool
	}{
		{"save", func() bool { return len(board.near.save(s)) == len(state) }},
		{"restore", func() bool { return board.near.restore(s, state, nil) }},
		{"encode", func() bool { p, err := message.Encode(); return err == nil && len(p) == len(bytes) }},
		{"decode", func() bool { s, err := pool.Decode(bytes); return err == nil && len(s.Asks[0].State) == len(state) }},
	} {
		b.Run(x.name, func(b *testing.B) {
			b.ReportMetric(float64(len(state)), "bytes")
			for range b.N {
				if !x.do() {
					b.Fatal("it fails")
				}
			}
		})
	}
}
