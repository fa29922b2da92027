package tap

import (
	"bytes"
	"context"
	"encoding/binary"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/internal/netnstest"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
)

// device is a port in an anonymous namespace, and a packet socket on the
// kernel's side of it.
func device(t *testing.T, mtu int) (*Port, int) {
	t.Helper()
	netnstest.Enter(t)
	netnstest.Quiet(t)
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

// TestNoMemory: while all of the pool is held, frames stay in the kernel, nobody
// is woken for them, and what its queue has no room for is counted.
func TestNoMemory(t *testing.T) {
	p, fd := device(t, 1500)
	send := func(n int) {
		for range n {
			if _, err := unix.Write(fd, make([]byte, 100)); err != nil {
				t.Fatal(err)
			}
		}
	}
	var held []*packet.Buf
	for x := p.Pool().Get(); x != nil; x = p.Pool().Get() {
		held = append(held, x)
	}
	send(1)
	var b packet.Batch
	const d = 50 * time.Millisecond
	start := time.Now()
	if err := p.Wait(context.Background(), d); err != nil || time.Since(start) < d {
		t.Errorf("woken after %v, %v", time.Since(start), err)
	}
	if n, err := p.Rx(&b); n != 0 || err != nil {
		t.Fatal(n, err)
	}
	send(3000) // the queue of a device has 1000
	for _, x := range held {
		x.Put()
	}
	start = time.Now()
	if err := p.Wait(context.Background(), time.Minute); err != nil || time.Since(start) > 30*time.Second {
		t.Errorf("not woken for what had to wait: %v", err)
	}
	for {
		n, err := p.Rx(&b)
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			break
		}
		b.PutAll()
	}
	s := p.Stats()
	if s.RxPackets == 0 || s.RxDropped == 0 || s.RxPackets+s.RxDropped != 3001 {
		t.Errorf("%+v of 3001", s)
	}
	if err := p.Close(); err != nil || p.Stats() != s {
		t.Errorf("closed: %v, %+v, was %+v", err, p.Stats(), s)
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

// TestPersistent: a device that is there already keeps its MTU, also one whose frames
// fill a buffer to the last byte. What is longer is dropped.
func TestPersistent(t *testing.T) {
	other, _ := device(t, 0)
	if l, err := netlink.LinkByName(other.Device()); err != nil || l.Attrs().MTU != 1500 {
		t.Errorf("a new device: %+v, %v", l, err)
	}
	const mtu = 1514 // with headroom and tags a multiple of 64
	la := netlink.NewLinkAttrs()
	la.Name, la.MTU = "tap8", mtu
	l := &netlink.Tuntap{LinkAttrs: la, Mode: netlink.TUNTAP_MODE_TAP}
	if err := netlink.LinkAdd(l); err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetMTU(l, mtu); err != nil {
		t.Fatal(err)
	}
	p, err := Open(Config{Device: "tap8"})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if l, err := netlink.LinkByName("tap8"); err != nil || l.Attrs().MTU != mtu {
		t.Errorf("its MTU was changed: %+v, %v", l, err)
	}
	if err := netlink.LinkSetMTU(l, 9000); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	to := &unix.SockaddrLinklayer{Ifindex: l.Attrs().Index}
	var b packet.Batch
	for n := mtu + 14; n < mtu+120; n++ {
		f := make([]byte, n)
		copy(f, []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5})
		if err := unix.Sendto(fd, f, 0, to); err != nil {
			t.Fatal(err)
		}
		for p.Stats().RxDropped+p.Stats().RxPackets < uint64(n-mtu-13) {
			if err := p.Wait(context.Background(), time.Minute); err != nil {
				t.Fatal(err)
			}
			if _, err := p.Rx(&b); err != nil {
				t.Fatal(err)
			}
		}
		for _, x := range b.Bufs() {
			if x.Len() != n {
				t.Errorf("%d bytes came as %d", n, x.Len())
			}
		}
		b.PutAll()
	}
	if s := p.Stats(); s.RxPackets < 9 || s.RxDropped == 0 {
		t.Errorf("%+v", s)
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
