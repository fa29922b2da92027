// Package herd is a key/value store as HERD has it (Kalia, Kaminsky and Andersen, "Using RDMA efficiently for key-value
// services", SIGCOMM 2014): a server with cores works on requests that clients WRITE into its memory.
//
//	client ── UC WRITE of a request into its slot ──► server: a core polls the slots of its share of the keys
//	client ◄────────────── UD SEND of the answer ──── and answers
//
// A session has a slot at each core, and one operation under way. A request lies at the end of its slot, and ends with a
// number that is not 0: NICs write messages from front to back, so that a request whose number is there is there as a whole. The
// server clears the number. A key belongs to one core, which works on one request after the other: operations on a key are
// linearizable without locks.
//
// Neither UC nor UD repeat what is lost. A client that has no answer for a while writes its request again, under the same
// number; the server tells by it what it has done already. Nothing outlives the server.
//
// A request: [value] key 8, kind 2, length of the value 2, number 4; little-endian. An answer: the value, with an immediate of
// status (8 bits) and number (24).
package herd
