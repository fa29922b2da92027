package nffgo

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"github.com/intel-go/nff-go/common"
	"github.com/intel-go/nff-go/flow"
	nff "github.com/intel-go/nff-go/packet"

	"github.com/quillon/quillon/internal/registry"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/packet"
)

func TestMain(m *testing.M) {
	if os.Getpid() == 1 {
		inGuest(m)
	}
	os.Exit(m.Run())
}

// start starts nff-go without ports, once.
var start = func() func(testing.TB) {
	started := false
	return func(t testing.TB) {
		t.Helper()
		if started {
			return
		}
		started = true
		err := flow.SystemInit(&flow.Config{
			DPDKArgs: []string{"--no-pci", "--no-huge", "--no-shconf", "--no-telemetry", "-m", "256", "--log-level=error"}, LogType: common.No,
		})
		if err == nil {
			err = flow.SystemInitPortsAndMemory()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}()

const between = `
ports: {pa: {kind: test}, pb: {kind: test}}
apps: {x: {kind: %s, args: {%s}}}
links: [pa.out -> x.a, x.b -> pb.in, pb.out -> x.b, x.a -> pa.in]`

func spec(t testing.TB, kind, args string) *graph.Spec {
	t.Helper()
	s, err := graph.ParseSpec(fmt.Appendf(nil, between, kind, args))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// newGraph is a graph with one app between ports pa and pb, at a time that stands still.
func newGraph(t testing.TB, kinds []graph.Kind, kind, args string, frames int) (*Graph, *clock.Manual) {
	t.Helper()
	start(t)
	clk := clock.NewManual(clock.Time(1e9))
	g, err := New(Config{Graph: graph.Config{Spec: spec(t, kind, args), Kinds: kinds, Clock: clk, Seed: 1}, Ports: []string{"pa", "pb"}, Frames: frames})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
		if n := g.pool.InUse(); n != 0 {
			t.Errorf("%d buffers are left", n)
		}
	})
	return g, clk
}

// mbufs are packets of nff-go's, made once: nff-go takes none back outside of flows.
var mbufs []*nff.Packet

// split has a Splitter handle these frames in a burst whose other places are empty, and returns what is in each flow.
func split(t testing.TB, f flow.VectorSplitFunction, frames ...[]byte) (flows [3][][]byte) {
	t.Helper()
	for len(mbufs) < burst {
		p, err := nff.NewPacket()
		if err != nil {
			t.Fatal(err)
		}
		mbufs = append(mbufs, p)
	}
	var mask [burst]bool
	var to [burst]uint8
	for i := range to {
		to[i] = 77
	}
	for i := range frames {
		k := burst - len(frames) + i
		if !set(mbufs[k], frames[i]) {
			t.Fatalf("no room for %d bytes", len(frames[i]))
		}
		mask[k] = true
	}
	f(mbufs, &mask, &to, nil)
	for i, n := range to {
		if !mask[i] {
			if n != 77 {
				t.Fatalf("place %d has no packet, and got flow %d", i, n)
			}
			continue
		}
		flows[n] = append(flows[n], bytes.Clone(mbufs[i].GetRawPacketBytes()))
	}
	return flows
}

// udp is an Ethernet frame with a datagram from 10.0.0.host and n bytes.
func udp(host byte, port uint16, n int) []byte {
	b := make([]byte, 42+n)
	copy(b, []byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45})
	binary.BigEndian.PutUint16(b[16:], uint16(28+n))
	b[22], b[23] = 64, 17
	copy(b[26:], []byte{10, 0, 0, host, 192, 0, 2, 1})
	var sum uint32
	for i := 14; i < 34; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	sum = sum>>16 + sum&0xffff
	binary.BigEndian.PutUint16(b[24:], ^uint16(sum+sum>>16))
	binary.BigEndian.PutUint16(b[34:], port)
	binary.BigEndian.PutUint16(b[36:], 53)
	binary.BigEndian.PutUint16(b[38:], uint16(8+n))
	for i := range n {
		b[42+i] = byte(i)
	}
	return b
}

// TestSplitter runs graphs of real functions on random bursts in both directions: what leaves, and where, is what leaves the same
// graph without nff-go, frame by frame.
func TestSplitter(t *testing.T) {
	for _, c := range []struct{ kind, args string }{
		{"wire", ""},
		{"napt", "public: 198.51.100.1"},
		{"vxlan", "vni: 42, local: 192.0.2.1, local-mac: '02:00:00:00:00:01', remote: 192.0.2.2, remote-mac: '02:00:00:00:00:02'"},
		{"firewall", "rules: 'allow+in:a'"},
	} {
		t.Run(c.kind, func(t *testing.T) {
			g, clk := newGraph(t, registry.Kinds(), c.kind, c.args, 0)
			twin, twinClk := newGraph(t, registry.Kinds(), c.kind, c.args, 0)
			rnd := rand.New(rand.NewPCG(1, 2))
			moved := 0
			for range 300 {
				in := rnd.IntN(2)
				var frames [][]byte
				var batch packet.Batch
				for range 1 + rnd.IntN(burst) {
					f := udp(byte(1+rnd.IntN(20)), uint16(1024+rnd.IntN(50)), rnd.IntN(1400))
					if rnd.IntN(10) == 0 {
						f = f[:14+rnd.IntN(len(f)-14)] // cut short
					}
					frames = append(frames, f)
					b := twin.pool.Get()
					b.SetBytes(f)
					batch.Add(b)
				}
				clk.Advance(1000)
				twinClk.Advance(1000)
				got := split(t, g.Splitter(g.names[in]), frames...)
				if err := twin.inst.PushTo(0, twin.names[in], twinClk.Now(), &batch); err != nil {
					t.Fatal(err)
				}
				var want [2][][]byte
				for _, x := range twin.out {
					want[x.port] = append(want[x.port], bytes.Clone(x.b.Bytes()))
					x.b.Put()
				}
				twin.out = twin.out[:0]
				for k := range want {
					if !slices.EqualFunc(got[k], want[k], bytes.Equal) {
						t.Fatalf("flow %d: %d frames, want %d, or they differ", k, len(got[k]), len(want[k]))
					}
					moved += len(want[k])
				}
				if n := len(got[0]) + len(got[1]) + len(got[2]); n != len(frames) {
					t.Fatalf("%d packets of %d", n, len(frames))
				}
			}
			if moved == 0 {
				t.Error("nothing left the graph")
			}
			if err := g.inst.Conservation(); err != nil {
				t.Error(err)
			}
			if g.Err() != nil {
				t.Error(g.Err())
			}
		})
	}
}

// twice sends each frame twice, or as often as it says in its first byte.
var twice = graph.Kind{Name: "twice", In: []string{"a", "b"}, Out: []string{"a", "b"},
	New: func(graph.Env, graph.Args) (graph.App, error) { return twiceApp{}, nil }}

type twiceApp struct{}

func (twiceApp) Push(c *graph.Ctx, in int, b *packet.Batch) {
	for _, x := range b.Bufs() {
		if x.Bytes()[0] == 0xff {
			panic("as asked")
		}
		if y := c.Copy(x); y != nil {
			copy(y.Bytes(), x.Bytes())
			c.Emit(1-in, y)
		}
		c.Emit(1-in, x)
	}
}

// TestMoreThanCame has an app send more frames than packets come to carry them: they leave in order, in packets that come later or
// are made by a generator, and those that are too many are counted.
func TestMoreThanCame(t *testing.T) {
	g, _ := newGraph(t, []graph.Kind{twice}, "twice", "", 0)
	var got []byte
	sent := 0
	collect := func(flows [3][][]byte) {
		for _, f := range flows[1] {
			got = append(got, f[1])
		}
	}
	for range 10 {
		var frames [][]byte
		for range 7 {
			frames = append(frames, []byte{0, byte(sent), 2, 3})
			sent++
		}
		collect(split(t, g.Splitter("pa"), frames...))
	}
	if s := g.Stats(); s.Received != 70 || s.Sent != 70 || s.Waiting != 70 {
		t.Errorf("%+v", s)
	}
	for g.Stats().Waiting > 0 {
		collect(split(t, g.Ticks(), []byte{9}, []byte{9}))
	}
	for i, n := range got {
		if n != byte(i/2) {
			t.Fatalf("frame %d is %d", i, n)
		}
	}
	if len(got) != 2*sent {
		t.Errorf("%d frames, want %d", len(got), 2*sent)
	}
	if flows := split(t, g.Ticks(), []byte{9}, []byte{9}); len(flows[2]) != 2 {
		t.Error("packets of a generator leave though nothing does")
	}
	for range 2*queued/burst + 1 {
		split(t, g.Splitter("pb"), slices.Repeat([][]byte{{0, 1}}, burst)...)
	}
	if s := g.Stats(); s.Waiting > queued || s.NoRoom == 0 || s.Sent+s.NoRoom+uint64(s.Waiting) != 2*s.Received {
		t.Errorf("%+v", s)
	}
}

// TestPanic has an app panic: the graph ends, packets are dropped, and Err says why.
func TestPanic(t *testing.T) {
	g, _ := newGraph(t, []graph.Kind{twice}, "twice", "", 0)
	split(t, g.Splitter("pa"), []byte{0xff})
	if g.Err() == nil {
		t.Fatal("no error")
	}
	if flows := split(t, g.Splitter("pa"), []byte{1}, []byte{1}); len(flows[2]) != 2 {
		t.Error("packets are not dropped")
	}
}

// TestSizes: frames that become longer than an mbuf, or come longer than a buffer, are counted.
func TestSizes(t *testing.T) {
	g, _ := newGraph(t, registry.Kinds(), "vxlan", "vni: 42, local: 192.0.2.1, local-mac: '02:00:00:00:00:01', remote: 192.0.2.2, remote-mac: '02:00:00:00:00:02', mtu: 9000", 0)
	for _, n := range []int{1500, 1980, 2006} {
		split(t, g.Splitter("pa"), udp(1, 1, n-42))
	}
	s := g.Stats()
	if s.Received != 3 || s.Sent+s.TooLong+s.NoRoom > 3 || s.Waiting != 0 || s.Sent == 0 {
		t.Errorf("%+v", s)
	}
	for _, c := range []Config{{}, {Ports: make([]string, 255)}} {
		if _, err := New(c); err == nil {
			t.Errorf("%d ports are taken", len(c.Ports))
		}
	}
}

// handlers of nff-go, and what they do, said without it.
var handlers = map[string]struct {
	f    flow.SeparateFunction
	want func(b []byte) []byte // nil: dropped
}{
	"swap": {
		func(p *nff.Packet, _ flow.UserContext) bool {
			p.Ether.SAddr, p.Ether.DAddr = p.Ether.DAddr, p.Ether.SAddr
			return true
		},
		func(b []byte) []byte { return slices.Concat(b[6:12], b[:6], b[12:]) },
	},
	"grow": {
		func(p *nff.Packet, _ flow.UserContext) bool {
			return p.EncapsulateHead(12, 4) && p.PacketBytesChange(12, []byte{0x81, 0, 0, 7})
		},
		func(b []byte) []byte { return slices.Concat(b[:12], []byte{0x81, 0, 0, 7}, b[12:]) },
	},
	"shrink": {
		func(p *nff.Packet, _ flow.UserContext) bool { return p.DecapsulateHead(0, 14) },
		func(b []byte) []byte { return b[14:] },
	},
	"port": {
		func(p *nff.Packet, _ flow.UserContext) bool {
			if p.ParseData() < 0 {
				return true
			}
			ip := p.GetIPv4()
			return ip == nil || p.GetUDPForIPv4() == nil || nff.SwapBytesUint16(p.GetUDPForIPv4().SrcPort)%2 == 0
		},
		func(b []byte) []byte {
			if b[35]%2 != 0 {
				return nil
			}
			return b
		},
	},
}

// TestApp runs handlers as apps in a graph: each does to frames what it says, whatever the one before did to the mbuf.
func TestApp(t *testing.T) {
	start(t)
	for name, h := range handlers {
		t.Run(name, func(t *testing.T) {
			g, clk := newGraph(t, []graph.Kind{App(name, "a handler", h.f)}, name, "", 0)
			rnd := rand.New(rand.NewPCG(3, 4))
			dropped := 0
			for range 500 {
				f := udp(byte(rnd.IntN(20)), uint16(rnd.IntN(1<<16)), rnd.IntN(1430))
				b := g.pool.Get()
				b.SetBytes(f)
				var batch packet.Batch
				batch.Add(b)
				in := rnd.IntN(2)
				if err := g.inst.PushTo(0, g.names[in], clk.Now(), &batch); err != nil {
					t.Fatal(err)
				}
				want := h.want(f)
				if want == nil {
					dropped++
				}
				if len(g.out) != 1 && want != nil || len(g.out) != 0 && want == nil {
					t.Fatalf("%d frames left", len(g.out))
				}
				for _, x := range g.out {
					if x.port != uint8(1-in) || !bytes.Equal(x.b.Bytes(), want) {
						t.Fatalf("port %d:\n%x, want\n%x", x.port, x.b.Bytes(), want)
					}
					x.b.Put()
				}
				g.out = g.out[:0]
			}
			for _, c := range g.inst.Counters() {
				if c.Name == "refused" && c.Value != uint64(dropped) {
					t.Errorf("%d are counted as refused, want %d", c.Value, dropped)
				}
			}
			if err := g.inst.Conservation(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestNoAllocation: bursts allocate nothing in Go.
func TestNoAllocation(t *testing.T) {
	g, _ := newGraph(t, registry.Kinds(), "wire", "", 0)
	f := g.Splitter("pa")
	split(t, f, udp(1, 1, 100))
	var mask [burst]bool
	var to [burst]uint8
	for i := range mask {
		mask[i] = true
		set(mbufs[i], udp(1, 1, 100))
	}
	if n := testing.AllocsPerRun(100, func() { f(mbufs, &mask, &to, nil) }); n != 0 {
		t.Errorf("%v allocations a burst", n)
	}
}

// BenchmarkSplitter is a burst of 32 packets of 142 bytes through a graph that passes them on.
func BenchmarkSplitter(b *testing.B) {
	g, _ := newGraph(b, registry.Kinds(), "wire", "", 0)
	f := g.Splitter("pa")
	split(b, f, udp(1, 1, 100))
	var mask [burst]bool
	var to [burst]uint8
	for i := range mask {
		mask[i] = true
		set(mbufs[i], udp(1, 1, 100))
	}
	for b.Loop() {
		f(mbufs, &mask, &to, nil)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/burst, "ns/packet")
}
