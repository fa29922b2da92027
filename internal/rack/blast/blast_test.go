package blast

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/port/afxdp"
)

// frames makes frames of several lengths, each with its number behind the header.
func frames() []Frame {
	var fs []Frame
	for i := range 100 {
		f := make([]byte, 64+10*i)
		copy(f, []byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xB5, byte(i)})
		fs = append(fs, Frame{Bytes: f})
	}
	return fs
}

// patient is a limit for the heartbeat that a busy machine does not exceed.
const patient = 20 * time.Second

// TestFramesInTurns receives with a middlebox that forwards everything: the frames of the list come in its
// order, and none is lost.
func TestFramesInTurns(t *testing.T) {
	want := frames()
	pass(t, want, 256, 5000, func(got int, b []byte) {
		if f := want[got%len(want)].Bytes; len(b) != len(f) || b[14] != f[14] {
			t.Fatalf("frame %d: %d bytes, number %d; want %d, %d", got, len(b), b[14], len(f), f[14])
		}
	})
}

// TestOneFrame: a frame that never changes arrives unchanged, with and without a window.
func TestOneFrame(t *testing.T) {
	want := frames()[7:8]
	for _, window := range []int{0, 256} {
		pass(t, want, window, 5000, func(got int, b []byte) {
			if !bytes.Equal(b, want[0].Bytes) {
				t.Fatalf("window %d, frame %d: %x, want %x", window, got, b, want[0].Bytes)
			}
		})
	}
}

// TestLaps: PSNs and ICRCs continue from lap to lap, also over the end of the PSN space. Frames that do not
// step stay as they are.
func TestLaps(t *testing.T) {
	want := []Frame{
		{Bytes: roce(0, 0xFFFFF0), Step: 3}, {Bytes: roce(40, 1)}, {Bytes: roce(200, 0), Step: 0x801},
		{Bytes: roce(40, 5), Step: hdr.PSNMask}, {Bytes: frames()[3].Bytes},
	}
	// The last is of another flow than the rest, and may overtake them: ports hand out sparse flows first.
	rest := want[:len(want)-1]
	others := 0
	pass(t, want, 256, 5000, func(got int, b []byte) {
		if bytes.Equal(b, want[len(rest)].Bytes) {
			others++
			return
		}
		got -= others
		f := &rest[got%len(rest)]
		if f.Step == 0 {
			if !bytes.Equal(b, f.Bytes) {
				t.Fatalf("frame %d: %x, want %x", got, b, f.Bytes)
			}
			return
		}
		var p hdr.Frame
		hdr.Parse(f.Bytes, &p)
		psn := (p.BTHOf(f.Bytes).PSN() + uint32(got/len(rest))*f.Step) & hdr.PSNMask
		if hdr.Parse(b, &p) != hdr.IsRoCE || p.BTHOf(b).PSN() != psn || !p.BTHOf(b).AckReq() || hdr.ICRC(b, &p) != hdr.StoredICRC(b, &p) {
			t.Fatalf("frame %d, want PSN %06x: %x", got, psn, b)
		}
		p.BTHOf(b).SetPSN(p.BTHOf(f.Bytes).PSN())
		if n := int(p.End); !bytes.Equal(b[:n], f.Bytes[:n]) {
			t.Fatalf("frame %d: %x, want %x but for PSN and ICRC", got, b, f.Bytes)
		}
	})
	if others < 5000/len(want)-256 || others > 5000/len(want)+256 {
		t.Errorf("%d frames of the other flow among 5000", others)
	}
}

// roce is an RC SEND ONLY of n bytes, with a right ICRC.
func roce(n int, psn uint32) []byte {
	const l3, l4, bth = 14, 34, 42
	b := make([]byte, bth+hdr.BTHLen+n+hdr.ICRCLen)
	hdr.Ethernet(b).Encode(&hdr.EthernetFields{Dst: [6]byte{2, 0, 0, 0, 0, 2}, Src: [6]byte{2, 0, 0, 0, 0, 1}, EtherType: hdr.EtherIPv4})
	a := netip.AddrFrom4([4]byte{10, 0, 0, 1})
	hdr.IPv4(b[l3:]).Encode(&hdr.IPv4Fields{TotalLen: uint16(len(b) - l3), TTL: 64, Protocol: hdr.ProtoUDP, Src: a, Dst: a})
	hdr.UDP(b[l4:]).Encode(&hdr.UDPFields{SrcPort: 0xC000, DstPort: hdr.RoCEv2Port, Len: uint16(len(b) - l4)})
	hdr.BTH(b[bth:]).Encode(&hdr.BTHFields{OpCode: hdr.SendOnly, Ack: true, PKey: 0xFFFF, DestQP: 17, PSN: psn})
	var f hdr.Frame
	hdr.Parse(b, &f)
	hdr.SetICRC(b, &f)
	return b
}

// pass forwards n frames of a list, and calls see with each on its way.
func pass(t *testing.T, want []Frame, window, n int, see func(got int, b []byte)) {
	r, err := New(want, window)
	if errors.Is(err, port.ErrNotSupported) && os.Geteuid() != 0 {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	r.Burst = 1 << 16 // a begun burst ends when enough frames have passed; on a busy machine this takes time
	var pair *afxdp.Pair
	err = r.Near.Do(func() (err error) {
		pair, err = afxdp.OpenPair(afxdp.PairConfig{A: A, B: B, Options: afxdp.Options{Clock: clock.NewWall(), Stale: patient}})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer pair.Close()
	var b packet.Batch
	if _, err := pair.A[0].Rx(&b); err != nil { // from here on no frame crosses unseen
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	got := 0
	for got < n && ctx.Err() == nil {
		b.Reset()
		if _, err := pair.A[0].Rx(&b); err != nil {
			t.Fatal(err)
		}
		for _, x := range b.Bufs() {
			see(got, x.Bytes())
			got++
		}
		for b.Len() > 0 {
			if _, err := pair.B[0].Tx(&b); err != nil {
				t.Fatal(err)
			}
		}
	}
	if k := r.Arrived(); got < n || k < uint64(n-1000) {
		t.Errorf("%d frames passed, %d arrived", got, k)
	}
}

func TestRefusals(t *testing.T) {
	for _, fs := range [][]Frame{nil, {{Bytes: make([]byte, 13)}}, {{Bytes: make([]byte, maxFrame+1)}}, {{Bytes: make([]byte, 100), Step: 1}}} {
		if r, err := New(fs, 0); err == nil {
			r.Close()
			t.Errorf("%d frames: taken", len(fs))
		}
	}
}

// TestCloseLeavesNothing: the namespaces are gone, so the test's own namespace has no new link.
func TestCloseLeavesNothing(t *testing.T) {
	before, err := netlink.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	r, err := New(frames(), 0)
	if errors.Is(err, port.ErrNotSupported) && unix.Geteuid() != 0 {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	after, err := netlink.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	if len(before) != len(after) {
		t.Errorf("%d links before, %d after", len(before), len(after))
	}
}
