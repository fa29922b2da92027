package packettrace_test

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quillon/quillon/nf/p4"
	"github.com/quillon/quillon/nf/p4/packettrace"
	"github.com/quillon/quillon/nf/p4/stf"
	"github.com/quillon/quillon/nf/port/pcap"
)

var update = flag.Bool("update", false, "write the golden files anew")

// cases are programs with a capture, and what bmv2's simple_switch logged of it
// (--log-console -L trace, packets of port 1) when the program was as it is in
// testdata/NAME.json.
var cases = []struct {
	name, program string
	more          func(t testing.TB, sw *p4.Switch)
	packets       int
}{
	{"router", "../../../p4src/ipv4_router.json", nil, 4},
	{"bridge", "../../../p4src/l2_bridge.json", nil, 4},
	{"copies", "testdata/copies.json", copiesEntries, 11},
}

// copiesEntries are the entries that bmv2 had beside those of the STF file.
func copiesEntries(t testing.TB, sw *p4.Switch) {
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	insert := func(table string, e p4.Entry) {
		t.Helper()
		_, err := sw.Insert(table, e)
		must(err)
	}
	b := func(x ...byte) []byte { return x }
	kind := func(what, mask, a byte, low, high []byte, action string, arg byte, priority int32) {
		insert("copies_ingress.kinds", p4.Entry{
			Key:      []p4.Match{{Value: b(what), Mask: b(mask)}, {Value: b(a)}, {Value: low, Mask: high}, {Value: b(1)}},
			Priority: priority, Action: p4.Action{Name: action, Args: [][]byte{b(arg)}},
		})
	}
	kind(0, 0xf8, 1, nil, b(0x10), "copies_ingress.to", 2, 10)
	kind(6, 0xff, 2, nil, b(0xff, 0xff), "copies_ingress.group", 7, 11)
	kind(7, 0xff, 2, b(5), b(5), "copies_ingress.group", 9, 12)
	const members = "copies_ingress.members"
	for i := range uint32(2) {
		must(sw.SetMember(members, i+1, p4.Action{Name: "copies_ingress.choose", Args: [][]byte{b(byte(5 + i))}}))
	}
	must(sw.SetGroup(members, 1, []p4.GroupMember{{ID: 1, Weight: 1}, {ID: 2, Weight: 1}}))
	insert("copies_ingress.selected", p4.Entry{Key: []p4.Match{{Value: b(3)}}, Group: 1})
}

// trace runs a case's capture through the engine.
func trace(t testing.TB, name, program string, more func(testing.TB, *p4.Switch)) []packettrace.Trace {
	t.Helper()
	src, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	prog, err := p4.Load(src)
	if err != nil {
		t.Fatal(err)
	}
	sw, err := p4.NewSwitch(prog, p4.Config{})
	if err != nil {
		t.Fatal(err)
	}
	statements, err := stf.Parse(bytes.NewReader(read(t, name+".stf")))
	if err != nil {
		t.Fatal(err)
	}
	if err := stf.Configure(sw, statements); err != nil {
		t.Fatal(err)
	}
	if more != nil {
		more(t, sw)
	}
	r, err := pcap.NewReader(bytes.NewReader(read(t, name+".pcap")))
	if err != nil {
		t.Fatal(err)
	}
	var traces []packettrace.Trace
	var p pcap.Packet
	for {
		if err := r.Next(&p); err == io.EOF {
			return traces
		} else if err != nil {
			t.Fatal(err)
		}
		traces = append(traces, sw.Trace(uint64(len(traces)), p.Time, 1, p.Data, func(uint32, []byte) {}))
	}
}

// logged is the program that bmv2 ran.
func logged(name string) string { return "testdata/" + name + ".json" }

func read(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func parse(t testing.TB, text string) []packettrace.Trace {
	t.Helper()
	traces, err := packettrace.Read(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return traces
}

func text(t testing.TB, traces []packettrace.Trace) string {
	t.Helper()
	var b strings.Builder
	if err := packettrace.Show(&b, traces, false); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestGolden shows packets through the programs, as they were shown before.
func TestGolden(t *testing.T) {
	for _, c := range cases {
		got := text(t, trace(t, c.name, c.program, c.more))
		if *update {
			if err := os.WriteFile("testdata/"+c.name+".txt", []byte(got), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if d := cmp.Diff(string(read(t, c.name+".txt")), got); d != "" {
			t.Errorf("%s: %s", c.name, d)
		}
	}
}

// TestAsBMv2 compares the engine's steps with what bmv2 logged of the same
// packets and entries, at its levels trace and debug, and with just its stages.
func TestAsBMv2(t *testing.T) {
	steps := func(c packettrace.Comparison, packets, least int) {
		t.Helper()
		if c.Difference != nil || c.Packets != packets || c.Steps < least {
			t.Errorf("%d packets, %d steps, want %d and at least %d: %s", c.Packets, c.Steps, packets, least, c.Text("quillon", "bmv2"))
		}
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			ours := trace(t, c.name, logged(c.name), c.more)
			log := string(read(t, c.name+".bmv2.log"))
			theirs := parse(t, log)
			if theirs[0].Origin != packettrace.BMv2 {
				t.Errorf("read as %s", theirs[0].Origin)
			}
			steps(packettrace.Diff(ours, theirs), c.packets, 15*c.packets)
			theirs = parse(t, regexp.MustCompile(`(?m)^\S+ \[bmv2\] \[T\].*\n`).ReplaceAllString(log, ""))
			if theirs[0].Origin != packettrace.BMv2Debug {
				t.Errorf("read as %s", theirs[0].Origin)
			}
			steps(packettrace.Diff(ours, theirs), c.packets, 9*c.packets)
		})
	}
}

// TestShowsTheSame shows what bmv2 logged as the engine's traces are shown, but
// for what bmv2 does not log.
func TestShowsTheSame(t *testing.T) {
	unknown := regexp.MustCompile(`(?: of priority \d+)|(?m)^( +)\d+ bytes come in|[a-z_]+=(0x)|multicast group \d+|a multicast group| as copy \d+|, session \d+|^ +digest \S+\n|(member|group) \d+$`)
	reduce := func(s string) string {
		s = strings.ReplaceAll(s, "comes in", "0 bytes come in")
		return unknown.ReplaceAllString(s, "$1$2")
	}
	for _, c := range cases {
		ours := reduce(text(t, trace(t, c.name, logged(c.name), c.more)))
		theirs := reduce(text(t, parse(t, string(read(t, c.name+".bmv2.log")))))
		if d := cmp.Diff(ours, theirs); d != "" {
			t.Errorf("%s: %s", c.name, d)
		}
	}
}

// TestDiffFinds changes one step after the other, and finds each.
func TestDiffFinds(t *testing.T) {
	changes := map[string]func(s *packettrace.Step) bool{
		"kind": func(s *packettrace.Step) bool { s.Kind = packettrace.Assert; return true },
		"name": func(s *packettrace.Step) bool {
			s.Name += "x"
			return s.Kind != packettrace.Drop && s.Kind != packettrace.Action
		},
		"result": func(s *packettrace.Step) bool { s.Holds = !s.Holds; return true },
		"port":   func(s *packettrace.Step) bool { s.Port++; return true },
		"length": func(s *packettrace.Step) bool { s.Length++; return s.Kind == packettrace.Transmit },
		"place":  func(s *packettrace.Step) bool { s.At++; return true },
		"action": func(s *packettrace.Step) bool {
			s.Action += "x"
			return s.Kind == packettrace.Table || s.Kind == packettrace.Action
		},
		"argument": func(s *packettrace.Step) bool {
			if len(s.Args) == 0 {
				return false
			}
			s.Args = append([]packettrace.Field{{Value: "0x1234"}}, s.Args[1:]...)
			return true
		},
		"key": func(s *packettrace.Step) bool {
			if len(s.Key) == 0 {
				return false
			}
			k := s.Key[0]
			k.Value += "0"
			s.Key = append([]packettrace.Field{k}, s.Key[1:]...)
			return true
		},
		"match": func(s *packettrace.Step) bool {
			if len(s.Key) == 0 {
				return false
			}
			k := s.Key[0]
			k.Match += "0"
			s.Key = append([]packettrace.Field{k}, s.Key[1:]...)
			return true
		},
	}
	theirs := parse(t, string(read(t, "copies.bmv2.log")))
	done := map[string]int{}
	for what, change := range changes {
		ours := trace(t, "copies", logged("copies"), copiesEntries)
		for i, tr := range ours {
			for _, c := range tr.Copies {
				for j, s := range c.Steps {
					if s.Kind == packettrace.Received && what == "name" || s.Kind == packettrace.Clone ||
						s.Kind == packettrace.Multicast && what == "name" || s.Kind == packettrace.Replica && what == "name" ||
						s.Kind == packettrace.Resubmit || s.Kind == packettrace.Recirculate {
						continue
					}
					if !change(&c.Steps[j]) {
						c.Steps[j] = s
						continue
					}
					d := packettrace.Diff(ours, theirs).Difference
					if d == nil || d.Packet != i || d.Copy != c.Number {
						t.Errorf("%s of %v changed: %+v", what, s, d)
					}
					done[what]++
					c.Steps[j] = s
				}
			}
		}
		if done[what] < 5 {
			t.Errorf("%s: only %d steps were changed", what, done[what])
		}
	}
	// What only the engine tells, between two of its traces.
	for what, change := range map[string]func(s *packettrace.Step) bool{
		"reason":  func(s *packettrace.Step) bool { s.Name += "x"; return s.Kind == packettrace.Drop },
		"session": func(s *packettrace.Step) bool { s.Number++; return s.Kind == packettrace.Clone },
		"group":   func(s *packettrace.Step) bool { s.Number++; return s.Kind == packettrace.Multicast },
		"copy":    func(s *packettrace.Step) bool { s.Copy++; return s.Kind == packettrace.Resubmit },
	} {
		a, b := trace(t, "copies", logged("copies"), copiesEntries), trace(t, "copies", logged("copies"), copiesEntries)
		if c := packettrace.Diff(a, b); c.Difference != nil {
			t.Fatal(c.Text("a", "b"))
		}
		changed := 0
		for _, tr := range a {
			for _, c := range tr.Copies {
				for j, s := range c.Steps {
					if !change(&c.Steps[j]) {
						c.Steps[j] = s
						continue
					}
					changed++
					if packettrace.Diff(a, b).Difference == nil {
						t.Errorf("%s of %v changed, and not found", what, s)
					}
					c.Steps[j] = s
				}
			}
		}
		if changed == 0 {
			t.Errorf("no step has a %s", what)
		}
	}
	// A step, a copy, a packet less on one side.
	ours := trace(t, "copies", logged("copies"), copiesEntries)
	last := &ours[6].Copies[2]
	last.Steps = last.Steps[:len(last.Steps)-1]
	d := packettrace.Diff(ours, theirs).Difference
	if d == nil || d.Packet != 6 || d.Copy != 2 || d.A != nil || d.B.Kind != packettrace.Transmit || len(d.Before) != 3 {
		t.Errorf("a step less: %+v", d)
	}
	ours[6].Copies = ours[6].Copies[:2]
	if d := packettrace.Diff(ours, theirs).Difference; d == nil || d.Packet != 6 || d.Copy != 2 || d.A != nil {
		t.Errorf("a copy less: %+v", d)
	}
	if d := packettrace.Diff(ours[:2], theirs).Difference; d == nil || d.Packet != 2 || d.A != nil {
		t.Errorf("packets less: %+v", d)
	}
	if d := packettrace.Diff(theirs, ours[:2]).Difference; d == nil || d.Packet != 2 || d.B != nil {
		t.Errorf("packets more: %+v", d)
	}
}

func TestJSON(t *testing.T) {
	for _, c := range cases {
		ours := trace(t, c.name, logged(c.name), c.more)
		var b bytes.Buffer
		if err := packettrace.Write(&b, ours); err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(b.String(), "\n"); n != c.packets {
			t.Errorf("%d lines of %d packets", n, c.packets)
		}
		if d := cmp.Diff(ours, parse(t, b.String())); d != "" {
			t.Error(d)
		}
	}
}

// stages is what bmv2's packet_trace.proto describes, twice.
const stages = `# of one packet each
input { packet_id: 3 ingress_port: 1 }
root {
  events { pipeline_stage { stage_name: "parser" stage_kind: PARSER direction: ENTER } }
  events { pipeline_stage { stage_name: "parser" stage_kind: PARSER direction: EXIT } }
  events { pipeline_stage { stage_name: 'ingress' stage_kind: CONTROL direction: ENTER } }
  events: < pipeline_stage: < stage_name: "egress", stage_kind: 2, direction: 1 > >
  events { pipeline_stage { stage_name: "d" stage_kind: DEPARSER direction: ENTER } }
  events { table_lookup { table_name: "t" hit: true } }
  transmit { egress_port: 2 packet_size: 50 }
}
input { packet_id: 4 ingress_port: 1 }
root { events [ { pipeline_stage { stage_name: "parser" stage_kind: PARSER direction: ENTER } },
                { pipeline_stage { stage_name: "ingress" stage_kind: CONTROL direction: ENTER } } ] drop { } }
`

const stagesJSON = `{"input": {"packetId": "3", "ingressPort": 1}, "root": {"events": [
  {"pipelineStage": {"stageName": "parser", "stageKind": "PARSER", "direction": "ENTER"}},
  {"pipelineStage": {"stageName": "parser", "stageKind": "PARSER", "direction": "EXIT"}},
  {"pipelineStage": {"stageName": "ingress", "stageKind": "CONTROL", "direction": "ENTER"}},
  {"pipelineStage": {"stageName": "egress", "stageKind": 2, "direction": 1}},
  {"pipelineStage": {"stageName": "d", "stageKind": "DEPARSER", "direction": "ENTER"}},
  {"tableLookup": {"tableName": "t", "hit": true}}],
  "transmit": {"egressPort": 2, "packetSize": 50}}}
{"input": {"packetId": "4", "ingressPort": 1}, "root": {"events": [
  {"pipelineStage": {"stageName": "parser", "stageKind": "PARSER", "direction": "ENTER"}},
  {"pipelineStage": {"stageName": "ingress", "stageKind": "CONTROL", "direction": "ENTER"}}], "drop": {}}}
`

// TestPacketTrace reads bmv2's structured traces, in both forms.
func TestPacketTrace(t *testing.T) {
	got := parse(t, stages)
	if d := cmp.Diff(got, parse(t, stagesJSON)); d != "" {
		t.Errorf("text and JSON differ: %s", d)
	}
	var b strings.Builder
	if err := packettrace.Show(&b, got, true); err != nil {
		t.Fatal(err)
	}
	const want = `packet 3
  comes in on port 1
  parser
  ingress
  egress
  deparser
    table_lookup { table_name: t hit: true }
  50 bytes leave on port 2
packet 4
  comes in on port 1
  parser
  ingress
  dropped
`
	if d := cmp.Diff(want, b.String()); d != "" {
		t.Error(d)
	}
	// The router's first packet is routed; its last is dropped.
	ours := trace(t, "router", logged("router"), nil)
	if c := packettrace.Diff([]packettrace.Trace{ours[0], ours[3]}, got); c.Difference != nil || c.Steps != 10 {
		t.Errorf("%d steps: %s", c.Steps, c.Text("quillon", "bmv2"))
	}
	if c := packettrace.Diff(ours, got); c.Difference == nil || c.Difference.Packet != 1 {
		t.Errorf("%s", c.Text("quillon", "bmv2"))
	}
}

func TestReadRefuses(t *testing.T) {
	for in, want := range map[string]string{
		"":                           "no packet's trace",
		"nothing here\n":             "no packet's trace",
		"{}":                         "no packet's trace",
		`{"copies": 3}`:              "trace 1: json: cannot",
		`{"copies": [`:               "trace 1: unexpected EOF",
		`{"root": 3}`:                "no packet's trace",
		"input {\n packet_id: 3":     `line 2: "}" is missing at the end`,
		"root {\n events { } }\n } ": `line 3: "}" where a field's name belongs`,
		"root { a: }":                `line 1: field "a" has no value`,
		"root { a: [1, 2 }":          `line 1: field "a" has no value`,
		"root { a: \"x }":            `field "a": a text without its end`,
		strings.Repeat("root {", 99): "nested too deep",
		`{"root": ` + strings.Repeat(`{"a":`, 99) + "1" + strings.Repeat("}", 100): "nested too deep",
	} {
		if _, err := packettrace.Read(strings.NewReader(in)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %v, want %s", in, err, want)
		}
	}
	if _, err := packettrace.Read(strings.NewReader("log")); !errors.Is(err, packettrace.ErrNone) {
		t.Error(err)
	}
}

func TestAssertAndUnknown(t *testing.T) {
	const head = "[09:00:00.000] [bmv2] [D] [thread 7] "
	got := parse(t, head+"[0.0] [cxt 0] Processing packet received on port 3\n"+
		"noise\n"+
		head+"[0.0] [cxt 0] Table 't': hit with handle 2\n"+
		head+"[0.0] [cxt 0] Action entry is NULL\n"+
		head+"[0.0] [cxt 0] Action entry is next - \n"+
		strings.Replace(head, "[D]", "[I]", 1)+"two\nlines\n"+
		strings.Replace(head, "thread 7", "thread 8", 1)+"of nobody\n"+
		head+"[0.0] [cxt 0] Executing method add_header\n"+
		strings.Replace(head, "[D]", "[T]", 1)+"[0.0] [cxt 0] a/b.p4(12) Action add_header\n"+
		strings.Replace(head, "[D]", "[T]", 1)+"[0.0] [cxt 0] a/b.p4(13) Action add_header\n"+
		strings.Replace(head, "[D]", "[E]", 1)+"Assert error: assert(x > 1) failed, file a.p4, line 7\n"+
		head+"[0.0] [cxt 0] Processing packet received on port 4\n")
	var b strings.Builder
	if err := packettrace.Show(&b, got, true); err != nil {
		t.Fatal(err)
	}
	const want = `packet 0
  comes in on port 3
    table t hits entry 2
    no action
    action next()
    log: two
      lines
    Executing method add_header
    action add_header() (b.p4:13)
    assertion fails: assert(x > 1)
packet 0
  comes in on port 4
`
	if d := cmp.Diff(want, b.String()); d != "" {
		t.Error(d)
	}
}

func TestFilter(t *testing.T) {
	traces := trace(t, "copies", logged("copies"), copiesEntries)
	for in, want := range map[string]int{
		"drop": 4, "drop=no-replica": 1, "drop=parser-error": 2, "table=selected": 1, "table=copies_ingress.kinds": 11,
		"table=nothing": 0, "port=1": 11, "port=3": 4, "port=4": 0,
	} {
		f, err := packettrace.ParseFilter(in)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, tr := range traces {
			if f(tr) {
				n++
			}
		}
		if n != want {
			t.Errorf("%s: %d packets, want %d", in, n, want)
		}
	}
	for _, in := range []string{"", "drops", "table=", "table", "port=x", "port"} {
		if _, err := packettrace.ParseFilter(in); err == nil {
			t.Errorf("%q is taken", in)
		}
	}
}

// FuzzRead reads anything: what it takes can be shown, is the same as itself, and
// comes back from JSON as it was.
func FuzzRead(f *testing.F) {
	f.Add(read(f, "router.bmv2.log")[:6000])
	log := read(f, "copies.bmv2.log")
	f.Add(log[len(log)-6000:])
	for _, line := range []string{
		"Processing packet received on port 1", "Parser 'p' entering state 's'", "Looking up key:\n* f: 0a\n",
		"Table 't': hit with handle 0\n", "Dumping entry 0\nMatch key:\n* f: TERNARY   00 &&& 0f\nPriority: 1\nIndex: group(1)\n",
		"Action entry is a - 1,2,", "a.p4(7) Condition \"x == 1\" (node_1) is true", "Transmitting packet of size 4 out of port 2",
	} {
		f.Add([]byte("[1] [bmv2] [T] [thread 1] [0.0] [cxt 0] " + line + "\n"))
	}
	f.Add([]byte("[1] [bmv2] [T] [thread 1] [0.0] [cxt 0] \xff\n"))
	f.Add([]byte("root { \"a\n }"))
	f.Add([]byte(`root { a: "\377" b: '\'' }`))
	f.Add([]byte(stages))
	f.Add([]byte(stagesJSON))
	var b bytes.Buffer
	if err := packettrace.Write(&b, trace(f, "copies", logged("copies"), copiesEntries)[:2]); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	f.Fuzz(func(t *testing.T, in []byte) {
		traces, err := packettrace.Read(bytes.NewReader(in))
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Fatalf("%q", err)
			}
			return
		}
		if err := packettrace.Show(io.Discard, traces, true); err != nil {
			t.Fatal(err)
		}
		if c := packettrace.Diff(traces, traces); c.Difference != nil {
			t.Fatal(c.Text("a", "b"))
		}
		var b bytes.Buffer
		if err := packettrace.Write(&b, traces); err != nil {
			t.Fatal(err)
		}
		again, err := packettrace.Read(bytes.NewReader(b.Bytes()))
		if err != nil {
			t.Fatal(err)
		}
		var b2 bytes.Buffer
		if err := packettrace.Write(&b2, again); err != nil {
			t.Fatal(err)
		}
		if b.String() != b2.String() {
			t.Fatalf("%s\n%s", b.String(), b2.String())
		}
	})
}

// TestPSALog reads what psa_switch logs in other words than simple_switch: a packet that comes again keeps its number, clones
// name their session, replicas have an instance, methods of deparsers look like actions, and high ports are negative.
func TestPSALog(t *testing.T) {
	var log strings.Builder
	for _, m := range []string{
		"[1.0] [cxt 0] Processing packet received on port 5",
		"[1.0] [cxt 0] Cloning packet at ingress to session id 3",
		"[1.1] [cxt 0] Cloning packet to egress port 9",
		"[1.0] [cxt 0] Resubmitting packet",
		"[1.0] [cxt 0] Processing packet received on port 0",
		"[1.0] [cxt 0] Deparser 'ingress_deparser': start",
		"[1.0] [cxt 0] Action _InternetChecksum_clear",
		"[1.0] [cxt 0] Multicast requested for packet with multicast group 2",
		"[1.0] [cxt 0] Replicating packet on port 7 with instance 1",
		"[1.2] [cxt 0] Cloning packet after egress to session id 4",
		"[1.2] [cxt 0] Recirculating packet",
		"[1.2] [cxt 0] Processing packet received on port 4294967290",
		"[1.2] [cxt 0] Transmitting packet of size 60 out of port -3",
	} {
		log.WriteString("[09:25:46.816] [bmv2] [D] [thread 1] " + m + "\n")
	}
	all, err := packettrace.Read(strings.NewReader(log.String()))
	if err != nil || len(all) != 1 {
		t.Fatal(all, err)
	}
	var got []string
	for _, c := range all[0].Copies {
		for _, s := range c.Steps {
			if s.Kind != packettrace.Note {
				got = append(got, fmt.Sprint(c.Number, " ", s.Kind, " ", s.Port))
			}
		}
	}
	want := []string{"0 received 5", "0 clone 0", "0 resubmit 0", "0 received 0", "0 stage 0", "0 multicast 0", "0 replica 7",
		"2 clone 0", "2 recirculate 0", "2 received 4294967290", "2 transmit 4294967293"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
