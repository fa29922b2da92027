package swordbox

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/port/mem"
)

// player gives recorded frames to a box, and discards the frames that come out.
type player struct {
	inst  *graph.Instance
	pool  *packet.Pool
	ends  [2]*mem.Port
	batch packet.Batch
	out   packet.Batch
	t     testing.TB
}

func newPlayer(t testing.TB, args graph.Args) *player {
	t.Helper()
	return newPlayerOf(t, args, 1024)
}

// newPlayerOf is a player with so many buffers.
func newPlayerOf(t testing.TB, args graph.Args, buffers int) *player {
	t.Helper()
	pool, err := packet.NewPool(buffers, 2048, nil)
	if err != nil {
		t.Fatal(err)
	}
	clk := clock.NewManual(0)
	clients, a := mem.NewWire("clients", "a", pool, 256, clk)
	server, b := mem.NewWire("server", "b", pool, 256, clk)
	kind := *Kind()
	inst, err := graph.New(graph.Config{
		Spec: &graph.Spec{
			Ports: map[string]graph.PortSpec{"a": {Kind: "mem"}, "b": {Kind: "mem"}},
			Apps:  map[string]graph.AppSpec{"nf": {Kind: kind.Name, Args: args}},
			Links: []string{"a.out -> nf.a", "nf.b -> b.in", "b.out -> nf.b", "nf.a -> a.in"},
		},
		Kinds: []graph.Kind{kind}, Ports: map[string][]port.Port{"a": {a}, "b": {b}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return &player{inst: inst, pool: pool, ends: [2]*mem.Port{clients, server}, t: t}
}

func (p *player) play(tape []taped) {
	for _, x := range tape {
		b := p.pool.Get()
		if b == nil || !b.SetBytes(x.b) {
			p.t.Fatal("no buffer")
		}
		p.batch.Add(b)
		if err := p.inst.Push(x.in, x.at, &p.batch); err != nil {
			p.t.Fatal(err)
		}
		for _, e := range p.ends {
			for {
				if n, _ := e.Rx(&p.out); n == 0 {
					break
				}
				p.out.PutAll()
			}
		}
	}
}

func (p *player) counter(name string) uint64 {
	for _, c := range p.inst.Counters() {
		if c.Node == "nf" && c.Name == name {
			return c.Value
		}
	}
	p.t.Fatalf("no counter %q", name)
	return 0
}

// round is a bit of everything that may happen to frames of b, whose operations
// go over the connection of a; the word at va is known when replace is set.
func round(r *rig, a, b *party, va uint64, replace bool) {
	push := func(in string, f []byte) { r.Push(in, f) }
	request := func(op hdr.Opcode, ext, payload []byte) []byte { return b.made(op, b.psn, ext, payload) }
	// A WRITE, and one that the server misses, and that comes again, too.
	write := func() []byte { return request(hdr.WriteOnly, reth(va, testRKey, 8), little(uint64(b.psn))) }
	done := func(answer func()) { b.psn++; answer() }
	ack := func() { a.ack() }
	push("a", write())
	done(ack)
	push("a", write())
	a.nak(a.spsn, hdr.SynNAKSequence)
	push("a", write())
	value := little(uint64(b.psn) + 1 | 1) // after what follows
	done(ack)
	for _, x := range [][]byte{
		request(hdr.FetchAdd, atomicETH(va, testRKey, 1, 0), nil),
		request(hdr.CompareSwap, atomicETH(va, testRKey, 1, 1<<40), nil),
		request(hdr.MaskedCompSwap, maskedETH(va, testRKey, 1, 0, 1, 1), nil),
	} {
		x = change(x, func(p []byte, f *hdr.Frame) { f.BTHOf(p).SetPSN(b.psn & hdr.PSNMask) })
		push("a", x)
		if replace {
			done(ack)
		} else {
			done(func() { a.atomicAck(7) })
		}
		push("a", x) // it did not get the answer
	}
	// A READ, its answer twice, and once more.
	read := request(hdr.ReadRequest, reth(va, testRKey, 8), nil)
	push("a", read)
	answer := a.response(hdr.ReadRespOnly, a.spsn, aeth(hdr.SynACK, a.smsn+1), value)
	a.spsn++
	a.smsn++
	push("b", answer)
	push("b", answer)
	push("a", read)
	a.answer(hdr.ReadRespOnly, nil, value)
	b.psn++
	// A long one.
	push("a", request(hdr.WriteOnly, reth(va-64, testRKey, 128), make([]byte, 128)))
	done(ack)
	// Dropped, or passed.
	push("a", b.made(hdr.WriteOnly, b.psn+3, reth(va, testRKey, 8), little(1)))
	push("a", b.made(hdr.ReadRequest, b.psn-1, reth(va, testRKey, 8), nil))
	push("b", a.response(hdr.Acknowledge, a.spsn+100, aeth(hdr.SynACK, 1), nil))
	push("b", a.response(hdr.Acknowledge, a.spsn-2, aeth(hdr.SynACK, 1), nil))
	push("a", request(hdr.UC|hdr.SendOnly, nil, little(1)))
	spoofed := request(hdr.WriteOnly, reth(va+0x10000, testRKey, 8), little(1))
	push("a", change(spoofed, func(p []byte, f *hdr.Frame) { f.IPv4Of(p)[15] ^= 0x80 }))
	bad := bytes.Clone(write())
	binary.BigEndian.PutUint16(bad[14+10:], 0x1234)
	push("a", bad)
}

// TestNoAllocation: the box allocates nothing for a frame, whatever happens to the frame.
func TestNoAllocation(t *testing.T) {
	const va, rounds, warm = 0x7000, 60, 8
	for name, args := range map[string]graph.Args{
		"mux":     {"mode": "mux", "track": va16},
		"replace": {"mode": "replace", "track": va16, "guard": "drop", "bad": "drop"},
		"word":    {"order": "word", "track": va16},
	} {
		t.Run(name, func(t *testing.T) {
			var tape []taped
			r := newRig(t, args)
			r.tape = &tape
			a, b := r.join(), r.join()
			b.learn(a, va, 0)
			var ends []int
			for range rounds {
				round(r, a, b, va, args["mode"] != "mux")
				ends = append(ends, len(tape))
			}
			for c, least := range map[string]uint64{"moved": 5, "acks": 9, "absorbed": 2, "psn-gap": 1, "bad-psn": 1, "bad-repeat": 1, "answered-here": 3, "made": 3} {
				if r.Counter(c) < least*rounds {
					t.Errorf("%s: %d in %d rounds", c, r.Counter(c), rounds)
				}
			}
			if n := r.Counter("replaced"); (n >= 3*rounds) != (args["mode"] != "mux") {
				t.Errorf("replaced: %d in %d rounds", n, rounds)
			}
			p := newPlayer(t, r.args)
			p.play(tape[:ends[warm]])
			k := warm
			if n := testing.AllocsPerRun(rounds-warm-3, func() {
				p.play(tape[ends[k]:ends[k+1]])
				k++
			}); n != 0 {
				t.Errorf("%v allocations for %d frames", n, ends[1]-ends[0])
			}
			if err := p.inst.Conservation(); err != nil {
				t.Error(err)
			}
		})
	}
}
