package xdp

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/quillon/quillon/nf/p4"
)

// nothingRuns is a program whose parser begins with what the kernel cannot do.
func nothingRuns(t testing.TB) []byte {
	const looks, skips = `"value":["scalars","tmp_1"]},{"type":"lookahead","value":[0,112]}],"op":"set"`, `"value":["scalars","tmp"]}],"op":"advance"`
	return []byte(strings.Replace(string(read(t, "../../../p4src/nt_classifier.json")), looks, skips, 1))
}

// TestNothingRuns: of a program whose parser begins with what only the engine can do nothing runs in the kernel, and nothing behind is said to.
func TestNothingRuns(t *testing.T) {
	_, tree, err := p4.LoadTree(nothingRuns(t))
	if err != nil {
		t.Fatal(err)
	}
	const why = "it skips a number of bits that is not known before"
	r := Analyse(tree, p4.Config{})
	if len(r.Parts) != 1 || r.Parts[0].Name != "start" || !slices.Equal(r.Parts[0].Engine, []string{why}) {
		t.Errorf("parts %+v", r.Parts)
	}
	if want := "no frame can come to its end in the kernel: state start: " + why; r.Kernel || r.Why != want {
		t.Errorf("kernel %v, %q; want %q", r.Kernel, r.Why, want)
	}
	x, err := New(tree, p4.Config{DropPort: 511, Queues: 8}, Options{From: []Source{{Index: loopback, Port: 1}}})
	if x != nil {
		_ = x.Close()
	}
	if none := (errNothing{}); !errors.As(err, &none) || !strings.Contains(err.Error(), why) {
		t.Errorf("New: %v", err)
	}
}
