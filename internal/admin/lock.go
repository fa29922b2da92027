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

// lockWithin is how long Listen waits for a process that has the lock and no socket: it starts, or it
// ends. lockEvery is between two tries.
const (
	lockWithin = 5 * time.Second
	lockEvery  = 5 * time.Millisecond
)

// errLocked is what another process's lock makes of a try.
var errLocked = errors.New("locked")

// lock is the right to be the instance of a name: a file beside the socket, locked by flock(2) for as
// long as the process lives, with its number. Only its owner can open it: an exclusive lock needs no more
// than an open file, also one that is open for reading alone.
type lock struct {
	path string
	f    *os.File
}

// take waits until the lock is this process's. busy is asked before every wait, and its error ends it.
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

// tryLock takes the lock, or fails at once.
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

// holder is the number of the process that has the lock, as it wrote it.
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

// release gives the lock back. Its file goes first: whoever has opened it by then finds that out.
func (l *lock) release() error {
	// In a directory that is not this user's any more the file stays, and nobody has the lock.
	err := os.Remove(l.path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		err = nil
	}
	return errors.Join(err, l.f.Close())
}

// Sweep takes away the socket of an instance that is dead, with its lock and its sockets beside. It does nothing
// where one lives, starts or ends.
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

// ownDir makes the directory of a socket, if there is none, for this user alone, and refuses one in which
// others could put a file in the place of this user's. The one where sockets are by default (usual) is
// closed to others.
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
