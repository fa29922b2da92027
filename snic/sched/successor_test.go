package sched

import "testing"

// TestInherit: a packet in the middle of its way, whose next task is in a chain that has left all regions, goes to the chain that has the
// task now, or waits until that is there; where the task is nowhere it is dropped. Later packets of its flow do not pass it.
func TestInherit(t *testing.T) {
	for _, c := range []struct {
		name         string
		there, comes bool
		want         string
	}{{"it runs", true, false, "0 1"}, {"it comes", false, true, "0 1"}, {"it is nowhere", false, false, "0(gone) 1"}} {
		known := c.there || c.comes
		s, err := New(Config{Packets: 16, Store: 1 << 16, Regions: 4, Chains: 3, Routes: 1, Tenants: 1, Branches: 1,
			Instead: func(_, _ int, mask uint16) (int, uint16, uint16) {
				if !known {
					return 0, 0, 0
				}
				return 1, mask << 1, mask
			}})
		ok(t, err)
		ok(t, s.Place(0, 0, []int{2, 2}))
		ok(t, s.SetRoute(0, line(Visit{0, 2}, Visit{0, 1}))) // as a way back
		arrive(t, s, 0, 7)
		want(t, c.name+": the first task", runs(t, s), "0.0@0:2")
		ok(t, s.SetRoute(0, line(Visit{1, 4}, Visit{1, 2})))
		arrive(t, s, 0, 7)
		ok(t, s.Pause(0))
		s.Return(lane(s, 0, 0), false)
		want(t, c.name+": it waits while the chain is there", runs(t, s), "")
		if c.there {
			ok(t, s.Place(1, 1, []int{2, 2, 2}))
		}
		ok(t, s.Remove(0))
		ok(t, s.Check())
		if !c.there {
			want(t, c.name+": nothing is there", runs(t, s), "")
			ok(t, s.Place(1, 1, []int{2, 2, 2}))
		}
		if known {
			want(t, c.name+": the second task", runs(t, s), "0.0@1:2")
			s.Return(lane(s, 0, 0), false)
		}
		want(t, c.name+": who is behind it", runs(t, s), "1.0@1:4")
		s.Return(lane(s, 1, 0), false)
		want(t, c.name, runs(t, s), "1.0@1:2")
		s.Return(lane(s, 1, 0), false)
		want(t, c.name, leaves(t, s), c.want)
		if len(s.road.plans.successors) > 0 {
			t.Errorf("%s: %d successors are left", c.name, len(s.road.plans.successors))
		}
	}
}

// TestInheritAgain: what waits for a chain that has not come follows the route when it changes again.
func TestInheritAgain(t *testing.T) {
	now := 1
	s, err := New(Config{Packets: 16, Store: 1 << 16, Regions: 4, Chains: 3, Routes: 1, Tenants: 1, Branches: 1,
		Instead: func(_, _ int, mask uint16) (int, uint16, uint16) { return now, mask, mask }})
	ok(t, err)
	ok(t, s.Place(0, 0, []int{2, 2}))
	ok(t, s.SetRoute(0, line(Visit{0, 2}, Visit{0, 1})))
	arrive(t, s, 0, 7)
	want(t, "the first task", runs(t, s), "0.0@0:2")
	ok(t, s.SetRoute(0, line(Visit{1, 2}, Visit{1, 1})))
	ok(t, s.Pause(0))
	s.Return(lane(s, 0, 0), false)
	ok(t, s.Remove(0))
	ok(t, s.Place(2, 2, []int{2, 2}))
	want(t, "its chain is to come", runs(t, s), "")
	now = 2
	ok(t, s.SetRoute(0, line(Visit{2, 2}, Visit{2, 1})))
	want(t, "it comes in another one", runs(t, s), "0.0@2:1")
	s.Return(lane(s, 0, 0), false)
	want(t, "and leaves", leaves(t, s), "0")
}

// TestInheritInParts: of a visit that two others take the place of, with a branch beside it and a stage behind it.
func TestInheritInParts(t *testing.T) {
	s, err := New(Config{Packets: 16, Store: 1 << 16, Regions: 6, Chains: 5, Routes: 1, Tenants: 1, Branches: 2,
		Instead: func(_, _ int, mask uint16) (int, uint16, uint16) {
			if mask&2 != 0 {
				return 1, 1, 2
			}
			return 2, 1, 4
		}})
	ok(t, err)
	for r, credits := range [][]int{{1, 1, 1}, {1}, {1}, {1}, {1}} {
		ok(t, s.Place(r, r, credits))
	}
	ok(t, s.SetRoute(0, Route{Stages: [][][]Visit{{{{0, 7}}, {{3, 1}, {4, 1}}}, {{{3, 1}}}}}))
	a, b := arrive(t, s, 0, 7), arrive(t, s, 0, 8) // the second one has no credit but the first task's, and comes back
	want(t, "the first packet", runs(t, s), "0.0@0:7 0.1@3:1")
	s.Release(lane(s, a, 0), 0)
	want(t, "the second packet", runs(t, s), "1.0@0:1")
	ok(t, s.SetRoute(0, Route{}))
	ok(t, s.Pause(0))
	s.Return(lane(s, b, 0), false)
	s.Return(lane(s, a, 0), false)
	ok(t, s.Remove(0))
	ok(t, s.Check())
	want(t, "what is left of the visit", runs(t, s), "1.0@1:1")
	s.Return(lane(s, b, 0), false)
	want(t, "in two parts", runs(t, s), "1.0@2:1")
	s.Return(lane(s, b, 0), false)
	s.Return(lane(s, a, 1), false)
	want(t, "the branches beside them", runs(t, s), "1.1@3:1 0.1@4:1")
	s.Return(lane(s, a, 1), false)
	s.Return(lane(s, b, 1), false)
	want(t, "are as they were", runs(t, s), "0.0@3:1 1.1@4:1")
	s.Return(lane(s, a, 0), false)
	s.Return(lane(s, b, 1), false)
	want(t, "and so is the stage behind them", runs(t, s), "1.0@3:1")
	s.Return(lane(s, b, 0), false)
	want(t, "both leave", leaves(t, s), "0 1")
	ok(t, s.Check())
}

// TestInheritBeside: two packets of a flow, of which the second waits in one branch as it is on another plan than the first. As soon as
// an inheritance in the other branch gives both the same plan, it waits no longer.
func TestInheritBeside(t *testing.T) {
	for _, first := range []bool{true, false} { // whether the first packet inherits first
		s, err := New(Config{Packets: 16, Store: 1 << 16, Regions: 5, Chains: 5, Routes: 1, Tenants: 1, Branches: 2,
			Instead: func(_, _ int, mask uint16) (int, uint16, uint16) { return 4, mask, mask }})
		ok(t, err)
		for r := range 4 {
			ok(t, s.Place(r, r, []int{2}))
		}
		ok(t, s.SetRoute(0, Route{Stages: [][][]Visit{{{{0, 1}, {1, 1}}, {{2, 1}, {3, 1}}}}}))
		a, b := arrive(t, s, 0, 7), arrive(t, s, 0, 7)
		want(t, "both begin", runs(t, s), "0.0@0:1 0.1@2:1 1.0@0:1 1.1@2:1")
		ok(t, s.SetRoute(0, Route{}))
		ok(t, s.Pause(1))
		ok(t, s.Remove(1))
		order := []int{a, b}
		if !first {
			order = []int{b, a}
		}
		s.Return(lane(s, order[0], 0), false) // its next chain has no instance, and neither has the other one yet
		s.Return(lane(s, b, 1), false)
		s.Return(lane(s, a, 1), false)
		ok(t, s.Check())
		want(t, "the branch beside", runs(t, s), "0.1@3:1")
		s.Return(lane(s, a, 1), false)
		ok(t, s.Check())
		want(t, "the second packet waits: it is on another plan", runs(t, s), "")
		s.Return(lane(s, order[1], 0), false)
		ok(t, s.Check())
		want(t, "it is on the same one", runs(t, s), "1.1@3:1")
	}
}
