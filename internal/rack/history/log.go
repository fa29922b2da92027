package history

import (
	"sync"

	"github.com/quillon/quillon/nf/clock"
)

// Op is an operation of a history.
type Op[I, O any] struct {
	Client int
	In     I
	Out    O // what the client was told; means nothing while the operation is open
	// Called and Returned are for the reader; the order of events is what
	// counts. Returned is clock.Never for an operation of unknown outcome.
	Called, Returned clock.Time
	// call and ret number the events of the log, from 1.
	call, ret int64
	forgotten bool
}

// Open reports whether nobody knows what became of the operation.
func (o *Op[I, O]) Open() bool { return o.Returned == clock.Never }

// Log records one history. Its methods may be called from several goroutines:
// the order in which they are called is the order of the events, which is finer
// than any clock.
type Log[I, O any] struct {
	// Off: nothing is recorded. It must not change once there are operations.
	Off   bool
	mu    sync.Mutex
	ops   []Op[I, O]
	event int64
	last  int // client
}

// NewClient is a client's number that nobody has had.
func (l *Log[I, O]) NewClient() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last++
	return l.last
}

// Call notes that a client is about to ask for in, and returns the operation's
// number.
func (l *Log[I, O]) Call(client int, now clock.Time, in I) int {
	if l.Off {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.event++
	l.ops = append(l.ops, Op[I, O]{Client: client, In: in, Called: now, Returned: clock.Never, call: l.event})
	return len(l.ops) - 1
}

// Return notes what the client was told.
func (l *Log[I, O]) Return(id int, now clock.Time, out O) {
	if l.Off {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.event++
	o := &l.ops[id]
	o.Out, o.Returned, o.ret = out, now, l.event
}

// Forget takes back an operation that certainly did not happen and never will.
func (l *Log[I, O]) Forget(id int) {
	if l.Off {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ops[id].forgotten = true
}

// Len is how many operations were recorded.
func (l *Log[I, O]) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.ops)
}

// Ops are the operations recorded so far, by call.
func (l *Log[I, O]) Ops() []Op[I, O] {
	l.mu.Lock()
	defer l.mu.Unlock()
	ops := make([]Op[I, O], 0, len(l.ops))
	for _, o := range l.ops {
		if !o.forgotten {
			ops = append(ops, o)
		}
	}
	return ops
}
