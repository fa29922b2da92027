package clover

import (
	"fmt"
	"time"

	"github.com/quillon/quillon/nf/clock"
	wire "github.com/quillon/quillon/nf/hdr/clover"
	"github.com/quillon/quillon/rack/rnic"
)

// Search is how clients find the tails of chains, and how they do their background work.
type Search uint8

const (
	// SearchHeaders is the better one. A read jumps to a fresh shortcut once. A write that lost a race
	// follows headers from its place. Shortcuts are written, and garbage is reported, as soon as possible and
	// with the latest entry of each key.
	SearchHeaders Search = iota
	// SearchLibrary is the search of Clover's own library (github.com/WukLab/pDPM):
	//
	//   - Every search begins with its entry and the key's shortcut side by side. When the entry is no tail,
	//     it goes on from the shortcut, even if the shortcut is older. A write does so again after each CAS
	//     that failed.
	//   - A read that moved along the chain puts the tail that it found into the cache of all threads, even
	//     if the cache knows a later one by then.
	//   - A write's first CAS goes to the tail that was cached before its WRITE.
	//   - Each thread asks for 16 entries at a time, and waits for them.
	//   - Four threads of a process update shortcuts and report garbage, each for a quarter of the keys. A
	//     round is 16 records: the thread writes the oldest record of each key to the key's shortcut, then
	//     reports all records, then begins the next round. A thread without work sleeps; see Config.Nap.
	SearchLibrary
)

var searches = []string{"headers", "library"}

func (s Search) String() string { return searches[s] }

// SearchNamed returns the search with that name.
func SearchNamed(name string) (Search, error) {
	for i, n := range searches {
		if n == name {
			return Search(i), nil
		}
	}
	return 0, fmt.Errorf("search is headers or library, not %q", name)
}

// DefaultNap is how long a thread of Clover's library sleeps when it has found nothing to do: it asks for 10
// us, and the timer slack of Linux adds 50 us (prctl(2), PR_SET_TIMERSLACK).
const DefaultNap = 60 * time.Microsecond

// collectors is how many background threads a process of Clover's library has.
const collectors = 4

// gcRecord is a write that the background must tell others.
type gcRecord struct {
	k        *keyState
	old, own Pointer
}

// Work is how long the library, and the program that uses it, work by themselves.
type Work struct {
	// Read and Write are spent before the operation's first request: to find the key, copy, allocate, keep
	// lists.
	Read, Write time.Duration
	// Round is spent after each round trip, before the operation goes on.
	Round time.Duration
	// Between is what the program spends between two operations. It is no part of a latency.
	Between time.Duration
}

// think makes the session work for d before it goes on with its step.
func (s *Session) think(d time.Duration) {
	s.then, s.step, s.ready = s.step, stepThink, s.c.now.Add(d)
	h := append(s.c.thinking, s)
	i := len(h) - 1
	for i > 0 && h[(i-1)/2].ready > s.ready {
		h[i], h[(i-1)/2] = h[(i-1)/2], h[i]
		i = (i - 1) / 2
	}
	s.c.thinking = h
}

// thought lets the sessions go on whose work has ended.
func (c *Client) thought() bool {
	did := false
	for len(c.thinking) > 0 && c.thinking[0].ready <= c.now {
		h := c.thinking
		s, last := h[0], len(h)-1
		h[0] = h[last]
		h = h[:last]
		for i := 0; ; {
			k := 2*i + 1
			if k+1 < last && h[k+1].ready < h[k].ready {
				k++
			}
			if k >= last || h[k].ready >= h[i].ready {
				break
			}
			h[i], h[k] = h[k], h[i]
			i = k
		}
		c.thinking = h
		s.step = s.then
		switch {
		case s.step != stepIdle:
			s.arrived()
		case s.res.Write:
			s.write()
		default:
			s.locate()
		}
		did = true
	}
	return did
}

type collectorState uint8

const (
	collectorIdle      collectorState = iota
	collectorWriting                  // writes shortcuts
	collectorReporting                // waits for the metadata server
)

// collector is a background thread of Clover's library.
type collector struct {
	rpc
	memory []*rnic.QP // by memory node
	work   queue[gcRecord]
	state  collectorState
	idle   clock.Time // when its nap began; it looks for work after each whole nap from then on
	wakeAt clock.Time
	busy   int // shortcuts under way
	words  [GCMax][8]byte
	wr     rnic.SendWR
	sgl    [1][]byte
}

// note gives a collector the record of a write.
func (g *collector) note(now clock.Time, nap time.Duration, r gcRecord) {
	if g.state == collectorIdle && g.work.n == 0 {
		g.wakeAt = g.idle.Add((now.Sub(g.idle)/nap + 1) * nap)
	}
	g.work.push(r)
}

func (g *collector) quiet() bool { return g.state == collectorIdle && g.work.n == 0 }

func (g *collector) deadline() clock.Time {
	if g.state == collectorIdle && g.work.n > 0 {
		return g.wakeAt
	}
	return clock.Never
}

func (g *collector) step(c *Client, i int) bool {
	switch g.state {
	case collectorIdle:
		if g.work.n == 0 || c.now < g.wakeAt {
			return false
		}
		g.round(c, i)
	case collectorWriting:
		if g.busy > 0 {
			return false
		}
		g.state = collectorReporting
		if err := g.post(idBackground|bgReport|uint64(i), MsgGC, LargeMsgLen, c.index, uint32(i)); err != nil {
			c.err = err
		}
	case collectorReporting:
		if !g.take() {
			return false
		}
		if g.work.n > 0 {
			g.round(c, i)
			return true
		}
		g.state, g.idle = collectorIdle, c.now
	}
	return true
}

// round takes the next records. It writes the shortcut of each key from the key's first record, and fills in
// the report.
func (g *collector) round(c *Client, thread int) {
	m := g.req[:]
	clear(m[msgContent:])
	var keys [GCMax]uint64
	n, written := 0, 0
next:
	for n < GCMax && g.work.n > 0 {
		r := g.work.pop()
		at := gcEntries + n*gcEntryLen
		put64(m, at+gcOld, uint64(r.old))
		put64(m, at+gcNew, uint64(r.own))
		put64(m, at+gcKey, r.k.key)
		put32(m, at+gcFactor, 1)
		n++
		for _, k := range keys[:written] {
			if k == r.k.key {
				continue next
			}
		}
		s, va := c.layout.Shortcut(r.k.slot)
		if s == nil {
			continue
		}
		word := g.words[written][:]
		keys[written] = r.k.key
		written++
		put64(word, 0, uint64(r.own))
		g.sgl[0] = word
		g.wr.ID, g.wr.Op, g.wr.SGL, g.wr.RemoteAddr, g.wr.RKey, g.wr.Signaled = idBackground|bgShortcut|uint64(thread), rnic.OpWrite, g.sgl[:], va, s.RKey, true
		if g.memory[s.Node].PostSend(&g.wr) == nil {
			g.busy++
			c.stats.ShortcutWrites++
		}
	}
	put32(m, gcCount, uint32(n))
	c.stats.GCRecord += uint64(n)
	g.state = collectorWriting
}

// chase reads the header of p, which is no tail, and the key's shortcut beside it.
func (s *Session) chase(p Pointer) {
	sp, va := s.c.layout.Entry(p.LH())
	ss, sva := s.c.layout.Shortcut(s.k.slot)
	if sp == nil || ss == nil {
		s.find(p)
		return
	}
	s.cur, s.step = p, stepChase
	s.res.RoundTrips++
	s.c.stats.HeaderReads++
	clear(s.shortcut[:])
	s.post(wcHeader, rnic.OpRead, sp, va, s.word[:])
	if s.res.Err == nil {
		s.post(wcShortcut, rnic.OpRead, ss, sva, s.shortcut[:])
	}
	s.settle()
}

// chased goes on from the shortcut, wherever the shortcut leads.
func (s *Session) chased() {
	h, sc := pointerAt(s.word[:], 0), pointerAt(s.shortcut[:], 0)
	switch {
	case h.Version() != s.cur.Version():
		s.lost()
	case h.Next() == s.own:
		s.c.stats.FoundOwn++
		s.success()
	case h.Next() == 0:
		s.behind()
	case s.endless():
	case sc == 0:
		s.find(h.Next())
	default:
		s.leapt = true
		s.find(wire.Ref(sc.LH(), sc.Version()))
	}
}

// behind links the new entry behind the tail that was found. If a shortcut led there, the new entry must not
// have a successor: see Client.
func (s *Session) behind() {
	if !s.leapt || s.c.direct {
		s.link(s.cur)
		return
	}
	sp, va := s.c.layout.Entry(s.own.LH())
	s.step = stepSelf
	s.res.RoundTrips++
	s.c.stats.HeaderReads++
	s.post(wcHeader, rnic.OpRead, sp, va, s.word[:])
	s.settle()
}

// itself looks at the header of the new entry.
func (s *Session) itself() {
	if pointerAt(s.word[:], 0).Next() == 0 {
		s.link(s.cur)
		return
	}
	s.leapt, s.careful = false, true
	s.find(s.anchor)
}

// ask asks the metadata server for entries.
func (s *Session) ask() {
	r := s.rpc.req[:MsgLen]
	clear(r[msgContent:])
	put32(r, grantSize, uint32(s.c.slabs[s.class]))
	put32(r, grantCount, GrantMax)
	s.step = stepAsk
	s.res.RoundTrips++
	s.c.stats.Grants++
	if err := s.rpc.post(s.id|wcRPC, MsgAskEntry, MsgLen, s.c.index, uint32(s.index)); err != nil {
		s.finish(fmt.Errorf("clover: post to the metadata server: %w", err))
		return
	}
	s.pending = 1
	s.c.asking = append(s.c.asking, s)
}

// asked takes the entries that were granted. If there were none, the session waits for those that the
// background asks for.
func (s *Session) asked() {
	m := s.rpc.reply
	n := min(u32(m, grantCount), GrantMax)
	if u64(m, msgOption) != resOK {
		n = 0
	}
	for i := range int(n) {
		if e := pointerAt(m, grantPtrs+8*i); e.LH() != 0 {
			s.mine[s.class].push(e)
		}
	}
	if s.mine[s.class].n > 0 {
		s.obtain()
		return
	}
	s.step = stepSpace
	s.c.used[s.class] = true
	s.c.hungry[s.class].push(s)
}
