package p4rt

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/quillon/quillon/nf/clock"
)

const (
	// APIVersion is the version of P4Runtime that is served.
	APIVersion = "1.5.0"
	// Port is the TCP port that IANA gave P4Runtime.
	Port = 9559
	// MaxMessage is the longest message that the server takes, in bytes: room for the
	// largest programs, and for about a million small updates. Longer ones fail with
	// ResourceExhausted.
	MaxMessage = 64 << 20
	// maxAnswer bounds one message of a Read's answer, and a list of digests, in bytes: below the
	// 4 MiB that clients take by default.
	maxAnswer = 1 << 20
	// maxNotes is how many notifications and packets may wait for a client. maxQueue is how many
	// bytes of them may wait for a primary, queueForSure for others. A primary has more
	// than queueForSure only while less than maxPeerQueue bytes wait for all streams of its
	// peer.
	maxNotes     = 4096
	maxQueue     = 16 << 20
	queueForSure = 64 << 10
	maxPeerQueue = 64 << 20
	// maxStrays is how many messages a controller may send before its first claim.
	maxStrays = 16
	// maxRoles is how many roles a device remembers beside the default role.
	maxRoles = 1000
)

// Config are the settings of a Server; the zero value is good.
type Config struct {
	// Clock is for the timestamps of notifications; nil: the wall clock.
	Clock clock.Clock
	// MaxStreams is how many controllers may be connected for one device and
	// role; 0: 64.
	MaxStreams int
	// Roles are the roles beside the default role, and what they may do. nil: there is any
	// role, and its controller says what it may do.
	Roles map[string]Role
}

// Server is the P4Runtime service.
type Server struct {
	p4v1.UnimplementedP4RuntimeServer
	cfg   Config
	stats Stats

	mu      sync.RWMutex
	devices map[uint64]*device
}

// New is a server without devices.
func New(cfg Config) *Server {
	if cfg.Clock == nil {
		cfg.Clock = clock.NewWall()
	}
	cfg.MaxStreams = cmp.Or(cfg.MaxStreams, 64)
	return &Server{cfg: cfg, devices: map[uint64]*device{}}
}

// Options are the options with which a grpc.Server of this service should be made: sizes of
// messages, limits of time, and probes that end streams of dead clients. A request whose
// handler panics is answered INTERNAL, and log gets the stack, once for each place of a panic;
// nil: it is not logged. The bounds on what a peer may have are in Listen.
func Options(log func(error)) []grpc.ServerOption {
	r := &recoverer{log: log}
	return []grpc.ServerOption{
		grpc.InTapHandle(begin),
		grpc.ChainUnaryInterceptor(r.unary, answerUnary),
		grpc.ChainStreamInterceptor(r.stream, answerStream),
		grpc.MaxRecvMsgSize(MaxMessage),
		grpc.MaxHeaderListSize(maxHeaders),
		grpc.MaxConcurrentStreams(maxConnCalls),
		// Windows have a fixed size, however much a client sends.
		grpc.StaticStreamWindowSize(64 << 10),
		grpc.StaticConnWindowSize(1 << 20),
		grpc.SharedWriteBuffer(true),
		grpc.ConnectionTimeout(patience),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
	}
}

// Register adds the service to a grpc.Server.
func (s *Server) Register(g *grpc.Server) { p4v1.RegisterP4RuntimeServer(g, s) }

// Add adds a device under an id, and listens to its events.
func (s *Server) Add(id uint64, dev Device) error {
	if id == 0 {
		return errors.New("p4runtime: device 0: ids begin with 1")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.devices[id] != nil {
		return fmt.Errorf("p4runtime: there are two devices %d", id)
	}
	d := newDevice(s, id, dev)
	stop, err := dev.Listen(d.event)
	if err != nil {
		return fmt.Errorf("p4runtime: device %d: %w", id, err)
	}
	d.stop = stop
	s.devices[id] = d
	return nil
}

// Close stops listening to the devices. The owner of the grpc.Server stops that
// before.
func (s *Server) Close() {
	s.mu.Lock()
	all := slices.Collect(maps.Values(s.devices))
	clear(s.devices)
	s.mu.Unlock()
	for _, d := range all {
		d.close()
	}
}

func (s *Server) device(id uint64) (*device, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if d := s.devices[id]; d != nil {
		return d, nil
	}
	ids := slices.Sorted(maps.Keys(s.devices))
	return nil, status.Errorf(codes.NotFound, "there is no device %d; there are: %v", id, ids)
}

// Capabilities implements the RPC.
func (s *Server) Capabilities(_ context.Context, r *p4v1.CapabilitiesRequest) (*p4v1.CapabilitiesResponse, error) {
	if id := r.GetDeviceId(); id != 0 {
		if _, err := s.device(id); err != nil {
			return nil, err
		}
	}
	return &p4v1.CapabilitiesResponse{P4RuntimeApiVersion: APIVersion}, nil
}

// statusOf is an error with a canonical code.
func statusOf(err error) *status.Status {
	if st, ok := status.FromError(err); ok {
		return st
	}
	return status.New(codes.Internal, err.Error())
}
