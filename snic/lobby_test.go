package snic

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
)

// TestTurnsByTime: tenants that ask for more than there is have a worker's time by their weights, whatever a frame of each costs, and however that
// changes. Nobody has said what it costs.
func TestTurnsByTime(t *testing.T) {
	calls := 0
	for _, c := range []struct {
		name    string
		weights []string
		gaps    []time.Duration
		of      func(src byte) time.Duration
	}{
		{"costs", []string{"1", "1"}, []time.Duration{2 * time.Microsecond, time.Microsecond}, func(src byte) time.Duration {
			return []time.Duration{20 * time.Microsecond, time.Microsecond}[src-1]
		}},
		{"weights", []string{"3", "1", "0.5"}, []time.Duration{2 * time.Microsecond, 2 * time.Microsecond, 2 * time.Microsecond}, func(byte) time.Duration { return 2 * time.Microsecond }},
		{"costs that change", []string{"1", "1"}, []time.Duration{time.Microsecond, time.Microsecond}, func(src byte) time.Duration {
			if calls++; src == 1 && calls/1000%2 > 0 {
				return 40 * time.Microsecond
			}
			return 2 * time.Microsecond
		}},
		{"a few that take long", []string{"1", "1"}, []time.Duration{time.Microsecond, time.Microsecond}, func(src byte) time.Duration {
			if calls++; src == 1 && calls%64 == 0 {
				return 100 * time.Microsecond
			}
			return 2 * time.Microsecond
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			had := make([]float64, len(c.gaps))
			x := contest{during: 200 * time.Millisecond, of: func(src byte) time.Duration {
				d := c.of(src)
				had[src-1] += d.Seconds()
				return d
			}}
			total, weights := 0., 0.
			for i, gap := range c.gaps {
				x.rivals = append(x.rivals, rival{frame: frame(byte(i+1), "0123456789"), gap: gap, weight: c.weights[i]})
			}
			x.run(t)
			for i := range had {
				var w float64
				fmt.Sscan(c.weights[i], &w)
				total, weights = total+had[i], weights+w
			}
			for i := range had {
				var w float64
				fmt.Sscan(c.weights[i], &w)
				if part := had[i] / total / (w / weights); part < .95 {
					t.Errorf("tenant %d has %.3f of its part", i, part)
				} else {
					t.Logf("tenant %d: %.3f", i, part)
				}
			}
		})
	}
}

// TestTurnsOfMany: beside 15 floods a tenant has all that it asks for, which is less than a sixteenth.
func TestTurnsOfMany(t *testing.T) {
	x := contest{during: 200 * time.Millisecond, of: func(byte) time.Duration { return 5 * time.Microsecond }}
	for i := range 16 {
		gap := 4 * time.Microsecond
		if i == 0 {
			gap = 100 * time.Microsecond // 5 %
		}
		x.rivals = append(x.rivals, rival{frame: frame(byte(i+1), "0123456789"), gap: gap})
	}
	sent, out, _ := x.run(t)
	least, most := math.MaxInt, 0
	for _, n := range out[1:] {
		least, most = min(least, n), max(most, n)
	}
	if part := float64(out[0]) / float64(sent[0]); part < .95 || float64(least) < .95*float64(most) {
		t.Errorf("it gets %.3f of what it asks for; of the floods, one has %d and another %d", part, least, most)
	}
}

// TestTurnsOfNewcomer: who begins to send has half of the time from then on, and nothing for what it has not used before.
func TestTurnsOfNewcomer(t *testing.T) {
	const each, late, during = 5 * time.Microsecond, 150 * time.Millisecond, 200 * time.Millisecond
	var had [4]time.Duration // since the second one is there, by sender
	x := contest{
		rivals: []rival{
			{frame: frame(1, "0123456789"), gap: 2 * time.Microsecond}, {frame: frame(2, "0123456789"), gap: 2 * time.Microsecond, from: late},
			{frame: frame(3, "0123456789"), gap: 100 * time.Microsecond}, // so that the first one waits for its turn from the beginning
		},
		during: during, of: func(src byte) time.Duration {
			if src == 2 || had[2] > 0 {
				had[src] += each
			}
			return each
		},
	}
	x.run(t)
	looks := own.Seconds() * (2/2e-6 + 1/100e-6)
	half := time.Duration((1 - looks - .05) / 2 * float64(during-late))
	if had[1] < half*95/100 || had[2] < half*95/100 {
		t.Errorf("in the time since there are two, the first had %v, and who came later %v: want %v each", had[1], had[2], half)
	}
}

// TestTurnsByDominantShare: of a tenant u whose frames are long, and one v whose frames are short, the port is the dominant resource of
// the one, and the worker's time that of the other. A frame of u takes 6 us, and 12.1 us of a port of 1 Gbit/s; one of v 5 us, and
// 0.5 us of the port. Dominant shares grow alike until time is used up: s * (6 / 12.1 + 1) = 1, so each has 2/3 of what is dominant. With equal turns u
// would have half of the time, and 1 of the port, nearly.
func TestTurnsByDominantShare(t *testing.T) {
	long := frameLong(1, fmt.Sprintf("%0*d", 1514-payload, 0))
	took := []time.Duration{6 * time.Microsecond, 5 * time.Microsecond}
	x := contest{
		rivals: []rival{{frame: long, gap: 9 * time.Microsecond}, {frame: frame(2, "0123456789"), gap: 2 * time.Microsecond}},
		args:   graph.Args{"port-rate": "1G", "burst": "64k"}, during: 400 * time.Millisecond, of: func(src byte) time.Duration { return took[src-1] },
	}
	_, out, _ := x.run(t)
	port := float64(out[0]) * 1514 * 8 / 1e9 / .2
	time := float64(out[1]) * took[1].Seconds() / .2
	want := 1 / (1 + 6/12.112)
	t.Logf("u has %.3f of the port, v %.3f of the time; want %.3f", port, time, want)
	if port < .95*want || time < .95*want {
		t.Errorf("u has %.3f of the port, v %.3f of the time; want %.3f", port, time, want)
	}
}

// TestLobbyHeap: whoever has had least is the first, and each tenant's frames come out as they came in.
func TestLobbyHeap(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var lb lobby
	lb.init(64)
	lb.deploy(9)
	next, last := 0, [9]uint64{}
	for range 20_000 {
		if lb.frames < 64 && rng.IntN(2) == 0 {
			next++
			lb.push(rng.IntN(9), waiting{flow: uint64(next)})
			continue
		}
		if lb.frames == 0 {
			continue
		}
		first := lb.turns[0]
		for _, k := range lb.turns {
			if lb.queues[k].n == 0 || lb.queues[k].served < lb.queues[first].served {
				t.Fatalf("tenant %d (%+v) is served before %d (%+v)", first, lb.queues[first], k, lb.queues[k])
			}
		}
		q := &lb.queues[first]
		lb.time = max(lb.time, q.served)
		if x := lb.pop(first); x.flow <= last[first] {
			t.Fatalf("of tenant %d, %d comes after %d", first, x.flow, last[first])
		} else {
			last[first] = x.flow
		}
		q.served += rng.ExpFloat64()
		lb.settle()
		n := 0
		for i := lb.free; i >= 0; i = lb.slots[i].next {
			n++
		}
		if n+lb.frames != 64 {
			t.Fatalf("%d slots are free, and %d are used", n, lb.frames)
		}
	}
}

// TestLobbyAllocates: frames that wait for their tenants' turns are not allocated for, and what has no room is dropped.
func TestLobbyAllocates(t *testing.T) {
	var b *board
	timed := *Kind()
	timed.New = func(env graph.Env, args graph.Args) (graph.App, error) {
		env.Clock = &stride{step: 200 * time.Microsecond} // for each batch that is measured, which is each
		app, err := Kind().New(env, args)
		b = app.(*board)
		return app, err
	}
	text, frames := load(4)
	l := graphtest.NewOuterLoop(t, []graph.Kind{timed, idle()}, graph.Args{"deployment": text}, "p0", frames...)
	l.Wait(20 * time.Millisecond)
	for range 200 {
		l.Breath()
	}
	if n := b.ingress.lobby.frames; n < 64 {
		t.Fatalf("%d frames wait", n)
	}
	if n := testing.AllocsPerRun(100, l.Breath); n > 0 {
		t.Errorf("%v allocations a breath", n)
	}
	if b.cat.services[0].throttled == 0 {
		t.Error("there was room for all")
	}
}

// TestTurnsOfHanded: frames that another worker hands over wait for their tenants' turns, too. Worker 1 hands over what two tenants send,
// of which one floods; worker 0 has all regions, and not the time for all.
func TestTurnsOfHanded(t *testing.T) {
	const each = 10 * time.Microsecond
	x := burning(t, 2, each, graph.Args{"packets": "4096", "deployment": `
regions: {count: 1, area: 2}
tasks:
  a: {kind: quick, args: {letter: a}, throughput: 100Gbit, credits: 64}
  b: {kind: burn, reads: [ports]}
tenants: {u: {}, v: {}}
dags: [{uid: 1, tenant: u, run: a -> b}, {uid: 2, tenant: v, run: a -> b}]
rules: [{match: "src:10.0.0.1", dag: 1}, {match: "src:10.0.0.2", dag: 2}]
`})
	clk := x.board(0).split.spent.clock.(*clock.Manual)
	var sent, out [2]int
	next := [2]clock.Time{x.now, x.now}
	gaps := [2]time.Duration{4 * each, each / 5} // a quarter of the worker, and five of it
	for end := x.now.Add(100 * time.Millisecond); x.now < end; {
		for k := range next {
			for ; next[k] <= x.now; next[k] = next[k].Add(gaps[k]) {
				x.push(1, 0, frame(byte(k+1), "00000000-."))
				sent[k]++
			}
		}
		was := clk.Now()
		x.advance(0)
		x.now = x.now.Add(max(time.Microsecond, clk.Now().Sub(was)))
		for _, f := range x.Result().Out["p1"] {
			out[f.Bytes[29]-1]++
		}
	}
	t.Logf("of %d, %d came out", sent, out)
	if part := float64(out[0]) / float64(sent[0]); part < .98 || out[1] > sent[1]/4 {
		t.Errorf("it gets %.3f of what it asks for", part)
	}
}
