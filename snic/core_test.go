package snic

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/firewall"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/napt"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/vxlan"
)

// coreTenants are those of quillon bench two-board.
const coreTenants = 16

// coreTasks are what the boards of quillon bench two-board run: tasks of the worker that they are at home at, and in which order.
var coreTasks = []struct{ name, tasks, run string }{
	{"nothing", "  t%d: {kind: nothing}\n", "t%d"},
	{"firewall", coreFirewall, "fw%d"},
	{"state", coreState, "fw%d -> nat%[1]d"},
	{"chain", coreState + `  vx%[1]d: {kind: vxlan, args: {vni: "42", local: 192.0.2.1, local-mac: "02:00:00:00:00:01", remote: 192.0.2.2, remote-mac: "02:00:00:00:00:02"}}` + "\n", "fw%d -> nat%[1]d -> vx%[1]d"},
}

const coreFirewall = `  fw%[1]d: {kind: firewall, args: {rules: "allow+in:a"}}
`

const coreState = coreFirewall + `  nat%[1]d: {kind: napt, args: {public: 198.51.100.1}}
`

// coreDeployment has tenants that all have the same tasks; apart: the tasks of each worker's DAGs are others, and there is one region a worker, so that
// frames of a DAG run at its home alone.
func coreDeployment(workers, task int, apart bool) string {
	var d strings.Builder
	sets, regions := 1, max(4, workers)
	if apart {
		sets, regions = workers, workers
	}
	fmt.Fprintf(&d, "regions: {count: %d, area: 4}\ntasks:\n", regions)
	for i := range sets {
		fmt.Fprintf(&d, coreTasks[task].tasks, i)
	}
	d.WriteString("tenants:\n")
	for i := range coreTenants {
		fmt.Fprintf(&d, "  u%d: {}\n", i)
	}
	d.WriteString("dags:\n")
	for i := range coreTenants {
		fmt.Fprintf(&d, "  - {uid: %d, tenant: u%d, run: %s}\n", i+1, i, fmt.Sprintf(coreTasks[task].run, i%sets))
	}
	d.WriteString("rules:\n")
	for i := range coreTenants {
		fmt.Fprintf(&d, "  - {match: 'src:10.%d.0.0/16', dag: %d}\n", i+1, i+1)
	}
	return d.String()
}

func coreKinds() []graph.Kind {
	tasks := []graph.Kind{*firewall.Kind(), *napt.Kind(), *vxlan.Kind()}
	return append(tasks, *Kind(append(declared(), tasks...)...), idle())
}

// coreFrame is a datagram of 60 bytes of a tenant.
func coreFrame(tenant, port int) []byte {
	const l3, l4, n = 14, 14 + 20, 60
	b := make([]byte, n)
	hdr.Ethernet(b).Encode(&hdr.EthernetFields{Dst: [6]byte{2, 0, 0, 0, 0, 2}, Src: [6]byte{2, 0, 0, 0, 0, 1}, EtherType: hdr.EtherIPv4})
	hdr.IPv4(b[l3:]).Encode(&hdr.IPv4Fields{TotalLen: n - l3, DF: true, TTL: 64, Protocol: 17,
		Src: netip.AddrFrom4([4]byte{10, byte(tenant + 1), 0, 1}), Dst: netip.AddrFrom4([4]byte{203, 0, 113, 7})})
	hdr.UDP(b[l4:]).Encode(&hdr.UDPFields{SrcPort: uint16(port), DstPort: 80, Len: n - l4})
	return b
}

// coreSource yields frames of its flows, numbered, while fewer than a window are under way of their tenant; and takes what comes out by any worker.
type coreSource struct {
	tap
	all   *coreFlows
	first int // of its flows
	next  int
}

// coreFlows are the flows of all sources.
type coreFlows struct {
	frames       [][]byte
	sent, last   []atomic.Uint64 // by flow
	under        [coreTenants]atomic.Int64
	window       int64
	out, wrongly atomic.Uint64
}

func (s *coreSource) Rx(b *packet.Batch) (int, error) {
	if s.left == 0 {
		return 0, io.EOF
	}
	n := 0
	for ; s.left > 0 && n < 32; n++ {
		f := s.first + s.next%coreEach
		if u := &s.all.under[f%coreTenants]; u.Add(1) > s.all.window {
			u.Add(-1)
			break
		}
		x := s.pool.Get()
		if x == nil {
			s.all.under[f%coreTenants].Add(-1)
			break
		}
		x.SetBytes(s.all.frames[f])
		binary.BigEndian.PutUint64(x.Bytes()[52:], s.all.sent[f].Add(1))
		b.Add(x)
		s.left--
		s.next++
	}
	return n, nil
}

func (s *coreSource) Tx(b *packet.Batch) (int, error) {
	n := b.Len()
	for _, x := range b.Bufs() {
		y := x.Bytes()[x.Len()-18:] // whatever is in front
		f := int(binary.BigEndian.Uint32(y))
		if seq := binary.BigEndian.Uint64(y[10:]); s.all.last[f].Swap(seq) >= seq {
			s.all.wrongly.Add(1)
		}
		s.all.out.Add(1)
		s.all.under[f%coreTenants].Add(-1)
	}
	b.PutAll()
	return n, nil
}

// coreEach is how many flows come in by a worker.
const coreEach = 48

// TestManyWorkers: a live board of more workers than the machine has processors, whose frames run where they came in, or are handed to another worker: none is
// lost, none is there twice, and none overtakes another one of its flow.
func TestManyWorkers(t *testing.T) {
	const each = 3000 // frames of a worker
	for _, workers := range []int{4, 8, 16} {
		for task, what := range coreTasks {
			for _, apart := range []bool{false, true} {
				if what.name == "firewall" || testing.Short() && what.name != "state" {
					continue
				}
				t.Run(fmt.Sprintf("%d/%s/apart=%v", workers, what.name, apart), func(t *testing.T) { manyWorkers(t, workers, task, apart, each) })
			}
		}
	}
}

func manyWorkers(t *testing.T, workers, task int, apart bool, each int) {
	flows := &coreFlows{sent: make([]atomic.Uint64, workers*coreEach), last: make([]atomic.Uint64, workers*coreEach), window: int64(512 * workers / coreTenants)}
	for f := range workers * coreEach {
		frame := coreFrame(f%coreTenants, 2000+f)
		binary.BigEndian.PutUint32(frame[42:], uint32(f))
		flows.frames = append(flows.frames, frame)
	}
	spec := &graph.Spec{
		Ports: map[string]graph.PortSpec{"x": {Kind: "test"}, "y": {Kind: "test"}},
		Apps: map[string]graph.AppSpec{"nic": {Kind: "snic", Args: graph.Args{"deployment": coreDeployment(workers, task, apart), "pr-rate": "1000G", "port-rate": "10000G",
			"packets": "65536", "store": "64M", "slack": "1s"}}}, // a worker may be away for long
		Links: []string{"x.out -> nic.p0", "nic.p1 -> y.in", "y.out -> nic.p1", "nic.p0 -> x.in"},
	}
	ports := map[string][]port.Port{}
	var pools []*packet.Pool
	for w := range workers {
		pool, err := packet.NewPool(4096, 512, nil)
		if err != nil {
			t.Fatal(err)
		}
		pools = append(pools, pool)
		ports["x"] = append(ports["x"], &coreSource{tap: tap{pool: pool, left: each}, all: flows, first: w * coreEach})
		ports["y"] = append(ports["y"], &coreSource{tap: tap{pool: pool}, all: flows})
	}
	inst, err := graph.New(graph.Config{Spec: spec, Kinds: coreKinds(), Ports: ports, Clock: clock.NewWall(), Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := inst.Run(ctx); err != nil {
		t.Error(err)
	}
	if err := inst.Conservation(); err != nil {
		t.Error(err)
	}
	handed := uint64(0)
	var why []string
	for _, c := range inst.Counters() {
		if c.Name == "handed" {
			handed += c.Value
		}
		if c.Value > 0 && c.Group == "reason" {
			why = append(why, fmt.Sprint(c.Node, " ", c.Name, " ", c.Value))
		}
	}
	if sent := uint64(workers * each); flows.out.Load() != sent || flows.wrongly.Load() > 0 {
		t.Errorf("of %d frames %d came out, %d behind a later one: %v", sent, flows.out.Load(), flows.wrongly.Load(), why)
	}
	if apart != (handed > 0) {
		t.Errorf("%d frames were handed over", handed)
	}
	if err := inst.Close(); err != nil {
		t.Error(err)
	}
	for w, pool := range pools {
		if n := pool.InUse(); n != 0 {
			t.Errorf("worker %d: %d buffers are still in use", w, n)
		}
	}
}
