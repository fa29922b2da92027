package bed

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/journal"
	"github.com/quillon/quillon/nf/port"
)

// disk is the disk of the box's machine, with the journals of its apps. A write takes as long as the world says. When
// the machine loses its power, each write under way is done or not.
type disk struct {
	bed      *Bed
	takes    time.Duration // a write; Drop waits for up to a second more
	journals map[string]*sectors
	boot     int
	rng      *rand.Rand
	// lost are the connections that were on the disk when the machine was started anew.
	lost map[lost]bool
	// shut are the fence's entries that were on the disk at such a time, in its words: client and server, then the queue pair.
	shut map[[2]uint64]bool
}

// sectors is a journal: what its app has stored, what is on the disk, and what is on its way there.
type sectors struct {
	d       *disk
	kept    map[int]journal.Entry
	durable map[int]journal.Entry
	writes  []sector
	boot    int
	starts  uint64 // of the process that has it open
}

type sector struct {
	at   clock.Time
	slot int
	e    journal.Entry
}

// open serves as graph.Config.Journal.
func (d *disk) open(app string, slots int, arrange journal.Arrange) (journal.Journal, error) {
	j := d.journals[app]
	if j == nil {
		j = &sectors{d: d, kept: map[int]journal.Entry{}, durable: map[int]journal.Entry{}, boot: d.boot}
		d.journals[app] = j
	}
	j.settle(d.bed.Clock.Now())
	if n := d.bed.box.starts; j.starts != n { // the process before did not come to write all
		for _, w := range j.writes {
			if d.rng.IntN(2) == 0 {
				j.put(w)
			}
		}
		j.starts, j.writes, j.kept = n, nil, maps.Clone(j.durable)
	}
	if j.boot == d.boot {
		return j, nil
	}
	var left []journal.Entry
	for _, e := range j.durable {
		left = append(left, e)
	}
	slices.SortFunc(left, func(a, b journal.Entry) int { return slices.Compare(a[:], b[:]) })
	all, err := arrange(left, true)
	if err != nil {
		return nil, err
	}
	j.boot, j.kept, j.durable, j.writes = d.boot, map[int]journal.Entry{}, map[int]journal.Entry{}, nil
	for i, e := range all {
		j.kept[i], j.durable[i] = e, e
	}
	return j, nil
}

// settle does the writes that are done by now.
func (j *sectors) settle(now clock.Time) {
	for len(j.writes) > 0 && j.writes[0].at <= now {
		w := j.writes[0]
		j.writes = j.writes[1:]
		j.put(w)
	}
}

func (j *sectors) put(w sector) {
	if w.e == (journal.Entry{}) {
		delete(j.durable, w.slot)
	} else {
		j.durable[w.slot] = w.e
	}
}

func (j *sectors) write(slot int, e journal.Entry, after time.Duration) {
	at := j.d.bed.Clock.Now().Add(after)
	// An entry that is kept has what was dropped before it written, too.
	for i := range j.writes {
		j.writes[i].at = min(j.writes[i].at, at)
	}
	j.writes = append(j.writes, sector{at, slot, e})
}

// Keep implements journal.Journal.
func (j *sectors) Keep(slot int, e *journal.Entry) bool {
	j.settle(j.d.bed.Clock.Now())
	if j.kept[slot] != *e {
		j.kept[slot] = *e
		j.write(slot, *e, j.d.takes)
		return false
	}
	return j.durable[slot] == *e && !slices.ContainsFunc(j.writes, func(w sector) bool { return w.slot == slot })
}

// Drop implements journal.Journal.
func (j *sectors) Drop(slot int) {
	j.settle(j.d.bed.Clock.Now())
	if _, ok := j.kept[slot]; ok {
		delete(j.kept, slot)
		j.write(slot, journal.Entry{}, j.d.takes+time.Duration(j.d.rng.IntN(int(time.Second))))
	}
}

// Slots implements journal.Journal.
func (j *sectors) Slots() int { return slices.Max(append(slices.Collect(maps.Keys(j.kept)), -1)) + 1 }

// Err implements journal.Journal.
func (*sectors) Err() error { return nil }

// reboot takes the machine's power away: the app's memory is gone, and what the kernel held back; so are writes under way, or not.
func (x *box) reboot() error {
	if err := x.down(); err != nil {
		return err
	}
	d := x.disk
	for app, j := range d.journals {
		j.settle(x.bed.Clock.Now())
		for _, w := range j.writes {
			if d.rng.IntN(2) == 0 {
				j.put(w)
			}
		}
		j.writes = nil
		for _, e := range j.durable {
			if strings.HasPrefix(app, "fence/") {
				d.shut[[2]uint64(e[:])] = true
			} else {
				d.lost[lost{uint32(e[4]), uint32(e[4] >> 32), byte(e[3] >> 56)}] = true
			}
		}
	}
	d.boot++
	for app := range x.memory {
		clear(x.memory[app])
	}
	clear(x.bound)
	x.filter = port.Filter{Closed: true} // nothing joins the two interfaces until the next process does
	return nil
}

// lost is a connection that an entry of swordbox's names: both queue pairs' numbers, the client's first, and the last byte of
// the server's address.
type lost struct {
	near, far uint32
	nic       byte
}

func lostOf(c *Connection) lost {
	b := c.ServerIP.As16()
	return lost{c.ClientQPN, c.ServerQPN, b[15]}
}

// named checks that swordbox has no connection on record in memory that its journal does not name on the disk.
func (x *box) named() error {
	for app, j := range x.disk.journals {
		b := x.memory[app]
		if len(b) < 64 || string(b[:8]) != "qlswbox2" {
			continue
		}
		j.settle(x.bed.Clock.Now())
		le := binary.LittleEndian
		conns, places := int(le.Uint32(b[12:])), int(le.Uint32(b[20:]))
		for k := range conns * places {
			r := b[64+64*k:][:64]
			if r[43] == 0 {
				continue
			}
			e := j.durable[k]
			var s [48]byte
			for i, v := range e {
				le.PutUint64(s[8*i:], v)
			}
			if !bytes.Equal(s[:43], r[:43]) {
				return fmt.Errorf("bed: connection %d (queue pairs %#x and %#x) is on record, and the journal on the disk does not name it", k, le.Uint32(r[32:]), le.Uint32(r[36:]))
			}
		}
	}
	return nil
}
