package open

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/vishvananda/netlink"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/port/afxdp"
)

// Valid returns an error if an argument of a port is wrong or missing, or if ports of spec contradict each other: the ends
// of a pair do not name each other or have different arguments, or two ports have one interface and are not both packet
// sockets. It does not look at the machine.
func Valid(spec *graph.Spec) error {
	of := map[string]string{} // ports by interface
	for _, name := range slices.Sorted(maps.Keys(spec.Ports)) {
		p := spec.Ports[name]
		var err error
		switch p.Kind {
		case AFXDP:
			_, err = readPort(name, xdpArguments, p.Args)
		case AFPacket:
			_, err = readPort(name, packetArguments, p.Args)
		case TAP:
			_, err = readPort(name, tapArguments, p.Args)
		default:
			continue // a kind of the caller's own
		}
		if err != nil {
			return err
		}
		dev := p.Args["dev"]
		if former := of[dev]; former != "" && (p.Kind != AFPacket || spec.Ports[former].Kind != AFPacket) {
			return fmt.Errorf("ports %s and %s are both interface %s: an interface is one port", former, name, dev)
		}
		of[dev] = name
		other := p.Args["pair"]
		if p.Kind != AFXDP || other == "" {
			continue
		}
		if q, ok := spec.Ports[other]; !ok || q.Kind != AFXDP || q.Args["pair"] != name {
			return fmt.Errorf("port %s: its pair %q must be an afxdp port with pair: %s", name, other, name)
		} else if !maps.Equal(withoutDev(p.Args), withoutDev(q.Args)) {
			return fmt.Errorf("ports %s and %s are a pair: but for dev and pair their arguments must be the same", name, other)
		}
	}
	return nil
}

// Check returns an error if an interface that the ports of spec need is missing, or if a pair consists of a bridge and
// one of its ports, or of the two ends of one veth. It opens nothing.
func Check(spec *graph.Spec) error {
	for _, name := range slices.Sorted(maps.Keys(spec.Ports)) {
		p := spec.Ports[name]
		if dev := p.Args["dev"]; dev != "" && p.Kind != TAP {
			if _, err := Present(dev); err != nil {
				return fmt.Errorf("port %s: %w", name, err)
			}
		}
		other := spec.Ports[p.Args["pair"]].Args["dev"]
		if _, err := besideBridge(p.Args["dev"], other); err != nil {
			return err
		}
		if err := NoLoop(p.Args["dev"], other); err != nil {
			return err
		}
	}
	return nil
}

// NoLoop returns an error if the interfaces are one, or the two ends of one veth: a frame would go round it for ever. An interface may
// have several names. NoLoop returns nil if one of the interfaces does not exist.
func NoLoop(a, b string) error {
	l, err := netlink.LinkByName(b)
	if b == "" || err != nil {
		return nil
	}
	m, err := netlink.LinkByName(a)
	switch {
	case err != nil:
		return nil
	case m.Attrs().Index == l.Attrs().Index:
		return fmt.Errorf("%s and %s are one interface: name the interfaces of two links", a, b)
	case afxdp.OtherEnd(a) == l.Attrs().Name:
		return fmt.Errorf("%s and %s are the two ends of one veth, and a frame would go round it for ever: name the interfaces of two links", a, b)
	}
	return nil
}

// Present returns those of the names that interfaces have. If there is none, the error is a NoInterface.
func Present(devs ...string) (found []string, err error) {
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
		return nil, NoInterface(devs[0])
	}
	return found, nil
}

// NoInterface is the error that no interface has the name.
type NoInterface string

func (n NoInterface) Error() string {
	return fmt.Sprintf("no interface is called %s; ip link shows what there is", string(n))
}

// besideBridge is an error when an inline pair would be of a bridge and one of its ports, and a hint when one of the two
// interfaces is a port of a bridge, which gets none of its frames then; "": neither is.
func besideBridge(a, b string) (hint string, err error) {
	for _, x := range [][2]string{{a, b}, {b, a}} {
		l, err := netlink.LinkByName(x[0])
		if err != nil || l.Attrs().MasterIndex == 0 {
			continue // that it is not there is said elsewhere
		}
		br, err := netlink.LinkByIndex(l.Attrs().MasterIndex)
		if err != nil || br.Type() != "bridge" {
			continue
		}
		way := fmt.Sprintf("quillon bridge insert %s %s, and then quillon run --inline %[2]s-q,%[2]s", br.Attrs().Name, x[0])
		if br.Attrs().Name == x[1] {
			return "", fmt.Errorf("%s is a port of bridge %s: to put functions between the two, %s", x[0], x[1], way)
		}
		if hint == "" {
			hint = fmt.Sprintf("%s is a port of bridge %s, which gets no frames from it now: to put functions between the two, quillon stop, %s", x[0], br.Attrs().Name, way)
		}
	}
	return hint, nil
}
