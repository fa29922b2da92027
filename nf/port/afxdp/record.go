package afxdp

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// recordDir has a file for each interface whose settings are changed while no
// program of a wire is attached that has what to put back on record: while one
// is attached or taken off, and for as long as an interface alone is used.
// A process that is killed then, or cannot put them back, leaves it to the next
// one, and to Detach.
// That of a namespace that is gone stays, some bytes, until the machine is
// started again: nobody can tell whether one still has the cookie.
const recordDir = "/run"

// recordFile is that of an interface of the calling thread's network namespace.
// It is called after the namespace's cookie, as its inode comes again in another
// one: empty, and no file, where the kernel does not tell it.
func recordFile(index int) (string, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return "", fmt.Errorf("network namespace: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if errors.Is(err, unix.ENOPROTOOPT) { // before Linux 5.14
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("cookie of the network namespace: %w", err)
	}
	return filepath.Join(recordDir, fmt.Sprintf("quillon-settings-%d-%d", cookie, index)), nil
}

// recordFormat is what is in it: the restore record.
const recordFormat = "quillon settings 1: %x %x %x %x\n"

// readRecord is the zero record where there is no file.
func readRecord(file string) (w [4]uint64, err error) {
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return w, nil
	}
	if err == nil {
		_, err = fmt.Sscanf(string(text), recordFormat, &w[0], &w[1], &w[2], &w[3])
	}
	if err != nil {
		return w, fmt.Errorf("record of changed settings %s: %w: remove it", file, err)
	}
	return w, nil
}

// noRoom reports that a record could not be written because the file system is full. Who takes a program off goes on then:
// the record is for a process that is killed meanwhile.
func noRoom(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// writeRecord writes the file, whole or not at all; of the zero record there is
// none. A process that may not write there does without.
func writeRecord(file string, w [4]uint64) (err error) {
	defer func() {
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EROFS) {
			err = nil
		}
	}()
	if file == "" {
		return nil
	}
	if w == [4]uint64{} {
		return os.Remove(file)
	}
	f, err := os.CreateTemp(recordDir, ".quillon-settings-")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(f, recordFormat, w[0], w[1], w[2], w[3])
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), file)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}
