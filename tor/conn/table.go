package conn

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"
	"unsafe"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
)

// Config describes a table. Zero values take the defaults.
type Config struct {
	// Rows is the most connections; 0 = 4096, at most 1<<20.
	Rows int
	// Infer: connections that nobody announced are learnt from PSNs.
	Infer bool
	// SamePort: where a response fits several connections, the one whose
	// requests come from its UDP source port is meant. ConnectX uses one port
	// in both directions, and so does Linux where the flow label is derived
	// from both queue pairs; connections that count alike cannot be told apart
	// otherwise.
	SamePort bool
	// Settle is how long a server takes to answer what it answers at all (0 = 1
	// ms; AtOnce: three responses are enough). Only a client that goes on
	// asking, and whose requests are answered to nobody but the candidate for
	// twice as long, is paired by its PSNs: a connection whose requests are not
	// seen may count alike.
	Settle clock.Duration
	// GuardMAC: a queue pair is bound to the source MAC address that it was
	// learnt with, too, not to the IP address alone.
	GuardMAC bool
	// Window is the most PSNs that a requester has in flight; 0 = 4096.
	Window uint32
	// Idle is when a quiet connection is forgotten (0 = 10 minutes; rows from
	// configuration are kept), HalfOpen when one is that is not paired (0 = 1
	// minute), Close when one is that was disconnected but not confirmed
	// (0 = 5 s), and Reuse how long an inferred connection must be quiet before
	// its queue pair may turn out to be another peer's (0 = 1 s).
	Idle, HalfOpen, Close, Reuse clock.Duration
	// TimeWait is how long what the ends of a connection still say about it
	// is known to be about one that has ended (0 = 65 s: Linux asks for the end
	// 16 times, 4.3 s apart). As many are remembered as there are rows.
	TimeWait clock.Duration
	// Yield is when a quiet connection that was merely inferred makes room for
	// a new one in a full table (0 = 5 s). Of one that is pinned LetGo is
	// asked, also when it was quiet for Idle; nil: none makes room. It must not
	// call the table's methods that change it.
	Yield clock.Duration
	LetGo func(Slot) bool
	// Seed keys the hash.
	Seed uint64
	// OnRemove, if not nil, is told of a row that is about to go; the row is
	// still readable. It must not call the table's methods that change it.
	OnRemove func(Slot)
}

// AtOnce is a Config.Settle for captures that are shorter than pairing takes. Where queue pairs
// begin with one PSN and a frame is lost, it pairs wrongly.
const AtOnce clock.Duration = -1

const (
	maxRows   = 1 << 20 // keeps a reference in 31 bits
	maxWindow = 1 << 22 // PSNs, so that what is ahead can be told from what is behind
)

// Table is a bounded set of connections. Not for concurrent use.
type Table struct {
	cfg  Config
	rows []Row
	free []Slot
	qps  names // ends of rows by address and QPN
	ids  names // ends of managed rows by address and communication ID
	// pairs are the lists of half-open inferred rows, by the hash of their two
	// addresses.
	pairs []bucket
	lacks []clock.Time // see lacking
	// notes are those of half-open inferred rows, blank what no row has of them;
	// voices are unpaired queue pairs that are answered, mute what is none of them
	// (+1).
	notes       []notes
	voices      []voice
	blank, mute []int32
	nextVoice   int // that hushSome looks at
	cursor      int // of Sweep
	// quiet are the rows that may have to make room.
	quiet     [numClasses]quiet
	displaced uint64
	perClient [pairings][1024]int32 // half-open rows, by class

	// past is a ring, whose oldest entry is at pastAt; pastIDs are its ends by
	// address and communication ID.
	past    []past
	pastAt  int
	pastIDs names
}

// ErrFull is returned when a table has no room.
var ErrFull = errors.New("connection table is full")

// New makes a table.
func New(c Config) (*Table, error) {
	for _, d := range []struct {
		v *clock.Duration
		d clock.Duration
	}{{&c.Idle, 10 * time.Minute}, {&c.HalfOpen, time.Minute}, {&c.Close, 5 * time.Second}, {&c.Reuse, time.Second},
		{&c.TimeWait, 65 * time.Second}, {&c.Yield, 5 * time.Second}} {
		if *d.v == 0 {
			*d.v = d.d
		}
		if *d.v < 0 {
			return nil, fmt.Errorf("conn: a time-out cannot be %v", *d.v)
		}
	}
	if c.Settle == 0 {
		c.Settle = time.Millisecond
	}
	if c.Rows == 0 {
		c.Rows = 4096
	}
	if c.Rows < 1 || c.Rows > maxRows {
		return nil, fmt.Errorf("conn: a table of %d rows: give 1 to %d", c.Rows, maxRows)
	}
	if c.Window == 0 {
		c.Window = 4096
	}
	if c.Window > maxWindow {
		return nil, fmt.Errorf("conn: a window of %d PSNs: give at most %d", c.Window, maxWindow)
	}
	t := &Table{cfg: c, rows: make([]Row, c.Rows), free: make([]Slot, 0, c.Rows), qps: newNames(2*c.Rows, c.Seed), ids: newNames(2*c.Rows, ^c.Seed),
		past: make([]past, c.Rows), pastIDs: newNames(2*c.Rows, ^c.Seed)}
	t.pairs = make([]bucket, max(256, len(t.qps.E)/4))
	if c.SamePort {
		t.lacks = make([]clock.Time, lackingPorts)
	}
	half, _ := t.maxHalf()
	t.notes, t.voices = make([]notes, half), make([]voice, half)
	for i := int32(half); i > 0; i-- {
		t.blank, t.mute = append(t.blank, i), append(t.mute, i)
	}
	for c := range t.quiet {
		t.quiet[c] = make(quiet, 0, len(t.rows))
	}
	for s := Slot(c.Rows - 1); s >= 0; s-- {
		t.free = append(t.free, s)
	}
	return t, nil
}

// Row is the row in slot s, which must be in use.
func (t *Table) Row(s Slot) *Row { return &t.rows[s] }

// Used reports whether slot s holds a row.
func (t *Table) Used(s Slot) bool { return s >= 0 && int(s) < len(t.rows) && t.rows[s].used }

// Len is the number of rows in use, Cap the most there can be.
func (t *Table) Len() int { return len(t.rows) - len(t.free) }
func (t *Table) Cap() int { return len(t.rows) }

// Bytes is the memory that the table takes.
func (t *Table) Bytes() int {
	return len(t.rows)*int(unsafe.Sizeof(Row{})+unsafe.Sizeof(past{})+uintptr(1+numClasses)*unsafe.Sizeof(Slot(0))) + t.pastIDs.Bytes() + t.qps.Bytes() + t.ids.Bytes() + len(t.pairs)*int(unsafe.Sizeof(bucket{})) + len(t.lacks)*8 +
		len(t.notes)*int(unsafe.Sizeof(notes{})+unsafe.Sizeof(voice{})+8)
}

// Find is the row with an end at (a, qpn), and whether that is its client.
// NoSlot when there is none.
func (t *Table) Find(a Addr, qpn uint32) (s Slot, client bool) {
	if r := t.find(a, qpn); r != noRef {
		return r.slot(), r.client()
	}
	return NoSlot, false
}

func (t *Table) find(a Addr, qpn uint32) ref {
	k, _ := t.row(a, qpn)
	return k
}

// row is find, and the row; nil when there is none.
func (t *Table) row(a Addr, qpn uint32) (ref, *Row) {
	x := &t.qps
	h := x.hash(a, qpn)
	for p := x.Start(h); x.E[p] != 0; p = x.Next(p) {
		if v, ok := x.Slot(p, h); ok {
			k := ref(v)
			r := &t.rows[k.slot()]
			if e, _ := r.ends(k.client()); e.QPN == qpn && e.Addr == a {
				return k, r
			}
		}
	}
	return noRef, nil
}

// Elsewhere is no slot: Easily cannot tell.
const Elsewhere Slot = -2

// Easily is Plain for a frame that is hdr.Frame.Plain: the slot of its connection, or NoSlot when no row has the queue
// pair that it goes to; Elsewhere when it is for Plain to find out, and nothing was done. fl are the flags of
// the frame's opcode.
func (t *Table) Easily(now clock.Time, ends *Ends, b []byte, fl hdr.OpFlags, owner uint16) Slot {
	c := (*[hdr.PlainBTH + hdr.BTHLen]byte)(b)
	qpn := binary.BigEndian.Uint32(c[hdr.PlainBTH+4:]) & 0xFFFFFF
	x, dst := &t.qps, ends.Dst.lo
	h := x.hash4(dst, qpn)
	for p := x.Start(h); ; p = x.Next(p) {
		e := x.E[p]
		if uint32(e>>32) != h || e == 0 {
			if e == 0 {
				return NoSlot
			}
			continue
		}
		k := ref(uint32(e) - 1)
		r := &t.rows[k.slot()]
		to, from := &r.Server, &r.Client
		if k.client() {
			to, from = from, to
		}
		if r.easy != plain || uint32(k)&1 == uint32(fl&hdr.IsRequest) || to.QPN != qpn || to.Addr.lo != dst || from.Addr.lo != ends.Src.lo ||
			owner != 0 && r.Owner != owner || fl&(hdr.IsFirst|hdr.IsMiddle) != 0 && r.MTU == 0 {
			return Elsewhere
		}
		from.L2, from.Port = [12]byte(c[:]), binary.BigEndian.Uint16(c[hdr.EthernetLen+hdr.IPv4Len:])
		r.LastSeen = now
		return k.slot()
	}
}

// findID is the row with an end that calls the connection id.
func (t *Table) findID(a Addr, id uint32) ref {
	x := &t.ids
	h := x.hash(a, id)
	for p := x.Start(h); x.E[p] != 0; p = x.Next(p) {
		if v, ok := x.Slot(p, h); ok {
			k := ref(v)
			if e, _ := t.rows[k.slot()].ends(k.client()); e.hasComm && e.CommID == id && e.Addr == a {
				return k
			}
		}
	}
	return noRef
}

func (t *Table) putQP(s Slot, client bool) {
	e, _ := t.rows[s].ends(client)
	t.qps.put(e.Addr, e.QPN, refOf(s, client))
}

func (t *Table) delQP(s Slot, client bool) {
	e, _ := t.rows[s].ends(client)
	t.qps.del(e.Addr, e.QPN, refOf(s, client))
}

func (t *Table) putID(s Slot, client bool, id uint32) {
	e, _ := t.rows[s].ends(client)
	e.CommID, e.hasComm = id, true
	t.ids.put(e.Addr, id, refOf(s, client))
}

func (t *Table) delID(s Slot, client bool) {
	e, _ := t.rows[s].ends(client)
	if e.hasComm {
		t.ids.del(e.Addr, e.CommID, refOf(s, client))
	}
}

// reclaim is the most rows that are looked at when there is no room, in each of
// the ways to find some.
const reclaim = 16

// alloc is an empty row, not placed yet; NoSlot when the table is full.
func (t *Table) alloc(now clock.Time, learnt Source) Slot {
	if len(t.free) == 0 {
		t.sweep(now, min(reclaim, len(t.rows)))
	}
	if len(t.free) == 0 && !t.makeRoom(now, learnt) {
		return NoSlot
	}
	n := len(t.free) - 1
	s := t.free[n]
	t.free = t.free[:n]
	t.rows[s] = Row{used: true, Learnt: learnt, LastSeen: now}
	return s
}

// Remove forgets the connection in slot s.
func (t *Table) Remove(s Slot) {
	if !t.Used(s) {
		return
	}
	if t.cfg.OnRemove != nil {
		t.cfg.OnRemove(s)
	}
	r := &t.rows[s]
	if r.State == Closing {
		t.keep(s, r.LastSeen)
	}
	if r.waits {
		// Its queue pairs are other rows'.
		for _, client := range []bool{false, true} {
			e, _ := r.ends(client)
			if k := t.find(e.Addr, e.QPN); k != noRef {
				if o := &t.rows[k.slot()]; o.rival == s+1 {
					o.rival = 0
					t.rewatch(o)
				}
			}
		}
	} else {
		if r.Learnt != Managed || r.State != HalfOpen {
			t.delQP(s, false)
		}
		if r.State != HalfOpen {
			t.delQP(s, true)
		}
		if n := r.rival; n != 0 && t.rows[n-1].Learnt == Inferred {
			t.rows[n-1].waits = false
			t.putQP(n-1, false)
		}
	}
	t.delID(s, true)
	t.delID(s, false)
	t.unlist(s)
	t.unplace(s)
	*r = Row{}
	t.free = append(t.free, s)
}

// Pin says that the caller numbers the requests of the row's server end itself
// from now on: PSNs neither confirm nor contradict its pairing any more.
func (t *Table) Pin(s Slot) {
	r := &t.rows[s]
	r.pinned = true
	t.rewatch(r)
}

// Sweep looks at some rows, other ones each time, and removes those whose time
// is up; it returns how many. Called once per millisecond or so it bounds how
// long a dead row stays.
func (t *Table) Sweep(now clock.Time) int { return t.sweep(now, min(64, len(t.rows))) }

func (t *Table) sweep(now clock.Time, n int) int {
	removed := 0
	for range n {
		s := Slot(t.cursor)
		if t.cursor++; t.cursor == len(t.rows) {
			t.cursor = 0
		}
		r := &t.rows[s]
		if !r.used {
			continue
		}
		if t.expired(s, now) {
			t.Remove(s)
			removed++
		}
	}
	return removed
}

func (t *Table) expired(s Slot, now clock.Time) bool {
	r := &t.rows[s]
	quiet := now.Sub(r.LastSeen)
	switch r.State {
	case HalfOpen:
		return quiet >= t.cfg.HalfOpen
	case Closing:
		return quiet >= t.cfg.Close
	}
	return r.Learnt != Static && quiet >= t.cfg.Idle && (!r.pinned || t.cfg.LetGo == nil || t.cfg.LetGo(s))
}

// bucket is a list of half-open inferred rows.
type bucket struct {
	head Slot // +1
	n    int32
	// unlisted is when (+1) a request was last seen that has no row for want of
	// room: what answers it may seem to answer another.
	unlisted clock.Time
	// voices (+1) are the queue pairs that are answered between its hosts and are not
	// paired; they are not compared before later.
	voices int32
	later  clock.Time
}

func (t *Table) bucket(client, server Addr) *bucket {
	h := t.qps.hash(client, t.qps.hash(server, 0))
	return &t.pairs[h&uint32(len(t.pairs)-1)]
}

// crowded reports whether requests passed of late between the hosts of l that have
// no row: until they are no more, nobody there is paired.
func (t *Table) crowded(now clock.Time, l *bucket) bool {
	return t.recent(now, l.unlisted)
}

// recent reports whether something noted at a time (+1; 0: never) is less old than Config.Reuse.
func (t *Table) recent(now, at clock.Time) bool { return at != 0 && now.Sub(at-1) < t.cfg.Reuse }

// unlisted notes such a request. What spoke for candidates before does so no more.
func (t *Table) unlisted(now clock.Time, l *bucket, client, server Addr, port uint16) {
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

// lackingPorts is how many sets of ports are told apart: a power of two.
const lackingPorts = 1 << 13

// lacking is when (+1; 0: never) a request from a port of client's to server found no room
// last, or one of the few whose hash is the same.
func (t *Table) lacking(client, server Addr, port uint16) *clock.Time {
	return &t.lacks[t.qps.hash(client, t.qps.hash(server, uint32(port)))%lackingPorts]
}

func (t *Table) list(s Slot) {
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

func (t *Table) unlist(s Slot) {
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
