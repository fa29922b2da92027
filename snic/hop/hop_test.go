package hop

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"
	"pgregory.net/rapid"

	"github.com/quillon/quillon/nf/clock"
)

// faults are what a cable does, in parts of 1000.
type faults struct{ lose, damage, repeat, delay int }

type flight struct {
	at    clock.Time
	bytes []byte
}

// end is a Link, its side of the cable, and its user.
type end struct {
	*Link
	toSend   uint32 // frames given to Send
	got      []uint32
	held     []int      // lengths of frames that were not consumed
	slow     bool       // consumes now and then only
	stuck    bool       // consumes nothing
	free     clock.Time // when the cable takes the next frame
	incoming []flight
	most     int // of Stats.Queued
}

// cable joins two ends, in virtual time.
type cable struct {
	t    fataler
	now  clock.Time
	rng  *rand.Rand
	ends [2]*end
	bad  faults
	buf  [longest + Overhead]byte
}

type fataler interface {
	Helper()
	Fatalf(string, ...any)
}

func newCable(t fataler, c Config, seed uint64) *cable {
	x := &cable{t: t, rng: rand.New(rand.NewPCG(seed, 7)), now: 1000}
	for i := range x.ends {
		x.ends[i] = &end{Link: x.start(c, uint64(10+i))}
	}
	return x
}

func (x *cable) start(c Config, epoch uint64) *Link {
	c.Epoch = epoch
	l, err := New(c)
	if err != nil {
		x.t.Fatalf("%v", err)
	}
	// Numbers wrap around soon.
	l.base, l.next, l.end, l.fresh = 0xFFFFFFF0, 0xFFFFFFF0, 0xFFFFFFF0, 0xFFFFFFF0
	return l
}

func frame(seq uint32, n int) []byte {
	p := make([]byte, n)
	binary.BigEndian.PutUint32(p, seq)
	for i := 14; i < n; i++ {
		p[i] = byte(seq) + byte(i)
	}
	return p
}

func chance(rng *rand.Rand, n int) bool { return rng.IntN(1000) < n }

// poll has end i send all that the cable takes by now.
func (x *cable) poll(i int) {
	e, o := x.ends[i], x.ends[1-i]
	for e.free <= x.now {
		n := e.Poll(x.now, x.buf[:])
		if n == 0 {
			return
		}
		e.free = max(e.free, x.now).Add(timeOf(uint64(8*(n+24)), e.Rate))
		if e.Stats().Unacked > Buffer || e.Stats().Unacked > e.Buffer {
			x.t.Fatalf("%d bytes in the buffer", e.Stats().Unacked)
		}
		p := bytes.Clone(x.buf[:n])
		pause := p[12] == 0x88 && p[13] == 0x08
		if chance(x.rng, x.bad.lose) {
			continue
		}
		if chance(x.rng, x.bad.damage) {
			if pause {
				continue // its FCS is wrong
			}
			for range 1 + x.rng.IntN(3) {
				p[x.rng.IntN(len(p))] ^= byte(1 << x.rng.IntN(8))
			}
		}
		copies := 1
		if chance(x.rng, x.bad.repeat) {
			copies += x.rng.IntN(3)
		}
		for range copies {
			at := e.free.Add(e.Delay)
			if chance(x.rng, x.bad.delay) {
				at = at.Add(clock.Duration(x.rng.IntN(20000)))
			}
			o.incoming = append(o.incoming, flight{at, bytes.Clone(p)})
		}
	}
}

// step goes on to the next thing that happens, or for d.
func (x *cable) step(d clock.Duration) {
	next := x.now.Add(d)
	for _, e := range x.ends {
		for _, f := range e.incoming {
			next = min(next, max(f.at, x.now+1))
		}
		if at := e.Next(x.now); at != clock.Never {
			next = min(next, max(at, e.free, x.now+1))
		}
	}
	x.now = next
	for i, e := range x.ends {
		slices.SortStableFunc(e.incoming, func(a, b flight) int { return int(a.at - b.at) })
		for len(e.incoming) > 0 && e.incoming[0].at <= x.now {
			p := e.incoming[0].bytes
			e.incoming = e.incoming[1:]
			if f, ev := e.Input(x.now, p); ev == Deliver {
				x.deliver(e, f)
			}
		}
		for len(e.held) > 0 && !e.stuck && (!e.slow || chance(x.rng, 100)) {
			e.Consumed(e.held[0])
			e.held = e.held[1:]
		}
		x.poll(i)
	}
}

func (x *cable) deliver(e *end, f []byte) {
	seq := binary.BigEndian.Uint32(f)
	if !bytes.Equal(f, frame(seq, len(f))) {
		x.t.Fatalf("a frame is not as it was sent: %x", f)
	}
	e.got = append(e.got, seq)
	e.held = append(e.held, len(f))
	e.most = max(e.most, e.Stats().Queued)
	if s := e.Stats().Queued; s > e.Queue {
		x.t.Fatalf("%d bytes wait, there is room for %d", s, e.Queue)
	}
}

// offer gives end i up to n frames to send.
func (x *cable) offer(i, n int) {
	e := x.ends[i]
	for range n {
		size := 14 + x.rng.IntN(e.Frame-13)
		if !e.Send(frame(e.toSend, size)) {
			return
		}
		e.toSend++
	}
}

// settle lets all arrive over a cable without faults.
func (x *cable) settle() {
	x.bad = faults{}
	for range 20000 {
		done := true
		for i, e := range x.ends {
			e.slow = false
			done = done && e.base == e.end && len(e.held) == 0 && len(x.ends[1-i].incoming) == 0 && e.Up()
		}
		if done {
			return
		}
		x.step(time.Second)
	}
	x.t.Fatalf("it does not settle: %+v, %+v", x.ends[0].Stats(), x.ends[1].Stats())
}

// inOrder checks that what end i got is what the other sent, each once.
func (x *cable) inOrder(i int) {
	x.t.Helper()
	got, want := x.ends[i].got, x.ends[1-i].toSend
	for k, seq := range got {
		if seq != uint32(k) {
			x.t.Fatalf("end %d: frame %d came as number %d", i, seq, k)
		}
	}
	if len(got) != int(want) {
		x.t.Fatalf("end %d: %d frames of %d", i, len(got), want)
	}
}

func TestExactlyOnceInOrder(t *testing.T) {
	total := Stats{}
	for range 5 {
		rapid.Check(t, func(t *rapid.T) {
			some := func(what string) int { return rapid.SampledFrom([]int{0, 0, 10, 200}).Draw(t, what) }
			c := Config{Rate: 10e9, Delay: clock.Duration(rapid.IntRange(0, 5000).Draw(t, "delay")), Frame: rapid.SampledFrom([]int{64, 1518, 9000}).Draw(t, "frame"),
				Buffer: rapid.SampledFrom([]int{20000, Buffer}).Draw(t, "buffer")}
			x := newCable(t, c, rapid.Uint64().Draw(t, "seed"))
			x.bad = faults{some("lose"), some("damage"), some("repeat"), some("late")}
			x.ends[0].slow, x.ends[1].slow = rapid.Bool().Draw(t, "slow"), rapid.Bool().Draw(t, "slow")
			for range rapid.IntRange(10, 300).Draw(t, "rounds") {
				x.offer(0, x.rng.IntN(4))
				x.offer(1, x.rng.IntN(2))
				x.step(clock.Duration(1 + x.rng.IntN(3000)))
			}
			x.settle()
			x.inOrder(0)
			x.inOrder(1)
			for _, e := range x.ends {
				s := e.Stats()
				total.Resent += s.Resent
				total.Damaged += s.Damaged
				total.Duplicates += s.Duplicates
				total.Paused += s.Paused
				total.Refused += s.Refused
				total.Naks += s.Naks
				total.Timeouts += s.Timeouts
				if s.Restarts != 0 {
					t.Fatalf("a restart is seen that was none")
				}
				if x.bad == (faults{}) && s.Unacked != 0 {
					t.Fatalf("%d bytes are left", s.Unacked)
				}
			}
		})
	}
	if testing.Short() {
		return // too few runs for some of each
	}
	if total.Resent == 0 || total.Damaged == 0 || total.Duplicates == 0 || total.Paused == 0 || total.Refused == 0 || total.Naks == 0 || total.Timeouts == 0 {
		t.Errorf("%+v: want some of each", total)
	}
}

// TestNoOverrun: on a cable without faults, as long as configured, the headroom
// is enough and the pauses are as long as they must be.
func TestNoOverrun(t *testing.T) {
	for _, c := range []Config{
		{Rate: 1e9, Delay: 100 * time.Nanosecond}, {Rate: 100e9, Delay: 500 * time.Nanosecond}, {Rate: 100e9, Delay: 5 * time.Microsecond, Frame: 9000},
		{Rate: 25e9, Delay: 50 * time.Microsecond},
	} {
		x := newCable(t, c, 3)
		x.ends[1].slow = true
		for range 30000 {
			x.offer(0, 8)
			x.step(clock.Duration(1 + x.rng.IntN(int(timeOf(15000, c.Rate)))))
		}
		s := x.ends[1].Stats()
		if s.Overrun != 0 || s.Pauses == 0 || s.Gaps != 0 || x.ends[0].Stats().Resent != 0 {
			t.Errorf("%+v: %+v, %+v", c, s, x.ends[0].Stats())
		}
		if x.ends[1].most <= x.ends[1].xoff {
			t.Errorf("%+v: never above XOFF", c)
		}
		x.settle()
		x.inOrder(1)
	}
}

// TestFullSpeed: without faults a cable is filled; lost frames cost little.
func TestFullSpeed(t *testing.T) {
	for _, c := range []struct {
		lose int
		want float64
	}{{0, .95}, {1, .85}} {
		x := newCable(t, Config{Rate: 100e9, Delay: 500 * time.Nanosecond}, 5)
		x.bad.lose = c.lose
		bytes := 0
		for x.now < clock.Time(2*time.Millisecond) {
			for x.ends[0].Send(frame(x.ends[0].toSend, 1518)) {
				x.ends[0].toSend++
			}
			x.step(time.Microsecond)
		}
		bytes = 1518 * len(x.ends[1].got)
		if part := float64(8*bytes) / 100e9 / x.now.Sub(0).Seconds(); part < c.want {
			t.Errorf("with %d lost of 1000 frames, %.3f of the rate, want %g: %+v", c.lose, part, c.want, x.ends[0].Stats())
		}
	}
}

// TestRestart: each end sees that the other has started anew; all that was not
// acknowledged comes again, in order, and nothing is left out.
func TestRestart(t *testing.T) {
	again := 0
	for range 3 {
		rapid.Check(t, func(t *rapid.T) {
			c := Config{Rate: 10e9, Delay: 700, Frame: 256, Buffer: 8000}
			x := newCable(t, c, rapid.Uint64().Draw(t, "seed"))
			x.bad = faults{rapid.IntRange(0, 100).Draw(t, "lose"), 5, 50, 50}
			used := map[uint64]bool{}
			for range rapid.IntRange(1, 4).Draw(t, "restarts") {
				for range rapid.IntRange(0, 100).Draw(t, "rounds") {
					x.offer(0, 2)
					x.step(1000)
				}
				// The receiver starts anew; at times its clock has gone back. No two starts have the same time.
				old := x.ends[1].Link
				epoch := old.Epoch + 1
				if rapid.IntRange(0, 3).Draw(t, "clock went back") == 0 {
					epoch = 1
				}
				for used[old.Epoch] = true; used[epoch]; epoch++ {
				}
				x.ends[1].Link = x.start(c, epoch)
				x.ends[1].held = nil
			}
			for range 50 {
				x.offer(0, 1)
				x.step(1000)
			}
			x.settle()
			// Numbers only go back where a restart was, and never leave one out.
			got, seen := x.ends[1].got, uint32(0)
			for k, seq := range got {
				if seq > seen || k > 0 && seq != got[k-1]+1 && seq > got[k-1] {
					t.Fatalf("frame %d came after %v", seq, got[max(0, k-3):k])
				}
				if seq < seen {
					again++
				}
				seen = max(seen, seq+1)
			}
			if seen != x.ends[0].toSend {
				t.Fatalf("%d frames of %d", seen, x.ends[0].toSend)
			}
			if x.ends[0].peer != x.ends[1].Epoch || x.ends[1].peer != x.ends[0].Epoch {
				t.Fatalf("epochs %d, %d; known %d, %d", x.ends[0].Epoch, x.ends[1].Epoch, x.ends[1].peer, x.ends[0].peer)
			}
		})
	}
	if again == 0 && !testing.Short() {
		t.Error("nothing ever came again: the test is too kind")
	}
}

// TestClockBackTwice: an end starts with its clock gone back, and hears a HELLO first that was sent to its start before the last one. It takes no epoch that
// the last start had: the other end would take it for that one, and would never tell it the number that comes next.
func TestClockBackTwice(t *testing.T) {
	c := Config{Rate: 10e9, Delay: 500}
	x := newCable(t, c, 9)
	x.offer(0, 3)
	x.settle()
	late := make([]byte, MinFrame)
	encode(late, header{kind: hello, epoch: x.ends[0].Epoch, peer: x.ends[1].Epoch, seq: x.ends[0].base})
	x.ends[1].Link = x.start(c, x.ends[1].Epoch+1)
	x.offer(0, 3)
	x.settle()
	x.ends[1].Link = x.start(c, 1)
	if _, ev := x.ends[1].Input(x.now, late); ev != Took {
		t.Fatalf("the late HELLO: %v", ev)
	}
	x.offer(0, 3)
	x.settle()
	x.inOrder(1)
	x.offer(1, 3)
	x.settle()
	x.inOrder(0)
	if n := x.ends[0].Stats().Restarts; n != 2 {
		t.Errorf("%d restarts are seen, want 2", n)
	}
}

// TestSenderRestart: what a new sender sends is not taken for what the old one did.
func TestSenderRestart(t *testing.T) {
	x := newCable(t, Config{Rate: 10e9, Delay: 500}, 9)
	x.offer(0, 9)
	x.settle()
	old := frame(3, 80)
	wrapped := make([]byte, 200)
	copy(wrapped, old[:addresses])
	copy(wrapped[headerLen:], old[addresses:])
	encode(wrapped, header{kind: data, length: len(old) - addresses, epoch: 10, peer: 11, seq: 0xFFFFFFF0, ack: 0xFFFFFFF0})
	x.ends[0].Link = x.start(Config{Rate: 10e9, Delay: 500}, 20)
	x.ends[0].toSend, x.ends[1].got = 0, nil
	x.offer(0, 5)
	x.settle()
	x.inOrder(1)
	if x.ends[1].Stats().Restarts != 1 {
		t.Errorf("%+v", x.ends[1].Stats())
	}
	if _, ev := x.ends[1].Input(x.now, wrapped); ev != Foreign {
		t.Errorf("a frame of an old epoch: %v", ev)
	}
}

// TestBothPause: two ends that have paused each other go on when their users do.
func TestBothPause(t *testing.T) {
	x := newCable(t, Config{Rate: 10e9, Delay: 500}, 11)
	for _, e := range x.ends {
		e.slow = true
	}
	for range 3000 {
		x.offer(0, 3)
		x.offer(1, 3)
		x.step(100)
	}
	if x.ends[0].Stats().Paused == 0 || x.ends[1].Stats().Paused == 0 {
		t.Fatalf("%+v, %+v", x.ends[0].Stats(), x.ends[1].Stats())
	}
	x.settle()
	x.inOrder(0)
	x.inOrder(1)
}

// TestLongPause: a pause lasts as long as nothing is consumed.
func TestLongPause(t *testing.T) {
	x := newCable(t, Config{Rate: 100e9, Delay: 500}, 13)
	b := x.ends[1]
	b.stuck = true
	for x.now < clock.Time(5*time.Millisecond) { // a pause is of 336 us
		x.offer(0, 100)
		x.step(time.Microsecond)
	}
	if s := b.Stats(); s.Overrun != 0 || s.Pauses < 10 || s.Pauses > 40 || x.ends[0].Stats().Timeouts != 0 {
		t.Errorf("%+v", s)
	}
	b.stuck = false
	x.settle()
	x.inOrder(1)
}

// TestLostAck: a frame that came twice is acknowledged twice.
func TestLostAck(t *testing.T) {
	x, p := pair(t)
	a, b := x.ends[0], x.ends[1]
	a.Send(p)
	n := a.Poll(x.now, x.buf[:])
	if _, ev := b.Input(x.now, x.buf[:n]); ev != Deliver || b.Poll(x.now, x.buf[:]) == 0 {
		t.Fatal(ev)
	}
	if at := a.Next(x.now); at != x.now.Add(a.Timeout) || a.Pending(at-1) != Nothing || a.Pending(at) != Again {
		t.Fatalf("it comes again at %d, want %d", at, x.now.Add(a.Timeout))
	}
	x.now = x.now.Add(a.Timeout)
	n = a.Poll(x.now, x.buf[:])
	if _, ev := b.Input(x.now, x.buf[:n]); ev != Duplicate {
		t.Fatal(ev)
	}
	n = b.Poll(x.now, x.buf[:])
	if _, ev := a.Input(x.now, x.buf[:n]); ev != Took || a.Stats().Unacked != 0 {
		t.Errorf("%v, %+v", ev, a.Stats())
	}
}

func TestArguments(t *testing.T) {
	for _, c := range []Config{
		{}, {Epoch: 1, Rate: 1}, {Epoch: 1, Delay: -1}, {Epoch: 1, Frame: 59}, {Epoch: 1, Frame: 10000}, {Epoch: 1, Buffer: 1 << 20}, {Epoch: 1, Buffer: 3000},
		{Epoch: 1, Class: 8}, {Epoch: 1, Timeout: time.Hour}, {Epoch: 1, Queue: 10000}, {Epoch: 1, Queue: 1 << 30},
	} {
		if _, err := New(c); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%+v: %v", c, err)
		}
	}
	l, err := New(Config{Epoch: 1})
	if err != nil {
		t.Fatal(err)
	}
	if l.Send(make([]byte, 13)) || l.Send(make([]byte, 1519)) || !l.Send(make([]byte, 1518)) || !l.Send(make([]byte, 14)) {
		t.Error("lengths")
	}
	for _, p := range [][]byte{nil, make([]byte, 13), make([]byte, 14), make([]byte, 60)} {
		if _, ev := l.Input(0, p); ev != Other {
			t.Errorf("%d zeros: %v", len(p), ev)
		}
	}
}

// TestHeadroom: by hand, 100 Gbit/s and 1 us: 25000 bytes there and back, two
// frames of 1518+34+24, a pause of 84, 394 quanta of 64 bytes.
func TestHeadroom(t *testing.T) {
	if n := Headroom(100e9, time.Microsecond, 1518); n != 25000+2*1576+84+25216 {
		t.Errorf("%d", n)
	}
}

// TestPauseFrame: the bytes are those of IEEE 802.1Qbb, and the frames that are understood.
func TestPauseFrame(t *testing.T) {
	p := bytes.Repeat([]byte{0xEE}, 64)
	EncodePause(p, [6]byte{2, 0, 0, 0, 0, 9}, 3, 0x1234)
	want := append([]byte{1, 0x80, 0xC2, 0, 0, 1, 2, 0, 0, 0, 0, 9, 0x88, 8, 1, 1, 0, 8, 0, 0, 0, 0, 0, 0, 0x12, 0x34}, make([]byte, 34)...)
	if !bytes.Equal(p[:60], want) {
		t.Errorf("%x", p[:60])
	}
	if q, ok := DecodePause(p, 3); q != 0x1234 || !ok {
		t.Error(q, ok)
	}
	if _, ok := DecodePause(p, 4); ok {
		t.Error("a pause of another class")
	}
	if q, ok := DecodePause([]byte{1, 0x80, 0xC2, 0, 0, 1, 2, 0, 0, 0, 0, 9, 0x88, 8, 0, 1, 0, 7}, 4); q != 7 || !ok {
		t.Error("PAUSE is for all classes")
	}
}

// TestTshark: another implementation reads our PFC frames.
func TestTshark(t *testing.T) {
	if _, err := exec.LookPath("tshark"); err != nil {
		t.Skip("needs tshark (apt-get install tshark)")
	}
	name := filepath.Join(t.TempDir(), "pfc.pcap")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	w := pcapgo.NewWriter(f)
	if err := w.WriteFileHeader(1<<16, layers.LinkTypeEthernet); err != nil {
		t.Fatal(err)
	}
	for _, q := range []uint16{0xFFFF, 0} {
		var p [MinFrame]byte
		EncodePause(p[:], [6]byte{2, 0, 0, 0, 0, 9}, 3, q)
		if err := w.WritePacket(gopacket.CaptureInfo{Timestamp: time.Unix(1, 0), CaptureLength: MinFrame, Length: MinFrame}, p[:]); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("tshark", "-n", "-r", name, "-T", "fields", "-e", "macc.opcode", "-e", "macc.cbfc.enbv", "-e", "macc.cbfc.pause_time.c3", "-e", "macc.cbfc.pause_time.c2").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	want := []string{"0x0101\t0x0008\t65535\t0", "0x0101\t0x0008\t0\t0"}
	if got := lines[max(0, len(lines)-2):]; !slices.Equal(got, want) {
		t.Errorf("tshark reads %q, want %q", got, want)
	}
}

func FuzzInput(f *testing.F) {
	var p [200]byte
	EncodePause(p[:], [6]byte{}, 3, 9)
	f.Add(bytes.Clone(p[:60]))
	for k := range numKinds {
		h := header{kind: k, epoch: 11, peer: 10, seq: 0xFFFFFFF0, ack: 0xFFFFFFF0}
		if k == data {
			h.length = 30
		}
		encode(p[:], h)
		f.Add(bytes.Clone(p[:90]))
	}
	encode(p[:], header{kind: ack, epoch: 11, peer: 10, ack: 7}) // beyond all that was sent
	f.Add(bytes.Clone(p[:60]))
	f.Fuzz(func(t *testing.T, p []byte) {
		x := newCable(t, Config{}, 1)
		x.offer(0, 3)
		x.step(1000)
		x.step(1000)
		// With a right CRC, too: a sender that can compute it can lie, but cannot break the end.
		for range 2 {
			for _, e := range x.ends {
				got, ev := e.Input(x.now, bytes.Clone(p))
				if ev == Deliver && len(got) < 14 || ev != Deliver && got != nil {
					t.Errorf("%v: %x", ev, got)
				}
			}
			if len(p) < headerLen || headerLen+int(be.Uint16(p[16:])) > len(p) {
				break
			}
			be.PutUint32(p[42:], sum(p, headerLen+int(be.Uint16(p[16:]))))
		}
		for range 20 {
			x.step(10000)
		}
		for _, e := range x.ends {
			if e.used < 0 || e.used > len(e.mem) || before(e.fresh, e.base) || before(e.end, e.fresh) {
				t.Errorf("%+v", e.Stats())
			}
		}
	})
}

// pair is two ends that are up, with frames of one of them.
func pair(t testing.TB) (*cable, []byte) {
	x := newCable(t, Config{}, 1)
	x.settle()
	return x, frame(0, 1518)
}

func trip(x *cable, p []byte) bool {
	a, b := x.ends[0], x.ends[1]
	x.now += 100
	ok := a.Send(p)
	n := a.Poll(x.now, x.buf[:])
	if f, ev := b.Input(x.now, x.buf[:n]); ev == Deliver {
		b.Consumed(len(f))
	} else {
		ok = false
	}
	n = b.Poll(x.now, x.buf[:])
	a.Input(x.now, x.buf[:n])
	return ok && a.base == a.end
}

func TestNoAllocation(t *testing.T) {
	x, p := pair(t)
	if n := testing.AllocsPerRun(1000, func() {
		if !trip(x, p) {
			t.Error("it did not arrive")
		}
		x.buf[20] ^= 1
		x.ends[1].Input(x.now, x.buf[:60])
		x.ends[1].Poll(x.now, x.buf[:])
		x.ends[0].Next(x.now)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkTrip is a frame there, and its acknowledgement back.
func BenchmarkTrip(b *testing.B) {
	for _, n := range []int{64, 1518} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			x, p := pair(b)
			b.ReportAllocs()
			for b.Loop() {
				if !trip(x, p[:n]) {
					b.Fatal("it did not arrive")
				}
			}
		})
	}
}

// TestNewcomer: an acknowledgement, or data, of an end that has not greeted frees nothing and is not
// delivered.
func TestNewcomer(t *testing.T) {
	x, _ := pair(t)
	a, b := x.ends[0], x.ends[1]
	if !a.Up() || !a.Send(frame(7, 100)) {
		t.Fatal("not up")
	}
	for a.Pending(x.now) != Nothing {
		a.Poll(x.now, x.buf[:])
	}
	before := a.Stats().Unacked
	for _, k := range []kind{ack, nak, data} {
		p := make([]byte, headerLen+14)
		h := header{kind: k, epoch: b.Epoch + 1, peer: a.Epoch, seq: a.expected, ack: a.next}
		if k == data {
			h.length = 14
		}
		encode(p, h)
		if _, ev := a.Input(x.now, p); ev != Foreign || a.Stats().Unacked != before || before == 0 {
			t.Errorf("kind %d: %v, %d of %d bytes left", k, ev, a.Stats().Unacked, before)
		}
	}
}
