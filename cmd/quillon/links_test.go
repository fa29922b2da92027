package main

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/quillon/quillon/internal/admin"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/p4"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/port/mem"
)

// A port without a link is shown as such, and the P4 program that has the port is told, also after the app
// was built anew.
func TestLinksAreTold(t *testing.T) {
	program, err := filepath.Abs("../../p4src/ipv4_router.json")
	if err != nil {
		t.Fatal(err)
	}
	pool, err := packet.NewPool(64, 2048, nil)
	if err != nil {
		t.Fatal(err)
	}
	spec := &graph.Spec{Ports: map[string]graph.PortSpec{}, Apps: map[string]graph.AppSpec{"sw": {Kind: "p4", Args: graph.Args{"program": program}}}}
	opened := map[string][]port.Port{}
	for n, name := range []string{"left", "right"} {
		near, _ := mem.NewWire(name, "far"+name, pool, 8, new(clock.Manual))
		opened[name] = []port.Port{near}
		spec.Ports[name] = graph.PortSpec{Kind: "mem"}
		at := "sw." + []string{"3", "7"}[n]
		spec.Links = append(spec.Links, name+".out -> "+at, at+" -> "+name+".in")
	}
	inst, err := graph.New(graph.Config{Spec: spec, Kinds: []graph.Kind{*p4.Kind()}, Ports: opened})
	if err != nil {
		t.Fatal(err)
	}
	defer inst.Close()
	down := func() (all []uint32) {
		if err := inst.Visit("sw", 0, func(a graph.App) { all = a.(*p4.App).Report().(p4.Report).Down }); err != nil {
			t.Fatal(err)
		}
		return all
	}
	for _, up := range []map[string]bool{{"left": true, "right": false}, {"left": false, "right": false}, {"right": true}, {}} {
		inst.SetLinks(up)
		tellPrograms(inst, up)
		var want []uint32
		shown := map[string]string{}
		for n, name := range []string{"left", "right"} {
			if is, known := up[name]; known && !is {
				want, shown[name] = append(want, []uint32{3, 7}[n]), "down"
			} else if known {
				shown[name] = "up"
			}
		}
		if got := down(); !slices.Equal(got, want) {
			t.Errorf("%v: ports %v are down, want %v", up, got, want)
		}
		for _, p := range inst.Ports() {
			if p.Link != shown[p.Name] {
				t.Errorf("%v: the link of %s is %q", up, p.Name, p.Link)
			}
		}
	}
	var b strings.Builder
	portsText(&b, admin.Ports{Ports: []graph.PortInfo{{Name: "a", Args: graph.Args{"dev": "eth1"}, Link: "down", Queues: make([]port.Stats, 1)}}})
	if !strings.Contains(b.String(), "a (eth1, no link)\t0\t") {
		t.Error(b.String())
	}
}

// Many inputs whose names are numbers are shown by the first and the last.
func TestGates(t *testing.T) {
	for want, names := range map[string]string{"a b": "a b", "0 to 3 cpu": "0 1 2 3 cpu", "0 1 3 to 5": "0 1 3 4 5", "in 07 8": "in 07 8"} {
		if got := gates(strings.Fields(names)); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
