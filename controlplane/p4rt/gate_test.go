package p4rt

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"strings"
	"testing"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/credentials"
	"pgregory.net/rapid"
)

// said is a connection that yields what a client said, in pieces of any size.
type said struct {
	net.Conn
	b    []byte
	next func(most int) int
}

func (s *said) Read(p []byte) (int, error) {
	if len(s.b) == 0 {
		return 0, io.EOF
	}
	n := copy(p[:s.next(min(len(p), len(s.b)))], s.b)
	s.b = s.b[n:]
	return n, nil
}

func (s *said) Write(p []byte) (int, error) { return len(p), nil }
func (s *said) Close() error                { return nil }
func (s *said) RemoteAddr() net.Addr        { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1)} }

// gated is a gate in front of a connection, with a door of its own.
func gated(under net.Conn) *gate { return testDoor(nil).gated(under) }

func (d *door) gated(under net.Conn) *gate {
	c, _ := d.enter(under)
	c.caller, c.peer = &caller{name: c.host.name}, c.host
	return newGate(under, c)
}

func testDoor(l net.Listener) *door {
	return &door{Listener: l, stats: &Stats{}, conns: map[*conn]struct{}{}, peers: map[string]*peerAccount{}, logged: map[string]bool{},
		whois: func(net.Conn, credentials.AuthInfo) (*caller, error) { return &caller{}, nil }}
}

// prefix is that of a message in gRPC.
func prefix(size int) []byte { return binary.BigEndian.AppendUint32([]byte{0}, uint32(size)) }

// TestGateCounts: whatever frames messages come in, and however these are torn, the gate
// holds the lengths of those that have begun and neither ended nor been given up, and
// passes every byte on.
func TestGateCounts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var out bytes.Buffer
		out.WriteString(http2.ClientPreface)
		f := http2.NewFramer(&out, nil)
		f.AllowIllegalWrites = true
		type open struct{ size, sent int } // with the prefix
		streams := map[uint32]*open{}
		next := uint32(1)
		for range rapid.IntRange(0, 60).Draw(t, "frames") {
			id := uint32(rapid.SampledFrom([]int{1, 3, 5, 7}).Draw(t, "stream"))
			s := streams[id]
			switch rapid.IntRange(0, 9).Draw(t, "frame") {
			case 0:
				_ = f.WriteSettings(http2.Setting{ID: http2.SettingMaxFrameSize, Val: 1 << 15})
			case 1:
				_ = f.WritePing(false, [8]byte{0, 0, 0, 0, 0, 1, 0, 0})
			case 2:
				_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: next, BlockFragment: make([]byte, next%50), EndHeaders: true})
				next += 2
			case 3:
				_ = f.WriteRSTStream(id, http2.ErrCodeCancel)
				delete(streams, id)
			default:
				if s == nil {
					s = &open{size: 5 + rapid.IntRange(0, 3000).Draw(t, "size")}
					streams[id] = s
				}
				// The rest of a message and, perhaps, the beginning of the next.
				var data []byte
				n := rapid.IntRange(0, s.size-s.sent).Draw(t, "bytes")
				whole := append(prefix(s.size-5), bytes.Repeat([]byte{0xff}, s.size-5)...)
				data = append(data, whole[s.sent:s.sent+n]...)
				if s.sent += n; s.sent == s.size {
					delete(streams, id)
					if rapid.Bool().Draw(t, "more") {
						s = &open{size: 5 + rapid.IntRange(1, 3000).Draw(t, "size"), sent: rapid.IntRange(1, 5).Draw(t, "of the prefix")}
						streams[id] = s
						data = append(data, prefix(s.size - 5)[:s.sent]...)
					}
				}
				end := rapid.IntRange(0, 5).Draw(t, "end") == 0
				if end {
					delete(streams, id)
				}
				if pad := rapid.IntRange(-1, 255).Draw(t, "padding"); pad < 0 {
					_ = f.WriteData(id, end, data)
				} else {
					_ = f.WriteDataPadded(id, end, data, make([]byte, pad))
				}
			}
		}
		all := bytes.Clone(out.Bytes())
		g := gated(&said{b: out.Bytes(), next: func(most int) int { return rapid.IntRange(1, most).Draw(t, "piece") }})
		got, err := io.ReadAll(g)
		if err != nil || !bytes.Equal(got, all) {
			t.Fatalf("%d of %d bytes: %v", len(got), len(all), err)
		}
		held, count := 0, 0
		for _, s := range streams {
			if s.sent >= 5 {
				held += s.size - 5
			}
			if s.sent > 0 {
				count++
			}
		}
		if g.held != held || len(g.messages) != count {
			t.Fatalf("%d bytes of %d messages, want %d of %d", g.held, len(g.messages), held, count)
		}
	})
}

// TestGate: what a client may send before it was primary, and after.
func TestGate(t *testing.T) {
	type frame struct {
		stream uint32
		size   int // that the prefix says
		sent   int // bytes behind the prefix
	}
	many := func(n, size int) (all []frame) {
		for k := range n {
			all = append(all, frame{uint32(2*k + 1), size, 0})
		}
		return all
	}
	for _, c := range []struct {
		name   string
		proven bool
		frames []frame
		says   string // "": all is taken
	}{
		{"short", false, []frame{{1, strangersMessage, 10}}, ""},
		{"too long", false, []frame{{1, strangersMessage + 1, 0}}, "claim a role on the same connection first"},
		{"longest", false, []frame{{1, 1<<32 - 1, 0}}, "claim a role"},
		{"long of a primary", true, []frame{{1, MaxMessage, 100}}, ""},
		{"too long of a primary is gRPC's", true, []frame{{1, MaxMessage + 1, 100}, {3, MaxMessage, 1}, {5, MaxMessage, 1}}, ""},
		{"halves", false, many(4, strangersMessage), ""},
		{"too many halves", false, many(5, strangersMessage), "may be under way"},
		{"halves of a primary", true, many(3, MaxMessage), "may be under way"},
		{"tiny halves", false, many(maxHalf+1, 1), "none has ended"},
		{"one after the other", false, []frame{{1, 60000, 60000}, {1, 60000, 60000}, {1, 60000, 60000}, {1, 60000, 60000}, {1, 60000, 60000}}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out bytes.Buffer
			out.WriteString(http2.ClientPreface)
			f := http2.NewFramer(&out, nil)
			for _, m := range c.frames {
				if err := f.WriteData(m.stream, false, append(prefix(m.size), make([]byte, m.sent)...)); err != nil {
					t.Fatal(err)
				}
			}
			g := gated(&said{b: out.Bytes(), next: func(most int) int { return most }})
			g.c.hadPrimary.Store(c.proven)
			_, err := io.ReadAll(g)
			if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v, want %q", err, c.says)
			}
			if _, there := g.c.d.conns[g.c]; there == (c.says != "") {
				t.Errorf("the connection is there: %v", there)
			}
		})
	}
}

// TestGatesOfOne: connections of one client on which it was primary may together have as much under way as one may; the one that
// has most goes. The one on which it is primary is its own, and those of the socket's owner are not counted.
func TestGatesOfOne(t *testing.T) {
	var begun bytes.Buffer
	begun.WriteString(http2.ClientPreface)
	if err := http2.NewFramer(&begun, nil).WriteData(1, false, prefix(MaxMessage)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name      string
		primaries []int32 // on each connection
		trust     trust
		stay      []bool
	}{
		{"two", []int32{0, 0}, certified, []bool{true, true}},
		{"three", []int32{0, 0, 0}, certified, []bool{false, true, true}},
		{"five", []int32{0, 0, 0, 0, 0}, certified, []bool{false, false, false, true, true}},
		{"of a primary", []int32{1, 0, 0, 1, 1}, certified, []bool{true, true, true, true, true}},
		{"beside a primary", []int32{1, 0, 0, 0}, certified, []bool{true, false, true, true}},
		{"the owner's", []int32{0, 0, 0, 0}, owner, []bool{true, true, true, true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := testDoor(nil)
			var all []*gate
			for _, n := range c.primaries {
				g := d.gated(&said{b: begun.Bytes(), next: func(most int) int { return most }})
				g.c.caller.trust = c.trust
				g.c.hadPrimary.Store(true)
				g.c.primaries.Store(n)
				all = append(all, g)
				if _, err := io.ReadAll(g); err != nil {
					t.Error(err)
				}
			}
			for n, g := range all {
				if _, there := d.conns[g.c]; there != c.stay[n] {
					t.Errorf("connection %d is there: %v", n, there)
				}
			}
		})
	}
}

// TestGateForgets: a message of a stream that the server ends does not count any more.
func TestGateForgets(t *testing.T) {
	var out bytes.Buffer
	out.WriteString(http2.ClientPreface)
	f := http2.NewFramer(&out, nil)
	for id := range uint32(3) {
		_ = f.WriteData(2*id+1, false, prefix(1000))
	}
	g := gated(&said{b: out.Bytes(), next: func(most int) int { return most }})
	if _, err := io.ReadAll(g); err != nil || g.held != 3000 {
		t.Fatal(g.held, err)
	}
	out.Reset()
	_ = f.WriteData(1, false, []byte("an answer"))
	_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, EndHeaders: true, EndStream: true})
	_ = f.WriteRSTStream(3, http2.ErrCodeNo)
	for _, b := range out.Bytes() { // in pieces
		if _, err := g.Write([]byte{b}); err != nil {
			t.Fatal(err)
		}
	}
	if g.held != 1000 || len(g.messages) != 1 {
		t.Errorf("%d bytes of %d messages", g.held, len(g.messages))
	}
}

// FuzzGate: no bytes panic, and what is held is what the messages say.
func FuzzGate(f *testing.F) {
	f.Add([]byte("\x00\x00\x07\x00\x08\x00\x00\x00\x01\x01\x00\x00\x00\x00\x05\x00"), 3)
	f.Fuzz(func(t *testing.T, b []byte, piece int) {
		g := gated(&said{b: append([]byte(http2.ClientPreface), b...), next: func(most int) int { return min(most, max(piece, 1)) }})
		_, _ = io.ReadAll(g)
		sum := 0
		for _, m := range g.messages {
			sum += m.size
		}
		if g.held != sum || g.held < 0 || g.held > strangersHeld {
			t.Errorf("%d bytes are held, the messages have %d", g.held, sum)
		}
	})
}

// BenchmarkGate: what the gate costs a MB of messages.
func BenchmarkGate(b *testing.B) {
	var out bytes.Buffer
	f := http2.NewFramer(&out, nil)
	whole := append(prefix(1<<20-5), make([]byte, 1<<20-5)...)
	for len(whole) > 0 {
		n := min(16384, len(whole))
		_ = f.WriteData(1, false, whole[:n])
		whole = whole[n:]
	}
	s := &said{next: func(most int) int { return most }}
	g := gated(s)
	g.c.hadPrimary.Store(true)
	g.in.skip = 0
	p := make([]byte, 32<<10)
	b.SetBytes(1 << 20)
	for b.Loop() {
		s.b = out.Bytes()
		for len(s.b) > 0 {
			if _, err := g.Read(p); err != nil {
				b.Fatal(err)
			}
		}
	}
}
