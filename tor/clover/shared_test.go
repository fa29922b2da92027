package clover

import (
	"context"
	"slices"
	"sync"
	"testing"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
)

// queue is a port of one worker: it yields nothing, and keeps what is sent to it.
type queue struct {
	name string
	pool *packet.Pool
	sent [][]byte
}

func (q *queue) Name() string                                     { return q.name }
func (q *queue) Pool() *packet.Pool                               { return q.pool }
func (q *queue) Rx(*packet.Batch) (int, error)                    { return 0, nil }
func (q *queue) Wait(ctx context.Context, _ clock.Duration) error { return ctx.Err() }
func (q *queue) Stats() port.Stats                                { return port.Stats{} }
func (q *queue) Close() error                                     { return nil }
func (q *queue) Tx(b *packet.Batch) (int, error) {
	for _, x := range b.Bufs() {
		q.sent = append(q.sent, slices.Clone(x.Bytes()))
	}
	n := b.Len()
	b.PutAll()
	return n, nil
}

// gang is an app with several workers, which all take frames at the same time.
type gang struct {
	t     *testing.T
	inst  *graph.Instance
	ports [2][]*queue // a and b, by worker
	now   clock.Time
}

func newGang(t *testing.T, workers int, args graph.Args) *gang {
	x := &gang{t: t, now: 1_000_000_000}
	cfg := graph.Config{Kinds: []graph.Kind{*Kind()}, Ports: map[string][]port.Port{}, Seed: 1,
		Memory: func(_ string, size int) ([]byte, error) { return make([]byte, size), nil }, Spec: &graph.Spec{
			Ports: map[string]graph.PortSpec{"pa": {Kind: "test"}, "pb": {Kind: "test"}},
			Apps:  map[string]graph.AppSpec{"nf": {Kind: Kind().Name, Args: args}},
			Links: []string{"pa.out -> nf.a", "nf.b -> pb.in", "pb.out -> nf.b", "nf.a -> pa.in"},
		}}
	for range workers {
		pool, err := packet.NewPool(2048, 2048, nil)
		if err != nil {
			t.Fatal(err)
		}
		for i, name := range []string{"pa", "pb"} {
			q := &queue{name: name, pool: pool}
			x.ports[i] = append(x.ports[i], q)
			cfg.Ports[name] = append(cfg.Ports[name], q)
		}
	}
	var err error
	if x.inst, err = graph.New(cfg); err != nil {
		t.Fatal(err)
	}
	return x
}

// push gives a worker frames that came by a port.
func (x *gang) push(worker, port int, frames [][]byte) {
	var b packet.Batch
	q := x.ports[port][worker]
	for _, f := range frames {
		y := q.pool.Get()
		if y == nil || !y.SetBytes(f) || !b.Add(y) {
			x.t.Error("no room for a frame")
			return
		}
	}
	if err := x.inst.PushTo(worker, q.name, x.now, &b); err != nil {
		x.t.Error(err)
	}
}

// took is what all workers sent by a port, and forgets it; each worker's in its
// order.
func (x *gang) took(port int) (frames [][]byte) {
	for _, q := range x.ports[port] {
		frames = append(frames, q.sent...)
		q.sent = nil
	}
	return frames
}

// together lets everything happen that can: all clients' requests and the answers to
// what reached the server go through the workers at once. of says which worker
// takes what comes from, or goes to, a client.
func (m *model) together(x *gang, of func(client, port int) int, stop bool) {
	x.now += 200_000 // ns; the app repeats a CAS before its client does
	in := make([][2][][]byte, len(x.ports[0]))
	give := func(n, port int, b []byte) {
		if p := &in[of(n, port)][port]; m.rng.Float64() >= m.loss && len(*p) < packet.MaxBatch {
			*p = append(*p, b)
		}
	}
	for _, i := range m.rng.Perm(len(m.clients)) {
		c := m.clients[i]
		if c.state == idle && !stop {
			m.begin(c, m.rng.IntN(2) == 0)
		}
		if c.wait++; c.request != nil && len(c.toBox) == 0 && c.wait > 80 { // time-out: go back
			c.toBox, c.wait = append(c.toBox, c.request), 0
		}
		for _, b := range c.toBox {
			give(c.n, 0, b)
		}
		c.toBox = nil
	}
	m.rng.Shuffle(len(m.toSrv), func(i, j int) { m.toSrv[i], m.toSrv[j] = m.toSrv[j], m.toSrv[i] })
	for _, b := range m.toSrv {
		if m.rng.Float64() < m.loss {
			continue
		}
		if r := m.serve(b); r != nil {
			var f hdr.Frame
			hdr.Parse(r, &f)
			give(int(f.BTHOf(r).DestQP()-0x500), 1, r)
		}
	}
	m.toSrv = nil
	var wg sync.WaitGroup
	for w := range in {
		first := m.rng.IntN(2)
		wg.Go(func() {
			for i := range 2 {
				port := (first + i) % 2
				x.push(w, port, in[w][port])
			}
		})
	}
	wg.Wait()
	m.toSrv = x.took(1)
	for _, b := range x.took(0) {
		var f hdr.Frame
		hdr.Parse(b, &f)
		m.answer(m.clients[f.BTHOf(b).DestQP()-0x500], b)
	}
	if m.rng.IntN(8) == 0 {
		m.recycle(uint64(m.rng.IntN(len(m.first))))
	}
}

// TestOneServerOfWorkers: whichever worker gets a frame, and whatever the others do
// at that moment, no acknowledged write is lost, no chain mixes keys, and all
// clients come to their end.
func TestOneServerOfWorkers(t *testing.T) {
	rounds := 4000
	if testing.Short() {
		rounds = 1500
	}
	for name, of := range map[string]func(client, port int) int{
		"by client":    func(client, _ int) int { return client % 2 },
		"by direction": func(_, port int) int { return port },
		"by both":      func(client, port int) int { return (client + port) % 3 },
	} {
		t.Run(name, func(t *testing.T) {
			for seed, loss := range []float64{0, 0.02, 0.1} {
				workers := 2
				if name == "by both" {
					workers = 3
				}
				x := newGang(t, workers, graph.Args{"settle": "0", "keys": "16", "repair": "1ms", "hold": "64", "recycled": []string{"adjust", "pass"}[seed%2]})
				m := newModel(t, uint64(seed), 24, 6, loss, false, nil)
				for range rounds {
					m.together(x, of, false)
				}
				for n := 0; slices.ContainsFunc(m.clients, func(c *client) bool { return c.state != idle }); n++ {
					if n > 100*rounds {
						t.Fatal("clients do not come to an end")
					}
					m.together(x, of, true)
				}
				m.check()
				count := map[string]uint64{}
				for _, c := range x.inst.Counters() {
					count[c.Name] += c.Value
				}
				if err := x.inst.Conservation(); err != nil {
					t.Error(err)
				}
				if err := x.inst.Close(); err != nil {
					t.Error(err)
				}
				t.Logf("loss %v: %d steered, %d READs, %d waited, %d repaired", loss, count["steered-cas"], count["steered-read"], count["waited"], count["repaired"])
				if count["steered-cas"] == 0 || count["steered-read"] == 0 || loss > 0 && (count["waited"] == 0 || count["repaired"] == 0) {
					t.Error("nothing happened")
				}
				if got := count["conns"]; got != uint64(len(m.clients)) {
					t.Errorf("%d connections are counted, there are %d", got, len(m.clients))
				}
			}
		})
	}
}
