// Package sched is the central scheduler of a SuperNIC: it says when a packet
// goes to which region, to run which tasks of the chain there. It is a state
// machine of one thread, without a clock and without frames: a packet is a
// number, which its owner keeps a frame for. After New only changes of what is
// configured allocate.
//
// # Parts
//
// The Scheduler is what its owner calls. Its road takes packets from Arrive to Leave, and uses four parts that know
// nothing of it: queues (credits of tasks, and headers that wait for them), Instances (where chains are, and where a
// flow goes), order (packets of a flow, by arrival) and plans (routes that packets keep).
//
// # What it knows
//
// A region holds an instance of a chain: at most 16 tasks in their order, each
// with credits, the number of packets that it may have at a time (Place). A
// route is what became of a DAG: a series of stages, each of them branches that
// run in parallel, each of them a series of visits. A visit is a chain and a
// mask: bit i is task i of the chain, tasks without their bit are skipped. Any
// region that holds the chain will do, so that routes need not change when
// instances come and go.
//
// # The way of a packet
//
// Arrive takes a packet into the packet store, which is of bounded size. Next
// tells what to run now; the body runs it, gives the credit of each task back
// when the packet leaves it (Release) and says when the packet is back at the
// scheduler (Return, which gives back what credits are left). A stage with
// several branches gives one run for each, on copies of the header; the next
// stage starts when all are back (the synchronisation buffer). A packet that is
// dropped in one branch is dropped when all are back. What is done comes out of
// Leave, dropped or not, and only then is its number free and its payload out of
// the packet store.
//
// Credits are reserved for all that is left of a visit, where each of its tasks
// has one and nobody waits for it; otherwise for as many of the first tasks as
// possible. Then the packet takes its place in the queue of the first task that
// is missing, at once, and comes back to the scheduler in the middle of the
// chain. Queues are strictly first come, first served: a free credit waits for
// a head that is still on its way back. So nobody starves, and later packets do
// not run through the chain past one that had to come back. A packet that waits
// at the scheduler has no credit: there is no deadlock.
//
// A task may keep packets, for example until an answer comes through the same tasks. The packets must not keep the credits that the
// answer needs. So a packet that is kept has no credits (Keep), neither for that task nor for the tasks behind it. When the task lets it
// go, it goes on at once, or behind packets of its flow that wait there, even if no credit is free: a later packet of its flow that comes
// out of the task has its credits already, and would overtake it. So a task may have more packets than credits: as many more as an earlier
// task lets go at a time.
//
// With Config.Panic a packet gets one credit at a time and comes back after each
// task, as with PANIC (Lin et al., OSDI 2020), to compare with.
//
// # Order
//
// Packets of a direction of a flow (the same hash and tenant, and Route.Back) leave
// in the order in which they arrived, dropped or not, whatever their routes. With Spread PerFlow they also
// pass each task in that order. A flow goes to one of the instances by
// rendezvous hashing: when instances come or go, only flows move that have to. With Seat flows go by load instead,
// as receive flow steering does it: a table of Buckets of flows, each with its instance and with what its flows bring (Want, before
// anything is refused). A new flow goes to an instance with little work; Balance moves buckets from one that has
// too much. The table is of fixed size, whatever is sent, and a sender that does not know Config.Seed cannot choose a bucket.
// A packet whose instance is not that of the packet before it in its flow waits
// until that one has done the visit; so what moves is a flow that has drained,
// and by induction no packet is in a visit in front of an earlier one. Packets
// that were dropped do not count. With RoundRobin and LeastLoaded packets of a
// flow may pass each other in between; with AnyOrder they may also leave so.
//
// All this holds if regions keep order: of two packets of a flow, the one that
// Next told first leaves each task first (and, with Panic, returns first from it).
//
// # Changes under traffic
//
// Pause lets no more packets into a region. A packet that waits there goes to another
// instance of the chain, in the middle of a visit, too, or is parked until there
// is one: this is what buffers packets during stop-and-launch. Packets inside
// finish. Remove takes the instance away when it has drained. A moved flow's
// state is the owner's matter: it moves between Drained and Place.
//
// A packet keeps its plan. When SetRoute changes a route, packets on which a task has
// run finish as they began, and later packets of their flow wait for them; all others
// follow the new route. On a plan that is in force a packet waits while its chain has no instance. On an old plan it goes
// where its tasks run now, or waits until they do (Config.Instead); if they run nowhere it is dropped (Gone).
//
// # The bulk road
//
// Where a route is one visit, and the body runs packets to completion as it
// takes them, a batch needs no descriptors: Take reserves the whole chain for as
// many packets as possible, and Give returns the credits. Packets on this road are not
// in the packet store. The road is closed (0 packets) while packets of the same route
// are on the full road, so that none of them is overtaken, and while packets wait
// for one of the tasks. The owner runs packets in the order in which it took them, and
// before what Next returns later. The order of a flow that changes its route is not kept
// on this road.
//
// Source: Shan, SuperNIC (UCSD thesis, 2022, chapter 5), sections 5.4.2 and
// 5.4.3. Not in the source, and chosen here: places in queues, hashing and
// draining of flows, plans and the bulk road. The source
// sends packets to instances round robin.
package sched
