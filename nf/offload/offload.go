// Package offload is what network functions and the graph agree on about flows that are decided: frames that need no function any more, since all functions on
// their way would do with them what was done with the last one. A program in the kernel (package xdp, below) runs these frames.
//
//	frame of a flow ──► functions, each adds its Part ──► port: what became of the frame, and all Parts
//	frame of the other direction, in the same way     ──► an entry for both
//
// What the program does is what the functions have done: a Change is the difference between a frame as it came in and as it left, and applying it to that frame
// must yield just what left. What functions say (Part) is what a frame does not show: for how long the flow may be silent, which frames they would not do the same with,
// and who has to know what the kernel has done.
//
// An entry begins when both directions have passed all functions within a second. So nobody gets one by sending alone, and a Table is bounded.
// Frames that are not plain come up as ever (Parse): TCP with SYN, FIN or RST, fragments, options, extension headers, ICMP.
//
// A Table is a graph's: one worker's, or that of several. Its entries lie in memory that the program reads and counts in.
package offload

import (
	"time"

	"github.com/quillon/quillon/nf/clock"
)

// Owner is a function that has parts in entries. What it keeps of a flow is named by a number of its own.
type Owner interface {
	// Decides reports whether frames of what ref names are decided now: other frames of the same breath may have ended it since the function said so.
	Decides(ref uint32) bool
	// Flows is where the function keeps which entries have to do with what ref names.
	Flows(ref uint32) *Flows
	// Used tells what the kernel has done for what ref names: from time to time, and when an entry has ended.
	Used(ref uint32, u *Usage)
}

// Windower is an Owner that compares the numbers of TCP segments, and has the program do so (Part.Windows).
type Windower interface {
	Owner
	// Sides gives the numbers of both ends, with which the program begins. A frame of direction 0 came in at the function's input in.
	Sides(ref uint32, in int, sides *[2]Side)
}

// Stater is an Owner whose names become those of something else.
type Stater interface {
	Owner
	// State is what Part.State would be now. It is another one when ref has become the number of something else.
	State(ref uint32) uint64
}

// Sharer is an Owner that several workers take turns at. Where a graph has several, others have no entries.
type Sharer interface {
	Stater
	// Take waits for the turn at all that the owner keeps, and Give ends it. Whoever calls the owner's other methods, or a Table's for what the owner keeps, has it.
	Take()
	Give()
}

// Side is what one end of a TCP connection has sent, as package firewall has it. Numbers wrap.
type Side struct {
	End, Max, Win, Ack uint32
	Scale              uint8
	_                  [3]uint8
}

// Part is what one function decides about the frames of one direction of a flow.
type Part struct {
	Owner Owner // nil: none needs to know
	Ref   uint32
	// In is the function's input.
	In int
	// Alone: what Ref names has one entry at most.
	Alone bool
	// State is what the decision depends on, beside the frame's key: both directions must have been decided with the same.
	State uint64
	// Follow: the program notes numbers of TCP segments; the Owner is a Windower. One function on the way may say so. Windows: it compares them, too.
	Follow, Windows bool
	// Quiet ends the entry when neither direction, and OwnQuiet when this direction has had no frame for so long; 0: it does not.
	Quiet, OwnQuiet time.Duration
	// Longest is the length of the longest frame that the function would treat alike, as long as the frame is now; 0: it does not matter.
	Longest int
	// Tunnel is one that frames go into, or come out of; nil: none.
	Tunnel *Tunnel
	// Meter is what the frames go by. One function on the way may have one; where the graph has several workers, none.
	Meter Metered
}

// Tunnel is one to a peer: VXLAN over IPv4, untagged outside.
type Tunnel struct {
	VNI           uint32
	Local, Remote [4]byte
	LocalMAC      [6]byte
	Port          uint16 // UDP, destination
	Header        [TunnelLen]byte
	// The outer TOS is the inner one's bits in Mask, and Base.
	Mask, Base uint8
}

// TunnelLen is the length of the headers of a Tunnel: Ethernet, IPv4, UDP and VXLAN.
const TunnelLen = 14 + 20 + 8 + 8

// Flows are the entries that have to do with something that a function keeps. The zero value has none. It does not move while it has some.
type Flows struct{ head place }

// Any reports whether there are some.
func (f *Flows) Any() bool { return f.head != 0 }

// Usage is what the kernel has done for an entry. The inputs are the function's own.
type Usage struct {
	// Last is when the last frame was run, by the input that it came in at, or when the function has seen one before that.
	Last [2]clock.Time
	// Sides are those of a Windower, by input; nil: of others, and while the kernel goes on.
	Sides *[2]Side
}

// Newest is when the last frame of either direction was run.
func (u *Usage) Newest() clock.Time { return max(u.Last[0], u.Last[1]) }

// Counts are frames and their bytes, as they came in.
type Counts struct{ Packets, Bytes uint64 }
