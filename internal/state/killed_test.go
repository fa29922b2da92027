package state

import (
	"os"
	"path/filepath"
	"testing"
)

// A process that is killed between two steps of making, or growing, its file leaves what the next one starts with.
func TestKilledWhileGrowing(t *testing.T) {
	at := filepath.Join(t.TempDir(), "x.state")
	// Killed behind Truncate of grow, before WriteAt; or in fill, on a file system without fallocate(2).
	if err := os.WriteFile(at, make([]byte, headLen+4096), 0o600); err != nil {
		t.Fatal(err)
	}
	s := New(at, false)
	if _, err := s.Memory("box", 4096); err != nil {
		t.Errorf("a new file: %v", err)
	}
	_ = s.Close()
	_ = os.Remove(at)
	s = New(at, false)
	m, err := s.Memory("box", 4096)
	if err != nil {
		t.Fatal(err)
	}
	m[7] = 42
	_ = s.Close()
	// The next process has larger tables, and is killed at the same place.
	if err := os.Truncate(at, headLen+8192); err != nil {
		t.Fatal(err)
	}
	s = New(at, false)
	if m, err = s.Memory("box", 8192); err != nil {
		t.Errorf("a file that grew: %v", err)
	} else if m[7] != 42 {
		t.Error("what it held is gone")
	}
	_ = s.Close()
}
