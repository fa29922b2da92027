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
// Anybody may send requests with a client's address, its server's queue pair and
// any PSN. So a request changes what is known of its connection only if its PSN
// is the expected one, because then the server takes it, too. A request with an older or a
// newer PSN makes unknown what it might overwrite, and changes nothing else. Otherwise the
// expected PSN moves only with the server's answers: the server has taken each request that it
// has answered, and the requests that came in sequence with that one follow it. Answers count
// only if they come from the servers' side; the app's inputs tell the sides apart.
//
//   - An answer shows that something was executed when the server's count of messages has risen by what passed
//     (standing), and only what passed in its turn since; not what may have been replaced by another request with
//     its PSN (instead), or was overtaken by one that was ahead of its turn (stray). READs are steered from entries
//     whose WRITEs were acknowledged.
//   - A connection ends by the connection manager's word, by a NAK that ends the
//     queue pair, or when it was quiet for idle=. When a sequence
//     of requests is nowhere near the expected PSN, and the server has answered
//     nothing for a second (20 s where a READ was steered, which may be repeated), it may
//     be another connection with the same numbers: it
//     is paired anew, if the outcome of all that was steered on it is known.
//   - R_Keys are learnt from WRITEs that the server has acknowledged, servers from
//     connections that are paired. Everything learnt has a fixed number of places.
//     What was not used for idle= makes room for others; its number is free when no
//     address names it any more.
//   - What a frame or a tick costs does not grow with what is known or open: a
//     tick does a bounded piece of each work that grows (BenchmarkSize).
//
// # Who stands behind whom
//
// The app sends a CAS behind an entry as soon as that entry's own CAS has passed. The server may
// execute the later CAS without the earlier one, because frames are lost, and a NIC reorders. So the
// app numbers the steered appends of a key, and holds the answer to each until all appends
// before it are linked (hold=). It holds the answer to a READ until the entry to which the READ was
// sent is linked. So each entry that was acknowledged, or read, can be reached from the
// chain's beginning. Answers behind a held one, on the same connection,
// wait as well. Nothing waits while nothing is lost: figure 2.12 comes out within
// 2 % of what it is without, for reads and writes at 7 to 392 threads.
//
//   - A steered CAS that stays unanswered is sent again from its record (repair=),
//     if it is the next that the server expects: a client that is gone leaves no
//     broken chain, and those behind a lost CAS do not wait for a time-out. The
//     server answers a repeated atomic from its memory of it. It goes
//     out with the marks of congestion (ECN, FECN, BECN) of none.
//   - From the second repetition of a CAS on, no other CAS is sent behind it.
//   - A CAS is steered, and others are led behind it, only when its client cannot keep it from being executed
//     (rank, target; not with clients=trusted). First, the server has answered all in front of it on its
//     connection, in full: nothing there can be refused, which would end the queue pair, or be missing, for
//     which this app has no copy; the CAS has the PSN that the server expects; and it is in the middle of no
//     message. Second, the server has executed a CAS of this connection under this R_Key before, so that the
//     queue pair and the region have the right to it; the tail is in the same region. Third, that one had the same
//     destination MAC address and P_Key, so that it is for the server's NIC, and so is what is sent again.
//     Others pass as on a wire. So does each first append of a connection, and where threads
//     share a queue pair each append behind a request of another's that is not answered.
//   - The client of a failed CAS gets the failure; the answers to appends behind its entry wait
//     until the client has linked the entry elsewhere.
//   - When an entry will never be linked (its connection ended, or was quiet for idle=; or nobody
//     links a refused entry for as long), the clients of appends behind it are never told
//     of success: their connections end by time-out, an error that RDMA programs
//     handle.
//   - While appends of a key are open, no other tail is believed.
//   - A place is reserved for each answer that may have to wait (hold=); a request is not
//     steered if there is no place for its answer. Half of the places are for answers
//     behind one that waits; answers that find no place there are asked for again.
//
// # When this process dies
//
// When this process dies while a CAS is lost, those behind it get their answers
// from the server directly, and the chain is whole when the client of the lost CAS
// repeats it. If that client dies as well, they would stay behind a missing link: a
// double failure that the papers leave open. So each steered CAS is on record, in
// memory that outlives the process, from before its frame leaves until it is known to
// be linked, or refused (journal.go). The next process takes it over before its first
// frame, as does this one after a bypass: as if it had sent it itself, with those that
// stand behind it in their order.
//
//   - First the server is asked whether the connection is still that of the record,
//     and where it is: by an empty WRITE so old that it is a repetition, which the
//     server just acknowledges, to the queue pair that it takes for its client, and
//     with the newest PSN. A CAS is sent when it is the next that the server expects,
//     or one that it has executed, and has in memory. Where nobody answers, or with
//     other numbers, nothing is sent.
//   - Its client may be alive. Its own repetition is led the same way, is the same
//     request, and is answered in the terms of what it asked.
//   - Where the server is past it, others do not wait for it: it has been executed. If the server
//     does not remember its answer, its client has had that and went on.
//   - What is more than a minute old is not taken over: a queue pair may be another's.
//   - While nobody is there, nobody else links an entry where an unanswered CAS was sent.
//     The words are guarded (port.Filter.Guarded): the kernel's program drops atomics to
//     them, and they are repeated until the next process is there. Only what links the
//     same entry crosses: the client's own repetition, or what it tries next. Everything
//     else crosses, too. The guard ends when a record would not be taken over any more, a
//     minute after a worker was there, so that a process that is gone for good is in
//     nobody's way. WRITEs to such a word cross: Clover's clients link by CAS alone.
//     With mode=off nothing is guarded, nor sent again.
//   - Nor does a process that is there let anybody to such a word until the CAS was
//     answered, or sent again some times (0.6 s with the default repair=): who came first
//     would have it refused. The guard of a next process is what it took over.
//   - After a refused R_Key (the server was started again) nothing is sent again: the
//     refusal ends the queue pair, as it would have for the client.
//
// Without memory that outlives the process, on ports that have no guard and let frames
// cross, or with a request in front of the CAS on the same connection that is lost, too,
// and was no steered CAS, the double failure stays. With ahead=0 it cannot be: requests go
// only to entries that are known to be linked, and pass otherwise. That costs what steering gains where many write few
// keys: in figure 2.12 (half writes, 1,024 keys) nothing at 14 threads, a third
// at 28, nine tenths at 280.
//
// What a crash can still cost: when this process dies, and the answer to a READ
// that it steered is lost with it, the READ is repeated to the address that the
// client asked for. A server that compares repeated READs with the original, as
// Linux rxe does, ignores it until the client gives its connection up. With
// recycled=adjust, an answer that comes while nobody is there is not turned back.
//
// # Parts
//
// Workers share one state: turns say who may change it; traffic is connections and the requests on them;
// memory is what is known, with nodes, handles and hotKeys; chains are what is open, with answers that are
// held and the journal. chains and answers ask memory; memory only has them wake readers.
//
// Steer, one a worker, takes a batch through the turns. lookout finds out what a frame is. requests, responses,
// repairs and legacy do what it leads to: they see all that lies on their worker's desk, and
// own nothing. Steer calls all of them, responses legacy, legacy repairs, and nobody the other way.
//
// # Memory
//
// 64 bytes a key (state, index, and the lists of those that are free or given up),
// 16 bytes a remembered address, and the frames that are held, fixed at start; see
// Report for exact figures, a connection among them. 344,128 bytes outlive the
// process, whatever the arguments: 2,048 records; and 128 KiB in the kernel, the guard.
// While all are in use, CASes pass.
//
// # Threads
//
// Requests of all workers meet in one state. A worker checks a batch and does what its
// frames do to their connections in a turn at connections that is its own. Then it has the
// turn at keys, which is one worker's at a time. After it, it brings checksums up to date and
// sends. These are two atomic exchanges a batch, one of them in a line of the processor's
// cache that other workers seldom touch; none with one worker.
//
// A connection belongs to the worker that met it last. A worker that meets another one's takes
// the turns at connections of all, for the rest of that batch and for some batches more. What
// opens, pairs or ends a connection takes all turns, for the rest of its batch.
//
// Any worker may receive any frame. The two directions of a connection should reach
// the same worker, as symmetric hashing of addresses makes them do.
//
// The keys are not divided among workers, because two workers with separate states, which share
// nothing, gain hardly more (docs/PERFORMANCE.md). A tail cannot be one shared word for each
// key, because a tail, its version and its region change together.
package clover
