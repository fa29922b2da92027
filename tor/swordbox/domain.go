package swordbox

import "slices"

// maxDomains is how many protection domains of a server are told apart, and one:
// that of what has none yet.
const maxDomains = 64

// domain is a protection domain of a server (IBTA 10.2.3): the R_Keys and the
// queue pairs of one process on it. Others' R_Keys a queue pair may not use; the
// server would refuse, and end the connection. So operations move only between
// connections of one domain. Nobody tells which these are: that the server
// executes an operation shows that its R_Key and its connection belong together.
type domain struct {
	lanes []int32 // shared connections
}

// learn notes that the server executed o.
func (s *Box) learn(o *op) {
	if o.len == 0 || o.is(fReplaced|fEmpty) || o.kind == kSend || o.kind == kOdd {
		return
	}
	n := s.n
	x := n.known.of(o.rkey)
	if x.rkey != o.rkey {
		*x = reach{rkey: o.rkey}
	}
	x.learn(o)
	if x.alone != 0 && x.alone < s.c.Now() {
		x.alone = 0
	}
	if fl := &n.flows[o.lane]; fl.domain != x.domain || fl.domain == 0 {
		s.unite(o.lane, x)
	}
}

// unite notes that connection l and an R_Key are of one domain.
func (s *Box) unite(l int32, x *reach) {
	n := s.n
	fl := &n.flows[l]
	switch {
	case fl.domain == 0 && x.domain == 0:
		d := n.newDomain()
		fl.domain, x.domain = d, d
	case fl.domain == 0:
		fl.domain = x.domain
	case x.domain == 0:
		x.domain = fl.domain
	default:
		n.merge(x.domain, fl.domain)
	}
	s.share(l)
}

// newDomain is the number of a domain that nothing belongs to; 0: there are too
// many, and this one's operations do not move.
func (n *node) newDomain() uint8 {
	var used [maxDomains]bool
	for i := range n.flows {
		used[n.flows[i].domain] = true
	}
	used[0] = true
	d := slices.Index(used[:], false)
	if d < 0 {
		return 0
	}
	n.disown(uint8(d)) // R_Keys of connections that are gone
	return uint8(d)
}

// disown takes the R_Keys of domain d out of it.
func (n *node) disown(d uint8) {
	for i := range n.known {
		if x := &n.known[i]; x.domain == d {
			x.domain = 0
		}
	}
}

// merge makes one of two domains.
func (n *node) merge(from, to uint8) {
	for i := range n.flows {
		if f := &n.flows[i]; f.domain == from {
			f.domain = to
		}
	}
	for i := range n.known {
		if x := &n.known[i]; x.domain == from {
			x.domain = to
		}
	}
	a, b := &n.domains[from], &n.domains[to]
	b.lanes = append(b.lanes, a.lanes[:min(len(a.lanes), cap(b.lanes)-len(b.lanes))]...)
	a.lanes = a.lanes[:0]
}

// unlearn notes that the server refused o. When another's connection carried it,
// something is not as it was thought: nobody knows any more who belongs to the
// domain, and nothing under the R_Key moves for some time.
func (s *Box) unlearn(o *op) {
	n := s.n
	x, d := n.known.of(o.rkey), n.flows[o.lane].domain
	if x.rkey == o.rkey || o.is(fGuest) {
		*x = reach{rkey: o.rkey}
	}
	if !o.is(fGuest) || d == 0 {
		return
	}
	x.alone = s.c.Now().Add(distrust)
	for i := range n.flows {
		if f := &n.flows[i]; f.domain == d {
			f.domain = 0
		}
	}
	n.disown(d)
	n.domains[d].lanes = n.domains[d].lanes[:0]
	s.c.Set(ctrLanes, uint64(n.shared()))
}

// shared is the number of shared connections.
func (n *node) shared() int {
	all := 0
	for i := range n.domains {
		all += len(n.domains[i].lanes)
	}
	return all
}

// share makes connection l one of the shared ones of its domain, when there is
// room.
func (s *Box) share(l int32) {
	s.shareOf(s.n, l)
	s.c.Set(ctrLanes, uint64(s.n.shared()))
}

func (s *Box) shareOf(n *node, l int32) {
	f := &n.flows[l]
	d := &n.domains[f.domain]
	if f.domain != 0 && f.trusted && !f.dead && !f.gone && s.cfg.mode.moves() && len(d.lanes) < cap(d.lanes) && !slices.Contains(d.lanes, l) {
		d.lanes = append(d.lanes, l)
	}
}

// unshare takes connection l from the shared ones. Others take its place, those
// first that were heard last; they must answer before they carry anything.
func (s *Box) unshare(l int32) {
	n := s.n
	d := &n.domains[n.flows[l].domain]
	if k := slices.Index(d.lanes, l); k >= 0 {
		d.lanes = slices.Delete(d.lanes, k, k+1)
	}
	for s.cfg.mode.moves() && n.flows[l].domain != 0 && len(d.lanes) < cap(d.lanes) {
		best := none
		for i := range n.flows {
			if f := &n.flows[i]; int32(i) != l && f.domain == n.flows[l].domain && f.synced && f.trusted && !f.dead && !f.gone && !slices.Contains(d.lanes, int32(i)) &&
				(best == none || f.heard > n.flows[best].heard) {
				best = int32(i)
			}
		}
		if best == none {
			break
		}
		n.flows[best].heard = 0
		d.lanes = append(d.lanes, best)
	}
	s.c.Set(ctrLanes, uint64(n.shared()))
}
