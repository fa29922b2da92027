package police

import (
	"fmt"
	"math"
	"math/bits"
	"strings"

	"github.com/quillon/quillon/nf/arg"
	"github.com/quillon/quillon/nf/clock"
)

// rate is how fast tokens come, in bits or packets a second.
type rate struct {
	perSecond uint64
	packets   bool
}

// UnmarshalText reads rates such as 10Mbit, 1.5Gbit and 100kpps.
func (r *rate) UnmarshalText(text []byte) (err error) {
	s := string(text)
	if r.packets = strings.HasSuffix(s, "pps"); r.packets {
		r.perSecond, err = arg.ParsePackets(s, 1, arg.Fastest)
		return err
	}
	if r.perSecond, err = arg.ParseRate(s, 1, arg.Fastest); err != nil {
		err = fmt.Errorf("%w, or of packets, such as 100kpps", err)
	}
	return err
}

// maxBurst is the largest burst. It makes sure that the contents of a bucket fit in 64 bits.
const maxBurst = 1 << 30

// burst returns what comes in ms milliseconds, in bytes or packets, and at least 16 KiB (a jumbo frame) or 64
// packets.
func (r rate) burst(ms uint64) uint64 {
	if r.packets {
		return min(max(r.perSecond*ms/1000, 64), maxBurst)
	}
	return min(max(r.perSecond/8*ms/1000, 16<<10), maxBurst)
}

// nano is the number of parts that a token is counted in. A nanosecond brings as many parts as the rate has
// tokens a second, so that nothing is ever rounded.
const nano = 1_000_000_000

// cost returns what a packet of size bytes takes out of a bucket, in parts of tokens.
func (r rate) cost(size int) uint64 {
	if r.packets {
		return nano
	}
	return uint64(size) * 8 * nano
}

// room returns what a bucket of that burst holds, in parts of tokens.
func (r rate) room(burst uint64) uint64 {
	if r.packets {
		return burst * nano
	}
	return burst * 8 * nano
}

// earned returns what comes in d, in parts of tokens, or the largest uint64 if it is more.
func (r rate) earned(d clock.Duration) uint64 {
	if d <= 0 {
		return 0
	}
	hi, lo := bits.Mul64(uint64(d), r.perSecond)
	if hi != 0 {
		return math.MaxUint64
	}
	return lo
}

// fill adds n to a bucket that holds at most room, and returns what did not fit.
func fill(tokens *uint64, room, n uint64) (rest uint64) {
	free := room - *tokens
	if n >= free {
		*tokens = room
		return n - free
	}
	*tokens += n
	return 0
}

// until returns the time in which n parts of tokens come.
func (r rate) until(n uint64) clock.Duration {
	return clock.Duration(n/r.perSecond + min(n%r.perSecond, 1))
}
