package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/quillon/quillon/internal/bridge"
	"github.com/quillon/quillon/nf/arg"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/port/afpacket"
	"github.com/quillon/quillon/nf/port/afxdp"
	"github.com/quillon/quillon/nf/port/tap"
)

// Kinds of ports.
const (
	kindAFXDP    = "afxdp"
	kindAFPacket = "afpacket"
	kindTAP      = "tap"
)

// xdpArgs are the arguments of an AF_XDP port.
type xdpArgs struct {
	dev      string         `arg:"dev" need:"name the interface" help:"the interface"`
	_        struct{}       `arg:"pair" own:"true" help:"the port that is the other end of the wire: what the graph does not want crosses to it in the kernel, and everything does when this process is gone"`
	mode     afxdp.Mode     `arg:"xdp" words:"auto native generic" help:"auto, native or generic"`
	copying  afxdp.Copying  `arg:"copy" words:"auto always never" help:"auto: where the driver has no zero-copy; always: also where it has, for drivers whose zero-copy is broken; never: zero-copy or nothing"`
	queues   int            `arg:"queues" range:"0.." keep:"all" help:"queues to open"`
	_        struct{}       `arg:"cpu" own:"true" default:"any" help:"processors that the workers are pinned to, as 2,3 or 4-7: that of queue 0 to the first, and so on; the same for all ports"`
	ring     int            `arg:"ring" range:"0.." help:"entries of a ring: frames that may come while a worker is busy"`
	frames   int            `arg:"frames" range:"0.." default:"four rings" help:"frames of memory a queue"`
	busyPoll int            `arg:"busy-poll" range:"0.." help:"µs that a system call polls the device itself"`
	fallback afxdp.Fallback `arg:"fallback" words:"redirect pass" help:"of a pair, frames that no process takes: redirect to the other interface, or pass to the kernel (a bridge that has both)"`
	stale    time.Duration  `arg:"stale" range:"1ns.." default:"60ms" help:"of a pair: how long a worker may be silent before frames cross in the kernel; 1s by default where they are dropped instead, for a function that is closed"`
	keep     bool           `arg:"keep" words:"false true" default:"false, true in a splice of quillon bridge" help:"of a pair: leave the wire in the kernel at a clean stop"`
	leave    bool           `arg:"offloads" words:"set leave" help:"set what AF_XDP needs and restore it at the end, or leave"`
}

// packetArgs are those of a packet socket.
type packetArgs struct {
	dev    string `arg:"dev" need:"name the interface" help:"the interface"`
	frames int    `arg:"frames" range:"0.." default:"1024" help:"frames of memory"`
	leave  bool   `arg:"offloads" words:"set leave" help:"set what is needed and restore it at the end, or leave"`
}

// tapArgs are those of a TAP interface.
type tapArgs struct {
	dev    string `arg:"dev" need:"name the interface" help:"its name; made, and gone with the port, unless it is there already as a persistent one"`
	mtu    int    `arg:"mtu" range:"0.." default:"1500, or as it is" help:"to set; by default one that is there keeps its own"`
	frames int    `arg:"frames" range:"0.." default:"512" help:"frames of memory"`
}

var (
	xdpArguments    = arg.Declare("", xdpArgs{ring: afxdp.DefaultRing})
	packetArguments = arg.Declare("", packetArgs{})
	tapArguments    = arg.Declare("", tapArgs{})
)

// portKinds are the sorts of ports that a Spec may name.
func portKinds() []graph.PortKind {
	return []graph.PortKind{
		{Name: kindAFXDP, Summary: "an interface over AF_XDP, all queues", Params: xdpArguments.Params()},
		{Name: kindAFPacket, Summary: "an interface over a packet socket, where AF_XDP is missing; frames cross only while this process lives", Params: packetArguments.Params()},
		{Name: kindTAP, Summary: "a TAP interface of this host", Params: tapArguments.Params()},
	}
}

// readPort reads the arguments of port name.
func readPort[T any](name string, set *arg.Set[T], args graph.Args) (T, error) {
	v, r := set.Read(args)
	if err := r.Err(); err != nil {
		return v, fmt.Errorf("port %s: %w", name, err)
	}
	return v, nil
}

// openPorts are the ports of a Spec, opened. Once the graph runs, ports are
// added under mu.
type openPorts struct {
	ports map[string][]port.Port

	mu   sync.Mutex
	next uint16 // number of the next port to be added
	open []opened
}

// opened is a port, or a pair of them.
type opened struct {
	queues []port.Port  // of a port alone: a pair stays open for as long as the graph runs
	info   []afxdp.Info // of afxdp
	pair   *afxdp.Pair
	devs   [2]string    // its interfaces
	detach func() error // of afxdp
	close  func() error
}

// bound says what the ports were bound to, those added later included.
func (o *openPorts) bound() []afxdp.Info {
	o.mu.Lock()
	defer o.mu.Unlock()
	var infos []afxdp.Info
	for _, p := range o.open {
		infos = append(infos, p.info...)
	}
	return infos
}

// boundTo is bound, of those of the ports that are still open.
func (o *openPorts) boundTo(open []graph.PortInfo) []afxdp.Info {
	devs := map[string]bool{}
	for _, p := range open {
		if p.Kind == kindAFXDP {
			devs[p.Args["dev"]] = true
		}
	}
	return slices.DeleteFunc(o.bound(), func(i afxdp.Info) bool { return !about(i, devs) })
}

// about says whether i is about one of the interfaces.
func about(i afxdp.Info, devs map[string]bool) bool {
	return slices.ContainsFunc(i.Interfaces, func(x afxdp.InterfaceInfo) bool { return devs[x.Name] })
}

// open opens the ports of spec for what filter wants; on an error none stays
// open.
func open(spec *graph.Spec, filter port.Filter, clk clock.Clock) (*openPorts, error) {
	o, err := prepare(spec, filter, clk)
	if err != nil {
		return nil, err
	}
	if err := o.attach(); err != nil {
		return nil, errors.Join(err, o.Close())
	}
	return o, nil
}

// prepare is open without attach: until then pairs steer no frames here.
func prepare(spec *graph.Spec, filter port.Filter, clk clock.Clock) (_ *openPorts, err error) {
	o := &openPorts{ports: map[string][]port.Port{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, o.Close())
		}
	}()
	names := slices.Sorted(maps.Keys(spec.Ports))
	for i, name := range names {
		if o.ports[name] != nil {
			continue
		}
		p := spec.Ports[name]
		other := p.Args["pair"]
		if other == "" {
			if err := o.openOne(name, uint16(i), p, filter, clk); err != nil {
				return nil, err
			}
			continue
		}
		x, err := readPort(name, xdpArguments, p.Args)
		if err != nil {
			return nil, err
		}
		q, ok := spec.Ports[other]
		if !ok || q.Kind != kindAFXDP || q.Args["pair"] != name {
			return nil, fmt.Errorf("port %s: its pair %q must be an afxdp port with pair: %s", name, other, name)
		}
		if !maps.Equal(withoutDev(p.Args), withoutDev(q.Args)) {
			return nil, fmt.Errorf("ports %s and %s are a pair: but for dev and pair their arguments must be the same", name, other)
		}
		cfg := afxdp.PairConfig{
			A: p.Args["dev"], B: q.Args["dev"], NameA: name, NameB: other,
			IndexA: uint16(i), IndexB: uint16(slices.Index(names, other)), Options: x.options(filter, clk), Fallback: x.fallback, Keep: x.keep,
		}
		if err := o.openPair(name, other, cfg, p.Args); err != nil {
			return nil, err
		}
	}
	o.next = uint16(len(names))
	return o, nil
}

// attach has the pairs steer frames here.
func (o *openPorts) attach() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	for n := range o.open {
		p := &o.open[n]
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
	return nil
}

// openPair opens two ports that are a pair.
func (o *openPorts) openPair(name, other string, cfg afxdp.PairConfig, args graph.Args) error {
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
		s, err := bridge.Of(cfg.A, cfg.B)
		if err != nil {
			return err
		}
		if s != nil {
			cfg.Keep = true
			then := "frames go on crossing when this process has stopped"
			if f := cfg.Filter; f != nil && f.Closed {
				then = "when this process has stopped nothing crosses that a closed function of it wants (quillon nf describe), " +
					"until the next quillon run, or quillon bridge remove " + s.Bridge + " " + s.Port
			}
			notes = append(notes, fmt.Sprintf("%s and %s are a splice of quillon bridge: %s", s.Inner, s.Port, then))
		}
	}
	cfg.Later = true
	pair, err := afxdp.OpenPair(cfg)
	if err != nil {
		return err
	}
	o.ports[name], o.ports[other] = asPorts(pair.A), asPorts(pair.B)
	o.open = append(o.open, opened{info: []afxdp.Info{{Notes: notes}}, pair: pair, devs: [2]string{cfg.A, cfg.B}, detach: pair.Detach, close: pair.Close})
	return nil
}

// openOne opens a port that is not one of a pair.
func (o *openPorts) openOne(name string, index uint16, p graph.PortSpec, filter port.Filter, clk clock.Clock) error {
	var now opened
	switch p.Kind {
	case kindAFXDP:
		x, err := readPort(name, xdpArguments, p.Args)
		if err != nil {
			return err
		}
		d, err := afxdp.Open(afxdp.Config{Name: name, Interface: x.dev, Index: index, Options: x.options(filter, clk)})
		if err != nil {
			return fmt.Errorf("port %s: %w", name, err)
		}
		now = opened{queues: asPorts(d.Ports), info: []afxdp.Info{d.Info()}, detach: d.Detach, close: d.Close}
	case kindAFPacket:
		x, err := readPort(name, packetArguments, p.Args)
		if err != nil {
			return err
		}
		q, err := afpacket.Open(afpacket.Config{Name: name, Interface: x.dev, Index: index, Clock: clk, Frames: x.frames, LeaveOffloads: x.leave})
		if err != nil {
			return fmt.Errorf("port %s: %w", name, err)
		}
		now = opened{queues: []port.Port{q}, close: q.Close}
	case kindTAP:
		x, err := readPort(name, tapArguments, p.Args)
		if err != nil {
			return err
		}
		q, err := tap.Open(tap.Config{Name: name, Device: x.dev, Index: index, Clock: clk, Frames: x.frames, MTU: x.mtu})
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

// add opens one more port while the graph runs.
func (o *openPorts) add(name string, p graph.PortSpec, filter port.Filter, clk clock.Clock) ([]port.Port, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	// What closed ports had is unmapped when it is garbage, and the collector does
	// not see how much that is.
	runtime.GC()
	if err := o.openOne(name, o.next, p, filter, clk); err != nil {
		return nil, err
	}
	o.next++
	return o.ports[name], nil
}

// closed forgets a port that was closed while the graph runs.
func (o *openPorts) closed(queues []port.Port) {
	o.mu.Lock()
	defer o.mu.Unlock()
	is := func(qs []port.Port) bool { return len(qs) > 0 && qs[0] == queues[0] }
	maps.DeleteFunc(o.ports, func(_ string, qs []port.Port) bool { return is(qs) })
	o.open = slices.DeleteFunc(o.open, func(p opened) bool { return is(p.queues) })
}

// Detach takes the workers out of the way of the frames; it comes before they
// stop.
func (o *openPorts) Detach() error {
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

// heldPair is a pair for which Detach has left programs that do not let all cross.
type heldPair struct {
	a, b string // interfaces
	afxdp.Held
}

func (o *openPorts) held() (pairs []heldPair) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, p := range o.open {
		if p.pair != nil && p.pair.Held() != (afxdp.Held{}) {
			pairs = append(pairs, heldPair{p.devs[0], p.devs[1], p.pair.Held()})
		}
	}
	return pairs
}

// free gives back what is left of pairs one of whose interfaces is gone.
func (o *openPorts) free() (names []string, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, p := range o.open {
		if p.pair == nil {
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

// guarded reports whether a word is guarded at a pair.
func (o *openPorts) guarded() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.ContainsFunc(o.open, func(p opened) bool { return p.pair != nil && p.pair.Holds().Words })
}

// orphaned is an error when an earlier process has left connections at a pair that cannot do without it, and known
// is false: that this one knows of them. Frames to them do not cross yet.
func (o *openPorts) orphaned(known bool) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, p := range o.open {
		if p.pair == nil || known {
			continue
		}
		if n, err := p.pair.Orphans(); err != nil {
			return err
		} else if n > 0 {
			free, err := freeing(p.devs[0], p.devs[1])
			if err != nil {
				return err
			}
			return fmt.Errorf("%d queue pairs behind %s and %s cannot do without a process that was here, and without its state: "+
				"start it as it was started (its functions, --name and --state), or end these connections at their clients, and then: %s", n, p.devs[0], p.devs[1], free)
		}
	}
	return nil
}

// freeing is the command that takes a wire between two interfaces away.
func freeing(a, b string) (string, error) {
	s, err := bridge.Of(a, b)
	if err != nil || s == nil {
		return fmt.Sprintf("quillon detach %s %s", a, b), err
	}
	return fmt.Sprintf("quillon bridge remove %s %s", s.Bridge, s.Port), nil
}

// Close puts the interfaces back as they were, but for wires that are kept.
func (o *openPorts) Close() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	var errs []error
	for _, p := range o.open {
		errs = append(errs, p.close())
	}
	return errors.Join(errs...)
}

// print says what was bound; verbose: with the settings that were changed.
func (o *openPorts) print(w io.Writer, verbose bool) {
	for _, i := range o.bound() {
		if verbose {
			fmt.Fprint(w, i)
		} else {
			fmt.Fprint(w, i.Brief())
		}
	}
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

// options are those of AF_XDP.
func (x *xdpArgs) options(filter port.Filter, clk clock.Clock) afxdp.Options {
	return afxdp.Options{
		Filter: &filter, Clock: clk, Mode: x.mode, Copy: x.copying, Queues: x.queues, Ring: x.ring, Frames: x.frames, BusyPoll: x.busyPoll,
		Stale: x.stale, LeaveOffloads: x.leave,
	}
}

// there is which of the names interfaces have; none is an error.
func there(devs ...string) (found []string, err error) {
	for _, dev := range devs {
		_, err := netlink.LinkByName(dev)
		switch {
		case err == nil:
			found = append(found, dev)
		case !errors.As(err, new(netlink.LinkNotFoundError)):
			return nil, fmt.Errorf("interface %s: %w", dev, err)
		}
	}
	if len(found) == 0 {
		return nil, noInterface(devs[0])
	}
	return found, nil
}

// noInterface is the error that none has the name.
type noInterface string

func (n noInterface) Error() string {
	return fmt.Sprintf("no interface is called %s; ip link shows what there is", string(n))
}
