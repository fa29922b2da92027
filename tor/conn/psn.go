package conn

import (
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
)

// byPSN holds the half-open inferred rows by their two hosts, and finds from PSNs which of them a
// response answers: by fit and settled if the response fits one row only, by listen and only (lockstep.go)
// if several rows have the same PSNs. It changes the numbering of rows, and no names.
type byPSN struct {
	*store
	// pairs holds the lists of these rows, by the hash of their two addresses.
	pairs []bucket
	lacks []clock.Time // see lacking
	// notes holds the rows' notes, blank the free indexes of notes (+1); voices holds the unpaired queue
	// pairs that are answered, mute the free indexes of voices (+1).
	notes       []notes
	voices      []voice
	blank, mute []int32
	nextVoice   int // index of the next voice that hushSome looks at
}

// init makes room for half rows.
func (t *byPSN) init(s *store, half int) {
	t.store = s
	t.pairs = make([]bucket, max(256, len(s.qps.E)/4))
	if s.cfg.SamePort {
		t.lacks = make([]clock.Time, lackingPorts)
	}
	t.notes, t.voices = make([]notes, half), make([]voice, half)
	for i := int32(half); i > 0; i-- {
		t.blank, t.mute = append(t.blank, i), append(t.mute, i)
	}
}

// bucket is a list of half-open inferred rows.
type bucket struct {
	head Slot // +1
	n    int32
	// unlisted is the time (+1) of the last request that has no row for want of
	// room; its response may seem to answer another row's request.
	unlisted clock.Time
	// voices (+1) is the head of the list of the voices between the two hosts. The rows are not
	// compared with them before the time later.
	voices int32
	later  clock.Time
}

func (t *byPSN) bucket(client, server Addr) *bucket {
	h := t.qps.hash(client, t.qps.hash(server, 0))
	return &t.pairs[h&uint32(len(t.pairs)-1)]
}

// crowded reports whether requests without a row passed between the hosts of l within Config.Reuse.
// Meanwhile PSNs alone pair nothing between these hosts.
func (t *byPSN) crowded(now clock.Time, l *bucket) bool {
	return t.recent(now, l.unlisted)
}

// recent reports whether time at (+1; 0: never) is less than Config.Reuse ago.
func (t *byPSN) recent(now, at clock.Time) bool { return at != 0 && now.Sub(at-1) < t.cfg.Reuse }

// unlisted notes a request that has no row for want of room. It drops the facts for and against candidates.
func (t *byPSN) unlisted(now clock.Time, l *bucket, client, server Addr, port uint16) {
	if !t.crowded(now, l) {
		for i := l.head; i != 0; i = t.rows[i-1].succ {
			t.rows[i-1].doubt()
			t.forget(&t.rows[i-1])
		}
	}
	l.unlisted = now + 1
	if t.cfg.SamePort {
		*t.lacking(client, server, port) = now + 1
	}
}

// lackingPorts is the number of elements of byPSN.lacks, a power of two.
const lackingPorts = 1 << 13

// lacking returns where the time (+1; 0: never) is kept at which a request from a port of client to
// server last found no room. Clients, servers and ports with the same hash share it.
func (t *byPSN) lacking(client, server Addr, port uint16) *clock.Time {
	return &t.lacks[t.qps.hash(client, t.qps.hash(server, uint32(port)))%lackingPorts]
}

func (t *byPSN) list(s Slot) {
	r := &t.rows[s]
	l := t.bucket(r.Client.Addr, r.Server.Addr)
	r.listed, r.prev, r.succ = true, 0, l.head
	if l.head != 0 {
		t.rows[l.head-1].prev = s + 1
	}
	l.head = s + 1
	l.n++
	if n := len(t.blank) - 1; n >= 0 {
		r.notes, t.blank = t.blank[n], t.blank[:n]
		t.notes[r.notes-1] = notes{}
	}
}

func (t *byPSN) unlist(s Slot) {
	r := &t.rows[s]
	if !r.listed {
		return
	}
	l := t.bucket(r.Client.Addr, r.Server.Addr)
	l.n--
	if r.prev != 0 {
		t.rows[r.prev-1].succ = r.succ
	} else {
		l.head = r.succ
	}
	if r.succ != 0 {
		t.rows[r.succ-1].prev = r.prev
	}
	r.listed, r.prev, r.succ = false, 0, 0
	if r.notes != 0 {
		t.blank, r.notes = append(t.blank, r.notes), 0
	}
}

// restart begins the numbering of r's requests with request b.
func (t *byPSN) restart(r *Row, now clock.Time, b []byte, f *hdr.Frame) {
	psn := f.BTHOf(b).PSN()
	r.sent, r.low, r.next = psn, psn, (psn+r.psns(b, f))&hdr.PSNMask
	r.old, r.mark, r.markAt = psn, psn, now
	r.misses, r.wild = 0, 0
	r.doubt()
	t.overhear(r)
}

// near reports whether a request with PSN p continues the requests of r, or repeats one.
func (r *Row) near(p, window uint32) bool {
	d := hdr.PSNDiff(p, r.sent)
	return d <= 0 && uint32(-d) <= window || d > 0 && uint32(d) <= window+uint32(max(0, hdr.PSNDiff(r.next, r.sent)))
}

// number follows the PSNs of r's requests; it returns false if they have started anew.
func (t *byPSN) number(r *Row, now clock.Time, psn uint32, b []byte, f *hdr.Frame) bool {
	n, cfg := r.psns(b, f), &t.cfg
	window := cfg.Window
	switch d := hdr.PSNDiff(psn, r.sent); {
	case d > 0 && uint32(d) <= window+uint32(max(0, hdr.PSNDiff(r.next, r.sent))):
		round := now.Sub(r.markAt) >= cfg.Settle
		t.asked(now, r, psn, n, round, f)
		if round {
			r.old, r.mark, r.markAt = r.mark, r.next, now
		}
		if r.matches > 0 && r.asks < enough && (r.asks == 0 || now.Sub(r.asked) >= cfg.Settle) {
			r.asks++
			r.asked = now
		}
		r.sent, r.next, r.wild = psn, (psn+n)&hdr.PSNMask, 0
	case d <= 0 && uint32(-d) <= window:
		if hdr.PSNDiff(psn, r.low) < 0 && r.matches == 0 {
			r.low = psn // a retransmission of a request from before the row was made
		}
		if r.matches > 0 && hdr.PSNDiff(psn, r.matched) <= 0 {
			r.doubt() // it had no answer: that was another's
		}
		t.forget(r)
		r.wild = 0
	default:
		if psn != r.wildNext {
			r.wild = 0
		}
		t.forget(r)
		r.wild++
		r.wildNext = (psn + n) & hdr.PSNMask
		return r.wild < enough
	}
	return true
}

// fit looks for the half-open rows of client dst that a response from server src to queue pair qpn
// may answer. It returns one of them, their number, and whether the one is the only row with
// the response's UDP port (n is 1 then). It drops the candidate of a row that the response
// contradicts.
func (t *byPSN) fit(src, dst Addr, qpn uint32, b []byte, f *hdr.Frame) (found Slot, n int, byPort bool) {
	p, port := f.BTHOf(b).PSN(), uint16(0)
	if t.cfg.SamePort {
		port = portOf(b, f)
	}
	same, fitSame := NoSlot, 0
	for i := t.bucket(dst, src).head; i != 0; i = t.rows[i-1].succ {
		r := &t.rows[i-1]
		if r.Client.Addr != dst || r.Server.Addr != src || r.Net != f.Net {
			continue
		}
		if d := hdr.PSNDiff(r.next, r.low); d > int32(t.cfg.Window) {
			r.low = (r.next - t.cfg.Window) & hdr.PSNMask
		}
		itsPort := t.cfg.SamePort && r.Client.Port == port
		ahead := hdr.PSNDiff(p, r.next)
		switch {
		case r.matches == 0:
		case r.candidate == qpn:
			if ahead >= 0 {
				r.doubt() // it asked for no such thing
			}
		case itsPort == t.cfg.SamePort && hdr.PSNDiff(p, r.old) >= 0 && ahead < int32(t.cfg.Window):
			r.doubt() // both answer what was asked just now, or a request was not seen
		}
		if !r.fits(p) {
			continue
		}
		found = i - 1
		n++
		if itsPort {
			same = i - 1
			fitSame++
		}
	}
	if fitSame == 1 {
		return same, 1, true
	}
	return found, n, false
}

// settled reports whether the candidate of r is its client: enough responses
// matched, and the client sent requests for so long that another client of these PSNs would
// have been answered meanwhile, or refused after one lost request.
func (t *byPSN) settled(r *Row) bool {
	return r.matches >= enough && (t.cfg.Settle < 0 || r.asks >= enough)
}
