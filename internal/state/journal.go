package state

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/internal/own"
	"github.com/quillon/quillon/nf/journal"
)

// Journals opens the journals of the apps of an instance (journal.Journal), each in a file of its own: path for an app of
// the graph, and a file beside it for an app inside another one.
type Journals struct {
	path  string
	mkdir bool
	boot  func() ([]byte, error)
	sync  func(*os.File) error
	open  map[string]*Journal
	// patience is journalPatience, less in tests.
	patience time.Duration
}

// NewJournals returns the journals at path. With mkdir the directory of path is made when the first one is opened.
func NewJournals(path string, mkdir bool) *Journals {
	return &Journals{path: path, mkdir: mkdir, boot: bootID, sync: func(f *os.File) error { return unix.Fdatasync(int(f.Fd())) }, open: map[string]*Journal{}, patience: journalPatience}
}

// bootID returns the number of this boot of the machine. Containers of one machine have the same one.
func bootID() ([]byte, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return bytes.TrimSpace(b), err
}

// Open serves as graph.Config.
func (s *Journals) Open(app string, slots int, arrange journal.Arrange) (journal.Journal, error) {
	path := s.path
	if strings.Contains(app, "/") {
		path += "." + strings.ReplaceAll(app, "/", ".")
	}
	if j := s.open[path]; j != nil {
		if j.app != app {
			return nil, fmt.Errorf("--journal %s: it is %s's already: run %s as another instance", path, j.app, app)
		}
		// The app starts anew in a running graph, or the start is refused, and the app goes on as it was.
		if err := j.grows(slots, s.patience); err != nil {
			return nil, fmt.Errorf("--journal %s: %w", path, bare(err))
		}
		return j, nil
	}
	j, err := s.start(path, app, slots, arrange)
	if err != nil {
		return nil, fmt.Errorf("--journal %s: %w", path, bare(err))
	}
	s.open[path] = j
	return j, nil
}

// Close writes what is not written yet, and closes the files. No app may use its journal any more. All journals are written at the
// same time, and Close waits for them for patience in all.
func (s *Journals) Close() error {
	over, stop := context.WithTimeout(context.Background(), s.patience)
	defer stop()
	for _, j := range s.open {
		close(j.end)
	}
	var errs []error
	for _, j := range s.open {
		errs = append(errs, j.ended(over, s.patience))
	}
	clear(s.open)
	return errors.Join(errs...)
}

// Journal is the journal of one app: a file with a head and slots of 64 bytes.
//
//	0 magic (16) | 16 boot (64) | 80 number of slots (8) | 88 the app's name (256) | checksum of all before (8); zeros to journalHead
//	journalHead: slots of entry (48) | checksum of the entry and the slot's number (8) | zeros (8)
//
// All numbers are little-endian. A slot lies in one sector of a disk, so a write that the machine's end cut short leaves
// the old slot or the new one.
type Journal struct {
	app   string
	path  string
	f     *os.File
	head  func(slots int) []byte
	parts atomic.Pointer[[]*journalPart]
	bell  chan struct{}
	end   chan struct{}
	done  chan struct{} // closed behind the last write
	why   atomic.Pointer[error]
	sync  func() error // fdatasync: with the file's length, where that has changed
	grown chan error   // of the grow under way; nil: there is none
}

// journalSlot is a slot in memory. Its app stores, and the journal's goroutine reads: seq is odd while the app stores.
type journalSlot struct {
	seq, durable atomic.Uint64 // durable is the value of seq whose entry is on the disk
	e            [len(journal.Entry{})]atomic.Uint64
}

// journalPart has slots in a row. The first part has those that the journal began with, another one those that came when the
// journal grew.
type journalPart struct {
	first int // number of the first slot
	slots []journalSlot
	dirty []atomic.Uint64 // a bit for each slot that is not written as it is
}

func newPart(first, n int) *journalPart {
	return &journalPart{first, make([]journalSlot, n), make([]atomic.Uint64, (n+63)/64)}
}

// part returns the part that has slot i.
func (j *Journal) part(i int) *journalPart {
	all := *j.parts.Load()
	k := len(all) - 1
	for all[k].first > i {
		k--
	}
	return all[k]
}

func (j *Journal) slot(i int) *journalSlot {
	p := j.part(i)
	return &p.slots[i-p.first]
}

// Slots implements journal.Journal.
func (j *Journal) Slots() int {
	all := *j.parts.Load()
	p := all[len(all)-1]
	return p.first + len(p.slots)
}

// grows is grow, but for a disk that does not answer for patience. What is under way then goes on, and the next call waits for it, and tries anew where it has failed.
func (j *Journal) grows(slots int, patience time.Duration) error {
	over, mine := time.After(patience), false
	for j.Slots() < slots {
		if j.grown == nil {
			j.grown, mine = make(chan error, 1), true
			go func(done chan<- error) { done <- j.grow(slots) }(j.grown)
		}
		select {
		case err := <-j.grown:
			if j.grown = nil; err != nil && mine {
				return err
			}
		case <-over:
			return fmt.Errorf("the disk has not written for %v: try again when it answers", patience)
		}
	}
	return nil
}

// grow makes room for slots, while the journal is in use. What is on the disk stays where it is.
func (j *Journal) grow(slots int) error {
	n := j.Slots()
	if slots <= n {
		return nil
	}
	if _, err := j.f.WriteAt(make([]byte, (slots-n)*journalSlotB), int64(journalHead+n*journalSlotB)); err != nil {
		return err
	}
	if err := j.sync(); err != nil {
		return err
	}
	if _, err := j.f.WriteAt(j.head(slots), 0); err != nil { // what says so lies in one sector
		return err
	}
	if err := j.sync(); err != nil {
		return err
	}
	all := append(slices.Clone(*j.parts.Load()), newPart(n, slots-n))
	j.parts.Store(&all)
	return nil
}

const (
	journalMagic = "quillon journal1"
	journalHead  = 4096
	journalSlotB = 64
	journalSum   = 344 // offset of the head's checksum
	// journalLazy is the longest time until an entry that was dropped is off the disk.
	journalLazy = time.Second
)

// Idle describes the journals in dir that name something and that no process uses, a line for each.
func Idle(dir string) (lines []string) {
	all, _ := filepath.Glob(filepath.Join(dir, "*.journal*"))
	for _, path := range all {
		f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
		if err != nil {
			continue
		}
		if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			var head [journalHead]byte
			_, _ = f.ReadAt(head[:], 0)
			app, _, _ := bytes.Cut(head[88:journalSum], []byte{0})
			if left, _, err := readJournal(f, string(app)); err == nil && len(left) > 0 {
				lines = append(lines, fmt.Sprintf("%s has %d entries of %s, which count after a reboot, too: remove it once its clients have ended", path, len(left), app))
			}
		}
		_ = f.Close()
	}
	return lines
}

func journalCheck(parts ...[]byte) uint64 {
	h := fnv.New64a()
	for _, p := range parts {
		_, _ = h.Write(p)
	}
	return h.Sum64() | 1 // a checksum is never 0, so that a slot of zeros is free
}

// encode fills b, a slot of the file, with entry e of slot number i.
func encodeSlot(b []byte, i int, e *journal.Entry) {
	clear(b)
	if *e == (journal.Entry{}) {
		return
	}
	for k, v := range e {
		binary.LittleEndian.PutUint64(b[8*k:], v)
	}
	binary.LittleEndian.PutUint64(b[48:], journalCheck(b[:48], binary.LittleEndian.AppendUint64(nil, uint64(i))))
}

// decodeSlot returns the entry in b, slot number i of the file. It returns false if the slot is damaged.
func decodeSlot(b []byte, i int) (e journal.Entry, ok bool) {
	if bytes.Count(b, []byte{0}) == len(b) {
		return e, true
	}
	for k := range e {
		e[k] = binary.LittleEndian.Uint64(b[8*k:])
	}
	return e, binary.LittleEndian.Uint64(b[48:]) == journalCheck(b[:48], binary.LittleEndian.AppendUint64(nil, uint64(i)))
}

func journalHeadOf(boot []byte, slots int, app string) []byte {
	b := make([]byte, journalHead)
	copy(b, journalMagic)
	copy(b[16:80], boot)
	binary.LittleEndian.PutUint64(b[80:], uint64(slots))
	copy(b[88:journalSum], app)
	binary.LittleEndian.PutUint64(b[journalSum:], journalCheck(b[:journalSum]))
	return b
}

// start opens the journal at path, or makes a new file in its place if it is of another boot or has another size.
func (s *Journals) start(path, app string, slots int, arrange journal.Arrange) (_ *Journal, err error) {
	boot, err := s.boot()
	if err != nil {
		return nil, err
	}
	if s.mkdir {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return nil, err
		}
	}
	if err := own.Place(filepath.Dir(path)); err != nil {
		return nil, err
	}
	f, err := openJournal(path)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = f.Close()
		}
	}()
	j := &Journal{app: app, path: path, f: f, head: func(n int) []byte { return journalHeadOf(boot, n, app) }, bell: make(chan struct{}, 1), end: make(chan struct{}), done: make(chan struct{})}
	j.parts.Store(&[]*journalPart{newPart(0, slots)})
	left, head, err := readJournal(f, app)
	if err != nil {
		return nil, err
	}
	lost := head != nil && !bytes.Equal(head[16:80], journalHeadOf(boot, slots, app)[16:80])
	var was []journal.Entry
	for _, e := range left {
		was = append(was, e)
	}
	all, err := arrange(was, lost)
	if err != nil {
		return nil, err
	}
	if head != nil && bytes.Equal(head, journalHeadOf(boot, slots, app)) {
		// What the process before wrote may be in the kernel's memory alone, and so may the name of its file.
		if err := errors.Join(s.sync(f), syncDir(path)); err != nil {
			return nil, err
		}
		j.take(left)
		for i := range slots {
			if e := all[i]; e == (journal.Entry{}) {
				j.Drop(i)
			} else {
				j.Keep(i, &e)
			}
		}
	} else {
		if j.f, err = replaceJournal(path, journalHeadOf(boot, slots, app), slots, all); err != nil {
			return nil, err
		}
		_ = f.Close()
		f = j.f
		j.take(all)
	}
	j.sync = func() error { return s.sync(j.f) }
	go j.write()
	return j, nil
}

// openJournal opens and locks the file at path, which is empty if there was none. It tries for some time: Idle has the lock
// for a moment, and another process may put a new file in the place of the one that was opened here.
func openJournal(path string) (*os.File, error) {
	for tries := 0; ; tries++ {
		f, err := own.Open(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o077)
		if err != nil {
			return nil, err
		}
		if lockJournal(f, path) {
			return f, nil
		}
		if err := f.Close(); err != nil || tries == 20 {
			return nil, errors.Join(errors.New("another process uses it"), err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// lockJournal locks f for this process. It returns false if another process has f, or if f is not the file at path any more.
func lockJournal(f *os.File, path string) bool {
	if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		return false
	}
	is, err1 := f.Stat()
	now, err2 := os.Lstat(path)
	return err1 == nil && err2 == nil && os.SameFile(is, now)
}

// readJournal returns the entries of f by slot, and f's head, which is nil if f is empty.
func readJournal(f *os.File, app string) (left map[int]journal.Entry, head []byte, err error) {
	b, err := io.ReadAll(io.NewSectionReader(f, 0, 1<<30))
	switch {
	case err != nil || len(b) == 0:
		return nil, nil, err
	case len(b) < journalHead || string(b[:16]) != journalMagic || binary.LittleEndian.Uint64(b[journalSum:]) != journalCheck(b[:journalSum]) ||
		uint64(len(b)) < journalHead+journalSlotB*binary.LittleEndian.Uint64(b[80:]): // there is more after a grow that failed
		return nil, nil, fmt.Errorf("it is no journal of quillon, or damaged: end the connections of %s's clients, remove the file, and start again", app)
	}
	if was, _, _ := bytes.Cut(b[88:journalSum], []byte{0}); string(was) != app {
		return nil, nil, fmt.Errorf("it is the journal of %s, not of %s: give another file", was, app)
	}
	left = map[int]journal.Entry{}
	for i := range int(binary.LittleEndian.Uint64(b[80:])) {
		e, ok := decodeSlot(b[journalHead+journalSlotB*i:][:journalSlotB], i)
		if !ok {
			return nil, nil, fmt.Errorf("entry %d is damaged, and it is not known whose it was: end the connections of %s's clients, remove the file, and start again", i, app)
		}
		if e != (journal.Entry{}) {
			left[i] = e
		}
	}
	return left, b[:journalHead], nil
}

// replaceJournal makes a file with these entries and puts it in the place of the one at path, in one step. All of its
// room is written, so that a disk that fills up later does not matter.
func replaceJournal(path string, head []byte, slots int, all map[int]journal.Entry) (_ *os.File, err error) {
	b := make([]byte, len(head)+slots*journalSlotB)
	copy(b, head)
	for i, e := range all {
		encodeSlot(b[journalHead+journalSlotB*i:][:journalSlotB], i, &e)
	}
	next := path + ".new"
	if err := os.Remove(next); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%s is in the way (%w): remove it, or name a journal in a directory that is yours alone", next, bare(err))
	}
	f, err := openJournal(next)
	if err != nil {
		return nil, err
	}
	if _, err = f.WriteAt(b, 0); err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = os.Rename(next, path)
	}
	if err != nil {
		_ = os.Remove(next)
		return nil, errors.Join(fmt.Errorf("no room for %d bytes: %w: make room, or name a file elsewhere with --journal", len(b), bare(err)), f.Close())
	}
	if err := syncDir(path); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// syncDir puts the name of the file at path on the disk.
func syncDir(path string) error {
	d, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// take fills the slots in memory with what is on the disk.
func (j *Journal) take(all map[int]journal.Entry) {
	for i, e := range all {
		for k, v := range e {
			j.slot(i).e[k].Store(v)
		}
	}
}

// Keep implements journal.Journal.
func (j *Journal) Keep(i int, e *journal.Entry) bool {
	s := j.slot(i)
	if s.is(e) {
		return s.durable.Load() == s.seq.Load()
	}
	j.put(i, e)
	select {
	case j.bell <- struct{}{}:
	default:
	}
	return false
}

// Drop implements journal.Journal.
func (j *Journal) Drop(i int) {
	if e := (journal.Entry{}); !j.slot(i).is(&e) {
		j.put(i, &e)
	}
}

func (s *journalSlot) is(e *journal.Entry) bool {
	for k := range e {
		if s.e[k].Load() != e[k] {
			return false
		}
	}
	return true
}

func (j *Journal) put(i int, e *journal.Entry) {
	p := j.part(i)
	s := &p.slots[i-p.first]
	s.seq.Add(1)
	for k := range e {
		s.e[k].Store(e[k])
	}
	s.seq.Add(1)
	i -= p.first
	p.dirty[i/64].Or(1 << (i % 64))
}

// Err implements journal.Journal.
func (j *Journal) Err() error {
	if e := j.why.Load(); e != nil {
		return *e
	}
	return nil
}

// write writes what has changed, until the journal is closed. Entries that were dropped wait for journalLazy or the next
// entry that is kept.
func (j *Journal) write() {
	defer close(j.done)
	t := time.NewTicker(journalLazy)
	defer t.Stop()
	for {
		select {
		case <-j.bell:
		case <-t.C:
		case <-j.end:
			j.flush()
			return
		}
		j.flush()
	}
}

// flush writes the slots that have changed, and waits until they are on the disk. After an error nothing is written any
// more: nobody can know what is on the disk then.
func (j *Journal) flush() {
	if j.why.Load() != nil {
		return
	}
	var all []written
	for _, p := range *j.parts.Load() {
		var err error
		if all, err = p.write(j.f, all); err != nil {
			j.why.Store(&err)
			return
		}
	}
	if len(all) == 0 {
		return
	}
	if err := j.sync(); err != nil {
		j.why.Store(&err)
		return
	}
	for _, x := range all {
		x.slot.durable.Store(x.seq)
	}
}

// written is a slot that was written to the file, with the entry of a seq.
type written struct {
	slot *journalSlot
	seq  uint64
}

// write writes the slots of p that have changed to f, and appends them to all.
func (p *journalPart) write(f *os.File, all []written) ([]written, error) {
	var b [journalSlotB]byte
	for w := range p.dirty {
		bits := p.dirty[w].Swap(0)
		for k := range 64 {
			if bits>>k&1 == 0 {
				continue
			}
			s := &p.slots[64*w+k]
			e, seq, ok := s.read()
			if !ok { // the app is storing to it: the next time
				p.dirty[w].Or(1 << k)
				continue
			}
			i := p.first + 64*w + k
			encodeSlot(b[:], i, &e)
			if _, err := f.WriteAt(b[:], int64(journalHead+journalSlotB*i)); err != nil {
				return all, err
			}
			all = append(all, written{s, seq})
		}
	}
	return all, nil
}

// read returns the entry of s and the seq that it belongs to, or false if the app stores to s meanwhile.
func (s *journalSlot) read() (e journal.Entry, seq uint64, ok bool) {
	seq = s.seq.Load()
	for k := range e {
		e[k] = s.e[k].Load()
	}
	return e, seq, seq&1 == 0 && s.seq.Load() == seq
}

// journalPatience is how long the end of a process waits for a disk that does not answer.
const journalPatience = 5 * time.Second

// ended waits until everything is written, and closes the file. It returns an error when over ends first, which is patience long.
func (j *Journal) ended(over context.Context, patience time.Duration) error {
	select {
	case <-j.done:
	case <-over.Done():
		select {
		case <-j.done:
		default:
			return fmt.Errorf("%s: the disk has not written for %v: what it has of the journal is not known", j.path, patience)
		}
	}
	return errors.Join(j.Err(), j.f.Close())
}
