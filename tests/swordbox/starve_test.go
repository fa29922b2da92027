package swordbox

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/quillon/quillon/internal/rack/history/fault"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/rack/rnic"
	"github.com/quillon/quillon/tests/bed"
)

// contest is clients that never leave a word alone, and one who needs it, too.
type contest struct {
	spinners int
	window   int       // requests that each of them has under way
	depth    int       // responder resources of every queue pair at the server
	told     bool      // the box is told of them (rdatomic=)
	ops      []rnic.Op // what spinners do, by number
	needs    rnic.Op   // what the one does
	args     graph.Args
	restart  time.Duration // when the box is taken out for a while; 0: never
	away     time.Duration
	clean    bool
	lossy    bool // what is under way then is lost
	faults   int  // of frames, at most
	seed     uint64
}

// contestGiveup is giveup= in contests.
const contestGiveup = 20 * time.Millisecond

func (c contest) String() string {
	return fmt.Sprintf("%d spinners x %d, depth %d told %v, ops %v needs %v, %v, restart %v away %v clean %v lossy %v seed %d", c.spinners, c.window, c.depth, c.told, c.ops, c.needs, c.args, c.restart, c.away, c.clean, c.lossy, c.seed)
}

// spinner is one client in a contest.
type spinner struct {
	p    *bed.Peer
	next int // its oldest request without a completion
}

func (x *spinner) open() int {
	for x.next < x.p.Posted() && x.p.Status(x.next) != bed.Pending {
		x.next++
	}
	return x.p.Posted() - x.next
}

// play is how many operations of others ended while one of the one's was under way, at most,
// how long that took, how long it took until an atomic went as a WRITE, and how many did.
func (c contest) play(t testing.TB, wire bool) (most int, worst, known time.Duration, gain uint64) {
	args := graph.Args{"mode": "replace", "writable": "assume", "settle": "60us", "pair": "60us", "giveup": contestGiveup.String(), "verify": "1ms"}
	if c.told {
		args["rdatomic"] = fmt.Sprint(c.depth)
	}
	maps.Copy(args, c.args)
	box := ofSwordbox(args)
	box.Clean = c.clean
	if wire {
		box = nil
	}
	k := rnic.DefaultConn()
	k.PathMTU, k.Timeout, k.RetryCnt, k.MaxRdAtomic, k.MaxDestRdAtomic = 1024, 8, 7, c.depth, c.depth
	s := bed.NewScene(t, bed.SceneConfig{Clients: c.spinners + 1, Sessions: 1, Box: box, Conn: k, Profile: rnic.RXE, Seed: c.seed, Schedule: c.schedule()})
	pd := s.PD()
	m := s.MR(pd, va, 4096, all)
	one := &spinner{p: s.Peer(0, 0, bed.Link{PD: pd})}
	var others []*spinner
	for i := range c.spinners {
		others = append(others, &spinner{p: s.Peer(i+1, 0, bed.Link{PD: pd})})
	}
	rng := rand.New(rand.NewPCG(c.seed, 1))
	do := func(x *spinner, op rnic.Op, word uint64) {
		w := rnic.SendWR{Op: op, SGL: [][]byte{make([]byte, 8)}, RemoteAddr: va + 8*word, RKey: m.RKey, Compare: 1 << 40, Swap: rng.Uint64()>>8 | 1<<50}
		if op == rnic.OpWrite {
			binary.LittleEndian.PutUint64(w.SGL[0], w.Swap)
		}
		x.p.Post(w)
	}
	done := func() (n int) {
		for _, x := range others {
			x.open()
			n += x.next
		}
		return n
	}
	start := s.Clock.Now()
	rounds, at, since := 0, 0, start
	in := wire || c.restart == 0
	gone, frozen := false, false
	filled, born := uint64(0), start
	const turns = 200
	ok := s.Until(func() bool {
		now := s.Clock.Now()
		if !wire && s.Instance() != nil && filled == 0 {
			if filled = s.Count("replaced-atomic"); filled > 0 {
				known = max(known, now.Sub(born))
			}
		}
		for i, x := range others {
			for x.open() < c.window {
				do(x, c.ops[(i+x.p.Posted())%len(c.ops)], 0)
			}
		}
		if one.open() == 0 {
			n := done()
			if rounds > 0 && in {
				most, worst = max(most, n-at), max(worst, now.Sub(since))
			}
			rounds++
			do(one, c.needs, 0)
			at, since = n, now
		}
		if !in && now >= start.Add(c.restart) {
			if !gone && c.lossy && !frozen {
				s.Freeze()
				frozen = true
			}
			if !gone && (!c.lossy || now >= start.Add(c.restart+10*time.Microsecond)) {
				gone = true
				s.Remove()
				s.Thaw()
			}
			if now >= start.Add(c.restart+c.away) {
				in, rounds = true, 1
				s.Insert()
				at, since = done(), now
				filled, born = 0, now
			}
		}
		return rounds > turns && in
	}, 50*time.Millisecond)
	if !ok {
		most, worst = max(most, done()-at), max(worst, s.Clock.Now().Sub(since))
	}
	if filled == 0 {
		known = max(known, s.Clock.Now().Sub(born))
	}
	if !wire {
		gain = s.Count("replaced-atomic")
	}
	for _, x := range append(others, one) {
		if st := x.p.State(); st != rnic.StateReady {
			t.Errorf("%v: a queue pair is in state %v", c, st)
		}
	}
	return most, worst, known, gain
}

// randomContest is what a seed stands for.
func randomContest(seed uint64) contest {
	rng := rand.New(rand.NewPCG(seed, 7))
	pick := func(l ...int) int { return l[rng.IntN(len(l))] }
	opsOf := [][]rnic.Op{{rnic.OpCompareSwap}, {rnic.OpCompareSwap, rnic.OpWrite}, {rnic.OpFetchAdd, rnic.OpRead}, {rnic.OpFetchAdd}, {rnic.OpRead}, {rnic.OpCompareSwap, rnic.OpCompareSwap, rnic.OpRead, rnic.OpWrite}}
	c := contest{
		spinners: pick(1, 2, 3, 5, 8, 15), window: pick(1, 1, 2, 4), depth: pick(1, 1, 2, 4, 16), told: rng.IntN(2) == 0,
		ops: opsOf[rng.IntN(len(opsOf))], needs: rnic.Op(pick(int(rnic.OpWrite), int(rnic.OpRead), int(rnic.OpCompareSwap), int(rnic.OpFetchAdd))),
		clean: rng.IntN(4) == 0, away: 100 * time.Microsecond, seed: seed,
		args: graph.Args{"order": []string{"strict", "word"}[rng.IntN(2)], "mode": []string{"replace", "replace", "mux"}[rng.IntN(3)], "writable": []string{"assume", "proven"}[rng.IntN(2)],
			"shared": []string{"1", "2"}[rng.IntN(2)]},
	}
	if rng.IntN(3) > 0 {
		c.restart = time.Duration(100+rng.IntN(3000)) * time.Microsecond
		c.lossy = rng.IntN(2) == 0
	}
	return c
}

// Whoever asks for a word that others never leave alone is served within giveup=, which is
// what an answer that was lost may cost.
func TestContest(t *testing.T) {
	for seed := range bed.Schedules(100) {
		c := randomContest(uint64(seed))
		if most, worst, _, _ := c.play(t, false); worst > contestGiveup {
			t.Errorf("%v: waited for %v, passed by %d", c, worst, most)
		}
	}
	c := randomContest(690) // what was cut off comes again to a word that is always known
	if most, worst, _, _ := c.play(t, false); worst > contestGiveup {
		t.Errorf("%v: waited for %v, passed by %d", c, worst, most)
	}
}

// A word that everybody asks for becomes known, and again after the box was killed, though
// none of them ever pauses.
func TestKnownInTheEnd(t *testing.T) {
	for _, window := range []int{1, 2, 4} {
		for _, restart := range []time.Duration{0, time.Millisecond} {
			c := contest{spinners: 5, window: window, depth: 4, told: true, ops: []rnic.Op{rnic.OpCompareSwap}, needs: rnic.OpWrite, restart: restart, away: 100 * time.Microsecond}
			if _, _, _, n := c.play(t, false); n == 0 {
				t.Errorf("%v: nothing was replaced", c)
			}
		}
	}
}

// schedule is which frames are lost, late or doubled.
func (c contest) schedule() fault.Schedule {
	m := fault.Mix{Frames: c.faults, Within: 4000, Links: []string{"in", "s0"}}
	for i := range c.spinners + 1 {
		m.Links = append(m.Links, fmt.Sprintf("c%d", i))
	}
	return fault.Random(c.seed, m)
}

// contestKnown is how long a word in use may be unknown, when no frame is lost: what waits
// so that it becomes known does so for 8 ms in all, and 2 ms behind the last answer.
const contestKnown = 10 * time.Millisecond

// A word that clients use is known in time, from the start, and again after the box was
// killed. What was lost takes as long as it takes to be repeated.
func TestKnownSoon(t *testing.T) {
	for seed := range bed.Schedules(100) {
		c := randomContest(uint64(seed))
		c.args["mode"], c.args["writable"] = "replace", "assume"
		if c.ops[0] == rnic.OpRead {
			c.ops = []rnic.Op{rnic.OpCompareSwap}
		}
		limit := contestKnown
		if seed%2 == 0 {
			c.faults = 1 + seed%20
		}
		if c.faults > 0 || c.lossy {
			limit = contestGiveup
		}
		if _, worst, known, _ := c.play(t, false); known > limit || worst > contestGiveup {
			t.Errorf("%v faults %d: known after %v, one waited for %v", c, c.faults, known, worst)
		}
	}
}
