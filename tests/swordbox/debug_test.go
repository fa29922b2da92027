package swordbox

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/rack/history/fault"
	"github.com/quillon/quillon/rack/locks"
	"github.com/quillon/quillon/rack/rnic"
	"github.com/quillon/quillon/tests/bed"
	tor "github.com/quillon/quillon/tor/swordbox"
)

func must(r []any, err error) []any { return r }

func TestDebug(t *testing.T) {
	d := strings.Split(os.Getenv("DEBUG"), "/")
	if len(d) < 4 {
		t.Skip("")
	}
	args, mix := boxes()[d[0]], mixes()[d[1]]
	seed, _ := strconv.ParseUint(d[3], 10, 64)
	for _, work := range locks.Works() {
		if work.String() != d[2] {
			continue
		}
		var inst *graph.Instance
		tr := bed.Trial{Work: work, Ops: ops(mix), Box: &bed.Box{Kind: *tor.Kind(), Args: args, Closed: true, Clean: d[1] == "handover", Connected: func(i *graph.Instance, _ bed.Connection) { inst = i }}, Faults: mix, ReleaseByCAS: seed&1 != 0, Profile: rnic.Profile(seed >> 1 & 1)}
		bed.Hook = func(b *bed.Bed) {
			if b.Instance() == nil {
				return
			}
			for _, r := range must(b.Instance().Report("box")) {
				j, _ := json.MarshalIndent(r, "", " ")
				fmt.Println(string(j))
			}
			for _, c := range b.Instance().Counters() {
				if c.Value != 0 {
					fmt.Println(c.Node, c.Name, c.Value)
				}
			}
		}
		_ = inst
		tr.Faults.Links = []string{"c0","c1","c2","in","s0","in","s0"}
		sch := fault.Random(seed, tr.Faults)
		fmt.Println(sch)
		r, err := tr.Run(seed, sch)
		fmt.Println(r != nil, err)
	}
}
