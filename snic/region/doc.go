// Package region decides which chain is in which region of a board, and when:
// launches before and on demand, scaling with the load, and what a region keeps
// when its chain is no longer needed.
//
// A Fabric is a state machine: it has no clock, goroutine or I/O, and belongs to
// one goroutine. Calls bring the time and what happened; what is to be done comes
// as events. Its caller (the body) calls Advance at Next at the latest, Sample
// once an epoch, and takes Events after every call. It allocates nothing but when
// chains and tasks are added, and while the room for events grows.
//
// The Fabric decides. Its floorplan is which chain is in which region, and how that changes; its monitor
// measures what regions, chains and tasks have to do. Neither knows of demands.
//
// # Regions
//
// A region has an area and holds one chain at most:
//
//	Free      nothing that is of use
//	Queued    chosen for a launch, waits for the configuration port
//	Loading   partial reconfiguration (PR) is under way
//	Running   its chain takes packets
//	Stopping  its chain takes no new packets, those inside leave, state is saved
//	Victim    its chain is descheduled and still there: it runs again without PR
//	Failed    out of service
//
// PR takes the bitstream's bytes at the rate of the configuration port, of which
// there is one: one PR at a time, and what has begun is finished. Launches on
// demand go before launches that nobody waits for (before demand, and to scale);
// among equals the first comes first. A launch nobody waits for, whose PR has not
// begun, gives its region to a demand that finds no other.
//
// # Order of choices
//
// Launch answers a demand at once, with the first of these that is possible:
//
//  1. Share: a region runs the chain, or one that has its tasks in that order
//     (others are skipped), and each of these tasks has bandwidth left. A chain
//     that is on its way counts, too: many demands for a chain make one launch.
//  2. Revive: a victim has the chain (or one that has its tasks).
//  3. Load: a free region. The smallest that is large enough; else the victim
//     least recently used; else a region that is stopping and has no other use.
//  4. Remote: another board. The body asks the pool; when no peer takes the chain,
//     it calls Launch again with NoPeer.
//  5. Endpoint, if the chain may run there. NoEndpoint when it will not.
//  6. Switch: the least loaded region stops, and the chain is launched there.
//     Not for a chain that is here already: it is shared with less bandwidth than
//     asked for (Decision.Full).
//
// Otherwise the demand waits (Wait), or is refused with a reason. A launch before
// demand (Demand.Pre) stops after 3. So does one with NoPeer, NoEndpoint and
// NoSwitch, as for a peer's chain: it has the priority of a demand.
//
// A region whose chain runs for less than a monitor period is never switched: each
// region does so at most once a period, however many chains want it. Nor is a
// region stopped before the port can soon take the next bitstream: the chain in it
// would stand still for nothing. Demands wait for that in order of arrival, each
// chain once, at most Config.Waiting. One that needs a larger region than the one
// at hand does not hold up those behind it.
//
// # Victims
//
// Whatever is descheduled (scaled in, idle, released) stays as a victim until
// its region is needed. Config.Victims limits the share of regions that may hold
// victims, the least recently used goes first; Config.Keep is the share of
// descheduled chains that are kept at all. Least recently used is that whose last
// packet, or launch, is longest ago.
//
// # Scaling
//
// Tasks are watched, not chains: a task may be in several chains. The body tells
// by Load which bytes each task should handle: before credits are assigned and
// before tenants are throttled. (What is measured behind a throttle is never more
// than the capacity, and a task that is kept busy is not seen to be overloaded.)
// Sample closes a measurement: from the last one to now.
//
// A task is overloaded from a sample that shows more than its instances can handle
// until nothing is left of what was too much in it and since. It carries over at
// most Config.Backlog of work, or Config.Clump: no more waits on a board. So it is judged of all instances
// together, and of each by itself: packets go through the chains that their DAG goes
// through, those of a flow through one instance, and room in another is none for them. When this lasts a whole
// monitor period, the task is scaled out: then the mean of the load over this
// period was above capacity, too. A victim with the task is used first, then a free
// region, then any victim's; never a region that runs something. Of the bitstreams
// that have the task the one is launched that has most overloaded tasks, then most
// load (as NT2→NT4, not NT1→NT2, in figure 5.7). Chains that the body knows to be no
// help are left out (Config.Helps). While no region is free, Overload tells so once a
// period.
//
// A region is scaled in when each of its tasks has other instances, whose capacity
// (times Config.Under) is above the task's load for a whole period, and so it is for the
// instances of its chain, if there are others. Where the body knows that the packets of a
// chain would find no room (Config.Spares), it is kept, and asked about again a period
// later. The mean load of a task being between both bounds in every period, nothing
// changes. A task's monitors start again after each change of its instances, when it is
// complete: so a task is scaled at most once a period.
//
// The last instance of a task stays, unless Config.Idle says after which time
// without packets it is descheduled.
//
// # What the body does
//
//   - Stop: give the region no more packets (buffer them, or send them to other
//     instances), wait until those inside have left, save the state of its tasks if
//     Event.Save, then call Stopped with the event's Seq. If Config.Patience passes
//     before, Kill says that the region is taken away; what is in it is lost.
//     A Stopped that comes later, or twice, has no effect.
//   - Load: nothing; for those who look. Until is when the PR ends.
//   - Running: restore the chain's saved state unless it is still in the region
//     (it was a victim); serve what was buffered for it, first come first served,
//     before new packets; then open the region.
//   - Evict: the region has no longer the chain. Packets for a chain that is in no
//     region are a new demand.
//   - Revoke: a launch that was promised is off. One on demand (Event.Cause) waits again.
//   - Share: a chain that waited is served by the region named, once it runs.
//   - Refuse: a chain that waited cannot be launched any more: what is
//     buffered for it is dropped.
//   - Freed: a region is free, or has a victim, and nobody here waits for it:
//     chains that run at a peer may come back (Launch with Pre).
//   - Gone: nothing of a removed chain is left; its number may be used again.
//
// A chain's packets are buffered from the demand until Running or Share, in bounded
// space.
//
// # What is counted
//
// Times are those of regions, by state. The source charges only regions that are
// accessed: Accessed is the time of samples in which a running region had bytes
// to handle, those included that wait in it while senders are held back; Work is
// for how much of it its busiest task was at work. What a chain costs, by the source's rule, is Accessed, plus Loading and Stopping: without a
// victim cache the same load costs more, because of its launches. A statically
// allocated region costs all the time. Idle regions, victims included, cost nothing.
// Weights by area are the reader's to put in.
//
// Source: Shan, SuperNIC (UCSD thesis, 2022, chapter 5), sections 5.4.3, 5.4.4 and
// 5.7.2.
package region
