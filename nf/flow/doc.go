// Package flow holds the parts of network functions that remember flows: the key of a flow's
// packets (Key), a flow table of fixed size (Table), the key of a datagram's fragments
// (Fragment), the datagram inside an ICMP error, approximate counts (Counts), an order by age
// (Ages), the state that all workers share at the start (Start), and the format of a saved
// state (Image).
//
// A Table consists of sets of 8 places. Each key has two sets, and Add puts the key into the
// set with more free places (Azar et al., Balanced Allocations, SIAM J. Comput. 1999). A table
// for n flows has 7/5 n places, and Add hardly ever fails while the table holds at most n flows.
// Each place has a tag of one byte, which tells most keys apart: Find reads one or two words of
// tags and the flow's own place. Flows do not move to other places. Nothing is allocated after
// New. If both sets of a key are full, Add fails: the caller may look at the 16 places and
// replace one.
//
// A Scout guesses the place of each flow of a batch of frames and prefetches the memory of the
// place. The memory arrives while the processor works on the other frames.
//
// The table does not age flows: its owner checks the age of each flow that it finds, and goes
// over a few places at a time with Sweep.
//
// A hash has a seed, which the owner draws when it starts: a sender that does not know the seed
// cannot choose flows that fall into one set.
package flow
