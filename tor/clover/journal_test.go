package clover

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/hdr"
	wire "github.com/quillon/quillon/nf/hdr/clover"
	"github.com/quillon/quillon/nf/port"
)

// crashed is row3 in a process that was killed: entries 2 and 3 of a key are under
// way behind entry 1, from 0x20 and 0x30, both with PSN 109. sent are the frames
// that left.
type crashed struct {
	*rig
	memory []byte
	sent   map[uint32][]byte
}

func crash(t testing.TB, args graph.Args, ends ...string) *crashed {
	t.Helper()
	args["settle"] = "0"
	x := &crashed{sent: map[uint32][]byte{}}
	x.rig = rigOf(t, graphtest.NewKept(t, *Kind(), args, graphtest.Start.Add(2*time.Hour), &x.memory))
	if len(ends) > 0 {
		x.client, x.server = netip.MustParseAddr(ends[0]), netip.MustParseAddr(ends[1])
	}
	for i := range uint32(3) {
		lh := 0x9100 + 16*i
		x.warm(0x10+0x10*i, 100, entryAt(lh), lh)
	}
	x.wrote(0x10, 108, 0x9001)
	x.link(0x10, 109, 0x9001, old)
	x.linked(0x10, 109)
	x.wrote(0x20, 108, 0x9002)
	x.wrote(0x30, 108, 0x9003)
	for i, qpn := range []uint32{0x20, 0x30} {
		x.sent[qpn] = only(t, x.casAt(qpn, 109, 0x9002+uint32(i), old).Out["b"])
	}
	if n := x.notes(); n != 2 {
		t.Fatalf("%d CASes are on record, want 2", n)
	}
	return x
}

// notes is how many CASes are on record.
func (x *crashed) notes() (n int) {
	j := journal{b: x.memory}
	for i := range int32(maxNotes) {
		if j.read(i, new(heir)) {
			n++
		}
	}
	return n
}

// next is the next process, so long after this one.
func (x *crashed) next(args graph.Args, after time.Duration) *crashed {
	y := *x
	r := *x.rig
	args["settle"] = "0"
	y.rig = &r
	y.memory = slices.Clone(x.memory)
	y.rig.Test = graphtest.NewKept(x.t, *Kind(), args, x.Clock.Now().Add(after), &y.memory)
	return &y
}

// frames are those towards the servers, by queue pair: questions and CASes.
func (x *crashed) frames(got graphtest.Result) (asked []uint32, cas map[uint32][]byte) {
	x.t.Helper()
	cas = map[uint32][]byte{}
	for _, b := range got.Out["b"] {
		var f hdr.Frame
		if why := hdr.Parse(b.Bytes, &f); why != hdr.IsRoCE || !f.ChecksumOK(b.Bytes) || !hdr.GoodICRC(b.Bytes, &f) {
			x.t.Fatalf("a broken frame went to the server: %v\n%x", why, b.Bytes)
		}
		h := f.BTHOf(b.Bytes)
		switch f.Op {
		case hdr.CompareSwap:
			cas[h.DestQP()] = b.Bytes
		case hdr.WriteOnly:
			if e := f.RETHOf(b.Bytes); e.DMALength() != 0 || len(f.PayloadOf(b.Bytes)) != 0 || !h.AckReq() || h.PSN() != (109-lookback)&hdr.PSNMask {
				x.t.Errorf("the question is no empty old WRITE: PSN %d", h.PSN())
			}
			asked = append(asked, h.DestQP())
		default:
			x.t.Errorf("a %v went to the server", f.Op)
		}
	}
	slices.Sort(asked)
	return asked, cas
}

// ack has the server acknowledge what qpn sent, up to psn.
func (x *crashed) ack(qpn, psn uint32) graphtest.Result {
	return x.from(qpn, psn, hdr.Acknowledge, hdr.SynACK, 0, nil)
}

// CASes that were under way when a process was killed are sent again by the next one, as soon as the server
// says that it waits for them. Answers are held as always.
func TestInherit(t *testing.T) {
	for name, c := range map[string]struct {
		args graph.Args
		ends []string
	}{
		"same":        {graph.Args{}, nil},
		"other sizes": {graph.Args{"conns": "2", "keys": "1", "addrs": "4", "hold": "4"}, nil},
		"IPv6":        {graph.Args{"servers": "fd00::1"}, []string{"fd00::2", "fd00::1"}},
	} {
		t.Run(name, func(t *testing.T) {
			x := crash(t, graph.Args{}, c.ends...).next(c.args, time.Second)
			asked, cas := x.frames(x.Advance(time.Millisecond))
			if !slices.Equal(asked, []uint32{0x20, 0x30}) || len(cas) != 0 || x.Counter("inherited") != 2 {
				t.Fatalf("%x were asked, %d CASes sent, %d inherited", asked, len(cas), x.Counter("inherited"))
			}
			for _, qpn := range []uint32{0x20, 0x30} {
				if _, cas = x.frames(x.ack(qpn, 108)); !bytes.Equal(cas[qpn], x.sent[qpn]) {
					t.Errorf("sent\n%x, and then\n%x", x.sent[qpn], cas[qpn])
				}
			}
			if b := only(t, x.casAt(0x30, 109, 0x9003, old).Out["b"]); !bytes.Equal(b, x.sent[0x30]) {
				t.Errorf("its client's own repetition went as\n%x", b)
			}
			x.expect(x.linked(0x30, 109), "3 is linked behind 2, which is not")
			if x.notes() != 2 {
				t.Errorf("%d CASes are on record; 3 is executed, and not linked", x.notes())
			}
			x.expect(x.linked(0x20, 109), "2 is linked", [2]uint32{0x20, 109}, [2]uint32{0x30, 109})
			if x.notes() != 0 {
				t.Errorf("%d CASes are still on record", x.notes())
			}
		})
	}
}

// A client that goes on while no process is there has had its answer. The box asks the server for that answer
// once more, and then others wait for it no longer.
func TestInheritPassed(t *testing.T) {
	x := crash(t, graph.Args{}).next(graph.Args{}, time.Second)
	x.Advance(time.Millisecond)
	x.expect(x.linked(0x30, 109), "3 is linked behind 2")
	if _, cas := x.frames(x.ack(0x20, 115)); cas[0x20] == nil {
		t.Error("the server was not asked for the answer that it gave")
	}
	x.expect(x.Advance(100*time.Millisecond), "it is asked once more")
	told := x.Advance(30 * time.Millisecond)
	x.expect(told, "the server has forgotten the answer", [2]uint32{0x30, 109})
	x.frames(told)
	if x.notes() != 0 || x.Counter("chains-cut") != 0 {
		t.Errorf("%d on record, %d chains cut", x.notes(), x.Counter("chains-cut"))
	}
	if x.to(0x20, 116, hdr.ReadRequest, reth(0x10000, x.rkey, 8), nil); x.Counter("psn-gap") != 0 {
		t.Error("its next request is out of its turn")
	}
}

// A client that is refused while no process is there, and goes on, has linked its entry elsewhere, or will at
// once: those behind it do not wait until a READ shows that. A client that had not gone on, or does not go on
// now, is waited for: it may have died in between.
func TestInheritRefused(t *testing.T) {
	for _, c := range []struct {
		at          uint32
		lives, told bool
	}{{109, true, false}, {115, false, false}, {115, true, true}} {
		x := crash(t, graph.Args{}).next(graph.Args{}, time.Second)
		x.Advance(time.Millisecond)
		x.expect(x.linked(0x30, 109), "3 is linked behind 2")
		x.ack(0x20, c.at)
		x.expect(x.refused(0x20, 109), "2 is refused", [2]uint32{0x20, 109})
		x.expect(x.Advance(70*time.Millisecond), "2 may be linked elsewhere")
		if c.lives {
			x.ack(0x20, c.at+1)
		}
		told := x.Advance(30 * time.Millisecond)
		if c.told {
			x.expect(told, "2 is linked", [2]uint32{0x30, 109})
		} else {
			x.expect(told, "its client has not gone on")
			x.Advance(time.Second)
		}
		if n := x.Counter("chains-cut"); n != 0 {
			t.Errorf("%d chains cut", n)
		}
	}
}

// A request before it is lost as well: nothing is sent that the server would refuse.
func TestInheritGap(t *testing.T) {
	x := crash(t, graph.Args{})
	// 0x20's answers were seen up to 106: another of its requests is under way.
	j := journal{b: x.memory}
	for i := range int32(maxNotes) {
		if h := new(heir); j.read(i, h) && h.to == 0x20 {
			p := j.record(i)
			binary.LittleEndian.PutUint32(p[68:], 106)
			p[59] = 106 // MSN
			binary.LittleEndian.PutUint64(p[:], sum(p, i))
		}
	}
	y := x.next(graph.Args{}, time.Second)
	y.Advance(time.Millisecond)
	if _, cas := y.frames(y.ack(0x20, 107)); len(cas) != 0 {
		t.Error("a CAS was sent whose turn it is not")
	}
	if _, cas := y.frames(y.Advance(50 * time.Millisecond)); cas[0x20] != nil {
		t.Error("a CAS was sent whose turn it is not, later")
	}
	y.ack(0x20, 108)
	if _, cas := y.frames(y.Advance(100 * time.Millisecond)); cas[0x20] == nil {
		t.Error("no CAS was sent when it was its turn")
	}
}

// Linux (rxe) acknowledges again the newest request that was no READ: behind it there were some.
func TestInheritBehindReads(t *testing.T) {
	x := crash(t, graph.Args{}).next(graph.Args{}, time.Second)
	x.Advance(time.Millisecond)
	x.msn[0x20] = 108
	if _, cas := x.frames(x.ack(0x20, 106)); cas[0x20] == nil {
		t.Error("no CAS was sent")
	}
}

// Nothing is ever sent to a queue pair that is another connection's.
func TestInheritOther(t *testing.T) {
	for name, other := range map[string]func(x *crashed){
		"silent":                        func(x *crashed) {},
		"numbers ahead":                 func(x *crashed) { x.ack(0x20, 109+lookback+1) },
		"fewer messages":                func(x *crashed) { x.msn[0x20] = 107; x.ack(0x20, 108) },
		"more messages, and not as far": func(x *crashed) { x.msn[0x20] = 109; x.ack(0x20, 107) },
		"numbers behind":                func(x *crashed) { x.ack(0x20, (109-lookback-1)&hdr.PSNMask) },
		"refused":                       func(x *crashed) { x.from(0x20, 110, hdr.Acknowledge, hdr.SynNAKRemoteAccess, 0, nil) },
		"other client":                  func(x *crashed) { x.ack(0x21, 108) },
		"opened again":                  func(x *crashed) { x.opened() },
		"from the client": func(x *crashed) {
			x.Push("a", frameOf{src: x.server, dst: x.client, sport: 0xC020, op: hdr.Acknowledge, qpn: 0x1020, psn: 108, ext: make([]byte, hdr.AETHLen)}.bytes())
		},
	} {
		t.Run(name, func(t *testing.T) {
			x := crash(t, graph.Args{}).next(graph.Args{}, time.Second)
			x.Advance(time.Millisecond)
			other(x)
			asked, cas := x.frames(x.Advance(30 * time.Second))
			if cas[0x20] != nil {
				t.Error("a CAS was sent")
			}
			if len(asked) > 2*maxRepairs {
				t.Errorf("asked %d times", len(asked))
			}
		})
	}
}

// opened has the connection manager open a connection with 0x20 at the server.
func (x *crashed) opened() {
	x.request(0x1099)
	x.reply("b", 0x20)
	x.cm("a", x.client, x.server, hdr.CMFields{AttributeID: hdr.ReadyToUse, LocalCommID: 11, RemoteCommID: 22})
	x.ack(0x20, 108)
}

// What cannot be taken over is dropped, and the report says why.
func TestDisowned(t *testing.T) {
	for name, c := range map[string]struct {
		args   graph.Args
		after  time.Duration
		change func(m []byte)
		why    string
		n      uint64
	}{
		"an hour":         {after: time.Hour, why: "too old", n: 2},
		"of tomorrow":     {after: -time.Hour, why: "too old", n: 2},
		"no server":       {args: graph.Args{"servers": "10.9.9.9"}, why: "servers=", n: 2},
		"one connection":  {args: graph.Args{"conns": "1"}, why: "conns=", n: 1},
		"another version": {change: func(m []byte) { m[8]++ }, why: "version", n: 1},
		"not ours":        {change: func(m []byte) { copy(m, "something else") }, why: "version", n: 1},
		"damaged":         {change: func(m []byte) { m[journalHead+(maxNotes-1)*noteLen+30] ^= 1; m[journalHead+30] ^= 1 }, why: "damaged", n: 1},
		"twice": {change: func(m []byte) {
			// The same CAS in another place.
			j := journal{b: m}
			from := int32(0)
			for !j.read(from, new(heir)) {
				from++
			}
			*j.record(1000) = *j.record(from)
			binary.LittleEndian.PutUint64(m[journalHead+1000*noteLen:], sum(j.record(1000), 1000))
		}, why: "twice", n: 1},
	} {
		t.Run(name, func(t *testing.T) {
			x := crash(t, graph.Args{})
			if c.args == nil {
				c.args = graph.Args{}
			}
			if c.change != nil {
				c.change(x.memory)
			}
			y := x.next(c.args, c.after)
			_, cas := y.frames(y.Advance(time.Millisecond))
			rep := y.App().(graph.Reporter).Report().(Report).Journal
			if n := y.Counter("disowned"); n != c.n || uint64(rep.Disowned) != n || !strings.Contains(rep.Why, c.why) || len(cas) != 0 {
				t.Errorf("%d disowned, want %d; %+v", n, c.n, rep)
			}
			if n := y.Counter("inherited"); uint64(y.notes()) != n {
				t.Errorf("%d inherited, %d on record", n, y.notes())
			}
		})
	}
}

// After another crash the process after that goes on, also with what the second
// one did not get to.
func TestInheritTwice(t *testing.T) {
	x := crash(t, graph.Args{}).next(graph.Args{}, time.Second)
	x.Advance(time.Millisecond)
	x.ack(0x20, 108)
	y := x.next(graph.Args{}, time.Second)
	if asked, _ := y.frames(y.Advance(time.Millisecond)); len(asked) != 2 {
		t.Errorf("%x were asked", asked)
	}
	y.ack(0x20, 108)
	y.expect(y.linked(0x20, 109), "2 is linked", [2]uint32{0x20, 109})
	z := y.next(graph.Args{}, time.Minute)
	z.Advance(time.Millisecond)
	if n := z.Counter("disowned"); n != 1 || z.Counter("inherited") != 0 {
		t.Errorf("%d disowned: it is from a minute before", n)
	}
}

// Frames that went past unseen, and a process that stops cleanly, are no other cases.
func TestInheritFlush(t *testing.T) {
	x := crash(t, graph.Args{})
	x.expect(x.linked(0x30, 109), "3 is linked behind 2")
	x.App().(graph.Flusher).Flush(nil)
	if asked, _ := x.frames(x.Advance(20 * time.Millisecond)); len(asked) < 2 {
		t.Errorf("%x were asked", asked)
	}
	x.expect(x.linked(0x30, 109), "3 is asked for again")
	x.ack(0x20, 108)
	x.expect(x.linked(0x20, 109), "2 is linked", [2]uint32{0x20, 109}, [2]uint32{0x30, 109})
	if x.notes() != 0 {
		t.Errorf("%d are on record", x.notes())
	}
}

// The answer to an inherited request has the version that its client's request had.
func TestInheritAdjust(t *testing.T) {
	args := func() graph.Args { return graph.Args{"recycled": "adjust"} }
	x := crash(t, args())
	x.wrote(0x10, 110, 0x9004)
	x.to(0x10, 111, hdr.CompareSwap, atomicETH(old, x.rkey, x.swap(0x9004, 1, 9), uint64(wire.Fresh(9))), nil)
	y := x.next(args(), time.Second)
	y.Advance(time.Millisecond)
	y.expect(y.linked(0x20, 109), "2", [2]uint32{0x20, 109})
	y.expect(y.linked(0x30, 109), "3", [2]uint32{0x30, 109})
	for have, want := range map[uint64]uint64{uint64(wire.Fresh(1)): uint64(wire.Fresh(9)), uint64(wire.Fresh(9)): uint64(wire.Fresh(wire.NoVersion))} {
		z := y.next(args(), time.Second)
		z.Advance(time.Millisecond)
		b := only(t, z.from(0x10, 111, hdr.AtomicAck, hdr.SynACK, have, nil).Out["a"])
		var f hdr.Frame
		hdr.Parse(b, &f)
		if got := f.AtomicAckETHOf(b).Original(); got != want || !hdr.GoodICRC(b, &f) {
			t.Errorf("%#x came as %#x, want %#x", have, got, want)
		}
	}
}

// When the process ends, no further CAS is sent behind others, and guarded words become free with the
// answers.
func TestEnd(t *testing.T) {
	x := crash(t, graph.Args{})
	x.App().(*Steer).End()
	x.wrote(0x10, 110, 0x9004)
	if at := x.link(0x10, 111, 0x9004, old); at != old || x.Counter("ending") != 1 || x.Guard.Empty() {
		t.Errorf("sent to %#x, empty guard %v", at, x.Guard.Empty())
	}
	x.linked(0x20, 109)
	x.linked(0x30, 109)
	if !x.Guard.Empty() {
		t.Error("what was answered is guarded")
	}
}

// When there is no free record, no further CAS is sent behind others.
func TestJournalFull(t *testing.T) {
	x := crash(t, graph.Args{})
	s := x.App().(*Steer)
	free := s.journal.free
	s.journal.free = make([]freeNotes, 1)
	x.wrote(0x10, 110, 0x9004)
	if at := x.link(0x10, 111, 0x9004, old); at != old || x.Counter("journal-full") != 1 {
		t.Errorf("sent to %#x without a record", at)
	}
	s.journal.free = free
	x.wrote(0x10, 112, 0x9005)
	if n := x.notes(); x.link(0x10, 113, 0x9005, old) == old && n != 2 {
		t.Errorf("%d on record", n)
	}
}

// A record that was written in part, whatever part, or changed by a bit, is none.
func TestTornRecord(t *testing.T) {
	x := crash(t, graph.Args{})
	at, before := 0, make([]byte, noteLen)
	for i := range maxNotes {
		if p := x.memory[journalHead+i*noteLen:][:noteLen]; binary.LittleEndian.Uint64(p) != 0 {
			at = i
		}
	}
	place := x.memory[journalHead+at*noteLen:][:noteLen]
	whole := slices.Clone(place)
	j := journal{b: x.memory}
	if !j.read(int32(at), new(heir)) {
		t.Fatal("the whole record is none")
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for round := range 4 {
		if round > 0 { // an older record was here, and erased
			copy(before, whole)
			clear(before[:8])
			for i := 8; i < noteLen; i += 1 + rng.IntN(40) {
				before[i] ^= byte(1 + rng.IntN(255))
			}
		}
		for cut := range noteLen {
			for _, front := range []bool{true, false} { // which part is new
				copy(place, before)
				if front {
					copy(place[:cut], whole[:cut])
				} else {
					copy(place[cut:], whole[cut:])
				}
				if bytes.Equal(place, whole) {
					continue
				}
				if j.read(int32(at), new(heir)) {
					t.Fatalf("round %d: cut at byte %d it is a record", round, cut)
				}
			}
		}
	}
	for bit := range 8 * noteLen {
		copy(place, whole)
		place[bit/8] ^= 1 << (bit % 8)
		if j.read(int32(at), new(heir)) {
			t.Fatalf("with bit %d changed it is a record", bit)
		}
	}
	for at1 := 8; at1 < noteLen; at1 += 8 {
		for at2 := 8; at2 < at1; at2 += 8 {
			copy(place, whole)
			copy(place[at1:at1+8], whole[at2:])
			copy(place[at2:at2+8], whole[at1:])
			if !bytes.Equal(place, whole) && j.read(int32(at), new(heir)) {
				t.Fatalf("with words %d and %d in each other's place it is a record", at1, at2)
			}
		}
	}
	copy(place, whole)
	if copy(x.memory[journalHead+((at+1)%maxNotes)*noteLen:], whole); j.read(int32((at+1)%maxNotes), new(heir)) {
		t.Error("it is a record in another place")
	}
}

// A process starts on memory that holds anything, also records that are whole and
// make no sense. Nothing but questions is ever sent by itself.
func TestJournalOfAnything(t *testing.T) {
	x := crash(t, graph.Args{})
	var good [][]byte
	for i := range maxNotes {
		if p := x.memory[journalHead+i*noteLen:][:noteLen]; binary.LittleEndian.Uint64(p) != 0 {
			good = append(good, p)
		}
	}
	rng := rand.New(rand.NewPCG(3, 4))
	for range 300 {
		memory := make([]byte, journalLen)
		binary.LittleEndian.PutUint64(memory, journalMagic)
		binary.LittleEndian.PutUint64(memory[8:], journalShape)
		j := journal{b: memory}
		for i := range int32(rng.IntN(40)) {
			p := j.record(i)
			copy(p[:], good[rng.IntN(len(good))])
			for range rng.IntN(4) {
				p[8+rng.IntN(noteLen-8)] = byte(rng.IntN(256))
			}
			p[56] += byte(rng.IntN(40) * rng.IntN(2)) // PSN
			p[60] += byte(rng.IntN(40) * rng.IntN(2)) // number
			binary.LittleEndian.PutUint64(p[8:], uint64(graphtest.Start))
			if rng.IntN(10) > 0 {
				binary.LittleEndian.PutUint64(p[:], sum(p, i))
			}
		}
		r := &crashed{rig: rigOf(t, graphtest.NewKept(t, *Kind(), graph.Args{"keys": "4", "conns": "4", "addrs": "16", "settle": "0"}, graphtest.Start, &memory)), memory: memory}
		for _, o := range r.Advance(100 * time.Millisecond).Out["b"] {
			var f hdr.Frame
			if why := hdr.Parse(o.Bytes, &f); why != hdr.IsRoCE || f.Op != hdr.WriteOnly || !f.ChecksumOK(o.Bytes) || !hdr.GoodICRC(o.Bytes, &f) {
				t.Errorf("%v\n%x", why, o.Bytes)
			}
		}
		if n := r.Counter("inherited"); uint64(r.notes()) != n {
			t.Errorf("%d inherited, %d on record", n, r.notes())
		}
		r.ack(0x20, 108)
		r.ack(0x30, uint32(90+rng.IntN(40)))
		r.linked(0x20, 109)
		r.linked(0x30, 109)
		r.casAt(0x30, 109, 0x9003, old)
		r.Advance(20 * time.Second)
	}
}

// BenchmarkNote is a CAS that is put on record and taken off.
func BenchmarkNote(b *testing.B) {
	x := crash(b, graph.Args{})
	s := x.App().(*Steer)
	for i := range s.ops {
		if o := &s.ops[i]; o.note != 0 {
			for b.Loop() {
				s.journal.erase(o)
				s.note(o, int32(i/window))
			}
			return
		}
	}
}

// A CAS that is refused, or whose connection ends, is off the record.
func TestErased(t *testing.T) {
	for name, end := range map[string]func(x *crashed){
		"refused": func(x *crashed) { x.refused(0x20, 109) },
		"fatal":   func(x *crashed) { x.from(0x20, 109, hdr.Acknowledge, hdr.SynNAKRemoteAccess, 0, nil) },
		"idle": func(x *crashed) {
			for range 10 {
				x.Advance(40 * time.Second)
				x.casAt(0x30, 109, 0x9003, old)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			x := crash(t, graph.Args{})
			end(x)
			if n := x.notes(); n != 1 {
				t.Errorf("%d on record, want 0x30's alone", n)
			}
			if rep := x.App().(graph.Reporter).Report().(Report); rep.Journal.Records != 1 || rep.Memory.Journal != journalLen {
				t.Errorf("%+v, %+v", rep.Journal, rep.Memory)
			}
		})
	}
}

// What the server waits for is sent again as ever, and others wait for it.
func TestInheritWaits(t *testing.T) {
	x := crash(t, graph.Args{})
	j := journal{b: x.memory}
	for i := range int32(maxNotes) {
		if h := new(heir); j.read(i, h) { // the CAS itself did not ask for an acknowledgement
			p := j.record(i)
			h.startF.BTHOf(p[noteFront:]).SetAckReq(false)
			binary.LittleEndian.PutUint64(p[:], sum(p, i))
		}
	}
	x = x.next(graph.Args{}, time.Second)
	asked, _ := x.frames(x.Advance(time.Millisecond))
	x.expect(x.linked(0x30, 109), "3 is linked behind 2")
	x.ack(0x20, 108)
	if len(asked) != 2 {
		t.Errorf("%x were asked", asked)
	}
	got := x.Advance(10 * time.Second)
	x.expect(got, "2 is lost again and again")
	if _, cas := x.frames(got); cas[0x20] == nil {
		t.Error("it was not sent again")
	}
	x.expect(x.linked(0x20, 109), "2 is linked", [2]uint32{0x20, 109}, [2]uint32{0x30, 109})
}

// Records of one connection are in the order of their PSNs, and those of one key in the order of their
// entries, whatever their places in the record.
func TestInheritOrder(t *testing.T) {
	x := crash(t, graph.Args{})
	x.write(0x20, 110, entryAt(0x9005), key, 1)
	if n := x.notes(); n != 2 {
		t.Fatalf("%d on record", n)
	}
	sent := only(t, x.casAt(0x20, 111, 0x9005, old).Out["b"])
	if at := atomicOf(t, sent).VA(); at != entryAt(0x9003) || x.notes() != 3 {
		t.Fatalf("sent to %#x, %d on record", at, x.notes())
	}
	for range 3 { // records in all places
		x.swapRecords()
		y := x.next(graph.Args{}, time.Second)
		y.Advance(time.Millisecond)
		if _, cas := y.frames(y.ack(0x20, 110)); !bytes.Equal(cas[0x20], sent) {
			t.Errorf("the last that the server may take was sent as\n%x", cas[0x20])
		}
		y.expect(y.linked(0x30, 109), "behind 2")
		y.expect(y.linked(0x20, 109), "2 is linked", [2]uint32{0x20, 109}, [2]uint32{0x30, 109})
		y.expect(y.linked(0x20, 111), "behind 3", [2]uint32{0x20, 111})
		if n := y.notes(); n != 0 {
			t.Errorf("%d are still on record", n)
		}
	}
}

// swapRecords has the records change places.
func (x *crashed) swapRecords() {
	j := journal{b: x.memory}
	var at []int32
	for i := range int32(maxNotes) {
		if j.read(i, new(heir)) {
			at = append(at, i)
		}
	}
	first := *j.record(at[0])
	for n, i := range at {
		if n+1 < len(at) {
			*j.record(i) = *j.record(at[n+1])
		} else {
			*j.record(i) = first
		}
		p := j.record(i)
		binary.LittleEndian.PutUint64(p[:], sum(p, i))
	}
}

// atomic reports whether a CAS by another client, or by the one whose entry lh is, is
// held while no process is there.
func (x *crashed) atomic(lh uint32, at uint64) bool {
	b := frameOf{src: x.client, dst: x.server, sport: 0xC040, op: hdr.CompareSwap, qpn: 0x40, psn: 7, ext: atomicETH(at, 8, x.swap(lh, 1, 1), uint64(wire.Fresh(1)))}.bytes()
	var f hdr.Frame
	hdr.Parse(b, &f)
	return x.Guard.Stops(x.server, b[f.BTH:])
}

// While no process is there, no client can link an entry where an unanswered CAS was sent, except the client
// of that CAS.
func TestGuard(t *testing.T) {
	const stranger = 0x9777
	one, two, three := entryAt(0x9001), entryAt(0x9002), entryAt(0x9003)
	check := func(x *crashed, what string, at1, at2 bool) {
		t.Helper()
		for at, want := range map[uint64]bool{one: at1, two: at2, three: false, old: false, one + 8: false} {
			if x.atomic(stranger, at) != want {
				t.Errorf("%s: another client's CAS at %#x: held is %v", what, at, !want)
			}
		}
		if x.atomic(0x9002, one) || x.atomic(0x9003, two) {
			t.Errorf("%s: the repetition of the one on record is held", what)
		}
		if at1 && !x.atomic(0x9003, one) {
			t.Errorf("%s: another's on record may go", what)
		}
	}
	x := crash(t, graph.Args{})
	check(x, "under way", true, true)
	x.linked(0x30, 109)
	check(x, "3 is linked behind 2", true, false)
	if x.notes() != 2 {
		t.Errorf("%d are on record", x.notes())
	}
	// A guard entry that belongs to no CAS on record goes, also one of an earlier process.
	left := func(args graph.Args, after time.Duration, change func(m []byte)) *crashed {
		y := x.next(args, after)
		change(y.memory)
		y.Guard = port.NewGuard(nil)
		y.Guard.Replace(x.Guard)
		w := port.WordAt(port.Words(x.server), three)
		y.Guard.Put(w, w.Place(x.swap(0x9004, 1, 1)))
		y.Advance(time.Millisecond)
		return y
	}
	y := left(graph.Args{}, time.Second, func([]byte) {})
	check(y, "the next process", true, true) // it does not know that 3 was linked
	y.App().(graph.Flusher).Flush(nil)
	y.Advance(20 * time.Millisecond)
	check(y, "after a bypass", true, true)
	y.ack(0x20, 108)
	y.linked(0x20, 109)
	check(y, "2 is linked", false, true)
	y.linked(0x30, 109)
	check(y, "all is over", false, false)
	check(left(graph.Args{}, time.Hour, func([]byte) {}), "an hour later", false, false)
	check(left(graph.Args{}, time.Second, func(m []byte) { m[8]++ }), "another version", false, false)
	check(left(graph.Args{"servers": "10.9.9.9"}, time.Second, func([]byte) {}), "another server", false, false)
	for mode, want := range map[string]bool{"off": false, "write": true} {
		if f := x.next(graph.Args{"mode": mode}, 0).App().(graph.Wanter).Wants(); f.Guarded != want {
			t.Errorf("mode=%s: the filter is %+v", mode, f)
		}
	}
	x.from(0x20, 109, hdr.Acknowledge, hdr.SynNAKRemoteAccess, 0, nil)
	check(x, "its connection is over", false, false)
}

// Nor can another client's atomic go there while a CAS is on its way, of this process or of the one before.
// Atomics to other words do not wait, and none waits for long.
func TestAwaits(t *testing.T) {
	t.Run("its own", func(t *testing.T) { awaits(t, crash(t, graph.Args{})) })
	t.Run("taken over", func(t *testing.T) { awaits(t, crash(t, graph.Args{}).next(graph.Args{}, time.Second)) })
	t.Run("not sent again", func(t *testing.T) {
		x := crash(t, graph.Args{}).next(graph.Args{"repair": "0"}, time.Second)
		x.Advance(time.Millisecond)
		if !x.strangerGoes(entryAt(0x9001)) {
			t.Error("it waits for what nobody sends again")
		}
	})
}

func awaits(t *testing.T, x *crashed) {
	x.Advance(time.Millisecond)
	goes := func(what string, at uint64, lh uint32, want bool) {
		t.Helper()
		n := x.Counter("awaits")
		_, cas := x.frames(x.Push("a", frameOf{src: x.client, dst: x.server, sport: 0xC040, op: hdr.CompareSwap, qpn: 0x40, psn: 7, ext: atomicETH(at, x.rkey, x.swap(lh, 1, 1), uint64(wire.Fresh(1)))}.bytes()))
		if (cas[0x40] != nil) != want || x.Counter("awaits") == n != want {
			t.Errorf("%s: it went on is %v", what, !want)
		}
	}
	const stranger = 0x9777
	goes("to where it is to go", entryAt(0x9001), stranger, false)
	goes("to where the other one is to go", entryAt(0x9002), stranger, false)
	goes("elsewhere", entryAt(0x9003), stranger, true)
	goes("the same entry, by its client's next request", entryAt(0x9001), 0x9002, true)
	// XRC's is looked at, too.
	b := frameOf{src: x.client, dst: x.server, sport: 0xC040, op: hdr.SendOnly, qpn: 0x40, psn: 7, ext: append(make([]byte, 4), atomicETH(entryAt(0x9001), x.rkey, x.swap(stranger, 1, 1), 0)...)}
	f := b.bytes()
	f[14+20+8] = 0xB3
	if got := x.Push("a", f); len(got.Out["b"]) != 0 {
		t.Error("an atomic of XRC went there")
	}
	x.linked(0x30, 109)
	goes("the other one is answered", entryAt(0x9002), stranger, true)
	x.Advance(20 * time.Millisecond << (awaitRepairs + 1))
	if x.notes() != 2 {
		t.Errorf("%d on record", x.notes())
	}
	goes("who does not answer is not waited for", entryAt(0x9001), stranger, true)
}

// When the guard has no free place, no CAS is sent ahead.
func TestGuardFull(t *testing.T) {
	x := crash(t, graph.Args{})
	tail := entryAt(0x9003)
	w := port.WordAt(port.Words(x.server), tail)
	for va := tail + 8; x.Guard.Room(w); va += 8 {
		o := port.WordAt(port.Words(x.server), va)
		if o>>53 == w>>53 {
			x.Guard.Put(o, o.Place(1))
		}
	}
	x.wrote(0x10, 110, 0x9004)
	if at := x.link(0x10, 111, 0x9004, old); at != old || x.Counter("journal-full") != 1 {
		t.Errorf("sent to %#x, unguarded", at)
	}
}
