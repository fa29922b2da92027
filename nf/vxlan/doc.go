// Package vxlan carries Ethernet frames over an IP network: a VXLAN tunnel
// endpoint (VTEP) with one peer (RFC 7348).
//
//	a: a frame  ─►  Ethernet [802.1Q] IPv4|IPv6 UDP VXLAN frame  ─►  b
//
// Of a frame from a tenant VLAN the tag is left out, and put back behind the
// tunnel (RFC 7348 section 6.1): the VNI says it; priority and DEI are lost. The
// frame is otherwise untouched. Its own IP TTL stays, as over any bridge.
//
// Outer header. Source port: a hash of the inner flow, in 49152..65535 (section
// 5): addresses, protocol and ports of IP; without the ports in all fragments of
// a datagram, so that they stay together; MAC addresses and type of others. Over
// IPv6 the flow label is of the same hash (RFC 6438). DF is set and nothing is
// ever fragmented (section 4.3): what makes an IP datagram of more than mtu bytes
// is dropped and counted. So the inner network's MTU must be 50 bytes less than mtu
// over IPv4, and 70 over IPv6 (4 more for tagged frames that keep their tags). The
// sender of a longer packet is told so by ICMP, in the name of the packet's
// destination, since a bridge has no address to report from (package mtu); of IPv4
// without DF, of multicast, and of what is not IP, nobody is told. With mss= TCP SYNs
// ask for no longer segments, in both directions. First fragments of tunnel datagrams
// are dropped on the way in; later ones are not known for what they are, and pass.
//
// Neighbours. ARP requests and neighbour solicitations for local that come on the
// tunnel's side are answered with local-mac, and go no further.
//
// UDP checksum. IPv4: sent as 0 (section 4.1.2 of RFC 7348 leaves nothing else
// to do well), verified when it is not 0. IPv6: computed and demanded, unless
// checksum6=zero says that both ends are set up for tunnels without (RFC 6935
// section 5; RFC 6936 section 4 wants that to be configured, and the source and
// destination address to be checked, which is always done).
//
// ECN: RFC 6040. Inwards, normal mode copies the inner field, compatibility mode
// sends Not-ECT. Outwards, figure 4 of it: congestion that was met in the tunnel
// is handed to the inner header, checksum included; a frame whose sender did not
// offer ECN is dropped when it met CE. Frames other than IP lose it, counted.
package vxlan
