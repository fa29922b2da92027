// Package fence shuts out clients that were declared dead: what one of them still sends to a memory server does not
// get there, however late.
//
//	clients ─► a [ is its sender shut out? ] b ─► memory server
//
// RCuckoo's repairers free the locks of clients that seem dead. A client that is only slow may
// write afterwards, and nothing at the endpoints keeps it from that (Grant, "Disaggregated Data Structures", UCSD 2024,
// section 3.3.4). A fence on the way does. An entry names a client and a server by their addresses, and perhaps one queue pair of the server's,
// and one R_Key:
//
//	fence=10.0.0.1-10.0.0.9              all that the client asks of the server
//	fence=10.0.0.1-10.0.0.9/0x11         what it asks of one queue pair
//	fence=10.0.0.1-10.0.0.9@0x2a         what it asks under one R_Key, and packets that name none (the middle of a WRITE)
//
// Datagrams pass, so that a client that has noticed may make a connection anew.
//
// Entries come from the operator (table fence), from a file that outlives the process, and, with requests=on, from
// clients: a ConnectRequest to hdr.FencePort of the server, which the fence takes and answers with a ConnectReject. It names R_Keys,
// and is done for a client that was seen to write under them (see right). The answer
// says how long what has passed before may be under way (settle=), so that the
// asker waits for so long and repairs then (internal/rack/rcuckoo does). Another function of the graph, as nf/arbiter, has clients shut out by itself. Table held shows them all, and is where they are lifted.
//
// What is behind the fence, as swordbox, may have requests of the client: settle= must be longer than it keeps them. While
// no process is there, frames to queue pairs that entries name are held back by the kernel
// (port.Filter.Bound), also when the entry was lifted before, until the interfaces are detached; those of entries that name none cross.
//
// The fence knows RoCEv2 over IPv4, outside of tunnels.
package fence
