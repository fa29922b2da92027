package snic

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
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

// plainly is a task that makes no frames of its own, and whose function says so: a board gives it batches of several DAGs, and looks at
// what comes back as at one thing. It notes who came to it.
//
// With swap it sorts the batch that it is given by flow before it sends the frames on: those of a flow stay in order. With drop it
// drops some, with write it changes them, at frame number bang it panics.
type plainly struct {
	letter            byte
	swap, drop, write bool
	bang, n           int
	seen              func(letter byte, number string)
}

func (q *plainly) Push(c *graph.Ctx, in int, b *packet.Batch) {
	frames := b.Bufs()
	for _, x := range frames {
		q.seen(q.letter, string(x.Bytes()[payload:payload+8]))
		if q.n++; q.n == q.bang {
			panic("bang")
		}
	}
	if q.swap {
		slices.SortStableFunc(frames, func(x, y *packet.Buf) int { return int(flowOf(x.Bytes())) - int(flowOf(y.Bytes())) })
	}
	for _, x := range frames {
		p := x.Bytes()
		if q.drop && p[payload+8] == '!' && p[payload+9] == q.letter {
			c.Drop(x, 0)
			continue
		}
		if q.write {
			p[15]++ // the type of service
			hdr.IPv4(p[14:]).UpdateChecksum()
		}
		c.Emit(1-in, x)
	}
}

// flowOf is the flow of a frame of an odd world, the same for both directions.
func flowOf(b []byte) uint16 {
	if b[29] == 1 && b[28] == 1 { // back
		return uint16(b[33])<<8 | uint16(b[37])
	}
	return uint16(b[29])<<8 | uint16(b[35])
}

func plains(seen func(letter byte, number string)) []graph.Kind {
	two := []string{"a", "b"}
	plain := graph.Kind{
		Name: "plain", In: two, Out: two, Params: []graph.Param{{Name: "letter"}, {Name: "does"}, {Name: "bang"}}, Reasons: []counter.Def{{Name: "bang"}},
		Effects: func(a graph.Args) effect.Effects {
			e := effect.Effects{Reads: effect.Ports | effect.Payload, Drops: strings.Contains(a["does"], "drop")}
			if strings.Contains(a["does"], "write") {
				e.Writes = effect.IPOther
			}
			return e
		},
		New: func(_ graph.Env, a graph.Args) (graph.App, error) {
			q := &plainly{letter: a["letter"][0], seen: seen, swap: strings.Contains(a["does"], "swap"), drop: strings.Contains(a["does"], "drop"), write: strings.Contains(a["does"], "write")}
			if a["bang"] != "" {
				_, err := fmt.Sscan(a["bang"], &q.bang)
				return q, err
			}
			return q, nil
		}}
	return []graph.Kind{*Kind(plain), plain}
}

// odd follows the frames of a board: each comes out once or is dropped, those of a direction of a flow in their order.
type odd struct {
	t        testing.TB
	x        player
	next     int
	inside   map[string]bool
	last     map[uint32]string
	visits   map[string]string // which tasks a frame came to
	came     map[byte]int      // frames that came out, by source
	lost     map[byte]int      // frames that were dropped though they did not ask for it, by source
	reasons  map[string]int
	pad      string // at the end of each frame
	complete string // the tasks that each frame that comes out was at; "": they change
}

func newOdd(t testing.TB) *odd {
	return &odd{t: t, inside: map[string]bool{}, last: map[uint32]string{}, visits: map[string]string{}, came: map[byte]int{}, lost: map[byte]int{}, reasons: map[string]int{}}
}

func (o *odd) seen(letter byte, number string) { o.visits[number] += string(letter) }

func (o *odd) frame(src, flow byte, port int, task byte) []byte {
	n := fmt.Sprintf("%08d", o.next)
	o.next++
	o.inside[n] = true
	op := byte('-')
	if task != 0 {
		op = '!'
	}
	text := n + string(op) + string(task) + o.pad
	if port&1 == 0 {
		f := frameLong(src, text)
		binary.BigEndian.PutUint16(f[34:], 1<<8|uint16(flow))
		return f
	}
	f := back(src, text)
	binary.BigEndian.PutUint16(f[36:], 1<<8|uint16(flow))
	return f
}

func (o *odd) take(r graphtest.Result) {
	for name, frames := range r.Out {
		for _, f := range frames {
			n := string(f.Bytes[payload : payload+8])
			if !o.inside[n] {
				o.t.Fatalf("%s came out of %s: it was never sent, or came out before", n, name)
			}
			delete(o.inside, n)
			flow, src := uint32(flowOf(f.Bytes)), f.Bytes[29]
			if name == "p0" {
				flow, src = flow|1<<16, f.Bytes[33]
			}
			if o.last[flow] >= n {
				o.t.Fatalf("of flow %#x, %s came out after %s", flow, n, o.last[flow])
			}
			o.last[flow] = n
			o.came[src]++
			if at := []byte(o.visits[n]); o.complete != "" {
				slices.Sort(at)
				if string(at) != o.complete {
					o.t.Fatalf("%s was at tasks %q, not at %q", n, at, o.complete)
				}
			}
			delete(o.visits, n)
		}
	}
	for _, f := range r.Dropped {
		n := string(f.Bytes[payload : payload+8])
		if !o.inside[n] {
			o.t.Fatalf("%s was dropped (%s): it was never sent, or came out before", n, f.Reason)
		}
		delete(o.inside, n)
		o.reasons[f.Reason]++
		if f.Reason != "bang" {
			src := f.Bytes[29]
			if f.Bytes[28] == 1 {
				src = f.Bytes[33]
			}
			o.lost[src]++
		} else if f.Bytes[payload+8] != '!' {
			o.t.Fatalf("a task has dropped %s, which did not ask for it", n)
		}
	}
}

// books compares what is inside with what the board says, and looks into its schedulers.
func (o *odd) books() {
	o.t.Helper()
	inst, used, _ := o.x.Books()
	if err := inst.Conservation(); err != nil {
		o.t.Fatal(err)
	}
	if held := inst.Held() - o.x.between(); used != held {
		o.t.Fatalf("%d buffers are in use and %d are held", used, held)
	}
	for i, b := range o.x.boards() {
		if err := b.runner.sched.Check(); err != nil {
			o.t.Fatalf("worker %d: %v", i, err)
		}
	}
}

// empty reports what is left on a board when all should be gone.
func (o *odd) empty() {
	o.t.Helper()
	for i := 0; i < 200 && len(o.inside) > 0; i++ {
		o.take(o.x.Advance(10 * time.Millisecond))
	}
	o.take(o.x.Advance(10 * time.Millisecond)) // a frame that one branch has dropped is on the books until the others are done
	if len(o.inside) > 0 {
		o.t.Fatalf("%d frames are still inside", len(o.inside))
	}
	o.books()
	for i, b := range o.x.boards() {
		if b.Held() != 0 || b.stock.inside != 0 || b.stock.stored != 0 || b.runner.promised != 0 {
			o.t.Fatalf("worker %d is empty, and has %d frames, %d packets, %d bytes, %d copies promised", i, b.Held(), b.stock.inside, b.stock.stored, b.runner.promised)
		}
		for n := range b.stock.kept {
			if k := &b.stock.kept[n]; k.packets != 0 || k.bytes != 0 {
				o.t.Fatalf("worker %d is empty, and tenant %d has %+v", i, n, *k)
			}
		}
	}
}

// TestOddMachine: tasks that make no frames, alone and side by side, with times as small and credits as few as can be, a packet store
// of a few frames or of many, 1 flow or many, one worker or two, while models of tasks change: no frame is lost without a reason or
// doubled, each is at each task once, those of a direction of a flow stay in order, and nothing is left.
func TestOddMachine(t *testing.T) {
	total, forked := map[string]int{}, 0
	rapid.Check(t, func(rt *rapid.T) {
		j := &judge{TB: t, rt: rt}
		o := newOdd(j)
		workers := rapid.SampledFrom([]int{1, 1, 2}).Draw(rt, "workers")
		count := rapid.IntRange(1, 4).Draw(rt, "tasks")
		does := make([]string, count)
		for i := range does {
			does[i] = rapid.SampledFrom([]string{"look", "look", "drop", "swap", "drop+swap", "write"}).Draw(rt, "does")
			o.complete += string(rune('a' + i))
		}
		regions := rapid.IntRange(1, 4).Draw(rt, "regions")
		text := func() string {
			var b strings.Builder
			fmt.Fprintf(&b, "regions: {count: %d, area: %d}\ntasks:\n", regions, rapid.IntRange(count, count).Draw(rt, "area"))
			for i := range count {
				model := rapid.SampledFrom([]string{"", "latency: 1ns", "latency: 100ns", "latency: 30us", "throughput: 10Gbit", "throughput: 100Mbit, latency: 2us"}).Draw(rt, "model")
				if model != "" {
					model += ", "
				}
				fmt.Fprintf(&b, "  %c: {kind: plain, args: {letter: %c, does: %s}, %scredits: %d}\n", 'a'+i, 'a'+i, does[i], model, rapid.SampledFrom([]int{1, 3, 64, 1000}).Draw(rt, "credits"))
			}
			b.WriteString("tenants: {u: {}, v: {weight: 2}}\ndags:\n")
			run := strings.Join(strings.Split(o.complete, ""), " -> ")
			fmt.Fprintf(&b, "  - {uid: 1, tenant: u, run: %s}\n  - {uid: 2, tenant: v, run: %s}\n", run, run)
			b.WriteString("rules: [{match: 'src:10.0.0.1', dag: 1}, {match: 'src:10.0.0.2', dag: 2}]\n")
			return b.String()
		}
		args := graph.Args{"deployment": text(), "parallel": rapid.SampledFrom([]string{"on", "auto", "off"}).Draw(rt, "parallel"),
			"packets": rapid.SampledFrom([]string{"64", "2048"}).Draw(rt, "packets"), "store": rapid.SampledFrom([]string{"4k", "1M"}).Draw(rt, "store"),
			"fair": rapid.SampledFrom([]string{"on", "off"}).Draw(rt, "fair")}
		if workers == 1 {
			o.x = single{graphtest.NewOuter(j, plains(o.seen), args)}
		} else {
			o.x = newCrew(j, plains(o.seen), workers, args)
		}
		defer func() {
			if err := recover(); err != nil {
				panic(err)
			}
			for _, f := range j.cleanups {
				f()
			}
		}()
		flows := rapid.SampledFrom([]int{1, 2, 16, 200}).Draw(rt, "flows")
		o.take(o.x.Advance(20 * time.Millisecond))
		for range rapid.IntRange(1, 30).Draw(rt, "steps") {
			switch rapid.IntRange(0, 5).Draw(rt, "step") {
			case 0:
				o.take(o.x.Advance(rapid.SampledFrom([]time.Duration{0, 1, 100, 10 * time.Microsecond, 5 * time.Millisecond}).Draw(rt, "time")))
			case 1:
				args["deployment"] = text()
				if err := o.x.Set(args); err != nil {
					rt.Fatal(err)
				}
			default:
				if _, used, most := o.x.Books(); used > most/2 {
					continue
				}
				port := rapid.IntRange(0, 1).Draw(rt, "port")
				var frames [][]byte
				for range rapid.SampledFrom([]int{1, 3, 30, 100}).Draw(rt, "frames") {
					task := byte(0)
					if k := rapid.IntRange(0, 15).Draw(rt, "drop"); k < count && strings.Contains(does[k], "drop") {
						task = byte('a' + k)
					}
					flow := rapid.IntRange(0, flows-1).Draw(rt, "flow")
					frames = append(frames, o.frame(byte(flow%2+1), byte(flow/2), port, task))
				}
				o.take(o.x.Push(fmt.Sprintf("p%d", port), frames...))
			}
			o.books()
		}
		o.empty()
		for why, n := range o.reasons {
			total[why] += n
			if args["fair"] == "off" && (why == "throttled" || why == "over-quota") {
				rt.Fatalf("%d frames were dropped: %s", n, why)
			}
			if !slices.Contains([]string{"bang", "throttled", "over-quota", "no-descriptor", "store-full", "no-region", "hand-over-full"}, why) {
				rt.Fatalf("%d frames were dropped: %s", n, why)
			}
		}
		for _, b := range o.x.boards() {
			forked += int(b.runner.copied)
		}
	})
	t.Log(total, forked)
	if forked == 0 || total["bang"] == 0 {
		t.Errorf("%d packets ran side by side, and frames were dropped: %v", forked, total)
	}
}

// oddTenants is a deployment of some tenants with one DAG each of the same tasks.
func oddTenants(regions, tasks, run string, tenants []byte) string {
	var b strings.Builder
	fmt.Fprintf(&b, "regions: %s\ntasks:\n%stenants:\n", regions, tasks)
	for _, u := range tenants {
		fmt.Fprintf(&b, "  u%d: {}\n", u)
	}
	b.WriteString("dags:\n")
	for _, u := range tenants {
		fmt.Fprintf(&b, "  - {uid: %d, tenant: u%d, run: %s}\n", u, u, run)
	}
	b.WriteString("rules:\n")
	for _, u := range tenants {
		fmt.Fprintf(&b, "  - {match: 'src:10.0.0.%d', dag: %d}\n", u, u)
	}
	return b.String()
}

// TestOddStore: a packet store of a few frames beside a flood: who sends less than a fair part has all of it, the flood has what is
// left, nothing is lost beyond that, and the store is empty afterwards.
func TestOddStore(t *testing.T) {
	for _, parallel := range []string{"on", "off"} {
		for _, store := range []string{"2k", "1M"} {
			for _, flows := range []int{1, 16} {
				o := newOdd(t)
				tasks := ""
				for i := range 3 {
					tasks += fmt.Sprintf("  %c: {kind: plain, args: {letter: %c, does: look}, throughput: 1Gbit, latency: 1us, credits: 8}\n", 'a'+i, 'a'+i)
				}
				o.complete = "abc"
				args := graph.Args{"deployment": oddTenants("{count: 1, area: 3}", tasks, "a -> b -> c", []byte{1, 2}), "parallel": parallel, "packets": "64", "store": store, "burst": "4k"}
				o.x = single{graphtest.NewOuter(t, plains(o.seen), args)}
				o.take(o.x.Advance(20 * time.Millisecond))
				polite := 0
				for i := range 2000 { // of some 2,200 frames a ms that a task of 1 Gbit/s can do
					var frames [][]byte
					for k := range 12 {
						frames = append(frames, o.frame(2, byte((12*i+k)%flows), 0, 0))
					}
					if i%4 == 0 {
						frames = append(frames, o.frame(1, byte(i/4%flows), 0, 0))
						polite++
					}
					o.take(o.x.Push("p0", frames...))
					o.take(o.x.Advance(2 * time.Microsecond))
				}
				o.empty()
				name := fmt.Sprintf("parallel=%s store=%s flows=%d", parallel, store, flows)
				if float64(o.came[1]) < .95*float64(polite) {
					t.Errorf("%s: of %d frames of who sends little, %d came out; %v", name, polite, o.came[1], o.reasons)
				}
				if o.came[2] < 4000 || o.lost[2] == 0 {
					t.Errorf("%s: of the flood %d came out and %d were lost: %v", name, o.came[2], o.lost[2], o.reasons)
				}
			}
		}
	}
}

// TestOddPanicOnTwo: a task that runs on both workers panics in one of them: the frames that it had are counted, the other DAG loses
// nothing on either, and when the task is started again all is as before.
func TestOddPanicOnTwo(t *testing.T) {
	for _, parallel := range []string{"on", "off"} {
		for _, bang := range []int{2000, 2400} {
			o := newOdd(t)
			o.pad = strings.Repeat(".", 448)
			tasks := func(bang, restart int) string {
				return fmt.Sprintf("  a: {kind: plain, restart: %d, args: {letter: a, does: look, bang: %d}, throughput: 60Mbit, credits: 64}\n"+
					"  b: {kind: plain, args: {letter: b, does: look}, throughput: 1Gbit, credits: 64}\n", restart, bang)
			}
			text := func(bang, restart int) string {
				s := oddTenants("{count: 4, area: 2}", tasks(bang, restart), "a -> b", []byte{1, 2})
				return strings.Replace(s, "{uid: 2, tenant: u2, run: a -> b}", "{uid: 2, tenant: u2, run: b}", 1)
			}
			x := newCrew(t, plains(o.seen), 2, graph.Args{"deployment": text(bang, 0), "parallel": parallel, "fair": "off", "packets": "4096"})
			o.x = x
			o.take(x.Advance(20 * time.Millisecond))
			random := rand.New(rand.NewPCG(1, uint64(bang)))
			second := 0
			play := func(d time.Duration) {
				for end := x.now.Add(d); x.now < end; {
					// 140 Mbit/s of a task of 60 in each region.
					second++
					o.take(x.Push("p0", o.frame(1, byte(random.IntN(16)), 0, 0), o.frame(2, byte(random.IntN(16)), 0, 0)))
					o.take(x.Advance(29 * time.Microsecond))
				}
			}
			name := fmt.Sprintf("parallel=%s bang=%d", parallel, bang)
			play(60 * time.Millisecond)
			if n, k := x.board(0).cat.instances(0), x.board(1).cat.instances(0); n < 1 || k < 1 || len(o.reasons) > 0 || len(x.inst.Faults()) > 0 {
				t.Fatalf("%s: before, there are %d and %d instances, and frames were dropped: %v", name, n, k, o.reasons)
			}
			play(120 * time.Millisecond)
			o.empty()
			lost := 0
			for _, f := range x.inst.Faults() {
				lost += f.Frames
			}
			if n := o.reasons["panicked"]; n == 0 || n != lost {
				t.Errorf("%s: %d frames were lost with the task, and %d are told", name, n, lost)
			}
			if o.lost[2] > 0 || o.came[2] != second {
				t.Errorf("%s: of another tenant's %d frames %d came out", name, second, o.came[2])
			}
			for why := range o.reasons {
				if why != "panicked" && why != "task-faulted" {
					t.Errorf("%s: frames were dropped: %v", name, o.reasons)
				}
			}
			if err := x.Set(graph.Args{"deployment": text(0, 1), "parallel": parallel, "fair": "off", "packets": "4096"}); err != nil {
				t.Fatal(err)
			}
			o.take(x.Advance(50 * time.Millisecond))
			clear(o.reasons)
			play(60 * time.Millisecond)
			o.empty()
			if len(o.reasons) > 0 {
				t.Errorf("%s: started again, frames were dropped: %v", name, o.reasons)
			}
		}
	}
}

// TestOddTenants: tenants come and go under a flood of those that stay and of those that come: a tenant that sends half of its fair part
// loses no more than one frame in twenty, whoever is there, and a tenant that is gone leaves nothing.
func TestOddTenants(t *testing.T) {
	for _, workers := range []int{1, 2} {
		for _, parallel := range []string{"on", "off"}[:3-workers] {
			o := newOdd(t)
			tasks := ""
			for i := range 2 {
				tasks += fmt.Sprintf("  %c: {kind: plain, args: {letter: %c, does: look}, throughput: 1Gbit, latency: 500ns, credits: 32}\n", 'a'+i, 'a'+i)
			}
			text := func(tenants ...byte) string { return oddTenants("{count: 2, area: 2}", tasks, "a -> b", tenants) }
			args := graph.Args{"deployment": text(1, 2), "parallel": parallel, "packets": "1024", "burst": "8k", "idle": "0"}
			if workers == 1 {
				o.x = single{graphtest.NewOuter(t, plains(o.seen), args)}
			} else {
				o.x = newCrew(t, plains(o.seen), workers, args)
			}
			o.take(o.x.Advance(20 * time.Millisecond))
			random := rand.New(rand.NewPCG(7, uint64(workers)))
			polite, now := 0, clock.Duration(0)
			// A frame of 52 bytes takes 416 ns of a task: 2,400 frames a ms and instance. The polite one sends 1 in 10 us.
			for round := range 6 {
				there := []byte{1, 2}
				for u := range byte(round % 4) {
					there = append(there, 3+(u+byte(round))%5)
				}
				args["deployment"] = text(there...)
				if err := o.x.Set(args); err != nil {
					t.Fatal(err)
				}
				for range 400 {
					var frames [][]byte
					for _, u := range there[1:] {
						for range 1 + random.IntN(30) {
							frames = append(frames, o.frame(u, byte(random.IntN(40)), 0, 0))
						}
					}
					at := random.IntN(len(frames) + 1)
					frames = slices.Insert(frames, at, o.frame(1, byte(random.IntN(4)), 0, 0))
					polite++
					o.take(o.x.Push("p0", frames...))
					o.take(o.x.Advance(10 * time.Microsecond))
					now += 10 * time.Microsecond
				}
				o.books()
			}
			o.empty()
			name := fmt.Sprintf("workers=%d parallel=%s", workers, parallel)
			t.Logf("%s: %d of %d in %v; %v; others %v", name, o.came[1], polite, now, o.reasons, o.came)
			if float64(o.came[1]) < .95*float64(polite) {
				t.Errorf("%s: of %d frames of who sends little, %d came out", name, polite, o.came[1])
			}
		}
	}
}

// TestSyncWithoutCredits: a frame that waits for its other branches has left its tasks: the next one has its credits.
func TestSyncWithoutCredits(t *testing.T) {
	o := newOdd(t)
	x := graphtest.NewOuter(t, plains(o.seen), graph.Args{"parallel": "on", "sync": "100us", "deployment": oddTenants("{count: 1, area: 2}",
		"  a: {kind: plain, args: {letter: a, does: look}, latency: 1us, credits: 1}\n  b: {kind: plain, args: {letter: b, does: look}, latency: 1us, credits: 1}\n",
		"a -> b", []byte{1})})
	o.x = single{x}
	o.take(x.Advance(20 * time.Millisecond))
	o.take(x.Push("p0", o.frame(1, 1, 0, 0), o.frame(1, 2, 0, 0), o.frame(1, 3, 0, 0)))
	o.take(x.Advance(110 * time.Microsecond))
	if o.came[1] != 3 {
		t.Errorf("%d of 3 frames have come out when the last was in the synchronisation buffer for as long as each is", o.came[1])
	}
	o.empty()
}
