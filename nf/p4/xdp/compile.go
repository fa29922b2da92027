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
	NoReplica
	Lost
	UnknownPort
	HeadlessDropped // counted beside the reason for which it was to go to the engine
	firstReason
)

var outcomeNames = [firstReason]string{"forwarded", "parser-error", "no-table-hit", "ingress-drop", "egress-drop", "no-replica", "lost", "unknown-port", "headless-dropped"}

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
	// Processors is the number of processors that there may be.
	Processors int
	Seed       uint64
	// Outlives says that the program may be there when the process has died. Owner is what the process stores in the
	// word of the registers while it has them; the program stores 1.
	Outlives bool
	Owner    uint32
	// FewExits has frames look at all bytes of a key in each word of bit vectors, so that the verifier has fewer ways to follow.
	FewExits bool
	// NoCopies leaves frames to multicast groups to the engine.
	NoCopies bool
	// Reasons are those that have the first numbers, also if the program does not use them: programs that share counts differ in
	// NoCopies.
	Reasons []Reason
}

// descriptors are the file descriptors of the kernel's maps. Lists are by the object's index in the program; 0:
// the object has no map.
type descriptors struct {
	state, in, out, devices, own, counts, defaults, crc, turn, clock int
	places                                                           countPlaces
	multicast, lists, sets                                           int // of copies
	tables, slots, masks, hits, meters, registers                    []int
	entryMeters                                                      []int // by table
	values                                                           []int // by value set
	members, actions, groups, blocks                                 []int // by action profile
	defaultAt                                                        []int
}

// compiled is a program that was translated to instructions.
type compiled struct {
	code    asm.Instructions
	reasons []Reason
	parts   *parts
	size    int // of the state, in bytes
	// registers: the program uses them.
	registers bool
	copies    bool // it has copies made of frames
	// finishes: frames may come to their end in the kernel.
	finishes bool
	stages   Stages
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
			queued: map[instance]bool{}, entered: map[place]bool{}, seen: map[int]int{}, reasons: slices.Clone(opt.Reasons)}
		for n, r := range opt.Reasons {
			e.number[r] = n
		}
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
			f := shortened(g.code, g.lay.size)
			return compiled{f.code(), g.reasons, g.parts, g.lay.size, u.registers, leads(g.code, "multicast"), leads(g.code, end("ingress")), f.stages(g.borders)}, nil
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
	case g.p.Architecture != "":
		unsupported("architecture %s: the kernel runs v1model", g.p.Architecture)
	case g.p.DeparseOps > 0:
		unsupported("its deparser has primitives")
	case g.p.Std.EgressSpec.Bits > 32 || g.p.Std.EgressSpec.Signed:
		unsupported("its ports have %d bits", g.p.Std.EgressSpec.Bits)
	}
	g.stage("parser")
	g.prologue()
	g.parse.parser()
	if leads(g.code, "parsed") {
		g.pipelines()
	}
	g.stage("ends")
	g.finish()
	return nil
}

// pipelines writes what is behind the parser.
func (g *gen) pipelines() {
	g.label("parsed")
	g.out.verifyChecksums()
	g.fromState(g.p.Std.ParserError, atError)
	g.fromState(g.p.Std.ChecksumError, atBad)
	g.stage("ingress")
	g.pipeline("ingress", g.p.Ingress)
	if !leads(g.code, end("ingress")) {
		return
	}
	g.stage("egress")
	g.queue()
	g.pipeline("egress", g.p.Egress)
	if leads(g.code, end("egress")) {
		g.emit()
	}
	if leads(g.code, "multicast") {
		g.stage("egress of copies")
		g.multicast()
	}
	if leads(g.code, "leaves") {
		g.stage("deparser")
		g.leave()
	}
	g.drops()
}

// fromState stores a word of the state in a field that the architecture writes.
func (g *emitter) fromState(f *ir.Field, at int16) {
	if f == nil {
		return
	}
	if _, ok := g.lay.fields[f]; ok {
		g.load(asm.R1, rState, int(at), asm.DWord)
		g.storeStdReg(f, asm.R1)
	}
}

// time has the state hold the time in µs: that of the Switch, by what it is ahead of the kernel's clock. A frame asks for it when it first comes to something that
// reads it, since asking takes as long as looking up two tables.
func (g *emitter) time() {
	known := g.fresh()
	g.get(asm.R1, atTimed)
	g.whenImm(asm.JNE, asm.R1, 0, known)
	g.set(atTimed, 1)
	g.add(asm.FnKtimeGetNs.Call())
	g.address(asm.R2, g.maps.clock)
	g.load(asm.R1, asm.R2, 8, asm.DWord)
	g.with(asm.Mul, asm.R0, asm.R1)
	g.load(asm.R1, asm.R2, 0, asm.DWord)
	g.with(asm.Add, asm.R0, asm.R1)
	g.add(asm.Div.Imm(asm.R0, 1000))
	g.put(atTime, asm.R0)
	g.fromState(g.p.Std.IngressTime, atTime)
	g.label(known)
}

// prologue makes the state of a frame.
func (g *gen) prologue() {
	g.with(asm.Mov, rCtx, asm.R1)
	g.add(storeImm(asm.RFP, -4, 0, asm.Word))
	g.add(asm.LoadMapPtr(asm.R1, g.maps.state))
	g.with(asm.Mov, asm.R2, asm.RFP)
	g.calc(asm.Add, asm.R2, -4)
	g.add(asm.FnMapLookupElem.Call())
	g.whenImm(asm.JEq, asm.R0, 0, "no-state")
	g.with(asm.Mov, rState, asm.R0)
	g.set(atMissed, 0)
	g.set(atBad, 0)
	g.set(atParsed, 0)
	g.set(atShift, 0)
	g.set(atTaken, 0)
	g.set(atTimed, 0)
	g.set(atMoved, 0)
	g.add(storeImm(rState, atError, int64(g.p.NoError), asm.DWord))
	for _, at := range g.lay.zero {
		g.set(at, 0)
	}
	for i, h := range g.p.Deparse {
		if slices.Contains(g.p.Deparse[:i], h) { // it leaves twice
			g.move(nil)
			break
		}
	}
	g.load(asm.R1, rCtx, ctxIfindex, asm.Word)
	g.whenImm(asm.JGE, asm.R1, g.opt.Indices, "unknown-port")
	g.calc(asm.LSh, asm.R1, 2)
	g.address(asm.R2, g.maps.in)
	g.with(asm.Add, asm.R2, asm.R1)
	g.get32(asm.R1, asm.R2, 0)
	g.put(atIn, asm.R1)
	g.whenImm(asm.JEq, asm.R1, 0, "unknown-port")
	g.whenImm(asm.JSet, asm.R1, inOn, "on")
	if g.opt.Outlives {
		g.watched()
	}
	g.pass(whyOff)
	g.label("on")
	g.calc(asm.And, asm.R1, inNumber)
	g.storeStdReg(g.p.Std.IngressPort, asm.R1)
	if g.u.timed[Reason{}] || g.u.written[g.p.Std.IngressTime] {
		g.time()
	}
	g.frame()
	g.with(asm.Mov, asm.R1, rEnd)
	g.with(asm.Sub, asm.R1, rData)
	g.put(atArrived, asm.R1)
	g.put(atLength, asm.R1)
	g.with(asm.Mov, asm.R1, rCtx)
	g.add(asm.FnXdpGetBuffLen.Call())
	g.get(asm.R1, atArrived)
	whole := g.fresh()
	g.compareRegs(asm.JEq, asm.R0, asm.R1, whole)
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
		g.whenImm(asm.JEq, asm.R1, 0, one)
		if why := g.noCopies(); why != "" {
			g.pass("the frame goes to a multicast group: " + why)
		} else {
			g.jump("multicast")
		}
		g.label(one)
	}
	g.waits()
	g.readField(s.EgressSpec, 0, asm.R1)
	g.whenImm(asm.JEq, asm.R1, int(g.opt.DropPort), "dropped-ingress")
	g.put(atPort, asm.R1)
	g.storeStdReg(s.EgressPort, asm.R1)
	g.leaveQueue(0)
}

// waits has frames go to the engine that have a priority which ports do not have, and notes the time.
func (g *gen) waits() {
	s := &g.p.Std
	if s.Priority != nil && g.u.written[s.Priority] {
		ok := g.fresh()
		g.readField(s.Priority, 0, asm.R1)
		g.whenImm(asm.JLT, asm.R1, g.opt.Queues, ok)
		g.pass("the frame has a priority that ports do not have")
		g.label(ok)
	}
	if g.u.read[s.EnqTime] || g.u.read[s.EgressTime] {
		g.time()
	}
}

// leaveQueue stores what egress finds in the fields of the architecture, beside the port.
func (g *gen) leaveQueue(instance uint64) {
	s := &g.p.Std
	if s.Priority != nil && s.Qid != nil && g.u.written[s.Priority] {
		g.readField(s.Priority, 0, asm.R1)
		g.storeStdReg(s.Qid, asm.R1)
	}
	g.storeStd(s.EgressSpec, uint64(g.opt.DropPort)+1)
	g.storeStd(s.InstanceType, instance)
	for _, f := range []*ir.Field{s.EnqDepth, s.DeqTime, s.DeqDepth} {
		g.storeStd(f, 0)
	}
	g.fromState(s.EnqTime, atTime)
	g.fromState(s.EgressTime, atTime)
	g.fromState(s.PacketLength, atLength)
}

// emit sends the frame to its port.
func (g *gen) emit() {
	g.readField(g.p.Std.EgressSpec, 0, asm.R1)
	there, none := g.fresh(), g.fresh()
	g.whenImm(asm.JEq, asm.R1, int(g.opt.DropPort), "dropped-egress")
	g.get(asm.R2, atPort)
	g.longest(none)
	g.whenImm(asm.JGE, asm.R1, noLink, none)
	g.put(atLongest, asm.R1)
	g.add(asm.LoadMapPtr(asm.R1, g.maps.devices))
	g.calc(asm.Mov, asm.R3, 0)
	g.add(asm.FnRedirectMap.Call())
	g.whenImm(asm.JEq, asm.R0, xdpRedirect, there)
	g.label(none)
	g.pass(whyPort)
	g.label(there)
	g.jump("leaves")
}

// leave makes the frame's bytes, and ends.
func (g *gen) leave() {
	g.label("leaves")
	g.out.updateChecksums()
	g.part(g.out.deparse)
	g.set(atOutcome, Forwarded)
	g.calc(asm.Mov, rData, xdpRedirect)
	g.jump("done")
}

// drops are the ends of frames that the program drops, with the engine's reasons.
func (g *gen) drops() {
	end := func(outcome int) {
		g.set(atOutcome, int64(outcome))
		g.jump("drop")
	}
	g.label("dropped-ingress")
	g.get(asm.R1, atError)
	g.whenImm(asm.JNE, asm.R1, int(g.p.NoError), "drop-error")
	g.get(asm.R1, atMissed)
	g.whenImm(asm.JNE, asm.R1, 0, "drop-missed")
	end(IngressDrop)
	g.label("drop-error")
	end(ParserError)
	g.label("drop-missed")
	end(NoTableHit)
	g.label("dropped-egress")
	end(EgressDrop)
	g.label("dropped-replica")
	end(NoReplica)
	g.label("drop")
	g.calc(asm.Mov, rData, xdpDrop)
}

// finish counts, and ends the program with return code R8. Nothing that a frame does is visible before; until
// then the frame may go to the engine, which runs it from the start.
func (g *gen) finish() {
	g.label("done")
	g.row("uncounted")
	g.countCells()
	g.label("counted")
	g.countOutcome(1, "uncounted")
	g.label("uncounted")
	g.freeRegisters()
	g.with(asm.Mov, asm.R0, rData)
	g.add(asm.Return())

	g.label("lost") // cannot be: the kernel wants to see that it is thought of
	g.set(atOutcome, Lost)
	g.calc(asm.Mov, rData, xdpAborted)
	g.jump("other")
	g.label("unknown-port")
	g.set(atOutcome, UnknownPort)
	g.calc(asm.Mov, rData, xdpPass)
	g.label("other")
	g.row("uncounted")
	g.jump("counted")
	for n := range g.reasons {
		g.label(passLabel(n))
		g.add(storeImm(rState, atOutcome, int64(firstReason+n), asm.DWord))
		g.jump("to-engine")
	}
	g.label("to-engine")
	g.undo()
	g.refund()
	g.freeRegisters()
	g.row("given")
	g.countOutcome(1, "given")
	g.label("given")
	g.toOwn()
	if g.opt.Outlives {
		g.headless()
	} else {
		g.calc(asm.Mov, asm.R0, xdpPass)
		g.add(asm.Return())
	}
	g.label("no-state")
	g.calc(asm.Mov, asm.R0, xdpAborted)
	g.add(asm.Return())
}

// toOwn gives the frame to the interface's own program, if there is one.
func (g *gen) toOwn() {
	g.get(asm.R3, atIn)
	g.calc(asm.RSh, asm.R3, inSlot)
	g.calc(asm.And, asm.R3, slots-1)
	g.with(asm.Mov, asm.R1, rCtx)
	g.add(asm.LoadMapPtr(asm.R2, g.maps.own))
	g.add(asm.FnTailCall.Call())
}

// cellOf loads the address of cell R1 of an array into R0, or jumps to none.
func (g *emitter) cellOf(fd int, none string) {
	g.keep(asm.RFP, -4, asm.R1, asm.Word)
	g.lookUp(fd, -4, none)
}
