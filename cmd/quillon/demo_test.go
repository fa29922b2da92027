package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/quillon/quillon/internal/rack/topo"
	"github.com/quillon/quillon/nf/port"
)

// marked returns the processes that have mark in their environment, and the network namespaces (netns) of
// their threads.
func marked(mark string) (pids []string, netns map[string]bool) {
	netns = map[string]bool{}
	procs, _ := filepath.Glob("/proc/[0-9]*")
	for _, p := range procs {
		env, err := os.ReadFile(p + "/environ")
		if err != nil || !bytes.Contains(env, []byte(mark)) {
			continue
		}
		pids = append(pids, filepath.Base(p))
		threads, _ := filepath.Glob(p + "/task/*/ns/net")
		for _, t := range threads {
			if ns, err := os.Readlink(t); err == nil {
				netns[ns] = true
			}
		}
	}
	return pids, netns
}

// inhabited returns the network namespaces in which there is any thread.
func inhabited() map[string]bool {
	all := map[string]bool{}
	threads, _ := filepath.Glob("/proc/[0-9]*/task/*/ns/net")
	for _, t := range threads {
		if ns, err := os.Readlink(t); err == nil {
			all[ns] = true
		}
	}
	return all
}

// An interrupted demo leaves nothing behind, whenever and however it ends.
func TestDemoInterrupted(t *testing.T) {
	home, err := topo.NewSpace(true)
	if errors.Is(err, port.ErrNotSupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer home.Close()
	for i, c := range []struct {
		sig   syscall.Signal
		until string // the signal comes after the demo has printed this
		delay time.Duration
	}{
		{syscall.SIGINT, "", 0},
		{syscall.SIGINT, "", 20 * time.Millisecond},
		{syscall.SIGTERM, "building", 60 * time.Millisecond},
		{syscall.SIGINT, "building", 150 * time.Millisecond},
		{syscall.SIGHUP, "pass-through, warm-up", 0},
		{syscall.SIGINT, "write steering, measuring", 0},
		{syscall.SIGTERM, "waiting for", 0},
		{syscall.SIGINT, "walking", 0},
		{syscall.SIGKILL, "building", 150 * time.Millisecond},
		{syscall.SIGKILL, "pass-through, measuring", 0},
	} {
		name := fmt.Sprintf("%s after %q and %s", c.sig, c.until, c.delay)
		mark := fmt.Sprintf("QUILLON_DEMO_TEST=%d.%d", os.Getpid(), i)
		// A phase is longer than this machine pauses the test. Where the signal comes in the last steps,
		// phases are short.
		seconds := "1"
		if c.until == "waiting for" || c.until == "walking" {
			seconds = "0.1"
		}
		// The test binary is quillon when its name is quillon.
		cmd := exec.Command("/proc/self/exe")
		cmd.Args = []string{"quillon", "demo", "--seconds", seconds, "--warmup", "0.1", "--keys", "64"}
		cmd.Env = append(os.Environ(), mark)
		out := &watched{text: c.until, seen: make(chan struct{})}
		if c.until == "" {
			out.tell()
		}
		cmd.Stdout, cmd.Stderr = out, out
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := home.Do(cmd.Start); err != nil {
			t.Fatal(err)
		}
		select {
		case <-out.seen:
		case <-time.After(60 * time.Second):
			t.Errorf("%s: it has only printed %q", name, out.all.String())
		}
		<-time.After(c.delay)
		_, netns := marked(mark)
		if err := cmd.Process.Signal(c.sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
			t.Fatal(err)
		}
		err := cmd.Wait()
		if c.sig != syscall.SIGKILL && c.until != "" && c.until != "walking" && c.until != "waiting for" {
			if code := cmd.ProcessState.ExitCode(); code != exitFailed || !strings.Contains(out.all.String(), "stopped by signal") {
				t.Errorf("%s: %v, status %d, want %d; it printed %q", name, err, code, exitFailed, out.all.String())
			}
		}
		var home0 string
		if err := home.Do(func() (err error) { home0, err = os.Readlink("/proc/thread-self/ns/net"); return err }); err != nil {
			t.Fatal(err)
		}
		delete(netns, home0)
		left := func() string {
			pids, _ := marked(mark)
			all := inhabited()
			for ns := range netns {
				if !all[ns] {
					delete(netns, ns)
				}
			}
			if len(pids) > 0 || len(netns) > 0 {
				return fmt.Sprintf("processes %v, namespaces %v", pids, netns)
			}
			return ""
		}
		// The kernel removes what a killed process had in its own time.
		for deadline := time.Now().Add(60 * time.Second); left() != ""; {
			if time.Now().After(deadline) {
				t.Errorf("%s: left behind: %s", name, left())
				break
			}
			<-time.After(5 * time.Millisecond)
		}
		if err := home.Do(func() error {
			links, err := netlink.LinkList()
			for _, l := range links {
				if l.Attrs().Name != "lo" {
					err = errors.Join(err, fmt.Errorf("link %s is left", l.Attrs().Name))
				}
			}
			if c.sig == syscall.SIGKILL && c.until == "building" {
				// The middlebox may have been changing the settings of its interfaces.
				records, _ := filepath.Glob("/run/quillon-settings-*")
				for _, f := range records {
					err = errors.Join(err, os.Remove(f))
				}
			}
			files, _ := filepath.Glob("/run/*")
			pins, _ := filepath.Glob("/sys/fs/bpf/quillon*")
			if len(files)+len(pins) > 0 {
				err = errors.Join(err, fmt.Errorf("files %v %v are left", files, pins))
			}
			return err
		}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// watched collects the output and tells when text was in it.
type watched struct {
	text string
	seen chan struct{}
	told bool
	all  bytes.Buffer
}

func (w *watched) Write(p []byte) (int, error) {
	w.all.Write(p)
	if bytes.Contains(w.all.Bytes(), []byte(w.text)) {
		w.tell()
	}
	return len(p), nil
}

func (w *watched) tell() {
	if !w.told {
		w.told = true
		close(w.seen)
	}
}
