// Package herd is the key/value store of HERD (Kalia, Kaminsky and Andersen, "Using RDMA efficiently for key-value
// services", SIGCOMM 2014): the cores of a server execute requests that clients WRITE into the server's memory.
//
//	client ── UC WRITE of a request into its slot ──► server: a core polls the slots of its share of the keys
//	client ◄────────────── UD SEND of the answer ──── and answers
//
// A session has a slot at each core, and one operation under way. A request lies at the end of its slot, and ends with a
// number that is not 0. NICs write messages from front to back, so that a request whose number has arrived is complete.
// The server clears the number. Each key belongs to one core, which executes one request after the other; therefore
// operations on a key are linearizable without locks.
//
// Neither UC nor UD repeats lost messages. A client that gets no answer for a while writes its request again with the
// same number, by which the server knows whether it has executed the request. Nothing outlives the server.
//
// A request: [value] key 8, kind 2, length of the value 2, number 4; little-endian. An answer: the value, with an immediate of
// status (8 bits) and number (24).
package herd
