package region

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/quillon/quillon/nf/clock"
)

// mode is what an observer knows of a region from events alone.
type mode int

const (
	empty mode = iota
	loading
	running
	stopping
	stopped
)

type seen struct {
	mode  mode
	chain int
	seq   uint32
	since clock.Time // running
	until clock.Time // loading
}

// observer follows a Fabric by its events, and knows what may follow what.
type observer struct {
	f       *Fabric
	cfg     Config
	chains  map[int]Chain
	slots   []seen
	portTo  clock.Time
	failing int          // region that fails in this call, or -1
	queue   []int        // chains whose demand was told to wait
	dead    map[int]bool // removed
	stops   []Event      // not yet answered
	at      clock.Time
	now     clock.Time
}

func (o *observer) event(e Event) error {
	if e.At < o.at || e.At > o.now {
		return fmt.Errorf("%v at %d, after %d, called at %d", e.Kind, e.At, o.at, o.now)
	}
	o.at = e.At
	var s *seen
	if e.Region >= 0 {
		s = &o.slots[e.Region]
	}
	wrong := func(why string) error { return fmt.Errorf("%+v: %s: region was %+v", e, why, s) }
	switch e.Kind {
	case Stop:
		if s.mode != running || s.chain != e.Chain || e.Seq != s.seq+1 || e.Save != o.chains[e.Chain].Save {
			return wrong("does not run")
		}
		s.mode, s.seq = stopping, e.Seq
		o.stops = append(o.stops, e)
	case Load:
		bytes := o.chains[e.Chain].Bitstream
		if bytes == 0 {
			bytes = o.cfg.Bitstream
		}
		d := clock.Duration(bytes * 1e9 / o.cfg.Rate)
		if s.mode != empty || e.At < o.portTo || e.Until.Sub(e.At) != d {
			return wrong("not empty, the port is busy, or not as long as it takes")
		}
		s.mode, s.chain, s.until, o.portTo = loading, e.Chain, e.Until, e.Until
	case Run:
		if s.chain != e.Chain || !(s.mode == loading && e.At == s.until || s.mode == stopped) {
			return wrong("not loaded")
		}
		s.mode, s.since = running, e.At
		o.unwait(e.Chain) // it may be stopped again by now, when calls are late
	case Evict:
		gone := s.mode == loading && e.At == s.until // removed while it was loaded
		if s.chain != e.Chain || !(s.mode == stopped || gone || o.failing == e.Region && s.mode != empty) {
			return wrong("not there, or in use")
		}
		s.mode = empty
	case Revoke:
		if s.mode == loading && s.chain == e.Chain {
			if o.failing != e.Region {
				return wrong("its PR had begun")
			}
			s.mode, o.portTo = empty, e.At
		}
		if e.Cause == OnDemand && !o.dead[e.Chain] {
			if o.failing != e.Region {
				return wrong("a demand waited for it")
			}
			if !o.waits(e.Chain) {
				o.queue = slices.Insert(o.queue, 0, e.Chain)
			}
		}
	case Kill:
		if s.mode != stopping || o.cfg.Patience == 0 {
			return wrong("does not stop")
		}
		s.mode = stopped
	case Share:
		if !o.waits(e.Chain) {
			return wrong("does not wait")
		}
		o.unwait(e.Chain)
	case Refuse:
		o.unwait(e.Chain)
	case Freed:
		if s.mode != empty && s.mode != stopped {
			return wrong("is not free")
		}
	case Gone:
		for _, s := range o.slots {
			if s.mode != empty && s.chain == e.Chain {
				return wrong("is there")
			}
		}
		delete(o.chains, e.Chain)
		delete(o.dead, e.Chain)
	}
	return nil
}

func (o *observer) waits(id int) bool { return slices.Contains(o.queue, id) }

func (o *observer) unwait(id int) {
	if k := slices.Index(o.queue, id); k >= 0 {
		o.queue = slices.Delete(o.queue, k, k+1)
	}
}

// take follows all events, and compares what is seen with what is shown.
func (o *observer) take(t *rapid.T) {
	t.Helper()
	for _, e := range o.f.Events() {
		if err := o.event(e); err != nil {
			t.Fatal(err)
		}
	}
	o.failing = -1
	if err := o.f.Check(); err != nil {
		t.Fatal(err)
	}
	for i, s := range o.slots {
		v := o.f.Region(i)
		ok := false
		switch s.mode {
		case empty:
			ok = v.State == Free || v.State == Queued || v.State == Failed
		case loading:
			ok = v.State == Loading && v.Chain == s.chain && v.Until == s.until
		case running:
			ok = v.State == Running && v.Chain == s.chain && v.Since == s.since
		case stopping:
			ok = v.State == Stopping && v.Chain == s.chain
		case stopped:
			ok = (v.State == Victim || v.State == Stopping) && v.Chain == s.chain
		}
		if !ok {
			t.Fatalf("region %d: seen %+v, shown %+v", i, s, v)
		}
	}
	// Who waited and has a region now does not wait; who came earlier, and still
	// waits, could not have had it.
	for k := 0; k < len(o.queue); k++ {
		id := o.queue[k]
		for i := range o.slots {
			v := o.f.Region(i)
			if v.Chain != id && v.Next != id || v.State == Victim || v.State == Stopping && v.Next != id {
				continue
			}
			for _, earlier := range o.queue[:k] {
				if o.chains[earlier].Area <= v.Area {
					t.Fatalf("chain %d has region %d, chain %d was earlier", id, i, earlier)
				}
			}
			o.unwait(id)
			k--
			break
		}
	}
	if o.f.Waiting() != len(o.queue) {
		t.Fatalf("%d wait, want %v", o.f.Waiting(), o.queue)
	}
	// Region times add up.
	for i := range o.slots {
		var sum clock.Duration
		tm := o.f.Times(i)
		for _, d := range tm.In {
			sum += d
		}
		if sum != o.f.now.Sub(0) || tm.Accessed > tm.In[Running] || tm.Work > tm.Accessed {
			t.Fatalf("region %d: %+v at %d", i, tm, o.f.now)
		}
	}
}

func covered(a, b []int) bool {
	if len(b) == 0 {
		return true
	}
	k := slices.Index(a, b[0])
	return k >= 0 && covered(a[k+1:], b[1:])
}

// expect is what Launch should choose, by what is shown.
func (o *observer) expect(d Demand) (Choice, Reason) {
	c, ok := o.chains[d.Chain]
	if !ok || !o.f.plan.knows(d.Chain) {
		return Refused, Unknown
	}
	var host, victim, room, fits, ripe, onDemand bool
	room = true
	for _, t := range c.Tasks {
		e := o.f.plan.monitor.tasks[t]
		if left := float64(e.running+e.coming)*o.cfg.Over - e.load - e.booked; e.perByte > 0 &&
			(left <= 1e-9 || d.Rate*e.perByte/8e9 > left+1e-9) {
			room = false
		}
	}
	free := false
	for i := range o.slots {
		v := o.f.Region(i)
		large := v.Area >= c.Area
		fits = fits || large && v.State != Failed
		has := v.Chain >= 0 && !o.f.plan.chains[v.Chain].dead && covered(o.f.plan.chains[v.Chain].tasks, c.Tasks)
		switch v.State {
		case Free:
			free = free || large
		case Victim:
			free = free || large
			victim = victim || has
		case Running:
			host = host || has
			ripe = ripe || large && o.now.Sub(v.Since) >= o.cfg.Monitor
		case Queued:
			host = host || has
			free = free || large && v.Cause != OnDemand && !d.Pre
			onDemand = onDemand || v.Cause == OnDemand
		case Loading:
			host = host || has
		case Stopping:
			if v.Next < 0 {
				victim = victim || has
				free = free || large
				break
			}
			host = host || covered(o.f.plan.chains[v.Next].tasks, c.Tasks)
			free = free || large && v.Next != v.Chain && v.Cause != OnDemand && !d.Pre
			onDemand = onDemand || v.Next != v.Chain && v.Cause == OnDemand
		}
	}
	switch {
	case host && (room || d.Pre):
		return ShareRunning, 0
	case victim:
		return Revive, 0
	case o.waits(d.Chain):
		return Wait, 0
	case free:
		return LoadFree, 0
	case d.Pre && !fits:
		return Refused, TooLarge
	case d.Pre:
		return Refused, NoRegion
	case !d.NoPeer:
		return Remote, 0
	case c.Endpoint && !d.NoEndpoint:
		return Endpoint, 0
	case host:
		return ShareRunning, 0
	case !fits:
		return Refused, TooLarge
	case d.NoSwitch:
		return Refused, NoRegion
	case ripe && !onDemand && (o.portTo <= o.now || o.portTo.Sub(o.now) <= o.cfg.Stop):
		return Switch, 0
	case len(o.queue) >= o.cfg.Waiting:
		return Refused, QueueFull
	}
	return Wait, 0
}

// TestMachine does anything in any order, with stops answered late, twice or never,
// and compares each decision with what is expected by looking at the regions alone.
func TestMachine(t *testing.T) {
	for range 15 {
		rapid.Check(t, machine)
	}
}

func FuzzMachine(f *testing.F) {
	// As much as a run draws: with less it would be skipped.
	r := rand.New(rand.NewPCG(1, 1))
	seed := make([]byte, 16<<10)
	for i := range seed {
		seed[i] = byte(r.Uint32())
	}
	f.Add(seed)
	f.Fuzz(rapid.MakeFuzz(machine))
}

func machine(t *rapid.T) {
	cfg := Default(0, 0)
	cfg.Areas = rapid.SliceOfN(rapid.IntRange(1, 3), 1, 5).Draw(t, "areas")
	cfg.Victims = rapid.SampledFrom([]float64{1, 0, 0.5}).Draw(t, "victims")
	cfg.Keep = rapid.SampledFrom([]float64{1, 0.5}).Draw(t, "keep")
	cfg.Stop = rapid.SampledFrom([]clock.Duration{0, ms, 7 * ms}).Draw(t, "stop")
	cfg.Patience = rapid.SampledFrom([]clock.Duration{0, 8 * ms}).Draw(t, "patience")
	cfg.Monitor = rapid.SampledFrom([]clock.Duration{5 * ms, 10 * ms}).Draw(t, "monitor")
	cfg.Idle = rapid.SampledFrom([]clock.Duration{0, 20 * ms}).Draw(t, "idle")
	cfg.Waiting = rapid.IntRange(0, 4).Draw(t, "waiting")
	f, err := New(0, cfg)
	if err != nil {
		t.Fatal(err)
	}
	o := &observer{f: f, cfg: cfg, chains: map[int]Chain{}, slots: make([]seen, len(cfg.Areas)), failing: -1,
		dead: map[int]bool{}}
	const tasks = 4
	for i := range tasks {
		if err := f.SetTask(i, []float64{10 * gbit, 20 * gbit, 0, 5 * gbit}[i]); err != nil {
			t.Fatal(err)
		}
	}
	add := func(id int) {
		order := rapid.Permutation([]int{0, 1, 2, 3}).Draw(t, "order")
		c := Chain{
			Area:      rapid.IntRange(1, slices.Max(cfg.Areas)).Draw(t, "area"),
			Bitstream: int64(rapid.IntRange(0, 4).Draw(t, "bitstream")) * 1e6,
			Tasks:     order[:rapid.IntRange(1, 3).Draw(t, "tasks")],
			Save:      rapid.Bool().Draw(t, "save"),
			Endpoint:  rapid.Bool().Draw(t, "endpoint"),
		}
		if err := f.Add(id, c); err != nil {
			t.Fatal(err)
		}
		o.chains[id] = c
	}
	const chains = 6
	for id := range chains {
		add(id)
	}
	region := func() int { return rapid.IntRange(0, len(cfg.Areas)-1).Draw(t, "region") }
	answer := func(k int) {
		e := o.stops[k]
		o.stops = slices.Delete(o.stops, k, k+1)
		s := &o.slots[e.Region]
		want := s.mode == stopping && s.seq == e.Seq
		if want {
			s.mode = stopped
		}
		if got := f.Stopped(o.now, e.Region, e.Seq); got != want {
			t.Fatalf("stopped: %v, want %v: %+v, %+v", got, want, e, s)
		}
		o.take(t)
		if f.Stopped(o.now, e.Region, e.Seq) {
			t.Fatal("stopped twice")
		}
		o.take(t)
	}
	pass := func(d clock.Duration) {
		// Late calls must not matter: half of the time all deadlines are passed at once.
		end := o.now.Add(d)
		if rapid.Bool().Draw(t, "each") {
			for f.Next() <= end {
				o.now = max(o.now, f.Next())
				f.Advance(o.now)
				o.take(t)
			}
		}
		o.now = end
		f.Advance(o.now)
		o.take(t)
	}
	t.Repeat(map[string]func(*rapid.T){
		"launch": func(t *rapid.T) {
			d := Demand{
				Chain:      rapid.IntRange(-1, chains).Draw(t, "chain"),
				Rate:       rapid.SampledFrom([]float64{0, gbit, 6 * gbit, 40 * gbit}).Draw(t, "rate"),
				Pre:        rapid.IntRange(0, 3).Draw(t, "pre") == 0,
				NoPeer:     rapid.IntRange(0, 3).Draw(t, "peer") != 0,
				NoEndpoint: rapid.IntRange(0, 3).Draw(t, "end") != 0,
				NoSwitch:   rapid.IntRange(0, 3).Draw(t, "switch") == 0,
			}
			want, why := o.expect(d)
			dec := f.Launch(o.now, d)
			if dec.Choice == Wait && !o.waits(d.Chain) {
				o.queue = append(o.queue, d.Chain)
			}
			if dec.Choice != want || dec.Reason != why {
				t.Fatalf("%+v: %+v, want %v %v", d, dec, want, why)
			}
			if dec.Choice == Switch {
				if v := o.slots[dec.Region]; v.mode != running || o.now.Sub(v.since) < cfg.Monitor {
					t.Fatalf("switched too early: %+v", v)
				}
			}
			if dec.Region >= 0 {
				if !covered(o.f.plan.chains[dec.Chain].tasks, o.chains[d.Chain].Tasks) || dec.At < o.now {
					t.Fatalf("%+v: %+v", d, dec)
				}
			}
			o.take(t)
		},
		"pass":  func(t *rapid.T) { pass(clock.Duration(rapid.IntRange(0, 12000).Draw(t, "us")) * us) },
		"sleep": func(t *rapid.T) { pass(clock.Duration(rapid.IntRange(0, 60).Draw(t, "ms")) * ms) },
		"load": func(t *rapid.T) {
			task, load := rapid.IntRange(0, tasks-1).Draw(t, "task"), rapid.SampledFrom([]int64{0, 300, 2000, 9000}).Draw(t, "kB")
			for range rapid.IntRange(1, 15).Draw(t, "samples") {
				f.Load(rapid.IntRange(-1, len(cfg.Areas)).Draw(t, "at"), task, load*1000)
				pass(ms)
				f.Sample(o.now)
				o.take(t)
			}
		},
		"stopped": func(t *rapid.T) {
			if len(o.stops) == 0 {
				return // nothing to do: no skip, which a fuzzer could have all of
			}
			answer(rapid.IntRange(0, len(o.stops)-1).Draw(t, "which"))
		},
		"fail": func(t *rapid.T) {
			if rapid.IntRange(0, 7).Draw(t, "rare") != 7 {
				return // a failed region stays so: others are to be left
			}
			i := region()
			v := f.Region(i)
			o.failing = i
			if !f.Fail(o.now, i) && v.State != Failed {
				t.Fatal("does not fail")
			}
			o.take(t)
		},
		"release": func(t *rapid.T) { f.Release(o.now, region()); o.take(t) },
		"remove": func(t *rapid.T) {
			id := rapid.IntRange(0, chains-1).Draw(t, "chain")
			if f.Remove(o.now, id) {
				o.unwait(id)
				o.dead[id] = true
			}
			o.take(t)
			if _, left := o.chains[id]; !left {
				add(id)
			}
		},
		"": func(t *rapid.T) {
			o.take(t)
		},
	})
	// In the end everything stops when asked, and nobody waits for ever.
	for range 20 * (chains + len(cfg.Areas)) {
		for len(o.stops) > 0 {
			answer(0)
		}
		pass(5 * ms)
	}
	if n := f.Waiting(); n != 0 {
		t.Fatalf("%d chains wait for ever", n)
	}
	for i := range cfg.Areas {
		if v := f.Region(i); v.State == Queued || v.State == Loading || v.State == Stopping {
			t.Fatalf("region %d is %v for ever", i, v.State)
		}
	}
}
