package swordbox

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/hdr"
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

// 512 connections with 1,024 operations under way each take no more than 64 MiB,
// and one acknowledgement for them becomes one for each client.
func TestManyUnderWay(t *testing.T) {
	const clients, each = 1 + 512, 1024
	r := newRig(t, graph.Args{"conns": "514", "window": "1024", "words": "65536", "hold": "1024", "track": "10000+10000", "idle": "1h", "alive": "1h", "giveup": "1h"})
	all := make([]*party, clients)
	for i := range all {
		all[i] = r.join()
	}
	l, guests := all[0], all[1:]
	for range 32 { // the server takes its time: nothing is sent again meanwhile
		l.write(lowest, 1)
		r.Clock.Advance(20 * time.Millisecond)
		l.ack()
	}
	answer := func(n int) graphtest.Result {
		l.spsn += uint32(n)
		l.smsn += uint32(n)
		return r.Push("b", l.response(hdr.Acknowledge, l.spsn-1, aeth(hdr.SynACK, l.smsn), nil))
	}
	batch := make([][]byte, 0, each)
	for range 2 {
		for _, c := range guests {
			batch = batch[:0]
			for range each {
				batch = append(batch, c.made(hdr.WriteOnly, c.psn, reth(0x10000, testRKey, 8), little(1)))
				c.psn++
			}
			if got := r.Push("a", batch...); len(got.Out["b"]) != each {
				t.Fatalf("%d of %d went on: %v", len(got.Out["b"]), each, r.Inst.Held())
			}
		}
		if open := r.App().(graph.Reporter).Report().(Report).Servers[0].Open; open != each*len(guests) {
			t.Fatalf("%d are under way, want %d", open, each*len(guests))
		}
		if got := answer(each * len(guests)); len(got.Out["a"]) != len(guests) {
			t.Fatalf("%d clients got an answer", len(got.Out["a"]))
		}
	}
	if m := r.App().(graph.Reporter).Report().(Report).Memory.Total; m > 64<<20 {
		t.Errorf("%d bytes", m)
	} else {
		t.Logf("%.1f MiB", float64(m)/(1<<20))
	}
}
