package afxdp

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/internal/xsk/offload"
	"github.com/quillon/quillon/nf/clock"
)

// claim keeps other processes from opening an interface while this process opens it. Without it, a second
// process could take settings that the first has just changed for the original ones. A claim is a
// lock on a file that only root can open and that is removed with the claim.
type claim struct{ f *os.File }

// claims takes the claims of the interfaces, in the order of their indices, so that two processes that open the same pair do not
// wait for each other. It leaves out interfaces that do not exist, and all if /run cannot be written.
func claims(names ...string) (all []claim, err error) {
	defer func() {
		if err != nil {
			dropClaims(all)
			all = nil
		}
	}()
	of := map[int]string{} // several names may be of one interface
	for _, name := range names {
		if l, err := netlink.LinkByName(name); err == nil { // else find says so
			of[l.Attrs().Index] = name
		}
	}
	for _, index := range slices.Sorted(maps.Keys(of)) {
		file, err := offload.RecordFile(index)
		if err != nil || file == "" {
			return all, err
		}
		f, err := lock(file + ".opening")
		if err != nil {
			return all, fmt.Errorf("interface %s: %w", of[index], err)
		}
		if f != nil {
			all = append(all, claim{f})
		}
	}
	return all, nil
}

// lock makes and locks the file at path. It waits for bindWait at most, and returns nil if no such file can be made.
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

// dropClaims removes and unlocks the claims' files, so that other processes can open the interfaces.
func dropClaims(all []claim) {
	for _, c := range all {
		_ = os.Remove(c.f.Name()) // who may not any more leaves a file that the next one takes
		_ = c.f.Close()
	}
}
