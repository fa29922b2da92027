// Package replay runs a graph over captures, on the captures' clock, and
// compares captures.
//
//	capture ──► port a ─┐          ┌─► port a ─┐
//	                    ├─► apps ──┤           ├──► capture
//	capture ──► port b ─┘          └─► port b ─┘
//
// A run is deterministic: one worker, one frame a breath at the frame's own
// time, and between frames every timer at its deadline. The same input gives
// the same output, byte for byte. Memory is constant, whatever the captures'
// length.
//
// The output has the frames in the order in which the graph sent them: a
// frame that goes straight through keeps its place and its timestamp; what an
// app makes follows the frame that caused it; what an app held or made is
// stamped with the time at which it went out.
//
// A capture of one interface is replayed as it stands, whatever directions it
// holds: its frames enter port a, and what comes out of any port is written.
// Two directions come as the interfaces of one pcapng file (interface 0 enters
// port a, interface 1 port b) or as two files, merged by time, a first when
// the times are equal.
package replay
