package ctl

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/nf/clock"
)

// Record is the state file of a running controller. People read its status there; the next
// controller reads the election ids, because its own must be higher even if the clock
// was set back.
type Record struct {
	Intent   string         `json:"intent"`
	PID      int            `json:"pid"`
	At       clock.Time     `json:"at"` // ns since the epoch, of the last change
	Election ElectionID     `json:"election"`
	Devices  []DeviceStatus `json:"devices"`
	// Host, Revision and Problem are of controllers that share a store: where the one that leads runs, which revision of the intent it
	// keeps, and why not a newer one.
	Host     string `json:"host,omitempty"`
	Revision int64  `json:"revision,omitempty"`
	Problem  string `json:"problem,omitempty"`
	// Running is whether the controller that wrote this still runs; not in the file.
	Running bool `json:"running,omitempty"`
}

// RecordDir is where state files are: quillon/ctl in $XDG_STATE_HOME, which is
// .local/state at home where it is not set.
func RecordDir() (string, error) {
	dir := os.Getenv("XDG_STATE_HOME")
	if !filepath.IsAbs(dir) {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", fmt.Errorf("no place for the state: %w; name one with --state", err)
		}
		dir = filepath.Join(home, ".local", "state")
	}
	return filepath.Join(dir, "quillon", "ctl"), nil
}

// RecordFile is a state file that this process has locked.
type RecordFile struct {
	path string
	lock *os.File
	last Record
}

// KeepRecord locks a state file for this process, and reads it.
func KeepRecord(path string) (*RecordFile, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	lock, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		defer lock.Close()
		return nil, fmt.Errorf("%s: a controller keeps it already (process %d): stop it, or choose another file with --state", path, keeper(lock))
	}
	last, err := ReadRecord(path)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err == nil {
		err = lock.Truncate(0)
	}
	if err == nil {
		_, err = fmt.Fprintln(lock, os.Getpid())
	}
	if err != nil {
		lock.Close()
		return nil, err
	}
	return &RecordFile{path: path, lock: lock, last: last}, nil
}

// Election is the id for a controller that starts at t: higher than all before.
func (f *RecordFile) Election(t clock.Time) ElectionID {
	e := ElectionAt(t)
	for _, d := range f.last.Devices {
		if !d.Election.Less(e) {
			e = d.Election.next()
		}
	}
	if !f.last.Election.Less(e) {
		e = f.last.Election.next()
	}
	return e
}

// Save replaces the file's record by r.
func (f *RecordFile) Save(r Record) error {
	r.PID, r.Running = os.Getpid(), false
	b, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(f.path+".new", append(b, '\n'), 0o600); err != nil {
		return err
	}
	return os.Rename(f.path+".new", f.path)
}

// Close unlocks the file.
func (f *RecordFile) Close() error { return f.lock.Close() }

// keeper is the process that a lock file names; 0: none yet.
func keeper(lock *os.File) (pid int) {
	_, _ = fmt.Fscan(io.NewSectionReader(lock, 0, 32), &pid)
	return pid
}

// ReadRecord reads a state file, also one that another process has locked. A controller that has just locked the file has not written
// its record yet: ReadRecord waits a little for it.
func ReadRecord(path string) (Record, error) {
	for tries := 50; ; tries-- {
		r, begins, err := readRecord(path)
		if err != nil || !begins || tries == 0 {
			return r, err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// readRecord reads a state file; begins: the controller that has locked the file is not the one that wrote it.
func readRecord(path string) (r Record, begins bool, err error) {
	pid := 0
	if lock, err := os.OpenFile(path+".lock", os.O_RDWR|unix.O_CLOEXEC, 0); err == nil {
		if unix.Flock(int(lock.Fd()), unix.LOCK_SH|unix.LOCK_NB) != nil {
			pid = keeper(lock)
		}
		lock.Close()
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return r, false, err
	}
	if err := json.Unmarshal(b, &r); err != nil {
		return r, false, fmt.Errorf("%s: no state of a controller: %w", path, err)
	}
	r.Running = pid != 0 && pid == r.PID
	return r, pid != 0 && !r.Running, nil
}
