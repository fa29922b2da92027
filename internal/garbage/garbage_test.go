package garbage

import (
	"math"
	"os"
	"runtime"
	"runtime/metrics"
	"testing"
	"time"
)

// A small heap is collected when there is as much garbage as was said, a large one when
// it has doubled, and after stop all is as it was.
func TestLess(t *testing.T) {
	if v, ok := os.LookupEnv("GOGC"); ok {
		defer os.Setenv("GOGC", v)
		os.Unsetenv("GOGC")
	}
	read := func(name string) uint64 {
		s := []metrics.Sample{{Name: name}}
		metrics.Read(s)
		return s[0].Value.Uint64()
	}
	percent := func() uint64 { return read("/gc/gogc:percent") }
	becomes := func(what string, ok func(percent, live uint64) bool) {
		t.Helper()
		for range 500 {
			runtime.GC()
			if ok(percent(), read("/gc/heap/live:bytes")) {
				return
			}
			time.Sleep(time.Millisecond) // cleanups have a goroutine of their own
		}
		t.Errorf("%s: %d %% of %d bytes", what, percent(), read("/gc/heap/live:bytes"))
	}
	was := percent()
	const garbage = 64 << 20
	least := make([]byte, 4<<20) // of a smaller heap no more than a hundred times its size is left
	defer runtime.KeepAlive(least)
	stop := Less(garbage)
	near := func(p, live uint64) bool {
		bytes := p * live / 100
		return bytes > garbage/2 && bytes < garbage*2
	}
	becomes("a small heap", near)
	large := make([]byte, 256<<20)
	becomes("a large heap", func(p, _ uint64) bool { return p == 100 })
	runtime.KeepAlive(large)
	becomes("a small heap again", near)
	stop()
	if p := percent(); p != was {
		t.Errorf("after stop %d %%, not %d", p, was)
	}
	t.Setenv("GOGC", "50")
	defer Less(garbage)()
	for range 3 {
		runtime.GC()
	}
	if p := percent(); p != was {
		t.Errorf("with GOGC %d %%, not %d", p, was)
	}
}

func TestCollectNone(t *testing.T) {
	percent := func() uint64 {
		s := []metrics.Sample{{Name: "/gc/gogc:percent"}}
		metrics.Read(s)
		return s[0].Value.Uint64()
	}
	t.Setenv("GOGC", "")
	stop := None()
	if p := percent(); p != math.MaxUint64 {
		t.Errorf("%d %%", p)
	}
	spare := Less(64 << 20) // controllers are served while it starts
	if p := percent(); p == math.MaxUint64 {
		t.Error("none is collected while controllers are served")
	}
	spare()
	stop()
	if p := percent(); p != usual {
		t.Errorf("after stop %d %%", p)
	}
	t.Setenv("GOGC", "50")
	defer None()()
	if p := percent(); p != usual {
		t.Errorf("with GOGC %d %%", p)
	}
}

// A large spec is read in bounded memory, and what is left of that goes back to the system.
func TestCollectAtStart(t *testing.T) {
	t.Setenv("GOGC", "")
	held := func() uint64 {
		s := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
		metrics.Read(s)
		return s[0].Value.Uint64() - s[1].Value.Uint64()
	}
	runtime.GC()
	before := held()
	stop := None()
	// The collector works beside what makes garbage, and waits for a processor where others run.
	falls := func(to uint64) bool {
		for range 1000 {
			if held() < to {
				return true
			}
			time.Sleep(10 * time.Millisecond)
		}
		return false
	}
	var piece []byte
	for i := range 4 * start >> 20 {
		piece = make([]byte, 1<<20)
		if i%(start>>22) == 0 && !falls(2*start+before) {
			t.Fatalf("%d MB of garbage were made and %d MB are held", i, held()>>20)
		}
	}
	runtime.KeepAlive(piece)
	stop()
	if !falls(before + start/2) {
		t.Errorf("%d MB are held, %d MB were before", held()>>20, before>>20)
	}
}
