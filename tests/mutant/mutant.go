// Package mutant proves that tests can fail: small changes to the sources, each of
// which breaks one promise, must be found by tests that are named with it.
package mutant

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
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

// build is one compilation of package dir with some of its files changed, and the
// test binaries that were linked from it.
type build struct {
	root, dir, tmp string
	files          map[string]string // name in dir: text
	flags          []string          // for the compiler
	binaries       map[string]string // path of a package: its test binary
}

// link makes the test binaries of packages.
func (b *build) link(packages ...string) error {
	replace := map[string]string{}
	for name, text := range b.files {
		changed := filepath.Join(b.tmp, name)
		replace[filepath.Join(b.root, b.dir, name)] = changed
		if err := os.WriteFile(changed, []byte(text), 0o644); err != nil {
			return err
		}
	}
	overlay := filepath.Join(b.tmp, "overlay.json")
	rule, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return err
	}
	if err := os.WriteFile(overlay, rule, 0o644); err != nil {
		return err
	}
	b.binaries = map[string]string{}
	for i, p := range packages {
		b.binaries[p] = filepath.Join(b.tmp, strconv.Itoa(i)+".test")
		args := slices.Concat([]string{"test", "-c", "-overlay", overlay, "-vet=off", "-ldflags=-s -w", "-o", b.binaries[p]}, b.flags, []string{p})
		c := exec.Command("go", args...)
		c.Dir = b.root
		if out, err := c.CombinedOutput(); err != nil {
			return fmt.Errorf("does not compile:\n%s", out)
		}
	}
	return nil
}

// run runs tests of a package with the mutant of that number, and of none with 0.
func (b *build) run(t *testing.T, pkg, tests string, mutant int, more ...string) (string, error) {
	c := exec.Command(b.binaries[pkg], append([]string{"-test.failfast", "-test.timeout=5m", "-test.run", tests}, more...)...)
	c.Dir = filepath.Join(b.root, pkg)
	// Pages about histories that a mutant broke go with it.
	c.Env = append(os.Environ(), "QUILLON_SEEDS=4", "RAPID_NOFAILFILE=1", "TMPDIR="+t.TempDir(), variable+"="+strconv.Itoa(mutant))
	out, err := c.CombinedOutput()
	return string(out), err
}

// found fails the test unless the mutant's tests find it.
func (b *build) found(t *testing.T, m Mutant, n int) {
	out, err := b.run(t, m.By, m.Run, n)
	if err == nil { // tests that take their inputs, or the turns of threads, by chance take more of them
		if again, err2 := b.run(t, m.By, m.Run, n, "-test.count=10", "-rapid.checks=1000"); !strings.Contains(again, "flag provided but not defined") {
			out, err = again, err2
		} else {
			out, err = b.run(t, m.By, m.Run, n, "-test.count=10")
		}
	}
	switch {
	case err == nil:
		t.Errorf("not found by %s in %s:\n%s", m.Run, m.By, out)
	case !strings.Contains(out, "--- FAIL") && !strings.Contains(out, "panic:"):
		t.Errorf("%v:\n%s", err, out)
	default:
		_, by, _ := strings.Cut(out, "--- FAIL: ")
		by, _, _ = strings.Cut(by, " ")
		t.Logf("found by %s", by)
	}
}

// Run has each mutant of package dir, a path from the module's root, found by its
// tests. Mutants that change one function are compiled together, see weave; with
// none of them chosen the tests pass.
func Run(t *testing.T, dir string, mutants []Mutant) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	all := &build{root: root, dir: dir, tmp: t.TempDir(), files: map[string]string{"mutant_chosen.go": choice(dir)}}
	alone := map[int]bool{} // places of mutants that are compiled by themselves
	places := map[string][]int{}
	runs := map[string][]string{}
	for i, m := range mutants {
		text, err := m.find(filepath.Join(root, dir, m.File))
		if err != nil {
			t.Fatalf("%s: %v", m.Name, err)
		}
		all.files[m.File] = text
		places[m.File] = append(places[m.File], i)
		runs[m.By] = append(runs[m.By], m.Run)
	}
	for name, at := range places {
		var ms []Mutant
		var numbers []int
		for _, i := range at {
			ms, numbers = append(ms, mutants[i]), append(numbers, i+1)
		}
		woven, left, err := weave(all.files[name], ms, numbers)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for _, i := range left {
			alone[at[i]] = true
		}
		all.files[name] = woven
	}
	if err := all.link(slices.Sorted(maps.Keys(runs))...); err != nil {
		t.Fatal(err)
	}
	for pkg, tests := range runs {
		slices.Sort(tests)
		if out, err := all.run(t, pkg, strings.Join(slices.Compact(tests), "|"), 0); err != nil {
			t.Fatalf("without a mutant, %s: %v\n%s", pkg, err, out)
		}
	}
	for i, m := range mutants {
		t.Run(m.Name, func(t *testing.T) {
			t.Parallel()
			b := all
			if alone[i] {
				// Compiled without optimisation, which is faster.
				b = &build{root: root, dir: dir, tmp: t.TempDir(), flags: []string{"-gcflags=./" + dir + "=-N -l"}}
				text, err := m.find(filepath.Join(root, dir, m.File))
				b.files = map[string]string{m.File: strings.Replace(text, m.Old, m.New, 1)}
				if err = errors.Join(err, b.link(m.By)); err != nil {
					t.Fatal(err)
				}
			}
			b.found(t, m, i+1)
		})
	}
}
