package bench

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/quillon/quillon/controlplane/p4info"
	"github.com/quillon/quillon/controlplane/p4rt"
	"github.com/quillon/quillon/controlplane/p4rt/engine"
	"github.com/quillon/quillon/internal/garbage"
	"github.com/quillon/quillon/internal/registry"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/p4src"
)

// delays are those of a phase of forwarding, in microseconds.
type delays struct {
	Mpps   float64 `json:"mpps"`
	Frames int64   `json:"frames"`
	Lost   int64   `json:"lost"`
	P50    float64 `json:"p50_us"`
	P99    float64 `json:"p99_us"`
	P999   float64 `json:"p999_us"`
	Max    float64 `json:"max_us"`
}

// p4rtRound is a phase without writes, and one with them.
type p4rtRound struct {
	Quiet        delays  `json:"quiet"`
	Writing      delays  `json:"writing"`
	WritesPerSec float64 `json:"writes_per_s"`
	P99Ratio     float64 `json:"p99_ratio"`
}

// P4RuntimeResult is what bench p4runtime prints.
type P4RuntimeResult struct {
	MostMpps float64     `json:"most_mpps,omitempty"` // with a queue that is always full
	RateMpps float64     `json:"offered_mpps"`
	Batch    int         `json:"batch"`
	Rounds   []p4rtRound `json:"rounds"`
	// Writes is the median of the rounds, P99Ratio that of their ratios.
	Writes   float64 `json:"writes_per_s"`
	P99Ratio float64 `json:"p99_ratio"`
	// Of a table of many entries, without traffic.
	Entries       int     `json:"entries"`
	InsertsPerSec float64 `json:"inserts_per_s"`
	EntriesPerSec float64 `json:"entries_read_per_s"`
	// MiB that the process grew by while it answered the read, client included.
	ReadMiB float64 `json:"read_growth_mib"`
}

// pacer is a port that receives frames at a rate, and measures when they leave.
type pacer struct {
	drain
	clk    clock.Clock
	frames [][]byte
	perNs  float64 // frames
	on     atomic.Bool

	// Of the worker:
	running bool
	start   clock.Time
	issued  int64
	at      int
	lost    int64
	hist    *hdrhistogram.Histogram
}

// queueLen is how many frames may wait to be received.
const queueLen = 4096

func (p *pacer) Rx(b *packet.Batch) (int, error) {
	on := p.on.Load()
	if on != p.running {
		p.running, p.start, p.issued = on, p.clk.Now(), 0
	}
	if !on {
		return 0, nil
	}
	due := int64(float64(p.clk.Now()-p.start) * p.perNs)
	if over := due - p.issued - queueLen; over > 0 {
		p.lost += over
		p.issued += over
	}
	n := 0
	for p.issued < due && !b.Full() {
		x := p.pool.Get()
		if x == nil {
			break
		}
		x.SetBytes(p.frames[p.at])
		if p.at++; p.at == len(p.frames) {
			p.at = 0
		}
		x.RxTime = int64(p.start) + int64(float64(p.issued)/p.perNs)
		b.Add(x)
		p.issued++
		n++
	}
	return n, nil
}

func (p *pacer) Wait(ctx context.Context, d clock.Duration) error {
	if !p.on.Load() {
		time.Sleep(min(d, time.Millisecond))
	}
	return ctx.Err()
}

// sinkhole is where the frames leave.
type sinkhole struct {
	drain
	from *pacer
}

func (s *sinkhole) Wait(ctx context.Context, d clock.Duration) error {
	return s.from.Wait(ctx, d)
}

func (s *sinkhole) Tx(b *packet.Batch) (int, error) {
	now := int64(s.from.clk.Now())
	for _, x := range b.Bufs() {
		_ = s.from.hist.RecordValue(max(now-x.RxTime, 1))
	}
	return s.drain.Tx(b)
}

// p4rtBed is a graph behind a server, and a client.
type p4rtBed struct {
	inst    *graph.Instance
	address string // of the server
	client  p4v1.P4RuntimeClient
	close   []func()
}

func (b *p4rtBed) Close() {
	for n := range b.close {
		b.close[len(b.close)-1-n]()
	}
	b.close = nil
}

// serve puts the app nf of an instance behind a server.
func (b *p4rtBed) serve(info *p4info.Info, program []byte, clk clock.Clock) error {
	dev, err := engine.New(engine.Config{Instance: b.inst, App: "nf", Clock: clk, Info: info, Program: program})
	if err != nil {
		return err
	}
	s := p4rt.New(p4rt.Config{Clock: clk})
	if err := s.Add(1, dev); err != nil {
		return err
	}
	b.close = append(b.close, s.Close)
	l, err := p4rt.Listen(s, p4rt.ListenConfig{Address: "127.0.0.1:0", Insecure: true})
	if err != nil {
		return err
	}
	b.close = append(b.close, func() { _ = l.Close() })
	b.address = l.Addr().String()
	return nil
}

// dial makes the caller the server's primary client.
func (b *p4rtBed) dial() error {
	conn, err := grpc.NewClient(b.address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	b.close = append(b.close, func() { _ = conn.Close() })
	b.client = p4v1.NewP4RuntimeClient(conn)
	ctx, cancel := context.WithCancel(context.Background())
	b.close = append(b.close, cancel)
	stream, err := b.client.StreamChannel(ctx)
	if err != nil {
		return err
	}
	if err := stream.Send(&p4v1.StreamMessageRequest{Update: &p4v1.StreamMessageRequest_Arbitration{
		Arbitration: &p4v1.MasterArbitrationUpdate{DeviceId: 1, ElectionId: &p4v1.Uint128{Low: 1}}}}); err != nil {
		return err
	}
	_, err = stream.Recv()
	return err
}

// writer is a client in a process of its own, for it has nothing to do with how
// the forwarder's process divides its time.
type writer struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

func newWriter(cmd *exec.Cmd) (_ *writer, err error) {
	w := &writer{cmd: cmd}
	w.cmd.Stderr = os.Stderr
	if w.in, err = w.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	w.out = bufio.NewScanner(out)
	return w, w.cmd.Start()
}

// write has the client write for a while, and returns how many updates it made a second.
func (w *writer) write(d time.Duration) (float64, error) {
	if _, err := fmt.Fprintln(w.in, int64(d)); err != nil {
		return 0, err
	}
	if !w.out.Scan() {
		return 0, fmt.Errorf("the client ended: %v", w.cmd.Wait())
	}
	return strconv.ParseFloat(w.out.Text(), 64)
}

func (w *writer) Close() {
	_ = w.in.Close() // that ends it
	_ = w.cmd.Wait()
}

// WriteRoutes is the client: for each line, a time in ns, it writes for that long, and
// prints how many updates it made a second.
func WriteRoutes(in io.Reader, out io.Writer, address string, batch, target int) error {
	text, err := p4src.Measured("ipv4_router.p4info.txtpb")
	if err != nil {
		return err
	}
	info, err := p4info.Parse(text)
	if err != nil {
		return err
	}
	b := &p4rtBed{address: address}
	defer b.Close()
	if err := b.dial(); err != nil {
		return err
	}
	clk := clock.NewWall()
	requests := routeWrites(info, batch)
	next := 0
	for lines := bufio.NewScanner(in); lines.Scan(); {
		d, err := strconv.ParseInt(lines.Text(), 10, 64)
		if err != nil {
			return err
		}
		n, start := 0, clk.Now()
		for clk.Now().Sub(start) < clock.Duration(d) {
			if _, err := b.client.Write(context.Background(), requests[next]); err != nil {
				return err
			}
			n += batch
			next = (next + 1) % len(requests)
			if target > 0 {
				time.Sleep(clock.Duration(float64(n)/float64(target)*1e9) - clk.Now().Sub(start))
			}
		}
		fmt.Fprintln(out, float64(n)/(float64(clk.Now().Sub(start))/1e9))
	}
	return nil
}

// run has the graph's workers run until Close.
func (b *p4rtBed) run() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { _ = b.inst.Run(ctx); close(done) }()
	b.close = append(b.close, func() { cancel(); <-done; _ = b.inst.Close() })
}

// P4RuntimeConfig says what P4Runtime measures.
type P4RuntimeConfig struct {
	Rounds  int           // phases with and without writes
	Time    time.Duration // how long a phase lasts
	Batch   int           // updates in a request
	Mpps    float64       // offered; 0: the share Load of what can be forwarded
	Load    float64
	Entries int // to write and read without traffic; 0: none
	// Client is a process that runs WriteRoutes against an address.
	Client func(address string) (*exec.Cmd, error)
}

// P4Runtime measures writes and reads into an engine that forwards; progress is written what is measured.
func P4Runtime(progress io.Writer, cfg P4RuntimeConfig) (*P4RuntimeResult, error) {
	r := &P4RuntimeResult{RateMpps: cfg.Mpps, Batch: cfg.Batch, Entries: cfg.Entries}
	fmt.Fprintln(progress, "ipv4_router...")
	if err := r.writes(cfg); err != nil {
		return nil, err
	}
	if cfg.Entries == 0 {
		return r, nil
	}
	fmt.Fprintln(progress, "entries...")
	return r, r.reads()
}

// forwarder is a router behind a server, that is offered frames at a rate.
type forwarder struct {
	p4rtBed
	src *pacer
}

// newForwarder begins with a queue that is always full when mpps is 0.
func newForwarder(mpps float64, clk clock.Clock) (_ *forwarder, err error) {
	load, err := RouterLoad(10_000)
	if err != nil {
		return nil, err
	}
	text, err := p4src.Measured("ipv4_router.p4info.txtpb")
	if err != nil {
		return nil, err
	}
	info, err := p4info.Parse(text)
	if err != nil {
		return nil, err
	}
	f := &forwarder{}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	// The frames' memory is not Go's, as with AF_XDP: garbage is collected as often as there.
	const slots, slot = 4 * queueLen, 2048
	mem, err := unix.Mmap(-1, 0, slots*slot, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANONYMOUS|unix.MAP_PRIVATE)
	if err != nil {
		return nil, fmt.Errorf("memory of frames: %w", err)
	}
	f.close = append(f.close, func() { _ = unix.Munmap(mem) })
	pool, err := packet.NewPool(slots, slot, mem)
	if err != nil {
		return nil, err
	}
	f.src = &pacer{drain: drain{name: "pa", pool: pool}, clk: clk, perNs: mpps / 1000, hist: hdrhistogram.New(1, 10_000_000_000, 3)}
	if mpps == 0 {
		f.src.perNs = 1
	}
	for _, x := range load.Laps {
		f.src.frames = append(f.src.frames, x.Bytes)
	}
	f.close = append(f.close, garbage.Less(garbage.Patient))
	f.inst, err = load.Instance(clk, map[string][]port.Port{"pa": {f.src}, "pb": {&sinkhole{drain{name: "pb", pool: pool}, f.src}}})
	if err != nil {
		return nil, err
	}
	f.run()
	json, err := load.Source()
	if err != nil {
		return nil, err
	}
	return f, f.serve(info, json, clk)
}

// phase forwards for a while, and has do run meanwhile; nil: nothing.
func (f *forwarder) phase(last time.Duration, do func() error) (d delays, err error) {
	visit := func(look func()) {
		if e := f.inst.Visit("nf", 0, func(graph.App) { look() }); e != nil {
			err = e
		}
	}
	f.src.on.Store(true)
	time.Sleep(100 * time.Millisecond) // caches, and the queue that filled while they did
	lost, start := int64(0), clock.Time(0)
	visit(func() { f.src.hist.Reset(); lost, start = f.src.lost, f.src.clk.Now() })
	over := time.After(last)
	if do != nil {
		if e := do(); e != nil {
			err = e
		}
	}
	<-over
	visit(func() {
		s := float64(f.src.clk.Now().Sub(start)) / 1e9
		us := func(q float64) float64 { return round3(float64(f.src.hist.ValueAtQuantile(q)) / 1000) }
		n := f.src.hist.TotalCount()
		d = delays{Mpps: float64(n) / s / 1e6, Frames: n, Lost: f.src.lost - lost, P50: us(50), P99: us(99), P999: us(99.9), Max: round3(float64(f.src.hist.Max()) / 1000)}
	})
	f.src.on.Store(false)
	return d, err
}

// writes measures writing while frames are forwarded.
func (r *P4RuntimeResult) writes(cfg P4RuntimeConfig) error {
	f, err := newForwarder(cfg.Mpps, clock.NewWall())
	if err != nil {
		return err
	}
	defer f.Close()
	if r.RateMpps == 0 {
		most, err := f.phase(cfg.Time, nil)
		if err != nil {
			return err
		}
		r.MostMpps, r.RateMpps = round3(most.Mpps), round3(cfg.Load*most.Mpps)
		if err := f.inst.Visit("nf", 0, func(graph.App) { f.src.perNs = r.RateMpps / 1000 }); err != nil {
			return err
		}
	}
	cmd, err := cfg.Client(f.address)
	if err != nil {
		return err
	}
	client, err := newWriter(cmd)
	if err != nil {
		return err
	}
	defer client.Close()
	var w, p []float64
	for range cfg.Rounds {
		var x p4rtRound
		if x.Quiet, err = f.phase(cfg.Time, nil); err != nil {
			return err
		}
		x.Writing, err = f.phase(cfg.Time, func() (err error) {
			x.WritesPerSec, err = client.write(cfg.Time)
			return err
		})
		if err != nil {
			return err
		}
		x.P99Ratio = round3(x.Writing.P99 / x.Quiet.P99)
		r.Rounds = append(r.Rounds, x)
		w, p = append(w, x.WritesPerSec), append(p, x.P99Ratio)
	}
	sort.Float64s(w)
	sort.Float64s(p)
	r.Writes, r.P99Ratio = round3(Median(w)), Median(p)
	for _, c := range f.inst.Counters() {
		for _, bad := range append([]string{"link-full"}, p4Losses...) {
			if c.Name == bad && c.Value != 0 {
				return fmt.Errorf("%d frames were dropped: %s", c.Value, c.Name)
			}
		}
	}
	return nil
}

// routeWrites are requests that insert routes, modify them, and delete them.
func routeWrites(info *p4info.Info, batch int) []*p4v1.WriteRequest {
	t, _ := p4info.ByName(info.Tables, "table", "router_ingress.ipv4_lpm")
	hop, _ := t.Action("router_ingress.set_next_hop")
	var all []*p4v1.WriteRequest
	per := 6000 / batch
	for _, kind := range []p4v1.Update_Type{p4v1.Update_INSERT, p4v1.Update_MODIFY, p4v1.Update_DELETE} {
		for n := range per {
			r := &p4v1.WriteRequest{DeviceId: 1, ElectionId: &p4v1.Uint128{Low: 1}}
			for i := range batch {
				addr := binary.BigEndian.AppendUint32(nil, 0xf000_0000+uint32(n*batch+i)*0x9000&0x0fff_f000)
				e := &p4v1.TableEntry{TableId: t.ID, Match: []*p4v1.FieldMatch{{FieldId: 1, FieldMatchType: &p4v1.FieldMatch_Lpm{Lpm: &p4v1.FieldMatch_LPM{Value: addr, PrefixLen: 28}}}}}
				if kind != p4v1.Update_DELETE {
					e.Action = &p4v1.TableAction{Type: &p4v1.TableAction_Action{Action: &p4v1.Action{ActionId: hop.ID,
						Params: []*p4v1.Action_Param{{ParamId: 1, Value: []byte{byte(1 + kind)}}}}}}
				}
				r.Updates = append(r.Updates, &p4v1.Update{Type: kind, Entity: &p4v1.Entity{Entity: &p4v1.Entity_TableEntry{TableEntry: e}}})
			}
			all = append(all, r)
		}
	}
	return all
}

// reads fills a table, and reads it.
func (r *P4RuntimeResult) reads() error {
	clk := clock.NewWall()
	text, err := p4src.Measured("swordbox_steer.p4info.txtpb")
	if err != nil {
		return err
	}
	info, err := p4info.Parse(text)
	if err != nil {
		return err
	}
	t, err := p4info.ByName(info.Tables, "table", "steer_ingress.l2_forward")
	if err != nil {
		return err
	}
	forward, err := t.Action("steer_ingress.forward")
	if err != nil {
		return err
	}
	src, err := p4src.Measured("swordbox_steer.json")
	if err != nil {
		return err
	}
	src = maxSize.ReplaceAll(src, fmt.Appendf(nil, `"max_size":%d`, r.Entries))
	pool, err := packet.NewPool(packet.MaxBatch, 2048, nil)
	if err != nil {
		return err
	}
	idle := &pacer{clk: clk}
	b := &p4rtBed{}
	defer b.Close()
	b.inst, err = graph.New(graph.Config{Spec: P4Spec(), Kinds: registry.Kinds(), Clock: clk, Ports: map[string][]port.Port{
		"pa": {&sinkhole{drain{name: "pa", pool: pool}, idle}}, "pb": {&sinkhole{drain{name: "pb", pool: pool}, idle}}}})
	if err != nil {
		return err
	}
	b.run()
	if err := errors.Join(b.serve(nil, nil, clk), b.dial()); err != nil {
		return err
	}
	ctx := context.Background()
	if _, err := b.client.SetForwardingPipelineConfig(ctx, &p4v1.SetForwardingPipelineConfigRequest{DeviceId: 1, ElectionId: &p4v1.Uint128{Low: 1},
		Action: p4v1.SetForwardingPipelineConfigRequest_VERIFY_AND_COMMIT,
		Config: &p4v1.ForwardingPipelineConfig{P4Info: info.Proto, P4DeviceConfig: src}}); err != nil {
		return err
	}
	start := clk.Now()
	for at := 0; at < r.Entries; {
		w := &p4v1.WriteRequest{DeviceId: 1, ElectionId: &p4v1.Uint128{Low: 1}}
		for range min(r.Batch, r.Entries-at) {
			mac := binary.BigEndian.AppendUint32([]byte{2, 0}, uint32(at)*2654435761)
			w.Updates = append(w.Updates, &p4v1.Update{Type: p4v1.Update_INSERT, Entity: &p4v1.Entity{Entity: &p4v1.Entity_TableEntry{TableEntry: &p4v1.TableEntry{
				TableId: t.ID, Match: []*p4v1.FieldMatch{{FieldId: t.Fields[0].ID, FieldMatchType: &p4v1.FieldMatch_Exact_{Exact: &p4v1.FieldMatch_Exact{Value: mac}}}},
				Action: &p4v1.TableAction{Type: &p4v1.TableAction_Action{Action: &p4v1.Action{ActionId: forward.ID, Params: []*p4v1.Action_Param{{ParamId: 1, Value: []byte{1}}}}}},
			}}}})
			at++
		}
		if _, err := b.client.Write(ctx, w); err != nil {
			return err
		}
	}
	r.InsertsPerSec = float64(r.Entries) / (float64(clk.Now().Sub(start)) / 1e9)

	before := residentMiB()
	most := before
	done := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() {
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				most = max(most, residentMiB())
			}
		}
	})
	start = clk.Now()
	n, err := r.readAll(ctx, b.client, t.ID)
	took := clk.Now().Sub(start)
	close(done)
	watch.Wait()
	if err == nil && n != r.Entries {
		err = fmt.Errorf("%d entries were read, there are %d", n, r.Entries)
	}
	r.EntriesPerSec, r.ReadMiB = float64(n)/(float64(took)/1e9), math.Round(10*(most-before))/10
	return err
}

func (r *P4RuntimeResult) readAll(ctx context.Context, c p4v1.P4RuntimeClient, table uint32) (n int, err error) {
	s, err := c.Read(ctx, &p4v1.ReadRequest{DeviceId: 1, Entities: []*p4v1.Entity{{Entity: &p4v1.Entity_TableEntry{TableEntry: &p4v1.TableEntry{TableId: table}}}}})
	if err != nil {
		return 0, err
	}
	for {
		m, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return n, nil
		}
		if err != nil {
			return n, err
		}
		n += len(m.GetEntities())
	}
}

// residentMiB is the memory that the process has in use; 0: it is not known.
func residentMiB() float64 {
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	f := strings.Fields(string(b))
	pages, err := strconv.ParseFloat(f[1], 64)
	if err != nil {
		return 0
	}
	return pages * float64(os.Getpagesize()) / (1 << 20)
}

// Table prints it.
func (r *P4RuntimeResult) Table(w io.Writer) {
	if r.MostMpps > 0 {
		fmt.Fprintf(w, "at most %.2f Mpps; ", r.MostMpps)
	}
	fmt.Fprintf(w, "offered %.2f Mpps, batches of %d\n", r.RateMpps, r.Batch)
	fmt.Fprintf(w, "%-8s %10s %8s %9s %9s %9s %9s %12s %6s\n", "", "Mpps", "lost", "p50 us", "p99 us", "p99.9 us", "max us", "writes/s", "ratio")
	for _, x := range r.Rounds {
		for n, d := range []delays{x.Quiet, x.Writing} {
			fmt.Fprintf(w, "%-8s %10.2f %8d %9.1f %9.1f %9.1f %9.1f", [...]string{"quiet", "writing"}[n], d.Mpps, d.Lost, d.P50, d.P99, d.P999, d.Max)
			if n == 1 {
				fmt.Fprintf(w, " %12.0f %6.2f", x.WritesPerSec, x.P99Ratio)
			}
			fmt.Fprintln(w)
		}
	}
	fmt.Fprintf(w, "median: %.0f writes/s, p99 %.2f times that without writes\n", r.Writes, r.P99Ratio)
	if r.Entries > 0 {
		fmt.Fprintf(w, "%d entries without traffic: %.0f inserted/s, %.0f read/s, grown by %.1f MiB while reading\n", r.Entries, r.InsertsPerSec, r.EntriesPerSec, r.ReadMiB)
	}
}
