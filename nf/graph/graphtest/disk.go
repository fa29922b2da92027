package graphtest

import (
	"maps"
	"slices"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/journal"
)

// Disk is the journal of one app, on a disk of whose writes the test says when they are done.
type Disk struct {
	On     map[int]journal.Entry // on the disk
	Busy   bool                  // what is kept is not on the disk yet
	Broken error                 // nothing can be written any more
	lost   bool                  // the machine was started anew, and no app has opened the journal since
	Open   bool                  // the process has it open already: another app of that name gets it as it is
}

// NewDisk returns an empty Disk.
func NewDisk() *Disk { return &Disk{On: map[int]journal.Entry{}} }

// Keep implements journal.Journal.
func (d *Disk) Keep(slot int, e *journal.Entry) bool {
	if !d.Busy && d.Broken == nil {
		d.On[slot] = *e
	}
	return d.On[slot] == *e
}

// Drop implements journal.Journal.
func (d *Disk) Drop(slot int) { delete(d.On, slot) }

// Slots implements journal.Journal.
func (d *Disk) Slots() int {
	return slices.Max(append(slices.Collect(maps.Keys(d.On)), -1)) + 1
}

// Err implements journal.Journal.
func (d *Disk) Err() error { return d.Broken }

// Reboot starts the machine anew: the test takes all other memory of the app away.
func (d *Disk) Reboot() { d.lost = true }

// Kind returns kind, whose apps have the journal.
func (d *Disk) Kind(kind graph.Kind) graph.Kind {
	start := kind.New
	kind.New = func(env graph.Env, args graph.Args) (graph.App, error) {
		env.Journal = func(_ int, arrange journal.Arrange) (journal.Journal, error) {
			if d.Open {
				return d, nil
			}
			all, err := arrange(slices.Collect(maps.Values(d.On)), d.lost)
			if err != nil {
				return nil, err
			}
			if d.lost = false; all == nil {
				all = map[int]journal.Entry{}
			}
			d.On = all
			return d, nil
		}
		return start(env, args)
	}
	return kind
}
