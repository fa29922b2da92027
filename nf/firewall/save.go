package firewall

import (
	"fmt"
	"time"

	"github.com/quillon/quillon/nf/arg"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/flow"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
)

// A record of a saved state is one connection, big-endian, with these fields at these offsets:
//
//	0 Src | 16 Dst | 32 SrcPort | 34 DstPort | 36 Tag | 40 Proto | 41 Family |
//	42 nanoseconds that are left | 50 state | 51 opener | 52 flags |
//	53 and 71, of TCP's sides: end, max, win, ack (4 each), scale, has
const (
	version    = 2
	recordSort = 1
	recordLen  = 89
)

func recordSize(sort uint8) int {
	if sort == recordSort {
		return recordLen
	}
	return 0
}

// longest is the longest time that a connection may have left.
const longest = arg.Longest

func encode(b []byte, k *flow.Key, c *conn, now clock.Time) {
	_ = b[recordLen-1]
	copy(b, k.Src[:])
	copy(b[16:], k.Dst[:])
	be.PutUint16(b[32:], k.SrcPort)
	be.PutUint16(b[34:], k.DstPort)
	be.PutUint32(b[36:], k.Tag)
	b[40], b[41] = k.Proto, k.Family
	be.PutUint64(b[42:], uint64(c.until.Sub(now)))
	b[50], b[51], b[52] = c.state, c.opener, c.flags&unchecked
	for i := range c.side {
		x, p := &c.side[i], b[53+18*i:71+18*i]
		be.PutUint32(p, x.end)
		be.PutUint32(p[4:], x.max)
		be.PutUint32(p[8:], x.win)
		be.PutUint32(p[12:], x.ack)
		p[16], p[17] = x.scale, x.has
	}
}

// decode is the opposite of encode. It returns false if no connection can have such a record.
func decode(b []byte, k *flow.Key, c *conn, now clock.Time) bool {
	*k = flow.Key{Src: [16]byte(b), Dst: [16]byte(b[16:]), SrcPort: be.Uint16(b[32:]), DstPort: be.Uint16(b[34:]),
		Tag: be.Uint32(b[36:]), Proto: b[40], Family: b[41]}
	left := be.Uint64(b[42:])
	*c = conn{until: now.Add(time.Duration(left)), state: b[50], opener: b[51], flags: b[52]}
	for i := range c.side {
		p := b[53+18*i:]
		c.side[i] = side{be.Uint32(p), be.Uint32(p[4:]), be.Uint32(p[8:]), be.Uint32(p[12:]), p[16], p[17]}
		if p[16] > 14 || p[17] >= 1<<5 || k.Proto != hdr.ProtoTCP && c.side[i] != (side{}) {
			return false
		}
	}
	four := k.Family == hdr.NetIPv4 && [12]byte(k.Src[4:]) == [12]byte{} && [12]byte(k.Dst[4:]) == [12]byte{}
	tcp := c.state != oneWay && c.state != bothWays
	return (four || k.Family == hdr.NetIPv6) && k.Tag < 1<<24 && left <= uint64(longest) &&
		c.state > 0 && c.state < numStates && tcp == (k.Proto == hdr.ProtoTCP) && c.opener <= 1 && c.flags&^unchecked == 0
}

// record implements flow.Mover's Record: it returns a function that writes the next connections, from about n
// places, and reports whether more are left.
func (a *app) record(image *flow.Image, now clock.Time) func(n int) bool {
	st, shard, from := a.st, 0, 0
	return func(n int) bool {
		s := st.take(uint64(shard))
		from = s.conns.Some(from, n, func(i int) {
			if s.hold(i) {
				defer s.letGo(i, true)
			}
			if p := s.conns.At(i); p.Val.until >= now {
				encode(image.Add(recordSort, recordLen), &p.Key, &p.Val, now)
			}
		})
		st.give(s)
		if from < 0 {
			shard, from = shard+1, 0
		}
		return shard < len(st.shards)
	}
}

// build implements flow.Mover's Build. Connections for which there is no place are left out, the tentative ones
// first. The numbers of TCP may have advanced by a window since they were saved. Each connection is compared with
// the rules when its next packet comes. Fragments under way are not saved.
func (a *app) build() (most int, build func(now clock.Time, seed uint64, all flow.Records) (put func(), err error)) {
	st, gen, conns := a.st, a.gen, a.conns
	most = 64
	for i := range st.shards {
		most += st.shards[i].conns.Places() * (recordLen + 1)
	}
	return most, func(now clock.Time, seed uint64, all flow.Records) (func(), error) {
		made := newState(conns, len(st.shards))
		return func() { st.become(made) }, made.fill(now, seed, gen, all)
	}
}

// become replaces the connections of st by those of made, and ends the entries in the kernel.
func (st *state) become(made *state) {
	for n := range st.shards {
		s, m := st.take(uint64(n)), &made.shards[n]
		for i := s.conns.NextBefore(0, s.conns.Places()); i >= 0; i = s.conns.NextBefore(i+1, s.conns.Places()) {
			if f := &s.conns.At(i).Val.flows; f.Any() {
				s.ahead.Withdraw(f)
			}
		}
		s.conns, s.openers, s.sources, s.tents = m.conns, m.openers, m.sources, m.tents
		st.give(s)
	}
}

// fill puts records into a state that only the caller knows yet.
func (st *state) fill(now clock.Time, seed uint64, gen uint16, all flow.Records) error {
	var k flow.Key
	var c conn
	for _, firmly := range [2]bool{true, false} {
		for _, b := range all.All {
			if b[50] >= firm != firmly {
				continue
			}
			if !decode(b, &k, &c, now) {
				return fmt.Errorf("%w: no connection is like that", flow.ErrDamaged)
			}
			c.gen = gen - 1
			if k.Proto == hdr.ProtoTCP {
				c.flags |= movedA | movedB
			}
			hash := k.Hash(seed)
			s := &st.shards[hash&uint64(len(st.shards)-1)]
			if s.conns.Find(&k, hash) >= 0 {
				continue
			}
			if i := s.conns.Add(&k, hash); i >= 0 {
				s.conns.At(i).Val = c
				from := source(&k, c.opener, seed)
				s.openers.AddAlone(from)
				if c.tentative() {
					s.tents++
					s.sources.AddAlone(from)
				}
			}
		}
	}
	return nil
}

// Inherit implements graph.Mover: connections stay, and each is compared with the rules when its next packet
// comes.
func (a *app) Inherit(from graph.App) bool {
	o, ok := from.(*app)
	if !ok || o.conns != a.conns || len(o.st.shards) != len(a.st.shards) {
		return false
	}
	a.st, a.gen = o.st, o.gen+1
	a.scout()
	a.Continue(&o.Mover)
	return true
}
