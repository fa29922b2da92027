package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strconv"
	"time"

	"github.com/quillon/quillon/internal/bench"
	"github.com/quillon/quillon/internal/registry"
	"github.com/quillon/quillon/nf/port/open"

	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/internal/rack/blast"
	"github.com/quillon/quillon/internal/rack/topo"
	"github.com/quillon/quillon/internal/rack/vpc"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/port"
)

// How long rounds last, how many flows there are, and the wait for a box that
// was changed.
const (
	vpcRound  = 250 * time.Millisecond
	vpcFlows  = 32
	vpcSettle = 5 * time.Second
)

// vpcSizes are the published frames' (figure 5.19).
var vpcSizes = []int{128, 256, 512, 1024}

// vpcSteps are what the boards do, one after the other more. ovs: Open vSwitch can.
var vpcSteps = []struct {
	name  string
	tasks []string // of vpc.Site.Tasks; nil: no board
	ovs   bool
}{
	{"wire only", nil, false},
	{"boards, empty chain", []string{"pass"}, true},
	{"firewall", []string{"fw"}, true},
	{"firewall, NAPT", []string{"fw", "nat"}, true},
	{"firewall, NAPT, AES", []string{"fw", "nat", "aes"}, false},
}

// vpcFigures are a step's, by one of both.
type vpcFigures struct {
	By    string `json:"by"` // quillon or ovs
	Step  string `json:"step"`
	Bytes int    `json:"bytes"` // of a frame
	// Throughput, or round trips from socket to socket.
	Mpps *bench.Spread `json:"mpps,omitempty"`
	Gbps *bench.Spread `json:"gbit_per_s,omitempty"`
	P50  *bench.Spread `json:"p50_us,omitempty"`
	P99  *bench.Spread `json:"p99_us,omitempty"`
	Lost int           `json:"lost,omitempty"` // pings
	// OfWire is the share of the wire's throughput, or how many times its
	// round trip, in the same round; VsOVS the same of Open vSwitch's.
	OfWire *bench.Spread `json:"of_wire,omitempty"`
	VsOVS  *bench.Spread `json:"vs_ovs,omitempty"`
}

// vpcResult is what bench vpc prints.
type vpcResult struct {
	Rounds     int          `json:"rounds"`
	OVS        string       `json:"ovs,omitempty"`     // version and ports
	Skipped    string       `json:"skipped,omitempty"` // why there is no OVS
	Throughput []vpcFigures `json:"throughput"`
	RoundTrips []vpcFigures `json:"round_trips"`
}

// vpcBox is two boards, or what stands in their place.
type vpcBox interface {
	by() string
	can(step int) bool
	// become makes it do a step's work, and wakes it.
	become(step int) error
	// rest makes it use no processor.
	rest() error
	// check says what is wrong when it did not do a step's work.
	check(step int) error
	close()
}

// vpcPlaces are the interfaces, of a namespace: board a's to hosts and wire, and board
// b's.
type vpcPlaces struct {
	space *topo.Space
	dev   [2][2]string
}

// samples are a step's figures, round by round.
type samples map[string][][]float64 // by and step number: a line a round

func vpcKey(by string, step int) string { return fmt.Sprint(by, step) }

// vpcRun measures both in turns.
type vpcRun struct {
	ctx    context.Context
	clk    clock.Clock
	ovs    *vswitch // nil: there is none
	rounds int
}

func measureVPC(ctx context.Context, progress io.Writer, rounds int, ports string) (*vpcResult, error) {
	x := &vpcRun{ctx: ctx, clk: clock.NewWall(), rounds: rounds}
	r := &vpcResult{Rounds: rounds}
	var err error
	if x.ovs, err = findOVS(ports); err != nil {
		r.Skipped = err.Error()
		fmt.Fprintf(progress, "Open vSwitch is skipped: %v\n", err)
	} else {
		r.OVS = x.ovs.version
	}
	for _, size := range vpcSizes {
		fmt.Fprintf(progress, "throughput, %d bytes...\n", size)
		got, err := x.throughput(size)
		if err != nil {
			return nil, err
		}
		got.each(func(f vpcFigures, v [][]float64, of func(by string, step int) *bench.Spread) {
			f.Bytes = size
			f.Mpps = column(v, 0, 1)
			f.Gbps = column(v, 0, float64(size)*8/1e3)
			f.OfWire, f.VsOVS = of("quillon", 0), of("ovs", -1)
			r.Throughput = append(r.Throughput, f)
		})
	}
	if err := processor(-1); err != nil {
		return nil, err
	}
	fmt.Fprintln(progress, "round trips...")
	got, err := x.roundTrips()
	if err != nil {
		return nil, err
	}
	got.each(func(f vpcFigures, v [][]float64, of func(by string, step int) *bench.Spread) {
		f.Bytes = pingBytes
		f.P50, f.P99 = column(v, 0, 1), column(v, 1, 1)
		for _, line := range v {
			f.Lost += int(line[2])
		}
		f.OfWire, f.VsOVS = of("quillon", 0), of("ovs", -1)
		r.RoundTrips = append(r.RoundTrips, f)
	})
	return r, nil
}

// boxes makes both, each in places of its own.
func (x *vpcRun) boxes(at func() (vpcPlaces, error), undo *bench.Undoing) (out []vpcBox, err error) {
	p, err := at()
	if err != nil {
		return nil, err
	}
	b, err := newVPCBoards(p, x.clk)
	if err != nil {
		return nil, err
	}
	out = append(out, b)
	*undo = append(*undo, b.close)
	if x.ovs == nil {
		return out, nil
	}
	if p, err = at(); err != nil {
		return nil, err
	}
	o, err := x.ovs.start(p)
	if err != nil {
		return nil, fmt.Errorf("Open vSwitch: %w; -ovs-ports system may work", err)
	}
	*undo = append(*undo, o.close)
	return append(out, o), o.rest()
}

// turns measures all steps of all boxes in turns.
func (x *vpcRun) turns(bs []vpcBox, before func(n int) (func() error, error), measure func(n int) ([]float64, error)) (samples, error) {
	got := samples{}
	for round := -1; round < x.rounds; round++ { // the first is to warm up
		for n, b := range bs {
			after, err := before(n)
			if err != nil {
				return nil, err
			}
			for step, s := range vpcSteps {
				if !b.can(step) {
					continue
				}
				err := x.ctx.Err()
				if err == nil {
					err = b.become(step)
				}
				var v []float64
				if err == nil {
					v, err = measure(n)
				}
				if err == nil {
					err = b.check(step)
				}
				if err != nil {
					return nil, fmt.Errorf("%s, %s: %w", b.by(), s.name, errors.Join(err, after()))
				}
				if k := vpcKey(b.by(), step); round >= 0 {
					got[k] = append(got[k], v)
				}
			}
			if err := errors.Join(b.rest(), after()); err != nil {
				return nil, err
			}
		}
	}
	return got, nil
}

// throughput is millions of frames of a size a second.
func (x *vpcRun) throughput(size int) (samples, error) {
	var undo bench.Undoing
	defer func() { undo.All() }()
	var ranges []*blast.Range
	bs, err := x.boxes(func() (vpcPlaces, error) {
		g, p, err := vpcRange(size)
		if err == nil {
			ranges = append(ranges, g)
			undo = append(undo, g.Close)
		}
		return p, err
	}, &undo)
	if err != nil {
		return nil, err
	}
	return x.turns(bs, func(n int) (func() error, error) {
		if err := processor(1); err != nil { // the generator takes 0
			return nil, err
		}
		ctx, cancel := context.WithCancel(x.ctx)
		sending := make(chan error, 1)
		go func() { sending <- ranges[n].Run(ctx) }()
		return func() error {
			cancel()
			return <-sending
		}, nil
	}, func(n int) ([]float64, error) {
		g := ranges[n]
		if !g.Settle(x.ctx, 1000, vpcSettle) {
			return nil, errors.New("no frames arrive")
		}
		from, at := g.Arrived(), x.clk.Now()
		time.Sleep(vpcRound)
		return []float64{float64(g.Arrived()-from) * 1e3 / float64(x.clk.Now().Sub(at))}, nil
	})
}

// roundTrips are those of pinger.round.
func (x *vpcRun) roundTrips() (samples, error) {
	var undo bench.Undoing
	defer func() { undo.All() }()
	var pings []*pinger
	bs, err := x.boxes(func() (vpcPlaces, error) {
		p, place, err := newPinger(x.clk)
		if err == nil {
			pings = append(pings, p)
			undo = append(undo, p.close)
		}
		return place, err
	}, &undo)
	if err != nil {
		return nil, err
	}
	return x.turns(bs, func(int) (func() error, error) { return func() error { return nil }, nil }, func(n int) ([]float64, error) { return pings[n].round() })
}

// column is the spread of a figure over the rounds.
func column(v [][]float64, i int, times float64) *bench.Spread {
	var all []float64
	for _, line := range v {
		all = append(all, line[i]*times)
	}
	slices.Sort(all)
	return &bench.Spread{Median: bench.Median(all), Min: all[0], Max: all[len(all)-1]}
}

// each yields the steps of both; of is the ratio to another's first figure in the same
// rounds, nil when there is none; step -1 is the same.
func (s samples) each(f func(f vpcFigures, v [][]float64, of func(by string, step int) *bench.Spread)) {
	for _, by := range []string{"quillon", "ovs"} {
		for i, step := range vpcSteps {
			v := s[vpcKey(by, i)]
			if v == nil {
				continue
			}
			f(vpcFigures{By: by, Step: step.name}, v, func(other string, k int) *bench.Spread {
				if k < 0 {
					k = i
				}
				w := s[vpcKey(other, k)]
				if w == nil || other == by && k == i {
					return nil
				}
				var ratios [][]float64
				for n := range v {
					ratios = append(ratios, []float64{v[n][0] / w[n][0]})
				}
				return column(ratios, 0, 1)
			})
		}
	}
}

func (r *vpcResult) text(w io.Writer) {
	sp := func(s *bench.Spread, format string) string {
		if s == nil {
			return ""
		}
		return fmt.Sprintf(format+" ("+format+"-"+format+")", s.Median, s.Min, s.Max)
	}
	fmt.Fprintln(w, "BYTES\tBY\tSTEP\tMPPS\tGBIT/S\tOF WIRE ONLY\tTIMES OVS")
	for _, f := range r.Throughput {
		fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\t%s\t%s\n", f.Bytes, f.By, f.Step, sp(f.Mpps, "%.3f"), sp(f.Gbps, "%.2f"), sp(f.OfWire, "%.2f"), sp(f.VsOVS, "%.2f"))
	}
	fmt.Fprintln(w)
	fmt.Fprintln(w, "ROUND TRIP\tBY\tSTEP\tP50 US\tP99 US\tLOST\tOF WIRE ONLY\tTIMES OVS")
	for _, f := range r.RoundTrips {
		fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\t%d\t%s\t%s\n", f.Bytes, f.By, f.Step, sp(f.P50, "%.0f"), sp(f.P99, "%.0f"), f.Lost, sp(f.OfWire, "%.2f"), sp(f.VsOVS, "%.2f"))
	}
	fmt.Fprintln(w)
	if r.Skipped != "" {
		fmt.Fprintf(w, "Open vSwitch: skipped: %s\n", r.Skipped)
	} else {
		fmt.Fprintf(w, "%s; no AES: its IPsec is the kernel's, not the userspace datapath's\n", r.OVS)
	}
}

// vpcRange is a generator of the client's datagrams to the server, with room for two
// boards and a wire between them.
func vpcRange(size int) (_ *blast.Range, p vpcPlaces, err error) {
	s := vpc.Sites()
	var frames []blast.Frame
	for i := range vpcFlows {
		b := make([]byte, size)
		const l3, l4 = hdr.EthernetLen, hdr.EthernetLen + hdr.IPv4Len
		hdr.Ethernet(b).Encode(&hdr.EthernetFields{Dst: s[1].MAC, Src: s[0].MAC, EtherType: hdr.EtherIPv4})
		hdr.IPv4(b[l3:]).Encode(&hdr.IPv4Fields{TotalLen: uint16(size - l3), DF: true, TTL: 64, Protocol: hdr.ProtoUDP, Src: s[0].Client, Dst: s[1].Server})
		hdr.UDP(b[l4:]).Encode(&hdr.UDPFields{SrcPort: uint16(40000 + i), DstPort: vpc.Service, Len: uint16(size - l4)})
		frames = append(frames, blast.Frame{Bytes: b})
	}
	r, err := blast.New(frames, 0)
	if err != nil {
		return nil, p, err
	}
	r.Burst = 1 << 20
	p = vpcPlaces{r.Near, [2][2]string{{blast.A, s[0].Inline[1]}, {blast.B, s[1].Inline[1]}}}
	if err := topo.Veth(r.Near, p.dev[0][1], r.Near, p.dev[1][1]); err != nil {
		r.Close()
		return nil, p, err
	}
	return r, p, nil
}

// pinger sends datagrams from a client to an echoing server, in the network of vpc.
type pinger struct {
	net    *vpc.Net
	clk    clock.Clock
	client net.Conn
	server *net.UDPConn
}

// pingBytes is the length of a ping's frame, and pingAgain how long to wait for an answer.
const (
	pingBytes = 128
	pingAgain = 200 * time.Millisecond
)

func newPinger(clk clock.Clock) (_ *pinger, place vpcPlaces, err error) {
	p := &pinger{clk: clk}
	if p.net, err = vpc.New(false); err != nil {
		return nil, place, err
	}
	a, b := &p.net.Sites[0], &p.net.Sites[1]
	to := netip.AddrPortFrom(b.Server, vpc.Service)
	err = b.Hosts.Do(func() (err error) {
		p.server, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(to))
		return err
	})
	if err == nil {
		err = a.Hosts.Do(func() (err error) {
			p.client, err = net.Dial("udp4", to.String())
			return err
		})
	}
	if err != nil {
		p.close()
		return nil, place, err
	}
	go func() {
		buf := make([]byte, 2048)
		for {
			n, from, err := p.server.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			_, _ = p.server.WriteToUDPAddrPort(buf[:n], from)
		}
	}()
	return p, vpcPlaces{p.net.Boards, [2][2]string{a.Inline, b.Inline}}, nil
}

// ping is one round trip; an answer to another ping is not one.
func (p *pinger) ping(number uint64, buf []byte) (clock.Duration, error) {
	at := p.clk.Now()
	binary.BigEndian.PutUint64(buf, number)
	if _, err := p.client.Write(buf); err != nil {
		return 0, err
	}
	if err := p.client.SetReadDeadline(deadline(pingAgain)); err != nil {
		return 0, err
	}
	for {
		n, err := p.client.Read(buf)
		if err != nil {
			return 0, err
		}
		if n >= 8 && binary.BigEndian.Uint64(buf) == number {
			return p.clk.Now().Sub(at), nil
		}
	}
}

// round is the median and the 99th percentile of a round's pings, in microseconds, and
// how many were lost.
func (p *pinger) round() ([]float64, error) {
	buf := make([]byte, pingBytes-hdr.EthernetLen-hdr.IPv4Len-hdr.UDPLen)
	number := uint64(p.clk.Now())
	for try, good := 0, 0; good < 50; try++ {
		number++
		if _, err := p.ping(number, buf); err == nil {
			good++
		} else if try == 100 {
			return nil, fmt.Errorf("no datagram comes back: %w", err)
		}
	}
	var us []float64
	lost := 0
	for start := p.clk.Now(); p.clk.Now().Sub(start) < vpcRound; {
		number++
		d, err := p.ping(number, buf)
		if err != nil {
			lost++
			continue
		}
		us = append(us, float64(d)/1e3)
	}
	if len(us) == 0 {
		return nil, errors.New("no datagram comes back")
	}
	slices.Sort(us)
	return []float64{bench.Median(us), us[len(us)*99/100], float64(lost)}, nil
}

func (p *pinger) close() {
	if p.client != nil {
		p.client.Close()
	}
	if p.server != nil {
		p.server.Close()
	}
	p.net.Close()
}

// vpcBoards is an instance with both boards.
type vpcBoards struct {
	at     vpcPlaces
	dir    string
	run    *open.Running
	undo   bench.Undoing
	opened uint64
}

func newVPCBoards(at vpcPlaces, clk clock.Clock) (_ *vpcBoards, err error) {
	b := &vpcBoards{at: at}
	defer func() {
		if err != nil {
			b.close()
		}
	}()
	if b.dir, err = os.MkdirTemp("", "quillon-bench-"); err != nil {
		return nil, err
	}
	b.undo = append(b.undo, func() { _ = os.RemoveAll(b.dir) })
	if err := os.WriteFile(b.dir+"/keys", []byte(vpc.Keys()), 0o600); err != nil {
		return nil, err
	}
	spec := b.spec(0)
	if err := at.space.Do(func() (err error) {
		b.run, err = open.Start(graph.Config{Spec: spec, Kinds: registry.Kinds()}, open.Config{Filter: port.Filter{All: true}, Clock: clk})
		return err
	}); err != nil {
		return nil, err
	}
	b.undo = append(b.undo, func() { _ = at.space.Do(b.run.Stop) })
	return b, nil
}

func (b *vpcBoards) by() string        { return "quillon" }
func (b *vpcBoards) can(int) bool      { return true }
func (b *vpcBoards) rest() error       { return nil }
func (b *vpcBoards) close()            { b.undo.All(); b.undo = nil }
func (b *vpcBoards) count() (n uint64) { return sumOf(b.run.Graph, "b1/aes", "opened") }

// sumOf is a counter of a node.
func sumOf(inst *graph.Instance, node, name string) (n uint64) {
	for _, c := range inst.Counters() {
		if c.Node == node && c.Name == name {
			n += c.Value
		}
	}
	return n
}

// spec is the graph of a step.
func (b *vpcBoards) spec(step int) *graph.Spec {
	s := &graph.Spec{Ports: map[string]graph.PortSpec{}, Apps: map[string]graph.AppSpec{}}
	sites := vpc.Sites()
	for i := range sites {
		hosts, wire, app := fmt.Sprintf("h%d", i), fmt.Sprintf("w%d", i), fmt.Sprintf("b%d", i)
		s.Ports[hosts] = graph.PortSpec{Kind: open.AFXDP, Args: graph.Args{"dev": b.at.dev[i][0], "pair": wire}}
		s.Ports[wire] = graph.PortSpec{Kind: open.AFXDP, Args: graph.Args{"dev": b.at.dev[i][1], "pair": hosts}}
		kind, args, in, out := "wire", graph.Args{"see": "all"}, "a", "b"
		if tasks := vpcSteps[step].tasks; tasks == nil {
			app = fmt.Sprintf("x%d", i)
		} else {
			kind, args, in, out = "snic", graph.Args{"deployment": vpcDeployment(&sites[i], sites[1-i], b.dir+"/keys", tasks)}, "p0", "p1"
		}
		s.Apps[app] = graph.AppSpec{Kind: kind, Args: args}
		s.Links = append(s.Links, hosts+".out -> "+app+"."+in, app+"."+out+" -> "+wire+".in", wire+".out -> "+app+"."+out, app+"."+in+" -> "+hosts+".in")
	}
	return s
}

// vpcDeployment is a board's, with some of a site's tasks.
func vpcDeployment(s *vpc.Site, t vpc.Site, keys string, tasks []string) string {
	rules := s.Rules()
	if !slices.Contains(tasks, "nat") { // the other site's client is seen as it is
		rules = append(rules, fmt.Sprintf("allow+in:b+src:%v+dst:%v+proto:udp+dport:%d", t.Private, s.Server, vpc.Service))
	}
	all := s.Tasks(keys, rules)
	all["pass"] = "{kind: dummy}"
	text, run := "regions: {count: 1, area: 3}\ntasks:\n", ""
	for i, name := range tasks {
		if i > 0 {
			run += " -> "
		}
		run += name
		text += "  " + name + ": " + all[name] + "\n"
	}
	return text + "tenants: {cloud: {}}\ndags: [{uid: 1, tenant: cloud, run: " + run + "}]\nrules: [{match: all, dag: 1}]\n"
}

func (b *vpcBoards) become(step int) error {
	plan, err := b.run.Graph.Plan(b.spec(step))
	if err != nil {
		return err
	}
	if err := b.run.Graph.Apply(plan); err != nil {
		return err
	}
	b.opened = b.count()
	return b.run.Err()
}

func (b *vpcBoards) check(step int) error {
	if slices.Contains(vpcSteps[step].tasks, "aes") && b.count() == b.opened {
		return errors.New("nothing was encrypted")
	}
	return nil
}

// processor lets the threads that there are run on one processor only, of several, or
// on all (-1).
func processor(number int) error {
	if runtime.NumCPU() < 2 {
		return nil
	}
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return err
	}
	var set unix.CPUSet
	for n := range runtime.NumCPU() {
		if number < 0 || n == number {
			set.Set(n)
		}
	}
	for _, t := range tasks {
		id, err := strconv.Atoi(t.Name())
		if err == nil {
			err = unix.SchedSetaffinity(id, &set)
		}
		if err != nil && !errors.Is(err, unix.ESRCH) { // it has ended
			return err
		}
	}
	return nil
}

func deadline(d time.Duration) time.Time {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	at, _ := ctx.Deadline()
	return at
}
