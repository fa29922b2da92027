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

// manyDAGs is a deployment of DAGs with two of ten tasks each.
func manyDAGs(tenants, dags int) string {
	var b, rules strings.Builder
	b.WriteString("regions: {count: 8, area: 3}\ntasks:\n")
	for i := range 10 {
		fmt.Fprintf(&b, "  t%d: {kind: quick, args: {letter: a}, reads: [ports]}\n", i)
	}
	b.WriteString("tenants:\n")
	for i := range tenants {
		fmt.Fprintf(&b, "  u%d: {}\n", i)
	}
	b.WriteString("dags:\n")
	rules.WriteString("rules:\n")
	for i := range dags {
		fmt.Fprintf(&b, "  - {uid: %d, tenant: u%d, run: t%d -> t%d}\n", i+1, i%tenants, i%10, (i+1)%10)
		fmt.Fprintf(&rules, "  - {match: 'src:10.0.%d.%d', dag: %d}\n", i/256, i%256, i+1)
	}
	return b.String() + rules.String()
}

// TestAddDAGToMany: a DAG is added to many. The worker does that between two breaths, so it must not do again for each of the others what has not
// changed: a board of 10,000 tenants stood still for a tenth of a second, and frames of all tenants were lost. Allocations stand for that time.
func TestAddDAGToMany(t *testing.T) {
	const many, each = 1000, 20
	text := func(dags int) string { return manyDAGs(many, dags) }
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

// TestLookAtMany: who looks at a board with many DAGs, once a second say, does not stop its worker for longer than some microseconds: the report is made
// step by step.
func TestLookAtMany(t *testing.T) {
	const many = 3000
	x := graphtest.NewOuter(t, scripts(), graph.Args{"deployment": manyDAGs(many, many)})
	x.Advance(20 * time.Millisecond)
	g, ok := boardOf(x).Report().(*graph.Gradual)
	if !ok {
		t.Fatal("the report is made at once")
	}
	steps := 1
	for g.Look(256) {
		steps++
	}
	v := g.Value().(View)
	if steps < 2*many/256 || len(v.DAGs) != many || len(v.Tenants) != many || v.DAGs[many-1].UID != many || v.Tenants[0].Tenant == "" {
		t.Errorf("%d steps, %d DAGs, %d tenants", steps, len(v.DAGs), len(v.Tenants))
	}
}

// TestScaleBesideMany: when a region of a board with many DAGs begins to run, nothing is worked out for each of those that send nothing.
func TestScaleBesideMany(t *testing.T) {
	const many = 1000
	x := graphtest.NewOuter(t, scripts(), graph.Args{"deployment": manyDAGs(many, many)})
	x.Advance(20 * time.Millisecond)
	if n := testing.AllocsPerRun(10, func() { boardOf(x).placing.reroute(true) }); n > many {
		t.Errorf("%v allocations", n)
	}
}
