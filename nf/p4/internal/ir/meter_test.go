package ir

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
)

// model is a meter that keeps, without bounds, how many tokens have come since it was configured.
type model struct {
	since, now   uint64
	rates        []Rate
	tokens, seen []*big.Int
}

func newModel(now uint64, rates []Rate) *model {
	m := &model{since: now, now: now, rates: rates}
	for _, r := range rates {
		m.tokens, m.seen = append(m.tokens, new(big.Int).SetUint64(r.Burst)), append(m.seen, new(big.Int))
	}
	return m
}

func (m *model) color(now, need uint64) uint64 {
	m.now = max(m.now, now)
	want := new(big.Int).SetUint64(need)
	for i, r := range m.rates {
		total := new(big.Int).SetUint64(m.now - m.since)
		total.Mul(total, new(big.Int).SetUint64(r.PerSecond)).Div(total, big.NewInt(Million))
		t := m.tokens[i]
		t.Add(t, total).Sub(t, m.seen[i])
		if burst := new(big.Int).SetUint64(r.Burst); t.Cmp(burst) > 0 {
			t.Set(burst)
		}
		m.seen[i] = total
	}
	for i := len(m.rates) - 1; i >= 0; i-- {
		if m.tokens[i].Cmp(want) < 0 {
			return uint64(i + 1)
		}
		m.tokens[i].Sub(m.tokens[i], want)
	}
	return 0
}

// TestMeterModel compares meters with the model: rates from none to all that can be written, bursts of 1, times that go back, that
// stand still, and that go on by microseconds or by thousands of years.
func TestMeterModel(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	number := func() uint64 {
		switch rnd.IntN(6) {
		case 0:
			return uint64(rnd.IntN(3))
		case 1:
			return math.MaxUint64 - uint64(rnd.IntN(2))
		}
		return rnd.Uint64() >> rnd.IntN(64)
	}
	var colors [4]int
	for range 3000 {
		rates := make([]Rate, 1+rnd.IntN(3))
		for i := range rates {
			rates[i] = Rate{number(), number()}
			if i > 0 {
				rates[i].PerSecond = max(rates[i].PerSecond, rates[i-1].PerSecond)
			}
		}
		now := rnd.Uint64() >> (1 + rnd.IntN(63))
		m := make(Meter, MeterWords(len(rates)))
		m.Configure(now, rates)
		want := newModel(now, rates)
		for n := range 200 {
			step := rnd.Uint64() >> (12 + rnd.IntN(52))
			if now+step > now && now+step < math.MaxInt64 {
				now += step
			}
			at := now
			if rnd.IntN(8) == 0 {
				at -= min(now, uint64(rnd.IntN(5)))
			}
			need := number()
			if rnd.IntN(2) == 0 {
				need = 1
			}
			if rnd.IntN(4) == 0 { // a frame takes tokens, and gives them back
				color := m.Color(at, need)
				for b := int(color); b < len(rates); b++ {
					m.bucket(b)[BucketBack] += need
				}
			}
			got, color := m.Color(at, need), want.color(at, need)
			if got != color {
				t.Fatalf("rates %v, packet %d at %d of %d: color %d, want %d", rates, n, at, need, got, color)
			}
			colors[got]++
		}
	}
	if t.Logf("colors: %v", colors); colors[0] == 0 || colors[1] == 0 || colors[2] == 0 {
		t.Error("a color is missing: nothing is compared")
	}
}

// TestMeterDrift: in a hundred years no token is lost or won, though each packet comes after a fraction of a token.
func TestMeterDrift(t *testing.T) {
	for _, rate := range []uint64{1, 3, 999_999, 1_000_001, 1<<32 + 1} {
		m := make(Meter, MeterWords(1))
		m.Configure(0, []Rate{{rate, math.MaxUint64}})
		m.Color(0, math.MaxUint64)
		const step, n = 3155692600, 1_000_000 // µs; all together a hundred years
		for i := range uint64(n) {
			m.Color((i+1)*step, math.MaxUint64)
		}
		want := new(big.Int).SetUint64(rate)
		want.Mul(want, big.NewInt(step)).Mul(want, big.NewInt(n)).Div(want, big.NewInt(Million))
		if got := m.bucket(0)[BucketTokens]; got != want.Uint64() {
			t.Errorf("%d a second: %d tokens, want %v", rate, got, want)
		}
	}
}
