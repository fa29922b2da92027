package nffgo

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/intel-go/nff-go/common"
	"github.com/intel-go/nff-go/flow"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/internal/initramfs"
	"github.com/quillon/quillon/internal/registry"
	"github.com/quillon/quillon/nf/graph"
)

// drivers is where Debian's DPDK 22.11 has them.
const drivers = "/usr/lib/x86_64-linux-gnu/dpdk/pmds-23.0/"

// TestFlows runs a graph in flows of nff-go between two ports of DPDK, in a guest: nff-go wants more processors than most machines of
// contributors have. The guest's first process is this test's binary (inGuest).
func TestFlows(t *testing.T) {
	if _, err := exec.LookPath("qemu-system-x86_64"); err != nil {
		t.Skip("missing: apt-get install --no-install-recommends qemu-system-x86")
	}
	kernel, err := initramfs.GetKernel("../bin/rxe")
	if err != nil {
		t.Skipf("no kernel for the guest: %v", err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	files := []string{self, drivers + "librte_net_af_packet.so", drivers + "librte_mempool_ring.so"}
	var a initramfs.Archive
	if err := errors.Join(a.AddModules(kernel, []string{"veth"}), a.AddLibraries(files)); err != nil {
		t.Fatal(err)
	}
	a.Add("/init", self)
	for _, f := range files[1:] {
		a.Add(f, f)
	}
	image := t.TempDir() + "/initramfs"
	if err := a.Write(image); err != nil {
		t.Fatal(err)
	}
	guest := exec.Command("timeout", "-k", "5", "240", "qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "max", "-m", "1024", "-smp", "8",
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-serial", "stdio", "-kernel", kernel.File, "-initrd", image,
		"-append", "console=ttyS0 quiet loglevel=4 panic=-1 no_timer_check mitigations=off")
	out, err := guest.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	said := regexp.MustCompile(`(?m)^result: (.*?)\r?$`).FindSubmatch(out)
	if said == nil || !strings.HasPrefix(string(said[1]), "ok") {
		t.Fatalf("%s", out)
	}
	t.Logf("%s", said[1])
}

// inGuest is the guest's first process: it does not return.
func inGuest(*testing.M) {
	err := errors.Join(initramfs.SetUp(), os.MkdirAll("/var/run", 0o755), os.Chmod("/", 0o755)) // DPDK has sockets there, and loads no drivers from where others write
	var what string
	if err == nil {
		what, err = flows()
	}
	if err != nil {
		what = err.Error()
	}
	fmt.Printf("\nresult: %s\n", what)
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
}

// flows sends datagrams from one side through a NAPT to the other, has each answered there, and looks at both.
func flows() (string, error) {
	var ends []int // sockets on a0 and b0; nff-go has a1 and b1
	for _, name := range []string{"a", "b"} {
		for _, f := range []string{"default/disable_ipv6"} {
			_ = os.WriteFile("/proc/sys/net/ipv6/conf/"+f, []byte("1"), 0)
		}
		veth := netlink.NewVeth(netlink.NewLinkAttrs())
		veth.Name, veth.PeerName = name+"0", name+"1"
		if err := netlink.LinkAdd(veth); err != nil {
			return "", fmt.Errorf("veth: %w", err)
		}
		for _, n := range []string{"0", "1"} {
			l, err := netlink.LinkByName(name + n)
			if err == nil {
				err = netlink.LinkSetUp(l)
			}
			if err != nil {
				return "", err
			}
			if n == "0" {
				s, err := end(l.Attrs().Index)
				if err != nil {
					return "", err
				}
				ends = append(ends, s)
			}
		}
	}
	err := flow.SystemInit(&flow.Config{
		CPUList: "0-6", // those that its flows take: see README.md
		DPDKArgs: []string{"--no-pci", "--no-huge", "--no-shconf", "--no-telemetry", "-m", "256", "--log-level=error",
			"--vdev", "net_af_packet0,iface=a1", "--vdev", "net_af_packet1,iface=b1"},
		LogType: common.No, DisableScheduler: true, NoSetSIGINTHandler: true, TXQueuesNumberPerPort: 1,
	})
	if err != nil {
		return "", err
	}
	spec, err := graph.ParseSpec(fmt.Appendf(nil, between, "napt", "public: 198.51.100.1"))
	if err != nil {
		return "", err
	}
	g, err := New(Config{Graph: graph.Config{Spec: spec, Kinds: registry.Kinds()}, Ports: []string{"pa", "pb"}})
	if err != nil {
		return "", err
	}
	if err := g.Between(0, 1); err != nil {
		return "", err
	}
	schedules := make(chan struct{}) // nff-go's scheduler runs: without it flows end by and by
	flow.AddTimer(time.Millisecond, func(flow.UserContext) { close(schedules) }).AddVariant(nil)
	failed := make(chan error, 1)
	go func() { failed <- flow.SystemStart() }()
	exchanged, err := exchange(ends[0], ends[1], 100)
	if err == nil {
		select {
		case <-schedules:
		case <-time.After(time.Minute):
			err = errors.New("nff-go's scheduler has not begun for a minute")
		}
	}
	select {
	case ended := <-failed:
		err = errors.Join(err, fmt.Errorf("SystemStart has returned: %w", ended))
	default:
	}
	if err := errors.Join(err, g.Err(), g.Instance().Conservation()); err != nil {
		return "", fmt.Errorf("after %d: %w; %+v\n%s", exchanged, err, g.Stats(), where())
	}
	s := g.Stats()
	if s.Received != s.Sent || s.Sent != 2*uint64(exchanged) {
		return "", fmt.Errorf("%d went and came, and the graph: %+v", exchanged, s)
	}
	return fmt.Sprintf("ok: %d datagrams went through a NAPT and were answered", exchanged), nil
}

// where says what each interface has counted, and what each goroutine does: where frames are lost, and which part of nff-go waits.
func where() string {
	var b strings.Builder
	for _, name := range []string{"a0", "a1", "b1", "b0"} {
		l, err := netlink.LinkByName(name)
		if err != nil {
			fmt.Fprintf(&b, "%s: %v\n", name, err)
			continue
		}
		s := l.Attrs().Statistics
		fmt.Fprintf(&b, "%s: received %d, dropped %d, sent %d, dropped %d\n", name, s.RxPackets, s.RxDropped, s.TxPackets, s.TxDropped)
	}
	stacks := make([]byte, 1<<20)
	b.Write(stacks[:runtime.Stack(stacks, true)])
	return b.String()
}

// end is a socket that sends and receives frames of an interface, and waits for one for a minute.
func end(index int) (int, error) {
	s, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0)
	if err != nil {
		return 0, err
	}
	return s, errors.Join(
		unix.Bind(s, &unix.SockaddrLinklayer{Protocol: 0x0300 /* ETH_P_ALL, as on the wire */, Ifindex: index}),
		unix.SetsockoptTimeval(s, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 60}),
		unix.SetsockoptInt(s, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1))
}

// read is a read that a signal of Go's does not end.
func read(s int, b []byte) (n int, err error) {
	for {
		if n, err = unix.Read(s, b); !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

// exchange has so many datagrams, a multiple of ten, go from a to b and be answered, ten at a time, and returns how many did.
func exchange(a, b, n int) (int, error) {
	for i := 0; i < n; i += 10 {
		var sent, answers [][]byte
		for k := i; k < i+10; k++ {
			sent = append(sent, udp(byte(k%20+1), uint16(2000+k), 10+k))
		}
		came, err := across(a, b, sent)
		if err != nil {
			return i, fmt.Errorf("datagrams %d to %d: %w", i, i+9, err)
		}
		for k, in := range came {
			if !bytes.Equal(in[26:30], []byte{198, 51, 100, 1}) {
				return i, fmt.Errorf("%x came of %x", in, sent[k])
			}
			answer := bytes.Clone(in)
			copy(answer[26:34], append(append([]byte{}, in[30:34]...), in[26:30]...)) // addresses
			copy(answer[34:38], append(append([]byte{}, in[36:38]...), in[34:36]...)) // ports
			binary.BigEndian.PutUint16(answer[40:], 0)                                // no checksum
			answers = append(answers, answer)
		}
		if came, err = across(b, a, answers); err != nil {
			return i, fmt.Errorf("answers to datagrams %d to %d: %w", i, i+9, err)
		}
		for k, in := range came {
			if f := sent[k]; !bytes.Equal(in[30:34], f[26:30]) || !bytes.Equal(in[36:38], f[34:36]) {
				return i, fmt.Errorf("%x answers %x", in, f)
			}
		}
	}
	return n, nil
}

// across sends frames at one end, each once, and returns what comes of each at the other. That nff-go does not run yet loses
// nothing: the rings of its ports are there since flow.SystemInit.
func across(from, to int, frames [][]byte) (came [][]byte, err error) {
	for _, f := range frames {
		if _, err := unix.Write(from, f); err != nil {
			return nil, err
		}
	}
	for k, f := range frames {
		in := make([]byte, 2048)
		n, err := read(to, in)
		if err != nil {
			return nil, fmt.Errorf("%d came, and then none for a minute: %w", k, err)
		}
		if in = in[:n]; n != len(f) || !bytes.Equal(in[42:], f[42:]) {
			return nil, fmt.Errorf("%x came of %x", in, f)
		}
		came = append(came, in)
	}
	return came, nil
}
