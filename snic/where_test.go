package snic

import (
	"fmt"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/clock"
)

// TestWhereabouts: after each order of transitions that the pool and the workers can bring about, up to six of them, it is
// known where frames go, and nobody answers but the peer that they go to, or went to a short time ago.
func TestWhereabouts(t *testing.T) {
	const peer = 3
	type step struct {
		name string
		from []phase // nil: all
		do   func(w *whereabouts, now clock.Time)
	}
	stepsOf := func(there site) []step {
		return []step{
			{"hold", []phase{here, held}, func(w *whereabouts, now clock.Time) { w.hold() }},
			{"hand", []phase{here, held, away}, func(w *whereabouts, now clock.Time) {
				if w.hand(); w.phase == handing {
					w.out = &outgoing{}
				}
			}},
			{"leave", []phase{here}, func(w *whereabouts, now clock.Time) { w.leave() }},
			{"depart", []phase{held, handing, leaving, away}, func(w *whereabouts, now clock.Time) { w.depart(now, there) }},
			{"come back", nil, func(w *whereabouts, now clock.Time) { w.comeBack() }},
			{"arrive", []phase{returning}, func(w *whereabouts, now clock.Time) { w.arrive(now) }},
			{"stay", []phase{returning, arriving, launching}, func(w *whereabouts, now clock.Time) { w.stay() }},
			{"lose", []phase{held, away, returning, arriving}, func(w *whereabouts, now clock.Time) { w.lose(now) }},
			{"settle", nil, func(w *whereabouts, now clock.Time) { w.settle(now) }},
		}
	}
	met := map[phase]bool{}
	var all func(w whereabouts, now, sent clock.Time, path string, there site, left int)
	all = func(w whereabouts, now, sent clock.Time, path string, there site, left int) {
		met[w.phase] = true
		for rule, holds := range map[string]bool{
			"frames go somewhere":                        !w.goes() || w.to == there,
			"those of one that runs here go nowhere":     w.phase != here && w.phase != launching || w.to == 0,
			"they run, wait or go":                       (w.phase == here) != (w.waits() != w.goes()),
			"what runs, or is away, is not on its way":   w.underWay() == (w.phase != here && w.phase != away),
			"what is told is told while it is handed":    (w.out != nil) == (w.phase == handing),
			"the peer answers, and only it":              there < 0 || w.answers(now, peer) == (w.to == there || now < sent.Add(echo)) && !w.answers(now, peer+1),
			"no peer answers for a worker":               there > 0 || !w.answers(now, peer) && !w.answers(now, 0),
			"only what ran here is told":                 w.phase != handing || w.to == 0,
			"it waits for others where there are others": w.phase != arriving || w.to == there,
		} {
			if !holds {
				t.Errorf("%s: not so that %s: %+v", path, rule, w)
			}
		}
		if left == 0 || t.Failed() {
			return
		}
		for _, s := range stepsOf(there) {
			ok := s.from == nil
			for _, p := range s.from {
				ok = ok || p == w.phase
			}
			for _, wait := range []time.Duration{time.Millisecond, echo} {
				if next, at := w, now.Add(wait); ok {
					s.do(&next, at)
					last := sent
					if w.to > 0 && next.to == 0 {
						last = at
					}
					all(next, at, last, fmt.Sprintf("%s, %s", path, s.name), there, left-1)
				}
			}
		}
	}
	for _, there := range []site{peerAt(peer), workerAt(peer), workerAt(0)} {
		if there.peer() >= 0 == (there.worker() >= 0) {
			t.Errorf("%d is a peer and a worker, or none", there)
		}
		steps := 6
		if testing.Short() {
			steps = 5
		}
		all(whereabouts{}, clock.Time(2*echo), 0, "here", there, steps)
	}
	if len(met) != int(arriving)+1 {
		t.Errorf("only phases %v were met", met)
	}
}
