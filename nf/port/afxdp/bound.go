package afxdp

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/quillon/quillon/internal/xsk"
	"github.com/quillon/quillon/nf/port"
)

// bound are the queue pairs that are bound at an interface; one for both of a
// pair. They hold for as long as the filter of an interface says Bound, and none
// is bound when the last one ceases to.
type bound struct {
	set atomic.Pointer[xsk.Set] // nil: nobody has asked for it yet

	mu    sync.Mutex
	users int // interfaces whose program has the set
}

// open is the set, which it makes when there is none.
func (b *bound) open() (*xsk.Set, error) {
	if s := b.set.Load(); s != nil {
		return s, nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if s := b.set.Load(); s != nil {
		return s, nil
	}
	s, err := xsk.NewSet()
	if err != nil {
		return nil, explain(err)
	}
	b.set.Store(s)
	return s, nil
}

// inherit goes on with the set of an earlier program, so that no frame to a
// queue pair in it crosses while the next program takes its place.
func (b *bound) inherit(before *xsk.Attached) error {
	s, err := before.Set()
	if err != nil || s == nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	mine := b.set.Load()
	if mine == nil {
		b.set.Store(s)
		return nil
	}
	// The same one, or that of another pair, when the interfaces were joined
	// to others before.
	return errors.Join(mine.Add(s), s.Close())
}

// uses is told that an interface's program has the set now, or not.
func (b *bound) uses(was, is bool) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case was == is:
	case is:
		b.users++
	default:
		if b.users--; b.users == 0 {
			return b.set.Load().Replace(nil)
		}
	}
	return nil
}

func (b *bound) close() error { return b.set.Load().Close() }

// Bind implements port.Binder: of a pair, for both interfaces. It holds while the
// filter says Bound, and from then on when it does not yet.
func (p *Port) Bind(q port.QueuePair, on bool) error {
	if p.closed.Load() {
		return port.ErrClosed
	}
	s, err := p.dev.bound.open()
	if err == nil {
		err = s.Put(q, on)
	}
	if err != nil {
		return p.unbound(err)
	}
	return nil
}

// Rebind implements port.Binder. Queue pairs that stay bound are so meanwhile. It
// allocates, and takes a millisecond or two a thousand: it is for the start.
func (p *Port) Rebind(q []port.QueuePair) error {
	if p.closed.Load() {
		return port.ErrClosed
	}
	s, err := p.dev.bound.open()
	if err == nil {
		err = s.Replace(q)
	}
	if err != nil {
		return p.unbound(err)
	}
	return nil
}

func (p *Port) unbound(err error) error {
	return fmt.Errorf("bind queue pairs of %s: %w", p.dev.name, err)
}
