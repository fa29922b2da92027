package state

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/journal"
)

// disk is what a power cut may leave of a journal's file: of each slot what was there at the last sync, or what was written since, in any
// combination. kept has the entries that an app relies on: Keep has said that they are on the disk, and they were not dropped since.
type disk struct {
	sync.Mutex
	t      *testing.T
	f      *os.File
	synced []byte
	kept   map[int]journal.Entry
	syncs  int
}

func (d *disk) read() []byte {
	b := make([]byte, journalHead+64*journalSlotB)
	n, err := d.f.ReadAt(b, 0)
	if n < journalHead {
		d.t.Error(err)
	}
	return b[:n]
}

// check looks whether each entry in kept is there whatever a power cut leaves, and whether no slot is damaged.
func (d *disk) check() {
	now := d.read()
	for _, b := range [][]byte{d.synced, now} {
		for i := range (len(b) - journalHead) / journalSlotB {
			e, ok := decodeSlot(b[journalHead+i*journalSlotB:][:journalSlotB], i)
			if want, is := d.kept[i]; !ok || is && e != want {
				d.t.Errorf("slot %d: a power cut leaves %v (%v), and %v counts as kept", i, e, ok, want)
			}
		}
	}
}

// TestPowerCut: an app keeps and drops entries within microseconds, while they are written. At each moment a power cut leaves every entry
// that counts as kept, whichever of the writes since the last sync have reached the disk.
func TestPowerCut(t *testing.T) {
	d := &disk{t: t, kept: map[int]journal.Entry{}}
	js := NewJournals(filepath.Join(t.TempDir(), "j"), false)
	js.sync = func(f *os.File) error {
		d.Lock()
		d.f = f
		if d.synced != nil {
			d.check()
		}
		now := d.read()
		d.Unlock()
		time.Sleep(time.Duration(rand.IntN(200)) * time.Microsecond) // what the app does meanwhile is written by the next sync
		d.Lock()
		defer d.Unlock()
		if d.syncs++; d.synced != nil && bytes.Equal(now[:journalHead], d.synced[:journalHead]) && len(now) == len(d.synced) {
			d.synced = now
		}
		return nil
	}
	const slots = 8
	made, err := js.Open("app", slots, func([]journal.Entry, bool) (map[int]journal.Entry, error) { return nil, nil })
	if err != nil {
		t.Fatal(err)
	}
	j := made.(*Journal)
	d.Lock()
	d.f = j.f
	d.synced = d.read()
	d.Unlock()
	said, want := 0, [slots]journal.Entry{}
	for end := time.Now().Add(30 * time.Second); said < 300 && time.Now().Before(end) && !t.Failed(); {
		i := rand.IntN(slots)
		d.Lock()
		if rand.IntN(16) == 0 { // its connection ends, and perhaps the same one or another one begins at once
			delete(d.kept, i)
			j.Drop(i)
			want[i] = journal.Entry{rand.Uint64N(3), 7}
		}
		if want[i][0] != 0 && j.Keep(i, &want[i]) {
			if _, is := d.kept[i]; !is {
				d.kept[i] = want[i]
				said++
			}
			d.check()
		}
		d.Unlock()
		if rand.IntN(16) == 0 {
			time.Sleep(20 * time.Microsecond)
		}
	}
	if err := js.Close(); err != nil {
		t.Fatal(err)
	}
	if said < 300 && !t.Failed() {
		t.Errorf("%d syncs, %d entries kept", d.syncs, said)
	}
}
