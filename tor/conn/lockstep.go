package conn

import (
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
)

// maxVoices is the largest number of voices between two hosts (bits in voice.bit), and of half-open
// rows that are compared with them.
const maxVoices = 64

// voice is a client's queue pair that a server answers and that is not paired yet.
// The notes of the half-open rows of the two hosts name the voice by its bit.
type voice struct {
	client, server Addr
	heard          clock.Time
	bit            uint64
	qpn            uint32
	top            uint32 // newest PSN that was answered
	succ           int32  // +1: the next in the list of their bucket
	answers        uint8  // to different requests, at most enough
	net            uint8
}

// notes holds what a half-open row knows of the voices between its two hosts, as sets of voice bits.
type notes struct {
	heard uint64 // were answered near the row's PSNs, or may have been
	// few and many are the lower and the upper bit of a counter for each voice: the number of
	// facts, up to 3, which show that the voice is not the row's client.
	few, many uint64
	// ahead holds the voices that got a positive response to a PSN that the row's client has not
	// used yet.
	ahead uint64
	// kinds holds the kinds of the requests with the 32 PSNs before Row.next, two bits each, at
	// bit 2*(PSN mod 32).
	kinds uint64
	// rounds counts the client's new requests, at least Config.Settle apart and none out of sequence,
	// since the newest voice of heard was first heard; one request before that counts, too. It does not
	// count after a voice without a bit, or a forgotten voice, because a client whose request is lost is
	// silent in one round, and refused in the next.
	rounds uint8
	begun  bool // the client has sent a new request since the notes began
}

// Kinds of requests and of their responses; 0 means unknown.
const (
	readKind = 1 + iota
	atomicKind
	otherKind
)

func kindOf(op hdr.Opcode) uint64 {
	switch {
	case op.Any(hdr.IsRead | hdr.IsReadResp):
		return readKind
	case op.Has(hdr.IsAtomic) || op == hdr.AtomicAck:
		return atomicKind
	case op.Any(hdr.IsSend | hdr.IsWrite):
		return otherKind
	}
	return 0
}

// answers reports whether a response shows that its PSN was asked for. A refusal may
// carry a PSN that the client has not used yet.
func answers(b []byte, f *hdr.Frame) bool {
	return f.Op != hdr.Acknowledge || f.AETHOf(b).Syndrome().ACK()
}

// against notes one more fact that speaks against voices.
func (n *notes) against(voices uint64) {
	voices &^= n.few & n.many
	carry := n.few & voices
	n.few ^= voices
	n.many |= carry
}

// maybe returns the voices that may be the row's client.
func (n *notes) maybe() uint64 {
	if n.rounds < enough {
		return n.heard
	}
	return n.heard &^ (n.few & n.many)
}

// asked notes a new request with PSN psn that takes n PSNs, before r.sent and r.next are advanced.
// round: the request came Config.Settle or more after the last one that counted.
func (t *byPSN) asked(now clock.Time, r *Row, psn, n uint32, round bool, f *hdr.Frame) {
	if r.notes == 0 {
		return
	}
	x := &t.notes[r.notes-1]
	if hdr.PSNDiff(psn, r.next) > 0 {
		t.forget(r) // a request was not seen, so the notes lack what it would have shown
		return
	}
	// These voices belong to other clients: their answers acknowledged a PSN that this client sends only now.
	x.against(x.ahead)
	x.ahead = 0
	if round && !t.crowded(now, t.bucket(r.Client.Addr, r.Server.Addr)) { // while the hosts are crowded, voices are not noted
		x.rounds, x.begun = min(x.rounds+1, enough), true
	}
	for i := range min(n, 32) {
		k, at := kindOf(f.Op), 2*((psn+i)&31)
		if i > 0 && r.MTU == 0 {
			k = 0 // the READ may take fewer PSNs than that
		}
		x.kinds = x.kinds&^(3<<at) | k<<at
	}
}

// forget drops what the notes of r say against voices. All voices that were heard stay candidates.
func (t *byPSN) forget(r *Row) {
	if r.notes != 0 {
		x := &t.notes[r.notes-1]
		*x = notes{heard: x.heard}
	}
}

// overhear begins the notes of r, whose numbering is new. It notes the voices that were answered
// near this numbering before, because each of them may be the row's client.
func (t *byPSN) overhear(r *Row) {
	t.forget(r)
	if r.notes == 0 {
		return
	}
	for i := t.bucket(r.Client.Addr, r.Server.Addr).voices; i != 0; i = t.voices[i-1].succ {
		if v := &t.voices[i-1]; v.client == r.Client.Addr && v.server == r.Server.Addr && v.net == r.Net && t.near(r, v.top) {
			t.notes[r.notes-1].heard |= v.bit
		}
	}
}

// near reports whether a response with PSN p may answer a request of r, or one of up to
// Config.Window PSNs after the newest that was seen, because some requests may be unseen.
func (t *byPSN) near(r *Row, p uint32) bool {
	return hdr.PSNDiff(p, r.low) >= 0 && hdr.PSNDiff(p, r.next) < int32(t.cfg.Window)
}

// listen notes a response from server src to queue pair qpn of client dst, and returns the
// voice's bit. It returns 0 if the response answers nothing that a half-open row may have asked for,
// or if there is no room for the voice. In the second case the rows whose client it may be wait until
// the voice was silent for enough rounds.
func (t *byPSN) listen(now clock.Time, l *bucket, src, dst Addr, qpn uint32, b []byte, f *hdr.Frame) uint64 {
	p, k, bit, fresh, known := f.BTHOf(b).PSN(), kindOf(f.Op), uint64(0), false, false
	for i := l.head; i != 0; i = t.rows[i-1].succ {
		r := &t.rows[i-1]
		ahead := hdr.PSNDiff(p, r.next)
		if r.notes == 0 || r.Client.Addr != dst || r.Server.Addr != src || r.Net != f.Net || !t.near(r, p) {
			continue
		}
		if !known {
			known = true
			if v := t.voice(now, l, src, dst, qpn, f.Net); v != nil {
				bit, v.heard = v.bit, now
				fresh = answers(b, f) && v.answer(p)
			}
		}
		x := &t.notes[r.notes-1]
		switch {
		case bit == 0: // later answers to this voice cannot be told from those to others
			x.rounds = 0
		case x.heard&bit == 0:
			x.heard |= bit
			x.rounds = min(x.rounds, 1)
		}
		if !fresh {
			continue
		}
		// A client that was first heard when it repeated a request may still get answers to its earlier
		// requests for a while.
		if ahead >= 0 && x.begun {
			x.ahead |= bit
		}
		if asked := x.kinds >> (2 * (p & 31)) & 3; ahead < 0 && ahead >= -32 && k != 0 && asked != 0 && asked != k {
			x.against(bit)
		}
	}
	return bit
}

// answer notes a positive response with PSN p. It returns false if a response with this PSN or a newer
// one was noted before.
func (v *voice) answer(p uint32) bool {
	if v.answers > 0 && hdr.PSNDiff(p, v.top) <= 0 {
		return false
	}
	v.top, v.answers = p, min(v.answers+1, enough)
	return true
}

// voice returns the voice of a queue pair, and makes it if need be; nil if there is no room.
func (t *byPSN) voice(now clock.Time, l *bucket, src, dst Addr, qpn uint32, net uint8) *voice {
	used, oldest := uint64(0), int32(0)
	for i := l.voices; i != 0; i = t.voices[i-1].succ {
		v := &t.voices[i-1]
		if v.qpn == qpn && v.client == dst && v.server == src && v.net == net {
			return v
		}
		used |= v.bit
		if oldest == 0 || v.heard < t.voices[oldest-1].heard {
			oldest = i
		}
	}
	if len(t.mute) == 0 {
		t.hushSome(now)
		return nil // hushSome may have forgotten voices that are counted in used
	}
	if used == ^uint64(0) {
		if oldest == 0 || now.Sub(t.voices[oldest-1].heard) < t.cfg.Reuse {
			return nil
		}
		used &^= t.voices[oldest-1].bit
		t.hush(l, t.voices[oldest-1].bit, true)
	}
	n := len(t.mute) - 1
	i := t.mute[n]
	t.mute = t.mute[:n]
	t.voices[i-1] = voice{client: dst, server: src, qpn: qpn, net: net, bit: ^used & (used + 1), succ: l.voices}
	l.voices = i
	return &t.voices[i-1]
}

// hushSome looks at the next few voices, round robin, and forgets those that were not heard
// for Config.Reuse.
func (t *byPSN) hushSome(now clock.Time) {
	for range min(reclaim, len(t.voices)) {
		v := &t.voices[t.nextVoice]
		if t.nextVoice++; t.nextVoice == len(t.voices) {
			t.nextVoice = 0
		}
		if v.bit != 0 && now.Sub(v.heard) >= t.cfg.Reuse {
			t.hush(t.bucket(v.client, v.server), v.bit, true)
		}
	}
}

// hush forgets the voice with a bit. silent: the voice was not heard for long, because its queue pair
// is gone or its client has asked for nothing; the rows that heard it then count their rounds anew.
func (t *byPSN) hush(l *bucket, bit uint64, silent bool) {
	for at := &l.voices; *at != 0; at = &t.voices[*at-1].succ {
		if i := *at; t.voices[i-1].bit == bit {
			*at = t.voices[i-1].succ
			t.voices[i-1] = voice{}
			t.mute = append(t.mute, i)
			break
		}
	}
	for i := l.head; i != 0; i = t.rows[i-1].succ {
		if r := &t.rows[i-1]; r.notes != 0 {
			x := &t.notes[r.notes-1]
			if silent && x.heard&bit != 0 {
				x.rounds = 0
			}
			x.heard, x.few, x.many, x.ahead = x.heard&^bit, x.few&^bit, x.many&^bit, x.ahead&^bit
		}
	}
}

// only returns the row whose client is the voice with a bit, which was answered just now. There is such
// a row if the half-open rows and the voices between the two hosts, or a part of both, can be paired in
// one way only. Otherwise, or if that is not known yet, only returns NoSlot.
func (t *byPSN) only(now clock.Time, l *bucket, src, dst Addr, net uint8, bit uint64) Slot {
	if bit == 0 || now < l.later {
		return NoSlot
	}
	silent := uint64(0) // a voice that was not heard for long; one of them is forgotten in a call
	for i := l.voices; i != 0; i = t.voices[i-1].succ {
		switch v := &t.voices[i-1]; {
		case v.bit == bit && v.answers < enough:
			return NoSlot
		case now.Sub(v.heard) >= t.cfg.Reuse:
			silent = v.bit
		}
	}
	if silent != 0 {
		t.hush(l, silent, true)
	}
	var rows [maxVoices]candidate
	n := 0
	for i := l.head; i != 0; i = t.rows[i-1].succ {
		r := &t.rows[i-1]
		if r.Client.Addr != dst || r.Server.Addr != src || r.Net != net {
			continue
		}
		if n == maxVoices || r.notes == 0 {
			n = 0
			break
		}
		x := &t.notes[r.notes-1]
		if rows[n] = (candidate{row: i - 1, maybe: x.maybe(), doubted: x.few | x.many, open: x.rounds < enough || r.waits}); rows[n].maybe != 0 {
			n++
		}
	}
	if s := match(rows[:n], bit); s != NoSlot {
		return s
	}
	l.later = now.Add(max(t.cfg.Settle, 0))
	return NoSlot
}

// candidate is a half-open row in match: the voices that may be its client (maybe), the voices against
// which there is a fact (doubted), and the voice that it takes (is). open: the row cannot take one yet.
type candidate struct {
	maybe, doubted, is uint64
	row                Slot
	open               bool
}

// match returns the row whose client must be the voice bit, or NoSlot.
//
// First, each row for which one voice is left takes this voice. Then match undoes each choice to which
// there is an alternative: a row without a voice could take the same voice, or the row
// could take a voice that no row has taken.
func match(rows []candidate, bit uint64) Slot {
	taken, done := uint64(0), 0 // rows before done have taken a voice
	for again := true; again; {
		again = false
		for i := done; i < len(rows); i++ {
			r := &rows[i]
			if m := r.maybe &^ taken; m&(m-1) == 0 && m != 0 && !r.open && r.doubted&m == 0 {
				r.is, again = m, true
				taken |= m
				rows[i], rows[done] = rows[done], rows[i]
				done++
			}
		}
	}
	for again := true; again; {
		again = false
		others := uint64(0) // voices that may be the clients of rows that have taken none
		for i := range rows {
			if rows[i].is == 0 {
				others |= rows[i].maybe
			}
		}
		for i := range rows {
			if r := &rows[i]; r.is != 0 && (r.is&others != 0 || r.maybe&^taken != 0) {
				taken &^= r.is
				r.is, again = 0, true
			}
		}
	}
	for i := range rows {
		if rows[i].is == bit {
			return rows[i].row
		}
	}
	return NoSlot
}
