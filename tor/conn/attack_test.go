package conn

import (
	"net/netip"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/hdr"
)

// Whoever makes up requests chooses the names of half-open rows. What it costs to find others'
// does not grow with what it chose: the hash is keyed, if whoever makes the table gives a key.
func TestAttackChosenNames(t *testing.T) {
	const rows = 1 << 16
	cost := func(chosen bool) time.Duration {
		x := newTable(t, Config{Rows: rows, Infer: true, Seed: 0x5EED})
		guess := newNames(2*rows, 0) // what everybody knows
		dst := AddrFrom(netip.AddrFrom4([4]byte{10, 9, 0, 1}))
		n := 0
		for q := uint32(2); n < rows/4 && q < 1<<24; q++ {
			if chosen && (guess.hash(dst, q)>>6)&(uint32(len(x.qps.E)>>6)-1) > 16 {
				continue
			}
			b := spec{op: hdr.WriteOnly, src: netip.AddrFrom4([4]byte{10, 1, byte(n >> 8), byte(n)}), dst: netip.AddrFrom4([4]byte{10, 9, 0, 1}), qpn: q, psn: 7}.bytes()
			if _, e := feed(x, 1, b); e == Opened {
				n++
			}
		}
		// A victim whose name is found there; it is there for nobody's fault: one in 128 is.
		var names []uint32
		for q := uint32(1 << 23); len(names) < 1000; q++ {
			if (guess.hash(dst, q)>>6)&(uint32(len(x.qps.E)>>6)-1) <= 16 {
				names = append(names, q)
			}
		}
		best := time.Hour
		for range 3 {
			begin := time.Now()
			for _, q := range names {
				x.find(dst, q)
			}
			best = min(best, time.Since(begin)/1000)
		}
		t.Logf("chosen: %v, %d rows: %v", chosen, n, best)
		return best
	}
	if fair, chosen := cost(false), cost(true); chosen > 20*fair+time.Microsecond {
		t.Errorf("to find a row takes %v; %v when somebody chose names", fair, chosen)
	}
}
