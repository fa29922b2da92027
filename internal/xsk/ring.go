package xsk

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Desc is an entry of an Rx or Tx ring: Addr is an offset in the UMEM.
type Desc struct {
	Addr    uint64
	Len     uint32
	Options uint32
}

// Continued is the bit of Desc.Options that says that the frame goes on in the next entry.
const Continued = unix.XDP_PKT_CONTD

// Ring is one ring of a socket; T is Desc or, for the fill and completion
// rings, uint64 (an offset in the UMEM).
type Ring[T Desc | uint64] struct {
	mem              []byte
	prod, cons, flag *uint32
	entries          []T
	mask             uint32
	next             uint32 // our own index: the producer's or the consumer's
	seen             uint32 // the other side's index as last loaded
}

func mapRing[T Desc | uint64](fd int, off unix.XDPRingOffset, pgoff int64, size uint32) (*Ring[T], error) {
	var t T
	mem, err := unix.Mmap(fd, pgoff, int(off.Desc)+int(size)*int(unsafe.Sizeof(t)), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return nil, fmt.Errorf("map ring: %w", err)
	}
	at := func(o uint64) *uint32 { return (*uint32)(unsafe.Pointer(&mem[o])) }
	return &Ring[T]{
		mem: mem, prod: at(off.Producer), cons: at(off.Consumer), flag: at(off.Flags),
		entries: unsafe.Slice((*T)(unsafe.Pointer(&mem[off.Desc])), size), mask: size - 1,
	}, nil
}

func (r *Ring[T]) unmap() error {
	if r == nil || r.mem == nil {
		return nil
	}
	err := unix.Munmap(r.mem)
	*r = Ring[T]{}
	return err
}

// Size returns the number of entries of the ring.
func (r *Ring[T]) Size() int { return len(r.entries) }

// Room returns the number of entries that the producer may write, at most n.
func (r *Ring[T]) Room(n int) int {
	size := uint32(len(r.entries))
	if room := size - (r.next - r.seen); int(room) >= n {
		return n
	}
	r.seen = atomic.LoadUint32(r.cons)
	return min(n, int(size-(r.next-r.seen)))
}

// Write sets the i-th of the entries that the next Submit hands over; i must be less than Room.
func (r *Ring[T]) Write(i int, v T) { r.entries[(r.next+uint32(i))&r.mask] = v }

// Submit hands the n entries written to the kernel.
func (r *Ring[T]) Submit(n int) {
	r.next += uint32(n)
	atomic.StoreUint32(r.prod, r.next)
}

// Unconsumed returns the number of submitted entries that the kernel has not taken.
func (r *Ring[T]) Unconsumed() int {
	r.seen = atomic.LoadUint32(r.cons)
	return int(r.next - r.seen)
}

// Ready returns the number of entries that the consumer may read, at most n.
func (r *Ring[T]) Ready(n int) int {
	if have := r.seen - r.next; int(have) >= n {
		return n
	}
	r.seen = atomic.LoadUint32(r.prod)
	return min(n, int(r.seen-r.next))
}

// Read returns the i-th of the entries that are ready; i must be less than Ready.
func (r *Ring[T]) Read(i int) T { return r.entries[(r.next+uint32(i))&r.mask] }

// Release gives the next n entries, which were read, back to the kernel.
func (r *Ring[T]) Release(n int) {
	r.next += uint32(n)
	atomic.StoreUint32(r.cons, r.next)
}

// NeedWakeup reports whether the kernel waits for a system call before it
// looks at the ring again.
func (r *Ring[T]) NeedWakeup() bool {
	return atomic.LoadUint32(r.flag)&unix.XDP_RING_NEED_WAKEUP != 0
}
