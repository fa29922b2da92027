package fusee

import (
	"cmp"
	"errors"
	"time"

	"github.com/quillon/quillon/internal/rack/onesided"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/rack/rnic"
)

// MasterConfig describes a master. Zero values take the defaults given with them.
type MasterConfig struct {
	Layout
	CQ *rnic.CQ
	// Dial connects the master to a node again.
	Dial func(now clock.Time, node int) (*rnic.QP, Grant, error)
	// FailAfter is how long a suspected node must not be reachable until it is removed; 0 = 100 ms.
	FailAfter time.Duration
	// Lease is how long clients may trust a view; 0 = 10 ms. Margin is the time after the end of the lease
	// after which no request that clients have posted is under way; 0 = FailAfter.
	Lease, Margin time.Duration
}

// masterStep is what the master is doing.
type masterStep uint8

const (
	watching masterStep = iota
	probing             // READ of a suspected node
	freezing            // waits until no client trusts the view
	reading             // READ of a piece of a subtable, on all its members
	writing             // CAS of slots that differ
)

// Master decides which nodes are members, and removes memory nodes that have vanished. It waits until no
// client trusts the old view, writes one word into all members' copies of each slot, and publishes the new
// view. Clients call it directly, as they call Dial: it is not part of the rack's network, and does not fail
// (the authors replicate theirs). It implements host.App.
type Master struct {
	onesided.Loop[*Master]
	onesided.Session
	cfg     MasterConfig
	l       *Layout
	grants  []Grant
	view    View
	granted clock.Time // time until which a client may trust the view
	step    masterStep
	suspect int
	since   clock.Time
	old     uint32 // members in the view before
	sub     int
	off     int
	copies  [maxReplicas][]byte
	took    int
	err     error
}

const pieceSize = 4096

// NewMaster makes a master for a store all of whose nodes are members.
func NewMaster(c MasterConfig) (*Master, error) {
	var err error
	if c.Layout, err = c.Layout.complete(); err != nil {
		return nil, err
	}
	if c.CQ == nil || c.Dial == nil || c.FailAfter < 0 || c.Lease < 0 || c.Margin < 0 {
		return nil, errors.New("fusee: a master needs a completion queue, a way to dial, and times that are not negative")
	}
	c.FailAfter = cmp.Or(c.FailAfter, 100*time.Millisecond)
	c.Lease = cmp.Or(c.Lease, 10*time.Millisecond)
	c.Margin = cmp.Or(c.Margin, c.FailAfter)
	m := &Master{Session: onesided.NewSession(0, c.Nodes, maxReplicas*pieceSize/8), cfg: c, grants: make([]Grant, c.Nodes)}
	m.Sessions, m.CQ, m.Totals = []*Master{m}, c.CQ, new(onesided.Totals)
	m.Busy, m.l = true, &m.cfg.Layout
	m.view.Alive = 1<<c.Nodes - 1
	for i := range m.copies {
		m.copies[i] = make([]byte, pieceSize)
	}
	return m, nil
}

// View is for Config.View: it returns the members, and until when they may be trusted.
func (m *Master) View(now clock.Time) View {
	if m.step < freezing {
		m.view.Until = now.Add(m.cfg.Lease)
		m.granted = m.view.Until
	}
	return m.view
}

// Suspect is for Config.Suspect.
func (m *Master) Suspect(now clock.Time, node int) {
	if m.step != watching || node < 0 || node >= m.l.Nodes || m.view.Alive>>node&1 == 0 {
		return
	}
	m.suspect, m.since, m.step, m.WakeAt = node, now, probing, now
}

// Err returns why the master does not work.
func (m *Master) Err() error { return m.err }

// Taken returns how many nodes were removed.
func (m *Master) Taken() int { return m.took }

// Next implements onesided.Thread: a master has one operation that never ends.
func (m *Master) Next(clock.Time) bool { return false }

// Lost implements onesided.Thread: the master continues with the READs.
func (m *Master) Lost(now clock.Time, _ int) {
	m.Drop()
	m.WakeAt = now.Add(onesided.RedialAfter)
	for k := range m.copies { // requests under way may still write into the old ones
		m.copies[k] = make([]byte, pieceSize)
	}
	if m.step == writing {
		m.step = reading
	}
}

// Wake implements onesided.Thread.
func (m *Master) Wake(now clock.Time) {
	switch m.step {
	case probing:
		if now.Sub(m.since) > m.cfg.FailAfter {
			m.step, m.old = freezing, m.view.Alive
			m.view.Until = m.granted
			m.WakeAt = max(now, m.granted.Add(m.cfg.Margin))
			return
		}
		if !m.link(now, m.suspect) {
			m.WakeAt = now.Add(onesided.RedialAfter)
			return
		}
		m.Begin()
		m.Ask(rnic.OpRead, m.suspect, m.grants[m.suspect].Index, 0, m.copies[0][:8])
		m.send(now)
	case freezing:
		m.step, m.sub, m.off = reading, 0, 0
		m.view.Alive &^= 1 << m.suspect
		m.read(now)
	case reading:
		m.read(now)
	}
}

func (m *Master) link(now clock.Time, node int) bool {
	if m.QPs[node] != nil {
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
	m.QPs[node], m.grants[node] = q, g
	return true
}

// send posts the requests.
func (m *Master) send(now clock.Time) {
	if n, _, err := m.Post(func(int, *rnic.SendWR) bool { return true }); err != nil {
		m.Broke(m, n)
		m.Lost(now, n)
	}
}

// ring returns the members that have the subtable m.sub.
func (m *Master) ring() (all []int) {
	for i := range m.l.Replicas {
		if n := (m.sub + i) % m.l.Nodes; m.view.Alive>>n&1 != 0 {
			all = append(all, n)
		}
	}
	return all
}

// read reads a piece of a subtable on all its members. It skips subtables of which the node that is gone had
// no copy, because they need no change.
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
			m.WakeAt = now.Add(onesided.RedialAfter)
			return
		}
	}
	m.Begin()
	for i, n := range ring {
		m.Ask(rnic.OpRead, n, m.grants[n].Index, m.sub*m.l.subtableSize()+m.off, m.copies[i][:m.piece()])
	}
	m.send(now)
}

func (m *Master) piece() int { return min(pieceSize, m.l.subtableSize()-m.off) }

// Done implements onesided.Thread.
func (m *Master) Done(now clock.Time) {
	switch m.step {
	case probing:
		m.step = watching // the node answers
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

// equalize gives all members of a piece the words of a former backup, which may be newer than the primary's
// and are never older. That decides all rounds under way: a session that has proposed another word has lost.
func (m *Master) equalize(now clock.Time) {
	ring, n := m.ring(), m.piece()
	from := 0
	if m.wasPrimary(ring[0]) {
		from = 1
	}
	m.Begin()
	for i, node := range ring {
		if i == from {
			continue
		}
		for p := 0; p < n; p += 8 {
			if a, b := le.Uint64(m.copies[i][p:]), le.Uint64(m.copies[from][p:]); a != b {
				m.AskSwap(node, m.grants[node].Index, m.sub*m.l.subtableSize()+m.off+p, a, b, m.Words[len(m.WRs)][:])
			}
		}
	}
	m.step = writing
	if len(m.WRs) == 0 {
		m.Done(now)
		return
	}
	m.send(now)
}

// wasPrimary reports whether a node was the subtable's primary in the view before.
func (m *Master) wasPrimary(node int) bool {
	for i := range m.l.Replicas {
		if n := (m.sub + i) % m.l.Nodes; m.old>>n&1 != 0 {
			return n == node
		}
	}
	return false
}
