package snic

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/snic/dag"
	"github.com/quillon/quillon/snic/pool"
)

// trio is DAGs of source 1 to 4 for boards with so many regions: that of source 2 has state, and that of source 3 a limit. Of two workers
// those of 1 and 4 are at home in the first, and those of 3 and 2 in the second; of three those of 1 and 2 are in the first, that of 3 is
// in the second, and that of 4 in the third.
func trio(regions int) string {
	return fmt.Sprintf(`
regions: {count: %d, area: 1}
tasks:
  m: {kind: mark, args: {letter: m}, reads: [ip-addresses], writes: [payload], area: 1}
  k: {kind: mark, args: {letter: k}, reads: [ip-addresses], writes: [payload], area: 1, throughput: 6Mbit}
  n: {kind: mark, args: {letter: n}, reads: [ip-addresses], writes: [payload], area: 1}
  t: {kind: tally, reads: [ip-addresses], writes: [payload], answers: true, state: true, area: 1}
tenants: {alice: {}, bob: {}, carol: {}, dave: {}}
dags:
  - {uid: 7, tenant: alice, run: m}
  - {uid: 9, tenant: carol, run: k}
  - {uid: 10, tenant: dave, run: n}
  - {uid: 8, tenant: bob, run: t}
rules:
  - {match: "src:10.0.0.1", dag: 7}
  - {match: "src:10.0.0.2", dag: 8}
  - {match: "src:10.0.0.3", dag: 9}
  - {match: "src:10.0.0.4", dag: 10}
`, regions)
}

// sequence is frame n of a flow of a source.
func sequence(src byte, flow, n int) []byte {
	f := frame(src, fmt.Sprintf("%06d", n))
	binary.BigEndian.PutUint16(f[34:], uint16(flow))
	return f
}

// streams are what was sent of each flow of each source, and came out.
type streams struct {
	t          *testing.T
	r          *rack
	number     int // of flows of a source
	next       [5]int
	sent, last map[[2]int]int
	out        [5]int // frames
}

func (f *streams) send(src int) {
	k := [2]int{src, f.next[src] % f.number}
	f.next[src]++
	f.sent[k]++
	f.r.push(0, "p0", sequence(byte(src), k[1], f.sent[k]))
}

// check takes what came out: of each flow all of it, in order.
func (f *streams) check(exact bool) {
	f.t.Helper()
	for _, x := range f.r.flush(0, "p1") {
		k := [2]int{int(x.Bytes[29]), int(binary.BigEndian.Uint16(x.Bytes[34:]))}
		var n int
		if _, err := fmt.Sscanf(string(x.Bytes[42:48]), "%06d", &n); err != nil || n <= f.last[k] || exact && n != f.last[k]+1 {
			f.t.Fatalf("of source %d, flow %d, frame %d follows %d: %v", k[0], k[1], n, f.last[k], f.drops())
		}
		f.last[k] = n
		f.out[k[0]]++
		if want := "?mtkn"[k[0]]; want == 't' {
			if got := int(binary.BigEndian.Uint16(x.Bytes[48:])); exact && got != f.out[2] {
				f.t.Fatalf("frame %d is number %d of the state", f.out[2], got)
			}
		} else if x.Bytes[48] != want {
			f.t.Fatalf("a frame of source %d has run through %q", k[0], x.Bytes[48:])
		}
	}
}

func (f *streams) drops() (all []map[string]int) {
	for _, m := range f.r.members {
		all = append(all, m.drop)
	}
	return all
}

// TestPeerWorkers: boards of a pool that have several workers. DAGs go to other boards and come back, regions scale, and boards leave: no frame is
// lost, none of a flow passes another, and each is counted by one instance of the state.
func TestPeerWorkers(t *testing.T) {
	seen := map[string]int{}
	seeds := uint64(16)
	if testing.Short() {
		seeds = 6
	}
	for seed := range seeds {
		for _, workers := range []int{2, 3} {
			t.Run(fmt.Sprintf("%d/%d", seed, workers), func(t *testing.T) { peerWorkers(t, seed, workers, seen) })
		}
	}
	for _, what := range []string{"away 7", "away 8", "away 9", "away 10", "from another worker", "of a peer", "several at once"} {
		if seen[what] == 0 {
			t.Errorf("it never came to: %s: %v", what, seen)
		}
	}
	t.Log(seen)
}

func peerWorkers(t *testing.T, seed uint64, workers int, seen map[string]int) {
	rng := rand.New(rand.NewPCG(seed, uint64(workers)))
	most := workers * (1 + int(seed%2))
	texts := []string{trio(most), trio(most + rng.IntN(3)), trio(2*workers + rng.IntN(5)), trio(4 * workers)}
	r := newRackOf(t, workers, texts, "idle", "15ms", "fair", "off", "store", "4M", "flows", "4096")
	r.rng = rng
	r.run(20 * time.Millisecond)
	f := &streams{t: t, r: r, number: 1 + rng.IntN(16), sent: map[[2]int]int{}, last: map[[2]int]int{}}
	if seed%4 == 3 {
		f.number = 1000
	}
	var gap [5]int // in slices; 0: none
	n := 0
	traffic := func() {
		n++
		for src := 1; src <= 4; src++ {
			if gap[src] > 0 && n%gap[src] == 0 {
				f.send(src) // with a gap of 1 it is 8 Mbit/s
			}
		}
	}
	for range 14 {
		for i := range gap {
			gap[i] = rng.IntN(3) * (1 + rng.IntN(6))
		}
		for range 6 {
			r.run(time.Duration(rng.IntN(20))*time.Millisecond, traffic)
			for _, b := range r.members[0].boards() {
				for _, a := range b.poolView().Away {
					if a.State == "there" {
						seen[fmt.Sprintf("away %d", a.UID)]++
					}
				}
			}
		}
		if m := r.members[1+rng.IntN(3)]; rng.IntN(3) == 0 && !m.dead {
			r.do(m)(func(n *pool.Node, now clock.Time) { n.Leave(now) })
			for k := 0; !m.node.Left(); k++ {
				if k == 4000 {
					t.Fatalf("a board does not come to leave: %v", m.node.Guests())
				}
				r.run(slice, traffic)
			}
			r.run(time.Millisecond, traffic)
			m.dead = true
		} else if i := slices.Index(r.members, m); m.dead {
			r.start(i, texts[i])
		}
	}
	clear(gap[:])
	r.run(700 * time.Millisecond)
	f.check(true)
	all := 0
	for k, sent := range f.sent {
		if all += sent; f.last[k] != sent {
			t.Errorf("of flow %v, %d of %d came out: %v", k, f.last[k], sent, f.drops())
		}
	}
	t.Logf("%d frames of %d flows", all, len(f.sent))
	r.quiet(seen)
}

// quiet checks that nothing is under way.
func (r *rack) quiet(seen map[string]int) {
	r.t.Helper()
	for i, m := range r.members {
		if m.dead {
			continue
		}
		for w, b := range m.boards() {
			if p := b.near.pool; p.served > 0 && w > 0 {
				seen["of a peer"]++
			}
			for n := range b.cat.services {
				s := &b.cat.services[n]
				if s.where.underWay() {
					r.t.Errorf("board %d, worker %d: DAG %d still waits: %+v", i, w, n, s.where)
				}
				if s.lodge.frames > 0 && b.near.pool.sent > 0 {
					seen["from another worker"]++
				}
				if w > 0 && s.UID != 0 && s.packets > 0 && s.where.phase == here && r.members[0].boards()[0].near.pool.sent > 0 {
					seen["several at once"]++
				}
			}
			if b.stock.inside > 0 || b.gates.late > 0 {
				r.t.Errorf("board %d, worker %d: %d packets are inside", i, w, b.stock.inside)
			}
			if err := b.runner.sched.Check(); err != nil {
				r.t.Errorf("board %d, worker %d: %v", i, w, err)
			}
		}
	}
}

// TestPeerWorkersDeploy: boards of several workers die, and are given other deployments: no frame is there twice, and when all is well again
// all frames pass.
func TestPeerWorkersDeploy(t *testing.T) {
	seeds := uint64(8)
	if testing.Short() {
		seeds = 3
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 5))
			texts := []string{trio(2), trio(3), trio(8)}
			r := newRackOf(t, 2, texts, "idle", "15ms", "fair", "off", "store", "4M")
			r.rng, r.lose = rng, rng.IntN(20)
			r.run(20 * time.Millisecond)
			f := &streams{t: t, r: r, number: 1 + rng.IntN(16), sent: map[[2]int]int{}, last: map[[2]int]int{}}
			n := 0
			traffic := func() {
				if n++; n%3 == 0 {
					f.send(1 + rng.IntN(4))
				}
			}
			for range 10 {
				r.run(time.Duration(rng.IntN(60))*time.Millisecond, traffic)
				switch i := 1 + rng.IntN(2); rng.IntN(4) {
				case 0:
					r.members[i].dead = true
				case 1:
					r.start(i, texts[i])
				case 2:
					speed := []string{"6Mbit", "9Mbit"}[rng.IntN(2)]
					for k, m := range r.members {
						texts[k] = strings.Replace(trio([]int{2, 3, 8}[k]), "letter: n}", "letter: n}, throughput: "+speed, 1)
						texts[k] = strings.Replace(texts[k], "carol: {}", fmt.Sprintf("carol: {weight: %d}", 1+rng.IntN(2)), 1)
						args := graph.Args{"deployment": texts[k], "pool-port": "p14", "idle": "15ms", "fair": "off", "store": "4M"}
						if err := m.player().Set(args); err != nil {
							t.Fatal(err)
						}
						if rng.IntN(2) == 0 {
							r.run(time.Duration(rng.IntN(3))*slice, traffic)
						}
					}
				}
			}
			r.lose = 0
			for i, m := range r.members {
				if m.dead {
					r.start(i, texts[i])
				}
			}
			for i, m := range r.members {
				args := graph.Args{"deployment": trio([]int{2, 3, 8}[i]), "pool-port": "p14", "idle": "15ms", "fair": "off", "store": "4M"}
				if err := m.player().Set(args); err != nil {
					t.Fatal(err)
				}
			}
			r.run(300 * time.Millisecond)
			seen := map[string]bool{}
			for _, x := range r.flush(0, "p1") {
				if key := string(x.Bytes[29:48]); seen[key] {
					t.Fatalf("a frame comes twice: %q", key)
				} else {
					seen[key] = true
				}
			}
			f.last = maps.Clone(f.sent)
			r.run(50*time.Millisecond, traffic)
			r.run(200 * time.Millisecond)
			f.check(false)
			for k, sent := range f.sent {
				if f.last[k] != sent {
					t.Errorf("when all is well, of flow %v %d of %d came out: %v", k, f.last[k], sent, f.drops())
				}
			}
			r.quiet(map[string]int{})
		})
	}
}

// TestPeerWorkersOwnState: a board that has frames of its own of a DAG with state does not take it from another board, though they came in by a
// worker that hands them over.
func TestPeerWorkersOwnState(t *testing.T) {
	r := newRackOf(t, 2, []string{trio(8)}, "idle", "15ms")
	r.run(20 * time.Millisecond)
	home := r.members[0].boards()[1]
	at := slices.IndexFunc(home.deployment.DAGs, func(d dag.DAG) bool { return d.UID == 8 })
	if home.near.closed(at) {
		t.Fatal("it is closed before a frame has come")
	}
	for flow := range 2 { // one comes in by each worker
		r.members[0].crew.push(1-flow, 0, sequence(2, flow, 1))
		r.run(5 * time.Millisecond)
		if !home.near.closed(at) {
			t.Errorf("after a frame by worker %d another board may run it here", 1-flow)
		}
	}
}

// TestStateInTurn: DAGs with state that may go to a peer are at home in all workers in turn, each in one; those that have such a task in
// common are in the same one, and those with a task that is in the first worker alone are there.
func TestStateInTurn(t *testing.T) {
	const text = `
regions: {count: 8, area: 2}
tasks:
  a: {kind: tally, reads: [ip-addresses], writes: [payload], answers: true, state: true, area: 1}
  b: {kind: tally, reads: [ip-addresses], writes: [payload], answers: true, state: true, area: 1}
  c: {kind: tally, reads: [ip-addresses], writes: [payload], answers: true, state: true, area: 1}
  h: {kind: hoard, state: true, area: 1, memory: 64k}
tenants: {u: {}}
dags:
  - {uid: 1, tenant: u, run: a}
  - {uid: 2, tenant: u, run: b}
  - {uid: 3, tenant: u, run: %s}
  - {uid: 4, tenant: u, run: %s}
rules:
  - {match: "src:10.0.0.1", dag: 1}
  - {match: "src:10.0.0.2", dag: 2}
  - {match: "src:10.0.0.3", dag: 3}
  - {match: "src:10.0.0.4", dag: 4}
`
	for _, x := range []struct {
		third, fourth string
		homes         [4]int
	}{
		{"c", "c", [4]int{0, 1, 0, 0}},
		{"c -> b", "c", [4]int{0, 1, 1, 1}},
		{"b -> h", "c", [4]int{0, 0, 0, 1}},
	} {
		t.Run(x.third+", "+x.fourth, func(t *testing.T) {
			r := newRackOf(t, 2, []string{fmt.Sprintf(text, x.third, x.fourth)}, "memory", "1M", "page", "4k", "fair", "off")
			r.run(20 * time.Millisecond)
			for i := range 40 {
				r.members[0].crew.push(i/4%2, 0, sequence(byte(1+i%4), i, i))
				r.run(slice)
			}
			for w, b := range r.members[0].boards() {
				for n, home := range x.homes {
					s := &b.cat.services[n]
					if s.lodge.home != home || (s.where.to == 0) != (w == home) {
						t.Errorf("worker %d: the home of DAG %d is %d, want %d; it runs at %d", w, n+1, s.lodge.home, home, s.where.to)
					}
				}
			}
			counts := map[byte]uint16{}
			for _, f := range r.flush(0, "p1") {
				if src := f.Bytes[29]; src <= 2 && !strings.Contains(x.third, "b") {
					if counts[src]++; binary.BigEndian.Uint16(f.Bytes[48:]) != counts[src] {
						t.Errorf("frame %d of source %d has number %d", counts[src], src, binary.BigEndian.Uint16(f.Bytes[48:]))
					}
				}
			}
			if len(counts) == 0 && !strings.Contains(x.third, "b") {
				t.Error("no frame came out")
			}
		})
	}
}

// TestStateLater: a DAG that comes later goes where what its tasks know is, and one that would need it from two workers is refused.
func TestStateLater(t *testing.T) {
	text := func(more string) graph.Args {
		return graph.Args{"pool-port": "p14", "fair": "off", "deployment": `
regions: {count: 8, area: 3}
tasks:
  a: {kind: tally, reads: [ip-addresses], writes: [payload], answers: true, state: true, area: 1}
  b: {kind: tally, reads: [ip-addresses], writes: [payload], answers: true, state: true, area: 1}
  c: {kind: tally, reads: [ip-addresses], writes: [payload], answers: true, state: true, area: 1}
  m: {kind: mark, args: {letter: m}, reads: [ip-addresses], writes: [payload], area: 1}
tenants: {u: {}}
dags:
  - {uid: 1, tenant: u, run: a}
  - {uid: 2, tenant: u, run: b}
  - {uid: 3, tenant: u, run: m}
` + more + `
rules: [{match: "src:10.0.0.1", dag: 1}, {match: "src:10.0.0.2", dag: 2}]
`}
	}
	x := newCrew(t, memoryKinds(), 2, text("  - {uid: 4, tenant: u, run: m}"))
	x.advance(20 * time.Millisecond)
	for _, c := range []struct{ more, want string }{
		{"  - {uid: 5, tenant: u, run: a -> b}", "DAG 2 runs in worker 1, and what its tasks know is in worker 0 alone: take the DAG out, and deploy it anew"},
		{"  - {uid: 4, tenant: u, run: c}", "DAG 4 may run in several workers, and its task c is in one alone: take the DAG out, and deploy it anew"},
		{"  - {uid: 5, tenant: u, run: b -> c}", ""},
	} {
		if err := x.Set(text(c.more)); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.more, err, c.want)
		}
	}
	x.advance(20 * time.Millisecond)
	for w, b := range x.boards() {
		for _, n := range b.cat.dagOf {
			if s := &b.cat.services[n]; s.UID == 5 && s.lodge.home != 1 {
				t.Errorf("worker %d: the home of the DAG that came is %d", w, s.lodge.home)
			}
		}
	}
}

// TestReserveByWorker: what is promised to a peer is a region of the worker that runs its DAG.
func TestReserveByWorker(t *testing.T) {
	p := NewPeering(0, [6]byte{})
	chain := pool.Chain{Area: 1}
	p.now = &boardState{chains: []pool.Chain{chain, chain}, closed: make([]bool, 2), homes: []int{0, 1}, ends: []int{1, 3}, info: pool.Info{Regions: []int{1, 1, 1}}}
	for i, c := range []struct {
		chain int
		want  bool
	}{{0, true}, {0, false}, {1, true}, {1, true}, {1, false}} {
		if got := p.Reserve(0, pool.Lease{Owner: 1, ID: uint32(i + 1)}, c.chain, 1); got != c.want {
			t.Errorf("request %d, for chain %d: %v", i, c.chain, got)
		}
	}
}

// TestToldTogether: what workers say while they do not all have the same deployment in force is told when they have, if it is of that.
func TestToldTogether(t *testing.T) {
	p := NewPeering(0, [6]byte{})
	part := func(deployment uint64, ids ...int) *boardState {
		x := &boardState{deployment: deployment, homes: []int{0, 1}, closed: []bool{len(ids) > 0, true}, fresh: deployment == 1, info: pool.Info{Regions: []int{len(ids)}, Load: 1}}
		for _, id := range ids {
			x.say = append(x.say, notice{kind: wants, id: id})
		}
		return x
	}
	said := func(t *boardState) (ids []int) {
		for _, s := range t.say {
			ids = append(ids, s.id)
		}
		return ids
	}
	p.talk.workers = 2
	for i, c := range []struct {
		parts []*boardState
		want  []int // nil: nothing is told
	}{
		{[]*boardState{part(1, 1)}, nil},
		{[]*boardState{part(2, 2), part(1, 3)}, nil},
		{[]*boardState{part(2, 4), part(2, 5)}, []int{2, 4, 5}},
		{[]*boardState{part(2), part(2, 6)}, []int{6}},
	} {
		p.talk.parts = c.parts
		got := p.together()
		if got == nil && c.want == nil {
			continue
		}
		if got == nil || !slices.Equal(said(got), c.want) {
			t.Fatalf("%d: told %+v, want %v", i, got, c.want)
		}
		if i == 2 && (!got.fresh || got.info.Load != 2 || !slices.Equal(got.info.Regions, []int{1, 1}) || !slices.Equal(got.closed, []bool{true, true})) {
			t.Errorf("told %+v", got)
		}
		if i == 3 && got.fresh {
			t.Error("it is fresh twice")
		}
	}
}

// TestAbroad: a worker does not run a DAG that it hands over while that is abroad, though it has a free region; if it is on its way from there, it
// goes back. No frame is lost, and none passes another.
func TestAbroad(t *testing.T) {
	for _, c := range []struct {
		name string
		when phase // the DAG is abroad from then on
		ends phase
	}{{"never", held, here}, {"before", away, away}, {"under way", returning, away}} {
		t.Run(c.name, func(t *testing.T) {
			x := newCrew(t, peerKinds(), 2, graph.Args{"deployment": trio(2), "idle": "15ms", "victims": "0"})
			x.advance(20 * time.Millisecond)
			w := x.board(1)
			n := slices.IndexFunc(w.cat.services, func(s service) bool { return s.UID == 7 })
			s := &w.cat.services[n]
			if s.where.phase != away || s.lodge.home != 0 {
				t.Fatalf("at first it is %+v", s.where)
			}
			x.push(1, 0, sequence(3, 0, 1)) // what is in the worker's region is used, and then idle
			sent := 0
			for range 3000 {
				if s.where.phase == c.when {
					w.cat.house.abroad[n].Store(true)
				}
				sent++
				x.push(1, 0, sequence(1, 0, sent))
				x.advance(20 * time.Microsecond)
			}
			x.advance(time.Millisecond)
			if s.where.phase != c.ends {
				t.Errorf("in the end it is %+v", s.where)
			}
			out := slices.DeleteFunc(x.Result().Out["p1"], func(f graphtest.Frame) bool { return f.Bytes[29] == 3 })
			for i, f := range out {
				if got := string(f.Bytes[42:48]); got != fmt.Sprintf("%06d", i+1) {
					t.Fatalf("frame %d is %s", i+1, got)
				}
			}
			if len(out) != sent {
				t.Errorf("%d of %d came out", len(out), sent)
			}
		})
	}
}
