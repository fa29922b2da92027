// Package region decides which chain is in which region of a board, and when:
// launches before and on demand, scaling with the load, and what a region keeps
// when its chain is no longer needed.
//
// A Fabric is a state machine: it has no clock, goroutine or I/O, and belongs to one goroutine.
// Its caller, the body, tells it the time and what happened. The Fabric answers with events, which
// say what the body must do. The body calls Advance at Next at the latest, Sample once an epoch,
// and takes Events after every call. The Fabric allocates memory only when chains and tasks are
// added, and while its buffer of events grows.
//
// The Fabric decides. Its floorplan holds which chain is in which region, and makes the changes; its monitor
// measures the load of regions, chains and tasks. Neither of them knows of demands.
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
// A PR takes as long as the bitstream's bytes need at the rate of the configuration port. There is
// one port: it does one PR at a time, and finishes a PR that it has begun. Launches on demand go
// before launches that nobody waits for (before demand, and to scale); among equals the first
// comes first. A launch that nobody waits for gives its region to a demand that finds no other
// region, if its PR has not begun.
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
// A region whose chain has run for less than a monitor period is never switched. So a region is
// switched at most once a period, however many chains want it. Nor is a region stopped before the
// port can soon take the next bitstream, because its chain would stand still for nothing. Until
// both allow a switch, chains wait in order of arrival, each chain once, at most Config.Waiting of
// them. A chain that needs a larger region than the one at hand does not delay chains behind it.
//
// # Victims
//
// A chain that is descheduled (scaled in, idle, released) stays in its region as a victim until the
// region is needed. Config.Victims limits the share of regions that may hold victims; the least
// recently used victim is evicted first: the one whose last packet, or launch, is longest ago.
// Config.Keep is the share of descheduled chains that are kept as victims.
//
// # Scaling
//
// The Fabric watches tasks, not chains, because a task may be in several chains. The body reports
// by Load how many bytes each task should handle, before credits are assigned and before tenants
// are throttled. (Behind a throttle the load never exceeds the capacity, so that an overload would
// not be seen.) Sample ends a measurement, which began at the Sample before.
//
// A task is overloaded from a sample in which it has more work than its instances can do, until
// that excess, and any later excess, is worked off. The excess counts up to the time Config.Backlog,
// or Config.Clump if that is longer, because no more work waits on a board. The Fabric judges all
// instances of a task together, and each instance by itself: packets go through the chains that
// their DAG uses, those of a flow through one instance, and room in another instance does not help
// them. When an overload lasts a whole monitor period, the task is scaled out; then the mean load
// over this period was above the capacity, too. The new instance goes to a victim with the task, if
// there is one, else to a free region, else to the region of any victim; never to a region that runs
// a chain. Of the bitstreams that have the task, the Fabric launches the one with most overloaded
// tasks, and among these the one with most load (in figure 5.7 NT2→NT4, not NT1→NT2). It leaves out
// chains that the body knows to be no help (Config.Helps). While no region is free, an Overload
// event reports the task once a period.
//
// A region is scaled in if each of its tasks has other instances whose capacity (times Config.Under)
// is above the task's load for a whole period, and if the same holds for the chain's other instances,
// where the chain has any. If the body knows that the chain's packets would find no room
// (Config.Spares), the region is kept, and the body is asked again a period later. If the mean load
// of a task is between both bounds in every period, nothing changes. The measurements of a task start
// again when a change of its instances is complete, so that a task is scaled at most once a period.
//
// The last instance of a task stays, unless Config.Idle is set: then it is descheduled after that
// time without packets.
//
// # What the body does
//
//   - Stop: give the region no more packets (buffer them, or send them to other
//     instances), wait until those inside have left, save the state of its tasks if
//     Event.Save, then call Stopped with the event's Seq. If Config.Patience passes
//     before, Kill says that the region is taken away; what is in it is lost.
//     A Stopped that comes later, or twice, has no effect.
//   - Load: do nothing; the event is for information. Until is the time when the PR ends.
//   - Running: restore the chain's saved state unless it is still in the region
//     (it was a victim); serve what was buffered for it, first come first served,
//     before new packets; then open the region.
//   - Evict: the chain has left the region. Packets for a chain that is in no
//     region are a new demand.
//   - Revoke: a promised launch is cancelled. A chain launched on demand (Event.Cause) waits again.
//   - Share: the region serves a chain that waited, once the region runs.
//   - Refuse: a chain that waited can never be launched: drop the packets
//     that are buffered for it.
//   - Freed: a region is free, or has a victim, and no chain here waits for it:
//     chains that run at a peer may come back (Launch with Pre).
//   - Gone: a removed chain has left all regions; its number may be used again.
//
// A chain's packets are buffered from the demand until Running or Share, in bounded
// space.
//
// # What is counted
//
// Times counts how long a region was in each state. The source charges only regions that are
// accessed. Accessed is the time of samples in which a running region had bytes to handle, also
// bytes that wait in it while senders are held back; Work is the part of it in which the region's
// busiest task was at work. By the source's rule a chain costs Accessed, plus Loading and Stopping:
// without victims the same load costs more, because of its launches. A statically allocated region
// costs all the time. Idle regions, victims included, cost nothing. Times are not weighted by area.
//
// Source: Shan, SuperNIC (UCSD thesis, 2022, chapter 5), sections 5.4.3, 5.4.4 and
// 5.7.2.
package region
