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

// Front is an XDP program of another package that gets an interface's frames before the interface's own program. It
// gives frames that it does not finish to the interface's own program by a tail call.
type Front struct {
	Program *ebpf.Program
	// Own is called with the interface's own program before the Front is attached, and whenever another program
	// replaces that one.
	Own func(own *ebpf.Program) error
	// Watch is called before the Front is attached, and whenever watched changes. While watched is true, somebody
	// looks at all frames of the interface, and the Front leaves all to the interface's own program.
	Watch func(watched bool)
	// Stays has the program run frames after the process has died, on an interface that outlives it (Port.Outlive). The
	// map of Own is empty then. Without Stays such an interface drops all frames.
	Stays bool
}

// Interface describes a port's interface to a Front.
type Interface struct {
	Name  string
	Index int
	MTU   int
	// Native says that the interface's program runs in the driver, Alone that the interface is not one of a pair.
	Native, Alone bool
	// Namespace is the network namespace in which Index is valid.
	Namespace string
}

// Interface returns the description of the port's interface.
func (p *Port) Interface() Interface {
	d := p.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	return Interface{Name: d.name, Index: d.index, MTU: d.mtu, Native: d.mode == xsk.Native, Alone: d.alone, Namespace: d.ns.UniqueId()}
}

// Within calls f in the network namespace of the port, in which the interface's index is valid.
func (p *Port) Within(f func() error) error {
	p.dev.mu.Lock()
	ns := p.dev.ns
	p.dev.mu.Unlock()
	if !ns.IsOpen() {
		return port.ErrClosed
	}
	return offload.Within(ns, f)
}

// Receives prepares the port's interface for frames that XDP programs redirect to it natively. On a veth, such frames
// arrive only if its other end has GRO on. If they would not arrive, Receives returns an error that wraps
// port.ErrNotSupported. It acts in the network namespace of the port.
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

// Arrives returns nil if frames of length bytes (Ethernet header included) that XDP programs redirect to the port's
// interface reach the other end of its cable, and else an error that says why not. The kernel drops such frames without
// telling anybody. The network namespace of the caller does not matter.
func (p *Port) Arrives(length int) error {
	d := p.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.attached {
		return port.ErrClosed
	}
	return offload.Within(d.ns, func() error {
		l, err := netlink.LinkByIndex(d.index)
		if errors.As(err, new(netlink.LinkNotFoundError)) {
			return fmt.Errorf("interface %s is gone", d.name)
		}
		if err != nil {
			return fmt.Errorf("interface %s: %w", d.name, err)
		}
		if f, err := xsk.FeaturesOf(d.index); err != nil || f&xsk.CanTransmit == 0 {
			return fmt.Errorf("frames that are redirected to %s are lost (on a veth: its other end needs gro on): %w", d.name, port.ErrNotSupported)
		}
		if mtu := l.Attrs().MTU; mtu+14 < length {
			return fmt.Errorf("%s has an MTU of %d now, and had one of %d: %w", d.name, mtu, length-14, port.ErrNotSupported)
		}
		return nil
	})
}

// Receiver is a port that a Front sends frames to. Longest is the length of the longest of them in bytes.
type Receiver struct {
	Port    *Port
	Longest int
}

const (
	// watchEvery is the time between two checks of Watch.
	watchEvery = 250 * time.Millisecond
	// watched is the number of ports that one check looks at. A look takes three requests to the kernel.
	watched = 16
)

// Watch starts a goroutine that checks four times a second whether frames arrive at the ports (Port.Arrives): at all of
// them, or at the next 16 in turn if there are more. It then calls tell with one error for each port, nil if frames arrive
// or the port is closed; tell may not keep the slice. stop waits until the goroutine has ended.
func Watch(ports []Receiver, tell func(lost []error)) (stop func()) {
	quit, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		t := time.NewTicker(watchEvery)
		defer t.Stop()
		lost, next := make([]error, len(ports)), 0
		for {
			select {
			case <-quit:
				return
			case <-t.C:
			}
			for range min(watched, len(ports)) {
				r := ports[next]
				if lost[next] = r.Port.Arrives(r.Longest); errors.Is(lost[next], port.ErrClosed) {
					lost[next] = nil
				}
				next = (next + 1) % len(ports)
			}
			tell(lost)
		}
	}()
	return func() {
		close(quit)
		<-ended
	}
}

// SetFront attaches f in front of the interface's own program and replaces the former Front; nil removes it. No frame
// is lost meanwhile. On an interface of a pair, a Front needs a filter that wants all frames, and vanishes when the
// process ends, while the wire stays.
func (p *Port) SetFront(f *Front) error {
	d := p.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case !d.attached:
		return port.ErrClosed
	case f == nil && d.front == nil && d.left == nil:
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

// setFront does what SetFront does, for an interface whose program outlives the process. d.mu is held.
func (d *device) setFront(f *Front) error {
	if f == nil {
		d.front = nil
		if d.outlives {
			if err := offload.Within(d.ns, func() error { return d.swap(d.prog.Prog) }); err != nil {
				return fmt.Errorf("attach to %s: %w", d.name, err)
			}
		}
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
	err := offload.Within(d.ns, func() error {
		if err := d.behind(d.spec); err != nil {
			return err
		}
		f.Watch(d.watched)
		if f.Stays {
			return d.swap(f.Program)
		}
		if err := d.fronts.Put(uint32(0), uint32(f.Program.FD())); err != nil || !d.outlives {
			return err
		}
		return d.swap(d.prog.Prog)
	})
	if err != nil {
		d.front = was
		return fmt.Errorf("interface %s: %w", d.name, err)
	}
	return nil
}

// behind loads a program that is like the own program of an interface of a pair but has no place for a Front, and makes
// the Front, if there is one, give its frames to that program.
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

// update makes prog the own program of an interface that is alone.
func (d *device) update(prog *ebpf.Program) error {
	if d.front != nil {
		return d.front.Own(prog)
	}
	return d.link0.Update(prog)
}

// watch returns f without Watched if f wants all frames, because the interface's own program then gives all frames to
// the graph anyway. It tells the Front if this changes whether somebody watches.
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
