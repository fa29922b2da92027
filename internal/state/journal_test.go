package state

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quillon/quillon/nf/journal"
)

// journals opens the journal at path in a boot.
func journals(t *testing.T, path, boot string, slots int, arrange journal.Arrange) (*Journals, journal.Journal, error) {
	t.Helper()
	s := NewJournals(path, false)
	s.boot = func() ([]byte, error) { return []byte(boot), nil }
	j, err := s.Open("box", slots, arrange)
	t.Cleanup(func() { _ = s.Close() })
	return s, j, err
}

// arranged keeps what an arrange is given, and puts it into the first slots.
type arranged struct {
	lost bool
	left map[journal.Entry]bool
}

func (a *arranged) arrange(left []journal.Entry, lost bool) (map[int]journal.Entry, error) {
	*a = arranged{lost, map[journal.Entry]bool{}}
	all := map[int]journal.Entry{}
	for i, e := range left {
		a.left[e], all[i] = true, e
	}
	return all, nil
}

func awaitKept(t *testing.T, j journal.Journal, i int, e journal.Entry) {
	t.Helper()
	for range 5000 {
		if j.Keep(i, &e) {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Fatalf("slot %d is not on the disk", i)
}

// What is kept is there after a reboot, also when nobody closed the file, and what was dropped is not. The same boot
// goes on with the file as it is.
func TestJournal(t *testing.T) {
	path := filepath.Join(t.TempDir(), "j")
	var a arranged
	s, j, err := journals(t, path, "one", 100, a.arrange)
	if err != nil || a.lost || len(a.left) != 0 {
		t.Fatal(err, a)
	}
	x, y, z := journal.Entry{1, 2, 3, 4, 5, 6}, journal.Entry{7}, journal.Entry{8}
	awaitKept(t, j, 3, x)
	awaitKept(t, j, 99, y)
	awaitKept(t, j, 64, z)
	j.Drop(64)
	killed, _ := os.ReadFile(path) // as the machine's end leaves it: z may be there
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for _, slots := range []int{100, 50} {
		a = arranged{}
		s, j, err = journals(t, path, "two", slots, a.arrange)
		if err != nil || a.lost != (slots == 100) || !maps.Equal(a.left, map[journal.Entry]bool{x: true, y: true}) {
			t.Fatal(slots, err, a)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	a = arranged{}
	if s, _, err = journals(t, path, "two", 50, a.arrange); err != nil || a.lost || len(a.left) != 2 {
		t.Fatal("the same boot lost something", err, a)
	}
	_ = s.Close()
	if err := os.WriteFile(path, killed, 0o600); err != nil {
		t.Fatal(err)
	}
	s, _, err = journals(t, path, "two", 100, a.arrange)
	if err != nil || !a.left[x] || !a.left[y] {
		t.Fatal(err, a)
	}
	_ = s.Close()
}

// An entry counts as kept behind the write to the disk, and never behind one that failed.
func TestJournalWaitsForTheDisk(t *testing.T) {
	path := filepath.Join(t.TempDir(), "j")
	var a arranged
	_, g, err := journals(t, path, "one", 100, a.arrange)
	if err != nil {
		t.Fatal(err)
	}
	j := g.(*Journal)
	hold, failed := make(chan error), errors.New("input/output error")
	calls := make(chan bool, 100)
	t.Cleanup(func() { close(hold) })
	j.sync = func() error { calls <- true; return <-hold }
	x, y := journal.Entry{1}, journal.Entry{2}
	if j.Keep(0, &x) {
		t.Fatal("kept at once")
	}
	<-calls
	if j.Keep(0, &x) || j.Keep(1, &y) {
		t.Fatal("kept before the disk has it")
	}
	hold <- nil
	<-calls // of y: one write for all that came meanwhile
	if !j.Keep(0, &x) || j.Keep(1, &y) {
		t.Fatal("want the first alone")
	}
	hold <- failed
	for j.Err() == nil {
		time.Sleep(time.Millisecond)
	}
	if !j.Keep(0, &x) || j.Keep(1, &y) || !errors.Is(j.Err(), failed) {
		t.Fatal("a failed write counts")
	}
}

// A start whose write to the disk is cut short leaves the former journal. A damaged one is refused, and left alone.
func TestJournalDamaged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "j")
	var a arranged
	s, j, err := journals(t, path, "one", 100, a.arrange)
	if err != nil {
		t.Fatal(err)
	}
	awaitKept(t, j, 3, journal.Entry{1, 2, 3, 4, 5, 6})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	whole, _ := os.ReadFile(path)
	if err := os.WriteFile(path+".new", whole[:journalHead+10], 0o600); err != nil { // killed while it wrote
		t.Fatal(err)
	}
	for _, at := range []int{0, 20, 81, 90, journalSum, journalHead + 3*journalSlotB, journalHead + 3*journalSlotB + 47, journalHead + 3*journalSlotB + 50, journalHead + 5*journalSlotB} {
		b := bytes.Clone(whole)
		b[at] ^= 1
		_ = os.WriteFile(path, b, 0o600)
		if _, _, err := journals(t, path, "two", 100, a.arrange); err == nil || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), "remove the file") {
			t.Errorf("byte %d: %v", at, err)
		}
		if is, _ := os.ReadFile(path); !bytes.Equal(is, b) {
			t.Errorf("byte %d: the file was changed", at)
		}
	}
	for _, n := range []int{1, journalHead, len(whole) - 1} {
		_ = os.WriteFile(path, whole[:n], 0o600)
		if _, _, err := journals(t, path, "two", 100, a.arrange); err == nil {
			t.Errorf("%d bytes are taken for whole", n)
		}
	}
	_ = os.WriteFile(path, whole, 0o600)
	if _, _, err := journals(t, path, "two", 100, a.arrange); err != nil || len(a.left) != 1 {
		t.Fatal(err, a)
	}
}

// Two processes do not have one journal.
func TestJournalLocked(t *testing.T) {
	path := filepath.Join(t.TempDir(), "j")
	var a arranged
	if _, _, err := journals(t, path, "one", 100, a.arrange); err != nil {
		t.Fatal(err)
	}
	if _, _, err := journals(t, path, "one", 100, a.arrange); err == nil || !strings.Contains(err.Error(), "another process uses it") {
		t.Fatal(err)
	}
}

func BenchmarkKeep(b *testing.B) {
	s := NewJournals(filepath.Join(b.TempDir(), "j"), false)
	var a arranged
	j, err := s.Open("box", 512, a.arrange)
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	e := journal.Entry{1}
	b.ReportAllocs()
	for b.Loop() {
		e[1]++
		j.Keep(1, &e)
	}
}

// Idle names journals that have entries, and that no process uses.
func TestIdle(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "x.journal")
	s, j, err := journals(t, path, "one", 10, func([]journal.Entry, bool) (map[int]journal.Entry, error) { return nil, nil })
	if err != nil {
		t.Fatal(err)
	}
	awaitKept(t, j, 3, journal.Entry{1})
	if got := Idle(dir); got != nil {
		t.Errorf("in use: %q", got)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "y.journal"), []byte("something"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := Idle(dir); len(got) != 1 || !strings.HasPrefix(got[0], path+" has 1 entries of box,") {
		t.Errorf("%q", got)
	}
}

// What is found in the file is on the disk before it counts: the process before may have been killed in front of its fdatasync.
func TestJournalSyncsWhatItFinds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "j")
	var a arranged
	s, j, err := journals(t, path, "one", 10, a.arrange)
	if err != nil {
		t.Fatal(err)
	}
	awaitKept(t, j, 0, journal.Entry{1})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = NewJournals(path, false)
	s.boot = func() ([]byte, error) { return []byte("one"), nil }
	s.sync = func(*os.File) error { return errors.New("broken") }
	if _, err := s.Open("box", 10, a.arrange); err == nil || !strings.Contains(err.Error(), "broken") {
		t.Errorf("%v, want an error of the disk", err)
	}
}

// A disk that does not answer holds no end up, however many journals it has. One that answers late loses nothing.
func TestJournalOfADeadDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // in bubble time, which a busy machine does not take
		var a arranged
		path := filepath.Join(t.TempDir(), "j")
		s, j, err := journals(t, path, "one", 10, a.arrange)
		if err != nil {
			t.Fatal(err)
		}
		s.patience = 300 * time.Millisecond
		all := map[string]journal.Journal{path: j}
		for i := range 9 {
			app := fmt.Sprintf("one/%d", i)
			if all[fmt.Sprintf("%s.one.%d", path, i)], err = s.Open(app, 10, (&arranged{}).arrange); err != nil {
				t.Fatal(err)
			}
		}
		hung, release := make(chan struct{}, len(all)), make(chan struct{})
		late := path + ".one.3"
		s.sync = func(f *os.File) error {
			if hung <- struct{}{}; strings.HasPrefix(f.Name(), late) {
				time.Sleep(s.patience / 3)
				return nil
			}
			<-release
			return nil
		}
		defer close(release)
		for _, j := range all {
			j.Keep(0, &journal.Entry{1})
		}
		for range all {
			<-hung
		}
		since := time.Now()
		err = s.Close()
		if d := time.Since(since); d != s.patience {
			t.Errorf("Close waited for %v, want %v", d, s.patience)
		}
		if err == nil || strings.Count(err.Error(), "has not written") != len(all)-1 || strings.Contains(err.Error(), late+":") {
			t.Errorf("%v", err)
		}
	})
}

// A file that another process replaced after it was opened here is not the journal.
func TestJournalReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "j")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := errors.Join(os.WriteFile(path+".new", []byte("new"), 0o600), os.Rename(path+".new", path)); err != nil {
		t.Fatal(err)
	}
	if lockJournal(f, path) {
		t.Error("the file that has no name any more was taken")
	}
}

// A journal grows in use: what it had stays, and a process that has the first slots alone goes on.
func TestJournalGrows(t *testing.T) {
	path := filepath.Join(t.TempDir(), "j")
	var a arranged
	s, j, err := journals(t, path, "one", 100, a.arrange)
	if err != nil {
		t.Fatal(err)
	}
	x, y, z := journal.Entry{1}, journal.Entry{2}, journal.Entry{3}
	awaitKept(t, j, 99, x)
	for _, slots := range []int{300, 50, 310} {
		if more, err := s.Open("box", slots, nil); err != nil || more != j {
			t.Fatal(more, err)
		}
	}
	if !j.Keep(99, &x) {
		t.Error("what was on the disk is not any more")
	}
	awaitKept(t, j, 250, y)
	awaitKept(t, j, 309, z)
	j.Drop(99)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s, _, err = journals(t, path, "two", 310, a.arrange)
	if err != nil || !maps.Equal(a.left, map[journal.Entry]bool{y: true, z: true}) {
		t.Error(err, a)
	}
	_ = s.Close()
}
