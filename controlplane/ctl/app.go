package ctl

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/codes"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
)

// App is an application on one device of a Controller. Its methods are called by
// one goroutine, once the device is at its intent. An error has the device compared
// again, and then the app begins again.
type App interface {
	// Claim takes d's tables that the app writes from the intent. It is called
	// before all else, and for each new intent.
	Claim(d *Device) error
	// Begin makes the device hold what the app wants of it, whatever it holds:
	// it may be new, or another controller may have had it.
	Begin(ctx context.Context, s *Session) error
	// Handle takes what the device told, in order.
	Handle(ctx context.Context, s *Session, m []*p4v1.StreamMessageResponse) error
	// Tick is called about every second.
	Tick(ctx context.Context, s *Session) error
}

// Bounds on what waits for an app, and on what it gets at once.
const (
	maxWaiting = 4096
	maxAtOnce  = 1000
)

// hear keeps a message for the app; when too many wait it is lost.
func (m *managed) hear(msg *p4v1.StreamMessageResponse) {
	select {
	case m.events <- msg:
	default:
		m.mu.Lock()
		m.status.Lost++
		m.mu.Unlock()
	}
}

// runApp gives the app what comes until ctx ends.
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

// put makes a device hold, or not hold, entities: what is there already is
// modified, what is not there any more is inserted, and what is gone need not go.
// What fails for another reason is given back.
func (s *Session) put(ctx context.Context, l Limits, updates []*p4v1.Update) (failed []*UpdateError, err error) {
	for _, part := range l.split(updates) {
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
