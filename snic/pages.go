package snic

import (
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/snic/pool"
	"github.com/quillon/quillon/snic/vmem"
)

// Pages travel beside the worker: it begins and ends their ways between two of its
// breaths, when its Peering visits, and hands over where they are. Bytes are copied,
// sent and received by others meanwhile.

// swap is the memory of other boards, as the board sees it. It implements vmem.Remote.
type swap struct {
	jobs []pageJob
	last vmem.Handle
	room int // pages that peers have free, as far as is known
}

// pageJob is what a board wants of its Peering.
type pageJob struct {
	kind   pageJobKind
	op     vmem.Op
	handle vmem.Handle
	page   []byte
	loan   pool.Loan
	frame  int
	ok     bool
}

type pageJobKind uint8

const (
	toPut pageJobKind = iota
	toGet
	toDrop
	hasLent
)

// Free implements vmem.Remote.
func (s *swap) Free() int { return s.room }

// Put implements vmem.Remote.
func (s *swap) Put(op vmem.Op, page []byte) (vmem.Handle, bool) {
	if s.room <= 0 {
		return 0, false
	}
	s.room--
	s.last++
	s.jobs = append(s.jobs, pageJob{kind: toPut, op: op, handle: s.last, page: page})
	return s.last, true
}

// Get implements vmem.Remote.
func (s *swap) Get(op vmem.Op, h vmem.Handle, page []byte) {
	s.jobs = append(s.jobs, pageJob{kind: toGet, op: op, handle: h, page: page})
}

// Drop implements vmem.Remote.
func (s *swap) Drop(h vmem.Handle) {
	s.room++ // who had it has room for another
	s.jobs = append(s.jobs, pageJob{kind: toDrop, handle: h})
}

// pageTrade is what a board and its Peering hand each other about pages at a visit.
type pageTrade struct {
	events []pool.PageEvent // to the board
	room   int
	fresh  bool      // the board has not been asked before: nothing of events is its
	size   int       // of a page; 0: the board has no memory
	ram    *ram      // that pages are in
	free   int       // pages that it would keep for peers
	jobs   []pageJob // from it
}

// trade does what peers want, takes what they have done, and hands over what is to be done.
func (b *board) trade(t *pageTrade) {
	m := b.memory
	if m == nil || m.swap == nil {
		return
	}
	s := m.swap
	var lost map[vmem.Handle]bool
	s.room = t.room
	for _, e := range t.events {
		if t.fresh {
			break
		}
		switch e.Kind {
		case pool.PageDone:
			m.Done(vmem.Op(e.Op), e.OK)
			m.look = true
		case pool.PageLost:
			if lost == nil {
				lost = map[vmem.Handle]bool{}
			}
			lost[vmem.Handle(e.Handle)] = true
		case pool.PageLend:
			frame, page, ok := m.LendAsIs()
			s.jobs = append(s.jobs, pageJob{kind: hasLent, loan: e.Loan, frame: frame, page: page, ok: ok})
		case pool.PageReturn:
			_ = m.Return(e.Frame) // it is lent
			m.look = true
		}
	}
	if lost != nil {
		m.Lose(func(h vmem.Handle) bool { return lost[h] })
		m.look = true
	}
	t.jobs, s.jobs = s.jobs, nil
	t.size, t.ram, t.free = int(m.page), m.ram, m.Free()
}

// heed notes how much room peers have, in a worker whose tasks have no pages there: all that have are in the first one.
func (m *onboard) heed(room int) {
	if m != nil && m.swap != nil {
		m.swap.room = room
	}
}

// pages is a Peering's part in pages.
type pages struct {
	*pool.Pager
	by    pool.Carrier // nil: nothing is sent
	size  int          // of the board's
	ram   *ram         // of the board that the Pager has pages of
	begun bool
	left  []pool.PageEvent // the board could not be visited
}

// offer is what is handed to the board.
func (p *pages) offer(n *pool.Node) pageTrade {
	t := pageTrade{events: append(p.left, p.Events()...)}
	for _, e := range t.events {
		if e.Full > 0 {
			n.Full(e.Full - 1)
		}
	}
	if p.left = nil; p.by != nil {
		t.room = n.Pages()
	}
	return t
}

// take takes what the board wants. It reports whether something is under way.
func (p *pages) take(n *pool.Node, now clock.Time, t *pageTrade) bool {
	if t.fresh || t.size != p.size || !p.begun {
		p.Begin(now, t.size)
		p.size, p.begun = t.size, true
	}
	if p.ram != nil && p.ram != t.ram {
		p.ram.drop()
	}
	p.ram = t.ram // it stays as long as the Pager may look there
	for _, j := range t.jobs {
		switch j.kind {
		case toPut:
			if to, ok := n.Memory(); ok {
				p.Put(now, uint64(j.op), uint64(j.handle), j.page, to)
			} else {
				p.Put(now, uint64(j.op), uint64(j.handle), j.page, -1)
			}
		case toGet:
			p.Get(now, uint64(j.op), uint64(j.handle), j.page)
		case toDrop:
			if at, ok := p.Drop(now, uint64(j.handle)); ok {
				n.Dropped(now, at)
			}
		case hasLent:
			p.Lent(j.loan, j.frame, j.page, j.ok)
		}
	}
	for i := range MaxPeers {
		if v := n.View(i); i != n.Board && v.Alive && v.Info.Leaving {
			p.Evacuate(now, i, n.Memory)
		}
	}
	p.poll(now)
	return p.by != nil && p.Busy()
}

func (p *pages) poll(now clock.Time) {
	if p.by != nil {
		p.Poll(now, p.by)
	}
}

// CarryPages sets the Carrier that sends messages about pages. Without a Carrier no page leaves the board.
func (p *Peering) CarryPages(by pool.Carrier) { p.pages.by = by }

// Page takes a message about a page, and ignores other messages.
func (p *Peering) Page(now clock.Time, message []byte) {
	if p.pages.by != nil && p.pages.Input(now, message) == nil {
		p.pages.poll(now)
	}
}

// Keeps returns how many pages the board keeps for peers.
func (p *Peering) Keeps() int { return p.pages.Kept() }
