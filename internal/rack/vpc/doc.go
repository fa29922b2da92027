// Package vpc builds the network of the case study of a virtual private cloud: two
// sites of one tenant, a board in front of each site, and between the boards a wire that is
// not trusted.
//
//	hosts a ─ a-in [board] a-out ═══ wire ═══ b-out [board] b-in ─ hosts b
//	client 10.1.0.2, server 198.51.100.10         client 10.2.0.2, server 203.0.113.10
//
// Both boards run the same chain for frames of their hosts, firewall -> NAPT -> AES.
// The firewall decides which hosts may open connections, by the hosts' own addresses. The
// NAPT translates clients' addresses to the address that their site shares, and does not change
// frames of the server, which has a public address. AES puts all frames to the other site into an
// ESP tunnel between the boards, so that not even these addresses are visible on the wire. A frame
// from the wire runs through the chain backwards: it is decrypted, gets its private
// address back, and must belong to a connection, or to one that may be opened. So board b has a NAPT,
// too, for its own clients; this NAPT decides nothing for clients of site a.
//
// The hosts of a site share a namespace, and both boards share another one.
//
// Source: Shan, SuperNIC (UCSD thesis, 2022), section 5.6.2.
package vpc
