package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/netip"
	"time"

	"github.com/spf13/cobra"

	"github.com/quillon/quillon/internal/rack/store"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/rack/rnic"
)

// memoryFlags are the flags of rack STORE memory.
type memoryFlags struct {
	portEnd
	memorySpec
	kind    *store.Kind
	seconds float64
}

// rackMemory is the result of a memory node's run.
type rackMemory struct {
	Store   string  `json:"store"`
	Address string  `json:"address"`
	Port    string  `json:"port"`
	Seconds float64 `json:"seconds"`
	store.ServerStats
	Requests uint64 `json:"requests"`    // one-sided verbs, repetitions included
	Lost     uint64 `json:"frames_lost"` // because there was no room
	Keys     int    `json:"keys"`        // keys held at the end; for locks the number of words
	Checked  bool   `json:"checked"`     // no client was connected at the end, so the memory could be checked
	Wrong    string `json:"wrong,omitempty"`
}

func newRackMemoryCmd(k *store.Kind) *cobra.Command {
	f := memoryFlags{kind: k}
	cmd := &cobra.Command{
		Use:   "memory",
		Short: "Be a memory node of " + k.Name + " on a port",
		Long: `Has memory that clients (quillon rack ` + k.Name + ` client) read and write over the network by
RDMA (RoCEv2, UDP port 4791): a network card carries out what they ask for, and no
program of the server's takes part. The card is a piece of this process, so that any
interface will do. It runs on a port until interrupted. When clients connect (by RDMA's
connection manager) they are told where the memory is, which keys open it (R_Keys), and
what it is like; what they cannot use they are refused, with the reason. Whoever can
send frames to the port can read and change the memory.

The interface is the memory node's alone: its kernel sees nothing of an AF_XDP port,
and must not have the address. It answers ARP and ping; clients are told IP@MAC, which is
printed. What the memory holds is checked at the end; what is not sound makes the exit
status 1. What clients wrote stays until then; nothing outlives the process. Clients
that are still there then are told that it ends.

There is room for --clients. One of which nothing was heard for 30 s is disconnected,
and its place is given to the next that comes when there is no other; what it wrote
stays. (A client with nothing to do says something every 5 s.)`,
		Example: fmt.Sprintf("  sudo quillon rack %s memory --port eth1 --me 10.0.0.9\n  sudo quillon rack %[1]s memory --port tap:m0 --me 10.0.0.9 --seconds 60 --json", k.Name),
		Args:    exactly(),
		RunE:    func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	f.portEnd.add(cmd)
	f.memorySpec.add(cmd, k)
	cmd.Flags().Float64Var(&f.seconds, "seconds", 0, "end after so many; 0: when interrupted")
	return cmd
}

// soft makes a NIC on the port. Its queue pair numbers differ from those of an earlier process, whose frames
// may still be under way.
func (e *portEnd) soft(clk clock.Clock) (*rnic.NIC, error) {
	return rnic.New(rnic.Config{MAC: e.end.MAC, IP: netip.AddrFrom4(e.end.IP), Profile: rnic.ConnectX, LinkMTU: e.mtu(), Pool: e.pool(), Seed: uint64(clk.Now()),
		FirstQPN: uint32(0x100 + uint64(clk.Now())/1000%0xFFFF*0x80)})
}

func (f *memoryFlags) run(cmd *cobra.Command) (err error) {
	if err := f.check(f.kind); err != nil {
		return err
	}
	if !(f.seconds >= 0 && f.seconds <= 1e6) {
		return fmt.Errorf("--seconds %v: want 0 (no limit) or more", f.seconds)
	}
	clk := clock.NewWall()
	if err := f.begin(clk); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.opened.Close()) }()
	nic, err := f.soft(clk)
	if err != nil {
		return fmt.Errorf("--port %s: %w", f.port, err)
	}
	ctx, done := interrupted(cmd.Context())
	defer done()
	st, err := f.made(ctx)
	if err != nil {
		return err
	}
	s, err := store.Serve(f.kind, f.Spec, st, nic, uint64(clk.Now()))
	if err != nil {
		return err
	}
	r := rackMemory{Store: f.kind.Name, Address: endText(f.end), Port: f.port}
	fmt.Fprintf(cmd.ErrOrStderr(), "%s has the memory of %s on %s; clients take --server %s\n", r.Address, r.Store, r.Port, r.Address)
	took, err := f.serve(ctx, cmd, clk, nic, s, f.seconds, func() uint64 { return nic.Stats().RxRequests }, func(n uint64, perSecond float64) string {
		st := s.Stats()
		return fmt.Sprintf("%d requests, %.0f a second, %d connections of %d clients", n, perSecond, st.Connections, st.Clients)
	}, nil)
	if err != nil {
		return err
	}
	r.Seconds, r.ServerStats, r.Requests, r.Lost = round3(took), s.Stats(), nic.Stats().RxRequests, f.lost()
	f.farewell(cmd.Context(), clk, nic, s)
	if r.Checked = r.Connections == 0; r.Checked {
		held, err := s.Store().Walk(true)
		if r.Keys = len(held); err != nil {
			r.Wrong = err.Error()
		}
	}
	if err := show(cmd, r, r.text); err != nil {
		return err
	}
	if r.Wrong != "" {
		return failed{errors.New(r.Wrong)}
	}
	return nil
}

// farewell tells clients that the memory node ends, and waits until they have answered, two seconds at most.
func (f *memoryFlags) farewell(ctx context.Context, clk clock.Clock, nic *rnic.NIC, s *store.Server) {
	s.End(clk.Now())
	ctx, done := context.WithTimeoutCause(context.WithoutCancel(ctx), 2*time.Second, errEnough)
	defer done()
	_ = f.portEnd.run(ctx, clk, nic, s, func(clock.Time) error {
		if s.Ended() {
			return errEnough
		}
		return nil
	}) // an error means that the port is gone
}

// made makes the memory. With many keys that takes long, so ctx can end the wait.
func (f *memoryFlags) made(ctx context.Context) (store.Store, error) {
	type result struct {
		store.Store
		error
	}
	done := make(chan result, 1)
	go func() {
		s, err := f.kind.New(f.Spec)
		done <- result{s, err}
	}()
	select {
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case r := <-done:
		return r.Store, r.error
	}
}

func round3(s float64) float64 { return math.Round(s*1000) / 1000 }

func (r *rackMemory) text(w io.Writer) {
	fmt.Fprintf(w, "%d clients, %d connections accepted, %d refused, %d requests in %.1f s; %d frames lost\n", r.Clients, r.Accepted, r.Refused, r.Requests, r.Seconds, r.Lost)
	if r.Refused > 0 {
		fmt.Fprintf(w, "refused last: %s\n", r.Refusal)
	}
	switch {
	case !r.Checked:
		fmt.Fprintf(w, "not checked: %d connections are still there\n", r.Connections)
	case r.Wrong != "":
		fmt.Fprintf(w, "integrity: FAILED: %s\n", r.Wrong)
	default:
		fmt.Fprintf(w, "integrity: OK: %d keys or words walked\n", r.Keys)
	}
}
