package dag

import (
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/effect"
)

// deploy makes a deployment of one DAG out of tasks "name reads/writes flags",
// and its text.
func deploy(t testing.TB, text string, tasks ...string) *Deployment {
	t.Helper()
	o, err := ParseOrder(text)
	if err != nil {
		t.Fatal(err)
	}
	d := &Deployment{}
	index := map[string]TaskID{}
	for i, s := range tasks {
		name, effects, _ := strings.Cut(s, " ")
		index[name] = TaskID(i)
		words := strings.Split(effects+" ", " ")
		r, w, _ := strings.Cut(words[0], "/")
		x := Task{Name: name}
		if x.Reads, err = effect.ParseField(r); err == nil {
			x.Writes, err = effect.ParseField(w)
		}
		if err != nil {
			t.Fatal(err)
		}
		x.Drops, x.Answers, x.State = slices.Contains(words, "drops"), slices.Contains(words, "answers"), slices.Contains(words, "state")
		d.Tasks = append(d.Tasks, x)
	}
	g := DAG{UID: 1}
	for _, n := range o.Tasks {
		id, ok := index[n]
		if !ok {
			t.Fatalf("no task %s", n)
		}
		g.Tasks = append(g.Tasks, id)
	}
	for _, e := range o.Edges {
		g.Edges = append(g.Edges, [2]TaskID{g.Tasks[e[0]], g.Tasks[e[1]]})
	}
	d.DAGs = []DAG{g}
	return d
}

// show writes stages as text: "a>b|c ; d".
func show(d *Deployment, stages []Stage) string {
	var s []string
	for _, st := range stages {
		var b []string
		for _, br := range st {
			var n []string
			for _, t := range br {
				n = append(n, d.Tasks[t].Name)
			}
			b = append(b, strings.Join(n, ">"))
		}
		s = append(s, strings.Join(b, "|"))
	}
	return strings.Join(s, " ; ")
}

func TestStages(t *testing.T) {
	for _, c := range []struct {
		why   string
		text  string
		tasks []string
		width int
		want  string
	}{
		{
			"user1 of figure 5.7: NT3 beside NT1 and NT2, NT4 behind all", "NT1 -> NT2 -> NT3 -> NT4",
			[]string{"NT1 ports/ports", "NT2 ports,ip-addresses/ip-addresses", "NT3 payload/payload", "NT4 all/payload"}, 0,
			"NT1>NT2|NT3 ; NT4",
		},
		{
			"user2 of figure 5.7", "NT2 -> NT4",
			[]string{"NT2 ports,ip-addresses/ip-addresses", "NT4 all/payload"}, 0, "NT2>NT4",
		},
		{"one", "a", []string{"a all/all state drops"}, 0, "a"},
		{"readers", "a -> b -> c", []string{"a all/", "b all/", "c length/"}, 0, "a|b|c"},
		{"readers, two branches", "a -> b -> c", []string{"a all/", "b all/", "c length/"}, 2, "a>c|b"},
		{"readers, one branch", "c -> b -> a", []string{"a all/", "b all/", "c length/"}, 1, "a>b>c"},
		{
			"the order through a task between them remains", "a -> b -> c",
			[]string{"a /ports", "b ports/vlan", "c vlan/"}, 0, "a>b>c",
		},
		{
			"a diamond", "a -> b -> c -> d",
			[]string{"a /all", "b ports/encap", "c ports/vlan", "d all/"}, 0, "a ; b|c ; d",
		},
		{
			"a diamond, with no room for it", "a -> b -> c -> d",
			[]string{"a /all", "b ports/encap", "c ports/vlan", "d all/"}, 1, "a>b>c>d",
		},
		{
			"a diamond whose ends know each other through others", "a -> b -> c -> d",
			[]string{"a /ports", "b ports/encap", "c ports/vlan", "d encap,vlan/"}, 0, "a ; b|c ; d",
		},
		{
			"an N is no series of parallels", "a -> b -> c -> d",
			[]string{"a /ports", "b /vlan", "c ports/", "d ports,vlan/"}, 0, "a>b>c>d",
		},
		{
			"an N beside another", "a -> b -> c -> d -> e",
			[]string{"a /ports", "b /vlan", "c ports/", "d ports,vlan/", "e payload/payload"}, 0, "a>b>c>d|e",
		},
		{"no order given, and one needed: as named", "b; a", []string{"a ports/", "b /ports"}, 0, "b>a"},
		{"a firewall drops, a counter counts", "fw -> count", []string{"count / state", "fw ports/ drops"}, 0, "fw>count"},
		{"two that drop", "fw -> acl", []string{"acl ports/ drops", "fw ports/ drops"}, 0, "acl|fw"},
		{"a cache answers, a filter drops", "fw -> cache", []string{"cache payload/ answers", "fw ports/ drops"}, 0, "fw>cache"},
		{"an answer goes back through what is before it", "mark -> echo", []string{"echo payload/ answers", "mark /vlan"}, 0, "mark>echo"},
		{"an answer beside one that looks on", "look -> echo", []string{"echo payload/ answers", "look ports/"}, 0, "echo|look"},
		{"two that remember", "a -> b", []string{"a ports/ state", "b ports/ state"}, 0, "a|b"},
		{"a tunnel moves what others look at", "tunnel -> ttl", []string{"tunnel /encap,length", "ttl ip-other/ip-other"}, 0, "tunnel>ttl"},
		{"a tunnel beside one that looks at nothing", "tunnel -> wait", []string{"tunnel /encap,length", "wait /"}, 0, "tunnel|wait"},
	} {
		d := deploy(t, c.text, c.tasks...)
		if got := show(d, d.Stages(0, c.width)); got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.why, got, c.want)
		}
	}
}

// A model of packets and tasks: a field is a variable, a task a function from
// what it reads, and remembers, to what it writes.
type (
	modelPacket struct {
		field [16]uint64
		gone  bool
	}
	// world is what tasks leave behind.
	world struct {
		state   []uint64
		answers [][]uint64 // of each task, in its order
	}
)

// mix is a number that depends on all of v and their order.
func mix(v ...uint64) uint64 {
	h := uint64(len(v))
	for _, x := range v {
		h = (h ^ x) * 0x9E3779B97F4A7C15
		h = (h ^ h>>29) * 0xBF58476D1CE4E5B9
		h ^= h >> 32
	}
	return h
}

func newWorld(n int) *world { return &world{make([]uint64, n), make([][]uint64, n)} }

// run lets a task work on a packet. Bytes are where the length says.
func (w *world) run(tasks []Task, id TaskID, p *modelPacket) {
	t := &tasks[id]
	in := []uint64{uint64(id)}
	for f := t.Reads; f != 0; f &= f - 1 {
		i := bits.TrailingZeros16(uint16(f))
		in = append(in, p.field[i])
		if f&-f&effect.Bytes != 0 {
			in = append(in, p.field[bits.TrailingZeros16(uint16(effect.Length))])
		}
	}
	if t.State {
		w.state[id] = mix(append(in, 1, w.state[id])...)
		in = append(in, w.state[id])
	}
	do := func(what uint64) uint64 { return mix(append(in, 2, what)...) }
	at := p.field[bits.TrailingZeros16(uint16(effect.Length))]
	for f := t.Writes; f != 0; f &= f - 1 {
		i := bits.TrailingZeros16(uint16(f))
		if v := do(uint64(i)); v&1 == 0 { // it may write, and may not
			p.field[i] = mix(at, v)
		}
	}
	if t.Answers {
		// An answer is the packet, sent back.
		answer := mix(append(slices.Clone(p.field[:]), do(21))...)
		switch do(20) % 4 {
		case 0:
			w.answers[id] = append(w.answers[id], answer)
			p.gone = true
		case 1:
			w.answers[id] = append(w.answers[id], answer)
		}
	}
	if t.Drops && do(22)%4 == 0 {
		p.gone = true
	}
}

func (w *world) line(tasks []Task, order []TaskID, p modelPacket) modelPacket {
	for _, t := range order {
		if p.gone {
			break
		}
		w.run(tasks, t, &p)
	}
	return p
}

// stages runs each branch on a copy and merges what each has written.
func (w *world) stages(tasks []Task, all []Stage, p modelPacket) modelPacket {
	for _, s := range all {
		if p.gone {
			break
		}
		merged := p
		for _, b := range s {
			c := w.line(tasks, b, p)
			merged.gone = merged.gone || c.gone
			for _, t := range b {
				for f := tasks[t].Writes; f != 0; f &= f - 1 {
					i := bits.TrailingZeros16(uint16(f))
					merged.field[i] = c.field[i]
				}
			}
		}
		p = merged
	}
	return p
}

// modelCase is a DAG and which of the branches' tasks is next, again and again.
type modelCase struct {
	tasks []Task
	dag   DAG
	rank  []int
	width int
	next  []int
}

func genModel(t *rapid.T) modelCase {
	n := rapid.IntRange(1, 7).Draw(t, "tasks")
	c := modelCase{width: rapid.IntRange(0, 3).Draw(t, "width")}
	field := rapid.Custom(func(t *rapid.T) (f effect.Field) {
		for range rapid.SampledFrom([]int{0, 1, 1, 2, 3}).Draw(t, "fields") {
			f |= rapid.SampledFrom([]effect.Field{effect.VLAN, effect.IPAddresses, effect.IPOther, effect.Ports, effect.Payload, effect.Payload}).Draw(t, "field")
		}
		return f
	})
	rare := func(what string) bool { return rapid.IntRange(0, 4).Draw(t, what) == 4 }
	for i := range n {
		x := Task{Name: fmt.Sprint("t", i), Effects: effect.Effects{
			Reads: field.Draw(t, "reads"), Writes: field.Draw(t, "writes"),
			Drops: rare("drops"), Answers: rare("answers"), State: rare("state"),
		}}
		if rare("reads the length") {
			x.Reads |= effect.Length
		}
		if rapid.IntRange(0, 9).Draw(t, "grows") == 9 {
			x.Writes |= effect.Length
		}
		x.Latency = clock.Duration(rapid.IntRange(0, 100).Draw(t, "latency"))
		c.tasks = append(c.tasks, x)
	}
	ids := make([]TaskID, n)
	for i := range ids {
		ids[i] = TaskID(i)
	}
	c.dag.Tasks = rapid.Permutation(ids).Draw(t, "named")
	line := rapid.Permutation(ids).Draw(t, "order")
	for i, a := range line {
		for j, b := range line[:i] {
			if j == i-1 || rapid.Bool().Draw(t, "edge") {
				if rapid.IntRange(0, 3).Draw(t, "ordered") > 0 {
					c.dag.Edges = append(c.dag.Edges, [2]TaskID{b, a})
				}
			}
		}
	}
	c.rank = make([]int, n)
	for i, r := range rapid.Permutation(ids).Draw(t, "rank") {
		c.rank[i] = int(r)
	}
	c.next = rapid.SliceOfN(rapid.IntRange(0, 5), n, n).Draw(t, "next")
	return c
}

// differs runs packets through the user's order, through the stages, and
// through one interleaving of them, and says where results differ.
func (c *modelCase) differs(independent func(a, b *effect.Effects) bool) string {
	all := stages(c.tasks, &c.dag, c.rank, c.width, independent)
	user := c.dag.userOrder()
	var mixed []TaskID
	k := 0
	for _, s := range all {
		left := slices.Clone(s)
		for len(left) > 0 {
			i := c.next[k%len(c.next)] % len(left)
			k++
			mixed = append(mixed, left[i][0])
			if left[i] = left[i][1:]; len(left[i]) == 0 {
				left = slices.Delete(left, i, i+1)
			}
		}
	}
	if got := slices.Sorted(slices.Values(mixed)); !slices.Equal(got, slices.Sorted(slices.Values(c.dag.Tasks))) {
		return fmt.Sprintf("tasks %v of %v", got, c.dag.Tasks)
	}
	n := len(c.tasks)
	w1, w2, w3 := newWorld(n), newWorld(n), newWorld(n)
	for k := range uint64(5) {
		var p modelPacket
		for i := range p.field {
			p.field[i] = mix(k, uint64(i))
		}
		p1, p2, p3 := w1.line(c.tasks, user, p), w2.stages(c.tasks, all, p), w3.line(c.tasks, mixed, p)
		if p1.gone && p2.gone && p3.gone {
			continue
		}
		if p1 != p2 {
			return fmt.Sprintf("packet %d: merged is not %v", k, all)
		}
		if p1 != p3 {
			return fmt.Sprintf("packet %d: order %v is not %v", k, mixed, user)
		}
	}
	if d := cmp.Diff(w1, w2, cmp.AllowUnexported(world{})); d != "" {
		return "merged: " + d
	}
	return cmp.Diff(w1, w3, cmp.AllowUnexported(world{}))
}

// What comes out of the stages, merged or in any interleaving, is what comes out
// of the user's order.
func TestStagesAreTheUsersOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := genModel(t)
		if d := c.differs(effect.Independent); d != "" {
			t.Fatal(d)
		}
		all := stages(c.tasks, &c.dag, c.rank, c.width, effect.Independent)
		type place struct{ stage, branch, at int }
		where := map[TaskID]place{}
		for i, s := range all {
			if c.width > 0 && len(s) > c.width {
				t.Fatalf("%d branches, not %d", len(s), c.width)
			}
			if i > 0 && len(s) == 1 && len(all[i-1]) == 1 {
				t.Fatalf("stages %d and %d could be one", i-1, i)
			}
			for j, b := range s {
				for k, id := range b {
					where[id] = place{i, j, k}
				}
			}
		}
		user := c.dag.userOrder()
		for i, b := range user {
			for _, a := range user[:i] {
				x, y := where[a], where[b]
				if !effect.Independent(&c.tasks[a].Effects, &c.tasks[b].Effects) &&
					(x.stage > y.stage || x.stage == y.stage && (x.branch != y.branch || x.at > y.at)) {
					t.Fatalf("%d must be before %d: %v", a, b, all)
				}
			}
		}
		for _, e := range c.dag.Edges {
			if slices.Index(user, e[0]) > slices.Index(user, e[1]) {
				t.Fatalf("edge %v: %v", e, user)
			}
		}
	})
}

// Each part of the rule is needed: without it the test above finds a DAG that
// gives another result.
func TestLooserRulesAreSeen(t *testing.T) {
	gen := rapid.Custom(genModel)
	for name, rule := range map[string]func(a, b *effect.Effects) bool{
		"write and write": func(a, b *effect.Effects) bool {
			x, y := *a, *b
			if x.Writes&effect.Length == 0 && y.Writes&effect.Length == 0 {
				both := x.Writes & y.Writes &^ (x.Reads | y.Reads)
				x.Writes &^= both
			}
			return effect.Independent(&x, &y)
		},
		"write and read behind it": func(a, b *effect.Effects) bool {
			y := *b
			if a.Writes&effect.Length == 0 {
				y.Reads &^= a.Writes &^ y.Writes
			}
			return effect.Independent(a, &y)
		},
		"read and write behind it": func(a, b *effect.Effects) bool {
			x := *a
			if b.Writes&effect.Length == 0 {
				x.Reads &^= b.Writes &^ x.Writes
			}
			return effect.Independent(&x, b)
		},
		"bytes move": func(a, b *effect.Effects) bool {
			x, y := *a, *b
			if (x.Reads|y.Reads)&effect.Length == 0 && x.Writes&y.Writes&effect.Length == 0 {
				x.Writes &^= effect.Length
				y.Writes &^= effect.Length
			}
			return effect.Independent(&x, &y)
		},
		"drop and state": func(a, b *effect.Effects) bool {
			x, y := *a, *b
			x.State, y.State = false, false
			return effect.Independent(&x, &y)
		},
		"drop and answer": func(a, b *effect.Effects) bool {
			x, y := *a, *b
			if x.Drops && !x.Answers && y.Answers && !x.State && !y.State {
				x.Drops = false
			}
			return effect.Independent(&x, &y)
		},
		"answer and answer": func(a, b *effect.Effects) bool {
			x, y := *a, *b
			if x.Answers && y.Answers && !x.State && !y.State {
				x.Answers, y.Answers = false, false
			}
			return effect.Independent(&x, &y)
		},
		"answer and state": func(a, b *effect.Effects) bool {
			x, y := *a, *b
			if x.Answers && y.State {
				x.Answers, x.Drops, y.State = false, false, false
			}
			return effect.Independent(&x, &y)
		},
		"answer and write": func(a, b *effect.Effects) bool {
			x, y := *a, *b
			if !y.Answers && !y.State && !y.Drops && x.Answers && (x.Touches()&y.Reach()|y.Touches()&x.Reach()) == 0 {
				x.Answers = false
			}
			return effect.Independent(&x, &y)
		},
		"anything": func(a, b *effect.Effects) bool { return true },
	} {
		seen := false
		for i := 0; i < 5000 && !seen; i++ {
			c := gen.Example(i)
			seen = c.differs(rule) != ""
		}
		if !seen {
			t.Errorf("%s: no DAG of 5000 shows that it matters", name)
		}
	}
}

func FuzzParseOrder(f *testing.F) {
	for _, s := range []string{
		"fw -> nat -> aes; fw -> count", "a", "a->b;b->a", "a -> a", "a--->b", "a;b\nc -> a -> b -> c; c->b", "d->b; a->b->c; d->c",
		"a -> ", ";", "", "a -> b -> c; d -> b; d -> a", "é -> b",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		o, err := ParseOrder(s)
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("%q", err)
			}
			return
		}
		back, err := ParseOrder(o.String())
		if err != nil {
			t.Fatalf("%q: %v", o, err)
		}
		if d := cmp.Diff(o, back); d != "" {
			t.Fatalf("%q %q: %s", s, o, d)
		}
	})
}

func TestOrderString(t *testing.T) {
	for _, s := range []string{"fw -> nat -> aes; fw -> count", "a", "a; b", "a -> b -> c; a -> c", "a -> b; c -> b", "a -> b -> a"} {
		o, err := ParseOrder(s)
		if err != nil || o.String() != s {
			t.Errorf("%q: %q, %v", s, o, err)
		}
	}
}

func TestField(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := effect.Field(rapid.Uint16Range(0, effect.AllFields).Draw(t, "field"))
		if g, err := effect.ParseField(f.String()); err != nil || g != f {
			t.Fatalf("%v: %v, %v", f, g, err)
		}
	})
	for s, want := range map[string]string{
		"ports, ip-addresses": "ip-addresses,ports", "all": "all", "all,length": "all,length", "": "none", "none": "none",
	} {
		if f, err := effect.ParseField(s); err != nil || f.String() != want {
			t.Errorf("%q: %v, %v", s, f, err)
		}
	}
	const want = `no field is named "port" (known: all, ethernet, vlan, encap, ip-addresses, ip-other, ports, l4-other, payload, length)`
	if _, err := effect.ParseField("ports,port"); err == nil || err.Error() != want {
		t.Errorf("%v", err)
	}
	if got := (effect.Field(1<<15) | effect.VLAN).String(); got != "vlan,field(15)" {
		t.Error(got)
	}
}
