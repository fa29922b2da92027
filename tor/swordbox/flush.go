package swordbox

import (
	"github.com/quillon/quillon/nf/graph"
)

// Flush implements graph.Flusher: frames crossed unseen, as this worker was late. None
// of connections that are bound did. The numbering of the others is not known any more;
// both ends of them count alike, so that they go on without this app, and it takes
// their numbering over again. Words may have been changed.
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
				continue
			}
			n.row(f).Client.HasPSN = false // its first request may have crossed: who sends that PSN now repeats it, or makes it up
			seen, expected := f.seen || f.synced, f.arrived
			if f.synced {
				n.unfollow(f)
			}
			f.seen, f.arrived = seen, expected // what was there before is not what comes next
		}
		s.clients.settle()
	}
	s.release()
	s.c = nil
}

// unfollow forgets the numbering of f, whose ends count alike, and what was open. Where it came to is kept.
func (n *order) unfollow(f *flow) {
	n.dismiss(f, reasonAbsorbed)
	n.keys.recall(f)
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
