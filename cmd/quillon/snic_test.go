package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quillon/quillon/internal/admin"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/snic"
)

// posed is a board with made-up contents.
type posed struct{}

func (posed) Push(c *graph.Ctx, _ int, b *packet.Batch) {
	for _, x := range b.Bufs() {
		c.Emit(0, x)
	}
}

func (posed) Report() any {
	return snic.View{
		Regions: []snic.RegionView{
			{Region: 0, State: "running", Chain: "fw -> nat", Cause: "overload", SinceSec: 1.5, Load: .75, Inside: 3, Waiting: 2,
				Credits: []snic.CreditView{{Task: "fw", Free: 5, Of: 8}, {Task: "nat", Free: 8, Of: 8}}, Accessed: .5, Running: .25, Loading: .125},
			{Region: 1, State: "free", SinceSec: 90},
		},
		Tasks: []snic.TaskView{
			{Task: "fw", Kind: "firewall", Throughput: 40e9, Instances: 1, Load: .75, Fullest: .5, OneFlow: 1.25},
			{Task: "nat", Kind: "napt", Fault: "read at 0x40: nothing is reserved there", Memory: &snic.TaskMemory{Declared: 1 << 20, Reserved: 1 << 16, Resident: 8192, Swapped: 4096, Touched: 3, Out: 2, In: 1, Refused: 4}},
		},
		DAGs: []snic.DAGView{{UID: 7, Tenant: "alice", Run: "fw -> nat", Stages: [][]string{{"fw"}, {"nat"}}, Through: []string{"fw -> nat"}, Aside: []string{"fw -> (count) -> nat"}, AsidePart: .25, State: "ready", Packets: 100, Bytes: 6400, Throttled: 5, Rate: 2e9}},
		Tenants: []snic.TenantView{
			{Tenant: "alice", Weight: 2, Share: .3, Grant: .9, Limit: 3e9, Bottleneck: "fw", Inside: 3, Stored: 192, Memory: &snic.TenantMemory{Held: 12288, Share: 1 << 16}},
			{Tenant: "bob", Weight: 1, Grant: 1},
		},
		Events: []snic.EventView{{AgoSec: 1.5, Text: "run region 0: fw -> nat"}},
		Board: snic.BoardView{
			RegionTotals: snic.RegionTotals{Inside: 3, Stored: 192, Store: 1 << 20, Copied: 6, InLine: 7, Loaded: 1, Revived: 2, Switched: 3, ScaledOut: 4, ScaledIn: 5, Moved: 8, OneFlow: 1, Busy: .5},
			Bulk:         90, Full: 10, FlowHits: 95, FlowScans: 5, EpochUs: 20, MonitorMs: 5, Waiting: 1,
			Memory: &snic.BoardMemory{Bytes: 1 << 24, Page: 4096, Free: 1 << 23, Lent: 8192, Room: 1 << 22, Used: 1 << 15, Process: 100 << 20, Shared: snic.TenantMemory{Held: 4096}},
		},
		Pool: &snic.PoolView{Board: 1, Sent: 2, Answered: 3, Served: 4, Failed: 5,
			Peers:  []snic.PeerView{{Board: 2, Same: true, Address: "02:00:00:00:00:02", Free: 1, DAGs: 2, Load: 1e9}},
			Away:   []snic.AwayView{{UID: 7, Run: "fw -> nat", Peer: 2, State: "there"}},
			Guests: []snic.AwayView{{UID: 8, Run: "fw", Peer: 2, State: "runs", Copied: 1.5}},
			Stays:  []snic.AwayView{{UID: 9, Run: "nat", Peer: -1, State: "it is too much"}}},
	}
}

// TestSNICViews: what each command shows of a board, as text and as JSON, is as in testdata/snic.
func TestSNICViews(t *testing.T) {
	x := graphtest.New(t, graph.Kind{Name: snicKind, In: []string{"a"}, Out: []string{"b"},
		New: func(graph.Env, graph.Args) (graph.App, error) { return posed{}, nil }}, nil)
	s, err := admin.Listen(context.Background(), admin.Config{Name: "test", Path: filepath.Join(t.TempDir(), "test.sock"), Instance: x.Inst})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, c := range []string{"regions", "regions --events", "tasks", "tenants", "dag list", "pool"} {
		name := strings.NewReplacer(" --", "-", " ", "-").Replace(c)
		for ending, more := range map[string][]string{".txt": nil, ".json": {"--json"}} {
			var got bytes.Buffer
			root := newRootCmd()
			root.SetOut(&got)
			root.SetArgs(append(append([]string{"snic"}, strings.Fields(c)...), append(more, "--control", s.Path())...))
			if err := root.Execute(); err != nil {
				t.Fatalf("%s: %v", c, err)
			}
			file := filepath.Join("testdata", "snic", name+ending)
			want, err := os.ReadFile(file)
			if err != nil {
				t.Error(err)
			}
			if d := cmp.Diff(string(want), got.String()); d != "" {
				t.Errorf("%s (-want +got):\n%s", file, d)
			}
		}
	}
}
