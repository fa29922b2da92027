// Package packettrace describes what happened to single packets in a P4 program, step by step: the parser's
// states, tables with the entries that were hit, actions, copies, and where each copy left or why it was
// dropped. The engine of nf/p4 makes such traces. Read also makes them of what bmv2 writes, so that both can be
// compared. It reads
//
//   - the log of simple_switch or psa_switch (--log-console or --log-file): all of it at level
//     trace, less at level debug, which has no conditions and no places in the
//     frame;
//   - bmv2's PacketTrace (proto/packet_trace.proto) as text, which is what it
//     writes, or as JSON; it contains only the pipeline's stages, and the end.
//
// Numbers are hexadecimal without leading zeros, whatever the source is.
package packettrace

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Kind is a kind of step.
type Kind string

// The kinds of steps, each with the fields that it uses.
const (
	Received    Kind = "received"    // Port, Length (0: not known)
	Stage       Kind = "stage"       // Name: parser, ingress, egress, deparser
	State       Kind = "state"       // Name; At: the byte of the frame that is next
	ParseError  Kind = "parse-error" // Name
	Verify      Kind = "verify"      // Name of the checksum; Holds
	Update      Kind = "update"      // Name of the checksum
	Condition   Kind = "condition"   // Name; Holds; Source, Line
	Table       Kind = "table"       // Name; Holds: hit; Key, Entry, Via; Action, Args
	Action      Kind = "action"      // Action, Args; Name of a table without a key; Line
	Clone       Kind = "clone"       // Number of the session, Copy
	Multicast   Kind = "multicast"   // Number of the group
	Replica     Kind = "replica"     // Port, Copy
	Resubmit    Kind = "resubmit"    // Copy
	Recirculate Kind = "recirculate" // Copy
	Digest      Kind = "digest"      // Name
	Log         Kind = "log"         // Name: the text
	Assert      Kind = "assert"      // Name: the text of what does not hold
	Transmit    Kind = "transmit"    // Port, Length
	Drop        Kind = "drop"        // Name of the reason; empty: not known
	Note        Kind = "note"        // Name: a message that only this source has
)

// Field is a named value.
type Field struct {
	Name  string `json:"name,omitempty"`
	Value string `json:"value"`
	// Match is the entry's condition for this field: VALUE, VALUE/LENGTH, VALUE&&&MASK or LOW..HIGH.
	Match string `json:"match,omitempty"`
}

// Step is one thing that happened to a copy. Its Kind says which fields have a meaning.
type Step struct {
	Kind   Kind    `json:"kind"`
	Name   string  `json:"name,omitempty"`
	Holds  bool    `json:"holds,omitempty"`
	At     int     `json:"at,omitempty"`
	Port   uint32  `json:"port,omitempty"`
	Length int     `json:"length,omitempty"`
	Number uint32  `json:"number,omitempty"`
	Copy   int     `json:"copy,omitempty"`
	Key    []Field `json:"key,omitempty"`
	Entry  *Entry  `json:"entry,omitempty"`
	Action string  `json:"action,omitempty"`
	Args   []Field `json:"args,omitempty"`
	Source string  `json:"source,omitempty"` // the program's text
	Line   string  `json:"line,omitempty"`   // and its place in the file
}

// Entry is the entry that a table hit.
type Entry struct {
	Handle   uint32 `json:"handle"`
	Priority int32  `json:"priority,omitempty"` // the lowest wins
	Via      string `json:"via,omitempty"`      // a member or a group of an action profile
}

// Copy is the packet itself (number 0), or a copy that was made of it.
type Copy struct {
	Number int    `json:"number"`
	Steps  []Step `json:"steps"`
}

// Origin is the program that wrote a trace. It decides which steps a trace can contain.
type Origin string

// The origins of traces.
const (
	Quillon    Origin = "quillon"
	BMv2       Origin = "bmv2"        // a log of level trace
	BMv2Debug  Origin = "bmv2-debug"  // a log of level debug
	BMv2Stages Origin = "bmv2-stages" // a PacketTrace
)

// Trace is what happened to a packet and to its copies.
type Trace struct {
	Packet uint64 `json:"packet"` // its number, from 0
	Origin Origin `json:"origin"`
	Copies []Copy `json:"copies"`
}

// Add appends a step of a copy. An action that follows a table lookup becomes a part of the lookup's step.
func (t *Trace) Add(number int, s Step) {
	c := t.copy(number)
	if n := len(c.Steps); s.Kind == Action && n > 0 {
		if last := &c.Steps[n-1]; last.Kind == Table && last.Action == "" {
			last.Action, last.Args = s.Action, s.Args
			return
		}
	}
	c.Steps = append(c.Steps, s)
}

// copy returns a copy, and adds it if it is new.
func (t *Trace) copy(number int) *Copy {
	i, found := slices.BinarySearchFunc(t.Copies, number, func(c Copy, n int) int { return cmp.Compare(c.Number, n) })
	if found {
		return &t.Copies[i]
	}
	t.Copies = slices.Insert(t.Copies, i, Copy{Number: number})
	return &t.Copies[i]
}

// String returns the step as one line of text.
func (s Step) String() string {
	head, rest := s.lines()
	if len(rest) > 0 {
		head += ": " + strings.Join(rest, "; ")
	}
	return strings.ReplaceAll(head, "\n", " ")
}

// lines returns the step in words, and details of it.
func (s Step) lines() (head string, rest []string) {
	switch s.Kind {
	case Received:
		if s.Length > 0 {
			return fmt.Sprintf("%d bytes come in on port %d", s.Length, s.Port), nil
		}
		return fmt.Sprintf("comes in on port %d", s.Port), nil
	case Stage:
		return s.Name, nil
	case State:
		if s.At > 0 {
			return fmt.Sprintf("state %s at byte %d", s.Name, s.At), nil
		}
		return "state " + s.Name, nil
	case ParseError:
		return "parser fails: " + s.Name, nil
	case Verify:
		if s.Holds {
			return "checksum " + s.Name + " is right", nil
		}
		return "checksum " + s.Name + " is wrong", nil
	case Update:
		return "checksum " + s.Name + " is updated", nil
	case Condition:
		head = fmt.Sprintf("condition %s is %v", s.Name, s.Holds)
		if s.Source != "" {
			rest = append(rest, s.Source+where(s.Line))
		}
	case Table:
		head = "table " + s.Name + " misses"
		if s.Holds {
			head = "table " + s.Name + " hits"
			if s.Entry != nil {
				head = fmt.Sprintf("table %s hits entry %d", s.Name, s.Entry.Handle)
				if s.Entry.Priority != 0 {
					head += fmt.Sprintf(" of priority %d", s.Entry.Priority)
				}
			}
		}
		for _, f := range s.Key {
			switch {
			case f.Match == "":
				rest = append(rest, f.Name+" = "+f.Value)
			case f.Value == "":
				rest = append(rest, f.Name+" by "+f.Match)
			default:
				rest = append(rest, f.Name+" = "+f.Value+" by "+f.Match)
			}
		}
		if s.Entry != nil && s.Entry.Via != "" {
			rest = append(rest, s.Entry.Via)
		}
		if s.Action != "" {
			rest = append(rest, "action "+s.call())
		}
	case Action:
		return "action " + s.call() + where(s.Line), nil
	case Clone:
		head = "cloned" + s.copyText()
		if s.Number != 0 {
			head += fmt.Sprintf(", session %d", s.Number)
		}
	case Multicast:
		head = "to a multicast group"
		if s.Number != 0 {
			head = fmt.Sprintf("to multicast group %d", s.Number)
		}
	case Replica:
		head = fmt.Sprintf("replicated to port %d%s", s.Port, s.copyText())
	case Resubmit:
		head = "resubmitted" + s.copyText()
	case Recirculate:
		head = "recirculated" + s.copyText()
	case Digest:
		return "digest " + s.Name, nil
	case Log:
		return "log: " + s.Name, nil
	case Assert:
		return "assertion fails: " + s.Name, nil
	case Transmit:
		return fmt.Sprintf("%d bytes leave on port %d", s.Length, s.Port), nil
	case Drop:
		if s.Name != "" {
			return "dropped: " + s.Name, nil
		}
		return "dropped", nil
	default:
		return s.Name, nil
	}
	return head, rest
}

// copyText names the copy that was made, or returns "" because bmv2 does not record it.
func (s Step) copyText() string {
	if s.Copy == 0 {
		return ""
	}
	return fmt.Sprintf(" as copy %d", s.Copy)
}

// call returns the action with its arguments.
func (s Step) call() string {
	args := make([]string, len(s.Args))
	for i, a := range s.Args {
		args[i] = a.Value
		if a.Name != "" {
			args[i] = a.Name + "=" + a.Value
		}
	}
	return s.Action + "(" + strings.Join(args, ", ") + ")"
}

func where(line string) string {
	if line == "" {
		return ""
	}
	return " (" + line + ")"
}

// inStage reports whether a step belongs to the stage that began before it.
func (s Step) inStage() bool {
	switch s.Kind {
	case Received, Stage, Clone, Multicast, Replica, Resubmit, Recirculate, Digest, Transmit, Drop:
		return false
	}
	return true
}

// Show writes traces as indented text. It writes notes only if notes is set.
func Show(w io.Writer, traces []Trace, notes bool) error {
	var b strings.Builder
	for _, t := range traces {
		fmt.Fprintf(&b, "packet %d\n", t.Packet)
		for _, c := range t.Copies {
			indent := "  "
			if c.Number != 0 {
				fmt.Fprintf(&b, "  copy %d\n", c.Number)
				indent = "    "
			}
			for _, s := range c.Steps {
				if s.Kind == Note && !notes {
					continue
				}
				in := indent
				if s.inStage() {
					in += "  "
				}
				head, rest := s.lines()
				fmt.Fprintf(&b, "%s%s\n", in, strings.ReplaceAll(head, "\n", "\n  "+in))
				for _, r := range rest {
					fmt.Fprintf(&b, "%s  %s\n", in, r)
				}
			}
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// Hex returns a big-endian number in the form of traces.
func Hex(b []byte) string {
	s := strings.TrimLeft(hex.EncodeToString(b), "0")
	s = cmp.Or(s, "0")
	return "0x" + s
}
