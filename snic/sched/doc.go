// Package sched is the central scheduler of a SuperNIC: it decides when a packet goes to which
// region, and which tasks of the chain in that region it runs through. The scheduler is a state
// machine for one goroutine, without a clock and without frames: it knows a packet as a number,
// and its owner keeps the frame. After New only changes of the configuration allocate memory.
//
// # Parts
//
// The owner calls the Scheduler. The Scheduler's road takes packets from Arrive to Leave, and uses four parts
// that do not know the road: queues (credits of tasks, and headers that wait for them), Instances (which
// regions hold a chain, and to which of them a flow goes), order (packets of a flow, by arrival) and plans
// (routes that packets keep).
//
// # What it knows
//
// A region holds an instance of a chain: at most 16 tasks in order. Each task has credits: the
// number of packets that it may have at a time (Place). A route is made from a DAG: a series of
// stages; each stage is a set of branches that run in parallel; each branch is a series of
// visits. A visit is a chain and a mask: bit i stands for task i of the chain, and the packet
// skips tasks without their bit. A visit may use any region that holds the chain, so that routes
// need not change when instances are placed or removed.
//
// # The way of a packet
//
// Arrive takes a packet into the packet store, whose size is bounded. Next returns what to run:
// tasks of one region, for one packet. The owner runs them, gives the credit of each task back
// when the packet leaves the task (Release), and reports when the packet is back at the scheduler
// (Return, which also gives back the remaining credits). A stage with several branches makes one
// run for each, on copies of the header; the next stage starts when all branches are back (the
// synchronisation buffer). A packet that one branch drops counts as dropped when all branches are
// back. Leave returns packets that are done, dropped or not; only then is a packet's number free,
// and its payload out of the packet store.
//
// The scheduler reserves credits for the whole remaining visit if each of its tasks has a credit
// and no packet waits for it; otherwise for as many of the first tasks as possible. In the latter
// case the packet takes its place in the queue of the first task without a credit, at once, and
// comes back to the scheduler in the middle of the chain. Queues are strictly first come, first
// served: a free credit waits for the head of the queue even if that is still on its way back. So
// no packet starves, and no later packet runs through the chain past a packet that had to come
// back. A packet that waits at the scheduler has no credit, so that there is no deadlock.
//
// A task may keep packets, for example until an answer comes through the same tasks. A kept packet must not
// occupy the credits that the answer needs. So it has no credits (Keep), neither for that task nor for later
// tasks. When the task lets it go, the packet goes on at once, or behind packets of its flow that wait in the
// region, even if no credit is free: a later packet of its flow that comes out of the task has its credits
// already, and would overtake it. So a task may have more packets than credits: as many more as an earlier task
// lets go at a time.
//
// With Config.Panic a packet gets one credit at a time and comes back after each task, as in
// PANIC (Lin et al., OSDI 2020), for comparison.
//
// # Order
//
// Packets of one direction of a flow (the same hash, tenant and Route.Back) leave in the order in
// which they arrived, dropped or not, whatever their routes. With Spread PerFlow they also pass
// each task in that order. A flow goes to one of the instances by rendezvous hashing: when
// instances are placed or removed, only flows move that have to. With Seat, load decides instead,
// as in receive flow steering: a table of Buckets of flows has, for each bucket, its instance and
// the work that its flows bring (Want, which counts before any packet is refused). A new flow goes
// to an instance with little work; Balance moves buckets from an instance that has too much. The
// table has a fixed size, whatever is sent, and a sender that does not know Config.Seed cannot
// choose a bucket. A packet for another instance than that of the packet before it in its flow
// waits until that packet has done the visit. So a flow moves only when it has drained, and by
// induction no packet is in a visit in front of an earlier packet. Dropped packets do not count.
// With RoundRobin and LeastLoaded packets of a flow may pass each other between Arrive and Leave;
// with AnyOrder they may also leave in another order.
//
// All this holds if regions keep order: of two packets of a flow, the packet that Next returned
// first leaves each task first (and, with Panic, returns first from it).
//
// # Changes under traffic
//
// Pause lets no more packets into a region. A packet that waits there goes to another instance of
// the chain, even in the middle of a visit, or is parked until there is one: this buffers packets
// during stop-and-launch. Packets inside finish. Remove takes the instance away when it has
// drained. The owner moves the state of flows, between Drained and Place.
//
// A packet keeps its plan. When SetRoutes changes a route, packets on which a task has run finish
// on the old plan, and later packets of their flow wait for them; all other packets follow the new
// route. While a chain has no instance, packets wait for it if their plan is in force. Packets on
// an old plan go to other chains that run their tasks or will run them (Config.Instead); if no
// chain does, they are dropped (Gone).
//
// # The bulk road
//
// If a route is one visit, and the owner runs each packet to completion when it takes it, a batch
// needs no descriptors: Take reserves the whole chain for as many packets as possible, and Give
// returns the credits. Packets on this road are not in the packet store. The road is closed (Take
// returns 0) while packets of the same route are on the full road, so that none of them is
// overtaken, and while packets wait for one of the tasks. The owner runs packets in the order in
// which it took them, and before any later run of Next. If a flow changes its route, its order is
// not kept on this road.
//
// Source: Shan, SuperNIC (UCSD thesis, 2022, chapter 5), sections 5.4.2 and 5.4.3. This package
// adds places in queues, hashing and draining of flows, plans and the bulk road. The source sends
// packets to instances round robin.
package sched
