package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"sort"

	"github.com/spf13/cobra"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/p4"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/p4src"
	"github.com/quillon/quillon/rack/blast"
)

// p4Load is a program with its entries and frames for it.
type p4Load struct {
	program, about string
	prog           *p4.Program
	entries        []p4Row
	mix            *mix          // in memory: port pa is 1, pb is 2
	laps           []blast.Frame // on veth, all received by port 1
}

// p4Row is an entry of a table.
type p4Row struct {
	table string
	p4.Entry
}

// p4Result is what bench p4 prints.
type p4Result struct {
	Programs []p4Figures `json:"programs"`
	// MiB that a million exact entries take.
	ExactMiB float64     `json:"million_exact_entries_mib"`
	Against  []p4Against `json:"against,omitempty"`
}

type p4Figures struct {
	benchResult
	LoadMs spread `json:"load_ms"`
}

// p4Against holds the engine against another switch: both forwarded the same
// frames, in turns.
type p4Against struct {
	Program string  `json:"program"`
	Rival   string  `json:"rival"`
	Medium  string  `json:"medium"` // files or veth
	Bytes   float64 `json:"bytes_per_packet"`
	Rounds  int     `json:"rounds"`
	Quillon figures `json:"quillon"`
	Other   figures `json:"other"`
	Ratio   float64 `json:"ratio"`
	// PassThrough is a graph without a program on the same veths.
	PassThrough *figures `json:"pass_through,omitempty"`
	Skipped     string   `json:"skipped,omitempty"`
}

func newBenchP4Cmd() *cobra.Command {
	var rounds, routes int
	var against string
	cmd := &cobra.Command{
		Use:   "p4",
		Short: "Measure the P4 engine, alone and against bmv2's simple_switch",
		Long: `Runs two P4 programs in memory, each beside a plain pass-through of the same
frames: ipv4_router routes frames of 64 bytes by many routes, and swordbox_steer
steers a recorded Clover mix. Also measures how long it takes to load a program,
and what memory a million exact entries take.

With --against, another switch (simple_switch, or a path to one; its command line
NAME_CLI is used too) gets the same program, entries and frames, in turns:

  files  Each reads a capture and writes one, the engine on one processor, the
         other switch on all. What is counted is the time from the first frame
         to the last. This compares the switches.
  veth   Each forwards between two veth pairs, and what arrives behind them is
         counted: the engine receives over AF_XDP, simple_switch as it does. The
         generator keeps up to 768 frames under way. A graph without a program
         stands beside it: that is what the veths let through. Needs root.`,
		Example: "  quillon bench p4\n  quillon bench p4 --against simple_switch --rounds 5 --json",
		Args:    exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if rounds < 1 || routes < 1 || routes > maxRoutes {
				return fmt.Errorf("--rounds %d --routes %d: want 1 or more, and 1 to %d", rounds, routes, maxRoutes)
			}
			r, err := benchP4(cmd.ErrOrStderr(), rounds, routes, against)
			if err != nil {
				return err
			}
			return show(cmd, r, func(w io.Writer) { r.table(w) })
		},
	}
	cmd.Flags().IntVar(&rounds, "rounds", 11, "rounds to take the median of")
	cmd.Flags().IntVar(&routes, "routes", 10_000, "routes of ipv4_router")
	cmd.Flags().StringVar(&against, "against", "", "a switch to compare with: simple_switch")
	return cmd
}

func benchP4(progress io.Writer, rounds, routes int, against string) (*p4Result, error) {
	for _, name := range []string{against, against + "_CLI"} {
		if against == "" {
			break
		}
		if _, err := exec.LookPath(name); err != nil {
			return nil, fmt.Errorf("--against %s: %s is not on the PATH", against, name)
		}
	}
	clk := clock.NewWall()
	router, err := routerLoad(routes)
	if err != nil {
		return nil, fmt.Errorf("ipv4_router: %w", err)
	}
	steer, err := steerLoad()
	if err != nil {
		return nil, fmt.Errorf("swordbox_steer: %w", err)
	}
	r := &p4Result{}
	for _, l := range []*p4Load{router, steer} {
		fmt.Fprintf(progress, "%s...\n", l.program)
		b := benchmark{l.program, l.about, func(clock.Clock) (*contest, error) { return l.contest() }}
		f := p4Figures{}
		if f.benchResult, err = measure(b, rounds, clk); err != nil {
			return nil, fmt.Errorf("%s: %w", l.program, err)
		}
		if f.LoadMs, err = l.loadTime(rounds, clk); err != nil {
			return nil, err
		}
		r.Programs = append(r.Programs, f)
	}
	if r.ExactMiB, err = exactMemory(1_000_000); err != nil {
		return nil, err
	}
	if against == "" {
		return r, nil
	}
	for _, medium := range []struct {
		name string
		duel func(l *p4Load, rival string, clk clock.Clock) (*duel, error)
	}{{"files", (*p4Load).onFiles}, {"veth", (*p4Load).onVeth}} {
		for _, l := range []*p4Load{router, steer} {
			fmt.Fprintf(progress, "%s against %s, %s...\n", l.program, against, medium.name)
			a := p4Against{Program: l.program, Rival: against, Medium: medium.name, Rounds: rounds}
			d, err := medium.duel(l, against, clk)
			if err == nil {
				err = a.measure(d, clk)
			}
			if missing(err) {
				a.Skipped, err = err.Error(), nil
			}
			if err != nil {
				return nil, fmt.Errorf("%s against %s, %s: %w", l.program, against, medium.name, err)
			}
			r.Against = append(r.Against, a)
		}
	}
	return r, nil
}

// duel is a prepared comparison.
type duel struct {
	bytes              float64 // mean length of a frame
	ours, theirs, pass run     // pass may be nil
	close              func()
}

func (a *p4Against) measure(d *duel, clk clock.Clock) error {
	defer d.close()
	a.Bytes = d.bytes
	var ours, theirs, pass side
	for n := -1; n < a.Rounds; n++ { // the first is to warm up
		for _, s := range []struct {
			*side
			run
		}{{&ours, d.ours}, {&theirs, d.theirs}, {&pass, d.pass}} {
			if s.run == nil {
				continue
			}
			if err := s.side.round(s.run, nil, clk, n >= 0); err != nil {
				return err
			}
		}
	}
	a.Quillon, a.Other = ours.figures(d.bytes), theirs.figures(d.bytes)
	a.Ratio = a.Other.NsPerPacket.Median / a.Quillon.NsPerPacket.Median
	if d.pass != nil {
		f := pass.figures(d.bytes)
		a.PassThrough = &f
	}
	return nil
}

func (r *p4Result) table(w io.Writer) {
	fmt.Fprintln(w, "in memory\tbytes\tns/packet\tmin\tmax\tMpps\tallocs\tpass-through ns\tload ms")
	for _, p := range r.Programs {
		x := p.Work
		fmt.Fprintf(w, "%s\t%.0f\t%.1f\t%.1f\t%.1f\t%.2f\t%.2g\t%.1f\t%.1f\n", p.Name, p.Bytes,
			x.NsPerPacket.Median, x.NsPerPacket.Min, x.NsPerPacket.Max, x.Mpps, round3(x.Allocs), p.PassThrough.NsPerPacket.Median, p.LoadMs.Median)
	}
	fmt.Fprintf(w, "1,000,000 exact entries\t%.0f MiB\n", r.ExactMiB)
	if len(r.Against) == 0 {
		return
	}
	fmt.Fprintf(w, "\tbytes\tns/packet\tmin\tmax\tMpps\tratio\n")
	for _, a := range r.Against {
		if a.Skipped != "" {
			fmt.Fprintf(w, "%s, %s\tleft out: %s\n", a.Program, a.Medium, a.Skipped)
			continue
		}
		row := func(who string, f figures) {
			fmt.Fprintf(w, "%s, %s: %s\t%.0f\t%.1f\t%.1f\t%.1f\t%.3f\t%.1f\n", a.Program, a.Medium, who, a.Bytes,
				f.NsPerPacket.Median, f.NsPerPacket.Min, f.NsPerPacket.Max, f.Mpps, a.Other.NsPerPacket.Median/f.NsPerPacket.Median)
		}
		row("quillon", a.Quillon)
		row(a.Rival, a.Other)
		if a.PassThrough != nil {
			row("no program", *a.PassThrough)
		}
	}
}

// source is the program's JSON.
func (l *p4Load) source() ([]byte, error) { return p4src.Files.ReadFile(l.program + ".json") }

// load reads the program.
func (l *p4Load) load() error {
	src, err := l.source()
	if err == nil {
		l.prog, err = p4.Load(src)
	}
	return err
}

func (l *p4Load) loadTime(rounds int, clk clock.Clock) (spread, error) {
	var ms []float64
	for range rounds {
		start := clk.Now()
		if err := l.load(); err != nil {
			return spread{}, err
		}
		ms = append(ms, float64(clk.Now().Sub(start).Nanoseconds())/1e6)
	}
	sort.Float64s(ms)
	return spread{median(ms), ms[0], ms[len(ms)-1]}, nil
}

func (l *p4Load) add(table string, e p4.Entry) { l.entries = append(l.entries, p4Row{table, e}) }

// fill gives a switch the entries.
func (l *p4Load) fill(sw *p4.Switch) error {
	for _, e := range l.entries {
		if _, err := sw.Insert(e.table, e.Entry); err != nil {
			return err
		}
	}
	return nil
}

// instance is a graph of one app of kind p4, with the program and its entries,
// between two ports.
func (l *p4Load) instance(clk clock.Clock, ports map[string][]port.Port) (*graph.Instance, error) {
	inst, err := graph.New(graph.Config{Spec: p4Spec(), Kinds: kinds(), Ports: ports, Clock: clk, Nice: -20})
	if err != nil {
		return nil, err
	}
	if err := l.install(inst); err != nil {
		_ = inst.Close()
		return nil, err
	}
	return inst, nil
}

// install gives the app of an instance the program and its entries.
func (l *p4Load) install(inst *graph.Instance) (err error) {
	visit := inst.Visit("nf", 0, func(a graph.App) {
		app := a.(*p4.App)
		var sw *p4.Switch
		if sw, err = app.NewSwitch(l.prog); err == nil {
			err = l.fill(sw)
			app.Use(sw)
		}
	})
	return errors.Join(visit, err)
}

func p4Spec() *graph.Spec {
	return &graph.Spec{
		Ports: map[string]graph.PortSpec{"pa": {Kind: "mem"}, "pb": {Kind: "mem"}},
		Apps:  map[string]graph.AppSpec{"nf": {Kind: "p4"}},
		Links: []string{"pa.out -> nf.1", "nf.2 -> pb.in", "pb.out -> nf.2", "nf.1 -> pa.in"},
	}
}

// contest runs the program in memory.
func (l *p4Load) contest() (*contest, error) {
	pool, err := packet.NewPool(4*packet.MaxBatch, 2048, nil)
	if err != nil {
		return nil, err
	}
	work := func() (func() (int, error), error) {
		ports := map[string][]port.Port{}
		for _, name := range []string{"pa", "pb"} {
			ports[name] = []port.Port{&drain{name: name, pool: pool}}
		}
		inst, err := l.instance(nil, ports)
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

// maxRoutes is the size of ipv4_router's table.
const maxRoutes = 16384

// routerLoad draws routes and frames for them.
func routerLoad(routes int) (*p4Load, error) {
	l := &p4Load{program: "ipv4_router", about: fmt.Sprintf("routes frames of 64 bytes by %d routes, in memory", routes)}
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
		l.laps = append(l.laps, blast.Frame{Bytes: f})
		if n := len(l.laps) - 1; n%packet.MaxBatch == 0 {
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

// steerLoad records a Clover mix, and names its connections.
func steerLoad() (*p4Load, error) {
	l := &p4Load{program: "swordbox_steer", about: "steers a recorded Clover mix, in memory"}
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
	l.laps = frames
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
var maxSize = regexp.MustCompile(`"max_size" : \d+`)

// exactMemory fills a table of MAC addresses with n entries and says what
// memory they take.
func exactMemory(n int) (mib float64, err error) {
	src, err := p4src.Files.ReadFile("swordbox_steer.json")
	if err != nil {
		return 0, err
	}
	prog, err := p4.Load(maxSize.ReplaceAll(src, fmt.Appendf(nil, `"max_size" : %d`, n)))
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
