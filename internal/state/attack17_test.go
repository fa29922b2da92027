package state

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// A disk fails in the end after a change of settings was refused because it did not answer. The next change tries anew, and is not refused for that.
func TestJournalGrowsAfterAFailure(t *testing.T) {
	var a arranged
	s, j, err := journals(t, filepath.Join(t.TempDir(), "j"), "one", 10, a.arrange)
	if err != nil {
		t.Fatal(err)
	}
	s.patience = 50 * time.Millisecond
	answer, was := make(chan error), s.sync
	s.sync = func(*os.File) error { return <-answer }
	if _, err := s.Open("box", 20, nil); err == nil {
		t.Fatal("it does not wait")
	}
	answer <- errors.New("the cable is loose")
	s.patience = 10 * time.Second
	for len(j.(*Journal).grown) == 0 {
		time.Sleep(time.Millisecond)
	}
	s.sync = was
	if _, err := s.Open("box", 20, nil); err != nil || j.Slots() != 20 {
		t.Errorf("%v, %d slots", err, j.Slots())
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
