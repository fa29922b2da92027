package clover

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/quillon/quillon/internal/rack/ycsb"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/hdr"
	wire "github.com/quillon/quillon/nf/hdr/clover"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/rack/rnic"
)

// The verdict must be able to fail.
func TestIntegrityFindsDamage(t *testing.T) {
	key := func(r *rig) (*keyMeta, []byte) {
		k := r.cl.meta.keys[1]
		return k, r.cl.memory[0].entry(k.head.LH())
	}
	for _, c := range []struct {
		name   string
		damage func(r *rig)
		ok     func(v Integrity) bool
	}{
		{"nothing", func(*rig) {}, func(v Integrity) bool { return v.OK() && v.Lost == 0 }},
		{"link removed", func(r *rig) {
			_, e := key(r)
			put64(e, 0, uint64(wire.Fresh(1)))
		}, func(v Integrity) bool { return v.Lost > 0 }},
		{"link to nowhere", func(r *rig) {
			_, e := key(r)
			put64(e, 0, uint64(wire.Linked(1, wire.Ref(1<<31, 1))))
		}, func(v Integrity) bool { return v.BrokenLinks == 1 && v.Lost > 0 }},
		{"link to another version", func(r *rig) {
			_, e := key(r)
			h := pointerAt(e, 0)
			put64(e, 0, uint64(wire.Linked(1, wire.Ref(h.LH(), h.NextVersion()+1))))
		}, func(v Integrity) bool { return v.BrokenLinks == 1 && v.Lost > 0 }},
		{"link to another key", func(r *rig) {
			_, e := key(r)
			put64(e, 0, uint64(wire.Linked(1, r.cl.meta.keys[2].head)))
		}, func(v Integrity) bool { return v.BrokenLinks == 1 && v.Lost > 0 }},
		{"cycle", func(r *rig) {
			k, e := key(r)
			var last []byte
			for p := pointerAt(e, 0).Next(); p != 0; p = pointerAt(last, 0).Next() {
				last = r.cl.memory[0].entry(p.LH())
			}
			first := pointerAt(e, 0).Next()
			_ = k
			put64(last, 0, uint64(wire.Linked(1, first)))
		}, func(v Integrity) bool { return v.BrokenLinks == 1 && v.Lost == 0 }},
		{"cycle through the first entry", func(r *rig) {
			_, e := key(r)
			put64(e, 0, uint64(wire.Linked(1, r.cl.meta.keys[1].head)))
		}, func(v Integrity) bool { return v.BrokenLinks == 1 && v.Lost > 0 }},
		{"foreign value", func(r *rig) {
			_, e := key(r)
			put64(e, ValueAt, uint64(tagOf(77, 3)))
		}, func(v Integrity) bool { return v.BrokenLinks == 1 && v.Lost > 0 }},
		{"acknowledged, never linked", func(r *rig) {
			r.cl.compute[0].sessions[0].journal.begin(1)
		}, func(v Integrity) bool { return v.Lost == 1 && v.BrokenLinks == 0 }},
		{"retired twice", func(r *rig) {
			r.cl.ledger.superseded(1, uint64(tagOf(1, 1)))
			r.cl.ledger.superseded(1, uint64(tagOf(1, 1)))
		}, func(v Integrity) bool { return v.BrokenLinks > 0 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := hot(ycsb.W)
			cfg.Keys = ycsb.Sequential(1, 2)
			r := newRig(t, cfg, 2, 1)
			r.run(20, time.Second)
			c.damage(r)
			if v := r.cl.Integrity(); !c.ok(v) || (c.name != "nothing") == v.OK() {
				t.Errorf("%+v", v)
			}
		})
	}
}

// liar makes a client's CAS that succeeded look failed. With hold it keeps the answer until hold is false.
type liar struct {
	lies int
	hold bool
	kept *packet.Buf
}

func (l *liar) pass(now clock.Time, up bool, b *packet.Buf, emit func(*packet.Buf)) {
	x := b.Bytes()
	var f hdr.Frame
	if l.lies > 0 && hdr.Parse(x, &f) == hdr.IsRoCE && f.Op == hdr.AtomicAck {
		f.AtomicAckETHOf(x).SetOriginal(uint64(wire.Linked(9, wire.Ref(9, 9))))
		hdr.SetICRC(x, &f)
		l.lies--
		if l.hold {
			l.kept = b
			return
		}
	}
	if l.kept != nil && !l.hold && !up {
		emit(l.kept)
		l.kept = nil
	}
	emit(b)
}

// A writer whose CAS looks failed finds its own entry in the chain and does not link the entry twice, also
// when the entry that the CAS went to, and the new entry, were recycled meanwhile.
func TestFindsOwnEntry(t *testing.T) {
	x := &liar{}
	r := newRig(t, Config{Keys: ycsb.Sequential(1, 1), Entries: 512, Sessions: 1}, 1, 1, x)
	r.op(0, 0, false, 1, nil)
	x.lies = 1
	w := r.op(0, 0, true, 1, make([]byte, 8))
	if w.Err != nil || w.FirstTry {
		t.Fatalf("%+v", w)
	}
	st := r.cl.compute[0].c.Stats()
	if st.FoundOwn != 1 || st.CASFailed != 1 {
		t.Fatalf("%+v", st)
	}
	if v := r.cl.Integrity(); v.InChain != 2 {
		t.Fatalf("%+v", v)
	}
}

func TestFindsOwnEntryRecycled(t *testing.T) {
	x := &liar{}
	r := newRig(t, Config{Keys: ycsb.Sequential(1, 1), Entries: 80, Sessions: 1, Metadata: MetadataConfig{GCBelow: 1}}, 2, 1, x)
	r.op(0, 0, true, 1, nil)
	x.lies, x.hold = 1, true
	c := r.cl.compute[0].c
	var res *Result
	c.done = func(r *Result) { res = r }
	if err := c.sessions[0].Write(r.clk.Now(), 1, nil); err != nil {
		t.Fatal(err)
	}
	if err := r.sim.Run(func() bool { return x.kept != nil }, time.Second); err != nil {
		t.Fatal(err)
	}
	own, asked := c.sessions[0].own, c.sessions[0].cur
	m := r.cl.meta
	for range 300 {
		if w := r.op(1, 0, true, 1, nil); w.Err != nil {
			t.Fatal(w.Err)
		}
		r.cl.compute[1].c.bg.gcAt = 0 // report at once
	}
	for _, p := range []Pointer{own, asked} {
		if e := m.meta(p.LH()); e.version == p.Version() {
			t.Fatalf("%v is not recycled", p)
		}
	}
	x.hold = false
	r.op(1, 0, false, 1, nil)
	if err := r.sim.Run(func() bool { return res != nil }, time.Second); err != nil {
		t.Fatal(err)
	}
	st := c.Stats()
	if res.Err != nil || st.FoundOwn != 1 || st.Stale == 0 {
		t.Errorf("%+v %+v", res, st)
	}
	if v := r.cl.Integrity(); !v.OK() || v.InChain+v.Superseded != 303 {
		t.Errorf("%+v", v)
	}
}

func TestServerKnowsWhatWasLinked(t *testing.T) {
	r := newRig(t, Config{Keys: ycsb.Sequential(1, 1), Entries: 512, Sessions: 1, Metadata: MetadataConfig{GCBelow: 1}}, 1, 1)
	var own []Pointer
	for range 5 {
		own = append(own, r.op(0, 0, true, 1, nil).Entry)
		r.settle()
	}
	if err := r.sim.Run(func() bool { return r.cl.meta.stats.Retired >= 5 && r.cl.meta.grace.n == 0 }, time.Second); err != nil {
		t.Fatal(err, r.cl.meta.Stats())
	}
	m := r.cl.meta
	for _, p := range own {
		if !m.wasLinked(p) {
			t.Errorf("%v was linked", p)
		}
	}
	if m.wasLinked(wire.Ref(400, 1)) || m.wasLinked(wire.Ref(own[0].LH(), 2)) || m.wasLinked(wire.Ref(1<<31, 1)) {
		t.Error("what never was, was linked")
	}
}

// With few entries and many writers every entry is used many times.
func TestRecycling(t *testing.T) {
	for seed := range uint64(3) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			cfg := hot(ycsb.A)
			cfg.Keys, cfg.Seed, cfg.Theta = ycsb.Sequential(math.MaxUint64-79, 80), seed, 0.3
			cfg.Entries, cfg.Sessions = 190, 3
			cfg.Metadata.GCBelow = 1
			r := newRig(t, cfg, 3, 2)
			m := r.run(600, time.Hour)
			v := r.sound(int(m.Writes))
			st, ms := r.cl.ClientStats(), r.cl.meta.Stats()
			if v.Superseded < 1000 || ms.Recycled < 1000 || st.Stale == 0 {
				t.Errorf("%+v %+v %+v", v, st, ms)
			}
		})
	}
}

func TestParking(t *testing.T) {
	cfg := Config{Keys: ycsb.Sequential(1, 1), Entries: 24, Sessions: 1, Mix: ycsb.W, Metadata: MetadataConfig{GCBelow: 1}}
	r := newRig(t, cfg, 1, 1)
	r.cl.Start(Load{})
	err := r.sim.Run(func() bool { return r.cl.meta.stats.Parked >= 20 }, time.Minute)
	if err != nil {
		t.Fatal(err, r.cl.meta.Stats())
	}
	for _, e := range r.cl.meta.entries {
		if e.version >= ParkVersion {
			t.Fatalf("an entry has version %d", e.version)
		}
	}
	if v := r.cl.Integrity(); v.BrokenLinks != 0 || v.BrokenWalks != 0 {
		t.Errorf("%+v", v)
	}
}

// The first client that writes a missing key creates it.
func TestOpen(t *testing.T) {
	r := newRig(t, Config{Keys: ycsb.Sequential(1, 2), Entries: 512, Sessions: 1}, 2, 1)
	r.cl.meta.slots.push(FirstShortcut + 1000)
	key := uint64(math.MaxUint64)
	if x := r.op(0, 0, false, key, nil); !errors.Is(x.Err, ErrNotFound) {
		t.Fatalf("%+v", x)
	}
	if x := r.op(0, 0, true, key, []byte("\x00\x00\x00\x00\x00\x00\x00\x00first")); x.Err != nil {
		t.Fatalf("%+v", x)
	}
	if x := r.op(1, 0, true, key, []byte("\x00\x00\x00\x00\x00\x00\x00\x00second")); x.Err != nil {
		t.Fatalf("%+v", x)
	}
	r.settle()
	for n := range 2 {
		if x := r.op(n, 0, false, key, nil); x.Err != nil || !bytes.HasPrefix(x.Value, []byte("\x00\x00\x00\x00\x00\x00\x00\x00second\x00")) {
			t.Fatalf("%+v", x)
		}
	}
	if v := r.cl.Integrity(); v.Keys != 3 || v.InChain != 4 {
		t.Fatalf("%+v", v)
	}
	// Two sessions create a key at once.
	c0, c1 := r.cl.compute[0].c, r.cl.compute[1].c
	var errs []error
	c0.done = func(x *Result) { errs = append(errs, x.Err) }
	c1.done = c0.done
	r.cl.meta.slots.push(FirstShortcut + 1001)
	_ = c0.sessions[0].Write(r.clk.Now(), 99, nil)
	_ = c1.sessions[0].Write(r.clk.Now(), 99, nil)
	if err := c1.sessions[0].Read(r.clk.Now(), 1); !errors.Is(err, ErrBusy) {
		t.Errorf("a busy session said %v", err)
	}
	if err := r.sim.Run(func() bool { return len(errs) == 2 }, time.Second); err != nil || errs[0] != nil || errs[1] != nil {
		t.Fatal(err, errs)
	}
	if v := r.cl.Integrity(); v.Keys != 4 || v.InChain != 6 || !v.OK() {
		t.Fatalf("%+v", v)
	}
	if err := c0.sessions[0].Write(r.clk.Now(), 1, make([]byte, 113)); !errors.Is(err, ErrTooLong) {
		t.Errorf("a long value: %v", err)
	}
}

// Values of all lengths follow each other in one chain, also values that need several packets.
func TestClasses(t *testing.T) {
	r := newRig(t, Config{Keys: ycsb.Sequential(1, 3), Classes: []Class{{128, 100}, {1024, 60}, {32 << 10, 20}}, Sessions: 1,
		Metadata: MetadataConfig{GCBelow: 1}}, 2, 2)
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.SampledFrom([]int{0, 8, 112, 113, 1008, 1009, 5000, 32<<10 - ValueAt}).Draw(t, "length")
		value := bytes.Repeat([]byte{rapid.Byte().Draw(t, "byte")}, n)
		clear(value[:min(n, 8)])
		writer, reader := rapid.IntRange(0, 1).Draw(t, "writer"), rapid.IntRange(0, 1).Draw(t, "reader")
		key := rapid.Uint64Range(1, 3).Draw(t, "key")
		if x := r.op(writer, 0, true, key, value); x.Err != nil {
			t.Fatal(x.Err)
		}
		x := r.op(reader, 0, false, key, nil)
		if x.Err != nil || len(x.Value) < n || !bytes.Equal(x.Value[:n], value) || len(bytes.Trim(x.Value[n:], "\x00")) > 0 {
			t.Fatalf("%v: wrote %d bytes, read %d others", x.Err, n, len(x.Value))
		}
	})
	r.settle()
	if v := r.cl.Integrity(); !v.OK() {
		t.Errorf("%+v", v)
	}
	if r.cl.meta.Stats().Recycled == 0 {
		t.Error("nothing was recycled")
	}
}

func TestRelease(t *testing.T) {
	r := newRig(t, Config{Keys: ycsb.Sequential(1, 2), Entries: 512, Sessions: 2, Mix: ycsb.W}, 1, 1)
	m := r.run(30, time.Second)
	k := r.cl.meta.classes[0]
	if used := 2 + int(m.Writes); k.total-k.free <= used {
		t.Fatalf("%d of %d free, %d in use: nothing is in stock", k.free, k.total, used)
	}
	r.cl.compute[0].c.Release()
	r.settle()
	if err := r.sim.Run(func() bool { return r.cl.meta.grace.n == 0 }, time.Second); err != nil {
		t.Fatal(err)
	}
	if used := 2 + int(m.Writes); k.total-k.free != used {
		t.Errorf("%d of %d free, %d in use", k.free, k.total, used)
	}
	r.sound(int(m.Writes))
}

// The metadata server survives any bytes.
func TestServerTakesAnything(t *testing.T) {
	r := newRig(t, Config{Keys: ycsb.Sequential(1, 2), Entries: 64, Sessions: 1}, 1, 1)
	m := r.cl.meta
	conn := m.conns[0]
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.SampledFrom([]int{0, 1, 31, 191, MsgLen, MsgLen, MsgLen, LargeMsgLen, LargeMsgLen}).Draw(t, "length")
		b := make([]byte, n)
		for i := range rapid.IntRange(0, 12).Draw(t, "words") {
			_ = i
			if n >= 8 {
				at := rapid.IntRange(0, n/8-1).Draw(t, "at") * 8
				put64(b, at, rapid.OneOf(rapid.Uint64(), rapid.Uint64Range(0, 20)).Draw(t, "word"))
			}
		}
		if n >= 8 {
			put32(b, msgType, rapid.Uint32Range(0, 12).Draw(t, "type"))
		}
		conn.qp.Reset()
		m.serve(1, conn, b)
	})
	before := 0
	for _, e := range m.entries {
		if e.state == entryLinked {
			before++
		}
	}
	if before < 2 {
		t.Error("keys were forgotten")
	}
}

func FuzzServer(f *testing.F) {
	for _, ty := range []MsgType{MsgInit, MsgAskEntry, MsgEntry, MsgRecycle} {
		b := make([]byte, MsgLen)
		putHeader(b, ty, 1, 1, replyBase, 1)
		put32(b, entType, EntryOpen)
		f.Add(b)
	}
	b := make([]byte, LargeMsgLen)
	putHeader(b, MsgGC, 1, 1, replyBase, 1)
	put32(b, gcCount, 17)
	f.Add(b)
	r := newRig(f, Config{Keys: ycsb.Sequential(1, 2), Entries: 64, Sessions: 1}, 1, 1)
	f.Fuzz(func(t *testing.T, b []byte) {
		r.cl.meta.conns[0].qp.Reset()
		r.cl.meta.serve(1, r.cl.meta.conns[0], b)
	})
}

// A connection that fails ends the operations of its sessions with an error that names the cause.
func TestBrokenConnection(t *testing.T) {
	x := &wall{}
	conn := rnic.DefaultConn()
	conn.Timeout, conn.RetryCnt, conn.SQPSN = 4, 2, FirstPSN
	r := newRig(t, Config{Keys: ycsb.Sequential(1, 2), Sessions: 2, Entries: 512, Mix: ycsb.W, Conn: conn}, 1, 1, x)
	r.run(5, time.Second)
	x.shut = true
	r.cl.Start(Load{MaxOps: 5})
	err := r.sim.Run(func() bool { return r.cl.Err() != nil && r.cl.Live().Errors == 2 }, time.Minute)
	if err != nil || r.cl.Err() == nil {
		t.Fatal(err, r.cl.Err(), r.cl.Live())
	}
	t.Log(r.cl.Err())
	x.shut = false
	if v := r.cl.Integrity(); v.Lost != 0 || v.BrokenLinks != 0 {
		t.Errorf("%+v", v)
	}
}

// When no more entries can be granted, an operation that waits for an entry ends with the reason.
func TestNoMoreGrants(t *testing.T) {
	r := newRig(t, Config{Keys: ycsb.Sequential(1, 2), Sessions: 1, Entries: 512}, 1, 1)
	c := r.cl.compute[0].c
	until := func(ok func() bool) {
		t.Helper()
		if err := r.sim.Run(ok, time.Second); err != nil {
			t.Fatal(err)
		}
	}
	until(func() bool { ok, _ := c.Ready(); return ok })
	broken := errors.New("broken")
	var got error
	c.done = func(x *Result) { got = x.Err }
	c.bg.complete(c, &rnic.WC{ID: bgSpace, Status: rnic.RNRRetryExceededError})
	if c.err == nil {
		t.Fatal("a background request that failed is not noticed")
	}
	c.err = broken
	if err := c.sessions[0].Write(r.clk.Now(), 1, make([]byte, 16)); err != nil {
		t.Fatal(err)
	}
	until(func() bool { return got != nil })
	if !errors.Is(got, broken) {
		t.Error(got)
	}
}

type wall struct{ shut bool }

func (w *wall) pass(now clock.Time, up bool, b *packet.Buf, emit func(*packet.Buf)) {
	if w.shut {
		b.Put()
		return
	}
	emit(b)
}

func TestRefusedConfigs(t *testing.T) {
	for _, c := range []Config{
		{Slab: 100}, {Slab: 64 << 10}, {Sessions: -1}, {QPs: -1}, {Entries: -1}, {Entries: 4}, {Theta: 11},
		{Keys: []uint64{}}, {Keys: []uint64{3, 3}}, {Conn: rnic.Conn{PathMTU: 1000}}, {Metadata: MetadataConfig{GCBelow: 2}},
		{Metadata: MetadataConfig{MaxClients: 2}}, {Classes: []Class{{256, 100}}}, {Classes: []Class{{128, 1 << 12}, {100, 1}}},
		{Classes: []Class{{128, 1 << 31}, {128, 1 << 31}}},
	} {
		c.Entries = cmp.Or(c.Entries, 1<<12)
		if _, err := New(c, testRack()); err == nil {
			t.Errorf("%+v was taken", c)
		} else {
			t.Log(err)
		}
	}
	if _, err := New(Config{}, Rack{}); err == nil {
		t.Error("an empty rack was taken")
	}
}
