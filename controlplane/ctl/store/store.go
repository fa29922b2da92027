// Package store is the door to what outlives a controller: the intent of a network, who of its controllers leads, and how the devices
// stand. Package file is for one machine, package etcd for several.
package store

import (
	"context"
	"os"

	"github.com/quillon/quillon/controlplane/ctl"
)

// Store is what the controllers of one network share.
type Store interface {
	// Watch sends the newest revision of the intent, and then each newer one, until ctx ends. One that nobody has received yet is
	// replaced by a newer one.
	Watch(ctx context.Context) <-chan Revision
	// Lead waits until this controller leads, and Watch has sent the revision that is the newest then. An error is one that does not pass
	// by itself.
	Lead(ctx context.Context) (Term, error)
	Close() error
}

// Revision is an intent that was stored, or why the newest one cannot be used.
type Revision struct {
	Number int64 // from 1
	Intent *ctl.Intent
	Err    error
}

// Term is the time in which a controller leads.
type Term interface {
	// Join gives sessions the term's election id, unless they have one, and what ends with the term.
	Join(o *ctl.Options)
	// Over is closed when the term is over before its End; nil: it lasts until then.
	Over() <-chan struct{}
	// Save stores how the devices stand.
	Save(r ctl.Record) error
	// End lets the next controller lead, at once. Nothing may be written to a device any more.
	End()
}

// Bundle is an intent with the files that it names: all that another machine needs of it.
type Bundle struct {
	Name  string            // the file of the intent
	Text  []byte            // what is in it
	Files map[string][]byte // the others, by their paths
}

// Pack reads an intent and all files that it names, and checks everything.
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

// Intent is the intent of the bundle.
func (b *Bundle) Intent() (*ctl.Intent, error) {
	return ctl.ParseIntent(b.Name, b.Text, func(path string) ([]byte, error) {
		content, ok := b.Files[path]
		if !ok {
			return nil, &os.PathError{Op: "read", Path: path, Err: os.ErrNotExist}
		}
		return content, nil
	})
}

// Send puts r into a channel of one place, in the place of one that nobody has received.
func Send(to chan Revision, r Revision) {
	select {
	case <-to:
	default:
	}
	to <- r
}
