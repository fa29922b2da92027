package bridge

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

const statePrefix, stateSuffix = "bridge-", ".json"

// namespace identifies the calling thread's network namespace.
func namespace() (string, error) { return os.Readlink("/proc/thread-self/ns/net") }

func statePath(dir, port string) string {
	return filepath.Join(dir, statePrefix+port+stateSuffix)
}

// save writes the state file, whole or not at all; there must be none for the port.
func save(dir string, s *Splice) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, "."+statePrefix)
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }()
	_, err = f.Write(append(text, '\n'))
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	err = os.Link(f.Name(), statePath(dir, s.Port))
	if errors.Is(err, fs.ErrExist) {
		return spliced(dir, s.Port)
	}
	return err
}

// spliced is the error that a port has a state file.
func spliced(dir, port string) error {
	return fmt.Errorf("%s is spliced already (%s); quillon bridge remove undoes it", port, statePath(dir, port))
}

func forget(dir string, s *Splice) error { return os.Remove(statePath(dir, s.Port)) }

// Load is the splice of port, from its state file.
func Load(dir, port string) (*Splice, error) {
	text, err := readOwn(statePath(dir, port))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s is not spliced (no state file in %s)", port, dir)
	}
	if err != nil {
		return nil, err
	}
	s := &Splice{}
	if err := json.Unmarshal(text, s); err != nil {
		return nil, fmt.Errorf("%s is damaged: %w", statePath(dir, port), err)
	}
	return s, nil
}

// maxState is more than a state file has.
const maxState = 1 << 20

// readOwn reads a file of this user's, or root's, that nobody else can write to: what it says is done.
func readOwn(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	i, err := f.Stat()
	if err != nil {
		return nil, err
	}
	u, ok := i.Sys().(*syscall.Stat_t)
	if !ok || !i.Mode().IsRegular() || int(u.Uid) != os.Geteuid() && u.Uid != 0 || i.Mode().Perm()&0o022 != 0 {
		return nil, fmt.Errorf("others can write to %s: see what is in it, and make it root's alone", path)
	}
	return io.ReadAll(io.LimitReader(f, maxState))
}

// List is all splices of the state directory, by port.
func List(dir string) ([]*Splice, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var all []*Splice
	for _, e := range entries {
		port, ok := strings.CutPrefix(e.Name(), statePrefix)
		port, ok2 := strings.CutSuffix(port, stateSuffix)
		if !ok || !ok2 {
			continue
		}
		s, err := Load(dir, port)
		if err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	sort.Slice(all, func(i, j int) bool { return all[i].Port < all[j].Port })
	return all, nil
}
