package xdp

import (
	"slices"

	"github.com/cilium/ebpf/asm"

	"github.com/quillon/quillon/nf/p4/internal/ir"
)

// Header stacks. The parser is unrolled, so that each instance of a state knows how many headers of each stack were
// extracted before it. An element is a header like others. The number of headers is kept in the state of the frame, too,
// where pipelines read and change it.

// counted are the numbers of headers of stacks, by the stacks' hidden headers. It is a text because instances of states
// are keys of maps: the number of the hidden header and the count, each as a rune.
type counted string

func (c counted) of(s *ir.HeaderStack) int {
	all := []rune(c)
	for i := 0; i < len(all); i += 2 {
		if int(all[i]) == s.Next.Header.Index {
			return int(all[i+1])
		}
	}
	return 0
}

func (c counted) more(s *ir.HeaderStack) counted {
	all := []rune(c)
	for i := 0; i < len(all); i += 2 {
		if int(all[i]) == s.Next.Header.Index {
			all[i+1]++
			return counted(all)
		}
	}
	return counted(append(all, rune(s.Next.Header.Index), 1))
}

// maxCounted bounds the number of a hidden header and of an element, so that both are runes.
const maxCounted = 1 << 12

// extractNext extracts the next header of a stack. It returns false if there is none left, which ends the parser.
func (g *parsing) extractNext(s *ir.HeaderStack, at instance) (instance, bool) {
	n := at.stacks.of(s)
	if n >= len(s.Elems) {
		g.parseFails(g.p.OutOfBounds, at.at)
		return at, false
	}
	h := s.Elems[n]
	if h.Varbit {
		unsupported("header %s has a field of variable length", h.Name)
	}
	if s.Next.Header.Index >= maxCounted || n >= maxCounted {
		unsupported("header stack %s is too long", s.Name)
	}
	g.extract(h, at)
	g.next.written[s.Next] = true
	if w, ok := g.lay.fields[s.Next]; ok {
		g.set(w, int64(n+1))
	}
	at.at, at.last, at.idle, at.stacks = at.at+h.Bits/8, h, 0, at.stacks.more(s)
	return at, true
}

// lastField leaves word w of a field of a stack's last header in r.
func (g *parsing) lastField(p *ir.KeyPart, s instance, w int, r asm.Register) {
	n := s.stacks.of(p.Last)
	if n == 0 {
		g.imm(r, 0)
		return
	}
	g.readField(p.Each[n-1], w, r)
}

// shiftStack pushes or pops headers of a stack, all of which move.
func (g *operator) shiftStack(op *ir.Call) {
	s, by := op.Args[0].Expr.Stack, op.Args[1].Expr
	if s == nil {
		unsupported("it changes a stack of unions")
	}
	v, ok := by.Word()
	if !ok {
		unsupported("it pushes or pops a number of headers that is not known before")
	}
	size := len(s.Elems)
	n := int(min(v, uint64(size)))
	if s.Elems[0].Varbit {
		unsupported("header %s has a field of variable length", s.Elems[0].Name)
	}
	g.readField(s.Next, 0, asm.R1)
	end := g.fresh()
	if op.Name == "push" {
		g.calc(asm.Add, asm.R1, n)
		g.whenImm(asm.JLE, asm.R1, size, end)
		g.imm(asm.R1, uint64(size))
	} else {
		less := g.fresh()
		g.whenImm(asm.JGE, asm.R1, n, less)
		g.imm(asm.R1, uint64(n))
		g.label(less)
		g.calc(asm.Sub, asm.R1, n)
	}
	g.label(end)
	g.writeField(s.Next, 0, asm.R1)
	if n == 0 {
		return
	}
	for i := range size {
		to, from := i, i+n
		if op.Name == "push" {
			to, from = size-1-i, size-1-i-n
		}
		if from >= 0 && from < size {
			g.moveHeader(s.Elems[to], s.Elems[from])
			continue
		}
		g.move(s.Elems[to])
		g.setInvalid(s.Elems[to])
		g.clearBytes(s.Elems[to])
	}
}

// moveHeader makes one header what another one is, also if that is invalid.
func (g *operator) moveHeader(to, from *ir.Header) {
	g.move(to)
	if g.u.may[from] {
		g.next.may[to] = true
	}
	g.readValid(from, asm.R1)
	if at, ok := g.lay.valid[to]; ok {
		g.put(at, asm.R1)
	}
	if g.u.raw[to] || slices.Contains(g.p.Deparse, to) {
		a, b := g.bytesOf(to), g.bytesOf(from)
		g.copyBytes(rState, a, rState, b, (to.Bits+63)/64*8)
	}
}

// assignEach assigns to the element of a stack that a frame chooses; to none, if there is none.
func (g *computer) assignEach(dst, src *ir.Expr) {
	if dst.Op == ir.Const {
		return
	}
	no, end := g.fresh(), g.fresh()
	g.branch(dst.Kids[0], false, no, 0)
	g.assign(dst.Kids[1], src)
	g.jump(end)
	g.label(no)
	g.assignEach(dst.Kids[2], src)
	g.label(end)
}
