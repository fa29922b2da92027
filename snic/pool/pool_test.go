package pool

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/quillon/quillon/nf/clock"
)

const ms = clock.Time(time.Millisecond)

// region of a board.
type region struct {
	area  int
	used  bool
	lease Lease // {} : the board's own
	chain int
	state string // of the hosted chain: reserved, loading, ready, saving
	until clock.Time
}

// board is a Host, and the body of its Node.
type board struct {
	*Node
	x       *rack
	id      int
	dead    bool
	regions []region
	wants   map[int]*wanted
	refused map[int]Reason
	returns map[int]clock.Time // launched here until
	bad     []string
	lost    []int
	lossy   int    // wants that came home without their state
	copy    string // what the last of these had
}

// wanted is a want as its owner's body knows it.
type wanted struct {
	chain  int
	at     int // redirected to; -1: nowhere
	paused bool
	copy   string // of its state, that it got with the word that its peer is gone
}

func (b *board) oops(format string, a ...any) { b.bad = append(b.bad, fmt.Sprintf(format, a...)) }

func (b *board) Reserve(now clock.Time, l Lease, chain int, rate float64) bool {
	if b.x.decline > 0 && b.x.rng.IntN(100) < b.x.decline {
		return false
	}
	best := -1
	for i, r := range b.regions {
		if r.lease == l && r.used {
			b.oops("%v is reserved twice", l)
		}
		if !r.used && r.area >= b.Chains[chain].Area && (best < 0 || r.area < b.regions[best].area) {
			best = i
		}
	}
	if best < 0 {
		return false
	}
	r := &b.regions[best]
	r.used, r.lease, r.chain, r.state, r.until = true, l, chain, "reserved", clock.Never
	b.tell(now)
	return true
}

func (b *board) of(l Lease) *region {
	for i := range b.regions {
		if r := &b.regions[i]; r.used && r.lease == l {
			return r
		}
	}
	b.oops("%v has no region", l)
	return &region{}
}

func (b *board) Load(now clock.Time, l Lease, chain int) {
	r := b.of(l)
	if r.state != "reserved" || r.chain != chain {
		b.oops("%v: chain %d is loaded into a region that is %s for chain %d", l, chain, r.state, r.chain)
	}
	r.state, r.until = "loading", now+5*ms
}

func (b *board) Restore(now clock.Time, l Lease, state []byte) {
	r := b.of(l)
	if r.state != "ready" || !b.Chains[r.chain].Hand || string(state) != fmt.Sprint("home of ", r.chain, b.x.pad) {
		b.oops("%v of chain %d, which is %s, is given %q", l, r.chain, r.state, state)
	}
	b.x.handed++
	r.state, r.until = "restoring", now+ms
}

func (b *board) Save(now clock.Time, l Lease) {
	r := b.of(l)
	want := "ready"
	if b.Chains[r.chain].Hand {
		want = "serving"
	}
	if r.state != want || !b.Chains[r.chain].Stateful {
		b.oops("%v is saved while %s", l, r.state)
	}
	r.state, r.until = "saving", now+ms
}

func (b *board) Release(now clock.Time, l Lease) {
	r := b.of(l)
	r.used, r.lease = false, Lease{}
	b.tell(now)
}

func (b *board) tell(now clock.Time) {
	info := Info{Pages: 10 + b.id, Load: float64(b.id)}
	for _, r := range b.regions {
		if !r.used {
			info.Regions = append(info.Regions, r.area)
		}
	}
	b.Tell(now, info)
}

// work does what is due on a board, and what its Node says.
func (b *board) work(now clock.Time) {
	for i := range b.regions {
		r := &b.regions[i]
		if !r.used || r.lease == (Lease{}) || now < r.until {
			continue
		}
		r.until = clock.Never
		switch r.state {
		case "loading":
			if b.x.fail > 0 && b.x.rng.IntN(100) < b.x.fail {
				l := r.lease
				r.used, r.lease = false, Lease{}
				if !b.Failed(now, l) {
					b.oops("%v cannot fail", l)
				}
				b.tell(now)
				continue
			}
			r.state = "ready"
			if !b.Ready(now, r.lease) {
				b.oops("%v is ready, and not known", r.lease)
			}
		case "restoring":
			r.state = "serving"
			if b.x.fail > 0 && b.x.rng.IntN(100) < b.x.fail {
				l := r.lease
				r.used, r.lease = false, Lease{}
				if !b.Failed(now, l) {
					b.oops("%v cannot fail", l)
				}
				b.tell(now)
			} else if !b.Restored(now, r.lease) {
				b.oops("%v has its state, and is not known", r.lease)
			}
		case "saving":
			r.state = "saved"
			b.x.tries++
			if len(b.x.pad) > b.most {
				r.state = "serving"
				if !b.Kept(now, r.lease) {
					b.oops("%v is kept, and not known", r.lease)
				}
			} else if !b.Saved(now, r.lease, []byte(fmt.Sprint("state of ", r.chain, b.x.pad))) {
				b.oops("%v is saved, and not known", r.lease)
			}
		}
	}
	for id, at := range b.returns {
		if now >= at {
			delete(b.returns, id)
			if _, ok := b.wants[id]; ok && !b.Local(now, id) {
				b.oops("want %d cannot come back", id)
			}
		}
	}
	b.Advance(now)
	for _, e := range b.Events() {
		w := b.wants[e.Want]
		if w == nil && e.Kind != PeerUp && e.Kind != PeerLost {
			b.oops("%v of want %d, which is not there", e.Kind, e.Want)
			continue
		}
		switch e.Kind {
		case Redirect:
			if w.at >= 0 || w.paused != (b.Chains[w.chain].Hand || e.Reason == TooMuch) {
				b.oops("want %d is redirected to %d, and was to %d", e.Want, e.Peer, w.at)
			}
			w.at, w.paused = e.Peer, false
		case Unredirect:
			if w.at != e.Peer {
				b.oops("want %d is no longer redirected to %d, it was to %d", e.Want, e.Peer, w.at)
			}
			w.at, w.copy = -1, string(e.State)
		case NoPeer:
			if w.at >= 0 || w.paused && !b.Chains[w.chain].Hand {
				b.oops("want %d is refused while it runs", e.Want)
			}
			b.refused[e.Want] = e.Reason
			delete(b.wants, e.Want)
		case Return:
			if slices.ContainsFunc(b.regions, func(r region) bool { return !r.used && r.area >= b.Chains[w.chain].Area }) && b.x.rng.IntN(4) > 0 {
				b.occupy(b.Chains[w.chain].Area)
				b.tell(now)
				b.returns[e.Want] = now + 5*ms
			} else if !b.Stay(now, e.Want) {
				b.oops("want %d cannot stay", e.Want)
			}
		case Pause:
			w.paused = true
			if w.at < 0 && !b.Hand(now, e.Want, []byte(fmt.Sprint("home of ", w.chain, b.x.pad))) {
				b.oops("want %d cannot hand over", e.Want)
			}
		case Resume:
			stateful := b.Chains[w.chain].Stateful
			if w.at >= 0 || e.Lost && !stateful || stateful && !e.Lost && (!w.paused || string(e.State) != fmt.Sprint("state of ", w.chain, b.x.pad)) {
				b.oops("want %d resumes: %+v, %+v", e.Want, w, e)
			}
			b.x.home++
			if e.Lost {
				b.lossy++
				b.copy = string(e.State)
			}
			delete(b.wants, e.Want)
		case PeerLost:
			b.lost = append(b.lost, e.Peer)
		}
	}
}

// occupy takes a region for the board's own use.
func (b *board) occupy(area int) {
	for i := range b.regions {
		if r := &b.regions[i]; !r.used && r.area >= area {
			r.used, r.lease = true, Lease{}
			return
		}
	}
}

// free gives one of the board's own regions back.
func (b *board) free(now clock.Time) {
	for i := range b.regions {
		if r := &b.regions[i]; r.used && r.lease == (Lease{}) {
			r.used = false
			b.tell(now)
			b.Freed(r.area)
			return
		}
	}
}

type flight struct {
	at   clock.Time
	s    *State
	sent func() // a word to its sender; nil: none
}

// rack is boards and a network in virtual time.
type rack struct {
	t        fataler
	now      clock.Time
	rng      *rand.Rand
	cfg      Config
	areas    []int
	boards   []*board
	incs     uint64
	net      []flight
	lose     int // of 100
	repeat   int
	late     int
	decline  int
	fail     int
	cut      map[[2]int]bool
	pad      string     // what chains know, more
	slow     clock.Time // what long messages take, of which each board sends one at a time to another
	states   int        // that were in messages, and are long
	home     int
	tries    int
	handed   int
	nextWant int
}

type fataler interface {
	Helper()
	Fatalf(string, ...any)
}

var chains = []Chain{{Area: 1, Bitstream: 1 << 20}, {Area: 2, Bitstream: 4 << 20, Stateful: true}, {Area: 3, Bitstream: 2 << 20, Stateful: true, Hand: true}}

func newRack(t fataler, topology Topology, areas []int, seed uint64) *rack {
	x := &rack{t: t, rng: rand.New(rand.NewPCG(seed, 3)), now: 1000 * ms, areas: areas, cut: map[[2]int]bool{}, cfg: Config{Topology: topology, Chains: chains}}
	for i := range topology.nodes() {
		x.boards = append(x.boards, nil)
		x.start(i)
	}
	return x
}

// start starts a board, anew if it was there.
func (x *rack) start(i int) {
	b := &board{x: x, id: i, wants: map[int]*wanted{}, refused: map[int]Reason{}, returns: map[int]clock.Time{}}
	c := x.cfg
	x.incs++
	c.Board, c.Inc, c.Host = i, x.incs, b
	if i == c.Topology.Switch() {
		c.Host = nil
	} else {
		for _, a := range x.areas {
			b.regions = append(b.regions, region{area: a})
		}
	}
	n, err := New(x.now, c)
	if err != nil {
		x.t.Fatalf("%v", err)
	}
	b.Node = n
	b.tell(x.now)
	x.boards[i] = b
}

// step runs what happens next, at most d from now.
func (x *rack) step(d clock.Time) {
	next := x.now + d
	for _, f := range x.net {
		next = min(next, f.at)
	}
	for _, b := range x.boards {
		if b.dead {
			continue
		}
		next = min(next, b.Next())
		for _, r := range b.regions {
			if r.used && r.lease != (Lease{}) {
				next = min(next, r.until)
			}
		}
		for _, at := range b.returns {
			next = min(next, at)
		}
	}
	x.now = max(x.now, next)
	var now []flight
	x.net = slices.DeleteFunc(x.net, func(f flight) bool {
		if f.at <= x.now {
			now = append(now, f)
		}
		return f.at <= x.now
	})
	for _, f := range now {
		if f.sent != nil {
			f.sent()
			continue
		}
		if b := x.boards[f.s.To]; !b.dead {
			b.Input(x.now, f.s)
			b.work(x.now)
		}
	}
	for _, b := range x.boards {
		if b.dead {
			continue
		}
		b.work(x.now)
		for s := b.Poll(x.now); s != nil; s = b.Poll(x.now) {
			x.send(s)
		}
		if b.bad != nil {
			x.t.Fatalf("board %d at %d: %s", b.id, x.now, strings.Join(b.bad, "; "))
		}
	}
}

func (x *rack) send(s *State) {
	long := 0
	for _, a := range s.Asks {
		long += len(a.State) / (shortState + 1)
	}
	for _, a := range s.Answers {
		long += len(a.State) / (shortState + 1)
	}
	if x.slow > 0 && long > 0 {
		x.states++
		b, ok := x.boards[s.From], !x.cut[[2]int{s.From, s.To}] && x.rng.IntN(100) >= x.lose
		b.Sending(s.To)
		p, err := s.Encode()
		if err != nil {
			x.t.Fatalf("%v", err)
		}
		copied, err := Decode(p)
		if err != nil {
			x.t.Fatalf("%v", err)
		}
		x.net = append(x.net, flight{x.now + x.slow, nil, func() { b.Sent(x.now, copied.To, ok) }})
		if ok { // others that follow it overtake it
			x.net = append(x.net, flight{x.now + x.slow + ms/2, copied, nil})
		}
		return
	}
	if x.cut[[2]int{s.From, s.To}] || x.rng.IntN(100) < x.lose {
		return
	}
	p, err := s.Encode()
	if states := len(x.pad) > 0 && x.boards[s.From].most < len(p)-1<<11; err != nil || states {
		x.t.Fatalf("%d bytes, %v", len(p), err)
	}
	for range 1 + x.rng.IntN(100)/(100-x.repeat) {
		copied, err := Decode(p)
		if err != nil {
			x.t.Fatalf("%v", err)
		}
		at := x.now + clock.Time(time.Duration(1+x.rng.IntN(20))*time.Microsecond)
		if x.rng.IntN(100) < x.late {
			at += clock.Time(x.rng.IntN(int(3 * ms)))
		}
		x.net = append(x.net, flight{at, copied, nil})
	}
}

func (x *rack) want(i, chain int, rate float64) int {
	b := x.boards[i]
	x.nextWant++
	b.wants[x.nextWant] = &wanted{chain: chain, at: -1}
	if err := b.Want(x.now, x.nextWant, chain, rate); err != nil {
		x.t.Fatalf("%v", err)
	}
	return x.nextWant
}

func (x *rack) unwant(i, id int) {
	if x.boards[i].Unwant(x.now, id) {
		delete(x.boards[i].wants, id)
	}
}

func (x *rack) run(d clock.Time) {
	for end := x.now + d; x.now < end; {
		x.step(end - x.now)
	}
}

// settle ends all faults and waits; then every want that is left runs at a peer,
// each lease is wanted, and all know all.
func (x *rack) settle() {
	x.t.Helper()
	x.lose, x.repeat, x.late, x.decline, x.fail = 0, 0, 0, 0, 0
	clear(x.cut)
	x.run(100 * ms)
	leases := map[Lease]int{}
	for i, b := range x.boards {
		if b.dead {
			continue
		}
		for _, r := range b.regions {
			if r.used && r.lease != (Lease{}) {
				leases[r.lease] = i
				if r.state != "ready" && r.state != "serving" {
					x.t.Fatalf("board %d: %v is %s", i, r.lease, r.state)
				}
			}
		}
	}
	for i, b := range x.boards {
		if b.dead {
			continue
		}
		for id, w := range b.wants {
			at, _ := b.find(id)
			l := Lease{i, b.Inc, b.Node.wants[at].ask}
			if where, ok := leases[l]; w.at < 0 || !ok || where != w.at || b.Where(id) != w.at {
				x.t.Fatalf("board %d: want %d is at %d, its lease at %d, %v", i, id, w.at, where, ok)
			}
			delete(leases, l)
		}
		if len(b.Node.wants) != len(b.wants) {
			x.t.Fatalf("board %d has %d wants, its body %d", i, len(b.Node.wants), len(b.wants))
		}
		for j, o := range x.boards {
			if i == j {
				continue
			}
			if p := b.View(j); p.Alive == o.dead || !o.dead && fmt.Sprint(p.Info) != fmt.Sprint(o.info) {
				x.t.Fatalf("board %d knows of %d: %+v, which is %+v, dead %v", i, j, p, o.info, o.dead)
			}
		}
	}
	if len(leases) != 0 {
		x.t.Fatalf("%v are nobody's", leases)
	}
}

func TestConservation(t *testing.T) {
	home, refused, redirected := 0, 0, 0
	for range 5 {
		rapid.Check(t, func(t *rapid.T) {
			n := rapid.IntRange(2, 5).Draw(t, "boards")
			topology := rapid.SampledFrom([]Topology{Intermediate(n, true), Intermediate(n, false), SwitchAttached(n)}).Draw(t, "topology")
			areas := rapid.SampledFrom([][]int{{3}, {1, 3}, {2, 2, 3}, {3, 3, 3, 3}}).Draw(t, "regions")
			x := newRack(t, topology, areas, rapid.Uint64().Draw(t, "seed"))
			some := func(what string, most int) int {
				return max(0, rapid.IntRange(-most, most).Draw(t, what))
			}
			x.lose, x.repeat, x.late = some("lose", 40), some("repeat", 40), some("late", 40)
			x.decline, x.fail = some("decline", 40), some("fail", 40)
			x.run(5 * ms)
			for range rapid.IntRange(5, 40).Draw(t, "rounds") {
				i := rapid.IntRange(0, len(x.boards)-1).Draw(t, "board")
				b := x.boards[i]
				switch rapid.IntRange(0, 12).Draw(t, "what") {
				case 0, 1, 2, 3:
					if !b.dead {
						x.want(i, rapid.IntRange(0, 2).Draw(t, "chain"), float64(x.rng.IntN(9)))
					}
				case 4:
					for id := range b.wants {
						if _, back := b.returns[id]; !back && !b.dead {
							x.unwant(i, id)
						}
						break
					}
				case 5:
					if !b.dead {
						b.occupy(1)
						b.tell(x.now)
					}
				case 6, 7:
					if !b.dead {
						b.free(x.now)
					}
				case 8:
					b.dead = true
				case 9:
					if b.dead || rapid.Bool().Draw(t, "sudden") {
						x.start(i)
					}
				case 10:
					j := rapid.IntRange(0, len(x.boards)-1).Draw(t, "other")
					x.cut[[2]int{i, j}] = true
					if rapid.Bool().Draw(t, "both ways") {
						x.cut[[2]int{j, i}] = true
					}
				case 11:
					clear(x.cut)
				case 12:
					if !b.dead && i != topology.Switch() {
						b.Leave(x.now)
					}
				}
				x.run(clock.Time(rapid.IntRange(0, 12000).Draw(t, "us")) * clock.Time(time.Microsecond))
			}
			x.settle()
			home += x.home
			for _, b := range x.boards {
				refused += len(b.refused)
				redirected += len(b.wants)
			}
		})
	}
	if home == 0 || refused == 0 || redirected == 0 {
		t.Errorf("%d came home, %d refused, %d redirected: want some of each", home, refused, redirected)
	}
}

// TestNearest: who runs the chain, then who is nearest, then who has less to do.
func TestNearest(t *testing.T) {
	at := func(topology Topology, owner int, prepare func(x *rack)) int {
		x := newRack(t, topology, []int{3}, 1)
		x.run(5 * ms)
		if prepare != nil {
			prepare(x)
			x.run(5 * ms)
		}
		id := x.want(owner, 0, 5)
		x.run(30 * ms)
		return x.boards[owner].Where(id)
	}
	busy := func(loads ...float64) func(*rack) {
		return func(x *rack) {
			for i, l := range loads {
				x.boards[i].info.Load = l
			}
		}
	}
	full := func(boards ...int) func(*rack) {
		return func(x *rack) {
			for _, i := range boards {
				x.boards[i].occupy(1)
				x.boards[i].tell(x.now)
			}
		}
	}
	for _, c := range []struct {
		name     string
		topology Topology
		owner    int
		prepare  func(*rack)
		want     int
	}{
		{"ring, both neighbours", Intermediate(6, true), 3, nil, 2},
		{"ring, the less loaded neighbour", Intermediate(6, true), 3, busy(0, 0, 7, 0, 6, 0), 4},
		{"ring, over its end", Intermediate(6, true), 0, full(1), 5},
		{"ring, neighbours full: over the switch all are as near", Intermediate(8, true), 0, func(x *rack) { full(1, 7)(x); busy(0, 0, 5, 5, 4, 5, 5)(x) }, 4},
		{"no ring: least loaded", Intermediate(6, false), 0, busy(0, 9, 9, 9, 8, 9), 4},
		{"switch: least loaded", SwitchAttached(4), 4, busy(5, 4, 3, 6), 2},
		{"runs the chain, though far and busy", Intermediate(6, true), 0, func(x *rack) {
			x.boards[3].info.Chains = []Hosted{{Chain: 0, Left: 5}}
			x.boards[3].info.Load = 1e9
		}, 3},
		{"runs the chain, without bandwidth", Intermediate(6, true), 0, func(x *rack) { x.boards[3].info.Chains = []Hosted{{Chain: 0, Left: 4}} }, 1},
		{"nobody", Intermediate(3, true), 0, full(1, 2), -1},
	} {
		if got := at(c.topology, c.owner, c.prepare); got != c.want {
			t.Errorf("%s: at %d, want %d", c.name, got, c.want)
		}
	}
}

func TestHops(t *testing.T) {
	for _, c := range []struct {
		t          Topology
		a, b, want int
	}{
		{Intermediate(8, true), 0, 1, 1}, {Intermediate(8, true), 0, 7, 1}, {Intermediate(8, true), 2, 6, 2}, {Intermediate(8, false), 2, 3, 2},
		{SwitchAttached(3), 0, 1, 2}, {SwitchAttached(3), 3, 1, 1}, {Intermediate(4, true), 2, 2, 0},
	} {
		if got, back := c.t.Hops(c.a, c.b), c.t.Hops(c.b, c.a); got != c.want || back != c.want {
			t.Errorf("%+v: %d to %d: %d, %d, want %d", c.t, c.a, c.b, got, back, c.want)
		}
	}
}

// TestLastRegion: two boards want the only region left; one gets it, and the other
// is told why not.
func TestLastRegion(t *testing.T) {
	x := newRack(t, Intermediate(3, true), []int{3}, 1)
	x.boards[1].occupy(1)
	x.boards[1].tell(x.now)
	x.boards[2].occupy(1)
	x.boards[2].tell(x.now)
	x.run(5 * ms)
	a, b := x.want(1, 0, 1), x.want(2, 0, 1)
	x.settle()
	if got := x.boards[1].Where(a) + x.boards[2].Where(b); got != -1 {
		t.Errorf("at %d and %d", x.boards[1].Where(a), x.boards[2].Where(b))
	}
	reasons := []Reason{}
	for _, b := range x.boards {
		for _, r := range b.refused {
			reasons = append(reasons, r)
		}
	}
	if !slices.Equal(reasons, []Reason{NoRegion}) && !slices.Equal(reasons, []Reason{Declined}) {
		t.Errorf("refused %v", reasons)
	}
}

// TestTimes: the rule comes when the bitstream was sent and loaded, not before; a
// second bitstream waits for the first.
func TestTimes(t *testing.T) {
	x := newRack(t, Intermediate(2, true), []int{3, 3}, 1)
	x.cfg.Rate = 1e9
	x.start(0)
	x.run(20 * ms)
	from := x.now
	a, b := x.want(0, 1, 1), x.want(0, 1, 1) // 33.6 ms each
	var at [2]clock.Time
	for x.now < from+200*ms {
		x.step(ms)
		for i, id := range []int{a, b} {
			if at[i] == 0 && x.boards[0].Where(id) >= 0 {
				at[i] = x.now - from
			}
		}
	}
	for i := range at {
		want := clock.Time(i+1)*transferTime(4<<20, 1e9) + 5*ms
		if d := at[i] - want; d < 0 || d > ms {
			t.Errorf("bitstream %d is ready after %v, want %v", i, time.Duration(at[i]), time.Duration(want))
		}
	}
}

func transferTime(bytes int64, rate float64) clock.Time {
	return clock.Time(float64(bytes*8) / rate * 1e9)
}

// TestPeerDies: what it ran is run elsewhere, or refused; the rule goes first.
func TestPeerDies(t *testing.T) {
	x := newRack(t, Intermediate(3, true), []int{3}, 1)
	x.run(5 * ms)
	id := x.want(0, 1, 1)
	x.run(30 * ms)
	first := x.boards[0].Where(id)
	x.boards[first].dead = true
	dead := x.now
	for x.boards[0].Where(id) == first {
		x.step(ms)
	}
	if d := x.now - dead; d < 3*ms || d > 6*ms {
		t.Errorf("seen after %v", time.Duration(d))
	}
	if !slices.Equal(x.boards[0].lost, []int{first}) {
		t.Errorf("lost %v, want %d", x.boards[0].lost, first)
	}
	x.settle()
	if at := x.boards[0].Where(id); at != 3-first {
		t.Errorf("at %d, want %d", at, 3-first)
	}
	x.boards[3-first].dead = true
	x.run(50 * ms)
	if r, ok := x.boards[0].refused[id]; !ok || r != Alone {
		t.Errorf("refused %v, %v", r, ok)
	}
	// A failure detector may be faster.
	x.start(1)
	x.run(5 * ms)
	id = x.want(0, 0, 1)
	x.run(30 * ms)
	x.boards[0].Lost(x.now, 1)
	x.boards[0].work(x.now)
	if at := x.boards[0].Where(id); at != -1 {
		t.Errorf("at %d", at)
	}
}

// TestHome: a chain with state comes back with it.
func TestHome(t *testing.T) {
	for _, dies := range []bool{false, true} {
		x := newRack(t, Intermediate(2, true), []int{3}, 1)
		x.boards[0].occupy(1)
		x.boards[0].tell(x.now)
		x.run(5 * ms)
		low, id := x.want(0, 0, 1), 0
		x.run(30 * ms)
		if x.boards[0].Where(low) != 1 {
			t.Fatal("not placed")
		}
		x.unwant(0, low)
		x.run(5 * ms)
		id = x.want(0, 2, 9)
		x.run(30 * ms)
		b := x.boards[0]
		b.regions[0].used = false
		if b.FreedFor(3, func(want int) bool { return want != id }) {
			t.Error("one comes back that may not have the region")
		}
		for range 20 { // the body may say no
			if b.Freed(3) {
				b.work(x.now)
			}
			if len(b.returns) > 0 {
				break
			}
		}
		if b.Freed(3) {
			t.Error("two are to come back at a time")
		}
		x.boards[1].dead = dies
		x.run(50 * ms)
		if len(b.wants) != 0 || x.home != 1 || b.Where(id) != -1 {
			t.Errorf("dies %v: %d wants, %d came home", dies, len(b.wants), x.home)
		}
		if !dies {
			x.settle()
		}
	}
}

// TestLeave: what runs at a board that leaves comes home with its state, whether there is
// room or not, and what was on its way there goes elsewhere; nothing new goes there.
func TestLeave(t *testing.T) {
	for _, c := range []struct {
		chain int
		room  bool
	}{{0, true}, {0, false}, {1, true}, {1, false}, {2, true}, {2, false}} {
		x := newRack(t, Intermediate(3, true), []int{3}, 1)
		x.boards[0].occupy(1)
		x.boards[0].tell(x.now)
		x.boards[2].occupy(1)
		x.boards[2].tell(x.now)
		x.lose, x.repeat, x.late = 10, 30, 30
		x.run(5 * ms)
		id := x.want(0, c.chain, 1)
		x.run(40 * ms)
		b, host := x.boards[0], x.boards[1]
		if b.Where(id) != 1 || host.Left() {
			t.Fatalf("%+v: at %d", c, b.Where(id))
		}
		if c.room {
			b.regions[0].used = false
		}
		host.Leave(x.now)
		from := x.now
		for !host.Left() && x.now < from+100*ms {
			x.step(ms)
		}
		if !host.Left() || x.now-from > 40*ms {
			t.Errorf("%+v: %v after it leaves it has %d leases", c, time.Duration(x.now-from), len(host.leases))
		}
		x.run(5 * ms)
		if x.home != 1 || b.lossy != 0 || len(b.wants) != 0 {
			t.Errorf("%+v: %d came home, %d without state, %d wants", c, x.home, b.lossy, len(b.wants))
		}
		again := x.want(0, c.chain, 1)
		x.run(20 * ms)
		if r, ok := b.refused[again]; !ok || r != Alone && r != NoRegion {
			t.Errorf("%+v: it goes to a board that leaves: at %d, %v", c, b.Where(again), r)
		}
		x.settle()
	}
	// While the bitstream is sent, or the state is on its way there.
	for d := range clock.Time(80) {
		x := newRack(t, Intermediate(3, true), []int{3}, 1)
		x.boards[2].info.Load = 9
		x.run(5 * ms)
		id := x.want(0, 2, 1)
		x.run(d * ms / 10)
		x.boards[1].Leave(x.now)
		x.run(30 * ms)
		if at := x.boards[0].Where(id); at != 2 && x.home != 1 || x.boards[0].lossy != 0 || !x.boards[1].Left() {
			t.Errorf("left after %v: at %d, %d home", time.Duration(d*ms/10), at, x.home)
		}
		x.settle()
	}
	// Its own stay where they are, and there are no new ones.
	x := newRack(t, Intermediate(2, true), []int{3, 3}, 1)
	x.run(5 * ms)
	id := x.want(0, 2, 1)
	x.run(30 * ms)
	x.boards[0].Leave(x.now)
	more := x.want(0, 0, 1)
	x.run(30 * ms)
	if r, ok := x.boards[0].refused[more]; x.boards[0].Where(id) != 1 || !x.boards[0].Left() || !ok || r != Alone {
		t.Errorf("of a board that leaves: at %d, another is refused: %v, %v", x.boards[0].Where(id), r, ok)
	}
}

// TestTooMuch: what two chains know goes one after the other when it does not fit into a message; what
// does not fit at all stays where it is, with the reason.
func TestTooMuch(t *testing.T) {
	for seed := range uint64(5) {
		tooMuch(t, seed)
	}
}

func tooMuch(t *testing.T, seed uint64) {
	t.Helper()
	const most = 1 << 14
	x := newRack(t, Intermediate(2, true), []int{3, 3}, seed)
	restart := func() {
		x.start(1)
		x.boards[1].most = most
	}
	restart()
	x.boards[0].most = most
	b, host := x.boards[0], x.boards[1]
	x.run(5 * ms)
	x.pad = strings.Repeat("x", most*5/8)
	one, two := x.want(0, 2, 2), x.want(0, 2, 1)
	x.run(40 * ms)
	if b.Where(one) != 1 || b.Where(two) != 1 || x.handed != 2 {
		t.Fatalf("at %d and %d, %d times with state", b.Where(one), b.Where(two), x.handed)
	}
	x.pad += x.pad
	host.Leave(x.now)
	x.run(40 * ms)
	x.boards[1].info.Leaving = false
	x.run(5 * ms)
	b.work(x.now)
	tries := x.tries
	host.Leave(x.now)
	x.run(40 * ms)
	if x.tries != tries+2 {
		t.Errorf("when it leaves again, %d are tried again", x.tries-tries)
	}
	guests := host.Guests()
	if len(guests) != 2 || !guests[0].Stuck || !guests[1].Stuck || guests[0].Chain != 2 || guests[0].Owner != 0 {
		t.Errorf("what stays: %+v", guests)
	}
	if b.Where(one) != 1 || b.Where(two) != 1 || x.home != 0 || host.Left() || b.Freed(3) {
		t.Errorf("at %d and %d, %d came home", b.Where(one), b.Where(two), x.home)
	}
	restart()
	x.run(5 * ms)
	b.wants, x.pad = map[int]*wanted{}, x.pad[:most*5/8]
	for _, id := range []int{one, two} {
		b.Unwant(x.now, id)
	}
	x.run(5 * ms)
	x.want(0, 2, 2)
	x.want(0, 2, 1)
	x.run(40 * ms)
	x.boards[1].Leave(x.now)
	x.run(40 * ms)
	if x.home != 2 || b.lossy != 0 || !x.boards[1].Left() {
		t.Errorf("%d came home, %d without state", x.home, b.lossy)
	}
	restart()
	x.pad = strings.Repeat("x", most)
	x.run(5 * ms)
	big := x.want(0, 2, 1)
	x.run(40 * ms)
	if r, ok := b.refused[big]; !ok || r != TooMuch {
		t.Errorf("at %d, refused %v", b.Where(big), r)
	}
	x.settle()
}

// TestStateOnce: what a chain knows is sent once when it goes to a peer and once when it comes home, however
// long that takes; what is lost is sent again.
func TestStateOnce(t *testing.T) {
	for _, c := range []struct {
		slow       clock.Time
		lose, most int
	}{{50 * ms / 1000, 0, 2}, {3 * ms, 0, 2}, {20 * ms, 0, 2}, {3 * ms, 70, 30}} {
		x := newRack(t, Intermediate(2, true), []int{3}, 5)
		for _, b := range x.boards {
			b.Dead = 30 * ms.Sub(0)
		}
		x.boards[0].occupy(3)
		x.boards[0].tell(x.now)
		x.run(5 * ms)
		x.slow, x.lose, x.pad = c.slow, c.lose, strings.Repeat("x", 4000)
		id := x.want(0, 2, 9)
		x.run(700 * ms)
		b := x.boards[0]
		if b.Where(id) != 1 || x.handed != 1 || c.lose == 0 && x.states != 1 {
			t.Fatalf("%+v: it is at %d; its state was sent %d times, and taken %d times", c, b.Where(id), x.states, x.handed)
		}
		x.boards[1].Leave(x.now)
		x.run(700 * ms)
		if x.home != 1 || b.lossy != 0 || !x.boards[1].Left() {
			t.Errorf("%+v: %d came home, %d without state", c, x.home, b.lossy)
		}
		if x.states > c.most || c.lose > 0 && x.states < 3 {
			t.Errorf("%+v: state was sent %d times", c, x.states)
		}
	}
}

// TestCopies: an owner has the newest copy of what its chain knew that has come, when the peer is lost, before
// it comes home or on the way; one that is too long is none.
func TestCopies(t *testing.T) {
	for _, lose := range []int{0, 60} {
		for _, moving := range []bool{false, true} {
			for _, pad := range []string{"", strings.Repeat("x", 4000)} {
				x := newRack(t, Intermediate(2, true), []int{3}, 3)
				x.boards[0].occupy(3)
				x.boards[0].tell(x.now)
				for _, b := range x.boards {
					b.Dead = 30 * ms.Sub(0)
				}
				x.run(5 * ms)
				id := x.want(0, 2, 9)
				x.run(30 * ms)
				b, host := x.boards[0], x.boards[1]
				x.lose = lose
				for i := range 4 {
					if !host.Copied(x.now, host.leases[0].Lease, []byte(fmt.Sprint("copy ", i, pad))) {
						t.Fatal("a copy is not taken")
					}
					x.run(500 * ms)
					if host.leases[0].copy != nil {
						t.Error("the copy is kept, which the owner has")
					}
				}
				if host.Copied(x.now, host.leases[0].Lease, make([]byte, MaxState+1)) {
					t.Error("a copy of more than a message holds is taken")
				}
				w := b.wants[id]
				if moving {
					host.Leave(x.now)
					for b.wants[id] != nil && !w.paused {
						x.step(ms)
					}
				}
				host.dead = true
				x.run(100 * ms)
				got := w.copy
				if moving {
					got = b.copy
				}
				if got != "copy 3"+pad {
					t.Errorf("lost %d of 100, moving %v: the owner has %.10q", lose, moving, got)
				}
			}
		}
	}
}

// TestPartition: both sides go on by themselves, and together later.
func TestPartition(t *testing.T) {
	x := newRack(t, Intermediate(4, true), []int{3, 3}, 1)
	x.run(5 * ms)
	for i := range 4 {
		x.want(i, 1, 1)
	}
	x.run(30 * ms)
	for _, i := range []int{0, 1} {
		for _, j := range []int{2, 3} {
			x.cut[[2]int{i, j}], x.cut[[2]int{j, i}] = true, true
		}
	}
	x.run(50 * ms)
	for i, b := range x.boards {
		for _, w := range b.wants {
			if w.at >= 0 && w.at/2 != i/2 {
				t.Errorf("board %d: redirected to %d on the other side", i, w.at)
			}
		}
	}
	x.settle()
}

func TestMemory(t *testing.T) {
	x := newRack(t, Intermediate(5, true), []int{1}, 1)
	n := x.boards[0].Node
	if _, ok := n.Memory(); ok || n.Pages() != 0 {
		t.Error("pages of nobody")
	}
	x.run(5 * ms)
	if n.Pages() != 11+12+13+14 {
		t.Errorf("%d pages", n.Pages())
	}
	got := map[int]int{}
	for range 24 {
		b, _ := n.Memory()
		got[b]++
	}
	// 14 and 11 of the neighbours before others'.
	if got[4]+got[1] != 24 || n.Pages() != 26 {
		t.Errorf("%v, %d left", got, n.Pages())
	}
	x.boards[4].dead, x.boards[1].dead = true, true
	x.run(10 * ms)
	if b, ok := n.Memory(); !ok || b != 3 {
		t.Errorf("page at %d, %v", b, ok)
	}
}

func TestArguments(t *testing.T) {
	x := newRack(t, Intermediate(2, true), []int{1}, 1)
	h := x.boards[0]
	for _, c := range []Config{
		{}, {Topology: Intermediate(2, true)}, {Topology: Intermediate(2, true), Inc: 1}, {Topology: Intermediate(2, true), Inc: 1, Host: h, Board: 2},
		{Topology: Intermediate(999, true), Inc: 1, Host: h}, {Topology: Intermediate(2, true), Inc: 1, Host: h, Dead: 1}, {Topology: Intermediate(2, true), Inc: 1, Host: h, Rate: 3},
		{Topology: Intermediate(2, true), Inc: 1, Host: h, Chains: []Chain{{Area: -1}}},
	} {
		if _, err := New(0, c); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%+v: %v", c, err)
		}
	}
	if h.Want(0, 1, 3, 1) == nil || h.Want(0, 1, 0, -1) == nil || h.Want(0, 1, -1, 1) == nil {
		t.Error("wants")
	}
	if h.Unwant(0, 5) || h.Local(0, 5) || h.Stay(0, 5) || h.Ready(0, Lease{}) || h.Failed(0, Lease{}) || h.Saved(0, Lease{}, nil) {
		t.Error("what is not there")
	}
	h.Lost(0, 99)
}

func FuzzMessage(f *testing.F) {
	for _, s := range []State{
		{From: 1, To: 0, Inc: 5, Seq: 1, Info: Info{Regions: []int{3}, Chains: []Hosted{{0, 1, false, 0}}, Pages: 2}},
		{From: 1, To: 0, Inc: 2, Seq: 9, SeenInc: 1, Seen: 99, Asks: []Ask{{ID: 1, Rate: 1}, {ID: 2, Chain: 9, Phase: Moving}, {ID: 1, Chain: 1, Rate: 1, Phase: Handed, State: []byte("x")}}},
		{From: 1, To: 0, Inc: 2, Seq: 9, SeenInc: 1, Seen: 2, Answers: []Answer{{ID: 1, Status: Ready}, {ID: 1, Status: Saved, State: []byte("x")}, {ID: 1, Status: Granted}}},
	} {
		p, err := s.Encode()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(p)
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		s, err := Decode(p)
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("%q", err)
			}
			return
		}
		again, err := s.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if o, err := Decode(again); err != nil {
			t.Fatal(err)
		} else if third, _ := o.Encode(); !bytes.Equal(again, third) {
			t.Errorf("%s and %s", again, third)
		}
		x := newRack(t, Intermediate(2, true), []int{3}, 1)
		x.run(5 * ms)
		x.want(0, 0, 1)
		for range 3 {
			s.Seq++
			x.boards[0].Input(x.now, s)
			x.boards[0].work(x.now)
			x.run(2 * ms)
		}
	})
}

// TestHalfDeaf: a host that no longer hears the owner gives its region up, and the
// owner, who hears that, sends no packets there.
func TestHalfDeaf(t *testing.T) {
	x := newRack(t, Intermediate(2, true), []int{3}, 1)
	x.run(5 * ms)
	id := x.want(0, 1, 1)
	x.run(30 * ms)
	if x.boards[0].Where(id) != 1 {
		t.Fatal("not placed")
	}
	x.cut[[2]int{0, 1}] = true
	x.run(8 * ms)
	if at := x.boards[0].Where(id); at != -1 || len(x.boards[0].lost) != 0 {
		t.Errorf("at %d, lost %v", at, x.boards[0].lost)
	}
	x.settle()
}

// TestRestart: who starts anew has nothing of what it had, however soon it is there
// again; what others had for it is free.
func TestRestart(t *testing.T) {
	x := newRack(t, Intermediate(2, true), []int{3}, 1)
	x.run(5 * ms)
	id := x.want(0, 1, 1)
	x.run(30 * ms)
	x.start(1)
	x.run(ms)
	if at := x.boards[0].Where(id); at != -1 || !slices.Equal(x.boards[0].lost, []int{1}) {
		t.Errorf("at %d, lost %v: pages there are gone", at, x.boards[0].lost)
	}
	x.run(30 * ms)
	if at := x.boards[0].Where(id); at != 1 {
		t.Errorf("at %d", at)
	}
	x.start(0)
	x.run(ms / 2)
	if x.boards[1].regions[0].used {
		t.Error("a region is kept for a board that knows nothing of it")
	}
	x.settle()
}

// TestDeclined: a peer that refuses is not asked again.
func TestDeclined(t *testing.T) {
	x := newRack(t, Intermediate(3, true), []int{3}, 1)
	x.decline = 100
	x.run(5 * ms)
	id := x.want(0, 1, 1)
	x.run(3 * ms)
	if r, ok := x.boards[0].refused[id]; !ok || r != Declined {
		t.Errorf("refused %v, %v", r, ok)
	}
}

// Boards of another deployment have nothing to do with each other: what they had
// agreed on ends, and they agree again when they have the same.
func TestDeployments(t *testing.T) {
	x := newRack(t, Intermediate(2, true), []int{3}, 1)
	b, host := x.boards[0], x.boards[1]
	x.run(10 * ms)
	one := x.want(0, 2, 1e9)
	x.run(40 * ms)
	if b.Where(one) != 1 || len(host.leases) != 1 || x.handed == 0 {
		t.Fatalf("the chain is at %d, %d leases, %d times with its state", b.Where(one), len(host.leases), x.handed)
	}
	if err := b.Deploy(x.now, 7, chains); err != nil {
		t.Fatal(err)
	}
	clear(b.wants)
	x.run(40 * ms)
	if len(host.leases) != 0 {
		t.Errorf("%d leases of a board that has another deployment", len(host.leases))
	}
	two := x.want(0, 2, 1e9)
	x.run(40 * ms)
	if b.refused[two] != Stranger {
		t.Errorf("refused: %v", b.refused[two])
	}
	if err := host.Deploy(x.now, 7, chains); err != nil {
		t.Fatal(err)
	}
	x.run(40 * ms)
	three := x.want(0, 2, 1e9)
	x.run(40 * ms)
	if b.Where(three) != 1 {
		t.Errorf("with the same deployment: at %d", b.Where(three))
	}
	if err := b.Deploy(x.now, 8, []Chain{{Area: -1}}); err == nil {
		t.Error("an area below 0")
	}
}

// TestOldAnswer: what a peer answers to the board that was here before is no
// answer to this one, though it numbers its asks alike.
func TestOldAnswer(t *testing.T) {
	x := newRack(t, Intermediate(2, true), []int{1}, 1)
	n, err := New(0, Config{Topology: Intermediate(2, true), Inc: 2, Chains: chains, Host: x.boards[0]})
	if err != nil {
		t.Fatal(err)
	}
	old := State{From: 1, To: 0, Inc: 5, Seq: 1, SeenInc: 1, Seen: 9, Info: Info{Regions: []int{9}}}
	n.Input(0, &old)
	if err := n.Want(0, 1, 0, 1); err != nil {
		t.Fatal(err)
	}
	for _, st := range []Status{Refused, Failed, Granted} {
		old.Seq++
		old.Answers = []Answer{{ID: 1, Status: st}}
		if n.Input(0, &old); len(n.wants) != 1 || n.wants[0].stage != asked || n.wants[0].peer != 1 {
			t.Fatalf("answer %d to another ends the ask", st)
		}
	}
}

// TestSeenBefore: a peer that is lost is not there again by a message that came before, late or twice.
func TestSeenBefore(t *testing.T) {
	x := newRack(t, Intermediate(2, true), []int{1}, 1)
	n, err := New(0, Config{Topology: Intermediate(2, true), Inc: 2, Chains: chains, Host: x.boards[0]})
	if err != nil {
		t.Fatal(err)
	}
	s := State{From: 1, To: 0, Inc: 5, Seq: 3}
	n.Input(0, &s)
	n.Lost(0, 1)
	for _, c := range []struct {
		seq  uint64
		news bool
	}{{3, false}, {2, false}, {4, true}} {
		s.Seq = c.seq
		if news := n.Input(0, &s); news != c.news || n.View(1).Alive != c.news {
			t.Errorf("message %d: news %v, alive %v", c.seq, news, n.View(1).Alive)
		}
	}
}

// TestNotTaken: a peer that has seen an ask and says nothing of it has not taken it.
func TestNotTaken(t *testing.T) {
	x := newRack(t, Intermediate(2, true), []int{1}, 1)
	n, err := New(0, Config{Topology: Intermediate(2, true), Inc: 2, Chains: chains, Host: x.boards[0]})
	if err != nil {
		t.Fatal(err)
	}
	s := State{From: 1, To: 0, Inc: 5, Seq: 1, SeenInc: 2, Info: Info{Regions: []int{9}}}
	n.Input(0, &s)
	if err := n.Want(0, 1, 0, 1); err != nil {
		t.Fatal(err)
	}
	ask := n.Poll(0).Seq
	for _, seen := range []uint64{ask - 1, ask} {
		s.Seq, s.Seen = s.Seq+1, seen
		if n.Input(0, &s); (len(n.wants) == 0) != (seen == ask) {
			t.Errorf("message %d of %d seen: %d wants", seen, ask, len(n.wants))
		}
	}
}

// TestManyWants: no board says more than its peers read.
func TestManyWants(t *testing.T) {
	x := newRack(t, Intermediate(2, true), []int{9}, 1)
	n, err := New(0, Config{Topology: Intermediate(2, true), Inc: 2, Chains: chains, Host: x.boards[0]})
	if err != nil {
		t.Fatal(err)
	}
	n.Input(0, &State{From: 1, To: 0, Inc: 5, Seq: 1, Info: Info{Regions: []int{9}, Pages: maxPages}})
	for err == nil && len(n.wants) < 2*maxList {
		err = n.Want(0, len(n.wants), 0, 1)
	}
	if err == nil {
		t.Errorf("%d wants", len(n.wants))
	}
	if s := n.Poll(0); s == nil || s.check() != nil {
		t.Errorf("%v", s.check())
	}
	if n.Input(0, &State{From: 1, To: 0, Inc: 5, Seq: 2, Info: Info{Pages: maxPages + 1}}) || n.Pages() != maxPages {
		t.Errorf("%d pages", n.Pages())
	}
	if _, err := New(0, Config{Topology: Intermediate(2, true), Inc: 1, Chains: []Chain{{Bitstream: maxBytes + 1}}, Host: x.boards[0]}); err == nil {
		t.Error("a bitstream that takes years")
	}
}

// TestStay: a want that was to come back, whose peer died meanwhile and for which
// there is no room here after all, goes to another peer, or is refused.
func TestStay(t *testing.T) {
	for _, other := range []bool{true, false} {
		x := newRack(t, Intermediate(3, true), []int{1}, 1)
		n, err := New(0, Config{Topology: Intermediate(3, true), Inc: 1, Chains: []Chain{{Area: 1}}, Host: x.boards[0]})
		if err != nil {
			t.Fatal(err)
		}
		seq := uint64(0)
		hear := func(from int, status ...Status) {
			seq++
			m := &State{From: from, To: 0, Inc: 5, Seq: seq, SeenInc: 1, Info: Info{Regions: []int{1}}}
			for _, st := range status {
				m.Answers = append(m.Answers, Answer{ID: 1, Status: st})
			}
			n.Input(0, m)
		}
		hear(1)
		if other {
			hear(2)
		}
		if err := n.Want(0, 1, 0, 1); err != nil {
			t.Fatal(err)
		}
		hear(1, Granted)
		n.Advance(0)
		hear(1, Ready)
		if n.Where(1) != 1 || !n.Freed(1) {
			t.Fatal("not placed")
		}
		n.Lost(0, 1)
		n.Events()
		if !n.Stay(0, 1) || n.Stay(0, 2) {
			t.Error("nothing is to come back")
		}
		if ev := n.Events(); other && (len(ev) != 0 || n.wants[0].peer != 2) || !other && (len(ev) != 1 || ev[0].Kind != NoPeer || len(n.wants) != 0) {
			t.Errorf("other peer %v: %v", other, ev)
		}
	}
}

// Silence counts while the node is looked at: what a busy machine takes away is not the peer's, up to a bound.
func TestAway(t *testing.T) {
	for _, x := range []struct{ away, lost clock.Duration }{
		{0, 500}, {90, 590}, {2000, 2500}, {5000, 2500}, // of 500 ms
	} {
		n, err := New(0, Config{Inc: 1, Topology: Intermediate(2, true), Host: newRack(t, Intermediate(2, true), []int{1}, 1).boards[0], Period: 100 * time.Millisecond, Dead: 500 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		n.Input(0, &State{From: 1, To: 0, Inc: 5, Seq: 1, SeenInc: 1})
		n.Away(x.away * time.Millisecond)
		at := clock.Time(x.lost * time.Millisecond)
		if n.Advance(at - 1); !n.peers[1].alive {
			t.Errorf("away for %d ms: lost before %d ms", x.away, x.lost)
		}
		if n.Advance(at); n.peers[1].alive {
			t.Errorf("away for %d ms: not lost after %d ms", x.away, x.lost)
		}
		n.Input(at, &State{From: 1, To: 0, Inc: 5, Seq: 2, SeenInc: 1})
		if n.Away(x.away * time.Millisecond); n.peers[1].heard != at+clock.Time(min(x.away, 2000)*time.Millisecond) {
			t.Errorf("away for %d ms once more: heard at %d", x.away, n.peers[1].heard)
		}
	}
}
