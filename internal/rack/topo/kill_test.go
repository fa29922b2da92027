package topo

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// child makes this test binary build a rack, print its namespaces, and wait until it is killed.
const child = "QUILLON_TOPO_TEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(child) == "" {
		os.Exit(m.Run())
	}
	top, err := New(Config{})
	if err != nil {
		println(err.Error())
		os.Exit(1)
	}
	out := bufio.NewWriter(os.Stdout)
	spaces := []*Space{top.Switch}
	for _, n := range top.Nodes {
		spaces = append(spaces, n.Space)
	}
	for _, s := range spaces {
		if err := s.Do(func() error {
			l, err := os.Readlink("/proc/thread-self/ns/net")
			out.WriteString(l + "\n")
			return err
		}); err != nil {
			println(err.Error())
			os.Exit(1)
		}
	}
	out.WriteString("stands\n")
	out.Flush()
	// Not select {}: the runtime takes a program that only waits for dead.
	for {
		_, _ = unix.Select(0, nil, nil, nil, nil)
	}
}

// inhabited returns the network namespaces of all threads of the machine.
func inhabited() map[string]bool {
	all := map[string]bool{}
	tasks, _ := filepath.Glob("/proc/[0-9]*/task/*/ns/net")
	for _, p := range tasks {
		if l, err := os.Readlink(p); err == nil {
			all[l] = true
		}
	}
	return all
}

func TestNothingIsLeftAfterSIGKILL(t *testing.T) {
	build(t, Config{Compute: 1}).Close()
	// The death signal comes when the thread ends that started the child.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), child+"=1")
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var ns []string
	for s := bufio.NewScanner(out); s.Scan() && s.Text() != "stands"; {
		ns = append(ns, s.Text())
	}
	if len(ns) != 6 || !strings.HasPrefix(ns[0], "net:[") {
		t.Fatalf("the child has namespaces %q", ns)
	}
	all := inhabited()
	for _, n := range ns {
		if !all[n] {
			t.Errorf("%s is nowhere to be seen while the rack stands", n)
		}
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("the child ended by itself")
	}
	eventually(t, "all namespaces gone", func() bool {
		all := inhabited()
		return !slices.ContainsFunc(ns, func(n string) bool { return all[n] })
	})
}
