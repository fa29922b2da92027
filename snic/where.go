package snic

import "github.com/quillon/quillon/nf/clock"

// whereabouts is where a worker has frames of a DAG run, and how far it is on its way to somewhere else: to a peer of the board's pool,
// where the worker is the DAG's home, or to the home.
type whereabouts struct {
	phase phase
	to    site // where its frames went last; not changed while they wait
	was   site // the peer that they went to before: until then it may still answer
	until clock.Time
	since clock.Time // of arriving
	left  clock.Time // when it was last sent away
	out   *outgoing  // while handing: what its tasks know, as far as it is written
}

// site is 0 for here, p+1 for peer p, and -w-1 for worker w.
type site int8

func peerAt(p int) site   { return site(p + 1) }
func workerAt(w int) site { return site(-w - 1) }

// peer is of which peer of the pool this is, and worker of which worker; -1: of none.
func (p site) peer() int   { return max(int(p), 0) - 1 }
func (p site) worker() int { return max(-int(p), 0) - 1 }

// phase is what becomes of a DAG's frames.
type phase uint8

const (
	here      phase = iota // tasks run on them
	held                   // they wait until it is said where they run
	handing                // they wait; when those inside have left, what the tasks know is told
	leaving                // they wait; when those inside have left, it goes to another worker
	launching              // they wait; it is launched here, since its peer is lost
	away                   // they go to another place
	returning              // they still do, while it is launched here
	arriving               // it runs here; they wait until those at the other place have left
)

// elsewhere reports that frames of a DAG do not run through tasks here.
func (s *service) elsewhere() bool { return s.where.phase != here }

// goes reports that frames go to another place now.
func (w *whereabouts) goes() bool { return w.phase == away || w.phase == returning }

// waits reports that frames wait.
func (w *whereabouts) waits() bool { return w.phase != here && !w.goes() }

// coming reports that it is launched here, or was, to come back.
func (w *whereabouts) coming() bool {
	return w.phase == launching || w.phase == returning || w.phase == arriving
}

// underWay reports that a DAG is between two places.
func (w *whereabouts) underWay() bool { return w.phase != here && w.phase != away }

// enter begins a phase.
func (w *whereabouts) enter(p phase) { w.phase, w.out = p, nil }

// turn has frames go to a place from now on. For echo the peer that they went to before may answer.
func (w *whereabouts) turn(now clock.Time, to site) {
	if w.to > 0 && w.to != to {
		w.was, w.until = w.to, now.Add(echo)
	}
	w.to = to
}

// The transitions, from all phases but where another is named.

// hold has frames wait. What is launched here is of no matter any more.
func (w *whereabouts) hold() { w.enter(held) }

// hand has frames wait, and what the tasks know be told. What is at a peer knows nothing here.
func (w *whereabouts) hand() {
	if w.to != 0 {
		w.enter(held)
	} else {
		w.enter(handing)
	}
}

// leave has frames wait for another worker.
func (w *whereabouts) leave() { w.enter(leaving) }

// depart has frames go to another place.
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

// arrive has frames wait, from returning, since it runs here.
func (w *whereabouts) arrive(now clock.Time) {
	w.enter(arriving)
	w.since = now
}

// stay ends the way back where it cannot be launched here: there, or, if that is lost, where frames wait.
func (w *whereabouts) stay() {
	if w.phase == launching {
		w.enter(held)
	} else {
		w.enter(away)
	}
}

// lose ends what is agreed on with a peer: frames wait. What is on its way back is launched here all the same.
func (w *whereabouts) lose(now clock.Time) {
	w.turn(now, 0)
	if w.coming() {
		w.enter(launching)
	} else {
		w.enter(held)
	}
}

// settle has tasks here run on frames.
func (w *whereabouts) settle(now clock.Time) {
	w.turn(now, 0)
	w.enter(here)
}

// answers reports whether a peer may answer frames of a DAG.
func (w *whereabouts) answers(now clock.Time, peer int) bool {
	p := peerAt(peer)
	return w.to == p || w.was == p && now < w.until
}
