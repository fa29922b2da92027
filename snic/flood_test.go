package snic

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
)

// offer is a tenant's load: a source sends so many Mbit/s in bursts of frames, at
// times that are not quite regular: else it were chance, and always the same, who finds the last
// token of its tenant.
type offer struct {
	src   byte
	mbit  int
	burst int
}

// served is what came out: bits a second in Mbit, and the times that frames took.
type served struct {
	mbit float64
	took []time.Duration
}

// serve offers loads for some time and measures after a fifth of it.
func serve(x *graphtest.Test, d time.Duration, offers ...offer) map[byte]*served {
	const size = 1000
	pad := strings.Repeat(".", size-payload-20)
	out := map[byte]*served{}
	next := make([]clock.Time, len(offers))
	start := x.Clock.Now()
	random := rand.New(rand.NewPCG(1, 2))
	for i, o := range offers {
		next[i] = start
		out[o.src] = &served{}
	}
	from, end := start.Add(d/5), start.Add(d)
	take := func(r graphtest.Result) {
		for _, f := range r.Out["p1"] {
			at, _ := strconv.ParseInt(string(f.Bytes[payload+10:payload+20]), 10, 64)
			if now := x.Clock.Now(); now >= from && now < end {
				s := out[f.Bytes[29]]
				s.mbit += float64(len(f.Bytes)) * 8e-6
				s.took = append(s.took, now.Sub(clock.Time(at)))
			}
		}
	}
	for {
		i := 0
		for k := range next {
			if next[k] < next[i] {
				i = k
			}
		}
		if next[i] >= end {
			break
		}
		take(x.Advance(next[i].Sub(x.Clock.Now())))
		var frames [][]byte
		for range max(offers[i].burst, 1) {
			frames = append(frames, frameLong(offers[i].src, fmt.Sprintf("00000000-.%010d%s", x.Clock.Now(), pad)))
		}
		take(x.Push("p0", frames...))
		gap := len(frames) * size * 8 * 1000 / offers[i].mbit
		next[i] = next[i].Add(time.Duration(gap/2 + random.IntN(gap+1)))
	}
	take(x.Advance(end.Sub(x.Clock.Now())))
	for _, s := range out {
		s.mbit /= end.Sub(from).Seconds()
		slices.Sort(s.took)
	}
	return out
}

func shared(weight string) string {
	return fmt.Sprintf(`
regions: {count: 1, area: 2}
tasks:
  a: {kind: quick, args: {letter: a}, throughput: 5Gbit, latency: 1us, credits: 32}
tenants: {u: {weight: %s}, v: {}, w: {}}
dags: [{uid: 1, tenant: u, run: a}, {uid: 2, tenant: v, run: a}, {uid: 3, tenant: w, run: a}]
rules: [{match: "src:10.0.0.1", dag: 1}, {match: "src:10.0.0.2", dag: 2}, {match: "src:10.0.0.3", dag: 3}]
`, weight)
}

// TestClumps: frames that come in clumps, since whoever takes them was away meanwhile, are
// not too many for a tenant that is far below what its task can do: alone, beside another, and when single
// frames come while a clump is inside.
func TestClumps(t *testing.T) {
	x := scripted(t, shared("1"), "packets", "4096")
	serve(x, 50*time.Millisecond, offer{1, 10, 1}) // its task runs
	for name, load := range map[string][]offer{
		"alone": {{1, 1500, 700}}, "beside another": {{1, 1500, 700}, {2, 100, 1}}, "with single frames": {{1, 1400, 700}, {1, 100, 1}},
	} {
		total := 0.
		for _, s := range serve(x, 200*time.Millisecond, load...) {
			total += s.mbit
		}
		want := 0.
		for _, o := range load {
			want += float64(o.mbit)
		}
		if n := x.Counter("throttled"); n != 0 || math.Abs(total-want) > .1*want {
			t.Errorf("%s: %g Mbit/s of %g, %d frames throttled", name, total, want, n)
		}
	}
}

// TestShareOfLate: what tenants have is shown as a mean of 100 ms, whatever the epoch that has just ended was like: it
// is the same at any time for who sends in bursts. It stays with a change of weights, and is not a new tenant's.
func TestShareOfLate(t *testing.T) {
	x := scripted(t, shared("1"), "burst", "64k", "packets", "1024")
	x.Advance(20 * time.Millisecond)
	load := []offer{{1, 1500, 32}, {2, 1000, 1}} // of 5000; a burst is more than an epoch has
	serve(x, 210*time.Millisecond, load...)
	near := func(when string, want ...float64) {
		t.Helper()
		for i, v := range viewOf(x).Tenants {
			if math.Abs(v.Share-want[2*i]) > .03 || math.Abs(v.Grant-want[2*i+1]) > .05 {
				t.Fatalf("%s: %s has %g, of what it asks for %g; want %g", when, v.Tenant, v.Share, v.Grant, want[2*i:2*i+2])
			}
		}
	}
	for i := range 20 {
		near(fmt.Sprint("the ", i, "th time"), .3, 1, .2, 1, 0, 1)
		serve(x, 37*time.Microsecond, load...)
	}
	if err := x.Set(graph.Args{"deployment": shared("2")}); err != nil {
		t.Fatal(err)
	}
	x.Advance(time.Millisecond)
	near("a new weight", .3, 1, .2, 1, 0, 1)
	serve(x, 210*time.Millisecond, offer{1, 1500, 1}, offer{3, 7000, 1})
	near("a flood", .3, 1, 0, 1, .7, .5)
	if err := x.Set(graph.Args{"deployment": strings.NewReplacer("w: {}", "z: {}", "tenant: w", "tenant: z").Replace(shared("1"))}); err != nil {
		t.Fatal(err)
	}
	x.Advance(time.Millisecond)
	near("another tenant", .3, 1, 0, 1, 0, 1)
	x.Advance(210 * time.Millisecond)
	near("nothing was sent", 0, 1, 0, 1, 0, 1)
}

// A tenant that floods gets what the others leave; these get all that they ask for up to their
// share, and their packets do not wait behind the flood. Without fairness they do.
func TestFlood(t *testing.T) {
	run := func(fair string) map[byte]*served {
		x := scripted(t, shared("1"), "fair", fair, "burst", "8k", "packets", "1024")
		x.Advance(20 * time.Millisecond)
		return serve(x, 15*time.Millisecond, offer{1, 1500, 1}, offer{2, 1200, 1}, offer{3, 30000, 32})
	}
	on := run("on")
	for src, want := range map[byte]float64{1: 1500, 2: 1200} {
		s := on[src]
		if s.mbit < 0.97*want {
			t.Errorf("tenant %d asks for %v Mbit/s, less than its share, and gets %.0f", src, want, s.mbit)
		}
		if p99 := s.took[len(s.took)*99/100]; p99 > 100*time.Microsecond {
			t.Errorf("tenant %d: 99 %% take up to %v", src, p99)
		}
	}
	if s := on[3]; s.mbit < 0.9*2300 || s.mbit > 2400 {
		t.Errorf("the flood gets %.0f Mbit/s of the 2300 that are left", s.mbit)
	}
	off := run("off")
	t.Logf("on: %.0f %.0f %.0f Mbit/s, p99 %v; off: %.0f %.0f %.0f, p99 %v", on[1].mbit, on[2].mbit, on[3].mbit, on[1].took[len(on[1].took)*99/100],
		off[1].mbit, off[2].mbit, off[3].mbit, off[1].took[len(off[1].took)*99/100])
	if s := off[1]; s.mbit > 1450 || s.took[len(s.took)*99/100] < time.Millisecond {
		t.Errorf("without fairness tenant 1 still gets %.0f Mbit/s", s.mbit)
	}
}

// Floods divide a task by their weights.
func TestWeights(t *testing.T) {
	x := scripted(t, shared("2"), "burst", "8k")
	x.Advance(20 * time.Millisecond)
	got := serve(x, 15*time.Millisecond, offer{1, 8000, 8}, offer{2, 8000, 8}, offer{3, 8000, 8})
	for src, want := range map[byte]float64{1: 2500, 2: 1250, 3: 1250} {
		if s := got[src].mbit; s < 0.95*want || s > 1.05*want {
			t.Errorf("tenant %d gets %.0f of %v Mbit/s", src, s, want)
		}
	}
	// One goes: the others have its share from the next epoch on.
	got = serve(x, 10*time.Millisecond, offer{1, 8000, 8}, offer{2, 8000, 8})
	for src, want := range map[byte]float64{1: 3333, 2: 1667} {
		if s := got[src].mbit; s < 0.95*want || s > 1.05*want {
			t.Errorf("alone: tenant %d gets %.0f of %v Mbit/s", src, s, want)
		}
	}
}

// A flood that waits for its own region leaves others room in the packet store, of packets and of bytes.
func TestFloodThatWaits(t *testing.T) {
	for _, bound := range [][]string{{"packets", "512"}, {"store", "256k"}} {
		x := scripted(t, `
regions: {count: 2, area: 1}
tasks:
  a: {kind: quick, args: {letter: a}, latency: 5us, credits: 64}
  b: {kind: quick, args: {letter: b}}
  c: {kind: quick, args: {letter: c}}
tenants: {u: {}, v: {}}
dags: [{uid: 1, tenant: u, run: a}, {uid: 2, tenant: v, run: b}, {uid: 3, tenant: v, run: c}]
rules: [{match: "src:10.0.0.1", dag: 1}, {match: "src:10.0.0.2", dag: 2}, {match: "src:10.0.0.3", dag: 3}]
`, append(bound, "idle", "0")...)
		x.Advance(20 * time.Millisecond)
		serve(x, 10*time.Millisecond, offer{1, 1000, 1})
		got := serve(x, 4*time.Millisecond, offer{1, 1000, 1}, offer{3, 20000, 16}, offer{2, 20000, 16})
		if s := got[1].mbit; s < 950 {
			t.Errorf("%s=%s: of 1000 Mbit/s come out %.0f", bound[0], bound[1], s)
		}
	}
}
