package history

import (
	"sync"

	"github.com/quillon/quillon/nf/clock"
)

// Op is an operation of a history.
type Op[I, O any] struct {
	Client int
	In     I
	Out    O // the answer; without meaning while the operation is open
	// Called and Returned are for people; only the order of events counts. Returned is clock.Never for an
	// operation of unknown outcome.
	Called, Returned clock.Time
	// call and ret number the events of the log, from 1.
	call, ret int64
	forgotten bool
}

// Open reports whether the outcome of the operation is unknown.
func (o *Op[I, O]) Open() bool { return o.Returned == clock.Never }

// Log records one history. Its methods may be called from several goroutines: the order of the calls is the
// order of the events, which is finer than any clock.
type Log[I, O any] struct {
	// Off: nothing is recorded. It must not change once operations were recorded.
	Off   bool
	mu    sync.Mutex
	ops   []Op[I, O]
	event int64
	last  int // number of the newest client
}

// NewClient returns a client number that was not used before.
func (l *Log[I, O]) NewClient() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last++
	return l.last
}

// Call records that a client is about to begin an operation, and returns the operation's number.
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

// Return records the answer that the client got.
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

// Len returns how many operations were recorded.
func (l *Log[I, O]) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.ops)
}

// Ops returns the operations recorded so far, by call, without the forgotten ones.
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
