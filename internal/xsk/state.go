package xsk

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// The state map: an array that is mapped into the process. Entry 0 is the
// wire's own record, entry q+1 belongs to queue q. The two cache lines of an
// entry keep what the process writes apart from what the kernel writes.
const (
	stateEntry    = 128
	offHeartbeat  = 0  // written by the worker: CLOCK_MONOTONIC, ns
	offBypassed   = 64 // written by the program
	offMissed     = 72
	offShutOut    = 80
	offTooLong    = 88
	offMagic      = 0 // of entry 0
	offRestore    = 8 // four words
	offIndex      = 40
	stateMagic    = 0x7175696c6c6f6e32
	restoreWords  = 4
	stateMapName  = "quillon_state"
	socketMapName = "quillon_xsks"
)

// State is the memory that the program and the process share.
type State struct {
	m      *ebpf.Map
	mem    []byte
	queues int
}

// NewState makes the shared memory for an interface of queues queues.
func NewState(ifindex, queues int) (*State, error) {
	m, err := ebpf.NewMap(&ebpf.MapSpec{
		Name: stateMapName, Type: ebpf.Array, KeySize: 4, ValueSize: stateEntry,
		MaxEntries: uint32(queues) + 1, Flags: unix.BPF_F_MMAPABLE,
	})
	if err != nil {
		return nil, fmt.Errorf("make the state map: %w", err)
	}
	s, err := openState(m)
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	atomic.StoreUint64(s.word(0, offMagic), stateMagic)
	atomic.StoreUint64(s.word(0, offIndex), uint64(ifindex))
	return s, nil
}

func openState(m *ebpf.Map) (*State, error) {
	size := int(m.MaxEntries()) * stateEntry
	page := os.Getpagesize()
	size = (size + page - 1) / page * page
	mem, err := unix.Mmap(m.FD(), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map the state: %w", err)
	}
	return &State{m: m, mem: mem, queues: int(m.MaxEntries()) - 1}, nil
}

func (s *State) word(entry, off int) *uint64 {
	return (*uint64)(unsafe.Pointer(&s.mem[entry*stateEntry+off]))
}

// ifindex is the interface whose state it is.
func (s *State) ifindex() int { return int(atomic.LoadUint64(s.word(0, offIndex))) }

// Queues is the number of queues that it has room for.
func (s *State) Queues() int { return s.queues }

// Heartbeat is the word that a worker stores the time in: CLOCK_MONOTONIC
// nanoseconds, 0 for no worker. Valid until Close.
func (s *State) Heartbeat(queue int) *uint64 { return s.word(queue+1, offHeartbeat) }

// Bypassed counts frames of the queue that nobody wanted.
func (s *State) Bypassed(queue int) *uint64 { return s.word(queue+1, offBypassed) }

// Missed counts frames of the queue that were wanted and not seen.
func (s *State) Missed(queue int) *uint64 { return s.word(queue+1, offMissed) }

// ShutOut counts those of the missed frames that were dropped, for a filter that is Closed, Bound or Guarded.
func (s *State) ShutOut(queue int) *uint64 { return s.word(queue+1, offShutOut) }

// TooLong counts frames of the queue that were to cross, bypassed or missed, and are longer than the other interface sends: the kernel
// drops them.
func (s *State) TooLong(queue int) *uint64 { return s.word(queue+1, offTooLong) }

// Restore are words of the owner's choice that live as long as the program:
// what to put back when the wire goes.
func (s *State) Restore() (w [restoreWords]uint64) {
	for i := range w {
		w[i] = atomic.LoadUint64(s.word(0, offRestore+8*i))
	}
	return w
}

// SetRestore stores them.
func (s *State) SetRestore(w [restoreWords]uint64) {
	for i := range w {
		atomic.StoreUint64(s.word(0, offRestore+8*i), w[i])
	}
}

// Close unmaps the memory. A program that uses the map keeps it alive.
func (s *State) Close() error {
	if s == nil || s.mem == nil {
		return nil
	}
	err := errors.Join(unix.Munmap(s.mem), s.m.Close())
	s.mem = nil
	return err
}

// Monotonic is CLOCK_MONOTONIC in nanoseconds, the clock of heartbeats.
func Monotonic() (int64, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0, err
	}
	return ts.Nano(), nil
}
