package stf

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/p4"
)

// TestPSAPrograms: frames of random programs take all ways, meet entries, and cause errors.
func TestPSAPrograms(t *testing.T) {
	seen := map[p4.EventKind]int{}
	for n := range uint64(8) {
		r := rand.New(rand.NewPCG(n, 0))
		s := randomPSA(t, filepath.Join(t.TempDir(), "program.json"), r, n%2 == 1)
		in := psaFrames(r, 100)
		s.fill(s.run(t), r, in, wires)
		x := s.run(t)
		x.sw.SetTrace(func(e p4.Event) { seen[e.Kind]++ })
		for _, p := range in {
			x.sw.Process(0, p.port, p.frame, func(uint32, []byte) {})
		}
	}
	for _, k := range []p4.EventKind{p4.EventParseError, p4.EventHit, p4.EventMiss, p4.EventAction, p4.EventEmit, p4.EventDrop,
		p4.EventClone, p4.EventReplica, p4.EventResubmit, p4.EventRecirculate} {
		if seen[k] < 5 {
			t.Errorf("%d events of kind %d", seen[k], k)
		}
	}
}

// randomPSA writes a random program to a file, and takes it.
func randomPSA(t *testing.T, file string, r *rand.Rand, again bool) *setup {
	t.Helper()
	if err := os.WriteFile(file, psaProgram(t, r, again), 0o600); err != nil {
		t.Fatal(err)
	}
	return load(t, file)
}

// TestBmv2PSARandom gives random programs, entries and frames to psa_switch and to the engine.
func TestBmv2PSARandom(t *testing.T) {
	needBmv2(t, "psa_switch")
	for _, seed := range rounds() {
		for n := range uint64(20) {
			t.Run(fmt.Sprintf("%d/%d", seed, n), func(t *testing.T) { comparePSA(t, n, seed, compareBmv2) })
		}
	}
}

// TestBmv2PSARandomTraces does the same, and compares every step.
func TestBmv2PSARandomTraces(t *testing.T) {
	needBmv2(t, "psa_switch")
	for n := range uint64(10) {
		t.Run(fmt.Sprint(n), func(t *testing.T) { comparePSA(t, n, 77, compareTraces) })
	}
}

func comparePSA(t *testing.T, n, seed uint64, with compare) {
	r := rand.New(rand.NewPCG(n, seed))
	file := filepath.Join(t.TempDir(), "program.json")
	s := randomPSA(t, file, r, n%2 == 1)
	in := psaFrames(r, 300)
	s.fill(s.run(t), r, in, wires)
	with(t, s, file, withoutOwnErrors(t, s, withoutLoops(t, s, append(in, last))))
}

// TestBmv2PSA gives random entries to programs for PSA in tests/p4. It leaves out externs, which draws random numbers.
func TestBmv2PSA(t *testing.T) {
	const dir = "../../../tests/p4/testdata/psa/"
	ofPSA(t, []string{dir + "paths.json", dir + "sums.json"}, rounds(), compareBmv2)
}

// TestBmv2PSASamples does the same with p4c's samples for PSA, also with those that have no test file.
func TestBmv2PSASamples(t *testing.T) { ofPSA(t, psaSamples(t), rounds(), compareBmv2) }

// TestBmv2PSASampleTraces does the same, and compares every step.
func TestBmv2PSASampleTraces(t *testing.T) { ofPSA(t, psaSamples(t), []uint64{77}, compareTraces) }

func psaSamples(t *testing.T) []string {
	files, err := filepath.Glob(filepath.Join(filepath.Dir(samples(t)[0]), "*.json"))
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func ofPSA(t *testing.T, files []string, seeds []uint64, with compare) {
	needBmv2(t, "psa_switch")
	for i, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".json")
		for _, seed := range seeds {
			t.Run(fmt.Sprintf("%s/%d", name, seed), func(t *testing.T) {
				if name == "psa-parser-error-test-bmv2" {
					t.Skip("writes the time into frames")
				}
				refused(t, file)
				r := rand.New(rand.NewPCG(uint64(i), seed))
				s, in := load(t, file), []input(nil)
				if s.prog.Arch() != "psa" {
					t.Skip("is for v1model")
				}
				test := strings.TrimSuffix(file, "json") + "stf"
				if _, err := os.Stat(test); !errors.Is(err, fs.ErrNotExist) {
					s, in = prepare(t, file, test)
				}
				in = append(in, templates(r)...)
				s.fill(s.run(t), r, in, []uint32{1, 2, 3, 4, 5})
				with(t, s, file, withoutOwnErrors(t, s, withoutLoops(t, s, packets(in, 200, r))))
			})
		}
	}
}

// withoutOwnErrors leaves out what leads to an error of the program's own: p4c-bm2-psa writes none into the JSON, and psa_switch aborts.
func withoutOwnErrors(t *testing.T, s *setup, in []input) []input {
	r := s.run(t)
	own := false
	r.sw.SetTrace(func(e p4.Event) {
		if e.Kind != p4.EventParseError {
			return
		}
		known := false
		for _, n := range s.prog.Errors() {
			known = known || uint64(n) == e.Value
		}
		own = own || !known
	})
	in = slices.DeleteFunc(in, func(p input) bool {
		own = false
		r.sw.Process(0, p.port, p.frame, func(uint32, []byte) {})
		return own
	})
	if n := len(in); n > 0 && in[n-1].port != lastPort { // a frame must come in there
		in = append(in, input{lastPort, in[0].frame})
	}
	return in
}

// TestBmv2PSARouter does the same with a router, but for its digests: psa_switch takes no program with digests.
func TestBmv2PSARouter(t *testing.T) {
	needBmv2(t, "psa_switch")
	const router = "../../../tests/p4/testdata/psa/router"
	src, err := os.ReadFile(router + ".json")
	if err != nil {
		t.Fatal(err)
	}
	var root obj
	if err := json.Unmarshal(src, &root); err != nil {
		t.Fatal(err)
	}
	for _, a := range root["actions"].(arr) {
		code := a.(obj)["primitives"].(arr)
		a.(obj)["primitives"] = slices.DeleteFunc(code, func(p any) bool { return p.(obj)["op"] == "generate_digest" })
	}
	if src, err = json.Marshal(root); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "router.json")
	if err := os.WriteFile(file, src, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, seed := range rounds() {
		for name, with := range map[string]compare{"frames": compareBmv2, "traces": compareTraces} {
			t.Run(fmt.Sprint(name, "/", seed), func(t *testing.T) {
				r := rand.New(rand.NewPCG(3, seed))
				s, in := load(t, file), templates(r)
				s.fill(s.run(t), r, in, []uint32{1, 2, 3, 4})
				with(t, s, file, withoutOwnErrors(t, s, withoutLoops(t, s, packets(in, 200, r))))
			})
		}
	}
}

// refused skips the test if neither the engine nor psa_switch takes a program: p4c writes names into it that nothing has.
func refused(t *testing.T, file string) {
	src, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	_, err = p4.Load(src)
	if err == nil {
		return
	}
	ctx, stop := context.WithTimeout(t.Context(), 20*time.Second)
	defer stop()
	cmd := exec.CommandContext(ctx, "psa_switch", "--use-files", "0", "--thrift-port", "0", file)
	if out, _ := cmd.CombinedOutput(); !strings.Contains(string(out), "Invalid reference") {
		t.Fatalf("the engine says: %v, and psa_switch: %s", err, out)
	}
	t.Skip(err)
}
