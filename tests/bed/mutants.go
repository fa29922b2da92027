package bed

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Mutant is a small change to the sources of a package that breaks one promise.
type Mutant struct {
	Name, File string
	Old, New   string // Old is there once
	By, Run    string // the package that must find it, and tests there
}

// FindMutants proves that tests can fail: every mutant of the package in dir (from
// the module's root, which is two directories above the caller's) is found by the
// tests that it names, under the environment env.
func FindMutants(t *testing.T, dir string, env []string, all []Mutant) {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	t.Cleanup(cancel)
	for _, m := range all {
		t.Run(m.Name, func(t *testing.T) {
			file := filepath.Join(root, dir, m.File)
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if n := strings.Count(string(text), m.Old); n != 1 {
				t.Fatalf("%s has %q %d times, want once: write the mutant anew", m.File, m.Old, n)
			}
			t.Parallel()
			tmp := t.TempDir()
			changed, overlay := filepath.Join(tmp, m.File), filepath.Join(tmp, "overlay.json")
			rule, err := json.Marshal(map[string]any{"Replace": map[string]string{file: changed}})
			if err != nil {
				t.Fatal(err)
			}
			for name, b := range map[string]string{changed: strings.Replace(string(text), m.Old, m.New, 1), overlay: string(rule)} {
				if err := os.WriteFile(name, []byte(b), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			c := exec.CommandContext(ctx, "go", "test", "-overlay", overlay, "-vet=off", "-gcflags=./"+dir+"=-N -l", "-count=1", "-failfast", "-timeout=30s", "-ldflags=-s -w", "-run", m.Run, m.By)
			c.Dir = root
			// Pages about histories that a mutant broke go with it.
			c.Env = append(append(os.Environ(), env...), "TMPDIR="+tmp)
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
