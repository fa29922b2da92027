package clover

import (
	"fmt"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	wire "github.com/quillon/quillon/nf/hdr/clover"
	"github.com/quillon/quillon/nf/packet"
)

// tickEvery is how often the control side looks after repairs and hot keys.
const tickEvery = 10 * time.Millisecond

// Tick implements graph.Ticker: repairs, hot keys, idle connections. One
// worker does it for all.
func (s *Steer) Tick(c *graph.Ctx) clock.Time {
	if s.worker != 0 {
		return clock.Never
	}
	s.lock()
	defer s.unlock()
	now := c.Now()
	if s.cfg.mode != Off {
		s.repair(c, now)
		if s.cfg.hot > 0 && now >= s.rehot {
			c.Count(ctrEvicted, uint64(s.rebalance(c)))
			s.rehot = now.Add(100 * time.Millisecond)
		}
	}
	if s.cfg.idle > 0 && now >= s.sweep {
		for i := range s.conns.rows {
			if r := &s.conns.rows[i]; r.used && now.Sub(r.last) > s.cfg.idle {
				s.remove(c, int32(i))
			}
		}
		s.sweep = now.Add(time.Second)
	}
	s.release(c)
	s.returned(c)
	return now.Add(tickEvery)
}

// waiting is the record of a steered CAS that is not answered; nil when it is.
func (s *state) waiting(u *unanswered) *op {
	if rec := s.conns.op(u.row, u.psn); rec != nil && rec.kind == opCAS && rec.live && rec.steered && !rec.void && s.conns.rows[u.row].used {
		return rec
	}
	return nil
}

// watch has a steered CAS sent again when it stays unanswered; false when
// there are more of them than can be watched.
func (s *state) watch(u unanswered) bool {
	// Between ticks, too, what was answered makes room.
	for n := 0; n < 2 && s.casLen > len(s.casq)/2 && s.waiting(&s.casq[s.casHead]) == nil; n++ {
		s.unwatch()
	}
	if s.casLen == len(s.casq) {
		return false
	}
	s.casq[(s.casHead+s.casLen)%len(s.casq)] = u
	s.casLen++
	return true
}

func (s *state) unwatch() (u unanswered) {
	u = s.casq[s.casHead]
	s.casHead = (s.casHead + 1) % len(s.casq)
	s.casLen--
	return u
}

// repair sends steered CASes again that stayed unanswered, and gives up what
// will never be linked.
func (s *Steer) repair(c *graph.Ctx, now clock.Time) {
	for range s.casLen {
		u := s.unwatch()
		rec := s.waiting(&u)
		switch {
		case rec == nil || s.cfg.repair == 0:
			continue
		case now.Sub(u.sent) < s.cfg.repair<<rec.repairs:
		case rec.repairs == maxRepairs:
			rec.live = false
			c.Count(ctrGivenUp, 1)
			s.ended(c, rec)
			continue
		default:
			rec.repairs++
			s.resend(c, &s.conns.rows[u.row], rec)
			u.sent = now
		}
		s.watch(u)
	}
	for i := range s.gap {
		if g := &s.gap[i]; s.gaps > 0 && g.used && !g.over && now.Sub(g.at) > gapLife {
			s.cut(c, g.key)
		}
	}
}

// resend builds a steered CAS from its record and emits it.
func (s *Steer) resend(c *graph.Ctx, r *row, rec *op) {
	x := c.Get()
	if x == nil {
		return
	}
	n := int(r.startLen)
	b, ok := x.Append(n + hdr.AtomicETHLen + hdr.ICRCLen)
	if !ok {
		c.Discard(x)
		return
	}
	copy(b, r.start[:n])
	f := r.startF
	f.Op = hdr.CompareSwap
	f.BTHOf(b).SetPSN(rec.psn)
	a := f.AtomicETHOf(b)
	a.SetVA(rec.newVA)
	a.SetRKey(rec.rkey)
	a.SetSwap(uint64(wire.Pointer(rec.swap).WithVersion(rec.newVer)))
	a.SetCompare(uint64(wire.Fresh(rec.newVer)))
	f.End = uint16(n + hdr.AtomicETHLen)
	f.Payload = f.End
	hdr.SetICRC(b, &f)
	c.Mark(x, packet.Generated, reasonRepaired)
	c.Emit(int(r.out), x)
}

// Trace kinds.
const (
	traceCAS uint16 = iota
	traceRead
)

// Describe implements graph.Describer.
func (s *Steer) Describe(kind uint16, a [4]uint64) string {
	what := "cas"
	if kind == traceRead {
		what = "read"
	}
	return fmt.Sprintf("%s psn %d key %d: va 0x%x -> 0x%x", what, a[0], a[3], a[1], a[2])
}

// Memory is what the tables occupy, in bytes; all of it is taken at start.
type Memory struct {
	Keys       int     `json:"keys_bytes"`
	Addresses  int     `json:"addresses_bytes"`
	Conns      int     `json:"connections_bytes"`
	PerKey     float64 `json:"bytes_per_key"`
	PerAddress float64 `json:"bytes_per_address"`
	PerConn    float64 `json:"bytes_per_connection"`
}

// Report is the app's state for people.
type Report struct {
	Mode        string `json:"mode"`
	Keys        int    `json:"keys"`
	KnownTails  int    `json:"known_tails"`
	Connections int    `json:"connections"`
	Paired      int    `json:"paired"`
	Servers     int    `json:"servers"`
	Regions     int    `json:"regions"`
	Bases       int    `json:"trusted_bases"`
	Orphans     int    `json:"orphans"`
	Held        int    `json:"held"` // answers
	Unanswered  int    `json:"unanswered"`
	Memory      Memory `json:"memory"`
}

const (
	rowBytes = int(sizeofRow)
	opBytes  = int(sizeofOp)
)

// Report implements graph.Reporter.
func (s *Steer) Report() any {
	s.lock()
	defer s.unlock()
	r := Report{Mode: s.cfg.mode.String(), Keys: s.keys.len(), Connections: s.conns.len(),
		Servers: len(s.servers), Regions: len(s.regions), Held: s.nheld, Unanswered: s.casLen}
	for i := range s.keys.s {
		if s.keys.s[i].known() {
			r.KnownTails++
		}
	}
	for i := range s.gap {
		if g := &s.gap[i]; g.used && !g.over {
			r.Orphans++
		}
	}
	for i := range s.conns.rows {
		if s.conns.rows[i].paired {
			r.Paired++
		}
	}
	for i := range s.bases {
		if s.trusted(&s.bases[i]) {
			r.Bases++
		}
	}
	conns := len(s.conns.rows)*(rowBytes+window*opBytes+4) + s.conns.ix.Bytes() + s.conns.rx.Bytes()
	r.Memory = Memory{Keys: s.keys.bytes(), Addresses: s.addrs.bytes(), Conns: conns,
		PerKey: float64(s.keys.bytes()) / float64(len(s.keys.s)), PerAddress: 16, PerConn: float64(conns) / float64(len(s.conns.rows))}
	return r
}
