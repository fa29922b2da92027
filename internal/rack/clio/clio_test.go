package clio

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/quillon/quillon/internal/rack/history"
	"github.com/quillon/quillon/internal/rack/history/fault"
	"github.com/quillon/quillon/internal/rack/host"
	"github.com/quillon/quillon/internal/rack/ycsb"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/gobackn/gbn"
	"github.com/quillon/quillon/nf/hdr/clio"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/port/mem"
)

// The store behaves as a map, with collisions, links and changes of size.
func TestStore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, model := NewStore(1, 64<<20), map[uint64][]byte{}
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		for range rapid.IntRange(1, 400).Draw(t, "operations") {
			key := uint64(rng.IntN(60)) << (rng.IntN(2) * 8)
			value := bytes.Repeat([]byte{byte(rng.Uint32())}, rng.IntN(MaxValue+1))
			_, there := model[key]
			want := clio.Invalid
			if there {
				want = clio.OK
			}
			switch rng.IntN(4) {
			case 0:
				if got := s.Create(key, 8, value); (got == clio.OK) == there {
					t.Fatalf("create: %d", got)
				}
				if !there {
					model[key] = value
				}
			case 1:
				if got := s.Update(key, 8, value); got != want {
					t.Fatalf("update: %d", got)
				}
				if there {
					model[key] = value
				}
			case 2:
				if got := s.Delete(key, 8); got != want {
					t.Fatalf("delete: %d", got)
				}
				delete(model, key)
			case 3:
				if v, got := s.Read(key, 8); got != want || !bytes.Equal(v, model[key]) {
					t.Fatalf("read %d: %d", key, got)
				}
			}
			if s.Keys() != len(model) {
				t.Fatalf("%d keys, want %d", s.Keys(), len(model))
			}
		}
	})
	s := NewStore(4, chunk)
	n := uint64(0)
	for s.Create(n, 8, make([]byte, 1024)) == clio.OK {
		n++
	}
	if n != chunk/1040 || s.Create(n, 8, nil) != clio.OK && s.Keys() != int(n) {
		t.Errorf("%d keys in 1 MiB", n)
	}
	if s.Delete(0, 8); s.Create(n+1, 8, make([]byte, 1024)) != clio.OK {
		t.Error("a freed block is not used again")
	}
	if e := makeEntry(0x89ABCDEF, 0x1122, 8, 1024); e != 0x22180400_89ABCDEF {
		t.Errorf("an entry is %#x", uint64(e))
	}
}

// The hash is lookup3's final mix. Jenkins' own hashword of two words and an initial value adds four times
// the number of words; Clio's adds the number.
func TestHashSpreads(t *testing.T) {
	var n [256]int
	for k := range uint64(25600) {
		n[hash(k)&255]++
	}
	for i, c := range n {
		if c < 50 || c > 160 {
			t.Errorf("line %d: %d keys of 100", i, c)
		}
	}
}

// rack is clients and a device on a bridge, with faults on the clients' cables.
type rack struct {
	clk     *clock.Manual
	pool    *packet.Pool
	clients []*Client
	loads   []*Load
	devices []*Device
	log     *history.Log[history.Register, uint64]
	sim     *host.Sim
	keys    []uint64
}

type options struct {
	clients, devices, sessions, depth, keys, ops int
	reliable                                     bool
	replication                                  Replication
	schedule                                     fault.Schedule
	size                                         int
	mix                                          ycsb.Mix
	seed                                         uint64
}

func newRack(t testing.TB, o options) *rack {
	pool, err := packet.NewPool(4096, 2048, nil)
	if err != nil {
		t.Fatal(err)
	}
	r := &rack{clk: clock.NewManual(clock.Time(time.Second)), pool: pool, log: &history.Log[history.Register, uint64]{}, keys: ycsb.Sequential(1, o.keys)}
	r.sim = &host.Sim{Clock: r.clk}
	g := gbn.Config{Window: 16, AckEvery: 8, Timeout: 300 * time.Microsecond, AckDelay: 50 * time.Microsecond}
	var ends []port.Port
	var devices []clio.End
	for i := range o.devices {
		me := clio.End{MAC: [6]byte{2, 0, 0, 0, 1, byte(i)}, IP: [4]byte{192, 168, 1, byte(i)}, Port: clio.Port}
		devices = append(devices, me)
		d, err := NewDevice(DeviceConfig{Me: me, Pool: pool, Reliable: o.reliable, GBN: g, HashBits: 4, Memory: 8 << 20})
		if err != nil {
			t.Fatal(err)
		}
		if err := Fill(d, r.keys, o.size); err != nil {
			t.Fatal(err)
		}
		a, b := mem.NewWire("d", "d", pool, 256, r.clk)
		ends = append(ends, b)
		r.devices = append(r.devices, d)
		r.sim.Workers = append(r.sim.Workers, host.NewNode(a, d, nil))
	}
	for i := range o.clients {
		me := clio.End{MAC: [6]byte{2, 0, 0, 0, 2, byte(i)}, IP: [4]byte{192, 168, 2, byte(i)}, Port: 8000}
		c, err := NewClient(ClientConfig{Me: me, Devices: devices, Pool: pool, Sessions: o.sessions, Depth: o.depth, Reliable: o.reliable,
			GBN: g, Replication: o.replication, Timeout: 300 * time.Microsecond, Checksum: true, PID: uint16(i)})
		if err != nil {
			t.Fatal(err)
		}
		l, err := NewLoad(LoadConfig{Client: c, YCSB: ycsb.Config{Mix: o.mix, Theta: 0.99, Keys: r.keys, Seed: o.seed}, Stream: uint64(i), ValueSize: o.size, Ops: o.ops, Log: r.log})
		if err != nil {
			t.Fatal(err)
		}
		a, b := mem.NewWire("c", "c", pool, 256, r.clk)
		x, y := mem.NewWire("b", "b", pool, 256, r.clk)
		r.clients, r.loads = append(r.clients, c), append(r.loads, l)
		r.sim.Workers = append(r.sim.Workers, host.NewNode(a, c, l), fault.NewWire([]string{"c0", "c1", "c2"}[i], b, x, o.schedule))
		ends = append(ends, y)
	}
	r.sim.Workers = append(r.sim.Workers, host.NewBridge(ends...))
	return r
}

func (r *rack) run(t testing.TB) {
	t.Helper()
	err := r.sim.Run(func() bool {
		for _, l := range r.loads {
			if !l.Idle() {
				return false
			}
		}
		return true
	}, 20*time.Second)
	if err != nil && !errors.Is(err, host.ErrStuck) {
		t.Fatalf("%v: %+v, %+v, %+v", err, r.loads[0].Stats(), r.clients[0].Stats(), r.devices[0].Stats())
	}
	for _, l := range r.loads {
		if s := l.Stats(); s.Corrupt+s.Failed > 0 {
			t.Errorf("%+v", s)
		}
		if !l.Idle() {
			t.Errorf("not idle: %+v", l.Stats())
		}
	}
}

// With faults on every client's cable and with either transport, the history is linearizable, every operation
// is answered, and all devices have the same copies.
func TestHistories(t *testing.T) {
	runs := 0
	for seed := range uint64(40) {
		o := options{clients: 3, devices: 1, sessions: 2, depth: 1, keys: 4, ops: 60, size: 200, mix: ycsb.A, seed: seed, reliable: seed%2 == 0}
		if seed%4 < 2 {
			o.depth = 3
		}
		o.schedule = fault.Random(seed, fault.Mix{Links: []string{"c0", "c1", "c2"}, Frames: 40, Within: 200, Late: time.Millisecond})
		r := newRack(t, o)
		r.run(t)
		for _, l := range r.loads {
			if s := l.Stats(); s.Unknown > 0 {
				t.Errorf("seed %d: %+v", seed, s)
			}
		}
		if err := history.Check(history.Registers(nil), r.log, 0); err != nil {
			t.Errorf("seed %d: %v\n%v", seed, err, o.schedule)
		}
		runs++
	}
	if runs == 0 {
		t.Error("no runs")
	}
}

// A client that copies writes itself leaves the same values in all devices, if no other client writes the
// key.
func TestByClient(t *testing.T) {
	for _, reliable := range []bool{false, true} {
		r := newRack(t, options{clients: 1, devices: 2, sessions: 1, depth: 1, keys: 8, ops: 300, size: 64, mix: ycsb.A, reliable: reliable, replication: ByClient,
			schedule: fault.Random(3, fault.Mix{Links: []string{"c0"}, Frames: 60, Within: 300})})
		r.run(t)
		for _, k := range r.keys {
			a, _ := r.devices[0].Store().Read(k, 8)
			b, _ := r.devices[1].Store().Read(k, 8)
			if !bytes.Equal(a, b) {
				t.Errorf("reliable %v: key %d differs", reliable, k)
			}
		}
		if err := history.Check(history.Registers(nil), r.log, 0); err != nil {
			t.Error(err)
		}
	}
}

// In the end every buffer is back in its pool.
func TestBuffers(t *testing.T) {
	for _, reliable := range []bool{false, true} {
		r := newRack(t, options{clients: 2, devices: 1, sessions: 2, depth: 2, keys: 8, ops: 200, size: 1024, mix: ycsb.B, reliable: reliable})
		r.run(t)
		_ = r.sim.Run(func() bool { return false }, 50*time.Millisecond) // acknowledgements
		for _, c := range r.clients {
			c.Close()
		}
		for _, d := range r.devices {
			d.Close()
		}
		if n := r.pool.InUse(); n != 0 {
			t.Errorf("reliable %v: %d buffers", reliable, n)
		}
	}
}

func TestRefusals(t *testing.T) {
	r := newRack(t, options{clients: 1, devices: 1, sessions: 1, depth: 1, keys: 8, size: 64})
	c := r.clients[0]
	if _, err := c.Start(0, 0, Op{Code: clio.Update, Key: 1, Value: make([]byte, MaxValue+1)}); !errors.Is(err, ErrTooLong) {
		t.Error(err)
	}
	if _, err := c.Start(0, 0, Op{Code: clio.Update, Key: 1, Value: make([]byte, MaxValue)}); err != nil {
		t.Error(err)
	}
	if _, err := c.Start(0, 0, Op{Code: clio.Read, Key: 1}); !errors.Is(err, ErrBusy) {
		t.Error(err)
	}
	for _, cfg := range []ClientConfig{{}, {Pool: r.pool}, {Pool: r.pool, Devices: make([]clio.End, 1), Sessions: 1024, Me: clio.End{Port: 8000}},
		{Pool: r.pool, Devices: make([]clio.End, 1), Me: clio.End{Port: 1234}}, {Pool: r.pool, Devices: make([]clio.End, 1), Me: clio.End{Port: 8000}, Depth: 33}} {
		if _, err := NewClient(cfg); err == nil {
			t.Errorf("%+v is taken", cfg)
		}
	}
	if _, err := NewDevice(DeviceConfig{Pool: r.pool, Memory: 5}); err == nil {
		t.Error("a device without memory")
	}
	if _, err := NewLoad(LoadConfig{Client: c, ValueSize: 2000}); !errors.Is(err, ErrTooLong) {
		t.Error(err)
	}
}

// The device remembers the requests that it has executed.
func TestWindow(t *testing.T) {
	w := &window{last: 65530}
	for _, c := range []struct {
		id         uint16
		fresh, old bool
	}{{65531, true, false}, {65531, false, false}, {2, true, false}, {1, true, false}, {1, false, false}, {65535, true, false}, {60, true, false}, {65531, false, true}, {2, false, false}, {65000, false, true}} {
		if fresh, old := w.note(c.id); fresh != c.fresh || old != c.old {
			t.Errorf("%d: %v %v", c.id, fresh, old)
		}
	}
}

// A device forgets no session whose repetitions may still come: it refuses writes of new sessions meanwhile.
// The session that was idle for the longest time is forgotten first.
func TestSenders(t *testing.T) {
	pool, err := packet.NewPool(8, 2048, nil)
	if err != nil {
		t.Fatal(err)
	}
	me := clio.End{IP: [4]byte{192, 168, 1, 1}, Port: clio.Port}
	d, err := NewDevice(DeviceConfig{Me: me, Pool: pool, Memory: 1 << 20, HashBits: 2, Senders: 2, Remember: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	now := clock.Time(1)
	do := func(port, id uint16, op clio.Opcode) clio.Status {
		b := pool.Get()
		p, _ := b.Append(clio.HeadersLen + clio.LegoLen + clio.RequestLen)
		clear(p)
		clio.Headers(p, &clio.End{IP: [4]byte{192, 168, 1, 2}, Port: port}, &me, len(p)-clio.HeadersLen)
		f := clio.Plain(false)
		clio.Lego(p[f.Lego:]).Encode(&clio.Fields{Opcode: op, ID: id, Size: uint16(len(p) - f.Lego)})
		clio.Request(p[f.Op:]).Encode(uint64(id), 8, 0)
		f.Seal(p, len(p), true)
		d.Input(now, b)
		var out packet.Batch
		d.Output(now, &out)
		defer out.PutAll()
		return clio.Lego(out.Bufs()[0].Bytes()[f.Lego:]).Status()
	}
	want := func(what string, got, want clio.Status) {
		t.Helper()
		if got != want {
			t.Errorf("%s: status %d, want %d", what, got, want)
		}
	}
	want("the first", do(1, 1, clio.Create), clio.OK)
	now = now.Add(time.Millisecond)
	want("the second", do(2, 2, clio.Create), clio.OK)
	want("a third", do(3, 3, clio.Create), clio.Busy)
	want("its read", do(3, 1, clio.Read), clio.OK)
	want("a repetition", do(1, 1, clio.Create), clio.OK) // fresh, it would be Invalid
	now = now.Add(time.Second - time.Microsecond)
	want("a third, before the time", do(3, 3, clio.Create), clio.Busy)
	now = now.Add(time.Microsecond)
	want("a third, then", do(3, 3, clio.Create), clio.OK)
	want("the first, still known", do(1, 1, clio.Create), clio.OK)
	want("the second, for which there is no room any more", do(2, 2, clio.Create), clio.Busy)
	if s := d.Stats(); s.NoRoom != 3 || s.Refused != 3 || s.Repeated != 2 || len(d.of) != 2 {
		t.Errorf("%+v", s)
	}
	for _, c := range []DeviceConfig{{Senders: -1}, {Senders: 1<<20 + 1}, {Remember: -1}} {
		c.Pool = pool
		if _, err := NewDevice(c); err == nil {
			t.Errorf("%+v is taken", c)
		}
	}
}

func FuzzDevice(f *testing.F) {
	f.Add([]byte{0x64, 8, 5, 0, 1, 2, 3}, true)
	pool, err := packet.NewPool(8, 2048, nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, p []byte, whole bool) {
		if whole && len(p) > 1400 {
			return
		}
		d, err := NewDevice(DeviceConfig{Me: clio.End{IP: [4]byte{192, 168, 1, 1}, Port: clio.Port}, Pool: pool, Memory: 1 << 20, HashBits: 2})
		if err != nil {
			t.Fatal(err)
		}
		if err := Fill(d, []uint64{1, 3, 5}, 16); err != nil {
			t.Fatal(err)
		}
		b := pool.Get()
		if whole {
			q, _ := b.Append(clio.HeadersLen + clio.LegoLen + clio.RequestLen + len(p))
			clear(q)
			clio.Headers(q, &clio.End{IP: [4]byte{192, 168, 1, 2}, Port: 8000}, &d.cfg.Me, len(q)-clio.HeadersLen)
			fr := clio.Plain(false)
			op := clio.Read
			if len(p) > 0 {
				op = clio.Opcode(p[0])
			}
			clio.Lego(q[fr.Lego:]).Encode(&clio.Fields{Opcode: op, ID: uint16(len(p)), Size: uint16(len(q) - fr.Lego)})
			clio.Request(q[fr.Op:]).Encode(uint64(len(p)%7), 8, uint16(len(p)))
			copy(q[fr.Op+clio.RequestLen:], p)
			fr.Seal(q, len(q), true)
		} else if !b.SetBytes(p) {
			b.Put()
			return
		}
		again := pool.Get()
		again.SetBytes(b.Bytes())
		var out packet.Batch
		for _, b := range []*packet.Buf{b, again} {
			d.Input(1, b)
			d.Output(1, &out)
		}
		for _, x := range out.Bufs() {
			var fr clio.Frame
			if clio.Parse(x.Bytes(), false, &fr) != clio.Message || !fr.Sound(x.Bytes()) {
				t.Fatalf("answer %x", x.Bytes())
			}
		}
		out.PutAll()
		if pool.InUse() != 0 {
			t.Fatal("a buffer is lost")
		}
	})
}

func TestAllocs(t *testing.T) {
	r := newRack(t, options{clients: 1, devices: 1, sessions: 1, depth: 1, keys: 8, size: 1024, mix: ycsb.A})
	c, d := r.clients[0], r.devices[0]
	var out packet.Batch
	value := make([]byte, 1024)
	now := clock.Time(5)
	code := clio.Update
	if n := testing.AllocsPerRun(200, func() {
		code ^= clio.Update ^ clio.Read
		if _, err := c.Start(now, 0, Op{Code: code, Key: 3, Value: value}); err != nil {
			t.Fatal(err)
		}
		c.Output(now, &out)
		for _, b := range out.Bufs() {
			d.Input(now, b)
		}
		out.Reset()
		d.Output(now, &out)
		for _, b := range out.Bufs() {
			c.Input(now, b)
		}
		out.Reset()
		if x, ok := c.Next(); !ok || x.Status != clio.OK {
			t.Fatal(x)
		}
		c.Next()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
