package swordbox

import (
	"testing"
	"time"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
)

// A server pauses after a reboot of the box's machine, and then answers several questions about a lost connection. No answer reaches the
// client, which counts otherwise than the server's end: it would take one for the acknowledgement of its own requests. So it is with the network's copy of an answer.
func TestRebootSeveralAnswers(t *testing.T) {
	for _, questions := range []int{1, 2, 3} {
		r, k, d := journaling(t, graph.Args{"idle": "2m"})
		a, b := r.join(), r.join()
		b.learn(a, 0x7000, 7)
		r.reboot(k, d)
		r.Advance(2 * time.Duration(keepGone))
		asked := 0
		for range questions {
			x := r.Push("a", a.made(hdr.WriteOnly, a.psn, reth(0x5000, testRKey, 8), little(1)))
			asked += stays(t, x.Out["b"])
			none0(t, x.Out["a"])
			r.Advance(51 * time.Millisecond) // giveup=
		}
		if asked < questions {
			t.Fatalf("%d questions, want %d", asked, questions)
		}
		for range questions + 1 {
			none0(t, a.acknowledges(a.spsn).Out["a"])
		}
	}
}
