// Package vpc is the network of the case study of a virtual private cloud: two
// sites of one tenant, with a board before each, and between them a wire that is not
// trusted.
//
//	hosts a ─ a-in [board] a-out ═══ wire ═══ b-out [board] b-in ─ hosts b
//	client 10.1.0.2, server 198.51.100.10         client 10.2.0.2, server 203.0.113.10
//
// Both boards run the same chain, firewall -> NAPT -> AES, each as seen from its hosts:
// the firewall says who may open connections, with the hosts' own addresses; the
// NAPT gives clients the address that their site shares, and lets the server pass, which has
// a public address; AES puts all that goes to the other site into a tunnel of ESP
// between the boards, so that on the wire not even these addresses are seen. What
// comes from the wire runs back through the chain: it is decrypted, gets its private
// address, and must be of a connection or one that may be opened. So board b has a NAPT,
// too, for its own clients; it decides nothing for those of site a.
//
// Hosts are a namespace a site, boards share one.
//
// Source: Shan, SuperNIC (UCSD thesis, 2022), section 5.6.2.
package vpc
