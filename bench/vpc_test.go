package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/quillon/quillon/internal/bench"
	"github.com/quillon/quillon/internal/rack/vpc"
	"github.com/quillon/quillon/internal/registry"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/snic/dag"
)

// What is deployed in each step is what the step's name says, at both sites.
func TestVPCSteps(t *testing.T) {
	sites := vpc.Sites()
	keys := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(keys, []byte(vpc.Keys()), 0o600); err != nil {
		t.Fatal(err)
	}
	for i := range sites {
		for _, s := range vpcSteps {
			if s.tasks == nil {
				continue
			}
			text := vpcDeployment(&sites[i], sites[1-i], keys, s.tasks)
			spec, err := dag.Parse([]byte(text))
			if err != nil {
				t.Fatal(err)
			}
			// That makes the board and its tasks.
			if _, err := graph.Wants(bench.Between("snic", graph.Args{"deployment": text}), registry.Kinds()); err != nil {
				t.Error(err)
			}
			if run := spec.DAGs[0].Run; run != strings.Join(s.tasks, " -> ") {
				t.Errorf("%s runs %s", s.name, run)
			}
		}
		nat := ovsFlows(&sites[i], sites[1-i], i+1, []string{"fw", "nat"})
		if !strings.Contains(nat, "nat(src="+sites[i].Shared.String()+")") || strings.Contains(ovsFlows(&sites[i], sites[1-i], i+1, []string{"fw"}), "nat") {
			t.Errorf("flows: %s", nat)
		}
	}
}

func spread(median, least, most float64) bench.Spread {
	return bench.Spread{Median: median, Min: least, Max: most}
}

// Figures are medians over the rounds, ratios those of the same round.
func TestVPCFigures(t *testing.T) {
	s := samples{vpcKey("quillon", 0): {{2}, {4}, {8}}, vpcKey("quillon", 1): {{1}, {4}, {2}}, vpcKey("ovs", 1): {{0.5}, {1}, {4}}}
	r := &vpcResult{Rounds: 3}
	s.each(func(f vpcFigures, v [][]float64, of func(string, int) *bench.Spread) {
		for _, size := range vpcSizes {
			f.Bytes = size
			f.Mpps, f.Gbps, f.OfWire, f.VsOVS = column(v, 0, 1), column(v, 0, 8), of("quillon", 0), of("ovs", -1)
			r.Throughput = append(r.Throughput, f)
		}
	})
	if n := len(r.Throughput); n != 3*len(vpcSizes) {
		t.Fatalf("%d figures", n)
	}
	if f := r.Throughput[len(vpcSizes)]; *f.Mpps != spread(2, 1, 4) || *f.OfWire != spread(0.5, 0.25, 1) || *f.VsOVS != spread(2, 0.5, 4) {
		t.Errorf("%v %v %v", *f.Mpps, *f.OfWire, *f.VsOVS)
	}
	if f := r.Throughput[0]; f.OfWire != nil || f.VsOVS != nil {
		t.Error("the wire is held against itself, or what there is not")
	}
	prefix := filepath.Join(t.TempDir(), "vpc")
	if err := r.save(prefix); err != nil {
		t.Fatal(err)
	}
	for _, ext := range []string{".png", ".svg"} {
		if i, err := os.Stat(prefix + ext); err != nil || i.Size() < 1000 {
			t.Errorf("%s: %v", ext, err)
		}
	}
	r.Skipped = "it is not here"
	var text strings.Builder
	r.text(&text)
	if !strings.Contains(text.String(), "skipped: it is not here") {
		t.Error(text.String())
	}
}

// Without Open vSwitch it is said how to get it.
func TestNoOVS(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if _, err := findOVS("afxdp"); err == nil || !strings.Contains(err.Error(), "apt install openvswitch-switch") {
		t.Errorf("%v", err)
	}
}
