package history

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// Model is how an object behaves when one client at a time uses it. Operations
// on different objects do not matter to each other.
type Model[I, O any] struct {
	Name string
	// Object names what an operation is on.
	Object func(I) uint64
	// Init is the state of an object before the history.
	Init func(object uint64) uint64
	// Step is the state after in. When told, ok says whether out is what a
	// client must be told; otherwise nobody knows out, and ok says whether in can
	// happen in that state at all.
	Step func(state uint64, in I, out O, told bool) (next uint64, ok bool)
	// Inert reports that an operation never changes anything.
	Inert func(I) bool
	// InOrder, if not nil, reports that an operation takes effect before all
	// that its client calls later on the same object, even while it has not
	// returned: a promise of the channel that is checked, too.
	InOrder func(I) bool
	// Describe and State are for the reader.
	Describe func(in I, out O, told bool) string
	State    func(uint64) string
}

// ErrUndecided: the search for an order took too long.
var ErrUndecided = errors.New("no verdict within the time limit")

// NotLinearizable says that no order explains what the clients of one object
// were told.
type NotLinearizable struct {
	Model  string
	Object uint64
	// Ops are the object's operations, and Open those of them of unknown
	// outcome.
	Ops, Open int
}

func (e *NotLinearizable) Error() string {
	return fmt.Sprintf("%s %#x: no order of its %d operations (%d of unknown outcome) explains what the clients were told", e.Model, e.Object, e.Ops, e.Open)
}

// Check searches an order that explains the log. It returns nil when there is
// one for every object, *NotLinearizable for the first object without one, and
// ErrUndecided when the search took longer than limit (0: none) for an object
// while no other is at fault.
func Check[I, O any](m Model[I, O], l *Log[I, O], limit time.Duration) error {
	by := m.partition(l.Ops())
	var undecided error
	for _, object := range slices.Sorted(maps.Keys(by)) {
		ops := by[object]
		switch porcupine.CheckOperationsTimeout(m.porcupine(object, clientsOf[I](ops)), ops, limit) {
		case porcupine.Illegal:
			return &NotLinearizable{m.Name, object, len(ops), openOps(ops)}
		case porcupine.Unknown:
			undecided = fmt.Errorf("%s %#x, %d operations, %d of unknown outcome: %w", m.Name, object, len(ops), openOps(ops), ErrUndecided)
		}
	}
	return undecided
}

// Visualize writes a page for a web browser that shows the history of one
// object, the longest orders that explain a part of it, and where they end.
func Visualize[I, O any](m Model[I, O], l *Log[I, O], object uint64, limit time.Duration, w io.Writer) error {
	ops := m.partition(l.Ops())[object]
	model := m.porcupine(object, clientsOf[I](ops))
	_, info := porcupine.CheckOperationsVerbose(model, ops, limit)
	return porcupine.Visualize(model, info, w)
}

// VisualizeFile writes the page of the object that err, which Check returned,
// complains about, and says where. Of any other error, or none, there is no
// page, and "" is returned.
func VisualizeFile[I, O any](m Model[I, O], l *Log[I, O], err error, pattern string) (name string, _ error) {
	var bad *NotLinearizable
	if !errors.As(err, &bad) || bad.Model != m.Name {
		return "", nil
	}
	f, err := os.CreateTemp("", pattern)
	if err != nil {
		return "", err
	}
	err = Visualize(m, l, bad.Object, 10*time.Second, f)
	return f.Name(), errors.Join(err, f.Close())
}

// Text is the history of one object, an event to a line.
func Text[I, O any](m Model[I, O], l *Log[I, O], object uint64) string {
	var s strings.Builder
	for _, o := range l.Ops() {
		if m.Object(o.In) != object {
			continue
		}
		if o.Open() {
			fmt.Fprintf(&s, "client %d  %d..       #%d     %s\n", o.Client, o.Called, o.call, m.Describe(o.In, o.Out, false))
		} else {
			fmt.Fprintf(&s, "client %d  %d..%d  #%d..%d  %s\n", o.Client, o.Called, o.Returned, o.call, o.ret, m.Describe(o.In, o.Out, true))
		}
	}
	return s.String()
}

// request and answer are what porcupine gets as an operation's input and output.
type request[I any] struct {
	in I
	// client is a number of the client among those of the object, and after the
	// number of its operations that take effect before this one.
	client, after int
	inOrder       bool
}

type answer[O any] struct {
	out  O
	told bool
}

// state is an object's state, and by client how many of its operations that
// have to take effect in order have done so.
type state struct {
	value uint64
	done  []int32
}

func openOps(ops []porcupine.Operation) int {
	n := 0
	for i := range ops {
		if ops[i].Return == math.MaxInt64 {
			n++
		}
	}
	return n
}

// partition sorts operations by object. What never returned ends after
// everything else: that it never happened is the same as that it happened when
// nobody could see it any more. One that changes nothing is left out.
func (m *Model[I, O]) partition(ops []Op[I, O]) map[uint64][]porcupine.Operation {
	type place struct {
		object uint64
		client int
	}
	by := make(map[uint64][]porcupine.Operation)
	clients := make(map[uint64]int)
	number := make(map[place]int)
	inOrder := make(map[place]int)
	for i := range ops {
		o := &ops[i]
		if o.Open() && m.Inert(o.In) {
			continue
		}
		object := m.Object(o.In)
		at := place{object, o.Client}
		if _, ok := number[at]; !ok {
			number[at] = clients[object]
			clients[object]++
		}
		r := request[I]{in: o.In, client: number[at]}
		p := porcupine.Operation{ClientId: o.Client, Call: o.call, Return: o.ret, Output: answer[O]{o.Out, true}}
		if o.Open() {
			p.Output, p.Return = answer[O]{}, math.MaxInt64
		} else {
			r.after = inOrder[at]
			if r.inOrder = m.InOrder != nil && m.InOrder(o.In); r.inOrder {
				inOrder[at]++
			}
		}
		p.Input = r
		by[object] = append(by[object], p)
	}
	return by
}

// porcupine is the model of one object that so many clients use.
func (m *Model[I, O]) porcupine(object uint64, clients int) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return &state{m.Init(object), make([]int32, clients)} },
		Step: func(was, in, out any) (bool, any) {
			s, r, a := was.(*state), in.(request[I]), out.(answer[O])
			if a.told && int(s.done[r.client]) < r.after {
				return false, nil
			}
			next, ok := m.Step(s.value, r.in, a.out, a.told)
			if !ok {
				return false, nil
			}
			if next == s.value && !r.inOrder {
				return true, s
			}
			n := &state{next, s.done}
			if r.inOrder {
				n.done = slices.Clone(s.done)
				n.done[r.client]++
			}
			return true, n
		},
		// How many operations are done follows from which ones are.
		Equal: func(a, b any) bool { return a.(*state).value == b.(*state).value },
		Hash:  func(s any) uint64 { return s.(*state).value * 0x9E3779B97F4A7C15 },
		DescribeOperation: func(in, out any) string {
			a := out.(answer[O])
			return m.Describe(in.(request[I]).in, a.out, a.told)
		},
		DescribeState: func(s any) string { return m.State(s.(*state).value) },
	}
}

// clientsOf is how many clients an object's operations are from.
func clientsOf[I any](ops []porcupine.Operation) int {
	n := 0
	for i := range ops {
		n = max(n, ops[i].Input.(request[I]).client+1)
	}
	return n
}
