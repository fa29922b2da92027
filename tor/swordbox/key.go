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

// keys is what is known of rights: what the server let whom do, learnt from what it
// executed, until it refuses or a client invalidates a key; and which connections are
// lent. movable says whether an operation may go over another's connection at all. It
// remembers some R_Keys, in sets of keyWays; those that were not used for longest make
// room.
type keys struct {
	k       [64 * keyWays]key
	found   *key   // last
	serial  uint32 // of reach.serial, the last
	lending int    // connections that are lent
	// patience is how long the client of a connection waits for an answer: the longer, the better
	// its connection carries others' operations (see bears).
	patience func(*flow) uint64
	// forgotten is how many rights were forgotten for want of a place.
	forgotten uint64
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

// grants are the R_Keys that a connection used, in sets of grantWays by hash, the newest first. When a set is full
// the connection loses the right to the oldest one of it, here: operations under it go over their clients'
// own connections, until the server has executed one of this client again. So who
// uses more R_Keys than there are places, in turns, shares less (ctrKeysForgotten).
type grants [4 * grantWays]grant

const grantWays = 4

func (g *grants) set(rkey uint32) []grant {
	i := rkey * 0x9E3779B1 >> 30 * grantWays // Fibonacci hashing (Knuth 6.4)
	return g[i : i+grantWays : i+grantWays]
}

// add notes a grant. It reports whether another one had to go for it.
func (g *grants) add(x grant) (forgotten bool) {
	set := g.set(x.rkey)
	at := slices.IndexFunc(set, func(y grant) bool { return y.rkey == x.rkey || y.serial == 0 })
	if at < 0 {
		at, forgotten = grantWays-1, true
	}
	copy(set[1:at+1], set[:at])
	set[0] = x
	return forgotten
}

// granted reports whether the client of f has used x over its own connection.
func (f *flow) granted(x *key) bool {
	g := grant{x.rkey, x.serial}
	return f.latest == g || slices.Contains(f.grants.set(x.rkey), g)
}

// privacy is how long a connection carries nothing of others after it carried
// what only its own client can send again, or what waits for a receive buffer.
const privacy = clock.Duration(1e9)

// lanesOf are the connections that are lent for x.
func (x *key) lanesOf() []*flow {
	if x == nil {
		return nil
	}
	return x.lanes
}

// laneOf is the one of these, of which there are some, for o: the same for all that is about one line of memory.
func (x *key) laneOf(o *op) *flow {
	if len(x.lanes) == 1 {
		return x.lanes[0]
	}
	return x.among(o)
}

//go:noinline
func (x *key) among(o *op) *flow { return x.lanes[hash(o.va>>lineShift)%uint32(len(x.lanes))] }

// fresh is a place for an R_Key; nil when all are in use. What was known of another one may be
// forgotten for it.
func (t *keys) fresh(rkey uint32) *key {
	set := t.set(rkey)
	var x *key
	for i := range set {
		if y := &set[i]; y.guests == 0 && (x == nil || y.serial == 0 || x.serial != 0 && y.used < x.used) {
			x = y
		}
	}
	if x == nil {
		return nil
	}
	if x.serial != 0 {
		t.forgotten++
	}
	t.revoke(x)
	x.rkey, x.until = rkey, 0
	return x
}

// revoke forgets what was known of x: nobody has the right to it until the
// server has executed an operation under it again.
func (t *keys) revoke(x *key) {
	for _, l := range x.lanes {
		l.lends--
		t.lent(l)
	}
	if t.serial++; t.serial == 0 {
		t.serial = 1
	}
	x.reach = reach{rkey: x.rkey, serial: t.serial, used: x.used}
	x.lanes = x.lanes[:0]
}

// lent counts the connections that are lent, after f.lends changed.
func (t *keys) lent(f *flow) {
	if f.lends > 0 != f.isLent {
		if f.isLent = !f.isLent; f.isLent {
			t.lending++
		} else {
			t.lending--
		}
	}
}

// movable is the key of o, of flow fl, when the server would execute it: its
// client has the right to this access, to the key and to the memory. Otherwise
// nil: then it goes over its client's own connection, where the server says what
// it thinks of it.
func (t *keys) movable(fl *flow, o *op) *key {
	a := accessOf(o)
	if o.kind == kSend || o.is(fOwn) || !fl.trusted || fl.misshapen || fl.may>>a&1 == 0 || o.len == 0 || o.kind.atomic() && o.va&7 != 0 || fl.unproven(o) {
		return nil
	}
	if x := t.find(o.rkey); x != nil && x.until == 0 && fl.granted(x) && x.allows(o, a) {
		return x
	}
	return nil
}

// guest counts o among the operations under its key on others' connections, or
// not any more.
func (t *keys) guest(o *op, d int32) {
	if x := t.find(o.rkey); x != nil {
		x.guests += d
	}
}

// refused notes that the server refused o. When others had been let do the like,
// the region is not what it was; when it went over another's connection, its
// client never learns that on its own, so that nothing under the key moves until
// then.
func (t *keys) refused(o *op, until clock.Time) {
	x := t.find(o.rkey)
	if x == nil || !o.is(fGuest) && !x.allows(o, accessOf(o)) {
		return
	}
	t.revoke(x)
	if o.is(fGuest) {
		x.until = until
	}
}

// invalidate notes that a client has the server invalidate an R_Key by a SEND.
// False while operations under it are on others' connections: the refusal would
// end those. Nothing under the key moves until then.
func (t *keys) invalidate(rkey uint32, until clock.Time) bool {
	x := t.find(rkey)
	if x == nil {
		if x = t.fresh(rkey); x == nil { // what is under way under it is not to give rights to it
			return true
		}
		x.used = until
	}
	if x.guests > 0 {
		x.until = until // no more of them
		return false
	}
	t.revoke(x)
	x.until = until
	return true
}

// lend lets connection f carry others' operations under x, if it can. When there are
// enough of these it takes the place of one that may do less, or whose client is less patient: a
// connection that was only seen to read or to write would keep all atomics on their own
// connections, and so would one that does not carry those of more patient clients (see fits).
func (t *keys) lend(f *flow, x *key, now clock.Time) {
	if !f.trusted || f.dead || f.gone || !f.granted(x) || f.private != 0 && now.Sub(f.private) < privacy || slices.Contains(x.lanes, f) {
		return
	}
	if at := len(x.lanes); at < cap(x.lanes) {
		x.lanes = append(x.lanes, f)
	} else {
		for k, l := range x.lanes {
			worst := l
			if at < len(x.lanes) {
				worst = x.lanes[at]
			}
			if t.lesser(l, f) && (worst == l || t.lesser(l, worst)) {
				at = k
			}
		}
		if at == len(x.lanes) {
			return
		}
		x.lanes[at].lends--
		t.lent(x.lanes[at])
		x.lanes[at] = f
	}
	f.lends++
	t.lent(f)
}

// lesser reports whether l is less good at carrying others' operations than f.
func (t *keys) lesser(l, f *flow) bool {
	if l.may != f.may {
		return l.may < f.may // atomics count most, then WRITEs: see access
	}
	return t.patience(l) < t.patience(f)
}

// recall takes connection f from those that carry others' operations. Clients
// whose operations go over their own again lend theirs.
func (t *keys) recall(f *flow) {
	if f.lends == 0 {
		return
	}
	for i := range t.k {
		x := &t.k[i]
		if k := slices.Index(x.lanes, f); k >= 0 {
			x.lanes = slices.Delete(x.lanes, k, k+1)
			f.lends--
		}
	}
	t.lent(f)
}

// learn notes that the server executed o over connection f: that its queue pair has the
// right to this sort of access and the R_Key, and the region to the memory. moves: it
// may carry others' operations from now on.
func (t *keys) learn(o *op, f *flow, now clock.Time, moves bool) {
	if o.len == 0 || o.is(fReplaced) || o.kind == kSend || o.kind == kOdd {
		return
	}
	x := t.find(o.rkey)
	if x == nil {
		if x = t.fresh(o.rkey); x == nil {
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
	f.may |= 1 << accessOf(o)
	if g := (grant{x.rkey, x.serial}); f.latest != g {
		if f.latest = g; f.grants.add(g) {
			t.forgotten++
		}
	}
	f.deep = f.peak
	if moves && !(len(x.lanes) > 0 && x.lanes[0] == f) {
		t.lend(f, x, now)
	}
}
