package afpacket

import (
	"bufio"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/nf/clock"
)

// claim is the right to forward an interface's frames with packet sockets. It is needed because each frame would come
// out twice if two processes forwarded it. A claim is a packet socket that receives nothing. Every process in the
// interface's network namespace can see it, only a process that may open packet sockets there can make one, and the
// kernel closes it when its process ends.
type claim struct {
	fd    int
	inode uint64
}

const (
	// claimProtocol is what marks the socket. Frames of Ethernet have a length in its place (IEEE 802.3, 3.2.6), for which
	// the kernel has other numbers, so that none comes to it.
	claimProtocol = 0x0517
	// claimWait is how long a claim is waited for: the kernel closes sockets of a process that was killed at leisure.
	claimWait  = 5 * time.Second
	claimPause = 10 * time.Millisecond
)

// mine has the inodes of this process's claims. They do not exclude each other, because the process may replace a port
// of an interface by another one.
var mine = struct {
	sync.Mutex
	inodes map[uint64]bool
}{inodes: map[uint64]bool{}}

// newClaim claims an interface of the calling thread's network namespace. It returns an error if another process has a
// claim of the interface and keeps it for within. Claims of one process do not exclude each other.
func newClaim(name string, within time.Duration) (*claim, error) {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return nil, fmt.Errorf("interface %q: %w", name, err)
	}
	c := &claim{fd: -1}
	err = wait(name, within, func() (bool, error) {
		// Who is first to see no other claim beside its own one has it: any later one sees this one. Two that see each
		// other both go back.
		if taken, err := others(l.Attrs().Index); taken || err != nil {
			return taken, err
		}
		if err := c.open(l.Attrs().Index); err != nil {
			return false, err
		}
		taken, err := others(l.Attrs().Index)
		if taken || err != nil {
			err = errors.Join(err, c.close())
		}
		return taken, err
	})
	if err != nil {
		return nil, err
	}
	return c, nil
}

// Unclaimed returns nil if no other process has a claim of an interface of the calling thread's network namespace. It
// waits for a claim to vanish, for claimWait at most. With atOnce it does not wait.
func Unclaimed(name string, atOnce bool) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("interface %q: %w", name, err)
	}
	within := claimWait
	if atOnce {
		within = 0
	}
	return wait(name, within, func() (bool, error) { return others(l.Attrs().Index) })
}

// ErrClaimed says that another process has packet sockets at an interface.
var ErrClaimed = errors.New("packet sockets of another instance: stop that instance first (quillon list)")

// wait calls try again and again until it returns false. It fails after within.
func wait(name string, within time.Duration, try func() (taken bool, err error)) error {
	wall := clock.NewWall()
	for since := wall.Now(); ; time.Sleep(claimPause + rand.N(claimPause)) {
		taken, err := try()
		if err != nil {
			return fmt.Errorf("interface %s: %w", name, err)
		}
		if !taken {
			return nil
		}
		if within == 0 || wall.Now().Sub(since) > within {
			return fmt.Errorf("interface %s has %w", name, ErrClaimed)
		}
	}
}

// open makes the claim's socket.
func (c *claim) open(index int) (err error) {
	if c.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0); err != nil {
		if errors.Is(err, unix.EPERM) {
			return fmt.Errorf("packet socket: %w: run as root, or with CAP_NET_RAW", err)
		}
		return fmt.Errorf("packet socket: %w", err)
	}
	var st unix.Stat_t
	err = unix.Fstat(c.fd, &st)
	c.inode = st.Ino
	mine.Lock()
	mine.inodes[c.inode] = true
	mine.Unlock()
	if err == nil {
		err = unix.Bind(c.fd, &unix.SockaddrLinklayer{Protocol: claimProtocol>>8 | claimProtocol&0xFF<<8, Ifindex: index})
	}
	if err != nil {
		err = errors.Join(fmt.Errorf("claim it: %w", err), c.close())
	}
	return err
}

// close ends the claim.
func (c *claim) close() error {
	if c == nil || c.fd < 0 {
		return nil
	}
	err := unix.Close(c.fd)
	c.fd = -1
	mine.Lock()
	delete(mine.inodes, c.inode)
	mine.Unlock()
	return err
}

// others reports whether another process has a claim of an interface. It returns false if the kernel does not show
// packet sockets, for example without /proc.
func others(index int) (bool, error) {
	f, err := os.Open("/proc/thread-self/net/packet")
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	s := bufio.NewScanner(f)
	mine.Lock()
	defer mine.Unlock()
	for s.Scan() {
		// sk RefCnt Type Proto Iface R Rmem User Inode
		w := strings.Fields(s.Text())
		if len(w) < 9 || w[4] != strconv.Itoa(index) || w[3] != fmt.Sprintf("%04x", claimProtocol) {
			continue
		}
		if inode, err := strconv.ParseUint(w[8], 10, 64); err == nil && !mine.inodes[inode] {
			return true, nil
		}
	}
	return false, s.Err()
}
