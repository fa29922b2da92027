package xdp

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/cilium/ebpf"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/p4"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/port/afxdp"
)

// Kind returns the declaration of p4.Kind, for apps whose frames the kernel may run.
func Kind() *graph.Kind {
	return p4.KindAhead(func(must bool, fail string) p4.Ahead { return &kernel{must: must, fail: fail} })
}

// kernel implements p4.Ahead. A goroutine translates, loads and attaches a program, which takes about a tenth
// of a second; meanwhile the app runs all frames. When the program is ready, the app's worker calls Begin. The
// kernel therefore runs frames either by the program that the app has, or not at all.
type kernel struct {
	must  bool
	fail  string    // what is to be when the process has died
	ports *surveyed // nil: it was told none
	left  *surveyed // that it had when it left
	sw    *p4.Switch
	run   *running        // that follows sw; nil: none does
	why   string          // why none does
	down  map[uint32]bool // ports without a link
	// Frames of programs that have ended.
	finished, given, dropped uint64
	waits                    succession

	turn  atomic.Uint64 // grows when what is to be run changes
	ready atomic.Pointer[built]

	mu       sync.Mutex // held while a program is built and attached; guards what follows
	attached *running
}

// running is a program that is attached to interfaces.
type running struct {
	x     *Executor
	ports []*afxdp.Port // one of each interface
	to    []receiver    // that frames are sent to
	stop  func()        // of afxdp.Watch; nil: it is not attached
	stays bool
	// waits says that it is not attached yet: the program of a process that was killed goes on, with the entries that it
	// had, until the Switch has its own.
	waits bool
}

// built is the result of an attempt to build a program.
type built struct {
	turn  uint64
	run   *running
	err   error
	first bool // of a start: what the Switch has by now is all that it begins with
}

// receiver is a port of the program, and the interface that it is.
type receiver struct {
	n uint32
	afxdp.Receiver
}

// surveyed holds the interfaces of an app whose frames the kernel can run.
type surveyed struct {
	from  []*afxdp.Port // one of each interface
	to    []receiver
	o     Options
	shown []shownPort
	left  []string // why others are left out
}

// shownPort is a port of the program whose frames the kernel runs.
type shownPort struct {
	Port      uint32 `json:"port"`
	Interface string `json:"interface"`
	From      bool   `json:"from"` // frames that come in there
	To        bool   `json:"to"`   // frames to it
}

// survey finds the interfaces that can be used.
func survey(from, to map[int][]port.Port) *surveyed {
	s := &surveyed{o: Options{To: map[uint32]Target{}}}
	shown := map[string]*shownPort{}
	show := func(n int, name string) *shownPort {
		key := fmt.Sprint(n, name)
		if shown[key] == nil {
			shown[key] = &shownPort{Port: uint32(n), Interface: name}
		}
		return shown[key]
	}
	why := map[string]bool{}
	each := func(ports map[int][]port.Port, f func(n int, p *afxdp.Port, i afxdp.Interface) error) {
		for _, n := range slices.Sorted(maps.Keys(ports)) {
			seen := map[int]bool{}
			for _, q := range ports[n] {
				p, i, err := usable(q)
				if err == nil && !seen[i.Index] {
					seen[i.Index] = true
					err = f(n, p, i)
				}
				if err != nil && !why[err.Error()] {
					why[err.Error()] = true
					s.left = append(s.left, err.Error())
				}
			}
		}
	}
	each(from, func(n int, p *afxdp.Port, i afxdp.Interface) error {
		s.from = append(s.from, p)
		s.o.From = append(s.o.From, Source{Index: i.Index, Port: uint32(n)})
		show(n, i.Name).From = true
		return nil
	})
	each(to, func(n int, p *afxdp.Port, i afxdp.Interface) error {
		if err := p.Receives(); err != nil {
			return err
		}
		// The kernel takes no longer ones: an Ethernet header and a tag beside the MTU.
		s.to = append(s.to, receiver{uint32(n), afxdp.Receiver{Port: p, Longest: i.MTU + 14}})
		s.o.To[uint32(n)] = Target{Index: i.Index, Longest: i.MTU + 14 + 4}
		show(n, i.Name).To = true
		return nil
	})
	for _, key := range slices.Sorted(maps.Keys(shown)) {
		s.shown = append(s.shown, *shown[key])
	}
	return s
}

// usable returns a port as an AF_XDP port, or an error if its interface cannot have a program of an Executor.
func usable(q port.Port) (*afxdp.Port, afxdp.Interface, error) {
	p, ok := q.(*afxdp.Port)
	if !ok {
		name, _, _ := strings.Cut(q.Name(), ":")
		return nil, afxdp.Interface{}, fmt.Errorf("port %s is not of kind afxdp", name)
	}
	i := p.Interface()
	switch {
	case !i.Alone:
		return nil, i, fmt.Errorf("%s is one of a pair: give it without pair=", i.Name)
	case !i.Native:
		return nil, i, fmt.Errorf("%s has generic XDP", i.Name)
	}
	return p, i, nil
}

// err returns the reason why the kernel can run no frame, or nil if it can run some.
func (s *surveyed) err() error {
	if len(s.o.From) > 0 && len(s.o.To) > 0 {
		return nil
	}
	if len(s.left) == 0 {
		return errors.New("no port is linked to the app, with nothing between")
	}
	return errors.New(strings.Join(s.left, "; "))
}

// Join implements p4.Ahead.
func (k *kernel) Join(from, to map[int][]port.Port, now clock.Time, wait bool) error {
	ports := survey(from, to)
	switch {
	case k.ports == nil:
		if err := ports.err(); err != nil && k.must {
			return err
		}
	case slices.Equal(ports.from, k.ports.from) && reflect.DeepEqual(ports.o, k.ports.o):
		return nil
	}
	if k.ports != nil {
		k.ports.leave(k, ports.from)
	}
	k.ports = ports
	for _, p := range ports.from {
		if err := p.Outlive(k, k.outlives()); err != nil && !errors.Is(err, port.ErrClosed) {
			return fmt.Errorf("fail=%s: %w", k.fail, err)
		}
	}
	j := k.begin()
	if j == nil {
		return nil
	}
	j.first = wait
	if !wait {
		go j.build()
		return nil
	}
	j.build()
	b := k.ready.Load()
	k.Look(now)
	if k.must {
		return b.err
	}
	return nil
}

// outlives reports whether something stays at the interfaces when the process dies.
func (k *kernel) outlives() bool { return k.fail == p4.FailClosed || k.fail == p4.FailHeadless }

// leave has the interfaces not outlive the process any more, but for those that stay.
func (s *surveyed) leave(k *kernel, stay []*afxdp.Port) {
	for _, p := range s.from {
		if !slices.Contains(stay, p) {
			_ = p.Outlive(k, false)
		}
	}
}

// rest frees interfaces that the process before had, too, which was killed, if its program is gone from those of s.
func (s *surveyed) rest() {
	if s != nil && len(s.from) > 0 {
		go func(all []*afxdp.Port) {
			for _, p := range all {
				_ = afxdp.FreeRest(p)
			}
		}(s.from)
	}
}

// goesOn reports whether the program of a process that was killed runs frames of the interfaces.
func (s *surveyed) goesOn() bool {
	return s != nil && slices.ContainsFunc(s.from, func(p *afxdp.Port) bool { left, _ := p.Left(); return left != nil })
}

// isOf reports whether no other kernel has had the interfaces outlive the process since k has.
func (s *surveyed) isOf(k *kernel) bool {
	return !slices.ContainsFunc(s.from, func(p *afxdp.Port) bool { by := afxdp.OutlivesFor(p); return by != nil && by != any(k) })
}

// Use implements p4.Ahead.
func (k *kernel) Use(sw *p4.Switch) {
	k.sw = sw
	if j := k.begin(); j != nil {
		go j.build()
	}
}

const whyNoProgram = "there is no program yet"

// job is a program that is to be built and attached.
type job struct {
	*kernel
	turn  uint64
	sw    *p4.Switch // only what never changes of it may be asked
	ports *surveyed
	first bool // an error ends the start
}

// begin stops what runs, and returns the job for what should run; nil: nothing can.
func (k *kernel) begin() *job {
	turn := k.turn.Add(1)
	k.stop()
	switch {
	case k.ports == nil:
		k.why = "the ports are not known yet"
		return nil
	case k.sw == nil:
		k.why = whyNoProgram
		return nil
	}
	k.why = "the program is being translated and loaded"
	return &job{kernel: k, turn: turn, sw: k.sw, ports: k.ports}
}

// stop gives all frames to the app.
func (k *kernel) stop() {
	if k.run == nil {
		return
	}
	if k.waits.begun {
		k.mu.Lock() // until it is attached
		k.waits.on = k.ready.Load() == nil
		k.mu.Unlock()
	}
	if k.waits.on {
		k.run.x.old.disown(k.run.x)
		k.run.x.End()
	} else {
		k.run.x.End()
		finished, given, dropped, _ := k.run.x.sums()
		k.finished, k.given, k.dropped = k.finished+finished, k.given+given, k.dropped+dropped
	}
	k.run, k.waits = nil, succession{}
}

// build makes the program and attaches it.
func (j *job) build() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.kernel.turn.Load() != j.turn {
		return // another one is to run
	}
	next, err := j.make()
	if err == nil && !next.waits {
		err = next.attach()
	}
	if err != nil {
		_ = next.close()
		next = nil
		if !j.first || !j.must { // the engine takes over
			(&running{ports: j.ports.from}).free()
		}
	}
	old := j.attached
	j.attached = next
	_ = old.leave(next)
	j.ready.Store(&built{j.turn, next, err, j.first})
}

func (j *job) make() (*running, error) {
	if err := j.ports.err(); err != nil {
		return nil, err
	}
	tree, err := j.sw.Program().Tree()
	if err != nil {
		return nil, err
	}
	o := j.ports.o
	o.Outlives, o.Source = j.outlives(), j.sw.Program().Source()
	if j.fail == p4.FailHeadless {
		o.Name = afxdp.StayProgram
	}
	if o.Outlives {
		for _, p := range j.ports.from {
			if _, maps := p.Left(); maps != nil {
				o.Left = maps
				break
			}
		}
	}
	var x *Executor
	// An interface's index is that of a namespace, which the goroutine may not be in.
	err = j.ports.from[0].Within(func() (err error) {
		x, err = New(tree, j.sw.Config(), o)
		return err
	})
	if err != nil {
		return nil, oneLine(err)
	}
	return &running{x: x, ports: j.ports.from, to: j.ports.to, stays: j.fail == p4.FailHeadless, waits: x.old != nil}, nil
}

// oneLine returns the first line of an error; the verifier's errors have many.
func oneLine(err error) error {
	first, _, _ := strings.Cut(err.Error(), "\n")
	return errors.New(first)
}

// attach attaches the program to its interfaces.
func (r *running) attach() error {
	for i, p := range r.ports {
		err := p.SetFront(&afxdp.Front{Program: r.x.prog, Own: func(own *ebpf.Program) error { return r.x.Own(i, own) }, Watch: func(watched bool) { r.x.Watch(i, watched) }, Stays: r.stays})
		if err != nil {
			r.free()
			return err
		}
	}
	var to []afxdp.Receiver
	for _, x := range r.to {
		to = append(to, x.Receiver)
	}
	r.stop = afxdp.Watch(to, func(lost []error) {
		all := map[uint32]error{}
		for i, err := range lost {
			if err != nil {
				all[r.to[i].n] = err
			}
		}
		r.x.Lose(all)
	})
	return nil
}

// free takes programs off the interfaces, also what a process that was killed has left there.
func (r *running) free() {
	for _, p := range r.ports {
		_ = p.SetFront(nil)
	}
}

// leave detaches the program from the interfaces that next has not taken over, and closes it.
func (r *running) leave(next *running) error {
	if r == nil {
		return nil
	}
	if r.stop != nil {
		r.stop()
	}
	var errs []error
	for _, p := range r.ports {
		if next != nil && slices.ContainsFunc(next.ports, func(q *afxdp.Port) bool { return q.Interface().Index == p.Interface().Index }) {
			continue
		}
		if err := p.SetFront(nil); !errors.Is(err, port.ErrClosed) {
			errs = append(errs, err)
		}
	}
	return errors.Join(append(errs, r.close())...)
}

func (r *running) close() error {
	if r == nil {
		return nil
	}
	return r.x.Close()
}

// Look implements p4.Ahead.
func (k *kernel) Look(now clock.Time) {
	if k.run != nil {
		k.run.x.Now(now.Sub(k.sw.Config().Start))
		k.wait(now)
		if !k.waits.on {
			again(k.run.x, now)
		}
	}
	b := k.ready.Swap(nil)
	if b == nil || b.turn != k.turn.Load() {
		return
	}
	defer k.ports.rest()
	if b.err != nil {
		if run := k.run; run != nil { // it could not be attached
			k.waits = succession{} // the program before is gone, too, and its counts are this one's
			k.stop()
			k.mu.Lock()
			defer k.mu.Unlock()
			k.attached = nil
			_ = run.close()
		}
		k.why = b.err.Error()
		return
	}
	if b.run == k.run { // it is attached now
		k.why, k.waits = "", succession{}
		k.run.x.settle()
		return
	}
	k.run, k.why = b.run, ""
	k.Links(k.down)
	k.run.x.Begin(k.sw, now)
	if b.run.waits {
		k.waits, k.why = succession{on: true, any: !b.first, changes: k.run.x.changes, since: now, first: now}, whyHeadless
		if k.run.x.old.foreign {
			k.waits.any = k.waits.any || hasOwn(k.run.x)
			k.why = whyVersion
		}
		k.wait(now)
	}
}

const whyHeadless = "the program of a process that has died goes on with the entries that it had, until this process has some of its own"

// whyVersion is whyHeadless of a program that another version of quillon has made.
const whyVersion = whyHeadless + "; another version of quillon has left it, so its counts and registers end with it"

// succession is what a program waits for that is to take the place of one that a process which was killed has left.
type succession struct {
	on      bool
	begun   bool   // it is being attached
	any     bool   // the Switch was changed
	changes uint64 // what the Executor was told
	since   clock.Time
	first   clock.Time // since when the Switch is being changed
}

// settled is for how long a Switch has no change when its controller has said all. A controller that does not say again
// what the program before had takes longer: settledLess.
const (
	settled     = clock.Duration(500 * 1e6)
	settledLess = clock.Duration(5 * 1e9)
	settledMost = 2 * settledLess // of one that never stops
)

// wait attaches a program in the place of the one before when its entries are there.
func (k *kernel) wait(now clock.Time) {
	w := &k.waits
	if !w.on || w.begun {
		return
	}
	if n := k.run.x.changes; n != w.changes {
		if !w.any {
			w.first = now
		}
		w.any, w.changes, w.since = true, n, now
	}
	lacks := k.run.x.old.lacks(k.run.x)
	quiet := now.Sub(w.since)
	long := w.any && now.Sub(w.first) > settledMost
	if !long && (w.any && quiet < settled || lacks && (!w.any || quiet < settledLess)) {
		return
	}
	w.begun = true
	run, turn := k.run, k.turn.Load()
	go func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.turn.Load() != turn {
			return
		}
		k.ready.Store(&built{turn, run, run.attach(), false})
	}()
}

// Links implements p4.Ahead.
func (k *kernel) Links(down map[uint32]bool) {
	k.down = down
	if k.run != nil {
		k.run.x.Links(down)
	}
}

// Leave implements p4.Ahead.
func (k *kernel) Leave() {
	k.turn.Add(1)
	waited := k.waits.on
	k.stop()
	k.mu.Lock()
	defer k.mu.Unlock()
	if waited && k.ports != nil && k.ports.isOf(k) { // else another kernel waits for the same program now
		waited = false
	}
	if waited {
		_ = k.attached.close()
	} else {
		_ = k.attached.leave(nil)
	}
	if k.ports != nil {
		if !waited {
			(&running{ports: k.ports.from}).free()
		}
		for _, p := range k.ports.from {
			afxdp.Yield(p, k)
		}
	}
	k.attached, k.ports, k.left, k.why = nil, nil, k.ports, "it has ended"
}

// Left implements p4.Ahead: interfaces that no other kernel has outlive the process do not do so any more.
func (k *kernel) Left() {
	if k.left != nil {
		k.left.leave(k, nil)
		k.left.rest()
	}
}

// Running is what an app's report shows about the frames that the kernel runs.
type Running struct {
	// Runs says that the kernel runs frames. If it is false, Why is the reason.
	Runs bool   `json:"runs"`
	Why  string `json:"why,omitempty"`
	// Headless says that the program of a process that has died goes on with the entries that it had, until this
	// process has some.
	Headless bool `json:"headless,omitempty"`
	// Finished counts frames that came to their end in the kernel, Given those that went to the engine, since
	// the program was loaded. Share is the part of finished frames.
	Finished uint64  `json:"finished"`
	Given    uint64  `json:"given"`
	Share    float64 `json:"share"`
	// Outcomes are the kinds of ends that frames had.
	Outcomes []Outcome `json:"outcomes,omitempty"`
	// Ports are the program's ports whose frames the kernel runs; LeftOut says why other ports are left out.
	Ports   []shownPort `json:"ports,omitempty"`
	LeftOut []string    `json:"left_out,omitempty"`
	// Stopped are the tables whose frames go to the engine because not all of their entries can be in the
	// kernel, with the reason.
	Stopped map[string]string `json:"stopped,omitempty"`
}

// Warns returns a warning if the engine runs all frames, with the reason.
func (r Running) Warns() string {
	switch {
	case r.Runs, r.Why == whyNoProgram:
		return ""
	case r.Headless:
		return r.Why
	}
	return "the engine runs all frames: " + r.Why
}

// Counts implements p4.Ahead.
func (k *kernel) Counts() (finished, given, dropped uint64) {
	if k.run != nil && !k.waits.on { // else they are those of the program before, until it is followed
		finished, given, dropped, _ = k.run.x.sums()
	}
	return k.finished + finished, k.given + given, k.dropped + dropped
}

// sums returns the number of frames that came to their end in the kernel, of those that went to the engine, and of those
// that should have gone there when there was none.
func (x *Executor) sums() (finished, given, dropped uint64, err error) {
	all, err := x.Outcomes()
	for _, o := range all {
		switch {
		case o.Engine:
			given += o.Frames
		case o.Name == outcomeNames[HeadlessDropped]:
			dropped = o.Frames
		case o.Name != outcomeNames[UnknownPort]:
			finished += o.Frames
		}
	}
	return finished, given - dropped, dropped, err
}

// Report implements p4.Ahead.
func (k *kernel) Report() any {
	r := Running{Why: k.why}
	if k.ports != nil {
		r.Ports, r.LeftOut = k.ports.shown, k.ports.left
	}
	if k.run == nil {
		if r.Headless = k.why == whyNoProgram && k.ports.goesOn(); r.Headless {
			r.Why = whyHeadless
		}
		return r
	}
	r.Runs, r.Headless = !k.waits.on, k.waits.on
	if lost := k.run.x.Lost(); len(lost) > 0 {
		r.LeftOut = append(slices.Clone(r.LeftOut), lost...)
	}
	all, err := k.run.x.Outcomes()
	if err != nil {
		r.Why = err.Error()
		return r
	}
	r.Finished, r.Given, _, _ = k.run.x.sums()
	for _, o := range all {
		if o.Frames > 0 {
			r.Outcomes = append(r.Outcomes, o)
		}
	}
	if n := r.Finished + r.Given; n > 0 {
		r.Share = float64(r.Finished) / float64(n)
	}
	if s := shownStops(k.run.x); len(s) > 0 {
		r.Stopped = s
	}
	return r
}
