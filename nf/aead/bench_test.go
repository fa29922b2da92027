package aead

import (
	"crypto/aes"
	"crypto/cipher"
	"fmt"
	"testing"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
)

// amnesiac forgets before every batch which numbers were received, so that the
// same frames can be opened again and again.
type amnesiac struct{ *App }

func (a *amnesiac) Push(c *graph.Ctx, in int, b *packet.Batch) {
	for _, x := range a.cfg.sends {
		if s, ok := a.cfg.out.Get(x.at); ok {
			s.seq = min(s.seq, 1<<20)
		}
	}
	s := a.cfg.in[0x100]
	if s != nil {
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

// BenchmarkSeal and BenchmarkOpen: the app, with a graph around it and the copy of
// each frame into its buffer, beside the standard library's Seal and Open of what
// the app has to encrypt: UDP header, payload and ESP trailer. 16 frames a batch.
func BenchmarkSeal(b *testing.B) { beside(b, "a") }
func BenchmarkOpen(b *testing.B) { beside(b, "b") }

const burst = 16

func beside(b *testing.B, in string) {
	for _, n := range []int{64, 256, 512, 1024, 1400} {
		text := 8 + n + pad(8+n) + trailerLen
		b.Run(fmt.Sprintf("std/%d", n), func(b *testing.B) {
			block, _ := aes.NewCipher(make([]byte, 16))
			gcm, _ := cipher.NewGCM(block)
			nonce, aad := make([]byte, 12), make([]byte, 8)
			var at [burst][]byte
			for i := range at {
				at[i] = gcm.Seal(nil, nonce, make([]byte, text), aad)
			}
			spare := make([]byte, text)
			b.SetBytes(int64(text))
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				x := at[i%burst]
				if in == "a" {
					gcm.Seal(x[:0], nonce, x[:text], aad)
				} else if _, err := gcm.Open(spare[:0], nonce, x, aad); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprintf("app/%d", n), func(b *testing.B) {
			near, far := ends(b)
			args := near
			frames := make([][]byte, burst)
			if in == "a" {
				for i := range frames {
					frames[i] = sized(n)
				}
			} else {
				args = far
				x := graphtest.New(b, *Kind(), near)
				for i := range frames {
					frames[i], _ = only(b, x.Push("a", sized(n)), "b")
				}
			}
			k, app := forgetful()
			l := graphtest.NewLoop(b, k, args, in, frames...)
			l.Breath()
			b.SetBytes(int64(text * burst))
			b.ReportAllocs()
			rounds := uint64(1)
			for b.Loop() {
				l.Breath()
				rounds++
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64((rounds-1)*burst), "ns/packet")
			done := &(*app).cfg.out
			got := uint64(0)
			if in == "a" {
				s, _ := done.Get((*app).cfg.sends[0].at)
				got = s.packets
			} else {
				got = (*app).cfg.in[0x100].sa.packets
			}
			if got != rounds*burst {
				b.Fatalf("%d packets of %d", got, rounds*burst)
			}
		})
	}
}
