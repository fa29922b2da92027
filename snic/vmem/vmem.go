package vmem

import (
	"errors"
	"fmt"
	"math/bits"

	"github.com/quillon/quillon/snic/drf"
)

// Defaults and bounds of a Config.
const (
	PageBytes   = 2 << 20 // by default
	maxPage     = 1 << 30
	maxPages    = 1 << 24
	maxBytes    = 1 << 40 // of memory
	maxRoom     = 1 << 40 // pages elsewhere, or promised
	maxSpaces   = 1 << 20
	maxWeight   = 1 << 10
	spareFrames = 1 // kept for pages that come back
)

// Config sizes a Memory.
type Config struct {
	PageBytes int // a power of two; 0: 2 MB
	Pages     int // physical
	Spaces    int // numbers from 0
	Tenants   int // numbers from 0
	// Promise is how many pages may be reserved beyond those that have room here
	// or elsewhere.
	Promise int
	Remote  Remote // nil: there is none
	// Data is the physical memory, Pages pages that hold zeros; nil: Go's.
	Data []byte
	// Clear is the most bytes that an access clears: where a first touch finds only frames that
	// take more, it waits for Scrub. 0: an access clears a page.
	Clear int
}

// Handle names a page at the Remote.
type Handle uint64

// Op is an operation of the Remote that is under way.
type Op uint64

// Remote is the memory of other boards. It calls nothing of the Memory while it
// is called by it; operations end by Memory.Done.
type Remote interface {
	// Free is how many pages more it would take, as far as is known.
	Free() int
	// Put begins to store a page, which stays as it is until op is done. It
	// reports false when there is no room: then nothing begins.
	Put(op Op, page []byte) (Handle, bool)
	// Get begins to load a page into memory that is nobody else's until op is
	// done. It writes all of it.
	Get(op Op, h Handle, page []byte)
	// Drop forgets a page. No operation on it is under way.
	Drop(h Handle)
}

// Perm is what may be done with a page.
type Perm uint8

// Permissions.
const (
	Read  Perm = 1
	Write Perm = 2
)

func (p Perm) String() string {
	switch p {
	case Read:
		return "read"
	case Write:
		return "write"
	case Read | Write:
		return "read and write"
	}
	return "nothing"
}

// Status is how an access ended.
type Status uint8

const (
	// OK: done.
	OK Status = iota
	// Wait: try again when Next names the space.
	Wait
	// Refused: a new page, and nobody has room for it.
	Refused
	// Faulted: the space has stopped; Err says why.
	Faulted
)

func (s Status) String() string { return [...]string{"ok", "wait", "refused", "faulted"}[s&3] }

// Why is the cause of a fault.
type Why uint8

// Causes.
const (
	Outside Why = iota // nothing is reserved there
	Denied             // reserved, but not for this
	Lost               // the page was at a board that is gone
)

// Fault is an access that stopped a space.
type Fault struct {
	Space  int
	VA     uint64
	Access Perm // 0: none; a page was lost
	Why    Why
}

func (f Fault) Error() string { return fmt.Sprintf("vmem: space %d: %s", f.Space, f.Cause()) }

// Cause is what happened, without the space's number.
func (f Fault) Cause() string {
	switch f.Why {
	case Outside:
		return fmt.Sprintf("%v at %#x: nothing is reserved there", f.Access, f.VA)
	case Denied:
		return fmt.Sprintf("%v at %#x: not permitted", f.Access, f.VA)
	}
	return fmt.Sprintf("the page at %#x is lost with the board that had it", f.VA)
}

// ErrNoRoom is wrapped by errors of Reserve when neither this board nor others
// have room.
var ErrNoRoom = errors.New("no board has room")

// pageState is where a virtual page is.
type pageState uint8

const (
	unreserved pageState = iota
	untouched
	resident
	leaving  // being swapped out of its frame
	arriving // being swapped into its frame
	swapped
)

type page struct {
	handle Handle // swapped, leaving, arriving
	frame  int32  // resident, leaving, arriving
	state  pageState
	perm   Perm
}

type frameState uint8

const (
	clean frameState = iota // free, holds zeros
	dirty                   // free, holds what another left
	used                    // a resident page
	out                     // Put is under way
	in                      // Get is under way
	lent
)

type frame struct {
	stamp      uint64 // of the last access; dirty: so many of its bytes are cleared
	prev, next int32  // used: ring of the space, next is older; free: next
	space      int32  // -1: out or in for a space that was closed
	vpn        int32
	gen        uint32 // of operations
	state      frameState
	fresh      uint32 // the turn in which it came, until it is accessed
}

type space struct {
	table    []page // empty when stopped
	pages    []page
	newest   int32 // ring of resident pages; -1: none
	tenant   int32
	sibling  int32 // next space of the tenant
	want     int32 // page that waits for a frame; -1: none
	after    int32 // queue of those that want, -1: end
	before   int32
	wake     int32 // next to be told; -1: end, -2: not in the list
	open     bool
	stopped  bool
	fault    Fault
	counters Counters
}

// Counters are those of a space. Pages are counted, and faults.
type Counters struct {
	Reserved, Resident, Swapped int    // at present; Swapped with those on the way back
	Touched, Out, In, Refused   uint64 // since Open
	Faults                      uint64 // accesses of the stopped space among them
}

type tenant struct {
	weight float64
	other  float64
	spaces int32 // the first; -1: none
	held   int   // pages that it has, or waits for
	has    int   // resident ones
	total  int   // pages that were touched, wherever they are
}

// Memory is the memory of a board.
type Memory struct {
	data      []byte
	remote    Remote
	shift     uint
	mask      uint64
	now       uint64 // number of accesses
	spaces    []space
	tenants   []tenant
	frames    []frame
	cleanList int32
	dirtyList int32
	unused    int // frames from here on were never taken: clean, and in no list
	atOnce    int // the most bytes that an access clears
	unfair    bool
	free      int // frames in both lists, and unused
	held      int // of all tenants
	out, in   int // operations under way
	lent      int
	promised  int // reserved and untouched
	promise   int
	turn      uint32 // ends when all who are to be told were told
	fresh     int    // frames that came in this turn and were not accessed
	first     int32  // queue of spaces that want a frame
	last      int32
	wakeFirst int32
	wakeLast  int32
	solver    *drf.Solver
	active    []int32 // tenants in the division
	weight    []float64
	demand    []float64
	grant     []float64
	capacity  [1]float64
}

// New makes a memory.
func New(c Config) (*Memory, error) {
	if c.PageBytes == 0 {
		c.PageBytes = PageBytes
	}
	switch {
	case c.PageBytes < 1 || c.PageBytes > maxPage || c.PageBytes&(c.PageBytes-1) != 0:
		return nil, fmt.Errorf("vmem: page of %d bytes: want a power of two up to %d", c.PageBytes, maxPage)
	case c.Pages < 1 || c.Pages > maxPages:
		return nil, fmt.Errorf("vmem: %d physical pages: want 1 to %d", c.Pages, maxPages)
	case c.Pages > maxBytes/c.PageBytes:
		return nil, fmt.Errorf("vmem: %d pages of %d bytes: want at most %d bytes", c.Pages, c.PageBytes, maxBytes)
	case c.Remote != nil && c.Pages <= spareFrames:
		return nil, fmt.Errorf("vmem: %d physical pages: want %d or more to swap", c.Pages, spareFrames+1)
	case c.Spaces < 1 || c.Spaces > maxSpaces:
		return nil, fmt.Errorf("vmem: %d spaces: want 1 to %d", c.Spaces, maxSpaces)
	case c.Tenants < 1 || c.Tenants > maxSpaces:
		return nil, fmt.Errorf("vmem: %d tenants: want 1 to %d", c.Tenants, maxSpaces)
	case c.Promise < 0:
		return nil, fmt.Errorf("vmem: promise of %d pages: want 0 or more", c.Promise)
	case c.Data != nil && len(c.Data) != c.Pages*c.PageBytes:
		return nil, fmt.Errorf("vmem: memory of %d bytes for %d pages of %d", len(c.Data), c.Pages, c.PageBytes)
	case c.Clear < 0:
		return nil, fmt.Errorf("vmem: %d bytes cleared in an access: want 0 or more", c.Clear)
	}
	if c.Data == nil {
		c.Data = make([]byte, c.Pages*c.PageBytes)
	}
	if c.Clear == 0 {
		c.Clear = c.PageBytes
	}
	m := &Memory{
		data:      c.Data,
		atOnce:    c.Clear,
		remote:    c.Remote,
		shift:     uint(bits.TrailingZeros(uint(c.PageBytes))),
		mask:      uint64(c.PageBytes - 1),
		spaces:    make([]space, c.Spaces),
		tenants:   make([]tenant, c.Tenants),
		frames:    make([]frame, c.Pages),
		cleanList: -1,
		dirtyList: -1,
		promise:   c.Promise,
		turn:      1,
		first:     -1, last: -1, wakeFirst: -1, wakeLast: -1,
		solver: drf.New(c.Tenants, 1),
		active: make([]int32, c.Tenants),
		weight: make([]float64, c.Tenants),
		demand: make([]float64, c.Tenants),
		grant:  make([]float64, c.Tenants),
	}
	for i := range m.spaces {
		m.spaces[i].wake = -2
	}
	for i := range m.tenants {
		m.tenants[i] = tenant{weight: 1, spaces: -1}
	}
	m.free = len(m.frames)
	return m, nil
}

// SetWeight sets a tenant's weight, 1 by default.
func (m *Memory) SetWeight(tenant int, weight float64) error {
	switch {
	case tenant < 0 || tenant >= len(m.tenants):
		return fmt.Errorf("vmem: tenant %d: there are %d", tenant, len(m.tenants))
	case !(weight >= 1./maxWeight && weight <= maxWeight):
		return fmt.Errorf("vmem: weight %g of tenant %d: want from 1/%d to %d", weight, tenant, maxWeight, maxWeight)
	}
	m.tenants[tenant].weight = weight
	return nil
}

// SetOther tells the greatest share that a tenant has of a resource other than
// memory, 0 to 1. When it is greater than its share of memory, it is the one
// that counts.
func (m *Memory) SetOther(tenant int, share float64) error {
	switch {
	case tenant < 0 || tenant >= len(m.tenants):
		return fmt.Errorf("vmem: tenant %d: there are %d", tenant, len(m.tenants))
	case !(share >= 0 && share <= 1):
		return fmt.Errorf("vmem: share %g of tenant %d: want from 0 to 1", share, tenant)
	}
	m.tenants[tenant].other = share
	return nil
}

// SetFair says whether tenants have shares. Without, whoever needs a frame gets that of the page that was
// not accessed for longest, whosever it is.
func (m *Memory) SetFair(on bool) { m.unfair = !on }

// Open begins a space of so many virtual pages, none of them reserved.
func (m *Memory) Open(id, tenant, pages int) error {
	switch {
	case id < 0 || id >= len(m.spaces):
		return fmt.Errorf("vmem: space %d: there are %d", id, len(m.spaces))
	case m.spaces[id].open:
		return fmt.Errorf("vmem: space %d is open", id)
	case tenant < 0 || tenant >= len(m.tenants):
		return fmt.Errorf("vmem: tenant %d: there are %d", tenant, len(m.tenants))
	case pages < 1 || pages > maxPages:
		return fmt.Errorf("vmem: %d virtual pages of space %d: want 1 to %d", pages, id, maxPages)
	}
	s, o := &m.spaces[id], &m.tenants[tenant]
	table := make([]page, pages)
	*s = space{table: table, pages: table, newest: -1, tenant: int32(tenant), sibling: o.spaces,
		want: -1, after: -1, before: -1, wake: s.wake, open: true}
	o.spaces = int32(id)
	return nil
}

// Grow gives a space so many virtual pages in all, none of those that it gets reserved. What it has stays.
func (m *Memory) Grow(id, pages int) error {
	switch {
	case id < 0 || id >= len(m.spaces) || !m.spaces[id].open:
		return fmt.Errorf("vmem: space %d is not open", id)
	case m.spaces[id].stopped:
		return fmt.Errorf("vmem: space %d has stopped: %w", id, m.spaces[id].fault)
	case pages < len(m.spaces[id].pages) || pages > maxPages:
		return fmt.Errorf("vmem: %d virtual pages of space %d: want %d to %d", pages, id, len(m.spaces[id].pages), maxPages)
	}
	s := &m.spaces[id]
	table := make([]page, pages)
	copy(table, s.pages)
	s.table, s.pages = table, table
	return nil
}

// Close ends a space and frees all that it has, here and elsewhere.
func (m *Memory) Close(id int) error {
	if id < 0 || id >= len(m.spaces) || !m.spaces[id].open {
		return fmt.Errorf("vmem: space %d is not open", id)
	}
	s := &m.spaces[id]
	m.unwant(id)
	for vpn := range s.pages {
		m.release(s, vpn)
	}
	m.leave(id)
	*s = space{wake: s.wake}
	m.balance(-1)
	return nil
}

// Frees is how many pages more can be reserved as soon as a space is closed; those that are on their way
// come later.
func (m *Memory) Frees(id int) (n int) {
	if id < 0 || id >= len(m.spaces) {
		return 0
	}
	for i := range m.spaces[id].pages {
		switch m.spaces[id].pages[i].state {
		case untouched, resident, swapped:
			n++
		}
	}
	return n
}

// leave takes a space out of those of its tenant.
func (m *Memory) leave(id int) {
	s := &m.spaces[id]
	at := &m.tenants[s.tenant].spaces
	for *at != int32(id) {
		at = &m.spaces[*at].sibling
	}
	*at = s.sibling
}

// Move makes a space, with all that it has, another tenant's.
func (m *Memory) Move(id, tenant int) error {
	switch {
	case id < 0 || id >= len(m.spaces) || !m.spaces[id].open:
		return fmt.Errorf("vmem: space %d is not open", id)
	case tenant < 0 || tenant >= len(m.tenants):
		return fmt.Errorf("vmem: tenant %d: there are %d", tenant, len(m.tenants))
	}
	s := &m.spaces[id]
	held, total := 0, 0
	if s.want >= 0 {
		held++
	}
	for vpn := range s.pages {
		switch e := &s.pages[vpn]; e.state {
		case resident, arriving:
			held++
			total++
		case leaving, swapped:
			total++
		}
	}
	m.leave(id)
	from, to := &m.tenants[s.tenant], &m.tenants[tenant]
	from.held, from.has, from.total = from.held-held, from.has-s.counters.Resident, from.total-total
	to.held, to.has, to.total = to.held+held, to.has+s.counters.Resident, to.total+total
	s.tenant, s.sibling = int32(tenant), to.spaces
	to.spaces = int32(id)
	m.balance(-1)
	return nil
}

// span is the pages of a range.
func (m *Memory) span(id int, va uint64, length int) (s *space, from, to int, err error) {
	if id < 0 || id >= len(m.spaces) || !m.spaces[id].open {
		return nil, 0, 0, fmt.Errorf("vmem: space %d is not open", id)
	}
	s = &m.spaces[id]
	switch size := uint64(len(s.pages)) << m.shift; {
	case s.stopped:
		return nil, 0, 0, fmt.Errorf("vmem: space %d has stopped: %w", id, s.fault)
	case va&m.mask != 0 || length <= 0 || uint64(length)&m.mask != 0:
		return nil, 0, 0, fmt.Errorf("vmem: space %d: range of %d bytes at %#x: want whole pages of %d bytes", id, length, va, m.mask+1)
	case va >= size || uint64(length) > size-va:
		return nil, 0, 0, fmt.Errorf("vmem: space %d: range of %d bytes at %#x: the space ends at %#x", id, length, va, size)
	}
	return s, int(va >> m.shift), int((va + uint64(length)) >> m.shift), nil
}

// Reserve makes a range of whole pages usable, none of which is reserved.
func (m *Memory) Reserve(id int, va uint64, length int, perm Perm) error {
	s, from, to, err := m.span(id, va, length)
	if err != nil {
		return err
	}
	if perm == 0 || perm > Read|Write {
		return fmt.Errorf("vmem: space %d: permission %d: want read, write or both", id, perm)
	}
	for vpn := from; vpn < to; vpn++ {
		if s.pages[vpn].state != unreserved {
			return fmt.Errorf("vmem: space %d: the page at %#x is reserved", id, uint64(vpn)<<m.shift)
		}
	}
	if n := to - from; n > m.Room() {
		return fmt.Errorf("vmem: space %d: %d pages: there is room for %d: %w", id, n, m.Room(), ErrNoRoom)
	}
	for vpn := from; vpn < to; vpn++ {
		s.pages[vpn] = page{state: untouched, perm: perm}
	}
	s.counters.Reserved += to - from
	m.promised += to - from
	return nil
}

// Room is how many pages more can be reserved.
func (m *Memory) Room() int {
	room := m.free - m.spare() - m.promised + min(m.promise, maxRoom)
	if m.remote != nil {
		room += min(m.remote.Free(), maxRoom) + m.out
	}
	return max(room, 0)
}

func (m *Memory) spare() int {
	if m.remote == nil {
		return 0
	}
	return spareFrames
}

// Page is the rest of the page at va, for access in place until anything else
// is called. p is what will be done with it.
func (m *Memory) Page(id int, va uint64, p Perm) ([]byte, Status) {
	if uint(id) < uint(len(m.spaces)) {
		s := &m.spaces[id]
		if vpn := va >> m.shift; vpn < uint64(len(s.table)) {
			if e := &s.table[vpn]; e.state == resident && e.perm&p == p {
				f := &m.frames[e.frame]
				m.now++
				f.stamp = m.now
				if s.newest != e.frame {
					m.renew(s, e.frame)
				}
				if f.fresh != 0 {
					m.accessed(f)
				}
				at := uint64(e.frame) << m.shift
				end := at + m.mask + 1
				return m.data[at+va&m.mask : end : end], OK
			}
		}
	}
	return m.miss(id, va, p)
}

// Read copies from va to p. It returns how much was read before it ended.
func (m *Memory) Read(id int, va uint64, p []byte) (int, Status) {
	n := 0
	for n < len(p) {
		from, st := m.Page(id, va+uint64(n), Read)
		if st != OK {
			return n, st
		}
		n += copy(p[n:], from)
	}
	return n, OK
}

// Write copies from p to va. It returns how much was written before it ended.
func (m *Memory) Write(id int, va uint64, p []byte) (int, Status) {
	n := 0
	for n < len(p) {
		to, st := m.Page(id, va+uint64(n), Write)
		if st != OK {
			return n, st
		}
		n += copy(to, p[n:])
	}
	return n, OK
}

// miss is an access that is no hit.
func (m *Memory) miss(id int, va uint64, p Perm) ([]byte, Status) {
	if id < 0 || id >= len(m.spaces) || !m.spaces[id].open {
		return nil, Faulted
	}
	s := &m.spaces[id]
	vpn := va >> m.shift
	switch {
	case s.stopped:
		s.counters.Faults++
		return nil, Faulted
	case vpn >= uint64(len(s.pages)) || s.pages[vpn].state == unreserved:
		m.stop(id, Fault{id, va, p, Outside})
		return nil, Faulted
	case s.pages[vpn].perm&p != p:
		m.stop(id, Fault{id, va, p, Denied})
		return nil, Faulted
	}
	switch e := &s.pages[vpn]; e.state {
	case untouched, swapped:
		if s.want >= 0 {
			return nil, Wait
		}
		m.want(id, int32(vpn))
		m.balance(id)
		if e.state == resident {
			return m.Page(id, va, p)
		}
		if s.want != int32(vpn) && e.state != arriving {
			s.counters.Refused++
			return nil, Refused
		}
	}
	return nil, Wait
}

// stop ends a space after a fault; what it has stays.
func (m *Memory) stop(id int, f Fault) {
	s := &m.spaces[id]
	s.counters.Faults++
	if s.stopped {
		return
	}
	s.stopped, s.fault, s.table = true, f, nil
	m.unwant(id)
	m.tell(id)
}

// Err is the Fault that stopped a space, or nil.
func (m *Memory) Err(id int) error {
	if id < 0 || id >= len(m.spaces) || !m.spaces[id].open {
		return fmt.Errorf("vmem: space %d is not open", id)
	}
	if s := &m.spaces[id]; s.stopped {
		return s.fault
	}
	return nil
}

// Counters are those of a space.
func (m *Memory) Counters(id int) Counters { return m.spaces[id].counters }

// Held is how many frames a tenant has, those on the way in among them, or
// waits for: its demand.
func (m *Memory) Held(tenant int) int { return m.tenants[tenant].held }

// Share is how many frames a tenant has a right to at present, whatever the
// others want; never more than it asks for. Without shares (SetFair) it is 0.
func (m *Memory) Share(tenant int) float64 {
	if m.unfair {
		return 0
	}
	n := m.divide()
	for i, t := range m.active[:n] {
		if int(t) == tenant {
			return m.grant[i] * m.demand[i]
		}
	}
	return 0
}

// Lending is how many frames others have.
func (m *Memory) Lending() int { return m.lent }

// Idle is how many frames are nobody's.
func (m *Memory) Idle() int { return m.free }

// Used is how many frames have ever been taken: the others take no memory of the machine's.
func (m *Memory) Used() int { return m.unused }

// Free is how many frames others may have of this board: Lend gives one.
func (m *Memory) Free() int { return max(0, m.free-m.spare()-m.promised) }

// Lend gives a frame away, for a page of another board: what is reserved here
// comes first. It holds zeros.
func (m *Memory) Lend() (loan int, page []byte, ok bool) { return m.lend(true) }

// LendAsIs is Lend of a frame that may hold what another left: all of it is to be written before any of
// it is shown to anybody.
func (m *Memory) LendAsIs() (loan int, page []byte, ok bool) { return m.lend(false) }

func (m *Memory) lend(zeros bool) (loan int, page []byte, ok bool) {
	if m.Free() == 0 || m.first >= 0 {
		return 0, nil, false
	}
	f := m.takeFrame(zeros)
	m.frames[f].state = lent
	m.lent++
	return int(f), m.bytes(f), true
}

// Lent is the memory of a loan; nil when there is none of this number.
func (m *Memory) Lent(loan int) []byte {
	if loan < 0 || loan >= len(m.frames) || m.frames[loan].state != lent {
		return nil
	}
	return m.bytes(int32(loan))
}

// Return ends a loan.
func (m *Memory) Return(loan int) error {
	if m.Lent(loan) == nil {
		return fmt.Errorf("vmem: frame %d is not lent", loan)
	}
	m.lent--
	m.giveFrame(int32(loan))
	m.balance(-1)
	return nil
}

// Scrub clears up to so many bytes of free frames, so that their first touch need not; it returns how many.
// What it has begun it goes on with when it is called again. Nobody is given a frame before all of it is clear.
func (m *Memory) Scrub(bytes int) int {
	left := bytes
	for left > 0 && m.dirtyList >= 0 {
		f := m.dirtyList
		e := &m.frames[f]
		rest := m.bytes(f)[e.stamp:]
		n := min(left, len(rest))
		clear(rest[:n])
		left -= n
		e.stamp += uint64(n)
		if n < len(rest) {
			break
		}
		m.dirtyList = e.next
		e.state, e.next = clean, m.cleanList
		m.cleanList = f
	}
	if m.first >= 0 {
		m.balance(-1)
	}
	return bytes - left
}

// Dirty reports that there is something to Scrub; urgent, that an access waits for that.
func (m *Memory) Dirty() (some, urgent bool) {
	return m.dirtyList >= 0, m.first >= 0 && m.free > m.spare() && !m.ready()
}

// ready reports that there is a free frame that holds zeros, or soon does.
func (m *Memory) ready() bool {
	return m.cleanList >= 0 || m.unused < len(m.frames) || m.dirtyList >= 0 && m.mask < uint64(m.atOnce)
}

// Next is a space whose accesses may go on, or that has stopped; each is told
// once. It is called until it reports false after Done, and after an access
// that has to wait. A page that came for a space is not taken away again before
// that, or before it is accessed.
func (m *Memory) Next() (id int, ok bool) {
	if m.wakeFirst < 0 && m.first >= 0 {
		m.turn = max(m.turn+1, 1) // 0 means none
		m.fresh = 0
		m.balance(-1)
	}
	if m.wakeFirst < 0 {
		return 0, false
	}
	id = int(m.wakeFirst)
	s := &m.spaces[id]
	m.wakeFirst = s.wake
	if m.wakeFirst < 0 {
		m.wakeLast = -1
	}
	s.wake = -2
	return id, true
}

func (m *Memory) tell(id int) {
	if m.spaces[id].wake != -2 {
		return
	}
	m.spaces[id].wake = -1
	if m.wakeLast >= 0 {
		m.spaces[m.wakeLast].wake = int32(id)
	} else {
		m.wakeFirst = int32(id)
	}
	m.wakeLast = int32(id)
}

func (m *Memory) bytes(f int32) []byte {
	at := int(f) << m.shift
	return m.data[at : at+int(m.mask)+1 : at+int(m.mask)+1]
}

// takeFrame takes a free frame: one that holds zeros and is there, else one that was never taken, else
// one that is to be cleared; or, if that does not matter, the other way round.
func (m *Memory) takeFrame(zeros bool) int32 {
	m.free--
	if m.dirtyList >= 0 && (!zeros || m.cleanList < 0 && m.unused == len(m.frames)) {
		f := m.dirtyList
		e := &m.frames[f]
		m.dirtyList = e.next
		if zeros {
			clear(m.bytes(f)[e.stamp:])
		}
		return f
	}
	if f := m.cleanList; f >= 0 {
		m.cleanList = m.frames[f].next
		return f
	}
	m.unused++
	return int32(m.unused - 1)
}

func (m *Memory) giveFrame(f int32) {
	e := &m.frames[f]
	e.state, e.space, e.next, e.stamp = dirty, -1, m.dirtyList, 0
	m.dirtyList = f
	m.free++
}

// renew makes a resident page the newest of its space.
func (m *Memory) renew(s *space, f int32) {
	m.unlink(s, f)
	m.link(s, f)
}

func (m *Memory) link(s *space, f int32) {
	e := &m.frames[f]
	if s.newest < 0 {
		e.prev, e.next = f, f
	} else {
		old := s.newest
		e.next, e.prev = old, m.frames[old].prev
		m.frames[e.prev].next = f
		m.frames[old].prev = f
	}
	s.newest = f
}

func (m *Memory) unlink(s *space, f int32) {
	e := &m.frames[f]
	if e.next == f {
		s.newest = -1
		return
	}
	m.frames[e.prev].next = e.next
	m.frames[e.next].prev = e.prev
	if s.newest == f {
		s.newest = e.next
	}
}

// accessed takes note that a page that came for a space was of use.
func (m *Memory) accessed(f *frame) {
	if f.fresh == m.turn {
		m.fresh--
	}
	f.fresh = 0
}

// keep protects a frame for the space that it came for.
func (m *Memory) keep(f int32) {
	m.frames[f].fresh = m.turn
	m.fresh++
}

// settle makes a page resident in its frame.
func (m *Memory) settle(id int, vpn, f int32) {
	s := &m.spaces[id]
	s.pages[vpn].state, s.pages[vpn].frame = resident, f
	e := &m.frames[f]
	m.now++
	e.state, e.space, e.vpn, e.stamp = used, int32(id), vpn, m.now
	m.link(s, f)
	s.counters.Resident++
	m.tenants[s.tenant].has++
}

// lift takes a resident page out of the ring.
func (m *Memory) lift(s *space, f int32) {
	m.unlink(s, f)
	m.accessed(&m.frames[f])
	s.counters.Resident--
	m.tenants[s.tenant].has--
}

func (m *Memory) hold(s *space, n int) {
	m.tenants[s.tenant].held += n
	m.held += n
}

// release frees a page of a space, which does not want it any more.
func (m *Memory) release(s *space, vpn int) {
	e := &s.pages[vpn]
	if e.state > untouched {
		m.tenants[s.tenant].total--
	}
	switch e.state {
	case unreserved:
		return
	case untouched:
		m.promised--
	case resident:
		m.lift(s, e.frame)
		m.hold(s, -1)
		m.giveFrame(e.frame)
	case leaving:
		m.frames[e.frame].space = -1 // Done gives it back
	case arriving:
		m.frames[e.frame].space = -1
		m.hold(s, -1)
		s.counters.Swapped--
	case swapped:
		m.remote.Drop(e.handle)
		s.counters.Swapped--
	}
	if e.state == leaving || e.state == arriving {
		// The operation's frame remembers the handle.
		m.frames[e.frame].stamp = uint64(e.handle)
	}
	*e = page{}
	s.counters.Reserved--
}

// want queues a space for a frame.
func (m *Memory) want(id int, vpn int32) {
	s := &m.spaces[id]
	s.want, s.before, s.after = vpn, m.last, -1
	if m.last >= 0 {
		m.spaces[m.last].after = int32(id)
	} else {
		m.first = int32(id)
	}
	m.last = int32(id)
	m.hold(s, 1)
}

// unwant takes a space out of the queue.
func (m *Memory) unwant(id int) {
	s := &m.spaces[id]
	if s.want < 0 {
		return
	}
	if s.before >= 0 {
		m.spaces[s.before].after = s.after
	} else {
		m.first = s.after
	}
	if s.after >= 0 {
		m.spaces[s.after].before = s.before
	} else {
		m.last = s.before
	}
	s.want = -1
	m.hold(s, -1)
}

// balance gives frames to those who want them, and has others swapped out while
// there are too few. When nothing is under way that could help, who waits is
// refused, and told unless it asks just now.
func (m *Memory) balance(asks int) {
	m.serve()
	for m.held > m.usable() {
		f := m.victim()
		if f < 0 || !m.evict(f) {
			break
		}
	}
	if m.out == 0 && m.in == 0 && m.fresh == 0 {
		if _, urgent := m.Dirty(); urgent {
			return // Scrub will help
		}
		for m.first >= 0 {
			id := int(m.first)
			m.unwant(id)
			if id != asks {
				m.tell(id)
			}
		}
	}
}

// usable is how many frames there are for pages of this board.
func (m *Memory) usable() int { return len(m.frames) - m.lent - m.spare() }

// serve gives free frames to those who want one: first come, first served, but
// the last frame is for a page that comes back.
func (m *Memory) serve() {
	for id := m.first; id >= 0 && m.free > 0; {
		s := &m.spaces[id]
		next, vpn := s.after, s.want
		e := &s.pages[vpn]
		if e.state == untouched && (m.free <= m.spare() || !m.ready()) {
			id = next
			continue
		}
		m.unwant(int(id))
		m.hold(s, 1)
		if e.state == untouched {
			m.promised--
			s.counters.Touched++
			m.tenants[s.tenant].total++
			f := m.takeFrame(true)
			m.settle(int(id), vpn, f)
			m.keep(f)
		} else {
			f := m.takeFrame(false)
			e.state, e.frame = arriving, f
			x := &m.frames[f]
			x.state, x.space, x.vpn = in, id, vpn
			x.gen++
			m.in++
			m.remote.Get(m.op(f), e.handle, m.bytes(f))
		}
		m.tell(int(id))
		id = next
	}
}

func (m *Memory) op(f int32) Op { return Op(uint64(m.frames[f].gen)<<32 | uint64(uint32(f))) }

// divide finds the tenants' shares; it returns how many ask for memory.
func (m *Memory) divide() int {
	n, greatest := 0, 0.0
	all := float64(max(m.usable(), 1))
	for t := range m.tenants {
		e := &m.tenants[t]
		if e.held == 0 {
			continue
		}
		d := float64(e.held)
		m.active[n], m.demand[n], m.weight[n] = int32(t), d, e.weight
		if own := float64(max(e.total, e.held)); e.other*all > own {
			m.weight[n] *= own / (e.other * all)
		}
		greatest = max(greatest, m.weight[n])
		n++
	}
	m.capacity[0] = all
	for i := range n {
		m.weight[i] = max(m.weight[i], greatest/(maxWeight*maxWeight))
	}
	if m.solver.Solve(m.capacity[:], m.weight[:n], m.demand[:n], m.grant[:n]) != nil {
		return 0 // weights, demands and capacity are within its bounds: never
	}
	return n
}

// victim is the frame to be taken: of the tenant that has most above its share,
// one that itself waits among equals, the page that was not accessed for
// longest; -1 when nobody has more than its share, or what it has just came.
func (m *Memory) victim() int32 {
	const near = 1e-6
	if m.remote == nil {
		return -1
	}
	if m.unfair {
		oldest := int32(-1)
		for t := range m.tenants {
			if m.tenants[t].has > 0 {
				oldest = m.older(oldest, m.oldest(int32(t)))
			}
		}
		return oldest
	}
	n := m.divide()
	most, who := near, int32(-1)
	for i, t := range m.active[:n] {
		e := &m.tenants[t]
		if e.has == 0 {
			continue
		}
		excess := m.demand[i] * (1 - m.grant[i])
		if excess > most+near || excess > most-near && who >= 0 && e.waits() && !m.tenants[who].waits() {
			most, who = excess, t
		}
	}
	if who < 0 {
		return -1
	}
	return m.oldest(who)
}

// older is the one of two frames that was not accessed for longer; -1: there is none.
func (m *Memory) older(a, b int32) int32 {
	if a < 0 || b >= 0 && m.frames[b].stamp < m.frames[a].stamp {
		return b
	}
	return a
}

// oldest is the frame of a tenant that was not accessed for longest and did not just come; -1: there is none.
func (m *Memory) oldest(tenant int32) int32 {
	oldest := int32(-1)
	for id := m.tenants[tenant].spaces; id >= 0; id = m.spaces[id].sibling {
		s := &m.spaces[id]
		if s.newest < 0 {
			continue
		}
		f := m.frames[s.newest].prev
		for n := s.counters.Resident; n > 0 && m.frames[f].fresh == m.turn; n-- {
			m.now++
			m.frames[f].stamp = m.now
			m.renew(s, f)
			f = m.frames[s.newest].prev
		}
		if m.frames[f].fresh == m.turn {
			continue
		}
		oldest = m.older(oldest, f)
	}
	return oldest
}

// waits reports whether a tenant has less than it asks for.
func (t *tenant) waits() bool { return t.held > t.has }

// evict begins to swap a page out.
func (m *Memory) evict(f int32) bool {
	x := &m.frames[f]
	x.gen++
	h, ok := m.remote.Put(m.op(f), m.bytes(f))
	if !ok {
		return false
	}
	s := &m.spaces[x.space]
	e := &s.pages[x.vpn]
	m.lift(s, f)
	m.hold(s, -1)
	e.state, e.handle, x.state = leaving, h, out
	m.out++
	return true
}

// Done ends an operation of the Remote. When it was not successful, a page that
// was to leave stays, and the Remote has forgotten it; a page that was to come
// is lost. It reports whether there was such an operation.
func (m *Memory) Done(op Op, ok bool) bool {
	f := int32(uint32(op))
	if int(f) >= len(m.frames) || f < 0 || m.op(f) != op {
		return false
	}
	x := &m.frames[f]
	id := int(x.space)
	switch x.state {
	case out:
		m.out--
		if id < 0 {
			if ok {
				m.remote.Drop(Handle(x.stamp))
			}
			m.giveFrame(f)
			break
		}
		s := &m.spaces[id]
		if ok {
			s.pages[x.vpn].state = swapped
			s.counters.Swapped++
			s.counters.Out++
			m.giveFrame(f)
		} else {
			m.settle(id, x.vpn, f)
			m.hold(s, 1)
		}
		m.tell(id)
	case in:
		m.in--
		if id < 0 {
			if ok {
				m.remote.Drop(Handle(x.stamp))
			}
			m.giveFrame(f)
			break
		}
		s := &m.spaces[id]
		s.counters.Swapped--
		if ok {
			m.remote.Drop(s.pages[x.vpn].handle)
			s.counters.In++
			m.settle(id, x.vpn, f)
			m.keep(f)
		} else {
			m.hold(s, -1)
			m.giveFrame(f)
			m.lose(id, x.vpn)
		}
		m.tell(id)
	default:
		return false
	}
	m.balance(-1)
	return true
}

// lose stops a space one of whose pages is gone.
func (m *Memory) lose(id int, vpn int32) {
	s := &m.spaces[id]
	s.pages[vpn].state = untouched
	m.tenants[s.tenant].total--
	m.promised++
	m.stop(id, Fault{Space: id, VA: uint64(vpn) << m.shift, Why: Lost})
}

// Lose takes note that pages elsewhere are gone, those whose handles lost
// reports true for: the spaces that they belong to stop. Operations under way
// end by Done as always.
func (m *Memory) Lose(lost func(Handle) bool) {
	for id := range m.spaces {
		s := &m.spaces[id]
		if s.counters.Swapped == 0 {
			continue
		}
		for vpn := range s.pages {
			if e := &s.pages[vpn]; e.state == swapped && lost(e.handle) {
				s.counters.Swapped--
				m.lose(id, int32(vpn))
			}
		}
	}
	m.balance(-1)
}

// Check compares the books with what they are about.
func (m *Memory) Check() error {
	if err := m.checkFrames(); err != nil {
		return err
	}
	return m.checkSpaces()
}

// checkFrames compares what is counted of frames, and the lists of free ones.
func (m *Memory) checkFrames() error {
	n := [lent + 1]int{}
	for f := range m.frames {
		e := &m.frames[f]
		n[e.state]++
		if e.space < 0 || e.state < used || e.state == lent {
			continue
		}
		p := &m.spaces[e.space].pages[e.vpn]
		want := [...]pageState{used: resident, out: leaving, in: arriving}[e.state]
		if p.frame != int32(f) || p.state != want {
			return fmt.Errorf("frame %d is of page %d of space %d, which is elsewhere", f, e.vpn, e.space)
		}
	}
	fresh := 0
	for f := range m.frames {
		if m.frames[f].fresh == m.turn {
			fresh++
		}
	}
	if fresh != m.fresh {
		return fmt.Errorf("%d fresh frames, counted %d", fresh, m.fresh)
	}
	free := len(m.frames) - m.unused
	for _, l := range []struct {
		first int32
		state frameState
	}{{m.cleanList, clean}, {m.dirtyList, dirty}} {
		for f := l.first; f >= 0; f = m.frames[f].next {
			if m.frames[f].state != l.state || free > len(m.frames) {
				return fmt.Errorf("frame %d is in the wrong list", f)
			}
			free++
		}
	}
	if free != m.free || n[clean]+n[dirty] != free || n[out] != m.out || n[in] != m.in || n[lent] != m.lent {
		return fmt.Errorf("frames %v: counted %d free, %d leaving, %d arriving, %d lent", n, m.free, m.out, m.in, m.lent)
	}
	return nil
}

// census counts the pages of a space by what they are: reserved, in memory and swapped; and those that were ever touched, those
// that are promised a frame, and those that hold one or are about to.
func (s *space) census() (c Counters, more struct{ touched, promised, held int }) {
	c.Reserved = len(s.pages)
	for vpn := range s.pages {
		e := &s.pages[vpn]
		if e.state > untouched {
			more.touched++
		}
		switch e.state {
		case unreserved:
			c.Reserved--
		case untouched:
			more.promised++
		case resident:
			more.held++
			c.Resident++
		case arriving:
			more.held++
			c.Swapped++
		case swapped:
			c.Swapped++
		}
	}
	return c, more
}

// checkSpaces compares what is counted of spaces and tenants.
func (m *Memory) checkSpaces() error {
	held := make([]int, len(m.tenants))
	has := make([]int, len(m.tenants))
	touched := make([]int, len(m.tenants))
	promised, queued := 0, 0
	for id := m.first; id >= 0; id = m.spaces[id].after {
		if m.spaces[id].want < 0 {
			return fmt.Errorf("space %d waits for nothing", id)
		}
		queued++
	}
	for id := range m.spaces {
		s := &m.spaces[id]
		c, more := s.census()
		touched[s.tenant] += more.touched
		promised += more.promised
		held[s.tenant] += more.held
		has[s.tenant] += c.Resident
		if o := s.counters; c.Reserved != o.Reserved || c.Resident != o.Resident || c.Swapped != o.Swapped {
			return fmt.Errorf("space %d has %+v, counted %+v", id, c, o)
		}
		ring := 0
		if s.open {
			for f := s.newest; f >= 0; {
				ring++
				older := m.frames[f].next
				if older == s.newest {
					break
				}
				if m.frames[older].stamp > m.frames[f].stamp {
					return fmt.Errorf("space %d: frame %d was accessed before its next", id, f)
				}
				f = older
			}
			if s.want >= 0 {
				held[s.tenant]++
				queued--
			}
		}
		if ring != c.Resident {
			return fmt.Errorf("space %d has %d pages, %d in the ring", id, c.Resident, ring)
		}
	}
	total := 0
	for t := range m.tenants {
		e := &m.tenants[t]
		if e.held != held[t] || e.has != has[t] || e.total != touched[t] {
			return fmt.Errorf("tenant %d has %d of %d and asks for %d, counted %d, %d, %d", t, has[t], touched[t], held[t], e.has, e.total, e.held)
		}
		total += held[t]
	}
	switch {
	case queued != 0:
		return fmt.Errorf("%d more in the queue than wait", queued)
	case total != m.held || promised != m.promised:
		return fmt.Errorf("%d held, %d promised, counted %d and %d", total, promised, m.held, m.promised)
	}
	return nil
}
