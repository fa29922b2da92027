package fence

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quillon/quillon/nf/arg"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/journal"
	"github.com/quillon/quillon/nf/port"
)

// entry names a client that is shut out, and from what.
type entry struct {
	client, server netip.Addr
	qpn            uint32 // of the server's queue pair; 0: all
	rkey           uint32 // 0: all
	vlans          uint32 // 1 + hdr.VIDs of the client's frames; 0: all
}

func (e entry) String() string {
	s := e.client.String() + "-" + e.server.String()
	if e.qpn != 0 {
		s += fmt.Sprintf("/%#x", e.qpn)
	}
	if e.rkey != 0 {
		s += fmt.Sprintf("@%#x", e.rkey)
	}
	return s
}

// parse reads what String writes.
func parse(text string) (e entry, err error) {
	ends, rkey, keyed := strings.Cut(text, "@")
	ends, qpn, one := strings.Cut(ends, "/")
	client, server, two := strings.Cut(ends, "-")
	bad := errors.New("want CLIENT-SERVER[/QP][@R_KEY], as in 10.0.0.1-10.0.0.9/0x11")
	number := func(s string, has bool, bits int) uint32 {
		v, e := strconv.ParseUint(s, 0, bits)
		if has && (e != nil || v == 0) {
			err = bad
		}
		return uint32(v)
	}
	e.qpn, e.rkey = number(qpn, one, 24), number(rkey, keyed, 32)
	for _, x := range []struct {
		text string
		to   *netip.Addr
	}{{client, &e.client}, {server, &e.server}} {
		a, bad4 := netip.ParseAddr(x.text)
		if *x.to = a; bad4 != nil || !a.Is4() {
			err = bad
		}
	}
	if !two {
		err = bad
	}
	if err == nil && !e.sound() {
		err = fmt.Errorf("%v: want the addresses of two hosts", e)
	}
	return e, err
}

// sound reports whether an entry names two different hosts and a possible queue pair.
func (e entry) sound() bool {
	return oneHost(e.client) && oneHost(e.server) && e.client != e.server && e.qpn <= 0xFFFFFF
}

// reaches reports whether an entry means frames in the VLANs with these IDs (hdr.VIDs).
func (e *entry) reaches(vlans uint32) bool { return e.vlans == 0 || e.vlans == vlans+1 }

func oneHost(a netip.Addr) bool {
	return a.Is4() && !a.IsUnspecified() && !a.IsMulticast() && a != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

// compare orders entries.
func (e entry) compare(o entry) int {
	return cmp.Or(e.client.Compare(o.client), e.server.Compare(o.server), cmp.Compare(e.qpn, o.qpn), cmp.Compare(e.rkey, o.rkey), cmp.Compare(e.vlans, o.vlans))
}

// entries is the value of the argument fence=.
type entries []entry

// UnmarshalText implements encoding.TextUnmarshaler.
func (l *entries) UnmarshalText(text []byte) error {
	*l = nil
	for s := range arg.Items(string(text), ";") {
		e, err := parse(s)
		if err != nil {
			return err
		}
		if !slices.Contains(*l, e) {
			*l = append(*l, e)
		}
	}
	if len(*l) > most {
		return fmt.Errorf("want at most %d", most)
	}
	return nil
}

// Sources of an entry.
const (
	byArgument = iota
	byRequest
	byBefore // left in the file by an earlier process, and not added since
	byApp    // another function of the graph
)

// most is the largest number of entries. From mostAsked entries on, none is added by request or by another
// function, because the rest is reserved for the operator.
const (
	most      = 1024
	mostAsked = most * 3 / 4
)

// held holds the entries in force; all workers share it. mu guards by, read, since, rights, all and kinds.
type held struct {
	mu  sync.Mutex
	by  map[entry]int
	mem []byte // nil: no memory outlives the process
	// disk has the used records of mem, in slots of the same numbers, so that they outlive a reboot; nil: there is none.
	disk journal.Journal
	now  atomic.Pointer[map[[4]byte][]entry]
	read bool // the entries that an earlier process left are in by
	// settle is the argument of that name.
	settle atomic.Int64
	// since is the time at which an entry was first requested by a client in this process.
	since map[entry]clock.Time
	// rights holds the rights of clients that may ask, each with the number of connections that show it.
	rights map[right]int
	seed   maphash.Seed // key of the cookies
	// all holds the keys of by in order, and kinds their values. Each change makes new slices.
	all   []entry
	kinds []int
}

func newHeld() *held {
	h := &held{by: map[entry]int{}, since: map[entry]clock.Time{}, rights: map[right]int{}, seed: maphash.MakeSeed()}
	h.publish()
	return h
}

// Memory: magic (8) | 1: all that is bound is in records (1) | 0, and records of 24 bytes: client, server (4 each) |
// queue pair | R_Key | 1: used (1) | 1: lifted, and its queue pair is bound (1) | 0 (2) | VLANs (4).
const (
	memMagic  = 0x31656E6366_6C71 // "qlfcne1" and a zero byte (little-endian)
	memHead   = 16
	recordLen = 24
	memLen    = memHead + most*recordLen
)

var errFormat = errors.New("fence: the state is of another version: lift the fences with the program that wrote it, or remove the file")

// open gets the memory that outlives the process, and the journal. After a reboot, or when the memory is empty, the entries of
// the journal are put into the memory.
func (h *held) open(env graph.Env) (err error) {
	if h.mem != nil || env.Asked {
		return nil
	}
	if env.Memory != nil {
		if h.mem, err = env.Memory(memLen); err != nil {
			return err
		}
	} else if env.Journal != nil {
		h.mem = make([]byte, memLen)
	}
	if h.mem == nil {
		return nil
	}
	m := binary.LittleEndian.Uint64(h.mem)
	if m != 0 && m != memMagic {
		return errFormat
	}
	if env.Journal == nil {
		return nil
	}
	h.disk, err = env.Journal(most, func(left []journal.Entry, lost bool) (map[int]journal.Entry, error) {
		for _, e := range left {
			if m == 0 || lost {
				h.write(entryOn(e), true)
			}
		}
		all := map[int]journal.Entry{}
		for i := range most {
			if h.record(i)[16] != 0 {
				all[i] = h.onDisk(i)
			}
		}
		return all, nil
	})
	return err
}

// begin takes over, once, the entries that a process before this one left in mem.
func (h *held) begin() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.read {
		return nil
	}
	h.read = true
	if h.mem == nil {
		return nil
	}
	le := binary.LittleEndian
	switch m := le.Uint64(h.mem); m {
	case 0:
		h.mem[8] = 1
		le.PutUint64(h.mem, memMagic)
	case memMagic:
	default:
		return errFormat
	}
	for i := range most {
		r := h.record(i)
		if r[16] == 0 {
			continue
		}
		e := entryIn(r)
		if _, ok := h.by[e]; !ok {
			h.by[e] = byBefore
		}
	}
	h.publish()
	return nil
}

// bound implements graph.Hooks.
func (h *held) bound() (known []port.QueuePair, more bool) {
	if h.mem == nil || binary.LittleEndian.Uint64(h.mem) != memMagic {
		return nil, false
	}
	for i := range most {
		r := h.record(i)
		if qpn := binary.LittleEndian.Uint32(r[8:]); qpn != 0 && r[16]|r[17] != 0 {
			known = append(known, port.QueuePair{Addr: netip.AddrFrom4([4]byte(r[4:])), QPN: qpn})
		}
	}
	return known, h.mem[8] == 0
}

func (h *held) record(i int) []byte { return h.mem[memHead+i*recordLen:][:recordLen] }

// put writes e to record b, but for its marks, and entryIn reads it.
func (e entry) put(b []byte) {
	c, s := e.client.As4(), e.server.As4()
	copy(b[:], c[:])
	copy(b[4:], s[:])
	binary.LittleEndian.PutUint32(b[8:], e.qpn)
	binary.LittleEndian.PutUint32(b[12:], e.rkey)
	binary.LittleEndian.PutUint32(b[20:], e.vlans)
}

func entryIn(b []byte) entry {
	le := binary.LittleEndian
	return entry{netip.AddrFrom4([4]byte(b)), netip.AddrFrom4([4]byte(b[4:])), le.Uint32(b[8:]), le.Uint32(b[12:]), le.Uint32(b[20:])}
}

// onDisk returns the journal's entry of record i.
func (h *held) onDisk(i int) journal.Entry {
	r := h.record(i)
	return journal.Entry{binary.LittleEndian.Uint64(r), binary.LittleEndian.Uint64(r[8:]), 1, uint64(binary.LittleEndian.Uint32(r[20:]))}
}

func entryOn(e journal.Entry) entry {
	var r [recordLen]byte
	binary.LittleEndian.PutUint64(r[:], e[0])
	binary.LittleEndian.PutUint64(r[8:], e[1])
	binary.LittleEndian.PutUint32(r[20:], uint32(e[3]))
	return entryIn(r[:])
}

// endures reports whether all of these entries, which are in force, outlive a reboot, or need not, as there is no journal.
func (h *held) endures(all ...entry) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.passing(func(e entry) bool { return slices.Contains(all, e) }) == 0
}

// notOnDisk returns how many entries would not outlive a reboot.
func (h *held) notOnDisk() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.passing(func(entry) bool { return true })
}

// passing counts those of the entries in force that do not outlive a reboot yet, and of which is is true. The caller holds mu.
func (h *held) passing(is func(entry) bool) (n int) {
	for i := 0; h.disk != nil && i < most; i++ {
		if r := h.record(i); r[16] != 0 && is(entryIn(r)) {
			if e := h.onDisk(i); !h.disk.Keep(i, &e) {
				n++
			}
		}
	}
	return n
}

// write puts an entry into mem and on the disk if in is true, else it removes the entry there.
func (h *held) write(e entry, in bool) {
	if h.mem == nil {
		return
	}
	free, lifted := -1, -1
	for i := range most {
		r := h.record(i)
		switch {
		case r[16]|r[17] != 0 && entryIn(r) == e:
			if in {
				r[16], r[17] = 1, 0
				h.keep(i)
			} else if r[16] != 0 {
				if e.qpn != 0 {
					r[17] = 1
				}
				r[16] = 0
				if h.disk != nil {
					h.disk.Drop(i)
				}
			}
			return
		case r[16] != 0:
		case r[17] != 0:
			lifted = i
		case free < 0:
			free = i
		}
	}
	if !in {
		return
	}
	if free < 0 {
		free, h.mem[8] = lifted, 0 // the kernel has its queue pair, which is on record no more
	}
	if free >= 0 {
		r := h.record(free)
		r[17] = 0
		e.put(r)
		r[16] = 1 // stored last, so that a used record is complete
		h.keep(free)
	}
}

func (h *held) keep(i int) {
	if h.disk != nil {
		e := h.onDisk(i)
		h.disk.Keep(i, &e)
	}
}

// publish makes the entries visible to the workers. The caller holds mu.
func (h *held) publish() {
	m := make(map[[4]byte][]entry, len(h.by))
	for e := range h.by {
		m[e.client.As4()] = append(m[e.client.As4()], e)
	}
	h.now.Store(&m)
	h.all, h.kinds = slices.Collect(maps.Keys(h.by)), nil
	slices.SortFunc(h.all, entry.compare)
	for _, e := range h.all {
		h.kinds = append(h.kinds, h.by[e])
	}
}

// add puts entries from source by in force. It returns false, and adds none, if there is no room for all.
func (h *held) add(by int, all ...entry) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	fresh, room := 0, most
	if by == byRequest || by == byApp {
		room = mostAsked
	}
	for _, e := range all {
		if _, ok := h.by[e]; !ok {
			fresh++
		}
	}
	if fresh > 0 && len(h.by)+fresh > room {
		return false
	}
	changed := false
	for _, e := range all {
		was, ok := h.by[e]
		if ok && (was == byArgument || was == by || by == byApp && was == byRequest) {
			continue
		}
		h.by[e], changed = by, true
		if !ok {
			h.write(e, true)
		}
	}
	if changed {
		h.publish()
	}
	return true
}

// shutOut adds, on request, an entry like e for each R_Key. It returns the time from which on no request that
// passed before is under way; ok is false if there is no room.
func (h *held) shutOut(e entry, keys []uint32, now clock.Time, settle time.Duration) (settled clock.Time, ok bool) {
	var of [hdr.FenceKeys]entry
	all := named(of[:0], e, keys)
	if !h.add(byRequest, all...) {
		return 0, false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range all {
		if _, ok := h.since[e]; !ok {
			h.since[e] = now
		}
		settled = max(settled, h.since[e].Add(settle))
	}
	return settled, true
}

// named appends an entry like e for each R_Key to all.
func named(all []entry, e entry, keys []uint32) []entry {
	for _, e.rkey = range keys {
		all = append(all, e)
	}
	return all
}

// lift removes entries, whoever made them.
func (h *held) lift(all ...entry) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range all {
		delete(h.by, e)
		delete(h.since, e)
		h.write(e, false)
	}
	h.publish()
}

// list returns all entries in order, and their sources. The caller must not change the slices.
func (h *held) list() (all []entry, by []int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.all, h.kinds
}

// Shut shuts out a client's requests to a server's queue pair (0: to all of them) in the VLANs with these IDs (hdr.VIDs), for
// another function of the graph (graph.Ctx.Shared). Requests that passed before may be under way for the time settle. ok is false if
// there is no room, if the arguments are no sound entry, or as long as the entry would not outlive a reboot.
func (h *held) Shut(client, server netip.Addr, qpn, vlans uint32) (settle time.Duration, ok bool) {
	if h.begin() != nil {
		return 0, false
	}
	e := entry{client, server, qpn, 0, vlans + 1}
	return time.Duration(h.settle.Load()), e.sound() && h.add(byApp, e) && h.endures(e)
}

// Lift removes an entry that Shut made in this process. An entry from another source stays.
func (h *held) Lift(client, server netip.Addr, qpn, vlans uint32) {
	e := entry{client, server, qpn, 0, vlans + 1}
	h.mu.Lock()
	by, ok := h.by[e]
	h.mu.Unlock()
	if ok && by == byApp {
		h.lift(e)
	}
}

// Shuts reports whether an entry without an R_Key shuts a client in the VLANs with these IDs out from a server's queue pair.
func (h *held) Shuts(client, server netip.Addr, qpn, vlans uint32) bool {
	if !client.Is4() || h.begin() != nil {
		return false
	}
	for _, e := range (*h.now.Load())[client.As4()] {
		if e.server == server && e.rkey == 0 && (e.qpn == 0 || e.qpn == qpn) && e.reaches(vlans) {
			return true
		}
	}
	return false
}
