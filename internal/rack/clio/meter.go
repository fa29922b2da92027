package clio

import (
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr/clio"
)

// longestLatency, in ns, is the longest that a Meter tells apart: longer ones count as this.
const longestLatency = int64(10 * time.Second)

// Meter measures operations. The histograms are of ns.
type Meter struct {
	Read, Write *hdrhistogram.Histogram
	bytes       int
}

// NewMeter makes a meter of values of so many bytes.
func NewMeter(valueSize int) *Meter {
	return &Meter{Read: hdrhistogram.New(1, longestLatency, 3), Write: hdrhistogram.New(1, longestLatency, 3), bytes: valueSize}
}

// Add takes the end of an operation; one that was not done is not measured.
func (m *Meter) Add(d Done) {
	if d.Status != clio.OK {
		return
	}
	h := m.Write
	if d.Code == clio.Read {
		h = m.Read
	}
	_ = h.RecordValue(min(longestLatency, int64(d.Returned.Sub(d.Called))))
}

// Ops is how many were measured.
func (m *Meter) Ops() uint64 { return uint64(m.Read.TotalCount() + m.Write.TotalCount()) }

// All is reads and writes together.
func (m *Meter) All() *hdrhistogram.Histogram {
	h := hdrhistogram.Import(m.Read.Export())
	h.Merge(m.Write)
	return h
}

// Gbit is 10^9 bits of values a second, of so much time.
func (m *Meter) Gbit(d clock.Duration) float64 {
	return float64(m.Ops()) * float64(m.bytes) * 8 / float64(d)
}

// Stage is the application of a client that does one thing after the other: what App is, or nothing.
// It is a host.App.
type Stage struct {
	App interface {
		Step(now clock.Time) bool
		Deadline() clock.Time
	}
}

// Step implements host.App.
func (s *Stage) Step(now clock.Time) bool { return s.App != nil && s.App.Step(now) }

// Deadline implements host.App.
func (s *Stage) Deadline() clock.Time {
	if s.App == nil {
		return clock.Never
	}
	return s.App.Deadline()
}
