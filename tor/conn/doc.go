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
//     answer them name the client's queue pair. It takes three responses to
//     three different requests, each of which fits no other half-open row; what
//     fits several waits. A pairing that PSNs contradict is undone.
//
// A lower degree of trust never displaces a higher one that is in use.
//
// The client of a row is who asked for the connection, or who sent the requests
// that it was inferred from; the server is the other. Frames in the other
// sense (a server's own requests and the client's responses to them) are found,
// too, and reported as Reverse.
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
// are half-open. Thus who makes up requests gets a part of the places and no
// more, and never one of a connection that lives. What the connection manager or
// the configuration announces takes the place of a half-open inferred row at
// once. Of a row that is pinned the owner is asked (Config.LetGo). Paired rows
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
// handshake. Whether such frames are dropped is the caller's business.
//
// One goroutine owns a Table. Nothing is allocated after New.
package conn
