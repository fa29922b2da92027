package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/quillon/quillon/internal/own"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/snic"
	"github.com/quillon/quillon/snic/attach"
	"github.com/quillon/quillon/snic/pool"
	"github.com/quillon/quillon/snic/pool/gossip"
)

// The intervals at which a board and its pool exchange news: poolSoon while something is under way, else
// poolIdle.
const (
	poolSoon = 200 * time.Microsecond
	poolIdle = 10 * time.Millisecond
)

// leaveWithin is how long a board that stops waits for its peers to take back what it runs for them;
// leavePoll is the interval at which it checks.
const (
	leaveWithin = 3 * time.Second
	leavePoll   = 5 * time.Millisecond
)

// poolFlags are run's flags about the pool of its board.
type poolFlags struct {
	listen string
	number int
	join   []string
	secret string
}

func (f *poolFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.listen, "pool", "", "have the board (an app of kind snic with pool-port=) in a pool, or the switch that boards are attached to (kind attach), and hear of the others at `address`:port")
	cmd.Flags().IntVar(&f.number, "pool-board", 0, fmt.Sprintf("the board's `number` in the pool, 0 to %d; each has its own: of two with the same the one started later takes no part", snic.MaxPeers-1))
	cmd.Flags().StringArrayVar(&f.join, "join", nil, "`address`:port of another board, which is asked until it answers; again for others")
	cmd.Flags().StringVar(&f.secret, "pool-secret", "", "`file` with what the boards of the pool share: 16, 24 or 32 bytes, or twice as many hexadecimal digits, and mode 600; without it only on the loopback interface")
}

// attachKind is the kind of apps that are switches for boards.
const attachKind = "attach"

// board returns the app that joins the pool, and the interface of its pool port if it has one.
func (f *poolFlags) board(spec *graph.Spec) (app, dev string, err error) {
	for name, a := range spec.Apps {
		if a.Kind != attachKind && (a.Kind != snicKind || a.Args["pool-port"] == "") {
			continue
		}
		if app != "" {
			return "", "", errors.New("--pool: several apps have pool-port=, or are of kind attach: want one")
		}
		app = name
	}
	if app == "" {
		return "", "", errors.New("--pool: want an app of kind snic with pool-port= (quillon nf describe snic), or of kind attach")
	}
	if spec.Apps[app].Kind == attachKind {
		if f.number != 0 {
			return "", "", fmt.Errorf("--pool-board %d: a switch has number %d, and no other", f.number, attach.Number)
		}
		return app, "", nil
	}
	end := app + "." + spec.Apps[app].Args["pool-port"]
	var from, to bool
	for _, l := range spec.Links {
		a, b, _ := strings.Cut(l, "->")
		a, b = strings.TrimSpace(a), strings.TrimSpace(b)
		if a == end {
			from = true
			port, _, _ := strings.Cut(b, ".")
			dev = spec.Ports[port].Args["dev"]
		}
		to = to || b == end
	}
	if !from || !to {
		return "", "", fmt.Errorf("--pool: links from %s and to it are missing (pool-port=)", end)
	}
	return app, dev, nil
}

// check refuses wrong flags.
func (f *poolFlags) check(spec *graph.Spec) error {
	switch {
	case f.listen == "" && (len(f.join) > 0 || f.secret != "" || f.number != 0):
		return errors.New("--join, --pool-board and --pool-secret are for --pool")
	case f.listen == "":
		return nil
	case f.number < 0 || f.number >= snic.MaxPeers:
		return fmt.Errorf("--pool-board %d: want 0 to %d", f.number, snic.MaxPeers-1)
	}
	if _, err := f.key(); err != nil {
		return err
	}
	_, _, err := f.board(spec)
	return err
}

// key reads the secret of --pool-secret: 16, 24 or 32 bytes, or hexadecimal digits of as many; nil without
// the flag.
func (f *poolFlags) key() ([]byte, error) {
	if f.secret == "" {
		return nil, nil
	}
	b, err := own.Read(f.secret, os.O_RDONLY, 0o077, maxSecret)
	if err != nil {
		return nil, fmt.Errorf("--pool-secret: %w (who has the secret is a board)", err)
	}
	text := strings.TrimSpace(string(b))
	key := make([]byte, len(text)/2)
	if n, err := fmt.Sscanf(text, "%x", &key); n == 1 && err == nil && slices.Contains([]int{16, 24, 32}, len(key)) && len(text) == 2*len(key) {
		return key, nil
	}
	if !slices.Contains([]int{16, 24, 32}, len(text)) {
		if slices.Contains([]int{16, 24, 32}, len(b)) {
			return b, nil // the first or last byte of a binary key may look like white space
		}
		return nil, fmt.Errorf("--pool-secret: %s holds %d bytes: want 16, 24 or 32, or twice as many hexadecimal digits", f.secret, len(text))
	}
	return []byte(text), nil
}

// maxSecret is the most bytes that are read of a file with a secret.
const maxSecret = 256

// member connects an app with its Node of the pool: *snic.Peering or *attach.Joining.
type member interface {
	On(n *pool.Node, now clock.Time, e pool.Event)
	Page(now clock.Time, message []byte)
	CarryPages(c pool.Carrier)
	Remains(n *pool.Node) (what []string, stuck bool)
	Exchange(do func(func(n *pool.Node, now clock.Time)), visit func(func(graph.App)) error) (bool, error)
}

// member makes the member of an app of this kind, and its Node's configuration.
func (f *poolFlags) member(kind string, mac [6]byte) (member, pool.Config) {
	if kind == attachKind {
		return attach.NewJoining(mac), pool.Config{Board: attach.Number, Topology: attach.Topology()}
	}
	join := snic.NewPeering(f.number, mac)
	return join, pool.Config{Board: f.number, Topology: pool.Intermediate(snic.MaxPeers, false), Host: join}
}

// joined is a board in its pool. A nil *joined is in no pool.
type joined struct {
	pool   *gossip.Pool
	join   member
	cancel func()
	done   chan struct{}
}

// leave asks the peers to take back what runs here for them, while workers still run. It returns when they
// have taken back all, when the rest cannot move, after leaveWithin, or when hurry delivers a signal. An
// error names what was not taken back, and is lost.
func (j *joined) leave(hurry <-chan os.Signal) error {
	if j == nil {
		return nil
	}
	j.pool.Do(func(n *pool.Node, now clock.Time) { n.Leave(now) })
	return leaving(hurry, time.After(leaveWithin), func() (what []string, stuck bool) {
		j.pool.Do(func(n *pool.Node, _ clock.Time) { what, stuck = j.join.Remains(n) })
		return what, stuck
	})
}

// leaving waits until nothing remains, until the rest is stuck, or until hurry or late delivers.
func leaving(hurry <-chan os.Signal, late <-chan time.Time, remains func() (what []string, stuck bool)) error {
	for {
		what, stuck := remains()
		if len(what) == 0 {
			return nil
		}
		if !stuck {
			select {
			case <-hurry:
			case <-late:
			case <-time.After(leavePoll):
				continue
			}
		}
		return failed{fmt.Errorf("pool: the board stops with what others have here; what these learnt here, since the last copy if there is one, is lost: %s", strings.Join(what, "; "))}
	}
}

// close takes the board out of its pool. Workers may have stopped before.
func (j *joined) close() error {
	if j == nil {
		return nil
	}
	j.cancel()
	<-j.done
	return j.pool.Close()
}

// start joins the board of an instance to its pool; without --pool it returns nil.
func (f *poolFlags) start(inst *graph.Instance, spec *graph.Spec, clk clock.Clock, log *slog.Logger) (*joined, error) {
	if f.listen == "" {
		return nil, nil
	}
	app, dev, err := f.board(spec)
	if err != nil {
		return nil, err
	}
	kind := spec.Apps[app].Kind
	key, err := f.key()
	if err != nil {
		return nil, err
	}
	// An app without an address of its own gets one that is unique in the pool.
	mac := [6]byte{2, 'p', 'o', 'o', 'l', byte(f.number)}
	if kind == attachKind {
		mac[5] = attach.Number
	}
	if i, err := net.InterfaceByName(dev); err == nil && len(i.HardwareAddr) == len(mac) {
		mac = [6]byte(i.HardwareAddr)
	}
	join, node := f.member(kind, mac)
	soon := make(chan struct{}, 1) // a page has arrived
	p, err := gossip.Start(gossip.Config{
		Page: func(_ *pool.Node, now clock.Time, message []byte) {
			join.Page(now, message)
			select {
			case soon <- struct{}{}:
			default:
			}
		},
		Node:   node,
		Listen: f.listen, Join: f.join, Secret: key, Clock: clk,
		Twin: func(addr string, there, first bool) {
			what := fmt.Sprintf("there is another board %d, at %s, which was started later: it takes no part until it has a number of its own (--pool-board) or this one is gone", node.Board, addr)
			switch {
			case !there:
				what = fmt.Sprintf("the other board %d, at %s, is gone", node.Board, addr)
			case !first:
				what = fmt.Sprintf("there is another board %d, at %s, which was started first: this one takes no part until it has a number of its own (--pool-board) or the other one is gone", node.Board, addr)
			}
			log.Warn("pool: "+what, "part", "pool")
		},
		Alone: func(err error) {
			if err != nil {
				log.Warn(fmt.Sprintf("pool: %v; the board is alone until one does", err), "part", "pool")
			} else {
				log.Info("pool: a board of --join answers", "part", "pool")
			}
		},
		On: func(n *pool.Node, now clock.Time, e pool.Event) {
			join.On(n, now, e)
			switch e.Kind {
			case pool.PeerUp, pool.PeerLost:
				log.Info(fmt.Sprintf("pool: board %d: %v", e.Peer, e.Kind), "part", "pool", "board", e.Peer)
			}
		},
	})
	if err != nil {
		return nil, fmt.Errorf("--pool: %w", err)
	}
	p.Do(func(*pool.Node, clock.Time) { join.CarryPages(p.Pages()) })
	ctx, cancel := context.WithCancel(context.Background())
	j := &joined{pool: p, join: join, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(j.done)
		f.exchange(ctx, soon, join, p, inst, app, log)
	}()
	return j, nil
}

// exchange passes news between the board and its pool until ctx ends.
func (f *poolFlags) exchange(ctx context.Context, soon <-chan struct{}, join member, p *gossip.Pool, inst *graph.Instance, app string, log *slog.Logger) {
	var last string
	do, visit := p.Do, func(v func(graph.App)) error {
		err := inst.Visit(app, 0, v)
		for w := 1; err == nil && inst.Visit(app, w, v) == nil; w++ {
		}
		return err
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		wait := poolIdle
		open, err := join.Exchange(do, visit)
		if open {
			wait = poolSoon
		}
		if err != nil && err.Error() != last {
			last = err.Error()
			log.Warn(fmt.Sprintf("pool: %v", oneLine(err)), "part", "pool")
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return
		case <-soon:
		case <-timer.C:
		}
	}
}
