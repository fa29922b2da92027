package main

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// stateFile is the file of run --state: memory that outlives the process. One
// app of a graph has something to keep there.
type stateFile struct {
	path string
	f    *os.File
	app  string
	mem  []byte
}

// memory is graph.Config.Memory.
func (s *stateFile) memory(app string, size int) ([]byte, error) {
	if s.mem != nil {
		return nil, fmt.Errorf("--state %s: it is %s's already, and %s has a state to keep, too: run them as two instances", s.path, s.app, app)
	}
	f, err := os.OpenFile(s.path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("--state: %w", err)
	}
	fail := func(err error) ([]byte, error) { return nil, errors.Join(err, f.Close()) }
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return fail(fmt.Errorf("--state %s: another process uses it", s.path))
	}
	i, err := f.Stat()
	if err != nil {
		return fail(err)
	}
	if !i.Mode().IsRegular() {
		return fail(fmt.Errorf("--state %s: not a file", s.path))
	}
	// A file of another size is of other arguments, or is no state: its first
	// bytes tell the app.
	if i.Size() != int64(size) {
		if err := f.Truncate(int64(size)); err != nil {
			return fail(fmt.Errorf("--state: %w", err))
		}
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fail(fmt.Errorf("--state %s: map %d bytes: %w", s.path, size, err))
	}
	s.f, s.app, s.mem = f, app, mem
	return mem, nil
}

// Close gives the file back.
func (s *stateFile) Close() error {
	if s == nil || s.mem == nil {
		return nil
	}
	err := errors.Join(unix.Munmap(s.mem), s.f.Close())
	s.mem = nil
	return err
}
