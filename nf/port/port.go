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
	// Name is the port's name in the graph, with ":queue" for a queue.
	Name() string
	// Pool is where Rx takes its Bufs from, and where generated frames may be
	// taken from.
	Pool() *packet.Pool
	// Rx appends frames to b until it is full or nothing waits, and returns
	// how many. It never blocks. io.EOF: no frame will come any more.
	Rx(b *packet.Batch) (int, error)
	// Tx takes the first n frames of b (they are removed from b) and returns
	// n; the caller keeps the rest. A taken frame is the port's: it is
	// returned to its pool when it is out. Frames of another pool are copied.
	// A frame that can never be sent (longer than the MTU allows) is taken,
	// dropped and counted in Stats; so is one for an interface that is down.
	Tx(b *packet.Batch) (int, error)
	// Wait blocks until a frame may be waiting that there is memory for (Rx
	// leaves the others in the kernel), room for Tx may have come,
	// d has passed, or ctx is done.
	Wait(ctx context.Context, d clock.Duration) error
	// Stats may be called from any goroutine.
	Stats() Stats
	Close() error
}

// Stats are a port's totals since it was opened.
type Stats struct {
	RxPackets uint64 `json:"rx_packets"`
	RxBytes   uint64 `json:"rx_bytes"`
	TxPackets uint64 `json:"tx_packets"`
	TxBytes   uint64 `json:"tx_bytes"`
	// RxDropped: the carrier had a frame and no room for it.
	RxDropped uint64 `json:"rx_dropped"`
	// TxDropped: a frame was taken that could not be sent.
	TxDropped uint64 `json:"tx_dropped"`
	// Bypassed frames crossed in the kernel (redirected by the XDP program, or
	// passed to the bridge) because nobody wants them. Of those that are Watched they
	// are the ones that no worker took.
	Bypassed uint64 `json:"bypassed"`
	// Missed frames were wanted, and crossed there without being seen by this
	// process: no worker took them, or they were too long.
	Missed uint64 `json:"missed"`
	// ShutOut frames were wanted, and dropped there in place of being missed, for
	// a Filter that is Closed, Bound or Guarded.
	ShutOut uint64 `json:"shut_out"`
	// TooLong frames are those of the Bypassed and of the Missed that the kernel dropped, since they were
	// longer than the other port may send.
	TooLong uint64 `json:"too_long"`
}

// Add adds the totals of another queue.
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

// Bypasser is a Port that can tell that frames crossed without being seen,
// against the wish of the graph: because its worker was too slow, stopped or
// absent. An app's knowledge of the traffic may then be stale.
type Bypasser interface {
	// Missed is a number that grows whenever frames that the graph asked for
	// went past it. It is cheap: called once a breath.
	Missed() uint64
}

// MultiWaiter is a Port that can be waited for together with others: WaitAny is
// Wait for itself and others at once. It reports false, and has not waited,
// when it cannot do so for one of them. An error says whose it is.
type MultiWaiter interface {
	WaitAny(ctx context.Context, others []Port, d clock.Duration) (bool, error)
}

// FilterSetter is a Port whose kernel filter can change while it is open: it
// is told when another Plan wants to see other frames.
type FilterSetter interface {
	SetFilter(Filter) error
}

// Filter says which frames a graph must see. The zero Filter wants nothing.
type Filter struct {
	// All frames; the other fields do not matter then.
	All bool
	// RoCE frames: UDP destination port 4791 over IPv4 or IPv6 (behind up to
	// two VLAN tags), and Ethernet type 0x8915. And all that may be RoCE in part
	// or unseen (hdr.ChangeOf): later fragments of UDP datagrams, IPv6 with
	// extension headers, and, whatever the Hosts, frames with more tags. Those are
	// few, or a flow of large UDP datagrams.
	RoCE bool
	// Hosts narrows RoCE to frames from or to these addresses; empty = any.
	Hosts []netip.Addr
	// UDP: datagrams from or to these ports, over IPv4 or IPv6, as far as they can be seen: later fragments and
	// what stands behind extension headers or more than two VLAN tags are wanted, too. No number twice.
	UDP []uint16
	// Closed: while no worker takes them, the frames that are wanted are
	// dropped instead of crossing untouched. Where nothing crosses without the
	// process (a packet socket, a TAP device, a file) that is so anyway.
	Closed bool
	// Bound: so are those of them that are to queue pairs that are bound (see
	// Binder), and no others, unless the filter is Closed too. A port that is no
	// Binder takes it for Closed.
	Bound bool
	// Guarded: so are those of them that are atomics to words that are guarded (see
	// Guarder), and no others, unless the filter is Closed or Bound too.
	Guarded bool
	// Watched: somebody looks at what is not wanted. It comes, too, as long as a worker takes
	// it, and crosses as ever when none does. It changes nothing where what is not wanted
	// does not cross from port to port, but goes to the kernel's stack.
	Watched bool
}

// QueuePair is an end of a RoCE connection, as frames to it name it: by their
// destination address (of RoCE v1, the GID) and queue pair number. The same in
// two VLANs is one.
type QueuePair struct {
	Addr netip.Addr
	QPN  uint32
}

// MaxBound is how many queue pairs can be bound at one interface.
const MaxBound = 1 << 16

// Binder is a Port whose kernel filter knows single queue pairs, frames to which
// must not cross untouched. The set outlives the process, as the filter does, and
// is one for all queues of an interface, and for both interfaces of a pair. It
// changes by a system call each, of about a microsecond, and holds while the filter
// says Bound; what is bound before the filter says so holds from then on.
type Binder interface {
	// Bind adds a queue pair, or takes it out. Frames that come later find it so.
	Bind(q QueuePair, on bool) error
	// Rebind has just these queue pairs bound. Those that were stay so meanwhile.
	Rebind(q []QueuePair) error
}
