// Package journal declares what an app keeps on a disk, so that it outlives a reboot of the machine. Package
// internal/state writes it.
package journal

// Entry is an entry of a Journal. The zero entry means that the slot is free.
type Entry [6]uint64

// Arrange returns the entries with which a journal begins, by slot, from those that are left in it. lost says that these
// are of an earlier boot of the machine: all other memory of the app's is gone, and so are programs and maps in the
// kernel. Arrange is called once in a process.
type Arrange func(left []Entry, lost bool) (map[int]Entry, error)

// Journal keeps entries on a disk, in slots numbered from 0. Its methods never block. Only one goroutine at a time may
// use a slot.
type Journal interface {
	// Keep stores e in a slot and reports whether it is on the disk. If it is not, the caller asks again later.
	Keep(slot int, e *Entry) (durable bool)
	// Drop frees a slot. It may be on the disk for some time more, and for good after an error.
	Drop(slot int)
	// Slots returns the number of slots. It is larger than what an app asked for that finds the journal open, of an app with more.
	Slots() int
	// Err returns why nothing can be written any more, or nil. Keep returns false from then on for new entries.
	Err() error
}
