package ctl

import (
	"context"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/clock"
)

func options() Options {
	return Options{Clock: clock.NewWall(), Backoff: Backoff{First: time.Millisecond, Most: 20 * time.Millisecond}}
}

func within(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func open(t testing.TB, d *Dialer, address string, id uint64, o Options) *Session {
	t.Helper()
	s, err := Open(d, Target{Address: address, DeviceID: id}, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// until waits for a session's status.
func until(t testing.TB, s *Session, what string, ok func(Status) bool) Status {
	t.Helper()
	ctx := within(t)
	for {
		s.mu.Lock()
		st, changed := s.status, s.changed
		s.mu.Unlock()
		if ok(st) {
			return st
		}
		select {
		case <-changed:
		case <-ctx.Done():
			t.Fatalf("never %s: %+v", what, st)
		}
	}
}
