package p4rt

import (
	"context"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
)

// ForgetMethod is the name of an RPC that only clients of the Unix socket may call: the device forgets the
// arbitration of a role. The request is a p4.v1.MasterArbitrationUpdate, of which only the device id and the
// role name count. All streams of the role end, and the next controller may claim any election id from 1 on.
// The answer is a google.protobuf.Empty.
const ForgetMethod = "/quillon.Owner/ForgetArbitration"

// registerOwner adds the service to a grpc.Server.
func (s *Server) registerOwner(g *grpc.Server) {
	g.RegisterService(&grpc.ServiceDesc{
		ServiceName: "quillon.Owner",
		Methods: []grpc.MethodDesc{{
			MethodName: "ForgetArbitration",
			Handler: func(_ any, ctx context.Context, dec func(any) error, intercept grpc.UnaryServerInterceptor) (any, error) {
				m := &p4v1.MasterArbitrationUpdate{}
				if err := dec(m); err != nil {
					return nil, err
				}
				return intercept(ctx, m, &grpc.UnaryServerInfo{Server: s, FullMethod: ForgetMethod}, func(_ context.Context, req any) (any, error) {
					m := req.(*p4v1.MasterArbitrationUpdate)
					d, err := s.device(m.GetDeviceId())
					if err != nil {
						return nil, err
					}
					return &emptypb.Empty{}, d.forget(m.GetRole().GetName())
				})
			},
		}},
	}, nil)
}

// forget ends all streams of a role, and resets the role's arbitration.
func (d *device) forget(name string) error {
	// A write of the primary that is under way ends first; later ones are refused.
	d.arbitration.Lock()
	defer d.arbitration.Unlock()
	d.writing.Lock()
	defer d.writing.Unlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	r := d.roles[name]
	if r == nil {
		return status.Errorf(codes.NotFound, "device %d knows no role %q: no controller has claimed it", d.id, name)
	}
	r.become(nil)
	for st := range r.streams {
		r.turnOut(st, status.Errorf(codes.Aborted, "the server's owner has ended all streams of %s", roleText(name)))
	}
	r.highest, r.config, r.scope = nil, nil, nil
	if name != "" {
		delete(d.roles, name)
	}
	return nil
}
