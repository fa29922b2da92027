package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/quillon/quillon/internal/rack/topo"
	"github.com/quillon/quillon/nf/replay"
)

// TestMain is the program itself when the test starts it.
func TestMain(m *testing.M) {
	if os.Getenv("INLINE") != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// program is the example as a process.
func program(args ...string) (cmd *exec.Cmd, said *bytes.Buffer) {
	cmd = exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), "INLINE=1")
	said = &bytes.Buffer{}
	cmd.Stderr = said
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd, said
}

// TestReplay: of a capture all short frames are written as they came.
func TestReplay(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out.pcap")
	cmd, said := program("../ping.pcap", out)
	if err := cmd.Run(); err != nil {
		t.Fatal(err, said)
	}
	if c, err := replay.CompareFiles("../ping.pcap", out, replay.CompareOptions{}); err != nil {
		t.Fatal(c, err)
	}
	if cmd, said = program("eth1"); cmd.Run() == nil || !bytes.Contains(said.Bytes(), []byte("usage:")) {
		t.Error(said)
	}
}

// TestLive: between two hosts pings pass by the program, and long ones do not. When it has ended its settings are undone.
func TestLive(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: network namespaces, veth")
	}
	var at [3]*topo.Space // host, program, host
	for i := range at {
		s, err := topo.NewSpace(true)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		at[i] = s
	}
	run := func(s *topo.Space, name string, args ...string) error {
		return s.Do(func() error {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
			if err != nil {
				t.Logf("%s %q: %s", name, args, out)
			}
			return err
		})
	}
	for i, host := range []int{0, 2} {
		if err := topo.Veth(at[host], "eth0", at[1], []string{"eth1", "eth2"}[i]); err != nil {
			t.Fatal(err)
		}
		if err := run(at[host], "ip", "addr", "add", []string{"10.9.0.1/24", "10.9.0.2/24"}[i], "dev", "eth0"); err != nil {
			t.Fatal(err)
		}
	}
	cmd, said := program("eth1", "eth2")
	if err := at[1].Do(cmd.Start); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill() }()
	for try := 0; run(at[0], "ping", "-c", "1", "-W", "1", "10.9.0.2") != nil; try++ {
		if try == 60 {
			t.Fatal("no ping crosses:", said)
		}
	}
	// While its worker gets no processor frames cross in the kernel.
	for try := 0; run(at[0], "ping", "-c", "1", "-W", "1", "-s", "1200", "10.9.0.2") == nil; try++ {
		if try == 60 {
			t.Fatal("all long pings cross")
		}
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err, said)
	}
	if run(at[1], "sh", "-c", "ip link show eth1 | grep -q xdp") == nil {
		t.Error("a program is left on eth1")
	}
}
