package bridge

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/internal/own"
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
	// What the file says is done.
	text, err := own.Read(statePath(dir, port), os.O_RDONLY|unix.O_NOFOLLOW, 0o022, maxState)
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
