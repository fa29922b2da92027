package replay_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/counter"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port/pcap"
	"github.com/quillon/quillon/nf/replay"
)

// script does with a frame what the frame's first byte says. It has a timer of 1 ms that sends the held
// frames on and, with beat=1, sends a frame out of b.
type script struct {
	held []*packet.Buf
	last int // the side of the frame that is held
	beat bool
}

const (
	doPass   = 'p'
	doDrop   = 'd'
	doHold   = 'h'
	doChange = 'c'
	doReply  = 'r' // send a frame back first, and then the frame itself
	doLonger = 'l'
	doCut    = 's' // leave 5 bytes
	doPanic  = '!'
)

const (
	reasonChanged graph.Reason = iota
	reasonUnwanted
)

func scriptKind() graph.Kind {
	return graph.Kind{
		Name: "script", In: []string{"a", "b"}, Out: []string{"a", "b"},
		Params:  []graph.Param{{Name: "beat"}},
		Reasons: []counter.Def{{Name: "changed"}, {Name: "unwanted"}},
		New: func(_ graph.Env, args graph.Args) (graph.App, error) {
			return &script{beat: args["beat"] == "1"}, nil
		},
	}
}

func kinds() []graph.Kind { return []graph.Kind{scriptKind()} }

func (s *script) Push(c *graph.Ctx, in int, b *packet.Batch) {
	for _, x := range b.Bufs() {
		out := 1 - in
		if x.Len() == 0 {
			c.Emit(out, x)
			continue
		}
		switch x.Bytes()[0] {
		case doDrop:
			c.Drop(x, reasonUnwanted)
		case doHold:
			s.held, s.last = append(s.held, x), out
		case doChange:
			x.Bytes()[0] = 'C'
			c.Mark(x, packet.Rewritten, reasonChanged)
			c.Emit(out, x)
		case doLonger:
			x.Append(4)
			copy(x.Bytes()[x.Len()-4:], "tail")
			c.Mark(x, packet.Rewritten, reasonChanged)
			c.Emit(out, x)
		case doCut:
			x.TrimBack(x.Len() - 5)
			c.Emit(out, x)
		case doReply:
			y := c.Get()
			y.SetBytes([]byte("reply"))
			c.Emit(in, y)
			c.Emit(out, x)
		case doPanic:
			panic("as asked")
		default:
			c.Emit(out, x)
		}
	}
}

func (s *script) Tick(c *graph.Ctx) clock.Time {
	s.Stop(c)
	if s.beat {
		y := c.Get()
		y.SetBytes([]byte("beat"))
		c.Emit(1, y)
	}
	return c.Now() + 1e6
}

func (s *script) Stop(c *graph.Ctx) {
	for _, x := range s.held {
		c.Emit(s.last, x)
	}
	s.held = s.held[:0]
}

func (s *script) Held() int { return len(s.held) }

func spec(t testing.TB, nfs ...string) *graph.Spec {
	t.Helper()
	s, err := replay.Chain(kinds(), nfs...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// capture makes a file; in pcapng with the given interface names.
func capture(t testing.TB, h pcap.Header, ifaces []string, ps ...pcap.Packet) []byte {
	t.Helper()
	var out bytes.Buffer
	w, err := pcap.NewWriter(&out, h)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range ifaces {
		if _, err := w.AddInterface(pcap.Interface{Name: n, Link: 1, Resol: 9}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range ps {
		if ps[i].OrigLen == 0 {
			ps[i].OrigLen = uint32(len(ps[i].Data))
		}
		if err := w.Write(&ps[i]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func at(us int64, data string) pcap.Packet {
	return pcap.Packet{Time: clock.Time(1e18 + us*1000), Data: []byte(data)}
}

func on(iface int, p pcap.Packet) pcap.Packet {
	p.Interface = iface
	return p
}

func reader(t testing.TB, b []byte) *pcap.Reader {
	t.Helper()
	r, err := pcap.NewReader(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// list is a capture as text: interface, microseconds, data, comment.
func list(t testing.TB, b []byte) string {
	t.Helper()
	r := reader(t, b)
	var s strings.Builder
	var p pcap.Packet
	for {
		err := r.Next(&p)
		if err == io.EOF {
			return s.String()
		}
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&s, "%s +%d %s", r.Interfaces()[p.Interface].Name, (p.Time-1e18)/1000, p.Data)
		for _, c := range p.Comments {
			fmt.Fprintf(&s, " (%s)", c)
		}
		s.WriteByte('\n')
	}
}

func run(t testing.TB, cfg replay.Config) ([]byte, *replay.Result, error) {
	t.Helper()
	cfg.Kinds = kinds()
	r, err := replay.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	var out file
	res, err := r.Run(&out)
	return out.Bytes(), res, err
}

// file is an output that can be changed, as one on a disk.
type file struct{ bytes.Buffer }

func (f *file) WriteAt(b []byte, at int64) (int, error) { return copy(f.Bytes()[at:], b), nil }

func want(t *testing.T, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

func TestOneInterfaceAsItStands(t *testing.T) {
	in := capture(t, pcap.NewHeader(pcap.Classic), nil,
		at(0, "p1"), at(10, "c2"), at(20, "d3"), at(20, "r4"), at(15, "p5"), at(2000, "l6"))
	out, res, err := run(t, replay.Config{
		Spec: spec(t, "script"), Format: pcap.NG, All: true,
		Inputs: []replay.Input{{Reader: reader(t, in), Name: "in"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	want(t, list(t, out), ` +0 p1 (forwarded)
 +10 C2 (rewritten: changed)
 +20 d3 (dropped: unwanted)
 +20 r4 (forwarded)
 +20 reply (generated)
 +15 p5 (forwarded)
 +2000 l6tail (rewritten: changed)
`)
	if res.Read != 6 || res.Written != 6 || res.Changed != 3 || res.Dropped != 1 || res.Start != 1e18 || res.End != 1e18+2e6 {
		t.Errorf("%+v", res)
	}
	want(t, res.CounterText(), `a.frames.in 6
a.frames.out 1
b.frames.out 5
script.frames.dropped 1
script.frames.generated 1
script.frames.in 6
script.frames.out 6
script.reason.changed 2
script.reason.unwanted 1
`)
}

func TestTimersRunBetweenFrames(t *testing.T) {
	in := capture(t, pcap.NewHeader(pcap.Classic), nil, at(0, "p1"), at(100, "h2"), at(3500, "p3"), at(3600, "h4"))
	out, _, err := run(t, replay.Config{
		Spec: spec(t, "script,beat=1"), Format: pcap.NG,
		Inputs: []replay.Input{{Reader: reader(t, in), Name: "in"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	// Timers that are due run before the frame; h4 is let go by the timer
	// behind the last frame; then nothing is held, and the run ends.
	want(t, list(t, out), ` +0 beat (generated)
 +0 p1 (forwarded)
 +1000 h2 (forwarded)
 +1000 beat (generated)
 +2000 beat (generated)
 +3000 beat (generated)
 +3500 p3 (forwarded)
 +4000 h4 (forwarded)
 +4000 beat (generated)
`)
}

func TestTwoInterfacesAndTwoFiles(t *testing.T) {
	packets := []pcap.Packet{on(1, at(0, "p1")), on(0, at(5, "r2")), on(1, at(5, "d3")), on(0, at(7, "p4"))}
	wanted := `a +0 p1 (forwarded)
b +5 r2 (forwarded)
a +5 reply (generated)
b +5 d3 (dropped: unwanted)
b +7 p4 (forwarded)
`
	ng := capture(t, pcap.NewHeader(pcap.NG), []string{"", ""}, packets...)
	out, _, err := run(t, replay.Config{
		Spec: spec(t, "script"), Format: pcap.NG, All: true,
		Inputs: []replay.Input{{Reader: reader(t, ng), Name: "in"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	want(t, list(t, out), wanted)

	a := capture(t, pcap.NewHeader(pcap.Classic), nil, at(5, "r2"), at(7, "p4"))
	b := capture(t, pcap.NewHeader(pcap.Classic), nil, at(0, "p1"), at(5, "d3"))
	out, _, err = run(t, replay.Config{
		Spec: spec(t, "script"), Format: pcap.NG, All: true,
		Inputs: []replay.Input{{Reader: reader(t, a), Name: "a", Port: "a"}, {Reader: reader(t, b), Name: "b", Port: "b"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	want(t, list(t, out), wanted)

	// By name: b stands first in the file.
	named := capture(t, pcap.NewHeader(pcap.NG), []string{"b", "a"}, on(0, at(0, "p1")), on(1, at(5, "p2")))
	out, _, err = run(t, replay.Config{
		Spec: spec(t, "script"), Format: pcap.NG,
		Inputs: []replay.Input{{Reader: reader(t, named), Name: "in"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	want(t, list(t, out), "a +0 p1 (forwarded)\nb +5 p2 (forwarded)\n")
}

// TestReasonNamesTheApp when there are several.
func TestReasonNamesTheApp(t *testing.T) {
	in := capture(t, pcap.NewHeader(pcap.Classic), nil, at(0, "c1"))
	s := spec(t, "script")
	s.Apps["second"] = graph.AppSpec{Kind: "script"}
	s.Links = []string{"a.out -> script.a", "script.b -> second.a", "second.b -> b.in"}
	out, _, err := run(t, replay.Config{
		Spec: s, Format: pcap.NG,
		Inputs: []replay.Input{{Reader: reader(t, in), Name: "in"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	want(t, list(t, out), " +0 C1 (rewritten: script.changed)\n")
}

// TestUntouchedIsExact: a capture that the graph leaves alone comes out byte
// for byte, whatever its header, times and lengths, but for a snapshot length that is not true.
func TestUntouchedIsExact(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		h := pcap.NewHeader(pcap.Classic)
		h.BigEndian = rapid.Bool().Draw(rt, "big")
		h.Nano = rapid.Bool().Draw(rt, "nano")
		h.SnapLen = rapid.Uint32Range(1, 2000).Draw(rt, "snap")
		h.Zone = rapid.Int32().Draw(rt, "zone")
		h.Link |= rapid.Uint32().Draw(rt, "upper") &^ 0xFFFF
		var ps []pcap.Packet
		for range rapid.IntRange(0, 30).Draw(rt, "n") {
			data := append([]byte{doPass}, rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(rt, "data")...)
			ps = append(ps, pcap.Packet{
				// Any order, any fraction; few seconds, for the timers' sake.
				Stamp:   rapid.Uint64Range(0, 5).Draw(rt, "seconds")<<32 | uint64(rapid.Uint32().Draw(rt, "fraction")),
				OrigLen: uint32(len(data)) + rapid.Uint32Range(0, 3000).Draw(rt, "cut"),
				Data:    data,
			})
		}
		in := capture(t, h, nil, ps...)
		out, _, err := run(t, replay.Config{
			Spec: spec(t, "script"), Inputs: []replay.Input{{Reader: reader(t, in), Name: "in"}},
		})
		if err != nil {
			rt.Fatal(err)
		}
		for _, p := range ps { // a snapshot length that is not true is corrected
			h.SnapLen = max(h.SnapLen, uint32(len(p.Data)))
		}
		in = capture(t, h, nil, ps...)
		if !bytes.Equal(in, out) {
			rt.Fatalf("in  %x\nout %x", in, out)
		}
	})
}

// TestStampsOfPcapng: a resolution finer than nanoseconds survives.
func TestStampsOfPcapng(t *testing.T) {
	var file bytes.Buffer
	w, _ := pcap.NewWriter(&file, pcap.NewHeader(pcap.NG))
	w.AddInterface(pcap.Interface{Name: "x", Link: 1, Resol: 0x80 | 33, Offset: 77})
	stamps := []uint64{0x3_1234_5679_8ABB, 0x3_1234_5679_8ABD}
	for _, s := range stamps {
		w.Write(&pcap.Packet{Stamp: s, OrigLen: 1, Data: []byte{doPass}})
	}
	w.Flush()
	out, _, err := run(t, replay.Config{Spec: spec(t, "script"), Format: pcap.NG, Inputs: []replay.Input{{Reader: reader(t, file.Bytes()), Name: "in"}}})
	if err != nil {
		t.Fatal(err)
	}
	r := reader(t, out)
	for i, s := range stamps {
		var p pcap.Packet
		if err := r.Next(&p); err != nil || p.Stamp != s {
			t.Errorf("packet %d: %#x, %v; want %#x", i+1, p.Stamp, err, s)
		}
	}
}

func TestOversizedGoesAround(t *testing.T) {
	long := "c" + strings.Repeat("x", 5000)
	h := pcap.NewHeader(pcap.Classic)
	h.SnapLen = 100 // not true
	in := capture(t, h, nil, at(0, "c1"), at(1, long), at(2, "c3"))
	out, res, err := run(t, replay.Config{Spec: spec(t, "script"), Format: pcap.NG, Inputs: []replay.Input{{Reader: reader(t, in), Name: "in"}}})
	if err != nil {
		t.Fatal(err)
	}
	want(t, list(t, out), " +0 C1 (rewritten: changed)\n +1 "+long+" (forwarded: oversized)\n +2 C3 (rewritten: changed)\n")
	if res.Oversized != 1 || res.Read != 3 || res.Written != 3 {
		t.Errorf("%+v", res)
	}
}

// TestSnapLength: no frame of the output is longer than its header says, because others refuse such a file, or cut
// the frame, whether the output can be changed afterwards or not.
func TestSnapLength(t *testing.T) {
	classic := func(snap uint32) []byte {
		h := pcap.NewHeader(pcap.Classic)
		h.SnapLen = snap
		return capture(t, h, nil, at(0, "l"+strings.Repeat("x", 95)))
	}
	var ng bytes.Buffer
	w, _ := pcap.NewWriter(&ng, pcap.NewHeader(pcap.NG))
	for _, i := range []pcap.Interface{{Name: "a", Link: 1, Resol: 9, SnapLen: 1000}, {Name: "b", Description: "odd", Link: 1, Resol: 9, SnapLen: 50}} {
		if _, err := w.AddInterface(i); err != nil {
			t.Fatal(err)
		}
	}
	for i, data := range []string{"l" + strings.Repeat("x", 999), "p" + strings.Repeat("x", 900)} {
		p := on(i, at(int64(i), data))
		if err := errors.Join(w.Write(&p), w.Flush()); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name string
		f    pcap.Format
		in   [][]byte
	}{{"classic", pcap.Classic, [][]byte{classic(96)}}, {"to pcapng", pcap.NG, [][]byte{classic(96)}}, {"pcapng", pcap.NG, [][]byte{ng.Bytes()}},
		{"one without a limit", pcap.Classic, [][]byte{classic(0), classic(96)}}, {"the other", pcap.Classic, [][]byte{classic(96), classic(0)}}} {
		for _, out := range []interface {
			io.Writer
			Bytes() []byte
		}{new(bytes.Buffer), new(file)} {
			cfg := replay.Config{Spec: spec(t, "script"), Format: c.f, Kinds: kinds()}
			for i, in := range c.in {
				x := replay.Input{Reader: reader(t, in), Name: "in"}
				if len(c.in) > 1 {
					x.Port = string(rune('a' + i))
				}
				cfg.Inputs = append(cfg.Inputs, x)
			}
			r, err := replay.New(cfg)
			if err == nil {
				_, err = r.Run(out)
			}
			if err != nil {
				t.Fatal(err)
			}
			var p pcap.Packet
			n := 0
			for r := reader(t, out.Bytes()); r.Next(&p) == nil; n++ {
				if snap := r.Interfaces()[p.Interface].SnapLen; snap != 0 && len(p.Data) > int(snap) {
					t.Errorf("%s, %T: packet %d has %d bytes, the file says %d", c.name, out, p.Number, len(p.Data), snap)
				}
			}
			if n == 0 {
				t.Errorf("%s, %T: no packet", c.name, out)
			}
		}
	}
}

// TestShortOfItsLength: a frame that claims to be shorter on the wire than it is has a length when an app has cut it.
func TestShortOfItsLength(t *testing.T) {
	in := capture(t, pcap.NewHeader(pcap.Classic), nil, pcap.Packet{Stamp: 1, OrigLen: 2, Data: []byte("s23456789")})
	out, _, err := run(t, replay.Config{Spec: spec(t, "script"), Inputs: []replay.Input{{Reader: reader(t, in), Name: "in"}}})
	if err != nil {
		t.Fatal(err)
	}
	var p pcap.Packet
	if err := reader(t, out).Next(&p); err != nil || len(p.Data) != 5 || p.OrigLen != 5 {
		t.Errorf("%d bytes of %d, %v", len(p.Data), p.OrigLen, err)
	}
}

func TestDamageEndsTheRunBehindIt(t *testing.T) {
	in := capture(t, pcap.NewHeader(pcap.Classic), nil, at(0, "c1"), at(1, "h2"), at(2, "p3"))
	out, res, err := run(t, replay.Config{Spec: spec(t, "script"), Format: pcap.NG, Inputs: []replay.Input{{Reader: reader(t, in[:len(in)-1]), Name: "x.pcap"}}})
	if !errors.Is(err, pcap.ErrTruncated) || err.Error() != "x.pcap: packet 3 at offset 60: the file ends inside a record" {
		t.Errorf("%v", err)
	}
	want(t, list(t, out), " +0 C1 (rewritten: changed)\n +1000 h2 (forwarded)\n")
	if res.Read != 2 || res.Counters == nil {
		t.Errorf("%+v", res)
	}
	// Of two captures the other one goes on.
	b := capture(t, pcap.NewHeader(pcap.Classic), nil, at(9, "p9"))
	out, _, err = run(t, replay.Config{Spec: spec(t, "script"), Format: pcap.NG, Inputs: []replay.Input{
		{Reader: reader(t, in[:30]), Name: "x.pcap", Port: "a"}, {Reader: reader(t, b), Name: "y.pcap", Port: "b"}}})
	if !errors.Is(err, pcap.ErrTruncated) {
		t.Errorf("%v", err)
	}
	want(t, list(t, out), "a +9 p9 (forwarded)\n")
}

func TestPanicIsAnError(t *testing.T) {
	in := capture(t, pcap.NewHeader(pcap.Classic), nil, at(0, "p1"), at(1, "!2"), at(2, "p3"))
	_, _, err := run(t, replay.Config{Spec: spec(t, "script"), Inputs: []replay.Input{{Reader: reader(t, in), Name: "in"}}})
	if err == nil || !strings.Contains(err.Error(), "in: packet 2: app script (script) panicked") {
		t.Errorf("%v", err)
	}
}

func TestRefused(t *testing.T) {
	classic := capture(t, pcap.NewHeader(pcap.Classic), nil, at(0, "p"))
	h := pcap.NewHeader(pcap.Classic)
	h.Link = 101
	raw := capture(t, h, nil)
	three := capture(t, pcap.NewHeader(pcap.NG), []string{"", "", ""})
	in := func(b []byte, port string) replay.Input {
		return replay.Input{Reader: reader(t, b), Name: "x", Port: port}
	}
	s := spec(t, "script")
	for _, c := range []struct {
		cfg  replay.Config
		says string
	}{
		{replay.Config{Spec: s}, "no capture"},
		{replay.Config{Inputs: []replay.Input{in(classic, "")}}, "no port"},
		{replay.Config{Spec: s, All: true, Inputs: []replay.Input{in(classic, "")}}, "pcapng only"},
		{replay.Config{Spec: s, Inputs: []replay.Input{in(classic, "c")}}, `no port "c"; it has a, b`},
		{replay.Config{Spec: s, Inputs: []replay.Input{in(classic, ""), in(classic, "b")}}, "say which port"},
		{replay.Config{Spec: s, Inputs: []replay.Input{in(raw, "")}}, "link type 101: only Ethernet"},
		{replay.Config{Spec: s, Inputs: []replay.Input{in(three, "")}}, "the graph has 2 ports"},
		{replay.Config{Spec: &graph.Spec{Ports: s.Ports, Links: []string{"a.out -> z.in"}}, Inputs: []replay.Input{in(classic, "")}}, "z"},
	} {
		c.cfg.Kinds = kinds()
		_, err := replay.New(c.cfg)
		if err == nil || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q, want %q", err, c.says)
		}
	}
	for _, nfs := range [][]string{{}, {"scrypt"}, {"script,beat"}, {"script,beat=1,beat=2"}, {"script,bert=1"}} {
		if _, err := replay.Chain(kinds(), nfs...); err == nil {
			t.Errorf("%v: no error", nfs)
		}
	}
}

func TestFiles(t *testing.T) {
	dir := t.TempDir()
	put := func(name string, b []byte) string {
		name = filepath.Join(dir, name)
		if err := os.WriteFile(name, b, 0o644); err != nil {
			t.Fatal(err)
		}
		return name
	}
	in := put("in.pcap", capture(t, pcap.NewHeader(pcap.Classic), nil, at(0, "p1"), at(5, "c2"), at(6, "p3")))
	good := put("good.pcap", capture(t, pcap.NewHeader(pcap.Classic), nil, at(0, "p1"), at(5, "C2"), at(6, "p3")))
	out := filepath.Join(dir, "out.pcap")
	cfg := replay.Config{Spec: spec(t, "script"), Kinds: kinds()}
	run := func(f replay.Files) (*replay.Result, error) { return replay.RunFiles(cfg, f) }

	if res, err := run(replay.Files{In: []string{in}, Out: out, Expect: good}); err != nil || !res.Comparison.Equal() {
		t.Errorf("%v", err)
	}
	a, _ := os.ReadFile(out)
	b, _ := os.ReadFile(good)
	if !bytes.Equal(a, b) {
		t.Errorf("out differs from what was expected")
	}
	if _, err := run(replay.Files{In: []string{"a=" + in}, Expect: good}); err != nil {
		t.Errorf("without an output: %v", err)
	}
	_, err := run(replay.Files{In: []string{in}, Expect: in})
	var d *replay.DifferentError
	if !errors.As(err, &d) || d.Differences != 1 || d.Shown[0].Packet != 2 {
		t.Errorf("%v", err)
	}
	if err.Error() != "1 packets differ (got has 3, want has 3)" {
		t.Errorf("%v", err)
	}
	ng := filepath.Join(dir, "out.pcapng")
	if _, err := run(replay.Files{In: []string{in}, Out: ng}); err != nil {
		t.Error(err)
	}
	if b, _ := os.ReadFile(ng); reader(t, b).Header().Format != pcap.NG {
		t.Error("out.pcapng is not pcapng")
	}
	for _, f := range []replay.Files{
		{In: []string{in}, Out: in},
		{In: []string{in}, Out: good, Expect: good},
		{In: []string{filepath.Join(dir, "none")}, Out: filepath.Join(dir, "new")},
		{In: []string{put("text", []byte("some text"))}, Out: filepath.Join(dir, "new")},
		{In: []string{in}, Expect: filepath.Join(dir, "none"), Out: filepath.Join(dir, "new")},
		{In: []string{"q=" + in}, Out: filepath.Join(dir, "new")},
	} {
		if _, err := run(f); err == nil {
			t.Errorf("%+v: no error", f)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "new")); err == nil {
		t.Error("a refused run left an output")
	}
	left, _ := filepath.Glob(filepath.Join(os.TempDir(), "quillon-replay-*"))
	if len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

// mallocs is the number of allocations of a run over n packets.
func mallocs(t testing.TB, n int) uint64 {
	ps := make([]pcap.Packet, n)
	for i := range ps {
		ps[i] = at(int64(i), string("pcdrl"[i%5])+"rest")
	}
	in := capture(t, pcap.NewHeader(pcap.Classic), nil, ps...)
	r, err := replay.New(replay.Config{Spec: spec(t, "script"), Kinds: kinds(), Format: pcap.NG, All: true,
		Inputs: []replay.Input{{Reader: reader(t, in), Name: "in"}}})
	if err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, err := r.Run(io.Discard); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	return after.Mallocs - before.Mallocs
}

// TestMemoryIsConstant: ten times the packets allocate nothing more.
func TestMemoryIsConstant(t *testing.T) {
	few, many := mallocs(t, 1000), mallocs(t, 10000)
	if many > few+100 {
		t.Errorf("%d allocations for 1000 packets, %d for 10000", few, many)
	}
}

// BenchmarkReplay is a run of 256-byte frames that nothing happens to; ns/op
// includes building the graph, ns/packet hardly.
func BenchmarkReplay(b *testing.B) {
	const n = 100000
	h := pcap.NewHeader(pcap.Classic)
	h.SnapLen = 1600
	ps := make([]pcap.Packet, n)
	for i := range ps {
		ps[i] = at(int64(i), "p"+strings.Repeat("x", 255))
	}
	in := capture(b, h, nil, ps...)
	b.SetBytes(int64(len(in)))
	for b.Loop() {
		r, err := replay.New(replay.Config{Spec: spec(b, "script"), Kinds: kinds(), Inputs: []replay.Input{{Reader: reader(b, in), Name: "in"}}})
		if err != nil {
			b.Fatal(err)
		}
		if _, err := r.Run(io.Discard); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/packet")
}
