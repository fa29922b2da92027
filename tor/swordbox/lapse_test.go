package swordbox

import (
	"testing"
	"time"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
)

// silence is a server that has not answered a WRITE of client c's, and answers others.
func silence(t *testing.T, args graph.Args, write func(c *party) []byte) (r *rig, b, c *party, f []byte) {
	t.Helper()
	r = newRig(t, args)
	a := r.join()
	b = r.join()
	c = r.client().connect()
	c.warm()
	c.warm()
	b.learn(a, 0x7008, 1)
	f = write(c)
	c.psn++
	same(t, r.Push("a", f).Out["b"], f)
	return r, b, c, f
}

// writes are WRITEs over their client's own connection that may change the word at 0x7008,
// or others that come into use later.
func writes() map[string]func(c *party) []byte {
	return map[string]func(c *party) []byte{
		"of the word": func(c *party) []byte { return c.made(hdr.WriteOnly, c.psn, reth(0x7008, testRKey, 8), little(7)) },
		"of words": func(c *party) []byte {
			return c.made(hdr.WriteOnly, c.psn, reth(0x7000, testRKey, 24), make([]byte, 24))
		},
		"elsewhere": func(c *party) []byte {
			return c.made(hdr.WriteOnly, c.psn, reth(0x9000, testRKey, 24), make([]byte, 24))
		},
	}
}

// add has b add 1 to the word at va, and is how that goes to the server, 10 ms later at most, and
// over whose connection.
func add(t *testing.T, r *rig, b *party, va uint64) (l *party, f []byte) {
	t.Helper()
	got := b.request(hdr.FetchAdd, atomicETH(va, testRKey, 1, 0), nil).Out["b"]
	for range 10 {
		for _, f := range got {
			for _, l := range r.clients {
				if l.sqpn == queuePair(f.Bytes) && len(f.Bytes) > 74 { // no question
					return l, f.Bytes
				}
			}
		}
		got = r.Advance(time.Millisecond).Out["b"]
	}
	t.Fatal("it does not go")
	return nil, nil
}

// adds has b add to the word at va, whose value is v, until it goes as a WRITE: for so long at
// most, in steps of 5 ms. The result is what the word holds, and whether it did.
func adds(t *testing.T, r *rig, b *party, va, v uint64, most time.Duration) (uint64, bool) {
	t.Helper()
	for range most / (5 * time.Millisecond) {
		l, got := add(t, r, b, va)
		v++
		if opcode(t, got) == hdr.WriteOnly {
			l.ack()
			return v, true
		}
		l.atomicAck(v - 1)
		r.Advance(5 * time.Millisecond)
	}
	return v, false
}

// A server answers other WRITEs, but one WRITE never. That WRITE keeps no word unknown for longer than a
// WRITE of a connection that nobody follows: neither the words that it may change, nor words that come into
// use later.
func TestNeverAnswered(t *testing.T) {
	for name, write := range writes() {
		t.Run(name, func(t *testing.T) {
			r, b, c, f := silence(t, nil, write)
			for _, va := range []uint64{0x7008, 0x8000} {
				if _, ok := adds(t, r, b, va, 1, 200*time.Millisecond); !ok {
					t.Errorf("the word at %#x is not known again", va)
				}
			}
			// Its client repeats it, and is answered: as on a bare wire.
			same(t, r.Push("a", f).Out["b"], f)
			c.msn++
			if got := one(t, c.ack().Out["a"]); opcode(t, got) != hdr.Acknowledge {
				t.Errorf("its client was told: %s", text(got))
			}
		})
	}
}

// While the server is silent on all connections it may be that it pauses, and does later what
// it was sent.
func TestNobodyAnswered(t *testing.T) {
	for name, write := range writes() {
		t.Run(name, func(t *testing.T) {
			r, b, _, _ := silence(t, nil, write)
			r.Advance(time.Second)
			r.Advance(time.Second)
			va := uint64(0x8000)
			if name == "of the word" {
				va = 0x7008
			}
			if _, ok := adds(t, r, b, va, 1, 10*time.Millisecond); ok {
				t.Error("a word is known")
			}
		})
	}
}

// A WRITE that comes again so late may change words like a WRITE that nobody follows. It waits for the WRITEs
// in the place of atomics, and the words that it changes are unknown until settle= later.
func TestAnsweredLate(t *testing.T) {
	const va = 0x7008
	r, b, c, f := silence(t, nil, writes()["of the word"])
	if _, ok := adds(t, r, b, va, 1, 200*time.Millisecond); !ok {
		t.Fatal("the word is not known again")
	}
	l, got := add(t, r, b, va)
	if opcode(t, got) != hdr.WriteOnly {
		t.Fatalf("not as a WRITE: %s", text(got))
	}
	none0(t, r.Push("a", f).Out["b"])
	same(t, l.ack().Out["b"], f)
	if l, got = add(t, r, b, va); opcode(t, got) != hdr.FetchAdd {
		t.Errorf("what it finds is thought to be known: %s", text(got))
	}
	l.atomicAck(7)
	c.msn++
	one(t, c.ack().Out["a"])
	if _, ok := adds(t, r, b, va, 8, 20*time.Millisecond); !ok {
		t.Error("the word is not known again")
	}
}

// Nobody else's requests go behind what the server may not have, and only its client can send.
func TestNobodyBehindLapsed(t *testing.T) {
	const va = 0x7008
	r := newRig(t, nil)
	a, b, c := r.join(), r.join(), r.join()
	b.learn(a, va, 1)
	one(t, c.write(0x9000, 1).Out["b"])
	if _, ok := adds(t, r, b, 0x8000, 1, 200*time.Millisecond); !ok {
		t.Fatal("a word is not known")
	}
	one(t, c.write(va, 5).Out["b"])
	r.Push("b", c.response(hdr.Acknowledge, c.spsn-1, aeth(hdr.SynACK, c.smsn), nil)) // the connection lives
	if l, _ := add(t, r, b, va); l == c {
		t.Error("another client's request goes there")
	}
}

// A client went away while its WRITE had no answer. The connection's place, and the places of the frames held
// of it, become free.
func TestLapsedGone(t *testing.T) {
	for name, x := range map[string]struct {
		bound       bool
		room        string
		conns, gone uint64
	}{"not on record": {false, "8", 2, 0}, "on record": {true, "8", 3, 0}, "on record, and no room": {true, "3", 3, 1}} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, graph.Args{"idle": "3s", "conns": x.room})
			a, b := r.join(), r.join()
			b.learn(a, 0x7008, 1)
			c := r.client().connect()
			c.warm()
			if x.bound {
				c.proven()
				if to := queuePair(one(t, c.cas(0x7008, 1, 2).Out["b"])); to != a.sqpn {
					t.Fatalf("sent to queue pair %#x", to)
				}
				a.ack()
			}
			one(t, c.request(hdr.WriteOnlyImm, append(reth(0x9000, testRKey, 8), 0, 0, 0, 1), little(77)).Out["b"])
			for range 800 { // 8 s
				if len(r.Advance(10 * time.Millisecond).Out["b"]) > 0 {
					r.Push("b", a.response(hdr.Acknowledge, a.spsn-1, aeth(hdr.SynACK, a.smsn), nil), b.response(hdr.Acknowledge, b.spsn-1, aeth(hdr.SynACK, b.smsn), nil))
				}
			}
			for name, want := range map[string]uint64{"conns": x.conns, "connections-gone": x.gone, "connections-lapsed": 1, "resets": 0} {
				if n := r.Counter(name); n != want {
					t.Errorf("%s: %d, want %d", name, n, want)
				}
			}
		})
	}
}

// A connection that was quiet for idle=, and whose server's end is there, is not asked again
// before it was quiet for that long once more.
func TestAskedOnce(t *testing.T) {
	r := newRig(t, graph.Args{"idle": "3s"})
	a, b := r.join(), r.join()
	b.learn(a, 0x7058, 1)
	asked := 0
	for range 2000 { // 10 s
		for _, f := range r.Advance(5 * time.Millisecond).Out["b"] {
			c := a
			if queuePair(f.Bytes) == b.sqpn {
				c = b
			}
			asked++
			r.Push("b", c.response(hdr.Acknowledge, c.spsn-1, aeth(hdr.SynACK, c.smsn), nil))
		}
	}
	if asked < 4 || asked > 8 {
		t.Errorf("%d questions on 2 connections in 10 s, want 2 each 3 s", asked)
	}
}
