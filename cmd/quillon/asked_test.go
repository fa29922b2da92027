package main

import (
	"runtime"
	"testing"

	"github.com/quillon/quillon/nf/graph"
)

// An app that is made only to be asked what it wants makes no tables. At a start the tables are made only
// once, since frames wait meanwhile.
func TestAsked(t *testing.T) {
	for _, k := range kinds() {
		if k.Name != "swordbox" && k.Name != "clover-steer" {
			continue
		}
		made := func(asked bool) uint64 {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := k.New(graph.Env{Name: k.Name, Workers: 1, Share: func(f func() any) any { return f() }, Asked: asked}, graph.Args{})
			runtime.ReadMemStats(&after)
			if err != nil {
				t.Fatal(err)
			}
			return after.TotalAlloc - before.TotalAlloc
		}
		if asked, runs := made(true), made(false); asked > runs/10 {
			t.Errorf("%s: asked what it wants it takes %d bytes, to run %d", k.Name, asked, runs)
		}
	}
}
