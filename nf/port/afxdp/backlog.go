package afxdp

import (
	"encoding/binary"
	"math/rand/v2"

	"github.com/quillon/quillon/internal/xsk"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
)

const (
	// flowQueues is a power of two: as many as fq_codel has.
	flowQueues = 1024
	// maxParts is more chunks than the kernel makes of a frame (MAX_SKB_FRAGS + 1).
	maxParts = 32
	// sparse in the Options of what next found: the frame is all that its flow has, and
	// others have used up a turn. The kernel's own options are the lower bits.
	sparse = 1 << 31
)

// backlog holds what the kernel has received and the worker not taken, while that is more
// than a batch. It hands out the frames of sparse flows first, and those of the others in
// turns of a batch, as the queues of fq_codel do (RFC 8290, section 4); it drops nothing.
// Order within a flow is kept. Flows that meet in a queue share its turn.
//
// It has at most as many chunks as the ring has entries, since they count as posted.
type backlog struct {
	n       int // chunks
	entries []entry
	free    uint32
	queues  [flowQueues + 1]queue
	fresh   turns // queues that had nothing when their first frame came
	old     turns
	// quantum is the bytes of a turn: a batch of the longest frames. With turns of a frame each batch has
	// some of every flow, and who reads from many connections gets little from each: eight TCP connections
	// of iperf3 (3.12) lost a third of their throughput.
	quantum int32
	start   int32 // bytes of the first turn, ahead of others: a queue with no more is of sparse flows
	seed    uint64
	out     []xsk.Desc // what next found
}

// Entries and queues are numbered from 1 on: 0 is none.
type entry struct {
	desc xsk.Desc
	next uint32
}

type queue struct {
	first, last uint32 // entries
	deficit     int32  // bytes that it may still hand out in this turn
	next        uint16 // queue behind it in turns
	listed      bool   // is in turns
}

// turns is a list of queues.
type turns struct{ first, last uint16 }

// newBacklog makes one for as many chunks, and frames of up to longest bytes.
func newBacklog(chunks, longest int) *backlog {
	l := &backlog{
		entries: make([]entry, chunks+1), free: 1, quantum: packet.MaxBatch * int32(longest), start: packet.MaxBatch / 8 * int32(longest), seed: rand.Uint64(),
		out: make([]xsk.Desc, 0, packet.MaxBatch+maxParts),
	}
	for i := 1; i < chunks; i++ { // the last one's is 0
		l.entries[i].next = uint32(i + 1)
	}
	return l
}

// room is how many chunks it can take.
func (l *backlog) room() int { return len(l.entries) - 1 - l.n }

// put appends a chunk to a queue; all chunks of a frame follow each other there.
func (l *backlog) put(number uint16, d xsk.Desc) {
	i := l.free
	e, q := &l.entries[i], &l.queues[number]
	l.free = e.next
	e.desc, e.next = d, 0
	if q.first == 0 {
		q.first = i
		if !q.listed {
			q.deficit, q.listed = l.start, true
			l.append(&l.fresh, number)
		}
	} else {
		l.entries[q.last].next = i
	}
	q.last = i
	l.n++
}

func (l *backlog) append(t *turns, number uint16) {
	l.queues[number].next = 0
	if t.first == 0 {
		t.first = number
	} else {
		l.queues[t.last].next = number
	}
	t.last = number
}

// drop takes the first queue out of a list.
func (l *backlog) drop(t *turns) { t.first = l.queues[t.first].next }

// turn is the queue whose turn it is; 0: none has a chunk. A queue is looked at twice for
// a frame at the most, and once more when it has none left.
func (l *backlog) turn() uint16 {
	for {
		t := &l.fresh
		if t.first == 0 {
			t = &l.old
		}
		number := t.first
		if number == 0 {
			return 0
		}
		q := &l.queues[number]
		switch {
		case q.first == 0 && (t == &l.old || l.old.first == 0):
			q.listed = false
			l.drop(t)
		case q.first == 0:
			// The next frame of this flow is not fresh: others have had a turn by then.
			l.drop(t)
			l.append(&l.old, number)
		case q.deficit <= 0:
			q.deficit += l.quantum
			l.drop(t)
			l.append(&l.old, number)
		default:
			return number
		}
	}
}

// next sets out to the chunks of up to so many frames. When it has no more, no queue is
// listed.
func (l *backlog) next(frames int) {
	l.out = l.out[:0]
	for l.n > 0 && frames > 0 && len(l.out) < packet.MaxBatch {
		number := l.turn()
		q := &l.queues[number]
		lone := number == l.fresh.first && q.deficit == l.start // nothing of it has gone
		for more := true; more; {
			i := q.first
			e := &l.entries[i]
			l.out = append(l.out, e.desc)
			q.deficit -= int32(e.desc.Len)
			more = e.desc.Options&xsk.Continued != 0
			q.first = e.next
			e.next, l.free = l.free, i
			l.n--
		}
		if lone && q.first == 0 && l.queues[l.old.first].first != 0 { // queue 0 never has any
			l.out[len(l.out)-1].Options |= sparse
		}
		frames--
	}
	if l.n == 0 {
		l.turn()
	}
}

// queueOf is the queue of a frame, by what its first chunk begins with: addresses, protocol
// and ports; of RoCEv2, whose destination port is one, the destination queue pair, too. Of
// fragments and other protocols it is the addresses. Tags make no difference.
func (l *backlog) queueOf(b []byte) uint16 {
	if len(b) < hdr.EthernetLen {
		return 1
	}
	kind, at := hdr.Ethernet(b).EtherType(), hdr.EthernetLen
	for tags := 0; tags < hdr.MaxTags && (kind == hdr.EtherVLAN || kind == hdr.EtherQinQ) && len(b) >= at+hdr.VLANLen; tags++ {
		kind, at = hdr.VLAN(b[at:]).EtherType(), at+hdr.VLANLen
	}
	h, ip := l.seed, b[at:]
	proto, upper := uint8(0), 0 // where ports are
	switch {
	case kind == hdr.EtherIPv4 && len(ip) >= hdr.IPv4Len:
		h = hdr.Fold(h, le.Uint64(ip[12:]))
		v4 := hdr.IPv4(ip)
		proto = v4.Protocol()
		if !v4.IsFragment() {
			upper = v4.HeaderLen()
		}
	case kind == hdr.EtherIPv6 && len(ip) >= hdr.IPv6Len:
		for i := 8; i < hdr.IPv6Len; i += 8 {
			h = hdr.Fold(h, le.Uint64(ip[i:]))
		}
		proto, upper = hdr.IPv6(ip).NextHeader(), hdr.IPv6Len
	default:
		h = hdr.Fold(hdr.Fold(h, le.Uint64(b)), uint64(le.Uint32(b[8:])))
	}
	last := uint64(proto) << 32
	if upper > 0 && len(ip) >= upper+4 && (proto == hdr.ProtoTCP || proto == hdr.ProtoUDP) {
		u := ip[upper:]
		last |= uint64(le.Uint32(u))
		if proto == hdr.ProtoUDP && hdr.UDP(u).DstPort() == hdr.RoCEv2Port && len(u) >= hdr.UDPLen+hdr.BTHLen {
			last |= uint64(hdr.BTH(u[hdr.UDPLen:]).DestQP()) << 40
		}
	}
	h = hdr.Fold(h, last)
	return uint16(h>>32)&(flowQueues-1) + 1
}

var le = binary.LittleEndian

// absorb moves what the kernel has received into the backlog, as far as whole frames.
func (p *Port) absorb() {
	l := p.backlog
	n := p.whole(p.sock.Rx.Ready(min(p.sock.Rx.Size(), l.room())))
	within := false
	var number uint16
	for at := 0; at < n; at += packet.MaxBatch {
		end := min(n, at+packet.MaxBatch)
		var sum byte
		for i := at; i < end; i++ { // as touch does
			sum += p.umem.Mem[p.sock.Rx.Read(i).Addr]
		}
		p.touched += sum
		for i := at; i < end; i++ {
			d := p.sock.Rx.Read(i)
			if !within {
				number = l.queueOf(p.umem.Mem[d.Addr:][:d.Len])
			}
			l.put(number, d)
			within = d.Options&xsk.Continued != 0
		}
	}
	p.sock.Rx.Release(n)
}

// whole is how many of the n entries that are ready are of frames that end among them; n
// when none does.
func (p *Port) whole(n int) int {
	if p.jumbo == nil {
		return n
	}
	for k := n; k > 0; k-- {
		if p.sock.Rx.Read(k-1).Options&xsk.Continued == 0 {
			return k
		}
	}
	return n
}
