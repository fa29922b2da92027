// Package conn tracks the reliable connections whose frames pass. A Table holds one
// row for each connection, and finds it by the destination of a frame, whichever of
// the two ends that destination is.
//
// A BTH carries only the destination's queue pair number. Therefore the table has to
// pair the two directions of a connection. It learns a row from one of three sources,
// here in falling order of trust:
//
//   - the connection manager's datagrams (Table.CM): ConnectRequest and
//     ConnectReply name both queue pairs and both first PSNs;
//   - configuration (Table.AddStatic);
//   - inference: requests make a half-open row, and responses whose PSNs
//     answer these requests name the client's queue pair (see below).
//
// A source of less trust never displaces a row of more trust that is in use.
//
// The client of a row is the end that asked for the connection, or that sent the requests
// from which the row was inferred. The server is the other end. The table also finds frames
// in the other sense (requests from the server, and the client's responses to them), and
// reports them as Reverse.
//
// An address belongs to a VLAN: equal addresses in two VLANs are those of two networks.
// A priority tag makes no difference. RoCE v1 is followed by its GIDs. A row matches only
// frames whose network header is of the kind (IPv4, IPv6, GRH) that the row was learnt with.
//
// # When PSNs pair
//
// PSNs alone cannot tell apart connections that begin with the same PSN, as those of some
// applications do. The requests of such a connection may even be unseen: it is
// older than the table, its requests take another path, or the table had no room for it. So a
// half-open row is paired with a queue pair only when
//
//   - three responses to the queue pair answered different requests of the row, and each of
//     these responses fits no other half-open row of the two hosts, and
//   - from the first of these responses to the last, the client sent new requests three
//     times, at least Config.Settle apart; meanwhile no other queue pair was
//     answered in that range of PSNs, and the client repeated no request that was
//     answered.
//
// Such a pairing is never wrong as long as servers answer within Config.Settle whatever
// arrives, and not all of several requests in a row are lost behind the table. While requests
// without a row (for want of room) pass between two hosts, and for Config.Reuse afterwards,
// PSNs alone pair nothing between these hosts.
//
// The rule above cannot pair connections in lockstep until one gets far ahead of the
// others. The table pairs these together. An unpaired queue pair that is answered is a voice.
// Each half-open row notes the voices of its client that are answered near the row's PSNs, and
// the facts which show that a voice is not the row's own client:
//
//   - the voice was answered a PSN that the row's client sent only afterwards, or
//   - an ATOMIC ACK or READ RESPONSE answered the voice at a PSN that the row's client had
//     used for a request of another kind.
//
// Three such facts, from answers to different requests, rule a voice out. A refusal
// is no such fact, because its PSN need not have been used. The notes are dropped when a client
// repeats a request, skips a PSN, or starts anew. A voice is paired with a row when rows and
// voices can be put together in one way only: each row has one voice left, against
// which there is no fact; no other voice near the row is left; the voice fits no other
// row; and the client of each row sent new requests three times, at least Config.Settle apart,
// after the first voice near the row was heard. So a pairing is wrong only if a
// connection's requests are not seen and, at the same time, the client of some row gets no
// answer while it asks three times. That would deceive the first rule, too. At most 64 rows and
// voices between two hosts are compared in this way, and at most once in Config.Settle while
// no pairing results.
//
// Only UDP ports tell apart connections that always ask for the same at the same moments.
// Linux' rxe and mlx5 derive the source port from both queue pairs, or from the flow
// label that rdma_cm gives both ends; older rxe derives it from the sender's own queue pair.
// A request's sender, genuine or forged, chooses the port in it. So ports count only where the
// owner of the table knows that they are the same in both directions (Config.SamePort).
//
// With Config.SamePort, a response pairs by its port when just one half-open row that it may
// answer has this port. It does so even while requests find no room, unless a request from
// that port found no room within Config.Reuse. Therefore connections that begin at once, and are
// more than there are places, are learnt one after the other.
//
// Requests out of all sequence change nothing by themselves, because anybody can
// forge them. They get a half-open row of their own. When the server's answers
// fit that row, the connection is numbered anew; or, when the answers go to another queue pair
// and the first one was silent for Config.Reuse, that other queue pair becomes the client's. Three
// responses in a row that answer no request undo a pairing.
//
// # What removes a row
//
// A row is removed by a disconnect (a DisconnectReply, or the time-out after a
// DisconnectRequest), by idleness, by a new connection that is proven to own one of
// its queue pair numbers, or by Remove. The table calls Config.OnRemove each time.
//
// The table remembers the names of an ended connection for Config.TimeWait after its row:
// both ends may disconnect at once, and an end repeats a request that was not answered.
// A datagram with these names is Ended, if it comes from that connection's end.
//
// # When the table is full
//
// Rows whose time is up are reclaimed first. Connections that were exchanged out
// of band leave no trace when they end. So a row that was merely inferred makes
// room once it was quiet for Config.Yield, the longest quiet one first:
// half-open rows first; then paired ones, while fewer than a quarter of all rows
// are half-open. At most a quarter of the rows, or 64 if that is more, are
// half-open, handshakes included. Of these, one client has at most a quarter (or 32, or half
// of them up to 64, whichever is most) as inferred rows, and as many as handshakes; two hosts
// have at most 256. Thus a sender of forged requests gets a part of the places only, and never
// the place of a live connection; meanwhile new connections may not be learnt. A connection that
// the connection manager announces, or that is configured, takes the place of a half-open
// inferred row at once. While fewer than a quarter of all rows are half-open, it takes the place of an announced one over which the server
// has answered nothing, once that was quiet for Config.Yield; when that one is used after all, it is one that nobody announced. A pinned row
// makes room only if its owner agrees (Config.LetGo). Other paired rows that were announced or configured are not displaced.
//
// Where no row can make room, a new connection passes untouched: the event is Full
// and nothing changes. The search for room takes constant time for most frames, and
// bounded time for each.
//
// # Bad input
//
// A frame for a known queue pair from another address than the peer's is
// Spoofed, and changes nothing. But when the connection was inferred and has been
// quiet for Config.Reuse, such requests may belong to a later connection whose queue
// pair has the same number. These get a half-open row that waits. It takes the
// number over when the server has answered its requests as inference demands, but
// not if the first connection was heard meanwhile, nor if the owner of the first holds it
// (Pin) and does not let go. Datagrams of the connection manager with
// addresses or identifiers that contradict what is known are Forged, and change
// nothing. Datagrams about an unknown connection are Stray, because the connection may be
// older than the table, or have found no room in it. A ConnectRequest that claims a
// queue pair number in use has effect only when the client itself confirms the
// handshake, and that queue pair was not heard since the server's reply. A
// disconnect needs both ends' communication IDs and the queue pair number.
// Linux counts IDs under a constant mask, so a sender that has connections with both
// hosts may guess them; but then the hosts themselves end the connection, too.
// The caller decides whether such frames are dropped.
//
// One goroutine owns a Table. Nothing is allocated after New.
package conn
