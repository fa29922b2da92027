package packettrace

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// maxDepth is how deep messages may be nested.
const maxDepth = 64

// message is a protobuf message that was read from text or JSON: its fields in their order, by the names of the
// .proto file.
type message []member

// member is a field of a message. Its value is a text or a message.
type member struct {
	name string
	text string
	sub  message
	is   bool // a message
}

// get returns the message in a field, and whether there is one.
func (m message) get(name string) (message, bool) {
	for _, f := range m {
		if f.name == name && f.is {
			return f.sub, true
		}
	}
	return nil, false
}

// number returns the value of a field, or protobuf's default 0 if the message does not have it.
func (m message) number(name string) uint64 {
	for _, f := range m {
		if f.name == name && !f.is {
			n, err := strconv.ParseUint(f.text, 0, 64)
			if err == nil {
				return n
			}
		}
	}
	return 0
}

func (m message) word(name string) string {
	for _, f := range m {
		if f.name == name && !f.is {
			return f.text
		}
	}
	return ""
}

// String returns the message as one line of text.
func (m message) String() string {
	var b strings.Builder
	for i, f := range m {
		if i > 0 {
			b.WriteByte(' ')
		}
		if f.is {
			fmt.Fprintf(&b, "%s { %v }", f.name, f.sub)
		} else {
			fmt.Fprintf(&b, "%s: %s", f.name, f.text)
		}
	}
	return b.String()
}

// traces returns the traces of a sequence of PacketTraces whose fields are all in m.
func (m message) traces() []Trace {
	var all []Trace
	for _, f := range m {
		if !f.is {
			continue
		}
		if f.name == "input" || len(all) == 0 {
			all = append(all, Trace{Origin: BMv2Stages})
		}
		t := &all[len(all)-1]
		switch f.name {
		case "input":
			t.Packet = f.sub.number("packet_id")
			t.Add(0, Step{Kind: Received, Port: uint32(f.sub.number("ingress_port"))})
		case "root":
			t.tree(f.sub)
		default:
			t.Add(0, Step{Kind: Note, Name: message{f}.String()})
		}
	}
	return all
}

// tree adds the steps of a TraceTree.
func (t *Trace) tree(m message) {
	for _, f := range m {
		switch {
		case f.name == "events":
			t.stageEvent(f.sub)
		case f.name == "transmit":
			t.Add(0, Step{Kind: Transmit, Port: uint32(f.sub.number("egress_port")), Length: int(uint32(f.sub.number("packet_size")))})
		case f.name == "drop":
			t.Add(0, Step{Kind: Drop})
		default:
			t.Add(0, Step{Kind: Note, Name: message{f}.String()})
		}
	}
}

// stageEvent adds the step of a TraceEvent. It ignores the end of a stage, because the next stage begins there.
func (t *Trace) stageEvent(m message) {
	s, ok := m.get("pipeline_stage")
	if !ok {
		t.Add(0, Step{Kind: Note, Name: m.String()})
		return
	}
	if d := s.word("direction"); d == "EXIT" || d == "2" {
		return
	}
	name := s.word("stage_name")
	switch s.word("stage_kind") {
	case "PARSER", "1":
		name = "parser"
	case "DEPARSER", "3":
		name = "deparser"
	}
	t.Add(0, Step{Kind: Stage, Name: name})
}

// messageOf parses a message in JSON.
func messageOf(raw []byte) (message, error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var m message
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, fmt.Errorf("want an object, got %v", t)
	}
	err := m.object(d, 0)
	return m, err
}

// object reads to the end of a JSON object.
func (m *message) object(d *json.Decoder, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("nested too deep")
	}
	for d.More() {
		k, err := d.Token()
		if err != nil {
			return err
		}
		name, _ := k.(string)
		if err := m.value(d, snake(name), depth); err != nil {
			return err
		}
	}
	_, err := d.Token()
	return err
}

// value reads the value of a field, or the values of a list.
func (m *message) value(d *json.Decoder, name string, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("nested too deep")
	}
	t, err := d.Token()
	if err != nil {
		return err
	}
	switch t {
	case json.Delim('{'):
		f := member{name: name, is: true}
		err := f.sub.object(d, depth+1)
		*m = append(*m, f)
		return err
	case json.Delim('['):
		for d.More() {
			if err := m.value(d, name, depth+1); err != nil {
				return err
			}
		}
		_, err := d.Token()
		return err
	}
	*m = append(*m, member{name: name, text: fmt.Sprint(t)})
	return nil
}

// snake converts a field name of protobuf's JSON to its name in the .proto file.
func snake(s string) string {
	var b strings.Builder
	for _, c := range s {
		if c >= 'A' && c <= 'Z' {
			b.WriteByte('_')
			c += 'a' - 'A'
		}
		b.WriteRune(c)
	}
	return b.String()
}

// startsText reports whether a file begins like a PacketTrace in text format.
func startsText(head []byte) bool {
	p := textParser{s: string(head)}
	name := p.next()
	return (name == "input" || name == "root") && slices.Contains([]string{"{", "<", ":"}, p.next())
}

// readText reads PacketTraces in protobuf's text format.
func readText(r io.Reader) ([]Trace, error) {
	b, err := io.ReadAll(r)
	if err != nil {
		return nil, err
	}
	p := textParser{s: strings.ToValidUTF8(string(b), "\uFFFD")}
	m, err := p.message("", 0)
	if err != nil {
		return nil, fmt.Errorf("line %d: %w", 1+strings.Count(p.s[:p.at], "\n"), err)
	}
	return m.traces(), nil
}

// textParser parses protobuf's text format: fields NAME: VALUE and NAME { ... }, with comments that begin with
// #.
type textParser struct {
	s  string
	at int
}

// next returns the next token, or "" at the end.
func (p *textParser) next() string {
	for p.at < len(p.s) {
		switch c := p.s[p.at]; {
		case c == '#':
			if n := strings.IndexByte(p.s[p.at:], '\n'); n >= 0 {
				p.at += n
			} else {
				p.at = len(p.s)
			}
		case strings.IndexByte(" \t\r\n,;", c) >= 0:
			p.at++
		case strings.IndexByte("{}<>[]:", c) >= 0:
			p.at++
			return p.s[p.at-1 : p.at]
		case c == '"' || c == '\'':
			from := p.at
			for p.at++; p.at < len(p.s) && p.s[p.at] != c && p.s[p.at] != '\n'; p.at++ {
				if p.s[p.at] == '\\' {
					p.at++
				}
			}
			p.at = min(p.at+1, len(p.s))
			return p.s[from:p.at]
		default:
			from := p.at
			for p.at < len(p.s) && strings.IndexByte(" \t\r\n,;{}<>[]:#\"'", p.s[p.at]) < 0 {
				p.at++
			}
			return p.s[from:p.at]
		}
	}
	return ""
}

// message parses up to the token end; "" stands for the end of the text.
func (p *textParser) message(end string, depth int) (message, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("nested too deep")
	}
	var m message
	for {
		name := p.next()
		if name == end {
			return m, nil
		}
		if name == "" {
			return nil, fmt.Errorf("%q is missing at the end", end)
		}
		if strings.ContainsAny(name, "{}<>[]:\"'") {
			return nil, fmt.Errorf("%.40q where a field's name belongs", name)
		}
		if err := p.value(&m, name, depth); err != nil {
			return nil, err
		}
	}
}

func (p *textParser) value(m *message, name string, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("nested too deep")
	}
	t := p.next()
	if t == ":" {
		t = p.next()
	}
	switch t {
	case "{", "<":
		end := "}"
		if t == "<" {
			end = ">"
		}
		sub, err := p.message(end, depth+1)
		*m = append(*m, member{name: name, sub: sub, is: true})
		return err
	case "[":
		for {
			from := p.at
			if t := p.next(); t == "]" {
				return nil
			} else if t == "" {
				return fmt.Errorf(`"]" is missing at the end`)
			}
			p.at = from
			if err := p.value(m, name, depth+1); err != nil {
				return err
			}
		}
	case "", "}", ">", "]", ":":
		return fmt.Errorf("field %.40q has no value", name)
	}
	if t[0] == '"' || t[0] == '\'' {
		if len(t) < 2 || t[len(t)-1] != t[0] {
			return fmt.Errorf("field %.40q: a text without its end", name)
		}
		quoted := t
		if t[0] == '\'' {
			quoted = `"` + strings.ReplaceAll(t[1:len(t)-1], `"`, `\"`) + `"`
		}
		text, err := strconv.Unquote(quoted)
		if err != nil {
			text = t[1 : len(t)-1]
		}
		t = strings.ToValidUTF8(text, "\uFFFD")
	}
	*m = append(*m, member{name: name, text: t})
	return nil
}
