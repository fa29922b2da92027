package sim

import (
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/packet"
)

// Time is virtual time in picoseconds: at 100 Gb/s a byte takes 80 of them.
type Time int64

// Units of Time.
const (
	Nanosecond  Time = 1000
	Microsecond      = 1000 * Nanosecond
	Millisecond      = 1000 * Microsecond
	Second           = 1000 * Millisecond
	never       Time = 1<<63 - 1
)

// Clock is t as endpoints and apps see it.
func (t Time) Clock() clock.Time { return clock.Time(t / Nanosecond) }

// Duration is t rounded down to nanoseconds.
func (t Time) Duration() time.Duration { return time.Duration(t / Nanosecond) }

// From is a duration in virtual time.
func From(d time.Duration) Time { return Time(d) * Nanosecond }

// fromClock is the first virtual time that an endpoint sees as t.
func fromClock(t clock.Time) Time {
	if t > clock.Time(never/Nanosecond) {
		return never
	}
	return Time(t) * Nanosecond
}

// event is something that happens to an actor. Events at the same time happen
// in the order in which they were planned.
type event struct {
	at   Time
	seq  uint64
	buf  *packet.Buf
	arg  uint64
	to   uint32
	kind uint32
}

func (e *event) before(f *event) bool {
	return e.at < f.at || e.at == f.at && e.seq < f.seq
}

// actor is what events happen to.
type actor interface {
	fire(kind uint32, arg uint64, b *packet.Buf)
}

// kernel is a discrete-event simulation: a clock and a 4-ary heap of events,
// kept as values. Planning and firing allocate nothing once the heap has its
// size.
type kernel struct {
	now    Time
	seq    uint64
	heap   []event
	actors []actor
	fired  uint64
}

// add makes a known to the kernel and returns its number.
func (k *kernel) add(a actor) uint32 {
	k.actors = append(k.actors, a)
	return uint32(len(k.actors) - 1)
}

// plan makes something happen to an actor at t, which is not before now.
func (k *kernel) plan(t Time, to, kind uint32, arg uint64, b *packet.Buf) {
	k.seq++
	e := event{at: max(t, k.now), seq: k.seq, buf: b, arg: arg, to: to, kind: kind}
	h := append(k.heap, e)
	i := len(h) - 1
	for i > 0 {
		p := (i - 1) / 4
		if !e.before(&h[p]) {
			break
		}
		h[i] = h[p]
		i = p
	}
	h[i] = e
	k.heap = h
}

// next is when the next event happens; never when there is none.
func (k *kernel) next() Time {
	if len(k.heap) == 0 {
		return never
	}
	return k.heap[0].at
}

// step lets the next event happen; there must be one.
func (k *kernel) step() {
	h := k.heap
	e := h[0]
	n := len(h) - 1
	last := h[n]
	h[n] = event{}
	h = h[:n]
	k.heap = h
	if n > 0 {
		i := 0
		for {
			c := 4*i + 1
			if c >= n {
				break
			}
			m := c
			for j := c + 1; j < min(c+4, n); j++ {
				if h[j].before(&h[m]) {
					m = j
				}
			}
			if !h[m].before(&last) {
				break
			}
			h[i] = h[m]
			i = m
		}
		h[i] = last
	}
	k.now = e.at
	k.fired++
	k.actors[e.to].fire(e.kind, e.arg, e.buf)
}
