package graph

import (
	"slices"
	"sync/atomic"

	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/trace"
)

// Kinds of the framework's own trace records. Apps number their kinds from 0.
// TraceDrop, TracePunt and TraceTx end the trace of a packet: Args are the app that gave
// the reason (its index + 1; 0: no app), the reason, and the verdict.
const (
	TraceDrop uint16 = 0xFFFF - iota
	TracePunt
	TraceTx
	TraceRx  // Args[0]: the frame's length
	TraceIn  // Args[0]: the input
	TraceOut // Args[0]: the output
	// TraceHand ends the trace of a packet in this worker: Args[1] is the worker that the packet was handed to.
	TraceHand
)

// traceSize is the most records that a worker keeps, stageSize the most that
// packets under way may have.
const traceSize, stageSize = 8192, 2048

// MaxTrace is the largest number of traced frames that a worker keeps. Newer frames replace the oldest.
const MaxTrace = traceSize

// reasonKey names a reason of one app, as packet.Meta does: app is the app's index + 1.
type reasonKey struct{ app, reason uint16 }

// traceJob is a request to trace frames of one port. All workers share it.
type traceJob struct {
	left atomic.Int64
	want []reasonKey // nil: every packet
}

// tracer keeps the trace records of one worker. Records of packets under way are staged. They go to
// the ring when the packet ends with a reason that the traceJob wants.
type tracer struct {
	ring  *trace.Ring
	last  *atomic.Uint32 // the instance's number of the last traced packet
	stage []trace.Record
	open  int    // packets under way
	old   uint32 // records of packets up to this one are ignored
	want  []reasonKey
	left  *atomic.Int64 // with want: how many may still be kept
}

func newTracer(last *atomic.Uint32) *tracer {
	return &tracer{ring: trace.NewRing(traceSize), last: last, stage: make([]trace.Record, 0, stageSize)}
}

// start marks a received frame if the job wants more frames.
func (t *tracer) start(c *Ctx, b *packet.Buf, job *traceJob) {
	if job.left.Load() <= 0 || (job.want == nil && job.left.Add(-1) < 0) {
		return
	}
	b.Trace = t.last.Add(1)
	t.open++
	t.add(c, b, TraceRx, uint64(b.Len()))
}

func (t *tracer) add(c *Ctx, b *packet.Buf, kind uint16, args ...uint64) {
	if b.Trace <= t.old {
		return
	}
	if len(t.stage) == cap(t.stage) {
		// Packets that an app holds for long lose their first records.
		t.stage = append(t.stage[:0], t.stage[stageSize/2:]...)
	}
	r := trace.Record{Packet: b.Trace, At: int64(c.now), App: c.node.index, Kind: kind}
	copy(r.Args[:], args)
	t.stage = append(t.stage, r)
}

// end ends the trace of b, and keeps its records if the traceJob wants them.
func (t *tracer) end(c *Ctx, b *packet.Buf, kind, app, reason uint16) {
	t.finish(c, b.Trace, kind, app, reason, b.Verdict)
	b.Trace = 0
}

func (t *tracer) finish(c *Ctx, id uint32, kind, app, reason uint16, v packet.Verdict) {
	if id <= t.old {
		return
	}
	keep := t.want == nil
	if !keep && app != 0 && slices.Contains(t.want, reasonKey{app, reason}) {
		keep = t.left.Add(-1) >= 0
	}
	if keep {
		for _, r := range t.stage {
			if r.Packet == id {
				t.ring.Add(r)
			}
		}
		t.ring.Add(trace.Record{
			Packet: id, At: int64(c.now), App: c.node.index, Kind: kind,
			Args: [4]uint64{uint64(app), uint64(reason), uint64(v)},
		})
	}
	if t.open--; t.open <= 0 {
		t.open = 0
		t.stage = t.stage[:0]
	}
}
