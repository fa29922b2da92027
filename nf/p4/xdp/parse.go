package xdp

import (
	"fmt"
	"slices"

	"github.com/cilium/ebpf/asm"

	"github.com/quillon/quillon/nf/p4/internal/ir"
)

// parsing translates the parser.
type parsing struct{ operator }

// instance is a state of the parser at an offset of the frame. Each offset has code of its own, so that all
// loads have constant offsets and the verifier sees that the parser ends.
type instance struct {
	state  int
	at     int        // bytes in front
	last   *ir.Header // that was extracted last
	idle   int        // states since then
	stacks counted    // headers of each stack
	shift  bool       // the frame has atShift bytes of fields of variable length in front
}

// Bounds of the unrolled parser.
const (
	maxInstances = 512
	maxParsed    = 1024
	maxPlace     = 4 * maxParsed // of a header
)

func (s instance) label() string {
	last := -1
	if s.last != nil {
		last = s.last.Index
	}
	return fmt.Sprintf("state%d-%d-%d-%d-%x-%v", s.state, s.at, last, s.idle, string(s.stacks), s.shift)
}

// next is another state at the same place.
func (s instance) next(state int) instance {
	s.state = state
	return s
}

// parser translates all states. The label "parsed" comes after them.
func (g *parsing) parser() {
	if !g.p.Parser {
		g.jump("parsed")
		return
	}
	g.toState(instance{state: g.p.Start})
	for n := 0; n < len(g.states); n++ {
		g.label(g.states[n].label())
		g.parseState(g.states[n])
	}
}

// toState continues with a state; -1: the parser ends.
func (g *parsing) toState(s instance) {
	if s.state < 0 {
		g.parsedTo(s.at)
		return
	}
	if !g.queued[s] {
		if s.at > maxParsed || s.idle > len(g.p.States) || len(g.states) == maxInstances {
			g.pass(fmt.Sprintf("the parser goes on behind %d bytes in more ways than the kernel has room for", s.at))
			return
		}
		g.queued[s] = true
		g.states = append(g.states, s)
	}
	g.jump(s.label())
}

// fail ends the parser with an error.
func (g *parsing) parseFails(code uint32, at int) {
	g.set(atError, int64(code))
	g.parsedTo(at)
}

func (g *parsing) parseState(s instance) {
	st := &g.p.States[s.state]
	defer g.about("state", st.Name)()
	g.part(func() {
		for i := range st.Ops {
			op := &st.Ops[i]
			if op.Stack == nil || op.Name != "extract" {
				s = g.parseOp(op, s)
				continue
			}
			var left bool
			if s, left = g.extractNext(op.Stack, s); !left {
				return
			}
		}
		s.idle++
		g.choose(st, s)
	})
}

// parseOp does one thing in a state, and returns where the parser is after it.
func (g *parsing) parseOp(op *ir.Call, s instance) instance {
	switch op.Name {
	case "extract":
		if op.Header == nil {
			unsupported("it extracts into a stack of unions")
		}
		if op.Header.Varbit {
			unsupported("the length of header %s depends on the header itself", op.Header.Name)
		}
		g.extract(op.Header, s)
		s.at, s.last, s.idle = s.at+op.Header.Bits/8, op.Header, 0
	case "extract_VL":
		s = g.extractVariable(op, s)
	case "set":
		if a := &op.Args[1]; a.Look {
			g.setLookahead(op.Args[0].Expr, a, s.at)
		} else {
			g.assign(op.Args[0].Expr, a.Expr)
		}
	case "verify":
		g.verify(op, s.at)
	case "shift", "advance":
		n := 8 * op.Args[0].Number
		if e := op.Args[0].Expr; e != nil {
			c, ok := e.Word()
			if !ok || e.Neg || c%8 != 0 {
				unsupported("it skips a number of bits that is not known before")
			}
			n = c
		}
		if n/8 > maxParsed {
			unsupported("it skips %d bytes", n/8)
		}
		g.need(s.at, int(n/8), s.at)
		g.move(nil)
		s.at, s.idle = s.at+int(n/8), 0
	case "push", "pop":
		unsupported("it pushes or pops in the parser")
	default:
		if g.primitive(op, nil) {
			unsupported("it ends the pipeline in the parser")
		}
	}
	return s
}

// need continues if the frame has n bytes at offset at; otherwise it ends the parser at offset parsed with an
// error.
func (g *parsing) need(at, n, parsed int) {
	if n == 0 {
		return
	}
	ok := g.fresh()
	g.with(asm.Mov, asm.R1, rData)
	g.calc(asm.Add, asm.R1, at+n)
	g.compareRegs(asm.JLE, asm.R1, rEnd, ok)
	g.parseFails(g.p.TooShort, parsed)
	g.label(ok)
}

func (g *parsing) extract(h *ir.Header, s instance) {
	n := h.Bits / 8
	g.need(s.at, n, s.at)
	g.setValid(h)
	if was, there := g.next.at[h]; there && was != s.at || s.shift {
		g.next.several[h] = true
	}
	if g.next.at[h] = s.at; s.at >= maxPlace {
		unsupported("header %s lies behind %d bytes", h.Name, s.at)
	}
	if at, ok := g.lay.place[h]; ok {
		g.put(at, g.placed(s.at, s.shift))
	}
	// Headers that leave in another order than they came in, or not at all, move; and so do those of a union, of which one is left.
	i := slices.Index(g.p.Deparse, h)
	if i < 0 || s.last != nil && i <= slices.Index(g.p.Deparse, s.last) || s.at != 0 && s.last == nil || len(h.Others) > 0 {
		g.move(nil)
	}
	if at, ok := g.lay.bytes[h]; ok {
		g.copyBytes(rState, at, rData, s.at, n)
	}
}

// setLookahead stores a lookahead in a field.
func (g *parsing) setLookahead(dst *ir.Expr, a *ir.Arg, at int) {
	f := dst.Field
	if dst.Op != ir.FieldOf || f == nil || f.Saturate || f.Signed && f.Bits > 64 {
		unsupported("it looks ahead for a signed number of more than 64 bits, or for no field of fixed range")
	}
	g.need(at, (a.Off+a.Bits+7)/8, at)
	for w := range (f.Bits + 63) / 64 {
		if n := min(64, a.Bits-64*w); n > 0 {
			g.lookahead(a.Off+a.Bits-64*w-n, n, at, asm.R1)
		} else {
			g.imm(asm.R1, 0)
		}
		g.and(asm.R1, ones(min(64, f.Bits-64*w)))
		g.writeField(f, w, asm.R1)
	}
}

// lookahead leaves n bits of a lookahead in r. It changes R0 and R1.
func (g *parsing) lookahead(off, n, at int, r asm.Register) {
	size := (off + n + 7) / 8
	g.need(at, size, at)
	// As many bytes as hold the bits, and no more: behind them the frame may end.
	first := off / 8
	s := off % 8
	if s+n > 64 {
		g.load(r, rData, at+first, asm.DWord)
		g.swap(r, 64)
		g.calc(asm.LSh, r, s)
		g.load(asm.R0, rData, at+first+8, asm.Byte)
		g.calc(asm.RSh, asm.R0, 8-s)
		g.with(asm.Or, r, asm.R0)
		g.calc(asm.RSh, r, 64-n)
		return
	}
	g.imm(r, 0)
	for i := first; i < size; {
		w := 8
		for w > size-i {
			w /= 2
		}
		g.load(asm.R0, rData, at+i, sizes[8*w])
		g.swap(asm.R0, 8*w)
		if w < 8 {
			g.calc(asm.LSh, r, 8*w)
		}
		g.with(asm.Or, r, asm.R0)
		i += w
	}
	if right := 8*(size-first) - s - n; right > 0 {
		g.calc(asm.RSh, r, right)
	}
	g.and(r, ones(n))
}

func (g *parsing) verify(op *ir.Call, at int) {
	ok := g.fresh()
	g.branch(op.Args[0].Expr, true, ok, 0)
	code := op.Args[1].Number
	if e := op.Args[1].Expr; e != nil {
		c, known := e.Word()
		if !known {
			unsupported("it verifies with an error that is not known before")
		}
		code = c
	}
	g.parseFails(uint32(code&(1<<31-1)), at)
	g.label(ok)
}

// keyWord is a word of a transition key in a register.
type keyWord struct {
	bits, at int
	reg      asm.Register
}

// maxInRegisters is the highest number of words of a transition key that stay in registers.
const maxInRegisters = 4

// choose continues with the state that the transition key selects.
func (g *parsing) choose(st *ir.State, s instance) {
	words := 0
	for i := range st.Parts {
		p := &st.Parts[i]
		switch {
		case p.Unknown:
			unsupported("it looks into a header stack")
		}
		words += (p.Bits + 63) / 64
	}
	if words > maxInRegisters {
		unsupported("it chooses by more than %d words", maxInRegisters)
	}
	var key []keyWord
	for i := len(st.Parts) - 1; i >= 0; i-- { // lookahead changes R1: the first parts are loaded last
		p := &st.Parts[i]
		for w := (p.Bits+63)/64 - 1; w >= 0; w-- {
			words--
			k := keyWord{min(64, p.Bits-64*w), p.At + w, pool[words+1]}
			switch {
			case p.Look:
				g.lookahead(p.Off+p.Bits-64*w-k.bits, k.bits, s.at, k.reg)
			case p.Last != nil:
				g.lastField(p, s, w, k.reg)
			case p.Valid != nil:
				g.readValid(p.Valid, k.reg)
			default:
				g.readField(p.Field, w, k.reg)
			}
			key = append(key, k)
		}
	}
	if slices.ContainsFunc(st.Cases, func(c ir.Case) bool { return c.ValueSet > 0 }) {
		g.keepKey(key)
	}
	for i := range st.Cases {
		c := &st.Cases[i]
		next := g.fresh()
		if c.ValueSet > 0 {
			g.asks(c, next)
			g.toState(s.next(c.Next))
			g.label(next)
			g.bringKey(key)
			continue
		}
		for _, k := range key {
			value, mask := c.Value[k.at], c.Mask[k.at]
			switch {
			case value&^ones(k.bits) != 0: // never
				g.jump(next)
				continue
			case mask&ones(k.bits) == 0:
				continue
			case mask&ones(k.bits) == ones(k.bits):
				g.notEqual(k.reg, value, next)
				continue
			}
			g.imm(asm.R0, mask&ones(k.bits))
			g.with(asm.Mov, asm.R1, k.reg)
			g.with(asm.And, asm.R1, asm.R0)
			g.notEqual(asm.R1, value, next)
		}
		g.toState(s.next(c.Next))
		g.label(next)
	}
	g.toState(s.next(st.Next))
}

// notEqual jumps if r is not v. It changes R0.
func (g *parsing) notEqual(r asm.Register, v uint64, to string) {
	if small(v) {
		g.whenImm(asm.JNE, r, int(v), to)
		return
	}
	g.imm(asm.R0, v)
	g.compareRegs(asm.JNE, r, asm.R0, to)
}
