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
// A Server's memory has room for so many clients, those that have gone included: what they
// have written stays, and locks that they held have their names.
//
// Clients keep all that they were told (rack/history). At the end one order of all
// operations must explain it, and what the memory holds then.
package store
