package xdp_test

import (
	"fmt"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/quillon/quillon/internal/bench"
)

// BenchmarkMix runs frames of the loads of quillon bench in the kernel's test runs, each many times behind all of them once. ns/frame is the mean of each frame's least
// time, what an empty program takes included: how good the code is, without the waiting for memory that many flows bring. For ns/turn each frame is run once, behind
// all others, in 20 laps.
func BenchmarkMix(b *testing.B) {
	for _, of := range []struct {
		name string
		load func() (*bench.Load, error)
	}{{"Bridge", bench.BridgeLoad}, {"Router", func() (*bench.Load, error) { return bench.RouterLoad(10_000) }}, {"Steer", bench.SteerLoad}} {
		b.Run(of.name, func(b *testing.B) {
			l, err := of.load()
			if err != nil {
				b.Fatal(err)
			}
			mix(b, l)
		})
	}
}

// mix runs a load.
func mix(b *testing.B, l *bench.Load) {
	if os.Geteuid() != 0 {
		b.Skip("it needs root, to load programs")
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const loopback = 1
	x := loadedP4(b, l, loopback, loopback)
	for range 2 {
		for _, f := range l.Laps {
			if _, err := x.Program().Run(&ebpf.RunOptions{Data: f.Bytes}); err != nil {
				b.Fatal(err)
			}
		}
	}
	step := max(1, len(l.Laps)/96)
	least := map[int]time.Duration{}
	for b.Loop() {
		for i := 0; i < len(l.Laps); i += step {
			_, d, err := x.Program().Benchmark(l.Laps[i].Bytes, 5000, nil)
			if err != nil {
				b.Fatal(err)
			}
			if was, there := least[i]; !there || d < was {
				least[i] = d
			}
		}
	}
	turns := map[int]time.Duration{}
	for range 20 {
		for i, f := range l.Laps {
			_, d, err := x.Program().Benchmark(f.Bytes, 1, nil)
			if err != nil {
				b.Fatal(err)
			}
			if was, there := turns[i]; !there || d < was {
				turns[i] = d
			}
		}
	}
	b.ReportMetric(mean(least), "ns/frame")
	b.ReportMetric(mean(turns), "ns/turn")
	if os.Getenv("QUILLON_MIX") != "" {
		for i := 0; i < len(l.Laps); i += step {
			fmt.Printf("%d len %d op %x: %d\n", i, len(l.Laps[i].Bytes), l.Laps[i].Bytes[min(42, len(l.Laps[i].Bytes)-1)], least[i].Nanoseconds())
		}
	}
}

func mean(all map[int]time.Duration) float64 {
	var sum time.Duration
	for _, d := range all {
		sum += d
	}
	return float64(sum.Nanoseconds()) / float64(len(all))
}
