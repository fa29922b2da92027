package aead

// MinWindow and MaxWindow are the limits of the anti-replay window's size, in sequence numbers.
const (
	MinWindow = 64
	MaxWindow = 1024
)

// windowWords is the number of words in the ring of a window's bits. It is a power of two, and at least one word
// more than the largest window needs, so that moving the window clears whole words (RFC 6479).
const windowWords = 2 * MaxWindow / 64

// window remembers which of the newest size sequence numbers were received (RFC
// 4303 3.4.3).
type window struct {
	top  uint64 // the highest number that was authenticated; 0: none yet
	size uint64 // a multiple of 64
	bits [windowWords]uint64
}

// resume sets the window of an SA that has received numbers up to top in an earlier process: all of them count as
// received.
func (w *window) resume(top uint64) {
	w.top = top
	for i := range w.bits {
		w.bits[i] = ^uint64(0)
	}
	p, bit := w.word(top)
	*p = bit | (bit - 1)
}

func (w *window) word(seq uint64) (*uint64, uint64) {
	return &w.bits[seq/64%windowWords], 1 << (seq % 64)
}

// fresh reports whether seq may still be received.
func (w *window) fresh(seq uint64) bool {
	switch {
	case seq == 0:
		return false
	case seq > w.top:
		return true
	case w.top-seq >= w.size:
		return false
	}
	p, bit := w.word(seq)
	return *p&bit == 0
}

// take notes that seq was received. seq must be fresh.
func (w *window) take(seq uint64) {
	if seq > w.top {
		from, to := w.top/64, seq/64
		if to-from > windowWords {
			from = to - windowWords
		}
		for k := from + 1; k <= to; k++ {
			w.bits[k%windowWords] = 0
		}
		w.top = seq
	}
	p, bit := w.word(seq)
	*p |= bit
}

// extend returns the 64-bit number with the lower half low that is nearest to the window (RFC 4303 A2.2), or
// false if there is none.
func (w *window) extend(low uint32) (uint64, bool) {
	tl, th := uint32(w.top), w.top>>32
	bottom := tl - uint32(w.size) + 1 // modulo 2^32
	if uint64(tl) >= w.size-1 {
		if low < bottom {
			th++
		}
	} else if low >= bottom {
		if th == 0 {
			return 0, false
		}
		th--
	}
	return th<<32 | uint64(low), th>>32 == 0
}
