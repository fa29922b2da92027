// Package arbiter keeps locks for clients of a rack, on the way to their memory servers: it answers who asks.
//
//	clients ─► a [ arbiter ─► fence ] b ─► memory servers
//	        ◄─ answers
//
// A client asks for up to 32 words at a time, shared or exclusive: it gets all or none (package message has the datagrams, and package
// client a client). Where somebody bars it, it may stand in line for a while, and holds nothing meanwhile. A request is granted when it is the first
// in the lines of all of its words, so that the one that has waited longest waits for holders alone: nobody starves, and no circle comes about. A
// word in whose line somebody stands is given to nobody past them, also when it is free.
//
// # What is promised
//
//   - What is one client's alone nobody else is granted before it has given it back, or its lease has ended and settle= after that is over. Clients count
//     their lease from when they sent what renewed it, the arbiter from when it came: a client stops first.
//   - A grant's token is above all tokens before. Who keeps the memory may refuse lower ones.
//   - With fence=, locks of a client whose lease ended are free only when it is shut out from the servers of these words, and what it had sent before has
//     settled: none of its WRITEs lands later. Whom somebody else shuts out there loses its locks in the same way. A later incarnation of the client says that
//     the one before is gone; it is let in again after settle=. Where the fence has no room the locks stay, and that is counted (unfenced).
//   - A request that is repeated is done once, and gets the same answer, also from the next process.
//   - Who has not been offered a session, which goes to the address and port that it is for, changes nothing and takes no memory.
//
// # When the process ends
//
// Clients and what they hold lie in memory that outlives it; leases begin anew, as nobody could renew them. Lines are lost: clients ask again
// while they wait. Where that memory is lost, too, nothing is granted for max-lease= and settle=, and tokens go on from the time, which is above
// what a million grants a second can have come to.
//
// Work is bounded: of a frame by 32 words, of a breath by some more that lines may move on. All workers share one state, a batch at a time (nf/turn).
//
// The idea of leases that end before locks are free is Gray and Cheriton's ("Leases", SOSP 1989); RCuckoo and Hotpot have such locks and repair what
// a dead client left, and leave its late writes open (see tor/fence).
package arbiter
