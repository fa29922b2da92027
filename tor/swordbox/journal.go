package swordbox

import (
	"cmp"
	"errors"
	"fmt"
	"time"
	"unsafe"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/journal"
)

// A reboot of the machine takes the memory that outlives the process, and what the kernel holds back. The two ends of a
// bound connection would then take each other's new requests for duplicates. So the journal, on a disk, names each
// connection from before the first frame that makes its ends differ. Until its entry is on the disk a connection may
// not be bound: its operations go over their own connection, as what they are. After a reboot the connections that the
// journal names are lost as those whose record this version cannot read (see bereave): nothing of them crosses, and
// their clients are told. The journal does not have the PSN of the oldest request without an answer.

var errReboot = errors.New("the machine was started anew since, or the state was lost")

// entry returns the journal's entry of the connection.
func (r *identity) entry() (e journal.Entry) {
	var b [recordLen]byte
	r.write(b[:])
	for k := range e {
		e[k] = le.Uint64(b[8*k:])
	}
	return e
}

// openJournal opens the journal, and puts the connections that one of an earlier boot names on record in memory.
func (s *shared) openJournal(env graph.Env) (err error) {
	m := &s.mem
	if env.Journal == nil || env.Asked {
		return nil
	}
	m.journal, err = env.Journal(m.places*m.conns, func(left []journal.Entry, lost bool) (map[int]journal.Entry, error) {
		if g := geometryIn(m.b); lost && g != (geometry{}) || g == (geometry{}) && len(left) > 0 { // or the state is lost without a reboot
			if err := s.mourn(left); err != nil {
				return nil, err
			}
		}
		g, all := geometryIn(m.b), map[int]journal.Entry{}
		for p := range min(g.places, m.places) {
			for i := range min(g.conns, m.conns) {
				if b := recordIn(m.b, g, p, i); b[boundAt] != 0 {
					var r identity
					r.read(b)
					all[p*m.conns+i] = r.entry()
				}
			}
		}
		return all, nil
	})
	return err
}

// mourn puts connections on record that were bound in an earlier boot, without what was known of them. Connections that
// memory on a disk still names are on record already, but what that says of their PSNs may be older than what was sent.
func (s *shared) mourn(all []journal.Entry) error {
	m := &s.mem
	if g := geometryIn(m.b); g != (geometry{}) && g != m.geometry { // also that of a start that had no room for all
		m.fit(g)
	}
	m.begin()
	g := m.geometry
	for k := range g.places * g.conns {
		le.PutUint32(recordIn(m.b, g, 0, k)[unaAt:], 0)
	}
	m.reboot = true
	for _, e := range all {
		var b [recordLen]byte
		for k, v := range e {
			le.PutUint64(b[8*k:], v)
		}
		var r identity
		if r.read(b[:]); !s.bury(g, r) {
			return fmt.Errorf("%d connections were lost in the machine's last boot, and there is no room for them: give conns= and discover= as they were, or end their clients and remove the journal", len(all))
		}
	}
	return nil
}

// bury puts connection r on record, in the place of its server. It returns false if there is no room.
func (s *shared) bury(g geometry, r identity) bool {
	spare := none
	for p := range g.places {
		free, its, empty := none, false, true
		for i := range g.conns {
			b := recordIn(s.mem.b, g, p, i)
			if b[boundAt] == 0 {
				if free == none {
					free = int32(i)
				}
				continue
			}
			var x identity
			if x.read(b); x == r {
				return true
			}
			empty = false
			its = its || s.cfg.servers.alike(x.server.Netip(), r.server.Netip()) && x.server.VLAN() == r.server.VLAN()
		}
		if its {
			if free == none {
				return false
			}
			r.write(recordIn(s.mem.b, g, p, int(free)))
			return true
		}
		if empty && spare == none {
			spare = int32(p)
		}
	}
	if spare == none {
		return false
	}
	r.write(recordIn(s.mem.b, g, int(spare), 0))
	return true
}

// rejournal makes the journal name what is bound when a process begins, and nothing else.
func (s *shared) rejournal() {
	m := &s.mem
	if m.journal == nil {
		return
	}
	n := m.places * m.conns
	for k := range max(n, m.journal.Slots()) {
		if k >= n || recordIn(m.b, m.geometry, 0, k)[boundAt] == 0 {
			m.journal.Drop(k)
			continue
		}
		var r identity
		r.read(recordIn(m.b, m.geometry, 0, k))
		e := r.entry()
		m.journal.Keep(k, &e)
	}
}

// slotOf returns the slot of flow f in the journal: the number of f's record in memory.
func (l *ledger) slotOf(f *flow) int {
	return int(uintptr(unsafe.Pointer(&l.recordOf(f)[0]))-uintptr(unsafe.Pointer(&l.mem.b[memHead]))) / recordLen
}

// journaled reports whether the journal names flow f, and has it do so.
func (l *ledger) journaled(f *flow) bool {
	if l.mem.journal == nil {
		return true
	}
	r := identityOf(l.r.row(f))
	e := r.entry()
	return l.mem.journal.Keep(l.slotOf(f), &e)
}

func (l *ledger) unjournal(f *flow) {
	if l.mem.journal != nil {
		l.mem.journal.Drop(l.slotOf(f))
	}
}

// byJournal reports whether only the journal named the lost flow f, so that none of its PSNs is known. Anybody can make up requests
// in its client's name. What comes from there therefore does not end it: not what looks as a new connection's, nor a silence
// after some requests, nor that the client was told. The server's word ends it (askLost), or the want of places (see isOver).
func (l *ledger) byJournal(f *flow) bool {
	return f.bound && l.records != nil && le.Uint32(l.recordOf(f)[unaAt:])&knownPSN == 0
}

// oldestAgain reports whether request PSN psn of the lost flow f, which only the journal named, is the client's oldest one without an
// answer. A NAK acknowledges all requests before its own, and
// those may be lost on their way here. Clients repeat all requests from the oldest one on. So the client is told only
// when it has repeated a request more often than a retry count can say, with none before it in between: a client whose
// retry count has an end ends by itself, and Linux' rxe, which has none with 7, is told. A copy that comes sooner than a
// client repeats may be the network's, and does not count. A request that is far from the oldest one, or behind one that is not
// repeated, counts once the earlier one was silent for so long that somebody else has made it up, or its client has given up.
func (f *flow) oldestAgain(now clock.Time, psn uint32) bool {
	d, silent := hdr.PSNDiff(psn, f.arrived), now.Sub(f.heard)
	far := d > farOff || d < -farOff
	switch {
	case !f.seen || d < 0 && !far || far && silent >= keepGone || d > 0 && silent >= longestWait/2:
		f.seen, f.told, f.ended, f.arrived, f.heard, f.turns = true, false, 0, psn, now, 0
	case far:
	case f.ended&knownPSN != 0:
		return true
	case d == 0 && silent >= soonestRepeat:
		f.heard = now
		if f.turns++; f.turns >= surelyOldest {
			f.ended = psn | knownPSN
			return true
		}
	}
	return false
}

// askLost asks the server for the newest PSN that its end of the lost flow f has acknowledged, by a duplicate of long before PSN
// near. As nothing of the connection crosses, the old end gives the same answer each time (see hearLost).
func (s *wire) askLost(f *flow, near uint32) {
	now := s.c.Now()
	if now < s.n.ledger.mem.barred || !s.emptyWrite(&f.up, (near-mostUnacked)&hdr.PSNMask&^longMask|ownPSN) {
		return
	}
	if now.Sub(f.asking) >= keepGone {
		f.misses = 0
	}
	f.owed, f.asking, f.start = f.owed+min(1, 255-f.owed), now, near
	if f.asked == 0 {
		f.asked = now
	}
}

// asks has the server asked about the lost flow f, of which request b came, with PSN psn. Before the first answer the question has the
// headers of b, and it is not known whether the server takes them. Once the server has answered, it is asked near a PSN of its own (gate):
// it counts otherwise than the client, by as much as it has executed for others, and anybody can make up psn.
func asks(s *clientSide, f *flow, b []byte, psn uint32) {
	if f.asked != 0 && s.c.Now().Sub(f.asking) < s.cfg.giveup {
		return
	}
	if f.trusted || f.up.learn(b, &s.f) {
		s.askLost(f, cmp.Or(f.gate, psn))
	}
}

// hearLost handles acknowledgement b, which answers the question of askLost. An end that has counted no message is of another connection,
// because a connection is bound behind its first answers, and nothing of the new one crosses yet. So is one that acknowledges
// another PSN than before. A NAK asks for the PSN that the end expects, which is not always behind what it acknowledges.
func hearLost(s *carrierSide, f *flow, b []byte) {
	psn, h := s.f.BTHOf(b).PSN(), s.f.AETHOf(b)
	syn, sure := h.Syndrome(), f.owed == 1 || f.trusted
	f.misses = uint8(min(int(f.misses)+2*int(f.owed)-1, 255)) // each may come twice
	f.owed, f.tries, f.missed = 0, 0, psn|knownPSN
	if sure {
		f.asked = 0
	}
	switch is := syn.ACK(); {
	case is && psn&longMask == ownPSN: // it acknowledges the question's own PSN
	case !is && syn != hdr.SynNAKSequence:
	case h.MSN() == 0 || f.trusted && is && psn != f.acked:
		s.n.conns.Remove(s.n.slot(f))
	case !is:
		f.gate = max(psn, 1)
	case sure && !f.trusted && s.n.endsAt(f, nameBy(fromOf(b), s.ends.Src, s.f.HopsOf(b)), s.c.Now()): // otherwise it may answer a question with other headers than the newest one
		f.trusted, f.acked, f.gate = true, psn, max(f.start, 1)
		copy(f.down.b[6:12], b[6:12]) // see direct
	}
}

// heardAgain reports whether an acknowledgement with PSN psn, which no question waits for, says what the newest answer to a question about
// the lost flow f said: it is the network's copy of that, or the server has answered several questions late. The client counts
// otherwise than the server's end, and would take it for the answer to its own requests. As many come as questions were asked lately, and their
// copies (misses); what comes more often is of another connection, whose client repeats its request. From 255 on they are not counted.
func (f *flow) heardAgain(now clock.Time, psn uint32) bool {
	if f.missed != psn|knownPSN || now.Sub(f.asking) >= keepGone || f.misses == 0 {
		return false
	}
	f.misses -= uint8(min(1, 255-int(f.misses)))
	return true
}

// isOver reports whether nothing of the lost flow f can cross any more that the server would execute, or acknowledge, in another
// one's place. Of what only the journal named it asks the server.
func isOver(s *Box, f *flow, now clock.Time) bool {
	n := s.n
	end := f.told || f.gaveUp(now, max(s.cfg.idle, longestWait))
	switch {
	case now <= f.lost:
		return false
	case s.cfg.mode == End || f.quiet && (n.crowded() || now.Sub(f.lost) > s.cfg.idle):
		return true
	case !n.ledger.byJournal(f):
		return end
	case !f.trusted:
		return end && n.crowded()
	case f.asked != 0 && now.Sub(f.asked) > 10*clock.Duration(s.cfg.giveup) && s.carriers.unanswered(f, f.asked):
		return true
	}
	every := mostSilence
	if f.asked != 0 {
		every = min(clock.Duration(s.cfg.giveup)<<min(f.tries, 20), mostSilence)
	}
	if now.Sub(f.asking) >= every {
		if f.asked != 0 {
			f.tries = min(f.tries+1, 250) // the server's MAC address may have changed
			s.carriers.readdress(f)
		}
		s.carriers.askLost(f, f.gate)
	}
	return false
}

// gaveUp reports whether the client of the lost flow f, which is not told, sent a request and did not repeat it for the time after.
func (f *flow) gaveUp(now clock.Time, after clock.Duration) bool {
	return f.seen && now.Sub(f.heard) >= after
}

const (
	// soonestRepeat is how soon a client may repeat a request. With a shorter timeout it is told later.
	soonestRepeat = clock.Duration(time.Millisecond)
	// longestWait is longer than a client waits for an answer: codes of ACK timeouts to 25 are at most 10 minutes (IBTA 9.7.6.1.3).
	longestWait = clock.Duration(10 * time.Minute)
	// ownPSN are the bits of longMask in the PSN of a question about a lost connection. By them an answer is recognised that acknowledges
	// the question's own PSN, which says nothing. No connection begins with such a PSN but by chance: its server's end would execute
	// the question in the place of the first request.
	ownPSN   = 0x2B67
	longMask = longSince - 1
	// surelyOldest is how many repetitions are more than those of a client whose retry count (3 bits) has an end.
	surelyOldest = 16
)
