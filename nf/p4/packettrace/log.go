package packettrace

import (
	"bufio"
	"io"
	"slices"
	"strconv"
	"strings"
)

// maxLine is the longest line of a log in bytes, maxMessage the longest message of several lines that is read.
const maxLine, maxMessage = 1 << 20, 1 << 16

// logReader makes traces of a log of simple_switch or psa_switch. A message is a line like
//
//	[09:25:46.816] [bmv2] [D] [thread 1] [0.0] [cxt 0] Table 'ingress.t': miss
//
// with the numbers of packet and copy. It may continue in lines that do not begin like that.
type logReader struct {
	packets map[uint64]*logPacket
	order   []*logPacket
	last    map[string]*logCopy // by thread
	traced  bool                // there are messages of level trace
}

type logPacket struct {
	Trace
	copies map[int]*logCopy
}

// logCopy is the state of a copy as far as the log was read, including the parts of a step that is not
// complete.
type logCopy struct {
	packet  *logPacket
	number  int
	at      int     // bytes parsed
	key     []Field // of the lookup under way
	table   string  // the table whose action follows
	ran     string  // the action that is a step already
	cloning bool
	// deparsing says that the last stage is a deparser, whose methods psa_switch logs as actions.
	deparsing bool
}

func readLog(r io.Reader) ([]Trace, error) {
	l := &logReader{packets: map[uint64]*logPacket{}, last: map[string]*logCopy{}}
	s := bufio.NewScanner(r)
	s.Buffer(make([]byte, 0, 64<<10), maxLine)
	var head logLine
	var more []string
	size, open := 0, false
	for s.Scan() {
		line := strings.ToValidUTF8(strings.TrimSuffix(s.Text(), "\r"), "\uFFFD")
		if next, ok := parseLogLine(line); ok {
			if open {
				l.message(head, more)
			}
			head, more, size, open = next, more[:0], 0, true
		} else if size += len(line) + 1; open && size < maxMessage {
			more = append(more, line)
		}
	}
	if err := s.Err(); err != nil {
		return nil, err
	}
	if open {
		l.message(head, more)
	}
	return l.traces(), nil
}

// logLine is the first line of a message.
type logLine struct {
	level, thread string
	packet        uint64
	copy          int
	has           bool // a packet
	text          string
}

// bracket returns what is in brackets at the beginning of s, and the rest of s.
func bracket(s string) (in, rest string, ok bool) {
	if !strings.HasPrefix(s, "[") {
		return "", s, false
	}
	in, rest, ok = strings.Cut(s[1:], "]")
	return in, strings.TrimPrefix(rest, " "), ok
}

func parseLogLine(s string) (logLine, bool) {
	var m logLine
	var time, name string
	var ok [4]bool
	time, s, ok[0] = bracket(s)
	name, s, ok[1] = bracket(s)
	m.level, s, ok[2] = bracket(s)
	m.thread, s, ok[3] = bracket(s)
	if !ok[0] || !ok[1] || !ok[2] || !ok[3] || time == "" || name == "" || len(m.level) != 1 || !strings.HasPrefix(m.thread, "thread ") {
		return m, false
	}
	m.text = s
	id, rest, ok1 := bracket(s)
	cxt, rest, ok2 := bracket(rest)
	if !ok1 || !ok2 || !strings.HasPrefix(cxt, "cxt ") {
		return m, true
	}
	packet, number, _ := strings.Cut(id, ".")
	p, err1 := strconv.ParseUint(packet, 10, 64)
	c, err2 := strconv.ParseUint(number, 10, 31)
	if err1 == nil && err2 == nil {
		m.packet, m.copy, m.has, m.text = p, int(c), true, rest
	}
	return m, true
}

// of returns a copy of a packet, and adds it if it is new.
func (l *logReader) of(packet uint64, number int) *logCopy {
	p := l.packets[packet]
	if p == nil {
		p = &logPacket{Trace: Trace{Packet: packet}, copies: map[int]*logCopy{}}
		l.packets[packet] = p
		l.order = append(l.order, p)
	}
	c := p.copies[number]
	if c == nil {
		c = &logCopy{packet: p, number: number}
		p.copies[number] = c
	}
	return c
}

func (c *logCopy) add(s Step) { c.packet.Add(c.number, s) }

// lastTable returns the last step of the copy if that is a table lookup, else nil. It skips notes.
func (c *logCopy) lastTable() *Step {
	steps := c.packet.copy(c.number).Steps
	for i := len(steps) - 1; i >= 0; i-- {
		if steps[i].Kind == Table {
			return &steps[i]
		} else if steps[i].Kind != Note {
			break
		}
	}
	return nil
}

// comesAgain reports whether the packet itself goes to ingress again: in psa_switch it keeps its number.
func (p *logPacket) comesAgain() bool {
	steps := p.copy(0).Steps
	return len(steps) > 0 && slices.Contains([]Kind{Resubmit, Recirculate}, steps[len(steps)-1].Kind)
}

func (l *logReader) message(m logLine, more []string) {
	if m.level == "T" {
		l.traced = true
	}
	if !m.has {
		c := l.last[m.thread]
		switch {
		case c == nil:
		case m.level == "I":
			c.add(Step{Kind: Log, Name: strings.Join(append([]string{m.text}, more...), "\n")})
		case strings.HasPrefix(m.text, "Assert error: "), strings.HasPrefix(m.text, "Assume error: "):
			text, _, _ := strings.Cut(m.text[len("Assert error: "):], " failed, file ")
			c.add(Step{Kind: Assert, Name: text})
		}
		return
	}
	if p, again := l.packets[m.packet]; again && m.copy == 0 && strings.HasPrefix(m.text, received) && !p.comesAgain() {
		delete(l.packets, m.packet) // the switch was restarted
	}
	c := l.of(m.packet, m.copy)
	l.last[m.thread] = c
	if s, ok := c.step(m.text, more); ok {
		c.add(s)
	}
}

// quoted returns the name in quotes that follows before and is followed by after.
func quoted(s, before, after string) (string, bool) {
	s, ok := strings.CutPrefix(s, before+"'")
	if !ok {
		return "", false
	}
	return strings.CutSuffix(s, "'"+after)
}

// number returns the number that follows before.
func number(s, before string) (int, bool) {
	s, ok := strings.CutPrefix(s, before)
	n, err := strconv.ParseUint(s, 10, 32)
	return int(n), ok && err == nil
}

// received is the beginning of the first message of a packet.
const received = "Processing packet received on port "

// stage handles messages of parsers, pipelines, deparsers and checksums. known says that the message is one of
// these; hasStep says that it is a step.
func (c *logCopy) stage(s string) (_ Step, hasStep, known bool) {
	if n, ok := number(s, received); ok {
		return Step{Kind: Received, Port: uint32(n)}, true, true
	}
	if _, ok := quoted(s, "Parser ", ": start"); ok {
		c.at = 0
		return Step{Kind: Stage, Name: "parser"}, true, true
	}
	if name, ok := quoted(s, "Pipeline ", ": start"); ok {
		return Step{Kind: Stage, Name: name}, true, true
	}
	if _, ok := quoted(s, "Deparser ", ": start"); ok {
		return Step{Kind: Stage, Name: "deparser"}, true, true
	}
	if rest, ok := strings.CutPrefix(s, "Parser '"); ok {
		if _, state, ok := strings.Cut(rest, "' entering state '"); ok {
			return Step{Kind: State, Name: strings.TrimSuffix(state, "'"), At: c.at}, true, true
		}
	}
	if n, ok := number(s, "Bytes parsed: "); ok {
		c.at = n
		return Step{}, false, true
	}
	if name, ok := strings.CutPrefix(s, "Exception while parsing: "); ok {
		return Step{Kind: ParseError, Name: name}, true, true
	}
	if name, ok := quoted(s, "Verified checksum ", ": passed"); ok {
		return Step{Kind: Verify, Name: name, Holds: true}, true, true
	}
	if name, ok := quoted(s, "Verified checksum ", ": failed"); ok {
		return Step{Kind: Verify, Name: name}, true, true
	}
	if name, ok := quoted(s, "Updating checksum ", ""); ok {
		return Step{Kind: Update, Name: name}, true, true
	}
	return Step{}, false, false
}

// step returns the step of a message. It returns false if the message is no step, or if the step needs further
// messages.
func (c *logCopy) step(s string, more []string) (Step, bool) {
	if step, hasStep, known := c.stage(s); known {
		if step.Kind == Stage {
			c.deparsing = step.Name == "deparser"
		}
		return step, hasStep
	}
	if strings.HasPrefix(s, "Looking up key:") {
		c.key = nil
		for _, line := range more {
			if f, ok := keyField(line); ok {
				f.Value = hexText(f.Value)
				c.key = append(c.key, f)
			}
		}
		return Step{}, false
	}
	if step, ok := c.lookup(s); ok {
		c.table = ""
		if len(step.Key) == 0 && !step.Holds {
			c.table = step.Name // without a key, its action is the step
			return Step{}, false
		}
		return step, true
	}
	if strings.HasPrefix(s, "Dumping entry ") {
		c.entry(more)
		return Step{}, false
	}
	if name, ok := strings.CutPrefix(s, "Executing method "); ok { // of the parser; "Action name" follows
		c.ran = name
		return Step{Kind: Note, Name: s}, true
	}
	if text, ok := strings.CutPrefix(s, "Action entry is "); ok {
		return c.actionEntry(text)
	}
	switch s {
	case "Cloning packet at ingress", "Cloning packet at egress":
		c.cloning = true // if the session exists
		return Step{}, false
	case "Multicast requested for packet":
		return Step{Kind: Multicast}, true
	case "Resubmitting packet":
		return Step{Kind: Resubmit}, true
	case "Recirculating packet":
		return Step{Kind: Recirculate}, true
	case "Dropping packet at the end of ingress":
		return Step{Kind: Drop, Name: c.reason()}, true
	case "Dropping packet at the end of egress":
		return Step{Kind: Drop, Name: "egress-drop"}, true
	}
	if strings.HasPrefix(s, "Cloning packet to ") {
		first := c.cloning
		c.cloning = false
		return Step{Kind: Clone}, first
	}
	if strings.HasPrefix(s, "Cloning packet at ingress to session id ") || strings.HasPrefix(s, "Cloning packet after egress to session id ") {
		return Step{Kind: Clone}, true // psa_switch, if the session exists
	}
	if strings.HasPrefix(s, "Multicast requested for packet with multicast group ") {
		return Step{Kind: Multicast}, true
	}
	replica, _, _ := strings.Cut(s, " with instance ")
	if n, ok := number(replica, "Replicating packet on port "); ok {
		return Step{Kind: Replica, Port: uint32(n)}, true
	}
	if rest, ok := strings.CutPrefix(s, "Transmitting packet of size "); ok {
		size, port, _ := strings.Cut(rest, " out of port ")
		n, err1 := strconv.ParseUint(size, 10, 31)
		p, err2 := strconv.ParseInt(port, 10, 64) // psa_switch writes high ports as negative numbers
		if err1 == nil && err2 == nil {
			return Step{Kind: Transmit, Port: uint32(p), Length: int(n)}, true
		}
	}
	line, s := sourceLine(s)
	if rest, ok := strings.CutPrefix(s, "Condition \""); ok {
		if step, ok := condition(rest); ok {
			if step.Source != step.Name {
				step.Line = line
			} else {
				step.Source = ""
			}
			return step, true
		}
	}
	if name, ok := strings.CutPrefix(s, "Action "); ok {
		if name == c.ran || c.deparsing { // a method
			c.ran = ""
			return Step{}, false
		}
		return Step{Kind: Action, Action: name, Line: line}, true
	}
	return Step{Kind: Note, Name: s + where(line)}, !quiet(s)
}

// quiet reports whether a message only repeats other messages.
func quiet(s string) bool {
	repeats := []string{"Applying table ", "Primitive (no source info)", "Pipeline '", "Parser '", "Deparser '"}
	return slices.ContainsFunc(repeats, func(p string) bool { return strings.HasPrefix(s, p) })
}

// lookup returns the step of a table lookup that hit or missed.
func (c *logCopy) lookup(s string) (Step, bool) {
	if name, ok := quoted(s, "Table ", ": miss"); ok {
		s := Step{Kind: Table, Name: name, Key: c.key}
		c.key = nil
		return s, true
	}
	rest, ok := strings.CutPrefix(s, "Table '")
	if !ok {
		return Step{}, false
	}
	name, handle, ok := strings.Cut(rest, "': hit with handle ")
	h, err := strconv.ParseUint(handle, 10, 32)
	if !ok || err != nil {
		return Step{}, false
	}
	step := Step{Kind: Table, Name: name, Holds: true, Key: c.key, Entry: &Entry{Handle: uint32(h)}}
	c.key = nil
	return step, true
}

// keyField parses a line like "* hdr.ipv4.dst: 0a000001".
func keyField(line string) (Field, bool) {
	s, ok := strings.CutPrefix(line, "* ")
	if !ok {
		return Field{}, false
	}
	name, value, ok := strings.Cut(s, ": ")
	if !ok {
		name, value = "", s
	}
	return Field{Name: strings.TrimSpace(name), Value: strings.TrimSpace(value)}, true
}

// entry reads the entry that the copy's last table lookup has hit.
func (c *logCopy) entry(lines []string) {
	t := c.lastTable()
	if t == nil || t.Entry == nil {
		return
	}
	for _, line := range lines {
		if line == "" {
			break
		}
		if f, ok := keyField(line); ok {
			i := slices.IndexFunc(t.Key, func(k Field) bool { return k.Name == f.Name && k.Match == "" })
			if i >= 0 {
				t.Key[i].Match = match(f.Value)
			}
		} else if p, ok := strings.CutPrefix(line, "Priority: "); ok {
			if n, err := strconv.ParseInt(p, 10, 32); err == nil {
				t.Entry.Priority = int32(n)
			}
		} else if via, ok := strings.CutPrefix(line, "Index: "); ok {
			t.Entry.Via = strings.TrimSuffix(strings.Replace(via, "(", " ", 1), ")")
		}
	}
}

// match converts the text of an entry's match, like "LPM 0a000000/8".
func match(s string) string {
	kind, value, _ := strings.Cut(s, " ")
	value = strings.TrimSpace(value)
	for _, sep := range []struct{ kind, theirs, ours string }{{"TERNARY", " &&& ", "&&&"}, {"RANGE", " -> ", ".."}} {
		if low, high, ok := strings.Cut(value, sep.theirs); ok && kind == sep.kind {
			return hexText(low) + sep.ours + hexText(high)
		}
	}
	if v, length, ok := strings.Cut(value, "/"); ok && kind == "LPM" {
		return hexText(v) + "/" + length
	}
	return hexText(value)
}

// actionEntry parses "NAME - ARG,ARG,".
func (c *logCopy) actionEntry(text string) (Step, bool) {
	name, list, ok := strings.Cut(text, " -")
	if !ok || name == "" { // NULL: the next action is not the table's
		return Step{Kind: Note, Name: "no action"}, true
	}
	var args []Field
	for _, a := range strings.Split(strings.TrimSpace(list), ",") {
		if a != "" {
			args = append(args, Field{Value: hexText(a)})
		}
	}
	c.ran = name
	s := Step{Kind: Action, Name: c.table, Action: name, Args: args}
	c.table = ""
	return s, true
}

// reason returns the reason for which ingress dropped a copy.
func (c *logCopy) reason() string {
	steps := c.packet.copy(c.number).Steps
	for i := len(steps) - 1; i >= 0; i-- {
		if steps[i].Kind == Table {
			for _, s := range steps {
				if s.Kind == ParseError {
					return "parser-error"
				}
			}
			if !steps[i].Holds {
				return "no-table-hit"
			}
			return "ingress-drop"
		}
		if steps[i].Kind == ParseError {
			return "parser-error"
		}
	}
	return "ingress-drop"
}

// sourceLine removes a place in the program, like "router.p4(12)", from the beginning of a message.
func sourceLine(s string) (line, rest string) {
	place, rest, ok := strings.Cut(s, " ")
	file, n, ok2 := strings.Cut(place, "(")
	n, ok3 := strings.CutSuffix(n, ")")
	if _, err := strconv.ParseUint(n, 10, 31); !ok || !ok2 || !ok3 || err != nil || file == "" {
		return "", s
	}
	return file[strings.LastIndexByte(file, '/')+1:] + ":" + n, rest
}

// condition parses `SOURCE" (NAME) is true`.
func condition(s string) (Step, bool) {
	step := Step{Kind: Condition}
	var ok bool
	if s, ok = strings.CutSuffix(s, ") is true"); ok {
		step.Holds = true
	} else if s, ok = strings.CutSuffix(s, ") is false"); !ok {
		return step, false
	}
	i := strings.LastIndex(s, "\" (")
	if i < 0 {
		return step, false
	}
	step.Source, step.Name = s[:i], s[i+len("\" ("):]
	return step, true
}

// hexText returns a hexadecimal number in the form of traces; other text is returned unchanged.
func hexText(s string) string {
	s = strings.TrimSpace(s)
	for i := range len(s) {
		if !strings.ContainsRune("0123456789abcdefABCDEF", rune(s[i])) {
			return s
		}
	}
	if s = strings.TrimLeft(strings.ToLower(s), "0"); s == "" {
		s = "0"
	}
	return "0x" + s
}

func (l *logReader) traces() []Trace {
	origin := BMv2Debug
	if l.traced {
		origin = BMv2
	}
	all := make([]Trace, 0, len(l.order))
	for _, p := range l.order {
		p.Origin = origin
		for _, c := range p.Copies {
			// The log does not name a group without members.
			for i := len(c.Steps) - 1; i >= 0; i-- {
				if c.Steps[i].Kind == Multicast {
					p.Add(c.Number, Step{Kind: Drop, Name: "no-replica"})
				}
				if c.Steps[i].Kind != Note {
					break
				}
			}
		}
		all = append(all, p.Trace)
	}
	return all
}
