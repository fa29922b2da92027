// Package napt shares public IPv4 addresses among private hosts: network address and port translation (RFC 3022),
// with the behaviour that RFC 4787 (UDP), RFC 5382 (TCP) and RFC 5508 (ICMP) ask for.
//
//	a: 10.0.0.2:1000 ──► 198.51.100.1:1000 ──► b
//	   10.0.0.2:1000 ◄── 198.51.100.1:1000 ◄──
//
// Mapping is endpoint-independent (RFC 4787 REQ-1): a private address, port and VLANs (of both tags) have one
// public address and port for a protocol, whoever the other end is. TCP, UDP and ICMP queries (by identifier) are
// translated. A host keeps one public address while that has free ports (REQ-2, paired). A mapping keeps its
// private port outside if that is in ports= and free; otherwise it gets a random port of the same parity (REQ-3,
// REQ-4) or, if there is none, of the other parity. Ports below 1024 have no range of their own. Two mappings
// never share a port.
//
// Filtering (REQ-8) follows filter=: endpoint (anyone may answer), address (hosts that the private end has sent
// to) or port (address- and port-dependent). A TCP session is followed by SYN, FIN and RST. A segment that is in
// the middle of no session is dropped, and so is, silently, a SYN that the filter does not let in (RFC 5382
// REQ-4). A SYN that crosses another one on its way is let in (REQ-2). Where there is no room for another session
// or permission, a mapping with more than a sixteenth of all of them loses one, but never an open connection.
//
// Packets from b to a private address are dropped (others=hide). Linux' masquerading alone would route them;
// OpenWrt's rules, which reject what is forwarded from outside, are what people mean by NAPT.
//
// Hairpinning (REQ-9): a private host reaches another one by its public address and port, and is seen with its
// own public address and port.
//
// Times. A UDP mapping lives udp-idle after the last packet of its host (REQ-5, REQ-6: packets from outside do
// not count), and a mapping of an ICMP query icmp-idle. A TCP mapping lives as long as it has a session. A TCP
// session lives tcp-idle after its last segment. It lives only tcp-trans (RFC 5382 REQ-5) until both SYNs were
// seen, after both ends' FINs (a half-closed connection is open: RFC 6146 3.5.2.2), and after a RST until the
// private end continues. Sessions whose time is over are forgotten within 16 s.
//
// ICMP errors about packets of a mapping pass. Addresses, ports and identifier in the quotation are translated
// back, with their checksums, as far as the quotation goes (RFC 5508 REQ-4, REQ-5). An error does not prolong the
// time of a mapping. Errors that quote no packet of a mapping are dropped.
//
// Checksums are adapted (RFC 1624), not verified: a wrong checksum stays wrong. A UDP checksum of zero stays zero
// (RFC 768).
//
// Fragments. The first fragment has the ports. The later fragments of its datagram follow it for 30 s, and are
// dropped if they come before it (RFC 4787 REQ-14 permits that). Protocols without ports are dropped from private
// addresses, because these must not be seen outside; so is RoCEv2, whose ICRC covers what would change. IPv6 and
// frames that are not IP pass.
//
// Frames. TTL, DSCP and VLAN tags stay. A mapping knows the MAC address that its host's frames come from; frames
// to the host go there. With mac= frames to b have that address as their source, and ARP requests for public
// addresses are answered with it. With several workers some bits of a port select a shard; the private and the
// public port of a mapping select the same one, so that a mapping and its answers meet whichever worker sees
// them. While no worker runs the app, nothing crosses in its place (port.Filter.Closed).
package napt
