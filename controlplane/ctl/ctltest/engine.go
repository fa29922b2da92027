package ctltest

import (
	"net"
	"testing"

	"google.golang.org/grpc"

	"github.com/quillon/quillon/controlplane/p4rt"
	"github.com/quillon/quillon/controlplane/p4rt/engine"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/p4"
)

// Engine starts quillon's own server, in plain text on loopback, and returns its address. Device 1 is a P4
// engine without a program and without ports. The server ends with the test.
func Engine(t testing.TB) string {
	t.Helper()
	inst, err := graph.New(graph.Config{Spec: &graph.Spec{Apps: map[string]graph.AppSpec{"sw": {Kind: "p4"}}}, Kinds: []graph.Kind{*p4.Kind()}})
	if err != nil {
		t.Fatal(err)
	}
	punts, err := engine.ListenPunts(inst)
	if err != nil {
		t.Fatal(err)
	}
	dev, err := engine.New(engine.Config{Instance: inst, App: "sw", Punts: punts})
	if err != nil {
		t.Fatal(err)
	}
	server := p4rt.New(p4rt.Config{Clock: clock.NewWall()})
	if err := server.Add(1, dev); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer(p4rt.Options(nil)...)
	server.Register(g)
	done := make(chan struct{})
	go func() { _ = g.Serve(l); close(done) }()
	t.Cleanup(func() {
		g.Stop()
		<-done
		server.Close()
		punts.Close()
		_ = inst.Close()
	})
	return l.Addr().String()
}
