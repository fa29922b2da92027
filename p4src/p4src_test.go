package p4src

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func TestPrograms(t *testing.T) {
	sources, err := filepath.Glob("*.p4")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, name := range sources {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(text, []byte("V1Switch(")) {
			found = append(found, strings.TrimSuffix(name, ".p4"))
			if !bytes.Contains(text, []byte("ICRC: ")) {
				t.Errorf("%s does not say what becomes of the ICRC", name)
			}
		}
	}
	if want := Programs(); !slices.Equal(found, want) {
		t.Errorf("programs %v, Programs says %v", found, want)
	}
}

// compiler is in both outputs, and the only difference between versions of p4c
// that generate the same.
var compiler = regexp.MustCompile(`"(version|compiler)":(\[[^\]]*\]|"[^"]*"),?`)

// compact is JSON text as it is in the tree.
func compact(t *testing.T, text []byte) []byte {
	var b bytes.Buffer
	if err := json.Compact(&b, text); err != nil {
		t.Fatal(err)
	}
	return append(b.Bytes(), '\n')
}

// TestCompact: the programs are in the tree, and in the binary, without spaces, which are two thirds of what p4c writes.
func TestCompact(t *testing.T) {
	for _, name := range Programs() {
		text, err := fs.ReadFile(Files, name+".json")
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(text, compact(t, text)) {
			t.Errorf("%s.json has spaces: see the package's comment", name)
		}
	}
}

// TestDrift compiles the programs again.
func TestDrift(t *testing.T) {
	p4c, err := exec.LookPath("p4c-bm2-ss")
	if err != nil {
		t.Skip("p4c-bm2-ss is not on the PATH: what it would make of the programs is not compared")
	}
	for _, name := range Programs() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			outputs := []string{name + ".json", name + ".p4info.txtpb"}
			cmd := exec.Command(p4c, "--arch", "v1model", "-o", filepath.Join(dir, outputs[0]),
				"--p4runtime-files", filepath.Join(dir, outputs[1]), name+".p4")
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			for _, file := range outputs {
				got, err := os.ReadFile(filepath.Join(dir, file))
				if err != nil {
					t.Fatal(err)
				}
				if file == outputs[0] {
					got = compact(t, got)
				}
				want, err := fs.ReadFile(Files, file)
				if err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(compiler.ReplaceAll(got, nil), compiler.ReplaceAll(want, nil)) {
					t.Errorf("%s is not what p4c makes of %s.p4: compile it again (see the package's comment)", file, name)
				}
			}
		})
	}
}

// TestMeasured: what is compressed for benchmarks is what the programs are.
func TestMeasured(t *testing.T) {
	all, err := measured.ReadDir("measured")
	if err != nil || len(all) == 0 {
		t.Fatal(err)
	}
	for _, f := range all {
		name := strings.TrimSuffix(f.Name(), ".gz")
		got, err := Measured(name)
		if err != nil {
			t.Fatal(err)
		}
		if want, err := Files.ReadFile(name); err != nil || !bytes.Equal(got, want) {
			t.Errorf("measured/%s is not that of %s (%v): gzip -9nc %s > measured/%s", f.Name(), name, err, name, f.Name())
		}
	}
	if _, err := Measured("swordbox_mux.json"); err == nil {
		t.Error("a file that is not there is read")
	}
}
