package clover

import (
	"net/netip"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	wire "github.com/quillon/quillon/nf/hdr/clover"
)

// Epochs are numbers of 32 bits, which drops and strangers' frames use up. A client is told of its append whatever epoch that is in, also
// where the key was last cut, or never, half of all epochs ago.
func TestManyEpochs(t *testing.T) {
	for _, epoch := range []uint32{0, 1<<31 - 20, 1 << 31, 1<<31 + 1000, 3 << 30, 1<<32 - 20} {
		r := newRig(t, graph.Args{})
		r.App().(*Steer).keys.epoch = epoch
		va := func(lh uint32) uint64 { return 0x900000 + uint64(lh-0x9000)*128 }
		r.warm(0x10, 100, va(0x9010), 0x9010)
		r.warm(0x20, 100, va(0x9020), 0x9020)
		r.append(0x10, 108, 0x800000, va(0x9000), 0x9000, 5)
		r.write(0x20, 108, va(0x9001), 5, 1)
		if at := atomicOf(t, only(t, r.staleCAS(1).Out["b"])).VA(); at != 0x900000 {
			t.Errorf("epoch %#x: a CAS was sent to %#x", epoch, at)
		}
		if got := r.from(0x20, 109, hdr.AtomicAck, hdr.SynACK, uint64(wire.Fresh(1)), nil); len(got.Out["a"]) != 1 {
			t.Errorf("epoch %#x: the client is not told of its append: %v", epoch, got.Dropped)
		}
	}
}

// opaque is a fragment that may be anybody's request to the server.
func opaque() []byte {
	b := frameOf{src: netip.MustParseAddr("10.77.0.9"), dst: netip.MustParseAddr("10.77.0.1"), sport: 1, op: hdr.CompareSwap, qpn: 0x77, psn: 1, ext: atomicETH(0x900000, 7, 1, 0)}.bytes()
	b[20] |= 0x20
	hdr.IPv4(b[14:34]).UpdateChecksum()
	return b
}

// A tail that is doubted is not believed again when epochs have come around.
func TestDoubtStays(t *testing.T) {
	r := steered(t, graph.Args{})
	s := r.App().(*Steer)
	for range 5 {
		r.Push("a", opaque())
		s.keys.epoch += 1 << 29
		r.Advance(time.Second)
	}
	r.Push("a", opaque())
	if at := atomicOf(t, only(t, r.staleCAS(1).Out["b"])).VA(); at != 0x800000 {
		t.Errorf("a CAS was sent to %#x", at)
	}
}

// What is learnt half of all epochs after a doubt is believed.
func TestDoubtEnds(t *testing.T) {
	r := steered(t, graph.Args{})
	s := r.App().(*Steer)
	r.Push("a", opaque())
	for range 5 {
		s.keys.epoch += 1 << 29
		r.Advance(time.Second)
	}
	r.staleCAS(1)
	r.from(0x20, 109, hdr.AtomicAck, hdr.SynACK, 0x9000<<28, nil)
	r.append(0x10, 110, 0x900000, 0x900000+2*128, 0x9002, 6)
	r.write(0x20, 110, 0x900000+3*128, 6, 1)
	got := r.to(0x20, 111, hdr.CompareSwap, atomicETH(0x900000, r.rkey, r.swap(0x9003, 1, 1), uint64(wire.Fresh(1))), nil)
	if at := atomicOf(t, only(t, got.Out["b"])).VA(); at != 0x900000+2*128 {
		t.Errorf("a CAS was sent to %#x", at)
	}
}

// What strangers send that may change anything makes a server's memory unknown once, until something is learnt again.
func TestDoubtsAreFree(t *testing.T) {
	r := steered(t, graph.Args{})
	s := r.App().(*Steer)
	was := s.keys.epoch
	for range 100 {
		r.Push("a", opaque())
	}
	if n := s.keys.epoch - was; n != 1 {
		t.Errorf("%d epochs have passed, want 1", n)
	}
}
