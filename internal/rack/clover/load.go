package clover

import (
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/quillon/quillon/internal/rack/history"
	"github.com/quillon/quillon/internal/rack/ycsb"
	"github.com/quillon/quillon/nf/clock"
)

// Load is what the sessions do between Start and Stop.
type Load struct {
	// Mix replaces the mix of the configured workload; nil keeps it.
	Mix *ycsb.Mix
	// MaxOps is how many operations each session does before it ends; 0 = no limit.
	MaxOps int
	// Sweep writes every key once, each by one session, instead of the workload. This is what a middlebox
	// sees while a store is filled. The load ends then; Mix and MaxOps are not used.
	Sweep bool
	// Log, if not nil, records the results that the sessions got. A value's number is in its first 8 bytes,
	// and the bytes behind are computed from it. The number of a key's first value is 0.
	Log *history.Log[history.Register, uint64]
}

// signal is raised by one goroutine and answered by all compute nodes. It is all that their goroutines share.
type signal struct {
	stop  atomic.Bool
	nodes atomic.Int64 // nodes that have not answered
}

func newSignal(nodes int) *signal {
	s := new(signal)
	s.nodes.Store(int64(nodes))
	return s
}

func (s *signal) answer() { s.nodes.Add(-1) }

func (s *signal) answered() bool { return s.nodes.Load() <= 0 }

// run is a Load under way.
type run struct {
	Load
	*signal
}

// window is a measurement under way.
type window struct{ *signal }

// tally is what a node counts. It belongs to the node until the node has answered the end of the window.
type tally struct {
	ops, writes, firstTry, firstReads, firstWrites uint64
	errors, roundTrips                             uint64
	read, write                                    *hdrhistogram.Histogram
	from, to                                       clock.Time
}

// Latencies are recorded in nanoseconds, up to 10 s, with three digits.
const longestLatency = int64(10 * time.Second)

func newTally() tally {
	return tally{
		read:  hdrhistogram.New(1, longestLatency, 3),
		write: hdrhistogram.New(1, longestLatency, 3),
	}
}

func (t *tally) reset(now clock.Time) {
	r, w := t.read, t.write
	r.Reset()
	w.Reset()
	*t = tally{read: r, write: w, from: now}
}

// loader is a compute node's workload: one closed loop for each session. It implements host.App in front of
// the client library.
type loader struct {
	c        *Client
	cl       *Cluster
	sessions []loadSession
	run      *run // nil: none yet
	running  bool
	win      *window
	counting bool
	tally    tally
	value    []byte
	// Totals since the start, for other goroutines: stored once a Step.
	live                        [3]atomic.Uint64
	liveOps, liveFirst, liveErr uint64
	stored                      uint64
	failure                     atomic.Pointer[error]
}

type loadSession struct {
	s       *Session
	gen     *ycsb.Generator
	number  uint32 // over all nodes, from 1
	journal *journal
	seq     uint64
	left    int
	dead    bool
	op      ycsb.Op // the latest
	open    bool    // it is under way
	id      int     // its number in the log
}

// Step implements host.App.
func (l *loader) Step(now clock.Time) bool {
	did := l.c.Step(now)
	if r := l.cl.run.Load(); r != l.run {
		if ready, err := l.c.Ready(); ready || err != nil {
			l.run, l.running = r, true
			l.enter(now)
			// The first operations need space, and only a Step asks for it. Nothing else may happen that
			// leads to another Step, so there is one here.
			l.c.Step(now)
			did = true
		}
	}
	if l.running {
		l.leave()
	}
	if w := l.cl.win.Load(); w != l.win {
		l.win, l.counting = w, true
		l.tally.reset(now)
		did = true
	}
	if l.counting && l.win.stop.Load() {
		l.counting = false
		l.tally.to = now
		l.win.answer()
		did = true
	}
	if n := l.liveOps + l.liveErr; n != l.stored {
		l.stored = n
		l.live[0].Store(l.liveOps)
		l.live[1].Store(l.liveFirst)
		l.live[2].Store(l.liveErr)
	}
	return did
}

// Deadline implements host.App.
func (l *loader) Deadline() clock.Time { return l.c.Deadline() }

func (l *loader) enter(now clock.Time) {
	for i := range l.sessions {
		s := &l.sessions[i]
		s.left = l.run.MaxOps
		if l.run.Sweep {
			s.left = l.cl.swept(s.number)
		} else if s.left == 0 {
			s.left = -1
		}
		if l.run.Mix != nil {
			s.gen.SetMix(*l.run.Mix)
		}
		l.next(s, now)
	}
}

// leave ends the run when it was stopped or every session has done its operations, and nothing is under way
// any more. It also ends the run when the client has stopped with an error.
func (l *loader) leave() {
	if _, err := l.c.Ready(); err != nil {
		l.fail(err)
	} else if !l.run.stop.Load() && !l.through() || !l.c.Quiet() {
		return
	}
	l.running = false
	l.run.answer()
}

func (l *loader) through() bool {
	if l.run.MaxOps == 0 && !l.run.Sweep {
		return false
	}
	for i := range l.sessions {
		if s := &l.sessions[i]; s.left != 0 && !s.dead {
			return false
		}
	}
	return true
}

func (l *loader) fail(err error) { l.failure.CompareAndSwap(nil, &err) }

// next starts a session's next operation.
func (l *loader) next(s *loadSession, now clock.Time) {
	if s.dead || s.left == 0 || l.run.stop.Load() {
		return
	}
	if s.left > 0 {
		s.left--
	}
	var op ycsb.Op
	if l.run.Sweep {
		op = ycsb.Op{Key: l.cl.cfg.Keys[int(s.number)-1+s.left*l.cl.sessions()], Write: true}
	} else {
		op = s.gen.Next()
	}
	var err error
	s.op, s.open = op, true
	if op.Write {
		s.seq = s.journal.begin(op.Key)
		put64(l.value, 0, uint64(tagOf(s.number, s.seq)))
		if l.run.Log != nil {
			fill(l.value)
		}
	}
	if l.run.Log != nil {
		s.id = l.run.Log.Call(int(s.number), now, history.Register{Key: op.Key, Write: op.Write, Value: uint64(tagOf(s.number, s.seq))})
	}
	if op.Write {
		err = s.s.Write(now, op.Key, l.value)
	} else {
		err = s.s.Read(now, op.Key)
	}
	if err != nil {
		s.dead = true
		if op.Write {
			s.journal.fail(s.seq)
		}
		l.fail(err)
	}
}

// sessions is the number of sessions on all nodes.
func (cl *Cluster) sessions() int { return len(cl.compute) * cl.cfg.Sessions }

// swept is how many keys a session writes in a sweep.
func (cl *Cluster) swept(number uint32) int {
	n := cl.sessions()
	return (len(cl.cfg.Keys) - int(number) + n) / n
}

// done is called at the end of every operation.
func (l *loader) done(r *Result) {
	s := &l.sessions[r.Session]
	s.open = false
	if r.Err != nil {
		// A session whose queue pair failed would fail again and again.
		if r.Write {
			s.journal.fail(s.seq)
		}
		s.dead = true
		l.liveErr++
		l.tally.errors++
		l.fail(r.Err)
		return
	}
	if l.run.Log != nil {
		value := uint64(0)
		if !r.Write {
			value = u64(r.Value, 0)
			if !filled(r.Value) {
				value = mixture
			}
		}
		l.run.Log.Return(s.id, r.End, value)
	}
	l.liveOps++
	if r.FirstTry {
		l.liveFirst++
	}
	if l.counting {
		l.count(r)
	}
	l.next(s, r.End)
}

// mixture is logged for a read that got no whole value. No writer writes it.
const mixture = ^uint64(0)

// fill computes the words of a value behind its number from the number. All bits of a word depend on it.
func fill(value []byte) {
	for at := 8; at+8 <= len(value); at += 8 {
		put64(value, at, u64(value, 0)*golden)
	}
}

// filled reports whether the words of a value are as fill makes them.
func filled(value []byte) bool {
	for at := 8; at+8 <= len(value); at += 8 {
		if u64(value, at) != u64(value, 0)*golden {
			return false
		}
	}
	return true
}

const golden = 0x9E3779B97F4A7C15 // 2^64 divided by the golden ratio

func (l *loader) count(r *Result) {
	t := &l.tally
	t.ops++
	t.roundTrips += uint64(r.RoundTrips)
	h := t.read
	if r.Write {
		h = t.write
		t.writes++
	}
	_ = h.RecordValue(min(max(int64(r.Latency()), 1), longestLatency))
	if r.FirstTry {
		t.firstTry++
		if r.Write {
			t.firstWrites++
		} else {
			t.firstReads++
		}
	}
}
