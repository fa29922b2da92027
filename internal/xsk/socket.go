package xsk

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// FrameOffset is the offset in a chunk, in bytes, at which the kernel puts a received frame.
const FrameOffset = unix.XDP_PACKET_HEADROOM

// UMEM is memory of equal chunks that sockets share with the kernel.
type UMEM struct {
	Mem   []byte
	Chunk int
	owner int // file descriptor of the socket that registered it, -1: none
}

// NewUMEM maps memory for this number of chunks. Each chunk has chunk bytes: 2048 or 4096.
func NewUMEM(chunks, chunk int) (*UMEM, error) {
	if chunk != 2048 && chunk != 4096 || chunks <= 0 {
		return nil, fmt.Errorf("a UMEM has chunks of 2048 or 4096 bytes, not %d of %d", chunks, chunk)
	}
	mem, err := unix.Mmap(-1, 0, chunks*chunk, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes of packet memory: %w", chunks*chunk, err)
	}
	// The kernel allocates all pages when the memory is registered; huge pages take it a fifth of the time. Where it
	// has no huge pages, it takes small ones.
	_ = unix.Madvise(mem, unix.MADV_HUGEPAGE)
	return &UMEM{Mem: mem, Chunk: chunk, owner: -1}, nil
}

// Close unmaps the memory. The caller closes all sockets over it first.
func (u *UMEM) Close() error {
	if u == nil || u.Mem == nil {
		return nil
	}
	mem := u.Mem
	u.Mem = nil
	return unix.Munmap(mem)
}

// Options of a socket.
type Options struct {
	Ring     int  // entries of each ring, a power of two
	SG       bool // frames of several descriptors (XDP_USE_SG)
	Copy     bool // never zero-copy
	ZeroCopy bool // never copy
	BusyPoll int  // microseconds of preferred busy polling, 0: none
}

// Socket is an AF_XDP socket bound to one queue of one interface.
type Socket struct {
	FD         int
	Fill       *Ring[uint64]
	Completion *Ring[uint64]
	Rx         *Ring[Desc]
	Tx         *Ring[Desc]
	ZeroCopy   bool
	SG         bool
}

// Open makes a socket over u. The first socket registers the memory, later ones
// share it. The socket is not bound: the caller puts chunks in Fill and calls Bind.
func Open(u *UMEM, o Options) (_ *Socket, err error) {
	if o.Ring <= 0 || o.Ring&(o.Ring-1) != 0 {
		return nil, fmt.Errorf("ring size %d is not a power of two", o.Ring)
	}
	fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("AF_XDP socket: %w", err)
	}
	s := &Socket{FD: fd}
	defer func() {
		if err == nil {
			return
		}
		if u.owner == fd {
			u.owner = -1
		}
		_ = s.Close()
	}()
	if u.owner < 0 {
		reg := unix.XDPUmemReg{Addr: uint64(uintptr(unsafe.Pointer(&u.Mem[0]))), Len: uint64(len(u.Mem)), Size: uint32(u.Chunk)}
		if err := setsockopt(fd, unix.XDP_UMEM_REG, unsafe.Pointer(&reg), unsafe.Sizeof(reg)); err != nil {
			return nil, fmt.Errorf("register packet memory: %w", err)
		}
		u.owner = fd
	}
	for _, opt := range []int{unix.XDP_UMEM_FILL_RING, unix.XDP_UMEM_COMPLETION_RING, unix.XDP_RX_RING, unix.XDP_TX_RING} {
		if err := unix.SetsockoptInt(fd, unix.SOL_XDP, opt, o.Ring); err != nil {
			return nil, fmt.Errorf("ring of %d entries: %w", o.Ring, err)
		}
	}
	var off unix.XDPMmapOffsets
	if err := getsockopt(fd, unix.XDP_MMAP_OFFSETS, unsafe.Pointer(&off), unsafe.Sizeof(off)); err != nil {
		return nil, fmt.Errorf("ring offsets: %w", err)
	}
	n := uint32(o.Ring)
	if s.Fill, err = mapRing[uint64](fd, off.Fr, unix.XDP_UMEM_PGOFF_FILL_RING, n); err != nil {
		return nil, err
	}
	if s.Completion, err = mapRing[uint64](fd, off.Cr, unix.XDP_UMEM_PGOFF_COMPLETION_RING, n); err != nil {
		return nil, err
	}
	if s.Rx, err = mapRing[Desc](fd, off.Rx, unix.XDP_PGOFF_RX_RING, n); err != nil {
		return nil, err
	}
	if s.Tx, err = mapRing[Desc](fd, off.Tx, unix.XDP_PGOFF_TX_RING, n); err != nil {
		return nil, err
	}
	// Both options only save system calls; a kernel may lack them.
	_ = unix.SetsockoptInt(fd, unix.SOL_XDP, unix.XDP_MAX_TX_SKB_BUDGET, o.Ring)
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, o.Ring*u.Chunk)
	if o.BusyPoll > 0 {
		for _, x := range [][2]int{{unix.SO_PREFER_BUSY_POLL, 1}, {unix.SO_BUSY_POLL, o.BusyPoll}, {unix.SO_BUSY_POLL_BUDGET, 64}} {
			if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, x[0], x[1]); err != nil {
				return nil, fmt.Errorf("busy polling: %w", err)
			}
		}
	}
	return s, nil
}

// Bind binds the socket to a queue. An error that wraps unix.EBUSY means that another
// socket, which may be closing, has the queue.
func (s *Socket) Bind(u *UMEM, ifindex, queue int, o Options) error {
	try := func(flags uint16) error {
		sa := &unix.SockaddrXDP{Ifindex: uint32(ifindex), QueueID: uint32(queue), Flags: flags}
		if s.FD != u.owner {
			// The owner's flags hold for all.
			sa.Flags, sa.SharedUmemFD = unix.XDP_SHARED_UMEM, uint32(u.owner)
		}
		return unix.Bind(s.FD, sa)
	}
	flags := uint16(unix.XDP_USE_NEED_WAKEUP)
	if o.Copy {
		flags |= unix.XDP_COPY
	}
	if o.ZeroCopy {
		flags |= unix.XDP_ZEROCOPY
	}
	err := errors.ErrUnsupported
	if o.SG {
		if err = try(flags | unix.XDP_USE_SG); err == nil {
			s.SG = true
		} else if errors.Is(err, unix.EOPNOTSUPP) && !o.ZeroCopy {
			// A driver whose zero-copy mode has no multi-buffer can copy.
			if err = try(flags | unix.XDP_USE_SG | unix.XDP_COPY); err == nil {
				s.SG = true
			}
		}
	} else {
		err = try(flags)
	}
	if err != nil {
		return fmt.Errorf("bind to queue %d: %w", queue, err)
	}
	var opt uint32
	if err := getsockopt(s.FD, unix.XDP_OPTIONS, unsafe.Pointer(&opt), unsafe.Sizeof(opt)); err == nil {
		s.ZeroCopy = opt&unix.XDP_OPTIONS_ZEROCOPY != 0
	}
	return nil
}

// Kick asks the kernel to send what is in Tx. The raw system call keeps the
// Go scheduler out: it takes microseconds and does not block.
func (s *Socket) Kick() unix.Errno {
	_, _, e := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(s.FD), 0, 0, unix.MSG_DONTWAIT, 0, 0)
	return e
}

// Nudge asks the kernel to receive into Fill (busy polling, zero-copy).
func (s *Socket) Nudge() {
	_, _, _ = unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(s.FD), 0, 0, unix.MSG_DONTWAIT, 0, 0)
}

// Statistics returns the kernel's counters of the socket.
func (s *Socket) Statistics() (unix.XDPStatistics, error) {
	var st unix.XDPStatistics
	err := getsockopt(s.FD, unix.XDP_STATISTICS, unsafe.Pointer(&st), unsafe.Sizeof(st))
	return st, err
}

// Close closes the socket and unmaps its rings. The kernel removes the socket from every XSKMAP.
func (s *Socket) Close() error {
	if s.FD < 0 {
		return nil
	}
	err := errors.Join(s.Fill.unmap(), s.Completion.unmap(), s.Rx.unmap(), s.Tx.unmap(), unix.Close(s.FD))
	s.FD = -1
	return err
}

func setsockopt(fd, opt int, p unsafe.Pointer, n uintptr) error {
	_, _, e := unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(fd), unix.SOL_XDP, uintptr(opt), uintptr(p), n, 0)
	if e != 0 {
		return e
	}
	return nil
}

func getsockopt(fd, opt int, p unsafe.Pointer, n uintptr) error {
	size := uint32(n)
	_, _, e := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_XDP, uintptr(opt), uintptr(p), uintptr(unsafe.Pointer(&size)), 0)
	if e != 0 {
		return e
	}
	return nil
}
