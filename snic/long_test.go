package snic

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
)

// A DAG of 20 tasks, four of which fit a region, runs through as many regions as that takes.
func TestLongDAG(t *testing.T) {
	const letters = "abcdefghijklmnopqrst"
	var b strings.Builder
	b.WriteString("regions: {count: 6, area: 4}\ntasks:\n")
	for _, l := range letters {
		fmt.Fprintf(&b, "  %c: {kind: mark, args: {letter: %c}}\n", l, l)
	}
	fmt.Fprintf(&b, "tenants: {u: {}}\ndags: [{uid: 1, tenant: u, run: %s}]\nrules: [{match: all, dag: 1}]\n", strings.Join(strings.Split(letters, ""), " -> "))
	x := graphtest.NewOuter(t, kinds(), graph.Args{"deployment": b.String()})
	x.Advance(40 * time.Millisecond) // five chains are loaded, one after the other
	r := x.Push("p0", frame(1, "0"))
	if got := tail(r.Out["p1"]); got != "0"+letters {
		t.Errorf("%q", got)
	}
	r = x.Push("p1", back(1, "1"))
	if got := tail(r.Out["p0"]); got != "1TSRQPONMLKJIHGFEDCBA" {
		t.Errorf("%q", got)
	}
	for _, v := range x.App().(*board).cat.services[0].visits {
		if v.Mask != 15 {
			t.Errorf("mask %#x, want four tasks", v.Mask)
		}
	}
}
