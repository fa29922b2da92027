// Package afpacket is a port on a packet socket: for kernels and interfaces
// without AF_XDP. It moves batches with recvmmsg and sendmmsg, copies every
// frame, and cannot keep frames from the kernel: the interface should have no
// address, and be in no bridge, when it is part of a wire. Frames only cross
// while the process lives.
//
// A VLAN tag that the kernel took off is put back. Frames that arrive without
// a checksum, merged or not yet segmented are prevented by turning offloads
// off, on a veth's other end too.
package afpacket

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/internal/xsk/offload"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/port/poll"
)

// Config of a port.
type Config struct {
	// Name of the port in the graph; empty: the interface's.
	Name      string
	Interface string
	// Index is the port number in the metadata of received frames.
	Index uint16
	// Frames in the pool; 0: 1024.
	Frames int
	// Clock for receive times; nil: a new wall clock.
	Clock clock.Clock
	// LeaveOffloads: check and change no setting.
	LeaveOffloads bool
	// Alone: an error where another process has such a port of the interface, as long as this one is open. Two that forward
	// would both have each frame.
	Alone bool
	// AtOnce: with Alone, Open does not wait until another process has closed its port, and fails with ErrClaimed.
	AtOnce bool
}

// message is struct mmsghdr.
type message struct {
	unix.Msghdr
	n uint32
	_ uint32
}

// auxLen is the room for one struct tpacket_auxdata.
const auxLen = 64

// Port implements port.Port.
type Port struct {
	name string
	cfg  Config
	clk  clock.Clock
	fd   int
	pool *packet.Pool
	max  int
	down bool // the interface was down when last looked at

	armed  [packet.MaxBatch]*packet.Buf // waiting to be received into
	rx, tx [packet.MaxBatch]message
	riov   [packet.MaxBatch]unix.Iovec
	tiov   [packet.MaxBatch]unix.Iovec
	aux    [packet.MaxBatch][auxLen]byte
	poll   poll.Set

	rxPackets, rxBytes, rxDropped atomic.Uint64
	txPackets, txBytes, txDropped atomic.Uint64

	claim       *claim // nil: none
	off         *offload.Interface
	record      string         // file that has what Close puts back
	restore     offload.Record // what Close puts back
	counted     bool           // in recorded
	mu          sync.Mutex
	closed      atomic.Bool
	kernelDrops uint64
}

var (
	_ port.Port        = (*Port)(nil)
	_ port.MultiWaiter = (*Port)(nil)
	_ poll.Limiter     = (*Port)(nil)
)

// Open opens a port on an interface of the calling thread's network namespace.
func Open(cfg Config) (_ *Port, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cfg.Name = cmp.Or(cfg.Name, cfg.Interface)
	cfg.Frames = cmp.Or(cfg.Frames, 1024)
	if cfg.Frames < 2*packet.MaxBatch {
		return nil, fmt.Errorf("%d frames are too few: at least %d", cfg.Frames, 2*packet.MaxBatch)
	}
	if cfg.Clock == nil {
		cfg.Clock = clock.NewWall()
	}
	l, err := netlink.LinkByName(cfg.Interface)
	if err != nil {
		return nil, fmt.Errorf("interface %q: %w", cfg.Interface, err)
	}
	if l.Attrs().Flags&1 == 0 {
		return nil, fmt.Errorf("interface %s is down: ip link set %s up", cfg.Interface, cfg.Interface)
	}
	p := &Port{name: cfg.Name, cfg: cfg, clk: cfg.Clock, fd: -1, max: l.Attrs().MTU + 14 + 2*4}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.Close())
		}
	}()
	if cfg.Alone {
		within := claimWait
		if cfg.AtOnce {
			within = 0
		}
		if p.claim, err = newClaim(cfg.Interface, within); err != nil {
			return nil, err
		}
	}
	slot := (packet.Headroom + p.max + 63) &^ 63
	if p.pool, err = packet.NewPool(cfg.Frames, slot, nil); err != nil {
		return nil, err
	}
	all := binary.NativeEndian.Uint16([]byte{0, unix.ETH_P_ALL})
	// Bound before it has a protocol: nothing of other interfaces comes in.
	if p.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0); err != nil {
		if errors.Is(err, unix.EPERM) {
			return nil, fmt.Errorf("packet socket: %w: run as root, or with CAP_NET_RAW", err)
		}
		return nil, fmt.Errorf("packet socket: %w", err)
	}
	for _, o := range [][3]int{
		{unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1},
		{unix.SOL_PACKET, unix.PACKET_AUXDATA, 1},
		{unix.SOL_PACKET, unix.PACKET_QDISC_BYPASS, 1},
		{unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16 << 20},
		{unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, 4 << 20},
	} {
		if err := unix.SetsockoptInt(p.fd, o[0], o[1], o[2]); err != nil && o[0] == unix.SOL_PACKET {
			return nil, fmt.Errorf("packet socket option %d: %w", o[1], err)
		}
	}
	// Promiscuous for as long as the socket is open.
	mr := unix.PacketMreq{Ifindex: int32(l.Attrs().Index), Type: unix.PACKET_MR_PROMISC}
	if err := unix.SetsockoptPacketMreq(p.fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP, &mr); err != nil {
		return nil, fmt.Errorf("promiscuous mode of %s: %w", cfg.Interface, err)
	}
	if p.off, err = offload.Open(l); err != nil {
		return nil, err
	}
	if !cfg.LeaveOffloads {
		if err = p.change(l.Attrs().Index); err != nil {
			return nil, err
		}
	}
	for i := range p.rx {
		p.arm(i)
		p.rx[i].Iov, p.tx[i].Iov = &p.riov[i], &p.tiov[i]
		p.rx[i].SetIovlen(1)
		p.tx[i].SetIovlen(1)
		p.rx[i].Control = &p.aux[i][0]
	}
	if err := unix.Bind(p.fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: l.Attrs().Index}); err != nil {
		return nil, fmt.Errorf("bind to %s: %w", cfg.Interface, err)
	}
	return p, nil
}

// change sets offloads, with what it is about to change on record, so that it can be undone after the process was
// killed. What a killed process left on record is undone with it.
func (p *Port) change(index int) (err error) {
	if p.cfg.Alone { // else the record may be that of another process, which goes on
		if p.record, err = offload.RecordFile(index); err != nil {
			return err
		}
		if p.restore, err = offload.ReadRecord(p.record); err != nil {
			return err
		}
		recorded.Lock()
		recorded.ports[p.record]++
		recorded.Unlock()
		p.counted = true
	}
	_, err = p.again(false)
	return err
}

// recorded has how many ports of this process an interface has, by the file of its record: one may replace another.
var recorded = struct {
	sync.Mutex
	ports map[string]int
}{ports: map[string]int{}}

// isLast reports, once, whether no other port of this process goes on at the interface.
func (p *Port) isLast() bool {
	if !p.counted {
		return true
	}
	p.counted = false
	recorded.Lock()
	defer recorded.Unlock()
	recorded.ports[p.record]--
	if recorded.ports[p.record] > 0 {
		return false
	}
	delete(recorded.ports, p.record)
	return true
}

// again sets offloads that are not as they must be, and returns these. While the port runs, frames would be lost if it did
// not do so for want of room for the record.
func (p *Port) again(runs bool) (changed []string, err error) {
	own, peer, err := p.off.Plan(false)
	if err != nil {
		return nil, err
	}
	planned := p.restore
	planned.Owe(offload.Record{offload.Own: uint64(own), offload.Peer: uint64(peer)})
	var unwritten error
	if own != 0 || peer != 0 {
		if err := offload.WriteRecord(p.record, planned); err != nil {
			unwritten = fmt.Errorf("keep on record how %s was: %w", p.cfg.Interface, err)
			if !runs || !offload.NoRoom(err) {
				return nil, unwritten
			}
		}
	}
	own, peer, changed, err = p.off.Set(false)
	p.restore.Owe(offload.Record{offload.Own: uint64(own), offload.Peer: uint64(peer)})
	return changed, errors.Join(err, unwritten)
}

// Keep implements port.Keeper.
func (p *Port) Keep() ([]string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed.Load() || p.cfg.LeaveOffloads {
		return nil, nil
	}
	if own, peer, err := p.off.Plan(false); err != nil || own == 0 && peer == 0 {
		return nil, err
	}
	return p.again(true)
}

// arm gives message i a Buf to receive into: when the pool is empty that of a
// later message, and false when none has one.
func (p *Port) arm(i int) bool {
	x := p.pool.Get()
	for j := len(p.armed) - 1; x == nil && j > i; j-- {
		x, p.armed[j] = p.armed[j], nil
	}
	p.armed[i] = x
	if x == nil {
		return false
	}
	p.riov[i].Base = &x.Mem()[packet.Headroom]
	p.riov[i].SetLen(len(x.Mem()) - packet.Headroom)
	return true
}

// Name implements port.Port.
func (p *Port) Name() string { return p.name }

// Pool implements port.Port.
func (p *Port) Pool() *packet.Pool { return p.pool }

// FD is the socket, to wait for it together with others; -1 when closed.
func (p *Port) FD() int {
	if p.closed.Load() {
		return -1
	}
	return p.fd
}

// CanReceive implements poll.Limiter.
func (p *Port) CanReceive() bool {
	return p.pool.Free() > 0 || slices.ContainsFunc(p.armed[:], func(x *packet.Buf) bool { return x != nil })
}

// Rx implements port.Port.
func (p *Port) Rx(b *packet.Batch) (int, error) {
	if p.closed.Load() {
		return 0, port.ErrClosed
	}
	want := 0
	for want < b.Room() && (p.armed[want] != nil || p.arm(want)) {
		p.rx[want].SetControllen(auxLen)
		want++
	}
	if want == 0 {
		return 0, nil
	}
	r, _, e := unix.RawSyscall6(unix.SYS_RECVMMSG, uintptr(p.fd), uintptr(unsafe.Pointer(&p.rx[0])), uintptr(want), unix.MSG_DONTWAIT|unix.MSG_TRUNC, 0, 0)
	switch e {
	case 0:
	case unix.EINTR:
		return 0, nil
	case unix.EAGAIN, unix.ENETDOWN:
		// The kernel says once that the interface went down, and never that it
		// has gone since.
		if p.down = p.down || e == unix.ENETDOWN; p.down && p.gone() {
			return 0, fmt.Errorf("interface %s is gone: %w", p.cfg.Interface, port.ErrClosed)
		}
		return 0, nil
	case unix.EBADF, unix.ENXIO, unix.ENODEV:
		return 0, port.ErrClosed
	default:
		return 0, fmt.Errorf("receive on %s: %w", p.name, e)
	}
	p.down = false
	now, got, bytes, dropped := int64(p.clk.Now()), 0, 0, 0
	for i := range int(r) {
		m, x := &p.rx[i], p.armed[i]
		p.armed[i] = nil
		n := int(m.n)
		if packet.Headroom+n > len(x.Mem()) {
			x.Put()
			dropped++
			continue
		}
		x.SetFrame(packet.Headroom, n)
		retag(x, p.aux[i][:min(int(m.Controllen), auxLen)])
		x.RxTime, x.Port = now, p.cfg.Index
		b.Add(x)
		got++
		bytes += x.Len()
	}
	p.rxPackets.Add(uint64(got))
	p.rxBytes.Add(uint64(bytes))
	if dropped > 0 {
		p.rxDropped.Add(uint64(dropped))
	}
	return got, nil
}

// gone reports that the socket's interface is no more: the kernel has unbound
// it then.
func (p *Port) gone() bool {
	var sa unix.RawSockaddrLinklayer
	size := uint32(unsafe.Sizeof(sa))
	_, _, e := unix.RawSyscall(unix.SYS_GETSOCKNAME, uintptr(p.fd), uintptr(unsafe.Pointer(&sa)), uintptr(unsafe.Pointer(&size)))
	return e == 0 && sa.Ifindex < 0
}

// retag puts the outer VLAN tag back that the kernel keeps beside the frame.
func retag(x *packet.Buf, control []byte) {
	const header = unix.SizeofCmsghdr
	if len(control) < header+20 || binary.NativeEndian.Uint32(control[12:]) != unix.PACKET_AUXDATA {
		return
	}
	a := control[header:] // status, len, snaplen (4 each), mac, net, tci, tpid (2 each)
	status := binary.NativeEndian.Uint32(a)
	if status&unix.TP_STATUS_VLAN_VALID == 0 || x.Len() < 12 {
		return
	}
	tpid := uint16(unix.ETH_P_8021Q)
	if status&unix.TP_STATUS_VLAN_TPID_VALID != 0 {
		tpid = binary.NativeEndian.Uint16(a[18:])
	}
	f, ok := x.Prepend(4)
	if !ok {
		return
	}
	copy(f, f[4:16])
	binary.BigEndian.PutUint16(f[12:], tpid)
	binary.BigEndian.PutUint16(f[14:], binary.NativeEndian.Uint16(a[16:]))
}

// Tx implements port.Port.
func (p *Port) Tx(b *packet.Batch) (int, error) {
	if p.closed.Load() {
		return 0, port.ErrClosed
	}
	taken := 0
	for b.Len() > 0 {
		n, bytes := 0, 0
		for _, x := range b.Bufs() {
			f := x.Bytes()
			if len(f) < 14 || len(f) > p.max {
				break
			}
			p.tiov[n].Base = &f[0]
			p.tiov[n].SetLen(len(f))
			n++
		}
		if n == 0 {
			p.drop(b)
			taken++
			continue
		}
		r, _, e := unix.RawSyscall6(unix.SYS_SENDMMSG, uintptr(p.fd), uintptr(unsafe.Pointer(&p.tx[0])), uintptr(n), unix.MSG_DONTWAIT, 0, 0)
		switch e {
		case 0:
		case unix.EAGAIN, unix.ENOBUFS, unix.EINTR:
			return taken, nil
		case unix.ENETDOWN:
			// When it is up again nobody waits for them any more.
			for b.Len() > 0 {
				p.drop(b)
				taken++
			}
			return taken, nil
		case unix.EMSGSIZE, unix.EINVAL:
			p.drop(b)
			taken++
			continue
		case unix.EBADF, unix.ENXIO, unix.ENODEV:
			return taken, port.ErrClosed
		default:
			return taken, fmt.Errorf("send on %s: %w", p.name, e)
		}
		for _, x := range b.Bufs()[:r] {
			bytes += x.Len()
			x.Put()
		}
		b.Shift(int(r))
		taken += int(r)
		p.txPackets.Add(uint64(r))
		p.txBytes.Add(uint64(bytes))
	}
	return taken, nil
}

// drop takes the first frame of b, which cannot be sent.
func (p *Port) drop(b *packet.Batch) {
	b.At(0).Put()
	b.Shift(1)
	p.txDropped.Add(1)
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
		RxPackets: p.rxPackets.Load(), RxBytes: p.rxBytes.Load(), RxDropped: p.rxDropped.Load() + p.kernelDrops,
		TxPackets: p.txPackets.Load(), TxBytes: p.txBytes.Load(), TxDropped: p.txDropped.Load(),
	}
}

// readDrops adds what the kernel dropped since the last call.
func (p *Port) readDrops() {
	if p.closed.Load() || p.fd < 0 {
		return
	}
	var st unix.TpacketStats
	size := uint32(unsafe.Sizeof(st))
	if _, _, e := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(p.fd), unix.SOL_PACKET, unix.PACKET_STATISTICS, uintptr(unsafe.Pointer(&st)), uintptr(unsafe.Pointer(&size)), 0); e == 0 {
		p.kernelDrops += uint64(st.Drops)
	}
}

// Close implements port.Port: the settings are put back. The pool is the
// worker's, which may have frames of it after a plan took the port away: what is
// armed goes with it.
func (p *Port) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed.Load() {
		return nil
	}
	p.readDrops()
	p.closed.Store(true)
	var errs []error
	if p.fd >= 0 {
		errs = append(errs, unix.Close(p.fd))
	}
	if p.off != nil && p.isLast() {
		err := p.off.Restore(offload.Mask(p.restore[offload.Own]), offload.Mask(p.restore[offload.Peer]))
		if p.restore[offload.Promiscuous] != 0 { // of a killed process with AF_XDP
			l, e := netlink.LinkByName(p.cfg.Interface)
			if e == nil {
				e = netlink.SetPromiscOff(l)
			}
			err = errors.Join(err, e)
		}
		if errors.Is(err, unix.ENODEV) { // its settings are gone with it
			err = nil
		}
		if err == nil && p.record != "" { // else it stays on record, for Detach or the next process
			err = offload.WriteRecord(p.record, offload.Record{})
		}
		errs = append(errs, err)
	}
	if p.off != nil {
		p.off.Close()
	}
	return errors.Join(append(errs, p.claim.close())...)
}
