// Command inline runs a network function of its own between two interfaces, or over a capture:
//
//	inline eth1 eth2
//	inline in.pcap out.pcap
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/counter"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port/open"
	"github.com/quillon/quillon/nf/replay"
)

var short = graph.Kind{
	Name: "short", Summary: "drops long frames", In: []string{"a", "b"}, Out: []string{"a", "b"},
	Reasons: []counter.Def{{Name: "too-long", Help: "dropped: longer than 1000 bytes"}},
	New:     func(graph.Env, graph.Args) (graph.App, error) { return app{}, nil },
}

type app struct{}

func (app) Push(c *graph.Ctx, in int, b *packet.Batch) {
	for _, f := range b.Bufs() {
		if f.Len() > 1000 {
			c.Drop(f, 0)
		} else {
			c.Emit(1-in, f) // what came by a leaves by b
		}
	}
}

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: inline INTERFACE INTERFACE, or inline IN.pcap OUT.pcap")
	}
	spec, err := graph.ParseSpec(fmt.Appendf(nil, `
ports: {a: {kind: afxdp, args: {dev: %q, pair: b}}, b: {kind: afxdp, args: {dev: %q, pair: a}}}
apps: {short: {kind: short}}
links: [a.out -> short.a, short.b -> b.in, b.out -> short.b, short.a -> a.in]`, os.Args[1], os.Args[2]))
	if kinds := []graph.Kind{short}; err == nil && strings.HasSuffix(os.Args[1], ".pcap") {
		_, err = replay.RunFiles(replay.Config{Spec: spec, Kinds: kinds}, replay.Files{In: os.Args[1:2], Out: os.Args[2]})
	} else if err == nil {
		ctx, _ := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		err = open.Run(ctx, graph.Config{Spec: spec, Kinds: kinds}, open.Config{Clock: clock.NewWall()}, nil)
	}
	if err != nil {
		log.Fatal(err)
	}
}
