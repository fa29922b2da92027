package admin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/internal/own"
)

// lockWithin is the time for which Listen waits for a process that has the lock and no socket, because it
// starts or ends. lockEvery is the time between two tries to lock.
const (
	lockWithin = 5 * time.Second
	lockEvery  = 5 * time.Millisecond
)

// errLocked is the error of tryLock if another process has the lock.
var errLocked = errors.New("locked")

// lock is the right to be the instance of a name: a file beside the socket that holds the process ID and that
// the process locks by flock(2) as long as it lives. Only the file's owner may open it, because everybody
// who can open a file, even for reading only, can lock it.
type lock struct {
	path string
	f    *os.File
}

// take waits for the lock, for the time within at most. It calls busy before every wait, and ends with busy's error.
func take(ctx context.Context, path string, within time.Duration, busy func() error) (*lock, error) {
	late := time.NewTimer(within)
	defer late.Stop()
	for {
		l, err := tryLock(path)
		if !errors.Is(err, errLocked) {
			return l, err
		}
		if err := busy(); err != nil {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-late.C:
			return nil, fmt.Errorf("process %s has %s, and neither answers nor ends: end it (kill %[1]s), or give this one another --name", holder(path), path)
		case <-time.After(lockEvery):
		}
	}
}

// tryLock takes the lock, or fails at once with errLocked if another process has it.
func tryLock(path string) (_ *lock, err error) {
	f, err := own.Open(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o077)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = f.Close()
		}
	}()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
		return nil, errLocked
	} else if err != nil {
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	// The process that had the lock may have removed the file in the meantime, and a third one may have a new file.
	is, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if now, err := os.Lstat(path); err != nil || !os.SameFile(now, is) {
		return nil, errLocked
	}
	if err := f.Truncate(0); err != nil {
		return nil, err
	}
	if _, err := fmt.Fprintf(f, "%d\n", os.Getpid()); err != nil {
		_ = os.Remove(path)
		return nil, err
	}
	return &lock{path, f}, nil
}

// holder returns the process ID that is written in the lock's file, or "?" if it cannot be read.
func holder(path string) string {
	f, err := own.Open(path, os.O_RDONLY|unix.O_NOFOLLOW, 0o077)
	if err != nil {
		return "?"
	}
	defer f.Close()
	text, _ := io.ReadAll(io.LimitReader(f, 32))
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return "?"
	}
	return strconv.Itoa(pid)
}

// release gives the lock back. It removes the file before it unlocks it, so that a process which has opened the
// file meanwhile finds (in tryLock) that the file is gone.
func (l *lock) release() error {
	// In a directory that is not this user's any more the file stays, and nobody has the lock.
	err := os.Remove(l.path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		err = nil
	}
	return errors.Join(err, l.f.Close())
}

// Sweep removes the socket at path of a dead instance, its lock, and the other sockets beside. It does nothing
// if the instance lives, starts or ends.
func Sweep(path string, beside ...string) error {
	l, err := tryLock(path + ".lock")
	if err != nil {
		if errors.Is(err, errLocked) {
			err = nil
		}
		return err
	}
	var errs []error
	for _, p := range append(beside, path) {
		dead, err := own.Socket(p)
		if dead {
			err = os.Remove(p)
		}
		if !errors.Is(err, own.ErrAnswers) {
			errs = append(errs, err)
		}
	}
	return errors.Join(append(errs, l.release())...)
}

// ownDir checks the directory of a socket. It refuses a directory in which other users could replace this user's
// files. If usual is true, dir is the default directory: ownDir makes it if it does not exist, and takes
// other users' rights on it away.
func ownDir(dir string, usual bool) error {
	if !usual {
		err := own.Place(dir)
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("%w: make the directory first", err)
		}
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	i, err := os.Lstat(dir) // others may make links in the directory for temporary files
	if err != nil {
		return err
	}
	u, ok := i.Sys().(*syscall.Stat_t)
	switch {
	case !i.IsDir():
		return fmt.Errorf("%s is not a directory", dir)
	case !ok || int(u.Uid) != os.Geteuid():
		return fmt.Errorf("%s belongs to another user: remove it, or name a socket elsewhere with --control", dir)
	case i.Mode().Perm()&0o077 != 0:
		return os.Chmod(dir, 0o700)
	}
	return nil
}
