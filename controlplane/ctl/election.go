package ctl

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"

	"github.com/quillon/quillon/nf/clock"
)

// ElectionID is a number of 128 bits. Of all controllers of a device (in a role), the one with the highest id
// is primary.
type ElectionID struct{ High, Low uint64 }

// ElectionAt returns the id of a controller that starts at t. A later start gives a higher id, and all ids are
// higher than those that people write by hand.
func ElectionAt(t clock.Time) ElectionID {
	return ElectionID{High: uint64(t) / 1e9, Low: uint64(t) % 1e9}
}

// ElectionOf returns the id of a leader that a store has elected. The store began at t, and rev is the revision
// at which it got the leader's key. A later leader has a higher id, so that devices refuse what an earlier
// leader still writes. All ids are above those of ElectionAt, so that no controller becomes primary beside the
// store because it started later. They are below 2^127, from which on only clients of the Unix socket of
// quillon's server may claim.
func ElectionOf(t clock.Time, rev int64) ElectionID {
	return ElectionID{High: 1<<62 + uint64(t)/1e9, Low: uint64(rev) << termBits}
}

// termBits is the number of lowest bits of a leader's ids in which the leader counts. It takes the next id when
// its id is in use: by an own stream whose end the device has not noticed, or by another controller that has
// claimed while there was no primary.
const termBits = 16

// sameTerm reports whether e and o are ids of one leader.
func (e ElectionID) sameTerm(o ElectionID) bool {
	return e.High == o.High && e.Low>>termBits == o.Low>>termBits
}

// ParseElectionID parses "HIGH,LOW" or "LOW".
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

// MarshalText returns HIGH,LOW.
func (e ElectionID) MarshalText() ([]byte, error) { return []byte(e.String()), nil }

// UnmarshalText parses HIGH,LOW; 0,0 means that there is no id.
func (e *ElectionID) UnmarshalText(b []byte) error {
	if string(b) == "0,0" {
		*e = ElectionID{}
		return nil
	}
	id, err := ParseElectionID(string(b))
	*e = id
	return err
}

// Less reports whether e < o.
func (e ElectionID) Less(o ElectionID) bool {
	return e.High < o.High || e.High == o.High && e.Low < o.Low
}

// next returns e + 1.
func (e ElectionID) next() ElectionID {
	low, carry := bits.Add64(e.Low, 1, 0)
	return ElectionID{e.High + carry, low}
}

func (e ElectionID) proto() *p4v1.Uint128 { return &p4v1.Uint128{High: e.High, Low: e.Low} }

func electionOf(u *p4v1.Uint128) ElectionID { return ElectionID{u.GetHigh(), u.GetLow()} }
