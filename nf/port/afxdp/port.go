package afxdp

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/internal/xsk"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/port/poll"
)

const (
	// minFrame is an Ethernet header: the kernel takes nothing shorter.
	minFrame = 14
	// maxIdle is the longest between two calls of Idle: until then an interface
	// that has gone may stay unnoticed.
	maxIdle = 50 * clock.Duration(1e6)
	// txWait is how long frames that the device refused stay before the next try.
	txWait = clock.Duration(1e6)
	// seenEvery is how often the guard is told that a worker is there.
	seenEvery = port.GuardFor / 64
	// maxUnsent is how many frames the kernel is told of at once: it sends many
	// faster than few.
	maxUnsent = 4 * packet.MaxBatch
	// hurryFor is how long after a sparse frame no full batch waits for another: while the
	// kernel sends many, the next one would have to wait.
	hurryFor = 100 * clock.Duration(1e6)
)

// Port is one queue of one interface. It implements port.Port,
// port.Bypasser, port.MultiWaiter, port.FilterSetter, port.Binder and
// port.Guarder.
type Port struct {
	name  string
	dev   *device
	queue int
	index uint16

	pool   *packet.Pool // chunks of the UMEM
	jumbo  *packet.Pool // frames of several chunks; nil: the MTU needs none
	umem   *xsk.UMEM
	shift  uint // log2 of the chunk size
	sock   *xsk.Socket
	posted int // chunks that the kernel may receive into, or has, and those of the backlog
	target int // how many of them there are to be
	max    int // longest frame that may be sent
	busy   bool

	clk      clock.Clock
	wall     clock.Clock // of the heartbeat: follows CLOCK_MONOTONIC
	monoOff  int64       // CLOCK_MONOTONIC less wall
	beaten   int64       // the last heartbeat
	seen     int64       // when the guard was told last that somebody is there
	beatWord *uint64
	missWord []*uint64 // this queue's, and those of queues without a port
	kernel   uint64    // their sum when last looked at, less missedBefore
	// missedBefore is their sum when the port was opened: an earlier process may have counted.
	missedBefore uint64
	stalls       uint64

	hurry   int64 // frames that were received before it are told at once
	unsent  int   // frames of full batches that the kernel has not been told of
	waiting int   // calls of Rx since the last of them
	down    bool  // the interface was, and frames in Tx wait for it

	backlog  *backlog
	touched  byte        // keeps touch from being optimised away
	part     *packet.Buf // a frame of which some chunks have come
	skipping bool        // the rest of a frame that was given up

	poll poll.Set

	rxPackets, rxBytes, rxDropped atomic.Uint64
	txPackets, txBytes, txDropped atomic.Uint64

	mu     sync.RWMutex // written by Close; what others than the worker call only reads, so that the worker never waits for them
	closed atomic.Bool
	final  port.Stats
}

var (
	_ port.Port         = (*Port)(nil)
	_ port.Bypasser     = (*Port)(nil)
	_ port.MultiWaiter  = (*Port)(nil)
	_ port.FilterSetter = (*Port)(nil)
	_ port.Binder       = (*Port)(nil)
	_ port.Guarder      = (*Port)(nil)
	_ poll.Idler        = (*Port)(nil)
	_ poll.Holder       = (*Port)(nil)
)

// Name implements port.Port.
func (p *Port) Name() string { return p.name }

// Pool implements port.Port.
func (p *Port) Pool() *packet.Pool { return p.pool }

// FD is the socket, to wait for it together with others; -1 when closed.
func (p *Port) FD() int {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.closed.Load() {
		return -1
	}
	return p.sock.FD
}

// Rx implements port.Port. It is also the heartbeat: while nobody calls it
// (or Wait), wanted frames cross in the kernel.
func (p *Port) Rx(b *packet.Batch) (int, error) {
	if p.closed.Load() {
		return 0, port.ErrClosed
	}
	if p.unsent > 0 {
		if p.waiting++; p.waiting > 1 {
			if err := p.kick(); err != nil {
				return 0, err
			}
		}
	}
	now := p.clk.Now()
	if p.overtaken(now) {
		return 0, nil
	}
	room := b.Room()
	n := p.sock.Rx.Ready(room + 1)
	// A frame of which a part is here already has its rest first.
	sorted := (n > room || p.backlog.n > 0) && p.part == nil && !p.skipping
	if sorted {
		p.absorb()
		p.backlog.next(room)
		n = len(p.backlog.out)
	} else if n = min(n, room); p.jumbo != nil {
		n = p.whole(n)
	}
	if n == 0 {
		if p.refill(); p.busy {
			p.sock.Nudge() // nobody else polls the device
		}
		return 0, nil
	}
	p.touch(n, sorted)
	got, bytes := 0, 0
	for i := range n {
		d := p.received(i, sorted)
		x := p.pool.At(uint32(d.Addr >> p.shift))
		x.SetFrame(int(d.Addr&(1<<p.shift-1)), int(d.Len))
		if d.Options&xsk.Continued != 0 || p.part != nil || p.skipping {
			if x = p.gather(x, d.Options&xsk.Continued == 0); x == nil {
				continue
			}
		}
		x.RxTime, x.Port, x.Queue = int64(now), p.index, uint16(p.queue)
		if d.Options&sparse != 0 {
			x.Sparse = true
		}
		b.Add(x)
		bytes += x.Len()
		got++
	}
	if !sorted {
		p.sock.Rx.Release(n)
	}
	p.posted -= n
	p.refill()
	p.rxPackets.Add(uint64(got))
	p.rxBytes.Add(uint64(bytes))
	return got, nil
}

// received is the i-th chunk that Rx hands over: of the ring, or of the backlog, sorted.
func (p *Port) received(i int, sorted bool) xsk.Desc {
	if sorted {
		return p.backlog.out[i]
	}
	return p.sock.Rx.Read(i)
}

// gather appends chunk x to the frame that is being put together, and returns
// the frame when x was its last chunk.
func (p *Port) gather(x *packet.Buf, last bool) *packet.Buf {
	if p.part == nil && !p.skipping && p.jumbo != nil {
		p.part = p.jumbo.Get()
	}
	switch {
	case p.part == nil:
		p.skipping = true
	default:
		at := p.part.Len()
		if whole, ok := p.part.Append(x.Len()); ok {
			copy(whole[at:], x.Bytes())
		} else {
			p.part.Put()
			p.part, p.skipping = nil, true
		}
	}
	x.Put()
	if !last {
		return nil
	}
	if p.skipping {
		p.skipping = false
		p.rxDropped.Add(1)
		return nil
	}
	whole := p.part
	p.part = nil
	return whole
}

// refill posts chunks for the kernel to receive into.
func (p *Port) refill() {
	want := p.target - p.posted
	if want < p.target/16 {
		return
	}
	if p.pool.Free() < want {
		p.reap()
	}
	want = p.sock.Fill.Room(min(want, p.pool.Free()))
	for i := range want {
		p.sock.Fill.Write(i, uint64(p.pool.Get().Slot())<<p.shift)
	}
	if want > 0 {
		p.sock.Fill.Submit(want)
		p.posted += want
	}
	if p.sock.Fill.NeedWakeup() {
		p.sock.Nudge()
	}
}

// reap takes back the chunks of frames that are out.
func (p *Port) reap() {
	n := p.sock.Completion.Ready(p.sock.Completion.Size())
	for i := range n {
		p.pool.At(uint32(p.sock.Completion.Read(i) >> p.shift)).Put()
	}
	if n > 0 {
		p.sock.Completion.Release(n)
	}
}

// Tx implements port.Port. Behind a full batch there is likely another one: the
// kernel is told of maxUnsent frames at once, and at the latest by the second
// call of Rx, or by Wait. While sparse flows have frames among others it is told of each.
func (p *Port) Tx(b *packet.Batch) (int, error) {
	if p.closed.Load() {
		return 0, port.ErrClosed
	}
	p.reap()
	if p.down {
		if err := p.kick(); err != nil {
			return 0, err
		}
	}
	if p.down {
		// They would come to where nobody waits for them any more.
		n := b.Len()
		b.PutAll()
		p.txDropped.Add(uint64(n))
		return n, nil
	}
	full := b.Full() && b.At(0).RxTime >= p.hurry
	taken, posted, frames, bytes, dropped := 0, 0, 0, 0, 0
	tx, chunk := p.sock.Tx, 1<<p.shift
	room := tx.Room(b.Len())
loop:
	for _, x := range b.Bufs() {
		n := x.Len()
		if x.Sparse {
			p.hurry, full = x.RxTime+int64(hurryFor), false
		}
		parts := 1
		if x.Pool() != p.pool {
			parts = (n + chunk - 1) / chunk
		}
		switch {
		case n < minFrame || n > p.max || parts > 1 && !p.sock.SG:
			x.Put()
			dropped++
			taken++
			continue
		case posted+parts > room:
			if room = tx.Room(posted + parts); posted+parts > room {
				break loop
			}
		}
		if x.Pool() == p.pool {
			tx.Write(posted, xsk.Desc{Addr: uint64(x.Slot())<<p.shift + uint64(x.Off()), Len: uint32(n)})
		} else {
			if p.pool.Free() < parts {
				break loop
			}
			rest := x.Bytes()
			for i := range parts {
				y := p.pool.Get()
				k := min(len(rest), chunk)
				y.SetBytes(rest[:k])
				rest = rest[k:]
				d := xsk.Desc{Addr: uint64(y.Slot())<<p.shift + uint64(y.Off()), Len: uint32(k)}
				if len(rest) > 0 {
					d.Options = xsk.Continued
				}
				tx.Write(posted+i, d)
			}
			x.Put()
		}
		posted += parts
		frames++
		bytes += n
		taken++
	}
	if posted > 0 {
		tx.Submit(posted)
		p.txPackets.Add(uint64(frames))
		p.txBytes.Add(uint64(bytes))
	}
	if dropped > 0 {
		p.txDropped.Add(uint64(dropped))
	}
	b.Shift(taken)
	if p.unsent += posted; full && b.Len() == 0 && p.unsent < maxUnsent {
		p.waiting = 0
		return taken, nil
	}
	return taken, p.kick()
}

// touch loads every cache line of the n frames that are ready. Another
// processor wrote them. Here the loads overlap; an app that reads frame after
// frame would wait for each, and so would the kernel, which copies them in Tx.
func (p *Port) touch(n int, sorted bool) {
	var sum byte
	for i := range n {
		d := p.received(i, sorted)
		f := p.umem.Mem[d.Addr:][:d.Len]
		for at := 0; at < len(f); at += 64 {
			sum += f[at]
		}
	}
	p.touched += sum
}

// kick has the kernel send until the ring is empty or the device is full.
func (p *Port) kick() error {
	p.unsent, p.down = 0, false
	for left := p.sock.Tx.Unconsumed(); left > 0; {
		if !p.sock.Tx.NeedWakeup() {
			return nil
		}
		e := p.sock.Kick()
		p.down = e == unix.ENETDOWN
		switch e {
		case 0, unix.EAGAIN, unix.EBUSY, unix.ENOBUFS, unix.ENETDOWN, unix.EINTR:
		case unix.ENXIO, unix.ENODEV, unix.EBADF:
			return p.gone()
		default:
			return e
		}
		was := left
		if left = p.sock.Tx.Unconsumed(); left == was {
			return nil // the device takes nothing: Rx, Tx and Wait try again
		}
		p.reap()
	}
	return nil
}

// gone says which interface is no more.
func (p *Port) gone() error {
	return fmt.Errorf("interface %s is gone: %w", p.dev.name, port.ErrClosed)
}

// overtaken keeps the heartbeat. It reports true when frames went past this
// process since the last one: what is still in the ring is older than they,
// is dropped, and this breath gets nothing, so that the apps hear first.
func (p *Port) overtaken(now clock.Time) bool {
	limit := p.dev.limit.Load()
	if limit == 0 {
		return false
	}
	if p.wall != p.clk {
		now = p.wall.Now()
	}
	mono := int64(now) + p.monoOff
	over := false
	if gap := mono - p.beaten; gap > limit/4*3 {
		k := p.kernelMissed()
		if p.beaten != 0 {
			p.stalls++
			over = k != p.kernel
		}
		p.kernel = k
		if over {
			p.purge()
		}
	}
	p.beaten = mono
	atomic.StoreUint64(p.beatWord, uint64(mono))
	if mono-p.seen > int64(seenEvery) {
		p.seen = mono
		if g := p.dev.bound.guard.Load(); g != nil {
			atomic.StoreUint64(g.Seen(), uint64(mono))
		}
	}
	return over
}

// purge drops what the kernel has received.
func (p *Port) purge() {
	p.purgeBacklog()
	n := p.sock.Rx.Ready(p.sock.Rx.Size())
	frames, within := 0, p.part != nil || p.skipping
	for i := range n {
		d := p.sock.Rx.Read(i)
		p.pool.At(uint32(d.Addr >> p.shift)).Put()
		if within = d.Options&xsk.Continued != 0; !within {
			frames++
		}
	}
	p.sock.Rx.Release(n)
	p.posted -= n
	if p.part != nil {
		p.part.Put()
		p.part = nil
	}
	p.skipping = within // its rest is still to come
	p.rxDropped.Add(uint64(frames))
	p.refill()
}

// purgeBacklog drops what of that is not handed over.
func (p *Port) purgeBacklog() {
	frames := 0
	for p.backlog.n > 0 {
		p.backlog.next(packet.MaxBatch)
		for _, d := range p.backlog.out {
			p.pool.At(uint32(d.Addr >> p.shift)).Put()
			if d.Options&xsk.Continued == 0 {
				frames++
			}
		}
		p.posted -= len(p.backlog.out)
	}
	p.rxDropped.Add(uint64(frames))
}

func (p *Port) kernelMissed() (sum uint64) {
	for _, w := range p.missWord {
		sum += atomic.LoadUint64(w)
	}
	return sum - p.missedBefore
}

// Missed implements port.Bypasser: frames that were wanted and crossed in the
// kernel, plus one for every pause of this worker of three quarters of the
// heartbeat's limit or more: the program may be about to count one.
func (p *Port) Missed() uint64 {
	if p.closed.Load() {
		return p.kernel + p.stalls
	}
	return p.kernelMissed() + p.stalls
}

// Wait implements port.Port. On a port of a pair it also wakes for the port
// of the same queue on the other interface: one worker has both.
func (p *Port) Wait(ctx context.Context, d clock.Duration) error {
	var twin [1]port.Port
	n := 0
	if o := p.dev.other; o != nil && p.queue < len(o.ports) {
		twin[0], n = o.ports[p.queue], 1
	}
	_, err := p.WaitAny(ctx, twin[:n], d)
	return err
}

// WaitAny implements port.MultiWaiter, together with ports that are files.
func (p *Port) WaitAny(ctx context.Context, others []port.Port, d clock.Duration) (bool, error) {
	return p.poll.Wait(ctx, p.clk, d, p, others)
}

// Idle implements poll.Idler: the heartbeat, frames that the device refused,
// and chunks to receive into.
func (p *Port) Idle() (clock.Duration, error) {
	d := maxIdle
	// A plan may close this port while the worker of the other interface waits
	// for both.
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.closed.Load() {
		return d, nil
	}
	p.overtaken(p.clk.Now())
	if limit := p.dev.limit.Load(); limit > 0 {
		d = min(d, clock.Duration(limit/4))
	}
	if p.sock.Tx.Unconsumed() == 0 {
		// poll(2) does not tell that the interface is gone, this does.
		if e := p.sock.Kick(); e == unix.ENXIO || e == unix.ENODEV {
			return 0, p.gone()
		}
	} else {
		if err := p.kick(); err != nil {
			return 0, err
		}
		if p.sock.Tx.Unconsumed() > 0 && !p.down {
			d = min(d, txWait)
		}
	}
	p.reap()
	if p.posted < p.target {
		p.refill()
	}
	return d, nil
}

// Holding implements poll.Holder.
func (p *Port) Holding() bool { return p.backlog.n > 0 }

// SetFilter implements port.FilterSetter: it holds for the whole interface,
// from one frame to the next.
func (p *Port) SetFilter(f port.Filter) error { return p.dev.setFilter(f) }

// Stats implements port.Port.
func (p *Port) Stats() port.Stats {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.closed.Load() {
		return p.final
	}
	return p.stats()
}

func (p *Port) stats() port.Stats {
	s := port.Stats{
		RxPackets: p.rxPackets.Load(), RxBytes: p.rxBytes.Load(), RxDropped: p.rxDropped.Load(),
		TxPackets: p.txPackets.Load(), TxBytes: p.txBytes.Load(), TxDropped: p.txDropped.Load(),
	}
	p.dev.passed(p.queue, &s)
	if k, err := p.sock.Statistics(); err == nil {
		s.RxDropped += k.Rx_dropped + k.Rx_ring_full
		s.TxDropped += k.Tx_invalid_descs
	}
	return s
}

// Close implements port.Port: it closes this queue's socket, so that its
// frames cross in the kernel; those that are on their way out are lost. Its
// pool stays as long as somebody holds one of its Bufs. With the last port of a
// Device the Device closes.
func (p *Port) Close() error {
	return errors.Join(p.shut(), p.dev.closed())
}

func (p *Port) shut() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed.Load() {
		return nil
	}
	p.final = p.stats()
	p.kernel = p.kernelMissed()
	p.closed.Store(true)
	if p.dev.limit.Load() > 0 {
		atomic.StoreUint64(p.beatWord, 0)
	}
	return p.sock.Close()
}
