package snic

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
)

// As many tenants as a board takes, each with a DAG and a rule, and 100,000 flows, fit in 512 MiB.
func TestManyTenants(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: 100,000 flows")
	}
	var b strings.Builder
	b.WriteString("regions: {count: 4, area: 2}\ntasks: {a: {kind: quick, args: {letter: a}}, b: {kind: quick, args: {letter: b}}}\ntenants:\n")
	for i := range maxTenants {
		fmt.Fprintf(&b, "  u%d: {}\n", i)
	}
	b.WriteString("dags:\n")
	for i := range maxTenants {
		fmt.Fprintf(&b, "  - {uid: %d, tenant: u%d, run: a -> b}\n", i+1, i)
	}
	b.WriteString("rules:\n")
	for i := range maxTenants {
		fmt.Fprintf(&b, "  - {match: 'src:10.1.%d.%d', dag: %d}\n", i>>8, i&255, i+1)
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	x := graphtest.NewOuter(t, scripts(), graph.Args{"deployment": b.String()})
	x.Advance(10 * time.Millisecond)
	var frames [][]byte
	for i := range 64 {
		frames = append(frames, frame(byte(i), "00000000-."))
	}
	n, out := 0, 0
	for n < 100_000 {
		for _, f := range frames {
			copy(f[26:30], []byte{10, 1, byte(n % maxTenants >> 8), byte(n % maxTenants)})
			binary.BigEndian.PutUint16(f[34:], uint16(n/maxTenants))
			n++
		}
		r := x.Push("p0", frames...)
		more := x.Advance(20 * time.Microsecond)
		out += len(r.Out["p1"]) + len(more.Out["p1"])
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	used := int64(after.HeapAlloc - before.HeapAlloc) // with the test's frames
	t.Logf("%d tenants, %d DAGs, %d flows: %d MiB", maxTenants, maxTenants, n, used>>20)
	if used > 512<<20 {
		t.Errorf("%d MiB", used>>20)
	}
	if out != n {
		t.Errorf("%d of %d frames came out", out, n)
	}
	runtime.KeepAlive(x)
}

// BenchmarkEpoch is an epoch in which many tenants have sent one packet each: 64
// frames and what is divided.
// With many tenants active epochs are longer: divisions leave time for frames.
func TestEpochOfMany(t *testing.T) {
	text, _ := load(200)
	x := graphtest.NewOuter(t, []graph.Kind{*Kind(declared()...), idle()}, graph.Args{"deployment": text})
	x.Advance(20 * time.Millisecond)
	length := func(tenants int) time.Duration {
		x.Advance(time.Millisecond) // what came before is counted
		var frames [][]byte
		for i := range tenants {
			frames = append(frames, frame(byte(i+1), "-"))
		}
		x.Push("p0", frames...)
		b := x.App().(*board)
		x.Advance(b.placing.epochAt.Sub(x.Clock.Now()))
		began := x.Clock.Now()
		x.Push("p0", frames[0]) // ends none earlier
		return b.placing.epochAt.Sub(began)
	}
	for tenants, want := range map[int]time.Duration{1: 20 * time.Microsecond, 25: 20 * time.Microsecond, 200: 160 * time.Microsecond} {
		if got := length(tenants); got != want {
			t.Errorf("%d tenants: an epoch of %v", tenants, got)
		}
	}
}

func BenchmarkEpoch(b *testing.B) {
	text, frames := load(64)
	l := graphtest.NewOuterLoop(b, []graph.Kind{*Kind(declared()...), idle()}, graph.Args{"deployment": text, "epoch": "5us"}, "p0", frames...)
	l.Wait(20 * time.Millisecond)
	l.Benchmark(b)
}
