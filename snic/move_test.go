package snic

import (
	"encoding/binary"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/snic/pool"
)

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
			b.tasks[b.services[b.dagOf[1]].tasks[0]].app.(*hoard).n = 9
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
		b.tasks[b.services[b.dagOf[1]].tasks[0]].app.(*hoard).n = 3
		r.do(m)(func(n *pool.Node, now clock.Time) { n.Leave(now) })
		if what, stuck := m.join.Remains(m.node); len(what) != 1 || stuck {
			t.Errorf("what remains while it leaves: %q, stuck %v", what, stuck)
		}
		r.run(60 * time.Millisecond)
		home := r.members[0].App().(*board)
		if n := home.tasks[home.services[home.dagOf[1]].tasks[0]].app.(*hoard).n; n != 3 {
			t.Errorf("home came %d, want 3", n)
		}
		if what, _ := m.join.Remains(m.node); len(what) != 0 {
			t.Errorf("what remains at last: %q; it is %s", what, r.state(0, 8))
		}
	}
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
	s := &board.services[board.dagOf[0]]
	state := board.save(s)
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
		{"save", func() bool { return len(board.save(s)) == len(state) }},
		{"restore", func() bool { return board.restore(s, state) }},
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
