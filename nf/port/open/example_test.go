package open_test

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/firewall"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/port/open"
)

// A firewall between two interfaces, for a minute or until an interrupt; examples/inline has a function of its own.
func Example() {
	spec, err := graph.ParseSpec([]byte(`
ports: {a: {kind: afxdp, args: {dev: eth1, pair: b}}, b: {kind: afxdp, args: {dev: eth2, pair: a}}}
apps: {fw: {kind: firewall}}
links: [a.out -> fw.a, fw.b -> b.in, b.out -> fw.b, fw.a -> a.in]
`))
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	err = open.Run(ctx, graph.Config{Spec: spec, Kinds: []graph.Kind{*firewall.Kind()}}, open.Config{Clock: clock.NewWall()}, func(r *open.Running) {
		for _, b := range r.Ports.Bound() {
			fmt.Print(b.Brief())
		}
	})
	if err != nil {
		fmt.Println(err)
	}
}
