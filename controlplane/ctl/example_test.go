package ctl_test

import (
	"context"
	"fmt"
	"log"
	"time"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"

	"github.com/quillon/quillon/controlplane/ctl"
	"github.com/quillon/quillon/controlplane/p4info"
	"github.com/quillon/quillon/nf/clock"
)

// One device is brought to an intent, once.
func Example() {
	in, err := ctl.ReadIntent("switches.yaml")
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	d := in.Devices[0]
	s, err := ctl.Open(&ctl.Dialer{}, d.Target, ctl.Options{Clock: clock.NewWall()})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	if err := s.Ready(ctx); err != nil {
		log.Fatal(err)
	}
	diff, err := s.Compare(ctx, d, ctl.LeaveValues)
	if err != nil {
		log.Fatal(err)
	}
	for _, c := range diff.Changes {
		fmt.Println(c.Text(d.Info))
	}
	if o, err := s.Apply(ctx, diff, ctl.Limits{}); err != nil || o.Err() != nil {
		log.Fatal(err, o.Err())
	}
}

// mirror is an app that keeps one entry on a device: its table is not the intent's any more.
type mirror struct {
	info  *p4info.Info
	table *p4info.Table
}

func (m *mirror) Claim(d *ctl.Device) (err error) {
	m.info = d.Info
	if m.table, err = p4info.ByName(d.Info.Tables, "table", "mirror"); err != nil {
		return err
	}
	return d.Claim(m.table)
}

// Begin finds anything there: what another controller has left, too.
func (m *mirror) Begin(ctx context.Context, s *ctl.Session) error {
	have := map[string]*p4v1.Entity{}
	err := s.Entries(ctx, m.info, func(e *p4v1.Entity) error { have[p4info.Key(e)] = e; return nil }, m.table)
	if err != nil {
		return err
	}
	e, err := ctl.ParseEntity(m.info, p4v1.Update_INSERT, "{table: mirror, match: {port: 1}, action: copy_to, params: {session: 7}}")
	if err != nil {
		return err
	}
	return s.Replace(ctx, m.info, have, map[string]*p4v1.Entity{p4info.Key(e): e}, m.table)
}

func (m *mirror) Handle(context.Context, *ctl.Session, []*p4v1.StreamMessageResponse) error {
	return nil
}

func (m *mirror) Tick(context.Context, *ctl.Session) error { return nil }

// Devices are kept at an intent, and an app writes a table of theirs.
func ExampleController() {
	in, err := ctl.ReadIntent("bridges.yaml")
	if err != nil {
		log.Fatal(err)
	}
	c, err := ctl.NewController(&ctl.Dialer{}, in, ctl.ControllerOptions{
		Session: ctl.Options{Clock: clock.NewWall()},
		App:     func(*ctl.Device) ctl.App { return &mirror{} },
	})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	c.Run(context.Background())
}

func ExampleEntryText() {
	fmt.Println(ctl.EntryText("ipv4_lpm", [][2]string{{"hdr.ipv4.dst", "10.0.0.0/8"}}, 0, false, "set_next_hop", [][2]string{{"next_hop", "1"}}))
	// Output: {table: ipv4_lpm, match: {hdr.ipv4.dst: 10.0.0.0/8}, action: set_next_hop, params: {next_hop: 1}}
}
