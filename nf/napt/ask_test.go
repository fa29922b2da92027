package napt

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
)

// alike is NAPT to which no frame is usual.
type alike struct{ *app }

func (a alike) Push(c *graph.Ctx, in int, b *packet.Batch) {
	a.Now = c.Now()
	for _, x := range b.Bufs() {
		v := a.one(c, in, x.Bytes())
		if v.out == drop {
			c.Drop(x, v.reason)
			continue
		}
		was := x.Verdict
		if v.reason <= lastRewritten {
			was = packet.Rewritten
		}
		c.Mark(x, was, v.reason)
		c.Emit(v.out, x)
	}
}

// TestUsual has frames translated with and without a look at what is usual of them, by two apps with the same state: frames, verdicts and reasons are the same.
func TestUsual(t *testing.T) {
	kind := Kind()
	kind.New = func(env graph.Env, args graph.Args) (graph.App, error) {
		s, err := parse(args)
		return alike{newApp(s, env)}, err
	}
	for _, filter := range []string{"endpoint", "address", "port"} {
		for _, mac := range []string{"none", box} {
			args := graph.Args{"public": pub + "+" + pub2, "filter": filter, "private": "10.0.0.0/8+0.0.0.0/32", "mac": mac, "mappings": "200", "sessions": "300", "udp-idle": "20s", "tcp-trans": "20s"}
			x, y := graphtest.NewSmall(t, *Kind(), args), graphtest.NewSmall(t, *kind, args)
			r := rand.New(rand.NewPCG(1, 2))
			addrs := []string{"10.0.0.1", "10.0.0.2", "0.0.0.0", "192.0.2.1", "224.0.0.1", "203.0.113.9", "203.0.113.10", pub, pub2}
			addr := func() string {
				return fmt.Sprintf("%s:%d", addrs[r.IntN(len(addrs))], []int{0, 80, 4791, 1024 + r.IntN(100)}[r.IntN(4)])
			}
			translated := 0
			for range 120 {
				var frames [][]byte
				for range 1 + r.IntN(30) {
					p := pkt{proto: []string{"udp", "tcp"}[r.IntN(2)], src: addr(), dst: addr(), flags: []string{"S", "SA", "A", "FA", "R"}[r.IntN(5)], mac: byte(r.IntN(2)), nosum: r.IntN(4) == 0, payload: "abc"[:r.IntN(4)]}
					if r.IntN(8) == 0 {
						p.tags = []uint16{7}
					}
					frames = append(frames, p.bytes(t))
				}
				in, step := []string{"a", "a", "b"}[r.IntN(3)], time.Duration(r.IntN(3))*time.Second
				x.Advance(step)
				y.Advance(step)
				got, want := x.Push(in, frames...), y.Push(in, frames...)
				if d := cmp.Diff(want, got); d != "" {
					t.Fatalf("%s, %s (-alike +usual):\n%s", filter, mac, d)
				}
				translated += len(got.Out["b"])
			}
			if translated < 300 {
				t.Errorf("%d frames went out", translated)
			}
		}
	}
}

// TestRewriteUsual compares rewriteUsual with rewrite.
func TestRewriteUsual(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for n := range 200_000 {
		b := make([]byte, 60)
		for i := range b {
			b[i] = byte(r.Uint32() >> (8 * (n % 3))) // often 0
		}
		copy(b[12:], []byte{8, 0, 0x45, 0, 0, 46, 0, 0, 0x40, 0, 64, []byte{hdr.ProtoUDP, hdr.ProtoTCP}[r.IntN(2)]})
		if r.IntN(4) == 0 {
			b[40], b[41] = 0, 0
		}
		var l hdr.Layers
		if _, _, ok := hdr.Usual(b); !ok || !hdr.Walk(b, &l) {
			t.Fatalf("%x is not usual", b)
		}
		addr, port := r.Uint32()|1, uint16(r.Uint32())
		want := bytes.Clone(b)
		rewrite(want, &l, source, addr, port)
		if rewriteUsual(b, addr, port); !bytes.Equal(b, want) {
			t.Fatalf("\n%x, want\n%x", b, want)
		}
	}
}
