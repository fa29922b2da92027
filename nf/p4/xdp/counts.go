package xdp

import (
	"fmt"
	"math/bits"
	"sync/atomic"

	"github.com/cilium/ebpf/asm"

	"github.com/quillon/quillon/nf/p4/internal/ir"
)

// Counts are memory of the program and the process: a row for each processor, which that processor alone writes. A row has 8 bytes for each outcome of a frame, and 16
// for each cell of a counter and for each number of an entry of a table that counts: packets and bytes. A map per processor of the kernel would need a call for each
// count, and a look at where the cell lies. The last row is the process's: what all processors had counted in a cell when the cell was last reset. A 0 that the process
// stores in a processor's row would be overwritten by a frame that has loaded the word and not yet stored it. If the rows of all processors are too long for the kernel,
// several processors have one, and count by atomic additions.

// countPlaces says where the counts lie in a row, in bytes. 0: the object has none.
type countPlaces struct {
	counters, direct []int // by counter, and by table
	row              int   // bytes
	rows             int   // beside the process's
	shared           bool  // there are fewer than processors; their number is a power of two
}

// maxCounts is the most memory of counts that the kernel lets a program address, in bytes.
const maxCounts = 1<<29 - 1<<16

// placeCounts lays the counts of a program out, in at most so many bytes.
func placeCounts(p *ir.Program, processors, most int, outlives bool, reasons int) (c countPlaces, err error) {
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
	c.rows = processors
	if fit := most/c.row - 1; fit < processors {
		c.rows, c.shared = 1<<(bits.Len(uint(max(1, fit)))-1), true
	}
	if c.size() > most {
		return c, fmt.Errorf("its counters take %d MiB, more than the kernel lets a program use", c.size()>>20)
	}
	return c, nil
}

// size is the length of all rows in bytes.
func (c *countPlaces) size() int { return c.row * (c.rows + 1) }

// tallies are the counts of an Executor.
type tallies struct {
	countPlaces
	mem    *shared
	others bool // they are those of another process's program, which goes on
}

// word is a pointer to a word of a row.
func (c *tallies) word(row, at int) *uint64 { return c.mem.word((row*c.row + at) / 8) }

// sum returns what all processors have counted in a cell of an object since its last reset; place 0 is that of none.
func (c *tallies) sum(place, cell int) (n ir.Count) {
	if place == 0 || c.others {
		return n
	}
	return ir.Count{Packets: c.since(place + 16*cell), Bytes: c.since(place + 16*cell + 8)}
}

func (c *tallies) since(at int) uint64 { return c.total(at) - atomic.LoadUint64(c.word(c.rows, at)) }

// total is the sum of a word of all processors.
func (c *tallies) total(at int) (n uint64) {
	for i := range c.rows {
		n += atomic.LoadUint64(c.word(i, at))
	}
	return n
}

// reset has a cell count from 0. A frame that is being counted at that time may count with its packet, its bytes, both or none.
func (c *tallies) reset(place, cell int) {
	if place == 0 || c.others {
		return
	}
	for _, at := range []int{place + 16*cell, place + 16*cell + 8} {
		atomic.StoreUint64(c.word(c.rows, at), c.total(at))
	}
}

// frames returns how many frames had an outcome.
func (c *tallies) frames(outcome int) uint64 { return c.total(8 * outcome) }

// rCounts is the processor's row, at the end of the program.
const rCounts = asm.R9

// marked says that the word at offset at of the state holds 1 + the index of a cell that is to be counted, or
// 0. place is that of the counter in a row.
type marked struct{ at, place, cells int }

// row leaves the processor's row in rCounts, or jumps to none. It changes R0 to R5.
func (g *gen) row(none string) {
	g.add(asm.FnGetSmpProcessorId.Call())
	if p := &g.maps.places; p.shared {
		g.calc(asm.And, asm.R0, p.rows-1)
	} else {
		g.whenImm(asm.JGE, asm.R0, p.rows, none)
	}
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
		g.get(asm.R3, atArrived)
		g.plusReg(at+8, asm.R3)
		g.label(none)
	}
}

// plus adds n to the word at an offset of R1. It changes R2.
func (g *gen) plus(at, n int) {
	if g.maps.places.shared {
		g.calc(asm.Mov, asm.R2, n)
		g.atomically(at, asm.R2)
		return
	}
	g.load(asm.R2, asm.R1, at, asm.DWord)
	g.calc(asm.Add, asm.R2, n)
	g.keep(asm.R1, at, asm.R2, asm.DWord)
}

// plusReg adds r to the word at an offset of R1. It changes R2.
func (g *gen) plusReg(at int, r asm.Register) {
	if g.maps.places.shared {
		g.atomically(at, r)
		return
	}
	g.load(asm.R2, asm.R1, at, asm.DWord)
	g.with(asm.Add, asm.R2, r)
	g.keep(asm.R1, at, asm.R2, asm.DWord)
}

func (g *gen) atomically(at int, r asm.Register) {
	add := atomicOf(asm.AddAtomic, asm.R1, r)
	add.Offset = int16(at)
	g.add(add)
}

// countOutcome adds n to the count of the frame's outcome. rCounts is the processor's row.
func (g *gen) countOutcome(n int, none string) {
	g.get(asm.R1, atOutcome)
	g.whenImm(asm.JGE, asm.R1, firstReason+len(g.reasons), none)
	g.calc(asm.LSh, asm.R1, 3)
	g.with(asm.Add, asm.R1, rCounts)
	g.plus(0, n)
}
