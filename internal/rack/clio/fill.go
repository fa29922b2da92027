package clio

import (
	"errors"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr/clio"
)

// Filler creates keys over the network, each with the value number 0 (FillValue). A key that exists gets that
// value by an update. Filler is a host.App.
type Filler struct {
	client *Client
	keys   []uint64
	value  []byte
	next   int      // keys that exist, to be updated
	again  []uint64 // there already: to be updated
	calls  map[open]uint64
	filled int
	failed int
}

// NewFiller makes a Filler that writes values of size bytes.
func NewFiller(c *Client, keys []uint64, size int) (*Filler, error) {
	if size < MinValue || size > MaxValue {
		return nil, ErrTooLong
	}
	return &Filler{client: c, keys: keys, value: make([]byte, size), calls: map[open]uint64{}}, nil
}

// Filled returns how many keys have been written, and Failed how many could not be written.
func (l *Filler) Filled() int { return l.filled }
func (l *Filler) Failed() int { return l.failed }

// Idle reports whether all keys have been written or have failed.
func (l *Filler) Idle() bool {
	return l.next == len(l.keys) && len(l.again) == 0 && len(l.calls) == 0
}

// Step implements host.App.
func (l *Filler) Step(now clock.Time) bool {
	did := false
	for {
		d, ok := l.client.Next()
		if !ok {
			break
		}
		did = true
		k := open{d.Session, d.ID}
		key, mine := l.calls[k]
		delete(l.calls, k)
		switch {
		case !mine:
		case d.Status == clio.OK:
			l.filled++
		case d.Status == clio.Invalid && d.Code == clio.Create:
			l.again = append(l.again, key)
		default:
			l.failed++
		}
	}
	for i := range l.client.Sessions() {
		for l.client.Ready(i) && l.begin(now, i) {
			did = true
		}
	}
	return did
}

func (l *Filler) begin(now clock.Time, session int) bool {
	op := Op{Code: clio.Create, Value: l.value}
	switch {
	case len(l.again) > 0:
		op.Code, op.Key = clio.Update, l.again[len(l.again)-1]
	case l.next < len(l.keys):
		op.Key = l.keys[l.next]
	default:
		return false
	}
	FillValue(l.value, op.Key, 0)
	id, err := l.client.Start(now, session, op)
	if errors.Is(err, ErrBusy) {
		return false
	}
	if op.Code == clio.Update {
		l.again = l.again[:len(l.again)-1]
	} else {
		l.next++
	}
	l.calls[open{session, id}] = op.Key
	return true
}

// Deadline implements host.App.
func (l *Filler) Deadline() clock.Time { return clock.Never }
