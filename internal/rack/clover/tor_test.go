package clover

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/quillon/quillon/internal/rack/host"
	"github.com/quillon/quillon/internal/rack/ycsb"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
	tor "github.com/quillon/quillon/tor/clover"
	"github.com/quillon/quillon/tor/swordbox"
)

// middlebox is this repository's steering app, on a graph of one app.
type middlebox struct {
	t    *testing.T
	mode string
	// shared: behind the steering, operations go over shared connections, and appends become WRITEs.
	shared bool
	// careful: no CAS is led to an entry that is not linked.
	careful bool
	a, b    port.Port
	inst    *graph.Instance
}

// steered is how many requests of clients were led to other entries since the start.
func (m *middlebox) steered() (n uint64) {
	for _, c := range m.inst.Counters() {
		if c.Node == "steer" && (c.Name == "steered-read" || c.Name == "steered-cas") {
			n += c.Value
		}
	}
	return n
}

func (m *middlebox) pass(clock.Time, bool, *packet.Buf, func(*packet.Buf)) {}

func (m *middlebox) worker(a, b port.Port) host.Worker {
	m.a, m.b = a, b
	m.start()
	return m
}

// start starts a new middlebox that knows nothing. The frames in the old one are lost.
func (m *middlebox) start() {
	spec := &graph.Spec{
		Ports: map[string]graph.PortSpec{"a": {Kind: "mem"}, "b": {Kind: "mem"}},
		Apps:  map[string]graph.AppSpec{"steer": {Kind: "clover-steer", Args: graph.Args{"mode": m.mode, "settle": "0s", "pair": "50us"}}},
		Links: []string{"a.out -> steer.a", "steer.b -> b.in", "b.out -> steer.b", "steer.a -> a.in"},
	}
	if m.careful {
		spec.Apps["steer"].Args["ahead"] = "0"
	}
	if m.shared {
		spec.Apps["box"] = graph.AppSpec{Kind: "swordbox", Args: graph.Args{"pair": "50us"}}
		spec.Links = []string{"a.out -> steer.a", "steer.b -> box.a", "box.b -> b.in", "b.out -> box.b", "box.a -> steer.b", "steer.a -> a.in"}
	}
	inst, err := graph.New(graph.Config{
		Spec:  spec,
		Kinds: []graph.Kind{*tor.Kind(), *swordbox.Kind()},
		Ports: map[string][]port.Port{"a": {m.a}, "b": {m.b}},
	})
	if err != nil {
		m.t.Fatal(err)
	}
	m.inst = inst
}

func (m *middlebox) Breath(now clock.Time) (int, error) { return m.inst.Step(now) }
func (m *middlebox) Deadline() clock.Time               { return m.inst.NextTick() }

// The store under this repository's middlebox: nothing is lost with any faults on both sides, and with
// steering more operations succeed at once.
func TestUnderOurMiddlebox(t *testing.T) {
	for _, noise := range []float64{0, 0.01} {
		for _, recycle := range []bool{false, true} {
			first := map[string]float64{}
			for _, mode := range []string{"off", "write", "read-write"} {
				t.Run(fmt.Sprintf("%s-noise=%v-recycle=%v", mode, noise, recycle), func(t *testing.T) {
					wire := func(seed uint64) box {
						if noise == 0 {
							return nil
						}
						return &noisy{rng: rand.New(rand.NewPCG(seed, 1)), loss: noise, dup: noise, swap: noise}
					}
					cfg := hot(ycsb.A)
					if recycle {
						cfg.Entries, cfg.Metadata.GCBelow = 700, 1
					}
					r := newRig(t, cfg, 3, 1, series{wire(1), &middlebox{t: t, mode: mode}, wire(2)})
					m := r.run(400, time.Hour)
					v := r.sound(int(m.Writes))
					first[mode] = float64(m.FirstTry) / float64(m.Ops)
					t.Logf("%.2f at once, %.2f round trips, %v %+v", first[mode], float64(m.RoundTrips)/float64(m.Ops), m.Elapsed, v)
				})
			}
			if noise == 0 && !(first["write"] > first["off"] && first["read-write"] > first["write"]) {
				t.Errorf("recycling %v: shares that succeed at once: %v", recycle, first)
			}
		}
	}
}

// The same with shared connections behind the steering.
func TestUnderBoth(t *testing.T) {
	for _, noise := range []float64{0, 0.01} {
		t.Run(fmt.Sprint("noise=", noise), func(t *testing.T) {
			wire := func(seed uint64) box {
				if noise == 0 {
					return nil
				}
				return &noisy{rng: rand.New(rand.NewPCG(seed, 1)), loss: noise, dup: noise, swap: noise}
			}
			b := &middlebox{t: t, mode: "read-write", shared: true}
			r := newRig(t, hot(ycsb.A), 3, 1, series{wire(1), b, wire(2)})
			m := r.run(400, time.Hour)
			v := r.sound(int(m.Writes))
			counts := map[string]uint64{}
			for _, c := range b.inst.Counters() {
				if c.Node == "box" {
					counts[c.Name] += c.Value
				}
			}
			t.Logf("%.2f at once, %+v; moved %d, replaced %d of %d atomics", float64(m.FirstTry)/float64(m.Ops), v, counts["moved"], counts["replaced"], counts["atomics"])
			if counts["moved"] == 0 {
				t.Error("nothing moved onto a shared connection")
			}
		})
	}
}
