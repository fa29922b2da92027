package afxdp

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/nf/clock"
)

// claim keeps other processes from opening an interface while this one opens it. A second one would find
// settings that the first has just changed, and take them for those that were there before. It is a
// lock on a file that root alone can open, and that goes with it.
type claim struct{ f *os.File }

// claims are taken in one order by all, so that two processes that open the same pair do not wait for each other.
// An interface that is not there has none; nor has any where /run cannot be written.
func claims(names ...string) (all []claim, err error) {
	defer func() {
		if err != nil {
			dropClaims(all)
			all = nil
		}
	}()
	for _, name := range slices.Compact(slices.Sorted(slices.Values(names))) { // both may be one
		l, err := netlink.LinkByName(name)
		if err != nil {
			continue // find says so
		}
		file, err := recordFile(l.Attrs().Index)
		if err != nil || file == "" {
			return all, err
		}
		f, err := lock(file + ".opening")
		if err != nil {
			return all, fmt.Errorf("interface %s: %w", name, err)
		}
		if f != nil {
			all = append(all, claim{f})
		}
	}
	return all, nil
}

// lock waits for bindWait at most; nil: there can be no such file.
func lock(path string) (*os.File, error) {
	wall := clock.NewWall()
	for since := wall.Now(); ; time.Sleep(bindPause) {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
		if errors.Is(err, unix.EROFS) || errors.Is(err, os.ErrPermission) || errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENOSPC) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			// The one before removes the file: it may be another one by now.
			mine, err := f.Stat()
			if now, err2 := os.Stat(path); err == nil && err2 == nil && os.SameFile(mine, now) {
				return f, nil
			}
		}
		_ = f.Close()
		if err != nil && !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, err
		}
		if wall.Now().Sub(since) > bindWait {
			return nil, errors.New("another process is opening it: try again when that runs, or has stopped")
		}
	}
}

// dropClaims lets others open the interfaces.
func dropClaims(all []claim) {
	for _, c := range all {
		_ = os.Remove(c.f.Name()) // who may not any more leaves a file that the next one takes
		_ = c.f.Close()
	}
}
