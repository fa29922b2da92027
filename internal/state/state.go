// Package state provides memory that outlives a process, in a file. Apps ask for it by graph.Env.Memory.
//
//	s := state.New("/run/quillon/x.state", false)
//	inst, err := graph.New(graph.Config{Memory: s.Memory, ...})
//	defer s.Close() // after the instance
package state

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/internal/own"
)

// None is the value of --state for an instance whose apps keep nothing.
const None = "none"

// File is memory of one app of a graph that outlives the process; each app inside that app has a File of its own
// beside it. Without a path the memory ends with the process, but an app whose arguments change still gets it again.
//
//	0 magic (16) | 16 length of the file in bytes (8, little-endian) | 24 the app's name, zeros
//	headLen: the app's memory
type File struct {
	path  string // "": there is no file; the memory is lost with the process
	mkdir bool
	f     *os.File
	app   string   // that keeps a state; "": none does
	maps  [][]byte // of the whole file; the last one is the longest
	// inside has the files of the apps inside this file's app, by the apps' full names.
	inside map[string]*File
}

const (
	headLen = 4096
	magic   = "quillon state 1\n"
)

// New returns a File, which opens its file when an app first asks for memory. With mkdir it makes the file's directory
// then. If path is empty, there is no file, and the memory ends with the process.
func New(path string, mkdir bool) *File { return &File{path: path, mkdir: mkdir} }

// Path returns the path of the file, or "" if there is no file.
func (s *File) Path() string { return s.path }

// App returns the name of the app that asked for memory, or "" if none did.
func (s *File) App() string { return s.app }

// Memory serves as graph.Config.Memory: it returns size bytes for the app. An app that starts anew
// in a running graph gets the same memory again. It is an error if two apps, neither of
// which is inside another app, ask one File.
func (s *File) Memory(app string, size int) ([]byte, error) {
	if strings.Contains(app, "/") {
		in := s.inside[app]
		if in == nil {
			in = &File{mkdir: s.mkdir}
			if s.path != "" {
				in.path = s.path + "." + strings.ReplaceAll(app, "/", ".")
			}
			if s.inside == nil {
				s.inside = map[string]*File{}
			}
			s.inside[app] = in
		}
		return in.own(app, size)
	}
	return s.own(app, size)
}

// own returns the memory of this file's app.
func (s *File) own(app string, size int) ([]byte, error) {
	if s.app != "" && app != s.app {
		return nil, fmt.Errorf("--state %s: it is %s's already, and %s has a state to keep, too: run them as two instances", s.name(), s.app, app)
	}
	s.app = app
	if s.f == nil {
		if err := s.open(); err != nil {
			return nil, fmt.Errorf("--state %s: %w", s.name(), bare(err))
		}
	}
	if err := s.grow(int64(headLen + size)); err != nil {
		return nil, fmt.Errorf("--state %s: %w", s.name(), bare(err))
	}
	m := s.maps[len(s.maps)-1]
	return m[headLen : headLen+size : headLen+size], nil
}

// name returns the value of --state that means this file.
func (s *File) name() string {
	if s.path == "" {
		return None
	}
	return s.path
}

// bare returns a file's error without the path that it names.
func bare(err error) error {
	if at, ok := errors.AsType[*fs.PathError](err); ok {
		return at.Err
	}
	return err
}

// open locks the file for this process, and refuses a file that is no state.
func (s *File) open() (err error) {
	if s.path == "" {
		fd, err := unix.MemfdCreate("quillon-state", unix.MFD_CLOEXEC)
		if err != nil {
			return err
		}
		s.f = os.NewFile(uintptr(fd), None)
		return nil
	}
	if s.mkdir {
		if err := os.MkdirAll(filepath.Dir(s.path), 0o700); err != nil {
			return err
		}
	}
	// Who can replace the file takes the connections of which it alone knows; who can read it can also lock it.
	if err := own.Place(filepath.Dir(s.path)); err != nil {
		return err
	}
	f, err := own.Open(s.path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o077)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = f.Close()
		}
	}()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return errors.New("another process uses it")
	}
	// The size is read after locking, so that no other process changes it.
	i, err := f.Stat()
	if err != nil {
		return err
	}
	if err := s.examine(f, i.Size()); err != nil {
		return err
	}
	s.f = f
	return nil
}

// examine returns an error if the file is no state of this app. It accepts a file of zeros alone, which is new, and a
// file with zeros behind the length that its head says, whose process was killed while the file grew.
func (s *File) examine(f *os.File, size int64) error {
	head := make([]byte, headLen)
	n, _ := f.ReadAt(head, 0)
	if !bytes.HasPrefix(head, []byte(magic)) {
		if !blank(f, 0) {
			return errors.New("it is not a state of quillon: give another file")
		}
		return nil
	}
	left, _, _ := bytes.Cut(head[24:], []byte{0})
	if was := binary.LittleEndian.Uint64(head[16:]); n < headLen || was < headLen || was > uint64(size) || !blank(f, int64(was)) {
		return fmt.Errorf("it is damaged: %d bytes, not %d; end the connections of %s's clients, remove the file, and start again", size, was, s.app)
	}
	if string(left) != s.app {
		return fmt.Errorf("it is the state of %s, not of %s: give another file", left, s.app)
	}
	return nil
}

// blank reports whether all bytes of f from offset from on are zero.
func blank(f *os.File, from int64) bool {
	b := make([]byte, 1<<16)
	for {
		n, err := f.ReadAt(b, from)
		if bytes.ContainsFunc(b[:n], func(r rune) bool { return r != 0 }) {
			return false
		}
		if from += int64(n); err != nil {
			return errors.Is(err, io.EOF)
		}
	}
}

// grow makes the file at least as large as size, and maps it. Earlier mappings stay, because an app that is
// about to be replaced uses them.
func (s *File) grow(size int64) error {
	i, err := s.f.Stat()
	if err != nil {
		return err
	}
	size = max(size, i.Size())
	if len(s.maps) > 0 && int64(len(s.maps[len(s.maps)-1])) == size {
		return nil
	}
	// Also for an existing file, which may be a copy with holes.
	if err := s.reserve(size); err != nil {
		if i.Size() == 0 {
			_ = os.Remove(s.path)
		}
		return fmt.Errorf("no room for %d bytes: %w: make room, or name a file elsewhere with --state", size, err)
	}
	if size > i.Size() {
		if err := s.f.Truncate(size); err != nil {
			return err
		}
	}
	if len(s.maps) == 0 || size > i.Size() { // the last process may have been killed here
		head := make([]byte, headLen)
		copy(head, magic)
		binary.LittleEndian.PutUint64(head[16:], uint64(size))
		copy(head[24:headLen-1], s.app)
		if _, err := s.f.WriteAt(head, 0); err != nil {
			return err
		}
	}
	m, err := unix.Mmap(int(s.f.Fd()), 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("map %d bytes: %w", size, err)
	}
	s.maps = append(s.maps, m)
	return nil
}

// reserve reserves room for size bytes in the file system. If it fails, the file keeps its length. Room is reserved
// because a process that touches a page of a mapped file for which there is no room is killed.
func (s *File) reserve(size int64) (err error) {
	if s.path == "" {
		return nil // the file is in memory, where nothing can be reserved
	}
	i, err := s.f.Stat()
	if err != nil {
		return err
	}
	if whole(s.f, size) {
		return nil
	}
	for {
		err = unix.Fallocate(int(s.f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, size)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if errors.Is(err, unix.EOPNOTSUPP) {
		err = fill(s.f, size)
	}
	if err != nil {
		return errors.Join(bare(err), s.f.Truncate(i.Size()))
	}
	return nil
}

// whole reports whether a file in tmpfs has all of its pages. Such a file need not be reserved again, which would
// touch each page and make a restart slow.
func whole(f *os.File, size int64) bool {
	var fs unix.Statfs_t
	var st unix.Stat_t
	return unix.Fstatfs(int(f.Fd()), &fs) == nil && fs.Type == unix.TMPFS_MAGIC &&
		unix.Fstat(int(f.Fd()), &st) == nil && st.Size >= size && st.Blocks*512 >= st.Size
}

// fill reserves room in a file system without fallocate(2). It writes size bytes: those that the file has,
// and zeros behind them.
func fill(f *os.File, size int64) error {
	block := make([]byte, 1<<20)
	for at := int64(0); at < size; at += int64(len(block)) {
		b := block[:min(int64(len(block)), size-at)]
		n, err := f.ReadAt(b, at)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		clear(b[n:])
		if _, err := f.WriteAt(b, at); err != nil {
			return err
		}
	}
	return f.Sync()
}

// Kept returns s and the files inside it for which an app has asked for memory.
func (s *File) Kept() (all []*File) {
	if s.app != "" {
		all = append(all, s)
	}
	for _, app := range slices.Sorted(maps.Keys(s.inside)) {
		all = append(all, s.inside[app].Kept()...)
	}
	return all
}

// Close unmaps the memory and closes and unlocks the files. No app may use the memory any more.
func (s *File) Close() error {
	var errs []error
	for _, in := range s.inside {
		errs = append(errs, in.Close())
	}
	if s.f == nil {
		return errors.Join(errs...)
	}
	for _, m := range s.maps {
		errs = append(errs, unix.Munmap(m))
	}
	errs = append(errs, s.f.Close())
	s.f, s.maps = nil, nil
	return errors.Join(errs...)
}
