package vmem

// frames holds the physical pages: which are free, what free ones hold, and when each was accessed.
type frames struct {
	data      []byte
	shift     uint
	mask      uint64
	all       []frame
	now       uint64 // number of accesses
	cleanList int32
	dirtyList int32
	unused    int // frames from here on were never taken: clean, and in no list
	free      int // frames in both lists, and unused
	lent      int
	atOnce    int    // the most bytes that an access clears
	turn      uint32 // ends when all who are to be told were told
	fresh     int    // frames that came in this turn and were not accessed
}

type frameState uint8

const (
	clean frameState = iota // free, holds zeros
	dirty                   // free, holds what another left
	used                    // a resident page
	out                     // Put is under way
	in                      // Get is under way
	lent
)

type frame struct {
	stamp      uint64 // of the last access; dirty: so many of its bytes are cleared
	prev, next int32  // used: ring of the space, next is older; free: next
	space      int32  // -1: out or in for a space that was closed
	vpn        int32
	gen        uint32 // of operations
	state      frameState
	fresh      uint32 // the turn in which it came, until it is accessed
}

func (fr *frames) bytes(f int32) []byte {
	at := int(f) << fr.shift
	return fr.data[at : at+int(fr.mask)+1 : at+int(fr.mask)+1]
}

// take takes a free frame; there must be one. If zeros, the frame holds zeros: take prefers a clean frame to a
// frame that was never taken, and that to a dirty frame, which it clears. Otherwise take prefers a dirty frame.
func (fr *frames) take(zeros bool) int32 {
	fr.free--
	if fr.dirtyList >= 0 && (!zeros || fr.cleanList < 0 && fr.unused == len(fr.all)) {
		f := fr.dirtyList
		e := &fr.all[f]
		fr.dirtyList = e.next
		if zeros {
			clear(fr.bytes(f)[e.stamp:])
		}
		return f
	}
	if f := fr.cleanList; f >= 0 {
		fr.cleanList = fr.all[f].next
		return f
	}
	fr.unused++
	return int32(fr.unused - 1)
}

func (fr *frames) give(f int32) {
	e := &fr.all[f]
	e.state, e.space, e.next, e.stamp = dirty, -1, fr.dirtyList, 0
	fr.dirtyList = f
	fr.free++
}

// ready reports whether an access can get a free frame of zeros: one that holds zeros, or one that it may clear
// itself.
func (fr *frames) ready() bool {
	return fr.cleanList >= 0 || fr.unused < len(fr.all) || fr.dirtyList >= 0 && fr.mask < uint64(fr.atOnce)
}

func (fr *frames) op(f int32) Op { return Op(uint64(fr.all[f].gen)<<32 | uint64(uint32(f))) }

// renew makes a resident page the newest of its space.
func (fr *frames) renew(s *space, f int32) {
	fr.unlink(s, f)
	fr.link(s, f)
}

func (fr *frames) link(s *space, f int32) {
	e := &fr.all[f]
	if s.newest < 0 {
		e.prev, e.next = f, f
	} else {
		old := s.newest
		e.next, e.prev = old, fr.all[old].prev
		fr.all[e.prev].next = f
		fr.all[old].prev = f
	}
	s.newest = f
}

func (fr *frames) unlink(s *space, f int32) {
	e := &fr.all[f]
	if e.next == f {
		s.newest = -1
		return
	}
	fr.all[e.prev].next = e.next
	fr.all[e.next].prev = e.prev
	if s.newest == f {
		s.newest = e.next
	}
}

// accessed ends the protection (keep) of a frame, because its space has accessed it.
func (fr *frames) accessed(f *frame) {
	if f.fresh == fr.turn {
		fr.fresh--
	}
	f.fresh = 0
}

// keep protects a frame from being taken, until its space accesses it or the turn ends.
func (fr *frames) keep(f int32) {
	fr.all[f].fresh = fr.turn
	fr.fresh++
}

// older returns the less recently accessed of two frames. A frame of -1 is none.
func (fr *frames) older(a, b int32) int32 {
	if a < 0 || b >= 0 && fr.all[b].stamp < fr.all[a].stamp {
		return b
	}
	return a
}

// scrub clears up to so many bytes of free frames, and returns how many it cleared.
func (fr *frames) scrub(bytes int) int {
	left := bytes
	for left > 0 && fr.dirtyList >= 0 {
		f := fr.dirtyList
		e := &fr.all[f]
		rest := fr.bytes(f)[e.stamp:]
		n := min(left, len(rest))
		clear(rest[:n])
		left -= n
		e.stamp += uint64(n)
		if n < len(rest) {
			break
		}
		fr.dirtyList = e.next
		e.state, e.next = clean, fr.cleanList
		fr.cleanList = f
	}
	return bytes - left
}
