package main

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/quillon/quillon/controlplane/ctl"
	"github.com/quillon/quillon/examples/controller"
)

// appNews is a report of an app, as --json prints it.
type appNews struct {
	Device string `json:"device"`
	Text   string `json:"text"`
}

// reporter returns, for a device, a function that prints reports of apps about it. Several devices may report
// at the same time.
func reporter(cmd *cobra.Command) func(device string) func(string) {
	var mu sync.Mutex
	return func(device string) func(string) {
		return func(text string) {
			mu.Lock()
			defer mu.Unlock()
			// An error of printing (a closed pipe) does not end the command.
			_ = showLine(cmd, appNews{device, text}, device+"\t"+text)
		}
	}
}

func newCtlLearnCmd() *cobra.Command {
	var k keeper
	var idle time.Duration
	var most int
	cmd := &cobra.Command{
		Use:   "learn INTENT.yaml | --store URL",
		Short: "Make learning bridges of devices that run l2_bridge",
		Long: `Keeps devices at an intent, as run does, and makes bridges of them that learn: what
the digest learn_t tells (a source address, its VLAN and port) is written into the
tables smac and dmac. An address that moves is moved; one that was not seen for
--idle is forgotten. After a restart of this controller the tables are taken over;
after one of the device addresses are learnt anew.

The program is p4src's l2_bridge, or one with that digest and those tables. The
intent gives the rest: the group with all ports, VLANs. --store is as of run.`,
		Example: "  quillon ctl learn bridges.yaml\n  quillon ctl learn bridges.yaml --idle 30s --device s1",
		Args:    k.store.intent,
		RunE: func(cmd *cobra.Command, args []string) error {
			if idle != 0 {
				if err := some("idle", idle); err != nil {
					return err
				}
			}
			report := reporter(cmd)
			k.opt.App = func(d *ctl.Device) ctl.App {
				return &controller.Learner{Idle: idle, Most: most, Report: report(d.Name)}
			}
			return k.keep(cmd, strings.Join(args, ""), nil)
		},
	}
	k.add(cmd)
	k.store.add(cmd)
	cmd.Flags().DurationVar(&idle, "idle", 5*time.Minute, "forget an address that was not seen this long; 0: never")
	cmd.Flags().IntVar(&most, "most", 0, "learn this many addresses at most (default: what the tables hold)")
	return cmd
}

func newCtlRouteCmd() *cobra.Command {
	var k keeper
	cmd := &cobra.Command{
		Use:   "route INTENT.yaml ROUTES.yaml",
		Short: "Make routers of devices that run ipv4_router",
		Long: `Keeps devices at an intent, as run does, and makes IPv4 routers of those that
ROUTES.yaml names:

  s1:
    interfaces:
      - {port: 1, mac: 02:00:00:00:01:01, address: 10.0.1.1/24}
      - {port: 2, mac: 02:00:00:00:01:02, address: 10.0.2.1/24}
    routes:
      - {prefix: 10.9.0.0/16, via: 10.0.2.2}
      - {prefix: 0.0.0.0/0, via: [10.0.1.254, 10.0.2.254]}
    neighbors:
      - {address: 10.0.2.2, mac: 02:00:00:00:02:02}

ARP requests and pings for the router's addresses are answered, neighbours found by
ARP and asked after every minute, the first frames to one kept until it is found.
Frames whose time to live is over are answered by ICMP. A route with several
neighbours sends a flow to one of them. SIGHUP reads both files again.

The program is p4src's ipv4_router, or one with its tables (router_mac, port_mac,
ipv4_lpm, ecmp, next_hop) and packet headers.`,
		Example: "  quillon ctl route routers.yaml routes.yaml",
		Args:    exactly("INTENT.yaml", "ROUTES.yaml"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var routes controller.Routes
			report := reporter(cmd)
			k.opt.App = func(d *ctl.Device) ctl.App { return &controller.Router{Config: routes[d.Name], Report: report(d.Name)} }
			return k.keep(cmd, args[0], func(in *ctl.Intent) error {
				next, err := controller.ReadRoutes(args[1])
				if err != nil {
					return err
				}
				for _, d := range in.Devices {
					if next[d.Name] == nil {
						return fmt.Errorf("%s does not name device %s of %s: choose devices with --device", args[1], d.Name, args[0])
					}
				}
				routes = next
				return nil
			})
		},
	}
	k.add(cmd)
	return cmd
}
