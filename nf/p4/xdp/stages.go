package xdp

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/cilium/ebpf/asm"
)

// Stage is a stage of a program in the kernel, and the number of its instructions.
type Stage struct {
	Name         string `json:"name"`
	Instructions int    `json:"instructions"`
}

// Stages are the stages of a program.
type Stages []Stage

// border is where a stage begins in a program that is not shortened yet.
type border struct {
	name string
	from int // instruction
}

// stage begins a stage.
func (g *gen) stage(name string) { g.borders = append(g.borders, border{name, len(g.code)}) }

// stages returns the length of each stage of a program that was shortened. Stages of which nothing is left are missing.
func (f *flow) stages(borders []border) (all Stages) {
	for _, b := range borders {
		all = append(all, Stage{Name: b.name})
	}
	for _, i := range f.order {
		b := &f.blocks[i]
		n := len(b.body)
		if b.kind != goes {
			n++
		}
		of := slices.IndexFunc(borders, func(x border) bool { return x.from > b.from })
		if of < 0 {
			of = len(borders)
		}
		all[max(0, of-1)].Instructions += n
	}
	return slices.DeleteFunc(all, func(s Stage) bool { return s.Instructions == 0 })
}

// String returns the stages with their lengths, the longest first.
func (s Stages) String() string {
	all := slices.Clone(s)
	slices.SortStableFunc(all, func(a, b Stage) int { return b.Instructions - a.Instructions })
	var text []string
	for _, s := range all {
		text = append(text, fmt.Sprintf("%s %d", s.Name, s.Instructions))
	}
	return strings.Join(text, ", ")
}

// tooFar returns an error if a jump skips more instructions than a jump of the kernel can. Package asm would keep the lowest 16 bits of the
// distance, with which the jump would lead to another place.
func tooFar(code asm.Instructions) error {
	at, all := map[string]asm.RawInstructionOffset{}, asm.RawInstructionOffset(0)
	for it := code.Iterate(); it.Next(); {
		if s := it.Ins.Symbol(); s != "" {
			at[s] = it.Offset
		}
		all = it.Offset + 1
	}
	for it := code.Iterate(); it.Next(); {
		to := it.Ins.Reference()
		if to == "" || !isJump(it.Ins) {
			continue
		}
		if far := int64(at[to]) - int64(it.Offset) - 1; far > math.MaxInt16 || far < math.MinInt16 {
			return fmt.Errorf("it has %d instructions, and a jump over %d of them: the kernel's jumps reach %d", all, max(far, -far), math.MaxInt16)
		}
	}
	return nil
}
