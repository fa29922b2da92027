package swordbox

import (
	"slices"

	"github.com/quillon/quillon/nf/clock"
)

// access is a sort of access to remote memory, as queue pairs and regions have
// rights to (IBTA 10.6.3.1).
type access uint8

const (
	aRead access = iota
	aWrite
	aAtomic
	numAccess
)

// accessOf is the access that o needs, as its client sent it.
func accessOf(o *op) access {
	switch {
	case o.kind == kRead:
		return aRead
	case o.kind.atomic():
		return aAtomic
	}
	return aWrite
}

// reach is what is known of an R_Key of the server. A region is in one piece, so
// what lies between two places that were reached can be reached, too.
type reach struct {
	rkey   uint32
	serial uint32            // number of this knowledge: another one after the key was revoked; 0: the place is free
	lo, hi [numAccess]uint64 // memory that the server let somebody reach; empty: lo == hi
	used   clock.Time        // when something was learnt last
}

// key is an R_Key of the server, and who carries operations under it.
type key struct {
	reach
	until  clock.Time // until then nothing under it moves, and nothing is learnt; 0: it may
	guests int32      // open operations under it on others' connections
	lanes  []*flow    // connections that carry others' operations under it
}

// keys remembers some R_Keys, in sets of keyWays; those that were not used for
// longest make room.
type keys struct {
	k     [64 * keyWays]key
	found *key // last
}

const keyWays = 4

func (t *keys) set(rkey uint32) []key {
	i := rkey * 0x9E3779B1 >> 26 * keyWays // Fibonacci hashing (Knuth 6.4)
	return t.k[i : i+keyWays : i+keyWays]
}

// find is what is known of an R_Key; nil: nothing.
func (t *keys) find(rkey uint32) *key {
	if x := t.found; x != nil && x.rkey == rkey && x.serial != 0 {
		return x // one operation asks several times
	}
	return t.search(rkey)
}

func (t *keys) search(rkey uint32) *key {
	set := t.set(rkey)
	for i := range set {
		if x := &set[i]; x.rkey == rkey && x.serial != 0 {
			t.found = x
			return x
		}
	}
	return nil
}

// allows reports whether the server let somebody reach the memory of o so.
func (x *reach) allows(o *op, a access) bool {
	end := o.va + uint64(o.len)
	return x.lo[a] <= o.va && end <= x.hi[a] && end >= o.va && x.lo[a] != x.hi[a]
}

// learn notes that the server let somebody reach the memory of o.
func (x *reach) learn(o *op) {
	a, end := accessOf(o), o.va+uint64(o.len)
	if end < o.va {
		return
	}
	if x.lo[a] == x.hi[a] {
		x.lo[a], x.hi[a] = o.va, end
		return
	}
	x.lo[a], x.hi[a] = min(x.lo[a], o.va), max(x.hi[a], end)
}

// grant is what a connection is known to have: the right to use an R_Key. The
// server's queue pair and the key belong to one protection domain, and a window
// to that queue pair (IBTA 10.6.7.2).
type grant struct{ rkey, serial uint32 }

// grants are the R_Keys that a connection used last, by hash.
type grants [16]grant

func (g *grants) of(rkey uint32) *grant { return &g[rkey*0x9E3779B1>>28] }

// granted reports whether the client of f has used x over its own connection.
func (f *flow) granted(x *key) bool { return *f.grants.of(x.rkey) == grant{x.rkey, x.serial} }

// learn notes that the server executed o: that its queue pair has the right to
// this sort of access and the R_Key, and the region to the memory.
func (s *Box) learn(o *op) {
	if o.len == 0 || o.is(fReplaced) || o.kind == kSend || o.kind == kOdd {
		return
	}
	n, now := s.n, s.c.Now()
	x := n.keys.find(o.rkey)
	if x == nil {
		if x = n.newKey(o.rkey); x == nil {
			return
		}
	}
	if x.until > now {
		return // it may have been sent before the key was revoked
	}
	x.until, x.used = 0, now
	x.learn(o)
	if o.is(fGuest) {
		return
	}
	f := n.carrier(o)
	f.may |= 1 << accessOf(o)
	*f.grants.of(o.rkey) = grant{x.rkey, x.serial}
	f.deep = f.peak
	if len(x.lanes) < cap(x.lanes) {
		s.lend(f, x)
	}
}

// newKey is a place for an R_Key; nil when all are in use.
func (n *node) newKey(rkey uint32) *key {
	set := n.keys.set(rkey)
	var x *key
	for i := range set {
		if y := &set[i]; y.guests == 0 && (x == nil || y.serial == 0 || x.serial != 0 && y.used < x.used) {
			x = y
		}
	}
	if x == nil {
		return nil
	}
	n.revoke(x)
	x.rkey, x.until = rkey, 0
	return x
}

// revoke forgets what was known of x: nobody has the right to it until the
// server has executed an operation under it again.
func (n *node) revoke(x *key) {
	for _, l := range x.lanes {
		l.lends--
		n.lent(l)
	}
	if n.serial++; n.serial == 0 {
		n.serial = 1
	}
	x.reach = reach{rkey: x.rkey, serial: n.serial, used: x.used}
	x.lanes = x.lanes[:0]
}

// refused notes that the server refused o. When others had been let do the like,
// the region is not what it was; when it went over another's connection, its
// client never learns that on its own, so that nothing under the key moves for
// long.
func (s *Box) refused(o *op) {
	x := s.n.keys.find(o.rkey)
	if x == nil || !o.is(fGuest) && !x.allows(o, accessOf(o)) {
		return
	}
	s.n.revoke(x)
	if o.is(fGuest) {
		x.until = s.c.Now().Add(distrust)
	}
}

// invalidate notes that a client has the server invalidate an R_Key by a SEND.
// False while operations under it are on others' connections: the refusal would
// end those.
func (s *Box) invalidate(rkey uint32) bool {
	x := s.n.keys.find(rkey)
	if x == nil {
		return true
	}
	if x.guests > 0 {
		x.until = s.c.Now().Add(s.cfg.settle) // no more of them
		return false
	}
	s.n.revoke(x)
	x.until = s.c.Now().Add(s.cfg.settle)
	return true
}

// privacy is how long a connection carries nothing of others after it carried
// what only its own client can send again, or what waits for a receive buffer.
const privacy = clock.Duration(1e9)

// lend lets connection f carry others' operations under x, if it can.
func (s *Box) lend(f *flow, x *key) {
	n := s.n
	if len(x.lanes) == cap(x.lanes) || !f.trusted || f.dead || f.gone || !s.cfg.mode.moves() || !f.granted(x) ||
		f.private != 0 && s.c.Now().Sub(f.private) < privacy || slices.Contains(x.lanes, f) {
		return
	}
	x.lanes = append(x.lanes, f)
	f.lends++
	n.lent(f)
	s.c.Set(ctrLanes, uint64(n.lending))
}

// recall takes connection f from those that carry others' operations. Clients
// whose operations go over their own again lend theirs.
func (s *Box) recall(f *flow) {
	n := s.n
	if f.lends == 0 {
		return
	}
	for i := range n.keys.k {
		x := &n.keys.k[i]
		if k := slices.Index(x.lanes, f); k >= 0 {
			x.lanes = slices.Delete(x.lanes, k, k+1)
			f.lends--
		}
	}
	n.lent(f)
	s.c.Set(ctrLanes, uint64(n.lending))
}

// lent counts the connections that are lent, after f.lends changed.
func (n *node) lent(f *flow) {
	if f.lends > 0 != f.isLent {
		if f.isLent = !f.isLent; f.isLent {
			n.lending++
		} else {
			n.lending--
		}
	}
}

// movable is the key of o, of flow fl, when the server would execute it: its
// client has the right to this access, to the key and to the memory. Otherwise
// nil: then it goes over its client's own connection, where the server says what
// it thinks of it.
func (n *node) movable(fl *flow, o *op) *key {
	a := accessOf(o)
	if o.kind == kSend || o.is(fOwn) || !fl.trusted || fl.misshapen || fl.may>>a&1 == 0 || o.len == 0 || o.kind.atomic() && o.va&7 != 0 {
		return nil
	}
	if x := n.keys.find(o.rkey); x != nil && x.until == 0 && fl.granted(x) && x.allows(o, a) {
		return x
	}
	return nil
}

// lanesOf are the connections that are lent for x.
func (x *key) lanesOf() []*flow {
	if x == nil {
		return nil
	}
	return x.lanes
}
