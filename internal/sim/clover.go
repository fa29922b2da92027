package sim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/quillon/quillon/internal/rack/clover"
	"github.com/quillon/quillon/internal/rack/ycsb"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/rack/rnic"
	tor "github.com/quillon/quillon/tor/clover"
)

// CloverConfig describes a run of Clover on a rack: client hosts, a memory node
// behind the middlebox, and a metadata server. Zero values take the defaults
// given with them.
type CloverConfig struct {
	// Hosts are client hosts, with ThreadsPerHost clients each; 0 = 7 and 1.
	Hosts, ThreadsPerHost int
	// WriteShare is the share of writes, 0 to 1.
	WriteShare float64
	// Keys is how many there are; 0 = 1024. Zipf is the exponent of their
	// popularity; 0 = all alike.
	Keys int
	Zipf float64
	// ObjectSize is the size of an entry; 0 = 128.
	ObjectSize int
	// Mode is what the middlebox steers: tor.Off, tor.Write or tor.ReadWrite.
	Mode tor.Mode
	// SteeredKeys are steered, the most popular ones; 0 = all.
	SteeredKeys int
	// Args are further arguments of clover-steer.
	Args graph.Args
	// Middlebox is where the app runs: Latency, PerPacket and Cores matter.
	// The zero value is a switch pipeline at line rate.
	Middlebox Middlebox
	// QPs is how many queue pairs a host's threads share towards the memory
	// node; 0 = one each. Threads that share one always run; see Machine.Bind.
	QPs int
	// Search is how clients find tails.
	Search clover.Search
	// Nap is how long a background thread of clover.SearchLibrary sleeps; 0 = clover.DefaultNap.
	Nap time.Duration
	// Work is the client library's own for an operation, and Request for each of its requests,
	// beside NIC.Verb; both zero = CloverLibrary.
	Work    clover.Work
	Request time.Duration
	// Entries is how many entries the memory node has; 0 = enough for the run.
	Entries int

	NIC  NIC // zero: ConnectX5
	Seed uint64
	// Warmup and Measure are virtual time; 0 = 1 ms and 5 ms.
	Warmup, Measure time.Duration
	// Progress is told the share of the run that is done.
	Progress func(done float64)
	// Timeout is the code of the connections' ACK timeout, 4.096 us * 2^n;
	// 0 = 14.
	Timeout int
	// Faults, if not nil, may plan faults before the clients' workload begins.
	Faults func(w *World, b *Box, memory *Machine, clients []*Machine)
	// Check lets the last operations end after the run, and compares every
	// key's chain with what the writers were told.
	Check bool
}

// CloverLibrary is the work of Clover's own library by its authors' latencies
// of one client (Tsai et al., USENIX ATC '20, figures 5 and 6, 128 bytes): a
// read takes 2.07 us and its READ 1.53 us; a write takes 4.46 us and its WRITE
// and CAS 0.92 and 1.6 us. By its source a read has one look into the cache, and two requests, each
// of which takes its number from a queue and looks into a table four times at least: the read's time is
// taken for that of its requests. What a write has beside two of these is done once an operation.
func CloverLibrary() (operation clover.Work, request time.Duration) {
	return clover.Work{Write: 1400 * time.Nanosecond}, 270 * time.Nanosecond
}

// CloverMeasured is what the clients did in the window.
type CloverMeasured struct {
	Ops, Writes  uint64
	OpsPerSecond float64 `json:"ops_per_second"`
	// FirstTry is the share of operations that succeeded at the first try,
	// ReadFirstTry and WriteFirstTry of reads and of writes.
	FirstTry      float64 `json:"first_try"`
	ReadFirstTry  float64 `json:"read_first_try"`
	WriteFirstTry float64 `json:"write_first_try"`
	// PacketsPerOp and BytesPerOp went between clients and the memory node;
	// bytes with FCS.
	PacketsPerOp float64 `json:"packets_per_op"`
	BytesPerOp   float64 `json:"bytes_per_op"`
	RoundTrips   float64 `json:"round_trips_per_op"`
	Read         Micros  `json:"read_us"`
	Write        Micros  `json:"write_us"`
	Steered      uint64  `json:"steered"`
	Errors       uint64  `json:"errors"`
	Events       uint64  `json:"events"`
	// MemoryUp and MemoryDown are the use of the memory node's link, from and
	// to it, 0 to 1.
	MemoryUp   float64 `json:"memory_up"`
	MemoryDown float64 `json:"memory_down"`
	// Integrity is there when it was checked.
	Integrity *clover.Integrity `json:"integrity,omitempty"`
}

// Micros are percentiles of a latency in microseconds; 0 when nothing was
// measured.
type Micros struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
}

func micros(h *hdrhistogram.Histogram) Micros {
	if h.TotalCount() == 0 {
		return Micros{}
	}
	return Micros{float64(h.ValueAtQuantile(50)) / 1000, float64(h.ValueAtQuantile(99)) / 1000}
}

func (c *CloverConfig) defaults() error {
	for _, x := range []struct {
		v *int
		d int
	}{{&c.Hosts, 7}, {&c.ThreadsPerHost, 1}, {&c.Keys, 1024}, {&c.ObjectSize, 128}} {
		if *x.v == 0 {
			*x.v = x.d
		}
	}
	if c.NIC == (NIC{}) {
		c.NIC = ConnectX5()
	}
	if c.Work == (clover.Work{}) && c.Request == 0 {
		c.Work, c.Request = CloverLibrary()
	}
	c.Warmup = cmp.Or(c.Warmup, time.Millisecond)
	c.Measure = cmp.Or(c.Measure, 5*time.Millisecond)
	switch {
	case c.Hosts < 1 || c.Hosts > 1024 || c.ThreadsPerHost < 1 || c.ThreadsPerHost > 4096:
		return errors.New("sim: a run of Clover has 1 to 1024 hosts with 1 to 4096 threads each")
	case !(c.WriteShare >= 0 && c.WriteShare <= 1):
		return fmt.Errorf("sim: a share of writes of %v is outside 0..1", c.WriteShare)
	case c.Keys < 1 || c.Keys > 1<<20 || c.SteeredKeys < 0:
		return errors.New("sim: a store has 1 to 2^20 keys")
	case c.Warmup < 0 || c.Measure <= 0:
		return errors.New("sim: a run needs time to measure in")
	}
	if c.Entries == 0 {
		// More than the rack's link could write, and twice that, so that
		// nothing has to be recycled; bounded by memory.
		most := 40 * int((c.Warmup+c.Measure).Microseconds()+1)
		c.Entries = 2*c.Keys + min(2*most, 1<<20) + c.Hosts*(256+32*c.ThreadsPerHost)
	}
	return nil
}

// cloverRack is a store with its clients on a rack.
type cloverRack struct {
	*World
	cl  *clover.Cluster
	box *Box
	all []*Machine // memory node, metadata server, client hosts
}

// rack builds the machines, and fills the store through the network.
func (c *CloverConfig) rack(ctx context.Context) (*cloverRack, error) {
	w, err := New(Config{Seed: c.Seed, Slots: 8192 + 16*c.Hosts*c.ThreadsPerHost})
	if err != nil {
		return nil, err
	}
	r := &cloverRack{World: w}
	machine := func(name string, nic NIC) clover.Machine {
		x, e := w.Attach(name, nic)
		if e != nil {
			err = e
			return clover.Machine{}
		}
		r.all = append(r.all, x)
		return clover.Machine{Name: name, Port: x.Port(), MAC: x.MAC, IP: x.IP, Pool: w.Pool()}
	}
	nodes := clover.Rack{Memory: []clover.Machine{machine("memory", c.NIC)}, Metadata: machine("metadata", c.NIC)}
	client := c.NIC
	client.Verb += c.Request
	for i := range c.Hosts {
		nodes.Compute = append(nodes.Compute, machine(fmt.Sprintf("host%d", i), client))
	}
	if err != nil {
		return nil, err
	}
	r.all[1].apart = true
	conn := rnic.DefaultConn()
	conn.SQPSN = clover.FirstPSN
	if c.Timeout != 0 {
		conn.Timeout = c.Timeout
	}
	conn.MaxRdAtomic, conn.MaxDestRdAtomic = max(c.NIC.Outstanding, 1), max(c.NIC.Outstanding, 1)
	r.cl, err = clover.New(clover.Config{
		Keys: ycsb.Sequential(1, c.Keys), Slab: c.ObjectSize, Entries: c.Entries, Sessions: c.ThreadsPerHost, QPs: c.QPs,
		Mix: ycsb.Mix{Writes: c.WriteShare}, Theta: c.Zipf, Seed: c.Seed, Profile: rnic.ConnectX, Conn: conn,
		EagerShortcuts: true, Warm: true, Search: c.Search, Nap: c.Nap, Work: c.Work, Direct: c.Mode == tor.Off,
	}, nodes)
	if err != nil {
		return nil, err
	}
	for i, wk := range r.cl.Workers() {
		r.all[i].Drive(wk)
	}
	c.bind(r.cl, r.all)
	if r.box, err = w.Insert(c.middlebox(), r.all[0]); err != nil {
		return nil, err
	}
	// The store is filled through the network, before the clients' workload.
	before := []clover.Load{{Sweep: true}}
	if c.Mode != tor.Off {
		// The middlebox gets to know every connection, and then every key's tail: a write that were not
		// steered at first would run after the tail for as long as others steered are faster than a READ.
		before = append(before, clover.Load{Mix: &ycsb.Mix{Writes: 1}, MaxOps: acquaintance}, clover.Load{Sweep: true})
	}
	limit := Second + Time(c.Hosts*c.ThreadsPerHost)*Millisecond // for each load: hosts with many threads are slow
	for _, l := range before {
		r.cl.Start(l)
		w.Wake()
		if err := w.Until(ctx, r.cl.Stopped, w.Now()+limit); err != nil {
			return nil, fmt.Errorf("sim: filling the store: %w", errors.Join(err, r.cl.Err()))
		}
	}
	return r, nil
}

// acquaintance is how many writes of a session pair its connection; two would do.
const acquaintance = 4

// Clover measures a run of Clover: the state machines of rack/clover on the
// modelled rack, with the code of tor/clover in the switch.
func Clover(ctx context.Context, c CloverConfig) (CloverMeasured, error) {
	var r CloverMeasured
	if err := c.defaults(); err != nil {
		return r, err
	}
	w, err := c.rack(ctx)
	if err != nil {
		return r, err
	}
	cl, box, all := w.cl, w.box, w.all
	if c.Faults != nil {
		c.Faults(w.World, box, all[0], all[2:])
	}
	cl.Start(clover.Load{Mix: &ycsb.Mix{Writes: c.WriteShare}})
	w.Wake()
	open := w.Now() + From(c.Warmup)
	total := c.Warmup + c.Measure
	part := func(from, d time.Duration) func(float64) {
		if c.Progress == nil {
			return nil
		}
		return func(done float64) { c.Progress((float64(from) + done*float64(d)) / float64(total)) }
	}
	if err := w.Steps(ctx, open, part(0, c.Warmup)); err != nil {
		return r, err
	}
	win := cl.Begin()
	w.Wake()
	frames, bytes := w.Switched()
	up, down := all[0].Links()
	steered := steeredBy(box)
	if err := w.Steps(ctx, open+From(c.Measure), part(c.Warmup, c.Measure)); err != nil {
		return r, err
	}
	f, b := w.Switched()
	up2, down2 := all[0].Links()
	win.EndSoon()
	w.Wake()
	if err := w.Until(ctx, win.Ended, w.Now()+Millisecond); err != nil {
		return r, err
	}
	m := win.Measured()
	r.Ops, r.Writes, r.Errors, r.Events = m.Ops, m.Writes, m.Errors, w.Events()
	r.OpsPerSecond = float64(m.Ops) / c.Measure.Seconds()
	share := func(a, b uint64) float64 {
		if b == 0 {
			return 0
		}
		return float64(a) / float64(b)
	}
	r.FirstTry = share(m.FirstTry, m.Ops)
	r.ReadFirstTry = share(m.FirstTryReads, m.Ops-m.Writes)
	r.WriteFirstTry = share(m.FirstTryWrites, m.Writes)
	r.PacketsPerOp = share(f-frames, m.Ops)
	r.BytesPerOp = share(b-bytes, m.Ops)
	r.RoundTrips = share(m.RoundTrips, m.Ops)
	r.Read, r.Write = micros(m.Read), micros(m.Write)
	r.Steered = steeredBy(box) - steered
	use := func(a, b LinkStats) float64 {
		wire := float64(b.Bytes-a.Bytes) + float64(b.Frames-a.Frames)*(wireOverhead-fcsLen)
		return wire * 8 / (w.net.GbitPerSecond * float64(c.Measure.Nanoseconds()))
	}
	r.MemoryUp, r.MemoryDown = use(up, up2), use(down, down2)
	if c.Check {
		cl.StopSoon()
		w.Wake()
		if err := w.Until(ctx, cl.Stopped, w.Now()+10*Second); err != nil {
			return r, fmt.Errorf("sim: operations do not end: %w", err)
		}
		v := cl.Integrity()
		r.Integrity = &v
	}
	return r, cl.Err()
}

// bind tells every host which queue pairs its threads post to: thread i to
// number i modulo their number.
func (c *CloverConfig) bind(cl *clover.Cluster, all []*Machine) {
	seen := make([]int, len(all))
	qps := c.ThreadsPerHost
	if c.QPs > 0 {
		qps = min(qps, c.QPs)
	}
	for _, x := range cl.Connections() {
		if !x.Memory {
			continue
		}
		for i, m := range all[2:] {
			// The sessions' connections come first, then the background's.
			if m.IP != x.Client || seen[i] == qps {
				continue
			}
			var threads []int
			for t := seen[i]; t < c.ThreadsPerHost; t += qps {
				threads = append(threads, t)
			}
			m.Bind(all[0], x.ServerQPN, threads...)
			seen[i]++
		}
	}
}

func (c *CloverConfig) middlebox() Middlebox {
	b := c.Middlebox
	b.Kind = *tor.Kind()
	b.Args = graph.Args{
		// The modelled servers answer within 1 us.
		"mode": c.Mode.String(), "keys": fmt.Sprint(c.Keys), "settle": "2us", "pair": "2us",
		// SwordBox remembers 2^24 addresses.
		"addrs": fmt.Sprint(1 << 20),
		// All begin at once, and a quarter of the places is for those that are not paired.
		"conns": fmt.Sprint(4*c.Hosts*(c.ThreadsPerHost+16) + 64),
	}
	if c.SteeredKeys > 0 && c.SteeredKeys < c.Keys {
		b.Args["only"] = fmt.Sprintf("1-%d", c.SteeredKeys)
	}
	maps.Copy(b.Args, c.Args)
	return b
}

// steeredBy is how many requests a middlebox has sent elsewhere.
func steeredBy(b *Box) (n uint64) {
	if b.inst == nil {
		return 0
	}
	for _, x := range b.inst.Counters() {
		if x.Node == appName && (x.Name == "steered-cas" || x.Name == "steered-read") {
			n += x.Value
		}
	}
	return n
}
