package p4

import (
	"encoding/binary"
	"math/rand/v2"
	"os"
	"runtime"
	"testing"

	"github.com/quillon/quillon/nf/clock"
)

// routerSwitch runs the router of p4src with n routes, and yields frames for
// them.
func routerSwitch(b testing.TB, n int) (*Switch, [][]byte) {
	src, err := os.ReadFile("../../p4src/ipv4_router.json")
	if err != nil {
		b.Fatal(err)
	}
	p, err := Load(src)
	if err != nil {
		b.Fatal(err)
	}
	sw, err := NewSwitch(p, Config{})
	if err != nil {
		b.Fatal(err)
	}
	must := func(_ Handle, err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	mac := []byte{2, 0, 0, 0, 0, 1}
	must(sw.Insert("router_ingress.router_mac", Entry{Key: []Match{{Value: []byte{1}}, {Value: mac}}, Action: Action{Name: "NoAction"}}))
	for hop := range 8 {
		must(sw.Insert("router_ingress.next_hop", Entry{Key: []Match{{Value: []byte{byte(hop + 1)}}},
			Action: Action{"router_ingress.forward", [][]byte{{2, 0, 0, 0, 1, byte(hop)}, {2, 0, 0, 0, 2, byte(hop)}, {byte(hop + 2)}}}}))
	}
	r := rand.New(rand.NewPCG(1, 2))
	var frames [][]byte
	for len(frames) < n {
		length := 16 + r.IntN(9)
		addr := r.Uint32() &^ (1<<(32-length) - 1)
		if addr>>28 >= 14 {
			continue
		}
		_, err := sw.Insert("router_ingress.ipv4_lpm", Entry{Key: []Match{{Value: binary.BigEndian.AppendUint32(nil, addr), Prefix: length}},
			Action: Action{"router_ingress.set_next_hop", [][]byte{{byte(r.IntN(8) + 1)}}}})
		if err != nil {
			continue // drawn before
		}
		f := make([]byte, 64)
		copy(f, mac)
		f[12], f[14], f[17], f[22], f[23] = 8, 0x45, 50, 64, 17
		binary.BigEndian.PutUint32(f[26:], r.Uint32())
		binary.BigEndian.PutUint32(f[30:], addr|uint32(r.Uint64N(1<<(32-length))))
		binary.BigEndian.PutUint16(f[24:], uint16(csum16(f[14:34])))
		frames = append(frames, f)
	}
	return sw, frames
}

// BenchmarkRouter routes minimal frames by 10,000 routes.
func BenchmarkRouter(b *testing.B) {
	sw, frames := routerSwitch(b, 10_000)
	sent := 0
	emit := func(uint32, []byte) { sent++ }
	b.ReportAllocs()
	i, now := 0, clock.Time(0)
	for b.Loop() {
		now += 500
		sw.Process(now, 1, frames[i%len(frames)], emit)
		i++
	}
	if sent != i {
		b.Fatalf("%d of %d were routed; drops: %v", sent, i, sw.dropped)
	}
	b.ReportMetric(1e3/(float64(b.Elapsed().Nanoseconds())/float64(i)), "Mpps")
}

func TestRouterRoutes(t *testing.T) {
	sw, frames := routerSwitch(t, 500)
	sent := 0
	for _, f := range frames {
		sw.Process(1000, 1, f, func(port uint32, out []byte) {
			if port < 2 || port > 9 || out[22] != 63 || csum16(out[14:34]) != 0 {
				t.Fatalf("port %d: %x", port, out)
			}
			sent++
		})
	}
	if sent != len(frames) {
		t.Errorf("%d of %d were routed", sent, len(frames))
	}
	emit := func(uint32, []byte) {}
	if n := testing.AllocsPerRun(10, func() {
		for _, f := range frames {
			sw.Process(1000, 1, f, emit)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkLoad loads the largest program of p4src.
func BenchmarkLoad(b *testing.B) {
	src, err := os.ReadFile("../../p4src/swordbox_mux.json")
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(src)))
	for b.Loop() {
		if _, err := Load(src); err != nil {
			b.Fatal(err)
		}
	}
}

// TestExactMemory: a million exact entries of a MAC table stay within 200 MiB.
func TestExactMemory(t *testing.T) {
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	sw := matchProgram("exact", []KeyInfo{{Match: Exact, Bits: 48}}).load(t, Config{})
	before := heap()
	key, arg := make([]byte, 6), make([]byte, 4)
	e := Entry{Key: []Match{{Value: key}}, Action: Action{"send", [][]byte{arg}}}
	const n = 1_000_000
	for i := range n {
		binary.BigEndian.PutUint32(key[1:], uint32(i)*2654435761)
		binary.BigEndian.PutUint32(arg, uint32(i))
		if _, err := sw.Insert("t", e); err != nil {
			t.Fatal(err)
		}
	}
	mib := float64(heap()-before) / (1 << 20)
	t.Logf("%d entries in %.0f MiB", n, mib)
	if mib > 200 {
		t.Errorf("%.0f MiB", mib)
	}
	runtime.KeepAlive(sw)
}
