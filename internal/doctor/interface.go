package doctor

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/internal/ethtool"
	"github.com/quillon/quillon/internal/xsk"
)

// What a driver's XDP can (enum netdev_xdp_act of linux/netdev.h).
const (
	basic    xsk.Features = 1 << 0 // XDP_PASS, XDP_DROP, XDP_TX
	redirect xsk.Features = 1 << 1
	zeroCopy xsk.Features = 1 << 3
	longRx   xsk.Features = 1 << 5 // frames of several buffers
)

// oneBuffer is the largest MTU whose frames fit one page beside what the kernel keeps there: XDP_PACKET_HEADROOM in front, and struct
// skb_shared_info, of 320 bytes on 64-bit machines, behind. It is veth's limit, and about that of drivers with a buffer a page.
func oneBuffer() int {
	const headroom, sharedInfo, ethernet = 256, 320, 14
	return os.Getpagesize() - headroom - sharedInfo - ethernet
}

// Interfaces looks at interfaces of this network namespace; none named: at all but loopback and those that others
// are ports of.
func Interfaces(names []string) ([]Finding, error) {
	links, err := netlink.LinkList()
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, err
	}
	tool, err := ethtool.Open()
	if err != nil {
		return nil, err
	}
	defer tool.Close()
	var all []Finding
	for _, name := range names {
		if !slices.ContainsFunc(links, func(l netlink.Link) bool { return l.Attrs().Name == name }) {
			all = append(all, Finding{name, Bad, "there is no such interface", "ip link shows what there is"})
		}
	}
	for _, l := range links {
		a := l.Attrs()
		if len(names) == 0 && (a.Flags&net.FlagLoopback != 0 || slices.ContainsFunc(links, func(x netlink.Link) bool { return x.Attrs().MasterIndex == a.Index })) ||
			len(names) > 0 && !slices.Contains(names, a.Name) {
			continue
		}
		f, err := look(tool, links, l)
		if err != nil {
			return nil, err
		}
		all = append(all, f)
	}
	return all, nil
}

// look is what is found of an interface: the worst of it.
func look(tool *ethtool.Tool, links []netlink.Link, l netlink.Link) (Finding, error) {
	a := l.Attrs()
	driver, err := tool.Driver(a.Name)
	if err != nil {
		driver = l.Type()
	}
	says := []string{driver}
	if rx, _, err := tool.Queues(a.Name); err == nil {
		says = append(says, fmt.Sprintf("receive queues %d", rx))
	}
	says = append(says, fmt.Sprintf("MTU %d", a.MTU))
	f := Finding{About: a.Name, Level: OK}
	worse := func(to Level, what, do string) {
		says = append(says, what)
		if f.Level == OK || to == Bad && f.Level == Note {
			f.Level, f.Do = to, do
		}
	}
	can, err := xsk.FeaturesOf(a.Index)
	switch {
	case err != nil:
		says = append(says, "this kernel does not tell what its XDP can")
	case can&basic == 0:
		worse(Note, "generic XDP only", "no driver's XDP: every frame is copied once more, and several times slower")
	default:
		says = append(says, "native XDP")
		if can&zeroCopy != 0 {
			says = append(says, "zero-copy")
		}
		if can&redirect == 0 {
			worse(Note, "no redirect", "frames that no function wants cannot cross in the driver: --xdp generic")
		}
		if most := oneBuffer(); can&longRx == 0 && a.MTU > most {
			worse(Note, "no native XDP with this MTU", fmt.Sprintf("its driver takes no frames of several buffers, and quillon takes generic XDP, which is slower, if it must: ip link set %s mtu %d", a.Name, most))
		}
	}
	if a.Flags&net.FlagUp == 0 {
		worse(Note, "down", "ip link set "+a.Name+" up")
	}
	if a.Flags&net.FlagUp != 0 && a.RawFlags&unix.IFF_RUNNING == 0 {
		worse(Note, "no carrier", "look at the cable, or at the other end")
	}
	if m := masterOf(links, a.MasterIndex); m != nil {
		name := m.Attrs().Name
		switch m.Type() {
		case "bridge":
			says = append(says, "port of bridge "+name+": quillon bridge insert "+name+" "+a.Name)
		case "bond", "team":
			worse(Note, "port of "+m.Type()+" "+name, "frames of "+name+" come by its ports: run on each of them, or take them out")
		}
	}
	x, err := xsk.AttachedTo(a.Index)
	switch {
	case errors.Is(err, unix.EPERM):
		says = append(says, "which XDP program it has is shown to root")
	case err != nil:
		return f, err
	case x == nil:
	case strings.HasPrefix(x.Name, "quillon_"):
		says = append(says, "quillon's XDP program is there: quillon list")
	default:
		worse(Bad, fmt.Sprintf("another's XDP program %q is there", x.Name), fmt.Sprintf("end whose it is, or: ip link set dev %s xdp off", a.Name))
	}
	f.Says = strings.Join(says, ", ")
	return f, x.Close()
}

// masterOf is the interface that one is a port of; nil: of none.
func masterOf(links []netlink.Link, index int) netlink.Link {
	if i := slices.IndexFunc(links, func(l netlink.Link) bool { return l.Attrs().Index == index }); index != 0 && i >= 0 {
		return links[i]
	}
	return nil
}
