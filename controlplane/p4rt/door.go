package p4rt

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
	"google.golang.org/protobuf/proto"
)

// Bounds on what clients use of a listener. A peer is an identified client (a user of the socket, a
// certificate), or else a host. One peer must not keep others out: when a table is full, the peer that has most
// of it and has claimed no role loses an entry. A connection with a primary controller does not depend on other
// clients: it may use maxConnCalls of its own.
const (
	maxConns     = 256 // open connections
	maxPeerConns = 64

	maxStreams     = 1024 // StreamChannels, beside those of connections with a primary
	maxPeerStreams = 256
	maxPeerWaiting = 64 // those of them that have claimed no role yet

	maxCalls     = 4096 // calls that have begun and not ended, streams among them
	maxPeerCalls = 512
	maxPeerUnary = 32 // requests that are being answered; further ones are refused
	maxPeerReads = 8  // Reads that are being answered; further ones wait

	// maxConnCalls bounds streams and calls together on one connection.
	maxConnCalls = 256

	// patience is how long a client may take for a handshake, for the message of a request, and for the first
	// claim on a StreamChannel. stalled is how long it may take to accept one message of the answer to a Read.
	patience = 10 * time.Second
	stalled  = 30 * time.Second

	// strangersMessage is the longest message, in bytes, on a connection on which no controller has ever been
	// primary. strangersHeld is the highest sum, in bytes, of such messages that are still incomplete.
	strangersMessage = 64 << 10
	strangersHeld    = 256 << 10
	maxHalf          = maxConnCalls // messages of a connection of which a part has come

	// provenHeld bounds, in bytes, the incomplete messages on a connection that has or had a primary
	// controller, and once more the requests that are being answered there. All connections of one peer that
	// had a primary and have none at the moment share one such bound.
	provenHeld = 2 * MaxMessage

	// maxHeaders is the longest list of headers of a request, in bytes.
	maxHeaders = 16 << 10
)

// door accepts connections, and provides the credentials for a grpc.Server.
type door struct {
	net.Listener
	tls   credentials.TransportCredentials // nil: none
	whois func(raw net.Conn, info credentials.AuthInfo) (*caller, error)
	stats *Stats
	log   func(error)

	mu      sync.Mutex
	last    uint64 // number of the last connection
	conns   map[*conn]struct{}
	closed  bool
	peers   map[string]*peerAccount
	streams int     // StreamChannels, but those on connections with a primary
	waiting []*call // those of them that have claimed no role, oldest first
	calls   int
	logged  map[string]bool // the messages that log got
}

// peerAccount counts what a peer uses of a door's tables. The door's mutex guards the counts.
type peerAccount struct {
	key, name           string
	conns, calls, unary int
	streams, waiting    int           // as in door
	reads               chan struct{} // one for each Read that is being answered
	queued              atomic.Int64  // bytes that wait for its controllers
}

// conn is a client's connection.
type conn struct {
	net.Conn
	d      *door
	number uint64
	host   *peerAccount // of its address: in the table of connections
	calls  int          // guarded by the door
	long   int          // bytes of long requests that are being answered; guarded by the door
	held   atomic.Int64 // bytes of messages that have not come in full
	// headers is the longest list of headers, in bytes, that the client accepts; 0: the client has not said.
	headers atomic.Uint32
	once    sync.Once

	// These are set by the handshake.
	caller *caller
	peer   *peerAccount

	claims     atomic.Int32 // streams that have claimed a role
	primaries  atomic.Int32 // those that are primary
	hadPrimary atomic.Bool  // one of them is primary, or was
}

// call is an RPC. A nil call means that the server was not made with Options.
type call struct {
	c      *conn // nil: the server was not reached by Listen
	cancel context.CancelFunc
	timer  *time.Timer
	// These are of a StreamChannel. Its handler returns why, because gRPC's own error would only say that a
	// context was cancelled.
	once    sync.Once
	end     chan struct{}
	why     error // is set when end is closed
	counted bool  // guarded by the door
}

type callKey struct{}

func callOf(ctx context.Context) *call {
	k, _ := ctx.Value(callKey{}).(*call)
	return k
}

// stop ends a call, wherever the call waits.
func (k *call) stop(why error) {
	switch {
	case k == nil:
	case k.end == nil:
		k.cancel()
	default:
		k.once.Do(func() {
			k.why = why
			close(k.end)
		})
	}
}

// ended returns a channel that is closed when the StreamChannel has to end.
func (k *call) ended() <-chan struct{} {
	if k == nil {
		return nil
	}
	return k.end
}

// within ends the call after time d unless within is called again before; d = 0 means no limit.
func (k *call) within(d time.Duration) {
	if k == nil {
		return
	}
	if d == 0 {
		k.timer.Stop()
	} else {
		k.timer.Reset(d)
	}
}

var errLate = status.Errorf(codes.DeadlineExceeded, "no role was claimed within %v: send a MasterArbitrationUpdate first", patience)

// begin is gRPC's hook that runs for every call before the call's message has arrived.
func begin(ctx context.Context, i *tap.Info) (context.Context, error) {
	c := connOf(ctx)
	below, cancel := context.WithCancel(ctx)
	k := &call{c: c, cancel: cancel}
	if i.FullMethodName == p4v1.P4Runtime_StreamChannel_FullMethodName {
		k.end = make(chan struct{})
	}
	k.timer = time.AfterFunc(patience, func() {
		if c != nil && k.end != nil {
			c.d.stats.StreamsRefused.Add(1)
		}
		k.stop(errLate)
	})
	if c != nil {
		// The connection ends, and not this call alone: gRPC keeps the timer of a
		// call that is refused here until the call's deadline, however far that is.
		if out := c.d.enterCall(c); out != nil {
			out.expel(fmt.Errorf("it had the most of %d requests of one client, or %d of all, at once", maxPeerCalls, maxCalls))
		}
	}
	context.AfterFunc(ctx, func() {
		k.timer.Stop()
		if c != nil {
			c.d.leaveCall(c)
		}
	})
	return context.WithValue(below, callKey{}, k), nil
}

// answerUnary answers a unary call, or refuses it if the peer has too many.
func answerUnary(ctx context.Context, req any, _ *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
	k := callOf(ctx)
	k.within(0)
	if k == nil || k.c == nil {
		return h(ctx, req)
	}
	size := 0
	if m, ok := req.(proto.Message); ok && k.c.hadPrimary.Load() && k.c.caller.trust != owner {
		size = proto.Size(m)
	}
	out, err := k.c.enterUnary(size)
	if err != nil {
		k.c.d.stats.CallsRefused.Add(1)
		return nil, err
	}
	defer out()
	return h(ctx, req)
}

// enterUnary counts a unary call until out is called. size is the length of a request that may be long, in
// bytes, else 0.
func (c *conn) enterUnary(size int) (out func(), err error) {
	d, p, one := c.d, c.peer, 1
	d.mu.Lock()
	defer d.mu.Unlock()
	others := c.long
	if c.primaries.Load() > 0 {
		one = 0
	} else if size > 0 {
		others, _ = d.former(p, func(x *conn) int { return x.long })
	}
	switch {
	case p.unary+one > maxPeerUnary && one > 0:
		return nil, status.Errorf(codes.ResourceExhausted, "%d requests of %s are being answered: wait for an answer", maxPeerUnary, p.name)
	case others > 0 && others+size > provenHeld:
		return nil, status.Errorf(codes.ResourceExhausted, "requests of %d bytes are being answered, and this one has %d: wait for an answer", others, size)
	}
	p.unary += one
	c.long += size
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		p.unary -= one
		c.long -= size
	}, nil
}

// former returns the sum of has over the peer's connections that had a primary and have none at the moment, and
// the connection that has most. The caller holds d.mu.
func (d *door) former(p *peerAccount, has func(*conn) int) (sum int, most *conn) {
	for x := range d.conns {
		if x.peer != p || !x.hadPrimary.Load() || x.primaries.Load() > 0 {
			continue
		}
		n := has(x)
		sum += n
		if most == nil || n > has(most) || n == has(most) && x.number < most.number {
			most = x
		}
	}
	return sum, most
}

// flooded returns the connection of the peer that has to be closed because too many bytes are incomplete on
// connections without a primary; nil: none has to be closed.
func (c *conn) flooded() *conn {
	if c.caller.trust == owner {
		return nil
	}
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	if sum, most := c.d.former(c.peer, func(x *conn) int { return int(x.held.Load()) }); sum > provenHeld {
		return most
	}
	return nil
}

// answerStream answers a streaming call, or refuses it if the peer has too many.
func answerStream(srv any, s grpc.ServerStream, i *grpc.StreamServerInfo, h grpc.StreamHandler) error {
	k := callOf(s.Context())
	switch i.FullMethod {
	case p4v1.P4Runtime_StreamChannel_FullMethodName:
		if k == nil || k.c == nil || k.c.primaries.Load() > 0 {
			break
		}
		if err := k.c.d.join(k); err != nil {
			return err
		}
		defer k.c.d.leave(k)
	case p4v1.P4Runtime_Read_FullMethodName:
		if k == nil || k.c == nil || k.c.primaries.Load() > 0 {
			break
		}
		select {
		case k.c.peer.reads <- struct{}{}:
			defer func() { <-k.c.peer.reads }()
		case <-s.Context().Done():
			k.c.d.stats.CallsRefused.Add(1)
			return status.Errorf(codes.ResourceExhausted, "%d Reads of %s are being answered: take their answers first", maxPeerReads, k.c.peer.name)
		}
		k.within(patience)
	default:
		k.within(0) // health and reflection send little
	}
	return h(srv, s)
}

// Accept implements net.Listener: it returns the next connection for which there is room.
func (d *door) Accept() (net.Conn, error) {
	for {
		raw, err := d.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if c, ok := d.enter(raw); ok {
			return c, nil
		}
		d.stats.ConnsRefused.Add(1)
		raw.Close()
	}
}

// account returns the account of a peer, and counts one more connection in it. The caller holds d.mu.
func (d *door) account(key, name string) *peerAccount {
	p := d.peers[key]
	if p == nil {
		p = &peerAccount{key: key, name: name, reads: make(chan struct{}, maxPeerReads)}
		d.peers[key] = p
	}
	p.conns++
	return p
}

// drop counts one connection less in an account. The caller holds d.mu.
func (d *door) drop(p *peerAccount) {
	if p.conns--; p.conns == 0 {
		delete(d.peers, p.key)
	}
}

// enter adds a connection to the table.
func (d *door) enter(raw net.Conn) (*conn, bool) {
	c := &conn{Conn: raw, d: d}
	name := hostOf(raw.RemoteAddr())
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return nil, false
	}
	of := name // the host that loses a connection; "": the one with most
	if p := d.peers[name]; p == nil || p.conns < maxPeerConns {
		of = ""
	}
	var out *conn
	if of != "" || len(d.conns) >= maxConns {
		if out = d.idle(of); out == nil {
			d.mu.Unlock()
			return nil, false
		}
		d.remove(out)
	}
	d.last++
	c.number = d.last
	c.host = d.account(name, name)
	d.conns[c] = struct{}{}
	d.mu.Unlock()
	if out != nil {
		d.stats.ConnsRefused.Add(1)
		out.Conn.Close()
	}
	return c, true
}

// shut refuses new connections and closes all open ones. gRPC's own Stop would wait for handshakes, and for
// clients that do not read the last messages of TLS.
func (d *door) shut() {
	d.mu.Lock()
	d.closed = true
	all := slices.Collect(maps.Keys(d.conns))
	d.mu.Unlock()
	for _, c := range all {
		c.Close()
	}
}

// idle returns the oldest connection of a host on which no controller has claimed a role, or nil if there is
// none. host "" means the host with most connections. The caller holds d.mu.
func (d *door) idle(host string) *conn {
	var found *conn
	for c := range d.conns {
		if c.claims.Load() > 0 || host != "" && c.host.name != host {
			continue
		}
		if found == nil || c.host.conns > found.host.conns || c.host.conns == found.host.conns && c.number < found.number {
			found = c
		}
	}
	return found
}

// remove removes a connection from the table. The caller holds d.mu.
func (d *door) remove(c *conn) {
	if _, there := d.conns[c]; there {
		delete(d.conns, c)
		d.drop(c.host)
		if c.peer != nil && c.peer != c.host {
			d.drop(c.peer)
		}
	}
}

// Close closes the connection and removes it from the table.
func (c *conn) Close() error {
	c.once.Do(func() {
		c.d.mu.Lock()
		c.d.remove(c)
		c.d.mu.Unlock()
	})
	return c.Conn.Close()
}

// expel ends a connection, and logs why.
func (c *conn) expel(why error) {
	c.d.stats.ConnsRefused.Add(1)
	who := c.host.name
	if c.caller != nil {
		who = c.caller.name
	}
	c.d.mu.Lock()
	text := who + why.Error()
	first := !c.d.logged[text] && len(c.d.logged) < 100
	if first {
		c.d.logged[text] = true
	}
	c.d.mu.Unlock()
	if first && c.d.log != nil {
		c.d.log(fmt.Errorf("p4runtime: a connection of %s was ended: %w", who, why))
	}
	c.Close()
}

// proven reports whether a client may send long messages: the owner of the socket may, and so may a client that
// is or was primary on this connection.
func (c *conn) proven() bool { return c.hadPrimary.Load() || c.caller.trust == owner }

// AuthType implements credentials.AuthInfo: conn is the AuthInfo of its calls.
func (c *conn) AuthType() string { return "quillon" }

// enterCall counts a call. If there are too many calls, it returns the connection that has to be closed.
func (d *door) enterCall(c *conn) (out *conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls++
	c.calls++
	c.peer.calls++
	switch {
	case c.primaries.Load() > 0:
	case c.peer.calls > maxPeerCalls:
		out = c
	case d.calls > maxCalls:
		for x := range d.conns {
			if x.primaries.Load() == 0 && (out == nil || x.calls > out.calls) {
				out = x
			}
		}
	}
	return out
}

func (d *door) leaveCall(c *conn) {
	d.mu.Lock()
	d.calls--
	c.calls--
	c.peer.calls--
	d.mu.Unlock()
}

// join counts a StreamChannel that has claimed no role yet. If there are too many, it ends the one that has
// waited longest for its first claim, of the same peer or of the peer with most of them.
func (d *door) join(k *call) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	p := k.c.peer
	var from *peerAccount
	switch {
	case p.streams >= maxPeerStreams || p.waiting >= maxPeerWaiting:
		from = p
	case d.streams >= maxStreams:
		from = p
		for _, w := range d.waiting {
			if w.c.peer.waiting > from.waiting {
				from = w.c.peer
			}
		}
	}
	if from != nil {
		n := slices.IndexFunc(d.waiting, func(w *call) bool { return w.c.peer == from })
		d.stats.StreamsRefused.Add(1)
		if n < 0 {
			return status.Errorf(codes.ResourceExhausted, "%s has %d streams of controllers, and all have %d: end one first", p.name, p.streams, d.streams)
		}
		out := d.waiting[n]
		d.uncount(out)
		out.stop(status.Error(codes.ResourceExhausted, "others wait for a stream: claim a role at once"))
	}
	k.counted = true
	p.streams++
	d.streams++
	p.waiting++
	d.waiting = append(d.waiting, k)
	return nil
}

// uncount removes a stream that has ended from the counts. The caller holds d.mu.
func (d *door) uncount(k *call) {
	if !k.counted {
		return
	}
	k.counted = false
	k.c.peer.streams--
	d.streams--
	d.unwait(k)
}

func (d *door) unwait(k *call) {
	if n := slices.Index(d.waiting, k); n >= 0 {
		d.waiting = slices.Delete(d.waiting, n, n+1)
		k.c.peer.waiting--
	}
}

func (d *door) leave(k *call) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.uncount(k)
}

// claimed notes the first claim of a stream.
func (k *call) claimed() {
	k.within(0)
	if k == nil || k.c == nil {
		return
	}
	k.c.claims.Add(1)
	k.c.d.mu.Lock()
	k.c.d.unwait(k)
	k.c.d.mu.Unlock()
}

// ServerHandshake identifies a client.
func (d *door) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	c, ok := raw.(*conn)
	if !ok {
		return nil, nil, errors.New("the connection is not the door's")
	}
	var info credentials.AuthInfo
	under := net.Conn(c)
	if d.tls != nil {
		var err error
		if under, info, err = d.tls.ServerHandshake(c); err != nil {
			return nil, nil, err
		}
	}
	who, err := d.whois(c.Conn, info)
	if err != nil {
		c.caller = &caller{name: c.host.name}
		c.expel(err)
		return nil, nil, err
	}
	c.caller = who
	if who.trust == nobody {
		who.name = c.host.name
	}
	d.mu.Lock()
	_, there := d.conns[c]
	switch {
	case who.trust == nobody:
		c.peer = c.host
	case there:
		c.peer = d.account(fmt.Sprint(who.trust, " ", who.name), who.name)
	}
	d.mu.Unlock()
	if c.peer == nil {
		return nil, nil, net.ErrClosed // another connection took its place
	}
	return newGate(under, c), c, nil
}

// ClientHandshake implements credentials.TransportCredentials; a server does not use it.
func (d *door) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("a door is a server's")
}

// Info implements credentials.TransportCredentials.
func (d *door) Info() credentials.ProtocolInfo {
	if d.tls != nil {
		return d.tls.Info()
	}
	return credentials.ProtocolInfo{SecurityProtocol: "quillon"}
}

// Clone implements credentials.TransportCredentials; a server needs no copies.
func (d *door) Clone() credentials.TransportCredentials { return d }

// OverrideServerName implements credentials.TransportCredentials; a server does not use it.
func (d *door) OverrideServerName(string) error { return nil }

// hostOf returns the host of an address. For IPv6 it returns the /64 network, because one host may use all
// addresses of such a network.
func hostOf(a net.Addr) string {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return a.Network()
	}
	if ip := tcp.IP.To4(); ip != nil {
		return ip.String()
	}
	if tcp.IP.IsLoopback() || tcp.IP == nil {
		return tcp.IP.String()
	}
	return tcp.IP.Mask(net.CIDRMask(64, 128)).String() + "/64"
}
