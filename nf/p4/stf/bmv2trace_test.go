package stf

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/p4"
	"github.com/quillon/quillon/nf/p4/packettrace"
)

// TestBmv2Traces gives the same entries and packets to bmv2 and to the engine,
// and compares every step that bmv2 logs.
func TestBmv2Traces(t *testing.T) {
	if _, err := exec.LookPath("simple_switch_CLI"); err != nil {
		t.Skip("simple_switch_CLI is not on the PATH: the engine's steps are not compared with bmv2's")
	}
	files, err := filepath.Glob("../../../tests/p4/*/*.stf")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for i, file := range files {
		program := filepath.Base(filepath.Dir(file))
		t.Run(program+"/"+filepath.Base(file), func(t *testing.T) {
			json := "../../../p4src/" + program + ".json"
			r := rand.New(rand.NewPCG(uint64(i), 77))
			s, in := prepare(t, json, file)
			s.grow(t, r)
			in = packets(in, 100, r)
			if program == "swordbox_mux" {
				in = withoutWalks(t, s, in)
			}
			compareTraces(t, s, json, in)
		})
	}
}

// TestBmv2SampleTraces does the same with p4c's samples.
func TestBmv2SampleTraces(t *testing.T) {
	const samples = "QUILLON_P4C_SAMPLES"
	dir := os.Getenv(samples)
	if dir == "" {
		t.Skipf("%s names no folder of NAME.json and NAME.stf: p4c's samples are not compared", samples)
	}
	needBmv2(t)
	files, err := filepath.Glob(filepath.Join(dir, "*.stf"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%d tests in %s, %v", len(files), dir, err)
	}
	for i, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".stf")
		t.Run(name, func(t *testing.T) {
			json := strings.TrimSuffix(file, ".stf") + ".json"
			s, in := prepare(t, json, file)
			if len(in) == 0 {
				return
			}
			if undefined[name] == "" {
				in = packets(in, 15, rand.New(rand.NewPCG(uint64(i), 1)))
			} else {
				in = append(in, last)
			}
			compareTraces(t, s, json, in)
		})
	}
}

func compareTraces(t *testing.T, s *setup, json string, in []input) {
	r := s.run(t)
	var ours []packettrace.Trace
	var ports []uint32
	seen := map[uint32]bool{}
	port := func(n uint32) {
		if !seen[n] {
			seen[n], ports = true, append(ports, n)
		}
	}
	for i, p := range in {
		port(p.port)
		ours = append(ours, r.sw.Trace(uint64(i), 0, p.port, p.frame, func(n uint32, _ []byte) { port(n) }))
	}
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	options := []string{"--log-console", "-L", "trace", "--"}
	name := "simple_switch_grpc"
	if _, err := exec.LookPath(name); err != nil {
		name = "simple_switch"
	} else {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		options = append(options, "--grpc-server-addr", listener.Addr().String())
		listener.Close()
	}
	cmd := exec.Command(name)
	cmd.Stdout = log
	b := startSwitch(t, cmd, json, ports, in, append(options, "--priority-queues", "8")...)
	if bytes.Contains(b.logged(log), []byte("You disabled logging macros")) {
		t.Skipf("this %s is built without a log: the engine's steps are not compared with bmv2's", name)
	}
	b.ask(fmt.Sprintf("set_queue_depth %d", 1<<20)) // a full queue would lose frames
	for i := range s.config {
		if line := b.command(r, &s.config[i]); line != "" {
			b.ask(line)
		}
	}
	for _, a := range s.more {
		b.ask(p4.BMv2Add(a.table, a.entry))
	}
	b.last(in[len(in)-1])
	var c packettrace.Comparison
	b.end = time.Now().Add(20 * time.Second)
	for {
		theirs, err := packettrace.Read(bytes.NewReader(b.logged(log)))
		if err == nil {
			if c = packettrace.Diff(ours, theirs); c.Difference == nil {
				break
			}
		}
		if !b.patient() {
			t.Fatalf("%v of %d packets: %s", err, len(ours), c.Text("engine", "bmv2"))
		}
	}
	if c.Packets != len(in) || c.Steps < 5*len(in) {
		t.Errorf("%d packets, %d steps of %d packets were compared", c.Packets, c.Steps, len(in))
	}
}

// logged is what a switch wrote so far.
func (b *bmv2) logged(log *os.File) []byte {
	b.t.Helper()
	text, err := os.ReadFile(log.Name())
	if err != nil {
		b.t.Fatal(err)
	}
	return text
}
