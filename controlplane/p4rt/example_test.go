package p4rt_test

import (
	"context"
	"fmt"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/quillon/quillon/controlplane/p4rt"
	"github.com/quillon/quillon/controlplane/p4rt/native"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/police"
)

// A graph as device 1 of a server, and a client that asks what the device has.
func Example() {
	spec, err := graph.ParseSpec([]byte("apps: {limit: {kind: police, args: {cir: 1Gbit}}}"))
	if err != nil {
		fmt.Println(err)
		return
	}
	inst, err := graph.New(graph.Config{Spec: spec, Kinds: []graph.Kind{*police.Kind()}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer inst.Close()
	dev, err := native.New(inst)
	if err != nil {
		fmt.Println(err)
		return
	}
	s := p4rt.New(p4rt.Config{})
	defer s.Close()
	if err := s.Add(1, dev); err != nil {
		fmt.Println(err)
		return
	}
	// Plain text, for this machine alone: whoever connects may do everything.
	l, err := p4rt.Listen(s, p4rt.ListenConfig{Address: "127.0.0.1:0", Insecure: true})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer l.Close()
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer conn.Close()
	r, err := p4v1.NewP4RuntimeClient(conn).GetForwardingPipelineConfig(context.Background(), &p4v1.GetForwardingPipelineConfigRequest{DeviceId: 1})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, c := range r.Config.P4Info.Counters {
		fmt.Println(c.Preamble.Name)
	}
	// Output:
	// limit.frames
	// limit.reasons
	// limit.counters
}
