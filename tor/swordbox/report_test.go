package swordbox

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/tor/conn"
)

// A report says what the box knows, of as many connections as there are, at
// most maxReported.
func TestReport(t *testing.T) {
	const va = 0x7000
	r := newRig(t, graph.Args{"conns": "1100"})
	a, b := r.join(), r.join()
	b.learn(a, va, 7)
	b.cas(va, 7, 8)
	v := r.App().(graph.Reporter).Report().(Report)
	if v.Mode != "replace" || v.State != nil || len(v.Servers) != 1 {
		t.Fatalf("%+v", v)
	}
	if why, known := v.Inherited(); why != "" || !known {
		t.Error("without a state there is nothing to inherit")
	}
	s := v.Servers[0]
	if s.Addr != r.server.String() || s.Conns != 2 || len(s.Connections) != 2 || s.Words == 0 || s.Known != 1 || s.Open != 1 || s.Shared != 1 {
		t.Fatalf("%+v", s)
	}
	for i, p := range []*party{a, b} {
		c := s.Connections[i]
		if !strings.HasPrefix(c.Client, p.ip.String()+"/0x") || !c.Followed || c.Ended || c.NextClient != p.psn || c.NextServer != p.spsn+uint32(c.Guests) {
			t.Errorf("%+v, not the connection of %+v", c, p)
		}
		if i == 0 && (!c.Shared || c.Guests != 1 || c.Open != 0) || i == 1 && (c.Shared || c.Guests != 0 || c.Open != 1) {
			t.Errorf("%+v", c)
		}
	}
	if v.Memory.Total != v.Memory.Conns+v.Memory.Operations+v.Memory.Words || v.Memory.Operations == 0 {
		t.Errorf("%+v", v.Memory)
	}
	if _, err := json.Marshal(v); err != nil {
		t.Error(err)
	}
	n := (*r.App().(*Box).nodes.Load())[0]
	for i := range uint32(maxReported) {
		x := conn.StaticConn{Client: a.ip, Server: r.server, ClientQPN: 0x10000 + i, ServerQPN: 0x20000 + i}
		if _, err := n.conns.AddStatic(r.Clock.Now(), x); err != nil {
			t.Fatal(err)
		}
	}
	if s := r.App().(graph.Reporter).Report().(Report).Servers[0]; s.Conns != maxReported+2 || len(s.Connections) != maxReported {
		t.Errorf("%d connections, %d shown", s.Conns, len(s.Connections))
	}
}
