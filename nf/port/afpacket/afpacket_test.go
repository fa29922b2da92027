package afpacket

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/quillon/quillon/internal/netnstest"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
)

// wire is a veth in an anonymous namespace, with a port on each end.
func wire(t *testing.T, mtu int) (*Port, *Port) {
	t.Helper()
	netnstest.Enter(t)
	netnstest.Quiet(t)
	la := netlink.NewLinkAttrs()
	la.Name, la.MTU = "va", mtu
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: la, PeerName: "vb", PeerMTU: uint32(mtu)}); err != nil {
		t.Fatal(err)
	}
	var ps []*Port
	for _, n := range []string{"va", "vb"} {
		l, err := netlink.LinkByName(n)
		if err != nil {
			t.Fatal(err)
		}
		if err := netlink.LinkSetUp(l); err != nil {
			t.Fatal(err)
		}
	}
	for i, n := range []string{"va", "vb"} {
		p, err := Open(Config{Interface: n, Index: uint16(i + 1)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := p.Close(); err != nil {
				t.Error(err)
			}
		})
		ps = append(ps, p)
	}
	return ps[0], ps[1]
}

func frame(size, tags int) []byte {
	f := make([]byte, size)
	for i := range f {
		f[i] = byte(i * 7)
	}
	copy(f, []byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1})
	at := 12
	for i := range tags {
		binary.BigEndian.PutUint16(f[at:], []uint16{0x88A8, 0x8100}[(i+2-tags)%2])
		binary.BigEndian.PutUint16(f[at+2:], uint16(0x2000+10+i))
		at += 4
	}
	binary.BigEndian.PutUint16(f[at:], 0x88B5)
	return f
}

// move sends the batch on a and receives want frames on b.
func move(t *testing.T, a, b *Port, in, out *packet.Batch, want int) {
	t.Helper()
	for in.Len() > 0 {
		if _, err := a.Tx(in); err != nil {
			t.Fatal(err)
		}
	}
	for try := 0; out.Len() < want && try < 200; try++ {
		if err := b.Wait(context.Background(), 10*time.Millisecond); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Rx(out); err != nil {
			t.Fatal(err)
		}
	}
	if out.Len() != want {
		t.Fatalf("%d frames of %d arrived", out.Len(), want)
	}
}

func TestFrames(t *testing.T) {
	a, b := wire(t, 9000)
	var in, out packet.Batch
	for _, size := range []int{60, 64, 1514, 4154, 9014} {
		for tags := range 3 {
			want := frame(size, tags)
			for range 50 {
				x := a.Pool().Get()
				x.SetBytes(want)
				in.Add(x)
			}
			move(t, a, b, &in, &out, 50)
			for _, x := range out.Bufs() {
				if !bytes.Equal(x.Bytes(), want) || x.Port != 2 || x.RxTime == 0 {
					t.Fatalf("size %d, %d tags: got %x, want %x", size, tags, x.Bytes()[:32], want[:32])
				}
			}
			out.PutAll()
		}
	}
	for _, n := range []int{10, 9100} {
		x := a.Pool().Get()
		x.SetFrame(0, n)
		in.Add(x)
	}
	if n, err := a.Tx(&in); n != 2 || err != nil || a.Stats().TxDropped != 2 {
		t.Error(n, err, a.Stats())
	}
	if s := a.Stats(); s.RxPackets != 0 {
		t.Errorf("a port sees what it sends: %+v", s)
	}
	if a.Stats().TxPackets != b.Stats().RxPackets || a.Stats().TxBytes != b.Stats().RxBytes {
		t.Errorf("%+v\n%+v", a.Stats(), b.Stats())
	}
	if n := a.Pool().InUse() - packet.MaxBatch; n != 0 {
		t.Errorf("%d Bufs are lost", n)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Rx(&in); err != port.ErrClosed {
		t.Error(err)
	}
	if a.Pool().InUse() != packet.MaxBatch {
		t.Error("Close changed the pool, which a worker may be using")
	}
}

func TestNoAllocation(t *testing.T) {
	a, b := wire(t, 1500)
	var in, out packet.Batch
	f := frame(100, 1)
	allocs := testing.AllocsPerRun(500, func() {
		x := a.Pool().Get()
		x.SetBytes(f)
		in.Add(x)
		move(t, a, b, &in, &out, 1)
		out.PutAll()
	})
	if allocs != 0 {
		t.Errorf("%v allocations a frame", allocs)
	}
}

// TestNoMemory: while all of the pool is held, frames stay in the kernel, and
// nobody is woken for them. What is armed for later messages is memory, too.
func TestNoMemory(t *testing.T) {
	a, b := wire(t, 1500)
	var in, out packet.Batch
	const queued = 2 * packet.MaxBatch
	for range queued {
		x := a.Pool().Get()
		x.SetBytes(frame(100, 0))
		in.Add(x)
		if _, err := a.Tx(&in); err != nil {
			t.Fatal(err)
		}
	}
	var held []*packet.Buf
	for x := b.Pool().Get(); x != nil; x = b.Pool().Get() {
		held = append(held, x)
	}
	for try := 0; b.CanReceive() && try < 200; try++ {
		// In batches with little room, so that the first messages are used up.
		for out.Room() > 3 {
			x := held[len(held)-1]
			held = held[:len(held)-1]
			out.Add(x)
		}
		n, err := b.Rx(&out)
		if n == 0 || err != nil {
			t.Fatal("memory that is armed is not used:", n, err)
		}
		held = append(held, out.Bufs()...)
		out.Reset()
	}
	if n := b.Stats().RxPackets; n != packet.MaxBatch {
		t.Errorf("%d frames for the %d Bufs that were armed", n, packet.MaxBatch)
	}
	const d = 50 * time.Millisecond
	start := time.Now()
	if err := b.Wait(context.Background(), d); err != nil || time.Since(start) < d {
		t.Errorf("woken after %v, %v", time.Since(start), err)
	}
	if n, err := b.Rx(&out); n != 0 || err != nil {
		t.Fatal(n, err)
	}
	for _, x := range held {
		x.Put()
	}
	move(t, a, b, &in, &out, queued-packet.MaxBatch)
	out.PutAll()
	if s := b.Stats(); s.RxPackets != queued || s.RxDropped != 0 {
		t.Errorf("%+v", s)
	}
}

func TestRefused(t *testing.T) {
	wire(t, 1500)
	for _, c := range []Config{{Interface: "nosuch"}, {Interface: "lo"}, {Interface: "va", Frames: 10}} {
		if _, err := Open(c); err == nil {
			t.Errorf("%+v was accepted", c)
		}
	}
}

// An interface that is gone is noticed, also by a worker that only receives;
// one that is down is waited for.
func TestLinkGone(t *testing.T) {
	a, b := wire(t, 1500)
	l, err := netlink.LinkByName("vb")
	if err != nil {
		t.Fatal(err)
	}
	var in, out packet.Batch
	receive := func() error {
		if err := b.Wait(context.Background(), time.Millisecond); err != nil {
			return err
		}
		_, err := b.Rx(&out)
		return err
	}
	if err := netlink.LinkSetDown(l); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		if err := receive(); err != nil {
			t.Fatalf("down: %v", err)
		}
	}
	for range 2 {
		x := b.Pool().Get()
		x.SetBytes(frame(100, 0))
		in.Add(x)
	}
	if n, err := b.Tx(&in); n != 2 || err != nil || in.Len() != 0 || b.Stats().TxDropped != 2 {
		t.Errorf("down: took %d of 2, %v, %+v", n, err, b.Stats())
	}
	if err := netlink.LinkSetUp(l); err != nil {
		t.Fatal(err)
	}
	x := a.Pool().Get()
	x.SetBytes(frame(100, 0))
	in.Add(x)
	move(t, a, b, &in, &out, 1)
	out.PutAll()
	if err := netlink.LinkDel(l); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		err = receive()
	}
	if !errors.Is(err, port.ErrClosed) {
		t.Errorf("gone: %v", err)
	}
}
