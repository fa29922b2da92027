package xdp

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/cilium/ebpf"

	"github.com/quillon/quillon/nf/offload"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/port/afxdp"
)

// engine is a Kernel whose program is attached to interfaces. It implements offload.Engine.
type engine struct {
	*Kernel
	ports map[string]place
	left  []string
	// By the numbers of ports.
	front []*afxdp.Port
	index []int
	to    []afxdp.Receiver

	stop    func()     // of afxdp.Watch
	mu      sync.Mutex // of what follows
	watches []bool     // whether somebody looks at a port's frames, by its number
	lost    error      // why frames to some port do not arrive
	watched atomic.Bool
}

type place struct{ number, longest int }

// Open attaches a program, with room for that number of entries, to the interfaces of those ports that can have
// it; the Engine's Left says why others cannot. It fails if fewer than two ports can. ports has the queues of
// each port, by name.
func Open(ports map[string][]port.Port, entries int) (_ offload.Engine, err error) {
	e := &engine{ports: map[string]place{}}
	var used []string
	for _, name := range slices.Sorted(maps.Keys(ports)) {
		if why := usable(ports[name]); why != nil {
			e.left = append(e.left, fmt.Sprintf("port %s: %v", name, why))
			continue
		}
		// The program knows interfaces by their indices, and sends only within one namespace.
		if of := func(name string) string { return ports[name][0].(*afxdp.Port).Interface().Namespace }; len(used) > 0 && of(name) != of(used[0]) {
			e.left = append(e.left, fmt.Sprintf("port %s: it is in another network namespace than port %s", name, used[0]))
			continue
		}
		used = append(used, name)
	}
	if len(used) < 2 {
		return nil, errors.New(strings.Join(append(e.left, "two ports are needed"), "; "))
	}
	first := ports[used[0]][0].(*afxdp.Port)
	// An interface's index is valid in its own namespace only, which the goroutine may not be in.
	if err = first.Within(func() (err error) {
		e.Kernel, err = New(entries)
		if err != nil {
			return err
		}
		for n, name := range used {
			i := ports[name][0].(*afxdp.Port).Interface()
			e.ports[name] = place{n, i.MTU + 14}
			e.index, e.to = append(e.index, i.Index), append(e.to, afxdp.Receiver{Port: ports[name][0].(*afxdp.Port), Longest: i.MTU + 14})
			if err := e.SetPort(n, i.Index); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		first, _, _ := strings.Cut(err.Error(), "\n")
		return nil, errors.Join(errors.New(first), e.Close())
	}
	e.watches = make([]bool, len(used))
	for n, name := range used {
		p := ports[name][0].(*afxdp.Port)
		f := &afxdp.Front{Program: e.prog, Own: func(own *ebpf.Program) error { return e.own.Put(uint32(n), uint32(own.FD())) }, Watch: func(on bool) {
			e.mu.Lock()
			defer e.mu.Unlock()
			e.watches[n] = on
			e.turn()
		}}
		if err := p.SetFront(f); err != nil {
			return nil, errors.Join(err, e.Close())
		}
		e.front = append(e.front, p)
	}
	e.stop = afxdp.Watch(e.to, func(lost []error) {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.lost = errors.Join(lost...)
		e.turn()
	})
	return e, nil
}

// turn has the program run frames of the ports where nobody looks at them. The caller has e.mu.
func (e *engine) turn() {
	e.watched.Store(e.lost != nil || slices.Contains(e.watches, true))
	for n, index := range e.index {
		e.Turn(n, index, e.lost == nil && !e.watches[n])
	}
}

// usable returns why a port's interface cannot have the program, or nil if it can.
func usable(queues []port.Port) error {
	p, ok := queues[0].(*afxdp.Port)
	if !ok {
		return errors.New("it is not of kind afxdp")
	}
	i := p.Interface()
	if !i.Native {
		return fmt.Errorf("%s has generic XDP", i.Name)
	}
	return p.Receives()
}

// Port implements offload.Engine.
func (e *engine) Port(name string) (number, longest int) {
	if p, ok := e.ports[name]; ok {
		return p.number, p.longest
	}
	return -1, 0
}

// Watched implements offload.Engine.
func (e *engine) Watched() bool { return e.watched.Load() }

// Left implements offload.Engine.
func (e *engine) Left() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.lost == nil {
		return e.left
	}
	return append(slices.Clone(e.left), "no frame is run: "+e.lost.Error())
}

// Close implements offload.Engine.
func (e *engine) Close() error {
	var errs []error
	if e.stop != nil {
		e.stop()
	}
	for _, p := range e.front {
		if err := p.SetFront(nil); !errors.Is(err, port.ErrClosed) {
			errs = append(errs, err)
		}
	}
	if e.Kernel != nil {
		errs = append(errs, e.Kernel.Close())
	}
	return errors.Join(errs...)
}
