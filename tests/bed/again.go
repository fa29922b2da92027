package bed

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/rack/rnic"
)

// freed are the numbers of a session's queue pairs that are gone.
type freed struct {
	at        clock.Time
	client    int
	nic       int // the server's
	near, far uint32
	told      bool // by the connection manager
}

// free takes the queue pairs of a session's life that is over away, where their numbers may come back.
func (p *play) free(q *queue, now clock.Time) {
	session := q.Client*len(p.w.Queues) + q.number
	e := &p.conns[session]
	if !p.w.Recycle || q.Again != [2]bool{} || e.client == nil {
		return
	}
	// The server's end goes when the disconnect's datagrams have passed, and so does the client's where the server asked for it.
	at := now.Add(2 * handshake)
	p.freed = append(p.freed, freed{at, q.Client, p.w.nic(q.Domain), e.client.QPN, e.server.QPN, p.managed(q)})
	p.goes = append(p.goes, going{at, e.server})
	if p.serverAsks {
		p.goes = append(p.goes, going{at, e.client})
	} else {
		e.client.Destroy()
	}
	e.client, e.server, p.serverAsks = nil, nil, false
}

// going is a queue pair that will be taken away.
type going struct {
	at clock.Time
	q  *rnic.QP
}

// takeAway takes queue pairs away whose time has come.
func takeAway(p *play, now clock.Time) (n int) {
	for len(p.goes) > 0 && p.goes[0].at <= now {
		p.goes[0].q.Destroy()
		p.goes = p.goes[1:]
		n++
	}
	return n
}

// recycle gives a connection that begins the numbers of queue pairs that are gone: the newest.
func (p *play) recycle(q *queue, l *Link, now clock.Time) {
	if !p.w.Recycle || l.Near != nil || l.Far != nil {
		return
	}
	may := func(f *freed) bool {
		return f.told && p.managed(q) && f.at < now || f.at.Add(p.w.Alive) <= now
	}
	for i := len(p.freed) - 1; i >= 0; i-- {
		f := &p.freed[i]
		if !may(f) {
			continue
		}
		if l.FarQPN == 0 && f.far != 0 && f.nic == p.w.nic(q.Domain) {
			l.FarQPN, f.far = f.far, 0
			p.harm[q.number]++ // a late frame of the connection before may be far ahead
		}
		if l.NearQPN == 0 && f.near != 0 && f.client == q.Client {
			l.NearQPN, f.near = f.near, 0
		}
	}
}

// firstBack is the first number of work requests that are no session's steps.
const firstBack = 1 << 40

// backs are the server's requests to clients.
type backs struct {
	regions map[int]*rnic.MR // of clients' memories, by session
	all     []*backing
	next    []int // by session
}

// backing is a request of the server's to a client.
type backing struct {
	Back
	queue, life int
	far         *rnic.QP
	posted      clock.Time
	done        clock.Time
	status      rnic.Status
	open        bool
	data        []byte
	at          int // in the client's memory
}

const backSize = 64 << 10

// mayAsk has the ends' settings allow the server's requests.
func mayAsk(q *queue, near, far *rnic.Conn) {
	if len(q.Back) > 0 {
		near.MaxDestRdAtomic = max(near.MaxDestRdAtomic, 1)
		far.MaxRdAtomic = 1
	}
}

// mayBeAsked posts receives at the client's end, and registers its memory.
func mayBeAsked(p *play, q *queue) error {
	if len(q.Back) == 0 {
		return nil
	}
	if p.back.regions == nil {
		p.back.regions, p.back.next = map[int]*rnic.MR{}, make([]int, len(p.queues))
	}
	if p.back.regions[q.number] == nil {
		m, err := p.clients[q.Client].PD.RegMR(make([]byte, backSize), 0x40000, All|rnic.LocalWrite)
		if err != nil {
			return err
		}
		p.back.regions[q.number] = m
	}
	for range 64 {
		if q.qp.PostRecv(&rnic.RecvWR{ID: firstBack, Buf: make([]byte, 4096)}) != nil {
			break
		}
	}
	return nil
}

// ask posts what the server asks now.
func (p *play) ask(now clock.Time) (n int) {
	for i, q := range p.queues {
		for p.back.next != nil && p.back.next[i] < len(q.Back) && p.start.Add(q.Back[p.back.next[i]].At) <= now {
			x := q.Back[p.back.next[i]]
			p.back.next[i]++
			n++
			if q.qp == nil || q.qp.State() != rnic.StateReady || q.far.State() != rnic.StateReady || q.done || q.at > now && p.managed(q) {
				continue
			}
			m := p.back.regions[i]
			b := &backing{Back: x, queue: i, life: q.life, far: q.far, posted: now, done: clock.Never, open: true, at: 64 + 2048*(p.back.next[i]-1)}
			b.data = make([]byte, max(x.Length, 8))
			for k := range b.data {
				b.data[k] = byte(len(p.back.all)*7 + k)
			}
			w := rnic.SendWR{ID: firstBack + uint64(len(p.back.all)), Op: x.Op, SGL: [][]byte{b.data}, RemoteAddr: m.VA + uint64(b.at), RKey: m.RKey, Signaled: true, Swap: 1}
			if x.Op == rnic.OpFetchAdd {
				w.RemoteAddr, w.SGL = m.VA, [][]byte{make([]byte, 8)}
			} else if x.Op == rnic.OpRead {
				clear(b.data)
			}
			p.back.all = append(p.back.all, b)
			if err := q.far.PostSend(&w); err != nil {
				b.open = false
			}
		}
	}
	return n
}

// asksAt is when the server asks next.
func asksAt(p *play) clock.Time {
	at := clock.Never
	for i, q := range p.queues {
		if p.back.next != nil && p.back.next[i] < len(q.Back) {
			at = min(at, p.start.Add(q.Back[p.back.next[i]].At))
		}
	}
	return at
}

// asking reports whether a request of the server's has no answer yet over a connection that is well.
func (p *play) asking() bool {
	return slices.ContainsFunc(p.back.all, func(b *backing) bool {
		q := p.queues[b.queue]
		return b.open && b.life == q.life && q.qp != nil && q.qp.State() == rnic.StateReady && b.far.State() == rnic.StateReady && p.Clock.Now() < b.posted.Add(time.Second)
	})
}

// answered notes a completion of the server's requests.
func (p *play) answered(w *rnic.WC, now clock.Time) {
	b := p.back.all[w.ID-firstBack]
	b.open, b.done, b.status = false, now, w.Status
	if m := p.back.regions[b.queue]; w.Status == rnic.Success && b.Op == rnic.OpWrite && b.Length > 0 && string(m.Mem[b.at:b.at+b.Length]) != string(b.data) {
		b.status = rnic.RemoteOperationError
	}
}

// lawOfBacks: what the server asks of a client over a connection that is well is done.
func (p judge) lawOfBacks() error {
	for i, b := range p.back.all {
		q := p.queues[b.queue]
		switch {
		case b.open && b.life == q.life && q.qp != nil && q.qp.State() == rnic.StateReady && b.far.State() == rnic.StateReady && p.Clock.Now() >= b.posted.Add(500*time.Millisecond):
			return fmt.Errorf("session %d: the server's request %d (operation %d of %d bytes) has no answer after %v", b.queue, i, b.Op, b.Length, p.Clock.Now().Sub(b.posted))
		case b.open || b.status == rnic.Success || b.status == rnic.WRFlushError:
		case b.status == rnic.RetryExceededError && (b.life != q.life || q.done || q.qp == nil || q.qp.State() != rnic.StateReady || p.Struck() > 3 || len(p.w.Events) > 0):
		default:
			return fmt.Errorf("session %d: the server's request %d (operation %d of %d bytes): %v", b.queue, i, b.Op, b.Length, b.status)
		}
	}
	return nil
}

// askNothing has the server ask nothing of clients.
func (w *World) askNothing() {
	w.Queues = slices.Clone(w.Queues)
	for i := range w.Queues {
		w.Queues[i].Back = nil
	}
}

// fenced is a session that the fence shuts out, with its client or alone.
type fenced struct {
	session  int // -1: all of the client's
	client   int
	nic      int // the server's
	from, to clock.Time
	entry    string
	disk     [2]uint64 // as disk.shut
	over     bool
}

// fence has the fence in front of the box shut somebody out.
func (p *play) fence(e Event, now clock.Time) {
	q := p.queues[e.Region%len(p.queues)]
	if p.box.inst == nil || !p.w.Front || q.qp == nil || !p.server.ip.Is4() {
		return
	}
	f := fenced{session: q.number, client: q.Client, nic: p.w.nic(q.Domain), from: now, to: now.Add(e.For)}
	m, to := p.machines[q.Client], p.ends[q.end].ServerIP
	f.entry = fmt.Sprintf("%v-%v/%#x", m.ip, to, q.far.QPN)
	client, server := m.ip.As4(), to.As4()
	f.disk = [2]uint64{binary.LittleEndian.Uint64(append(client[:], server[:]...)), uint64(q.far.QPN)}
	if e.Value&1 == 1 {
		f.disk[1] = 0
		f.session, f.entry = -1, fmt.Sprintf("%v-%v", m.ip, to)
	}
	p.fenced = append(p.fenced, f)
	tellFence(p)
}

func tellFence(p *play) {
	var all []string
	for i := range p.fenced {
		if f := &p.fenced[i]; !f.over {
			all = append(all, f.entry)
		}
	}
	if len(all) == 0 {
		all = []string{"none"}
	}
	if p.box.inst != nil {
		p.cfg.Box.Front[0].Args = graph.Args{"fence": strings.Join(all, ";")} // of the next process, too
		_, err := p.box.inst.Set("fence", graph.Args{"fence": strings.Join(all, ";")})
		if err != nil {
			p.err = err
		}
	}
}

// unfence lifts what is over.
func (p *play) unfence(now clock.Time) (n int) {
	for i := range p.fenced {
		if f := &p.fenced[i]; !f.over && f.to <= now && p.box.inst != nil {
			f.over, f.to = true, now
			n++
		}
	}
	if n > 0 {
		tellFence(p)
	}
	return n
}

func unfencesAt(p *play) clock.Time {
	at := clock.Never
	if len(p.goes) > 0 {
		at = p.goes[0].at
	}
	for i := range p.fenced {
		if f := &p.fenced[i]; !f.over && p.box.inst != nil {
			at = min(at, f.to)
		}
	}
	return at
}

// shutOut is how many tries a client may have lost to the fence.
func (p judge) shutOut(r *record, timeout time.Duration) (n int) {
	for _, f := range p.fenced {
		if f.means(p, r) && f.from <= r.done && f.to >= r.posted {
			n += 2 + int(f.to.Sub(f.from)/timeout)
		}
	}
	return n
}

func (f *fenced) means(p judge, r *record) bool {
	return f.session == r.queue || f.session < 0 && f.client == p.w.Queues[r.queue].Client && f.nic == p.w.nic(p.w.Queues[r.queue].Domain)
}

// shutAgain reports whether r's client was shut out when the box's machine was started anew, since the disk still named it then:
// nobody lifts that, whether the entry was lifted before or not.
func (p judge) shutAgain(r *record) bool {
	return slices.ContainsFunc(p.fenced, func(f fenced) bool {
		return p.box.disk != nil && f.means(p, r) && p.box.disk.shut[f.disk] && slices.ContainsFunc(p.reboots, func(at clock.Time) bool { return f.to <= at && at <= r.done })
	})
}
