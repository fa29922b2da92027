// Package trace keeps what happened to chosen packets: fixed-size typed
// records, written by apps on the packet path and formatted later, by the app
// that wrote them. Writing never allocates and never blocks; when the ring is
// full the oldest records go.
package trace

import "sync"

// Record is one event of one traced packet. What Kind and Args mean is known
// to the app that wrote it.
type Record struct {
	Packet uint32 // the traced packet's number, from 1
	At     int64  // nanoseconds of the run's clock
	App    uint16 // index of the app in its graph
	Kind   uint16
	Args   [4]uint64
}

// Ring holds the newest records of one worker. Add is the worker's, under a
// lock that is only contended while somebody reads; untraced packets never
// come here.
type Ring struct {
	mu  sync.Mutex
	rec []Record
	n   uint64
}

// NewRing makes a ring of size records.
func NewRing(size int) *Ring { return &Ring{rec: make([]Record, size)} }

// Add appends a record.
func (r *Ring) Add(x Record) {
	r.mu.Lock()
	r.rec[r.n%uint64(len(r.rec))] = x
	r.n++
	r.mu.Unlock()
}

// Snapshot appends the records, oldest first, to dst.
func (r *Ring) Snapshot(dst []Record) []Record {
	r.mu.Lock()
	defer r.mu.Unlock()
	size := uint64(len(r.rec))
	start := uint64(0)
	if r.n > size {
		start = r.n - size
	}
	for i := start; i < r.n; i++ {
		dst = append(dst, r.rec[i%size])
	}
	return dst
}

// Clear forgets all records.
func (r *Ring) Clear() {
	r.mu.Lock()
	r.n = 0
	r.mu.Unlock()
}
