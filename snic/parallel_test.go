package snic

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/counter"
	"github.com/quillon/quillon/nf/effect"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
)

// scribe is a task that does to frames what it declares: it changes a word of each field that it
// writes, by what it reads and, with state, by what it has seen of the flow. What it
// derives from that says whether it drops, answers, clones or marks the frame.
type scribe struct {
	letter byte
	effect.Effects
	lies bool // it changes the payload, and does not declare it
	keep clock.Duration
	seen map[[2]byte]uint16
	q    []*packet.Buf
	outs []int
	at   []clock.Time
}

// A frame's source address has what no scribe changes: what it is, the flow, and its
// number.
const (
	isSent = 2 + 4*iota
	isAnswer
	isClone
)

// words are where scribes write: in each field one, and the checksums that cover it.
func words(b []byte, f effect.Field) (at int, sums []int) {
	ip := 18
	l4 := ip + 20
	tcp := b[ip+9] == hdr.ProtoTCP
	sum := []int{}
	if tcp {
		sum = []int{l4 + 16}
	}
	switch f {
	case effect.Ethernet:
		return 0, nil
	case effect.VLAN:
		return 14, nil
	case effect.IPAddresses:
		return ip + 14, append(sum, ip+10)
	case effect.IPOther:
		return ip + 4, []int{ip + 10}
	case effect.Ports:
		return l4, sum
	case effect.L4Other:
		return l4 + 4, sum
	case effect.Payload:
		return l4 + 20, sum
	}
	return -1, nil
}

var written = []effect.Field{effect.Ethernet, effect.VLAN, effect.IPAddresses, effect.IPOther, effect.Ports, effect.L4Other, effect.Payload}

func put(b []byte, at int, sums []int, v uint16) {
	old := binary.BigEndian.Uint16(b[at:])
	binary.BigEndian.PutUint16(b[at:], v)
	for _, s := range sums {
		binary.BigEndian.PutUint16(b[s:], hdr.PatchChecksum(binary.BigEndian.Uint16(b[s:]), old, v))
	}
}

func (s *scribe) Push(c *graph.Ctx, in int, b *packet.Batch) {
	for _, x := range b.Bufs() {
		p := x.Bytes()
		h := uint64(s.letter)<<8 | uint64(in)
		for _, f := range written {
			if at, _ := words(p, f); s.Reads&f != 0 {
				h = hdr.Fold(h, uint64(binary.BigEndian.Uint16(p[at:])))
			}
		}
		if s.Reads&effect.Length != 0 {
			h = hdr.Fold(h, uint64(len(p)))
		}
		if s.State && p[6] == isSent {
			flow := [2]byte{p[7], byte(in)}
			s.seen[flow]++
			h = hdr.Fold(h, uint64(s.seen[flow]))
		}
		h = hdr.Fold(h, 1)
		for i, f := range written {
			if at, sums := words(p, f); s.Writes&f != 0 && h>>(20+i)&1 == 0 {
				put(p, at, sums, uint16(h>>(30+i)))
			}
		}
		if s.lies {
			p[len(p)-1]++
		}
		if s.Writes&effect.Length != 0 {
			if q, ok := x.Append(1); ok {
				q[len(q)-1] = s.letter
			}
		}
		if h>>8&3 == 0 {
			c.Mark(x, packet.Rewritten, 1+graph.Reason(h>>10&1))
		}
		out := 1 - in
		switch {
		case s.Drops && h&7 == 0:
			c.Drop(x, 0)
			continue
		case s.Answers && h&7 == 1 && p[6] == isSent:
			p[6], out = isAnswer, in
		case s.Answers && h&7 == 2 && p[6] == isSent:
			if y := c.Get(); y != nil {
				y.SetBytes(p)
				y.Bytes()[6] = isClone
				c.Emit(out, y)
			}
		}
		if s.keep > 0 {
			s.q, s.outs, s.at = append(s.q, x), append(s.outs, out), append(s.at, c.Now().Add(s.keep))
			c.Wake(c.Now().Add(s.keep))
			continue
		}
		c.Emit(out, x)
	}
}

// keeper is scribe with a queue.
type keeper struct{ scribe }

func (s *keeper) Held() int { return len(s.q) }

func (s *keeper) Stop(c *graph.Ctx) {
	for i, x := range s.q {
		c.Emit(s.outs[i], x)
	}
	s.q = nil
}

func (s *keeper) Tick(c *graph.Ctx) clock.Time {
	for len(s.q) > 0 && s.at[0] <= c.Now() {
		c.Emit(s.outs[0], s.q[0])
		s.q, s.outs, s.at = s.q[1:], s.outs[1:], s.at[1:]
	}
	if len(s.q) == 0 {
		return clock.Never
	}
	return s.at[0]
}

func scribes() []graph.Kind {
	two := []string{"a", "b"}
	kind := func(name string, make func(s scribe) graph.App) graph.Kind {
		return graph.Kind{Name: name, In: two, Out: two,
			Params:  []graph.Param{{Name: "letter"}, {Name: "reads"}, {Name: "writes"}, {Name: "does"}},
			Reasons: []counter.Def{{Name: "bang"}, {Name: "one"}, {Name: "two"}},
			New: func(_ graph.Env, a graph.Args) (graph.App, error) {
				r, err1 := effect.ParseField(a["reads"])
				w, err2 := effect.ParseField(a["writes"])
				if err1 != nil || err2 != nil {
					return nil, fmt.Errorf("%v, %v", err1, err2)
				}
				s := scribe{letter: a["letter"][0], seen: map[[2]byte]uint16{}, lies: strings.Contains(a["does"], "lies"),
					Effects: effect.Effects{Reads: r, Writes: w, Drops: strings.Contains(a["does"], "drops"),
						Answers: strings.Contains(a["does"], "answers"), State: strings.Contains(a["does"], "state")}}
				if strings.Contains(a["does"], "keeps") {
					s.keep = 3 * time.Microsecond
				}
				return make(s), nil
			}}
	}
	return []graph.Kind{*Kind(declared()...),
		kind("scribe", func(s scribe) graph.App { return &s }),
		kind("keeper", func(s scribe) graph.App { return &keeper{s} }),
	}
}

// letterTask is a scribe in a deployment.
func letterTask(letter byte, reads, writes effect.Field, does []string, more string) string {
	kind := "scribe"
	if slices.Contains(does, "keeps") {
		kind = "keeper"
	}
	s := fmt.Sprintf("  %c: {kind: %s, args: {letter: %c, reads: %q, writes: %q, does: %q}, reads: [%v], writes: [%v]", letter, kind, letter,
		reads, writes, strings.Join(does, " "), reads, writes)
	for _, d := range does {
		switch d {
		case "drops", "answers", "state":
			s += ", " + d + ": true"
		case "keeps":
			if !slices.Contains(does, "answers") {
				s += ", answers: true"
			}
		}
	}
	return s + more + "}\n"
}

// wordy is a frame that scribes work on.
func wordy(n int, flow byte, proto byte, size int) []byte {
	if proto != hdr.ProtoTCP {
		flow |= 8 // is none of the others'
	}
	b := []byte{2, 0, 0, 0, 0, 9, isSent, flow, byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n), 0x81, 0, 0, 7, 8, 0}
	b = append(b, 0x45, 0, 0, 0, 0, byte(n), 0, 0, 64, proto, 0, 0, 10, 0, 0, flow, 10, 0, 1, 1)
	b = append(b, 4, flow, 0, 80, 0, 0, byte(n>>8), byte(n), 0, 0, 0, 0, 0x50, 0x10, 0, 0, 0, 0, 0, 0)
	for i := range size {
		b = append(b, byte(n+i))
	}
	binary.BigEndian.PutUint16(b[20:], uint16(len(b)-18))
	hdr.IPv4(b[18:]).UpdateChecksum()
	return b
}

// outcome is what came out of a board.
type outcome struct {
	flows   map[string][]string // by port and flow, in order
	others  []string            // answers and clones, sorted
	dropped map[uint32]string
}

func (o *outcome) add(t testing.TB, r graphtest.Result) {
	for port, frames := range r.Out {
		for _, f := range frames {
			s := fmt.Sprintf("%x %v %s", f.Bytes, f.Verdict, f.Reason)
			if f.Bytes[6] != isSent {
				o.others = append(o.others, port+" "+fmt.Sprintf("%x", f.Bytes))
				continue
			}
			key := fmt.Sprint(port, " ", f.Bytes[7])
			o.flows[key] = append(o.flows[key], s)
		}
	}
	for _, f := range r.Dropped {
		n := binary.BigEndian.Uint32(f.Bytes[8:])
		if f.Bytes[6] != isClone {
			o.dropped[n] = f.Reason
		}
	}
}

// through runs a script of frames through a board.
func through(t testing.TB, text string, script [][]batchOf, args ...string) (*graphtest.Test, outcome) {
	a := graph.Args{"deployment": text, "fair": "off", "flows": "64", "epoch": "5ms"}
	for i := 0; i < len(args); i += 2 {
		a[args[i]] = args[i+1]
	}
	x := graphtest.NewOuter(t, scribes(), a)
	o := outcome{flows: map[string][]string{}, dropped: map[uint32]string{}}
	books := func() {
		if err := x.Inst.Conservation(); err != nil {
			t.Fatal(err)
		}
		if used, held := x.Pool.InUse(), x.Inst.Held(); used != held {
			t.Fatalf("%d buffers are in use and %d are held", used, held)
		}
	}
	x.Advance(25 * time.Millisecond)
	for _, step := range script {
		for _, b := range step {
			o.add(t, x.Push(b.port, b.frames...))
			books()
			o.add(t, x.Advance(b.wait))
			books()
		}
	}
	o.add(t, x.Advance(20*time.Millisecond))
	books()
	if n := x.Inst.Held(); n != 0 {
		b := x.App().(*board)
		t.Fatalf("%v\n%s: %d frames are still inside: %+v, %v", args, text, n, b.runner.sched.Books(), b.Report())
	}
	if err := x.App().(*board).runner.sched.Check(); err != nil {
		t.Fatal(err)
	}
	slices.Sort(o.others)
	return x, o
}

type batchOf struct {
	port   string
	frames [][]byte
	wait   time.Duration
}

// Whatever DAG of whatever tasks, a board that runs branches side by side on copies
// does to every frame what one does that runs all tasks one after the other on the
// frame itself: its bytes, what it is marked with, whether it is dropped, the order of its flow.
func TestParallelIsSerial(t *testing.T) {
	seen := map[string]int{}
	rapid.Check(t, func(rt *rapid.T) {
		j := &judge{TB: t, rt: rt}
		defer func() {
			for _, f := range j.cleanups {
				f()
			}
		}()
		parallelIsSerial(j, rt, seen)
	})
	t.Log(seen)
	for _, what := range []string{"copied", "dropped", "answered", "cloned", "two visits"} {
		if seen[what] == 0 && !testing.Short() { // of a fifth of the runs some have nothing of the rarest
			t.Errorf("nothing was %s: %v", what, seen)
		}
	}
}

func parallelIsSerial(t testing.TB, rt *rapid.T, seen map[string]int) {
	rare := func(what string, n int) bool { return rapid.IntRange(1, n).Draw(rt, what) == 1 }
	field := rapid.Custom(func(t *rapid.T) (f effect.Field) {
		for range rapid.SampledFrom([]int{0, 1, 1, 1, 2}).Draw(t, "fields") {
			f |= rapid.SampledFrom(written).Draw(t, "field")
		}
		return f
	})
	n := rapid.IntRange(2, 6).Draw(rt, "tasks")
	area := rapid.SampledFrom([]int{n, n, 2}).Draw(rt, "area")
	var tasks, run string
	for i := range n {
		var does []string
		for _, what := range []string{"drops", "answers", "keeps", "state"} {
			if rare(what, map[string]int{"drops": 4, "answers": 8, "keeps": 16, "state": 4}[what]) {
				does = append(does, what)
			}
		}
		reads, writes := field.Draw(rt, "reads"), field.Draw(rt, "writes")
		if rare("looks at the length", 8) {
			reads |= effect.Length
		}
		if rare("grows", 12) {
			writes |= effect.Length
		}
		if slices.Contains(does, "answers") {
			reads |= effect.Bytes // a clone is all of the frame
		}
		more := rapid.SampledFrom([]string{"", "", ", latency: 64ns", ", latency: 1us", ", latency: 3us", ", throughput: 10Gbit", ", throughput: 2Gbit, latency: 500ns"}).Draw(rt, "time")
		more += fmt.Sprintf(", credits: %d", rapid.SampledFrom([]int{1, 8, 64}).Draw(rt, "credits"))
		tasks += letterTask('a'+byte(i), reads, writes, does, more)
		if i > 0 {
			run += rapid.SampledFrom([]string{" -> ", " -> ", "; "}).Draw(rt, "edge")
		}
		run += string(rune('a' + i))
	}
	text := fmt.Sprintf("regions: {count: 4, area: %d}\ntasks:\n%stenants: {u: {}}\ndags: [{uid: 1, tenant: u, run: %s}]\nrules: [{match: all, dag: 1}]\n", area, tasks, run)
	number := 0
	var script [][]batchOf
	for range rapid.IntRange(1, 4).Draw(rt, "steps") {
		var step []batchOf
		for range rapid.IntRange(1, 3).Draw(rt, "batches") {
			b := batchOf{port: rapid.SampledFrom([]string{"p0", "p0", "p1", "p2"}).Draw(rt, "port"),
				wait: rapid.SampledFrom([]time.Duration{0, 500, 5000, 1e6}).Draw(rt, "wait")}
			for range rapid.IntRange(1, 20).Draw(rt, "frames") {
				number++
				flow := byte(rapid.IntRange(1, 3).Draw(rt, "flow")) | b.port[1]<<4
				b.frames = append(b.frames, wordy(number, flow, rapid.SampledFrom([]byte{hdr.ProtoTCP, hdr.ProtoTCP, 99}).Draw(rt, "protocol"), rapid.IntRange(2, 60).Draw(rt, "size")))
			}
			step = append(step, b)
		}
		script = append(script, step)
	}
	how := rapid.SampledFrom([]string{"on", "on", "auto"}).Draw(rt, "parallel")
	_, want := through(t, text, script, "parallel", "off")
	x, got := through(t, text, script, "parallel", how)
	b := x.App().(*board)
	if b.runner.inLine > 0 {
		t.Fatalf("%d packets found no copies", b.runner.inLine)
	}
	seen["copied"] += int(b.runner.copied)
	if b.runner.copied > 0 {
		seen["dropped"] += len(want.dropped)
		for _, s := range want.others {
			seen[map[string]string{"06": "answered", "0a": "cloned"}[s[15:17]]]++
		}
		if len(b.cat.services[0].visits) > 1 {
			seen["two visits"]++
		}
	}
	for _, k := range slices.Sorted(maps.Keys(want.flows)) {
		if g := got.flows[k]; !slices.Equal(g, want.flows[k]) {
			t.Fatalf("%s\n%s: side by side (%v)\n %s\none after the other\n %s", text, k, b.cat.stagesText(&b.cat.services[0]), strings.Join(g, "\n "), strings.Join(want.flows[k], "\n "))
		}
	}
	if !maps.Equal(got.dropped, want.dropped) || !slices.Equal(got.others, want.others) || len(got.flows) != len(want.flows) {
		t.Fatalf("%s\ndropped %v, not %v; answered and cloned %v, not %v", text, got.dropped, want.dropped, got.others, want.others)
	}
}

// beside is two tasks that are independent, with what else is said of them.
func beside(a, b string) string {
	return "regions: {count: 2, area: 4}\ntasks:\n" +
		letterTask('a', effect.Ports, 0, []string{"drops"}, a) + letterTask('b', effect.IPAddresses, effect.VLAN, []string{"drops"}, b) + letterTask('c', effect.VLAN, 0, nil, "") +
		"tenants: {u: {}}\ndags: [{uid: 1, tenant: u, run: a -> b -> c}]\nrules: [{match: all, dag: 1}]\n"
}

func boardOf(x *graphtest.Test) *board { return x.App().(*board) }

// When branches run side by side; changed under traffic, too.
func TestWhenSideBySide(t *testing.T) {
	const wide, line = "[[a b -> c]]", "[[a -> b -> c]]"
	modelled, not := ", latency: 1us", ""
	a := graph.Args{"deployment": beside(not, not), "fair": "off"}
	x := graphtest.NewOuter(t, scribes(), a)
	n := 0
	for _, c := range []struct{ parallel, a, b, want string }{
		{"auto", not, not, line},
		{"auto", modelled, not, line},
		{"auto", ", throughput: 1Gbit", modelled, wide},
		{"on", not, not, wide},
		{"off", modelled, modelled, line},
		{"auto", modelled, modelled, wide},
	} {
		n++
		x.Push("p0", wordy(n, 1, hdr.ProtoTCP, 10))
		a["deployment"], a["parallel"] = beside(c.a, c.b), c.parallel
		if err := x.Set(maps.Clone(a)); err != nil {
			t.Fatal(err)
		}
		x.Advance(10 * time.Millisecond)
		if got := fmt.Sprint(boardOf(x).Report().(View).DAGs[0].Stages); got != c.want {
			t.Errorf("parallel=%s, a%s, b%s: %s, not %s", c.parallel, c.a, c.b, got, c.want)
		}
		was := boardOf(x).runner.copied
		x.Push("p0", wordy(n, 1, hdr.ProtoTCP, 10))
		x.Push("p1", wordy(n, 1, hdr.ProtoTCP, 10))
		x.Advance(time.Millisecond)
		if got := boardOf(x).runner.copied - was; c.want == wide && got != 2 || c.want == line && got != 0 {
			t.Errorf("parallel=%s, a%s, b%s: of 2 packets %d ran on copies", c.parallel, c.a, c.b, got)
		}
	}
	if err := x.Set(graph.Args{"deployment": beside(not, not), "parallel": "sometimes"}); err == nil || !strings.Contains(err.Error(), "parallel=sometimes: want auto, on, off, or 2 to 8 branches") {
		t.Errorf("%v", err)
	}
}

// With few frames for copies packets go in line, and none is lost, dropped, or passed by a later
// one of its flow.
func TestFewFramesForCopies(t *testing.T) {
	kinds := scribes()
	for _, batch := range []int{8, 15, 40, 60} {
		x := graphtest.NewSmall(t, kinds[0], graph.Args{"deployment": beside(", latency: 1us", ", latency: 2us"), "fair": "off", "packets": "64"}, kinds[1:]...)
		x.Advance(10 * time.Millisecond)
		seen := uint32(0)
		n := 0
		for range 20 {
			var frames [][]byte
			for range batch {
				n++
				frames = append(frames, wordy(n, 1, hdr.ProtoTCP, 10))
			}
			r := x.Push("p0", frames...)
			for range 2 {
				for _, f := range r.Out["p1"] {
					if number := binary.BigEndian.Uint32(f.Bytes[8:]); number <= seen {
						t.Fatalf("%d came out after %d", number, seen)
					} else {
						seen = number
					}
				}
				for _, f := range r.Dropped {
					if f.Reason != "bang" {
						t.Fatalf("dropped as %s", f.Reason)
					}
				}
				if err := x.Inst.Conservation(); err != nil {
					t.Fatal(err)
				}
				r = x.Advance(200 * time.Microsecond)
			}
			if x.Pool.InUse() != 0 {
				t.Fatalf("%d frames are still in use", x.Pool.InUse())
			}
		}
		b := boardOf(x)
		// Of 64 frames 8 are left alone, and each packet is to have 2.
		if line := b.runner.inLine > 0; line != (3*batch > 64-8) || b.runner.promised != 0 || batch < 20 && b.runner.copied != uint64(n) {
			t.Errorf("batches of %d: %d times on copies, %d in line; %d copies are promised", batch, b.runner.copied, b.runner.inLine, b.runner.promised)
		}
	}
}

// When frames that were there are not when copies are made, packets are dropped.
func TestNoFramesForCopies(t *testing.T) {
	kinds := scribes()
	x := graphtest.NewSmall(t, kinds[0], graph.Args{"deployment": beside(", latency: 1us", ", latency: 2us"), "fair": "off"}, kinds[1:]...)
	x.Advance(time.Millisecond)
	var frames [][]byte
	for n := range 5 {
		frames = append(frames, wordy(n, 1, hdr.ProtoTCP, 10))
	}
	x.Push("p0", frames...) // they wait for a region
	var taken []*packet.Buf
	for x.Pool.Free() > 3 {
		taken = append(taken, x.Pool.Get())
	}
	r := x.Advance(10 * time.Millisecond)
	for _, p := range taken {
		p.Put()
	}
	none := x.Counter("no-copy")
	if none == 0 || none == 5 || boardOf(x).runner.copied != 5-none || boardOf(x).runner.promised != 0 {
		t.Errorf("%d dropped for want of copies, %d came out; %d times on copies, %d are promised", none, len(r.Out["p1"]), boardOf(x).runner.copied, boardOf(x).runner.promised)
	}
	x.Push("p0", frames...)
	if r := x.Advance(time.Millisecond); len(r.Out["p1"])+len(r.Dropped) != 5 {
		t.Errorf("later: %d came out, %d were dropped", len(r.Out["p1"]), len(r.Dropped))
	}
}

// A trace has all that happens to all copies.
func TestTraceSideBySide(t *testing.T) {
	x := graphtest.NewOuter(t, scribes(), graph.Args{"deployment": beside(", latency: 1us", ", latency: 2us"), "fair": "off"})
	x.Advance(10 * time.Millisecond)
	for n := range 60 {
		x.Push("p0", wordy(n, byte(n), hdr.ProtoTCP, 10))
		x.Advance(10 * time.Microsecond)
	}
	through, dropped := 0, 0
	for _, p := range x.Inst.Trace() {
		s := p.String()
		last := p.Lines[len(p.Lines)-1].Text
		if strings.Contains(last, "bang") {
			dropped++
			if strings.Contains(s, "merged") || !strings.Contains(s, "2 branches, each on a copy") || strings.Count(s, "bang") != 1 {
				t.Errorf("%s", s)
			}
			continue
		}
		through++
		at := 0
		for _, part := range []string{"2 branches, each on a copy", "app/a", "app/b", "app/c", "2 branches are back and merged", "out-p1"} {
			i := strings.Index(s[at:], part)
			if i < 0 {
				t.Fatalf("%q is not where it should be:\n%s", part, s)
			}
			at += i
		}
	}
	if through+dropped != 60 || dropped == 0 || through == 0 {
		t.Errorf("%d went through and %d were dropped", through, dropped)
	}
}

// Whatever is deployed under traffic, what runs side by side is neither lost nor
// doubled, leaves in the order of its flow, and all frames are accounted for.
func TestSideBySideMachine(t *testing.T) {
	copied, fates := uint64(0), map[string]int{}
	rapid.Check(t, func(rt *rapid.T) {
		j := &judge{TB: t, rt: rt}
		defer func() {
			for _, f := range j.cleanups {
				f()
			}
		}()
		copied += sideBySideMachine(j, rt, fates)
	})
	t.Log(copied, fates)
	enough := 1000
	if testing.Short() {
		enough /= 5 // as the number of rapid's runs
	}
	if copied < uint64(enough) || fates["out"] < enough || fates["bang"] == 0 {
		t.Errorf("%d times a packet ran on copies; %v", copied, fates)
	}
}

func sideBySideMachine(t testing.TB, rt *rapid.T, fates map[string]int) uint64 {
	text := func() string {
		s, run := "regions: {count: 3, area: 4}\ntasks:\n", ""
		for i, f := range rapid.Permutation(written).Draw(rt, "fields")[:rapid.IntRange(1, 5).Draw(rt, "tasks")] {
			writes, does := f, []string(nil)
			switch rapid.IntRange(0, 5).Draw(rt, "what") {
			case 0:
				writes, does = 0, []string{"drops"}
			case 1:
				writes, does = 0, []string{"keeps"}
			}
			// Its arguments are always the same, or it is another task.
			s += letterTask('a'+byte(i), f, writes, does, rapid.SampledFrom([]string{"", ", latency: 1us", ", latency: 30us", ", throughput: 200Mbit", ", throughput: 5Mbit"}).Draw(rt, "time"))
			if i > 0 {
				run += " -> "
			}
			run += string(rune('a' + i))
		}
		return s + "tenants: {u: {}}\ndags: [{uid: 1, tenant: u, run: " + run + "}]\nrules: [{match: all, dag: 1}]\n"
	}
	how := func() string { return rapid.SampledFrom([]string{"auto", "on", "on", "off"}).Draw(rt, "parallel") }
	a := graph.Args{"deployment": text(), "parallel": how(), "fair": "off", "flows": "64", "epoch": "100us", "packets": rapid.SampledFrom([]string{"64", "1024"}).Draw(rt, "packets")}
	x := graphtest.NewOuter(t, scribes(), a)
	inside := map[uint32]bool{}
	last := map[string]uint32{}
	number := 0
	settle := func(r graphtest.Result) {
		for port, frames := range r.Out {
			for _, f := range frames {
				n := binary.BigEndian.Uint32(f.Bytes[8:])
				if f.Bytes[6] == isClone {
					continue
				}
				if !inside[n] {
					rt.Fatalf("%d came out of %s: it was never sent, or came out before", n, port)
				}
				delete(inside, n)
				fates["out"]++
				if flow := fmt.Sprint(port, f.Bytes[7]); f.Bytes[6] == isSent {
					if n < last[flow] {
						rt.Fatalf("of flow %s, %d came out after %d", flow, n, last[flow])
					}
					last[flow] = n
				}
			}
		}
		gone := map[uint32]bool{}
		for _, f := range r.Dropped {
			n := binary.BigEndian.Uint32(f.Bytes[8:])
			fates[f.Reason]++
			if f.Bytes[6] == isClone {
				continue
			}
			if !inside[n] && f.Reason != "bang" { // several branches may drop it
				rt.Fatalf("%d was dropped as %s: it was never sent, or came out before", n, f.Reason)
			}
			gone[n] = true
		}
		for n := range gone {
			delete(inside, n)
		}
	}
	rt.Repeat(map[string]func(*rapid.T){
		"": func(*rapid.T) {
			if err := x.Inst.Conservation(); err != nil {
				rt.Fatal(err)
			}
			if used, held := x.Pool.InUse(), x.Inst.Held(); used != held {
				rt.Fatalf("%d buffers are in use and %d are held", used, held)
			}
			if err := boardOf(x).runner.sched.Check(); err != nil {
				rt.Fatal(err)
			}
		},
		"send": func(rt *rapid.T) {
			port := rapid.SampledFrom([]string{"p0", "p1"}).Draw(rt, "port")
			var frames [][]byte
			for range min(rapid.IntRange(1, 64).Draw(rt, "frames"), x.Pool.Free()) { // without a buffer a port receives nothing
				number++
				inside[uint32(number)] = true
				frames = append(frames, wordy(number, byte(rapid.IntRange(1, 3).Draw(rt, "flow")), hdr.ProtoTCP, 20))
			}
			settle(x.Push(port, frames...))
		},
		"wait": func(rt *rapid.T) {
			settle(x.Advance(rapid.SampledFrom([]time.Duration{100, 5000, 100_000, 10e6}).Draw(rt, "time")))
		},
		"deploy": func(rt *rapid.T) {
			a["deployment"], a["parallel"] = text(), how()
			if err := x.Set(maps.Clone(a)); err != nil {
				rt.Fatal(err)
			}
			settle(x.Advance(0))
		},
	})
	for i := 0; i < 200 && len(inside) > 0; i++ {
		settle(x.Advance(10 * time.Millisecond))
	}
	if len(inside) > 0 {
		rt.Fatalf("%d frames are still inside", len(inside))
	}
	return boardOf(x).runner.copied
}

// A board that is stopped while packets are on copies drops each once.
func TestStopSideBySide(t *testing.T) {
	// When it stops a copy that one task has written waits for the next, and the frame itself for the other branch.
	text := strings.Replace(beside(", latency: 3ms", ", latency: 1ms"), "  c: {", "  c: {latency: 4ms, ", 1)
	a := graph.Args{"deployment": text, "fair": "off"}
	x := graphtest.NewOuter(t, scribes(), a)
	x.Advance(10 * time.Millisecond)
	for n := range 5 {
		x.Push("p0", wordy(n, byte(n), hdr.ProtoTCP, 10))
	}
	if n := boardOf(x).Held(); n != 5 {
		t.Errorf("%d frames are held, not 5 that nobody has written to", n)
	}
	x.Advance(2 * time.Millisecond)
	if n := boardOf(x).Held(); n != 10 {
		t.Errorf("%d frames are held, not 5 with a copy each", n)
	}
	a["packets"] = "128"
	if err := x.Set(a); err != nil {
		t.Fatal(err)
	}
	r := x.Advance(time.Millisecond)
	if len(r.Dropped) != 5 || len(r.Out["p1"]) != 0 || x.Pool.InUse() != 0 {
		t.Errorf("%v, %d in use", r, x.Pool.InUse())
	}
	for _, f := range r.Dropped {
		if f.Reason != "stopped" {
			t.Errorf("dropped as %s", f.Reason)
		}
	}
}

// A task whose modelled time is none holds up nobody, whether it lets packets go on or
// drops them: with one credit the next comes at once.
func TestNoTimeAtAll(t *testing.T) {
	text := "regions: {count: 1, area: 1}\ntasks:\n" + letterTask('a', effect.IPOther, 0, []string{"drops"}, ", throughput: 1000Gbit, credits: 1") +
		"tenants: {u: {}}\ndags: [{uid: 1, tenant: u, run: a}]\nrules: [{match: all, dag: 1}]\n"
	var frames [][]byte
	for n := range 64 {
		frames = append(frames, wordy(n, 1, hdr.ProtoTCP, 0))
	}
	_, o := through(t, text, [][]batchOf{{{"p0", frames, 0}}})
	if n := len(o.dropped); n < 5 || n == len(frames) {
		t.Errorf("%d of %d frames were dropped", n, len(frames))
	}
}
