package clover

import (
	"errors"
	"fmt"
	"time"

	"github.com/quillon/quillon/nf/clock"
	wire "github.com/quillon/quillon/nf/hdr/clover"
	"github.com/quillon/quillon/rack/rnic"
)

// Errors of operations.
var (
	// ErrBusy: the session has an operation under way.
	ErrBusy = errors.New("session is busy")
	// ErrNotFound: no such key.
	ErrNotFound = errors.New("key not found")
	// ErrTooLong: no slab class holds the value.
	ErrTooLong = errors.New("value is longer than the largest slab")
	// ErrStale: what was read was the entry of another key, or had another version, more often than recycling
	// explains.
	ErrStale = errors.New("entry is stale however often the metadata server is asked")
	// ErrEndless: a chain is longer than there are entries.
	ErrEndless = errors.New("chain has no end")
	// ErrServer: the metadata server refused a request.
	ErrServer = errors.New("metadata server refused")
)

// plainAfter is how many steps along a chain a read makes with READs of whole entries. If it has not reached
// the tail then, a middlebox may be leading it back to an entry that is no longer in use. The search goes on
// with READs of headers.
const plainAfter = 32

// maxStale is how many stale entries one operation may meet.
const maxStale = 64

// Result is the outcome of an operation.
type Result struct {
	Session int
	Key     uint64
	Write   bool
	Err     error
	// FirstTry: a read found the tail with its first READ; a write linked its entry with its first CAS.
	// Neither asked the metadata server.
	FirstTry bool
	// RoundTrips is how many requests the operation waited for, one after
	// the other.
	RoundTrips int
	Start, End clock.Time
	// Value of a read, valid until the callback returns.
	Value []byte
	// Entry is the entry that the write linked, or that the read found.
	Entry Pointer
}

// Latency is how long the operation took.
func (r *Result) Latency() time.Duration { return r.End.Sub(r.Start) }

// ClientStats are a compute node's totals.
type ClientStats struct {
	Reads, Writes, FirstTry, Errors uint64
	RoundTrips                      uint64
	// Hops are steps from an entry to its successor, in reads and in writes that search for the tail.
	Hops, HeaderReads uint64
	// CASFailed counts CASes that found another value than expected. FoundOwn counts writes that then found
	// their entry linked already.
	CASFailed, FoundOwn      uint64
	Stale, Queries, Grants   uint64
	ShortcutWrites, GCRecord uint64
}

// keyState is what a compute node knows about a key.
type keyState struct {
	key  uint64
	tail Pointer // cached; 0 = unknown
	slot uint32  // of its shortcut; 0 = unknown
	// Work for the background.
	scPtr Pointer // what to write to the shortcut; 0 = nothing
	gcOld Pointer
	gcNew Pointer // 0 = nothing to report
}

// Client is the client library on one compute node. Its sessions (Clover's client threads) share a cache and
// a pool of granted entries; with SearchLibrary each session has granted entries of its own. It implements
// host.App. Everything runs on the goroutine of its node.
//
// # Writing
//
// A write puts its value into a new entry E, then compares-and-swaps the header of the entry T that the cache
// believes to be the key's tail. T is fixed before the first CAS of E is posted. If the CAS finds another
// value, the search for the real tail follows headers from T. It never uses a shortcut or the cache: both may
// by now name an entry that a middlebox linked behind E, because the middlebox expected E's CAS to succeed.
// To link E there would close a cycle. T was linked before E could have a successor, so no chain that starts
// at T leads through E unless E is linked. A search that meets E therefore means success. If T was recycled
// meanwhile, the metadata server tells the head of the chain, or that it has seen E linked.
//
// With SearchLibrary a write does follow shortcuts, as Clover's library does. This is safe where nothing in
// the network leads CASes (Config.Direct): no entry has a successor before it is linked. Elsewhere the writer
// reads the header of its own entry E once it has found the tail. If E has a successor, the writer searches
// from T, by headers. Why this is enough: say that E had no successor at time t, and is then linked behind a
// tail that was named before t. A cycle needs that tail to be behind another unlinked entry G, so G had a
// successor before t, and G is linked behind E after t. G's writer follows no shortcut, since G has a
// successor. G's own T was linked before G had a successor, so before t, when nothing was behind E.
//
// # What a middlebox may do
//
// A middlebox may redirect the first CAS of an entry. It may redirect the CAS to an entry whose own first CAS
// it has seen and that is not linked yet, with the compare value that belongs to that entry's version. It
// must answer in the terms of the request: the original value equals the compare value exactly when the swap
// took place. (A client that takes a success for a failure links its entry a second time, which can close a
// cycle when the first place is not linked itself.) It must not change later CASes of an entry, nor READs of
// 8 bytes. It may answer a READ of an entry with a later entry of the same key, with the version that the
// client asked for. It may lose frames, and forget anything.
//
// # Reading
//
// A read accepts an entry only when the version is the one expected and the key is the one asked for;
// otherwise it asks the metadata server. A read that does not reach the tail in some tens of steps goes on by
// headers, which no middlebox redirects, and reads the tail in two pieces.
type Client struct {
	pd       *rnic.PD
	cq       *rnic.CQ
	index    uint32
	layout   Layout
	slabs    []int // ascending
	mtu      int   // of the paths to the memory nodes
	entries  int   // in the whole store
	pool     []queue[Pointer]
	keys     map[uint64]*keyState
	spare    []keyState // allocated ahead
	sessions []*Session
	asking   []*Session        // sessions that wait for a reply
	hungry   []queue[*Session] // by class: waiting for a granted entry
	used     []bool            // by class: some session writes such entries
	done     func(*Result)
	eager    bool // a read's first READ has a READ of the shortcut beside it
	search   Search
	direct   bool // nothing in the network leads CASes
	work     Work
	thinking []*Session // a heap: the first is the session whose work ends first
	bg       background
	stats    ClientStats
	now      clock.Time
	wcs      [64]rnic.WC
	err      error // what stopped the client, if anything
}

type step uint8

const (
	stepIdle  step = iota
	stepQuery      // asks the metadata server for the key
	stepRead       // reads an entry, and for the first step the shortcut with it
	stepPlain      // reads an entry's header only
	stepBody       // reads the tail without its header, then the header
	stepSpace      // waits for a granted entry
	stepWrite      // writes the new entry
	stepLink       // compares-and-swaps the tail
	stepFind       // reads headers to find the tail
	stepOwn        // asks the metadata server for the key, and whether the new entry is linked
	stepOpen       // has the metadata server create the key
	stepChase      // reads an entry's header and the shortcut
	stepSelf       // reads the new entry's header
	stepAsk        // asks the metadata server for entries
	stepThink      // the library's own work takes this time
)

// Session is a client thread. It has one operation at a time, and always uses the same queue pairs.
type Session struct {
	c      *Client
	index  int
	id     uint64
	ready  clock.Time // when its work ends
	memory []*rnic.QP // by memory node
	rpc    rpc

	step    step
	then    step // the step that goes on when the work has ended
	res     Result
	k       *keyState
	class   int
	start   Pointer // the cached tail with which a search began
	cur     Pointer // the entry that is being looked at
	own     Pointer // the new entry
	anchor  Pointer // the entry that the first CAS of own goes to
	back    Pointer // where the search goes on if the shortcut leads nowhere
	pending int     // completions that the step waits for
	stale   int
	hops    int              // since the search began
	jumped  bool             // the shortcut was read
	open    bool             // the key does not exist yet
	large   bool             // the READ's answer has several packets
	plain   bool             // reads nothing that a middlebox may redirect
	leapt   bool             // a shortcut led to the place where the write searches
	careful bool             // a write searches by headers
	mine    []queue[Pointer] // by class: granted entries, if threads do not share them

	entry    []byte // of the largest slab
	out      []byte // the new entry as it is written
	outLen   int
	word     [8]byte // header, or what the CAS found
	shortcut [8]byte
	wr       rnic.SendWR
	sgl      [1][]byte
}

// IDs of completions: session<<8 | kind. Those of the background have the top bit.
const (
	wcEntry = iota
	wcShortcut
	wcWrite
	wcCAS
	wcHeader
	wcRPC
	idBackground = 1 << 63
)

// Stats may be called by the owner's goroutine only.
func (c *Client) Stats() ClientStats { return c.stats }

// Ready reports whether the client knows the layout. An error: the client has stopped, now or before it was
// ready.
func (c *Client) Ready() (bool, error) { return c.bg.ready, c.err }

// Quiet reports whether nothing is under way: no operation, no shortcut to write, nothing to report.
func (c *Client) Quiet() bool {
	for _, s := range c.sessions {
		if s.step != stepIdle {
			return false
		}
	}
	return c.bg.quiet(c)
}

// Step implements host.App.
func (c *Client) Step(now clock.Time) bool {
	c.now = now
	did := false
	for {
		k := c.cq.Poll(c.wcs[:])
		for i := range c.wcs[:k] {
			w := &c.wcs[i]
			if w.ID&idBackground != 0 {
				c.bg.complete(c, w)
				continue
			}
			c.sessions[w.ID>>8].complete(w)
		}
		if k == 0 {
			break
		}
		did = true
	}
	for i := 0; i < len(c.asking); {
		s := c.asking[i]
		if !s.rpc.take() {
			i++
			continue
		}
		last := len(c.asking) - 1
		c.asking[i] = c.asking[last]
		c.asking = c.asking[:last]
		s.replied()
		did = true
	}
	did = c.thought() || did
	return c.bg.step(c) || did
}

// Deadline implements host.App.
func (c *Client) Deadline() clock.Time {
	d := c.bg.deadline()
	if len(c.thinking) > 0 {
		d = min(d, c.thinking[0].ready)
	}
	return d
}

// look finds the state of a key, or makes one.
func (c *Client) look(key uint64) *keyState {
	if k := c.keys[key]; k != nil {
		return k
	}
	if len(c.spare) == 0 {
		c.spare = make([]keyState, 256)
	}
	k := &c.spare[0]
	c.spare = c.spare[1:]
	k.key = key
	c.keys[key] = k
	return k
}

// classFor is the smallest class that holds a value of n bytes; -1: none.
func (c *Client) classFor(n int) int {
	for i, s := range c.slabs {
		if n <= s-ValueAt {
			return i
		}
	}
	return -1
}

// Read starts to read a key.
func (s *Session) Read(now clock.Time, key uint64) error {
	if s.step != stepIdle {
		return ErrBusy
	}
	s.begin(now, key, false)
	if d := s.c.work.Between + s.c.work.Read; d > 0 {
		s.think(d)
		return nil
	}
	s.locate()
	return nil
}

// Write starts to write a key. It copies value.
func (s *Session) Write(now clock.Time, key uint64, value []byte) error {
	if s.step != stepIdle {
		return ErrBusy
	}
	class := s.c.classFor(len(value))
	if class < 0 {
		return fmt.Errorf("clover: %d bytes: %w", len(value), ErrTooLong)
	}
	s.begin(now, key, true)
	s.class = class
	s.outLen = s.c.slabs[class]
	out := s.out[:s.outLen]
	put64(out, wire.KeyAt, key)
	clear(out[ValueAt+copy(out[ValueAt:], value):])
	if d := s.c.work.Between + s.c.work.Write; d > 0 {
		s.think(d)
		return nil
	}
	s.write()
	return nil
}

func (s *Session) write() {
	if s.k.tail == 0 {
		s.locate()
	} else {
		s.obtain()
	}
}

func (s *Session) begin(now clock.Time, key uint64, write bool) {
	s.c.now = now
	s.res = Result{Session: s.index, Key: key, Write: write, FirstTry: true, Start: now.Add(s.c.work.Between)}
	s.k = s.c.look(key)
	s.start, s.cur, s.own, s.back = 0, 0, 0, 0
	s.pending, s.stale, s.hops = 0, 0, 0
	s.jumped, s.open, s.plain = false, false, false
	s.leapt, s.careful = false, s.c.search == SearchHeaders
}

func (s *Session) finish(err error) {
	s.step = stepIdle
	r := &s.res
	r.Err, r.End = err, s.c.now
	st := &s.c.stats
	st.RoundTrips += uint64(r.RoundTrips)
	switch {
	case err != nil:
		r.FirstTry = false
		st.Errors++
	case r.Write:
		st.Writes++
	default:
		st.Reads++
	}
	if r.FirstTry {
		st.FirstTry++
	}
	if s.c.done != nil {
		s.c.done(r)
	}
}

func (s *Session) complete(w *rnic.WC) {
	kind := w.ID & 0xFF
	if kind == wcRPC {
		s.rpc.sent = true
		if w.Status == rnic.Success {
			return
		}
		s.rpc.busy = false
		for i, x := range s.c.asking {
			if x == s {
				last := len(s.c.asking) - 1
				s.c.asking[i] = s.c.asking[last]
				s.c.asking = s.c.asking[:last]
				break
			}
		}
	}
	s.pending--
	if w.Status != rnic.Success && s.res.Err == nil {
		s.res.Err = fmt.Errorf("clover: queue pair %#x: completion status %d", w.QPN, w.Status)
	}
	if s.step == stepIdle || s.pending > 0 {
		return
	}
	if s.res.Err != nil {
		s.finish(s.res.Err)
		return
	}
	if s.c.work.Round > 0 {
		s.think(s.c.work.Round)
		return
	}
	s.arrived()
}

// arrived goes on when the completions of the step's requests are there.
func (s *Session) arrived() {
	switch s.step {
	case stepRead, stepPlain, stepBody:
		s.examine()
	case stepWrite:
		s.written()
	case stepLink:
		s.linked()
	case stepFind:
		s.found()
	case stepChase:
		s.chased()
	case stepSelf:
		s.itself()
	}
}

// post sends a request to the memory node of sp, for address va of it.
func (s *Session) post(kind uint64, op rnic.Op, sp *Space, va uint64, buf []byte) {
	s.sgl[0] = buf
	s.wr.ID, s.wr.Op, s.wr.SGL, s.wr.RemoteAddr, s.wr.RKey, s.wr.Signaled = s.id|kind, op, s.sgl[:], va, sp.RKey, true
	if err := s.memory[sp.Node].PostSend(&s.wr); err != nil {
		s.res.Err = fmt.Errorf("clover: post to memory node %d: %w", sp.Node, err)
		return
	}
	s.pending++
}

// settle ends the operation when its request could not be posted and nothing is under way.
func (s *Session) settle() {
	if s.res.Err != nil && s.pending == 0 {
		s.finish(s.res.Err)
	}
}

// locate starts, or restarts, the search for the tail of the key.
func (s *Session) locate() {
	s.start = s.k.tail
	if s.start == 0 {
		s.query(stepQuery)
		return
	}
	clear(s.shortcut[:])
	s.readEntry(s.start, s.c.eager)
}

func (s *Session) readEntry(p Pointer, shortcut bool) {
	sp, va := s.c.layout.Entry(p.LH())
	if sp == nil {
		s.cur = p
		s.refused()
		return
	}
	s.cur, s.step, s.large = p, stepRead, false
	s.res.RoundTrips++
	if s.plain {
		s.step = stepPlain
		s.c.stats.HeaderReads++
		s.post(wcHeader, rnic.OpRead, sp, va, s.word[:])
		s.settle()
		return
	}
	s.post(wcEntry, rnic.OpRead, sp, va, s.entry[:sp.Slab])
	if s.large = int(sp.Slab) > s.c.mtu; s.large {
		// The entry can be written anew between two packets of the answer: the header is read again behind
		// it.
		s.post(wcHeader, rnic.OpRead, sp, va, s.word[:])
	}
	if shortcut {
		if ss, sva := s.c.layout.Shortcut(s.k.slot); ss != nil {
			s.post(wcShortcut, rnic.OpRead, ss, sva, s.shortcut[:])
		}
	}
	s.settle()
}

// body reads the tail, whose header was seen, without its header, and then the header again. If the version
// in this header is still right, the bytes that were read belong to the entry.
func (s *Session) body() {
	sp, va := s.c.layout.Entry(s.cur.LH())
	s.step = stepBody
	s.res.RoundTrips++
	s.post(wcEntry, rnic.OpRead, sp, va+wire.HeaderLen, s.entry[wire.HeaderLen:sp.Slab])
	s.post(wcHeader, rnic.OpRead, sp, va, s.word[:])
	s.settle()
}

// examine looks at the entry that was read, or at its header.
func (s *Session) examine() {
	if s.step != stepRead {
		copy(s.entry, s.word[:])
	}
	h := pointerAt(s.entry, 0)
	if s.large && pointerAt(s.word[:], 0).Version() != s.cur.Version() ||
		h.Version() != s.cur.Version() || s.step != stepPlain && u64(s.entry, wire.KeyAt) != s.res.Key {
		s.refused()
		return
	}
	next := h.Next()
	if next == 0 {
		if s.step == stepPlain {
			s.body()
			return
		}
		s.tail()
		return
	}
	s.res.FirstTry = false
	most := plainAfter
	if s.c.search == SearchLibrary {
		// Clover's readers read whole entries however far they go: only one that may go round in circles does not.
		most = max(plainAfter, s.c.entries/2)
	}
	if s.hops >= most {
		s.plain, s.jumped = true, true
	}
	if s.endless() {
		return
	}
	if !s.jumped {
		// The first step: the successor, and the shortcut beside it.
		if s.back == 0 && !s.c.eager {
			s.back = next
			clear(s.shortcut[:])
			s.readEntry(next, true)
			return
		}
		s.jumped = true
		sc := pointerAt(s.shortcut[:], 0)
		if sc != 0 && (s.c.search == SearchLibrary || sc != s.start && sc != s.cur && sc != next) {
			s.back = next
			s.readEntry(wire.Ref(sc.LH(), sc.Version()), false)
			return
		}
	}
	s.back = 0
	s.readEntry(next, false)
}

// refused goes on when an entry is not the one that was looked for.
func (s *Session) refused() {
	s.res.FirstTry = false
	s.c.stats.Stale++
	if s.stale++; s.stale > maxStale {
		s.finish(ErrStale)
		return
	}
	if s.stale > 2 {
		s.plain = true
	}
	if s.jumped && s.back != 0 {
		p := s.back
		s.back = 0
		s.readEntry(p, false)
		return
	}
	s.jumped, s.back, s.hops = false, 0, 0
	s.query(stepQuery)
}

// tail goes on when the entry that was read has no successor.
func (s *Session) tail() {
	if s.k.tail == s.start || s.k.tail == 0 || s.c.search == SearchLibrary && s.hops > 0 {
		s.k.tail = s.cur
	}
	if s.res.Write {
		s.obtain()
		return
	}
	s.res.Entry = s.cur
	sp, _ := s.c.layout.Entry(s.cur.LH())
	s.res.Value = s.entry[ValueAt:sp.Slab]
	s.finish(nil)
}

// query asks the metadata server about the key.
func (s *Session) query(next step) {
	s.res.FirstTry = false
	s.step = next
	r := s.rpc.req[:MsgLen]
	clear(r[msgContent:])
	put32(r, entType, EntryQuery)
	if next == stepOpen {
		put32(r, entType, EntryOpen)
	}
	put64(r, entKey, s.res.Key)
	if next != stepQuery {
		put64(r, entPtr, uint64(s.own))
	}
	put32(r, entFactor, 1)
	s.res.RoundTrips++
	s.c.stats.Queries++
	if err := s.rpc.post(s.id|wcRPC, MsgEntry, MsgLen, s.c.index, uint32(s.index)); err != nil {
		s.finish(fmt.Errorf("clover: post to the metadata server: %w", err))
		return
	}
	s.pending = 1
	s.c.asking = append(s.c.asking, s)
}

// replied takes the metadata server's answer, which is in the buffer.
func (s *Session) replied() {
	s.pending = 0
	if s.step == stepAsk {
		s.asked()
		return
	}
	m := s.rpc.reply
	res, head, slot := u64(m, msgOption), pointerAt(m, entPtr), u32(m, entShortcut)
	if slot != 0 {
		s.k.slot = slot
	}
	switch {
	case s.step == stepQuery && res == resOK:
		if s.k.tail == s.start {
			s.k.tail = head
		}
		s.locate()
	case s.step == stepQuery && res == resNoKey && s.res.Write:
		s.open = true
		s.obtain()
	case s.step == stepQuery && res == resNoKey:
		s.finish(ErrNotFound)
	case s.step == stepOwn && res == resOK, s.step == stepOpen && res == resExists:
		s.find(head)
	case s.step == stepOwn && res == resLinked:
		s.c.stats.FoundOwn++
		s.success()
	case s.step == stepOpen && res == resOK:
		s.success()
	default:
		s.finish(fmt.Errorf("clover: key %#x: %w (result %d)", s.res.Key, ErrServer, res))
	}
}

// obtain takes a granted entry, or waits for one, and writes the value to it.
func (s *Session) obtain() {
	p := &s.c.pool[s.class]
	if s.c.search == SearchLibrary {
		if q := &s.mine[s.class]; q.n > 0 {
			p = q
		} else if p.n == 0 {
			s.ask()
			return
		}
	} else {
		s.c.used[s.class] = true
	}
	if p.n == 0 {
		s.step = stepSpace
		s.c.hungry[s.class].push(s)
		return
	}
	s.own, s.anchor = p.pop(), s.k.tail
	sp, va := s.c.layout.Entry(s.own.LH())
	put64(s.out, 0, uint64(wire.Fresh(s.own.Version())))
	s.step = stepWrite
	s.res.RoundTrips++
	s.post(wcWrite, rnic.OpWrite, sp, va, s.out[:s.outLen])
	s.settle()
}

func (s *Session) written() {
	if s.open {
		s.query(stepOpen)
		return
	}
	if s.c.search == SearchHeaders {
		s.anchor = s.k.tail
	}
	s.link(s.anchor)
}

// link tries to make the new entry the successor of p.
func (s *Session) link(p Pointer) {
	sp, va := s.c.layout.Entry(p.LH())
	if sp == nil {
		s.query(stepOwn)
		return
	}
	s.cur, s.step = p, stepLink
	s.wr.Compare = uint64(wire.Fresh(p.Version()))
	s.wr.Swap = uint64(wire.Linked(p.Version(), s.own))
	s.res.RoundTrips++
	s.post(wcCAS, rnic.OpCompareSwap, sp, va, s.word[:])
	s.settle()
}

func (s *Session) linked() {
	if pointerAt(s.word[:], 0) == wire.Fresh(s.cur.Version()) {
		s.success()
		return
	}
	s.res.FirstTry = false
	s.c.stats.CASFailed++
	if s.careful {
		s.find(s.cur)
		return
	}
	s.chase(s.cur)
}

// find reads the header of p, in search of the tail.
func (s *Session) find(p Pointer) {
	sp, va := s.c.layout.Entry(p.LH())
	if sp == nil {
		s.lost()
		return
	}
	s.cur, s.step = p, stepFind
	s.res.RoundTrips++
	s.c.stats.HeaderReads++
	s.post(wcHeader, rnic.OpRead, sp, va, s.word[:])
	s.settle()
}

func (s *Session) found() {
	h := pointerAt(s.word[:], 0)
	if h.Version() != s.cur.Version() {
		s.lost()
		return
	}
	next := h.Next()
	switch next {
	case 0:
		s.behind()
	case s.own:
		s.c.stats.FoundOwn++
		s.success()
	default:
		if !s.endless() {
			s.find(next)
		}
	}
}

// endless counts a step along the chain. It ends the operation when there were more steps than the store has
// entries.
func (s *Session) endless() bool {
	s.c.stats.Hops++
	s.hops++
	if s.hops <= s.c.entries {
		return false
	}
	s.finish(ErrEndless)
	return true
}

// lost goes on when the search met a recycled entry. The write must not end with an error, since others may
// have linked entries behind the new one already.
func (s *Session) lost() {
	s.hops, s.leapt = 0, false
	s.c.stats.Stale++
	s.query(stepOwn)
}

// success ends a write whose new entry is linked.
func (s *Session) success() {
	old := s.cur
	s.k.tail = s.own
	s.res.Entry = s.own
	s.c.bg.note(s.c, s.k, old, s.own)
	s.finish(nil)
}
