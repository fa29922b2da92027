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

// Outcome says what became of a decision that was offered to a Table.
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

// OutcomeNames are the names of the Outcomes in reports.
var OutcomeNames = [numOutcomes]string{
	Began: "began", Waits: "one-direction", There: "there", Partial: "undecided", Stops: "stopped", Full: "full", Odd: "not-plain", Differs: "other-change",
	Unlike: "other-way", TooMany: "too-many-functions", Refused: "refused", NoProgram: "no-port", Taken: "other-worker",
}

// Decision is one frame on its whole way through a graph, and what the functions on the way decided about it.
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
	// pairTime is how long a decision about one direction waits for one about the other direction.
	pairTime = clock.Duration(1e9)
	// tries is how often a worker tries to take the Table's turn before it continues without.
	tries = 256
	// aged is the time after which an entry ends that has run no frame.
	aged = clock.Duration(30e9)
)

// candidate is a decision that waits for one about the other direction.
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

// want is the hash of a key (0: none) that a waiting decision needs, and the time of that decision. Workers that
// do not have the Table's turn read it.
type want struct {
	hash atomic.Uint64
	at   atomic.Int64
}

// stake is the portion of a Part that a candidate keeps.
type stake struct {
	Owner          Owner
	State          uint64
	Ref            uint32
	In             uint8
	Alone, Windows bool
}

// record is what only the process knows of the entry in a slot.
type record struct {
	inUse  bool
	follow int8        // the part whose owner's the numbers of TCP segments in the slot are, plus 1; 0: nobody's
	queued atomic.Bool // its slot is among those that have ended
	after  uint32      // the next one there, plus 1
	seen   uint32      // of its times, at the last look
	parts  [maxParts]part
}

// part ties an entry to one of its owners. While it is linked, only the goroutine that has the turn at the owner
// may use it.
type part struct {
	ref    uint32
	next   place // in the owner's Flows
	owner  uint8 // its number, plus 1; 0: there is no such part
	in     uint8 // the function's input of direction 0
	linked bool  // in the owner's Flows
	told   bool  // the owner knows what was done, and nothing more is
}

// place names a part: the index of its entry plus 1, and in the lower partBits the part's index there; 0: no
// part.
type place uint32

const partBits = 2

func placeOf(i uint32, n int) place { return place((i+1)<<partBits | uint32(n)) }

func (p place) entry() uint32 { return uint32(p)>>partBits - 1 }
func (p place) part() int     { return int(p & (1<<partBits - 1)) }

// ownerRef is an owner, and the number of parts that it has.
type ownerRef struct {
	Owner
	n int
}

// Table has the entries of a graph, and the decisions that wait to become entries.
//
// When several workers share a Table (Share), each owner is a Sharer. Three rules hold. A goroutine that has the
// turn at an owner may hold, ask and end the entries linked to that owner, and needs no other turn: setting the
// Claim of the slot ends an entry for all its owners, and the other owners unlink it when they find it, or tidy
// does. A goroutine that has the Table's turn begins, looks at and frees entries. A goroutine that has an owner's
// turn never waits for the Table's turn, nor for another owner's.
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
	hand    uint32

	outcomes [numOutcomes]atomic.Uint64
}

// entries are the slots of a Table, with the ones that wait to be freed, and what the process knows of them.
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
	paused bool
	free   []uint32
	owners [maxOwners]ownerRef
	owned  int // of them, that there ever were at the same time
}

// NewTable returns an empty Table whose entries k runs.
func NewTable(k Kernel) *Table {
	t := &Table{framer: framer{k: k, control: k.Control()}, entries: entries{kernel: k, meters: meters{mem: k.Meters()}, slots: k.Slots(), sixes: k.Sixes(), records: make([]record, len(k.Slots()))},
		waiting: make([]candidate, candidates), wanted: make([]want, candidates), seed: maphash.MakeSeed()}
	t.ahead.Store(math.MinInt64 / 2)
	t.nobody.flows = make([]Flows, max(1, len(t.slots)))
	return t
}

// Share makes t a Table that several workers share. It is called before any worker has t.
func (t *Table) Share() { t.shared = true }

// try takes the Table's turn, or returns false if that is not free soon.
func (t *entries) try() bool {
	for n := 0; t.shared && !t.turn.Try(); n++ {
		if n == tries {
			return false
		}
	}
	return true
}

// take waits for the Table's turn. A worker that has frames in hand uses try instead.
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

// Used returns how many slots have ever been used.
func (t *entries) Used() int { return int(t.used.Load()) }

// Len returns the number of slots whose entries are in use or not yet freed.
func (t *entries) Len() int { return int(t.live.Load()) }

// Room returns the number of slots.
func (t *entries) Room() int { return len(t.slots) }

// Ended returns how many entries have ended and were freed.
func (t *entries) Ended() uint64 { return t.freed.Load() }

// Outcomes returns how many decisions had each outcome, by its name.
func (t *Table) Outcomes() map[string]uint64 {
	m := map[string]uint64{}
	for o := range t.outcomes {
		m[OutcomeNames[o]] = t.outcomes[o].Load()
	}
	return m
}

// Count counts the outcome of a decision that was not offered to the Table.
func (t *Table) Count(o Outcome) { t.outcomes[o].Add(1) }

// Time returns the graph's time, as Now or Breath was last told.
func (t *Table) Time() clock.Time { return clock.Time(t.now.Load()) }

// Offer begins an entry with decision d if one about the other direction waits and matches; otherwise d may wait
// itself. Offer keeps neither d nor its frames.
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

// tunnelOf adds tunnel x if it is not known yet, and returns There if it is known afterwards.
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

// pair begins an entry of c and the decision that waits for it, or makes c wait. The caller has the Table's turn.
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

// nobody is the Owner of entries in which no function has a part. It makes sure that such a flow has one entry at
// most. A ref is a hash of the keys of both directions.
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

// nobodys gives c, in which no function has a part, a part of the Owner nobody.
func (t *Table) nobodys(c *candidate) {
	a, b := c.key.hash(t.seed), c.other.hash(t.seed)
	in := uint8(0)
	if a > b {
		in = 1
	}
	c.parts[0] = stake{Owner: &t.nobody, Ref: uint32((a + b) % uint64(len(t.nobody.flows))), In: in}
	c.n = 1
}

// wait stores c until a decision about the other direction comes.
func (t *Table) wait(c *candidate) {
	t.waiting[c.key.hash(t.seed)%candidates] = *c
	h := c.other.hash(t.seed)
	w := &t.wanted[h%candidates]
	w.at.Store(int64(c.at))
	w.hash.Store(h)
	t.wants.Store(int64(c.at) + 1)
}

// Wanting reports whether Wanted may return true for some key. Any worker may call it.
func (t *Table) Wanting() bool {
	at := t.wants.Load()
	return at != 0 && t.Time().Sub(clock.Time(at)) <= pairTime
}

// Wanted reports, once for each waiting decision, whether that waits for a decision about frames with key k. The
// answer may be wrong, because hashes are compared. Any worker may call it.
func (t *Table) Wanted(k *Key) bool {
	h := k.hash(t.seed)
	w := &t.wanted[h%candidates]
	if w.hash.Load() != h || t.Time().Sub(clock.Time(w.at.Load())) > pairTime {
		return false
	}
	w.hash.Store(0)
	return true
}

// there reports whether the kernel runs frames like c's, and changes them as c does. An entry of the same key
// with another change ends, because the flow has changed.
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

// fill sets c from decision d and its change x. It returns false if d has too many parts, or two that follow
// numbers.
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

// matches reports whether decisions c and o have the same owners, refs and states in opposite order: both are
// then directions of one flow.
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

// hash returns a hash of k that is never 0.
func (k *Key) hash(seed maphash.Seed) uint64 {
	b := k.Bytes()
	return maphash.Bytes(seed, b[:]) | candidates
}

// begin makes an entry of two directions. The kernel runs it from the moment when all owners have linked it;
// until then each of them may end it.
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
	i, ok := t.slot()
	if !ok {
		t.replaceAll(a, b)
		if i, ok = t.slot(); !ok {
			back()
			return Full
		}
	}
	if !t.holds(&a.meter) || !t.holds(&b.meter) { // also an entry that was replaced may have used them
		t.free = append(t.free, i)
		back()
		return Refused
	}
	s, r := &t.slots[i], &t.records[i]
	*r = record{inUse: true, follow: int8(a.follows + 1)}
	for n := range a.n {
		r.parts[n] = part{ref: a.parts[n].Ref, owner: numbers[n], in: a.parts[n].In}
	}
	turn := s.Claim>>32 + 1
	atomic.StoreUint64(&s.Claim, turn<<32|Born)
	s.Flags, s.Held, s.Quiet = 0, 0, uint64(least(a.quiet[0], b.quiet[0]))
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

// linkAll links the entry to all its owners, to the one that follows numbers last, and then has the kernel run
// it. It returns false if an owner does not decide the flow any more.
func (t *Table) linkAll(i uint32, a, b *candidate) bool {
	last := max(0, a.follows)
	for n := range a.n {
		if n != last && !t.link(i, n, a, b, false) {
			return false
		}
	}
	return t.link(i, last, a, b, true)
}

// starts has the kernel run entry i, whose state is Born. It returns false if an owner has ended the entry
// meanwhile.
func (t *entries) starts(i uint32) bool {
	c := &t.slots[i].Claim
	turn := atomic.LoadUint64(c) >> 32 << 32
	return atomic.CompareAndSwapUint64(c, turn|Born, turn|Live)
}

// link links entry i to the owner of part n and, with last, has the kernel run it. It returns false if the owner
// does not decide the flow any more, or has ended the entry.
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

// replace ends those entries in f that run the same frames as a or b; all entries in f if p is Alone.
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

// replaceAll calls replace for all owners of a, and frees the slots.
func (t *Table) replaceAll(a, b *candidate) {
	for n := range a.n {
		p := &a.parts[n]
		t.turnOf(p.Owner)
		t.replace(p.Owner.Flows(p.Ref), p, a, b)
		t.giveOf(p.Owner)
	}
	t.tidy(fewTidy)
}

// number returns the index of owner o in owners, plus 1, and counts one more part of it. It returns 0 if there
// are too many owners.
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

// back counts one part less of the owner with that number; 0 is allowed.
func (t *entries) back(number uint8) {
	if number != 0 {
		t.owners[number-1].n--
	}
}

// slot returns a free slot, or false if there is none.
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

// owner returns the owner of a part, or nil if the entry has no such part.
func (t *entries) owner(p *part) Owner {
	if p.owner == 0 {
		return nil
	}
	return t.owners[p.owner-1].Owner
}

// each calls do with each entry in f, and the part by which the entry is in f, until do returns false. do may end
// the entry that it is called with.
func (t *entries) each(f *Flows, do func(i uint32, n int) bool) {
	for at := f.head; at != 0; {
		i, n := at.entry(), at.part()
		at = t.records[i].parts[n].next
		if !do(i, n) {
			return
		}
	}
}

// stop ends entry i in the kernel for good, and queues its slot for tidy. When stop returns, the program does not
// run the entry.
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

// claim sets the state of slot i to as, and returns false if the kernel did not run the entry before. An entry
// that is Paused or Born can only be set to Gone.
func (t *entries) claim(i uint32, as uint64) bool {
	s := &t.slots[i]
	// The program has a slot Busy for some hundred nanoseconds, and longer only when its processor is taken from
	// it.
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

// time converts a time of the kernel's clock to the graph's.
func (t *entries) time(kernel uint64) clock.Time {
	return clock.Time(int64(kernel) + t.ahead.Load())
}

// usage returns the times of entry i, as the owner of part p counts its inputs.
func (t *entries) usage(i uint32, p *part) (u Usage) {
	s := &t.slots[i]
	for d := range s.Dirs {
		u.Last[int(p.in)^d] = t.time(atomic.LoadUint64(&s.Last[d]))
	}
	return u
}

// tell calls Used of the owner of part p. Without running, the entry has stopped or is paused, so that its
// numbers of TCP can be read, too.
func (t *entries) tell(i uint32, p *part, running bool) {
	o, s := t.owner(p), &t.slots[i]
	u := t.usage(i, p)
	if r := &t.records[i]; r.follow != 0 && p == &r.parts[r.follow-1] && !running {
		u.Sides = &[2]Side{s.Sides[p.in], s.Sides[1-p.in]}
	}
	o.Used(p.ref, &u)
}

// tellAll calls tell for all linked parts of an entry whose owners do not know its last state yet.
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

// finish ends entry i for the owner of its part n, and calls Used of that owner. The caller has the turn at the
// owner. While the Table is paused, finish leaves it to Look to free the slot, because a function that gets other
// settings may end all its entries at once.
func (t *entries) finish(i uint32, n int) {
	t.stop(i)
	t.unlink(i, n)
	if !t.shared && !t.paused {
		t.tidy(1)
	}
}

// fewTidy is the number of slots that are freed at a time when a decision is offered.
const fewTidy = 8

// tidy frees up to n slots whose entries have ended, and unlinks them where owners have not done so. The caller
// has the Table's turn and, if the Table is shared, no owner's turn.
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

// unlink takes part n of an entry that has stopped out of its owner's Flows, after a last call of Used.
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

// Ask calls Used of o with what the kernel has done so far for ref, whose entries f has.
func (t *Table) Ask(o Owner, ref uint32, f *Flows) {
	t.each(f, func(i uint32, n int) bool {
		if p := &t.records[i].parts[n]; !p.told {
			u := t.usage(i, p)
			o.Used(ref, &u)
		}
		return true
	})
}

// Withdraw ends all entries in f. When it returns, the kernel runs none of their frames, and Used was called with
// all that the kernel has done. The caller has the turn at the owner.
func (t *Table) Withdraw(f *Flows) {
	for f.head != 0 {
		t.finish(f.head.entry(), f.head.part())
	}
}

// Hold pauses the first entry in f while the function looks at a frame, and calls Used with what the kernel has
// done. It returns false if f has no entry, or if the entry has ended. It is for owners whose Parts are Alone.
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

// Release has the kernel run the entry again that Hold has paused, from the numbers that its owner has by then,
// if it follows them. Without keep it ends the entry instead.
func (t *Table) Release(o Owner, ref uint32, f *Flows, keep bool) {
	i, n := f.head.entry(), f.head.part()
	s := &t.slots[i]
	if r := &t.records[i]; int(r.follow) == n+1 {
		o.(Windower).Sides(ref, int(r.parts[n].in), &s.Sides)
	}
	turn := atomic.LoadUint64(&s.Claim) >> 32 << 32
	// Another owner may have ended the entry.
	if !keep || !atomic.CompareAndSwapUint64(&s.Claim, turn|Paused, turn|Live) {
		t.finish(i, n)
	}
}

// Pause has the Table begin no entries until Go is called. Existing entries continue until Settle or Clear.
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

// Settle stops up to n entries in the kernel, from slot from on, and tells their owners what was done. It returns
// the slot to continue from, or 0 when all are done. It is called after Pause and before functions change their
// settings, because they take over times according to what they have decided.
func (t *Table) Settle(from uint32, n int) uint32 {
	return t.some(from, n, func(i uint32) {
		t.claim(i, Gone)
		t.tellAll(i, false)
	})
}

// some calls do with up to n entries, from slot from on, and returns the slot to continue from, or 0 at the end.
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

// Go ends Pause.
func (t *Table) Go() {
	t.take()
	t.paused = false
	t.give()
}

// Clear ends up to n entries, from slot from on, and returns the slot to continue from, or 0 when all are done.
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

// Now tells the Table the graph's time, and reads the kernel's clock to compare. Only one worker calls it.
func (t *Table) Now(now clock.Time) {
	t.Breath(now)
	// Time that passes between the two readings makes ahead too small: the larger of two values is the better
	// one.
	if ahead, was := int64(now)-t.k.Clock(), t.ahead.Load(); ahead > was || was-ahead > int64(time.Second) {
		t.ahead.Store(ahead)
	}
}

// grain is the resolution of the time, in ns, where several workers tell it.
const grain = 100_000

// Breath tells the Table the graph's time only. Any worker may call it.
func (t *Table) Breath(now clock.Time) {
	if was := t.now.Load(); !t.shared || int64(now)-was > grain {
		t.now.Store(int64(now))
	}
}

// Look looks at up to n slots, going round: it ends the entries whose time is over or that have stopped, and
// tells owners what the kernel has done for the others.
func (t *Table) Look(n int) {
	used := t.used.Load()
	if used == 0 && t.meters.used == 0 || !t.try() {
		return
	}
	defer t.give()
	t.tidy(n)
	t.lookMeters(max(n, t.meters.used/looks))
	for ; n > 0; n-- {
		if t.hand >= used {
			t.hand = 0
			return
		}
		t.look(t.hand)
		t.hand++
	}
}

// looks is the number of calls of Look in which all Meters are looked at.
const looks = 100

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
