// Package firewall is a stateful firewall between two ports, a and b. Rules say who may open a connection; a
// packet that belongs to no connection and may not open one is dropped.
//
//	packet of a connection ──► followed (TCP: flags, numbers)  ──► passes
//	ICMP error             ──► quotes a packet of a connection ──► passes
//	opens a connection     ──► rules, by priority              ──► passes, and begins a connection
//	anything else          ──► dropped, counted by reason
//
// Both directions of a connection have one key: protocol, VLANs (of both tags), addresses and ports, ordered by
// the side that they are on. UDP and other protocols have connections, too, which last as long as there is
// traffic. An ICMP query is a connection that its identifier names. Of ICMP only queries, errors and neighbour
// discovery pass.
//
// TCP. The state follows the handshake (RFC 9293 3.5), FINs and RSTs. Numbers are checked as van Rooij describes
// (Real Stateful TCP Packet Filtering in IP Filter, 2000). A segment must begin within the room that its receiver
// has offered, scaled (RFC 7323), and end within what the receiver may still want. It must acknowledge nothing
// that was not sent, and nothing that is more than a window (at least 66,000 bytes) behind. A RST ends a
// connection when its number is one that the receiver may be waiting for; other RSTs within the window pass, and
// the receiver asks back (RFC 5961 3). For the same reason a SYN for an open connection passes and changes
// nothing, unless it is the opener's and the other end answers it with a SYN or a RST before either end has sent
// anything else: then both ends have lost the connection. An ICMP error about a segment must quote a number within what was sent (RFC 5927 4.1). With mode=loose
// only flags are checked, and so it is for a connection of which a segment has come in fragments.
//
// A connection is half-open while its handshake lasts, or until somebody has answered. There are at most half=
// half-open connections, and at most half-per-source= for a source; per-source= bounds all connections of a
// source, open ones included. Sources are counted in a sketch that may count too many for a source, never too
// few: the error is about n/4096 when other sources have n connections. A sender that forges another host's
// address uses up the half-open connections of that address, and opens none, because the answer goes to the other
// host (except for TCP with mode=loose). A new connection that finds no place takes the place of that half-open
// connection among 16 that would be forgotten first. Open connections are never replaced.
//
// Fragments. The first fragment is treated like a whole datagram. If it passes, the later fragments of the
// datagram (by addresses, protocol, identification, side and VLANs) pass for 30 s; fragments that come before it
// are dropped. First fragments with only a part of the transport header, and later fragments that begin within
// that header, are dropped (RFC 1858, RFC 3128), and so are IPv6 extension headers behind a fragment header,
// because nothing is reassembled here.
//
// While no worker runs the app, nothing crosses in its place (port.Filter.Closed).
//
// Datagrams with a source route are dropped, because rules do not see their final destination.
//
// Checksums are not verified, and frames are not changed. With several workers each connection is in a shard by
// its hash, whoever sees its packets. A source has one limit for all workers; workers that open connections at
// the same time may exceed it by one each.
package firewall
