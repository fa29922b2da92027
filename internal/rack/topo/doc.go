// Package topo builds a rack of network namespaces: nodes on a Linux
// bridge, and a place for a middlebox on the memory node's cable.
//
//	c0 --eth0=====c0--+
//	c1 --eth0=====c1--+                 switch namespace
//	c2 --eth0=====c2--+-- br --m0=====m1 [inline] n0=====eth0-- mn
//	ms --eth0=====ms--+
//
// ===== is a veth pair. Only the middlebox that runs on m1 and n0 joins them. If there are several
// memory nodes, they are on a bridge of their own behind n0.
//
// The namespaces have no name anywhere: each is held by one thread of this
// process, and vanishes with its links when the process ends, however it
// ends. The switch namespace comes with a mount namespace of its own that has
// a private BPF file system and /run, so that what is pinned there, and the
// sockets that its processes listen on, vanish as well.
//
// Addresses are static: each node knows the others' addresses, the bridge's forwarding table is
// filled in advance, and the kernel in a node's namespace has no address and answers nothing. Any
// goroutine may use a Topology.
package topo
