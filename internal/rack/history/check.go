package history

import (
	"errors"
	"fmt"
	"io"
	"maps"
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
	// Needs is the only state in which a client can be told out, and Step then does
	// what it does; any: there is no such state, and every state will do.
	Needs func(in I, out O) (state uint64, any bool)
	// Makes is the state that an operation of unknown outcome leaves behind when
	// it changes anything; not known: that depends on the state before.
	Makes func(in I) (state uint64, known bool)
	// Inert reports that an operation never changes anything.
	Inert func(I) bool
	// InOrder, if not nil, reports that an operation takes effect before all that
	// its client calls later on the same object, even while it has not returned,
	// and that they do not when it does not: a promise of the channel that is
	// checked, too.
	InOrder func(I) bool
	// Describe and State are for the reader.
	Describe func(in I, out O, told bool) string
	State    func(uint64) string
}

// ErrUndecided: the search for an order gave up.
var ErrUndecided = errors.New("no verdict: too many states")

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

// Effort is how many states Check looks at for one object before it gives up,
// unless it is told otherwise: some seconds.
const Effort = 1 << 20

// Check searches an order that explains the log. It returns nil when there is
// one for every object, *NotLinearizable for the first object without one, and
// ErrUndecided when so many states (0: Effort) were not enough for an object
// while no other is at fault. The verdict does not depend on the machine.
func Check[I, O any](m Model[I, O], l *Log[I, O], effort int) error {
	if effort == 0 {
		effort = Effort
	}
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

// Visualize writes a page for a web browser that shows the history of one
// object, the longest orders that explain a part of it, and where they end.
func Visualize[I, O any](m Model[I, O], l *Log[I, O], object uint64, limit time.Duration, w io.Writer) error {
	model, ops := m.porcupine(object, m.objects(l.Ops())[object])
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

// objects sorts operations by object. Operations that never returned and change nothing are
// left out.
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
