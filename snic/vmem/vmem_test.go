package vmem

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// bank is another board's memory. Operations are done when the test says so.
type bank struct {
	room    int
	next    Handle
	pages   map[Handle][]byte
	pending []pending
	bad     []string
}

type pending struct {
	op   Op
	h    Handle
	page []byte
	put  bool
	was  []byte // what the page held when its Put began
}

func newBank(room int) *bank { return &bank{room: room, pages: map[Handle][]byte{}} }

func (b *bank) stored() int {
	n := len(b.pages)
	for _, p := range b.pending {
		if p.put {
			n++
		}
	}
	return n
}

func (b *bank) Free() int { return max(0, b.room-b.stored()) }

func (b *bank) Put(op Op, page []byte) (Handle, bool) {
	if b.Free() == 0 {
		return 0, false
	}
	b.next++
	b.pending = append(b.pending, pending{op, b.next, page, true, bytes.Clone(page)})
	return b.next, true
}

func (b *bank) Get(op Op, h Handle, page []byte) {
	b.pending = append(b.pending, pending{op: op, h: h, page: page})
}

func (b *bank) Drop(h Handle) {
	if _, ok := b.pages[h]; !ok {
		b.bad = append(b.bad, fmt.Sprintf("dropped %d, which is not there", h))
	}
	delete(b.pages, h)
}

// finish ends operation i.
func (b *bank) finish(m *Memory, i int, ok bool) {
	p := b.pending[i]
	b.pending = append(b.pending[:i:i], b.pending[i+1:]...)
	if p.put {
		if !bytes.Equal(p.page, p.was) {
			b.bad = append(b.bad, "a page changed while it was swapped out")
		}
		if ok {
			b.pages[p.h] = p.was
		}
	} else if stored := b.pages[p.h]; stored == nil {
		ok = false
	} else if ok {
		copy(p.page, stored)
	} else {
		delete(b.pages, p.h)
	}
	if !m.Done(p.op, ok) {
		b.bad = append(b.bad, "an operation is not known")
	}
	if m.Done(p.op, ok) {
		b.bad = append(b.bad, "an operation was done twice")
	}
}

func (b *bank) drain(m *Memory) {
	for len(b.pending) > 0 {
		b.finish(m, 0, true)
	}
}

func (b *bank) check() error {
	if b.bad != nil {
		return errors.New(strings.Join(b.bad, "; "))
	}
	return nil
}

const small = 64

func memory(t testing.TB, c Config) *Memory {
	t.Helper()
	if c.PageBytes == 0 {
		c.PageBytes = small
	}
	m, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// put writes one byte to a page, waiting as long as it takes.
func put(t testing.TB, m *Memory, b *bank, space, page int, v byte) Status {
	t.Helper()
	for range 100 {
		_, st := m.Write(space, uint64(page*small), []byte{v})
		if st != Wait {
			return st
		}
		if _, ok := m.Next(); !ok {
			b.finish(m, 0, true)
		}
		must(t, m.Check())
	}
	t.Fatal("it waits for ever")
	return Wait
}

func TestFaultsStopOneSpace(t *testing.T) {
	m := memory(t, Config{Pages: 8, Spaces: 5, Tenants: 2})
	for id := range 4 {
		must(t, m.Open(id, id%2, 4))
		must(t, m.Reserve(id, small, small, Read|Write))
		must(t, m.Reserve(id, 2*small, small, Read))
	}
	for _, c := range []struct {
		id int
		do func() (int, Status)
		n  int
		f  Fault
	}{
		{0, func() (int, Status) { return m.Write(0, 2*small-3, make([]byte, 8)) }, 3, Fault{0, 2 * small, Write, Denied}},
		{1, func() (int, Status) { return m.Read(1, 3*small-1, make([]byte, 8)) }, 1, Fault{1, 3 * small, Read, Outside}},
		{2, func() (int, Status) { return m.Read(2, math.MaxUint64-1, make([]byte, 8)) }, 0, Fault{2, math.MaxUint64 - 1, Read, Outside}},
	} {
		n, st := c.do()
		var f Fault
		if err := m.Err(c.id); n != c.n || st != Faulted || !errors.As(err, &f) || f != c.f {
			t.Errorf("space %d: %d, %v, %v; want %d and %v", c.id, n, st, err, c.n, c.f)
		}
		if _, st := m.Read(c.id, small, make([]byte, 1)); st != Faulted {
			t.Errorf("space %d: %v after a fault", c.id, st)
		}
		if id, ok := m.Next(); !ok || id != c.id {
			t.Errorf("told of space %d, %v; want %d", id, ok, c.id)
		}
		if n := m.Counters(c.id).Faults; n != 2 {
			t.Errorf("%d faults of space %d, want 2", n, c.id)
		}
		if err := m.Reserve(c.id, 0, small, Read); err == nil {
			t.Error("a space that has stopped can reserve")
		}
	}
	if n, st := m.Write(3, small, []byte("hello")); n != 5 || st != OK || m.Err(3) != nil {
		t.Errorf("a space without fault: %d, %v, %v", n, st, m.Err(3))
	}
	for _, id := range []int{-1, 4, 5, 1 << 30} {
		if _, st := m.Read(id, 0, make([]byte, 1)); st != Faulted {
			t.Errorf("space %d, of nobody: %v", id, st)
		}
	}
	must(t, m.Close(0))
	must(t, m.Open(0, 1, 2))
	if m.Err(0) != nil {
		t.Error("a fault outlives its space")
	}
	must(t, m.Check())
}

func TestRefusedArguments(t *testing.T) {
	for _, c := range []Config{
		{}, {Pages: 1}, {Pages: 1, Spaces: 1}, {Pages: 1, Spaces: 1, Tenants: 1, PageBytes: 3},
		{Pages: 1, Spaces: 1, Tenants: 1, Remote: newBank(1)}, {Pages: 1, Spaces: 1, Tenants: 1, PageBytes: -4},
		{Pages: 1, Spaces: 1, Tenants: 1, Promise: -1}, {Pages: 1 << 30, Spaces: 1, Tenants: 1},
		{Pages: 2, Spaces: 1, Tenants: 1, PageBytes: 4, Data: make([]byte, 7)}, {Pages: 1, Spaces: 1, Tenants: 1, PageBytes: 4, Clear: -1},
	} {
		if _, err := New(c); err == nil {
			t.Errorf("%+v is accepted", c)
		}
	}
	m := memory(t, Config{Pages: 2, Spaces: 2, Tenants: 2})
	must(t, m.Open(0, 0, 4))
	must(t, m.Reserve(0, 0, small, Read))
	for i, err := range []error{
		m.Open(0, 0, 1), m.Open(2, 0, 1), m.Open(1, 2, 1), m.Open(1, -1, 1), m.Open(1, 0, 0),
		m.Close(1), m.Close(-1), m.Grow(1, 4), m.Grow(2, 4), m.Grow(0, 3), m.Grow(0, maxPages+1), m.Reserve(1, 0, small, Read), m.Reserve(0, 1, small, Read), m.Reserve(0, 0, small, Read),
		m.Reserve(0, small, 7, Read), m.Reserve(0, small, 0, Read), m.Reserve(0, small, -small, Read), m.Reserve(0, small, small, 0),
		m.Reserve(0, small, 4*small, Read), m.Reserve(0, small, small, 9), m.Reserve(0, math.MaxUint64-small+1, small, Read),
		m.Return(0), m.Return(-1), m.Return(9),
		m.SetWeight(0, 0), m.SetWeight(2, 1), m.SetWeight(0, math.NaN()), m.SetOther(0, 2), m.SetOther(-1, 1), m.SetOther(2, 1), m.SetOther(0, math.NaN()), m.Err(1),
	} {
		if err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("case %d: %v", i, err)
		}
	}
	if err := m.Reserve(0, small, 2*small, Read); !errors.Is(err, ErrNoRoom) {
		t.Errorf("more than there is: %v", err)
	}
	if m.Done(0, true) || m.Done(1<<40, true) || m.Done(5, true) {
		t.Error("an operation that never began was done")
	}
	must(t, m.Check())
}

// TestGrow: a space that grows keeps what it has, and has the rest to reserve; one that has stopped does not grow.
func TestGrow(t *testing.T) {
	m := memory(t, Config{Pages: 4, Spaces: 2, Tenants: 2})
	must(t, m.Open(0, 0, 2))
	must(t, m.Reserve(0, 0, 2*small, Read|Write))
	m.Write(0, 0, bytes.Repeat([]byte{0xA5}, 2*small))
	must(t, m.Grow(0, 4))
	must(t, m.Reserve(0, 2*small, 2*small, Read|Write))
	got := make([]byte, 4*small)
	if n, st := m.Read(0, 0, got); n != 4*small || st != OK || !bytes.Equal(got, append(bytes.Repeat([]byte{0xA5}, 2*small), make([]byte, 2*small)...)) {
		t.Errorf("%d, %v: %x", n, st, got)
	}
	m.Read(0, 4*small, got)
	if err := m.Grow(0, 5); err == nil || !strings.Contains(err.Error(), "stopped") {
		t.Error(err)
	}
	must(t, m.Check())
}

// TestZeros: a frame that another used holds zeros, whether it was scrubbed or not.
func TestZeros(t *testing.T) {
	for _, scrub := range []int{0, 10, small, 9 * small} {
		m := memory(t, Config{Pages: 3, Spaces: 1, Tenants: 1})
		secret := bytes.Repeat([]byte{0xA5}, 3*small)
		for range 3 {
			must(t, m.Open(0, 0, 3))
			must(t, m.Reserve(0, 0, 3*small, Read|Write))
			got := make([]byte, 3*small)
			if n, st := m.Read(0, 0, got); n != 3*small || st != OK || !bytes.Equal(got, make([]byte, 3*small)) {
				t.Fatalf("%d, %v: %x", n, st, got)
			}
			m.Write(0, 0, secret)
			must(t, m.Close(0))
			if n := m.Scrub(scrub); n != min(scrub, 3*small) {
				t.Errorf("scrubbed %d bytes", n)
			}
		}
		if _, page, ok := m.Lend(); !ok || !bytes.Equal(page, make([]byte, small)) {
			t.Errorf("lent %x, %v", page, ok)
		}
		must(t, m.Check())
	}
}

// TestScrub: a first touch that would clear more than may be cleared at once waits until that is done bit by bit,
// and nobody sees what another left before.
func TestScrub(t *testing.T) {
	m := memory(t, Config{Pages: 3, Spaces: 2, Tenants: 2, Clear: 16})
	secret := bytes.Repeat([]byte{0xA5}, 2*small)
	must(t, m.Open(0, 0, 3))
	must(t, m.Reserve(0, 0, 2*small, Read|Write))
	if n, st := m.Write(0, 0, secret); n != 2*small || st != OK || m.Used() != 2 {
		t.Fatalf("frames that were never taken hold zeros: %d, %v, %d", n, st, m.Used())
	}
	must(t, m.Close(0))
	must(t, m.Open(1, 1, 3))
	must(t, m.Reserve(1, 0, 3*small, Read|Write))
	got := make([]byte, 3*small)
	if n, st := m.Read(1, 0, got); n != small || st != Wait {
		t.Fatalf("the last frame that was never taken, and then: %d, %v", n, st)
	}
	for _, ok := m.Next(); ok; _, ok = m.Next() { // of pages that were there at once
	}
	told := 0
	for i := range 2 * small / 16 {
		if some, urgent := m.Dirty(); !some || urgent != (told < 2) {
			t.Fatalf("%d: %v, %v", i, some, urgent)
		}
		if n := m.Scrub(16); n != 16 {
			t.Fatalf("cleared %d bytes", n)
		}
		must(t, m.Check())
		id, ok := m.Next()
		if ok != (i%4 == 3) || ok && id != 1 {
			t.Fatalf("%d: told %v", i, ok)
		}
		if ok {
			told++
			n, st := m.Read(1, uint64(told*small), got[told*small:])
			if want := (2 - told) * small; told == 1 && (n != small || st != Wait) || told == 2 && (n != small || st != OK) {
				t.Fatalf("%d bytes, %v, want %d more to come", n, st, want)
			}
		}
	}
	if !bytes.Equal(got, make([]byte, 3*small)) {
		t.Fatalf("it sees what another left: %x", got)
	}
	if some, urgent := m.Dirty(); some || urgent || m.Scrub(100) != 0 {
		t.Error("there is more to clear")
	}
	must(t, m.Check())
}

// TestUnfair: without shares the page goes that was not accessed for longest, whosever it is.
func TestUnfair(t *testing.T) {
	for _, fair := range []bool{true, false, true} {
		b := newBank(10)
		m := memory(t, Config{Pages: 5, Spaces: 2, Tenants: 2, Remote: b}) // one is spare
		m.SetFair(fair)
		for id := range 2 {
			must(t, m.Open(id, id, 8))
			must(t, m.Reserve(id, 0, 4*small, Read|Write))
		}
		for page := range 2 {
			put(t, m, b, 0, page, 1)
		}
		for page := range 4 {
			put(t, m, b, 1, page, 2)
		}
		b.drain(m)
		first, second := m.Counters(0).Resident, m.Counters(1).Resident
		if want := map[bool]int{true: 2, false: 0}[fair]; first != want || second != 4-want {
			t.Errorf("fair %v: the first has %d frames, the second %d", fair, first, second)
		}
		if share := m.Share(1); (share > 0) != fair {
			t.Errorf("fair %v: share %g", fair, share)
		}
		must(t, m.Check())
		must(t, b.check())
	}
}

func TestLeastRecentlyUsedGoes(t *testing.T) {
	b := newBank(10)
	m := memory(t, Config{Pages: 4, Spaces: 2, Tenants: 1, Remote: b}) // one is spare
	must(t, m.Open(0, 0, 8))
	must(t, m.Open(1, 0, 8))
	must(t, m.Reserve(0, 0, 4*small, Read|Write))
	must(t, m.Reserve(1, 0, small, Read|Write))
	put(t, m, b, 0, 0, 10)
	put(t, m, b, 1, 0, 20) // another space of the same tenant: older than page 1
	put(t, m, b, 0, 1, 11)
	put(t, m, b, 0, 0, 12)
	put(t, m, b, 0, 2, 13) // space 1's page goes
	if c := m.Counters(1); c.Resident != 0 || c.Swapped != 1 {
		t.Errorf("the older page of the tenant's other space stays: %+v", c)
	}
	put(t, m, b, 0, 3, 14) // page 1 goes
	for page, want := range []pageState{resident, swapped, resident, resident} {
		if got := m.pager.spaces[0].pages[page].state; got != want {
			t.Errorf("page %d: %d, want %d", page, got, want)
		}
	}
	for page, want := range []byte{12, 11, 13, 14} {
		var got [1]byte
		for {
			_, st := m.Read(0, uint64(page*small), got[:])
			if st == OK {
				break
			} else if st != Wait {
				t.Fatal(st)
			}
			b.finish(m, 0, true)
		}
		if got[0] != want {
			t.Errorf("page %d holds %d, want %d", page, got[0], want)
		}
	}
	must(t, m.Check())
	must(t, b.check())
}

// TestShares: who gives up pages is decided by weights and other shares.
func TestShares(t *testing.T) {
	for _, c := range []struct {
		name   string
		weight [2]float64
		other  [2]float64
		want   [2]int
	}{
		{"equal", [2]float64{1, 1}, [2]float64{}, [2]int{6, 6}},
		{"weights", [2]float64{1, 3}, [2]float64{}, [2]int{3, 9}},
		{"other resource below memory", [2]float64{1, 1}, [2]float64{.5, 0}, [2]int{6, 6}},
		// 12 pages wanted by each are all of the memory; who has all of another
		// resource, and a demand of 12 pages, is no worse off.
		{"whole memory", [2]float64{1, 1}, [2]float64{1, 0}, [2]int{6, 6}},
	} {
		b := newBank(100)
		m := memory(t, Config{Pages: 13, Spaces: 2, Tenants: 2, Remote: b})
		for id := range 2 {
			must(t, m.SetWeight(id, c.weight[id]))
			must(t, m.SetOther(id, c.other[id]))
			must(t, m.Open(id, id, 12))
			must(t, m.Reserve(id, 0, 12*small, Read|Write))
		}
		for id := range 2 { // the second finds all taken by the first
			for page := range 12 {
				put(t, m, b, id, page, 1)
			}
		}
		for range 3 {
			for page := range 12 {
				for id := range 2 {
					put(t, m, b, id, page, 1)
				}
			}
		}
		b.drain(m)
		if got := [2]int{m.Counters(0).Resident, m.Counters(1).Resident}; got != c.want {
			t.Errorf("%s: %v pages, want %v", c.name, got, c.want)
		}
		must(t, m.Check())
	}
	// A tenant that has half of another resource and a quarter of the memory is
	// shrunk before one that has a quarter of the memory alone.
	b := newBank(100)
	m := memory(t, Config{Pages: 17, Spaces: 4, Tenants: 4, Remote: b})
	for id := range 4 {
		must(t, m.Open(id, id, 16))
		must(t, m.Reserve(id, 0, 5*small, Read|Write))
		for page := range 4 {
			put(t, m, b, id, page, 1)
		}
	}
	must(t, m.SetOther(2, .5))
	put(t, m, b, 0, 4, 1)
	if n := m.Counters(2).Resident; n != 3 {
		t.Errorf("the tenant with most of another resource has %d pages, want 3", n)
	}
	if s, u := m.Share(2), m.Share(1); !(s < u) {
		t.Errorf("shares %g and %g", s, u)
	}
}

// TestOwnPageGoes: among tenants that have as much above their share, one that waits gives up a page of
// its own.
func TestOwnPageGoes(t *testing.T) {
	b := newBank(100)
	m := memory(t, Config{Pages: 6, Spaces: 2, Tenants: 2, Remote: b})
	for id := range 2 {
		must(t, m.Open(id, id, 3))
		must(t, m.Reserve(id, 0, 3*small, Read|Write))
	}
	for page := range 3 {
		put(t, m, b, 0, page, 1)
	}
	for page := range 3 {
		put(t, m, b, 1, page, 1)
	}
	if got := [2]int{m.Counters(0).Resident, m.Counters(1).Resident}; got != [2]int{3, 2} {
		t.Errorf("%v pages", got)
	}
}

// TestNobodyHasRoom: new spaces are refused, and pages beyond what is promised; all
// that is swapped out can still be had.
func TestNobodyHasRoom(t *testing.T) {
	b := newBank(3)
	m := memory(t, Config{Pages: 3, Spaces: 2, Tenants: 1, Remote: b, Promise: 1})
	must(t, m.Open(0, 0, 9))
	must(t, m.Open(1, 0, 9))
	must(t, m.Reserve(0, 0, 6*small, Read|Write)) // 2 here, 3 there, 1 beyond
	if err := m.Reserve(1, 0, small, Read); !errors.Is(err, ErrNoRoom) {
		t.Errorf("a new space is not refused: %v", err)
	}
	for page := range 5 {
		if st := put(t, m, b, 0, page, byte(page)); st != OK {
			t.Fatalf("page %d: %v", page, st)
		}
	}
	b.drain(m)
	if b.Free() != 0 {
		t.Fatalf("there is room for %d", b.Free())
	}
	if st := put(t, m, b, 0, 5, 5); st != Refused {
		t.Errorf("a page too many: %v", st)
	}
	if _, ok := m.Next(); ok && m.pager.spaces[0].want >= 0 {
		t.Error("who was refused waits")
	}
	for round := range 4 {
		for page := range 5 {
			if st := put(t, m, b, 0, page, byte(page+round)); st != OK {
				t.Fatalf("round %d, page %d: %v", round, page, st)
			}
			must(t, m.Check())
		}
	}
	b.room++
	if st := put(t, m, b, 0, 5, 5); st != OK {
		t.Errorf("with room: %v", st)
	}
	if m.Counters(0).Refused == 0 {
		t.Error("not counted")
	}
	must(t, b.check())
}

func TestLossStopsOwners(t *testing.T) {
	b := newBank(10)
	m := memory(t, Config{Pages: 3, Spaces: 3, Tenants: 3, Remote: b})
	for id := range 3 {
		must(t, m.Open(id, id, 2))
		must(t, m.Reserve(id, 0, small, Read|Write))
		put(t, m, b, id, 0, 1)
	}
	b.drain(m)
	at := -1
	for id := range 3 {
		if m.Counters(id).Swapped == 1 {
			at = id
		}
	}
	gone := m.pager.spaces[at].pages[0].handle
	delete(b.pages, gone)
	m.Lose(func(h Handle) bool { return h == gone })
	for id := range 3 {
		var f Fault
		if err := m.Err(id); (err != nil) != (id == at) || err != nil && (!errors.As(err, &f) || f.Why != Lost || f.Space != at) {
			t.Errorf("space %d: %v", id, err)
		}
	}
	must(t, m.Check())
	must(t, b.check())
}

func TestLoans(t *testing.T) {
	m := memory(t, Config{Pages: 4, Spaces: 1, Tenants: 1})
	must(t, m.Open(0, 0, 4))
	must(t, m.Reserve(0, 0, small, Read|Write))
	loan, page, ok := m.Lend()
	if !ok || m.Free() != 2 {
		t.Fatalf("%v, %d are free", ok, m.Free())
	}
	page[3] = 7
	if m.Lent(loan)[3] != 7 || m.Lent(loan+1) != nil || m.Lent(-1) != nil {
		t.Error("not the loan")
	}
	m.Lend()
	m.Lend()
	if _, _, ok := m.Lend(); ok {
		t.Error("what is reserved was lent")
	}
	if _, st := m.Write(0, 0, []byte{1}); st != OK {
		t.Errorf("what was reserved cannot be had: %v", st)
	}
	must(t, m.Return(loan))
	if m.Return(loan) == nil {
		t.Error("returned twice")
	}
	must(t, m.Check())
}

// TestSingleFrame: an access over pages goes on with one frame.
func TestSingleFrame(t *testing.T) {
	b := newBank(10)
	m := memory(t, Config{Pages: 2, Spaces: 2, Tenants: 2, Remote: b})
	data := [2][]byte{bytes.Repeat([]byte("abc"), small), bytes.Repeat([]byte("xy"), small)}
	done := [2]int{}
	for id := range 2 {
		must(t, m.Open(id, id, 4))
		must(t, m.Reserve(id, 0, 4*small, Read|Write))
	}
	for round := 0; done[0] < len(data[0]) || done[1] < len(data[1]); round++ {
		if round > 1000 {
			t.Fatalf("no progress: %v", done)
		}
		for id := range 2 {
			n, st := m.Write(id, uint64(5+done[id]), data[id][done[id]:])
			done[id] += n
			if st == Faulted || st == Refused {
				t.Fatal(st)
			}
		}
		if len(b.pending) > 0 {
			b.finish(m, 0, true)
		}
		for id, ok := m.Next(); ok; id, ok = m.Next() {
			n, _ := m.Write(id, uint64(5+done[id]), data[id][done[id]:])
			done[id] += n
		}
	}
	must(t, m.Check())
}

// model is what a space should hold: plain bytes.
type model struct {
	open, stopped bool
	tenant        int
	perm          []Perm
	bytes         []byte
	doing         *doing // an access that waits
}

type doing struct {
	va   int
	data []byte // written, or nil
	got  []byte
	n    int
}

// TestModel does random things and compares all that is read with plain bytes.
func TestModel(t *testing.T) {
	const virtual = 6
	swaps, losses, faults, waits, scrubs := 0, 0, 0, 0, 0
	run := func(t *rapid.T) {
		var b *bank
		c := Config{PageBytes: 16, Pages: rapid.IntRange(2, 8).Draw(t, "frames"), Spaces: 4, Tenants: 3, Promise: rapid.IntRange(0, 4).Draw(t, "promise"), Clear: rapid.IntRange(0, 16).Draw(t, "clear")}
		if rapid.IntRange(0, 4).Draw(t, "alone") > 0 {
			b = newBank(rapid.IntRange(0, 12).Draw(t, "room"))
			c.Remote = b
		}
		m, err := New(c)
		if err != nil {
			t.Fatal(err)
		}
		var spaces [4]model
		loans := map[int][]byte{}
		for id := range 3 {
			spaces[id] = model{open: true, tenant: id, perm: make([]Perm, virtual), bytes: make([]byte, virtual*16)}
			if err := m.Open(id, id, virtual); err != nil {
				t.Fatal(err)
			}
			n := min(m.Room(), rapid.IntRange(0, virtual).Draw(t, "reserved"))
			for i := range n {
				spaces[id].perm[i] = Read | Write
			}
			if n > 0 && m.Reserve(id, 0, n*16, Read|Write) != nil {
				t.Fatal("not reserved")
			}
		}
		check := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		// lost are the owners of handles that the bank loses.
		owner := func(h Handle) int {
			for id := range m.pager.spaces {
				for _, e := range m.pager.spaces[id].pages {
					if e.handle == h && (e.state == swapped || e.state == arriving) {
						return id
					}
				}
			}
			return -1
		}
		// step goes on with what a space does.
		step := func(id int) {
			s := &spaces[id]
			d := s.doing
			if d == nil {
				return
			}
			var n int
			var st Status
			want := Read
			if d.data != nil {
				want = Write
				n, st = m.Write(id, uint64(d.va+d.n), d.data[d.n:])
				copy(s.bytes[min(d.va+d.n, len(s.bytes)):], d.data[d.n:d.n+n])
			} else {
				n, st = m.Read(id, uint64(d.va+d.n), d.got[d.n:])
				if !s.stopped && !bytes.Equal(d.got[d.n:d.n+n], s.bytes[min(d.va+d.n, len(s.bytes)):min(d.va+d.n+n, len(s.bytes))]) {
					t.Fatalf("space %d at %d: read %x, want %x", id, d.va+d.n, d.got[d.n:d.n+n], s.bytes[d.va+d.n:])
				}
			}
			d.n += n
			at := (d.va + d.n) / 16
			bad := d.n < max(len(d.data), len(d.got)) && (at >= virtual || s.perm[at]&want == 0)
			switch st {
			case OK:
				if d.n != max(len(d.data), len(d.got)) {
					t.Fatal("ok, but not all")
				}
				s.doing = nil
			case Wait:
				waits++
				if bad {
					t.Fatal("it waits for what it may not do")
				}
			case Refused:
				if bad || len(pendingOf(b)) > 0 && b.Free() > 0 && m.Free() > 0 {
					t.Fatal("refused")
				}
				s.doing = nil
			case Faulted:
				if !bad && !s.stopped {
					t.Fatalf("faulted: %v", m.Err(id))
				}
				faults++
				s.stopped, s.doing = true, nil
			}
		}
		wake := func() {
			for id, ok := m.Next(); ok; id, ok = m.Next() {
				step(id)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"open": func(t *rapid.T) {
				id := rapid.IntRange(0, 3).Draw(t, "space")
				if spaces[id].open {
					t.Skip()
				}
				tenant := rapid.IntRange(0, 2).Draw(t, "tenant")
				check(m.Open(id, tenant, virtual))
				spaces[id] = model{open: true, tenant: tenant, perm: make([]Perm, virtual), bytes: make([]byte, virtual*16)}
			},
			"grow": func(t *rapid.T) { // behind what the model has
				id, more := rapid.IntRange(0, 3).Draw(t, "space"), rapid.IntRange(-1, 2).Draw(t, "pages")
				if err := m.Grow(id, len(m.pager.spaces[id].pages)+more); (err == nil) != (spaces[id].open && !spaces[id].stopped && more >= 0) {
					t.Fatal(err)
				}
			},
			"close": func(t *rapid.T) {
				id := rapid.IntRange(0, 3).Draw(t, "space")
				if rapid.IntRange(0, 3).Draw(t, "really") > 0 {
					t.Skip()
				}
				before, frees := m.Room(), m.Frees(id)
				exact := before > 0 && m.pager.first < 0 && (b == nil || b.room >= b.stored())
				if err := m.Close(id); (err == nil) != spaces[id].open {
					t.Fatal(err)
				}
				if after := m.Room(); exact && after != before+frees {
					t.Fatalf("there was room for %d pages, closing a space frees %d, and then there is room for %d", before, frees, after)
				}
				spaces[id] = model{}
			},
			"reserve": func(t *rapid.T) {
				id := rapid.IntRange(0, 3).Draw(t, "space")
				from := rapid.IntRange(0, virtual-1).Draw(t, "from")
				n := rapid.IntRange(1, virtual-from).Draw(t, "pages")
				perm := Perm(rapid.IntRange(1, 3).Draw(t, "perm"))
				s := &spaces[id]
				ok := s.open && !s.stopped && n <= m.Room()
				for i := from; i < from+n && ok; i++ {
					ok = s.perm[i] == 0
				}
				if err := m.Reserve(id, uint64(from*16), n*16, perm); (err == nil) != ok {
					t.Fatalf("%v, want %v", err, ok)
				}
				for i := from; i < from+n && ok; i++ {
					s.perm[i] = perm
				}
			},
			"access": func(t *rapid.T) {
				for range rapid.IntRange(1, 8).Draw(t, "accesses") {
					id := rapid.IntRange(0, 3).Draw(t, "space")
					s := &spaces[id]
					if !s.open || s.doing != nil {
						continue
					}
					// Mostly where it is allowed.
					va := rapid.IntRange(0, virtual*16+3).Draw(t, "va")
					n := rapid.IntRange(1, 40).Draw(t, "bytes")
					want := Perm(rapid.IntRange(1, 2).Draw(t, "write"))
					if rapid.IntRange(0, 9).Draw(t, "stray") > 0 {
						for i := range n {
							if at := (va + i) / 16; at >= virtual || s.perm[at]&want == 0 {
								n = i
								break
							}
						}
					}
					if n == 0 {
						continue
					}
					s.doing = &doing{va: va}
					if want == Write {
						s.doing.data = rapid.SliceOfN(rapid.Byte(), n, n).Draw(t, "data")
					} else {
						s.doing.got = make([]byte, n)
					}
					step(id)
					wake()
				}
			},
			"done": func(t *rapid.T) {
				if b == nil || len(b.pending) == 0 {
					t.Skip()
				}
				i := rapid.IntRange(0, len(b.pending)-1).Draw(t, "operation")
				ok := rapid.IntRange(0, 9).Draw(t, "ok") > 0
				if p := b.pending[i]; !p.put && (!ok || b.pages[p.h] == nil) {
					losses++
					if id := owner(p.h); id >= 0 {
						spaces[id].stopped = true
					}
				}
				swaps++
				b.finish(m, i, ok)
				wake()
			},
			"lose": func(t *rapid.T) {
				if b == nil || len(b.pages) == 0 || rapid.IntRange(0, 4).Draw(t, "really") > 0 {
					t.Skip()
				}
				bit := Handle(rapid.IntRange(0, 1).Draw(t, "board"))
				for h := range b.pages {
					if h&1 == bit {
						if id := owner(h); id >= 0 && m.pager.spaces[id].open {
							gets := false
							for _, p := range b.pending {
								gets = gets || p.h == h
							}
							if !gets {
								spaces[id].stopped = true
							}
						}
						delete(b.pages, h)
					}
				}
				losses++
				// A page whose owner is gone is nobody's; Drop of it is not asked for.
				m.Lose(func(h Handle) bool { return h&1 == bit })
				wake()
			},
			"room":  func(t *rapid.T) { setRoom(b, rapid.IntRange(0, 12).Draw(t, "room")) },
			"scrub": func(t *rapid.T) { m.Scrub(rapid.IntRange(0, 40).Draw(t, "bytes")); wake() },
			"fair":  func(t *rapid.T) { m.SetFair(rapid.Bool().Draw(t, "fair")) },
			"tenant": func(t *rapid.T) {
				id := rapid.IntRange(0, 2).Draw(t, "tenant")
				check(m.SetWeight(id, rapid.Float64Range(.25, 4).Draw(t, "weight")))
				check(m.SetOther(id, rapid.Float64Range(0, 1).Draw(t, "other")))
			},
			"move": func(t *rapid.T) {
				id, tenant := rapid.IntRange(0, 3).Draw(t, "space"), rapid.IntRange(0, 3).Draw(t, "tenant")
				if err := m.Move(id, tenant); (err == nil) != (spaces[id].open && tenant < 3) {
					t.Fatal(err)
				} else if err == nil {
					spaces[id].tenant = tenant
				}
				wake()
			},
			"lend": func(t *rapid.T) {
				if loan, page, ok := m.Lend(); ok {
					if !bytes.Equal(page, make([]byte, 16)) {
						t.Fatal("lent with what another left")
					}
					copy(page, fmt.Sprintf("loan %d", loan))
					loans[loan] = bytes.Clone(page)
				}
			},
			"return": func(t *rapid.T) {
				for loan := range loans {
					check(m.Return(loan))
					delete(loans, loan)
					break
				}
				wake()
			},
			"": func(t *rapid.T) {
				wake()
				check(m.Check())
				if _, urgent := m.Dirty(); urgent {
					scrubs++
				} else if m.pager.first >= 0 && m.pager.out+m.pager.in == 0 {
					t.Fatal("somebody waits, and nothing is under way")
				}
				for f := range m.pager.frames.all {
					e, zeros := &m.pager.frames.all[f], 0
					if e.state == clean {
						zeros = 16
					} else if e.state == dirty {
						zeros = int(e.stamp)
					}
					if !bytes.Equal(m.pager.frames.bytes(int32(f))[:zeros], make([]byte, zeros)) {
						t.Fatalf("frame %d is not clear: %x", f, m.pager.frames.bytes(int32(f)))
					}
				}
				if b != nil {
					check(b.check())
					if n := countSwapped(m); n+orphans(b, m) != b.stored() {
						t.Fatalf("%d pages elsewhere, which has %d", n, b.stored())
					}
				}
				for loan, want := range loans {
					if !bytes.Equal(m.Lent(loan), want) {
						t.Fatalf("loan %d holds %x", loan, m.Lent(loan))
					}
				}
				for id := range spaces {
					if spaces[id].open && spaces[id].stopped != (m.Err(id) != nil) {
						t.Fatalf("space %d: %v, want stopped %v", id, m.Err(id), spaces[id].stopped)
					}
				}
			},
		})
		// All that waits ends.
		for i := 0; ; i++ {
			if i > 1000 {
				t.Fatal("it swaps for ever")
			}
			if _, urgent := m.Dirty(); urgent {
				m.Scrub(7)
				wake()
				continue
			}
			if b == nil || len(b.pending) == 0 {
				break
			}
			if p := b.pending[0]; !p.put && b.pages[p.h] == nil {
				if id := owner(p.h); id >= 0 {
					spaces[id].stopped = true
				}
			}
			b.finish(m, 0, true)
			wake()
		}
		for id := range spaces {
			if spaces[id].doing != nil {
				t.Fatalf("space %d waits, and nothing is under way", id)
			}
			if spaces[id].open {
				check(m.Close(id))
			}
		}
		for b != nil && len(b.pending) > 0 { // what was on its way for nobody
			b.finish(m, 0, true)
		}
		check(m.Check())
		if m.pager.frames.free+len(loans) != len(m.pager.frames.all) || m.pager.promised != 0 || m.pager.shares.held != 0 {
			t.Fatalf("%d frames of %d are free, %d promised, %d held", m.pager.frames.free, len(m.pager.frames.all), m.pager.promised, m.pager.shares.held)
		}
		if b != nil && len(b.pages) != 0 {
			t.Fatalf("%d pages are left elsewhere", len(b.pages))
		}
	}
	for range 20 {
		rapid.Check(t, run)
	}
	if swaps == 0 || losses == 0 || faults == 0 || waits == 0 || scrubs == 0 {
		t.Errorf("%d swaps, %d losses, %d faults, %d waits, %d for Scrub: want some of each", swaps, losses, faults, waits, scrubs)
	}
}

func setRoom(b *bank, n int) {
	if b != nil {
		b.room = n
	}
}

func pendingOf(b *bank) []pending {
	if b == nil {
		return nil
	}
	return b.pending
}

// countSwapped is how many pages of open spaces are elsewhere, on their way
// there or back.
func countSwapped(m *Memory) (n int) {
	for id := range m.pager.spaces {
		for _, e := range m.pager.spaces[id].pages {
			if e.state == swapped || e.state == leaving || e.state == arriving {
				n++
			}
		}
	}
	return n
}

// orphans is how many pages are under way for nobody, less those under way to
// here that were lost meanwhile.
func orphans(b *bank, m *Memory) (n int) {
	for f := range m.pager.frames.all {
		if e := &m.pager.frames.all[f]; e.space < 0 && (e.state == out || e.state == in) {
			n++
		}
	}
	for _, p := range b.pending {
		if !p.put && b.pages[p.h] == nil {
			n--
		}
	}
	return n
}

func TestNoAllocation(t *testing.T) {
	b := newBank(0)
	m := memory(t, Config{Pages: 64, Spaces: 2, Tenants: 2, Remote: b})
	for id := range 2 {
		must(t, m.Open(id, id, 40))
		must(t, m.Reserve(id, 0, 30*small, Read|Write))
	}
	buf := make([]byte, 100)
	at := 0
	if n := testing.AllocsPerRun(1000, func() {
		at = (at + 37) % (29 * small)
		m.Write(0, uint64(at), buf)
		m.Read(1, uint64(at), buf[:50])
		m.Share(0)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if n := testing.AllocsPerRun(10, func() {
		m.Read(1, 1<<40, buf) // faults
		m.Next()
	}); n != 0 {
		t.Errorf("%v allocations of a fault", n)
	}
}

func BenchmarkHit(b *testing.B) {
	const pages = 64
	for _, c := range []struct {
		name string
		step int
	}{{"same", 1}, {"another", PageBytes + 64}} {
		b.Run(c.name, func(b *testing.B) {
			m := memory(b, Config{PageBytes: PageBytes, Pages: pages, Spaces: 1, Tenants: 1})
			must(b, m.Open(0, 0, pages))
			must(b, m.Reserve(0, 0, pages*PageBytes, Read|Write))
			va := 0
			b.ReportAllocs()
			for b.Loop() {
				if _, st := m.Page(0, uint64(va), Read); st != OK {
					b.Fatal(st)
				}
				if va += c.step; va >= pages*PageBytes {
					va -= pages * PageBytes
				}
			}
		})
	}
}

// BenchmarkVictim is what deciding who gives up a page takes.
func BenchmarkVictim(b *testing.B) {
	for _, tenants := range []int{16, 256} {
		b.Run(fmt.Sprint(tenants), func(b *testing.B) {
			r := newBank(0)
			m := memory(b, Config{Pages: 4*tenants + 1, Spaces: tenants, Tenants: tenants, Remote: r})
			for id := range tenants {
				must(b, m.Open(id, id, 9))
				must(b, m.Reserve(id, 0, 4*small, Read|Write))
				for page := range 4 {
					put(b, m, r, id, page, 1)
				}
			}
			m.pager.shares.tenants[0].held++
			m.pager.shares.held++
			b.ReportAllocs()
			for b.Loop() {
				if m.pager.victim() < 0 {
					b.Fatal("nobody")
				}
			}
		})
	}
}

// TestPermissionOfResidentPage: a page that is there is not for everything.
func TestPermissionOfResidentPage(t *testing.T) {
	m := memory(t, Config{Pages: 2, Spaces: 1, Tenants: 1})
	must(t, m.Open(0, 0, 2))
	must(t, m.Reserve(0, 0, small, Read))
	if _, st := m.Page(0, 5, Read); st != OK {
		t.Fatal(st)
	}
	for i, p := range []Perm{Write, Read | Write} {
		must(t, m.Close(0))
		must(t, m.Open(0, 0, 2))
		must(t, m.Reserve(0, 0, small, Read))
		if i > 0 {
			m.Page(0, 5, Read)
		}
		if _, st := m.Page(0, 5, p); st != Faulted {
			t.Errorf("permission %d: %v", p, st)
		}
	}
}

// TestTold: a page that came is not taken away before its space was told, and
// who needs a frame meanwhile waits. A space that stops waits no more.
func TestTold(t *testing.T) {
	b := newBank(9)
	m := memory(t, Config{Pages: 2, Spaces: 3, Tenants: 3, Remote: b})
	for id := range 3 {
		must(t, m.Open(id, id, 1))
		must(t, m.Reserve(id, 0, small, Read))
	}
	access := func(id int) Status { _, st := m.Page(id, 0, Read); return st }
	if access(0) != OK || access(1) != Wait {
		t.Fatal("not as wanted")
	}
	b.finish(m, 0, true) // the page of 0 is gone, 1 has one
	if st := access(2); st != Wait || len(b.pending) != 0 {
		t.Fatalf("%v, and %d under way", st, len(b.pending))
	}
	for _, want := range []int{0, 1} {
		if id, ok := m.Next(); !ok || id != want {
			t.Fatalf("told of %d, %v, want %d", id, ok, want)
		}
	}
	if st := access(1); st != OK {
		t.Fatal(st)
	}
	if _, ok := m.Next(); ok || len(b.pending) != 1 {
		t.Fatalf("%d under way, want 1", len(b.pending))
	}
	m.Page(2, small, Read)
	if m.pager.first >= 0 || m.Held(2) != 0 {
		t.Error("a space that has stopped waits")
	}
	b.drain(m)
	must(t, m.Check())
	must(t, b.check())
}

// endless is a Remote that has room without bounds.
type endless struct{}

func (endless) Free() int                          { return math.MaxInt }
func (endless) Put(Op, []byte) (h Handle, ok bool) { return 1, true }
func (endless) Get(Op, Handle, []byte)             {}
func (endless) Drop(Handle)                        {}

// TestHugeNumbers: room without bounds is room, memory beyond bounds an error.
func TestHugeNumbers(t *testing.T) {
	for name, c := range map[string]Config{
		"remote":  {PageBytes: 64, Pages: 4, Spaces: 1, Tenants: 1, Remote: endless{}},
		"promise": {PageBytes: 64, Pages: 4, Spaces: 1, Tenants: 1, Promise: math.MaxInt},
		"both":    {PageBytes: 64, Pages: 4, Spaces: 1, Tenants: 1, Remote: endless{}, Promise: math.MaxInt},
	} {
		m, err := New(c)
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Open(0, 0, 16); err != nil {
			t.Fatal(err)
		}
		if err := m.Reserve(0, 0, 16*64, Read|Write); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := New(Config{PageBytes: maxPage, Pages: maxPages, Spaces: 1, Tenants: 1}); err == nil {
		t.Error("16 PiB of memory")
	}
}
