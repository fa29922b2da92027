package swordbox

import (
	"fmt"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/graph"
)

// BenchmarkTick is what a worker does every 0.5 ms while one operation goes over another's connection, by how many connections there may be. Two are there.
func BenchmarkTick(b *testing.B) {
	for _, conns := range []int{512, 16384, 65536} {
		b.Run(fmt.Sprint("conns=", conns), func(b *testing.B) {
			r := newRig(b, graph.Args{"mode": "mux", "conns": fmt.Sprint(conns), "discover": "1", "giveup": "1h", "alive": "1h", "idle": "10h"})
			p, q := r.join(), r.join()
			p.cas(0x7010, 1, 2)
			q.cas(0x7010, 2, 3) // over p's connection
			if n := (*r.box().nodes.Load())[0]; n.lends.n == 0 {
				b.Fatal("nothing goes over another's connection")
			}
			for b.Loop() {
				r.Advance(500 * time.Microsecond)
			}
			if n := (*r.box().nodes.Load())[0]; n.lends.n == 0 {
				b.Fatal("nothing goes over another's connection any more")
			}
		})
	}
}
