package native_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/quillon/quillon/controlplane/p4info"
	"github.com/quillon/quillon/controlplane/p4rt"
	"github.com/quillon/quillon/controlplane/p4rt/native"
	rack "github.com/quillon/quillon/internal/rack/clover"
	"github.com/quillon/quillon/internal/rack/host"
	"github.com/quillon/quillon/internal/rack/ycsb"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/port/mem"
	"github.com/quillon/quillon/tor/clover"
	"github.com/quillon/quillon/tor/swordbox"
)

// world is a Clover store whose memory node is behind both apps, under load in
// virtual time, and a controller.
type world struct {
	t      *testing.T
	inst   *graph.Instance
	store  *rack.Cluster
	client p4v1.P4RuntimeClient
	info   *p4info.Info
	id     *p4v1.Uint128
	server netip.Addr
}

const keys = 64

func newWorld(t *testing.T, addr func(n byte) netip.Addr) *world {
	t.Helper()
	clk := clock.NewManual(1)
	const depth = 1024
	pool, err := packet.NewPool(8*depth, 2048, nil)
	if err != nil {
		t.Fatal(err)
	}
	m0, m1 := mem.NewWire("m0", "m1", pool, depth, clk)
	n0, n1 := mem.NewWire("n0", "n1", pool, depth, clk)
	bridged := []port.Port{m0}
	machine := func(name string, n byte) rack.Machine {
		in, out := mem.NewWire(name, name+"-br", pool, depth, clk)
		bridged = append(bridged, out)
		return rack.Machine{Name: name, Port: in, MAC: [6]byte{2, 0, 0, 0, 0, n}, IP: addr(n)}
	}
	w := &world{t: t, server: addr(9), id: &p4v1.Uint128{Low: 1}}
	r := rack.Rack{Memory: []rack.Machine{{Name: "mn", Port: n1, MAC: [6]byte{2, 0, 0, 0, 0, 9}, IP: w.server}},
		Compute: []rack.Machine{machine("c0", 1), machine("c1", 2)}, Metadata: machine("ms", 3)}
	w.store, err = rack.New(rack.Config{Keys: ycsb.Sequential(1, keys), Entries: 1 << 16, Sessions: 4, Mix: ycsb.A, Theta: 0.99, Seed: 1}, r)
	if err != nil {
		t.Fatal(err)
	}
	spec := &graph.Spec{
		Ports: map[string]graph.PortSpec{"pa": {Kind: "mem"}, "pb": {Kind: "mem"}},
		Apps: map[string]graph.AppSpec{
			// Sessions that keep step are paired in time, but not in a test's that is
			// slowed down tenfold by the race detector.
			"steer": {Kind: "clover-steer", Args: graph.Args{"settle": "1us", "pair": "1us"}},
			"box":   {Kind: "swordbox", Args: graph.Args{"mode": "mux", "settle": "1us", "pair": "1us"}},
		},
		Links: []string{"pa.out -> steer.a", "steer.b -> box.a", "box.b -> pb.in", "pb.out -> box.b", "box.a -> steer.b", "steer.a -> pa.in"},
	}
	w.inst, err = graph.New(graph.Config{Spec: spec, Kinds: []graph.Kind{*clover.Kind(), *swordbox.Kind()}, Ports: map[string][]port.Port{"pa": {m1}, "pb": {n0}}})
	if err != nil {
		t.Fatal(err)
	}
	// The rack runs as fast as it can, until the test ends.
	var stop atomic.Bool
	sim := host.Sim{Clock: clk, Workers: append(w.store.Workers(), host.NewBridge(bridged...), stepper{w.inst})}
	w.store.Start(rack.Load{})
	ran := make(chan error)
	go func() { ran <- sim.Run(stop.Load, 24*time.Hour) }()

	dev, err := native.New(w.inst)
	if err != nil {
		t.Fatal(err)
	}
	s := p4rt.New(p4rt.Config{})
	if err := s.Add(1, dev); err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer(p4rt.Options(nil)...)
	s.Register(g)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = g.Serve(l) }()
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	w.client = p4v1.NewP4RuntimeClient(conn)
	t.Cleanup(func() {
		conn.Close()
		g.Stop()
		s.Close()
		stop.Store(true)
		if err := <-ran; err != nil {
			t.Error(err)
		}
		if err := w.store.Err(); err != nil {
			t.Error(err)
		}
		if err := w.inst.Conservation(); err != nil {
			t.Error(err)
		}
		if err := w.inst.Close(); err != nil {
			t.Error(err)
		}
	})
	stream, err := w.client.StreamChannel(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&p4v1.StreamMessageRequest{Update: &p4v1.StreamMessageRequest_Arbitration{Arbitration: &p4v1.MasterArbitrationUpdate{DeviceId: 1, ElectionId: w.id}}}); err != nil {
		t.Fatal(err)
	}
	if m, err := stream.Recv(); err != nil || m.GetArbitration().GetStatus().GetCode() != 0 {
		t.Fatalf("%v, %v", m, err)
	}
	c, err := w.client.GetForwardingPipelineConfig(t.Context(), &p4v1.GetForwardingPipelineConfigRequest{DeviceId: 1})
	if err != nil {
		t.Fatal(err)
	}
	if w.info, err = p4info.New(c.GetConfig().GetP4Info()); err != nil {
		t.Fatal(err)
	}
	return w
}

// stepper breathes a graph among the rack's machines.
type stepper struct{ *graph.Instance }

func (s stepper) Breath(now clock.Time) (int, error) { return s.Step(now) }
func (s stepper) Deadline() clock.Time               { return s.NextTick() }

func v4(n byte) netip.Addr { return netip.AddrFrom4([4]byte{10, 77, 0, n}) }

func v6(n byte) netip.Addr { return netip.AddrFrom16([16]byte{0xfd, 15: n}) }

func (w *world) table(name string) *p4info.Table {
	w.t.Helper()
	x, err := p4info.ByName(w.info.Tables, "table", name)
	if err != nil {
		w.t.Fatal(err)
	}
	return x
}

// action is an action of a table, with its arguments.
func (w *world) action(t *p4info.Table, name string, args ...uint64) *p4v1.TableAction {
	w.t.Helper()
	r, err := t.Action(name)
	if err != nil {
		w.t.Fatal(err)
	}
	a := &p4v1.Action{ActionId: r.ID}
	for n, v := range args {
		a.Params = append(a.Params, &p4v1.Action_Param{ParamId: uint32(n + 1), Value: number(v)})
	}
	return &p4v1.TableAction{Type: &p4v1.TableAction_Action{Action: a}}
}

func number(v uint64) []byte { return []byte{byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)} }

func update(op p4v1.Update_Type, e *p4v1.TableEntry) *p4v1.Update {
	return &p4v1.Update{Type: op, Entity: &p4v1.Entity{Entity: &p4v1.Entity_TableEntry{TableEntry: e}}}
}

// write returns the code of each update.
func (w *world) write(a p4v1.WriteRequest_Atomicity, updates ...*p4v1.Update) []codes.Code {
	w.t.Helper()
	_, err := w.client.Write(w.t.Context(), &p4v1.WriteRequest{DeviceId: 1, ElectionId: w.id, Updates: updates, Atomicity: a})
	out := make([]codes.Code, len(updates))
	if err == nil {
		return out
	}
	st := status.Convert(err)
	if st.Code() != codes.Unknown || len(st.Details()) != len(updates) {
		w.t.Fatalf("write: %v", err)
	}
	for n, d := range st.Details() {
		e := d.(*p4v1.Error)
		if out[n] = codes.Code(e.GetCanonicalCode()); out[n] != codes.OK {
			w.t.Logf("update %d: %v: %s", n, out[n], e.GetMessage())
		}
	}
	return out
}

func (w *world) read(q *p4v1.Entity) []*p4v1.Entity {
	w.t.Helper()
	r, err := w.client.Read(w.t.Context(), &p4v1.ReadRequest{DeviceId: 1, Entities: []*p4v1.Entity{q}})
	if err != nil {
		w.t.Fatal(err)
	}
	var out []*p4v1.Entity
	for {
		x, err := r.Recv()
		if err != nil {
			if err.Error() != "EOF" {
				w.t.Fatal(err)
			}
			return out
		}
		out = append(out, x.GetEntities()...)
	}
}

// entries are those of a table.
func (w *world) entries(name string) []*p4v1.TableEntry {
	w.t.Helper()
	var out []*p4v1.TableEntry
	for _, e := range w.read(&p4v1.Entity{Entity: &p4v1.Entity_TableEntry{TableEntry: &p4v1.TableEntry{TableId: w.table(name).ID}}}) {
		out = append(out, e.GetTableEntry())
	}
	return out
}

// dflt is a table's default entry.
func (w *world) dflt(name string) *p4v1.TableEntry {
	w.t.Helper()
	got := w.read(&p4v1.Entity{Entity: &p4v1.Entity_TableEntry{TableEntry: &p4v1.TableEntry{TableId: w.table(name).ID, IsDefaultAction: true}}})
	if len(got) != 1 {
		w.t.Fatalf("%s has %d default entries", name, len(got))
	}
	return got[0].GetTableEntry()
}

// count is what a counter says at the index of that name.
func (w *world) count(counter, name string) int64 {
	w.t.Helper()
	c, err := p4info.ByName(w.info.Counters, "counter", counter)
	if err != nil {
		w.t.Fatal(err)
	}
	for i, a := range c.Annotations {
		if a != fmt.Sprintf("@index(%d, %q)", i, name) {
			continue
		}
		got := w.read(&p4v1.Entity{Entity: &p4v1.Entity_CounterEntry{CounterEntry: &p4v1.CounterEntry{CounterId: c.ID, Index: &p4v1.Index{Index: int64(i)}}}})
		if len(got) != 1 {
			w.t.Fatalf("%s %s: %v", counter, name, got)
		}
		return got[0].GetCounterEntry().GetData().GetPacketCount()
	}
	w.t.Fatalf("counter %s counts no %s", counter, name)
	return 0
}

// wait returns when f does not say why not any more.
func (w *world) wait(f func() string) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), 60*time.Second)
	defer cancel()
	for {
		why := f()
		if why == "" {
			return
		}
		if ctx.Err() != nil {
			w.t.Fatal(why)
		}
	}
}

// moves waits until a counter has moved on by n.
func (w *world) moves(counter, name string, n int64) {
	w.t.Helper()
	from := w.count(counter, name)
	w.wait(func() string {
		if got := w.count(counter, name) - from; got < n {
			return fmt.Sprintf("%s %s: %d more, want %d", counter, name, got, n)
		}
		return ""
	})
}

func span(table *p4info.Table, lo, hi uint64, priority int32) *p4v1.TableEntry {
	return &p4v1.TableEntry{TableId: table.ID, Priority: priority, Match: []*p4v1.FieldMatch{{FieldId: 2,
		FieldMatchType: &p4v1.FieldMatch_Range_{Range: &p4v1.FieldMatch_Range{Low: number(lo), High: number(hi)}}}}}
}

const (
	insert = p4v1.Update_INSERT
	modify = p4v1.Update_MODIFY
	remove = p4v1.Update_DELETE
)

// A controller chooses the keys that are steered, and the mode, while clients
// run: the counters say so, and so do the app's arguments.
func TestSteerChosenKeys(t *testing.T) {
	w := newWorld(t, v4)
	w.moves("steer_ingress.reasons", "steered-cas", 50)

	// Counters can be set back, for controllers.
	reasons, err := p4info.ByName(w.info.Counters, "counter", "steer_ingress.reasons")
	if err != nil {
		t.Fatal(err)
	}
	zero := &p4v1.Update{Type: modify, Entity: &p4v1.Entity{Entity: &p4v1.Entity_CounterEntry{CounterEntry: &p4v1.CounterEntry{
		CounterId: reasons.ID, Index: &p4v1.Index{Index: 0}, Data: &p4v1.CounterData{PacketCount: 1 << 40}}}}}
	bad := span(w.table("steered_keys"), 7, 9, 5)
	if got := w.write(p4v1.WriteRequest_ROLLBACK_ON_ERROR, zero, update(remove, bad)); fmt.Sprint(got) != "[Aborted NotFound]" || w.count("steer_ingress.reasons", "roce") >= 1<<40 {
		t.Error(got)
	}
	if got := w.write(0, zero); got[0] != codes.OK || w.count("steer_ingress.reasons", "roce") < 1<<40 {
		t.Error(got)
	}

	// None is steered any more.
	chosen := w.table("steered_keys")
	off := &p4v1.TableEntry{TableId: chosen.ID, IsDefaultAction: true, Action: w.action(chosen, "leave")}
	if got := w.write(0, update(modify, off)); got[0] != codes.OK {
		t.Fatal(got)
	}
	if got := w.inst.Spec().Apps["steer"].Args["only"]; got != "none" {
		t.Errorf("only=%s", got)
	}
	before := w.count("steer_ingress.reasons", "steered-cas")
	w.moves("steer_ingress.reasons", "key-not-steered", 200)
	if got := w.count("steer_ingress.reasons", "steered-cas"); got > before+8 {
		t.Errorf("%d more were steered, and none was to be", got-before)
	}
	// A frame or two may have been on their way; now all rows are gone.
	if got := w.entries("tails"); len(got) != 0 {
		t.Errorf("%d keys are still tracked", len(got))
	}

	// One key, the most popular one.
	one := span(chosen, 1, 1, 5)
	one.Action = w.action(chosen, "steer")
	one.Metadata = []byte("why")
	again := proto.CloneOf(one)
	late := span(chosen, 7, 9, 5)
	if got := w.write(0, update(insert, one), update(insert, again), update(remove, late)); fmt.Sprint(got) != "[OK AlreadyExists NotFound]" {
		t.Fatal(got)
	}
	w.moves("steer_ingress.reasons", "steered-cas", 20)
	tails := w.entries("tails")
	if len(tails) != 1 || fmt.Sprint(tails[0].GetMatch()[1].GetExact().GetValue()) != "[1]" {
		t.Errorf("tracked: %v", tails)
	}
	got := w.entries("steered_keys")
	if len(got) != 1 || !proto.Equal(got[0].GetAction(), one.GetAction()) || got[0].GetPriority() != 5 || string(got[0].GetMetadata()) != "why" ||
		fmt.Sprint(got[0].GetMatch()[0].GetRange().GetLow()) != "[1]" {
		t.Errorf("read back: %v", got)
	}
	if got := w.inst.Spec().Apps["steer"].Args["only"]; got != "1#5+none" {
		t.Errorf("only=%s", got)
	}

	// Another server's keys: nothing is steered, as the rule comes first.
	rule := span(chosen, 0, 1000, 9)
	rule.Match = append([]*p4v1.FieldMatch{{FieldId: 1, FieldMatchType: &p4v1.FieldMatch_Ternary_{Ternary: &p4v1.FieldMatch_Ternary{
		Value: w.server.AsSlice(), Mask: []byte{255, 255, 255, 255}}}}}, rule.Match...)
	rule.Action = w.action(chosen, "leave")
	if got := w.write(0, update(insert, rule)); got[0] != codes.OK {
		t.Fatal(got)
	}
	before = w.count("steer_ingress.reasons", "steered-cas")
	w.moves("steer_ingress.reasons", "key-not-steered", 200)
	if got := w.count("steer_ingress.reasons", "steered-cas"); got > before+8 {
		t.Errorf("%d more were steered", got-before)
	}
	if got := w.write(p4v1.WriteRequest_DATAPLANE_ATOMIC, update(remove, rule), update(remove, late)); fmt.Sprint(got) != "[Aborted NotFound]" {
		t.Error(got)
	}
	if got := w.entries("steered_keys"); len(got) != 2 {
		t.Errorf("after a request that was refused as a whole: %v", got)
	}
	off.Action = nil // as the program says: steer
	if got := w.write(p4v1.WriteRequest_ROLLBACK_ON_ERROR, update(remove, rule), update(modify, off)); fmt.Sprint(got) != "[OK OK]" {
		t.Error(got)
	}
	w.moves("steer_ingress.reasons", "steered-cas", 50)

	// The mode.
	mode := w.table("steer_ingress.mode")
	set := func(writes, reads, ahead uint64) codes.Code {
		return w.write(0, update(modify, &p4v1.TableEntry{TableId: mode.ID, IsDefaultAction: true, Action: w.action(mode, "set_mode", writes, reads, ahead)}))[0]
	}
	if got := set(0, 1, 1); got != codes.InvalidArgument {
		t.Errorf("reads alone: %v", got)
	}
	if got := set(1, 0, 1); got != codes.OK || w.inst.Spec().Apps["steer"].Args["mode"] != "write" {
		t.Errorf("writes alone: %v, %v", got, w.inst.Spec().Apps["steer"].Args)
	}
	before = w.count("steer_ingress.reasons", "steered-read")
	w.moves("steer_ingress.reasons", "steered-cas", 50)
	if got := w.count("steer_ingress.reasons", "steered-read"); got > before+8 {
		t.Errorf("%d more reads were steered", got-before)
	}
	if got := set(1, 1, 0); got != codes.OK || w.inst.Spec().Apps["steer"].Args["ahead"] != "0" {
		t.Errorf("without ahead: %v, %v", got, w.inst.Spec().Apps["steer"].Args)
	}
	if a := w.dflt("steer_ingress.mode").GetAction(); !proto.Equal(a, &p4v1.TableAction{Type: &p4v1.TableAction_Action{Action: &p4v1.Action{
		ActionId: a.GetAction().GetActionId(), Params: []*p4v1.Action_Param{{ParamId: 1, Value: []byte{1}}, {ParamId: 2, Value: []byte{1}}, {ParamId: 3, Value: []byte{0}}}}}}) {
		t.Errorf("the mode is %v", a)
	}
}

// Connections, words and shared connections of a running box, by either family.
func TestState(t *testing.T) {
	for name, addr := range map[string]func(byte) netip.Addr{"ipv4": v4, "ipv6": v6} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, addr)
			mine, others := "", "_ipv6"
			if name == "ipv6" {
				mine, others = "_ipv6", ""
			}
			w.moves("mux_ingress.counters", "moved", 100)
			w.wait(func() string { // two machines with 4 sessions each, both directions
				if n := len(w.entries("connections" + mine)); n < 16 {
					return fmt.Sprintf("%d connections, want 16", n)
				}
				return ""
			})
			sizes := map[string]int{}
			for _, table := range []string{"connections", "tails", "clients", "answers", "shared", "words"} {
				got := w.entries(table + mine)
				if n := len(w.entries(table + others)); n != 0 {
					t.Errorf("%s%s has %d entries", table, others, n)
				}
				sizes[table] = len(got)
				seen := map[string]bool{}
				for _, e := range got {
					x := &p4v1.Entity{Entity: &p4v1.Entity_TableEntry{TableEntry: e}}
					if k := p4info.Key(x); seen[k] {
						t.Errorf("%s: twice: %s", table, w.info.Text(x))
					} else {
						seen[k] = true
					}
					u := &p4v1.Update{Type: insert, Entity: proto.CloneOf(x)}
					u.Entity.GetTableEntry().IsConst = false
					before := proto.CloneOf(u.Entity)
					if err := w.info.Update(u); err != nil && status.Code(err) != codes.PermissionDenied || !proto.Equal(before, u.Entity) {
						t.Errorf("%s: %s is not canonical: %v", table, w.info.Text(x), err)
					}
				}
			}
			t.Log(sizes)
			if sizes["clients"] < 8 || sizes["shared"] < 1 || sizes["answers"] != sizes["shared"] || sizes["words"] < 10 || sizes["tails"] < 10 || sizes["tails"] > keys {
				t.Errorf("entries: %v", sizes)
			}
			// It is not a controller's to change: one that keeps a device at an intent
			// would delete what the app has learnt.
			clients := w.table("clients" + mine)
			bound := false
			for _, e := range w.entries("clients" + mine) {
				if !e.GetIsConst() {
					t.Error("an entry that may not change does not say so")
				}
				p := e.GetAction().GetAction().GetParams()
				bound = bound || len(p) == 11 && fmt.Sprint(p[10].GetValue()) == "[1]"
				e.IsConst = false
				if got := w.write(0, update(insert, proto.CloneOf(e)), update(modify, proto.CloneOf(e)), update(remove, proto.CloneOf(e))); fmt.Sprint(got) != "[PermissionDenied PermissionDenied PermissionDenied]" {
					t.Error(got)
				}
			}
			if !bound {
				t.Error("no connection's ends count differently")
			}
			if a := w.dflt(clients.Name).GetAction().GetAction(); w.info.Action(a.GetActionId()).Name != "NoAction" {
				t.Errorf("default of clients: %v", a)
			}
		})
	}
}

// Memory is tracked, and frames guarded, at run time; the rest of the pipeline
// is the graph.
func TestBoxSettings(t *testing.T) {
	w := newWorld(t, v4)
	w.moves("mux_ingress.counters", "moved", 50)
	tracked, guard, static := w.table("tracked"), w.table("guard"), w.table("static")
	e := &p4v1.TableEntry{TableId: tracked.ID, Priority: 1, Action: w.action(tracked, "track"), Match: []*p4v1.FieldMatch{{FieldId: 1,
		FieldMatchType: &p4v1.FieldMatch_Range_{Range: &p4v1.FieldMatch_Range{Low: []byte{1, 0, 0}, High: []byte{0x7F, 255, 255, 255, 255, 255, 255, 255}}}}}}
	d := &p4v1.TableEntry{TableId: guard.ID, IsDefaultAction: true, Action: w.action(guard, "drop")}
	c := &p4v1.TableEntry{TableId: static.ID, Action: w.action(static, "connect", 0x17, 1024)}
	for n, v := range [][]byte{{10, 77, 0, 200}, w.server.AsSlice(), {0x55, 0x55}} {
		c.Match = append(c.Match, &p4v1.FieldMatch{FieldId: uint32(n + 1), FieldMatchType: &p4v1.FieldMatch_Exact_{Exact: &p4v1.FieldMatch_Exact{Value: v}}})
	}
	app := w.inst.App("box", 0)
	if got := w.write(p4v1.WriteRequest_ROLLBACK_ON_ERROR, update(insert, e), update(modify, d), update(insert, c)); fmt.Sprint(got) != "[OK OK OK]" {
		t.Fatal(got)
	}
	if w.inst.App("box", 0) != app {
		t.Error("the box was started anew")
	}
	if got := w.inst.Spec().Apps["box"].Args; got["track"] != "10000+7fffffffffff0000" || got["guard"] != "drop" || got["static"] != "10.77.0.200/0x17-10.77.0.9/0x5555,mtu=1024" {
		t.Errorf("%v", got)
	}
	there := func() int {
		n := 0
		for _, x := range w.entries("clients") {
			if string(x.GetMatch()[0].GetExact().GetValue()) == "\x0a\x4d\x00\xc8" {
				n++
			}
		}
		return n
	}
	w.wait(func() string {
		if there() != 1 {
			return "the static connection is not there"
		}
		return ""
	})
	if err := w.info.Update(update(insert, c)); err != nil {
		t.Fatal(err)
	}
	if got := w.entries("static"); len(got) != 1 || !proto.Equal(got[0], c) {
		t.Errorf("static: %v", got)
	}
	// Two apps do not change at the same moment.
	mode := w.table("steer_ingress.mode")
	both := []*p4v1.Update{update(modify, d), update(modify, &p4v1.TableEntry{TableId: mode.ID, IsDefaultAction: true})}
	_, err := w.client.Write(t.Context(), &p4v1.WriteRequest{DeviceId: 1, ElectionId: w.id, Updates: both, Atomicity: p4v1.WriteRequest_DATAPLANE_ATOMIC})
	if st := status.Convert(err); st.Code() != codes.Unimplemented || len(st.Details()) != 0 {
		t.Error(err)
	}
	if got := w.write(p4v1.WriteRequest_ROLLBACK_ON_ERROR, both...); fmt.Sprint(got) != "[OK OK]" {
		t.Error(got)
	}
	// Another connection with the same queue pair cannot be; this one can go.
	twin := proto.CloneOf(c)
	twin.Match[0].GetExact().Value = []byte{10, 77, 0, 201}
	if got := w.write(0, update(insert, twin)); got[0] != codes.FailedPrecondition {
		t.Error(got)
	}
	if got := w.write(0, update(remove, c), update(remove, e)); fmt.Sprint(got) != "[OK OK]" {
		t.Error(got)
	}
	w.wait(func() string {
		if there() != 0 {
			return "the static connection is still there"
		}
		return ""
	})
	mode = w.table("mux_ingress.mode")
	x := &p4v1.TableEntry{TableId: mode.ID, Action: w.action(mode, "off")}
	if got := w.write(0, update(insert, x)); got[0] != codes.InvalidArgument {
		t.Errorf("an entry of a table without a key: %v", got)
	}
}

// A counter that is written without data stays what it is.
func TestCounterWithoutData(t *testing.T) {
	w := newWorld(t, v4)
	w.moves("mux_ingress.counters", "moved", 50)
	was := w.count("mux_ingress.counters", "moved")
	c, err := p4info.ByName(w.info.Counters, "counter", "mux_ingress.counters")
	if err != nil {
		t.Fatal(err)
	}
	got := w.write(0, &p4v1.Update{Type: modify, Entity: &p4v1.Entity{Entity: &p4v1.Entity_CounterEntry{CounterEntry: &p4v1.CounterEntry{CounterId: c.ID}}}})
	if n := w.count("mux_ingress.counters", "moved"); got[0] != codes.OK || n < was {
		t.Errorf("%v: it was %d and is %d", got, was, n)
	}
}

// The pipeline is the graph: what a client sets must be within, and changes
// nothing; another graph is another pipeline.
func TestPipeline(t *testing.T) {
	w := newWorld(t, v4)
	w.moves("mux_ingress.counters", "moved", 50)
	set := func(a p4v1.SetForwardingPipelineConfigRequest_Action, c *p4v1.ForwardingPipelineConfig) codes.Code {
		_, err := w.client.SetForwardingPipelineConfig(t.Context(), &p4v1.SetForwardingPipelineConfigRequest{DeviceId: 1, ElectionId: w.id, Action: a, Config: c})
		return status.Code(err)
	}
	chosen := w.table("steered_keys")
	e := span(chosen, 1, 1, 5)
	e.Action = w.action(chosen, "leave")
	if got := w.write(0, update(insert, e)); got[0] != codes.OK {
		t.Fatal(got)
	}
	conns := len(w.entries("clients"))
	whole := &p4v1.ForwardingPipelineConfig{P4Info: w.info.Proto, P4DeviceConfig: []byte("{}"), Cookie: &p4v1.ForwardingPipelineConfig_Cookie{Cookie: 7}}
	for _, a := range []p4v1.SetForwardingPipelineConfigRequest_Action{p4v1.SetForwardingPipelineConfigRequest_VERIFY, p4v1.SetForwardingPipelineConfigRequest_VERIFY_AND_COMMIT, p4v1.SetForwardingPipelineConfigRequest_RECONCILE_AND_COMMIT} {
		if got := set(a, whole); got != codes.OK {
			t.Errorf("%v: %v", a, got)
		}
		if n := len(w.entries("steered_keys")); n != 1 {
			t.Errorf("%v: %d entries of one", a, n)
		}
	}
	if n := len(w.entries("clients")); n < conns {
		t.Errorf("%d connections of %d", n, conns)
	}
	// What is written between saving and committing is not lost.
	if got := set(p4v1.SetForwardingPipelineConfigRequest_VERIFY_AND_SAVE, whole); got != codes.OK {
		t.Error(got)
	}
	f := span(chosen, 2, 2, 5)
	f.Action = w.action(chosen, "leave")
	if got := w.write(0, update(insert, f)); got[0] != codes.OK {
		t.Error(got)
	}
	if n := len(w.entries("steered_keys")); n != 2 {
		t.Errorf("saved: %d entries of two", n)
	}
	if got := set(p4v1.SetForwardingPipelineConfigRequest_COMMIT, nil); got != codes.OK {
		t.Error(got)
	}
	if n := len(w.entries("steered_keys")); n != 2 {
		t.Errorf("committed: %d entries of two", n)
	}
	other := proto.CloneOf(w.info.Proto)
	other.Tables[0].Size++
	if got := set(p4v1.SetForwardingPipelineConfigRequest_VERIFY, &p4v1.ForwardingPipelineConfig{P4Info: other}); got != codes.InvalidArgument {
		t.Errorf("another table: %v", got)
	}
	other = proto.CloneOf(w.info.Proto)
	other.Tables = other.Tables[:1]
	if got := set(p4v1.SetForwardingPipelineConfigRequest_VERIFY, &p4v1.ForwardingPipelineConfig{P4Info: other}); got != codes.OK {
		t.Errorf("one table: %v", got)
	}
	spec := w.inst.Spec()
	delete(spec.Apps, "steer")
	spec.Links = []string{"pa.out -> box.a", "box.b -> pb.in", "pb.out -> box.b", "box.a -> pa.in"}
	if p, err := w.inst.Plan(spec); err != nil {
		t.Fatal(err)
	} else if err := w.inst.Apply(p); err != nil {
		t.Fatal(err)
	}
	_, err := w.client.Write(t.Context(), &p4v1.WriteRequest{DeviceId: 1, ElectionId: w.id, Updates: []*p4v1.Update{update(remove, e)}})
	if err == nil {
		t.Error("a table of an app that is gone was written")
	}
	c, err := w.client.GetForwardingPipelineConfig(t.Context(), &p4v1.GetForwardingPipelineConfigRequest{DeviceId: 1})
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range c.GetConfig().GetP4Info().GetTables() {
		if x.GetPreamble().GetId() == chosen.ID {
			t.Error("the P4Info still has a table of an app that is gone")
		}
	}
}
