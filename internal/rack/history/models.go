package history

import (
	"fmt"

	"github.com/quillon/quillon/rack/rnic"
)

// Word is an RDMA operation on one 8-byte word. Values are numbers as the memory's host reads them
// (little-endian), for the bytes of a WRITE as well as for the operands of an atomic.
type Word struct {
	// Op is OpRead, OpWrite, OpCompareSwap, OpFetchAdd or OpMaskedCompareSwap.
	Op   rnic.Op
	Addr uint64
	// Swap is also the value of a WRITE, and the addend of a FETCH-ADD.
	Compare, Swap         uint64
	CompareMask, SwapMask uint64
}

// Words is the model of memory. Every aligned word is an object. Every client is a connection of two queue
// pairs, on which WRITEs and atomics are executed in the order in which they were posted (a READ may be
// overtaken). The answer of a READ is the value that was read, that of an atomic the original value; that of
// a WRITE does not matter. initial may be nil: then all words are 0 at first.
func Words(initial func(addr uint64) uint64) Model[Word, uint64] {
	if initial == nil {
		initial = func(uint64) uint64 { return 0 }
	}
	return Model[Word, uint64]{
		Name:   "word",
		Object: func(w Word) uint64 { return w.Addr },
		Init:   initial,
		Step: func(state uint64, w Word, out uint64, returned bool) (uint64, bool) {
			return w.After(state), !returned || w.Op == rnic.OpWrite || out == state
		},
		Needs: func(w Word, out uint64) (uint64, bool) { return out, w.Op == rnic.OpWrite },
		Makes: func(w Word) (uint64, bool) {
			return w.Swap, w.Op == rnic.OpWrite || w.Op == rnic.OpCompareSwap
		},
		Inert:   func(w Word) bool { return w.Op == rnic.OpRead },
		InOrder: func(w Word) bool { return w.Op != rnic.OpRead },
		Describe: func(w Word, out uint64, returned bool) string {
			s := ""
			switch w.Op {
			case rnic.OpRead:
				s = "READ"
			case rnic.OpWrite:
				s = fmt.Sprintf("WRITE %#x", w.Swap)
			case rnic.OpCompareSwap:
				s = fmt.Sprintf("CAS %#x -> %#x", w.Compare, w.Swap)
			case rnic.OpFetchAdd:
				s = fmt.Sprintf("FAA %#x", w.Swap)
			case rnic.OpMaskedCompareSwap:
				s = fmt.Sprintf("MCAS %#x&%#x -> %#x&%#x", w.Compare, w.CompareMask, w.Swap, w.SwapMask)
			}
			switch {
			case !returned:
				s += ", outcome unknown"
			case w.Op != rnic.OpWrite:
				s += fmt.Sprintf(" = %#x", out)
			}
			return s
		},
		State: func(s uint64) string { return fmt.Sprintf("%#x", s) },
	}
}

// Unfenced is Words for a server that executes READs and atomics late
// (rnic.Config.LateAtomics): WRITEs may overtake both.
func Unfenced(initial func(addr uint64) uint64) Model[Word, uint64] {
	m := Words(initial)
	m.InOrder = func(w Word) bool { return w.Op == rnic.OpWrite }
	return m
}

// After returns the word's value after the operation on value v.
func (w Word) After(v uint64) uint64 {
	switch w.Op {
	case rnic.OpWrite:
		return w.Swap
	case rnic.OpFetchAdd:
		return v + w.Swap
	case rnic.OpCompareSwap:
		if v == w.Compare {
			return w.Swap
		}
	case rnic.OpMaskedCompareSwap:
		if (v^w.Compare)&w.CompareMask == 0 {
			return v&^w.SwapMask | w.Swap&w.SwapMask
		}
	}
	return v
}

// Lock is an operation on a lock. Attempts that failed are not recorded.
type Lock struct {
	Lock uint64
	// Owner differs between all holdings of the lock; it is not 0.
	Owner uint64
	// From: 0 takes the lock if it is free; another owner: takes it from that owner, which is dead. A release
	// does not use From.
	From    uint64
	Release bool
}

// needs returns the holder before, and makes the holder after; 0: there is none.
func (l Lock) needs() uint64 {
	if l.Release {
		return l.Owner
	}
	return l.From
}

func (l Lock) makes() uint64 {
	if l.Release {
		return 0
	}
	return l.Owner
}

// Locks is the model of locks that are free at first: a lock never has two holders, and only the holder
// releases it.
func Locks() Model[Lock, struct{}] {
	return Model[Lock, struct{}]{
		Name:   "lock",
		Object: func(l Lock) uint64 { return l.Lock },
		Init:   func(uint64) uint64 { return 0 },
		Step: func(holder uint64, l Lock, _ struct{}, returned bool) (uint64, bool) {
			if holder == l.needs() {
				return l.makes(), true
			}
			return holder, !returned
		},
		Needs: func(l Lock, _ struct{}) (uint64, bool) { return l.needs(), false },
		Makes: func(l Lock) (uint64, bool) { return l.makes(), true },
		Inert: func(Lock) bool { return false },
		Describe: func(l Lock, _ struct{}, returned bool) string {
			s := fmt.Sprintf("acquire as %#x", l.Owner)
			if l.From != 0 {
				s += fmt.Sprintf(" from %#x, dead", l.From)
			}
			if l.Release {
				s = fmt.Sprintf("release as %#x", l.Owner)
			}
			if !returned {
				s += ", outcome unknown"
			}
			return s
		},
		State: func(h uint64) string {
			if h == 0 {
				return "free"
			}
			return fmt.Sprintf("held by %#x", h)
		},
	}
}

// Register is a read or a write of a key of a key/value store. Every write has a number of its own, from
// which the value's bytes are made; 0 is the value before the first write. (In Clover the number is the tag
// that a session of the workload puts into the first 8 bytes.)
type Register struct {
	Key   uint64
	Write bool
	Value uint64 // of a write
}

// Registers is the model of a key/value store: the answer of a read is the number of the latest write.
// initial may be nil: then every key has value 0 at first.
func Registers(initial func(key uint64) uint64) Model[Register, uint64] {
	if initial == nil {
		initial = func(uint64) uint64 { return 0 }
	}
	return Model[Register, uint64]{
		Name:   "key",
		Object: func(r Register) uint64 { return r.Key },
		Init:   initial,
		Step: func(value uint64, r Register, out uint64, returned bool) (uint64, bool) {
			if r.Write {
				return r.Value, true
			}
			return value, !returned || out == value
		},
		Needs: func(r Register, out uint64) (uint64, bool) { return out, r.Write },
		Makes: func(r Register) (uint64, bool) { return r.Value, true },
		Inert: func(r Register) bool { return !r.Write },
		Describe: func(r Register, out uint64, returned bool) string {
			s := "read"
			switch {
			case r.Write:
				s = fmt.Sprintf("write %#x", r.Value)
			case returned:
				s = fmt.Sprintf("read = %#x", out)
			}
			if !returned {
				s += ", outcome unknown"
			}
			return s
		},
		State: func(s uint64) string { return fmt.Sprintf("%#x", s) },
	}
}
