package bed

import (
	"cmp"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/quillon/quillon/internal/rack/history/fault"
	"github.com/quillon/quillon/rack/rnic"
)

// Limits are what a box asks of its surroundings, which a world keeps to.
type Limits struct {
	// NoCPU: the server's CPU writes no words that clients do atomics on, as a box
	// asks that answers atomics from what it has seen.
	NoCPU bool
	// NoAlias: no memory is there under two addresses, as a box asks that is told to
	// take WRITEs for atomics wherever it sees them (replace=learnt, track=).
	NoAlias bool
	// NoRestart: the box is not started anew, nor under traffic.
	NoRestart bool
	// Crashes: it is killed in each world, up to four times.
	Crashes bool
	// Counted: until the server has answered on a connection, the box takes a request of another P_Key, or for another MAC
	// address, for the client's, and counts its PSN, which the server does not. Its client hangs then; so there are none with a PSN that
	// may be next.
	Counted bool
	// Alive is how long the box takes a queue pair of the server's for the connection's that it was heard of, whatever
	// PSN requests have: nobody uses its number again before, unless the connection manager tells of it.
	Alive time.Duration
	// Gone is how long what went over a connection may have no answer when its client goes without a word of the
	// connection manager.
	Gone time.Duration
	// Crowds: one world of so many is a crowd; 0: as QUILLON_CROWDS says.
	Crowds int
	// Passes: operations of one client on different words may pass each other in it.
	Passes bool
	// Wilder: it has up to four workers, and its settings change under traffic (Box.Reloads).
	Wilder bool
	// Deep: the box's machine has a disk and is started anew, and more of what deepen says.
	Deep bool
	// Second: the server's machine has a second NIC. Joins: the box may be told that both have one server.
	Second, Joins bool
}

// RandomWorld is the world that a seed stands for.
func RandomWorld(seed uint64, l Limits) World {
	rng := rand.New(rand.NewPCG(seed, 0x776f726c64))
	yes := func(of int) bool { return rng.IntN(of) == 0 }
	w := World{
		IPv6: yes(4), MTU: 256 << rng.IntN(5), Profile: rnic.Profile(rng.IntN(2)), AckCoalesce: []int{0, 1, 4, 16}[rng.IntN(4)],
		Clients: 1 + rng.IntN(3), Domains: 1 + rng.IntN(3), Memories: 1 + rng.IntN(2), Passes: l.Passes, Alive: l.Alive, Gone: l.Gone,
	}
	crowd := isCrowd(seed, cmp.Or(l.Crowds, crowds))
	if crowd {
		w.Clients = 1 + rng.IntN(6)
	}
	w.Link.ECN = rnic.ECN(rng.IntN(4))
	switch rng.IntN(6) {
	case 0:
		w.Link.RoCEv1 = true
	case 1:
		w.Link.Tag = rnic.Tag{On: true, PCP: uint8(rng.IntN(8)), VID: uint16(rng.IntN(3) * 77)}
	}
	w.Managed = yes(2)
	if yes(3) {
		w.CE = 1 + rng.IntN(12)
	}
	sessions := 2 + rng.IntN(4)
	if crowd {
		sessions = 6 + rng.IntN(10)
	}
	for range sessions {
		q := Queue{Client: rng.IntN(w.Clients), Domain: rng.IntN(w.Domains), Gives: All, Outstanding: 1 << rng.IntN(5)}
		if yes(2) {
			q.Gives = 0
			for _, a := range []rnic.Access{rnic.RemoteRead, rnic.RemoteWrite, rnic.RemoteAtomic} {
				if !yes(3) {
					q.Gives |= a
				}
			}
		}
		w.Queues = append(w.Queues, q)
	}
	if two := rand.New(rand.NewPCG(seed, 0x74776F)); l.Second {
		w.second(two, l)
	}
	w.regions(rng, l)
	if w.Second != NoSecond {
		w.divide()
	}
	w.settings(rng)
	for i := range w.Queues {
		if crowd {
			w.Queues[i].hurry(rng)
		}
		w.steps(rng, i, crowd)
	}
	w.events(rng, l)
	if yes(4) {
		w.odd(rng)
	}
	if yes(2) {
		for range 1 + rng.IntN(4) {
			w.spoofs(rng, 0, numTricks, l)
		}
	}
	if !yes(3) {
		w.Faults = fault.Mix{Links: links(nil, w.Clients), Frames: 1 + rng.IntN(12), Within: 20 + rng.IntN(200)}
	}
	if wide := rand.New(rand.NewPCG(seed, 0x77696465)); wide.IntN(4) > 0 {
		w.widen(wide, l)
	}
	if deep := rand.New(rand.NewPCG(seed, 0x64656570)); l.Deep && deep.IntN(4) > 0 {
		w.deepen(deep, l)
	}
	if l.Deep {
		w.deepenFurther(seed)
	}
	w.alone()
	if l.Wilder {
		w.wilder(rand.New(rand.NewPCG(seed, 0x77696c64)), l)
	}
	return w
}

// isCrowd reports whether many share the words of that seed's world, most of them with little
// patience. All other worlds are the same whether there are crowds or not.
func isCrowd(seed uint64, crowds int) bool {
	return crowds > 0 && rand.New(rand.NewPCG(seed, 0x63726f7764)).IntN(crowds) == 0
}

// crowds is how many worlds there are for one that is a crowd, as QUILLON_CROWDS says; 0: none is. A crowd takes four times
// as long as another world.
var crowds, _ = strconv.Atoi(os.Getenv("QUILLON_CROWDS"))

// hurry gives the client of q little patience, three times of four: it waits 0.5 ms for an answer,
// or a little longer, and asks again as often as it may be, or never.
func (q *Queue) hurry(rng *rand.Rand) {
	if rng.IntN(4) == 0 {
		return
	}
	q.Near.Timeout = 7 + max(0, rng.IntN(4)-1)
	q.Near.RetryCnt = max(0, rng.IntN(10)-2)
}

// regions registers the memories, some of them twice.
func (w *World) regions(rng *rand.Rand, l Limits) {
	for i := range w.Memories + rng.IntN(3) {
		r := Region{Domain: rng.IntN(w.Domains), Memory: i % w.Memories, VA: uint64(rng.IntN(3)) << 20, Length: w.memorySize(), Access: All, Fast: rng.IntN(3) == 0}
		if rng.IntN(4) == 0 {
			r.Access = []rnic.Access{rnic.RemoteRead, rnic.RemoteRead | rnic.RemoteAtomic, rnic.RemoteRead | rnic.RemoteWrite, rnic.RemoteWrite}[rng.IntN(4)]
		}
		if rng.IntN(6) == 0 {
			r.Length = firstBlock
		}
		if rng.IntN(5) == 0 {
			r.Window, r.Owner, r.Fast = 1+rnic.WindowType(rng.IntN(2)), rng.IntN(len(w.Queues)), false
		}
		if l.NoAlias && i >= w.Memories {
			r.VA = w.Regions[r.Memory].VA
		}
		w.Regions = append(w.Regions, r)
	}
}

// settings are those of the queue pairs' ends.
func (w *World) settings(rng *rand.Rand) {
	lockstep := rng.IntN(2) == 0
	timers := []int{1, 1, 5, 8, 12}
	if rng.IntN(8) == 0 {
		timers = []int{0} // 655 ms
	}
	for i := range w.Queues {
		q := &w.Queues[i]
		far := rnic.Conn{
			MaxRdAtomic: 1, MaxDestRdAtomic: []int{1, 2, 16, 16}[rng.IntN(4)], Timeout: 7 + rng.IntN(3), RetryCnt: 7,
			RNRRetry: 7, MinRNRTimer: timers[rng.IntN(len(timers))],
		}
		if rng.IntN(20) == 0 {
			far.MaxDestRdAtomic = rnic.NoRdAtomic
		}
		if lockstep {
			far.SQPSN, far.RQPSN = 3185, 3185
		}
		near := far
		near.MaxDestRdAtomic, near.MaxRdAtomic = 1, max(far.MaxDestRdAtomic, 1)
		if rng.IntN(2) == 0 {
			near.MaxRdAtomic = 1 + rng.IntN(near.MaxRdAtomic)
		}
		if rng.IntN(3) == 0 {
			near.RetryCnt = rng.IntN(8)
		}
		if rng.IntN(3) == 0 {
			near.RNRRetry = rng.IntN(8)
		}
		q.Near, q.Far = near, far
		q.Receives = []int{64, 64, 1, 0}[rng.IntN(4)]
		if q.Receives < 64 {
			q.Gap = time.Duration(20+rng.IntN(3000)) * time.Microsecond
		}
	}
}

// steps are what session i does. The last session of some worlds is malicious: it
// uses what is not its own, and asks for what it has no right to.
func (w *World) steps(rng *rand.Rand, i int, crowd bool) {
	q := &w.Queues[i]
	wrong := 40 // one of so many operations is
	if i == len(w.Queues)-1 && rng.IntN(3) == 0 {
		wrong = 2
	}
	sleeps := rng.IntN(3) == 0
	n := 4 + rng.IntN(20)
	if crowd {
		n = 10 + rng.IntN(54) // no more than there are receive buffers
	}
	for range n {
		s := Step{Swap: value(rng), Compare: value(rng), Mask: rng.Uint64() | rng.Uint64(), Fence: rng.IntN(8) == 0, Unsignal: rng.IntN(6) == 0}
		switch {
		case sleeps && rng.IntN(8) == 0:
			s.Think = time.Duration(1+rng.IntN(400)) * time.Millisecond
		case rng.IntN(2) == 0:
			s.Think = time.Duration(rng.IntN(60)) * time.Microsecond
		}
		w.operation(rng, i, &s, rng.IntN(wrong) == 0)
		q.Steps = append(q.Steps, s)
	}
	q.Steps[len(q.Steps)-1].Unsignal = false
	for k := range q.Steps { // a full queue of requests without completions would never move
		if k%4 == 3 || q.Outstanding < 8 {
			q.Steps[k].Unsignal = false
		}
	}
}

// value is a word's: small ones meet, and some are big-endian.
func value(rng *rand.Rand) uint64 {
	v := uint64(rng.IntN(3))
	if rng.IntN(3) == 0 {
		v <<= 56
	}
	return v
}

// operation makes s one that session i may do; wrong: or any.
func (w *World) operation(rng *rand.Rand, i int, s *Step, wrong bool) {
	q := &w.Queues[i]
	var mine []int
	for k := range w.Regions {
		if r := &w.Regions[k]; wrong && w.nic(r.Domain) == w.nic(q.Domain) || r.Domain == q.Domain && (r.Window != rnic.WindowType2B || r.Owner == i) {
			mine = append(mine, k)
		}
	}
	ops := []rnic.Op{rnic.OpCompareSwap, rnic.OpFetchAdd, rnic.OpFetchAdd, rnic.OpCompareSwap, rnic.OpMaskedCompareSwap, rnic.OpRead, rnic.OpWrite, rnic.OpRead, rnic.OpWrite, rnic.OpSend, rnic.OpWriteImm}
	ops = slices.DeleteFunc(ops, func(op rnic.Op) bool {
		need := (&record{Step: Step{Op: op}}).right()
		rd := op >= rnic.OpRead && op <= rnic.OpMaskedCompareSwap
		return !wrong && (q.Gives&need != need || rd && q.Far.MaxDestRdAtomic < 0 || need != 0 && !slices.ContainsFunc(mine, func(k int) bool { return w.Regions[k].Access&need == need }))
	})
	s.Op = ops[rng.IntN(len(ops))]
	if need := (&record{Step: *s}).right(); !wrong {
		mine = slices.DeleteFunc(mine, func(k int) bool { return w.Regions[k].Access&need != need })
	}
	if len(mine) == 0 {
		s.Op, mine = rnic.OpSend, []int{0}
	}
	s.Region = mine[rng.IntN(len(mine))]
	r := &w.Regions[s.Region]
	s.Offset, s.Length = sharedAt(rng.IntN(sharedWords)), 8
	switch s.Op {
	case rnic.OpSend:
		s.Offset, s.Length = 0, 16
		if (r.Fast || r.Window == rnic.WindowType2B && r.Owner == i) && r.Domain == q.Domain && w.Profile == rnic.ConnectX && rng.IntN(3) == 0 {
			s.Op = rnic.OpSendInv
		}
		return
	case rnic.OpRead, rnic.OpWrite, rnic.OpWriteImm:
		if rng.IntN(3) == 0 && r.Length == w.memorySize() || s.Op == rnic.OpWriteImm {
			s.Block = true
			s.Offset = firstBlock + uint64(i*w.blockSize())
			s.Length = 8 * (1 + rng.IntN(w.blockSize()/8))
			if r.Length < w.memorySize() {
				s.Length = 0
			}
		} else if rng.IntN(10) == 0 {
			s.Length = 0
		} else if s.Op == rnic.OpRead && rng.IntN(3) == 0 {
			s.Offset = cpuWord + 8*uint64(rng.IntN(cpuWords))
		}
	}
	if wrong {
		switch rng.IntN(4) {
		case 0:
			s.Stale = true
		case 1:
			if s.right() == rnic.RemoteAtomic {
				s.Offset |= 4
			}
		case 2:
			s.Offset = uint64(r.Length) + 8*uint64(rng.IntN(4))
			s.Block = s.Op == rnic.OpWrite || s.Op == rnic.OpWriteImm || s.Op == rnic.OpRead
		}
	}
}

func (s *Step) right() rnic.Access { return (&record{Step: *s}).right() }

// events are the server's.
func (w *World) events(rng *rand.Rand, l Limits) {
	at := func() time.Duration { return time.Duration(rng.IntN(800)) * time.Microsecond }
	if rng.IntN(3) == 0 {
		for range 1 + rng.IntN(3) {
			w.Events = append(w.Events, Event{At: at(), What: Reregister, Region: rng.IntN(len(w.Regions))})
		}
	}
	for range rng.IntN(4) {
		e := Event{At: at(), What: CPUWrite, Region: rng.IntN(len(w.Regions)), Offset: cpuWord + 8*uint64(rng.IntN(cpuWords)), Value: uint64(100 + rng.IntN(100))}
		if !l.NoCPU && rng.IntN(2) == 0 {
			e.Offset = sharedAt(rng.IntN(sharedWords))
		}
		w.Events = append(w.Events, e)
	}
	if rng.IntN(4) == 0 {
		w.Events = append(w.Events, Event{At: at(), What: Stalled + Happening(rng.IntN(2)), For: time.Duration(50+rng.IntN(1500)) * time.Microsecond})
	}
	switch restart := rng.IntN(8); {
	case l.NoRestart:
	case restart == 3:
		for range 1 + rng.IntN(3) {
			w.Events = append(w.Events, Event{At: at(), What: BoxSleeps, For: time.Duration(1+rng.IntN(60)) * time.Microsecond})
		}
	case l.Crashes:
		w.Crash = true
		for range 1 + rng.IntN(4) {
			w.Events = append(w.Events, Event{At: at(), What: BoxEnds, For: time.Duration(10+rng.IntN(200)) * time.Microsecond})
		}
	case restart < 2:
		w.Events = append(w.Events, Event{At: at(), What: BoxEnds, For: time.Duration(10+rng.IntN(100)) * time.Microsecond})
		w.Crash = restart == 0
	case restart == 2: // inserted under traffic
		w.Late = true
		w.Events = append(w.Events, Event{At: time.Duration(rng.IntN(200)) * time.Microsecond, What: BoxComes})
	}
	slices.SortStableFunc(w.Events, func(a, b Event) int { return int(a.At - b.At) })
}

// odd are operations of others, with every right, in ways that a box may not know.
func (w *World) odd(rng *rand.Rand) {
	for range 1 + rng.IntN(12) {
		o := Odd{At: time.Duration(rng.IntN(600)) * time.Microsecond, Way: Way(rng.IntN(int(numWays))), Region: rng.IntN(len(w.Regions)), Offset: sharedAt(rng.IntN(sharedWords)),
			Op: []rnic.Op{rnic.OpWrite, rnic.OpFetchAdd, rnic.OpCompareSwap}[rng.IntN(3)], Compare: value(rng), Swap: value(rng)}
		if o.Way == ByUC {
			o.Op = rnic.OpWrite
		}
		w.Odd = append(w.Odd, o)
	}
	slices.SortStableFunc(w.Odd, func(a, b Odd) int { return int(a.At - b.At) })
}

// spoofs are the adversary's: a trick from first on, before end, tried some times.
func (w *World) spoofs(rng *rand.Rand, first, end Trick, l Limits) {
	trick, victim := first+Trick(rng.IntN(int(end-first))), rng.IntN(len(w.Queues))
	at, gap := time.Duration(rng.IntN(600))*time.Microsecond, time.Duration(1+rng.IntN(20))*time.Microsecond
	if rng.IntN(6) == 0 { // into a quiet time
		at, gap = time.Duration(100+rng.IntN(300))*time.Millisecond, 10*time.Millisecond
	}
	n := 1 + rng.IntN(12)
	if rng.IntN(4) == 0 {
		n = 130
	}
	same := rng.Uint64()
	again := rng.IntN(3) == 0
	row := again && trick >= numTricks && rng.IntN(2) == 0
	for i := range n {
		s := Spoof{At: at + time.Duration(i)*gap, Trick: trick, Victim: victim, Seed: rng.Uint64(), Counted: l.Counted}
		if again {
			s.Seed = same
		}
		if row {
			s.Turn = uint32(i)
		}
		w.Spoofs = append(w.Spoofs, s)
	}
	slices.SortStableFunc(w.Spoofs, func(a, b Spoof) int { return int(a.At - b.At) })
}
