// Package topo wires a rack out of network namespaces: nodes on a Linux
// bridge, and a place on the memory node's cable for a bump in the wire.
//
//	c0 --eth0=====c0--+
//	c1 --eth0=====c1--+                 switch namespace
//	c2 --eth0=====c2--+-- br --m0=====m1 [inline] n0=====eth0-- mn
//	ms --eth0=====ms--+
//
// ===== is a veth pair. Nothing joins m1 and n0 but what runs inline on them. Several
// memory nodes are on a bridge of their own behind n0.
//
// The namespaces have no name anywhere: each is held by one thread of this
// process, and vanishes with its links when the process ends, however it
// ends. The switch namespace comes with a mount namespace of its own that has
// a private BPF file system and /run, so that what is pinned there, and the
// sockets that its processes listen on, vanish as well.
//
// Addresses are static: nodes are told each other's, the bridge's table is
// filled, the kernel of a node has no address and answers nothing. A Topology
// may be used from any goroutine.
package topo
