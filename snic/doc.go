// Package snic is a SuperNIC on a Linux box: tenants deploy network tasks (any
// functions of quillon) and DAGs of them, and frames that pass run through them in
// chains, as on the published board.
//
//	frame ─► parser, rules ─► admission ─► scheduler ─► region: task ─► task ─┐
//	            (mat)           (fair)      (sched) ▲                         │
//	                                           └────┴─────────────────────────┴─► out
//	          epochs: demands measured, shares divided (drf); regions launched and scaled (region)
//
// Policies are the packages below, which the simulator runs as well; here they are
// given real frames and real time.
//
// # Owners and words
//
// A board is the wiring of its owners; each calls only those above it in this list, but for two things: placement asks
// nearby for help (helpers), and regions ask placement what is to be launched (region.Config).
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
// A lane is a packet in one branch of a stage. A term tells DAGs apart that have had the same number, one after the other.
// To place a chain is to put it in a region. A node is a board of a pool (pool.Node), and nothing else.
//
// # What is real and what is modelled
//
// Tasks do their work on the frames. A region is a place for a chain: to load it
// takes as long as the chain's bitstream through the configuration port, and until then
// packets wait. A task that declares a throughput or a latency has them: it keeps
// packets for as long as the board would. One that declares neither takes the time that
// its code takes, and has credits for a batch.
//
// A task has one instance of its code in a worker, whose state all regions share that
// run it. So its state survives a context switch, a scaling and a move, as with state in on-board
// memory; nothing is copied, and a flow may go to any instance.
//
// # Workers
//
// Several workers are one board. Region r belongs to worker r modulo their number, which loads it, scales it and runs
// what is in it. Each has a part of the packet store (store=, packets=), and the scheduler of its regions. Deployment
// and rules are the same in all.
//
// A frame runs to its end in the worker that it came in by, if the chains of its DAG are in that worker's regions.
// Otherwise that worker hands the frame over, after admission, to the home of the DAG (graph.Ctx.Hand): one worker, the
// number of the DAG modulo that of the workers with regions, for all flows and both directions. A home hands nothing of
// its own DAGs over: it finds a region among its own, as a board of one worker does. So all chains of a DAG are in one
// worker.
//
//   - At its start a DAG is loaded at its home. Where no task of it has a throughput, the other workers load it, too,
//     if a region is free then: all of them do the same work, each on its own processor.
//   - A worker with frames of such a DAG loads it when a region becomes free. A DAG with a throughput is loaded
//     elsewhere when its home has too much of it and no region left, by a worker that hands frames of it over and has a
//     free region. It counts what came in, not what was let in.
//   - So it is when the home's worker has not the time for all frames, as it was measured what they cost (below, "Cost").
//   - A worker that needs a DAG's region for another one, has the DAG go to its home.
//   - A DAG with a throughput goes home, and its region is free, when its home has had room for all that comes of it for two monitor
//     periods: for its tasks, no more than nine tenths of what their instances there can do, and for its time. Workers tell each other
//     their loads as often as tasks are looked at. A home gets one DAG back in four monitor periods; one that has to go again soon
//     stays twice as long as the time before. Of several workers that hand frames of a DAG over, none takes it from another: either
//     runs it, or the home does.
//   - DAGs of functions whose instances are not to know of each other (graph.Kind.Alone: a P4 program, a hop), and of tasks with memory of
//     the board, are at one worker, the first, as what they know is there. A DAG with a task with state that may go to another board of a
//     pool is at one worker, too: at its home, whichever that is. DAGs that have such a task in common have the same home.
//
// A DAG goes from one worker to another in three steps: its frames wait in the packet store; those before them leave,
// here or, which the other worker says, there; then those that wait go the new way, in their order; those for which the ring to the
// other worker has no room stay in the packet store until it has. So none is lost, and a flow keeps its order in each direction.
//
// What tenants get of ports and tasks is divided once for all workers, by worker 0, every 100 µs or epoch=, if that is
// longer: each worker's part of a tenant's share is that of the tenant's demand which came in there (snic/fair). What a
// worker alone has, its time and packet store, it divides itself. Until it has been divided, what a tenant begins to
// send by all of n workers at once is let in as by n boards: for two divisions, and n times burst=, which is itself
// divided by n, but is no less than a batch of full frames in each worker.
//
// All traffic of a DAG that comes in by one worker uses the regions of one worker. Frames that are handed over wait for their tenant's turn
// there, as those that came in there do. What comes too fast for the ring to that worker is dropped, whosever it is (hand-over-full).
//
// # Flows and instances
//
// A chain with several instances shares out what comes. Where no task of a DAG remembers packets, answers or holds them,
// each packet goes to the instance that has least inside, and all leave in order. Otherwise a flow goes to one
// instance: new ones to where there is room, and while an instance has too much, groups of flows go from there to others, each
// when its packets inside are done. What tasks should handle is measured of each instance, before anything is throttled. A
// task gets another instance when all together have too much, or one has that cannot be helped by moving flows; but not
// where one flow alone is nearly all of it: no more instances would help, and quillon snic tasks says so.
//
// Where there is no region for another instance, some flows of a DAG go through other chains that run, have its tasks and have room
// (aside.go): by the same 1,024 buckets, which are measured for a monitor period, and then as many as it takes to have nine tenths of what
// the DAG's own chain can do there, and no more than that in the other one. They give way when the other chain has too much, and come back
// when all fit into the DAG's own chain. The other way takes no more visits than the own one. A flow goes over when its packets inside are
// done. Only what is scheduled one by one goes this way: DAGs with a task whose time is modelled.
//
// # Side by side
//
// Independent tasks of a DAG (snic/dag: stages of branches) run side by side: the frame
// stays in the packet store, and tasks that only look at it, or drop it, have it there one after another. A branch gets a
// copy of the frame's header when a task of it is to write to it, or may keep it; a task that declares that it needs the
// payload gets that, too. When all branches are back (the synchronisation
// buffer of snic/sched), what they have written is merged into the frame (snic/merge). So a
// stage takes as long as its longest branch. A task may be in the same region as one that
// runs beside it: tasks that a packet skips cost it nothing.
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
// Ports are pairs. What comes in by an even port runs through its DAG as written, a frame in
// at port a of each task and out at port b; what comes in by an odd one runs back.
// What a task answers goes back through the tasks before it. What a task
// makes by itself goes on from it, along the DAG that used it last.
//
// # Memory
//
// With memory= a task that declares memory: and can use it (nf/memory) has an address space of its own
// (snic/vmem), for each worker. It is of the tenant whose DAGs the task is in; of a tenant of weight 1
// and without name, if several use it. It is there from the task's start until its end: a task whose
// function, arguments or restart: changes, or which declares less than before, starts with new memory, which is
// empty; one that declares more goes on, and has the rest at once (memory.Grower). A deployment
// for which there is no room, here or at known boards of the pool, is refused: what counts is what tasks declare that can
// use it, though they have reserved less.
//
// A fault stops a task: what it held and what comes for it is dropped, or goes on without it (fault:
// pass); its memory is free. It starts again when its restart: changes. A task whose code panics ends in the same way, but
// that what it held is always dropped: nobody knows what it is (graph.Inside.Over). Its chain stays in its region.
//
// Memory is one of the resources that are shared: who has much of it gets less of what else is scarce, if that is its
// dominant share, and the other way round. Weights are the tenants'; what else a tenant has of the board is told to
// vmem as its mean over a monitor period, as the load of tasks is: in an epoch alone, which is as long as a few packets
// take, who sends in bursts has all or nothing. With fair=off nobody has a share: the page goes that was not accessed
// for longest.
//
// The board's memory is the machine's, which gives it as it is used, not at the start; more than the machine has, for
// all boards of an instance, is refused. What a task leaves is cleared by the worker, 32 kB in a breath at most, before
// another has it: who touches a new page when all that is free has yet to be cleared waits for that (memory.Wait).
//
// In a pool (below) what is more than the board has is at peers: pages go between boards with the pool's messages, from
// memory to memory beside the worker, which only hands over and takes, between two breaths. An access to a page that is
// away says so at once (memory.Wait), and the task hears when it is back. When a peer dies the tasks of which it had
// pages stop; what a dead board had here is given back. A peer that leaves has its pages moved to others, where there
// is room, and waits for that. Boards with pages of the same size lend to each other, whatever their deployments.
//
// # Pool
//
// With pool-port= boards on an Ethernet segment help each other (snic/pool decides, Peering joins a
// board with it). All have the same tasks, tenants and DAGs, or do nothing for
// each other; regions may differ. What moves is a DAG: for which there is no region,
// or that with most traffic through a task which is overloaded, with no region free
// for it. It goes if all of its tasks may (remote), and none of them has state and is of
// another DAG, too: state is in one place. Then frames of it go there and come back:
//
//	Ethernet: to the peer's address, from the own one, type 0x894f
//	NSH (RFC 8300): no metadata; path: the UID; next protocol Ethernet
//	     index: 0x20 | 0x10 in answers | port of the first board to leave by
//	the frame
//
// The port says which way it goes: an odd one is forward, and in an answer of
// a task it is the port opposite. Only the first board's neighbours have to do with
// it, and nobody else. The segment is trusted: who can send there can pass for a board. But a frame
// is taken only from the address that a board of the pool has told, which no other has: when a
// DAG runs here for that board, or back when the own one is, or was just now, there.
// All that have the secret can say that they are any board. That takes 22 bytes more than the frame has: what does not fit into
// pool-mtu= is dropped. A frame that would go on to a third board is dropped.
//
// Of a board with several workers the home of a DAG says what becomes of it in the pool. All that goes to a peer and comes back goes through
// the home, by whatever worker it came in, by the pool's port too; so a flow keeps its order. What runs for a peer is in regions of the home.
// The home asks the pool when it has no region, or too much and no worker that hands frames over helps. Workers that run a DAG themselves,
// each for what comes in there, go on while what its home has of it is at a peer; but none begins to while the DAG is abroad: what it handed
// over may be at the peer. A task with state that may go to a peer (remote) knows what one instance knows, in its DAG's home,
// since what it knows goes as one instance saves it, and nothing makes one state of those of several. So more workers do not make such a task faster,
// but several of them run in several workers;
// with remote: false its DAGs run in all workers, and stay. Memory is the first worker's, and its pages travel. The Peering hears all workers,
// and tells the pool one thing once all have put the same deployment in force.
//
// A frame is admitted where it comes in, and again at the peer, both times as its
// tenant's. Before a DAG goes it runs here until the peer is ready; then packets wait,
// those inside leave, and what its tasks know goes along, saved a piece at a time and read beside the worker
// (graph.Mover: firewall and napt), so that frames of other DAGs do not wait for it; with a task that has state and
// cannot tell it (graph.Saver) it stays. It comes home in the
// same way when a region is free, so that a flow keeps its order. When the peer is
// lost, what is on the way is, too; the DAG goes to another peer or runs
// here, with what its tasks knew when it left: all that they learnt at the peer is lost. If the peer has
// pool-copy= it sends a copy of it so often (none if no frame has come since, or it is more
// than 16 MB), and what was learnt since the last one is lost: that time and what the copy takes to come (1 ms in
// TestPeerCopies; docs/PERFORMANCE.md has a live figure). A board that stops says so first: what it
// runs for others goes home with its state, before a region is free if need be, and no frame is
// lost by that; its own DAGs end at peers when it is gone. A state of more than 16 MB cannot go: it is lost
// with the board, which says so at its end. Traffic of a DAG with state is to come in by
// one board: others do not take it from there once they have had some of their own. What a board learns for
// a peer goes with the peer's DAG: when that has left, or its board is lost, tasks with state begin
// anew there, unless frames of the board's own have come to them.
//
// # Cost
//
// The board measures what a task costs of a worker's time, where the clock moves while a breath lasts: it times one
// batch of every 256 packets that a task gets, for each DAG. In replay time stands still in a breath, and costs are not measured.
//
// While several tenants send, a worker's time is one of the resources that are divided: all that is left when the worker has looked at everything
// that comes. When tasks would run for more than 50 us at once, or more waits at the ports and to have frames go on takes twice as long as looking at
// them, or their tasks longer than all else, frames wait in the lobby, a queue for each tenant. What both take is measured: to go on is tasks, and all
// that follows, as sending them.
// The worker looks until nothing waits at its ports, lets tasks run for 50 us, and looks again; at least a quarter of its time is for tasks. So the
// ports' rings do not overflow, where nobody can tell whose frames are lost: a tenant that floods loses what its own queue has no room for, which is
// what it leaves to others of the packet store and of the port's buffers, and as much work as slack= is long, or a batch. Who has had least of the
// time has the next turn, of 20 us, and pays for it what it took, as measured. Time counts as much more as a tenant has of its dominant resource
// while it has one part of time: so dominant shares grow alike. What a tenant has of memory is not looked at there.
//
// While one tenant alone is known to be there, tasks run for 32 times as long as looking took: so a tenant that begins to send is seen although
// the ring overflows, and then its share is kept for it. That is so when a batch takes more than 200 us.
//
// A task that runs longer than a port's ring lasts (ring= frames at the rate at which they come) has the ring overflow for all that, and so has a
// worker that has no processor: a task is never interrupted, and nobody can tell whose frames are lost. A longer ring is the remedy. Where looking at all
// that comes takes more than three quarters of the time, or to go on less than twice as long as looking, what is too much is lost at the ports.
//
// A worker has not enough time when for a monitor period frames ask for more of it than there is, or wait at the ports all the time,
// or when senders are held back (by pauses or marks) while nine tenths of it are used. All its regions have that time
// together, so no region is launched for it. DAGs whose frames cost more than it takes to send them elsewhere are then run by workers that hand
// them over, if these have regions, and the one that takes most time goes to a board of the pool that has time and a region. It
// comes home when there is time for it. A DAG stays whose frames come in by its own worker, in a board that is in no pool.
//
// # Failures
//
// A tenant that floods is throttled at the door to its share, from the next epoch on, when
// others want what it uses. Before anything is dropped for that, its packets are marked: when the tenant asks for more than
// it gets, and has used half of what it may send in one go (burst=), packets with an ECN-capable outermost IP header get
// the mark congestion experienced (RFC 3168). Packets for which there is no region wait, in bounded space; more are
// dropped with a reason. A deployment that is wrong is refused, and what
// runs stays.
//
// Source: Shan, SuperNIC (UCSD thesis, 2022, chapter 5).
package snic
