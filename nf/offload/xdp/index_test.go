package xdp

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/offload"
)

// keys gives an index so many slots, and each of their directions a key.
func keys(slots int, r *rand.Rand) *index {
	x := &index{slots: make([]offload.Slot, slots), buckets: bucketsOf(slots), secret: newSecret()}
	x.words = make([]uint32, wordsOf*x.buckets)
	for i := range x.slots {
		for d := range x.slots[i].Dirs {
			k := &x.slots[i].Dirs[d].Key
			be.PutUint32(k[:], 10<<24|uint32(2*i+d))
			be.PutUint32(k[4:], r.Uint32()&0xFF)
			k[16], k[17] = uint8(d), hdr.ProtoUDP
		}
	}
	return x
}

// lost is how many directions of slots their keys do not lead to.
func (x *index) lost(there func(slot int) bool) (n int) {
	for i := range x.slots {
		for d := range x.slots[i].Dirs {
			k := x.slots[i].Dirs[d].Key
			at := x.find(k, x.hash(k))
			if (at >= 0 && x.words[at]&refMask == uint32(2*i+d+1)) != there(i) {
				n++
			}
		}
	}
	return n
}

// TestIndex: an index takes all keys of its slots, and more than it is made for, finds each, and loses none when others go and come back.
func TestIndex(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, slots := range []int{1, 2, 3, 64, 1000, 4096} {
		x := keys(slots, r)
		all := func(slot int) bool { return true }
		put := func(slots []int) {
			for _, i := range slots {
				for d := range 2 {
					if err := x.put(x.slots[i].Dirs[d].Key, i, d); err != nil {
						t.Fatalf("slot %d of %d: %v", i, slots, err)
					}
				}
			}
		}
		order := r.Perm(slots)
		put(order)
		put(order[:slots/2]) // again
		if n := x.lost(all); n > 0 {
			t.Errorf("of %d slots %d directions are lost", slots, n)
		}
		gone := order[:slots/2]
		for _, i := range gone {
			x.remove(x.slots[i].Dirs[0].Key, i, 0)
			x.remove(x.slots[i].Dirs[1].Key, i, 1)
		}
		if n := x.lost(func(i int) bool { return !slices.Contains(gone, i) }); n > 0 {
			t.Errorf("of %d slots %d directions are wrong when half are gone", slots, n)
		}
		put(gone)
		if n := x.lost(all); n > 0 {
			t.Errorf("of %d slots %d directions are lost behind a return", slots, n)
		}
	}
	// Words move when both buckets are full.
	x := keys(7000, r)
	x.buckets = 4096
	x.words = x.words[:wordsOf*x.buckets]
	moved := 0
	for i := range x.slots {
		for d := range 2 {
			before := slices.Clone(x.words)
			if err := x.put(x.slots[i].Dirs[d].Key, i, d); err != nil {
				t.Fatalf("%d of %d words are in use: %v", 2*i+d, len(x.words), err)
			}
			if i > 6900 {
				for n := range before {
					if before[n] != 0 && before[n] != x.words[n] {
						moved++
					}
				}
			}
		}
	}
	if n := x.lost(func(int) bool { return true }); n > 0 || moved == 0 {
		t.Errorf("%d of 14,000 are lost, %d have moved", n, moved)
	}
}

// TestFullIndex: the program finds each flow of an index that is full, and runs none by an entry that has another key.
func TestFullIndex(t *testing.T) {
	const flows = 512
	k, err := New(flows)
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	if err := k.SetPort(0, loopback); err != nil {
		t.Fatal(err)
	}
	k.Turn(0, loopback, true)
	table := offload.NewTable(k)
	table.Now(clock.Time(k.Clock()))
	w, a := world{TB: t, r: rand.New(rand.NewPCG(1, 2))}, &holder{make([]offload.Flows, flows)}
	frame := func(n, direction int) []byte {
		d := datagram{vlan: -1, from: [4]byte{10, 0, byte(n >> 8), byte(n)}, to: [4]byte{203, 0, 113, 1}, sport: uint16(n), dport: 53, proto: hdr.ProtoUDP}
		if direction == 1 {
			d.from, d.to, d.sport, d.dport = d.to, d.from, d.dport, d.sport
		}
		return d.bytes(w.r)
	}
	for n := range flows {
		for d := range 2 {
			f := frame(n, d)
			x := offload.Decision{Before: f, After: f, Out: 0, Longest: 1514, Parts: []offload.Part{{Owner: a, Ref: uint32(n), In: d}}}
			if !table.Parse(f, 0, &x.In) {
				t.Fatal("not plain")
			}
			if o := table.Offer(&x); o != offload.Outcome(d^1) {
				t.Fatalf("flow %d, direction %d: %s", n, d, offload.OutcomeNames[o])
			}
		}
	}
	runs := func(f []byte) bool {
		code, err := k.prog.Run(&ebpf.RunOptions{Data: f, DataOut: make([]byte, len(f)+256)})
		if err != nil {
			t.Fatal(err)
		}
		return code == xdpRedirect
	}
	lost, second := 0, 0
	for n := range flows {
		for d := range 2 {
			f := frame(n, d)
			var in offload.Frame
			if !runs(f) {
				lost++
			}
			if table.Parse(f, 0, &in); k.flows.find(in.Bytes(), k.flows.hash(in.Bytes()))/wordsOf != k.flows.bucket(k.flows.hash(in.Bytes()), 0) {
				second++
			}
		}
	}
	if lost > 0 || second == 0 {
		t.Errorf("%d of %d are not run, %d are in their second buckets", lost, 2*flows, second)
	}
	for i := range k.slots {
		for d := range 2 {
			k.slots[i].Dirs[d].Key[8+i%2]++ // a port
		}
	}
	for n := range flows {
		if runs(frame(n, 0)) {
			t.Fatal("a frame is run by the entry of another flow")
		}
	}
	for i := range k.slots {
		if k.slots[i].Claim&0xFFFFFFFF != offload.Live {
			t.Fatalf("slot %d stays claimed: %x", i, k.slots[i].Claim)
		}
	}
}
