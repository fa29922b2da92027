// Package firewall is a stateful firewall between two ports: rules say who may open
// a connection, and what belongs to none is dropped.
//
//	packet of a connection ──► followed (TCP: flags, numbers) ──► passes
//	ICMP error             ──► quotes a packet of one          ──► passes
//	opens a connection     ──► rules, by priority              ──► passes, and is one
//	all else               ──► dropped, counted by reason
//
// Both directions of a connection have one key: protocol, VLANs (of both tags),
// addresses and ports, ordered by the side that they are on. UDP and other
// protocols have connections, too, which last as long as there is traffic; an ICMP
// query is one by its identifier. Of ICMP only queries, errors and neighbour
// discovery pass.
//
// TCP. States follow the handshake (RFC 9293 3.5), FINs and RSTs. Numbers are
// looked at as van Rooij does (Real Stateful TCP Packet Filtering in IP Filter,
// 2000): a segment begins within the room that its receiver has made, scaled
// (RFC 7323), ends within what the receiver may still want, and acknowledges nothing
// that was not sent, and nothing that is more than a window (at least 66,000 bytes) behind.
// A RST ends a connection when its number is one that the receiver may be waiting
// for; others within the window pass, and the receiver asks back (RFC 5961 3). A
// SYN for an open connection passes and changes nothing, for the same reason. An
// ICMP error about a segment must quote a number within what was sent (RFC 5927
// 4.1). With mode=loose only flags are looked at. The same is done with a connection
// once one of its segments has come in fragments.
//
// Half-open connections are those of a handshake that is not over, or that nobody
// has answered. There are at most half= of them, and half-per-source= for a source;
// per-source= bounds those that are open as well. Sources are counted in a sketch that
// may count too many for one, never too few: beside n connections of others some
// n/4096. A sender that uses another's address uses up the half-open ones of that address, and
// opens none, as the answer goes to the other (but for TCP with mode=loose). Where
// a new one finds no place, it takes that of the half-open one that would be
// forgotten first among 16. Open ones are never replaced.
//
// Fragments. The first fragment is looked at as a whole datagram; while it passes,
// the later ones of its datagram (addresses, protocol, identification, side, VLANs)
// do, for 30 s; those that come before it are dropped. First fragments with a part
// of the transport header, and later ones that begin within it, are dropped
// (RFC 1858, RFC 3128), and so are IPv6 extension headers behind a fragment header:
// nothing is put together here.
//
// While no worker runs the app nothing crosses in its place (port.Filter.Closed).
//
// Datagrams with a source route are dropped: rules do not see where they end.
//
// Checksums are not looked at, nothing is changed in a frame. With several workers
// a connection is in a shard by its hash, whoever sees its packets; a source has one
// limit in all of them, which workers that open at the same time may pass by one each.
package firewall
