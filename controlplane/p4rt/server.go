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
	// APIVersion is the version of P4Runtime that the server implements.
	APIVersion = "1.5.0"
	// Port is the TCP port that IANA assigned to P4Runtime.
	Port = 9559
	// MaxMessage is the longest message that the server accepts, in bytes. It has room for the largest
	// programs, and for about a million small updates. The error for longer messages is ResourceExhausted.
	MaxMessage = 64 << 20
	// maxAnswer is the longest message of the answer to a Read, and the longest list of digests, in bytes. It
	// is below the 4 MiB that clients accept by default.
	maxAnswer = 1 << 20
	// maxNotes is the highest number of notifications and packets that wait for a client. maxQueue is the
	// highest number of their bytes for a primary, queueForSure for other clients. A primary gets more than
	// queueForSure only while less than maxPeerQueue bytes wait for all streams of its peer.
	maxNotes     = 4096
	maxQueue     = 16 << 20
	queueForSure = 64 << 10
	maxPeerQueue = 64 << 20
	// maxStrays is the number of messages that a controller may send before its first claim.
	maxStrays = 16
	// maxRoles is the number of roles that a device keeps beside the default role.
	maxRoles = 1000
)

// Config holds the settings of a Server. The zero value is usable.
type Config struct {
	// Clock gives the timestamps of notifications; nil: the wall clock.
	Clock clock.Clock
	// MaxStreams is the highest number of controllers that are connected for one device and role; 0: 64.
	MaxStreams int
	// Roles are the roles that exist beside the default role, and what each may do. If it is nil, a controller
	// may claim any role, and its role configuration says what the role may do.
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

// New returns a server without devices.
func New(cfg Config) *Server {
	if cfg.Clock == nil {
		cfg.Clock = clock.NewWall()
	}
	cfg.MaxStreams = cmp.Or(cfg.MaxStreams, 64)
	return &Server{cfg: cfg, devices: map[uint64]*device{}}
}

// Options returns the options that a grpc.Server for this service needs: sizes of messages, time limits, and
// keepalive probes that end the streams of dead clients. A request whose handler panics gets the error
// INTERNAL; log gets the stack, once for each place where a panic happened. log may be nil. The bounds on what
// a peer may use are set by Listen.
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

// Add adds a device with an id above 0, and listens to its events.
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

// Close stops listening to the devices. The owner of the grpc.Server has to stop that server first.
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

// statusOf returns an error as a gRPC status; its code is Internal if the error has none.
func statusOf(err error) *status.Status {
	if st, ok := status.FromError(err); ok {
		return st
	}
	return status.New(codes.Internal, err.Error())
}
