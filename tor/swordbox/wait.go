package swordbox

import (
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
)

// A client's request that cannot go on waits here, and all behind it. Clients whose requests
// wait are in queues, by what they wait for: a word, a connection, or something else.
//
// What is done for them is bounded, however many they are. When something is over that a
// queue may wait for, its first client is tried (wake); when that one went, or waits for
// something else now, the next one is. An answer to a client has its own requests tried,
// and every frame one of all that wait, in turns: nothing has to be found out for all.
//
// Nobody waits without end for what others send. At a word requests have turns (isNext): whoever
// comes later waits behind those that wait, in whatever order they go. So the one in front
// waits only for what is under way, which the server answers, and each of the others for
// those in front of it. A connection's free places go to those that wait for them, in
// their order. Where a request waits though it could go another way, it does so while
// the server answers, and not longer than its client is known to wait, in all (limit).

// mostPatience is how long a request waits at most for others where it need not, so that they
// are in one order.
const mostPatience = clock.Duration(8 * time.Millisecond)

// trips is how many round trips it waits at most where nobody said how patient its client is: one
// each for what is under way, for those in front of it and for the answer that tells the word's value,
// and again as much where they meet others.
const trips = 16

// mostResumed is how many clients are tried in one go, and how many requests of theirs go, at most;
// what is left comes with the next frame.
const mostResumed = 64

// queue names what a client waits for.
type queue struct {
	kind queueKind
	at   int32 // number of the word, or of the connection
}

type queueKind uint8

const (
	forOther queueKind = iota
	forCarrier
	forWord
)

// waiter is how the client of a flow waits. It lies beside the flow.
type waiter struct {
	next, prev int32 // in its queue, which is a ring
	at         int32 // its place in waits.all
	in         queue
	since      clock.Time // when the first of its requests began to wait
	kept       int32      // frames that are held of its operations: answers to READs, and copies
	called     bool       // in waits.calls
	tallied    int32      // frames that are held of its client, as counted in waits.hosts[host]
	host       uint8
	counts     bool // its request is one of the free operations, from now on (see enterFree)
	odd        bool // of an odd generation of these
}

// waits are the clients whose requests wait. A first one is a number and 1; 0: there is none.
type waits struct {
	w        []waiter   // beside the flows
	all      []int32    // flows that wait
	turn     int        // of all, the one that was tried last
	other    int32      // first of those that wait for something else
	carriers []int32    // first of those that wait for a connection
	calls    []int32    // flows to be tried, a ring
	from, n  int        // of calls
	hosts    [256]int32 // frames that are held of clients, by hash of their address
	why      queue      // what the request at hand, which cannot go on, has to wait for
}

func newWaits(flows int) waits {
	return waits{w: make([]waiter, flows), all: make([]int32, 0, flows), carriers: make([]int32, flows), calls: make([]int32, flows)}
}

// first is where queue q begins.
func (n *node) first(q queue) *int32 {
	switch q.kind {
	case forCarrier:
		return &n.waits.carriers[q.at]
	case forWord:
		return &n.words.u[q.at].first
	}
	return &n.waits.other
}

// line puts flow i at the end of queue q.
func (n *node) line(i int32, q queue) {
	h, w := n.first(q), n.waits.w
	if q.kind == forWord {
		n.words.w[q.at].queued = true
	}
	if w[i].in = q; *h == 0 {
		w[i].next, w[i].prev, *h = i, i, i+1
		return
	}
	next := *h - 1
	prev := w[next].prev
	w[i].next, w[i].prev = next, prev
	w[prev].next, w[next].prev = i, i
}

// quit takes flow i out of its queue.
func (n *node) quit(i int32) {
	w := n.waits.w
	q := w[i].in
	h, next, prev := n.first(q), w[i].next, w[i].prev
	if next == i {
		if *h = 0; q.kind == forWord {
			n.words.w[q.at].queued = false
		}
		return
	}
	w[prev].next, w[next].prev = next, prev
	if *h == i+1 {
		*h = next + 1
	}
}

// wait notes that flow f has requests that wait, for what was found last.
func (n *node) wait(f *flow) {
	if f.waits {
		return
	}
	f.waits = true
	i, t := n.index(f), &n.waits
	t.w[i].since, t.w[i].at = n.c.Now(), int32(len(t.all))
	t.all = append(t.all, i)
	n.line(i, t.why)
	n.c.Wake(n.c.Now().Add(n.haste()))
}

// haste is how soon requests that wait are to be tried again, though nothing came: a part of what the
// least patient of them may wait. Looked at are some.
func (n *node) haste() clock.Duration {
	most := mostPatience
	for _, i := range n.waits.all[max(0, len(n.waits.all)-mostResumed):] {
		most = min(most, n.limit(&n.flows[i]))
	}
	return min(max(most/8, leastHaste), leastPatience)
}

// leastHaste is the least of it: some times as long as a try takes.
const leastHaste = clock.Duration(20 * time.Microsecond)

// leave notes that nothing of flow f waits any more, and wakes who stood behind it.
func (n *node) leave(f *flow) {
	n.uncount(f)
	n.tally(f)
	if !f.waits {
		return
	}
	f.waits = false
	i, t := n.index(f), &n.waits
	n.quit(i)
	last := t.all[len(t.all)-1]
	t.all[t.w[i].at], t.w[last].at = last, t.w[i].at
	t.all = t.all[:len(t.all)-1]
	n.wake(t.w[i].in)
}

// wake has the first one of queue q tried.
func (n *node) wake(q queue) {
	if len(n.waits.all) != 0 { // else nobody is in any
		n.wakeFirst(q)
	}
}

func (n *node) wakeFirst(q queue) {
	if h := *n.first(q); h != 0 {
		n.call(h - 1)
	}
}

// call has flow i tried, if requests of it wait.
func (n *node) call(i int32) {
	t := &n.waits
	if !n.flows[i].waits || t.w[i].called {
		return
	}
	t.w[i].called = true
	t.calls[(t.from+t.n)%len(t.calls)] = i
	t.n++
}

// rotate has k of those that wait tried, in turns.
func (n *node) rotate(k int) {
	t := &n.waits
	for range min(k, len(t.all)) {
		if t.turn++; t.turn >= len(t.all) {
			t.turn = 0
		}
		n.call(t.all[t.turn])
	}
}

// isNext reports whether no other client of those that wait for word w comes before flow f.
func (n *node) isNext(f *flow, w int32) bool {
	return !n.words.w[w].queued || n.words.u[w].first-1 == n.index(f)
}

// waited is how long the request of flow f that comes next has waited.
func (n *node) waited(f *flow) clock.Duration {
	if !f.waits {
		return 0
	}
	return n.c.Now().Sub(n.waits.w[n.index(f)].since)
}

// limit is how long a request of flow f may wait where it need not. Its client gives up when
// nobody answers for its timeout, at the earliest; it is told by the connection manager. Of
// others it is known only that the server's answers are no later than they wait.
func (n *node) limit(f *flow) clock.Duration {
	if code := n.row(f).AckTimeout; code != 0 {
		return min(mostPatience, ackTimeout(code-1)/4)
	}
	return min(mostPatience, trips*n.trip)
}

// overdue is how long after the last answer on a connection, or since it carries something, it is to be
// expected that no other one comes.
func (n *node) overdue() clock.Duration { return max(4*n.trip, leastPatience) }

// patience is how long the client of flow f waits for an answer before it gives up, in units of
// 4.096 us, as the connection manager said; where nobody did, without end. 0: it may not ask again.
func (n *node) patience(f *flow) uint64 {
	switch r := n.row(f); {
	case r.AckTimeout <= 1:
		return ^uint64(0)
	case r.Retries == 0:
		return 0
	default:
		return uint64(r.Retries+1) << (r.AckTimeout - 1)
	}
}

// bears reports whether what f's client asks for may go over another's connection c, by what the
// connection manager told of their clients. When c's gives up, nobody knows what has become of what
// c carried: so it must not be less patient than f's. When a request that c carries is refused, the
// clients of those behind it are asked for them again, which both must bear. A client whose own
// connection is dead has no other way.
func (n *node) bears(c, f *flow) bool {
	p := n.patience(f)
	return f.dead || p != 0 && n.patience(c) >= p
}

// ackTimeout is the time of a code of IBTA's (9.7.6.1.3); 0 is without end.
func ackTimeout(code uint8) clock.Duration {
	if code == 0 {
		return clock.Never.Sub(0)
	}
	return 4096 << code
}

// patient reports whether the request of flow f that comes next may wait where it need not,
// for something that moved on last at some time.
func (n *node) patient(f *flow, moved clock.Time) bool {
	most := n.limit(f)
	return n.roomy() && n.c.Now().Sub(moved) < most/4 && n.waited(f) < most
}

// count makes the request of flow f that waits one of the free operations already: nothing is
// believed of what it changes, and so no other one goes in front of it that it would
// have to wait for.
func (n *node) count(f *flow) {
	if w := &n.waits.w[n.index(f)]; !w.counts {
		w.counts, w.odd = true, n.words.free.enter()
	}
}

func (n *node) uncount(f *flow) {
	if w := &n.waits.w[n.index(f)]; w.counts {
		w.counts = false
		n.words.free.leave(w.odd)
	}
}

// resume lets go what waits, as far as it may: of no more than so many clients, and no more
// requests. The result is how many are left of these.
func (s *clientSide) resume(most int) int {
	for t := &s.n.waits; t.n > 0 && most > 0; {
		i := t.calls[t.from]
		t.from, t.n = (t.from+1)%len(t.calls), t.n-1
		t.w[i].called = false
		went := 0
		if f := &s.n.flows[i]; f.waits {
			went = s.try(f, most)
		}
		most -= max(went, 1)
	}
	return most
}

// try lets go what waits of flow f, as far as it may, and most requests of it. The result is how
// many went. When its first request has to wait on,
// for the same, it keeps its place in the queue; but where those that wait for different
// things are in one queue, nobody is to stand before others for long.
func (s *clientSide) try(f *flow, most int) (went int) {
	n, i := s.n, s.n.index(f)
	w := &n.waits.w[i]
	n.uncount(f)
	went = s.drain(f, most)
	if !f.awaits() {
		n.leave(f)
		return went
	}
	if n.tally(f); went > 0 {
		w.since = n.c.Now()
	}
	if was := w.in; went > 0 || was != n.waits.why || was.kind == forOther {
		n.quit(i)
		n.line(i, n.waits.why)
		if was.kind != forOther {
			n.wake(was)
		}
	}
	return went
}

// drain sends on what waits of flow fl, as far as it may, and most frames of it. The result is how
// many went. When that was all that may it is to be tried again.
func (s *clientSide) drain(fl *flow, most int) (went int) {
	for fl.awaits() {
		if went == most {
			s.n.waits.why = queue{}
			s.n.call(s.n.index(fl))
			return went
		}
		q := &fl.stall
		if !fl.late.Empty() && (q.Empty() || fl.cur == none || s.n.get(fl.cur).word == lapsed) { // else the message at hand comes to its end first
			q = &fl.late
		}
		x := s.n.shelf.Mine(s.c, q, s.n.worker)
		if x == nil {
			return went
		}
		b := x.Bytes()
		if hdr.Parse(b, &s.g) != hdr.IsRoCE || q == &fl.stall && !s.admit(fl, x, b, &s.g) || q == &fl.late && !s.retry(fl, x, b, &s.g) {
			return went
		}
		if went++; fl.gone {
			return went // nothing waits any more
		}
		s.n.shelf.Remove(q)
		if fl.doomed {
			s.n.end(fl)
		}
	}
	return went
}
