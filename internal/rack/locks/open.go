package locks

import (
	"bytes"
	"encoding/binary"

	"github.com/quillon/quillon/internal/rack/history"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/rack/rnic"
)

// open keeps many requests of all kinds in flight: every verb on single shared words, WRITEs and READs of
// several neighbouring words, and WRITEs of several packets to private memory, which are read back.
type open struct {
	word  int      // the word that was used last
	seen  []uint64 // by word: a value that it had
	hope  []uint64 // by word: the value that it has if no other session interferes
	slots [2]slot  // halves of the private memory
}

// slot is private memory that is free, or written and not read back yet.
type slot struct {
	off  uint64
	size int
	fill []byte // what was written last
	busy bool
}

// Steps of open.
const (
	openWord = iota
	openWide
	openFill // step/2 - openFill/2 is the slot
	openCheck
)

func newOpen(s *session) *open {
	p := &open{seen: make([]uint64, s.c.cfg.Words), hope: make([]uint64, s.c.cfg.Words)}
	for i := range p.slots {
		size := s.c.cfg.Scratch / len(p.slots)
		p.slots[i] = slot{off: uint64(s.number*s.c.cfg.Scratch + i*size), size: size}
	}
	return p
}

func (p *open) start(s *session, now clock.Time, again bool) {
	for i := range p.slots {
		p.slots[i].busy = false
	}
	p.fill(s, now)
}

func (p *open) fill(s *session, now clock.Time) {
	for len(s.reqs) < s.c.cfg.Outstanding && s.begin() {
		p.one(s, now)
	}
}

// one posts a request.
func (p *open) one(s *session, now clock.Time) {
	// The same word is used often, so that the next request sees the effect of this one.
	if s.rng.IntN(2) == 0 {
		p.word = s.rng.IntN(s.c.cfg.Words)
	}
	i := p.word
	w := history.Word{Addr: wordsVA + uint64(i)*8}
	was := p.hope[i]
	if s.rng.IntN(3) == 0 {
		was = p.seen[i]
	}
	switch k := s.rng.IntN(16); {
	case k < 3:
		w.Op = rnic.OpRead
	case k < 5:
		w.Op, w.Swap = rnic.OpWrite, s.owner()
	case k < 8:
		w.Op, w.Compare, w.Swap = rnic.OpCompareSwap, was, s.owner()
	case k < 10:
		w.Op, w.Swap = rnic.OpFetchAdd, s.rng.Uint64()
	case k < 12:
		w.Op, w.Compare, w.Swap = rnic.OpMaskedCompareSwap, was, s.owner()
		w.CompareMask, w.SwapMask = someBytes(s.rng.Uint32()), someBytes(s.rng.Uint32())
	case k < 14:
		p.wide(s, now, i, k == 12)
		return
	default:
		if p.private(s) {
			return
		}
		w.Op = rnic.OpRead
	}
	p.hope[i] = w.After(p.hope[i])
	s.ask(now, openWord, w)
}

// someBytes returns a mask of whole bytes.
func someBytes(which uint32) uint64 {
	var m uint64
	for i := range 8 {
		if which>>i&1 != 0 {
			m |= 0xFF << (8 * i)
		}
	}
	return m
}

// wide writes or reads a range of words from the i-th on. In the history this is an operation for each word.
func (p *open) wide(s *session, now clock.Time, i int, write bool) {
	n := 1 + s.rng.IntN(s.c.cfg.Words-i)
	buf := make([]byte, 8*n)
	op := rnic.OpRead
	first := 0
	for k := range n {
		w := history.Word{Op: op, Addr: wordsVA + uint64(i+k)*8}
		if write {
			op = rnic.OpWrite
			w.Op, w.Swap = op, s.owner()
			p.hope[i+k] = w.Swap
			binary.LittleEndian.PutUint64(buf[8*k:], w.Swap)
		}
		if id := s.c.cfg.WordLog.Call(s.conn, now, w); k == 0 {
			first = id
		}
	}
	s.post(openWide, request{ids: first, words: n}, op, s.grant.Words, uint64(i)*8, buf)
}

// private writes to private memory and reads it back; false if all of it is in use.
func (p *open) private(s *session) bool {
	for i := range p.slots {
		x := &p.slots[i]
		if x.busy || x.size == 0 {
			continue
		}
		x.busy = true
		x.fill = make([]byte, 1+s.rng.IntN(min(x.size, 4*s.c.cfg.MTU)))
		mark := s.owner()
		for k := range x.fill {
			x.fill[k] = byte(mark>>(8*(k%8))) ^ byte(k)
		}
		s.post(openFill+2*i, request{}, rnic.OpWrite, s.grant.Scratch, x.off, x.fill)
		s.post(openCheck+2*i, request{}, rnic.OpRead, s.grant.Scratch, x.off, make([]byte, len(x.fill)))
		return true
	}
	return false
}

func (p *open) done(s *session, now clock.Time, r *request) {
	switch {
	case r.step == openWord:
		i := (r.word.Addr - wordsVA) / 8
		p.seen[i] = r.word.After(r.value)
		if len(s.reqs) == 0 || r.word.Op == rnic.OpRead {
			p.hope[i] = p.seen[i]
		}
		s.finish(r.at)
	case r.step == openWide:
		s.finish(r.at)
	case r.step&1 == openCheck&1:
		x := &p.slots[(r.step-openCheck)/2]
		if x.busy = false; !bytes.Equal(r.buf, x.fill) {
			s.wrong("private memory at %#x, %d bytes, is not what was just written there", x.off, len(r.buf))
		}
		s.finish(r.at)
	}
	p.fill(s, now)
}
