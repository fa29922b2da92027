// Package offload is the agreement between network functions and the graph about decided flows. A flow is
// decided when all functions on its way would treat its next frames as they treated the last one. A program
// in the kernel (package xdp) runs the frames of such a flow.
//
//	frame of a flow ──► functions, each adds its Part ──► port: frame as it came in, as it leaves, all Parts
//	frame of the other direction, in the same way     ──► one entry for both directions
//
// The program repeats what the functions did. A Change is the difference between a frame as it came in and
// as it left; an entry begins only if the Change, applied to the frame that came in, yields exactly the
// frame that left. A Part says what the two frames do not show: how long the flow may be silent, which
// frames the function would treat differently, and which function must learn what the kernel has done.
//
// An entry begins when both directions have passed all functions within a second, so that nobody gets one
// by sending alone. The number of entries in a Table is bounded. Frames that are not plain (Parse) always
// go to the functions: TCP with SYN, FIN or RST, fragments, IP options, extension headers, ICMP.
//
// A Table belongs to one graph, and its workers share it. Its entries lie in memory that the program reads,
// and in which it counts.
package offload

import (
	"time"

	"github.com/quillon/quillon/nf/clock"
)

// Owner is a function that has parts in entries. It names the state that it keeps of a flow by a number, the ref.
type Owner interface {
	// Decides reports whether the flow that ref names is still decided. Other frames of the same breath may have changed
	// that since the function called Decide.
	Decides(ref uint32) bool
	// Flows returns the function's list of the entries that concern ref.
	Flows(ref uint32) *Flows
	// Used tells the function what the kernel has done for ref. It is called from time to time, and when an entry ends.
	Used(ref uint32, u *Usage)
}

// Windower is an Owner that follows the numbers of TCP segments, and has the program do so (Part.Follow, Part.Windows).
type Windower interface {
	Owner
	// Sides sets sides to the numbers of both ends, by direction; the program continues from them. Frames of direction 0
	// come in at the function's input in.
	Sides(ref uint32, in int, sides *[2]Side)
}

// Stater is an Owner that uses a ref again for another flow.
type Stater interface {
	Owner
	// State returns what Part.State would be for ref at this moment. It differs when ref names another flow than before.
	State(ref uint32) uint64
}

// Sharer is an Owner that several workers take turns at. In a graph of several workers only Sharers have entries.
type Sharer interface {
	Stater
	// Take waits for the turn at the owner's state, and Give ends the turn. A caller of the owner's other
	// methods, or of a Table's methods that take the owner's Flows, must have the turn.
	Take()
	Give()
}

// Side is what one end of a TCP connection has sent. Its fields are those of type side in package firewall;
// numbers wrap.
type Side struct {
	End, Max, Win, Ack uint32
	Scale              uint8
	_                  [3]uint8
}

// Part is what one function decides about the frames of one direction of a flow.
type Part struct {
	Owner Owner // nil: none needs to know
	Ref   uint32
	// In is the function's input that the frame came in at.
	In int
	// Alone says that Ref may have one entry at most; a new entry ends the one before.
	Alone bool
	// State identifies what the decision depends on, beside the frame's key. An entry needs the same State
	// in both directions.
	State uint64
	// Follow has the program note the numbers of TCP segments, and Windows has it compare them, too. The
	// Owner must then be a Windower. At most one function on the way may set Follow.
	Follow, Windows bool
	// Quiet ends the entry when neither direction has had a frame for so long, and OwnQuiet when this direction has had
	// none; 0 means without limit.
	Quiet, OwnQuiet time.Duration
	// Longest is the length of the longest frame that the function would treat alike, measured where the
	// function sees the frame; 0 means any length.
	Longest int
	// Tunnel is the tunnel that frames go into, or come out of; nil if there is none.
	Tunnel *Tunnel
	// Meter is the meter that frames are measured by. At most one function on the way may have one, and no function in a
	// graph of several workers.
	Meter Metered
}

// Tunnel is a VXLAN tunnel over IPv4 to one peer; its outer frames are untagged.
type Tunnel struct {
	VNI           uint32
	Local, Remote [4]byte
	LocalMAC      [6]byte
	Port          uint16 // UDP, destination
	Header        [TunnelLen]byte
	// The outer TOS is inner TOS & Mask | Base.
	Mask, Base uint8
}

// TunnelLen is the length in bytes of a Tunnel's outer headers: Ethernet, IPv4, UDP and VXLAN.
const TunnelLen = 14 + 20 + 8 + 8

// Flows is the list of the entries that concern one ref of an Owner. The zero value is empty. While the
// list has entries, its address must not change.
type Flows struct{ head place }

// Any reports whether the list has an entry.
func (f *Flows) Any() bool { return f.head != 0 }

// Usage is what the kernel has done for an entry. Its arrays are indexed by the function's inputs.
type Usage struct {
	// Last is the time of the last frame that came in at each input; if the kernel has run none, the time
	// of the decision.
	Last [2]clock.Time
	// Sides are the numbers of TCP, by input, for the Windower that set Part.Follow. They are nil for other owners, and
	// while the kernel continues to run the entry.
	Sides *[2]Side
}

// Newest returns the time of the last frame of either direction.
func (u *Usage) Newest() clock.Time { return max(u.Last[0], u.Last[1]) }

// Counts are a number of frames and the sum of their bytes.
type Counts struct{ Packets, Bytes uint64 }
