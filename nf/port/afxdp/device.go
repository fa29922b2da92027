package afxdp

import (
	"errors"
	"fmt"
	"math/bits"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/internal/ethtool"

	"github.com/quillon/quillon/internal/xsk"
	"github.com/quillon/quillon/internal/xsk/offload"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
)

// device is one interface with its sockets and its program.
type device struct {
	name  string
	link  netlink.Link
	index int
	mtu   int
	opt   Options
	rx    int // receive queues
	grown int // receive queues at the last look while it runs; 0: there was none
	any   int // queue numbers that a socket can bind to
	ns    netns.NsHandle

	offloads *offload.Interface
	redirect bool // they are fit for frames that are redirected here
	changed  []string
	restore  offload.Record // undone on detach
	fresh    offload.Record // of these, what this process changed
	record   string         // the file that has them when no program has
	found    offload.Record // what was in it: of a process that was killed
	kept     bool           // it is this process's now
	state    *xsk.State
	sockets  *ebpf.Map
	bound    *bound
	other    *device // of a pair
	ports    []*Port
	alone    bool // not of a pair

	limit atomic.Int64 // age in ns at which the ports take their heartbeat for stale; 0: none

	mu       sync.Mutex // the program and what it is attached with
	spec     xsk.ProgramSpec
	prog     *xsk.Program
	mode     xsk.Mode
	link0    link.Link     // of an interface alone
	front    *Front        // in front of prog
	fronts   *ebpf.Map     // of one of a pair: the place for its program
	own      *xsk.Program  // prog without that place, which front knows
	watched  bool          // somebody looks at all frames
	before   *xsk.Attached // an earlier process's wire
	attached bool
	// For an interface alone that outlives the process: see outlive.go.
	outlives bool           // it is attached by netlink, and its program is Closed
	top      *ebpf.Program  // what is attached: that of prog, of front or of before
	left     []*ebpf.Map    // of before, if that is a Front that still runs frames
	spoken   bool           // an app has said what is to be
	by       any            // who wants it to outlive the process
	yielded  bool           // by has gone, and may have a successor
	closed0  bool           // the filter of the graph is Closed
	resumed  bool           // prog, state and sockets are the earlier process's
	recorded offload.Record // what it had on record in state
	taken    *xsk.Program   // the earlier process's
	counted  [][4]uint64    // by queue, what state counted before: see passed
}

// find looks at an interface, and changes nothing.
func find(name string, opt Options) (*device, error) {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return nil, fmt.Errorf("interface %q: %w", name, err)
	}
	a := l.Attrs()
	if a.Flags&1 == 0 {
		return nil, fmt.Errorf("interface %s is down: ip link set %s up", name, name)
	}
	if a.EncapType != "ether" {
		return nil, fmt.Errorf("interface %s is not Ethernet (%s)", name, a.EncapType)
	}
	d := &device{name: name, link: l, index: a.Index, mtu: a.MTU, opt: opt, ns: netns.None(), bound: &bound{}}
	d.rx, d.any = max(1, a.NumRxQueues), max(1, a.NumRxQueues, a.NumTxQueues)
	if !opt.Transient {
		if d.record, err = offload.RecordFile(d.index); err != nil {
			return nil, err
		}
	}
	tool, err := ethtool.Open()
	if err != nil {
		return nil, err
	}
	defer tool.Close()
	if rx, tx, err := tool.Queues(name); err == nil && rx > 0 {
		d.rx, d.any = rx, max(rx, tx)
	}
	if d.before, err = xsk.AttachedTo(d.index); err != nil {
		return nil, err
	}
	if d.before != nil && d.before.Name != xsk.WireProgram && !outlived(d.before) {
		err := fmt.Errorf("interface %s has another XDP program (%d, %s): stop what uses it, or: ip link set dev %s xdp off", name, d.before.ID, d.before.Name, name)
		return nil, errors.Join(err, d.before.Close())
	}
	if d.before != nil && d.before.Mode == xsk.Generic && opt.Copy == CopyNever {
		err := fmt.Errorf("the wire that interface %s is one end of runs generic XDP, which has no zero-copy: quillon detach its two interfaces first", name)
		return nil, errors.Join(err, d.before.Close())
	}
	if d.ns, err = netns.Get(); err != nil {
		return nil, fmt.Errorf("network namespace: %w", err)
	}
	return d, nil
}

// prepare sets offloads and promiscuous mode, and makes the maps.
func (d *device) prepare(wire bool) error {
	var err error
	if d.found, err = offload.ReadRecord(d.record); err != nil {
		return err
	}
	d.restore = d.found
	if d.before != nil && d.before.Name == StayProgram {
		d.restore[offload.Heir] = heir()
	}
	if d.before != nil && wire {
		old, err := d.before.State()
		if err != nil {
			return fmt.Errorf("interface %s: %w; remove it: ip link set dev %s xdp off", d.name, err, d.name)
		}
		d.restore.Owe(old.Restore())
		if err := old.Close(); err != nil {
			return err
		}
	}
	if d.before != nil && wire {
		if err := d.bound.inherit(d.before, *d.opt.Filter); err != nil {
			return fmt.Errorf("interface %s: %w", d.name, err)
		}
	}
	if err := d.bound.openFor(*d.opt.Filter); err != nil {
		return err
	}
	if d.offloads, err = offload.Open(d.link); err != nil {
		return err
	}
	if err := d.change(wire); err != nil {
		return err
	}
	d.opt.step("changed")
	slots := max(d.rx, d.any, d.link.Attrs().NumRxQueues)
	if d.state, err = xsk.NewState(d.index, slots); err != nil {
		return explain(err)
	}
	d.state.SetRestore(d.restore)
	if d.sockets, err = xsk.NewSocketMap(slots); err == nil && wire {
		d.fronts, err = xsk.NewFrontMap()
	}
	return err
}

// change sets offloads and promiscuous mode, with what it is about to change on
// record.
func (d *device) change(wire bool) error {
	// Its flag, not whether it is: who else has it so may go before the wire does.
	return d.set(wire, wire && d.link.Attrs().RawFlags&unix.IFF_PROMISC == 0)
}

// changeOffloads is change, but for promiscuous mode.
func (d *device) changeOffloads(wire bool) error { return d.set(wire, false) }

func (d *device) set(wire, promisc bool) error {
	d.redirect = d.redirect || wire
	owed := d.restore
	var planned, theirs offload.Record
	if !d.opt.LeaveOffloads {
		own, peer, err := d.offloads.Plan(wire)
		if err != nil {
			return err
		}
		if err := offload.Within(d.ns, func() error { theirs, _ = recordBeyond(d.index); return nil }); err != nil {
			return err
		}
		own, peer = offload.Without(own, peer, theirs)
		planned[offload.Own], planned[offload.Peer] = uint64(own), uint64(peer)
	}
	if promisc {
		planned[offload.Promiscuous] = 1
	}
	d.restore.Owe(planned)
	unwritten := d.keep()
	// Frames are lost if a setting is not changed while the program runs.
	if unwritten != nil && (!d.attached || !offload.NoRoom(unwritten)) {
		return unwritten
	}
	// Of what fails, only what was done is undone.
	d.restore = owed
	defer func() { d.restore.Owe(d.fresh) }()
	if !d.opt.LeaveOffloads {
		own, peer, changed, err := d.offloads.Set(wire)
		own, peer = offload.Without(own, peer, theirs)
		d.changed = append(d.changed, changed...)
		d.fresh[offload.Own], d.fresh[offload.Peer] = d.fresh[offload.Own]|uint64(own), d.fresh[offload.Peer]|uint64(peer)
		if err != nil {
			return err
		}
	}
	if promisc {
		if err := netlink.SetPromiscOn(d.link); err != nil {
			return fmt.Errorf("promiscuous mode of %s: %w", d.name, err)
		}
		d.fresh[offload.Promiscuous] = 1
		d.changed = append(d.changed, d.name+" promisc on")
	}
	return unwritten
}

// Keep implements port.Keeper.
func (p *Port) Keep() (changed []string, err error) {
	d := p.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.attached {
		return nil, nil
	}
	defer func() { err = errors.Join(err, outgrown(d)) }()
	if d.opt.LeaveOffloads {
		return nil, nil
	}
	if !d.alone && !d.kept {
		if err := offload.Within(d.ns, func() error { return keepOrphan(d) }); err != nil && !offload.NoRoom(err) {
			return nil, err
		}
	}
	if own, peer, err := d.offloads.Plan(d.redirect); err != nil || own == 0 && peer == 0 {
		return nil, err
	}
	n := len(d.changed)
	err = d.changeOffloads(d.redirect)
	changed, d.changed = slices.Clone(d.changed[n:]), d.changed[:n]
	d.state.SetRestore(d.restore)
	return changed, err
}

// keepOrphan has what is to be put back on record in the file if the program that has it was taken off the interface. The
// caller has d.mu.
func keepOrphan(d *device) error {
	l, err := netlink.LinkByIndex(d.index)
	if err != nil {
		return err
	}
	if x := l.Attrs().Xdp; x != nil && x.Attached && !isOther(d, x.ProgId) {
		return nil
	}
	return d.keep()
}

// keep has what is to be put back on record in the file.
func (d *device) keep() error {
	d.kept = true
	if err := offload.WriteRecord(d.record, d.restore); err != nil {
		return fmt.Errorf("keep on record how %s was: %w", d.name, err)
	}
	return nil
}

// noOther is an error if the wire that an earlier process left at d leads to another interface than now: that one's program would go on sending frames out of d.
func (d *device) noOther() error {
	if d.before == nil {
		return nil
	}
	with, err := partners(d.before, d.other.index)
	if err != nil || len(with) == 0 {
		return err
	}
	return fmt.Errorf("interface %s is one end of a wire to %s: stop the instance that runs there, or: quillon detach %s %s", d.name, with[0], d.name, with[0])
}

// forget makes the file what it was before keep, or removes it.
func (d *device) forget(found offload.Record) error {
	if !d.kept {
		return nil
	}
	d.kept = false
	return offload.WriteRecord(d.record, found)
}

// memory is what the sockets of one worker share.
type memory struct {
	umem  *xsk.UMEM
	pool  *packet.Pool
	jumbo *packet.Pool
}

// chunkFor is the chunk size for frames up to an MTU (plus Ethernet header
// and two tags), and whether such a frame may need several.
func chunkFor(mtu int) (chunk int, multi bool) {
	need := mtu + overhead + xsk.FrameOffset
	if need <= 2048 {
		return 2048, false
	}
	return 4096, need > 4096
}

const overhead = 14 + 2*4

// newMemory makes it. An app may hold a frame for longer than the port is open:
// the UMEM stays until its pool is garbage.
func newMemory(frames, mtu int) (memory, error) {
	chunk, multi := chunkFor(mtu)
	var m memory
	var err error
	if m.umem, err = xsk.NewUMEM(frames, chunk); err != nil {
		return m, err
	}
	if m.pool, err = packet.NewPool(frames, chunk, m.umem.Mem); err != nil {
		return m, errors.Join(err, m.umem.Close())
	}
	runtime.AddCleanup(m.pool, func(u *xsk.UMEM) { _ = u.Close() }, m.umem)
	if multi {
		slot := (packet.Headroom + mtu + overhead + 2*63) &^ 63
		m.jumbo, err = packet.NewPool(jumboFrames, slot, nil)
	}
	return m, err
}

// jumboFrames is how many frames of several chunks a worker can hold.
const jumboFrames = 4 * packet.MaxBatch

// openPort binds a socket to a queue, and fills its fill ring.
func (d *device) openPort(queue int, name string, index uint16, m memory) error {
	_, multi := chunkFor(d.mtu)
	so := xsk.Options{Ring: d.opt.Ring, SG: m.jumbo != nil, Copy: d.opt.Copy == CopyAlways, ZeroCopy: d.opt.Copy == CopyNever, BusyPoll: d.opt.BusyPoll}
	s, err := xsk.Open(m.umem, so)
	if err != nil {
		return explain(err)
	}
	p := &Port{
		name: fmt.Sprintf("%s:%d", name, queue), dev: d, queue: queue, index: index,
		pool: m.pool, jumbo: m.jumbo, umem: m.umem, shift: uint(bits.TrailingZeros(uint(m.umem.Chunk))), sock: s,
		target: d.opt.Ring, max: d.mtu + overhead, busy: d.opt.BusyPoll > 0,
		clk:      d.opt.Clock,
		beatWord: d.state.Heartbeat(queue), missWord: []*uint64{d.state.Missed(queue)},
		backlog: newBacklog(d.opt.Ring, d.mtu+overhead),
	}
	d.ports = append(d.ports, p)
	p.wall = p.clk
	if _, ok := p.clk.(*clock.Wall); !ok {
		p.wall = clock.NewWall()
	}
	p.monoOff = clock.Kernel() - int64(p.wall.Now())
	p.refill()
	err = bindTo(s, m.umem, d.index, queue, so)
	switch {
	case errors.Is(err, unix.EBUSY):
		return fmt.Errorf("queue %d of %s is in use by another process's AF_XDP socket: stop that process first", queue, d.name)
	case errors.Is(err, unix.EOPNOTSUPP) && d.opt.Copy == CopyNever:
		return fmt.Errorf("interface %s: its driver (%s) has no zero-copy for queue %d and an MTU of %d: allow it to copy: %w", d.name, d.offloads.Driver, queue, d.mtu, port.ErrNotSupported)
	case err != nil:
		return fmt.Errorf("interface %s: %w", d.name, explain(err))
	case multi && !s.SG:
		return fmt.Errorf("interface %s has an MTU of %d and the kernel has no multi-buffer AF_XDP: lower the MTU to %d: %w", d.name, d.mtu, 4096-xsk.FrameOffset-overhead, port.ErrNotSupported)
	}
	atomic.StoreUint64(p.beatWord, 0) // that of an earlier process is nobody's
	if err := d.sockets.Put(uint32(queue), uint32(s.FD)); err != nil {
		return fmt.Errorf("steer queue %d of %s: %w", queue, d.name, err)
	}
	return nil
}

const (
	// bindWait is how long a queue may take to become free. The kernel has a closed socket leave its
	// queue behind an RCU grace period and in a work queue (xsk_destruct, xp_release_deferred): on a
	// machine whose processors are overloaded both take seconds.
	bindWait  = 5 * time.Second
	bindPause = time.Millisecond
)

// bindTo binds s to a queue. While another socket has the queue it waits, for bindWait at most: the kernel closes sockets
// of a dead process at leisure.
func bindTo(s *xsk.Socket, u *xsk.UMEM, index, queue int, o xsk.Options) error {
	wall := clock.NewWall()
	for since := wall.Now(); ; time.Sleep(bindPause) {
		err := s.Bind(u, index, queue, o)
		if !errors.Is(err, unix.EBUSY) || wall.Now().Sub(since) > bindWait {
			return err
		}
	}
}

// choice is what a device's program is to do, and the modes to try it in.
type choice struct {
	spec  xsk.ProgramSpec
	modes []xsk.Mode
}

// in is the choice in one mode.
func (c choice) in(mode xsk.Mode) xsk.ProgramSpec {
	c.spec.Shared = mode == xsk.Generic
	return c.spec
}

func (d *device) part(spec xsk.ProgramSpec) xsk.Part {
	spec.Stale = d.opt.stale(spec.Filter)
	p := xsk.Part{Index: d.index, Spec: spec, State: d.state, Sockets: d.sockets, Bound: d.bound.set.Load(), Guard: d.bound.guard.Load()}
	if spec.Filter.All && (spec.Cross == xsk.Redirect || d.outlives) {
		p.Front = d.fronts
	}
	return p
}

// load loads a program that does what spec says.
func (d *device) load(spec xsk.ProgramSpec) (*xsk.Program, error) {
	prog, err := xsk.Load(d.program(), d.part(spec))
	return prog, explain(err)
}

// attach puts a program in place of the earlier one: prog, if there is one, in the first
// mode, or one that it loads. It owns prog.
func (d *device) attach(c choice, prog *xsk.Program) (err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var errs []error
	for _, mode := range c.modes {
		spec := c.in(mode)
		if prog == nil {
			if prog, err = d.load(spec); err != nil {
				return err
			}
		}
		switch {
		case d.alone:
			d.link0, err = xsk.AttachLink(d.index, prog.Prog, mode)
		case d.before != nil:
			err = xsk.Swap(d.index, prog.Prog, d.before.Prog, mode)
		default:
			err = xsk.Swap(d.index, prog.Prog, nil, mode)
		}
		if err == nil {
			d.spec, d.prog, d.mode, d.attached = spec, prog, mode, true
			d.limit.Store(int64(d.opt.stale(spec.Filter)))
			return d.bound.uses(port.Filter{}, spec.Filter)
		}
		_ = prog.Close()
		prog = nil
		errs = append(errs, fmt.Errorf("%v XDP: %w", mode, err))
	}
	return fmt.Errorf("attach to %s: %w", d.name, errors.Join(errs...))
}

// resume goes on with the earlier process's program, state and socket map.
func (d *device) resume(part xsk.Part, mode xsk.Mode) error {
	prog, err := d.before.Prog.Clone()
	err = errors.Join(err, d.state.Close())
	d.state = part.State
	if part.Sockets != nil { // a program that wants nothing has none
		err = errors.Join(err, d.sockets.Close())
		d.sockets = part.Sockets
	}
	if part.Front != nil {
		err = errors.Join(err, d.fronts.Close())
		d.fronts = part.Front
		// The kernel empties it when no process has it any more, which may not have come to pass.
		if e := d.fronts.Delete(uint32(0)); !errors.Is(e, ebpf.ErrKeyNotExist) {
			err = errors.Join(err, e)
		}
	}
	if err != nil {
		return fmt.Errorf("XDP program of %s: %w", d.name, err)
	}
	d.recorded, d.resumed = d.state.Restore(), true
	d.state.SetRestore(d.restore)
	for q := range d.state.Queues() {
		// Missed before shut out: of a frame that comes in between passed then says that it was
		// missed, where the other order would leave a difference below zero.
		missed := atomic.LoadUint64(d.state.Missed(q))
		d.counted = append(d.counted, [4]uint64{atomic.LoadUint64(d.state.Bypassed(q)), missed, atomic.LoadUint64(d.state.ShutOut(q)), atomic.LoadUint64(d.state.TooLong(q))})
	}
	d.spec, d.prog, d.mode, d.attached = part.Spec, part.Resumed(prog), mode, true
	d.taken = d.prog
	d.limit.Store(int64(d.opt.stale(part.Spec.Filter)))
	return d.bound.uses(port.Filter{}, part.Spec.Filter)
}

// program is the name that its program has.
func (d *device) program() string {
	switch {
	case d.outlives:
		return xsk.ShutProgram
	case d.alone:
		return xsk.PortProgram
	}
	return xsk.WireProgram
}

// everything is the filter of an interface all of whose frames the process must
// carry, where f is wanted.
func everything(f port.Filter) port.Filter {
	return port.Filter{All: true, Bound: f.Bound, Guarded: f.Guarded, Waits: f.Waits}
}

// wants is the filter of d's program, before there is one.
func (d *device) wants() port.Filter {
	if d.opt.seeAll() {
		return everything(*d.opt.Filter)
	}
	return *d.opt.Filter
}

// setFilter replaces the program under traffic, or, before there is one, says what it
// will be.
func (d *device) setFilter(f port.Filter) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.attached {
		if d.prog != nil || d.sockets == nil {
			return port.ErrClosed
		}
		d.opt.Filter = &f // Pair.Attach has the program do so
		return d.bound.openFor(f)
	}
	if f = d.watch(f); d.opt.seeAll() {
		f = everything(f)
	}
	d.closed0, f.Closed = f.Closed, f.Closed || d.outlives
	if reflect.DeepEqual(f, d.spec.Filter) {
		return nil
	}
	if err := d.bound.openFor(f); err != nil {
		return err
	}
	spec := d.spec
	spec.Filter = f
	return renew(d, spec)
}

// renew puts a program that does what spec says in the place of the earlier one, under traffic. The caller has d.mu.
func renew(d *device, spec xsk.ProgramSpec) error {
	f := spec.Filter
	// Of two programs a worker keeps to the shorter limit until the later one is there.
	limit := int64(d.opt.stale(f))
	d.limit.Store(min(d.limit.Load(), limit))
	var prog *xsk.Program
	err := offload.Within(d.ns, func() (err error) {
		if prog, err = d.load(spec); err != nil {
			return err
		}
		if d.link0 != nil {
			return d.update(prog.Prog)
		}
		if err = d.behind(spec); err != nil || d.outlives && d.top != d.prog.Prog {
			return err
		}
		return d.swap(prog.Prog)
	})
	if err != nil {
		return errors.Join(fmt.Errorf("filter of %s: %w", d.name, err), prog.Close())
	}
	old, was := d.prog, d.spec.Filter
	d.spec, d.prog = spec, prog
	d.limit.Store(limit)
	return errors.Join(old.Close(), d.bound.uses(was, f))
}

// replaced reports whether the program with number id is another one than the device's own.
func (d *device) replaced(id uint32) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.attached && isOther(d, id)
}

// isOther reports whether a program is not that of device d. The caller has d.mu.
func isOther(d *device, id uint32) bool {
	info, err := d.prog.Prog.Info()
	if err != nil {
		return false
	}
	own, known := info.ID()
	return known && uint32(own) != id
}

// holds says what must not cross.
func (d *device) holds() Held {
	d.mu.Lock()
	defer d.mu.Unlock()
	set, guard, f := d.bound.set.Load(), d.bound.guard.Load(), d.spec.Filter
	return Held{
		QueuePairs: d.attached && f.Bound && set != nil && !set.Empty(),
		Words:      d.attached && f.Guarded && guard != nil && !guard.Empty(),
	}
}

// stand replaces the program by one that passes to the kernel what it does not hold, as if there was none.
func (d *device) stand() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	spec := d.spec
	if spec.Cross == xsk.Pass {
		return nil
	}
	spec.Cross = xsk.Pass
	prog, err := d.load(spec)
	if err != nil {
		return err
	}
	if err := offload.Within(d.ns, func() error { return xsk.Swap(d.index, prog.Prog, d.prog.Prog, d.mode) }); err != nil {
		return errors.Join(fmt.Errorf("replace the program of %s: %w", d.name, err), prog.Close())
	}
	old := d.prog
	d.spec, d.prog = spec, prog
	return old.Close()
}

// master is the interface that has d as one of its ports, a bridge for one; 0: none has.
func (d *device) master() (index int) {
	_ = offload.Within(d.ns, func() error {
		l, err := netlink.LinkByIndex(d.index)
		if err == nil {
			index = l.Attrs().MasterIndex
		}
		return err
	})
	return index
}

// quiet makes all frames cross in the kernel from now on.
func (d *device) quiet() {
	for _, p := range d.ports {
		_ = d.sockets.Delete(uint32(p.queue))
	}
}

// detach takes the program off and puts the settings back.
func (d *device) detach() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var errs []error
	if d.attached {
		d.attached, d.front = false, nil
		if d.link0 != nil {
			errs = append(errs, d.link0.Close())
		} else {
			if err := d.keep(); !offload.NoRoom(err) {
				errs = append(errs, err)
			}
			err := offload.Within(d.ns, func() error { return takeOff(d.index, d.shown(), d.mode) })
			if err != nil {
				errs = append(errs, fmt.Errorf("detach from %s: %w", d.name, err))
			}
		}
	}
	d.opt.step("taken off")
	err := d.putBack(d.restore)
	if err == nil { // else it stays on record, for Detach or the next process
		err = d.forget(offload.Record{})
	}
	d.restore, d.fresh = offload.Record{}, offload.Record{}
	return errors.Join(append(errs, err)...)
}

// takeOff detaches prog from an interface, unless somebody else did or the interface
// is gone.
func takeOff(index int, prog *ebpf.Program, mode xsk.Mode) error {
	err := xsk.Swap(index, nil, prog, mode)
	if err == nil || errors.Is(err, unix.ENODEV) {
		return nil
	}
	is, e := xsk.AttachedTo(index)
	switch {
	case e != nil:
		return errors.Join(err, e)
	case is == nil:
		return nil
	case errors.Is(err, unix.EEXIST): // what is attached is not prog
		err = fmt.Errorf("it has another XDP program by now (%d, %s)", is.ID, is.Name)
	}
	return errors.Join(err, is.Close())
}

// closed gives an interface alone back when all its ports are closed: whoever
// closes them may open it again before the Device is closed.
func (d *device) closed() error {
	if !d.alone || slices.ContainsFunc(d.ports, func(p *Port) bool { return !p.closed.Load() }) {
		return nil
	}
	return errors.Join(d.detach(), d.release())
}

// putBack undoes changed settings.
func (d *device) putBack(w offload.Record) error {
	var errs []error
	if d.offloads != nil {
		own := offload.Mask(w[offload.Own])
		if !d.opt.LeaveOffloads && d.ns.IsOpen() {
			errs = append(errs, offload.Within(d.ns, func() error {
				if theirs, bare := recordBeyond(d.index); bare {
					own = offload.Left(own, theirs)
				}
				return nil
			}))
		}
		errs = append(errs, d.offloads.Restore(own, offload.Mask(w[offload.Peer])))
	}
	if w[offload.Promiscuous] != 0 {
		errs = append(errs, offload.Within(d.ns, func() error { return netlink.SetPromiscOff(d.link) }))
	}
	// An interface that is gone took its settings with it.
	gone := func(err error) bool { return errors.Is(err, unix.ENODEV) }
	return errors.Join(slices.DeleteFunc(errs, gone)...)
}

// release gives up everything but what is attached.
func (d *device) release() error { return errors.Join(d.shut(), d.leave()) }

// shut is release, but for what it takes to put settings back.
func (d *device) shut() error {
	if d == nil {
		return nil
	}
	var errs []error
	for _, p := range d.ports {
		errs = append(errs, p.shut())
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.sockets != nil {
		errs = append(errs, d.sockets.Close())
	}
	if d.fronts != nil {
		errs = append(errs, d.fronts.Close())
	}
	errs = append(errs, d.forgetLeft())
	errs = append(errs, d.prog.Close(), d.before.Close(), d.own.Close())
	d.prog, d.before, d.sockets, d.attached, d.fronts, d.own = nil, nil, nil, false, nil, nil
	errs = append(errs, d.state.Close(), d.bound.close())
	d.state = nil
	return errors.Join(errs...)
}

// leave comes last: settings cannot be put back any more.
func (d *device) leave() error {
	if d == nil {
		return nil
	}
	d.mu.Lock() // the last ports may be closed at the same time
	defer d.mu.Unlock()
	d.offloads.Close()
	d.offloads = nil
	if d.ns.IsOpen() {
		return d.ns.Close()
	}
	return nil
}

// passed adds the kernel's counts for a queue; the last port also counts for
// the queues without one.
func (d *device) passed(queue int, s *port.Stats) {
	first, last := queue, queue
	if queue == len(d.ports)-1 {
		last = d.state.Queues() - 1
	}
	for q := first; q <= last; q++ {
		// In this order: a frame that is shut out was counted as missed before.
		shut := atomic.LoadUint64(d.state.ShutOut(q))
		bypassed := atomic.LoadUint64(d.state.Bypassed(q))
		missed := atomic.LoadUint64(d.state.Missed(q))
		long := atomic.LoadUint64(d.state.TooLong(q))
		if d.resumed {
			was := &d.counted[q]
			bypassed, missed, shut, long = bypassed-was[0], missed-was[1], shut-was[2], long-was[3]
		}
		s.Bypassed += bypassed
		s.Missed += missed - shut
		s.ShutOut += shut
		s.TooLong += long
	}
}

// adopt has the last port answer for the queues without one.
func (d *device) adopt() {
	if len(d.ports) == 0 {
		return
	}
	last := d.ports[len(d.ports)-1]
	for q := len(d.ports); q < d.state.Queues(); q++ {
		last.missWord = append(last.missWord, d.state.Missed(q))
	}
	for _, p := range d.ports {
		p.missedBefore = p.kernelMissed()
	}
}

func (d *device) info() InterfaceInfo {
	_, multi := chunkFor(d.mtu)
	i := InterfaceInfo{
		Name: d.name, Index: d.index, Driver: d.offloads.Driver, MTU: d.mtu, Mode: d.mode.String(),
		Queues: len(d.ports), MultiBuffer: multi, Ring: d.opt.Ring, Changed: d.changed,
	}
	for _, p := range d.ports {
		i.ZeroCopy = p.sock.ZeroCopy
		i.Chunk = p.umem.Chunk
	}
	for q := len(d.ports); q < d.rx; q++ {
		i.Unopened = append(i.Unopened, q)
	}
	return i
}

// explain adds what to do to errors that users meet.
func explain(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w: run as root, or with CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF", err)
	case errors.Is(err, unix.EAFNOSUPPORT), errors.Is(err, ebpf.ErrNotSupported):
		return fmt.Errorf("%w: %w (use an afpacket port)", port.ErrNotSupported, err)
	case errors.Is(err, unix.ENOBUFS) && strings.Contains(err.Error(), "register"):
		return fmt.Errorf("%w: raise the limit of locked memory (ulimit -l unlimited)", err)
	}
	return err
}

// unlockMemory lifts the limit of locked memory, which older kernels and
// UMEMs count against.
func unlockMemory() error {
	_ = rlimit.RemoveMemlock()
	err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY})
	if errors.Is(err, unix.EPERM) {
		return nil // CAP_IPC_LOCK may do; registering memory says so if not
	}
	return err
}
