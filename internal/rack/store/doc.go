// Package store is what the stores of the rack have in common: a table of them (Kinds), a
// memory node that clients find over the wire, and clients that work on it.
//
//	Client ── ConnectRequest: which store, of which sessions ──► Server
//	       ◄─ ConnectReply: where the memory is, what it is like ─┘
//	       ── one-sided verbs ─────────────────────────────────► memory
//
// A session of a client is a queue pair, made by the connection managers (rack/cm). What a client
// must know of the memory is in the private data of the answer: addresses, R_Keys, geometry, and
// what is the client's alone (its number, memory for what it writes). What a server does not
// serve it rejects, with a text that says why.
//
// A Server's memory has room for so many clients. A place is a client's while it is heard of, and for a Lease
// more: then another one may have it, with the memory for what it writes, of which what the first one wrote stays. A
// client that has nothing to do says something now and then. Its connections end first, so that nothing of it comes
// late. A Server that ends says so to its clients.
//
// Clients keep all that they were told (rack/history). At the end one order of all
// operations must explain it, and what the memory holds then.
package store
