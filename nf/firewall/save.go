package firewall

import (
	"fmt"
	"io"
	"time"

	"github.com/quillon/quillon/nf/arg"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/flow"
	"github.com/quillon/quillon/nf/hdr"
)

// A record is a connection:
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

func encode(b *[recordLen]byte, k *flow.Key, c *conn, now clock.Time) {
	copy(b[:], k.Src[:])
	copy(b[16:], k.Dst[:])
	be.PutUint16(b[32:], k.SrcPort)
	be.PutUint16(b[34:], k.DstPort)
	be.PutUint32(b[36:], k.Tag)
	b[40], b[41] = k.Proto, k.Family
	be.PutUint64(b[42:], uint64(c.until.Sub(now)))
	b[50], b[51], b[52] = c.state, c.opener, c.flags&unchecked
	for i := range c.side {
		x, p := &c.side[i], b[53+18*i:]
		be.PutUint32(p, x.end)
		be.PutUint32(p[4:], x.max)
		be.PutUint32(p[8:], x.win)
		be.PutUint32(p[12:], x.ack)
		p[16], p[17] = x.scale, x.has
	}
}

// decode is the opposite; false: there is no such connection.
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

// join tells a worker that has had no breath yet what the others have begun with.
func (a *app) join(at clock.Time, seed uint64) {
	a.seed = seed
	if !a.begun {
		a.now = at
	}
}

// Save implements graph.Saver.
func (a *app) Save(w io.Writer) error {
	image := flow.NewImage(w, "firewall", version)
	return a.st.start.Save(image, func(at clock.Time, seed uint64) {
		a.join(at, seed)
		a.record(image)
	})
}

// record writes all connections.
func (a *app) record(image *flow.Image) {
	st := a.st
	var b [recordLen]byte
	for n := range st.shards {
		s := st.take(uint64(n))
		for i := s.conns.Next(0); i >= 0; i = s.conns.Next(i + 1) {
			if p := s.conns.At(i); p.Val.until >= a.now {
				encode(&b, &p.Key, &p.Val, a.now)
				image.Record(recordSort, b[:])
			}
		}
		st.give(s)
	}
}

// Load implements graph.Saver. Connections for which there is no place are left
// out, those that are open last. TCP's numbers may have gone on by a window since
// they were saved. Each is compared with the rules with its next
// packet. Fragments under way are not saved.
func (a *app) Load(r io.Reader) error {
	st := a.st
	most := 64
	for i := range st.shards {
		most += st.shards[i].conns.Places() * (recordLen + 1)
	}
	all, err := flow.Open(r, "firewall", version, recordSize, most)
	if err != nil {
		return fmt.Errorf("firewall: %w", err)
	}
	var k flow.Key
	var c conn
	for _, b := range all.All {
		if !decode(b, &k, &c, 0) {
			return fmt.Errorf("firewall: %w: no connection is like that", flow.ErrDamaged)
		}
	}
	st.start.Load(all, func(at clock.Time, seed uint64) { a.restore(at, seed, all) })
	return nil
}

// restore puts records, which are right, in place of what there is.
func (a *app) restore(at clock.Time, seed uint64, all flow.Records) {
	a.join(at, seed)
	st := a.st
	for n := range st.shards {
		s := st.take(uint64(n))
		for i := s.conns.Next(0); i >= 0; i = s.conns.Next(i + 1) {
			s.release(i, a.seed)
		}
		st.give(s)
	}
	for _, firmly := range [2]bool{true, false} {
		for _, b := range all.All {
			var k flow.Key
			var c conn
			decode(b, &k, &c, a.now)
			if c.tentative() == firmly {
				continue
			}
			c.gen = a.gen - 1
			if k.Proto == hdr.ProtoTCP {
				c.flags |= movedA | movedB
			}
			hash := k.Hash(a.seed)
			s := st.take(hash)
			if s.conns.Find(&k, hash) < 0 {
				if i := s.conns.Add(&k, hash); i >= 0 {
					s.conns.At(i).Val = c
					from := source(&k, c.opener, a.seed)
					s.openers.Add(from)
					if c.tentative() {
						s.tents++
						s.sources.Add(from)
					}
				}
			}
			st.give(s)
		}
	}
}
