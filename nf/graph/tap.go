package graph

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
)

// taps has the taps, the traces, the listener for punted frames, and the filter of the ports: which frames the ports give to
// workers because a tap, a trace or an app wants them. Callers of look, wants and tellPorts hold mu.
type taps struct {
	*current
	traced atomic.Uint32
	looked chan struct{} // a worker has traced all frames of its job: filters may become narrower
	punts  *Tap          // guarded by mu, as filter is
	filter *port.Filter  // the last filter of the ports; nil: not all ports have the same
}

// Frame is a copy of a frame that crossed a tapped link, or was punted.
type Frame struct {
	At      clock.Time     `json:"at"`
	Seq     uint64         `json:"seq,omitempty"` // its number in its capture
	Node    string         `json:"node"`          // where it came from: app or port
	Port    uint16         `json:"port"`          // where it was received
	Queue   uint16         `json:"queue"`
	Verdict packet.Verdict `json:"verdict"`
	App     string         `json:"app,omitempty"` // that gave the reason
	Reason  string         `json:"reason,omitempty"`
	Data    []byte         `json:"data"`
}

// Tap yields copies of frames. Only one goroutine may read it. Workers never wait for
// the reader: Dropped counts the frames for which the buffer has no room.
type Tap struct {
	inst  *current
	rings []*ring
	turn  int
	close func()
}

// Next returns the next frame, or false if none is waiting.
func (t *Tap) Next() (Frame, bool) {
	for range t.rings {
		r := t.rings[t.turn%len(t.rings)]
		t.turn++
		x := r.next()
		if x == nil {
			continue
		}
		f := Frame{At: x.at, Seq: x.Seq, Port: x.Port, Queue: x.Queue, Verdict: x.Verdict, Data: make([]byte, x.n)}
		f.Node = t.inst.name(x.node)
		f.App, f.Reason = t.inst.reason(x.ReasonApp, x.Reason)
		r.read(x, f.Data)
		r.free()
		return f, true
	}
	return Frame{}, false
}

// Dropped returns the number of frames that were not copied because the buffer was full.
func (t *Tap) Dropped() uint64 {
	n := uint64(0)
	for _, r := range t.rings {
		n += r.dropped.Load()
	}
	return n
}

// Close ends the copying.
func (t *Tap) Close() { t.close() }

// Tap copies the frames that cross an edge: "NAME.OUT", an output of an app or the
// "out" of a port, or "NAME.IN", all links that lead to that input. Until the tap is closed, the
// ports also take up frames that no app wants. An edge has one tap at a time. The tap goes on after a Plan that replaces the
// ends of the edge; after a Plan that removes the edge it yields nothing more.
func (i *taps) Tap(at string) (*Tap, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	matches := func(l *link) bool { return l.from+"."+l.out == at }
	if !slices.ContainsFunc(i.graphs[0].links, matches) {
		matches = func(l *link) bool { return l.edge.to+"."+l.edge.in == at }
	}
	if !slices.ContainsFunc(i.graphs[0].links, matches) {
		var known []string
		for _, l := range i.graphs[0].links {
			known = append(known, l.from+"."+l.out, l.edge.to+"."+l.edge.in)
		}
		slices.Sort(known)
		return nil, fmt.Errorf("no link is at %q%s", at, Suggest(at, slices.Compact(known)))
	}
	t := &Tap{inst: i.current}
	busy := false
	for _, w := range i.workers {
		w.do(func() {
			for _, l := range w.graph.links {
				busy = busy || matches(l) && l.tap != nil
			}
		})
	}
	if busy {
		return nil, fmt.Errorf("%s is tapped already", at)
	}
	for _, w := range i.workers {
		r := newRing(tapFrames, tapBytes)
		t.rings = append(t.rings, r)
		w.do(func() {
			for _, l := range w.graph.links {
				if matches(l) {
					l.tap, l.tapped = r, 0
				}
			}
		})
	}
	off := func() {
		for n, w := range i.workers {
			w.do(func() {
				for _, l := range w.graph.links {
					if l.tap == t.rings[n] {
						l.tap = nil
					}
				}
			})
		}
	}
	t.close = func() {
		i.mu.Lock()
		defer i.mu.Unlock()
		off()
		i.look()
	}
	if err := i.tellPorts(); err != nil {
		off()
		i.look()
		return nil, fmt.Errorf("frames that no app wants cannot be looked at: %w", err)
	}
	return t, nil
}

// look sets the ports' filter to what apps, taps and traces want. A port on which that fails keeps its filter until the
// next change.
func (i *taps) look() {
	if !i.closed {
		_ = i.tellPorts()
	}
}

// ErrListening is returned by Listen if there is a listener already.
var ErrListening = errors.New("a controller is listening already")

// Listen returns a Tap of the frames that apps punt, or ErrListening if there is a listener already.
// Without a listener, punted frames are dropped and counted as no-controller.
func (i *taps) Listen() (*Tap, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.punts != nil {
		return nil, ErrListening
	}
	t := &Tap{inst: i.current}
	for _, w := range i.workers {
		r := newRing(tapFrames, tapBytes)
		t.rings = append(t.rings, r)
		w.do(func() { w.punt = r })
	}
	t.close = func() {
		i.mu.Lock()
		defer i.mu.Unlock()
		if i.punts != t {
			return
		}
		for _, w := range i.workers {
			w.do(func() { w.punt = nil })
		}
		i.punts = nil
	}
	i.punts = t
	return t, nil
}

// String describes the frame in one line.
func (f Frame) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %d bytes, %s", f.Node, len(f.Data), f.Verdict)
	if f.Reason != "" {
		b.WriteString(": " + f.App + "." + f.Reason)
	}
	return b.String()
}
