package snic

import "github.com/quillon/quillon/nf/clock"

// whereabouts says where a worker lets frames of a DAG run, and how far the DAG is on its way to another placing: to a peer of the board's
// pool, if the worker is the DAG's home, or else to the home.
type whereabouts struct {
	phase phase
	to    site // where its frames went last; not changed while they wait
	was   site // the peer that they went to before, which may still answer for some time
	until clock.Time
	since clock.Time // of arriving
	left  clock.Time // when it was last sent away
	out   *outgoing  // while handing: the state of its tasks, as far as it is written
}

// site is 0 for here, p+1 for peer p, and -w-1 for worker w.
type site int8

func peerAt(p int) site   { return site(p + 1) }
func workerAt(w int) site { return site(-w - 1) }

// peer is the number of the peer at a site, and worker that of the worker; -1: none.
func (p site) peer() int   { return max(int(p), 0) - 1 }
func (p site) worker() int { return max(-int(p), 0) - 1 }

// phase says what happens to a DAG's frames.
type phase uint8

const (
	here      phase = iota // tasks run on them
	held                   // they wait until it is said where they run
	handing                // they wait; when those inside have left, the state of the tasks is sent
	leaving                // they wait; when those inside have left, the DAG goes to another worker
	launching              // they wait; the DAG is launched here, because its peer is lost
	away                   // they go elsewhere
	returning              // they go elsewhere, while the DAG is launched here
	arriving               // the DAG runs here; they wait until those elsewhere have left
)

// elsewhere reports whether frames of a DAG do not run through tasks here.
func (s *service) elsewhere() bool { return s.where.phase != here }

// goes reports whether frames go elsewhere now.
func (w *whereabouts) goes() bool { return w.phase == away || w.phase == returning }

// waits reports whether frames wait.
func (w *whereabouts) waits() bool { return w.phase != here && !w.goes() }

// coming reports whether a DAG is being launched here, or was, to come back.
func (w *whereabouts) coming() bool {
	return w.phase == launching || w.phase == returning || w.phase == arriving
}

// underWay reports whether a DAG is on its way.
func (w *whereabouts) underWay() bool { return w.phase != here && w.phase != away }

// enter begins a phase.
func (w *whereabouts) enter(p phase) { w.phase, w.out = p, nil }

// turn sends frames elsewhere from now on. For the time echo the peer that they went to before may still answer.
func (w *whereabouts) turn(now clock.Time, to site) {
	if w.to > 0 && w.to != to {
		w.was, w.until = w.to, now.Add(echo)
	}
	w.to = to
}

// The transitions. They start from any phase, unless one is named.

// hold makes frames wait. A launch here does not matter any more.
func (w *whereabouts) hold() { w.enter(held) }

// hand makes frames wait until the state of the tasks has been sent. A DAG that is at a peer has no state here.
func (w *whereabouts) hand() {
	if w.to != 0 {
		w.enter(held)
	} else {
		w.enter(handing)
	}
}

// leave makes frames wait for another worker.
func (w *whereabouts) leave() { w.enter(leaving) }

// depart sends frames elsewhere.
func (w *whereabouts) depart(now clock.Time, to site) {
	w.turn(now, to)
	w.enter(away)
	w.left = now
}

// comeBack begins the way back, from away. It reports false in another phase.
func (w *whereabouts) comeBack() bool {
	if w.phase != away {
		return false
	}
	w.enter(returning)
	return true
}

// arrive makes frames wait, from returning, because the DAG runs here now.
func (w *whereabouts) arrive(now clock.Time) {
	w.enter(arriving)
	w.since = now
}

// stay ends the way back of a DAG that cannot be launched here: it remains away, or, if its peer is lost, its frames wait.
func (w *whereabouts) stay() {
	if w.phase == launching {
		w.enter(held)
	} else {
		w.enter(away)
	}
}

// lose ends the agreement with a peer: frames wait. A DAG on its way back is launched here all the same.
func (w *whereabouts) lose(now clock.Time) {
	w.turn(now, 0)
	if w.coming() {
		w.enter(launching)
	} else {
		w.enter(held)
	}
}

// settle lets tasks here run on frames.
func (w *whereabouts) settle(now clock.Time) {
	w.turn(now, 0)
	w.enter(here)
}

// answers reports whether a peer may answer frames of a DAG.
func (w *whereabouts) answers(now clock.Time, peer int) bool {
	p := peerAt(peer)
	return w.to == p || w.was == p && now < w.until
}
