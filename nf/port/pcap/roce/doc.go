// Package roce teaches gopacket the RoCE headers, so that a capture read with
// it shows a base transport header and its extended headers where it would
// show bytes. Register does so, and nothing happens before it is called.
//
//	Ethernet  IPv4|IPv6  UDP:4791  BTH  RETH|AtomicETH|AETH|...  payload
//	Ethernet  GRH                  BTH  ...
//
// The layers are for tools and tests that read captures; the packet path uses
// package hdr, whose opcode table these layers follow.
package roce
