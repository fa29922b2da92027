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

// Record is the content of the state file of a running controller. People read the controller's status in it;
// the next controller reads the election ids, because its own id must be higher even if the clock was set back.
type Record struct {
	Intent   string         `json:"intent"`
	PID      int            `json:"pid"`
	At       clock.Time     `json:"at"` // ns since the epoch, of the last change
	Election ElectionID     `json:"election"`
	Devices  []DeviceStatus `json:"devices"`
	// Host, Revision and Problem are set by controllers that share a store: the host on which the leader runs,
	// the revision of the intent that it keeps, and why it does not keep a newer one.
	Host     string `json:"host,omitempty"`
	Revision int64  `json:"revision,omitempty"`
	Problem  string `json:"problem,omitempty"`
	// Running says whether the controller that wrote the file still runs. It is not stored in the file.
	Running bool `json:"running,omitempty"`
}

// RecordDir returns the directory of state files: quillon/ctl in $XDG_STATE_HOME, or in .local/state of the
// home directory if the variable is not set.
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

// KeepRecord locks a state file for this process, and reads it. It returns an error if another process has
// locked it.
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

// Election returns the election id for a controller that starts at t. It is higher than all ids in the file.
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

// Save replaces the content of the file with r.
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

// keeper returns the process that a lock file names, or 0 if it names none yet.
func keeper(lock *os.File) (pid int) {
	_, _ = fmt.Fscan(io.NewSectionReader(lock, 0, 32), &pid)
	return pid
}

// ReadRecord reads a state file; another process may have locked it. A controller that has just locked the file
// has not written its record yet, and ReadRecord waits a little for that.
func ReadRecord(path string) (Record, error) {
	for tries := 50; ; tries-- {
		r, begins, err := readRecord(path)
		if err != nil || !begins || tries == 0 {
			return r, err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// readRecord reads a state file. begins says that the controller that has locked the file is not the one that
// wrote it.
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
