package offload

import (
	"hash/maphash"
	"math"
	"sync/atomic"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/turn"
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
	Taken                    // another worker had the table
	numOutcomes
)

// OutcomeNames are those of the Outcomes.
var OutcomeNames = [numOutcomes]string{
	Began: "began", Waits: "one-direction", There: "there", Partial: "undecided", Stops: "stopped", Full: "full", Odd: "not-plain", Differs: "other-change",
	Unlike: "other-way", TooMany: "too-many-functions", Refused: "refused", NoProgram: "no-port", Taken: "other-worker",
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
	maxParts   = 1 << partBits
	maxOwners  = 250
	candidates = 1 << 14
	// pairTime is how long after one direction the other one may come.
	pairTime = clock.Duration(1e9)
	// tries is how often a worker looks whether another one still has the table, before it goes on without.
	tries = 256
	// aged is how long an entry stays that runs nothing.
	aged = clock.Duration(30e9)
)

// candidate is a decision that waits for the other direction.
type candidate struct {
	used       bool
	key, other Key // of its frames, and of the answers
	at         clock.Time
	dir        Dir
	meter      Metered
	rest       Rest
	head       int16
	quiet      [2]time.Duration
	follows    int // the part that follows numbers; negative: none
	n          int
	parts      [maxParts]stake
}

// want is a key, hashed, and when a frame of the other direction was decided; hash 0: none. Workers read it that do not have the table.
type want struct {
	hash atomic.Uint64
	at   atomic.Int64
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
	inUse  bool
	follow int8        // the part whose owner's the numbers of TCP segments in the slot are, plus 1; 0: nobody's
	queued atomic.Bool // its slot is among those that have ended
	after  uint32      // the next one there, plus 1
	seen   uint32      // of its times, at the last look
	parts  [maxParts]part
}

// part is what an owner has of an entry. It is the owner's alone while it is linked: who has the turn at the owner.
type part struct {
	ref    uint32
	next   place // in the owner's Flows
	owner  uint8 // its number, plus 1; 0: there is no such part
	in     uint8 // the function's input of direction 0
	linked bool  // in the owner's Flows
	told   bool  // the owner knows what was done, and nothing more is
}

// place is where a part is: its entry, plus 1, and which one it is there; 0: nowhere.
type place uint32

const partBits = 2

func placeOf(i uint32, n int) place { return place((i+1)<<partBits | uint32(n)) }

func (p place) entry() uint32 { return uint32(p)>>partBits - 1 }
func (p place) part() int     { return int(p & (1<<partBits - 1)) }

// ownerRef is an owner, and how many parts it has.
type ownerRef struct {
	Owner
	n int
}

// Table has the entries.
//
// Where several workers have it (Share), each owner is one that they take turns at (Sharer). Whoever has the turn at an owner holds, asks and ends by what the owner
// has linked, and needs nothing else: an entry ends for all by its word in the slot. Others of its owners unlink it when they come across it, or the worker does
// that tidies up. Entries are begun, looked at and freed by who has the Table's own turn. Nobody who has an owner's turn waits for the Table's, or for another owner's.
type Table struct {
	framer
	entries
	now    atomic.Int64
	wanted []want       // by the keys of frames that would answer those that wait
	wants  atomic.Int64 // when the last one was added, plus 1; 0: none was
	seed   maphash.Seed
	nobody nobody
	// Of who has the turn:
	waiting []candidate
	paused  bool
	hand    uint32

	outcomes [numOutcomes]atomic.Uint64
}

// entries are the slots of a Table, those whose entries have ended among them, and what owners have of them.
type entries struct {
	kernel  Kernel
	meters  meters
	slots   []Slot
	sixes   []Addrs
	records []record
	shared  bool
	ended   atomic.Uint32 // slots that have ended and are not free yet: the last one, plus 1
	ahead   atomic.Int64  // the graph's time less the kernel's
	used    atomic.Uint32 // slots that were ever used
	live    atomic.Int32
	freed   atomic.Uint64

	turn   turn.Turn // of what follows, and of the Table's
	free   []uint32
	owners [maxOwners]ownerRef
	owned  int // of them, that there ever were at the same time
}

// NewTable makes one with no entries.
func NewTable(k Kernel) *Table {
	t := &Table{framer: framer{k: k, control: k.Control()}, entries: entries{kernel: k, meters: meters{mem: k.Meters()}, slots: k.Slots(), sixes: k.Sixes(), records: make([]record, len(k.Slots()))},
		waiting: make([]candidate, candidates), wanted: make([]want, candidates), seed: maphash.MakeSeed()}
	t.ahead.Store(math.MinInt64 / 2)
	t.nobody.flows = make([]Flows, max(1, len(t.slots)))
	return t
}

// Share says that several workers have the Table. Nobody has it yet.
func (t *Table) Share() { t.shared = true }

// try takes the Table's turn, if that is free soon.
func (t *entries) try() bool {
	for n := 0; t.shared && !t.turn.Try(); n++ {
		if n == tries {
			return false
		}
	}
	return true
}

// take takes it. The caller is not a worker on its way with frames.
func (t *entries) take() {
	if t.shared {
		t.turn.Take()
	}
}

func (t *entries) give() {
	if t.shared {
		t.turn.Give()
	}
}

// turnOf takes the turn at an owner.
func (t *entries) turnOf(o Owner) {
	if t.shared {
		o.(Sharer).Take()
	}
}

func (t *entries) giveOf(o Owner) {
	if t.shared {
		o.(Sharer).Give()
	}
}

// Used is how many slots have ever been used.
func (t *entries) Used() int { return int(t.used.Load()) }

// Len is how many entries there are.
func (t *entries) Len() int { return int(t.live.Load()) }

// Room is how many there may be.
func (t *entries) Room() int { return len(t.slots) }

// Ended is how many entries have ended.
func (t *entries) Ended() uint64 { return t.freed.Load() }

// Outcomes are what has become of decisions, by name.
func (t *Table) Outcomes() map[string]uint64 {
	m := map[string]uint64{}
	for o := range t.outcomes {
		m[OutcomeNames[o]] = t.outcomes[o].Load()
	}
	return m
}

// Count counts an outcome that the Table does not see.
func (t *Table) Count(o Outcome) { t.outcomes[o].Add(1) }

// Time is what Now, or Breath, has told last.
func (t *Table) Time() clock.Time { return clock.Time(t.now.Load()) }

// Offer takes a decision.
func (t *Table) Offer(d *Decision) Outcome {
	o := t.offer(d)
	t.outcomes[o].Add(1)
	return o
}

func (t *Table) offer(d *Decision) Outcome {
	for i := range d.Parts {
		if o := d.Parts[i].Owner; o != nil && t.shared {
			if _, ok := o.(Sharer); !ok {
				return Refused
			}
		}
		if x := d.Parts[i].Tunnel; x != nil {
			if o := t.tunnelOf(x); o != There {
				return o
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
	m, ops, ok := metered(d.Parts)
	if !ok {
		return TooMany
	}
	before := d.Before
	if m.Number != 0 {
		if before, ok = m.marked(before, &in); !ok {
			return Differs
		}
	}
	c := candidate{meter: m}
	change, ok := t.difference(d.Before, d.After, &in, &out)
	if !ok || string(t.apply(&change, before, &in)) != string(d.After) {
		return Differs
	}
	change.Ops |= ops
	if !c.fill(d, &change) {
		return TooMany
	}
	c.key, c.other, c.at = in.Key, out.reversed(d.Out), t.Time()
	c.dir.Key = c.key.Bytes()
	if c.n == 0 {
		t.nobodys(&c)
	}
	if !t.try() {
		return Taken
	}
	defer t.give()
	return t.pair(&c)
}

// tunnelOf has a tunnel be known: There.
func (t *Table) tunnelOf(x *Tunnel) Outcome {
	if is, known := t.known(x); known {
		if is {
			return There
		}
		return Full
	}
	if !t.try() {
		return Taken
	}
	defer t.give()
	switch {
	case t.paused:
		return Stops
	case !t.addTunnel(x):
		return Full
	}
	return There
}

// pair begins an entry with a decision, or has it wait. The caller has the Table's turn.
func (t *Table) pair(c *candidate) Outcome {
	t.tidy(fewTidy)
	if t.paused {
		return Stops
	}
	if t.there(c) {
		return There
	}
	w := &t.waiting[c.other.hash(t.seed)%candidates]
	if !w.used || w.key != c.other || c.at.Sub(w.at) > pairTime {
		t.wait(c)
		return Waits
	}
	if w.other != c.key || !w.matches(c) {
		t.wait(c)
		return Unlike
	}
	o := t.begin(c, w)
	w.used = false
	return o
}

// nobody is the Owner of entries that no function remembers, so that a flow of theirs has one entry, too. A ref is a hash of the keys of both directions.
type nobody struct {
	flows []Flows
	turn  turn.Turn
}

// Decides implements Owner, and so do Flows and Used.
func (*nobody) Decides(uint32) bool       { return true }
func (o *nobody) Flows(ref uint32) *Flows { return &o.flows[ref] }
func (*nobody) Used(ref uint32, u *Usage) {}

// Take implements Sharer, and so do Give and State.
func (o *nobody) Take()             { o.turn.Take() }
func (o *nobody) Give()             { o.turn.Give() }
func (*nobody) State(uint32) uint64 { return 0 }

// nobodys makes a decision without a function's part nobody's.
func (t *Table) nobodys(c *candidate) {
	a, b := c.key.hash(t.seed), c.other.hash(t.seed)
	in := uint8(0)
	if a > b {
		in = 1
	}
	c.parts[0] = stake{Owner: &t.nobody, Ref: uint32((a + b) % uint64(len(t.nobody.flows))), In: in}
	c.n = 1
}

// wait has a decision wait for one about the other direction.
func (t *Table) wait(c *candidate) {
	t.waiting[c.key.hash(t.seed)%candidates] = *c
	h := c.other.hash(t.seed)
	w := &t.wanted[h%candidates]
	w.at.Store(int64(c.at))
	w.hash.Store(h)
	t.wants.Store(int64(c.at) + 1)
}

// Wanting reports whether Wanted may hold of some frame.
func (t *Table) Wanting() bool {
	at := t.wants.Load()
	return at != 0 && t.Time().Sub(clock.Time(at)) <= pairTime
}

// Wanted reports, once, whether a decision about frames of a key would begin an entry: one about the other direction waits for it. It may be wrong.
func (t *Table) Wanted(k *Key) bool {
	h := k.hash(t.seed)
	w := &t.wanted[h%candidates]
	if w.hash.Load() != h || t.Time().Sub(clock.Time(w.at.Load())) > pairTime {
		return false
	}
	w.hash.Store(0)
	return true
}

// there reports whether the kernel runs frames like this one, and has them run as they are to be. An entry that does something else ends: the flow has changed.
func (t *Table) there(c *candidate) (is bool) {
	p := &c.parts[0]
	t.turnOf(p.Owner)
	defer t.giveOf(p.Owner)
	t.each(p.Owner.Flows(p.Ref), func(i uint32, n int) bool {
		s := &t.slots[i]
		for d := range s.Dirs {
			if s.Dirs[d].Key != c.dir.Key || c.key.six() && t.sixes[i] != [2]*Key{&c.key, &c.other}[d].addrs() {
				continue
			}
			if is = s.Dirs[d] == c.dir && s.Rests[d] == c.rest && s.Heads[d] == c.head && s.Meters[d] == c.meter.Number && atomic.LoadUint64(&s.Claim)&0xFFFFFFFF != Gone; !is {
				t.finish(i, n)
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

// begin makes an entry of two directions. The kernel runs it when all owners have linked it: until then each of them may end it.
func (t *Table) begin(a, b *candidate) Outcome {
	var numbers [maxParts]uint8
	back := func() {
		for _, n := range numbers {
			t.back(n)
		}
	}
	for i := range a.n {
		if numbers[i] = t.number(a.parts[i].Owner); numbers[i] == 0 {
			back()
			return TooMany
		}
	}
	if !t.holds(&a.meter) || !t.holds(&b.meter) {
		back()
		return Refused
	}
	i, ok := t.slot()
	if !ok {
		t.replaceAll(a, b)
		if i, ok = t.slot(); !ok {
			back()
			return Full
		}
	}
	s, r := &t.slots[i], &t.records[i]
	*r = record{inUse: true, follow: int8(a.follows + 1)}
	for n := range a.n {
		r.parts[n] = part{ref: a.parts[n].Ref, owner: numbers[n], in: a.parts[n].In}
	}
	turn := s.Claim>>32 + 1
	atomic.StoreUint64(&s.Claim, turn<<32|Born)
	s.Flags, s.Quiet = 0, uint64(least(a.quiet[0], b.quiet[0]))
	s.Quiets = [2]uint64{uint64(a.quiet[1]), uint64(b.quiet[1])}
	s.Dirs, s.Rests, s.Heads = [2]Dir{a.dir, b.dir}, [2]Rest{a.rest, b.rest}, [2]int16{a.head, b.head}
	if a.key.six() {
		s.Flags, t.sixes[i] = FlagSix, a.key.addrs()
	}
	s.Last[0], s.Last[1] = uint64(int64(a.at)-t.ahead.Load()), uint64(int64(b.at)-t.ahead.Load())
	if s.Meters = [2]uint16{a.meter.Number, b.meter.Number}; s.Meters != [2]uint16{} {
		s.Flags |= FlagMeter
	}
	for _, n := range s.Meters {
		t.meters.refer(n, 1)
	}
	t.live.Add(1)
	if t.k.Put(int(i), 0) != nil || t.k.Put(int(i), 1) != nil || !t.linkAll(i, a, b) {
		t.stop(i)
		t.tidy(fewTidy)
		return Refused
	}
	return Began
}

// linkAll has all owners link an entry, the one that follows numbers last, and the kernel run it; false: an owner does not decide this any more.
func (t *Table) linkAll(i uint32, a, b *candidate) bool {
	last := max(0, a.follows)
	for n := range a.n {
		if n != last && !t.link(i, n, a, b, false) {
			return false
		}
	}
	return t.link(i, last, a, b, true)
}

// starts has the kernel run an entry that is born.
func (t *entries) starts(i uint32) bool {
	c := &t.slots[i].Claim
	turn := atomic.LoadUint64(c) >> 32 << 32
	return atomic.CompareAndSwapUint64(c, turn|Born, turn|Live)
}

// link has an owner link an entry; with last, the kernel runs it then.
func (t *Table) link(i uint32, n int, a, b *candidate, last bool) bool {
	p := &a.parts[n]
	t.turnOf(p.Owner)
	defer t.giveOf(p.Owner)
	x, is := p.Owner.(Stater)
	if !p.Owner.Decides(p.Ref) || is && x.State(p.Ref) != p.State {
		return false
	}
	f := p.Owner.Flows(p.Ref)
	t.replace(f, p, a, b)
	r, s := &t.records[i].parts[n], &t.slots[i]
	r.next, r.linked, f.head = f.head, true, placeOf(i, n)
	if n == a.follows {
		if s.Flags |= FlagFollow; p.Windows {
			s.Flags |= FlagWindows
		}
		p.Owner.(Windower).Sides(p.Ref, int(p.In), &s.Sides)
	}
	return !last || t.starts(i)
}

func least(a, b time.Duration) time.Duration {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}

// replace ends the entries of the same frames, for an owner.
func (t *Table) replace(f *Flows, p *stake, a, b *candidate) {
	for {
		found := false
		t.each(f, func(i uint32, n int) bool {
			d := &t.slots[i].Dirs
			found = p.Alone || d[0].Key == a.dir.Key || d[1].Key == a.dir.Key || d[0].Key == b.dir.Key || d[1].Key == b.dir.Key
			if found {
				t.finish(i, n)
			}
			return !found
		})
		if !found {
			return
		}
	}
}

// replaceAll ends them for all owners, and frees their slots.
func (t *Table) replaceAll(a, b *candidate) {
	for n := range a.n {
		p := &a.parts[n]
		t.turnOf(p.Owner)
		t.replace(p.Owner.Flows(p.Ref), p, a, b)
		t.giveOf(p.Owner)
	}
	t.tidy(fewTidy)
}

// number is an owner's, plus 1, which has a part more then; 0: there are too many.
func (t *entries) number(o Owner) uint8 {
	free := t.owned
	for i := range t.owned {
		if x := &t.owners[i]; x.Owner == o {
			x.n++
			return uint8(i + 1)
		} else if x.n == 0 {
			free = i
		}
	}
	if free == maxOwners {
		return 0
	}
	t.owned = max(t.owned, free+1)
	t.owners[free] = ownerRef{o, 1}
	return uint8(free + 1)
}

// back takes back what number has counted.
func (t *entries) back(number uint8) {
	if number != 0 {
		t.owners[number-1].n--
	}
}

// slot is one that is nobody's.
func (t *entries) slot() (uint32, bool) {
	if n := len(t.free); n > 0 {
		i := t.free[n-1]
		t.free = t.free[:n-1]
		return i, true
	}
	i := t.used.Load()
	if int(i) == len(t.slots) {
		return 0, false
	}
	t.used.Store(i + 1)
	return i, true
}

// owner is that of a part; nil: there is no such part.
func (t *entries) owner(p *part) Owner {
	if p.owner == 0 {
		return nil
	}
	return t.owners[p.owner-1].Owner
}

// each calls do with the entries that Flows have, and the part of each that is the owner's, until it returns false. It may end the one that it is called with.
func (t *entries) each(f *Flows, do func(i uint32, n int) bool) {
	for at := f.head; at != 0; {
		i, n := at.entry(), at.part()
		at = t.records[i].parts[n].next
		if !do(i, n) {
			return
		}
	}
}

// stop has the kernel run an entry no more, for good. When it returns nobody runs it.
func (t *entries) stop(i uint32) {
	t.claim(i, Gone)
	r := &t.records[i]
	if r.queued.Swap(true) {
		return
	}
	for {
		r.after = t.ended.Load()
		if t.ended.CompareAndSwap(r.after, i+1) {
			return
		}
	}
}

// claim takes an entry from the kernel; false: the kernel has not run it any more. One that a function looks at can only be taken from it for good.
func (t *entries) claim(i uint32, as uint64) bool {
	s := &t.slots[i]
	// A frame has it for some hundred nanoseconds, and longer only when the processor is taken from it.
	for n := 1; ; n++ {
		if n%(1<<16) == 0 {
			time.Sleep(50 * time.Microsecond)
		}
		was := atomic.LoadUint64(&s.Claim)
		switch was & 0xFFFFFFFF {
		case Live:
		case Busy:
			continue
		case Paused, Born:
			if as != Gone {
				return false
			}
		default:
			return false
		}
		if atomic.CompareAndSwapUint64(&s.Claim, was, was>>32<<32|as) {
			return true
		}
	}
}

// time is the graph's of one of the kernel.
func (t *entries) time(kernel uint64) clock.Time {
	return clock.Time(int64(kernel) + t.ahead.Load())
}

// usage is what an entry has done, as the owner of a part sees it.
func (t *entries) usage(i uint32, p *part) (u Usage) {
	s := &t.slots[i]
	for d := range s.Dirs {
		u.Last[int(p.in)^d] = t.time(atomic.LoadUint64(&s.Last[d]))
	}
	return u
}

// tell tells the owner of a part what its entry has done. Nobody runs it, unless running.
func (t *entries) tell(i uint32, p *part, running bool) {
	o, s := t.owner(p), &t.slots[i]
	u := t.usage(i, p)
	if r := &t.records[i]; r.follow != 0 && p == &r.parts[r.follow-1] && !running {
		u.Sides = &[2]Side{s.Sides[p.in], s.Sides[1-p.in]}
	}
	o.Used(p.ref, &u)
}

// tellAll tells all owners of an entry that do not know it yet.
func (t *entries) tellAll(i uint32, running bool) {
	r := &t.records[i]
	for n := range r.parts {
		p := &r.parts[n]
		o := t.owner(p)
		if o == nil {
			continue
		}
		t.turnOf(o)
		if p.linked && !p.told {
			t.tell(i, p, running)
			p.told = !running
		}
		t.giveOf(o)
	}
}

// finish ends an entry for the owner of its part n, and tells the owner what the entry has done. The caller has the turn at that owner.
func (t *entries) finish(i uint32, n int) {
	t.stop(i)
	t.unlink(i, n)
	if !t.shared {
		t.tidy(1)
	}
}

// Entries that have ended are freed a few at a time.
const fewTidy = 8

// tidy frees up to n slots whose entries have ended: owners that have not unlinked them do it now. The caller has the Table's turn, and where it is shared no owner's.
func (t *entries) tidy(n int) {
	for ; n > 0; n-- {
		at := t.ended.Load()
		if at == 0 {
			return
		}
		i := at - 1
		r := &t.records[i]
		if !t.ended.CompareAndSwap(at, r.after) { // others add, nobody else takes
			continue
		}
		for n := range r.parts {
			o := t.owner(&r.parts[n])
			if o == nil {
				continue
			}
			t.turnOf(o)
			if r.parts[n].linked {
				t.unlink(i, n)
			}
			t.giveOf(o)
		}
		for d := range 2 {
			t.kernel.Delete(int(i), d)
			t.meters.refer(t.slots[i].Meters[d], -1)
		}
		for n := range r.parts {
			t.back(r.parts[n].owner)
		}
		*r = record{}
		t.free = append(t.free, i)
		t.live.Add(-1)
		t.freed.Add(1)
	}
}

// unlink takes part n of an entry, which nobody runs any more, out of its owner's Flows.
func (t *entries) unlink(i uint32, n int) {
	x := &t.records[i].parts[n]
	o := t.owner(x)
	if !x.told {
		t.tell(i, x, false)
	}
	x.linked = false
	at := &o.Flows(x.ref).head
	for *at != placeOf(i, n) {
		at = &t.records[at.entry()].parts[at.part()].next
	}
	*at = x.next
}

// Ask has Used be called with what the kernel has done until now for what ref names.
func (t *Table) Ask(o Owner, ref uint32, f *Flows) {
	t.each(f, func(i uint32, n int) bool {
		if p := &t.records[i].parts[n]; !p.told {
			u := t.usage(i, p)
			o.Used(ref, &u)
		}
		return true
	})
}

// Withdraw ends all entries that Flows have: the kernel runs none of its frames when Withdraw returns, and Used was called with all that it has done.
func (t *Table) Withdraw(f *Flows) {
	for f.head != 0 {
		t.finish(f.head.entry(), f.head.part())
	}
}

// Hold takes the entry of what ref names, which has one, from the kernel for as long as the function looks at a frame, and calls Used with what it has done. It is
// false when there is no entry any more.
func (t *Table) Hold(f *Flows) bool {
	if f.head == 0 {
		return false
	}
	i, n := f.head.entry(), f.head.part()
	if !t.claim(i, Paused) {
		t.finish(i, n)
		return false
	}
	t.tell(i, &t.records[i].parts[n], false)
	return true
}

// Release gives back what Hold has taken, with the numbers that its owner has now if it follows them; without keep the entry ends.
func (t *Table) Release(o Owner, ref uint32, f *Flows, keep bool) {
	i, n := f.head.entry(), f.head.part()
	s := &t.slots[i]
	if r := &t.records[i]; int(r.follow) == n+1 {
		o.(Windower).Sides(ref, int(r.parts[n].in), &s.Sides)
	}
	turn := atomic.LoadUint64(&s.Claim) >> 32 << 32
	// Another owner may have ended it.
	if !keep || !atomic.CompareAndSwapUint64(&s.Claim, turn|Paused, turn|Live) {
		t.finish(i, n)
	}
}

// Pause begins no entry until Go. Settle ends those that are there.
func (t *Table) Pause() {
	t.take()
	defer t.give()
	t.paused = true
	clear(t.waiting)
	for i := range t.wanted {
		t.wanted[i].hash.Store(0)
	}
	t.wants.Store(0)
	t.forget()
}

// Settle has the kernel run n entries no more, from place from on, tells their owners what was done, and returns the place to go on from; 0: that was all. It is
// called behind Pause, and before functions change what they do, as they take times over by what they have decided.
func (t *Table) Settle(from uint32, n int) uint32 {
	return t.some(from, n, func(i uint32) {
		t.claim(i, Gone)
		t.tellAll(i, false)
	})
}

// some calls do with n entries, from place from on, and returns the place to go on from; 0: that was all.
func (t *entries) some(from uint32, n int, do func(i uint32)) uint32 {
	t.take()
	defer t.give()
	used := t.used.Load()
	for ; n > 0 && from < used; n, from = n-1, from+1 {
		if t.records[from].inUse {
			do(from)
		}
	}
	if from >= used {
		return 0
	}
	return from
}

// Go has entries begin again.
func (t *Table) Go() {
	t.take()
	t.paused = false
	t.give()
}

// Clear ends n entries, from place from on, and returns the place to go on from; 0: none is left.
func (t *Table) Clear(from uint32, n int) uint32 {
	from = t.some(from, n, t.clear)
	t.take()
	t.tidy(n) // what others have ended meanwhile
	t.give()
	return from
}

func (t *entries) clear(i uint32) {
	t.stop(i)
	t.tidy(1)
}

// All ends all entries.
func (t *Table) All() { t.Clear(0, t.Used()) }

// Now tells the time, and what the kernel's is. One worker does.
func (t *Table) Now(now clock.Time) {
	t.Breath(now)
	// Of two looks that one is right between whose clocks less time has passed.
	if ahead, was := int64(now)-t.k.Clock(), t.ahead.Load(); ahead > was || was-ahead > int64(time.Second) {
		t.ahead.Store(ahead)
	}
}

// grain is how exact the time is where several workers tell it.
const grain = 100_000

// Breath tells the time alone.
func (t *Table) Breath(now clock.Time) {
	if was := t.now.Load(); !t.shared || int64(now)-was > grain {
		t.now.Store(int64(now))
	}
}

// Look looks at n slots: it ends the entries that run no more, and tells owners of what others have done.
func (t *Table) Look(n int) {
	used := t.used.Load()
	if used == 0 && t.meters.used == 0 || !t.try() {
		return
	}
	defer t.give()
	t.tidy(n)
	t.lookMeters(n)
	for ; n > 0; n-- {
		if t.hand >= used {
			t.hand = 0
			return
		}
		t.look(t.hand)
		t.hand++
	}
}

func (t *Table) look(i uint32) {
	s, r := &t.slots[i], &t.records[i]
	if !r.inUse {
		return
	}
	now, last := t.Time(), [2]clock.Time{t.time(atomic.LoadUint64(&s.Last[0])), t.time(atomic.LoadUint64(&s.Last[1]))}
	newest := max(last[0], last[1])
	over := now.Sub(newest) > aged || s.Quiet > 0 && now.Sub(newest) > clock.Duration(s.Quiet)
	for d := range last {
		over = over || s.Quiets[d] > 0 && now.Sub(last[d]) > clock.Duration(s.Quiets[d])
	}
	if over || atomic.LoadUint64(&s.Claim)&0xFFFFFFFF == Gone {
		t.clear(i)
		return
	}
	if n := uint32(atomic.LoadUint64(&s.Last[0]) + atomic.LoadUint64(&s.Last[1])); n != r.seen {
		r.seen = n
		t.tellAll(i, true)
	}
}
