package swordbox

// The server may never answer a request that only its client can send again: the request was lost and the
// client is gone, or the queue pair at the server is gone and the client goes on repeating. If the server has
// answered other requests for giveup= meanwhile, it has executed whatever reached it, or never will. From
// then on the box treats the request as one of a connection that it does not follow (stranger.go): the server
// may execute the request until settle= after it was last sent, and no word waits for the answer. The client
// may still get the answer, or give up by its own retry count, as without this app.

// lapse takes the operations that connection c carries, all of c's own client, out of the counts of words. No
// other client's operation goes behind them.
func (n *order) lapse(c *flow) {
	n.nicOf(c).keys.recall(c)
	for o := n.oldest(c); o != nil; o = n.behind(o) {
		if o.word == lapsed {
			continue
		}
		if w := o.word; o.modifies() {
			n.words.leave(o, n.place(o), n.beside(o), false, n.c.Now())
			n.roams(o)
			if w >= 0 {
				n.waits.wake(queue{forWord, w})
			}
		}
		o.word = lapsed
		if o.is(fKept) {
			n.shelf.unkeep(o)
		}
		if !o.is(fUnkept) {
			o.flags |= fUnkept
			c.unkept++
		}
	}
	n.waits.wake(queue{})
	n.c.Count(ctrLapsed, 1)
}

// hasLapsed reports whether all operations that connection f carries have lapsed.
func (r *record) hasLapsed(f *flow) bool { return f.oldest != none && r.ops[f.newest].word == lapsed }

// roams notes that the server may execute the lapsed operation o at any time within settle=. It returns true
// if o must not be sent yet (see stranger).
func (n *order) roams(o *op) (wait bool) {
	until := n.c.Now().Add(n.cfg.settle)
	n.words.unknown = until
	wait, _ = n.words.touch(o.va, o.len, none, 0, until)
	return wait
}
