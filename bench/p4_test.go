package main

import (
	"io"
	"os/exec"
	"strings"
	"testing"

	"github.com/quillon/quillon/internal/bench"
	"github.com/quillon/quillon/nf/clock"
)

// TestAgainst gives simple_switch the same frames in captures.
func TestAgainst(t *testing.T) {
	const rival = "simple_switch"
	if _, err := exec.LookPath(rival); err != nil {
		t.Skipf("%s is not on the PATH: the engine is not measured against it", rival)
	}
	l, err := bench.RouterLoad(100)
	if err != nil {
		t.Fatal(err)
	}
	clk := clock.NewWall()
	d, err := load{l}.onFiles(rival, clk)
	if err != nil {
		t.Fatal(err)
	}
	a := against{Rounds: 1}
	if err := a.measure(d, clk); err != nil {
		t.Fatal(err)
	}
	if a.Ratio <= 1 {
		t.Errorf("%+v", a)
	}
}

// TestRefuses: what is wrong is said in one line.
func TestRefuses(t *testing.T) {
	for want, args := range map[string][]string{
		"rivals: p4 or vpc is missing":      nil,
		"rivals: unknown command \"x\"":     {"x"},
		"want 1 or more, and 1 to 16384":    {"p4", "-routes", "20000"},
		"-rounds 0":                         {"p4", "-rounds", "0"},
		"no_such_switch is not on the PATH": {"p4", "-against", "no_such_switch"},
		"want afxdp or system":              {"vpc", "-ovs-ports", "x"},
		"unexpected argument":               {"vpc", "x"},
	} {
		var text strings.Builder
		if code := execute(args, io.Discard, &text); code != 2 || !strings.Contains(text.String(), want) || strings.Count(text.String(), "\n") != 1 {
			t.Errorf("%q: exit status %d, %s", args, code, text.String())
		}
	}
}
