package vmem

import (
	"cmp"
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
	// Promise is the number of pages that may be reserved although they have no room here or elsewhere.
	Promise int
	Remote  Remote // nil: there is none
	// Data is the physical memory, Pages pages that hold zeros; nil: Go's.
	Data []byte
	// Clear is the most bytes that an access clears. A first touch that would have to clear more waits
	// for Scrub. 0: an access may clear a page.
	Clear int
}

// Handle names a page at the Remote.
type Handle uint64

// Op is an operation of the Remote that is under way.
type Op uint64

// Remote is the memory of other boards. Its methods must not call the Memory. Operations end by
// Memory.Done.
type Remote interface {
	// Free returns how many more pages the Remote would take, as far as it knows.
	Free() int
	// Put begins to store a page, which does not change until op is done. It returns false, and begins
	// nothing, if there is no room.
	Put(op Op, page []byte) (Handle, bool)
	// Get begins to load a page into the memory page, which belongs to the Remote until op is done. It
	// writes all of it.
	Get(op Op, h Handle, page []byte)
	// Drop forgets a page, on which no operation is under way.
	Drop(h Handle)
}

// Perm says which accesses a page permits.
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

// Status says how an access ended.
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

// Cause describes the fault without the space's number.
func (f Fault) Cause() string {
	switch f.Why {
	case Outside:
		return fmt.Sprintf("%v at %#x: nothing is reserved there", f.Access, f.VA)
	case Denied:
		return fmt.Sprintf("%v at %#x: not permitted", f.Access, f.VA)
	}
	return fmt.Sprintf("the page at %#x is lost with the board that had it", f.VA)
}

// ErrNoRoom is wrapped by errors of Reserve if no board has room.
var ErrNoRoom = errors.New("no board has room")

// Counters counts the pages and faults of a space.
type Counters struct {
	Reserved, Resident, Swapped int    // at present; Swapped with those on the way back
	Touched, Out, In, Refused   uint64 // since Open
	Faults                      uint64 // accesses of the stopped space among them
}

// Memory is the memory of a board.
type Memory struct {
	pager   pager
	promise int // pages that may be reserved beyond those that have room
}

// New makes a Memory, or returns an error for a bad Config.
func New(c Config) (*Memory, error) {
	c.PageBytes = cmp.Or(c.PageBytes, PageBytes)
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
	c.Clear = cmp.Or(c.Clear, c.PageBytes)
	m := &Memory{
		pager: pager{
			frames: frames{
				data:      c.Data,
				shift:     uint(bits.TrailingZeros(uint(c.PageBytes))),
				mask:      uint64(c.PageBytes - 1),
				all:       make([]frame, c.Pages),
				cleanList: -1,
				dirtyList: -1,
				free:      c.Pages,
				atOnce:    c.Clear,
				turn:      1,
			},
			shares: shares{
				tenants: make([]tenant, c.Tenants),
				solver:  drf.New(c.Tenants, 1),
				active:  make([]int32, c.Tenants),
				weight:  make([]float64, c.Tenants),
				demand:  make([]float64, c.Tenants),
				grant:   make([]float64, c.Tenants),
			},
			spaces: make([]space, c.Spaces),
			remote: c.Remote,
			first:  -1, last: -1, wakeFirst: -1, wakeLast: -1,
		},
		promise: c.Promise,
	}
	for i := range m.pager.spaces {
		m.pager.spaces[i].wake = -2
	}
	for i := range m.pager.shares.tenants {
		m.pager.shares.tenants[i] = tenant{weight: 1, spaces: -1}
	}
	return m, nil
}

// SetWeight sets a tenant's weight, 1 by default.
func (m *Memory) SetWeight(tenant int, weight float64) error {
	switch {
	case tenant < 0 || tenant >= len(m.pager.shares.tenants):
		return fmt.Errorf("vmem: tenant %d: there are %d", tenant, len(m.pager.shares.tenants))
	case !(weight >= 1./maxWeight && weight <= maxWeight):
		return fmt.Errorf("vmem: weight %g of tenant %d: want from 1/%d to %d", weight, tenant, maxWeight, maxWeight)
	}
	m.pager.shares.tenants[tenant].weight = weight
	return nil
}

// SetOther sets the greatest share that a tenant has of a resource other than memory, 0 to 1. If it is
// greater than the tenant's share of memory, it is the tenant's dominant share.
func (m *Memory) SetOther(tenant int, share float64) error {
	switch {
	case tenant < 0 || tenant >= len(m.pager.shares.tenants):
		return fmt.Errorf("vmem: tenant %d: there are %d", tenant, len(m.pager.shares.tenants))
	case !(share >= 0 && share <= 1):
		return fmt.Errorf("vmem: share %g of tenant %d: want from 0 to 1", share, tenant)
	}
	m.pager.shares.tenants[tenant].other = share
	return nil
}

// SetFair sets whether tenants have shares; they have by default. Without shares, a space that needs a frame gets
// that of the least recently accessed page of all tenants.
func (m *Memory) SetFair(on bool) { m.pager.shares.unfair = !on }

// Open begins a space of so many virtual pages, none of them reserved.
func (m *Memory) Open(id, tenant, pages int) error {
	switch {
	case id < 0 || id >= len(m.pager.spaces):
		return fmt.Errorf("vmem: space %d: there are %d", id, len(m.pager.spaces))
	case m.pager.spaces[id].open:
		return fmt.Errorf("vmem: space %d is open", id)
	case tenant < 0 || tenant >= len(m.pager.shares.tenants):
		return fmt.Errorf("vmem: tenant %d: there are %d", tenant, len(m.pager.shares.tenants))
	case pages < 1 || pages > maxPages:
		return fmt.Errorf("vmem: %d virtual pages of space %d: want 1 to %d", pages, id, maxPages)
	}
	s, o := &m.pager.spaces[id], &m.pager.shares.tenants[tenant]
	table := make([]page, pages)
	*s = space{table: table, pages: table, newest: -1, tenant: int32(tenant), sibling: o.spaces,
		want: -1, after: -1, before: -1, wake: s.wake, open: true}
	o.spaces = int32(id)
	return nil
}

// Grow enlarges a space to pages virtual pages. The new pages are not reserved; the old ones stay as they are.
func (m *Memory) Grow(id, pages int) error {
	switch {
	case id < 0 || id >= len(m.pager.spaces) || !m.pager.spaces[id].open:
		return fmt.Errorf("vmem: space %d is not open", id)
	case m.pager.spaces[id].stopped:
		return fmt.Errorf("vmem: space %d has stopped: %w", id, m.pager.spaces[id].fault)
	case pages < len(m.pager.spaces[id].pages) || pages > maxPages:
		return fmt.Errorf("vmem: %d virtual pages of space %d: want %d to %d", pages, id, len(m.pager.spaces[id].pages), maxPages)
	}
	s := &m.pager.spaces[id]
	table := make([]page, pages)
	copy(table, s.pages)
	s.table, s.pages = table, table
	return nil
}

// Close ends a space and frees all of its pages, here and elsewhere.
func (m *Memory) Close(id int) error {
	if id < 0 || id >= len(m.pager.spaces) || !m.pager.spaces[id].open {
		return fmt.Errorf("vmem: space %d is not open", id)
	}
	s := &m.pager.spaces[id]
	m.pager.unwant(id)
	for vpn := range s.pages {
		m.pager.release(s, vpn)
	}
	m.leave(id)
	*s = space{wake: s.wake}
	m.pager.balance(-1)
	return nil
}

// Frees returns how many more pages can be reserved as soon as a space is closed. It does not count pages that
// are on their way to or from the Remote.
func (m *Memory) Frees(id int) (n int) {
	if id < 0 || id >= len(m.pager.spaces) {
		return 0
	}
	for i := range m.pager.spaces[id].pages {
		switch m.pager.spaces[id].pages[i].state {
		case untouched, resident, swapped:
			n++
		}
	}
	return n
}

// leave takes a space out of the list of its tenant.
func (m *Memory) leave(id int) {
	s := &m.pager.spaces[id]
	at := &m.pager.shares.tenants[s.tenant].spaces
	for *at != int32(id) {
		at = &m.pager.spaces[*at].sibling
	}
	*at = s.sibling
}

// Move gives a space, with all of its pages, to another tenant.
func (m *Memory) Move(id, tenant int) error {
	switch {
	case id < 0 || id >= len(m.pager.spaces) || !m.pager.spaces[id].open:
		return fmt.Errorf("vmem: space %d is not open", id)
	case tenant < 0 || tenant >= len(m.pager.shares.tenants):
		return fmt.Errorf("vmem: tenant %d: there are %d", tenant, len(m.pager.shares.tenants))
	}
	s := &m.pager.spaces[id]
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
	from, to := &m.pager.shares.tenants[s.tenant], &m.pager.shares.tenants[tenant]
	from.held, from.has, from.total = from.held-held, from.has-s.counters.Resident, from.total-total
	to.held, to.has, to.total = to.held+held, to.has+s.counters.Resident, to.total+total
	s.tenant, s.sibling = int32(tenant), to.spaces
	to.spaces = int32(id)
	m.pager.balance(-1)
	return nil
}

// span returns the pages from to to-1 of a range, or an error if the range is not valid.
func (m *Memory) span(id int, va uint64, length int) (s *space, from, to int, err error) {
	if id < 0 || id >= len(m.pager.spaces) || !m.pager.spaces[id].open {
		return nil, 0, 0, fmt.Errorf("vmem: space %d is not open", id)
	}
	s = &m.pager.spaces[id]
	switch size := uint64(len(s.pages)) << m.pager.frames.shift; {
	case s.stopped:
		return nil, 0, 0, fmt.Errorf("vmem: space %d has stopped: %w", id, s.fault)
	case va&m.pager.frames.mask != 0 || length <= 0 || uint64(length)&m.pager.frames.mask != 0:
		return nil, 0, 0, fmt.Errorf("vmem: space %d: range of %d bytes at %#x: want whole pages of %d bytes", id, length, va, m.pager.frames.mask+1)
	case va >= size || uint64(length) > size-va:
		return nil, 0, 0, fmt.Errorf("vmem: space %d: range of %d bytes at %#x: the space ends at %#x", id, length, va, size)
	}
	return s, int(va >> m.pager.frames.shift), int((va + uint64(length)) >> m.pager.frames.shift), nil
}

// Reserve makes a range of whole pages usable. None of them may be reserved before. The error wraps
// ErrNoRoom if there is no room for them.
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
			return fmt.Errorf("vmem: space %d: the page at %#x is reserved", id, uint64(vpn)<<m.pager.frames.shift)
		}
	}
	if n := to - from; n > m.Room() {
		return fmt.Errorf("vmem: space %d: %d pages: there is room for %d: %w", id, n, m.Room(), ErrNoRoom)
	}
	for vpn := from; vpn < to; vpn++ {
		s.pages[vpn] = page{state: untouched, perm: perm}
	}
	s.counters.Reserved += to - from
	m.pager.promised += to - from
	return nil
}

// Room returns how many more pages can be reserved.
func (m *Memory) Room() int {
	room := m.pager.frames.free - m.pager.spare() - m.pager.promised + min(m.promise, maxRoom)
	if m.pager.remote != nil {
		room += min(m.pager.remote.Free(), maxRoom) + m.pager.out
	}
	return max(room, 0)
}

// Page returns the bytes from va to the end of its page, for access in place. p says which access will
// follow. The slice is valid until the next call of any method.
func (m *Memory) Page(id int, va uint64, p Perm) ([]byte, Status) {
	if uint(id) < uint(len(m.pager.spaces)) {
		s, fr := &m.pager.spaces[id], &m.pager.frames
		if vpn := va >> fr.shift; vpn < uint64(len(s.table)) {
			if e := &s.table[vpn]; e.state == resident && e.perm&p == p {
				f := &fr.all[e.frame]
				fr.now++
				f.stamp = fr.now
				if s.newest != e.frame {
					fr.renew(s, e.frame)
				}
				if f.fresh != 0 {
					fr.accessed(f)
				}
				at := uint64(e.frame) << fr.shift
				end := at + fr.mask + 1
				return fr.data[at+va&fr.mask : end : end], OK
			}
		}
	}
	return m.miss(id, va, p)
}

// Read copies from va to p. It returns how many bytes it read, fewer than len(p) if the status is not OK.
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

// Write copies from p to va. It returns how many bytes it wrote, fewer than len(p) if the status is not OK.
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

// miss handles an access to a page that is not resident, or not permitted.
func (m *Memory) miss(id int, va uint64, p Perm) ([]byte, Status) {
	if id < 0 || id >= len(m.pager.spaces) || !m.pager.spaces[id].open {
		return nil, Faulted
	}
	s := &m.pager.spaces[id]
	vpn := va >> m.pager.frames.shift
	switch {
	case s.stopped:
		s.counters.Faults++
		return nil, Faulted
	case vpn >= uint64(len(s.pages)) || s.pages[vpn].state == unreserved:
		m.pager.stop(id, Fault{id, va, p, Outside})
		return nil, Faulted
	case s.pages[vpn].perm&p != p:
		m.pager.stop(id, Fault{id, va, p, Denied})
		return nil, Faulted
	}
	switch e := &s.pages[vpn]; e.state {
	case untouched, swapped:
		if s.want >= 0 {
			return nil, Wait
		}
		m.pager.want(id, int32(vpn))
		m.pager.balance(id)
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

// Err returns the Fault that stopped a space, nil if it has not stopped, or an error if it is not open.
func (m *Memory) Err(id int) error {
	if id < 0 || id >= len(m.pager.spaces) || !m.pager.spaces[id].open {
		return fmt.Errorf("vmem: space %d is not open", id)
	}
	if s := &m.pager.spaces[id]; s.stopped {
		return s.fault
	}
	return nil
}

// Counters returns the counters of a space.
func (m *Memory) Counters(id int) Counters { return m.pager.spaces[id].counters }

// Held returns a tenant's demand: how many frames it has or waits for, those included into which a
// page is being loaded.
func (m *Memory) Held(tenant int) int { return m.pager.shares.tenants[tenant].held }

// Share returns how many frames a tenant has a right to at present, whatever other tenants want; never
// more than it asks for. Without shares (SetFair) it is 0.
func (m *Memory) Share(tenant int) float64 {
	return m.pager.shares.right(int32(tenant), m.pager.usable())
}

// Lending returns how many frames are lent to other boards.
func (m *Memory) Lending() int { return m.pager.frames.lent }

// Idle returns how many frames are free.
func (m *Memory) Idle() int { return m.pager.frames.free }

// Used returns how many frames have ever been taken. All other frames take no memory of the machine.
func (m *Memory) Used() int { return m.pager.frames.unused }

// Free returns how many frames this board can lend to others.
func (m *Memory) Free() int { return max(0, m.pager.frames.free-m.pager.spare()-m.pager.promised) }

// Lend lends a frame of zeros, for a page of another board. It returns false if all free frames are
// needed for pages that are reserved here.
func (m *Memory) Lend() (loan int, page []byte, ok bool) { return m.lend(true) }

// LendAsIs is Lend for a frame that may hold bytes of an earlier user: the caller must write all of it before
// anyone can read it.
func (m *Memory) LendAsIs() (loan int, page []byte, ok bool) { return m.lend(false) }

func (m *Memory) lend(zeros bool) (loan int, page []byte, ok bool) {
	if m.Free() == 0 || m.pager.first >= 0 {
		return 0, nil, false
	}
	f := m.pager.frames.take(zeros)
	m.pager.frames.all[f].state = lent
	m.pager.frames.lent++
	return int(f), m.pager.frames.bytes(f), true
}

// Lent returns the memory of a loan, or nil if there is no such loan.
func (m *Memory) Lent(loan int) []byte {
	if loan < 0 || loan >= len(m.pager.frames.all) || m.pager.frames.all[loan].state != lent {
		return nil
	}
	return m.pager.frames.bytes(int32(loan))
}

// Return ends a loan.
func (m *Memory) Return(loan int) error {
	if m.Lent(loan) == nil {
		return fmt.Errorf("vmem: frame %d is not lent", loan)
	}
	m.pager.frames.lent--
	m.pager.frames.give(int32(loan))
	m.pager.balance(-1)
	return nil
}

// Scrub clears up to so many bytes of free frames, so that their first touch need not, and returns how many it
// cleared. The next call continues a frame that was cleared in part.
func (m *Memory) Scrub(bytes int) int {
	n := m.pager.frames.scrub(bytes)
	if m.pager.first >= 0 {
		m.pager.balance(-1)
	}
	return n
}

// Dirty reports whether there are frames to Scrub, and whether an access waits for that (urgent).
func (m *Memory) Dirty() (some, urgent bool) {
	return m.pager.frames.dirtyList >= 0, m.pager.urgent()
}

// Next returns a space whose accesses may go on, or that has stopped; it returns each space once. The
// caller must call it until it returns false: after Done, and after an access that returned Wait. Until
// then a page that came for a space is not taken away, unless the space has accessed it.
func (m *Memory) Next() (id int, ok bool) {
	if m.pager.wakeFirst < 0 && m.pager.first >= 0 {
		m.pager.frames.turn = max(m.pager.frames.turn+1, 1) // 0 means none
		m.pager.frames.fresh = 0
		m.pager.balance(-1)
	}
	if m.pager.wakeFirst < 0 {
		return 0, false
	}
	id = int(m.pager.wakeFirst)
	s := &m.pager.spaces[id]
	m.pager.wakeFirst = s.wake
	if m.pager.wakeFirst < 0 {
		m.pager.wakeLast = -1
	}
	s.wake = -2
	return id, true
}

// Done ends an operation of the Remote; ok says whether it was successful. If a Put was not, the page
// stays here, and the Remote must have forgotten it. If a Get was not, the page is lost. Done reports
// whether there was such an operation.
func (m *Memory) Done(op Op, ok bool) bool { return m.pager.done(op, ok) }

// Lose takes note that the Remote has lost the pages for whose handles lost returns true: their spaces
// stop. Operations under way must still be ended by Done.
func (m *Memory) Lose(lost func(Handle) bool) {
	for id := range m.pager.spaces {
		s := &m.pager.spaces[id]
		if s.counters.Swapped == 0 {
			continue
		}
		for vpn := range s.pages {
			if e := &s.pages[vpn]; e.state == swapped && lost(e.handle) {
				s.counters.Swapped--
				m.pager.lose(id, int32(vpn))
			}
		}
	}
	m.pager.balance(-1)
}

// Check returns an error if counters and lists contradict the pages and frames.
func (m *Memory) Check() error {
	if err := m.checkFrames(); err != nil {
		return err
	}
	return m.checkSpaces()
}

// checkFrames compares what is counted of frames, and the lists of free ones.
func (m *Memory) checkFrames() error {
	n := [lent + 1]int{}
	for f := range m.pager.frames.all {
		e := &m.pager.frames.all[f]
		n[e.state]++
		if e.space < 0 || e.state < used || e.state == lent {
			continue
		}
		p := &m.pager.spaces[e.space].pages[e.vpn]
		want := [...]pageState{used: resident, out: leaving, in: arriving}[e.state]
		if p.frame != int32(f) || p.state != want {
			return fmt.Errorf("frame %d is of page %d of space %d, which is elsewhere", f, e.vpn, e.space)
		}
	}
	fresh := 0
	for f := range m.pager.frames.all {
		if m.pager.frames.all[f].fresh == m.pager.frames.turn {
			fresh++
		}
	}
	if fresh != m.pager.frames.fresh {
		return fmt.Errorf("%d fresh frames, counted %d", fresh, m.pager.frames.fresh)
	}
	free := len(m.pager.frames.all) - m.pager.frames.unused
	for _, l := range []struct {
		first int32
		state frameState
	}{{m.pager.frames.cleanList, clean}, {m.pager.frames.dirtyList, dirty}} {
		for f := l.first; f >= 0; f = m.pager.frames.all[f].next {
			if m.pager.frames.all[f].state != l.state || free > len(m.pager.frames.all) {
				return fmt.Errorf("frame %d is in the wrong list", f)
			}
			free++
		}
	}
	if free != m.pager.frames.free || n[clean]+n[dirty] != free || n[out] != m.pager.out || n[in] != m.pager.in || n[lent] != m.pager.frames.lent {
		return fmt.Errorf("frames %v: counted %d free, %d leaving, %d arriving, %d lent", n, m.pager.frames.free, m.pager.out, m.pager.in, m.pager.frames.lent)
	}
	return nil
}

// census counts the pages of a space by what they are: reserved, in memory and swapped; and those that were
// ever touched, those that are promised a frame, and those that hold one or are about to.
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
	held := make([]int, len(m.pager.shares.tenants))
	has := make([]int, len(m.pager.shares.tenants))
	touched := make([]int, len(m.pager.shares.tenants))
	promised, queued := 0, 0
	for id := m.pager.first; id >= 0; id = m.pager.spaces[id].after {
		if m.pager.spaces[id].want < 0 {
			return fmt.Errorf("space %d waits for nothing", id)
		}
		queued++
	}
	for id := range m.pager.spaces {
		s := &m.pager.spaces[id]
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
				older := m.pager.frames.all[f].next
				if older == s.newest {
					break
				}
				if m.pager.frames.all[older].stamp > m.pager.frames.all[f].stamp {
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
	for t := range m.pager.shares.tenants {
		e := &m.pager.shares.tenants[t]
		if e.held != held[t] || e.has != has[t] || e.total != touched[t] {
			return fmt.Errorf("tenant %d has %d of %d and asks for %d, counted %d, %d, %d", t, has[t], touched[t], held[t], e.has, e.total, e.held)
		}
		total += held[t]
	}
	switch {
	case queued != 0:
		return fmt.Errorf("%d more in the queue than wait", queued)
	case total != m.pager.shares.held || promised != m.pager.promised:
		return fmt.Errorf("%d held, %d promised, counted %d and %d", total, promised, m.pager.shares.held, m.pager.promised)
	}
	return nil
}
