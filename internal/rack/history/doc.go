// Package history records what clients asked of shared memory and what they
// were told, and checks that it was linearizable: that one order of all
// operations, each at one moment between its call and its return, explains
// every answer (Herlihy and Wing, "Linearizability: a correctness condition for
// concurrent objects", TOPLAS 1990).
//
//	log := new(history.Log[history.Word, uint64])
//	id := log.Call(connection, now, history.Word{Op: rnic.OpFetchAdd, Addr: va, Swap: 1})
//	...
//	log.Return(id, now, original)
//	err := history.Check(history.Words(initial), log, 0)
//
// An operation that never returned (its client died, its queue pair failed) may
// have happened at any time after its call, or not at all; Check allows both. Forget takes an
// operation back that certainly did not happen.
//
// There are three models: Words for 8-byte words under RDMA verbs, Locks for the
// holders of locks, Registers for a key/value store in which all written values are
// different.
package history
