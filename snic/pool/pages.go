package pool

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"time"

	"github.com/quillon/quillon/nf/clock"
)

// Messages of Pagers are, big-endian: the letter P, version, sort, 0, from and to (16 bits each), the
// incarnation of the session, the number of the request, the lowest number that its sender still waits for, the
// page's number (64 bits each); and a page where one goes along. A request goes from the page's owner, and its
// answer has its number. An owner that is told that its incarnation is stale (which one is there is in the
// place of the page's number) goes on as the one after that. So an incarnation may be any number that those
// before have not had, such as the time by whatever clock.
const (
	pageMagic   = 'P'
	pageVersion = 1
	pageHeader  = 40
)

type pageSort uint8

const (
	askBegin pageSort = iota // what was kept in earlier incarnations goes
	askKeep                  // with a page
	askGet
	askDrop
	saysBegun
	saysKept
	saysFull
	saysPage // with a page
	saysGone // there is no such page
	saysDropped
	saysStale // there was a greater incarnation
	numPageSorts
)

// hasPage reports whether a message of this sort carries a page.
func (s pageSort) hasPage() bool { return s == askKeep || s == saysPage }

// window is the largest number of requests that a board has under way to a peer.
const window = 8

// MaxPage is the largest page, in bytes, that a Pager moves.
const MaxPage = 16 << 20

// Loan names a page that a board keeps for a peer.
type Loan struct {
	Owner  int
	Inc    uint64
	Handle uint64
}

// PageKind is the kind of a PageEvent.
type PageKind uint8

const (
	PageDone   PageKind = iota // the Put or Get of Op has ended, with OK or without
	PageLost                   // the page of Handle was at a board that is gone
	PageLend                   // a frame is wanted for Loan: Lent follows
	PageReturn                 // Frame is the board's again
)

// PageEvent is what a Pager tells its board.
type PageEvent struct {
	Kind   PageKind
	Op     uint64
	OK     bool
	Full   int // of a Put: the peer that had no room, + 1
	Handle uint64
	Loan   Loan
	Frame  int
}

// pageAsk is a request under way.
type pageAsk struct {
	sort   pageSort
	seq    uint64
	handle uint64
	op     uint64
	page   []byte
	next   clock.Time // when it is sent, again
	mine   bool       // of a page that moves from a board that leaves to another
	before bool       // there was a request to drop a page before it, which may come later
}

// pageAnswer is an answer that is to be sent.
type pageAnswer struct {
	sort     pageSort
	inc, seq uint64
	handle   uint64
}

// kept is a page of a peer.
type kept struct {
	data  []byte // as it came, until there is a frame
	page  []byte // the frame; nil: not yet
	frame int
}

// exchangeOf is what a board exchanges with one peer.
type exchangeOf struct {
	// As owner.
	inc, seq uint64
	asks     []*pageAsk
	// As keeper.
	gone    bool   // it is lost: nothing is kept for it until it is met
	theirs  uint64 // incarnation
	base    uint64 // all requests up to it were taken
	taken   uint64 // and these after it: bit i is base+1+i
	keeps   map[uint64]*kept
	answers []pageAnswer
}

// Pager moves pages between boards: pages of this board's memory that peers keep, and pages that this board
// keeps for peers. It is a state machine as Node is. Messages may be lost, repeated, late and out of order;
// each request is done once, and repeated until it is answered or the peer is lost.
type Pager struct {
	board  int
	size   int            // of a page; 0: the board has no memory
	resend clock.Duration // after which a request is repeated
	with   []exchangeOf   // by peer
	where  map[uint64]int // the peer that has a page, by its handle
	moving map[uint64]int // the peer that it moves to
	events []PageEvent
}

// Carrier sends messages of Pagers.
type Carrier interface {
	// Room reports whether a message to a peer can be sent now.
	Room(to int) bool
	// Send sends a message, which may be lost. The Carrier owns its bytes from then on.
	Send(to int, message []byte)
}

// NewPager makes the Pager of a board, one of so many; a request is repeated after resend (0: 300 ms).
func NewPager(board, boards int, resend clock.Duration) *Pager {
	resend = cmp.Or(resend, 300*time.Millisecond)
	return &Pager{board: board, resend: resend, with: make([]exchangeOf, boards), where: map[uint64]int{}, moving: map[uint64]int{}}
}

// Begin takes note that the board has a new memory, with pages of size bytes; 0: it has no memory. Pages that
// peers kept for the board are dropped, and pages that it kept for peers are lost.
func (p *Pager) Begin(now clock.Time, size int) {
	if size > MaxPage {
		size = 0
	}
	p.size, p.events = size, nil
	clear(p.where)
	clear(p.moving)
	for i := range p.with {
		w := &p.with[i]
		w.asks, w.keeps, w.answers = nil, nil, nil
		if w.inc != 0 {
			w.inc++
			p.ask(now, i, &pageAsk{sort: askBegin})
		}
	}
}

// ask begins a request.
func (p *Pager) ask(now clock.Time, to int, a *pageAsk) {
	w := &p.with[to]
	w.inc = cmp.Or(w.inc, max(1, uint64(now)))
	w.seq++
	a.seq, a.next = w.seq, now
	w.asks = append(w.asks, a)
}

// Put asks peer to to keep a page. The page must not change until PageDone.
func (p *Pager) Put(now clock.Time, op, handle uint64, page []byte, to int) {
	if len(page) != p.size || to < 0 || to >= len(p.with) || to == p.board {
		p.events = append(p.events, PageEvent{Kind: PageDone, Op: op})
		return
	}
	drops := slices.ContainsFunc(p.with[to].asks, func(a *pageAsk) bool { return a.sort == askDrop })
	p.ask(now, to, &pageAsk{sort: askKeep, handle: handle, op: op, page: page, before: drops})
}

// Get loads a page from the peer that keeps it into the memory page, which belongs to the Pager until PageDone.
func (p *Pager) Get(now clock.Time, op, handle uint64, page []byte) {
	at, ok := p.where[handle]
	if !ok || len(page) != p.size {
		p.events = append(p.events, PageEvent{Kind: PageDone, Op: op})
		return
	}
	p.ask(now, at, &pageAsk{sort: askGet, handle: handle, op: op, page: page})
}

// Drop forgets a page, and returns the peer that kept it; ok is false if no peer did.
func (p *Pager) Drop(now clock.Time, handle uint64) (peer int, ok bool) {
	if peer, ok = p.where[handle]; ok {
		delete(p.where, handle)
		p.ask(now, peer, &pageAsk{sort: askDrop, handle: handle})
	}
	return peer, ok
}

// Lent gives the Pager the frame that PageLend asked for. ok is false if the board has no frame for it.
func (p *Pager) Lent(l Loan, frame int, page []byte, ok bool) {
	var k *kept
	w := &exchangeOf{}
	if l.Owner >= 0 && l.Owner < len(p.with) {
		w = &p.with[l.Owner]
		if k = w.keeps[l.Handle]; w.theirs != l.Inc {
			k = nil
		}
	}
	switch {
	case k == nil || k.page != nil:
		if ok { // nobody wants it any more
			p.events = append(p.events, PageEvent{Kind: PageReturn, Frame: frame})
		}
		return
	case !ok || len(page) != len(k.data):
		if ok {
			p.events = append(p.events, PageEvent{Kind: PageReturn, Frame: frame})
		}
		delete(w.keeps, l.Handle)
	default:
		copy(page, k.data)
		k.page, k.frame, k.data = page, frame, nil
	}
	w.settle(l.Handle)
}

// settle answers requests to keep a page that wait for its frame.
func (w *exchangeOf) settle(handle uint64) {
	for i := range w.answers {
		if a := &w.answers[i]; a.sort == askKeep && a.handle == handle {
			a.sort = w.keptOr(handle)
		}
	}
}

// keptOr returns the answer to a request to keep a page, or askKeep if there is no answer yet.
func (w *exchangeOf) keptOr(handle uint64) pageSort {
	switch k := w.keeps[handle]; {
	case k == nil:
		return saysFull
	case k.page == nil:
		return askKeep
	}
	return saysKept
}

// Lost takes note that a peer is lost. The pages that it kept are lost, and the frames that keep its pages are
// returned.
func (p *Pager) Lost(now clock.Time, peer int) {
	if peer < 0 || peer >= len(p.with) {
		return
	}
	w := &p.with[peer]
	w.gone = true
	// Should both go on, it is to be with nothing of before.
	p.leave(now, peer, w.inc)
	p.forget(w)
}

// leave gives up the pages that a peer keeps or is asked to keep. The next request has a greater incarnation
// than inc.
func (p *Pager) leave(now clock.Time, peer int, inc uint64) {
	w := &p.with[peer]
	asks := w.asks
	w.asks = nil
	if w.inc != 0 {
		w.inc, w.seq = inc+1, 0
	}
	for _, a := range asks {
		if a.mine {
			delete(p.moving, a.handle)
		} else if at, is := p.where[a.handle]; a.sort == askGet && is && at != peer {
			p.ask(now, at, a) // it has moved meanwhile
		} else if a.sort == askKeep || a.sort == askGet {
			delete(p.where, a.handle)
			p.events = append(p.events, PageEvent{Kind: PageDone, Op: a.op})
		}
	}
	for h, at := range p.where {
		if at == peer {
			p.events = append(p.events, PageEvent{Kind: PageLost, Handle: h})
			delete(p.where, h)
		}
	}
}

// Met takes note that a peer is alive, perhaps again. The peer is told to drop pages that it kept before it was lost.
func (p *Pager) Met(now clock.Time, peer int) {
	if peer < 0 || peer >= len(p.with) || peer == p.board {
		return
	}
	if p.with[peer].gone = false; p.size > 0 && len(p.with[peer].asks) == 0 {
		p.ask(now, peer, &pageAsk{sort: askBegin})
	}
}

// forget returns the frames that keep a peer's pages, and ends its session.
func (p *Pager) forget(w *exchangeOf) {
	for _, k := range w.keeps {
		if k.page != nil {
			p.events = append(p.events, PageEvent{Kind: PageReturn, Frame: k.frame})
		}
	}
	w.theirs, w.base, w.taken, w.keeps, w.answers = 0, 0, 0, nil, nil
}

// Busy reports whether there are events, requests without an answer, or answers to send.
func (p *Pager) Busy() bool {
	if len(p.events) > 0 {
		return true
	}
	for i := range p.with {
		if w := &p.with[i]; len(w.asks) > 0 || len(w.answers) > 0 {
			return true
		}
	}
	return false
}

// Kept returns how many pages the board keeps for peers.
func (p *Pager) Kept() (n int) {
	for i := range p.with {
		n += len(p.with[i].keeps)
	}
	return n
}

// Events returns the events since the last call.
func (p *Pager) Events() []PageEvent {
	e := p.events
	p.events = nil
	return e
}

// Poll sends messages that are due, as far as the Carrier has room. The next call sends messages that are left.
func (p *Pager) Poll(now clock.Time, by Carrier) {
	for to := range p.with {
		w := &p.with[to]
		n := 0
		for _, a := range w.answers {
			if a.sort == askKeep || !by.Room(to) { // no frame yet, or no room
				w.answers[n] = a
				n++
				continue
			}
			var page []byte
			if a.sort == saysPage {
				if k := w.keeps[a.handle]; k == nil || k.page == nil {
					a.sort = saysGone
				} else {
					page = k.page
				}
			}
			by.Send(to, p.message(a.sort, to, a.inc, a.seq, 0, a.handle, page))
		}
		w.answers = w.answers[:n]
		for _, a := range w.asks {
			if a.seq >= w.asks[0].seq+window || !by.Room(to) {
				break
			}
			if now < a.next {
				continue
			}
			var page []byte
			if a.sort == askKeep {
				page = a.page
			}
			by.Send(to, p.message(a.sort, to, w.inc, a.seq, w.asks[0].seq, a.handle, page))
			a.next = now.Add(p.resend)
		}
	}
}

func (p *Pager) message(sort pageSort, to int, inc, seq, base, handle uint64, page []byte) []byte {
	b := append(make([]byte, 0, pageHeader+len(page)), pageMagic, pageVersion, byte(sort), 0)
	b = binary.BigEndian.AppendUint16(b, uint16(p.board))
	b = binary.BigEndian.AppendUint16(b, uint16(to))
	for _, v := range []uint64{inc, seq, base, handle} {
		b = binary.BigEndian.AppendUint64(b, v)
	}
	return append(b, page...)
}

// Input takes a message. The Pager owns its bytes from then on. Input returns an error for a bad message.
func (p *Pager) Input(now clock.Time, b []byte) error {
	if len(b) < pageHeader || b[0] != pageMagic || b[1] != pageVersion || b[2] >= byte(numPageSorts) || b[3] != 0 {
		return fmt.Errorf("pool: %d bytes that are no message about a page", len(b))
	}
	sort := pageSort(b[2])
	from, to := int(binary.BigEndian.Uint16(b[4:])), int(binary.BigEndian.Uint16(b[6:]))
	field := func(i int) uint64 { return binary.BigEndian.Uint64(b[8+8*i:]) }
	inc, seq, base, handle, page := field(0), field(1), field(2), field(3), b[pageHeader:]
	switch {
	case from >= len(p.with) || from == p.board || to != p.board || inc == 0 || seq == 0 || seq == math.MaxUint64:
		return fmt.Errorf("pool: message about a page from board %d to %d, of incarnation %d and number %d", from, to, inc, seq)
	case sort.hasPage() && p.size > 0 && len(page) != p.size || !sort.hasPage() && len(page) > 0:
		return fmt.Errorf("pool: message of board %d with a page of %d bytes", from, len(page))
	}
	w := &p.with[from]
	if sort < saysBegun {
		p.serve(w, from, sort, inc, seq, base, handle, page)
	} else if inc == w.inc {
		p.learn(now, w, from, sort, seq, handle, page)
	}
	return nil
}

// serve does what a peer asks, once, and prepares the answer.
func (p *Pager) serve(w *exchangeOf, from int, sort pageSort, inc, seq, base, handle uint64, page []byte) {
	if inc < w.theirs {
		w.answer(pageAnswer{sort: saysStale, inc: inc, seq: seq, handle: w.theirs})
		return
	}
	if sort == askKeep && w.gone { // it asks again, if it is there
		return
	}
	if inc > w.theirs {
		p.forget(w)
		w.theirs = inc
	}
	if w.keeps == nil {
		w.keeps = map[uint64]*kept{}
	}
	if base > 0 && base-1 > w.base { // it waits for none of those before
		if d := base - 1 - w.base; d < 64 {
			w.taken >>= d
		} else {
			w.taken = 0
		}
		w.base = base - 1
	}
	again := seq <= w.base
	if !again {
		d := seq - w.base - 1
		if d >= window {
			return // it comes again
		}
		again = w.taken&(1<<d) != 0
		w.taken |= 1 << d
		n := bits.TrailingZeros64(^w.taken)
		w.taken >>= n
		w.base += uint64(n)
	}
	a := pageAnswer{inc: inc, seq: seq, handle: handle}
	switch sort {
	case askBegin:
		a.sort = saysBegun
	case askKeep:
		if k := w.keeps[handle]; !again && k == nil && p.size > 0 {
			w.keeps[handle] = &kept{data: page}
			p.events = append(p.events, PageEvent{Kind: PageLend, Loan: Loan{from, inc, handle}})
		}
		a.sort = w.keptOr(handle)
	case askGet:
		a.sort = saysPage // or gone, as it is then
	case askDrop:
		a.sort = saysDropped
		if k := w.keeps[handle]; !again && k != nil {
			delete(w.keeps, handle)
			w.settle(handle) // after a loss an old request may be here again
			if k.page != nil {
				p.events = append(p.events, PageEvent{Kind: PageReturn, Frame: k.frame})
			}
		}
	}
	w.answer(a)
}

// answer puts an answer into the queue, unless an answer to the same request is there.
func (w *exchangeOf) answer(a pageAnswer) {
	if !slices.ContainsFunc(w.answers, func(o pageAnswer) bool { return o.inc == a.inc && o.seq == a.seq }) {
		w.answers = append(w.answers, a)
	}
}

// learn takes an answer.
func (p *Pager) learn(now clock.Time, w *exchangeOf, from int, sort pageSort, seq, handle uint64, page []byte) {
	if sort == saysStale {
		if handle > w.inc && handle < math.MaxUint64 {
			p.leave(now, from, handle) // it has nothing of this board's
			p.ask(now, from, &pageAsk{sort: askBegin})
		}
		return
	}
	at := slices.IndexFunc(w.asks, func(a *pageAsk) bool { return a.seq == seq })
	if at < 0 {
		// A request that came late may have had it keep a page that was dropped since.
		has, ok := p.where[handle]
		if sort == saysKept && !(ok && has == from) && !slices.ContainsFunc(w.asks, func(a *pageAsk) bool { return a.handle == handle }) {
			p.ask(now, from, &pageAsk{sort: askDrop, handle: handle})
		}
		return
	}
	a := w.asks[at]
	ok, full := false, 0
	switch {
	case a.sort == askBegin && sort == saysBegun, a.sort == askDrop && sort == saysDropped:
	case a.sort == askKeep && sort == saysKept:
		if ok = true; !a.mine {
			p.where[a.handle] = from
		}
	case a.sort == askKeep && sort == saysFull && a.before:
		a.before = false // there is room now
		w.asks = slices.Delete(w.asks, at, at+1)
		p.ask(now, from, a)
		return
	case a.sort == askKeep && sort == saysFull:
		full = from + 1
	case a.sort == askGet && sort == saysPage && len(page) == len(a.page):
		ok = true
		copy(a.page, page)
	case a.sort == askGet && sort == saysGone:
		at, is := p.where[a.handle]
		if is && at != from && !a.mine { // it has moved meanwhile
			w.asks = slices.DeleteFunc(w.asks, func(o *pageAsk) bool { return o == a })
			p.ask(now, at, a)
			return
		}
		if is && at == from {
			delete(p.where, a.handle)
		}
		if is && at == from && a.mine {
			p.events = append(p.events, PageEvent{Kind: PageLost, Handle: a.handle})
		}
	default:
		return
	}
	w.asks = slices.Delete(w.asks, at, at+1)
	if a.mine {
		p.moved(now, a, from, ok)
	} else if a.sort == askKeep || a.sort == askGet {
		p.events = append(p.events, PageEvent{Kind: PageDone, Op: a.op, OK: ok, Full: full})
	}
}

// Evacuate begins to move pages that a peer keeps to other peers. choose returns a peer for a page, or false if
// there is none. Evacuate has to be called again while pages are left.
func (p *Pager) Evacuate(now clock.Time, peer int, choose func() (to int, ok bool)) {
	w := &p.with[peer]
	for h, at := range p.where {
		if len(w.asks) >= window {
			return
		}
		if _, is := p.moving[h]; is || at != peer {
			continue
		}
		to, ok := choose()
		if !ok || to == peer {
			return
		}
		p.moving[h] = to
		p.ask(now, peer, &pageAsk{sort: askGet, handle: h, page: make([]byte, p.size), mine: true})
	}
}

// moved takes the next step for a page that moves, after one of its requests has ended.
func (p *Pager) moved(now clock.Time, a *pageAsk, from int, ok bool) {
	to := p.moving[a.handle]
	old, here := p.where[a.handle]
	switch {
	case a.sort == askGet && ok && here:
		p.ask(now, to, &pageAsk{sort: askKeep, handle: a.handle, page: a.page, mine: true})
		return
	case a.sort == askKeep && ok && here && old != from:
		p.where[a.handle] = from
		p.ask(now, old, &pageAsk{sort: askDrop, handle: a.handle})
	case a.sort == askKeep && ok: // it was dropped or lost meanwhile
		p.ask(now, from, &pageAsk{sort: askDrop, handle: a.handle})
	}
	delete(p.moving, a.handle)
}
