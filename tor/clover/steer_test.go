package clover

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"math"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/counter"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/hdr"
	wire "github.com/quillon/quillon/nf/hdr/clover"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/port/mem"
)

// Two frames of a capture of the papers' SwordBox with ConnectX-5 NICs
// (github.com/wantonsolutions/warm, two clients, entries of 1,024 bytes): a
// stale CAS of key 1, before and after steering.
const (
	staleCAS   = "ec0d9a6821ccec0d9a6821a0080045020048533e4000401163f6c0a80111c0a8010dcc2012b7003400001340ffff0000543580000c720000557a46b7a5000005725100008f4800080800000000000000080043368c0c"
	steeredCAS = "ec0d9a6821ccec0d9a6821a0080045020048533e4000401163f6c0a80111c0a8010dcc2012b7003400001340ffff0000543580000c720000557a46b7c5000005725100008f4800080800000000000000080047875d4e"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// rig speaks for clients and server, one exchange at a time.
type rig struct {
	*graphtest.Test
	t              testing.TB
	client, server netip.Addr
	rkey           uint32
	size           uint32
	msn            map[uint32]uint32 // of the answers on these queue pairs; on others it is the PSN, as of messages of one packet
}

func (r *rig) to(qpn, psn uint32, op hdr.Opcode, ext, payload []byte) graphtest.Result {
	r.Clock.Advance(time.Microsecond)
	return r.Push("a", frameOf{src: r.client, dst: r.server, sport: uint16(0xC000 + qpn), op: op, qpn: qpn, psn: psn, ext: ext, payload: payload, ackReq: true}.bytes())
}

func (r *rig) from(qpn, psn uint32, op hdr.Opcode, syn hdr.Syndrome, original uint64, payload []byte) graphtest.Result {
	r.Clock.Advance(time.Microsecond)
	ext := make([]byte, hdr.AETHLen)
	hdr.AETH(ext).SetSyndrome(syn)
	hdr.AETH(ext).SetMSN(psn)
	if msn, ok := r.msn[qpn]; ok {
		hdr.AETH(ext).SetMSN(msn)
	}
	if op == hdr.AtomicAck {
		ext = binary.BigEndian.AppendUint64(ext, original)
	}
	return r.Push("b", frameOf{src: r.server, dst: r.client, sport: uint16(0xC000 + qpn), op: op, qpn: qpn + 0x1000, psn: psn, ext: ext, payload: payload}.bytes())
}

// wireEntry fills p with a fresh entry of a key.
func wireEntry(p []byte, key uint64) {
	binary.LittleEndian.PutUint64(p, uint64(wire.Fresh(1)))
	binary.LittleEndian.PutUint64(p[wire.KeyAt:], key)
}

// write sends a WRITE of an entry and its ACK.
func (r *rig) write(qpn, psn uint32, va, key uint64, version uint8) {
	p := make([]byte, r.size)
	wireEntry(p, key)
	binary.LittleEndian.PutUint64(p, uint64(wire.Fresh(version)))
	r.to(qpn, psn, hdr.WriteOnly, reth(va, r.rkey, r.size), p)
	r.from(qpn, psn, hdr.Acknowledge, hdr.SynACK, 0, nil)
}

func (r *rig) swap(lh uint32, next, version uint8) uint64 {
	return uint64(wire.Pointer(lh)<<28 | wire.Pointer(next)<<19 | wire.Fresh(version))
}

// append links the entry with handle lh at va, with success.
func (r *rig) append(qpn, psn uint32, target, va uint64, lh uint32, key uint64) {
	r.write(qpn, psn, va, key, 1)
	r.to(qpn, psn+1, hdr.CompareSwap, atomicETH(target, r.rkey, r.swap(lh, 1, 1), uint64(wire.Fresh(1))), nil)
	r.from(qpn, psn+1, hdr.AtomicAck, hdr.SynACK, uint64(wire.Fresh(1)), nil)
}

// prove has the server execute an atomic of qpn's.
func (r *rig) prove(qpn, psn uint32) {
	r.to(qpn, psn, hdr.CompareSwap, atomicETH(0x10000, r.rkey, r.swap(1, 1, 1), uint64(wire.Fresh(1))), nil)
	r.from(qpn, psn, hdr.AtomicAck, hdr.SynACK, 1<<28, nil)
}

// warm pairs qpn and has four appends of other keys on it, so that handles are
// known; the next PSN is psn+8.
func (r *rig) warm(qpn, psn uint32, va uint64, lh uint32) {
	r.pair(qpn, psn-6)
	for i := range uint32(4) {
		at := va + uint64(i)*uint64(r.size)
		r.append(qpn, psn+2*i, 0x10000, at, lh+i, 1000+uint64(i))
	}
}

func newRig(t testing.TB, args graph.Args) *rig {
	if args["settle"] == "" {
		args["settle"] = "0"
	}
	return rigOf(t, graphtest.New(t, *Kind(), args))
}

func rigOf(t testing.TB, x *graphtest.Test) *rig {
	return &rig{Test: x, t: t, client: netip.MustParseAddr("10.77.0.2"), server: netip.MustParseAddr("10.77.0.1"), rkey: 7, size: 128, msn: map[uint32]uint32{}}
}

func only(t testing.TB, fs []graphtest.Frame) []byte {
	t.Helper()
	if len(fs) != 1 {
		t.Fatalf("%d frames came out, want 1", len(fs))
	}
	return fs[0].Bytes
}

// TestGoldenCAS: the frame that the papers' own implementation sent out, byte
// for byte.
func TestGoldenCAS(t *testing.T) {
	r := newRig(t, graph.Args{"clients": "trusted"})
	r.client, r.server = netip.MustParseAddr("192.168.1.17"), netip.MustParseAddr("192.168.1.13")
	r.rkey, r.size = 0x57251, 1024
	const handle0, va0 = 0x8f480, 0x557a46b78100
	at := func(lh uint32) uint64 { return va0 + uint64(lh-handle0)*1024 }
	if at(0x8f491) != 0x557a46b7c500 {
		t.Fatal("handles and addresses of the capture do not step together")
	}
	// QP 0x5434 creates key 1 at 0x557a46b7a500 and appends handle 0x8f491.
	r.warm(0x5434, 3185, at(0x8f4a0), 0x8f4a0)
	r.write(0x5434, 3193, 0x557a46b7a500, 1, 1)
	r.append(0x5434, 3194, 0x557a46b7a500, at(0x8f491), 0x8f491, 1)
	// QP 0x5435 has written handle 0x8f480 and does not know of that.
	r.pair(0x5435, 0xc71-6)
	r.write(0x5435, 0xc71, va0, 1, 1)
	got := r.Push("a", unhex(t, staleCAS))
	if b := only(t, got.Out["b"]); !bytes.Equal(b, unhex(t, steeredCAS)) {
		t.Errorf("steered to\n%x\nwant\n%s", b, steeredCAS)
	}
	if got.Out["b"][0].Reason != "steered-cas" || got.Out["b"][0].Verdict != packet.Rewritten {
		t.Errorf("verdict %v, reason %q", got.Out["b"][0].Verdict, got.Out["b"][0].Reason)
	}
	// A retransmission takes the same road although the tail has moved on.
	if b := only(t, r.Push("a", unhex(t, staleCAS)).Out["b"]); !bytes.Equal(b, unhex(t, steeredCAS)) {
		t.Errorf("the retransmission went another way:\n%x", b)
	}
}

// steered sets up key 5 with its tail at 0x900000 (handle 0x9000), known, and
// an entry written by QP 0x20 with its CAS due at PSN 109.
func steered(t testing.TB, args graph.Args) *rig {
	r := newRig(t, args)
	va := func(lh uint32) uint64 { return 0x900000 + uint64(lh-0x9000)*128 }
	r.warm(0x10, 100, va(0x9010), 0x9010)
	r.warm(0x20, 100, va(0x9020), 0x9020)
	r.append(0x10, 108, 0x800000, va(0x9000), 0x9000, 5)
	r.write(0x20, 108, va(0x9001), 5, 1)
	return r
}

func (r *rig) staleCAS(version uint8) graphtest.Result {
	return r.to(0x20, 109, hdr.CompareSwap, atomicETH(0x800000, r.rkey, r.swap(0x9001, 1, version), uint64(wire.Fresh(version))), nil)
}

func atomicOf(t testing.TB, b []byte) hdr.AtomicETH {
	t.Helper()
	var f hdr.Frame
	if why := hdr.Parse(b, &f); why != hdr.IsRoCE {
		t.Fatal(why)
	}
	if hdr.ICRC(b, &f) != hdr.StoredICRC(b, &f) {
		t.Error("ICRC is wrong")
	}
	return f.AtomicETHOf(b)
}

// TestVersions: a CAS that expects another version than the tail's gets the
// tail's, and its answer reads as if it had not.
func TestVersions(t *testing.T) {
	pass := steered(t, graph.Args{})
	if a := atomicOf(t, only(t, pass.staleCAS(9).Out["b"])); a.VA() != 0x800000 || pass.Counter("other-version") != 1 {
		t.Errorf("sent to %#x without being asked to adjust it", a.VA())
	}
	r := steered(t, graph.Args{"recycled": "adjust"})
	a := atomicOf(t, only(t, r.staleCAS(9).Out["b"]))
	if a.VA() != 0x900000 || wire.Pointer(a.Compare()) != wire.Fresh(1) || wire.Pointer(a.Swap()).Version() != 1 || wire.Pointer(a.Swap()).LH() != 0x9001 {
		t.Errorf("sent va %#x swap %#x compare %#x", a.VA(), a.Swap(), a.Compare())
	}
	orig := func(got graphtest.Result) uint64 {
		b := only(t, got.Out["a"])
		var f hdr.Frame
		hdr.Parse(b, &f)
		if hdr.ICRC(b, &f) != hdr.StoredICRC(b, &f) {
			t.Error("ICRC is wrong")
		}
		return f.AtomicAckETHOf(b).Original()
	}
	if v := orig(r.from(0x20, 109, hdr.AtomicAck, hdr.SynACK, uint64(wire.Fresh(1)), nil)); v != uint64(wire.Fresh(9)) {
		t.Errorf("success reads as %#x", v)
	}
	// The same answer once more: the server repeated it for a retransmission.
	if v := orig(r.from(0x20, 109, hdr.AtomicAck, hdr.SynACK, uint64(wire.Fresh(1)), nil)); v != uint64(wire.Fresh(9)) {
		t.Errorf("repeated success reads as %#x", v)
	}
}

// TestFailureIsNoSuccess: a failure whose original value happens to be what
// the client compares with must not look like success.
func TestFailureIsNoSuccess(t *testing.T) {
	r := steered(t, graph.Args{"recycled": "adjust"})
	r.staleCAS(9)
	b := only(t, r.from(0x20, 109, hdr.AtomicAck, hdr.SynACK, uint64(wire.Fresh(9)), nil).Out["a"])
	var f hdr.Frame
	hdr.Parse(b, &f)
	if f.AtomicAckETHOf(b).Original() == uint64(wire.Fresh(9)) {
		t.Error("the client takes it for success")
	}
	if r.Counter("appends-failed") != 1 || r.Counter("tails-dropped") == 0 {
		t.Error("the failure was not noticed")
	}
}

// known reports whether the tail of key 5 is believed.
func (r *rig) known() bool {
	s := r.App().(*Steer)
	k := s.keys.find(0, 5)
	return k != noSlot && s.keys.s[k].known()
}

// TestDrops: what empties a key.
func TestDrops(t *testing.T) {
	for name, do := range map[string]func(r *rig){
		"failed CAS":   func(r *rig) { r.staleCAS(1); r.from(0x20, 109, hdr.AtomicAck, hdr.SynACK, 1<<28, nil) },
		"sequence NAK": func(r *rig) { r.staleCAS(1); r.from(0x20, 109, hdr.Acknowledge, hdr.SynNAKSequence, 0, nil) },
		"access NAK":   func(r *rig) { r.staleCAS(1); r.from(0x20, 109, hdr.Acknowledge, hdr.SynNAKRemoteAccess, 0, nil) },
		"strange CAS at the tail": func(r *rig) {
			r.to(0x10, 110, hdr.CompareSwap, atomicETH(0x900000, r.rkey, 1, 0), nil)
		},
		"FETCH ADD at the tail": func(r *rig) { r.to(0x10, 110, hdr.FetchAdd, atomicETH(0x900000, r.rkey, 1, 0), nil) },
		"8-byte WRITE at the tail": func(r *rig) {
			r.to(0x10, 110, hdr.WriteOnly, reth(0x900000, r.rkey, 8), make([]byte, 8))
		},
		"tail rewritten": func(r *rig) { r.write(0x10, 110, 0x900000, 5, 2) },
		"flush":          func(r *rig) { r.App().(graph.Flusher).Flush(nil); r.write(0x10, 110, 0xA00000, 77, 1) },
	} {
		t.Run(name, func(t *testing.T) {
			r := steered(t, graph.Args{})
			if !r.known() {
				t.Fatal("the tail is not known to begin with")
			}
			do(r)
			if r.known() {
				t.Error("the tail is still believed")
			}
		})
	}
}

// TestRepair: a steered CAS that stays unanswered is sent again as it was,
// some times, and then given up.
func TestRepair(t *testing.T) {
	r := steered(t, graph.Args{"repair": "10ms"})
	want := only(t, r.staleCAS(1).Out["b"])
	got := r.Advance(20 * time.Second).Out["b"]
	if len(got) != maxRepairs {
		t.Errorf("sent again %d times, want %d", len(got), maxRepairs)
	}
	for _, x := range got {
		if !bytes.Equal(x.Bytes, want) || x.Verdict != packet.Generated {
			t.Fatalf("sent\n%x again as\n%x", want, x.Bytes)
		}
	}
	if r.Counter("given-up") != 1 || r.known() {
		t.Error("given up without consequence")
	}
}

// TestReadSteering: a stale read returns the tail, when that may be, under the
// version that was asked for; a tail that was recycled meanwhile returns under
// none.
func TestReadSteering(t *testing.T) {
	for _, x := range []struct {
		args    graph.Args
		steered bool
	}{{graph.Args{"mode": "write", "recycled": "adjust"}, false}, {graph.Args{}, false}, {graph.Args{"recycled": "adjust"}, true}} {
		r := newRig(t, x.args)
		va := func(lh uint32) uint64 { return 0x900000 + uint64(lh-0x9000)*128 }
		r.warm(0x10, 100, va(0x9010), 0x9010)
		r.write(0x10, 108, va(0x9000), 5, 3)
		r.append(0x10, 109, va(0x9000), va(0x9001), 0x9001, 5)
		out := r.to(0x10, 111, hdr.ReadRequest, reth(va(0x9000), r.rkey, 128), nil)
		b := only(t, out.Out["b"])
		var f hdr.Frame
		hdr.Parse(b, &f)
		want := va(0x9000)
		if x.steered {
			want = va(0x9001)
		}
		if got := f.RETHOf(b).VA(); got != want || hdr.ICRC(b, &f) != hdr.StoredICRC(b, &f) {
			t.Errorf("%v: read %#x, want %#x", x.args, got, want)
		}
		if !x.steered {
			continue
		}
		for had, give := range map[uint8]uint8{1: 3, 2: wire.NoVersion, 3: wire.NoVersion} {
			p := make([]byte, 128)
			binary.LittleEndian.PutUint64(p, uint64(wire.Fresh(had)))
			r.to(0x10, 111, hdr.ReadRequest, reth(va(0x9000), r.rkey, 128), nil)
			b := only(t, r.from(0x10, 111, hdr.ReadRespOnly, hdr.SynACK, 0, p).Out["a"])
			hdr.Parse(b, &f)
			if got := wire.Pointer(binary.LittleEndian.Uint64(f.PayloadOf(b))).Version(); got != give || hdr.ICRC(b, &f) != hdr.StoredICRC(b, &f) {
				t.Errorf("version %d came back as %d, want %d", had, got, give)
			}
		}
	}
}

// TestBadInput: a frame that the app does not understand passes untouched and is counted. A broken frame is
// dropped if the user wants that.
func TestBadInput(t *testing.T) {
	good := frameOf{src: netip.MustParseAddr("10.0.0.2"), dst: netip.MustParseAddr("10.0.0.1"), sport: 1, op: hdr.WriteOnly, qpn: 9, psn: 1,
		ext: reth(0x1000, 1, 128), payload: make([]byte, 128)}.bytes()
	change := func(f func(b []byte) []byte) []byte { return f(bytes.Clone(good)) }
	for name, b := range map[string][]byte{
		"not-roce":        change(func(b []byte) []byte { b[36]++; return b }),
		"truncated":       change(func(b []byte) []byte { return b[:60] }),
		"bad-length":      change(func(b []byte) []byte { b[39]--; return b }),
		"bad-ip":          change(func(b []byte) []byte { b[14] = 0x44; return b }),
		"fragment":        change(func(b []byte) []byte { b[20] |= 0x20; return b }),
		"deep-tags":       append(append(bytes.Clone(good[:12]), 0x88, 0xA8, 0, 1, 0x81, 0, 0, 2, 0x81, 0, 0, 3), good[12:]...),
		"unknown-opcode":  change(func(b []byte) []byte { b[42] = 0x15; return b }),
		"bad-tver":        change(func(b []byte) []byte { b[43] |= 1; return b }),
		"bad-ip-checksum": change(func(b []byte) []byte { b[24]++; return b }),
		"bad-icrc":        change(func(b []byte) []byte { b[100] ^= 1; return b }),
	} {
		for _, bad := range []string{"pass", "drop"} {
			t.Run(name+"/"+bad, func(t *testing.T) {
				x := graphtest.New(t, *Kind(), graph.Args{"bad": bad})
				got := x.Push("a", b)
				if x.Counter(name) != 1 {
					t.Errorf("not counted as %s", name)
				}
				broken := name == "truncated" || name == "bad-length" || name == "bad-ip" || name == "bad-ip-checksum" || name == "bad-icrc"
				if bad == "drop" && broken {
					if len(got.Dropped) != 1 || got.Dropped[0].Reason != name {
						t.Errorf("not dropped: %v", got)
					}
					return
				}
				if out := only(t, got.Out["b"]); !bytes.Equal(out, b) {
					t.Error("changed on the way")
				}
			})
		}
	}
}

func TestArgs(t *testing.T) {
	for _, args := range []graph.Args{
		{"mode": "maybe"}, {"keys": "0"}, {"keys": "many"}, {"servers": "10.0.0.1+x"}, {"only": "5-2"}, {"settle": "-1s"}, {"bad": "eat"}, {"recycled": "x"}, {"color": "red"}, {"hold": "0"}, {"ahead": "-1"}, {"ahead": "20000"}, {"repair": "2h"}, {"hot": "x"},
	} {
		if _, err := parseArgs(args); err == nil {
			t.Errorf("%v was accepted", args)
		}
	}
	x := graphtest.New(t, *Kind(), graph.Args{"keys": "64", "only": "1+2+10-20"})
	if err := x.Set(graph.Args{"keys": "65"}); err == nil {
		t.Error("keys changed while running")
	}
	if err := x.Set(graph.Args{"mode": "off"}); err != nil {
		t.Error(err)
	}
}

// TestMemory holds the bound: 64 bytes a steered key, 16 a cached address, and
// all of the default instance's tables in a fraction of 64 MiB.
func TestMemory(t *testing.T) {
	x := graphtest.New(t, *Kind(), graph.Args{})
	m := x.App().(graph.Reporter).Report().(Report).Memory
	t.Logf("%+v", m)
	if m.PerKey > 64 || m.PerAddress > 16 || m.Keys+m.Addresses+m.Conns > 16<<20 {
		t.Errorf("%+v", m)
	}
}

// recorded is n frames of clients at work: half writes, Zipf 0.99 over 1,024
// keys, entries of 128 bytes.
func recorded(t testing.TB, clients, n int) (in []string, frames [][]byte) {
	m := newModel(t, 3, clients, 1024, 0, false, graph.Args{"settle": "0"})
	cdf := make([]float64, 1024)
	sum := 0.0
	for i := range cdf {
		sum += math.Pow(float64(i+1), -0.99)
		cdf[i] = sum
	}
	m.pick = func() uint64 {
		x := m.rng.Float64() * sum
		for i, c := range cdf {
			if x < c {
				return uint64(i)
			}
		}
		return 0
	}
	m.record = func(side string, b []byte) {
		in = append(in, side)
		frames = append(frames, b)
	}
	for len(frames) < n {
		m.round()
	}
	return in, frames
}

// lap plays recorded frames through an app, in batches as they come.
type lap struct {
	inst      *graph.Instance
	pool      *packet.Pool
	cli, srv  *mem.Port
	now       clock.Time
	in, batch packet.Batch
	side      string
	t         testing.TB
}

// kept is memory that outlives an app.
func kept(_ string, size int) ([]byte, error) { return make([]byte, size), nil }

func newLap(t testing.TB, kind graph.Kind, args graph.Args, memory func(string, int) ([]byte, error)) *lap {
	pool, err := packet.NewPool(1024, 2048, nil)
	if err != nil {
		t.Fatal(err)
	}
	clk := clock.NewManual(0)
	cli, a := mem.NewWire("client", "a", pool, 256, clk)
	srv, b := mem.NewWire("server", "b", pool, 256, clk)
	spec := &graph.Spec{
		Ports: map[string]graph.PortSpec{"a": {Kind: "mem"}, "b": {Kind: "mem"}},
		Apps:  map[string]graph.AppSpec{"nf": {Kind: kind.Name, Args: args}},
		Links: []string{"a.out -> nf.a", "nf.b -> b.in", "b.out -> nf.b", "nf.a -> a.in"},
	}
	inst, err := graph.New(graph.Config{Spec: spec, Kinds: []graph.Kind{kind}, Ports: map[string][]port.Port{"a": {a}, "b": {b}}, Memory: memory})
	if err != nil {
		t.Fatal(err)
	}
	return &lap{inst: inst, pool: pool, cli: cli, srv: srv, t: t}
}

func (l *lap) play(in []string, frames [][]byte) {
	for i, b := range frames {
		if l.in.Full() || l.in.Len() > 0 && l.side != in[i] {
			l.flush()
		}
		l.side = in[i]
		x := l.pool.Get()
		x.SetBytes(b)
		l.in.Add(x)
	}
	l.flush()
}

func (l *lap) flush() {
	l.now += 10000 // half a round of the model
	if err := l.inst.Push(l.side, l.now, &l.in); err != nil {
		l.t.Fatal(err)
	}
	for _, p := range []*mem.Port{l.cli, l.srv} {
		for {
			if n, _ := p.Rx(&l.batch); n == 0 {
				break
			}
			l.batch.PutAll()
		}
	}
}

// pass forwards everything: what the harness costs.
func passKind() graph.Kind {
	return graph.Kind{Name: "pass", In: []string{"a", "b"}, Out: []string{"a", "b"},
		New: func(graph.Env, graph.Args) (graph.App, error) { return passApp{}, nil }}
}

type passApp struct{}

func (passApp) Push(c *graph.Ctx, in int, b *packet.Batch) {
	for _, x := range b.Bufs() {
		c.Emit(1-in, x)
	}
}

// BenchmarkMix is the cost of a recorded Clover mix, steered and merely
// passed; the difference is what steering costs, ICRCs included.
func BenchmarkMix(b *testing.B) {
	in, frames := recorded(b, 48, 60000)
	for _, x := range []struct {
		name string
		kind graph.Kind
		args graph.Args
	}{{"pass", passKind(), nil}, {"off", *Kind(), graph.Args{"mode": "off"}}, {"steer", *Kind(), graph.Args{"settle": "0"}}} {
		b.Run(x.name, func(b *testing.B) {
			b.ReportAllocs()
			n := 0
			b.ResetTimer()
			for range b.N {
				b.StopTimer()
				l := newLap(b, x.kind, x.args, kept)
				l.play(in[:6000], frames[:6000])
				b.StartTimer()
				l.play(in[6000:], frames[6000:])
				n += len(in) - 6000
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/packet")
		})
	}
}

// BenchmarkJournal is the cost of keeping CASes on record. Pieces of a recorded mix are played without and
// with memory that outlives the app, in turns, and the least time of each piece counts.
func BenchmarkJournal(b *testing.B) {
	const piece, warm = 1500, 6000
	in, frames := recorded(b, 48, 60000)
	n := (len(in) - warm) / piece
	clk := clock.NewWall()
	took := [2][]clock.Duration{make([]clock.Duration, n), make([]clock.Duration, n)}
	noted := uint64(0)
	for round := range b.N {
		laps := [2]*lap{newLap(b, *Kind(), graph.Args{"settle": "0"}, nil), newLap(b, *Kind(), graph.Args{"settle": "0"}, kept)}
		for _, l := range laps {
			l.play(in[:warm], frames[:warm])
		}
		for k := range n {
			for i := range laps {
				i = (i + k + round) % 2
				from, start := warm+k*piece, clk.Now()
				laps[i].play(in[from:from+piece], frames[from:from+piece])
				if d := clk.Now().Sub(start); round == 0 || d < took[i][k] {
					took[i][k] = d
				}
			}
		}
		noted = 0
		for _, c := range laps[1].inst.Counters() {
			if c.Name == "appends" {
				noted += c.Value
			}
		}
	}
	var sum [2]float64
	for i := range took {
		for _, d := range took[i] {
			sum[i] += float64(d) / float64(n*piece)
		}
	}
	b.ReportMetric(sum[0], "ns/packet")
	b.ReportMetric(sum[1]-sum[0], "more/packet")
	b.ReportMetric(float64(noted)/float64(len(in)), "notes/packet")
}

// TestNoAllocation: nothing is allocated for a frame, steered, passed, bad or
// dropped.
func TestNoAllocation(t *testing.T) {
	in, frames := recorded(t, 24, 8000)
	bad := bytes.Clone(frames[0])
	bad[60] ^= 1
	overtaken := overtake(in, frames)
	for _, x := range []struct {
		args      graph.Args
		frames    [][]byte
		overtaken bool
	}{
		{graph.Args{"settle": "0"}, frames, false},
		{graph.Args{"settle": "0"}, overtaken, true},
		{graph.Args{"settle": "0", "hot": "8", "addrs": "64", "bad": "drop"}, frames, false},
	} {
		args, frames := x.args, x.frames
		l := newLap(t, *Kind(), args, kept)
		l.play(in[:2000], frames[:2000])
		at := 2000
		n := testing.AllocsPerRun(50, func() {
			l.play(in[at:at+100], frames[at:at+100])
			l.play([]string{"a", "b"}, [][]byte{bad, bad})
			at += 100
		})
		if n != 0 {
			t.Errorf("%v: %v allocations for 102 frames", args, n)
		}
		for _, c := range l.inst.Counters() {
			if c.Name == "waited" && c.Value == 0 && x.overtaken {
				t.Error("no answer had to wait")
			}
		}
	}
}

// overtake has answers overtake each other, so that some must be held.
func overtake(in []string, frames [][]byte) [][]byte {
	frames = slices.Clone(frames)
	for i := 0; i+1 < len(in); i++ {
		if in[i] == "b" && in[i+1] == "b" {
			frames[i], frames[i+1] = frames[i+1], frames[i]
			i++
		}
	}
	return frames
}

// TestWorkers: two workers with one state, under the race detector.
func TestWorkers(t *testing.T) {
	in, frames := recorded(t, 8, 20000)
	frames = overtake(in, frames)
	k := Kind()
	var shared any
	var once sync.Once
	share := func(make func() any) any { once.Do(func() { shared = make() }); return shared }
	var wg sync.WaitGroup
	var laps []*lap
	for w := range 2 {
		app, err := k.New(graph.Env{Name: "steer", Worker: w, Workers: 2, Share: share}, graph.Args{"settle": "0"})
		if err != nil {
			t.Fatal(err)
		}
		one := graph.Kind{Name: k.Name, In: k.In, Out: k.Out, Params: k.Params, Counters: append([]counter.Def(nil), k.Counters...), Reasons: k.Reasons,
			New: func(graph.Env, graph.Args) (graph.App, error) { return app, nil }}
		l := newLap(t, one, nil, kept)
		laps = append(laps, l)
	}
	warm := len(in) / 2 // by then connections and keys are known
	laps[0].play(in[:warm], frames[:warm])
	laps[1].now = laps[0].now
	for w, l := range laps {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := warm + w*50; i+50 < len(in); i += 100 {
				l.play(in[i:i+50], frames[i:i+50])
			}
		}()
	}
	wg.Wait()
	waited := uint64(0)
	for _, l := range laps {
		if err := l.inst.Conservation(); err != nil {
			t.Error(err)
		}
		for _, c := range l.inst.Counters() {
			if c.Name == "waited" {
				waited += c.Value
			}
		}
	}
	if waited == 0 {
		t.Error("no answer was held")
	}
}

func FuzzSteer(f *testing.F) {
	stale, _ := hex.DecodeString(staleCAS)
	f.Add(stale, stale, []byte{1})
	in, frames := recorded(f, 4, 400)
	for i := 0; i+1 < len(frames); i += 40 {
		f.Add(frames[i], frames[i+1], []byte{byte(i)})
	}
	f.Fuzz(func(t *testing.T, one, two, order []byte) {
		l := newLap(t, *Kind(), graph.Args{"settle": "0", "keys": "4", "addrs": "8", "conns": "4", "repair": "1ms"}, kept)
		l.play(in[:40], frames[:40])
		for _, o := range order {
			b := one
			if o&1 != 0 {
				b = two
			}
			if len(b) > 1900 {
				return
			}
			side := "a"
			if o&2 != 0 {
				side = "b"
			}
			b = bytes.Clone(b)
			if o&4 != 0 { // as a peer with a right ICRC would send it
				var p hdr.Frame
				if hdr.Parse(b, &p) == hdr.IsRoCE {
					hdr.SetICRC(b, &p)
				}
			}
			l.play([]string{side}, [][]byte{b})
		}
		if err := l.inst.Conservation(); err != nil {
			t.Error(err)
		}
	})
}
