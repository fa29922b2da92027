// Package arbiter keeps locks for clients of a rack, on the way to their memory servers, and answers the clients'
// requests.
//
//	clients ─► a [ arbiter ─► fence ] b ─► memory servers
//	        ◄─ answers
//
// A client asks for up to 32 words at a time, shared or exclusive, and gets all of them or none (package message
// has the datagrams, package client a client). If another client's lock is in the way, the request may wait in
// line for a while, and holds nothing meanwhile. A request is granted when it is the first in the lines of all
// its words. So the request that has waited longest waits for holders only: no request starves, and there is no
// deadlock. While a request is in line for a word, the word is given to no later request, even when it is free.
//
// # What is promised
//
//   - A word that a client holds exclusively is granted to nobody else before the client has given it back, or
//     before its lease has ended and settle= has passed after that. A client counts its lease from when it sent
//     the renewal, the arbiter from when that came: the client stops first.
//   - The token of a grant is higher than all tokens before. Memory servers may refuse lower ones.
//   - With fence=, the locks of a client whose lease has ended become free only when the client is shut out from
//     the servers of these words, and when what it had sent before has settled: none of its WRITEs lands later.
//     A client that somebody else shuts out there loses its locks in the same way. A later incarnation of the
//     client says that the one before is gone; it is let in again after settle=. If the fence has no room, the
//     locks stay, which is counted (unfenced).
//   - A repeated request is executed once, and gets the same answer each time, even from the next process.
//   - A sender that has not received a session, which is sent to the address and port that it is for, changes
//     nothing and takes no memory.
//
// # When the process ends
//
// Clients and what they hold are in memory that outlives the process. Leases begin anew, because nobody could
// renew them. Lines are lost; clients ask again while they wait. If that memory is lost, too, nothing is granted
// for max-lease= and settle=, and tokens continue from the time, which is higher than what a million grants a
// second can have reached.
//
// Work is bounded: for a frame by 32 words, for a breath by some more requests in lines. All workers share one
// state, and take turns at it for a batch (nf/turn).
//
// The idea of leases that end before locks become free is Gray and Cheriton's ("Leases", SOSP 1989). RCuckoo and
// Hotpot have such locks and repair what a dead client left; they do not stop its late writes (see tor/fence).
package arbiter
