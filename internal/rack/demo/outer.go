package demo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/quillon/quillon/internal/admin"
	"github.com/quillon/quillon/internal/rack/topo"
	"github.com/quillon/quillon/nf/graph"
)

// control is the middlebox's control socket, in the /run of the switch's mount namespace.
const control = "/run/demo.sock"

// niceness gives the middlebox a processor almost as if it had one of its own, where it has to share one:
// after a pause it forgets what it knows.
const niceness = -10

// The times within which a middlebox starts and answers, and the interval at which it is dialled.
const (
	startTime  = 10 * time.Second
	answerTime = 5 * time.Second
	dialEvery  = 5 * time.Millisecond
)

// outer is a middlebox in a process of its own, inline in a topology.
type outer struct {
	space *topo.Space
	cmd   Command
	box   *boxed

	mu     sync.Mutex
	proc   *Process
	client *admin.Client
}

// startOuter starts the middlebox and waits until it answers. quillon is the program, or another one that
// takes the same arguments after its own.
func startOuter(ctx context.Context, top *topo.Topology, x *boxed, quillon Command) (*outer, error) {
	b := &outer{space: top.Switch, cmd: quillon, box: x}
	b.cmd.Nice = niceness
	b.cmd.Args = append(slices.Clone(quillon.Args), "run",
		"--inline", top.Inline[0]+","+top.Inline[1], "--nf", x.nf(), "--control", control)
	if err := b.start(ctx); err != nil {
		return nil, err
	}
	return b, nil
}

// start starts the process and connects to it; an earlier one must have ended.
func (b *outer) start(ctx context.Context) error {
	p, err := StartProcess(b.space, b.cmd)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, startTime, fmt.Errorf("the middlebox did not answer within %s", startTime))
	defer cancel()
	for {
		var client *admin.Client
		err := b.space.Do(func() (err error) { client, err = admin.Dial(control); return err })
		if err == nil {
			b.mu.Lock()
			if b.client != nil {
				b.client.Close()
			}
			b.proc, b.client = p, client
			b.mu.Unlock()
			return nil
		}
		t := time.NewTimer(dialEvery)
		select {
		case <-t.C:
		case <-p.Done():
			return p.Err()
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), p.Stop())
		}
	}
}

// process returns the newest process, which may have ended, and its client.
func (b *outer) process() (*Process, *admin.Client) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.proc, b.client
}

// ask sends one request. It is an error if the process has ended or does not answer.
func (b *outer) ask(f func(*admin.Client) error) error {
	p, client := b.process()
	answered := make(chan error, 1)
	go func() { answered <- f(client) }()
	t := time.NewTimer(answerTime)
	defer t.Stop()
	select {
	case err := <-answered:
		var refused *admin.Error
		if err == nil || errors.As(err, &refused) {
			return err
		}
		select {
		case <-p.Done():
			return p.Err()
		case <-t.C:
			return err
		}
	case <-t.C:
		return fmt.Errorf("no answer for %s", answerTime)
	}
}

// SetMode implements Box.
func (b *outer) SetMode(mode string) error {
	return b.ask(func(c *admin.Client) error {
		_, err := c.Set(b.box.app, graph.Args{"mode": mode})
		return err
	})
}

// Totals implements Box.
func (b *outer) Totals() (t Totals, err error) {
	err = b.ask(func(c *admin.Client) error {
		counts, err := c.Counters()
		if err != nil {
			return err
		}
		ports, err := c.Ports()
		if err != nil {
			return err
		}
		t = b.box.sum(counts, ports.Ports)
		return nil
	})
	return t, err
}

// Info returns what the newest process has printed, at first its ports.
func (b *outer) Info() string {
	p, _ := b.process()
	return p.Log()
}

// Close ends the process.
func (b *outer) Close() error {
	p, client := b.process()
	client.Close()
	return p.Stop()
}
