package sim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/quillon/quillon/internal/rack/host"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
)

// Config describes a World.
type Config struct {
	Network Network // zero: Rack100G
	Seed    uint64
	// Slots is the size of the pool that all frames come from; 0 = 8192.
	Slots int
	// SlotSize is the size of a frame's slot; 0 = 2048.
	SlotSize int
}

// World is a rack in virtual time: machines on a switch, and perhaps a
// middlebox in the way to some of them.
type World struct {
	k        kernel
	net      Network
	seed     uint64
	pool     *packet.Pool
	machines []*Machine
	sw       swtch
	swID     uint32
	box      *Box
	calls    []func()
	callsID  uint32
	err      error
}

// Sources of random numbers, apart from each other by stream.
const (
	streamStall = 0x5157_0000_0000
	streamFault = 0xFA17_0000_0000
)

// Start is the clock at which a World begins: not zero, since apps may take
// that for "never".
const Start = Second

// New makes an empty rack.
func New(c Config) (*World, error) {
	c.Network = cmp.Or(c.Network, Rack100G())
	n := &c.Network
	if !(n.GbitPerSecond > 0 && n.GbitPerSecond <= 8000) || n.Propagation < 0 || n.Switch < 0 || n.Queue < 0 {
		return nil, errors.New("sim: a network needs a rate above 0 and at most 8000 Gb/s, and no negative times or queues")
	}
	c.Slots = cmp.Or(c.Slots, 8192)
	c.SlotSize = cmp.Or(c.SlotSize, 2048)
	pool, err := packet.NewPool(c.Slots, c.SlotSize, nil)
	if err != nil {
		return nil, fmt.Errorf("sim: %w", err)
	}
	w := &World{net: c.Network, seed: c.Seed, pool: pool}
	w.k.now = Start
	w.sw.w = w
	w.swID = w.k.add(&w.sw)
	w.callsID = w.k.add((*caller)(w))
	return w, nil
}

// Now is the virtual time.
func (w *World) Now() Time { return w.k.now }

// Events returns the number of events that have happened.
func (w *World) Events() uint64 { return w.k.fired }

// Pool returns the pool that all frames come from.
func (w *World) Pool() *packet.Pool { return w.pool }

func (w *World) newLink(stream uint64) link {
	n := &w.net
	per := Time(math.Round(8000 / n.GbitPerSecond))
	return link{
		perByte: per, delay: From(n.Propagation), bound: Time(n.Queue) * per,
		rng: rand.New(rand.NewPCG(w.seed, streamFault+stream)),
	}
}

// maxMachines is the number of machines for which a switch has ports.
const maxMachines = 1 << 12

// Attach adds a machine to the rack: a NIC and a cable to the switch. The caller
// gives the machine its endpoint by Drive.
func (w *World) Attach(name string, nic NIC) (*Machine, error) {
	i := len(w.machines)
	if i == maxMachines {
		return nil, fmt.Errorf("sim: a rack has room for %d machines", maxMachines)
	}
	if err := nic.check(); err != nil {
		return nil, err
	}
	m := &Machine{
		Name: name,
		MAC:  [6]byte{2, 0x51, 0, 0, byte(i >> 8), byte(i)},
		IP:   netip.AddrFrom4([4]byte{10, 1 + byte(i>>8), byte(i), 1}),
		w:    w, index: i, nic: nic.inTime(), alive: true, wakeAt: never,
		up: w.newLink(uint64(2 * i)), down: w.newLink(uint64(2*i + 1)),
		rng: rand.New(rand.NewPCG(w.seed, streamStall+uint64(i))),
	}
	m.port.m = m
	m.slots, m.reads = make([]slot, 1<<nic.SlotBits), make([]slot, reads)
	m.id = w.k.add(m)
	w.machines = append(w.machines, m)
	return m, nil
}

// At calls f at virtual time t, between two events.
func (w *World) At(t Time, f func()) {
	w.calls = append(w.calls, f)
	w.k.plan(t, w.callsID, 0, uint64(len(w.calls)-1), nil)
}

// caller fires what At was given.
type caller World

func (c *caller) fire(_ uint32, arg uint64, _ *packet.Buf) {
	f := c.calls[arg]
	c.calls[arg] = nil
	f()
}

// ErrLate is returned by Until when its time is over.
var ErrLate = errors.New("sim: virtual time is over")

// Run executes all events until virtual time t.
func (w *World) Run(t Time) error {
	for w.err == nil && w.k.next() <= t {
		w.k.step()
	}
	if w.err == nil {
		w.k.now = max(w.k.now, t)
	}
	return w.err
}

// Until runs until done returns true; it calls done every Microsecond of virtual time. It returns
// ErrLate at time limit, and ctx's error if ctx is done.
func (w *World) Until(ctx context.Context, done func() bool, limit Time) error {
	for !done() {
		if w.k.now >= limit {
			return ErrLate
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := w.Run(min(w.k.now+Microsecond, limit)); err != nil {
			return err
		}
	}
	return nil
}

// Steps runs until virtual time t, and calls progress, if not nil, a hundred times with the share of
// the time that has passed, 0 to 1.
func (w *World) Steps(ctx context.Context, t Time, progress func(done float64)) error {
	from := w.k.now
	const parts = 100
	for i := Time(1); i <= parts; i++ {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := w.Run(from + (t-from)*i/parts); err != nil {
			return err
		}
		if progress != nil {
			progress(float64(i) / parts)
		}
	}
	return nil
}

// Wake makes every machine look for work. The caller calls it after it has asked something of an
// application from outside the simulation.
func (w *World) Wake() {
	for _, m := range w.machines {
		m.wake(w.k.now)
	}
}

func (w *World) fail(err error) {
	if w.err == nil {
		w.err = err
	}
}

// Switched returns the number of frames that went through the switch, except those from and to machines
// that are set apart, and their bytes, with FCS. A frame that passes the middlebox counts once.
func (w *World) Switched() (frames, bytes uint64) { return w.sw.frames, w.sw.bytes }

// swtch forwards frames by destination address. The middlebox, if there is
// one, is in its pipeline.
type swtch struct {
	w             *World
	frames, bytes uint64
	unknown       uint64
	watch         func(b *packet.Buf) // sees every frame; nil: nobody does
}

// fire: a frame's last bit is in, from machine arg.
func (s *swtch) fire(_ uint32, arg uint64, b *packet.Buf) {
	w := s.w
	if s.watch != nil {
		s.watch(b)
	}
	p := b.Bytes()
	to := w.machineOf(p)
	if !w.machines[arg].apart && (to == nil || !to.apart) {
		s.frames++
		s.bytes += uint64(b.Len() + fcsLen)
	}
	if to == nil {
		s.flood(int(arg), b)
		return
	}
	if x := w.box; x != nil {
		if to.guarded {
			x.take(sideA, b)
			return
		}
		if w.machines[arg].guarded {
			x.take(sideB, b)
			return
		}
	}
	s.out(w.k.now+From(w.net.Switch), b)
}

// flood sends a broadcast or multicast frame to all machines but in. It drops a unicast frame, whose
// destination is unknown.
func (s *swtch) flood(in int, b *packet.Buf) {
	w := s.w
	if b.Len() < 14 || b.Bytes()[0]&1 == 0 {
		s.unknown++
		b.Put()
		return
	}
	for i, m := range w.machines {
		if i == in {
			continue
		}
		if c := w.pool.Get(); c != nil && c.SetBytes(b.Bytes()) {
			w.carry(&m.down, w.k.now+From(w.net.Switch), m.id, kindArrive, 0, c)
		}
	}
	b.Put()
}

// out queues a frame at the switch's port to its destination.
func (s *swtch) out(t Time, b *packet.Buf) {
	m := s.w.machineOf(b.Bytes())
	if m == nil {
		s.unknown++
		b.Put()
		return
	}
	s.w.carry(&m.down, t, m.id, kindArrive, 0, b)
}

// machineOf returns the machine that a frame is addressed to, or nil if there is none.
func (w *World) machineOf(p []byte) *Machine {
	if len(p) < 14 || p[0] != 2 || p[1] != 0x51 || p[2] != 0 || p[3] != 0 {
		return nil
	}
	if i := int(p[4])<<8 | int(p[5]); i < len(w.machines) {
		return w.machines[i]
	}
	return nil
}

// Port is a machine's side of its NIC. It implements port.Port.
type Port struct {
	m     *Machine
	in    *packet.Buf
	stats port.Stats
}

// Name implements port.Port.
func (p *Port) Name() string { return p.m.Name }

// Pool implements port.Port.
func (p *Port) Pool() *packet.Pool { return p.m.w.pool }

// Rx implements port.Port.
func (p *Port) Rx(b *packet.Batch) (int, error) {
	if p.in == nil || b.Full() {
		return 0, nil
	}
	p.in.RxTime = int64(p.m.w.k.now.Clock())
	b.Add(p.in)
	p.stats.RxPackets++
	p.stats.RxBytes += uint64(p.in.Len())
	p.in = nil
	return 1, nil
}

// Tx implements port.Port.
func (p *Port) Tx(b *packet.Batch) (int, error) {
	n := b.Len()
	for _, x := range b.Bufs() {
		p.stats.TxPackets++
		p.stats.TxBytes += uint64(x.Len())
		x.Meta = packet.Meta{}
		p.m.transmit(x)
	}
	b.Shift(n)
	return n, nil
}

// Wait implements port.Port: virtual time does not wait.
func (p *Port) Wait(ctx context.Context, _ clock.Duration) error { return ctx.Err() }

// Stats implements port.Port.
func (p *Port) Stats() port.Stats { return p.stats }

// Close implements port.Port.
func (p *Port) Close() error { return nil }

var (
	_ port.Port   = (*Port)(nil)
	_ host.Worker = (*host.Node)(nil)
)

// check returns an error if a value of the model is out of its range.
func (n *NIC) check() error {
	for _, d := range []time.Duration{n.Send, n.Receive, n.Respond, n.Complete, n.Message, n.QPMessage, n.HostRead, n.HostAtomic, n.DeviceAccess,
		n.HostOccupancy, n.DeviceOccupancy, n.DeviceWrite, n.HostUpdate, n.DeviceUpdate, n.AtomicInterval, n.SameRead, n.ContextMiss, n.Verb, n.Quantum} {
		if d < 0 || d > time.Second {
			return fmt.Errorf("sim: a NIC's times are 0 to 1 s, not %v", d)
		}
	}
	sum := 0.0
	for _, x := range n.Stall {
		if !(x >= 0) {
			sum = 2
		}
		sum += x
	}
	switch {
	case n.SlotBits < 0 || n.SlotBits > 20:
		return fmt.Errorf("sim: the atomic unit's slots are chosen by 0 to 20 bits, not %d", n.SlotBits)
	case n.Contexts < 0 || n.Contexts > 1<<16:
		return fmt.Errorf("sim: a NIC holds 0 to 65536 contexts, not %d", n.Contexts)
	case sum > 1:
		return errors.New("sim: the shares of stalled requests are 0 to 1, and 1 together at most")
	case n.Outstanding < 0 || n.Outstanding > 128:
		return fmt.Errorf("sim: outstanding READs and atomics are 0 to 128, not %d", n.Outstanding)
	case n.Threads < 0 || n.Threads > 0 && n.Quantum == 0:
		return errors.New("sim: a host that runs a number of threads needs a quantum")
	}
	return nil
}
