package fair

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/snic/drf"
	"pgregory.net/rapid"
)

// user sends packets at a constant rate.
type user struct {
	rate   float64   // bytes/ns
	uses   []float64 // of each flow, a byte
	size   int
	due    float64 // ns
	passed int64   // bytes let in
	sent   int64
}

// failer is a test, of testing or of rapid.
type failer interface{ Fatal(...any) }

// bed is a Sharer with users, in virtual time.
type bed struct {
	t     failer
	s     *Sharer
	now   clock.Time
	users []*user
	used  []float64
}

func newBed(t failer, c Config, capacity ...float64) *bed {
	s, err := New(0, c)
	if err != nil {
		t.Fatal(err)
	}
	for r, v := range capacity {
		if err := s.SetCapacity(r, v); err != nil {
			t.Fatal(err)
		}
	}
	b := &bed{t: t, s: s, used: make([]float64, c.Resources-c.Held)}
	for range c.Tenants {
		b.users = append(b.users, &user{size: 200, uses: make([]float64, c.Resources-c.Held)})
	}
	return b
}

// sends sets what a user sends, in Gb/s, and what a byte uses.
func (b *bed) sends(u int, gbit float64, uses ...float64) {
	b.users[u].rate = gbit / 8
	b.users[u].due = float64(b.now)
	if len(uses) > 0 {
		copy(b.users[u].uses, uses)
	}
}

const tick = 50

// run lets time pass, with the epochs that are due, and forgets what was let in
// before.
func (b *bed) run(d clock.Duration) {
	for _, u := range b.users {
		u.passed, u.sent = 0, 0
	}
	clear(b.used)
	for end := b.now.Add(d); b.now < end; {
		b.now = b.now.Add(tick)
		if b.now >= b.s.Next() {
			if err := b.s.Epoch(b.now); err != nil {
				b.t.Fatal(err)
			}
		}
		for i, u := range b.users {
			for ; u.rate > 0 && u.due <= float64(b.now); u.due += float64(u.size) / u.rate {
				u.sent += int64(u.size)
				if !b.s.Ingress(b.now, i, u.size) {
					continue
				}
				u.passed += int64(u.size)
				for r, v := range u.uses {
					if v > 0 {
						b.s.Measure(i, r, int64(v*float64(u.size)))
						b.used[r] += v * float64(u.size)
					}
				}
			}
		}
	}
}

// gbit is what of user u was let in during the last run.
func (b *bed) gbit(u int, d clock.Duration) float64 {
	return float64(b.users[u].passed) * 8 / float64(d)
}

func near(t testing.TB, what string, got, want, within float64) {
	t.Helper()
	if !(math.Abs(got-want) <= within) {
		t.Errorf("%s: %.4g, want %.4g ± %.2g", what, got, want, within)
	}
}

const epoch = DefaultEpoch

// gb is a capacity in bytes a second, of Gb/s.
func gb(v float64) float64 { return v * 1e9 / 8 }

// Figure 5.7's users: what NT1 to NT4 see of them. User 1 sends 8 units, all of
// which NT2 sees; user 2's NT2 sees two thirds of what it sends, NT4 all.
var (
	user1 = []float64{5. / 8, 1, 4. / 8, 2. / 8}
	user2 = []float64{0, 1 / 1.5, 0, 1}
)

// TestFigure57 has the numbers of figure 5.7: both have all in epochs 1 and 2;
// user 2's load rises in the second, and in the third they get 3/4 and 4/5.
func TestFigure57(t *testing.T) {
	s, err := New(0, Config{Tenants: 2, Resources: 4})
	if err != nil {
		t.Fatal(err)
	}
	for r, v := range []float64{10, 10, 7, 10} {
		if err := s.SetCapacity(r, v*1000/epoch.Seconds()); err != nil {
			t.Fatal(err)
		}
	}
	now := clock.Time(0)
	// What each user sends and each NT sees of it, in thousandths of a unit an epoch.
	for e, c := range []struct {
		demand [2][4]int64
		want   [2][4]float64
	}{
		{[2][4]int64{{5000, 8000, 4000, 2000}, {0, 1000, 0, 1500}}, [2][4]float64{{5, 8, 4, 2}, {0, 1, 0, 1.5}}},
		{[2][4]int64{{5000, 8000, 4000, 2000}, {0, 5000, 0, 7500}}, [2][4]float64{{3.75, 6, 3, 1.5}, {0, 4, 0, 6}}},
	} {
		for i := range c.demand {
			for sent := c.demand[i][3] * 4 / 100; sent > 0; sent-- {
				s.Ingress(now, i, 100)
			}
			for r, v := range c.demand[i] {
				// What was let in is a part of what arrived.
				u := &s.tenants[i]
				s.Measure(i, r, v*u.admitted/u.arrived)
			}
		}
		now = now.Add(epoch)
		if err := s.Epoch(now); err != nil {
			t.Fatal(err)
		}
		for i := range c.want {
			for r, v := range c.want[i] {
				near(t, fmt.Sprintf("epoch %d, user %d, NT%d", e+2, i+1, r+1), s.Grant(i)*float64(c.demand[i][r])/1000, v, .01)
			}
		}
	}
	if s.Bottleneck(0) != 1 || s.Bottleneck(1) != 1 {
		t.Errorf("held up by %d and %d, want NT2", s.Bottleneck(0), s.Bottleneck(1))
	}
}

// TestFigure520 has figure 5.20's plateaus, in Gb/s at each NT: user 2 grows in
// the middle of an epoch and gets what is free, at the next epoch both get their
// shares, and all when NT2 has twice its rate.
func TestFigure520(t *testing.T) {
	b := newBed(t, Config{Tenants: 2, Resources: 4}, gb(100), gb(100), gb(70), gb(100))
	b.sends(0, 80, user1...)
	b.sends(1, 15, user2...)
	b.run(2*epoch - tick) // until just before an epoch's end
	b.run(tick)
	plateau := func(name string, from, to float64, u1, u2 float64) {
		t.Helper()
		b.run(clock.Duration(from * float64(epoch)))
		d := clock.Duration((to - from) * float64(epoch))
		b.run(d)
		near(t, name+": user 1, NT2", b.gbit(0, d), u1, .015*u1)
		near(t, name+": user 1, NT1", b.gbit(0, d)*user1[0], u1*5/8, .015*u1)
		near(t, name+": user 2, NT2", b.gbit(1, d)*user2[1], u2, .015*u2)
		near(t, name+": user 2, NT4", b.gbit(1, d), u2*1.5, .02*u2)
	}
	plateau("before the load changes", .05, .55, 80, 10)
	b.sends(1, 75)
	plateau("after it", .15, .45, 80, 20)
	plateau("after the division", .1, 1, 60, 40)
	plateau("later", 5, 6, 60, 40)
	if err := b.s.SetCapacity(1, gb(200)); err != nil {
		t.Fatal(err)
	}
	plateau("after NT2 is there twice", 1, 2, 80, 50)
}

// TestFlood: a flood of one costs the others nothing that is theirs, from the
// epoch after its first.
func TestFlood(t *testing.T) {
	b := newBed(t, Config{Tenants: 8, Resources: 3}, gb(100), gb(100), gb(80))
	for u := range 7 {
		b.sends(u, 10, 1, 1, float64(u%2))
	}
	b.run(3 * epoch)
	b.sends(7, 1000, 1, 1, 1)
	b.run(epoch)
	for u := range 7 {
		near(t, fmt.Sprintf("user %d in the flood's first epoch", u), b.gbit(u, epoch), 10, .25)
	}
	b.run(10 * epoch)
	for u := range 7 {
		near(t, fmt.Sprintf("user %d", u), b.gbit(u, 10*epoch), 10, .05)
	}
	near(t, "the flood", b.gbit(7, 10*epoch), 30, .3)
	if b.s.Free(0) != 0 || b.s.Bottleneck(7) != 0 {
		t.Errorf("%v free of what keeps the flood from more, resource %d", b.s.Free(0), b.s.Bottleneck(7))
	}
	if u := &b.s.tenants[7]; math.Abs(u.burst/(30e9/8*epoch.Seconds()*window)-1) > .02 {
		t.Errorf("the flood's bucket holds %v bytes, want an eighth of an epoch", u.burst)
	}
	// Two floods share what is left: equal parts of 80 and of 100.
	b.sends(6, 500, 1, 1, 0)
	b.run(2 * epoch)
	b.run(10 * epoch)
	near(t, "one flood", b.gbit(7, 10*epoch), 40*8./18, .2)
	near(t, "the other", b.gbit(6, 10*epoch), 40*10./18, .2)
}

// TestSparse: who sends a packet from time to time has it let in, whatever the
// others do.
func TestSparse(t *testing.T) {
	b := newBed(t, Config{Tenants: 3, Resources: 1, Burst: 1000}, gb(100))
	b.sends(0, 1000, 1)
	b.sends(1, 1000, 1)
	b.users[2].size = 1500
	b.sends(2, 1500*8/float64(7*epoch/2), 1) // one in three and a half epochs
	b.run(300 * epoch)
	if u := b.users[2]; u.passed != u.sent {
		t.Errorf("let in %d of %d bytes", u.passed, u.sent)
	}
	near(t, "flood", b.gbit(0, 300*epoch), 50, .5)
	near(t, "flood", b.gbit(1, 300*epoch), 50, .5)
}

// TestBatches: who sends in batches has them let in while it is within its share
// and Burst is no less than a batch, whatever the others do.
func TestBatches(t *testing.T) {
	for _, burst := range []int{64 * 1500, 16 * 1500} {
		b := newBed(t, Config{Tenants: 2, Resources: 1, Burst: burst}, gb(100))
		b.sends(0, 1000, 1)
		const batches, frames = 100, 64
		refused := 0
		for range batches {
			b.run(3*epoch + epoch/3) // 11.5 Gb/s
			for range frames {
				if b.s.Ingress(b.now, 1, 1500) {
					b.s.Measure(1, 0, 1500)
				} else {
					refused++
				}
			}
		}
		if (refused == 0) != (burst == frames*1500) {
			t.Errorf("burst of %d: %d of %d refused", burst, refused, batches*frames)
		}
	}
}

// TestIdle: a tenant that was away gets its share after one epoch, by what it
// used before, and what is free at once.
func TestIdle(t *testing.T) {
	for _, free := range []bool{false, true} {
		b := newBed(t, Config{Tenants: 2, Resources: 2}, gb(100), gb(100))
		b.sends(0, 200, 1, 0)
		b.sends(1, 200, 1, 1)
		b.run(3 * epoch)
		b.sends(1, 0)
		if free {
			b.sends(0, 60)
		}
		b.run(5 * epoch)
		if b.s.Grant(1) != 1 || b.s.Share(1) != 0 || b.s.Limit(1) != 0 {
			t.Errorf("idle: grant %v, share %v, limit %v", b.s.Grant(1), b.s.Share(1), b.s.Limit(1))
		}
		first := DefaultBurst * 8 / float64(epoch)
		if free {
			first += 40 * (1 + window) // the other asks for 60
		}
		b.sends(1, 200)
		b.run(epoch)
		near(t, "first epoch", b.gbit(1, epoch), first, 1)
		b.run(epoch)
		near(t, "second epoch", b.gbit(1, epoch), 50, 1)
	}
}

// TestNew: a tenant of which nothing is known is let in while nothing is full;
// of what was told, by what it needs.
func TestNew(t *testing.T) {
	full := func(t *testing.T) *bed {
		b := newBed(t, Config{Tenants: 2, Resources: 2}, gb(100), gb(100))
		b.sends(0, 200, 1, 0)
		b.run(3 * epoch)
		return b
	}
	b := newBed(t, Config{Tenants: 2, Resources: 2}, gb(100), gb(100))
	b.sends(1, 40, 0, 1)
	b.run(epoch)
	near(t, "board free", b.gbit(1, epoch), 40, .5)

	b = newBed(t, Config{Tenants: 2, Resources: 2}, gb(100), gb(100))
	b.sends(1, 1000, 0, 1)
	b.run(epoch)
	near(t, "board free, a flood", b.gbit(1, epoch), 100*(1+window), 2)

	b = full(t)
	b.sends(1, 40, 0, 1)
	b.run(epoch)
	near(t, "known by its first packets, the other resource full", b.gbit(1, epoch), 40, .5)

	b = full(t)
	b.sends(1, 40) // nobody measures what it uses
	b.run(epoch)
	near(t, "nothing known, the other resource full", b.gbit(1, epoch), DefaultBurst*8/float64(epoch), .3)
	b.run(epoch)
	near(t, "then", b.gbit(1, epoch), 40, .5)

	b = full(t)
	if err := b.s.Expect(1, []float64{0, 1}); err != nil {
		t.Fatal(err)
	}
	b.sends(1, 40, 0, 1)
	b.run(epoch)
	near(t, "told", b.gbit(1, epoch), 40, .5)

	b = full(t)
	if err := b.s.Expect(1, []float64{1, 1}); err != nil {
		t.Fatal(err)
	}
	b.sends(1, 40, 1, 1)
	b.run(epoch)
	near(t, "told, and what it needs is full", b.gbit(1, epoch), DefaultBurst*8/float64(epoch), .3)
}

// TestWeights: floods are served by weight.
func TestWeights(t *testing.T) {
	b := newBed(t, Config{Tenants: 3, Resources: 2}, gb(100), gb(90))
	for u, w := range []float64{1, 2, 6} {
		if err := b.s.SetWeight(u, w); err != nil {
			t.Fatal(err)
		}
		b.sends(u, 300, .1, 1)
	}
	b.run(3 * epoch)
	b.run(10 * epoch)
	for u, want := range []float64{10, 20, 60} {
		near(t, fmt.Sprintf("user %d", u), b.gbit(u, 10*epoch), want, .02*want)
		near(t, fmt.Sprintf("share of user %d", u), b.s.Share(u), want/90, .02)
	}
}

// TestOnOff: whoever comes and goes, the board is used while somebody wants it.
func TestOnOff(t *testing.T) {
	b := newBed(t, Config{Tenants: 2, Resources: 1}, gb(100))
	b.sends(0, 200, 1)
	for i := range 20 {
		on := float64(200 * (i % 2))
		b.sends(1, on, 1)
		b.run(epoch)
		b.run(4 * epoch)
		sum := b.gbit(0, 4*epoch) + b.gbit(1, 4*epoch)
		near(t, "together", sum, 100, 1)
		near(t, "the one that stays", b.gbit(0, 4*epoch), 100-on/4, 1)
	}
}

// TestMissing: a task that does not run holds its user at the door, and nobody
// else.
func TestMissing(t *testing.T) {
	for _, rows := range []int{4, 2} {
		b := newBed(t, Config{Tenants: 4, Resources: 2, Rows: rows}, gb(100), 0)
		b.sends(0, 10, 1, 1)
		for u := 1; u < 4; u++ {
			b.sends(u, 20, 1)
		}
		b.run(2 * epoch)
		b.run(10 * epoch)
		near(t, "waits", b.gbit(0, 10*epoch), 0, .01)
		if b.s.Grant(0) != 0 || b.s.Bottleneck(0) != 1 {
			t.Errorf("%d rows: grant %v, bottleneck %d", rows, b.s.Grant(0), b.s.Bottleneck(0))
		}
		for u := 1; u < 4; u++ {
			near(t, "does not", b.gbit(u, 10*epoch), 20, .2)
		}
		if err := b.s.SetCapacity(1, gb(50)); err != nil {
			t.Fatal(err)
		}
		b.run(epoch)
		b.run(epoch)
		near(t, "runs", b.gbit(0, epoch), 10, .2)
	}
}

// TestHeld: memory counts for the share of who has it, and limits nobody.
func TestHeld(t *testing.T) {
	b := newBed(t, Config{Tenants: 3, Resources: 2, Held: 1}, gb(100), 100)
	b.sends(0, 200, 1)
	b.sends(1, 200, 1)
	b.s.Hold(0, 1, 30)
	b.run(2 * epoch)
	b.run(5 * epoch)
	near(t, "with 30 % of the memory", b.gbit(0, 5*epoch), 50, .5)
	b.s.Hold(0, 1, 100)
	b.sends(0, 50)
	b.run(2 * epoch)
	b.run(5 * epoch)
	// What it has of the memory is more than what it asks for of the flow.
	near(t, "with all of the memory", b.gbit(0, 5*epoch), 100./3, .5)
	near(t, "without", b.gbit(1, 5*epoch), 200./3, 1)
	b.s.Hold(2, 1, 500) // idle, and far too much
	b.run(2 * epoch)
	b.run(5 * epoch)
	if g := b.gbit(0, 5*epoch) + b.gbit(1, 5*epoch); math.Abs(g-100) > 1 {
		t.Errorf("%v Gb/s let in, want 100", g)
	}
	b.s.Hold(0, 1, 300) // who is active, too
	b.run(2 * epoch)
	b.run(5 * epoch)
	if g := b.gbit(0, 5*epoch) + b.gbit(1, 5*epoch); math.Abs(g-100) > 1 {
		t.Errorf("%v Gb/s let in, want 100", g)
	}
	near(t, "too much of the memory", b.gbit(0, 5*epoch), 50, .5)
	b.s.Hold(2, 1, 0)
	b.s.Hold(0, 1, 0)
	if b.s.holding[0] != 0 {
		t.Errorf("%d held by nobody", b.s.holding[0])
	}
}

// TestFlow: the share of flows is told without what is held, whichever is more.
func TestFlow(t *testing.T) {
	s, err := New(0, Config{Tenants: 3, Resources: 3, Held: 1, Epoch: epoch})
	if err != nil {
		t.Fatal(err)
	}
	for r, c := range []float64{1e9, 4e9, 10} { // of an epoch: 20 kB, 80 kB
		if err := s.SetCapacity(r, c); err != nil {
			t.Fatal(err)
		}
	}
	s.Hold(0, 2, 8)
	for i, bytes := range []int64{5000, 10000} {
		if !s.Ingress(0, i, int(bytes)) {
			t.Fatal("refused")
		}
		s.Measure(i, 0, bytes)
		s.Measure(i, 1, bytes)
	}
	if err := s.Epoch(clock.Time(epoch)); err != nil {
		t.Fatal(err)
	}
	for i, want := range [][2]float64{{.8, .25}, {.5, .5}, {}} {
		if share, flow := s.Share(i), s.Flow(i); math.Abs(share-want[0]) > 1e-6 || math.Abs(flow-want[1]) > 1e-6 {
			t.Errorf("tenant %d: share %v, of flows %v; want %v", i, share, flow, want)
		}
	}
	if err := s.Epoch(clock.Time(2 * epoch)); err != nil || s.Flow(0) != 0 || s.Flow(1) != 0 {
		t.Errorf("%v: %v and %v of an epoch without packets", err, s.Flow(0), s.Flow(1))
	}
}

// TestUsage: it is of what was admitted, however uneven it came, and an epoch without packets adds nothing.
func TestUsage(t *testing.T) {
	s, err := New(0, Config{Tenants: 3, Resources: 2, Held: 1, Epoch: epoch, Burst: 40000})
	if err != nil {
		t.Fatal(err)
	}
	for r, c := range []float64{1e9, 10} { // of an epoch: 20 kB
		if err := s.SetCapacity(r, c); err != nil {
			t.Fatal(err)
		}
	}
	now, want := clock.Time(0), [3]Usage{}
	for range 3 {
		// Twice what an epoch has; a little, and a flood.
		for _, x := range [][2]int{{0, 40000}, {1, 4000}, {1, 30000}, {1, 30000}, {1, 30000}} {
			u, bytes := &want[x[0]], float64(x[1])
			u.Arrived += bytes
			if s.Ingress(now, x[0], x[1]) {
				s.Measure(x[0], 0, int64(x[1]))
				u.Admitted += bytes
				u.Share += bytes / 20e3 * float64(epoch)
			}
		}
		for range 2 {
			now = now.Add(epoch)
			if err := s.Epoch(now); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i, want := range want {
		if u := s.Usage(i); math.Abs(u.Share-want.Share) > 1 || u.Arrived != want.Arrived || u.Admitted != want.Admitted || i == 1 && u.Admitted == u.Arrived {
			t.Errorf("tenant %d: %+v, want %+v", i, u, want)
		}
	}
}

// TestConverges: under a constant load limits stay what they are.
func TestConverges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n, m := rapid.IntRange(1, 6).Draw(t, "tenants"), rapid.IntRange(1, 5).Draw(t, "resources")
		b := newBed(t, Config{Tenants: n, Resources: m})
		demand, weight, capacity := make([]float64, n*m), make([]float64, n), make([]float64, m)
		for r := range m {
			capacity[r] = rapid.Float64Range(10, 200).Draw(t, "capacity")
			if err := b.s.SetCapacity(r, gb(capacity[r])); err != nil {
				t.Fatal(err)
			}
		}
		for u := range n {
			weight[u] = float64(rapid.IntRange(1, 4).Draw(t, "weight"))
			if err := b.s.SetWeight(u, weight[u]); err != nil {
				t.Fatal(err)
			}
			uses := make([]float64, m)
			rate := rapid.Float64Range(5, 200).Draw(t, "rate")
			for r := range uses {
				uses[r] = float64(rapid.IntRange(0, 4).Draw(t, "use")) / 2
				demand[u*m+r] = rate * uses[r]
			}
			b.sends(u, rate, uses...)
		}
		b.run(4 * epoch)
		grant := make([]float64, n)
		if err := drf.New(n, m).Solve(capacity, weight, demand, grant); err != nil {
			t.Fatal(err)
		}
		const d = 20 * epoch
		b.run(d)
		for u := range n {
			x := b.users[u]
			// Rates are measured in packets.
			slack := .03 + 3*float64(x.size)/(x.rate*float64(epoch))
			if got := float64(x.passed) / (x.rate * float64(d)); math.Abs(got-grant[u]) > slack {
				t.Fatalf("tenant %d got %v of its demand, want %v ± %v", u, got, grant[u], slack)
			}
		}
		for r, v := range b.used {
			if most := capacity[r] / 8 * float64(d) * 1.02; v > most+float64(n)*(2*200+DefaultBurst) {
				t.Fatalf("resource %d: %v used, there is %v", r, v, most)
			}
		}
	})
}

// TestAnyLoad: whatever arrives, no bucket is above its burst, a tenant never
// gets more than its limits and what was free, nothing is overcommitted by more
// than bursts, and all that is refused was over a limit.
func TestAnyLoad(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n, m := rapid.IntRange(1, 12).Draw(t, "tenants"), rapid.IntRange(1, 4).Draw(t, "flows")
		c := Config{Tenants: n, Resources: m + 1, Held: 1, Rows: rapid.IntRange(2, 12).Draw(t, "rows"), Burst: 1000}
		s, err := New(0, c)
		if err != nil {
			t.Fatal(err)
		}
		capacity, uses := make([]float64, m), make([][]int64, n)
		for r := range m {
			capacity[r] = rapid.SampledFrom([]float64{0, 1, 5, 20}).Draw(t, "capacity") // bytes/ns
			if err := s.SetCapacity(r, capacity[r]*1e9); err != nil {
				t.Fatal(err)
			}
		}
		for i := range uses {
			uses[i] = make([]int64, m)
			vector := make([]float64, m)
			for r := range m {
				uses[i][r] = int64(rapid.IntRange(0, 2).Draw(t, "use"))
				vector[r] = float64(uses[i][r])
			}
			if err := s.Expect(i, vector); err != nil {
				t.Fatal(err)
			}
			if err := s.SetWeight(i, rapid.Float64Range(1./MaxWeight, MaxWeight).Draw(t, "weight")); err != nil {
				t.Fatal(err)
			}
		}
		now := clock.Time(0)
		used := make([]float64, m)
		// Every tenant's bucket may be full, and in debt by a packet, in each epoch;
		// pools, too. Idle tenants come back with what is in theirs.
		slack := func(epochs int) float64 {
			v := 0.
			for i := range s.tenants {
				v += 2 * (s.tenants[i].burst + 1500) * float64(epochs+1)
			}
			return v
		}
		epochs := 0
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 8000).Draw(t, "ns")))
			if now >= s.Next() {
				for r, v := range used {
					if most := capacity[r]*float64(now-s.start)*(1+window) + slack(0)*2; v > most {
						t.Fatalf("resource %d: %v used in an epoch of %v, there is %v", r, v, now.Sub(s.start), most)
					}
				}
				clear(used)
				if err := s.Epoch(now); err != nil {
					t.Fatal(err)
				}
				epochs++
				for r := range s.flows {
					if s.capacity[r] > 0 && s.asked[r] > s.capacity[r]*(1+1e-6) {
						t.Fatalf("resource %d is granted %v times", r, s.asked[r]/s.capacity[r])
					}
				}
			}
			i := rapid.IntRange(0, n-1).Draw(t, "tenant")
			s.Hold(i, m, int64(rapid.IntRange(0, 100).Draw(t, "memory")))
			for range rapid.IntRange(0, 100).Draw(t, "packets") {
				size := rapid.SampledFrom([]int{64, 1500}).Draw(t, "size")
				if s.Ingress(now, i, size) {
					for r, v := range uses[i] {
						s.Measure(i, r, v*int64(size))
						used[r] += float64(v * int64(size))
					}
				} else if s.tenants[i].tokens > 0 {
					t.Fatal("refused with tokens left")
				}
			}
			for i := range s.tenants {
				if u := &s.tenants[i]; u.tokens > u.burst || u.tokens < -1500 || u.admitted > u.arrived {
					t.Fatalf("tenant %d: %v tokens in a bucket for %v; %d of %d bytes let in", i, u.tokens, u.burst, u.admitted, u.arrived)
				}
			}
			for r := range s.pools {
				if p := &s.pools[r]; p.tokens > p.rate*s.window+1e-6 {
					t.Fatalf("pool %d: %v in a bucket for %v", r, p.tokens, p.rate*s.window)
				}
			}
		}
	})
}

// TestSharedRows: more tenants than rows. Who asks for no more than an equal
// split has all, nothing is overcommitted, and nobody has less than an equal
// split divided by the ratio of levels in a row.
func TestSharedRows(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n, m, rows := rapid.IntRange(9, 60).Draw(t, "tenants"), rapid.IntRange(1, 4).Draw(t, "resources"), 8
		s, err := New(0, Config{Tenants: n, Resources: m, Rows: rows, Burst: 1 << 29})
		if err != nil {
			t.Fatal(err)
		}
		const capacity = 1e6 // an epoch
		for r := range m {
			if err := s.SetCapacity(r, capacity/epoch.Seconds()); err != nil {
				t.Fatal(err)
			}
		}
		level, most, least := make([]float64, n), 0., math.Inf(1)
		total := 0.
		demand := make([][]float64, n)
		for i := range n {
			w := float64(rapid.IntRange(1, 8).Draw(t, "weight"))
			total += w
			if err := s.SetWeight(i, w); err != nil {
				t.Fatal(err)
			}
			demand[i] = make([]float64, m)
			share := 0.
			scale := rapid.SampledFrom([]float64{100, 10000, 1e6}).Draw(t, "scale")
			for r := range m {
				v := int64(scale * rapid.Float64Range(0, 1).Draw(t, "demand"))
				if r > 0 && rapid.Bool().Draw(t, "none") {
					v = 0
				}
				demand[i][r] = float64(v)
				share = max(share, float64(v)/capacity)
				s.Measure(i, r, v)
			}
			s.Ingress(0, i, 1000)
			level[i] = share / w
			most, least = max(most, level[i]), min(least, level[i])
		}
		if err := s.Epoch(clock.Time(epoch)); err != nil {
			t.Fatal(err)
		}
		// The ratio of levels in a row, of evenly spaced bits.
		low := 1 / total
		ratio := 1.0
		if most > low {
			ratio = 1 + (math.Log2(most/low)+1)/float64(rows-1)
		}
		used := make([]float64, m)
		for i := range n {
			g := s.Grant(i)
			if level[i] <= low*(1-1e-6) && g != 1 {
				t.Fatalf("tenant %d asks for %v of an equal split, and gets %v of that", i, level[i]*total, g)
			}
			if got := g * level[i]; got < min(level[i], low/ratio)*(1-1e-5) {
				t.Fatalf("tenant %d gets %v of an equal split, want %v or more", i, got*total, min(level[i]*total, 1/ratio))
			}
			for r, d := range demand[i] {
				used[r] += g * d
			}
		}
		for r, v := range used {
			if v > capacity*(1+1e-5) {
				t.Fatalf("resource %d: %v of %v granted", r, v, capacity)
			}
		}
	})
}

// TestSharedRowsAlike: tenants that are alike get what they would in rows of
// their own, a flood among them too.
func TestSharedRowsAlike(t *testing.T) {
	b := newBed(t, Config{Tenants: 100, Resources: 1, Rows: 8}, gb(100))
	for u := range b.users {
		b.sends(u, 2, 1)
	}
	b.sends(99, 500, 1)
	b.run(3 * epoch)
	b.run(20 * epoch)
	sum := 0.
	for u := range b.users {
		near(t, fmt.Sprintf("user %d", u), b.gbit(u, 20*epoch), 1, .1)
		sum += b.gbit(u, 20*epoch)
	}
	near(t, "together", sum, 100, 1)
}

// TestSharedRowsApart: tenants in a row that want different things count as what
// they want together.
func TestSharedRowsApart(t *testing.T) {
	b := newBed(t, Config{Tenants: 5, Resources: 2, Rows: 3}, gb(100), gb(100))
	for u := range 4 {
		b.sends(u, 200, float64(u%2), float64(1-u%2))
		if err := b.s.SetWeight(u, 2); err != nil {
			t.Fatal(err)
		}
	}
	b.sends(4, 2000, 1, 1) // in a row of its own
	b.run(3 * epoch)
	b.run(10 * epoch)
	for u, want := range []float64{40, 40, 40, 40, 20} {
		near(t, fmt.Sprintf("user %d", u), b.gbit(u, 10*epoch), want, .02*want)
		near(t, fmt.Sprintf("share of user %d", u), b.s.Share(u), want/100, .01)
	}
}

// TestRefused: a tenant of which all was refused keeps its vector.
func TestRefused(t *testing.T) {
	b := newBed(t, Config{Tenants: 2, Resources: 2}, gb(100), gb(100))
	b.sends(0, 10, 1, 1)
	b.run(2 * epoch)
	if err := b.s.SetCapacity(1, 0); err != nil {
		t.Fatal(err)
	}
	b.run(6 * epoch)
	if b.s.Grant(0) != 0 || b.users[0].passed > 4*DefaultBurst+25000 {
		t.Fatalf("grant %v, %d bytes let in", b.s.Grant(0), b.users[0].passed)
	}
	b.run(4 * epoch)
	near(t, "passed", float64(b.users[0].passed), 0, 0)
	if err := b.s.SetCapacity(1, gb(5)); err != nil {
		t.Fatal(err)
	}
	b.run(epoch)
	b.run(5 * epoch)
	near(t, "a task at half the rate", b.gbit(0, 5*epoch), 5, .2)
}

// TestLate: an epoch that ends late is divided for as long as it was.
func TestLate(t *testing.T) {
	s, err := New(0, Config{Tenants: 1, Resources: 1, Burst: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.SetCapacity(0, 1e9); err != nil { // a byte a ns
		t.Fatal(err)
	}
	for range 200 {
		s.Ingress(0, 0, 1000)
		s.Measure(0, 0, 1000)
	}
	if err := s.Epoch(100_000); err != nil {
		t.Fatal(err)
	}
	near(t, "grant", s.Grant(0), .5, 1e-6)
	near(t, "limit", s.Limit(0), 1e9, 1e3)
	if s.Next() != 100_000+clock.Time(epoch) {
		t.Errorf("next at %d", s.Next())
	}
	// A clock that does not move on, or goes back, changes nothing.
	for _, now := range []clock.Time{100_000, 5} {
		if err := s.Epoch(now); err != nil || s.start != 100_000 {
			t.Errorf("epoch at %d: %v, start %d", now, err, s.start)
		}
	}
	s.Ingress(5, 0, 100)
}

// TestEpochNumbers: the number of epochs starts again, and nobody who was seen
// an age ago is taken for active.
func TestEpochNumbers(t *testing.T) {
	b := newBed(t, Config{Tenants: 2, Resources: 1}, gb(100))
	b.sends(1, 10, 1)
	b.run(epoch)
	b.sends(1, 0)
	b.s.epoch = math.MaxUint32
	b.sends(0, 10, 1)
	b.run(4 * epoch)
	if b.s.epoch > 5 || b.s.Active() != 1 {
		t.Fatalf("epoch %d, %d active", b.s.epoch, b.s.Active())
	}
	near(t, "goes on", b.gbit(0, 4*epoch), 10, .3)
	for n := uint32(2); n < 8; n++ {
		b.s.tenants[1].epoch = n
		b.s.epoch = math.MaxUint32
		b.run(time.Duration(n) * epoch)
		if b.s.Ingress(b.now, 1, 100); b.s.epoch != n || b.s.Active() != 2 {
			t.Fatalf("seen in an epoch %d long ago: %d active in epoch %d", n, b.s.Active(), b.s.epoch)
		}
	}
}

func TestRefusals(t *testing.T) {
	for _, c := range []struct {
		c    Config
		want string
	}{
		{Config{Resources: 1}, "0 tenants"},
		{Config{Tenants: 1 << 21, Resources: 1}, "tenants"},
		{Config{Tenants: 1}, "0 resources"},
		{Config{Tenants: 1, Resources: 2, Held: 2}, "2 held"},
		{Config{Tenants: 1, Resources: 2, Held: -1}, "held"},
		{Config{Tenants: 1, Resources: 1, Rows: 1}, "1 rows"},
		{Config{Tenants: 1, Resources: 1, Epoch: 1}, "epoch of 1ns"},
		{Config{Tenants: 1, Resources: 1, Burst: -1}, "burst"},
	} {
		if _, err := New(0, c.c); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.c, err, c.want)
		}
	}
	s, err := New(0, Config{Tenants: 2, Resources: 3, Held: 1})
	if err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{
		"no such resource":    s.SetCapacity(3, 1),
		"negative capacity":   s.SetCapacity(0, -1),
		"no capacity":         s.SetCapacity(0, math.NaN()),
		"endless capacity":    s.SetCapacity(0, math.Inf(1)),
		"no such tenant":      s.SetWeight(2, 1),
		"zero weight":         s.SetWeight(0, 0),
		"no weight":           s.SetWeight(0, math.NaN()),
		"great weight":        s.SetWeight(0, MaxWeight+1),
		"use of nobody":       s.Expect(-1, []float64{1, 1}),
		"use of what is held": s.Expect(0, []float64{1, 1, 1}),
		"negative use":        s.Expect(0, []float64{1, -1}),
	} {
		if err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, i := range []int{-1, 2, 1 << 40} {
		if s.Ingress(0, i, 100) {
			t.Errorf("a packet of tenant %d is let in", i)
		}
	}
	if s.Active() != 0 {
		t.Errorf("%d active", s.Active())
	}
	// A demand that is none leaves the limits as they are.
	s.Measure(0, 0, -5)
	if err := s.Epoch(1000); err == nil {
		t.Error("a negative demand is divided")
	}
	if err := s.Epoch(2000); err != nil {
		t.Error(err)
	}
}

// crowd is a Sharer with n known tenants of which some are active.
func crowd(t testing.TB, n, active, m int, overload float64) (s *Sharer, round func(now clock.Time)) {
	s, err := New(0, Config{Tenants: n, Resources: m})
	if err != nil {
		t.Fatal(err)
	}
	for r := range m {
		if err := s.SetCapacity(r, 1e9); err != nil {
			t.Fatal(err)
		}
	}
	each := overload * float64(epoch) / float64(active)
	return s, func(now clock.Time) {
		for i := range active {
			k := i * (n / active)
			s.Ingress(now, k, int(each))
			for r := range m {
				if r < 2 || (r+i)%m < 6 {
					s.Measure(k, r, int64(each*(.5+float64((i+r)%8)/8)))
				}
			}
		}
	}
}

func TestNoAllocation(t *testing.T) {
	for _, active := range []int{40, 400} {
		s, round := crowd(t, 400, active, 16, 2)
		now := clock.Time(0)
		if n := testing.AllocsPerRun(50, func() {
			round(now)
			now = now.Add(epoch)
			if err := s.Epoch(now); err != nil {
				t.Error(err)
			}
		}); n != 0 {
			t.Errorf("%d active: %v allocations", active, n)
		}
	}
}

func BenchmarkEpoch(b *testing.B) {
	for _, c := range []struct{ n, active, m int }{{16, 16, 16}, {10000, 16, 16}, {10000, 256, 32}, {10000, 10000, 32}} {
		for _, overload := range []float64{.5, 2} {
			b.Run(fmt.Sprintf("%dof%dx%d/load%g", c.active, c.n, c.m, overload), func(b *testing.B) {
				s, round := crowd(b, c.n, c.active, c.m, overload)
				now := clock.Time(0)
				b.ReportAllocs()
				for range b.N {
					b.StopTimer()
					round(now)
					now = now.Add(epoch)
					b.StartTimer()
					if err := s.Epoch(now); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

func BenchmarkIngress(b *testing.B) {
	for _, c := range []struct {
		name   string
		rate   float64
		expect []float64
	}{
		{"within", 1, nil},
		{"refused", 0, []float64{1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}},
	} {
		b.Run(c.name, func(b *testing.B) {
			s, err := New(0, Config{Tenants: 1024, Resources: 16})
			if err != nil {
				b.Fatal(err)
			}
			for i := range s.tenants {
				s.tenants[i].rate = c.rate
				if c.expect != nil {
					if err := s.Expect(i, c.expect); err != nil {
						b.Fatal(err)
					}
				}
			}
			now, i := clock.Time(0), 0
			b.ReportAllocs()
			for b.Loop() {
				now += 100
				i = (i + 1) & 1023
				s.Ingress(now, i, 100)
			}
		})
	}
}

func BenchmarkMeasure(b *testing.B) {
	s, err := New(0, Config{Tenants: 1024, Resources: 16})
	if err != nil {
		b.Fatal(err)
	}
	i := 0
	for b.Loop() {
		i = (i + 1) & 1023
		s.Measure(i, i&15, 100)
	}
}

// TestCutShort: an epoch that ends at its half is no reason to take a packet of its
// last moment for a load of a thousand times as much.
func TestCutShort(t *testing.T) {
	s, err := New(0, Config{Tenants: 2, Resources: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.SetCapacity(0, 1e9); err != nil {
		t.Fatal(err)
	}
	half := clock.Time(DefaultEpoch / 2)
	for at := clock.Time(0); at <= half; at += 1000 {
		for tenant, bytes := range []int{2000, 400} {
			if s.Ingress(at, tenant, bytes) {
				s.Measure(tenant, 0, int64(bytes))
			}
		}
	}
	if err := s.Epoch(half); err != nil {
		t.Fatal(err)
	}
	if a, b := s.Grant(0), s.Grant(1); a < 0.2 || b != 1 {
		t.Errorf("grants %g and %g, want about 1/4 and all", a, b)
	}
}

// TestPress: who sends in clumps is not told while what is kept of its flow lasts; who asks for too much all the time is told before
// anything of it is refused.
func TestPress(t *testing.T) {
	for _, c := range []struct {
		name string
		on   int // epochs of ten in which a tenant sends twice what there is
		told bool
	}{{"clumps", 2, false}, {"flood", 10, true}} {
		s, err := New(0, Config{Tenants: 1, Resources: 1, Burst: 4000, Slack: time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.SetCapacity(0, 1e9); err != nil {
			t.Fatal(err)
		}
		now, told, refused := clock.Time(0), 0, 0
		for epoch := range 1000 {
			for range 40 {
				now = now.Add(DefaultEpoch / 40)
				if epoch < 100 || epoch%10 < 10-c.on { // what is kept fills first
					continue
				}
				switch in := s.Ingress(now, 0, 1000); {
				case !in:
					if refused++; told == 0 {
						t.Fatalf("%s: refused before it is told", c.name)
					}
				default:
					s.Measure(0, 0, 1000)
					if s.Press(now, 0) {
						told++
					}
				}
			}
			if err := s.Epoch(now); err != nil {
				t.Fatal(err)
			}
		}
		if (told > 0) != c.told || (refused > 0) != c.told {
			t.Errorf("%s: told %d times, %d refused", c.name, told, refused)
		}
	}
}

// TestQueued: no packet is refused for a flow for which packets wait elsewhere, whoever has had what of it, and it is divided all the same. What its
// owner has no room for counts as asked for.
func TestQueued(t *testing.T) {
	b := newBed(t, Config{Tenants: 3, Resources: 2}, gb(10), gb(10))
	if err := b.s.Queue(0); err != nil {
		t.Fatal(err)
	}
	b.sends(0, 30, 1, 0)
	b.sends(1, 2, 1, 0)
	b.run(20 * epoch)
	near(t, "the flood is let in", b.gbit(0, 20*epoch), 30, .3)
	near(t, "and the other", b.gbit(1, 20*epoch), 2, .1)
	if g, by := b.s.Grant(0), b.s.Bottleneck(0); math.Abs(g-8./30) > .02 || by != 0 {
		t.Errorf("the flood is granted %.3f, by %d: want %.3f by 0", g, by, 8./30)
	}
	near(t, "limit", b.s.Limit(0)*8/1e9, 8, .5)
	b.sends(1, 20) // and more at once than it sent in the last epoch
	b.run(epoch)
	near(t, "what rises", b.gbit(1, epoch), 20, .5)
	if b.s.Press(b.now, 0) {
		t.Error("it is to be told by whoever has its packets wait")
	}
	// The other flow limits as ever.
	b.sends(0, 2)
	b.sends(1, 2)
	b.sends(2, 15, .1, 1)
	b.run(20 * epoch)
	near(t, "of a flow that is not queued", b.gbit(2, 20*epoch), 10, .5)
	// Of what its owner has no room for it has asked, too.
	b.sends(0, 0)
	b.sends(1, 0)
	b.sends(2, 0)
	b.run(2 * epoch)
	before := b.s.Usage(0)
	b.s.Refuse(b.now, 0, 75_000) // in 20 us; there are 25,000 of the flow
	b.s.Ingress(b.now, 0, 25_000)
	b.s.Measure(0, 0, 25_000)
	b.run(epoch)
	after := b.s.Usage(0)
	near(t, "granted", b.s.Grant(0), .25, .01)
	if a, l := after.Arrived-before.Arrived, after.Admitted-before.Admitted; a != 100_000 || l != 25_000 {
		t.Errorf("%v arrived, and %v were let in: want 100,000 and 25,000", a, l)
	}
	if b.s.Queue(2) == nil || b.s.Queue(-1) == nil {
		t.Error("there are two flows")
	}
}

// TestPart: how much less a unit of a flow matters to a tenant than its dominant one.
func TestPart(t *testing.T) {
	b := newBed(t, Config{Tenants: 3, Resources: 3}, gb(10), gb(40), 0)
	b.sends(0, 1, 1, 1, 1)
	b.sends(1, 1, 1, 8, 0)
	b.run(2 * epoch)
	near(t, "dominant", b.s.Part(0, 0), 1, 1e-9)
	near(t, "a quarter", b.s.Part(0, 1), .25, 1e-9)
	near(t, "half", b.s.Part(1, 0), .5, 1e-9)
	near(t, "not used", b.s.Part(1, 2), 1, 1e-9)
	near(t, "nothing is known", b.s.Part(2, 0), 1, 1e-9)
}

// Share returns the dominant share that a tenant got in the last division.
func (s *Sharer) Share(tenant int) float64 { return float64(s.tenants[tenant].share) }

// Active returns the number of tenants that have been seen in this epoch.
func (s *Sharer) Active() int { return len(s.active) }
