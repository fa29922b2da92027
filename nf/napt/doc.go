// Package napt shares public IPv4 addresses among private hosts: network address
// and port translation (RFC 3022), with the behaviour that RFC 4787 (UDP), RFC 5382
// (TCP) and RFC 5508 (ICMP) ask for.
//
//	a: 10.0.0.2:1000 ──► 198.51.100.1:1000 ──► b
//	   10.0.0.2:1000 ◄── 198.51.100.1:1000 ◄──
//
// Mapping is endpoint-independent (RFC 4787 REQ-1): a private address, port and VLANs
// (of both tags) have one public address and port for a protocol, whoever the
// other end is. TCP, UDP and ICMP queries (by identifier) are translated. A host
// keeps to one public address while that has ports (REQ-2, paired). A port stays as
// it is when it is free in ports=, otherwise it is one at random of the same parity
// (REQ-3, REQ-4), at last of the other one; ports below 1024 have no range of their
// own. Two mappings never share a port.
//
// Filtering (REQ-8) is what filter= says: endpoint (anyone may answer), address
// (hosts that were sent to) or port (address- and port-dependent). A TCP session is
// followed by SYN, FIN and RST; what is in the middle of none is dropped, and so is
// a SYN that the filter does not let in, silently (RFC 5382 REQ-4). A SYN that meets
// another on its way is let in (REQ-2). Where there is no room for another session or
// permission, one of a mapping that has more than a sixteenth of them makes it, but no
// open connection.
//
// What comes from b to a private address is
// dropped (others=hide). Linux' masquerading alone would route it there; OpenWrt's
// rules, which reject what is forwarded from outside, are what people mean by NAPT.
//
// Hairpinning (REQ-9): a private host reaches another by its public address and
// port, and is seen with its own.
//
// Times. A UDP mapping lives udp-idle from the last packet of its host on (REQ-5,
// REQ-6: others' do not count), one of an ICMP query icmp-idle, one of TCP as long as
// a session does: tcp-idle, or tcp-trans before both SYNs (RFC 5382 REQ-5), from the
// second end's FIN on (a half-closed connection is open: RFC 6146 3.5.2.2), and from a
// RST on until the private end goes on. Sessions that are over are forgotten within 16 s.
//
// ICMP errors about packets of a mapping pass: addresses, ports and identifier in
// the quotation are translated back, with their checksums, as far as the quotation goes
// (RFC 5508 REQ-4, REQ-5); they keep nothing alive. Errors that quote nothing that is
// known are dropped.
//
// Checksums are adapted (RFC 1624), not verified: what is wrong stays wrong. A UDP
// checksum of zero stays zero (RFC 768).
//
// Fragments: the first one has the ports; the later ones of its datagram follow it
// for 30 s, and are dropped when they come before it (RFC 4787 REQ-14 leaves them to
// that). Protocols without ports, and RoCEv2, whose ICRC covers what is changed, are
// dropped from private addresses: these are not to be seen outside. IPv6 and what is
// no IP datagram pass.
//
// Frames. TTL, DSCP and VLAN tags stay. A mapping knows the MAC address that its
// host's frames come from, and what comes back goes there. With mac= frames to b
// have that as their source, and ARP requests for public addresses are answered with
// it. With several workers a public port belongs to the worker's share that the
// private port does (both by some of their bits), so that a mapping and its answers
// meet whoever sees them. While no worker runs the app nothing crosses in its place
// (port.Filter.Closed).
package napt
