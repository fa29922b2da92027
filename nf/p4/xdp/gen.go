package xdp

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/cilium/ebpf/asm"

	"github.com/quillon/quillon/nf/p4/internal/ir"
)

// Registers. R6 is the state of the frame, R7 the context. R8 and R9 are data and data_end in the parser and
// the deparser; in pipelines R8 is the entry that was hit. R1 to R5 hold values of expressions, and R0 holds
// values for one or two instructions.
const (
	rState = asm.R6
	rCtx   = asm.R7
	rData  = asm.R8
	rEnd   = asm.R9
	rEntry = asm.R8
)

var pool = [...]asm.Register{asm.R1, asm.R2, asm.R3, asm.R4, asm.R5}

// Offsets of the words of the state that every program has. The marks of counters, the metadata and the headers
// come after them.
const (
	atOutcome = 8 * iota // number of the outcome, for the tests
	atPort               // egress port
	atArrived            // length of the frame as it came in
	atParsed             // bytes in front of the payload
	atLength             // v1model's packet_length: changed by headers that are added and removed
	atError              // parser error
	atMissed             // by the last table that has a key
	atDefault            // the word of the table, before the frame looked for an entry
	atBad                // a checksum was wrong
	atOut                // bytes of the headers that leave
	atIn                 // the word of the interface that it came from
	atLongest            // that its port sends
	atTaken              // the frame has the registers
	atTime               // in µs
	atTimed              // the time is known
	atShift              // bytes of fields of variable length that were extracted
	atMoved              // headers leave at other places than those at which they came
	// Of a frame to a multicast group: the number of the group's list, the replica whose turn it is, how many copies leave, whether all do, and the last one's port.
	atList
	atReplica
	atCopies
	atApart
	atLast
	atMarks
)

// The stack: keys of look-ups at the bottom, values of deep expressions at the top.
const (
	stackSize  = 512
	spillWords = 16
	spillAt    = -8 * spillWords
	loopAt     = spillAt - 8 // counts copies
)

// cannot is the panic that ends the translation of a part. why says why the kernel cannot run the part.
type cannot struct{ why string }

func unsupported(format string, args ...any) { panic(cannot{fmt.Sprintf(format, args...)}) }

// usage is what a pass over the program has found to be used. The next pass lays out exactly this.
type usage struct {
	read    map[*ir.Field]bool
	written map[*ir.Field]bool
	valid   map[*ir.Header]bool // asked for
	raw     map[*ir.Header]bool // its bytes
	may     map[*ir.Header]bool // may be valid
	dirty   map[*ir.Header]bool // a field of it is written
	at      map[*ir.Header]int  // where the parser finds it
	several map[*ir.Header]bool // the parser finds it at other places, too
	moves   bool                // headers may leave at other places than those at which they came
	marks   int
	timed   map[Reason]bool // it reads the time; no kind: of any program
	// registers says that registers are used. writes counts the places where they are written, olds the words
	// that are kept for these places.
	registers    bool
	writes, olds int
	copied       int // words that are kept while copies are made
}

func newUsage() *usage {
	return &usage{read: map[*ir.Field]bool{}, written: map[*ir.Field]bool{}, valid: map[*ir.Header]bool{}, raw: map[*ir.Header]bool{}, may: map[*ir.Header]bool{},
		dirty: map[*ir.Header]bool{}, at: map[*ir.Header]int{}, several: map[*ir.Header]bool{}, timed: map[Reason]bool{}}
}

// more returns a usage that begins with all of u. What one pass has found to be used stays in use, because
// passes could otherwise alternate for ever.
func (u *usage) more() *usage {
	return &usage{read: maps.Clone(u.read), written: maps.Clone(u.written), valid: maps.Clone(u.valid), raw: maps.Clone(u.raw), may: maps.Clone(u.may),
		dirty: maps.Clone(u.dirty), at: maps.Clone(u.at), several: maps.Clone(u.several), timed: maps.Clone(u.timed), moves: u.moves}
}

// same reports whether two passes have found the same.
func (u *usage) same(o *usage) bool {
	return len(u.read) == len(o.read) && len(u.written) == len(o.written) && len(u.valid) == len(o.valid) && len(u.raw) == len(o.raw) &&
		len(u.may) == len(o.may) && len(u.dirty) == len(o.dirty) && len(u.at) == len(o.at) && len(u.several) == len(o.several) && len(u.timed) == len(o.timed) && u.moves == o.moves && u.marks == o.marks &&
		u.registers == o.registers && u.writes == o.writes && u.olds == o.olds && u.copied == o.copied
}

// layout holds the offsets of a frame's values in the state.
type layout struct {
	fields map[*ir.Field]int  // of metadata
	valid  map[*ir.Header]int // validities
	bytes  map[*ir.Header]int // headers as they are on the wire
	dirty  map[*ir.Header]int // words that say that a field was written
	place  map[*ir.Header]int // words that say where the parser found it
	extra  map[*ir.Header]int // words that say how many bytes the field of variable length has
	tail   map[*ir.Header]int // the bytes of that field, and zeros behind them
	zero   []int              // words that are 0 at first
	// For registers: the bits that say which places have written, and what is kept for them.
	written, olds int
	copied        int // words as they were in front of egress, and as they are behind it in the first copy
	size          int
}

func newLayout(p *ir.Program, u *usage) *layout {
	l := &layout{fields: map[*ir.Field]int{}, valid: map[*ir.Header]int{}, bytes: map[*ir.Header]int{}, dirty: map[*ir.Header]int{}, place: map[*ir.Header]int{}, extra: map[*ir.Header]int{}, tail: map[*ir.Header]int{}, size: atMarks}
	take := func(words int, zero bool) int {
		at := l.size
		for i := range words {
			if zero {
				l.zero = append(l.zero, at+8*i)
			}
		}
		l.size += 8 * words
		return at
	}
	take(u.marks, true)
	l.written = take((u.writes+63)/64, false)
	l.olds = take(u.olds, false)
	l.copied = take(2*u.copied, false)
	for _, h := range p.Headers {
		if h.Meta {
			for _, f := range h.Fields {
				if u.read[f] && !f.Varbit {
					l.fields[f] = take((f.Bits+63)/64, true)
				}
			}
			continue
		}
		if u.may[h] {
			l.valid[h] = take(1, true)
			if h.Varbit {
				l.extra[h] = take(1, true)
				if f := h.Fields[len(h.Fields)-1]; f.Varbit && u.read[f] {
					l.tail[h] = take((f.Bits+63)/64, true)
				}
			}
		}
		if u.raw[h] {
			l.bytes[h] = take((h.Bits+63)/64, true)
			take(1, false) // loads may go 8 bytes beyond
		}
		if u.dirty[h] {
			l.dirty[h] = take(1, true)
			if u.several[h] {
				l.place[h] = take(1, false)
			}
		}
	}
	return l
}

// emitter writes instructions. It holds everything that is known about a program during a pass.
type emitter struct {
	p    *ir.Program
	opt  *settings
	maps descriptors
	u    *usage // of the pass before
	next *usage // of this one
	lay  *layout

	writer
	spilled int

	args argument // of the action that is translated
	in   string   // pipeline: "ingress" or "egress"

	reasons []Reason
	number  map[Reason]int
	where   Reason // kind and name of what is translated
	parts   *parts

	marked  []marked
	writes  []written
	metered []metered
	borders []border
	states  []instance
	queued  map[instance]bool
	entered map[place]bool
	seen    map[int]int // by value set + 1, the word with the generation that the frame has seen
}

// argument says where the arguments of an action are: in the entry at rEntry, or in data as constants.
type argument struct {
	entry bool
	data  []uint64
}

// writer writes instructions.
type writer struct {
	code    asm.Instructions
	pending []string // labels of the next instruction
	labels  int
}

// The following add one instruction each. They are not inlined, because the code that makes an instruction is long.

// get loads a word of the state.
//
//go:noinline
func (g *writer) get(r asm.Register, at int) { g.add(asm.LoadMem(r, rState, int16(at), asm.DWord)) }

// put stores a word of the state.
//
//go:noinline
func (g *writer) put(at int, r asm.Register) { g.add(asm.StoreMem(rState, int16(at), r, asm.DWord)) }

// set stores a constant as a word of the state.
//
//go:noinline
func (g *writer) set(at int, v int64) { g.add(storeImm(rState, int16(at), v, asm.DWord)) }

// load and keep move so many bits between a register and a place.
//
//go:noinline
func (g *writer) load(r, base asm.Register, at int, size asm.Size) {
	g.add(asm.LoadMem(r, base, int16(at), size))
}

//go:noinline
func (g *writer) keep(base asm.Register, at int, r asm.Register, size asm.Size) {
	g.add(asm.StoreMem(base, int16(at), r, size))
}

// get32 loads 32 bits.
//
//go:noinline
func (g *writer) get32(r, base asm.Register, at int) {
	g.add(asm.LoadMem(r, base, int16(at), asm.Word))
}

// address loads the address of a map's memory.
//
//go:noinline
func (g *writer) address(r asm.Register, fd int) { g.add(asm.LoadMapValue(r, fd, 0)) }

//go:noinline
func (g *writer) calc(op asm.ALUOp, r asm.Register, v int) { g.add(op.Imm(r, int32(v))) }

//go:noinline
func (g *writer) with(op asm.ALUOp, r, by asm.Register) { g.add(op.Reg(r, by)) }

//go:noinline
func (g *writer) whenImm(op asm.JumpOp, r asm.Register, v int, to string) {
	g.add(op.Imm(r, int32(v), to))
}

//go:noinline
func (g *writer) compareRegs(op asm.JumpOp, r, by asm.Register, to string) {
	g.add(op.Reg(r, by, to))
}

func (g *writer) add(ins ...asm.Instruction) {
	for _, i := range ins {
		for n, l := range g.pending {
			if n == len(g.pending)-1 {
				i = i.WithSymbol(l)
				break
			}
			g.code = append(g.code, asm.Mov.Reg(rState, rState).WithSymbol(l))
		}
		g.pending = g.pending[:0]
		g.code = append(g.code, i)
	}
}

// label names the next instruction.
func (g *writer) label(name string) { g.pending = append(g.pending, name) }

// fresh returns a label that is not in use.
func (g *writer) fresh() string {
	g.labels++
	return fmt.Sprintf("l%d", g.labels)
}

func (g *writer) jump(label string) { g.add(asm.Ja.Label(label)) }

// leads reports whether a jump leads to a label.
func leads(code asm.Instructions, label string) bool {
	return slices.ContainsFunc(code, func(i asm.Instruction) bool { return i.Reference() == label })
}

// imm loads a constant into r.
func (g *emitter) imm(r asm.Register, v uint64) {
	if small(v) {
		g.add(asm.Mov.Imm(r, int32(int64(v))))
		return
	}
	g.add(asm.LoadImm(r, int64(v), asm.DWord))
}

// small reports whether v is the sign extension of 32 bits, as immediates are.
func small(v uint64) bool { return int64(v) >= math.MinInt32 && int64(v) <= math.MaxInt32 }

// part translates a part of the program. If the kernel cannot run it, the program gives frames that come there
// to the engine, with a reason, and part returns false.
func (g *emitter) part(f func()) (whole bool) {
	at, labels, spilled := len(g.code), len(g.pending), g.spilled
	held := append([]string{}, g.pending...)
	defer func() {
		switch x := recover().(type) {
		case nil:
		case cannot:
			g.code, g.pending, g.spilled = g.code[:at], append(g.pending[:0], held[:labels]...), spilled
			g.pass(x.why)
			g.parts.never(g.where, x.why)
			whole = false
		default:
			panic(x)
		}
	}()
	f()
	return true
}

// pass gives the frame to the engine, for a reason.
func (g *emitter) pass(why string) { g.jump(passLabel(reasonOf(g, why))) }

// reasonOf returns the number of a reason for giving a frame to the engine.
func reasonOf(g *emitter, why string) int {
	r := g.where
	r.Why = why
	n, ok := g.number[r]
	if !ok {
		n = len(g.reasons)
		g.number[r] = n
		g.reasons = append(g.reasons, r)
	}
	g.parts.sometimes(r)
	return n
}

func passLabel(n int) string { return fmt.Sprintf("pass%d", n) }

// about sets the part that reasons name. The function that it returns restores the part before.
func (g *emitter) about(kind, name string) func() {
	was := g.where
	g.where = Reason{Kind: kind, Name: name}
	g.parts.visit(g.where)
	if g.u.timed[g.where] {
		g.time()
	}
	return func() { g.where = was }
}

// mark allots a word of the state. It notes what has to be done when the frame comes to its end, because until
// that time the frame may go to the engine, which runs it from the start.
func (g *emitter) mark() int {
	n := g.next.marks
	g.next.marks++
	return atMarks + 8*n
}

// storeImm stores a constant whose sign the kernel extends. It exists because asm.StoreImm has no form for
// eight bytes.
func storeImm(base asm.Register, off int16, v int64, size asm.Size) asm.Instruction {
	return asm.Instruction{OpCode: asm.StoreImmOp(size), Dst: base, Offset: off, Constant: v}
}
