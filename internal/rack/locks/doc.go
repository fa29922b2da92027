// Package locks is a load of locks and counters on shared 8-byte words: the
// access patterns of disaggregated data structures without the structures, so
// that what must hold is plain to see.
//
//	Spin        lock by CAS 0 -> owner, release by WRITE 0 or by CAS (Sherman's locks)
//	Table       RCuckoo's: many one-bit locks a word, masked CAS, several at once
//	Count       FETCH-ADD
//	CASCount    read, then compare-and-swap until it succeeds
//	Open        all verbs on shared words and on private memory, many in flight
//
// Sessions write and read the data that locks protect with plain WRITEs and READs. A session writes its owner
// number and a sequence number to both ends of a block; if it does not read the same back, two sessions were in
// the critical section. Every operation on a shared word is recorded in one
// history, every holding of a lock in another.
//
// A Client is a state machine (host.App): its sessions, each on a queue pair, do
// their work step by step as completions come in. A session whose queue pair
// fails asks for another one, finds out whether it still holds its lock, and goes on.
package locks
