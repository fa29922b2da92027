package xdp

import (
	"fmt"
	"sync/atomic"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/quillon/quillon/nf/p4/internal/ir"
)

// Counts are memory of the program and the process: a row for each processor, which that processor alone writes. A row has 8 bytes for each outcome of a frame, and 16
// for each cell of a counter and for each number of an entry of a table that counts: packets and bytes. A map per processor of the kernel would need a call for each
// count, and a look at where the cell lies.

// countPlaces says where the counts lie in a row, in bytes. 0: the object has none.
type countPlaces struct {
	counters, direct []int // by counter, and by table
	row              int   // bytes
	processors       int
}

// maxCounts is the most memory of counts that the kernel lets a program address, in bytes.
const maxCounts = 1<<29 - 1<<16

// placeCounts lays the counts of a program out.
func placeCounts(p *ir.Program, outlives bool, reasons int) (c countPlaces, err error) {
	c.row = 16 * ((firstReason + reasons + 2) / 2)
	take := func(cells int, there bool) (at int) {
		if there {
			at = c.row
			c.row += 16 * cells
		}
		return at
	}
	for _, a := range p.Counters {
		c.counters = append(c.counters, take(a.Size, a.Size <= maxCounters))
	}
	for i := range p.Tables {
		t := &p.Tables[i]
		_, why := sortOf(t)
		c.direct = append(c.direct, take(numbersOf(t, outlives), t.Counters && why == ""))
	}
	c.row = (c.row + 127) / 128 * 128 // processors share no line of the cache, nor two that are fetched together
	if c.processors, err = ebpf.PossibleCPU(); err != nil {
		return c, fmt.Errorf("how many processors there may be: %w", err)
	}
	if c.row*c.processors > maxCounts {
		return c, fmt.Errorf("the counters of %d processors take %d MiB, more than the kernel lets a program use", c.processors, c.row*c.processors>>20)
	}
	return c, nil
}

// tallies are the counts of an Executor.
type tallies struct {
	countPlaces
	mem    *shared
	others bool // they are those of another process's program, which goes on
}

// word is a pointer to a word of a processor's row.
func (c *tallies) word(processor, at int) *uint64 { return c.mem.word((processor*c.row + at) / 8) }

// sum returns what all processors have counted in a cell of an object; place 0 is that of none.
func (c *tallies) sum(place, cell int) (n ir.Count) {
	if place == 0 || c.others {
		return n
	}
	for i := range c.processors {
		n.Packets += atomic.LoadUint64(c.word(i, place+16*cell))
		n.Bytes += atomic.LoadUint64(c.word(i, place+16*cell+8))
	}
	return n
}

// reset sets a cell to 0. Counts of frames that run at the same time may be lost.
func (c *tallies) reset(place, cell int) {
	if place == 0 || c.others {
		return
	}
	for i := range c.processors {
		atomic.StoreUint64(c.word(i, place+16*cell), 0)
		atomic.StoreUint64(c.word(i, place+16*cell+8), 0)
	}
}

// frames returns how many frames had an outcome.
func (c *tallies) frames(outcome int) (n uint64) {
	for i := range c.processors {
		n += atomic.LoadUint64(c.word(i, 8*outcome))
	}
	return n
}

// rCounts is the processor's row, at the end of the program.
const rCounts = asm.R9

// marked says that the word at offset at of the state holds 1 + the index of a cell that is to be counted, or
// 0. place is that of the counter in a row.
type marked struct{ at, place, cells int }

// row leaves the processor's row in rCounts, or jumps to none. It changes R0 to R5.
func (g *gen) row(none string) {
	g.add(asm.FnGetSmpProcessorId.Call())
	g.whenImm(asm.JGE, asm.R0, g.maps.places.processors, none)
	g.calc(asm.Mul, asm.R0, g.maps.places.row)
	g.address(rCounts, g.maps.counts)
	g.with(asm.Add, rCounts, asm.R0)
}

// countCells adds the frame to the cells that it has met.
func (g *gen) countCells() {
	for _, m := range g.marked {
		none := g.fresh()
		g.get(asm.R1, m.at)
		g.whenImm(asm.JEq, asm.R1, 0, none)
		g.whenImm(asm.JGT, asm.R1, m.cells, none)
		g.calc(asm.LSh, asm.R1, 4)
		g.with(asm.Add, asm.R1, rCounts)
		at := m.place - 16
		if at >= 1<<15-16 {
			g.calc(asm.Add, asm.R1, at)
			at = 0
		}
		g.plus(at, 1)
		g.load(asm.R2, asm.R1, at+8, asm.DWord)
		g.get(asm.R3, atArrived)
		g.with(asm.Add, asm.R2, asm.R3)
		g.keep(asm.R1, at+8, asm.R2, asm.DWord)
		g.label(none)
	}
}

// plus adds n to the word at an offset of R1. It need not be atomic, because each processor has counts of its own. It changes R2.
func (g *gen) plus(at, n int) {
	g.load(asm.R2, asm.R1, at, asm.DWord)
	g.calc(asm.Add, asm.R2, n)
	g.keep(asm.R1, at, asm.R2, asm.DWord)
}

// countOutcome adds n to the count of the frame's outcome. rCounts is the processor's row.
func (g *gen) countOutcome(n int, none string) {
	g.get(asm.R1, atOutcome)
	g.whenImm(asm.JGE, asm.R1, firstReason+len(g.reasons), none)
	g.calc(asm.LSh, asm.R1, 3)
	g.with(asm.Add, asm.R1, rCounts)
	g.plus(0, n)
}
