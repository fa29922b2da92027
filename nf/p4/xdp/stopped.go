package xdp

import (
	"fmt"
	"maps"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/p4"
)

// A table is stopped while the kernel lacks an entry of it: frames that come to it go to the engine. The kernel's maps go on following the
// Switch, as far as entries fit. When entries have gone since one did not fit, the others are tried again, a few at each look. If all are there,
// the table goes on. That takes at least a second, so that a table whose entries fit and do not, again and again, stays with the engine.

// out is what the kernel lacks of a table.
type out struct {
	missing int        // rows
	freed   bool       // entries have gone since one did not fit
	forever bool       // something else than an entry is missing, or is too much
	dated   bool       // since is known
	since   clock.Time // since when no entry was refused
	next    int        // row that is tried next
}

// Bounds of tries.
const (
	goesOn    = clock.Duration(1e9) // how long no entry must have been refused
	tryFor    = 500_000             // ns of a look; one entry is always tried
	tryLooks  = 8192                // rows that a look sees
	whyHolds  = "; all fit again, and the kernel runs its frames soon"
	whyLacks  = "; %d of its entries are not in the kernel"
	whyOthers = "; it stays so until the program is loaded anew"
)

// miss notes that a row is not in the kernel as it is in the Switch.
func (m *tableMaps) miss(row uint32) {
	if m.rows[row]&rowMissing == 0 {
		m.rows[row] |= rowMissing
		m.out.missing++
	}
	m.out.freed, m.out.dated = false, false
}

// found notes that a row is in the kernel.
func (m *tableMaps) found(row uint32) {
	if m.rows[row]&rowThere == 0 {
		m.n++
	}
	if m.rows[row]&rowMissing != 0 {
		m.out.missing--
	}
	m.rows[row] = rowThere
}

// gone notes that a row is no more. It reports whether the maps have an entry for it.
func (m *tableMaps) gone(row uint32) (there bool) {
	if m.rows[row]&rowMissing != 0 {
		m.out.missing--
	}
	if there = m.rows[row]&rowThere != 0; there {
		m.n--
	}
	m.rows[row], m.out.freed = 0, true
	return there
}

// stop makes frames that come to a table go to the engine.
func (x *Executor) stop(table int, why error) {
	look(x, table, tableStopped)
	if name := x.tree.Tables[table].Name; x.why[name] == "" {
		x.why[name] = why.Error()
	}
}

// end stops a table until the Executor ends: the kernel lacks, or has, what no later change mends.
func (x *Executor) end(table int, why error) {
	x.stop(table, why)
	x.tables[table].out.forever = true
}

// again tries to have stopped tables go on. now is the time of the app.
func again(x *Executor, now clock.Time) {
	for i, m := range x.tables {
		if !m.skip && !m.out.forever && looks(x, i) == tableStopped && m.fits(x, i, now) {
			where := uint64(tableEmpty)
			if m.n > 0 {
				where = tableFull
			}
			look(x, i, where)
			delete(x.why, x.tree.Tables[i].Name)
		}
	}
}

// fits tries entries that are missing, and reports whether none is any more.
func (m *tableMaps) fits(x *Executor, table int, now clock.Time) bool {
	o := &m.out
	if !o.dated {
		o.dated, o.since = true, now
	}
	if now.Sub(o.since) < goesOn || o.missing > 0 && !o.freed {
		return false
	}
	begun := clock.Kernel()
	for looked := 0; o.missing > 0 && looked < tryLooks && o.dated; looked++ {
		if o.next >= len(m.rows) {
			o.next = 0
		}
		if m.rows[o.next]&rowMissing != 0 {
			if m.waits(x) || looked > 0 && clock.Kernel()-begun > tryFor {
				return false
			}
			p4.TellRow(x.sw, table, uint32(o.next))
		}
		o.next++
	}
	return o.missing == 0
}

// waits reports whether the place of a mask will be free after a grace period, which is begun.
func (m *tableMaps) waits(x *Executor) bool {
	r := m.places
	if r == nil || len(r.free) > 0 || r.used < r.most || len(r.left)+len(r.waiting) == 0 {
		return false
	}
	if x.graces.busy == nil {
		x.graces.begin()
	}
	if err := x.graces.collect(false); err != nil {
		return true
	}
	return len(r.free) == 0
}

// shownStops are the reasons why tables are stopped, and others of Stopped, with what is to be expected.
func shownStops(x *Executor) map[string]string {
	all := maps.Clone(x.Stopped())
	for i, m := range x.tables {
		name := x.tree.Tables[i].Name
		switch why := all[name]; {
		case why == "" || m.skip:
		case m.out.forever:
			all[name] = why + whyOthers
		case m.out.missing == 0:
			all[name] = why + whyHolds
		default:
			all[name] = why + fmt.Sprintf(whyLacks, m.out.missing)
		}
	}
	return all
}
