package fault

import (
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port/mem"
)

var everything = Mix{
	Links: []string{"c0", "s0"}, Frames: 30, Within: 100, Machines: []string{"c0", "c1", "box"}, Deaths: 3,
	Until: time.Millisecond, Absence: time.Millisecond,
}

func TestRandom(t *testing.T) {
	seen := map[Action]int{}
	for seed := range uint64(200) {
		s := Random(seed, everything)
		if !slices.Equal(s, Random(seed, everything)) {
			t.Fatal("equal seeds, other schedules")
		}
		for _, f := range s {
			seen[f.Action]++
			if f.Action.OfFrame() && (f.Frame < 1 || f.Frame > 108 || !slices.Contains(everything.Links, f.Where)) || f.At < 0 || f.By < 0 || f.By >= 50*time.Microsecond {
				t.Errorf("%v", f)
			}
		}
		back, err := Parse(s.String())
		if err != nil || !slices.Equal(back, s) {
			t.Fatalf("%v: %v became %v", err, s, back)
		}
		m := s.Machines()
		if !slices.IsSortedFunc(m, func(a, b Fault) int { return int(a.At - b.At) }) {
			t.Errorf("%v", m)
		}
	}
	for a := range numActions {
		if seen[a] == 0 {
			t.Errorf("%v never happens", a)
		}
	}
	if s := Random(1, Mix{}); len(s) != 0 {
		t.Errorf("%v", s)
	}
}

func TestParseRefuses(t *testing.T) {
	for _, line := range []string{
		"break c0 up 1", "drop c0 up", "drop c0 up 0", "drop c0 up -1", "drop c0 sideways 1", "drop c0 up 1 2",
		"delay c0 up 1", "delay c0 up 1 by x", "delay c0 up 1 at 3s", "corrupt c0 up 1 byte x", "kill c0", "kill c0 at -1s",
		"kill c0 by 1s", "drop c0 up 99999999999",
	} {
		if _, err := Parse("\n" + line + "\n"); err == nil || !strings.Contains(err.Error(), "line 2") {
			t.Errorf("%s: %v", line, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("drop c0 up 12\ndelay s0 down 7 by 40µs\n\ncorrupt s0 up 3 byte 60")
	f.Add("kill c1 at 120µs\nrestart c1 at 2ms\nduplicate in up 1 by 0s")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := Parse(text)
		if err != nil {
			return
		}
		back, err := Parse(s.String())
		if err != nil || !slices.Equal(s, back) {
			t.Errorf("%v: %q became %q", err, s, back)
		}
	})
}

// The run fails exactly when certain faults are all there. Shrink leaves only those.
func TestShrink(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s Schedule
		for i := range rapid.IntRange(1, 40).Draw(t, "faults") {
			s = append(s, Fault{Where: "c0", Frame: i + 1})
		}
		guilty := map[int]bool{}
		for range rapid.IntRange(0, 5).Draw(t, "guilty") {
			guilty[rapid.IntRange(1, len(s)).Draw(t, "frame")] = true
		}
		tries := 0
		got := Shrink(s, 0, func(s Schedule) bool {
			tries++
			n := 0
			for _, f := range s {
				if guilty[f.Frame] {
					n++
				}
			}
			return n == len(guilty)
		})
		if len(got) != len(guilty) {
			t.Fatalf("%d faults left of %d, %d are guilty", len(got), len(s), len(guilty))
		}
		if tries > 40+len(s)*(len(guilty)+2)*2 {
			t.Errorf("%d tries", tries)
		}
	})
	s := Random(7, everything)
	for len(s) < 8 {
		s = append(s, s...)
	}
	n := 0
	if Shrink(s, 3, func(Schedule) bool { n++; return false }); n > 3 {
		t.Errorf("%d tries of 3", n)
	}
}

// bench is a cable under test with a port at each end.
type bench struct {
	t     *testing.T
	clk   *clock.Manual
	pool  *packet.Pool
	wire  *Wire
	sides [2]*mem.Port // on the clients' side and on the servers'
}

func newBench(t *testing.T, text string) *bench {
	s, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	pool, err := packet.NewPool(64, 512, nil)
	if err != nil {
		t.Fatal(err)
	}
	x := &bench{t: t, clk: clock.NewManual(1000), pool: pool}
	a, b := mem.NewWire("a", "a-far", pool, 8, x.clk)
	c, d := mem.NewWire("b", "b-far", pool, 8, x.clk)
	x.sides = [2]*mem.Port{a, c}
	x.wire = NewWire("l", b, d, s)
	return x
}

func (x *bench) send(d Dir, first byte) {
	b := x.pool.Get()
	b.SetBytes(append(make([]byte, 20), first))
	var batch packet.Batch
	batch.Add(b)
	if _, err := x.sides[d].Tx(&batch); err != nil || batch.Len() > 0 {
		x.t.Fatal("no room")
	}
}

// got breathes at a time and returns the last byte of each frame that came out.
func (x *bench) got(d Dir, at clock.Time) string {
	x.clk.Set(at)
	if _, err := x.wire.Breath(at); err != nil {
		x.t.Fatal(err)
	}
	var batch packet.Batch
	if _, err := x.sides[1-d].Rx(&batch); err != nil {
		x.t.Fatal(err)
	}
	s := ""
	for _, b := range batch.Bufs() {
		s += string(b.Bytes()[len(b.Bytes())-1:])
	}
	batch.PutAll()
	return s
}

func TestWire(t *testing.T) {
	x := newBench(t, `drop l up 2
delay l up 3 by 5µs
duplicate l up 4 by 2µs
corrupt l down 1 byte 6
drop other up 1
kill l at 1s`)
	for _, b := range []byte("1234") {
		x.send(Up, b)
	}
	x.send(Down, 0)
	if s := x.got(Up, 2000); s != "14" {
		t.Errorf("%q", s)
	}
	if d := x.wire.Deadline(); d != 4000 {
		t.Errorf("deadline %d", d)
	}
	if s := x.got(Up, 4000); s != "4" {
		t.Errorf("%q", s)
	}
	if s := x.got(Up, 6999) + x.got(Up, 7000); s != "3" {
		t.Errorf("%q", s)
	}
	if s := x.got(Down, 7001); s != "\x40" {
		t.Errorf("%q", s)
	}
	if x.wire.Struck != 4 || x.wire.Lost != 1 || x.wire.Deadline() != clock.Never || x.wire.Held() != 0 {
		t.Errorf("%+v", x.wire)
	}
	if x.pool.InUse() != 0 {
		t.Errorf("%d buffers are gone", x.pool.InUse())
	}
}

// Frames wait in order when the other end has no room, and none is lost.
func TestWireFull(t *testing.T) {
	x := newBench(t, "duplicate l up 1 by 0s")
	want := "0"
	for i := range byte(24) {
		x.send(Up, '0'+i)
		want += string([]byte{'0' + i})
		if i%8 == 7 {
			if _, err := x.wire.Breath(2000); err != nil {
				t.Fatal(err)
			}
		}
	}
	if x.wire.Held() != 25-8 {
		t.Errorf("%d wait", x.wire.Held())
	}
	got := ""
	for range 4 {
		got += x.got(Up, 2000)
	}
	// The copy of the first frame comes behind the frames of its breath.
	if len(got) != len(want) || strings.Replace(got, "0", "", 2) != want[2:] || got[0] != '0' || x.pool.InUse() != 0 {
		t.Errorf("sent %q, got %q, %d in use", want, got, x.pool.InUse())
	}
}
