package fair

import (
	"math"
	"slices"

	"github.com/quillon/quillon/nf/clock"
)

// Demands holds what tenants asked of a part of a board, as rates: bytes, and units of each flow, a ns.
type Demands struct {
	Tenants []int32
	Bytes   []float64 // of each tenant
	Rows    []float64 // of each tenant, all flows
}

// Demands writes to d what tenants of a part asked for in the epochs that have ended since the last call.
func (s *Sharer) Demands(now clock.Time, d *Demands) {
	d.Tenants, d.Bytes, d.Rows = d.Tenants[:0], d.Bytes[:0], d.Rows[:0]
	ns := float64(now.Sub(s.reported))
	if ns <= 0 {
		return
	}
	s.reported = now
	for _, i := range s.asking {
		t := &s.tenants[i]
		bytes := t.recent
		t.recent = 0
		d.Tenants, d.Bytes = append(d.Tenants, i), append(d.Bytes, bytes/ns)
		at := len(d.Rows)
		d.Rows = slices.Grow(d.Rows, s.flows)[:at+s.flows]
		for r, v := range s.at(t.vector) {
			d.Rows[at+r] = 0
			if t.bytes > 0 {
				d.Rows[at+r] = float64(v) / t.bytes * bytes / ns
			}
		}
	}
	s.asking = s.asking[:0]
}

// Ask adds the demand of a tenant at one of the parts to this epoch of the whole: bytes a ns, and in row units of
// each flow a ns.
func (s *Sharer) Ask(now clock.Time, tenant int, bytes float64, row []float64) {
	t := &s.tenants[tenant]
	if t.epoch != s.epoch {
		s.activate(tenant, t)
	}
	ns := float64(max(now.Sub(s.start), 1))
	n := int64(math.Ceil(bytes * ns))
	t.arrived += n
	t.admitted += n
	counts := s.at(t.count)
	for r, v := range row[:len(counts)] {
		counts[r] += int64(v * ns)
	}
}

// Bound sets what a tenant got of the whole board for this part, in bytes a ns. least is its grant of what all
// parts share, even if it sent nothing in the last epoch; most is its limit, +Inf for none. by is the resource
// that is full in the whole board and sets the limit.
func (s *Sharer) Bound(now clock.Time, tenant int, least, most float64, by int) {
	t := &s.tenants[tenant]
	t.least, t.most, t.fully = least, most, int32(by)
	if t.epoch != s.epoch {
		s.refill(now, t, least)
	}
}

// Unbound removes the bounds that Bound has set.
func (s *Sharer) Unbound(now clock.Time, tenant int) { s.Bound(now, tenant, 0, math.Inf(1), -1) }

// Leave limits the pool of a flow in this part to rate, in units a ns.
func (s *Sharer) Leave(resource int, rate float64) {
	p := &s.pools[resource]
	p.most = rate
	if p.rate > rate {
		s.setPool(p, rate)
	}
}

// bounded returns a tenant's new rate within its bounds.
func (s *Sharer) bounded(i int32, t *tenant, rate float64) float64 {
	if rate <= t.most {
		if r := s.bottleneck[i]; rate < t.least && (r < 0 || int(r) < s.flows && !math.IsInf(s.pools[r].most, 1)) {
			return t.least // an epoch is short
		}
		return rate
	}
	k := float32(t.most / rate)
	t.grant *= k
	t.share *= k
	s.bottleneck[i] = t.fully
	return t.most
}
