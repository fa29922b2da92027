package sim

import (
	"context"
	"math"
	"reflect"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/dummy"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/snic"
	"github.com/quillon/quillon/snic/attach"
)

// A load that fills a board is slowed by what others send through its task; in a pool it is not, since the second board does
// it (all of it, or a part of its flows). Equal runs give equal results.
func TestPoolHelps(t *testing.T) {
	l := square(350, 1, 1, 2, 2)
	c := ScaledConfig{Regions: 2, Capacity: gig, Victims: 100, Background: gig / 2, Lead: 50 * time.Millisecond}
	var away [3]float64
	for _, c.Topology = range []Topology{Single, Intermediate, SwitchAttached} {
		o := scaled(t, l, c)
		away[c.Topology] = o.Away
		if c.Topology == Single {
			nearly(t, "alone", o.Slowdown, 2/1.5-1, 0.005)
			nearly(t, "its part of the regions", o.Regions, 2, 0.02)
			continue
		}
		// Once, for a monitor period and two reconfigurations.
		if o.Slowdown < 0 || o.Slowdown > 0.03/0.3 || o.Regions < 1.9 || o.Regions > 4 || o.Most < 3 {
			t.Errorf("topology %d: %+v", c.Topology, o)
		}
		if again := scaled(t, l, c); again != o {
			t.Errorf("topology %d: %+v, then %+v", c.Topology, o, again)
		}
	}
	if away[Single] != 0 || away[Intermediate] < 0.8 || away[SwitchAttached] < 0.1 || away[SwitchAttached] > 0.9 {
		t.Errorf("of the load %v is done by the second board", away)
	}
}

// Tasks in a row have regions of their own.
func TestTasksInARow(t *testing.T) {
	o := scaled(t, square(400, 200, 200, 1.5, 0.5), ScaledConfig{Regions: 4, Tasks: 2, Victims: 100})
	nearly(t, "regions", o.Regions, 2*1.5, 0.15)
	if o.Most != 4 || o.Slowdown < 0 || o.Slowdown > 0.03 {
		t.Errorf("%+v", o)
	}
}

// What a packet takes is what its cables and boards take: nothing else is on its way.
func TestUnloaded(t *testing.T) {
	n := HTG9200()
	const end, board, pass, tor = 552, 1300, 1236, 900
	wire := func(bytes int) float64 { return float64(bytes+wireOverhead)*0.08 + 15 }
	in := wire(1024 + 22) // on cables to boards of a pool
	for topology, want := range map[Topology]float64{
		Single:         end + board + 2*wire(1024),
		Intermediate:   end + pass + board + pass + 2*wire(1024) + 2*in,
		Ring:           end + pass + board + pass + 2*wire(1024) + 4*in + 2*pass,
		SwitchAttached: end + tor + board + wire(1024) + 2*in,
	} {
		w, err := n.Unloaded(context.Background(), topology, 1024)
		if err != nil || math.Abs(float64(w.Took)-want) > 2 {
			t.Errorf("topology %d: %v (%v), want %.0f ns", topology, w.Took, err, want)
		}
		back := 0.0
		switch topology {
		case Intermediate:
			back = pass + in
		case Ring:
			back = 2 * (pass + in)
		}
		if math.Abs(float64(w.Took-w.Out)-back) > 4 {
			t.Errorf("topology %d: out %v before", topology, w.Took-w.Out)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := n.Unloaded(ctx, Single, 1024); err == nil {
		t.Error("runs on without its context")
	}
}

// TestSamePool: members of a pool are of the types that run live.
func TestSamePool(t *testing.T) {
	w := &wayed{n: HTG9200(), frame: frameOf(1, 64)}
	w.id = w.k.add(w)
	const d = "tasks: {nt: {kind: dummy}}\ntenants: {u: {}}\ndags: [{uid: 1, tenant: u, run: nt}]\n"
	c := SNICConfig{SNIC: w.n}
	err := w.build(&rackConfig{SNIC: w.n, topology: SwitchAttached, regions: [2]int{1, 1}, deployment: d, args: c.args(""), frames: frames{256, 256},
		around: func(int) *body { return &body{send: w.left} }})
	if err != nil {
		t.Fatal(err)
	}
	text := "regions: {count: 1, area: 1}\n" + d
	for i, k := range []graph.Kind{*snic.Kind(*dummy.Kind()), *snic.Kind(*dummy.Kind()), *attach.Kind(*dummy.Kind())} {
		live := graphtest.NewSmall(t, k, graph.Args{"deployment": text}, *dummy.Kind())
		if s, l := reflect.TypeOf(w.nodes[i].inst.App(appName, 0)), reflect.TypeOf(live.Inst.App(graphtest.App, 0)); s != l {
			t.Errorf("node %d is a %v here, and a %v live", i, s, l)
		}
		want := reflect.TypeOf(&snic.Peering{})
		if i == 2 {
			want = reflect.TypeOf(&attach.Joining{})
		}
		if got := reflect.TypeOf(w.pool[i].join); got != want {
			t.Errorf("node %d is joined by a %v here, and a %v live", i, got, want)
		}
	}
	if err := w.close(); err != nil {
		t.Error(err)
	}
}

// TestPoolOfWorkers: boards of several workers do for each other what boards of one do: a DAG for which the first board has no region runs at
// the second, for flows that come in by any worker, and every packet comes out.
func TestPoolOfWorkers(t *testing.T) {
	for workers := 1; workers <= 3; workers++ {
		w := &wayed{n: HTG9200()}
		w.id = w.k.add(w)
		c := SNICConfig{SNIC: w.n, Monitor: 5 * time.Millisecond}
		const sent = 256
		done := [2]int{}
		err := w.build(&rackConfig{
			SNIC: w.n, topology: Intermediate, regions: [2]int{1, 2}, deployment: `
tasks: {other: {kind: dummy}, nt: {kind: dummy}}
tenants: {user: {}}
dags: [{uid: 1, tenant: user, run: other}, {uid: 2, tenant: user, run: nt}]
rules: [{match: "src:10.0.0.0", dag: 1}, {match: "src:10.0.0.1", dag: 2}]
`, args: c.args(""), workers: workers, frames: frames{256 + w.n.Packets, 256}, perByte: Time(8e3 / w.n.GbitPerSecond),
			around: func(i int) *body {
				return &body{send: func(port int, _ *packet.Buf) { done[port&1]++ }, drop: func(x *packet.Buf) { t.Errorf("board %d drops %v", i, x.Meta) },
					meter: func(app graph.App, _ string) graph.App { return app }}
			},
		})
		if err == nil {
			err = w.begin(From(meeting) / 2)
		}
		if err != nil {
			t.Fatal(err)
		}
		came := map[int]int{}
		for i := range sent + 1 {
			f := frameOf(1, 128)
			f[35] = byte(i % 16) // flows
			came[w.entry.worker(f)]++
			w.entry.receive(portIn, f)
			until := w.k.now + 20*Microsecond
			if i == 0 {
				until = From(meeting) // the first one has the way made
			}
			if err := w.begin(until); err != nil {
				t.Fatal(err)
			}
		}
		for b, n := range w.boards {
			in := uint64(0)
			for _, k := range n.inst.Counters() {
				if k.Group == "frames" && k.Name == "in" && k.Node == appName+"/nt" {
					in += k.Value
				}
			}
			if want := []uint64{0, sent}[b]; in < want || b == 0 && in > 1 {
				t.Errorf("%d workers: the task of board %d had %d packets", workers, b, in)
			}
		}
		if len(came) != workers || done != [2]int{0, sent + 1} {
			t.Errorf("%d workers: packets by worker %v, by the port that they left by %v", workers, came, done)
		}
		if err := w.close(); err != nil {
			t.Error(err)
		}
	}
}
