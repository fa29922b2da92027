package ctl

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"

	"github.com/quillon/quillon/nf/clock"
)

// ElectionID has 128 bits. Of all controllers of a device (in a role) the one with
// the highest id is primary.
type ElectionID struct{ High, Low uint64 }

// ElectionAt is the id of a controller that starts at t: a later start gives a higher id, and
// all are higher than ids that people write by hand.
func ElectionAt(t clock.Time) ElectionID {
	return ElectionID{High: uint64(t) / 1e9, Low: uint64(t) % 1e9}
}

// ElectionOf is the id of a leader that a store has elected: the store began at t, and rev is the revision at which it got the leader's key.
// A later leader has a higher id, so that devices refuse what one before it still writes. All are above what ElectionAt ever gives, so that
// nobody leads beside the store by starting later, and below 2^127, above which only the socket of a quillon elects.
func ElectionOf(t clock.Time, rev int64) ElectionID {
	return ElectionID{High: 1<<62 + uint64(t)/1e9, Low: uint64(rev) << termBits}
}

// termBits are the lowest bits of a leader's ids. It counts in them when its id is in use, by a stream of its own of which the device
// has not noticed the end, or by another controller that found the place empty.
const termBits = 16

// sameTerm reports whether e and o are ids of one leader.
func (e ElectionID) sameTerm(o ElectionID) bool {
	return e.High == o.High && e.Low>>termBits == o.Low>>termBits
}

// ParseElectionID reads "HIGH,LOW" or "LOW".
func ParseElectionID(s string) (ElectionID, error) {
	high, low, two := strings.Cut(s, ",")
	if !two {
		high, low = "0", s
	}
	h, err1 := strconv.ParseUint(high, 0, 64)
	l, err2 := strconv.ParseUint(low, 0, 64)
	if err1 != nil || err2 != nil {
		return ElectionID{}, fmt.Errorf("election id %q: want HIGH,LOW, as in 0,1", s)
	}
	if h == 0 && l == 0 {
		return ElectionID{}, fmt.Errorf("election id %q: 0 never is primary", s)
	}
	return ElectionID{h, l}, nil
}

func (e ElectionID) String() string { return fmt.Sprintf("%d,%d", e.High, e.Low) }

// MarshalText writes HIGH,LOW.
func (e ElectionID) MarshalText() ([]byte, error) { return []byte(e.String()), nil }

// UnmarshalText reads HIGH,LOW; 0,0 is none.
func (e *ElectionID) UnmarshalText(b []byte) error {
	if string(b) == "0,0" {
		*e = ElectionID{}
		return nil
	}
	id, err := ParseElectionID(string(b))
	*e = id
	return err
}

// Less reports e < o.
func (e ElectionID) Less(o ElectionID) bool {
	return e.High < o.High || e.High == o.High && e.Low < o.Low
}

// next is e + 1.
func (e ElectionID) next() ElectionID {
	low, carry := bits.Add64(e.Low, 1, 0)
	return ElectionID{e.High + carry, low}
}

func (e ElectionID) proto() *p4v1.Uint128 { return &p4v1.Uint128{High: e.High, Low: e.Low} }

func electionOf(u *p4v1.Uint128) ElectionID { return ElectionID{u.GetHigh(), u.GetLow()} }
