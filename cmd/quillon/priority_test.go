package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/nf/graph"
)

// TestCPUs: processors are named singly and in ranges; those that are not there, and ports that disagree, are
// refused before anything is touched.
func TestCPUs(t *testing.T) {
	var may unix.CPUSet
	if err := unix.SchedGetaffinity(0, &may); err != nil {
		t.Fatal(err)
	}
	one := 0
	for !may.IsSet(one) {
		one++
	}
	for _, c := range []struct {
		a, b string // of two ports
		want []int
		err  string
	}{
		{"", "", nil, ""},
		{fmt.Sprint(one), "", []int{one}, ""},
		{fmt.Sprintf("%d-%[1]d,%[1]d", one), fmt.Sprintf("%d-%[1]d,%[1]d", one), []int{one, one}, ""},
		{fmt.Sprint(one), fmt.Sprintf("%d,%[1]d", one), nil, "give all ports the same"},
		{"1023", "", nil, "port a: cpu=1023: there is no processor 1023 that this process may run on"},
		{"", "99999", nil, "port b: cpu=99999: there is no processor"},
		{"0-99999999", "", nil, "there is no processor"},
		{"1-0", "", nil, "want numbers of processors"}, {"x", "", nil, "want numbers"}, {"-1", "", nil, "want numbers"}, {"0,", "", nil, "want numbers"},
	} {
		spec := &graph.Spec{Ports: map[string]graph.PortSpec{"a": {Args: graph.Args{"cpu": c.a}}, "b": {Args: graph.Args{"cpu": c.b}}}}
		got, err := cpusOf(spec)
		if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) || !slices.Equal(got, c.want) {
			t.Errorf("%q, %q: %v, %v", c.a, c.b, got, err)
		}
	}
}
