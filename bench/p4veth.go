package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/quillon/quillon/internal/bench"
	"github.com/quillon/quillon/internal/ethtool"
	"github.com/quillon/quillon/internal/rack/blast"
	"github.com/quillon/quillon/internal/registry"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/p4"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/port/open"
)

// p4Round is how long a round on veth lasts, and p4Warm how long a switch runs
// before it.
const (
	p4Round = time.Second
	p4Warm  = 500 * time.Millisecond
)

// onVeth prepares both switches between the same two veth pairs.
func (l load) onVeth(rival string, clk clock.Clock) (_ *duel, err error) {
	r, err := blast.New(l.Laps, bench.MixWindow)
	if err != nil {
		return nil, err
	}
	undo := bench.Undoing{r.Close}
	closeAll := func() { undo.All() }
	defer func() {
		if err != nil {
			closeAll()
		}
	}()
	other := &bmv2{name: rival}
	undo = append(undo, other.close)
	err = r.Near.Do(func() error {
		if err := reachable(); err != nil {
			return err
		}
		return other.start(l, "-i", "1@"+blast.A, "-i", "2@"+blast.B)
	})
	if err != nil {
		return nil, err
	}
	if err := other.signal(syscall.SIGSTOP); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	sending := make(chan error, 1)
	go func() { sending <- r.Run(ctx) }()
	undo = append(undo, func() {
		cancel()
		<-sending
	})
	// arriving counts for a round what arrives behind a switch that runs.
	arriving := func(died <-chan struct{}, why, stop func() error) (func() (int, error), error) {
		if !r.Settle(ctx, 100, 10*time.Second) {
			return nil, errors.Join(errors.New("no frames arrive"), stop())
		}
		time.Sleep(p4Warm)
		return func() (int, error) {
			from := r.Arrived()
			select {
			case <-died:
				return 0, errors.Join(fmt.Errorf("the switch stopped: %w", why()), stop())
			case err := <-sending:
				sending <- err
				return 0, errors.Join(fmt.Errorf("the generator stopped: %w", err), stop())
			case <-time.After(p4Round):
			}
			return int(r.Arrived() - from), stop()
		}, nil
	}
	with := func(spec *graph.Spec, install func(*graph.Instance) error) bench.Run {
		spec.Ports["pa"] = graph.PortSpec{Kind: open.AFXDP, Args: graph.Args{"dev": blast.A}}
		spec.Ports["pb"] = graph.PortSpec{Kind: open.AFXDP, Args: graph.Args{"dev": blast.B}}
		return func() (func() (int, error), error) {
			var x *open.Running
			err := r.Near.Do(func() (err error) {
				x, err = open.Start(graph.Config{Spec: spec, Kinds: registry.Kinds(), Nice: -20}, open.Config{Filter: port.Filter{All: true}, Clock: clk})
				return err
			})
			if err != nil {
				return nil, err
			}
			stop := func() error { return r.Near.Do(x.Stop) }
			if err := install(x.Graph); err != nil {
				return nil, errors.Join(err, stop())
			}
			return arriving(x.Ended(), x.Err, stop)
		}
	}
	return &duel{
		bytes: l.bytes(),
		ours:  with(bench.P4Spec(), l.Install),
		theirs: func() (func() (int, error), error) {
			if err := other.signal(syscall.SIGCONT); err != nil {
				return nil, err
			}
			return arriving(other.died, other.why, func() error { return other.signal(syscall.SIGSTOP) })
		},
		pass:  with(bench.Between("wire", nil), func(*graph.Instance) error { return nil }),
		close: closeAll,
	}, nil
}

// reachable lets the frames of the generator reach packet sockets in the calling
// thread's network namespace, and its processes each other.
func reachable() error {
	tool, err := ethtool.Open()
	if err != nil {
		return err
	}
	defer tool.Close()
	// What reaches a veth by XDP reaches its stack while GRO is on.
	if err := tool.Change(blast.A, map[string]bool{"rx-gro": true}); err != nil {
		return err
	}
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	return err
}

// bmv2 is a simple_switch that runs in the background.
type bmv2 struct {
	name string
	cmd  *exec.Cmd
	died chan struct{} // closed when it has ended, with err
	err  error
	dir  string
}

// why is how the switch ended, after died.
func (b *bmv2) why() error { return b.err }

// start runs the switch in the calling thread's network namespace with a load's
// program and entries. A path that is not absolute is in b.dir, which is made
// when there is none.
func (b *bmv2) start(l load, args ...string) (err error) {
	if err := b.folder(); err != nil {
		return err
	}
	src, err := l.Source()
	if err != nil {
		return err
	}
	program := b.dir + "/program.json"
	if err := os.WriteFile(program, src, 0o600); err != nil {
		return err
	}
	thrift, err := freePort()
	if err != nil {
		return err
	}
	b.cmd = exec.Command(b.name, append(args, "--thrift-port", thrift, "--device-id", thrift, program)...)
	b.cmd.Dir = b.dir
	b.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := b.cmd.Start(); err != nil {
		return err
	}
	b.died = make(chan struct{})
	go func() {
		b.err = b.cmd.Wait()
		close(b.died)
	}()
	for try := 0; ; try++ {
		c, err := net.Dial("tcp", "127.0.0.1:"+thrift)
		if err == nil {
			c.Close()
			break
		}
		if try == 100 {
			return fmt.Errorf("%s does not answer: %w", b.name, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
	var lines strings.Builder
	fmt.Fprintf(&lines, "set_queue_depth %d\n", 1<<20) // its own queues lose nothing
	for _, e := range l.Entries {
		t, _ := l.Prog.Table(e.Table)
		fmt.Fprintln(&lines, p4.BMv2Add(t, e.Entry))
	}
	cli := exec.Command(b.name+"_CLI", "--thrift-port", thrift)
	cli.Stdin = strings.NewReader(lines.String())
	out, err := cli.Output()
	if err != nil {
		return fmt.Errorf("%s_CLI: %w", b.name, err)
	}
	if n := strings.Count(string(out), "Entry has been added"); n != len(l.Entries) {
		return fmt.Errorf("%s took %d entries of %d: %s", b.name, n, len(l.Entries), firstLine(out, "Error", "Invalid"))
	}
	return nil
}

func (b *bmv2) folder() (err error) {
	if b.dir == "" {
		b.dir, err = os.MkdirTemp("", "quillon-bench-")
	}
	return err
}

// freePort is a TCP port that nobody uses.
func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	_, name, err := net.SplitHostPort(l.Addr().String())
	return name, err
}

// firstLine is the first that has one of the words.
func firstLine(text []byte, words ...string) string {
	for line := range strings.Lines(string(text)) {
		for _, w := range words {
			if strings.Contains(line, w) {
				return strings.TrimSpace(line)
			}
		}
	}
	return ""
}

func (b *bmv2) signal(s os.Signal) error { return b.cmd.Process.Signal(s) }

func (b *bmv2) close() {
	if b.died != nil {
		_ = b.cmd.Process.Kill()
		<-b.died
	}
	if b.dir != "" {
		_ = os.RemoveAll(b.dir)
	}
}
