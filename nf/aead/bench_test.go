package aead

import (
	"crypto/aes"
	"crypto/cipher"
	"fmt"
	"slices"
	"testing"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
)

// amnesiac forgets before every batch which numbers were received, so that the
// same frames can be opened again and again.
type amnesiac struct{ *App }

func (a *amnesiac) Push(c *graph.Ctx, in int, b *packet.Batch) {
	if s := a.cfg.in[0x100]; s != nil {
		s.sa.win = window{size: s.sa.win.size}
	}
	a.App.Push(c, in, b)
}

// sized is a UDP frame of n bytes of payload.
func sized(n int) []byte {
	b := make([]byte, 42+n)
	copy(b, []byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0, 0, 0, 0, 1, 0x40, 0, 64, 17, 0, 0, 10, 0, 1, 1, 10, 0, 2, 1, 3, 232, 7, 208})
	be.PutUint16(b[16:], uint16(28+n))
	be.PutUint16(b[38:], uint16(8+n))
	hdr.IPv4(b[14:]).UpdateChecksum()
	return b
}

// BenchmarkSeal and BenchmarkOpen measure the app, with a graph around it and the
// copy of each frame into its buffer, and in turns with it the standard library's
// Seal and Open, in place, of what the app has to encrypt: UDP header, payload and
// ESP trailer, in buffers that lie apart as the app's do. Times are medians of
// batches, so that what else the machine does weighs little. wire-ns is the graph
// and the copy alone. of-std is the app's rate by that of the standard library;
// of-std-app is that of the app without graph and copy.
func BenchmarkSeal(b *testing.B) { beside(b, "a") }
func BenchmarkOpen(b *testing.B) { beside(b, "b") }

func beside(b *testing.B, in string) {
	for _, n := range []int{64, 256, 512, 1024, 1400} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			text := 8 + n + pad(8+n) + trailerLen
			near, far := ends(b)
			args := near
			frames := make([][]byte, packet.MaxBatch)
			for i := range frames {
				frames[i] = sized(n)
			}
			if in == "b" {
				args = far
				frames = nil
				for _, f := range graphtest.New(b, *Kind(), near).Push("a", slices.Repeat([][]byte{sized(n)}, packet.MaxBatch)...).Out["b"] {
					frames = append(frames, f.Bytes)
				}
			}
			k, app := forgetful()
			l := graphtest.NewLoop(b, k, args, in, frames...)
			wire := graphtest.NewLoop(b, graph.Builtin()[0], nil, in, frames...)

			block, _ := aes.NewCipher(make([]byte, 16))
			gcm, _ := cipher.NewGCM(block)
			nonce, aad := make([]byte, 12), make([]byte, 8)
			at := make([][]byte, len(frames))
			sealed := gcm.Seal(nil, nonce, make([]byte, text), aad)
			pool, err := packet.NewPool(len(at), graphtest.SlotSize, nil)
			if err != nil {
				b.Fatal(err)
			}
			for i := range at {
				f := pool.Get()
				f.SetBytes(sealed)
				at[i] = f.Bytes()
			}
			std := func() {
				for _, x := range at {
					if in == "a" {
						gcm.Seal(x[:0], nonce, x[:text], aad)
					} else if _, err := gcm.Open(x[:0], nonce, x, aad); err != nil {
						b.Fatal(err)
					}
				}
			}
			wall := clock.NewWall()
			var took [3][]clock.Duration
			for i := range took {
				took[i] = make([]clock.Duration, 0, 1<<16)
			}
			rounds := 0
			b.ReportAllocs()
			for b.Loop() {
				rounds++
				if in == "b" {
					for i := range at {
						copy(at[i], sealed) // opened last time
					}
				}
				for i, f := range []func(){std, l.Breath, wire.Breath} {
					start := wall.Now()
					f()
					if d := wall.Now().Sub(start); len(took[i]) < cap(took[i]) {
						took[i] = append(took[i], d)
					}
				}
			}
			var ns [3]float64
			for i, name := range []string{"std-ns", "app-ns", "wire-ns"} {
				slices.Sort(took[i])
				ns[i] = float64(took[i][len(took[i])/2]) / float64(len(frames))
				b.ReportMetric(ns[i], name)
			}
			b.ReportMetric(ns[0]/ns[1], "of-std")
			b.ReportMetric(ns[0]/(ns[1]-ns[2]), "of-std-app")
			b.ReportMetric(0, "ns/op")
			s := (*app).cfg.in[0x200]
			if in == "b" {
				s = (*app).cfg.in[0x100]
			} else if sent, ok := (*app).cfg.out.Get((*app).cfg.sends[0].at); ok {
				s = &inSA{sa: sent}
			}
			if s.sa.packets != uint64(rounds*len(frames)) {
				b.Fatalf("%d packets of %d", s.sa.packets, rounds*len(frames))
			}
		})
	}
}
