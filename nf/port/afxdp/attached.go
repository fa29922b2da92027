package afxdp

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/internal/xsk"
	"github.com/quillon/quillon/internal/xsk/offload"
)

// Attachment is one of the package's XDP programs, on an interface or on both of a pair.
type Attachment struct {
	Interfaces []string `json:"interfaces"`         // by their names
	Mode       string   `json:"mode"`               // native or generic, of the first interface
	Wire       bool     `json:"wire"`               // of a pair: frames cross without a process, too
	Headless   bool     `json:"headless,omitempty"` // a Front runs frames without a process, too
	Shut       bool     `json:"shut,omitempty"`     // without a process all frames are dropped
}

// Beside calls open, which opens packet sockets at an interface of the calling thread's network namespace, while no other process opens
// an AF_XDP port there. It fails if a program of this package is on the interface, such as a process that was killed has left: XDP comes
// before packet sockets. With forwards, the packet sockets forward what they receive, and need all frames whole: Beside then fails if a wire
// redirects frames into the other end of a veth, and no other process opens AF_XDP ports at that end meanwhile.
func Beside(name string, forwards bool, open func() error) error {
	names := []string{name}
	if other := OtherEnd(name); forwards && other != "" {
		names = append(names, other)
	}
	mine, err := claims(names...)
	if err != nil {
		return err
	}
	defer dropClaims(mine)
	if err := unclaimed(name); err != nil {
		return err
	}
	if forwards {
		if err := unfed(name); err != nil {
			return err
		}
	}
	return open()
}

// OtherEnd returns the name of a veth's other end, if both are in the calling thread's network namespace; else "".
func OtherEnd(name string) string {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return ""
	}
	if other := offload.OtherEnd(l); other != nil {
		return other.Attrs().Name
	}
	return ""
}

// unfed returns an error if an interface of the calling thread's network namespace is the end of a veth into whose other end a wire
// of this package redirects frames, in native mode: they are lost unless this end does GRO, and packet sockets cannot use what GRO
// has merged. It looks at other ends in this namespace only.
func unfed(name string) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("interface %q: %w", name, err)
	}
	other := offload.OtherEnd(l)
	if other == nil {
		return nil
	}
	a, err := xsk.AttachedTo(other.Attrs().Index)
	if errors.Is(err, unix.EPERM) {
		return nil // as in unclaimed
	}
	if a == nil || err != nil {
		return err
	}
	defer func() { _ = a.Close() }()
	if a.Name != xsk.WireProgram || a.Mode != xsk.Native {
		return nil
	}
	return fmt.Errorf("the other end of %s, %s, has AF_XDP ports of another instance, whose frames packet sockets would lose: use AF_XDP here, or packet sockets (--port afpacket) at both", name, other.Attrs().Name)
}

func unclaimed(name string) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("interface %q: %w", name, err)
	}
	a, err := xsk.AttachedTo(l.Attrs().Index)
	if errors.Is(err, unix.EPERM) {
		return nil // packet sockets take fewer rights than to see whose program it is
	}
	if a == nil || err != nil {
		return err
	}
	defer func() { _ = a.Close() }()
	if !ours(a) {
		return nil
	}
	with, err := partners(a, 0)
	if err != nil {
		return err
	}
	return fmt.Errorf("interface %s has a program of another instance, which sees frames first: stop that instance, or: quillon detach %s", name, strings.Join(append([]string{name}, with...), " "))
}

// Unserved is nil if no process has an AF_XDP socket at the first queue of an interface of the calling thread's network
// namespace, as every process has that opened it with this package, whether it answers or not. It waits for the sockets of
// a dead process to vanish, for five seconds at most. It is nil, too, if the kernel lets this process have no such socket.
func Unserved(name string) (err error) {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("interface %q: %w", name, err)
	}
	o := xsk.Options{Ring: 64, Copy: true}
	u, err := xsk.NewUMEM(o.Ring, 2048)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, u.Close()) }()
	s, err := xsk.Open(u, o)
	if err != nil {
		return nil
	}
	err = bindTo(s, u, l.Attrs().Index, 0, o)
	if e := s.Close(); e != nil {
		return e
	}
	if errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("interface %s has AF_XDP sockets of a process that lives: stop that process first", name)
	}
	return nil
}

// PutBack has an interface of the calling thread's network namespace as it was before a process that was killed had it in a
// pair whose other interface is gone. It is an error, and nothing changes, if the interface is one end of a wire, or if queue
// pairs are bound there.
func PutBack(name string) (err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	mine, err := claims(name)
	if err != nil {
		return err
	}
	defer dropClaims(mine)
	l, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("interface %q: %w", name, err)
	}
	a, err := xsk.AttachedTo(l.Attrs().Index)
	if err != nil {
		return explain(err)
	}
	if a == nil || a.Name != xsk.WireProgram {
		return errors.Join(a.Close(), unwire(name)) // its settings may be on record
	}
	defer func() { err = errors.Join(err, a.Close()) }()
	with, err := partners(a, l.Attrs().Index)
	if err != nil {
		return err
	}
	if len(with) > 0 {
		return fmt.Errorf("interface %s is one end of a wire to %s: stop the instance that runs there, or: quillon detach %s %s", name, with[0], name, with[0])
	}
	bound, err := a.Set()
	if err != nil || bound == nil {
		return errors.Join(err, unwire(name))
	}
	n, err := bound.Others(nil)
	if err = errors.Join(err, bound.Close()); err != nil {
		return err
	}
	if n > 0 {
		return fmt.Errorf("%d queue pairs at %s cannot do without a process that was here, on two interfaces of which one is gone: end these connections at their clients, and then: quillon detach %s %s", n, name, name, name)
	}
	return unwire(name)
}

// ours reports whether a is a program of this package.
func ours(a *xsk.Attached) bool {
	return a.Name == xsk.WireProgram || a.Name == xsk.PortProgram || a.Name == FrontProgram || a.Name == FlowsProgram || outlived(a)
}

// partners are the names of the interfaces that a wire leads to from a, and that have it still.
func partners(a *xsk.Attached, but int) (names []string, err error) {
	all, err := a.Partners()
	for _, i := range all {
		l, e := netlink.LinkByIndex(i)
		if i == but || e != nil {
			continue // it is gone
		}
		x, e := xsk.AttachedTo(i)
		if x != nil && ours(x) {
			names = append(names, l.Attrs().Name)
		}
		err = errors.Join(err, e, x.Close())
	}
	return names, err
}

// Whole returns an error if one of the interfaces is one end of a wire whose other end is there and is none of them.
func Whole(names ...string) error {
	for _, name := range names {
		l, err := netlink.LinkByName(name)
		if err != nil {
			return fmt.Errorf("interface %q: %w", name, err)
		}
		a, err := xsk.AttachedTo(l.Attrs().Index)
		if err != nil {
			return err
		}
		if a == nil {
			continue
		}
		var with []string
		if a.Name == xsk.WireProgram {
			with, err = partners(a, l.Attrs().Index)
		}
		if err = errors.Join(err, a.Close()); err != nil {
			return err
		}
		for _, other := range with {
			if !slices.Contains(names, other) {
				return fmt.Errorf("%s is one end of a wire to %s: quillon detach %s %s", name, other, name, other)
			}
		}
	}
	return nil
}

// Attachments are the package's programs in the calling thread's network namespace, by their first
// interface. It takes CAP_BPF, or root.
func Attachments() (all []Attachment, err error) {
	links, err := netlink.LinkList()
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, err
	}
	of := map[uint32]int{} // by the program's ID, the place in all
	for _, l := range links {
		a, err := xsk.AttachedTo(l.Attrs().Index)
		if errors.As(err, new(netlink.LinkNotFoundError)) || err == nil && a == nil {
			continue // it went meanwhile, or has none
		}
		if err != nil {
			return nil, explain(err)
		}
		if i, ok := of[a.ID]; ok {
			all[i].Interfaces = append(all[i].Interfaces, l.Attrs().Name)
		} else if ours(a) {
			of[a.ID] = len(all)
			all = append(all, Attachment{Interfaces: []string{l.Attrs().Name}, Mode: a.Mode.String(), Wire: a.Name == xsk.WireProgram, Headless: a.Name == StayProgram, Shut: a.Name == xsk.ShutProgram})
		}
		if err := a.Close(); err != nil {
			return nil, err
		}
	}
	return all, nil
}
