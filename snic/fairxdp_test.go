package snic_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quillon/quillon/internal/rack/blast"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/port/open"
	"github.com/quillon/quillon/snic"
)

// turner takes real time for each frame, and counts them by their tenant.
type turner struct {
	loops int
	sum   uint64
	done  *[2]atomic.Uint64
}

func (s *turner) Push(c *graph.Ctx, in int, b *packet.Batch) {
	var n [2]uint64
	for _, x := range b.Bufs() {
		s.sum = turn(s.sum, s.loops)
		n[x.Bytes()[29]-1]++
		c.Emit(1-in, x)
	}
	for i := range n {
		s.done[i].Add(n[i])
	}
}

// turn keeps a processor busy.
func turn(x uint64, loops int) uint64 {
	for range loops {
		x = x*6364136223846793005 + 1442695040888963407
	}
	return x
}

// loopsOf is how many loops of turn last so long here.
func loopsOf(each time.Duration) int {
	const loops = 1_000_000
	wall, least := clock.NewWall(), math.Inf(1)
	for i := range 9 {
		start := wall.Now()
		sink = turn(uint64(i), loops)
		least = min(least, float64(wall.Now().Sub(start)))
	}
	return max(1, int(float64(each)/least*loops))
}

var sink uint64

// floodFrame is a frame of tenant 1 or 2.
func floodFrame(src byte, flow int) []byte {
	b := make([]byte, 60)
	copy(b, []byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0})
	b[14], b[17], b[22], b[23] = 0x45, 46, 64, 17
	copy(b[26:], []byte{10, 0, 0, src, 10, 0, 1, 1})
	binary.BigEndian.PutUint16(b[34:], uint16(1000+flow))
	b[37], b[39] = 80, 26
	return b
}

// overXDP has a board run between two veths for some time, to which a tenant's frames and those of a flood come as fast as a processor can send
// them, of every of frames some of the tenant's. It returns how many frames a second of both were sent, and came out.
func overXDP(b *testing.B, fair, ring string, each time.Duration, flows, some, of int, during time.Duration) (sent, out [2]float64) {
	var list []blast.Frame
	for i := range max(of, 2*flows) {
		if i*some/of != (i+1)*some/of {
			list = append(list, blast.Frame{Bytes: floodFrame(1, i%4)})
		} else {
			list = append(list, blast.Frame{Bytes: floodFrame(2, i%flows)})
		}
	}
	tenant := 0
	for _, f := range list {
		if f.Bytes[29] == 1 {
			tenant++
		}
	}
	r, err := blast.New(list, 0)
	if errors.Is(err, port.ErrNotSupported) {
		b.Skip(err)
	} else if err != nil {
		b.Fatal(err)
	}
	defer r.Close()
	r.Burst = 1 << 19
	var done [2]atomic.Uint64
	task := &turner{loops: loopsOf(each), done: &done}
	two := []string{"a", "b"}
	kinds := []graph.Kind{{}, {Name: "burn", In: two, Out: two, New: func(graph.Env, graph.Args) (graph.App, error) { return task, nil }}}
	kinds[0] = *snic.Kind(kinds[1:]...)
	spec := &graph.Spec{
		Ports: map[string]graph.PortSpec{
			"pa": {Kind: open.AFXDP, Args: graph.Args{"dev": blast.A, "pair": "pb", "stale": "1s", "cpu": "1", "ring": ring}},
			"pb": {Kind: open.AFXDP, Args: graph.Args{"dev": blast.B, "pair": "pa", "stale": "1s", "cpu": "1", "ring": ring}},
		},
		Apps: map[string]graph.AppSpec{"nic": {Kind: "snic", Args: graph.Args{"fair": fair, "pr-rate": "1000G", "deployment": `
regions: {count: 1, area: 1}
tasks: {a: {kind: burn, reads: [ports]}}
tenants: {u: {}, v: {}}
dags: [{uid: 1, tenant: u, run: a}, {uid: 2, tenant: v, run: a}]
rules: [{match: "src:10.0.0.1", dag: 1}, {match: "src:10.0.0.2", dag: 2}]
`}}},
		Links: []string{"pa.out -> nic.p0", "nic.p1 -> pb.in", "pb.out -> nic.p1", "nic.p0 -> pa.in"},
	}
	wall := clock.NewWall()
	var x *open.Running
	if err := r.Near.Do(func() (err error) {
		x, err = open.Start(graph.Config{Spec: spec, Kinds: kinds}, open.Config{Filter: port.Filter{All: true}, Clock: wall})
		return err
	}); err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	if !r.Settle(ctx, 100, 3*time.Second) {
		b.Error("nothing arrives")
	}
	time.Sleep(150 * time.Millisecond)
	from, start := r.Sent(), wall.Now()
	was := [2]uint64{done[0].Load(), done[1].Load()}
	time.Sleep(during)
	all, secs := float64(r.Sent()-from), wall.Now().Sub(start).Seconds()
	for i := range out {
		out[i] = float64(done[i].Load()-was[i]) / secs
	}
	sent[0] = all / secs * float64(tenant) / float64(len(list))
	sent[1] = all/secs - sent[0]
	cancel()
	if err := <-ended; err != nil {
		b.Error(err)
	}
	if err := r.Near.Do(x.Stop); err != nil {
		b.Error(err)
	}
	return sent, out
}

// BenchmarkFairXDP prints what a tenant gets of what it asks for beside a flood of 1, 4 and 64 flows over AF_XDP, between two veths, with fairness and
// without, and in brackets the millions of frames a second that come and what comes out, over what comes out of the flood alone. The generator has
// processor 0, the worker processor 1.
func BenchmarkFairXDP(b *testing.B) {
	for _, each := range []time.Duration{50, 200, 1000, 5000, 20_000, 100_000} {
		b.Run(each.String(), func(b *testing.B) {
			alone, can := overXDP(b, "on", "2048", each, 4, 0, 1, 300*time.Millisecond)
			fmt.Printf("%v: the flood alone: %.0f frames a second, %.0f come out\n", each, alone[1], can[1])
			for _, asks := range []float64{.05, .12, .3} {
				var line strings.Builder
				fmt.Fprintf(&line, "%6v asks %2.0f %%:", each, 100*asks)
				for _, fair := range []string{"on", "off"} {
					for _, flows := range []int{1, 4, 64} {
						some, of := 1, int(alone[1]/(asks*can[1]))
						if of < 100 {
							some, of = 10, int(10*alone[1]/(asks*can[1]))
						}
						sent, out := overXDP(b, fair, "2048", each, flows, some, of, 400*time.Millisecond)
						fmt.Fprintf(&line, " %3.0f %% (%.2f %.2f)", 100*out[0]/sent[0], (sent[0]+sent[1])/1e6, (out[0]+out[1])/can[1])
					}
					line.WriteString(" |")
				}
				fmt.Println(line.String())
			}
		})
	}
}
