// Package replay runs a graph over captures, on the captures' clock, and compares captures.
//
//	capture ──► port a ─┐          ┌─► port a ─┐
//	                    ├─► apps ──┤           ├──► capture
//	capture ──► port b ─┘          └─► port b ─┘
//
// A run is deterministic: there is one worker, each breath has one frame, at the frame's own time, and
// between frames each timer runs at its deadline. The same input gives the same output, byte for byte. The
// memory does not depend on the captures' length.
//
// The output has the frames in the order in which the graph sent them. A frame that goes straight through
// keeps its place and its timestamp. A frame that an app makes follows the frame that caused it. Frames that
// an app held or made have the time at which they went out.
//
// A capture of one interface is replayed as it stands, whatever directions it holds: all of its frames enter
// port a, and the frames from all ports are written. Two directions come as the interfaces of one pcapng file
// (interface 0 enters port a, interface 1 port b), or as two files, which are merged by time; of equal times
// that of a comes first.
package replay
