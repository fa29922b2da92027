// Package history records operations of clients on shared memory and the answers that the clients got, and
// checks that they were linearizable: one order of all operations, each at one moment between its call and
// its return, explains every answer (Herlihy and Wing, "Linearizability: a correctness condition for
// concurrent objects", TOPLAS 1990).
//
//	log := new(history.Log[history.Word, uint64])
//	id := log.Call(connection, now, history.Word{Op: rnic.OpFetchAdd, Addr: va, Swap: 1})
//	...
//	log.Return(id, now, original)
//	err := history.Check(history.Words(initial), log, 0)
//
// An operation that never returned (its client died, or its queue pair failed) may have happened at any time
// after its call, or not at all; Check allows both. Forget takes back an operation that certainly did not
// happen.
//
// There are three models: Words for 8-byte words under RDMA verbs, Locks for the
// holders of locks, Registers for a key/value store in which all written values are
// different.
package history
