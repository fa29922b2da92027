package region

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/quillon/quillon/nf/clock"
)

// Many packets of many chains come at once, for a board with few regions: each
// chain is launched once, in order of arrival, everybody's turn comes, and no
// region is switched more than once a monitor period.
func TestThunderingHerd(t *testing.T) {
	cfg := Default(4, 1)
	b := newBoard(t, cfg)
	const chains = 60
	for i := 100; i < 100+chains; i++ {
		must(t, b.SetTask(i, 10*gbit))
		must(t, b.Add(i, Chain{Area: 1, Tasks: []int{i}}))
	}
	for range 100 {
		for i := 100; i < 100+chains; i++ {
			d := b.launch(Demand{Chain: i, NoPeer: true})
			if d.Choice == Refused {
				t.Fatalf("chain %d: %v", i, d.Reason)
			}
		}
	}
	var ran []int
	last := map[int]clock.Time{}
	for b.Waiting() > 0 || b.Next() != clock.Never {
		if b.now > clock.Time(2*chains*10*ms) {
			t.Fatalf("%d still wait", b.Waiting())
		}
		b.to(b.Next())
	}
	for _, e := range b.all {
		switch e.Kind {
		case Run:
			ran = append(ran, e.Chain)
			last[e.Region] = e.At
		case Stop:
			if ran := e.At.Sub(last[e.Region]); ran < cfg.Monitor {
				t.Errorf("region %d ran chain %d for %v only", e.Region, e.Chain, ran)
			}
		}
	}
	if len(ran) != chains || !slices.IsSorted(ran) {
		t.Errorf("%d chains ran, want %d in order: %v", len(ran), chains, ran)
	}
	if n := b.Stats().PRs[OnDemand]; n != chains {
		t.Errorf("%d PRs for %d chains", n, chains)
	}
	// The port is never idle: a PR after the other.
	if want := clock.Time(chains * 5 * ms); b.now != want {
		t.Errorf("done at %d, want %d", b.now, want)
	}
}

// The least loaded region is switched, not the one that was used less recently.
func TestLeastLoaded(t *testing.T) {
	b := newBoard(t, Default(3, 1))
	for i := range 3 {
		b.launch(Demand{Chain: i})
	}
	b.to(clock.Time(15 * ms))
	b.drive(clock.Time(25*ms), func(now clock.Time, task int) float64 {
		switch {
		case task == 1 && now > clock.Time(22*ms):
			return gbit // used last, and least
		case task == 0 || task == 2 && now < clock.Time(24*ms):
			return 5 * gbit
		}
		return 0
	})
	b.choice(Demand{Chain: 3, NoPeer: true}, Switch, 1)
	if d := b.launch(Demand{Chain: 2}); d.Choice != ShareRunning {
		t.Errorf("%+v", d)
	}
}

// Who waits for a small region does not wait for those who need a large one.
func TestSmallOnesPass(t *testing.T) {
	cfg := Default(0, 0)
	cfg.Areas = []int{1, 2}
	b := newBoard(t, cfg)
	must(t, b.Add(20, Chain{Area: 2, Tasks: []int{0}}))
	must(t, b.Add(21, Chain{Area: 2, Tasks: []int{1}}))
	b.choice(Demand{Chain: 2}, LoadFree, 0)
	b.choice(Demand{Chain: 20}, LoadFree, 1)
	again := func(at clock.Duration, chain, region int) {
		t.Helper()
		b.to(clock.Time(at * ms))
		b.Release(b.now, region)
		b.take()
		b.choice(Demand{Chain: chain}, Revive, region)
	}
	again(12, 2, 0)
	again(13, 20, 1)
	b.log = nil
	b.choice(Demand{Chain: 21, NoPeer: true}, Wait, -1)
	b.choice(Demand{Chain: 3, NoPeer: true}, Wait, -1)
	b.to(clock.Time(40 * ms))
	b.want("17 stop r0 c2", "17 evict r0 c2", "17 load r0 c3", "22 run r0 c3",
		"22 stop r1 c20", "22 evict r1 c20", "22 load r1 c21", "27 run r1 c21")
}

func TestPortPriority(t *testing.T) {
	b := newBoard(t, Default(5, 1))
	for i := range 4 {
		b.launch(Demand{Chain: i, Pre: true})
	}
	b.launch(Demand{Chain: 2, Pre: true}) // there already: nothing changes
	b.launch(Demand{Chain: 5})            // goes first
	b.launch(Demand{Chain: 3})            // goes before 1 and 2 now
	b.to(clock.Time(40 * ms))
	b.want("0 load r0 c0", "5 run r0 c0", "5 load r4 c5", "10 run r4 c5", "10 load r3 c3", "15 run r3 c3",
		"15 load r1 c1", "20 run r1 c1", "20 load r2 c2", "25 run r2 c2")
}

// The chain's own victim goes before one that has its tasks among others.
func TestOwnVictim(t *testing.T) {
	b := newBoard(t, Default(3, 2))
	must(t, b.Add(20, Chain{Area: 2, Tasks: []int{0, 1}}))
	b.choice(Demand{Chain: 20}, LoadFree, 0)
	b.choice(Demand{Chain: 0, Rate: 10 * gbit}, ShareRunning, 0)
	b.choice(Demand{Chain: 0, Rate: 10 * gbit}, LoadFree, 1)
	b.to(clock.Time(10 * ms))
	b.Release(b.now, 0)
	b.Release(b.now, 1)
	b.take()
	b.choice(Demand{Chain: 0}, Revive, 1)
	b.choice(Demand{Chain: 1}, Revive, 0)
}

// A chain without state stops as soon as it is empty.
func TestNothingToSave(t *testing.T) {
	cfg := Default(1, 1)
	cfg.Stop = ms
	b := newBoard(t, cfg)
	b.launch(Demand{Chain: 0})
	b.to(clock.Time(10 * ms))
	b.Release(b.now, 0)
	b.take()
	b.want("0 load r0 c0", "5 run r0 c0", "10 stop r0 c0", "10 freed r0")
}

// What was promised is forgotten when it is measured, or when nothing is left; a
// region that runs again has no load of the past.
func TestPromises(t *testing.T) {
	b := newBoard(t, Default(1, 1))
	b.launch(Demand{Chain: 0, Rate: 8 * gbit})
	b.to(clock.Time(5 * ms))
	b.Sample(b.now)
	if left := b.Left(0); math.Abs(left-2*gbit) > 1 {
		t.Errorf("%g left", left)
	}
	b.drive(clock.Time(50*ms), func(_ clock.Time, task int) float64 {
		if task == 0 {
			return 3 * gbit
		}
		return 0
	})
	if left := b.Left(0); math.Abs(left-7*gbit) > 0.01*gbit {
		t.Errorf("%g left", left)
	}
	b.Load(0, 0, 100e3)
	b.Sample(b.now.Add(epoch)) // 40 Gb/s, for a moment
	if left := b.Left(0); left < 6*gbit || left > 6.9*gbit {
		t.Errorf("%g left", left)
	}
	b.launch(Demand{Chain: 0, Rate: 6 * gbit})
	b.Release(b.now, 0)
	b.take()
	b.choice(Demand{Chain: 0}, Revive, 0)
	if left := b.Left(0); math.Abs(left-10*gbit) > 1 || b.Region(0).Load != 0 {
		t.Errorf("%g left, load of %g", left, b.Region(0).Load)
	}
}

// A victim that ran again later is more recently used, though no packet came.
func TestRunningIsUse(t *testing.T) {
	b := newBoard(t, Default(2, 1))
	b.launch(Demand{Chain: 0})
	b.launch(Demand{Chain: 1})
	b.to(clock.Time(20 * ms))
	b.Release(b.now, 0)
	b.Release(b.now, 1)
	b.take()
	b.choice(Demand{Chain: 0}, Revive, 0)
	b.Release(b.now, 0)
	b.take()
	b.choice(Demand{Chain: 2}, LoadFree, 1)
}

func TestQueueFull(t *testing.T) {
	cfg := Default(1, 1)
	cfg.Waiting = 2
	b := newBoard(t, cfg)
	b.choice(Demand{Chain: 0, NoPeer: true}, LoadFree, 0)
	b.choice(Demand{Chain: 1, NoPeer: true}, Wait, -1)
	b.choice(Demand{Chain: 2, NoPeer: true}, Wait, -1)
	if d := b.choice(Demand{Chain: 3, NoPeer: true}, Refused, -1); d.Reason != QueueFull {
		t.Errorf("%v", d.Reason)
	}
	b.choice(Demand{Chain: 1, NoPeer: true}, Wait, -1)
	b.Remove(b.now, 1)
	b.choice(Demand{Chain: 3, NoPeer: true}, Wait, -1)
	b.to(clock.Time(40 * ms))
	b.want("0 load r0 c0", "0 gone c1", "5 run r0 c0",
		"10 stop r0 c0", "10 evict r0 c0", "10 load r0 c2", "15 run r0 c2",
		"20 stop r0 c2", "20 evict r0 c2", "20 load r0 c3", "25 run r0 c3")
}

// A region that does not stop is taken away; what is said later has no effect, not
// even when the region is stopping again.
func TestLateStopped(t *testing.T) {
	cfg := Default(1, 1)
	cfg.Patience = 3 * ms
	b := newBoard(t, cfg)
	b.slow = true
	b.choice(Demand{Chain: 0, NoPeer: true}, LoadFree, 0)
	b.to(clock.Time(10 * ms))
	b.choice(Demand{Chain: 1, NoPeer: true}, Switch, 0)
	late := b.all[len(b.all)-1]
	b.to(clock.Time(30 * ms))
	b.want("0 load r0 c0", "5 run r0 c0", "10 stop r0 c0",
		"13 kill r0 c0", "13 evict r0 c0", "13 load r0 c1", "18 run r0 c1")
	if b.Stopped(b.now, 0, late.Seq) {
		t.Error("a running region has stopped")
	}
	b.choice(Demand{Chain: 2, NoPeer: true}, Switch, 0)
	again := b.all[len(b.all)-1]
	if late.Kind != Stop || again.Kind != Stop || b.Stopped(b.now, 0, late.Seq) {
		t.Error("the first stop was taken for the second")
	}
	if !b.Stopped(b.now, 0, again.Seq) || b.Stopped(b.now, 0, again.Seq) || b.Stopped(b.now, 7, 1) || b.Stopped(b.now, -1, 1) {
		t.Error("stopped")
	}
	b.take()
	b.to(clock.Time(40 * ms))
	if v := b.Region(0); v.State != Running || v.Chain != 2 {
		t.Errorf("%+v", v)
	}
}

// A region is stopped no sooner than the port will be free: until then its chain
// serves its packets.
func TestStopWaitsForPort(t *testing.T) {
	cfg := Default(3, 1)
	cfg.Stop = ms
	b := newBoard(t, cfg)
	for i := range 2 {
		must(t, b.Add(20+i, Chain{Area: 1, Tasks: []int{i}, Save: true}))
		b.launch(Demand{Chain: 20 + i})
	}
	b.to(clock.Time(20 * ms))
	b.log = nil
	b.choice(Demand{Chain: 2, NoPeer: true}, LoadFree, 2)
	b.choice(Demand{Chain: 3, NoPeer: true}, Wait, -1)
	b.to(clock.Time(40 * ms))
	b.want("20 load r2 c2", "24 stop r0 c20", "25 run r2 c2", "25 evict r0 c20", "25 load r0 c3", "30 run r0 c3")
}

// Nor while another demand is the next for the port.
func TestStopWaitsForQueue(t *testing.T) {
	cfg := Default(3, 1)
	cfg.Stop = 4 * ms
	b := newBoard(t, cfg)
	b.launch(Demand{Chain: 0})
	b.to(clock.Time(20 * ms))
	b.log = nil
	b.launch(Demand{Chain: 1})
	b.launch(Demand{Chain: 2})
	b.to(clock.Time(22 * ms))
	b.choice(Demand{Chain: 3, NoPeer: true}, Wait, -1)
	b.to(clock.Time(32 * ms))
	b.want("20 load r1 c1", "25 run r1 c1", "25 load r2 c2", "26 stop r0 c0", "26 evict r0 c0", "30 run r2 c2", "30 load r0 c3")
}

// The region of a launch that nobody waits for is taken only if it is large enough.
func TestTakeBackFits(t *testing.T) {
	cfg := Default(0, 0)
	cfg.Areas = []int{2, 2, 1}
	b := newBoard(t, cfg)
	must(t, b.Add(20, Chain{Area: 2, Tasks: []int{0}}))
	must(t, b.Add(21, Chain{Area: 2, Tasks: []int{1}}))
	must(t, b.Add(22, Chain{Area: 2, Tasks: []int{2}}))
	b.launch(Demand{Chain: 20, Pre: true})
	b.launch(Demand{Chain: 21, Pre: true})
	b.choice(Demand{Chain: 3, Pre: true}, LoadFree, 2)
	b.choice(Demand{Chain: 22, NoPeer: true}, LoadFree, 1)
	b.want("0 load r0 c20", "0 revoke r1 c21")
}

// Launches before demand are given up before those that help an overloaded task,
// the last one first.
func TestTakeBackOrder(t *testing.T) {
	b := newBoard(t, Default(5, 1))
	b.launch(Demand{Chain: 0})
	b.to(clock.Time(5 * ms))
	b.Sample(b.now)
	load := func(_ clock.Time, task int) float64 {
		if task == 0 {
			return 30 * gbit
		}
		return 0
	}
	b.drive(clock.Time(9*ms), load)
	b.launch(Demand{Chain: 1})
	b.choice(Demand{Chain: 2, Pre: true}, LoadFree, 2)
	b.choice(Demand{Chain: 3, Pre: true}, LoadFree, 3)
	b.drive(clock.Time(11*ms), load)
	b.log = nil
	b.choice(Demand{Chain: 4}, LoadFree, 3)
	b.choice(Demand{Chain: 5}, LoadFree, 2)
	b.choice(Demand{Chain: 6}, LoadFree, 4)
	b.choice(Demand{Chain: 7}, Remote, -1)
	b.want("11 revoke r3 c3", "11 revoke r2 c2", "11 revoke r4 c0")
}

// With nothing left, and nothing known of what comes, another instance is better.
func TestNothingLeft(t *testing.T) {
	b := newBoard(t, Default(2, 1))
	b.choice(Demand{Chain: 0, Rate: 10 * gbit}, LoadFree, 0)
	b.choice(Demand{Chain: 0}, LoadFree, 1)
	b.choice(Demand{Chain: 0}, ShareRunning, 0)
}

func TestFailure(t *testing.T) {
	cfg := Default(0, 0)
	cfg.Areas = []int{2, 1}
	b := newBoard(t, cfg)
	must(t, b.Add(20, Chain{Area: 2, Tasks: []int{0, 1}}))
	b.choice(Demand{Chain: 2}, LoadFree, 1)
	b.choice(Demand{Chain: 20}, LoadFree, 0)
	b.to(clock.Time(6 * ms))
	// During its PR: the demand waits again, and is refused as no other region fits.
	if !b.Fail(b.now, 0) || b.Fail(b.now, 0) || b.Fail(b.now, 2) {
		t.Error("fail")
	}
	b.take()
	b.want("0 load r1 c2", "5 run r1 c2", "5 load r0 c20", "6 revoke r0 c20", "6 refuse c20")
	if d := b.choice(Demand{Chain: 20, NoPeer: true}, Refused, -1); d.Reason != TooLarge {
		t.Errorf("%v", d.Reason)
	}
	b.choice(Demand{Chain: 20}, Remote, -1)
	// A smaller one waits for the region that is left.
	b.choice(Demand{Chain: 3, NoPeer: true}, Wait, -1)
	b.Fail(b.now, 1)
	b.take()
	b.to(clock.Time(20 * ms))
	b.want("6 evict r1 c2", "6 refuse c3")
}

// A demand whose region fails is the first of those that wait.
func TestFailedGoesFirst(t *testing.T) {
	b := newBoard(t, Default(2, 1))
	b.choice(Demand{Chain: 0}, LoadFree, 0)
	b.choice(Demand{Chain: 1}, LoadFree, 1)
	b.choice(Demand{Chain: 2, NoPeer: true}, Wait, -1)
	b.Fail(b.now, 1)
	b.take()
	b.to(clock.Time(40 * ms))
	b.want("0 load r0 c0", "0 revoke r1 c1", "5 run r0 c0", "10 stop r0 c0", "10 evict r0 c0", "10 load r0 c1",
		"15 run r0 c1", "20 stop r0 c1", "20 evict r0 c1", "20 load r0 c2", "25 run r0 c2")
}

func TestRemove(t *testing.T) {
	b := newBoard(t, Default(3, 1))
	b.launch(Demand{Chain: 0})
	b.to(clock.Time(5 * ms))
	b.launch(Demand{Chain: 0, Rate: 20 * gbit}) // loading
	b.launch(Demand{Chain: 0, Rate: 20 * gbit}) // queued
	b.log = nil
	if !b.Remove(b.now, 0) || b.Remove(b.now, 0) || b.Remove(b.now, 77) {
		t.Error("remove")
	}
	b.take()
	if d := b.choice(Demand{Chain: 0}, Refused, -1); d.Reason != Unknown {
		t.Errorf("%v", d.Reason)
	}
	if err := b.Add(0, Chain{Area: 1, Tasks: []int{0}}); err == nil {
		t.Error("added while something of it is left")
	}
	b.to(clock.Time(20 * ms))
	b.want("5 stop r0 c0", "5 revoke r2 c0", "5 freed r2", "5 evict r0 c0", "5 freed r0",
		"10 evict r1 c0", "10 gone c0", "10 freed r1")
	must(t, b.Add(0, Chain{Area: 1, Tasks: []int{0}}))
	b.choice(Demand{Chain: 0}, LoadFree, 0)
}

// Time that goes back stands.
func TestTimeStands(t *testing.T) {
	b := newBoard(t, Default(1, 1))
	b.launch(Demand{Chain: 0})
	b.to(clock.Time(20 * ms))
	b.Advance(clock.Time(ms))
	b.Sample(clock.Time(ms))
	b.Launch(clock.Time(ms), Demand{Chain: 1, NoPeer: true})
	for _, e := range b.Events() {
		if e.At != clock.Time(20*ms) {
			t.Errorf("%+v", e)
		}
	}
}

func TestConfigErrors(t *testing.T) {
	for want, change := range map[string]func(*Config){
		"0 regions":        func(c *Config) { c.Areas = nil },
		"area 0":           func(c *Config) { c.Areas[1] = 0 },
		"bytes a second":   func(c *Config) { c.Rate = 0 },
		"bitstreams of":    func(c *Config) { c.Bitstream = -1 },
		"stop -1ns":        func(c *Config) { c.Stop = -1 },
		"idle -1ns":        func(c *Config) { c.Idle = -1 },
		"want 0 to 24h":    func(c *Config) { c.Stop = math.MaxInt64 },
		"patience 2562047": func(c *Config) { c.Patience = math.MaxInt64 },
		"is less than":     func(c *Config) { c.Patience, c.Stop = 1, 2 },
		"more than 0":      func(c *Config) { c.Monitor = 0 },
		"longer than":      func(c *Config) { c.Monitor = 5*ms - 1 },
		"the first to be":  func(c *Config) { c.Under = c.Over },
		"underloaded":      func(c *Config) { c.Under = math.NaN() },
		"0 to 1":           func(c *Config) { c.Victims = 1.1 },
		"(keep)":           func(c *Config) { c.Keep = math.NaN() },
		"room for":         func(c *Config) { c.Waiting = -1 },
		"room for 9":       func(c *Config) { c.Waiting = math.MaxInt },
		"9223372036854775": func(c *Config) { c.Bitstream = math.MaxInt64; c.Rate = 1 },
	} {
		c := Default(2, 1)
		change(&c)
		if _, err := New(0, c); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", want, err)
		}
	}
	b := newBoard(t, Default(2, 3))
	for want, c := range map[string]Chain{
		"area of 4":     {Area: 4, Tasks: []int{0}},
		"area of 0":     {Tasks: []int{0}},
		"-1 bytes":      {Area: 1, Bitstream: -1, Tasks: []int{0}},
		"0 tasks":       {Area: 1},
		"17 tasks":      {Area: 1, Tasks: make([]int, 17)},
		"task 8":        {Area: 1, Tasks: []int{0, 8}},
		"task -1":       {Area: 1, Tasks: []int{-1}},
		"task 3 twice":  {Area: 1, Tasks: []int{3, 1, 3}},
		"longer than":   {Area: 1, Tasks: []int{0}, Bitstream: 4e6 + 1},
		"chain 50: reg": {Area: 1, Tasks: []int{0}, Bitstream: math.MaxInt64},
	} {
		if err := b.Add(50, c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	for _, id := range []int{-1, maxID, 0} {
		if err := b.Add(id, Chain{Area: 1, Tasks: []int{0}}); err == nil {
			t.Errorf("chain %d was added", id)
		}
	}
	for _, bits := range []float64{-1, math.NaN(), math.Inf(1), 0.5} {
		if err := b.SetTask(0, bits); err == nil {
			t.Errorf("throughput of %g", bits)
		}
	}
	if b.SetTask(-1, 1) == nil || b.SetTask(maxID, 1) == nil {
		t.Error("task")
	}
}

// Left is what a peer may be told: bandwidth in the chain's scarcest task.
func TestLeft(t *testing.T) {
	b := newBoard(t, Default(2, 2))
	must(t, b.SetTask(1, 20*gbit))
	must(t, b.Add(20, Chain{Area: 2, Tasks: []int{0, 1}}))
	if b.Left(20) != 0 || b.Left(99) != 0 || b.Free() != 2 {
		t.Error("left")
	}
	b.launch(Demand{Chain: 20, Rate: 4 * gbit})
	near := func(chain int, want float64) {
		t.Helper()
		if got := b.Left(chain); math.Abs(got-want) > 1 {
			t.Errorf("chain %d: %g left, want %g", chain, got, want)
		}
	}
	near(20, 6*gbit)
	near(1, 16*gbit)
	near(2, 0)
}

// steady is a board under a load that launches, scales, stops and switches.
func steady(tb testing.TB) (*board, func()) {
	cfg := Default(6, 1)
	cfg.Idle = 20 * ms
	b := newBoard(tb, cfg)
	k := 0
	return b, func() {
		b.now = b.now.Add(epoch)
		b.Advance(b.now)
		k++
		switch { // many chains for a while, then few that come and go
		case k%20000 < 5000 && k%100 == 0:
			b.Launch(b.now, Demand{Chain: k / 100 % 8, Rate: gbit, NoPeer: true})
		case k%2000 == 0:
			b.Launch(b.now, Demand{Chain: k / 2000 % 8, Rate: gbit, NoPeer: true})
		}
		b.Load(k%6, k/2000%8, 100000)
		b.Load(k%6, k/3000%8, 30000)
		b.Sample(b.now)
		for {
			ev := b.Events()
			if len(ev) == 0 {
				break
			}
			for _, e := range ev {
				if e.Kind == Stop {
					b.Stopped(b.now, e.Region, e.Seq)
				}
			}
		}
	}
}

func TestNoAllocations(t *testing.T) {
	b, step := steady(t)
	for range 30000 {
		step()
	}
	before := b.Stats()
	if n := testing.AllocsPerRun(60000, step); n != 0 {
		t.Errorf("%g allocations an epoch", n)
	}
	st := b.Stats()
	if st.PRs[OnDemand] == before.PRs[OnDemand] || st.PRs[Scaled] == before.PRs[Scaled] || st.Revived == before.Revived ||
		st.ScaledIn == before.ScaledIn || st.Switched == before.Switched || st.Overloads == before.Overloads {
		t.Errorf("not everything happened: %+v", st)
	}
}

// An epoch of a board with 6 regions that launches, scales and switches.
func BenchmarkEpoch(b *testing.B) {
	b.ReportAllocs()
	_, step := steady(b)
	for b.Loop() {
		step()
	}
}

// One demand for a chain that runs.
func BenchmarkShare(b *testing.B) {
	x := newBoard(b, Default(16, 1))
	for i := range 8 {
		x.launch(Demand{Chain: i})
	}
	x.to(clock.Time(50 * ms))
	for b.Loop() {
		x.Launch(x.now, Demand{Chain: 5})
	}
}

func TestNames(t *testing.T) {
	for i, s := range map[int]string{int(States): States.String(), int(Causes): Causes.String(), int(kinds): kinds.String(), int(Choices): Choices.String(), int(Reasons): Reasons.String()} {
		if s != "?" {
			t.Errorf("%d is %q", i, s)
		}
	}
	if Victim.String() != "victim" || Scaled.String() != "scale-out" || Gone.String() != "gone" || Refused.String() != "refused" || QueueFull.String() != "too many chains wait" {
		t.Error("names")
	}
}

// TestEndless: a demand without bounds keeps others out for a while, not for ever.
func TestEndless(t *testing.T) {
	for _, rate := range []float64{math.Inf(1), math.MaxFloat64, math.NaN(), -1} {
		b := newBoard(t, Default(1, 1))
		b.launch(Demand{Chain: 0, Rate: rate})
		for range 60 * int(5*ms/epoch) {
			b.now = b.now.Add(epoch)
			b.Load(0, 0, 1)
			b.Sample(b.now)
		}
		if left := b.Left(0); !(left > 9.9*gbit && left <= 10*gbit) {
			t.Errorf("rate %g: %g left at last", rate, left)
		}
		if d := b.Launch(b.now, Demand{Chain: 0, Rate: 20 * gbit}); d.Choice == ShareRunning {
			t.Errorf("rate %g: %+v", rate, d)
		}
	}
}

// TestBacklogIsNoLoad: what came for a task while nobody had it is not load of the
// instance that comes at last.
func TestBacklogIsNoLoad(t *testing.T) {
	b := newBoard(t, Default(2, 1))
	handle := func(n int) {
		for range n {
			b.now = b.now.Add(epoch)
			b.Load(-1, 0, 12500) // half of what an instance can
			b.Sample(b.now)
			b.take()
		}
	}
	handle(int(1000 * ms / epoch))
	b.launch(Demand{Chain: 0})
	handle(int(30 * ms / epoch))
	if _, load := b.Task(0); math.Abs(load-0.5) > 0.01 {
		t.Errorf("a load of %g, want 0.5", load)
	}
	if left := b.Left(0); math.Abs(left-5*gbit) > 0.1*gbit {
		t.Errorf("%g left", left)
	}
}

// TestFullBoard: a sample of the largest board, all of whose tasks are overloaded and
// none of which can be scaled, looks at each region a few times, and tells of each
// task once a period.
func TestFullBoard(t *testing.T) {
	b := newBoard(t, Default(MaxRegions, 1))
	for i := range MaxRegions {
		must(t, b.SetTask(i, 10*gbit))
		if i >= 8 {
			must(t, b.Add(i, Chain{Area: 1, Tasks: []int{i}}))
		}
		b.launch(Demand{Chain: i})
	}
	b.to(clock.Time(MaxRegions * 5 * ms))
	b.all = nil
	for range 2 * int(5*ms/epoch) {
		b.now = b.now.Add(epoch)
		for i := range MaxRegions {
			b.Load(i, i, 50000)
		}
		b.Sample(b.now)
		b.take()
	}
	told := make([]int, MaxRegions)
	for _, e := range b.all {
		if e.Kind == Overload {
			told[e.Task]++
		}
	}
	if n := slices.Max(told); n != 1 || slices.Min(told) != 1 {
		t.Errorf("tasks were told of %d to %d times", slices.Min(told), n)
	}
}
