// Package snic is a SuperNIC on a Linux box: tenants deploy network tasks (any
// functions of quillon) and DAGs of them, and frames that pass run through them in
// chains, as on the published board.
//
//	frame ─► parser, rules ─► admission ─► scheduler ─► region: task ─► task ─┐
//	            (mat)           (fair)      (sched) ▲                         │
//	                                           └────┴─────────────────────────┴─► out
//	          epochs: demands measured, shares divided (drf); regions launched and scaled (region)
//
// The policies are in the packages below snic, which the simulator runs as well. Here they get real
// frames and real time.
//
// # Owners and words
//
// A board consists of owners. Each calls only owners above it in this list, with two exceptions: placement asks
// nearby for help (helpers), and regions ask placement what to launch (region.Config).
//
//	catalog    what is deployed, by number: tasks, chains, DAGs, tenants. It decides nothing and touches no frame (catalog.go).
//	stock      the books of the packet store (inside.go)
//	onboard    memory (memory.go, pages.go); shares: what tenants get of ports, tasks, time and memory (share.go, whole.go, spent.go)
//	gates      how frames leave: by ports, which may be lossless, to peers, to other workers (lossless.go)
//	runner     frames that are inside, and how they go through tasks (run.go, inside.go, parallel.go)
//	placement  which chains are in which regions, and through which of them a DAG goes (placement.go, skew.go, aside.go, toil.go)
//	ingress    whose a frame is, whether it is let in (ingress.go, press.go), and whose turn it is when there is not time for all (lobby.go)
//	nearby     DAGs that run at another worker or at a board of the pool, and those of others that run here (peer.go, move.go);
//	           fellows, a part of it, is for other workers (lodge.go, ebb.go), and late.go for frames that go there
//
// A lane is a packet in one branch of a stage. A term tells apart DAGs that had the same number, one after the
// other. To place a chain is to put it into a region. A node is always a board of a pool (pool.Node).
//
// # What is real and what is modelled
//
// Tasks do their work on the frames. A region is a place for a chain: loading takes as
// long as the chain's bitstream would take through the configuration port, and packets
// wait until then. A task that declares a throughput or a latency keeps packets for as
// long as the board would. A task that declares neither takes the time of its code, and
// has credits for a batch.
//
// A task has one instance of its code in a worker. All regions that run the task share the
// state of that instance. So state survives a context switch, a scaling and a move, as state
// in on-board memory does; nothing is copied, and a flow may go to any instance.
//
// # Workers
//
// Several workers are one board. Region r belongs to worker r modulo their number, which loads it, scales it and runs
// what is in it. Each has a part of the packet store (store=, packets=), and the scheduler of its regions. Deployment
// and rules are the same in all.
//
// A frame runs to its end in the worker that it came in by, if the chains of its DAG are in that worker's
// regions. Otherwise that worker hands the frame over, after admission, to the home of the DAG
// (graph.Ctx.Hand): one worker, the number of the DAG modulo that of the workers with regions, for all flows
// and both directions. A home hands nothing of its own DAGs over: it finds a region among its own, as a board
// of one worker does. So all chains of a DAG are in one worker.
//
//   - At its start a DAG is loaded at its home. Where no task of it has a throughput, the other workers load it, too,
//     if a region is free then: all of them do the same work, each on its own processor.
//   - A worker with frames of such a DAG loads it when a region becomes free. A DAG with a throughput is loaded
//     elsewhere when its home has too much of it and no region left, by a worker that hands frames of it over and has a
//     free region. It counts what came in, not what was let in.
//   - The same happens when the home's worker does not have the time for all frames, by their measured costs (below, "Cost").
//   - A worker that needs a DAG's region for another DAG sends the DAG to its home.
//   - A DAG with a throughput goes home, and its region becomes free, when its home has had room for all of its frames for two
//     monitor periods: room in its tasks, up to nine tenths of what their instances there can do, and in the worker's time. Workers
//     tell each other their loads as often as the load of tasks is measured. A home gets one DAG back in four monitor periods; a DAG
//     that has to leave again soon stays away twice as long as the time before. If several workers hand over frames of a DAG, none
//     takes it from another: one of them runs it, or the home does.
//   - DAGs of functions whose instances are not to know of each other (graph.Kind.Alone: a P4 program, a hop), and of tasks with memory of
//     the board, are at one worker, the first, as what they know is there. A DAG with a task with state that may go to another board of a
//     pool is at one worker, too: at its home, whichever that is. DAGs that have such a task in common have the same home.
//
// A DAG goes from one worker to another in three steps. First its new frames wait in the packet store. Then the
// earlier frames leave, here or at the other worker, which reports that. Then the waiting frames go the new
// way, in their order; frames for which the ring to the other worker has no room stay in the packet store until
// it has. So none is lost, and a flow keeps its order in each direction.
//
// Worker 0 divides ports and tasks among tenants, for all workers, every 100 µs, or every epoch= if that is
// longer. A worker gets that part of a tenant's share which corresponds to its part of the tenant's demand
// (snic/fair). A worker divides its own time and packet store itself. A tenant that begins to send by all of n
// workers at once is let in by each of them as by a board of its own, for the time of two divisions, up to n
// times burst=. Each worker has the n-th part of burst=, but no less than a batch of full frames.
//
// All frames of a DAG that come in by one worker use the regions of one worker. Frames that are handed over
// wait there for their tenant's turn, as frames that came in there do. Frames that come too fast for the ring
// to that worker are dropped, whatever their tenant (hand-over-full).
//
// # Flows and instances
//
// A chain with several instances divides its packets among them. If no task of a DAG remembers packets, answers
// them or holds them, each packet goes to the instance that has least inside, and all leave in order. Otherwise
// all packets of a flow go to one instance: a new flow goes where there is room, and groups of flows leave an
// instance that has too much, each group when its packets inside are done. The demand for each instance is
// measured before anything is throttled. A task gets another instance when all instances together have too
// much, or when one has too much and moving flows does not help. It gets none if a single flow is nearly all of
// the load: more instances would not help, and quillon snic tasks says so.
//
// If there is no region for another instance, some flows of a DAG go through other chains that run, have its
// tasks and have room (aside.go). The flows are chosen by the same 1,024 buckets. These are measured for a
// monitor period; then so many of them move that the DAG's own chain has nine tenths of what it can do, and the
// other chain no more than that. Flows leave the other chain when it has too much, and come back when all fit
// into the DAG's own chain. The other way takes no more visits than the DAG's own way. A flow changes its way
// when its packets inside are done. This is only for packets that are scheduled one by one: those of DAGs with
// a task whose time is modelled.
//
// # Side by side
//
// Independent tasks of a DAG (snic/dag: stages of branches) run side by side: the frame stays in the packet
// store, and tasks that only look at it, or drop it, have it there one after another. A branch gets a copy of
// the frame's header when a task of it is to write to it, or may keep it; a task that declares that it needs
// the payload gets that, too. When all branches are back (the synchronisation buffer of snic/sched), what they
// have written is merged into the frame (snic/merge). So a stage takes as long as its longest branch. A task
// may be in the same region as one that runs beside it: tasks that a packet skips cost it nothing.
//
// The result is that of all tasks one after the other, and so is the order of a flow:
//
//   - What one branch drops is dropped, and comes to no more tasks of others.
//   - A task that answers, holds, or makes packets is beside those alone that change nothing,
//     remember nothing and drop nothing. An answer goes back through the tasks before
//     it in the DAG, in line. It does not have what tasks beside have marked it with.
//   - Of marks (verdict and reason) that of the last task in the DAG counts.
//   - What a task changes and does not declare is not merged where the task has a copy.
//
// One processor gains nothing by copies. So by default (parallel=auto) branches run side by
// side only where at least two of a stage have a task whose time is modelled; all others
// run one after the other on the frame itself. Copies are frames of the port's pool. While
// no more than an eighth of it is free, packets take a way without copies (in line), in the order
// of their flow. If none is left where they are needed, the packet is dropped (no-copy).
//
// # Ways
//
// Ports form pairs. A frame that comes in by an even port runs through its DAG as written, in at port a
// of each task and out at port b. A frame that comes in by an odd port runs the opposite way. The answer
// of a task goes back through the tasks before it. A frame that a task makes by itself goes on from that
// task, along the DAG that used the task last.
//
// # Memory
//
// With memory= a task that declares memory: and can use it (nf/memory) has an address space of its own
// (snic/vmem) in each worker. The space belongs to the tenant whose DAGs have the task, or, if several
// tenants use the task, to a tenant of weight 1 without name. It exists from the task's start until its
// end. A task starts with new, empty memory if its function, arguments or restart: changes, or if it
// declares less than before; a task that declares more goes on, and gets the additional memory at once
// (memory.Grower). A deployment for which there is no room, here or at known boards of the pool, is
// refused. What counts is the memory that tasks declare and can use, even if they have reserved less.
//
// A fault stops a task. Frames that it held, and frames that come for it, are dropped, or go on without it
// (fault: pass); its memory becomes free. The task starts again when its restart: changes. A task whose code
// panics ends in the same way, except that frames that it held are always dropped, because their state is not
// known (graph.Inside.Over). Its chain stays in its region.
//
// Memory is one of the shared resources: a tenant whose dominant share is memory gets less of other scarce
// resources, and the other way round. Weights are those of the tenants. vmem is told a tenant's share of other
// resources as a mean over a monitor period, like the load of tasks, because in a single epoch, which lasts
// only a few packets, a tenant that sends in bursts has everything or nothing. With fair=off there are no
// shares: the least recently accessed page goes.
//
// The board's memory is memory of the machine, taken when it is used, not at the start. A board is refused if
// all boards of an instance would have more than the machine has. The worker clears the memory that a task
// leaves, at most 32 kB in a breath, before another task gets it. A task that touches a new page while all free
// pages have yet to be cleared waits (memory.Wait).
//
// In a pool (below), pages for which the board has no room are at peers. Pages travel with the pool's messages,
// from memory to memory, beside the worker, which only hands over and takes pages between two breaths. An
// access to a page at a peer returns at once (memory.Wait), and the task is told when the page is back. When a
// peer dies, tasks that had pages there stop, and the frames that this board lent to it become free. Pages at a
// peer that leaves move to other peers, where there is room, and the peer waits for that. Boards with pages of
// the same size lend to each other, whatever their deployments.
//
// # Pool
//
// With pool-port= boards on an Ethernet segment help each other (snic/pool decides, Peering joins a
// board with it). All must have the same tasks, tenants and DAGs, or they do nothing for
// each other; regions may differ. What moves is a DAG: one for which there is no region, or
// the one with most traffic through an overloaded task if no region is free for that task.
// A DAG may go if all of its tasks may (remote), and none of them has state and is in
// another DAG, too: state is in one place. Then its frames go to the peer and come back:
//
//	Ethernet: to the peer's address, from the own one, type 0x894f
//	NSH (RFC 8300): no metadata; path: the UID; next protocol Ethernet
//	     index: 0x20 | 0x10 in answers | port of the first board to leave by
//	the frame
//
// The port says which way the frame goes: an odd port means forward; in an answer of a task it is the
// opposite port. The segment is trusted: who can send there can pass for a board. But a board takes a frame
// only from the address that a board of the pool has announced, and that no other has announced: forward if
// a DAG runs here for that board, and back if a DAG of this board runs there, or ran there a moment ago. Who
// has the secret can pretend to be any board. The headers take 22 bytes; a frame that does not fit into
// pool-mtu= with them is dropped. A frame that would go on to a third board is dropped.
//
// If a board has several workers, a DAG's home decides what becomes of the DAG in the pool. All frames that go to
// a peer or come back go through the home, whichever worker received them, also those of the pool's port; so a
// flow keeps its order. What runs for a peer is in regions of the home. The home asks the pool when it has no
// region, or too much and no worker that hands frames over helps. Workers that run a DAG themselves, each for the
// frames that it receives, go on while the home's part of the DAG is at a peer. But no worker begins to run a DAG
// that is at a peer, because frames that the worker handed over may be there. A task with state that may go to a
// peer (remote) has one instance, in its DAG's home, because an instance saves its own state, and nothing joins
// the states of several. So more workers do not make such a task faster, but several such tasks run in several
// workers. With remote: false the task's DAGs run in all workers, and stay. Memory is the first worker's, and its
// pages travel. The Peering hears all workers, and tells the pool one thing once all have put the same deployment
// in force.
//
// A frame is admitted where it comes in, and again at the peer, both times as its tenant's. A DAG runs here until
// the peer is ready. Then new packets wait, those inside leave, and the state of the DAG's tasks goes to the
// peer. The state is saved a piece at a time and read beside the worker (graph.Mover: firewall and napt), so that
// frames of other DAGs do not wait. A DAG stays if it has a task whose state cannot be saved (graph.Saver). It
// comes home in the same way when a region is free, so that a flow keeps its order. When the peer is lost, frames
// on the way are lost, too. The DAG then goes to another peer or runs here, with the state that it left with;
// what its tasks learnt at the peer is lost. With pool-copy= the peer sends a copy of that state at this interval
// (none if no frame has come since, or if the state is more than 16 MB). Then only what was learnt since the last
// copy is lost: that interval and the time that a copy takes to come (1 ms in TestPeerCopies; docs/PERFORMANCE.md
// has a live figure). A board that stops announces that first. What it runs for others then goes home with its
// state, if need be before a region is free there, and no frame is lost. The board's own DAGs end at peers when
// the board is gone. A state of more than 16 MB cannot go: it is lost with the board, which says so at its end.
// All traffic of a DAG with state must come in by one board: a board that has received frames of the DAG itself
// does not take the DAG's state from another one. When a peer's DAG has left, or the peer is lost, tasks with
// state begin anew, unless frames of the board's own DAGs have come to them.
//
// # Cost
//
// The board measures how much of a worker's time a task takes, if the clock moves during a breath: it times one
// batch of every 256 packets that a task gets, for each DAG. In replay the time stands still in a breath, and
// costs are not measured.
//
// While several tenants send, a worker's time is one of the resources that are divided: the time that is left
// when the worker has looked at all frames that come. Frames wait in the lobby, which has a queue for each
// tenant, in two cases: if tasks would run for more than 50 us at once; and if more frames wait at the ports, and
// either processing frames (tasks, and what follows, such as sending) takes twice as long as looking at them, or
// tasks take longer than all else. These times are measured. The worker looks until nothing waits at its ports,
// lets tasks run for 50 us, and looks again; at least a quarter of its time is for tasks. So the ports' rings do
// not overflow, where nobody can tell whose frames are lost: a tenant that floods loses what its own queue has no
// room for, which is what it leaves to others of the packet store and of the port's buffers, and as much work as
// slack= is long, or a batch. The tenant that has had least of the time has the next turn, of 20 us, and the time
// that the turn takes, as measured, is charged to it. The charge is larger in proportion to the tenant's dominant
// resource: so dominant shares grow alike. A tenant's memory is not considered there.
//
// While only one tenant is known to send, its frames wait in the lobby only if a batch of them takes more than
// 200 us. Tasks then run for 32 times as long as looking took. So the worker notices another tenant that begins
// to send although the ring overflows, and then keeps that tenant's share for it.
//
// If a task runs longer than a port's ring lasts (ring= frames at the rate at which they come), or if a worker
// gets no processor for so long, the ring overflows: a task is never interrupted, and nobody can tell whose
// frames are lost. A longer ring is the remedy. Where looking at all frames takes more than three quarters of
// the time, or processing them takes less than twice as long as looking at them, excess frames are lost at the
// ports.
//
// A worker does not have enough time if, for a monitor period, frames ask for more time than there is, or
// frames wait at the ports all the time, or senders are held back (by pauses or marks) while nine tenths of the
// time are used. All regions of a worker share its time, so another region would not help, and none is
// launched. DAGs whose frames cost more than sending them elsewhere are then run by the workers that hand them
// over, if these have regions. The DAG that takes most time goes to a board of the pool that has time and a
// region, and comes home when there is time for it. A DAG whose frames come in by its own worker stays if the
// board is in no pool.
//
// # Failures
//
// A tenant that floods is throttled to its share, from the next epoch on, when other tenants want the
// resources that it uses. Before its packets are dropped, they are marked: when the tenant asks for more than
// it gets, and has used half of what it may send at once (burst=), packets with an ECN-capable outermost IP
// header get the mark congestion experienced (RFC 3168). Packets for which there is no region wait, in bounded
// space; packets beyond that are dropped with a reason. A wrong deployment is refused, and the running
// deployment stays.
//
// Source: Shan, SuperNIC (UCSD thesis, 2022, chapter 5).
package snic
