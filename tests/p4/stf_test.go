// Package p4 tests the programs of p4src on the engine of nf/p4: by files of the
// Simple Test Framework, and against bmv2 and p4c's samples where they are there.
package p4

import (
	"bytes"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/quillon/quillon/nf/clock"
	engine "github.com/quillon/quillon/nf/p4"
	"github.com/quillon/quillon/nf/p4/stf"
)

func load(t testing.TB, file string) *engine.Program {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	prog, err := engine.Load(b)
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return prog
}

// runFile runs an STF file; a failure comes with the steps of all packets.
func runFile(t *testing.T, prog *engine.Program, file string) (checks int) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	statements, err := stf.Parse(f)
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	var steps strings.Builder
	r, err := stf.Run(prog, statements, engine.Config{Trace: func(e engine.Event) {
		if steps.Len() < 1<<16 {
			steps.WriteString(prog.Describe(e) + "\n")
		}
	}})
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	for _, f := range r.Failures {
		t.Errorf("%s: %v", file, f)
	}
	if len(r.Failures) > 0 {
		t.Log(steps.String())
	}
	return r.Checks
}

func TestPrograms(t *testing.T) {
	programs, err := filepath.Glob("../../p4src/*.json")
	if err != nil || len(programs) == 0 {
		t.Fatalf("%d programs, %v", len(programs), err)
	}
	for _, p := range programs {
		name := strings.TrimSuffix(filepath.Base(p), ".json")
		files, err := filepath.Glob(name + "/*.stf")
		if err != nil || len(files) == 0 {
			t.Errorf("%s has %d tests, %v", name, len(files), err)
		}
		prog := load(t, p)
		for _, f := range files {
			t.Run(f, func(t *testing.T) {
				if runFile(t, prog, f) == 0 {
					t.Error("checks nothing")
				}
			})
		}
	}
}

// samples is the environment variable that names a folder of compiled programs
// with their tests, NAME.json and NAME.stf: those of p4c's testdata, for one.
const samples = "QUILLON_P4C_SAMPLES"

func TestSamples(t *testing.T) {
	dir := os.Getenv(samples)
	if dir == "" {
		t.Skipf("%s names no folder of NAME.json and NAME.stf: p4c's samples do not run", samples)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.stf"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%d tests in %s, %v", len(files), dir, err)
	}
	for _, f := range files {
		t.Run(filepath.Base(f), func(t *testing.T) {
			runFile(t, load(t, strings.TrimSuffix(f, ".stf")+".json"), f)
		})
	}
}

// FuzzFrames: no frame makes a program panic, hang or lose count.
func FuzzFrames(f *testing.F) {
	programs, err := filepath.Glob("../../p4src/*.json")
	if err != nil || len(programs) == 0 {
		f.Fatalf("%d programs, %v", len(programs), err)
	}
	var switches []*engine.Switch
	for _, p := range programs {
		sw, err := engine.NewSwitch(load(f, p), engine.Config{MaxPasses: 50})
		if err != nil {
			f.Fatal(err)
		}
		switches = append(switches, sw)
		tests, err := filepath.Glob(strings.TrimSuffix(filepath.Base(p), ".json") + "/*.stf")
		if err != nil {
			f.Fatal(err)
		}
		for _, name := range tests {
			b, err := os.ReadFile(name)
			if err != nil {
				f.Fatal(err)
			}
			statements, err := stf.Parse(bytes.NewReader(b))
			if err != nil {
				f.Fatal(err)
			}
			for _, s := range statements {
				if frame, err := hex.DecodeString(s.Data); s.Op == stf.Packet && err == nil {
					f.Add(uint16(s.Port), frame)
				}
			}
		}
	}
	now := clock.Time(0)
	f.Fuzz(func(t *testing.T, port uint16, frame []byte) {
		now += 1000
		for i, sw := range switches {
			n := 0
			r := sw.Process(now, uint32(port), frame, func(uint32, []byte) { n++ })
			if n != r.Emitted || n == 0 && r.Dropped == engine.NotDropped {
				t.Fatalf("%s: %d frames left: %+v", programs[i], n, r)
			}
		}
	})
}
