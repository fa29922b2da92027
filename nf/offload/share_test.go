package offload

import "testing"

// sharer is an owner that is asked only by who has the turn.
type sharer struct {
	t *testing.T
	owner
	taken bool
	state uint64
	asked func() // with each Decides
}

func (s *sharer) Take() {
	if s.taken {
		s.t.Error("the turn is taken twice")
	}
	s.taken = true
}
func (s *sharer) Give() { s.taken = false }
func (s *sharer) look(what string) {
	if s.t.Helper(); !s.taken {
		s.t.Errorf("%s without a turn", what)
	}
}
func (s *sharer) State(uint32) uint64 { s.look("State"); return s.state }
func (s *sharer) Decides(ref uint32) bool {
	s.look("Decides")
	if s.asked != nil {
		s.asked()
	}
	return s.owner.Decides(ref)
}
func (s *sharer) Flows(ref uint32) *Flows   { s.look("Flows"); return s.owner.Flows(ref) }
func (s *sharer) Used(ref uint32, u *Usage) { s.look("Used"); s.owner.Used(ref, u) }

type sharedBed struct {
	*testing.T
	m *memory
	*Table
	a, b sharer
}

func newShared(t *testing.T, room int) *sharedBed {
	x := &sharedBed{T: t, m: &memory{slots: make([]Slot, room), keys: map[[KeyLen]byte]int{}}}
	x.a.t, x.b.t = t, t
	x.Table = NewTable(x.m)
	x.Share()
	x.Now(1_000_000)
	return x
}

// begin offers both directions of a flow of what ref names.
func (x *sharedBed) begin(ref uint32) (o Outcome) {
	x.Helper()
	for port, f := range [][]byte{frame(1, 2, 10, 20+uint16(ref)), frame(2, 1, 20+uint16(ref), 10)} {
		parts := []Part{{Owner: &x.a, Ref: ref, In: port, Alone: true}, {Owner: &x.b, Ref: ref, In: port}}
		if port == 1 {
			parts[0], parts[1] = parts[1], parts[0]
		}
		d := Decision{Before: f, After: f, Out: 1 - port, Longest: 1514, Parts: parts}
		if !x.Parse(f, port, &d.In) {
			x.Fatal("not plain")
		}
		o = x.Offer(&d)
	}
	return o
}

func (x *sharedBed) as(s *sharer, do func()) {
	s.Take()
	do()
	s.Give()
}

func (x *sharedBed) live(i int) bool { return x.m.slots[i].Claim&0xFFFFFFFF == Live }

// TestShared: owners are asked in their turns, and an entry that one of them ends is run by nobody from then on, and freed when somebody tidies up.
func TestShared(t *testing.T) {
	x := newShared(t, 2)
	if o := x.begin(0); o != Began || !x.live(0) {
		t.Fatal(OutcomeNames[o])
	}
	x.as(&x.b, func() { x.Withdraw(&x.b.owner.flows[0]) })
	if x.live(0) || x.b.owner.flows[0].Any() || !x.a.owner.flows[0].Any() || x.Len() != 1 {
		t.Error("an entry that b has ended is there")
	}
	x.m.slots[0].Last[0] = 1
	x.as(&x.a, func() { x.Ask(&x.a, 0, &x.a.owner.flows[0]) })
	if x.a.used[0] == (Usage{}) {
		t.Error("a cannot ask any more")
	}
	if o := x.begin(1); o != Began {
		t.Fatal(OutcomeNames[o])
	}
	x.Look(64)
	if x.a.owner.flows[0].Any() || x.Len() != 1 || len(x.m.keys) != 2 {
		t.Errorf("%d entries, keys %v", x.Len(), x.m.keys)
	}
	x.begin(2)
	x.Pause()
	for at := x.Settle(0, 1); at != 0; at = x.Settle(at, 1) {
	}
	x.Clear(0, x.Used())
	if x.Len() != 0 || len(x.m.keys) != 0 || x.a.owner.flows != [8]Flows{} || x.b.owner.flows != [8]Flows{} {
		t.Error("something is left")
	}
}

// TestEndedWhileHeld: an entry that ends while another owner looks at a frame is not run when that one gives it back.
func TestEndedWhileHeld(t *testing.T) {
	x := newShared(t, 2)
	x.begin(0)
	x.as(&x.a, func() {
		if !x.Hold(&x.a.owner.flows[0]) {
			t.Fatal("not held")
		}
		x.as(&x.b, func() { x.Withdraw(&x.b.owner.flows[0]) })
		x.Release(&x.a, 0, &x.a.owner.flows[0], true)
	})
	if x.live(0) || x.a.owner.flows[0].Any() {
		t.Error("an entry that has ended is run")
	}
	x.as(&x.a, func() {
		if x.Hold(&x.a.owner.flows[0]) {
			t.Error("it is held")
		}
	})
}

// TestHeldTwice: what two owners hold at a time ends.
func TestHeldTwice(t *testing.T) {
	x := newShared(t, 2)
	x.begin(0)
	x.as(&x.a, func() {
		x.Hold(&x.a.owner.flows[0])
		x.as(&x.b, func() {
			if x.Hold(&x.b.owner.flows[0]) {
				t.Error("both hold it")
			}
		})
		x.Release(&x.a, 0, &x.a.owner.flows[0], true)
	})
	if x.live(0) {
		t.Error("it is run")
	}
}

// TestEndedBeforeItBegan: an entry that an owner ends before the others have it does not begin, nor one of which an owner has decided about something else since.
func TestEndedBeforeItBegan(t *testing.T) {
	x := newShared(t, 2)
	x.b.asked = func() { // a has it
		x.as(&x.a, func() { x.Withdraw(&x.a.owner.flows[0]) })
	}
	if o := x.begin(0); o != Refused || x.live(0) || x.Len() != 0 {
		t.Errorf("%s, %d entries", OutcomeNames[o], x.Len())
	}
	x.a.asked = func() { x.b.state = 1 }
	x.b.asked = nil
	if o := x.begin(1); o != Refused || x.Len() != 0 || len(x.m.keys) != 0 {
		t.Errorf("%s, %d entries", OutcomeNames[o], x.Len())
	}
	if x.a.owner.flows != [8]Flows{} || x.b.owner.flows != [8]Flows{} {
		t.Error("something is left")
	}
}
