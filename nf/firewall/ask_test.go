package firewall

import (
	"math/rand/v2"
	"testing"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
)

// TestUsual gathers usual frames as such, and as all others are: with the same outcome.
func TestUsual(t *testing.T) {
	a, err := newApp(graph.Args{}, graph.Env{})
	if err != nil {
		t.Fatal(err)
	}
	a.Seed = 7
	r := rand.New(rand.NewPCG(1, 2))
	for n := range 10_000 {
		b := make([]byte, 60+r.IntN(4))
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		copy(b[12:], []byte{8, 0, 0x45, 0, 0, byte(28 + r.IntN(19)), 0, 0, 0x40, 0, 64, []byte{hdr.ProtoUDP, hdr.ProtoTCP}[n%2]})
		var l hdr.Layers
		if _, _, ok := hdr.Usual(b); !ok || !hdr.Walk(b, &l) {
			t.Fatalf("%x is not usual", b)
		}
		in := r.IntN(2)
		got, want := a.asks[0], a.asks[0] // as another frame has left them
		a.gather(in, b, &got)
		a.whole(in, b, &l, &want)
		got.place, want.place = 0, 0
		if got != want {
			t.Fatalf("%x:\n%+v, want\n%+v", b, got, want)
		}
		a.asks[0] = got
	}
}
