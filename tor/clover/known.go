package clover

import (
	"slices"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	wire "github.com/quillon/quillon/nf/hdr/clover"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/tor/conn"
	"github.com/quillon/quillon/tor/index"
)

// memory holds what is known of the nodes' memory: keys and their tails, the addresses of entries, and, in
// embedded parts, nodes, handles, and which keys are hot. Only the worker that has the turn at keys uses it.
// Of the open requests it knows only the readers, which it wakes when a tail is dropped.
type memory struct {
	addrs   addrTable
	keys    keyTable
	cfg     *settings
	readers *answers
	handles
	nodes
	aged       clock.Time
	gone       leavers
	keyHand    int // next key that giveUp looks at
	regionHand int
	hotKeys
}

// nodes holds the memory nodes, their regions, and the age by which they make room. memory adds and
// removes them.
type nodes struct {
	age         uint16      // present age, in eighths of idle=
	given       []conn.Addr // servers=, in no VLAN; empty: all addresses are served
	freeRegions []uint16
	byKey       index.Index // regions by server and R_Key
	servers     [maxServers]node
	regions     [maxRegions]region
}

// node is a memory node. A node that the configuration does not give is added
// when a connection to it is known in both directions.
type node struct {
	at    conn.Addr
	match addr   // the same address, for rules
	words uint64 // the same address, for port.Word
	used  bool
	// leaving: the node makes room for another one, after all that is known of it is removed.
	leaving bool
	seen    uint16 // age when the last connection to it went
	rows    int32  // number of connections to it; keys and regions: numbers of its keys and regions
	keys    int32
	regions int32
	// What was learnt up to this epoch of the key table is not believed: since
	// then a frame passed that may have written anything.
	doubt uint32
	// where covers the node's entries. found covers the entries that the current sweep over all
	// addresses (sweepAddrs) has met; it becomes where at the end of the sweep.
	where, found grid
}

// grid holds the addresses at which entries can be: those equal to off modulo step. step is a power of
// two, at least 8; step 0 means that there are no entries.
type grid struct{ step, off uint64 }

// has reports whether the grid covers va.
func (g *grid) has(va uint64) bool { return g.step != 0 && (va^g.off)&(g.step-1) == 0 }

// add extends the grid so that it covers va, a multiple of 8.
func (g *grid) add(va uint64) {
	if g.step == 0 {
		*g = grid{maxStep, va & (maxStep - 1)}
	}
	for (va^g.off)&(g.step-1) != 0 {
		g.step >>= 1
	}
	g.off &= g.step - 1
}

// region is a memory region of a server, named by an R_Key.
type region struct {
	rkey uint32
	sid  int16
	used bool
	seen uint16 // age when it was last written
}

const noRegion = 0xFFFF

// maxStep is the greatest step of a grid. maxProbes is the largest number of grid points in a written
// range at which entries are looked for; a range with more makes all of the server's memory unknown.
const (
	maxStep   = wire.MaxSlab
	maxProbes = 64
)

// ages is the number of ages in idle=; whatever was not used for so many ages makes room.
const ages = 8

// disused reports whether something that was last used at age seen may make room.
func (s *nodes) disused(seen uint16) bool { return s.age-seen >= ages }

// server returns the number of the memory node at address a, or noServer if it is not known.
func (s *nodes) server(a conn.Addr) int16 {
	for i := range s.servers {
		if x := &s.servers[i]; x.at == a && x.used {
			return int16(i)
		}
	}
	return noServer
}

// serves reports whether a may be a memory node: servers= names it, or names none.
func (s *nodes) serves(a conn.Addr) bool {
	return len(s.given) == 0 || slices.Contains(s.given, a.In(0))
}

// meet returns the number of the memory node at address a, and adds the node if need be. It returns
// noServer if there is no room, or if servers= names other nodes only.
func (s *memory) meet(a conn.Addr) int16 {
	if sid := s.server(a); sid != noServer {
		return sid
	}
	if !s.serves(a) {
		return noServer
	}
	oldest := noServer
	for i := range s.servers {
		switch x := &s.servers[i]; {
		case !x.used:
			s.setServer(i, a)
			return int16(i)
		case x.rows == 0 && s.disused(x.seen) && (oldest == noServer || s.age-x.seen > s.age-s.servers[oldest].seen):
			oldest = i
		}
	}
	if oldest != noServer {
		s.servers[oldest].leaving = true // its place will be free soon: see giveUp
	}
	return noServer
}

func (s *memory) setServer(i int, a conn.Addr) {
	s.servers[i] = node{at: a, match: addrOf(a.Netip()), words: port.Words(a.Netip()), used: true, seen: s.age, doubt: s.keys.epoch}
}

// regionOf returns the number of a memory region, or noRegion if it is not known.
func (s *nodes) regionOf(sid int16, rkey uint32) uint16 {
	h := keyHash(uint16(sid), uint64(rkey))
	for p := s.byKey.Start(h); s.byKey.E[p] != 0; p = s.byKey.Next(p) {
		if i, ok := s.byKey.Slot(p, h); ok && s.isRegion(uint16(i), sid, rkey) {
			return uint16(i)
		}
	}
	return noRegion
}

// isRegion reports whether region i is the one with R_Key rkey of server sid.
func (s *nodes) isRegion(i uint16, sid int16, rkey uint32) bool {
	if i == noRegion {
		return false
	}
	g := &s.regions[i]
	return g.rkey == rkey && g.sid == sid && g.used
}

// admit returns the number of a memory region to which the server has acknowledged a
// WRITE, and adds the region if need be. It returns noRegion if there is no room.
func (s *nodes) admit(sid int16, rkey uint32) uint16 {
	if i := s.regionOf(sid, rkey); i != noRegion {
		return i
	}
	n := len(s.freeRegions) - 1
	if n < 0 {
		return noRegion
	}
	i := s.freeRegions[n]
	s.freeRegions = s.freeRegions[:n]
	s.regions[i] = region{rkey: rkey, sid: sid, used: true, seen: s.age}
	s.servers[sid].regions++
	s.byKey.Put(keyHash(uint16(sid), uint64(rkey)), int32(i))
	return i
}

// leaveRegion removes a region to make room for another one. The entries that were written there become
// unknown. The number is free for reuse after a sweep has removed all addresses that name it.
func (s *memory) leaveRegion(i uint16) {
	g := &s.regions[i]
	s.byKey.Del(keyHash(uint16(g.sid), uint64(g.rkey)), int32(i))
	s.servers[g.sid].regions--
	g.used = false
	s.gone.regions = append(s.gone.regions, i)
	s.forgetBases(i)
}

// word returns the name of the word at va in server sid's memory.
func (s *nodes) word(sid int16, va uint64) port.Word { return port.WordAt(s.servers[sid].words, va) }

// lookup returns the address slot of (sid, va), or noSlot.
func (s *memory) lookup(sid int16, va uint64) int32 {
	return s.inSet(s.addrs.set(uint16(sid), va), sid, va)
}

// inSet does what lookup does, in the set that begins with slot i.
func (s *memory) inSet(i int32, sid int16, va uint64) int32 {
	set := s.addrs.e[i : i+ways]
	for w := range set {
		if e := &set[w]; e.va == va && e.used() {
			if g := &s.regions[e.region()]; g.sid == sid && g.used {
				return i + int32(w)
			}
		}
	}
	return noSlot
}

// live reports whether address slot e is in use, and the key and the region that it names are, too.
func (s *memory) live(e *entry) bool {
	return e.used() && s.keys.s[e.key()].used && s.regions[e.region()].used
}

// remember notes that an entry was written to (sid, va), and returns its address slot. set is the
// first slot of the set for this address.
func (s *memory) remember(c *graph.Ctx, set int32, sid int16, va, info uint64) int32 {
	t := &s.addrs
	slot := s.inSet(set, sid, va)
	if slot == noSlot {
		slot = s.place4(set)
	}
	s.vacate(c, slot)
	t.n++
	if t.n >= uint32(len(t.e)/64) {
		t.n = 0
		t.tick++
	}
	t.e[slot] = entry{va, info&^(0xFF<<56) | uint64(t.tick)<<56}
	v := &s.servers[sid]
	if !v.where.has(va) {
		v.where.add(va)
	}
	if !v.found.has(va) {
		v.found.add(va)
	}
	return slot
}

// place4 chooses one of the four address slots from i on for a new
// address: a free one, else the oldest that is no tail, else the oldest.
func (s *memory) place4(i int32) int32 {
	t := &s.addrs
	slot, oldest, best := i, -1, -1
	for w := i; w < i+ways; w++ {
		e := &t.e[w]
		if !s.live(e) {
			return w
		}
		age := int(t.tick - e.age())
		if s.isTail(w) {
			if best < 0 && age > oldest {
				oldest, slot = age, w
			}
		} else if age > best {
			best, slot = age, w
		}
	}
	return slot
}

func (s *memory) isTail(slot int32) bool {
	e := &s.addrs.e[slot]
	if !e.used() {
		return false
	}
	k := &s.keys.s[e.key()]
	return k.used && k.tail == slot
}

// vacate empties an address slot; if its entry is a tail, vacate drops the key's tail.
func (s *memory) vacate(c *graph.Ctx, slot int32) {
	if s.isTail(slot) {
		s.dropKey(c, s.addrs.e[slot].key())
	}
	s.addrs.e[slot] = entry{}
}

// dropKey forgets a key's tail.
func (s *memory) dropKey(c *graph.Ctx, k int32) {
	known := s.keys.s[k].known()
	s.keys.drop(k)
	if known {
		c.Count(ctrDropped, 1)
		s.readers.wakeReads(k)
	}
}

// tail returns the newest entry of a key, or nil if it is not known or not believed.
func (s *memory) tail(c *graph.Ctx, ki int32) *entry {
	k := &s.keys.s[ki]
	if s.doubted(k) {
		s.dropKey(c, ki) // what was learnt before is not valid any more
	}
	if !k.known() {
		return nil
	}
	t := &s.addrs.e[k.tail]
	if !s.regions[t.region()].used {
		s.dropKey(c, ki)
		return nil
	}
	return t
}

// mostEpochs is the number of epochs after which a key's tail is learnt anew. Epochs can be compared as long as one is less than twice as
// many after the other.
const mostEpochs = 1 << 30

// doubted reports whether what is known of a key was learnt before its server's
// memory became unknown. giveUp has tails forgotten of which this is true before epochs come around.
func (s *memory) doubted(k *keyState) bool {
	return int32(k.epoch-s.servers[k.server].doubt) <= 0
}

// doubt makes unknown all that was learnt of a server's memory.
func (s *memory) doubt(c *graph.Ctx, sid int16) {
	if v := &s.servers[sid]; v.doubt != s.keys.epoch { // else nothing was learnt since
		s.keys.epoch++
		v.doubt = s.keys.epoch
	}
	c.Count(ctrDoubts, 1)
}

// overwrite notes that n bytes from va on are written. It forgets all entries whose header
// the bytes reach, except an entry at keep.
func (s *memory) overwrite(c *graph.Ctx, sid int16, va uint64, n uint32, keep uint64) {
	g := &s.servers[sid].where
	if n == 0 || g.step == 0 {
		return
	}
	first := va - min(va, wire.HeaderLen-1)
	at, end := (g.off-first)&(g.step-1), va-first+uint64(n) // from first on, which may be next to the last address
	if va+uint64(n) < va || at < end && (end-1-at)/g.step >= maxProbes {
		s.doubt(c, sid)
		return
	}
	for ; at < end; at += g.step {
		if first+at == keep {
			continue
		}
		if slot := s.lookup(sid, first+at); slot != noSlot {
			s.vacate(c, slot)
		}
	}
}

// keyOf returns the number of a key, and adds the key if need be; noSlot if the key is not steered.
func (s *memory) keyOf(sid int16, key uint64) int32 {
	k := s.keys.find(uint16(sid), key)
	if k == noSlot && s.cfg.only.has(s.servers[sid].match, key) {
		if len(s.keys.free) > s.promised {
			k = s.insert(sid, key)
		}
		if k == noSlot && s.cfg.hot > 0 {
			s.offer(uint16(sid), key, s.sketch.add(uint16(sid), key))
		}
	}
	if k != noSlot {
		s.keys.s[k].hits++
		s.keys.s[k].usedAt(s.age)
	}
	return k
}

// insert adds a key that is not known, and returns its number; noSlot if there is no room.
func (s *memory) insert(sid int16, key uint64) int32 {
	k := s.keys.insert(uint16(sid), key)
	if k != noSlot {
		s.keys.s[k].seen = s.age
		s.servers[sid].keys++
	}
	return k
}

// written remembers an entry whose key and region are known; more holds further flags of entry.info.
func (s *memory) written(c *graph.Ctx, set int32, sid int16, w *pendingWrite, more uint64) {
	class, _ := wire.Class(w.size)
	w.slot = s.remember(c, set, sid, w.va, packEntry(w.key, w.version, w.region, class)|more)
	if g := &s.regions[w.region]; g.seen != s.age {
		g.seen = s.age
	}
}

// holds reports whether address slot i holds the entry of key k at va with this
// version.
func (s *memory) holds(i int32, va uint64, k int32, version uint8) bool {
	e := &s.addrs.e[i]
	return e.used() && e.va == va && e.key() == k && e.version() == version
}

// current reports whether w still describes what its address slot holds.
func (s *memory) current(w *pendingWrite) bool {
	return w.slot != noSlot && s.holds(w.slot, w.va, w.key, w.version)
}

// executed notes that the server has executed the WRITE of the entry in address slot i.
func (s *memory) executed(i int32) {
	if e := &s.addrs.e[i]; e.claimed() {
		e.info &^= entryClaimed
	}
}

// holdsEntry reports whether the address slot of a CAS's new entry still
// holds it: an answer may be so late that the entry was recycled meanwhile.
func (s *memory) holdsEntry(rec *op) bool {
	return s.holds(rec.slot, rec.entry, rec.key, wire.Pointer(rec.swap).NextVersion())
}

// noEntry is an address at which there is no entry.
const noEntry = 1

// leavers holds numbers of keys and regions that were given up, but that addresses may still name. A
// number is free after a sweep over all addresses that began later.
type leavers struct {
	keys    []int32
	regions []uint16
	// nkeys and nregions are the numbers of those that were given up before the current sweep over the
	// addresses began; at is the next address slot of the sweep.
	nkeys, nregions, at int
	looking, due        bool
}

// Limits of the work of one tick.
const (
	sweepAddrs   = 8192
	sweepKeys    = 2048
	sweepRegions = 64
)

// giveUp removes what was not used for long, a bounded piece of the work at a time.
func (s *memory) giveUp(c *graph.Ctx, now clock.Time) {
	if s.cfg.idle > 0 && now.Sub(s.aged) >= s.cfg.idle/ages {
		s.aged, s.gone.due = now, true
		s.age++
	}
	for i := range s.servers {
		if v := &s.servers[i]; s.keys.epoch-v.doubt > mostEpochs {
			v.doubt = s.keys.epoch - mostEpochs
		}
	}
	full := len(s.keys.free) == 0
	for range min(sweepKeys, len(s.keys.s)) {
		if s.keyHand++; s.keyHand >= len(s.keys.s) {
			s.keyHand = 0
		}
		k := &s.keys.s[s.keyHand]
		if k.known() && s.doubted(k) {
			s.dropKey(c, int32(s.keyHand))
		}
		if k.used && (full && s.cfg.hot == 0 && s.disused(k.seen) || s.servers[k.server].leaving) && k.unlinked() == 0 && k.waits == 0 {
			s.forget(c, int32(s.keyHand))
		}
	}
	pressed := len(s.freeRegions) < maxRegions/4
	for range sweepRegions {
		s.regionHand = (s.regionHand + 1) % maxRegions
		if g := &s.regions[s.regionHand]; g.used && (pressed && s.disused(g.seen) || s.servers[g.sid].leaving) {
			s.leaveRegion(uint16(s.regionHand))
		}
	}
	for i := range s.servers {
		if v := &s.servers[i]; v.leaving {
			if v.rows > 0 {
				v.leaving = false // it is used again
			} else if v.keys+v.regions == 0 && len(s.gone.keys)+len(s.gone.regions) == 0 {
				*v = node{}
			}
		}
	}
	s.sweepAddrs()
}

// sweepAddrs empties address slots that name a key or a region that was given up.
func (s *memory) sweepAddrs() {
	g := &s.gone
	if !g.looking {
		if len(g.keys)+len(g.regions) == 0 && !g.due {
			return
		}
		g.nkeys, g.nregions, g.at, g.looking, g.due = len(g.keys), len(g.regions), 0, true, false
		for i := range s.servers {
			s.servers[i].found = grid{}
		}
	}
	end := min(g.at+sweepAddrs, len(s.addrs.e))
	for i := g.at; i < end; i++ {
		e := &s.addrs.e[i]
		switch {
		case !e.used():
		case !s.live(e):
			*e = entry{}
		default:
			if g := &s.servers[s.regions[e.region()].sid].found; !g.has(e.va) {
				g.add(e.va)
			}
		}
	}
	if g.at = end; end < len(s.addrs.e) {
		return
	}
	s.keys.free = append(s.keys.free, g.keys[:g.nkeys]...)
	s.freeRegions = append(s.freeRegions, g.regions[:g.nregions]...)
	g.keys = g.keys[:copy(g.keys, g.keys[g.nkeys:])]
	g.regions = g.regions[:copy(g.regions, g.regions[g.nregions:])]
	g.nkeys, g.nregions, g.looking = 0, 0, false
	for i := range s.servers {
		s.servers[i].where = s.servers[i].found
	}
}

// forget removes a key. Its number is free for reuse after a sweep has removed all addresses that name it.
func (s *memory) forget(c *graph.Ctx, k int32) {
	s.dropKey(c, k)
	s.servers[s.keys.s[k].server].keys--
	s.keys.remove(k)
	s.gone.keys = append(s.gone.keys, k)
}
