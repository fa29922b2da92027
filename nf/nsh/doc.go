// Package nsh puts frames on service paths, passes them on, and takes them off, by the network service header
// (RFC 8300) over Ethernet, EtherType 0x894F.
//
//	next=ethernet   Ethernet NSH frame             as nt_classifier.p4 does it; 22 bytes more
//	next=ip         Ethernet [802.1Q] NSH IP ...   the frame's own Ethernet header; 8 bytes more
//
// Headers that the app makes have MD type 2 and no metadata. Headers that come in may have metadata of type 1 or
// 2, which stay, and disappear with the header when that is taken off.
//
// Each part of the architecture (RFC 7665) has one field to lower. A service function, here called task, lowers
// the service index (SI, RFC 8300 section 2.3). A forwarder, and an edge that takes headers off, lower the TTL
// (section 2.2; 0 counts as 64, and a frame whose TTL would become 0 is dropped). A frame that comes in with SI 0
// has passed all tasks of its path, and is dropped: the first SI of a path must be at least one more than the
// number of its tasks. Next protocols are Ethernet, IPv4 and IPv6. Packets of operations and maintenance (O) are
// dropped unless oam=pass (section 2.2).
//
// Up to two VLAN tags in front of the header stay where they are, with tasks and forwarders, and at an edge with
// next=ip. With next=ethernet the tags of a frame go inside with it. Fragments other than the first have no
// ports, and match only terms without ports. Nothing is fragmented: a frame that would be longer than mtu is
// dropped and counted, and ICMP tells the sender of an IP packet that must not be fragmented, in the name of the
// packet's destination (package mtu).
package nsh
