package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/internal/rack/topo"
)

// Process is a program that runs in a namespace. The kernel kills the program when this process, or the
// namespace's thread, ends.
type Process struct {
	cmd  *exec.Cmd
	log  tail
	done chan struct{}
	err  error // of Wait; read after done
}

// Command is a program with its arguments.
type Command struct {
	Path string
	Args []string // the first one is the program's name
	Env  []string // in addition to this process's environment
	Nice int      // nice value; if it is not permitted, it is not set
}

// StartProcess starts c in s. It keeps the end of the program's output, which explains a failure.
func StartProcess(s *topo.Space, c Command) (*Process, error) {
	p := &Process{cmd: exec.Command(c.Path), done: make(chan struct{})}
	p.cmd.Args, p.cmd.Env = c.Args, append(os.Environ(), c.Env...)
	p.cmd.Stdout, p.cmd.Stderr = &p.log, &p.log
	// The process has a group of its own, so that Ctrl-C reaches only the demo, which then stops the process.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := s.Do(func() error {
		// This sets the nice value of the thread, which the process inherits.
		_ = unix.Setpriority(unix.PRIO_PROCESS, 0, c.Nice)
		return p.cmd.Start()
	}); err != nil {
		return nil, fmt.Errorf("cannot start %s: %w", c.Path, err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// PID returns the process's ID.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Signal sends a signal.
func (p *Process) Signal(sig syscall.Signal) error { return p.cmd.Process.Signal(sig) }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Log returns the end of what the process printed.
func (p *Process) Log() string { return p.log.String() }

// Err says how the process ended, with the last line that it printed. It must not be called before Done is
// closed.
func (p *Process) Err() error {
	last := strings.TrimSpace(p.log.String())
	if i := strings.LastIndexByte(last, '\n'); i >= 0 {
		last = last[i+1:]
	}
	switch {
	case p.err == nil:
		return fmt.Errorf("%s ended: %s", p.cmd.Args[0], last)
	case last == "":
		return fmt.Errorf("%s: %w", p.cmd.Args[0], p.err)
	}
	return fmt.Errorf("%s: %w: %s", p.cmd.Args[0], p.err, last)
}

// grace is the time that a process may take to end after it was asked to.
const grace = 10 * time.Second

// Stop asks the process to end and waits; after grace it kills the process and returns an error.
func (p *Process) Stop() error {
	if err := p.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
	}
	if err := p.Signal(syscall.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-p.done
	return fmt.Errorf("%s did not stop within %s and was killed", p.cmd.Args[0], grace)
}

// tail keeps the last bytes written to it.
type tail struct {
	mu sync.Mutex
	p  []byte
}

const tailSize = 16 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.p = append(t.p, p...)
	if n := len(t.p) - tailSize; n > 0 {
		t.p = append(t.p[:0], t.p[n:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.p)
}
