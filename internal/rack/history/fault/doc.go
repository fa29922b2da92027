// Package fault describes the faults of a run, and makes them happen.
//
// A Schedule is a list of faults: which frame of which link is lost, doubled,
// late or damaged, and which machine dies when. It is made from a seed (Random),
// printed as text, and shrunk to the faults that matter (Shrink).
// A Wire between two ports carries out the faults of frames; the program that runs the machines carries
// out the faults of machines.
//
//	drop c0 up 12
//	delay s0 down 7 by 40µs
//	corrupt s0 up 3 byte 60
//	kill c1 at 120µs
//	restart c1 at 2ms
//
// Frames of a link are numbered from 1 in each direction; "up" is towards the
// servers. Times count from the start of the run. Equal schedules give equal runs.
package fault
