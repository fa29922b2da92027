package gossip

import (
	"bytes"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/snic/pool"
)

// TestWindow: of numbers in any order each is taken once, and none that is more than 63 behind the greatest.
func TestWindow(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var w window
		var d Drops
		taken, top := map[uint64]bool{}, uint64(0)
		at := uint64(r.IntN(1 << 20))
		for range 2000 {
			seq := at + uint64(r.IntN(200))
			if r.IntN(100) == 0 {
				at += uint64(r.IntN(300))
			}
			want := !taken[seq] && seq > 0 && (seq > top || top-seq < 64)
			before := d
			if got := w.take(seq, &d); got != want && seq > 0 {
				t.Fatalf("%d is taken: %v; the greatest is %d, taken before: %v", seq, got, top, taken[seq])
			}
			if !want && d == before {
				t.Fatal("it was not counted")
			}
			if want {
				taken[seq], top = true, max(top, seq)
			}
		}
		if d.Replayed == 0 || d.Stale == 0 {
			t.Fatal(d)
		}
	}
}

// TestSeals: each message is taken once, with its true sender, and only by the board that it is for,
// whichever end is started anew.
func TestSeals(t *testing.T) {
	a, b := name{1, 100}, name{2, 200}
	var out numbers
	out.from(5)
	s := newSeals(b)
	first := out.seal(streamShort, a, b, []byte("one"))
	if m, from, of := s.open(first); string(m) != "one" || from != a || of != streamShort {
		t.Error(m, from, of)
	}
	refused := func(what string, m []byte, want Drops) {
		t.Helper()
		before := s.drops
		if got, _, _ := s.open(m); got != nil {
			t.Errorf("%s is taken", what)
		}
		got := Drops{s.drops.Replayed - before.Replayed, s.drops.Stale - before.Stale, s.drops.Misdirected - before.Misdirected, s.drops.Malformed - before.Malformed}
		if got != want {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	refused("the same again", first, Drops{Replayed: 1})
	// Streams count separately. A sender that has forgotten its numbers goes on from the time.
	out.from(1_000)
	for _, of := range []stream{streamShort, streamLong, streamAlive, streamPage} {
		m := out.seal(of, a, b, nil)
		if got, _, is := s.open(m); got == nil || is != of {
			t.Errorf("stream %d: %v", of, got)
		}
		refused("it again", m, Drops{Replayed: 1})
	}
	refused("what is far behind", first, Drops{Stale: 1})
	refused("what is for another board", out.seal(streamShort, a, name{3, 200}, nil), Drops{Misdirected: 1})
	refused("what is for this board before it started", out.seal(streamShort, a, name{2, 199}, nil), Drops{Misdirected: 1})
	refused("what is of this board's number", out.seal(streamShort, name{2, 7}, b, nil), Drops{Misdirected: 1})
	refused("nothing", nil, Drops{Malformed: 1})
	for _, at := range []int{0, 1, 2, 3} {
		m := out.seal(streamShort, a, b, nil)
		m[at] ^= 0x40
		refused("another version", m, Drops{Malformed: 1})
	}
	// A sender that starts anew, with a clock that was set back, is heard; its messages from before the start
	// are not.
	var again numbers
	again.from(1)
	old := name{1, 99}
	m := again.seal(streamShort, old, b, nil)
	if got, _, _ := s.open(m); got == nil {
		t.Error("one that starts anew is not heard")
	}
	refused("of the one before", out.seal(streamShort, a, b, nil)[:sealLen-1], Drops{Malformed: 1})
	last := again.seal(streamShort, old, b, nil)
	s.open(last)
	// So many starts are remembered. Messages of a forgotten start are not taken.
	for n := range uint64(remembered) {
		if got, _, _ := s.open(again.seal(streamShort, name{1, 1000 + n}, b, nil)); got == nil {
			t.Fatal("one more start is not heard")
		}
	}
	refused("of one that is forgotten", last, Drops{Stale: 1})
	if n := len(s.from[1].taken); n != remembered {
		t.Errorf("%d are remembered", n)
	}
}

// recorder has what goes to a UDP port on the loopback interface.
type recorder struct {
	fd   int
	port int
	all  [][]byte
}

func record(t *testing.T, addr string) *recorder {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("to record what boards say needs root")
	}
	const all = 3<<8 | 0 // ETH_P_ALL, in network byte order
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK, all)
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	lo, err := net.InterfaceByName("lo")
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: lo.Index})
	}
	if err != nil {
		t.Fatal(err)
	}
	return &recorder{fd: fd, port: portOf(t, addr)}
}

func portOf(t *testing.T, addr string) int {
	t.Helper()
	_, text, _ := net.SplitHostPort(addr)
	port, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// read takes what went there meanwhile.
func (r *recorder) read() {
	p := make([]byte, 1<<16)
	for {
		n, from, err := unix.Recvfrom(r.fd, p, 0)
		if err != nil {
			return
		}
		const header = 20 + 8 // IPv4 and UDP
		if l, ok := from.(*unix.SockaddrLinklayer); !ok || l.Pkttype == unix.PACKET_OUTGOING || n < header || p[0] != 0x45 || p[9] != unix.IPPROTO_UDP || int(p[22])<<8|int(p[23]) != r.port {
			continue
		}
		r.all = append(r.all, bytes.Clone(p[header:n]))
	}
}

// replay sends all of it again.
func (r *recorder) replay(t *testing.T) {
	t.Helper()
	c, err := net.Dial("udp", net.JoinHostPort("127.0.0.1", strconv.Itoa(r.port)))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, p := range r.all {
		_, _ = c.Write(p)
	}
}

// TestReplay: messages of a board are recorded, and sent again to the board that got them: while the sender
// is there, when it has died, and when the receiver was started anew in the same place. They are not taken,
// but counted, and no dead board counts as alive.
func TestReplay(t *testing.T) {
	b := start(t, 1)
	r := record(t, b.Addr())
	a := start(t, 0, b.Addr())
	b.knows(0)
	until := func(what string, is func() bool) {
		t.Helper()
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for late := time.After(patience); !is(); {
			select {
			case <-tick.C:
			case <-late:
				t.Fatal(what)
			}
		}
	}
	until("nothing is recorded", func() bool { r.read(); return len(r.all) > 30 })
	a.Do(func(n *pool.Node, now clock.Time) { n.Tell(now, pool.Info{Regions: []int{1}, Pages: 7}) })
	b.sees(0, 7)
	until("what was sent again is not counted", func() bool {
		r.replay(t)
		d := b.Drops()
		return d.Replayed+d.Stale >= 20
	})
	b.sees(0, 7)

	if err := a.close(false); err != nil {
		t.Error(err)
	}
	lost := false
	until("who has died is believed to live", func() bool {
		r.replay(t)
		select {
		case e := <-b.events:
			lost = lost || e.Kind == pool.PeerLost
		default:
		}
		return lost
	})
	heard := func(b *board, what string, counted func(d Drops) uint64) {
		t.Helper()
		before := counted(b.Drops())
		until(what, func() bool { r.replay(t); return counted(b.Drops()) >= before+100 })
		b.Do(func(n *pool.Node, _ clock.Time) {
			if n.View(0).Alive {
				t.Error("who has died is believed to live")
			}
		})
		for {
			select {
			case e := <-b.events:
				if e.Kind == pool.PeerUp {
					t.Errorf("%+v", e)
				}
				continue
			default:
			}
			break
		}
	}
	heard(b, "what a dead board said is not counted", func(d Drops) uint64 { return d.Replayed + d.Stale })

	// Started anew, at the same address.
	addr := b.Addr()
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	c := startWith(t, 1, 0, addr)
	heard(c, "what was for the board before it started is not counted", func(d Drops) uint64 { return d.Misdirected })
	// A board that starts anew is heard, whatever was sent before.
	again := start(t, 0, c.Addr())
	again.pages(9)
	r.replay(t)
	c.sees(0, 9)
}
