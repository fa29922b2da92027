package locks

import (
	"bytes"
	"encoding/binary"

	"github.com/quillon/quillon/rack/rnic"
)

// section is a critical section: plain WRITEs and READs that only mutual exclusion keeps apart. The holder
// writes its mark to both ends of the block and reads the block back; both ends must still have the mark.
type section struct {
	lock  int
	owner uint64
	// clean: the holder before has left the block with equal ends.
	clean bool
	block []byte
}

// Steps of a section; the steps of a worker begin at ownSteps.
const (
	sectionEnter = iota
	sectionHead
	sectionTail
	sectionBack
	ownSteps
)

func (x *section) at() uint64 { return uint64(x.lock) * uint64(len(x.block)) }

// look reads the block as the last holder left it.
func (x *section) look(s *session) {
	if x.block == nil {
		x.block = make([]byte, s.c.cfg.Block)
	}
	s.post(sectionEnter, request{}, rnic.OpRead, s.grant.Blocks, x.at(), x.block)
}

// mark writes both ends and reads the block back.
func (x *section) mark(s *session) {
	head, tail := s.eight(), s.eight()
	binary.LittleEndian.PutUint64(head, x.owner)
	binary.LittleEndian.PutUint64(tail, x.owner)
	s.post(sectionHead, request{small: true}, rnic.OpWrite, s.grant.Blocks, x.at(), head)
	s.post(sectionTail, request{small: true}, rnic.OpWrite, s.grant.Blocks, x.at()+uint64(len(x.block))-8, tail)
	s.post(sectionBack, request{}, rnic.OpRead, s.grant.Blocks, x.at(), x.block)
}

// done handles the end of a step; true: the section has ended.
func (x *section) done(s *session, step int) bool {
	head, tail := x.block[:8], x.block[len(x.block)-8:]
	switch step {
	case sectionEnter:
		if x.clean && !bytes.Equal(head, tail) {
			s.wrong("lock %d, just taken as %#x: its block has %x and %x at its ends, as if somebody were at it", x.lock, x.owner, head, tail)
		}
		x.mark(s)
	case sectionBack:
		if !bytes.Equal(head, tail) || binary.LittleEndian.Uint64(head) != x.owner {
			s.wrong("lock %d, held as %#x: its block has %x and %x at its ends: somebody else is in", x.lock, x.owner, head, tail)
		}
		return true
	}
	return false
}
