package state

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// What a process leaves the next one finds; every other content of the file is
// refused, and left alone.
func TestStateFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "state")
	open := func(app string, size int) (*File, []byte, error) {
		s := &File{path: path}
		m, err := s.Memory(app, size)
		t.Cleanup(func() { _ = s.Close() })
		return s, m, err
	}
	refused := func(app string, size int, want string) {
		t.Helper()
		before, _ := os.ReadFile(path)
		if _, _, err := open(app, size); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%v, not: %s", err, want)
		}
		if after, _ := os.ReadFile(path); !bytes.Equal(before, after) {
			t.Error("the file was changed")
		}
	}
	s, m, err := open("box", 10_000)
	if err != nil || len(m) != 10_000 || !bytes.Equal(m, make([]byte, 10_000)) {
		t.Fatalf("%d bytes, %v", len(m), err)
	}
	if i, _ := os.Stat(path); i.Mode().Perm() != 0o600 {
		t.Errorf("mode %v", i.Mode())
	}
	refused("box", 10_000, "another process uses it")
	if _, err := s.Memory("other", 10); err == nil || !strings.Contains(err.Error(), "two instances") {
		t.Errorf("a second app: %v", err)
	}
	m[0], m[9_999] = 1, 2
	// The same app anew, larger and smaller: the same memory.
	n, err := s.Memory("box", 20_000)
	if err != nil || n[0] != 1 || n[9_999] != 2 {
		t.Fatal(err)
	}
	n[19_999], m[1] = 3, 4
	if n, err = s.Memory("box", 5); err != nil || len(n) != 5 || n[1] != 4 {
		t.Fatal(n, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if s, m, err = open("box", 20_000); err != nil || m[0] != 1 || m[1] != 4 || m[19_999] != 3 {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	refused("fox", 20_000, "it is the state of box, not of fox")
	whole, _ := os.ReadFile(path)
	for _, c := range []struct {
		content []byte
		want    string
	}{
		{whole[:len(whole)-1], "it is damaged"},
		{whole[:100], "it is damaged"},
		{append(bytes.Clone(whole), 1), "it is damaged"},
		{[]byte("root:x:0:0:root:/root:/bin/sh\n"), "it is not a state of quillon"},
		{append(make([]byte, len(whole)), 1), "it is not a state of quillon"},
	} {
		if err := os.WriteFile(path, c.content, 0o600); err != nil {
			t.Fatal(err)
		}
		refused("box", 20_000, c.want)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(dir, "elsewhere"), path); err != nil {
		t.Fatal(err)
	}
	refused("box", 10, "symbolic link")
	path = dir
	refused("box", 10, "is a directory: name a file")
	path = "/dev/zero"
	if _, _, err := open("box", 10); err == nil || !strings.Contains(err.Error(), "is no file") {
		t.Error(err)
	}
	path = filepath.Join(dir, "none", "state")
	refused("box", 10, "no such file or directory")

	path = filepath.Join(dir, "shared")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for mode, want := range map[os.FileMode]string{0o620: "others can write to ", 0o602: "others can write to ", 0o640: "others can read ", 0o604: "others can read "} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		refused("box", 10, want+path)
	}
	// Its own file, where others can take it away.
	theirs := filepath.Join(dir, "open")
	if err := errors.Join(os.MkdirAll(theirs+"/in", 0o700), os.Chmod(theirs, 0o777)); err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(theirs, "in", "state")
	refused("box", 10, "others can replace files in "+theirs)

	none := &File{}
	m, err = none.Memory("box", 10)
	if err != nil || none.App() != "box" {
		t.Fatal(err)
	}
	m[9] = 1
	if n, err = none.Memory("box", 10_000); err != nil || n[9] != 1 {
		t.Errorf("the app anew, without a file: %v", err)
	}
	if err := none.Close(); err != nil {
		t.Error(err)
	}
}

// Every page of a state has room before it is touched: also of a file with holes, and where the file system
// can only be written to.
func TestStateReserved(t *testing.T) {
	const size = 3<<20 + 5
	blocks := func(path string) int64 {
		i, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return i.Sys().(*syscall.Stat_t).Blocks * 512
	}
	path := filepath.Join(t.TempDir(), "state")
	s := &File{path: path}
	m, err := s.Memory("box", size)
	if err != nil {
		t.Fatal(err)
	}
	if n := blocks(path); n < size {
		t.Errorf("%d bytes of %d are there", n, size)
	}
	m[0], m[size-1] = 1, 2
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	holes := filepath.Join(t.TempDir(), "holes")
	for _, reserve := range []func(f *os.File) error{func(*os.File) error { return nil }, func(f *os.File) error { return fill(f, int64(len(text))) }} {
		f, err := os.OpenFile(holes, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		for _, at := range []int{0, len(text) - 10} {
			if _, err := f.WriteAt(text[at:at+10], int64(at)); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := f.WriteAt(text[:headLen], 0); err != nil {
			t.Fatal(err)
		}
		if n := blocks(holes); n > size/2 {
			t.Skipf("the file system makes no holes: %d bytes", n)
		}
		if err := errors.Join(reserve(f), f.Close()); err != nil {
			t.Fatal(err)
		}
		s := &File{path: holes}
		m, err := s.Memory("box", size)
		if err != nil || m[size-1] != 2 {
			t.Fatal(err)
		}
		if n := blocks(holes); n < size {
			t.Errorf("%d bytes of %d are there", n, size)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if now, err := os.ReadFile(holes); err != nil || !bytes.Equal(now[headLen+1:], text[headLen+1:]) {
			t.Errorf("the content is another, %v", err)
		}
	}
}

// Apps inside another one have files of their own, beside the instance's.
func TestStateOfAppsInside(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	for _, again := range []bool{false, true} {
		s := &File{path: path}
		for i, app := range []string{"nic/aes", "nic/more", "other"} {
			m, err := s.Memory(app, 100)
			if err != nil {
				t.Fatal(err)
			}
			if want := byte(i + 1); again && m[99] != want {
				t.Errorf("%s has %d kept, not %d", app, m[99], want)
			}
			m[99] = byte(i + 1)
		}
		var files []string
		for _, f := range s.Kept() {
			files = append(files, f.app+" "+strings.TrimPrefix(f.path, path))
		}
		if got := strings.Join(files, ", "); got != "other , nic/aes .nic.aes, nic/more .nic.more" {
			t.Errorf("kept in %s", got)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	none := &File{}
	if m, err := none.Memory("nic/aes", 10); err != nil || len(m) != 10 || none.Kept()[0].path != "" {
		t.Errorf("without a file: %v", err)
	}
	if err := none.Close(); err != nil {
		t.Error(err)
	}
}
