package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/quillon/quillon/nf/arbiter/client"
	"github.com/quillon/quillon/nf/arbiter/message"
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
QUILLON_TOKEN. It is killed when the lease is lost.

Without a command the token is printed: it was free, and is free again.`,
		Example: "  quillon lock --arbiter 10.0.0.9 --wait 10s 0x1000 0x1008 -- ./job",
		Args:    atLeast("WORD"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var command []string
			if n := cmd.ArgsLenAtDash(); n >= 0 {
				args, command = args[:n], args[n:]
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
	_ = cmd.MarkFlagRequired("arbiter")
	return cmd
}

// holdLocks acquires the words, runs the command, and releases the words. Without a command it only prints
// the token.
func holdLocks(cmd *cobra.Command, at netip.AddrPort, cfg client.Config, wait time.Duration, words []message.Word, command []string) error {
	c, err := client.Dial(at, cfg)
	if err != nil {
		return err
	}
	defer c.Close()
	// An arbiter that has lost its state grants nothing for the longest lease.
	ctx, stop := context.WithTimeout(cmd.Context(), wait+cfg.Lease+5*time.Second)
	g, err := c.Acquire(ctx, wait, words...)
	stop()
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
	ctx, stop = context.WithTimeout(context.WithoutCancel(cmd.Context()), cfg.Lease)
	defer stop()
	return errors.Join(err, c.Release(ctx, g))
}

// underLock runs a command with the token in QUILLON_TOKEN, and kills it if the lease is lost.
func underLock(cmd *cobra.Command, g *client.Grant, command []string) error {
	ctx, lost := context.WithCancel(cmd.Context())
	defer lost()
	go func() {
		t := time.NewTicker(10 * time.Millisecond)
		defer t.Stop()
		for g.Holds() {
			select {
			case <-t.C:
			case <-ctx.Done():
				return
			}
		}
		lost()
	}()
	x := exec.CommandContext(ctx, command[0], command[1:]...)
	x.Stdin, x.Stdout, x.Stderr = cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr()
	x.Env = append(os.Environ(), "QUILLON_TOKEN="+strconv.FormatUint(g.Token, 10))
	err := x.Run()
	if ctx.Err() != nil && cmd.Context().Err() == nil {
		return errors.New("the lease is lost: the command was killed")
	}
	return err
}
