package flow_test

import (
	"encoding/binary"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/quillon/quillon/nf/flow"
	"github.com/quillon/quillon/nf/hdr"
)

// TestScout looks for flows with and without a guess, while flows come and go: what is found is the same, and nearly all guesses are right.
func TestScout(t *testing.T) {
	table := flow.New[uint64, int](1000)
	scout := table.Scout()
	r := rand.New(rand.NewPCG(1, 2))
	hash := func(k uint64) uint64 { return hdr.Fold(7, k) }
	there := map[uint64]bool{}
	right, looked := 0, 0
	for range 200_000 {
		k := 1 + r.Uint64N(1200)
		near := scout.Near(hash(k))
		i := table.Find(&k, hash(k))
		if got := table.FindNear(&k, hash(k), near); got != i {
			t.Fatalf("%d with a guess, %d without", got, i)
		}
		if (i >= 0) != there[k] {
			t.Fatalf("place %d of a flow that is there: %v", i, there[k])
		}
		if i >= 0 {
			looked++
			if near == i {
				right++
			}
		}
		switch {
		case i >= 0 && r.IntN(2) == 0:
			table.Del(i)
			if near == i && table.FindNear(&k, hash(k), near) >= 0 {
				t.Fatal("found after it was deleted")
			}
			delete(there, k)
		case i < 0 && len(there) < 1000:
			if table.Add(&k, hash(k)) >= 0 {
				there[k] = true
			}
		}
	}
	if looked < 10_000 || right < looked*9/10 {
		t.Errorf("%d of %d guesses are right", right, looked)
	}
}

// TestScoutBeside guesses while another worker changes the table; the race detector looks on.
func TestScoutBeside(t *testing.T) {
	table := flow.New[uint64, int](1000)
	scout := table.Scout()
	var wg sync.WaitGroup
	wg.Go(func() {
		for k := range uint64(20_000) {
			k = k%700 + 1
			if i := table.Find(&k, hdr.Fold(7, k)); i >= 0 {
				table.Del(i)
			} else {
				table.Add(&k, hdr.Fold(7, k))
			}
		}
	})
	for k := range uint64(20_000) {
		scout.Near(hdr.Fold(7, k%700+1))
	}
	wg.Wait()
	wg.Go(table.Clear)
	for k := range uint64(20_000) {
		scout.Near(hdr.Fold(7, k%700+1))
	}
	wg.Wait()
}

// TestUsualKey compares the keys of usual frames with those that Addrs makes, and Same with ==.
func TestUsualKey(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		b := make([]byte, 60)
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		copy(b[12:], []byte{8, 0, 0x45, 0, 0, 46, 0, 0, 0x40, 0, 64, []byte{hdr.ProtoUDP, hdr.ProtoTCP}[r.IntN(2)]})
		var l hdr.Layers
		var want, got, back flow.Key
		if end, proto, ok := hdr.Usual(b); !ok || !hdr.Walk(b, &l) || l.End != end || l.Proto != proto {
			t.Fatalf("%x is not usual", b)
		}
		want.Addrs(b, &l)
		want.SrcPort, want.DstPort = binary.BigEndian.Uint16(b[34:]), binary.BigEndian.Uint16(b[36:])
		if got.Usual(b, false); got != want {
			t.Fatalf("%+v, want %+v", got, want)
		}
		if back.Usual(b, true); back != want.Reversed() {
			t.Fatalf("%+v, want %+v", back, want.Reversed())
		}
		// One byte of one field differs, or none.
		o := got
		switch p := r.IntN(16); r.IntN(8) {
		case 0:
			o.Src[p]++
		case 1:
			o.Dst[p]++
		case 2:
			o.SrcPort++
		case 3:
			o.DstPort++
		case 4:
			o.Tag++
		case 5:
			o.Proto++
		case 6:
			o.Family++
		}
		if got.Same(&o) != (got == o) || o.Same(&got) != (got == o) {
			t.Fatalf("%+v and %+v", got, o)
		}
	}
}
