package sim

import (
	"context"
	"os"
	"testing"
	"time"

	tor "github.com/quillon/quillon/tor/clover"
)

func TestTmp(t *testing.T) {
	if os.Getenv("TMPC") == "" {
		return
	}
	for _, ws := range []float64{0, .05, .5, 1} {
		for _, mode := range []tor.Mode{tor.Off, tor.Write, tor.ReadWrite} {
			for _, th := range []int{1, 8, 40} {
				start := time.Now()
				m, err := Clover(context.Background(), CloverConfig{ThreadsPerHost: th, WriteShare: ws, Zipf: 0.99, Mode: mode, Warmup: time.Millisecond, Measure: 2 * time.Millisecond})
				el := time.Since(start)
				t.Logf("ws=%v %v %d: %.3f M first %.3f pk %.2f by %.1f r %.1f/%.1f w %.1f/%.1f steered %d err %d up %.2f down %.2f | %v %.2fMev/s %v", ws, mode, th, m.OpsPerSecond/1e6, m.FirstTry, m.PacketsPerOp, m.BytesPerOp, m.Read.P50, m.Read.P99, m.Write.P50, m.Write.P99, m.Steered, m.Errors, m.MemoryUp, m.MemoryDown, el.Round(time.Millisecond), float64(m.Events)/el.Seconds()/1e6, err)
			}
		}
	}
}
