package history

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// Model describes how an object behaves if one client at a time uses it. Different objects are independent of
// each other.
type Model[I, O any] struct {
	Name string
	// Object returns the object of an operation.
	Object func(I) uint64
	// Init returns the state of an object before the history.
	Init func(object uint64) uint64
	// Step returns the state after in. If told is true, ok reports whether out is the right answer; otherwise
	// the answer is not known, and ok reports whether in can happen in that state at all.
	Step func(state uint64, in I, out O, told bool) (next uint64, ok bool)
	// Needs returns the only state in which out is the right answer; Step of that state then gives the state
	// after in. any: there is no such state, because the answer is right in every state.
	Needs func(in I, out O) (state uint64, any bool)
	// Makes returns the state that an operation of unknown outcome leaves behind if it changes anything;
	// known = false: that depends on the state before.
	Makes func(in I) (state uint64, known bool)
	// Inert reports whether an operation never changes anything.
	Inert func(I) bool
	// InOrder, if not nil, reports whether an operation takes effect before all operations that its client
	// calls later on the same object, even if it has not returned yet; and if it does not take effect, the
	// later ones do not either. That is a promise of the channel, which is checked, too.
	InOrder func(I) bool
	// Describe and State return text for people.
	Describe func(in I, out O, told bool) string
	State    func(uint64) string
}

// ErrUndecided means that the search for an order gave up.
var ErrUndecided = errors.New("no verdict: too many states")

// NotLinearizable says that no order explains the answers that the clients of one object got.
type NotLinearizable struct {
	Model  string
	Object uint64
	// Ops is the number of the object's operations, and Open the number of those with an unknown outcome.
	Ops, Open int
}

func (e *NotLinearizable) Error() string {
	return fmt.Sprintf("%s %#x: no order of its %d operations (%d of unknown outcome) explains what the clients were told", e.Model, e.Object, e.Ops, e.Open)
}

// Effort is the default number of states that Check examines for one object before it gives up: that takes a
// few seconds.
const Effort = 1 << 20

// Check searches an order that explains the log. It returns nil if there is one for every object, or
// *NotLinearizable for the first object without one. It returns ErrUndecided if effort states (0: Effort)
// were not enough for an object and no other object is wrong. The verdict does not depend on the machine.
func Check[I, O any](m Model[I, O], l *Log[I, O], effort int) error {
	effort = cmp.Or(effort, Effort)
	by := m.objects(l.Ops())
	var undecided error
	for _, object := range slices.Sorted(maps.Keys(by)) {
		ops := by[object]
		ok, err := m.find(object, ops, effort)
		switch {
		case errors.Is(err, errTired):
			undecided = fmt.Errorf("%s %#x, %d operations, %d of unknown outcome: %w", m.Name, object, len(ops), openOps(ops), ErrUndecided)
		case err != nil:
			return err
		case !ok:
			return &NotLinearizable{m.Name, object, len(ops), openOps(ops)}
		}
	}
	return undecided
}

// VisualizeFile writes a page for a web browser to a new file, and returns the file's name. The page shows the
// history of the object in err, which Check returned, the longest orders that explain a part of it, and where
// these end. For any other error, and for nil, it writes nothing and returns "".
func VisualizeFile[I, O any](m Model[I, O], l *Log[I, O], err error, pattern string) (name string, _ error) {
	var bad *NotLinearizable
	if !errors.As(err, &bad) || bad.Model != m.Name {
		return "", nil
	}
	f, err := os.CreateTemp("", pattern)
	if err != nil {
		return "", err
	}
	model, ops := m.porcupine(bad.Object, m.objects(l.Ops())[bad.Object])
	_, info := porcupine.CheckOperationsVerbose(model, ops, 10*time.Second)
	return f.Name(), errors.Join(porcupine.Visualize(model, info, f), f.Close())
}

// Text returns the history of one object, an event in each line.
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

// objects groups operations by object. It leaves out operations that never returned and change nothing.
func (m *Model[I, O]) objects(ops []Op[I, O]) map[uint64][]*Op[I, O] {
	by := make(map[uint64][]*Op[I, O])
	for i := range ops {
		if o := &ops[i]; !o.Open() || !m.Inert(o.In) {
			object := m.Object(o.In)
			by[object] = append(by[object], o)
		}
	}
	return by
}

func openOps[I, O any](ops []*Op[I, O]) int {
	n := 0
	for _, o := range ops {
		if o.Open() {
			n++
		}
	}
	return n
}
