package afxdp

import (
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"

	"github.com/quillon/quillon/internal/xsk"
	"github.com/quillon/quillon/internal/xsk/offload"
	"github.com/quillon/quillon/nf/port"
)

// FrontProgram is the name of a Front's program, as bpftool shows it.
const FrontProgram = "quillon_p4"

// FlowsProgram is the name of the program of package nf/offload/xdp.
const FlowsProgram = "quillon_flows"

// Front is a program of somebody else that an interface has in front of its own. What it does not finish it gives to the interface's own program by a
// tail call.
type Front struct {
	Program *ebpf.Program
	// Own is told the interface's own program: before the Front is attached, and whenever another takes its place.
	Own func(own *ebpf.Program) error
	// Watch is told that somebody looks at all frames of the interface, which the Front leaves to the interface's own program then, or that nobody does any
	// more. It is called before the Front is attached, and whenever that changes.
	Watch func(watched bool)
}

// Interface is what a Front has to know of a port's interface.
type Interface struct {
	Name  string
	Index int
	MTU   int
	// Native: its program runs in the driver. Alone: it is not one of a pair.
	Native, Alone bool
	// Namespace is the network namespace that Index is of.
	Namespace string
}

// Interface is that of the port.
func (p *Port) Interface() Interface {
	d := p.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	return Interface{Name: d.name, Index: d.index, MTU: d.mtu, Native: d.mode == xsk.Native, Alone: d.alone, Namespace: d.ns.UniqueId()}
}

// Within calls f in the network namespace of the port, in which its interface has its index.
func (p *Port) Within(f func() error) error {
	p.dev.mu.Lock()
	ns := p.dev.ns
	p.dev.mu.Unlock()
	if !ns.IsOpen() {
		return port.ErrClosed
	}
	return offload.Within(ns, f)
}

// Receives readies the port's interface for frames that XDP programs redirect to it natively, which arrive at the other end of a veth only if it does GRO.
// An error that wraps port.ErrNotSupported says that they do not arrive. It acts in the network namespace of the port.
func (p *Port) Receives() error {
	d := p.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.attached {
		return port.ErrClosed
	}
	return offload.Within(d.ns, func() error {
		can := func() bool {
			f, err := xsk.FeaturesOf(d.index)
			return err == nil && f&xsk.CanTransmit != 0
		}
		if can() {
			return nil
		}
		if !d.opt.LeaveOffloads {
			if err := d.changeOffloads(true); err != nil {
				return err
			}
		}
		if !can() {
			return fmt.Errorf("frames that are redirected to %s would be lost (on a veth: its other end needs gro on): %w", d.name, port.ErrNotSupported)
		}
		return nil
	})
}

// Arrives returns nil if frames of length bytes (Ethernet header included) that XDP programs redirect to the port's interface get to the other end of its
// cable; else the error says why not. The kernel drops such frames and tells nobody. The network namespace of the caller does not matter.
func (p *Port) Arrives(length int) error {
	d := p.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.attached {
		return port.ErrClosed
	}
	return offload.Within(d.ns, func() error {
		if f, err := xsk.FeaturesOf(d.index); err != nil || f&xsk.CanTransmit == 0 {
			return fmt.Errorf("frames that are redirected to %s are lost (on a veth: its other end needs gro on): %w", d.name, port.ErrNotSupported)
		}
		l, err := netlink.LinkByIndex(d.index)
		if err != nil {
			return fmt.Errorf("interface %s: %w", d.name, err)
		}
		if mtu := l.Attrs().MTU; mtu+14 < length {
			return fmt.Errorf("%s has an MTU of %d now, and had one of %d: %w", d.name, mtu, length-14, port.ErrNotSupported)
		}
		return nil
	})
}

// Receiver is a port that a Front sends frames to, and the length of the longest one.
type Receiver struct {
	Port    *Port
	Longest int
}

// watchEvery is the time between two looks of Watch.
const watchEvery = 250 * time.Millisecond

// Watch asks four times a second whether frames arrive (Port.Arrives) at some ports, and calls tell with an error for each of them, which is nil if they do.
// It has stopped when stop returns.
func Watch(ports []Receiver, tell func(lost []error)) (stop func()) {
	quit, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		t := time.NewTicker(watchEvery)
		defer t.Stop()
		for {
			select {
			case <-quit:
				return
			case <-t.C:
			}
			lost := make([]error, len(ports))
			for i, r := range ports {
				if err := r.Port.Arrives(r.Longest); !errors.Is(err, port.ErrClosed) {
					lost[i] = err
				}
			}
			tell(lost)
		}
	}()
	return func() {
		close(quit)
		<-ended
	}
}

// SetFront attaches a Front in front of the interface's own program, in the place of the one that it had; nil: the interface has its own alone. No frame is
// lost meanwhile. That of an interface which is one of a pair needs a filter that wants all frames, and is gone at once when the process ends, while the
// wire stays.
func (p *Port) SetFront(f *Front) error {
	d := p.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case !d.attached:
		return port.ErrClosed
	case f == nil && d.front == nil:
		return nil
	case d.link0 == nil:
		return d.setFront(f)
	}
	prog := d.prog.Prog
	if f != nil {
		if err := f.Own(prog); err != nil {
			return fmt.Errorf("interface %s: %w", d.name, err)
		}
		f.Watch(d.watched)
		prog = f.Program
	}
	if err := offload.Within(d.ns, func() error { return d.link0.Update(prog) }); err != nil {
		return fmt.Errorf("attach to %s: %w", d.name, err)
	}
	d.front = f
	return nil
}

// setFront is SetFront for one of a pair.
func (d *device) setFront(f *Front) error {
	if f == nil {
		d.front = nil
		if err := d.fronts.Delete(uint32(0)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("interface %s: %w", d.name, err)
		}
		return nil
	}
	if d.part(d.spec).Front == nil {
		return fmt.Errorf("interface %s: its wire has no place for a program in front: %w", d.name, port.ErrNotSupported)
	}
	was := d.front
	d.front = f
	err := offload.Within(d.ns, func() error { return d.behind(d.spec) })
	if err == nil {
		f.Watch(d.watched)
		err = d.fronts.Put(uint32(0), uint32(f.Program.FD()))
	}
	if err != nil {
		d.front = was
		return fmt.Errorf("interface %s: %w", d.name, err)
	}
	return nil
}

// behind has the Front of one of a pair give its frames to a program that is like the interface's own, but for the place in front.
func (d *device) behind(spec xsk.ProgramSpec) error {
	if d.front == nil {
		return nil
	}
	part := d.part(spec)
	part.Front = nil
	own, err := xsk.Load(xsk.PortProgram, part)
	if err != nil {
		return err
	}
	if err := d.front.Own(own.Prog); err != nil {
		return errors.Join(err, own.Close())
	}
	old := d.own
	d.own = own
	return old.Close()
}

// update has prog be the program of an interface alone.
func (d *device) update(prog *ebpf.Program) error {
	if d.front != nil {
		return d.front.Own(prog)
	}
	return d.link0.Update(prog)
}

// watch takes out of a filter that somebody watches where only a Front has to know: the interface's own program gives all frames to the graph anyway.
func (d *device) watch(f port.Filter) port.Filter {
	if watched := f.Watched && f.All; watched != d.watched {
		d.watched = watched
		if d.front != nil {
			d.front.Watch(watched)
		}
	}
	f.Watched = f.Watched && !f.All
	return f
}
