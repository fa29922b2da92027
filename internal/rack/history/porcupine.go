package history

import (
	"math"
	"slices"

	"github.com/anishathalye/porcupine"
)

// request and answer are the input and output of an operation, for porcupine.
type request[I any] struct {
	in I
	// client is the client's number among those of the object. after is the number of the client's operations
	// that must take effect before this one.
	client, after int
	inOrder       bool
}

type answer[O any] struct {
	out      O
	returned bool
}

// position is an object's state, and for each client how many of its operations in order have taken effect.
type position struct {
	state uint64
	done  []int32
}

// porcupine converts the model and the history of one object for that checker. Operations that never returned
// end after all others: an operation that never happened is the same as one that happened when no client
// could notice it any more.
func (m *Model[I, O]) porcupine(object uint64, ops []*Op[I, O]) (porcupine.Model, []porcupine.Operation) {
	number := make(map[int]int)
	inOrder := make(map[int]int)
	var history []porcupine.Operation
	for _, o := range ops {
		if _, ok := number[o.Client]; !ok {
			number[o.Client] = len(number)
		}
		r := request[I]{in: o.In, client: number[o.Client], after: inOrder[o.Client]}
		if r.inOrder = m.InOrder != nil && m.InOrder(o.In); r.inOrder {
			inOrder[o.Client]++
		}
		p := porcupine.Operation{ClientId: o.Client, Call: o.call, Return: o.ret, Output: answer[O]{o.Out, true}}
		if o.Open() {
			p.Output, p.Return = answer[O]{}, math.MaxInt64
		}
		p.Input = r
		history = append(history, p)
	}
	return porcupine.Model{
		Init: func() any { return &position{m.Init(object), make([]int32, len(number))} },
		Step: func(was, in, out any) (bool, any) {
			s, r, a := was.(*position), in.(request[I]), out.(answer[O])
			if int(s.done[r.client]) < r.after {
				return false, nil
			}
			next, ok := m.Step(s.state, r.in, a.out, a.returned)
			if !ok {
				return false, nil
			}
			if next == s.state && !r.inOrder {
				return true, s
			}
			n := &position{next, s.done}
			if r.inOrder {
				n.done = slices.Clone(s.done)
				n.done[r.client]++
			}
			return true, n
		},
		// Equal sets of done operations have equal counts, so the state is enough.
		Equal: func(a, b any) bool { return a.(*position).state == b.(*position).state },
		Hash:  func(s any) uint64 { return s.(*position).state * 0x9E3779B97F4A7C15 },
		DescribeOperation: func(in, out any) string {
			a := out.(answer[O])
			return m.Describe(in.(request[I]).in, a.out, a.returned)
		},
		DescribeState: func(s any) string { return m.State(s.(*position).state) },
	}, history
}
