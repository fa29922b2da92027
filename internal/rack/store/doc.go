// Package store has what the stores of the rack share: a table of them (Kinds), a
// memory node that clients find over the wire (Server), and clients that work on it.
//
//	Client ── ConnectRequest: which store, of which sessions ──► Server
//	       ◄─ ConnectReply: where the memory is, what it is like ─┘
//	       ── one-sided verbs ─────────────────────────────────► memory
//
// A session of a client is a queue pair, made by the connection managers (rack/cm). The private
// data of the ConnectReply says what the client must know of the memory: addresses, R_Keys, geometry,
// the client's number, and the memory that only this client writes. A server rejects a request
// that it cannot serve, with a text that says why.
//
// A Server's memory has places for a fixed number of clients. A client keeps its place as long as the server
// hears from the client, and for a Lease longer; a client without operations therefore sends a message now
// and then. After the Lease another client may get the place and its memory, in which the values of the first
// client stay. Before that the server ends the first client's connections, so that none of its requests
// arrives late. A Server that ends tells its clients so.
//
// Clients record all answers (rack/history). At the end one order of all operations must explain the
// answers and the contents of the memory.
package store
