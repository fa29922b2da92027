// Package demo shows what a middlebox gains: Clover clients run a YCSB mix against one memory node, while the
// middlebox on the memory node's cable first passes everything (off), then steers writes (write), then writes
// and reads (read-write). The phases are measured one after another on the same data, and compared. For other
// stores (Config.Store) the middlebox is a swordbox, with the phases off, mux and replace.
//
//	endpoints (this process)             middlebox (its own process)
//	c0 c1 c2 ms ─── bridge ─── m1 [ clover-steer ] n0 ─── mn
//
// The endpoints connect by their connection managers over the wire, as RDMA CM does, and disconnect at the
// end, so that the middlebox learns its connections as it would learn those of any clients. With Config.CM
// unset they are connected by configuration, and the middlebox infers the connections.
//
// ClioInNamespaces and ClioInMemory run the case of disaggregated memory instead: Clio's key/value devices,
// clients, and a SuperNIC board between them.
//
// Without privileges everything is in one process, on wires in memory.
//
// The package measures and presents. Run takes the middlebox as a Box and the load as Clients, wherever these
// run.
package demo
