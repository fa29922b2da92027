// Package store is the interface to what outlives a controller: the intent of a network, the election of the
// controller that leads, and the state of the devices. Package file implements it on one machine, package etcd
// for several.
package store

import (
	"context"
	"os"

	"github.com/quillon/quillon/controlplane/ctl"
)

// Store is what the controllers of one network share.
type Store interface {
	// Watch sends the newest revision of the intent, and each newer one, until ctx ends. If nobody has received
	// a revision before the next one comes, the next one replaces it.
	Watch(ctx context.Context) <-chan Revision
	// Lead waits until this controller leads, and until Watch has sent the revision that is the newest at that
	// time. It returns an error only for a failure that lasts.
	Lead(ctx context.Context) (Term, error)
	Close() error
}

// Revision is an intent that was stored, or the reason why the newest one cannot be used.
type Revision struct {
	Number int64 // from 1
	Intent *ctl.Intent
	Err    error
}

// Term is the time during which a controller leads.
type Term interface {
	// Join sets the term's election id in options of sessions that have none, and what else ends with the term.
	Join(o *ctl.Options)
	// Over returns a channel that is closed when the term ends before End is called; nil: the term lasts until
	// End.
	Over() <-chan struct{}
	// Save stores the state of the devices.
	Save(r ctl.Record) error
	// End lets the next controller lead at once. The caller must not write to a device afterwards.
	End()
}

// Bundle is an intent with the files that it names: all that another machine needs.
type Bundle struct {
	Name  string            // the file of the intent
	Text  []byte            // what is in it
	Files map[string][]byte // the others, by their paths
}

// Pack reads an intent and all files that it names, and checks their contents.
func Pack(file string) (*Bundle, *ctl.Intent, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, nil, err
	}
	b := &Bundle{Name: file, Text: text, Files: map[string][]byte{}}
	in, err := ctl.ParseIntent(file, text, func(path string) ([]byte, error) {
		content, err := os.ReadFile(path)
		if err == nil {
			b.Files[path] = content
		}
		return content, err
	})
	return b, in, err
}

// Intent parses the intent of the bundle.
func (b *Bundle) Intent() (*ctl.Intent, error) {
	return ctl.ParseIntent(b.Name, b.Text, func(path string) ([]byte, error) {
		content, ok := b.Files[path]
		if !ok {
			return nil, &os.PathError{Op: "read", Path: path, Err: os.ErrNotExist}
		}
		return content, nil
	})
}

// Send puts r into a channel with room for one revision. It replaces a revision that nobody has received.
func Send(to chan Revision, r Revision) {
	select {
	case <-to:
	default:
	}
	to <- r
}
