package clover_test

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/quillon/quillon/internal/rack/clover"
	"github.com/quillon/quillon/internal/rack/host"
	"github.com/quillon/quillon/internal/rack/ycsb"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/port/mem"
)

// A store of three machines in one process and in virtual time.
func Example() {
	clk := clock.NewManual(0)
	pool, err := packet.NewPool(4096, 2048, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	var bridge []port.Port
	machine := func(name string, n byte) clover.Machine {
		near, far := mem.NewWire(name, name+"-bridge", pool, 256, clk)
		bridge = append(bridge, far)
		return clover.Machine{Name: name, Port: near, MAC: [6]byte{2, 0, 0, 0, 0, n}, IP: netip.AddrFrom4([4]byte{10, 77, 0, n})}
	}
	rack := clover.Rack{
		Compute:  []clover.Machine{machine("compute", 1)},
		Memory:   []clover.Machine{machine("memory", 2)},
		Metadata: machine("metadata", 3),
	}
	store, err := clover.New(clover.Config{
		Keys: ycsb.Sequential(1, 16), Entries: 4096, Sessions: 4,
		Mix: ycsb.A, Theta: ycsb.DefaultTheta, Seed: 1,
	}, rack)
	if err != nil {
		fmt.Println(err)
		return
	}
	sim := host.Sim{Clock: clk, Workers: append(store.Workers(), host.NewBridge(bridge...))}
	store.Start(clover.Load{MaxOps: 100})
	if err := sim.Run(store.Stopped, time.Second); err != nil {
		fmt.Println(err)
		return
	}
	v := store.Integrity()
	fmt.Printf("%d operations, %d keys, lost %d, broken %d\n", store.Live().Ops, v.Keys, v.Lost, v.BrokenLinks)
	// Output: 400 operations, 16 keys, lost 0, broken 0
}
