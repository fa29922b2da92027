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
//
// It has four parts: the rows and where their ends are found (store), the half-open rows and what
// PSNs say about whose answers are whose (byPSN), the order in which rows may have to make room (byQuiet),
// and the connections that have ended (timeWait). Table itself is the door: what a frame or a datagram does to all of them.
type Table struct {
	store
	byPSN
	byQuiet
	timeWait
	free      []Slot
	cursor    int // of Sweep
	displaced uint64
}

// store are the rows, and where they are found by the names of their ends. It decides
// nothing.
type store struct {
	cfg  Config
	rows []Row
	top  int   // see Top
	qps  names // ends of rows by address and QPN
	ids  names // ends of managed rows by address and communication ID
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
	t := &Table{
		store:    store{cfg: c, rows: make([]Row, c.Rows), qps: newNames(2*c.Rows, c.Seed), ids: newNames(2*c.Rows, ^c.Seed)},
		timeWait: timeWait{past: make([]past, c.Rows), pastIDs: newNames(2*c.Rows, ^c.Seed)},
		free:     make([]Slot, 0, c.Rows),
	}
	t.byQuiet.init(&t.store)
	half, _ := t.maxHalf()
	t.byPSN.init(&t.store, half)
	for s := Slot(c.Rows - 1); s >= 0; s-- {
		t.free = append(t.free, s)
	}
	return t, nil
}

// Row is the row in slot s, which must be in use.
func (t *store) Row(s Slot) *Row { return &t.rows[s] }

// Used reports whether slot s holds a row.
func (t *store) Used(s Slot) bool { return s >= 0 && int(s) < len(t.rows) && t.rows[s].used }

// Top is a slot that no row was ever in, and none behind it: Cap when there is none.
func (t *store) Top() int { return t.top }

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
func (t *store) Find(a Addr, qpn uint32) (s Slot, client bool) {
	if r := t.find(a, qpn); r != noRef {
		return r.slot(), r.client()
	}
	return NoSlot, false
}

func (t *store) find(a Addr, qpn uint32) ref {
	k, _ := t.row(a, qpn)
	return k
}

// row is find, and the row; nil when there is none.
func (t *store) row(a Addr, qpn uint32) (ref, *Row) {
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
			owner != 0 && r.Owner != owner || fl&(hdr.IsFirst|hdr.IsMiddle) != 0 && r.MTU == 0 && fl&hdr.IsResponse != 0 {
			return Elsewhere
		}
		from.L2, from.Port = [12]byte(c[:]), binary.BigEndian.Uint16(c[hdr.EthernetLen+hdr.IPv4Len:])
		r.LastSeen = now
		return k.slot()
	}
}

// findID is the row with an end that calls the connection id.
func (t *store) findID(a Addr, id uint32) ref {
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

func (t *store) putQP(s Slot, client bool) {
	e, _ := t.rows[s].ends(client)
	t.qps.put(e.Addr, e.QPN, refOf(s, client))
}

func (t *store) delQP(s Slot, client bool) {
	e, _ := t.rows[s].ends(client)
	t.qps.del(e.Addr, e.QPN, refOf(s, client))
}

func (t *store) putID(s Slot, client bool, id uint32) {
	e, _ := t.rows[s].ends(client)
	e.CommID, e.hasComm = id, true
	t.ids.put(e.Addr, id, refOf(s, client))
}

func (t *store) delID(s Slot, client bool) {
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
	t.top = max(t.top, int(s)+1)
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
		t.keep(r, r.LastSeen.Add(t.cfg.TimeWait))
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
		return quiet >= t.cfg.Close && t.mayGo(s)
	}
	return r.Learnt != Static && quiet >= t.cfg.Idle && t.mayGo(s)
}

// mayGo reports whether the owner of row s, if it is pinned, lets go of it.
func (t *Table) mayGo(s Slot) bool {
	return !t.rows[s].pinned || t.cfg.LetGo == nil || t.cfg.LetGo(s)
}
