// Package fault says what goes wrong in a run, and makes it happen.
//
// A Schedule is a list of faults: which frame of which link is lost, doubled,
// late or damaged, and which machine dies when. It is made from a seed (Random),
// printed as text, and shrunk to the faults that matter (Shrink).
// A Wire carries out the frames' part of it between two ports; the machines' part
// belongs to whoever runs the machines.
//
//	drop c0 up 12
//	delay s0 down 7 by 40µs
//	corrupt s0 up 3 byte 60
//	kill c1 at 120µs
//	restart c1 at 2ms
//
// Frames of a link are numbered from 1 in each direction, up being towards the
// servers; times count from the start of the run. Equal schedules give equal runs.
package fault
