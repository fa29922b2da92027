// Package hdr reads and writes packet headers in place: a header is a byte
// slice with one getter and one setter a field. Getters return host order;
// nobody swaps bytes outside this package. Nothing here allocates.
//
// Parse walks an Ethernet frame to the RoCE transport and notes where
// everything is; it is total: for any input it either finds the transport or
// says why not, and it never panics.
//
// # What must be checked first
//
// A header does not know whether its slice is long enough. A getter or a setter
// panics if the slice ends before the field; so do Encode and methods that return a
// part, such as IPv4.Options. Parse checks the lengths of all that it finds. Walk
// checks those of the tags and, at Layers.L3, of the IP header with its options, and
// that the datagram fits in the frame. It does not look at the header at Layers.L4:
// that is there if Layers.End is at least L4 and the header's length, as UDPLen.
// Lengths in headers, such as TCP.HeaderLen, NSH.HeaderLen and UDP.Len, are what the
// sender wrote: compare them with the slice before you use them.
//
// Sources: IEEE 802.1Q; RFC 791, 768, 8200; IBTA Architecture Specification
// Volume 1 Release 1.4, chapter 9 (transport), annex A17 (RoCEv2).
package hdr
