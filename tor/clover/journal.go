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

// The journal outlives the process. It has a record of each steered CAS, from before the CAS leaves until it
// is known to be linked or refused. The next process sends these CASes again.
//
// All numbers are little-endian, except those in the front.
//
//	 0 magic | 8 length of a record (4) | 12 how many there are (4) | 16 the clock's epoch (24), zeros where it is not known
//	64 records: 0 check; 0: free | 8 time | 16 key | 24 VA of the client | 32 VA it
//	   was sent to | 40 swap operand of the client | 48 VA of the new entry
//	   56 PSN (4) | 60 number among the key's (4) | 64 R_Key (4) | 68 newest PSN that the server had answered (4)
//	   72 the client's QPN (4) | 76 version at the client's VA | 77 at the other | 78 length of front (2)
//	   80 the front: a frame up to the end of its BTH; the rest does not matter
//	   In the highest bytes of PSN, newest PSN and QPN: the MSN of the server's newest answer, the lowest byte first
//
// The check depends on all other bytes of the record, and on its place. So a record that was not completely
// written, or not completely erased, is not valid, in whatever order its bytes were stored.
const (
	journalMagic = 0x31727473_72766C63 // "clvrstr1"
	journalHead  = 64
	journalEpoch = 16
	noteLen      = 168
	noteFront    = 80
	maxNotes     = 2048
	journalLen   = journalHead + maxNotes*noteLen
	journalShape = maxNotes<<32 | noteLen
	// keepNotes is how old a record may be to be taken over: longer than clients repeat their requests. Later
	// another client may have the queue pair.
	keepNotes = port.GuardFor
	// awaitRepairs is how many times a CAS is sent again while other clients' atomics to its word wait for
	// it. After that its queue pair may be gone.
	awaitRepairs = 4
)

// journal has the records, in memory that outlives the process.
type journal struct {
	b     []byte      // nil: no memory outlives the process
	epoch clock.Epoch // of this process's clock
	free  []freeNotes // free records, by worker
	// While no process runs, other atomics to the words that recorded CASes go to must wait. So each of the
	// guards has these words. kept has, for each record, its word in the guards.
	guards []*port.Guard
	kept   []guarded
	hand   int32 // the next record that expire looks at
	// overdue has the guarded words of CASes that were sent again so often that, while this process runs,
	// other clients' atomics do not wait for them any more.
	overdue *port.Guard
	// The numbers of records of an earlier process that were taken over, and that were not, and why the last
	// of these was not.
	inherited, disowned int
	why                 string
}

// freeNotes has the free records of one worker; the one that was used last is taken first. Each worker takes
// its own while there are any, so that workers do not write to the same cache lines.
type freeNotes struct {
	list []int32
	_    [line - 24]byte
}

// guarded is a word with its place in the guards.
type guarded struct {
	word  port.Word
	place uint64
}

// remember gets the memory that outlives the process. Its contents are taken over later (inherit), because
// the app whose place this one takes may still write there.
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

// full reports whether a worker cannot record another CAS to word w.
func (j *journal) full(worker int, w port.Word) bool {
	return j.b != nil && (len(j.from(worker).list) == 0 || !j.guards[0].Room(w))
}

// from returns the free records of which a worker takes the next: its own, or, if it has none, another
// worker's.
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

// put makes record i free. A record always returns to the same worker.
func (j *journal) put(i int32) {
	f := &j.free[int(i)*len(j.free)/maxNotes]
	f.list = append(f.list, i)
}

// left returns the number of free records.
func (j *journal) left() (n int) {
	for w := range j.free {
		n += len(j.free[w].list)
	}
	return n
}

// keep makes record i guard word w, to which its CAS goes. swap, the CAS's swap operand, is what may be
// linked there.
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

// sum returns the check of record i, with contents p. Each word has another odd factor, so that a change of
// one word changes c. The lowest bit is set, because 0 means that the record is free.
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

// note writes the record of rec, a CAS that is steered over connection ri. The row of ri has just stored the
// front.
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

// erase takes CAS o off the record: it is linked or refused, or its outcome cannot be known any more.
func (j *journal) erase(o *op) {
	if o.note == 0 {
		return
	}
	j.unguard(o)
	binary.LittleEndian.PutUint64(j.record(o.note - 1)[:], 0)
	j.put(o.note - 1)
	o.note = 0
}

// unguard lets other atomics go to the word of CAS o: the server has answered o, so that an entry is linked
// there, or the outcome cannot be known any more.
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

// awaited notes that o was sent again. After awaitRepairs repetitions other clients' atomics do not wait for
// o any more.
func (j *journal) awaited(o *op) {
	if o.repairs == awaitRepairs+1 && o.note != 0 {
		if k := &j.kept[o.note-1]; k.place != 0 {
			j.overdue.Put(k.word, k.place)
		}
	}
}

// expire ends the guard of records that are too old to be taken over. Each call looks at some of the records.
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

// waits drops frame x, and returns true, if it is an atomic to the address that its client chose while a
// recorded CAS is under way to this address. If the atomic came first, the server would refuse that CAS,
// behind whose entry other entries may stand. The client repeats the atomic.
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

// enough is the number of answers with an MSN below the known one from which on not all can be late answers.
const enough = 3

// legacy takes over the records. Steer calls it before the first frame, and when all was forgotten; responses
// calls it when the server of an inherited connection answers.
type legacy struct{ *desk }

// heir is a recorded CAS that may be lost.
type heir struct {
	note                          int32 // number of its record
	at                            clock.Time
	key, va, newVA, swap, entry   uint64
	psn, n, rkey, acked, from, to uint32 // from, to: QPN of the client and of the server
	msn                           uint32 // of the server's newest answer
	cliVer, newVer                uint8
	start                         []byte
	startF                        hdr.Frame
	ends                          conn.Ends
	op                            *op
	row                           int32
}

// read reads record i into h, and reports whether the record is valid.
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
	// The front must be that of a CAS.
	b := append(slices.Clone(h.start), make([]byte, hdr.AtomicETHLen+hdr.ICRCLen)...)
	f := &h.startF
	if hdr.Parse(b, f) != hdr.IsRoCE || f.Op != hdr.CompareSwap || int(f.BTH)+hdr.BTHLen != n || !h.ends.Of(b, f) {
		return false
	}
	h.to = f.BTHOf(b).DestQP()
	return true
}

// compare orders heirs by server, then by the results by and then.
func (h *heir) compare(o *heir, by, then int) int {
	a, b := h.ends.Dst.As16(), o.ends.Dst.As16()
	return cmp.Or(bytes.Compare(a[:], b[:]), by, then)
}

// inherit takes over what is on record: from an earlier process, or, when all was forgotten, from this one. A
// recorded CAS may be lost, and its client gone, while other entries stand behind its entry. So it is sent
// again as if this process had sent it.
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
	heirs := make([]heir, 0, 64) // at a start or after a bypass, not on the packet path
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
	// First by connection and PSN, in the order of a connection's records; then by key and number.
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

// translate converts the records' times to this process's clock.
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

// disowned counts a record that is not taken over, for reason why.
func (s legacy) disowned(why string) {
	s.journal.disowned++
	s.journal.why = why
	s.ctx.Count(ctrDisowned, 1)
}

// drop erases record i.
func (j *journal) drop(i int32) {
	binary.LittleEndian.PutUint64(j.record(i)[:], 0)
	j.put(i)
}

// adopt makes h a request of its connection, and adds the connection to the table. It returns why this is not
// possible, or "".
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

// succeed makes h the newest append of its key, to be sent at once. The record keeps the earlier number. That
// is safe, because no other append of the key is steered until all inherited ones are over.
func (s legacy) succeed(h *heir) {
	o := h.op
	k := &s.keys.s[o.key]
	if k.unlinked() > 0 && s.room(1) {
		s.book(o, 1)
	}
	k.sent++
	o.epoch, o.cuts, o.n = k.epoch, k.cuts, k.sent
	s.enlist(o, s.placeOf(h.row, o), s.ctx.Now().Add(-s.cfg.repair))
}

// met handles the server's first acknowledgement, up to psn and with MSN msn, on connection i after
// repairs.ask asked where the server is. Connection i has inherited CASes, or its two ends were in question.
// If the server is where the CASes were, they are sent again. If its MSN has fallen, or its PSN does not fit,
// the server's end belongs to another connection, and connection i is forgotten.
func (s legacy) met(c *graph.Ctx, i int32, psn, msn uint32) {
	r := &s.rows[i]
	ring := s.opsOf(i)
	if int32((msn-r.msn)<<8) < 0 {
		if r.count == counted && r.behind < enough {
			return // the answer may be a late one: the server is asked again
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
			s.conns.Remove(conn.Slot(i)) // another connection has the same numbers
			return
		} else if d >= 0 {
			o.past = d > 0
			s.journal.unguard(o) // it was executed: its entry is linked, or it was refused
		}
		repairs{s.desk}.resend(c, i, o)
	}
}
