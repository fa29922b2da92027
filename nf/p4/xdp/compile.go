package xdp

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf/asm"

	"github.com/quillon/quillon/nf/p4/internal/ir"
)

// Numbers of the counters for what happened to a frame. The counters for the reasons for which frames go to the
// engine come after them.
const (
	Forwarded = iota
	ParserError
	NoTableHit
	IngressDrop
	EgressDrop
	Lost
	UnknownPort
	HeadlessDropped // counted beside the reason for which it was to go to the engine
	firstReason
)

var outcomeNames = [firstReason]string{"forwarded", "parser-error", "no-table-hit", "ingress-drop", "egress-drop", "lost", "unknown-port", "headless-dropped"}

// Reason says what the kernel cannot run, and why, so that a frame goes to the engine.
type Reason struct {
	Kind string `json:"kind,omitempty"` // state, condition, table, action, checksum; empty: of any program
	Name string `json:"name,omitempty"`
	Why  string `json:"why"`
}

// String returns the reason in words.
func (r Reason) String() string {
	if r.Kind == "" {
		return r.Why
	}
	return r.Kind + " " + r.Name + ": " + r.Why
}

// The word of an interface that frames come from; 0: it is none of the program's. From bit inSlot on is its slot among the interfaces' own programs.
const (
	inNumber = 1<<10 - 1 // the port's number
	inSlot   = 16
	inKnown  = 1 << 28
	inOn     = 1 << 29 // the program runs its frames
	inSeen   = 1 << 30 // the engine runs them, because somebody watches
)

// whyOff is why frames go to the engine while the program is not in step with a Switch yet, or any more, and while somebody watches.
const whyOff = "the kernel is told to leave frames to the engine"

// settings are the settings of a Switch that its program in the kernel depends on.
type settings struct {
	DropPort uint32
	Queues   int
	Indices  int // interface indices are below it
	Seed     uint64
	// Outlives says that the program may be there when the process has died. Owner is what the process stores in the
	// word of the registers while it has them; the program stores 1.
	Outlives bool
	Owner    uint32
}

// descriptors are the file descriptors of the kernel's maps. Lists are by the object's index in the program; 0:
// the object has no map.
type descriptors struct {
	state, in, out, devices, own, outcomes, going, defaults, crc, turn, clock int
	tables, slots, masks, hits, direct, counters, meters, registers           []int
	defaultAt                                                                 []int
}

// marked says that the word at offset at of the state holds 1 + the index of a cell that is to be counted, or
// 0. fd is the map of the counter.
type marked struct{ at, fd int }

// compiled is a program that was translated to instructions.
type compiled struct {
	code    asm.Instructions
	reasons []Reason
	parts   *parts
	size    int // of the state, in bytes
	// registers: the program uses them.
	registers bool
	// finishes: frames may come to their end in the kernel.
	finishes bool
}

// Return codes of an XDP program, and the places of its context.
const (
	xdpAborted  = 0
	xdpDrop     = 1
	xdpPass     = 2
	xdpRedirect = 4
	ctxIfindex  = 12
)

// maxPasses is the highest number of passes until a pass finds nothing more that is used. A pass finds out from
// what the fields are made that the pass before found to be read.
const maxPasses = 200

// gen translates a program.
type gen struct {
	pipes
	parse parsing
	out   deparsing
}

// compile translates a program. It needs several passes, because only the code tells what the state must hold.
func compile(p *ir.Program, opt *settings, m descriptors) (compiled, error) {
	u := newUsage()
	for range maxPasses {
		e := &emitter{p: p, opt: opt, maps: m, u: u, next: u.more(), number: map[Reason]int{}, parts: newParts(),
			queued: map[instance]bool{}, entered: map[place]bool{}}
		e.lay = newLayout(p, u)
		c := computer{e}
		g := &gen{pipes{operator{c}}, parsing{operator{c}}, deparsing{c}}
		if err := g.program(); err != nil {
			return compiled{}, err
		}
		if u.same(g.next) {
			if g.lay.size > maxState {
				return compiled{}, fmt.Errorf("the state of a frame has %d bytes, more than %d", g.lay.size, maxState)
			}
			return compiled{shorten(g.code, g.lay.size), g.reasons, g.parts, g.lay.size, u.registers, leads(g.code, end("ingress"))}, nil
		}
		u = g.next
	}
	return compiled{}, errors.New("the program's fields depend on each other in too long a chain")
}

// maxState is the longest state, in bytes: what the offset of an instruction can reach.
const maxState = 1<<15 - 64

// program writes all.
func (g *gen) program() (err error) {
	defer func() {
		if x := recover(); x != nil {
			c, ok := x.(cannot)
			if !ok {
				panic(x)
			}
			err = errors.New(c.why)
		}
	}()
	switch {
	case g.p.DeparseOps > 0:
		unsupported("its deparser has primitives")
	case g.p.Std.EgressSpec.Bits > 32 || g.p.Std.EgressSpec.Signed:
		unsupported("its ports have %d bits", g.p.Std.EgressSpec.Bits)
	}
	g.prologue()
	g.parse.parser()
	if leads(g.code, "parsed") {
		g.pipelines()
	}
	g.finish()
	return nil
}

// pipelines writes what is behind the parser.
func (g *gen) pipelines() {
	g.label("parsed")
	g.out.verifyChecksums()
	g.fromState(g.p.Std.ParserError, atError)
	g.fromState(g.p.Std.ChecksumError, atBad)
	g.pipeline("ingress", g.p.Ingress)
	if !leads(g.code, end("ingress")) {
		return
	}
	g.queue()
	g.pipeline("egress", g.p.Egress)
	if leads(g.code, end("egress")) {
		g.emit()
	}
	g.drops()
}

// fromState stores a word of the state in a field that the architecture writes.
func (g *emitter) fromState(f *ir.Field, at int16) {
	if f == nil {
		return
	}
	if _, ok := g.lay.fields[f]; ok {
		g.add(asm.LoadMem(asm.R1, rState, at, asm.DWord))
		g.storeStdReg(f, asm.R1)
	}
}

// time has the state hold the time in µs: that of the Switch, by what it is ahead of the kernel's clock. A frame asks for it when it first comes to something that
// reads it, since asking takes as long as looking up two tables.
func (g *emitter) time() {
	known := g.fresh()
	g.add(asm.LoadMem(asm.R1, rState, atTimed, asm.DWord), asm.JNE.Imm(asm.R1, 0, known), storeImm(rState, atTimed, 1, asm.DWord))
	g.add(asm.FnKtimeGetNs.Call(), asm.LoadMapValue(asm.R2, g.maps.clock, 0), asm.LoadMem(asm.R1, asm.R2, 8, asm.DWord), asm.Mul.Reg(asm.R0, asm.R1),
		asm.LoadMem(asm.R1, asm.R2, 0, asm.DWord), asm.Add.Reg(asm.R0, asm.R1), asm.Div.Imm(asm.R0, 1000), asm.StoreMem(rState, atTime, asm.R0, asm.DWord))
	g.fromState(g.p.Std.IngressTime, atTime)
	g.label(known)
}

// prologue makes the state of a frame.
func (g *gen) prologue() {
	g.add(asm.Mov.Reg(rCtx, asm.R1), storeImm(asm.RFP, -4, 0, asm.Word), asm.LoadMapPtr(asm.R1, g.maps.state), asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -4), asm.FnMapLookupElem.Call(), asm.JEq.Imm(asm.R0, 0, "no-state"), asm.Mov.Reg(rState, asm.R0))
	g.add(storeImm(rState, atMissed, 0, asm.DWord), storeImm(rState, atBad, 0, asm.DWord), storeImm(rState, atParsed, 0, asm.DWord), storeImm(rState, atTaken, 0, asm.DWord), storeImm(rState, atTimed, 0, asm.DWord),
		storeImm(rState, atMoved, 0, asm.DWord), storeImm(rState, atError, int64(g.p.NoError), asm.DWord))
	for _, at := range g.lay.zero {
		g.add(storeImm(rState, int16(at), 0, asm.DWord))
	}
	for i, h := range g.p.Deparse {
		if slices.Contains(g.p.Deparse[:i], h) { // it leaves twice
			g.move(nil)
			break
		}
	}
	g.add(asm.LoadMem(asm.R1, rCtx, ctxIfindex, asm.Word), asm.JGE.Imm(asm.R1, int32(g.opt.Indices), "unknown-port"), asm.LSh.Imm(asm.R1, 2),
		asm.LoadMapValue(asm.R2, g.maps.in, 0), asm.Add.Reg(asm.R2, asm.R1), asm.LoadMem(asm.R1, asm.R2, 0, asm.Word),
		asm.StoreMem(rState, atIn, asm.R1, asm.DWord), asm.JEq.Imm(asm.R1, 0, "unknown-port"), asm.JSet.Imm(asm.R1, inOn, "on"))
	if g.opt.Outlives {
		g.watched()
	}
	g.pass(whyOff)
	g.label("on")
	g.add(asm.And.Imm(asm.R1, inNumber))
	g.storeStdReg(g.p.Std.IngressPort, asm.R1)
	if g.u.timed[Reason{}] || g.u.written[g.p.Std.IngressTime] {
		g.time()
	}
	g.frame()
	g.add(asm.Mov.Reg(asm.R1, rEnd), asm.Sub.Reg(asm.R1, rData), asm.StoreMem(rState, atArrived, asm.R1, asm.DWord),
		asm.StoreMem(rState, atLength, asm.R1, asm.DWord))
	g.add(asm.Mov.Reg(asm.R1, rCtx), asm.FnXdpGetBuffLen.Call(), asm.LoadMem(asm.R1, rState, atArrived, asm.DWord))
	whole := g.fresh()
	g.add(asm.JEq.Reg(asm.R0, asm.R1, whole))
	g.pass("the frame lies in several buffers")
	g.label(whole)
	g.storeStdReg(g.p.Std.PacketLength, asm.R1)
}

// queue is what is between the pipelines.
func (g *gen) queue() {
	s := &g.p.Std
	if s.Group != nil && g.u.written[s.Group] {
		one := g.fresh()
		g.readField(s.Group, 0, asm.R1)
		g.add(asm.JEq.Imm(asm.R1, 0, one))
		g.pass("the frame goes to a multicast group")
		g.label(one)
	}
	if s.Priority != nil && g.u.written[s.Priority] {
		ok := g.fresh()
		g.readField(s.Priority, 0, asm.R1)
		g.add(asm.JLT.Imm(asm.R1, int32(g.opt.Queues), ok))
		g.pass("the frame has a priority that ports do not have")
		g.label(ok)
		g.storeStdReg(s.Qid, asm.R1)
	}
	g.readField(s.EgressSpec, 0, asm.R1)
	g.add(asm.JEq.Imm(asm.R1, int32(g.opt.DropPort), "dropped-ingress"), asm.StoreMem(rState, atPort, asm.R1, asm.DWord))
	g.storeStdReg(s.EgressPort, asm.R1)
	g.storeStd(s.EgressSpec, uint64(g.opt.DropPort)+1)
	g.storeStd(s.InstanceType, 0)
	if g.u.read[s.EnqTime] || g.u.read[s.EgressTime] {
		g.time()
	}
	g.fromState(s.EnqTime, atTime)
	g.fromState(s.EgressTime, atTime)
	g.fromState(s.PacketLength, atLength)
}

// emit sends the frame to its port.
func (g *gen) emit() {
	g.readField(g.p.Std.EgressSpec, 0, asm.R1)
	there, none := g.fresh(), g.fresh()
	g.add(asm.JEq.Imm(asm.R1, int32(g.opt.DropPort), "dropped-egress"), asm.LoadMem(asm.R2, rState, atPort, asm.DWord),
		asm.JGE.Imm(asm.R2, devices, none), asm.Mov.Reg(asm.R1, asm.R2), asm.LSh.Imm(asm.R1, 2), asm.LoadMapValue(asm.R3, g.maps.out, 0),
		asm.Add.Reg(asm.R3, asm.R1), asm.LoadMem(asm.R1, asm.R3, 0, asm.Word), asm.JEq.Imm(asm.R1, 0, none), asm.StoreMem(rState, atLongest, asm.R1, asm.DWord),
		asm.LoadMapPtr(asm.R1, g.maps.devices), asm.Mov.Imm(asm.R3, 0), asm.FnRedirectMap.Call(), asm.JEq.Imm(asm.R0, xdpRedirect, there))
	g.label(none)
	g.pass("it goes to a port that the kernel does not send to")
	g.label(there)
	g.out.updateChecksums()
	g.part(g.out.deparse)
	g.add(storeImm(rState, atOutcome, Forwarded, asm.DWord), asm.Mov.Imm(rData, xdpRedirect))
	g.jump("done")
}

// drops are the ends of frames that the program drops, with the engine's reasons.
func (g *gen) drops() {
	end := func(outcome int) {
		g.add(storeImm(rState, atOutcome, int64(outcome), asm.DWord))
		g.jump("drop")
	}
	g.label("dropped-ingress")
	g.add(asm.LoadMem(asm.R1, rState, atError, asm.DWord), asm.JNE.Imm(asm.R1, int32(g.p.NoError), "drop-error"),
		asm.LoadMem(asm.R1, rState, atMissed, asm.DWord), asm.JNE.Imm(asm.R1, 0, "drop-missed"))
	end(IngressDrop)
	g.label("drop-error")
	end(ParserError)
	g.label("drop-missed")
	end(NoTableHit)
	g.label("dropped-egress")
	end(EgressDrop)
	g.label("drop")
	g.add(asm.Mov.Imm(rData, xdpDrop))
}

// finish counts, and ends the program with return code R8. Nothing that a frame does is visible before; until
// then the frame may go to the engine, which runs it from the start.
func (g *gen) finish() {
	g.label("done")
	for _, m := range g.marked {
		none := g.fresh()
		g.add(asm.LoadMem(asm.R1, rState, int16(m.at), asm.DWord), asm.JEq.Imm(asm.R1, 0, none), asm.Sub.Imm(asm.R1, 1))
		g.cellOf(m.fd, none)
		g.plus(0, 1)
		g.add(asm.LoadMem(asm.R2, rState, atArrived, asm.DWord), asm.LoadMem(asm.R1, asm.R0, 8, asm.DWord), asm.Add.Reg(asm.R1, asm.R2),
			asm.StoreMem(asm.R0, 8, asm.R1, asm.DWord))
		g.label(none)
	}
	g.label("counted")
	g.freeRegisters()
	g.countOutcome("exit")
	g.label("exit")
	g.add(asm.Mov.Reg(asm.R0, rData), asm.Return())

	g.label("lost") // cannot be: the kernel wants to see that it is thought of
	g.add(storeImm(rState, atOutcome, Lost, asm.DWord), asm.Mov.Imm(rData, xdpAborted))
	g.jump("counted")
	g.label("unknown-port")
	g.add(storeImm(rState, atOutcome, UnknownPort, asm.DWord), asm.Mov.Imm(rData, xdpPass))
	g.jump("counted")
	for n := range g.reasons {
		g.label(passLabel(n))
		g.add(storeImm(rState, atOutcome, int64(firstReason+n), asm.DWord))
		g.jump("to-engine")
	}
	g.label("to-engine")
	g.undo()
	g.freeRegisters()
	g.countOutcome("given")
	g.label("given")
	g.toOwn()
	if g.opt.Outlives {
		g.headless()
	} else {
		g.add(asm.Mov.Imm(asm.R0, xdpPass), asm.Return())
	}
	g.label("no-state")
	g.add(asm.Mov.Imm(asm.R0, xdpAborted), asm.Return())
}

// toOwn gives the frame to the interface's own program, if there is one.
func (g *gen) toOwn() {
	g.add(asm.LoadMem(asm.R3, rState, atIn, asm.DWord), asm.RSh.Imm(asm.R3, inSlot), asm.And.Imm(asm.R3, slots-1), asm.Mov.Reg(asm.R1, rCtx),
		asm.LoadMapPtr(asm.R2, g.maps.own), asm.FnTailCall.Call())
}

// cellOf loads the address of cell R1 of an array into R0, or jumps to none.
func (g *emitter) cellOf(fd int, none string) {
	g.add(asm.StoreMem(asm.RFP, -4, asm.R1, asm.Word))
	g.lookUp(fd, -4, none)
}

// plus adds n to the word at off of R0. It need not be atomic, because each processor has counters of its own.
func (g *emitter) plus(off int16, n int32) {
	g.add(asm.LoadMem(asm.R1, asm.R0, off, asm.DWord), asm.Add.Imm(asm.R1, n), asm.StoreMem(asm.R0, off, asm.R1, asm.DWord))
}

func (g *gen) countOutcome(none string) {
	g.add(asm.LoadMem(asm.R1, rState, atOutcome, asm.DWord))
	g.cellOf(g.maps.outcomes, none)
	g.plus(0, 1)
}
