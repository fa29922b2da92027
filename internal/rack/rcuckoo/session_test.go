package rcuckoo

import (
	"net/netip"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/rack/rnic"
)

// near is a client with one session whose requests the test itself answers. Its queue pair is connected to no
// other.
type near struct {
	t     *testing.T
	c     *Client
	s     *session
	table *Table
	ended int
	last  Result
	ops   []Op
}

func newNear(t *testing.T, l Layout, change func(*Config)) *near {
	t.Helper()
	nic, err := rnic.New(rnic.Config{MAC: [6]byte{2}, IP: netip.AddrFrom4([4]byte{10, 0, 0, 1})})
	if err != nil {
		t.Fatal(err)
	}
	x := &near{t: t}
	if x.table, err = NewTable(l); err != nil {
		t.Fatal(err)
	}
	pd, cq := nic.AllocPD(), nic.CreateCQ(64)
	c := Config{
		Layout: l, Sessions: 1, CQ: cq,
		Dial: func(clock.Time, int) (*rnic.QP, Grant, error) {
			qp, err := nic.CreateQP(rnic.QPInit{PD: pd, SendCQ: cq, RecvCQ: cq, MaxSend: 4096})
			if err != nil {
				t.Fatal(err)
			}
			k := rnic.DefaultConn()
			k.RemoteIP = netip.AddrFrom4([4]byte{10, 0, 0, 2})
			return qp, Grant{Layout: x.table.Layout, Table: Region{VA: tableVA}, Leases: Region{VA: leasesVA}, Extents: Region{VA: extentsVA}}, qp.Connect(k)
		},
		Next: func(clock.Time, int) (op Op, ok bool) {
			if len(x.ops) == 0 {
				return op, false
			}
			op, x.ops = x.ops[0], x.ops[1:]
			return op, true
		},
		Done: func(r *Result) {
			x.ended++
			x.last = *r
		},
	}
	change(&c)
	if x.c, err = NewClient(c); err != nil {
		t.Fatal(err)
	}
	x.s = x.c.Sessions[0]
	return x
}

// begin begins an operation.
func (x *near) begin(now clock.Time, op Op) {
	x.ops = append(x.ops, op)
	x.c.Step(now)
}

// answer executes the requests of the session's post one after another. The test can change the memory before
// each of them.
func (x *near) answer(now clock.Time, before func(i int)) {
	x.t.Helper()
	s := x.s
	for i := range s.WRs {
		before(i)
		w, buf := &s.WRs[i], s.WRs[i].SGL[0]
		var mem []byte
		switch at := w.RemoteAddr; {
		case at >= extentsVA:
			mem = x.table.extents[at-extentsVA:]
		case at >= leasesVA:
			mem = x.table.leases[at-leasesVA:]
		case at >= tableVA:
			mem = x.table.rows[at-tableVA:]
		default:
			mem = x.table.locks[at:]
		}
		switch w.Op {
		case rnic.OpRead:
			copy(buf, mem)
		case rnic.OpWrite:
			copy(mem, buf)
		default:
			v := le.Uint64(mem)
			le.PutUint64(buf, v)
			if w.Op == rnic.OpCompareSwap && v == w.Compare {
				le.PutUint64(mem, w.Swap)
			}
			if w.Op == rnic.OpMaskedCompareSwap && (v^w.Compare)&w.CompareMask == 0 {
				le.PutUint64(mem, v&^w.SwapMask|w.Swap&w.SwapMask)
			}
		}
	}
	s.Done(now)
}

func nothing(int) {}

// far is a key whose rows are far apart.
func (x *near) far() uint32 {
	for k := uint32(1); ; k++ {
		if a, b := x.table.RowsOf(k); a > b+8 || b > a+8 {
			return k
		}
	}
}

// put puts a key into one of its rows, or removes it.
func (x *near) put(key uint32, second, in bool) {
	a, b := x.table.RowsOf(key)
	if second {
		a = b
	}
	m := x.table.image(x.table.row(a))
	m.put(3, cell{})
	if in {
		m.put(3, cell{Key: key, inline: [8]byte{7}})
	}
	m.seal()
}

// An entry that moves from the row that is read last to the row that was read first is found, though the
// first READs see it in neither row.
func TestMoveBehindRead(t *testing.T) {
	x := newNear(t, Layout{Rows: 64}, func(*Config) {})
	k := x.far()
	x.put(k, true, true)
	x.begin(1000, Op{Kind: Read, Key: uint64(k)})
	if len(x.s.WRs) != 2 {
		t.Fatalf("%d requests", len(x.s.WRs))
	}
	x.answer(2000, func(i int) {
		if i == 1 {
			x.put(k, false, true)
			x.put(k, true, false)
		}
	})
	if x.ended != 0 || x.c.stats.Confirmed != 1 {
		t.Fatalf("ended: %+v", x.last)
	}
	x.answer(3000, nothing)
	if x.ended != 1 || !x.last.Found || x.last.Got[0] != 7 || x.last.RoundTrips != 0 {
		t.Errorf("%+v", x.last)
	}
	// The entry moves back and forth: it never counts as missing, however often it moves.
	x.put(k, true, true)
	x.put(k, false, false)
	x.begin(4000, Op{Kind: Read, Key: uint64(k)})
	for i := range 10 {
		x.answer(clock.Time(5000+i), func(i int) {
			if i == 1 {
				x.put(k, false, true)
				x.put(k, true, false)
			}
		})
		x.put(k, true, true)
		x.put(k, false, false)
	}
	if x.ended != 1 {
		t.Errorf("ended: %+v", x.last)
	}
	x.put(k, true, false)
	x.answer(6000, nothing)
	x.answer(6001, nothing)
	if x.ended != 2 || x.last.Found {
		t.Errorf("not ended, or found: %+v", x.last)
	}
}

// A row that stays torn is read again, and in the end with its lock.
func TestTornRow(t *testing.T) {
	x := newNear(t, Layout{Rows: 64}, func(c *Config) { c.FailAfter = time.Millisecond })
	k := x.far()
	x.put(k, false, true)
	a, _ := x.table.RowsOf(k)
	x.table.Tear(a)
	x.begin(1000, Op{Kind: Read, Key: uint64(k)})
	x.answer(2000, nothing)
	x.answer(3000, nothing)
	if x.ended != 0 || x.c.stats.Torn != 2 {
		t.Fatalf("%+v", x.c.stats)
	}
	x.answer(clock.Time(3000).Add(time.Millisecond/4), nothing)
	if x.s.step != stepLock {
		t.Fatalf("step %d", x.s.step)
	}
	x.table.Tear(a) // the row is repaired
	for x.ended == 0 {
		x.answer(clock.Time(4000).Add(time.Millisecond/4), nothing)
	}
	if !x.last.Found || x.table.Held() != 0 {
		t.Errorf("%+v, %d locks held", x.last, x.table.Held())
	}
}

// A lock that is held for long is taken from its holder only when the rows behind it do not change, and no
// other session repairs.
func TestSuspect(t *testing.T) {
	const wait = 4 * time.Millisecond
	for _, c := range []struct {
		name   string
		change func(x *near, row, region int)
		dead   bool
	}{
		{"nobody is there", func(*near, int, int) {}, true},
		{"a row has changed", func(x *near, row, _ int) { x.table.image(x.table.row(row)).seal() }, false},
		{"somebody repaired", func(x *near, _, region int) {
			w := taken(freeLease(region), 9)
			le.PutUint64(x.table.leases[8*region:], w&^leaseBit)
		}, false},
		{"somebody repairs", func(x *near, _, region int) {
			le.PutUint64(x.table.leases[8*region:], taken(freeLease(region), 9))
		}, false},
	} {
		x := newNear(t, Layout{Rows: 64, RowsPerLock: 4}, func(c *Config) { c.FailAfter = wait })
		a, _ := x.table.RowsOf(5)
		lock := x.table.lockOf(x.table.logical(a))
		x.table.locks[lock/8] |= 1 << (lock % 8)
		x.begin(1000, Op{Kind: Update, Key: 5, Value: []byte{1, 2, 3, 4}})
		now := clock.Time(1000)
		for i := 0; x.c.stats.Repaired == 0 && now < clock.Time(1000).Add(wait+wait/8); i++ {
			if x.s.step == stepIdle {
				break
			}
			if x.c.stats.Suspected == 1 && x.s.sus.armed && x.s.step == stepLock {
				c.change(x, a, x.table.regionOf(lock))
				c.change = func(*near, int, int) {}
			}
			now = now.Add(wait / 64)
			x.answer(now, nothing)
		}
		if (x.c.stats.Repaired > 0) != c.dead {
			t.Errorf("%s: %+v", c.name, x.c.stats)
		}
	}
}

// The value in an extent that took long to read may by then belong to another key.
func TestLateExtent(t *testing.T) {
	x := newNear(t, Layout{Rows: 64, Wide: true, Extents: 1024}, func(c *Config) { c.FailAfter, c.Covering = time.Millisecond, 1<<20 })
	if _, err := x.table.FillExtents(1, 3, 20, func(uint32) []byte { return []byte("value") }); err != nil {
		t.Fatal(err)
	}
	x.begin(1000, Op{Kind: Read, Key: 2})
	x.answer(2000, nothing)
	if x.s.step != stepExtent {
		t.Fatalf("step %d", x.s.step)
	}
	x.answer(clock.Time(2000).Add(time.Millisecond), nothing)
	if x.ended != 0 || x.s.step != stepRead {
		t.Fatalf("%+v", x.last)
	}
	x.answer(clock.Time(3000).Add(time.Millisecond), nothing)
	x.answer(clock.Time(4000).Add(time.Millisecond), nothing)
	if x.ended != 1 || string(x.last.Got) != "value" {
		t.Errorf("%+v", x.last)
	}
}

// A repair writes a row of another region only with that region's lease: another repair there could clear the
// other copy of an entry.
func TestRepairTakesBothLeases(t *testing.T) {
	const wait = 4 * time.Millisecond
	x := newNear(t, Layout{Rows: 64, RowsPerLock: 1}, func(c *Config) { c.FailAfter = wait })
	l := &x.table.Layout
	k, a, b := uint32(0), 0, 0
	for regions := [2]int{}; regions[0] == regions[1] || a > b; {
		k++
		a, b = l.RowsOf(k)
		regions = [2]int{l.regionOf(l.lockOf(a)), l.regionOf(l.lockOf(b))}
	}
	for i, r := range []int{a, b} {
		x.put(k, i == 1, true)
		x.table.locks[r/8] |= 1 << (r % 8)
	}
	x.begin(1000, Op{Kind: Update, Key: uint64(k), Value: []byte{9, 9, 9, 9}})
	fixed := 0
	for now := clock.Time(1000); x.ended == 0; now = now.Add(wait / 64) {
		if now > clock.Time(1000).Add(6*wait) {
			t.Fatalf("not ended: %+v", x.c.stats)
		}
		if x.s.step == stepFix {
			fixed++
			row := x.s.rep.fixed.at / l.RowSize()
			if region := l.regionOf(l.lockOf(row)); !leaseSet(le.Uint64(x.table.leases[8*region:])) {
				t.Errorf("row %d is repaired without the lease of region %d", row, region)
			}
		}
		x.answer(now, nothing)
	}
	values, err := x.table.Check(false)
	if err != nil || len(values) != 1 || values[k][0] != 9 || fixed != 1 || x.c.stats.Repaired != 2 {
		t.Errorf("%v, %v, %d fixed, %+v", err, values, fixed, x.c.stats)
	}
}
