package clover

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"slices"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/tor/conn"
)

// What outlives the process: each steered CAS from before its frame leaves until it
// is known to be linked, or refused. The next process sends it again.
//
// All numbers are little-endian, but those of the front.
//
//	 0 magic | 8 length of a record (4) | 12 how many there are (4) | 16 the clock's epoch (24), zeros where it is not known
//	64 records: 0 check; 0: free | 8 time | 16 key | 24 VA of the client | 32 VA it
//	   was sent to | 40 swap operand of the client | 48 VA of the new entry
//	   56 PSN (4) | 60 number among the key's (4) | 64 R_Key (4) | 68 newest PSN that the server had answered (4)
//	   72 the client's QPN (4) | 76 version at the client's VA | 77 at the other | 78 length of front (2)
//	   80 the front: a frame up to the end of its BTH; the rest does not matter
//	   In the highest bytes of PSN, newest PSN and QPN: the MSN of the server's newest answer, the lowest byte first
//
// The check depends on all else of the record, and on its place. So a record that
// was not written to its end, or not erased, is none, whatever the order of the
// stores.
const (
	journalMagic = 0x31727473_72766C63 // "clvrstr1"
	journalHead  = 64
	journalEpoch = 16
	noteLen      = 168
	noteFront    = 80
	maxNotes     = 2048
	journalLen   = journalHead + maxNotes*noteLen
	journalShape = maxNotes<<32 | noteLen
	// keepNotes is how old a record may be that is taken over: the longest that a
	// client repeats its requests, generously. Later its queue pair may be another's.
	keepNotes = port.GuardFor
	// awaitRepairs is how often a CAS is sent again while others' atomics to its word wait
	// for it. Then its queue pair may be gone.
	awaitRepairs = 4
)

// journal is the records, in memory that outlives the process.
type journal struct {
	b     []byte      // nil: nothing outlives it
	epoch clock.Epoch // of this process's clock
	free  []freeNotes // by worker
	// Where the recorded CASes go, other atomics wait while no process is there: in each
	// of the guards. kept is what a record has there.
	guards []*port.Guard
	kept   []guarded
	hand   int32 // where expire is
	// overdue has what guards have of CASes that were sent again so often that others'
	// atomics do not wait for them in this process.
	overdue *port.Guard
	// Of what was left: how many were taken over, and how many were not, and why
	// the last of these.
	inherited, disowned int
	why                 string
}

// freeNotes are records of a worker that are free; the one that was used last is the
// next. Each worker has its own, as long as it has, so that workers do not write into the
// same lines of memory.
type freeNotes struct {
	list []int32
	_    [line - 24]byte
}

// guarded is what guards a word.
type guarded struct {
	word  port.Word
	place uint64
}

// remember gets the memory that outlives the process. What it holds is looked at
// later: an app that this one takes the place of may still be writing there.
func (j *journal) remember(env graph.Env) (err error) {
	if env.Memory != nil && j.b == nil {
		j.b, err = env.Memory(journalLen)
		j.epoch = clock.EpochOf(env.Clock)
		j.free, j.kept, j.overdue = make([]freeNotes, env.Workers), make([]guarded, maxNotes), port.NewGuard(nil)
		for w := range j.free {
			j.free[w].list = make([]int32, 0, maxNotes)
		}
	}
	return err
}

// full reports whether a worker can note no CAS more that goes to a word.
func (j *journal) full(worker int, w port.Word) bool {
	return j.b != nil && (len(j.from(worker).list) == 0 || !j.guards[0].Room(w))
}

// from is where a worker takes a record: from its own, or, when it has none, from
// another's.
func (j *journal) from(worker int) *freeNotes {
	own := &j.free[worker]
	if len(own.list) != 0 {
		return own
	}
	for w := range j.free {
		if f := &j.free[w]; len(f.list) != 0 {
			return f
		}
	}
	return own
}

// put has record i be free. It is always the same worker's.
func (j *journal) put(i int32) {
	f := &j.free[int(i)*len(j.free)/maxNotes]
	f.list = append(f.list, i)
}

// left is how many records are free.
func (j *journal) left() (n int) {
	for w := range j.free {
		n += len(j.free[w].list)
	}
	return n
}

// keep has record i guard the word where its CAS goes, which links what swap says.
func (j *journal) keep(i int32, w port.Word, swap uint64, in ...*port.Guard) {
	k := guarded{w, w.Place(swap)}
	j.kept[i] = k
	for _, g := range in {
		g.Put(k.word, k.place)
	}
}

func (j *journal) record(i int32) *[noteLen]byte {
	return (*[noteLen]byte)(j.b[journalHead+int(i)*noteLen:])
}

// sum is the check of what is in record i. Each word counts by another odd factor:
// no change of a single one leaves it as it is.
func sum(p *[noteLen]byte, i int32) uint64 {
	const (
		step, all = 0x9E3779B97F4A7C14, 1<<64 - 1
		step2     = 2 * step & all
		step3     = 3 * step & all
		step4     = 4 * step & all
	)
	k := uint64(2*i + 1)
	c := uint64(journalMagic)
	for at := 8; at < noteLen; at += 32 { // five times four words
		q := (*[32]byte)(p[at:])
		c += binary.LittleEndian.Uint64(q[0:]) * (k + step)
		c += binary.LittleEndian.Uint64(q[8:]) * (k + step2)
		c += binary.LittleEndian.Uint64(q[16:]) * (k + step3)
		k += step4
		c += binary.LittleEndian.Uint64(q[24:]) * k
	}
	return c | 1
}

// note writes the record of a CAS that is steered over connection ri, whose front r
// has just kept.
func (s *desk) note(rec *op, ri int32) {
	j := &s.journal
	if j.b == nil {
		return
	}
	f := j.from(s.worker)
	n := len(f.list) - 1
	if n < 0 {
		return
	}
	i := f.list[n]
	f.list = f.list[:n]
	rec.note = i + 1
	r := &s.rows[ri]
	le := binary.LittleEndian
	p := j.record(i)
	le.PutUint64(p[8:], uint64(s.ctx.Now()))
	le.PutUint64(p[16:], s.keys.s[rec.key].key)
	le.PutUint64(p[24:], rec.va)
	le.PutUint64(p[32:], rec.newVA)
	le.PutUint64(p[40:], rec.swap)
	le.PutUint64(p[48:], rec.entry)
	msn := s.psns
	le.PutUint64(p[56:], uint64(rec.psn)|uint64(msn&0xFF)<<24|uint64(rec.n)<<32)
	le.PutUint64(p[64:], uint64(rec.rkey)|uint64(s.acked|msn>>8&0xFF<<24)<<32)
	front := int(r.startF.BTH) + hdr.BTHLen
	le.PutUint64(p[72:], uint64(s.conns.Row(conn.Slot(ri)).Client.QPN|msn>>16<<24)|uint64(rec.cliVer)<<32|uint64(rec.newVer)<<40|uint64(front)<<48)
	*(*[len(r.start)]byte)(p[noteFront:]) = r.start
	j.keep(i, s.word(r.sid, rec.newVA), rec.swap, j.guards...)
	le.PutUint64(p[:], sum(p, i))
}

// erase takes a CAS off the record: it is linked, or refused, or nothing will be
// known of it.
func (j *journal) erase(o *op) {
	if o.note == 0 {
		return
	}
	j.unguard(o)
	binary.LittleEndian.PutUint64(j.record(o.note - 1)[:], 0)
	j.put(o.note - 1)
	o.note = 0
}

// unguard: where a CAS goes is free for all. The server has answered it, so that
// something is linked there, or nothing will be known of it.
func (j *journal) unguard(o *op) {
	if o.note == 0 {
		return
	}
	k := &j.kept[o.note-1]
	if k.place == 0 {
		return
	}
	if o.repairs > awaitRepairs {
		j.overdue.Take(k.word, k.place)
	}
	for _, g := range j.guards {
		g.Take(k.word, k.place)
	}
	k.place = 0
}

// awaited: o was sent again. After some times others' atomics do not wait for it any more.
func (j *journal) awaited(o *op) {
	if o.repairs == awaitRepairs+1 && o.note != 0 {
		if k := &j.kept[o.note-1]; k.place != 0 {
			j.overdue.Put(k.word, k.place)
		}
	}
}

// expire has what is too old to be taken over be guarded no more, some records at a time.
func (j *journal) expire(now clock.Time) {
	for range min(len(j.kept), maxNotes/32) {
		i := j.hand
		j.hand = (i + 1) % maxNotes
		k := &j.kept[i]
		if k.place != 0 && now.Sub(clock.Time(binary.LittleEndian.Uint64(j.record(i)[8:]))) > keepNotes {
			for _, g := range j.guards {
				g.Take(k.word, k.place)
			}
			k.place = 0
		}
	}
}

// waits reports whether an unsteered frame does not go on: an atomic that goes where its client sent
// it, while a CAS on record is on its way there. If it came first, that CAS would be
// refused, and others may stand behind what it links. Its client asks again.
func (s *desk) waits(c *graph.Ctx, x *packet.Buf, b []byte) bool {
	if len(s.journal.guards) == 0 || s.cfg.repair == 0 {
		return false
	}
	to, bth := conn.Target(b, &s.f).Netip(), b[s.f.BTH:]
	if !s.journal.guards[0].Stops(to, bth) || s.journal.overdue.Stops(to, bth) {
		return false
	}
	c.Drop(x, reasonAwaits)
	return true
}

// enough answers with an MSN of before are not all late ones.
const enough = 3

// legacy takes over what is on record. Steer calls it before the first frame, and when all was forgotten;
// responses, when the server of such a connection answers.
type legacy struct{ *desk }

// heir is a CAS that is on record, and that may be lost.
type heir struct {
	note                          int32 // its record
	at                            clock.Time
	key, va, newVA, swap, entry   uint64
	psn, n, rkey, acked, from, to uint32 // from, to: the client's queue pair, and the server's
	msn                           uint32 // of the server's newest answer
	cliVer, newVer                uint8
	start                         []byte
	startF                        hdr.Frame
	ends                          conn.Ends
	op                            *op
	row                           int32
}

// read reads record i, and reports whether it is one.
func (j *journal) read(i int32, h *heir) bool {
	le := binary.LittleEndian
	p := j.record(i)
	if le.Uint64(p[:]) != sum(p, i) {
		return false
	}
	*h = heir{
		note: i, at: clock.Time(le.Uint64(p[8:])), key: le.Uint64(p[16:]), va: le.Uint64(p[24:]), newVA: le.Uint64(p[32:]), swap: le.Uint64(p[40:]), entry: le.Uint64(p[48:]),
		psn: le.Uint32(p[56:]) & hdr.PSNMask, n: le.Uint32(p[60:]), rkey: le.Uint32(p[64:]), acked: le.Uint32(p[68:]) & hdr.PSNMask, from: le.Uint32(p[72:]) & hdr.PSNMask,
		msn: uint32(p[59]) | uint32(p[71])<<8 | uint32(p[75])<<16, cliVer: p[76], newVer: p[77],
	}
	n := int(le.Uint16(p[78:]))
	if n < hdr.BTHLen || n > len(row{}.start) {
		return false
	}
	h.start = p[noteFront : noteFront+n]
	// It must be the front of a CAS.
	b := append(slices.Clone(h.start), make([]byte, hdr.AtomicETHLen+hdr.ICRCLen)...)
	f := &h.startF
	if hdr.Parse(b, f) != hdr.IsRoCE || f.Op != hdr.CompareSwap || int(f.BTH)+hdr.BTHLen != n || !h.ends.Of(b, f) {
		return false
	}
	h.to = f.BTHOf(b).DestQP()
	return true
}

// compare orders heirs by server, and there by what is given.
func (h *heir) compare(o *heir, by, then int) int {
	a, b := h.ends.Dst.As16(), o.ends.Dst.As16()
	return cmp.Or(bytes.Compare(a[:], b[:]), by, then)
}

// inherit takes over what is on record: what a process before this one left, or,
// when all is forgotten, what this one did. Such a CAS may be lost, and its client
// gone, while others stand behind it: it is sent again as if this process had sent it.
func (s legacy) inherit(c *graph.Ctx) {
	j := &s.journal
	if j.b == nil {
		return
	}
	le := binary.LittleEndian
	if le.Uint64(j.b) != journalMagic || le.Uint64(j.b[8:]) != journalShape {
		if le.Uint64(j.b) != 0 {
			s.disowned("of another version")
		}
		clear(j.b)
		le.PutUint64(j.b[8:], journalShape)
		le.PutUint64(j.b, journalMagic)
	}
	j.translate()
	for w := range j.free {
		j.free[w].list = j.free[w].list[:0]
	}
	clear(j.kept)
	j.overdue.Replace(port.NewGuard(nil))
	heirs := make([]heir, 0, 64) // at a start or a bypass, not on the packet path
	for i := int32(maxNotes - 1); i >= 0; i-- {
		var h heir
		switch {
		case j.read(i, &h):
			heirs = append(heirs, h)
			continue
		case le.Uint64(j.record(i)[:]) != 0:
			s.disowned("damaged")
		}
		j.drop(i)
	}
	// On each connection by PSN, as its records are; then each key's by their numbers.
	slices.SortStableFunc(heirs, func(a, b heir) int {
		return a.compare(&b, cmp.Compare(a.to, b.to), int(hdr.PSNDiff(a.psn, b.psn)))
	})
	for i := range heirs {
		if why := s.adopt(&heirs[i]); why != "" {
			s.disowned(why)
			j.drop(heirs[i].note)
			heirs[i].op = nil
		}
	}
	slices.SortStableFunc(heirs, func(a, b heir) int {
		return a.compare(&b, cmp.Compare(a.key, b.key), int(int32(a.n-b.n)))
	})
	next := port.NewGuard(nil)
	for i := range heirs {
		if h := &heirs[i]; h.op != nil {
			s.succeed(h)
			j.keep(h.note, s.word(s.rows[h.row].sid, h.newVA), h.swap, next)
			j.inherited++
			c.Count(ctrInherited, 1)
		}
	}
	if j.guards = c.Guards(); len(j.guards) == 0 {
		j.guards = append(j.guards, port.NewGuard(nil))
	}
	for _, g := range j.guards {
		g.Replace(next)
	}
}

// translate has the records' times be those of this process's clock.
func (j *journal) translate() {
	le := binary.LittleEndian
	if behind := j.epoch.Since(clock.EpochIn(j.b[journalEpoch:])); behind != 0 {
		for i := range int32(maxNotes) {
			if p := j.record(i); le.Uint64(p[:]) == sum(p, i) {
				le.PutUint64(p[8:], uint64(clock.Time(le.Uint64(p[8:])).Add(behind)))
				le.PutUint64(p[:], sum(p, i))
			}
		}
	}
	j.epoch.Put(j.b[journalEpoch:])
}

// disowned counts a record that is not taken over.
func (s legacy) disowned(why string) {
	s.journal.disowned++
	s.journal.why = why
	s.ctx.Count(ctrDisowned, 1)
}

// drop empties record i.
func (j *journal) drop(i int32) {
	binary.LittleEndian.PutUint64(j.record(i)[:], 0)
	j.put(i)
}

// adopt has h be a request of its connection, which is one of the table; or says
// why not.
func (s legacy) adopt(h *heir) (why string) {
	now := s.ctx.Now()
	if age := now.Sub(h.at); age > keepNotes || age < -keepNotes {
		return "too old"
	}
	at := s.conns.Recall(now, conn.StaticConn{
		Client: h.ends.Src.Netip(), ClientQPN: h.from, Server: h.ends.Dst.Netip(), ServerQPN: h.to, VLAN: h.ends.Src.VLAN(), V1: h.startF.Net == hdr.NetGRH,
	})
	if at == conn.NoSlot {
		return "no room for its connection (conns=), or another has its queue pair"
	}
	h.row = int32(at)
	r := &s.rows[h.row]
	if r.sid == noServer {
		s.event(h.row, conn.NowPaired)
		r.epsn, r.acked, r.begun = (h.psn+1)&hdr.PSNMask, h.acked, true
	}
	if r.sid == noServer {
		s.conns.Remove(at)
		return "no room for its server, or it is not one of servers="
	}
	key := s.keys.find(uint16(r.sid), h.key)
	if key == noSlot {
		if key = s.insert(r.sid, h.key); key == noSlot {
			return "no room for its key (keys=)"
		}
	}
	if hdr.PSNDiff(h.psn, r.epsn) >= 0 {
		r.epsn = (h.psn + 1) & hdr.PSNMask
	}
	if hdr.PSNDiff(h.acked, r.acked) > 0 {
		r.acked = h.acked
	}
	if !r.unmet || int32((h.msn-r.msn)<<8) > 0 {
		r.msn = h.msn
	}
	o := s.op(h.row, h.psn)
	if o == nil {
		if x := &s.opsOf(h.row)[(r.head+1)%window]; !x.live || !x.steered {
			o = s.newOp(h.row, h.psn)
		}
	}
	switch {
	case o == nil:
		return "too many of a connection"
	case o.note != 0:
		return "there twice"
	}
	o.kind, o.steered, o.live, o.heir, o.note = opCAS, true, true, true, h.note+1
	o.va, o.newVA, o.swap, o.entry, o.rkey, o.cliVer, o.newVer = h.va, h.newVA, h.swap, h.entry, h.rkey, h.cliVer, h.newVer
	o.key, o.slot, o.linked, o.past, o.repairs = key, noSlot, false, false, 0
	r.unmet = true
	copy(r.start[:], h.start)
	r.startF, r.startMarks = h.startF, marksOf(h.start, &h.startF)
	h.op = o
	return ""
}

// succeed has h be the newest append of its key, to be sent at once. Its record keeps
// the number of before: until all that were inherited are over, no other append of the
// key is steered.
func (s legacy) succeed(h *heir) {
	o := h.op
	k := &s.keys.s[o.key]
	if k.unlinked() > 0 && s.room(1) {
		s.book(o, 1)
	}
	k.sent++
	o.epoch, o.n = k.epoch, k.sent
	s.enlist(o, s.placeOf(h.row, o), s.ctx.Now().Add(-s.cfg.repair))
}

// met takes the server's first acknowledgement to connection i of inherited CASes, or that was in question, after it was asked where it is: up to psn, with MSN msn. They are
// sent if it is where they were. A server's count of messages never falls but for another connection's.
func (s legacy) met(c *graph.Ctx, i int32, psn, msn uint32) {
	r := &s.rows[i]
	ring := s.opsOf(i)
	if int32((msn-r.msn)<<8) < 0 {
		if r.count == counted && r.behind < enough {
			return // it may be a late one: it is asked again
		}
		s.conns.Remove(conn.Slot(i))
		return
	}
	r.unmet, r.behind = false, 0
	for n := range ring {
		o := &ring[(int(r.head)+1+n)%window] // the oldest first
		if !o.heir || !o.live {
			continue
		}
		if d := hdr.PSNDiff(psn, o.psn); d < -lookback || d > lookback || d < -1 && msn != r.msn && hdr.PSNDiff(r.acked, o.psn) == -1 {
			s.conns.Remove(conn.Slot(i)) // another connection with its numbers
			return
		} else if d >= 0 {
			o.past = d > 0
			s.journal.unguard(o) // it has been executed: there is something, or it was refused
		}
		repairs{s.desk}.resend(c, i, o)
	}
}
