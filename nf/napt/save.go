package napt

import (
	"errors"
	"fmt"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/flow"
	"github.com/quillon/quillon/nf/graph"
)

// Records, mappings before all sessions:
//
//	mapping: 0 private address | 4 port | 6 VLANs | 10 class |
//	  11 public address | 15 port | 17 MAC address | 23 nanoseconds that are left |
//	session: 0 public address | 4 port | 6 class | 7 the peer's address | 11 port |
//	  13 kind | 14 flags | 15 nanoseconds that are left |
//
// The numbers are big-endian. The time that is left is signed: it is negative for a mapping that only its
// sessions keep.
const (
	version       = 2
	recordMapping = 1
	recordSession = 2
	mappingLen    = 31
	sessionLen    = 23
)

func recordSize(sort uint8) int {
	switch sort {
	case recordMapping:
		return mappingLen
	case recordSession:
		return sessionLen
	}
	return 0
}

// record implements flow.Mover's Record: it returns a function that writes the next mappings, and then sessions,
// from about n places, and reports whether more are left.
func (a *app) record(image *flow.Image, now clock.Time) func(n int) bool {
	st, public, shard, from := a.st, a.public, 0, 0
	return func(n int) bool {
		s := st.take(shard % len(st.shards))
		if shard < len(st.shards) {
			from = s.mappings.Some(from, n, func(i int) {
				if p := s.mappings.At(i); !s.gone(i, now) {
					encodeMapping(image.Add(recordMapping, mappingLen), &p.Key, &p.Val, public, now)
				}
			})
		} else {
			from = s.sessions.Some(from, n, func(i int) {
				s.ask(i)
				if p := s.sessions.At(i); p.Val.until >= now {
					encodeSession(image.Add(recordSession, sessionLen), s.mappings.At(int(p.Key.mapping)), p, public, now)
				}
			})
		}
		st.give(s)
		if from < 0 {
			shard, from = shard+1, 0
		}
		return shard < 2*len(st.shards)
	}
}

func encodeMapping(b []byte, k *private, m *mapping, public []uint32, now clock.Time) {
	_ = b[mappingLen-1]
	be.PutUint32(b, k.addr)
	be.PutUint16(b[4:], k.port)
	be.PutUint32(b[6:], k.vlans)
	b[10] = uint8(k.class)
	be.PutUint32(b[11:], public[m.public])
	be.PutUint16(b[15:], m.port)
	copy(b[17:], m.mac[:])
	be.PutUint64(b[23:], uint64(m.until.Sub(now)))
}

func encodeSession(b []byte, m *flow.Place[private, mapping], p *flow.Place[peer, session], public []uint32, now clock.Time) {
	_ = b[sessionLen-1]
	be.PutUint32(b, public[m.Val.public])
	be.PutUint16(b[4:], m.Val.port)
	b[6] = uint8(m.Key.class)
	be.PutUint32(b[7:], p.Key.addr)
	be.PutUint16(b[11:], p.Key.port)
	b[13], b[14] = uint8(p.Key.kind), p.Val.flags
	be.PutUint64(b[15:], uint64(p.Val.until.Sub(now)))
}

// build implements flow.Mover's Build. Records for which there is no place are left out, and so are records that
// contradict each other because they changed while they were saved. Fragments under way are not saved.
func (a *app) build() (most int, build func(now clock.Time, seed uint64, all flow.Records) (put func(), err error)) {
	st, set, index := a.st, a.settings, a.index
	most = 64
	for i := range st.shards {
		most += st.shards[i].mappings.Places()*(mappingLen+1) + st.shards[i].sessions.Places()*(sessionLen+1)
	}
	return most, func(now clock.Time, seed uint64, all flow.Records) (func(), error) {
		made := newState(&set, len(st.shards))
		return func() { st.become(made) }, made.fill(now, seed, &set, index, all)
	}
}

// become replaces the mappings and sessions of st by those of made, and ends the entries in the kernel.
func (st *state) become(made *state) {
	for n := range st.shards {
		s, m := st.take(n), &made.shards[n]
		for i := s.sessions.NextBefore(0, s.sessions.Places()); i >= 0; i = s.sessions.NextBefore(i+1, s.sessions.Places()) {
			s.undecide(i)
		}
		for i := s.mappings.NextBefore(0, s.mappings.Places()); i >= 0; i = s.mappings.NextBefore(i+1, s.mappings.Places()) {
			s.withdraw(&s.mappings.At(i).Val.flows)
		}
		s.mappings, s.sessions, s.pools, s.hosts = m.mappings, m.sessions, m.pools, m.hosts
		s.later.Clear()
		st.give(s)
	}
}

func keyOf(b []byte) private {
	return private{addr: be.Uint32(b), port: be.Uint16(b[4:]), vlans: be.Uint32(b[6:]), class: uint16(b[10])}
}

// until returns the time when the time left in b is over.
func until(now clock.Time, b []byte) clock.Time { return now.Add(time.Duration(be.Uint64(b))) }

// left reports whether the time left in b is a possible one.
func left(b []byte) bool {
	d := time.Duration(be.Uint64(b))
	return d <= longest && d >= -longest
}

// fill puts records into a state that only the caller knows yet. index has the indices of the public addresses.
func (st *state) fill(now clock.Time, seed uint64, set *settings, index map[uint32]uint16, all flow.Records) error {
	for sort, b := range all.All {
		if sort == recordSession {
			if err := st.fillSession(now, seed, index, b); err != nil {
				return err
			}
			continue
		}
		k, addr, port := keyOf(b), be.Uint32(b[11:]), be.Uint16(b[15:])
		if k.class >= numClasses || k.vlans >= 1<<24 || !left(b[23:]) {
			return fmt.Errorf("%w: no mapping is like that", flow.ErrDamaged)
		}
		public, ours := index[addr]
		switch {
		case !ours:
			return fmt.Errorf("the state has mappings to %s, which is not in public=", addrOf(addr))
		case k.class != classICMP && (port < set.ports[0] || port > set.ports[1]):
			return fmt.Errorf("the state has mappings to port %d, which is not in ports=", port)
		case st.shardOf(k.port) != st.shardOf(port):
			return errors.New("the state is that of fewer workers")
		}
		s := &st.shards[st.shardOf(k.port)]
		p, at, hash := &s.pools[public][k.class], st.index(port), k.hash(seed)
		if p.mapping[at] != 0 || s.mappings.Find(&k, hash) >= 0 {
			continue
		}
		if i := s.mappings.Add(&k, hash); i >= 0 {
			s.mappings.At(i).Val = mapping{until: until(now, b[23:]), public: public, port: port, mac: [6]byte(b[17:])}
			p.used[at/64] |= 1 << (at % 64)
			p.free--
			p.mapping[at] = uint32(i) + 1
			s.hosts.AddAlone(hostHash(&k, seed))
		}
	}
	return nil
}

func (st *state) fillSession(now clock.Time, seed uint64, index map[uint32]uint16, b []byte) error {
	port, class, kind := be.Uint16(b[4:]), b[6], b[13]
	public, ours := index[be.Uint32(b)]
	if !ours || class >= numClasses || kind < tcpSession || kind > mayPort || kind == tcpSession && class != classTCP ||
		b[14]&^allFlags != 0 || !left(b[15:]) || be.Uint64(b[15:])>>63 != 0 {
		return fmt.Errorf("%w: no session is like that", flow.ErrDamaged)
	}
	s := &st.shards[st.shardOf(port)]
	i := int(s.pools[public][class].mapping[st.index(port)]) - 1
	if i < 0 {
		return nil
	}
	k := peer{uint32(i), be.Uint32(b[7:]), be.Uint16(b[11:]), uint16(kind)}
	hash := k.hash(seed)
	if s.sessions.Find(&k, hash) >= 0 {
		return nil
	}
	if j := s.sessions.Add(&k, hash); j >= 0 {
		s.sessions.At(j).Val = session{until: until(now, b[15:]), flags: b[14]}
		s.mappings.At(i).Val.sessions++
	}
	return nil
}

// Inherit implements graph.Mover, for apps with the same public addresses, ports and numbers of places.
func (a *app) Inherit(from graph.App) bool {
	o, ok := from.(*app)
	if !ok || !a.settings.same(&o.settings) || len(o.st.shards) != len(a.st.shards) {
		return false
	}
	a.st, a.index, a.bits = o.st, o.index, o.bits
	a.scout()
	a.Continue(&o.Mover)
	return true
}
