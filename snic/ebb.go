package snic

import (
	"math"
	"slices"
	"sync/atomic"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/snic/region"
)

// A worker may run a DAG whose home is another worker, because the home had too much of it. It gives the DAG back when the home has
// room for all of it. Each worker tells all others its load of each task; the worker that runs the DAG adds the DAG's load to the
// home's, and decides.

const (
	// mostPatience is the longest time, in monitor periods, for which a DAG stays that came back soon after it was given back.
	mostPatience = 64
	// settled is the number of monitor periods after which a worker has measured a DAG that was given back to it: by then a mean over one
	// period contains 98 % of the load.
	settled = 4
	// patient is the number of monitor periods for which a home must have had room before a DAG is given back to it: after a pause of two
	// fifths of a period, a mean over one period takes nearly two periods to show again that there is no room.
	patient = 2
	// trifle is a load, in instances, that is negligible: it may go back to a home whose own load is above
	// region.Under.
	trifle = .01
)

// tide is the load that a worker publishes for the others. Only that worker writes it, except until.
type tide struct {
	// tasks has of each task, by its index in the deployment, the load in instances (the bits of a float32), the number of instances, and the
	// low bits of the deployment's number.
	tasks [maxTasks]atomic.Uint64
	busy  atomic.Uint32 // which part of its time it needs: the bits of a float32
	until atomic.Int64  // no DAG is given back to it before: one was, and is not yet measured there
	_     [48]byte      // the next one is on another line of the processor's cache
}

// thrift says when a DAG that does not run at its home is given back.
type thrift struct {
	since    clock.Time     // the home has had room for it all the time; 0: it has none
	stays    clock.Time     // it stays until then
	patience clock.Duration // for how long it stayed when it came last
}

// came notes that a DAG has come from its home. One that was given back a short time ago stays twice as long as before.
func (t *thrift) came(now, left clock.Time, monitor clock.Duration) {
	if now.Sub(left) < max(2*settled*monitor, 2*t.patience) {
		t.patience = min(2*t.patience, mostPatience*monitor)
	} else {
		t.patience = 0
	}
	t.patience = max(t.patience, monitor)
	t.since, t.stays = 0, now.Add(t.patience)
}

// due notes whether the home has room for a DAG, and reports whether the home has had room for long enough.
func (t *thrift) due(now clock.Time, room bool, monitor clock.Duration) bool {
	if !room {
		t.since = 0
		return false
	}
	if t.since == 0 {
		t.since = now
	}
	return now >= max(t.since.Add(patient*monitor), t.stays)
}

// ebb publishes the load of this worker, and gives back DAGs for which their homes have room. It does so as often as the load of tasks is
// measured.
func (fe *fellows) ebb(now clock.Time) {
	if now < fe.ebbAt {
		return
	}
	fe.ebbAt = now.Add(fe.monitor / samples)
	own := &fe.cat.house.tides[fe.cat.worker]
	for i, n := range fe.cat.taskOf {
		running, load := fe.placing.fabric.Task(n)
		own.tasks[i].Store(uint64(math.Float32bits(float32(load)))<<32 | uint64(uint16(running))<<16 | uint64(uint16(fe.whole.gen)))
	}
	own.busy.Store(math.Float32bits(float32(fe.placing.toil.load)))
	lodged := fe.lodged[:0]
	for _, n := range fe.lodged {
		s := &fe.cat.services[n]
		if !fe.cat.lodges(s) {
			continue
		}
		home := &fe.cat.house.tides[s.lodge.home]
		if s.lodge.thrift.due(now, !fe.cat.house.abroad[n].Load() && fe.hasRoom(home, s), fe.monitor) && home.claim(now, now.Add(settled*fe.monitor)) {
			fe.cat.house.crying[n].Store(false) // that was when there was more
			fe.gave++
			fe.leaveFor(int(n))
			continue
		}
		lodged = append(lodged, n)
	}
	fe.lodged = lodged
}

// lodges reports whether a DAG runs here because its home, another worker, has too much of it.
func (cat *catalog) lodges(s *service) bool {
	return s.UID != 0 && s.lodge.home != cat.worker && s.where.phase == here && s.visits != nil && cat.limited(s)
}

// hasRoom reports whether a worker has room for a DAG's load here in addition to its own load.
func (fe *fellows) hasRoom(home *tide, s *service) bool {
	busy := float64(math.Float32frombits(home.busy.Load()))
	toil, bytes := s.toil*fe.cat.fade(fe.cat.seen.Sub(s.recentAt)), fe.cat.lately(s)
	if fe.cat.seen.Sub(s.recentAt) > fe.monitor {
		toil, bytes = 0, 0 // nothing comes
	}
	if own := toil / float64(fe.monitor); own > trifle && busy+own > region.Under {
		return false
	}
	if fe.placing.backlog(s) > float64(fe.monitor/samples) {
		return false // what waits here would be more than the home can do at once
	}
	for i, n := range fe.cat.taskOf {
		t := &fe.cat.tasks[n]
		if !slices.Contains(s.tasks, n) {
			continue
		}
		cell := home.tasks[i].Load()
		load, running := float64(math.Float32frombits(uint32(cell>>32))), float64(uint16(cell>>16))
		if uint16(cell) != uint16(fe.whole.gen) || running == 0 {
			return false // it does not run there, or nobody knows
		}
		if own := float64(t.work(bytes)) / float64(fe.monitor); t.Throughput > 0 && own > trifle && load+own > region.Under*running {
			return false
		}
	}
	return true
}

// claim reserves a worker until a time: nobody gives another DAG back to it before. False: a DAG was given back a short time ago.
func (t *tide) claim(now, until clock.Time) bool {
	was := t.until.Load()
	return int64(now) >= was && t.until.CompareAndSwap(was, int64(until))
}
