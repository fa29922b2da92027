// Package conn knows the reliable connections that pass: a Table has a row a
// connection, found by where a frame goes, whichever of the two ends that is.
//
// BTH carries only the destination's queue pair number, so that the two
// directions of a connection have to be paired. A row is learnt, in order of
// trust,
//
//   - from the connection manager's datagrams (Table.CM): ConnectRequest and
//     ConnectReply name both queue pairs and both first PSNs;
//   - from configuration (Table.AddStatic);
//   - by inference: requests make a half-open row, and responses whose PSNs
//     answer them name the client's queue pair (see below).
//
// A lower degree of trust never displaces a higher one that is in use.
//
// The client of a row is who asked for the connection, or who sent the requests
// that it was inferred from; the server is the other. Frames in the other
// sense (a server's own requests and the client's responses to them) are found,
// too, and reported as Reverse.
//
// An address is in a VLAN: frames with the same addresses in two VLANs are two
// networks'. Priority tags make no difference, and RoCE v1 is followed by its GIDs;
// a queue pair is reached by the network header that its row was learnt with, by
// others not.
//
// # When PSNs pair
//
// PSNs alone do not tell connections apart that begin with the same one, as some
// applications' do, and of such a connection the requests may not be seen: it is
// older than the table, its requests take another way, or it found no room. So a
// half-open row is paired with a queue pair when
//
//   - three responses to it answered different requests, and each fits no other
//     half-open row of the two hosts, and
//   - from the first of them to the last the client asked for something new three
//     times, at least Config.Settle apart, and meanwhile no other queue pair was
//     answered in that range of PSNs, and the client repeated nothing that was
//     answered.
//
// That is never wrong as long as servers answer within Config.Settle what arrives,
// and not all requests in a row are lost behind the table. While requests pass between two hosts for which there is no
// room, and Config.Reuse longer, nothing between the two is paired by PSNs alone.
//
// Connections in lockstep, which that tells apart only when one gets far ahead of the
// others, are paired together. Each half-open row notes which unpaired queue pairs of
// its client (voices) are answered near its PSNs, and what shows that a voice is not the row's
// own client:
//
//   - the voice was answered a PSN that the row's client sent only afterwards, or
//   - it was answered by an ATOMIC ACK or READ RESPONSE what the row's client had asked for
//     by a request of another kind.
//
// It takes three such facts, from answers to different requests, to rule a voice out. A refusal
// shows nothing: its PSN need not have been used. What was noted is dropped when a client repeats
// anything, skips a PSN, or starts anew. A voice is paired with a row when rows and
// voices can be put together in one way only: each row has one voice that is left, against
// which nothing speaks; no other voice near the row is left; no other row may be that
// voice's; and the client of each row asked three times, at least Config.Settle apart,
// since a voice was heard first that is near the row. So a pairing is wrong only if a
// connection's requests are not seen and, at the same time, some row's client gets no
// answer while it asks three times: what would deceive the rule above, too. Up to 64 rows and
// voices between two hosts are compared so, at most once in Config.Settle while it leads
// to nothing.
//
// Nothing but UDP ports tells connections apart that ask for the same at the same moments for ever.
// Linux' rxe and mlx5 derive the source port from both queue pairs, or from the flow
// label that rdma_cm gives both ends; older rxe derives it from the sender's own queue pair.
// A port in requests is what their sender says, and whoever can make them up has it say
// anything. So ports count only where the owner knows that they are the same in both
// directions (Config.SamePort).
//
// Then a response whose port is that of just one half-open row which it may answer pairs
// also while there is no room for others, unless a request from that port found no room
// within Config.Reuse: more connections than there are places, which begin at once, are
// learnt one after the other.
//
// Requests that are out of all sequence change nothing by themselves: anybody can
// make them up. They have a half-open row of their own; when the server's answers
// fit that, the connection is numbered anew, or, when they go to another queue pair
// and the first was silent for Config.Reuse, that is the client's. Three
// responses in a row that nobody asked for undo a pairing.
//
// # What removes a row
//
// A disconnect (DisconnectReply seen, or the time-out after a
// DisconnectRequest), idleness, a new connection that is proven to own one of
// its queue pair numbers, and Remove. Config.OnRemove is told each time.
//
// The names of a connection that was ended outlive its row by Config.TimeWait:
// both ends may disconnect at once, and what was not answered is asked again.
// Such a datagram is Ended, if it comes from that connection's end.
//
// # When the table is full
//
// Rows whose time is up are reclaimed first. Connections that were exchanged out
// of band leave no trace when they end; so a row that was merely inferred makes
// room when it was quiet for Config.Yield, the one that was quiet longest first:
// half-open ones, and then paired ones, while fewer than a quarter of all rows
// are half-open. At most a quarter of the rows, or 64 if that is more, are
// half-open (handshakes, too); at most a quarter of those, or half up to 64, or 32, are one client's,
// and as many of its handshakes; and at most 256 are of two hosts. Thus who makes up requests gets a part of the places and no more,
// and never one of a connection that lives; meanwhile new connections may not be
// learnt. What the connection manager announces takes the place of a half-open
// inferred row at once, and what the configuration does. Of a row that is pinned the owner is asked (Config.LetGo). Paired rows
// that were announced or configured are not displaced.
//
// Where there is no such row, new connections pass untouched: the event is Full
// and nothing changes. To find out takes constant time for most frames, and a
// bounded one for each.
//
// # Bad input
//
// A frame for a known queue pair from another address than the peer's is
// Spoofed, and changes nothing. When the connection was inferred and has been
// quiet for Config.Reuse, such requests may be a later connection's to a queue
// pair of the same number: they have a half-open row, which waits and takes the
// number over when the server has answered them as it must to be inferred; not
// when the first connection was heard meanwhile, nor when its owner holds it
// (Pin) and does not let go. Datagrams of the connection manager with
// addresses or identifiers that contradict what is known are Forged, and change
// nothing; those about nothing that is known are Stray, since connections are
// older than the table, or found no room in it. A ConnectRequest that claims a
// queue pair number in use has effect only when the client itself confirms the
// handshake, and that queue pair was not heard since the server's reply. To
// disconnect it takes both ends' communication IDs and the queue pair number.
// Linux counts IDs under a mask that stays, so that who has connections with both
// hosts may guess them; but then the hosts themselves end the connection, too.
// Whether such frames are dropped is the caller's business.
//
// One goroutine owns a Table. Nothing is allocated after New.
package conn
