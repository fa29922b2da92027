package offload

import (
	"hash/maphash"
	"math"
	"sync/atomic"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
)

// Outcome is what has become of a decision.
type Outcome uint8

// Outcomes.
const (
	Began     Outcome = iota // the kernel runs both directions
	Waits                    // the other direction has not been seen yet
	There                    // the kernel runs the flow, and did not run this frame of it
	Partial                  // a function on the way decides nothing about the frame
	Stops                    // entries are not begun now: the graph changes, or somebody watches
	Full                     // there is no room
	Odd                      // the frame that left is not plain
	Differs                  // what was done with the frame is more than the program does
	Unlike                   // the other direction goes another way
	TooMany                  // more functions on the way than an entry has room for, or two that compare numbers
	Refused                  // a function, or the kernel
	NoProgram                // it left by a port that the program cannot send to
	numOutcomes
)

// OutcomeNames are those of the Outcomes.
var OutcomeNames = [numOutcomes]string{
	Began: "began", Waits: "one-direction", There: "there", Partial: "undecided", Stops: "stopped", Full: "full", Odd: "not-plain", Differs: "other-change",
	Unlike: "other-way", TooMany: "too-many-functions", Refused: "refused", NoProgram: "no-port",
}

// Decision is what functions have decided about a frame.
type Decision struct {
	Before  []byte // the frame as it came in
	In      Frame  // by Parse
	After   []byte // as it leaves
	Out     int    // the port
	Longest int    // that the port sends
	Parts   []Part // Longest as long as Before would be
	Path    uint16 // its counters
}

const (
	maxParts   = 4
	maxOwners  = 127
	candidates = 1 << 14
	// pairTime is how long after one direction the other one may come.
	pairTime = clock.Duration(1e9)
	// aged is how long an entry stays that runs nothing.
	aged = clock.Duration(30e9)
)

// candidate is a decision that waits for the other direction.
type candidate struct {
	used       bool
	key, other Key // of its frames, and of the answers
	at         clock.Time
	dir        Dir
	rest       Rest
	head       int16
	quiet      [2]time.Duration
	follows    int // the part that follows numbers; negative: none
	n          int
	parts      [maxParts]stake
}

// want is a key, hashed, and when a frame of the other direction was decided; hash 0: none.
type want struct {
	hash uint64
	at   clock.Time
}

// stake is what is kept of a Part.
type stake struct {
	Owner          Owner
	State          uint64
	Ref            uint32
	In             uint8
	Alone, Windows bool
}

// record is what the process keeps of a slot.
type record struct {
	keys  [2]Key
	parts [maxParts]struct{ ref, next uint32 }
}

// ownerRef is an owner, and how many parts it has.
type ownerRef struct {
	Owner
	n int
}

func (r *record) inUse() bool { return r.keys[0].Proto != 0 }

// Table has the entries.
type Table struct {
	framer
	slots   []Slot
	records []record
	free    []uint32
	used    uint32 // slots that were ever used
	live    int

	owners  []ownerRef
	waiting []candidate
	wanted  []want     // by the keys of frames that would answer those that wait
	wants   clock.Time // when the last one was added, plus 1; 0: none was
	seed    maphash.Seed
	paused  bool
	ahead   int64 // the graph's time less the kernel's
	now     clock.Time
	hand    uint32

	outcomes [numOutcomes]uint64
	ended    uint64
}

// NewTable makes one with no entries.
func NewTable(k Kernel) *Table {
	return &Table{framer: framer{k: k, control: k.Control(), tunnels: make([]*Tunnel, 1), tunnelOf: map[tunnelKey]uint16{}},
		ahead: math.MinInt64 / 2, slots: k.Slots(), records: make([]record, 0, len(k.Slots())), waiting: make([]candidate, candidates), wanted: make([]want, candidates), seed: maphash.MakeSeed()}
}

// Used is how many slots have ever been used.
func (t *Table) Used() int { return int(t.used) }

// Len is how many entries there are.
func (t *Table) Len() int { return t.live }

// Room is how many there may be.
func (t *Table) Room() int { return len(t.slots) }

// Ended is how many entries have ended.
func (t *Table) Ended() uint64 { return t.ended }

// Outcomes are what has become of decisions, by name.
func (t *Table) Outcomes() map[string]uint64 {
	m := map[string]uint64{}
	for o, n := range t.outcomes {
		m[OutcomeNames[o]] = n
	}
	return m
}

// Count counts an outcome that the Table does not see.
func (t *Table) Count(o Outcome) { t.outcomes[o]++ }

// Offer takes a decision.
func (t *Table) Offer(d *Decision) Outcome {
	o := t.offer(d)
	t.outcomes[o]++
	return o
}

func (t *Table) offer(d *Decision) Outcome {
	if t.paused {
		return Stops
	}
	for i := range d.Parts {
		if x := d.Parts[i].Tunnel; x != nil {
			if !t.addTunnel(x) {
				return Full
			}
		}
	}
	var in, out Frame
	if !t.Parse(d.Before, int(d.In.Port), &in) || !t.parse(d.After, 0, &out, true) {
		return Odd
	}
	if in.Tunnel != d.In.Tunnel {
		return Odd // the tunnel was not known yet
	}
	var c candidate
	change, ok := t.difference(d.Before, d.After, &in, &out)
	if !ok || string(t.apply(&change, d.Before, &in)) != string(d.After) {
		return Differs
	}
	if !c.fill(d, &change) {
		return TooMany
	}
	c.key, c.other, c.at = in.Key, out.reversed(d.Out), t.now
	c.dir.Key = c.key.Bytes()
	if t.there(&c) {
		return There
	}
	w := &t.waiting[c.other.hash(t.seed)%candidates]
	if !w.used || w.key != c.other || t.now.Sub(w.at) > pairTime {
		t.wait(&c)
		return Waits
	}
	if w.other != c.key || !w.matches(&c) {
		t.wait(&c)
		return Unlike
	}
	o := t.begin(&c, w)
	w.used = false
	return o
}

// wait has a decision wait for one about the other direction.
func (t *Table) wait(c *candidate) {
	t.waiting[c.key.hash(t.seed)%candidates] = *c
	h := c.other.hash(t.seed)
	t.wanted[h%candidates] = want{h, c.at}
	t.wants = c.at + 1
}

// Wanting reports whether Wanted may hold of some frame.
func (t *Table) Wanting() bool { return t.wants != 0 && t.now.Sub(t.wants) <= pairTime }

// Wanted reports, once, whether a decision about frames of a key would begin an entry: one about the other direction waits for it. It may be wrong.
func (t *Table) Wanted(k *Key) bool {
	h := k.hash(t.seed)
	w := &t.wanted[h%candidates]
	is := w.hash == h && t.now.Sub(w.at) <= pairTime
	if is {
		w.hash = 0
	}
	return is
}

// there reports whether the kernel runs frames like this one, and has them run as they are to be. An entry that does something else ends: the flow has changed.
func (t *Table) there(c *candidate) (is bool) {
	if c.n == 0 {
		return false
	}
	p := &c.parts[0]
	f := p.Owner.Flows(p.Ref)
	t.each(f, p.Owner, p.Ref, func(i uint32) bool {
		for d, k := range t.records[i].keys {
			if k != c.key {
				continue
			}
			s := &t.slots[i]
			if is = s.Dirs[d] == c.dir && s.Rests[d] == c.rest && s.Heads[d] == c.head && atomic.LoadUint64(&s.Claim)&0xFFFFFFFF == Live; !is {
				t.end(i)
			}
			return false
		}
		return true
	})
	return is
}

// fill takes over what a decision says.
func (c *candidate) fill(d *Decision, x *Change) bool {
	longest := d.Longest + x.Head
	if x.Ops&OpTagged != 0 && x.Ops&OpInto == 0 {
		longest += hdr.VLANLen // a port sends full frames with a tag
	}
	c.used, c.follows = true, -1
	for i := range d.Parts {
		p := &d.Parts[i]
		if p.Longest > 0 {
			longest = min(longest, p.Longest)
		}
		if p.Quiet > 0 && (c.quiet[0] == 0 || p.Quiet < c.quiet[0]) {
			c.quiet[0] = p.Quiet
		}
		if p.OwnQuiet > 0 && (c.quiet[1] == 0 || p.OwnQuiet < c.quiet[1]) {
			c.quiet[1] = p.OwnQuiet
		}
		if p.Owner == nil {
			continue
		}
		if c.n == maxParts || p.Follow && c.follows >= 0 {
			return false
		}
		if p.Follow {
			c.follows = c.n
		}
		c.parts[c.n] = stake{p.Owner, p.State, p.Ref, uint8(p.In), p.Alone, p.Windows}
		c.n++
	}
	c.rest, c.head = Rest{Tunnel: x.Tunnel, VLAN: x.VLAN}, int16(x.Head)
	c.dir = Dir{Out: uint8(d.Out), Path: d.Path, Ops: x.Ops, InMAC: x.InMAC, OutMAC: x.OutMAC, Src: x.Src, Dst: x.Dst,
		IPDelta: x.IPDelta, L4Delta: x.L4Delta, Longest: uint16(max(0, min(longest, 0xFFFF)))}
	be.PutUint16(c.dir.Ports[:], x.SrcPort)
	be.PutUint16(c.dir.Ports[2:], x.DstPort)
	be.PutUint16(c.rest.Port[:], x.OuterPort)
	return true
}

// matches reports whether the functions take both directions for the same.
func (c *candidate) matches(o *candidate) bool {
	if c.n != o.n || (c.follows >= 0) != (o.follows >= 0) {
		return false
	}
	for i := range c.n {
		if p, q := &c.parts[i], &o.parts[c.n-1-i]; p.Owner != q.Owner || p.Ref != q.Ref || p.State != q.State || p.In == q.In {
			return false
		}
	}
	return true
}

// hash is the key's, and not 0.
func (k *Key) hash(seed maphash.Seed) uint64 {
	b := k.Bytes()
	return maphash.Bytes(seed, b[:]) | candidates
}

// begin makes an entry of two directions.
func (t *Table) begin(a, b *candidate) Outcome {
	var owners [maxParts]uint8
	for i := range a.n {
		p := &a.parts[i]
		if !p.Owner.Decides(p.Ref) {
			t.back(owners)
			return Refused
		}
		t.replace(p.Owner.Flows(p.Ref), p, a, b)
		n := t.number(p.Owner)
		if n == 0 {
			t.back(owners)
			return TooMany
		}
		owners[i] = n | p.In<<7
	}
	i, ok := t.take()
	if !ok {
		t.back(owners)
		return Full
	}
	s, r := &t.slots[i], &t.records[i]
	*r = record{keys: [2]Key{a.key, b.key}}
	s.Owners, s.Seen = owners, 0
	turn := s.Claim>>32 + 1
	atomic.StoreUint64(&s.Claim, turn<<32|Gone)
	s.Flags, s.Quiet = 0, uint64(least(a.quiet[0], b.quiet[0]))
	s.Quiets = [2]uint64{uint64(a.quiet[1]), uint64(b.quiet[1])}
	s.Dirs, s.Rests, s.Heads = [2]Dir{a.dir, b.dir}, [2]Rest{a.rest, b.rest}, [2]int16{a.head, b.head}
	s.Last[0], s.Last[1] = uint64(int64(a.at)-t.ahead), uint64(int64(b.at)-t.ahead)
	if a.follows >= 0 {
		p := &a.parts[a.follows]
		if s.Flags = FlagFollow; p.Windows {
			s.Flags |= FlagWindows
		}
		p.Owner.(Windower).Sides(p.Ref, int(p.In), &s.Sides)
	}
	atomic.StoreUint64(&s.Claim, turn<<32|Live)
	for d := range r.keys {
		if t.k.Put(int(i), d) != nil {
			t.stop(i)
			t.k.Delete(int(i), 0)
			t.back(owners)
			*r = record{}
			t.free = append(t.free, i)
			return Refused
		}
	}
	t.live++
	for n := range a.n {
		p := &a.parts[n]
		f := p.Owner.Flows(p.Ref)
		r.parts[n].ref, r.parts[n].next = p.Ref, f.head
		f.head = i + 1
	}
	return Began
}

func least(a, b time.Duration) time.Duration {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}

// replace ends the entries of the same frames.
func (t *Table) replace(f *Flows, p *stake, a, b *candidate) {
	for {
		found := false
		t.each(f, p.Owner, p.Ref, func(i uint32) bool {
			r := &t.records[i]
			found = p.Alone || r.keys[0] == a.key || r.keys[1] == a.key || r.keys[0] == b.key || r.keys[1] == b.key
			if found {
				t.end(i)
			}
			return !found
		})
		if !found {
			return
		}
	}
}

// number is an owner's, plus 1, which has a part more then; 0: there are too many.
func (t *Table) number(o Owner) uint8 {
	free := -1
	for i, x := range t.owners {
		if x.Owner == o {
			t.owners[i].n++
			return uint8(i + 1)
		}
		if x.n == 0 {
			free = i
		}
	}
	if free < 0 {
		if len(t.owners) >= maxOwners-1 {
			return 0
		}
		free, t.owners = len(t.owners), append(t.owners, ownerRef{})
	}
	t.owners[free] = ownerRef{o, 1}
	return uint8(free + 1)
}

// back takes back what number has counted.
func (t *Table) back(owners [maxParts]uint8) {
	for _, o := range owners {
		if o &= 0x7F; o != 0 {
			t.owners[o-1].n--
		}
	}
}

// take is a slot that is nobody's.
func (t *Table) take() (uint32, bool) {
	if n := len(t.free); n > 0 {
		i := t.free[n-1]
		t.free = t.free[:n-1]
		return i, true
	}
	if int(t.used) == len(t.slots) {
		return 0, false
	}
	t.used++
	t.records = append(t.records, record{})
	return t.used - 1, true
}

// owner is that of a part, and its input of direction 0; nil: there is no such part.
func (t *Table) owner(i uint32, n int) (Owner, int) {
	o := t.slots[i].Owners[n]
	if o&0x7F == 0 {
		return nil, 0
	}
	return t.owners[o&0x7F-1].Owner, int(o >> 7)
}

// each calls do with the entries of what an owner keeps, until it returns false. It may end the one that it is called with.
func (t *Table) each(f *Flows, o Owner, ref uint32, do func(i uint32) bool) {
	for at := f.head; at != 0; {
		i := at - 1
		n := t.part(i, o, ref)
		at = t.records[i].parts[n].next
		if !do(i) {
			return
		}
	}
}

// part is which of an entry's parts is an owner's.
func (t *Table) part(i uint32, o Owner, ref uint32) int {
	r := &t.records[i]
	for n := range r.parts {
		if x, _ := t.owner(i, n); x == o && r.parts[n].ref == ref {
			return n
		}
	}
	panic("offload: an entry has no part of who has it")
}

// stop has the kernel run an entry no more. When it returns nobody runs it.
func (t *Table) stop(i uint32) { t.claim(i, Gone) }

// claim takes an entry from the kernel; false: the kernel has not run it any more.
func (t *Table) claim(i uint32, as uint64) bool {
	s := &t.slots[i]
	turn := atomic.LoadUint64(&s.Claim) >> 32 << 32
	// A frame has it for some hundred nanoseconds, and longer only when the processor is taken from it.
	for n := 1; ; n++ {
		if n%(1<<16) == 0 {
			time.Sleep(50 * time.Microsecond)
		}
		if atomic.CompareAndSwapUint64(&s.Claim, turn|Live, turn|as) {
			return true
		}
		switch atomic.LoadUint64(&s.Claim) {
		case turn | Busy, turn | Live:
		case turn | Paused: // by this goroutine
			atomic.StoreUint64(&s.Claim, turn|as)
			return true
		default:
			return false
		}
	}
}

// time is the graph's of one of the kernel.
func (t *Table) time(kernel uint64) clock.Time { return clock.Time(int64(kernel) + t.ahead) }

// usage is what an entry has done, as the owner of its part n sees it.
func (t *Table) usage(i uint32, n int) (o Owner, u Usage) {
	s := &t.slots[i]
	o, in := t.owner(i, n)
	for d := range s.Dirs {
		u.Last[in^d] = t.time(atomic.LoadUint64(&s.Last[d]))
	}
	return o, u
}

// tell tells all owners of an entry what it has done. Nobody runs it, unless running.
func (t *Table) tell(i uint32, running bool) {
	s, r := &t.slots[i], &t.records[i]
	for n := range r.parts {
		o, u := t.usage(i, n)
		if o == nil {
			continue
		}
		if _, is := o.(Windower); is && s.Flags&FlagFollow != 0 && !running {
			_, in := t.owner(i, n)
			u.Sides = &[2]Side{s.Sides[in], s.Sides[1-in]}
		}
		o.Used(r.parts[n].ref, &u)
	}
}

// end ends an entry, and tells its owners what it has done.
func (t *Table) end(i uint32) {
	t.stop(i)
	if t.slots[i].Flags&FlagTold == 0 {
		t.tell(i, false)
	}
	r := &t.records[i]
	for n := range r.parts {
		if o, _ := t.owner(i, n); o != nil {
			t.unlink(i, n, o)
		}
	}
	t.back(t.slots[i].Owners)
	for d := range r.keys {
		t.k.Delete(int(i), d)
	}
	*r = record{}
	t.free = append(t.free, i)
	t.live--
	t.ended++
}

// unlink takes part n of an entry out of its owner's Flows.
func (t *Table) unlink(i uint32, n int, o Owner) {
	ref, next := t.records[i].parts[n].ref, t.records[i].parts[n].next
	f := o.Flows(ref)
	if f.head == i+1 {
		f.head = next
		return
	}
	for at := f.head; at != 0; {
		p := &t.records[at-1].parts[t.part(at-1, o, ref)]
		if p.next == i+1 {
			p.next = next
			return
		}
		at = p.next
	}
}

// Ask has Used be called with what the kernel has done until now for what ref names.
func (t *Table) Ask(o Owner, ref uint32, f *Flows) {
	t.each(f, o, ref, func(i uint32) bool {
		if t.slots[i].Flags&FlagTold == 0 {
			_, u := t.usage(i, t.part(i, o, ref))
			o.Used(ref, &u)
		}
		return true
	})
}

// Withdraw ends all entries that Flows have: the kernel runs none of its frames when Withdraw returns, and Used was called with all that it has done.
func (t *Table) Withdraw(f *Flows) {
	for f.head != 0 {
		t.end(f.head - 1)
	}
}

// Hold takes the entry of what ref names, which has one, from the kernel for as long as the function looks at a frame, and calls Used with what it has done. It is
// false when there is no entry any more.
func (t *Table) Hold(f *Flows) bool {
	if f.head == 0 {
		return false
	}
	i := f.head - 1
	if !t.claim(i, Paused) {
		t.end(i)
		return false
	}
	t.tell(i, false)
	return true
}

// Release gives back what Hold has taken, with the numbers that a Windower has now; without keep the entry ends.
func (t *Table) Release(o Owner, ref uint32, f *Flows, keep bool) {
	i := f.head - 1
	s := &t.slots[i]
	if s.Flags&FlagFollow != 0 {
		_, in := t.owner(i, t.part(i, o, ref))
		o.(Windower).Sides(ref, in, &s.Sides)
	}
	if !keep {
		t.end(i)
		return
	}
	atomic.StoreUint64(&s.Claim, s.Claim>>32<<32|Live)
}

// Pause begins no entry until Go. Settle ends those that are there.
func (t *Table) Pause() {
	t.paused = true
	clear(t.waiting)
	clear(t.wanted)
	t.wants = 0
	t.forget()
}

// Settle has the kernel run n entries no more, from place from on, tells their owners what was done, and returns the place to go on from; 0: that was all. It is
// called behind Pause, and before functions change what they do, as they take times over by what they have decided.
func (t *Table) Settle(from uint32, n int) uint32 {
	for ; n > 0 && from < t.used; n, from = n-1, from+1 {
		if s := &t.slots[from]; t.records[from].inUse() && s.Flags&FlagTold == 0 {
			t.stop(from)
			t.tell(from, false)
			s.Flags |= FlagTold
		}
	}
	if from >= t.used {
		return 0
	}
	return from
}

// Go has entries begin again.
func (t *Table) Go() { t.paused = false }

// Clear ends n entries, from place from on, and returns the place to go on from; 0: none is left.
func (t *Table) Clear(from uint32, n int) uint32 {
	for ; n > 0 && from < t.used; n, from = n-1, from+1 {
		if t.records[from].inUse() {
			t.end(from)
		}
	}
	if from >= t.used {
		return 0
	}
	return from
}

// All ends all entries.
func (t *Table) All() { t.Clear(0, int(t.used)) }

// Now tells the time.
func (t *Table) Now(now clock.Time) {
	t.now = now
	// Of two looks that one is right between whose clocks less time has passed.
	if ahead := int64(now) - t.k.Clock(); ahead > t.ahead || t.ahead-ahead > int64(time.Second) {
		t.ahead = ahead
	}
}

// Breath tells the time alone.
func (t *Table) Breath(now clock.Time) { t.now = now }

// Look looks at n slots: it ends the entries that run no more, and tells owners of what others have done.
func (t *Table) Look(n int) {
	for ; n > 0 && t.used > 0; n-- {
		if t.hand >= t.used {
			t.hand = 0
			return
		}
		t.look(t.hand)
		t.hand++
	}
}

func (t *Table) look(i uint32) {
	s, r := &t.slots[i], &t.records[i]
	if !r.inUse() {
		return
	}
	last := [2]clock.Time{t.time(atomic.LoadUint64(&s.Last[0])), t.time(atomic.LoadUint64(&s.Last[1]))}
	newest := max(last[0], last[1])
	over := t.now.Sub(newest) > aged || s.Quiet > 0 && t.now.Sub(newest) > clock.Duration(s.Quiet)
	for d := range last {
		over = over || s.Quiets[d] > 0 && t.now.Sub(last[d]) > clock.Duration(s.Quiets[d])
	}
	if over || atomic.LoadUint64(&s.Claim)&0xFFFFFFFF == Gone {
		t.end(i)
		return
	}
	if n := uint32(atomic.LoadUint64(&s.Last[0]) + atomic.LoadUint64(&s.Last[1])); n != s.Seen {
		s.Seen = n
		t.tell(i, true)
	}
}
