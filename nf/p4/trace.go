package p4

import (
	"fmt"
	"slices"
	"strings"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/p4/packettrace"
)

// EventKind is a kind of step of a packet.
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
	// EventReceived: a frame of Value bytes, which came in on port Object, goes
	// into ingress: from the port, resubmitted or recirculated.
	EventReceived
	// EventStage: stage Object begins.
	EventStage
	// EventVerify: checksum Object is right (Value 1) or wrong.
	EventVerify
	// EventUpdate: checksum Object is written.
	EventUpdate
	// EventClone: session Object gets a clone with number Value.
	EventClone
	// EventMulticast: the packet goes to group Object.
	EventMulticast
	// EventReplica: port Object gets a replica with number Value.
	EventReplica
	// EventResubmit: the packet comes again with number Value.
	EventResubmit
	// EventRecirculate: the packet comes again with number Value.
	EventRecirculate
	// EventDigest: digest Object goes to the controller.
	EventDigest
	// EventNoAction: table Object, which hit or missed, runs no action.
	EventNoAction
)

// The stages of EventStage.
const (
	stageParser = iota
	stageIngress
	stageEgress
	stageDeparser
)

var stageNames = []string{"parser", "ingress", "egress", "deparser"}

// Event is a step of a packet.
type Event struct {
	Kind   EventKind
	Object int
	Value  uint64
	// Copy is the number of the copy. 0 is the packet that came in; clones, replicas, and resubmitted and
	// recirculated packets are numbered from 1 on, in the order in which they were made, as in bmv2.
	Copy int
	// Text is the text of a log message.
	Text string
	// Data is the key of a hit or a miss, or the data of an action, as the engine's words. It is valid only
	// during the call.
	Data []uint64
}

func (s *Switch) event(kind EventKind, object int, value uint64) {
	if s.trace != nil {
		s.trace(Event{Kind: kind, Object: object, Value: value, Copy: s.copied})
	}
}

// Describe returns an event in words, with the program's names.
func (p *Program) Describe(e Event) string { return p.step(e).String() }

// step returns an event with the program's names, without the contents of entries.
func (p *Program) step(e Event) packettrace.Step {
	switch e.Kind {
	case EventState:
		return packettrace.Step{Kind: packettrace.State, Name: p.stateName(e.Object), At: int(e.Value)}
	case EventParseError:
		return packettrace.Step{Kind: packettrace.ParseError, Name: p.errorName(e.Value)}
	case EventCondition:
		x := packettrace.Step{Kind: packettrace.Condition, Name: at(p.nodes, e.Object, func(n node) string { return n.name }), Holds: e.Value != 0}
		if e.Object >= 0 && e.Object < len(p.nodes) {
			x.Source, x.Line = p.nodes[e.Object].about.text, p.nodes[e.Object].about.line
		}
		return x
	case EventHit, EventMiss:
		x := packettrace.Step{Kind: packettrace.Table, Name: at(p.tables, e.Object, (*tableDef).name), Holds: e.Kind == EventHit}
		if x.Holds {
			x.Entry = &packettrace.Entry{Handle: uint32(e.Value)}
		}
		if e.Object >= 0 && e.Object < len(p.tables) {
			x.Key = p.tables[e.Object].fields(e.Data)
		}
		return x
	case EventAction:
		x := packettrace.Step{Kind: packettrace.Action, Action: at(p.actions, e.Object, func(a *action) string { return a.Name })}
		if e.Object >= 0 && e.Object < len(p.actions) {
			x.Args = p.actions[e.Object].arguments(e.Data)
		}
		return x
	case EventEmit:
		return packettrace.Step{Kind: packettrace.Transmit, Port: uint32(e.Object), Length: int(e.Value)}
	case EventDrop:
		return packettrace.Step{Kind: packettrace.Drop, Name: Reason(e.Object % int(numReasons)).String()}
	case EventLog:
		x := packettrace.Step{Kind: packettrace.Log, Name: e.Text}
		if x.Name == "" {
			x.Name = at(p.logs, e.Object, func(m *logMessage) string { return m.format }) + fmt.Sprintf(" [%d]", e.Value)
		}
		return x
	case EventAssert:
		return packettrace.Step{Kind: packettrace.Assert, Name: at(p.logs, e.Object, func(m *logMessage) string { return m.format })}
	case EventReceived:
		return packettrace.Step{Kind: packettrace.Received, Port: uint32(e.Object), Length: int(e.Value)}
	case EventStage:
		return packettrace.Step{Kind: packettrace.Stage, Name: at(stageNames, e.Object, func(s string) string { return s })}
	case EventVerify:
		return packettrace.Step{Kind: packettrace.Verify, Name: at(p.verify, e.Object, func(c *checksum) string { return c.name }), Holds: e.Value != 0}
	case EventUpdate:
		return packettrace.Step{Kind: packettrace.Update, Name: at(p.update, e.Object, func(c *checksum) string { return c.name })}
	case EventClone:
		return packettrace.Step{Kind: packettrace.Clone, Number: uint32(e.Object), Copy: int(e.Value)}
	case EventMulticast:
		return packettrace.Step{Kind: packettrace.Multicast, Number: uint32(e.Object)}
	case EventReplica:
		return packettrace.Step{Kind: packettrace.Replica, Port: uint32(e.Object), Copy: int(e.Value)}
	case EventResubmit:
		return packettrace.Step{Kind: packettrace.Resubmit, Copy: int(e.Value)}
	case EventRecirculate:
		return packettrace.Step{Kind: packettrace.Recirculate, Copy: int(e.Value)}
	case EventDigest:
		i := slices.IndexFunc(p.digests, func(d *digestDef) bool { return d.ID == e.Object })
		return packettrace.Step{Kind: packettrace.Digest, Name: at(p.digests, i, func(d *digestDef) string { return d.Name })}
	case EventNoAction:
		return packettrace.Step{Kind: packettrace.Note, Name: "no action"}
	}
	return packettrace.Step{Kind: packettrace.Note, Name: fmt.Sprintf("event %d %d %d", e.Kind, e.Object, e.Value)}
}

// Step returns an event with the program's names. An entry is shown in its present state.
func (s *Switch) Step(e Event) packettrace.Step {
	x := s.prog.step(e)
	if x.Entry == nil || e.Object < 0 || e.Object >= len(s.tables) {
		return x
	}
	t := s.tables[e.Object]
	if e.Value >= uint64(len(t.rows)) || !t.rows[e.Value].live {
		x.Entry.Via = "the entry is gone"
		return x
	}
	entry := s.describe(t, uint32(e.Value))
	if t.def.Priority {
		x.Entry.Priority = entry.Priority
	}
	switch {
	case entry.Member != 0:
		x.Entry.Via = fmt.Sprintf("member %d", entry.Member)
	case entry.Group != 0:
		x.Entry.Via = fmt.Sprintf("group %d", entry.Group)
	}
	if x.Key == nil { // the event has no room for the key
		x.Key = make([]packettrace.Field, len(t.def.keys))
		for i := range x.Key {
			x.Key[i].Name = t.def.Keys[i].Name
		}
	}
	for i, m := range entry.Key {
		x.Key[i].Match = matchText(t.def.keys[i].kind, m)
	}
	return x
}

// Trace runs a frame through the program as Process does, and returns what happened to it. n becomes the
// packet's number in the trace.
func (s *Switch) Trace(n uint64, now clock.Time, port uint32, frame []byte, emit Emit) packettrace.Trace {
	t := packettrace.Trace{Packet: n, Origin: packettrace.Quillon}
	before := s.trace
	s.trace = func(e Event) { t.Add(e.Copy, s.Step(e)) }
	s.Process(now, port, frame, emit)
	s.trace = before
	return t
}

// fields returns the values of a key, or nil if data is too short for it.
func (d *tableDef) fields(data []uint64) []packettrace.Field {
	if len(data) < d.kw {
		return nil
	}
	all := make([]packettrace.Field, len(d.keys))
	for i, k := range d.keys {
		all[i] = packettrace.Field{Name: d.Keys[i].Name, Value: packettrace.Hex(bigEndian(data[k.at:], k.bits))}
	}
	return all
}

// arguments returns the arguments of an action, or dots if data is too short for them.
func (a *action) arguments(data []uint64) []packettrace.Field {
	if len(a.params) == 0 {
		return nil
	}
	if len(data) < a.words {
		return []packettrace.Field{{Value: "..."}}
	}
	all := make([]packettrace.Field, len(a.params))
	for i, p := range a.params {
		all[i] = packettrace.Field{Name: a.Params[i].Name, Value: packettrace.Hex(bigEndian(data[p.at:], p.bits))}
	}
	return all
}

// matchText returns the text of an entry's condition for a field.
func matchText(kind MatchKind, m Match) string {
	v := packettrace.Hex(m.Value)
	switch kind {
	case LPM:
		return fmt.Sprintf("%s/%d", v, m.Prefix)
	case Ternary:
		return v + "&&&" + packettrace.Hex(m.Mask)
	case Range:
		return v + ".." + packettrace.Hex(m.Mask)
	}
	return v
}

// fragment is a piece of the program's source text, and its place.
type fragment struct{ text, line string }

func (d *tableDef) name() string { return d.Name }

// at returns the name of element i of a list, or "?" if there is no such element.
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

// logMessage is a format in which {} stands for a value. For an assertion the format is its source text.
type logMessage struct {
	format string
	values []logValue
	index  int
}

type logValue struct {
	get   func(k *packetState) // stores the value in the scratch words
	words int
	at    int
}

// log records a message if the packet is traced.
func (m *logMessage) log(k *packetState) {
	s := k.sw
	if s.trace == nil {
		return
	}
	first := uint64(0)
	var text strings.Builder
	rest := m.format
	for i, v := range m.values {
		v.get(k)
		t := k.tmp[v.at : v.at+v.words]
		if i == 0 {
			first = t[0]
		}
		before, after, ok := strings.Cut(rest, "{}")
		if !ok {
			break
		}
		text.WriteString(before)
		text.WriteString(decimal(t))
		rest = after
	}
	text.WriteString(rest)
	s.trace(Event{Kind: EventLog, Object: m.index, Value: first, Copy: s.copied, Text: text.String()})
}
