package fair

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// gang is the parts of a board, and its whole.
type gang struct {
	parts []*bed
	whole *Sharer
}

func newGang(t failer, parts, tenants int, capacity ...float64) *gang {
	g := &gang{}
	for range parts {
		g.parts = append(g.parts, newBed(t, Config{Tenants: tenants, Resources: len(capacity), Parts: parts}, capacity...))
	}
	g.whole = newBed(t, Config{Tenants: tenants, Resources: len(capacity), Epoch: 100 * time.Microsecond}, capacity...).s
	return g
}

func (g *gang) weight(t failer, tenant int, w float64) {
	for _, b := range g.parts {
		if err := b.s.SetWeight(tenant, w); err != nil {
			t.Fatal(err)
		}
	}
	if err := g.whole.SetWeight(tenant, w); err != nil {
		t.Fatal(err)
	}
}

// run lets time pass, with a division of the whole every 100 µs, and returns the bytes that each tenant was let in with.
func (g *gang) run(t failer, d time.Duration) []float64 {
	got := make([]float64, len(g.parts[0].users))
	all := make([]Demands, len(g.parts))
	for ; d > 0; d -= 100 * time.Microsecond {
		for k, b := range g.parts {
			b.run(100 * time.Microsecond)
			for u := range b.users {
				got[u] += float64(b.users[u].passed)
			}
			b.s.Demands(b.now, &all[k])
		}
		now := g.parts[0].now
		flows := g.whole.flows
		for _, d := range all {
			for i, u := range d.Tenants {
				g.whole.Ask(now, int(u), d.Bytes[i], d.Rows[i*flows:])
			}
		}
		if err := g.whole.Epoch(now); err != nil {
			t.Fatal(err)
		}
		for k, b := range g.parts {
			for u := range b.users {
				b.s.Unbound(b.now, u)
			}
			for i, u := range all[k].Tenants {
				most := math.Inf(1)
				grant := g.whole.Grant(int(u))
				if grant < 1 {
					most = grant * all[k].Bytes[i]
				}
				b.s.Bound(b.now, int(u), grant*all[k].Bytes[i], most, g.whole.Bottleneck(int(u)))
			}
			for r := range flows {
				b.s.Leave(r, g.whole.Free(r)/1e9/float64(len(g.parts)))
			}
		}
	}
	return got
}

// Two parts of a board divide what one would: tenants that flood one part each, by weight, and one that is at both.
func TestParts(t *testing.T) {
	const gbit = 1e9 / 8
	g := newGang(t, 2, 3, 10*gbit)
	g.weight(t, 0, 3)
	g.parts[0].sends(0, 20, 1)
	g.parts[1].sends(1, 20, 1)
	g.run(t, 10*time.Millisecond)
	d := 20 * time.Millisecond
	share := func(got []float64) (of []float64) {
		for _, v := range got {
			of = append(of, v/(10*gbit*d.Seconds()))
		}
		return of
	}
	near := func(what string, got, want float64) {
		if math.Abs(got-want) > .03 {
			t.Errorf("%s: %.3f, not %.3f", what, got, want)
		}
	}
	got := share(g.run(t, d))
	near("weight 3, one part", got[0], .75)
	near("weight 1, the other", got[1], .25)
	// One that is at both parts has no more by that.
	g.parts[1].sends(0, 20, 1)
	g.run(t, 10*time.Millisecond)
	got = share(g.run(t, d))
	near("weight 3, both parts", got[0], .75)
	near("weight 1, one part", got[1], .25)
	// Who asks for less than its share has all of it; what is left is the others'.
	g.parts[0].sends(2, 1, 1)
	g.parts[1].sends(1, 0)
	g.run(t, 10*time.Millisecond)
	got = share(g.run(t, d))
	near("modest", got[2], .1)
	near("the other", got[0], .9)
}

// Whoever comes where, together they get no more than there is, and all of it if they want it.
func TestPartsNeverMore(t *testing.T) {
	const gbit = 1e9 / 8
	rapid.Check(t, func(rt *rapid.T) {
		parts, tenants := rapid.IntRange(2, 4).Draw(rt, "parts"), rapid.IntRange(1, 5).Draw(rt, "tenants")
		g := newGang(rt, parts, tenants, 10*gbit)
		wanted := 0.
		for u := range tenants {
			g.weight(rt, u, float64(rapid.IntRange(1, 4).Draw(rt, "weight")))
			for _, b := range g.parts {
				if v := rapid.IntRange(0, 8).Draw(rt, "Gb/s"); v > 0 {
					b.sends(u, float64(v), 1)
					wanted += float64(v)
				}
			}
		}
		g.run(rt, 5*time.Millisecond)
		const d = 5 * time.Millisecond
		sum := 0.
		for _, v := range g.run(rt, d) {
			sum += v
		}
		most := min(wanted, 10) * gbit * d.Seconds()
		if sum > most*1.02+200*float64(parts*tenants) || sum < most*.95 {
			rt.Fatalf("%.0f bytes of %.0f", sum, most)
		}
	})
}
