package rnic_test

import (
	"fmt"
	"net/netip"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port/mem"
	"github.com/quillon/quillon/rack/rnic"
)

// Two NICs on an in-memory wire: one writes into the other's memory.
func Example() {
	clk := clock.NewManual(0)
	pool, err := packet.NewPool(256, 2048, nil)
	if err != nil {
		panic(err)
	}
	portA, portB := mem.NewWire("a", "b", pool, 64, clk)
	a, err := rnic.New(rnic.Config{MAC: [6]byte{2, 0, 0, 0, 0, 1}, IP: netip.MustParseAddr("10.0.0.1"), Pool: pool})
	if err != nil {
		panic(err)
	}
	b, err := rnic.New(rnic.Config{MAC: [6]byte{2, 0, 0, 0, 0, 2}, IP: netip.MustParseAddr("10.0.0.2"), Pool: pool})
	if err != nil {
		panic(err)
	}

	memory := make([]byte, 64)
	pdB := b.AllocPD()
	mr, _ := pdB.RegMR(memory, 0x1000, rnic.LocalWrite|rnic.RemoteWrite)
	cqA, cqB := a.CreateCQ(16), b.CreateCQ(16)
	qpA, _ := a.CreateQP(rnic.QPInit{PD: a.AllocPD(), SendCQ: cqA, RecvCQ: cqA})
	qpB, _ := b.CreateQP(rnic.QPInit{PD: pdB, SendCQ: cqB, RecvCQ: cqB, Access: rnic.RemoteWrite})
	c := rnic.DefaultConn()
	c.RemoteMAC, c.RemoteIP, c.DestQPN = b.Config().MAC, b.Config().IP, qpB.QPN
	if err := qpA.Connect(c); err != nil {
		panic(err)
	}
	c.RemoteMAC, c.RemoteIP, c.DestQPN = a.Config().MAC, a.Config().IP, qpA.QPN
	if err := qpB.Connect(c); err != nil {
		panic(err)
	}

	err = qpA.PostSend(&rnic.SendWR{ID: 7, Op: rnic.OpWrite, SGL: [][]byte{[]byte("hello")}, RemoteAddr: 0x1000, RKey: mr.RKey, Signaled: true})
	if err != nil {
		panic(err)
	}
	var batch packet.Batch
	var done [1]rnic.WC
	for cqA.Poll(done[:]) == 0 {
		for _, end := range []struct {
			nic  *rnic.NIC
			port *mem.Port
		}{{a, portA}, {b, portB}} {
			_, _ = end.port.Rx(&batch)
			for _, x := range batch.Bufs() {
				end.nic.Input(clk.Now(), x)
			}
			batch.Reset()
			end.nic.Output(clk.Now(), &batch)
			_, _ = end.port.Tx(&batch)
		}
		clk.Advance(1000)
	}
	fmt.Printf("request %d: status %d, memory %q\n", done[0].ID, done[0].Status, memory[:5])
	// Output: request 7: status 0, memory "hello"
}
