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
// # What is real and what is modelled
//
// Tasks do their work on the frames. A region is a place for a chain: its loading
// takes as long as a bitstream of its size through the configuration port, and until then
// packets wait. A task that declares a throughput or a latency has them: it keeps
// packets for as long as the board would. One that declares neither takes the time that
// its code takes, and has credits for a batch.
//
// A task has one instance of its code in a worker, whose state all regions share that
// run it. So its state survives a context switch, a scaling and a move, as with state in on-board
// memory; nothing is copied, and a flow may go to any instance. With several
// workers each is a board of its own, with all regions: the port's queues share out the flows.
//
// Tasks of a DAG that could run in parallel run one after the other, on the frame itself:
// one processor gains nothing by copies. That the result is the same is what
// independence means (snic/dag).
//
// # Ways
//
// Ports are pairs. What comes in by an even port runs through its DAG as written, a frame in
// at port a of each task and out at port b; what comes in by an odd one runs back.
// What a task answers goes back through the tasks before it. What a task
// makes by itself goes on from it, along the DAG that used it last.
//
// # Failures
//
// A tenant that floods is throttled at the door to its share, from the next epoch on, when
// others want what it uses. Packets for which there is no region wait, in bounded space;
// more are dropped with a reason. A deployment that is wrong is refused, and what
// runs stays.
//
// Source: Shan, SuperNIC (UCSD thesis, 2022, chapter 5).
package snic
