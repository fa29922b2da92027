package xdp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// shared is memory that the program and the process share: an array map of one entry. Its words are read and
// written by single loads and stores.
type shared struct {
	m   *ebpf.Map
	mem []byte
}

func newShared(name string, size int) (*shared, error) {
	size = max(8, size)
	m, err := ebpf.NewMap(&ebpf.MapSpec{Name: name, Type: ebpf.Array, KeySize: 4, ValueSize: uint32(size), MaxEntries: 1, Flags: unix.BPF_F_MMAPABLE})
	if err != nil {
		return nil, fmt.Errorf("make the map %s of %d bytes: %w", name, size, err)
	}
	return openShared(m)
}

// openShared maps the memory of an array map of one entry. It owns m.
func openShared(m *ebpf.Map) (*shared, error) {
	size := int(m.ValueSize())
	page := os.Getpagesize()
	mem, err := unix.Mmap(m.FD(), 0, (size+page-1)/page*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("map the memory of an array of %d bytes: %w", size, err), m.Close())
	}
	return &shared{m, mem[:size]}, nil
}

// word returns a pointer to word i.
func (s *shared) word(i int) *uint64 { return (*uint64)(unsafe.Pointer(&s.mem[8*i])) }

// words returns all words.
func (s *shared) words() []uint64 {
	return unsafe.Slice((*uint64)(unsafe.Pointer(&s.mem[0])), len(s.mem)/8)
}

func (s *shared) store(i int, v uint64) { atomic.StoreUint64(s.word(i), v) }

func (s *shared) cas(i int, was, v uint64) bool {
	return atomic.CompareAndSwapUint64(s.word(i), was, v)
}

func (s *shared) close() error {
	if s == nil {
		return nil
	}
	return errors.Join(unix.Munmap(s.mem[:cap(s.mem)]), s.m.Close())
}

// native appends words in the machine's byte order.
func native(b []byte, words ...uint64) []byte {
	for _, w := range words {
		b = binary.NativeEndian.AppendUint64(b, w)
	}
	return b
}

// half returns a pointer to the i-th 32-bit number.
func (s *shared) half(i int) *uint32 { return (*uint32)(unsafe.Pointer(&s.mem[4*i])) }

// nativeWords reads words in the machine's byte order.
func nativeWords(b []byte) []uint64 {
	w := make([]uint64, len(b)/8)
	for i := range w {
		w[i] = binary.NativeEndian.Uint64(b[8*i:])
	}
	return w
}
