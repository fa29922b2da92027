package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/nf/arbiter/client"
	"github.com/quillon/quillon/nf/arbiter/message"
	"github.com/quillon/quillon/nf/clock"
)

// parseWord reads [SPACE/]ADDRESS[/QP].
func parseWord(s string) (w message.Word, err error) {
	parts := strings.Split(s, "/")
	bad := fmt.Errorf("%q: want [SPACE/]ADDRESS[/QP], as 0x1000 or 10.0.0.9/0x1000/0x11", s)
	if len(parts) > 1 {
		if a, e := netip.ParseAddr(parts[0]); e == nil && a.Is4() {
			b := a.As4()
			w.Space = uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
		} else if n, e := strconv.ParseUint(parts[0], 0, 32); e == nil {
			w.Space = uint32(n)
		} else {
			return w, bad
		}
		parts = parts[1:]
	}
	if len(parts) == 2 {
		n, e := strconv.ParseUint(parts[1], 0, 24)
		if e != nil {
			return w, bad
		}
		w.QPN = uint32(n)
	}
	if w.Addr, err = strconv.ParseUint(parts[0], 0, 64); err != nil || len(parts) > 2 {
		return w, bad
	}
	return w, nil
}

func newLockCmd() *cobra.Command {
	var arbiter string
	var wait time.Duration
	var shared bool
	var cfg client.Config
	cmd := &cobra.Command{
		Use:   "lock WORD... [-- COMMAND...]",
		Short: "Hold locks of an arbiter while a command runs",
		Long: `Asks an arbiter (quillon nf describe arbiter) for all words or none, runs the command, and
gives them back. A word is [SPACE/]ADDRESS[/QP]: an address in a space, both numbers of
yours; with a fence, the space is the memory server's IPv4 address, and QP the server's
queue pair by which the word is changed. The command finds the fencing token in
QUILLON_TOKEN. When the lease is lost, it is killed, and all that it has started. When
quillon lock is stopped, the command gets SIGTERM, and 5 s later SIGKILL; then the words
are given back.

Without a command quillon lock prints the token, and gives the words back at once.`,
		Example: "  quillon lock --arbiter 10.0.0.9 --wait 10s 0x1000 0x1008 -- ./job",
		Args:    atLeast("WORD"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var command []string
			if n := cmd.ArgsLenAtDash(); n >= 0 {
				args, command = args[:n], args[n:]
			}
			if arbiter == "" {
				return errors.New("--arbiter is missing: want an IPv4 address, or ADDRESS:PORT")
			}
			at, err := netip.ParseAddrPort(arbiter)
			if a, e := netip.ParseAddr(arbiter); e == nil {
				at, err = netip.AddrPortFrom(a, message.Port), nil
			}
			if err != nil || !at.Addr().Is4() {
				return fmt.Errorf("--arbiter %q: want an IPv4 address, or ADDRESS:PORT", arbiter)
			}
			var words []message.Word
			for _, s := range args {
				w, err := parseWord(s)
				if err != nil {
					return err
				}
				w.Exclusive = !shared
				words = append(words, w)
			}
			if len(words) == 0 || len(words) > message.Most {
				return fmt.Errorf("%d words: want 1 to %d", len(words), message.Most)
			}
			if cfg.Lease < 10*time.Millisecond || cfg.Lease > time.Hour || wait < 0 || wait > time.Hour {
				return errors.New("--lease and --wait: want 10ms to 1h, and at most 1h")
			}
			return holdLocks(cmd, at, cfg, wait, words, command)
		},
	}
	f := cmd.Flags()
	f.StringVar(&arbiter, "arbiter", "", "`address` of the arbiter, with :PORT if it is another one")
	f.DurationVar(&wait, "wait", 0, "how long to stand in line")
	f.DurationVar(&cfg.Lease, "lease", 10*time.Second, "lease: how soon others get the locks after this machine dies")
	f.BoolVar(&shared, "shared", false, "share the words with others that do")
	f.Uint32Var(&cfg.Number, "number", 0, "number of this client at its address: a later one of the same number takes its place; 0: any")
	return cmd
}

// holdLocks acquires the words, runs the command, and releases the words. Without a command it only prints
// the token.
func holdLocks(cmd *cobra.Command, at netip.AddrPort, cfg client.Config, wait time.Duration, words []message.Word, command []string) error {
	// What this process ignores, as under nohup, goes on to be ignored, also by the command.
	heard := slices.DeleteFunc([]os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP}, signal.Ignored)
	asked, stop := signal.NotifyContext(cmd.Context(), heard...)
	defer stop()
	cmd.SetContext(asked)
	c, err := client.Dial(at, cfg)
	if err != nil {
		return err
	}
	defer c.Close()
	// An arbiter that has lost its state grants nothing for the longest lease.
	ctx, cancel := context.WithTimeout(cmd.Context(), wait+cfg.Lease+5*time.Second)
	g, err := c.Acquire(ctx, wait, words...)
	cancel()
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("arbiter %v: no answer, or it grants nothing yet", at)
	}
	if err != nil {
		return err
	}
	if command == nil {
		err = show(cmd, map[string]uint64{"token": g.Token}, func(w io.Writer) { fmt.Fprintln(w, g.Token) })
	} else {
		err = underLock(cmd, g, command)
	}
	if errors.Is(err, errLeft) || errors.Is(err, errLeaseLost) {
		return err
	}
	ctx, cancel = context.WithTimeout(context.WithoutCancel(cmd.Context()), cfg.Lease)
	defer cancel()
	return errors.Join(err, c.Release(ctx, g))
}

// stopPatience is how long a command that is asked to end may take.
const stopPatience = 5 * time.Second

// underLock runs a command. When the lease is lost, it kills the command and all that the command has started. When the user ends
// quillon lock, the command is asked to end, and what is left of it after stopPatience is killed.
func underLock(cmd *cobra.Command, g *client.Grant, command []string) error {
	// What the command leaves to itself becomes a child of this process, so that it is found.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("set the child subreaper: %w", err)
	}
	runtime.LockOSThread() // Pdeathsig is about the thread
	defer runtime.UnlockOSThread()
	ctx, end := context.WithCancelCause(cmd.Context())
	defer end(nil)
	ended := make(chan struct{})
	defer close(ended)
	x := exec.CommandContext(ctx, command[0], command[1:]...)
	x.Stdin, x.Stdout, x.Stderr = cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr()
	x.Env = append(os.Environ(), "QUILLON_TOKEN="+strconv.FormatUint(g.Token, 10))
	x.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	x.WaitDelay = stopPatience
	clk := clock.NewWall()
	var asked clock.Time // to end
	x.Cancel = func() error {
		if context.Cause(ctx) == errLeaseLost {
			return killBelow()
		}
		asked = clk.Now()
		for _, pid := range below(os.Getpid()) {
			_ = unix.Kill(pid, unix.SIGTERM)
		}
		return nil
	}
	if err := x.Start(); err != nil {
		return err
	}
	go func() {
		t := time.NewTicker(10 * time.Millisecond)
		defer t.Stop()
		for looks := 1; g.Holds(); looks++ {
			select {
			case <-t.C:
				if looks%100 == 0 { // it reads all of /proc
					reap(x.Process.Pid)
				}
			case <-ended:
				return
			}
		}
		if end(errLeaseLost); context.Cause(ctx) != errLeaseLost {
			_ = killBelow() // the command is being asked to end
		}
	}()
	err := x.Wait()
	if ctx.Err() == nil {
		return err // what the command has left running stays
	}
	for until := asked.Add(stopPatience); context.Cause(ctx) != errLeaseLost && g.Holds() && clk.Now() < until && len(below(os.Getpid())) > 0; {
		time.Sleep(10 * time.Millisecond) // what the command has started was asked, too
	}
	if e := killBelow(); e != nil {
		return e
	}
	if !g.Holds() {
		return errLeaseLost
	}
	return errStopped
}

var (
	errLeaseLost = errors.New("the lease is lost: the command was killed")
	errStopped   = errors.New("stopped: the command was ended")
	errLeft      = errors.New("the command, or what it has started, does not end: its words are free when the lease ends")
)

// reap removes processes that have ended and whose parents have left them to this one. The command itself is waited for elsewhere.
func reap(command int) {
	for _, p := range processes() {
		if p.zombie && p.parent == os.Getpid() && p.pid != command {
			_, _ = unix.Wait4(p.pid, nil, unix.WNOHANG, nil)
		}
	}
}

// killBelow kills all processes below this one, and returns when none runs. After a second it gives up: such a process
// waits for a device.
func killBelow() error {
	clk := clock.NewWall()
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		return errLeft // nobody says what runs
	}
	for until := clk.Now().Add(time.Second); ; time.Sleep(time.Millisecond) {
		all := below(os.Getpid())
		if len(all) == 0 {
			return nil
		}
		if clk.Now() > until {
			return errLeft
		}
		for _, pid := range all {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}
}

// below returns the processes below process root that run.
func below(root int) (all []int) {
	of := map[int][]int{}
	for _, p := range processes() {
		if !p.zombie { // else its children have other parents by now
			of[p.parent] = append(of[p.parent], p.pid)
		}
	}
	for next := of[root]; len(next) > 0; next = next[1:] {
		all = append(all, next[0])
		next = append(next, of[next[0]]...)
	}
	return all
}

// proc is a process; a zombie has ended, and its parent has not yet asked how.
type proc struct {
	pid, parent int
	zombie      bool
}

// processes returns all processes that /proc shows.
func processes() (all []proc) {
	files, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			continue // it has ended
		}
		// proc(5): pid (command) state parent ...; the command may have any characters.
		s := string(b)
		var state string
		var p proc
		if _, err := fmt.Sscanf(s[:strings.IndexByte(s+" ", ' ')]+s[strings.LastIndexByte(s, ')')+1:], "%d %s %d", &p.pid, &state, &p.parent); err == nil && state != "X" {
			p.zombie = state == "Z"
			all = append(all, p)
		}
	}
	return all
}
