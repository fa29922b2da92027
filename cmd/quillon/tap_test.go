package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestCapture: only its maker can read a new capture; a file that was there before keeps its mode. A file of
// another user is refused, since that user may have it open. A path that is no file is written to.
func TestCapture(t *testing.T) {
	dir := t.TempDir()
	make := func(name string) error {
		f, err := create(nil, name)
		if err != nil {
			return err
		}
		_, err = f.Write([]byte("frames"))
		return errors.Join(err, f.Close())
	}
	fresh, old, others := filepath.Join(dir, "fresh"), filepath.Join(dir, "old"), filepath.Join(dir, "others")
	if err := errors.Join(os.WriteFile(old, []byte("what was there before"), 0o640), os.WriteFile(others, nil, 0o666)); err != nil {
		t.Fatal(err)
	}
	for name, mode := range map[string]os.FileMode{fresh: 0o600, old: 0o640} {
		if err := make(name); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(name)
		if i, err2 := os.Stat(name); string(text) != "frames" || i.Mode().Perm() != mode {
			t.Errorf("%s: %q, %v, %v", name, text, i.Mode(), errors.Join(err, err2))
		}
	}
	if err := make(os.DevNull); err != nil {
		t.Error(err)
	}
	if os.Geteuid() != 0 {
		return
	}
	if err := os.Chown(others, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	if err := make(others); err == nil || !strings.Contains(err.Error(), "belongs to another user") {
		t.Error(err)
	}
}
