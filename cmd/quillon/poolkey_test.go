package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestPoolKey: a secret is a file of any bytes, or a line of text.
func TestPoolKey(t *testing.T) {
	file := filepath.Join(t.TempDir(), "key")
	raw := []byte("\n0123456789abc\t ")
	for _, c := range []struct {
		in   string
		want []byte // nil: refused
	}{
		{string(raw), raw}, {"0123456789abcdeX\n", []byte("0123456789abcdeX")}, {" 0123456789abcdeX01234567\n", []byte("0123456789abcdeX01234567")},
		{strings.Repeat("0a", 16) + "\n", bytes.Repeat([]byte{10}, 16)},
		{"abc", nil}, {"", nil}, {strings.Repeat("x", 33), nil},
	} {
		if err := os.WriteFile(file, []byte(c.in), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := (&poolFlags{secret: file}).key()
		if (err == nil) != (c.want != nil) || !bytes.Equal(got, c.want) {
			t.Errorf("%q: %q, %v", c.in, got, err)
		}
	}
}

// TestPoolKeyAlone: a secret that others can read or write is refused, and the process does not wait for a
// path that is no file.
func TestPoolKeyAlone(t *testing.T) {
	dir := t.TempDir()
	file, fifo := filepath.Join(dir, "key"), filepath.Join(dir, "fifo")
	if err := errors.Join(os.WriteFile(file, []byte(strings.Repeat("0a", 16)), 0o600), unix.Mkfifo(fifo, 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		path string
		mode os.FileMode
		want string // "": it is accepted
	}{
		{file, 0o600, ""}, {file, 0o400, ""}, {file, 0o644, "chmod 600 " + file}, {file, 0o640, "chmod 600 " + file}, {file, 0o604, "chmod 600 " + file},
		{file, 0o620, "chmod 600 " + file}, {fifo, 0o600, "is no file"}, {dir, 0o700, "is a directory"},
	} {
		if err := os.Chmod(c.path, c.mode); err != nil {
			t.Fatal(err)
		}
		_, err := (&poolFlags{secret: c.path}).key()
		if (err == nil) != (c.want == "") || err != nil && (!strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n")) {
			t.Errorf("mode %v: %v", c.mode, err)
		}
	}
	if os.Geteuid() != 0 {
		return
	}
	if err := errors.Join(os.Chmod(file, 0o600), os.Chown(file, 65534, 65534)); err != nil {
		t.Fatal(err)
	}
	if _, err := (&poolFlags{secret: file}).key(); err == nil || !strings.Contains(err.Error(), "belongs to another user") {
		t.Error(err)
	}
}

// TestLeaving: a board that stops waits for what others have there, but not for what cannot go. It names what
// it leaves, with an error.
func TestLeaving(t *testing.T) {
	for _, c := range []struct {
		name         string
		calls        int // after so many calls nothing remains; 0: something always remains
		stuck, hurry bool
		lost         bool
	}{{"gone at once", 1, false, false, false}, {"gone soon", 3, false, false, false}, {"stuck", 0, true, false, true}, {"hurry", 0, false, true, true}, {"late", 0, false, false, true}} {
		hurry, late := make(chan os.Signal, 2), make(chan time.Time, 1)
		if c.hurry {
			hurry <- unix.SIGTERM
		}
		if c.name == "late" {
			late <- time.Time{}
		}
		calls := 0
		err := leaving(hurry, late, func() ([]string, bool) {
			if calls++; calls == c.calls {
				return nil, true
			}
			return []string{"DAG 8 (fw) of board 1"}, c.stuck
		})
		var code interface{ ExitCode() int }
		if c.lost != (err != nil) || c.lost && (!errors.As(err, &code) || code.ExitCode() != exitFailed || !strings.Contains(err.Error(), "is lost: DAG 8 (fw) of board 1")) {
			t.Errorf("%s: %v", c.name, err)
		}
		if c.stuck && calls != 1 {
			t.Errorf("%s: it waited", c.name)
		}
	}
}
