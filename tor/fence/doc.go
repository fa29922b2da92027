// Package fence shuts out clients that were declared dead: requests that such a client still sends to a
// memory server do not reach the server, however late they are.
//
//	clients ─► a [ is its sender shut out? ] b ─► memory server
//
// RCuckoo's repairers free the locks of clients that seem dead. A client that is only slow may
// write afterwards, and nothing at the endpoints prevents this (Grant, "Disaggregated Data
// Structures", UCSD 2024, section 3.3.4). A fence on the path prevents it. An entry names a client and
// a server by their addresses, and optionally one queue pair of the server and one R_Key:
//
//	fence=10.0.0.1-10.0.0.9              all that the client asks of the server
//	fence=10.0.0.1-10.0.0.9/0x11         what it asks of one queue pair
//	fence=10.0.0.1-10.0.0.9@0x2a         what it asks under one R_Key, and packets that name none (the middle of a WRITE)
//
// Datagrams pass, so that a client that notices that it is shut out can make a new connection.
//
// Entries come from the operator (table fence), from a file that outlives the process, from another
// function of the graph such as nf/arbiter, and, with requests=on, from clients. A client sends a
// ConnectRequest to hdr.FencePort of the server; the fence takes it and answers with a ConnectReject.
// The request names R_Keys. The fence executes it only for a client that was seen to write under
// these R_Keys (see right). The answer says how long earlier requests may be under way (settle=);
// the asker waits for so long before it repairs (as internal/rack/rcuckoo does). Table held shows
// all entries; entries that do not come from table fence are lifted there.
//
// A function behind the fence, such as swordbox, may keep requests of the client: settle= must be longer
// than it keeps them. While no process runs, the kernel drops the frames to queue pairs that
// entries name (port.Filter.Bound), even of entries that were lifted before, until the interfaces are
// detached. Frames to which only entries without a queue pair apply cross in the kernel. While a process runs that
// does nothing, frames wait for it (port.Filter.Waits): 1 s by default, after which they cross, too.
//
// Where the instance has a journal (graph.Env.Journal), entries outlive a reboot of the machine, too. Who asks that a client
// be shut out is told that it is when that is so, and is asked for a cookie until then. After a reboot all entries stay until they are lifted in table held, also
// those of another function, which has forgotten them.
//
// The fence handles RoCEv2 over IPv4, outside of tunnels.
package fence
