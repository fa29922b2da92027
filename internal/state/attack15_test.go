package state

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/nf/journal"
)

// A process is killed between the write of an entry and fdatasync: the entry is in the kernel's memory alone. The next process
// finds it there. It counts as kept only when the disk has it, or else a power cut within the next half minute loses a connection
// whose ends count differently.
//
// The test looks for dirty pages of the file (the kernel's, in cachestat(2)): an entry that counts as kept behind the start has none.
func TestAttack15KilledBeforeTheDisk(t *testing.T) {
	path := filepath.Join(t.TempDir(), "j")
	var a arranged
	s, g, err := journals(t, path, "one", 100, a.arrange)
	if err != nil {
		t.Fatal(err)
	}
	j := g.(*Journal)
	written, end := make(chan bool, 1), make(chan bool)
	j.sync = func() error { written <- true; <-end; return nil }
	x := journal.Entry{1, 2, 3, 4, 5, 6}
	j.Keep(3, &x)
	<-written
	// What a kill leaves: the file as the kernel has it, and no lock.
	if err := unix.Flock(int(j.f.Fd()), unix.LOCK_UN); err != nil {
		t.Fatal(err)
	}
	n := dirty(t, path)
	if n == 0 {
		t.Skip("the kernel does not say which pages are dirty, or has written them by itself")
	}
	_, k, err := journals(t, path, "one", 100, a.arrange)
	if err != nil {
		t.Fatal(err)
	}
	if k.Keep(3, &x) && dirty(t, path) != 0 {
		t.Error("the entry counts as kept, and is not on the disk")
	}
	close(end)
	_ = s.Close()
}

// dirty is how many pages of a file the kernel has not written.
func dirty(t *testing.T, path string) uint64 {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var all unix.CachestatRange
	var c unix.Cachestat_t
	if err := unix.Cachestat(uint(f.Fd()), &all, &c, 0); err != nil {
		t.Skip(err)
	}
	return c.Dirty + c.Writeback
}
