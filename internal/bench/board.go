package bench

import (
	"fmt"
	"strings"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/packet"
)

// boardBenchmarks are a board on two workers, each of which gets half of the flows of all tenants; beside it, one worker
// gets all. What the machine itself gains by two processors is that of the function that does nothing.
func boardBenchmarks() []Benchmark {
	const about = "two workers with half of the flows each; in the place of pass-through: one worker with all"
	board := func(tasks, run string) (string, graph.Args) {
		return "snic", graph.Args{"deployment": snicDeployment(tasks, run), "pr-rate": "1000G", "port-rate": "10000G"}
	}
	of := func(name, what string, kind string, args graph.Args) Benchmark {
		return Benchmark{name, fmt.Sprintf("%s: %s", what, about), func(clk clock.Clock) (*contest, error) { return boardContest(clk, kind, args) }}
	}
	kind, plain := board("  t: {kind: wire}\n", "t")
	_, state := board(snicState, "fw -> nat")
	_, chain := board(snicChain, "fw -> nat -> vx")
	return []Benchmark{
		of("two-board-wire", "a function that does nothing, the frames of two-board", "wire", nil),
		of("two-board", "a SuperNIC's scheduling, a task that does nothing", kind, plain),
		of("two-board-state", "a SuperNIC: firewall -> NAPT", kind, state),
		of("two-board-chain", "a SuperNIC: firewall -> NAPT -> VXLAN", kind, chain),
	}
}

// boardBatches is how many batches a worker gets, again and again: all of its flows come once, and
// the recording stays in the cache, since both processors together read no more from memory than one alone.
const boardBatches = snicTenants * snicFlows / packet.MaxBatch

// boardContest plays the load of both workers, and all of it on one, as it comes when a core is busy.
func boardContest(clk clock.Clock, kind string, args graph.Args) (*contest, error) {
	mixes := [2]*mix{boardMix(boardBatches, 0), boardMix(boardBatches, snicFlows)}
	both := boardMix(boardBatches, 0, snicFlows)
	for _, m := range []*mix{mixes[0], mixes[1], both} {
		m.lap = clock.Duration(len(m.batches) * snicEvery)
	}
	return divided(clk, kind, args, mixes, both, false)
}

// snicDeployment has snicTenants with a DAG of their own each.
func snicDeployment(tasks, run string) string {
	var d strings.Builder
	fmt.Fprintf(&d, "regions: {count: 4, area: 4}\ntasks:\n%stenants:\n", tasks)
	for i := range snicTenants {
		fmt.Fprintf(&d, "  u%d: {}\n", i)
	}
	d.WriteString("dags:\n")
	for i := range snicTenants {
		fmt.Fprintf(&d, "  - {uid: %d, tenant: u%d, run: %s}\n", i+1, i, run)
	}
	d.WriteString("rules:\n")
	for i := range snicTenants {
		fmt.Fprintf(&d, "  - {match: 'src:10.%d.0.0/16', dag: %d}\n", i+1, i+1)
	}
	return d.String()
}
