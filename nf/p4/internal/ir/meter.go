package ir

import (
	"math/bits"
	"runtime"
	"sync/atomic"
)

// Meter is a cell of a meter: a token bucket for each rate, in words that both executors read and write. An
// executor changes a cell only while it has the cell's word MeterLock (Take and Free).
//
// The arithmetic is exact. A bucket keeps the millionths of a token that it has beyond whole tokens, so that the
// tokens that have come since the meter was configured are always the integer part of rate times microseconds.
type Meter []uint64

// Words of a meter. The buckets come after them, that of the slowest rate first.
const (
	MeterLock = iota // who has the cell; 0: nobody
	MeterOn          // the number of buckets; 0: there are no rates, and all packets are green
	MeterLast        // time to which the buckets are filled, in µs
	MeterBuckets
)

// Words of a bucket. Its rate is BucketMicro tokens a µs and BucketPart tokens a second.
const (
	BucketMicro = iota
	BucketPart  // less than Million
	BucketBurst
	BucketTokens
	BucketRest // millionths of a token, less than Million
	BucketBack // tokens that frames took and do not need: added without MeterLock
	BucketWords
)

// Million is the number of microseconds of a second.
const Million = 1_000_000

// MeterWords returns the number of words of a meter with a number of rates. It is a multiple of a cache line.
func MeterWords(rates int) int { return (MeterBuckets + BucketWords*rates + 7) &^ 7 }

// Rate is a token bucket: its tokens a second, and the highest number of tokens.
type Rate struct{ PerSecond, Burst uint64 }

// Configure sets the rates, the slowest first, with full buckets. Without rates it resets the meter.
func (m Meter) Configure(micros uint64, rates []Rate) {
	clear(m[MeterOn:])
	m[MeterOn], m[MeterLast] = uint64(len(rates)), micros
	for i, r := range rates {
		b := m.bucket(i)
		b[BucketMicro], b[BucketPart] = r.PerSecond/Million, r.PerSecond%Million
		b[BucketBurst], b[BucketTokens] = r.Burst, r.Burst
	}
}

// Rates returns the rates.
func (m Meter) Rates() (all []Rate) {
	for i := range int(m[MeterOn]) {
		b := m.bucket(i)
		all = append(all, Rate{b[BucketMicro]*Million + b[BucketPart], b[BucketBurst]})
	}
	return all
}

func (m Meter) bucket(i int) []uint64 {
	return m[MeterBuckets+BucketWords*i:][:BucketWords]
}

// Color returns the color of a packet that needs so many tokens: 0 is green, and each rate that the packet
// exceeds adds one. The fastest rate is asked first; a bucket that has too few tokens gives none, and those of
// the slower rates are not asked. A time before MeterLast counts as MeterLast.
func (m Meter) Color(micros, need uint64) uint64 {
	n := int(m[MeterOn])
	since := uint64(0)
	if micros > m[MeterLast] {
		since, m[MeterLast] = micros-m[MeterLast], micros
	}
	for i := range n {
		fill(m.bucket(i), since)
	}
	for i := n - 1; i >= 0; i-- {
		b := m.bucket(i)
		if b[BucketTokens] < need {
			return uint64(i + 1)
		}
		b[BucketTokens] -= need
	}
	return 0
}

// fill adds the tokens of a number of microseconds to a bucket.
func fill(b []uint64, micros uint64) {
	hi, lo := bits.Mul64(micros, b[BucketMicro]*Million+b[BucketPart])
	lo, carry := bits.Add64(lo, b[BucketRest], 0)
	hi += carry
	b[BucketRest] = bits.Rem64(hi, lo, Million)
	room := b[BucketBurst] - b[BucketTokens]
	if back := atomic.SwapUint64(&b[BucketBack], 0); back >= room {
		room = 0
	} else {
		room -= back
	}
	if hi < Million { // else more tokens have come than can be counted
		if come, _ := bits.Div64(hi, lo, Million); come < room {
			room -= come
			b[BucketTokens] = b[BucketBurst] - room
			return
		}
	}
	b[BucketTokens] = b[BucketBurst]
}

// Take takes the cell for an owner other than 0. It waits while another owner has the cell.
func (m Meter) Take(owner uint64) { Take(&m[MeterLock], owner) }

// Free gives the cell back.
func (m Meter) Free() { atomic.StoreUint64(&m[MeterLock], 0) }

// Take stores owner in a word as soon as the word is 0. A program in the kernel has such a word for about a
// microsecond. Take gives up after some seconds, because an owner that died does not give a word back.
func Take(word *uint64, owner uint64) {
	for n := 1; !atomic.CompareAndSwapUint64(word, 0, owner); n++ {
		if n%(1<<16) == 0 {
			runtime.Gosched()
		}
		if n == 1<<26 {
			return
		}
	}
}
