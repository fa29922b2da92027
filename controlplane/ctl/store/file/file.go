// Package file is the store of a controller that is the only one of its network. The intent is a file that
// people edit; the state file belongs to one process at a time.
package file

import (
	"context"
	"os"

	"github.com/quillon/quillon/controlplane/ctl"
	"github.com/quillon/quillon/controlplane/ctl/store"
	"github.com/quillon/quillon/nf/clock"
)

// Store is the file of an intent, and a state file.
type Store struct {
	Intent, State string
	Again         <-chan os.Signal // has the intent read again
	Clock         clock.Clock
}

// Watch implements store.Store. It reads the intent before it returns.
func (s *Store) Watch(ctx context.Context) <-chan store.Revision {
	out := make(chan store.Revision, 1)
	n := int64(0)
	read := func() {
		n++
		in, err := ctl.ReadIntent(s.Intent)
		store.Send(out, store.Revision{Number: n, Intent: in, Err: err})
	}
	read()
	go func() {
		for {
			select {
			case <-s.Again:
				read()
			case <-ctx.Done():
				return
			}
		}
	}()
	return out
}

// Lead implements store.Store. If another process has locked the state file it returns an error at once,
// because two controllers here are a mistake.
func (s *Store) Lead(context.Context) (store.Term, error) {
	f, err := ctl.KeepRecord(s.State)
	if err != nil {
		return nil, err
	}
	return &term{f, s.Clock}, nil
}

// Close implements store.Store.
func (s *Store) Close() error { return nil }

type term struct {
	record *ctl.RecordFile
	clock  clock.Clock
}

func (t *term) Join(o *ctl.Options) {
	if o.Election == (ctl.ElectionID{}) {
		o.Election = t.record.Election(t.clock.Now())
	}
}

func (t *term) Over() <-chan struct{} { return nil }

func (t *term) Save(r ctl.Record) error {
	r.Revision = 0 // counts what this process has read
	return t.record.Save(r)
}

func (t *term) End() { _ = t.record.Close() }
