package engine_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	"github.com/quillon/quillon/controlplane/p4info"
	"github.com/quillon/quillon/controlplane/p4rt"
	"github.com/quillon/quillon/controlplane/p4rt/engine"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/p4"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/nf/port/mem"
	"github.com/quillon/quillon/p4src"
)

// patience is how long a test waits for what must come.
const patience = 60 * time.Second

// stepped is a clock that the test moves, for any goroutine.
type stepped struct{ ns atomic.Int64 }

func (c *stepped) Now() clock.Time          { return clock.Time(c.ns.Load()) }
func (c *stepped) advance(d clock.Duration) { c.ns.Add(int64(d)) }

// world is a graph with one app of kind p4 and four ports, behind a server that
// a client is connected to.
type world struct {
	t      testing.TB
	clk    *stepped
	inst   *graph.Instance
	pool   *packet.Pool
	far    []*mem.Port
	dev    *engine.Device
	server *p4rt.Server
	client p4v1.P4RuntimeClient
	info   *p4info.Info
	role   string
}

const ports = 6

func newWorld(t testing.TB, cfg p4rt.Config) *world {
	t.Helper()
	w := &world{t: t, clk: &stepped{}}
	w.clk.advance(time.Second)
	pool, err := packet.NewPool(1024, 2048, nil)
	if err != nil {
		t.Fatal(err)
	}
	w.pool = pool
	spec := &graph.Spec{Ports: map[string]graph.PortSpec{}, Apps: map[string]graph.AppSpec{"sw": {Kind: "p4"}}}
	opened := map[string][]port.Port{}
	for n := range ports {
		name := fmt.Sprint("p", n)
		near, far := mem.NewWire(name, "far"+name, pool, 256, w.clk)
		opened[name] = []port.Port{near}
		w.far = append(w.far, far)
		spec.Ports[name] = graph.PortSpec{Kind: "mem"}
		for _, l := range []string{fmt.Sprintf("%s.out -> sw.%d", name, n), fmt.Sprintf("sw.%d -> %s.in", n, name)} {
			spec.Links = append(spec.Links, l)
		}
	}
	w.inst, err = graph.New(graph.Config{Spec: spec, Kinds: []graph.Kind{*p4.Kind()}, Ports: opened})
	if err != nil {
		t.Fatal(err)
	}
	punts, err := engine.ListenPunts(w.inst)
	if err != nil {
		t.Fatal(err)
	}
	dev, err := engine.New(engine.Config{Instance: w.inst, App: "sw", Punts: punts})
	if err != nil {
		t.Fatal(err)
	}
	w.dev = dev
	cfg.Clock = w.clk
	w.server = p4rt.New(cfg)
	if err := w.server.Add(1, dev); err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer(p4rt.Options(nil)...)
	w.server.Register(g)
	l := bufconn.Listen(1 << 20)
	go func() { _ = g.Serve(l) }()
	conn, err := grpc.NewClient("passthrough:///bufconn", grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(p4rt.MaxMessage)), grpc.WithMaxHeaderListSize(16<<20))
	if err != nil {
		t.Fatal(err)
	}
	w.client = p4v1.NewP4RuntimeClient(conn)
	t.Cleanup(func() {
		conn.Close()
		g.Stop()
		w.server.Close()
		punts.Close()
		if err := w.inst.Conservation(); err != nil {
			t.Error(err)
		}
		_ = w.inst.Close()
	})
	return w
}

// controller is a stream of a client.
type controller struct {
	w  *world
	id *p4v1.Uint128
	p4v1.P4Runtime_StreamChannelClient
	cancel func()
	in     chan *p4v1.StreamMessageResponse
	err    error
}

// stream opens one and sends a claim; id 0: without an election id.
func (w *world) stream(id uint64) *controller {
	w.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	s, err := w.client.StreamChannel(ctx)
	if err != nil {
		w.t.Fatal(err)
	}
	c := &controller{w: w, P4Runtime_StreamChannelClient: s, cancel: cancel, in: make(chan *p4v1.StreamMessageResponse, 10000)}
	w.t.Cleanup(cancel)
	go func() {
		defer close(c.in)
		for {
			m, err := s.Recv()
			if err != nil {
				c.err = err
				return
			}
			c.in <- m
		}
	}()
	c.claim(id)
	return c
}

func (c *controller) claim(id uint64) {
	c.id = nil
	if id != 0 {
		c.id = &p4v1.Uint128{Low: id}
	}
	m := &p4v1.MasterArbitrationUpdate{DeviceId: 1, ElectionId: c.id}
	if c.w.role != "" {
		m.Role = &p4v1.Role{Name: c.w.role}
	}
	if err := c.Send(&p4v1.StreamMessageRequest{Update: &p4v1.StreamMessageRequest_Arbitration{Arbitration: m}}); err != nil && !errors.Is(err, io.EOF) {
		c.w.t.Fatal(err)
	}
}

// next is the next message; nil: the stream has ended.
func (c *controller) next() *p4v1.StreamMessageResponse {
	c.w.t.Helper()
	select {
	case m := <-c.in:
		return m
	case <-time.After(patience):
		c.w.t.Fatal("no message came")
		return nil
	}
}

// none checks that no message waits.
func (c *controller) none() {
	c.w.t.Helper()
	select {
	case m := <-c.in:
		c.w.t.Errorf("a message came: %v", m)
	default:
	}
}

// primary opens a stream that is primary.
func (w *world) primary() *controller {
	w.t.Helper()
	c := w.stream(1)
	if m := c.next(); m.GetArbitration().GetStatus().GetCode() != int32(codes.OK) {
		w.t.Fatalf("not primary: %v %v", m, c.err)
	}
	return c
}

func programFiles(t testing.TB, name string) (*p4info.Info, []byte) {
	t.Helper()
	text, err := p4src.Files.ReadFile(name + ".p4info.txtpb")
	if err != nil {
		t.Fatal(err)
	}
	info, err := p4info.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	json, err := p4src.Files.ReadFile(name + ".json")
	if err != nil {
		t.Fatal(err)
	}
	return info, json
}

func (w *world) set(action p4v1.SetForwardingPipelineConfigRequest_Action, info *p4info.Info, json []byte) error {
	r := &p4v1.SetForwardingPipelineConfigRequest{DeviceId: 1, Role: w.role, ElectionId: &p4v1.Uint128{Low: 1}, Action: action}
	if info != nil {
		r.Config = &p4v1.ForwardingPipelineConfig{P4Info: info.Proto, P4DeviceConfig: json, Cookie: &p4v1.ForwardingPipelineConfig_Cookie{Cookie: 42}}
	}
	_, err := w.client.SetForwardingPipelineConfig(context.Background(), r)
	return err
}

// program has the device run one of p4src.
func (w *world) program(name string) {
	w.t.Helper()
	info, json := programFiles(w.t, name)
	if err := w.set(p4v1.SetForwardingPipelineConfigRequest_VERIFY_AND_COMMIT, info, json); err != nil {
		w.t.Fatal(err)
	}
	w.info = info
}

func parseUpdate(t testing.TB, text string) *p4v1.Update {
	t.Helper()
	u := &p4v1.Update{}
	if err := prototext.Unmarshal([]byte(text), u); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return u
}

// write makes updates, and returns the code of each.
func (w *world) write(a p4v1.WriteRequest_Atomicity, updates ...*p4v1.Update) ([]codes.Code, error) {
	w.t.Helper()
	_, err := w.client.Write(context.Background(), &p4v1.WriteRequest{DeviceId: 1, Role: w.role, ElectionId: &p4v1.Uint128{Low: 1}, Updates: updates, Atomicity: a})
	return perUpdate(w.t, len(updates), err), err
}

func perUpdate(t testing.TB, n int, err error) []codes.Code {
	t.Helper()
	out := make([]codes.Code, n)
	if err == nil {
		return out
	}
	st := status.Convert(err)
	if st.Code() != codes.Unknown {
		return nil
	}
	if len(st.Details()) != n {
		t.Fatalf("%d details for %d updates: %v", len(st.Details()), n, err)
	}
	for i, d := range st.Details() {
		out[i] = codes.Code(d.(*p4v1.Error).GetCanonicalCode())
	}
	return out
}

// do makes updates that must succeed.
func (w *world) do(texts ...string) {
	w.t.Helper()
	var list []*p4v1.Update
	for _, x := range texts {
		list = append(list, parseUpdate(w.t, x))
	}
	if _, err := w.write(p4v1.WriteRequest_CONTINUE_ON_ERROR, list...); err != nil {
		w.t.Fatal(err)
	}
}

// refused makes one update that must be refused with a code.
func (w *world) refused(c codes.Code, text string) {
	w.t.Helper()
	got, err := w.write(p4v1.WriteRequest_CONTINUE_ON_ERROR, parseUpdate(w.t, text))
	if len(got) != 1 || got[0] != c {
		w.t.Errorf("%s: %v, want %v", text, err, c)
	}
}

// read is the answer to queries.
func (w *world) read(queries ...string) []*p4v1.Entity {
	w.t.Helper()
	out, err := w.tryRead(queries...)
	if err != nil {
		w.t.Fatal(err)
	}
	return out
}

func (w *world) tryRead(queries ...string) ([]*p4v1.Entity, error) {
	w.t.Helper()
	r := &p4v1.ReadRequest{DeviceId: 1, Role: w.role}
	for _, q := range queries {
		e := &p4v1.Entity{}
		if err := prototext.Unmarshal([]byte(q), e); err != nil {
			w.t.Fatalf("%v in %s", err, q)
		}
		r.Entities = append(r.Entities, e)
	}
	s, err := w.client.Read(context.Background(), r)
	if err != nil {
		w.t.Fatal(err)
	}
	var out []*p4v1.Entity
	for {
		m, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return out, err
		}
		out = append(out, m.GetEntities()...)
	}
}

// texts checks the entities of an answer, in names.
func (w *world) texts(query string, want ...string) {
	w.t.Helper()
	got := w.read(query)
	for i := range max(len(got), len(want)) {
		g, x := "nothing", "nothing"
		if i < len(got) {
			g = w.info.Text(got[i])
		}
		if i < len(want) {
			x = want[i]
		}
		if g != x {
			w.t.Errorf("%s, answer %d:\n got %s\nwant %s", query, i, g, x)
		}
	}
}

// send has a port receive frames and the app handle them.
func (w *world) send(port int, frames ...[]byte) {
	w.t.Helper()
	var b packet.Batch
	for _, f := range frames {
		x := w.pool.Get()
		if x == nil || !x.SetBytes(f) {
			w.t.Fatal("no buffer")
		}
		b.Add(x)
	}
	if n, err := w.far[port].Tx(&b); n != len(frames) || err != nil {
		w.t.Fatal(n, err)
	}
	w.step()
}

func (w *world) step() {
	w.t.Helper()
	for range 3 {
		if _, err := w.inst.Step(w.clk.Now()); err != nil {
			w.t.Fatal(err)
		}
	}
}

// got is what a port has sent.
func (w *world) got(port int) [][]byte {
	var b packet.Batch
	var out [][]byte
	for {
		b.Reset()
		if n, _ := w.far[port].Rx(&b); n == 0 {
			return out
		}
		for _, x := range b.Bufs() {
			out = append(out, append([]byte(nil), x.Bytes()...))
		}
		b.PutAll()
	}
}

func same(a, b proto.Message) bool { return proto.Equal(a, b) }
