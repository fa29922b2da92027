// Package aead protects IP packets with IPsec's Encapsulating Security Payload under AES-GCM: the payload that
// crosses a link is secret, and a receiver that shares the key detects payloads that were changed, repeated or
// forged.
//
// Port a is the plain side, port b the protected one. A packet from a to b whose destination a security
// association (SA) covers leaves as ESP. ESP from b to a, of one of the app's SAs, is verified and decrypted, and
// leaves as the packet that it was. Two apps, one at either end of a path, are transparent to the hosts on both
// sides. The other end may also be another implementation of ESP.
//
//	transport   [Eth][tags][IP      ][ESP 8][IV 8][payload         pad 2][ICV 16]
//	tunnel      [Eth][tags][outer IP][ESP 8][IV 8][inner IP packet pad 2][ICV 16]
//	                                 '-- authenticated --------------'
//
// Transport mode keeps the packet's addresses and hides what follows its IP
// header (IPv4 options, and IPv6's hop-by-hop and routing headers, stay in front).
// Tunnel mode hides the whole packet behind the addresses local= and remote=.
// Ethernet addresses and VLAN tags stay: the app is a bump on the wire, and what
// was the next hop still is. An inner packet's TTL is not lowered, for the same
// reason.
//
// # Keys
//
// SAs are static: SPIs and selectors are arguments, and keys are in a file that only its owner may read. There is
// no key exchange. RFC 4106 requires one, because AES-GCM breaks when a nonce is used twice with a key; these
// rules stand in for it:
//
//   - A sequence number never repeats in an SA's life: at lifetime= packets, at the
//     latest before the number would wrap, the SA sends no more (reason expired).
//   - env.Memory, where there is one, keeps each SA's number from before the packet
//     leaves: the next process goes on behind it. The numbers that were received are kept as well,
//     so that no packet from before is believed again.
//   - A journal, where there is one (env.Journal), has a higher number than each SA sends, and the number
//     that it had received some packets ago: a reboot takes some numbers from an SA, and what its peer takes
//     for new is new. With iv=random no packet waits for a disk that falls behind, by half a million packets and more: after
//     a reboot just then the peer takes as many for repetitions. Up to 16,384 packets that were received just before a reboot may be believed again after it.
//   - The IV, which makes the nonce with the key's salt, counts from a random
//     64-bit number drawn for each SA at its making (iv=random), so that even
//     without that memory two runs' nonces of n packets meet with a probability of
//     2n/2^64. iv=sequence makes it the sequence number: the same bytes in every
//     run, and safe only while every start without that memory has new keys.
//   - No two SPIs may have the same key and salt.
//
// # What is let through, and what is not
//
// From a: frames that are not IP, neighbour discovery (without which the link
// itself would end) and packets that no SA covers pass in the clear (other=drop:
// the latter do not). A packet that is covered never does: when it cannot be
// protected it is dropped, with its reason, and so is IP whose destination cannot
// be read. A fragment is protected in tunnel mode and dropped in transport mode (RFC 4303
// 3.3.4). A packet that is longer than mtu= once protected is dropped: 16 + 2 to 5 +
// 16 bytes are added, in tunnel mode 20 or 40 more. Its sender is told so by ICMP, in the
// name of its destination (package mtu): the app has no address of its own, as a bridge
// has none. IPv4 without DF is dropped and no more: nothing is fragmented. With mss= TCP
// SYNs that are protected or opened ask for no longer segments.
//
// From b: ESP of an unknown SA belongs to somebody else and passes. ESP of a known SA is dropped unless it is
// whole, its number is new (RFC 4303 3.4.3: a window of 64 to 1024 numbers), its ICV is right, its padding counts
// from 1, and the source of the packet inside is covered by the SA. Fragments of ESP are dropped: they must be
// reassembled before they come here. A packet in the clear is dropped if an SA covers its source (reason
// unprotected); otherwise it passes.
//
// While no worker runs the app, nothing crosses in its place (port.Filter.Closed).
//
// Left out: key exchange (IKEv2), UDP encapsulation (RFC 3948), multicast SAs,
// fragmentation before and after the tunnel, traffic flow confidentiality padding
// and dummy packets (both are understood when they are received), selectors other
// than addresses, the translation of ICMP errors from the protected side.
//
// All workers share an SA. They take turns at its number and its window, and encrypt at the same time.
//
// Sources: RFC 4303 (ESP), RFC 4106 (AES-GCM in ESP), RFC 4304 and RFC 4303
// appendix A (64-bit sequence numbers), RFC 4301 (selectors, tunnel headers), RFC
// 6040 (ECN in tunnels), RFC 6864 (IPv4 ID).
package aead
