// Package hdr reads and writes packet headers in place: a header is a byte
// slice with one getter and one setter a field. Getters return host order;
// nobody swaps bytes outside this package. Nothing here allocates.
//
// Parse walks an Ethernet frame to the RoCE transport and notes where
// everything is; it is total: for any input it either finds the transport or
// says why not, and it never panics.
//
// Sources: IEEE 802.1Q; RFC 791, 768, 8200; IBTA Architecture Specification
// Volume 1 Release 1.4, chapter 9 (transport), annex A17 (RoCEv2).
package hdr
