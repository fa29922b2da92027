package bed

import (
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
)

// spread is a port that has several queues, as a NIC's has: frames of one pair of addresses and UDP ports are
// all in one queue, and any two of these in the same one or not, as the seed has it. It gives a box as many
// workers.
type spread struct {
	port.Port
	seed uint64
	came []packet.Batch // by queue
	rx   packet.Batch
}

func newSpread(p port.Port, queues int, seed uint64) *spread {
	return &spread{Port: p, seed: seed, came: make([]packet.Batch, queues)}
}

// queue is the number of a frame's queue.
func (s *spread) queue(b []byte) int {
	var f hdr.Frame
	if hdr.Parse(b, &f); f.BTH == 0 {
		return 0
	}
	names := b[f.L3+8 : f.L3+40]
	if f.Net == hdr.NetIPv4 {
		names = b[f.L3+12 : f.L3+20]
	}
	h := s.seed
	for _, x := range names {
		h = (h ^ uint64(x)) * 0x100000001B3
	}
	if f.L4 != 0 {
		h = (h ^ uint64(f.UDPOf(b).SrcPort())) * 0x100000001B3
	}
	return int(h >> 33 % uint64(len(s.came)))
}

// take sorts what has come into the queues, as far as there is room.
func (s *spread) take() error {
	if _, err := s.Port.Rx(&s.rx); err != nil {
		return err
	}
	n := 0
	for _, b := range s.rx.Bufs() {
		if !s.came[s.queue(b.Bytes())].Add(b) {
			break
		}
		n++
	}
	s.rx.Shift(n)
	return nil
}

// Held is how many frames are in the queues.
func (s *spread) Held() int {
	n := s.rx.Len()
	for i := range s.came {
		n += s.came[i].Len()
	}
	return n
}

// give gives b what is in queue i.
func (s *spread) give(i int, b *packet.Batch) (int, error) {
	if err := s.take(); err != nil {
		return 0, err
	}
	q := &s.came[i]
	n := b.Append(q.Bufs())
	q.Shift(n)
	return n, nil
}

// Rx gives b what is in any queue: there is no box.
func (s *spread) Rx(b *packet.Batch) (n int, err error) {
	for i := range s.came {
		k, err := s.give(i, b)
		if n += k; err != nil {
			return n, err
		}
	}
	return n, nil
}

// lane is a queue of a spread port.
type lane struct {
	*spread
	number int
}

// Rx implements port.Port.
func (l lane) Rx(b *packet.Batch) (int, error) { return l.give(l.number, b) }

// queues are the box's queues of one of its ports.
func (x *box) queues(s *spread) (all []port.Port) {
	for i := range s.came {
		all = append(all, lent{lane{s, i}, x})
	}
	return all
}
