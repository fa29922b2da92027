// Package garbage says when Go's garbage is collected in a process in which frames wait for it.
package garbage

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
)

// Patient is how much garbage, in bytes, is let be while controllers are served. Their
// requests leave some 80 MB of it a second, and a small heap would be collected each time it
// has doubled: several times a second frames would wait for milliseconds.
const Patient = 128 << 20

// usual is how much more garbage than what is in use there is before it is
// collected, in percent: Go's default.
const usual = 100

// start is how much memory, in bytes, a process that starts takes before garbage is
// collected. A large spec takes more than a thousand times its length to be read.
const start = 192 << 20

// None has no garbage collected until stop, or until there is a lot of it: while a process
// starts, frames wait for it on a wire that is not open yet, and little of what it makes is
// garbage. stop gives the system what is left of that. GOGC and GOMEMLIMIT hold where they are set.
func None() (stop func()) {
	if os.Getenv("GOGC") != "" {
		return func() {}
	}
	limit := debug.SetMemoryLimit(-1)
	debug.SetMemoryLimit(min(limit, start))
	debug.SetGCPercent(-1)
	return sync.OnceFunc(func() {
		debug.SetMemoryLimit(limit)
		debug.SetGCPercent(usual)
		free := []metrics.Sample{{Name: "/memory/classes/heap/free:bytes"}, {Name: "/memory/classes/heap/objects:bytes"}}
		if metrics.Read(free); free[0].Value.Uint64()+free[1].Value.Uint64() > start/2 {
			go debug.FreeOSMemory()
		}
	})
}

// Less has garbage collected when there is so much of it, or when the heap
// has doubled if that is later; until stop. If the user set GOGC, that holds instead; GOMEMLIMIT holds in
// any case.
func Less(bytes uint64) (stop func()) {
	if os.Getenv("GOGC") != "" {
		return func() {}
	}
	var mu sync.Mutex
	stopped := false
	debug.SetGCPercent(usual)
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
		debug.SetGCPercent(usual)
	}
}
