// Package nsh puts frames on service paths, passes them on, and takes them off:
// the network service header (RFC 8300) over Ethernet, EtherType 0x894F.
//
//	next=ethernet   Ethernet NSH frame             as nt_classifier.p4 does it; 22 bytes more
//	next=ip         Ethernet [802.1Q] NSH IP ...   the frame's own Ethernet header; 8 bytes more
//
// A header that is made has MD type 2 and no metadata. Metadata of headers that
// come in, of type 1 or 2, are kept, and go with the header when it is taken off.
//
// Each of the architecture's parts (RFC 7665) has one field to lower: a service
// function, here a task, the service index (SI, RFC 8300 section 2.3); a forwarder,
// and an edge that takes headers off, the TTL (section 2.2; 0 is one of 64, and what
// would have 0 afterwards is dropped). A frame that comes in with SI 0 has been
// through all tasks that its path has, and is dropped: the first SI of a path is at
// least one more than its tasks. Next protocols are Ethernet, IPv4 and IPv6. Packets
// of operations and maintenance (O) are dropped unless oam=pass (section 2.2).
//
// VLAN tags in front of the header, up to two, stay where they are under task and
// forwarder, and with next=ip; with next=ethernet those of a frame go inside with
// it. Fragments but the first have no ports, and match only where none are asked
// for. Nothing is fragmented: what would be longer than mtu is dropped and counted,
// and the sender of an IP packet that must not be fragmented is told so by ICMP, in
// the name of the packet's destination (package mtu).
package nsh
