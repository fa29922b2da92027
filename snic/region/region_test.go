package region

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/quillon/quillon/nf/clock"
)

const (
	us    = clock.Duration(1e3)
	ms    = clock.Duration(1e6)
	epoch = 20 * us
	gbit  = 1e9
)

// board is a Fabric and a body that stops regions at once (unless told not to),
// and notes the events.
type board struct {
	*Fabric
	t    testing.TB
	now  clock.Time
	slow bool // regions stop when the test says so
	log  []string
	all  []Event
}

// newBoard has tasks 0 to 7 of 10 Gb/s, and chain i of task i alone.
func newBoard(t testing.TB, cfg Config) *board {
	t.Helper()
	f, err := New(0, cfg)
	if err != nil {
		t.Fatal(err)
	}
	b := &board{Fabric: f, t: t}
	for i := range 8 {
		must(t, f.SetTask(i, 10*gbit))
		must(t, f.Add(i, Chain{Area: 1, Tasks: []int{i}}))
	}
	return b
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// take does what events ask for, and notes them.
func (b *board) take() {
	b.t.Helper()
	for {
		ev := b.Events()
		if len(ev) == 0 {
			break
		}
		for _, e := range ev {
			b.all = append(b.all, e)
			s := fmt.Sprintf("%g %v", float64(e.At)/1e6, e.Kind)
			if e.Region >= 0 {
				s += fmt.Sprintf(" r%d", e.Region)
			}
			if e.Chain >= 0 {
				s += fmt.Sprintf(" c%d", e.Chain)
			}
			if e.Task >= 0 {
				s += fmt.Sprintf(" t%d", e.Task)
			}
			b.log = append(b.log, s)
			if e.Kind == Stop && !b.slow && !b.Stopped(b.now, e.Region, e.Seq) {
				b.t.Fatalf("%s: did not wait for Stopped", s)
			}
		}
	}
	if err := b.Check(); err != nil {
		b.t.Fatalf("%g ms: %v\n%s", float64(b.now)/1e6, err, strings.Join(b.log, "\n"))
	}
}

// to lets time pass, event by event.
func (b *board) to(at clock.Time) {
	b.t.Helper()
	for b.Next() <= at {
		b.now = max(b.now, b.Next())
		b.Advance(b.now)
		b.take()
	}
	b.now = max(b.now, at)
	b.Advance(b.now)
	b.take()
}

func (b *board) launch(d Demand) Decision {
	b.t.Helper()
	dec := b.Launch(b.now, d)
	b.take()
	return dec
}

// want compares the events since the last call.
func (b *board) want(lines ...string) {
	b.t.Helper()
	if !slices.Equal(b.log, lines) {
		b.t.Errorf("events:\n\t%s\nwant:\n\t%s", strings.Join(b.log, "\n\t"), strings.Join(lines, "\n\t"))
	}
	b.log = b.log[:0]
}

// drive lets time pass in epochs, with a load in bits a second for each task.
func (b *board) drive(until clock.Time, load func(now clock.Time, task int) float64) {
	b.t.Helper()
	var carry [8]float64
	for b.now < until {
		next := b.now.Add(epoch)
		for b.Next() <= next {
			b.to(b.Next())
		}
		for task := range 8 {
			bytes := load(b.now, task)*float64(epoch)/8e9 + carry[task]
			whole := int64(bytes)
			carry[task] = bytes - float64(whole)
			// Spread over the regions that have the task.
			var at []int
			for i := range b.Regions() {
				if v := b.Region(i); v.State == Running && slices.Contains(b.plan.chains[v.Chain].tasks, task) {
					at = append(at, i)
				}
			}
			for k, i := range at {
				part := whole / int64(len(at)-k)
				b.Load(i, task, part)
				whole -= part
			}
			b.Load(-1, task, whole)
		}
		b.to(next)
		b.Sample(next)
		b.take()
	}
}

func (b *board) choice(d Demand, want Choice, region int) Decision {
	b.t.Helper()
	dec := b.launch(d)
	if dec.Choice != want || dec.Region != region {
		b.t.Errorf("%+v: %v in region %d (%v), want %v in %d", d, dec.Choice, dec.Region, dec.Reason, want, region)
	}
	return dec
}

func TestOrderOfChoices(t *testing.T) {
	cfg := Default(2, 1)
	b := newBoard(t, cfg)
	// 3: a free region, by PR.
	if d := b.choice(Demand{Chain: 0, Rate: 6 * gbit}, LoadFree, 0); d.At != clock.Time(5*ms) {
		t.Errorf("usable at %d, want 5 ms", d.At)
	}
	// 1: it is shared before it runs, while bandwidth is left.
	if d := b.choice(Demand{Chain: 0, Rate: 3 * gbit}, ShareRunning, 0); d.At != clock.Time(5*ms) || d.Full {
		t.Errorf("shared: %+v", d)
	}
	b.to(clock.Time(5 * ms))
	b.want("0 load r0 c0", "5 run r0 c0")
	if d := b.choice(Demand{Chain: 0}, ShareRunning, 0); d.At != b.now {
		t.Errorf("shared: %+v", d)
	}
	// No bandwidth left: 3 again.
	b.choice(Demand{Chain: 0, Rate: 2 * gbit}, LoadFree, 1)
	b.to(clock.Time(10 * ms))
	b.want("5 load r1 c0", "10 run r1 c0")
	// 2: a victim, at once.
	b.Release(b.now, 1)
	b.take()
	b.want("10 stop r1 c0", "10 freed r1")
	if d := b.choice(Demand{Chain: 0, Rate: 9 * gbit}, Revive, 1); d.At != b.now {
		t.Errorf("revived: %+v", d)
	}
	b.want("10 run r1 c0")
	// 4: other boards; 5: the endpoint; 6: the least loaded.
	must(t, b.Add(8, Chain{Area: 1, Tasks: []int{4}, Endpoint: true}))
	b.choice(Demand{Chain: 8}, Remote, -1)
	b.choice(Demand{Chain: 8, NoPeer: true}, Endpoint, -1)
	b.choice(Demand{Chain: 8, Pre: true}, Refused, -1)
	b.choice(Demand{Chain: 8, NoPeer: true, NoEndpoint: true, NoSwitch: true}, Refused, -1)
	// A chain that is here is never launched by a switch.
	if d := b.choice(Demand{Chain: 0, Rate: 99 * gbit, NoPeer: true}, ShareRunning, 0); !d.Full {
		t.Errorf("shared: %+v", d)
	}
	// Region 1 runs since 10 ms: not before 15 ms, however little it does.
	b.Load(0, 0, 1000)
	b.Sample(b.now.Add(us))
	b.take()
	if d := b.choice(Demand{Chain: 8, NoPeer: true, NoEndpoint: true}, Switch, 0); d.Chain != 8 {
		t.Errorf("switched: %+v", d)
	}
	b.choice(Demand{Chain: 1, NoPeer: true}, Wait, -1)
	b.choice(Demand{Chain: 1, NoPeer: true}, Wait, -1)
	b.log = nil
	b.to(clock.Time(30 * ms))
	b.want("15.001 run r0 c8", "15.001 stop r1 c0", "15.001 evict r1 c0", "15.001 load r1 c1", "20.001 run r1 c1")
	b.choice(Demand{Chain: 99}, Refused, -1)
}

// An instance of another chain that has the tasks, in order, is as good.
func TestShareSkips(t *testing.T) {
	b := newBoard(t, Default(2, 3))
	must(t, b.Add(10, Chain{Area: 3, Tasks: []int{0, 1, 2}}))
	must(t, b.Add(11, Chain{Area: 2, Tasks: []int{0, 2}}))
	must(t, b.Add(12, Chain{Area: 2, Tasks: []int{2, 0}}))
	b.choice(Demand{Chain: 10}, LoadFree, 0)
	if d := b.choice(Demand{Chain: 11}, ShareRunning, 0); d.Chain != 10 {
		t.Errorf("shared: %+v", d)
	}
	b.choice(Demand{Chain: 12}, LoadFree, 1)
}

// The smallest free region that is large enough, then the victim least recently
// used.
func TestWhichRegion(t *testing.T) {
	cfg := Default(0, 0)
	cfg.Areas = []int{4, 2, 3, 2}
	b := newBoard(t, cfg)
	must(t, b.Add(10, Chain{Area: 2, Tasks: []int{0}}))
	must(t, b.Add(11, Chain{Area: 3, Tasks: []int{1}}))
	must(t, b.Add(12, Chain{Area: 4, Tasks: []int{2}}))
	b.choice(Demand{Chain: 11}, LoadFree, 2)
	b.choice(Demand{Chain: 10}, LoadFree, 1)
	b.choice(Demand{Chain: 3}, LoadFree, 3)
	b.choice(Demand{Chain: 12}, LoadFree, 0)
	b.to(clock.Time(20 * ms))
	b.drive(clock.Time(21*ms), func(_ clock.Time, task int) float64 {
		if task == 2 {
			return 0 // region 0, though it was launched last
		}
		return gbit
	})
	for i := range 4 {
		b.Release(b.now, i)
	}
	b.take()
	b.log = nil
	b.choice(Demand{Chain: 4}, LoadFree, 0)
	b.want("21 evict r0 c12", "21 load r0 c4")
}

func TestPreLaunch(t *testing.T) {
	b := newBoard(t, Default(3, 1))
	pre := func(id int, want Choice, region int) {
		t.Helper()
		b.choice(Demand{Chain: id, Pre: true}, want, region)
	}
	pre(0, LoadFree, 0)
	pre(1, LoadFree, 1)
	pre(2, LoadFree, 2)
	pre(0, ShareRunning, 0)
	pre(3, Refused, -1)
	// A demand goes before what nobody waits for: chain 2 is promoted, and chain 3
	// takes the region of chain 1, whose PR has not begun.
	b.choice(Demand{Chain: 2}, ShareRunning, 2)
	b.choice(Demand{Chain: 3}, LoadFree, 1)
	b.to(clock.Time(15 * ms))
	b.want("0 load r0 c0", "0 revoke r1 c1",
		"5 run r0 c0", "5 load r2 c2", "10 run r2 c2", "10 load r1 c3", "15 run r1 c3")
	// Into a victim's region, too; but the victim of the chain itself just runs.
	b.Release(b.now, 0)
	b.Release(b.now, 1)
	b.take()
	pre(3, Revive, 1)
	pre(1, LoadFree, 0)
}

func TestVictimLimit(t *testing.T) {
	for _, c := range []struct {
		victims, keep float64
		want          int
	}{{1, 1, 4}, {0.5, 1, 2}, {0.3, 1, 1}, {0.2, 1, 0}, {0, 1, 0}, {1, 0.5, 2}, {1, 0, 0}, {1, 0.25, 1}} {
		cfg := Default(4, 1)
		cfg.Victims, cfg.Keep = c.victims, c.keep
		b := newBoard(t, cfg)
		for i := range 4 {
			b.choice(Demand{Chain: i}, LoadFree, i)
		}
		b.to(clock.Time(20 * ms))
		for i := range 4 {
			b.Release(b.now, i)
			b.take()
		}
		if n := b.plan.count(Victim); n != c.want {
			t.Errorf("%+v: %d victims", c, n)
		}
		if c.want > 0 && c.keep == 1 && b.Region(3).State != Victim {
			t.Errorf("%+v: the chain last used is gone", c)
		}
		prs := b.Stats().PRs[OnDemand]
		for i := range 4 {
			b.launch(Demand{Chain: i})
		}
		b.to(b.now.Add(20 * ms))
		if n := int(b.Stats().PRs[OnDemand] - prs); n != 4-c.want {
			t.Errorf("%+v: %d launches by PR after %d victims", c, n, c.want)
		}
	}
}

// The worked example, figure 5.7, in the units of figure 5.20: NT1→NT2 and NT3→NT4
// run; the load of NT2 becomes 13 of 10 units. After 10 ms NT2→NT4 is launched in
// the third region, and runs after 5 ms more.
func TestScaleOutTimeline(t *testing.T) {
	cfg := Default(3, 2)
	cfg.Monitor = 10 * ms
	f, err := New(0, cfg)
	must(t, err)
	b := &board{Fabric: f, t: t}
	for task, capacity := range []float64{100, 100, 70, 100} {
		must(t, f.SetTask(task, capacity*gbit))
	}
	chains := [][]int{{0, 1}, {2, 3}, {0}, {1}, {1, 2}, {1, 3}, {3}}
	for id, tasks := range chains {
		must(t, f.Add(id, Chain{Area: len(tasks), Tasks: tasks}))
	}
	b.choice(Demand{Chain: 0, Pre: true}, LoadFree, 0)
	b.choice(Demand{Chain: 1, Pre: true}, LoadFree, 1)
	b.to(clock.Time(50 * ms))
	b.Sample(b.now)
	b.log = nil
	// user1 asks for <5, 8, 4, 2>, user2 for <0, 1, 0, 1.5> at first, then for
	// <0, 5, 0, 7.5>. What fairness measures in an epoch, it reports 3 us after.
	start := b.now
	at := func(x float64) clock.Time { return start.Add(clock.Duration((x - 1) * float64(epoch))) }
	asked := func(x float64) [4]float64 {
		u1, u2 := [4]float64{50, 80, 40, 20}, [4]float64{0, 10, 0, 15}
		if x >= 1.55 {
			u2 = [4]float64{0, 50, 0, 75}
		}
		for i := range u1 {
			u1[i] += u2[i]
		}
		return u1
	}
	var out, runs float64
	for k := 2; k <= 800; k++ {
		x := float64(k)
		b.to(at(x))
		b.Sample(b.now)
		b.take()
		b.to(b.now.Add(3 * us))
		for task := range 4 {
			mean := 0.55*asked(x - 1)[task] + 0.45*asked(x - 0.45)[task]
			b.Load(-1, task, int64(mean*gbit*float64(epoch)/8e9))
		}
	}
	for _, e := range b.all {
		x := float64(e.At.Sub(start))/float64(epoch) + 1
		switch {
		case e.Kind == ScaleOut && e.Task == 1 && e.Chain == 5 && e.Region == 2:
			out = x
		case e.Kind == Run && e.Chain == 5:
			runs = x
		}
	}
	if out != 503 || runs != 753 {
		t.Errorf("scale-out at epoch %g, running at %g: want 503 and 753\n%s", out, runs, strings.Join(b.log, "\n"))
	}
	b.want("60.04 scale out r2 c5 t1", "60.04 load r2 c5", "65.04 run r2 c5")
	if n, load := b.Task(1); n != 2 || load < 1 || load > 1.3 {
		t.Errorf("NT2: %d instances with a load of %g", n, load)
	}
}

// Packets go through the chain of their DAG: room in other chains with an overloaded task
// does not count for them. They get one more of their own, and keep it while they need it.
func TestScaleOutWhereItHelps(t *testing.T) {
	cfg := Default(5, 2)
	cfg.Helps = func(chain, task int) bool { return chain == 8 }
	b := newBoard(t, cfg)
	must(t, b.SetTask(1, 0)) // as fast as packets come
	must(t, b.Add(8, Chain{Area: 2, Tasks: []int{0, 1}}))
	must(t, b.Add(9, Chain{Area: 2, Tasks: []int{0, 2}}))
	b.choice(Demand{Chain: 8}, LoadFree, 0)
	b.choice(Demand{Chain: 9}, LoadFree, 1)
	b.choice(Demand{Chain: 2}, ShareRunning, 1)
	b.to(clock.Time(10 * ms))
	b.log = nil
	// rate Gb/s go through chain 8, 5 Gb/s through task 2 of the other.
	drive := func(until clock.Duration, rate float64) {
		for b.now < clock.Time(until) {
			b.to(b.now.Add(epoch))
			var own []int
			for i := range b.Regions() {
				if v := b.Region(i); v.State == Running && v.Chain == 8 {
					own = append(own, i)
				}
			}
			for _, i := range own {
				for task := range 2 {
					b.Load(i, task, int64(rate*gbit*float64(epoch)/8e9/float64(len(own))))
				}
			}
			b.Load(1, 2, int64(5*gbit*float64(epoch)/8e9))
			b.Sample(b.now)
			b.take()
		}
	}
	drive(200*ms, 16)
	b.want("15.04 scale out r2 c8 t0", "15.04 load r2 c8", "20.04 run r2 c8")
	drive(300*ms, 11) // three instances of task 0 are one too many, but chain 8 needs both of its
	b.want()
	drive(400*ms, 8)
	b.want("303.42 scale in r0 c8", "303.42 stop r0 c8", "303.42 freed r0")
}
