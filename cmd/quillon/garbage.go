package main

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
)

// patientGarbage is how much garbage, in bytes, is let be while controllers are served. Their
// requests leave some 80 MB of it a second, and a small heap would be collected each time it
// has doubled: several times a second frames would wait for milliseconds.
const patientGarbage = 128 << 20

// collectLess has garbage collected when there is so much of it, or when the heap
// has doubled if that is later; until stop. Who sets GOGC has what that says, and GOMEMLIMIT holds.
func collectLess(bytes uint64) (stop func()) {
	if os.Getenv("GOGC") != "" {
		return func() {}
	}
	const usual = 100 // percent of what is in use
	var mu sync.Mutex
	stopped := false
	before := debug.SetGCPercent(usual)
	percent := usual
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	var tune func(struct{})
	tune = func(struct{}) {
		mu.Lock()
		defer mu.Unlock()
		if stopped {
			return
		}
		metrics.Read(live)
		want := usual
		if n := live[0].Value.Uint64(); n > 0 {
			want = int(min(max(100*bytes/n, usual), 100*usual))
		}
		// It stops all that runs, for some 20 us: not for a small change.
		if want < percent*3/4 || want > percent*5/4 {
			percent = want
			debug.SetGCPercent(want)
		}
		runtime.AddCleanup(new([16]byte), tune, struct{}{}) // after the next collection
	}
	tune(struct{}{})
	return func() {
		mu.Lock()
		defer mu.Unlock()
		stopped = true
		debug.SetGCPercent(before)
	}
}
