package sim

import (
	"testing"
	"time"

	"github.com/quillon/quillon/internal/rack/clover"
	tor "github.com/quillon/quillon/tor/clover"
)

// A steered read is sent to the tail that the middlebox knows. Appends overtake it while the NIC holds the request
// up, and then it has to read again. They do not if the NIC holds up the answer, which takes as long.
func TestHeldAnswers(t *testing.T) {
	run := func(answers bool) CloverMeasured {
		n := ConnectX5()
		n.HoldAnswers = answers
		return clovers(t, CloverConfig{
			Hosts: 6, ThreadsPerHost: 24, QPs: 24, WriteShare: 0.5, Keys: 128, Zipf: 1, Mode: tor.ReadWrite, Search: clover.SearchLibrary,
			NIC: n, Seed: 1, Warmup: 500 * time.Microsecond, Measure: time.Millisecond,
		})
	}
	requests, answers := run(false), run(true)
	if again := 1 - requests.ReadFirstTry; again < 0.02 || 1-answers.ReadFirstTry > again/2 {
		t.Errorf("%.4f of the reads read again, %.4f with held answers", again, 1-answers.ReadFirstTry)
	}
	if d := answers.Read.P50 - requests.Read.P50; d > 0.1 || d < -0.3 {
		t.Errorf("a read takes %.2f us, %.2f with held answers", requests.Read.P50, answers.Read.P50)
	}
}
