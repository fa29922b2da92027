package afxdp

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/internal/netnstest"
	"github.com/quillon/quillon/internal/xsk/offload"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/packet"
)

// bed is two veths with their near ends (dutA, dutB) in the test thread's own
// namespace, and each far end in another.
type bed struct {
	near       netns.NsHandle
	farA, farB netns.NsHandle
	a, b       *raw // at the far ends
}

// newBed locks the test's thread into an anonymous namespace; everything goes
// when the thread and the sockets do.
func newBed(tb testing.TB, mtu, queues int) *bed {
	tb.Helper()
	t := &bed{}
	mk := func() netns.NsHandle {
		h := netnstest.Enter(tb)
		netnstest.Quiet(tb)
		return h
	}
	t.farA, t.farB, t.near = mk(), mk(), mk()
	for _, x := range []struct {
		near, far string
		ns        netns.NsHandle
	}{{"dutA", "farA", t.farA}, {"dutB", "farB", t.farB}} {
		la := netlink.NewLinkAttrs()
		la.Name, la.MTU, la.NumTxQueues, la.NumRxQueues = x.near, mtu, queues, queues
		v := &netlink.Veth{LinkAttrs: la, PeerName: x.far, PeerNamespace: netlink.NsFd(int(x.ns)), PeerNumTxQueues: uint32(queues), PeerNumRxQueues: uint32(queues)}
		if err := netlink.LinkAdd(v); err != nil {
			tb.Fatal("veth: ", err)
		}
		if err := netlink.LinkSetUp(v); err != nil {
			tb.Fatal(err)
		}
		err := offload.Within(x.ns, func() error {
			l, err := netlink.LinkByName(x.far)
			if err != nil {
				return err
			}
			if err := netlink.LinkSetMTU(l, mtu); err != nil {
				return err
			}
			return netlink.LinkSetUp(l)
		})
		if err != nil {
			tb.Fatal(err)
		}
	}
	t.a, t.b = newRaw(tb, t.farA, "farA"), newRaw(tb, t.farB, "farB")
	return t
}

// raw is a packet socket.
type raw struct {
	fd    int
	index int
	buf   []byte
	oob   [256]byte
}

// retag puts a VLAN tag that the kernel took off back into the frame.
func (r *raw) retag(n int, oob []byte) []byte {
	cs, _ := unix.ParseSocketControlMessage(oob)
	for _, c := range cs {
		if c.Header.Type != unix.PACKET_AUXDATA || len(c.Data) < 20 {
			continue
		}
		status, tci, tpid := binary.NativeEndian.Uint32(c.Data), binary.NativeEndian.Uint16(c.Data[16:]), binary.NativeEndian.Uint16(c.Data[18:])
		if status&unix.TP_STATUS_VLAN_VALID != 0 {
			copy(r.buf[16:], r.buf[12:n])
			binary.BigEndian.PutUint16(r.buf[12:], tpid)
			binary.BigEndian.PutUint16(r.buf[14:], tci)
			n += 4
		}
	}
	return r.buf[:n]
}

func newRaw(tb testing.TB, ns netns.NsHandle, name string) *raw {
	tb.Helper()
	r := &raw{fd: -1, buf: make([]byte, 1<<16)}
	err := offload.Within(ns, func() error {
		l, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		r.index = l.Attrs().Index
		proto := int(binary.NativeEndian.Uint16([]byte{0, unix.ETH_P_ALL}))
		if r.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, proto); err != nil {
			return err
		}
		for _, o := range [][3]int{{unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1}, {unix.SOL_PACKET, unix.PACKET_AUXDATA, 1}, {unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64 << 20}, {unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, 64 << 20}} {
			if err := unix.SetsockoptInt(r.fd, o[0], o[1], o[2]); err != nil {
				return err
			}
		}
		return unix.Bind(r.fd, &unix.SockaddrLinklayer{Protocol: uint16(proto), Ifindex: r.index})
	})
	if err != nil {
		tb.Fatal("packet socket: ", err)
	}
	tb.Cleanup(func() { _ = unix.Close(r.fd) })
	return r
}

func (r *raw) send(frame []byte) error {
	_, err := unix.Write(r.fd, frame)
	return err
}

// recv is the next frame within d that is not multicast (which is a kernel's
// own); nil when none comes.
func (r *raw) recv(d time.Duration) []byte {
	fds := []unix.PollFd{{Fd: int32(r.fd), Events: unix.POLLIN}}
	end := time.Now().Add(d)
	for {
		left := time.Until(end)
		if left < 0 {
			return nil
		}
		n, err := unix.Poll(fds, int(left.Milliseconds())+1)
		if err == unix.EINTR {
			continue
		}
		if n == 0 {
			return nil
		}
		m, oob, _, _, err := unix.Recvmsg(r.fd, r.buf, r.oob[:], 0)
		if err != nil {
			return nil
		}
		if f := r.retag(m, r.oob[:oob]); f[0]&1 == 0 {
			return f
		}
	}
}

// roce is an Ethernet frame of size bytes, with tags VLAN tags, to UDP port
// 4791 over IPv4 or IPv6; seq makes it unique.
func roce(size, tags int, v6 bool, seq uint32) []byte {
	f := make([]byte, size)
	copy(f, []byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1})
	at := 12
	for i := range tags {
		et := uint16(0x8100)
		if tags == 2 && i == 0 {
			et = 0x88A8
		}
		binary.BigEndian.PutUint16(f[at:], et)
		binary.BigEndian.PutUint16(f[at+2:], uint16(100+i))
		at += 4
	}
	var udp int
	if v6 {
		binary.BigEndian.PutUint16(f[at:], 0x86DD)
		ip := f[at+2:]
		ip[0], ip[6], ip[7] = 0x60, 17, 64
		binary.BigEndian.PutUint16(ip[4:], uint16(len(ip)-40))
		copy(ip[8:], []byte{0xfd, 15: 1})
		copy(ip[24:], []byte{0xfd, 15: 2})
		udp = at + 2 + 40
	} else {
		binary.BigEndian.PutUint16(f[at:], 0x0800)
		ip := f[at+2:]
		ip[0], ip[8], ip[9] = 0x45, 64, 17
		binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)))
		copy(ip[12:], []byte{10, 0, 0, 1, 10, 0, 0, 2})
		sum := uint32(0) // a bridge drops what has a wrong one
		for i := 0; i < 20; i += 2 {
			sum += uint32(binary.BigEndian.Uint16(ip[i:]))
		}
		binary.BigEndian.PutUint16(ip[10:], ^uint16(sum+sum>>16))
		udp = at + 2 + 20
	}
	binary.BigEndian.PutUint16(f[udp:], uint16(0xC000+seq%64))
	binary.BigEndian.PutUint16(f[udp+2:], 4791)
	binary.BigEndian.PutUint16(f[udp+4:], uint16(size-udp))
	for i := udp + 8; i < size; i++ {
		f[i] = byte(uint32(i) * (seq + 7))
	}
	if size >= udp+12 {
		binary.BigEndian.PutUint32(f[udp+8:], seq)
	}
	return f
}

// pump is a worker: all queues, both directions, until stop is closed.
type pump struct {
	stop, ready chan struct{}
	done        chan error
	seen        func(x *packet.Buf)
}

func startPump(a, b []*Port, seen func(*packet.Buf)) *pump {
	p := &pump{stop: make(chan struct{}), ready: make(chan struct{}), done: make(chan error, 1), seen: seen}
	go func() {
		runtime.LockOSThread()
		p.done <- p.run(a, b)
	}()
	<-p.ready
	return p
}

func (p *pump) run(a, b []*Port) error {
	var batch packet.Batch
	clk := clock.NewWall()
	busy := clk.Now()
	for round := 0; ; round++ {
		if round == 1 {
			close(p.ready)
		}
		select {
		case <-p.stop:
			return nil
		default:
		}
		moved := 0
		for i := range a {
			for _, d := range [2][2]*Port{{a[i], b[i]}, {b[i], a[i]}} {
				n, err := d[0].Rx(&batch)
				if err != nil {
					return fmt.Errorf("%s rx: %w", d[0].Name(), err)
				}
				moved += n
				if p.seen != nil {
					for _, x := range batch.Bufs() {
						p.seen(x)
					}
				}
				for try := 0; batch.Len() > 0 && try < 1000; try++ {
					if _, err := d[1].Tx(&batch); err != nil {
						return fmt.Errorf("%s tx: %w", d[1].Name(), err)
					}
				}
				batch.PutAll()
			}
		}
		now := clk.Now()
		if moved > 0 {
			busy = now
		} else if now.Sub(busy) > 50*time.Microsecond {
			if len(a) == 1 {
				if err := a[0].Wait(tbContext, 5*time.Millisecond); err != nil {
					return err
				}
			}
		}
	}
}

func (p *pump) halt(tb testing.TB) {
	tb.Helper()
	close(p.stop)
	if err := <-p.done; err != nil {
		tb.Error(err)
	}
}

// crossed sends frame from one far end and wants it at the other.
func crossed(tb testing.TB, from, to *raw, frame []byte) {
	tb.Helper()
	if err := from.send(frame); err != nil {
		tb.Fatalf("send %d bytes: %v", len(frame), err)
	}
	got := to.recv(2 * time.Second)
	if !bytes.Equal(got, frame) {
		tb.Fatalf("frame of %d bytes arrived as %d bytes:\nsent %x\ngot  %x", len(frame), len(got), frame[:min(len(frame), 80)], got[:min(len(got), 80)])
	}
}
