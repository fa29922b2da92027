package swordbox

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/port"
)

// kept is memory that outlives boxes.
type kept struct{ b []byte }

// kind is a box that has it.
func (k *kept) kind() graph.Kind {
	kind := *Kind()
	start := kind.New
	kind.New = func(env graph.Env, args graph.Args) (graph.App, error) {
		env.Memory = func(size int) ([]byte, error) { return k.b[:size:size], nil }
		return start(env, args)
	}
	return kind
}

// keeping is a rig whose box keeps a state.
func keeping(t *testing.T, args graph.Args) (*rig, *kept) {
	t.Helper()
	k := &kept{b: make([]byte, 8<<20)}
	r := newRig(t, args)
	r.Test = graphtest.New(t, k.kind(), r.args)
	return r, k
}

// restart ends the box, as a crash does unless clean, and starts the next one
// after some time with other arguments.
func (r *rig) restart(k *kept, clean bool, after time.Duration, more graph.Args) {
	r.t.Helper()
	was := bytes.Clone(k.b)
	if err := r.Inst.Close(); err != nil {
		r.t.Fatal(err)
	}
	if !clean {
		copy(k.b, was)
	}
	k.scramble()
	now := r.Clock.Now()
	maps.Copy(r.args, more)
	r.Test = graphtest.New(r.t, k.kind(), r.args)
	r.Clock.Set(now.Add(after))
}

// scramble overwrites what the next process does not read, as another version of the
// program may leave anything there.
func (k *kept) scramble() {
	m := memory{geometry: geometryIn(k.b), b: k.b}
	if !understood(le.Uint32(k.b[8:])) || m.conns == 0 {
		return
	}
	for p := range m.places {
		a := m.of(p)
		spoil(a.rows)
		spoil(a.flows)
		spoil(a.ops)
		spoil(a.more)
	}
}

// spoil overwrites what taken does not name of each of all.
func spoil[T any](all []T) {
	kept := make([]bool, unsafe.Sizeof(all[0]))
	var mark func(reflect.Type, uintptr)
	mark = func(t reflect.Type, at uintptr) {
		i := slices.IndexFunc(taken, func(x sort) bool { return x.kind == t })
		if i < 0 {
			for k := range t.Size() {
				kept[at+k] = true
			}
			return
		}
		for _, name := range strings.Fields(taken[i].fields) {
			f, _ := t.FieldByName(name)
			mark(f.Type, at+f.Offset)
		}
	}
	mark(reflect.TypeFor[T](), 0)
	for i := range all {
		b := unsafe.Slice((*byte)(unsafe.Pointer(&all[i])), len(kept))
		for k := range b {
			if !kept[k] {
				b[k] = 1
			}
		}
	}
}

// A state of a version that had the same fields in the same places is taken over, though it
// wrote another number; one whose meaning is another is not.
func TestOtherVersion(t *testing.T) {
	if layout() != thisLayout {
		t.Errorf("layout is %#x, not %#x: say which versions of the program are understood, and which are not (understood)", layout(), uint32(thisLayout))
	}
	for _, was := range earlier {
		r, k, a, b := diverged(t, nil)
		le.PutUint32(k.b[8:], was)
		r.restart(k, false, time.Millisecond, nil)
		same(t, a.write(0x5000, 1).Out["b"], a.moved(a, hdr.WriteOnly, a.spsn, reth(0x5000, testRKey, 8), little(1)))
		if v := r.box().Report().(Report); v.State.Why != "" || v.State.Recorded != 2 {
			t.Errorf("%#x: %+v", was, v.State)
		}
		_ = b
	}
	defer func(v int) { taken[0].version = v }(taken[0].version)
	r, k, a, b := diverged(t, nil)
	taken[0].version++
	r.restart(k, false, time.Millisecond, nil)
	a.told()
	b.told()
}

// Records of another format name no connections that this version can read. To go on would let
// their frames cross, whose ends count differently: no process starts with it, and nothing of
// it is changed.
func TestOtherFormat(t *testing.T) {
	for _, magic := range []uint64{memMagic + 1<<56, memMoving} {
		r, k, _, _ := diverged(t, nil)
		if err := r.Inst.Close(); err != nil {
			t.Fatal(err)
		}
		le.PutUint64(k.b, magic)
		was := bytes.Clone(k.b)
		env := graph.Env{Workers: 1, Share: func(f func() any) any { return f() }, Memory: func(size int) ([]byte, error) { return k.b[:size:size], nil }}
		if _, err := newApp(env, r.args); !errors.Is(err, errFormat) {
			t.Errorf("%#x: %v", magic, err)
		}
		if !bytes.Equal(k.b, was) {
			t.Error("it was changed")
		}
	}
}

func (r *rig) set(args graph.Args) {
	r.t.Helper()
	if _, err := r.Inst.Set(graphtest.App, args); err != nil {
		r.t.Fatal(err)
	}
	r.Clock.Advance(time.Microsecond)
}

// prove has the server execute operations of clients over their own connections, as
// it must after a restart before any of theirs move. They were connected before.
func (r *rig) prove(clients ...*party) {
	r.t.Helper()
	r.reach()
	for _, c := range clients {
		c.reads()
		c.writes()
		c.adds()
		c.msn += 3
	}
}

func (r *rig) box() *Box {
	if l, ok := r.App().(*late); ok {
		return l.Box
	}
	return r.App().(*Box)
}

// leave closes a client's connection.
func (c *party) leave() {
	c.r.t.Helper()
	one(c.r.t, c.r.Push("a", c.cm(true, hdr.CMFields{AttributeID: hdr.DisconnectRequest, RemoteQPN: c.sqpn})).Out["b"])
	one(c.r.t, c.r.Push("b", c.cm(false, hdr.CMFields{AttributeID: hdr.DisconnectReply})).Out["a"])
	c.r.Advance(2 * time.Duration(tick))
}

// told requires that c's next request is answered by the NAK that ends its queue
// pair, and does not come to the server.
func (c *party) told() {
	c.r.t.Helper()
	got := c.write(0x5000, 1)
	none0(c.r.t, got.Out["b"])
	want := c.response(hdr.Acknowledge, c.psn-1, aeth(hdr.SynNAKRemoteOperation, 0), nil)
	if b := one(c.r.t, got.Out["a"]); text(b) != text(want) {
		c.r.t.Fatalf("got %s, want %s", text(b), text(want))
	}
}

// diverged is a rig with two clients whose connections count differently: one
// atomic of b went over the connection of a.
func diverged(t *testing.T, args graph.Args) (r *rig, k *kept, a, b *party) {
	t.Helper()
	r, k = keeping(t, args)
	a, b = r.join(), r.join()
	b.learn(a, 0x7000, 7)
	if n := r.box().recorded(); n != 2 {
		t.Fatalf("%d connections on record, want 2", n)
	}
	return r, k, a, b
}

// Frames of connections on record must come to this process even when servers= no longer names their servers,
// for the kernel lets all other frames cross. The same holds for a server that only static= names.
func TestWantsOfOldServers(t *testing.T) {
	was, now := netip.MustParseAddr("10.9.0.1"), netip.MustParseAddr("10.9.7.7")
	for _, how := range []string{"set", "restart"} {
		r, k, a, _ := diverged(t, graph.Args{"servers": was.String()})
		args := graph.Args{"servers": now.String(), "static": "10.9.3.16/0x100-10.9.3.1/0x200"}
		if how == "set" {
			r.set(args)
		} else {
			r.restart(k, false, time.Millisecond, args)
		}
		for _, when := range []string{"before the first frame", "behind it"} {
			if f := r.Inst.Wants(); !slices.Contains(f.Hosts, was) || !slices.Contains(f.Hosts, now) || !slices.Contains(f.Hosts, netip.MustParseAddr("10.9.3.1")) || !f.Bound {
				t.Errorf("%s, %s: wants %+v", how, when, f)
			}
			r.box().leftServers = nil // as if Wants had not been called before the first frame
			same(t, a.write(0x5000, 1).Out["b"], a.moved(a, hdr.WriteOnly, a.spsn, reth(0x5000, testRKey, 8), little(1)))
			one(t, a.ack().Out["a"])
		}
	}
	if f := newRig(t, nil).Inst.Wants(); len(f.Hosts) != 0 {
		t.Errorf("without servers= it wants frames of %v alone", f.Hosts)
	}
}

// With mode=off connections whose two ends count differently go on being
// translated, each over its own connection, and everything else passes.
func TestOff(t *testing.T) {
	for _, how := range []string{"set", "restart"} {
		for _, memory := range []string{"kept", "none"} {
			t.Run(how+"/"+memory, func(t *testing.T) {
				r, k, a, b := diverged(t, nil)
				if memory == "none" {
					// Nothing can be handed over, so nothing may change.
					r = newRig(t, nil)
					a, b = r.join(), r.join()
					b.learn(a, 0x7000, 7)
					if _, err := r.Inst.Set(graphtest.App, graph.Args{"mode": "off"}); err == nil || !strings.Contains(err.Error(), "2 connections cannot do without it, and it has no state") {
						t.Fatal(err)
					}
					return
				}
				if how == "set" {
					r.set(graph.Args{"mode": "off"})
				} else {
					r.restart(k, true, time.Millisecond, graph.Args{"mode": "off"})
				}
				// b sent one that its own connection at the server never saw.
				same(t, b.write(0x5000, 1).Out["b"], b.moved(b, hdr.WriteOnly, b.spsn, reth(0x5000, testRKey, 8), little(1)))
				same(t, b.ack().Out["a"], b.response(hdr.Acknowledge, b.psn-1, aeth(hdr.SynACK, b.msn+1), nil))
				b.msn++
				// Atomics stay what they are, and where they are.
				for range 2 {
					same(t, b.cas(0x7000, 7, 7).Out["b"], b.moved(b, hdr.CompareSwap, b.spsn, atomicETH(0x7000, testRKey, 7, 7), nil))
					one(t, b.atomicAck(7).Out["a"])
				}
				// a's has one more than a sent.
				same(t, a.write(0x5000, 1).Out["b"], a.moved(a, hdr.WriteOnly, a.spsn, reth(0x5000, testRKey, 8), little(1)))
				one(t, a.ack().Out["a"])
				// A new client's pass.
				c := r.client().connect()
				for range 3 {
					x := c.cas(0x7000, 7, 7)
					same(t, x.Out["b"], c.made(hdr.CompareSwap, c.psn-1, atomicETH(0x7000, testRKey, 7, 7), nil))
					y := c.atomicAck(7)
					same(t, y.Out["a"], c.response(hdr.AtomicAck, c.spsn-1, append(aeth(hdr.SynACK, c.smsn), 0, 0, 0, 0, 0, 0, 0, 7), nil))
				}
				if n := r.box().recorded(); n != 2 {
					t.Errorf("%d connections on record, want 2", n)
				}
				if f := r.Inst.Wants(); !f.Bound {
					t.Error("frames would cross untouched while no process is there")
				}
				without := func() error {
					spec := r.Inst.Spec()
					spec.Apps, spec.Links = map[string]graph.AppSpec{}, []string{"in-a.out -> out-b.in", "in-b.out -> out-a.in"}
					_, err := r.Inst.Plan(spec)
					return err
				}
				if err := without(); err == nil || !strings.Contains(err.Error(), "2 connections cannot do without it: set mode=off and wait") {
					t.Errorf("%v", err)
				}
				a.leave()
				b.leave()
				if n := r.box().recorded(); n != 0 {
					t.Errorf("%d connections on record, want none", n)
				}
				if f := r.Inst.Wants(); f.Bound {
					t.Error("nothing needs to be kept from crossing")
				}
				if err := without(); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// What another client's connection carries at the moment of mode=off is answered
// first; then its client goes over its own.
func TestOffUnderWay(t *testing.T) {
	r, _, a, b := diverged(t, graph.Args{"giveup": "1s"})
	b.cas(0x7000, 7, 8)
	b.cas(0x7000, 8, 9)
	r.set(graph.Args{"mode": "off"})
	none0(t, b.write(0x5000, 1).Out["b"])
	one(t, a.ack().Out["a"])
	got := a.ack()
	one(t, got.Out["a"])
	same(t, got.Out["b"], b.moved(b, hdr.WriteOnly, b.spsn, reth(0x5000, testRKey, 8), little(1)))
	one(t, b.ack().Out["a"])
}

// mode=end tells the clients of connections that cannot do without the box; then
// it can go.
func TestEnd(t *testing.T) {
	for _, clean := range []bool{true, false} {
		r, k, a, b := diverged(t, nil)
		r.restart(k, clean, time.Millisecond, graph.Args{"mode": "end"})
		r.Advance(0)
		b.told()
		b.psn--
		b.told() // it was lost
		if n := r.box().recorded(); n != 2 {
			t.Errorf("%d connections on record, want 2", n)
		}
		r.Advance(keepGone + time.Second)
		if err := r.box().keeps(false); err != nil {
			t.Error(err)
		}
		_ = a
	}
}

// Clients of connections that were lost are told when they ask, however late,
// and whatever happened in between.
func TestLost(t *testing.T) {
	r, k, a, b := diverged(t, nil)
	k.b[8] ^= 1
	for n := range 3 {
		r.restart(k, false, time.Millisecond, nil)
		if n > 0 {
			r.Advance(0)
		}
	}
	if v := r.box().Report().(Report); v.State.Recorded != 2 {
		t.Errorf("%+v", v.State)
	}
	r.restart(k, true, time.Millisecond, nil)
	a.told()
	r.restart(k, true, time.Millisecond, graph.Args{"mode": "off"})
	a.psn--
	a.told()
	r.Advance(5 * keepGone)
	if n := r.box().recorded(); n != 1 {
		t.Errorf("%d connections on record, want that of the client that did not ask", n)
	}
	b.told()
}

// TestHandedOverWrite: a WRITE that takes an atomic's place is not undone by what a
// stranger writes after a hand-over, and its word goes on as before.
func TestHandedOverWrite(t *testing.T) {
	const va = 0x7008
	r, k, a, b := diverged(t, graph.Args{"replace": "tracked", "track": "7000+1000"})
	b.learn(a, va, 1)
	if got := opcode(t, one(t, b.cas(va, 1, 2).Out["b"])); got != hdr.WriteOnly {
		t.Fatalf("the CAS went as %v", got)
	}
	r.restart(k, true, 2*time.Microsecond, nil)
	x := r.client()
	frame := x.made(hdr.WriteOnly, x.psn, reth(va, testRKey, 8), little(7))
	none0(t, r.Push("a", frame).Out["b"])
	same(t, a.ack().Out["b"], frame)
	b.msn++
	r.Clock.Advance(time.Millisecond)
	r.prove(a, b)
	b.learn(a, va, 7)
	if got := opcode(t, one(t, b.cas(va, 7, 8).Out["b"])); got != hdr.WriteOnly {
		t.Errorf("the next CAS went as %v", got)
	}
}

// Words are believed when nothing can be under way any more that crossed while no
// process was there.
func TestReplacesSoon(t *testing.T) {
	replaced := func(r *rig, a, b *party, word uint64) bool {
		t.Helper()
		if op := opcode(t, one(t, b.cas(word, 9, 9).Out["b"])); op != hdr.CompareSwap {
			t.Fatalf("%v on a word that is not known", op)
		}
		one(t, a.atomicAck(9).Out["a"])
		op := opcode(t, one(t, b.cas(word, 9, 10).Out["b"]))
		if op == hdr.WriteOnly {
			one(t, a.ack().Out["a"])
		} else {
			one(t, a.atomicAck(9).Out["a"])
		}
		return op == hdr.WriteOnly
	}
	settle := graph.Args{"settle": "1ms"}
	r, k, a, b := diverged(t, settle)
	r.restart(k, true, 2*time.Microsecond, nil)
	r.prove(a, b)
	if replaced(r, a, b, 0x7000) {
		t.Error("replaced while what crossed meanwhile may be under way")
	}
	r.Clock.Advance(time.Millisecond)
	if !replaced(r, a, b, 0x7100) {
		t.Error("not replaced when it is not any more")
	}
}

func opcode(t *testing.T, b []byte) hdr.Opcode {
	t.Helper()
	var f hdr.Frame
	if why := hdr.Parse(b, &f); why != hdr.IsRoCE {
		t.Fatal(why)
	}
	return f.Op
}

// More connections and a longer memory are taken over, less is refused while
// something depends on it.
func TestOtherSizes(t *testing.T) {
	for _, more := range []graph.Args{{"conns": "16"}, {"window": "32"}, {"conns": "11", "window": "64"}} {
		t.Run(fmt.Sprint(more), func(t *testing.T) {
			r, k, a, b := diverged(t, nil)
			a.write(0x5000, 1)
			b.cas(0x7000, 7, 8)
			r.restart(k, true, time.Millisecond, more)
			one(t, a.ack().Out["a"])
			same(t, a.ack().Out["a"], b.response(hdr.AtomicAck, b.psn-1, append(aeth(hdr.SynACK, b.msn+1), 0, 0, 0, 0, 0, 0, 0, 7), nil))
			if v := r.box().Report().(Report); v.State.Why != "" {
				t.Error(v.State.Why)
			}
		})
	}
	for _, less := range []graph.Args{{"conns": "4"}, {"window": "16"}} {
		r, k, a, b := diverged(t, graph.Args{"window": "32"})
		_, err := r.Inst.Set(graphtest.App, less)
		if err == nil || !strings.Contains(err.Error(), "2 connections are left of conns=8, window=32, for 1 servers: give no less") {
			t.Errorf("%v", err)
		}
		one(t, b.cas(0x7000, 7, 8).Out["b"]) // it goes on
		one(t, a.ack().Out["a"])
		a.leave()
		b.leave()
		r.set(less)
		_ = k
	}
}

// A damaged record serves only to find the clients that must get an error.
func TestDamagedState(t *testing.T) {
	for name, damage := range map[string]func(k *kept, n *node){
		"layout":    func(k *kept, n *node) { k.b[8] ^= 0x40 },
		"time":      func(k *kept, n *node) { k.b[24+7] ^= 0x40 },
		"row":       func(k *kept, n *node) { n.rows[0].Client.QPN ^= 1 },
		"span":      func(k *kept, n *node) { n.flows[0].span = 3 },
		"many":      func(k *kept, n *node) { n.flows[0].tail += 100 },
		"header":    func(k *kept, n *node) { n.flows[1].up.bth = 200 },
		"operation": func(k *kept, n *node) { n.ops[1].kind = 200 },
	} {
		t.Run(name, func(t *testing.T) {
			r, k, a, b := diverged(t, nil)
			n := (*r.box().nodes.Load())[0]
			if err := r.Inst.Close(); err != nil {
				t.Fatal(err)
			}
			damage(k, n)
			now := r.Clock.Now()
			r.Test = graphtest.New(t, k.kind(), r.args)
			r.Clock.Set(now)
			left := slices.Clone(k.b)
			r.Advance(0) // as a start does that may fail behind it
			if (name == "layout" || name == "time") && !slices.Equal(k.b, left) {
				t.Error("the start has changed what a version that understands it goes on with")
			}
			r.Advance(1)
			v := r.box().Report().(Report)
			if v.State.Why == "" || v.State.Recorded != 2 {
				t.Fatalf("%+v", v.State)
			}
			a.told()
			b.told()
		})
	}
}

// Operations of clients that are gone are handed over, too: the connection that
// carries them counts on.
func TestOrphansAreHandedOver(t *testing.T) {
	for name, gone := range map[string]func(b *party){
		"closed": (*party).leave,
		"closing": func(b *party) {
			one(b.r.t, b.r.Push("a", b.cm(true, hdr.CMFields{AttributeID: hdr.DisconnectRequest, RemoteQPN: b.sqpn})).Out["b"])
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, k, a, b := diverged(t, nil)
			c := r.join()
			one(t, b.cas(0x7000, 7, 8).Out["b"])
			one(t, b.cas(0x7000, 8, 9).Out["b"])
			one(t, c.cas(0x7000, 9, 10).Out["b"])
			gone(b)
			r.restart(k, true, time.Millisecond, nil)
			r.Advance(0)
			if v := r.box().Report().(Report); v.State.Why != "" {
				t.Fatal(v.State.Why)
			}
			a.ack()
			a.ack()
			same(t, a.ack().Out["a"], c.response(hdr.AtomicAck, c.psn-1, append(aeth(hdr.SynACK, c.msn+1), 0, 0, 0, 0, 0, 0, 0, 9), nil))
		})
	}
}

// A READ that is repeated takes PSNs of its own at the server: from there on the
// two ends count differently. An atomic that became a WRITE is none to the
// server, if it is repeated.
func TestOnRecord(t *testing.T) {
	r, _ := keeping(t, nil)
	a := r.join()
	one(t, a.read(0x5000, 8).Out["b"])
	one(t, a.answer(hdr.ReadRespOnly, nil, little(1)).Out["a"])
	if n := r.box().recorded(); n != 0 {
		t.Fatalf("%d connections on record, want none", n)
	}
	same(t, r.Push("a", a.made(hdr.ReadRequest, a.psn-1, reth(0x5000, testRKey, 8), nil)).Out["b"],
		a.moved(a, hdr.ReadRequest, a.spsn, reth(0x5000, testRKey, 8), nil))
	if n := r.box().recorded(); n != 1 {
		t.Errorf("%d connections on record, want 1", n)
	}

	r, _ = keeping(t, nil)
	a = r.join()
	a.learn(a, 0x7000, 7)
	if n := r.box().recorded(); n != 0 {
		t.Fatalf("%d connections on record, want none", n)
	}
	one(t, a.cas(0x7000, 7, 8).Out["b"])
	if n := r.box().recorded(); n != 1 {
		t.Errorf("%d connections on record, want 1", n)
	}
}

// TestShape: a connection's frames have the shape of its header, also after another process took the
// connection over.
func TestShape(t *testing.T) {
	r, k, a, _ := diverged(t, nil)
	check := func() {
		t.Helper()
		n, synced := (*r.box().nodes.Load())[0], 0
		for i := range n.flows {
			if f := &n.flows[i]; f.synced {
				if synced++; f.shape != plain || f.up.shape != plain {
					t.Errorf("flow %d has shape %v, its header %v; want %v", i, f.shape, f.up.shape, plain)
				}
			}
		}
		if synced != 2 {
			t.Errorf("%d connections are followed, want 2", synced)
		}
	}
	check()
	r.restart(k, false, time.Millisecond, nil)
	a.write(0x5000, 1)
	check()
}

// With the inputs the wrong way round, frames of connections whose ends count differently do not cross as they are. What goes
// to other queue pairs does.
func TestWrongWayRound(t *testing.T) {
	r, k, a, b := diverged(t, nil)
	c := r.join()
	for _, when := range []string{"the same process", "the next one"} {
		if when == "the next one" {
			r.restart(k, false, time.Millisecond, nil)
		}
		for _, p := range []*party{a, b, c} {
			want := 0
			if p == c {
				want = 1
			}
			if x := r.Push("b", p.made(hdr.WriteOnly, p.psn, reth(0x5000, testRKey, 8), little(1))); len(x.Out["a"]) != want || len(x.Out["b"]) != 0 {
				t.Errorf("%s: a request from the servers' side: %+v, want %d to go on", when, x.Out, want)
			}
			if x := r.Push("a", p.response(hdr.Acknowledge, p.spsn, aeth(hdr.SynACK, p.smsn), nil)); len(x.Out["b"]) != want || len(x.Out["a"]) != 0 {
				t.Errorf("%s: an answer from the clients' side: %+v, want %d to go on", when, x.Out, want)
			}
			if x := r.Push("b", p.response(hdr.WriteOnly, p.spsn, reth(0x5000, testRKey, 8), little(1))); len(x.Out["a"]) != 1 {
				t.Errorf("%s: a request of the server's own goes on: %+v", when, x.Out)
			}
		}
	}
	one(t, a.write(0x5000, 1).Out["b"])
	one(t, a.ack().Out["a"])
}

// The next process knows all queue pairs that are bound in the kernel, before it begins, and binds none of others' away.
func TestKnownBefore(t *testing.T) {
	r, k, _, _ := diverged(t, nil)
	other := port.QueuePair{Addr: netip.MustParseAddr("10.9.0.77"), QPN: 7}
	bound := maps.Clone(r.Bound)
	if len(bound) != 4 {
		t.Fatalf("%d queue pairs are bound", len(bound))
	}
	if err := r.Inst.Close(); err != nil {
		t.Fatal(err)
	}
	now := r.Clock.Now()
	r.Test = graphtest.New(t, k.kind(), r.args)
	r.Clock.Set(now)
	known, more := r.Inst.Bound()
	if more || len(known) != len(bound) || slices.ContainsFunc(known, func(q port.QueuePair) bool { return !bound[q] }) {
		t.Errorf("known are %v and others: %v; bound were %v", known, more, bound)
	}
	r.Bound = maps.Clone(bound)
	r.Bound[other] = true
	r.Advance(0)
	if bound[other] = true; !maps.Equal(r.Bound, bound) {
		t.Errorf("bound are %v, want %v", r.Bound, bound)
	}
}
