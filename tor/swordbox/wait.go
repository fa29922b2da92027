package swordbox

import (
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
)

// A client's request that cannot be sent on waits here, and so do the client's requests behind it.
// Clients whose requests wait are in queues, one for each word, one for each connection, and one
// for all other causes.
//
// The work for waiting requests is bounded, however many wait. When the cause of a queue may be
// over, the box tries the requests of the queue's first client (wake). When that client's requests
// went, or wait for another cause, it tries the next client. An answer to a client makes the box try
// this client's own requests, and each frame makes it try one of all waiting clients, in turns.
//
// No request waits without end because of requests that come later. At a word requests take turns
// (isNext): a later request waits behind those that wait. So the first request waits only for
// operations under way, which the server answers, and each other one for those in front of it. A
// connection's free places go to the requests that wait for them, in their order. A request that
// waits although it could go another way does so only while the server answers, and in all no
// longer than limit says.

// mostPatience is the longest time that a request waits where it need not, so that operations on a word are in one
// order.
const mostPatience = clock.Duration(8 * time.Millisecond)

// trips is the largest number of round trips that a request waits where it need not, if its client's timeout
// is unknown: one each for the operations under way, for the requests in front of it and for the answer that
// tells the word's value, and as many again where these meet others.
const trips = 16

// mostResumed is the largest number of clients that are tried in one go, and of their requests that are sent on.
// The next frame continues.
const mostResumed = 64

// queue names what a client waits for.
type queue struct {
	kind queueKind
	at   int32 // index of the word, or of the connection's flow
}

type queueKind uint8

const (
	forOther queueKind = iota
	forCarrier
	forWord
)

// waiter is the waiting state of a flow's client. waits.w has one for each flow, at the flow's index.
type waiter struct {
	next, prev int32 // neighbours in its queue, which is a ring
	at         int32 // its place in waits.all
	in         queue
	since      clock.Time // when the first of its requests began to wait
	wanted     clock.Time // when its client was last heard
	called     bool       // in waits.calls
	counts     bool       // its request counts as a free operation from now on (see enterFree)
	odd        bool       // of an odd generation (grace)
}

// waits holds the clients whose requests wait, in queues by cause, and the list of clients to be tried (calls). wait
// notes that a client begins to wait, stay that it waits on, leave that it ends. wake and call put a client on the
// list, and resume tries those. Code that finds that the request at hand must wait sets why to the cause. limit says
// how long a request may wait where it need not, waited how long it has. The first client of a queue is stored as
// the index of its flow plus 1; 0 stands for none.
type waits struct {
	w        []waiter // beside the flows
	all      []int32  // flows that wait
	turn     int      // index in all of the flow that was tried last
	other    int32    // first of the clients that wait for other things
	carriers []int32  // by connection: first of the clients that wait for it
	calls    []int32  // ring of flows to be tried
	from, n  int      // first in calls, and number of them
	why      queue    // what the request at hand, which cannot go on, waits for
	r        *record
	words    *words
	pulse    *pulse
	by       *owner
}

func newWaits(flows int, r *record, words *words, pulse *pulse, by *owner) waits {
	return waits{w: make([]waiter, flows), all: make([]int32, 0, flows), carriers: make([]int32, flows), calls: make([]int32, flows), r: r, words: words, pulse: pulse, by: by}
}

// first returns the place of the first client of queue q.
func (t *waits) first(q queue) *int32 {
	switch q.kind {
	case forCarrier:
		return &t.carriers[q.at]
	case forWord:
		return &t.words.u[q.at].first
	}
	return &t.other
}

// line appends flow i to queue q.
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

// quit removes flow i from its queue.
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

// wait notes that requests of flow f wait, for the cause why.
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

// haste returns the time after which waiting requests are to be tried again if no frame comes: an eighth of the
// least limit among the last mostResumed clients of all, between leastHaste and leastPatience.
func (t *waits) haste() clock.Duration {
	most := mostPatience
	for _, i := range t.all[max(0, len(t.all)-mostResumed):] {
		most = min(most, t.limit(&t.r.flows[i]))
	}
	return min(max(most/8, leastHaste), leastPatience)
}

// leastHaste is the least time between tries, several times as long as a try takes.
const leastHaste = clock.Duration(20 * time.Microsecond)

// leave notes that no request of flow f waits, and wakes the first client of the queue that f was in.
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

// stay notes that requests of flow f wait on, for the cause why, after went requests were sent on. f keeps its place
// in its queue if none went and the cause is the same. In the queue for other causes f always goes to the end,
// because the clients there wait for different things, and none is to stand before others for long.
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

// wake calls the first client of queue q.
func (t *waits) wake(q queue) {
	if len(t.all) != 0 { // otherwise no client is in any queue
		t.wakeFirst(q)
	}
}

func (t *waits) wakeFirst(q queue) {
	if h := *t.first(q); h != 0 {
		t.call(h - 1)
	}
}

// carries calls the clients for which an answer on connection i may make room: the first of i's queue, and i's own.
//
//go:noinline
func (t *waits) carries(i int32) {
	t.wakeFirst(queue{forCarrier, i})
	t.call(i)
}

// call puts flow i on the list of flows to be tried, if requests of it wait.
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

// next removes the flow that was called first from the list and returns it.
func (t *waits) next() *flow {
	i := t.calls[t.from]
	t.from, t.n = (t.from+1)%len(t.calls), t.n-1
	t.w[i].called = false
	return &t.r.flows[i]
}

// rotate calls the next k of all flows that wait, in turns.
func (t *waits) rotate(k int) {
	for range min(k, len(t.all)) {
		if t.turn++; t.turn >= len(t.all) {
			t.turn = 0
		}
		t.call(t.all[t.turn])
	}
}

// isNext reports whether no other client waits for word w in front of flow f.
func (t *waits) isNext(f *flow, w int32) bool {
	return !t.words.w[w].queued || t.words.u[w].first-1 == t.r.index(f)
}

// waited returns how long the next request of flow f has waited.
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
		t.call(i) // its requests may go over other connections again
	}
	t.w[i].wanted = t.by.c.Now()
}

// isForsaken reports whether requests of flow f wait whose client was silent for alive=. The client may have left
// without a message, and have connected anew. Then the server does not execute requests over the connection that the
// client left, but would execute them over another one. So these requests go only over their own connection until
// their client is heard.
func (t *waits) isForsaken(f *flow) bool {
	return f.waits && t.by.c.Now().Sub(t.w[t.r.index(f)].wanted) > clock.Duration(t.by.cfg.alive)
}

// limit returns how long a request of flow f may wait where it need not: a quarter of its client's timeout, if the
// connection manager told it, because the client may give up after its timeout. Otherwise it is a number of the
// server's round trips (trips), because the client waits at least for one. It is at most mostPatience.
func (t *waits) limit(f *flow) clock.Duration {
	if code := t.r.row(f).AckTimeout; code != 0 {
		return min(mostPatience, ackTimeout(code-1)/4)
	}
	return min(mostPatience, trips*t.pulse.trip)
}

// patience returns how long the client of flow f waits for an answer before it gives up, in units of 4.096 us, as the
// connection manager told. It returns the largest number if the timeout is unknown or without end, and 0 if the client
// may not retry.
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

// bears reports whether operations of f's client may go over another client's connection c, by the timeouts and
// retry counts that the connection manager told. When c's client gives up, nobody knows what became of the
// operations that c carried, so c's client must be at least as patient as f's. When a request on c is refused, the
// clients of the requests behind it are asked for these again, so both must be able to retry. A client whose own
// connection is dead has no other way.
func (r *record) bears(c, f *flow) bool {
	if r.row(f).AckTimeout|r.row(c).AckTimeout <= 1 { // each timeout is unknown or without end
		return true
	}
	p := r.patience(f)
	return f.dead || p != 0 && r.patience(c) >= p
}

// ackTimeout returns the time of an IBTA timeout code (9.7.6.1.3): 4.096 us times 2^code, or without end for code 0.
func ackTimeout(code uint8) clock.Duration {
	if code == 0 {
		return clock.Never.Sub(0)
	}
	return 4096 << code
}

// patient reports whether the next request of flow f may wait where it need not. moved is the time when the thing
// that it waits for last made progress.
func (n *order) patient(f *flow, moved clock.Time) bool {
	most := n.waits.limit(f)
	return n.shelf.roomy() && n.c.Now().Sub(moved) < most/4 && n.waits.waited(f) < most
}

// count makes the waiting request of flow f a free operation before it is sent on. The words that it changes are
// unknown meanwhile, so that no WRITE in the place of an atomic, for which it would have to wait, goes in front of
// it.
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

// resume tries the flows that were called, and sends on those of their requests that may go. most bounds the number of
// flows and requests; the result is how much of it is left.
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

// try sends on at most most of the waiting requests of flow f that may go, and puts f in its queue or out of it. It
// returns the number of requests that went.
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

// drain sends on at most most of the waiting requests of flow fl that may go, and returns their number. If it ends
// because of most, it calls fl again.
func (s *clientSide) drain(fl *flow, most int) (went int) {
	for fl.awaits() {
		if went == most {
			s.n.waits.why = queue{}
			s.n.waits.call(s.n.index(fl))
			return went
		}
		q := &fl.stall
		if !fl.late.Empty() && (q.Empty() || fl.cur == none || s.n.get(fl.cur).word == lapsed) { // otherwise the message at hand is completed first
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
			return went // no request of it waits any more
		}
		s.n.shelf.Remove(q)
		if fl.doomed {
			s.end(fl)
		}
	}
	return went
}
