// Package bed is a rack in memory and in virtual time: clients on a switch, a
// network function on the cable to the memory node, and faults wherever the
// schedule has them.
//
//	c0 ──[c0]──┐
//	c1 ──[c1]──┤ bridge ──[in]── box ──[s0]── s0
//	c2 ──[c2]──┘
//
// Names in brackets are links, and the others machines, of a fault.Schedule. The
// box is any graph.Kind with inputs and outputs a (clients) and b (server), or
// nothing. Equal configurations and schedules give equal runs, to the byte.
//
// The bed does what surrounds a data path in a real rack: it connects queue
// pairs out of band, takes the server's ends of a dead client away, starts
// machines again, and lets frames cross a box that is down, as the kernel does.
//
// There are four sorts of runs.
//
//   - Trial, Tree and Mixed: locks, counters, a tree and a store, whose histories
//     are checked, while machines die.
//   - World (with Twin and Twins): queue pairs with all sorts of rights, settings
//     and neighbours, and an adversary, played on a bare wire and through a box.
//     The law of the bare wire (see law.go) judges both; through the box nothing
//     may happen that it does not allow.
//   - StoreWorld: Clover's store, the same way.
//   - Scene: one scenario that a test drives step by step.
package bed
