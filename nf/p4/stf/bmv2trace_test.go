package stf

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
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
	r := s.run(t)
	var ours []packettrace.Trace
	var ports []uint32
	seen := map[uint32]bool{}
	port := func(n uint32) {
		if !seen[n] && n < 1<<31 { // bmv2 attaches nothing to higher ports
			seen[n], ports = true, append(ports, n)
		}
	}
	for i, p := range in {
		port(p.port)
		ours = append(ours, r.sw.Trace(uint64(i), 0, p.port, p.frame, func(n uint32, _ []byte) { port(n) }))
	}
	if s.prog.Arch() == "psa" {
		ours = passes(ours)
	}
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	name, options := switches[s.prog.Arch()], []string{"--log-console", "-L", "trace"}
	cli := name + "_CLI"
	if name == "simple_switch" {
		options = append(options, "--")
		if _, err := exec.LookPath("simple_switch_grpc"); err == nil {
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			name, options = "simple_switch_grpc", append(options, "--grpc-server-addr", listener.Addr().String())
			listener.Close()
		}
		options = append(options, "--priority-queues", "8")
	}
	cmd := exec.Command(name)
	cmd.Stdout = log
	b := startSwitch(t, cmd, cli, json, ports, in, options...)
	if bytes.Contains(b.logged(log), []byte("You disabled logging macros")) {
		t.Skipf("this %s is built without a log: the engine's steps are not compared with bmv2's", name)
	}
	b.configure(s, r)
	b.last(in[len(in)-1])
	var c packettrace.Comparison
	b.end = time.Now().Add(20 * time.Second)
	for {
		theirs, err := packettrace.Read(bytes.NewReader(b.logged(log)))
		if err == nil {
			if s.prog.Arch() == "psa" {
				theirs = passes(theirs)
			}
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

// recirculated is PSA_PORT_RECIRCULATE.
const recirculated = 0xfffffffa

// passes makes a copy of each pass of a packet that came again, which psa_switch logs as the packet itself, and numbers the
// copies in the order of what they did: in psa_switch several threads make copies.
func passes(all []packettrace.Trace) []packettrace.Trace {
	out := make([]packettrace.Trace, len(all))
	for i, t := range all {
		var parts [][]packettrace.Step
		for _, c := range t.Copies {
			from := 0
			c.Steps = slices.Clone(c.Steps)
			for at, s := range c.Steps {
				if s.Kind == packettrace.Received && at+c.Number > 0 && s.Port != recirculated {
					c.Steps[at].Port = 0 // psa_switch forgets the port of a resubmitted packet
				}
				if s.Kind == packettrace.Received && at > 0 {
					parts, from = append(parts, c.Steps[from:at]), at
				}
			}
			parts = append(parts, c.Steps[from:])
		}
		text := func(steps []packettrace.Step) string {
			var b strings.Builder
			for _, s := range steps {
				switch s.Kind {
				case packettrace.Note, packettrace.Digest:
				case packettrace.Clone, packettrace.Drop, packettrace.Replica, packettrace.Multicast:
					fmt.Fprintln(&b, s.Kind, s.Port)
				case packettrace.Table, packettrace.Action, packettrace.Condition:
					fmt.Fprintln(&b, s.Kind, s.Holds, s.Action)
				default:
					fmt.Fprintln(&b, s.Kind, s.Name, s.Port, s.At)
				}
			}
			return b.String()
		}
		slices.SortStableFunc(parts, func(a, b []packettrace.Step) int { return strings.Compare(text(a), text(b)) })
		out[i] = packettrace.Trace{Packet: t.Packet, Origin: t.Origin}
		for n, p := range parts {
			out[i].Copies = append(out[i].Copies, packettrace.Copy{Number: n, Steps: p})
		}
	}
	return out
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
