package ctl

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"

	"github.com/quillon/quillon/controlplane/p4info"
)

// App is an application on one device of a Controller. One goroutine calls its methods, once the device is at
// its intent. After an error of a method the Controller compares the device with its intent again, and calls
// Begin again.
type App interface {
	// Claim takes the tables that the app writes out of the intent (Device.Claim). It is called first, and for
	// each new intent.
	Claim(d *Device) error
	// Begin makes the device hold what the app wants. The app must not assume anything about what the device
	// holds: the device may be new, or another controller may have written to it.
	Begin(ctx context.Context, s *Session) error
	// Handle handles messages of the device, in the order in which they came.
	Handle(ctx context.Context, s *Session, m []*p4v1.StreamMessageResponse) error
	// Tick is called about every second.
	Tick(ctx context.Context, s *Session) error
}

// Claim takes tables out of the intent: only the app writes them, and no Diff touches them. It returns an error
// if the intent has entries of them, or members of their action profiles.
func (d *Device) Claim(tables ...*p4info.Table) error {
	for _, t := range tables {
		if !slices.Contains(d.Leave, t) {
			d.Leave = append(d.Leave, t)
		}
	}
	for _, e := range d.Entities {
		if d.leaves(e) {
			return fmt.Errorf("%s: the intent has %s, but its table is written by what runs here", d.Target, d.Info.Text(e))
		}
	}
	return nil
}

// Bounds on the messages that wait for an app, and on those of one Handle.
const (
	maxWaiting = 4096
	maxAtOnce  = 1000
)

// deliver queues a message for the app. When too many wait, the message is lost and counted.
func (m *managed) deliver(msg *p4v1.StreamMessageResponse) {
	select {
	case m.events <- msg:
	default:
		m.mu.Lock()
		m.status.Lost++
		m.mu.Unlock()
	}
}

// runApp calls the app's methods until ctx ends.
func (m *managed) runApp(ctx context.Context, app App) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for began := false; ; {
		var err error
		select {
		case <-m.begin:
			err = app.Begin(ctx, m.session)
			began = err == nil
		case first := <-m.events:
			list := []*p4v1.StreamMessageResponse{first}
			for more := true; more && len(list) < maxAtOnce; {
				select {
				case x := <-m.events:
					list = append(list, x)
				default:
					more = false
				}
			}
			if began {
				err = app.Handle(ctx, m.session, list)
			}
		case <-tick.C:
			if began {
				err = app.Tick(ctx, m.session)
			}
		case <-ctx.Done():
			return
		}
		if err != nil && ctx.Err() == nil {
			began = false
			m.unwell(err)
		}
	}
}

// Entries calls each for all entries of tables, without the default entries.
func (s *Session) Entries(ctx context.Context, info *p4info.Info, each func(*p4v1.Entity) error, tables ...*p4info.Table) error {
	q := Query{what: "entries", kind: p4info.KindEntry}
	for _, t := range tables {
		q.ask = append(q.ask, p4info.EntryOf(&p4v1.TableEntry{TableId: t.ID}))
	}
	_, err := s.Ask(ctx, info, []Query{q}, false, each)
	return err
}

// Replace changes the entries of a device from have to want; both are maps by p4info.Key. tables must name all
// their tables. An entry may refer to entries of tables that come earlier in the list: Replace writes those
// first, and deletes them last. After an error it is unknown what the device holds, and the caller must read
// the entries again.
func (s *Session) Replace(ctx context.Context, info *p4info.Info, have, want map[string]*p4v1.Entity, tables ...*p4info.Table) error {
	d := &Diff{Device: &Device{Info: info}, ranks: map[uint32]int{}}
	for rank, t := range tables {
		d.ranks[t.ID] = rankTables + rank
	}
	size := map[uint32]int64{}
	for k, h := range have {
		size[h.GetTableEntry().GetTableId()]++
		switch w := want[k]; {
		case w == nil:
			d.Changes = append(d.Changes, Change{Type: p4v1.Update_DELETE, Entity: h})
		case !equal(w, h):
			d.Changes = append(d.Changes, Change{Type: p4v1.Update_MODIFY, Entity: w, Old: h})
		}
	}
	for k, w := range want {
		if have[k] == nil {
			d.Changes = append(d.Changes, Change{Type: p4v1.Update_INSERT, Entity: w})
		}
	}
	d.order(size)
	for _, b := range d.Plan(Limits{}) {
		failed, err := s.Put(ctx, b.Updates()...)
		if err != nil {
			return err
		}
		if len(failed) > 0 {
			return errors.New(failed[0].Text(info))
		}
	}
	return nil
}

// Put makes a device hold, or not hold, entities, whatever it holds: the insertion of an existing entity
// becomes a modification, the modification of a missing one an insertion, and the deletion of a missing one
// nothing. The order of updates must not matter, because servers may change it. failed are the updates that
// failed for another reason; err is the error of a request that failed as a whole.
func (s *Session) Put(ctx context.Context, updates ...*p4v1.Update) (failed []*UpdateError, err error) {
	for _, part := range (Limits{}).split(updates) {
		var w *WriteError
		err := s.Write(ctx, p4v1.WriteRequest_CONTINUE_ON_ERROR, part...)
		if err == nil {
			continue
		}
		if !errors.As(err, &w) {
			return failed, err
		}
		var again []*p4v1.Update
		for _, f := range w.Failed {
			switch {
			case f.Code == codes.AlreadyExists && f.Update.Type == p4v1.Update_INSERT:
				again = append(again, &p4v1.Update{Type: p4v1.Update_MODIFY, Entity: f.Update.Entity})
			case f.Code == codes.NotFound && f.Update.Type == p4v1.Update_MODIFY:
				again = append(again, &p4v1.Update{Type: p4v1.Update_INSERT, Entity: f.Update.Entity})
			case f.Code == codes.NotFound && f.Update.Type == p4v1.Update_DELETE:
			default:
				failed = append(failed, f)
			}
		}
		if len(again) == 0 {
			continue
		}
		err = s.Write(ctx, p4v1.WriteRequest_CONTINUE_ON_ERROR, again...)
		if errors.As(err, &w) {
			failed = append(failed, w.Failed...)
		} else if err != nil {
			return failed, err
		}
	}
	return failed, nil
}
