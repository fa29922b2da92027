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
// A word's value is known after an atomic on it was answered, or a WRITE of the
// word alone passed; atomics that come in between wait. From then on every
// operation on its connection changes what is known as it passes. An atomic on
// a known word goes on as a WRITE of eight bytes, also when it changes nothing, so
// that the server checks its R_Key; the acknowledgement becomes the atomic's
// answer. It needs none of the server's responder resources. Operations that are not in order with the
// word's others (another connection, another R_Key, a part of the word, or more
// than one word) make it unknown until they are done; so does a NAK, and a READ or
// an atomic whose answer is not what was foretold.
//
// What nobody follows (another transport, an address that is not a known server's
// but goes to its MAC, fragments, an opcode that is not known) makes words unknown
// before it passes, and for settle= behind it: those of the memory that it names,
// or all of that server when it names none. Tunnels and IPsec are not looked into.
//
// A server may execute a WRITE before an atomic or a READ that is ahead of it on
// the same queue pair: IBTA orders these by a fence only. So while an atomic on a
// word goes as one, what would go as a WRITE waits for its answer.
//
// Nobody but the box and the server keeps a word; so from time to time (verify=)
// an atomic on a known word goes as it is, and its answer tells whether the word
// is what it should be. When it is not, somebody changes it who does not pass
// here, and the word is left alone for ten seconds. That is a net and no promise:
// between two such looks a WRITE may undo what the server's CPU wrote, or a client
// under a second address of the same memory, neither of which is seen on this wire.
// So atomics become WRITEs only on memory that the operator names (track=), or says
// it of all (replace=learnt). On other words they move, and stay atomics.
//
// While a WRITE is under way that takes an atomic's place, requests of others to
// its word wait: what they do it would undo. For the same reason nothing is replaced
// while two addresses of servers have one MAC, unless servers= says which addresses
// are one server's.
//
// A frame's work on words is bounded. An operation that touches more than 64 words
// makes all of its server's unknown, by one number that beliefs must exceed. Words
// wait for operations that are not theirs by generations of these (grace), however
// many are under way.
//
// Words are learnt, and forgotten by disuse when there is no room for new ones
// (words=): a clock's hand finds those with nothing under way. What the server
// refuses takes no place. An R_Key under which it executes an atomic takes the word
// over from another one.
//
// # Failures
//
// A repeated request is recognised by its PSN and goes the way of the original,
// or is answered from the record; answers to the last 16 atomics outlive theirs.
// What is not on record any more is acknowledged, or left without an answer, as a
// responder does.
//
// While a connection carries operations of others, this app sends again what the
// server misses: all that it carries can be made from the record, or its packets
// are held until they are answered (fKept). Nothing of others is put behind a
// request that only its own client can send again. Of a connection that carries
// its own client's operations alone, the client's repetitions pass, as without
// this app. Answers that come while one before them is missing are kept; the
// missing one alone is asked for.
//
// A refusal goes to the client whose operation it was, with the PSN of what was
// refused; what was behind it, not executed, is asked for again and goes another
// way.
//
// A connection on which the server is silent has failed when the server has
// answered on another one, giveup= later (the time that this process does not run
// does not count). While it is silent on all, it may be that it pauses: nobody is
// told, and clients give up by their own counts. After a failure READs are done
// again, and so is, over another connection, what leaves a value in its word that
// was known when it was sent: a replaced atomic, a short WRITE. Other operations
// without an answer end their clients' connections with a REMOTE OPERATIONAL
// ERROR, since nobody knows whether they were executed. Operations of a client
// that is gone are completed from the record, where a word's order has others behind
// them; where not, and one that changes memory was lost, its PSN is filled by a WRITE of nothing.
//
// # Congestion
//
// A congestion mark stays with its request, and with the answers that one answer
// becomes. The server's notifications (CNP) go to the clients whose requests were
// marked, or, when the mark was set behind this app, to those that the connection
// serves; a client's go to the connection that answered it.
//
// # The process
//
// Once an operation was moved, the two ends of the connections involved count
// differently, and frames of theirs must not pass without this app. Such connections
// are bound. While no process is there, frames to their queue pairs are held back
// (port.Filter.Bound), and all others cross.
//
// What is known of them lies in memory that outlives the process (graph.Env.Memory):
// flows and operations, from before the frames leave. So the next process goes on with
// all connections that are bound, however this one ended. It takes over little: what
// each client sent and was told, and what each operation was sent as. Lists, counts and
// the PSN that comes next are made anew from that. What came in and did not leave is a
// loss as any other. Rights and words are learnt again. Connections that are not bound
// are met again.
//
// While nobody was there others may have changed words. So WRITEs in the place of
// atomics that are without an answer are not sent again before the server was asked
// which of them it executed (doubt.go): settle= after the end of the other process, by
// a WRITE of nothing, behind all that is open. What was not executed comes
// from its client anew, as the atomic that it is. Until the question was answered nothing
// new goes over that connection: its PSN is spent. A server that answers and does not say
// it for giveup= has the connection end.
//
// Frames also cross while the process is there and late. Those of bound connections do
// not; of the others the numbering is taken over again (Flush).
//
// When what was left is damaged, older than a minute, or of a version that this one does not
// understand (taken), clients of the connections on record are told by a NAK when they ask,
// however late. Where not even the records can be read, no process starts. A connection
// on record is forgotten when it is closed; or when it was quiet (idle=), its end at
// the server does not answer, which is asked ever less often, and there is hardly a place left.
//
// With mode=off operations go over their own connections again, connections on
// record are translated until they are closed, and no new ones are followed.
// While there are any the app cannot be taken out of the graph (graph.Hooks.Keeps);
// mode=end tells their clients.
//
// # Parts
//
// A connection (flow) is a client, what its client sent and was told, in the client's
// numbers, and a carrier, what was sent to the server over it, whoever's it is, in the
// server's. Operations (op) lie in a record; each belongs to one client, and while it is
// open to one carrier.
//
// Frames are handled from two sides. clientSide has a request classified, gives it a
// connection (choose) and its place in the order (enter), and sends it; carrierSide matches
// an answer to operations, which leave (forget), and clientSide gives it to clients in their
// turn (deliver). Each has a field for the other, and few calls go that way. wire has the
// frame at hand, makes frames and sends them, for both.
//
// A node is a memory server. Its order puts operations in order, and has the parts that know
// more of one thing: words what the memory holds, keys who may do what, waits which requests
// wait and for what, shelf which frames are held, pulse when the server was heard, and ledger
// what the next process is to find. These parts know each other only where init says so. Box
// is the app: it finds a frame's node, and looks at connections from time to time.
//
// # Memory and threads
//
// All memory is there from the start: for the servers of servers=, and for as many
// more as discover= says (some 13 MiB each that outlive the process, and 10 MiB more);
// Report says how much. A server that servers= does not name gets a place when it
// has answered somebody who asked it, and loses it when it has had no connection
// for idle=. Requests to addresses that have not answered are noted in 64 places, each
// in one of four, for a second: whoever makes up destinations may keep a new server from being
// found, and nothing else. Each server's state is one, and a worker owns it while it handles frames of it: one
// atomic exchange a batch and server, none with one worker. Frames are parsed and checked
// before that, and what is sent gets its ICRC and leaves behind it, in its order (post).
// Frames that two workers send over one connection may pass each other on the way; the
// server then asks for those that it misses, as after a loss.
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
