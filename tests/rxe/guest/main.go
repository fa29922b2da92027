// The first process of a guest: it loads the modules that the image lists,
// gives eth0 its addresses, puts rxe0 on it, and then does what the host asks
// over the second serial line. Its settings are kernel parameters, here those of
// guest 1 of 0 to 2:
//
//	guest=1 guests=3 mtu=1500 tagged=1
//
// With tagged=1 it also makes an interface for tagged frames, eth0.7.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/internal/initramfs"
	"github.com/quillon/quillon/tests/rxe"
)

func main() {
	err := serve()
	fmt.Println("guest:", err)
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
}

// serve sets the guest up and answers requests until the line ends.
func serve() error {
	line, err := setUp()
	if err != nil {
		return err
	}
	var mu sync.Mutex
	reply := func(r rxe.Reply) {
		text, err := json.Marshal(r)
		if err != nil {
			panic(err)
		}
		mu.Lock()
		defer mu.Unlock()
		if _, err := line.Write(append(text, '\n')); err != nil {
			fmt.Println("guest: reply:", err)
		}
	}
	running := map[int]context.CancelFunc{}
	reply(rxe.Reply{})
	for in := bufio.NewReader(line); ; {
		text, err := in.ReadBytes('\n')
		if err != nil {
			return fmt.Errorf("serial line: %w", err)
		}
		var q rxe.Request
		if err := json.Unmarshal(text, &q); err != nil {
			return fmt.Errorf("request %q: %w", text, err)
		}
		if q.Kill != 0 {
			if end := running[q.Kill]; end != nil {
				end()
			}
			reply(rxe.Reply{ID: q.ID})
			continue
		}
		ctx, end := context.WithTimeout(context.Background(), time.Duration(q.Seconds)*time.Second)
		running[q.ID] = end
		go func() { reply(do(ctx, q)) }()
	}
}

// do answers one request.
func do(ctx context.Context, q rxe.Request) rxe.Reply {
	r := rxe.Reply{ID: q.ID}
	if q.Read != "" {
		r.Files = map[string][]byte{}
		names, err := filepath.Glob(q.Read)
		for _, name := range names {
			var text []byte
			if text, err = os.ReadFile(name); err == nil {
				r.Files[name] = text
			}
		}
		if err != nil {
			r.Output, r.Exit = err.Error(), -1
		}
		return r
	}
	cmd := exec.CommandContext(ctx, q.Argv[0], q.Argv[1:]...)
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	cmd.WaitDelay = time.Second // for those that left its group and hold its output
	out, err := cmd.CombinedOutput()
	r.Output = string(out)
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		r.Exit = exit.ExitCode()
	} else if err != nil {
		r.Exit = -1
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		r.Output += fmt.Sprintf("\nkilled after %d s\n", q.Seconds)
	} else if err != nil && r.Exit < 0 {
		r.Output += "\n" + err.Error() + "\n"
	}
	return r
}

// setUp mounts, loads, configures, and opens the serial line.
func setUp() (io.ReadWriter, error) {
	if err := initramfs.SetUp(); err != nil {
		return nil, err
	}
	if err := errors.Join(os.Setenv("PATH", "/bin:/sbin:/usr/bin:/usr/sbin"), os.Setenv("HOME", "/tmp")); err != nil {
		return nil, err
	}
	unlimited := &unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, unlimited); err != nil {
		return nil, fmt.Errorf("lockable memory: %w", err)
	}
	if err := network(); err != nil {
		return nil, err
	}
	return openLine("/dev/ttyS1")
}

// network brings lo and eth0 up and puts rxe0 on eth0. IPv4 comes first: it
// is GID 1, after the link-local address; IPv6 is GID 2. Those of eth0.7 follow.
func network() error {
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err != nil {
		return fmt.Errorf("lo: %w", err)
	}
	eth, err := netlink.LinkByName("eth0")
	if err != nil {
		return fmt.Errorf("eth0: %w", err)
	}
	for _, s := range []string{"eth0/accept_dad", "eth0/router_solicitations", "default/accept_dad", "default/router_solicitations"} {
		if err := os.WriteFile("/proc/sys/net/ipv6/conf/"+s, []byte("0"), 0); err != nil {
			return err
		}
	}
	var self, guests, mtu int
	_, err = fmt.Sscan(os.Getenv("guest")+" "+os.Getenv("guests")+" "+os.Getenv("mtu"), &self, &guests, &mtu)
	if err != nil {
		return fmt.Errorf("kernel parameters guest, guests and mtu: %w", err)
	}
	if err := errors.Join(netlink.LinkSetMTU(eth, mtu), netlink.LinkSetUp(eth)); err != nil {
		return fmt.Errorf("eth0: %w", err)
	}
	if err := address(eth, rxe.IP4(self)+"/24", rxe.IP6(self)+"/64"); err != nil {
		return err
	}
	if err := neighbours(eth, self, guests, rxe.IP4, rxe.IP6); err != nil {
		return err
	}
	if err := netlink.RdmaLinkAdd("rxe0", "rxe", "eth0"); err != nil {
		return fmt.Errorf("rxe0: %w", err)
	}
	if os.Getenv("tagged") != "1" {
		return nil
	}
	vlan := &netlink.Vlan{
		LinkAttrs: netlink.LinkAttrs{Name: fmt.Sprintf("eth0.%d", rxe.VLAN), ParentIndex: eth.Attrs().Index, MTU: mtu - 4},
		VlanId:    rxe.VLAN,
	}
	if err := errors.Join(netlink.LinkAdd(vlan), netlink.LinkSetUp(vlan)); err != nil {
		return fmt.Errorf("%s: %w", vlan.Name, err)
	}
	return errors.Join(
		address(vlan, rxe.TaggedIP4(self)+"/24", rxe.TaggedIP6(self)+"/64"),
		neighbours(vlan, self, guests, rxe.TaggedIP4, rxe.TaggedIP6),
		name(self, guests))
}

// name names the guests for those who take hosts of one name for one host.
func name(self, guests int) error {
	var hosts strings.Builder
	for i := range guests {
		fmt.Fprintf(&hosts, "%s g%d\n", rxe.IP4(i), i)
	}
	return errors.Join(unix.Sethostname(fmt.Appendf(nil, "g%d", self)),
		os.WriteFile("/etc/hosts", []byte(hosts.String()), 0o644), os.MkdirAll("/dev/shm", 0o777))
}

// address gives a link its addresses.
func address(l netlink.Link, prefixes ...string) error {
	for _, p := range prefixes {
		addr, err := netlink.ParseAddr(p)
		if err == nil {
			err = netlink.AddrAdd(l, addr)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
	}
	return nil
}

// neighbours makes the other guests' addresses known: they are not asked for, in
// frames that nothing protects.
func neighbours(eth netlink.Link, self, guests int, addresses ...func(int) string) error {
	for i := range guests {
		mac, err := net.ParseMAC(rxe.MAC(i))
		if err != nil {
			return err
		}
		for _, ip := range addresses {
			n := &netlink.Neigh{LinkIndex: eth.Attrs().Index, State: netlink.NUD_PERMANENT, IP: net.ParseIP(ip(i)), HardwareAddr: mac}
			if err := netlink.NeighSet(n); err != nil && i != self {
				return fmt.Errorf("neighbour %s: %w", ip(i), err)
			}
		}
	}
	return nil
}

// openLine opens a serial line for bytes as they are.
func openLine(name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	t, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	if err == nil {
		*t = unix.Termios{Cflag: unix.CS8 | unix.CREAD | unix.CLOCAL | unix.B115200, Cc: [19]uint8{unix.VMIN: 1}}
		err = unix.IoctlSetTermios(int(f.Fd()), unix.TCSETS, t)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", name, err), f.Close())
	}
	return f, nil
}
