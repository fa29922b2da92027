// Package flow is what network functions that remember flows are built of: keys
// of a flow's packets, a table of fixed size, fragments of datagrams, datagrams in
// ICMP errors, counts of sources, an order by age, what all workers begin with, and
// the form in which a state is saved.
//
// A table (Table) has sets of 8 places. A key has two sets, and goes into the one
// that has more room (Azar et al., Balanced Allocations, SIAM J. Comput. 1999): a
// table for n flows has 7/5 n places, and with n flows in it hardly ever turns one
// away. A byte a place tells most keys apart, so that a flow is found with one or
// two words read beside its own place. Places do not move. Nothing is allocated
// after New. When both sets of a key are full the table does nothing by itself: its
// owner looks at the 16 places and replaces one, or goes without.
//
// Of a batch of frames, a Scout guesses first where the flow of each is, and has that memory fetched: what the processor
// waits for comes while it looks at the others.
//
// Ageing is the owner's, too: what is found is looked at before it is believed, and
// a sweep (Sweep) passes over a few places at a time.
//
// Hashes have a seed, which their owner draws at its start: a sender that does not
// know the seed cannot choose flows that fall into one set.
package flow
