package tap

import (
	"bytes"
	"context"
	"encoding/binary"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
)

// device is a port in an anonymous namespace, and a packet socket on the
// kernel's side of it.
func device(t *testing.T, mtu int) (*Port, int) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: network namespaces, TAP")
	}
	runtime.LockOSThread() // not unlocked: the thread and its namespace end with the test
	h, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.Close() })
	_ = os.WriteFile("/proc/sys/net/ipv6/conf/default/disable_ipv6", []byte("1"), 0)
	p, err := Open(Config{Device: "tap7", MTU: mtu, Index: 3})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	l, err := netlink.LinkByName("tap7")
	if err != nil {
		t.Fatal(err)
	}
	all := binary.NativeEndian.Uint16([]byte{0, unix.ETH_P_ALL})
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(all))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	_ = unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1)
	_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 2})
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: l.Attrs().Index}); err != nil {
		t.Fatal(err)
	}
	return p, fd
}

func TestFrames(t *testing.T) {
	p, fd := device(t, 9000)
	var b packet.Batch
	buf := make([]byte, 1<<16)
	for _, size := range []int{14, 60, 1514, 9014} {
		f := bytes.Repeat([]byte{2, 4, 6, 8, 10, 12, 14}, 1+size/7)[:size]
		x := p.Pool().Get()
		x.SetBytes(f)
		b.Add(x)
		if n, err := p.Tx(&b); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		if n, err := unix.Read(fd, buf); err != nil || !bytes.Equal(buf[:n], f) {
			t.Fatalf("%d bytes to the kernel: %d, %v", size, n, err)
		}
		if _, err := unix.Write(fd, f); err != nil {
			t.Fatal(err)
		}
		if err := p.Wait(context.Background(), 2*time.Second); err != nil {
			t.Fatal(err)
		}
		if n, err := p.Rx(&b); n != 1 || err != nil || !bytes.Equal(b.At(0).Bytes(), f) || b.At(0).Port != 3 {
			t.Fatalf("%d bytes from the kernel: %d, %v", size, n, err)
		}
		b.PutAll()
	}
	x := p.Pool().Get()
	x.SetFrame(0, 5)
	b.Add(x)
	if n, err := p.Tx(&b); n != 1 || err != nil || p.Stats().TxDropped != 1 {
		t.Error(n, err, p.Stats())
	}
	f := make([]byte, 100)
	if allocs := testing.AllocsPerRun(200, func() {
		if _, err := unix.Write(fd, f); err != nil {
			t.Fatal(err)
		}
		if err := p.Wait(context.Background(), time.Second); err != nil {
			t.Fatal(err)
		}
		if n, err := p.Rx(&b); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		if n, err := p.Tx(&b); n != 1 || err != nil {
			t.Fatal(n, err)
		}
	}); allocs != 0 {
		t.Errorf("%v allocations a frame", allocs)
	}
	if p.Pool().InUse() != 0 {
		t.Errorf("%d Bufs are lost", p.Pool().InUse())
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Rx(&b); err != port.ErrClosed {
		t.Error(err)
	}
	if _, err := netlink.LinkByName("tap7"); err == nil {
		t.Error("the device is still there")
	}
}

func TestDeviceGone(t *testing.T) {
	p, _ := device(t, 1500)
	l, err := netlink.LinkByName("tap7")
	if err != nil {
		t.Fatal(err)
	}
	var b packet.Batch
	if err := netlink.LinkSetDown(l); err != nil {
		t.Fatal(err)
	}
	if n, err := p.Rx(&b); n != 0 || err != nil {
		t.Error("down:", n, err)
	}
	x := p.Pool().Get()
	x.SetBytes(make([]byte, 60))
	b.Add(x)
	if n, err := p.Tx(&b); n != 1 || err != nil || p.Stats().TxDropped != 1 {
		t.Error("down:", n, err, p.Stats())
	}
	if err := netlink.LinkDel(l); err != nil {
		t.Fatal(err)
	}
	if err := p.Wait(context.Background(), time.Minute); err != nil {
		t.Error("gone:", err)
	}
	if _, err := p.Rx(&b); err != port.ErrClosed {
		t.Error("gone:", err)
	}
	if p.Pool().InUse() != 0 {
		t.Errorf("%d Bufs are lost", p.Pool().InUse())
	}
}

func TestRefused(t *testing.T) {
	p, _ := device(t, 1500)
	for _, c := range []Config{{Device: p.Device()}, {MTU: 10}, {Device: "a name that is too long"}} {
		if q, err := Open(c); err == nil {
			_ = q.Close()
			t.Errorf("%+v was accepted", c)
		}
	}
}
