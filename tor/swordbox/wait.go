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
	wanted     clock.Time // when its client was last heard
	called     bool       // in waits.calls
	counts     bool       // its request is one of the free operations, from now on (see enterFree)
	odd        bool       // of an odd generation of these
}

// waits are the clients whose requests wait, in queues by what they wait for, and which of them
// are to be tried (calls). wait, stay and leave say that a client's requests wait, still or no
// more; wake and call have it tried, by resume. Whoever finds that the request at hand cannot go
// on sets why. limit and waited say how long it may wait where it need not, and has.
// A first one is a number and 1; 0: there is none.
type waits struct {
	w        []waiter // beside the flows
	all      []int32  // flows that wait
	turn     int      // of all, the one that was tried last
	other    int32    // first of those that wait for something else
	carriers []int32  // first of those that wait for a connection
	calls    []int32  // flows to be tried, a ring
	from, n  int      // of calls
	why      queue    // what the request at hand, which cannot go on, has to wait for
	r        *record
	words    *words
	pulse    *pulse
	by       *owner
}

func newWaits(flows int, r *record, words *words, pulse *pulse, by *owner) waits {
	return waits{w: make([]waiter, flows), all: make([]int32, 0, flows), carriers: make([]int32, flows), calls: make([]int32, flows), r: r, words: words, pulse: pulse, by: by}
}

// first is where queue q begins.
func (t *waits) first(q queue) *int32 {
	switch q.kind {
	case forCarrier:
		return &t.carriers[q.at]
	case forWord:
		return &t.words.u[q.at].first
	}
	return &t.other
}

// line puts flow i at the end of queue q.
func (t *waits) line(i int32, q queue) {
	h, w := t.first(q), t.w
	if q.kind == forWord {
		t.words.w[q.at].queued = true
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
func (t *waits) quit(i int32) {
	w := t.w
	q := w[i].in
	h, next, prev := t.first(q), w[i].next, w[i].prev
	if next == i {
		if *h = 0; q.kind == forWord {
			t.words.w[q.at].queued = false
		}
		return
	}
	w[prev].next, w[next].prev = next, prev
	if *h == i+1 {
		*h = next + 1
	}
}

// wait notes that flow f has requests that wait, for what was found last.
func (t *waits) wait(f *flow) {
	if f.waits {
		return
	}
	f.waits = true
	i := t.r.index(f)
	t.w[i].since, t.w[i].at = t.by.c.Now(), int32(len(t.all))
	t.w[i].wanted = t.w[i].since
	t.all = append(t.all, i)
	t.line(i, t.why)
	t.by.c.Wake(t.by.c.Now().Add(t.haste()))
}

// haste is how soon requests that wait are to be tried again, though nothing came: a part of what the
// least patient of them may wait. Looked at are some.
func (t *waits) haste() clock.Duration {
	most := mostPatience
	for _, i := range t.all[max(0, len(t.all)-mostResumed):] {
		most = min(most, t.limit(&t.r.flows[i]))
	}
	return min(max(most/8, leastHaste), leastPatience)
}

// leastHaste is the least of it: some times as long as a try takes.
const leastHaste = clock.Duration(20 * time.Microsecond)

// leave notes that nothing of flow f waits any more, and wakes who stood behind it.
func (t *waits) leave(f *flow) {
	t.uncount(f)
	if !f.waits {
		return
	}
	f.waits = false
	i := t.r.index(f)
	t.quit(i)
	last := t.all[len(t.all)-1]
	t.all[t.w[i].at], t.w[last].at = last, t.w[i].at
	t.all = t.all[:len(t.all)-1]
	t.wake(t.w[i].in)
}

// stay notes that requests of flow f wait on, for what was found last, after so many went. When
// its first one waits for the same as before it keeps its place in the queue; but where those
// that wait for different things are in one queue, nobody is to stand before others for long.
func (t *waits) stay(f *flow, went int) {
	i := t.r.index(f)
	w := &t.w[i]
	if went > 0 {
		w.since = t.by.c.Now()
	}
	if was := w.in; went > 0 || was != t.why || was.kind == forOther {
		t.quit(i)
		t.line(i, t.why)
		if was.kind != forOther {
			t.wake(was)
		}
	}
}

// wake has the first one of queue q tried.
func (t *waits) wake(q queue) {
	if len(t.all) != 0 { // else nobody is in any
		t.wakeFirst(q)
	}
}

func (t *waits) wakeFirst(q queue) {
	if h := *t.first(q); h != 0 {
		t.call(h - 1)
	}
}

// carries has those tried for which an answer on connection i makes room there.
//
//go:noinline
func (t *waits) carries(i int32) {
	t.wakeFirst(queue{forCarrier, i})
	t.call(i)
}

// call has flow i tried, if requests of it wait.
func (t *waits) call(i int32) {
	if t.r.flows[i].waits && !t.w[i].called {
		t.enlist(i)
	}
}

//go:noinline
func (t *waits) enlist(i int32) {
	t.w[i].called = true
	t.calls[(t.from+t.n)%len(t.calls)] = i
	t.n++
}

// next is the flow that was called first, and is not called any more.
func (t *waits) next() *flow {
	i := t.calls[t.from]
	t.from, t.n = (t.from+1)%len(t.calls), t.n-1
	t.w[i].called = false
	return &t.r.flows[i]
}

// rotate has k of those that wait tried, in turns.
func (t *waits) rotate(k int) {
	for range min(k, len(t.all)) {
		if t.turn++; t.turn >= len(t.all) {
			t.turn = 0
		}
		t.call(t.all[t.turn])
	}
}

// isNext reports whether no other client of those that wait for word w comes before flow f.
func (t *waits) isNext(f *flow, w int32) bool {
	return !t.words.w[w].queued || t.words.u[w].first-1 == t.r.index(f)
}

// waited is how long the request of flow f that comes next has waited.
func (t *waits) waited(f *flow) clock.Duration {
	if !f.waits {
		return 0
	}
	return t.by.c.Now().Sub(t.w[t.r.index(f)].since)
}

// hear notes that the client of flow f sent a request, a new one or a repetition: it still wants those that wait.
func (t *waits) hear(f *flow) {
	if !f.waits {
		return
	}
	i := t.r.index(f)
	if t.isForsaken(f) {
		t.call(i) // they may go another way again
	}
	t.w[i].wanted = t.by.c.Now()
}

// isForsaken reports whether nobody may want the requests of flow f that wait: its client was silent for alive=. It may have gone
// without a word, and have connected anew. What goes over the connection that it left the server does not execute; over another one it would.
// So these requests go over their own connection only, until their client is heard.
func (t *waits) isForsaken(f *flow) bool {
	return f.waits && t.by.c.Now().Sub(t.w[t.r.index(f)].wanted) > clock.Duration(t.by.cfg.alive)
}

// limit is how long a request of flow f may wait where it need not. Its client gives up when
// nobody answers for its timeout, at the earliest; it is told by the connection manager. Of
// others it is known only that the server's answers are no later than they wait.
func (t *waits) limit(f *flow) clock.Duration {
	if code := t.r.row(f).AckTimeout; code != 0 {
		return min(mostPatience, ackTimeout(code-1)/4)
	}
	return min(mostPatience, trips*t.pulse.trip)
}

// patience is how long the client of flow f waits for an answer before it gives up, in units of
// 4.096 us, as the connection manager said; where nobody did, without end. 0: it may not ask again.
func (r *record) patience(f *flow) uint64 {
	switch row := r.row(f); {
	case row.AckTimeout <= 1:
		return ^uint64(0)
	case row.Retries == 0:
		return 0
	default:
		return uint64(row.Retries+1) << (row.AckTimeout - 1)
	}
}

// bears reports whether what f's client asks for may go over another's connection c, by what the
// connection manager told of their clients. When c's gives up, nobody knows what has become of what
// c carried: so it must not be less patient than f's. When a request that c carries is refused, the
// clients of those behind it are asked for them again, which both must bear. A client whose own
// connection is dead has no other way.
func (r *record) bears(c, f *flow) bool {
	if r.row(f).AckTimeout|r.row(c).AckTimeout <= 1 { // nobody told of either
		return true
	}
	p := r.patience(f)
	return f.dead || p != 0 && r.patience(c) >= p
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
func (n *order) patient(f *flow, moved clock.Time) bool {
	most := n.waits.limit(f)
	return n.shelf.roomy() && n.c.Now().Sub(moved) < most/4 && n.waits.waited(f) < most
}

// count makes the request of flow f that waits one of the free operations already: nothing is
// believed of what it changes, and so no other one goes in front of it that it would
// have to wait for.
func (t *waits) count(f *flow) {
	if w := &t.w[t.r.index(f)]; !w.counts {
		w.counts, w.odd = true, t.words.free.enter()
	}
}

func (t *waits) uncount(f *flow) {
	if w := &t.w[t.r.index(f)]; w.counts {
		w.counts = false
		t.words.free.leave(w.odd)
	}
}

// resume lets go what waits, as far as it may: of no more than so many clients, and no more
// requests. The result is how many are left of these.
func (s *clientSide) resume(most int) int {
	for t := &s.n.waits; t.n > 0 && most > 0; {
		went := 0
		if f := t.next(); f.waits {
			went = s.try(f, most)
		}
		most -= max(went, 1)
	}
	return most
}

// try lets go what waits of flow f, as far as it may, and most requests of it. The result is how
// many went.
func (s *clientSide) try(f *flow, most int) (went int) {
	n := s.n
	n.waits.uncount(f)
	went = s.drain(f, most)
	if n.shelf.tally(f); f.awaits() {
		n.waits.stay(f, went)
	} else {
		n.waits.leave(f)
	}
	return went
}

// drain sends on what waits of flow fl, as far as it may, and most frames of it. The result is how
// many went. When that was all that may it is to be tried again.
func (s *clientSide) drain(fl *flow, most int) (went int) {
	for fl.awaits() {
		if went == most {
			s.n.waits.why = queue{}
			s.n.waits.call(s.n.index(fl))
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
			s.end(fl)
		}
	}
	return went
}
