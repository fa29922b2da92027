// Package dpdk has ports on DPDK's devices, for graphs of quillon: frames stay in the memory into which the driver received them. It is a
// module of its own, as it needs cgo and DPDK (22.11, as Debian 12 has it).
//
//	if err := dpdk.Init("--no-pci", "--no-huge", "-m", "64", "--vdev", "net_af_packet0,iface=eth1"); err != nil { … }
//	p, err := dpdk.Open(dpdk.Config{Device: "net_af_packet0"})
//
// A port is one queue of a device, and of one worker. DPDK polls: graph.Config.Poll has a worker never sleep; without, it sleeps for up
// to MaxSleep while nothing comes.
package dpdk

/*
#cgo pkg-config: libdpdk
#include "eal.h"
*/
import "C"

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
)

// MaxSleep is how long a frame may wait in a device while its worker sleeps.
const MaxSleep = 50 * time.Microsecond

var (
	once    sync.Once
	initErr error
)

// Init initialises DPDK with arguments of its environment abstraction layer, as "--vdev", "net_af_packet0,iface=eth1". It does so once in
// a process: a second call returns what the first did.
func Init(args ...string) error {
	once.Do(func() {
		// DPDK pins the thread that initialises it, which is Go's.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		var where unix.CPUSet
		if unix.SchedGetaffinity(0, &where) == nil {
			defer func() { _ = unix.SchedSetaffinity(0, &where) }()
		}
		argv := make([]*C.char, 0, len(args)+2)
		for _, a := range append([]string{"quillon"}, args...) {
			argv = append(argv, C.CString(a)) // DPDK keeps them
		}
		all := (**C.char)(C.calloc(C.size_t(len(argv)+1), C.size_t(unsafe.Sizeof(argv[0]))))
		copy(unsafe.Slice(all, len(argv)), argv)
		if e := C.dpdk_init(C.int(len(argv)), all); e < 0 {
			initErr = fmt.Errorf("dpdk: %s (its messages say more)", C.GoString(C.dpdk_error(e)))
		}
	})
	return initErr
}

// Config of a port.
type Config struct {
	Device string // as DPDK names it: net_af_packet0, 0000:03:00.0
	Name   string // of the port in the graph; "": Device
	Index  uint16 // number of the port in the metadata of received frames
	// With is a port of the same worker whose pool this port uses: frames go from one to the other without a copy. Frames is the
	// other's then. Either may be closed first.
	With *Port
	// Frames in the pool, and Ring, the descriptors of each of the device's rings; 0: 8,192, and 1,024, or as near to it as the device can.
	Frames, Ring int
	Clock        clock.Clock // for receive times; nil: a new wall clock
}

// memory is where frames are: outside of Go's heap, as drivers keep pointers into it.
type memory struct {
	bytes []byte
	users int // ports
}

// memories guards memory.users.
var memories sync.Mutex

func (m *memory) use() *memory {
	memories.Lock()
	defer memories.Unlock()
	m.users++
	return m
}

func (m *memory) release() error {
	memories.Lock()
	defer memories.Unlock()
	if m.users--; m.users > 0 {
		return nil
	}
	return unix.Munmap(m.bytes)
}

// slotSize is that of a pool's slots: DPDK's headroom of 128 bytes, and the 2,048 for which drivers want room.
const slotSize = 2304

// Port implements port.Port.
type Port struct {
	cfg    Config
	c      *C.struct_dpdk_port
	mem    *memory
	pool   *packet.Pool
	give   int // slots that the driver should have to receive into
	rounds int
	frames [packet.MaxBatch]C.struct_dpdk_frame
	slots  [packet.MaxBatch]C.uint32_t

	rxPackets, rxBytes, rxChained atomic.Uint64
	txPackets, txBytes, txDropped atomic.Uint64
	mu                            sync.Mutex // of c, for Stats and Close
}

var _ port.Port = (*Port)(nil)

// Open opens queue 0 of a device, and starts it.
func Open(cfg Config) (_ *Port, err error) {
	cfg.Name = cmp.Or(cfg.Name, cfg.Device)
	cfg.Frames = cmp.Or(cfg.Frames, 8192)
	cfg.Ring = cmp.Or(cfg.Ring, 1024)
	if cfg.Frames < 4*packet.MaxBatch || cfg.Frames > 1<<20 || cfg.Ring < 1 || cfg.Ring > 1<<15 {
		return nil, fmt.Errorf("dpdk: %s: %d frames and rings of %d: want %d to %d, and 1 to %d", cfg.Device, cfg.Frames, cfg.Ring, 4*packet.MaxBatch, 1<<20, 1<<15)
	}
	if cfg.Clock == nil {
		cfg.Clock = clock.NewWall()
	}
	p := &Port{cfg: cfg, give: cfg.Frames / 2}
	var with *C.struct_dpdk_port
	if o := cfg.With; o != nil {
		p.cfg.Frames, p.give, p.pool, with = o.cfg.Frames, o.give, o.pool, o.c
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.Close())
		}
	}()
	if with != nil {
		p.mem = cfg.With.mem.use()
		if err = p.start(with); err != nil {
			return nil, err
		}
		return p, nil
	}
	mem, err := unix.Mmap(-1, 0, cfg.Frames*slotSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("dpdk: %s: memory for frames: %w", cfg.Device, err)
	}
	p.mem = (&memory{bytes: mem}).use()
	if p.pool, err = packet.NewPool(cfg.Frames, slotSize, mem); err != nil {
		return nil, err
	}
	if err = p.start(nil); err != nil {
		return nil, err
	}
	return p, nil
}

// start opens the device, with the slots of another port or new ones, and starts it.
func (p *Port) start(with *C.struct_dpdk_port) error {
	name := C.CString(p.cfg.Device)
	defer C.free(unsafe.Pointer(name))
	var code C.int
	p.c = C.dpdk_open(name, with, unsafe.Pointer(&p.mem.bytes[0]), C.uint32_t(p.cfg.Frames), slotSize, C.uint16_t(p.cfg.Ring), &code)
	if p.c == nil {
		return fmt.Errorf("dpdk: %s: %s", p.cfg.Device, C.GoString(C.dpdk_error(code)))
	}
	p.supply()
	if code = C.dpdk_start(p.c); code < 0 {
		return fmt.Errorf("dpdk: %s: start: %s", p.cfg.Device, C.GoString(C.dpdk_error(code)))
	}
	return nil
}

// Name implements port.Port.
func (p *Port) Name() string { return p.cfg.Name }

// Pool implements port.Port.
func (p *Port) Pool() *packet.Pool { return p.pool }

// supplyEvery is how many looks for frames there are between two at who has the slots, which takes as long as some frames.
const supplyEvery = 16

// supply moves slots to the driver, or back, so that each has enough.
func (p *Port) supply() {
	free := int(C.dpdk_free(p.c))
	for free < p.give && p.pool.Free() > packet.MaxBatch {
		n := min(packet.MaxBatch, p.give-free, p.pool.Free()-packet.MaxBatch)
		for i := range n {
			p.slots[i] = C.uint32_t(p.pool.Get().Slot())
		}
		C.dpdk_give(p.c, &p.slots[0], C.uint32_t(n))
		free += n
	}
	for free > p.give+packet.MaxBatch && p.pool.Free() < p.cfg.Frames/4 {
		n := int(C.dpdk_take(p.c, &p.slots[0], packet.MaxBatch))
		for _, s := range p.slots[:n] {
			p.pool.At(uint32(s)).Put()
		}
		if free -= n; n == 0 {
			return
		}
	}
}

// Rx implements port.Port.
func (p *Port) Rx(b *packet.Batch) (int, error) {
	if p.rounds++; p.rounds%supplyEvery == 0 || p.pool.Free() < 2*packet.MaxBatch {
		p.supply()
	}
	room := b.Room()
	if room == 0 {
		return 0, nil
	}
	var chained C.uint32_t
	n := int(C.dpdk_rx(p.c, &p.frames[0], C.uint32_t(room), &chained))
	if chained > 0 {
		p.rxChained.Add(uint64(chained))
	}
	if n == 0 {
		return 0, nil
	}
	now, bytes := int64(p.cfg.Clock.Now()), uint64(0)
	for i := range n {
		f := &p.frames[i]
		x := p.pool.At(uint32(f.slot))
		x.Meta = packet.Meta{RxTime: now, Port: p.cfg.Index}
		x.SetFrame(int(f.off), int(f.len))
		bytes += uint64(f.len)
		b.Add(x)
	}
	p.rxPackets.Add(uint64(n))
	p.rxBytes.Add(bytes)
	return n, nil
}

// Tx implements port.Port. Frames of another pool are copied.
func (p *Port) Tx(b *packet.Batch) (int, error) {
	n := 0
	for _, x := range b.Bufs() {
		y := x
		if x.Pool() != p.pool {
			if y = p.pool.Get(); y == nil {
				break
			}
			if !y.SetBytes(x.Bytes()) { // it can never be sent
				y.Put()
				if n > 0 {
					break
				}
				x.Put()
				b.Shift(1)
				p.txDropped.Add(1)
				return 1, nil
			}
		}
		p.frames[n] = C.struct_dpdk_frame{slot: C.uint32_t(y.Slot()), off: C.uint32_t(y.Off()), len: C.uint32_t(y.Len())}
		n++
	}
	if n == 0 {
		return 0, nil
	}
	sent, bytes := int(C.dpdk_tx(p.c, &p.frames[0], C.uint32_t(n))), uint64(0)
	for i, x := range b.Bufs()[:n] {
		copied := x.Pool() != p.pool
		switch {
		case i < sent:
			bytes += uint64(p.frames[i].len)
			if copied {
				x.Put()
			} // else the slot is the driver's, and comes back by supply
		case copied:
			p.pool.At(uint32(p.frames[i].slot)).Put()
		}
	}
	b.Shift(sent)
	p.txPackets.Add(uint64(sent))
	p.txBytes.Add(bytes)
	return sent, nil
}

// Wait implements port.Port.
func (p *Port) Wait(ctx context.Context, d clock.Duration) error {
	if d = min(d, MaxSleep); d > 0 {
		time.Sleep(d)
	}
	return ctx.Err()
}

// Stats implements port.Port.
func (p *Port) Stats() port.Stats {
	s := port.Stats{RxPackets: p.rxPackets.Load(), RxBytes: p.rxBytes.Load(), TxPackets: p.txPackets.Load(), TxBytes: p.txBytes.Load(),
		TxDropped: p.txDropped.Load(), RxDropped: p.rxChained.Load()}
	p.mu.Lock()
	defer p.mu.Unlock()
	var missed, nombuf C.uint64_t
	if p.c != nil && C.dpdk_stats(p.c, &missed, &nombuf) == 0 {
		s.RxDropped += uint64(missed) + uint64(nombuf)
	}
	return s
}

// Close implements port.Port. Bufs of the port's pool are gone then.
func (p *Port) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.c != nil {
		C.dpdk_close(p.c)
		p.c = nil
	}
	if p.mem == nil {
		return nil
	}
	mem := p.mem
	p.mem = nil
	return mem.release()
}
