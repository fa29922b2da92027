// Package clover steers the requests of Clover, a key/value store on passive
// disaggregated memory, to where they would succeed (SwordBox, section 2.2.4;
// WORDS '21, section 3).
//
//	clients ─► a [ parse · ICRC · connection row · key and tail · rewrite ] b ─► memory nodes
//	        ◄─   [ answer turned back into the terms of the request       ]   ◄─
//
// # What is known, and when it is believed
//
// A written entry is tied to its key by the key in its payload, and to the
// compare-and-swap (CAS) that links it by the handle in the swap operand:
// handles and addresses of a slab class step together, so the entry's address
// follows from its handle. A key's tail is known after a CAS for the key was
// answered with success and no CAS was sent to the new entry meanwhile; from
// then on every CAS of the key is sent to the tail, and its entry is the next
// tail at once. This is more careful than the papers' code, which believes a
// CAS when it passes and takes the connection's last write for its entry: a
// CAS that then fails, or threads that share a queue pair, would break chains.
//
// A request is steered only on a connection whose two directions are paired
// (package conn), because an answer may have to be turned back: the version that
// a client expects at the address that it asked for, and the version of the entry
// that it got, may differ once entries were recycled.
//
//   - A request keeps its R_Key: what the app knows of memory under one R_Key is not
//     used under another one. After a server's restart the same addresses have
//     a new R_Key, and chains are learnt anew.
//   - A CAS goes to the tail when it expects the tail's version, a READ when
//     the entry that it asks for has the tail's version. A client whose pointer
//     is out of date then still finds out by the version.
//   - With recycled=adjust they go in any case: a CAS with the tail's version in
//     compare and swap, its answer's original value put back; a READ's answer
//     gets the version of the entry that was asked for. That is hard state:
//     when this process dies and the answer passes without it, the client takes
//     success for failure, or another key's entry for its own. A client that
//     finds out whether its entry is linked, and looks at the key of what it
//     reads (internal/rack/clover does both), survives that; Clover's own does not.
//   - A retransmission, recognized by its PSN, is rewritten like the original.
//   - The app forgets what it knows of a key after a failed CAS, a NAK, or a CAS to a
//     known tail that it does not understand. After a WRITE of any sort it forgets each
//     entry whose header the WRITE reaches.
//   - A frame that may write and does not say where (fragments, opcodes of manufacturers,
//     hdr.ChangeOf) makes all unknown that was learnt of the server's memory, until
//     it is learnt anew.
//
// # What a frame proves
//
// Anybody may send requests with a client's address, its server's queue pair and any PSN. So a request
// changes what is known of its connection only if its PSN is the expected one, because then the server
// takes it, too. A request with an older or a newer PSN makes unknown what it might overwrite, and
// changes nothing else. Otherwise the expected PSN moves only with the server's answers: the server
// has taken each request that it has answered, and the requests that came in sequence with that one
// follow it. Answers count only if they come from the servers' side; the app's inputs tell the sides
// apart.
//
//   - An answer proves that a request was executed only when the server's count of messages (MSN)
//     has risen by the number of messages that passed (standing), and only for requests that passed
//     in their turn since then. It proves nothing for a request that another request with the same
//     PSN may have replaced (instead), or that a request ahead of its turn has overtaken (stray).
//     READs are steered from entries whose WRITEs were acknowledged.
//   - A connection ends by a datagram of the connection manager, by a NAK that ends the queue pair,
//     or when it was quiet for idle=. When a sequence of requests is nowhere near the expected PSN,
//     and the server has answered nothing for a second (20 s where a READ was steered, which may be
//     repeated), the sequence may belong to another connection with the same numbers. Then the
//     connection is paired anew, if the outcome of all its steered requests is known.
//   - R_Keys are learnt from WRITEs that the server has acknowledged, servers from connections that
//     are paired. Each table has a fixed number of places. An element that was not used for idle=
//     makes room for others; its number is free when no address names it any more.
//   - The work of a frame or a tick does not grow with the number of known keys or open requests: a
//     tick does a bounded piece of each work that grows (BenchmarkSize).
//
// # Appends that stand behind others
//
// The app sends a CAS behind an entry as soon as that entry's own CAS has passed. The server may
// execute the later CAS without the earlier one, because frames are lost, and a NIC reorders. So the
// app numbers the steered appends of a key, and holds the answer to each until all appends before it
// are linked (hold=). It holds the answer to a READ until the entry to which the READ was sent is
// linked. So each entry that was acknowledged, or read, can be reached from the chain's beginning.
// Answers behind a held one, on the same connection, wait as well. While nothing is lost, nothing
// waits: figure 2.12 comes out within 2 % of its values without holding, for reads and writes at 7 to
// 392 threads.
//
//   - A steered CAS that stays unanswered is sent again from its record (repair=), if it is the next
//     that the server expects. So a client that is gone leaves no broken chain, and the appends
//     behind a lost CAS do not wait for a time-out. The server answers a repeated atomic from its
//     memory of the first. The repeated frame carries no congestion marks (ECN, FECN, BECN).
//   - From the second repetition of a CAS on, no other CAS is sent behind it.
//   - A CAS is steered, and others are led behind it, only when its client cannot keep it from being
//     executed (rank, target; not with clients=trusted). First, the server has answered all requests
//     in front of the CAS on its connection, in full: so none of them can be refused, which would
//     end the queue pair, and none can be missing, of which this app would have no copy; the CAS has
//     the PSN that the server expects; and it is not in the middle of a message. Second, the server
//     has executed a CAS of this connection under this R_Key before, so that the queue pair and the
//     region have the right to it; the tail is in the same region. Third, that earlier CAS had the
//     same destination MAC address and P_Key, so that this CAS reaches the server's NIC, and a
//     repeated frame does, too. Other CASes pass unchanged. So does the first append of each
//     connection, and, where threads share a queue pair, each append behind another thread's request
//     without an answer.
//   - The client of a failed CAS gets the failure. The answers to appends behind its entry wait
//     until the client has linked the entry elsewhere.
//   - When an entry will never be linked (its connection ended, or was quiet for idle=; or the entry
//     was refused, and its client did not link it for as long), the clients of appends behind it are
//     never told of success: their connections end by time-out, an error that RDMA programs handle.
//   - While appends of a key are open, no other tail is believed.
//   - A place is reserved for each answer that may have to wait (hold=). A request is not steered if
//     there is no place for its answer. Half of the places are for answers behind one that waits;
//     answers that find no place there are asked for again.
//
// # When this process dies
//
// When this process dies while a CAS is lost, the appends behind it get their answers from the server
// directly, and the chain is whole when the client of the lost CAS repeats it. If that client dies as
// well, the appends would stay behind a missing link: a double failure that the papers leave open. So
// each steered CAS is on record, in memory that outlives the process, from before its frame leaves
// until it is known to be linked, or refused (journal.go). The next process takes the records over
// before its first frame, and this process does the same after a bypass: as if it had sent these CASes
// itself, in the order in which they stand behind each other.
//
//   - First the app asks the server whether the connection is still that of the record, and which
//     PSN it expects. The question is an empty WRITE with a PSN so old that the server takes it for
//     a duplicate. The server only acknowledges it, to the queue pair that it takes for its client,
//     with its newest PSN. A CAS is sent if it is the next that the server expects, or one that the
//     server has executed and remembers. If there is no answer, or one with other numbers, nothing
//     is sent.
//   - The client may be alive. Its own repetition is led the same way, is the same request, and is
//     answered in the terms of what the client asked.
//   - If the server is past the CAS, it has executed it, and no append waits for it. If the server
//     does not remember its answer, the client has had the answer and went on.
//   - A record that is more than a minute old is not taken over, because another connection may have
//     the queue pair.
//   - While no process runs, no other client may link an entry at the word to which an unanswered
//     CAS was sent. These words are guarded (port.Filter.Guarded): the kernel's program drops
//     atomics to them, and clients repeat these until the next process runs. Only an atomic that
//     links the same entry crosses: the client's own repetition, or its next try. Everything else
//     crosses, too; also WRITEs to such a word, because Clover's clients link by CAS alone. The
//     guard ends when a record would not be taken over any more, a minute after the last worker ran,
//     so that a process that is gone for good hinders nobody. With mode=off nothing is guarded, and
//     nothing is sent again.
//   - While a process runs, it keeps other clients' atomics from such a word, too, until the CAS was
//     answered, or sent again some times (0.6 s with the default repair=): an atomic that came first
//     would make the server refuse the CAS. The next process guards the words of the records that it
//     took over.
//   - After a refused R_Key (the server was started again) nothing is sent again: the refusal ends
//     the queue pair, as it would have ended it for the client.
//
// The double failure stays possible without memory that outlives the process; on ports that have no
// guard and let frames cross; and if a request in front of the CAS on the same connection, which was
// no steered CAS, is lost, too. With ahead=0 it cannot happen: requests go only to entries that are
// known to be linked, and pass unchanged otherwise. This costs the gain of steering where many clients
// write few keys: in figure 2.12 (half writes, 1,024 keys) nothing at 14 threads, a third at 28, nine
// tenths at 280.
//
// A crash can still cost this: when this process dies, and the answer to a READ that it steered is
// lost with it, the client repeats the READ to the address that it asked for. A server that compares
// repeated READs with the original, as Linux rxe does, ignores the repeated READ until the client
// gives up the connection. With recycled=adjust, an answer that comes while no process runs is not
// turned back.
//
// # Parts
//
// Workers share one state. Its turns say which worker may change what; traffic holds the connections
// and the requests on them; memory holds what is known, with nodes, handles and hotKeys; chains holds
// the open appends, with the held answers and the journal. chains and answers call memory; memory only
// makes them wake readers.
//
// Steer, one for each worker, takes a batch through the turns. lookout finds out what sort of frame
// each one is. requests, responses, repairs and legacy do the work that frames, ticks and records
// cause: they see all that lies on their worker's desk, and have no state of their own. Steer calls
// all of them, responses calls legacy, and legacy calls repairs; there are no calls in the other
// direction.
//
// # Memory
//
// All memory is allocated at the start: 64 bytes for each key (state, index, and the lists of free and
// given-up keys), 16 bytes for each remembered address, and the held frames; Report has exact figures,
// also for a connection. The memory that outlives the process takes 344,128 bytes, whatever the
// arguments: 2,048 records. The guard takes 128 KiB in the kernel. While all records are in use, CASes
// pass unchanged.
//
// # Threads
//
// Requests of all workers meet in one state. A worker checks a batch, and does what the frames do to
// their connections in a turn at connections of its own. Then it takes the turn at keys, which one
// worker has at a time. After this turn it brings checksums up to date and sends. This costs two
// atomic exchanges for each batch, one of them in a cache line that other workers seldom touch; with
// one worker there are none.
//
// A connection belongs to the worker that met it last. A worker that meets another one's connection
// takes the turns at connections of all workers, for the rest of that batch and for some batches more.
// A frame that opens, pairs or ends a connection takes all turns, for the rest of its batch.
//
// Any worker may receive any frame. The two directions of a connection should reach the same worker,
// as symmetric hashing of addresses makes them do.
//
// The keys are not divided among workers, because two workers with separate states, which share
// nothing, gain hardly more (docs/PERFORMANCE.md). A tail cannot be one shared word for each key,
// because a tail, its version and its region change together.
package clover
