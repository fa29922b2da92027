package clio

import (
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr/clio"
)

// longestLatency, in ns, is the longest latency that a Meter records; longer ones count as this.
const longestLatency = int64(10 * time.Second)

// Meter measures operations. The histograms are in ns.
type Meter struct {
	Read, Write *hdrhistogram.Histogram
	bytes       int
}

// NewMeter makes a meter for operations with values of valueSize bytes.
func NewMeter(valueSize int) *Meter {
	return &Meter{Read: hdrhistogram.New(1, longestLatency, 3), Write: hdrhistogram.New(1, longestLatency, 3), bytes: valueSize}
}

// Add records the end of an operation. Operations whose status is not OK are not measured.
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

// Ops returns how many operations were measured.
func (m *Meter) Ops() uint64 { return uint64(m.Read.TotalCount() + m.Write.TotalCount()) }

// All returns one histogram of reads and writes.
func (m *Meter) All() *hdrhistogram.Histogram {
	h := hdrhistogram.Import(m.Read.Export())
	h.Merge(m.Write)
	return h
}

// Gbit returns the measured values' rate over a time, in 10^9 bits a second.
func (m *Meter) Gbit(d clock.Duration) float64 {
	return float64(m.Ops()) * float64(m.bytes) * 8 / float64(d)
}

// Stage is a host.App whose work changes: it does what App does, or nothing if App is nil.
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
