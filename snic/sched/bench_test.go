package sched

import "testing"

func benchScheduler(tb testing.TB, instances int, r Route) *Scheduler {
	s, err := New(Config{Packets: 4096, Store: 8 << 20, Regions: 8, Chains: 4, Routes: 4, Tenants: 16, Branches: 4, Seed: 7})
	if err != nil {
		tb.Fatal(err)
	}
	for i := range instances {
		if err := s.Place(i, 0, []int{128, 128, 128, 128}); err != nil {
			tb.Fatal(err)
		}
	}
	for i := range 3 {
		if err := s.Place(instances+i, 1+i, []int{128, 128}); err != nil {
			tb.Fatal(err)
		}
	}
	if err := s.SetRoute(0, r); err != nil {
		tb.Fatal(err)
	}
	return s
}

var (
	oneVisit  = Route{Stages: [][][]Visit{{{{0, 0xf}}}}}
	twoVisits = Route{Stages: [][][]Visit{{{{0, 0xf}, {1, 3}}}}}
	parallel  = Route{Stages: [][][]Visit{{{{0, 3}}, {{1, 1}}}, {{{1, 2}}}}}
)

const benchBatch = 64

// full takes a batch of packets through the full road.
func full(tb testing.TB, s *Scheduler, flow uint64, flows uint64) {
	for i := range uint64(benchBatch) {
		if _, why := s.Arrive(0, 512, (flow+i)%flows*0x9e3779b97f4a7c15, int(i&15)); why != None {
			tb.Fatal(why)
		}
	}
	for {
		r, ok := s.Next()
		if !ok {
			break
		}
		s.Return(r.Lane, false)
	}
	for range benchBatch {
		if _, ok := s.Leave(); !ok {
			tb.Fatal("a packet stays")
		}
	}
}

func bulk(tb testing.TB, s *Scheduler) {
	r, mask, n := s.Take(0, 1, benchBatch, benchBatch*512)
	if n != benchBatch {
		tb.Fatal(n)
	}
	s.Give(r, mask, n, 0)
}

// BenchmarkFull is Arrive to Leave, for one packet of batches of 64.
func BenchmarkFull(b *testing.B) {
	for _, c := range []struct {
		name      string
		instances int
		route     Route
		flows     uint64
	}{
		{"one-visit", 1, oneVisit, 1},
		{"one-visit-10000-flows", 1, oneVisit, 10000},
		{"4-instances-10000-flows", 4, oneVisit, 10000},
		{"any-order", 4, Route{Stages: oneVisit.Stages, Spread: RoundRobin, AnyOrder: true}, 10000},
		{"two-visits-10000-flows", 1, twoVisits, 10000},
		{"parallel-10000-flows", 1, parallel, 10000},
	} {
		b.Run(c.name, func(b *testing.B) {
			s := benchScheduler(b, c.instances, c.route)
			b.ReportAllocs()
			for i := 0; i < b.N; i += benchBatch {
				full(b, s, uint64(i), c.flows)
			}
		})
	}
}

// BenchmarkBulk is Take and Give, for one packet of batches of so many.
func BenchmarkBulk(b *testing.B) {
	for _, size := range []int{1, 8, 64} {
		b.Run(map[int]string{1: "1", 8: "8", 64: "64"}[size], func(b *testing.B) {
			s := benchScheduler(b, 1, oneVisit)
			b.ReportAllocs()
			for i := 0; i < b.N; i += size {
				r, mask, n := s.Take(0, uint64(i), size, size*512)
				s.Give(r, mask, n, 0)
			}
			if err := s.Check(); err != nil {
				b.Fatal(err)
			}
		})
	}
}

// TestNoAllocations goes every road once warm.
func TestNoAllocations(t *testing.T) {
	for name, r := range map[string]Route{"one visit": oneVisit, "two visits": twoVisits, "parallel": parallel} {
		s := benchScheduler(t, 2, r)
		flow := uint64(0)
		if n := testing.AllocsPerRun(100, func() {
			flow += benchBatch
			full(t, s, flow, 1000)
			if r.Stages[0][0][0].Mask == 0xf && len(r.Stages[0][0]) == 1 {
				bulk(t, s)
			}
			_, _ = s.Arrive(9, 0, 0, 0)
			_, _, _ = s.Books(), s.Task(0, 0), s.Instance(0)
		}); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
		// Credits run out: queues and partial reservations.
		for i := range 3 {
			if err := s.SetCredits(0, i, 1+i); err != nil {
				t.Fatal(err)
			}
		}
		if n := testing.AllocsPerRun(100, func() { full(t, s, flow, 10) }); n != 0 {
			t.Errorf("%s, few credits: %v allocations", name, n)
		}
		credits := []int{128, 128, 128, 128}
		out := func() {
			for {
				if r, ok := s.Next(); ok {
					s.Return(r.Lane, false)
				} else if _, ok := s.Leave(); !ok {
					break
				}
			}
		}
		// Nor do Pause, Remove and Place.
		if n := testing.AllocsPerRun(100, func() {
			for i := range 100 {
				s.Arrive(0, 64, uint64(i%7), 0)
			}
			if s.Pause(0) != nil || s.Pause(1) != nil {
				t.Fatal("pause failed")
			}
			out()
			if s.Remove(0) != nil || s.Place(0, 0, credits) != nil || s.Remove(1) != nil || s.Place(1, 0, credits) != nil {
				t.Fatal("remove or place failed")
			}
			out()
		}); n != 0 {
			t.Errorf("%s, stops: %v allocations", name, n)
		}
		if err := s.Check(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// BenchmarkRedeploy changes 10,000 routes, each with a packet that waits. What a
// change costs is what its own packets do.
func BenchmarkRedeploy(b *testing.B) {
	const routes, chains = 10000, 4096
	s, err := New(Config{Packets: 1 << 14, Store: 1 << 20, Regions: 64, Chains: chains, Routes: routes, Tenants: routes, Branches: 1})
	if err != nil {
		b.Fatal(err)
	}
	set := func(n int) {
		for i := range routes {
			if err := s.SetRoute(i, Route{Stages: [][][]Visit{{{{Chain: (i + n) % chains, Mask: 1}}}}}); err != nil {
				b.Fatal(err)
			}
		}
	}
	set(0)
	for i := range routes {
		if _, why := s.Arrive(i, 1, uint64(i), i); why != None {
			b.Fatal(why)
		}
	}
	n := 0
	for b.Loop() {
		n++
		set(n)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n)/routes, "ns/route")
	if err := s.Check(); err != nil {
		b.Fatal(err)
	}
}
