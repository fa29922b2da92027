// Package offload finds the settings of an interface, and of the other end of
// a veth, that would make frames unfit for user space: frames without their
// checksum, frames merged or not yet segmented, tags kept beside the frame.
// It changes them and puts them back.
package offload

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sort"
	"strings"

	"github.com/quillon/quillon/internal/ethtool"
	"github.com/quillon/quillon/nf/clock"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// A setting is a feature of the kernel's (its name is ABI) and the value that
// it must have. The bit numbers of Mask count in these tables: append only.
type setting struct {
	feature string
	on      bool
}

// On the interface itself: what changes a frame before XDP sees it.
var own = []setting{
	{"rx-gro", false},
	{"rx-gro-hw", false},
	{"rx-lro", false},
	{"rx-vlan-hw-parse", false},
	{"rx-vlan-stag-hw-parse", false},
	{"rx-gro-list", false},
	{"rx-udp-gro-forwarding", false},
}

// On the other end of a veth: what it hands over unfinished. GRO there is
// what lets a native redirect arrive.
var peer = []setting{
	{"tx-checksum-ip-generic", false},
	{"tx-checksum-ipv4", false},
	{"tx-checksum-ipv6", false},
	{"tx-checksum-sctp", false},
	{"tx-tcp-segmentation", false},
	{"tx-tcp-ecn-segmentation", false},
	{"tx-tcp-mangleid-segmentation", false},
	{"tx-tcp6-segmentation", false},
	{"tx-udp-segmentation", false},
	{"tx-generic-segmentation", false},
	{"tx-gso-list", false},
	{"tx-vlan-hw-insert", false},
	{"tx-vlan-stag-hw-insert", false},
	{"tx-sctp-segmentation", false},
	{"rx-gro", true},
}

// Mask says which settings were changed, a bit each.
type Mask uint64

// Interface is where settings are looked at.
type Interface struct {
	Name   string
	Driver string
	tool   *ethtool.Tool
	table  []setting
	away   error // why the other end cannot be reached
	// redirect: frames are to be redirected to this other end, and without GRO it would lose them.
	redirect bool
	// native: an XDP program is attached in native mode to this other end; redirected frames arrive without GRO.
	native bool
	links  *netlink.Handle // of its namespace; nil if it is not kept open

	// peer is the other end of a veth, kept open because its namespace has no file and is slow to find.
	// Each other one is opened anew from home each time: what is kept open in a namespace that has a file
	// would keep that namespace, and with it the veth, when everybody else has left it; and
	// in this namespace it is found at once.
	peer  *Interface
	by    *process       // of peer: whose namespace it was found in; nil: of a thread, or of a file that this process has open
	home  netns.NsHandle // of a veth
	index int            // of this end
	nsid  int            // of peer's namespace, as this end's has it

	lost lost
	clk  clock.Clock // of lost
}

// Open looks at an interface of the calling thread's network namespace, and
// for the other end of a veth in every network namespace that can be found.
func Open(l netlink.Link) (*Interface, error) {
	tool, err := ethtool.Open()
	if err != nil {
		return nil, err
	}
	i := &Interface{Name: l.Attrs().Name, tool: tool, table: own, home: netns.None(), index: l.Attrs().Index, clk: clock.NewWall()}
	if i.Driver, err = tool.Driver(i.Name); err != nil {
		i.Driver = l.Type()
	}
	if l.Type() != "veth" {
		return i, nil
	}
	if i.home, err = netns.Get(); err != nil {
		i.Close()
		return nil, fmt.Errorf("network namespace: %w", err)
	}
	if err := i.other(true, func(*Interface) error { return nil }); err != nil {
		i.away = fmt.Errorf("the other end of %s cannot be reached (%w)", i.Name, err)
	}
	return i, nil
}

// other calls f with the other end of a veth, wherever it is by now, if there is one that could be
// reached when Open looked. unix.ENODEV (wrapped): the veth is gone. Without search, its network namespace
// is not searched for if it was not found shortly before.
func (i *Interface) other(search bool, f func(*Interface) error) error {
	if !i.home.IsOpen() || i.away != nil {
		return nil
	}
	if i.peer != nil && i.peer.by.hasEnded() { // what is open in its namespace would keep the namespace, and the veth
		i.peer.Close()
		i.peer = nil
	}
	var p *Interface
	keep := true
	err := Within(i.home, func() error {
		l, err := netlink.LinkByIndex(i.index)
		if errors.As(err, new(netlink.LinkNotFoundError)) {
			return unix.ENODEV
		}
		if err != nil {
			return err
		}
		if p = i.peer; p != nil && p.index == l.Attrs().ParentIndex && p.nsid == l.Attrs().NetNsID {
			if now, err := p.links.LinkByIndex(p.index); err == nil {
				p.native = native(now)
				return nil
			} // else it was moved since
		}
		if err := i.lost.again(l, i.clk.Now()); err != nil && !search {
			return err
		}
		p, keep, err = openPeer(l)
		i.lost.note(l, err, i.clk.Now())
		return err
	})
	if err != nil {
		return fmt.Errorf("the other end of %s: %w", i.Name, err)
	}
	switch {
	case !keep:
		defer p.Close()
	case p != i.peer:
		i.peer.Close()
		i.peer = p
	}
	return f(p)
}

// Note says what could not be checked; empty when nothing.
func (i *Interface) Note() string {
	if i.away == nil {
		return ""
	}
	return fmt.Sprintf("%v; on it, turn off tx checksums, segmentation and tx VLAN offload, and turn on gro", i.away)
}

// Close lets go of the interface; its settings stay.
func (i *Interface) Close() {
	if i == nil {
		return
	}
	_ = i.tool.Close()
	if i.links != nil {
		i.links.Close()
	}
	i.peer.Close()
	i.by.close()
	if i.home.IsOpen() {
		_ = i.home.Close()
	}
}

// Plan is what Set would change.
func (i *Interface) Plan(redirect bool) (self, other Mask, err error) {
	self, other, _, err = i.both(plan, redirect)
	return self, other, err
}

// Set makes the settings fit, and returns which were changed (on the
// interface, on its peer) and in words what. GRO on the peer is only turned on
// when frames are to be redirected to the interface.
func (i *Interface) Set(redirect bool) (self, other Mask, changed []string, err error) {
	return i.both(set, redirect)
}

func (i *Interface) both(do action, redirect bool) (self, other Mask, changed []string, err error) {
	if self, changed, err = i.apply(do, 0); err != nil {
		return self, 0, changed, err
	}
	err = i.other(false, func(p *Interface) (err error) {
		var more []string
		p.redirect = redirect && !p.native
		other, more, err = p.apply(do, 0)
		changed = append(changed, more...)
		return err
	})
	return self, other, changed, err
}

// Restore puts back what Set changed. unix.ENODEV (wrapped): an interface is gone,
// and its settings with it.
func (i *Interface) Restore(self, other Mask) error {
	_, _, err := i.apply(restore, self)
	switch {
	case other == 0:
		return err
	case i.away != nil:
		return errors.Join(err, fmt.Errorf("%w: its offloads stay changed", i.away))
	}
	return errors.Join(err, i.other(true, func(p *Interface) error {
		_, _, err := p.apply(restore, other)
		return err
	}))
}

// action is what apply does.
type action int

const (
	plan    action = iota // nothing
	set                   // what differs from the table
	restore               // the opposite of the settings in mask
)

func (i *Interface) apply(do action, mask Mask) (Mask, []string, error) {
	back := do == restore
	if back && mask == 0 {
		return 0, nil, nil
	}
	name, err := i.tool.Name(i.index) // it may have been renamed
	if err != nil {
		return 0, nil, fmt.Errorf("offloads of %s: %w", i.Name, err)
	}
	have, err := i.tool.Features(name)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return 0, nil, nil // a driver without features has none to turn off
	}
	if err != nil {
		return 0, nil, fmt.Errorf("offloads of %s: %w", name, err)
	}
	want := map[string]bool{}
	var done Mask
	var words []string
	for bit, s := range i.table {
		f, known := have[s.feature]
		switch {
		case !known || f.NeverChanged:
		case !back && s.on && !i.redirect:
		case back && mask&(1<<bit) != 0:
			want[s.feature] = !s.on
		case !back && f.Active != s.on && f.Available:
			want[s.feature] = s.on
			done |= 1 << bit
			words = append(words, fmt.Sprintf("%s %s %s", i.Name, s.feature, onOff(s.on)))
		}
	}
	if len(want) == 0 || do == plan {
		return done, words, nil
	}
	if err := i.tool.Change(name, want); err != nil {
		names := make([]string, 0, len(want))
		for k := range want {
			names = append(names, k)
		}
		sort.Strings(names)
		return 0, nil, fmt.Errorf("change the offloads of %s (%s): %w", name, strings.Join(names, ", "), err)
	}
	return done, words, nil
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

// OtherEnd returns the other end of a veth, if that is in the calling thread's network namespace; else nil.
func OtherEnd(l netlink.Link) netlink.Link {
	if l.Type() != "veth" || l.Attrs().NetNsID >= 0 || l.Attrs().ParentIndex == 0 {
		return nil
	}
	p, err := netlink.LinkByIndex(l.Attrs().ParentIndex)
	if err != nil || p.Type() != "veth" || p.Attrs().ParentIndex != l.Attrs().Index {
		return nil
	}
	return p
}

// openPeer finds the other end of a veth. keep: it is slow to find, and its namespace has no file that
// it could outlive.
func openPeer(l netlink.Link) (_ *Interface, keep bool, err error) {
	index, nsid := l.Attrs().ParentIndex, l.Attrs().NetNsID
	if index == 0 {
		return nil, false, errors.New("the kernel does not tell its index")
	}
	if nsid < 0 {
		p := OtherEnd(l)
		if p == nil {
			return nil, false, errors.New("it is in a network namespace without a number here")
		}
		found, err := newPeer(p, nsid)
		return found, false, err
	}
	ns, named, by, err := findNamespace(nsid)
	if err != nil {
		return nil, false, err
	}
	defer ns.Close()
	var found *Interface
	err = Within(ns, func() error {
		p, err := netlink.LinkByIndex(index)
		if err == nil {
			found, err = newPeer(p, nsid)
		}
		if err == nil && !named {
			found.links, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		}
		return err
	})
	if err != nil {
		found.Close()
		by.close()
		return nil, false, err
	}
	found.by = by
	return found, !named, nil
}

// newPeer opens the other end of a veth, which is in the calling thread's network namespace.
func newPeer(l netlink.Link, nsid int) (*Interface, error) {
	tool, err := ethtool.Open()
	if err != nil {
		return nil, err
	}
	return &Interface{Name: l.Attrs().Name, tool: tool, table: peer, home: netns.None(), index: l.Attrs().Index, nsid: nsid, native: native(l)}, nil
}

// native reports whether an interface has an XDP program in native mode.
func native(l netlink.Link) bool {
	xdp := l.Attrs().Xdp
	return xdp != nil && (xdp.AttachMode == nl.XDP_ATTACHED_DRV || xdp.AttachMode == attachedMulti)
}

// attachedMulti is XDP_ATTACHED_MULTI: programs in several modes.
const attachedMulti = 4

// Within runs f on a thread in network namespace ns, which is one of its own where
// that is not this one's. Sockets that f opens stay in that namespace.
func Within(ns netns.NsHandle, f func() error) error {
	done := make(chan error, 1)
	go within(ns, f, done)
	return <-done
}

func within(ns netns.NsHandle, f func() error, done chan<- error) {
	runtime.LockOSThread()
	// To enter where it is takes privileges that f may not need.
	if here, err := netns.Get(); err == nil {
		same := here.Equal(ns)
		_ = here.Close()
		if same {
			defer runtime.UnlockOSThread()
			done <- f()
			return
		}
	}
	if unix.Gettid() == unix.Getpid() {
		// The main thread does not end before the process: it would stay in the namespace, which would not end either.
		defer runtime.UnlockOSThread()
		other := make(chan error, 1)
		go within(ns, f, other)
		done <- <-other
		return
	}
	// Never unlocked: the thread ends with the goroutine, and with it
	// its namespace.
	if err := netns.Set(ns); err != nil {
		done <- fmt.Errorf("enter its network namespace: %w", err)
		return
	}
	done <- f()
}

// findNamespace looks for the network namespace that has number nsid here: the named ones
// first, then those that this process has open, then those of processes, and of their
// threads. A machine may have thousands of these, so each is asked no more than which
// namespace it is in. The process by which it was found is the caller's to close.
func findNamespace(nsid int) (_ netns.NsHandle, named bool, by *process, err error) {
	seen := map[string]bool{}
	var short error // a look failed because there was no file descriptor for it
	failed := func(err error) bool {
		if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) {
			short = err
		}
		return err != nil
	}
	list := func(dir string) []string {
		all, err := names(dir)
		failed(err)
		return all
	}
	// is opens the namespace at path if it is the one.
	is := func(path, name string) (netns.NsHandle, bool) {
		if seen[name] || !strings.HasPrefix(name, "net:[") {
			return netns.None(), false
		}
		seen[name] = true
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if failed(err) {
			return netns.None(), false
		}
		if id, err := netlink.GetNetNsIdByFd(fd); failed(err) || id != nsid {
			_ = unix.Close(fd)
			return netns.None(), false
		}
		return netns.NsHandle(fd), true
	}
	for _, dir := range []string{"/run/netns", "/run/docker/netns"} {
		for _, file := range list(dir) {
			var st unix.Stat_t
			path := dir + "/" + file
			if unix.Stat(path, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
				continue
			}
			if ns, ok := is(path, fmt.Sprintf("net:[%d]", st.Ino)); ok {
				return ns, true, nil, nil
			}
		}
	}
	processes := slices.DeleteFunc(list("/proc"), func(name string) bool { return name[0] < '0' || name[0] > '9' })
	link := func(path string) (netns.NsHandle, bool) {
		to, err := os.Readlink(path)
		if err != nil {
			return netns.None(), false
		}
		return is(path, to)
	}
	for _, fd := range list("/proc/self/fd") {
		if ns, ok := link("/proc/self/fd/" + fd); ok {
			return ns, false, nil, nil
		}
	}
	for _, p := range processes {
		if ns, ok := link("/proc/" + p + "/ns/net"); ok {
			return ns, false, processOf(p), nil
		}
	}
	for _, p := range processes {
		for _, t := range list("/proc/" + p + "/task") {
			if t == p {
				continue // as the process
			}
			if ns, ok := link("/proc/" + p + "/task/" + t + "/ns/net"); ok {
				return ns, false, nil, nil
			}
		}
	}
	if short != nil {
		return netns.None(), false, nil, fmt.Errorf("%w: %w: raise the limit (ulimit -n)", errHidden, short)
	}
	return netns.None(), false, nil, errHidden
}

// names are those in a directory.
func names(dir string) ([]string, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Readdirnames(-1)
}
