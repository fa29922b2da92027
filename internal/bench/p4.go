package bench

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"regexp"
	"runtime"
	"slices"
	"sort"

	"github.com/quillon/quillon/internal/rack/blast"
	"github.com/quillon/quillon/internal/registry"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/p4"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/p4src"
)

// Load is a program with its entries and frames for it.
type Load struct {
	Program string // its name in p4src
	about   string
	Prog    *p4.Program
	Entries []Row
	mix     *mix          // in memory: port pa is 1, pb is 2
	Laps    []blast.Frame // on veth and in captures, all received by port 1
}

// Row is an entry of a table.
type Row struct {
	Table string
	p4.Entry
}

// P4Result is what bench p4 prints.
type P4Result struct {
	Programs []p4Figures `json:"programs"`
	// MiB that a million exact entries take.
	ExactMiB float64 `json:"million_exact_entries_mib"`
}

type p4Figures struct {
	Result
	LoadMs Spread `json:"load_ms"`
}

// P4 measures the engine with so many routes of ipv4_router; progress is written what is measured.
func P4(progress io.Writer, rounds, routes int) (*P4Result, error) {
	clk := clock.NewWall()
	router, err := RouterLoad(routes)
	if err != nil {
		return nil, fmt.Errorf("ipv4_router: %w", err)
	}
	steer, err := SteerLoad()
	if err != nil {
		return nil, fmt.Errorf("swordbox_steer: %w", err)
	}
	r := &P4Result{}
	for _, l := range []*Load{router, steer} {
		fmt.Fprintf(progress, "%s...\n", l.Program)
		b := Benchmark{l.Program, l.about, func(clock.Clock) (*contest, error) { return l.contest() }}
		f := p4Figures{}
		if f.Result, err = Measure(b, rounds, clk); err != nil {
			return nil, fmt.Errorf("%s: %w", l.Program, err)
		}
		if f.LoadMs, err = l.loadTime(rounds, clk); err != nil {
			return nil, err
		}
		r.Programs = append(r.Programs, f)
	}
	if r.ExactMiB, err = exactMemory(1_000_000); err != nil {
		return nil, err
	}
	return r, nil
}

// Table prints it, in columns that tabs separate.
func (r *P4Result) Table(w io.Writer) {
	fmt.Fprintln(w, "in memory\tbytes\tns/packet\tmin\tmax\tMpps\tallocs\tpass-through ns\tload ms")
	for _, p := range r.Programs {
		x := p.Work
		fmt.Fprintf(w, "%s\t%.0f\t%.1f\t%.1f\t%.1f\t%.2f\t%.2g\t%.1f\t%.1f\n", p.Name, p.Bytes,
			x.NsPerPacket.Median, x.NsPerPacket.Min, x.NsPerPacket.Max, x.Mpps, round3(x.Allocs), p.PassThrough.NsPerPacket.Median, p.LoadMs.Median)
	}
	fmt.Fprintf(w, "1,000,000 exact entries\t%.0f MiB\n", r.ExactMiB)
}

// Source is the program's JSON.
func (l *Load) Source() ([]byte, error) { return p4src.Measured(l.Program + ".json") }

// load reads the program.
func (l *Load) load() error {
	src, err := l.Source()
	if err == nil {
		l.Prog, err = p4.Load(src)
	}
	return err
}

func (l *Load) loadTime(rounds int, clk clock.Clock) (Spread, error) {
	var ms []float64
	for range rounds {
		start := clk.Now()
		if err := l.load(); err != nil {
			return Spread{}, err
		}
		ms = append(ms, float64(clk.Now().Sub(start).Nanoseconds())/1e6)
	}
	sort.Float64s(ms)
	return Spread{Median(ms), ms[0], ms[len(ms)-1]}, nil
}

func (l *Load) add(table string, e p4.Entry) { l.Entries = append(l.Entries, Row{table, e}) }

// fill gives a switch the entries.
func (l *Load) fill(sw *p4.Switch) error {
	for _, e := range l.Entries {
		if _, err := sw.Insert(e.Table, e.Entry); err != nil {
			return err
		}
	}
	return nil
}

// Instance is a graph of one app of kind p4, with the program and its entries,
// between two ports.
func (l *Load) Instance(clk clock.Clock, ports map[string][]port.Port) (*graph.Instance, error) {
	inst, err := graph.New(graph.Config{Spec: P4Spec(), Kinds: registry.Kinds(), Ports: ports, Clock: clk, Nice: -20})
	if err != nil {
		return nil, err
	}
	if err := l.Install(inst); err != nil {
		_ = inst.Close()
		return nil, err
	}
	return inst, nil
}

// Install gives the app of an instance the program and its entries.
func (l *Load) Install(inst *graph.Instance) (err error) {
	visit := inst.Visit("nf", 0, func(a graph.App) {
		app := a.(*p4.App)
		var sw *p4.Switch
		if sw, err = app.NewSwitch(l.Prog); err == nil {
			err = l.fill(sw)
			app.Use(sw)
		}
	})
	return errors.Join(visit, err)
}

// P4Spec is a graph of an app nf of kind p4 between two ports in memory.
func P4Spec() *graph.Spec {
	return &graph.Spec{
		Ports: map[string]graph.PortSpec{"pa": {Kind: "mem"}, "pb": {Kind: "mem"}},
		Apps:  map[string]graph.AppSpec{"nf": {Kind: "p4"}},
		Links: []string{"pa.out -> nf.1", "nf.2 -> pb.in", "pb.out -> nf.2", "nf.1 -> pa.in"},
	}
}

// contest runs the program in memory.
func (l *Load) contest() (*contest, error) {
	pool, err := packet.NewPool(4*packet.MaxBatch, 2048, nil)
	if err != nil {
		return nil, err
	}
	work := func() (func() (int, error), error) {
		ports := map[string][]port.Port{}
		for _, name := range []string{"pa", "pb"} {
			ports[name] = []port.Port{&drain{name: name, pool: pool}}
		}
		inst, err := l.Instance(nil, ports)
		if err != nil {
			return nil, err
		}
		p := &playback{mix: l.mix, inst: inst, pool: pool}
		if _, err := p.play(l.mix.warm()); err != nil {
			return nil, err
		}
		return func() (int, error) {
			defer inst.Close()
			n, err := p.play(len(l.mix.batches))
			if err != nil {
				return n, err
			}
			for _, c := range inst.Counters() {
				if slices.Contains(p4Losses, c.Name) && c.Value != 0 {
					return n, fmt.Errorf("%d frames were dropped: %s", c.Value, c.Name)
				}
			}
			return n, nil
		}, nil
	}
	return &contest{
		bytes: float64(len(l.mix.bytes)) / float64(l.mix.frames),
		work:  work,
		pass:  l.mix.through(pool, "wire", nil),
		close: func() {},
	}, nil
}

// p4Losses are counters of frames that should have been forwarded.
var p4Losses = []string{"no-program", "no-port", "no-table-hit", "parser-error", "ingress-drop", "egress-drop", "no-replica"}

// MaxRoutes is the size of ipv4_router's table.
const MaxRoutes = 16384

// RouterLoad draws routes and frames for them.
func RouterLoad(routes int) (*Load, error) {
	l := &Load{Program: "ipv4_router", about: fmt.Sprintf("routes frames of 64 bytes by %d routes, in memory", routes)}
	if err := l.load(); err != nil {
		return nil, err
	}
	mac := []byte{2, 0, 0, 0, 0, 1}
	l.add("router_ingress.router_mac", p4.Entry{Key: []p4.Match{{Value: []byte{1}}, {Value: mac}}, Action: p4.Action{Name: "NoAction"}})
	const hops = 8
	for hop := range byte(hops) {
		l.add("router_ingress.next_hop", p4.Entry{Key: []p4.Match{{Value: []byte{hop + 1}}},
			Action: p4.Action{Name: "router_ingress.forward", Args: [][]byte{{2, 0, 0, 0, 1, hop}, {2, 0, 0, 0, 2, hop}, {2}}}})
	}
	r := rand.New(rand.NewPCG(1, 2))
	drawn := map[netip.Prefix]bool{}
	m := &mix{}
	for len(drawn) < routes {
		addr := netip.AddrFrom4([4]byte{byte(1 + r.IntN(223)), byte(r.IntN(256)), byte(r.IntN(256)), byte(r.IntN(256))})
		route, err := addr.Prefix(16 + r.IntN(9))
		if err != nil {
			return nil, err
		}
		if drawn[route] {
			continue
		}
		drawn[route] = true
		l.add("router_ingress.ipv4_lpm", p4.Entry{Key: []p4.Match{{Value: route.Addr().AsSlice(), Prefix: route.Bits()}},
			Action: p4.Action{Name: "router_ingress.set_next_hop", Args: [][]byte{{byte(1 + r.IntN(hops))}}}})
		f := make([]byte, 64)
		copy(f, mac)
		binary.BigEndian.PutUint16(f[12:], hdr.EtherIPv4)
		ip := hdr.IPv4(f[14:])
		ip.Encode(&hdr.IPv4Fields{TotalLen: 50, TTL: 64, Protocol: 17, Src: netip.AddrFrom4([4]byte{10, 1, byte(r.IntN(256)), byte(r.IntN(256))}), Dst: addr})
		l.Laps = append(l.Laps, blast.Frame{Bytes: f})
		if n := len(l.Laps) - 1; n%packet.MaxBatch == 0 {
			m.batches = append(m.batches, mixBatch{port: "pa", at: clock.Time(1 + n)})
		}
		m.bytes = append(m.bytes, f...)
		last := &m.batches[len(m.batches)-1]
		last.ends = append(last.ends, len(m.bytes))
		m.frames++
	}
	l.mix = m.times((mixFrames + routes - 1) / routes)
	return l, nil
}

// times is the mix n times.
func (m *mix) times(n int) *mix {
	x := &mix{bytes: bytes.Repeat(m.bytes, n), frames: n * m.frames}
	for i := range n {
		for _, b := range m.batches {
			c := mixBatch{port: b.port, at: b.at + clock.Time(i*m.frames)}
			for _, end := range b.ends {
				c.ends = append(c.ends, end+i*len(m.bytes))
			}
			x.batches = append(x.batches, c)
		}
	}
	return x
}

// SteerLoad records a Clover mix, and names its connections.
func SteerLoad() (*Load, error) {
	l := &Load{Program: "swordbox_steer", about: "steers a recorded Clover mix, in memory"}
	if err := l.load(); err != nil {
		return nil, err
	}
	var err error
	if l.mix, err = recordMix(0); err != nil {
		return nil, fmt.Errorf("record the mix: %w", err)
	}
	frames, pairs, err := l.mix.laps()
	if err != nil {
		return nil, fmt.Errorf("the mix in laps: %w", err)
	}
	l.Laps = frames
	to := map[[6]byte]bool{}
	for _, f := range l.mix.list() {
		to[[6]byte(f)] = true
	}
	for mac := range to {
		l.add("steer_ingress.l2_forward", p4.Entry{Key: []p4.Match{{Value: mac[:]}}, Action: p4.Action{Name: "steer_ingress.forward", Args: [][]byte{{2}}}})
	}
	id := uint16(0)
	for answers, requests := range pairs {
		arg := [][]byte{binary.BigEndian.AppendUint16(nil, id)}
		for _, x := range []struct {
			action   string
			src, dst netip.Addr
			qpn      uint32
		}{{"steer_ingress.requests", requests.client, requests.server, requests.qpn}, {"steer_ingress.answers", answers.server, answers.client, answers.qpn}} {
			l.add("steer_ingress.connections", p4.Entry{
				Key:    []p4.Match{{Value: x.src.AsSlice()}, {Value: x.dst.AsSlice()}, {Value: binary.BigEndian.AppendUint32(nil, x.qpn)}},
				Action: p4.Action{Name: x.action, Args: arg},
			})
		}
		id++
	}
	return l, nil
}

// maxSize is a table's size in a program's JSON.
var maxSize = regexp.MustCompile(`"max_size":\d+`)

// exactMemory fills a table of MAC addresses with n entries and says what
// memory they take.
func exactMemory(n int) (mib float64, err error) {
	src, err := p4src.Measured("swordbox_steer.json")
	if err != nil {
		return 0, err
	}
	prog, err := p4.Load(maxSize.ReplaceAll(src, fmt.Appendf(nil, `"max_size":%d`, n)))
	if err != nil {
		return 0, err
	}
	sw, err := p4.NewSwitch(prog, p4.Config{})
	if err != nil {
		return 0, err
	}
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	key := make([]byte, 6)
	e := p4.Entry{Key: []p4.Match{{Value: key}}, Action: p4.Action{Name: "steer_ingress.forward", Args: [][]byte{{1}}}}
	for i := range n {
		binary.BigEndian.PutUint32(key[2:], uint32(i)*2654435761)
		if _, err := sw.Insert("steer_ingress.l2_forward", e); err != nil {
			return 0, err
		}
	}
	after := heap()
	runtime.KeepAlive(sw)
	return float64(after-before) / (1 << 20), nil
}
