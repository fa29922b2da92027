package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/nf/graph"
)

// TestCPUs: processors are given singly and in ranges. Processors that do not exist, and ports that disagree,
// are refused before the process changes anything.
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

// Workers that never sleep must leave one processor to other work, and must not share one.
func TestRoomToPoll(t *testing.T) {
	for _, c := range []struct {
		workers, processors int
		cpus                []int
		want                string
	}{
		{1, 2, nil, ""},
		{1, 1, nil, "1 workers that never sleep take 1 processors, and this process may have 1"},
		{2, 2, []int{0, 1}, "2 workers that never sleep take 2 processors, and this process may have 2"},
		{2, 4, nil, ""},
		{2, 4, []int{3, 1}, ""},
		{2, 4, []int{3, 1, 3}, ""},
		{2, 4, []int{3}, "workers 0 and 1 would share processor 3"},
		{3, 4, []int{1, 2}, "workers 0 and 2 would share processor 1"},
		{2, 4, []int{1, 1, 2}, "workers 0 and 1 would share processor 1"},
	} {
		err := roomToPoll(c.workers, c.processors, c.cpus)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
