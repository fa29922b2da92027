package offload

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
)

// memory is a Kernel that runs nothing.
type memory struct {
	slots   []Slot
	control Control
	meters  []Meter
	keys    map[[KeyLen]byte]int
}

func (m *memory) Slots() []Slot     { return m.slots }
func (m *memory) Sixes() []Addrs    { return make([]Addrs, len(m.slots)) }
func (m *memory) Control() *Control { return &m.control }
func (m *memory) Meters() []Meter   { return m.meters }
func (m *memory) Put(slot, dir int) error {
	m.keys[m.slots[slot].Dirs[dir].Key] = 2*slot + dir
	return nil
}
func (m *memory) Delete(slot, dir int) {
	if k := m.slots[slot].Dirs[dir].Key; m.keys[k] == 2*slot+dir {
		delete(m.keys, k)
	}
}
func (m *memory) DeleteTunnel(k [TunnelKeyLen]byte) {}
func (m *memory) Clock() int64                      { return 0 }
func (m *memory) PutTunnel(k [TunnelKeyLen]byte, id uint16, local [6]byte, x *Template) error {
	return nil
}

// owner is a function that keeps things by number.
type owner struct {
	flows [8]Flows
	used  [8]Usage
	ended [8]bool
}

func (o *owner) Decides(ref uint32) bool   { return !o.ended[ref] }
func (o *owner) Flows(ref uint32) *Flows   { return &o.flows[ref] }
func (o *owner) Used(ref uint32, u *Usage) { o.used[ref] = *u }

type bed struct {
	*testing.T
	m *memory
	*Table
	a, b owner
}

func newBed(t *testing.T, room int) *bed {
	x := &bed{T: t, m: &memory{slots: make([]Slot, room), keys: map[[KeyLen]byte]int{}}}
	x.Table = NewTable(x.m)
	x.Now(1000)
	return x
}

// frame is a UDP frame from and to these hosts and ports.
func frame(from, to byte, sport, dport uint16) []byte {
	b := make([]byte, 60)
	hdr.Ethernet(b).Encode(&hdr.EthernetFields{Dst: [6]byte{2}, Src: [6]byte{4}, EtherType: hdr.EtherIPv4})
	ip := hdr.IPv4(b[14:])
	ip.Encode(&hdr.IPv4Fields{TTL: 9, Protocol: hdr.ProtoUDP, Src: netip.AddrFrom4([4]byte{}), Dst: netip.AddrFrom4([4]byte{})})
	ip.SetTotalLen(46)
	b[29], b[33] = from, to
	ip.UpdateChecksum()
	binary.BigEndian.PutUint16(b[34:], sport)
	binary.BigEndian.PutUint16(b[36:], dport)
	binary.BigEndian.PutUint16(b[38:], 26)
	return b
}

// offer offers what was done with a frame that came in at a port.
func (x *bed) offer(port int, before, after []byte, ref uint32) Outcome {
	x.Helper()
	d := Decision{Before: before, After: after, Out: 1 - port, Longest: 1514, Parts: []Part{{Owner: &x.a, Ref: ref, In: port}, {Owner: &x.b, Ref: ref, In: port}}}
	if port == 1 {
		slices.Reverse(d.Parts)
	}
	if !x.Parse(before, port, &d.In) {
		x.Fatal("not plain")
	}
	return x.Offer(&d)
}

// TestPairs: an entry takes both directions, that answer each other, soon behind each other, by the same connection of each function.
func TestPairs(t *testing.T) {
	x := newBed(t, 2)
	expect := func(what string, got, want Outcome) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %s, want %s", what, OutcomeNames[got], OutcomeNames[want])
		}
	}
	out, seen := frame(1, 2, 10, 20), frame(9, 2, 11, 20) // translated
	back, home := frame(2, 9, 20, 11), frame(2, 1, 20, 10)
	expect("the first", x.offer(0, out, seen, 0), Waits)
	expect("the same again", x.offer(0, out, seen, 0), Waits)
	expect("an answer to another", x.offer(1, frame(2, 8, 20, 11), home, 0), Unlike)
	expect("an answer of another connection", x.offer(1, back, home, 1), Unlike)
	expect("the first", x.offer(0, out, seen, 0), Unlike)
	expect("an answer", x.offer(1, back, home, 0), Began)
	if x.Len() != 1 || !x.a.flows[0].Any() || !x.b.flows[0].Any() || len(x.m.keys) != 2 {
		t.Errorf("%d entries, keys %v", x.Len(), x.m.keys)
	}
	expect("as it is run", x.offer(0, out, seen, 0), There)
	expect("a changed payload", x.offer(0, out, append(seen[:50:50], make([]byte, 10)...), 0), There) // zeros, as before
	changed := slices.Clone(seen)
	changed[50]++
	expect("a changed payload", x.offer(0, out, changed, 0), Differs)
	expect("a fragment", x.offer(0, out, slices.Concat(seen[:20], []byte{0x20, 0}, seen[22:]), 0), Odd)

	out, back = frame(3, 4, 10, 20), frame(4, 3, 20, 10)
	expect("another", x.offer(0, out, out, 1), Waits)
	x.Now(1000 + clock.Time(pairTime) + 1)
	expect("too late", x.offer(1, back, back, 1), Waits)
	expect("the first again", x.offer(0, out, out, 1), Began)
	out, back = frame(5, 6, 10, 20), frame(6, 5, 20, 10)
	x.offer(0, out, out, 2)
	expect("no room", x.offer(1, back, back, 2), Full)
	x.Withdraw(&x.a.flows[1])
	if x.Len() != 1 || x.a.flows[1].Any() || x.b.flows[1].Any() || len(x.m.keys) != 2 {
		t.Errorf("%d entries behind a withdrawal, keys %v", x.Len(), x.m.keys)
	}
	x.offer(0, out, out, 2)
	expect("room again", x.offer(1, back, back, 2), Began)
	x.Pause()
	expect("while the graph changes", x.offer(0, out, out, 3), Stops)
	x.Withdraw(&x.a.flows[2])
	if x.Len() != 2 || x.a.flows[2].Any() || len(x.m.keys) != 4 {
		t.Errorf("a function that gets other settings frees entries: %d are left, keys %v", x.Len(), x.m.keys)
	}
	x.Clear(0, x.Used())
	if x.Len() != 0 || len(x.m.keys) != 0 || x.a.flows != [8]Flows{} || x.b.flows != [8]Flows{} {
		t.Error("something is left")
	}
}

// TestWanted: a decision has frames be wanted that answer it, once, and for as long as it waits.
func TestWanted(t *testing.T) {
	x := newBed(t, 2)
	wanted := func(what string, port int, f []byte, want bool) {
		t.Helper()
		var in Frame
		if !x.Parse(f, port, &in) {
			t.Fatal("not plain")
		}
		if got := x.Wanting() && x.Wanted(&in.Key); got != want {
			t.Errorf("%s: %v", what, got)
		}
	}
	out, seen, back, home := frame(1, 2, 10, 20), frame(9, 2, 11, 20), frame(2, 9, 20, 11), frame(2, 1, 20, 10)
	wanted("before all", 1, back, false)
	x.offer(0, out, seen, 0)
	wanted("the same", 0, out, false)
	wanted("an answer to another", 1, frame(2, 8, 20, 11), false)
	wanted("an answer at another port", 0, back, false)
	wanted("an answer", 1, back, true)
	wanted("one more", 1, back, false)
	if o := x.offer(1, back, home, 0); o != Began {
		t.Errorf("an answer: %s", OutcomeNames[o])
	}
	x.offer(0, frame(3, 4, 10, 20), frame(3, 4, 10, 20), 1)
	x.Now(1000 + clock.Time(pairTime) + 1)
	wanted("too late", 1, frame(4, 3, 20, 10), false)
	x.offer(0, frame(3, 4, 10, 20), frame(3, 4, 10, 20), 1)
	x.Pause()
	wanted("while the graph changes", 1, frame(4, 3, 20, 10), false)
}

// TestMany: what a function keeps may have many entries; each can end, in any order, and all are asked.
func TestMany(t *testing.T) {
	x := newBed(t, 4)
	for n := range byte(4) {
		out, back := frame(1, 2+n, 10, 20), frame(2+n, 1, 20, 10)
		x.offer(0, out, out, 0)
		if o := x.offer(1, back, back, 0); o != Began {
			t.Fatal(OutcomeNames[o])
		}
	}
	for i, gone := range []uint32{1, 3, 0, 2} {
		x.m.slots[gone].Last = [2]uint64{500, uint64(i)}
		x.clear(gone)
		// Direction 0 is that of the frame which came last: in at input 1.
		if u := x.a.used[0]; u.Last != [2]clock.Time{1000 + clock.Time(i), 1500} {
			t.Errorf("%v were used", u.Last)
		}
		n := 0
		x.each(&x.a.flows[0], func(uint32, int) bool { n++; return true })
		if n != 3-i {
			t.Errorf("%d are left, want %d", n, 3-i)
		}
	}
	if x.owners[0].n != 0 || x.owners[1].n != 0 {
		t.Errorf("%+v", x.owners)
	}
}

// stater is an owner whose names become others'.
type stater struct {
	owner
	state uint64
}

func (o *stater) State(uint32) uint64 { return o.state }

// TestStates: nothing begins of a decision about what has another state when it is linked.
func TestStates(t *testing.T) {
	x := newBed(t, 2)
	o := &stater{state: 7}
	offer := func(port int, f []byte) Outcome {
		d := Decision{Before: f, After: f, Out: 1 - port, Longest: 1514, Parts: []Part{{Owner: o, In: port, State: 7}}}
		if !x.Parse(f, port, &d.In) {
			t.Fatal("not plain")
		}
		return x.Offer(&d)
	}
	out, back := frame(1, 2, 10, 20), frame(2, 1, 20, 10)
	offer(0, out)
	o.state = 8
	if got := offer(1, back); got != Refused || x.Len() != 0 {
		t.Error(OutcomeNames[got], x.Len())
	}
	o.state = 7
	offer(0, out)
	if got := offer(1, back); got != Began {
		t.Error(OutcomeNames[got])
	}
}

// meterer is an owner that has lent a Meter.
type meterer struct {
	owner
	back int
}

func (o *meterer) Back(uint16, *Meter) { o.back++ }

// TestMeterOfFull: in a full table, an entry takes the place of the one before it of the same owner, which used the same Meter. An entry does not begin with a Meter
// that its function does not have any more.
func TestMeterOfFull(t *testing.T) {
	x := &bed{T: t, m: &memory{slots: make([]Slot, 1), meters: make([]Meter, 3), keys: map[[KeyLen]byte]int{}}}
	x.Table = NewTable(x.m)
	x.Now(1000)
	var m meterer
	n, gen := x.Lend(&m, func(*Meter) {})
	offer := func(port int, f []byte) Outcome {
		d := Decision{Before: f, After: f, Out: 1 - port, Longest: 1514, Parts: []Part{{Owner: &x.a, Ref: 1, In: port, Alone: true}, {Owner: &m, Ref: 1, In: port, Meter: Metered{Number: n, Gen: gen, Size: 46}}}}
		if port == 1 {
			slices.Reverse(d.Parts)
		}
		if !x.Parse(f, port, &d.In) {
			t.Fatal("not plain")
		}
		return x.Offer(&d)
	}
	for k := byte(0); k < 2; k++ {
		offer(0, frame(1+2*k, 2+2*k, 10, 20))
		if o := offer(1, frame(2+2*k, 1+2*k, 20, 10)); k == 0 && o != Began {
			t.Fatal(OutcomeNames[o])
		} else if o == Began && m.back > 0 {
			t.Error("an entry begins with a meter that its function does not have any more")
		}
	}
	if m.back == 0 {
		t.Error("the entry was not replaced")
	}
}
