package stf

import (
	"bytes"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/p4/packettrace"
)

// TestBmv2Traces gives the same entries and packets to bmv2 and to the engine,
// and compares every step that bmv2 logs.
func TestBmv2Traces(t *testing.T) {
	if _, err := exec.LookPath("simple_switch_CLI"); err != nil {
		t.Skip("simple_switch_CLI is not on the PATH: the engine's steps are not compared with bmv2's")
	}
	ofPrograms(t, 100, []uint64{77}, compareTraces)
}

// TestBmv2SampleTraces does the same with p4c's samples.
func TestBmv2SampleTraces(t *testing.T) {
	ofSamples(t, samples(t), 15, []uint64{1}, compareTraces)
}

func compareTraces(t *testing.T, s *setup, json string, in []input) {
	if s.prog.Arch() != "v1model" {
		t.Skip("a log of psa_switch is not read: the engine's steps are not compared with bmv2's")
	}
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
	b := startSwitch(t, cmd, "simple_switch_CLI", json, ports, in, append(options, "--priority-queues", "8")...)
	if bytes.Contains(b.logged(log), []byte("You disabled logging macros")) {
		t.Skipf("this %s is built without a log: the engine's steps are not compared with bmv2's", name)
	}
	b.configure(s, r)
	b.last(in[len(in)-1])
	var c packettrace.Comparison
	b.end = time.Now().Add(60 * time.Second)
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
