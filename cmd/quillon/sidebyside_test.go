package main

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/effect"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/snic"
)

// A function that runs on a board beside others, on a copy of the frame, has the same effects as when they
// run one after the other: on the bytes, the drops, the answers and the frames that it holds.
func TestSideBySide(t *testing.T) {
	args := tried(t)
	beside := 0
	for _, k := range kinds() {
		if k.Effects == nil {
			continue
		}
		for i, a := range args[k.Name] {
			e := k.Effects(a)
			t.Run(fmt.Sprint(k.Name, i), func(t *testing.T) { beside += sideBySide(t, k.Name, a, &e) })
		}
	}
	if beside < 10_000 {
		t.Errorf("%d times a frame ran on copies", beside)
	}
}

// sideBySide returns how often frames ran on copies.
func sideBySide(t *testing.T, kind string, args graph.Args, e *effect.Effects) int {
	var quoted []string
	for _, name := range slices.Sorted(maps.Keys(args)) {
		quoted = append(quoted, fmt.Sprintf("%s: %q", name, args[name]))
	}
	looks := "none"
	for f := effect.Ethernet; f <= effect.Payload; f <<= 1 {
		if e.Writes&(f|effect.Length) == 0 {
			looks = f.String() // the last field that the function does not write
		}
	}
	text := fmt.Sprintf(`
regions: {count: 2, area: 3}
tasks:
  first: {kind: dummy}
  it: {kind: %s, args: {%s}}
  looks: {kind: dummy, reads: [%s]}
tenants: {u: {}}
dags: [{uid: 1, tenant: u, run: first -> it -> looks}]
rules: [{match: all, dag: 1}]
`, kind, strings.Join(quoted, ", "), looks)
	var boards [2]*graphtest.Test
	for i, parallel := range []string{"off", "on"} {
		k := kinds()
		at := slices.IndexFunc(k, func(k graph.Kind) bool { return k.Name == snicKind })
		k[0], k[at] = k[at], k[0]
		boards[i] = graphtest.NewOuter(t, k, graph.Args{"deployment": text, "parallel": parallel, "fair": "off", "epoch": "1ms"})
		boards[i].Advance(20 * time.Millisecond)
	}
	m := maker{rand.New(rand.NewPCG(uint64(len(kind)), uint64(len(args)))), e.Answers && e.Writes&effect.Length != 0, new(uint16)}
	var past [][]byte
	same := func(what string, frame []byte, off, on graphtest.Result) {
		t.Helper()
		for _, p := range []string{"p0", "p1"} {
			if !slices.EqualFunc(off.Out[p], on.Out[p], func(a, b graphtest.Frame) bool {
				return bytes.Equal(a.Bytes, b.Bytes) && a.Verdict == b.Verdict && a.Reason == b.Reason
			}) {
				t.Fatalf("%s: by %s leaves, side by side,\n%v\nand one after the other\n%v\nof %x", what, p, on.Out[p], off.Out[p], frame)
			}
			for _, f := range off.Out[p] {
				past = append(past, f.Bytes)
			}
		}
		if !slices.EqualFunc(off.Dropped, on.Dropped, func(a, b graphtest.Frame) bool { return a.Reason == b.Reason }) {
			t.Fatalf("%s: dropped are, side by side,\n%v\nand one after the other\n%v\nof %x", what, on.Dropped, off.Dropped, frame)
		}
	}
	for i := range 400 {
		if i%8 == 0 {
			wait := time.Duration(m.IntN(2_000_000))
			same("later", nil, boards[0].Advance(wait), boards[1].Advance(wait))
		}
		side := m.IntN(2)
		var frame []byte
		if len(past) > 0 && m.IntN(3) == 0 {
			frame = m.response(past[len(past)-1-m.IntN(min(len(past), 40))])
		}
		if frame == nil {
			frame = m.frame(side)
		}
		p := fmt.Sprint("p", side)
		same(fmt.Sprint("frame ", i), frame, boards[0].Push(p, slices.Clone(frame)), boards[1].Push(p, slices.Clone(frame)))
	}
	v, err := boards[1].Inst.Report(graphtest.App)
	if err != nil {
		t.Fatal(err)
	}
	return int(v[0].(snic.View).Board.Copied)
}
