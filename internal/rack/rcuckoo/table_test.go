package rcuckoo

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/quillon/quillon/internal/rack/onesided"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/rack/rnic"
)

// Values of the reference implementation (github.com/cespare/xxhash).
func TestXXH64(t *testing.T) {
	for _, c := range []struct {
		key        uint32
		zero, sevn uint64
	}{
		{0, 0x3aefa6fd5cf2deb4, 0x94c66b00e25404d3},
		{1, 0xf42f94001fcb5351, 0x8ab4150960938d95},
		{0xdeadbeef, 0xb42061f1515d4240, 0x5066bc41642e849e},
		{12345678, 0x26f0256fa16cd04a, 0xff0630c80482d5f9},
	} {
		if a, b := xxh64(c.key, 0), xxh64(c.key, 7); a != c.zero || b != c.sevn {
			t.Errorf("%#x: %#x %#x", c.key, a, b)
		}
	}
}

func TestLayout(t *testing.T) {
	for _, c := range []struct {
		l    Layout
		size int
	}{{Layout{Rows: 4}, 80}, {Layout{Rows: 4, Form: Code}, 64}, {Layout{Rows: 4, Wide: true}, 144}} {
		l, err := c.l.complete()
		if err != nil || l.RowSize() != c.size {
			t.Errorf("%+v: rows of %d bytes, %v", c.l, l.RowSize(), err)
		}
	}
	l, _ := Layout{Rows: 4}.complete()
	m := l.image(make([]byte, 80))
	m.put(1, cell{Key: 0x01020304, inline: [8]byte{9, 8, 7, 6}})
	if m.seal(); string(m.b[8:16]) != "\x04\x03\x02\x01\x09\x08\x07\x06" || m.b[64] != 1 || !m.whole() || m.find(0x01020304) != 1 || m.hole() != 0 {
		t.Errorf("% x", m.b)
	}
	for i := range 80 { // every byte matters
		m.b[i] ^= 0x40
		if m.whole() {
			t.Errorf("byte %d does not matter", i)
		}
		m.b[i] ^= 0x40
	}
	w, _ := Layout{Rows: 4, Wide: true, Extents: 8}.complete()
	m = w.image(make([]byte, w.RowSize()))
	m.put(7, cell{Key: 5, extent: true, size: 1001, at: 0x123456789A})
	if e := m.get(7); !e.extent || e.size != 1008 || e.at != 0x123456789A || e.Key != 5 || m.b[7*16]&1 != 1 {
		t.Errorf("%+v", e)
	}
	for _, bad := range []Layout{{}, {Rows: 3}, {Rows: 4, Form: 2}, {Rows: 4, Factor: 1}, {Rows: 4, RowsPerLock: -1}, {Rows: 4, LocksPerMessage: 3}, {Rows: 4, Locks: 65}, {Rows: 4, Regions: 129}, {Rows: 4, Extents: 8}} {
		if _, err := NewTable(bad); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

// Both forms of the hash give rows in the table; the other row of the other row is the first; the code's rows
// are odd and even.
func TestRows(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l, err := Layout{
			Rows: 2 * rapid.IntRange(1, 1<<20).Draw(t, "rows"), Hashing: Hashing(rapid.IntRange(0, 1).Draw(t, "hashing")),
			Independent: rapid.Bool().Draw(t, "independent"), Factor: rapid.Float64Range(1.1, 4).Draw(t, "factor"),
		}.complete()
		if err != nil {
			t.Fatal(err)
		}
		key := rapid.Uint32().Draw(t, "key")
		a, b := l.RowsOf(key)
		if a < 0 || b < 0 || a >= l.Rows || b >= l.Rows || l.other(key, a) != b || l.other(key, b) != a {
			t.Fatalf("%d %d", a, b)
		}
		if l.Hashing == HashCode && (a%2 != 1 || b%2 != 0) {
			t.Fatalf("%d %d", a, b)
		}
	})
	if p := fastPow(2.3, 2.3); p < 6 || p > 8 {
		t.Errorf("2.3^2.3 = %v", p)
	}
}

// A table that is filled with any search has every key, and is full only when at least 85 % of the entries
// are used.
func TestFill(t *testing.T) {
	for _, s := range []Search{BFS, AStar, DFS} {
		for _, l := range []Layout{{Rows: 512}, {Rows: 512, Hashing: HashCode, Form: Code}, {Rows: 512, Independent: true}} {
			table, err := NewTable(l)
			if err != nil {
				t.Fatal(err)
			}
			f, n := table.Finder(s, 1), uint32(0)
			for ; ; n++ {
				if _, err = table.InsertNew(n+1, []byte{byte(n), byte(n >> 8), 0, 0}, f); err != nil {
					break
				}
			}
			values, wrong := table.Check(false)
			if !errors.Is(err, ErrFull) || wrong != nil || len(values) != int(n) || n < 512*8*85/100 {
				t.Errorf("%v, %+v: %d keys of %d, %v, %v", s, l, len(values), n, err, wrong)
			}
			for k, v := range values {
				if uint32(le.Uint32(v)) != k-1 {
					t.Fatalf("key %d: % x", k, v)
				}
			}
		}
	}
}

// The check must be able to fail.
func TestCheckFindsDamage(t *testing.T) {
	for _, c := range []struct {
		why    string
		damage func(t *Table)
	}{
		{"", func(*Table) {}},
		{"torn", func(t *Table) { t.Tear(3) }},
		{"twice", func(t *Table) {
			a, b := t.RowsOf(7)
			t.image(t.row(b)).put(7, cell{Key: 7})
			t.image(t.row(a)).put(7, cell{Key: 7})
			t.image(t.row(a)).seal()
			t.image(t.row(b)).seal()
		}},
		{"not in", func(t *Table) {
			a, b := t.RowsOf(7)
			i := 0
			for i == a || i == b {
				i++
			}
			t.image(t.row(i)).put(7, cell{Key: 7})
			t.image(t.row(i)).seal()
		}},
		{"locks", func(t *Table) { t.locks[9] = 4 }},
		{"lease 2", func(t *Table) { le.PutUint64(t.leases[16:], taken(freeLease(2), 9)) }},
	} {
		table, err := NewTable(Layout{Rows: 16})
		if err != nil {
			t.Fatal(err)
		}
		for k := uint32(1); k <= 7; k++ {
			if _, err := table.Insert(k, []byte{1, 2, 3, 4}); err != nil {
				t.Fatal(err)
			}
		}
		c.damage(table)
		if _, err := table.Check(false); (err == nil) != (c.why == "") || err != nil && !strings.Contains(err.Error(), c.why) {
			t.Errorf("%q: %v", c.why, err)
		}
	}
	if l := taken(taken(freeLease(5), 0xABCDEF), 3); l != 5<<57|1<<56|3<<8|2 {
		t.Errorf("%#x", l)
	}
}

func TestNewClientRefuses(t *testing.T) {
	n, err := rnic.New(rnic.Config{MAC: [6]byte{2}, IP: netip.AddrFrom4([4]byte{10, 0, 0, 1})})
	if err != nil {
		t.Fatal(err)
	}
	dialled := Grant{}
	good := Config{
		Layout: Layout{Rows: 8}, Sessions: 1, CQ: n.CreateCQ(1),
		Dial: func(clock.Time, int) (*rnic.QP, Grant, error) {
			if dialled.Layout.Rows == 0 {
				return nil, dialled, rnic.ErrState
			}
			return nil, dialled, nil
		},
		Next: func(clock.Time, int) (Op, bool) { return Op{}, false },
	}
	if _, err := NewClient(good); err != nil {
		t.Error(err)
	}
	for i, change := range []func(*Config){
		func(c *Config) { c.CQ = nil }, func(c *Config) { c.Dial = nil }, func(c *Config) { c.Next = nil }, func(c *Config) { c.Sessions = 0 },
		func(c *Config) { c.Rows = 0 }, func(c *Config) { c.Cache = -1 }, func(c *Config) { c.FailAfter = -time.Second }, func(c *Config) { c.Search = 3 },
	} {
		c := good
		change(&c)
		if _, err := NewClient(c); err == nil {
			t.Errorf("change %d: no error", i)
		}
	}
	// Invalid keys and values are refused. A server that does not answer is dialled again, and a server with
	// another table is refused for good.
	ops := []Op{{Kind: Read, Key: 0}, {Kind: Read, Key: 1 << 32}, {Kind: 9, Key: 1}, {Kind: Insert, Key: 1, Value: make([]byte, 5)}, {Kind: Update, Key: 1}, {Kind: Read, Key: 5}, {Kind: Read, Key: 6}}
	var errs []error
	good.Next = func(clock.Time, int) (op Op, ok bool) {
		if len(ops) == 0 {
			return op, false
		}
		op, ops = ops[0], ops[1:]
		return op, true
	}
	good.Done = func(r *Result) { errs = append(errs, r.Err) }
	c, err := NewClient(good)
	if err != nil {
		t.Fatal(err)
	}
	c.Step(1000)
	want := []error{ErrKey, ErrKey, nil, ErrValue, ErrValue}
	if len(errs) != len(want) || c.Idle() || c.Deadline() != clock.Time(1000).Add(onesided.RedialAfter) {
		t.Fatalf("%v, dials again at %v", errs, c.Deadline())
	}
	for i := range want {
		if errs[i] == nil || want[i] != nil && !errors.Is(errs[i], want[i]) {
			t.Errorf("operation %d: %v", i, errs[i])
		}
	}
	dialled.Layout = Layout{Rows: 10}
	c.Step(clock.Time(1000).Add(onesided.RedialAfter))
	if len(errs) != 7 || errs[5] == nil || !strings.Contains(errs[5].Error(), "Rows:10") || strings.Contains(errs[5].Error(), "\n") || errs[6] != c.Err() || !c.Idle() {
		t.Errorf("%v", errs)
	}
}

func TestSlab(t *testing.T) {
	s := newSlab(Chunk{At: 100, Size: 64})
	a, ok := s.take(0, 20, time.Second)
	b, ok2 := s.take(0, 24, time.Second)
	if _, ok3 := s.take(0, 8, time.Second); !ok || !ok2 || ok3 || a.At == b.At || a.Size != 32 {
		t.Fatalf("%+v %+v", a, b)
	}
	s.Own(a)
	s.Freed(5, a)
	s.Freed(6, a) // another session has found it free, too
	if !s.Late(func(size int) bool { return size == 32 }) || s.Owned() != 0 {
		t.Errorf("%+v", s)
	}
	if _, ok := s.take(6, 20, time.Second); ok {
		t.Error("somebody may still read it")
	}
	if c, ok := s.take(clock.Time(6).Add(time.Second), 20, time.Second); !ok || c.At != a.At {
		t.Errorf("%+v", c)
	}
	if _, err := getExtent(putExtent(make([]byte, 32), 7, []byte("value")), 8); err == nil {
		t.Error("the value of another key")
	}
}
