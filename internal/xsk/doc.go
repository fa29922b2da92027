// Package xsk handles the kernel's side of AF_XDP: user memory (UMEM), the four
// rings of a socket, the XDP programs that feed the rings, and attaching these
// programs. It does not know the graph.
//
// # Memory order
//
// A ring is memory shared with the kernel: an array of entries, a producer
// and a consumer index that only grow, and a flags word. Each index has one
// writer.
//
//   - The side that writes entries stores them first and the producer index
//     after (store-release); the other side loads the producer index first
//     (load-acquire) and reads entries after.
//   - The side that reads entries is done with them before it stores the
//     consumer index (store-release); the other side loads the consumer index
//     (load-acquire) before it overwrites entries.
//
// Indices and flags are only accessed through sync/atomic, whose operations
// are sequentially consistent, which is at least as strong as needed. Entries are accessed by
// plain loads and stores. An index is loaded or stored once per batch, not once per
// entry. A ring belongs to one goroutine at a time.
//
// # Heartbeat
//
// The XDP program of a wire sends a frame to a socket only while the queue's
// heartbeat, a CLOCK_MONOTONIC time in the shared State page, is fresh.
// Otherwise, or when the socket is gone, the frame crosses in the kernel, with three exceptions, in
// which it is dropped: the filter is Closed; the filter is Bound and the frame is to a queue pair of
// the Set; the filter is Guarded and the frame is an atomic that the Guard stops.
package xsk
