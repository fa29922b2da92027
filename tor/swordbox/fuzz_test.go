package swordbox

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
)

// responder is a server with some words of memory, one queue pair a client; it
// does what a responder must with PSNs (IBTA 9.7.5), and nothing else.
type responder struct {
	memory map[uint64]uint64
	qps    map[uint32]*respQP
}

type respQP struct {
	c        *party
	psn, msn uint32
	naked    bool              // a sequence NAK was sent
	atomics  map[uint32]uint64 // originals, by PSN
	dead     bool
}

// serve is what the server answers to b.
func (s *responder) serve(b []byte) (out [][]byte) {
	var f hdr.Frame
	if hdr.Parse(b, &f) != hdr.IsRoCE || hdr.ICRC(b, &f) != hdr.StoredICRC(b, &f) || f.Op.Transport() != hdr.RC || !f.Op.Has(hdr.IsRequest) {
		return nil
	}
	q := s.qps[f.BTHOf(b).DestQP()]
	if q == nil || q.dead {
		return nil
	}
	psn := f.BTHOf(b).PSN()
	say := func(op hdr.Opcode, psn uint32, syn hdr.Syndrome, ext, payload []byte) {
		out = append(out, q.c.response(op, psn, append(aeth(syn, q.msn), ext...), payload))
	}
	original := func(v uint64) []byte { return binary.BigEndian.AppendUint64(nil, v) }
	d := hdr.PSNDiff(psn, q.psn)
	info := f.Op.Info()
	switch {
	case d > 0:
		if !q.naked {
			q.naked = true
			say(hdr.Acknowledge, q.psn, hdr.SynNAKSequence, nil, nil)
		}
		return out
	case d < 0 && info.Flags&hdr.IsAtomic != 0:
		if v, ok := q.atomics[psn]; ok {
			say(hdr.AtomicAck, psn, hdr.SynACK, original(v), nil)
		}
		return out
	case d < 0 && info.Flags&hdr.IsRead == 0:
		say(hdr.Acknowledge, q.psn-1, hdr.SynACK, nil, nil)
		return out
	}
	refuse := func() [][]byte {
		q.dead = true
		say(hdr.Acknowledge, psn, hdr.SynNAKRemoteAccess, nil, nil)
		return out
	}
	n := uint32(1)
	switch {
	case info.Flags&hdr.IsRead != 0:
		h := f.RETHOf(b)
		if h.DMALength() > 1024 {
			return refuse()
		}
		n = max(1, (h.DMALength()+255)/256)
		q.msn++
		for k := range n {
			op := hdr.ReadRespMiddle
			switch {
			case n == 1:
				op = hdr.ReadRespOnly
			case k == 0:
				op = hdr.ReadRespFirst
			case k == n-1:
				op = hdr.ReadRespLast
			}
			p := make([]byte, min(256, h.DMALength()-256*k))
			if len(p) == 8 {
				copy(p, little(s.memory[h.VA()]))
			}
			if op == hdr.ReadRespMiddle {
				out = append(out, q.c.response(op, psn+k, nil, p))
			} else {
				say(op, psn+k, hdr.SynACK, nil, p)
			}
		}
		if d < 0 {
			q.msn--
			return out
		}
	case info.Flags&hdr.IsAtomic != 0:
		h := hdr.AtomicETH(b[int(f.BTH)+hdr.BTHLen:])
		if h.VA()&7 != 0 || h.RKey() != testRKey {
			return refuse()
		}
		was := s.memory[h.VA()]
		k, compareMask, swapMask := kCAS, ^uint64(0), ^uint64(0)
		switch f.Op {
		case hdr.FetchAdd:
			k = kFAA
		case hdr.MaskedCompSwap:
			m := f.MaskedAtomicETHOf(b)
			compareMask, swapMask = m.CompareMask(), m.SwapMask()
		}
		s.memory[h.VA()] = after(k, was, h.Swap(), h.Compare(), compareMask, swapMask)
		q.atomics[psn] = was
		q.msn++
		say(hdr.AtomicAck, psn, hdr.SynACK, original(was), nil)
	default:
		if info.Ext&hdr.HasRETH != 0 && f.RETHOf(b).DMALength() == 8 && len(f.PayloadOf(b)) == 8 {
			if f.RETHOf(b).RKey() != testRKey {
				return refuse()
			}
			s.memory[f.RETHOf(b).VA()] = binary.LittleEndian.Uint64(f.PayloadOf(b))
		}
		if info.Flags&(hdr.IsLast|hdr.IsOnly) != 0 {
			q.msn++
		}
		if f.BTHOf(b).AckReq() {
			say(hdr.Acknowledge, psn, hdr.SynACK, nil, nil)
		}
	}
	q.psn = (psn + n) & hdr.PSNMask
	q.naked = false
	return out
}

// bout is a set of clients and a server. A program of bytes makes them talk, and puts frames among theirs
// that no correct sender sends.
type bout struct {
	*player
	r       *rig
	s       *responder
	now     time.Duration
	toS     [][]byte // on its way to the server
	toBox   [][]byte // and back
	history []taped
	// sent are the PSNs that were ever sent from a client's address to its
	// queue pair.
	sent []map[uint32]bool
	came map[string]bool // from clients: may go on later unchanged
	// from are the source addresses and queue pairs of the frames that came from clients: the box may ask the
	// server about any of them.
	from map[[2]uint32]bool
	hold int
}

// push gives the box a frame and checks the frames that come out.
func (x *bout) push(in string, b []byte) {
	x.now += time.Microsecond
	x.history = append(x.history, taped{in: in, b: b})
	if in == "a" {
		x.came[string(b)] = true
	}
	var f hdr.Frame
	if in == "a" && hdr.Parse(b, &f) == hdr.IsRoCE && f.Net == hdr.NetIPv4 && f.Op.Has(hdr.IsRequest) {
		x.from[source(b, &f)] = true
		for i, c := range x.r.clients {
			if f.IPv4Of(b).Src() == c.ip && f.BTHOf(b).DestQP() == c.sqpn {
				n := uint32(1)
				if f.Op == hdr.ReadRequest {
					n = min(64, max(1, (f.RETHOf(b).DMALength()+255)/256))
				}
				for k := range n + 1 { // and the one behind it, that may be asked for
					x.sent[i][(f.BTHOf(b).PSN()+k)&hdr.PSNMask] = true
				}
			}
		}
	}
	buf := x.pool.Get()
	if buf == nil {
		x.t.Fatalf("no buffer; %d are held", x.inst.Held())
	}
	if !buf.SetBytes(b) {
		buf.Put()
		return
	}
	x.batch.Add(buf)
	if err := x.inst.Push(in, x.r.Clock.Now().Add(x.now), &x.batch); err != nil {
		x.t.Fatal(err)
	}
	x.collect(b)
}

// source is the address that sent frame b, and the queue pair that it is for.
func source(b []byte, f *hdr.Frame) [2]uint32 {
	return [2]uint32{be.Uint32(f.IPv4Of(b)[12:]), f.BTHOf(b).DestQP()}
}

// collect takes the frames that came out. in, if not nil, is the frame that passed.
func (x *bout) collect(in []byte) {
	for side, e := range x.ends {
		for {
			if n, _ := e.Rx(&x.out); n == 0 {
				break
			}
			for _, o := range x.out.Bufs() {
				b := bytes.Clone(o.Bytes())
				if !bytes.Equal(b, in) && !(side == 1 && x.came[string(b)]) {
					x.check(side, b)
				}
				if side == 1 && len(x.toS) < 64 {
					x.toS = append(x.toS, b)
				}
			}
			x.out.PutAll()
		}
	}
	if h := x.inst.Held(); h > x.hold {
		x.t.Fatalf("%d frames are held, more than hold=%d", h, x.hold)
	}
}

// check: a frame that was made or changed belongs to one connection, is whole, and tells a client nothing
// about an operation of another one.
func (x *bout) check(side int, b []byte) {
	var f hdr.Frame
	if why := hdr.Parse(b, &f); why != hdr.IsRoCE {
		x.t.Fatalf("made %v: %x", why, b)
	}
	if hdr.ICRC(b, &f) != hdr.StoredICRC(b, &f) || !f.IPv4Of(b).ChecksumOK() {
		x.t.Fatalf("made %s", text(b))
	}
	h := f.BTHOf(b)
	if side == 1 && f.Op == hdr.WriteOnly && f.RETHOf(b).DMALength() == 0 && x.from[source(b, &f)] {
		return // a question
	}
	for i, c := range x.r.clients {
		if side == 1 {
			if f.IPv4Of(b).Src() == c.ip && h.DestQP() == c.sqpn {
				return
			}
			continue
		}
		if f.IPv4Of(b).Dst() != c.ip || h.DestQP() != c.cqpn {
			continue
		}
		if !x.sent[i][h.PSN()] {
			x.t.Fatalf("client %d, which sent no such thing, is given %s", i, text(b))
		}
		return
	}
	x.t.Fatalf("addresses and queue pair belong to different connections, or to none: %s", text(b))
}

// run does a program: four bytes a step.
func (x *bout) run(program []byte) {
	var addr = [...]uint64{0x7000, 0x7008, 0x7100, 0x7104}
	for ; len(program) >= 4; program = program[4:] {
		op, who, u, v := program[0], program[1], program[2], program[3]
		c := x.r.clients[int(who)%len(x.r.clients)]
		va := addr[u&3]
		key := uint32(testRKey)
		if u == 0xFF {
			key++
		}
		send := func(code hdr.Opcode, ext, payload []byte, n uint32) {
			x.push("a", c.made(code, c.psn, ext, payload))
			c.psn += n
		}
		pick := func() (taped, bool) {
			if len(x.history) == 0 {
				return taped{}, false
			}
			k := len(x.history) - 1 - (int(u)|int(v&3)<<8)%len(x.history)
			return taped{in: x.history[k].in, b: bytes.Clone(x.history[k].b)}, true
		}
		switch op % 20 {
		case 0, 1:
			send(hdr.CompareSwap, atomicETH(va&^7, key, uint64(v&3), uint64(v>>2&3)), nil, 1)
		case 2:
			send(hdr.FetchAdd, atomicETH(va&^7, key, uint64(v), 0), nil, 1)
		case 3:
			send(hdr.MaskedCompSwap, maskedETH(va&^7, key, uint64(v), uint64(u), 0xF0, uint64(v)), nil, 1)
		case 4:
			send(hdr.WriteOnly, reth(va&^7, key, 8), little(uint64(v)), 1)
		case 5:
			ln := uint32(8)
			if v&1 != 0 {
				ln = 100 + 4*uint32(v)
			}
			send(hdr.ReadRequest, reth(va, key, ln), nil, max(1, (ln+255)/256))
		case 6:
			send(hdr.WriteFirst, reth(va, key, 600), make([]byte, 256), 1)
			send(hdr.WriteMiddle, nil, make([]byte, 256), 1)
			send(hdr.WriteLast, nil, make([]byte, 88), 1)
		case 7:
			send(hdr.SendOnly, nil, make([]byte, int(v)), 1)
		case 8, 9, 10: // the server works
			for k := 0; k < 1+int(v&7) && len(x.toS) > 0; k++ {
				x.toBox = append(x.toBox, x.s.serve(x.toS[0])...)
				x.toS = x.toS[1:]
			}
		case 11, 12, 13: // answers arrive
			for k := 0; k < 1+int(v&7) && len(x.toBox) > 0; k++ {
				b := x.toBox[0]
				x.toBox = x.toBox[1:]
				x.push("b", b)
			}
		case 14: // lost
			if v&1 == 0 && len(x.toS) > 0 {
				x.toS = x.toS[1:]
			} else if len(x.toBox) > 0 {
				x.toBox = x.toBox[1:]
			}
		case 15: // once more
			if t, ok := pick(); ok {
				x.push(t.in, t.b)
			}
		case 16: // damaged, with a right ICRC or without
			if t, ok := pick(); ok {
				t.b[int(who)*7%len(t.b)] ^= v
				var f hdr.Frame
				if v&1 == 0 && hdr.Parse(t.b, &f) == hdr.IsRoCE {
					if f.Net == hdr.NetIPv4 {
						f.IPv4Of(t.b).UpdateChecksum()
					}
					hdr.SetICRC(t.b, &f)
				}
				x.push(t.in, t.b)
			}
		case 17: // another's source, or queue pair
			if t, ok := pick(); ok {
				x.push(t.in, change(t.b, func(p []byte, f *hdr.Frame) {
					if f.Why != hdr.IsRoCE || f.Net != hdr.NetIPv4 {
						return
					}
					if v&4 != 0 {
						f.IPv4Of(p)[15] = byte(0x10 + who%5)
						return
					}
					f.BTHOf(p).SetDestQP(f.BTHOf(p).DestQP()&^3 | uint32(who&3))
				}))
			}
		case 18: // from the other side
			if t, ok := pick(); ok {
				x.push(map[string]string{"a": "b", "b": "a"}[t.in], t.b)
			}
		case 19:
			x.now += time.Duration(v) * time.Millisecond
			if _, err := x.inst.Step(x.r.Clock.Now().Add(x.now)); err != nil {
				x.t.Fatal(err)
			}
			x.collect(nil)
			if v > 250 { // the connection manager ends it
				x.push("a", c.cm(true, hdr.CMFields{AttributeID: hdr.DisconnectRequest, RemoteQPN: c.sqpn}))
				x.push("b", c.cm(false, hdr.CMFields{AttributeID: hdr.DisconnectReply}))
			}
		}
	}
}

// opening is how bouts begin: three clients have joined.
type opening struct {
	r    *rig
	tape []taped
}

func newOpening(t testing.TB, args graph.Args) *opening {
	o := &opening{r: newRig(t, args)}
	o.r.tape = &o.tape
	for range 3 {
		o.r.join()
	}
	return o
}

// bout is one that begins like that.
func (o *opening) bout(t testing.TB) *bout {
	r := *o.r
	r.clients = nil
	x := &bout{came: map[string]bool{}, from: map[[2]uint32]bool{}, r: &r, s: &responder{memory: map[uint64]uint64{}, qps: map[uint32]*respQP{}}, hold: 32}
	for _, c := range o.r.clients {
		c := *c
		r.clients = append(r.clients, &c)
		x.s.qps[c.sqpn] = &respQP{c: &c, psn: c.spsn, msn: c.smsn, atomics: map[uint32]uint64{}}
		x.sent = append(x.sent, map[uint32]bool{c.psn: true, c.psn - 1: true})
	}
	x.player = newPlayer(t, r.args)
	x.play(o.tape)
	return x
}

// programs are steps that a generator of random numbers thought of; the
// server is at work half of the time.
func program(seed uint64, n int) []byte {
	rng := rand.New(rand.NewPCG(seed, 1))
	p := make([]byte, 0, 4*n)
	for range n {
		op := byte(rng.IntN(20))
		if op >= 14 && seed%3 == 0 && rng.IntN(4) != 0 {
			op = byte(8 + rng.IntN(6))
		}
		p = append(p, op, byte(rng.Uint32()), byte(rng.Uint32()), byte(rng.Uint32()))
	}
	return p
}

// fuzzArgs are the arguments of bouts.
func fuzzArgs() []graph.Args {
	return []graph.Args{{}, {"mode": "mux", "track": va16}, {"order": "word", "shared": "2", "track": va16}, {"guard": "drop", "bad": "drop", "track": va16}}
}

// TestBouts: random programs; see FuzzFrames.
func TestBouts(t *testing.T) {
	for i, args := range fuzzArgs() {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			moved, replaced := uint64(0), uint64(0)
			o := newOpening(t, args)
			for seed := range uint64(40) {
				x := o.bout(t)
				x.run(program(seed, 250))
				x.done()
				moved += x.counter("moved")
				replaced += x.counter("replaced")
				if t.Failed() {
					t.Fatalf("seed %d", seed)
				}
			}
			if moved == 0 || (replaced == 0) != (args["mode"] == "mux") {
				t.Errorf("moved %d, replaced %d", moved, replaced)
			}
		})
	}
}

// done checks the books.
func (x *bout) done() {
	if err := x.inst.Conservation(); err != nil {
		x.t.Error(err)
	}
	if used, held := x.pool.InUse(), x.inst.Held(); used != held {
		x.t.Errorf("%d buffers are in use and %d are held", used, held)
	}
	if err := x.inst.Close(); err != nil {
		x.t.Error(err)
	}
	if used := x.pool.InUse(); used != 0 {
		x.t.Errorf("%d buffers are in use after the end", used)
	}
}

// FuzzFrames: whatever comes from both sides, nothing panics, no frame is lost or held without bound, and no
// client gets an answer to an operation that it did not send.
func FuzzFrames(f *testing.F) {
	for seed := range uint64(12) {
		f.Add(byte(seed), program(100+seed, 60), []byte{})
	}
	f.Add(byte(0), program(7, 20), []byte("not a frame"))
	var openings []*opening
	for _, args := range fuzzArgs() {
		openings = append(openings, newOpening(f, args))
	}
	f.Fuzz(func(t *testing.T, args byte, program, raw []byte) {
		x := openings[int(args)%len(openings)].bout(t)
		if len(program) > 4*300 {
			program = program[:4*300]
		}
		half := len(program) / 8 * 4
		x.run(program[:half])
		if len(raw) > 0 && len(raw) <= 1500 {
			x.push("a", raw)
			x.push("b", raw)
			var p hdr.Frame
			if b := bytes.Clone(raw); hdr.Parse(b, &p) == hdr.IsRoCE {
				hdr.SetICRC(b, &p)
				x.push("a", b)
				x.push("b", b)
			}
		}
		x.run(program[half:])
		x.done()
	})
}
