package bridge

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/internal/own"
)

const statePrefix, stateSuffix = "bridge-", ".json"

// Namespace returns the name of the calling thread's network namespace, such as net:[4026531840].
func Namespace() (string, error) { return os.Readlink("/proc/thread-self/ns/net") }

// statePath returns the path of a port's state file. It contains the namespace, because two namespaces may have ports
// of one name.
func statePath(dir, namespace, port string) string {
	return filepath.Join(dir, statePrefix+strings.Trim(namespace, "net:[]")+"-"+port+stateSuffix)
}

// save writes the state file, whole or not at all. It is an error if the port has one already.
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
	err = os.Link(f.Name(), statePath(dir, s.Namespace, s.Port))
	if errors.Is(err, fs.ErrExist) {
		return spliced(dir, s)
	}
	return err
}

// spliced returns the error that a port has a state file already.
func spliced(dir string, s *Splice) error {
	return fmt.Errorf("%s is spliced already (%s); quillon bridge remove undoes it", s.Port, statePath(dir, s.Namespace, s.Port))
}

func forget(dir string, s *Splice) error { return os.Remove(statePath(dir, s.Namespace, s.Port)) }

// Load reads the state file of port in the calling thread's network namespace.
func Load(dir, port string) (*Splice, error) {
	ns, err := Namespace()
	if err != nil {
		return nil, err
	}
	s, err := load(statePath(dir, ns, port))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s is not spliced (no state file in %s)", port, dir)
	}
	return s, err
}

func load(path string) (*Splice, error) {
	// Only files that no other user can write are read, because Remove does what the file says.
	text, err := own.Read(path, os.O_RDONLY|unix.O_NOFOLLOW, 0o022, maxState)
	if err != nil {
		return nil, err
	}
	s := &Splice{}
	if err := json.Unmarshal(text, s); err != nil {
		return nil, fmt.Errorf("%s is damaged: %w", path, err)
	}
	return s, nil
}

// maxState is a length in bytes that no state file reaches.
const maxState = 1 << 20

// List returns all splices of the state directory, also those of other network namespaces, sorted by port.
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
		if !strings.HasPrefix(e.Name(), statePrefix) || !strings.HasSuffix(e.Name(), stateSuffix) {
			continue
		}
		s, err := load(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b *Splice) int {
		return cmp.Or(cmp.Compare(a.Port, b.Port), cmp.Compare(a.Namespace, b.Namespace))
	})
	return all, nil
}
