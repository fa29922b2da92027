package fusee

import (
	"slices"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/rack/rnic"
)

// after says what follows a round.
type after uint8

const (
	thenWrite    after = iota // the round of an update or a deletion
	thenPlace                 // an insertion's first round
	thenCommit                // an insertion's second round
	thenKill                  // the round that takes away another insertion's word
	thenWithdraw              // the round that takes away the insertion's own word
	thenRepair                // the round of a dead session
)

// outcome is the outcome of a round, for the session's word.
type outcome uint8

const (
	won     outcome = iota
	lost            // the slot has, or had, another word instead
	unknown         // the slot has another word, and may have had this one before
)

// round is a change of a slot from an old word to a new one, by SNAPSHOT. All sessions that want to change
// the slot send CASes to the backups, so that each backup takes the word of one of them. From these words
// every session can compute which one has won. The winning word is written to all backups, and then to the
// primary, for which all other sessions wait.
type round struct {
	sub, pos int
	old, new slot
	then     after
	vals     [maxReplicas]slot // words of the backups
	win      slot
	helping  bool // the session finishes the round for the word that has won
	cut      bool // it is not known which of the session's requests arrived
	watchAt  clock.Time
}

// rule says by which rule a round was won.
type rule uint8

const (
	byAll rule = iota
	byMost
	byLeast
)

// evaluate returns the word that has won, if the round is not over: that of the majority, or else the least
// one.
func evaluate(vals []slot) (slot, rule) {
	least := vals[0]
	for _, v := range vals {
		n := 0
		for _, x := range vals {
			if x == v {
				n++
			}
		}
		switch {
		case n == len(vals):
			return v, byAll
		case 2*n > len(vals):
			return v, byMost
		}
		least = min(least, v)
	}
	return least, byLeast
}

// snapshot is a session that takes part in a round.
type snapshot struct{ *session }

// decide begins a round.
func (s snapshot) decide(now clock.Time, pos int, old, new slot, then after) {
	if now.Sub(s.readAt) > s.c.cfg.FailAfter/2 {
		lookup(s).stale(now)
		return
	}
	s.round = round{sub: s.h.sub, pos: pos, old: old, new: new, then: then}
	s.propose(now)
}

func (s snapshot) propose(now clock.Time) {
	s.helping = false
	if len(s.replicas(s.sub)) == 1 {
		s.win = s.new
		s.do(now, stepCommit)
		return
	}
	s.do(now, stepPropose)
}

// help finishes a round for the word that has won.
func (s snapshot) help(now clock.Time) {
	s.helping = true
	s.do(now, stepLook)
}

func (s snapshot) slotOff() int { return s.sub*s.l.subtableSize() + 8*s.pos }

// askRound makes the requests for a step of a round.
func (s snapshot) askRound() (Phase, bool) {
	ring := s.replicas(s.sub)
	if len(ring) == 0 {
		return numPhases, false
	}
	at := s.slotOff()
	backups := ring[1:]
	swap := func(i, n int, from, to slot) {
		s.AskSwap(n, s.indexOf(n), at, uint64(from), uint64(to), s.Words[i][:])
	}
	switch s.step {
	case stepPropose:
		for i, n := range backups {
			swap(i, n, s.old, s.new)
		}
		return Proposing, true
	case stepFill:
		for i, n := range backups {
			if s.vals[i] == s.old {
				swap(i, n, s.old, s.win)
			}
		}
		return Proposing, true
	case stepFix:
		for i, n := range backups {
			if s.vals[i] != s.win {
				swap(i, n, s.vals[i], s.win)
			}
		}
		return Fixing, true
	case stepLog:
		region := s.piece.At.node
		b := putOld(s.Take(oldSize), s.old)
		n := headSize + len(s.res.Key) + oldAt
		if s.res.Kind != Delete {
			n += len(s.res.Value)
		}
		for _, node := range s.replicas(region) {
			s.Ask(rnic.OpWrite, node, s.objectsOf(node, region), s.piece.At.off+n, b)
		}
		return Logging, len(s.WRs) > 0
	case stepCommit:
		swap(0, ring[0], s.old, s.win)
		if s.eager() {
			a := s.old.at()
			for _, n := range s.replicas(a.node) {
				s.Ask(rnic.OpWrite, n, s.objectsOf(n, a.node), a.off, freed[0])
			}
		}
		return Committing, true
	case stepCheck, stepWatch:
		ring = ring[:1]
	}
	for i, n := range ring {
		s.Ask(rnic.OpRead, n, s.indexOf(n), at, s.Words[i][:])
	}
	return numPhases, true
}

// eager reports whether the round's CAS of the primary takes the mark of the replaced object along.
func (s snapshot) eager() bool {
	return s.c.cfg.Eager && s.then == thenWrite && len(s.replicas(s.sub)) == 1
}

func (s snapshot) wordAt(i int) slot { return slot(le.Uint64(s.Words[i][:])) }

// roundDone continues a round.
func (s snapshot) roundDone(now clock.Time) {
	n := len(s.replicas(s.sub)) - 1
	switch s.step {
	case stepPropose:
		for i := range n {
			s.vals[i] = s.wordAt(i)
			if s.vals[i] == s.old {
				s.vals[i] = s.new
			}
		}
		s.evaluated(now, s.vals[:n])
	case stepFill:
		for i := range n {
			if s.vals[i] == s.old {
				if s.vals[i] = s.wordAt(i); s.vals[i] == s.old {
					s.vals[i] = s.win
				}
			}
		}
		s.do(now, stepCheck)
	case stepCheck:
		w, r := evaluate(s.vals[:n])
		switch p := s.wordAt(0); {
		case p == s.new:
			s.finish(now, won)
		case p != s.old && now.Sub(s.readAt) > s.c.cfg.FailAfter/2:
			s.finish(now, unknown) // another session may have helped
		case p != s.old:
			s.finish(now, lost)
		case s.helping || w == s.new:
			s.settle(now, w, r)
		default:
			s.watch(now)
		}
	case stepFix:
		s.log(now)
	case stepLog:
		s.do(now, stepCommit)
	case stepCommit:
		s.committed(now, n)
	case stepWatch:
		switch {
		case s.wordAt(0) != s.old:
			s.finish(now, lost)
		case now.Sub(s.watchAt) > s.c.cfg.FailAfter:
			s.help(now)
		default:
			s.c.stats.Waited++
			s.fire(now)
		}
	case stepLook:
		s.looked(now, n)
	}
}

// evaluated checks whether the session's word has won, from the words that the backups had.
func (s snapshot) evaluated(now clock.Time, vals []slot) {
	w, r := evaluate(vals)
	switch {
	case r != byLeast && w == s.new:
		s.settle(now, w, r)
	case r != byLeast:
		s.watch(now)
	default:
		if slices.Contains(vals, s.new) {
			s.do(now, stepCheck)
			return
		}
		s.watch(now)
	}
}

func (s snapshot) watch(now clock.Time) {
	s.watchAt = now
	s.do(now, stepWatch)
}

// settle writes the word that has won to all backups.
func (s snapshot) settle(now clock.Time, w slot, r rule) {
	s.win = w
	if !s.helping {
		s.c.stats.Rules[r]++
	}
	for _, v := range s.vals[:len(s.replicas(s.sub))-1] {
		if v != w {
			s.do(now, stepFix)
			return
		}
	}
	s.log(now)
}

// log commits the session's own log entry: an old word there shows that the round is decided.
func (s snapshot) log(now clock.Time) {
	if s.win == s.new && s.has && s.new.at() == s.piece.At && (s.then == thenWrite || s.then == thenCommit) {
		s.do(now, stepLog)
		return
	}
	s.do(now, stepCommit)
}

// committed ends the round. If there are backups, the CAS of the primary fails only if another session has
// finished the round, with the same word.
func (s snapshot) committed(now clock.Time, backups int) {
	was := s.wordAt(0)
	if s.helping {
		s.c.stats.Helped++
	}
	switch {
	case s.win != s.new:
		s.finish(now, lost)
	case was == s.old || was == s.new || backups > 0:
		s.finish(now, won)
	default:
		s.finish(now, lost)
	}
}

// looked continues from the words of all replicas.
func (s snapshot) looked(now clock.Time, n int) {
	p := s.wordAt(0)
	switch {
	case p == s.new:
		s.finish(now, won)
	case p != s.old && s.cut:
		s.finish(now, unknown)
	case p != s.old:
		s.finish(now, lost)
	case s.cut && now.Sub(s.readAt) > s.c.cfg.FailAfter && !s.same(n):
		if s.then == thenWrite {
			s.end(now, ErrUnknown)
			return
		}
		s.finish(now, unknown)
	case s.cut || n == 0:
		s.cut = false
		s.propose(now)
	default:
		s.win = s.old
		fill := false
		for i := range n {
			s.vals[i] = s.wordAt(i + 1)
			if s.vals[i] == s.old {
				fill = true
			} else if s.win == s.old {
				s.win = s.vals[i]
			}
		}
		switch {
		case s.win == s.old && s.then == thenRepair:
			s.finish(now, lost)
		case s.win == s.old:
			s.propose(now)
		case fill:
			s.do(now, stepFill)
		default:
			s.do(now, stepCheck)
		}
	}
}

// same reports whether the old word, which was read long ago, has been in the slot all the time. That is
// certain if the word is tentative, because such a word never comes back, or if some backup has the new word.
// Otherwise the old word may have come back. Then it is not known whether the new word was ever in the slot;
// but it is nowhere now.
func (s snapshot) same(backups int) bool {
	for i := range backups {
		if s.wordAt(i+1) == s.new {
			return true
		}
	}
	return s.old&tentative != 0
}

// finish continues the operation after a round.
func (s snapshot) finish(now clock.Time, o outcome) {
	if o == lost {
		s.c.stats.Lost++
	}
	// The winner frees the object to which the old word referred.
	if o == won && s.then <= thenPlace && !s.eager() && !s.release(now, s.old) {
		return
	}
	switch s.then {
	case thenWrite:
		s.wrote(now, o)
	case thenPlace:
		switch {
		case o == won && s.c.cfg.Blind:
			s.placed(now)
		case o == won:
			s.at = s.pos
			s.do(now, stepFind)
		case o == unknown && s.c.cfg.Blind:
			s.end(now, ErrUnknown)
		default:
			s.again(now, o == lost)
		}
	case thenCommit:
		switch o {
		case won:
			s.placed(now)
		case lost:
			s.again(now, false) // the slot's word still refers to the object
		default:
			s.end(now, ErrUnknown)
		}
	case thenKill:
		if o == won {
			s.c.stats.Killed++
		}
		s.do(now, stepFind)
	case thenWithdraw:
		s.res.Found, s.res.Got = true, s.was
		s.end(now, nil)
	case thenRepair:
		s.rec.settled(now, s.session)
	}
}

// wrote ends an update or a deletion, if possible. An update that has lost, or may have lost, was replaced by
// the winner's: it counts as executed just before.
func (s snapshot) wrote(now clock.Time, o outcome) {
	switch {
	case o == won:
		if s.res.Kind == Update {
			s.cache.put(s.res.Key, s.pos, s.new, now)
		}
		s.end(now, nil)
	case s.res.Kind == Update:
		if o == lost {
			s.leave(now, true)
		}
		s.end(now, nil)
	case o == lost:
		s.res.Found = false
		s.again(now, true)
	default:
		s.end(now, ErrUnknown)
	}
}

// placed ends an insertion.
func (s snapshot) placed(now clock.Time) {
	s.cache.put(s.res.Key, s.pos, s.new, now)
	s.end(now, nil)
}
