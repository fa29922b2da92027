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

// The state map is an array that is mapped into the process. Entry 0 is the
// record of the interface, entry q+1 belongs to queue q. An entry has two cache lines,
// so that the process and the kernel write to different ones.
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

// NewState makes the shared memory for an interface with this number of queues.
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

// ifindex returns the index of the interface that the state belongs to.
func (s *State) ifindex() int { return int(atomic.LoadUint64(s.word(0, offIndex))) }

// Queues returns the number of queues for which the state has room.
func (s *State) Queues() int { return s.queues }

// Heartbeat returns the word in which the queue's worker stores the time: CLOCK_MONOTONIC
// in nanoseconds, 0 if there is no worker. The pointer is valid until Close.
func (s *State) Heartbeat(queue int) *uint64 { return s.word(queue+1, offHeartbeat) }

// Bypassed returns the counter of the queue's frames that crossed and that no app wanted.
func (s *State) Bypassed(queue int) *uint64 { return s.word(queue+1, offBypassed) }

// Missed returns the counter of the queue's frames that an app wanted and no worker took.
func (s *State) Missed(queue int) *uint64 { return s.word(queue+1, offMissed) }

// ShutOut returns the counter of the queue's frames that were dropped because no worker took them and the filter is
// Closed, Bound or Guarded.
func (s *State) ShutOut(queue int) *uint64 { return s.word(queue+1, offShutOut) }

// TooLong returns the counter of the queue's frames that should cross, bypassed or missed, and that the kernel drops
// because they are longer than the other interface may send.
func (s *State) TooLong(queue int) *uint64 { return s.word(queue+1, offTooLong) }

// Restore returns the words that SetRestore stored. They live as long as the program. Their
// meaning is the caller's: which settings to put back when the wire is removed.
func (s *State) Restore() (w [restoreWords]uint64) {
	for i := range w {
		w[i] = atomic.LoadUint64(s.word(0, offRestore+8*i))
	}
	return w
}

// SetRestore stores the words that Restore returns.
func (s *State) SetRestore(w [restoreWords]uint64) {
	for i := range w {
		atomic.StoreUint64(s.word(0, offRestore+8*i), w[i])
	}
}

// Close unmaps the memory and closes the map. A program that uses the map keeps it alive.
func (s *State) Close() error {
	if s == nil || s.mem == nil {
		return nil
	}
	err := errors.Join(unix.Munmap(s.mem), s.m.Close())
	s.mem = nil
	return err
}
