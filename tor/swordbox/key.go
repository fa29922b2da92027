package swordbox

import (
	"slices"

	"github.com/quillon/quillon/nf/clock"
)

// access is a sort of access to remote memory. Queue pairs and memory regions have rights to it (IBTA
// 10.6.3.1).
type access uint8

const (
	aRead access = iota
	aWrite
	aAtomic
	numAccess
)

// accessOf returns the access that o needs, in the form in which its client sent it.
func accessOf(o *op) access {
	switch {
	case o.kind == kRead:
		return aRead
	case o.kind.atomic():
		return aAtomic
	}
	return aWrite
}

// reach is the memory that the server let clients reach under an R_Key. A memory region is contiguous, so the
// memory between two places that were reached can be reached, too.
type reach struct {
	rkey   uint32
	serial uint32            // number of this knowledge: it changes when the key is revoked; 0: the place is free
	lo, hi [numAccess]uint64 // by access: memory that the server let a client reach; none if lo == hi
	used   clock.Time        // when the box last learnt something under the key
}

// key is what is known of an R_Key of the server, and which connections carry operations under it.
type key struct {
	reach
	until  clock.Time // nothing is learnt under the key before this time, and nothing moves until something was learnt after it; 0: operations may move
	guests int32      // open operations under the key on other clients' connections
	lanes  []*flow    // connections that carry other clients' operations under the key
}

// keys holds what is known of rights: which access the server granted to which client, and which connections
// are lent to other clients. A right is learnt when the server executes an operation, and is valid until the
// server refuses one or a client invalidates the R_Key. movable says whether an operation may go over another
// client's connection. keys remembers a fixed number of R_Keys, in sets of keyWays. A new R_Key takes the
// place of the one in its set that was not used for longest.
type keys struct {
	k       [64 * keyWays]key
	found   *key   // the key that find returned last
	serial  uint32 // the newest reach.serial
	lending int    // connections that are lent
	// patience returns how long the client of a connection waits for an answer. The longer it waits, the more
	// other clients' operations its connection may carry (see bears).
	patience func(*flow) uint64
	// forgotten counts the rights that were forgotten for want of a place.
	forgotten uint64
	// homeless is, by set, the number of operations of another process's (see inherit) for whose key there was no place.
	homeless [64]int32
}

const keyWays = 4

// init makes the keys of NIC number i of a server. No two NICs have a serial in common, so that a grant of one is none of another.
func (t *keys) init(i uint32, shared int, patience func(*flow) uint64) {
	lanes := make([]*flow, len(t.k)*shared)
	for d := range t.k {
		t.k[d].lanes = lanes[d*shared : d*shared : (d+1)*shared]
	}
	t.serial, t.patience = i, patience
}

func (t *keys) set(rkey uint32) []key {
	i := setOf(rkey) * keyWays
	return t.k[i : i+keyWays : i+keyWays]
}

func setOf(rkey uint32) uint32 { return rkey * 0x9E3779B1 >> 26 } // Fibonacci hashing (Knuth 6.4)

// find returns what is known of an R_Key, or nil.
func (t *keys) find(rkey uint32) *key {
	if x := t.found; x != nil && x.rkey == rkey && x.serial != 0 {
		return x // asked several times for each operation
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

// allows reports whether the server let a client reach the memory of o with access a.
func (x *reach) allows(o *op, a access) bool {
	end := o.va + uint64(o.len)
	return x.lo[a] <= o.va && end <= x.hi[a] && end >= o.va && x.lo[a] != x.hi[a]
}

// learn notes that the server let a client reach the memory of o.
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

// grant is a connection's right to use an R_Key: the server's queue pair and the key belong to one protection
// domain, and a memory window is bound to this queue pair (IBTA 10.6.7.2).
type grant struct{ rkey, serial uint32 }

// grants holds the R_Keys that a connection used, in sets of grantWays by hash, the newest first. When a set
// is full, the box forgets the connection's right to the set's oldest key. The client's operations under that
// key then go over its own connection, until the server has executed one of them again. So a client that uses
// more R_Keys by turns than there are places shares less (ctrKeysForgotten).
type grants [4 * grantWays]grant

const grantWays = 4

func (g *grants) set(rkey uint32) []grant {
	i := rkey * 0x9E3779B1 >> 30 * grantWays // Fibonacci hashing (Knuth 6.4)
	return g[i : i+grantWays : i+grantWays]
}

// add notes grant x. It reports whether another grant was forgotten for it.
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

// granted reports whether the client of f has used key x over its own connection.
func (f *flow) granted(x *key) bool {
	g := grant{x.rkey, x.serial}
	return f.latest == g || slices.Contains(f.grants.set(x.rkey), g)
}

// privacy is how long a connection carries no other clients' operations after it carried one that only its
// own client can send again, or one that waits for a receive buffer.
const privacy = clock.Duration(1e9)

// lanesOf returns the connections that are lent for x.
func (x *key) lanesOf() []*flow {
	if x == nil {
		return nil
	}
	return x.lanes
}

// laneOf returns the connection of x.lanes, which is not empty, for o: the same one for all operations on one
// cache line.
func (x *key) laneOf(o *op) *flow {
	if len(x.lanes) == 1 {
		return x.lanes[0]
	}
	return x.among(o)
}

//go:noinline
func (x *key) among(o *op) *flow { return x.lanes[hash(o.va>>lineShift)%uint32(len(x.lanes))] }

// fresh returns a place for an R_Key, or nil if operations are under way under all keys of its set. The key
// that had the place before is forgotten.
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

// revoke forgets the rights under x. No client has a right to x until the server has executed an operation
// under it again.
func (t *keys) revoke(x *key) {
	for _, l := range x.lanes {
		l.lends--
		t.lent(l)
	}
	if t.serial += mostNICs; t.serial == 0 {
		t.serial = mostNICs
	}
	x.reach = reach{rkey: x.rkey, serial: t.serial, used: x.used}
	x.lanes = x.lanes[:0]
}

// clear forgets all keys. No operations are under way under them.
func (t *keys) clear() {
	for i := range t.k {
		if x := &t.k[i]; x.serial != 0 {
			t.revoke(x)
			x.reach, x.until = reach{}, 0
		}
	}
}

// lent corrects the number of connections that are lent, after f.lends changed.
func (t *keys) lent(f *flow) {
	if f.lends > 0 != f.isLent {
		if f.isLent = !f.isLent; f.isLent {
			t.lending++
		} else {
			t.lending--
		}
	}
}

// movable returns the key of o, of flow fl, if the server would execute o over another connection: o's client
// has the right to this access, to the key and to the memory. Otherwise it returns nil, and o goes over its
// client's own connection, where the server grants or refuses it.
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

// guest adds d to the number of operations under o's key on other clients' connections.
func (t *keys) guest(o *op, d int32) {
	if x := t.find(o.rkey); x != nil && (d > 0 || x.guests > 0) {
		x.guests += d
	} else if lost := &t.homeless[setOf(o.rkey)]; d < 0 && *lost > 0 {
		*lost-- // inherit found no place for the key, which may have one now
	}
}

// inherit counts o, which another process sent over another client's connection, so that nobody invalidates its R_Key meanwhile. No
// client has a right to the key yet.
func (t *keys) inherit(o *op, now clock.Time) {
	x := t.find(o.rkey)
	if x == nil {
		if x = t.fresh(o.rkey); x == nil {
			t.homeless[setOf(o.rkey)]++
			return
		}
		x.used = now
	}
	x.guests++
}

// refused notes that the server refused o. If the server had granted the same before, the region has changed,
// so its rights are revoked. If o went over another client's connection, o's client would never learn on its
// own that the key is gone, so nothing under the key moves until the time until.
func (t *keys) refused(o *op, until clock.Time) {
	x := t.find(o.rkey)
	if x == nil || !o.is(fGuest) && !x.allows(o, accessOf(o)) {
		return
	}
	t.revoke(x)
	if o.is(fGuest) {
		x.until = max(x.until, until)
	}
}

// invalidate notes that a client makes the server invalidate an R_Key by a SEND. Nothing under the key moves
// until the time until. invalidate returns false while operations under the key are on other clients'
// connections, because the server would refuse these and so end the connections.
func (t *keys) invalidate(rkey uint32, until clock.Time) bool {
	if t.homeless[setOf(rkey)] > 0 {
		return false // they may be this key's
	}
	x := t.find(rkey)
	if x == nil {
		if x = t.fresh(rkey); x == nil { // operations under way must not give rights to the key again
			return true
		}
		x.used = until
	}
	if x.guests > 0 {
		x.until = max(x.until, until) // no more guests
		return false
	}
	t.revoke(x)
	x.until = max(x.until, until)
	return true
}

// lend lets connection f carry other clients' operations under x, if f can. If x has all the connections that
// it may have, f takes the place of the one among the lesser ones that is worst (see lesser). Otherwise a
// connection that has only shown READs or WRITEs would keep all atomics on their own clients' connections,
// and so would one with an impatient client, which carries no operations of more patient clients (see fits).
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

// lesser reports whether l is less suited than f to carry other clients' operations.
func (t *keys) lesser(l, f *flow) bool {
	if l.may != f.may {
		return l.may < f.may // the bit of atomics counts most, then that of WRITEs: see access
	}
	return t.patience(l) < t.patience(f)
}

// recall takes connection f from all lists of connections that carry other clients' operations. Clients whose
// operations then go over their own connections lend theirs.
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

// learn notes that the server executed o over connection f: f's queue pair has the right to this access and
// to the R_Key, and the region gives this access to the memory. moves says that f may carry other clients'
// operations from now on.
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
		return // o may have been sent before the key was revoked
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
