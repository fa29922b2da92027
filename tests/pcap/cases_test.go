// Package pcap_test runs the golden captures: see README.md.
package pcap_test

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"

	"github.com/quillon/quillon/internal/registry"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/port/pcap"
	"github.com/quillon/quillon/nf/replay"
)

var update = flag.Bool("update", false, "write the expected outputs and counters anew")

type goldenCase struct {
	About     string         `yaml:"about"`
	NF        []string       `yaml:"nf"`
	Spec      string         `yaml:"spec"` // in the place of nf
	In        string         `yaml:"in"`
	AHosts    string         `yaml:"a-hosts"`
	Expect    string         `yaml:"expect"`
	Recorded  bool           `yaml:"recorded"`
	All       bool           `yaml:"all"`
	WrongICRC map[string]int `yaml:"wrong-icrc"`
	// Files that the network functions read, by name.
	Files map[string]string `yaml:"files"`
	// Tshark, if not nil, is how tshark reads the outputs.
	Tshark *decoding `yaml:"tshark"`
}

func TestCases(t *testing.T) {
	files, err := filepath.Glob("*/case.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal("no cases")
	}
	for _, f := range files {
		dir := filepath.Dir(f)
		t.Run(dir, func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			var c goldenCase
			if err := yaml.UnmarshalWithOptions(text, &c, yaml.Strict()); err != nil {
				t.Fatalf("%s: %v", f, err)
			}
			if c.About == "" || (len(c.NF) == 0) == (c.Spec == "") || c.In == "" {
				t.Fatalf("%s: about, in, and one of nf and spec must be there", f)
			}
			c.run(t, dir)
		})
	}
}

// inputs are the runs of a case: what goes in, and what must come out.
func (c *goldenCase) inputs(t *testing.T, dir string) (in [][]string, expect []string) {
	t.Helper()
	if strings.Contains(c.In, "=") {
		return [][]string{strings.Split(c.In, ",")}, []string{c.Expect}
	}
	files, err := filepath.Glob(filepath.Join(dir, c.In))
	if err != nil || len(files) == 0 {
		t.Fatalf("no file %s", c.In)
	}
	front, back, pattern := strings.Cut(c.In, "*")
	for _, f := range files {
		name := filepath.Base(f)
		want := c.Expect
		if pattern {
			want = strings.Replace(want, "*", strings.TrimSuffix(strings.TrimPrefix(name, front), back), 1)
		}
		if want == "" {
			want = name
		}
		in, expect = append(in, []string{name}), append(expect, want)
	}
	return in, expect
}

func (c *goldenCase) run(t *testing.T, dir string) {
	in, expect := c.inputs(t, dir)
	var counters strings.Builder
	files := c.files(t)
	graphs := c.NF
	if c.Spec != "" {
		graphs = []string{"spec"}
	}
	for _, nf := range graphs {
		spec, err := c.graph(files.Replace(nf))
		if err != nil {
			t.Fatal(err)
		}
		sum := &replay.Result{}
		for i := range in {
			got, res := c.replay(t, dir, spec, in[i], expect[i])
			c.check(t, dir, nf, in[i], expect[i], got)
			sum.Counters = add(sum.Counters, res.Counters)
		}
		fmt.Fprintf(&counters, "# %s\n%s", nf, sum.CounterText())
	}
	golden(t, filepath.Join(dir, "counters.txt"), counters.String())
	if c.Tshark != nil {
		c.Tshark.check(t, dir, expect)
	}
}

// graph is the one that a case runs: its spec, or the chain of one network function.
func (c *goldenCase) graph(nf string) (*graph.Spec, error) {
	if c.Spec != "" {
		return graph.ParseSpec([]byte(c.Spec))
	}
	return replay.Chain(registry.Kinds(), nf)
}

// files writes the files that network functions read, which nobody else may (as
// those of keys want it); what it returns puts their paths in the place of $NAME.
func (c *goldenCase) files(t *testing.T) *strings.Replacer {
	t.Helper()
	var pairs []string
	for name, text := range c.Files {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		pairs = append(pairs, "$"+name, path)
	}
	return strings.NewReplacer(pairs...)
}

// file is an output that can be changed, as one on a disk.
type file struct{ bytes.Buffer }

func (f *file) WriteAt(b []byte, at int64) (int, error) { return copy(f.Bytes()[at:], b), nil }

// replay runs one input, twice: the second time must give the same.
func (c *goldenCase) replay(t *testing.T, dir string, spec *graph.Spec, in []string, expect string) ([]byte, *replay.Result) {
	t.Helper()
	cfg := replay.Config{Spec: spec, Kinds: registry.Kinds(), All: c.All}
	if c.AHosts != "" {
		var err error
		if cfg.AHosts, err = replay.ParseHosts(strings.Split(c.AHosts, ",")); err != nil {
			t.Fatal(err)
		}
	}
	if strings.HasSuffix(expect, ".pcapng") {
		cfg.Format = pcap.NG
	}
	var outs [2]file
	var res *replay.Result
	for i := range outs {
		cfg.Inputs = nil
		for _, f := range in {
			port, name, two := strings.Cut(f, "=")
			if !two {
				port, name = "", f
			}
			file, err := os.Open(filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			defer file.Close()
			r, err := pcap.NewReader(file)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			cfg.Inputs = append(cfg.Inputs, replay.Input{Reader: r, Name: name, Port: port})
		}
		r, err := replay.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if res, err = r.Run(&outs[i]); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(outs[0].Bytes(), outs[1].Bytes()) {
		t.Errorf("%v: two runs gave different outputs", in)
	}
	return outs[0].Bytes(), res
}

// check compares an output with what is expected, and looks at its ICRCs.
func (c *goldenCase) check(t *testing.T, dir, nf string, in []string, expect string, got []byte) {
	t.Helper()
	file := filepath.Join(dir, expect)
	if n := wrongICRCs(t, got); n != c.WrongICRC[expect] {
		t.Errorf("%s: %s: %d packets with a wrong ICRC came out, want %d", nf, expect, n, c.WrongICRC[expect])
	}
	want, err := os.ReadFile(file)
	if bytes.Equal(got, want) && err == nil {
		return
	}
	isInput := slices.ContainsFunc(in, func(f string) bool { return f == expect || strings.HasSuffix(f, "="+expect) })
	if *update && !c.Recorded && !isInput {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	diff, err := replay.Compare(reader(t, got), reader(t, want), replay.CompareOptions{})
	switch {
	case err != nil:
		t.Errorf("%s: %s: %v", nf, file, err)
	case diff.Equal():
		t.Errorf("%s: %s: the packets are equal, the files' headers are not:\n got  % x\n want % x", nf, file, got[:min(len(got), 64)], want[:min(len(want), 64)])
	default:
		t.Errorf("%s: %s:\n%s", nf, file, diff)
	}
}

func reader(t *testing.T, b []byte) *pcap.Reader {
	t.Helper()
	r, err := pcap.NewReader(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func wrongICRCs(t *testing.T, b []byte) int {
	t.Helper()
	r := reader(t, b)
	n := 0
	for {
		var p pcap.Packet
		if err := r.Next(&p); err == io.EOF {
			return n
		} else if err != nil {
			t.Fatal(err)
		}
		var f hdr.Frame
		if hdr.Parse(p.Data, &f) == hdr.IsRoCE && hdr.ICRC(p.Data, &f) != hdr.StoredICRC(p.Data, &f) {
			n++
		}
	}
}

// add sums counters of two runs of the same graph.
func add(a, b []graph.Count) []graph.Count {
	if a == nil {
		return b
	}
	for i := range a {
		a[i].Value += b[i].Value
	}
	return a
}

// golden compares text with a file.
func golden(t *testing.T, file, got string) {
	t.Helper()
	want, err := os.ReadFile(file)
	if *update && (err != nil || string(want) != got) {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if errors.Is(err, os.ErrNotExist) {
		t.Fatalf("%s is missing: run go test ./tests/pcap -update", file)
	}
	if d := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); d != "" {
		t.Errorf("%s (-want +got):\n%s", file, d)
	}
}

// TestEveryFunction: each network function that sits between two ports has a case.
func TestEveryFunction(t *testing.T) {
	var all strings.Builder
	files, err := filepath.Glob("*/counters.txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(text)
	}
	for _, k := range registry.Kinds() {
		if len(k.In) != 2 || k.Name == "dummy" { // dummy does nothing to frames
			continue
		}
		missing := 0
		for _, r := range k.Reasons {
			if !strings.Contains(all.String(), "\n"+k.Name+".reason."+r.Name+" ") {
				missing++
				t.Logf("%s: no case has a frame with the reason %s", k.Name, r.Name)
			}
		}
		if !strings.Contains(all.String(), "# "+k.Name) || len(k.Reasons) > 0 && missing == len(k.Reasons) {
			t.Errorf("%s has no case", k.Name)
		}
	}
}
