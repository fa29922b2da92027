// Package demo shows what steering gains: Clover clients run a YCSB mix
// against one memory node, while the middlebox on the memory node's cable
// first passes everything (off), then steers writes (write), then writes and
// reads (read-write). The phases are measured one after another on the same
// data, and compared.
//
//	endpoints (this process)             middlebox (its own process)
//	c0 c1 c2 ms ─── bridge ─── m1 [ clover-steer ] n0 ─── mn
//
// The endpoints connect by their connection managers over the wire, as RDMA CM does, and disconnect
// at the end, so that the middlebox learns its connections as it would from any clients; or, with
// Config.CM unset, by configuration, and it infers them.
//
// Without privileges everything is in one process, on wires in memory.
//
// The package measures and presents. The caller brings the middlebox, and the way to talk to it,
// as a Box.
package demo
