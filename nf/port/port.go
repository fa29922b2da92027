// Package port is the door between the graph and whatever carries frames: an
// AF_XDP queue, a packet socket, a capture file, an in-memory wire.
package port

import (
	"context"
	"errors"
	"net/netip"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/packet"
)

// ErrClosed is returned by a Port that was closed, or whose link is gone.
var ErrClosed = errors.New("port closed")

// ErrNotSupported is wrapped by errors that mean that this kernel, device or
// build cannot do what was asked. The same error skips a test.
var ErrNotSupported = errors.New("not supported here")

// Port carries frames in and out of one queue. One worker uses it at a time.
type Port interface {
	// Name returns the port's name in the graph; of a port that is one queue, with ":queue" at its end.
	Name() string
	// Pool returns the pool from which Rx takes its Bufs. A caller may take
	// Bufs for generated frames from it.
	Pool() *packet.Pool
	// Rx appends frames to b until b is full or no frame waits, and returns the
	// number of them. It never blocks. io.EOF means that no frame will come any more.
	Rx(b *packet.Batch) (int, error)
	// Tx takes the first n frames of b (they are removed from b) and returns
	// n; the caller keeps the other frames. The port owns a frame that it took, and returns
	// it to the frame's pool when it is sent. Frames of another pool are copied.
	// A frame that can never be sent (longer than the MTU allows), or that is for an
	// interface that is down, is taken, dropped and counted in Stats.
	Tx(b *packet.Batch) (int, error)
	// Wait blocks until Rx may have a frame to deliver (a frame for which the port has no
	// memory stays in the kernel and does not count), Tx may have room again, d has passed,
	// or ctx is done.
	Wait(ctx context.Context, d clock.Duration) error
	// Stats returns the port's totals. Any goroutine may call it.
	Stats() Stats
	Close() error
}

// Stats are a port's totals since it was opened.
type Stats struct {
	RxPackets uint64 `json:"rx_packets"`
	RxBytes   uint64 `json:"rx_bytes"`
	TxPackets uint64 `json:"tx_packets"`
	TxBytes   uint64 `json:"tx_bytes"`
	// RxDropped counts frames that arrived and for which the carrier had no room.
	RxDropped uint64 `json:"rx_dropped"`
	// TxDropped counts frames that Tx took and that could not be sent.
	TxDropped uint64 `json:"tx_dropped"`
	// Bypassed counts frames that crossed in the kernel (redirected by the XDP program, or
	// passed to the bridge) because no app wants them. While the Filter is Watched, only
	// those that no worker took are counted.
	Bypassed uint64 `json:"bypassed"`
	// Missed counts frames that an app wanted and that crossed in the kernel without being
	// seen by this process, because no worker took them or they were too long.
	Missed uint64 `json:"missed"`
	// ShutOut counts frames that an app wanted and that the kernel's program dropped instead
	// of letting them cross, because the Filter is Closed, Bound or Guarded.
	ShutOut uint64 `json:"shut_out"`
	// TooLong counts the frames among Bypassed and Missed that the kernel dropped because they
	// were longer than the other port may send.
	TooLong uint64 `json:"too_long"`
}

// Add adds the totals o of another queue to s.
func (s *Stats) Add(o Stats) {
	s.RxPackets += o.RxPackets
	s.RxBytes += o.RxBytes
	s.TxPackets += o.TxPackets
	s.TxBytes += o.TxBytes
	s.RxDropped += o.RxDropped
	s.TxDropped += o.TxDropped
	s.Bypassed += o.Bypassed
	s.Missed += o.Missed
	s.ShutOut += o.ShutOut
	s.TooLong += o.TooLong
}

// Bypasser is a Port that can tell that frames which the graph wanted crossed without being
// seen, because its worker was too slow, stopped or absent. What an app knows of the traffic
// may be stale after that.
type Bypasser interface {
	// Missed returns a number that grows whenever frames that the graph wants cross without
	// being seen by it. The call is cheap, because a worker makes it once a breath.
	Missed() uint64
}

// MultiWaiter is a Port that can be waited for together with other ports. WaitAny does what
// Wait does, for this port and the others at once. It reports false, without having waited,
// if it cannot wait for one of the others. Its error names the port that failed.
type MultiWaiter interface {
	WaitAny(ctx context.Context, others []Port, d clock.Duration) (bool, error)
}

// FilterSetter is a Port whose kernel filter can change while it is open. SetFilter is
// called when a new Plan wants to see other frames.
type FilterSetter interface {
	SetFilter(Filter) error
}

// ErrOutgrown (wrapped) says that an interface has got more queues since its port was opened.
var ErrOutgrown = errors.New("stop this instance, and run it again")

// Keeper is a Port that changes settings of its interface, and of the other end of a veth, for as long as it is open.
type Keeper interface {
	// Keep changes again what somebody else has set otherwise meanwhile, and returns that, one setting an element. The
	// port's end sets it as that somebody did. The error wraps ErrOutgrown if the interface has queues that are not served.
	Keep() (changed []string, err error)
}

// Filter says which frames a graph must see. The zero Filter wants nothing.
type Filter struct {
	// All wants all frames. The fields RoCE, Hosts and UDP do not matter if it is set.
	All bool
	// RoCE wants RoCE frames: UDP destination port 4791 over IPv4 or IPv6 (behind up to
	// two VLAN tags), and Ethernet type 0x8915. It also wants all frames that may be part of a
	// RoCE frame, or hide one (hdr.ChangeOf): later fragments of UDP datagrams, IPv6 with
	// extension headers, and, whatever Hosts says, frames with more than two tags. Such frames
	// are few, except where a flow has large UDP datagrams.
	RoCE bool
	// Hosts narrows RoCE to frames from or to these addresses; if it is empty, RoCE is not narrowed.
	Hosts []netip.Addr
	// UDP wants datagrams from or to these ports, over IPv4 or IPv6. It also wants frames whose ports cannot be
	// seen: later fragments, and frames with extension headers or more than two VLAN tags. No port is in it twice.
	UDP []uint16
	// Closed has wanted frames dropped while no worker takes them; without it they cross
	// untouched. A port where no frame crosses without the process (a packet socket, a TAP
	// device, a file) behaves as if Closed were set.
	Closed bool
	// Bound has wanted frames to bound queue pairs (see Binder) dropped while no worker
	// takes them, and lets other frames cross unless Closed or Guarded drops them. A port that
	// is no Binder treats Bound as Closed.
	Bound bool
	// Guarded has wanted atomics to guarded words (see Guarder) dropped while no worker takes
	// them, and lets other frames cross unless Closed or Bound drops them.
	Guarded bool
	// Waits has wanted frames wait for a worker that may only lack a processor, as long as with
	// Closed. If the worker is gone, or does nothing for longer, they cross.
	Waits bool
	// Watched has frames that no app wants come to the worker, too, because somebody looks at
	// them. They cross in the kernel while no worker takes them. Watched changes nothing for a
	// port whose unwanted frames go to the kernel's stack and not to another port.
	Watched bool
}

// QueuePair names one end of a RoCE connection as frames to it do: by their destination
// address (in RoCE v1, the GID) and queue pair number. VLANs do not distinguish queue pairs:
// the same address and number in two VLANs are one QueuePair.
type QueuePair struct {
	Addr netip.Addr
	QPN  uint32
}

// MaxBound is the largest number of queue pairs that can be bound at one interface.
const MaxBound = 1 << 16

// Binder is a Port whose kernel filter has a set of queue pairs, frames to which must not
// cross untouched. The set outlives the process, as the filter does. All queues of an
// interface, and both interfaces of a pair, share one set. Each change of the set is one
// system call of about a microsecond. The set has an effect only while the filter is Bound;
// queue pairs may be bound before that.
type Binder interface {
	// Bind adds q to the set, or takes it out if on is false. Frames that come after its return see the change.
	Bind(q QueuePair, on bool) error
	// Rebind takes those of was out of the set that are not among is, and adds all of is. Queue pairs of is that were
	// bound before stay bound all the time.
	Rebind(was, is []QueuePair) error
}
