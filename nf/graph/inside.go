package graph

import (
	"fmt"
	"maps"
	"slices"
	"sync/atomic"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/journal"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
)

// InsideSpec describes an app that runs inside another app.
type InsideSpec struct {
	Name string
	AppSpec
	// Alone says that the instances of the app do not share their state, whatever the kind says. The outer app gives
	// all frames of the app to the instance in one worker.
	Alone bool
}

// Inside is an app inside another app (the outer app), in one worker. It may have any number of
// instances, which share its counters. Only the outer app calls its methods, on the worker,
// unless a method says otherwise.
//
// A panic of an instance ends the instances of this Inside only: see Over.
type Inside struct {
	Name  string // without that of the outer app
	Kind  *Kind
	Args  Args
	Alone bool // its instances share nothing: InsideSpec and Kind say so

	env   Env
	ctx   *Ctx // of the worker
	node  *node
	outer *node
	spare App // made when the Spec was checked
	apps  []App
	gone  []uint64

	shares atomic.Bool // its instances share state with those of other workers (Env.Share)
	over   bool
	fault  atomic.Pointer[PanicError] // the latest

	closed, bound, guarded, waits bool // see port.Filter
}

// newInside makes the node of an inner app, and one instance, which checks the arguments.
func newInside(env Env, ctx *Ctx, index uint16, outer *node, spec InsideSpec, kind *Kind) (*Inside, error) {
	in := &Inside{Name: spec.Name, Kind: kind, Args: spec.Args, Alone: kind.Alone || spec.Alone, env: env, ctx: ctx, outer: outer}
	if in.Alone && env.Workers > 1 {
		if env.Worker > 0 {
			in.env.Memory = nil // it is the first worker's
		}
		in.env.Worker, in.env.Workers, in.env.Share = 0, 1, (&share{}).get
	} else if env.Workers > 1 {
		in.env.Share = func(make func() any) any {
			in.shares.Store(true)
			return env.Share(make)
		}
	}
	in.node = newNode(env.Name, index, kind, insideApp{in})
	in.node.inside, in.node.owner = in, 2*(uint32(index)+1)
	for n := range in.node.out {
		in.node.out[n] = newLink(edge{from: env.Name, out: kind.Out[n]})
	}
	var err error
	if in.spare, err = in.make(in.env); err == nil {
		f := appWants(in.spare, false)
		in.closed, in.bound, in.guarded, in.waits = f.Closed, f.Bound, f.Guarded, f.Waits
	}
	return in, err
}

// make makes an instance. It may be called from any goroutine.
func (in *Inside) make(env Env) (app App, err error) {
	defer Rescue(&err)
	app, err = in.Kind.New(env, maps.Clone(in.Args))
	if err == nil && HooksOf(app).Inside != nil {
		return nil, fmt.Errorf("%s runs other apps inside, and cannot run inside one", in.Kind.Name)
	}
	return app, err
}

// hooks returns those of one of its instances; of instances that share their state any one knows it.
func (in *Inside) hooks() (h Hooks) {
	switch {
	case len(in.apps) > 0:
		return HooksOf(in.apps[0])
	case in.spare != nil:
		return HooksOf(in.spare)
	}
	return h
}

// Make returns a new instance.
func (in *Inside) Make() (App, error) {
	app := in.spare
	in.spare = nil
	if app == nil {
		var err error
		if app, err = in.make(in.env); err != nil {
			return nil, err
		}
	}
	in.begin(app)
	return app, nil
}

// begin adds an instance.
func (in *Inside) begin(app App) {
	in.over = false
	in.apps = append(in.apps, app)
}

// Anew returns a new instance that shares nothing with the present instances: it and later instances
// get new shared values (Env.Share). With several workers, Anew does what Make does, because the
// instances of other workers still use the shared values.
func (in *Inside) Anew() (App, error) {
	if in.env.Workers == 1 {
		in.spare = nil // the spare may share the values before
		in.env.Share = (&share{}).get
	}
	return in.Make()
}

// Apart splits Anew in two: make makes the instance and may run on any goroutine; take adds the
// instance and must run on the worker.
func (in *Inside) Apart() (make func() (App, error), take func(App)) {
	env := in.env
	if env.Workers == 1 {
		env.Share = (&share{}).get
	}
	make = func() (App, error) { return in.make(env) }
	take = func(app App) {
		in.spare, in.env = nil, env
		in.begin(app)
	}
	return make, take
}

// Remove stops an instance, which emits or drops the frames that it holds (see Holder), and removes it.
// The caller takes the frames that the instance emits.
func (in *Inside) Remove(c *Ctx, app App) {
	at := slices.Index(in.apps, app)
	if at < 0 {
		return
	}
	in.apps = slices.Delete(in.apps, at, at+1)
	if h, ok := app.(Holder); ok {
		left, over := in.apps, in.over
		if !in.Try(func() { h.Stop(c) }) && (insideApp{in}).heldBy(left) == 0 {
			in.apps, in.over = left, over // the other instances go on
		}
	}
}

func (in *Inside) enter(c *Ctx) *node {
	outer := c.node
	c.node = in.node
	return outer
}

// Push gives frames of the outer app to an instance. The instance emits them (Emitted), holds them, or drops or
// punts them (Gone). Push returns false if the instances have ended (Over), or end because this one panics.
func (in *Inside) Push(c *Ctx, app App, input int, b *packet.Batch) (ok bool) {
	c.node.stats.Add(statOut, uint64(b.Len()))
	outer := c.node
	if in.over {
		in.refuse(c, b)
		return false
	}
	owner := in.node.owner
	for _, x := range b.Bufs() {
		x.Owner = owner
	}
	defer in.rescue(outer)
	c.mover.push(in.node, app, input, b)
	c.node = outer
	return true
}

// Emitted returns the number of frames that instances have emitted to an output and that the outer app has not
// taken yet.
func (in *Inside) Emitted(output int) int { return len(in.node.out[output].q) }

// Take moves frames that instances have emitted to an output into b, as many as b has room for, and returns
// their number. The outer app owns them from then on. The outer app must take all frames before the breath ends.
func (in *Inside) Take(c *Ctx, output int, b *packet.Batch) int {
	l := in.node.out[output]
	n := b.Append(l.q)
	for _, x := range l.q[:n] {
		x.Owner = 0
	}
	left := copy(l.q, l.q[n:])
	l.q = l.q[:left]
	c.node.stats.Add(statIn, uint64(n))
	return n
}

// Only returns the frames that instances have emitted to an output and that are not taken yet. It returns nil if frames
// also wait at another output, or if instances have dropped or punted frames since the last call of Gone.
func (in *Inside) Only(output int) []*packet.Buf {
	if len(in.gone) > 0 {
		return nil
	}
	for i, l := range in.node.out {
		if i != output && len(l.q) > 0 {
			return nil
		}
	}
	return in.node.out[output].q
}

// TakeAll gives all frames that instances have emitted to an output to the outer app, which has got them from Only.
func (in *Inside) TakeAll(c *Ctx, output int) {
	l := in.node.out[output]
	for _, x := range l.q {
		x.Owner = 0
	}
	c.node.stats.Add(statIn, uint64(len(l.q)))
	l.q = l.q[:0]
}

// Gone calls f with the tags (packet.Meta.Tag) of frames that instances have dropped or punted since
// the last call. Frames that an instance made have tag 0.
func (in *Inside) Gone(f func(tag uint64)) {
	for _, tag := range in.gone {
		f(tag)
	}
	in.gone = in.gone[:0]
}

// lost notes the tag of a frame that an inner app drops or punts.
func (n *node) lost(b *packet.Buf) {
	if n.inside != nil {
		n.inside.gone = append(n.inside.gone, b.Tag)
	}
}

// Tick runs an instance's timer and returns the time of its next run, or clock.Never if the instance has no
// timer or has ended.
func (in *Inside) Tick(c *Ctx, app App) (next clock.Time) {
	next = clock.Never
	t, ok := app.(Ticker)
	if !ok || in.over {
		return next
	}
	outer := in.enter(c)
	defer in.rescue(outer)
	next = max(t.Tick(c), c.now+1)
	c.node = outer
	return next
}

// Woken returns the earliest time that instances have passed to Ctx.Wake since the last call of Woken,
// or clock.Never. The outer app's Tick runs no later than that time.
func (in *Inside) Woken() clock.Time {
	at := in.node.next
	in.node.next = clock.Never
	return at
}

// Flush calls an instance's Flush, because frames went past the instance.
func (in *Inside) Flush(c *Ctx, app App) {
	if f, ok := app.(Flusher); ok {
		in.Try(func() { f.Flush(c) })
	}
}

// insideApp is the App of an inner app's node. It stands for all instances of the inner app.
type insideApp struct{ *Inside }

// Push is never called: no link leads to an app inside, and Inject refuses it.
func (insideApp) Push(*Ctx, int, *packet.Batch) {
	panic("graph: a frame for an app inside another came by a link")
}

// Held returns the number of frames that all instances hold.
func (in insideApp) Held() int { return in.heldBy(in.apps) }

// Stop does nothing: the outer app stops instances, by Remove.
func (insideApp) Stop(*Ctx) {}

func (in insideApp) heldBy(apps []App) (n int) {
	if !in.Try(func() {
		for _, a := range apps {
			if h, ok := a.(Holder); ok {
				n += h.Held()
			}
		}
	}) {
		return 0
	}
	return n
}

// Wants returns a filter that wants no frames, because the outer app names the wanted frames. The filter has
// Closed, Bound and Guarded as the inner app wants them, so that these frames do not cross unseen.
func (in insideApp) Wants() port.Filter {
	return port.Filter{Closed: in.closed, Bound: in.bound, Guarded: in.guarded, Waits: in.waits}
}

// Report returns the reports of all instances that are Reporters.
func (in insideApp) Report() any {
	out := []any{}
	for _, a := range in.apps {
		if r, ok := a.(Reporter); ok {
			in.Try(func() { out = append(out, Report(r)) })
		}
	}
	return out
}

// insides lays out the apps inside an outer app, in one worker. Running inner apps with the same kind and
// arguments stay, unless the outer app is new.
func (i *plans) insides(spec *Spec, name string, outer *node, w int, fresh bool, known *directory, shares map[string]*share) ([]*Inside, error) {
	kind := outer.kind
	if kind.Inside == nil {
		return nil, nil
	}
	fail := func(err error) error { return spec.errAt(path("apps", name), "app %s: %v", name, err) }
	specs, err := kind.Inside(maps.Clone(spec.Apps[name].Args))
	if err != nil {
		return nil, fail(err)
	}
	var out []*Inside
	for n, s := range specs {
		if !ValidName(s.Name) {
			return nil, fail(fmt.Errorf("an app inside is named %q: want letters, digits, _ and -", s.Name))
		}
		if slices.ContainsFunc(specs[:n], func(o InsideSpec) bool { return o.Name == s.Name }) {
			return nil, fail(fmt.Errorf("two apps inside are named %q", s.Name))
		}
		full := name + "/" + s.Name
		k := findKind(i.cfg.Kinds, s.Kind)
		if k == nil {
			var names []string
			for _, x := range i.cfg.Kinds {
				names = append(names, x.Name)
			}
			return nil, fail(fmt.Errorf("%s: unknown kind %q%s", s.Name, s.Kind, Suggest(s.Kind, names)))
		}
		if n := i.graphs[w].node(full); n != nil && !fresh && n.kind.Name == k.Name && n.inside.Alone == (k.Alone || s.Alone) && maps.Equal(n.inside.Args, s.Args) {
			out = append(out, n.inside)
			continue
		}
		for _, arg := range slices.Sorted(maps.Keys(s.Args)) {
			if !slices.ContainsFunc(k.Params, func(p Param) bool { return p.Name == arg }) {
				return nil, fail(fmt.Errorf("%s: %s has no argument %q", s.Name, k.Name, arg))
			}
		}
		if shares[full] == nil {
			shares[full] = &share{}
		}
		env := Env{Name: full, Worker: w, Workers: len(i.workers), Inside: true, Seed: i.cfg.Seed, Share: shares[full].get}
		if i.workers[w].timed {
			env.Clock = i.cfg.Clock
		}
		if i.cfg.Memory != nil {
			env.Memory = func(size int) ([]byte, error) { return i.cfg.Memory(k.kept(full), size) }
		}
		if i.cfg.Journal != nil {
			env.Journal = func(slots int, arrange journal.Arrange) (journal.Journal, error) {
				return i.cfg.Journal(k.kept(full), slots, arrange)
			}
		}
		in, err := newInside(env, &i.workers[w].ctx, known.number(full, k), outer, s, k)
		if err != nil {
			return nil, fail(fmt.Errorf("%s: %w", s.Name, err))
		}
		if n := i.graphs[w].node(full); n != nil {
			in.node.owner = n.owner ^ 1 // differs from the owner of the app that it replaces
		}
		out = append(out, in)
	}
	return out, nil
}
