package snic

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
)

// TestAddDAGToMany: a DAG is added to many. The worker does that between two breaths, so it must not do again for each of the others what has not
// changed: a board of 10,000 tenants stood still for a tenth of a second, and frames of all tenants were lost. Allocations stand for that time.
func TestAddDAGToMany(t *testing.T) {
	const many, each = 1000, 20
	text := func(dags int) string {
		var b, rules strings.Builder
		b.WriteString("regions: {count: 8, area: 3}\ntasks:\n")
		for i := range 10 {
			fmt.Fprintf(&b, "  t%d: {kind: quick, args: {letter: a}, reads: [ports]}\n", i)
		}
		b.WriteString("tenants:\n")
		for i := range many {
			fmt.Fprintf(&b, "  u%d: {}\n", i)
		}
		b.WriteString("dags:\n")
		rules.WriteString("rules:\n")
		for i := range dags {
			fmt.Fprintf(&b, "  - {uid: %d, tenant: u%d, run: t%d -> t%d}\n", i+1, i%many, i%10, (i+1)%10)
			fmt.Fprintf(&rules, "  - {match: 'src:10.0.%d.%d', dag: %d}\n", i/256, i%256, i+1)
		}
		return b.String() + rules.String()
	}
	x := graphtest.NewOuter(t, scripts(), graph.Args{"deployment": text(many)})
	x.Advance(20 * time.Millisecond)
	if err := x.Set(graph.Args{"deployment": text(many + 1)}); err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	x.Advance(0)
	runtime.ReadMemStats(&after)
	if n := after.Mallocs - before.Mallocs; n > each*many {
		t.Errorf("%d allocations, %d for each DAG that was there", n, n/many)
	}
}
