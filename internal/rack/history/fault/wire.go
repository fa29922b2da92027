package fault

import (
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
)

// etherLen is the length of an Ethernet header.
const etherLen = 14

// Wire is a cable between two ports on which a schedule's faults happen. It is a host.Worker.
type Wire struct {
	half [2]half
	rx   packet.Batch
	// Struck counts the frames that had a fault, Lost those that did not arrive: dropped frames, and copies
	// for which there was no buffer.
	Struck, Lost int
	// Spare reports whether byte at of a frame must not be damaged. Nil: every byte may be.
	Spare func(frame []byte, at int) bool
}

// half is one direction of the cable.
type half struct {
	from, to port.Port
	faults   map[int][]Fault // by number of the frame
	n        int             // frames seen
	out      packet.Batch
	late     []late // by time, then by arrival
}

type late struct {
	at clock.Time
	b  *packet.Buf
}

// NewWire makes the cable with this name between the clients' side and the servers' side, with the faults of
// s that name the cable.
func NewWire(name string, clients, servers port.Port, s Schedule) *Wire {
	w := &Wire{}
	w.half[Up] = half{from: clients, to: servers, faults: map[int][]Fault{}}
	w.half[Down] = half{from: servers, to: clients, faults: map[int][]Fault{}}
	for _, f := range s {
		if f.Action.OfFrame() && f.Where == name && f.Dir <= Down {
			h := &w.half[f.Dir]
			h.faults[f.Frame] = append(h.faults[f.Frame], f)
		}
	}
	return w
}

// Breath implements host.Worker.
func (w *Wire) Breath(now clock.Time) (int, error) {
	moved := 0
	for i := range w.half {
		n, err := w.breathe(&w.half[i], now)
		moved += n
		if err != nil {
			return moved, err
		}
	}
	return moved, nil
}

func (w *Wire) breathe(h *half, now clock.Time) (int, error) {
	w.rx.Reset()
	moved, err := h.from.Rx(&w.rx)
	if err != nil {
		return moved, err
	}
	for _, b := range w.rx.Bufs() {
		h.n++
		w.carry(h, now, b)
	}
	for len(h.late) > 0 && h.late[0].at <= now && !h.out.Full() {
		h.out.Add(h.late[0].b)
		h.late[0].b = nil
		h.late = h.late[1:]
		moved++
	}
	if h.out.Len() > 0 {
		if _, err := h.to.Tx(&h.out); err != nil {
			return moved, err
		}
	}
	return moved, nil
}

func (w *Wire) lose(b *packet.Buf) {
	w.Lost++
	b.Put()
}

// carry sends a frame, with the faults that the schedule has for it.
func (w *Wire) carry(h *half, now clock.Time, b *packet.Buf) {
	faults := h.faults[h.n]
	if len(faults) > 0 {
		w.Struck++
	}
	at := now
	for _, f := range faults {
		switch f.Action {
		case Drop:
			w.lose(b)
			return
		case Corrupt:
			if p := b.Bytes(); len(p) > etherLen {
				if at := etherLen + f.Byte%(len(p)-etherLen); w.Spare == nil || !w.Spare(p, at) {
					p[at] ^= 1 << (f.Byte & 7)
				}
			}
		case Duplicate:
			c := b.Pool().Get()
			if c == nil {
				w.Lost++
				continue
			}
			c.SetBytes(b.Bytes())
			h.later(now.Add(f.By), c)
		case Delay:
			at = at.Add(f.By)
		}
	}
	if at > now || h.out.Full() {
		h.later(at, b)
		return
	}
	h.out.Add(b)
}

// later keeps b until the time at.
func (h *half) later(at clock.Time, b *packet.Buf) {
	i := len(h.late)
	for i > 0 && h.late[i-1].at > at {
		i--
	}
	h.late = append(h.late, late{})
	copy(h.late[i+1:], h.late[i:])
	h.late[i] = late{at, b}
}

// Deadline implements host.Worker.
func (w *Wire) Deadline() clock.Time {
	at := clock.Never
	for i := range w.half {
		if l := w.half[i].late; len(l) > 0 {
			at = min(at, l[0].at)
		}
	}
	return at
}

// Held returns the number of frames that the cable holds.
func (w *Wire) Held() int {
	n := 0
	for i := range w.half {
		n += len(w.half[i].late) + w.half[i].out.Len()
	}
	return n
}
