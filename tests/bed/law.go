package bed

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"time"

	"github.com/quillon/quillon/internal/rack/history"
	"github.com/quillon/quillon/internal/rack/history/fault"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/rack/rnic"
)

// The law of the bare wire. It says for a history (who posted what when, which
// R_Keys were valid when, which frames were lost) what may have become of each
// operation; so it needs no second run to be judged by, and judges re-orderings
// alike. That it is the law of the wire, and not stricter, is shown by playing
// every world on a bare wire, too.
//
//   - An operation is refused with a class of error when, and only when, the
//     server's queue pair, domain, region or window refuse it at some moment
//     between its post and its completion.
//   - Retries run out only where more went wrong than the client repeats, and RNR
//     retries only after all waits, where the server had no buffer.
//   - A queue pair ends only with an operation of its own that failed; what is
//     behind that is flushed, and was not executed if the server refused.
//   - Every operation completes, and a box makes the whole not much slower.
//   - Words are linearizable, with the memory's last content; WRITEs and SENDs
//     that were acknowledged are in memory, once.

// rtt is longer than a frame and its answer are on their way when nobody waits.
const rtt = 300 * time.Microsecond

// judge judges the history of a play.
type judge struct{ *play }

func (p judge) law() error {
	var errs []error
	for _, check := range []func() error{p.lawOfClasses, p.lawOfBlocks, p.lawOfSends, p.lawOfMarks, p.lawOfBacks} {
		if err := check(); err != nil {
			errs = append(errs, err)
		}
	}
	for _, log := range p.odds { // they were lost
		p.res.Words.Forget(log)
	}
	now, reader := p.Clock.Now(), p.res.Words.NewClient()
	for m, mem := range p.memory {
		for at := uint64(0); at < firstBlock; at += 8 {
			if !isShared(at) && (at < cpuWord || at >= cpuWord+8*cpuWords) {
				continue
			}
			id := p.res.Words.Call(reader, now, history.Word{Op: rnic.OpRead, Addr: uint64(m)<<32 | at})
			p.res.Words.Return(id, now, binary.LittleEndian.Uint64(mem[at:]))
		}
	}
	if len(errs) == 0 { // a verdict on what was not finished takes long, and tells nothing new
		errs = append(errs, history.Check(words(p.cfg.Seed), p.res.Words, 1<<18))
	}
	return errors.Join(errs...)
}

// lawOfClasses: what became of each operation.
func (p judge) lawOfClasses() error {
	type life struct{ queue, life int }
	broke, waits := map[life]*record{}, map[life]bool{}
	var errs []error
	bad := func(r *record, format string, args ...any) {
		if len(errs) < 4 {
			errs = append(errs, fmt.Errorf("session %d, operation %d (%v): %s", r.queue, r.id, r, fmt.Sprintf(format, args...)))
		}
	}
	for _, r := range p.res.Records {
		class := ClassOf(r.status)
		q := &p.w.Queues[r.queue]
		first := broke[life{r.queue, r.life}]
		switch {
		case class == Unfinished && (waits[life{r.queue, r.life}] || p.silent(q, r) || p.shutAgain(r)):
			waits[life{r.queue, r.life}] = true
			continue
		case class == Unfinished:
			bad(r, "no completion after %v", p.Clock.Now().Sub(r.posted))
			continue
		case first != nil && class != Flushed:
			bad(r, "%v after operation %d ended the queue pair with %v", class, first.id, ClassOf(first.status))
			continue
		case class == Flushed:
			if first == nil {
				bad(r, "flushed, and no operation of the queue pair failed")
			}
			continue
		}
		if class != OK {
			broke[life{r.queue, r.life}] = r
		}
		if why := p.allows(q, r, class); why != "" {
			bad(r, "%v: %s", class, why)
		}
	}
	return errors.Join(errs...)
}

func (r *record) String() string {
	names := map[rnic.Op]string{rnic.OpSend: "SEND", rnic.OpSendInv: "SEND with invalidate", rnic.OpWrite: "WRITE", rnic.OpWriteImm: "WRITE with immediate", rnic.OpRead: "READ", rnic.OpCompareSwap: "CAS", rnic.OpFetchAdd: "FETCH-ADD", rnic.OpMaskedCompareSwap: "masked CAS"}
	return fmt.Sprintf("%s of %d at %#x, R_Key %#x", names[r.Op], len(r.data), r.region.VA+r.Offset, r.rkey)
}

// right is what a queue pair and a region must give for an operation.
func (r *record) right() rnic.Access {
	switch r.Op {
	case rnic.OpRead:
		return rnic.RemoteRead
	case rnic.OpWrite, rnic.OpWriteImm:
		return rnic.RemoteWrite
	case rnic.OpCompareSwap, rnic.OpFetchAdd, rnic.OpMaskedCompareSwap:
		return rnic.RemoteAtomic
	}
	return 0
}

// allows reports why the law does not allow that r ended so; "" when it does.
func (p judge) allows(q *Queue, r *record, class Class) string {
	need := r.right()
	rdatomic := r.Op >= rnic.OpRead && r.Op <= rnic.OpMaskedCompareSwap
	switch class {
	case OperationError:
		if p.mourned(r) {
			return ""
		}
		// Where a refusal was lost the wire leaves its client without an end; to be
		// told of one is no harm.
		if p.silent(q, r) || r.Op != rnic.OpRead && p.bereaved(r) || p.robbed(r) { // a READ is done again
			return ""
		}
		return "no server says so"
	case RetryExceeded:
		return p.mayExhaust(q, r)
	case RNRExceeded:
		return p.mayWait(q, r)
	}
	static := q.Gives&need == need
	if rdatomic && q.Far.MaxDestRdAtomic < 0 {
		static = false
	}
	if need == rnic.RemoteAtomic && (r.region.VA+r.Offset)&7 != 0 && class == AccessError {
		return "" // which of two faults is told is the NIC's choice
	}
	if need == rnic.RemoteAtomic && (r.region.VA+r.Offset)&7 != 0 {
		static = false
	}
	crowded := rdatomic && p.w.Profile == rnic.ConnectX && q.Near.MaxRdAtomic > 1<<bits.Len(uint(q.Far.MaxDestRdAtomic-1))
	if !static {
		if class != InvalidRequest {
			return "the queue pair does not allow the operation"
		}
		return ""
	}
	if class == InvalidRequest {
		if crowded {
			return ""
		}
		return "the queue pair allows the operation"
	}
	valid, invalid := true, false
	switch {
	case r.Op == rnic.OpSend, need != 0 && r.Op != rnic.OpWriteImm && len(r.data) == 0, r.Op == rnic.OpWriteImm && len(r.data) == 0:
	case r.Op == rnic.OpSendInv:
		valid, _ = p.was(r)
		if q.Domain != r.region.Domain || !r.region.Fast && r.region.Window != rnic.WindowType2B || r.foreign() {
			valid = false
		}
		if p.w.Profile == rnic.RXE {
			valid = true // class J: it is acknowledged
		}
		invalid = true // the key's own end is between its post and its completion
	default:
		valid, invalid = p.was(r)
		if q.Domain != r.region.Domain || r.foreign() || r.region.Access&need != need || int(r.Offset)+len(r.data) > r.region.Length {
			valid, invalid = false, true
		}
	}
	switch {
	case class == OK && !valid:
		return "the R_Key does not reach there"
	case class == AccessError && !invalid:
		return "the R_Key reaches there"
	}
	return ""
}

// refused reports whether r was flushed since its server refused one before it: it
// was never executed.
func (p judge) refused(r *record) bool {
	if p.w.Passes {
		return false
	}
	for _, x := range p.res.Records {
		if x.queue == r.queue && x.life == r.life && !x.open && x.status != rnic.Success && x.status != rnic.WRFlushError {
			c := ClassOf(x.status)
			// The answer of a READ, or of an atomic that is executed late, is made
			// after what is behind it; when it is withdrawn, that was executed.
			valid, _ := p.was(x)
			withdrawn := valid && (x.Op == rnic.OpRead || x.Op > rnic.OpRead && late(p.cfg.Seed))
			return c == InvalidRequest || c == AccessError && !withdrawn
		}
	}
	return false
}

// was reports whether r's R_Key was valid, and whether it was not, at some moment
// between r's post and its completion.
func (p judge) was(r *record) (valid, invalid bool) {
	for i, keys := range p.keys {
		for _, k := range keys {
			if k.rkey != r.rkey || k.from > r.done || p.w.nic(p.w.Regions[i].Domain) != p.w.nic(p.w.Queues[r.queue].Domain) {
				continue
			}
			// An invalidation is noticed a little later than it happens.
			return k.to >= r.posted, k.to <= r.done.Add(2*time.Microsecond)
		}
	}
	return false, true
}

// foreign reports whether r used a window that another session's queue pair bound.
func (r *record) foreign() bool {
	return r.region.Window == rnic.WindowType2B && r.region.Owner != r.queue
}

// mayExhaust: each thing that goes wrong costs a client no more than a try.
func (p judge) mayExhaust(q *Queue, r *record) string {
	if !p.silent(q, r) && q.Near.RetryCnt == 7 && p.w.Profile == rnic.RXE {
		return "rxe never gives up with 7 retries"
	}
	wrong := p.Struck() + p.harm[r.queue]
	timeout := time.Duration(4096 << q.Near.Timeout)
	for _, e := range p.w.Events {
		switch e.What {
		case Stalled, Frozen, BoxEnds, BoxSleeps, BoxReboots:
			wrong += 2 + int(e.For/timeout)
		}
	}
	if p.mourned(r) || p.shutAgain(r) || p.late(r) || p.silent(q, r) || p.bereaved(r) || p.comesBack(q, r) || q.Near.RetryCnt == 0 && p.refusedOther(r) {
		return ""
	}
	wrong += p.shutOut(r, timeout)
	if wrong <= q.Near.RetryCnt {
		return fmt.Sprintf("%d retries, and %d things went wrong", q.Near.RetryCnt, wrong)
	}
	return ""
}

// mourned reports whether the box's machine was started anew while r's connection was there, or one with its queue pairs' numbers, and its
// journal named that one: the client is told of the loss, unless it gives up before.
func (p judge) mourned(r *record) bool {
	return p.box.disk != nil && r.end >= 0 && p.box.disk.lost[lostOf(&p.ends[r.end])] &&
		slices.ContainsFunc(p.reboots, func(at clock.Time) bool { return at <= r.done })
}

// comesBack reports whether r goes to a queue pair of the server's whose number its session had before, over a connection that nobody ended, and its client
// gives up sooner than a box may have found that out (docs/SECURITY.md says so).
func (p judge) comesBack(q *Queue, r *record) bool {
	return p.unaware() && q.Again[1] && r.life > 0 && time.Duration(4096<<q.Near.Timeout*(q.Near.RetryCnt+1)) < p.w.Gone
}

// silent reports whether r's server may have refused it, or one behind it, with a
// refusal that was lost: it is silent from then on. So it is when it refused a READ in
// front of r that was there twice: a duplicate READ is executed again (IBTA 9.7.5.1.3), with the
// rights of that time, and a client that has the answer to the first heeds no refusal of the second.
func (p judge) silent(q *Queue, r *record) bool {
	lossy, twice := p.Struck() > 0, p.copies() || p.w.Recycle
	for _, e := range p.w.Events {
		lossy = lossy || e.What == Frozen || e.What == BoxEnds || e.What == BoxSleeps || e.What == BoxReboots
		twice = twice || e.What >= Stalled
	}
	return slices.ContainsFunc(p.res.Records, func(x *record) bool {
		switch {
		case x.queue != r.queue || x.life != r.life:
			return false
		case x.id < r.id:
			return twice && x.Op == rnic.OpRead && x.status == rnic.Success && len(x.data) > 0 && p.revoked(x, r.done)
		}
		return lossy && x.status != rnic.Success && (p.allows(q, x, AccessError) == "" || p.allows(q, x, InvalidRequest) == "")
	})
}

// revoked reports whether r's R_Key was taken away before some time.
func (p judge) revoked(r *record, before clock.Time) bool {
	for i, keys := range p.keys {
		if p.w.nic(p.w.Regions[i].Domain) == p.w.nic(p.w.Queues[r.queue].Domain) && slices.ContainsFunc(keys, func(k epoch) bool { return k.rkey == r.rkey && k.to <= before }) {
			return true
		}
	}
	return false
}

// Without a connection manager no box can know that a client may not ask again, or gives up soon. Two
// things may come of that for those who share a connection (docs/SECURITY.md says so): bereaved and
// refusedOther. While a box is told, neither is allowed.

// bereaved reports whether r may have gone over the connection of another session, which had given up
// while that still counted as living (alive=, 100 ms).
func (p judge) bereaved(r *record) bool {
	if (p.unaware() || p.w.Chaos != 0 && p.Struck() > 0) && r.moves() && p.left(r) {
		return true
	}
	return p.unaware() && r.moves() && slices.ContainsFunc(p.res.Records, func(x *record) bool {
		gaveUp := x.status == rnic.RetryExceededError || x.status == rnic.RNRRetryExceededError
		return gaveUp && p.share(x, r) && x.done >= r.posted.Add(-100*time.Millisecond) && x.done <= r.done
	})
}

// left reports whether r may have gone over another connection, of its own session's life before or of another session's, which had
// ended of its own accord while it still counted as living.
func (p judge) left(r *record) bool {
	return slices.ContainsFunc(p.queues, func(q *queue) bool {
		return q.Domain == p.w.Queues[r.queue].Domain && slices.ContainsFunc(q.quits, func(at clock.Time) bool {
			return at >= r.posted.Add(-100*time.Millisecond) && at <= r.done
		})
	})
}

// refusedOther reports whether the server refused a request of another session just before r ended, so
// that r's client may have been asked for r again.
func (p judge) refusedOther(r *record) bool {
	return p.unaware() && r.moves() && slices.ContainsFunc(p.res.Records, func(x *record) bool {
		class := ClassOf(x.status)
		return x.moves() && p.share(x, r) && (class == AccessError || class == InvalidRequest) && x.done >= r.posted.Add(-rtt) && x.done <= r.done.Add(rtt)
	})
}

// moves reports whether r is of a sort that boxes may send over another connection than its client's: it
// takes no receive buffer.
func (r *record) moves() bool {
	return r.Op != rnic.OpSend && r.Op != rnic.OpSendInv && r.Op != rnic.OpWriteImm
}

// share reports whether sessions of x and r may have operations on one connection: both queue pairs have
// the right to one R_Key, and so they are of one protection domain.
func (p judge) share(x, r *record) bool {
	return x.queue != r.queue && p.w.Queues[x.queue].Domain == p.w.Queues[r.queue].Domain
}

// robbed reports whether r's own connection may have been ended by a refusal of another session's
// operation, under an R_Key that the server's CPU had taken away: no box sees that (docs/SECURITY.md).
// What a client SENDs to invalidate a key it sees.
func (p judge) robbed(r *record) bool {
	return p.cfg.Box != nil && slices.ContainsFunc(p.res.Records, func(x *record) bool {
		return x.moves() && p.share(x, r) && ClassOf(x.status) == AccessError && p.taken[nicKey{p.w.nic(p.w.Queues[x.queue].Domain), x.rkey}] && x.done >= r.since && x.done <= r.done
	})
}

// unaware reports whether there is a box that may not know its clients' settings: nobody tells them, or
// what tells them passed without it, as to a server in a VLAN, which has a place when it has answered there.
func (p judge) unaware() bool {
	return p.Instance() != nil && (!p.w.Managed || p.w.Link.Tag.VID != 0 || slices.ContainsFunc(p.w.Queues, func(q Queue) bool { return q.Unseen }) || slices.ContainsFunc(p.w.Events, func(e Event) bool { return e.What >= BoxEnds }))
}

// late reports whether a rxe queue pair of r's session ended without saying so
// (a SEND that invalidates what cannot be).
func (p judge) late(r *record) bool {
	if p.w.Profile != rnic.RXE {
		return false
	}
	return slices.ContainsFunc(p.res.Records, func(x *record) bool {
		return x.queue == r.queue && x.life == r.life && x.Op == rnic.OpSendInv && x.id < r.id
	})
}

// mayWait: RNR retries were all waited for, and no buffer was there.
func (p judge) mayWait(q *Queue, r *record) string {
	if r.Op != rnic.OpSend && r.Op != rnic.OpSendInv && r.Op != rnic.OpWriteImm {
		return "it needs no receive buffer"
	}
	if q.Near.RNRRetry == 7 {
		return "seven RNR retries have no end"
	}
	if wait := time.Duration(q.Near.RNRRetry) * rnrWait(q.Far.MinRNRTimer); r.done.Sub(r.posted) < wait {
		return fmt.Sprintf("after %v, before all waits, %v, were over", r.done.Sub(r.posted), wait)
	}
	used := 0
	for _, x := range p.res.Records {
		if x.queue == r.queue && x.life == r.life && x.id < r.id && x.status == rnic.Success && (x.Op == rnic.OpSend || x.Op == rnic.OpSendInv || x.Op == rnic.OpWriteImm) {
			used++
		}
	}
	there := 0
	for _, at := range p.posts[r.queue][r.life] {
		if at.Add(rtt) <= r.done {
			there++
		}
	}
	if there > used && p.Struck() == 0 && !slices.ContainsFunc(p.w.Events, func(e Event) bool { return e.What >= Stalled }) {
		return fmt.Sprintf("the server had posted %d buffers, %d were used", there, used)
	}
	return ""
}

// rnrWait is the time of an RNR timer's code (IBTA 9.7.5.2.8).
func rnrWait(code int) time.Duration {
	us := [32]int{655360, 10, 20, 30, 40, 60, 80, 120, 160, 240, 320, 480, 640, 960, 1280, 1920, 2560, 3840, 5120, 7680, 10240, 15360, 20480, 30720, 40960, 61440, 81920, 122880, 163840, 245760, 327680, 491520}
	return time.Duration(us[code&31]) * time.Microsecond
}

// lawOfBlocks: a session's own cells hold what was acknowledged last, or what came
// behind it and may have been executed.
func (p judge) lawOfBlocks() error {
	type cell struct{ memory, queue, at int }
	may := map[cell][]uint64{}
	size := p.w.blockSize()
	for _, r := range p.res.Records {
		if !r.Block || r.Op != rnic.OpWrite && r.Op != rnic.OpWriteImm || len(r.data) == 0 {
			continue
		}
		class := ClassOf(r.status)
		if class == AccessError || class == InvalidRequest || class == Flushed && p.refused(r) {
			if !p.partly(r) {
				continue
			}
		}
		for at := 0; at+8 <= len(r.data); at += 8 {
			c := cell{r.region.Memory, r.queue, int(r.Offset) + at}
			v := binary.LittleEndian.Uint64(r.data[at:])
			if class == OK {
				may[c] = may[c][:0]
			} else if may[c] == nil {
				may[c] = []uint64{0}
			}
			may[c] = append(may[c], v)
		}
	}
	for q := range p.w.Queues {
		for m, mem := range p.memory {
			for at := firstBlock + q*size; at+8 <= firstBlock+(q+1)*size; at += 8 {
				v := binary.LittleEndian.Uint64(mem[at:])
				want, ok := may[cell{m, q, at}]
				if !ok && v != 0 || ok && !slices.Contains(want, v) {
					return fmt.Errorf("session %d: memory %d holds %#x at %#x in place of one of %#x", q, m, v, at, want)
				}
			}
		}
	}
	return nil
}

// partly reports whether packets of r may have been executed before one was
// refused: its R_Key was valid for some time.
func (p judge) partly(r *record) bool {
	valid, _ := p.was(r)
	return valid && len(r.data) > r.mtu
}

// lawOfSends: what was acknowledged has come, and nothing came twice.
func (p judge) lawOfSends() error {
	for _, r := range p.res.Records {
		if r.Op != rnic.OpSend && r.Op != rnic.OpSendInv {
			continue
		}
		n := p.got[[2]uint64{uint64(r.queue), r.seq}]
		switch class := ClassOf(r.status); {
		case n > 1:
			return fmt.Errorf("session %d: SEND %d came %d times", r.queue, r.id, n)
		case class == OK && n == 0 && (r.Op == rnic.OpSend || p.w.Profile != rnic.RXE):
			return fmt.Errorf("session %d: SEND %d was acknowledged and never came", r.queue, r.id)
		case class == RNRExceeded && n > 0 && !p.copies():
			// Otherwise a copy of it that was late may have found a buffer.
			return fmt.Errorf("session %d: SEND %d came, and its client was told that there was no buffer", r.queue, r.id)
		}
	}
	return nil
}

// copies reports whether frames were doubled or late on their way.
func (p judge) copies() bool {
	return p.Struck() > 0 && p.delays()
}

// delays reports whether frames may be doubled or late on their way.
func (p judge) delays() bool {
	return slices.ContainsFunc(p.cfg.Schedule, func(f fault.Fault) bool {
		return f.Action == fault.Duplicate || f.Action == fault.Delay
	})
}

// lawOfMarks: who is told of congestion has met it.
func (p judge) lawOfMarks() error {
	if p.w.CE == 0 || len(p.w.Spoofs) > 0 || p.box.starts > 1 || len(p.w.Odd) > 0 {
		return nil
	}
	met := map[uint32]int{}
	for _, e := range p.ends {
		met[e.ClientQPN] += p.marked[e.ServerQPN]
	}
	for _, e := range p.ends {
		if p.notified[e.ClientQPN] > 0 && met[e.ClientQPN] == 0 {
			return fmt.Errorf("queue pair %#x was told %d times of congestion that none of its frames met", e.ClientQPN, p.notified[e.ClientQPN])
		}
	}
	sum := 0
	for _, n := range p.marked {
		sum += n
	}
	if p.came > sum+p.Struck() {
		return fmt.Errorf("%d frames met congestion, and %d marks came to the server", sum, p.came)
	}
	return nil
}

// Compare judges the run through the box by its twin on the bare wire: nobody who
// was served there is slowed without bound. A SEND that comes a little earlier than
// on the wire may find no buffer, and wait.
func (w *World) Compare(wire, box *TwinResult) error {
	if box.Ops[Unfinished] > 0 {
		return nil // a refusal was lost, as the law allows; the run had to wait for its end
	}
	// What a queue pair that ended early on the bare wire did not come to do may be
	// done through the box: its steps have times of their own.
	waits, receives, steps := time.Duration(0), time.Duration(0), time.Duration(0)
	for i := range w.Queues {
		q, n := &w.Queues[i], 0
		all := time.Duration(0)
		for _, s := range q.Steps {
			all += s.Think
			if s.Anew && (!w.Managed || q.Unseen) {
				waits += w.Gone
			}
			if s.Op == rnic.OpSend || s.Op == rnic.OpSendInv || s.Op == rnic.OpWriteImm {
				n++
			}
		}
		steps = max(steps, all)
		if q.Receives < n {
			receives = max(receives, time.Duration(n)*rnrWait(q.Far.MinRNRTimer))
		}
	}
	if most := 10*wire.Took + 100*time.Millisecond + waits + receives + steps; box.Took > most {
		return fmt.Errorf("through the box it took %v, %v on the bare wire", box.Took, wire.Took)
	}
	return nil
}
