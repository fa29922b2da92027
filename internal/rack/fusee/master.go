package fusee

import (
	"bytes"
	"errors"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/rack/rnic"
)

// MasterConfig describes a master. Zero values take the defaults given with them.
type MasterConfig struct {
	Layout
	CQ *rnic.CQ
	// Dial connects the master to a node anew.
	Dial func(now clock.Time, node int) (*rnic.QP, Grant, error)
	// FailAfter is how long a node that clients suspect must not be reached; 0 = 100 ms.
	FailAfter time.Duration
	// Lease is how long clients may trust a view; 0 = 10 ms. Margin is how much later
	// nothing that they have posted is on its way; 0 = FailAfter.
	Lease, Margin time.Duration
}

// masterStep is what the master does.
type masterStep uint8

const (
	watching masterStep = iota
	probing             // READ of a suspect
	freezing            // until no client trusts the view
	reading             // READ of a piece of a subtable, on all its members
	writing             // CAS of slots that differ
)

// Master says who is a member, and takes out memory nodes that have vanished: it waits until
// no client trusts the old view, gives all members' copies of each slot one word, and
// publishes the new view. Clients ask it directly, as they do dial: it is not
// of the rack's network, and does not fail (the authors replicate theirs). It implements host.App.
type Master struct {
	cfg     MasterConfig
	l       *Layout
	qps     []*rnic.QP
	grants  []Grant
	view    View
	granted clock.Time // until when a client may trust the view
	step    masterStep
	wakeAt  clock.Time
	suspect int
	since   clock.Time
	failed  bool
	old     uint32 // members before
	sub     int
	off     int
	copies  [maxReplicas][]byte
	words   [][8]byte
	posts   uint32
	pending int
	wcs     [16]rnic.WC
	took    int
	err     error
	posted  func(node int, w *rnic.SendWR) // in tests: instead of queue pairs
}

const pieceSize = 4096

// NewMaster makes a master of a store whose nodes are all there.
func NewMaster(c MasterConfig) (*Master, error) {
	var err error
	if c.Layout, err = c.Layout.complete(); err != nil {
		return nil, err
	}
	if c.CQ == nil || c.Dial == nil || c.FailAfter < 0 || c.Lease < 0 || c.Margin < 0 {
		return nil, errors.New("fusee: a master needs a completion queue, a way to dial, and times that are not negative")
	}
	if c.FailAfter == 0 {
		c.FailAfter = 100 * time.Millisecond
	}
	if c.Lease == 0 {
		c.Lease = 10 * time.Millisecond
	}
	if c.Margin == 0 {
		c.Margin = c.FailAfter
	}
	m := &Master{cfg: c, qps: make([]*rnic.QP, c.Nodes), grants: make([]Grant, c.Nodes), wakeAt: clock.Never, words: make([][8]byte, maxReplicas*pieceSize/8)}
	m.l = &m.cfg.Layout
	m.view.Alive = 1<<c.Nodes - 1
	for i := range m.copies {
		m.copies[i] = make([]byte, pieceSize)
	}
	return m, nil
}

// View is Config.View: who is a member, and how long that may be trusted.
func (m *Master) View(now clock.Time) View {
	if m.step < freezing {
		m.view.Until = now.Add(m.cfg.Lease)
		m.granted = m.view.Until
	}
	return m.view
}

// Suspect is Config.Suspect.
func (m *Master) Suspect(now clock.Time, node int) {
	if m.step != watching || node < 0 || node >= m.l.Nodes || m.view.Alive>>node&1 == 0 {
		return
	}
	m.suspect, m.since, m.step, m.wakeAt = node, now, probing, now
}

// Err is why the master does not work.
func (m *Master) Err() error { return m.err }

// Taken is how many nodes were taken out.
func (m *Master) Taken() int { return m.took }

// Deadline implements host.App.
func (m *Master) Deadline() clock.Time { return m.wakeAt }

// Step implements host.App.
func (m *Master) Step(now clock.Time) bool {
	did := false
	for {
		n := m.cfg.CQ.Poll(m.wcs[:])
		for i := range m.wcs[:n] {
			m.complete(now, &m.wcs[i])
		}
		if n == 0 {
			break
		}
		did = true
	}
	if m.wakeAt != clock.Never && now >= m.wakeAt {
		did = true
		m.wakeAt = clock.Never
		m.act(now)
	}
	return did
}

func (m *Master) complete(now clock.Time, w *rnic.WC) {
	if w.Status != rnic.Success {
		for i, q := range m.qps {
			if q != nil && q.QPN == w.QPN {
				m.lost(now, i)
			}
		}
		return
	}
	m.completed(now, uint32(w.ID))
}

// lost goes on after a queue pair failed: from the READs on.
func (m *Master) lost(now clock.Time, node int) {
	m.qps[node] = nil
	m.posts++
	m.pending = 0
	m.wakeAt = now.Add(redialAfter)
	for k := range m.copies { // what is under way may still write there
		m.copies[k] = make([]byte, pieceSize)
	}
	if m.step == writing {
		m.step = reading
	}
}

func (m *Master) completed(now clock.Time, post uint32) {
	if post != m.posts || m.pending == 0 {
		return
	}
	if m.pending--; m.pending == 0 {
		m.done(now)
	}
}

// act does what is due.
func (m *Master) act(now clock.Time) {
	switch m.step {
	case probing:
		if now.Sub(m.since) > m.cfg.FailAfter {
			m.step, m.old = freezing, m.view.Alive
			m.view.Until = m.granted
			m.wakeAt = max(now, m.granted.Add(m.cfg.Margin))
			return
		}
		if !m.link(now, m.suspect) {
			m.wakeAt = now.Add(redialAfter)
			return
		}
		m.begin()
		g := m.grants[m.suspect].Index
		m.post(m.suspect, &rnic.SendWR{Op: rnic.OpRead, SGL: [][]byte{m.copies[0][:8]}, RemoteAddr: g.VA, RKey: g.RKey, Signaled: true})
	case freezing:
		m.step, m.sub, m.off = reading, 0, 0
		m.view.Alive &^= 1 << m.suspect
		m.read(now)
	case reading:
		m.read(now)
	}
}

func (m *Master) link(now clock.Time, node int) bool {
	if m.qps[node] != nil {
		return true
	}
	q, g, err := m.cfg.Dial(now, node)
	if err != nil {
		return false
	}
	if g.Layout != m.cfg.Layout {
		m.err = errors.New("fusee: a node's store is not the master's")
		return false
	}
	m.qps[node], m.grants[node] = q, g
	return true
}

func (m *Master) begin() {
	m.posts++
	m.pending = 0
}

func (m *Master) post(node int, w *rnic.SendWR) {
	w.ID = uint64(m.posts)
	if w.Signaled {
		m.pending++
	}
	if m.posted != nil {
		m.posted(node, w)
		return
	}
	if m.qps[node].PostSend(w) != nil {
		m.qps[node].Fail()
	}
}

// ring are the members that have a subtable.
func (m *Master) ring() (all []int) {
	for i := range m.l.Replicas {
		if n := (m.sub + i) % m.l.Nodes; m.view.Alive>>n&1 != 0 {
			all = append(all, n)
		}
	}
	return all
}

// read reads a piece of a subtable on all its members; those that the node that is gone had no
// copy of are as they were.
func (m *Master) read(now clock.Time) {
	for ; m.sub < m.l.Subtables; m.sub, m.off = m.sub+1, 0 {
		if _, had := m.l.copyOn(m.suspect, m.sub); had && len(m.ring()) > 1 {
			break
		}
	}
	if m.sub == m.l.Subtables {
		m.took++
		m.view.Epoch++
		m.step = watching
		return
	}
	ring := m.ring()
	for _, n := range ring {
		if !m.link(now, n) {
			m.wakeAt = now.Add(redialAfter)
			return
		}
	}
	m.begin()
	for i, n := range ring {
		g := m.grants[n].Index
		m.post(n, &rnic.SendWR{Op: rnic.OpRead, SGL: [][]byte{m.copies[i][:m.piece()]}, RemoteAddr: g.VA + uint64(m.sub*m.l.subtableSize()+m.off), RKey: g.RKey, Signaled: true})
	}
}

func (m *Master) piece() int { return min(pieceSize, m.l.subtableSize()-m.off) }

// done goes on when all requests have succeeded.
func (m *Master) done(now clock.Time) {
	switch m.step {
	case probing:
		m.step = watching // it is there
	case reading:
		m.equalize(now)
	case writing:
		m.step = reading
		m.off += m.piece()
		if m.off >= m.l.subtableSize() {
			m.sub, m.off = m.sub+1, 0
		}
		m.read(now)
	}
}

// equalize gives all members of a piece the words of one that was a backup, which may be newer
// than the primary's, and never older. That decides what is under way: whoever has proposed
// another word has lost.
func (m *Master) equalize(now clock.Time) {
	ring, n := m.ring(), m.piece()
	from := 0
	if m.wasPrimary(ring[0]) {
		from = 1
	}
	m.begin()
	k := 0
	for i, node := range ring {
		if i == from || bytes.Equal(m.copies[i][:n], m.copies[from][:n]) {
			continue
		}
		last := -1
		for p := 0; p < n; p += 8 {
			if le.Uint64(m.copies[i][p:]) != le.Uint64(m.copies[from][p:]) {
				last = p
			}
		}
		g := m.grants[node].Index
		for p := 0; p <= last; p += 8 {
			a, b := le.Uint64(m.copies[i][p:]), le.Uint64(m.copies[from][p:])
			if a == b {
				continue
			}
			m.post(node, &rnic.SendWR{
				Op: rnic.OpCompareSwap, SGL: [][]byte{m.words[k][:]}, RemoteAddr: g.VA + uint64(m.sub*m.l.subtableSize()+m.off+p), RKey: g.RKey,
				Compare: a, Swap: b, Signaled: p == last,
			})
			k++
		}
	}
	m.step = writing
	if m.pending == 0 {
		m.done(now)
	}
}

// wasPrimary reports whether a node was the subtable's primary before.
func (m *Master) wasPrimary(node int) bool {
	for i := range m.l.Replicas {
		if n := (m.sub + i) % m.l.Nodes; m.old>>n&1 != 0 {
			return n == node
		}
	}
	return false
}
