package afxdp

import (
	"context"
	"testing"
)

var tbContext = context.Background()

func open(tb testing.TB, cfg PairConfig) *Pair {
	tb.Helper()
	cfg.A, cfg.B = "dutA", "dutB"
	w, err := OpenPair(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := w.Close(); err != nil {
			tb.Error("close: ", err)
		}
	})
	return w
}

func TestForward(t *testing.T) {
	for _, c := range []struct {
		name     string
		mtu      int
		sizes    []int
		mode     Mode
		separate bool
	}{
		{"native", 1500, []int{64, 65, 127, 128, 512, 1024, 1514}, Auto, false},
		{"separate", 1500, []int{64, 128, 1514}, Auto, true},
		{"generic", 1500, []int{64, 128, 1514}, Generic, false},
		{"roce4096", 4200, []int{64, 1024, 3840, 3841, 4095, 4096, 4097, 4154, 4214}, Auto, false},
		{"jumbo", 9000, []int{64, 3841, 7680, 7681, 9014}, Auto, false},
		{"jumbo-separate", 9000, []int{64, 9014}, Auto, true},
		{"jumbo-generic", 9000, []int{64, 9014}, Generic, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			bed := newBed(t, c.mtu, 1)
			w := open(t, PairConfig{Separate: c.separate, Options: Options{Mode: c.mode}})
			t.Log(w.Info())
			p := startPump(w.A, w.B, nil)
			seq := uint32(0)
			for round := range 3 {
				for _, size := range c.sizes {
					for tags := range 3 {
						if size+4*tags > c.mtu+14 && tags > 0 || tags == 2 && size < 68 {
							continue
						}
						seq++
						crossed(t, bed.a, bed.b, roce(size, tags, size > 90 && round == 1, seq))
						crossed(t, bed.b, bed.a, roce(size, tags, false, seq))
					}
				}
			}
			p.halt(t)
			for _, x := range []*Port{w.A[0], w.B[0]} {
				s := x.Stats()
				if s.RxPackets == 0 || s.RxPackets != s.TxPackets || s.RxDropped+s.TxDropped+s.Bypassed != 0 {
					t.Errorf("%s: %+v", x.Name(), s)
				}
				if x.part != nil {
					t.Error("a frame is half received")
				}
			}
			conserved(t, w)
		})
	}
}

// conserved wants every chunk in a ring or free.
func conserved(t *testing.T, w *Pair) {
	t.Helper()
	for i := range w.A {
		a, b := w.A[i], w.B[i]
		for a.sock.Tx.Unconsumed()+b.sock.Tx.Unconsumed() > 0 {
			_ = a.kick()
			_ = b.kick()
		}
		a.reap()
		b.reap()
		if a.jumbo != nil && a.jumbo.InUse() != 0 {
			t.Errorf("%d jumbo slots are lost", a.jumbo.InUse())
		}
		if a.pool == b.pool {
			if lost := a.pool.InUse() - a.posted - b.posted; lost != 0 {
				t.Errorf("%d chunks are lost", lost)
			}
			continue
		}
		if lost := a.pool.InUse() - a.posted + b.pool.InUse() - b.posted; lost != 0 {
			t.Errorf("%d chunks are lost", lost)
		}
	}
}
