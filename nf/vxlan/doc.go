// Package vxlan carries Ethernet frames over an IP network: a VXLAN tunnel endpoint (VTEP) with one peer (RFC
// 7348).
//
//	a: a frame  ─►  Ethernet [802.1Q] IPv4|IPv6 UDP VXLAN frame  ─►  b
//
// The tag of a frame from a tenant VLAN is removed, and put back at the other end of the tunnel (RFC 7348 section
// 6.1): the VNI stands for it; priority and DEI are lost. The frame is otherwise untouched. Its own IP TTL stays,
// as over any bridge.
//
// Outer header. The source port, in 49152..65535, is a hash of the inner flow (section 5): of addresses, protocol
// and ports of IP, without the ports in all fragments of a datagram, so that they stay together; of MAC addresses
// and type for other frames. Over IPv6 the flow label has the same hash (RFC 6438). DF is set and nothing is ever
// fragmented (section 4.3): a frame that needs an IP datagram of more than mtu bytes is dropped and counted. The
// inner network's MTU must therefore be 50 bytes less than mtu over IPv4, and 70 over IPv6 (4 more for tagged
// frames that keep their tags). ICMP tells the sender of a longer packet, in the name of the packet's
// destination, because a bridge has no address to report from (package mtu); it tells nobody for IPv4 without DF,
// for multicast, and for frames that are not IP. With mss= TCP SYNs ask for segments that fit, in both
// directions. First fragments of tunnel datagrams are dropped on the way in; later fragments cannot be
// recognized, and pass.
//
// Neighbours. ARP requests and neighbour solicitations for the address local= that come from the tunnel's side
// are answered with local-mac=, and go no further.
//
// UDP checksum. Over IPv4 it is sent as 0 (section 4.1.2 of RFC 7348 leaves no other good choice), and verified
// when it is not 0. Over IPv6 it is computed and required, unless checksum6=zero says that both ends are set up
// for tunnels without (RFC 6935 section 5; RFC 6936 section 4 wants that to be configured, and the source and
// destination address to be checked, which is always done).
//
// ECN: RFC 6040. At the entry, normal mode copies the inner field, and compatibility mode sends Not-ECT. At the
// exit, its figure 4 holds: congestion in the tunnel is noted in the inner header, with its checksum; a frame
// with CE outside is dropped if its sender did not offer ECN. Frames other than IP lose the mark, which is
// counted.
package vxlan
