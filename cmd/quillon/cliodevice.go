package main

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/quillon/quillon/internal/rack/clio"
	"github.com/quillon/quillon/internal/rack/host"
	"github.com/quillon/quillon/internal/rack/ycsb"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/gobackn/gbn"
	"github.com/quillon/quillon/snic/hop"
	"github.com/quillon/quillon/snic/hop/end"
)

// deviceFlags are the flags of clio device.
type deviceFlags struct {
	portEnd
	plain, hop  bool
	keys, value int
	fill        bool
	seconds     float64
	senders     int
}

// clioDevice is the result of a device's run.
type clioDevice struct {
	Address   string  `json:"address"`
	Port      string  `json:"port"`
	Seconds   float64 `json:"seconds"`
	Keys      int     `json:"keys"` // at the end
	Requests  uint64  `json:"requests"`
	Repeated  uint64  `json:"repeated"`      // writes that had been executed already
	Refused   uint64  `json:"refused"`       // requests that were answered, but not with OK
	NoRoom    uint64  `json:"no_room"`       // refused because of --sessions
	Strange   uint64  `json:"strange"`       // frames that are not meant for the store
	SentAgain uint64  `json:"retransmitted"` // by go-back-N and the last hop
	Lost      uint64  `json:"frames_lost"`   // frames for which there was no room
}

func newClioDeviceCmd() *cobra.Command {
	var f deviceFlags
	cmd := &cobra.Command{
		Use:   "device",
		Short: "Be a Clio memory device on a port",
		Long: `Answers Clio's key/value requests (UDP port 1234 over IPv4, a frame each) on a port
until interrupted. This is no RDMA: nothing is registered, and a key is all that a
client needs to know. A device brings Clio's go-back-N transport, or with --plain
leaves it to a board before it (quillon nf describe gobackn); with --hop the cable to
that board is made reliable (quillon nf describe hop).

The interface is the device's alone: its kernel sees nothing of an AF_XDP port, and
must not have the address. Nothing is asked by ARP: clients are told IP@MAC, which is
printed. --keys and --value say how much room there is; memory is taken as it is
filled, and what finds no room is refused.`,
		Example: "  sudo quillon clio device --port eth1 --me 10.0.0.9\n" +
			"  sudo quillon clio device --port tap:clio0 --me 10.0.0.9 --keys 1000 --fill --json\n" +
			"  sudo quillon clio device --port eth1 --me 10.0.0.9 --plain --hop",
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	cmd.Flags().SortFlags = false
	f.add(cmd)
	cmd.Flags().IntVar(&f.keys, "keys", 100_000, "keys that there is room for")
	cmd.Flags().IntVar(&f.value, "value", 1024, "bytes of their values")
	cmd.Flags().BoolVar(&f.fill, "fill", false, "begin with keys 1 to --keys, as a client's --load makes them")
	cmd.Flags().BoolVar(&f.plain, "plain", false, "without go-back-N: a board does that, or clients that are --plain, too")
	cmd.Flags().BoolVar(&f.hop, "hop", false, "with the last hop: there is one at the other end of the cable")
	cmd.Flags().IntVar(&f.senders, "sessions", 4096, "sessions of which it is remembered what they have written")
	cmd.Flags().Float64Var(&f.seconds, "seconds", 0, "end after so many; 0: when interrupted")
	return cmd
}

// check refuses wrong values of flags.
func (f *deviceFlags) check() error {
	switch {
	case f.keys < 1 || f.keys > 1<<24:
		return fmt.Errorf("--keys %d: want 1 to %d", f.keys, 1<<24)
	case f.value < clio.MinValue || f.value > clio.MaxValue:
		return fmt.Errorf("--value %d: want %d to %d, what a frame has room for", f.value, clio.MinValue, clio.MaxValue)
	case f.senders < 1 || f.senders > 1<<20:
		return fmt.Errorf("--sessions %d: want 1 to %d", f.senders, 1<<20)
	case !(f.seconds >= 0 && f.seconds <= 1e6):
		return fmt.Errorf("--seconds %v: want 0 (no limit) or more", f.seconds)
	}
	return nil
}

func (f *deviceFlags) run(cmd *cobra.Command) (err error) {
	if err := f.check(); err != nil {
		return err
	}
	clk := clock.NewWall()
	if err := f.begin(clk); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.opened.Close()) }()
	bits, memory := clio.RoomFor(f.keys, f.value)
	d, err := clio.NewDevice(clio.DeviceConfig{Me: f.end, Pool: f.pool(), Reliable: !f.plain, GBN: gbn.Config{Tries: 1000}, HashBits: bits, Memory: memory, Senders: f.senders})
	if err != nil {
		return err
	}
	defer d.Close()
	if f.fill {
		if err := clio.Fill(d, ycsb.Sequential(1, f.keys), f.value); err != nil {
			return err
		}
	}
	var ep host.Endpoint = d
	link := &end.End{}
	if f.hop {
		l, err := hop.New(hop.Config{Epoch: max(1, uint64(clk.Now())), MAC: f.end.MAC, Timeout: time.Millisecond})
		if err != nil {
			return err
		}
		if link, err = end.New(d, l, f.pool()); err != nil {
			return err
		}
		defer link.Close()
		ep = link
	}
	r := clioDevice{Address: endText(f.end), Port: f.port}
	fmt.Fprintf(cmd.ErrOrStderr(), "%s serves on %s; clients take --device %s\n", r.Address, r.Port, r.Address)
	ctx, done := interrupted(cmd.Context())
	defer done()
	took, err := f.serve(ctx, cmd, clk, ep, nil, f.seconds, func() uint64 { return d.Stats().Requests }, func(n uint64, perSecond float64) string {
		return fmt.Sprintf("%d requests, %.0f a second, %d keys", n, perSecond, d.Store().Keys())
	}, nil)
	if err != nil {
		return err
	}
	s := d.Stats()
	r.Seconds, r.Keys = took, d.Store().Keys()
	r.Requests, r.Repeated, r.Refused, r.NoRoom, r.Strange = s.Requests, s.Repeated, s.Refused, s.NoRoom, s.Bad
	r.SentAgain, r.Lost = d.GBN().Retransmitted, f.lost()
	if f.hop {
		r.SentAgain += link.Stats().Resent
		r.Lost += link.Dropped()
	}
	return show(cmd, r, func(w io.Writer) {
		fmt.Fprintf(w, "%d requests in %.1f s, %d refused (%d for want of room), %d repeated, %d keys; %d frames sent again, %d lost\n",
			r.Requests, r.Seconds, r.Refused, r.NoRoom, r.Repeated, r.Keys, r.SentAgain, r.Lost)
	})
}
