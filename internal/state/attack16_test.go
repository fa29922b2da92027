package state

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A change of settings makes the journal larger while the disk does not answer. The change is refused after a while, and what runs goes on. When the disk
// answers again the change is taken.
func TestJournalGrowsOnADeadDisk(t *testing.T) {
	var a arranged
	s, j, err := journals(t, filepath.Join(t.TempDir(), "j"), "one", 10, a.arrange)
	if err != nil {
		t.Fatal(err)
	}
	s.patience = 100 * time.Millisecond
	release := make(chan struct{})
	s.sync = func(*os.File) error { <-release; return nil }
	for range 2 {
		since := time.Now()
		done := make(chan error, 1)
		go func() { _, err := s.Open("box", 20, nil); done <- err }()
		select {
		case err = <-done:
		case <-time.After(10 * time.Second):
			t.Fatal("it waits for the disk")
		}
		if err == nil || !strings.Contains(err.Error(), "has not written") || time.Since(since) < s.patience {
			t.Fatalf("%v after %v", err, time.Since(since))
		}
		if n := j.Slots(); n != 10 {
			t.Fatalf("%d slots, which are not on the disk", n)
		}
	}
	close(release)
	s.patience = 10 * time.Second
	if _, err := s.Open("box", 30, nil); err != nil || j.Slots() != 30 {
		t.Errorf("%v, %d slots", err, j.Slots())
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
