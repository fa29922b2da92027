// Package tap makes a port of a TAP device. Frames that Tx sends arrive in the
// kernel as if a network card had received them, and Rx receives the frames that the kernel
// sends to the device. Each frame takes one system call.
package tap

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/port/poll"
)

// Config describes a port.
type Config struct {
	// Name is the name of the port in the graph; empty means the device's name.
	Name string
	// Device is the name of the TAP device. Open makes the device, and Close removes it, unless it
	// exists already as a persistent device. If Device is empty, the kernel chooses a name.
	Device string
	// Index is the port number in the metadata of received frames.
	Index uint16
	// MTU is the MTU to set; 0 leaves the device's MTU, which is 1500 for a new device.
	MTU int
	// Frames is the number of frames in the pool; 0 means 512.
	Frames int
	// Clock gives the receive times; nil means a new wall clock.
	Clock clock.Clock
}

// Port implements port.Port.
type Port struct {
	name, device string
	cfg          Config
	clk          clock.Clock
	fd           int
	pool         *packet.Pool
	max          int
	poll         poll.Set

	rxPackets, rxBytes, rxDropped atomic.Uint64
	txPackets, txBytes, txDropped atomic.Uint64

	mu      sync.Mutex
	closed  atomic.Bool
	links   *netlink.Handle // of the namespace that the device was made in
	index   int
	before  uint64 // what the kernel had dropped of the device's frames at Open
	dropped uint64 // and has since, when last looked at
}

var (
	_ port.Port        = (*Port)(nil)
	_ port.MultiWaiter = (*Port)(nil)
	_ poll.Limiter     = (*Port)(nil)
)

// Open makes the device in the calling thread's network namespace and sets it
// up.
func Open(cfg Config) (_ *Port, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cfg.Frames = cmp.Or(cfg.Frames, 512)
	if cfg.MTU != 0 && (cfg.MTU < 68 || cfg.MTU > 65521) {
		return nil, fmt.Errorf("a TAP device cannot have an MTU of %d: 68 to 65521", cfg.MTU)
	}
	if cfg.Clock == nil {
		cfg.Clock = clock.NewWall()
	}
	p := &Port{cfg: cfg, clk: cfg.Clock, fd: -1}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.Close())
		}
	}()
	if p.fd, err = unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0); err != nil {
		return nil, fmt.Errorf("/dev/net/tun: %w: load the tun module, or run as root", err)
	}
	ifr, err := unix.NewIfreq(cfg.Device)
	if err != nil {
		return nil, fmt.Errorf("device name %q: %w", cfg.Device, err)
	}
	ifr.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
	if err := unix.IoctlIfreq(p.fd, unix.TUNSETIFF, ifr); err != nil {
		return nil, fmt.Errorf("make TAP device %q: %w", cfg.Device, err)
	}
	p.device = ifr.Name()
	if p.name = cfg.Name; p.name == "" {
		p.name = p.device
	}
	l, err := netlink.LinkByName(p.device)
	if err != nil {
		return nil, fmt.Errorf("device %s: %w", p.device, err)
	}
	p.index = l.Attrs().Index
	if p.links, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
		return nil, fmt.Errorf("device %s: %w", p.device, err)
	}
	p.readDrops()
	p.before = p.dropped
	if cfg.MTU == 0 {
		cfg.MTU = l.Attrs().MTU
	} else if err := netlink.LinkSetMTU(l, cfg.MTU); err != nil {
		return nil, fmt.Errorf("MTU of %s: %w", p.device, err)
	}
	if err := netlink.LinkSetUp(l); err != nil {
		return nil, fmt.Errorf("set %s up: %w", p.device, err)
	}
	p.max = cfg.MTU + 14 + 2*4
	// One byte more than max tells a frame that was cut off.
	p.pool, err = packet.NewPool(cfg.Frames, (packet.Headroom+p.max+1+63)&^63, nil)
	return p, err
}

// Name implements port.Port.
func (p *Port) Name() string { return p.name }

// Device returns the device's name.
func (p *Port) Device() string { return p.device }

// Pool implements port.Port.
func (p *Port) Pool() *packet.Pool { return p.pool }

// FD implements poll.File.
func (p *Port) FD() int {
	if p.closed.Load() {
		return -1
	}
	return p.fd
}

// CanReceive implements poll.Limiter.
func (p *Port) CanReceive() bool { return p.pool.Free() > 0 }

// Rx implements port.Port.
func (p *Port) Rx(b *packet.Batch) (int, error) {
	if p.closed.Load() {
		return 0, port.ErrClosed
	}
	now, got, bytes := int64(p.clk.Now()), 0, 0
	for !b.Full() {
		x := p.pool.Get()
		if x == nil {
			break
		}
		room := x.Mem()[packet.Headroom:]
		r, _, e := unix.RawSyscall(unix.SYS_READ, uintptr(p.fd), uintptr(unsafe.Pointer(&room[0])), uintptr(len(room)))
		if e != 0 {
			x.Put()
			switch e {
			case unix.EAGAIN, unix.EINTR:
			case unix.EBADF, unix.EBADFD, unix.ENODEV:
				return got, port.ErrClosed
			case unix.EIO: // the device is down
			default:
				return got, fmt.Errorf("read %s: %w", p.name, e)
			}
			break
		}
		n := int(r)
		if n == len(room) && n > p.max {
			x.Put() // cut off: longer than any frame of this MTU
			p.rxDropped.Add(1)
			continue
		}
		x.SetFrame(packet.Headroom, n)
		x.RxTime, x.Port = now, p.cfg.Index
		b.Add(x)
		got++
		bytes += n
	}
	if got > 0 {
		p.rxPackets.Add(uint64(got))
		p.rxBytes.Add(uint64(bytes))
	}
	return got, nil
}

// Tx implements port.Port.
func (p *Port) Tx(b *packet.Batch) (int, error) {
	if p.closed.Load() {
		return 0, port.ErrClosed
	}
	taken, sent, bytes, dropped := 0, 0, 0, 0
	var err error
loop:
	for _, x := range b.Bufs() {
		f := x.Bytes()
		if len(f) < 14 || len(f) > p.max {
			dropped++
		} else {
			_, _, e := unix.RawSyscall(unix.SYS_WRITE, uintptr(p.fd), uintptr(unsafe.Pointer(&f[0])), uintptr(len(f)))
			switch e {
			case 0:
				sent++
				bytes += len(f)
			case unix.EAGAIN, unix.EINTR:
				break loop
			case unix.EBADF, unix.EBADFD, unix.ENODEV:
				err = port.ErrClosed
				break loop
			default: // EIO while the device is down, EINVAL: it is not taken
				dropped++
			}
		}
		x.Put()
		taken++
	}
	b.Shift(taken)
	if sent > 0 {
		p.txPackets.Add(uint64(sent))
		p.txBytes.Add(uint64(bytes))
	}
	if dropped > 0 {
		p.txDropped.Add(uint64(dropped))
	}
	return taken, err
}

// Wait implements port.Port.
func (p *Port) Wait(ctx context.Context, d clock.Duration) error {
	_, err := p.WaitAny(ctx, nil, d)
	return err
}

// WaitAny implements port.MultiWaiter, together with ports that are files.
func (p *Port) WaitAny(ctx context.Context, others []port.Port, d clock.Duration) (bool, error) {
	return p.poll.Wait(ctx, p.clk, d, p, others)
}

// Stats implements port.Port.
func (p *Port) Stats() port.Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.readDrops()
	return port.Stats{
		RxPackets: p.rxPackets.Load(), RxBytes: p.rxBytes.Load(), RxDropped: p.rxDropped.Load() + p.dropped - p.before,
		TxPackets: p.txPackets.Load(), TxBytes: p.txBytes.Load(), TxDropped: p.txDropped.Load(),
	}
}

// readDrops reads how many frames found the device's queue full. The kernel counts them in TxDropped,
// because the device sends to this port.
func (p *Port) readDrops() {
	if p.closed.Load() {
		return
	}
	if l, err := p.links.LinkByIndex(p.index); err == nil && l.Attrs().Statistics != nil {
		p.dropped = l.Attrs().Statistics.TxDropped
	}
}

// Close implements port.Port.
func (p *Port) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed.Load() {
		return nil
	}
	if p.links != nil {
		p.readDrops()
		p.links.Close()
	}
	p.closed.Store(true)
	if p.fd < 0 {
		return nil
	}
	return unix.Close(p.fd)
}
