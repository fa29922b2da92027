package napt

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/flow"
)

// Records, mappings before all sessions:
//
//	mapping: 0 private address | 4 port | 6 VLANs | 10 class |
//	  11 public address | 15 port | 17 MAC address | 23 nanoseconds that are left |
//	session: 0 public address | 4 port | 6 class | 7 the peer's address | 11 port |
//	  13 kind | 14 flags | 15 nanoseconds that are left |
//
// What is left is signed: a mapping that only its sessions keep has less than
// nothing.
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

// join tells a worker that has had no breath yet what the others have begun with.
func (a *app) join(at clock.Time, seed uint64) {
	a.seed = seed
	if !a.begun {
		a.now = at
	}
}

// Save implements graph.Saver.
func (a *app) Save(w io.Writer) error {
	image := flow.NewImage(w, "napt", version)
	return a.st.start.Save(image, func(at clock.Time, seed uint64) {
		a.join(at, seed)
		a.record(image)
	})
}

// record writes all mappings, and all sessions.
func (a *app) record(image *flow.Image) {
	st := a.st
	var b [mappingLen]byte
	for n := range st.shards {
		s := st.take(n)
		for i := s.mappings.Next(0); i >= 0; i = s.mappings.Next(i + 1) {
			k, m := &s.mappings.At(i).Key, &s.mappings.At(i).Val
			if m.over(a.now) {
				continue
			}
			be.PutUint32(b[:], k.addr)
			be.PutUint16(b[4:], k.port)
			be.PutUint32(b[6:], k.vlans)
			b[10] = uint8(k.class)
			be.PutUint32(b[11:], a.public[m.public])
			be.PutUint16(b[15:], m.port)
			copy(b[17:], m.mac[:])
			be.PutUint64(b[23:], uint64(m.until.Sub(a.now)))
			image.Record(recordMapping, b[:])
		}
		st.give(s)
	}
	for n := range st.shards {
		s := st.take(n)
		for i := s.sessions.Next(0); i >= 0; i = s.sessions.Next(i + 1) {
			k, x := &s.sessions.At(i).Key, &s.sessions.At(i).Val
			if x.until < a.now {
				continue
			}
			m := s.mappings.At(int(k.mapping))
			be.PutUint32(b[:], a.public[m.Val.public])
			be.PutUint16(b[4:], m.Val.port)
			b[6] = uint8(m.Key.class)
			be.PutUint32(b[7:], k.addr)
			be.PutUint16(b[11:], k.port)
			b[13], b[14] = uint8(k.kind), x.flags
			be.PutUint64(b[15:], uint64(x.until.Sub(a.now)))
			image.Record(recordSession, b[:sessionLen])
		}
		st.give(s)
	}
}

// Load implements graph.Saver. What there is no place for is left out. Fragments
// under way are not saved.
func (a *app) Load(r io.Reader) error {
	st := a.st
	most := 64
	for i := range st.shards {
		most += st.shards[i].mappings.Places()*(mappingLen+1) + st.shards[i].sessions.Places()*(sessionLen+1)
	}
	all, err := flow.Open(r, "napt", version, recordSize, most)
	if err == nil {
		err = a.check(all)
	}
	if err != nil {
		return fmt.Errorf("napt: %w", err)
	}
	st.start.Load(all, func(at clock.Time, seed uint64) { a.restore(at, seed, all) })
	return nil
}

// outer is a public end.
type outer struct {
	addr  uint32
	port  uint16
	class uint8
}

// check looks whether records can be, here.
func (a *app) check(all flow.Records) error {
	ends := map[outer]bool{}
	inner := map[private]bool{}
	sessions := map[[14]byte]bool{}
	left := func(b []byte) bool {
		d := time.Duration(be.Uint64(b))
		return d <= longest && d >= -longest
	}
	for sort, b := range all.All {
		if sort == recordSession {
			kind, end := b[13], outer{be.Uint32(b), be.Uint16(b[4:]), b[6]}
			if !ends[end] || sessions[[14]byte(b)] || kind < tcpSession || kind > mayPort || kind == tcpSession && end.class != classTCP ||
				b[14]&^allFlags != 0 || !left(b[15:]) || be.Uint64(b[15:])>>63 != 0 {
				return fmt.Errorf("%w: no session is like that", flow.ErrDamaged)
			}
			sessions[[14]byte(b)] = true
			continue
		}
		k, end := keyOf(b), outer{be.Uint32(b[11:]), be.Uint16(b[15:]), b[10]}
		if end.class >= numClasses || k.vlans >= 1<<24 || inner[k] || ends[end] || !left(b[23:]) {
			return fmt.Errorf("%w: no mapping is like that", flow.ErrDamaged)
		}
		inner[k], ends[end] = true, true
		switch _, ours := a.index[end.addr]; {
		case !ours:
			return fmt.Errorf("the state has mappings to %s, which is not in public=", addrOf(end.addr))
		case end.class != classICMP && (end.port < a.ports[0] || end.port > a.ports[1]):
			return fmt.Errorf("the state has mappings to port %d, which is not in ports=", end.port)
		case a.st.shardOf(k.port) != a.st.shardOf(end.port):
			return errors.New("the state is that of fewer workers")
		}
	}
	return nil
}

func keyOf(b []byte) private {
	return private{addr: be.Uint32(b), port: be.Uint16(b[4:]), vlans: be.Uint32(b[6:]), class: uint16(b[10])}
}

// until is the end of what is left, from b.
func until(now clock.Time, b []byte) clock.Time { return now.Add(time.Duration(be.Uint64(b))) }

// restore puts records, which were checked, in place of what there is.
func (a *app) restore(at clock.Time, seed uint64, all flow.Records) {
	a.join(at, seed)
	st := a.st
	for n := range st.shards {
		s := st.take(n)
		for i := s.sessions.Next(0); i >= 0; i = s.sessions.Next(i + 1) {
			s.end(i)
		}
		for i := s.mappings.Next(0); i >= 0; i = s.mappings.Next(i + 1) {
			st.forget(s, i, a.seed)
		}
		s.later.Clear()
		st.give(s)
	}
	for sort, b := range all.All {
		if sort == recordMapping {
			k := keyOf(b)
			s := st.take(st.shardOf(k.port))
			hash := k.hash(a.seed)
			if i := s.mappings.Add(&k, hash); i >= 0 {
				m := &s.mappings.At(i).Val
				*m = mapping{until: until(a.now, b[23:]), public: a.index[be.Uint32(b[11:])], port: be.Uint16(b[15:]), mac: [6]byte(b[17:])}
				p, at := &s.pools[m.public][k.class], st.index(m.port)
				p.used[at/64] |= 1 << (at % 64)
				p.free--
				p.mapping[at] = uint32(i) + 1
				s.hosts.Add(hostHash(&k, a.seed))
			}
			st.give(s)
			continue
		}
		port := be.Uint16(b[4:])
		s := st.take(st.shardOf(port))
		if i := int(s.pools[a.index[be.Uint32(b)]][b[6]].mapping[st.index(port)]) - 1; i >= 0 {
			k := peer{uint32(i), be.Uint32(b[7:]), be.Uint16(b[11:]), uint16(b[13])}
			if j := s.sessions.Add(&k, k.hash(a.seed)); j >= 0 {
				s.sessions.At(j).Val = session{until(a.now, b[15:]), b[14]}
				s.mappings.At(i).Val.sessions++
			}
		}
		st.give(s)
	}
}
