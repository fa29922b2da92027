package clover

import (
	"testing"
	"time"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/hdr"
	wire "github.com/quillon/quillon/nf/hdr/clover"
	"github.com/quillon/quillon/tor/conn"
)

// of is the row of the connection to queue pair qpn of the server.
func (r *rig) of(qpn uint32) *row {
	s := r.App().(*Steer)
	i, _ := s.conns.Find(conn.AddrFrom(r.server), qpn)
	if i == conn.NoSlot {
		r.t.Fatalf("%#x is not followed", qpn)
	}
	return &s.rows[i]
}

// read has qpn READ something, and the server answer with MSN msn.
func (r *rig) read(qpn, psn, msn uint32) {
	r.readAt(qpn, psn, 0x10000)
	r.msn[qpn] = msn
	r.from(qpn, psn, hdr.ReadRespOnly, hdr.SynACK, 0, make([]byte, r.size))
	delete(r.msn, qpn)
}

// send has qpn send what concerns no entry.
func (r *rig) send(qpn, psn uint32) graphtest.Result {
	return r.to(qpn, psn, hdr.SendOnly, nil, make([]byte, 64))
}

// An answer counts when the MSN has risen, between two answers, by the number of requests that passed between
// both, once each and in their turn. Before that the server may answer requests that it executed long ago.
func TestCount(t *testing.T) {
	for name, c := range map[string]struct {
		play func(r *rig)
		want bool
	}{
		"executed":             {func(r *rig) { r.read(0x40, 108, 50); r.read(0x40, 109, 51) }, true},
		"executed before":      {func(r *rig) { r.read(0x40, 108, 50); r.read(0x40, 109, 50) }, false},
		"of which one was not": {func(r *rig) { r.read(0x40, 108, 50); r.send(0x40, 109); r.read(0x40, 110, 51) }, false},
		"behind others":        {func(r *rig) { r.read(0x40, 108, 50); r.send(0x40, 109); r.send(0x40, 110); r.read(0x40, 111, 53) }, true},
		"and another unseen":   {func(r *rig) { r.read(0x40, 108, 50); r.read(0x40, 109, 52) }, false},
		"one":                  {func(r *rig) { r.read(0x40, 108, 50) }, false},
		"around the end":       {func(r *rig) { r.read(0x40, 108, 0xFFFFFF); r.read(0x40, 109, 0) }, true},
		"one of several packets": {func(r *rig) {
			r.read(0x40, 108, 50)
			r.to(0x40, 109, hdr.SendFirst, nil, make([]byte, 256))
			r.to(0x40, 110, hdr.SendLast, nil, make([]byte, 64))
			r.read(0x40, 111, 52)
		}, true},
		"one that is repeated": {func(r *rig) {
			r.read(0x40, 108, 50)
			r.readAt(0x40, 109, 0x10000)
			r.read(0x40, 109, 51)
		}, false},
		"one that is ahead": {func(r *rig) {
			r.read(0x40, 108, 50)
			r.readAt(0x40, 200, 0x10000)
			r.read(0x40, 109, 51)
		}, false},
		"answered together, all the time": {func(r *rig) {
			for psn := uint32(108); psn < 114; psn += 2 {
				r.send(0x40, psn)
				r.read(0x40, psn+1, psn)
			}
		}, true},
		"and one whose answer nobody asks for": {func(r *rig) {
			r.read(0x40, 108, 50)
			r.Push("a", frameOf{src: r.client, dst: r.server, sport: 0xC040, op: hdr.SendOnly, qpn: 0x40, psn: 109, payload: make([]byte, 64)}.bytes())
			r.readAt(0x40, 110, 0x10000)
			r.readAt(0x40, 111, 0x10000)
			r.msn[0x40] = 52
			r.from(0x40, 110, hdr.ReadRespOnly, hdr.SynACK, 0, make([]byte, r.size))
			delete(r.msn, 0x40)
		}, true},
		"answered together": {func(r *rig) {
			r.send(0x40, 108)
			r.send(0x40, 109)
			r.msn[0x40] = 51
			r.from(0x40, 109, hdr.Acknowledge, hdr.SynACK, 0, nil)
			r.read(0x40, 110, 52)
		}, false},
		"ahead of what passed": {func(r *rig) {
			r.read(0x40, 108, 50)
			r.read(0x40, 109, 51)
			r.msn[0x40] = 53
			r.from(0x40, 111, hdr.ReadRespOnly, hdr.SynACK, 0, make([]byte, r.size))
			delete(r.msn, 0x40)
		}, false},
		"and a bypass": {func(r *rig) {
			r.read(0x40, 108, 50)
			r.read(0x40, 109, 51)
			r.App().(graph.Flusher).Flush(nil)
			r.send(0x40, 110)
		}, false},
		"of another connection": {func(r *rig) {
			r.read(0x40, 108, 50)
			r.read(0x40, 109, 51)
			r.read(0x40, 110, 3)
		}, false},
		"of another connection, behind the newest one": {func(r *rig) {
			for k := range uint32(4) {
				r.read(0x40, 108+k, 50+k)
			}
			r.read(0x40, 112, 52)
		}, false},
		"but a refusal": {func(r *rig) {
			r.read(0x40, 108, 50)
			r.send(0x40, 109)
			r.msn[0x40] = 51
			r.from(0x40, 109, hdr.Acknowledge, hdr.Syndrome(0x20|20), 0, nil)
			delete(r.msn, 0x40)
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, graph.Args{})
			r.pair(0x40, 102)
			r.of(0x40).count = uncounted
			if c.play(r); (r.of(0x40).count == counted) != c.want {
				t.Errorf("they count: %v, want %v", !c.want, c.want)
			}
		})
	}
}

// Before answers count, no CAS is steered, none shows a right, and none links; the one whose answer is the first that counts shows a right.
func TestCountsFromTheSecondOn(t *testing.T) {
	r := away(t, graph.Args{})
	r.pair(0x40, 102)
	r.of(0x40).count = uncounted
	r.msn[0x40] = 50
	for psn := uint32(108); psn < 116; psn += 2 {
		if r.steers(0x40, psn, 0x9004, entryAt(0x9001)) {
			t.Fatal("steered by repetitions of what was executed before")
		}
	}
	if r.of(0x40).marks != 0 {
		t.Error("what was executed before shows a right")
	}
	delete(r.msn, 0x40)
	r.wrote(0x40, 116, 0x9004)
	if at := r.link(0x40, 117, 0x9010, old); at != old {
		t.Error("steered before answers count")
	}
	if r.refused(0x40, 117); r.of(0x40).marks == 0 {
		t.Error("the first answer that counts shows nothing")
	}
	if at := r.link(0x40, 118, 0x9004, old); at != old {
		t.Error("an entry is linked that was written before answers count")
	}
	r.refused(0x40, 118)
	if !r.steers(0x40, 119, 0x9005, entryAt(0x9001)) {
		t.Error("not steered when answers count")
	}
	r.wrote(0x40, 121, 0x9006)
	r.of(0x40).count = uncounted
	if at := r.link(0x40, 122, 0x9006, old); at != old {
		t.Error("steered when answers count no more")
	}
}

// While frames cross without the box, the server may execute other requests than those that passed before.
func TestCountsBehindBypass(t *testing.T) {
	r := away(t, graph.Args{})
	r.pair(0x40, 102)
	r.link(0x40, 108, 0x9004, old)
	r.App().(graph.Flusher).Flush(nil)
	if r.refused(0x40, 108); r.of(0x40).marks != 0 {
		t.Error("the answer shows a right")
	}
}

// An append whose answer does not count has not linked what others wait for, unless it is their own connection's.
func TestCountsForGaps(t *testing.T) {
	for _, c := range []struct {
		qpn    uint32
		counts bool
		want   bool
	}{{0x20, true, true}, {0x20, false, true}, {0x10, true, true}, {0x10, false, false}} {
		r := row3(t, graph.Args{})
		r.linked(0x30, 109)
		r.refused(0x20, 109)
		if !c.counts {
			r.of(c.qpn).count = uncounted
		}
		r.link(c.qpn, 110, 0x9002, entryAt(0x9001))
		if told := r.told(r.linked(c.qpn, 110)); (len(told) == 2) != c.want {
			t.Errorf("%+v: told %x", c, told)
		}
	}
	// Another connection in the place of the one whose append was refused is not that one.
	r := row3(t, graph.Args{})
	r.linked(0x30, 109)
	r.refused(0x20, 109)
	for i := range uint32(window) {
		r.prove(0x20, 110+i)
	}
	r.from(0x20, 110+window, hdr.Acknowledge, hdr.SynNAKRemoteAccess, 0, nil)
	if s := r.App().(*Steer); len(s.gaps) != 1 || s.gaps[0].row != noSlot {
		t.Errorf("gaps are those of a connection that ended: %+v", s.gaps)
	}
}

// A request with the PSN of one that the server has not answered may be executed in its place.
func TestInstead(t *testing.T) {
	other := func(r *rig, psn uint32) {
		r.to(0x40, psn, hdr.CompareSwap, atomicETH(0x20000, 99, r.swap(1, 1, 1), uint64(wire.Fresh(1))), nil)
	}
	written := func(r *rig, psn, lh uint32, key uint64) {
		p := make([]byte, r.size)
		wireEntry(p, key)
		r.to(0x40, psn, hdr.WriteOnly, reth(entryAt(lh), r.rkey, r.size), p)
	}
	ack := func(r *rig, psn uint32) { r.from(0x40, psn, hdr.Acknowledge, hdr.SynACK, 0, nil) }
	for name, c := range map[string]struct {
		play func(r *rig) // sends 110 and 111
		want bool         // a CAS at 112 is steered
	}{
		"another CAS": {func(r *rig) {
			r.rkey = 8
			r.link(0x40, 110, 0x9004, old)
			r.rkey = 7
			written(r, 111, 0x9005, key)
			ack(r, 111)
		}, true},
		"in the place of a WRITE": {func(r *rig) { r.read(0x40, 110, 110); written(r, 111, 0x9005, key); other(r, 111); ack(r, 111) }, false},
		"in the place of one of another key": {func(r *rig) {
			r.read(0x40, 110, 110)
			written(r, 111, 0x9005, key)
			written(r, 111, 0x9005, key+1)
			ack(r, 111)
		}, false},
		"in the place of one elsewhere": {func(r *rig) {
			r.read(0x40, 110, 110)
			written(r, 111, 0x9005, key)
			written(r, 111, 0x9006, key)
			ack(r, 111)
		}, false},
		"the same WRITE": {func(r *rig) {
			r.read(0x40, 110, 110)
			written(r, 111, 0x9005, key)
			written(r, 111, 0x9005, key)
			ack(r, 111)
		}, true},
		"in front of a WRITE":  {func(r *rig) { r.send(0x40, 110); written(r, 111, 0x9005, key); other(r, 110); ack(r, 111) }, true},
		"when it was answered": {func(r *rig) { r.read(0x40, 110, 110); written(r, 111, 0x9005, key); ack(r, 111); other(r, 111) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			r := away(t, graph.Args{})
			r.pair(0x40, 102)
			r.prove(0x40, 108)
			r.read(0x40, 109, 109)
			c.play(r)
			if at := r.target(r.casAt(0x40, 112, 0x9005, old)); (at == entryAt(0x9001)) != c.want {
				t.Errorf("sent to %#x", at)
			}
		})
	}
}

// The answer to one of two CASes with a PSN shows nothing of either.
func TestInsteadOfCAS(t *testing.T) {
	for _, again := range []bool{true, false} {
		r := away(t, graph.Args{})
		r.pair(0x40, 102)
		r.link(0x40, 108, 0x9004, old)
		if again {
			r.link(0x40, 108, 0x9004, old)
		} else {
			r.to(0x40, 108, hdr.CompareSwap, atomicETH(0x20000, 99, r.swap(1, 1, 1), uint64(wire.Fresh(1))), nil)
		}
		r.refused(0x40, 108)
		if got := r.steers(0x40, 109, 0x9005, entryAt(0x9001)); got != again {
			t.Errorf("the same again %v: the next one is steered: %v", again, got)
		}
	}
}

// While a steered CAS is sent again, no other request goes on under its PSN. When the CAS is given up, the
// acknowledged requests do not depend on it.
func TestInsteadOfSteered(t *testing.T) {
	r := row3(t, graph.Args{"repair": "10ms", "idle": "0"})
	r.linked(0x30, 109)
	if n := len(r.casAt(0x20, 109, 0x9009, old).Out["b"]); n != 0 || r.Counter("instead") != 1 {
		t.Errorf("%d frames go on, %d are counted", n, r.Counter("instead"))
	}
	if n := len(r.send(0x20, 109).Out["b"]); n != 0 {
		t.Errorf("%d frames of another sort go on", n)
	}
	if r.Advance(15 * time.Millisecond); r.Counter("asked") == 0 || r.Counter("repaired") != 0 {
		t.Errorf("asked %d times, sent again %d times", r.Counter("asked"), r.Counter("repaired"))
	}
	r.from(0x20, 108, hdr.Acknowledge, hdr.SynACK, 0, nil)
	r.Advance(time.Minute)
	if r.Counter("given-up") == 0 {
		t.Fatal("it is not given up")
	}
	if n := len(r.casAt(0x20, 109, 0x9009, old).Out["b"]); n != 1 {
		t.Errorf("%d frames go on when it is given up", n)
	}
	r.expect(r.linked(0x20, 109), "the answer to the other one", [2]uint32{0x20, 109})
	if r.Counter("chains-cut") != 1 {
		t.Error("who stands behind it is told")
	}
}

// A request ahead of its turn may reach the server when it is its turn, before the request that passes in its
// turn then.
func TestStray(t *testing.T) {
	for name, c := range map[string]struct {
		ahead []uint32
		after time.Duration
		want  bool // a CAS at 110 is steered
	}{
		"nothing":          {nil, 0, true},
		"its PSN":          {[]uint32{110}, 0, false},
		"others around it": {[]uint32{200, 110}, 0, false},
		"in another order": {[]uint32{110, 200}, 0, false},
		"further ahead":    {[]uint32{111, 300}, 0, true},
		"any":              {[]uint32{110, 109 + 1<<20}, 0, false},
		"a second ago":     {[]uint32{110}, 1200 * time.Millisecond, true},
		"not so long ago":  {[]uint32{110}, 500 * time.Millisecond, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := away(t, graph.Args{})
			for _, psn := range c.ahead {
				r.readAt(0x20, psn, 0x10000)
			}
			r.Clock.Advance(c.after)
			r.wrote(0x20, 109, 0x9005)
			if at := r.target(r.casAt(0x20, 110, 0x9005, old)); (at == entryAt(0x9001)) != c.want {
				t.Errorf("sent to %#x", at)
			}
		})
	}
}

// What a WRITE says of an address is not known before the server has acknowledged it: READs of it go where they were sent.
func TestClaimed(t *testing.T) {
	r := steered(t, graph.Args{})
	p := make([]byte, 128)
	wireEntry(p, 5)
	r.to(0x10, 110, hdr.WriteOnly, reth(theTail+0x1000, r.rkey, 128), p)
	if got := r.readsAt(109, theTail+0x1000, 128); got != theTail+0x1000 {
		t.Errorf("a READ of what may not be written goes to %#x", got)
	}
	r.from(0x10, 110, hdr.Acknowledge, hdr.SynACK, 0, nil)
	if got := r.readsAt(110, theTail+0x1000, 128); got != theTail {
		t.Errorf("a READ of what is written goes to %#x", got)
	}
}

// The first PSN of an announced connection is in doubt, as requests were seen before the reply. The server's
// answer says where the connection is.
func TestBegunBeforeTheReply(t *testing.T) {
	r := crew(t, graph.Args{})
	r.request(0x1050)
	r.readAt(0x50, 0x900000, 0x10000)
	r.reply("b", 0x50)
	if r.of(0x50).begun {
		t.Fatal("the first PSN is believed")
	}
	r.read(0x50, 0x900001, 1)
	if x := r.of(0x50); x.epsn != 0x900002 || x.acked != 0x900001 {
		t.Errorf("%#x is expected, %#x answered", x.epsn, x.acked)
	}
}

// While a steered CAS has no answer, its queue pairs may be connected anew; then the server counts less than
// before. The box asks the server, and sends nothing to the new connection. A late answer is no sign of
// another connection.
func TestConnectedAnew(t *testing.T) {
	for _, anew := range []bool{true, false} {
		r := row3(t, graph.Args{"repair": "10ms"})
		r.linked(0x30, 109)
		late := 1
		if anew {
			late = 3
		}
		r.msn[0x20] = 3
		for range late {
			r.from(0x20, 105, hdr.Acknowledge, hdr.SynACK, 0, nil)
		}
		r.Advance(15 * time.Millisecond)
		if r.Counter("asked") == 0 || r.Counter("repaired") != 0 {
			t.Fatalf("anew %v: asked %d times, sent again %d times", anew, r.Counter("asked"), r.Counter("repaired"))
		}
		if !anew {
			r.from(0x20, 106, hdr.Acknowledge, hdr.SynACK, 0, nil) // late, too
			delete(r.msn, 0x20)
		}
		r.from(0x20, 108, hdr.Acknowledge, hdr.SynACK, 0, nil)
		r.Advance(time.Second)
		if (r.Counter("repaired") == 0) != anew || (r.Counter("chains-cut") != 0) != anew {
			t.Errorf("anew %v: sent again %d times, %d chains cut", anew, r.Counter("repaired"), r.Counter("chains-cut"))
		}
	}
}

// The same for a connection whose PSNs are just below 2^24.
func TestBegunFarAhead(t *testing.T) {
	r := crew(t, graph.Args{})
	r.request(0x1050)
	r.readAt(0x50, 0xFFFFF0, 0x10000)
	r.reply("b", 0x50)
	r.readAt(0x50, 0xFFFFF1, 0x10000)
	if s := r.App().(*Steer); s.order != early {
		t.Errorf("a request is %v before the server has said where it is", s.order)
	}
	r.read(0x50, 0xFFFFF2, 1)
	if x := r.of(0x50); x.epsn != 0xFFFFF3 {
		t.Errorf("%#x is expected", x.epsn)
	}
}

// A CAS whose answer does not count shows nothing of handles, nor of a tail.
func TestNobodyLearns(t *testing.T) {
	for _, counts := range []bool{true, false} {
		r := newRig(t, graph.Args{})
		r.pair(0x10, 102)
		for i := range uint32(trustedBase) {
			r.wrote(0x10, 108+2*i, 0x9001+i)
			r.of(0x10).count = uncounted
			if counts {
				r.of(0x10).count = counted
			}
			r.link(0x10, 109+2*i, 0x9001+i, 0x20000)
			r.linked(0x10, 109+2*i)
			r.of(0x10).count = counted
		}
		if n := r.App().(*Steer).Report().(Report).Bases; (n == 1) != counts {
			t.Errorf("counts %v: %d bases are known", counts, n)
		}
	}
}
