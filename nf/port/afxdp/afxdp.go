package afxdp

import (
	"cmp"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/internal/xsk"
	"github.com/quillon/quillon/internal/xsk/offload"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/port"
)

// Mode says where the XDP programs run.
type Mode int

const (
	// Auto chooses Native if frames can then also cross in the kernel, and else
	// Generic.
	Auto Mode = iota
	// Native runs the programs in the driver; opening fails if that is not possible.
	Native
	// Generic runs the programs before the network stack, on every interface.
	Generic
)

// Copying says whether frames are copied between the device and packet memory.
type Copying int

const (
	// CopyAuto copies frames only if the driver has no zero-copy.
	CopyAuto Copying = iota
	// CopyAlways copies frames. It is for drivers whose zero-copy is broken.
	CopyAlways
	// CopyNever needs zero-copy, and so native XDP; opening fails without it.
	CopyNever
)

// Fallback says what the program does with frames that no socket takes.
type Fallback int

const (
	// Redirect sends them out of the pair's other interface.
	Redirect Fallback = iota
	// Pass gives them to the kernel. It is for interfaces that are also joined by a bridge.
	Pass
)

// DefaultRing is the default number of entries of a ring. TCP sends more than 1024 frames at once;
// a ring of twice as many loses hardly a frame. Each entry takes four chunks of memory.
const DefaultRing = 2048

// DefaultStale is the default age above which a heartbeat is stale. It is shorter than RoCE's usual
// time-out (67 ms) and than 100 ms, so that frames cross again before the first retransmission, and
// long enough that a busy worker is not taken for a stalled one.
const DefaultStale = 60 * time.Millisecond

// DefaultHold is that age if the filter is Closed. It is longer, because frames that would be
// dropped can as well wait in the ring. It bounds the age of a frame that an app gets after later
// frames were dropped.
const DefaultHold = time.Second

// Options are the options of Open and OpenPair. The zero value has all defaults.
type Options struct {
	// Filter says which frames the graph wants to see; see Port.SetFilter. Nil means all frames.
	Filter *port.Filter
	// Queues is the number of queues to open; 0 means all.
	Queues int
	// Ring is the number of entries of each ring, a power of two; 0 means DefaultRing.
	Ring int
	// Frames is the number of chunks of each UMEM; 0 means 4 * Ring.
	Frames int
	Mode   Mode
	Copy   Copying
	// BusyPoll, if not 0, is the time in microseconds for which the worker polls the device itself.
	BusyPoll int
	// Transient says that the interface vanishes with the process, so that the original settings
	// need not be stored for a later process.
	Transient bool
	// LeaveOffloads has no setting checked or changed.
	LeaveOffloads bool
	// Clock gives the receive times; nil means a new wall clock.
	Clock clock.Clock
	// Stale is the age above which a worker's heartbeat does not count. 0 means DefaultStale for a
	// pair (DefaultHold while its filter is Closed), and no limit for one interface. A negative
	// value means no limit.
	Stale clock.Duration

	hold          clock.Duration // Stale, while the filter is Closed
	seeEverything bool
	afterStep     func(what string) // of what cannot be done at once
}

func (o *Options) step(what string) {
	if o.afterStep != nil {
		o.afterStep(what)
	}
}

func (o *Options) seeAll() bool { return o.seeEverything }

func (o *Options) defaults(stale clock.Duration) error {
	o.Ring = cmp.Or(o.Ring, DefaultRing)
	if o.Ring < 64 || o.Ring > 1<<16 || o.Ring&(o.Ring-1) != 0 {
		return fmt.Errorf("ring of %d entries: it must be a power of two from 64 to 65536", o.Ring)
	}
	o.Frames = cmp.Or(o.Frames, 4*o.Ring)
	if o.Frames < 3*o.Ring {
		return fmt.Errorf("%d frames are too few for rings of %d: at least %d", o.Frames, o.Ring, 3*o.Ring)
	}
	if o.Queues < 0 {
		return fmt.Errorf("%d queues: it must be 0 (all) or more", o.Queues)
	}
	if o.Copy == CopyNever {
		if o.Mode == Generic {
			return errors.New("zero-copy needs native XDP, not generic")
		}
		o.Mode = Native
	}
	if o.Filter == nil {
		o.Filter = &port.Filter{All: true}
	}
	if o.Clock == nil {
		o.Clock = clock.NewWall()
	}
	o.hold = o.Stale
	switch {
	case o.Stale == 0:
		if o.Stale = stale; stale > 0 {
			o.hold = DefaultHold
		}
	case o.Stale < 0:
		o.Stale, o.hold = 0, 0
	case o.Stale < 10*time.Millisecond:
		return fmt.Errorf("a heartbeat limit of %v is too short: at least 10ms", o.Stale)
	}
	return nil
}

// Config describes one interface that is opened alone.
type Config struct {
	// Name is the name of the port in the graph; empty means the interface's name.
	Name      string
	Interface string
	// Index is the port number in the metadata of received frames.
	Index uint16
	Options
}

// Device is one interface that was opened alone: an endpoint, or a port of a graph that does not
// splice interfaces. Frames that the filter does not want go to the kernel's stack.
type Device struct {
	Ports []*Port // index = queue
	dev   *device
	info  Info
	once  sync.Once
	err   error
}

// Open binds all queues of an interface of the calling thread's network
// namespace. The program is removed when the Device is closed or its process ends.
func Open(cfg Config) (_ *Device, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cfg.defaults(0); err != nil {
		return nil, err
	}
	if err := unlockMemory(); err != nil {
		return nil, err
	}
	cfg.Name = cmp.Or(cfg.Name, cfg.Interface)
	mine, err := claims(cfg.Interface)
	if err != nil {
		return nil, err
	}
	defer func() { dropClaims(mine) }()
	d, err := find(cfg.Interface, cfg.Options)
	if err != nil {
		return nil, err
	}
	d.alone = true
	v := &Device{dev: d}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.undo())
		}
	}()
	if d.before != nil && !outlived(d.before) {
		return nil, fmt.Errorf("interface %s is one end of a wire: stop the instance that runs there, or quillon detach the two interfaces", d.name)
	}
	if err := d.prepare(false); err != nil {
		return nil, err
	}
	var mem []memory
	n := d.any
	if cfg.Queues > 0 {
		n = min(n, cfg.Queues)
	}
	for q := range n {
		m, err := newMemory(cfg.Frames, d.mtu)
		if err != nil {
			return nil, err
		}
		mem = append(mem, m)
		if err := d.openPort(q, cfg.Name, cfg.Index, m); err != nil {
			return nil, err
		}
	}
	d.adopt()
	modes := []xsk.Mode{xsk.Native, xsk.Generic}
	switch cfg.Mode {
	case Native:
		modes = modes[:1]
	case Generic:
		modes = modes[1:]
	}
	spec := xsk.ProgramSpec{Filter: *cfg.Filter, Cross: xsk.Pass, Longest: d.mtu + overhead}
	d.closed0 = spec.Filter.Closed
	if d.before != nil {
		err = d.succeed(spec, modes)
	} else {
		err = d.attach(choice{spec, modes}, nil)
	}
	if err != nil {
		return nil, err
	}
	v.Ports = d.ports
	v.info = Info{Interfaces: []InterfaceInfo{d.info()}, Memory: memorySize(mem)}
	if n := d.offloads.Note(); n != "" && !cfg.LeaveOffloads {
		v.info.Notes = append(v.info.Notes, n)
	}
	return v, nil
}

// Info says what was bound.
func (v *Device) Info() Info { return v.info }

// Undo replaces Close for a process that cannot start: what an earlier process left on the interface is there again.
func (v *Device) Undo() error {
	v.once.Do(func() { v.err = v.dev.undo() })
	return v.err
}

// Detach takes the program off, so that frames go to the kernel's stack:
// before the workers stop. Close does it too.
func (v *Device) Detach() error { return v.dev.detach() }

// Close puts everything back. The workers have stopped by then.
func (v *Device) Close() error {
	v.once.Do(func() {
		v.err = errors.Join(v.dev.detach(), v.dev.release())
	})
	return v.err
}

// PairConfig describes two interfaces that are spliced: a bump in the wire.
type PairConfig struct {
	// A and B are the interfaces.
	A, B string
	// NameA and NameB are the names of the ports in the graph; empty means the interfaces' names.
	NameA, NameB string
	// IndexA and IndexB are the port numbers in the metadata of received frames.
	IndexA, IndexB uint16
	// Fallback applies to frames that the filter does not want, or that no live worker takes.
	Fallback Fallback
	// Keep has Close leave the wire, so that frames cross in the kernel until a
	// pair is opened again, or Detach is called.
	Keep bool
	// Later has the programs attached by Attach, and not by OpenPair.
	Later bool
	// Separate gives each interface of a queue a UMEM of its own, so that
	// frames are copied between them. See the package's description.
	Separate bool
	Options

	bare bool // no sockets: Wire
}

// Pair is two spliced interfaces.
type Pair struct {
	// A and B are the ports; their index is the queue. One worker has A[i] and B[i]. An interface with more receive queues
	// than the other one has queues has more ports. Any worker may serve those.
	A, B []*Port
	a, b *device
	keep bool
	info Info

	mu       sync.Mutex
	claims   []claim      // until Attach
	join     func() error // to be done by Attach; nil: it is
	detached bool
	held     Held // by Detach
	once     sync.Once
	err      error
}

// OpenPair splices two interfaces of the calling thread's network namespace.
// It takes over a wire that an earlier process left, without losing a frame.
// Frames cross in the kernel until a worker first calls Rx. If OpenPair fails, it undoes
// what it has done.
//
// With PairConfig.Later, OpenPair does not change the path of frames until Attach: they cross the
// wire that an earlier process left, or do not cross. The caller may bind queue pairs and guard words
// (port.Binder, port.Guarder) before Attach; frames to these never cross the new wire.
func OpenPair(cfg PairConfig) (*Pair, error) {
	w, err := openPair(cfg)
	if errors.Is(err, unix.EOPNOTSUPP) && cfg.Copy == CopyAuto {
		// Sockets that share memory all are zero-copy when the first of them is,
		// which the other interface may not be able to.
		cfg.Copy = CopyAlways
		return openPair(cfg)
	}
	return w, err
}

func openPair(cfg PairConfig) (_ *Pair, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cfg.defaults(DefaultStale); err != nil {
		return nil, err
	}
	if cfg.A == cfg.B {
		return nil, fmt.Errorf("a pair needs two interfaces, not %s twice", cfg.A)
	}
	if err := unlockMemory(); err != nil {
		return nil, err
	}
	cfg.NameA = cmp.Or(cfg.NameA, cfg.A)
	cfg.NameB = cmp.Or(cfg.NameB, cfg.B)
	w := &Pair{keep: cfg.Keep}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.abort())
		}
	}()
	if w.claims, err = claims(cfg.A, cfg.B); err != nil {
		return nil, err
	}
	if w.a, err = find(cfg.A, cfg.Options); err != nil {
		return nil, err
	}
	if w.b, err = find(cfg.B, cfg.Options); err != nil {
		return nil, err
	}
	if w.a.index == w.b.index {
		return nil, fmt.Errorf("a pair needs two interfaces; %s and %s are one", cfg.A, cfg.B)
	}
	for _, d := range []*device{w.a, w.b} {
		if d.before != nil && outlived(d.before) {
			return nil, fmt.Errorf("interface %s has a program of an instance that was killed, which was no pair: quillon detach %s", d.name, d.name)
		}
	}
	w.a.other, w.b.other = w.b, w.a
	w.b.bound = w.a.bound
	both := []*device{w.a, w.b}
	resumed := w.a.before != nil && w.b.before != nil
	for _, d := range both {
		if err := d.noOther(); err != nil {
			return nil, err
		}
		if err := d.prepare(true); err != nil {
			return nil, err
		}
	}
	w.info = Info{Resumed: resumed, SharedMemory: !cfg.Separate, Wire: true}
	progA, progB := w.choose(w.a, cfg), w.choose(w.b, cfg)
	if err := w.resume(progA, progB); err != nil {
		return nil, err
	}
	n := min(w.a.any, w.b.any)
	if cfg.Queues > 0 {
		n = min(n, cfg.Queues)
	}
	if cfg.Queues > n {
		w.info.Notes = append(w.info.Notes, fmt.Sprintf("%s and %s have only %d of the %d queues that were asked for (ethtool -L)", cfg.A, cfg.B, n, cfg.Queues))
	}
	if cfg.bare {
		n = 0
	}
	if err := w.openQueues(cfg, n); err != nil {
		return nil, err
	}
	for _, d := range both {
		d.adopt()
	}
	w.A, w.B = w.a.ports, w.b.ports
	w.join = func() error { return w.joined(cfg, progA, progB) }
	if !cfg.Later {
		if err := w.Attach(); err != nil {
			return nil, err
		}
	}
	return w, nil
}

// openQueues opens n queues of both interfaces, and the receive queues that one interface has beyond n, up to cfg.Queues.
// Each of these has a UMEM of its own, because any worker may serve it.
func (w *Pair) openQueues(cfg PairConfig, n int) error {
	mtu := max(w.a.mtu, w.b.mtu)
	var mem []memory
	open := func(d *device, q int, name string, index uint16, shared bool) error {
		if !shared {
			m, err := newMemory(cfg.Frames, mtu)
			if err != nil {
				return err
			}
			mem = append(mem, m)
		}
		return d.openPort(q, name, index, mem[len(mem)-1])
	}
	rxA, rxB := max(n, w.a.rx), max(n, w.b.rx)
	switch {
	case cfg.bare:
		rxA, rxB = 0, 0
	case cfg.Queues > 0:
		rxA, rxB = max(n, min(rxA, cfg.Queues)), max(n, min(rxB, cfg.Queues))
	}
	for q := range max(rxA, rxB) {
		if q < rxA {
			if err := open(w.a, q, cfg.NameA, cfg.IndexA, false); err != nil {
				return err
			}
		}
		if q < rxB {
			if err := open(w.b, q, cfg.NameB, cfg.IndexB, q < n && !cfg.Separate); err != nil {
				return err
			}
		}
	}
	w.info.Memory = memorySize(mem)
	return nil
}

// Attach attaches the programs of a Pair that was opened with PairConfig.Later, and else does
// nothing. If it fails, Close leaves everything as it was before OpenPair.
func (w *Pair) Attach() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.join == nil || w.detached {
		return nil
	}
	if err := offload.Within(w.a.ns, w.join); err != nil {
		return err
	}
	w.join = nil
	w.unclaim()
	return nil
}

// unclaim drops the claims, so that other processes can open the interfaces.
func (w *Pair) unclaim() {
	dropClaims(w.claims)
	w.claims = nil
}

// joined attaches the programs, unless those of an earlier process stay, and fills in w.info.
func (w *Pair) joined(cfg PairConfig, progA, progB choice) error {
	if !w.a.resumed {
		progA.spec.Filter, progB.spec.Filter = w.a.wants(), w.b.wants()
		if err := w.attach(progA, progB); err != nil {
			return err
		}
	}
	for _, d := range []*device{w.a, w.b} {
		// By now its program has what to put back.
		if err := d.forget(offload.Record{}); err != nil {
			return err
		}
		i := d.info()
		w.info.Interfaces = append(w.info.Interfaces, i)
		if n := d.offloads.Note(); n != "" && !cfg.LeaveOffloads {
			w.info.Notes = append(w.info.Notes, n)
		}
		if len(i.Unopened) > 0 && !cfg.bare {
			w.info.Notes = append(w.info.Notes, fmt.Sprintf("no function sees frames that come in on receive queues %d to %d of %s: they %s; open all queues, or give it fewer (ethtool -L)",
				i.Unopened[0], d.rx-1, d.name, unseen(d.spec)))
		}
	}
	if long, short := w.a, w.b; long.mtu != short.mtu {
		if long.mtu < short.mtu {
			long, short = short, long
		}
		w.info.Notes = append(w.info.Notes, fmt.Sprintf("%s has an MTU of %d, %s of only %d: longer frames cannot cross; give both the same (ip link set %s mtu %d)",
			long.name, long.mtu, short.name, short.mtu, short.name, long.mtu))
	}
	return nil
}

// unseen says what becomes of frames that no socket takes.
func unseen(spec xsk.ProgramSpec) string {
	away := "cross in the kernel"
	if spec.Cross == xsk.Pass {
		away = "go to the kernel's stack"
	}
	switch {
	case !spec.Filter.Closed:
		return away
	case spec.Filter.All:
		return "are dropped"
	}
	return "are dropped if a closed function wants them, and else " + away
}

// resume goes on with the program that an earlier process attached to both interfaces,
// and with its maps, where that does what the new one would: to take its place costs
// twice the time until all processors have forgotten it, 8 to 20 ms each. A program that cannot be
// compared is replaced.
func (w *Pair) resume(a, b choice) error {
	mode := a.modes[0]
	if w.a.before == nil || w.b.before == nil || w.a.before.ID != w.b.before.ID || mode != b.modes[0] {
		return nil
	}
	specA, specB := a.in(mode), b.in(mode)
	parts, err := w.a.before.Resume(w.a.part(specA), w.b.part(specB))
	if err != nil || parts == nil {
		return nil
	}
	return errors.Join(w.a.resume(parts[0], mode), w.b.resume(parts[1], mode))
}

// attach attaches programs to both: one for both where they go the same way.
func (w *Pair) attach(a, b choice) error {
	var pa, pb *xsk.Program
	if mode := a.modes[0]; mode == b.modes[0] {
		var err error
		if pa, err = xsk.Load(xsk.WireProgram, w.a.part(a.in(mode)), w.b.part(b.in(mode))); err != nil {
			return explain(err)
		}
		if pb, err = pa.Clone(); err != nil {
			return errors.Join(err, pa.Close())
		}
	}
	if err := w.a.attach(a, pa); err != nil {
		return errors.Join(err, pb.Close())
	}
	return w.b.attach(b, pb)
}

// choose says what d's program can do.
func (w *Pair) choose(d *device, cfg PairConfig) choice {
	spec := xsk.ProgramSpec{Other: d.other.index, Longest: d.mtu + overhead}
	modes := []xsk.Mode{xsk.Native, xsk.Generic}
	if cfg.Fallback == Pass {
		spec.Cross = xsk.Pass
	} else if f, err := xsk.FeaturesOf(d.other.index); err == nil && f&xsk.CanTransmit == 0 {
		// A native redirect would lose every frame: see the package's description.
		why := fmt.Sprintf("frames redirected natively to %s would be lost (on a veth: its other end needs gro on)", d.other.name)
		if cfg.Mode == Native || d.before != nil && d.before.Mode == xsk.Native {
			spec.Cross = xsk.Pass
			d.opt.seeEverything = true
			w.info.Wire = false
			w.info.Notes = append(w.info.Notes, why+": all frames go through the process, and none cross without it")
		} else {
			modes = modes[1:]
			w.info.Notes = append(w.info.Notes, why+": "+d.name+" uses generic XDP")
		}
	}
	spec.Filter = d.wants()
	switch cfg.Mode {
	case Native:
		modes = modes[:1]
	case Generic:
		modes = modes[len(modes)-1:]
	}
	if d.before != nil {
		modes = []xsk.Mode{d.before.Mode}
	}
	return choice{spec, modes}
}

// stale returns the age above which a heartbeat does not count while the filter is f.
func (o *Options) stale(f port.Filter) clock.Duration {
	if f.Closed || f.Waits {
		return o.hold
	}
	return o.Stale
}

// abort undoes an OpenPair that failed, that was not followed by Attach, or whose process cannot start. It attaches
// earlier programs again, and restores only the settings that this process changed.
func (w *Pair) abort() error {
	var errs []error
	for _, d := range []*device{w.a, w.b} {
		if d == nil {
			continue
		}
		if d.resumed {
			d.state.SetRestore(d.recorded)
		}
		switch old := d.before; {
		case !d.attached || d.resumed && d.prog == d.taken:
		case old != nil:
			errs = append(errs, offload.Within(d.ns, func() error { return xsk.Swap(d.index, old.Prog, d.prog.Prog, d.mode) }))
		case w.join == nil: // what an earlier process had left on record is its program's by now
			errs = append(errs, d.detach(), d.release())
			continue
		default:
			errs = append(errs, takeOff(d.index, d.prog.Prog, d.mode))
		}
		errs = append(errs, d.giveUp())
	}
	w.unclaim()
	return errors.Join(errs...)
}

// giveUp releases a device, and restores only the settings that this process changed.
func (d *device) giveUp() error {
	// What is closed first is there for the way back, where it was file descriptors that there were too few of.
	shut := d.shut()
	err := d.putBack(d.fresh)
	if err == nil { // else it stays on record, for Detach or the next process
		err = d.forget(d.found)
	}
	return errors.Join(shut, err, d.leave())
}

// Info says what was bound.
func (w *Pair) Info() Info { return w.info }

// Held says which frames programs drop after Detach, while no process is there.
type Held struct {
	QueuePairs bool // to those that are bound
	Words      bool // to those that are guarded: other atomics, for port.GuardFor
}

// Detach ends the steering: after its return no frame goes to the workers, which the caller stops
// afterwards. Detach removes the wire, unless PairConfig.Keep is set or queue pairs are bound. Frames to bound
// queue pairs are dropped while no process is there, after a stop as after a kill. If only words are
// guarded, or a bridge or the like joins both interfaces, the programs that stay drop what must not cross and pass
// all other frames to the kernel. Close calls Detach.
func (w *Pair) Detach() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.detached {
		return nil
	}
	w.detached = true
	if w.join != nil {
		return nil // Close has it as it was
	}
	w.held = w.a.holds()
	if !w.keep && w.held == (Held{}) {
		return errors.Join(w.a.detach(), w.b.detach())
	}
	w.a.quiet()
	w.b.quiet()
	// With a master of both, the wire would keep its other ports from them.
	if !w.keep && (!w.held.QueuePairs || w.a.master() != 0 && w.a.master() == w.b.master()) {
		return errors.Join(w.a.stand(), w.b.stand())
	}
	return nil
}

// Free gives one of the interfaces back if the other one is gone, and returns its name; it returns "" if both are
// there. The caller stops the workers before.
func (w *Pair) Free() (name string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	there := func(d *device) bool {
		return offload.Within(d.ns, func() error {
			_, err := netlink.LinkByIndex(d.index)
			return err
		}) == nil
	}
	for _, d := range []*device{w.a, w.b} {
		if there(d) && !there(d.other) {
			w.detached = true
			return d.name, errors.Join(d.prog.Unjoin(), d.other.prog.Unjoin(), d.detach(), d.other.detach())
		}
	}
	return "", nil
}

// Holds returns what programs would drop if the process ended at this moment.
func (w *Pair) Holds() Held { return w.a.holds() }

// Orphans returns the number of queue pairs that are bound at wires that an earlier process left and are not among
// known. The caller calls it before Attach, Bind and Rebind.
func (w *Pair) Orphans(known []port.QueuePair) (n int, err error) {
	var sets [2]*xsk.Set
	for i, d := range []*device{w.a, w.b} {
		if d.before == nil {
			continue
		}
		s, e := d.before.Set()
		if err = errors.Join(err, e); e != nil || s == nil {
			continue
		}
		if sets[i] = s; i == 0 || !s.Same(sets[0]) {
			k, e := s.Others(known)
			n, err = n+k, errors.Join(err, e)
		}
	}
	for _, s := range sets {
		if s != nil {
			err = errors.Join(err, s.Close())
		}
	}
	return n, err
}

// Replaced reports whether the XDP program of interface dev of the pair, whose number is id, is another one than the pair
// has attached. It is false for an interface that is not one of the pair.
func (w *Pair) Replaced(dev string, id uint32) bool {
	for _, d := range []*device{w.a, w.b} {
		if d.name == dev {
			return d.replaced(id)
		}
	}
	return false
}

// Held returns what the programs that Detach left drop.
func (w *Pair) Held() Held {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.held
}

// Close puts everything back, except a wire that stays (see Detach). The caller stops the workers
// before.
func (w *Pair) Close() error {
	w.once.Do(func() {
		w.err = w.Detach()
		if w.join != nil {
			w.err = errors.Join(w.err, w.abort())
			return
		}
		w.err = errors.Join(w.err, w.a.release(), w.b.release())
	})
	return w.err
}

// Undo replaces Close for a process that cannot start and whose workers have not run: a wire that an earlier process
// left carries frames again as before.
func (w *Pair) Undo() error {
	w.once.Do(func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.detached = true
		w.err = w.abort()
	})
	return w.err
}

// Wire joins two interfaces of the calling thread's network namespace in the
// kernel, without a process: all frames cross until a pair is opened on the interfaces,
// which takes the wire over, or until Detach. Wire does not change a wire that exists
// already. It fails if a former wire has bound queue pairs.
func Wire(ifA, ifB string) (Info, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	there, of := 0, uint32(0)
	for _, name := range []string{ifA, ifB} {
		l, err := netlink.LinkByName(name)
		if err != nil {
			return Info{}, fmt.Errorf("interface %q: %w", name, err)
		}
		a, err := xsk.AttachedTo(l.Attrs().Index)
		if err != nil {
			return Info{}, err
		}
		if a != nil && a.Name == xsk.WireProgram && (of == 0 || of == a.ID) {
			there, of = there+1, a.ID
		}
		if err := a.Close(); err != nil {
			return Info{}, err
		}
	}
	if there == 2 {
		return Info{Wire: true, Resumed: true}, nil
	}
	w, err := OpenPair(PairConfig{A: ifA, B: ifB, Keep: true, Later: true, Options: Options{Filter: &port.Filter{}}, bare: true})
	if err != nil {
		return Info{}, err
	}
	n, err := w.Orphans(nil)
	switch {
	case err != nil:
	case n > 0:
		err = fmt.Errorf("%d queue pairs at %s and %s cannot do without a process that was here: start it as it was started, or end these connections at their clients", n, ifA, ifB)
	default:
		err = w.Attach()
	}
	return w.Info(), errors.Join(err, w.Close())
}

// Detach removes what a process left on interfaces of the calling thread's network namespace, a wire between two or a
// program that outlived the process, and puts their settings back, also those of a process that was killed before it had
// attached anything. It is no error if there is nothing to remove.
func Detach(names ...string) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	mine, err := claims(names...)
	if err != nil {
		return err
	}
	defer dropClaims(mine)
	for _, name := range names {
		err = errors.Join(err, unwire(name))
	}
	return err
}

func unwire(name string) (err error) {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("interface %q: %w", name, err)
	}
	a, err := xsk.AttachedTo(l.Attrs().Index)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.Close()) }()
	if a != nil && a.Name != xsk.WireProgram && !outlived(a) {
		return nil
	}
	return unload(l, a)
}

// unload takes a, which may be nil, off an interface and puts its settings back.
func unload(l netlink.Link, a *xsk.Attached) error {
	name := l.Attrs().Name
	record, err := offload.RecordFile(l.Attrs().Index)
	if err != nil {
		return err
	}
	words, err := offload.ReadRecord(record)
	if err != nil || a == nil && words == (offload.Record{}) {
		return err
	}
	off, err := offload.Open(l)
	if err != nil {
		return err
	}
	defer off.Close()
	var unknown error
	if a != nil {
		if outlived(a) { // the file has them
		} else if st, err := a.State(); err == nil {
			for i, w := range st.Restore() {
				words[i] |= w
			}
			_ = st.Close()
		} else {
			unknown = fmt.Errorf("interface %s is free, and its settings stay as they are: how they were is not known: %w", name, err)
		}
		if err := offload.WriteRecord(record, words); err != nil && !offload.NoRoom(err) {
			return err
		}
		if err := takeOff(l.Attrs().Index, a.Prog, a.Mode); err != nil {
			return fmt.Errorf("detach from %s: %w", name, err)
		}
	}
	own := offload.Mask(words[offload.Own])
	if theirs, bare := recordBeyond(l.Attrs().Index); bare {
		own = offload.Left(own, theirs)
	}
	err = off.Restore(own, offload.Mask(words[offload.Peer]))
	if words[offload.Promiscuous] != 0 {
		err = errors.Join(err, netlink.SetPromiscOff(l))
	}
	if err == nil { // else it stays on record, for another try
		err = offload.WriteRecord(record, offload.Record{})
	}
	return errors.Join(unknown, err)
}

func memorySize(ms []memory) (n int) {
	for _, m := range ms {
		n += len(m.umem.Mem)
		if m.jumbo != nil {
			n += m.jumbo.Slots() * m.jumbo.SlotSize()
		}
	}
	return n
}
