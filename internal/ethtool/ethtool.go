// Package ethtool reads and changes the features (offloads) of network
// interfaces, by the ioctls of linux/ethtool.h.
//
// It is ours because github.com/safchain/ethtool hands the kernel addresses of
// Go variables as plain numbers: when the goroutine's stack moves before the
// call, the kernel writes to where they were. Under load that showed as
// features missing now and then.
package ethtool

import (
	"bytes"
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Tool is a socket for requests about interfaces of the network namespace in
// which it was opened, from any goroutine.
type Tool struct{ fd int }

// Open opens a Tool in the calling thread's network namespace.
func Open() (*Tool, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("ethtool: %w", err)
	}
	return &Tool{fd}, nil
}

// Close closes the socket.
func (t *Tool) Close() error { return unix.Close(t.fd) }

// request is struct ifreq with ifr_data.
type request struct {
	name [unix.IFNAMSIZ]byte
	data unsafe.Pointer
	_    [24 - unsafe.Sizeof(uintptr(0))]byte
}

// do sends words, a command with room for its answer. Their address stays a
// pointer until the call, which no stack is moved during.
func (t *Tool) do(ifname string, words []uint32) error {
	if len(ifname) >= unix.IFNAMSIZ {
		return unix.ENODEV
	}
	r := &request{data: unsafe.Pointer(unsafe.SliceData(words))}
	copy(r.name[:], ifname)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(t.fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(r)))
	runtime.KeepAlive(words)
	if errno != 0 {
		return errno
	}
	return nil
}

const (
	ssFeatures = 4  // ETH_SS_FEATURES
	stringLen  = 32 // ETH_GSTRING_LEN
)

// names are the features' names by bit.
func (t *Tool) names(ifname string) ([]string, error) {
	info := make([]uint32, 5) // ethtool_sset_info: cmd, reserved, mask (64 bits), count
	info[0], info[2] = unix.ETHTOOL_GSSET_INFO, 1<<ssFeatures
	if err := t.do(ifname, info); err != nil {
		return nil, err
	}
	n := int(info[4])
	if info[2] == 0 {
		n = 0
	}
	if n > 1024 {
		return nil, fmt.Errorf("%d features are more than can be", n)
	}
	w := make([]uint32, 3+n*stringLen/4) // ethtool_gstrings: cmd, set, len, strings
	w[0], w[1], w[2] = unix.ETHTOOL_GSTRINGS, ssFeatures, uint32(n)
	if err := t.do(ifname, w); err != nil {
		return nil, err
	}
	text := unsafe.Slice((*byte)(unsafe.Pointer(&w[0])), 4*len(w))[12:]
	out := make([]string, n)
	for i := range out {
		s, _, _ := bytes.Cut(text[i*stringLen:(i+1)*stringLen], []byte{0})
		out[i] = string(s)
	}
	return out, nil
}

// Feature is the state of a feature.
type Feature struct {
	Available, Requested, Active, NeverChanged bool
}

// Features are all features by name. unix.EOPNOTSUPP: the driver has none.
func (t *Tool) Features(ifname string) (map[string]Feature, error) {
	names, err := t.names(ifname)
	if err != nil {
		return nil, err
	}
	blocks := (len(names) + 31) / 32
	w := make([]uint32, 2+4*blocks) // ethtool_gfeatures: cmd, size, {available, requested, active, never_changed}
	w[0], w[1] = unix.ETHTOOL_GFEATURES, uint32(blocks)
	if err := t.do(ifname, w); err != nil {
		return nil, err
	}
	out := make(map[string]Feature, len(names))
	for i, name := range names {
		b, bit := w[2+4*(i/32):], uint32(1)<<(i%32)
		if name != "" {
			out[name] = Feature{b[0]&bit != 0, b[1]&bit != 0, b[2]&bit != 0, b[3]&bit != 0}
		}
	}
	return out, nil
}

// Change asks for the given values; features that the interface does not have
// are an error.
func (t *Tool) Change(ifname string, want map[string]bool) error {
	names, err := t.names(ifname)
	if err != nil {
		return err
	}
	blocks := (len(names) + 31) / 32
	w := make([]uint32, 2+2*blocks) // ethtool_sfeatures: cmd, size, {valid, requested}
	w[0], w[1] = unix.ETHTOOL_SFEATURES, uint32(blocks)
	found := 0
	for i, name := range names {
		on, ok := want[name]
		if !ok {
			continue
		}
		found++
		b, bit := w[2+2*(i/32):], uint32(1)<<(i%32)
		b[0] |= bit
		if on {
			b[1] |= bit
		}
	}
	if found != len(want) {
		for name := range want {
			have := false
			for _, n := range names {
				have = have || n == name
			}
			if !have {
				return fmt.Errorf("no feature %q", name)
			}
		}
	}
	return t.do(ifname, w)
}

// Name is what the interface with that index is called now; unix.ENODEV: it is gone.
func (t *Tool) Name(index int) (string, error) {
	r, err := unix.NewIfreq("-") // the kernel writes the name
	if err != nil {
		return "", err
	}
	r.SetUint32(uint32(index))
	err = unix.IoctlIfreq(t.fd, unix.SIOCGIFNAME, r)
	return r.Name(), err
}

// Driver is the name of the interface's driver.
func (t *Tool) Driver(ifname string) (string, error) {
	info, err := unix.IoctlGetEthtoolDrvinfo(t.fd, ifname)
	if err != nil {
		return "", err
	}
	return unix.ByteSliceToString(info.Driver[:]), nil
}

// Queues are the numbers of receive and transmit queues in use.
func (t *Tool) Queues(ifname string) (rx, tx int, err error) {
	w := make([]uint32, 9) // ethtool_channels: cmd, four maxima, rx, tx, other, combined
	w[0] = unix.ETHTOOL_GCHANNELS
	if err := t.do(ifname, w); err != nil {
		return 0, 0, err
	}
	return int(w[5] + w[8]), int(w[6] + w[8]), nil
}
