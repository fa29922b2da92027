// Package mutant proves that tests can fail: small changes to the sources, each of
// which breaks one promise, must be found by tests that are named with it.
package mutant

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Mutant is a small change to the sources that breaks one promise.
type Mutant struct {
	Name, File string
	Old, New   string // Old is there once
	By, Run    string // package, and tests there
}

// find is the text of file, in which the mutant's old text is once.
func (m *Mutant) find(file string) (string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	if n := strings.Count(string(text), m.Old); n != 1 {
		return "", fmt.Errorf("%s has %q %d times, want once: write the mutant anew", m.File, m.Old, n)
	}
	return string(text), nil
}

// Texts checks, within milliseconds, that each mutant of package dir can be made:
// that its old text is in its file, once.
func Texts(t *testing.T, dir string, mutants []Mutant) {
	for _, m := range mutants {
		if _, err := m.find(filepath.Join("../..", dir, m.File)); err != nil {
			t.Errorf("%s: %v", m.Name, err)
		}
	}
}

// Run has each mutant of package dir, a path from the module's root, found by its
// tests. What is changed is compiled without optimisation, which is faster.
func Run(t *testing.T, dir string, mutants []Mutant) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Minute)
	t.Cleanup(cancel)
	for _, m := range mutants {
		t.Run(m.Name, func(t *testing.T) {
			file := filepath.Join(root, dir, m.File)
			text, err := m.find(file)
			if err != nil {
				t.Fatal(err)
			}
			t.Parallel()
			tmp := t.TempDir()
			changed := filepath.Join(tmp, m.File)
			if err := os.WriteFile(changed, []byte(strings.Replace(text, m.Old, m.New, 1)), 0o644); err != nil {
				t.Fatal(err)
			}
			overlay := filepath.Join(tmp, "overlay.json")
			rule, err := json.Marshal(map[string]any{"Replace": map[string]string{file: changed}})
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(overlay, rule, 0o644); err != nil {
				t.Fatal(err)
			}
			c := exec.CommandContext(ctx, "go", "test", "-overlay", overlay, "-vet=off", "-gcflags=./"+dir+"=-N -l", "-count=1", "-failfast", "-timeout=30s", "-ldflags=-s -w", "-run", m.Run, m.By)
			c.Dir = root
			// Pages about histories that a mutant broke go with it.
			c.Env = append(os.Environ(), "QUILLON_SEEDS=4", "TMPDIR="+tmp)
			out, err := c.CombinedOutput()
			switch {
			case err == nil:
				t.Errorf("not found by %s in %s:\n%s", m.Run, m.By, out)
			case strings.Contains(string(out), "[build failed]") || strings.Contains(string(out), "[setup failed]"):
				t.Errorf("does not compile:\n%s", out)
			case !strings.Contains(string(out), "--- FAIL") && !strings.Contains(string(out), "panic:"):
				t.Errorf("%v:\n%s", err, out)
			}
		})
	}
}
