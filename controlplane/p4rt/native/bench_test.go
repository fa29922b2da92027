package native_test

import (
	"context"
	"slices"
	"testing"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"

	"github.com/quillon/quillon/controlplane/p4rt/native"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/table"
)

// endless always has frames, and takes all.
type endless struct{ pool *packet.Pool }

func (e *endless) Name() string                                     { return "endless" }
func (e *endless) Pool() *packet.Pool                               { return e.pool }
func (e *endless) Wait(ctx context.Context, _ clock.Duration) error { return ctx.Err() }
func (e *endless) Stats() port.Stats                                { return port.Stats{} }
func (e *endless) Close() error                                     { return nil }
func (e *endless) Tx(b *packet.Batch) (int, error) {
	n := b.Len()
	b.PutAll()
	return n, nil
}
func (e *endless) Rx(b *packet.Batch) (int, error) {
	n := 0
	for x := e.pool.Get(); x != nil && !b.Full(); x = e.pool.Get() {
		x.SetBytes(make([]byte, 64))
		b.Add(x)
		n++
	}
	return n, nil
}

// long has a table of so many rows, and notes how long the worker was kept.
type long struct {
	rows int
	clk  clock.Clock
	kept []int64 // ns, by each look at rows
}

func (l *long) Push(c *graph.Ctx, _ int, b *packet.Batch) {
	for _, x := range b.Bufs() {
		c.Emit(0, x)
	}
}

func (l *long) Hooks() graph.Hooks { return graph.Hooks{Scan: l.scan} }

func (l *long) scan(_ *graph.Ctx, _, from, n int, yield func(*table.Entry)) int {
	begin := l.clk.Now()
	defer func() { l.kept = append(l.kept, int64(l.clk.Now().Sub(begin))) }()
	end := min(from+n, l.rows)
	var key [2]table.Cond
	var params [2]table.Value
	e := table.Entry{Key: key[:], Call: table.Call{Params: params[:]}}
	for i := from; i < end; i++ {
		key[0].V, key[1].V = table.Uint(10<<24), table.Uint(uint64(i))
		params[0], params[1] = table.Uint(uint64(i)), table.Uint(uint64(i)<<20)
		yield(&e)
	}
	if end == l.rows {
		return -1
	}
	return end
}

// BenchmarkRead reads a table of 65,536 rows of an app that carries all that one
// worker can: how long a row takes, and how long the worker is kept from its
// frames by one slice.
func BenchmarkRead(b *testing.B) {
	app := &long{rows: 65536, clk: clock.NewWall()}
	kind := graph.Kind{Name: "long", In: []string{"in"}, Out: []string{"out"},
		Tables: []table.Decl{{Name: "rows", Keys: []table.Field{{Name: "ip", Bits: 32}, {Name: "key", Bits: 64}}, Actions: []table.Action{{Name: "row",
			Params: []table.Field{{Name: "id", Bits: 32}, {Name: "value", Bits: 64}}}}}},
		New: func(graph.Env, graph.Args) (graph.App, error) { return app, nil }}
	pool, err := packet.NewPool(256, 512, nil)
	if err != nil {
		b.Fatal(err)
	}
	inst, err := graph.New(graph.Config{Kinds: []graph.Kind{kind}, Clock: app.clk,
		Spec: &graph.Spec{Ports: map[string]graph.PortSpec{"a": {Kind: "test"}, "b": {Kind: "test"}}, Apps: map[string]graph.AppSpec{"l": {Kind: "long"}},
			Links: []string{"a.out -> l.in", "l.out -> b.in"}},
		Ports: map[string][]port.Port{"a": {&endless{pool}}, "b": {&endless{pool}}}})
	if err != nil {
		b.Fatal(err)
	}
	dev, err := native.New(inst)
	if err != nil {
		b.Fatal(err)
	}
	p := dev.Pipeline()
	ctx, cancel := context.WithCancel(b.Context())
	ran := make(chan error)
	go func() { ran <- inst.Run(ctx) }()
	rows := 0
	q := &p4v1.Entity{Entity: &p4v1.Entity_TableEntry{TableEntry: &p4v1.TableEntry{TableId: p.Info().Tables[0].ID}}}
	for b.Loop() {
		if err := p.Read(q, func(*p4v1.Entity) error { rows++; return nil }); err != nil {
			b.Fatal(err)
		}
	}
	cancel()
	if err := <-ran; err != nil {
		b.Fatal(err)
	}
	slices.Sort(app.kept)
	for name, q := range map[string]float64{"p50-us/slice": 0.5, "p99-us/slice": 0.99} {
		b.ReportMetric(float64(app.kept[int(q*float64(len(app.kept)-1))])/1000, name)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(rows), "ns/row")
	if err := inst.Close(); err != nil {
		b.Fatal(err)
	}
}
