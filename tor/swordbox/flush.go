package swordbox

import (
	"github.com/quillon/quillon/nf/graph"
)

// Flush implements graph.Flusher: frames crossed in the kernel, because this worker was late. Frames of bound
// connections did not. The numbering of the other connections is unknown now. Both ends of these count alike,
// so they go on without the app, which then takes their numbering over again. Frames that crossed may have
// changed words, and a WRITE in the place of an atomic must not be sent again (doubt.go).
func (s *Box) Flush(c *graph.Ctx) {
	s.c = c
	until := c.Now().Add(s.cfg.settle)
	for _, n := range *s.nodes.Load() {
		if s.own(n); n.gone {
			continue
		}
		n.words.touchAll(0, until)
		n.words.unknown = until
		for i := range n.flows {
			f := &n.flows[i]
			if f.bound {
				if f.writes > 0 { // they may undo what has crossed: as when another process sent them
					if f.inDoubt, f.repair, n.ledger.barred = true, false, until; n.halted != nil {
						n.halted[i] = halt{} // a halt that begins now asks
					}
				}
				continue
			}
			n.row(f).Client.HasPSN = false // its first request may have crossed: then a request with this PSN is a duplicate, or was made up
			seen, expected := f.seen || f.synced, f.arrived
			if f.synced {
				n.unfollow(f)
			}
			f.seen, f.arrived = seen, expected // a request from before is not the next one
		}
		s.clients.settle()
	}
	s.release()
	s.c = nil
}

// unfollow forgets f's numbering and its open operations. f's two ends count alike. The PSN that its client
// has reached is kept.
func (n *order) unfollow(f *flow) {
	n.dismiss(f, reasonAbsorbed)
	n.nicOf(f).keys.recall(f)
	for o := n.oldest(f); o != nil; o = n.oldest(f) {
		o.flags |= fOrphan
		n.unlink(o)
		if o.modifies() && o.word != lapsed {
			n.roams(o) // it may be under way
		}
		n.forget(o, false)
	}
	for k := f.first; k != f.tail; k++ {
		n.shelf.unkeep(n.op(f, k))
	}
	next := f.arrived
	*f = noFlow
	f.seen, f.arrived = true, next
}
