package swordbox

// A request that only its client can send again may never be answered: it was lost and its client is gone, or its
// queue pair at the server is gone and its client asks on and on. When the server has answered others for giveup=
// meanwhile, it has executed what reached it, or it never will. From then on the request is treated as that of a
// connection that nobody follows (stranger.go): the server may execute it until settle= after it was last sent, and no word
// waits for its answer. Its client may still get the answer, or give up by its own counts, as without this app.

// lapse takes what connection c carries, all of its own client's, out of the counts of words.
// Nobody else's goes behind it.
func (n *order) lapse(c *flow) {
	n.keys.recall(c)
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

// hasLapsed reports whether all that connection f carries has lapsed.
func (r *record) hasLapsed(f *flow) bool { return f.oldest != none && r.ops[f.newest].word == lapsed }

// roams notes that operation o, which has lapsed, may be executed within settle=, at any time.
// True when it must not yet be sent: see stranger.
func (n *order) roams(o *op) (wait bool) {
	until := n.c.Now().Add(n.cfg.settle)
	n.words.unknown = until
	wait, _ = n.words.touch(o.va, o.len, none, 0, until)
	return wait
}
