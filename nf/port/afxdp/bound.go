package afxdp

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/quillon/quillon/internal/xsk"
	"github.com/quillon/quillon/nf/port"
)

// bound are the queue pairs that are bound at an interface, and the words that are
// guarded; one for both of a pair. They hold for as long as the filter of an interface
// says Bound, or Guarded, and there are none when the last one ceases to.
type bound struct {
	set   atomic.Pointer[xsk.Set] // nil: nobody has asked for it yet
	guard atomic.Pointer[xsk.Guard]

	mu           sync.Mutex
	users, looks int // interfaces whose program has the set, and the guard
}

// openFor makes what a filter needs.
func (b *bound) openFor(f port.Filter) (err error) {
	if f.Bound {
		_, err = b.open()
	}
	if f.Guarded && err == nil {
		_, err = b.openGuard()
	}
	return err
}

// openGuard is the guard, which it makes when there is none.
func (b *bound) openGuard() (*xsk.Guard, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if g := b.guard.Load(); g != nil {
		return g, nil
	}
	g, err := xsk.NewGuard()
	if err == nil {
		b.guard.Store(g)
	}
	return g, explain(err)
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

// inherit goes on with what an earlier program has of what a filter needs, so that no
// frame crosses that it drops while the next program takes its place.
func (b *bound) inherit(before *xsk.Attached, f port.Filter) error {
	if f.Bound {
		if err := b.inheritSet(before); err != nil {
			return err
		}
	}
	if !f.Guarded {
		return nil
	}
	g, err := before.Guard()
	if err != nil || g == nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	mine := b.guard.Load()
	if mine == nil {
		b.guard.Store(g)
		return nil
	}
	mine.Add(g.Guard) // nothing of the same one
	return g.Close()
}

func (b *bound) inheritSet(before *xsk.Attached) error {
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

// uses is told that an interface's program has another filter now.
func (b *bound) uses(was, is port.Filter) (err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if last(&b.users, was.Bound, is.Bound) {
		err = b.set.Load().Clear()
	}
	if last(&b.looks, was.Guarded, is.Guarded) {
		b.guard.Load().Replace(port.NewGuard(nil))
	}
	return err
}

// last counts users, and reports whether this was the last one.
func last(users *int, was, is bool) bool {
	switch {
	case was == is:
		return false
	case is:
		*users++
		return false
	}
	*users--
	return *users == 0
}

func (b *bound) close() error { return errors.Join(b.set.Load().Close(), b.guard.Load().Close()) }

// Guard implements port.Guarder: of a pair, for both interfaces. Words that are guarded before
// the filter says Guarded are so from then on.
func (p *Port) Guard() (*port.Guard, error) {
	if p.closed.Load() {
		return nil, port.ErrClosed
	}
	g, err := p.dev.bound.openGuard()
	if err != nil {
		return nil, fmt.Errorf("guard words behind %s: %w", p.dev.name, err)
	}
	return g.Guard, nil
}

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
func (p *Port) Rebind(was, is []port.QueuePair) error {
	if p.closed.Load() {
		return port.ErrClosed
	}
	s, err := p.dev.bound.open()
	if err == nil {
		err = s.Replace(was, is)
	}
	if err != nil {
		return p.unbound(err)
	}
	return nil
}

func (p *Port) unbound(err error) error {
	return fmt.Errorf("bind queue pairs of %s: %w", p.dev.name, err)
}
