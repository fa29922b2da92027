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
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/packet"
)

// script is a task that does with a frame what its payload says: eight digits of
// its number, then '-': go on; '!': be dropped by the task whose letter
// follows; '?': be answered by it. Each task that a frame runs through adds its letter, in
// upper case on the way back; who answers adds '*'.
type script struct {
	letter byte
	hold   clock.Duration // how long it keeps frames; 0: not at all
	beat   clock.Duration // how often it makes one each way; 0: never
	next   clock.Time
	q      []*packet.Buf
	outs   []int
	at     []clock.Time
}

const payload = 42

func (s *script) Push(c *graph.Ctx, in int, b *packet.Batch) {
	for _, x := range b.Bufs() {
		out := 1 - in
		mark := s.letter - byte(in)*('a'-'A')
		if p := x.Bytes()[payload:]; p[9] == s.letter {
			switch p[8] {
			case '!':
				c.Drop(x, 0)
				continue
			case '?':
				p[8], mark, out = 'A', '*', in
			}
		}
		q, ok := x.Append(1)
		if !ok {
			panic("no room for a mark")
		}
		q[len(q)-1] = mark
		if s.hold == 0 {
			c.Emit(out, x)
			continue
		}
		s.q, s.outs, s.at = append(s.q, x), append(s.outs, out), append(s.at, c.Now().Add(s.hold))
	}
}

// keeping is script with a queue and a timer.
type keeping struct{ script }

func (s *keeping) Tick(c *graph.Ctx) clock.Time {
	// No more at a time than a port's link is sure to have room for (crowdedAt).
	for n := 0; len(s.q) > 0 && s.at[0] <= c.Now() && n < crowdedAt; n++ {
		c.Emit(s.outs[0], s.q[0])
		s.q, s.outs, s.at = s.q[1:], s.outs[1:], s.at[1:]
	}
	if s.beat > 0 && s.next <= c.Now() {
		s.next = c.Now().Add(s.beat)
		for out := range 2 {
			if x := c.Get(); x != nil {
				x.SetBytes(frame(250, "99999999-"+string(s.letter)))
				c.Emit(out, x)
			}
		}
	}
	next := clock.Never
	if s.beat > 0 {
		next = s.next
	}
	if s.hold > 0 {
		next = min(next, c.Now().Add(50*time.Microsecond))
	}
	return next
}

func (s *keeping) Held() int { return len(s.q) }
func (s *keeping) Stop(c *graph.Ctx) {
	for i, x := range s.q {
		c.Emit(s.outs[i], x)
	}
	s.q = nil
}

func scripts() []graph.Kind {
	two := []string{"a", "b"}
	kind := func(name string, make func(letter byte, d clock.Duration) graph.App) graph.Kind {
		return graph.Kind{Name: name, In: two, Out: two, Params: []graph.Param{{Name: "letter"}, {Name: "time"}}, Reasons: []counter.Def{{Name: "bang"}},
			New: func(_ graph.Env, a graph.Args) (graph.App, error) {
				d := clock.Duration(time.Millisecond)
				if v, ok := a["time"]; ok {
					var err error
					if d, err = time.ParseDuration(v); err != nil {
						return nil, err
					}
				}
				return make(a["letter"][0], d), nil
			}}
	}
	return []graph.Kind{*Kind(declared()...),
		kind("quick", func(l byte, _ clock.Duration) graph.App { return &script{letter: l} }),
		kind("hold", func(l byte, d clock.Duration) graph.App { return &keeping{script{letter: l, hold: d}} }),
		kind("beat", func(l byte, d clock.Duration) graph.App { return &keeping{script{letter: l, beat: d}} }),
	}
}

// version is a deployment as it was for some time.
type version struct {
	tasks map[byte]string // their YAML
	runs  map[uint32]string
	rules map[byte]uint32 // of a source
}

func (v *version) text(regions string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "regions: %s\ntasks:\n", regions)
	for _, l := range slices.Sorted(maps.Keys(v.tasks)) {
		fmt.Fprintf(&b, "  %c: %s\n", l, v.tasks[l])
	}
	b.WriteString("tenants: {u0: {}, u1: {weight: 3}, u2: {weight: 0.5}}\ndags:\n")
	if len(v.runs) == 0 {
		return strings.TrimSuffix(b.String(), "dags:\n")
	}
	for _, uid := range slices.Sorted(maps.Keys(v.runs)) {
		fmt.Fprintf(&b, "  - {uid: %d, tenant: u%d, run: %s}\n", uid, uid%3, strings.Join(strings.Split(v.runs[uid], ""), " -> "))
	}
	if len(v.rules) > 0 {
		b.WriteString("rules:\n")
	}
	for _, src := range slices.Sorted(maps.Keys(v.rules)) {
		fmt.Fprintf(&b, "  - {match: 'src:10.0.0.%d', dag: %d}\n", src, v.rules[src])
	}
	return b.String()
}

// sent is a frame that is inside.
type sent struct {
	version  int
	src      byte
	flow     int
	port     int
	op, task byte
}

// player is a board of one worker, or of several.
type player interface {
	Push(in string, frames ...[]byte) graphtest.Result
	Advance(d time.Duration) graphtest.Result
	Set(args graph.Args) error
	Books() (inst *graph.Instance, used, most int)
	between() int
	boards() []*board
}

// single is a board of one worker.
type single struct{ *graphtest.Test }

func (x single) Books() (*graph.Instance, int, int) { return x.Inst, x.Pool.InUse(), graphtest.Slots }
func (x single) between() int                       { return 0 }
func (x single) boards() []*board                   { return []*board{boardOf(x.Test)} }

// world is a board, what was deployed and what is inside.
type world struct {
	t        testing.TB
	x        player
	versions []version
	inside   map[string]sent
	last     map[string]string // of each flow, the last number that came out
	next     int
	flows    int // that there are, over all sources
	reasons  map[string]int
	never    []string // reasons that no frame is dropped for, with these arguments
}

// sources are those of flows.
const sources = 5

func (w *world) send(port, flow int, op, task byte) []byte {
	number := fmt.Sprintf("%08d", w.next)
	w.next++
	src := byte(flow%sources + 1)
	w.inside[number] = sent{len(w.versions) - 1, src, flow, port, op, task}
	p := number + string(op) + string(task)
	if port&1 == 0 {
		f := frame(src, p)
		binary.BigEndian.PutUint16(f[34:], uint16(1000+flow/sources))
		return f
	}
	f := back(src, p)
	binary.BigEndian.PutUint16(f[36:], uint16(1000+flow/sources))
	return f
}

// marks are those that a frame may have when its DAG is of a version.
func (s *sent) marks(run string) string {
	upper := port1(s.port)
	if upper {
		r := []byte(run)
		slices.Reverse(r)
		run = string(r)
	}
	var out []byte
	mark := func(l byte, up bool) byte {
		if up {
			return l - ('a' - 'A')
		}
		return l
	}
	for i := range len(run) {
		if run[i] == s.task && s.op != '-' {
			if s.op == '!' {
				return "!"
			}
			out = append(out, '*')
			for k := i - 1; k >= 0; k-- {
				out = append(out, mark(run[k], !upper))
			}
			return string(out)
		}
		out = append(out, mark(run[i], upper))
	}
	return string(out)
}

func port1(p int) bool { return p&1 == 1 }

// settle judges what has come out.
func (w *world) settle(r graphtest.Result) {
	for name, frames := range r.Out {
		for _, f := range frames {
			p := string(f.Bytes[payload:])
			number := p[:8]
			if number == "99999999" {
				continue
			}
			s, ok := w.inside[number]
			if !ok {
				w.t.Fatalf("%s came out of %s: it was never sent, or came out before", p, name)
			}
			delete(w.inside, number)
			w.passed(s, name, p, f)
			answered := p[8] == 'A'
			if want := fmt.Sprintf("p%d", s.port^1); !answered && name != want {
				w.t.Fatalf("%s came in by p%d and left by %s", p, s.port, name)
			}
			if answered && name != fmt.Sprintf("p%d", s.port) {
				w.t.Fatalf("the answer to what came in by p%d left by %s", s.port, name)
			}
			if s.op == '-' {
				flow := w.flow(s)
				if w.last[flow] >= number {
					w.t.Fatalf("of flow %s, %s came out after %s", flow, number, w.last[flow])
				}
				w.last[flow] = number
			}
		}
	}
	for _, f := range r.Dropped {
		number := string(f.Bytes[payload : payload+8])
		w.reasons[f.Reason]++
		if number == "99999999" {
			continue
		}
		s, ok := w.inside[number]
		if !ok {
			w.t.Fatalf("%s was dropped: it was never sent, or came out before", number)
		}
		delete(w.inside, number)
		if f.Reason == "gone" && s.version == len(w.versions)-1 {
			w.reasons["gone, nothing has changed"]++
		}
		if slices.Contains(w.never, f.Reason) {
			w.t.Fatalf("%s dropped as %s, of which there is no need", number, f.Reason)
		}
		switch f.Reason {
		case "bang":
			if s.op != '!' {
				w.t.Fatalf("a task has dropped %s, which did not say so", number)
			}
		case "throttled", "no-region", "store-full", "no-descriptor", "over-quota", "gone":
		default:
			w.t.Fatalf("%s dropped as %s", number, f.Reason)
		}
	}
}

// flow is what stays in order: of a flow and port while a rule sends it to the
// same DAG.
func (w *world) flow(s sent) string {
	uid, from := w.versions[s.version].rules[s.src], s.version
	for from > 0 && w.versions[from-1].rules[s.src] == uid && (uid == 0 || w.versions[from-1].runs[uid] != "") {
		from--
	}
	return fmt.Sprint(s.flow, " ", s.port, " ", from)
}

// passed judges the marks of a frame.
func (w *world) passed(s sent, name, p string, f graphtest.Frame) {
	got := p[10:]
	var could []string
	off := false // the DAG has changed
	for v := s.version; v < len(w.versions); v++ {
		uid, ok := w.versions[v].rules[s.src]
		if v > s.version {
			uid, ok = w.versions[s.version].rules[s.src], true // it keeps its DAG
		}
		run := w.versions[v].runs[uid]
		off = off || run != w.versions[s.version].runs[uid]
		if !ok {
			run = ""
		} else if run == "" {
			continue
		}
		could = append(could, s.marks(run))
		if w.went(s, s.task) {
			passing := s
			passing.op = '-'
			could = append(could, passing.marks(run))
		}
	}
	// An answer goes back through the DAG as it is then, at each of its tasks.
	if there, _, ok := strings.Cut(got, "*"); ok && off {
		got = there + "*"
	}
	slices.Sort(could)
	could = slices.Compact(could)
	pure := slices.Clone(could)
	for _, there := range pure {
		for _, back := range pure {
			a, _, ok := strings.Cut(there, "*")
			_, b, too := strings.Cut(back, "*")
			if ok && too {
				could = append(could, a+"*"+b)
			}
			if ok && off {
				could = append(could, a+"*")
			}
		}
	}
	// Tasks that went meanwhile may be missing.
	like := func(want string) bool {
		rest := got
		for i := range len(want) {
			if rest != "" && rest[0] == want[i] {
				rest = rest[1:]
			} else if !w.went(s, want[i]|0x20) {
				return false
			}
		}
		return rest == ""
	}
	if !slices.ContainsFunc(could, like) {
		w.t.Fatalf("%s came in by p%d (op %c%c, version %d of %d) and out by %s, %v, %s: its marks can be %q", p, s.port, s.op, s.task, s.version, len(w.versions), name, f.Verdict, f.Reason, could)
	}
}

// went reports whether a task was not deployed for some time since a frame came.
func (w *world) went(s sent, task byte) bool {
	return slices.ContainsFunc(w.versions[s.version:], func(v version) bool { return v.tasks[task] == "" })
}

// judge is a testing.TB that fails a rapid.T.
type judge struct {
	testing.TB
	rt       *rapid.T
	cleanups []func()
}

func (j *judge) Helper()                   {}
func (j *judge) Cleanup(f func())          { j.cleanups = append(j.cleanups, f) }
func (j *judge) Failed() bool              { return j.rt.Failed() }
func (j *judge) Log(a ...any)              {}
func (j *judge) Error(a ...any)            { j.rt.Error(a...) }
func (j *judge) Errorf(f string, a ...any) { j.rt.Errorf(f, a...) }
func (j *judge) Fatal(a ...any)            { j.rt.Fatal(a...) }
func (j *judge) Fatalf(f string, a ...any) { j.rt.Fatalf(f, a...) }

// Random deployments, traffic both ways on several pairs, redeployments under
// traffic, tasks that hold, answer, drop and make frames, time of a board or
// none, and regions too few and too small: no frame is lost or doubled, each runs
// through the tasks of its DAG in their order, those of a flow stay in order, and in the end
// nobody waits. With several workers each direction of a flow comes in by one of them, and DAGs go from worker to worker.
func TestMachine(t *testing.T) {
	total := map[string]int{}
	rapid.Check(t, func(rt *rapid.T) { machine(t, rt, total, rapid.SampledFrom([]int{1, 1, 2, 4}).Draw(rt, "workers")) })
	for _, what := range []string{"bang", "handed over", "waited for time"} {
		if total[what] == 0 && !(testing.Short() && what == "waited for time") { // it is rare among 20 runs
			t.Errorf("nothing was dropped or %s: %v", what, total)
		}
	}
	t.Log(total)
}

// observed is a clock that says when somebody looks: before tasks run, and after.
type observed struct {
	stride
	look func()
}

func (o *observed) Now() clock.Time {
	o.look()
	return o.stride.Now()
}

func machine(t *testing.T, rt *rapid.T, total map[string]int, workers int) {
	area := rapid.IntRange(1, 3).Draw(rt, "area")
	regions := fmt.Sprintf("{count: %d, area: %d}", rapid.IntRange(1, 4).Draw(rt, "regions"), area)
	letters := []byte("abcdef")
	task := func(l byte) string {
		kind := rapid.SampledFrom([]string{"quick", "quick", "hold", "beat"}).Draw(rt, "kind")
		s := fmt.Sprintf("{kind: %s, area: %d, args: {letter: %c", kind, rapid.IntRange(1, area).Draw(rt, "task area"), l)
		if kind != "quick" {
			s += ", time: " + rapid.SampledFrom([]string{"30us", "1ms", "7ms"}).Draw(rt, "time")
		}
		s += "}"
		switch rapid.IntRange(0, 4).Draw(rt, "model") {
		case 0:
			s += ", throughput: " + rapid.SampledFrom([]string{"1Gbit", "100Mbit", "5Mbit"}).Draw(rt, "throughput")
		case 1:
			s += ", latency: " + rapid.SampledFrom([]string{"64ns", "40us", "3ms"}).Draw(rt, "latency")
		}
		return s + fmt.Sprintf(", credits: %d}", rapid.IntRange(1, 8).Draw(rt, "credits"))
	}
	run := func(v *version) string {
		all := slices.Sorted(maps.Keys(v.tasks))
		return string(rapid.Permutation(all).Draw(rt, "run")[:rapid.IntRange(1, len(all)).Draw(rt, "length")])
	}
	first := version{map[byte]string{}, map[uint32]string{}, map[byte]uint32{}}
	for _, l := range letters[:rapid.IntRange(1, 6).Draw(rt, "tasks")] {
		first.tasks[l] = task(l)
	}
	for uid := range uint32(rapid.IntRange(1, 4).Draw(rt, "dags")) {
		first.runs[uid+1] = run(&first)
		first.rules[byte(uid+1)] = uid + 1
	}
	j := &judge{TB: t, rt: rt}
	// What tasks cost is measured, or nothing is. If it is much, and time is divided, frames wait for it.
	each := rapid.SampledFrom([]time.Duration{0, time.Microsecond, 100 * time.Microsecond, 100 * time.Microsecond}).Draw(rt, "cost")
	fair := rapid.SampledFrom([]string{"on", "off"}).Draw(rt, "fair")
	if each > time.Microsecond {
		fair = "on"
	}
	args := graph.Args{"deployment": first.text(regions), "flows": "64", "epoch": "50us", "monitor": "6ms", "idle": rapid.SampledFrom([]string{"0", "0", "10ms"}).Draw(rt, "idle"),
		"fair": fair, "packets": rapid.SampledFrom([]string{"64", "2048"}).Draw(rt, "packets"),
		"store": rapid.SampledFrom([]string{"4k", "1M"}).Draw(rt, "store"), "burst": rapid.SampledFrom([]string{"2k", "256k"}).Draw(rt, "burst"),
		"scheduler": rapid.SampledFrom([]string{"chain", "chain", "panic"}).Draw(rt, "scheduler")}
	var x player
	if workers == 1 {
		x = single{graphtest.NewOuter(j, scripts(), args)}
	} else {
		x = newCrew(j, scripts(), workers, args)
	}
	if each > 0 {
		for _, b := range x.boards() {
			b.split.spent.clock = &observed{stride{step: each}, func() { total["waited for time"] += b.ingress.lobby.frames }}
		}
	}
	w := &world{t: j, x: x, versions: []version{first}, inside: map[string]sent{}, last: map[string]string{}, reasons: total}
	if w.flows = rapid.IntRange(1, 17).Draw(rt, "flows"); w.flows == 17 {
		w.flows = 1000
	}
	if args["fair"] == "off" {
		w.never = append(w.never, "throttled", "over-quota")
	}
	if workers == 1 && args["packets"] == "2048" { // no more than half of the pool's frames, and those of a batch of 100, are inside
		w.never = append(w.never, "no-descriptor")
	}
	if workers == 1 && args["store"] == "1M" {
		w.never = append(w.never, "store-full")
	}
	defer func() {
		if err := recover(); err != nil {
			panic(err)
		}
		for _, f := range j.cleanups {
			f()
		}
	}()
	redeploy := func(change func(v *version)) {
		old := w.versions[len(w.versions)-1]
		v := version{maps.Clone(old.tasks), maps.Clone(old.runs), maps.Clone(old.rules)}
		change(&v)
		args["deployment"] = v.text(regions)
		if err := w.x.Set(maps.Clone(args)); err != nil {
			rt.Skip(err) // more regions than there are: it does not fit
		}
		w.versions = append(w.versions, v)
	}
	uids := func(v *version) []uint32 { return slices.Sorted(maps.Keys(v.runs)) }
	rt.Repeat(map[string]func(*rapid.T){
		"": func(*rapid.T) {
			inst, used, _ := w.x.Books()
			if err := inst.Conservation(); err != nil {
				rt.Fatal(err)
			}
			if held := inst.Held() - w.x.between(); used != held {
				rt.Fatalf("%d buffers are in use and %d are held", used, held)
			}
		},
		"send": func(rt *rapid.T) {
			if _, used, most := w.x.Books(); used > most/2 {
				rt.Skip("the pool is busy")
			}
			port := rapid.IntRange(0, 3).Draw(rt, "port")
			var frames [][]byte
			for range rapid.IntRange(1, 100).Draw(rt, "frames") {
				op := rapid.SampledFrom([]byte("---------!?")).Draw(rt, "op")
				frames = append(frames, w.send(port, rapid.IntRange(0, w.flows-1).Draw(rt, "flow"), op, rapid.SampledFrom(letters).Draw(rt, "task")))
			}
			w.settle(w.x.Push(fmt.Sprintf("p%d", port), frames...))
		},
		// Several tenants send in one epoch after the other.
		"send on and on": func(rt *rapid.T) {
			port := rapid.IntRange(0, 3).Draw(rt, "port")
			for i := range 5 {
				if len(w.inside) > 400 {
					rt.Skip("a task that goes lets go of all that it holds, for which a link is to have room")
				}
				var frames [][]byte
				for k := range 60 {
					frames = append(frames, w.send(port, (i+k)%w.flows, '-', 'a'))
				}
				w.settle(w.x.Push(fmt.Sprintf("p%d", port), frames...))
				w.settle(w.x.Advance(60 * time.Microsecond))
			}
		},
		"wait": func(rt *rapid.T) {
			d := rapid.SampledFrom([]time.Duration{time.Microsecond, 30 * time.Microsecond, 300 * time.Microsecond, 3 * time.Millisecond, 20 * time.Millisecond}).Draw(rt, "time")
			w.settle(w.x.Advance(d))
		},
		"move a DAG": func(rt *rapid.T) {
			x, ok := w.x.(*crew)
			if !ok {
				rt.Skip("there is one worker")
			}
			b, n := x.board(rapid.IntRange(0, workers-1).Draw(rt, "worker")), rapid.IntRange(0, 3).Draw(rt, "DAG")
			if n >= len(b.cat.services) || b.renew {
				return
			}
			switch s := &b.cat.services[n]; {
			case s.UID == 0 || s.lodge.home == b.cat.worker || s.where.underWay():
			case s.where.to == 0:
				b.near.leaveFor(n)
			default:
				b.cat.house.crying[n].Store(true)
				b.cat.house.cries.Add(1)
			}
		},
		"change a DAG": func(rt *rapid.T) {
			redeploy(func(v *version) {
				if len(v.tasks) == 0 {
					return
				}
				uid := uint32(rapid.IntRange(1, 4).Draw(rt, "uid"))
				if v.runs[uid] != "" && rapid.Bool().Draw(rt, "remove") {
					delete(v.runs, uid)
					maps.DeleteFunc(v.rules, func(_ byte, u uint32) bool { return u == uid })
					return
				}
				v.runs[uid] = run(v)
				v.rules[byte(uid)] = uid
			})
		},
		"change a task": func(rt *rapid.T) {
			redeploy(func(v *version) {
				l := rapid.SampledFrom(letters).Draw(rt, "task")
				if _, ok := v.tasks[l]; ok && len(v.tasks) > 1 && rapid.Bool().Draw(rt, "remove") {
					delete(v.tasks, l)
					for _, uid := range uids(v) {
						if v.runs[uid] = strings.ReplaceAll(v.runs[uid], string(l), ""); v.runs[uid] == "" {
							delete(v.runs, uid)
							maps.DeleteFunc(v.rules, func(_ byte, u uint32) bool { return u == uid })
						}
					}
					return
				}
				v.tasks[l] = task(l)
			})
		},
		"change a rule": func(rt *rapid.T) {
			redeploy(func(v *version) {
				src := byte(rapid.IntRange(1, sources).Draw(rt, "source"))
				if len(v.runs) == 0 || rapid.Bool().Draw(rt, "remove") {
					delete(v.rules, src)
					return
				}
				v.rules[src] = rapid.SampledFrom(uids(v)).Draw(rt, "uid")
			})
		},
	})
	// Everybody leaves in the end: it takes seconds if six chains share one region.
	for i := 0; i < 1500 && len(w.inside) > 0; i++ {
		w.settle(w.x.Advance(20 * time.Millisecond))
	}
	if len(w.inside) > 0 {
		rt.Fatalf("%d frames are still inside: %v", len(w.inside), w.inside)
	}
	if x, ok := w.x.(*crew); ok {
		total["handed over"] += int(x.counter("handed"))
		for i := range x.pools {
			total["went to their homes"] += int(x.board(i).near.went)
			total["came from their homes"] += int(x.board(i).near.came)
		}
	}
}
