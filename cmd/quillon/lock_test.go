package main

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/arbiter/message"
)

// granting is an arbiter that grants what it is asked for, and answers as long as it is not mute.
type granting struct {
	at                string
	mute              atomic.Bool
	released, renewed atomic.Int32
}

func grantingArbiter(t *testing.T) *granting {
	sock, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sock.Close() })
	g := &granting{at: sock.LocalAddr().String()}
	go func() {
		b := make([]byte, 2048)
		var m message.Message
		for {
			n, from, err := sock.ReadFromUDP(b)
			if err != nil {
				return
			}
			if g.mute.Load() || !m.Parse(b[:n]) {
				continue
			}
			m.Answer, m.N, m.Result = true, 0, message.OK
			switch m.Op {
			case message.Hello:
				m.Session = 9
			case message.Release:
				g.released.Add(1)
			case message.Renew:
				g.renewed.Add(1)
			}
			if m.Op == message.Acquire {
				m.Token, m.Handle = 77, 1
			}
			_, _ = sock.WriteToUDP(m.Append(nil), from)
		}
	}()
	return g
}

// alive reports whether a process runs; a zombie does not.
func alive(pid string) bool {
	b, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	return rest != "" && rest[0] != 'Z' && rest[0] != 'X'
}

// readPID waits for a file that a command writes a process number to.
func readPID(t *testing.T, file string) string {
	for range 2000 {
		if b, _ := os.ReadFile(file); bytes.HasSuffix(b, []byte("\n")) {
			return strings.TrimSpace(string(b))
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("nothing wrote %s", file)
	return ""
}

// TestLockLost: when the lease is lost, the command is killed, and with it all that it has started: a child, and one that was left to itself.
func TestLockLost(t *testing.T) {
	g := grantingArbiter(t)
	child, orphan := filepath.Join(t.TempDir(), "child"), filepath.Join(t.TempDir(), "orphan")
	script := fmt.Sprintf(`(setsid sh -c 'echo $$ >%s; exec sleep 60' & ) ; sh -c 'echo $$ >%s; exec sleep 60'; true`, orphan, child)
	done := make(chan error, 1)
	go func() {
		out, err := exec.Command("quillon", "lock", "--arbiter", g.at, "--lease", "2s", "0x10", "--", "sh", "-c", script).CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
		done <- err
	}()
	a, b := readPID(t, child), readPID(t, orphan)
	for g.renewed.Load() < 2 && alive(a) {
		time.Sleep(10 * time.Millisecond)
	}
	if !alive(a) || !alive(b) {
		t.Fatal("the command ended while the lease was renewed")
	}
	g.mute.Store(true)
	select {
	case err := <-done:
		if err == nil || !strings.Contains(err.Error(), "lease is lost") {
			t.Errorf("error %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("quillon lock does not end")
	}
	if alive(a) || alive(b) {
		t.Errorf("child alive: %v, orphan alive: %v", alive(a), alive(b))
	}
}

// TestLockOrphans: processes that the command leaves to themselves do not stay as zombies.
func TestLockOrphans(t *testing.T) {
	g := grantingArbiter(t)
	child, end := filepath.Join(t.TempDir(), "child"), filepath.Join(t.TempDir(), "end")
	cmd := exec.Command("quillon", "lock", "--arbiter", g.at, "0x10", "--", "sh", "-c", "(sh -c 'echo $$ >"+child+"' & ); until [ -e "+end+" ]; do sleep 0.1; done")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := readPID(t, child)
	for range 2000 {
		if _, err := os.Stat("/proc/" + pid); err != nil {
			pid = ""
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if pid != "" {
		t.Error("a process that has ended is there for 20 s")
	}
	if err := os.WriteFile(end, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// TestLockStopped: a user who ends quillon lock ends the command, too, before its words are given back.
func TestLockStopped(t *testing.T) {
	g := grantingArbiter(t)
	child := filepath.Join(t.TempDir(), "child")
	cmd := exec.Command("quillon", "lock", "--arbiter", g.at, "--lease", "2s", "0x10", "--", "sh", "-c", "trap '' TERM; sh -c 'echo $$ >"+child+"; exec sleep 60'; true")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	pid := readPID(t, child)
	_ = cmd.Process.Signal(syscall.SIGTERM)
	for {
		select {
		case <-done:
			if alive(pid) || g.released.Load() != 1 {
				t.Errorf("alive: %v, %d releases", alive(pid), g.released.Load())
			}
			return
		case <-time.After(time.Millisecond):
			if alive(pid) && g.released.Load() > 0 {
				t.Fatal("the words were given back while the command's child ran")
			}
		}
	}
}

// TestLockNohup: a signal that quillon lock was started to ignore ends neither it nor the command.
func TestLockNohup(t *testing.T) {
	g := grantingArbiter(t)
	child := filepath.Join(t.TempDir(), "child")
	cmd := exec.Command("nohup", "quillon", "lock", "--arbiter", g.at, "0x10", "--", "sh", "-c", "echo $$ >"+child+"; sleep 1")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := readPID(t, child)
	number, err := strconv.Atoi(pid)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []int{cmd.Process.Pid, number} {
		if err := syscall.Kill(p, syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
	}
	if err := cmd.Wait(); err != nil || g.released.Load() != 1 {
		t.Errorf("%v, %d releases", err, g.released.Load())
	}
}
