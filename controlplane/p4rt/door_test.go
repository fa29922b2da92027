package p4rt

import (
	"context"
	"fmt"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/encoding/protowire"
)

// still is a device without a program, which waits when it is asked for one.
type still struct {
	Device
	wait chan struct{}
}

func (s *still) Listen(func(Event)) (func(), error) { return func() {}, nil }
func (s *still) Pipeline() Pipeline {
	<-s.wait
	return nil
}

// hall is a server behind a door, in a bubble of virtual time. All clients are of one
// host.
type hall struct {
	t   *testing.T
	l   *bufconn.Listener
	d   *door
	s   *Server
	out *Listener
	dev *still
	end []func()
}

func inHall(t *testing.T, f func(t *testing.T, h *hall)) {
	synctest.Test(t, func(t *testing.T) {
		h := &hall{t: t, l: bufconn.Listen(1 << 16), dev: &still{wait: make(chan struct{})}, s: New(Config{})}
		h.d = testDoor(h.l)
		if err := h.s.Add(1, h.dev); err != nil {
			t.Fatal(err)
		}
		h.out = h.d.open(h.s, false)
		f(t, h)
		for _, e := range h.end {
			e()
		}
		if err := h.out.Close(); err != nil {
			t.Error(err)
		}
		h.s.Close()
	})
}

// A client that says nothing, as a scanner of ports, does not hold up the end of the server.
func TestSilentClientAtTheEnd(t *testing.T) {
	inHall(t, func(t *testing.T, h *hall) {
		raw, err := h.l.Dial()
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		began := time.Now()
		if err := h.out.Close(); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took > 0 {
			t.Errorf("the end took %v", took)
		}
		if _, err := io.Copy(io.Discard, raw); err != nil {
			t.Errorf("the client is not let go: %v", err)
		}
	})
}

// client is a connection of its own.
func (h *hall) client() p4v1.P4RuntimeClient {
	h.t.Helper()
	conn, err := grpc.NewClient("passthrough:///hall", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDisableRetry(),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return h.l.DialContext(ctx) }))
	if err != nil {
		h.t.Fatal(err)
	}
	h.end = append(h.end, func() { conn.Close() })
	return p4v1.NewP4RuntimeClient(conn)
}

func (h *hall) stream(c p4v1.P4RuntimeClient) p4v1.P4Runtime_StreamChannelClient {
	h.t.Helper()
	s, err := c.StreamChannel(h.t.Context())
	if err != nil {
		h.t.Fatal(err)
	}
	synctest.Wait()
	return s
}

func (h *hall) claim(s p4v1.P4Runtime_StreamChannelClient, id uint64) {
	h.t.Helper()
	m := &p4v1.MasterArbitrationUpdate{DeviceId: 1, ElectionId: &p4v1.Uint128{Low: id}}
	if err := s.Send(&p4v1.StreamMessageRequest{Update: &p4v1.StreamMessageRequest_Arbitration{Arbitration: m}}); err != nil {
		h.t.Fatal(err)
	}
	for {
		m, err := s.Recv()
		if err != nil {
			h.t.Fatal(err)
		}
		if m.GetArbitration().GetElectionId().GetLow() >= id { // it is no word of before
			return
		}
	}
}

// ends checks how a stream was ended, after what it was sent.
func (h *hall) ends(s p4v1.P4Runtime_StreamChannelClient, want codes.Code) {
	h.t.Helper()
	for {
		_, err := s.Recv()
		if err == nil {
			continue
		}
		if status.Code(err) != want {
			h.t.Errorf("ended with %v, want %v", err, want)
		}
		return
	}
}

// counts checks what the tables hold.
func (h *hall) counts(conns, streams, waiting, calls int) {
	h.t.Helper()
	synctest.Wait()
	h.d.mu.Lock()
	defer h.d.mu.Unlock()
	if got := []int{len(h.d.conns), h.d.streams, len(h.d.waiting), h.d.calls}; fmt.Sprint(got) != fmt.Sprint([]int{conns, streams, waiting, calls}) {
		h.t.Errorf("connections, streams, those that wait, calls: %v, want %v", got, []int{conns, streams, waiting, calls})
	}
	if p := h.d.peers["bufconn"]; p != nil && (p.conns != conns || p.streams != streams || p.waiting != waiting || p.calls != calls) {
		h.t.Errorf("the peer has %+v", p)
	}
}

// TestPatience: streams that claim nothing, and requests whose message does not come, end;
// a stream that has claimed a role stays.
func TestPatience(t *testing.T) {
	inHall(t, func(t *testing.T, h *hall) {
		c := h.client()
		stays := h.stream(c)
		h.claim(stays, 1)
		other := h.client()
		idle := h.stream(other)
		if _, err := other.Read(t.Context(), &p4v1.ReadRequest{DeviceId: 1}); err != nil { // its device does not answer
			t.Fatal(err)
		}
		h.counts(2, 2, 1, 3)
		time.Sleep(patience - time.Second)
		h.counts(2, 2, 1, 3)
		time.Sleep(2 * time.Second)
		h.counts(2, 1, 0, 2)
		h.ends(idle, codes.DeadlineExceeded)
		time.Sleep(time.Hour)
		close(h.dev.wait)
		h.claim(stays, 2)
		h.counts(2, 1, 0, 1)
	})
}

// TestStrays: who sends and claims nothing is sent away after some messages.
func TestStrays(t *testing.T) {
	inHall(t, func(t *testing.T, h *hall) {
		s := h.stream(h.client())
		m := &p4v1.StreamMessageRequest{Update: &p4v1.StreamMessageRequest_Packet{Packet: &p4v1.PacketOut{Payload: make([]byte, 60)}}}
		for range maxStrays + 1 {
			if err := s.Send(m); err != nil {
				t.Fatal(err)
			}
		}
		h.ends(s, codes.FailedPrecondition)
		h.counts(1, 0, 0, 0)
	})
}

// TestStreamTable: where there are too many streams the oldest that claims nothing goes.
func TestStreamTable(t *testing.T) {
	inHall(t, func(t *testing.T, h *hall) {
		a, b := h.client(), h.client()
		backup := h.stream(a)
		h.claim(backup, 1) // primary, for the moment
		primary := h.stream(b)
		h.claim(primary, 2)
		var idle []p4v1.P4Runtime_StreamChannelClient
		for range maxPeerWaiting {
			idle = append(idle, h.stream(a))
		}
		h.counts(2, 2+maxPeerWaiting, maxPeerWaiting, 2+maxPeerWaiting)
		next := h.stream(a)
		h.ends(idle[0], codes.ResourceExhausted)
		h.counts(2, 2+maxPeerWaiting, maxPeerWaiting, 2+maxPeerWaiting)
		h.claim(next, 3) // there was time for it
		h.counts(2, 2+maxPeerWaiting, maxPeerWaiting-1, 2+maxPeerWaiting)
		// The primary's connection is in no table: as many as it likes, and they
		// push nobody out.
		h.claim(primary, 4)
		for range 2 * maxPeerWaiting {
			h.stream(b)
		}
		h.counts(2, 2+maxPeerWaiting, maxPeerWaiting-1, 2+3*maxPeerWaiting)
	})
}

// TestCallTables: requests of one peer that wait for an answer are bounded, and those of a
// connection with a primary are not refused for others.
func TestCallTables(t *testing.T) {
	inHall(t, func(t *testing.T, h *hall) {
		a, b, mine := h.client(), h.client(), h.client()
		h.claim(h.stream(mine), 1)
		refused := make(chan error, 1000)
		ask := func(c p4v1.P4RuntimeClient, n int) {
			for range n {
				go func() {
					_, err := c.GetForwardingPipelineConfig(t.Context(), &p4v1.GetForwardingPipelineConfigRequest{DeviceId: 1})
					if err != nil {
						refused <- err
					}
				}()
			}
			synctest.Wait()
		}
		ask(a, maxPeerUnary/2)
		ask(b, maxPeerUnary/2)
		h.counts(3, 1, 0, 1+maxPeerUnary)
		ask(b, 3)
		ask(mine, 2*maxPeerUnary)
		h.counts(3, 1, 0, 1+3*maxPeerUnary)
		if len(refused) != 3 || status.Code(<-refused) != codes.ResourceExhausted {
			t.Errorf("%d were refused, want 3", len(refused))
		}
		// Reads wait for their turn, and not for ever.
		read := func(c p4v1.P4RuntimeClient) <-chan codes.Code {
			end := make(chan codes.Code, 1)
			go func() {
				r, err := c.Read(t.Context(), &p4v1.ReadRequest{DeviceId: 1})
				for err == nil {
					_, err = r.Recv()
				}
				end <- status.Code(err)
			}()
			return end
		}
		var reads []<-chan codes.Code
		for range maxPeerReads + 1 {
			reads = append(reads, read(a))
			synctest.Wait()
		}
		time.Sleep(patience + time.Second)
		if got := <-reads[maxPeerReads]; got != codes.ResourceExhausted {
			t.Errorf("a Read too many: %v", got)
		}
		last := read(b)
		synctest.Wait()
		close(h.dev.wait)
		for _, r := range append(reads[:maxPeerReads], last) {
			if got := <-r; got != codes.FailedPrecondition { // there is no program
				t.Errorf("a Read: %v", got)
			}
		}
		h.counts(3, 1, 0, 1)
	})
}

// TestLongCalls: requests that are being answered are of a bounded size together: on a connection, and on all those of a client on
// which it was primary.
func TestLongCalls(t *testing.T) {
	inHall(t, func(t *testing.T, h *hall) {
		a, b, c := h.client(), h.client(), h.client()
		streams := []p4v1.P4Runtime_StreamChannelClient{h.stream(a), h.stream(b), h.stream(c)}
		for n, s := range streams {
			h.claim(s, uint64(n+1)) // the last one is primary
		}
		refused := make(chan codes.Code, 10)
		long := &p4v1.GetForwardingPipelineConfigRequest{DeviceId: 1}
		long.ProtoReflect().SetUnknown(protowire.AppendBytes(protowire.AppendTag(nil, 999, protowire.BytesType), make([]byte, MaxMessage*3/4)))
		ask := func(c p4v1.P4RuntimeClient) {
			go func() {
				_, err := c.GetForwardingPipelineConfig(t.Context(), long)
				refused <- status.Code(err)
			}()
			synctest.Wait()
		}
		for range 2 {
			ask(a)
			ask(c)
		}
		if len(refused) != 0 {
			t.Error("two long requests are not answered: ", <-refused)
		}
		ask(b) // a's are of the same client
		ask(c)
		for _, who := range []string{"of a client", "of a primary"} {
			if len(refused) == 0 || <-refused != codes.ResourceExhausted {
				t.Errorf("one long request %s more is answered", who)
			}
		}
		close(h.dev.wait)
		for range 4 {
			if got := <-refused; got != codes.OK {
				t.Error(got)
			}
		}
	})
}

// TestHalfCalls: a client whose requests begin and do not go on loses a connection.
func TestHalfCalls(t *testing.T) {
	inHall(t, func(t *testing.T, h *hall) {
		primary := h.stream(h.client())
		h.claim(primary, 1)
		half := func(n int) {
			conn, err := grpc.NewClient("passthrough:///hall", grpc.WithTransportCredentials(insecure.NewCredentials()),
				grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return h.l.DialContext(ctx) }))
			if err != nil {
				t.Fatal(err)
			}
			h.end = append(h.end, func() { conn.Close() })
			for range n {
				if _, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ClientStreams: true}, p4v1.P4Runtime_Write_FullMethodName); err != nil && err != io.EOF {
					t.Fatal(err)
				}
			}
			synctest.Wait()
		}
		half(maxConnCalls)
		half(maxPeerCalls - maxConnCalls - 1)
		h.counts(3, 1, 0, maxPeerCalls)
		half(1)
		h.counts(3, 1, 0, maxPeerCalls)
		time.Sleep(patience + time.Second)
		h.counts(3, 1, 0, 1)
		h.claim(primary, 2)
	})
}

// TestConnTable: where the table is full, who has most of it and claims nothing goes.
func TestConnTable(t *testing.T) {
	d := testDoor(nil)
	from := func(host byte) *conn {
		c, ok := d.enter(&at{addr: &net.TCPAddr{IP: net.IPv4(192, 0, 2, host)}})
		if !ok {
			return nil
		}
		return c
	}
	there := func(c *conn) bool { _, ok := d.conns[c]; return ok }
	first := from(1)
	first.claims.Add(1)
	second := from(1)
	for range maxPeerConns - 2 {
		from(1)
	}
	last := from(1)
	if !there(first) || there(second) || !there(last) || d.peers["192.0.2.1"].conns != maxPeerConns {
		t.Errorf("a host's %d: %v %v %v", d.peers["192.0.2.1"].conns, there(first), there(second), there(last))
	}
	for n := range maxConns - maxPeerConns {
		from(byte(2 + n/(maxPeerConns-1)))
	}
	mine := from(100)
	if mine == nil || len(d.conns) != maxConns || d.peers["192.0.2.1"].conns != maxPeerConns-1 {
		t.Errorf("%d connections, %d of the host with most", len(d.conns), d.peers["192.0.2.1"].conns)
	}
	for c := range d.conns {
		c.claims.Add(1)
	}
	if from(101) != nil || from(1) != nil || len(d.conns) != maxConns {
		t.Error("a controller's connection was given up for a stranger's")
	}
	for c := range d.conns {
		c.Close()
	}
	if len(d.conns) != 0 || len(d.peers) != 0 {
		t.Errorf("%d connections and %d peers are left", len(d.conns), len(d.peers))
	}
}

type at struct {
	net.Conn
	addr net.Addr
}

func (a *at) RemoteAddr() net.Addr { return a.addr }
func (a *at) Close() error         { return nil }

func TestHosts(t *testing.T) {
	for in, want := range map[string]string{"192.0.2.1:5": "192.0.2.1", "[::ffff:192.0.2.1]:5": "192.0.2.1", "[::1]:5": "::1", "[2001:db8:1:2:3:4:5:6]:7": "2001:db8:1:2::/64"} {
		a, err := net.ResolveTCPAddr("tcp", in)
		if err != nil {
			t.Fatal(err)
		}
		if got := hostOf(a); got != want {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
	}
}

// TestPeerQueue: what waits for all streams of a peer is bounded, and each has something
// for sure.
func TestPeerQueue(t *testing.T) {
	d := testDoor(nil)
	c, _ := d.enter(&at{addr: &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1)}})
	c.peer = c.host
	packet := &p4v1.StreamMessageResponse{Update: &p4v1.StreamMessageResponse_Packet{Packet: &p4v1.PacketIn{Payload: make([]byte, 32<<10)}}}
	r := &role{}
	backup := &stream{wake: make(chan struct{}, 1), call: &call{c: c}, room: queueForSure}
	r.become(backup)
	r.become(nil)
	for backup.send(packet) {
	}
	if backup.size > queueForSure {
		t.Errorf("%d bytes wait for who was primary", backup.size)
	}
	backup.discard()
	var all []*stream
	for range 9 {
		st := &stream{wake: make(chan struct{}, 1), call: &call{c: c}, room: queueForSure}
		(&role{}).become(st)
		all = append(all, st)
		for st.send(packet) {
		}
	}
	if got := int(c.peer.queued.Load()); got > maxPeerQueue+len(all)*queueForSure || got < maxPeerQueue-maxQueue {
		t.Errorf("%d bytes wait", got)
	}
	for _, st := range all {
		if st.size == 0 || st.size > maxQueue {
			t.Errorf("%d bytes of one", st.size)
		}
		st.discard()
	}
	if got := c.peer.queued.Load(); got != 0 || c.primaries.Load() != 9 {
		t.Errorf("%d bytes wait in the end, %d primaries", got, c.primaries.Load())
	}
}

// TestRoleIsFull: a peer that has all places of a role gives one to another's controller,
// and not the primary's.
func TestRoleIsFull(t *testing.T) {
	inHall(t, func(t *testing.T, h *hall) {
		c := h.client()
		var all []p4v1.P4Runtime_StreamChannelClient
		for n := range h.s.cfg.MaxStreams {
			s := h.stream(c)
			h.claim(s, uint64(1000-n))
			all = append(all, s)
		}
		full := h.stream(c)
		m := &p4v1.MasterArbitrationUpdate{DeviceId: 1}
		_ = full.Send(&p4v1.StreamMessageRequest{Update: &p4v1.StreamMessageRequest_Arbitration{Arbitration: m}})
		h.ends(full, codes.ResourceExhausted)
		h.d.mu.Lock()
		// From now on clients are another host's.
		h.d.whois = func(net.Conn, credentials.AuthInfo) (*caller, error) {
			return &caller{name: "another", trust: certified}, nil
		}
		h.d.mu.Unlock()
		mine := h.stream(h.client())
		h.claim(mine, 5000)
		h.claim(all[0], 6000) // the primary was not turned out
		r := h.s.devices[1].roles[""]
		if len(r.streams) != h.s.cfg.MaxStreams {
			t.Errorf("%d streams", len(r.streams))
		}
	})
}
