package offload

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A Record says what of an interface was changed and is to be put back. The zero Record says that nothing was.
type Record [4]uint64

// The words of a Record.
const (
	Own         = iota // Mask of the interface
	Peer               // Mask of its other end
	Promiscuous        // 1: promiscuous mode was turned on
	Heir               // number of the process that last took the place of one that was killed; 0: none did. It is nothing to put back
)

// Owe adds what w says to r.
func (r *Record) Owe(w Record) {
	for i := range w {
		r[i] |= w[i]
	}
}

// RecordDir has a file for each interface whose settings are changed while no attached program of a
// wire stores the original settings: while a wire's program is being attached or removed, and as long as
// an interface alone, or a packet socket, is used. If a process is killed then, or cannot put the settings back, the next
// process or Detach does so with the help of the file.
// The file of a network namespace that is gone stays until the machine is started again, because nobody
// can tell whether a namespace with that cookie still exists.
const RecordDir = "/run"

// RecordFile returns the path of the file of an interface of the calling thread's network namespace.
// The path contains the namespace's cookie, because a later namespace may get the same inode. A later interface may get the same
// index, so the path also contains the interface's permanent address, or else its address, and of a veth the index of
// its other end. If there is a file in which one of both is right, it is that one: the other one has changed.
// It is empty if the kernel does not tell the cookie; then there is no file.
func RecordFile(index int) (string, error) {
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
	l, err := netlink.LinkByIndex(index)
	if err != nil {
		return "", fmt.Errorf("interface with index %d: %w", index, err)
	}
	a, other := l.Attrs().PermHWAddr, ""
	if len(a) == 0 {
		a = l.Attrs().HardwareAddr
	}
	if l.Type() == "veth" && l.Attrs().ParentIndex != 0 {
		other = fmt.Sprintf("-peer%d.%d", l.Attrs().NetNsID, l.Attrs().ParentIndex)
	}
	path, address := filepath.Join(RecordDir, fmt.Sprintf("quillon-settings-%d-%d-", cookie, index)), fmt.Sprintf("%x", []byte(a))
	all, err := filepath.Glob(path + "*")
	if err != nil {
		return "", err
	}
	for _, is := range []func(its string) bool{
		func(its string) bool { return its == address || strings.HasPrefix(its, address+"-") },
		func(its string) bool { return other != "" && strings.HasSuffix(its, other) },
	} {
		for _, file := range all {
			if is(file[len(path):]) && filepath.Ext(file) != ".opening" {
				return file, nil
			}
		}
	}
	return path + address + other, nil
}

// recordFormat is the format of the file: the four words of the restore record.
const recordFormat = "quillon settings 1: %x %x %x %x\n"

// ReadRecord reads the record in a file. If there is no file, it returns the zero record.
func ReadRecord(file string) (w Record, err error) {
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

// NoRoom reports whether a record could not be written because the file system is full. Code that removes a program, or
// runs, goes on then, because the record is only needed if the process is killed meanwhile.
func NoRoom(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// WriteRecord writes the record to the file, whole or not at all. For the zero record it removes the
// file. It returns no error if the process may not write to the directory.
func WriteRecord(file string, w Record) (err error) {
	defer func() {
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EROFS) {
			err = nil
		}
		if of, ok := errors.AsType[*fs.PathError](err); ok { // it names a file with a random name
			err = fmt.Errorf("write %s: %w", file, of.Err)
		}
	}()
	if file == "" {
		return nil
	}
	if w == (Record{}) {
		return os.Remove(file)
	}
	f, err := os.CreateTemp(RecordDir, ".quillon-settings-")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(f, recordFormat, w[0], w[1], w[2], w[3])
	err = errors.Join(err, f.Chmod(0o644)) // processes that have given up their rights read Heir
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), file)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}
