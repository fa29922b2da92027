package flow

import (
	"time"

	"github.com/quillon/quillon/nf/clock"
)

// fragmentTime is how long later fragments may follow the first one of their datagram. (A receiver waits a minute
// for them: RFC 8200 4.5.)
const fragmentTime = 30 * time.Second

// Fragments has the datagrams whose first fragment passed. A datagram's V says what becomes of its later
// fragments.
type Fragments[V any] struct{ Table[Key, fragments[V]] }

type fragments[V any] struct {
	v     V
	until clock.Time
}

// NewFragments returns an empty Fragments with room for n datagrams.
func NewFragments[V any](n int) Fragments[V] { return Fragments[V]{New[Key, fragments[V]](n)} }

// Note notes that the first fragment of a datagram has passed. When there is no place, the datagram whose time is
// over first loses its own.
func (f *Fragments[V]) Note(k *Key, hash uint64, now clock.Time, v V) {
	i := f.Find(k, hash)
	if i < 0 {
		i = f.Add(k, hash)
	}
	if i < 0 {
		a, b := f.Sets(hash)
		i = a
		for _, first := range [2]int{a, b} {
			for j := first; j < first+Ways; j++ {
				if f.At(j).Val.until < f.At(i).Val.until {
					i = j
				}
			}
		}
		f.Replace(i, k, hash)
	}
	f.At(i).Val = fragments[V]{v, now.Add(fragmentTime)}
}

// Of returns what was noted of a later fragment's datagram, or false if its first fragment did not pass in time.
func (f *Fragments[V]) Of(k *Key, hash uint64, now clock.Time) (v V, ok bool) {
	i := f.Find(k, hash)
	if i < 0 || f.At(i).Val.until < now {
		return v, false
	}
	return f.At(i).Val.v, true
}
