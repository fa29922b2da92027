package xdp

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf/asm"

	"github.com/quillon/quillon/nf/p4/internal/ir"
)

// Value sets. Each transition on a value set has bit vectors of its own (vectors.go), because the key of each state is divided in another
// way. If the members are more than there is room for, and while they change without room for the new ones beside the old ones, the
// generation is odd, and frames that come to the transition go to the engine.

// valueSlots is the number of slots for the members of a value set.
const valueSlots = 128

// whyValues is why a frame goes to the engine at a transition.
const whyValues = "its value set changes, or is not in the kernel"

// use is a transition on a value set.
type use struct {
	state *ir.State
	of    *ir.Case
}

// usesOf returns all transitions on value sets, by Case.Use.
func usesOf(p *ir.Program) (all []use) {
	for i := range p.States {
		st := &p.States[i]
		for k := range st.Cases {
			if st.Cases[k].ValueSet > 0 {
				all = append(all, use{st, &st.Cases[k]})
			}
		}
	}
	return all
}

// valuesOf returns the shape of the vectors for a state; ok is false if its key is too long.
func valuesOf(st *ir.State) (s vectorsShape, ok bool) {
	for i := range st.Parts {
		s.bytes = append(s.bytes, vectorBytes(st.Parts[i].At, st.Parts[i].Bits)...)
	}
	return s.sized(valueSlots)
}

// valueSets are the value sets of an Executor.
type valueSets struct {
	x    *Executor
	uses []*vectors // by Case.Use; those of a key that is too long have no memory
}

func (s *valueSets) addValueSets() error {
	for n, u := range usesOf(s.x.tree) {
		shape, ok := valuesOf(u.state)
		if !ok {
			s.uses = append(s.uses, &vectors{})
			continue
		}
		mem, err := s.x.newShared(numbered("p4_values", n), shape.memory())
		if err != nil {
			return err
		}
		s.uses = append(s.uses, newVectors(shape, mem))
	}
	return nil
}

// ValueSet implements ir.Follower.
func (s *valueSets) ValueSet(set int, members []ir.SetMember) {
	for n, u := range usesOf(s.x.tree) {
		if u.of.ValueSet != set+1 || s.uses[n].mem == nil {
			continue
		}
		pieces, err := u.pieces(members)
		if err == nil {
			err = s.uses[n].replace(pieces)
		}
		name := s.x.tree.ValueSets[set]
		if delete(s.x.why, name); err != nil {
			s.uses[n].stop()
			s.x.why[name] = err.Error()
			return
		}
	}
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
			}
		}
		if all = times(piecesOfField(vectorBytes(0, p.Bits), value, mask, isRange), all); len(all) > maxPieces {
			return nil, fmt.Errorf("a member's ranges have more than %d pieces", maxPieces)
		}
		shift += p.Bits
	}
	if ranges < len(m.Ranges) {
		return nil, errors.New("a member has a range of what is no part of the key")
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

// replace puts pieces in the place of all others. Their order says nothing. If there is room beside the others, frames see one change; if not,
// frames go to the engine meanwhile.
func (v *vectors) replace(pieces [][]allowed) error {
	if len(pieces) > v.size() {
		return fmt.Errorf("the members have more than %d pieces", v.size())
	}
	var free []int
	generation := *v.mem.word(generationAt)
	for slot := range v.size() {
		if *v.mem.word(v.live(halfOf(generation)) + slot/64)>>(slot%64)&1 == 0 {
			free = append(free, slot)
		}
	}
	beside := generation&1 == 0 && len(free) >= len(pieces)
	if !beside {
		v.stop()
	}
	live := map[int]uint64{}
	for w := range v.words {
		live[w] = 0
	}
	for slot, allows := range pieces {
		if beside {
			slot = free[slot]
		}
		v.write(&piece{slot: slot, allows: allows})
		live[slot/64] |= 1 << (slot % 64)
	}
	v.change(live)
	if !beside {
		v.grow(1)
	}
	return nil
}

// stop has all frames that look go to the engine.
func (v *vectors) stop() {
	if *v.mem.word(generationAt)&1 == 0 {
		v.grow(1)
	} else {
		v.grow(2)
	}
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
func (g *parsing) asks(st *ir.State, c *ir.Case, next string) {
	s, ok := valuesOf(st)
	if !ok {
		unsupported("it asks a value set for a key of %d bytes", len(s.bytes))
	}
	changing, same := g.fresh(), g.fresh()
	fd := g.maps.values[c.Use]
	readGeneration(g.emitter, fd, generationAt, keyGeneration, changing)
	g.intersect(fd, &s, keyStack, keyGeneration)
	checkGeneration(g.emitter, fd, generationAt, keyGeneration, changing)
	g.jump(same)
	g.label(changing)
	g.pass(whyValues)
	g.label(same)
	g.whenImm(asm.JEq, asm.R2, 0, next)
}
