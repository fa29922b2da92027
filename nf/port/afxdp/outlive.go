package afxdp

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"

	"github.com/quillon/quillon/internal/xsk"
	"github.com/quillon/quillon/internal/xsk/offload"
	"github.com/quillon/quillon/nf/port"
)

// StayProgram is the name of the program of a Front that stays.
const StayProgram = "quillon_p4_stay"

// outlived reports whether a is a program that was attached to an interface alone and that outlives its process.
func outlived(a *xsk.Attached) bool { return a.Name == StayProgram || a.Name == xsk.ShutProgram }

// Outlive sets whether a program stays on the port's interface, which is no one of a pair, when the process dies: that of a
// Front that stays, or else one that drops all frames. As with the wire of a pair, it is attached by netlink. A change removes
// the Front, and takes up to some tens of milliseconds, in which frames go to the kernel's stack or are lost. If it fails, what was there is attached again. by says whose wish it is:
// only who was last to set it on sets it off.
func (p *Port) Outlive(by any, on bool) error {
	d := p.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case !d.attached:
		return port.ErrClosed
	case !d.alone:
		return fmt.Errorf("interface %s is one of a pair: %w", d.name, port.ErrNotSupported)
	}
	d.spoken = true
	if !on && d.by != nil && d.by != by && !d.yielded {
		return nil
	}
	d.yielded = false
	if d.by = nil; on {
		d.by = by
	}
	return d.outlive(on)
}

// Yield lets others than by set off what by has set on (Port.Outlive). An app says so that ends and may have a successor: between the
// two the interface outlives the process all the time.
func Yield(p *Port, by any) {
	p.dev.mu.Lock()
	defer p.dev.mu.Unlock()
	if p.dev.by == by {
		p.dev.yielded = true
	}
}

// OutlivesFor returns by of the last Outlive of a port that was on; nil: none is.
func OutlivesFor(p *Port) (by any) {
	p.dev.mu.Lock()
	defer p.dev.mu.Unlock()
	return p.dev.by
}

func (d *device) outlive(on bool) (err error) {
	if on == d.outlives {
		return nil
	}
	if on && d.fronts == nil {
		if d.fronts, err = xsk.NewFrontMap(); err != nil {
			return err
		}
	}
	spec := d.spec
	spec.Filter.Closed = on || d.closed0
	d.outlives = on
	prog, err := d.load(spec)
	if err != nil {
		d.outlives = !on
		return err
	}
	before := d.prog.Prog
	if d.front != nil {
		before = d.front.Program
	}
	err = offload.Within(d.ns, func() error {
		if on {
			if d.link0 != nil { // else it was closed, and the program was not attached, the last time
				if err := d.link0.Close(); err != nil {
					return err
				}
				d.link0 = nil
			}
			d.opt.step("alone")
			err := xsk.Swap(d.index, prog.Prog, nil, d.mode)
			if err != nil { // back
				d.opt.step("back")
				if l, e := xsk.AttachLink(d.index, before, d.mode); e == nil {
					d.link0 = l
				}
			}
			return err
		}
		if err := takeOff(d.index, d.top, d.mode); err != nil {
			return err
		}
		d.opt.step("alone")
		l, err := xsk.AttachLink(d.index, prog.Prog, d.mode)
		if err != nil {
			d.opt.step("back")
			return errors.Join(err, xsk.Swap(d.index, d.top, nil, d.mode))
		}
		d.link0 = l
		return nil
	})
	if err != nil {
		d.outlives = !on // the next call tries again
		return errors.Join(fmt.Errorf("attach to %s: %w", d.name, err), prog.Close())
	}
	old := d.prog
	d.spec, d.prog, d.top, d.front = spec, prog, nil, nil
	if on {
		d.top = prog.Prog
	}
	return errors.Join(old.Close(), d.forgetLeft())
}

// succeed takes the place of a process that was killed. A Front that still runs frames goes on until another one or the
// interface's own program replaces it; a program that drops all frames is replaced at once by one that does not.
func (d *device) succeed(spec xsk.ProgramSpec, modes []xsk.Mode) (err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !slices.Contains(modes, d.before.Mode) {
		return fmt.Errorf("an instance that was killed left %v XDP on %s: quillon detach %s first", d.before.Mode, d.name, d.name)
	}
	if d.fronts, err = xsk.NewFrontMap(); err != nil {
		return err
	}
	spec.Filter.Closed = true
	d.outlives, d.mode, d.top = true, d.before.Mode, d.before.Prog
	if d.prog, err = d.load(spec); err != nil {
		return err
	}
	d.spec, d.attached = spec, true
	d.limit.Store(int64(d.opt.stale(spec.Filter)))
	if d.before.Name == StayProgram {
		d.left, err = d.before.AllMaps()
	} else {
		err = d.swap(d.prog.Prog)
	}
	return errors.Join(err, d.bound.uses(port.Filter{}, spec.Filter))
}

// Attach takes off what a process that was killed has left on the interface, if no app has said by now that it takes over
// (Port.Outlive).
func (v *Device) Attach() error {
	d := v.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.attached || d.spoken {
		return nil
	}
	return d.outlive(false)
}

// Left returns the program and the maps of a Front that a process which was killed left in front of the port's interface,
// and that still runs frames; prog is nil if there is none. They are valid until the next call of SetFront or Outlive, or the
// port is closed.
func (p *Port) Left() (prog *ebpf.Program, maps []*ebpf.Map) {
	d := p.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.left == nil {
		return nil, nil
	}
	return d.before.Prog, d.left
}

// heir is the process's number in records of interfaces where it took the place of another one.
var heir = sync.OnceValue(func() uint64 { return rand.Uint64() | 1 })

// FreeRest takes the program that a process which was killed left in front of the port's interface off the other interfaces of the
// namespace that had it, too, and at which no process is, and puts their settings back. It leaves those that another process has had since,
// which was killed in its turn: they are its successor's. It does nothing as long as the port's own
// interface has the program. It may take five seconds for each interface, and needs no more rights than a port.
func FreeRest(p *Port) error {
	d := p.dev
	d.mu.Lock()
	if !d.attached || d.before == nil || d.before.Name != StayProgram || d.link0 == nil && d.top == d.before.Prog {
		d.mu.Unlock()
		return nil
	}
	is, ns, former := *d.before, d.ns, d.found[offload.Heir]
	var err error
	is.Prog, err = is.Prog.Clone()
	d.mu.Unlock()
	if err != nil {
		return err
	}
	defer is.Close()
	return offload.Within(ns, func() error {
		links, err := netlink.LinkList()
		if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
			return err
		}
		var errs []error
		for _, l := range links {
			if is.At(l) != nil {
				errs = append(errs, freeRest(l.Attrs().Name, &is, former))
			}
		}
		return errors.Join(errs...)
	})
}

// freeRest takes a program off an interface at which no process is, and none was behind the one with a number.
func freeRest(name string, is *xsk.Attached, former uint64) error {
	mine, err := claims(name)
	if err != nil {
		return err
	}
	defer dropClaims(mine)
	if err := Unserved(name); err != nil {
		return err
	}
	l, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	if is = is.At(l); is == nil {
		return nil
	}
	file, err := offload.RecordFile(l.Attrs().Index)
	if err != nil {
		return err
	}
	if r, err := offload.ReadRecord(file); err != nil || r[offload.Heir] != 0 && r[offload.Heir] != former {
		return err
	}
	return unload(l, is)
}

// shown is the program that is attached by netlink.
func (d *device) shown() *ebpf.Program {
	if d.top != nil {
		return d.top
	}
	return d.prog.Prog
}

// swap attaches next in the place of what is attached by netlink. It acts in the network namespace of the device.
func (d *device) swap(next *ebpf.Program) error {
	if next == d.top {
		return nil
	}
	if err := xsk.Swap(d.index, next, d.shown(), d.mode); err != nil {
		return err
	}
	if !d.outlives {
		return nil
	}
	d.top = next
	return d.forgetLeft()
}

func (d *device) forgetLeft() (err error) {
	for _, m := range d.left {
		err = errors.Join(err, m.Close())
	}
	d.left = nil
	return err
}

// undo releases an interface alone whose process cannot start: it is as it was before Open.
func (d *device) undo() error {
	if d.before == nil || !outlived(d.before) {
		return errors.Join(d.detach(), d.release())
	}
	d.mu.Lock()
	var err error
	if d.attached && (d.link0 != nil || d.top != d.before.Prog) {
		err = offload.Within(d.ns, func() error {
			now := d.top
			if d.link0 != nil {
				if err := d.link0.Close(); err != nil {
					return err
				}
				now = nil
			}
			return xsk.Swap(d.index, d.before.Prog, now, d.mode)
		})
	}
	d.attached, d.front = false, nil
	d.mu.Unlock()
	err = errors.Join(err, d.giveUp())
	d.restore, d.fresh, d.kept = offload.Record{}, offload.Record{}, false // else its ports' Close would undo it once more
	return err
}
