package sched

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// small is a scheduler with so many credits for each task of each chain, of two
// tasks, chain i in region i.
func small(t *testing.T, chains, credits int) *Scheduler {
	t.Helper()
	s, err := New(Config{Packets: 64, Store: 64 << 10, Regions: 8, Chains: 8, Routes: 8, Tenants: 4, Branches: 4})
	if err != nil {
		t.Fatal(err)
	}
	for i := range chains {
		ok(t, s.Place(i, i, []int{credits, credits}))
	}
	return s
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func line(visits ...Visit) Route { return Route{Stages: [][][]Visit{{visits}}} }

func arrive(t *testing.T, s *Scheduler, route int, flow uint64) int {
	t.Helper()
	p, why := s.Arrive(route, 100, flow, 0)
	if why != None {
		t.Fatalf("refused: %v", why)
	}
	ok(t, s.Check())
	return p
}

// runs are all that Next tells, as packet.branch@region:mask.
func runs(t *testing.T, s *Scheduler) string {
	t.Helper()
	var l []string
	for {
		r, any := next(s)
		if !any {
			break
		}
		l = append(l, fmt.Sprintf("%d.%d@%d:%x", r.Packet, r.Branch, r.Region, r.Mask))
	}
	ok(t, s.Check())
	return strings.Join(l, " ")
}

// leaves are all that leave: packet, or packet and reason.
func leaves(t *testing.T, s *Scheduler) string {
	t.Helper()
	var l []string
	for {
		p, any := s.Leave()
		if !any {
			break
		}
		if w := fmt.Sprint(p.Packet); p.Dropped == None {
			l = append(l, w)
		} else {
			l = append(l, w+"("+p.Dropped.String()+")")
		}
	}
	ok(t, s.Check())
	return strings.Join(l, " ")
}

func want(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Fatalf("%s: %q, want %q", what, got, want)
	}
}

// TestFigure57 is the example of the source's figure 5.7: NT1→NT2 in region 1 and
// NT3→NT4 in region 2, shared by user1 (NT1→NT2 beside NT3, then NT4) and user2
// (NT2→NT4), until NT2→NT4 is launched in region 3.
func TestFigure57(t *testing.T) {
	s, err := New(Config{Packets: 16, Store: 1 << 16, Regions: 4, Chains: 3, Routes: 2, Tenants: 2, Branches: 2})
	ok(t, err)
	const (
		nt12, nt34, nt24 = 0, 1, 2
		both             = 3
	)
	ok(t, s.Place(1, nt12, []int{2, 2}))
	ok(t, s.Place(2, nt34, []int{2, 2}))
	ok(t, s.SetRoute(0, Route{Stages: [][][]Visit{{{{nt12, both}}, {{nt34, 1}}}, {{{nt34, 2}}}}}))
	ok(t, s.SetRoute(1, line(Visit{nt12, 2}, Visit{nt34, 2})))
	send := func(user int) int {
		p, why := s.Arrive(user, 1000, uint64(user), user)
		if why != None {
			t.Fatal(why)
		}
		return p
	}
	if p, q := send(0), send(1); p != 0 || q != 1 {
		t.Fatal(p, q)
	}
	want(t, "user1 in both regions at once, user2 skips NT1", runs(t, s), "0.0@1:3 0.1@2:1 1.0@1:2")
	s.Return(lane(s, 0, 1), false)
	want(t, "NT4 waits for NT2", runs(t, s), "")
	s.Return(lane(s, 0, 0), false)
	want(t, "user1's NT4", runs(t, s), "0.0@2:2")
	s.Return(lane(s, 1, 0), false)
	want(t, "user2's NT4", runs(t, s), "1.0@2:2")
	s.Return(lane(s, 0, 0), false)
	s.Return(lane(s, 1, 0), false)
	want(t, "both are done", leaves(t, s), "0 1")

	// What was meant for each task: NT2 has it of both.
	if n1, n2 := s.Task(1, 0).Packets, s.Task(1, 1).Packets; n1 != 1 || n2 != 2 {
		t.Errorf("NT1 was wanted by %d packets, NT2 by %d", n1, n2)
	}

	// NT2 is overloaded: user2's third packet runs in part, and not NT2 of user1's.
	a, b, c := send(1), send(1), send(0)
	want(t, "NT2 has two credits", runs(t, s), fmt.Sprintf("%d.0@1:2 %d.0@1:2 %d.0@1:1 %d.1@2:1", a, b, c, c))
	s.Return(lane(s, a, 0), false)
	s.Return(lane(s, c, 0), false)
	want(t, "user1 comes back in the middle of the chain", runs(t, s), fmt.Sprintf("%d.0@2:2 %d.0@1:2", a, c))
	for _, r := range []told{{Packet: b}, {Packet: c}, {Packet: c, Branch: 1}, {Packet: a}} {
		s.Return(lane(s, r.Packet, r.Branch), false)
	}
	want(t, "stage 2 of user1, visit 2 of user2", runs(t, s), fmt.Sprintf("%d.0@2:2 %d.0@2:2", b, c))
	// Region 3 takes user2 over in one visit.
	ok(t, s.Place(3, nt24, []int{2, 2}))
	ok(t, s.SetRoute(1, line(Visit{nt24, both})))
	d := send(1)
	want(t, "user2's next packet waits for the one on the old plan", runs(t, s), "")
	s.Return(lane(s, b, 0), false)
	want(t, "then it runs as a whole", runs(t, s), fmt.Sprintf("%d.0@3:3", d))
	s.Return(lane(s, c, 0), false)
	s.Return(lane(s, d, 0), false)
	want(t, "all leave", leaves(t, s), fmt.Sprintf("%d %d %d %d", a, b, c, d))
}

// TestQueues: who waits is served in order, whatever it needs; nobody starves.
func TestQueues(t *testing.T) {
	s := small(t, 1, 1)
	ok(t, s.SetRoute(0, line(Visit{0, 3})))
	ok(t, s.SetRoute(1, line(Visit{0, 2})))
	arrive(t, s, 0, 1) // 0 has all credits
	arrive(t, s, 0, 2) // 1 waits for task 0
	arrive(t, s, 1, 3) // 2 waits for task 1
	arrive(t, s, 1, 4) // 3 behind it
	want(t, "one runs", runs(t, s), "0.0@0:3")
	s.Release(lane(s, 0, 0), 0)
	want(t, "task 0 goes to packet 1, in part: others wait for task 1", runs(t, s), "1.0@0:1")
	s.Release(lane(s, 0, 0), 1)
	want(t, "task 1 goes to packet 2", runs(t, s), "2.0@0:2")
	arrive(t, s, 1, 5) // 4 behind packet 1, which is not back yet
	s.Return(lane(s, 0, 0), false)
	s.Return(lane(s, 2, 0), false)
	want(t, "then 3", runs(t, s), "3.0@0:2")
	s.Return(lane(s, 3, 0), false)
	want(t, "then nobody: the first has its place and is on its way", runs(t, s), "")
	s.Return(lane(s, 1, 0), false)
	want(t, "1 is back", runs(t, s), "1.0@0:2")
	s.Return(lane(s, 1, 0), false)
	want(t, "then 4", runs(t, s), "4.0@0:2")
	s.Return(lane(s, 4, 0), true)
	want(t, "order of finishing, as flows differ", leaves(t, s), "0 2 3 1 4(by-task)")
	if b := s.Books(); b.Runs != 6 || b.Left != 4 || b.Dropped[ByTask] != 1 || b.Stored != 0 {
		t.Errorf("%+v", b)
	}
}

// TestDropOfOneWithAPlace: a packet that has a place in a queue and is dropped
// does not hold up those behind it.
func TestDropOfOneWithAPlace(t *testing.T) {
	s := small(t, 1, 1)
	ok(t, s.SetRoute(0, line(Visit{0, 3})))
	ok(t, s.SetRoute(1, line(Visit{0, 2})))
	arrive(t, s, 1, 1) // 0 has task 1
	arrive(t, s, 0, 2) // 1 runs task 0, and has its place at task 1
	arrive(t, s, 1, 3) // 2 is behind it
	want(t, "two run", runs(t, s), "0.0@0:2 1.0@0:1")
	s.Return(lane(s, 0, 0), false)
	want(t, "the place is kept", runs(t, s), "")
	s.Return(lane(s, 1, 0), true)
	want(t, "and given up", runs(t, s), "2.0@0:2")
}

// TestJoin: a drop in one branch drops the packet when all are back.
func TestJoin(t *testing.T) {
	s := small(t, 3, 4)
	ok(t, s.SetRoute(0, Route{Stages: [][][]Visit{{{{0, 3}}, {{1, 1}}, {{2, 2}}}, {{{0, 1}}}}}))
	arrive(t, s, 0, 1)
	arrive(t, s, 0, 1)
	want(t, "three branches each", runs(t, s), "0.0@0:3 0.1@1:1 0.2@2:2 1.0@0:3 1.1@1:1 1.2@2:2")
	s.Return(lane(s, 0, 1), true)
	s.Return(lane(s, 0, 0), false)
	for b := range 3 {
		s.Return(lane(s, 1, b), false)
	}
	want(t, "packet 1 gets on", runs(t, s), "")
	want(t, "none leaves", leaves(t, s), "")
	s.Return(lane(s, 0, 2), false)
	want(t, "0 is dropped, 1 was waiting behind it for its next stage", runs(t, s), "1.0@0:1")
	s.Return(lane(s, 1, 0), false)
	want(t, "in order", leaves(t, s), "0(by-task) 1")
}

// TestFlowsMove: when an instance comes or goes, only flows move that have to,
// and every instance has its part.
func TestFlowsMove(t *testing.T) {
	const flows, n = 20000, 5
	s := small(t, 0, 0)
	ok(t, s.SetRoute(0, line(Visit{0, 3})))
	for i := range n {
		ok(t, s.Place(i, 0, []int{1, 1}))
	}
	where := func() (at []int) {
		for f := range uint64(flows) {
			at = append(at, s.Choose(0, f*0x9e3779b97f4a7c15))
		}
		return at
	}
	five := where()
	ok(t, s.Pause(2))
	four := where()
	count := make([]int, n)
	for f := range five {
		count[five[f]]++
		if five[f] != four[f] && five[f] != 2 {
			t.Fatalf("flow %d moved from %d to %d when 2 went", f, five[f], four[f])
		}
	}
	for i, c := range count {
		if c < flows/n*9/10 || c > flows/n*11/10 {
			t.Errorf("instance %d has %d of %d flows", i, c, flows)
		}
	}
	ok(t, s.Remove(2))
	ok(t, s.Place(2, 0, []int{1, 1}))
	if !slices.Equal(five, where()) {
		t.Error("flows are not where they were")
	}
}

// two is a pair of instances of a chain, and a flow that goes to region 0 with
// both and to region 1 without it.
func two(t *testing.T) (*Scheduler, uint64) {
	s := small(t, 0, 0)
	ok(t, s.Place(0, 0, []int{2, 2}))
	ok(t, s.Place(1, 0, []int{2, 2}))
	ok(t, s.SetRoute(0, line(Visit{0, 3})))
	flow := uint64(1)
	for s.Choose(0, flow) != 0 {
		flow++
	}
	return s, flow
}

// TestDrain: a flow goes to another instance when its packets have left the one
// where it was.
func TestDrain(t *testing.T) {
	s, flow := two(t)
	arrive(t, s, 0, flow)
	want(t, "where the flow belongs", runs(t, s), "0.0@0:3")
	ok(t, s.Pause(0))
	ok(t, s.Check())
	arrive(t, s, 0, flow)
	arrive(t, s, 0, flow)
	want(t, "it moves, and waits for what is inside", runs(t, s), "")
	s.Release(lane(s, 0, 0), 0)
	s.Release(lane(s, 0, 0), 1)
	want(t, "credits are not it", runs(t, s), "")
	s.Return(lane(s, 0, 0), false)
	want(t, "now both go", runs(t, s), "1.0@1:3 2.0@1:3")
	if !s.Drained(0) || s.Drained(1) {
		t.Error("0 has drained, 1 has not")
	}
	ok(t, s.Remove(0))
	ok(t, s.Place(0, 0, []int{2, 2}))
	arrive(t, s, 0, flow)
	want(t, "back again", runs(t, s), "")
	s.Return(lane(s, 2, 0), false)
	want(t, "one is still there", runs(t, s), "")
	s.Return(lane(s, 1, 0), false)
	want(t, "both are back", runs(t, s), "3.0@0:3")
	s.Return(lane(s, 3, 0), false)
	want(t, "in order", leaves(t, s), "0 1 2 3")
}

// TestDirections: the directions of a flow are in two orders, on plans of their own, and go
// to the same instance. An answer overtakes the request that waits for it.
func TestDirections(t *testing.T) {
	s, flow := two(t)
	there, back := line(Visit{0, 3}), Route{Stages: [][][]Visit{{{{0, 2}}}, {{{0, 1}}}}, Back: true}
	ok(t, s.SetRoute(0, there))
	ok(t, s.SetRoute(1, back))
	arrive(t, s, 0, flow)
	want(t, "a request", runs(t, s), "0.0@0:3")
	s.Release(lane(s, 0, 0), 0) // task 1 keeps it until the answer is there
	arrive(t, s, 1, flow)
	want(t, "its answer", runs(t, s), "1.0@0:2")
	s.Return(lane(s, 1, 0), false)
	want(t, "on to the other task", runs(t, s), "1.0@0:1")
	s.Return(lane(s, 1, 0), false)
	want(t, "the answer leaves first", leaves(t, s), "1")
	arrive(t, s, 0, flow)
	ok(t, s.Check())
	want(t, "a second request", runs(t, s), "1.0@0:3")
	s.Return(lane(s, 1, 0), false)
	want(t, "requests keep their order", leaves(t, s), "")
	s.Return(lane(s, 0, 0), false)
	want(t, "requests keep their order", leaves(t, s), "0 1")
}

// TestRerouteInOrder: packets that wait while their route is changed run in the order in which they arrived, whatever their numbers: one that was
// served last would keep all of its flow from leaving.
func TestRerouteInOrder(t *testing.T) {
	for _, spread := range []Spread{PerFlow, RoundRobin, LeastLoaded} {
		s := small(t, 1, 1)
		r := line(Visit{0, 3})
		r.Spread = spread
		ok(t, s.SetRoute(0, r))
		for range 3 { // from now on the last number is given first
			arrive(t, s, 0, 7)
		}
		for i := range 3 {
			want(t, "one after the other", runs(t, s), fmt.Sprintf("%d.0@0:3", i))
			s.Return(lane(s, i, 0), false)
		}
		want(t, "all leave", leaves(t, s), "0 1 2")
		ok(t, s.SetRoute(0, line(Visit{1, 1}))) // is nowhere
		for range 3 {
			arrive(t, s, 0, 7)
		}
		ok(t, s.SetRoute(0, r))
		for _, i := range []int{2, 1, 0} {
			want(t, fmt.Sprintf("spread %d: as they arrived", spread), runs(t, s), fmt.Sprintf("%d.0@0:3", i))
			s.Return(lane(s, i, 0), false)
		}
	}
}

// TestRerouteTogether: of two routes that are changed together, as the two directions of a DAG are, packets run in the order in which they arrived, too.
func TestRerouteTogether(t *testing.T) {
	s := small(t, 1, 1)
	there, back := line(Visit{0, 3}), line(Visit{0, 3})
	back.Back = true
	nowhere := line(Visit{1, 1})
	ok(t, s.SetRoutes([]int{0, 1}, []Route{nowhere, nowhere}))
	for i := range 6 {
		arrive(t, s, i%2, 7)
	}
	ok(t, s.SetRoutes([]int{0, 1}, []Route{there, back}))
	for i := range 6 {
		want(t, "as they arrived", runs(t, s), fmt.Sprintf("%d.0@0:3", i))
		s.Return(lane(s, i, 0), false)
	}
	ok(t, s.SetRoutes([]int{0, 1}, []Route{nowhere, nowhere}))
	if err := s.SetRoutes([]int{0, 1}, []Route{there, line(Visit{99, 1})}); err == nil {
		t.Error("a chain that cannot be is taken")
	}
	arrive(t, s, 0, 7)
	want(t, "with an error no route is changed", runs(t, s), "")
}

// TestStopAndLaunch: packets wait while the only instance of their chain is
// stopped and another is launched, also in the middle of it, and go on there.
func TestStopAndLaunch(t *testing.T) {
	s := small(t, 1, 2)
	ok(t, s.SetRoute(0, line(Visit{0, 3})))
	ok(t, s.SetCredits(0, 1, 1))
	for i := range 4 {
		arrive(t, s, 0, uint64(i))
	}
	want(t, "in part", runs(t, s), "0.0@0:3 1.0@0:1")
	ok(t, s.Pause(0))
	arrive(t, s, 0, 9)
	if n := s.road.in.chains[0].parked; n != 3 {
		t.Errorf("%d packets are parked", n)
	}
	if err := s.Remove(0); err == nil {
		t.Error("removed with packets inside")
	}
	s.Return(lane(s, 0, 0), false)
	s.Return(lane(s, 1, 0), false)
	want(t, "none goes in", runs(t, s), "")
	if !s.Drained(0) {
		t.Error("not drained")
	}
	ok(t, s.Remove(0))
	ok(t, s.Check())
	ok(t, s.Place(0, 1, []int{5}))
	want(t, "another chain is none of theirs", runs(t, s), "")
	ok(t, s.Place(5, 0, []int{9, 9}))
	want(t, "those that waited, first who came first; 1 where it was", runs(t, s), "2.0@5:3 3.0@5:3 4.0@5:3 1.0@5:2")
	for p := 1; p <= 4; p++ {
		s.Return(lane(s, p, 0), false)
	}
	want(t, "all leave", leaves(t, s), "0 1 2 3 4")
}

// TestFartherCameFirst: of those that wait in a region that stops, who has run more of the chain goes
// on first.
func TestFartherCameFirst(t *testing.T) {
	s := small(t, 1, 1)
	ok(t, s.SetRoute(0, line(Visit{0, 3})))
	ok(t, s.SetCredits(0, 0, 2))
	for i := range 4 {
		arrive(t, s, 0, uint64(i))
	}
	want(t, "in part", runs(t, s), "0.0@0:3 1.0@0:1")
	s.Return(lane(s, 1, 0), false)
	want(t, "1 waits for the second task, 3 for the first", runs(t, s), "2.0@0:1")
	ok(t, s.Pause(0))
	s.Return(lane(s, 0, 0), false)
	s.Return(lane(s, 2, 0), false)
	ok(t, s.Place(5, 0, []int{1, 1}))
	want(t, "1 has the second task", runs(t, s), "1.0@5:2 3.0@5:1")
}

// TestReroute: packets that have begun finish as they began, or are dropped when
// they cannot; the others follow the new route; a flow stays in order.
func TestReroute(t *testing.T) {
	s := small(t, 3, 1)
	ok(t, s.SetRoute(0, line(Visit{0, 3}, Visit{1, 3})))
	arrive(t, s, 0, 1) // 0 begins
	arrive(t, s, 0, 1) // 1 waits behind it
	arrive(t, s, 0, 2) // 2 is of another flow, and waits
	want(t, "one runs", runs(t, s), "0.0@0:3")
	ok(t, s.SetRoute(0, line(Visit{2, 3})))
	want(t, "the other flow follows the new route", runs(t, s), "2.0@2:3")
	s.Return(lane(s, 0, 0), false)
	want(t, "0 is on the old one, 1 waits for it", runs(t, s), "0.0@1:3")
	s.Return(lane(s, 0, 0), false)
	s.Return(lane(s, 2, 0), false)
	want(t, "1 is free to go", runs(t, s), "1.0@2:3")
	s.Return(lane(s, 1, 0), false)
	want(t, "all leave", leaves(t, s), "0 2 1")

	ok(t, s.SetRoute(0, line(Visit{0, 3}, Visit{1, 3})))
	arrive(t, s, 0, 1)
	arrive(t, s, 0, 1)
	want(t, "one runs", runs(t, s), "1.0@0:3")
	ok(t, s.Pause(1))
	ok(t, s.Remove(1))
	s.Return(lane(s, 1, 0), false)
	want(t, "its plan is in force: it waits for its chain", runs(t, s), "2.0@0:3")
	if n := s.road.in.chains[1].parked; n != 1 {
		t.Errorf("%d are parked", n)
	}
	ok(t, s.RemoveRoute(0))
	want(t, "it is not any more", leaves(t, s), "1(gone)")
	s.Return(lane(s, 2, 0), false)
	want(t, "nor for the next", leaves(t, s), "2(gone)")
	if _, why := s.Arrive(0, 1, 1, 1); why != UnknownRoute {
		t.Error(why)
	}

	ok(t, s.SetRoute(0, line(Visit{0, 3})))
	arrive(t, s, 0, 1)
	arrive(t, s, 0, 1)
	want(t, "one runs", runs(t, s), "2.0@0:3")
	ok(t, s.RemoveRoute(0))
	want(t, "the one behind leaves after it", leaves(t, s), "")
	s.Return(lane(s, 2, 0), false)
	want(t, "the one behind had not begun", leaves(t, s), "2 1(gone)")
	ok(t, s.SetRoute(0, Route{}))
	want(t, "no stages", fmt.Sprint(arrive(t, s, 0, 1)), leaves(t, s))
}

// TestPlansEnd: plans that nobody follows are not kept.
func TestPlansEnd(t *testing.T) {
	s := small(t, 2, 1)
	for i := range 1000 {
		ok(t, s.SetRoute(0, line(Visit{i & 1, uint16(1 + i%3)})))
		arrive(t, s, 0, uint64(i))
		for {
			r, any := next(s)
			if !any {
				break
			}
			s.Return(lane(s, r.Packet, 0), false)
		}
		leaves(t, s)
	}
	if n := len(s.road.plans.all); n > 4 {
		t.Errorf("%d plans are kept", n)
	}
}

func TestSpread(t *testing.T) {
	for _, c := range []struct {
		spread Spread
		want   string
	}{
		{RoundRobin, "0.0@1:3 1.0@2:3 2.0@0:3 3.0@1:3 4.0@2:3 5.0@0:3"},
		{LeastLoaded, "0.0@0:3 1.0@1:3 2.0@2:3 3.0@0:3 4.0@1:3 5.0@2:3"},
	} {
		s := small(t, 0, 0)
		for i := range 3 {
			ok(t, s.Place(i, 0, []int{9, 9}))
		}
		r := line(Visit{0, 3})
		r.Spread = c.spread
		ok(t, s.SetRoute(0, r))
		for range 6 {
			arrive(t, s, 0, 1)
		}
		want(t, "spread", runs(t, s), c.want)
		for p := 5; p >= 1; p-- {
			s.Return(lane(s, p, 0), false)
		}
		want(t, "leaves in order", leaves(t, s), "")
		s.Return(lane(s, 0, 0), false)
		want(t, "leaves in order", leaves(t, s), "0 1 2 3 4 5")
		r.AnyOrder = true
		ok(t, s.SetRoute(0, r))
		p, q := arrive(t, s, 0, 1), arrive(t, s, 0, 1)
		runs(t, s)
		s.Return(lane(s, q, 0), false)
		want(t, "any order", leaves(t, s), fmt.Sprint(q))
		s.Return(lane(s, p, 0), false)
		want(t, "any order", leaves(t, s), fmt.Sprint(p))
	}
}

func TestRefusals(t *testing.T) {
	s := small(t, 1, 8)
	ok(t, s.SetRoute(0, line(Visit{7, 3})))
	for _, c := range []struct {
		route, bytes, tenant int
		want                 Reason
	}{
		{1, 1, 0, UnknownRoute}, {-1, 1, 0, UnknownRoute}, {99, 1, 0, UnknownRoute}, {0, -1, 0, BadPacket}, {0, 1<<30 + 1, 0, BadPacket},
		{0, 1, 4, BadPacket}, {0, 1, -1, BadPacket}, {0, 64<<10 + 1, 0, StoreFull}, {0, 64<<10 - 70, 0, None}, {0, 71, 0, StoreFull},
	} {
		if p, why := s.Arrive(c.route, c.bytes, 1, c.tenant); why != c.want || (p < 0) != (why != None) {
			t.Errorf("%+v: %v", c, why)
		}
	}
	for range 63 {
		arrive2(t, s, None)
	}
	arrive2(t, s, NoDescriptor)
}

func arrive2(t *testing.T, s *Scheduler, want Reason) {
	t.Helper()
	if _, why := s.Arrive(0, 1, 1, 0); why != want {
		t.Fatal(why)
	}
}

// TestTenantsDoNotMeet: what one tenant sends does not hold up another, even with
// the same hash.
func TestTenantsDoNotMeet(t *testing.T) {
	s := small(t, 1, 8)
	ok(t, s.SetRoute(0, line(Visit{0, 3})))
	ok(t, s.SetRoute(1, line(Visit{7, 1})))
	for tenant := range 2 {
		if _, why := s.Arrive(1-tenant, 1, 42, tenant); why != None {
			t.Fatal(why)
		}
	}
	want(t, "the second runs", runs(t, s), "1.0@0:3")
	s.Return(lane(s, 1, 0), false)
	want(t, "and leaves", leaves(t, s), "1")

	// Nor where the two are in one bucket.
	for hash := range uint64(100) {
		s, err := New(Config{Packets: 2, Store: 10, Regions: 1, Chains: 2, Routes: 2, Tenants: 100, Branches: 1, Seed: hash})
		ok(t, err)
		ok(t, s.Place(0, 0, []int{1}))
		ok(t, s.SetRoute(0, line(Visit{0, 1})))
		ok(t, s.SetRoute(1, line(Visit{1, 1})))
		for tenant := range 2 {
			if _, why := s.Arrive(1-tenant, 1, hash, tenant*int(hash)); why != None {
				t.Fatal(why)
			}
		}
		if hash > 0 {
			want(t, "the second runs", runs(t, s), "1.0@0:1")
		}
	}
}

func TestBulk(t *testing.T) {
	s := small(t, 1, 10)
	ok(t, s.SetRoute(0, line(Visit{0, 3})))
	ok(t, s.SetRoute(1, line(Visit{0, 1}, Visit{0, 1})))
	take := func(route, n, want int) {
		t.Helper()
		if r, m, got := s.Take(route, 1, n, n*100); got != want || got > 0 && (r != 0 || m != 3) {
			t.Fatalf("took %d of %d in region %d, mask %x; want %d", got, n, r, m, want)
		}
		ok(t, s.Check())
	}
	take(0, 4, 4)
	take(0, 20, 6)
	take(0, 1, 0)
	if k := s.Task(0, 1); k.Free != 0 || k.Packets != 10 || k.Bytes != 1000 {
		t.Errorf("%+v", k)
	}
	p := arrive(t, s, 0, 1)
	want(t, "no credits", runs(t, s), "")
	s.Give(0, 3, 4, 1)
	take(0, 1, 0) // one is inside
	want(t, "now there are", runs(t, s), fmt.Sprintf("%d.0@0:3", p))
	s.Return(lane(s, p, 0), false)
	take(0, 1, 0) // and has not left
	want(t, "leaves", leaves(t, s), fmt.Sprint(p))
	take(0, 9, 4)
	s.Give(0, 3, 10, 0)
	take(1, 1, 0) // two visits
	take(7, 1, 0)
	take(-1, 1, 0)
	take(0, 0, 0)
	// Nobody is passed who has a place in a queue and is on the way.
	ok(t, s.SetRoute(2, line(Visit{0, 3})))
	ok(t, s.SetCredits(0, 1, 1))
	p = arrive(t, s, 2, 1)
	q := arrive(t, s, 2, 2)
	want(t, "one in part", runs(t, s), fmt.Sprintf("%d.0@0:3 %d.0@0:1", p, q))
	s.Return(lane(s, p, 0), false)
	take(0, 1, 0)
	s.Return(lane(s, q, 0), false)
	want(t, "the rest", runs(t, s), fmt.Sprintf("%d.0@0:2", q))
	s.Return(lane(s, q, 0), false)
	leaves(t, s)
	take(0, 2, 1)
	s.Give(0, 3, 1, 0)
	ok(t, s.Pause(0))
	take(0, 1, 0)
	if b := s.Books(); b.Arrived != 18 || b.Bulk != 15 || b.Left != 17 || b.Dropped[ByTask] != 1 || b.Taken != 0 {
		t.Errorf("%+v", b)
	}
}

func TestMisuse(t *testing.T) {
	for name, f := range map[string]func(s *Scheduler){
		"return before next":   func(s *Scheduler) { s.Return(lane(s, 0, 0), false) },
		"return of nobody":     func(s *Scheduler) { s.Return(lane(s, -1, 0), false) },
		"return of no branch":  func(s *Scheduler) { s.Return(lane(s, 0, 4), false) },
		"return twice":         func(s *Scheduler) { s.Next(); s.Return(lane(s, 0, 0), false); s.Return(lane(s, 0, 0), false) },
		"release before next":  func(s *Scheduler) { s.Release(lane(s, 0, 0), 0) },
		"release twice":        func(s *Scheduler) { s.Next(); s.Release(lane(s, 0, 0), 0); s.Release(lane(s, 0, 0), 0) },
		"release of no task":   func(s *Scheduler) { s.Next(); s.Release(lane(s, 0, 0), 99) },
		"give nothing taken":   func(s *Scheduler) { s.Give(0, 3, 1, 0) },
		"give another mask":    func(s *Scheduler) { s.Take(1, 1, 1, 1); s.Give(0, 3, 1, 0) },
		"give to nowhere":      func(s *Scheduler) { s.Give(99, 3, 0, 0) },
		"give drops of nobody": func(s *Scheduler) { s.Take(1, 1, 1, 1); s.Give(0, 1, 1, 2) },
	} {
		s := small(t, 1, 2)
		ok(t, s.SetRoute(0, line(Visit{0, 3})))
		ok(t, s.SetRoute(1, line(Visit{0, 1})))
		arrive(t, s, 0, 1)
		f(s)
		if err := s.Check(); err == nil {
			t.Errorf("%s is not told of", name)
		}
	}
}

func TestErrors(t *testing.T) {
	s := small(t, 1, 2)
	ok(t, s.SetRoute(1, line(Visit{5, 8})))
	many := make([]Visit, MaxVisits+1)
	for i := range many {
		many[i] = Visit{0, 1}
	}
	for name, err := range map[string]error{
		"packets":         second(New(Config{})),
		"branches":        second(New(Config{Packets: 1, Store: 1, Regions: 1, Chains: 1, Routes: 1, Tenants: 1, Branches: 17})),
		"same region":     s.Place(0, 1, []int{1}),
		"no region":       s.Place(8, 1, []int{1}),
		"no chain":        s.Place(1, 8, []int{1}),
		"no tasks":        s.Place(1, 1, nil),
		"17 tasks":        s.Place(1, 1, make([]int, 17)),
		"no credits":      s.Place(1, 1, []int{0}),
		"other length":    s.Place(1, 0, []int{1, 1, 1}),
		"route is longer": s.Place(1, 5, []int{1, 1, 1}),
		"mask":            s.SetRoute(0, line(Visit{0, 4})),
		"no mask":         s.SetRoute(0, line(Visit{0, 0})),
		"route's chain":   s.SetRoute(0, line(Visit{8, 1})),
		"route":           s.SetRoute(8, line(Visit{0, 1})),
		"empty stage":     s.SetRoute(0, Route{Stages: [][][]Visit{{}}}),
		"empty branch":    s.SetRoute(0, Route{Stages: [][][]Visit{{{}}}}),
		"5 branches":      s.SetRoute(0, Route{Stages: [][][]Visit{make([][]Visit, 5)}}),
		"129 visits":      s.SetRoute(0, line(many...)),
		"spread":          s.SetRoute(0, Route{Spread: 3}),
		"remove route":    s.RemoveRoute(-1),
		"pause":           s.Pause(1),
		"pause unknown":   s.Pause(99),
		"remove":          s.Remove(0),
		"remove nothing":  s.Remove(1),
		"credits":         s.SetCredits(0, 0, 0),
		"credits' task":   s.SetCredits(0, 2, 1),
		"credits nowhere": s.SetCredits(3, 0, 1),
	} {
		if err == nil || !strings.HasPrefix(err.Error(), "sched: ") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", name, err)
		}
	}
	ok(t, s.Check())
	ok(t, s.RemoveRoute(3))
	if s.Choose(99, 1) != -1 || s.Choose(1, 1) != -1 || s.Instance(99).Chain != -1 || s.Task(0, 2) != (Task{}) || !s.Drained(7) {
		t.Error("of what there is not, nothing is told")
	}
}

func second[T any](_ T, err error) error { return err }

// TestPanicHasTheSameResults: one task at a time or a chain at a time, packets go
// through the same tasks and have the same end.
func TestPanicHasTheSameResults(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var of [2]map[int]string
		var passes [2]uint64
		seed := rapid.SliceOfN(rapid.Byte(), 200, 200).Draw(rt, "setup")
		arrivals := rapid.SliceOfN(rapid.IntRange(0, 3*bodyFlows-1), 1, 60).Draw(rt, "arrivals")
		for mode := range of {
			b := newBody(tb{t, rt}, &byBytes{seed}, mode == 1)
			b.c = byRapid{rt}
			for _, a := range arrivals {
				for b.s.Books().Inside == b.conf.Packets {
					b.drain()
					if len(b.execs) > 0 {
						b.step(b.c.pick(len(b.execs)))
					}
					b.leave()
				}
				b.arrive(a%3, a/3, 100)
				if b.drain(); len(b.execs) > 0 {
					b.step(b.c.pick(len(b.execs)))
				}
				b.check()
			}
			b.finish()
			of[mode], passes[mode] = b.results, b.s.Books().Runs
		}
		for seq, r := range of[0] {
			// Branches beside the one that drops a packet stop where they happen to be
			// in neither mode: all run to their end.
			if of[1][seq] != r {
				rt.Fatalf("packet %d: %s, with Panic %s", seq, r, of[1][seq])
			}
		}
		if passes[1] < passes[0] {
			rt.Fatalf("%d passes through the scheduler, with Panic %d", passes[0], passes[1])
		}
	})
}

// TestChooseNobody: a route that is none has no region.
func TestChooseNobody(t *testing.T) {
	s, err := New(Config{Packets: 1, Store: 1, Regions: 1, Chains: 1, Routes: 2, Tenants: 1, Branches: 1})
	if err != nil {
		t.Fatal(err)
	}
	for _, route := range []int{-1, 0, 1, 2, math.MaxInt} {
		r, _, n := s.Take(route, 0, 1, 1)
		if at := s.Choose(route, 0); at != -1 || r != 0 || n != 0 {
			t.Errorf("route %d: region %d, %d taken of region %d", route, at, n, r)
		}
	}
}

// Two branches of a stage, each a task of a chain with two instances, go to both: by turns alone all packets would have the
// first task in one instance and the second in the other.
func TestBranchesShareInstances(t *testing.T) {
	s, err := New(Config{Packets: 16, Store: 1 << 16, Regions: 2, Chains: 1, Routes: 1, Tenants: 1, Branches: 2})
	ok(t, err)
	for r := range 2 {
		ok(t, s.Place(r, 0, []int{2, 2}))
	}
	ok(t, s.SetRoute(0, Route{Stages: [][][]Visit{{{{0, 1}}, {{0, 2}}}}, Spread: LeastLoaded}))
	for i := range 8 {
		arrive(t, s, 0, uint64(i))
	}
	for r := range 2 {
		for i := range 2 {
			if n := s.Task(r, i).Packets; n < 3 || n > 5 {
				t.Errorf("%d of 8 packets are for task %d of region %d", n, i, r)
			}
		}
	}
}

// SetRoute is SetRoutes for one route.
func (s *Scheduler) SetRoute(id int, r Route) error { return s.SetRoutes([]int{id}, []Route{r}) }
