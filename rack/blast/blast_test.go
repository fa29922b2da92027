package blast

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/port/afxdp"
)

// frames of several lengths, each with its number behind the header.
func frames() [][]byte {
	var fs [][]byte
	for i := range 100 {
		f := make([]byte, 64+10*i)
		copy(f, []byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xB5, byte(i)})
		fs = append(fs, f)
	}
	return fs
}

// patient is a heartbeat's limit that a busy machine does not exceed.
const patient = 20 * time.Second

// TestFramesInTurns receives with a middlebox that sends everything on: the
// frames of the list come in its order, none is lost, and all arrive.
func TestFramesInTurns(t *testing.T) {
	want := frames()
	r, err := New(want, 256)
	if errors.Is(err, port.ErrNotSupported) && os.Geteuid() != 0 {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
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
	if _, err := pair.A[0].Rx(&b); err != nil { // from here on nothing crosses unseen
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	got := 0
	for got < 5000 && ctx.Err() == nil {
		b.Reset()
		if _, err := pair.A[0].Rx(&b); err != nil {
			t.Fatal(err)
		}
		for _, x := range b.Bufs() {
			f := want[got%len(want)]
			if x.Len() != len(f) || x.Bytes()[14] != f[14] {
				t.Fatalf("frame %d: %d bytes, number %d; want %d, %d", got, x.Len(), x.Bytes()[14], len(f), f[14])
			}
			got++
		}
		for b.Len() > 0 {
			if _, err := pair.B[0].Tx(&b); err != nil {
				t.Fatal(err)
			}
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if n := r.Arrived(); got < 5000 || n < 4000 {
		t.Errorf("%d frames passed, %d arrived", got, n)
	}
}

func TestRefusals(t *testing.T) {
	for _, fs := range [][][]byte{nil, {make([]byte, 13)}, {make([]byte, maxFrame+1)}} {
		if r, err := New(fs, 0); err == nil {
			r.Close()
			t.Errorf("%d frames: taken", len(fs))
		}
	}
}

// TestCloseLeavesNothing: the namespaces are gone, so this one has no new link.
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
