package graph_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/quillon/quillon/nf/graph"
)

// TestInject: a frame of the controller goes the way of any other, and the
// books know it.
func TestInject(t *testing.T) {
	x := newBench(t, parse(t, inline), 64)
	if err := x.inst.Inject("wire", "a", 0, []byte("hello")); err != nil {
		t.Fatal(err)
	}
	if got := x.recv("b"); !slices.Equal(got, []string{"hello"}) {
		t.Errorf("b sent %q", got)
	}
	if n := x.count("wire", "generated"); n != 1 {
		t.Errorf("generated = %d", n)
	}
	x.conserve()
	for says, err := range map[string]error{
		`no app is named "wir"`: x.inst.Inject("wir", "a", 0, nil),
		`no input "c"`:          x.inst.Inject("wire", "c", 0, nil),
		"no worker 5":           x.inst.Inject("wire", "a", 5, nil),
		"longer than a buffer":  x.inst.Inject("wire", "a", 0, make([]byte, 1<<16)),
	} {
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want %s", err, says)
		}
	}
	x.conserve()
	var err error
	for range 1 << 12 { // nobody takes the frames from the wire
		if err = x.inst.Inject("wire", "a", 0, []byte("x")); err != nil {
			break
		}
	}
	if !errors.Is(err, graph.ErrNoBuffer) && x.count("wire", "link-full") == 0 {
		t.Errorf("neither the buffers nor the link ran out: %v", err)
	}
	x.conserve()
}
