// Package swordbox lets the clients of a memory server share its connections,
// and replaces their atomics by WRITEs (SwordBox, sections 2.2.1 to 2.2.3).
//
//	clients ─► a [ parse · ICRC · row · word · connection · rewrite ] b ─► memory server
//	        ◄─   [ each client's answer, in its order and numbers    ]   ◄─
//
// A NIC executes an atomic in two trips over PCIe, and holds a lock meanwhile. It executes the
// WRITEs of one queue pair in the order of their arrival, without a lock. So the box sends all
// clients' operations on a word over one connection. Their order, and so the outcome of each
// operation, is then known when they pass.
//
// # Connections, and when they are followed
//
// tor/conn pairs the two directions of a connection. The box follows the connection from the
// moment when both ends are known and a request has the expected PSN. From then on each operation
// is on record (op), with the PSN of its client and the PSN that was sent to the server. The
// server's first answer shows the headers of answers and the MSN; after it operations may move to
// other connections. All frames of connections that the box does not follow pass unchanged, and
// the words that they write are unknown for as long as the WRITE may be under way (settle=).
//
// Anybody can make up requests. So two sorts of requests change nothing by themselves: one whose
// PSN is far from the expected PSN, and, on a connection that nobody announced, a duplicate of an
// answered request. They make the box ask the server (carrierSide.query), by a duplicate of a
// request of long ago. To this any responder acknowledges its newest request once more, whatever
// the rights of the queue pair, and executes nothing (IBTA 9.7.5.1.2). The server's end belongs to
// another connection if the server answers otherwise, if its MSN differs, or if it does not answer
// for giveup= while it answers on other connections. Until it answers, nothing new goes over the
// connection. Before the server's first answer on a connection nothing tells the client's requests
// from made-up ones: a request out of turn passes, and the box ceases to follow the connection.
//
// A server may drop a request whose headers differ in shape from those of the answered requests,
// for example by VLAN tags or IP options. So such a request takes no PSN (wire.uniform).
//
// # Rights
//
// A NAK that refuses a request ends the queue pair that carried it. So an operation moves only if
// it is on a tracked word or memory (learn=, track=), and if the server has shown that it would
// execute the operation for both clients, the one that sent it and the one whose connection is to
// carry it. The server shows that on each client's own connection (key.go):
//
//   - the queue pair has the right to this sort of access (flow.may),
//   - the queue pair may use this R_Key (flow.grants): both belong to one protection
//     domain, and a memory window of type 2 is bound to the queue pair,
//   - the region gives this access to this memory (reach).
//
// A WRITE in the place of an atomic needs the right to write in the same way. The carrying
// connection must be known to live (alive=), and must not owe an answer for longer than usual.
// Where the connection manager told the clients' timeouts and retry counts, the client whose
// connection it is must be as patient as the other client, because nobody knows what became of the
// operations on a connection whose client gives up; and both must be able to retry (retry_cnt),
// because requests behind a refused one are asked for again. The connection takes no more READs and
// atomics than the server's end has responder resources: the number that the connection manager
// told, or as many as its own client was seen to have under way.
//
// A client's first use of memory therefore goes over its own connection, where the server
// acknowledges or refuses it. A SEND with invalidate waits until the moved operations under its
// R_Key are answered, and erases all that is known of the key. Rights that the server's CPU
// withdraws are not seen on the wire. The server may then refuse a moved operation, which ends
// the connection that carried it; other clients' operations go on over other connections.
//
// SEND, WRITE with immediate, ATOMIC WRITE and FLUSH always stay on their own connection.
// A connection that has carried one of them lately carries no operations of other clients,
// so that a missing receive buffer delays only its own client.
//
// A server with several addresses may have several NICs, each with R_Keys of its own. No operation goes over a connection
// of another NIC than its client's (nic.go).
//
// # Order
//
// With order=strict the server executes a client's operations in the client's order: while a
// client has open operations, its next ones go over the same connection, or wait until the open
// ones are answered. With order=word a client's operations on different tracked words may go over
// different connections and overtake each other. That is enough for locks and counters, and as
// much as RDMA promises for different queue pairs. So when the server refuses an operation, which
// ends its client's queue pair, it may have executed later operations of this client, though the
// client is told that they were flushed.
//
// Each client gets its answers in the order of its requests, with its own PSNs and MSNs. One
// acknowledgement of the server becomes one acknowledgement for each client whose operations it
// covers. Two sorts of frames are held (hold=): requests whose turn has not come, and answers to
// READs that came before the answer to an earlier request. When there is no room, the frame is
// dropped, and its sender repeats it as after any loss. One connection may hold half of the free
// buffers, and all connections of one address two thirds of all buffers, so that requests that
// wait for ever leave room for other clients.
//
// Clients whose requests wait take turns: a client of which a request was sent goes behind the
// clients that still wait. No operation on a word overtakes those that wait for this word. Where a
// request waits only to keep words in one order, it waits for at most a quarter of its client's
// timeout, as the connection manager told it, and for at most 8 ms; where nobody told the timeout,
// for 16 of the server's round trips (wait.go). While an operation is under way whose answer tells
// a word's value, all other operations on the word wait. So a word in constant use becomes known
// 10 ms after settle= at the latest, if nothing is lost and all requests under way are answered.
//
// While a WRITE of anything but one tracked word has no answer, the words that it may change, and
// the words that came into use meanwhile, are unknown. When the server leaves a request without an
// answer that only its client can repeat, and answers other requests for giveup=, no word waits
// for this request any longer (lapse.go).
//
// # Words
//
// A word's value is known after an atomic on the word was answered, or a WRITE of the
// word alone passed; atomics that come in between wait. From then on each operation on
// the word's connection changes the known value as it passes. The box sends an atomic on
// a known word as a WRITE of eight bytes, also when the atomic changes nothing, so
// that the server checks its R_Key. The acknowledgement becomes the atomic's answer. Such a
// WRITE needs none of the server's responder resources. An operation makes the word unknown
// until it is done if it is not in order with the word's other operations, because it goes over
// another connection, has another R_Key, or touches a part of the word or several words. A NAK
// makes the word unknown, too, and so does an answer to a READ or an atomic that differs from the
// foretold one.
//
// A frame that the box does not follow (of another transport, to an unknown address at a known
// server's MAC, a fragment, an unknown opcode) makes words unknown before it passes, and for
// settle= after it: the words of the memory that the frame names, or all words of that server if
// the frame names none. The box does not look into tunnels and IPsec.
//
// A server may execute a WRITE before an earlier atomic or READ of the same queue pair, because
// IBTA orders these by a fence only. So while an atomic on a word is under way as an atomic,
// requests that would go as WRITEs wait for its answer.
//
// The box and the server each keep the value of a word. So from time to time (verify=) the box
// sends an atomic on a known word unchanged, and its answer shows whether the known value is right.
// If it is wrong, somebody changes the word whose frames do not pass here, and the box believes no
// value of it for ten seconds. This check limits the harm but does not exclude it: between two
// checks a WRITE may undo a change by the server's CPU, or by a client that uses a second address of the
// same memory, neither of which is seen on this wire. So the box replaces atomics only on memory
// that the operator names (track=), or everywhere if the operator says so (replace=learnt). On
// other words atomics move, and stay atomics.
//
// While a WRITE in the place of an atomic is under way, requests to its word that are not in
// order with it wait, because the WRITE would undo their changes. For the same reason the box replaces no atomics
// while two addresses of servers have one MAC, unless servers= says which addresses belong to
// one server, and while servers in two VLANs have one address.
//
// The work on words that one frame causes is bounded. An operation that touches more than 64 words
// makes all words of its server unknown, by one number that the number of each belief must exceed.
// Words wait for operations that no single word counts by generations of these operations
// (grace), however many are under way.
//
// Words are learnt. When there is no room for a new one (words=), the box forgets a word that was
// not used lately and has no operation under way (clock algorithm). A word takes no place if the server
// refuses the operation on it. When the server executes an atomic under another R_Key,
// the word belongs to this R_Key.
//
// # Failures
//
// The box recognises a duplicate request by its PSN. The duplicate goes the way of the original, or
// is answered from the record. The answers to a client's last 16 atomics outlive their operations'
// places on record. A duplicate that is not on record is acknowledged, or left without an answer,
// as a responder does.
//
// While a connection carries operations of other clients, the box itself sends again what the
// server misses: it makes each request from the record, or holds its packets until they are
// answered (fKept). No operation of another client goes behind a request that only its own client
// can send again. While a connection carries only its own client's operations, the client's
// duplicates pass, as without this app. When an answer is missing, the box keeps the later answers
// and asks for the missing one alone.
//
// A NAK that refuses an operation goes to its client, with the client's PSN of the refused packet.
// The operations behind it, which were not executed, are asked for again and go another way.
//
// A connection has failed when the server is silent on it, and has answered on another connection
// giveup= later; the time in which this process does not run does not count. While the server is
// silent on all connections, it may only pause: no client is told, and clients give up by their own
// retry counts. Of a server with several NICs one may be silent for ever (silent.go). After a failure READs are done again. So are, over another connection, operations that leave a
// value in their word that was known when they were sent: a replaced atomic, a short WRITE. Any other
// operation without an answer ends its client's connection with a REMOTE OPERATIONAL
// ERROR, because nobody knows whether it was executed. Operations of a client that is gone are
// completed from the record if other operations on the same word are behind them. If none are, and an operation
// that changes memory was lost, a WRITE of no bytes takes its PSN.
//
// # Congestion
//
// A congestion mark stays on its request. A marked answer from which several answers are made marks
// all of these. The server's congestion notification packets (CNP) go to the clients whose requests
// were marked, or, when the mark was set behind this app, to the clients whose operations the connection
// carries. A client's CNP goes to the connection over which its newest answer came.
//
// # The process
//
// Once an operation has moved, the two ends of the connections involved count differently, and
// their frames must not pass without this app. Such connections are bound. While no process runs,
// frames to their queue pairs are dropped (port.Filter.Bound), and all other frames cross.
//
// The flows and operations of bound connections lie in memory that outlives the process
// (graph.Env.Memory), and are written there before their frames leave. So the next process goes on
// with all bound connections, however this process ended. It takes over little: the requests and
// answers of each client, and the form in which each operation was sent. It makes lists, counts
// and next PSNs anew from that. Frames that came in and did not leave are lost like any other lost
// frame. Rights and words are learnt again, and connections that are not bound are met again.
//
// While no process ran, other frames may have changed words. So the box does not repeat unanswered
// WRITEs in the place of atomics before it has asked the server which of them it executed
// (doubt.go). It asks settle= after the end of the other process, by a WRITE of no bytes behind all
// open operations. The client sends the atomics that were not executed again, and they go as
// atomics. Until the server has answered the question, nothing new goes over that connection,
// because the question took the next PSN. If the server sends answers, but none to the question for
// giveup=, the connection ends.
//
// Frames also cross while the process runs but is late. Frames of bound connections do not cross.
// The numbering of the other connections is taken over again (Flush).
// WRITEs in the place of atomics that are under way then may undo what has crossed, so the box asks
// the server about these, too, before it repeats one.
//
// If the memory that the other process left is damaged, older than a minute, or of a version that
// this process does not understand (taken), the clients of the connections on record get a NAK when
// they send, however late. If not even the records can be read, no process starts. A connection
// on record is forgotten when it is closed. It is also forgotten if it was quiet (idle=), its end at
// the server does not answer, which is asked ever less often, and hardly any place is free.
//
// With mode=off operations go over their own connections again, connections on
// record are translated until they are closed, and no new connections are followed.
// While connections are on record, the app cannot be taken out of the graph (graph.Hooks.Keeps);
// mode=end tells their clients.
//
// # Parts
//
// A connection (flow) consists of a client and a carrier. The client has the requests and answers
// of its client, in the client's numbering. The carrier has the requests that were sent to the
// server over the connection, of any client, in the server's numbering. Operations (op) lie in a
// record. Each belongs to one client, and to one carrier while it is open.
//
// Two types handle frames. clientSide classifies a request, gives it a connection (choose) and its
// place in the order (enter), and sends it. carrierSide matches an answer to operations and takes
// them off the connection (forget); clientSide then gives the answers to clients in their order
// (deliver). Each has a field for the other, which few calls use. wire has the frame at hand, and
// makes and sends frames for both.
//
// A node is a memory server. Its order puts operations in order, and has the parts that know one
// subject each: words (the values in memory), keys (the rights of queue pairs), waits (which requests
// wait, and for what), shelf (the held frames), pulse (when the server was heard), and ledger (the
// data for the next process). These parts use each other only where init connects them. Box
// is the app: it finds a frame's node, and inspects connections from time to time.
//
// # Memory and threads
//
// All memory is allocated at the start: for the servers of servers=, and for as many more as
// discover= says (each some 13 MiB that outlive the process, and 10 MiB more); Report says how
// much. A server that servers= does not name gets a place when it has answered a request, and loses
// the place when it has had no connection for idle=. Requests to addresses that have not answered
// are noted for a second in 64 places, each address in one of four places. So a sender that makes
// up destinations can keep a new server from being found, but can do nothing else.
//
// All workers share the state of a server, and one worker owns it while it handles frames of this
// server: one atomic exchange for each batch and server, none with one worker. The worker parses and
// checks frames before it owns the state. It computes the ICRC of outgoing frames and sends them, in
// their order, after it has given the state back (post). Frames that two workers send over one
// connection may overtake each other; the server then asks for the missing ones, as after a loss.
package swordbox

const doc = `Clients that share words of memory (locks, counters, tails) send atomics to
them, which NICs execute slowly. This app, on the path of all requests to the
memory servers, moves the operations on such words onto connections that the
clients share. There they are in one order, so that the outcome of an atomic is
known when it passes: it goes on as a WRITE, and its client gets the answer of
an atomic.

Clients and servers need no change and see no difference: PSNs, MSNs and
acknowledgements are those of their own connections, in their own order. Which
words there are is learnt from atomics (learn=); WRITEs and READs of other memory
move as well when track= names it. Connections are learnt from the connection
manager's datagrams, from static=, or from the PSNs that pass (infer=).

An atomic becomes a WRITE on memory that you name, track=7f0000000000+100000. Name
memory that nobody but the clients behind port a changes, under one address: what a
process on the server writes there, or somebody under a second address of the same
memory, is not seen here and may be undone. When that is so of all memory of these
servers, say replace=learnt.

It does so where WRITEs were seen to be allowed (writable=proven).
Clients that only add or compare-and-swap never show that: say writable=assume
when their memory regions may be written.

The two ends of a connection whose operations were moved count differently. So
their frames do not cross without this process, and the process keeps a state (see
quillon help run): the next process goes on with them, whether this one was stopped
or killed. Without a state, stop the clients first.

To take the app out of use, set mode=off and wait until its counter "recorded"
is 0; or set mode=end, which ends the connections that are left within a minute.

quillon report shows the connections, with both ends' numbering, the words, and
the memory that is taken.

Port a faces the clients, port b the memory servers.`
