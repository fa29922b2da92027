package main

import (
	"testing"

	"github.com/quillon/quillon/nf/clock"
)

// BenchmarkSteer is "quillon bench steer" as a Go benchmark: the recorded mix
// through clover-steer.
func BenchmarkSteer(b *testing.B) {
	c, err := steerBenchmark().prepare(clock.NewWall())
	if err != nil {
		b.Fatal(err)
	}
	defer c.close()
	b.ReportAllocs()
	frames := 0
	b.ResetTimer()
	for range b.N {
		b.StopTimer()
		lap, err := c.work()
		if err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		n, err := lap()
		if err != nil {
			b.Fatal(err)
		}
		frames += n
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(frames), "ns/packet")
}
