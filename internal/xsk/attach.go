package xsk

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

func nativeUint16(b [2]byte) uint16 { return binary.NativeEndian.Uint16(b[:]) }

// Mode is where in the receive path a program runs.
type Mode int

const (
	// Native programs run in the driver, if it can.
	Native Mode = iota
	// Generic programs run before the network stack, on any interface.
	Generic
)

func (m Mode) String() string {
	if m == Generic {
		return "generic"
	}
	return "native"
}

func (m Mode) flag() uint32 {
	if m == Generic {
		return unix.XDP_FLAGS_SKB_MODE
	}
	return unix.XDP_FLAGS_DRV_MODE
}

// Attached is the XDP program that is attached to an interface.
type Attached struct {
	Prog *ebpf.Program
	Name string
	ID   uint32
	Mode Mode

	ifindex int
}

// Close closes the process's descriptor of the program, which stays attached.
func (a *Attached) Close() error {
	if a == nil {
		return nil
	}
	return a.Prog.Close()
}

// AttachedTo returns the program that is attached to an interface of the calling thread's network
// namespace, or nil if there is none. The caller closes it.
func AttachedTo(ifindex int) (*Attached, error) {
	l, err := netlink.LinkByIndex(ifindex)
	if err != nil {
		return nil, err
	}
	x := l.Attrs().Xdp
	if x == nil || !x.Attached || x.ProgId == 0 {
		return nil, nil
	}
	prog, err := ebpf.NewProgramFromID(ebpf.ProgramID(x.ProgId))
	if errors.Is(err, unix.ENOENT) {
		return nil, nil // it went in between
	}
	if err != nil {
		return nil, fmt.Errorf("XDP program %d on %s: %w", x.ProgId, l.Attrs().Name, err)
	}
	info, err := prog.Info()
	if err != nil {
		return nil, errors.Join(err, prog.Close())
	}
	return &Attached{Prog: prog, Name: info.Name, ID: x.ProgId, Mode: modeOf(x), ifindex: ifindex}, nil
}

func modeOf(x *netlink.LinkXdp) Mode {
	const attachedSKB = 2 // XDP_ATTACHED_SKB
	if x.AttachMode == attachedSKB {
		return Generic
	}
	return Native
}

// At returns a for another interface, or nil if that has another program. It takes fewer rights than AttachedTo. The program is not
// to be closed twice.
func (a *Attached) At(l netlink.Link) *Attached {
	x := l.Attrs().Xdp
	if x == nil || !x.Attached || x.ProgId != a.ID {
		return nil
	}
	return &Attached{Prog: a.Prog, Name: a.Name, ID: a.ID, Mode: modeOf(x), ifindex: l.Attrs().Index}
}

// State opens the interface's state map. It is an error if the program is not one of this package.
func (a *Attached) State() (*State, error) {
	var mine *State
	err := a.maps(stateMapName, stateEntry, func(m *ebpf.Map) error {
		s, err := openState(m)
		if err != nil {
			return errors.Join(err, m.Close())
		}
		if *s.word(0, offMagic) != stateMagic {
			return errors.Join(fmt.Errorf("XDP program %d was attached by another version", a.ID), s.Close())
		}
		if mine == nil && s.ifindex() == a.ifindex {
			mine = s
			return nil
		}
		return s.Close()
	})
	if err == nil && mine == nil {
		err = fmt.Errorf("XDP program %d has no state of ours", a.ID)
	}
	if err != nil {
		return nil, errors.Join(err, mine.Close())
	}
	return mine, nil
}

// Set opens the set of bound queue pairs of the program, or returns nil if the program has none.
func (a *Attached) Set() (s *Set, err error) {
	err = a.maps(setMapName, 1, func(m *ebpf.Map) error {
		if s != nil {
			return m.Close()
		}
		s = &Set{m}
		return nil
	})
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// maps calls take with each map of the program that has this name and values of this many bytes, or with all if name is
// empty. take owns the map.
func (a *Attached) maps(name string, value uint32, take func(*ebpf.Map) error) error {
	info, err := a.Prog.Info()
	if err != nil {
		return err
	}
	ids, _ := info.MapIDs()
	for _, id := range ids {
		m, err := ebpf.NewMapFromID(id)
		if err != nil {
			return err
		}
		if mi, e := m.Info(); e == nil && (name == "" || mi.Name == name && m.ValueSize() == value) {
			err = take(m)
		} else {
			err = m.Close()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// AllMaps opens all maps of the program. It takes CAP_SYS_ADMIN.
func (a *Attached) AllMaps() (all []*ebpf.Map, err error) {
	err = a.maps("", 0, func(m *ebpf.Map) error {
		all = append(all, m)
		return nil
	})
	return all, err
}

// Partners returns the indices of the other interfaces that the program serves.
func (a *Attached) Partners() (all []int, err error) {
	err = a.maps(stateMapName, stateEntry, func(m *ebpf.Map) error {
		s, err := openState(m)
		if err != nil {
			return errors.Join(err, m.Close())
		}
		if i := s.ifindex(); i != a.ifindex && !slices.Contains(all, i) {
			all = append(all, i)
		}
		return s.Close()
	})
	return all, err
}

// Swap attaches next to an interface by netlink, so that the program outlives the
// process. It replaces the program old in one step; old is nil if no program is attached.
// If next is nil, Swap detaches old.
func Swap(ifindex int, next *ebpf.Program, old *ebpf.Program, mode Mode) error {
	req := nl.NewNetlinkRequest(unix.RTM_SETLINK, unix.NLM_F_ACK)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(ifindex)
	req.AddData(msg)
	u32 := func(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }
	fd, flags := int32(-1), mode.flag()
	if next != nil {
		fd = int32(next.FD())
	}
	attrs := nl.NewRtAttr(unix.IFLA_XDP|unix.NLA_F_NESTED, nil)
	attrs.AddRtAttr(unix.IFLA_XDP_FD, u32(uint32(fd)))
	if old != nil {
		flags |= unix.XDP_FLAGS_REPLACE
		attrs.AddRtAttr(unix.IFLA_XDP_EXPECTED_FD, u32(uint32(old.FD())))
	} else if next != nil {
		flags |= unix.XDP_FLAGS_UPDATE_IF_NOEXIST
	}
	attrs.AddRtAttr(unix.IFLA_XDP_FLAGS, u32(flags))
	req.AddData(attrs)
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// AttachLink attaches prog in the first of modes in which that succeeds.
// The program is detached when the link is closed or the process ends.
func AttachLink(ifindex int, prog *ebpf.Program, modes ...Mode) (link.Link, error) {
	var errs []error
	for _, m := range modes {
		l, err := link.AttachXDP(link.XDPOptions{Program: prog, Interface: ifindex, Flags: link.XDPAttachFlags(m.flag())})
		if err == nil {
			return l, nil
		}
		errs = append(errs, fmt.Errorf("%v: %w", m, err))
	}
	return nil, errors.Join(errs...)
}

// Features are the XDP features of an interface's driver: the bits NETDEV_XDP_ACT_* of the kernel.
type Features uint64

// CanTransmit says that frames of a native redirect to the interface arrive
// (NETDEV_XDP_ACT_NDO_XMIT).
const CanTransmit Features = 1 << 2

// genlHeader has a command, a version and two reserved bytes, which must be zero.
type genlHeader [4]byte

func (h genlHeader) Len() int          { return len(h) }
func (h genlHeader) Serialize() []byte { return h[:] }

// FeaturesOf asks the kernel for the features of an interface's driver. It fails on kernels before 6.3.
func FeaturesOf(ifindex int) (Features, error) {
	const cmdDevGet, attrIfindex, attrFeatures = 1, 1, 3
	fam, err := netlink.GenlFamilyGet("netdev")
	if err != nil {
		return 0, fmt.Errorf("XDP features are not told by this kernel: %w", err)
	}
	req := nl.NewNetlinkRequest(int(fam.ID), 0)
	req.AddData(genlHeader{cmdDevGet, 1, 0, 0})
	req.AddData(nl.NewRtAttr(attrIfindex, binary.NativeEndian.AppendUint32(nil, uint32(ifindex))))
	msgs, err := req.Execute(unix.NETLINK_GENERIC, 0)
	if err != nil {
		return 0, err
	}
	for _, m := range msgs {
		attrs, err := nl.ParseRouteAttr(m[nl.SizeofGenlmsg:])
		if err != nil {
			return 0, err
		}
		for _, a := range attrs {
			if a.Attr.Type&^unix.NLA_F_NESTED == attrFeatures && len(a.Value) >= 8 {
				return Features(binary.NativeEndian.Uint64(a.Value)), nil
			}
		}
	}
	return 0, errors.New("the kernel did not tell the XDP features")
}
