package xdp

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/quillon/quillon/nf/p4"
	"github.com/quillon/quillon/nf/p4/internal/ir"
)

// Part is a part of a program to which frames come. At it frames go to the engine if the part does one of the
// things in Engine, which the kernel cannot do, and if one of When is true of the frame. Otherwise the kernel
// runs the part.
type Part struct {
	Kind   string   `json:"kind"`
	Name   string   `json:"name"`
	Engine []string `json:"engine,omitempty"`
	When   []string `json:"when,omitempty"`
}

// parts are the parts of a program to which frames may come, in this order.
type parts struct {
	list []Part
	at   map[[2]string]int
}

func newParts() *parts { return &parts{at: map[[2]string]int{}} }

func (p *parts) visit(r Reason) int {
	key := [2]string{r.Kind, r.Name}
	i, ok := p.at[key]
	if !ok {
		i = len(p.list)
		p.at[key] = i
		p.list = append(p.list, Part{Kind: r.Kind, Name: r.Name})
	}
	return i
}

// Reasons that every table may have. They are left out of reports, because they say nothing about the program.
const (
	whyStopped = "its entries are not all in the kernel"
	whyForeign = "its entry has an action that is none of the table's"
)

// sometimes notes that some frames go to the engine at a part.
func (p *parts) sometimes(r Reason) {
	if r.Kind == "" || r.Why == whyStopped || r.Why == whyForeign || r.Why == whyChanging {
		return
	}
	x := &p.list[p.visit(r)]
	if !slices.Contains(x.When, r.Why) {
		x.When = append(x.When, r.Why)
	}
}

// never notes that the kernel cannot do something that a part does.
func (p *parts) never(r Reason, why string) {
	if r.Kind == "" {
		return
	}
	x := &p.list[p.visit(r)]
	x.When = slices.DeleteFunc(x.When, func(s string) bool { return s == why })
	if !slices.Contains(x.Engine, why) {
		x.Engine = append(x.Engine, why)
	}
}

// engine returns the parts that the kernel cannot run, and why.
func (p *parts) engine() (why []string) {
	for _, x := range p.list {
		if len(x.Engine) > 0 {
			why = append(why, fmt.Sprintf("%s %s: %s", x.Kind, x.Name, strings.Join(x.Engine, ", ")))
		}
	}
	return why
}

// Report says which parts of a program the kernel can run.
type Report struct {
	// Kernel says that the kernel can finish some frames. If it is false, the engine runs all frames, and Why
	// is the reason.
	Kernel bool   `json:"kernel"`
	Why    string `json:"why,omitempty"`
	// Instructions is the length of the program in the kernel, of which Stages are parts. Bytes is the size of a frame's state.
	Instructions int    `json:"instructions"`
	Stages       Stages `json:"stages,omitempty"`
	Bytes        int    `json:"bytes"`
	Parts        []Part `json:"parts"`
	// Any are reasons for which frames of every program go to the engine.
	Any []string `json:"any"`
}

// Analyse finds out which parts of a program the kernel can run. It does not ask a kernel, which may still
// refuse the program.
func Analyse(tree *ir.Program, c p4.Config) Report {
	c.DropPort = cmp.Or(c.DropPort, 511)
	c.Queues = cmp.Or(c.Queues, 8)
	s := &settings{DropPort: c.DropPort, Queues: c.Queues, Indices: 2, Processors: 1}
	x, err := compile(tree, s, dryMaps(tree, s))
	if err != nil {
		return Report{Why: err.Error()}
	}
	if far := tooFar(x.code); far != nil && x.finishes {
		for _, way := range ways(tree, &x)[1:] {
			s.FewExits, s.NoCopies = way.FewExits, way.NoCopies
			if y, err := compile(tree, s, dryMaps(tree, s)); err == nil {
				x, far = y, tooFar(y.code)
			}
			if far == nil {
				break
			}
		}
		if far != nil {
			return Report{Why: far.Error(), Instructions: len(x.code), Stages: x.stages, Bytes: x.size, Parts: x.parts.list}
		}
	}
	r := Report{Kernel: x.finishes, Instructions: len(x.code), Stages: x.stages, Bytes: x.size, Parts: x.parts.list}
	if !r.Kernel {
		r.Why = errNothing{x.parts.engine()}.Error()
	}
	for _, why := range x.reasons {
		if why.Kind == "" {
			r.Any = append(r.Any, why.Why)
		}
	}
	return r
}
