package open

import (
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/port/afpacket"
	"github.com/quillon/quillon/nf/port/afxdp"
	"github.com/quillon/quillon/nf/port/tap"
)

// Config has the parameters of opening the ports of a Spec.
type Config struct {
	// Filter says which frames the graph wants (graph.Wants); all others of a pair cross in the kernel.
	Filter port.Filter
	Clock  clock.Clock
	// Splice, if not nil, returns the splice that two interfaces belong to, or nil. The wire of a splice stays in the
	// kernel when its ports are closed, because no frame would cross without it.
	Splice func(a, b string) (*Splice, error)
	// Endpoint says that the ports forward nothing. Other processes may have packet sockets at the same interfaces.
	Endpoint bool
}

// Splice names two interfaces between which a middlebox was inserted, as "quillon bridge insert" does.
type Splice struct {
	Inner, Port string
	Remove      string // the command that takes the splice away
}

// Ports are the open ports of a Spec. Any goroutine may call the methods.
type Ports struct {
	cfg Config

	mu    sync.Mutex
	ports map[string][]port.Port
	next  uint16 // number of the next port to be added
	open  []opened
}

// Queues returns the queues of each open port by name, for graph.Config.Ports.
func (o *Ports) Queues() map[string][]port.Port {
	o.mu.Lock()
	defer o.mu.Unlock()
	return maps.Clone(o.ports)
}

// opened is a port, or a pair of them.
type opened struct {
	queues []port.Port  // of a port alone: a pair stays open for as long as the graph runs
	info   []afxdp.Info // of afxdp
	pair   *afxdp.Pair
	devs   [2]string    // its interfaces
	attach func() error // of afxdp, not of a pair
	detach func() error // of afxdp
	close  func() error
	undo   func() error // nil: close
}

// Bound returns what the ports were bound to, including ports added later.
func (o *Ports) Bound() []afxdp.Info {
	o.mu.Lock()
	defer o.mu.Unlock()
	var infos []afxdp.Info
	for _, p := range o.open {
		infos = append(infos, p.info...)
	}
	return infos
}

// BoundTo returns what Bound does, but only for the ports in open.
func (o *Ports) BoundTo(open []graph.PortInfo) []afxdp.Info {
	devs := map[string]bool{}
	for _, p := range open {
		if p.Kind == AFXDP {
			devs[p.Args["dev"]] = true
		}
	}
	return slices.DeleteFunc(o.Bound(), func(i afxdp.Info) bool { return !about(i, devs) })
}

// about reports whether i describes one of the interfaces.
func about(i afxdp.Info, devs map[string]bool) bool {
	return slices.ContainsFunc(i.Interfaces, func(x afxdp.InterfaceInfo) bool { return devs[x.Name] })
}

// Open calls Prepare and Attach. If it fails, no port stays open.
func Open(spec *graph.Spec, cfg Config) (*Ports, error) {
	o, err := Prepare(spec, cfg)
	if err != nil {
		return nil, err
	}
	if err := o.Attach(); err != nil {
		return nil, errors.Join(err, o.Undo())
	}
	return o, nil
}

// Prepare opens the ports of spec. Pairs steer no frames to the process until Attach; all other ports receive at once.
// If Prepare fails, no port stays open.
func Prepare(spec *graph.Spec, cfg Config) (_ *Ports, err error) {
	o := &Ports{cfg: cfg, ports: map[string][]port.Port{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, o.Undo())
		}
	}()
	if err := Valid(spec); err != nil {
		return nil, err
	}
	names := slices.Sorted(maps.Keys(spec.Ports))
	for i, name := range names {
		if o.ports[name] != nil {
			continue
		}
		p := spec.Ports[name]
		other := p.Args["pair"]
		if other == "" {
			if err := o.openOne(name, uint16(i), p); err != nil {
				return nil, err
			}
			continue
		}
		x, err := readPort(name, xdpArguments, p.Args)
		if err != nil {
			return nil, err
		}
		wire := afxdp.PairConfig{
			A: p.Args["dev"], B: spec.Ports[other].Args["dev"], NameA: name, NameB: other,
			IndexA: uint16(i), IndexB: uint16(slices.Index(names, other)), Options: x.options(o.cfg.Filter, o.cfg.Clock), Fallback: x.fallback, Keep: x.keep,
		}
		if err := o.openPair(name, other, wire, p.Args); err != nil {
			return nil, err
		}
	}
	o.next = uint16(len(names))
	return o, nil
}

// Attach has the pairs steer frames here.
func (o *Ports) Attach() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	for n := range o.open {
		p := &o.open[n]
		if p.attach != nil {
			if err := p.attach(); err != nil {
				return err
			}
		}
		if p.pair == nil {
			continue
		}
		if err := p.pair.Attach(); err != nil {
			return err
		}
		info := p.pair.Info()
		info.Notes = append(info.Notes, p.info[0].Notes...)
		p.info = []afxdp.Info{info}
	}
	for _, p := range o.open {
		if p.pair != nil || p.attach == nil {
			continue
		}
		if q, ok := p.queues[0].(*afxdp.Port); ok {
			go func() { _ = afxdp.FreeRest(q) }() // what stays is shown to who asks what was left
		}
	}
	return nil
}

// openPair opens two ports that are a pair.
func (o *Ports) openPair(name, other string, cfg afxdp.PairConfig, args graph.Args) error {
	var notes []string
	hint, err := besideBridge(cfg.A, cfg.B)
	if err != nil {
		return err
	}
	if hint != "" && cfg.Fallback != afxdp.Pass {
		notes = append(notes, hint)
	}
	if args["keep"] == "" {
		// Without a wire a splice would cut its port off.
		s, err := o.splice(cfg.A, cfg.B)
		if err != nil {
			return err
		}
		if s != nil {
			cfg.Keep = true
			then := "frames go on crossing when this process has stopped"
			if f := cfg.Filter; f != nil && f.Closed {
				then = "when this process has stopped nothing crosses that a closed function of it wants (quillon nf describe), " +
					"until the next quillon run, or " + s.Remove
			}
			notes = append(notes, fmt.Sprintf("%s and %s are a splice of quillon bridge: %s", s.Inner, s.Port, then))
		}
	}
	for _, dev := range []string{cfg.A, cfg.B} {
		if err := unclaimed(dev, false); err != nil {
			return err
		}
	}
	cfg.Later = true
	pair, err := afxdp.OpenPair(cfg)
	if err != nil {
		return err
	}
	// A process that opens packet sockets waits from now on, see afxdp.Beside. One that has opened its first socket since the look
	// before waits for the interfaces that are claimed here, so that nobody must wait for that socket.
	if err := errors.Join(unclaimed(cfg.A, true), unclaimed(cfg.B, true)); err != nil {
		return errors.Join(err, pair.Undo())
	}
	o.ports[name], o.ports[other] = asPorts(pair.A), asPorts(pair.B)
	o.open = append(o.open, opened{info: []afxdp.Info{{Notes: notes}}, pair: pair, devs: [2]string{cfg.A, cfg.B}, detach: pair.Detach, close: pair.Close, undo: pair.Undo})
	return nil
}

// openOne opens a port that is not one of a pair.
func (o *Ports) openOne(name string, index uint16, p graph.PortSpec) error {
	var now opened
	switch p.Kind {
	case AFXDP:
		x, err := readPort(name, xdpArguments, p.Args)
		if err != nil {
			return err
		}
		if err := afpacket.Unclaimed(x.dev, false); err != nil {
			return fmt.Errorf("port %s: %w", name, err)
		}
		d, err := afxdp.Open(afxdp.Config{Name: name, Interface: x.dev, Index: index, Options: x.options(o.cfg.Filter, o.cfg.Clock)})
		if err != nil {
			return fmt.Errorf("port %s: %w", name, err)
		}
		if err := afpacket.Unclaimed(x.dev, true); err != nil { // since the look before
			return errors.Join(fmt.Errorf("port %s: %w", name, err), d.Undo())
		}
		now = opened{queues: asPorts(d.Ports), info: []afxdp.Info{d.Info()}, attach: d.Attach, detach: d.Detach, close: d.Close, undo: d.Undo}
	case AFPacket:
		x, err := readPort(name, packetArguments, p.Args)
		if err != nil {
			return err
		}
		q, err := openPackets(afpacket.Config{Name: name, Interface: x.dev, Index: index, Clock: o.cfg.Clock, Frames: x.frames, LeaveOffloads: x.leave, Alone: !o.cfg.Endpoint, AtOnce: true})
		if err != nil {
			return fmt.Errorf("port %s: %w", name, err)
		}
		now = opened{queues: []port.Port{q}, close: q.Close}
	case TAP:
		x, err := readPort(name, tapArguments, p.Args)
		if err != nil {
			return err
		}
		q, err := tap.Open(tap.Config{Name: name, Device: x.dev, Index: index, Clock: o.cfg.Clock, Frames: x.frames, MTU: x.mtu})
		if err != nil {
			return fmt.Errorf("port %s: %w", name, err)
		}
		now = opened{queues: []port.Port{q}, close: q.Close}
	default:
		return fmt.Errorf("port %s: unknown kind %q", name, p.Kind)
	}
	o.ports[name] = now.queues
	o.open = append(o.open, now)
	return nil
}

// unclaimed returns an error if another process has packet sockets at an interface, or at the other end of a veth: they would lose
// what a wire redirects there (see afxdp.Beside). It waits as afpacket.Unclaimed does.
func unclaimed(dev string, atOnce bool) error {
	if err := afpacket.Unclaimed(dev, atOnce); err != nil {
		return err
	}
	if other := afxdp.OtherEnd(dev); other != "" {
		if err := afpacket.Unclaimed(other, atOnce); err != nil {
			return fmt.Errorf("the other end of %s would lose frames (use packet sockets here, too: --port afpacket): %w", dev, err)
		}
	}
	return nil
}

// openPackets opens packet sockets while no other process opens an AF_XDP port at the interface. It waits for other packet sockets
// before, so that nobody waits for it.
func openPackets(cfg afpacket.Config) (q *afpacket.Port, err error) {
	for {
		err = afxdp.Beside(cfg.Interface, cfg.Alone && !cfg.LeaveOffloads, func() (err error) {
			q, err = afpacket.Open(cfg)
			return err
		})
		if !errors.Is(err, afpacket.ErrClaimed) {
			return q, err
		}
		if err = afpacket.Unclaimed(cfg.Interface, false); err != nil {
			return nil, err
		}
	}
}

// Add opens one more port while the graph runs: it is a graph.Config.OpenPort.
func (o *Ports) Add(name string, p graph.PortSpec) ([]port.Port, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	// What closed ports had is unmapped when it is garbage, and the collector does
	// not see how much that is.
	runtime.GC()
	if err := o.openOne(name, o.next, p); err != nil {
		return nil, err
	}
	o.next++
	if attach := o.open[len(o.open)-1].attach; attach != nil {
		if err := attach(); err != nil {
			err = errors.Join(err, o.open[len(o.open)-1].undo())
			o.open = o.open[:len(o.open)-1]
			delete(o.ports, name)
			return nil, err
		}
	}
	return o.ports[name], nil
}

// Closed forgets a port that was closed while the graph runs: it is a graph.Config.ClosedPort.
func (o *Ports) Closed(queues []port.Port) {
	o.mu.Lock()
	defer o.mu.Unlock()
	is := func(qs []port.Port) bool { return len(qs) > 0 && qs[0] == queues[0] }
	maps.DeleteFunc(o.ports, func(_ string, qs []port.Port) bool { return is(qs) })
	o.open = slices.DeleteFunc(o.open, func(p opened) bool { return is(p.queues) })
}

// Detach takes the workers out of the way of the frames, which cross in the kernel from then on; it comes before the
// workers end.
func (o *Ports) Detach() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	var errs []error
	for _, p := range o.open {
		if p.detach != nil {
			errs = append(errs, p.detach())
		}
	}
	return errors.Join(errs...)
}

// HeldPair is a pair for which Detach has left programs that do not let all frames cross.
type HeldPair struct {
	A, B string // interfaces
	Free string // the command that takes the programs away
	afxdp.Held
}

// Held are the pairs that hold frames back when the ports are closed.
func (o *Ports) Held() (pairs []HeldPair) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, p := range o.open {
		if p.pair != nil && p.pair.Held() != (afxdp.Held{}) {
			pairs = append(pairs, HeldPair{p.devs[0], p.devs[1], o.freeing(p.devs), p.pair.Held()})
		}
	}
	return pairs
}

// Free comes when the graph has failed. It gives back what is left of pairs one of whose interfaces is gone, and names the other
// interface of each; and it closes packet sockets and TAP devices.
func (o *Ports) Free() (names []string, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, p := range o.open {
		if p.pair == nil {
			if p.attach == nil { // packet sockets end with the process, and what was set for them would stay
				err = errors.Join(err, p.close())
			}
			continue
		}
		name, e := p.pair.Free()
		if name != "" {
			names = append(names, name)
		}
		err = errors.Join(err, e)
	}
	return names, err
}

// Replaced reports whether the XDP program of interface dev, whose number is id, is another one than that of its pair.
func (o *Ports) Replaced(dev string, id uint32) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.ContainsFunc(o.open, func(p opened) bool { return p.pair != nil && p.pair.Replaced(dev, id) })
}

// Guarded reports whether a word is guarded at a pair.
func (o *Ports) Guarded() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.ContainsFunc(o.open, func(p opened) bool { return p.pair != nil && p.pair.Holds().Words })
}

// Orphaned is an error when an earlier process has left connections at a pair that cannot do without it, and the apps of
// inst, which has not begun, do not know all of their queue pairs. Frames to these connections do not cross yet.
func (o *Ports) Orphaned(inst *graph.Instance) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	known, more := inst.Bound()
	for _, p := range o.open {
		if p.pair == nil || more {
			continue
		}
		if n, err := p.pair.Orphans(known); err != nil {
			return err
		} else if n > 0 {
			return fmt.Errorf("%d queue pairs behind %s and %s cannot do without a process that was here, and without its state: "+
				"start it as it was started (its functions, --name and --state), or end these connections at their clients, and then: %s", n, p.devs[0], p.devs[1], o.freeing(p.devs))
		}
	}
	return nil
}

// splice is Config.Splice where it is set.
func (o *Ports) splice(a, b string) (*Splice, error) {
	if o.cfg.Splice == nil {
		return nil, nil
	}
	return o.cfg.Splice(a, b)
}

// freeing is the command that takes a wire between two interfaces away.
func (o *Ports) freeing(devs [2]string) string {
	if s, err := o.splice(devs[0], devs[1]); err == nil && s != nil {
		return s.Remove
	}
	return fmt.Sprintf("quillon detach %s %s", devs[0], devs[1])
}

// Close puts the interfaces back as they were, but for wires that are kept.
func (o *Ports) Close() error { return o.each(func(p *opened) error { return p.close() }) }

// Revert comes before the graph is closed where it has not run: ports that are no pairs are as they were before.
func (o *Ports) Revert() {
	_ = o.each(func(p *opened) error { // Undo has the error again
		if p.attach != nil {
			return p.undo()
		}
		return nil
	})
}

// Undo is Close where the graph has not run, as it cannot: wires that an earlier process left are as they were, too.
func (o *Ports) Undo() error {
	return o.each(func(p *opened) error {
		if p.undo != nil {
			return p.undo()
		}
		return p.close()
	})
}

func (o *Ports) each(do func(p *opened) error) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	var errs []error
	for i := range o.open {
		errs = append(errs, do(&o.open[i]))
	}
	return errors.Join(errs...)
}

func asPorts(qs []*afxdp.Port) []port.Port {
	ps := make([]port.Port, len(qs))
	for i, q := range qs {
		ps[i] = q
	}
	return ps
}

func withoutDev(a graph.Args) graph.Args {
	b := maps.Clone(a)
	delete(b, "dev")
	delete(b, "pair")
	return b
}
