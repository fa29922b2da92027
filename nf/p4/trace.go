package p4

import (
	"fmt"
	"strings"
)

// EventKind is a sort of step of a packet.
type EventKind uint16

// The steps of a packet.
const (
	// EventState: the parser enters state Object; Value is its place in the frame.
	EventState EventKind = iota
	// EventParseError: the parser fails in state Object with error Value.
	EventParseError
	// EventCondition: the condition of node Object is Value.
	EventCondition
	// EventHit: table Object hits entry Value.
	EventHit
	// EventMiss: table Object hits nothing.
	EventMiss
	// EventAction: action Object runs.
	EventAction
	// EventEmit: a frame of Value bytes leaves on port Object.
	EventEmit
	// EventDrop: the packet ends for reason Object.
	EventDrop
	// EventLog: log message Object, whose first value is Value.
	EventLog
	// EventAssert: assertion Object does not hold.
	EventAssert
)

// Event is a step of a packet. Text is that of a log message.
type Event struct {
	Kind   EventKind
	Object int
	Value  uint64
	Text   string
}

func (s *Switch) event(kind EventKind, object int, value uint64) {
	s.trace(Event{Kind: kind, Object: object, Value: value})
}

// Describe says what an event was, in the program's names.
func (p *Program) Describe(e Event) string {
	switch e.Kind {
	case EventState:
		return fmt.Sprintf("parser state %s at byte %d", p.stateName(e.Object), e.Value)
	case EventParseError:
		return fmt.Sprintf("parser fails in state %s with error %d (%s)", p.stateName(e.Object), e.Value, p.errorName(e.Value))
	case EventCondition:
		return fmt.Sprintf("condition %s is %v", at(p.nodes, e.Object, func(n node) string { return n.name }), e.Value != 0)
	case EventHit:
		return fmt.Sprintf("table %s hits entry %d", at(p.tables, e.Object, (*tableDef).name), e.Value)
	case EventMiss:
		return fmt.Sprintf("table %s misses", at(p.tables, e.Object, (*tableDef).name))
	case EventAction:
		return "action " + at(p.actions, e.Object, func(a *action) string { return a.Name })
	case EventEmit:
		return fmt.Sprintf("%d bytes leave on port %d", e.Value, e.Object)
	case EventDrop:
		return "dropped: " + Reason(e.Object%int(numReasons)).String()
	case EventLog:
		if e.Text != "" {
			return "log: " + e.Text
		}
		return "log: " + at(p.logs, e.Object, func(m *logMessage) string { return m.format }) + fmt.Sprintf(" [%d]", e.Value)
	case EventAssert:
		return "assertion fails: " + at(p.logs, e.Object, func(m *logMessage) string { return m.format })
	}
	return fmt.Sprintf("event %d %d %d", e.Kind, e.Object, e.Value)
}

func (d *tableDef) name() string { return d.Name }

// at is the name of a list's element, whatever the index.
func at[T any](list []T, i int, name func(T) string) string {
	if i < 0 || i >= len(list) {
		return "?"
	}
	return name(list[i])
}

func (p *Program) stateName(i int) string {
	if p.parser == nil {
		return "?"
	}
	return at(p.parser.states, i, func(s *parseState) string { return s.name })
}

func (p *Program) errorName(v uint64) string {
	for name, n := range p.errors {
		if uint64(n) == v {
			return name
		}
	}
	return "?"
}

// logMessage is a format with {} for values; an assertion has its source.
type logMessage struct {
	format string
	values []logValue
	index  int
}

type logValue struct {
	get   wideFn
	low   lowFn
	words int
	at    int // scratch
	neg   bool
}

// log records a message, when the packet is traced.
func (m *logMessage) log(k *packetState) {
	s := k.sw
	if s.trace == nil {
		return
	}
	first := uint64(0)
	var text strings.Builder
	rest := m.format
	for i, v := range m.values {
		t := k.tmp[v.at : v.at+v.words]
		v.get(k, t)
		if i == 0 {
			first = t[0]
		}
		before, after, ok := strings.Cut(rest, "{}")
		text.WriteString(before)
		if !ok {
			break
		}
		text.WriteString(decimal(t))
		rest = after
	}
	text.WriteString(rest)
	s.trace(Event{Kind: EventLog, Object: m.index, Value: first, Text: text.String()})
}
