package fusee

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/quillon/quillon/internal/rack/history"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/rack/rnic"
)

// scramble runs sessions whose requests are executed in any order that queue pairs allow: for each session
// and node in the order of the posts, and otherwise at random. Sessions die, and queue pairs fail, between
// any two requests.
type scramble struct {
	t       *testing.T
	rng     *rand.Rand
	now     clock.Time
	store   Cluster
	clients []*Client
	queues  map[lane][]posting
	lanes   []lane
	left    map[*session]int // requests of the session's post that are not executed
	dead    map[*session]bool
	log     *history.Log[Op2, uint64]
	ids     map[*session]int
	numbers map[*session]int
	todo    map[*session]int
	master  *Master
	held    map[lane]clock.Time
	gone    int // the node that has vanished, from 1 on; 0: none has
	err     error
}

type lane struct {
	s    *session
	node int
}

type posting struct {
	w    rnic.SendWR
	buf  []byte
	post uint32 // 0: no session waits for it
}

// Op2 is an operation of the history: its kind, its key, its value.
type Op2 struct {
	kind       Kind
	key, value uint64
}

// was is the result of an update or a deletion that found a value.
const was = 1<<64 - 1

func keys2() history.Model[Op2, uint64] {
	return history.Model[Op2, uint64]{
		Name: "key", Object: func(o Op2) uint64 { return o.key }, Init: func(uint64) uint64 { return 0 },
		Step: func(v uint64, o Op2, out uint64, told bool) (uint64, bool) {
			ok := !told || out == v
			switch {
			case told && out == was:
				return o.value, v != 0
			case o.kind == Insert && v == 0, o.kind == Update && v != 0:
				return o.value, ok
			case o.kind == Delete:
				return 0, ok
			}
			return v, ok
		},
		Needs: func(_ Op2, out uint64) (uint64, bool) { return out, out == was },
		Makes: func(o Op2) (uint64, bool) { return o.value, true },
		Inert: func(o Op2) bool { return o.kind == Read },
		Describe: func(o Op2, out uint64, told bool) string {
			return fmt.Sprintf("%v %#x: %#x, %v", o.kind, o.value, out, told)
		},
		State: func(v uint64) string { return fmt.Sprintf("%#x", v) },
	}
}

func newScramble(t *testing.T, l Layout, seed uint64) *scramble {
	x := &scramble{
		t: t, rng: rand.New(rand.NewPCG(seed, 7)), now: 1 << 30, queues: map[lane][]posting{}, held: map[lane]clock.Time{}, left: map[*session]int{}, dead: map[*session]bool{},
		log: new(history.Log[Op2, uint64]), ids: map[*session]int{}, numbers: map[*session]int{}, todo: map[*session]int{},
	}
	var err error
	if x.store, err = NewCluster(l); err != nil {
		t.Fatal(err)
	}
	x.master, err = NewMaster(MasterConfig{
		Layout: l, CQ: new(rnic.CQ), FailAfter: 1000 * tick, Lease: 2000 * tick, Margin: 2000 * tick,
		Dial: func(_ clock.Time, node int) (*rnic.QP, Grant, error) { return x.dial(node) },
	})
	if err != nil {
		t.Fatal(err)
	}
	x.master.Put = func(node int, w *rnic.SendWR) { x.post(lane{nil, node}, w, uint32(w.ID>>16)) }
	return x
}

// tick is the time that a request takes.
const tick = 100 * time.Nanosecond

func (x *scramble) dial(node int) (*rnic.QP, Grant, error) {
	if node == x.gone-1 {
		return nil, Grant{}, errors.New("it has vanished")
	}
	return &rnic.QP{}, Grant{Layout: *x.store.layout(), Index: Region{VA: indexVA}, Blocks: Region{VA: blocksVA}, Objects: Region{VA: objectsVA}}, nil
}

// post takes a request of a session.
func (x *scramble) post(k lane, w *rnic.SendWR, post uint32) {
	if x.queues[k] == nil {
		x.lanes = append(x.lanes, k)
	}
	p := posting{w: *w, buf: w.SGL[0], post: post}
	if w.Op == rnic.OpWrite {
		p.buf = append([]byte{}, p.buf...)
	}
	x.queues[k] = append(x.queues[k], p)
}

// vanish makes a node stop answering.
func (x *scramble) vanish(node int) {
	x.gone = node + 1
	x.store[node] = nil
	for _, k := range x.lanes {
		if k.node != node {
			continue
		}
		x.queues[k] = x.queues[k][:0]
		if k.s != nil && !x.dead[k.s] && k.s.QPs[node] != nil {
			x.left[k.s] = 0
			k.s.c.Broke(k.s, node)
			k.s.Lost(x.now, node)
		}
	}
}

// client adds a client.
func (x *scramble) client(id uint16, sessions int, next func(c *Client, session int) (Op, bool)) *Client {
	nic, err := rnic.New(rnic.Config{MAC: [6]byte{2}, IP: netip.AddrFrom4([4]byte{10, 0, 0, 1})})
	if err != nil {
		x.t.Fatal(err)
	}
	var c *Client
	c, err = NewClient(Config{
		Layout: *x.store.layout(), Sessions: sessions, ID: id, CQ: nic.CreateCQ(16), FailAfter: 4000 * tick, Cache: 16,
		View: x.master.View, Suspect: x.master.Suspect,
		Dial: func(_ clock.Time, _, node int) (*rnic.QP, Grant, error) { return x.dial(node) },
		Alloc: func(_ clock.Time, owner uint16, region, units int) (int, error) {
			return x.store.Alloc(owner, region, units)
		},
		Next: func(_ clock.Time, session int) (Op, bool) {
			if x.dead[c.Sessions[session]] {
				return Op{}, false
			}
			return next(c, session)
		},
		Done: func(r *Result) { x.done(c.Sessions[r.Session], r) },
	})
	if err != nil {
		x.t.Fatal(err)
	}
	for _, s := range c.Sessions {
		s.Put = func(node int, w *rnic.SendWR) {
			post := uint32(w.ID >> 16)
			x.post(lane{s, node}, w, post)
			if post != 0 {
				x.left[s]++
			}
		}
		x.numbers[s] = x.log.NewClient()
	}
	x.clients = append(x.clients, c)
	return c
}

func (x *scramble) done(s *session, r *Result) {
	switch {
	case r.Kind == Recover:
		if r.Err != nil {
			x.err = errors.Join(x.err, r.Err)
		}
	case errors.Is(r.Err, ErrFull), errors.Is(r.Err, ErrNoMemory):
		x.log.Forget(x.ids[s])
	case errors.Is(r.Err, ErrUnknown):
	case r.Err != nil:
		x.err = errors.Join(x.err, r.Err)
	case r.Found && (r.Kind == Update || r.Kind == Delete):
		x.log.Return(x.ids[s], r.End, was)
	default:
		x.log.Return(x.ids[s], r.End, number(r.Got))
	}
}

func number(b []byte) uint64 {
	if len(b) == 0 {
		return 0
	}
	return binary.LittleEndian.Uint64(b)
}

// execute executes a request in a node's memory.
func (x *scramble) execute(k lane) {
	q := x.queues[k]
	p := q[0]
	x.queues[k] = q[1:]
	m := x.store[k.node]
	var mem []byte
	switch at := p.w.RemoteAddr; {
	case at >= objectsVA:
		mem = m.objects[at-objectsVA:]
	case at >= blocksVA:
		mem = m.blocks[at-blocksVA:]
	default:
		mem = m.index[at-indexVA:]
	}
	switch p.w.Op {
	case rnic.OpRead:
		copy(p.buf, mem[:len(p.buf)])
	case rnic.OpWrite:
		copy(mem, p.buf)
	default:
		v := le.Uint64(mem)
		le.PutUint64(p.buf, v)
		if v == p.w.Compare {
			le.PutUint64(mem, p.w.Swap)
		}
	}
	if k.s == nil {
		if p.w.Signaled && x.master.Completed(p.post) {
			x.master.Done(x.now)
		}
		return
	}
	if p.post == 0 || x.dead[k.s] || !k.s.Pending() || p.post != uint32(k.s.WRs[0].ID>>16) {
		return // no longer of a post that is under way
	}
	if x.left[k.s]--; p.w.Signaled && k.s.Completed(p.post) {
		k.s.Done(x.now)
	}
}

// fail makes a queue pair fail: its requests that were not executed are lost.
func (x *scramble) fail(k lane) {
	x.queues[k] = x.queues[k][:0]
	if k.s == nil {
		x.master.Broke(x.master, k.node)
		x.master.Lost(x.now, k.node)
		return
	}
	x.left[k.s] = 0
	k.s.c.Broke(k.s, k.node)
	k.s.Lost(x.now, k.node)
}

// die ends a session: its requests that were not executed are lost.
func (x *scramble) die(s *session) {
	x.dead[s] = true
	for k := range x.queues {
		if k.s == s {
			x.queues[k] = x.queues[k][:0]
		}
	}
}

// disaster makes a node vanish at a bad moment: some of a session's words have come to the backups, and some
// not. If die, the session dies; otherwise its other words come late, though not later than the master
// expects.
func (x *scramble) disaster(die bool) (died int) {
	for _, k := range x.lanes {
		s := k.s
		if s == nil || x.dead[s] || s.step != stepPropose || len(x.queues[k]) == 0 || len(s.replicas(0)) > 2 && x.left[s] == len(s.WRs) {
			continue
		}
		if die {
			x.die(s)
			died = 1
		} else {
			x.held[k] = x.now.Add(2500 * tick)
		}
		x.vanish(0)
		break
	}
	return died
}

// run executes requests until none is left.
func (x *scramble) run(deaths, failures, vanish int) {
	idle, asked := 0, vanish
	for steps := 0; x.err == nil; steps++ {
		if steps > 1<<21 {
			x.t.Fatal("it does not end")
		}
		x.now = x.now.Add(tick)
		if vanish--; vanish < 0 && x.gone == 0 && asked > 0 {
			deaths -= x.disaster(deaths > 0)
		}
		did := x.master.Step(x.now)
		for _, c := range x.clients {
			for _, s := range c.Sessions {
				if x.dead[s] {
					s.WakeAt = clock.Never
				}
			}
			did = c.Step(x.now) || did
		}
		var full []lane
		for _, k := range x.lanes {
			if len(x.queues[k]) > 0 && x.now >= x.held[k] {
				full = append(full, k)
			}
		}
		if len(full) > 0 {
			k := full[x.rng.IntN(len(full))]
			switch {
			case deaths > 0 && (asked <= 0 || x.gone > 0) && k.s != nil && x.rng.IntN(400) == 0:
				deaths--
				x.die(k.s)
			case failures > 0 && x.rng.IntN(200) == 0:
				failures--
				x.fail(k)
			case k.s != nil && x.rng.IntN(60) == 0:
				x.held[k] = x.now.Add(1000 * tick) // late, but not as late as the requests of a client that counts as dead
			default:
				x.execute(k)
			}
			did = true
		}
		if idle++; did {
			idle = 0
		}
		if idle > 3*4000 {
			return
		}
	}
}

// With any order of requests, any deaths, and any failures of queue pairs, the store is linearizable, and
// sound after the dead sessions are recovered.
func TestAnyOrder(t *testing.T) {
	var sum Stats
	runs := 0
	for _, l := range []Layout{
		{Nodes: 1}, {Nodes: 2, Replicas: 2}, {Nodes: 3, Replicas: 3}, {Nodes: 4, Replicas: 4}, {Nodes: 5, Replicas: 5},
	} {
		l.Subtables, l.Groups, l.Unit, l.Block, l.Blocks = 1, 2, 64, 1024, 40
		for seed := range uint64(18) {
			deaths, failures := int(seed%3), int(seed/3%3)
			if l.Block, l.Blocks = 1024, 40; seed%3 == 2 { // so that memory is used again
				l.Block, l.Blocks = 256, 8/l.Nodes+1
			}
			vanish := 0
			if l.Replicas > 1 && seed%2 == 1 {
				vanish = 50 + 17*int(seed)
			}
			s, err := scrambled(t, l, seed, deaths, failures, vanish)
			sum.Add(s)
			runs++
			if err != nil {
				t.Fatalf("%d nodes, seed %d, %d deaths, %d failures, vanishes at %d: %v", l.Nodes, seed, deaths, failures, vanish, err)
			}
		}
	}
	t.Logf("%d runs: %+v", runs, sum)
	if sum.Rules[0] == 0 || sum.Rules[1] == 0 || sum.Rules[2] == 0 || sum.Helped == 0 || sum.Killed == 0 || sum.Withdrawn == 0 || sum.Collected == 0 {
		t.Error("something never happened")
	}
}

func scrambled(t *testing.T, l Layout, seed uint64, deaths, failures, vanish int) (sum Stats, err error) {
	x := newScramble(t, l, seed)
	ops := 12
	if l.Block < 1024 {
		ops = 40 // so that memory is used again
	}
	for i := range 3 {
		x.client(uint16(1+2*i), 2, func(c *Client, session int) (Op, bool) {
			s := c.Sessions[session]
			if x.todo[s]++; x.todo[s] > ops {
				return Op{}, false
			}
			o := Op2{kind: Kind(x.rng.IntN(4)), key: 1 + x.rng.Uint64N(2), value: uint64(s.id)<<16 | uint64(x.todo[s])}
			op := Op{Kind: o.kind, Key: binary.LittleEndian.AppendUint64(nil, o.key), Value: binary.LittleEndian.AppendUint64(nil, o.value)}
			if o.kind == Read || o.kind == Delete {
				o.value = 0
			}
			x.ids[s] = x.log.Call(x.numbers[s], x.now, o)
			return op, true
		})
	}
	x.run(deaths, failures, vanish)
	// Two sessions recover the dead sessions at once.
	var gone []uint16
	for s := range x.dead {
		gone = append(gone, s.id)
	}
	slices.Sort(gone)
	turn := [2]int{}
	x.client(100, 2, func(_ *Client, session int) (Op, bool) {
		if turn[session] == len(gone) {
			return Op{}, false
		}
		turn[session]++
		return Op{Kind: Recover, Dead: gone[turn[session]-1]}, true
	})
	x.run(0, failures, 0)
	for _, c := range x.clients {
		sum.Add(c.Stats())
	}
	if x.err != nil {
		return sum, x.err
	}
	values, err := x.store.Check()
	reader := x.log.NewClient()
	for k := uint64(1); k <= 2; k++ {
		id := x.log.Call(reader, x.now, Op2{kind: Read, key: k})
		x.log.Return(id, x.now, number(values[string(binary.LittleEndian.AppendUint64(nil, k))]))
	}
	h := history.Check(keys2(), x.log, 0)
	if h != nil {
		t.Log(history.Text(keys2(), x.log, 1), history.Text(keys2(), x.log, 2))
	}
	return sum, errors.Join(err, h)
}

// A node vanishes, and a client dies, while some copies of a slot have its word and some do not.
func TestVanishesInARound(t *testing.T) {
	for _, n := range []int{3, 4} {
		l := Layout{Nodes: n, Replicas: n, Subtables: 1, Groups: 2, Unit: 64, Block: 1024, Blocks: 40}
		for seed := range uint64(24) {
			if _, err := scrambled(t, l, seed, int(seed%4+2)/3, 0, 40+23*int(seed)); err != nil {
				t.Fatalf("%d nodes, seed %d: %v", n, seed, err)
			}
		}
	}
}

// The rules are the authors'.
func TestRules(t *testing.T) {
	for _, c := range []struct {
		vals []slot
		w    slot
		r    rule
	}{
		{[]slot{7}, 7, byAll}, {[]slot{7, 7}, 7, byAll}, {[]slot{7, 3}, 3, byLeast}, {[]slot{7, 3, 7}, 7, byMost},
		{[]slot{7, 3, 5}, 3, byLeast}, {[]slot{7, 7, 3, 3}, 3, byLeast}, {[]slot{9, 7, 7, 7}, 7, byMost},
	} {
		if w, r := evaluate(c.vals); w != c.w || r != c.r {
			t.Errorf("%v: %d by rule %d", c.vals, w, r)
		}
	}
}
