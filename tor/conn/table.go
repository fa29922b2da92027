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
	// Infer makes the table learn connections that nobody announced, from their PSNs.
	Infer bool
	// SamePort says that both directions of a connection use the same UDP source port. A
	// response that fits several connections then belongs to the one whose requests have its
	// port; nothing else tells connections with equal PSNs apart. ConnectX uses one port
	// in both directions, and so does Linux where the flow label is derived
	// from both queue pairs.
	SamePort bool
	// Settle is the longest time that a server takes to answer a request, if it answers at all
	// (0 = 1 ms; AtOnce: three responses are enough). A client is paired by its PSNs only if it
	// goes on sending requests for twice as long, and only the candidate is answered
	// meanwhile, because an unseen connection may use the same PSNs.
	Settle clock.Duration
	// GuardMAC binds a queue pair to the source MAC address that it was
	// learnt with, and not to the IP address alone.
	GuardMAC bool
	// Window is the most PSNs that a requester has in flight; 0 = 4096.
	Window uint32
	// Idle is the time after which a quiet connection is forgotten (0 = 10 minutes; rows from
	// configuration are kept). HalfOpen is the same for a half-open row (0 = 1 minute), Close
	// for a connection with an unconfirmed disconnect (0 = 5 s). Reuse is how long an inferred
	// connection must be quiet before another peer may take its queue pair (0 = 1 s).
	Idle, HalfOpen, Close, Reuse clock.Duration
	// TimeWait is how long the table remembers an ended connection, so that it recognizes later
	// datagrams of its ends (0 = 65 s: Linux sends a DisconnectRequest up to
	// 16 times, 4.3 s apart). The table remembers as many ended connections as it has rows.
	TimeWait clock.Duration
	// Yield is how long a merely inferred connection must be quiet before it makes room for
	// a new one in a full table (0 = 5 s). A pinned row is removed, for room or because it was
	// quiet for Idle, only if LetGo returns true for it. With LetGo nil, pinned rows make no room.
	// LetGo must not call methods that change the table.
	Yield clock.Duration
	LetGo func(Slot) bool
	// Seed keys the hash.
	Seed uint64
	// OnRemove, if not nil, is called before a row is removed; the row is
	// still readable. OnRemove must not call methods that change the table.
	OnRemove func(Slot)
}

// AtOnce is a Config.Settle for captures that are shorter than pairing takes. With it, the table may
// pair wrongly if several queue pairs begin with the same PSN and a frame is lost.
const AtOnce clock.Duration = -1

const (
	maxRows   = 1 << 20 // keeps a reference in 31 bits
	maxWindow = 1 << 22 // PSNs, so that what is ahead can be told from what is behind
)

// Table is a bounded set of connections. It is not for concurrent use (but see Plain).
//
// Table has four parts: the rows and the indexes of their ends (store), the half-open rows and what
// PSNs say about whose requests a response answers (byPSN), the order in which rows may have to make
// room (byQuiet), and the connections that have ended (timeWait). The methods of Table apply a frame or
// a datagram to all four.
type Table struct {
	store
	byPSN
	byQuiet
	timeWait
	free      []Slot
	cursor    int // the next row that Sweep looks at
	displaced uint64
}

// store holds the rows, and finds them by the names of their ends.
type store struct {
	cfg  Config
	rows []Row
	top  int   // see Top
	qps  names // ends of rows by address and QPN
	ids  names // ends of managed rows by address and communication ID
}

// ErrFull is returned when a table has no room.
var ErrFull = errors.New("connection table is full")

// New makes a table. It returns an error if a value of c is out of range.
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

// Row returns the row in slot s, which must be in use. The pointer is valid until the row is removed.
func (t *store) Row(s Slot) *Row { return &t.rows[s] }

// Used reports whether slot s holds a row.
func (t *store) Used(s Slot) bool { return s >= 0 && int(s) < len(t.rows) && t.rows[s].used }

// Top returns the lowest slot such that neither it nor a later slot ever held a row; Cap if every slot did.
func (t *store) Top() int { return t.top }

// Len returns the number of rows in use, Cap the largest possible number.
func (t *Table) Len() int { return len(t.rows) - len(t.free) }
func (t *Table) Cap() int { return len(t.rows) }

// Bytes returns the size of the table's memory in bytes.
func (t *Table) Bytes() int {
	return len(t.rows)*int(unsafe.Sizeof(Row{})+unsafe.Sizeof(past{})+uintptr(1+numClasses)*unsafe.Sizeof(Slot(0))) + t.pastIDs.Bytes() + t.qps.Bytes() + t.ids.Bytes() + len(t.pairs)*int(unsafe.Sizeof(bucket{})) + len(t.lacks)*8 +
		len(t.notes)*int(unsafe.Sizeof(notes{})+unsafe.Sizeof(voice{})+8)
}

// Find returns the row with an end at (a, qpn), and whether this end is the client.
// It returns NoSlot if there is no such row.
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

// row returns what find returns, and the row; noRef and nil if there is none.
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

// Elsewhere is no slot: Easily returns it for a frame that it cannot handle.
const Elsewhere Slot = -2

// Easily does what Plain does, faster, for a frame that is hdr.Frame.Plain. It returns the slot of the frame's
// connection, or NoSlot if no row has the queue pair that the frame goes to. It returns Elsewhere, and
// changes nothing, if the caller has to ask Plain. fl holds the flags of the frame's opcode.
// h is what Ahead returns for the frame.
func (t *Table) Easily(now clock.Time, ends *Ends, b []byte, fl hdr.OpFlags, owner uint16, h uint32) Slot {
	c := (*[hdr.PlainBTH + hdr.BTHLen]byte)(b)
	qpn := binary.BigEndian.Uint32(c[hdr.PlainBTH+4:]) & 0xFFFFFF
	x, dst := &t.qps, ends.Dst.lo
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

// Lookout finds where Easily looks for the row of a frame. It has only what never changes in a table, so that
// it may be used while another worker changes the table.
type Lookout struct{ names }

// Lookout returns the Lookout of a table.
func (t *store) Lookout() Lookout { return Lookout{t.qps} }

// Ahead returns the hash of the queue pair to which frame b goes, which is hdr.Frame.Plain and has these ends.
func (x *names) Ahead(ends *Ends, b []byte) uint32 {
	return x.hash4(ends.Dst.lo, binary.BigEndian.Uint32((*[hdr.PlainBTH + hdr.BTHLen]byte)(b)[hdr.PlainBTH+4:])&0xFFFFFF)
}

// Ahead does what Lookout.Ahead does.
func (t *store) Ahead(ends *Ends, b []byte) uint32 { return t.qps.Ahead(ends, b) }

// At returns the address of what Easily reads first for a frame with hash h, for nf/prefetch.
func (x *Lookout) At(h uint32) uintptr { return uintptr(unsafe.Pointer(&x.E[x.Start(h)])) }

// findID returns the end at address a whose communication ID is id, or noRef.
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

// reclaim is the largest number of rows that one search for room looks at, in each of its
// steps.
const reclaim = 16

// alloc returns the slot of an empty row that is in no heap yet, or NoSlot if the table is full.
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

// Remove removes the row in slot s, if there is one, after a call of Config.OnRemove.
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
		// Other rows hold its queue pairs.
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

// Pin tells the table that the caller itself gives the requests to the row's server their PSNs.
// From this call on, PSNs neither confirm nor contradict the row's pairing.
func (t *Table) Pin(s Slot) {
	r := &t.rows[s]
	r.pinned = true
	t.useful(s)
	t.rewatch(r)
}

// Sweep looks at the next 64 rows, round robin, removes those whose time is up, and returns their
// number. A call about once per millisecond bounds how long a dead row stays.
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
