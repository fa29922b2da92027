package p4rt_test

import (
	"context"
	"io"
	"strings"
	"sync"
	"testing"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/quillon/quillon/controlplane/p4info"
	"github.com/quillon/quillon/controlplane/p4rt"
)

// broken is a device with a defect: some requests panic.
type broken struct{ info *p4info.Info }

func (b *broken) Pipeline() p4rt.Pipeline                                  { return b }
func (b *broken) Build(*p4info.Info, []byte) (p4rt.Pipeline, error)        { return b, nil }
func (b *broken) Commit(p4rt.Pipeline) error                               { return nil }
func (b *broken) PacketOut(*p4v1.PacketOut) error                          { panic("a packet") }
func (b *broken) Listen(func(p4rt.Event)) (func(), error)                  { return func() {}, nil }
func (b *broken) Info() *p4info.Info                                       { return b.info }
func (b *broken) Config() []byte                                           { return nil }
func (b *broken) Atomic([]*p4v1.Update, p4v1.WriteRequest_Atomicity) error { return nil }
func (b *broken) Read(_ *p4v1.Entity, yield func(*p4v1.Entity) error) error {
	var none *p4v1.Entity
	return yield(&p4v1.Entity{Entity: none.Entity})
}

func (b *broken) Write(updates []*p4v1.Update, a p4v1.WriteRequest_Atomicity) []error {
	if a == p4v1.WriteRequest_CONTINUE_ON_ERROR {
		return nil
	}
	_ = updates[len(updates)]
	return nil
}

// A client that takes few headers, as gRPC in C++ and Python by default, gets an error for each of many updates; one that takes more gets
// them whole. Without the client's setting an answer of this size ended the call without any.
func TestManyErrors(t *testing.T) {
	s := p4rt.New(p4rt.Config{})
	if err := s.Add(1, &broken{testInfo()}); err != nil {
		t.Fatal(err)
	}
	l, err := p4rt.Listen(s, p4rt.ListenConfig{Address: "127.0.0.1:0", Insecure: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close(); s.Close() })
	for n, c := range []struct {
		headers uint32
		updates int
		code    codes.Code
	}{{16 << 10, 60, codes.Unknown}, {16 << 10, 2000, codes.ResourceExhausted}, {8192 + 100*2000, 2000, codes.Unknown}} {
		conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithMaxHeaderListSize(c.headers))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		client := p4v1.NewP4RuntimeClient(conn)
		stream, err := client.StreamChannel(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(claimOf(uint64(n + 1))); err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); err != nil {
			t.Fatal(err)
		}
		r := &p4v1.WriteRequest{DeviceId: 1, ElectionId: &p4v1.Uint128{Low: uint64(n + 1)}}
		for range c.updates {
			r.Updates = append(r.Updates, &p4v1.Update{Type: p4v1.Update_INSERT, Entity: p4info.EntryOf(&p4v1.TableEntry{TableId: 1, Priority: -7})})
		}
		_, err = client.Write(t.Context(), r)
		if st := status.Convert(err); st.Code() != c.code || c.code == codes.Unknown && len(st.Details()) != c.updates {
			t.Errorf("%d updates: %d details, %.200v", c.updates, len(st.Details()), err)
		}
	}
}

// A controller with a small election id is told what keeps it out: ids that are made from the time.
func TestSmallElectionID(t *testing.T) {
	s := p4rt.New(p4rt.Config{})
	if err := s.Add(1, &broken{testInfo()}); err != nil {
		t.Fatal(err)
	}
	l, err := p4rt.Listen(s, p4rt.ListenConfig{Address: "127.0.0.1:0", Insecure: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close(); s.Close() })
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client := p4v1.NewP4RuntimeClient(conn)
	claim := func(e *p4v1.Uint128) (said string, end func()) {
		ctx, cancel := context.WithCancel(t.Context())
		stream, err := client.StreamChannel(ctx)
		if err == nil {
			err = stream.Send(&p4v1.StreamMessageRequest{Update: &p4v1.StreamMessageRequest_Arbitration{Arbitration: &p4v1.MasterArbitrationUpdate{DeviceId: 1, ElectionId: e}}})
		}
		if err != nil {
			t.Fatal(err)
		}
		m, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		return m.GetArbitration().GetStatus().GetMessage(), func() {
			cancel()
			for err == nil {
				_, err = stream.Recv()
			}
		}
	}
	small := &p4v1.Uint128{Low: 1}
	write := func() string {
		_, err := client.Write(t.Context(), &p4v1.WriteRequest{DeviceId: 1, ElectionId: small})
		return status.Convert(err).Message()
	}
	const hint = " (quillon ctl makes them from the time, unless its --election-id says another; quillon ctl forget has a device forget them)"
	_, end := claim(&p4v1.Uint128{High: 1764000000, Low: 5})
	if got, want := write(), "not primary: election id 0.1, the primary's is 1764000000.5"+hint; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	end()
	if _, err := client.Capabilities(t.Context(), &p4v1.CapabilitiesRequest{}); err != nil {
		t.Fatal(err)
	}
	want := "which takes an election id of 1764000000.5 or more" + hint
	var got string
	for range 1000 { // the stream's end takes a moment
		got, end = claim(small)
		end()
		if strings.HasPrefix(got, "backup; there is no primary") {
			break
		}
	}
	if got != "backup; there is no primary, "+want {
		t.Errorf("%q, want %q", got, want)
	}
	if got, want := write(), `role "" of device 1 has no primary: claim it on a stream first, `+want; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// A request over which a handler panics is answered with INTERNAL, is logged once, and
// the others go on: nothing stays locked.
func TestPanics(t *testing.T) {
	info, err := p4info.Parse([]byte(`tables { preamble { id: 1 name: "t" } action_refs { id: 2 } size: 9 } actions { preamble { id: 2 name: "a" } } controller_packet_metadata { preamble { id: 3 name: "packet_out" } }`))
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var logged []string
	s := p4rt.New(p4rt.Config{})
	if err := s.Add(1, &broken{info}); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	l, err := p4rt.Listen(s, p4rt.ListenConfig{Address: "127.0.0.1:0", Insecure: true, Log: func(err error) {
		mu.Lock()
		logged = append(logged, err.Error())
		mu.Unlock()
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	c := p4v1.NewP4RuntimeClient(conn)
	claim := func(id uint64) p4v1.P4Runtime_StreamChannelClient {
		stream, err := c.StreamChannel(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(&p4v1.StreamMessageRequest{Update: &p4v1.StreamMessageRequest_Arbitration{Arbitration: &p4v1.MasterArbitrationUpdate{DeviceId: 1, ElectionId: &p4v1.Uint128{Low: id}}}}); err != nil {
			t.Fatal(err)
		}
		if m, err := stream.Recv(); err != nil || m.GetArbitration().GetStatus().GetCode() != 0 {
			t.Fatalf("%v, %v", m, err)
		}
		return stream
	}
	stream := claim(1)
	write := func(id uint64, a p4v1.WriteRequest_Atomicity) codes.Code {
		_, err := c.Write(t.Context(), &p4v1.WriteRequest{DeviceId: 1, ElectionId: &p4v1.Uint128{Low: id}, Atomicity: a, Updates: []*p4v1.Update{{
			Type: p4v1.Update_MODIFY, Entity: &p4v1.Entity{Entity: &p4v1.Entity_TableEntry{TableEntry: &p4v1.TableEntry{TableId: 1, IsDefaultAction: true}}}}}})
		return status.Code(err)
	}
	read := func() codes.Code {
		r, err := c.Read(t.Context(), &p4v1.ReadRequest{DeviceId: 1, Entities: []*p4v1.Entity{{Entity: &p4v1.Entity_TableEntry{TableEntry: &p4v1.TableEntry{TableId: 1}}}}})
		for err == nil {
			_, err = r.Recv()
		}
		if err == io.EOF {
			return codes.OK
		}
		return status.Code(err)
	}
	for range 3 {
		if got := write(1, p4v1.WriteRequest_ROLLBACK_ON_ERROR); got != codes.Internal {
			t.Errorf("a write: %v", got)
		}
		if got := read(); got != codes.Internal {
			t.Errorf("a read: %v", got)
		}
		if got := write(1, 0); got != codes.OK {
			t.Errorf("a write without a defect: %v", got)
		}
	}
	if err := stream.Send(&p4v1.StreamMessageRequest{Update: &p4v1.StreamMessageRequest_Packet{Packet: &p4v1.PacketOut{}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); status.Code(err) != codes.Internal {
		t.Errorf("a packet: %v", err)
	}
	claim(2) // the one before is gone
	if got := write(2, 0); got != codes.OK {
		t.Errorf("a write of the next controller: %v", got)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(logged) != 3 || !strings.Contains(logged[0], "index out of range") || !strings.Contains(logged[0], "recover_test.go") {
		t.Errorf("%d were logged: %s", len(logged), logged)
	}
}
