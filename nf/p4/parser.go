package p4

import "encoding/binary"

// maxStates is the highest number of parser states for one packet. It is high enough because a useful state
// extracts or skips something.
const maxStates = 4096

// parserErrors are the program's numbers for the errors of P4's core library.
type parserErrors struct {
	noError, tooShort, stackOutOfBounds, headerTooShort, timeout, invalidArgument uint32
}

// A program has a parser and a deparser before and after each pipeline, or, in v1model, only a parser before ingress
// and a deparser after egress.
const (
	blockIngress = iota
	blockEgress
	numBlocks
)

// parser holds the states of all parsers.
type parser struct {
	starts [numBlocks]int // index of the first state; -1: none
	states []*parseState
	errs   parserErrors
}

func (p *Program) noError() uint32 {
	if p.parser == nil {
		return 0
	}
	return p.parser.errs.noError
}

// parseOp does one thing in a state. The result parsed lets the parser continue; another result is the error
// that ends it.
type parseOp func(k *packetState) int64

const parsed = -1

type parseState struct {
	name  string
	ops   []parseOp
	parts []keyPart
	kw    int
	key   int // place of the key in the scratch words
	pack  int // place of the packed key in the scratch words, for value sets
	cases []parseCase
	next  int
}

// keyPart is a part of a state's transition key: a field, or a lookahead.
type keyPart struct {
	slot  int     // slot of the field; -1: not known when loading
	where wordsFn // finds the words of the field; nil: lookahead
	off   int     // offset of the lookahead, in bits
	bits  int
	words int
	at    int
}

type parseCase struct {
	value, mask   []uint64
	value0, mask0 uint64 // first words of value and mask
	vset          int    // index of the value set; -1: none
	next          int
}

// parse runs the parser of a block over k.frame[k.at:] and verifies the checksums.
func (s *Switch) parse(k *packetState, block int) {
	k.parseError, k.badChecksum = s.prog.noError(), false
	p := s.prog.parser
	if p == nil {
		return
	}
	at := p.starts[block]
	for n := 0; at >= 0; n++ {
		if n == maxStates {
			k.parseError = p.errs.timeout
			break
		}
		st := p.states[at]
		s.event(EventState, at, uint64(k.at))
		next, err := s.step(k, p, st)
		if k.failed != NotDropped {
			return
		}
		if err != parsed {
			k.parseError = uint32(err)
			s.event(EventParseError, at, uint64(err))
			break
		}
		at = next
	}
	s.verifyChecksums(k)
}

// step runs a state, and returns the next state or an error.
func (s *Switch) step(k *packetState, p *parser, st *parseState) (int, int64) {
	for _, op := range st.ops {
		if err := op(k); err != parsed {
			return 0, err
		}
	}
	if len(st.parts) == 0 {
		return st.next, parsed
	}
	key := s.tmp[st.key : st.key+st.kw]
	for i := range st.parts {
		d := &st.parts[i]
		if d.slot >= 0 && d.words == 1 {
			key[d.at] = k.v[d.slot]
			continue
		}
		dst := key[d.at : d.at+d.words]
		if d.where == nil {
			if (d.off+d.bits+7)/8 > len(k.frame)-k.at {
				return 0, int64(p.errs.tooShort)
			}
			readWide(dst, k.frame[k.at:], d.off, d.bits)
			continue
		}
		extend(dst, d.where(k), false)
	}
	for i := range st.cases {
		c := &st.cases[i]
		if c.vset < 0 && key[0]&c.mask0 != c.value0 {
			continue
		}
		if c.vset >= 0 {
			if s.inValueSet(st, c, key) {
				return c.next, parsed
			}
			continue
		}
		hit := true
		for j := 1; j < len(c.value); j++ {
			if key[j]&c.mask[j] != c.value[j] {
				hit = false
				break
			}
		}
		if hit {
			return c.next, parsed
		}
	}
	return st.next, parsed
}

// inValueSet reports whether the key is a member of the value set of c.
func (s *Switch) inValueSet(st *parseState, c *parseCase, key []uint64) bool {
	vs := &s.vsets[c.vset]
	if len(vs.members) == 0 {
		return false
	}
	w, at := words(vs.def.bits), vs.def.bits
	packed, part := s.tmp[st.pack:st.pack+w], s.tmp[st.pack+w:st.pack+2*w]
	clear(packed)
	for i := range st.parts {
		d := &st.parts[i]
		at -= d.bits
		extend(part, key[d.at:d.at+d.words], false)
		wShl(part, part, uint64(at))
		for j := range packed {
			packed[j] |= part[j]
		}
	}
	for i := range vs.members {
		if vs.members[i].hits(packed, c.mask, part) {
			return true
		}
	}
	return false
}

// extract extracts a header of type t to base. variable is the length of its varbit, in bits.
func (k *packetState) extract(e *parserErrors, t *headerType, base, variable int) int64 {
	size := (t.bits + variable) / 8
	if size > len(k.frame)-k.at {
		return int64(e.tooShort)
	}
	b := k.frame[k.at:]
	v := k.v[base : base+t.words]
	if t.loads != nil && len(b) >= size+beyond {
		for i := range t.loads {
			d := &t.loads[i]
			v[d.off] = binary.BigEndian.Uint64(b[d.byte:]) << (d.left & 63) >> (d.right & 63)
		}
	} else if t.varbit == nil {
		for _, f := range t.fields {
			if f.bits <= 64 {
				v[f.off] = readBits(b, f.bitOff, f.bits)
			} else {
				readWide(v[f.off:f.off+words(f.bits)], b, f.bitOff, f.bits)
			}
		}
	} else {
		off := 0
		for _, f := range t.fields {
			n := f.bits
			dst := v[f.off : f.off+words(n)]
			if f.varbit {
				n = variable
				v[f.lengthOff] = uint64(n)
				clear(dst)
				dst = dst[:words(n)]
			}
			readWide(dst, b, off, n)
			off += n
		}
	}
	k.at += size
	return parsed
}

// extractVariable extracts a header whose varbit has the given length, in bits.
func (k *packetState) extractVariable(e *parserErrors, t *headerType, base int, length uint64) int64 {
	if length%8 != 0 {
		return int64(e.invalidArgument)
	}
	if length > 8*uint64(len(k.frame)) {
		return int64(e.tooShort)
	}
	if size := (t.bits + int(length)) / 8; size > len(k.frame)-k.at {
		return int64(e.tooShort)
	}
	if int(length) > t.varbit.bits {
		return int64(e.headerTooShort)
	}
	return k.extract(e, t, base, int(length))
}

// deparser writes the valid headers in order.
type deparser struct {
	code  []step
	order []*header
}

// deparse returns the frame that the deparser of a block makes. It is valid until the next call.
func (s *Switch) deparse(k *packetState, block int) []byte {
	s.updateChecksums(k)
	d := s.prog.deparsers[block]
	w := bitWriter{b: s.buf[:0]}
	if d != nil {
		execute(k, d.code)
		w.b = s.buf[:0] // primitives may have used it meanwhile, and made it longer
		for _, h := range d.order {
			if k.v[h.base] != 0 {
				w.putHeader(k, h.typ, h.base)
			}
		}
		w.flush()
	}
	w.b = append(w.b, k.frame[k.at:]...)
	s.buf = w.b
	return w.b
}
