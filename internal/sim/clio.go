package sim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/quillon/quillon/internal/rack/clio"
	"github.com/quillon/quillon/internal/rack/ycsb"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/gobackn"
	"github.com/quillon/quillon/nf/gobackn/gbn"
	"github.com/quillon/quillon/nf/graph"
	wire "github.com/quillon/quillon/nf/hdr/clio"
	"github.com/quillon/quillon/nf/kvcache"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/replicate"
)

// ClioStack is where the transport of Clio's devices is, and what is beside it.
type ClioStack uint8

const (
	// ClioPlain: the transport is in the devices, which are on the switch.
	ClioPlain ClioStack = iota
	// ClioOffload: the devices are behind an sNIC, which runs the transport.
	ClioOffload
	// ClioCache: and a cache.
	ClioCache
)

func (s ClioStack) String() string {
	return [...]string{"Clio", "Clio-sNIC", "Clio-sNIC-cache"}[s]
}

// ClioBoard is the model of a device: what a request takes in it. Durations are
// nanoseconds.
type ClioBoard struct {
	// Fixed is from a frame's last bit until its answer is on the wire, but for what
	// is by the byte of values: ReadByte and WriteByte.
	Fixed               time.Duration
	ReadByte, WriteByte float64
	// Interval is the least time between two requests.
	Interval time.Duration
}

// ClioHost is the model of a client: from a call until the first bit is on the wire,
// and from an answer's last bit until the call returns.
type ClioHost struct{ Send, Receive time.Duration }

// ClioMicro are board and host by the latencies of Clio-KV with one thread (Guo et
// al., Clio, ASPLOS '22: GET 3.007 us of 4 bytes, 5.893 of 1024; SET 3.012 and 4.841)
// on a rack of 40 Gb/s with 10 Gb/s to the board, whose switch and cables take 844 ns
// of a GET of 4 bytes in Rack100G. How the rest is shared between host and board is not
// measured: PHY and MAC of the board get the 1,104 ns that the authors' other board
// needs (HTG9200: Path less Core), a NIC sends in ConnectX5's time, and receiving is
// what is left. By the byte both links take 1 ns of 2.83 and of 1.79. Interval is
// figure 4.9's, of reads of 1 KB. None is from a figure that Clio predicts.
func ClioMicro() (ClioHost, ClioBoard) {
	return ClioHost{Send: 500, Receive: 559}, ClioBoard{Fixed: 1104, ReadByte: 1.83, WriteByte: 0.79, Interval: 131}
}

// ClioConfig describes a run of YCSB on Clio's key/value store: a client host, a
// switch, an sNIC perhaps, and devices. Zero values take the defaults given with them.
type ClioConfig struct {
	Stack ClioStack
	// Replicas is how many devices a write goes to: by the client without an sNIC, by
	// nf/replicate on it otherwise. 0 = 1.
	Replicas int
	Mix      ycsb.Mix
	Zipf     float64 // exponent; 0 = 0.99
	Keys     int     // 0 = 100,000
	Value    int     // bytes; 0 = 1024
	Ops      int     // that are measured; 0 = 100,000
	Warm     int     // operations before them, of all clients
	Threads  int     // of the client, an operation each; 0 = 8
	// Clients are hosts, each with Threads; 0 = 1.
	Clients int
	// CacheEntries is the size of the cache, which is not published; 0 = 38,144, what
	// the board's 43 MB on chip (table 5.1) have room for beside the packet store, with
	// values of 1 KB. Hits depend on it, and on Warm. LRU instead of FIFO.
	CacheEntries int
	LRU          bool
	// Loss is the share of frames that the clients' cables lose, in each direction.
	Loss float64

	Host    ClioHost // zero: ClioMicro's, with Board
	Board   ClioBoard
	SNIC    SNIC    // zero: HTG9200; Path matters
	Network Network // zero: Rack100G; its rate is the clients' and the sNIC's
	// DeviceGbit is the rate of the devices' links; 0 = 10.
	DeviceGbit float64
	Seed       uint64
}

// ClioMeasured is what the clients did.
type ClioMeasured struct {
	Ops          uint64
	OpsPerSecond float64 `json:"ops_per_second"`
	// Gbit is of values, a second.
	Gbit          float64 `json:"gbit_per_second"`
	Mean          float64 `json:"mean_us"`
	Read          Micros  `json:"read_us"`
	Write         Micros  `json:"write_us"`
	Hits          float64 `json:"hits"` // share of reads answered by the cache
	Retransmitted uint64  `json:"retransmitted"`
	Errors        uint64  `json:"errors"` // operations refused or of unknown outcome
	Corrupt       uint64  `json:"corrupt"`
	Events        uint64  `json:"events"`
}

// Kinds of events of a clioWorld.
const (
	clioClientIn uint32 = iota // the client's library has a frame
	clioClientWake
	clioSend   // a client's frame is on its cable's end
	clioSwitch // a frame is at the switch
	clioBoxIn  // a frame is at the sNIC's functions; arg: side
	clioBoxOut // and leaves; arg: side
	clioBoxTick
	clioDevice     // a frame is at a device
	clioDeviceExec // its request executes
	clioDeviceOut  // an answer is ready for the cable
	clioDeviceWake
)

// clioClient is a host, clioDev a device, with their cables.
type clioClient struct {
	ep       *clio.Client
	load     *clio.Load
	mac      [6]byte
	up, down link
	wake     Time
}

type clioDev struct {
	ep        *clio.Device
	mac       [6]byte
	up, down  link
	free, out Time // when it takes the next request, and the next answer leaves
	wake      Time
}

// clioWorld is the rack. It is the one actor of its kernel, and the ports of the
// sNIC's graph.
type clioWorld struct {
	k       kernel
	cfg     *ClioConfig
	pool    *packet.Pool
	id      uint32
	clients []clioClient
	devices []clioDev
	inst    *graph.Instance // nil: no sNIC
	trunk   [2]link         // from the sNIC, to the sNIC
	ends    [2]clioEnd
	tickAt  Time
	batch   packet.Batch
	rng     *rand.Rand
	err     error
	path    Time
	sw      Time
}

// clioEnd is a port of the sNIC's graph: 0 faces the devices.
type clioEnd struct {
	outlet
	w    *clioWorld
	side uint64
}

func (e *clioEnd) Tx(b *packet.Batch) (int, error) {
	n := b.Len()
	for _, x := range b.Bufs() {
		e.stats.TxPackets++
		e.stats.TxBytes += uint64(x.Len())
		x.Meta = packet.Meta{}
		e.w.k.plan(e.w.k.now+e.w.path/2, e.w.id, clioBoxOut, e.side, x)
	}
	b.Shift(n)
	return n, nil
}

func (c *ClioConfig) defaults() error {
	c.Replicas = cmp.Or(c.Replicas, 1)
	c.Keys = cmp.Or(c.Keys, 100_000)
	c.Value = cmp.Or(c.Value, 1024)
	c.Ops = cmp.Or(c.Ops, 100_000)
	c.Threads = cmp.Or(c.Threads, 8)
	c.Clients = cmp.Or(c.Clients, 1)
	c.CacheEntries = cmp.Or(c.CacheEntries, 38_144)
	c.Zipf = cmp.Or(c.Zipf, ycsb.DefaultTheta)
	if c.Host == (ClioHost{}) && c.Board == (ClioBoard{}) {
		c.Host, c.Board = ClioMicro()
	}
	c.SNIC = cmp.Or(c.SNIC, HTG9200())
	c.Network = cmp.Or(c.Network, Rack100G())
	c.DeviceGbit = cmp.Or(c.DeviceGbit, 10)
	switch {
	case c.Stack > ClioCache || c.Replicas < 1 || c.Replicas > 8 || c.Clients < 1 || c.Clients > 200 || c.Threads < 1 || c.Threads*c.Replicas*c.Clients > 1000:
		return errors.New("sim: a run of Clio has 1 to 200 clients, 1 to 8 replicas, and at most 1000 sessions")
	case c.Keys < 1 || c.Keys > 1<<20 || c.Ops < 1 || c.Warm < 0 || c.Value < clio.MinValue || c.Value > clio.MaxValue:
		return fmt.Errorf("sim: Clio's values have %d to %d bytes, and there are 1 to 2^20 keys", clio.MinValue, clio.MaxValue)
	case !(c.Loss >= 0 && c.Loss < 0.5) || !(c.DeviceGbit > 0 && c.Network.GbitPerSecond > 0):
		return errors.New("sim: a share of losses is from 0 to below 0.5, and a rate above 0")
	}
	return nil
}

// Clio runs YCSB on Clio's key/value store.
func Clio(ctx context.Context, c ClioConfig) (*ClioMeasured, error) {
	if err := c.defaults(); err != nil {
		return nil, err
	}
	w, err := c.world()
	if err != nil {
		return nil, err
	}
	return w.run(ctx)
}

func (c *ClioConfig) world() (*clioWorld, error) {
	pool, err := packet.NewPool(8192+64*c.Clients*c.Threads, 2048, nil)
	if err != nil {
		return nil, err
	}
	w := &clioWorld{cfg: c, pool: pool, tickAt: never, rng: rand.New(rand.NewPCG(c.Seed, streamFault)), path: From(c.SNIC.Path), sw: From(c.Network.Switch)}
	w.k.now = Start
	w.id = w.k.add(w)
	cable := func(gbit float64) link {
		per := Time(math.Round(8000 / gbit))
		return link{perByte: per, delay: From(c.Network.Propagation), bound: Time(c.Network.Queue) * per}
	}
	plain := c.Stack == ClioPlain
	keys := ycsb.Sequential(1, c.Keys)
	var ends []wire.End
	replicas := ""
	for i := range c.Replicas {
		me := wire.End{MAC: [6]byte{2, 0, 0, 0, 1, byte(i)}, IP: [4]byte{192, 168, 1, byte(i + 1)}, Port: wire.Port}
		d, err := clio.NewDevice(clio.DeviceConfig{Me: me, Pool: pool, Reliable: plain, HashBits: 15, Memory: 64<<20 + c.Keys*2048})
		if err != nil {
			return nil, err
		}
		if err := clio.Fill(d, keys, c.Value); err != nil {
			return nil, err
		}
		if i > 0 {
			replicas += "+"
		}
		replicas += fmt.Sprintf("192.168.1.%d@02:00:00:00:01:%02x", i+1, i)
		ends = append(ends, me)
		w.devices = append(w.devices, clioDev{ep: d, mac: me.MAC, up: cable(c.DeviceGbit), down: cable(c.DeviceGbit), wake: never})
	}
	copies := clio.Single
	if c.Replicas > 1 {
		copies = clio.ByNetwork
		if plain {
			copies = clio.ByClient
		}
	}
	for i := range c.Clients {
		me := wire.End{MAC: [6]byte{2, 0, 0, 0, 2, byte(i)}, IP: [4]byte{192, 168, 2, byte(i + 1)}, Port: 8000}
		ep, err := clio.NewClient(clio.ClientConfig{Me: me, Devices: ends, Pool: pool, Sessions: c.Threads, Replication: copies, Reliable: true, PID: uint16(i), GBN: gbn.Config{}})
		if err != nil {
			return nil, err
		}
		w.clients = append(w.clients, clioClient{ep: ep, mac: me.MAC, up: cable(c.Network.GbitPerSecond), down: cable(c.Network.GbitPerSecond), wake: never})
	}
	if plain {
		return w, w.loads(keys)
	}
	w.trunk = [2]link{cable(c.Network.GbitPerSecond), cable(c.Network.GbitPerSecond)}
	w.ends = [2]clioEnd{{outlet{name: "a", pool: w.pool}, w, 0}, {outlet{name: "b", pool: w.pool}, w, 1}}
	spec := &graph.Spec{Ports: map[string]graph.PortSpec{"a": {Kind: "sim"}, "b": {Kind: "sim"}}, Apps: map[string]graph.AppSpec{}}
	up, down := "a.out", "a.in"
	add := func(kind string, args graph.Args) {
		spec.Apps[kind] = graph.AppSpec{Kind: kind, Args: args}
		spec.Links = append(spec.Links, up+" -> "+kind+".a", kind+".a -> "+down)
		up, down = kind+".b", kind+".b"
	}
	settle := "1ms"
	if c.Replicas > 1 {
		add("replicate", graph.Args{"replicas": replicas, "timeout": "200us", "tries": "8"})
		settle = "4ms" // longer than replicate waits for a device
	}
	if c.Stack == ClioCache {
		policy := "fifo"
		if c.LRU {
			policy = "lru"
		}
		add("kvcache", graph.Args{"entries": fmt.Sprint(c.CacheEntries), "value": fmt.Sprint(c.Value), "policy": policy, "settle": settle})
	}
	add("gobackn", graph.Args{})
	spec.Links = append(spec.Links, up+" -> b.in", "b.out -> "+down)
	w.inst, err = graph.New(graph.Config{Spec: spec, Kinds: []graph.Kind{*gobackn.Kind(), *kvcache.Kind(), *replicate.Kind()},
		Ports: map[string][]port.Port{"a": {&w.ends[0]}, "b": {&w.ends[1]}}, Seed: c.Seed})
	if err != nil {
		return nil, err
	}
	return w, w.loads(keys)
}

// measured is what the loads have told so far.
type measured struct {
	read, write *hdrhistogram.Histogram
	sum         time.Duration
	ops, failed uint64
	first, last clock.Time
	hits        uint64 // of the cache, before
	warm        int    // operations so far that are not measured
}

func (w *clioWorld) loads(keys []uint64) error {
	c := w.cfg
	for i := range w.clients {
		l, err := clio.NewLoad(clio.LoadConfig{Client: w.clients[i].ep, Stream: uint64(i), ValueSize: c.Value, Ops: (c.Warm + c.Ops) / c.Clients,
			YCSB: ycsb.Config{Mix: c.Mix, Theta: c.Zipf, Keys: keys, Seed: c.Seed}})
		if err != nil {
			return err
		}
		w.clients[i].load = l
	}
	return nil
}

func (w *clioWorld) run(ctx context.Context) (*ClioMeasured, error) {
	m := measured{read: hdrhistogram.New(1, 10_000_000_000, 3), write: hdrhistogram.New(1, 10_000_000_000, 3)}
	for i := range w.clients {
		w.clients[i].load.Tell(func(d clio.Done) {
			if m.warm < w.cfg.Warm {
				if m.warm++; m.warm == w.cfg.Warm {
					m.first, m.hits = d.Returned, w.counter("kvcache", "hit")
				}
				return
			}
			took := d.Returned.Sub(d.Called)
			if m.ops == 0 && w.cfg.Warm == 0 {
				m.first = d.Called
			}
			m.ops++
			m.last = d.Returned
			m.sum += took
			h := m.read
			if d.Code.Writes() {
				h = m.write
			}
			_ = h.RecordValue(int64(took))
			if d.Status != wire.OK {
				m.failed++
			}
		})
		w.client(i)
	}
	w.tick()
	idle := func() bool {
		for i := range w.clients {
			if !w.clients[i].load.Idle() {
				return false
			}
		}
		return true
	}
	for n := 0; !idle() && w.err == nil; n++ {
		if n%4096 == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if w.k.next() == never {
			return nil, errors.New("sim: Clio: nothing moves")
		}
		w.k.step()
	}
	if w.err != nil {
		return nil, w.err
	}
	r := &ClioMeasured{Ops: m.ops, Errors: m.failed, Read: micros(m.read), Write: micros(m.write), Events: w.k.fired}
	if d := m.last.Sub(m.first); d > 0 && m.ops > 0 {
		r.OpsPerSecond = float64(m.ops) / d.Seconds()
		r.Gbit = r.OpsPerSecond * float64(w.cfg.Value) * 8 / 1e9
		r.Mean = float64(m.sum) / float64(m.ops) / 1000
	}
	for i := range w.clients {
		r.Corrupt += w.clients[i].load.Stats().Corrupt
		r.Retransmitted += w.clients[i].ep.GBN().Retransmitted
	}
	if w.inst == nil {
		return r, nil
	}
	if err := w.inst.Conservation(); err != nil {
		return nil, err
	}
	if n := m.read.TotalCount(); n > 0 {
		r.Hits = float64(w.counter("kvcache", "hit")-m.hits) / float64(n)
	}
	r.Retransmitted += w.counter("gobackn", "retransmitted")
	return r, nil
}

// counter is one of an app's on the sNIC; 0 when there is none.
func (w *clioWorld) counter(app, name string) uint64 {
	if w.inst == nil || w.inst.App(app, 0) == nil {
		return 0
	}
	for _, x := range w.inst.Counters() {
		if x.Node == app && x.Name == name {
			return x.Value
		}
	}
	return 0
}

func (w *clioWorld) fire(kind uint32, arg uint64, b *packet.Buf) {
	now := w.k.now
	switch kind {
	case clioClientIn:
		w.clients[arg].ep.Input(now.Clock(), b)
		w.client(int(arg))
	case clioClientWake:
		if c := &w.clients[arg]; c.wake <= now {
			c.wake = never
			c.ep.Tick(now.Clock())
			w.client(int(arg))
		}
	case clioSend:
		w.cross(&w.clients[arg].up, true, b, clioSwitch, 0)
	case clioSwitch:
		w.forward(b)
	case clioBoxIn:
		w.batch.Reset()
		w.batch.Add(b)
		if err := w.inst.Push(w.ends[arg].Name(), now.Clock(), &w.batch); err != nil {
			w.err = err
		}
		w.tick()
	case clioBoxOut:
		if arg == 1 {
			w.cross(&w.trunk[0], false, b, clioSwitch, 0)
			return
		}
		if i := w.device(b); i >= 0 {
			w.cross(&w.devices[i].down, false, b, clioDevice, uint64(i))
			return
		}
		b.Put()
	case clioBoxTick:
		if w.tickAt > now {
			return
		}
		w.tickAt = never
		if _, err := w.inst.Step(now.Clock()); err != nil {
			w.err = err
		}
		w.tick()
	case clioDevice:
		d := &w.devices[arg]
		// The pipeline keeps the order of what is in it.
		t := max(now+From(w.cfg.Board.Fixed)/2+w.bytes(b, w.cfg.Board.WriteByte), d.free)
		d.free = t + From(w.cfg.Board.Interval)
		w.k.plan(t, w.id, clioDeviceExec, arg, b)
	case clioDeviceExec:
		w.devices[arg].ep.Input(now.Clock(), b)
		w.answer(int(arg))
	case clioDeviceOut:
		d := &w.devices[arg]
		if w.inst != nil {
			at, ok := d.up.send(now, b)
			if ok {
				w.k.plan(at+w.path/2, w.id, clioBoxIn, 0, b)
			}
			return
		}
		w.cross(&d.up, false, b, clioSwitch, 0)
	case clioDeviceWake:
		if d := &w.devices[arg]; d.wake <= now {
			d.wake = never
			d.ep.Tick(now.Clock())
			w.answer(int(arg))
		}
	}
}

// bytes is what a frame takes for its value: what it has beyond headers.
func (w *clioWorld) bytes(b *packet.Buf, per float64) Time {
	n := max(b.Len()-wire.HeadersLen-wire.GBNLen-wire.LegoLen-wire.RequestLen, 0)
	return Time(float64(n) * per * float64(Nanosecond))
}

// cross sends a frame over a cable, which may lose it.
func (w *clioWorld) cross(l *link, lossy bool, b *packet.Buf, kind uint32, arg uint64) {
	at, ok := l.send(w.k.now, b)
	if !ok {
		return
	}
	if lossy && w.cfg.Loss > 0 && w.rng.Float64() < w.cfg.Loss {
		b.Put()
		return
	}
	w.k.plan(at, w.id, kind, arg, b)
}

// device is the one that a frame is to; -1: none.
func (w *clioWorld) device(b *packet.Buf) int {
	mac := [6]byte(b.Bytes())
	for i := range w.devices {
		if w.devices[i].mac == mac {
			return i
		}
	}
	return -1
}

// forward has the switch send a frame on.
func (w *clioWorld) forward(b *packet.Buf) {
	mac := [6]byte(b.Bytes())
	t := w.k.now + w.sw
	for i := range w.clients {
		if c := &w.clients[i]; c.mac == mac {
			at, ok := c.down.send(t, b)
			switch {
			case !ok:
			case w.cfg.Loss > 0 && w.rng.Float64() < w.cfg.Loss:
				b.Put()
			default:
				w.k.plan(at+From(w.cfg.Host.Receive), w.id, clioClientIn, uint64(i), b)
			}
			return
		}
	}
	i := w.device(b)
	if i < 0 {
		b.Put()
		return
	}
	if w.inst != nil {
		if at, ok := w.trunk[1].send(t, b); ok {
			w.k.plan(at+w.path/2, w.id, clioBoxIn, 1, b)
		}
		return
	}
	if at, ok := w.devices[i].down.send(t, b); ok {
		w.k.plan(at, w.id, clioDevice, uint64(i), b)
	}
}

// client lets a client work, and sends what it has.
func (w *clioWorld) client(i int) {
	c, now := &w.clients[i], w.k.now
	for c.load.Step(now.Clock()) {
	}
	for {
		w.batch.Reset()
		c.ep.Output(now.Clock(), &w.batch)
		if w.batch.Len() == 0 {
			break
		}
		for _, b := range w.batch.Bufs() {
			w.k.plan(now+From(w.cfg.Host.Send), w.id, clioSend, uint64(i), b)
		}
	}
	if at := min(c.ep.Deadline(), c.load.Deadline()); at != clock.Never {
		if t := max(fromClock(at), now+Nanosecond); t < c.wake {
			c.wake = t
			w.k.plan(t, w.id, clioClientWake, uint64(i), nil)
		}
	}
}

// answer sends what a device has.
func (w *clioWorld) answer(i int) {
	d, now := &w.devices[i], w.k.now
	for {
		w.batch.Reset()
		d.ep.Output(now.Clock(), &w.batch)
		if w.batch.Len() == 0 {
			break
		}
		for _, b := range w.batch.Bufs() {
			d.out = max(d.out, now+From(w.cfg.Board.Fixed)/2+w.bytes(b, w.cfg.Board.ReadByte))
			w.k.plan(d.out, w.id, clioDeviceOut, uint64(i), b)
		}
	}
	if at := d.ep.Deadline(); at != clock.Never {
		if t := max(fromClock(at), now+Nanosecond); t < d.wake {
			d.wake = t
			w.k.plan(t, w.id, clioDeviceWake, uint64(i), nil)
		}
	}
}

// tick plans the next timer of the sNIC's functions.
func (w *clioWorld) tick() {
	if w.inst == nil {
		return
	}
	if at := w.inst.NextTick(); at != clock.Never {
		if t := max(fromClock(at), w.k.now+Nanosecond); t < w.tickAt {
			w.tickAt = t
			w.k.plan(t, w.id, clioBoxTick, 0, nil)
		}
	}
}
