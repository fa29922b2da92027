package swordbox

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/hold"
	"github.com/quillon/quillon/tor/conn"
)

// order puts a server's operations in order. It relates each operation to the client that sent it, to its word and
// its key, and to the connection that carries it, and holds the state of all of these. enter is called when an
// operation begins, forget when it ends, whatever the outcome. lapse, fatal and bury end all operations that a
// connection carries. order sends no frames: it lists the clients that have an answer in ready, for settle.
type order struct {
	owner
	record
	words words
	nics
	shelf  shelf
	waits  waits
	ledger ledger
	strays []stray     // beside the flows
	ready  []*flow     // flows whose clients may get answers after the frame at hand
	twin   atomic.Bool // another node may be the same server (node.mayBe)
	lends  lenders     // connections that carry other clients' operations: see hasten
}

// init makes the order of the server in place number place of memory m. Its flows are those that the memory holds.
func (n *order) init(place int, m *memory, cfg *settings, workers int) {
	n.record, n.words, n.ready = newRecord(m.of(place), cfg.window), newWords(cfg.words), make([]*flow, 0, cfg.conns)
	n.strays, n.lends.set = make([]stray, cfg.conns), make([]uint64, (cfg.conns+63)/64)
	n.words.seed = cfg.seed
	n.shelf = shelf{Shelf: hold.New[struct{}](cfg.hold, workers), of: make([]holding, cfg.conns), r: &n.record, by: &n.owner, seed: cfg.seed}
	n.waits = newWaits(cfg.conns, &n.record, &n.words, &n.pulse, &n.owner)
	n.ledger = ledger{records: m.recordsOf(place), mem: m, r: &n.record, by: &n.owner}
	n.nics.init(cfg, &n.record, &n.words, n.patience)
}

// stuck reports whether no connection is left that can carry o, of flow fl. x is o's key, or nil if o may not go over
// other clients' connections.
func (n *order) stuck(fl *flow, o *op, x *key) bool {
	return fl.dead && !slices.ContainsFunc(x.lanesOf(), func(l *flow) bool { return l != fl && n.fits(l, fl, o, x) })
}

// takes reports whether the server has a responder resource on connection c for one more READ or atomic of client fl.
func (n *order) takes(c, fl *flow) bool {
	if c == fl && c.guests == 0 || c.rd < n.depth(c) {
		return true
	}
	c.claimed = c.claimed || c == fl && c.rd == 0 // because no answer makes room for the first READ or atomic of c's own client
	return false
}

// fits reports whether connection c can carry o, of flow fl, with key x, by the rights, headers, patience and path
// MTUs of both connections. It looks at no other operation that c carries.
func (n *order) fits(c, fl *flow, o *op, x *key) bool {
	return x != nil && c.may>>accessOf(o)&1 != 0 && c.granted(x) && c.trusted && c.shape == fl.shape && n.bears(c, fl) &&
		(o.len <= min(c.effMTU(), fl.effMTU()) || c.mtu != 0 && c.mtu == fl.mtu && o.npsn <= n.shelf.longest())
}

// depth returns the number of the server's responder resources for connection c, as the connection manager told it or
// rdatomic= says. Otherwise it is the number of READs and atomics that c's own client had under way at once.
func (n *order) depth(c *flow) int32 {
	if r := n.row(c); r.Learnt == conn.Managed {
		return int32(r.Server.Resources)
	}
	if n.cfg.rdatomic != 0 {
		return n.cfg.rdatomic
	}
	return int32(c.deep)
}

// replaces reports whether atomics on the node's words may become WRITEs.
func (n *order) replaces() bool { return n.cfg.mode == Replace && !n.twin.Load() }

// foretold reports whether the value that o finds in its word is known and connection c may write the word. Then an
// atomic can go as a WRITE, and needs none of the server's responder resources.
func (n *order) foretold(o *op, c *flow) bool {
	if w := n.words.of(o); w != none && n.replaces() {
		v := &n.words.w[w]
		return v.vouched && n.words.believes(v) && n.writable(o, c)
	}
	return false
}

// foresaw reports whether the foretold value of atomic o is still valid: nothing has made o's word unknown since.
func (n *order) foresaw(o *op) bool {
	w := o.word
	if w < 0 {
		return false
	}
	v := &n.words.w[w]
	return n.words.believes(v) && uint32(v.belief) == n.beside(o).belief
}

// writable reports whether a WRITE in the place of atomic o may go over connection c. Memory and queue pairs that allow
// atomics need not allow WRITEs, and a client whose atomic would be refused must not write in its place. It returns
// false while c carries an operation that only its own client can send again, because others would wait behind it.
func (n *order) writable(o *op, c *flow) bool {
	if !o.is(fRight) || c.unkept > 0 {
		return false
	}
	if n.cfg.writable {
		return true
	}
	x := n.nicOf(c).keys.find(o.rkey)
	return x != nil && x.until == 0 && c.may>>aWrite&1 != 0 && c.granted(x) && x.allows(o, aWrite)
}

// enter puts operation o of flow fl, with key key, in order on connection c and with the other operations on its words;
// w is its word, or none. It returns false if o must wait; o is then on no connection.
func (n *order) enter(fl *flow, o *op, c *flow, key *key, w int32) bool {
	if w == none && n.cfg.trackable(o) {
		w = n.words.track(o.va, o.rkey, n.cfg.vouches(o.va))
	}
	switch {
	case !o.modifies():
	case w == none:
		if !n.enterFree(fl, o, c) {
			return false
		}
	case !n.enterWord(fl, o, c, w):
		return false
	}
	// A READ that is done again may begin in its middle.
	o.lane, o.spsn = n.index(c), psnAdd(c.next, -o.got&hdr.PSNMask)
	n.link(c, o, n.c.Now())
	c.next = psnAdd(c.next, o.npsn-o.got)
	fl.claimed = false
	if c != fl {
		o.flags |= fGuest
	}
	c.count(o, 1)
	if c == fl {
		c.unshared += min(1, 255-c.unshared)
		if c.guests == 0 && o.answered() {
			c.peak = max(c.peak, int16(min(c.rd, 1<<14)))
		}
		if o.kind == kSend || o.is(fOwn) {
			c.private = n.c.Now()
			n.nicOf(c).keys.recall(c)
		}
		if o.spsn != o.cpsn || o.is(fReplaced) {
			n.ledger.diverge(fl)
		}
	} else {
		if o.answered() {
			c.unshared = 0
		}
		key.guests++
		n.c.Count(ctrMoved, 1)
		n.ledger.diverge(fl)
		n.ledger.diverge(c)
		if c.guests == 1 {
			n.lends.add(n.index(c))
			n.c.Wake(n.c.Now().Add(leastPatience)) // by then it may be lost
		}
	}
	fl.opens(o)
	return true
}

// enterWord counts operation o of flow fl, which changes only word w and goes over connection c, at the word, in order
// with the word's other operations if possible. It returns false if o must wait.
func (n *order) enterWord(fl *flow, o *op, c *flow, w int32) bool {
	v := &n.words.w[w]
	v.used = true
	n.waits.why = queue{forWord, w}
	if v.queued && isBehind(n, fl, w) {
		return false
	}
	like := v.rkey == o.rkey && o.len == 8 && o.kind != kOdd && (v.flight == 0 && (n.others == nil || n.isAlike(v, c)) || n.flow(v.lane) == c)
	ordered, passes := like && v.loose == 0, false
	if !ordered || v.atomics > 0 || v.probe != none {
		var now bool
		if ordered, passes, now = between(n, fl, o, c, w, like, ordered); !now {
			return false
		}
	}
	if o.kind.atomic() {
		n.c.Count(ctrAtomics, 1)
	}
	if n.words.join(o, w, n.index(c), ordered, n.c.Now()); !ordered {
		n.c.Count(ctrLoose, 1)
		return true
	}
	if passes {
		v.doubt()
	} else {
		n.effect(o, v, c)
	}
	if o.asAtomic() {
		v.atomics++
	}
	return true
}

// isBehind reports whether the next request of flow fl must wait behind other clients' requests that wait for word w.
//
//go:noinline
func isBehind(n *order, fl *flow, w int32) bool {
	return !n.waits.isNext(fl, w) && n.waits.waited(fl) < n.waits.limit(fl)
}

// between decides whether operation o of flow fl, for connection c, may go while other operations on its word w are
// under way. like says that o touches the word alone, has the word's R_Key, and goes over the connection of the
// word's other operations. The results are whether o is in order, whether the server may execute o before an earlier
// atomic (passes), and whether o may go at once (now); otherwise it must wait.
//
//go:noinline
func between(n *order, fl *flow, o *op, c *flow, w int32, like, ordered bool) (_, passes, now bool) {
	v := &n.words.w[w]
	// The server may execute a WRITE before an atomic that is ahead of it. It
	// waits, if the word's atomics do.
	passes = v.atomics > 0 && (o.kind == kWrite || o.kind.atomic() && n.foretold(o, c))
	if ordered && passes && n.foretold(o, c) {
		if n.patient(fl, c.stirred()) {
			return ordered, passes, false
		}
		ordered = false
	}
	if !ordered && v.writes > 0 {
		v.doubt() // and no further WRITEs in the place of atomics until it went
		return ordered, passes, false
	}
	if like && v.loose > 0 && (c != fl || fl.isLent) && n.patient(fl, n.words.u[w].loosened) {
		return ordered, passes, false // soon it is in order; if it went now, it would keep later operations out of order
	}
	if n.words.awaits(v) && v.vouched && n.replaces() && n.patient(fl, n.flow(v.lane).stirred()) {
		return ordered, passes, false // the probe's answer will tell its outcome, if no other operation comes between
	}
	if !ordered && o.kind.atomic() && n.foretold(o, c) && !n.takes(c, fl) { // it was to go as a WRITE, and would go as an atomic
		n.waits.why = queue{forCarrier, n.index(c)}
		return ordered, passes, false
	}
	return ordered, passes, true
}

// enterFree counts o, of flow fl, as a free operation: it changes memory, but not only one tracked word, and goes over
// connection c. The words that o touches are unknown until o is done. enterFree returns false if o must wait for WRITEs
// under way in the place of atomics. The waiting request counts as free, too, so that no further such WRITEs begin.
func (n *order) enterFree(fl *flow, o *op, c *flow) bool {
	wait, any := n.words.touch(o.va, o.len, n.index(c), n.words.free.gen, 0)
	if !wait {
		n.words.joinFree(o)
		if any {
			n.c.Count(ctrLoose, 1)
		}
	}
	if wait {
		n.waits.count(fl)
	}
	if any {
		n.words.free.now()
	}
	return !wait
}

// effect computes the new value of word v from operation o, which is in order and goes over connection c, and decides
// whether an atomic goes as a WRITE.
func (n *order) effect(o *op, v *word, c *flow) {
	known := n.words.believes(v)
	v.probe = none
	if !known || o.kind == kWrite || o.kind == kOtherAtomic {
		unforeseen(n, o, v, known)
		return
	}
	compare, compareMask, swapMask := compares(n, o)
	switch {
	case v.vouched && n.replaces():
		now := after(o.kind, v.value, o.out, compare, compareMask, swapMask)
		switch {
		case n.c.Now().Sub(v.checked) >= n.cfg.verify && c.rd < n.depth(c):
			v.checked = n.c.Now()
			n.foretell(o, v)
		case n.writable(o, c) && n.ledger.mayDiverge(n.flowOf(o)):
			o.prior, o.out, o.flags = v.value, now, o.flags|fReplaced
			n.words.writes++
			v.writes++
			n.c.Count(ctrReplaced, 1)
		default:
			n.foretell(o, v)
		}
		v.value = now
	default:
		n.foretell(o, v)
		v.value = after(o.kind, v.value, o.out, compare, compareMask, swapMask)
	}
}

// compares returns the value that atomic o compares its word with, and o's masks.
func compares(n *order, o *op) (compare, compareMask, swapMask uint64) {
	compareMask, swapMask = ^uint64(0), ^uint64(0)
	if o.kind == kMaskedCAS {
		m := n.beside(o)
		compareMask, swapMask = m.compareMask, m.swapMask
	}
	return o.prior, compareMask, swapMask
}

// unforeseen does the work of effect for all operations but atomics on a known word whose outcome the box can compute.
// known says whether the value of word v is known.
//
//go:noinline
func unforeseen(n *order, o *op, v *word, known bool) {
	if !known {
		if v.belief = 0; !n.words.settled(o.word, n.c.Now()) {
			return
		}
	}
	if o.kind == kWrite {
		if !known {
			n.c.Count(ctrCached, 1)
		}
		n.words.believe(v, o.out)
		return
	}
	if o.kind == kOtherAtomic {
		v.doubt()
		return
	}
	compare, compareMask, swapMask := compares(n, o)
	v.probe, v.belief = n.place(o), n.words.beliefs
	*n.beside(o) = more{want: compare, compareMask: compareMask, swapMask: swapMask}
	o.flags |= fProbe
}

// forget takes operation o, which has ended, out of all counts. done says that the server executed it.
func (n *order) forget(o *op, done bool) {
	c, now, at := n.carrier(o), n.c.Now(), n.place(o)
	keys := &n.nicOf(c).keys
	if done = done && c.counted; done {
		was := keys.forgotten
		if keys.learn(o, c, now, n.cfg.mode.moves()); keys.forgotten != was {
			n.c.Count(ctrKeysForgotten, keys.forgotten-was)
		}
		if o.kind == kWrite && o.len > leastProven && o.flags&(fGuest|fOrphan) == 0 {
			c.proven = max(c.proven, c.payload(o))
		}
	}
	if !o.is(fOrphan) {
		fl := n.ownerOf(at)
		fl.closes(o)
		n.due(fl)
	}
	if o.is(fGuest) {
		keys.guest(o, -1)
	}
	c.count(o, -1)
	if o.is(fKept) {
		n.shelf.unkeep(o)
	}
	if o.word >= 0 {
		n.waits.wake(queue{forWord, o.word})
	}
	n.waits.wake(queue{})
	free := o.word == none && o.modifies()
	var m *more
	if o.is(fProbe) {
		m = n.beside(o)
	}
	if n.words.leave(o, at, m, done, now) {
		n.c.Count(ctrCached, 1)
	}
	if free && done {
		n.meetWord(o, now)
	}
	if o.is(fOrphan) {
		o.state = sDone
	}
}

// meetWord tracks the word of o, which was executed, if it is to be tracked and is not.
func (n *order) meetWord(o *op, now clock.Time) {
	if n.cfg.trackable(o) && n.words.of(o) == none && !n.words.admit(o, now, n.cfg.vouches(o.va)) {
		n.c.Count(ctrWordFull, 1)
	}
}

// compare compares the payload p of the answer to READ o, which connection c carried, with the believed value of o's
// word. It does so only if no operation that changes the word was under way, because the server may execute
// operations behind a READ before the READ.
func (n *order) compare(c *flow, o *op, p []byte) {
	if w := n.words.again(o, int32(o.prior)); w != none && len(p) == 8 {
		if v := &n.words.w[w]; n.words.believes(v) && n.flow(v.lane) == c && v.rkey == o.rkey && v.flight == 0 && le.Uint64(p) != v.value {
			n.mismatch(o)
		}
	}
}

// distrust is the time for which the box believes no value of a word after the word's value was found to be wrong.
const distrust = 10 * time.Second

// mismatch notes that the word of o did not hold the value that the box believed.
func (n *order) mismatch(o *op) {
	n.c.Count(ctrMismatches, 1)
	n.words.mistrust(o, n.c.Now().Add(distrust))
}
