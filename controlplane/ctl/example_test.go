package ctl_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/quillon/quillon/controlplane/ctl"
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

// Devices are kept at an intent, and bridges made of them that learn.
func ExampleController() {
	in, err := ctl.ReadIntent("bridges.yaml")
	if err != nil {
		log.Fatal(err)
	}
	c, err := ctl.NewController(&ctl.Dialer{}, in, ctl.ControllerOptions{
		Session: ctl.Options{Clock: clock.NewWall()},
		App:     func(*ctl.Device) ctl.App { return &ctl.Learner{Idle: 5 * time.Minute} },
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
