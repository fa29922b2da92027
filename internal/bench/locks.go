package bench

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/quillon/quillon/internal/rack/history"
	"github.com/quillon/quillon/internal/rack/host"
	"github.com/quillon/quillon/internal/rack/locks"
	"github.com/quillon/quillon/internal/registry"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/port/mem"
	"github.com/quillon/quillon/rack/rnic"
)

// The recorded load of locks: so many machines with so many queue pairs each
// count on so many words, by READ and compare-and-swap until it succeeds.
const (
	lockMachines = 3
	lockSessions = 16
	lockWords    = 256
)

func swordboxBenchmark() Benchmark {
	return recorded("swordbox", "swordbox (shared connection, acknowledgements for each client, atomics as WRITEs) on a recorded load of counters in memory", recordLocks, lockBatches,
		"swordbox", swordboxArgs())
}

func swordboxArgs() graph.Args {
	return graph.Args{"replace": "learnt", "settle": "1us", "pair": "1us", "writable": "assume", "rdatomic": "64", "conns": "64", "window": "128"}
}

// recordLocks runs the load of network 10.77.net.0 through swordbox in virtual
// time and keeps what the box received.
func recordLocks(net byte) (*mix, error) {
	clk := clock.NewManual(1)
	const depth = 4096
	pool, err := packet.NewPool(2*depth*(lockMachines+2), 2048, nil)
	if err != nil {
		return nil, err
	}
	nic := func(n byte, qpn uint32) (*rnic.NIC, error) {
		return rnic.New(rnic.Config{MAC: [6]byte{2, 0x77, 0, 0, net, n}, IP: netip.AddrFrom4([4]byte{10, 77, net, n}), LinkMTU: 1500, Pool: pool, FirstQPN: qpn, Seed: uint64(n)})
	}
	m0, m1 := mem.NewWire("m0", "m1", pool, depth, clk)
	n0, n1 := mem.NewWire("n0", "n1", pool, depth, clk)
	server, err := nic(101, 0x1000)
	if err != nil {
		return nil, err
	}
	pd, scq := server.AllocPD(), server.CreateCQ(16)
	layout := locks.Layout{Words: lockWords, Block: 64, Sessions: lockMachines * lockSessions}
	memory, err := locks.NewMemory(layout)
	if err != nil {
		return nil, err
	}
	grant, err := memory.Serve(pd)
	if err != nil {
		return nil, err
	}
	var words history.Log[history.Word, uint64]
	var held history.Log[history.Lock, struct{}]
	conn := rnic.DefaultConn()
	conn.PathMTU, conn.MaxRdAtomic, conn.MaxDestRdAtomic = 1024, 16, 64
	bridged := []port.Port{m0}
	workers := []host.Worker{host.NewNode(n1, server, nil)}
	var clients []*locks.Client
	for i := range lockMachines {
		in, out := mem.NewWire(fmt.Sprint("c", i), fmt.Sprint("c", i, "-br"), pool, depth, clk)
		bridged = append(bridged, out)
		client, err := nic(byte(11+i), 0x100)
		if err != nil {
			return nil, err
		}
		cpd, cq := client.AllocPD(), client.CreateCQ(1024)
		app, err := locks.New(locks.Config{
			Layout: layout, Work: locks.CASCount, First: i * lockSessions, Own: lockSessions, Ops: 1 << 20, Seed: uint64(i), CQ: cq,
			WordLog: &words, LockLog: &held,
			Dial: func(_ clock.Time, _ int) (*rnic.QP, locks.Grant, error) {
				qp, err := connect(client, cpd, cq, server, pd, scq, conn)
				return qp, grant, err
			},
		})
		if err != nil {
			return nil, err
		}
		clients = append(clients, app)
		workers = append(workers, host.NewNode(in, client, app))
	}
	m := &mix{}
	inst, err := graph.New(graph.Config{
		Spec: Between("swordbox", swordboxArgs()), Kinds: registry.Kinds(),
		Ports: map[string][]port.Port{"pa": {&tape{m1, "pa", m, mixFrames, clk}}, "pb": {&tape{n0, "pb", m, mixFrames, clk}}},
	})
	if err != nil {
		return nil, err
	}
	defer inst.Close()
	sim := host.Sim{Clock: clk, Workers: append(workers, host.NewBridge(bridged...), stepper{inst})}
	if err := sim.Run(func() bool { return m.frames >= mixFrames }, time.Minute); err != nil {
		return nil, err
	}
	for _, c := range clients {
		if err := c.Err(); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// connect makes a queue pair on both sides and connects them.
func connect(c *rnic.NIC, cpd *rnic.PD, ccq *rnic.CQ, s *rnic.NIC, spd *rnic.PD, scq *rnic.CQ, k rnic.Conn) (*rnic.QP, error) {
	access := rnic.RemoteWrite | rnic.RemoteRead | rnic.RemoteAtomic
	a, err := c.CreateQP(rnic.QPInit{PD: cpd, SendCQ: ccq, RecvCQ: ccq, Access: access})
	if err != nil {
		return nil, err
	}
	b, err := s.CreateQP(rnic.QPInit{PD: spd, SendCQ: scq, RecvCQ: scq, Access: access, MaxSend: 1, MaxRecv: 1})
	if err != nil {
		return nil, err
	}
	up, down := c.RandomPSN(), s.RandomPSN()
	k.RemoteMAC, k.RemoteIP, k.DestQPN, k.SQPSN, k.RQPSN = s.Config().MAC, s.Config().IP, b.QPN, up, down
	if err := a.Connect(k); err != nil {
		return nil, err
	}
	k.RemoteMAC, k.RemoteIP, k.DestQPN, k.SQPSN, k.RQPSN = c.Config().MAC, c.Config().IP, a.QPN, down, up
	return a, b.Connect(k)
}
