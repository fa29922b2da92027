package bench

import (
	"math"
	"runtime"
	"testing"

	"github.com/quillon/quillon/nf/clock"
)

// BenchmarkSteer is "quillon bench steer" as a Go benchmark: the recorded mix
// through clover-steer. The best lap is what a machine that does nothing else
// would need.
func BenchmarkSteer(b *testing.B) { laps(b, steerBenchmark()) }

// BenchmarkSwordbox is "quillon bench swordbox" in the same way.
func BenchmarkSwordbox(b *testing.B) { laps(b, swordboxBenchmark()) }

func laps(b *testing.B, of Benchmark) {
	c, err := of.prepare(clock.NewWall())
	if err != nil {
		b.Fatal(err)
	}
	defer c.close()
	b.ReportAllocs()
	frames, best := 0, math.Inf(1)
	b.ResetTimer()
	for range b.N {
		b.StopTimer()
		lap, err := c.work()
		if err != nil {
			b.Fatal(err)
		}
		runtime.GC() // before, not beside, what is timed
		b.StartTimer()
		before := b.Elapsed()
		n, err := lap()
		if err != nil {
			b.Fatal(err)
		}
		frames += n
		best = min(best, float64((b.Elapsed()-before).Nanoseconds())/float64(n))
	}
	b.ReportMetric(best, "best-ns/packet")
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(frames), "ns/packet")
}
