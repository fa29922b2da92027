package main

import (
	"io"
	"os/exec"
	"strings"
	"testing"

	"github.com/quillon/quillon/nf/clock"
)

// TestBenchP4: every frame is forwarded, nothing is allocated, and a million
// entries stay within 200 MiB.
func TestBenchP4(t *testing.T) {
	r, err := benchP4(io.Discard, 1, 100, "")
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Programs) != 2 || len(r.Against) != 0 {
		t.Errorf("%+v", r)
	}
	for _, p := range r.Programs {
		if p.Work.Allocs > 0.01 || p.Work.Mpps <= 0 || p.LoadMs.Median <= 0 {
			t.Errorf("%+v", p)
		}
	}
	if r.ExactMiB < 8 || r.ExactMiB > 200 {
		t.Errorf("%.0f MiB", r.ExactMiB)
	}
}

// TestBenchP4Against gives simple_switch the same frames in captures.
func TestBenchP4Against(t *testing.T) {
	const rival = "simple_switch"
	if _, err := exec.LookPath(rival); err != nil {
		t.Skipf("%s is not on the PATH: the engine is not measured against it", rival)
	}
	l, err := routerLoad(100)
	if err != nil {
		t.Fatal(err)
	}
	clk := clock.NewWall()
	d, err := l.onFiles(rival, clk)
	if err != nil {
		t.Fatal(err)
	}
	a := p4Against{Rounds: 1}
	if err := a.measure(d, clk); err != nil {
		t.Fatal(err)
	}
	if a.Ratio <= 1 {
		t.Errorf("%+v", a)
	}
}

// TestBenchP4Refuses: what is wrong is said in one line.
func TestBenchP4Refuses(t *testing.T) {
	for want, args := range map[string][]string{
		"--rounds 11 --routes 20000: want":  {"--routes", "20000"},
		"--rounds 0 --routes 10000: want":   {"--rounds", "0"},
		"no_such_switch is not on the PATH": {"--against", "no_such_switch"},
	} {
		var text strings.Builder
		if code := execute(append([]string{"bench", "p4"}, args...), io.Discard, &text); code != exitUsage || !strings.Contains(text.String(), want) {
			t.Errorf("%q: exit status %d, %s", args, code, text.String())
		}
	}
}
