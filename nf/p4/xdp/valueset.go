package xdp

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf/asm"

	"github.com/quillon/quillon/nf/p4/internal/ir"
)

// Value sets. Each transition on a value set has bit vectors of its own (vectors.go), because the key of each state is divided in another
// way. Those of all transitions on one set have one memory, and one generation, so that one store changes the members for all of them. There is
// room for the new members beside the old ones. If the members are too many, the generation is odd, and frames that come to such a transition go to the engine.
//
// A frame that comes to several transitions on a set, or several times to one, notes the generation that it saw first. It goes to the engine
// if it sees another one later: else it might find one key among the members before a change, and not another one among those behind it.

// maxValues is how many pieces the members of a value set may have. There are twice as many slots.
const maxValues = 128

// whyValues is why a frame goes to the engine at a transition.
const whyValues = "its value set changes, or is not in the kernel"

// use is a transition on a value set. fits is false if its key is too long for bit vectors.
type use struct {
	state *ir.State
	of    *ir.Case
	shape vectorsShape
	fits  bool
}

// usesOf returns all transitions on value sets, by Case.Use.
func usesOf(p *ir.Program) (all []use) {
	front := make([]int, len(p.ValueSets))
	for i := range p.States {
		st := &p.States[i]
		for k := range st.Cases {
			set := st.Cases[k].ValueSet - 1
			if set < 0 {
				continue
			}
			u := use{state: st, of: &st.Cases[k]}
			for i := range st.Parts {
				u.shape.bytes = append(u.shape.bytes, vectorBytes(st.Parts[i].At, st.Parts[i].Bits)...)
			}
			u.shape.front = front[set]
			if u.shape, u.fits = u.shape.sized(2 * maxValues); u.fits {
				front[set] = u.shape.memory()/8 - halvesAt
			}
			all = append(all, u)
		}
	}
	return all
}

// valueSets are the value sets of an Executor.
type valueSets struct {
	x     *Executor
	vsets []*valueSet
}

// valueSet is a value set in the kernel.
type valueSet struct {
	mem   *shared // nil: no transition asks it
	store func(word int, v uint64)
	uses  []use
	in    []*vectors // by use
	empty bool
}

func (s *valueSets) addValueSets() error {
	uses := usesOf(s.x.tree)
	for n := range s.x.tree.ValueSets {
		set := &valueSet{empty: true}
		s.vsets = append(s.vsets, set)
		size := 0
		for _, u := range uses {
			if u.of.ValueSet == n+1 && u.fits {
				set.uses = append(set.uses, u)
				size = u.shape.memory()
			}
		}
		if size == 0 {
			continue
		}
		var err error
		if set.mem, err = s.x.newShared(numbered("p4_values", n), size); err != nil {
			return err
		}
		set.store = set.mem.store
		for _, u := range set.uses {
			v := newVectors(u.shape, set.mem)
			v.store = func(word int, x uint64) { set.store(word, x) }
			set.in = append(set.in, v)
		}
	}
	return nil
}

// ValueSet implements ir.Follower.
func (s *valueSets) ValueSet(set int, members []ir.SetMember) {
	s.x.changes++
	to, name := s.vsets[set], s.x.tree.ValueSets[set]
	to.empty = len(members) == 0
	delete(s.x.why, name)
	if err := to.replace(members); err != nil {
		to.store(generationAt, *to.mem.word(generationAt)|1)
		s.x.why[name] = err.Error()
	}
}

// replace puts members in the place of all others. Frames see one change, and a process that is killed leaves the others or these.
func (s *valueSet) replace(members []ir.SetMember) error {
	var all [][][]allowed
	for _, u := range s.uses {
		pieces, err := u.pieces(members)
		if err == nil && len(pieces) > maxValues {
			err = fmt.Errorf("the members have more than %d pieces", maxValues)
		}
		if err != nil {
			return err
		}
		all = append(all, pieces)
	}
	if s.mem == nil {
		return nil
	}
	generation := *s.mem.word(generationAt)
	half := halfOf(generation)
	for n, v := range s.in {
		live, slot := make([]uint64, v.words), 0
		for _, allows := range all[n] {
			for inUse(s.mem, &v.vectorsShape, half, slot) {
				slot++
			}
			v.write(&piece{slot: slot, allows: allows})
			live[slot/64] |= 1 << (slot % 64)
			slot++
		}
		for w, x := range live {
			s.store(v.live(1-half)+w, x)
		}
	}
	s.store(generationAt, (generation|1)+1) // the next even one, of the other half
	return nil
}

// hasMembers reports whether a transition finds members of a value set, or has more than there is room for.
func hasMembers(mem *shared, s vectorsShape) bool {
	generation := *mem.word(generationAt)
	at := s.live(halfOf(generation))
	return generation&1 != 0 || slices.ContainsFunc(mem.words()[at:at+s.words], func(w uint64) bool { return w != 0 })
}

// pieces returns the pieces of all members.
func (u use) pieces(members []ir.SetMember) (all [][]allowed, err error) {
	for i := range members {
		one, err := u.piecesOf(&members[i])
		if err != nil {
			return nil, err
		}
		all = append(all, one...)
	}
	return all, nil
}

func (u use) piecesOf(m *ir.SetMember) ([][]allowed, error) {
	all, shift, ranges := [][]allowed{nil}, 0, 0
	for i := len(u.state.Parts) - 1; i >= 0; i-- { // the last part is in the lowest bits
		p := &u.state.Parts[i]
		value, mask := cutOut(m.Value, shift, p.Bits), cutOut(m.Mask, shift, p.Bits)
		if keep := u.of.Mask; keep != nil {
			for w, k := range cutOut(keep, shift, p.Bits) {
				mask[w] &= k
			}
		}
		isRange := false
		for _, r := range m.Ranges {
			if r.Shift == shift && r.Bits == p.Bits {
				value, mask, isRange = cutOut(r.Low, 0, p.Bits), cutOut(r.High, 0, p.Bits), true
				ranges++
				break
			}
		}
		if all = times(piecesOfField(vectorBytes(0, p.Bits), value, mask, isRange), all); len(all) > maxPieces {
			return nil, fmt.Errorf("a member's ranges have more than %d pieces", maxPieces)
		}
		shift += p.Bits
	}
	if ranges < len(m.Ranges) {
		return nil, errors.New("a member has a range of what is no part of the key, or two of one part")
	}
	return all, nil
}

// cutOut returns the words of the n bits of a number from bit shift on.
func cutOut(v []uint64, shift, n int) []uint64 {
	to := make([]uint64, (n+63)/64)
	for w := range to {
		i, s := w+shift/64, shift%64
		if i < len(v) {
			to[w] = v[i] >> s
		}
		if s > 0 && i+1 < len(v) {
			to[w] |= v[i+1] << (64 - s)
		}
		to[w] &= ones(min(64, n-64*w))
	}
	return to
}

// Where the words of a transition key are on the stack, and behind them the generation.
const (
	keyStack      = loopAt - 8*maxInRegisters
	keyGeneration = keyStack - 8
)

// keepKey stores a transition key on the stack, and bringKey loads it again.
func (g *parsing) keepKey(key []keyWord) {
	for _, k := range key {
		g.keep(asm.RFP, keyStack+8*k.at, k.reg, asm.DWord)
	}
}

func (g *parsing) bringKey(key []keyWord) {
	for _, k := range key {
		g.load(k.reg, asm.RFP, keyStack+8*k.at, asm.DWord)
	}
}

// asks jumps to next if the key on the stack is no member of a value set.
func (g *parsing) asks(c *ir.Case, next string) {
	u := usesOf(g.p)[c.Use]
	if !u.fits {
		unsupported("it asks a value set for a key of %d bytes", len(u.shape.bytes))
	}
	changing, same, first := g.fresh(), g.fresh(), g.fresh()
	fd := g.maps.values[c.ValueSet-1]
	readGeneration(g.emitter, fd, generationAt, keyGeneration, changing)
	seen, there := g.seen[c.ValueSet]
	if !there {
		seen = g.mark()
		g.seen[c.ValueSet] = seen
	}
	g.calc(asm.Or, asm.R1, 1) // 0: the frame has seen none
	g.get(asm.R4, seen)
	g.whenImm(asm.JEq, asm.R4, 0, first)
	g.compareRegs(asm.JNE, asm.R4, asm.R1, changing)
	g.label(first)
	g.put(seen, asm.R1)
	g.intersect(fd, &u.shape, keyStack, keyGeneration)
	checkGeneration(g.emitter, fd, generationAt, keyGeneration, changing)
	g.jump(same)
	g.label(changing)
	g.pass(whyValues)
	g.label(same)
	g.whenImm(asm.JEq, asm.R2, 0, next)
}
