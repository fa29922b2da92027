package open

import (
	"fmt"
	"time"

	"github.com/quillon/quillon/nf/arg"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/port/afxdp"
)

// Kinds of ports, as a Spec names them.
const (
	AFXDP    = "afxdp"
	AFPacket = "afpacket"
	TAP      = "tap"
)

// xdpArgs are the arguments of an AF_XDP port.
type xdpArgs struct {
	dev      string         `arg:"dev" need:"name the interface" help:"the interface"`
	_        struct{}       `arg:"pair" own:"true" help:"the port that is the other end of the wire: what the graph does not want crosses to it in the kernel, and everything does when this process is gone"`
	mode     afxdp.Mode     `arg:"xdp" words:"auto native generic" help:"auto, native or generic"`
	copying  afxdp.Copying  `arg:"copy" words:"auto always never" help:"auto: where the driver has no zero-copy; always: also where it has, for drivers whose zero-copy is broken; never: zero-copy or nothing"`
	queues   int            `arg:"queues" range:"0.." keep:"all" help:"queues to open"`
	_        struct{}       `arg:"cpu" own:"true" default:"any" help:"processors that the workers are pinned to, as 2,3 or 4-7: that of queue 0 to the first, and so on; the same for all ports"`
	ring     int            `arg:"ring" range:"0.." help:"entries of a ring: frames that may come while a worker is busy"`
	frames   int            `arg:"frames" range:"0.." default:"four rings" help:"frames of memory a queue"`
	busyPoll int            `arg:"busy-poll" range:"0.." help:"µs that a system call polls the device itself"`
	fallback afxdp.Fallback `arg:"fallback" words:"redirect pass" help:"of a pair, frames that no process takes: redirect to the other interface, or pass to the kernel (a bridge that has both)"`
	stale    time.Duration  `arg:"stale" range:"1ns.." default:"60ms" help:"of a pair: how long a worker may be silent before frames cross in the kernel; 1s by default for a function that is closed, where they are dropped instead, and for a fence"`
	keep     bool           `arg:"keep" words:"false true" default:"false, true in a splice of quillon bridge" help:"of a pair: leave the wire in the kernel at a clean stop"`
	leave    bool           `arg:"offloads" words:"set leave" help:"set what AF_XDP needs and restore it at the end, or leave"`
}

// packetArgs are those of a packet socket.
type packetArgs struct {
	dev    string `arg:"dev" need:"name the interface" help:"the interface"`
	frames int    `arg:"frames" range:"0.." default:"1024" help:"frames of memory"`
	leave  bool   `arg:"offloads" words:"set leave" help:"set what is needed and restore it at the end, or leave"`
}

// tapArgs are those of a TAP interface.
type tapArgs struct {
	dev    string `arg:"dev" need:"name the interface" help:"its name; made, and gone with the port, unless it is there already as a persistent one"`
	mtu    int    `arg:"mtu" range:"0.." default:"1500, or as it is" help:"to set; by default one that is there keeps its own"`
	frames int    `arg:"frames" range:"0.." default:"512" help:"frames of memory"`
}

var (
	xdpArguments    = arg.Declare("", xdpArgs{ring: afxdp.DefaultRing})
	packetArguments = arg.Declare("", packetArgs{})
	tapArguments    = arg.Declare("", tapArgs{})
)

// Kinds are the kinds of ports that a Spec may name, with their arguments: for its Validate.
func Kinds() []graph.PortKind {
	return []graph.PortKind{
		{Name: AFXDP, Summary: "an interface over AF_XDP, all queues", Params: xdpArguments.Params()},
		{Name: AFPacket, Summary: "an interface over a packet socket, where AF_XDP is missing; frames cross only while this process lives", Params: packetArguments.Params()},
		{Name: TAP, Summary: "a TAP interface of this host", Params: tapArguments.Params()},
	}
}

// readPort reads the arguments of port name.
func readPort[T any](name string, set *arg.Set[T], args graph.Args) (T, error) {
	v, r := set.Read(args)
	if err := r.Err(); err != nil {
		return v, fmt.Errorf("port %s: %w", name, err)
	}
	return v, nil
}

// options are those of AF_XDP.
func (x *xdpArgs) options(filter port.Filter, clk clock.Clock) afxdp.Options {
	return afxdp.Options{
		Filter: &filter, Clock: clk, Mode: x.mode, Copy: x.copying, Queues: x.queues, Ring: x.ring, Frames: x.frames, BusyPoll: x.busyPoll,
		Stale: x.stale, LeaveOffloads: x.leave,
	}
}
