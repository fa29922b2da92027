package rnic

import "github.com/quillon/quillon/nf/clock"

// timer is a queue pair's one timer: retransmission, or the wait that an RNR
// NAK asked for.
type timer struct {
	want  clock.Time // when the timer expires; Never = off
	at    clock.Time // key in the heap, <= want
	index int        // in the heap; -1 = not there
}

func (t *timer) reset() { *t = timer{want: clock.Never, at: clock.Never, index: -1} }

// timers is a heap of the queue pairs with a timer. Every packet moves a timer to a
// later time. This costs nothing, because the timer keeps its place in the heap until
// that place comes to the top.
type timers struct{ heap []*QP }

// setTimer makes q's timer expire at t; Never stops it.
func (q *QP) setTimer(t clock.Time) {
	m := &q.timer
	m.want = t
	if t >= m.at && m.index >= 0 || t == clock.Never {
		return
	}
	h := &q.nic.timers
	m.at = t
	if m.index < 0 {
		m.index = len(h.heap)
		h.heap = append(h.heap, q)
	}
	h.up(m.index)
}

func (h *timers) next() clock.Time {
	if len(h.heap) == 0 {
		return clock.Never
	}
	return h.heap[0].timer.at
}

// due returns a queue pair whose timer has expired, and turns the timer off; nil if there is none.
func (h *timers) due(now clock.Time) *QP {
	for len(h.heap) > 0 {
		q := h.heap[0]
		m := &q.timer
		switch {
		case m.at > now:
			return nil
		case m.want <= now:
			h.remove(q)
			return q
		case m.want == clock.Never:
			h.remove(q)
		default:
			m.at = m.want
			h.down(0)
		}
	}
	return nil
}

func (h *timers) remove(q *QP) {
	i := q.timer.index
	if i < 0 {
		q.timer.reset()
		return
	}
	last := len(h.heap) - 1
	h.swap(i, last)
	h.heap[last] = nil
	h.heap = h.heap[:last]
	q.timer.reset()
	if i < last {
		h.down(i)
		h.up(i)
	}
}

func (h *timers) swap(i, j int) {
	h.heap[i], h.heap[j] = h.heap[j], h.heap[i]
	h.heap[i].timer.index, h.heap[j].timer.index = i, j
}

func (h *timers) before(i, j int) bool { return h.heap[i].timer.at < h.heap[j].timer.at }

func (h *timers) up(i int) {
	for i > 0 {
		p := (i - 1) / 2
		if !h.before(i, p) {
			return
		}
		h.swap(i, p)
		i = p
	}
}

func (h *timers) down(i int) {
	for {
		c := 2*i + 1
		if c >= len(h.heap) {
			return
		}
		if c+1 < len(h.heap) && h.before(c+1, c) {
			c++
		}
		if !h.before(c, i) {
			return
		}
		h.swap(i, c)
		i = c
	}
}
