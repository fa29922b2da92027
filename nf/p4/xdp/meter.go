package xdp

import (
	"fmt"
	"runtime"

	"github.com/cilium/ebpf/asm"

	"github.com/quillon/quillon/nf/p4/internal/ir"
)

// The cells of meters are in memory that the program and the Switch share (ir.Meter). The program has a cell only while it computes
// a color, which takes some tens of nanoseconds. If a frame goes to the engine afterwards, the program adds the tokens that the
// frame took to BucketBack, because the engine takes them again. The time is that of the Switch, in whole microseconds.

// rCell is a meter's cell. Nothing else uses the register where colors are computed.
const rCell = asm.R9

// metered is a place where a frame gets a color. The state keeps the number of the cell there, and 1 + the color; wasHeld means
// that another frame had the cell. cells is the number of cells in the map.
type metered struct {
	of          *ir.Meters
	fd, cells   int
	cell, color int
}

const wasHeld = 1 << 8

// meterSize returns the length of the memory for n cells in bytes, or 0 if it is too long.
func meterSize(m *ir.Meters, n int) int {
	if size := 8 * ir.MeterWords(m.Rates) * n; size <= 8*ir.MaxGroup {
		return size
	}
	return 0
}

// bucketWord is the offset of a word of a bucket in its cell, in bytes.
func bucketWord(bucket, word int) int { return 8 * (ir.MeterBuckets + ir.BucketWords*bucket + word) }

// meter translates execute_meter. If the index is too large, the destination keeps its value.
func (g *operator) meter(op *ir.Call) {
	i := op.Args[0].Object
	m := &g.p.Meters[i]
	switch {
	case meterSize(m, m.Size) == 0:
		unsupported("meter %s has %d cells", m.Name, m.Size)
	case g.in == "":
		unsupported("it uses a meter in the parser")
	}
	skip, off, done := g.fresh(), g.fresh(), g.fresh()
	g.value(index(op.Args[1].Expr), 0)
	g.add(asm.JGE.Imm(asm.R1, int32(m.Size), skip))
	g.color(g.maps.meters[i], m, m.Size, off)
	g.jump(done)
	g.label(off)
	g.calc(asm.Mov, asm.R1, 0)
	g.label(done)
	g.store(op.Args[2].Expr)
	g.label(skip)
}

// entryMeter has the direct meter of rEntry give the frame a color. Its cell is that of the entry's row in the Switch.
func (g *pipes) entryMeter(n int, t *ir.Table) {
	if t.Meter < 0 {
		return
	}
	skip, off, done := g.fresh(), g.fresh(), g.fresh()
	g.load(asm.R1, rEntry, entryRank, asm.DWord)
	g.and(asm.R1, ones(32))
	g.whenImm(asm.JGE, asm.R1, t.Size, skip)
	g.ofTable(n, t, off)
	g.jump(done)
	g.label(off)
	g.calc(asm.Mov, asm.R1, 0)
	g.label(done)
	g.target(t)
	g.label(skip)
}

// missMeter has the direct meter of the default entry give the frame a color, if it has rates.
func (g *pipes) missMeter(n int, t *ir.Table) {
	if t.Meter < 0 {
		return
	}
	off := g.fresh()
	g.calc(asm.Mov, asm.R1, t.Size)
	g.ofTable(n, t, off)
	g.target(t)
	g.label(off)
}

// ofTable leaves the color by cell R1 of a table's direct meter in R1.
func (g *pipes) ofTable(n int, t *ir.Table, off string) {
	m := &g.p.Meters[t.Meter]
	if meterSize(m, t.Size+1) == 0 {
		unsupported("its entries have %d meters", t.Size)
	}
	g.color(g.maps.entryMeters[n], m, t.Size+1, off)
}

// target stores the color in R1 where a direct meter wants it.
func (g *pipes) target(t *ir.Table) {
	f := g.p.Meters[t.Meter].Target
	g.and(asm.R1, ones(f.Bits))
	g.writeField(f, 0, asm.R1)
}

// color leaves the color by cell R1, which is below cells, in R1. It jumps to off if the cell has no rates.
func (g *operator) color(fd int, m *ir.Meters, cells int, off string) {
	p := metered{of: m, fd: fd, cells: cells}
	copies := g.in == "copies"
	if !copies { // what a copy stores makes it another one than the others
		p.cell, p.color = g.mark(), g.mark()
		g.put(p.cell, asm.R1)
	}
	g.meterCell(&p)
	g.load(asm.R1, rCell, 8*ir.MeterOn, asm.DWord)
	g.whenImm(asm.JEq, asm.R1, 0, off)
	if copies {
		g.pass(fmt.Sprintf("meter %s has rates, and each copy of the frame comes to it", m.Name))
		return
	}
	g.metered = append(g.metered, p)
	g.time()

	again, got, on, out := g.fresh(), g.fresh(), g.fresh(), g.fresh()
	g.calc(asm.Mov, asm.R4, tries)
	g.label(again)
	g.calc(asm.Mov, asm.R0, 0)
	g.calc(asm.Mov, asm.R1, 1)
	g.add(atomicOf(asm.CmpXchg, rCell, asm.R1))
	g.whenImm(asm.JEq, asm.R0, 0, got)
	g.calc(asm.Sub, asm.R4, 1)
	g.whenImm(asm.JNE, asm.R4, 0, again)
	g.set(p.color, wasHeld)
	was := g.where
	g.where = Reason{} // of any action
	g.pass("another frame has a meter's cell for long")
	g.where = was

	g.label(got)
	g.load(asm.R1, rCell, 8*ir.MeterOn, asm.DWord)
	g.whenImm(asm.JNE, asm.R1, 0, on)
	g.freeCell()
	g.jump(off)
	g.label(on)
	g.since()
	for i := range m.Rates {
		g.fill(i)
	}
	g.tokens(asm.R2, m)
	for i := m.Rates - 1; i >= 0; i-- {
		g.calc(asm.Mov, asm.R3, i+1)
		g.load(asm.R1, rCell, bucketWord(i, ir.BucketTokens), asm.DWord)
		g.compareRegs(asm.JLT, asm.R1, asm.R2, out)
		g.with(asm.Sub, asm.R1, asm.R2)
		g.keep(rCell, bucketWord(i, ir.BucketTokens), asm.R1, asm.DWord)
	}
	g.calc(asm.Mov, asm.R3, 0)
	g.label(out)
	g.freeCell()
	g.with(asm.Mov, asm.R1, asm.R3)
	g.calc(asm.Add, asm.R3, 1)
	g.put(p.color, asm.R3)
}

// meterCell leaves the address of cell R1 in rCell.
func (g *emitter) meterCell(p *metered) {
	g.calc(asm.Mul, asm.R1, 8*ir.MeterWords(p.of.Rates))
	g.address(rCell, p.fd)
	g.with(asm.Add, rCell, asm.R1)
}

// freeCell gives the cell back.
func (g *operator) freeCell() {
	g.calc(asm.Mov, asm.R0, 0)
	if runtime.GOARCH == "amd64" { // stores are seen in their order
		g.keep(rCell, 0, asm.R0, asm.DWord)
	} else {
		g.add(atomicOf(asm.Xchg, rCell, asm.R0))
	}
}

// tokens leaves what a frame needs in r.
func (g *operator) tokens(r asm.Register, m *ir.Meters) {
	if m.Bytes {
		g.get(r, atArrived)
	} else {
		g.calc(asm.Mov, r, 1)
	}
}

// since leaves the time to which the buckets are to be filled: whole seconds in R4 and the microseconds beyond them in R2.
func (g *operator) since() {
	none := g.fresh()
	g.get(asm.R2, atTime)
	g.load(asm.R3, rCell, 8*ir.MeterLast, asm.DWord)
	g.calc(asm.Mov, asm.R1, 0)
	g.compareRegs(asm.JLE, asm.R2, asm.R3, none)
	g.keep(rCell, 8*ir.MeterLast, asm.R2, asm.DWord)
	g.with(asm.Mov, asm.R1, asm.R2)
	g.with(asm.Sub, asm.R1, asm.R3)
	g.label(none)
	g.with(asm.Mov, asm.R4, asm.R1)
	g.calc(asm.Div, asm.R4, ir.Million)
	g.with(asm.Mov, asm.R3, asm.R4)
	g.calc(asm.Mul, asm.R3, ir.Million)
	g.with(asm.Mov, asm.R2, asm.R1)
	g.with(asm.Sub, asm.R2, asm.R3)
}

// fill adds the tokens of R4 seconds and R2 microseconds, which are less than a second, to a bucket. It does what ir.Meter does, in
// 64 bits: of a rate below 2^64 less than 2^64 tokens come in less than a second, and in whole seconds at most a burst, or the
// bucket is full. Tokens that are given back count first, so that a full bucket has none to come. It changes R0, R1, R3 and R5.
func (g *operator) fill(bucket int) {
	at := func(word int) int { return bucketWord(bucket, word) }
	come, full, store := g.fresh(), g.fresh(), g.fresh()
	g.load(asm.R0, rCell, at(ir.BucketMicro), asm.DWord)
	g.with(asm.Mul, asm.R0, asm.R2)
	g.load(asm.R1, rCell, at(ir.BucketPart), asm.DWord)
	g.with(asm.Mul, asm.R1, asm.R2)
	g.load(asm.R3, rCell, at(ir.BucketRest), asm.DWord)
	g.with(asm.Add, asm.R1, asm.R3)
	g.with(asm.Mov, asm.R3, asm.R1)
	g.calc(asm.Div, asm.R3, ir.Million)
	g.with(asm.Add, asm.R0, asm.R3)
	g.calc(asm.Mul, asm.R3, ir.Million)
	g.with(asm.Sub, asm.R1, asm.R3)
	g.keep(rCell, at(ir.BucketRest), asm.R1, asm.DWord)

	none := g.fresh()
	g.load(asm.R1, rCell, at(ir.BucketBack), asm.DWord)
	g.whenImm(asm.JEq, asm.R1, 0, none)
	g.calc(asm.Mov, asm.R1, 0)
	xchg := atomicOf(asm.Xchg, rCell, asm.R1)
	xchg.Offset = int16(at(ir.BucketBack))
	g.add(xchg)
	g.with(asm.Add, asm.R0, asm.R1)
	g.compareRegs(asm.JLT, asm.R0, asm.R1, full)
	g.label(none)

	g.whenImm(asm.JEq, asm.R4, 0, come)
	g.load(asm.R3, rCell, at(ir.BucketMicro), asm.DWord)
	g.calc(asm.Mul, asm.R3, ir.Million)
	g.load(asm.R1, rCell, at(ir.BucketPart), asm.DWord)
	g.with(asm.Add, asm.R3, asm.R1)
	g.whenImm(asm.JEq, asm.R3, 0, come)
	g.load(asm.R1, rCell, at(ir.BucketBurst), asm.DWord)
	g.with(asm.Div, asm.R1, asm.R3)
	g.compareRegs(asm.JGT, asm.R4, asm.R1, full)
	g.with(asm.Mul, asm.R3, asm.R4)
	g.with(asm.Add, asm.R0, asm.R3)
	g.compareRegs(asm.JLT, asm.R0, asm.R3, full)

	g.label(come)
	g.load(asm.R3, rCell, at(ir.BucketBurst), asm.DWord)
	g.load(asm.R5, rCell, at(ir.BucketTokens), asm.DWord)
	g.with(asm.Mov, asm.R1, asm.R3)
	g.with(asm.Sub, asm.R1, asm.R5)
	g.compareRegs(asm.JGE, asm.R0, asm.R1, full)
	g.with(asm.Add, asm.R5, asm.R0)
	g.jump(store)
	g.label(full)
	g.load(asm.R5, rCell, at(ir.BucketBurst), asm.DWord)
	g.label(store)
	g.keep(rCell, at(ir.BucketTokens), asm.R5, asm.DWord)
}

// refund gives tokens back that a frame took which goes to the engine.
func (g *gen) refund() {
	for i := range g.metered {
		p := &g.metered[i]
		skip := g.fresh()
		g.get(asm.R4, p.color)
		g.whenImm(asm.JEq, asm.R4, 0, skip)
		g.get(asm.R1, p.cell)
		g.whenImm(asm.JGE, asm.R1, p.cells, skip)
		g.meterCell(p)
		g.parse.tokens(asm.R2, p.of)
		for b := range p.of.Rates { // color c took from bucket c and those of higher rates
			kept := g.fresh()
			g.whenImm(asm.JGT, asm.R4, b+1, kept)
			back := atomicOf(asm.AddAtomic, rCell, asm.R2)
			back.Offset = int16(bucketWord(b, ir.BucketBack))
			g.add(back)
			g.label(kept)
		}
		g.label(skip)
	}
}

// freeOwner takes cells from a process that has died, where it had those that the frame was to have.
func (g *gen) freeOwner() {
	for i := range g.metered {
		p := &g.metered[i]
		skip := g.fresh()
		g.get(asm.R4, p.color)
		g.whenImm(asm.JNE, asm.R4, wasHeld, skip)
		g.get(asm.R1, p.cell)
		g.whenImm(asm.JGE, asm.R1, p.cells, skip)
		g.meterCell(p)
		g.calc(asm.Mov, asm.R0, int(g.opt.Owner))
		g.calc(asm.Mov, asm.R1, 0)
		g.add(atomicOf(asm.CmpXchg, rCell, asm.R1))
		g.label(skip)
	}
}

// meterCells are the meters of an Executor.
type meterCells struct{ x *Executor }

// Meters implements ir.Follower.
func (c *meterCells) Meters(meter int) []uint64 { return memoryOf(c.x.meters[meter]) }

// EntryMeters implements ir.Follower.
func (c *meterCells) EntryMeters(table int) []uint64 { return memoryOf(c.x.tables[table].meters) }

func memoryOf(s *shared) []uint64 {
	if s == nil {
		return nil
	}
	return s.words()
}

// Owner implements ir.Follower.
func (c *meterCells) Owner() uint64 { return uint64(c.x.owner) }

// Metered implements ir.Follower.
func (c *meterCells) Metered() { c.x.changes++ }
