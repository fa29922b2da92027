package fence

import (
	"encoding/binary"
	"hash/maphash"
	"slices"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/tor/conn"
)

// A request to the fence names R_Keys. The fence executes it only for a client that may write under these R_Keys,
// because such a client could spoil the memory anyway. The client proves it by a connection over which the fence
// saw the server execute a WRITE or an atomic under each R_Key. Such a WRITE or atomic counts only if its PSN is
// newer than all before, because a server acknowledges a repeated request without a look at its R_Key, and only if
// the acknowledgement can belong to no other request. PSNs are counted from the newest one that the server has answered:
// a client may send requests with any PSNs, which the server need not execute.
//
// The server may also have executed requests that the fence has not seen: they passed before it started, or crossed in the
// kernel. So a connection shows nothing until the server's count of messages (MSN) has risen from one answer to another.
// The request by which it rose was new to the server, and the fence has seen it, so that what is behind it is new, too. The
// first of these answers comes settle= after the first request that the fence saw, when nothing unseen is under way any more. It is
// no answer to an atomic (counts).
//
// The asker must also receive answers: the first answer is a cookie, which the next request has to carry.

// right says that a client, given by its IP and MAC address and the VLANs that its frames are in (hdr.VIDs), may write under an R_Key
// of a server.
type right struct {
	client, server [4]byte
	mac            [6]byte
	vlans          uint32
	rkey           uint32
}

// keysEach is the number of R_Keys that are noted for a connection: the first ones under which it writes.
const keysEach = 4

// evidence holds the rights that a connection has shown, and the state of the proof of the next one.
type evidence struct {
	seen    bool       // acked and ahead are valid: there was a request
	known   bool       // the server has answered something
	based   bool       // msn is valid
	fresh   bool       // the server has executed a request that the fence saw, and that was new to the server
	asking  bool       // the request with PSN psn, which would show the right of, has no answer yet
	acked   uint32     // the newest PSN that the server has answered; before it has, the PSN before the first request seen
	ahead   uint32     // number of PSNs behind acked that requests had, or may have taken
	msn     uint32     // number of messages that the server had executed when it last answered something else than an atomic
	atomics uint16     // number of answers to atomics since then
	from    clock.Time // from then on nothing is under way that the fence has not seen
	psn     uint32
	of      right
	shown   [keysEach]right
	n       int
}

// witness watches the connections of one worker.
type witness struct {
	conns *conn.Table
	rows  []evidence
	held  *held
	// missed is when the breath began in which frames were found to have crossed unseen, until a later breath sees a frame; else
	// 0. At time from they are not under way any more.
	missed, from clock.Time
}

const witnessed = 4096 // connections

func newWitness(env graph.Env, h *held) (*witness, error) {
	w := &witness{rows: make([]evidence, witnessed), held: h}
	var err error
	w.conns, err = conn.New(conn.Config{Rows: witnessed, Infer: true, GuardMAC: true, Seed: env.Seed, OnRemove: func(s conn.Slot) { w.forget(s) }})
	return w, err
}

// forget drops the rights that a connection has shown.
func (w *witness) forget(s conn.Slot) {
	e := &w.rows[s]
	if e.n > 0 {
		w.held.disown(e.shown[:e.n])
	}
	*e = evidence{}
}

// miss takes note that frames have crossed unseen: the server may have executed requests that the fence does not know of.
// now is when the breath began, and these may have crossed later.
func (w *witness) miss(now clock.Time) { w.missed = now }

// of returns the evidence of the connection in slot s. It has no fresh request if frames have crossed unseen since.
func (w *witness) of(s conn.Slot) *evidence {
	e := &w.rows[s]
	if e.from < w.from {
		e.from, e.fresh, e.based, e.asking, e.atomics = w.from, false, false, false, 0
	}
	return e
}

// see takes note of a frame of a reliable connection, or of a datagram of the connection manager.
func (w *witness) see(now clock.Time, p []byte, f *hdr.Frame, fromClients bool) {
	ends, ok := conn.EndsOf(p, f)
	if !ok {
		return
	}
	if w.missed != 0 && w.missed != now {
		w.missed, w.from = 0, now.Add(time.Duration(w.held.settle.Load()))
	}
	switch {
	case f.Op.Transport() == hdr.UD:
		if _, ok := f.CMOf(p); ok && hdr.GoodICRC(p, f) {
			w.conns.CM(now, &ends, p, f)
		}
	case f.Op.Has(hdr.IsRequest):
		s, event := w.conns.Request(now, &ends, p, f)
		if s >= 0 && event != conn.Reverse && fromClients {
			w.request(now, s, p, f)
		}
	default:
		s, event := w.conns.Response(now, &ends, p, f)
		switch {
		case s < 0 || fromClients || event == conn.Reverse:
		case event == conn.Known || event == conn.IsClosing:
			if w.missed == 0 {
				w.response(now, s, p, f)
			}
		case event == conn.Unpaired:
			w.forget(s)
		}
	}
}

const (
	mask = hdr.PSNMask
	// half is half of all PSNs. To the server, a PSN that is farther ahead of what it has executed is an old one.
	half = 1 << 23
	// unanswered is how many PSNs requests may have had before the first answer. If there are more, the connection shows no right.
	unanswered = 1 << 22
)

func (w *witness) request(now clock.Time, s conn.Slot, p []byte, f *hdr.Frame) {
	e := w.of(s)
	psn, takes := f.BTHOf(p).PSN(), uint32(1)
	if f.Op.Has(hdr.IsRead) {
		const leastMTU = 256 // the least path MTU: an answer takes no more PSNs than with this one
		takes += (max(f.RETHOf(p).DMALength(), 1) - 1) / leastMTU
	}
	if !e.seen {
		e.seen, e.acked = true, (psn-1)&mask
		if w.conns.Row(s).Learnt != conn.Managed { // else the fence has seen all of the connection
			e.from = now.Add(time.Duration(w.held.settle.Load()))
		}
	}
	at := (psn - e.acked - 1) & mask // number of PSNs between acked and psn
	if e.asking && (at >= half || at <= (e.psn-e.acked-1)&mask) {
		e.asking = false // two requests have this PSN: it is not known which one is acknowledged
	}
	if at >= half {
		return
	}
	fresh := e.fresh && at >= e.ahead
	e.ahead = max(e.ahead, at+takes)
	if !fresh || e.asking || e.n == keysEach {
		return
	}
	r := right{client: [4]byte(p[f.L3+12:]), server: [4]byte(p[f.L3+16:]), mac: [6]byte(p[6:]), vlans: hdr.VIDs(p, f.Tags)}
	switch {
	case f.Op.Has(hdr.IsWrite) && f.Op.Info().Ext&hdr.HasRETH != 0:
		if h := f.RETHOf(p); h.DMALength() > 0 { // a server does not check the R_Key of a WRITE of no bytes
			r.rkey = h.RKey()
		}
	case f.Op.Has(hdr.IsAtomic):
		at := int(f.BTH) + hdr.BTHLen
		r.rkey = hdr.AtomicETH(p[at : at+hdr.AtomicETHLen]).RKey()
	}
	if r.rkey == 0 || slices.Contains(e.shown[:e.n], r) || !hdr.GoodICRC(p, f) {
		return
	}
	e.asking, e.psn, e.of = true, psn, r
}

func (w *witness) response(now clock.Time, s conn.Slot, p []byte, f *hdr.Frame) {
	e := w.of(s)
	psn := f.BTHOf(p).PSN()
	if f.Op.Info().Ext&hdr.HasAETH != 0 && f.AETHOf(p).Syndrome()&0x60 != 0 {
		e.asking = false // refused, or to be repeated: a later request may show the right
		return
	}
	by := (psn - e.acked) & mask
	switch {
	case !e.seen || !e.known && e.ahead > unanswered:
		return // nobody knows which PSNs requests have had
	case !e.known && by >= half:
		e.ahead += mask + 1 - by
		by = 0
	case by >= half: // an old one
		return
	}
	reached := e.asking && by >= (e.psn-e.acked)&mask
	e.known, e.acked, e.ahead = true, psn, e.ahead-min(e.ahead, by)
	if !e.fresh && now >= e.from && f.Op.Info().Ext&hdr.HasAETH != 0 {
		e.counts(f.AETHOf(p).MSN(), f.Op == hdr.AtomicAck, by)
	}
	if reached {
		e.asking = false
		e.shown[e.n] = e.of
		e.n++
		w.held.own(e.of)
	}
}

// mostStored is the largest number of READs and atomics whose answers a server remembers: responder resources are 8 bits (IBTA 12.6.6).
const mostStored = 255

// counts notes that an answer, by PSNs behind the one before, has the MSN msn. atomic says that it is the answer to an atomic. A server may repeat
// that as it was, with the MSN of then (Linux rxe before 6.0). So it shows only that the server has executed something if
// the MSN is beyond that of another answer, or if more such answers than a server remembers came in a row, with PSNs that cannot have come around.
func (e *evidence) counts(msn uint32, atomic bool, by uint32) {
	e.fresh = e.based && msn != e.msn && (msn-e.msn)&mask < half // an MSN has as many bits as a PSN
	switch {
	case !atomic:
		e.msn, e.based, e.atomics = msn, true, 0
	case by == 0 || by > half/(mostStored+1):
		e.atomics = 1
	default:
		e.atomics++
		e.fresh = e.fresh || e.atomics > mostStored
	}
}

// own counts one more connection that shows right r; disown counts one less for each right.
func (h *held) own(r right) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.rights[r]++
}

func (h *held) disown(all []right) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range all {
		if h.rights[r]--; h.rights[r] <= 0 {
			delete(h.rights, r)
		}
	}
}

// owns reports whether the client of r may write under all of keys; it is false for no keys.
func (h *held) owns(r right, keys []uint32) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r.rkey = range keys {
		if h.rights[r] == 0 {
			return false
		}
	}
	return len(keys) > 0
}

// cookieAge is the shortest time for which a cookie is valid; the longest is twice as long.
const cookieAge = 8 * time.Second

// cookie returns the cookie that asker's request about an entry must carry in the current period of
// length cookieAge (ago 0), or in the period before (ago 1). It is never 0.
func (h *held) cookie(asker right, about entry, now clock.Time, ago int64) uint64 {
	var m maphash.Hash
	m.SetSeed(h.seed)
	_, _ = m.Write(asker.client[:])
	_, _ = m.Write(asker.mac[:])
	_, _ = m.Write(binary.BigEndian.AppendUint32(nil, asker.vlans))
	_, _ = m.Write(asker.server[:])
	client := about.client.As4()
	_, _ = m.Write(client[:])
	_, _ = m.Write(binary.BigEndian.AppendUint32(nil, about.qpn))
	_, _ = m.Write(binary.BigEndian.AppendUint64(nil, uint64(int64(now)/int64(cookieAge)-ago)))
	return m.Sum64() | 1 // 0 means no cookie
}
