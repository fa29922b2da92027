package demo

import (
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/quillon/quillon/internal/rack/topo"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/port"
)

func space(t *testing.T) *topo.Space {
	t.Helper()
	s, err := topo.NewSpace(true)
	if errors.Is(err, port.ErrNotSupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func shell(script string) Command {
	return Command{Path: "/bin/sh", Args: []string{"sh", "-c", script}}
}

func TestProcessStops(t *testing.T) {
	p, err := StartProcess(space(t), shell("echo up; exec sleep 1000"))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Stop(); err != nil {
		t.Fatal(err)
	}
	<-p.Done()
	if err := syscall.Kill(p.PID(), 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("process %d is still there: %v", p.PID(), err)
	}
	if err := p.Stop(); err != nil {
		t.Errorf("second Stop: %v", err)
	}
}

func TestProcessRunsInsideAndDiesWithItsSpace(t *testing.T) {
	s := space(t)
	p, err := StartProcess(s, shell("readlink /proc/self/ns/net; exec sleep 1000"))
	if err != nil {
		t.Fatal(err)
	}
	var inside string
	if err := s.Do(func() (err error) { inside, err = os.Readlink("/proc/thread-self/ns/net"); return err }); err != nil {
		t.Fatal(err)
	}
	for !strings.Contains(p.Log(), "\n") {
		select {
		case <-p.Done():
			t.Fatal(p.Err())
		default:
		}
	}
	if got := strings.TrimSpace(p.Log()); got != inside {
		t.Errorf("runs in %s, want %s", got, inside)
	}
	s.Close()
	<-p.Done()
	if err := p.Err(); !strings.Contains(err.Error(), "killed") {
		t.Errorf("ended by %v", err)
	}
}

func TestProcessFails(t *testing.T) {
	s := space(t)
	if _, err := StartProcess(s, Command{Path: "/no/such/program"}); err == nil {
		t.Error("a program that is not there was started")
	}
	p, err := StartProcess(s, shell("echo one; echo why it failed >&2; exit 3"))
	if err != nil {
		t.Fatal(err)
	}
	<-p.Done()
	if got, want := p.Err().Error(), "sh: exit status 3: why it failed"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// If a middlebox does not start, the error has its output, and the rack is removed.
func TestMiddleboxFails(t *testing.T) {
	c := small()
	r, err := raise(t.Context(), clock.NewWall(), &c, shell("echo checking; echo no such thing >&2; exit 2"))
	if errors.Is(err, port.ErrNotSupported) {
		t.Skip(err)
	}
	if err == nil {
		r.Close()
		t.Fatal("a middlebox that failed is up")
	}
	if got, want := err.Error(), "middlebox: sh: exit status 2: no such thing"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
